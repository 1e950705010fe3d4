// SPDX-License-Identifier: Apache-2.0
//! Aggregates: one call gets all rows of a group.
//!
//! Rows with a NULL argument are skipped. Without rows the result is NULL. Parameters that are no
//! arrays take constants.

use std::mem::size_of_val;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, BooleanArray, LargeListArray, new_empty_array};
use arrow::buffer::OffsetBuffer;
use arrow::compute::{concat, filter};
use arrow::datatypes::{DataType, Field, FieldRef};
use datafusion::common::{Result, ScalarValue, internal_err, plan_err};
use datafusion::logical_expr::function::{AccumulatorArgs, StateFieldsArgs};
use datafusion::logical_expr::utils::format_state_name;
use datafusion::logical_expr::{Accumulator, AggregateUDFImpl, Documentation, Signature, Volatility};
use datafusion::physical_expr::expressions::Literal;
use futhark::Scalar;

use crate::futhark::convert::{cast_argument, constant, nulls_of};
use crate::futhark::function::Function;
use crate::futhark::parameter::Parameter;
use crate::futhark::returns::Returns;

/// An entry point as an aggregate.
#[derive(Debug, PartialEq, Eq, Hash)]
pub(crate) struct FutharkAggregate {
    function: Function,
    signature: Signature,
}

impl FutharkAggregate {
    /// The aggregate of an entry point.
    pub fn new(function: Function, volatility: Volatility) -> FutharkAggregate {
        let signature = function.sql_signature(volatility);
        FutharkAggregate { function, signature }
    }

    pub fn function(&self) -> &Function {
        &self.function
    }
}

impl AggregateUDFImpl for FutharkAggregate {
    fn name(&self) -> &str {
        self.function.name()
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, types: &[DataType]) -> Result<DataType> {
        self.function.check(types.iter())?;
        match self.function.returns() {
            Returns::Aggregate(scalar) => Ok(scalar.data_type.clone()),
            _ => internal_err!("{} is no aggregate", self.name()),
        }
    }

    fn accumulator(&self, args: AccumulatorArgs) -> Result<Box<dyn Accumulator>> {
        let name = self.name();
        if args.is_distinct || !args.order_bys.is_empty() {
            return plan_err!("{name} is a Futhark function, which takes neither DISTINCT nor ORDER BY");
        }
        let mut constants = Vec::new();
        for (parameter, argument) in self.function.parameters().iter().zip(args.exprs) {
            if parameter.is_array {
                continue;
            }
            let Some(literal) = argument.downcast_ref::<Literal>() else {
                return plan_err!("the argument {} of {name} is one value for all rows: pass a constant", parameter.name);
            };
            constants.push(constant(&self.function, parameter, literal.value())?);
        }
        let columns = vec![Vec::new(); columns_of(&self.function).count()];
        Ok(Box::new(GroupRows { function: self.function.clone(), constants, columns, rows: 0, bytes: 0 }))
    }

    /// A list of values for each array parameter.
    fn state_fields(&self, args: StateFieldsArgs) -> Result<Vec<FieldRef>> {
        let field = |(_, parameter): (usize, &Parameter)| {
            let list = DataType::LargeList(list_field(parameter));
            Arc::new(Field::new(format_state_name(args.name, &parameter.name), list, true))
        };
        Ok(columns_of(&self.function).map(field).collect())
    }

    fn coerce_types(&self, types: &[DataType]) -> Result<Vec<DataType>> {
        Ok(types.to_vec())
    }

    fn documentation(&self) -> Option<&Documentation> {
        Some(self.function.documentation())
    }
}

/// Array parameters, with their positions.
fn columns_of(function: &Function) -> impl Iterator<Item = (usize, &Parameter)> {
    function.parameters().iter().enumerate().filter(|(_, parameter)| parameter.is_array)
}

fn list_field(parameter: &Parameter) -> FieldRef {
    Arc::new(Field::new_list_field(parameter.data_type.clone(), true))
}

/// The rows of a group.
#[derive(Debug)]
struct GroupRows {
    function: Function,
    /// Constant arguments; `None` is NULL.
    constants: Vec<Option<Scalar>>,
    /// Chunks of rows for each array parameter.
    columns: Vec<Vec<ArrayRef>>,
    rows: usize,
    /// Bytes of the rows, without other rows of their buffers.
    bytes: usize,
}

impl GroupRows {
    fn push(&mut self, columns: Vec<ArrayRef>) -> Result<()> {
        let rows = columns.first().map_or(0, |column| column.len());
        if rows == 0 {
            return Ok(());
        }
        self.rows += rows;
        for (chunks, column) in self.columns.iter_mut().zip(columns) {
            self.bytes += column.to_data().get_slice_memory_size()?;
            chunks.push(column);
        }
        Ok(())
    }

    /// The rows of each column as one array.
    fn joined(&self) -> Result<Vec<ArrayRef>> {
        let joined = |(chunks, (_, parameter)): (&Vec<ArrayRef>, (usize, &Parameter))| match chunks.as_slice() {
            [] => Ok(new_empty_array(&parameter.data_type)),
            chunks => Ok(concat(&chunks.iter().map(|chunk| chunk.as_ref()).collect::<Vec<_>>())?),
        };
        self.columns.iter().zip(columns_of(&self.function)).map(joined).collect()
    }
}

impl Accumulator for GroupRows {
    fn update_batch(&mut self, values: &[ArrayRef]) -> Result<()> {
        let column = |(position, parameter): (usize, &Parameter)| match values.get(position) {
            Some(values) => cast_argument(&self.function, parameter, values),
            None => internal_err!("{} has no argument {}", self.function.name(), parameter.name),
        };
        let mut columns: Vec<ArrayRef> = columns_of(&self.function).map(column).collect::<Result<_>>()?;
        if let Some(nulls) = nulls_of(&columns) {
            let valid = BooleanArray::new(nulls.inner().clone(), None);
            columns = columns.iter().map(|column| filter(column, &valid)).collect::<std::result::Result<_, _>>()?;
        }
        self.push(columns)
    }

    fn evaluate(&mut self) -> Result<ScalarValue> {
        let Returns::Aggregate(scalar) = self.function.returns() else {
            return internal_err!("{} is no aggregate", self.function.name());
        };
        let constants: Option<Vec<Scalar>> = self.constants.iter().copied().collect();
        let (Some(constants), true) = (constants, self.rows > 0) else {
            return ScalarValue::try_from(&scalar.data_type);
        };
        let function = &self.function;
        let results = function.call_over(&self.joined()?, &constants)?;
        function.value_of(scalar, results)
    }

    fn size(&self) -> usize {
        size_of_val(self) + self.bytes
    }

    fn state(&mut self) -> Result<Vec<ScalarValue>> {
        let list = |(values, (_, parameter)): (ArrayRef, (usize, &Parameter))| {
            let list = LargeListArray::new(list_field(parameter), OffsetBuffer::from_lengths([values.len()]), values, None);
            ScalarValue::LargeList(Arc::new(list))
        };
        Ok(self.joined()?.into_iter().zip(columns_of(&self.function)).map(list).collect())
    }

    fn merge_batch(&mut self, states: &[ArrayRef]) -> Result<()> {
        let lists: Vec<&LargeListArray> = states.iter().filter_map(|state| state.as_list_opt::<i64>()).collect();
        for row in 0..lists.first().map_or(0, |list| list.len()) {
            self.push(lists.iter().map(|list| list.value(row)).collect())?;
        }
        Ok(())
    }
}
