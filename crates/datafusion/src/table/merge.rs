// SPDX-License-Identifier: Apache-2.0
//! Merging of uploaded batches to larger ones.
//!
//! The host collects few rows before it uploads them, and a GPU wants many in a launch. A group of
//! batches is on the device twice while it is merged.

use std::sync::Arc;

use arrow::datatypes::{DataType, Schema};
use columnar::{DeviceBatch, DeviceColumn, Layout, Resident};
use device::Queue;
use kernels::Result;
use kernels::ops::{Concat, Options};

/// Most rows and bytes of a merged batch.
#[derive(Debug, Clone, Copy)]
pub(super) struct MergedSize {
    pub rows: usize,
    pub bytes: usize,
}

/// Most bytes of a string column in a batch, which 32-bit offsets address.
const HEAP_BYTES: usize = i32::MAX as usize;

/// Whether batches of these columns are merged. Elements of lists may not fit one batch, nor
/// dictionaries that the batches do not share.
pub(super) fn are_merged(schema: &Schema) -> bool {
    schema.fields().iter().all(|field| match field.data_type() {
        DataType::Dictionary(_, _) => false,
        data_type => !data_type.is_nested(),
    })
}

/// Whether a column of two batches has the same dictionary, or none.
fn share_dictionary(left: &DeviceColumn, right: &DeviceColumn) -> bool {
    match (left.dictionary(), right.dictionary()) {
        (Some(left), Some(right)) => Arc::ptr_eq(left, right),
        (left, right) => left.is_none() && right.is_none(),
    }
}

/// Merges neighbours among the batches of `table` behind the first `shared`. Where memory is short,
/// batches stay apart.
///
/// # Errors
/// Errors of the device.
pub(super) async fn merge_batches(
    queue: &Queue,
    options: &Options,
    table: &mut Resident,
    shared: usize,
    most: MergedSize,
) -> Result<()> {
    if !are_merged(&table.schema) || table.batches.len() < shared + 2 {
        return Ok(());
    }
    let pool = queue.context().pool();
    let concat = Concat::try_new_keeping_layouts(Arc::clone(&table.schema), table.types.clone(), options.clone())?;
    let mut merged = Vec::new();
    let mut rest = table.batches.split_off(shared).into_iter().peekable();
    while let Some(batch) = rest.next() {
        let mut size = BatchSize::of(&batch);
        let share = |next: &DeviceBatch| {
            batch.columns().iter().zip(next.columns()).all(|(column, other)| share_dictionary(column, other))
        };
        let mut group = vec![batch.clone()];
        while let Some(next) = rest.next_if(|next| size.plus(&BatchSize::of(next)).fits(most) && share(next)) {
            size = size.plus(&BatchSize::of(&next));
            group.push(next);
        }
        drop(batch);
        if group.len() < 2 || size.bytes > pool.available() {
            merged.extend(group);
            continue;
        }
        match concat.run(queue, group.clone()).await {
            Ok(batch) => merged.extend(batch),
            Err(kernels::Error::Device(error)) if error.is_out_of_memory() => merged.extend(group),
            Err(error) => return Err(error),
        }
    }
    table.batches.extend(merged);
    Ok(())
}

/// The part of the limits that a batch takes.
struct BatchSize {
    rows: usize,
    bytes: usize,
    /// Of each column, the bytes of its strings.
    heaps: Vec<usize>,
}

impl BatchSize {
    fn of(batch: &DeviceBatch) -> BatchSize {
        let heap = |column: &columnar::DeviceColumn| match (&column.ty().layout, column.buffers()) {
            (Layout::Offsets32, [_, heap]) => heap.len(),
            _ => 0,
        };
        let heaps = batch.columns().iter().map(heap).collect();
        BatchSize { rows: batch.num_rows(), bytes: batch.memory_bytes(), heaps }
    }

    fn plus(&self, other: &BatchSize) -> BatchSize {
        let heaps = self.heaps.iter().zip(&other.heaps).map(|(own, other)| own + other).collect();
        BatchSize { rows: self.rows + other.rows, bytes: self.bytes + other.bytes, heaps }
    }

    fn fits(&self, most: MergedSize) -> bool {
        self.rows <= most.rows && self.bytes <= most.bytes && self.heaps.iter().all(|heap| *heap <= HEAP_BYTES)
    }
}

#[cfg(test)]
mod tests {
    use arrow::array::{
        ArrayRef, BooleanArray, Decimal128Array, DictionaryArray, Int64Array, ListArray, RecordBatch, StringArray,
    };
    use arrow::compute::concat_batches;
    use arrow::datatypes::{Int16Type, Int64Type};
    use columnar::{ResidentBuilder, download};
    use device::Context;
    use device::testing::{Fault, FaultPlan, config};
    use futures::executor::block_on;
    use kernels::codegen::Profile;

    use super::*;

    fn rows(from: usize, n: usize, with_lists: bool) -> RecordBatch {
        let numbers = || from..from + n;
        let text = |i: usize| (!i.is_multiple_of(7)).then(|| format!("row {} {}", i, "x".repeat(i % 40)));
        let mut columns: Vec<(&str, ArrayRef)> = vec![
            ("number", Arc::new(Int64Array::from_iter_values(numbers().map(|i| i as i64)))),
            ("decimal", Arc::new(Decimal128Array::from_iter(numbers().map(|i| (i % 5 > 0).then_some(i as i128))))),
            ("flag", Arc::new(BooleanArray::from_iter(numbers().map(|i| (i % 3 > 0).then_some(i % 2 == 0))))),
            ("code", Arc::new(StringArray::from_iter_values(numbers().map(|i| format!("code {}", i % 10))))),
            ("text", Arc::new(StringArray::from_iter(numbers().map(text)))),
        ];
        if with_lists {
            let lists = numbers().map(|i| Some((0..i % 4).map(|element| Some(element as i64))));
            columns.push(("list", Arc::new(ListArray::from_iter_primitive::<Int64Type, _, _>(lists))));
        }
        RecordBatch::try_from_iter(columns).unwrap()
    }

    fn table(queue: &Queue, rows: &RecordBatch, batch_rows: usize) -> Resident {
        let mut builder = ResidentBuilder::try_new(queue, rows.schema_ref()).unwrap().with_batch_rows(batch_rows);
        builder.push(rows.clone()).unwrap();
        block_on(builder.finish()).unwrap()
    }

    fn lengths(table: &Resident) -> Vec<usize> {
        table.batches.iter().map(DeviceBatch::num_rows).collect()
    }

    fn host(queue: &Queue, table: &Resident) -> RecordBatch {
        let batches: Vec<_> = table.batches.iter().map(|batch| block_on(download(queue, batch)).unwrap()).collect();
        concat_batches(&table.schema, &batches).unwrap()
    }

    const ANY_BYTES: usize = 1 << 30;

    #[test]
    fn merged_batches_have_the_rows_of_their_parts() {
        let queue = Context::new(config().unwrap()).unwrap().queue().unwrap();
        let (all, options) = (rows(0, 1005, false), Options::new(Profile::Cpu));
        for (shared, most, expected) in [
            (0, 1 << 20, vec![1005]),
            (0, 250, vec![200, 200, 200, 200, 205]),
            (0, 1000, vec![1000, 5]),
            (3, 400, vec![100, 100, 100, 400, 305]),
            (10, 1 << 20, [vec![100; 10], vec![5]].concat()),
            (11, 1 << 20, [vec![100; 10], vec![5]].concat()),
        ] {
            let mut table = table(&queue, &all, 100);
            let before = table.types.clone();
            block_on(merge_batches(&queue, &options, &mut table, shared, MergedSize { rows: most, bytes: ANY_BYTES })).unwrap();
            assert_eq!(lengths(&table), expected);
            assert_eq!(table.types, before);
            table.batches.iter().flat_map(DeviceBatch::columns).zip(before.iter().cycle()).for_each(|(column, ty)| {
                assert_eq!(**column.ty(), *ty);
            });
            assert_eq!(host(&queue, &table), all);
        }
    }

    #[test]
    fn bytes_limit_a_merged_batch() {
        let queue = Context::new(config().unwrap()).unwrap().queue().unwrap();
        let mut table = table(&queue, &rows(0, 1000, false), 100);
        let bytes = BatchSize::of(&table.batches[0]).plus(&BatchSize::of(&table.batches[1])).bytes;
        let most = MergedSize { rows: 1 << 20, bytes };
        block_on(merge_batches(&queue, &Options::new(Profile::Cpu), &mut table, 0, most)).unwrap();
        assert!(table.batches.len() >= 5 && table.batches.len() < 10, "{:?}", lengths(&table));
    }

    #[test]
    fn tables_with_lists_or_dictionaries_stay_as_they_are() {
        let queue = Context::new(config().unwrap()).unwrap().queue().unwrap();
        let most = MergedSize { rows: 1 << 20, bytes: ANY_BYTES };
        let terms = (0..300).map(|i| format!("term {i}")).collect::<Vec<_>>();
        let dictionary: DictionaryArray<Int16Type> = terms.iter().map(String::as_str).collect();
        let terms = RecordBatch::try_from_iter([("term", Arc::new(dictionary) as ArrayRef)]).unwrap();
        for rows in [rows(0, 300, true), terms] {
            let mut table = table(&queue, &rows, 100);
            block_on(merge_batches(&queue, &Options::new(Profile::Cpu), &mut table, 0, most)).unwrap();
            assert_eq!(lengths(&table), [100; 3]);
        }
    }

    #[test]
    fn batches_stay_apart_where_memory_is_short() {
        let plan = FaultPlan::new();
        let queue = Context::new(config().unwrap().with_wrap(plan.wrap())).unwrap().queue().unwrap();
        let all = rows(0, 300, false);
        let mut table = table(&queue, &all, 100);
        let most = MergedSize { rows: 1 << 20, bytes: ANY_BYTES };
        // Free lists serve the smaller buffers, so each allocation fails.
        queue.context().pool().trim();
        plan.fail(Fault::Alloc, 1, u64::MAX);
        let merged = block_on(merge_batches(&queue, &Options::new(Profile::Cpu), &mut table, 0, most));
        plan.heal();
        merged.unwrap();
        assert_eq!((lengths(&table), host(&queue, &table)), (vec![100; 3], all));
    }
}
