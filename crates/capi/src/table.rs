// SPDX-License-Identifier: Apache-2.0
//! Tables: Arrow data of the program's own, and files.

use std::ffi::{c_char, c_int};
use std::sync::Arc;

use arrow::ffi::FFI_ArrowSchema;
use arrow::ffi_stream::FFI_ArrowArrayStream;
use arrow_device::cpu;
use arrow_device::ffi::{ArrowDeviceType, FFI_ArrowDeviceArray, FFI_ArrowDeviceArrayStream};
use arrow_device::stream::ArrowDeviceArrayStreamReader;
use datafusion::catalog::TableProvider;
use datafusion::common::{DataFusionError, TableReference, plan_datafusion_err};
use datafusion::datasource::MemTable;
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::prelude::SessionContext;
use devicefusion::{DeviceStreamTable, DeviceTable};
use futures::{StreamExt, TryStreamExt};

use crate::arrow_stream::{reader_of_array, reader_of_host_stream, taken};
use crate::boundary::{code, text, with_context};
use crate::context::{Context, devicefusion_context};
use crate::error::{Failure, Result};
use crate::session::Session;

/// The rows stay where they are, and are read by the one query that scans the table; a second scan is an error. Needs a device.
pub const DEVICEFUSION_TABLE_STREAM: c_int = 0;
/// All rows are read at once and stay where they are, in host memory, which each query uploads as it needs.
pub const DEVICEFUSION_TABLE_HOST: c_int = 1;
/// All rows are read at once and stay on the device: host rows are copied there, in the narrowest form that holds them, device
/// rows stay in place. Needs a device.
pub const DEVICEFUSION_TABLE_DEVICE: c_int = 2;

/// Arrays that a stream is read ahead.
const READ_AHEAD: usize = 2;

/// Makes a table of what a reader reads.
fn register(context: &Context, name: Result<&str>, reader: Result<ArrowDeviceArrayStreamReader>, kind: c_int) -> Result<()> {
    let session = context.session()?;
    let (name, reader) = (unused(session, name?)?, reader?);
    let table: Arc<dyn TableProvider> = match kind {
        DEVICEFUSION_TABLE_STREAM if session.device.opened().is_none() => {
            return Err(Failure::program(
                "a table of the kind DEVICEFUSION_TABLE_STREAM needs a device, and the context has none; DEVICEFUSION_TABLE_HOST does not",
            ));
        }
        DEVICEFUSION_TABLE_STREAM => Arc::new(DeviceStreamTable::try_new(reader)?),
        DEVICEFUSION_TABLE_HOST => session.wait(in_host_memory(reader))?,
        DEVICEFUSION_TABLE_DEVICE => session.wait(in_device_memory(&session.ctx, reader))?,
        other => return Err(Failure::program(format!("{other} is no kind of table: see DEVICEFUSION_TABLE_STREAM"))),
    };
    session.ctx.register_table(name, table)?;
    Ok(())
}

/// A name as SQL reads it, of no table so far.
fn unused(session: &Session, name: &str) -> Result<TableReference> {
    let name = TableReference::from(name);
    match session.ctx.table_exist(name.clone())? {
        true => Err(Failure::program(format!("there is a table {name} already"))),
        false => Ok(name),
    }
}

async fn in_host_memory(reader: ArrowDeviceArrayStreamReader) -> Result<Arc<MemTable>> {
    let schema = reader.schema().ok_or_else(|| no_batches(&reader))?;
    let batches = reader.into_stream(READ_AHEAD)?.and_then(async |array| cpu::import_batch(array)).try_collect().await?;
    Ok(Arc::new(MemTable::try_new(schema, vec![batches])?))
}

async fn in_device_memory(ctx: &SessionContext, reader: ArrowDeviceArrayStreamReader) -> Result<Arc<DeviceTable>> {
    let schema = reader.schema().ok_or_else(|| no_batches(&reader))?;
    let is_host = reader.device_type() == ArrowDeviceType::CPU;
    let arrays = reader.into_stream(READ_AHEAD)?;
    if !is_host {
        let arrays: Vec<_> = arrays.try_collect().await?;
        return Ok(DeviceTable::try_from_device_arrays(ctx, schema, arrays).await?);
    }
    let batches = arrays.map(|array| array.and_then(cpu::import_batch).map_err(|error| DataFusionError::External(error.into())));
    let rows = Box::pin(RecordBatchStreamAdapter::new(schema, batches));
    Ok(DeviceTable::try_from_stream(ctx, rows).await?)
}

fn no_batches(reader: &ArrowDeviceArrayStreamReader) -> DataFusionError {
    plan_datafusion_err!("a table needs record batches, which are arrays of structs, and got {}", reader.data_type())
}

/// Makes a table of a stream of host arrays, record batches. `kind` says where its rows will be, as one of
/// DEVICEFUSION_TABLE_STREAM, DEVICEFUSION_TABLE_HOST and DEVICEFUSION_TABLE_DEVICE. The stream is moved away in any case; its
/// callbacks are called by a thread of the library.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn devicefusion_register_stream(
    context: *mut devicefusion_context,
    name: *const c_char,
    stream: *mut FFI_ArrowArrayStream,
    kind: c_int,
) -> c_int {
    // SAFETY: the stream is as the header asks.
    let stream = unsafe { taken("stream", stream) };
    code(with_context(context, |context| {
        // SAFETY: name and stream are as the header asks.
        let (name, reader) =
            unsafe { (text("name of the table", name), stream.and_then(|stream| reader_of_host_stream(stream))) };
        register(context, name, reader, kind)
    }))
}

/// As devicefusion_register_stream, of a stream of device arrays. Memory of the context's device is read in place.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn devicefusion_register_device_stream(
    context: *mut devicefusion_context,
    name: *const c_char,
    stream: *mut FFI_ArrowDeviceArrayStream,
    kind: c_int,
) -> c_int {
    // SAFETY: the stream is as the header asks.
    let stream = unsafe { taken("stream", stream) };
    code(with_context(context, |context| {
        // SAFETY: as above.
        let reader = stream.and_then(|stream| Ok(unsafe { ArrowDeviceArrayStreamReader::try_new(stream)? }));
        // SAFETY: the name is as the header asks.
        register(context, unsafe { text("name of the table", name) }, reader, kind)
    }))
}

/// As devicefusion_register_stream, of one device array, a record batch of `schema`. Both are moved away in any case.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn devicefusion_register_device_array(
    context: *mut devicefusion_context,
    name: *const c_char,
    array: *mut FFI_ArrowDeviceArray,
    schema: *mut FFI_ArrowSchema,
    kind: c_int,
) -> c_int {
    // SAFETY: both are as the header asks.
    let (array, schema) = unsafe { (taken("array", array), taken("schema", schema)) };
    code(with_context(context, |context| {
        // SAFETY: as above.
        let reader = array.and_then(|array| unsafe { reader_of_array(array, schema?) });
        // SAFETY: the name is as the header asks.
        register(context, unsafe { text("name of the table", name) }, reader, kind)
    }))
}

/// Makes a table of a file, or of all files of a folder, by path or URL. `format` is "PARQUET", "CSV", "JSON", "ARROW" or
/// "AVRO"; the first line of a CSV file has the names of its columns. For anything else there is SQL's CREATE EXTERNAL TABLE,
/// which this is short for.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn devicefusion_register_file(
    context: *mut devicefusion_context,
    name: *const c_char,
    url: *const c_char,
    format: *const c_char,
) -> c_int {
    code(with_context(context, |context| {
        // SAFETY: the texts are as the header asks.
        let (name, url, format) = unsafe { (text("name of the table", name)?, text("URL", url)?, text("format", format)?) };
        let session = context.session()?;
        let name = unused(session, name)?.to_quoted_string();
        if format.is_empty() || !format.bytes().all(|byte| byte.is_ascii_alphanumeric()) {
            return Err(Failure::program(format!("'{format}' is no format of files")));
        }
        let sql = format!("CREATE EXTERNAL TABLE {name} STORED AS {format} LOCATION '{}'", url.replace('\'', "''"));
        session.wait(session.ctx.sql(&sql)).map(drop)
    }))
}

/// Takes a table out of the context. Queries that read it go on.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn devicefusion_drop_table(context: *mut devicefusion_context, name: *const c_char) -> c_int {
    code(with_context(context, |context| {
        // SAFETY: the name is as the header asks.
        let name = unsafe { text("name of the table", name) }?;
        match context.session()?.ctx.deregister_table(name)? {
            Some(_) => Ok(()),
            None => Err(Failure::program(format!("there is no table {name}"))),
        }
    }))
}
