// SPDX-License-Identifier: Apache-2.0
//! Rows of a query that stay on the device, and their columns as tensors.

use std::sync::{Arc, OnceLock};

use arrow_device::ffi::FFI_ArrowDeviceArray;
use arrow_device::stream::export_iterator;
use arrow_device::{ImportedArray, cpu, schema};
use columnar::exchange;
use datafusion::arrow::array::{Array, ArrayRef, RecordBatch, new_empty_array};
use datafusion::arrow::compute::concat;
use datafusion::arrow::datatypes::SchemaRef;
use device::{Context, DeviceKind, MemoryHandle};
use pyo3::exceptions::{PyAttributeError, PyBufferError, PyKeyError, PyNotImplementedError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyCapsule, PyDict};

use crate::capsule;
use crate::errors::{columnar_exception, interface_exception};
use crate::host_rows::HostRows;
use crate::runtime::wait_for;
use crate::tensor::{self, ValueMemory, Values};

/// Rows in device memory, in Arrow's layout.
#[pyclass(frozen, module = "devicefusion._devicefusion")]
pub(crate) struct DeviceRows {
    schema: SchemaRef,
    context: Context,
    arrays: Vec<Arc<ImportedArray>>,
    /// The same rows for the host. On a device that shares the host's memory they are in place.
    host: OnceLock<Vec<RecordBatch>>,
}

impl DeviceRows {
    /// Rows that this library has exported.
    pub fn new(schema: SchemaRef, context: Context, arrays: Vec<FFI_ArrowDeviceArray>) -> PyResult<Self> {
        let field = schema::batch_field(&schema);
        // SAFETY: arrays of this library have this field.
        let imported = arrays.into_iter().map(|array| unsafe { ImportedArray::import(array, &field) }.map(Arc::new));
        let arrays = imported.collect::<arrow_device::Result<_>>().map_err(interface_exception)?;
        Ok(Self { schema, context, arrays, host: OnceLock::new() })
    }

    /// The rows for the host.
    fn on_host(&self, py: Python<'_>) -> PyResult<&[RecordBatch]> {
        if let Some(batches) = self.host.get() {
            return Ok(batches);
        }
        let batches = wait_for(py, self.download(), columnar_exception)?;
        Ok(self.host.get_or_init(|| batches))
    }

    async fn download(&self) -> columnar::Result<Vec<RecordBatch>> {
        let queue = self.context.queue()?;
        let field = schema::batch_field(&self.schema);
        let columns: Vec<usize> = (0..self.schema.fields().len()).collect();
        let mut batches = Vec::new();
        for array in &self.arrays {
            // SAFETY: the array was imported with this field before.
            let shared = unsafe { ImportedArray::import(array.share()?, &field)? };
            let batch = exchange::import(&queue, shared, &self.schema, &columns).await?;
            let exported = exchange::export_to_host(&queue, &batch).await?;
            // SAFETY: the array was just exported, with these fields.
            let exported = unsafe { ImportedArray::import(exported, &field)? };
            batches.push(cpu::import_batch(exported)?);
        }
        Ok(batches)
    }

    /// A column in the host's memory; `None` if it has NULLs.
    fn host_column(&self, py: Python<'_>, index: usize) -> PyResult<Option<Values>> {
        let parts: Vec<ArrayRef> = self.on_host(py)?.iter().map(|batch| Arc::clone(batch.column(index))).collect();
        let column = match &parts[..] {
            [] => new_empty_array(self.schema.field(index).data_type()),
            [part] => Arc::clone(part),
            parts => {
                let parts: Vec<&dyn Array> = parts.iter().map(|part| part.as_ref()).collect();
                concat(&parts).map_err(|error| PyValueError::new_err(error.to_string()))?
            }
        };
        let (data_type, len) = (column.data_type().clone(), column.len());
        Ok((column.null_count() == 0).then(|| Values { data_type, len, memory: ValueMemory::Host(column) }))
    }

    /// A column of a device with addresses, in one buffer; `None` if it may have NULLs.
    async fn device_column(&self, index: usize) -> columnar::Result<Option<Values>> {
        let queue = self.context.queue()?;
        let field = schema::batch_field(&self.schema);
        let mut parts = Vec::new();
        for array in &self.arrays {
            // SAFETY: the array was imported with this field before.
            let shared = unsafe { ImportedArray::import(array.share()?, &field)? };
            let batch = exchange::import(&queue, shared, &self.schema, &[index]).await?;
            parts.extend(batch.columns().iter().cloned());
        }
        let data_type = self.schema.field(index).data_type().clone();
        let len: usize = parts.iter().map(columnar::DeviceColumn::len).sum();
        let bytes = data_type.primitive_width().unwrap_or_default();
        if parts.iter().any(|part| part.null_count() != Some(0)) {
            return Ok(None);
        }
        let (buffer, offset) = match &parts[..] {
            [part] if let [values] = part.buffers() => (values.clone(), part.offset() * bytes),
            parts => {
                let (all, mut end) = (queue.alloc(len * bytes)?, 0);
                for part in parts {
                    if let [values] = part.buffers() {
                        queue.copy(values, part.offset() * bytes, &all, end, part.len() * bytes)?;
                    }
                    end += part.len() * bytes;
                }
                (all, 0)
            }
        };
        // Consumers read the values on streams of their own.
        queue.finish().await?;
        let device = tensor::Device::cuda(self.context.info().ordinal);
        Ok(Some(Values { data_type, len, memory: ValueMemory::Cuda { device, buffer, offset } }))
    }

    fn index(&self, name: &str) -> PyResult<usize> {
        self.schema.index_of(name).map_err(|_| {
            let names: Vec<&str> = self.schema.fields().iter().map(|field| field.name().as_str()).collect();
            PyKeyError::new_err(format!("there is no column {name:?}, but there are {}", names.join(", ")))
        })
    }
}

#[pymethods]
impl DeviceRows {
    fn __len__(&self) -> usize {
        self.arrays.iter().map(|array| array.len()).sum()
    }

    fn __arrow_c_schema__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyCapsule>> {
        capsule::of_schema(py, &self.schema)
    }

    /// The rows as a stream of device arrays. Each call gives the same rows again.
    #[pyo3(signature = (requested_schema=None, **options))]
    fn __arrow_c_device_stream__<'py>(
        &self,
        py: Python<'py>,
        requested_schema: Option<Bound<'py, PyAny>>,
        options: Option<Bound<'py, PyDict>>,
    ) -> PyResult<Bound<'py, PyCapsule>> {
        refuse(options)?;
        drop(requested_schema);
        let arrays: Vec<_> = self.arrays.iter().map(ImportedArray::share).collect();
        let device_type = exchange::exported_device(self.context.info()).0;
        let stream = export_iterator(&schema::batch_field(&self.schema), device_type, arrays).map_err(interface_exception)?;
        capsule::of_device_stream(py, stream)
    }

    /// The rows as one device array.
    #[pyo3(signature = (requested_schema=None, **options))]
    fn __arrow_c_device_array__<'py>(
        &self,
        py: Python<'py>,
        requested_schema: Option<Bound<'py, PyAny>>,
        options: Option<Bound<'py, PyDict>>,
    ) -> PyResult<(Bound<'py, PyCapsule>, Bound<'py, PyCapsule>)> {
        refuse(options)?;
        drop(requested_schema);
        let array = match &self.arrays[..] {
            [] => cpu::export_batch(&RecordBatch::new_empty(Arc::clone(&self.schema))),
            [array] => array.share(),
            arrays => {
                return Err(PyValueError::new_err(format!(
                    "these rows are {} device arrays: read them by __arrow_c_device_stream__",
                    arrays.len()
                )));
            }
        };
        let field = capsule::of_field(py, &schema::batch_field(&self.schema))?;
        Ok((field, capsule::of_device_array(py, array.map_err(interface_exception)?)?))
    }

    /// The rows in host memory: the same memory where the device shares it.
    fn host(&self, py: Python<'_>) -> PyResult<HostRows> {
        Ok(HostRows::new(Arc::clone(&self.schema), self.on_host(py)?.to_vec()))
    }

    /// A column as a tensor.
    fn column(&self, py: Python<'_>, name: &str) -> PyResult<DeviceColumn> {
        let index = self.index(name)?;
        let info = self.context.info();
        let values = match (info.kind, info.driver.memory_handle()) {
            (DeviceKind::Cpu, _) => self.host_column(py, index)?,
            (_, MemoryHandle::Address) => wait_for(py, self.device_column(index), columnar_exception)?,
            (_, MemoryHandle::Object) => {
                return Err(PyBufferError::new_err(format!(
                    "columns of {} are no tensors, since {} has no addresses: use __arrow_c_device_stream__",
                    info.name, info.driver
                )));
            }
        };
        match values {
            Some(values) => Ok(DeviceColumn { name: name.to_owned(), values }),
            None => Err(PyBufferError::new_err(format!(
                "the column {name:?} has NULLs, and a tensor has none: replace them, such as by COALESCE({name}, 0)"
            ))),
        }
    }
}

/// Refuses options of a later version of the interface, unless they are None.
fn refuse(options: Option<Bound<'_, PyDict>>) -> PyResult<()> {
    let options = options.into_iter().flatten();
    match options.into_iter().find(|(_, value)| !value.is_none()) {
        Some((name, _)) => Err(PyNotImplementedError::new_err(format!("the option {name} is not known"))),
        None => Ok(()),
    }
}

/// A column without NULLs, as a tensor.
#[pyclass(frozen, module = "devicefusion._devicefusion")]
pub(crate) struct DeviceColumn {
    name: String,
    values: Values,
}

#[pymethods]
impl DeviceColumn {
    fn __len__(&self) -> usize {
        self.values.len
    }

    /// An array of NumPy on the same memory.
    #[pyo3(signature = (dtype=None, copy=None))]
    fn __array__<'py>(
        slf: &Bound<'py, Self>,
        dtype: Option<Bound<'py, PyAny>>,
        copy: Option<bool>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let array = slf.py().import("numpy")?.call_method1("from_dlpack", (slf,))?;
        match (dtype, copy) {
            (None, None | Some(false)) => Ok(array),
            (dtype, _) => array.call_method1("astype", (dtype.unwrap_or(array.getattr("dtype")?),)),
        }
    }

    fn __repr__(&self) -> String {
        format!("DeviceColumn({}: {} of {})", self.name, self.values.len, self.values.data_type)
    }

    /// DLPack's type and number of the device.
    fn __dlpack_device__(&self) -> (i32, i32) {
        let device = self.values.device();
        (device.device_type, device.device_id)
    }

    /// A capsule for `torch.from_dlpack` and others. It shares the memory, which stays unwritten.
    /// The values are complete, so that no stream needs to wait.
    #[pyo3(signature = (*, stream=None, max_version=None, dl_device=None, copy=None))]
    fn __dlpack__<'py>(
        &self,
        py: Python<'py>,
        stream: Option<Bound<'py, PyAny>>,
        max_version: Option<(u32, u32)>,
        dl_device: Option<(i32, i32)>,
        copy: Option<bool>,
    ) -> PyResult<Bound<'py, PyCapsule>> {
        if stream.is_some() && self.values.device() == tensor::Device::HOST {
            return Err(PyBufferError::new_err("a tensor of the CPU has no stream"));
        }
        if dl_device.is_some_and(|device| device != self.__dlpack_device__()) {
            return Err(PyBufferError::new_err(format!(
                "this column is on DLPack's device {:?}, and on no other one",
                self.__dlpack_device__()
            )));
        }
        if copy == Some(true) {
            return Err(PyBufferError::new_err("this column shares its memory; copy the tensor"));
        }
        self.values.capsule(py, &self.name, max_version.is_some_and(|version| version >= (1, 0)))
    }

    #[getter]
    fn __cuda_array_interface__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        if self.values.device() == tensor::Device::HOST {
            return Err(PyAttributeError::new_err("this column is in memory of the CPU: use __dlpack__"));
        }
        self.values.cuda_array_interface(py, &self.name)
    }
}
