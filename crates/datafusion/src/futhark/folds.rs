// SPDX-License-Identifier: Apache-2.0
//! Aggregates within an offloaded subplan: of libraries that share the device, called once for all
//! rows.
//!
//! Rows that a FILTER leaves out have NULL arguments, and the library sees no row with one.

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

use super::calls;
use crate::expr::{AggregateCall, lower};
use crate::futhark::aggregate::FutharkAggregate;
use crate::futhark::convert::constant;
use crate::futhark::function::Function;
use crate::futhark::parameter::Of;
use crate::futhark::reasons::{reason, support_of_values};
use crate::futhark::returns::{One, Returns};
use crate::reason::Reason;

/// An aggregate of a library that shares the device.
#[derive(Debug)]
pub(crate) struct Fold {
    function: Function,
    one: One,
    /// The arguments that are arrays.
    columns: Vec<Arc<dyn PhysicalExpr>>,
    /// Those that are one value for all rows; `None` where one is NULL, and with it the result.
    constants: Option<Vec<Scalar>>,
}

impl Fold {
    /// The aggregate of `call`, whose expressions are over `schema`, or why it stays on the host.
    pub fn try_new(call: &AggregateCall, schema: &SchemaRef) -> std::result::Result<Fold, Reason> {
        let Some(function) = function_of(call.function.fun()) else {
            return Err(format!("{} is of no library", call.function.name()));
        };
        let Returns::Aggregate(one) = function.returns() else {
            return Err(format!("{} is no aggregate", function.name()));
        };
        support_of_values(function, &one.data_type)?;
        if call.function.is_distinct() || !call.function.order_bys().is_empty() {
            return Err(reason(function, "it takes neither DISTINCT nor ORDER BY"));
        }
        let (mut columns, mut constants) = (Vec::new(), Some(Vec::new()));
        for (parameter, argument) in function.parameters().iter().zip(&call.arguments) {
            let name = &parameter.name;
            if !parameter.is_array {
                let Some(value) = calls::literal(argument) else {
                    return Err(reason(function, &format!("its argument {name} is no constant")));
                };
                let value = constant(function, parameter, value).map_err(|error| reason(function, &error.to_string()))?;
                constants = constants.zip(value).map(|(mut constants, value)| {
                    constants.push(value);
                    constants
                });
                continue;
            }
            let mut column = calls::as_argument(argument, &parameter.data_type, schema);
            if let Some(filter) = &call.filter {
                let kept = CaseExpr::try_new(None, vec![(Arc::clone(filter), column)], None);
                column = Arc::new(kept.map_err(|error| error.to_string())?);
            }
            lower(&column, schema).map_err(|why| reason(function, &format!("its argument {name}: {why}")))?;
            columns.push(column);
        }
        Ok(Fold { function: function.clone(), one: one.clone(), columns, constants })
    }

    /// The function.
    pub fn function(&self) -> &Function {
        &self.function
    }

    /// The arguments that are arrays, for messages of rows that fail.
    pub fn columns(&self) -> &[Arc<dyn PhysicalExpr>] {
        &self.columns
    }

    /// The arguments that are arrays over `schema`, as kernels compute them.
    pub fn arguments(&self, schema: &Schema) -> std::result::Result<Vec<(Expr, Field)>, Reason> {
        self.columns.iter().map(|column| calls::argument(column, schema)).collect()
    }

    /// Bytes of a value of each of these.
    pub fn widths(&self) -> impl Iterator<Item = usize> {
        self.function.parameters().iter().filter(|parameter| parameter.is_array).map(|parameter| match parameter.of {
            Of::Values(primitive) => primitive.bytes(),
            Of::Records(..) | Of::Sums(_) | Of::Opaque(_) | Of::Lists(_) => 0,
        })
    }

    /// Of each of these, whether the library overwrites it.
    pub fn consumes(&self) -> impl Iterator<Item = bool> {
        self.function.consumes()
    }

    /// Whether the library is called at all; without, the result is NULL.
    pub fn is_called(&self, rows: usize) -> bool {
        self.constants.is_some() && rows > 0
    }

    /// Calls the library with a value of each argument for each of `rows` rows, which are there,
    /// and waits for its result. Blocks.
    ///
    /// # Errors
    /// What the library says.
    pub fn call(&self, buffers: Vec<Buffer>, rows: usize) -> Result<ScalarValue> {
        let function = &self.function;
        let results = function.call_over_buffers(buffers, rows, self.constants.as_deref().unwrap_or_default())?;
        function.value_of(&self.one, results)
    }

    /// The result without a call.
    pub fn missing(&self) -> Result<ScalarValue> {
        ScalarValue::try_from(&self.one.data_type)
    }
}

/// One row of results.
pub(crate) fn row_of(values: Vec<ScalarValue>, schema: &SchemaRef) -> Result<RecordBatch> {
    let columns = values.iter().map(|value| value.to_array_of_size(1)).collect::<Result<Vec<_>>>()?;
    Ok(RecordBatch::try_new(Arc::clone(schema), columns)?)
}

/// The types of their columns on the device.
pub(crate) fn types_of(schema: &Schema) -> Option<Vec<ColumnType>> {
    schema.fields().iter().map(|field| ColumnType::of(field.data_type(), true)).collect()
}

/// The entry point that an aggregate is, where its library shares the device.
pub(crate) fn function_of(function: &AggregateUDF) -> Option<&Function> {
    let function = function.inner().downcast_ref::<FutharkAggregate>()?.function();
    function.context().device().map(|_| function)
}
