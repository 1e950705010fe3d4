// SPDX-License-Identifier: Apache-2.0
//! Integer conversion between widths, on the host.

use arrow::buffer::{Buffer, MutableBuffer, NullBuffer};
use arrow::datatypes::i256;

use crate::Carrier;

/// Evaluates `$body` with `$T` as the primitive type of an integer carrier.
///
/// Evaluates `$otherwise` for carriers without one: I256 and floats.
macro_rules! with_integer {
    ($carrier:expr, $T:ident => $body:expr, $otherwise:expr) => {
        match $carrier {
            $crate::Carrier::I8 => {
                type $T = i8;
                $body
            }
            $crate::Carrier::I16 => {
                type $T = i16;
                $body
            }
            $crate::Carrier::I32 => {
                type $T = i32;
                $body
            }
            $crate::Carrier::I64 => {
                type $T = i64;
                $body
            }
            $crate::Carrier::I128 => {
                type $T = i128;
                $body
            }
            $crate::Carrier::U8 => {
                type $T = u8;
                $body
            }
            $crate::Carrier::U16 => {
                type $T = u16;
                $body
            }
            $crate::Carrier::U32 => {
                type $T = u32;
                $body
            }
            $crate::Carrier::U64 => {
                type $T = u64;
                $body
            }
            $crate::Carrier::I256 | $crate::Carrier::F32 | $crate::Carrier::F64 => $otherwise,
        }
    };
}
pub(crate) use with_integer;

/// Whether the carrier holds integers.
pub(crate) const fn is_integer(carrier: Carrier) -> bool {
    !matches!(carrier, Carrier::F32 | Carrier::F64)
}

/// Least and greatest value of an integer carrier of at most 128 bits.
pub(crate) fn limits(carrier: Carrier) -> (i128, i128) {
    #[allow(clippy::unnecessary_cast)] // i128 to i128
    let limits = with_integer!(carrier, T => (T::MIN as i128, T::MAX as i128), (0, 0));
    limits
}

/// The buffer, or a copy of it if it is not aligned for values of `width` bytes.
pub(crate) fn aligned(buffer: &Buffer, width: usize) -> Buffer {
    if buffer.as_ptr().align_offset(width) == 0 { buffer.clone() } else { Buffer::from_slice_ref(buffer.as_slice()) }
}

/// Appends the integers of `values` in the carrier `to`, with 0 for NULLs.
///
/// The error is the first value that does not fit.
pub(crate) fn convert(
    values: &Buffer,
    from: Carrier,
    to: Carrier,
    nulls: Option<&NullBuffer>,
    out: &mut MutableBuffer,
) -> Result<(), i256> {
    match (from, to) {
        (Carrier::I256, Carrier::I256) => {
            out.extend_from_slice(values);
            Ok(())
        }
        (Carrier::I256, _) => convert(&narrow_to_128(values, nulls)?, Carrier::I128, to, nulls, out),
        (_, Carrier::I256) => {
            let mut wide = MutableBuffer::default();
            convert(values, from, Carrier::I128, nulls, &mut wide)?;
            let wide = wide.typed_data::<i128>().iter().map(|&value| i256::from_i128(value));
            out.extend_from_slice(wide.collect::<Vec<_>>().as_slice());
            Ok(())
        }
        _ => convert_small(values, from, to, nulls, out).map_err(i256::from_i128),
    }
}

/// Converts 256-bit to 128-bit integers, with 0 for NULLs. The error is as in [`convert`].
fn narrow_to_128(values: &Buffer, nulls: Option<&NullBuffer>) -> Result<Buffer, i256> {
    let values = aligned(values, align_of::<i256>());
    let narrow = |(row, value): (usize, &i256)| match nulls.is_none_or(|nulls| nulls.is_valid(row)) {
        true => value.to_i128().ok_or(*value),
        false => Ok(0),
    };
    let converted: Result<Vec<i128>, i256> = values.typed_data::<i256>().iter().enumerate().map(narrow).collect();
    Ok(Buffer::from_vec(converted?))
}

/// As [`convert`], between carriers of at most 128 bits.
fn convert_small(
    values: &Buffer,
    from: Carrier,
    to: Carrier,
    nulls: Option<&NullBuffer>,
    out: &mut MutableBuffer,
) -> Result<(), i128> {
    let values = aligned(values, from.width());
    let (least, greatest) = limits(to);
    let start = out.len() / to.width();
    with_integer!(from, From => {
        let values = values.typed_data::<From>();
        out.resize((start + values.len()) * to.width(), 0);
        with_integer!(to, To => {
            let out = &mut out.typed_data_mut::<To>()[start..];
            let mut lost = 0i128;
            // No comparison and no early exit, so that the compiler vectorizes the loops.
            #[allow(clippy::unnecessary_cast)] // a carrier to itself
            let mut put = |out: &mut To, value: From| {
                *out = value as To;
                lost |= *out as i128 ^ value as i128;
            };
            match nulls {
                None => out.iter_mut().zip(values).for_each(|(out, &value)| put(out, value)),
                Some(nulls) => out
                    .iter_mut()
                    .zip(values)
                    .zip(nulls.iter())
                    .for_each(|((out, &value), valid)| put(out, if valid { value } else { 0 })),
            }
            if lost == 0 {
                return Ok(());
            }
        }, ());
        #[allow(clippy::unnecessary_cast)]
        let mut all = values.iter().enumerate().map(|(row, &value)| (row, value as i128));
        let outside = all.find(|(row, value)| {
            nulls.is_none_or(|nulls| nulls.is_valid(*row)) && !(least..=greatest).contains(value)
        });
        Err(outside.map_or(0, |(_, value)| value))
    }, Err(0))
}
