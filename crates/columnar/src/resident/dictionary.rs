// SPDX-License-Identifier: Apache-2.0
//! The dictionary of one column for a whole resident table.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray};
use arrow::buffer::Buffer as HostBuffer;
use arrow::datatypes::DataType;
use device::Queue;

use crate::host_arrays::{for_each_value, is_utf8};
use crate::interner::Interner;
use crate::narrow::limits;
use crate::upload::chunks::ColumnChunks;
use crate::upload::dictionary::{keys, outside_of_dictionary};
use crate::upload::transfer::upload_buffer;
use crate::{ColumnType, DeviceColumn, Layout, Result};

/// Most distinct values of a column: codes have at most 16 bits.
const MAX_VALUES: usize = 1 << 16;
/// Most bytes of all values.
const MAX_BYTES: usize = 1 << 26;
/// Distinct values of a column of a string type that get codes whatever they save.
const FEW_VALUES: usize = 1024;

/// A dictionary that grows with the table. The code of a value never changes.
#[derive(Debug, Clone)]
pub(crate) struct TableDictionary {
    interner: Interner,
    max_values: usize,
    value_type: DataType,
    /// Whether the column is of a string type.
    is_plain: bool,
    /// Values of rows that are no NULL, for a column of a string type.
    rows: usize,
    /// Bytes of these.
    bytes: usize,
    /// The values as last uploaded; later values may be missing.
    uploaded: Option<Arc<DeviceColumn>>,
}

impl TableDictionary {
    /// An empty dictionary; `None` if the type has no dictionary for the whole table.
    pub(crate) fn new(data_type: &DataType) -> Option<Self> {
        let (max_values, value_type, is_plain) = match data_type {
            DataType::Dictionary(key, value) => (key_count(key)?.min(MAX_VALUES), &**value, false),
            plain => (MAX_VALUES, plain, true),
        };
        is_utf8(value_type).then(|| Self {
            interner: Interner::default(),
            max_values,
            value_type: value_type.clone(),
            is_plain,
            rows: 0,
            bytes: 0,
            uploaded: None,
        })
    }

    /// Number of distinct values.
    pub(crate) fn len(&self) -> usize {
        self.interner.len()
    }

    /// Whether codes are better than the strings themselves. Reading a value through its code is a
    /// random access, so many values have to save half of the bytes.
    pub(crate) fn pays(&self) -> bool {
        let of_strings = size_of::<i32>() * self.rows + self.bytes;
        let of_codes = size_of::<u16>() * self.rows + size_of::<i32>() * self.len() + self.interner.heap().len();
        !self.is_plain || self.len() <= FEW_VALUES || 2 * of_codes <= of_strings
    }

    /// Appends the code of every value of `array`, 0 for NULLs. Returns `false` if a limit is
    /// exceeded.
    pub(crate) fn encode(&mut self, array: &ArrayRef, chunks: &ColumnChunks<'_>, codes: &mut Vec<u32>) -> Result<bool> {
        let Self { interner, max_values, rows, bytes, .. } = self;
        let max_values = *max_values;
        let mut fits = true;
        match array.as_any_dictionary_opt() {
            None => for_each_value(array, |value| {
                *rows += usize::from(value.is_some());
                *bytes += value.map_or(0, <[u8]>::len);
                codes.push(value.map_or(0, |value| interner.intern(value)));
                fits = interner.len() <= max_values && interner.heap().len() <= MAX_BYTES;
                fits
            }),
            Some(array) => {
                // Values that no row uses stay out of the table's dictionary.
                let keys = keys(array.keys(), chunks)?;
                let nulls = array.logical_nulls();
                let mut used = vec![false; array.values().len()];
                for (row, key) in keys.iter().enumerate() {
                    if let Some(used) = used.get_mut(*key as usize)
                        && nulls.as_ref().is_none_or(|nulls| nulls.is_valid(row))
                    {
                        *used = true;
                    }
                }
                let mut used = used.into_iter();
                let mut code_of_key = Vec::with_capacity(array.values().len());
                for_each_value(array.values(), |value| {
                    let used = used.next().unwrap_or(false);
                    let value = value.filter(|_| used);
                    code_of_key.push(value.map_or(0, |value| interner.intern(value)));
                    fits = interner.len() <= max_values && interner.heap().len() <= MAX_BYTES;
                    fits
                });
                if !fits {
                    return Ok(false);
                }
                for (row, key) in keys.iter().enumerate() {
                    codes.push(match (&nulls, code_of_key.get(*key as usize)) {
                        (Some(nulls), _) if nulls.is_null(row) => 0,
                        (_, Some(code)) => *code,
                        (_, None) => return Err(outside_of_dictionary(chunks, row, code_of_key.len())),
                    });
                }
            }
        }
        Ok(fits)
    }

    /// The values as a device column.
    pub(crate) fn on_device(&mut self, queue: &Queue) -> Result<Arc<DeviceColumn>> {
        // At least one value, so that the code of a NULL can be looked up.
        let len = self.interner.len().max(1);
        if let Some(uploaded) = &self.uploaded
            && uploaded.len() == len
        {
            return Ok(Arc::clone(uploaded));
        }
        let mut offsets: Vec<i32> = self.interner.offsets().iter().map(|&offset| offset as i32).collect();
        offsets.resize(len + 1, offsets.last().copied().unwrap_or(0));
        let ty = ColumnType { data_type: self.value_type.clone(), nullable: false, layout: Layout::Offsets32, bounds: None };
        let offsets = upload_buffer(queue, HostBuffer::from_vec(offsets))?;
        let heap = upload_buffer(queue, HostBuffer::from_slice_ref(self.interner.heap()))?;
        let column = Arc::new(DeviceColumn::try_new(Arc::new(ty), len, vec![offsets, heap], None, None, None)?);
        self.uploaded = Some(Arc::clone(&column));
        Ok(column)
    }
}

/// Number of distinct non-negative keys of a type.
fn key_count(key: &DataType) -> Option<usize> {
    match ColumnType::of(key, true)?.layout {
        Layout::Fixed(carrier) => usize::try_from(limits(carrier).1.saturating_add(1)).ok(),
        _ => None,
    }
}
