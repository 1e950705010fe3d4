// SPDX-License-Identifier: Apache-2.0
//! Async streams: a producer pushes batches at the rate that its consumer requests.
//!
//! The consumer allocates a handler and gives it to a producer ([`AsyncHandler`]). The producer
//! calls it:
//! 1. the schema
//! 2. one task per batch, from which the consumer extracts an array
//! 3. `release`
//!
//! Through the producer object the consumer requests more batches, or cancels.
//!
//! [`AsyncDeviceStream`] is a consumer: a [`futures::Stream`] of arrays. [`produce`] is a producer:
//! it serves any stream of arrays to a handler. Neither needs a runtime. `docs/conformance.md`
//! lists the rules (R63–R97), which test names cite.
//!
//! # Examples
//! Both ends in one process; usually one of them is another library.
//! ```
//! use std::sync::Arc;
//! use arrow::array::{ArrayRef, Int64Array, RecordBatch};
//! use arrow_device::async_stream::{AsyncDeviceStream, AsyncStreamOptions, ProduceOptions, produce_on_thread};
//! use arrow_device::ffi::ArrowDeviceType;
//! use arrow_device::{cpu, schema};
//! use futures::executor::block_on;
//! use futures::{StreamExt, stream};
//!
//! let prices: ArrayRef = Arc::new(Int64Array::from(vec![3, 1, 4]));
//! let batch = RecordBatch::try_from_iter([("price", prices)])?;
//! let source = stream::iter([cpu::export_batch(&batch)]);
//!
//! // SAFETY: the producer is that of this crate, and so are the arrays.
//! let (handler, mut batches) = unsafe { AsyncDeviceStream::new(AsyncStreamOptions::default()) };
//! let field = schema::batch_field(&batch.schema());
//! let options = ProduceOptions::default();
//! let thread = produce_on_thread(source, &field, ArrowDeviceType::CPU, handler, options)?;
//!
//! block_on(async {
//!     assert_eq!(batches.schema().await?.field(0).name(), "price");
//!     while let Some(array) = batches.next().await {
//!         assert_eq!(cpu::import_batch(array?)?, batch);
//!     }
//!     Ok::<(), arrow_device::Error>(())
//! })?;
//! # thread.join().ok();
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod consumer;
mod demand;
mod handler;
mod inbox;
mod incoming;
mod producer;
mod task;
#[cfg(test)]
mod tests;

use std::ffi::c_int;

pub use consumer::{AsyncDeviceStream, AsyncStreamOptions};
pub use handler::AsyncHandler;
pub use producer::{AsyncProducer, ProduceOptions, produce, produce_on_thread};
pub use task::AsyncBatch;

use crate::Error;

/// Key-value pairs of a stream, a batch or an error (R90), encoded as [`metadata`](crate::metadata)
/// describes.
pub type Metadata = Vec<(String, String)>;

/// The errno of a failure for C; never 0, which means success.
fn failure_code(error: &Error) -> c_int {
    match error.errno() {
        0 => libc::EIO,
        code => code,
    }
}
