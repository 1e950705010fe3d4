// SPDX-License-Identifier: Apache-2.0
//! Tables of the program's Arrow data, and of files.

use std::ffi::{c_char, c_int, c_void};
use std::fmt::Display;
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

use crate::arrow_stream::{reader_of_array, take_struct};
use crate::boundary::{code, string};
use crate::cancel::unless_cancelled;
use crate::context::{Context, devicefusion_context, with_context};
use crate::error::{Failure, Result};
use crate::pushed::PushedArrays;
use crate::session::Session;

/// The rows stay in place until a query scans the table. A second scan is an error. Needs a device.
pub const DEVICEFUSION_TABLE_STREAM: c_int = 0;
/// All rows are read at once and stay in host memory. Each query uploads the columns that it uses.
pub const DEVICEFUSION_TABLE_HOST: c_int = 1;
/// All rows are read at once and stay on the device. Host rows are copied there in the narrowest
/// types that hold them; device rows stay in place. Needs a device.
pub const DEVICEFUSION_TABLE_DEVICE: c_int = 2;

/// Number of arrays that a stream reads ahead.
const READ_AHEAD: usize = 2;

/// The source of a table's arrays.
pub(crate) enum ArraySource {
    /// A thread pulls them from a stream.
    Pulled(ArrowDeviceArrayStreamReader),
    /// A producer pushes them.
    Pushed(PushedArrays),
}

impl ArraySource {
    /// A table of a kind.
    async fn into_table(self, session: &Session, kind: c_int) -> Result<Arc<dyn TableProvider>> {
        match kind {
            DEVICEFUSION_TABLE_STREAM if session.device.opened().is_none() => Err(Failure::program(
                "a table of the kind DEVICEFUSION_TABLE_STREAM needs a device, and the context has none; \
                 DEVICEFUSION_TABLE_HOST does not",
            )),
            DEVICEFUSION_TABLE_STREAM => self.into_stream_table().await,
            DEVICEFUSION_TABLE_HOST => self.into_host_table().await,
            DEVICEFUSION_TABLE_DEVICE => self.into_device_table(&session.ctx).await,
            other => Err(Failure::program(format!("{other} is not a kind of table: see DEVICEFUSION_TABLE_STREAM"))),
        }
    }

    /// A table that reads the arrays at a query's scan.
    pub async fn into_stream_table(self) -> Result<Arc<dyn TableProvider>> {
        Ok(match self {
            Self::Pulled(reader) => Arc::new(DeviceStreamTable::try_new(reader)?),
            Self::Pushed(arrays) => Arc::new(AsyncDeviceStreamTable::try_new(arrays.opened().await?).await?),
        })
    }

    /// The schema, whether the arrays are in host memory, and the arrays.
    pub async fn open(self) -> Result<(SchemaRef, bool, BoxStream<'static, arrow_device::Result<ImportedArray>>)> {
        match self {
            Self::Pulled(reader) => {
                let schema = reader.schema().ok_or_else(|| {
                    let got = reader.data_type();
                    Failure::program(format!("a table needs record batches, which are arrays of structs, not {got}"))
                })?;
                let is_host = reader.device_type() == ArrowDeviceType::CPU;
                Ok((schema, is_host, reader.into_stream(READ_AHEAD)?.boxed()))
            }
            Self::Pushed(mut arrays) => {
                let schema = arrays.schema().await?;
                Ok((schema, arrays.is_host(), arrays.into_stream().boxed()))
            }
        }
    }

    async fn into_host_table(self) -> Result<Arc<dyn TableProvider>> {
        let (schema, _, arrays) = self.open().await?;
        let batches = arrays.and_then(async |array| cpu::import_batch(array)).try_collect().await?;
        Ok(Arc::new(MemTable::try_new(schema, vec![batches])?))
    }

    async fn into_device_table(self, ctx: &SessionContext) -> Result<Arc<dyn TableProvider>> {
        let (schema, is_host, arrays) = self.open().await?;
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

/// Registers a table of a kind. `arrays` gets the checked name. The name is a result, so that
/// structs are taken in any case.
pub(crate) fn register(
    context: &Context,
    name: Result<&str>,
    arrays: impl FnOnce(&TableReference) -> Result<ArraySource>,
    kind: c_int,
) -> Result<()> {
    let session = context.session()?;
    let name = new_table_name(session, name?)?;
    // A cancellation counts from here on, also while a producer starts.
    let cancelled = context.canceller.cancelled();
    let table = arrays(&name)?.into_table(session, kind);
    let table = session.block_on(unless_cancelled(&registration(&name), cancelled, table))?;
    session.ctx.register_table(name, table)?;
    Ok(())
}

/// The registration of a table, for messages.
fn registration(name: impl Display) -> String {
    format!("the registration of the table {name}")
}

/// Parses a table name as SQL does. A table of that name is an error.
fn new_table_name(session: &Session, name: &str) -> Result<TableReference> {
    let name = TableReference::from(name);
    match session.ctx.table_exist(name.clone())? {
        true => Err(Failure::program(format!("the table {name} exists already"))),
        false => Ok(name),
    }
}

/// Registers a table of a stream of host arrays, which are record batches. The stream is moved in
/// any case. A thread of the library calls its callbacks.
///
/// `kind` says where the rows will be: DEVICEFUSION_TABLE_STREAM, DEVICEFUSION_TABLE_HOST or
/// DEVICEFUSION_TABLE_DEVICE.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn devicefusion_register_stream(
    context: *mut devicefusion_context,
    name: *const c_char,
    stream: *mut FFI_ArrowArrayStream,
    kind: c_int,
) -> c_int {
    // SAFETY: the stream is as the header asks.
    let stream = unsafe { take_struct("stream", stream) };
    code(with_context(context, |context| {
        // SAFETY: name and stream are as the header asks.
        let (name, reader) =
            unsafe { (string("name of the table", name), stream.and_then(|stream| Ok(cpu::reader_of_host_stream(stream)?))) };
        register(context, name, |_| reader.map(ArraySource::Pulled), kind)
    }))
}

/// devicefusion_register_stream for a stream of device arrays. Memory of the context's device is
/// used in place.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn devicefusion_register_device_stream(
    context: *mut devicefusion_context,
    name: *const c_char,
    stream: *mut FFI_ArrowDeviceArrayStream,
    kind: c_int,
) -> c_int {
    // SAFETY: the stream is as the header asks.
    let stream = unsafe { take_struct("stream", stream) };
    code(with_context(context, |context| {
        // SAFETY: as above.
        let reader = stream.and_then(|stream| Ok(unsafe { ArrowDeviceArrayStreamReader::try_new(stream)? }));
        // SAFETY: the name is as the header asks.
        register(context, unsafe { string("name of the table", name) }, |_| reader.map(ArraySource::Pulled), kind)
    }))
}

/// devicefusion_register_stream for one device array, a record batch of `schema`. Both are moved in
/// any case.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn devicefusion_register_device_array(
    context: *mut devicefusion_context,
    name: *const c_char,
    array: *mut FFI_ArrowDeviceArray,
    schema: *mut FFI_ArrowSchema,
    kind: c_int,
) -> c_int {
    // SAFETY: both are as the header asks.
    let (array, schema) = unsafe { (take_struct("array", array), take_struct("schema", schema)) };
    code(with_context(context, |context| {
        // SAFETY: as above.
        let reader = array.and_then(|array| unsafe { reader_of_array(array, schema?) });
        // SAFETY: the name is as the header asks.
        register(context, unsafe { string("name of the table", name) }, |_| reader.map(ArraySource::Pulled), kind)
    }))
}

/// devicefusion_register_stream for device arrays that a producer pushes.
///
/// - This function calls `produce` once, on this thread and with `data`. It makes the producer push
///   to `handler`, at once or on its own threads. Then this function waits for the schema.
/// - If the function fails earlier, it does not call `produce`.
/// - A producer without a call lets the function fail, by the limit of
///   devicefusion_context_config_set_producer_timeout. devicefusion_context_cancel on another
///   thread ends the wait at once.
/// - When a query ends early, the producer is cancelled.
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
        let name = unsafe { string("name of the table", name) };
        let timeout = context.session()?.producer_timeout;
        let Some(produce) = produce else { return Err(Failure::program("the function that starts the producer is NULL")) };
        let arrays = |name: &TableReference| {
            // SAFETY: the producer follows the interface, as the header asks.
            let (handler, stream) = unsafe { AsyncDeviceStream::new(AsyncStreamOptions::default()) };
            // SAFETY: the program's function with its own data, and a new handler.
            unsafe { produce(data, handler.into_raw()) };
            Ok(ArraySource::Pushed(PushedArrays::new(stream, name.to_string(), timeout)))
        };
        register(context, name, arrays, kind)
    }))
}

/// Registers a table of a file, or of all files in a folder with the format's extension. It is
/// short for SQL's CREATE EXTERNAL TABLE, which has more options.
///
/// - `url` is a path or a file:// URL. Other URLs, such as http:// or s3://, are refused.
/// - `format` is "PARQUET", "CSV", "JSON", "ARROW" or "AVRO". The first line of a CSV file has the
///   names of its columns.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn devicefusion_register_file(
    context: *mut devicefusion_context,
    name: *const c_char,
    url: *const c_char,
    format: *const c_char,
) -> c_int {
    code(with_context(context, |context| {
        // SAFETY: the strings are as the header asks.
        let (name, url, format) = unsafe { (string("name of the table", name)?, string("URL", url)?, string("format", format)?) };
        let session = context.session()?;
        let name = new_table_name(session, name)?.to_quoted_string();
        if format.is_empty() || !format.bytes().all(|byte| byte.is_ascii_alphanumeric()) {
            return Err(Failure::program(format!("'{format}' is not a file format")));
        }
        let sql = format!("CREATE EXTERNAL TABLE {name} STORED AS {format} LOCATION '{}'", url.replace('\'', "''"));
        let create = async {
            drop(session.ctx.sql(&sql).await?);
            Ok(())
        };
        context.run(&registration(&name), create)
    }))
}

/// Drops a table. Queries that read it go on.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn devicefusion_drop_table(context: *mut devicefusion_context, name: *const c_char) -> c_int {
    code(with_context(context, |context| {
        // SAFETY: the name is as the header asks.
        let name = unsafe { string("name of the table", name) }?;
        match context.session()?.ctx.deregister_table(name)? {
            Some(_) => Ok(()),
            None => Err(Failure::program(format!("there is no table {name}"))),
        }
    }))
}
