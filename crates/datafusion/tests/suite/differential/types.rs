// SPDX-License-Identifier: Apache-2.0
//! Column types of random tables, their values including special ones, and their literals.

use arrow::array::{Array, ArrayRef};
use arrow::datatypes::{DataType, Field, TimeUnit};
use datafusion::common::ScalarValue;
use rand::Rng;
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;

use super::pools::Pools;

/// Classes of types that the generator of expressions distinguishes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Kind {
    Bool,
    Int,
    Float,
    Decimal,
    Text,
    Binary,
    /// Dates, times, timestamps and durations, which combine with their own type only.
    Temporal(DataType),
}

impl Kind {
    /// Type of computed expressions of the kind.
    pub fn usual_type(&self) -> DataType {
        match self {
            Kind::Bool => DataType::Boolean,
            Kind::Int => DataType::Int64,
            Kind::Float => DataType::Float64,
            // The precision is unknown: this type is wide enough to keep it out of arithmetic.
            Kind::Decimal => DataType::Decimal128(38, 2),
            Kind::Text => DataType::Utf8,
            Kind::Binary => DataType::Binary,
            Kind::Temporal(data_type) => data_type.clone(),
        }
    }
}

/// A column of a random table.
#[derive(Debug, Clone)]
pub struct Column {
    pub name: String,
    pub data_type: DataType,
    pub nullable: bool,
    /// Few distinct values, for keys.
    pub few: bool,
    /// Values whose sums are exact in every order: multiples of 1/8 below 1000.
    pub tame: bool,
    /// Columns of one domain take their values from one pool, so that joins on them find matches.
    pub domain: Option<usize>,
}

impl Column {
    pub fn kind(&self) -> Kind {
        kind(&self.data_type)
    }

    pub fn field(&self) -> Field {
        Field::new(&self.name, self.data_type.clone(), self.nullable)
    }

    /// A value of the column.
    fn value(&self, rng: &mut StdRng, pools: &Pools, row: usize) -> ScalarValue {
        if let Some(domain) = self.domain {
            return pools.value(rng, domain, value_type(&self.data_type), self.nullable, row);
        }
        if self.nullable && rng.random_bool(0.15) {
            return ScalarValue::try_new_null(value_type(&self.data_type)).unwrap();
        }
        self.value_not_null(rng)
    }

    /// A value of the column that is not NULL.
    pub fn value_not_null(&self, rng: &mut StdRng) -> ScalarValue {
        value(rng, value_type(&self.data_type), self.few, self.tame)
    }

    /// Values of the rows with the given numbers.
    pub fn array(&self, rng: &mut StdRng, pools: &Pools, rows: impl Iterator<Item = usize>, all_null: bool) -> ArrayRef {
        let null = ScalarValue::try_new_null(value_type(&self.data_type)).unwrap();
        let values: Vec<ScalarValue> =
            rows.map(|row| if all_null && self.nullable { null.clone() } else { self.value(rng, pools, row) }).collect();
        self.array_of(values)
    }

    /// Values as an array of the column's type.
    pub fn array_of(&self, values: Vec<ScalarValue>) -> ArrayRef {
        let array = if values.is_empty() {
            arrow::array::new_empty_array(value_type(&self.data_type))
        } else {
            ScalarValue::iter_to_array(values).unwrap()
        };
        if array.data_type() == &self.data_type { array } else { arrow::compute::cast(&array, &self.data_type).unwrap() }
    }
}

/// The kind of a type.
pub fn kind(data_type: &DataType) -> Kind {
    match value_type(data_type) {
        DataType::Boolean => Kind::Bool,
        data_type if data_type.is_integer() => Kind::Int,
        DataType::Float32 | DataType::Float64 => Kind::Float,
        DataType::Decimal32(..) | DataType::Decimal64(..) | DataType::Decimal128(..) => Kind::Decimal,
        DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View => Kind::Text,
        DataType::Binary | DataType::LargeBinary | DataType::BinaryView | DataType::FixedSizeBinary(_) => Kind::Binary,
        other => Kind::Temporal(other.clone()),
    }
}

pub fn value_type(data_type: &DataType) -> &DataType {
    match data_type {
        DataType::Dictionary(_, values) => values,
        other => other,
    }
}

/// Random type of a column.
pub fn data_type(rng: &mut StdRng) -> DataType {
    use DataType::*;
    let units = [TimeUnit::Second, TimeUnit::Millisecond, TimeUnit::Microsecond, TimeUnit::Nanosecond];
    let unit = *units.choose(rng).unwrap();
    match rng.random_range(0..30) {
        0 | 1 => Boolean,
        2..=9 => [Int8, Int16, Int32, Int64, UInt8, UInt16, UInt32, UInt64].choose(rng).unwrap().clone(),
        10..=13 => [Float64, Float32].choose(rng).unwrap().clone(),
        14..=17 => {
            [Decimal128(15, 2), Decimal128(15, 2), Decimal128(9, 4), Decimal128(38, 10), Decimal64(12, 3), Decimal32(7, 2)]
                .choose(rng)
                .unwrap()
                .clone()
        }
        18..=22 => [
            Utf8,
            Utf8,
            Utf8View,
            Utf8View,
            LargeUtf8,
            Dictionary(Box::new(Int32), Box::new(Utf8)),
            Dictionary(Box::new(UInt8), Box::new(Utf8)),
            Dictionary(Box::new(Int16), Box::new(Utf8View)),
        ]
        .choose(rng)
        .unwrap()
        .clone(),
        23 => [Binary, LargeBinary, BinaryView, FixedSizeBinary(4)].choose(rng).unwrap().clone(),
        24 | 25 => [Date32, Date32, Date64].choose(rng).unwrap().clone(),
        26 | 27 => {
            let zone = *[None, None, None, Some("UTC"), Some("+02:00"), Some("Europe/Berlin")].choose(rng).unwrap();
            Timestamp(unit, zone.map(Into::into))
        }
        28 => match unit {
            TimeUnit::Second | TimeUnit::Millisecond => Time32(unit),
            _ => Time64(unit),
        },
        _ => Duration(unit),
    }
}

/// Random value, often a special one. `few` draws from a handful, `tame` from values with exact
/// sums.
pub fn value(rng: &mut StdRng, data_type: &DataType, few: bool, tame: bool) -> ScalarValue {
    use DataType as T;
    macro_rules! int {
        ($variant:ident, $native:ty) => {
            ScalarValue::$variant(Some(integer(rng, few, <$native>::MIN as i128, <$native>::MAX as i128) as $native))
        };
    }
    match data_type {
        T::Boolean => ScalarValue::Boolean(Some(rng.random_bool(0.5))),
        T::Int8 => int!(Int8, i8),
        T::Int16 => int!(Int16, i16),
        T::Int32 => int!(Int32, i32),
        T::Int64 => int!(Int64, i64),
        T::UInt8 => int!(UInt8, u8),
        T::UInt16 => int!(UInt16, u16),
        T::UInt32 => int!(UInt32, u32),
        T::UInt64 => int!(UInt64, u64),
        T::Float32 => ScalarValue::Float32(Some(float(rng, few, tame, true) as f32)),
        T::Float64 => ScalarValue::Float64(Some(float(rng, few, tame, false))),
        T::Decimal32(p, s) => ScalarValue::Decimal32(Some(decimal(rng, few, *p) as i32), *p, *s),
        T::Decimal64(p, s) => ScalarValue::Decimal64(Some(decimal(rng, few, *p) as i64), *p, *s),
        T::Decimal128(p, s) => ScalarValue::Decimal128(Some(decimal(rng, few, *p)), *p, *s),
        T::Utf8 => ScalarValue::Utf8(Some(string(rng, few))),
        T::LargeUtf8 => ScalarValue::LargeUtf8(Some(string(rng, few))),
        T::Utf8View => ScalarValue::Utf8View(Some(string(rng, few))),
        T::Binary => ScalarValue::Binary(Some(bytes(rng, few))),
        T::LargeBinary => ScalarValue::LargeBinary(Some(bytes(rng, few))),
        T::BinaryView => ScalarValue::BinaryView(Some(bytes(rng, few))),
        T::FixedSizeBinary(len) => {
            let mut value = bytes(rng, few);
            value.resize(*len as usize, 0x80);
            ScalarValue::FixedSizeBinary(*len, Some(value))
        }
        T::Date32 => ScalarValue::Date32(Some(days(rng, few) as i32)),
        T::Date64 => ScalarValue::Date64(Some(days(rng, few) * 86_400_000)),
        T::Timestamp(unit, zone) => {
            let zone = zone.clone();
            let value = days(rng, few) * 86_400 + if few { 0 } else { rng.random_range(0..86_400) };
            let fraction = |rng: &mut StdRng, units: i64| value * units + if few { 0 } else { rng.random_range(0..units) };
            match unit {
                TimeUnit::Second => ScalarValue::TimestampSecond(Some(value), zone),
                TimeUnit::Millisecond => ScalarValue::TimestampMillisecond(Some(fraction(rng, 1000)), zone),
                TimeUnit::Microsecond => ScalarValue::TimestampMicrosecond(Some(fraction(rng, 1_000_000)), zone),
                TimeUnit::Nanosecond => ScalarValue::TimestampNanosecond(Some(fraction(rng, 1_000_000_000)), zone),
            }
        }
        T::Time32(TimeUnit::Second) => ScalarValue::Time32Second(Some(time(rng, few, 1) as i32)),
        T::Time32(_) => ScalarValue::Time32Millisecond(Some(time(rng, few, 1000) as i32)),
        T::Time64(TimeUnit::Microsecond) => ScalarValue::Time64Microsecond(Some(time(rng, few, 1_000_000))),
        T::Time64(_) => ScalarValue::Time64Nanosecond(Some(time(rng, few, 1_000_000_000))),
        T::Duration(unit) => {
            let value = Some(integer(rng, few, -10_000_000_000, 10_000_000_000) as i64);
            match unit {
                TimeUnit::Second => ScalarValue::DurationSecond(value),
                TimeUnit::Millisecond => ScalarValue::DurationMillisecond(value),
                TimeUnit::Microsecond => ScalarValue::DurationMicrosecond(value),
                TimeUnit::Nanosecond => ScalarValue::DurationNanosecond(value),
            }
        }
        other => panic!("no values of type {other}"),
    }
}

fn integer(rng: &mut StdRng, few: bool, min: i128, max: i128) -> i128 {
    if few {
        return *[min, 0, 1, 2, 3, 7, max].choose(rng).unwrap();
    }
    match rng.random_range(0..10) {
        0 => *[min, max, min + 1, max - 1, 0].choose(rng).unwrap(),
        1..=6 => rng.random_range(-10..=10).clamp(min, max),
        7 => rng.random_range(0..=100).clamp(min, max),
        _ => rng.random_range(min..=max),
    }
}

fn float(rng: &mut StdRng, few: bool, tame: bool, single: bool) -> f64 {
    if rng.random_bool(if tame { 0.01 } else { 0.1 }) {
        return *[f64::NAN, f64::INFINITY, f64::NEG_INFINITY].choose(rng).unwrap();
    }
    if few {
        return *[0.0, -0.0, 1.0, -1.0, 2.5, 0.125].choose(rng).unwrap();
    }
    if !tame && rng.random_bool(0.2) {
        let wide = [f64::MAX, f64::MIN, f64::MIN_POSITIVE, 5e-324, -5e-324, 0.1, 1e300, 9_007_199_254_740_993.0];
        let narrow = [f32::MAX as f64, f32::MIN as f64, f32::MIN_POSITIVE as f64, 1e-45, 0.1, 16_777_217.0, 3e9, 1e19];
        return *if single { &narrow } else { &wide }.choose(rng).unwrap();
    }
    match rng.random_range(0..6) {
        0 => *[0.0, -0.0].choose(rng).unwrap(),
        1 | 2 => rng.random_range(-10..=10) as f64,
        _ => rng.random_range(-8000..=8000) as f64 / 8.0,
    }
}

fn decimal(rng: &mut StdRng, few: bool, precision: u8) -> i128 {
    let limit = 10i128.pow(u32::from(precision)) - 1;
    if few {
        return *[0, 100, 250, -100, 9999].choose(rng).unwrap();
    }
    match rng.random_range(0..10) {
        0 => *[limit, -limit, 0, 1, -1, 5, 50].choose(rng).unwrap(),
        1..=5 => rng.random_range(-2000..=2000),
        6 | 7 => rng.random_range(-100..=100) * 100,
        _ => rng.random_range(-limit..=limit),
    }
}

fn string(rng: &mut StdRng, few: bool) -> String {
    const FEW: &[&str] = &["", "a", "b", "abcdefghijkl", "abcdefghijklm", "é", "日本語"];
    const MORE: &[&str] = &[
        "ab",
        "abc",
        "A",
        " a",
        "a ",
        "123",
        "-7",
        "12.5",
        "-1e-3",
        "NaN",
        "true",
        "1970-01-01",
        "abcdefghijklmnopqrstuvwxyz",
        "abcdefghijklmnopqrstuvwxyy",
        "A string that does not fit into a view, naïve",
        "𝄞",
        "\u{10ffff}",
        "\u{7f}",
        "日本",
    ];
    if few || rng.random_bool(0.4) {
        return FEW.choose(rng).unwrap().to_string();
    }
    if rng.random_bool(0.5) {
        return MORE.choose(rng).unwrap().to_string();
    }
    if rng.random_bool(0.01) {
        return "long é ".repeat(rng.random_range(600..800));
    }
    let letters = ['a', 'b', 'c', 'z', 'é', '0', '9', ' ', '日'];
    (0..rng.random_range(0..16)).map(|_| *letters.choose(rng).unwrap()).collect()
}

fn bytes(rng: &mut StdRng, few: bool) -> Vec<u8> {
    if few {
        return [vec![], vec![0], vec![0, 0], vec![255], vec![1, 2, 3, 4]].choose(rng).unwrap().clone();
    }
    (0..rng.random_range(0..20)).map(|_| *[0, 1, 127, 128, 255].choose(rng).unwrap()).collect()
}

/// Days since 1970, within the range of nanosecond timestamps.
fn days(rng: &mut StdRng, few: bool) -> i64 {
    if few {
        return *[0, -1, 1, 19_782, -25_567].choose(rng).unwrap();
    }
    match rng.random_range(0..4) {
        0 => *[0, -1, 1, 19_782, -106_000, 106_000, 11_016].choose(rng).unwrap(),
        _ => rng.random_range(-106_000..106_000),
    }
}

fn time(rng: &mut StdRng, few: bool, units: i64) -> i64 {
    if few || rng.random_bool(0.2) {
        return *[0, 1, 86_400 * units - 1, 43_200 * units].choose(rng).unwrap();
    }
    rng.random_range(0..86_400 * units)
}

/// Name of a type, as `arrow_cast` takes it.
pub fn type_name(data_type: &DataType) -> String {
    data_type.to_string()
}

/// SQL literal of exactly the value's type.
pub fn literal(value: &ScalarValue) -> String {
    let data_type = value.data_type();
    let name = type_name(&data_type);
    if value.is_null() {
        return format!("arrow_cast(NULL, '{name}')");
    }
    match value {
        ScalarValue::Boolean(Some(value)) => value.to_string(),
        ScalarValue::Int64(Some(value)) if *value != i64::MIN => value.to_string(),
        ScalarValue::Utf8(Some(text)) => quoted(text),
        ScalarValue::LargeUtf8(Some(text)) | ScalarValue::Utf8View(Some(text)) => {
            format!("arrow_cast({}, '{name}')", quoted(text))
        }
        ScalarValue::Binary(Some(bytes))
        | ScalarValue::LargeBinary(Some(bytes))
        | ScalarValue::BinaryView(Some(bytes))
        | ScalarValue::FixedSizeBinary(_, Some(bytes)) => {
            let digits: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
            format!("arrow_cast(x'{digits}', '{name}')")
        }
        ScalarValue::Float32(Some(value)) => format!("arrow_cast('{value:e}', '{name}')"),
        ScalarValue::Float64(Some(value)) => format!("arrow_cast('{value:e}', '{name}')"),
        _ if data_type.is_temporal() => {
            let integer = match data_type {
                DataType::Date32 | DataType::Time32(_) => DataType::Int32,
                _ => DataType::Int64,
            };
            let number = value.cast_to(&integer).unwrap();
            format!("arrow_cast(arrow_cast('{number}', '{integer}'), '{name}')")
        }
        _ => {
            let number = value.cast_to(&DataType::Utf8).unwrap();
            format!("arrow_cast('{number}', '{name}')")
        }
    }
}

fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', "''"))
}
