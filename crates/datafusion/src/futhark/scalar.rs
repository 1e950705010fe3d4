// SPDX-License-Identifier: Apache-2.0
//! Scalar functions: a call for all rows of a batch, or a call for each row.
//!
//! Rows with a NULL argument give NULL. The library does not get them, unless it takes masks.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, BooleanArray, UInt64Array, new_empty_array, new_null_array};
use arrow::buffer::NullBuffer;
use arrow::compute::kernels::zip::zip;
use arrow::compute::{cast, filter, is_not_null, not, nullif, take};
use arrow::datatypes::{DataType, Field, FieldRef};
use datafusion::common::{Result, ScalarValue, exec_err, internal_err};
use datafusion::logical_expr::{
    ColumnarValue, Documentation, ReturnFieldArgs, ScalarFunctionArgs, ScalarUDFImpl, Signature, Volatility,
};

use crate::futhark::convert::{cast_argument, constant, from_futhark, nulls_in, nulls_of, struct_column, value_at};
use crate::futhark::function::Function;
use crate::futhark::parameter::Nulls;
use crate::futhark::returns::{Returns, ScalarReturn};

/// An entry point as a scalar function.
#[derive(Debug, PartialEq, Eq, Hash)]
pub(crate) struct FutharkScalar {
    function: Function,
    signature: Signature,
}

impl FutharkScalar {
    /// The scalar function of an entry point.
    pub fn new(function: Function, volatility: Volatility) -> FutharkScalar {
        let signature = function.sql_signature(volatility);
        FutharkScalar { function, signature }
    }

    pub fn function(&self) -> &Function {
        &self.function
    }

    pub fn volatility(&self) -> Volatility {
        self.signature.volatility
    }

    /// One call for all rows: some arguments are columns, the others are the same for all
    /// rows.
    fn call_for_all(&self, args: &[ColumnarValue], rows: usize, to: &DataType) -> Result<ArrayRef> {
        let function = &self.function;
        let (mut columns, mut constants) = (Vec::new(), Vec::new());
        for (parameter, argument) in function.parameters().iter().zip(args) {
            match argument {
                argument if parameter.is_array => {
                    columns.push(cast_argument(function, parameter, &argument.to_array(rows)?)?);
                }
                ColumnarValue::Scalar(value) => match constant(function, parameter, value)? {
                    Some(scalar) => constants.push(scalar),
                    None => return Ok(new_null_array(to, rows)),
                },
                ColumnarValue::Array(_) => {
                    let (parameter, name) = (&parameter.name, function.name());
                    return exec_err!("the argument {parameter} of {name} is one value for all rows: pass a constant");
                }
            }
        }
        let nulls = match function.nulls() {
            Nulls::Strict => nulls_of(&columns),
            Nulls::Mask => {
                columns = columns.iter().map(with_mask).collect::<Result<Vec<_>>>()?.concat();
                None
            }
        };
        let kept = nulls.as_ref().map_or(rows, |nulls| rows - nulls.null_count());
        if kept == 0 {
            return Ok(new_null_array(to, rows));
        }
        if let Some(nulls) = &nulls {
            let valid = BooleanArray::new(nulls.inner().clone(), None);
            columns = columns.iter().map(|column| filter(column, &valid)).collect::<std::result::Result<_, _>>()?;
        }
        let results = function.call_over(&columns, &constants)?;
        let result = if let Returns::Struct(fields, _) = function.returns() {
            let structs = struct_column(function, &function.fields_of(results)?, fields)?;
            function.check_rows(structs.len(), kept)?;
            // Further dimensions are lists of fixed size.
            cast(&structs, to)?
        } else {
            let (values, mask) = function.array_of(results, kept)?;
            let values = from_futhark(function, &values, to)?;
            match mask {
                None => values,
                Some(mask) => {
                    let mask = from_futhark(function, &mask, &DataType::Boolean)?;
                    nullif(&values, &not(mask.as_boolean())?)?
                }
            }
        };
        match nulls {
            None => Ok(result),
            Some(nulls) => Ok(take(&result, &dense_positions(&nulls), None)?),
        }
    }

    /// One call for each row.
    fn call_for_each(&self, args: &[ColumnarValue], rows: usize, scalar: &ScalarReturn) -> Result<ArrayRef> {
        let function = &self.function;
        let column = |(parameter, argument): (&_, &ColumnarValue)| cast_argument(function, parameter, &argument.to_array(rows)?);
        let columns: Vec<ArrayRef> = function.parameters().iter().zip(args).map(column).collect::<Result<_>>()?;
        let nulls = function
            .parameters()
            .iter()
            .zip(&columns)
            .fold(None, |nulls, (parameter, column)| NullBuffer::union(nulls.as_ref(), nulls_in(parameter, column).as_ref()));
        let missing = ScalarValue::try_from(&scalar.data_type)?;
        let call = |row: usize| {
            if nulls.as_ref().is_some_and(|nulls| nulls.is_null(row)) {
                return Ok(missing.clone());
            }
            let arguments = function.parameters().iter().zip(&columns);
            let arguments = arguments.map(|(parameter, column)| value_at(function, parameter, column, row));
            let results = arguments.collect::<futhark::Result<_>>().and_then(|arguments| function.call(arguments));
            function.value_of(scalar, results.map_err(|error| function.failed(error))?)
        };
        let values: Vec<ScalarValue> = function.context().locked(|| (0..rows).map(call).collect::<Result<_>>())?;
        match values.is_empty() {
            true => Ok(new_empty_array(&scalar.data_type)),
            false => ScalarValue::iter_to_array(values),
        }
    }
}

impl ScalarUDFImpl for FutharkScalar {
    fn name(&self) -> &str {
        self.function.name()
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, types: &[DataType]) -> Result<DataType> {
        self.function.check(types.iter())?;
        match self.function.returns() {
            Returns::Column(_, data_type) | Returns::Value(ScalarReturn { data_type, .. }) | Returns::Struct(_, data_type) => {
                Ok(data_type.clone())
            }
            Returns::Aggregate(_) | Returns::Table(_) => internal_err!("{} is no scalar function", self.name()),
        }
    }

    fn return_field_from_args(&self, args: ReturnFieldArgs) -> Result<FieldRef> {
        let types: Vec<DataType> = args.arg_fields.iter().map(|field| field.data_type().clone()).collect();
        Ok(Arc::new(Field::new(self.name(), self.return_type(&types)?, true)))
    }

    fn is_strict(&self) -> bool {
        self.function.nulls() == Nulls::Strict
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        let constant = args.args.iter().all(|argument| matches!(argument, ColumnarValue::Scalar(_)));
        let rows = if constant { 1 } else { args.number_rows };
        let result = match self.function.returns() {
            Returns::Column(_, to) => self.call_for_all(&args.args, rows, to)?,
            Returns::Struct(_, to) => self.call_for_all(&args.args, rows, to)?,
            Returns::Value(scalar) => self.call_for_each(&args.args, rows, scalar)?,
            Returns::Aggregate(_) | Returns::Table(_) => return internal_err!("{} is no scalar function", self.name()),
        };
        Ok(match constant {
            true => ColumnarValue::Scalar(ScalarValue::try_from_array(&result, 0)?),
            false => ColumnarValue::Array(result),
        })
    }

    fn coerce_types(&self, types: &[DataType]) -> Result<Vec<DataType>> {
        Ok(types.to_vec())
    }

    fn documentation(&self) -> Option<&Documentation> {
        Some(self.function.documentation())
    }
}

/// A column with 0 for NULL, and its mask.
fn with_mask(column: &ArrayRef) -> Result<[ArrayRef; 2]> {
    let mask = is_not_null(column)?;
    let zero = ScalarValue::new_default(column.data_type())?.to_scalar()?;
    Ok([zip(&mask, column, &zero)?, Arc::new(mask)])
}

/// For each row its position among the rows that are not NULL.
fn dense_positions(nulls: &NullBuffer) -> UInt64Array {
    let mut next = 0;
    let position = |valid: bool| {
        valid.then(|| {
            next += 1;
            next - 1
        })
    };
    nulls.iter().map(position).collect()
}
