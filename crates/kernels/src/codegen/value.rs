// SPDX-License-Identifier: Apache-2.0
//! Values of a row in C.

use arrow::datatypes::{DataType, IntervalUnit, i256};
use columnar::{Carrier, ColumnType};

/// Type of a value in C.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[allow(missing_docs)]
pub enum CType {
    /// 0 or 1; a byte in memory.
    Bool,
    I8,
    I16,
    I32,
    I64,
    I128,
    I256,
    U8,
    U16,
    U32,
    U64,
    F32,
    F64,
    /// Pointer to bytes in global memory, and length.
    Str,
    /// Offset and length of a list among its column's elements, packed in a u64.
    List,
    /// A new string composed by the row: a call that appends it to an output. `#` is the output's
    /// pointer, `@` its length; see [`Value::measured`].
    ComposedString,
}

impl CType {
    /// The C type that holds all values of a logical type; `None` for an unsupported type.
    pub fn native(data_type: &DataType) -> Option<CType> {
        Some(match data_type {
            DataType::Null | DataType::Boolean => CType::Bool,
            DataType::Int8 => CType::I8,
            DataType::Int16 => CType::I16,
            DataType::Int32 | DataType::Date32 | DataType::Time32(_) | DataType::Decimal32(_, _) => CType::I32,
            DataType::Int64
            | DataType::Date64
            | DataType::Time64(_)
            | DataType::Timestamp(_, _)
            | DataType::Duration(_)
            | DataType::Decimal64(_, _) => CType::I64,
            DataType::Decimal128(_, _) | DataType::Interval(IntervalUnit::MonthDayNano) => CType::I128,
            DataType::Decimal256(_, _) => CType::I256,
            DataType::UInt8 => CType::U8,
            DataType::UInt16 => CType::U16,
            DataType::UInt32 => CType::U32,
            DataType::UInt64 => CType::U64,
            DataType::Float32 => CType::F32,
            DataType::Float64 => CType::F64,
            DataType::Utf8
            | DataType::LargeUtf8
            | DataType::Utf8View
            | DataType::Binary
            | DataType::LargeBinary
            | DataType::BinaryView
            | DataType::FixedSizeBinary(_) => CType::Str,
            DataType::Dictionary(_, value) if !matches!(**value, DataType::Dictionary(_, _)) => return CType::native(value),
            DataType::List(_) | DataType::LargeList(_) | DataType::FixedSizeList(_, _) => {
                ColumnType::of(data_type, true).map(|_| CType::List)?
            }
            _ => return None,
        })
    }

    /// The C type of a carrier's values.
    pub const fn of_carrier(carrier: Carrier) -> CType {
        match carrier {
            Carrier::I8 => CType::I8,
            Carrier::I16 => CType::I16,
            Carrier::I32 => CType::I32,
            Carrier::I64 => CType::I64,
            Carrier::I128 => CType::I128,
            Carrier::I256 => CType::I256,
            Carrier::U8 => CType::U8,
            Carrier::U16 => CType::U16,
            Carrier::U32 => CType::U32,
            Carrier::U64 => CType::U64,
            Carrier::F32 => CType::F32,
            Carrier::F64 => CType::F64,
        }
    }

    /// Name of the type of array elements.
    pub const fn name(self) -> &'static str {
        match self {
            CType::Bool | CType::U8 => "u8",
            CType::I8 => "i8",
            CType::I16 => "i16",
            CType::I32 => "i32",
            CType::I64 => "i64",
            CType::I128 => "i128",
            CType::I256 => "i256",
            CType::U16 => "u16",
            CType::U32 => "u32",
            CType::U64 | CType::List => "u64",
            CType::F32 => "f32",
            CType::F64 => "f64",
            CType::Str => "str",
            CType::ComposedString => "composed_string",
        }
    }

    /// Name of the type of locals: that of elements, but `i32` for Booleans.
    pub const fn local(self) -> &'static str {
        match self {
            CType::Bool => "i32",
            other => other.name(),
        }
    }

    /// Bytes of an array element; 0 for strings.
    pub const fn width(self) -> usize {
        match self {
            CType::Bool | CType::I8 | CType::U8 => 1,
            CType::I16 | CType::U16 => 2,
            CType::I32 | CType::U32 | CType::F32 => 4,
            CType::I64 | CType::U64 | CType::F64 | CType::List => 8,
            CType::I128 => 16,
            CType::I256 => 32,
            CType::Str | CType::ComposedString => 0,
        }
    }

    /// Whether it is an integer; Booleans are not.
    pub const fn is_integer(self) -> bool {
        !matches!(self, CType::Bool | CType::F32 | CType::F64 | CType::Str | CType::List | CType::ComposedString)
    }

    /// Whether it is a float.
    pub const fn is_float(self) -> bool {
        matches!(self, CType::F32 | CType::F64)
    }

    /// Whether it is a signed integer.
    pub const fn is_signed(self) -> bool {
        matches!(self, CType::I8 | CType::I16 | CType::I32 | CType::I64 | CType::I128 | CType::I256)
    }

    /// Whether it is an integer of more than 64 bits, without operators in C.
    pub const fn is_wide(self) -> bool {
        matches!(self, CType::I128 | CType::I256)
    }

    /// Least and greatest value of an integer type of at most 128 bits.
    pub const fn range(self) -> Option<(i128, i128)> {
        Some(match self {
            CType::I8 => (i8::MIN as i128, i8::MAX as i128),
            CType::I16 => (i16::MIN as i128, i16::MAX as i128),
            CType::I32 => (i32::MIN as i128, i32::MAX as i128),
            CType::I64 => (i64::MIN as i128, i64::MAX as i128),
            CType::I128 => (i128::MIN, i128::MAX),
            CType::Bool => (0, 1),
            CType::U8 => (0, u8::MAX as i128),
            CType::U16 => (0, u16::MAX as i128),
            CType::U32 => (0, u32::MAX as i128),
            CType::U64 => (0, u64::MAX as i128),
            _ => return None,
        })
    }

    /// A constant of this type, the value of NULL rows.
    pub const fn zero(self) -> &'static str {
        match self {
            CType::I128 => "i128_of(0)",
            CType::I256 => "i256_of(0)",
            CType::Str => "str_make(0, 0)",
            _ => "0",
        }
    }
}

/// A value of the current row.
#[derive(Debug, Clone, PartialEq)]
pub struct Value {
    /// Logical type.
    pub data_type: DataType,
    /// Type in C; for a decimal possibly narrower than the native type.
    pub ctype: CType,
    /// C expression without side effects: a local, a parameter or a constant. Unspecified but
    /// readable where the value is NULL.
    pub code: String,
    /// C expression, 0 or 1: whether the value is not NULL. `None`: never NULL.
    pub valid: Option<String>,
    /// Least and greatest value where known, for integers and decimals of at most 128 bits.
    pub bounds: Option<(i128, i128)>,
}

impl Value {
    /// NULL of a type.
    pub fn null(data_type: DataType, ctype: CType) -> Value {
        Value { data_type, ctype, code: ctype.zero().into(), valid: Some("0".into()), bounds: None }
    }

    /// Validity in C: `1` for a value that is never NULL.
    pub fn valid_code(&self) -> &str {
        self.valid.as_deref().unwrap_or("1")
    }

    /// C of a string's number of bytes.
    pub fn measured(&self) -> String {
        match self.ctype {
            CType::ComposedString => self.code.replace('#', "(G u8 *)0").replace('@', "0"),
            _ => format!("{}.len", self.code),
        }
    }

    /// C that writes a string's bytes to a pointer.
    pub fn written(&self, to: &str) -> String {
        match self.ctype {
            CType::ComposedString => format!("{};", self.code.replace('#', to).replace('@', "0")),
            _ => format!("for (u32 i = 0; i < {0}.len; ++i) {to}[i] = {0}.p[i];", self.code),
        }
    }

    /// Whether the value is always NULL.
    pub fn is_null(&self) -> bool {
        self.valid.as_deref() == Some("0")
    }

    /// C, 0 or 1: whether a Boolean is true (neither false nor NULL).
    pub fn is_true(&self) -> String {
        match &self.valid {
            None => self.code.clone(),
            Some(valid) => format!("({} & {valid})", self.code),
        }
    }

    /// C, 0 or 1: whether a Boolean is false (neither true nor NULL).
    pub fn is_false(&self) -> String {
        match &self.valid {
            None => format!("!{}", self.code),
            Some(valid) => format!("(!{} & {valid})", self.code),
        }
    }

    /// The bounds; without them, the range of the C type.
    pub fn range(&self) -> Option<(i128, i128)> {
        self.bounds.or(self.ctype.range())
    }

    /// Range of the C value over all rows; bounds do not hold for NULL rows.
    pub fn raw_range(&self) -> Option<(i128, i128)> {
        if self.valid.is_some() { self.ctype.range() } else { self.range() }
    }

    /// C of the value in another integer type, which must hold it.
    pub fn to_ctype(&self, to: CType) -> String {
        let code = &self.code;
        match (self.ctype, to) {
            (from, to) if from == to => code.clone(),
            (CType::U64, CType::I128) => format!("i128_of_u64({code})"),
            (CType::I256, CType::I128) => format!("i256_low({code})"),
            (_, CType::I128) => format!("i128_of((i64){code})"),
            (CType::I128, CType::I256) => format!("i256_of_i128({code})"),
            (CType::U64, CType::I256) => format!("i256_of_u64({code})"),
            (_, CType::I256) => format!("i256_of((i64){code})"),
            (CType::I256, to) => format!("(({}){code}.w[0])", to.local()),
            (CType::I128, to) => format!("(({}){code}.lo)", to.local()),
            (_, to) => format!("(({}){code})", to.local()),
        }
    }
}

/// C of an integer constant.
pub fn literal(ctype: CType, value: i128) -> String {
    match (ctype, value) {
        (CType::I128, _) if i64::try_from(value).is_ok_and(|value| value.unsigned_abs() < 1 << 31) => format!("i128_of({value})"),
        (CType::I128, _) => format!("i128_make((u64){:#x}UL, (u64){:#x}UL)", value as u64, (value >> 64) as u64),
        (CType::I256, _) => wide_literal(i256::from_i128(value)),
        (_, 0..=0x7fff_ffff) => format!("{value}"),
        (_, -0x7fff_ffff..0) => format!("({value})"),
        (CType::I64, _) => format!("(i64){:#x}UL", value as u64),
        (CType::U64, _) => format!("(u64){:#x}UL", value as u64),
        (CType::U32, _) => format!("{:#x}u", value as u32),
        (_, _) => format!("(i32){:#x}u", value as u32),
    }
}

/// C of an integer constant of 256 bits.
pub fn wide_literal(value: i256) -> String {
    if let Some(small) = value.to_i128().filter(|value| value.unsigned_abs() < 1 << 31) {
        return format!("i256_of({small})");
    }
    let (low, high) = value.to_parts();
    let words = [low as u64, (low >> 64) as u64, high as u64, (high >> 64) as u64];
    format!("i256_make({})", words.map(|word| format!("(u64){word:#x}UL")).join(", "))
}
