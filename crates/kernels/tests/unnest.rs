// SPDX-License-Identifier: Apache-2.0
//! Unnested lists compared with Arrow's `take`, in both profiles.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod support;

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, Int64Array, LargeListArray, RecordBatch, UInt32Array};
use arrow::buffer::OffsetBuffer;
use arrow::compute::{concat_batches, take};
use arrow::datatypes::{DataType, Field};
use columnar::natural_types;
use futures::executor::block_on;
use kernels::ops::{KeepEmpty, Options, Unnest, UnnestOutput};
use support::*;

/// All of KeepEmpty.
const KEEPS: [KeepEmpty; 3] = [
    KeepEmpty { nulls: false, empties: false },
    KeepEmpty { nulls: true, empties: false },
    KeepEmpty { nulls: true, empties: true },
];

/// The range of a row's elements, if it has a list.
fn span(lists: &dyn Array, row: usize) -> Option<(usize, usize)> {
    let span = match lists.data_type() {
        DataType::List(_) => lists.as_list::<i32>().value_offsets()[row..][..2].iter().map(|at| *at as usize).collect::<Vec<_>>(),
        DataType::LargeList(_) => lists.as_list::<i64>().value_offsets()[row..][..2].iter().map(|at| *at as usize).collect(),
        DataType::FixedSizeList(_, size) => vec![row * *size as usize, (row + 1) * *size as usize],
        other => panic!("{other}"),
    };
    lists.is_valid(row).then_some((span[0], span[1] - span[0]))
}

fn elements(lists: &dyn Array) -> ArrayRef {
    match lists.data_type() {
        DataType::List(_) => lists.as_list::<i32>().values().clone(),
        DataType::LargeList(_) => lists.as_list::<i64>().values().clone(),
        _ => lists.as_fixed_size_list().values().clone(),
    }
}

/// The batch with the lists of these names unnested.
fn expected(batch: &RecordBatch, unnested: &[&str], keeps: KeepEmpty) -> Vec<String> {
    let length = |column: &ArrayRef, row| match span(column, row) {
        None => usize::from(keeps.nulls),
        Some((_, 0)) => usize::from(keeps.empties),
        Some((_, length)) => length,
    };
    let lists: Vec<&ArrayRef> = unnested.iter().map(|name| batch.column_by_name(name).unwrap()).collect();
    let lengths: Vec<usize> =
        (0..batch.num_rows()).map(|row| lists.iter().map(|list| length(list, row)).max().unwrap()).collect();
    let rows_of: UInt32Array = lengths.iter().enumerate().flat_map(|(row, n)| vec![row as u32; *n]).collect();
    let columns = batch.schema_ref().fields().iter().zip(batch.columns()).map(|(field, column)| {
        if !unnested.contains(&field.name().as_str()) {
            return (field.name().as_str(), take(column, &rows_of, None).unwrap(), true);
        }
        let positions: UInt32Array = lengths
            .iter()
            .enumerate()
            .flat_map(|(row, n)| {
                let (start, length) = span(column, row).unwrap_or_default();
                (0..*n).map(move |at| (at < length).then(|| (start + at) as u32))
            })
            .collect();
        (field.name().as_str(), take(&elements(column), &positions, None).unwrap(), true)
    });
    rows(&support::batch(columns.collect()))
}

fn unnest_of(whole: &RecordBatch, unnested: &[&str], keeps: KeepEmpty, options: &Options) -> Unnest {
    let outputs = whole.schema_ref().fields().iter().enumerate().map(|(column, field)| {
        if !unnested.contains(&field.name().as_str()) {
            return (UnnestOutput::Row(column), field.as_ref().clone());
        }
        let (DataType::List(item) | DataType::LargeList(item) | DataType::FixedSizeList(item, _)) = field.data_type() else {
            panic!("{field}");
        };
        (UnnestOutput::Elements(column), Field::new(field.name(), item.data_type().clone(), true))
    });
    let types = natural_types(&whole.schema()).unwrap();
    Unnest::try_new(whole.schema(), types, outputs.collect(), keeps, options.clone()).unwrap()
}

fn check(whole: &RecordBatch, sizes: &[usize], unnested: &[&str], keeps: KeepEmpty, options: &Options) {
    let queue = queue();
    let unnest = unnest_of(whole, unnested, keeps, options);
    let types = natural_types(&whole.schema()).unwrap();
    let mut pending = slices(&queue, whole, sizes, &types);
    pending.reverse();
    let mut found = vec![];
    while let Some(batch) = block_on(unnest.next(&queue, &mut pending)).unwrap() {
        assert_eq!(unnest.output_types(), batch.columns().iter().map(|column| (**column.ty()).clone()).collect::<Vec<_>>());
        assert!(batch.num_rows() > 0);
        found.push(down(&queue, &batch));
    }
    let total = sizes.iter().sum();
    let wanted = expected(&whole.slice(0, total), unnested, keeps);
    let found = rows(&concat_batches(unnest.schema(), &found).unwrap());
    assert_eq!(found.len(), wanted.len(), "{unnested:?}, {keeps:?}, {:?}", options.profile);
    for (row, (found, wanted)) in found.iter().zip(&wanted).enumerate() {
        assert_eq!(found, wanted, "row {row}, {unnested:?}, {keeps:?}, {:?}", options.profile);
    }
}

#[test]
fn lists_of_every_type() {
    let whole = table_with_lists(0, 700);
    let names = ["numbers", "flags", "views", "terms", "decimals", "nothings", "sure_lists", "texts", "nested", "pairs"];
    for options in profiles() {
        for (index, name) in names.into_iter().enumerate() {
            check(&whole, &[31, 257, 0, 1], &[name], KEEPS[index % 3], &options);
        }
    }
}

#[test]
fn several_lists_at_once() {
    let whole = table_with_lists(0, 400);
    for options in profiles() {
        for keeps in KEEPS {
            check(&whole, &[100, 300], &["numbers", "pairs", "texts"], keeps, &options);
        }
    }
}

#[test]
fn every_batch_size() {
    device::skip_unless_turn!(5);
    let whole = table_with_lists(0, SIZES[4]).project(&[0, 12, 20, 22, 27]).unwrap();
    for options in profiles() {
        for n in SIZES {
            check(&whole, &[n], &["numbers", "texts"], KEEPS[0], &options);
        }
    }
}

/// Large results come in several batches; the elements of a row stay together.
#[test]
fn many_elements_come_in_several_batches() {
    let queue = queue();
    let lengths = [0, 3_000_000, 3_000_000, 5_000_000, 1, 2];
    let total: usize = lengths.iter().sum();
    let values: ArrayRef = Arc::new(Int64Array::from_iter_values(0..total as i64));
    let field = Arc::new(Field::new("item", DataType::Int64, true));
    let lists = LargeListArray::new(field, OffsetBuffer::from_lengths(lengths), values, None);
    let whole = batch(vec![("list", Arc::new(lists) as ArrayRef, false)]);
    let types = natural_types(&whole.schema()).unwrap();
    for options in profiles() {
        let unnest = unnest_of(&whole, &["list"], KeepEmpty::default(), &options);
        let mut pending = vec![up(&queue, &whole, &types)];
        let (mut sizes, mut next) = (vec![], 0);
        while let Some(batch) = block_on(unnest.next(&queue, &mut pending)).unwrap() {
            sizes.push(batch.num_rows());
            let batch = down(&queue, &batch);
            let found = batch.column(0).as_primitive::<arrow::datatypes::Int64Type>();
            for value in found.values() {
                assert_eq!(*value, next);
                next += 1;
            }
        }
        assert_eq!(next, total as i64);
        assert_eq!(sizes, [3_000_000, 3_000_000, 5_000_000, 3], "{:?}", options.profile);
    }
}
