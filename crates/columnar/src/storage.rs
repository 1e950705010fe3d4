// SPDX-License-Identifier: Apache-2.0
//! Batches as plain host arrays of their own layouts, for spills.
//!
//! A spilled batch comes back in its own layouts, since kernels are compiled for them. So a
//! column is stored by its layout, not by its logical type. A decimal of 16 bits becomes `Int16`,
//! a dictionary column its codes. Dictionaries stay on the device, in [`StoredColumns`].

use std::sync::Arc;

use arrow::array::{RecordBatch, RecordBatchOptions};
use arrow::compute::cast;
use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use device::Queue;

use crate::{Carrier, ColumnType, DeviceBatch, DeviceColumn, Error, Layout, Result, download, upload};

/// How batches of one source are stored.
///
/// # Examples
/// ```
/// use std::sync::Arc;
/// use arrow::array::{Decimal128Array, RecordBatch};
/// use arrow::datatypes::DataType;
/// use columnar::{Carrier, Layout, StorageFormat, download, natural_types, upload};
///
/// # futures::executor::block_on(async {
/// let prices = Decimal128Array::from(vec![199, 250]).with_precision_and_scale(9, 2)?;
/// let host = RecordBatch::try_from_iter([("price", Arc::new(prices) as _)])?;
/// let queue = device::Context::new(device::DeviceConfig::default())?.queue()?;
/// let mut types = natural_types(&host.schema())?;
/// types[0].layout = Layout::Fixed(Carrier::I16);
/// let batch = upload(&queue, &host.schema(), &types, &[host.clone()])?;
///
/// let format = StorageFormat::of(&host.schema(), &types).ok_or("a list")?;
/// let stored = format.store(&queue, &batch).await?;
/// assert_eq!(stored.column(0).data_type(), &DataType::Int16);
/// let restored = format.restore(&queue, &stored, &format.columns(&batch))?;
/// assert_eq!(restored.columns()[0].ty().layout, types[0].layout);
/// assert_eq!(download(&queue, &restored).await?, host);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// # }).unwrap();
/// ```
#[derive(Debug, Clone)]
pub struct StorageFormat {
    schema: SchemaRef,
    types: Vec<Arc<ColumnType>>,
    stored: SchemaRef,
    stored_types: Vec<ColumnType>,
}

/// The dictionaries of stored batches, which come back with them.
#[derive(Debug, Clone)]
pub struct StoredColumns {
    dictionaries: Vec<Option<Arc<DeviceColumn>>>,
}

impl StoredColumns {
    /// Whether both have the same dictionaries, so that their rows can be stored as one batch.
    #[must_use]
    pub fn same_dictionaries(&self, other: &StoredColumns) -> bool {
        let same = |(one, other): (&Option<Arc<DeviceColumn>>, &Option<Arc<DeviceColumn>>)| match (one, other) {
            (Some(one), Some(other)) => Arc::ptr_eq(one, other),
            (None, None) => true,
            (Some(_), None) | (None, Some(_)) => false,
        };
        self.dictionaries.iter().zip(&other.dictionaries).all(same)
    }
}

impl StorageFormat {
    /// For batches of `schema` in the layouts of `types`; `None` if one is a list.
    pub fn of(schema: &SchemaRef, types: &[ColumnType]) -> Option<Self> {
        let stored_types = types.iter().map(stored_type).collect::<Option<Vec<_>>>()?;
        let fields = schema.fields().iter().zip(&stored_types);
        let fields = fields.map(|(field, ty)| Field::new(field.name(), ty.data_type.clone(), ty.nullable));
        let stored = Arc::new(Schema::new(fields.collect::<Vec<_>>()));
        let types = types.iter().cloned().map(Arc::new).collect();
        Some(Self { schema: Arc::clone(schema), types, stored, stored_types })
    }

    /// The schema of stored batches.
    pub fn stored_schema(&self) -> &SchemaRef {
        &self.stored
    }

    /// The dictionaries that [`restore`](Self::restore) needs beside the stored rows of `batch` and
    /// its slices.
    pub fn columns(&self, batch: &DeviceBatch) -> StoredColumns {
        StoredColumns { dictionaries: batch.columns().iter().map(|column| column.dictionary().cloned()).collect() }
    }

    /// Downloads a batch as it is stored. Strings may have wider offsets than those of the format.
    ///
    /// # Errors
    /// `Malformed` for a batch of other columns; `Arrow` for too many bytes of strings; errors of
    /// the device.
    pub async fn store(&self, queue: &Queue, batch: &DeviceBatch) -> Result<RecordBatch> {
        let columns = batch.columns().iter().map(|column| {
            let ty = stored_type(column.ty()).ok_or_else(|| Error::Malformed("a list, which is not stored".into()))?;
            column.relabelled(Arc::new(ty), None)
        });
        let columns = columns.collect::<Result<Vec<_>>>()?;
        let fields = self.stored.fields().iter().zip(&columns);
        let fields = fields.map(|(field, column)| field.as_ref().clone().with_data_type(column.ty().data_type.clone()));
        let schema = Arc::new(Schema::new(fields.collect::<Vec<_>>()));
        let rows = download(queue, &DeviceBatch::try_new(schema, columns, batch.num_rows())?).await?;
        let columns = rows.columns().iter().zip(self.stored.fields());
        let columns = columns.map(|(column, field)| cast(column, field.data_type())).collect::<std::result::Result<_, _>>()?;
        let options = RecordBatchOptions::new().with_row_count(Some(rows.num_rows()));
        Ok(RecordBatch::try_new_with_options(Arc::clone(&self.stored), columns, &options)?)
    }

    /// Enqueues the upload of stored rows, in the layouts that they had.
    ///
    /// # Errors
    /// As [`upload`].
    pub fn restore(&self, queue: &Queue, rows: &RecordBatch, columns: &StoredColumns) -> Result<DeviceBatch> {
        let stored = upload(queue, &self.stored, &self.stored_types, std::slice::from_ref(rows))?;
        let restored = stored.columns().iter().zip(&self.types).zip(&columns.dictionaries);
        let restored = restored.map(|((column, ty), dictionary)| column.relabelled(Arc::clone(ty), dictionary.clone()));
        DeviceBatch::try_new(Arc::clone(&self.schema), restored.collect::<Result<_>>()?, rows.num_rows())
    }
}

/// The type of a column's values as plain numbers and bytes, whose natural layout is the column's.
fn stored_type(ty: &ColumnType) -> Option<ColumnType> {
    let data_type = match &ty.layout {
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
    };
    ColumnType::of(&data_type, ty.nullable)
}
