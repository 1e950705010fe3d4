// SPDX-License-Identifier: Apache-2.0
//! Futhark's primitive types, and their values.

use half::f16;
use libffi::middle::{Arg, Type, arg};
use serde::Deserialize;

/// A primitive type of Futhark.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Deserialize)]
#[serde(rename_all = "lowercase")]
#[expect(missing_docs, reason = "the names are Futhark's")]
pub enum Primitive {
    I8,
    I16,
    I32,
    I64,
    U8,
    U16,
    U32,
    U64,
    F16,
    F32,
    F64,
    Bool,
}

impl Primitive {
    /// All primitive types.
    pub const ALL: [Primitive; 12] = {
        use Primitive::*;
        [I8, I16, I32, I64, U8, U16, U32, U64, F16, F32, F64, Bool]
    };

    /// Futhark's name.
    ///
    /// ```
    /// assert_eq!(futhark::Primitive::I32.name(), "i32");
    /// ```
    pub fn name(self) -> &'static str {
        match self {
            Primitive::I8 => "i8",
            Primitive::I16 => "i16",
            Primitive::I32 => "i32",
            Primitive::I64 => "i64",
            Primitive::U8 => "u8",
            Primitive::U16 => "u16",
            Primitive::U32 => "u32",
            Primitive::U64 => "u64",
            Primitive::F16 => "f16",
            Primitive::F32 => "f32",
            Primitive::F64 => "f64",
            Primitive::Bool => "bool",
        }
    }

    /// The primitive type of a name; `None` for other names.
    pub fn from_name(name: &str) -> Option<Primitive> {
        Primitive::ALL.into_iter().find(|primitive| primitive.name() == name)
    }

    /// The size of a value in bytes; also its alignment in C.
    pub fn bytes(self) -> usize {
        match self {
            Primitive::I8 | Primitive::U8 | Primitive::Bool => 1,
            Primitive::I16 | Primitive::U16 | Primitive::F16 => 2,
            Primitive::I32 | Primitive::U32 | Primitive::F32 => 4,
            Primitive::I64 | Primitive::U64 | Primitive::F64 => 8,
        }
    }

    /// The type of a parameter in C. An `f16` is passed as its bits.
    pub(crate) fn ffi(self) -> Type {
        match self {
            Primitive::I8 => Type::i8(),
            Primitive::I16 => Type::i16(),
            Primitive::I32 => Type::i32(),
            Primitive::I64 => Type::i64(),
            Primitive::U8 | Primitive::Bool => Type::u8(),
            Primitive::U16 | Primitive::F16 => Type::u16(),
            Primitive::U32 => Type::u32(),
            Primitive::U64 => Type::u64(),
            Primitive::F32 => Type::f32(),
            Primitive::F64 => Type::f64(),
        }
    }
}

/// A value of a primitive type.
#[derive(Debug, Clone, Copy, PartialEq)]
#[expect(missing_docs, reason = "the names are Futhark's")]
pub enum Scalar {
    I8(i8),
    I16(i16),
    I32(i32),
    I64(i64),
    U8(u8),
    U16(u16),
    U32(u32),
    U64(u64),
    F16(f16),
    F32(f32),
    F64(f64),
    Bool(bool),
}

impl Scalar {
    /// The value's type.
    pub fn primitive(&self) -> Primitive {
        match self {
            Scalar::I8(_) => Primitive::I8,
            Scalar::I16(_) => Primitive::I16,
            Scalar::I32(_) => Primitive::I32,
            Scalar::I64(_) => Primitive::I64,
            Scalar::U8(_) => Primitive::U8,
            Scalar::U16(_) => Primitive::U16,
            Scalar::U32(_) => Primitive::U32,
            Scalar::U64(_) => Primitive::U64,
            Scalar::F16(_) => Primitive::F16,
            Scalar::F32(_) => Primitive::F32,
            Scalar::F64(_) => Primitive::F64,
            Scalar::Bool(_) => Primitive::Bool,
        }
    }

    /// A value from native-endian bytes; `None` if there are too few. Any byte but 0 is true.
    ///
    /// ```
    /// use futhark::{Primitive, Scalar};
    /// assert_eq!(Scalar::from_bytes(Primitive::I16, &7i16.to_ne_bytes()), Some(Scalar::I16(7)));
    /// ```
    pub fn from_bytes(primitive: Primitive, bytes: &[u8]) -> Option<Scalar> {
        Some(match primitive {
            Primitive::I8 => Scalar::I8(i8::from_ne_bytes(*bytes.first_chunk()?)),
            Primitive::I16 => Scalar::I16(i16::from_ne_bytes(*bytes.first_chunk()?)),
            Primitive::I32 => Scalar::I32(i32::from_ne_bytes(*bytes.first_chunk()?)),
            Primitive::I64 => Scalar::I64(i64::from_ne_bytes(*bytes.first_chunk()?)),
            Primitive::U8 => Scalar::U8(*bytes.first()?),
            Primitive::U16 => Scalar::U16(u16::from_ne_bytes(*bytes.first_chunk()?)),
            Primitive::U32 => Scalar::U32(u32::from_ne_bytes(*bytes.first_chunk()?)),
            Primitive::U64 => Scalar::U64(u64::from_ne_bytes(*bytes.first_chunk()?)),
            Primitive::F16 => Scalar::F16(f16::from_ne_bytes(*bytes.first_chunk()?)),
            Primitive::F32 => Scalar::F32(f32::from_ne_bytes(*bytes.first_chunk()?)),
            Primitive::F64 => Scalar::F64(f64::from_ne_bytes(*bytes.first_chunk()?)),
            Primitive::Bool => Scalar::Bool(*bytes.first()? != 0),
        })
    }

    /// The value's native-endian bytes.
    ///
    /// ```
    /// assert_eq!(futhark::Scalar::Bool(true).to_bytes(), [1]);
    /// ```
    pub fn to_bytes(&self) -> Vec<u8> {
        match self {
            Scalar::I8(value) => value.to_ne_bytes().to_vec(),
            Scalar::I16(value) => value.to_ne_bytes().to_vec(),
            Scalar::I32(value) => value.to_ne_bytes().to_vec(),
            Scalar::I64(value) => value.to_ne_bytes().to_vec(),
            Scalar::U8(value) => vec![*value],
            Scalar::U16(value) => value.to_ne_bytes().to_vec(),
            Scalar::U32(value) => value.to_ne_bytes().to_vec(),
            Scalar::U64(value) => value.to_ne_bytes().to_vec(),
            Scalar::F16(value) => value.to_ne_bytes().to_vec(),
            Scalar::F32(value) => value.to_ne_bytes().to_vec(),
            Scalar::F64(value) => value.to_ne_bytes().to_vec(),
            Scalar::Bool(value) => vec![u8::from(*value)],
        }
    }

    pub(crate) fn ffi(&self) -> Arg<'_> {
        match self {
            Scalar::I8(value) => arg(value),
            Scalar::I16(value) => arg(value),
            Scalar::I32(value) => arg(value),
            Scalar::I64(value) => arg(value),
            Scalar::U8(value) => arg(value),
            Scalar::U16(value) => arg(value),
            Scalar::U32(value) => arg(value),
            Scalar::U64(value) => arg(value),
            Scalar::F16(value) => arg(value),
            Scalar::F32(value) => arg(value),
            Scalar::F64(value) => arg(value),
            Scalar::Bool(value) => arg(value),
        }
    }
}

mod sealed {
    pub trait Sealed {}
}

/// A Rust type with the memory layout of a primitive type.
pub trait Element: Copy + Default + sealed::Sealed {
    /// The primitive type.
    const PRIMITIVE: Primitive;
}

macro_rules! elements {
    ($($native:ty => $primitive:ident),*) => {$(
        impl sealed::Sealed for $native {}
        impl Element for $native {
            const PRIMITIVE: Primitive = Primitive::$primitive;
        }
    )*};
}

elements!(
    i8 => I8, i16 => I16, i32 => I32, i64 => I64, u8 => U8, u16 => U16, u32 => U32, u64 => U64,
    f16 => F16, f32 => F32, f64 => F64, bool => Bool
);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_bytes_round_trip() {
        for primitive in Primitive::ALL {
            assert_eq!(Primitive::from_name(primitive.name()), Some(primitive));
            let bytes = [1, 2, 3, 4, 5, 6, 7, 8];
            let scalar = Scalar::from_bytes(primitive, &bytes).unwrap();
            assert_eq!(scalar.primitive(), primitive);
            assert_eq!(scalar.to_bytes(), bytes[..primitive.bytes()]);
            assert_eq!(Scalar::from_bytes(primitive, &[]), None);
        }
        assert_eq!(Primitive::from_name("i128"), None);
        assert_eq!(Scalar::from_bytes(Primitive::Bool, &[255]), Some(Scalar::Bool(true)));
    }
}
