// SPDX-License-Identifier: Apache-2.0
//! Host arrays to codes and one dictionary of distinct values without NULL.
//!
//! An Arrow dictionary may repeat values and hold NULLs, and each batch has its own. Kernels
//! compare codes, so the upload unifies the dictionaries of all chunks. A single dictionary that
//! already meets the invariants of [`DeviceColumn`](crate::DeviceColumn) is uploaded unchanged.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, make_array, new_null_array};
use arrow::buffer::{Buffer as HostBuffer, MutableBuffer, NullBuffer};
use arrow::compute::interleave;
use arrow::datatypes::DataType;

use crate::host_arrays::{fixed_width_values, for_each_value};
use crate::interner::Interner;
use crate::narrow::{aligned, convert, limits, with_integer};
use crate::upload::chunks::{ChunkNulls, ColumnChunks};
use crate::{Carrier, ColumnType, Error, Layout, Result};

/// Code of a dictionary value that is NULL.
const NULL: u32 = u32::MAX;

/// Host side of a [`Layout::Dictionary`] column.
pub(crate) struct EncodedDictionary {
    pub(crate) codes: HostBuffer,
    pub(crate) nulls: Vec<ChunkNulls>,
    pub(crate) values: ArrayRef,
}

/// Encodes dictionary arrays or plain arrays, with codes in `carrier`.
pub(crate) fn encode(chunks: &ColumnChunks<'_>, carrier: Carrier) -> Result<EncodedDictionary> {
    let value_type = match &chunks.ty.data_type {
        DataType::Dictionary(_, value) => value,
        plain => plain,
    };
    let mut unifier = DictionaryUnifier::default();
    let mut codes = MutableBuffer::with_capacity(chunks.rows * carrier.width());
    let mut nulls = Vec::with_capacity(chunks.arrays.len());
    for array in chunks.arrays {
        let Some(dictionary) = array.as_any_dictionary_opt() else {
            let row_codes = unifier.add(array);
            nulls.push((array.len(), array.nulls().cloned()));
            append_codes(chunks, &row_codes, array.nulls(), carrier, &mut codes)?;
            continue;
        };
        let unified = unifier.add_dictionary(dictionary.values());
        let keys = keys(dictionary.keys(), chunks)?;
        let array_nulls = array.logical_nulls().filter(|nulls| nulls.null_count() > 0);
        let natural = ColumnType::of(dictionary.keys().data_type(), true).map(|ty| ty.layout);
        let unchanged = unified.iter().enumerate().all(|(key, &code)| key as u32 == code);
        let in_bounds = |keys: &[u32]| keys.iter().all(|&key| (key as usize) < unified.len());
        if chunks.arrays.len() == 1 && unchanged && natural == Some(Layout::Fixed(carrier)) && in_bounds(&keys) {
            return Ok(EncodedDictionary {
                codes: fixed_width_values(dictionary.keys(), carrier.width()),
                nulls: vec![(array.len(), array_nulls)],
                values: dictionary.values().clone(),
            });
        }
        let valid = |row| array_nulls.as_ref().is_none_or(|nulls| nulls.is_valid(row));
        let mut rows = keys.iter().enumerate();
        if let Some((row, _)) = rows.find(|(row, key)| **key as usize >= unified.len() && valid(*row)) {
            return Err(outside_of_dictionary(chunks, row, unified.len()));
        }
        let row_codes: Vec<u32> = keys.iter().map(|&key| unified.get(key as usize).copied().unwrap_or(NULL)).collect();
        append_codes(chunks, &row_codes, array_nulls.as_ref(), carrier, &mut codes)?;
        nulls.push((array.len(), array_nulls));
    }
    Ok(EncodedDictionary { codes: codes.into(), nulls, values: unifier.finish(value_type)? })
}

/// Error for a row whose key is not below the number of a dictionary's values.
pub(crate) fn outside_of_dictionary(chunks: &ColumnChunks<'_>, row: usize, values: usize) -> Error {
    let name = chunks.name;
    Error::Malformed(format!("column \"{name}\": the key of row {row} of a batch lies outside of its {values} dictionary values"))
}

/// Distinct values of several arrays, as Arrow C++'s `DictionaryUnifier`.
#[derive(Default)]
struct DictionaryUnifier<'a> {
    interner: Interner,
    arrays: Vec<&'a ArrayRef>,
    /// Array and row of the first appearance of each value.
    first: Vec<(usize, usize)>,
    /// The last dictionary and its codes, because batches of one file often share a dictionary.
    last: Option<(&'a ArrayRef, Vec<u32>)>,
}

impl<'a> DictionaryUnifier<'a> {
    /// The unified code of each value of `array`; [`NULL`] for NULLs.
    fn add(&mut self, array: &'a ArrayRef) -> Vec<u32> {
        let mut codes = Vec::with_capacity(array.len());
        let Self { interner, first, arrays, .. } = self;
        arrays.push(array);
        for_each_value(array, |value| {
            codes.push(value.map_or(NULL, |value| {
                let code = interner.intern(value);
                if code as usize == first.len() {
                    first.push((arrays.len() - 1, codes.len()));
                }
                code
            }));
            true
        });
        codes
    }

    /// As [`Self::add`], for the values of a dictionary, which several arrays may share.
    fn add_dictionary(&mut self, array: &'a ArrayRef) -> Vec<u32> {
        // NULLs take no memory, so there may be more of them than memory has room for codes. All
        // rows are NULL.
        if array.data_type().is_null() {
            return vec![];
        }
        if let Some((last, codes)) = &self.last
            && Arc::ptr_eq(last, array)
        {
            return codes.clone();
        }
        let codes = self.add(array);
        self.last = Some((array, codes.clone()));
        codes
    }

    fn finish(self, value_type: &DataType) -> Result<ArrayRef> {
        if self.first.is_empty() {
            return placeholder(value_type);
        }
        let arrays: Vec<&dyn Array> = self.arrays.iter().map(|array| &**array as &dyn Array).collect();
        Ok(interleave(&arrays, &self.first)?)
    }
}

/// One arbitrary value for an empty dictionary, so that the code of a NULL can be looked up.
fn placeholder(value_type: &DataType) -> Result<ArrayRef> {
    let data = new_null_array(value_type, 1).to_data().into_builder().nulls(None).build()?;
    Ok(make_array(data))
}

/// Dictionary keys as u32. Keys below NULLs may be out of every range; these become [`NULL`].
pub(crate) fn keys(keys: &dyn Array, chunks: &ColumnChunks<'_>) -> Result<Vec<u32>> {
    let Some(Layout::Fixed(carrier)) = ColumnType::of(keys.data_type(), true).map(|ty| ty.layout) else {
        return Err(Error::Unsupported { column: chunks.name.into(), data_type: chunks.ty.data_type.clone() });
    };
    let bytes = aligned(&fixed_width_values(keys, carrier.width()), carrier.width());
    #[allow(clippy::unnecessary_fallible_conversions, clippy::useless_conversion)] // narrow unsigned keys
    let keys = with_integer!(
        carrier,
        Key => bytes.typed_data::<Key>().iter().map(|&key| u32::try_from(key).unwrap_or(NULL)).collect(),
        Vec::new()
    );
    Ok(keys)
}

/// Appends codes in `carrier`, 0 for NULLs.
fn append_codes(
    chunks: &ColumnChunks<'_>,
    row_codes: &[u32],
    nulls: Option<&NullBuffer>,
    carrier: Carrier,
    codes: &mut MutableBuffer,
) -> Result<()> {
    let row_codes = HostBuffer::from_slice_ref(row_codes);
    convert(&row_codes, Carrier::U32, carrier, nulls, codes).map_err(|_| {
        let greatest = row_codes.typed_data::<u32>().iter().filter(|&&code| code != NULL).max().copied();
        let distinct = greatest.unwrap_or(0) as usize + 1;
        chunks.too_large("distinct values in the dictionary", distinct, (limits(carrier).1 + 1) as usize)
    })
}
