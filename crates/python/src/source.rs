// SPDX-License-Identifier: Apache-2.0
//! Python objects as tables.
//!
//! | the object has | its table |
//! |---|---|
//! | `__arrow_c_device_stream__` | reads a new stream in each query, or host rows now |
//! | `__arrow_c_device_array__` | the array in place, or a host batch |
//! | `__arrow_c_stream__` and a length | its batches, without a copy |
//! | `__arrow_c_stream__` and `__next__` | a reader: one query reads it |
//! | `__arrow_c_stream__` alone | reads a new stream in each query |
//! | `__arrow_c_array__` | one batch |
//!
//! A dictionary of columns is a table of them; its columns may also be tensors.

use std::fmt;
use std::sync::Arc;

use arrow_device::ffi::ArrowDeviceType;
use arrow_device::stream::ArrowDeviceArrayStreamReader;
use arrow_device::{ImportedArray, cpu};
use columnar::exchange;
use datafusion::arrow::array::{Array, ArrayRef, RecordBatch, RecordBatchOptions};
use datafusion::arrow::datatypes::{Field, Schema, SchemaRef};
use datafusion::catalog::TableProvider;
use datafusion::catalog::streaming::StreamingTable;
use datafusion::common::{DataFusionError, Result, exec_err};
use datafusion::datasource::MemTable;
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::streaming::PartitionStream;
use datafusion::prelude::SessionContext;
use device::{Context, MemoryHandle};
use devicefusion::{DeviceStreamTable, DeviceTable};
use futures::{StreamExt, TryStreamExt};
use parking_lot::Mutex;
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyDict;

use crate::calls::calling;
use crate::capsule;
use crate::cuda_array;
use crate::errors::{DeviceError, exception, interface_exception};
use crate::frame::Frame;
use crate::runtime::wait_for;
use crate::session::device_of;
use crate::tensor::Tensor;

/// Arrays that a reader reads ahead.
const READ_AHEAD: usize = 2;

/// The name of the column of an array that has none.
const VALUE: &str = "value";

/// The memory of tensors that need the session's device.
const CUDA: &str = "CUDA";

/// The content of a Python object, before it is a table.
pub(crate) enum Source {
    Table(Arc<dyn TableProvider>),
    /// Arrays of record batches in device memory.
    Device(SchemaRef, Vec<ImportedArray>),
}

impl Source {
    /// The content of an object. Device memory needs the session's device.
    pub fn of(session: &SessionContext, object: &Bound<'_, PyAny>) -> PyResult<Source> {
        if let Ok(frame) = object.cast::<Frame>() {
            return Ok(Source::Table(frame.get().view()));
        }
        if let Ok(columns) = object.cast::<PyDict>() {
            return Columns::of(session, columns)?.into_source(object.py(), session);
        }
        if object.hasattr("__arrow_c_device_stream__")? {
            return of_device_stream(session, object);
        }
        if object.hasattr("__arrow_c_device_array__")? {
            return of_array(object.py(), session, capsule::device_array_of(object)?);
        }
        if object.hasattr("__arrow_c_stream__")? {
            return match object.hasattr("__len__")? {
                true => of_stream(object.py(), capsule::stream_of(object)?),
                false if object.hasattr("__next__")? => Ok(Source::Table(ReaderTable::of(object)?)),
                false => Ok(Source::Table(Streams::table(object, Some(object.clone().unbind()))?)),
            };
        }
        if object.hasattr("__arrow_c_array__")? {
            return of_array(object.py(), session, capsule::array_of(object)?);
        }
        if Tensor::is(object)? || cuda_array::is(object)? {
            let columns = PyDict::new(object.py());
            columns.set_item(VALUE, object)?;
            return Columns::of(session, &columns)?.into_source(object.py(), session);
        }
        Err(PyTypeError::new_err(format!(
            "{} is no table: it has none of __arrow_c_device_stream__, __arrow_c_device_array__, __arrow_c_stream__, \
             __arrow_c_array__, __dlpack__ and __cuda_array_interface__",
            kind_of(object)?
        )))
    }

    /// The batches of an object, one partition.
    pub fn of_batches(batches: &Bound<'_, PyAny>) -> PyResult<Vec<RecordBatch>> {
        let batch = |batch: PyResult<_>| host_batch(capsule::array_of(&batch?)?).map_err(interface_exception);
        batches.try_iter()?.map(batch).collect()
    }

    /// The table. Device memory needs the session's device.
    pub async fn into_table(self, session: &SessionContext) -> Result<Arc<dyn TableProvider>> {
        match self {
            Source::Table(table) => Ok(table),
            Source::Device(schema, arrays) => Ok(DeviceTable::try_from_device_arrays(session, schema, arrays).await?),
        }
    }

    /// A table of the session's device. Rows in its reach are read in place.
    pub async fn into_device_table(self, session: &SessionContext) -> Result<Arc<dyn TableProvider>> {
        match self {
            Source::Table(table) => {
                // A stream of device memory is there already.
                if table.is::<DeviceStreamTable>() {
                    return Ok(table);
                }
                let Some(rows) = table.downcast_ref::<MemTable>() else {
                    return Ok(DeviceTable::load(session, session.read_table(table)?).await?);
                };
                let mut arrays = Vec::new();
                for partition in &rows.batches {
                    for batch in partition.read().await.iter() {
                        let field = arrow_device::schema::batch_field(&batch.schema());
                        let array = cpu::export_batch(batch).and_then(|array| {
                            // SAFETY: the array was just exported, with this field.
                            unsafe { ImportedArray::import(array, &field) }
                        });
                        arrays.push(array.map_err(|error| DataFusionError::External(error.into()))?);
                    }
                }
                Ok(DeviceTable::try_from_device_arrays(session, table.schema(), arrays).await?)
            }
            device @ Source::Device(..) => device.into_table(session).await,
        }
    }
}

fn of_batches(schema: SchemaRef, batches: Vec<RecordBatch>) -> PyResult<Source> {
    let table = MemTable::try_new(schema, vec![batches]).map_err(exception)?;
    Ok(Source::Table(Arc::new(table)))
}

/// A record batch, or an array as its only column.
fn host_batch(array: ImportedArray) -> arrow_device::Result<RecordBatch> {
    if array.schema().is_some() {
        return cpu::import_batch(array);
    }
    let field = array.field().as_ref().clone().with_name(name_of(array.field()));
    let values = cpu::import_array(array)?;
    Ok(RecordBatch::try_new(Arc::new(Schema::new(vec![field])), vec![values])?)
}

/// The name of the column of an array.
fn name_of(field: &Field) -> String {
    Some(field.name().clone()).filter(|name| !name.is_empty()).unwrap_or_else(|| VALUE.to_owned())
}

fn of_array(py: Python<'_>, session: &SessionContext, array: ImportedArray) -> PyResult<Source> {
    if cpu::is_host(array.device_type()) {
        let batch = host_batch(array).map_err(interface_exception)?;
        return of_batches(batch.schema(), vec![batch]);
    }
    check_reach(py, session, array.device_type(), Some(array.device_id()))?;
    match array.schema() {
        Some(schema) => Ok(Source::Device(Arc::new(schema), vec![array])),
        None => Err(PyValueError::new_err(format!(
            "a table of device memory needs record batches, which are arrays of structs, not {}",
            array.data_type()
        ))),
    }
}

fn schema_of(reader: &ArrowDeviceArrayStreamReader) -> PyResult<SchemaRef> {
    reader.schema().ok_or_else(|| {
        PyValueError::new_err(format!("a table needs record batches, which are arrays of structs, not {}", reader.data_type()))
    })
}

/// All batches of a stream, whose producer may need the GIL. Arrays of one column are a table, too.
fn of_stream(py: Python<'_>, reader: ArrowDeviceArrayStreamReader) -> PyResult<Source> {
    let (schema, field) = (reader.schema(), Arc::clone(reader.field()));
    let arrays = reader.into_stream(READ_AHEAD).map_err(interface_exception)?;
    let batches = arrays.map(|array| host_batch(array?));
    let batches: Vec<RecordBatch> = wait_for(py, batches.try_collect(), interface_exception)?;
    let of_column = || Arc::new(Schema::new(vec![field.as_ref().clone().with_name(name_of(&field))]));
    of_batches(schema.unwrap_or_else(of_column), batches)
}

/// The session's device, for rows in `memory`.
fn device_for(py: Python<'_>, session: &SessionContext, memory: &str) -> PyResult<Context> {
    device_of(py, session).map_err(|error| {
        if !error.is_instance_of::<DeviceError>(py) {
            return error;
        }
        let cause = error.value(py).to_string();
        DeviceError::new_err(format!(
            "the rows are in memory of {memory}, and this session has no device: {}; choose one by device.selector, or \
             copy the rows to the host",
            cause.trim_start_matches("Execution error: ")
        ))
    })
}

/// Refuses memory out of the reach of the session's device where the object is passed, before a
/// query. A stream has no `id` of its device, and its arrays are checked as they come.
fn check_reach(py: Python<'_>, session: &SessionContext, device_type: ArrowDeviceType, id: Option<i64>) -> PyResult<()> {
    let memory = id.map_or_else(|| device_type.to_string(), |id| format!("{device_type} {id}"));
    let context = device_for(py, session, &memory)?;
    let info = context.info();
    let (own, own_id) = exchange::exported_device(info);
    let is_kind = device_type == own || info.driver.arrow_device_types().managed == Some(device_type.0);
    // Objects tell their device, and are copied from there. An address must be the device's own.
    let is_own = id.is_none_or(|id| id == own_id) || info.driver.memory_handle() == MemoryHandle::Object;
    if is_kind && is_own {
        return Ok(());
    }
    Err(PyValueError::new_err(format!(
        "the rows are in memory of {memory}, and the session's device is {} ({}): copy them to that device, or to the host, \
         first",
        info.label(),
        info.name
    )))
}

fn of_device_stream(session: &SessionContext, object: &Bound<'_, PyAny>) -> PyResult<Source> {
    let reader = capsule::device_stream_of(object)?;
    if cpu::is_host(reader.device_type()) {
        return of_stream(object.py(), reader);
    }
    check_reach(object.py(), session, reader.device_type(), None)?;
    let schema = schema_of(&reader)?;
    let (first, object) = (Mutex::new(Some(reader)), object.clone().unbind());
    let open = move || {
        // The lock ends here: the object may query this table.
        let reader = first.lock().take();
        reader.map_or_else(|| calling(|py| capsule::device_stream_of(object.bind(py))), Ok)
    };
    Ok(Source::Table(Arc::new(DeviceStreamTable::from_factory(schema, open))))
}

/// Streams of host batches, one for each scan.
struct Streams {
    schema: SchemaRef,
    /// That of the first scan.
    first: Mutex<Option<ArrowDeviceArrayStreamReader>>,
    /// Gives later ones; `None` for a reader, whose rows come once.
    object: Option<Py<PyAny>>,
}

impl Streams {
    fn table(object: &Bound<'_, PyAny>, later: Option<Py<PyAny>>) -> PyResult<Arc<dyn TableProvider>> {
        let stream = capsule::stream_of(object)?;
        let schema = schema_of(&stream)?;
        let streams = Streams { schema: Arc::clone(&schema), first: Mutex::new(Some(stream)), object: later };
        let table = StreamingTable::try_new(schema, vec![Arc::new(streams)]).map_err(exception)?;
        Ok(Arc::new(table))
    }

    fn open(&self) -> Result<SendableRecordBatchStream> {
        let failed = |error: arrow_device::Error| DataFusionError::External(error.into());
        let first = self.first.lock().take();
        let stream = match (first, &self.object) {
            (Some(stream), _) => stream,
            (None, Some(object)) => calling(|py| capsule::stream_of(object.bind(py)))?,
            (None, None) => {
                return exec_err!(
                    "a reader gives its rows once, and this one has given them; to read rows again, register a table \
                     of them, such as pyarrow's reader.read_all()"
                );
            }
        };
        let batches = stream.into_stream(READ_AHEAD).map_err(failed)?;
        let batches = batches.map(move |array| array.and_then(cpu::import_batch).map_err(failed));
        Ok(Box::pin(RecordBatchStreamAdapter::new(Arc::clone(&self.schema), batches)))
    }
}

impl fmt::Debug for Streams {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Streams").field("schema", &self.schema).finish_non_exhaustive()
    }
}

impl PartitionStream for Streams {
    fn schema(&self) -> &SchemaRef {
        &self.schema
    }

    fn execute(&self, _: Arc<TaskContext>) -> SendableRecordBatchStream {
        let failed =
            |error| Box::pin(RecordBatchStreamAdapter::new(Arc::clone(&self.schema), futures::stream::iter([Err(error)])));
        self.open().unwrap_or_else(|error| failed(error))
    }
}

/// The table of a reader. All statements with the reader have the same one, so that a second run of
/// its rows is an error.
#[pyclass(frozen, module = "devicefusion._devicefusion")]
struct ReaderTable(Arc<dyn TableProvider>);

/// Tables by their readers, which it does not keep alive: a `weakref.WeakKeyDictionary`.
static READERS: PyOnceLock<Py<PyAny>> = PyOnceLock::new();

impl ReaderTable {
    fn of(reader: &Bound<'_, PyAny>) -> PyResult<Arc<dyn TableProvider>> {
        let py = reader.py();
        let make = || Ok::<_, PyErr>(py.import("weakref")?.call_method0("WeakKeyDictionary")?.unbind());
        let readers = READERS.get_or_try_init(py, make)?.bind(py);
        // Some objects have no weak references, or no hash.
        if let Ok(known) = readers.call_method1("get", (reader,))
            && let Ok(known) = known.cast::<ReaderTable>()
        {
            return Ok(Arc::clone(&known.get().0));
        }
        let table = Streams::table(reader, None)?;
        _ = readers.set_item(reader, Py::new(py, ReaderTable(Arc::clone(&table)))?);
        Ok(table)
    }
}

/// The columns of a dictionary.
struct Columns {
    names: Vec<String>,
    columns: Vec<Column>,
}

enum Column {
    Host(ArrayRef),
    Device(Tensor),
}

impl Columns {
    fn of(session: &SessionContext, columns: &Bound<'_, PyDict>) -> PyResult<Columns> {
        let mut of = Columns { names: Vec::new(), columns: Vec::new() };
        for (name, object) in columns {
            let name: String = name.extract()?;
            let column = Column::of(session, &object).map_err(|error| named(object.py(), &name, error))?;
            of.names.push(name);
            of.columns.push(column);
        }
        Ok(of)
    }

    fn into_source(self, py: Python<'_>, session: &SessionContext) -> PyResult<Source> {
        let lengths: Vec<usize> = self.columns.iter().map(Column::len).collect();
        let rows = lengths.first().copied().unwrap_or_default();
        if let Some(other) = lengths.iter().position(|length| *length != rows) {
            return Err(PyValueError::new_err(format!(
                "the column {:?} has {} rows, and {:?} has {rows}",
                self.names[other], lengths[other], self.names[0]
            )));
        }
        let is_device = |column: &Column| matches!(column, Column::Device(_));
        if self.columns.iter().any(is_device) {
            if let Some(host) = self.columns.iter().position(|column| !is_device(column)) {
                return Err(PyValueError::new_err(format!(
                    "the column {:?} is in host memory, and others are on a device: move them to one place",
                    self.names[host]
                )));
            }
            let tensors = self.columns.into_iter().filter_map(|column| match column {
                Column::Device(tensor) => Some(tensor),
                Column::Host(_) => None,
            });
            let (schema, array) = Tensor::into_batch(self.names.into_iter().zip(tensors).collect(), rows)?;
            check_reach(py, session, array.device_type(), Some(array.device_id()))?;
            return Ok(Source::Device(schema, vec![array]));
        }
        let columns: Vec<ArrayRef> = self
            .columns
            .into_iter()
            .filter_map(|column| match column {
                Column::Host(array) => Some(array),
                Column::Device(_) => None,
            })
            .collect();
        let fields = self.names.iter().zip(&columns);
        let fields: Vec<Field> =
            fields.map(|(name, column)| Field::new(name, column.data_type().clone(), column.null_count() > 0)).collect();
        let schema = Arc::new(Schema::new(fields));
        let options = RecordBatchOptions::new().with_row_count(Some(rows));
        let batch = RecordBatch::try_new_with_options(Arc::clone(&schema), columns, &options);
        of_batches(schema, vec![batch.map_err(|error| PyValueError::new_err(error.to_string()))?])
    }
}

impl Column {
    fn of(session: &SessionContext, object: &Bound<'_, PyAny>) -> PyResult<Column> {
        if object.hasattr("__arrow_c_array__")? {
            return Ok(Column::Host(cpu::import_array(capsule::array_of(object)?).map_err(interface_exception)?));
        }
        if Tensor::is(object)? {
            let tensor = Tensor::of(object, || device_for(object.py(), session, CUDA))?;
            return Ok(if tensor.is_host() { Column::Host(tensor.into_array()?) } else { Column::Device(tensor) });
        }
        if cuda_array::is(object)? {
            return Ok(Column::Device(cuda_array::tensor_of(object, &device_for(object.py(), session, CUDA)?)?));
        }
        Err(PyTypeError::new_err(format!(
            "{} is no column: it has none of __arrow_c_array__, __dlpack__ and __cuda_array_interface__",
            kind_of(object)?
        )))
    }

    fn len(&self) -> usize {
        match self {
            Column::Host(array) => array.len(),
            Column::Device(tensor) => tensor.len(),
        }
    }
}

/// An object by its class, such as "an int".
fn kind_of(object: &Bound<'_, PyAny>) -> PyResult<String> {
    let name = object.get_type().name()?.to_string();
    let article = if name.starts_with(['a', 'e', 'i', 'o', 'u', 'A', 'E', 'I', 'O', 'U']) { "an" } else { "a" };
    Ok(format!("{article} {name}"))
}

/// An exception with the name of the column. One of another library stays as it is.
fn named(py: Python<'_>, name: &str, error: PyErr) -> PyErr {
    let text = format!("column {name:?}: {}", error.value(py));
    match error.get_type(py) {
        own if own.is(py.get_type::<PyValueError>()) => PyValueError::new_err(text),
        own if own.is(py.get_type::<PyTypeError>()) => PyTypeError::new_err(text),
        _ => error,
    }
}
