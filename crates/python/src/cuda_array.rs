// SPDX-License-Identifier: Apache-2.0
//! Arrays of CUDA libraries without DLPack, by the
//! [CUDA Array Interface](https://numba.readthedocs.io/en/stable/cuda/cuda_array_interface.html).

use device::driver::RawQueue;
use device::{Context, DriverKind};
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyDictMethods};

use crate::errors::device_exception;
use crate::tensor::{Device, ElementType, Tensor, contiguous, one_dimension};

const ATTRIBUTE: &str = "__cuda_array_interface__";

/// Whether an object is such an array.
pub(crate) fn is(object: &Bound<'_, PyAny>) -> PyResult<bool> {
    object.hasattr(ATTRIBUTE)
}

/// Takes an array. Later work of the session waits for the work of the array's stream.
pub(crate) fn tensor_of(object: &Bound<'_, PyAny>, context: &Context) -> PyResult<Tensor> {
    if context.info().driver != DriverKind::Cuda {
        return Err(PyValueError::new_err(format!(
            "the array is in CUDA's memory, and the session's device is {}: copy it to the host first",
            context.info().label()
        )));
    }
    let interface = object.getattr(ATTRIBUTE)?.cast_into::<PyDict>()?;
    if !field(&interface, "mask")?.is_none() {
        return Err(PyValueError::new_err("the array has a mask: a tensor has no NULLs"));
    }
    let shape: Vec<usize> = required(&interface, "shape")?.extract()?;
    one_dimension(i32::try_from(shape.len()).unwrap_or(i32::MAX))?;
    let len = shape.first().copied().unwrap_or_default();
    let typestr: String = required(&interface, "typestr")?.extract()?;
    let Some(element) = ElementType::of_typestr(&typestr) else {
        return Err(PyValueError::new_err(format!("SQL has no type for elements of {typestr}: convert them first")));
    };
    if let Some(strides) = field(&interface, "strides")?.extract::<Option<Vec<i64>>>()? {
        contiguous(len, strides.first().copied().unwrap_or_default(), element.bytes(), "bytes")?;
    }
    let (start, _): (usize, bool) = required(&interface, "data")?.extract()?;
    follow(&interface, context)?;
    Tensor::of_object(object, Device::cuda(context.info().ordinal), element, len, start)
}

/// Makes the session wait for the stream of the array, if it has one.
fn follow(interface: &Bound<'_, PyDict>, context: &Context) -> PyResult<()> {
    match field(interface, "stream")?.extract::<Option<u64>>()? {
        None => Ok(()),
        // It would stand for two streams.
        Some(0) => Err(PyValueError::new_err("the stream 0 of the array is ambiguous: it is 1, 2 or a handle")),
        // The numbers of CUDA's two default streams are their handles.
        // SAFETY: the producer's stream is live, by the interface.
        Some(stream) => unsafe { context.shared_queue_follows(RawQueue(stream)) }.map_err(device_exception),
    }
}

/// A value of the interface; None if it is absent.
fn field<'py>(interface: &Bound<'py, PyDict>, name: &str) -> PyResult<Bound<'py, PyAny>> {
    Ok(interface.get_item(name)?.unwrap_or_else(|| interface.py().None().into_bound(interface.py())))
}

fn required<'py>(interface: &Bound<'py, PyDict>, name: &str) -> PyResult<Bound<'py, PyAny>> {
    let missing = || PyTypeError::new_err(format!("{ATTRIBUTE} has no {name:?}"));
    interface.get_item(name)?.ok_or_else(missing)
}
