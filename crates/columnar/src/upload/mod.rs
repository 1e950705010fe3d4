// SPDX-License-Identifier: Apache-2.0
//! Host batches to device batches.
//!
//! | module | content |
//! |---|---|
//! | `uploader` | [`upload`]: each column by its layout, nested ones by recursion |
//! | `chunks` | the host arrays of one column |
//! | `strings`, `lists`, `dictionary` | host encoding of these layouts |
//! | `transfer` | host buffers to device buffers |

pub(crate) mod chunks;
pub(crate) mod dictionary;
mod lists;
mod strings;
pub(crate) mod transfer;
pub(crate) mod uploader;

pub use uploader::upload;
