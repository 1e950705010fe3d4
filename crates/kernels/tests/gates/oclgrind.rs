// SPDX-License-Identifier: Apache-2.0
//! Each kind of kernel on small data under Oclgrind, an interpreter that checks every access.
//!
//! PoCL runs the work-items of a work-group in sequence between barriers, which hides a missing
//! barrier. Oclgrind reports it as a data race, and accesses out of bounds as well. Each test
//! restarts itself with Oclgrind as the only OpenCL driver, and then reads Oclgrind's log.

use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use arrow::array::{
    ArrayRef, BooleanArray, Decimal128Array, DictionaryArray, Float64Array, Int32Array, Int64Array, RecordBatch, StringArray,
    StringViewArray,
};
use arrow::datatypes::{DataType, Field, Int32Type, Schema};
use columnar::exchange::has_arrow_layout;
use columnar::{ColumnType, DeviceBatch, download, natural_types, upload};
use device::testing::FaultPlan;
use device::{Arg, Context, DeviceConfig, DriverKind, Grid, ProgramSource, Queue, Selector};
use futures::executor::block_on;
use kernels::codegen::Profile;
use kernels::expr::{Aggregate, AggregateFunction, ArithmeticOp, CompareOp, Expr, Literal, LiteralValue};
use kernels::ops::{ArrowLayout, Concat, Gather, GroupBy, Input, NullStripping, Options, Reduce, Select, Sort, SortKey};
use kernels::ops::{Frame, FrameBound, FrameUnits, NullTreatment, Window, WindowCall, WindowFunction};

use crate::missing;
use crate::sample::layouts;

/// Debian's path of Oclgrind's driver library; `OCLGRIND_ICD` overrides it.
const DRIVER: &str = "/usr/lib/oclgrind/liboclgrind-rt-icd.so";

/// Set in the process under Oclgrind.
const WATCHED: &str = "DEVICEFUSION_WATCHED";

/// Calls `body` in a separate process under Oclgrind; the reported faults. `None` without Oclgrind,
/// and in that process itself.
fn watch(test: &str, body: impl FnOnce(&Queue)) -> Option<String> {
    if std::env::var_os(WATCHED).is_some() {
        // Oclgrind checks driver calls only, not memory that host and device share.
        let copying = FaultPlan::masking(|info| info.unified_memory = false);
        let config = DeviceConfig::default()
            .with_selector(Selector::Driver(DriverKind::OpenCl))
            .with_platform("Oclgrind")
            .with_wrap(copying.wrap());
        body(&Context::new(config).unwrap().queue().unwrap());
        return None;
    }
    let driver = std::env::var("OCLGRIND_ICD").unwrap_or_else(|_| DRIVER.to_owned());
    if !Path::new(&driver).exists() {
        missing("Oclgrind", "DEVICEFUSION_REQUIRE_OCLGRIND", "on Debian or Ubuntu: apt-get install oclgrind");
        return None;
    }
    let folder = std::env::temp_dir().join(format!("devicefusion-oclgrind-{}-{test}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let log = folder.join("log");
    std::fs::write(folder.join("oclgrind.icd"), driver).unwrap();
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", &format!("oclgrind::{test}"), "--nocapture"]).env(WATCHED, "1").env("RUST_BACKTRACE", "0");
    command.env("OCL_ICD_VENDORS", &folder).env("OCLGRIND_LOG", &log);
    command.env("OCLGRIND_DATA_RACES", "1").env("OCLGRIND_CHECK_API", "1").env("OCLGRIND_MAX_ERRORS", "1000000");
    let output = command.output().unwrap();
    let complaints = std::fs::read_to_string(&log);
    std::fs::remove_dir_all(&folder).unwrap();
    let text = [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).concat();
    let passed = output.status.success() && text.contains("1 passed");
    assert!(passed, "{}\n{text}\n{}", output.status, start(&complaints.unwrap_or_default()));
    Some(complaints.expect("Oclgrind wrote no log: was it there at all?"))
}

/// Asserts that Oclgrind reports nothing.
#[track_caller]
fn clean(test: &str, body: impl FnOnce(&Queue)) {
    let log = watch(test, body).unwrap_or_default();
    let complaints: Vec<String> = complaints(&log).into_iter().filter(|complaint| !is_meant(complaint)).collect();
    assert!(complaints.is_empty(), "Oclgrind on {test}, {}:\n{}", complaints.len(), start(&complaints.join("\n")));
}

/// The reports of a log: a line with the fault, and indented ones with its location.
fn complaints(log: &str) -> Vec<String> {
    let mut complaints: Vec<String> = Vec::new();
    for line in log.lines().filter(|line| !line.trim().is_empty()) {
        match complaints.last_mut() {
            Some(last) if line.starts_with('\t') => *last += &format!("\n{line}"),
            _ => complaints.push(line.to_owned()),
        }
    }
    complaints
}

/// Whether a report is about an intended race: a read of a hash slot before its claim, or of a
/// minimum before its update.
///
/// Such reads use volatile pointers; the writes are atomics or volatile. CUDA calls them relaxed
/// atomics; OpenCL C 1.2 lacks the term, but devices behave the same. In shared memory, volatile
/// must not hide a missing barrier, so the read has to be part of the statement with the atomic.
fn is_meant(complaint: &str) -> bool {
    let accesses: Vec<&str> = complaint
        .lines()
        .map(str::trim)
        .filter(|line| line.contains(" volatile ") || (line.contains("@_Z") && line.contains("atom")))
        .collect();
    let locations: Vec<&str> = complaint.lines().map(str::trim).filter(|line| line.starts_with("At line")).collect();
    let [first, second] = accesses[..] else { return false };
    let [Some(one), Some(other)] =
        [locations.first(), locations.get(1)].map(|location| location.and_then(|location| location.split(' ').nth(2)))
    else {
        return false;
    };
    let shared = complaint.contains("local memory");
    complaint.starts_with("Read-write data race")
        && [first, second].iter().any(|access| access.contains("load volatile"))
        && (!shared || one == other)
}

/// The first reports; one fault causes many.
fn start(complaints: &str) -> String {
    complaints.lines().take(40).collect::<Vec<_>>().join("\n")
}

/// Rows of a batch: several tiles, the last one not full.
const ROWS: usize = 300;

/// Both profiles, with the smallest work-groups and tiles, and tables that must grow.
fn profiles() -> [Options; 2] {
    [Profile::Gpu, Profile::Cpu].map(|profile| Options {
        work_group_size: 64,
        compaction_tile_rows: 64,
        initial_groups: 16,
        ..Options::new(profile)
    })
}

const SMALL: usize = 0;
const KEY: usize = 1;
const NAME: usize = 2;
const AMOUNT: usize = 3;
const RATIO: usize = 4;
const CODE: usize = 5;
const FLAG: usize = 6;
const CITY: usize = 7;

/// Columns of each memory layout: bounded, 64-bit, views, 128-bit, floats, codes, bits, offsets.
/// About every third value is NULL.
fn batch(from: usize) -> RecordBatch {
    let rows = || from..from + ROWS;
    let names = ["", "Ada", "a name of more than twelve bytes", "Ωmega"];
    let name = |i: usize| (i % 5 != 3).then(|| names[i % 4]);
    let columns: [(&str, ArrayRef); 8] = [
        ("small", Arc::new(Int32Array::from_iter(rows().map(|i| (i % 7 != 0).then_some(i as i32 % 4))))),
        ("key", Arc::new(Int64Array::from_iter(rows().map(|i| (i % 11 != 0).then_some(i as i64 % 90 * 1_000_000_007))))),
        ("name", Arc::new(StringViewArray::from_iter(rows().map(name)))),
        (
            "amount",
            Arc::new(
                Decimal128Array::from_iter(rows().map(|i| (i % 3 != 0).then_some(i as i128 * 12345)))
                    .with_precision_and_scale(15, 2)
                    .unwrap(),
            ),
        ),
        ("ratio", Arc::new(Float64Array::from_iter(rows().map(|i| (i % 4 != 0).then_some(i as f64 / 8.0 - 10.0))))),
        ("code", Arc::new(DictionaryArray::<Int32Type>::from_iter(rows().map(name)))),
        ("flag", Arc::new(BooleanArray::from_iter(rows().map(|i| (i % 6 != 0).then_some(i % 2 == 0))))),
        ("city", Arc::new(StringArray::from_iter(rows().map(|i| (i % 8 != 0).then(|| format!("city {}", i % 13)))))),
    ];
    RecordBatch::try_from_iter_with_nullable(columns.map(|(name, column)| (name, column, true))).unwrap()
}

/// The source of [`batch`], with the bounds of a resident table.
fn source(filter: Option<Expr>) -> Input {
    let schema = batch(0).schema();
    let mut types: Vec<ColumnType> = natural_types(&schema).unwrap();
    types[SMALL].bounds = Some((0, 3));
    Input { schema, types, filter }
}

fn uploaded(queue: &Queue, from: usize) -> DeviceBatch {
    let input = source(None);
    upload(queue, &input.schema, &input.types, &[batch(from)]).unwrap()
}

fn rows(queue: &Queue, batch: &DeviceBatch) -> RecordBatch {
    block_on(download(queue, batch)).unwrap()
}

fn named(expr: Expr, schema: &Schema) -> (Expr, Field) {
    let data_type = expr.data_type(schema).unwrap();
    (expr, Field::new("out", data_type, true))
}

fn integer(value: i128) -> Expr {
    Expr::Literal(Literal { data_type: DataType::Int64, value: LiteralValue::Int(value) })
}

fn half() -> Expr {
    Expr::Compare {
        op: CompareOp::Lt,
        left: Expr::Column(RATIO).into(),
        right: Expr::Literal(Literal { data_type: DataType::Float64, value: LiteralValue::Float(5.0) }).into(),
    }
}

fn select(queue: &Queue, input: &Input, outputs: Vec<Expr>, expected: usize) {
    for options in profiles() {
        let outputs = outputs.iter().map(|expr| named(expr.clone(), &input.schema)).collect();
        let select = Select::try_new(input.clone(), outputs, options).unwrap();
        for from in [0, ROWS] {
            let result = block_on(select.run(queue, &uploaded(queue, from))).unwrap();
            let result = rows(queue, &result);
            if from == 0 {
                assert_eq!(result.num_rows(), expected);
            }
        }
    }
}

/// Rows of the first batch that [`half`] keeps.
fn kept() -> usize {
    (0..ROWS).filter(|i| i % 4 != 0 && *i as f64 / 8.0 - 10.0 < 5.0).count()
}

#[test]
fn select_filters() {
    clean("select_filters", |queue| {
        select(queue, &source(Some(half())), (0..8).map(Expr::Column).collect(), kept());
    });
}

#[test]
fn select_computes() {
    let outputs = vec![
        Expr::IsNull(Expr::Column(NAME).into()),
        Expr::Compare { op: CompareOp::Lt, left: Expr::Column(NAME).into(), right: Expr::Column(NAME).into() },
        Expr::InList {
            expr: Expr::Column(KEY).into(),
            list: (0..40)
                .map(|at| Literal { data_type: DataType::Int64, value: LiteralValue::Int(at * 1_000_000_007) })
                .collect(),
            negated: false,
        },
        Expr::Arithmetic {
            op: ArithmeticOp::Multiply,
            left: Expr::Column(AMOUNT).into(),
            right: Expr::Column(AMOUNT).into(),
            data_type: DataType::Decimal128(31, 4),
        },
        Expr::Arithmetic {
            op: ArithmeticOp::Divide,
            left: Expr::Column(KEY).into(),
            right: integer(7).into(),
            data_type: DataType::Int64,
        },
        Expr::Cast { expr: Expr::Column(SMALL).into(), to: DataType::Decimal128(20, 3), checked: true },
        Expr::Cast {
            expr: Expr::Cast { expr: Expr::Column(RATIO).into(), to: DataType::Utf8, checked: true }.into(),
            to: DataType::Float32,
            checked: true,
        },
        Expr::Coalesce(vec![
            Expr::Column(CITY),
            Expr::Cast { expr: Expr::Column(CITY).into(), to: DataType::Utf8, checked: true },
        ]),
        Expr::Case { branches: vec![(Expr::Column(FLAG), Expr::Column(RATIO))], otherwise: None, data_type: DataType::Float64 },
    ];
    clean("select_computes", |queue| {
        select(queue, &source(None), outputs.clone(), ROWS);
        select(queue, &source(Some(half())), outputs, kept());
    });
}

#[test]
fn concat_and_gather() {
    clean("concat_and_gather", |queue| {
        for options in profiles() {
            let Input { schema, types, .. } = source(None);
            let batches = || vec![uploaded(queue, 0).slice(3, 200), uploaded(queue, ROWS).slice(0, 77), uploaded(queue, 0)];
            let concat = Concat::try_new(schema.clone(), types, options.clone()).unwrap();
            let all = block_on(concat.run(queue, batches())).unwrap().unwrap();
            assert_eq!(rows(queue, &all).num_rows(), 277 + ROWS);
            let numbers: Vec<u8> = (0..150u32).flat_map(|row| (row * 7 % 400).to_le_bytes()).collect();
            let indices = queue.alloc(numbers.len()).unwrap();
            queue.write(&indices, 0, &numbers).unwrap();
            for take in [Gather::try_new, Gather::with_copied_views] {
                let take = take(schema.clone(), concat.output_types().to_vec(), options.clone()).unwrap();
                let taken = block_on(take.run(queue, &all, &indices, 150)).unwrap();
                assert_eq!(rows(queue, &taken).num_rows(), 150);
            }
        }
    });
}

#[test]
fn null_stripping() {
    clean("null_stripping", |queue| {
        for options in profiles() {
            let Input { schema, types, .. } = source(None);
            let argument = vec![named(Expr::Column(RATIO), &schema)];
            let stripping = NullStripping::try_new(schema, types, argument, options.clone()).unwrap();
            let arguments = block_on(stripping.arguments(queue, &uploaded(queue, 0))).unwrap();
            let ty = std::sync::Arc::new(columnar::ColumnType::of(&arrow::datatypes::DataType::Int64, true).unwrap());
            let values = queue.zeroed(arguments.count * 8).unwrap();
            let column = block_on(stripping.column(queue, &arguments, Some((values, None)), ty)).unwrap();
            assert_eq!(column.len(), ROWS);
            block_on(queue.finish()).unwrap();
        }
    });
}

/// Each key, without and with a limit, hence thresholds. Enough rows for several radix digits and
/// tiles.
#[test]
fn sorts() {
    device::skip_unless_turn!(1);
    clean("sorts", |queue| {
        for options in profiles() {
            for (column, fetch) in [(KEY, None), (KEY, Some(5)), (NAME, Some(5)), (AMOUNT, None), (CODE, None)] {
                let input = source(None);
                let keys = [(column, true), (CITY, false), (SMALL, false)];
                let keys =
                    keys.map(|(column, descending)| SortKey { expr: Expr::Column(column), descending, nulls_first: false });
                let outputs = [NAME, column, CITY].map(|column| named(Expr::Column(column), &input.schema));
                let sort = Sort::try_new(input, keys.into(), outputs.into(), fetch, options.clone()).unwrap().keeping(100);
                let mut state = sort.start();
                for from in [0, ROWS, 0] {
                    block_on(sort.push(queue, &mut state, &uploaded(queue, from))).unwrap();
                }
                let sorted = block_on(sort.finish(queue, state)).unwrap();
                assert_eq!(rows(queue, &sorted[0]).num_rows(), fetch.unwrap_or(3 * ROWS));
            }
        }
    });
}

#[test]
fn windows() {
    device::skip_unless_turn!(2);
    use WindowFunction::*;
    let functions = || {
        let aggregates = aggregates().into_iter().map(|(aggregate, _)| aggregate);
        let of_numbers = aggregates.filter(|aggregate| !aggregate.data_type.is_string()).map(WindowFunction::Aggregate);
        let lag = Lag { value: Expr::Column(NAME), offset: 3, default: None, nulls: NullTreatment::Respect };
        let lead = Lag { value: Expr::Column(NAME), offset: -2, default: None, nulls: NullTreatment::IgnoreBounded };
        let median = Quantile { quantile: kernels::ops::Quantile::Median, value: Expr::Column(RATIO), distinct: false };
        [Rank, CumeDist, Ntile(7), lag, lead, NthValue(Expr::Column(CITY), 2), NthNonNull(Expr::Column(CITY), -1), median]
            .into_iter()
            .chain(of_numbers)
    };
    clean("windows", |queue| {
        for options in profiles() {
            let sliding = Frame { units: FrameUnits::Groups, start: FrameBound::Preceding(40), end: FrameBound::Following(2) };
            let by_key = Frame {
                units: FrameUnits::Range { descending: false },
                start: FrameBound::Preceding(1_000_000_009),
                end: FrameBound::Following(7),
            };
            for (frame, order) in [(Frame::RUNNING, vec![FLAG, NAME]), (sliding, vec![FLAG, NAME]), (by_key, vec![KEY])] {
                let input = source(Some(half()));
                let field = |function: &WindowFunction| match function {
                    Aggregate(aggregate) => aggregate.data_type.clone(),
                    Lag { .. } => DataType::Utf8View,
                    NthValue(..) | NthNonNull(..) => DataType::Utf8,
                    CumeDist | Quantile { .. } => DataType::Float64,
                    _ => DataType::UInt64,
                };
                let calls = functions().map(|function| {
                    let field = Field::new("out", field(&function), true);
                    (WindowCall { function, frame }, field)
                });
                let partition = vec![Expr::IsNull(Expr::Column(CODE).into())];
                let order = order.into_iter().map(Expr::Column).collect();
                let outputs = vec![named(Expr::Column(KEY), &input.schema)];
                let window = Window::try_new(input, partition, order, outputs, calls.collect(), options.clone()).unwrap();
                let mut state = window.start();
                for from in [0, ROWS] {
                    block_on(window.push(queue, &mut state, &uploaded(queue, from))).unwrap();
                }
                let result = block_on(window.finish(queue, state)).unwrap();
                assert!(rows(queue, &result[0]).num_rows() >= kept());
            }
        }
    });
}

fn aggregate(function: AggregateFunction, argument: Option<usize>, data_type: DataType) -> Aggregate {
    Aggregate { function, arguments: argument.map(Expr::Column).into_iter().collect(), filter: None, distinct: false, data_type }
}

/// COUNT(*), then every kind of state.
fn aggregates() -> Vec<(Aggregate, Field)> {
    use AggregateFunction::*;
    let key_sum = aggregate(Sum, Some(KEY), DataType::Int64);
    let all = [
        aggregate(Count, None, DataType::Int64),
        aggregate(Count, Some(NAME), DataType::Int64),
        key_sum.clone(),
        Aggregate { filter: Some(Expr::Column(FLAG)), ..key_sum },
        aggregate(Sum, Some(AMOUNT), DataType::Decimal128(25, 2)),
        aggregate(Avg, Some(AMOUNT), DataType::Decimal128(19, 6)),
        aggregate(Sum, Some(RATIO), DataType::Float64),
        aggregate(Avg, Some(RATIO), DataType::Float64),
        aggregate(VarPop, Some(RATIO), DataType::Float64),
        aggregate(Min, Some(RATIO), DataType::Float64),
        aggregate(Max, Some(KEY), DataType::Int64),
        aggregate(Min, Some(AMOUNT), DataType::Decimal128(15, 2)),
        aggregate(Max, Some(NAME), DataType::Utf8View),
        aggregate(Min, Some(CITY), DataType::Utf8),
        aggregate(BoolAnd, Some(FLAG), DataType::Boolean),
        aggregate(BitXor, Some(KEY), DataType::Int64),
    ];
    all.map(|aggregate| {
        let field = Field::new("out", aggregate.data_type.clone(), true);
        (aggregate, field)
    })
    .into()
}

fn distinct() -> Vec<(Aggregate, Field)> {
    let mut all = aggregates();
    all.truncate(1);
    for column in [KEY, CITY, CODE] {
        let count = aggregate(AggregateFunction::Count, Some(column), DataType::Int64);
        all.push((Aggregate { distinct: true, ..count }, Field::new("out", DataType::Int64, true)));
    }
    all
}

fn count(batch: &RecordBatch, column: usize) -> i64 {
    batch.column(column).as_any().downcast_ref::<Int64Array>().unwrap().values().iter().sum()
}

fn reduce(queue: &Queue, input: &Input, aggregates: &[(Aggregate, Field)]) {
    for options in profiles() {
        let reduce = Reduce::try_new(input.clone(), aggregates.to_vec(), options).unwrap();
        let mut state = reduce.start();
        for from in [0, ROWS] {
            block_on(reduce.push(queue, &mut state, &uploaded(queue, from))).unwrap();
        }
        let result = rows(queue, &block_on(reduce.finish(queue, state)).unwrap());
        assert_eq!(result.num_rows(), 1);
        if input.filter.is_none() {
            assert_eq!(count(&result, 0), 2 * ROWS as i64);
        }
    }
}

#[test]
fn reduce_in_registers() {
    let mut aggregates = aggregates();
    aggregates.retain(|(aggregate, _)| !aggregate.data_type.is_string());
    clean("reduce_in_registers", |queue| reduce(queue, &source(None), &aggregates));
}

#[test]
fn reduce_everything() {
    clean("reduce_everything", |queue| reduce(queue, &source(None), &aggregates()));
}

#[test]
fn reduce_filtered_rows() {
    clean("reduce_filtered_rows", |queue| reduce(queue, &source(Some(half())), &aggregates()));
}

#[test]
fn reduce_distinct() {
    clean("reduce_distinct", |queue| reduce(queue, &source(None), &distinct()));
}

fn group(queue: &Queue, input: &Input, keys: &[usize], aggregates: &[(Aggregate, Field)]) {
    for options in profiles() {
        let fields = keys.iter().map(|key| named(Expr::Column(*key), &input.schema)).collect();
        let group = GroupBy::try_new(input.clone(), fields, aggregates.to_vec(), options).unwrap();
        let mut state = group.start();
        for from in [0, ROWS] {
            block_on(group.push(queue, &mut state, &uploaded(queue, from))).unwrap();
        }
        let groups = block_on(group.finish(queue, state)).unwrap();
        let counted: i64 = groups.iter().map(|batch| count(&rows(queue, batch), keys.len())).sum();
        if input.filter.is_none() {
            assert_eq!(counted, 2 * ROWS as i64);
        }
    }
}

/// Keys with few values: states in shared memory or in private copies.
#[test]
fn group_by_bounded_key() {
    clean("group_by_bounded_key", |queue| {
        group(queue, &source(None), &[SMALL], &aggregates());
        group(queue, &source(Some(half())), &[SMALL, FLAG], &aggregates());
    });
}

/// Keys that fit a slot of the hash table.
#[test]
fn group_by_inline_keys() {
    clean("group_by_inline_keys", |queue| {
        group(queue, &source(None), &[KEY], &aggregates());
        group(queue, &source(Some(half())), &[KEY], &aggregates()[..3]);
    });
}

/// Keys that the hash table refers to by row.
#[test]
fn group_by_wide_keys() {
    clean("group_by_wide_keys", |queue| {
        group(queue, &source(None), &[CITY, AMOUNT], &aggregates());
        group(queue, &source(Some(half())), &[NAME, KEY, CODE], &aggregates()[..3]);
    });
}

#[test]
fn group_distinct() {
    clean("group_distinct", |queue| group(queue, &source(None), &[SMALL], &distinct()));
}

/// Slices in Arrow's layouts, from every layout of the types.
#[test]
fn arrow_layout() {
    device::skip_unless_turn!(7);
    clean("arrow_layout", |queue| {
        // Two batches: views over two heaps.
        let halves = [batch(0), batch(ROWS)];
        for (index, field) in halves[0].schema().fields().iter().enumerate() {
            let (mut types, mut columns) = (vec![], vec![]);
            for layout in layouts(field.data_type()) {
                let ty = ColumnType { data_type: field.data_type().clone(), nullable: true, layout, bounds: None };
                let hosts = halves.clone().map(|half| half.project(&[index]).unwrap());
                // Uploads do not support every layout.
                let Ok(uploaded) = upload(queue, &hosts[0].schema(), std::slice::from_ref(&ty), &hosts) else { continue };
                columns.extend_from_slice(uploaded.columns());
                types.push(ty);
            }
            let schema = Arc::new(Schema::new(vec![field.clone(); types.len()]));
            let batch = DeviceBatch::try_new(schema.clone(), columns, 2 * ROWS).unwrap();
            for options in profiles() {
                // With a small limit, heaps are compacted.
                for (limit, offset, len) in [(1 << 20, 0, 2 * ROWS), (1 << 20, 1, 77), (1000, 33, 30)] {
                    let converter = ArrowLayout::with_heap_bytes(schema.clone(), types.clone(), options.clone(), limit).unwrap();
                    let slice = batch.slice(offset, len);
                    let result = block_on(converter.run(queue, &slice)).unwrap();
                    assert!(result.columns().iter().all(has_arrow_layout));
                    assert_eq!(rows(queue, &result), rows(queue, &slice));
                }
            }
        }
    });
}

/// The gate can fail: kernels with known faults are reported.
#[test]
fn faults_are_reported() {
    const TEXT: &str = "
kernel void race(global uint *out) {
  local uint shared_word[64];
  shared_word[get_local_id(0)] = get_local_id(0);
  if (get_local_id(0) == 63) *out = shared_word[0];
}
kernel void no_barrier(global uint *out) {
  volatile local uint shared_word[1];
  if (get_local_id(0) == 0) atomic_xchg(shared_word, 1);
  if (get_local_id(0) == 63) *out = *shared_word;
}
kernel void meant(global uint *out) { if (*(volatile global uint *)out < get_local_id(0)) atomic_max(out, get_local_id(0)); }
kernel void beyond(global uint *out) { out[get_global_id(0) + 1] = 1; }";
    let log = watch("faults_are_reported", |queue| {
        let program = block_on(queue.compile(ProgramSource::new(TEXT, "faults"))).unwrap();
        for kernel in ["race", "no_barrier", "meant", "beyond"] {
            let out = queue.zeroed(256).unwrap();
            queue
                .launch(&program.kernel(kernel).unwrap(), Grid { work_groups: 1, work_group_size: 64 }, &[Arg::Buffer(&out)])
                .unwrap();
            block_on(queue.finish()).unwrap();
        }
    });
    let Some(log) = log else { return };
    let (meant, complaints): (Vec<_>, Vec<_>) = complaints(&log).into_iter().partition(|complaint| is_meant(complaint));
    for (fault, kernel) in [("data race", "race"), ("data race", "no_barrier"), ("Invalid write", "beyond")] {
        let found =
            complaints.iter().any(|complaint| complaint.contains(fault) && complaint.contains(&format!("Kernel: {kernel}")));
        assert!(found, "no {fault} in {kernel}:\n{log}");
    }
    assert!(!meant.is_empty() && meant.iter().all(|complaint| complaint.contains("Kernel: meant")), "{log}");
}
