// SPDX-License-Identifier: Apache-2.0
//! Copies of rows that keep no other rows in memory, nor their strings: slices would.

use std::sync::{Arc, OnceLock};

use arrow::datatypes::SchemaRef;
use columnar::{Carrier, ColumnType, DeviceBatch, DeviceColumn, Layout};
use device::Queue;

use crate::Result;
use crate::ops::launch::layout_kernels::{LayoutKernels, LoadedLayoutKernels};
use crate::ops::{Gather, Options};

/// Copies rows of certain columns.
#[derive(Debug, Clone)]
pub(super) struct Compaction {
    schema: SchemaRef,
    types: Vec<ColumnType>,
    options: Options,
    kernels: LayoutKernels,
    gather: OnceLock<Gather>,
}

impl Compaction {
    pub fn new(schema: &SchemaRef, types: &[ColumnType], options: &Options) -> Compaction {
        let (schema, types, kernels) = (schema.clone(), types.to_vec(), LayoutKernels::new(options));
        Compaction { schema, types, options: options.clone(), kernels, gather: OnceLock::new() }
    }

    fn gather(&self) -> Result<&Gather> {
        if let Some(gather) = self.gather.get() {
            return Ok(gather);
        }
        let gather = Gather::with_copied_views(self.schema.clone(), self.types.clone(), self.options.clone())?;
        Ok(self.gather.get_or_init(|| gather))
    }

    /// A copy of a slice, or the slice where a copy has other layouts.
    pub async fn run(&self, queue: &Queue, slice: &DeviceBatch) -> Result<DeviceBatch> {
        let (gather, kernels) = (self.gather()?, self.kernels.load(queue).await?);
        if !gather.output_types().iter().zip(&self.types).all(|(from, to)| keeps_layout(&from.layout, &to.layout)) {
            return Ok(slice.clone());
        }
        let n = slice.num_rows();
        let copy = gather.run(queue, slice, &kernels.row_numbers(Carrier::U32, n)?, n).await?;
        let mut columns = Vec::with_capacity(self.types.len());
        for (column, ty) in copy.columns().iter().zip(&self.types) {
            match as_views(queue, column, ty, &kernels)? {
                Some(column) => columns.push(column),
                // Views address 4 GiB of strings.
                None => return Ok(slice.clone()),
            }
        }
        Ok(DeviceBatch::try_new(self.schema.clone(), columns, n)?)
    }
}

/// Whether a gathered column can take the place of its input: a gather widens narrow integers and
/// 32-bit offsets, and copies views to 64-bit offsets.
fn keeps_layout(from: &Layout, to: &Layout) -> bool {
    from == to || matches!((from, to), (Layout::Offsets64, Layout::Views | Layout::Offsets32))
}

/// A gathered column with views where `ty` has them. `None` if its strings are too long for views.
fn as_views(
    queue: &Queue,
    column: &DeviceColumn,
    ty: &ColumnType,
    kernels: &LoadedLayoutKernels<'_>,
) -> Result<Option<DeviceColumn>> {
    let (Layout::Views, [offsets, heap]) = (&ty.layout, column.buffers()) else { return Ok(Some(column.clone())) };
    if heap.len() > u32::MAX as usize {
        return Ok(None);
    }
    let views = kernels.views(offsets, heap, column.len())?;
    let buffers = vec![views, heap.clone(), queue.zeroed(size_of::<u64>())?];
    let validity = column.validity().map(|(bits, first)| (bits.clone(), first));
    let column = DeviceColumn::try_new(Arc::new(ty.clone()), column.len(), buffers, validity, column.null_count(), None)?;
    Ok(Some(column))
}
