// SPDX-License-Identifier: Apache-2.0
//! Lists that go through an aggregation as words: the elements stay where they are, and come back
//! at its end.

use std::sync::Arc;

use arrow::datatypes::{Field, Schema};
use columnar::{DeviceBatch, DeviceColumn, Layout};
use datafusion::common::{Result, internal_err};
use device::Queue;

use crate::error::columnar_error;
use crate::graph::{ListOutput, Stage};

/// The elements of an aggregation's lists, which are those of the one batch that has its rows.
pub(super) struct Elements<'a> {
    lists: &'a [ListOutput],
    found: Vec<Option<Arc<DeviceColumn>>>,
}

impl<'a> Elements<'a> {
    /// None yet.
    pub fn new(lists: &'a [ListOutput]) -> Self {
        Elements { lists, found: vec![None; lists.len()] }
    }

    /// Keeps the elements of a batch of the input.
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

    /// A batch of the result with lists for words.
    pub fn attach(&self, queue: &Queue, stage: &Stage, batch: DeviceBatch) -> Result<DeviceBatch> {
        if self.lists.is_empty() {
            return Ok(batch);
        }
        let failed = |error| columnar_error(&stage.operator, error);
        let mut columns = batch.columns().to_vec();
        for (list, found) in self.lists.iter().zip(&self.found) {
            let words = columns.get(list.pairs).cloned();
            let (Some(column), Some(ty)) = (words, stage.types.get(list.output)) else {
                return internal_err!("an aggregation without its column {}", list.output);
            };
            let Layout::List(own) = &ty.layout else { return internal_err!("column {} has no lists", list.output) };
            let elements = match found {
                Some(elements) => Arc::clone(elements),
                // Without rows every word is NULL.
                None => {
                    let field = Field::new("elements", own.data_type.clone(), own.nullable);
                    let blank = DeviceBatch::blank(queue, &Arc::new(Schema::new(vec![field])), &[(**own).clone()]);
                    Arc::new(blank.map_err(failed)?.columns()[0].clone())
                }
            };
            let validity = column.validity().map(|(bits, first)| (bits.clone(), first));
            let (len, words, nulls) = (column.len(), column.buffers().to_vec(), column.null_count());
            let lists = DeviceColumn::try_new(Arc::new(ty.clone()), len, words, validity, nulls, Some(elements));
            columns[list.output] = lists.and_then(|lists| lists.with_offset(column.offset())).map_err(failed)?;
        }
        // Words of keys lie behind the others.
        columns.truncate(stage.types.len());
        DeviceBatch::try_new(Arc::clone(&stage.schema), columns, batch.num_rows()).map_err(failed)
    }
}
