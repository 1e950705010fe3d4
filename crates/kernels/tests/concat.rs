// SPDX-License-Identifier: Apache-2.0
//! Concatenation of batches, in both profiles.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod support;

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, DictionaryArray, RecordBatch, StringArray};
use arrow::compute::concat_batches;
use arrow::datatypes::{DataType, Int8Type, UInt8Type};
use columnar::{DeviceBatch, Layout, ResidentBuilder, natural_types};
use futures::executor::block_on;
use kernels::Error;
use kernels::ops::{Concat, Options};
use support::*;

/// Concatenates the rows of `whole` from batches of these sizes.
fn check(whole: &RecordBatch, sizes: &[usize], options: &Options) {
    let queue = queue();
    let types = natural_types(&whole.schema()).unwrap();
    let concat = Concat::try_new(whole.schema(), types.clone(), options.clone()).unwrap();
    let batches = slices(&queue, whole, sizes, &types);
    let total: usize = sizes.iter().sum();
    let result = block_on(concat.run(&queue, batches)).unwrap();
    let Some(result) = result else {
        assert_eq!(total, 0);
        return;
    };
    assert_eq!(concat.output_types(), result.columns().iter().map(|column| (**column.ty()).clone()).collect::<Vec<_>>());
    assert_eq!(rows(&down(&queue, &result)), rows(&whole.slice(0, total)), "{sizes:?}, {:?}", options.profile);
}

#[test]
fn all_types_in_batches_of_all_sizes() {
    device::skip_unless_turn!(5);
    let n = SIZES[4] + 300;
    let whole = table_with_lists(0, n);
    for options in profiles() {
        for sizes in [vec![], vec![0], vec![1], vec![31], vec![0, 1, 0], vec![1, 1, 1], vec![31, 257, 2, 33, 64, 1, 0, 5]] {
            check(&whole, &sizes, &options);
        }
        check(&whole, &[SIZES[4], 257], &options);
        check(&whole, &[1; 300], &options);
    }
}

/// Bytes of an offset of a column of strings.
fn offsets_of(batch: &DeviceBatch, column: usize) -> usize {
    batch.columns()[column].buffers()[0].len() / (batch.num_rows() + 1)
}

#[test]
fn offsets_of_32_bits_stay_where_they_suffice() {
    device::skip_unless_turn!(6);
    let n = SIZES[4] + 300;
    let whole = table_with_lists(0, n);
    let queue = queue();
    let types = natural_types(&whole.schema()).unwrap();
    let strings: Vec<usize> = (0..types.len()).filter(|column| types[*column].layout == Layout::Offsets32).collect();
    assert!(!strings.is_empty());
    for options in profiles() {
        let concat = Concat::try_new_keeping_layouts(whole.schema(), types.clone(), options.clone()).unwrap();
        assert_eq!(concat.output_types(), types);
        for sizes in [vec![1], vec![31, 257, 2, 33, 64, 1, 0, 5], vec![SIZES[4], 257]] {
            let result = block_on(concat.run(&queue, slices(&queue, &whole, &sizes, &types))).unwrap().unwrap();
            assert_eq!(rows(&down(&queue, &result)), rows(&whole.slice(0, result.num_rows())), "{sizes:?}");
            if sizes.len() > 1 {
                strings.iter().for_each(|column| assert_eq!(offsets_of(&result, *column), size_of::<i32>()));
            }
        }
    }
}

#[test]
fn random_batches() {
    let seed = rand::random::<u64>();
    println!("seed {seed}");
    let whole = table_with_lists(0, 6000);
    for round in 0..6 {
        let mut sizes = vec![];
        while sizes.iter().sum::<usize>() < 4000 {
            sizes.push((random(sizes.len(), seed ^ round) % 400) as usize);
        }
        for options in profiles() {
            check(&whole, &sizes, &options);
        }
    }
}

#[test]
fn slices_of_one_batch_share_its_views() {
    let whole = table_with_lists(0, 1000);
    let queue = queue();
    let types = natural_types(&whole.schema()).unwrap();
    for options in profiles() {
        let concat = Concat::try_new(whole.schema(), types.clone(), options).unwrap();
        let batch = up(&queue, &whole, &types);
        let result = block_on(concat.run(&queue, batch.chunks(77).collect())).unwrap().unwrap();
        let view = whole.schema().index_of("view").unwrap();
        assert!(result.columns()[view].buffers()[1].same(&batch.columns()[view].buffers()[1]));
        let numbers = whole.schema().index_of("numbers").unwrap();
        let elements = |batch: &DeviceBatch| batch.columns()[numbers].elements().unwrap().buffers()[0].clone();
        assert!(elements(&result).same(&elements(&batch)), "elements that all slices share are not copied");
        assert_eq!(rows(&down(&queue, &result)), rows(&whole));
    }
}

#[test]
fn one_batch_is_not_copied() {
    let whole = table_with_lists(0, 100);
    let queue = queue();
    let types = natural_types(&whole.schema()).unwrap();
    let concat = Concat::try_new(whole.schema(), types.clone(), profiles().next().unwrap()).unwrap();
    let batch = up(&queue, &whole, &types).slice(3, 50);
    let result = block_on(concat.run(&queue, vec![batch.slice(0, 0), batch.clone()])).unwrap().unwrap();
    for (column, origin) in result.columns().iter().zip(batch.columns()) {
        // Only offsets of 32 bits widen, also within lists.
        let heaps = usize::from(origin.ty().layout == Layout::Offsets32);
        let rewritten = column.ty().layout != origin.ty().layout && heaps == 0;
        for (buffer, origin) in column.buffers().iter().zip(origin.buffers()).skip(heaps).filter(|_| !rewritten) {
            assert!(buffer.same(origin), "{:?}", column.ty());
        }
    }
    assert_eq!(rows(&down(&queue, &result)), rows(&whole.slice(3, 50)));
}

#[test]
fn unrelated_dictionaries_are_merged() {
    let terms = |first: usize, n: usize| -> ArrayRef {
        let term = |i: usize| (!i.is_multiple_of(7)).then(|| format!("term {}", i % 90));
        Arc::new(
            (first..first + n)
                .map(term)
                .collect::<Vec<_>>()
                .iter()
                .map(|term| term.as_deref())
                .collect::<DictionaryArray<Int8Type>>(),
        )
    };
    let batches: Vec<RecordBatch> = (0..5).map(|at| batch(vec![("term", terms(at * 40, 40), true)])).collect();
    let queue = queue();
    let types = natural_types(&batches[0].schema()).unwrap();
    for options in profiles() {
        let concat = Concat::try_new(batches[0].schema(), types.clone(), options).unwrap();
        let up = batches.iter().map(|batch| up(&queue, batch, &types)).collect();
        let result = down(&queue, &block_on(concat.run(&queue, up)).unwrap().unwrap());
        let expected: Vec<String> = batches.iter().flat_map(rows).collect();
        assert_eq!(rows(&result), expected);
        assert!(result.column(0).as_any_dictionary().values().len() <= 90);
    }
}

#[test]
fn more_values_than_codes_are_refused() {
    let terms = |first: usize| -> ArrayRef {
        let terms: Vec<String> = (first..first + 200).map(|i| i.to_string()).collect();
        Arc::new(terms.iter().map(String::as_str).collect::<DictionaryArray<UInt8Type>>())
    };
    let queue = queue();
    let batches = [0, 200].map(|first| batch(vec![("term", terms(first), true)]));
    let types = natural_types(&batches[0].schema()).unwrap();
    let concat = Concat::try_new(batches[0].schema(), types.clone(), profiles().next().unwrap()).unwrap();
    let up = batches.iter().map(|batch| up(&queue, batch, &types)).collect();
    let error = block_on(concat.run(&queue, up)).unwrap_err();
    assert!(matches!(&error, Error::Unsupported(reason) if reason.contains("400 values")), "{error}");
}

#[test]
fn batches_of_a_resident_table_keep_its_dictionary() {
    let queue = queue();
    let terms: StringArray = (0..1000).map(|i| (i % 11 != 0).then(|| format!("term {}", i / 10))).collect();
    let whole = batch(vec![("term", Arc::new(terms) as ArrayRef, true)]);
    let mut builder = ResidentBuilder::try_new(&queue, &whole.schema()).unwrap().with_batch_rows(128);
    builder.push(whole.clone()).unwrap();
    let resident = block_on(builder.finish()).unwrap();
    assert!(matches!(resident.types[0].layout, Layout::Dictionary { .. }) && resident.batches.len() > 5);
    for options in profiles() {
        let concat = Concat::try_new(whole.schema(), resident.types.to_vec(), options).unwrap();
        let result = block_on(concat.run(&queue, resident.batches.to_vec())).unwrap().unwrap();
        assert_eq!(result.columns()[0].ty().as_ref(), &resident.types[0]);
        let result = down(&queue, &result);
        assert_eq!(result.schema().field(0).data_type(), &DataType::Utf8);
        assert_eq!(result, concat_batches(&whole.schema(), [&whole]).unwrap());
    }
}
