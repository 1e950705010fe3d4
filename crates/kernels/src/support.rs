// SPDX-License-Identifier: Apache-2.0
//! Support checks for planner and documentation.
//!
//! Each check runs `codegen` and discards the kernel source, so that planner, documentation and
//! kernels cannot disagree.

use std::collections::HashMap;
use std::sync::Arc;

use arrow::datatypes::{DataType, Field, Schema};
use columnar::ColumnType;

use crate::codegen::{CType, Params, Profile, RowWriter};
use crate::expr::{Aggregate, Expr, value_type};
use crate::ops::{Input, Options, Reduce, Window, WindowCall};
use crate::{Error, Result};

/// Checks that an expression is supported on the device over a source of this schema; the error is
/// the reason.
pub fn supports(expr: &Expr, schema: &Schema) -> Result<(), String> {
    match is_plain_column(expr, schema) {
        true => Ok(()),
        false => reason(write(expr, schema, false).map(|_| ())),
    }
}

/// [`supports`] for outputs of a projection, which may also be lists or composed strings.
pub fn supports_output(expr: &Expr, schema: &Schema) -> Result<(), String> {
    match is_plain_column(expr, schema) {
        true => Ok(()),
        false => reason(write(expr, schema, true).map(|_| ())),
    }
}

/// Whether an expression is a column of numbers, times or strings: every operation takes it.
fn is_plain_column(expr: &Expr, schema: &Schema) -> bool {
    let Expr::Column(index) = expr else { return false };
    schema.fields().get(*index).is_some_and(|field| {
        let plain = |ty: &DataType| ty.is_primitive() || matches!(ty, DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View);
        plain(field.data_type()) && ColumnType::of(field.data_type(), field.is_nullable()).is_some()
    })
}

/// Whether a supported expression composes a string or a list. Other operations take those from a
/// column only.
pub fn must_be_column(expr: &Expr, schema: &Schema) -> bool {
    let is_number = |ty: DataType| value_type(&ty).is_primitive() || ty == DataType::Boolean;
    if matches!(expr, Expr::Column(_)) || expr.data_type(schema).is_ok_and(is_number) {
        return false;
    }
    write(expr, schema, true).is_ok_and(|(ctype, _)| ctype == CType::List || ctype == CType::ComposedString)
}

/// Whether a supported expression can fail, so that it must not be computed for other rows.
pub fn can_fail(expr: &Expr, schema: &Schema) -> bool {
    !matches!(expr, Expr::Column(_) | Expr::Literal(_)) && write(expr, schema, true).is_ok_and(|(_, fails)| fails)
}

/// [`can_fail`] over columns with bounds, which may exclude failures.
pub fn can_fail_over(expr: &Expr, types: &[ColumnType]) -> bool {
    let mut params = Params::new();
    RowWriter::new(types, Profile::Gpu, &mut params).eval_output(expr).is_ok() && params.can_fail()
}

fn reason(result: Result<()>) -> Result<(), String> {
    result.map_err(|error| match error {
        Error::Unsupported(reason) => reason,
        other => other.to_string(),
    })
}

/// Translates an expression: the C type of its value, and whether it can fail.
fn write(expr: &Expr, schema: &Schema, output: bool) -> Result<(CType, bool)> {
    // A wide schema costs nothing: the expression is over the columns that it reads.
    let mut used = Vec::new();
    expr.columns(&mut used);
    let missing = |index: usize| Error::Internal(format!("column {index} of {} columns", schema.fields().len()));
    let field_type = |index: &usize| {
        let field = schema.fields().get(*index).ok_or_else(|| missing(*index))?;
        ColumnType::of(field.data_type(), field.is_nullable()).ok_or_else(|| {
            let (name, data_type) = (field.name(), field.data_type());
            Error::Unsupported(format!("column {name} of type {data_type} is not supported on the device"))
        })
    };
    let types = used.iter().map(field_type).collect::<Result<Vec<_>>>()?;
    let positions: HashMap<usize, usize> = used.iter().enumerate().map(|(position, index)| (*index, position)).collect();
    let expr = expr.over(&|index| positions.get(&index).map(|position| Expr::Column(*position)).ok_or_else(|| missing(index)))?;
    let mut params = Params::new();
    let mut writer = RowWriter::new(&types, Profile::Gpu, &mut params);
    let value = if output { writer.eval_output(&expr)? } else { writer.eval(&expr)? };
    Ok((value.ctype, params.can_fail()))
}

/// Checks that columns of a type are supported on the device.
pub fn supports_type(data_type: &DataType) -> Result<(), String> {
    match ColumnType::of(data_type, true) {
        Some(_) => Ok(()),
        None => Err(format!("type {data_type} is not supported on the device")),
    }
}

/// Checks that `CAST` and `TRY_CAST` between two types are supported on the device.
pub fn supports_cast(from: &DataType, to: &DataType) -> Result<(), String> {
    supports_type(to)?;
    let schema = Schema::new(vec![Field::new("x", from.clone(), true)]);
    let cast = Expr::Column(0).cast(from, to, true).map_err(|error| error.to_string())?;
    supports(&cast, &schema)
}

/// Checks that an aggregate is supported on the device over a source of this schema.
pub fn supports_aggregate(aggregate: &Aggregate, schema: &Schema) -> Result<(), String> {
    let types = columnar::natural_types(schema).map_err(|error| error.to_string())?;
    let input = Input { schema: Arc::new(schema.clone()), types, filter: None };
    let field = Field::new("aggregate", aggregate.data_type.clone(), true);
    reason(Reduce::check(input, vec![(aggregate.clone(), field)]))
}

/// Checks that a window function is supported on the device over a source of this schema.
pub fn supports_window(
    partition: Vec<Expr>,
    order: Vec<Expr>,
    function: (WindowCall, Field),
    schema: &Schema,
) -> Result<(), String> {
    let types = columnar::natural_types(schema).map_err(|error| error.to_string())?;
    let input = Input { schema: Arc::new(schema.clone()), types, filter: None };
    reason(Window::try_new(input, partition, order, vec![], vec![function], Options::new(Profile::Gpu)).map(|_| ()))
}
