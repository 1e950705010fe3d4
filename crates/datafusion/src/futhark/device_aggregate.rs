// SPDX-License-Identifier: Apache-2.0
//! Aggregates of libraries that share the device. One call gets all rows.
//!
//! FILTER becomes NULL arguments, and the library gets no row with a NULL argument.

use std::sync::Arc;

use arrow::array::RecordBatch;
use arrow::datatypes::{Field, Schema, SchemaRef};
use columnar::ColumnType;
use datafusion::common::{Result, ScalarValue};
use datafusion::logical_expr::AggregateUDF;
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_expr::expressions::CaseExpr;
use device::Buffer;
use futhark::Scalar;
use kernels::expr::Expr;

use super::device_call::{argument, as_argument, literal};
use crate::expr::{AggregateCall, supported};
use crate::futhark::aggregate::FutharkAggregate;
use crate::futhark::convert::constant;
use crate::futhark::function::Function;
use crate::futhark::parameter::ValueKind;
use crate::futhark::reasons::{reason, support_of_values};
use crate::futhark::returns::{Returns, ScalarReturn};
use crate::reason::Reason;

/// An aggregate of a library that shares the device.
#[derive(Debug)]
pub(crate) struct DeviceAggregate {
    function: Function,
    scalar: ScalarReturn,
    /// Array arguments.
    columns: Vec<Arc<dyn PhysicalExpr>>,
    /// Constant arguments. `None` if one is NULL: the result is NULL then.
    constants: Option<Vec<Scalar>>,
}

impl DeviceAggregate {
    /// The aggregate of `call`, whose expressions are over `schema`. An error is the reason of the
    /// host.
    pub fn try_new(call: &AggregateCall, schema: &SchemaRef) -> std::result::Result<DeviceAggregate, Reason> {
        let Some(function) = function_of(call.function.fun()) else {
            return Err(format!("{} is of no library", call.function.name()));
        };
        let Returns::Aggregate(scalar) = function.returns() else {
            return Err(format!("{} is no aggregate", function.name()));
        };
        support_of_values(function, &scalar.data_type)?;
        if call.function.is_distinct() || !call.function.order_bys().is_empty() {
            return Err(reason(function, "it takes neither DISTINCT nor ORDER BY"));
        }
        let (mut columns, mut constants) = (Vec::new(), Some(Vec::new()));
        for (parameter, argument_expr) in function.parameters().iter().zip(&call.arguments) {
            let name = &parameter.name;
            if !parameter.is_array {
                let Some(value) = literal(argument_expr) else {
                    return Err(reason(function, &format!("its argument {name} is no constant")));
                };
                let value = constant(function, parameter, value).map_err(|error| reason(function, &error.to_string()))?;
                constants = constants.zip(value).map(|(mut constants, value)| {
                    constants.push(value);
                    constants
                });
                continue;
            }
            let mut column = as_argument(argument_expr, &parameter.data_type, schema);
            if let Some(filter) = &call.filter {
                let kept = CaseExpr::try_new(None, vec![(Arc::clone(filter), column)], None);
                column = Arc::new(kept.map_err(|error| error.to_string())?);
            }
            supported(&column, schema).map_err(|why| reason(function, &format!("its argument {name}: {why}")))?;
            columns.push(column);
        }
        Ok(DeviceAggregate { function: function.clone(), scalar: scalar.clone(), columns, constants })
    }

    pub fn function(&self) -> &Function {
        &self.function
    }

    /// Array arguments, for messages of failed rows.
    pub fn columns(&self) -> &[Arc<dyn PhysicalExpr>] {
        &self.columns
    }

    /// Array arguments over `schema`, for kernels.
    pub fn arguments(&self, schema: &Schema) -> std::result::Result<Vec<(Expr, Field)>, Reason> {
        self.columns.iter().map(|column| argument(column, schema)).collect()
    }

    /// Bytes per value of each array argument.
    pub fn widths(&self) -> impl Iterator<Item = usize> {
        self.function.parameters().iter().filter(|parameter| parameter.is_array).map(|parameter| match parameter.kind {
            ValueKind::Values(primitive) => primitive.bytes(),
            ValueKind::Records(..) | ValueKind::Sums(_) | ValueKind::Opaque(_) | ValueKind::Lists(_) => 0,
        })
    }

    /// For each array argument: whether the library overwrites it.
    pub fn consumes(&self) -> impl Iterator<Item = bool> {
        self.function.consumes()
    }

    /// Whether the library is called; the result is NULL without a call.
    pub fn is_called(&self, rows: usize) -> bool {
        self.constants.is_some() && rows > 0
    }

    /// Calls the library with `rows` values of each array argument, and waits for its result.
    /// Blocks the thread.
    ///
    /// # Errors
    /// The library's.
    pub fn call(&self, buffers: Vec<Buffer>, rows: usize) -> Result<ScalarValue> {
        let function = &self.function;
        let results = function.call_over_buffers(buffers, rows, self.constants.as_deref().unwrap_or_default())?;
        function.value_of(&self.scalar, results)
    }

    /// The result without a call.
    pub fn missing(&self) -> Result<ScalarValue> {
        ScalarValue::try_from(&self.scalar.data_type)
    }
}

/// One row of results.
pub(crate) fn row_of(values: Vec<ScalarValue>, schema: &SchemaRef) -> Result<RecordBatch> {
    let columns = values.iter().map(|value| value.to_array_of_size(1)).collect::<Result<Vec<_>>>()?;
    Ok(RecordBatch::try_new(Arc::clone(schema), columns)?)
}

/// Physical types of the results.
pub(crate) fn types_of(schema: &Schema) -> Option<Vec<ColumnType>> {
    schema.fields().iter().map(|field| ColumnType::of(field.data_type(), true)).collect()
}

/// The entry point of an aggregate whose library shares the device.
pub(crate) fn function_of(function: &AggregateUDF) -> Option<&Function> {
    let function = function.inner().downcast_ref::<FutharkAggregate>()?.function();
    function.context().device().map(|_| function)
}
