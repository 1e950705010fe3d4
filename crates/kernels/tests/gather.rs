// SPDX-License-Identifier: Apache-2.0
//! Gathers of rows compared with Arrow's `take`, in both profiles.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod support;

use arrow::array::{RecordBatch, UInt32Array};
use arrow::compute::take_record_batch;
use columnar::{DeviceBatch, Layout, natural_types};
use device::{Buffer, Queue};
use futures::executor::block_on;
use kernels::ops::{Gather, Options};
use support::*;

fn indices(queue: &Queue, numbers: &[u32]) -> Buffer {
    let bytes: Vec<u8> = numbers.iter().flat_map(|number| number.to_le_bytes()).collect();
    let buffer = queue.alloc(bytes.len()).unwrap();
    queue.write(&buffer, 0, &bytes).unwrap();
    buffer
}

/// Gathers rows of the uploaded batch `host`.
fn check(gather: &Gather, batch: &DeviceBatch, host: &RecordBatch, numbers: Vec<u32>, options: &Options) {
    let queue = queue();
    let result = block_on(gather.run(&queue, batch, &indices(&queue, &numbers), numbers.len())).unwrap();
    assert_eq!(gather.output_types(), result.columns().iter().map(|column| (**column.ty()).clone()).collect::<Vec<_>>());
    let expected = take_record_batch(host, &UInt32Array::from(numbers)).unwrap();
    assert_eq!(rows(&down(&queue, &result)), rows(&expected), "{:?}", options.profile);
}

#[test]
fn all_types_in_any_order() {
    let seed = rand::random::<u64>();
    println!("seed {seed}");
    for options in profiles() {
        for n in SIZES.into_iter().filter(|n| *n < 1 << 17 || device::testing::is_turn(6).unwrap()) {
            let whole = table_with_lists(0, n + 20);
            let types = natural_types(&whole.schema()).unwrap();
            let batch = up(&queue(), &whole, &types).slice(5, n);
            let host = whole.slice(5, n);
            for gather in [Gather::try_new, Gather::with_copied_views] {
                let gather = gather(whole.schema(), types.clone(), options.clone()).unwrap();
                let some = |count: usize| (0..count).map(|i| (random(i, seed) % n as u64) as u32).collect();
                check(&gather, &batch, &host, vec![], &options);
                if n > 0 {
                    check(&gather, &batch, &host, some(n), &options);
                    check(&gather, &batch, &host, (0..n as u32).rev().collect(), &options);
                    check(&gather, &batch, &host, some(100), &options);
                }
            }
        }
    }
}

#[test]
fn views_share_their_heap_or_copy_it() {
    let queue = queue();
    let whole = table(0, 50);
    let types = natural_types(&whole.schema()).unwrap();
    let view = whole.schema().index_of("view").unwrap();
    let batch = up(&queue, &whole, &types);
    let options = profiles().next().unwrap();
    let rows = indices(&queue, &[3, 2]);
    let gather = Gather::try_new(whole.schema(), types.clone(), options.clone()).unwrap();
    let taken = block_on(gather.run(&queue, &batch, &rows, 2)).unwrap();
    assert!(taken.columns()[view].buffers()[1].same(&batch.columns()[view].buffers()[1]));
    let gather = Gather::with_copied_views(whole.schema(), types, options).unwrap();
    assert_eq!(gather.output_types()[view].layout, Layout::Offsets64);
    assert!(block_on(gather.run(&queue, &batch, &rows, 3)).is_err());
}
