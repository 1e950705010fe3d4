// SPDX-License-Identifier: Apache-2.0
//! Generated kernels on resident data, without SQL: `cargo bench -p devicefusion-bench`.
//!
//! `DEVICEFUSION_BENCH_DEVICE` selects the device, as `device.selector` does.

use std::hint::black_box;
use std::sync::Arc;

use columnar::{DeviceBatch, Resident, ResidentBuilder};
use criterion::{BenchmarkGroup, Criterion, Throughput, criterion_group, criterion_main, measurement::WallTime};
use datafusion::arrow::array::{ArrayRef, Date32Array, Decimal128Array, Int64Array};
use datafusion::arrow::datatypes::{DataType, Field};
use datafusion::arrow::record_batch::RecordBatch;
use device::{Context, DeviceConfig, DeviceKind, Queue, Selector};
use futures::executor::block_on;
use kernels::codegen::Profile;
use kernels::expr::{Aggregate, AggregateFunction, ArithmeticOp, CompareOp, Expr, Literal, LiteralValue};
use kernels::ops::{GroupBy, Input, Options, Reduce, Select};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

const ROWS: usize = 10_000_000;
type BenchResult<T> = Result<T, Box<dyn std::error::Error>>;

/// A device with its kernel options.
struct KernelBench {
    queue: Queue,
    options: Options,
}

impl KernelBench {
    fn open() -> BenchResult<Self> {
        let selector = std::env::var("DEVICEFUSION_BENCH_DEVICE").unwrap_or_else(|_| "auto".to_string()).parse::<Selector>()?;
        let context = Context::new(DeviceConfig { selector, ..DeviceConfig::default() })?;
        let profile = if context.info().kind == DeviceKind::Cpu { Profile::Cpu } else { Profile::Gpu };
        let mut options = Options::new(profile);
        options.max_arg_bytes = context.info().max_arg_bytes as usize;
        options.shared_bytes = context.info().shared_bytes as usize;
        Ok(Self { queue: context.queue()?, options })
    }

    /// A resident table of one batch.
    fn resident(&self, columns: Vec<(&str, ArrayRef)>) -> BenchResult<BenchTable> {
        let batch = RecordBatch::try_from_iter(columns)?;
        let mut builder = ResidentBuilder::try_new(&self.queue, &batch.schema())?.with_batch_rows(ROWS);
        builder.push(batch)?;
        let resident = block_on(builder.finish())?;
        block_on(self.queue.finish())?;
        let batch = resident.batches.first().ok_or("the table is empty")?.clone();
        Ok(BenchTable { resident, batch })
    }
}

struct BenchTable {
    resident: Resident,
    batch: DeviceBatch,
}

impl BenchTable {
    fn input(&self, filter: Option<Expr>) -> Input {
        Input { schema: Arc::clone(&self.resident.schema), types: self.resident.types.clone(), filter }
    }
}

fn column(index: usize) -> Expr {
    Expr::Column(index)
}

fn literal(value: i64, data_type: &DataType) -> Expr {
    Expr::Literal(Literal { data_type: data_type.clone(), value: LiteralValue::Int(value.into()) })
}

fn compare(left: Expr, op: CompareOp, right: Expr) -> Expr {
    Expr::Compare { op, left: Arc::new(left), right: Arc::new(right) }
}

fn sum(argument: Expr, data_type: DataType) -> (Aggregate, Field) {
    let field = Field::new("sum", data_type.clone(), true);
    (Aggregate { function: AggregateFunction::Sum, arguments: vec![argument], filter: None, distinct: false, data_type }, field)
}

fn price() -> DataType {
    DataType::Decimal128(15, 2)
}

fn decimals(random: &mut StdRng, below: i128) -> BenchResult<ArrayRef> {
    let values = Decimal128Array::from_iter_values((0..ROWS).map(|_| random.random_range(0..below)));
    Ok(Arc::new(values.with_precision_and_scale(15, 2)?))
}

/// As TPC-H Q6: three filters over narrow columns, one product, one sum.
fn reduce(bench: &KernelBench, group: &mut BenchmarkGroup<'_, WallTime>) -> BenchResult<()> {
    let mut random = StdRng::seed_from_u64(1);
    let table = bench.resident(vec![
        ("shipdate", Arc::new(Date32Array::from_iter_values((0..ROWS).map(|_| random.random_range(8035..10592))))),
        ("discount", decimals(&mut random, 11)?),
        ("quantity", decimals(&mut random, 5001)?),
        ("extendedprice", decimals(&mut random, 10_494_951)?),
    ])?;
    let filter = Expr::And(vec![
        compare(column(0), CompareOp::GtEq, literal(8766, &DataType::Date32)),
        compare(column(0), CompareOp::Lt, literal(9131, &DataType::Date32)),
        compare(column(1), CompareOp::GtEq, literal(5, &price())),
        compare(column(1), CompareOp::LtEq, literal(7, &price())),
        compare(column(2), CompareOp::Lt, literal(2400, &price())),
    ]);
    let product = Expr::Arithmetic {
        op: ArithmeticOp::Multiply,
        left: Arc::new(column(3)),
        right: Arc::new(column(1)),
        data_type: DataType::Decimal128(31, 4),
    };
    let reduce =
        Reduce::try_new(table.input(Some(filter)), vec![sum(product, DataType::Decimal128(38, 4))], bench.options.clone())?;
    group.throughput(Throughput::Bytes(table.batch.memory_bytes() as u64));
    let run = || {
        block_on(async {
            let mut state = reduce.start();
            reduce.push(&bench.queue, &mut state, &table.batch).await?;
            let batch = reduce.finish(&bench.queue, state).await?;
            bench.queue.finish().await?;
            BenchResult::Ok(batch)
        })
    };
    run()?;
    group.bench_function("reduce/q6", |bencher| bencher.iter(|| black_box(run())));
    Ok(())
}

/// Filter and compaction of four 8-byte columns.
fn compact(bench: &KernelBench, group: &mut BenchmarkGroup<'_, WallTime>) -> BenchResult<()> {
    let mut random = StdRng::seed_from_u64(2);
    let mut values = || Arc::new(Int64Array::from_iter_values((0..ROWS).map(|_| random.random_range(0..i64::MAX)))) as ArrayRef;
    let table = bench.resident(vec![("a", values()), ("b", values()), ("c", values()), ("d", values())])?;
    for percent in [1, 15, 60] {
        let filter = compare(column(0), CompareOp::Lt, literal(i64::MAX / 100 * percent, &DataType::Int64));
        let outputs = table.resident.schema.fields().iter().enumerate().map(|(index, field)| (column(index), (**field).clone()));
        let select = Select::try_new(table.input(Some(filter)), outputs.collect(), bench.options.clone())?;
        let run = || {
            block_on(async {
                let batch = select.run(&bench.queue, &table.batch).await?;
                bench.queue.finish().await?;
                BenchResult::Ok(batch)
            })
        };
        let kept = run()?;
        group.throughput(Throughput::Bytes((table.batch.memory_bytes() + kept.memory_bytes()) as u64));
        group.bench_function(format!("compact/{percent}_percent"), |bencher| bencher.iter(|| black_box(run())));
    }
    Ok(())
}

/// Grouped sums: few groups, and more groups than any cache holds.
fn grouped(bench: &KernelBench, group: &mut BenchmarkGroup<'_, WallTime>) -> BenchResult<()> {
    for groups in [6, 1_000_000] {
        let mut random = StdRng::seed_from_u64(3);
        // An odd factor keeps keys distinct and fills 64 bits.
        let key = |number: i64| number.wrapping_mul(0x9e37_79b9_7f4a_7c15_u64 as i64);
        let table = bench.resident(vec![
            ("k", Arc::new(Int64Array::from_iter_values((0..ROWS).map(|_| key(random.random_range(0..groups)))))),
            ("v", Arc::new(Int64Array::from_iter_values((0..ROWS as i64).map(|row| row % 1000)))),
        ])?;
        let keys = vec![(column(0), Field::new("k", DataType::Int64, false))];
        let sink = GroupBy::try_new(table.input(None), keys, vec![sum(column(1), DataType::Int64)], bench.options.clone())?;
        let run = || {
            block_on(async {
                let mut state = sink.start();
                sink.push(&bench.queue, &mut state, &table.batch).await?;
                let batches = sink.finish(&bench.queue, state).await?;
                bench.queue.finish().await?;
                BenchResult::Ok(batches)
            })
        };
        run()?;
        group.throughput(Throughput::Bytes(table.batch.memory_bytes() as u64));
        group.bench_function(format!("group/{groups}_groups"), |bencher| bencher.iter(|| black_box(run())));
    }
    Ok(())
}

fn kernels(criterion: &mut Criterion) {
    let bench = match KernelBench::open() {
        Ok(bench) => bench,
        Err(error) => return eprintln!("no device, nothing is measured: {error}"),
    };
    let info = bench.queue.context().info();
    eprintln!("on {} ({})", info.name, info.driver);
    let mut group = criterion.benchmark_group("kernels");
    group.sample_size(10);
    for measure in [reduce, compact, grouped] {
        if let Err(error) = measure(&bench, &mut group) {
            eprintln!("failed: {error}");
        }
    }
    group.finish();
}

criterion_group!(benches, kernels);
criterion_main!(benches);
