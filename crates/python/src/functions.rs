// SPDX-License-Identifier: Apache-2.0
//! SQL functions that Python computes, on the host. EXPLAIN gives that as the reason.

use std::fmt;
use std::sync::Arc;

use arrow_device::cpu;
use datafusion::arrow::array::{Array, ArrayRef};
use datafusion::arrow::datatypes::DataType;
use datafusion::common::{Result, ScalarValue, exec_err, plan_err};
use datafusion::logical_expr::{Accumulator, AggregateUDF, ColumnarValue, ScalarUDF, Volatility, create_udaf, create_udf};
use pyo3::prelude::*;
use pyo3::types::{PyCapsule, PyList, PyTuple};

use crate::calls::calling;
use crate::capsule;
use crate::errors::interface_exception;

/// An array in host memory, for Python.
#[pyclass(frozen, module = "devicefusion._devicefusion")]
pub(crate) struct HostArray(ArrayRef);

#[pymethods]
impl HostArray {
    fn __len__(&self) -> usize {
        self.0.len()
    }

    #[pyo3(signature = (requested_schema=None))]
    fn __arrow_c_array__<'py>(
        &self,
        py: Python<'py>,
        requested_schema: Option<Bound<'py, PyAny>>,
    ) -> PyResult<(Bound<'py, PyCapsule>, Bound<'py, PyCapsule>)> {
        drop(requested_schema);
        let array = cpu::export_array(&self.0).map_err(interface_exception)?;
        Ok((capsule::of_field(py, &cpu::field_of(&self.0))?, capsule::of_array(py, array.array)?))
    }
}

/// The volatility of a name.
pub(crate) fn volatility(name: &str) -> Result<Volatility> {
    match name {
        "immutable" => Ok(Volatility::Immutable),
        "stable" => Ok(Volatility::Stable),
        "volatile" => Ok(Volatility::Volatile),
        other => plan_err!("'{other}' is no volatility: there are immutable, stable and volatile"),
    }
}

/// A scalar function. `function` gets arrays of one length, and gives an object with
/// `__arrow_c_array__`.
pub(crate) fn scalar(
    name: &str,
    function: Py<PyAny>,
    inputs: Vec<DataType>,
    output: DataType,
    volatility: Volatility,
) -> ScalarUDF {
    let (returned, shown) = (output.clone(), name.to_owned());
    let call = move |arguments: &[ColumnarValue]| {
        // Without arguments it does not know the number of rows.
        let is_constant = arguments.is_empty();
        let arguments = ColumnarValue::values_to_arrays(arguments)?;
        let rows = arguments.first().map_or(1, |array| array.len());
        let values = calling(|py| {
            let arguments = arguments.into_iter().map(|array| Bound::new(py, HostArray(array)));
            let arguments = PyTuple::new(py, arguments.collect::<PyResult<Vec<_>>>()?)?;
            host_array(&function.bind(py).call1(arguments)?)
        })?;
        check(&shown, &values, &returned, rows)?;
        match is_constant {
            true => Ok(ColumnarValue::Scalar(ScalarValue::try_from_array(&values, 0)?)),
            false => Ok(ColumnarValue::Array(values)),
        }
    };
    create_udf(name, inputs, output, volatility, Arc::new(call))
}

/// The array of an object with `__arrow_c_array__`.
fn host_array(object: &Bound<'_, PyAny>) -> PyResult<ArrayRef> {
    cpu::import_array(capsule::array_of(object)?).map_err(interface_exception)
}

fn check(function: &str, values: &dyn Array, data_type: &DataType, rows: usize) -> Result<()> {
    if values.data_type() != data_type {
        return exec_err!("the function {function} is to give {data_type}, and gave {}", values.data_type());
    }
    if values.len() != rows {
        return exec_err!("the function {function} is to give {rows} values, and gave {}", values.len());
    }
    Ok(())
}

/// An aggregate. `make` makes an accumulator with the methods `update`, `merge`, `state` and
/// `evaluate`; values come and go as arrays.
pub(crate) fn aggregate(
    name: &str,
    make: Py<PyAny>,
    inputs: Vec<DataType>,
    output: DataType,
    states: Vec<DataType>,
    volatility: Volatility,
) -> AggregateUDF {
    let (name_in_errors, returned, state_types) = (Arc::<str>::from(name), output.clone(), Arc::new(states));
    let kept = Arc::clone(&state_types);
    let accumulator = move |_: datafusion::logical_expr::function::AccumulatorArgs<'_>| {
        let state = calling(|py| make.call0(py))?;
        let (function, output, states) = (Arc::clone(&name_in_errors), returned.clone(), Arc::clone(&kept));
        Ok(Box::new(PythonAccumulator { function, state, output, states }) as Box<dyn Accumulator>)
    };
    create_udaf(name, inputs, Arc::new(output), volatility, Arc::new(accumulator), state_types)
}

/// An accumulator of Python.
struct PythonAccumulator {
    function: Arc<str>,
    state: Py<PyAny>,
    output: DataType,
    states: Arc<Vec<DataType>>,
}

impl fmt::Debug for PythonAccumulator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PythonAccumulator").field("function", &self.function).finish_non_exhaustive()
    }
}

impl PythonAccumulator {
    fn call(&self, method: &str, arrays: &[ArrayRef]) -> Result<()> {
        calling(|py| {
            let arrays = arrays.iter().map(|array| Bound::new(py, HostArray(Arc::clone(array))));
            let arrays = PyTuple::new(py, arrays.collect::<PyResult<Vec<_>>>()?)?;
            self.state.bind(py).call_method1(method, arrays)?;
            Ok(())
        })
    }

    fn value(&self, array: &ArrayRef, data_type: &DataType) -> Result<ScalarValue> {
        check(&self.function, array, data_type, 1)?;
        ScalarValue::try_from_array(array, 0)
    }
}

impl Accumulator for PythonAccumulator {
    fn update_batch(&mut self, values: &[ArrayRef]) -> Result<()> {
        self.call("update", values)
    }

    fn merge_batch(&mut self, states: &[ArrayRef]) -> Result<()> {
        self.call("merge", states)
    }

    fn state(&mut self) -> Result<Vec<ScalarValue>> {
        let arrays = calling(|py| {
            let states = self.state.bind(py).call_method0("state")?.cast_into::<PyList>()?;
            states.iter().map(|state| host_array(&state)).collect::<PyResult<Vec<_>>>()
        })?;
        if arrays.len() != self.states.len() {
            return exec_err!("the state of {} has {} values, and {} types", self.function, arrays.len(), self.states.len());
        }
        arrays.iter().zip(self.states.iter()).map(|(array, data_type)| self.value(array, data_type)).collect()
    }

    fn evaluate(&mut self) -> Result<ScalarValue> {
        let value = calling(|py| host_array(&self.state.bind(py).call_method0("evaluate")?))?;
        self.value(&value, &self.output)
    }

    fn size(&self) -> usize {
        size_of_val(self)
    }
}
