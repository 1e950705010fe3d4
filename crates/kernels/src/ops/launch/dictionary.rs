// SPDX-License-Identifier: Apache-2.0
//! One dictionary for the codes of several batches.
//!
//! The batches of a resident table share a dictionary, or each one's dictionary begins with that of
//! the batch before. The codes of other batches are rewritten to the first dictionary, to which
//! missing values are appended.

use std::collections::HashMap;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, FixedSizeBinaryArray, RecordBatch};
use arrow::compute::{cast, concat};
use arrow::datatypes::{DataType, Field, Schema};
use columnar::{DeviceBatch, DeviceColumn, download, upload};
use device::Queue;

use super::primitives::LoadedPrimitives;
use crate::{Error, Result};

/// Unifies the dictionary of `column` with the dictionary `known`, to which values may be appended.
/// Returns the column with new codes, if they had to change.
///
/// # Errors
/// `Unsupported` for more than `max_values` values in all.
pub(in crate::ops) async fn unify(
    queue: &Queue,
    primitives: &LoadedPrimitives<'_>,
    known: &mut Option<Arc<DeviceColumn>>,
    column: &DeviceColumn,
    max_values: usize,
) -> Result<Option<DeviceColumn>> {
    let Some(new) = column.dictionary() else { return Err(Error::Internal("codes without a dictionary".into())) };
    let Some(old) = known.clone() else {
        *known = Some(new.clone());
        return Ok(None);
    };
    if same(&old, new) {
        if new.len() > old.len() {
            *known = Some(new.clone());
        }
        return Ok(None);
    }
    let (old_values, new_values) = (values(queue, &old).await?, values(queue, new).await?);
    let common = old_values.len().min(new_values.len());
    if old_values.slice(0, common).to_data() == new_values.slice(0, common).to_data() {
        if new.len() > old.len() {
            *known = Some(new.clone());
        }
        return Ok(None);
    }
    let (old_bytes, new_bytes) = (bytes(&old_values)?, bytes(&new_values)?);
    let mut codes_of: HashMap<&[u8], u32> = HashMap::new();
    let old_binary = old_bytes.as_binary::<i64>();
    for code in 0..old_binary.len() {
        codes_of.insert(old_binary.value(code), code as u32);
    }
    let new_binary = new_bytes.as_binary::<i64>();
    let mut map = Vec::with_capacity(new_binary.len());
    let mut missing = Vec::new();
    for code in 0..new_binary.len() {
        let next = (old_binary.len() + missing.len()) as u32;
        map.push(*codes_of.entry(new_binary.value(code)).or_insert_with(|| {
            missing.push(new_values.slice(code, 1));
            next
        }));
    }
    if old_binary.len() + missing.len() > max_values {
        return Err(Error::Unsupported(format!(
            "batches with different dictionaries of together {} values, {max_values} being the most that their codes allow, are not supported on the device",
            old_binary.len() + missing.len()
        )));
    }
    let mut parts: Vec<&dyn Array> = vec![&old_values];
    parts.extend(missing.iter().map(|value| value as &dyn Array));
    let all = concat(&parts).map_err(columnar::Error::from)?;
    let field = Field::new("values", all.data_type().clone(), false);
    let batch = RecordBatch::try_new(Arc::new(Schema::new(vec![field])), vec![all]).map_err(columnar::Error::from)?;
    let uploaded = upload(queue, &batch.schema(), &[(**old.ty()).clone()], &[batch])?;
    let dictionary = Arc::new(uploaded.columns()[0].clone());
    *known = Some(dictionary.clone());
    let codes = primitives.remap(column, &map)?;
    let validity = column.validity().map(|(bits, offset)| (bits.clone(), offset));
    Ok(Some(DeviceColumn::try_new(
        column.ty().clone(),
        column.len(),
        vec![codes],
        validity,
        column.null_count(),
        Some(dictionary),
    )?))
}

/// Whether two dictionaries lie in the same memory.
fn same(left: &Arc<DeviceColumn>, right: &Arc<DeviceColumn>) -> bool {
    Arc::ptr_eq(left, right)
        || (left.offset() == right.offset()
            && left.buffers().len() == right.buffers().len()
            && left.buffers().iter().zip(right.buffers()).all(|(left, right)| left.raw() == right.raw()))
}

async fn values(queue: &Queue, dictionary: &DeviceColumn) -> Result<ArrayRef> {
    let field = Field::new("values", dictionary.ty().data_type.clone(), true);
    let batch = DeviceBatch::try_new(Arc::new(Schema::new(vec![field])), vec![dictionary.clone()], dictionary.len())?;
    Ok(download(queue, &batch).await?.column(0).clone())
}

/// The bytes of each value, as `LargeBinary`; of values of a fixed width their memory.
fn bytes(values: &ArrayRef) -> Result<ArrayRef> {
    let binary = match values.data_type() {
        DataType::Utf8View => cast(values, &DataType::LargeUtf8).and_then(|strings| cast(&strings, &DataType::LargeBinary)),
        DataType::Utf8 | DataType::LargeUtf8 | DataType::Binary | DataType::LargeBinary => cast(values, &DataType::LargeBinary),
        DataType::BinaryView | DataType::FixedSizeBinary(_) => cast(values, &DataType::LargeBinary),
        other => {
            let (data, width) = (values.to_data(), other.primitive_width().unwrap_or(0));
            let ([buffer], true) = (data.buffers(), width > 0) else {
                return Err(Error::Unsupported(format!(
                    "batches with different dictionaries of {other} are not supported on the device"
                )));
            };
            let memory = buffer.slice_with_length(data.offset() * width, values.len() * width);
            FixedSizeBinaryArray::try_new(width as i32, memory, None).and_then(|fixed| cast(&fixed, &DataType::LargeBinary))
        }
    };
    Ok(binary.map_err(columnar::Error::from)?)
}
