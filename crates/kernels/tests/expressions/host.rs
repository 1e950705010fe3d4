// SPDX-License-Identifier: Apache-2.0
//! The oracle: arrow-rs' kernels row by row, combined as in DataFusion.

use std::panic::{AssertUnwindSafe, catch_unwind, set_hook, take_hook};
use std::sync::{Arc, Once};

use arrow::array::{Array, ArrayRef, AsArray, Datum, Float32Array, Float64Array, RecordBatch, Scalar};
use arrow::compute::kernels::{bitwise, cmp, comparison, numeric};
use arrow::compute::{CastOptions, cast, cast_with_options};
use arrow::datatypes::*;
use arrow::error::ArrowError;
use arrow::util::display::{DurationFormat, FormatOptions};
use kernels::expr::{ArithmeticOp, CompareOp, Expr, LiteralValue};

use crate::harness::values;
use crate::{data, oracle};

/// Expected outcome of an expression for a row.
#[derive(Debug, Clone)]
pub enum Outcome {
    Value(LiteralValue),
    Fails,
    /// Whether it fails depends on the unspecified order of evaluation.
    Either,
}

pub fn rows(expr: &Expr, batch: &RecordBatch) -> Vec<Outcome> {
    quiet();
    (0..batch.num_rows()).map(|row| outcome(evaluate(expr, &batch.slice(row, 1)))).collect()
}

fn outcome(result: Result<ArrayRef, Failure>) -> Outcome {
    match result {
        Ok(array) => Outcome::Value(values(&array).remove(0)),
        Err(Failure::Must) => Outcome::Fails,
        Err(Failure::May) => Outcome::Either,
    }
}

fn quiet() {
    // Panics of arrow-rs and chrono are outcomes, see below.
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let usual = take_hook();
        set_hook(Box::new(move |info| {
            if !info.location().is_some_and(|location| location.file().contains("registry")) {
                usual(info);
            }
        }));
    });
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Failure {
    Must,
    May,
}

impl From<ArrowError> for Failure {
    fn from(_: ArrowError) -> Failure {
        Failure::Must
    }
}

fn evaluate(expr: &Expr, batch: &RecordBatch) -> Result<ArrayRef, Failure> {
    let eval = |expr: &Expr| evaluate(expr, batch);
    let truth = |expr: &Expr| -> Result<Option<bool>, Failure> {
        Ok(match values(&eval(expr)?).remove(0) {
            LiteralValue::Bool(value) => Some(value),
            _ => None,
        })
    };
    let boolean = |value: Option<bool>| -> ArrayRef { Arc::new(arrow::array::BooleanArray::from(vec![value])) };
    Ok(match expr {
        Expr::Column(index) => {
            let column = batch.column(*index);
            match column.data_type() {
                DataType::Dictionary(_, value) => cast(column, value)?,
                _ => Arc::clone(column),
            }
        }
        Expr::Literal(literal) => data::array(&literal.data_type, std::slice::from_ref(&literal.value)),
        Expr::Not(operand) => boolean(truth(operand)?.map(|value| !value)),
        Expr::And(operands) => connect(operands.iter().map(truth).collect(), false).map(boolean)?,
        Expr::Or(operands) => connect(operands.iter().map(truth).collect(), true).map(boolean)?,
        Expr::IsNull(operand) => {
            let value = eval(operand)?;
            boolean(Some(values(&value).remove(0) == LiteralValue::Null))
        }
        Expr::IsTruth(operand, wanted) => boolean(Some(truth(operand)? == *wanted)),
        Expr::Like { ignores_case, expr, pattern } => {
            let (text, pattern) = both(eval(expr), eval(pattern))?;
            Arc::new(if *ignores_case { comparison::ilike(&text, &pattern)? } else { comparison::like(&text, &pattern)? })
        }
        Expr::Arithmetic { op, left, right, data_type } => {
            let (left, right) = both(eval(left), eval(right))?;
            arithmetic(*op, &left, &right, data_type)?
        }
        Expr::Negate(operand) => numeric::neg_wrapping(&eval(operand)?)?,
        // arrow-rs compares the floats themselves in this order.
        Expr::TotalOrder(operand) => eval(operand)?,
        Expr::Compare { op, left: l, right: r } => {
            let (left, right) = both(eval(l), eval(r))?;
            let folded =
                |operand: &Expr, value: ArrayRef| if matches!(operand, Expr::TotalOrder(_)) { value } else { fold(&value) };
            let (left, right) = (folded(l, left), folded(r, right));
            let compared = match op {
                CompareOp::Eq => cmp::eq(&left, &right),
                CompareOp::NotEq => cmp::neq(&left, &right),
                CompareOp::Lt => cmp::lt(&left, &right),
                CompareOp::LtEq => cmp::lt_eq(&left, &right),
                CompareOp::Gt => cmp::gt(&left, &right),
                CompareOp::GtEq => cmp::gt_eq(&left, &right),
                CompareOp::IsDistinctFrom => cmp::distinct(&left, &right),
                CompareOp::IsNotDistinctFrom => cmp::not_distinct(&left, &right),
            };
            Arc::new(compared.unwrap())
        }
        Expr::InList { expr, list, negated } => {
            let value = eval(expr)?;
            if value.is_null(0) {
                return Ok(boolean(None));
            }
            let mut found = Some(false);
            for literal in list {
                if literal.value == LiteralValue::Null {
                    found = found.filter(|found| *found);
                } else if cmp::eq(&value, &Scalar::new(data::array(&literal.data_type, std::slice::from_ref(&literal.value))))
                    .unwrap()
                    .value(0)
                {
                    found = Some(true);
                    break;
                }
            }
            boolean(found.map(|found| found != *negated))
        }
        Expr::Case { branches, otherwise, data_type } => {
            for (condition, value) in branches {
                if truth(condition)? == Some(true) {
                    return eval(value);
                }
            }
            match otherwise {
                Some(otherwise) => eval(otherwise)?,
                None => data::array(data_type, &[LiteralValue::Null]),
            }
        }
        Expr::Coalesce(operands) => {
            let mut last = None;
            for operand in operands {
                let value = eval(operand)?;
                // An array of the type Null has no null buffer.
                let null = values(&value) == [LiteralValue::Null];
                last = Some(value);
                if !null {
                    break;
                }
            }
            last.unwrap()
        }
        Expr::Call { function, arguments, data_type } => {
            let row: Vec<Result<ArrayRef, Failure>> = arguments.iter().map(eval).collect();
            if row.iter().any(|argument| matches!(argument, Err(Failure::Must))) {
                return Err(Failure::Must);
            }
            let row = row.into_iter().collect::<Result<Vec<_>, _>>()?;
            match row.iter().any(|argument| values(argument) == [LiteralValue::Null]) {
                true => oracle::call_with_null(*function, &row, data_type),
                false => oracle::call(*function, &row, data_type).ok_or(Failure::Must)?,
            }
        }
        Expr::Cast { expr, to, checked } => {
            let value = eval(expr)?;
            cast_one(&value, to, *checked)?
        }
    })
}

fn cast_one(value: &ArrayRef, to: &DataType, checked: bool) -> Result<ArrayRef, Failure> {
    // DataFusion's options.
    let format_options = FormatOptions::new().with_duration_format(DurationFormat::Pretty);
    let options = CastOptions { safe: !checked, format_options };
    // Unchecked arithmetic of arrow-rs panics in debug builds where it wraps in release ones.
    match catch_unwind(AssertUnwindSafe(|| cast_with_options(value, to, &options))) {
        Ok(result) => Ok(result?),
        // DataFusion checks before the CAST.
        Err(_) if checked && *value.data_type() == DataType::Date64 && !value.is_null(0) => Err(Failure::Must),
        Err(_) => Err(Failure::May),
    }
}

/// The outcome of arrow-rs for each value of an array.
pub fn casts(array: &ArrayRef, to: &DataType, checked: bool) -> Vec<Outcome> {
    quiet();
    (0..array.len()).map(|row| outcome(cast_one(&array.slice(row, 1), to, checked))).collect()
}

/// Both operands, evaluated unconditionally.
fn both(left: Result<ArrayRef, Failure>, right: Result<ArrayRef, Failure>) -> Result<(ArrayRef, ArrayRef), Failure> {
    match (left, right) {
        (Ok(left), Ok(right)) => Ok((left, right)),
        (Err(Failure::Must), _) | (_, Err(Failure::Must)) => Err(Failure::Must),
        _ => Err(Failure::May),
    }
}

/// AND (`settling` = false) or OR (true) of operands in any order.
fn connect(operands: Vec<Result<Option<bool>, Failure>>, settling: bool) -> Result<Option<bool>, Failure> {
    let settled = operands.contains(&Ok(Some(settling)));
    let failing = operands.iter().find_map(|operand| operand.err());
    match (settled, failing) {
        (true, Some(_)) => Err(Failure::May),
        (false, Some(failure)) => Err(failure),
        (true, None) => Ok(Some(settling)),
        (false, None) if operands.contains(&Ok(None)) => Ok(None),
        (false, None) => Ok(Some(!settling)),
    }
}

fn fold(array: &ArrayRef) -> ArrayRef {
    match array.data_type() {
        DataType::Float32 => {
            let folded: Float32Array = array.as_primitive::<Float32Type>().unary(|value| if value == 0.0 { 0.0 } else { value });
            Arc::new(folded)
        }
        DataType::Float64 => {
            let folded: Float64Array = array.as_primitive::<Float64Type>().unary(|value| if value == 0.0 { 0.0 } else { value });
            Arc::new(folded)
        }
        _ => Arc::clone(array),
    }
}

fn arithmetic(op: ArithmeticOp, left: &ArrayRef, right: &ArrayRef, data_type: &DataType) -> Result<ArrayRef, ArrowError> {
    let (l, r): (&dyn Datum, &dyn Datum) = (left, right);
    macro_rules! bits {
        ($function:ident) => {
            match data_type {
                DataType::Int8 => {
                    Arc::new(bitwise::$function::<Int8Type>(left.as_primitive(), right.as_primitive())?) as ArrayRef
                }
                DataType::Int16 => Arc::new(bitwise::$function::<Int16Type>(left.as_primitive(), right.as_primitive())?),
                DataType::Int32 => Arc::new(bitwise::$function::<Int32Type>(left.as_primitive(), right.as_primitive())?),
                DataType::Int64 => Arc::new(bitwise::$function::<Int64Type>(left.as_primitive(), right.as_primitive())?),
                DataType::UInt8 => Arc::new(bitwise::$function::<UInt8Type>(left.as_primitive(), right.as_primitive())?),
                DataType::UInt16 => Arc::new(bitwise::$function::<UInt16Type>(left.as_primitive(), right.as_primitive())?),
                DataType::UInt32 => Arc::new(bitwise::$function::<UInt32Type>(left.as_primitive(), right.as_primitive())?),
                _ => Arc::new(bitwise::$function::<UInt64Type>(left.as_primitive(), right.as_primitive())?),
            }
        };
    }
    let result = match (op, left.data_type(), right.data_type()) {
        (ArithmeticOp::Subtract, DataType::Date32, DataType::Date32) if *data_type == DataType::Int64 => {
            let days: arrow::array::Int64Array =
                arrow::compute::binary(left.as_primitive::<Date32Type>(), right.as_primitive::<Date32Type>(), |l, r| {
                    i64::from(l) - i64::from(r)
                })?;
            Arc::new(days)
        }
        (ArithmeticOp::Subtract, DataType::Date64, DataType::Date64) if *data_type == DataType::Int64 => {
            let days: arrow::array::Int64Array =
                arrow::compute::binary(left.as_primitive::<Date64Type>(), right.as_primitive::<Date64Type>(), |l, r| {
                    l.wrapping_sub(r) / 86_400_000
                })?;
            Arc::new(days)
        }
        (ArithmeticOp::Add, ..) => numeric::add_wrapping(l, r)?,
        (ArithmeticOp::Subtract, ..) => numeric::sub_wrapping(l, r)?,
        (ArithmeticOp::Multiply, ..) => numeric::mul_wrapping(l, r)?,
        (ArithmeticOp::Divide, ..) => numeric::div(l, r)?,
        (ArithmeticOp::Modulo, ..) => numeric::rem(l, r)?,
        (ArithmeticOp::BitAnd, ..) => bits!(bitwise_and),
        (ArithmeticOp::BitOr, ..) => bits!(bitwise_or),
        (ArithmeticOp::BitXor, ..) => bits!(bitwise_xor),
        (ArithmeticOp::ShiftLeft, ..) => bits!(bitwise_shift_left),
        (ArithmeticOp::ShiftRight, ..) => bits!(bitwise_shift_right),
    };
    assert_eq!(result.data_type(), data_type, "the test's own type");
    Ok(result)
}

/// The result type of an operation in arrow-rs; `None` for an unsupported one.
pub fn arithmetic_type(op: ArithmeticOp, left: &DataType, right: &DataType) -> Option<DataType> {
    let (l, r) = (data::array(left, &[]), data::array(right, &[]));
    let (l, r): (&dyn Datum, &dyn Datum) = (&l, &r);
    match op {
        ArithmeticOp::Subtract if left == right && matches!(left, DataType::Date32 | DataType::Date64) => {
            return Some(DataType::Int64);
        }
        ArithmeticOp::Add => numeric::add_wrapping(l, r),
        ArithmeticOp::Subtract => numeric::sub_wrapping(l, r),
        ArithmeticOp::Multiply => numeric::mul_wrapping(l, r),
        ArithmeticOp::Divide => numeric::div(l, r),
        ArithmeticOp::Modulo => numeric::rem(l, r),
        _ if left.is_integer() && left == right => return Some(left.clone()),
        _ => return None,
    }
    .ok()
    .map(|array| array.data_type().clone())
}
