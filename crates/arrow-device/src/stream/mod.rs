// SPDX-License-Identifier: Apache-2.0
//! Device streams: arrays of one schema, pulled one by one through a C callback that may block
//! (R62).
//!
//! - Import: [`ArrowDeviceArrayStreamReader`] is an iterator.
//!   [`ArrowDeviceArrayStreamReader::into_stream`] turns it into a [`futures::Stream`], whose polls
//!   never block.
//! - Export: [`export_iterator`] and [`export_stream`].
//!
//! ```
//! use std::sync::Arc;
//! use arrow::array::{ArrayRef, Int32Array, RecordBatch};
//! use arrow_device::ffi::ArrowDeviceType;
//! use arrow_device::stream::{ArrowDeviceArrayStreamReader, export_iterator};
//! use arrow_device::{cpu, schema};
//!
//! let column: ArrayRef = Arc::new(Int32Array::from(vec![1, 2, 3]));
//! let batch = RecordBatch::try_from_iter([("a", column)])?;
//! let field = schema::batch_field(&batch.schema());
//! let batches = vec![batch.clone(), batch.clone()];
//!
//! // The producer's side; C gets the struct.
//! let exported = export_iterator(&field, ArrowDeviceType::CPU, batches.into_iter().map(|batch| cpu::export_batch(&batch)))?;
//!
//! // The consumer's side.
//! // SAFETY: the stream comes from this crate's export.
//! let reader = unsafe { ArrowDeviceArrayStreamReader::try_new(exported)? };
//! for array in reader {
//!     assert_eq!(cpu::import_batch(array?)?, batch);
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod block;
mod export;
mod pull;
mod reader;

#[cfg(test)]
mod tests;

pub use export::{export_iterator, export_stream};
pub use pull::DeviceArrayStream;
pub use reader::ArrowDeviceArrayStreamReader;
