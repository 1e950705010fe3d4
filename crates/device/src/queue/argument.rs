// SPDX-License-Identifier: Apache-2.0
//! Arguments of launches.

use crate::memory::Buffer;

/// An argument of a launch.
///
/// # Examples
/// ```
/// let args = [device::Arg::from(7u32), 2.5f64.into()];
/// assert!(matches!(args, [device::Arg::U32(7), device::Arg::F64(_)]));
/// ```
#[derive(Debug, Clone, Copy)]
#[allow(missing_docs)]
pub enum Arg<'a> {
    Buffer(&'a Buffer),
    U8(u8),
    I8(i8),
    U16(u16),
    I16(i16),
    U32(u32),
    I32(i32),
    U64(u64),
    I64(i64),
    F32(f32),
    F64(f64),
}

impl<'a> From<&'a Buffer> for Arg<'a> {
    fn from(buffer: &'a Buffer) -> Self {
        Self::Buffer(buffer)
    }
}

/// Generates the conversion into an argument, and its bytes, for each scalar type.
macro_rules! scalars {
    ($($variant:ident: $type:ty),*) => {
        $(impl From<$type> for Arg<'_> {
            fn from(value: $type) -> Self {
                Self::$variant(value)
            }
        })*

        impl Arg<'_> {
            /// Width in bytes, and the bytes in native order.
            pub(super) fn bytes(&self) -> (usize, [u8; 8]) {
                let mut bytes = [0; 8];
                let width = match self {
                    Self::Buffer(_) => 8,
                    $(Self::$variant(value) => {
                        let value = value.to_ne_bytes();
                        bytes[..value.len()].copy_from_slice(&value);
                        value.len()
                    })*
                };
                (width, bytes)
            }
        }
    };
}
scalars!(U8: u8, I8: i8, U16: u16, I16: i16, U32: u32, I32: i32, U64: u64, I64: i64, F32: f32, F64: f64);

impl<'a> Arg<'a> {
    /// The buffer, if the argument is one.
    pub(super) fn buffer(&self) -> Option<&'a Buffer> {
        if let Self::Buffer(buffer) = self { Some(buffer) } else { None }
    }
}
