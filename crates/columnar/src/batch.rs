// SPDX-License-Identifier: Apache-2.0
//! The record batch in device memory.

use std::collections::HashSet;
use std::sync::Arc;

use arrow::datatypes::SchemaRef;

use device::Queue;

use crate::{ColumnType, DeviceColumn, Error, Result};

/// A record batch in device memory. Immutable; clones, slices and projections share the buffers.
#[derive(Debug, Clone)]
pub struct DeviceBatch {
    schema: SchemaRef,
    columns: Vec<DeviceColumn>,
    num_rows: usize,
}

impl DeviceBatch {
    /// A batch of `columns`, each of `num_rows` values and of its field's type.
    ///
    /// # Errors
    /// `Malformed` for another number of columns or rows; `Type` for a column of another type.
    pub fn try_new(schema: SchemaRef, columns: Vec<DeviceColumn>, num_rows: usize) -> Result<Self> {
        if schema.fields().len() != columns.len() {
            return Err(Error::Malformed(format!("batch: schema has {} columns, got {}", schema.fields().len(), columns.len())));
        }
        for (field, column) in schema.fields().iter().zip(&columns) {
            if column.len() != num_rows {
                return Err(Error::Malformed(format!(
                    "column \"{}\": batch has {num_rows} rows, got {}",
                    field.name(),
                    column.len()
                )));
            }
            if column.ty().data_type != *field.data_type() {
                return Err(Error::Type {
                    column: field.name().clone(),
                    expected: field.data_type().clone(),
                    actual: column.ty().data_type.clone(),
                });
            }
        }
        Ok(Self { schema, columns, num_rows })
    }

    /// A batch of one row of zero bytes, for kernels that need a readable row of an empty input.
    ///
    /// # Errors
    /// Errors of the device.
    pub fn blank(queue: &Queue, schema: &SchemaRef, types: &[ColumnType]) -> Result<Self> {
        let columns = types.iter().map(|ty| DeviceColumn::blank(queue, ty)).collect::<Result<_>>()?;
        Self::try_new(Arc::clone(schema), columns, 1)
    }

    /// Names and logical types.
    pub fn schema(&self) -> &SchemaRef {
        &self.schema
    }

    /// The columns in the schema's order.
    pub fn columns(&self) -> &[DeviceColumn] {
        &self.columns
    }

    /// Number of rows.
    pub fn num_rows(&self) -> usize {
        self.num_rows
    }

    /// A zero-copy slice of `len` rows from `offset`, clamped to the batch.
    #[must_use]
    pub fn slice(&self, offset: usize, len: usize) -> Self {
        let offset = offset.min(self.num_rows);
        let len = len.min(self.num_rows - offset);
        let columns = self.columns.iter().map(|column| column.slice(offset, len)).collect();
        Self { schema: Arc::clone(&self.schema), columns, num_rows: len }
    }

    /// Zero-copy slices of at most `rows` rows.
    pub fn chunks(&self, rows: usize) -> impl Iterator<Item = Self> + use<> {
        let (batch, rows) = (self.clone(), rows.max(1));
        (0..self.num_rows).step_by(rows).map(move |start| batch.slice(start, rows))
    }

    /// The first half of the rows and the second one, without a copy. The second has one more for
    /// an odd number.
    pub fn halves(&self) -> (Self, Self) {
        let half = self.num_rows / 2;
        (self.slice(0, half), self.slice(half, self.num_rows - half))
    }

    /// A zero-copy projection to the columns `indices`, in that order.
    ///
    /// # Errors
    /// `Arrow` for an index out of range.
    pub fn project(&self, indices: &[usize]) -> Result<Self> {
        let schema = Arc::new(self.schema.project(indices)?);
        let columns = indices.iter().map(|&index| self.columns[index].clone()).collect();
        Ok(Self { schema, columns, num_rows: self.num_rows })
    }

    /// Device bytes of the columns' buffers; a shared buffer counts once.
    pub fn memory_bytes(&self) -> usize {
        memory_bytes(&self.columns)
    }

    /// Device bytes that a copy of the rows takes, about: of heaps the rows' share, and no
    /// dictionaries.
    pub fn row_bytes(&self) -> usize {
        self.columns.iter().map(DeviceColumn::row_bytes).sum()
    }
}

impl AsRef<[DeviceColumn]> for DeviceBatch {
    fn as_ref(&self) -> &[DeviceColumn] {
        &self.columns
    }
}

/// Device bytes of the columns' buffers; a shared buffer counts once.
pub fn memory_bytes<'a>(columns: impl IntoIterator<Item = &'a DeviceColumn>) -> usize {
    let (mut seen, mut bytes) = (HashSet::new(), 0);
    for column in columns {
        column.for_each_buffer(&mut |buffer| {
            if !buffer.is_empty() && seen.insert(buffer.raw().handle) {
                bytes += buffer.len();
            }
        });
    }
    bytes
}
