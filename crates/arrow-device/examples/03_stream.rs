// SPDX-License-Identifier: Apache-2.0
//! Exports a `futures::Stream` as a blocking C stream, and reads a blocking C stream as a
//! `futures::Stream`.
//!
//! `cargo run -p arrow-device --example 03_stream`

use std::error::Error;
use std::sync::Arc;

use arrow::array::{ArrayRef, Int32Array, RecordBatch};
use arrow_device::ffi::{ArrowDeviceType, FFI_ArrowDeviceArrayStream};
use arrow_device::stream::{ArrowDeviceArrayStreamReader, export_stream};
use arrow_device::{cpu, schema};
use futures::{StreamExt, TryStreamExt, stream};

fn main() -> Result<(), Box<dyn Error>> {
    // SAFETY: the stream comes from this crate's export.
    let reader = unsafe { ArrowDeviceArrayStreamReader::try_new(produce()?)? };
    println!("arrays of {} on {}", reader.data_type(), reader.device_type());

    // Another thread pulls one array ahead while this one works.
    let mut batches = reader.into_stream(1)?.map(|array| cpu::import_batch(array?));
    futures::executor::block_on(async {
        while let Some(batch) = batches.try_next().await? {
            println!("{:?}", batch.column(0));
        }
        Ok(())
    })
}

fn produce() -> Result<FFI_ArrowDeviceArrayStream, Box<dyn Error>> {
    let batch = |first| {
        let column: ArrayRef = Arc::new(Int32Array::from_iter_values(first..first + 3));
        RecordBatch::try_from_iter([("n", column)])
    };
    let field = schema::batch_field(&batch(0)?.schema());
    let arrays = stream::iter(0..3).then(move |part| async move { cpu::export_batch(&batch(part * 3)?) });
    Ok(export_stream(&field, ArrowDeviceType::CPU, arrays)?)
}
