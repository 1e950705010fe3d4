// SPDX-License-Identifier: Apache-2.0
//! Table functions: `SELECT * FROM f(…)` over constants.
//!
//! The call is made when the query is planned: only the result tells the widths of fixed-size
//! lists. Rows stay on a device that the library shares (`resident.rs`).

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, RecordBatch};
use arrow::datatypes::{DataType, Field, Schema};
use datafusion::catalog::{TableFunctionArgs, TableFunctionImpl, TableProvider};
use datafusion::common::{Result, ScalarValue, internal_err, plan_err};
use datafusion::datasource::MemTable;
use datafusion::logical_expr::Expr;
use futhark::Value;

use crate::futhark::convert::{cast_argument, column, nulls_in, row_of, to_futhark, value_at};
use crate::futhark::function::Function;
use crate::futhark::parameter::Parameter;
use crate::futhark::resident::{ResidentResult, resident_device};
use crate::futhark::returns::Returns;

/// An entry point as a table function.
#[derive(Debug)]
pub(crate) struct FutharkTable {
    function: Function,
}

impl FutharkTable {
    /// The table function of an entry point.
    pub fn new(function: Function) -> FutharkTable {
        FutharkTable { function }
    }

    pub fn function(&self) -> &Function {
        &self.function
    }

    fn argument(&self, parameter: &Parameter, value: &ScalarValue) -> Result<Value> {
        let (function, name) = (&self.function, self.function.name());
        let null = || plan_err!("the argument {} of {name} is NULL, or has NULLs: Futhark has none", parameter.name);
        let values = if parameter.is_array { elements(value) } else { Some(value.to_array()?) };
        let Some(values) = values else { return null() };
        let values = cast_argument(function, parameter, &values)?;
        if nulls_in(parameter, &values).is_some() {
            return null();
        }
        let value = match parameter.is_array {
            true => to_futhark(function, parameter, &values),
            false => value_at(function, parameter, &values, 0),
        };
        value.map_err(|error| function.failed(error))
    }

    /// Names and values of the columns.
    fn columns(&self, results: Vec<Value>) -> Result<Vec<(String, ArrayRef)>> {
        let function = &self.function;
        let Returns::Table(columns) = function.returns() else { return internal_err!("{} gives no table", function.name()) };
        let values = function.fields_of(results)?;
        let row_or_column = |(parameter, value): (&Parameter, &Value)| match parameter.is_array {
            true => column(function, value, parameter),
            false => row_of(function, value, &parameter.kind, &parameter.data_type),
        };
        let arrays = columns.iter().zip(&values).map(row_or_column).collect::<Result<Vec<_>>>()?;
        function.same_length(columns, &arrays.iter().map(|array| array.len()).collect::<Vec<_>>())?;
        Ok(columns.iter().map(|column| column.name.clone()).zip(arrays).collect())
    }
}

impl TableFunctionImpl for FutharkTable {
    fn call_with_args(&self, args: TableFunctionArgs) -> Result<Arc<dyn TableProvider>> {
        let function = &self.function;
        let mut constants = Vec::new();
        for (position, argument) in args.exprs().iter().enumerate() {
            let Expr::Literal(value, _) = argument else {
                return plan_err!("argument {} of {} must be a constant, not {argument}", position + 1, function.name());
            };
            constants.push(value);
        }
        let types: Vec<DataType> = constants.iter().map(|value| element_type(value)).collect();
        function.check(types.iter())?;
        let call = || {
            let arguments = function.parameters().iter().zip(&constants);
            let arguments = arguments.map(|(parameter, value)| {
                let is_list = elements(value).is_some();
                if is_list != parameter.is_array && !value.is_null() {
                    let wanted = if parameter.is_array { "a list" } else { "one value" };
                    return plan_err!("the argument {} of {} must be {wanted}", parameter.name, function.name());
                }
                self.argument(parameter, value)
            });
            function.call(arguments.collect::<Result<_>>()?).map_err(|error| function.failed(error))
        };
        let device = resident_device(function, args.session());
        let results = function.context().locked(call)?;
        if let Some((runtime, types)) = device {
            return Ok(Arc::new(ResidentResult::try_new(function, results, &runtime, types)?));
        }
        let columns = self.columns(results)?;
        let fields: Vec<Field> =
            columns.iter().map(|(name, column)| Field::new(name, column.data_type().clone(), false)).collect();
        let schema = Arc::new(Schema::new(fields));
        let batch = RecordBatch::try_new(Arc::clone(&schema), columns.into_iter().map(|(_, column)| column).collect())?;
        Ok(Arc::new(MemTable::try_new(schema, vec![vec![batch]])?))
    }
}

/// The elements of a list.
fn elements(value: &ScalarValue) -> Option<ArrayRef> {
    match value {
        ScalarValue::List(list) => list.is_valid(0).then(|| list.value(0)),
        ScalarValue::LargeList(list) => list.is_valid(0).then(|| list.value(0)),
        ScalarValue::FixedSizeList(list) => list.is_valid(0).then(|| list.value(0)),
        _ => None,
    }
}

/// The type of a constant, or of its elements if it is a list.
fn element_type(value: &ScalarValue) -> DataType {
    match value.data_type() {
        DataType::List(item) | DataType::LargeList(item) | DataType::FixedSizeList(item, _) => item.data_type().clone(),
        data_type => data_type,
    }
}
