// SPDX-License-Identifier: Apache-2.0
//! Times of operators in milliseconds, the least of several runs, and the CPU time of all threads,
//! which other processes disturb less (Linux). The device is `DEVICEFUSION_TEST_DEVICE`, by default
//! the first OpenCL device.
//!
//! `cargo run --release -p kernels --example kernel_times [-- gpu]`
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::print_stdout)]

use std::sync::Arc;
use std::time::Instant;

use arrow::array::{ArrayRef, Decimal128Array, Int32Array, Int64Array, RecordBatch, StringArray};
use arrow::datatypes::{DataType, Field, Schema};
use columnar::{Carrier, ColumnType, DeviceBatch, Layout, upload};
use device::{Context, DeviceConfig, Queue, testing};
use futures::executor::block_on;
use kernels::codegen::Profile;
use kernels::expr::AggregateFunction::{Avg, Count, Sum};
use kernels::expr::{Aggregate, AggregateFunction, ArithmeticOp, CompareOp, Expr, Literal, LiteralValue};
use kernels::ops::{GroupBy, Input, Options, Reduce, Select};

fn main() {
    let profile = if std::env::args().any(|arg| arg == "gpu") { Profile::Gpu } else { Profile::Cpu };
    let options = Options::new(profile);
    let context =
        Context::new(DeviceConfig::default().with_selector(testing::selector().expect("a selector"))).expect("a device");
    let queue = context.queue().expect("a queue");
    println!("{} ({profile:?})", context.info().name);
    // `ONLY=many` runs one of them.
    let only = std::env::var("ONLY").unwrap_or_default();
    type Run = fn(&Queue, &Options);
    let runs: [(&str, Run); 6] =
        [("q6", q6), ("compaction", compaction), ("many", many_groups), ("few", few_groups), ("strings", strings), ("q1", q1)];
    for (_, run) in runs.iter().filter(|(name, _)| only.is_empty() || only == *name) {
        run(&queue, &options);
    }
    if std::env::var_os("REPORT").is_some() {
        println!("{:#}", context.report());
    }
}

fn random(index: usize, salt: u64) -> u64 {
    let mut x = (index as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ salt.wrapping_mul(0xd1b5_4a32_d192_ed03);
    x = (x ^ (x >> 31)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x ^ (x >> 29)
}

fn time(name: &str, mut run: impl FnMut()) {
    let (mut best, mut least) = (f64::MAX, f64::MAX);
    for _ in 0..15 {
        let (start, before) = (Instant::now(), cpu_ms());
        run();
        best = best.min(start.elapsed().as_secs_f64() * 1e3);
        least = least.min(cpu_ms() - before);
    }
    println!("{name:<62} {best:8.1} ms, {least:8.1} ms of CPU");
}

/// CPU time of the threads that live, in milliseconds.
fn cpu_ms() -> f64 {
    let threads = std::fs::read_dir("/proc/self/task").into_iter().flatten().flatten();
    let nanos = threads.filter_map(|thread| {
        let text = std::fs::read_to_string(thread.path().join("schedstat")).ok()?;
        text.split(' ').next()?.parse::<f64>().ok()
    });
    nanos.sum::<f64>() / 1e6
}

struct Source {
    input: Input,
    batches: Vec<DeviceBatch>,
}

/// Batches of 2^20 rows.
fn source(
    queue: &Queue,
    n: usize,
    columns: &[(DataType, ColumnType)],
    make: impl Fn(usize, std::ops::Range<usize>) -> ArrayRef,
) -> Source {
    let fields: Vec<Field> =
        columns.iter().enumerate().map(|(c, (logical, ty))| Field::new(format!("c{c}"), logical.clone(), ty.nullable)).collect();
    let schema = Arc::new(Schema::new(fields));
    let types: Vec<ColumnType> = columns.iter().map(|(_, ty)| ty.clone()).collect();
    let batches = (0..n.div_ceil(1 << 20))
        .map(|b| {
            let range = b << 20..((b + 1) << 20).min(n);
            let arrays = (0..columns.len()).map(|c| make(c, range.clone())).collect();
            upload(queue, &schema, &types, &[RecordBatch::try_new(schema.clone(), arrays).unwrap()]).unwrap()
        })
        .collect();
    Source { input: Input { schema, types, filter: None }, batches }
}

fn col(index: usize) -> Expr {
    Expr::Column(index)
}

fn int(value: i128, data_type: &DataType) -> Expr {
    Expr::Literal(Literal { data_type: data_type.clone(), value: LiteralValue::Int(value) })
}

fn compare(op: CompareOp, left: Expr, right: Expr) -> Expr {
    Expr::Compare { op, left: Arc::new(left), right: Arc::new(right) }
}

fn arithmetic(op: ArithmeticOp, left: Expr, right: Expr, data_type: DataType) -> Expr {
    Expr::Arithmetic { op, left: Arc::new(left), right: Arc::new(right), data_type }
}

fn aggregate(function: AggregateFunction, argument: Option<Expr>, data_type: DataType) -> (Aggregate, Field) {
    let field = Field::new("a", data_type.clone(), true);
    (Aggregate { function, arguments: argument.into_iter().collect(), filter: None, distinct: false, data_type }, field)
}

fn fixed(data_type: DataType, carrier: Carrier, bounds: Option<(i128, i128)>) -> (DataType, ColumnType) {
    (data_type.clone(), ColumnType { data_type, nullable: false, layout: Layout::Fixed(carrier), bounds })
}

fn decimals(range: std::ops::Range<usize>, salt: u64, below: u64) -> ArrayRef {
    let values = range.map(|i| i128::from(random(i, salt) % below));
    Arc::new(Decimal128Array::from_iter_values(values).with_precision_and_scale(15, 2).unwrap())
}

fn aggregate_all(queue: &Queue, reduce: &Reduce, source: &Source) {
    block_on(async {
        let mut state = reduce.start();
        for batch in &source.batches {
            reduce.push(queue, &mut state, batch).await.unwrap();
        }
        reduce.finish(queue, state).await.unwrap();
        queue.finish().await.unwrap();
    });
}

fn group_all(queue: &Queue, group: &GroupBy, source: &Source) -> usize {
    block_on(async {
        let mut state = group.start();
        for batch in &source.batches {
            group.push(queue, &mut state, batch).await.unwrap();
        }
        let result = group.finish(queue, state).await.unwrap();
        queue.finish().await.unwrap();
        result.iter().map(DeviceBatch::num_rows).sum()
    })
}

/// Date, discount and quantity narrow, price in 32 bits, as a resident lineitem has them.
fn q6(queue: &Queue, options: &Options) {
    let decimal = DataType::Decimal128(15, 2);
    let columns = [
        fixed(DataType::Date32, Carrier::I32, Some((8035, 10591))),
        fixed(decimal.clone(), Carrier::I32, Some((0, 15))),
        fixed(decimal.clone(), Carrier::I32, Some((0, 8191))),
        fixed(decimal.clone(), Carrier::I32, Some((0, (1 << 24) - 1))),
    ];
    let n = 60_000_000;
    let mut source = source(queue, n, &columns, |c, range| match c {
        0 => Arc::new(arrow::array::Date32Array::from_iter_values(range.map(|i| 8035 + (random(i, 1) % 2500) as i32))),
        1 => decimals(range, 2, 11),
        2 => decimals(range, 3, 5000),
        _ => decimals(range, 4, 10_000_000),
    });
    source.input.filter = Some(Expr::And(vec![
        compare(CompareOp::GtEq, col(0), int(8766, &DataType::Date32)),
        compare(CompareOp::Lt, col(0), int(9131, &DataType::Date32)),
        compare(CompareOp::GtEq, col(1), int(5, &decimal)),
        compare(CompareOp::LtEq, col(1), int(7, &decimal)),
        compare(CompareOp::Lt, col(2), int(2400, &decimal)),
    ]));
    let revenue = arithmetic(ArithmeticOp::Multiply, col(3), col(1), DataType::Decimal128(31, 4));
    let reduce =
        Reduce::try_new(source.input.clone(), vec![aggregate(Sum, Some(revenue), DataType::Decimal128(38, 4))], options.clone())
            .unwrap();
    if std::env::var_os("TEXT").is_some() {
        println!("{}", reduce.kernel_source()[0].1);
    }
    time("Q6 shape, 60 M rows, 16 bytes a row", || aggregate_all(queue, &reduce, &source));
}

fn compaction(queue: &Queue, options: &Options) {
    let columns: Vec<_> = (0..4).map(|_| fixed(DataType::Int64, Carrier::I64, None)).collect();
    let mut source = source(queue, 10_000_000, &columns, |c, range| {
        Arc::new(Int64Array::from_iter_values(range.map(|i| (random(i, c as u64) % 1000) as i64)))
    });
    for percent in [1, 15, 60] {
        source.input.filter = Some(compare(CompareOp::Lt, col(0), int(percent * 10, &DataType::Int64)));
        let outputs = (0..4).map(|c| (col(c), Field::new(format!("c{c}"), DataType::Int64, false))).collect();
        let select = Select::try_new(source.input.clone(), outputs, options.clone()).unwrap();
        time(&format!("filter + compaction, 10 M rows of 4 × 8 bytes, {percent} %"), || {
            block_on(async {
                for batch in &source.batches {
                    select.run(queue, batch).await.unwrap();
                }
                queue.finish().await.unwrap();
            });
        });
    }
}

fn many_groups(queue: &Queue, options: &Options) {
    let n = 10_000_000;
    for (name, scatter, bounds) in [("hashed", true, None), ("dense", false, Some((0, (1 << 20) - 1)))] {
        let columns = [fixed(DataType::Int64, Carrier::I64, bounds), fixed(DataType::Int64, Carrier::I64, None)];
        let source = source(queue, n, &columns, |c, range| {
            let key = |i: usize| (random(i, 1) % 1_000_000) as i64 * if scatter { 0x1_0000_0001 } else { 1 };
            Arc::new(Int64Array::from_iter_values(range.map(|i| if c == 0 { key(i) } else { (random(i, 2) % 1000) as i64 })))
        });
        let options = Options { dense_groups: 1 << 21, ..options.clone() };
        let keys = vec![(col(0), Field::new("k", DataType::Int64, false))];
        let group =
            GroupBy::try_new(source.input.clone(), keys, vec![aggregate(Sum, Some(col(1)), DataType::Int64)], options).unwrap();
        let mut groups = 0;
        time(&format!("grouped sum, 10 M rows, 1 M keys, {name} ({})", group.mode()), || {
            groups = group_all(queue, &group, &source)
        });
    }
}

fn few_groups(queue: &Queue, options: &Options) {
    let n = 10_000_000;
    let columns = [fixed(DataType::Int32, Carrier::I32, None), fixed(DataType::Int64, Carrier::I64, None)];
    for keys in [100u64, 10_000] {
        let source = source(queue, n, &columns, |c, range| match c {
            0 => Arc::new(Int32Array::from_iter_values(range.map(|i| (random(i, 1) % keys) as i32 * 1000))) as ArrayRef,
            _ => Arc::new(Int64Array::from_iter_values(range.map(|i| (random(i, 2) % 1000) as i64))),
        });
        let by = vec![(col(0), Field::new("k", DataType::Int32, false))];
        let group =
            GroupBy::try_new(source.input.clone(), by, vec![aggregate(Sum, Some(col(1)), DataType::Int64)], options.clone())
                .unwrap();
        time(&format!("grouped sum, 10 M rows, {keys} keys, hashed ({})", group.mode()), || {
            group_all(queue, &group, &source);
        });
    }
}

fn strings(queue: &Queue, options: &Options) {
    let text = DataType::Utf8;
    let columns = [(text.clone(), ColumnType::of(&text, false).unwrap()), fixed(DataType::Int64, Carrier::I64, None)];
    let source = source(queue, 4_000_000, &columns, |c, range| match c {
        0 => {
            Arc::new(StringArray::from_iter_values(range.map(|i| format!("customer#{:09}", random(i, 1) % 100_000)))) as ArrayRef
        }
        _ => Arc::new(Int64Array::from_iter_values(range.map(|i| (random(i, 2) % 1000) as i64))),
    });
    let by = vec![(col(0), Field::new("k", text, false))];
    let group =
        GroupBy::try_new(source.input.clone(), by, vec![aggregate(Sum, Some(col(1)), DataType::Int64)], options.clone()).unwrap();
    time(&format!("grouped sum, 4 M rows, 100000 string keys ({})", group.mode()), || {
        group_all(queue, &group, &source);
    });
}

/// Two keys of few values, eight aggregates over narrow decimals.
fn q1(queue: &Queue, options: &Options) {
    let decimal = DataType::Decimal128(15, 2);
    let columns = [
        fixed(DataType::Int8, Carrier::I8, Some((0, 3))),
        fixed(DataType::Int8, Carrier::I8, Some((0, 1))),
        fixed(decimal.clone(), Carrier::I32, Some((0, 8191))),
        fixed(decimal.clone(), Carrier::I32, Some((0, (1 << 24) - 1))),
        fixed(decimal.clone(), Carrier::I32, Some((0, 15))),
        fixed(decimal.clone(), Carrier::I32, Some((0, 15))),
        fixed(DataType::Date32, Carrier::I32, Some((8035, 10591))),
    ];
    let mut source = source(queue, 6_000_000, &columns, |c, range| match c {
        0 => Arc::new(arrow::array::Int8Array::from_iter_values(range.map(|i| (random(i, 1) % 3) as i8))),
        1 => Arc::new(arrow::array::Int8Array::from_iter_values(range.map(|i| (random(i, 2) % 2) as i8))),
        2 => decimals(range, 3, 5000),
        3 => decimals(range, 4, 10_000_000),
        4 => decimals(range, 5, 11),
        5 => decimals(range, 6, 9),
        _ => Arc::new(arrow::array::Date32Array::from_iter_values(range.map(|i| 8035 + (random(i, 7) % 2500) as i32))),
    });
    source.input.filter = Some(compare(CompareOp::LtEq, col(6), int(10471, &DataType::Date32)));
    let unit = DataType::Decimal128(23, 2);
    let one = || int(100, &unit);
    let price = arithmetic(
        ArithmeticOp::Multiply,
        col(3),
        arithmetic(ArithmeticOp::Subtract, one(), col(4), unit.clone()),
        DataType::Decimal128(38, 4),
    );
    let charge = arithmetic(
        ArithmeticOp::Multiply,
        price.clone(),
        arithmetic(ArithmeticOp::Add, one(), col(5), unit.clone()),
        DataType::Decimal128(38, 6),
    );
    let average = DataType::Decimal128(19, 6);
    let aggregates = vec![
        aggregate(Sum, Some(col(2)), DataType::Decimal128(25, 2)),
        aggregate(Sum, Some(col(3)), DataType::Decimal128(25, 2)),
        aggregate(Sum, Some(price), DataType::Decimal128(38, 4)),
        aggregate(Sum, Some(charge), DataType::Decimal128(38, 6)),
        aggregate(Avg, Some(col(2)), average.clone()),
        aggregate(Avg, Some(col(3)), average.clone()),
        aggregate(Avg, Some(col(4)), average),
        aggregate(Count, None, DataType::Int64),
    ];
    let keys = (0..2).map(|c| (col(c), Field::new(format!("k{c}"), DataType::Int8, false))).collect();
    let group = GroupBy::try_new(source.input.clone(), keys, aggregates, options.clone()).unwrap();
    if std::env::var_os("TEXT").is_some() {
        println!("{}", group.kernel_source().iter().find(|(name, _)| name == "group_update0_0").unwrap().1);
    }
    time(&format!("Q1 shape, 6 M rows, 8 aggregates ({})", group.mode()), || {
        group_all(queue, &group, &source);
    });
}
