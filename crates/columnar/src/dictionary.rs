// SPDX-License-Identifier: Apache-2.0
//! Dictionaries: one for each column of an upload, of distinct values without NULL.
//!
//! Arrow lets a dictionary repeat values and hold NULLs, and gives each batch its own. Kernels that
//! compare codes want none of that, so that the pieces' dictionaries are unified on the way up. A
//! single dictionary that is as kernels want it goes up as it lies, with its codes.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, make_array, new_null_array};
use arrow::buffer::{Buffer as HostBuffer, MutableBuffer, NullBuffer};
use arrow::compute::interleave;
use arrow::datatypes::DataType;

use crate::interner::{Interner, for_each_bytes};
use crate::narrow::{aligned, convert, limits, with_integer};
use crate::upload::{PieceNulls, Pieces, Uploader, fixed_bytes};
use crate::{Carrier, ColumnType, DeviceColumn, Error, Layout, Result};

/// The code of a dictionary value that is NULL.
const NULL: u32 = u32::MAX;

/// Uploads pieces, dictionary arrays or plain ones, as codes and one dictionary.
pub(crate) fn column(uploader: &Uploader<'_>, pieces: &Pieces<'_>, codes: Carrier, values: &Layout) -> Result<DeviceColumn> {
    let ty = Arc::new(pieces.ty.clone());
    let encoded = encode(pieces, codes)?;
    let dictionary = Arc::new(ColumnType {
        data_type: encoded.values.data_type().clone(),
        nullable: false,
        layout: values.clone(),
        bounds: None,
    });
    let dictionary = Uploader::new(pieces.queue, encoded.values.len()).column(pieces.name, &dictionary, vec![&encoded.values])?;
    uploader.codes(pieces.name, &ty, encoded.codes, &encoded.nulls, Arc::new(dictionary))
}

struct Encoded {
    codes: HostBuffer,
    nulls: Vec<PieceNulls>,
    values: ArrayRef,
}

fn encode(pieces: &Pieces<'_>, carrier: Carrier) -> Result<Encoded> {
    let value_type = match &pieces.ty.data_type {
        DataType::Dictionary(_, value) => value,
        plain => plain,
    };
    let mut values = Values::default();
    let mut codes = MutableBuffer::with_capacity(pieces.rows * carrier.width());
    let mut nulls = Vec::with_capacity(pieces.arrays.len());
    for array in pieces.arrays {
        let Some(dictionary) = array.as_any_dictionary_opt() else {
            // A plain array: number its values.
            let numbers = values.add(array);
            nulls.push((array.len(), array.nulls().cloned()));
            append_codes(pieces, &numbers, array.nulls(), carrier, &mut codes)?;
            continue;
        };
        let numbers = values.add_shared(dictionary.values());
        let keys = keys(dictionary.keys(), pieces)?;
        let array_nulls = array.logical_nulls().filter(|nulls| nulls.null_count() > 0);
        let natural = ColumnType::of(dictionary.keys().data_type(), true).map(|ty| ty.layout);
        let unchanged = numbers.iter().enumerate().all(|(code, &number)| code as u32 == number);
        let inside = |keys: &[u32]| keys.iter().all(|&key| (key as usize) < numbers.len());
        if pieces.arrays.len() == 1 && unchanged && natural == Some(Layout::Fixed(carrier)) && inside(&keys) {
            return Ok(Encoded {
                codes: fixed_bytes(dictionary.keys(), carrier.width()),
                nulls: vec![(array.len(), array_nulls)],
                values: dictionary.values().clone(),
            });
        }
        let numbers: Vec<u32> = keys.iter().map(|&key| numbers.get(key as usize).copied().unwrap_or(NULL)).collect();
        append_codes(pieces, &numbers, array_nulls.as_ref(), carrier, &mut codes)?;
        nulls.push((array.len(), array_nulls));
    }
    Ok(Encoded { codes: codes.into(), nulls, values: values.finish(value_type)? })
}

/// Distinct values of several arrays, each remembered by where it first appeared.
#[derive(Default)]
struct Values<'a> {
    interner: Interner,
    arrays: Vec<&'a ArrayRef>,
    first: Vec<(usize, usize)>,
    /// The dictionary seen last, with its numbers: batches of one file often share theirs.
    last: Option<(&'a ArrayRef, Vec<u32>)>,
}

impl<'a> Values<'a> {
    /// The number of each value of `array`, [`NULL`] for NULLs.
    fn add(&mut self, array: &'a ArrayRef) -> Vec<u32> {
        let mut numbers = Vec::with_capacity(array.len());
        let Self { interner, first, arrays, .. } = self;
        arrays.push(array);
        for_each_bytes(array, |value| {
            numbers.push(value.map_or(NULL, |value| {
                let number = interner.intern(value);
                if number as usize == first.len() {
                    first.push((arrays.len() - 1, numbers.len()));
                }
                number
            }));
            true
        });
        numbers
    }

    /// The same for a dictionary.
    fn add_shared(&mut self, array: &'a ArrayRef) -> Vec<u32> {
        if let Some((last, numbers)) = &self.last
            && Arc::ptr_eq(last, array)
        {
            return numbers.clone();
        }
        let numbers = self.add(array);
        self.last = Some((array, numbers.clone()));
        numbers
    }

    fn finish(self, value_type: &DataType) -> Result<ArrayRef> {
        if self.first.is_empty() {
            return placeholder(value_type);
        }
        let arrays: Vec<&dyn Array> = self.arrays.iter().map(|array| &**array as &dyn Array).collect();
        Ok(interleave(&arrays, &self.first)?)
    }
}

/// One value, whichever: what a dictionary without values has, so that any code of a NULL can be read.
fn placeholder(value_type: &DataType) -> Result<ArrayRef> {
    let data = new_null_array(value_type, 1).to_data().into_builder().nulls(None).build()?;
    Ok(make_array(data))
}

/// Dictionary keys; those that no dictionary can have (below NULLs) as [`NULL`].
pub(crate) fn keys(keys: &dyn Array, pieces: &Pieces<'_>) -> Result<Vec<u32>> {
    let Some(Layout::Fixed(carrier)) = ColumnType::of(keys.data_type(), true).map(|ty| ty.layout) else {
        return Err(Error::Unsupported { column: pieces.name.into(), data_type: pieces.ty.data_type.clone() });
    };
    let bytes = aligned(&fixed_bytes(keys, carrier.width()), carrier.width());
    #[allow(clippy::unnecessary_fallible_conversions, clippy::useless_conversion)] // narrow unsigned keys
    let keys = with_integer!(
        carrier,
        Key => bytes.typed_data::<Key>().iter().map(|&key| u32::try_from(key).unwrap_or(NULL)).collect(),
        Vec::new()
    );
    Ok(keys)
}

/// Appends codes in their carrier, 0 for NULLs.
fn append_codes(
    pieces: &Pieces<'_>,
    numbers: &[u32],
    nulls: Option<&NullBuffer>,
    carrier: Carrier,
    codes: &mut MutableBuffer,
) -> Result<()> {
    let numbers = HostBuffer::from_slice_ref(numbers);
    convert(&numbers, Carrier::U32, carrier, nulls, codes).map_err(|_| {
        let distinct = numbers.typed_data::<u32>().iter().filter(|&&number| number != NULL).max().copied();
        let distinct = distinct.unwrap_or(0) as usize + 1;
        pieces.too_large("distinct values in the dictionary", distinct, (limits(carrier).1 + 1) as usize)
    })
}
