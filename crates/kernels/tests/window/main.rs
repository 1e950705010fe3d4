// SPDX-License-Identifier: Apache-2.0
//! Window functions against plain Rust that looks at every frame anew, in both profiles.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod oracle;
#[path = "../support/mod.rs"]
mod support;

use std::collections::HashSet;
use std::sync::Arc;

use arrow::array::{
    Array, ArrayRef, AsArray, BooleanArray, Decimal128Array, Float64Array, Int64Array, LargeStringArray, RecordBatch, StringArray,
};
use arrow::compute::{cast, concat_batches};
use arrow::datatypes::{DataType, Field, Float32Type, Float64Type, Int64Type, Schema, UInt64Type};
use columnar::{DeviceBatch, natural_types};
use device::Queue;
use futures::executor::block_on;
use kernels::Error;
use kernels::expr::AggregateFunction::*;
use kernels::expr::{AggregateFunction, ArithmeticOp, CompareOp, Literal, LiteralValue};
use kernels::ops::{Counted, Frame, FrameBound, FrameUnits, Options, Quantile, Window, WindowCall, WindowFunction};
use oracle::{expected, groups};
use support::*;

const PARTITION: usize = 0;
const ORDER: usize = 1;
const NUMBER: usize = 2;
const FLOAT: usize = 3;
const TEXT: usize = 4;
const DECIMAL: usize = 5;
const FLAG: usize = 6;

/// `n` sorted rows: about `width` rows a partition, some of one row, and peers.
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
    let text = |i: usize| (!null(i, 5)).then(|| "word ".repeat((random(i, 6) % 6) as usize));
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
        Lag { value, .. } | NthValue(value, _) | NthKnown(value, _) => value.data_type(&batch.schema()).unwrap(),
        Quantile { value, .. } => value.data_type(&batch.schema()).unwrap(),
        Values(value) => DataType::new_list(value.data_type(&batch.schema()).unwrap(), true),
        Texts { .. } => DataType::LargeUtf8,
        Aggregate(aggregate) => aggregate.data_type.clone(),
    };
    Field::new("result", data_type, true)
}

/// What a window makes of batches.
fn run(window: &Window, queue: &Queue, batches: &[DeviceBatch]) -> kernels::Result<Vec<DeviceBatch>> {
    block_on(async {
        let mut state = window.start();
        for batch in batches {
            window.push(queue, &mut state, batch).await?;
        }
        window.finish(queue, state).await
    })
}

#[track_caller]
fn check(batch: &RecordBatch, sizes: &[usize], partition: &[usize], order: &[usize], calls: &[WindowCall], options: &Options) {
    let queue = queue();
    let input = input(&batch.schema(), None);
    let types = input.types.clone();
    let exprs = |columns: &[usize]| columns.iter().copied().map(col).collect::<Vec<_>>();
    let functions = calls.iter().map(|call| (call.clone(), field(call, batch))).collect();
    let outputs = vec![(col(TEXT), batch.schema().field(TEXT).clone())];
    let window = Window::try_new(input, exprs(partition), exprs(order), outputs, functions, options.clone()).unwrap();
    let results = run(&window, &queue, &pieces(&queue, batch, sizes, &types)).unwrap();
    for result in &results {
        assert_eq!(window.output_types(), result.columns().iter().map(|column| (**column.ty()).clone()).collect::<Vec<_>>());
    }
    let results: Vec<RecordBatch> = results.iter().map(|result| down(&queue, result)).collect();
    let actual = concat_batches(window.schema(), &results).unwrap();
    assert_eq!(actual.num_rows(), batch.num_rows());
    assert_eq!(actual.column(0), batch.column(TEXT));
    for (index, call) in calls.iter().enumerate() {
        let (actual, expected) = (with_one_nan(actual.column(index + 1)), with_one_nan(&expected(batch, call, partition, order)));
        if let Some(row) = (0..batch.num_rows()).find(|row| actual.slice(*row, 1).as_ref() != expected.slice(*row, 1).as_ref()) {
            let (actual, expected) = (actual.slice(row, 1), expected.slice(row, 1));
            panic!("{call:?}, {:?}, row {row}: {actual:?} should be {expected:?}", options.profile);
        }
    }
}

/// Which NaN arithmetic gives is left to the machine.
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
    frames.push(Frame { units: FrameUnits::Range { falls: false }, start: Following(0), end: UnboundedFollowing });
    frames
}

fn aggregate_of(function: AggregateFunction, column: Option<usize>, data_type: DataType) -> WindowFunction {
    WindowFunction::Aggregate(aggregate(function, column.map(col), data_type).0)
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
            Lag { value: col(NUMBER), offset, default: default(DataType::Int64, LiteralValue::Int(-7)), counted: Counted::All },
            Frame::RUNNING,
        ));
        calls.push(call(Lag { value: col(TEXT), offset, default: None, counted: Counted::All }, Frame::RUNNING));
    }
    let none = default(DataType::Utf8, LiteralValue::Bytes(b"none".to_vec()));
    calls.push(call(Lag { value: col(TEXT), offset: 2, default: none, counted: Counted::All }, Frame::RUNNING));
    for offset in [1, -1, 3, -2, 40, -40, 0, i64::MAX, i64::MIN] {
        let default = default(DataType::Int64, LiteralValue::Int(-7));
        calls.push(call(Lag { value: col(NUMBER), offset, default, counted: Counted::Known }, Frame::RUNNING));
        calls.push(call(Lag { value: col(TEXT), offset, default: None, counted: Counted::Known }, Frame::RUNNING));
    }
    for offset in [2, 0, -1, -2, -3, -7, i64::MIN] {
        let default = default(DataType::Int64, LiteralValue::Int(-7));
        calls.push(call(Lag { value: col(NUMBER), offset, default, counted: Counted::InSight }, Frame::RUNNING));
        calls.push(call(Lag { value: col(TEXT), offset, default: None, counted: Counted::InSight }, Frame::RUNNING));
    }
    calls.push(call(Lag { value: col(DECIMAL), offset: 2, default: None, counted: Counted::Known }, Frame::RUNNING));
    calls.push(call(Lag { value: col(DECIMAL), offset: 2, default: None, counted: Counted::All }, Frame::RUNNING));
    for options in profiles() {
        check(&batch, &[700, 800], &[PARTITION], &[ORDER], &calls, &options);
    }
    for options in profiles() {
        for frames in frames().chunks(12) {
            let nth = |frame: &Frame| {
                let known = [1, -1, 2, 0].map(|n| call(NthKnown(col(NUMBER), n), *frame));
                [1, -1, 3, -2, 0].map(|n| call(NthValue(col(NUMBER), n), *frame)).into_iter().chain(known)
            };
            let calls: Vec<_> = frames.iter().step_by(4).flat_map(nth).collect();
            check(&batch, &[700, 800], &[PARTITION], &[ORDER], &calls, &options);
        }
        let texts = [call(NthValue(col(TEXT), 2), Frame::RUNNING), call(NthKnown(col(TEXT), -1), Frame::RUNNING)];
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
fn ranges_by_keys() {
    use FrameBound::*;
    let rising = sorted(1200, 60);
    let keys = |of: &dyn Fn(i64) -> Option<i64>| {
        let keys = rising.column(ORDER).as_primitive::<Int64Type>();
        let keys: Int64Array = keys.iter().map(|key| of(key.unwrap_or(1000))).collect();
        let mut columns = rising.columns().to_vec();
        columns[ORDER] = Arc::new(keys);
        RecordBatch::try_new(rising.schema(), columns).unwrap()
    };
    let batches = [
        (keys(&|key| (key < 20).then_some(key * 2 - 7)), false),
        (keys(&|key| (key > 4).then_some(key)), false),
        (keys(&|key| (key < 15).then_some(-3 * key)), true),
        (keys(&|key| (key > 2).then_some(i64::MAX - key)), true),
        (keys(&|key| Some(i64::MIN + key)), false),
        // There is no telling by the keys.
        (keys(&|key| (key > 2).then_some(i64::MIN)), true),
        (keys(&|key| (key < 20).then_some(i64::MAX)), false),
    ];
    let ends = [
        (Preceding(2), CurrentRow),
        (Preceding(3), Following(2)),
        (Following(1), Following(4)),
        (UnboundedPreceding, Following(2)),
        (Preceding(5), Preceding(2)),
        (Preceding(u64::MAX.into()), UnboundedFollowing),
        (Preceding(1), Following(i64::MAX as u128)),
    ];
    let functions = [
        aggregate_of(Sum, Some(NUMBER), DataType::Int64),
        WindowFunction::NthValue(col(NUMBER), 1),
        WindowFunction::NthValue(col(NUMBER), -1),
    ];
    let calls = |falls: bool| -> Vec<_> {
        let frames = ends.map(|(start, end)| Frame { units: FrameUnits::Range { falls }, start, end });
        let calls = frames.into_iter().enumerate().map(|(at, frame)| call(functions[at % 3].clone(), frame));
        calls.chain([call(WindowFunction::Rank, Frame::RUNNING)]).collect()
    };
    for options in profiles() {
        for (batch, falls) in &batches {
            check(batch, &[500, 700], &[PARTITION], &[ORDER], &calls(*falls), &options);
        }
    }
}

/// Decimals that 64 bits do not hold, as are their offsets.
#[test]
fn ranges_by_wide_decimals() {
    use FrameBound::*;
    const STEP: i128 = 1 << 90;
    let rising = sorted(1200, 60);
    let keys = |of: &dyn Fn(i128) -> Option<i128>| {
        let keys = rising.column(ORDER).as_primitive::<Int64Type>();
        let keys: Decimal128Array = keys.iter().map(|key| of(key.unwrap_or(1000).into())).collect();
        let keys = keys.with_precision_and_scale(38, 10).unwrap();
        let mut fields: Vec<Field> = rising.schema().fields().iter().map(|field| field.as_ref().clone()).collect();
        fields[ORDER] = Field::new("order", keys.data_type().clone(), true);
        let mut columns = rising.columns().to_vec();
        columns[ORDER] = Arc::new(keys);
        RecordBatch::try_new(Arc::new(Schema::new(fields)), columns).unwrap()
    };
    let batches = [
        (keys(&|key| (key < 20).then_some((key * 2 - 7) * STEP + key)), false),
        (keys(&|key| (key < 20).then(|| i128::MAX - (19 - key) * STEP)), false),
        (keys(&|key| (key > 4).then_some(-3 * STEP * key)), true),
        (keys(&|key| (key > 2).then_some(i128::MAX - key * STEP)), true),
        (keys(&|key| Some(i128::MIN + key * STEP)), false),
        (keys(&|key| (key > 2).then_some(i128::MAX)), true),
    ];
    let step = STEP as u128;
    let ends = [
        (Preceding(2 * step), CurrentRow),
        (Preceding(3 * step), Following(2 * step + 1)),
        (Following(step), Following(4 * step)),
        (Preceding(5 * step - 1), Preceding(7)),
        (Preceding(i128::MAX as u128), Following(1 << 64)),
    ];
    let sum = || aggregate_of(Sum, Some(NUMBER), DataType::Int64);
    let calls = |falls: bool| ends.map(|(start, end)| call(sum(), Frame { units: FrameUnits::Range128 { falls }, start, end }));
    for options in profiles() {
        for (batch, falls) in &batches {
            check(batch, &[500, 700], &[PARTITION], &[ORDER], &calls(*falls), &options);
        }
    }
}

#[test]
fn ranges_by_floats() {
    use FrameBound::*;
    let whole = sorted(1200, 40);
    let special = [-f64::NAN, f64::NEG_INFINITY, -1e300, -0.0, 0.0, 0.1, 0.3, 9007199254740992.0, 1e300, f64::INFINITY, f64::NAN];
    let keys = |falls: bool, nulls_first: bool| -> Float64Array {
        let mut all = vec![];
        for partition in groups(&whole, &[PARTITION]) {
            let value = |row: usize| match random(row, 41) % 4 {
                0 => special[(random(row, 42) % 11) as usize],
                _ => (random(row, 43) % 40) as f64 / 10.0 - 2.0,
            };
            let mut values: Vec<f64> = partition.clone().skip(partition.len() / 8).map(value).collect();
            values.sort_by(|a, b| if falls { b.total_cmp(a) } else { a.total_cmp(b) });
            let nulls = vec![None; partition.len() - values.len()];
            let values = values.into_iter().map(Some);
            if nulls_first { all.extend(nulls.into_iter().chain(values)) } else { all.extend(values.chain(nulls)) }
        }
        all.into()
    };
    let ends = |of: &dyn Fn(f64) -> u128| {
        [
            (Preceding(of(0.2)), CurrentRow),
            (Preceding(of(0.0)), Following(of(0.0))),
            (Preceding(of(1e308)), Following(of(0.1))),
            (Following(of(0.1)), Following(of(1.0))),
            (Preceding(of(2.0)), Preceding(of(1.0))),
            (UnboundedPreceding, Preceding(of(0.3))),
            (CurrentRow, UnboundedFollowing),
        ]
    };
    let functions = [
        aggregate_of(Count, None, DataType::Int64),
        WindowFunction::NthValue(col(NUMBER), 1),
        aggregate_of(Sum, Some(NUMBER), DataType::Int64),
    ];
    for (falls, nulls_first) in [(false, true), (true, false)] {
        let doubles: ArrayRef = Arc::new(keys(falls, nulls_first));
        let singles = cast(&doubles, &DataType::Float32).unwrap();
        let single_bits = |by: f64| u128::from((by.min(1e38) as f32).to_bits());
        for (column, ends) in [(doubles, ends(&|by| by.to_bits().into())), (singles, ends(&single_bits))] {
            let mut fields: Vec<Field> = whole.schema().fields().iter().map(|field| field.as_ref().clone()).collect();
            fields[ORDER] = Field::new("order", column.data_type().clone(), true);
            let mut columns = whole.columns().to_vec();
            columns[ORDER] = column;
            let batch = RecordBatch::try_new(Arc::new(Schema::new(fields)), columns).unwrap();
            let units = FrameUnits::FloatRange { falls };
            let calls = ends
                .iter()
                .enumerate()
                .map(|(at, (start, end))| call(functions[at % 3].clone(), Frame { units, start: *start, end: *end }));
            let calls: Vec<_> = calls.collect();
            for options in profiles() {
                check(&batch, &[500, 700], &[PARTITION], &[ORDER], &calls, &options);
            }
        }
    }
}

#[test]
fn every_aggregate() {
    let batch = sorted(1200, 300);
    let filtered = |function| match function {
        WindowFunction::Aggregate(aggregate) => {
            WindowFunction::Aggregate(kernels::expr::Aggregate { filter: Some(col(FLAG)), ..aggregate })
        }
        other => other,
    };
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

fn quantile(quantile: Quantile, column: usize) -> WindowFunction {
    WindowFunction::Quantile { quantile, value: col(column), distinct: false }
}

#[test]
fn quantiles_of_every_frame() {
    use Quantile::{Median, Share};
    let special = [-f64::NAN, f64::NEG_INFINITY, -0.0, 0.0, 1e308, f64::INFINITY, f64::NAN];
    let rows = sorted(700, 60);
    let floats = |i: usize| match random(i, 51) % 6 {
        0 => None,
        1 => Some(special[(random(i, 52) % 7) as usize]),
        _ => Some((random(i, 53) % 40) as f64 / 7.0 - 3.0),
    };
    let floats: Float64Array = (0..700).map(floats).collect();
    let singles = cast(&floats, &DataType::Float32).unwrap();
    let mut fields: Vec<Field> = rows.schema().fields().iter().map(|field| field.as_ref().clone()).collect();
    let mut columns = rows.columns().to_vec();
    (fields[NUMBER], columns[NUMBER]) = (Field::new("single", DataType::Float32, true), singles);
    columns[FLOAT] = Arc::new(floats);
    let batch = RecordBatch::try_new(Arc::new(Schema::new(fields)), columns).unwrap();
    let functions = [
        quantile(Median, FLOAT),
        quantile(Share(0.3), FLOAT),
        quantile(Median, NUMBER),
        quantile(Median, DECIMAL),
        quantile(Share(0.85), NUMBER),
        quantile(Share(0.0), FLOAT),
        quantile(Share(1.0), FLOAT),
    ];
    let distinct = |function: &WindowFunction| match function {
        WindowFunction::Quantile { quantile, value, .. } => {
            WindowFunction::Quantile { quantile: *quantile, value: value.clone(), distinct: true }
        }
        other => other.clone(),
    };
    let by_key = [(FrameBound::Preceding(3), FrameBound::Following(2)), (FrameBound::Following(1), FrameBound::Following(6))];
    let by_key = by_key.map(|(start, end)| Frame { units: FrameUnits::Range { falls: false }, start, end });
    let frames: Vec<Frame> = frames().into_iter().chain(by_key).collect();
    for options in profiles() {
        for (first, frames) in frames.chunks(9).enumerate() {
            let calls: Vec<_> =
                frames.iter().enumerate().map(|(at, frame)| call(functions[(first + at) % 7].clone(), *frame)).collect();
            check(&batch, &[500, 200], &[PARTITION], &[ORDER], &calls, &options);
            let calls: Vec<_> = calls.iter().step_by(4).map(|of| call(distinct(&of.function), of.frame)).collect();
            check(&batch, &[700], &[PARTITION], &[ORDER], &calls, &options);
        }
        let last = Frame { units: FrameUnits::Rows, start: FrameBound::CurrentRow, end: FrameBound::UnboundedFollowing };
        let [some, before, behind] = [
            (FrameBound::Preceding(9), FrameBound::Following(2)),
            (FrameBound::Preceding(7), FrameBound::Preceding(2)),
            (FrameBound::CurrentRow, FrameBound::Following(500)),
        ]
        .map(|(start, end)| Frame { units: FrameUnits::Rows, start, end });
        for frame in [Frame::PARTITION, Frame::RUNNING, last, some, before, behind] {
            let calls: Vec<_> = functions.iter().take(4).map(|function| call(distinct(function), frame)).collect();
            check(&batch, &[700], &[PARTITION], &[ORDER], &calls, &options);
        }
        for n in [0, 1, 2, 5, 257] {
            let calls: Vec<_> = functions.iter().take(4).map(|function| call(function.clone(), Frame::RUNNING)).collect();
            check(&batch.slice(0, n), &[n], &[], &[ORDER], &calls, &options);
            for frame in [some, Frame { units: FrameUnits::Groups, ..some }] {
                let calls: Vec<_> = functions.iter().take(2).map(|function| call(distinct(function), frame)).collect();
                check(&batch.slice(0, n), &[n], &[], &[ORDER], &calls, &options);
            }
        }
    }
}

/// The k-th of so many rows' values, of which most stand in a frame several times.
#[test]
fn quantiles_of_distinct_values_in_large_frames() {
    let n = SIZES[4];
    let floats: Float64Array =
        (0..n).map(|i| Some((random(i, 1) % 20_000) as f64 / 3.0).filter(|_| !random(i, 2).is_multiple_of(9))).collect();
    let whole = batch(vec![("float", Arc::new(floats.clone()) as ArrayRef, true)]);
    let queue = queue();
    let value = || WindowFunction::Quantile { quantile: Quantile::Share(0.25), value: col(0), distinct: true };
    let frame = Frame { units: FrameUnits::Rows, start: FrameBound::Preceding(30_000), end: FrameBound::Following(1000) };
    let of_frame = call(value(), frame);
    let expected = |row: usize| {
        let rows = row.saturating_sub(30_000)..(row + 1001).min(n);
        let mut values: Vec<f64> = rows.filter(|row| floats.is_valid(*row)).map(|row| floats.value(row)).collect();
        values.sort_by(f64::total_cmp);
        values.dedup();
        let place = 0.25 * (values.len() - 1) as f64;
        let (low, high) = (values[place.floor() as usize], values[place.ceil() as usize]);
        low + (high - low) * ((place.fract() * 1e6).trunc() / 1e6)
    };
    for options in profiles() {
        let input = input(&whole.schema(), None);
        let types = input.types.clone();
        let functions = vec![(of_frame.clone(), field(&of_frame, &whole))];
        let window = Window::try_new(input, vec![], vec![], vec![], functions, options).unwrap();
        let result = down(&queue, &run(&window, &queue, &[up(&queue, &whole, &types)]).unwrap()[0]);
        let actual = result.column(0).as_primitive::<Float64Type>();
        for row in (0..n).step_by(4999).chain([n - 1]) {
            assert!(
                (actual.value(row) - expected(row)).abs() < 1e-9,
                "row {row}: {} instead of {}",
                actual.value(row),
                expected(row)
            );
        }
    }
}

#[test]
fn quantiles_of_large_frames() {
    // Looked at anew by the test: few frames.
    let n = SIZES[4];
    let floats: Float64Array =
        (0..n).map(|i| Some(random(i, 1) as f64 / 3.0).filter(|_| !random(i, 2).is_multiple_of(9))).collect();
    let whole = batch(vec![("float", Arc::new(floats.clone()) as ArrayRef, true)]);
    let queue = queue();
    let last = Frame { units: FrameUnits::Rows, start: FrameBound::Preceding(50_000), end: FrameBound::Following(10_000) };
    let frames = [Frame::PARTITION, Frame { units: FrameUnits::Rows, ..Frame::RUNNING }, last];
    let calls = frames.map(|frame| call(quantile(Quantile::Median, 0), frame));
    let median = |rows: std::ops::Range<usize>| {
        let mut values: Vec<f64> = rows.filter(|row| floats.is_valid(*row)).map(|row| floats.value(row)).collect();
        values.sort_by(f64::total_cmp);
        let last = values.len().checked_sub(1)?;
        Some((values[last / 2] + values[last.div_ceil(2)]) / 2.0)
    };
    for options in profiles() {
        let input = input(&whole.schema(), None);
        let types = input.types.clone();
        let functions = calls.iter().map(|call| (call.clone(), field(call, &whole))).collect();
        let window = Window::try_new(input, vec![], vec![], vec![], functions, options).unwrap();
        let result = down(&queue, &run(&window, &queue, &[up(&queue, &whole, &types)]).unwrap()[0]);
        let actual = |index: usize| result.column(index).as_primitive::<Float64Type>().iter().collect::<Vec<_>>();
        let of_all = median(0..n);
        assert!(actual(0).iter().all(|actual| *actual == of_all));
        let (running, sliding) = (actual(1), actual(2));
        for row in (0..n).step_by(9973).chain([n - 1]) {
            assert_eq!(running[row], median(0..row + 1), "row {row}");
            assert_eq!(sliding[row], median(row.saturating_sub(50_000)..(row + 10_001).min(n)), "row {row}");
        }
    }
}

/// Against the grouped form, of which each frame is a group.
#[test]
fn sketches_of_frames_that_begin_with_the_partition() {
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
fn lists_of_every_frame() {
    let batch = sorted(600, 40);
    for options in profiles() {
        for frames in frames().chunks(12) {
            let columns = [NUMBER, TEXT, DECIMAL, FLAG];
            let calls: Vec<_> = frames
                .iter()
                .zip(columns.iter().cycle())
                .map(|(frame, column)| call(WindowFunction::Values(col(*column)), *frame))
                .collect();
            check(&batch, &[400, 200], &[PARTITION], &[ORDER], &calls, &options);
        }
        let calls = [NUMBER, TEXT].map(|column| call(WindowFunction::Values(col(column)), Frame::RUNNING));
        for n in [0, 1, 5, 257] {
            check(&batch.slice(0, n), &[n], &[PARTITION], &[ORDER], &calls, &options);
        }
    }
}

#[test]
fn texts_of_every_frame() {
    let rows = sorted(600, 40);
    let texts = rows.column(TEXT).as_string::<i32>();
    for (delimiter, nullable) in [(", ", true), ("", true), ("·", false)] {
        let part = |text: Option<&str>| match text {
            None if nullable => None,
            text => Some(format!("{delimiter}{}", text.unwrap_or_default())),
        };
        let mut columns = rows.columns().to_vec();
        columns[TEXT] = Arc::new(texts.iter().map(part).collect::<LargeStringArray>());
        let mut fields = rows.schema().fields().to_vec();
        fields[TEXT] = Arc::new(Field::new("text", DataType::LargeUtf8, nullable));
        let batch = RecordBatch::try_new(Arc::new(Schema::new(fields)), columns).unwrap();
        let skipped = delimiter.len() as u32;
        let texts = |frame: Frame| call(WindowFunction::Texts { texts: col(TEXT), skipped, distinct: false }, frame);
        let once = |frame: Frame| call(WindowFunction::Texts { texts: col(TEXT), skipped, distinct: true }, frame);
        for options in profiles() {
            // All of them once.
            let some: Vec<_> = frames().into_iter().step_by(if delimiter == ", " { 1 } else { 5 }).collect();
            for frames in some.chunks(12) {
                let calls: Vec<_> = frames.iter().copied().map(texts).collect();
                check(&batch, &[400, 200], &[PARTITION], &[ORDER], &calls, &options);
            }
            let ends = [FrameBound::Preceding(2), FrameBound::Following(3)];
            let begins = ends.map(|end| Frame { units: FrameUnits::Rows, start: FrameBound::UnboundedPreceding, end });
            let ends = ends.map(|start| Frame { units: FrameUnits::Groups, start, end: FrameBound::UnboundedFollowing });
            let calls: Vec<_> = begins.into_iter().chain(ends).chain([Frame::PARTITION]).map(once).collect();
            check(&batch, &[400, 200], &[PARTITION], &[ORDER], &calls, &options);
            for n in [0, 1, 5, 257] {
                check(&batch.slice(0, n), &[n], &[PARTITION], &[ORDER], &[texts(Frame::RUNNING), once(Frame::RUNNING)], &options);
            }
        }
    }
}

#[test]
fn distinct_values_and_texts_over_every_frame() {
    // Few different values in each partition.
    let rows = sorted(900, 90);
    let numbers = rows.column(NUMBER).as_primitive::<Int64Type>();
    let mut columns = rows.columns().to_vec();
    columns[NUMBER] = Arc::new(numbers.iter().map(|number| number.map(|number| number % 13)).collect::<Int64Array>());
    let batch = RecordBatch::try_new(rows.schema(), columns).unwrap();
    let functions = [
        distinct(aggregate_of(Count, Some(NUMBER), DataType::Int64)),
        aggregate_of(Min, Some(TEXT), DataType::Utf8),
        distinct(aggregate_of(Sum, Some(NUMBER), DataType::Int64)),
        distinct(aggregate_of(Count, Some(TEXT), DataType::Int64)),
        distinct(aggregate_of(Max, Some(TEXT), DataType::Utf8)),
    ];
    let ends = [(3, 2), (5, 0), (0, 4)].map(|(start, end)| (FrameBound::Preceding(start), FrameBound::Following(end)));
    let by_key = ends.into_iter().chain([
        (FrameBound::Preceding(9), FrameBound::Preceding(2)),
        (FrameBound::Following(1), FrameBound::Following(6)),
        (FrameBound::Preceding(u64::MAX.into()), FrameBound::CurrentRow),
    ]);
    let by_key = by_key.map(|(start, end)| Frame { units: FrameUnits::Range { falls: false }, start, end });
    let frames: Vec<Frame> = frames().into_iter().chain(by_key).collect();
    for options in profiles() {
        for (first, frames) in frames.chunks(7).enumerate() {
            let calls: Vec<_> =
                frames.iter().enumerate().map(|(at, frame)| call(functions[(first + at) % 5].clone(), *frame)).collect();
            check(&batch, &[600, 300], &[PARTITION], &[ORDER], &calls, &options);
        }
        // Averages give nothing back.
        let rows = |start, end| Frame { units: FrameUnits::Rows, start, end };
        let averages = [
            rows(FrameBound::Preceding(9), FrameBound::Following(3)),
            rows(FrameBound::Following(2), FrameBound::Following(7)),
            Frame::RUNNING,
        ];
        let averages = averages.map(|frame| call(distinct(aggregate_of(Avg, Some(FLOAT), DataType::Float64)), frame));
        check(&batch, &[600, 300], &[PARTITION], &[ORDER], &averages, &options);
        let texts = [Min, Max].map(|function| call(aggregate_of(function, Some(TEXT), DataType::Utf8), Frame::RUNNING));
        check(&batch, &[900], &[], &[ORDER], &texts, &options);
        for n in [0, 1, 5, 257] {
            let calls: Vec<_> = functions.iter().map(|function| call(function.clone(), Frame::RUNNING)).collect();
            check(&batch.slice(0, n), &[n], &[PARTITION], &[ORDER], &calls, &options);
        }
    }
}

#[test]
fn distinct_values_of_large_partitions() {
    let n = SIZES[4];
    let numbers: Int64Array = (0..n).map(|i| Some((random(i, 1) % 5000) as i64).filter(|number| *number > 7)).collect();
    let words: StringArray = numbers.iter().map(|number| number.map(|number| format!("word {}", number * 7919 % 5000))).collect();
    let columns = [("number", Arc::new(numbers.clone()) as ArrayRef, true), ("word", Arc::new(words.clone()) as ArrayRef, true)];
    let whole = batch(columns.into());
    let queue = queue();
    let rows = Frame { units: FrameUnits::Rows, ..Frame::RUNNING };
    let last = Frame { units: FrameUnits::Rows, start: FrameBound::CurrentRow, end: FrameBound::UnboundedFollowing };
    let some = Frame { start: FrameBound::Preceding(99), ..rows };
    let most = Frame { start: FrameBound::Preceding(30_000), ..rows };
    let calls: Vec<_> = [Frame::PARTITION, rows, last, some, most]
        .map(|frame| call(distinct(aggregate_of(Sum, Some(0), DataType::Int64)), frame))
        .into_iter()
        .chain([rows, some].map(|frame| call(aggregate_of(Max, Some(1), DataType::Utf8), frame)))
        .collect();
    let sums = |rows: &mut dyn Iterator<Item = usize>| {
        let mut seen = HashSet::new();
        let mut sum = 0;
        rows.map(|row| {
            let new = numbers.is_valid(row) && seen.insert(numbers.value(row));
            sum += if new { numbers.value(row) } else { 0 };
            (!seen.is_empty()).then_some(sum)
        })
        .collect::<Vec<_>>()
    };
    let (running, mut falling) = (sums(&mut (0..n)), sums(&mut (0..n).rev()));
    falling.reverse();
    let frame = |row: usize| row.saturating_sub(99)..row + 1;
    for options in profiles() {
        let input = input(&whole.schema(), None);
        let types = input.types.clone();
        let functions = calls.iter().map(|call| (call.clone(), field(call, &whole))).collect();
        let window = Window::try_new(input, vec![], vec![], vec![], functions, options).unwrap();
        let result = down(&queue, &run(&window, &queue, &[up(&queue, &whole, &types)]).unwrap()[0]);
        let sum = |index: usize, row: usize| result.column(index).as_primitive::<Int64Type>().iter().nth(row).unwrap();
        let actual = |index: usize| result.column(index).as_primitive::<Int64Type>().iter().collect::<Vec<_>>();
        assert!(actual(0).iter().all(|sum| *sum == running[n - 1]));
        assert_eq!(actual(1), running);
        assert_eq!(actual(2), falling);
        let mut best: Option<&str> = None;
        for row in 0..n {
            best = best.max(words.is_valid(row).then(|| words.value(row)));
            assert_eq!(
                result.column(5).as_string::<i32>().is_valid(row).then(|| result.column(5).as_string::<i32>().value(row)),
                best
            );
        }
        for row in (0..n).step_by(997) {
            assert_eq!(sum(3, row), sums(&mut frame(row)).pop().flatten(), "row {row}");
            let best = frame(row).filter(|row| words.is_valid(*row)).map(|row| words.value(row)).max();
            assert_eq!(Some(result.column(6).as_string::<i32>().value(row)), best, "row {row}");
        }
        for row in (0..n).step_by(9973) {
            assert_eq!(sum(4, row), sums(&mut (row.saturating_sub(30_000)..row + 1)).pop().flatten(), "row {row}");
        }
    }
}

#[test]
fn large_partitions_use_the_tree() {
    // Every frame is looked at anew by the test: few rows a partition, or few frames.
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
fn computed_arguments_fail_as_rows_and_averages_as_such() {
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
fn what_has_no_device_form_is_refused() {
    let whole = sorted(10, 5);
    let options = Options::new(kernels::codegen::Profile::Cpu);
    let refused = |call: WindowCall, reason: &str| {
        let functions = vec![(call.clone(), field(&call, &whole))];
        let window = Window::try_new(input(&whole.schema(), None), vec![], vec![], vec![], functions, options.clone());
        let error = window.map(|_| ()).unwrap_err();
        assert!(matches!(&error, Error::Unsupported(text) if text.contains(reason)), "{error}");
    };
    let values =
        Frame { units: FrameUnits::Range { falls: false }, start: FrameBound::Preceding(3), end: FrameBound::CurrentRow };
    let by_key = |column: usize, units| {
        let count = call(aggregate_of(Count, None, DataType::Int64), Frame { units, ..values });
        let functions = vec![(count.clone(), field(&count, &whole))];
        Window::try_new(input(&whole.schema(), None), vec![], vec![col(column)], vec![], functions, options.clone()).is_ok()
    };
    let whole_numbers = FrameUnits::Range { falls: false };
    let floats = FrameUnits::FloatRange { falls: false };
    let wide = FrameUnits::Range128 { falls: false };
    let fits = [(NUMBER, whole_numbers), (FLOAT, whole_numbers), (NUMBER, floats), (FLOAT, floats), (NUMBER, wide)];
    assert_eq!(fits.map(|(column, units)| by_key(column, units)), [true, false, false, true, false]);
    refused(call(aggregate_of(Count, None, DataType::Int64), values), "several order keys");
    let some = Frame { units: FrameUnits::Groups, ..values };
    refused(call(distinct(aggregate_of(Avg, Some(FLOAT), DataType::Float64)), some), "DISTINCT");
    let many = Frame { units: FrameUnits::Rows, start: FrameBound::Preceding(5000), end: FrameBound::CurrentRow };
    refused(call(distinct(aggregate_of(Avg, Some(FLOAT), DataType::Float64)), many), "DISTINCT");
    refused(call(aggregate_of(ApproxDistinct, Some(TEXT), DataType::UInt64), many), "approx_distinct");
    let once = WindowFunction::Texts { texts: col(TEXT), skipped: 1, distinct: true };
    refused(call(once, many), "neither begin nor end");
    refused(call(WindowFunction::Ntile(0), Frame::RUNNING), "NTILE");
    refused(call(quantile(Quantile::Share(1.5), FLOAT), Frame::RUNNING), "1.5");
    refused(call(quantile(Quantile::Share(f64::NAN), FLOAT), Frame::RUNNING), "NaN");
    refused(call(quantile(Quantile::Share(0.5), DECIMAL), Frame::RUNNING), "Decimal128");
}

/// Rows a second, for people: `cargo test --release -p kernels --test window -- --ignored --nocapture`.
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
    let lag = WindowFunction::Lag { value: col(NUMBER), offset: 1, default: None, counted: Counted::All };
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
