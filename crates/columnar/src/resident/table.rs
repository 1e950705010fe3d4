// SPDX-License-Identifier: Apache-2.0
//! A table in device memory.

use arrow::datatypes::{FieldRef, SchemaRef};

use crate::batch::memory_bytes;
use crate::resident::column::ColumnState;
use crate::{ColumnStatistics, ColumnType, DeviceBatch, Error, Result};

/// A table in device memory.
#[derive(Debug, Clone)]
pub struct Resident {
    /// Names and logical types.
    pub schema: SchemaRef,
    /// The types of every batch.
    pub types: Vec<ColumnType>,
    /// The rows.
    pub batches: Vec<DeviceBatch>,
    /// Statistics of each column.
    pub statistics: Vec<ColumnStatistics>,
    pub(crate) columns: Vec<ColumnState>,
}

impl Resident {
    /// Default rows of a full batch.
    pub const BATCH_ROWS: usize = 1 << 20;

    /// Device bytes behind all columns, or one of them. Memory that batches share counts once.
    pub fn memory_bytes(&self, column: Option<usize>) -> usize {
        let chosen = |batch: &'_ DeviceBatch| match column {
            Some(index) => index..(index + 1).min(batch.columns().len()),
            None => 0..batch.columns().len(),
        };
        memory_bytes(self.batches.iter().flat_map(|batch| batch.columns().get(chosen(batch)).unwrap_or_default()))
    }

    /// A table over batches of `types` in device memory, with unknown statistics.
    ///
    /// The batches share their memory with the table. Batches above [`Self::BATCH_ROWS`] are
    /// sliced.
    ///
    /// # Errors
    /// `Malformed` for a batch of other types.
    pub fn of_batches(schema: SchemaRef, types: Vec<ColumnType>, batches: &[DeviceBatch]) -> Result<Resident> {
        let columns = schema.fields().len();
        if types.len() != columns || batches.iter().any(|batch| batch.columns().len() != columns) {
            return Err(Error::Malformed(format!("a table of {columns} columns: a batch, or its types, are not as many")));
        }
        for column in batches.iter().flat_map(|batch| batch.columns().iter().zip(schema.fields()).zip(&types)) {
            let ((column, field), ty) = column;
            if **column.ty() != *ty {
                let (name, actual) = (field.name(), column.ty());
                return Err(Error::Malformed(format!("column \"{name}\": expected {ty:?}, got {actual:?}")));
            }
        }
        let unknown = |(field, ty): (&FieldRef, &ColumnType)| ColumnState::unknown(field.name(), ty.clone());
        let columns: Vec<ColumnState> = schema.fields().iter().zip(&types).map(unknown).collect();
        Ok(Resident {
            statistics: columns.iter().map(ColumnState::statistics).collect(),
            batches: batches.iter().flat_map(|batch| batch.chunks(Self::BATCH_ROWS)).collect(),
            schema,
            types,
            columns,
        })
    }
}
