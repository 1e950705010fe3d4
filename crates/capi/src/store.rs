// SPDX-License-Identifier: Apache-2.0
//! Rows as bytes, in the format of Arrow's IPC streams.

use std::ffi::{c_int, c_void};
use std::fmt::Display;
use std::ptr;
use std::sync::Arc;

use arrow_device::ffi::{ArrowDeviceType, FFI_ArrowDeviceArrayStream};
use arrow_device::stream::{ArrowDeviceArrayStreamReader, export_iterator};
use arrow_device::{cpu, schema};
use datafusion::arrow::array::RecordBatch;
use datafusion::arrow::buffer::Buffer;
use datafusion::arrow::datatypes::SchemaRef;
use datafusion::arrow::error::ArrowError;
use datafusion::arrow::ipc::reader::StreamDecoder;
use datafusion::arrow::ipc::writer::StreamWriter;
use datafusion::datasource::MemTable;
use devicefusion::DeviceResult;
use futures::{StreamExt, TryStreamExt};

use crate::DEVICEFUSION_PROGRAM_ERROR;
use crate::arrow_stream::taken;
use crate::boundary::{caught, code, wanted, with_context};
use crate::context::{Context, devicefusion_context};
use crate::error::{Failure, Result};
use crate::session::Session;
use crate::table::Arrays;

/// Reads a stream of device arrays, record batches, to its end, and writes its rows as bytes: an IPC stream of Arrow's, which
/// every library of Arrow reads too. `bytes` gets memory that the caller frees by free(), and `size` how many bytes it has. The
/// stream is moved away in any case.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn devicefusion_store(
    context: *mut devicefusion_context,
    stream: *mut FFI_ArrowDeviceArrayStream,
    bytes: *mut *mut c_void,
    size: *mut usize,
) -> c_int {
    // SAFETY: the stream is as the header asks.
    let stream = unsafe { taken("stream", stream) };
    code(with_context(context, |context| {
        wanted("bytes", bytes)?;
        wanted("number of bytes", size)?;
        // SAFETY: as above.
        let reader = unsafe { ArrowDeviceArrayStreamReader::try_new(stream?)? };
        let session = context.session()?;
        let stored = session.wait(stored(session, reader))?;
        // SAFETY: `malloc` has no precondition.
        let copy = unsafe { libc::malloc(stored.len().max(1)) };
        if copy.is_null() {
            return Err(Failure::out_of_memory(format!("there is no memory for {} bytes", stored.len())));
        }
        // SAFETY: the memory is new and has as many bytes; the places are not null, and writable as the header asks.
        unsafe {
            ptr::copy_nonoverlapping(stored.as_ptr(), copy.cast(), stored.len());
            bytes.write(copy);
            size.write(stored.len());
        }
        Ok(())
    }))
}

async fn stored(session: &Session, reader: ArrowDeviceArrayStreamReader) -> Result<Vec<u8>> {
    if cpu::is_host(reader.device_type()) {
        let (schema, _, arrays) = Arrays::Pulled(reader).opened().await?;
        return written(&schema, arrays.map(|array| Ok(cpu::import_batch(array?)?))).await;
    }
    let rows = session.ctx.read_table(Arrays::Pulled(reader).streamed().await?)?.execute_stream().await?;
    written(&rows.schema(), rows.map_err(Failure::from)).await
}

async fn written(schema: &SchemaRef, rows: impl futures::Stream<Item = Result<RecordBatch>>) -> Result<Vec<u8>> {
    let mut writer = StreamWriter::try_new(Vec::new(), schema)?;
    let mut rows = std::pin::pin!(rows);
    while let Some(batch) = rows.next().await {
        writer.write(&batch?)?;
    }
    Ok(writer.into_inner()?)
}

/// Gives the rows that devicefusion_store has written, or any other IPC stream of Arrow's, as a stream of device arrays: on the
/// context's device, or of the host where it has none. The bytes are read before the function returns.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn devicefusion_restore(
    context: *mut devicefusion_context,
    bytes: *const c_void,
    size: usize,
    out: *mut FFI_ArrowDeviceArrayStream,
) -> c_int {
    code(with_context(context, |context| {
        wanted("stream", out)?;
        if bytes.is_null() {
            return Err(Failure::program("the bytes are NULL"));
        }
        // SAFETY: not null, and as many as the header asks for.
        let bytes = unsafe { std::slice::from_raw_parts(bytes.cast::<u8>(), size) };
        // arrow-rs panics at messages that contradict themselves.
        let read = caught(|| read(Buffer::from(bytes)).map_err(|error| Failure::program(no_stream(error))));
        let (schema, batches) = read.map_err(|failure| match failure.code {
            DEVICEFUSION_PROGRAM_ERROR => failure,
            _ => Failure::program(no_stream("a message contradicts itself")),
        })?;
        let stream = restored(context, schema, batches)?;
        // SAFETY: not null, and writable as the header asks.
        unsafe { out.write(stream) };
        Ok(())
    }))
}

fn no_stream(why: impl Display) -> String {
    format!("the bytes are no IPC stream: {why}")
}

/// Batches that take their parts of the bytes: what a message says of its length is not allocated before it is there.
fn read(mut bytes: Buffer) -> std::result::Result<(SchemaRef, Vec<RecordBatch>), ArrowError> {
    let (mut decoder, mut batches) = (StreamDecoder::new(), Vec::new());
    while let Some(batch) = decoder.decode(&mut bytes)? {
        batches.push(batch);
    }
    decoder.finish()?;
    let schema = decoder.schema().ok_or_else(|| ArrowError::IpcError("it has no schema".to_owned()))?;
    Ok((schema, batches))
}

fn restored(context: &Arc<Context>, schema: SchemaRef, batches: Vec<RecordBatch>) -> Result<FFI_ArrowDeviceArrayStream> {
    if context.device()?.is_none() {
        let arrays = batches.into_iter().map(|batch| cpu::export_batch(&batch));
        return Ok(export_iterator(&schema::batch_field(&schema), ArrowDeviceType::CPU, arrays)?);
    }
    let (session, kept) = (context.session()?, Arc::clone(context));
    session.wait(async {
        let rows = session.ctx.read_table(Arc::new(MemTable::try_new(schema, vec![batches])?))?;
        // The rows come from a task of the context's threads, which therefore stay as long as the stream does.
        let never = async move {
            std::future::pending::<()>().await;
            drop(kept);
        };
        DeviceResult::try_new(rows).await?.cancelled_by(never).into_device_stream().map_err(Failure::from)
    })
}
