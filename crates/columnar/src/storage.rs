// SPDX-License-Identifier: Apache-2.0
//! Batches as plain host arrays of their own layouts, for spills.
//!
//! A spilled batch comes back in the layouts that it had, since kernels are compiled for them. So
//! a column is stored by its layout, not by its logical type. A decimal of 16 bits becomes `Int16`,
//! a dictionary column its codes. Dictionaries stay on the device, in [`StoredColumns`].

use std::sync::Arc;

use arrow::array::RecordBatch;
use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use device::Queue;

use crate::{Carrier, ColumnType, DeviceBatch, DeviceColumn, Layout, Result, download, upload};

/// How batches of one source are stored.
#[derive(Debug, Clone)]
pub struct StorageFormat {
    schema: SchemaRef,
    stored: SchemaRef,
    stored_types: Vec<Arc<ColumnType>>,
}

/// The types and dictionaries of stored batches, which come back with them.
#[derive(Debug, Clone)]
pub struct StoredColumns {
    columns: Vec<(Arc<ColumnType>, Option<Arc<DeviceColumn>>)>,
}

impl StorageFormat {
    /// For batches of `schema` in the layouts of `types`; `None` if one is a list.
    pub fn of(schema: &SchemaRef, types: &[ColumnType]) -> Option<Self> {
        let stored = schema.fields().iter().zip(types).map(|(field, ty)| {
            let data_type = stored_type(&ty.layout)?;
            let nullable = ty.nullable || data_type.is_null();
            Some((Field::new(field.name(), data_type, nullable), ty))
        });
        let (fields, types): (Vec<Field>, Vec<&ColumnType>) = stored.collect::<Option<Vec<_>>>()?.into_iter().unzip();
        let stored_types = fields.iter().zip(types).map(|(field, ty)| {
            let layout = match &ty.layout {
                Layout::Dictionary { codes, .. } => Layout::Fixed(*codes),
                layout => layout.clone(),
            };
            Arc::new(ColumnType { data_type: field.data_type().clone(), nullable: field.is_nullable(), layout, bounds: None })
        });
        let stored_types = stored_types.collect();
        Some(Self { schema: Arc::clone(schema), stored: Arc::new(Schema::new(fields)), stored_types })
    }

    /// The schema of stored batches.
    pub fn stored_schema(&self) -> &SchemaRef {
        &self.stored
    }

    /// What [`restore`](Self::restore) needs beside the stored rows of `batch` and its slices.
    pub fn columns(&self, batch: &DeviceBatch) -> StoredColumns {
        let columns = batch.columns().iter().map(|column| (Arc::clone(column.ty()), column.dictionary().cloned()));
        StoredColumns { columns: columns.collect() }
    }

    /// Downloads a batch as it is stored.
    ///
    /// # Errors
    /// `Malformed` for a batch of other columns; errors of the device.
    pub async fn store(&self, queue: &Queue, batch: &DeviceBatch) -> Result<RecordBatch> {
        let columns = batch.columns().iter().zip(&self.stored_types).map(|(column, ty)| column.relabelled(Arc::clone(ty), None));
        let stored = DeviceBatch::try_new(Arc::clone(&self.stored), columns.collect::<Result<_>>()?, batch.num_rows())?;
        download(queue, &stored).await
    }

    /// Enqueues the upload of stored rows, in the layouts that they had.
    ///
    /// # Errors
    /// As [`upload`].
    pub fn restore(&self, queue: &Queue, rows: &RecordBatch, columns: &StoredColumns) -> Result<DeviceBatch> {
        let types: Vec<ColumnType> = self.stored_types.iter().map(|ty| ty.as_ref().clone()).collect();
        let stored = upload(queue, &self.stored, &types, std::slice::from_ref(rows))?;
        let restored = stored.columns().iter().zip(&columns.columns);
        let restored = restored.map(|(column, (ty, dictionary))| column.relabelled(Arc::clone(ty), dictionary.clone()));
        DeviceBatch::try_new(Arc::clone(&self.schema), restored.collect::<Result<_>>()?, rows.num_rows())
    }
}

/// The type whose natural layout is the given one, and whose arrays are not checked for values.
fn stored_type(layout: &Layout) -> Option<DataType> {
    Some(match layout {
        Layout::Null => DataType::Null,
        Layout::Bits => DataType::Boolean,
        Layout::Fixed(carrier) | Layout::Dictionary { codes: carrier, .. } => match carrier {
            Carrier::I8 => DataType::Int8,
            Carrier::I16 => DataType::Int16,
            Carrier::I32 => DataType::Int32,
            Carrier::I64 => DataType::Int64,
            Carrier::I128 => DataType::Decimal128(38, 0),
            Carrier::I256 => DataType::Decimal256(76, 0),
            Carrier::U8 => DataType::UInt8,
            Carrier::U16 => DataType::UInt16,
            Carrier::U32 => DataType::UInt32,
            Carrier::U64 => DataType::UInt64,
            Carrier::F32 => DataType::Float32,
            Carrier::F64 => DataType::Float64,
        },
        Layout::Bytes(width) => DataType::FixedSizeBinary(i32::try_from(*width).ok()?),
        Layout::Offsets32 => DataType::Binary,
        Layout::Offsets64 => DataType::LargeBinary,
        Layout::Views => DataType::BinaryView,
        Layout::List(_) => return None,
    })
}
