// SPDX-License-Identifier: Apache-2.0
//! Host arrays on both sides of the interface: arrow-rs arrays and record batches as device arrays of the device CPU, and
//! back, without copying.
//!
//! Foreign values are checked, not trusted: offsets, views, dictionary keys, run ends, type ids and UTF-8. What is wrong is
//! an error.

mod export;
mod import;
mod reader;

#[cfg(test)]
mod tests;

pub use export::{export_array, export_batch, field_of};
pub use import::{import_array, import_batch, is_host};
pub use reader::{export_reader, import_reader};
