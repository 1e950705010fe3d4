// SPDX-License-Identifier: Apache-2.0
//! Translation of DataFusion's physical expressions.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, RecordBatch};
use arrow::datatypes::{DataType, Schema};
use datafusion::common::ScalarValue;
use datafusion::logical_expr::{ColumnarValue, Operator};
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_expr::ScalarFunctionExpr;
use datafusion::physical_expr::expressions::{
    BinaryExpr, CaseExpr, CastExpr, Column, DynamicFilterPhysicalExpr, InListExpr, IsNotNullExpr, IsNullExpr, LikeExpr,
    Literal as Constant, NegativeExpr, NotExpr, TryCastExpr,
};
use datafusion::physical_expr::scalar_subquery::ScalarSubqueryExpr;
use kernels::expr::{ArithmeticOp, CompareOp, Expr, Literal, LiteralValue, value_type};
use kernels::function::Function;
use kernels::libm;

use super::builtin::is_builtin;
use super::device_function::DeviceFunction;
use super::{functions, library};
use crate::reason::Reason;
use crate::session::DeviceOptions;

/// Lowers an expression over a schema, and checks that it is supported on the device.
pub(crate) fn supported(expr: &Arc<dyn PhysicalExpr>, schema: &Schema) -> Result<Expr, Reason> {
    #[cfg(test)]
    asked::note(expr);
    let lowered = lower(expr, schema)?;
    kernels::support::supports(&lowered, schema)?;
    Ok(lowered)
}

/// As [`supported`] for an output, which may be a list, and in a projection a new string.
pub(crate) fn supported_output(expr: &Arc<dyn PhysicalExpr>, schema: &Schema) -> Result<Expr, Reason> {
    #[cfg(test)]
    asked::note(expr);
    let lowered = lower(expr, schema)?;
    kernels::support::supports_output(&lowered, schema)?;
    Ok(lowered)
}

/// Whether an output of a projection must become a column before another expression reads it: a new
/// string or list.
pub(crate) fn must_be_column(expr: &Arc<dyn PhysicalExpr>, schema: &Schema) -> bool {
    lower(expr, schema).is_ok_and(|expr| kernels::support::must_be_column(&expr, schema))
}

/// Whether an expression supported on the device may fail.
pub(crate) fn may_fail(expr: &Arc<dyn PhysicalExpr>, schema: &Schema) -> bool {
    lower(expr, schema).is_ok_and(|expr| kernels::support::can_fail(&expr, schema))
}

/// Lowers an expression over a schema. Kernels that take it may still refuse it, see [`supported`].
#[recursive::recursive]
pub(crate) fn lower(expr: &Arc<dyn PhysicalExpr>, schema: &Schema) -> Result<Expr, Reason> {
    if let Some(column) = expr.downcast_ref::<Column>() {
        return Ok(Expr::Column(column.index()));
    }
    if let Some(literal) = expr.downcast_ref::<Constant>() {
        return Ok(Expr::Literal(scalar(literal.value())?));
    }
    if let Some(binary) = expr.downcast_ref::<BinaryExpr>() {
        return translate_binary(binary, expr, schema);
    }
    if let Some(not) = expr.downcast_ref::<NotExpr>() {
        return Ok(Expr::Not(Arc::new(lower(not.arg(), schema)?)));
    }
    if let Some(is_null) = expr.downcast_ref::<IsNullExpr>() {
        return Ok(Expr::IsNull(Arc::new(lower(is_null.arg(), schema)?)));
    }
    if let Some(is_not_null) = expr.downcast_ref::<IsNotNullExpr>() {
        return Ok(Expr::Not(Arc::new(Expr::IsNull(Arc::new(lower(is_not_null.arg(), schema)?)))));
    }
    if let Some(negative) = expr.downcast_ref::<NegativeExpr>() {
        return Ok(Expr::Negate(Arc::new(lower(negative.arg(), schema)?)));
    }
    if let Some(cast) = expr.downcast_ref::<CastExpr>() {
        return translate_cast(cast.expr(), cast.cast_type(), !cast.cast_options().safe, schema);
    }
    if let Some(cast) = expr.downcast_ref::<TryCastExpr>() {
        return translate_cast(cast.expr(), cast.cast_type(), false, schema);
    }
    if let Some(list) = expr.downcast_ref::<InListExpr>() {
        return translate_in_list(list, schema);
    }
    if let Some(case) = expr.downcast_ref::<CaseExpr>() {
        return translate_case(case, expr, schema);
    }
    if let Some(function) = expr.downcast_ref::<ScalarFunctionExpr>() {
        return translate_function(function, schema);
    }
    if let Some(filter) = expr.downcast_ref::<DynamicFilterPhysicalExpr>() {
        let current = filter.current().map_err(|error| error.to_string())?;
        return lower(&current, schema);
    }
    if let Some(like) = expr.downcast_ref::<LikeExpr>() {
        let (expr, pattern) = (Arc::new(lower(like.expr(), schema)?), Arc::new(lower(like.pattern(), schema)?));
        let like_expr = Expr::Like { ignores_case: like.case_insensitive(), expr, pattern };
        return Ok(if like.negated() { Expr::Not(Arc::new(like_expr)) } else { like_expr });
    }
    if let Some(subquery) = expr.downcast_ref::<ScalarSubqueryExpr>() {
        return translate_subquery(subquery, schema);
    }
    Err(format!("{expr} is not supported on the device"))
}

/// The value of a scalar subquery. Before it has run, a default value of its type.
fn translate_subquery(subquery: &ScalarSubqueryExpr, schema: &Schema) -> Result<Expr, Reason> {
    let value = match subquery.evaluate(&RecordBatch::new_empty(Arc::new(Schema::empty()))) {
        Ok(ColumnarValue::Scalar(value)) => value,
        _ => {
            let data_type = subquery.return_field(schema).map_err(|error| error.to_string())?.data_type().clone();
            ScalarValue::new_default(&data_type).map_err(|error| error.to_string())?
        }
    };
    Ok(Expr::Literal(scalar(&value)?))
}

/// Whether an expression reads the value of a scalar subquery.
#[recursive::recursive]
pub(crate) fn awaits_subquery(expr: &Arc<dyn PhysicalExpr>) -> bool {
    expr.is::<ScalarSubqueryExpr>() || expr.children().into_iter().any(awaits_subquery)
}

fn translate_binary(binary: &BinaryExpr, expr: &Arc<dyn PhysicalExpr>, schema: &Schema) -> Result<Expr, Reason> {
    let is_interval = |expr| Ok::<_, Reason>(matches!(type_of(expr, schema)?, DataType::Interval(_)));
    let shifted = match (binary.op(), is_interval(binary.left())?, is_interval(binary.right())?) {
        (Operator::Plus | Operator::Minus, false, true) => Some((binary.left(), binary.right())),
        (Operator::Plus, true, false) => Some((binary.right(), binary.left())),
        _ => None,
    };
    if let Some((time, interval)) = shifted {
        let (time, data_type) = (lower(time, schema)?, type_of(expr, schema)?);
        let subtract = *binary.op() == Operator::Minus;
        return match functions::interval(interval) {
            Some(interval) => functions::add_interval(time, interval, subtract, data_type),
            None => Ok(functions::add_interval_column(time, &lower(interval, schema)?, subtract, data_type)),
        };
    }
    let left = lower(binary.left(), schema)?;
    let right = lower(binary.right(), schema)?;
    let compare = |op| {
        // DataFusion does not fold -0.0 and 0.0 in dictionaries.
        let exact = matches!(type_of(binary.left(), schema)?, DataType::Dictionary(_, values) if values.is_floating());
        let operand = |expr: &Expr| Arc::new(if exact { Expr::TotalOrder(Arc::new(expr.clone())) } else { expr.clone() });
        Ok(Expr::Compare { op, left: operand(&left), right: operand(&right) })
    };
    let arithmetic = |op| {
        let data_type = type_of(expr, schema)?;
        Ok(Expr::Arithmetic { op, left: Arc::new(left.clone()), right: Arc::new(right.clone()), data_type })
    };
    let like = |ignores_case| Expr::Like { ignores_case, expr: Arc::new(left.clone()), pattern: Arc::new(right.clone()) };
    match binary.op() {
        Operator::And => Ok(Expr::And(flatten(left, right, |operand| match operand {
            Expr::And(operands) => Ok(operands),
            other => Err(other),
        }))),
        Operator::Or => Ok(Expr::Or(flatten(left, right, |operand| match operand {
            Expr::Or(operands) => Ok(operands),
            other => Err(other),
        }))),
        Operator::Eq => compare(CompareOp::Eq),
        Operator::NotEq => compare(CompareOp::NotEq),
        Operator::Lt => compare(CompareOp::Lt),
        Operator::LtEq => compare(CompareOp::LtEq),
        Operator::Gt => compare(CompareOp::Gt),
        Operator::GtEq => compare(CompareOp::GtEq),
        Operator::IsDistinctFrom => compare(CompareOp::IsDistinctFrom),
        Operator::IsNotDistinctFrom => compare(CompareOp::IsNotDistinctFrom),
        Operator::Plus => arithmetic(ArithmeticOp::Add),
        Operator::Minus => arithmetic(ArithmeticOp::Subtract),
        Operator::Multiply => arithmetic(ArithmeticOp::Multiply),
        Operator::Divide => arithmetic(ArithmeticOp::Divide),
        Operator::Modulo => arithmetic(ArithmeticOp::Modulo),
        Operator::BitwiseAnd => arithmetic(ArithmeticOp::BitAnd),
        Operator::BitwiseOr => arithmetic(ArithmeticOp::BitOr),
        Operator::BitwiseXor => arithmetic(ArithmeticOp::BitXor),
        Operator::BitwiseShiftLeft => arithmetic(ArithmeticOp::ShiftLeft),
        Operator::BitwiseShiftRight => arithmetic(ArithmeticOp::ShiftRight),
        Operator::StringConcat => {
            let concat = Function::ConcatOperator;
            let arguments = flatten(left, right, |operand| match operand {
                Expr::Call { function, arguments, .. } if function == concat => Ok(arguments),
                other => Err(other),
            });
            Ok(Expr::Call { function: concat, arguments, data_type: value_type(&type_of(expr, schema)?).clone() })
        }
        Operator::LikeMatch => Ok(like(false)),
        Operator::ILikeMatch => Ok(like(true)),
        Operator::NotLikeMatch => Ok(Expr::Not(Arc::new(like(false)))),
        Operator::NotILikeMatch => Ok(Expr::Not(Arc::new(like(true)))),
        op => Err(format!("the operator {op} is not supported on the device")),
    }
}

/// The operands of nested AND, OR or `||` as one list.
fn flatten(left: Expr, right: Expr, split: impl Fn(Expr) -> Result<Vec<Expr>, Expr>) -> Vec<Expr> {
    let mut operands = Vec::new();
    for operand in [left, right] {
        match split(operand) {
            Ok(inner) => operands.extend(inner),
            Err(other) => operands.push(other),
        }
    }
    operands
}

fn translate_cast(inner: &Arc<dyn PhysicalExpr>, to: &DataType, checked: bool, schema: &Schema) -> Result<Expr, Reason> {
    cast(lower(inner, schema)?, &type_of(inner, schema)?, to, checked)
}

fn cast(expr: Expr, from: &DataType, to: &DataType, checked: bool) -> Result<Expr, Reason> {
    expr.cast(from, to, checked).map_err(|error| match error {
        kernels::Error::Unsupported(reason) => reason,
        other => other.to_string(),
    })
}

fn type_of(expr: &Arc<dyn PhysicalExpr>, schema: &Schema) -> Result<DataType, Reason> {
    expr.data_type(schema).map_err(|error| error.to_string())
}

/// `left = right` as Arrow's `eq`, which distinguishes -0.0 from 0.0; DataFusion's `=` does not.
/// `data_type` is the type of both.
fn equal(left: &Expr, right: Expr, data_type: &DataType) -> Expr {
    let exact = |expr| Arc::new(if value_type(data_type).is_floating() { Expr::TotalOrder(Arc::new(expr)) } else { expr });
    Expr::Compare { op: CompareOp::Eq, left: exact(left.clone()), right: exact(right) }
}

fn translate_in_list(list: &InListExpr, schema: &Schema) -> Result<Expr, Reason> {
    let expr = lower(list.expr(), schema)?;
    let mut literals = Vec::with_capacity(list.list().len());
    let mut others = Vec::new();
    for member in list.list() {
        match lower(member, schema)? {
            Expr::Literal(literal) => literals.push(literal),
            other => others.push(other),
        }
    }
    if others.is_empty() {
        return Ok(Expr::InList { expr: Arc::new(expr), list: literals, negated: list.negated() });
    }
    // A list with computed members is an OR of comparisons, with the same NULL rules.
    let data_type = type_of(list.expr(), schema)?;
    let any = literals.into_iter().map(Expr::Literal).chain(others).map(|right| equal(&expr, right, &data_type)).collect();
    Ok(if list.negated() { Expr::Not(Arc::new(Expr::Or(any))) } else { Expr::Or(any) })
}

fn translate_case(case: &CaseExpr, expr: &Arc<dyn PhysicalExpr>, schema: &Schema) -> Result<Expr, Reason> {
    let operand = match case.expr() {
        Some(operand) => Some((lower(operand, schema)?, type_of(operand, schema)?)),
        None => None,
    };
    let mut branches = Vec::with_capacity(case.when_then_expr().len());
    for (when, then) in case.when_then_expr() {
        let when = lower(when, schema)?;
        let condition = match &operand {
            Some((operand, data_type)) => equal(operand, when, data_type),
            None => when,
        };
        branches.push((condition, lower(then, schema)?));
    }
    let otherwise = case.else_expr().map(|value| lower(value, schema)).transpose()?.map(Arc::new);
    let data_type = type_of(expr, schema)?;
    Ok(Expr::Case { branches, otherwise, data_type })
}

/// Whether an expression is a column or a constant.
fn is_plain(expr: &Arc<dyn PhysicalExpr>) -> bool {
    expr.is::<Column>() || expr.is::<Constant>()
}

fn translate_function(function: &ScalarFunctionExpr, schema: &Schema) -> Result<Expr, Reason> {
    let (name, arguments) = (function.fun().name(), function.args());
    if let Some(called) = DeviceFunction::of(function.fun()) {
        let (arguments, data_type) = (translate_all(arguments, schema)?, function.return_type().clone());
        return Ok(Expr::Call { function: called, arguments, data_type });
    }
    if !is_builtin(function.fun()) {
        let reason = library::scalar_reason(function.fun());
        return Err(reason.unwrap_or_else(|| format!("the function {name} is not supported on the device")));
    }
    match (name, arguments) {
        ("nullif", [left, right]) => {
            let left = lower(left, schema)?;
            let data_type = value_type(function.return_type()).clone();
            let equal = equal(&left, lower(right, schema)?, &data_type);
            let null = Literal { data_type: data_type.clone(), value: LiteralValue::Null };
            Ok(Expr::Case { branches: vec![(equal, Expr::Literal(null))], otherwise: Some(Arc::new(left)), data_type })
        }
        ("coalesce", [_, ..]) => Ok(Expr::Coalesce(translate_all(arguments, schema)?)),
        ("log", [base @ .., number]) => translate_log(function, base, number, schema),
        ("arrow_typeof", [argument]) => translate_type_name(argument, schema),
        _ => translate_named(function, schema),
    }
}

fn translate_all(exprs: &[Arc<dyn PhysicalExpr>], schema: &Schema) -> Result<Vec<Expr>, Reason> {
    exprs.iter().map(|expr| lower(expr, schema)).collect()
}

/// `log([base, ]number)`: in the type of the number if it is a float. The default base is 10.
fn translate_log(
    function: &ScalarFunctionExpr,
    base: &[Arc<dyn PhysicalExpr>],
    number: &Arc<dyn PhysicalExpr>,
    schema: &Schema,
) -> Result<Expr, Reason> {
    let data_type = function.return_type().clone();
    let base = match base {
        [base] => cast(lower(base, schema)?, &type_of(base, schema)?, &data_type, true)?,
        _ => Expr::Literal(Literal { data_type: data_type.clone(), value: LiteralValue::Float(10.0) }),
    };
    let arguments = vec![base, lower(number, schema)?];
    if_exact(Expr::Call { function: Function::Log, arguments, data_type }, function, schema)
}

/// `arrow_typeof(argument)`, known when the query is planned. A fallible argument is still
/// evaluated.
fn translate_type_name(argument: &Arc<dyn PhysicalExpr>, schema: &Schema) -> Result<Expr, Reason> {
    let name = type_of(argument, schema)?.to_string();
    let name = Expr::Literal(scalar(&ScalarValue::Utf8(Some(name)))?);
    if is_plain(argument) {
        return Ok(name);
    }
    let argument = lower(argument, schema)?;
    Ok(match kernels::support::can_fail(&argument, schema) {
        false => name,
        true => Expr::Case {
            branches: vec![(Expr::IsNull(Arc::new(argument)), name.clone())],
            otherwise: Some(Arc::new(name)),
            data_type: DataType::Utf8,
        },
    })
}

/// A function with a name in [`functions`]: casts, parsing by a format, or a function of the
/// kernels.
fn translate_named(function: &ScalarFunctionExpr, schema: &Schema) -> Result<Expr, Reason> {
    let (name, arguments) = (function.fun().name(), function.args());
    let types = arguments.iter().map(|argument| type_of(argument, schema)).collect::<Result<Vec<_>, _>>()?;
    let data_type = value_type(function.return_type()).clone();
    if let ([argument, others @ ..], [from, ..]) = (arguments, &types[..])
        && others.iter().all(|other| other.is::<Constant>())
        && let Some(steps) = functions::casts(name, &types, &data_type)
    {
        let (mut expr, mut from) = (lower(argument, schema)?, from.clone());
        for step in steps {
            expr = cast(expr, &from, &step, true)?;
            from = step;
        }
        return Ok(expr);
    }
    if let Some((parse, parsed)) = functions::by_format(name, &types) {
        if matches!(data_type, DataType::Timestamp(_, Some(_))) {
            return Err(format!("{name} by a format in a time zone is not supported on the device"));
        }
        let arguments = translate_all(arguments, schema)?;
        return cast(Expr::Call { function: parse, arguments, data_type: parsed.clone() }, &parsed, &data_type, true);
    }
    let found = functions::find(name, arguments, &types)?;
    let arguments = found.arguments.iter().map(|argument| lower(argument, schema));
    let numbers = found.numbers.into_iter().map(|number| Ok(functions::number(number)));
    let arguments = arguments.chain(numbers).collect::<Result<_, Reason>>()?;
    if_exact(Expr::Call { function: found.function, arguments, data_type }, function, schema)
}

/// A call. An error if its last digits differ between the host and devices, and the session allows
/// no difference.
fn if_exact(call: Expr, function: &ScalarFunctionExpr, schema: &Schema) -> Result<Expr, Reason> {
    let Expr::Call { function: called, data_type, .. } = &call else { return Ok(call) };
    let name = function.fun().name();
    let differs = match called.row().is_inexact() {
        true => format!("the last digits of the function {name} differ between the host and devices"),
        false if libm::host_agrees(*called, data_type) => return Ok(call),
        false => format!("this host's C library computes {name} in another way than devices, so that last digits differ"),
    };
    if !DeviceOptions::of(function.config_options()).exact_functions {
        return Ok(call);
    }
    // Reasons that no setting removes come first.
    kernels::support::supports(&call, schema)?;
    Err(format!("{differs}, which SET device.exact_functions = 'false' allows"))
}

/// A constant as a kernel literal.
pub(super) fn scalar(value: &ScalarValue) -> Result<Literal, Reason> {
    use ScalarValue::*;
    fn int<T: Into<i128> + Copy>(value: &Option<T>) -> LiteralValue {
        value.map_or(LiteralValue::Null, |value| LiteralValue::Int(value.into()))
    }
    fn bytes<T: AsRef<[u8]>>(value: &Option<T>) -> LiteralValue {
        value.as_ref().map_or(LiteralValue::Null, |value| LiteralValue::Bytes(value.as_ref().to_vec()))
    }
    fn list(lists: &dyn Array, first: impl FnOnce() -> ArrayRef) -> LiteralValue {
        if lists.is_valid(0) { LiteralValue::List(first()) } else { LiteralValue::Null }
    }
    let literal = match value {
        Null => LiteralValue::Null,
        Boolean(value) => value.map_or(LiteralValue::Null, LiteralValue::Bool),
        Float32(value) => value.map_or(LiteralValue::Null, |value| LiteralValue::Float(value.into())),
        Float64(value) => value.map_or(LiteralValue::Null, LiteralValue::Float),
        Decimal32(value, _, _) => int(value),
        Decimal64(value, _, _) => int(value),
        Decimal128(value, _, _) => int(value),
        Decimal256(value, _, _) => value.map_or(LiteralValue::Null, |value| match value.to_i128() {
            Some(value) => LiteralValue::Int(value),
            None => LiteralValue::Wide(Box::new(value)),
        }),
        // Its layout in memory.
        IntervalMonthDayNano(value) => value.map_or(LiteralValue::Null, |value| {
            let [months, days] = [value.months, value.days].map(|part| i128::from(part as u32));
            LiteralValue::Int(months | days << 32 | i128::from(value.nanoseconds) << 64)
        }),
        Int8(value) => int(value),
        Int16(value) => int(value),
        Int32(value) | Date32(value) | Time32Second(value) | Time32Millisecond(value) => int(value),
        Int64(value)
        | Date64(value)
        | Time64Microsecond(value)
        | Time64Nanosecond(value)
        | TimestampSecond(value, _)
        | TimestampMillisecond(value, _)
        | TimestampMicrosecond(value, _)
        | TimestampNanosecond(value, _)
        | DurationSecond(value)
        | DurationMillisecond(value)
        | DurationMicrosecond(value)
        | DurationNanosecond(value) => int(value),
        UInt8(value) => int(value),
        UInt16(value) => int(value),
        UInt32(value) => int(value),
        UInt64(value) => int(value),
        Utf8(value) | LargeUtf8(value) | Utf8View(value) => bytes(value),
        Binary(value) | LargeBinary(value) | BinaryView(value) | FixedSizeBinary(_, value) => bytes(value),
        Dictionary(_, value) => return scalar(value),
        List(lists) => list(lists.as_ref(), || lists.value(0)),
        LargeList(lists) => list(lists.as_ref(), || lists.value(0)),
        FixedSizeList(lists) => list(lists.as_ref(), || lists.value(0)),
        other => return Err(format!("a constant of type {} is not supported on the device", other.data_type())),
    };
    Ok(Literal { data_type: value.data_type(), value: literal })
}

/// Computed expressions whose support was asked on this thread, for tests.
#[cfg(test)]
pub(crate) mod asked {
    use std::cell::RefCell;

    use super::*;

    thread_local!(static ASKED: RefCell<Vec<String>> = const { RefCell::new(Vec::new()) });

    pub fn note(expr: &Arc<dyn PhysicalExpr>) {
        if !is_plain(expr) {
            ASKED.with_borrow_mut(|asked| asked.push(expr.to_string()));
        }
    }

    pub fn take() -> Vec<String> {
        ASKED.take()
    }
}
