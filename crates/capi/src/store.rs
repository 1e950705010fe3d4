// SPDX-License-Identifier: Apache-2.0
//! Rows as bytes in Arrow's IPC stream format.

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

use crate::arrow_stream::take_struct;
use crate::boundary::{catch_panics, check_out, code};
use crate::context::{Context, devicefusion_context, with_context};
use crate::error::{DEVICEFUSION_PROGRAM_ERROR, Failure, Result};
use crate::session::Session;
use crate::table::ArraySource;

/// Reads a stream of device arrays, which are record batches, to its end. Writes its rows as an
/// Arrow IPC stream, which every Arrow library reads. The stream is moved in any case.
///
/// `bytes` gets memory that the caller frees with free(), and `size` its length.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn devicefusion_store(
    context: *mut devicefusion_context,
    stream: *mut FFI_ArrowDeviceArrayStream,
    bytes: *mut *mut c_void,
    size: *mut usize,
) -> c_int {
    // SAFETY: the stream is as the header asks.
    let stream = unsafe { take_struct("stream", stream) };
    code(with_context(context, |context| {
        check_out("bytes", bytes)?;
        check_out("number of bytes", size)?;
        // SAFETY: as above.
        let reader = unsafe { ArrowDeviceArrayStreamReader::try_new(stream?)? };
        let stored = context.run("devicefusion_store", ipc_bytes(context.session()?, reader))?;
        // SAFETY: `malloc` has no precondition.
        let copy = unsafe { libc::malloc(stored.len().max(1)) };
        if copy.is_null() {
            return Err(Failure::out_of_memory(format!("there is no memory for {} bytes", stored.len())));
        }
        // SAFETY: the memory is new and has as many bytes; the pointers for the results are not
        // null, and writable as the header asks.
        unsafe {
            ptr::copy_nonoverlapping(stored.as_ptr(), copy.cast(), stored.len());
            bytes.write(copy);
            size.write(stored.len());
        }
        Ok(())
    }))
}

async fn ipc_bytes(session: &Session, reader: ArrowDeviceArrayStreamReader) -> Result<Vec<u8>> {
    if cpu::is_host(reader.device_type()) {
        let (schema, _, arrays) = ArraySource::Pulled(reader).open().await?;
        return write_ipc(&schema, arrays.map(|array| Ok(cpu::import_batch(array?)?))).await;
    }
    let rows = session.ctx.read_table(ArraySource::Pulled(reader).into_stream_table().await?)?.execute_stream().await?;
    write_ipc(&rows.schema(), rows.map_err(Failure::from)).await
}

async fn write_ipc(schema: &SchemaRef, rows: impl futures::Stream<Item = Result<RecordBatch>>) -> Result<Vec<u8>> {
    let mut writer = StreamWriter::try_new(Vec::new(), schema)?;
    let mut rows = std::pin::pin!(rows);
    while let Some(batch) = rows.next().await {
        writer.write(&batch?)?;
    }
    Ok(writer.into_inner()?)
}

/// Reads the bytes of devicefusion_store, or any other Arrow IPC stream, as a stream of device
/// arrays. The bytes are read before the function returns.
///
/// The rows are on the context's device, or in host memory if it has no device.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn devicefusion_restore(
    context: *mut devicefusion_context,
    bytes: *const c_void,
    size: usize,
    out: *mut FFI_ArrowDeviceArrayStream,
) -> c_int {
    code(with_context(context, |context| {
        check_out("stream", out)?;
        if bytes.is_null() {
            return Err(Failure::program("the bytes are NULL"));
        }
        // SAFETY: not null, and as many as the header asks for.
        let bytes = unsafe { std::slice::from_raw_parts(bytes.cast::<u8>(), size) };
        // arrow-rs panics at inconsistent messages.
        let read = catch_panics(|| read(Buffer::from(bytes)).map_err(|error| Failure::program(not_ipc(error))));
        let (schema, batches) = read.map_err(|failure| match failure.code {
            DEVICEFUSION_PROGRAM_ERROR => failure,
            _ => Failure::program(not_ipc("a message is inconsistent")),
        })?;
        let stream = device_stream(context, schema, batches)?;
        // SAFETY: not null, and writable as the header asks.
        unsafe { out.write(stream) };
        Ok(())
    }))
}

fn not_ipc(why: impl Display) -> String {
    format!("the bytes are not an IPC stream: {why}")
}

/// Decodes batches as slices of the bytes. The length in a message header allocates nothing.
fn read(mut bytes: Buffer) -> std::result::Result<(SchemaRef, Vec<RecordBatch>), ArrowError> {
    let (mut decoder, mut batches) = (StreamDecoder::new(), Vec::new());
    while let Some(batch) = decoder.decode(&mut bytes)? {
        batches.push(batch);
    }
    decoder.finish()?;
    let schema = decoder.schema().ok_or_else(|| ArrowError::IpcError("it has no schema".to_owned()))?;
    Ok((schema, batches))
}

fn device_stream(context: &Arc<Context>, schema: SchemaRef, batches: Vec<RecordBatch>) -> Result<FFI_ArrowDeviceArrayStream> {
    if context.device()?.is_none() {
        let arrays = batches.into_iter().map(|batch| cpu::export_batch(&batch));
        return Ok(export_iterator(&schema::batch_field(&schema), ArrowDeviceType::CPU, arrays)?);
    }
    let (session, kept) = (context.session()?, Arc::clone(context));
    session.block_on(async {
        let rows = session.ctx.read_table(Arc::new(MemTable::try_new(schema, vec![batches])?))?;
        // A task on the context's threads produces the rows, so the stream keeps the context alive.
        let never = async move {
            std::future::pending::<()>().await;
            drop(kept);
        };
        DeviceResult::try_new(rows).await?.cancelled_by(never).into_device_stream().map_err(Failure::from)
    })
}
