// SPDX-License-Identifier: Apache-2.0
//! Async streams: a producer pushes batches at the pace that its consumer asks for.
//!
//! The consumer allocates a handler and gives it to a producer ([`AsyncHandler`]). The producer calls it: the schema
//! first, then a task per batch, of which each stands for one array until it is extracted, and `release` at the very end.
//! Through the producer object the consumer asks for more batches, or for the end.
//!
//! [`AsyncDeviceStream`] is a consumer: a [`futures::Stream`] of arrays. [`produce`] is a producer: it serves any stream
//! of arrays to a handler. Neither needs a runtime. `docs/conformance.md` lists the rules (R63–R97), which the names of the
//! tests cite.
//!
//! # Examples
//! Both ends in one process; in real life one of them is another library.
//! ```
//! use arrow::array::{Array, Int32Array, StructArray};
//! use arrow::datatypes::Schema;
//! use arrow::ffi::FFI_ArrowArray;
//! use arrow_device::async_stream::{AsyncDeviceStream, AsyncStreamOptions, ProduceOptions, produce_on_thread};
//! use arrow_device::ffi::{ArrowDeviceType, FFI_ArrowDeviceArray};
//! use futures::executor::block_on;
//! use futures::{StreamExt, stream};
//! use std::sync::Arc;
//!
//! let batch = StructArray::try_from(vec![("x", Arc::new(Int32Array::from(vec![1, 2, 3])) as _)])?;
//! let schema = Schema::new(batch.fields().clone());
//! let mut array = FFI_ArrowDeviceArray::empty();
//! array.array = FFI_ArrowArray::new(&batch.to_data());
//! array.device_id = -1;
//! array.device_type = ArrowDeviceType::CPU;
//!
//! let (handler, mut batches) = AsyncDeviceStream::new(AsyncStreamOptions::default());
//! let source = stream::iter([Ok(array)]);
//! let thread = produce_on_thread(source, &schema, ArrowDeviceType::CPU, handler, ProduceOptions::default())?;
//!
//! block_on(async {
//!     assert_eq!(batches.schema().await?.field(0).name(), "x");
//!     assert_eq!(batches.next().await.transpose()?.map(|array| array.len()), Some(3));
//!     assert!(batches.next().await.is_none());
//!     Ok::<(), arrow_device::Error>(())
//! })?;
//! # thread.join().ok();
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod consumer;
mod demand;
mod handler;
mod inbox;
mod producer;
mod seam;
mod task;
#[cfg(test)]
mod tests;

use std::ffi::c_int;
use std::panic::{AssertUnwindSafe, catch_unwind};

pub use consumer::{AsyncDeviceStream, AsyncStreamOptions};
pub use handler::AsyncHandler;
pub use producer::{AsyncProducer, ProduceOptions, produce, produce_on_thread};
pub use seam::{ImportedArray, Metadata};
pub use task::AsyncBatch;

use crate::Error;

/// Runs what may panic: C must never see a panic unwind.
///
/// # Errors
/// The text of the panic.
fn caught<T>(run: impl FnOnce() -> T) -> Result<T, String> {
    catch_unwind(AssertUnwindSafe(run)).map_err(|payload| {
        let text = payload.downcast_ref::<&str>().map(ToString::to_string);
        let text = text.or_else(|| payload.downcast_ref::<String>().cloned());
        // Even the payload's own drop may panic.
        std::mem::forget(payload);
        text.unwrap_or_else(|| "no text".into())
    })
}

/// The number of a failure for C, where 0 would be success.
fn failure_code(error: &Error) -> c_int {
    match error.errno() {
        0 => libc::EIO,
        code => code,
    }
}
