// SPDX-License-Identifier: Apache-2.0
//! Lists in aggregations: kernels pass (offset, length) pairs, and the elements are attached at the
//! end.

use std::sync::Arc;

use arrow::datatypes::{Field, Schema};
use columnar::{DeviceBatch, DeviceColumn, Layout};
use datafusion::common::{Result, internal_err};
use device::Queue;

use crate::error::columnar_error;
use crate::graph::{ListOutput, Stage};

/// The elements of an aggregation's lists. All come from the one batch of its input.
pub(super) struct Elements<'a> {
    lists: &'a [ListOutput],
    found: Vec<Option<Arc<DeviceColumn>>>,
}

impl<'a> Elements<'a> {
    /// No elements yet.
    pub fn new(lists: &'a [ListOutput]) -> Self {
        Elements { lists, found: vec![None; lists.len()] }
    }

    /// Records the elements of a batch of the input.
    pub fn record(&mut self, batch: &DeviceBatch) -> Result<()> {
        for (list, found) in self.lists.iter().zip(&mut self.found) {
            let Some(elements) = batch.columns().get(list.input).and_then(DeviceColumn::elements) else {
                return internal_err!("column {} of an aggregation has no lists", list.input);
            };
            if found.as_ref().is_some_and(|found| !Arc::ptr_eq(found, elements)) {
                return internal_err!("an aggregation of lists in several batches");
            }
            *found = Some(Arc::clone(elements));
        }
        Ok(())
    }

    /// Replaces the pairs of a result batch by lists.
    pub fn attach(&self, queue: &Queue, stage: &Stage, batch: DeviceBatch) -> Result<DeviceBatch> {
        if self.lists.is_empty() {
            return Ok(batch);
        }
        let failed = |error| columnar_error(&stage.operator, error);
        let mut columns = batch.columns().to_vec();
        for (list, found) in self.lists.iter().zip(&self.found) {
            let pairs = columns.get(list.pairs).cloned();
            let (Some(column), Some(ty)) = (pairs, stage.types.get(list.output)) else {
                return internal_err!("an aggregation without its column {}", list.output);
            };
            let Layout::List(element) = &ty.layout else { return internal_err!("column {} has no lists", list.output) };
            let elements = match found {
                Some(elements) => Arc::clone(elements),
                // Without rows every pair is NULL.
                None => {
                    let field = Field::new("elements", element.data_type.clone(), element.nullable);
                    let blank = DeviceBatch::blank(queue, &Arc::new(Schema::new(vec![field])), &[(**element).clone()]);
                    Arc::new(blank.map_err(failed)?.columns()[0].clone())
                }
            };
            let validity = column.validity().map(|(bits, first)| (bits.clone(), first));
            let (len, pairs, nulls) = (column.len(), column.buffers().to_vec(), column.null_count());
            let lists = DeviceColumn::try_new(Arc::new(ty.clone()), len, pairs, validity, nulls, Some(elements));
            columns[list.output] = lists.and_then(|lists| lists.with_offset(column.offset())).map_err(failed)?;
        }
        // The pairs of keys come last.
        columns.truncate(stage.types.len());
        DeviceBatch::try_new(Arc::clone(&stage.schema), columns, batch.num_rows()).map_err(failed)
    }
}
