// SPDX-License-Identifier: Apache-2.0
//! Tables: Arrow data of the program's own, and files.

use std::ffi::{c_char, c_int, c_void};
use std::sync::Arc;

use arrow::ffi::FFI_ArrowSchema;
use arrow::ffi_stream::FFI_ArrowArrayStream;
use arrow_device::async_stream::{AsyncDeviceStream, AsyncStreamOptions};
use arrow_device::ffi::{ArrowDeviceType, FFI_ArrowAsyncDeviceStreamHandler, FFI_ArrowDeviceArray, FFI_ArrowDeviceArrayStream};
use arrow_device::stream::ArrowDeviceArrayStreamReader;
use arrow_device::{ImportedArray, cpu};
use datafusion::arrow::datatypes::SchemaRef;
use datafusion::catalog::TableProvider;
use datafusion::common::{DataFusionError, TableReference};
use datafusion::datasource::MemTable;
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::prelude::SessionContext;
use devicefusion::{AsyncDeviceStreamTable, DeviceStreamTable, DeviceTable};
use futures::stream::BoxStream;
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

/// Arrays that a table is made of.
pub(crate) enum Arrays {
    /// A thread of their own pulls them.
    Pulled(ArrowDeviceArrayStreamReader),
    /// Their producer pushes them.
    Pushed(AsyncDeviceStream),
}

impl Arrays {
    /// A table that reads them as they come.
    pub async fn streamed(self) -> Result<Arc<dyn TableProvider>> {
        Ok(match self {
            Self::Pulled(reader) => Arc::new(DeviceStreamTable::try_new(reader)?),
            Self::Pushed(stream) => Arc::new(AsyncDeviceStreamTable::try_new(stream).await?),
        })
    }

    /// Their columns, whether they are memory of the host, and they themselves.
    pub async fn opened(self) -> Result<(SchemaRef, bool, BoxStream<'static, arrow_device::Result<ImportedArray>>)> {
        match self {
            Self::Pulled(reader) => {
                let schema = reader.schema().ok_or_else(|| {
                    let got = reader.data_type();
                    Failure::program(format!("a table needs record batches, which are arrays of structs, and got {got}"))
                })?;
                let is_host = reader.device_type() == ArrowDeviceType::CPU;
                Ok((schema, is_host, reader.into_stream(READ_AHEAD)?.boxed()))
            }
            Self::Pushed(mut stream) => {
                let schema = stream.schema().await?;
                Ok((schema, stream.device_type() == Some(ArrowDeviceType::CPU), stream.boxed()))
            }
        }
    }

    async fn in_host_memory(self) -> Result<Arc<MemTable>> {
        let (schema, _, arrays) = self.opened().await?;
        let batches = arrays.and_then(async |array| cpu::import_batch(array)).try_collect().await?;
        Ok(Arc::new(MemTable::try_new(schema, vec![batches])?))
    }

    async fn in_device_memory(self, ctx: &SessionContext) -> Result<Arc<DeviceTable>> {
        let (schema, is_host, arrays) = self.opened().await?;
        if !is_host {
            let arrays: Vec<_> = arrays.try_collect().await?;
            return Ok(DeviceTable::try_from_device_arrays(ctx, schema, arrays).await?);
        }
        let batch = |array: arrow_device::Result<_>| array.and_then(cpu::import_batch);
        let batches = arrays.map(move |array| batch(array).map_err(|error| DataFusionError::External(error.into())));
        let rows = Box::pin(RecordBatchStreamAdapter::new(schema, batches));
        Ok(DeviceTable::try_from_stream(ctx, rows).await?)
    }
}

/// Makes a table of what C has given.
pub(crate) fn register(context: &Context, name: Result<&str>, arrays: Result<Arrays>, kind: c_int) -> Result<()> {
    let session = context.session()?;
    let (name, arrays) = (unused(session, name?)?, arrays?);
    let table: Arc<dyn TableProvider> = match kind {
        DEVICEFUSION_TABLE_STREAM if session.device.opened().is_none() => {
            return Err(Failure::program(
                "a table of the kind DEVICEFUSION_TABLE_STREAM needs a device, and the context has none; \
                 DEVICEFUSION_TABLE_HOST does not",
            ));
        }
        DEVICEFUSION_TABLE_STREAM => session.wait(arrays.streamed())?,
        DEVICEFUSION_TABLE_HOST => session.wait(arrays.in_host_memory())?,
        DEVICEFUSION_TABLE_DEVICE => session.wait(arrays.in_device_memory(&session.ctx))?,
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
        register(context, name, reader.map(Arrays::Pulled), kind)
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
        register(context, unsafe { text("name of the table", name) }, reader.map(Arrays::Pulled), kind)
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
        register(context, unsafe { text("name of the table", name) }, reader.map(Arrays::Pulled), kind)
    }))
}

/// As devicefusion_register_stream, of device arrays that a producer pushes. `produce` is called once, on this thread and with
/// `data`: it makes the producer push to `handler`, now or on threads of its own. Then this function waits for the schema. A
/// producer that is asked for no more, since a query has ended early, is cancelled. `produce` is not called where the
/// function fails before that.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn devicefusion_register_async_stream(
    context: *mut devicefusion_context,
    name: *const c_char,
    produce: Option<unsafe extern "C" fn(data: *mut c_void, handler: *mut FFI_ArrowAsyncDeviceStreamHandler)>,
    data: *mut c_void,
    kind: c_int,
) -> c_int {
    code(with_context(context, |context| {
        // SAFETY: the name is as the header asks.
        let name = unsafe { text("name of the table", name) }?;
        unused(context.session()?, name)?;
        let Some(produce) = produce else { return Err(Failure::program("the function that starts the producer is NULL")) };
        // SAFETY: the producer follows the interface, as the header asks.
        let (handler, stream) = unsafe { AsyncDeviceStream::new(AsyncStreamOptions::default()) };
        // SAFETY: a function of the program's, with its own data, and the handler that it asks for.
        unsafe { produce(data, handler.into_raw()) };
        register(context, Ok(name), Ok(Arrays::Pushed(stream)), kind)
    }))
}

/// Makes a table of a file, or of all files of a folder that have the format's extension, by path or file:// URL: other URLs, such
/// as http:// or s3://, are refused. `format` is "PARQUET", "CSV", "JSON", "ARROW" or "AVRO"; the first line of a CSV file has the
/// names of its columns. For anything else there is SQL's CREATE EXTERNAL TABLE, which this is short for.
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
