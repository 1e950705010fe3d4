// SPDX-License-Identifier: Apache-2.0
//! The [Arrow PyCapsule interface](https://arrow.apache.org/docs/format/CDataInterface/PyCapsuleInterface.html):
//! C structs in capsules. A consumer moves the struct out and leaves a released one.
//!
//! Then the capsules of datafusion-python, whose structs are of `datafusion-ffi`. A consumer clones
//! them.

use std::ffi::CStr;
use std::ptr::NonNull;

use arrow::ffi::{FFI_ArrowArray, FFI_ArrowSchema};
use arrow::ffi_stream::FFI_ArrowArrayStream;
use arrow_device::ffi::{FFI_ArrowDeviceArray, FFI_ArrowDeviceArrayStream};
use arrow_device::stream::ArrowDeviceArrayStreamReader;
use arrow_device::{ImportedArray, cpu, schema};
use datafusion::arrow::datatypes::{Field, Schema};
use datafusion_ffi::proto::logical_extension_codec::FFI_LogicalExtensionCodec;
use datafusion_ffi::proto::physical_extension_codec::FFI_PhysicalExtensionCodec;
use datafusion_ffi::query_planner::FFI_QueryPlanner;
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyCapsule, PyTuple};

use crate::errors::interface_exception;
use crate::producer::guarded;

const SCHEMA: &CStr = c"arrow_schema";
const ARRAY: &CStr = c"arrow_array";
const STREAM: &CStr = c"arrow_array_stream";
const DEVICE_ARRAY: &CStr = c"arrow_device_array";
const DEVICE_STREAM: &CStr = c"arrow_device_array_stream";
const LOGICAL_CODEC: &CStr = c"datafusion_logical_extension_codec";
const PHYSICAL_CODEC: &CStr = c"datafusion_physical_extension_codec";
const QUERY_PLANNER: &CStr = c"datafusion_query_planner";

/// The struct in a capsule.
fn pointer<T>(capsule: &Bound<'_, PyAny>, name: &'static CStr) -> PyResult<NonNull<T>> {
    let shown = name.to_string_lossy();
    let Ok(capsule) = capsule.cast::<PyCapsule>() else {
        return Err(PyTypeError::new_err(format!("a capsule {shown} was expected, and a {} came", capsule.get_type())));
    };
    let pointer = capsule.pointer_checked(Some(name)).map_err(|_| {
        PyValueError::new_err(format!("a capsule {shown} was expected, and one of another name, or without content, came"))
    })?;
    Ok(pointer.cast())
}

/// Moves a struct out of a capsule.
///
/// # Safety
/// `T` is the struct that the interface puts into capsules of this name.
unsafe fn take<T>(capsule: &Bound<'_, PyAny>, name: &'static CStr, released: T) -> PyResult<T> {
    let pointer = pointer::<T>(capsule, name)?;
    // SAFETY: this function's own condition. The GIL is held, so no other thread takes the struct.
    Ok(unsafe { pointer.as_ptr().replace(released) })
}

/// Clones the struct in a capsule.
///
/// # Safety
/// `T` is the struct that datafusion-python puts into capsules of this name.
unsafe fn clone_of<T: Clone>(capsule: &Bound<'_, PyAny>, name: &'static CStr) -> PyResult<T> {
    let pointer = pointer::<T>(capsule, name)?;
    // SAFETY: this function's own condition. The capsule lives as long as the borrow.
    Ok(unsafe { pointer.as_ref() }.clone())
}

fn used(name: &CStr) -> PyErr {
    let name = name.to_string_lossy();
    PyValueError::new_err(format!("this capsule {name} was used before, and its content is gone: ask its producer for a new one"))
}

/// A capsule with a schema.
pub(crate) fn of_schema<'py>(py: Python<'py>, schema: &Schema) -> PyResult<Bound<'py, PyCapsule>> {
    PyCapsule::new_with_value(py, schema::export_schema(schema).map_err(interface_exception)?, SCHEMA)
}

/// A capsule with a field.
pub(crate) fn of_field<'py>(py: Python<'py>, field: &Field) -> PyResult<Bound<'py, PyCapsule>> {
    PyCapsule::new_with_value(py, schema::export_field(field).map_err(interface_exception)?, SCHEMA)
}

/// A capsule with a host array.
pub(crate) fn of_array(py: Python<'_>, array: FFI_ArrowArray) -> PyResult<Bound<'_, PyCapsule>> {
    PyCapsule::new_with_value(py, array, ARRAY)
}

/// A capsule with a stream of host arrays.
pub(crate) fn of_stream(py: Python<'_>, stream: FFI_ArrowArrayStream) -> PyResult<Bound<'_, PyCapsule>> {
    PyCapsule::new_with_value(py, stream, STREAM)
}

/// A capsule with a device array.
pub(crate) fn of_device_array(py: Python<'_>, array: FFI_ArrowDeviceArray) -> PyResult<Bound<'_, PyCapsule>> {
    PyCapsule::new_with_value(py, array, DEVICE_ARRAY)
}

/// A capsule with a stream of device arrays.
pub(crate) fn of_device_stream(py: Python<'_>, stream: FFI_ArrowDeviceArrayStream) -> PyResult<Bound<'_, PyCapsule>> {
    PyCapsule::new_with_value(py, stream, DEVICE_STREAM)
}

/// The field of `object.__arrow_c_schema__()`.
pub(crate) fn field_of(object: &Bound<'_, PyAny>) -> PyResult<Field> {
    field_in(&object.call_method0("__arrow_c_schema__")?)
}

fn field_in(capsule: &Bound<'_, PyAny>) -> PyResult<Field> {
    // SAFETY: the interface's struct for this name.
    let schema = unsafe { take(capsule, SCHEMA, FFI_ArrowSchema::empty()) }?;
    if schema.release.is_none() {
        return Err(used(SCHEMA));
    }
    // SAFETY: the producer's own schema.
    unsafe { schema::import_field(schema) }.map_err(interface_exception)
}

/// The array of `object.__arrow_c_array__()`.
pub(crate) fn array_of(object: &Bound<'_, PyAny>) -> PyResult<ImportedArray> {
    let (field, capsule) = pair(object.call_method0("__arrow_c_array__")?)?;
    // SAFETY: the interface's struct for this name.
    let array = unsafe { take(&capsule, ARRAY, FFI_ArrowArray::empty()) }?;
    if array.is_released() {
        return Err(used(ARRAY));
    }
    // SAFETY: the producer's own array and schema.
    unsafe { ImportedArray::import(cpu::as_cpu_array(array), &field) }.map_err(interface_exception)
}

/// The array of `object.__arrow_c_device_array__()`.
pub(crate) fn device_array_of(object: &Bound<'_, PyAny>) -> PyResult<ImportedArray> {
    let (field, capsule) = pair(object.call_method0("__arrow_c_device_array__")?)?;
    // SAFETY: the interface's struct for this name.
    let array = unsafe { take(&capsule, DEVICE_ARRAY, FFI_ArrowDeviceArray::empty()) }?;
    if array.is_released() {
        return Err(used(DEVICE_ARRAY));
    }
    // SAFETY: the producer's own array and schema.
    unsafe { ImportedArray::import(array, &field) }.map_err(interface_exception)
}

/// The field and the array's capsule of a tuple.
fn pair(capsules: Bound<'_, PyAny>) -> PyResult<(Field, Bound<'_, PyAny>)> {
    let capsules = capsules.cast_into::<PyTuple>()?;
    if capsules.len() != 2 {
        return Err(PyTypeError::new_err(format!(
            "two capsules were expected, a schema's and an array's, not {}",
            capsules.len()
        )));
    }
    Ok((field_in(&capsules.get_item(0)?)?, capsules.get_item(1)?))
}

/// The stream of `object.__arrow_c_stream__()`.
pub(crate) fn stream_of(object: &Bound<'_, PyAny>) -> PyResult<ArrowDeviceArrayStreamReader> {
    let capsule = object.call_method0("__arrow_c_stream__")?;
    // SAFETY: the interface's struct for this name.
    let stream = unsafe { take(&capsule, STREAM, FFI_ArrowArrayStream::empty()) }?;
    if stream.release.is_none() {
        return Err(used(STREAM));
    }
    // SAFETY: the producer's own stream.
    unsafe { cpu::reader_of_host_stream(stream) }.and_then(guarded).map_err(interface_exception)
}

/// The stream of `object.__arrow_c_device_stream__()`.
pub(crate) fn device_stream_of(object: &Bound<'_, PyAny>) -> PyResult<ArrowDeviceArrayStreamReader> {
    let capsule = object.call_method0("__arrow_c_device_stream__")?;
    // SAFETY: the interface's struct for this name.
    let stream = unsafe { take(&capsule, DEVICE_STREAM, FFI_ArrowDeviceArrayStream::empty()) }?;
    if stream.release.is_none() {
        return Err(used(DEVICE_STREAM));
    }
    // SAFETY: the producer's own stream.
    unsafe { ArrowDeviceArrayStreamReader::try_new(stream) }.and_then(guarded).map_err(interface_exception)
}

/// A capsule with a codec of logical plans.
pub(crate) fn of_logical_codec(py: Python<'_>, codec: FFI_LogicalExtensionCodec) -> PyResult<Bound<'_, PyCapsule>> {
    PyCapsule::new_with_value(py, codec, LOGICAL_CODEC)
}

/// A capsule with a codec of physical plans.
pub(crate) fn of_physical_codec(py: Python<'_>, codec: FFI_PhysicalExtensionCodec) -> PyResult<Bound<'_, PyCapsule>> {
    PyCapsule::new_with_value(py, codec, PHYSICAL_CODEC)
}

/// A capsule with a query planner.
pub(crate) fn of_planner(py: Python<'_>, planner: FFI_QueryPlanner) -> PyResult<Bound<'_, PyCapsule>> {
    PyCapsule::new_with_value(py, planner, QUERY_PLANNER)
}

/// The codec of logical plans in a capsule. The package has checked datafusion's version.
pub(crate) fn logical_codec_of(capsule: &Bound<'_, PyAny>) -> PyResult<FFI_LogicalExtensionCodec> {
    // SAFETY: the struct of this name, by datafusion-python's documentation.
    unsafe { clone_of(capsule, LOGICAL_CODEC) }
}

/// The codec of physical plans in a capsule. The package has checked datafusion's version.
pub(crate) fn physical_codec_of(capsule: &Bound<'_, PyAny>) -> PyResult<FFI_PhysicalExtensionCodec> {
    // SAFETY: the struct of this name, by datafusion-python's documentation.
    unsafe { clone_of(capsule, PHYSICAL_CODEC) }
}
