// SPDX-License-Identifier: Apache-2.0
//! Host time to export and import a batch of 100 columns as a device array.
//!
//! Prints medians of interleaved runs in microseconds, for batches of few and of many rows:
//! `cargo run --release -p columnar --example exchange_times`.

use std::sync::Arc;
use std::time::Instant;

use arrow::array::{ArrayRef, Float64Array, RecordBatch};
use arrow_device::{ImportedArray, schema};
use columnar::{DeviceBatch, Result, exchange, natural_types, upload};
use device::{Context, DeviceConfig, Queue};
use futures::executor::block_on;

const COLUMNS: usize = 100;
const RUNS: usize = 301;

fn batch(queue: &Queue, rows: usize) -> Result<DeviceBatch> {
    let column = |index: usize| -> ArrayRef {
        let null = |row: usize| (row % 10 != index % 10).then_some(row as f64);
        Arc::new((0..rows).map(null).collect::<Float64Array>())
    };
    let host = RecordBatch::try_from_iter((0..COLUMNS).map(|index| (format!("c{index}"), column(index))))?;
    upload(queue, &host.schema(), &natural_types(&host.schema())?, &[host])
}

fn main() -> Result<()> {
    let queue = Context::new(DeviceConfig::default().with_selector(device::testing::selector()?))?.queue()?;
    let columns: Vec<usize> = (0..COLUMNS).collect();
    let batches = [batch(&queue, 1000)?, batch(&queue, 1_000_000)?];
    block_on(queue.finish())?;
    let mut times = [const { [const { Vec::new() }; 2] }; 2];
    for _ in 0..RUNS {
        for (batch, times) in batches.iter().zip(&mut times) {
            let field = Arc::new(schema::batch_field(batch.schema()));
            let start = Instant::now();
            let array = exchange::export(&queue, batch)?;
            times[0].push(start.elapsed());
            let start = Instant::now();
            // SAFETY: this process exported the array.
            let array = unsafe { ImportedArray::import_ref(array, &field) }?;
            let imported = block_on(exchange::import(&queue, array, batch.schema(), &columns))?;
            times[1].push(start.elapsed());
            drop(imported);
        }
    }
    println!("{COLUMNS} columns on {}", queue.context().info().label());
    for (batch, times) in batches.iter().zip(&mut times) {
        let [export, import] = times.each_mut().map(|times| {
            times.sort_unstable();
            times[times.len() / 2].as_secs_f64() * 1e6
        });
        println!("{:>8} rows: export {export:.1} us, import {import:.1} us", batch.num_rows());
    }
    Ok(())
}
