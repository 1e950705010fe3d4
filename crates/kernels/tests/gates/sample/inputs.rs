// SPDX-License-Identifier: Apache-2.0
//! Types, columns and literals of the sample.

use std::sync::Arc;

use arrow::array::{ArrayRef, new_empty_array};
use arrow::compute::kernels::numeric;
use arrow::datatypes::{DataType, Field, IntervalUnit, Schema, SchemaRef, TimeUnit};
use columnar::{Carrier, ColumnType, Layout};
use kernels::expr::{ArithmeticOp, Expr, Literal, LiteralValue};
use kernels::ops::Input;

/// Every supported type, at least once per layout.
pub fn types() -> Vec<DataType> {
    use DataType::*;
    use TimeUnit::*;
    let zone = |name: &str| Some(Arc::from(name));
    let dictionary = |key, value| Dictionary(Box::new(key), Box::new(value));
    vec![
        Boolean,
        Int8,
        Int16,
        Int32,
        Int64,
        UInt8,
        UInt16,
        UInt32,
        UInt64,
        Float32,
        Float64,
        Decimal32(9, 2),
        Decimal64(18, 4),
        Decimal128(15, 2),
        Decimal128(38, 10),
        Decimal256(60, 10),
        Date32,
        Date64,
        Time32(Second),
        Time32(Millisecond),
        Time64(Microsecond),
        Time64(Nanosecond),
        Timestamp(Second, None),
        Timestamp(Millisecond, None),
        Timestamp(Microsecond, zone("+02:00")),
        Timestamp(Nanosecond, None),
        Timestamp(Nanosecond, zone("UTC")),
        Timestamp(Nanosecond, zone("Europe/Berlin")),
        Duration(Second),
        Duration(Millisecond),
        Duration(Microsecond),
        Duration(Nanosecond),
        Interval(IntervalUnit::MonthDayNano),
        Utf8,
        LargeUtf8,
        Utf8View,
        Binary,
        LargeBinary,
        BinaryView,
        FixedSizeBinary(5),
        dictionary(Int32, Utf8),
        dictionary(UInt8, LargeUtf8),
        dictionary(Int16, Utf8View),
        dictionary(Int64, Int32),
        dictionary(UInt16, Decimal128(15, 2)),
        Null,
    ]
}

pub fn values_are_few(data_type: &DataType) -> bool {
    matches!(data_type, DataType::Null | DataType::Boolean | DataType::Int8 | DataType::UInt8)
}

/// The columns:
/// - 0 and 1 of the type, 2 of the type without NULLs, 3 a flag,
/// - 4 and 5 keys with narrow bounds, 6 a 64-bit key, 7 a string key.
pub fn input(data_type: &DataType) -> Input {
    let mut types = vec![
        ColumnType::of(data_type, true).unwrap_or_else(|| panic!("{data_type} is not supported on the device")),
        ColumnType::of(data_type, true).unwrap(),
        ColumnType::of(data_type, false).unwrap(),
        ColumnType::of(&DataType::Boolean, true).unwrap(),
        ColumnType::of(&DataType::Int32, true).unwrap(),
        ColumnType::of(&DataType::Date32, false).unwrap(),
        ColumnType::of(&DataType::Int64, true).unwrap(),
        ColumnType::of(&DataType::Utf8View, true).unwrap(),
    ];
    types[4].bounds = Some((-8, 7));
    types[5].bounds = Some((0, 511));
    Input { schema: schema(&types), types, filter: None }
}

pub fn schema(types: &[ColumnType]) -> SchemaRef {
    let fields = types.iter().enumerate().map(|(at, ty)| Field::new(format!("c{at}"), ty.data_type.clone(), ty.nullable));
    Arc::new(Schema::new(fields.collect::<Vec<_>>()))
}

/// The supported layouts of a type.
pub fn layouts(data_type: &DataType) -> Vec<Layout> {
    use Carrier::*;
    let own = ColumnType::of(data_type, true).unwrap().layout;
    let plain = |layout: &Layout| match layout {
        Layout::Offsets32 | Layout::Offsets64 | Layout::Views => vec![Layout::Offsets32, Layout::Offsets64, Layout::Views],
        Layout::Fixed(I128) => [I32, I64, I128].map(Layout::Fixed).to_vec(),
        Layout::Fixed(I256) => [I32, I64, I128, I256].map(Layout::Fixed).to_vec(),
        Layout::Fixed(I64) => [I32, I64].map(Layout::Fixed).to_vec(),
        Layout::Fixed(U32) => [U16, U32].map(Layout::Fixed).to_vec(),
        other => vec![other.clone()],
    };
    let coded = |codes: Carrier, values: &Layout| {
        plain(values).into_iter().map(|values| Layout::Dictionary { codes, values: values.into() }).collect::<Vec<_>>()
    };
    match &own {
        Layout::Null => vec![own],
        // Computed values are plain.
        Layout::Dictionary { codes, values } => [coded(*codes, values), coded(U8, values), plain(values)].concat(),
        _ => [plain(&own), coded(U8, &own), coded(U16, &own)].concat(),
    }
}

pub fn value_type(data_type: &DataType) -> &DataType {
    match data_type {
        DataType::Dictionary(_, value) => value,
        other => other,
    }
}

pub fn literal(data_type: &DataType, at: i128) -> Literal {
    let value = match data_type {
        DataType::Null => LiteralValue::Null,
        DataType::Boolean => LiteralValue::Bool(at % 2 == 1),
        DataType::Float32 | DataType::Float64 => LiteralValue::Float(at as f64 / 4.0),
        DataType::FixedSizeBinary(width) => LiteralValue::Bytes(vec![at as u8; *width as usize]),
        other if other.is_string() || other.is_binary() => LiteralValue::Bytes(format!("value {at}").into_bytes()),
        _ => LiteralValue::Int(at),
    };
    Literal { data_type: data_type.clone(), value }
}

pub fn some_literal(data_type: &DataType) -> Literal {
    literal(data_type, 7)
}

pub fn cast(expr: Expr, to: &DataType, checked: bool) -> Expr {
    Expr::Cast { expr: expr.into(), to: to.clone(), checked }
}

/// All arithmetic of two operands of one type that SQL defines.
pub fn arithmetic(data_type: &DataType, left: &Expr, right: &Expr) -> Vec<Expr> {
    use ArithmeticOp::*;
    let typed = [Add, Subtract, Multiply, Divide, Modulo, BitAnd, BitOr, BitXor, ShiftLeft, ShiftRight]
        .into_iter()
        .filter_map(|op| Some((op, arithmetic_type(op, data_type, data_type)?)));
    typed
        .map(|(op, data_type)| Expr::Arithmetic { op, left: left.clone().into(), right: right.clone().into(), data_type })
        .collect()
}

/// Type of the result in Arrow's kernels.
pub fn arithmetic_type(op: ArithmeticOp, left: &DataType, right: &DataType) -> Option<DataType> {
    use ArithmeticOp::*;
    let (l, r): (ArrayRef, ArrayRef) = (new_empty_array(left), new_empty_array(right));
    let result = match op {
        Add => numeric::add_wrapping(&l, &r),
        Subtract => numeric::sub_wrapping(&l, &r),
        Multiply => numeric::mul_wrapping(&l, &r),
        Divide => numeric::div(&l, &r),
        Modulo => numeric::rem(&l, &r),
        BitAnd | BitOr | BitXor | ShiftLeft | ShiftRight => return left.is_integer().then(|| left.clone()),
    };
    Some(result.ok()?.data_type().clone())
}
