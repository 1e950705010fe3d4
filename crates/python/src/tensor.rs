// SPDX-License-Identifier: Apache-2.0
//! Tensors of other libraries, by [DLPack](https://dmlc.github.io/dlpack/latest/), and columns as
//! tensors for them. The file `cuda_array` reads arrays of CUDA libraries without DLPack.
//!
//! A tensor with one dimension is a column without NULLs. Its memory is used in place, and its
//! owner lives until the last query has read it.

use std::ffi::{CStr, c_void};
use std::panic::AssertUnwindSafe;
use std::ptr::NonNull;
use std::sync::Arc;

use arrow_device::ffi::ArrowDeviceType;
use arrow_device::{ArrayExport, ImportedArray, schema};
use datafusion::arrow::array::{Array, ArrayData, ArrayRef, BooleanArray, make_array};
use datafusion::arrow::buffer::{BooleanBuffer, Buffer};
use datafusion::arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use device::{Buffer as DeviceBuffer, Context, DriverKind};
use pyo3::exceptions::{PyBufferError, PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyCapsule, PyDict};

use crate::calls::with_python;
use crate::errors::{device_exception, interface_exception};

const TENSOR: &CStr = c"dltensor";
const VERSIONED: &CStr = c"dltensor_versioned";
const USED: &CStr = c"used_dltensor";
const USED_VERSIONED: &CStr = c"used_dltensor_versioned";

/// `DLPACK_FLAG_BITMASK_READ_ONLY`.
const READ_ONLY: u64 = 1;

/// The major version of DLPack whose structs these are.
const MAJOR: u32 = 1;

/// `kDLCPU`, `kDLCUDA` and `kDLCUDAManaged`, which are Arrow's numbers too.
const CPU: i32 = 1;
const CUDA: i32 = 2;
const CUDA_MANAGED: i32 = 13;

/// `DLDevice`.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Device {
    pub device_type: i32,
    pub device_id: i32,
}

impl Device {
    pub const HOST: Device = Device { device_type: CPU, device_id: 0 };

    /// A device of CUDA.
    pub fn cuda(ordinal: usize) -> Device {
        Device { device_type: CUDA, device_id: i32::try_from(ordinal).unwrap_or_default() }
    }
}

/// `DLDataType`.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ElementType {
    code: u8,
    bits: u8,
    lanes: u16,
}

const INT: u8 = 0;
const UINT: u8 = 1;
const FLOAT: u8 = 2;
const BFLOAT: u8 = 4;
const COMPLEX: u8 = 5;
const BOOL: u8 = 6;

impl ElementType {
    fn of(data_type: &DataType) -> Option<ElementType> {
        let (code, bits) = match data_type {
            DataType::Int8 => (INT, 8),
            DataType::Int16 => (INT, 16),
            DataType::Int32 | DataType::Date32 => (INT, 32),
            DataType::Int64 | DataType::Date64 | DataType::Timestamp(..) | DataType::Duration(_) => (INT, 64),
            DataType::UInt8 => (UINT, 8),
            DataType::UInt16 => (UINT, 16),
            DataType::UInt32 => (UINT, 32),
            DataType::UInt64 => (UINT, 64),
            DataType::Float16 => (FLOAT, 16),
            DataType::Float32 => (FLOAT, 32),
            DataType::Float64 => (FLOAT, 64),
            _ => return None,
        };
        Some(ElementType { code, bits, lanes: 1 })
    }

    /// The name that other libraries give the type.
    fn name(self) -> String {
        let name = match self.code {
            BFLOAT => "bfloat",
            COMPLEX => "complex",
            code => return format!("DLPack's code {code} with {} bits", self.bits),
        };
        format!("{name}{}", self.bits)
    }

    /// The type of NumPy's `typestr`, such as `<f8`; `None` for those that no column has.
    pub fn of_typestr(typestr: &str) -> Option<ElementType> {
        let mut characters = typestr.chars();
        let (order, kind) = (characters.next()?, characters.next()?);
        let bytes: u8 = characters.as_str().parse().ok()?;
        let code = match kind {
            'i' => INT,
            'u' => UINT,
            'f' => FLOAT,
            'b' => BOOL,
            _ => return None,
        };
        let is_native = order == '<' || (order == '|' && bytes == 1);
        let element = ElementType { code, bits: bytes.checked_mul(8)?, lanes: 1 };
        (is_native && element.data_type().is_some()).then_some(element)
    }

    /// The type of the column. That of booleans has a byte for each.
    fn data_type(self) -> Option<DataType> {
        if self.lanes != 1 {
            return None;
        }
        Some(match (self.code, self.bits) {
            (INT, 8) => DataType::Int8,
            (INT, 16) => DataType::Int16,
            (INT, 32) => DataType::Int32,
            (INT, 64) => DataType::Int64,
            (UINT, 8) => DataType::UInt8,
            (UINT, 16) => DataType::UInt16,
            (UINT, 32) => DataType::UInt32,
            (UINT, 64) => DataType::UInt64,
            (FLOAT, 16) => DataType::Float16,
            (FLOAT, 32) => DataType::Float32,
            (FLOAT, 64) => DataType::Float64,
            (BOOL, 8) => DataType::Boolean,
            _ => return None,
        })
    }

    pub fn bytes(self) -> usize {
        usize::from(self.bits).div_ceil(8)
    }
}

/// `DLTensor`.
#[repr(C)]
struct Content {
    data: *mut c_void,
    device: Device,
    dimensions: i32,
    element: ElementType,
    shape: *mut i64,
    strides: *mut i64,
    byte_offset: u64,
}

/// `DLManagedTensor`.
#[repr(C)]
struct Managed {
    content: Content,
    owner: *mut c_void,
    deleter: Option<unsafe extern "C" fn(*mut Managed)>,
}

/// `DLManagedTensorVersioned`.
#[repr(C)]
struct ManagedVersioned {
    major: u32,
    minor: u32,
    owner: *mut c_void,
    deleter: Option<unsafe extern "C" fn(*mut ManagedVersioned)>,
    flags: u64,
    content: Content,
}

/// The owner of a tensor's memory.
enum Owner {
    /// A struct of another library, which its deleter frees.
    Plain(NonNull<Managed>),
    /// As above.
    Versioned(NonNull<ManagedVersioned>),
    /// An object of Python; `None` once it is released.
    Object(Option<AssertUnwindSafe<Py<PyAny>>>),
}

// SAFETY: DLPack lets any thread call the deleter, and the structs do not change.
unsafe impl Send for Owner {}
// SAFETY: as above.
unsafe impl Sync for Owner {}

impl Drop for Owner {
    fn drop(&mut self) {
        // Deleters release objects of Python. At the end of the interpreter these are gone.
        let freed = with_python(|_| match self {
            Owner::Object(object) => drop(object.take()),
            Owner::Plain(managed) => {
                // SAFETY: the producer's struct lives until its deleter is called.
                if let Some(deleter) = unsafe { managed.as_ref() }.deleter {
                    // SAFETY: the only call of the producer's deleter.
                    unsafe { deleter(managed.as_ptr()) };
                }
            }
            Owner::Versioned(managed) => {
                // SAFETY: as above.
                if let Some(deleter) = unsafe { managed.as_ref() }.deleter {
                    // SAFETY: the only call of the producer's deleter.
                    unsafe { deleter(managed.as_ptr()) };
                }
            }
        });
        _ = freed;
    }
}

/// A tensor of another library that can be a column.
pub(crate) struct Tensor {
    owner: Arc<Owner>,
    device: Device,
    element: ElementType,
    data_type: DataType,
    len: usize,
    start: *const c_void,
}

// SAFETY: the owner keeps the memory, which is only read.
unsafe impl Send for Tensor {}

impl Tensor {
    /// Whether an object is a tensor.
    pub fn is(object: &Bound<'_, PyAny>) -> PyResult<bool> {
        object.hasattr("__dlpack__")
    }

    /// Takes a tensor. Of one in CUDA's memory the producer makes a stream wait, that of `context`.
    /// All later work of the session follows that stream.
    pub fn of(object: &Bound<'_, PyAny>, context: impl FnOnce() -> PyResult<Context>) -> PyResult<Tensor> {
        let py = object.py();
        if !object.hasattr("__dlpack_device__")? {
            let name = object.get_type().name()?;
            return Err(PyTypeError::new_err(format!("a {name} is no tensor: it has __dlpack__ and no __dlpack_device__")));
        }
        let (device_type, device_id): (i32, i32) = object.call_method0("__dlpack_device__")?.extract()?;
        let options = PyDict::new(py);
        options.set_item("max_version", (MAJOR, 0))?;
        if matches!(device_type, CUDA | CUDA_MANAGED) {
            let context = context()?;
            let own = Device::cuda(context.info().ordinal).device_id;
            if context.info().driver != DriverKind::Cuda || device_id != own {
                let label = context.info().label();
                return Err(PyValueError::new_err(format!(
                    "the tensor is on the CUDA device {device_id}, and the session's device is {label}: move it there first"
                )));
            }
            options.set_item("stream", context.shared_queue().map_err(device_exception)?.0)?;
        }
        let capsule = match object.call_method("__dlpack__", (), Some(&options)) {
            // Producers before DLPack 1.0.
            Err(error) if error.is_instance_of::<PyTypeError>(py) => {
                options.del_item("max_version")?;
                object.call_method("__dlpack__", (), Some(&options))?
            }
            capsule => capsule?,
        };
        Self::of_capsule(&capsule)
    }

    fn of_capsule(capsule: &Bound<'_, PyAny>) -> PyResult<Tensor> {
        let capsule = capsule.cast::<PyCapsule>()?;
        if capsule.is_valid_checked(Some(VERSIONED)) {
            let managed = capsule.pointer_checked(Some(VERSIONED))?.cast::<ManagedVersioned>();
            // SAFETY: DLPack's struct for this name; its first fields never change.
            let major = unsafe { managed.as_ref() }.major;
            if major != MAJOR {
                return Err(PyBufferError::new_err(format!("a tensor of DLPack {major} came, and DLPack {MAJOR} was asked for")));
            }
            rename(capsule, USED_VERSIONED)?;
            let owner = Arc::new(Owner::Versioned(managed));
            // SAFETY: DLPack's struct of this version, which lives as long as its owner.
            return Self::of_content(unsafe { &managed.as_ref().content }, owner);
        }
        if capsule.is_valid_checked(Some(TENSOR)) {
            let managed = capsule.pointer_checked(Some(TENSOR))?.cast::<Managed>();
            rename(capsule, USED)?;
            let owner = Arc::new(Owner::Plain(managed));
            // SAFETY: as above, for this name.
            return Self::of_content(unsafe { &managed.as_ref().content }, owner);
        }
        Err(PyValueError::new_err("this capsule has no tensor, or it was used before: ask its producer for a new one"))
    }

    fn of_content(content: &Content, owner: Arc<Owner>) -> PyResult<Tensor> {
        one_dimension(content.dimensions)?;
        // SAFETY: one dimension, so there is one length, and one stride if there are strides.
        let (len, stride) = unsafe { (content.shape.read(), content.strides.as_ref().copied().unwrap_or(1)) };
        let len = usize::try_from(len).map_err(|_| PyValueError::new_err(format!("a tensor cannot have {len} elements")))?;
        contiguous(len, stride, 1, "elements")?;
        let element = content.element;
        let Some(data_type) = element.data_type() else {
            return Err(PyValueError::new_err(format!(
                "SQL has no type for the elements of this tensor, {}: convert them first",
                element.name()
            )));
        };
        let start = content.data.cast::<u8>().wrapping_add(content.byte_offset as usize).cast_const().cast();
        Ok(Tensor { owner, device: content.device, element, data_type, len, start })
    }

    /// The tensor of `len` elements at an address of `device`, which `object` keeps.
    pub fn of_object(
        object: &Bound<'_, PyAny>,
        device: Device,
        element: ElementType,
        len: usize,
        start: usize,
    ) -> PyResult<Tensor> {
        let Some(data_type) = element.data_type() else {
            return Err(PyValueError::new_err("SQL has no type for the elements of this array"));
        };
        let owner = Arc::new(Owner::Object(Some(AssertUnwindSafe(object.clone().unbind()))));
        Ok(Tensor { owner, device, element, data_type, len, start: std::ptr::without_provenance(start) })
    }

    pub fn is_host(&self) -> bool {
        self.device.device_type == CPU
    }

    pub fn len(&self) -> usize {
        self.len
    }

    /// The array on the tensor's memory. Booleans are copied: SQL's are bits.
    pub fn into_array(self) -> PyResult<ArrayRef> {
        let bytes = self.len * self.element.bytes();
        let Some(start) = NonNull::new(self.start.cast_mut().cast::<u8>()).filter(|_| bytes > 0) else {
            return Ok(datafusion::arrow::array::new_empty_array(&self.data_type));
        };
        // SAFETY: the producer's elements, which the owner keeps.
        let buffer = unsafe { Buffer::from_custom_allocation(start, bytes, self.owner) };
        if self.data_type == DataType::Boolean {
            let bits = BooleanBuffer::collect_bool(self.len, |index| buffer.as_slice()[index] != 0);
            return Ok(Arc::new(BooleanArray::new(bits, None)));
        }
        let data = ArrayData::builder(self.data_type).len(self.len).add_buffer(buffer).align_buffers(true).build();
        data.map(make_array).map_err(|error| PyValueError::new_err(error.to_string()))
    }

    /// The device array of tensors of one device.
    pub fn into_batch(tensors: Vec<(String, Tensor)>, rows: usize) -> PyResult<(SchemaRef, ImportedArray)> {
        let device = tensors.first().map_or(Device::HOST, |(_, tensor)| tensor.device);
        let (mut fields, mut columns) = (Vec::new(), Vec::new());
        for (name, tensor) in tensors {
            let own = tensor.device;
            if own != device {
                return Err(PyValueError::new_err(format!("the column {name:?} is on {own:?}, and the first one on {device:?}")));
            }
            if tensor.data_type == DataType::Boolean {
                return Err(PyValueError::new_err(format!(
                    "the column {name:?} has a byte for each boolean, and SQL on a device a bit: convert it to uint8 first"
                )));
            }
            fields.push(Field::new(name, tensor.data_type, false));
            let buffers = vec![std::ptr::null(), tensor.start];
            columns.push(ArrayExport::new(tensor.len).buffers(buffers).owner(Box::new(tensor.owner)));
        }
        let rows = ArrayExport::batch(rows, columns).map_err(interface_exception)?;
        let device_type = ArrowDeviceType(device.device_type);
        let array = rows.export(device_type, i64::from(device.device_id), std::ptr::null_mut()).map_err(interface_exception)?;
        let schema = Schema::new(fields);
        // SAFETY: the array was just exported, with these fields.
        let array = unsafe { ImportedArray::import(array, &schema::batch_field(&schema)) }.map_err(interface_exception)?;
        Ok((Arc::new(schema), array))
    }
}

/// Refuses tensors that are no columns.
pub(crate) fn one_dimension(dimensions: i32) -> PyResult<()> {
    match dimensions {
        1 => Ok(()),
        _ => Err(PyValueError::new_err(format!(
            "a column has one dimension, and this tensor has {dimensions}: pass its columns one by one"
        ))),
    }
}

/// Refuses tensors whose elements are apart: `stride` and `step` are in the same `unit`.
pub(crate) fn contiguous(len: usize, stride: i64, step: usize, unit: &str) -> PyResult<()> {
    if usize::try_from(stride) == Ok(step) || len <= 1 {
        return Ok(());
    }
    Err(PyValueError::new_err(format!(
        "the elements of this tensor are {stride} {unit} apart: make it contiguous first, such as by .contiguous()"
    )))
}

/// Marks a capsule as used: its destructor leaves the tensor alone.
fn rename(capsule: &Bound<'_, PyCapsule>, name: &'static CStr) -> PyResult<()> {
    // SAFETY: a live capsule, and a name that is never freed.
    match unsafe { pyo3::ffi::PyCapsule_SetName(capsule.as_ptr(), name.as_ptr()) } {
        0 => Ok(()),
        _ => Err(PyErr::fetch(capsule.py())),
    }
}

/// The values of a column without NULLs, for other libraries.
#[derive(Clone)]
pub(crate) struct Values {
    pub data_type: DataType,
    pub len: usize,
    pub memory: ValueMemory,
}

/// Where values are.
#[derive(Clone)]
pub(crate) enum ValueMemory {
    Host(ArrayRef),
    /// A buffer with addresses, and the number of bytes before the first value.
    Cuda {
        device: Device,
        buffer: DeviceBuffer,
        offset: usize,
    },
}

impl Values {
    pub fn device(&self) -> Device {
        match &self.memory {
            ValueMemory::Host(_) => Device::HOST,
            ValueMemory::Cuda { device, .. } => *device,
        }
    }

    fn element(&self, name: &str) -> PyResult<ElementType> {
        ElementType::of(&self.data_type).ok_or_else(|| {
            PyBufferError::new_err(format!(
                "the column {name:?} is of the type {}, which no tensor has: cast it in SQL",
                self.data_type
            ))
        })
    }

    /// The address of the first value.
    fn start(&self, element: ElementType) -> *const c_void {
        match &self.memory {
            ValueMemory::Host(array) => {
                let data = array.to_data();
                let start = data.buffers().first().map_or(std::ptr::null(), |buffer| buffer.as_ptr());
                start.wrapping_add(data.offset() * element.bytes()).cast()
            }
            ValueMemory::Cuda { buffer, offset, .. } => {
                std::ptr::without_provenance(usize::try_from(buffer.raw().handle).unwrap_or_default() + offset)
            }
        }
    }

    /// `__cuda_array_interface__`, version 3. The values are complete, so there is no stream.
    pub fn cuda_array_interface<'py>(&self, py: Python<'py>, name: &str) -> PyResult<Bound<'py, PyDict>> {
        let element = self.element(name)?;
        let kind = match element.code {
            INT => 'i',
            UINT => 'u',
            _ => 'f',
        };
        let interface = PyDict::new(py);
        interface.set_item("shape", (self.len,))?;
        interface.set_item("typestr", format!("<{kind}{}", element.bytes()))?;
        interface.set_item("data", (self.start(element).addr(), true))?;
        interface.set_item("strides", py.None())?;
        interface.set_item("stream", py.None())?;
        interface.set_item("version", 3)?;
        Ok(interface)
    }

    /// A capsule with the tensor, which shares the memory. One with a version says that the memory
    /// is not to be written.
    ///
    /// # Errors
    /// For types that no tensor has.
    pub fn capsule<'py>(&self, py: Python<'py>, name: &str, versioned: bool) -> PyResult<Bound<'py, PyCapsule>> {
        let element = self.element(name)?;
        let mut shape = Box::new([self.len as i64]);
        let content = Content {
            data: self.start(element).cast_mut(),
            device: self.device(),
            dimensions: 1,
            element,
            shape: shape.as_mut_ptr(),
            strides: std::ptr::null_mut(),
            byte_offset: 0,
        };
        let owner = Box::into_raw(Box::new((shape, self.clone()))).cast();
        if versioned {
            let (minor, deleter) = (0, Some(delete_versioned as _));
            let managed = ManagedVersioned { major: MAJOR, minor, owner, deleter, flags: READ_ONLY, content };
            let managed = NonNull::from(Box::leak(Box::new(managed)));
            // SAFETY: the struct lives until the consumer or `destroy` calls its deleter.
            return unsafe { PyCapsule::new_with_pointer_and_destructor(py, managed.cast(), VERSIONED, Some(destroy)) };
        }
        let managed = NonNull::from(Box::leak(Box::new(Managed { content, owner, deleter: Some(delete) })));
        // SAFETY: as above.
        unsafe { PyCapsule::new_with_pointer_and_destructor(py, managed.cast(), TENSOR, Some(destroy)) }
    }
}

/// Shape and memory of an exported tensor.
type Exported = (Box<[i64; 1]>, Values);

/// Frees a tensor.
///
/// # Safety
/// `managed` is null, or a tensor of [`Values::capsule`] that was not freed.
unsafe extern "C" fn delete(managed: *mut Managed) {
    if !managed.is_null() {
        // SAFETY: this function's own condition.
        let managed = unsafe { Box::from_raw(managed) };
        // SAFETY: as above.
        drop(unsafe { Box::from_raw(managed.owner.cast::<Exported>()) });
    }
}

/// Frees a tensor with a version.
///
/// # Safety
/// As [`delete`].
unsafe extern "C" fn delete_versioned(managed: *mut ManagedVersioned) {
    if !managed.is_null() {
        // SAFETY: this function's own condition.
        let managed = unsafe { Box::from_raw(managed) };
        // SAFETY: as above.
        drop(unsafe { Box::from_raw(managed.owner.cast::<Exported>()) });
    }
}

/// Frees a tensor that no consumer took. One that took it has renamed the capsule.
///
/// # Safety
/// Python calls it with the capsule that it destroys.
unsafe extern "C" fn destroy(capsule: *mut pyo3::ffi::PyObject) {
    // SAFETY: this function's own condition.
    unsafe {
        if pyo3::ffi::PyCapsule_IsValid(capsule, TENSOR.as_ptr()) == 1 {
            delete(pyo3::ffi::PyCapsule_GetPointer(capsule, TENSOR.as_ptr()).cast());
        } else if pyo3::ffi::PyCapsule_IsValid(capsule, VERSIONED.as_ptr()) == 1 {
            delete_versioned(pyo3::ffi::PyCapsule_GetPointer(capsule, VERSIONED.as_ptr()).cast());
        }
    }
}
