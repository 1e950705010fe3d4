// SPDX-License-Identifier: Apache-2.0
//! Host arrays on both sides of the interface: arrow-rs arrays and record batches as CPU device
//! arrays, and back, without copying.
//!
//! Foreign values are validated: offsets, views, dictionary keys, run ends, type ids and UTF-8. A
//! violation is an error.

mod export;
mod host_stream;
mod host_stream_export;
mod import;
mod reader;

#[cfg(test)]
mod tests;

pub use export::{export_array, export_batch, field_of};
pub use host_stream::{as_cpu_array, reader_of_host_stream};
pub use host_stream_export::export_host_stream;
pub use import::{import_array, import_batch, is_host};
pub use reader::{export_reader, import_reader};
