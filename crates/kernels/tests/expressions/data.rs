// SPDX-License-Identifier: Apache-2.0
//! Special values by type, and arrays of them.

use std::sync::Arc;

use arrow::array::{ArrayData, ArrayRef, BinaryArray, BooleanArray, make_array, new_null_array};
use arrow::buffer::{Buffer, NullBuffer};
use arrow::compute::cast;
use arrow::datatypes::{DataType, TimeUnit, i256};
use kernels::codegen::CType;
use kernels::expr::{Literal, LiteralValue};

pub const UNITS: [TimeUnit; 4] = [TimeUnit::Second, TimeUnit::Millisecond, TimeUnit::Microsecond, TimeUnit::Nanosecond];

/// Every integer type.
pub fn integers() -> Vec<DataType> {
    use DataType::*;
    vec![Int8, Int16, Int32, Int64, UInt8, UInt16, UInt32, UInt64]
}

pub fn floats() -> Vec<DataType> {
    vec![DataType::Float32, DataType::Float64]
}

pub fn decimals() -> Vec<DataType> {
    use DataType::*;
    vec![
        Decimal32(9, 2),
        Decimal32(4, 0),
        Decimal64(18, 4),
        Decimal64(10, -2),
        Decimal128(15, 2),
        Decimal128(38, 10),
        Decimal128(38, 0),
        Decimal128(20, 0),
        Decimal128(5, 5),
        Decimal128(6, -3),
        Decimal256(76, 0),
        Decimal256(50, 12),
    ]
}

pub fn temporals() -> Vec<DataType> {
    use DataType::*;
    let mut types = vec![
        Date32,
        Date64,
        Time32(TimeUnit::Second),
        Time32(TimeUnit::Millisecond),
        Time64(TimeUnit::Microsecond),
        Time64(TimeUnit::Nanosecond),
    ];
    for unit in UNITS {
        types.push(Timestamp(unit, None));
        types.push(Timestamp(unit, Some("+00:00".into())));
        types.push(Timestamp(unit, Some("-07:30".into())));
        types.push(Duration(unit));
    }
    types
}

pub fn strings() -> Vec<DataType> {
    use DataType::*;
    vec![Utf8, LargeUtf8, Utf8View]
}

pub fn all() -> Vec<DataType> {
    let mut types = vec![DataType::Boolean];
    types.extend(integers());
    types.extend(floats());
    types.extend(decimals());
    types.extend(temporals());
    types.extend(strings());
    types.extend([DataType::Binary, DataType::LargeBinary, DataType::BinaryView, DataType::FixedSizeBinary(3)]);
    types
}

/// An integer as the literal that holds it.
pub fn number(value: i256) -> LiteralValue {
    value.to_i128().map_or_else(|| LiteralValue::Wide(Box::new(value)), LiteralValue::Int)
}

/// Special values of a type, without NULL.
pub fn special(data_type: &DataType) -> Vec<LiteralValue> {
    use LiteralValue::*;
    let ints = |values: Vec<i128>| values.into_iter().map(Int).collect::<Vec<_>>();
    match data_type {
        DataType::Boolean => vec![Bool(false), Bool(true)],
        DataType::Float32 => [
            f32::from_bits(0xffc0_0001),
            f32::NEG_INFINITY,
            f32::MIN,
            -3.5,
            -1.0,
            -f32::MIN_POSITIVE,
            -0.0,
            0.0,
            f32::from_bits(1),
            0.5,
            1.5,
            2.5,
            127.5,
            16_777_217.0,
            2_147_483_648.0,
            9.223_372e18,
            1e30,
            f32::MAX,
            f32::INFINITY,
            f32::NAN,
        ]
        .into_iter()
        .map(|value| Float(f64::from(value)))
        .collect(),
        DataType::Float64 => [
            f64::from_bits(0xfff8_0000_0000_0001),
            f64::NEG_INFINITY,
            f64::MIN,
            -1e18,
            -129.0,
            -128.9,
            -3.5,
            -1.0,
            -0.99,
            -0.0,
            0.0,
            f64::from_bits(1),
            0.1,
            0.5,
            1.005,
            2.5,
            255.9,
            4_294_967_295.5,
            9_007_199_254_740_993.0,
            9.3e18,
            1.9e19,
            1.6e38,
            1e300,
            f64::INFINITY,
            f64::NAN,
        ]
        .into_iter()
        .map(Float)
        .collect(),
        data_type if data_type.is_decimal() => {
            let (least, most) = match CType::native(data_type).unwrap().range() {
                Some((least, most)) => (i256::from_i128(least), i256::from_i128(most)),
                None => (i256::MIN, i256::MAX),
            };
            let (precision, _) = precision_scale(data_type);
            let digits = i256::from_i128(10).wrapping_pow(precision.into()).wrapping_sub(i256::ONE);
            let mut wide = vec![digits, digits.wrapping_neg(), least, least.wrapping_add(i256::ONE)];
            wide.extend([most, most.wrapping_sub(i256::ONE)]);
            for bits in [127u8, 128, 191, 200, 254] {
                let power = i256::ONE << bits;
                wide.extend([
                    power,
                    power.wrapping_neg(),
                    power.wrapping_sub(i256::ONE),
                    power.wrapping_neg().wrapping_sub(i256::ONE),
                ]);
            }
            let mut values = vec![0, 1, -1, 2, -2, 5, -5, 49, 50, -50, 51, 1234, -99_995, 123_456_789];
            values.extend([
                1i128 << 31,
                -(1 << 62),
                1 << 63,
                (1 << 63) - 1,
                -(1 << 63),
                1 << 64,
                (1 << 64) - 1,
                1 << 100,
                -(1 << 90) - 12345,
            ]);
            wide.extend(values.into_iter().map(i256::from_i128));
            wide.retain(|value| (least..=most).contains(value));
            wide.into_iter().map(number).collect()
        }
        data_type if CType::native(data_type).is_some_and(CType::is_integer) => {
            let (least, most) = CType::native(data_type).unwrap().range().unwrap();
            let mut values = vec![least, least + 1, most / 2, most - 1, most, 0, 1, 2, 7, 8, 10, 63, 100, 127, 128, 255, 256];
            values.extend([
                -1,
                -2,
                -7,
                -64,
                -129,
                32_768,
                65_536,
                86_399,
                86_400,
                -86_401,
                1 << 31,
                (1 << 31) - 1,
                -(1 << 31),
                1 << 32,
                253_402_300_800,
            ]);
            values.extend([
                1_700_000_000,
                1_700_000_000_123,
                1_700_000_000_123_456,
                1_700_000_000_123_456_789,
                -1_700_000_000_123_456_789,
                1 << 63,
            ]);
            values.extend([
                8_210_266_876_799,
                8_210_266_876_800,
                -8_334_601_228_800,
                -8_334_601_228_801,
                106_751,
                106_752,
                -106_752,
            ]);
            values.retain(|value| (least..=most).contains(value));
            values.sort_unstable();
            values.dedup();
            ints(values)
        }
        DataType::FixedSizeBinary(width) => {
            let mut values =
                vec![vec![0u8; *width as usize], vec![255; *width as usize], b"abcdefghijklmnop"[..*width as usize].to_vec()];
            values.dedup();
            values.into_iter().map(Bytes).collect()
        }
        _ => {
            let long = "x".repeat(5000);
            let long_other = format!("{}y", "x".repeat(4999));
            let values = [
                "",
                "a",
                "A",
                "b",
                "ab",
                "abc",
                "abcdefghijkl",
                "abcdefghijklm",
                "abcdefghijklz",
                "abcdefghijkl\0",
                "\0",
                "ä",
                "äö",
                "日本語",
                "日本語テキストです",
                "🦀",
                "zzz",
                &long,
                &long_other,
            ];
            values.into_iter().map(|value| Bytes(value.as_bytes().to_vec())).collect()
        }
    }
}

pub fn precision_scale(data_type: &DataType) -> (u8, i8) {
    match data_type {
        DataType::Decimal32(precision, scale)
        | DataType::Decimal64(precision, scale)
        | DataType::Decimal128(precision, scale)
        | DataType::Decimal256(precision, scale) => (*precision, *scale),
        other => panic!("{other} is no decimal"),
    }
}

/// An array of values and NULLs, with garbage under the NULLs.
pub fn array(data_type: &DataType, values: &[LiteralValue]) -> ArrayRef {
    let valid: Vec<bool> = values.iter().map(|value| *value != LiteralValue::Null).collect();
    let nulls = valid.contains(&false).then(|| NullBuffer::from(valid));
    match data_type {
        DataType::Null => new_null_array(data_type, values.len()),
        DataType::Boolean => {
            let bits: Vec<bool> = values.iter().map(|value| !matches!(value, LiteralValue::Bool(false))).collect();
            Arc::new(BooleanArray::new(bits.into(), nulls))
        }
        DataType::FixedSizeBinary(width) => {
            let mut bytes = Vec::new();
            for value in values {
                match value {
                    LiteralValue::Bytes(value) => bytes.extend_from_slice(value),
                    _ => bytes.extend(std::iter::repeat_n(0xabu8, *width as usize)),
                }
            }
            fixed(data_type, values.len(), bytes, nulls)
        }
        data_type if CType::native(data_type) == Some(CType::Str) => {
            let values: Vec<Option<&[u8]>> = values
                .iter()
                .map(|value| if let LiteralValue::Bytes(value) = value { Some(value.as_slice()) } else { None })
                .collect();
            let text = matches!(data_type, DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View);
            let binary: ArrayRef = Arc::new(BinaryArray::from(values));
            let base = if text { cast(&binary, &DataType::Utf8).unwrap() } else { binary };
            cast(&base, data_type).unwrap()
        }
        data_type => {
            let width = CType::native(data_type).unwrap().width();
            let mut bytes = Vec::new();
            for value in values {
                match (value, data_type) {
                    (LiteralValue::Int(value), _) => bytes.extend_from_slice(&i256::from_i128(*value).to_le_bytes()[..width]),
                    (LiteralValue::Wide(value), _) => bytes.extend_from_slice(&value.to_le_bytes()),
                    (LiteralValue::Float(value), DataType::Float32) => bytes.extend_from_slice(&(*value as f32).to_le_bytes()),
                    (LiteralValue::Float(value), _) => bytes.extend_from_slice(&value.to_le_bytes()),
                    _ => bytes.extend(std::iter::repeat_n(0x80u8, width)),
                }
            }
            fixed(data_type, values.len(), bytes, nulls)
        }
    }
}

fn fixed(data_type: &DataType, len: usize, bytes: Vec<u8>, nulls: Option<NullBuffer>) -> ArrayRef {
    let mut aligned = arrow::buffer::MutableBuffer::new(bytes.len());
    aligned.extend_from_slice(&bytes);
    let data = ArrayData::builder(data_type.clone()).len(len).add_buffer(Buffer::from(aligned)).nulls(nulls).build().unwrap();
    make_array(data)
}

pub fn literal(data_type: &DataType, value: LiteralValue) -> Literal {
    Literal { data_type: data_type.clone(), value }
}

/// All pairs of two lists, NULL added to each, as two arrays.
pub fn pairs(left: &DataType, right: &DataType) -> (ArrayRef, ArrayRef) {
    pairs_of(left, &special(left), right, &special(right))
}

pub fn pairs_of(left: &DataType, lefts: &[LiteralValue], right: &DataType, rights: &[LiteralValue]) -> (ArrayRef, ArrayRef) {
    let (mut l, mut r) = (Vec::new(), Vec::new());
    for a in lefts.iter().chain([&LiteralValue::Null]) {
        for b in rights.iter().chain([&LiteralValue::Null]) {
            l.push(a.clone());
            r.push(b.clone());
        }
    }
    (array(left, &l), array(right, &r))
}
