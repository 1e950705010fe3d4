// SPDX-License-Identifier: Apache-2.0
//! Import and export of batches through the Arrow C Device data interface.
//!
//! - [`export`] shares the memory of columns in Arrow's own layout, see [`has_arrow_layout`].
//!   Kernels convert other columns first.
//! - [`export_to_host`] copies such columns to host memory.
//! - [`import`] accepts arrays of this device's driver, and arrays in host memory.
//!
//! | driver | device type | device id | `buffers[i]` | event |
//! |---|---|---|---|---|
//! | CUDA | `CUDA` | the driver's ordinal | a device pointer | `CUevent` |
//! | OpenCL | `OPENCL` | index among the devices of all platforms, in the loader's order | a `cl_mem`, from its start | `cl_event` |
//! | CUDA, to the host | `CUDA_HOST` | the driver's ordinal | pinned memory | none |
//! | OpenCL, to the host | `CPU` | -1 | the driver's host memory | none |

mod device_id;
mod export;
mod import;

pub use device_id::{exported_device, exported_host_device};
pub use export::{export, export_to_host, has_arrow_layout};
pub use import::import;
