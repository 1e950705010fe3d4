// SPDX-License-Identifier: Apache-2.0
//! Window functions compared with plain Rust that evaluates every frame from scratch, in both
//! profiles.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod cuts;
mod lists;
mod oracle;
mod quantiles;
mod ranges;
#[path = "../support/mod.rs"]
mod support;

use std::collections::HashSet;
use std::sync::Arc;

use arrow::array::{
    Array, ArrayRef, AsArray, BooleanArray, Decimal128Array, Float64Array, Int64Array, LargeStringArray, RecordBatch,
    StringArray, UInt64Array,
};
use arrow::compute::{cast, concat_batches};
use arrow::datatypes::{DataType, Field, Float32Type, Float64Type, Int64Type, Schema, UInt64Type};
use columnar::{Carrier, DeviceBatch, Layout, natural_types};
use device::Queue;
use futures::executor::block_on;
use kernels::Error;
use kernels::expr::AggregateFunction::*;
use kernels::expr::{AggregateFunction, ArithmeticOp, CompareOp, Literal, LiteralValue};
use kernels::ops::{Frame, FrameBound, FrameUnits, NullTreatment, Options, Quantile, Window, WindowCall, WindowFunction};
use oracle::{expected, groups};
use quantiles::quantile;
use support::*;

const PARTITION: usize = 0;
const ORDER: usize = 1;
const NUMBER: usize = 2;
const FLOAT: usize = 3;
const TEXT: usize = 4;
const DECIMAL: usize = 5;
const FLAG: usize = 6;

/// `n` sorted rows with peers: about `width` rows per partition, some partitions of one row.
fn sorted(n: usize, width: u64) -> RecordBatch {
    let mut partition: Vec<Option<i64>> = vec![];
    let mut order: Vec<Option<i64>> = vec![];
    let (mut p, mut o) = (0, 0);
    for i in 0..n {
        if random(i, 1).is_multiple_of(width) {
            (p, o) = (p + 1, 0);
        } else if !random(i, 2).is_multiple_of(3) {
            o += 1;
        }
        partition.push((p > 0).then_some(p));
        order.push((o < 500).then_some(o));
    }
    let null = |i: usize, salt: u64| random(i, salt).is_multiple_of(5);
    let text = |i: usize| (!null(i, 5)).then(|| "term ".repeat((random(i, 6) % 6) as usize));
    batch(vec![
        ("partition", Arc::new(Int64Array::from(partition)) as ArrayRef, true),
        ("order", Arc::new(Int64Array::from(order)), true),
        ("number", Arc::new((0..n).map(|i| (!null(i, 3)).then(|| random(i, 3) as i64)).collect::<Int64Array>()), true),
        (
            "float",
            Arc::new((0..n).map(|i| (!null(i, 4)).then(|| (random(i, 4) % 1000) as f64 / 8.0)).collect::<Float64Array>()),
            true,
        ),
        ("text", Arc::new((0..n).map(text).collect::<StringArray>()), true),
        (
            "decimal",
            Arc::new(
                Decimal128Array::from_iter_values((0..n).map(|i| i128::from(random(i, 7) as i64) >> 30))
                    .with_precision_and_scale(15, 2)
                    .unwrap(),
            ),
            false,
        ),
        ("flag", Arc::new((0..n).map(|i| Some(random(i, 8).is_multiple_of(2))).collect::<BooleanArray>()), false),
    ])
}

fn field(call: &WindowCall, batch: &RecordBatch) -> Field {
    use WindowFunction::*;
    let data_type = match &call.function {
        RowNumber | Rank | DenseRank | Ntile(_) => DataType::UInt64,
        PercentRank | CumeDist => DataType::Float64,
        Lag { value, .. } | NthValue(value, _) | NthNonNull(value, _) => value.data_type(&batch.schema()).unwrap(),
        Quantile { value, .. } => value.data_type(&batch.schema()).unwrap(),
        ArrayAgg { value, .. } => DataType::new_list(value.data_type(&batch.schema()).unwrap(), true),
        StringAgg { .. } => DataType::LargeUtf8,
        Aggregate(aggregate) => aggregate.data_type.clone(),
    };
    Field::new("result", data_type, true)
}

/// The result of a window over batches.
fn run(window: &Window, queue: &Queue, batches: &[DeviceBatch]) -> kernels::Result<Vec<DeviceBatch>> {
    block_on(async {
        let mut state = window.start();
        for batch in batches {
            window.push(queue, &mut state, batch).await?;
        }
        window.finish(queue, state).await
    })
}

/// The same where partitions are computed once they have ended, behind each batch.
fn run_split(window: &Window, queue: &Queue, batches: &[DeviceBatch]) -> kernels::Result<Vec<DeviceBatch>> {
    block_on(async {
        let (mut state, mut results) = (window.start(), vec![]);
        for batch in batches {
            window.push(queue, &mut state, batch).await?;
            if let Some(ended) = window.split_off(queue, &mut state).await? {
                results.extend(window.finish(queue, ended).await?);
            }
        }
        results.extend(window.finish(queue, state).await?);
        Ok(results)
    })
}

/// Compares the results with the oracle's, and with those of a window whose rows are split off.
/// Returns the number of batches that these come in.
#[track_caller]
fn check(
    batch: &RecordBatch,
    sizes: &[usize],
    partition: &[usize],
    order: &[usize],
    calls: &[WindowCall],
    options: &Options,
) -> usize {
    let queue = queue();
    let input = input(&batch.schema(), None);
    let types = input.types.clone();
    let exprs = |columns: &[usize]| columns.iter().copied().map(col).collect::<Vec<_>>();
    let functions = calls.iter().map(|call| (call.clone(), field(call, batch))).collect();
    let outputs = vec![(col(TEXT), batch.schema().field(TEXT).clone())];
    let window = Window::try_new(input, exprs(partition), exprs(order), outputs, functions, options.clone()).unwrap();
    let batches = slices(&queue, batch, sizes, &types);
    let results = run(&window, &queue, &batches).unwrap();
    let downloaded = |results: &[DeviceBatch]| {
        let results: Vec<RecordBatch> = results.iter().map(|result| down(&queue, result)).collect();
        concat_batches(window.schema(), &results).unwrap()
    };
    let mut parts = results.len();
    if batches.len() > 1 {
        let split = run_split(&window, &queue, &batches).unwrap();
        let columns = |batch: RecordBatch| batch.columns().iter().map(with_one_nan).collect::<Vec<_>>();
        parts = split.len();
        assert_eq!(columns(downloaded(&split)), columns(downloaded(&results)), "partitions one after another");
    }
    for result in &results {
        assert_eq!(window.output_types(), result.columns().iter().map(|column| (**column.ty()).clone()).collect::<Vec<_>>());
    }
    let actual = downloaded(&results);
    assert_eq!(actual.num_rows(), batch.num_rows());
    assert_eq!(actual.column(0), batch.column(TEXT));
    for (index, call) in calls.iter().enumerate() {
        let (actual, expected) = (with_one_nan(actual.column(index + 1)), with_one_nan(&expected(batch, call, partition, order)));
        if let Some(row) = (0..batch.num_rows()).find(|row| actual.slice(*row, 1).as_ref() != expected.slice(*row, 1).as_ref()) {
            let (actual, expected) = (actual.slice(row, 1), expected.slice(row, 1));
            panic!("{call:?}, {:?}, row {row}: {actual:?} should be {expected:?}", options.profile);
        }
    }
    parts
}

/// Each number of partitions in each number of rows: all but the last one have ended. The keys are
/// integers of fewer bits, which keep their layout.
#[test]
fn partitions_before_the_last_one_have_ended() {
    let queue = queue();
    for options in profiles() {
        for n in SIZES {
            for rows_each in [1, 7, n.div_ceil(2).max(1), n.max(1)] {
                let keys = Int64Array::from_iter_values((0..n).map(|row| (row / rows_each) as i64));
                let rows = batch(vec![("key", Arc::new(keys) as ArrayRef, false)]);
                let mut input = input(&rows.schema(), None);
                input.types[0].layout = Layout::Fixed(Carrier::I32);
                input.types[0].bounds = Some((0, 1 << 20));
                let types = input.types.clone();
                let number = WindowCall { function: WindowFunction::RowNumber, frame: Frame::RUNNING };
                // Its partitions are not cut.
                let share = WindowCall { function: WindowFunction::CumeDist, frame: Frame::RUNNING };
                let share = (share, Field::new("share", DataType::Float64, false));
                let functions = vec![(number, Field::new("number", DataType::UInt64, false)), share];
                let outputs = vec![(col(0), rows.schema().field(0).clone())];
                let window = Window::try_new(input, vec![col(0)], vec![], outputs, functions, options.clone()).unwrap();
                let expected = n.saturating_sub(1) / rows_each * rows_each;
                let left = n - expected;
                for copies in [false, true] {
                    let case = format!("{n} rows, {rows_each} in each, copies: {copies}");
                    let mut state = window.start();
                    let batch = up(&queue, &rows, &types);
                    let results = block_on(async {
                        match copies {
                            true => window.push_copy(&queue, &mut state, &batch).await.unwrap(),
                            false => window.push(&queue, &mut state, &batch).await.unwrap(),
                        }
                        let ended = window.split_off(&queue, &mut state).await.unwrap();
                        assert_eq!(ended.map_or(0, |ended| ended.num_rows()), expected, "{case}");
                        assert_eq!(state.num_rows(), left, "{case}");
                        window.finish(&queue, state).await.unwrap()
                    });
                    for result in &results {
                        let result = down(&queue, result);
                        assert_eq!(result.column(0), rows.slice(expected, left).column(0), "{case}");
                        assert_eq!(result.column(1).as_ref(), &UInt64Array::from_iter_values(1..=left as u64), "{case}");
                    }
                }
            }
        }
    }
}

/// The bits of computed NaNs depend on the machine.
fn with_one_nan(array: &ArrayRef) -> ArrayRef {
    if let Some(floats) = array.as_primitive_opt::<Float64Type>() {
        return Arc::new(floats.unary::<_, Float64Type>(|value| if value.is_nan() { f64::NAN } else { value }));
    }
    match array.as_primitive_opt::<Float32Type>() {
        Some(floats) => Arc::new(floats.unary::<_, Float32Type>(|value| if value.is_nan() { f32::NAN } else { value })),
        None => array.clone(),
    }
}

fn call(function: WindowFunction, frame: Frame) -> WindowCall {
    WindowCall { function, frame }
}

/// [`frames`], and frames by key between these bounds.
fn frames_and_by_key(bounds: impl IntoIterator<Item = (FrameBound, FrameBound)>) -> Vec<Frame> {
    let by_key = bounds.into_iter().map(|(start, end)| Frame { units: FrameUnits::Range { descending: false }, start, end });
    frames().into_iter().chain(by_key).collect()
}

fn frames() -> Vec<Frame> {
    use FrameBound::*;
    let mut frames = vec![Frame::RUNNING];
    let ends = [UnboundedPreceding, Preceding(9), CurrentRow, Following(3), UnboundedFollowing];
    for units in [FrameUnits::Rows, FrameUnits::Groups] {
        for (start, end) in (0..4).flat_map(|start| (1..5).map(move |end| (start, end))) {
            frames.push(Frame { units, start: ends[start], end: ends[end] });
        }
        frames.push(Frame { units, start: Preceding(2), end: Preceding(50) });
        frames.push(Frame { units, start: Following(2), end: Following(u64::MAX.into()) });
    }
    frames.push(Frame { units: FrameUnits::Range { descending: false }, start: Following(0), end: UnboundedFollowing });
    frames
}

fn aggregate_of(function: AggregateFunction, column: Option<usize>, data_type: DataType) -> WindowFunction {
    WindowFunction::Aggregate(aggregate(function, column.map(col), data_type).0)
}

fn filtered(function: WindowFunction) -> WindowFunction {
    match function {
        WindowFunction::Aggregate(aggregate) => {
            WindowFunction::Aggregate(kernels::expr::Aggregate { filter: Some(col(FLAG)), ..aggregate })
        }
        other => other,
    }
}

fn distinct(function: WindowFunction) -> WindowFunction {
    match function {
        WindowFunction::Aggregate(aggregate) => {
            WindowFunction::Aggregate(kernels::expr::Aggregate { distinct: true, ..aggregate })
        }
        other => other,
    }
}

fn ranks() -> Vec<WindowCall> {
    use WindowFunction::*;
    let functions = [RowNumber, Rank, DenseRank, PercentRank, CumeDist, Ntile(1), Ntile(3), Ntile(1000)];
    functions.map(|function| call(function, Frame::RUNNING)).into()
}

#[test]
fn ranks_of_all_sizes() {
    for options in profiles() {
        for n in SIZES {
            let width = if n > 1000 { 100 } else { 20 };
            check(&sorted(n, width), &[n / 3, n - n / 3], &[PARTITION], &[ORDER], &ranks(), &options);
        }
        let batch = sorted(500, 30);
        check(&batch, &[200, 300], &[], &[], &ranks(), &options);
        check(&batch, &[200, 300], &[PARTITION], &[], &ranks(), &options);
    }
}

#[test]
fn values_of_other_rows() {
    use WindowFunction::*;
    let batch = sorted(1500, 20);
    let default = |data_type, value| Some(Literal { data_type, value });
    let mut calls = vec![];
    for offset in [0, 1, -1, 5, -30, i64::MAX, i64::MIN] {
        calls.push(call(
            Lag {
                value: col(NUMBER),
                offset,
                default: default(DataType::Int64, LiteralValue::Int(-7)),
                nulls: NullTreatment::Respect,
            },
            Frame::RUNNING,
        ));
        calls.push(call(Lag { value: col(TEXT), offset, default: None, nulls: NullTreatment::Respect }, Frame::RUNNING));
    }
    let none = default(DataType::Utf8, LiteralValue::Bytes(b"none".to_vec()));
    calls.push(call(Lag { value: col(TEXT), offset: 2, default: none, nulls: NullTreatment::Respect }, Frame::RUNNING));
    for offset in [1, -1, 3, -2, 40, -40, 0, i64::MAX, i64::MIN] {
        let default = default(DataType::Int64, LiteralValue::Int(-7));
        calls.push(call(Lag { value: col(NUMBER), offset, default, nulls: NullTreatment::Ignore }, Frame::RUNNING));
        calls.push(call(Lag { value: col(TEXT), offset, default: None, nulls: NullTreatment::Ignore }, Frame::RUNNING));
    }
    for offset in [2, 0, -1, -2, -3, -7, i64::MIN] {
        let default = default(DataType::Int64, LiteralValue::Int(-7));
        calls.push(call(Lag { value: col(NUMBER), offset, default, nulls: NullTreatment::IgnoreBounded }, Frame::RUNNING));
        calls.push(call(Lag { value: col(TEXT), offset, default: None, nulls: NullTreatment::IgnoreBounded }, Frame::RUNNING));
    }
    calls.push(call(Lag { value: col(DECIMAL), offset: 2, default: None, nulls: NullTreatment::Ignore }, Frame::RUNNING));
    calls.push(call(Lag { value: col(DECIMAL), offset: 2, default: None, nulls: NullTreatment::Respect }, Frame::RUNNING));
    for options in profiles() {
        check(&batch, &[700, 800], &[PARTITION], &[ORDER], &calls, &options);
    }
    for options in profiles() {
        for frames in frames().chunks(12) {
            let nth = |frame: &Frame| {
                let known = [1, -1, 2, 0].map(|n| call(NthNonNull(col(NUMBER), n), *frame));
                [1, -1, 3, -2, 0].map(|n| call(NthValue(col(NUMBER), n), *frame)).into_iter().chain(known)
            };
            let calls: Vec<_> = frames.iter().step_by(4).flat_map(nth).collect();
            check(&batch, &[700, 800], &[PARTITION], &[ORDER], &calls, &options);
        }
        let texts = [call(NthValue(col(TEXT), 2), Frame::RUNNING), call(NthNonNull(col(TEXT), -1), Frame::RUNNING)];
        check(&batch, &[1500], &[PARTITION], &[ORDER], &texts, &options);
    }
}

#[test]
fn aggregates_over_every_frame() {
    let batch = sorted(900, 90);
    let functions = [
        aggregate_of(Sum, Some(NUMBER), DataType::Int64),
        aggregate_of(Max, Some(NUMBER), DataType::Int64),
        aggregate_of(Count, None, DataType::Int64),
    ];
    for options in profiles() {
        for frames in frames().chunks(8) {
            let calls: Vec<_> = frames.iter().enumerate().map(|(at, frame)| call(functions[at % 3].clone(), *frame)).collect();
            check(&batch, &[600, 300], &[PARTITION], &[ORDER], &calls, &options);
        }
    }
}

#[test]
fn every_aggregate() {
    device::skip_unless_turn!(2);
    let batch = sorted(1200, 300);
    let functions = [
        aggregate_of(Count, None, DataType::Int64),
        aggregate_of(Count, Some(TEXT), DataType::Int64),
        aggregate_of(Min, Some(NUMBER), DataType::Int64),
        aggregate_of(Sum, Some(FLOAT), DataType::Float64),
        aggregate_of(Avg, Some(FLOAT), DataType::Float64),
        aggregate_of(Max, Some(FLOAT), DataType::Float64),
        aggregate_of(Sum, Some(DECIMAL), DataType::Decimal128(25, 2)),
        aggregate_of(Avg, Some(DECIMAL), DataType::Decimal128(19, 6)),
        aggregate_of(Min, Some(DECIMAL), DataType::Decimal128(15, 2)),
        filtered(aggregate_of(Sum, Some(NUMBER), DataType::Int64)),
        filtered(aggregate_of(Count, None, DataType::Int64)),
    ];
    let last = Frame { units: FrameUnits::Rows, start: FrameBound::Preceding(20), end: FrameBound::CurrentRow };
    for options in profiles() {
        for frame in [Frame::PARTITION, Frame::RUNNING, last] {
            let calls: Vec<_> = functions.iter().map(|function| call(function.clone(), frame)).collect();
            check(&batch, &[1000, 200], &[PARTITION], &[ORDER], &calls, &options);
        }
    }
}

/// Compared with a grouped aggregation with a group per frame.
#[test]
fn sketches_of_frames_from_the_partition_start() {
    let n = SIZES[4];
    let texts = |i: usize| (!random(i, 61).is_multiple_of(7)).then(|| format!("value {}", random(i, 62) % 40_000));
    let texts: StringArray = (0..n).map(texts).collect();
    let parts: Int64Array = (0..n).map(|i| Some(i64::from(i >= 1000) + i64::from(i >= 1003))).collect();
    let whole = batch(vec![("part", Arc::new(parts) as ArrayRef, false), ("text", Arc::new(texts) as ArrayRef, true)]);
    let queue = queue();
    let ahead = Frame { units: FrameUnits::Rows, end: FrameBound::Following(3), ..Frame::RUNNING };
    let frames = [Frame::PARTITION, Frame { units: FrameUnits::Rows, ..Frame::RUNNING }, ahead];
    let starts = [0, 1000, 1003, n];
    for options in profiles() {
        let sketch = |rows: std::ops::Range<usize>| {
            let rows = whole.slice(rows.start, rows.len());
            let sketch = aggregate(ApproxDistinct, Some(col(1)), DataType::UInt64);
            let result = try_reduce(&whole.schema(), &[rows], None, &[sketch], &options).unwrap();
            result.column(0).as_primitive::<UInt64Type>().value(0)
        };
        for size in [0, 1, 5, 1002, n] {
            let batch = whole.slice(0, size);
            let input = input(&batch.schema(), None);
            let types = input.types.clone();
            let calls = frames.map(|frame| call(aggregate_of(ApproxDistinct, Some(1), DataType::UInt64), frame));
            let functions = calls.iter().map(|call| (call.clone(), field(call, &batch))).collect();
            let window = Window::try_new(input, vec![col(0)], vec![], vec![], functions, options.clone()).unwrap();
            let result = run(&window, &queue, &[up(&queue, &batch, &types)]).unwrap();
            if size == 0 {
                assert!(result.is_empty());
                continue;
            }
            let result = down(&queue, &result[0]);
            let actual = |index: usize, row: usize| result.column(index).as_primitive::<UInt64Type>().value(row);
            for row in (0..size).step_by(30_011).chain([0, 3, 998, 1001, size - 1]).filter(|row| *row < size) {
                let part = starts.partition_point(|start| *start <= row) - 1;
                let (first, behind) = (starts[part], starts[part + 1].min(size));
                let expected = [first..behind, first..row + 1, first..(row + 4).min(behind)].map(sketch);
                assert_eq!([0, 1, 2].map(|index| actual(index, row)), expected, "row {row} of {size}");
            }
        }
    }
}

#[test]
fn large_partitions_use_the_tree() {
    // The oracle is quadratic, hence few rows per partition, or few frames.
    let n = SIZES[4];
    let numbers: Int64Array = (0..n).map(|i| Some(random(i, 1) as i64 >> 20)).collect();
    let whole = batch(vec![("number", Arc::new(numbers.clone()) as ArrayRef, false)]);
    let sum = aggregate(Sum, Some(col(0)), DataType::Int64).0;
    let queue = queue();
    let last = Frame { units: FrameUnits::Rows, start: FrameBound::Preceding(50_000), end: FrameBound::Following(10_000) };
    let running = Frame { units: FrameUnits::Rows, ..Frame::RUNNING };
    let calls = [Frame::PARTITION, running, last].map(|frame| call(WindowFunction::Aggregate(sum.clone()), frame));
    let mut sums = vec![0i64];
    numbers.values().iter().for_each(|value| sums.push(sums[sums.len() - 1].wrapping_add(*value)));
    for options in profiles() {
        let input = input(&whole.schema(), None);
        let types = input.types.clone();
        let functions = calls.iter().map(|call| (call.clone(), Field::new("sum", DataType::Int64, true))).collect();
        let window = Window::try_new(input, vec![], vec![], vec![], functions, options).unwrap();
        let result = down(&queue, &run(&window, &queue, &[up(&queue, &whole, &types)]).unwrap()[0]);
        let column = |index: usize| result.column(index).as_primitive::<Int64Type>().values().to_vec();
        assert!(column(0).iter().all(|sum| *sum == sums[n]));
        assert_eq!(column(1), sums[1..]);
        let frame = |i: usize| i.saturating_sub(50_000)..(i + 10_001).min(n);
        let expected: Vec<i64> = (0..n).map(|i| sums[frame(i).end].wrapping_sub(sums[frame(i).start])).collect();
        assert_eq!(column(2), expected);
    }
}

#[test]
fn keys_of_every_type() {
    let whole = table(0, 400);
    for options in profiles() {
        for column in 1..whole.num_columns() {
            // Sorted by the host.
            let sorted = arrow::compute::sort_to_indices(whole.column(column), None, None);
            let Ok(sorted) = sorted else { continue };
            let rows = arrow::compute::take_record_batch(&whole, &sorted).unwrap();
            let queue = queue();
            let input = input(&rows.schema(), None);
            let types = input.types.clone();
            let number = (call(WindowFunction::DenseRank, Frame::RUNNING), Field::new("rank", DataType::UInt64, false));
            let window = Window::try_new(input, vec![], vec![col(column)], vec![], vec![number], options.clone()).unwrap();
            let result = run(&window, &queue, &[up(&queue, &rows, &types)]).unwrap();
            let expected = expected(&rows, &call(WindowFunction::DenseRank, Frame::RUNNING), &[], &[column]);
            assert_eq!(down(&queue, &result[0]).column(0), &expected, "{}", whole.schema().field(column));
        }
    }
}

#[test]
fn failing_arguments_and_averages() {
    let whole = batch(vec![("x", Arc::new(Int64Array::from_iter_values(-3..1000)) as ArrayRef, false)]);
    let quotient = arithmetic(ArithmeticOp::Divide, int(1, DataType::Int64), col(0), DataType::Int64);
    let queue = queue();
    for options in profiles() {
        let input = input(&whole.schema(), Some(compare(CompareOp::Lt, col(0), int(500, DataType::Int64))));
        let types = input.types.clone();
        let sum = WindowFunction::Aggregate(aggregate(Sum, Some(quotient.clone()), DataType::Int64).0);
        let functions = vec![(call(sum, Frame::RUNNING), Field::new("sum", DataType::Int64, true))];
        let window = Window::try_new(input, vec![], vec![], vec![], functions, options).unwrap();
        let error = block_on(window.push(&queue, &mut window.start(), &up(&queue, &whole, &types))).unwrap_err();
        assert!(matches!(error, Error::Row { row: 3 }), "{error}");
    }
    let most = Decimal128Array::from(vec![10i128.pow(38) - 1; 3]).with_precision_and_scale(38, 0).unwrap();
    let whole = batch(vec![("x", Arc::new(most) as ArrayRef, false)]);
    for options in profiles() {
        let input = input(&whole.schema(), None);
        let types = natural_types(&whole.schema()).unwrap();
        let average = WindowFunction::Aggregate(aggregate(Avg, Some(col(0)), DataType::Decimal128(38, 4)).0);
        let functions = vec![(call(average, Frame::RUNNING), Field::new("avg", DataType::Decimal128(38, 4), true))];
        let window = Window::try_new(input, vec![], vec![], vec![], functions, options).unwrap();
        let error = run(&window, &queue, &[up(&queue, &whole, &types)]).unwrap_err();
        assert!(matches!(error, Error::AverageOverflow), "{error}");
    }
}

#[test]
fn unsupported_windows_are_refused() {
    let whole = sorted(10, 5);
    let options = Options::new(kernels::codegen::Profile::Cpu);
    let refused = |call: WindowCall, reason: &str| {
        let functions = vec![(call.clone(), field(&call, &whole))];
        let window = Window::try_new(input(&whole.schema(), None), vec![], vec![], vec![], functions, options.clone());
        let error = window.map(|_| ()).unwrap_err();
        assert!(matches!(&error, Error::Unsupported(text) if text.contains(reason)), "{error}");
    };
    let values =
        Frame { units: FrameUnits::Range { descending: false }, start: FrameBound::Preceding(3), end: FrameBound::CurrentRow };
    let by_key = |column: usize, units| {
        let count = call(aggregate_of(Count, None, DataType::Int64), Frame { units, ..values });
        let functions = vec![(count.clone(), field(&count, &whole))];
        Window::try_new(input(&whole.schema(), None), vec![], vec![col(column)], vec![], functions, options.clone()).is_ok()
    };
    let whole_numbers = FrameUnits::Range { descending: false };
    let floats = FrameUnits::FloatRange { descending: false };
    let wide = FrameUnits::Range128 { descending: false };
    let fits = [(NUMBER, whole_numbers), (FLOAT, whole_numbers), (NUMBER, floats), (FLOAT, floats), (NUMBER, wide)];
    assert_eq!(fits.map(|(column, units)| by_key(column, units)), [true, false, false, true, false]);
    refused(call(aggregate_of(Count, None, DataType::Int64), values), "several order keys");
    let some = Frame { units: FrameUnits::Groups, ..values };
    refused(call(distinct(aggregate_of(Avg, Some(FLOAT), DataType::Float64)), some), "DISTINCT");
    let many = Frame { units: FrameUnits::Rows, start: FrameBound::Preceding(5000), end: FrameBound::CurrentRow };
    refused(call(distinct(aggregate_of(Avg, Some(FLOAT), DataType::Float64)), many), "DISTINCT");
    refused(call(aggregate_of(ApproxDistinct, Some(TEXT), DataType::UInt64), many), "approx_distinct");
    let once = WindowFunction::StringAgg { strings: col(TEXT), skipped: 1, distinct: true };
    refused(call(once, many), "neither begin nor end");
    refused(call(WindowFunction::Ntile(0), Frame::RUNNING), "NTILE");
    refused(call(quantile(Quantile::Percentile(1.5), FLOAT), Frame::RUNNING), "1.5");
    refused(call(quantile(Quantile::Percentile(f64::NAN), FLOAT), Frame::RUNNING), "NaN");
    refused(call(quantile(Quantile::Percentile(0.5), DECIMAL), Frame::RUNNING), "Decimal128");
}

/// Prints rows per second: `cargo test --release -p kernels --test window -- --ignored
/// --nocapture`.
#[test]
#[ignore = "measures"]
fn speed() {
    let n = 8 << 20;
    let queue = queue();
    let whole = sorted(n, 1000).project(&[PARTITION, ORDER, NUMBER, FLOAT]).unwrap();
    let types = natural_types(&whole.schema()).unwrap();
    let device = up(&queue, &whole, &types);
    let last = Frame { units: FrameUnits::Rows, start: FrameBound::Preceding(100), end: FrameBound::CurrentRow };
    let sum = || aggregate_of(Sum, Some(NUMBER), DataType::Int64);
    let lag = WindowFunction::Lag { value: col(NUMBER), offset: 1, default: None, nulls: NullTreatment::Respect };
    let cases = [
        ("rank", call(WindowFunction::Rank, Frame::RUNNING), vec![col(PARTITION)]),
        ("lag", call(lag, Frame::RUNNING), vec![col(PARTITION)]),
        ("running sum", call(sum(), Frame::RUNNING), vec![col(PARTITION)]),
        ("running sum of one partition", call(sum(), Frame::RUNNING), vec![]),
        ("sum of the partition", call(sum(), Frame::PARTITION), vec![col(PARTITION)]),
        ("sum of the last 100", call(sum(), last), vec![col(PARTITION)]),
        ("median of the last 100", call(quantile(Quantile::Median, FLOAT), last), vec![col(PARTITION)]),
    ];
    for options in profiles() {
        for (name, call, partition) in &cases {
            let input = input(&whole.schema(), None);
            let functions = vec![(call.clone(), field(call, &whole))];
            let window = Window::try_new(input, partition.clone(), vec![col(ORDER)], vec![], functions, options.clone()).unwrap();
            let best = (0..3).map(|_| {
                let start = std::time::Instant::now();
                run(&window, &queue, std::slice::from_ref(&device)).unwrap();
                block_on(queue.finish()).unwrap();
                start.elapsed()
            });
            let best = best.min().unwrap();
            println!("{:?} {name}: {best:?}, {:.1} M rows/s", options.profile, n as f64 / best.as_secs_f64() / 1e6);
        }
    }
}
