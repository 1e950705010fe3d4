// SPDX-License-Identifier: Apache-2.0
//! Window functions against plain Rust that looks at every frame anew, in both profiles.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod support;

use std::collections::{HashSet, VecDeque};
use std::rc::Rc;
use std::sync::Arc;

use arrow::array::{
    Array, ArrayRef, AsArray, BooleanArray, Decimal128Array, Float64Array, Int64Array, ListArray, RecordBatch, StringArray,
    UInt32Array, UInt64Array, new_null_array,
};
use arrow::buffer::{NullBuffer, OffsetBuffer};
use arrow::compute::{cast, concat, concat_batches, take};
use arrow::datatypes::{DataType, Decimal128Type, Field, Float64Type, Int64Type, Schema};
use arrow::row::{RowConverter, SortField};
use columnar::{DeviceBatch, natural_types};
use device::Queue;
use futures::executor::block_on;
use kernels::Error;
use kernels::expr::AggregateFunction::*;
use kernels::expr::{AggregateFunction, ArithmeticOp, CompareOp, Expr, Literal, LiteralValue};
use kernels::ops::{Counted, Frame, FrameBound, FrameUnits, Options, Window, WindowCall, WindowFunction};
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

/// Ranges of rows that agree in some columns.
fn groups(batch: &RecordBatch, columns: &[usize]) -> Vec<std::ops::Range<usize>> {
    let n = batch.num_rows();
    if columns.is_empty() {
        return std::iter::once(0..n).collect();
    }
    let fields = columns.iter().map(|column| SortField::new(batch.column(*column).data_type().clone())).collect();
    let columns: Vec<ArrayRef> = columns.iter().map(|column| batch.column(*column).clone()).collect();
    let rows = RowConverter::new(fields).unwrap().convert_columns(&columns).unwrap();
    let starts: Vec<usize> = (0..n).filter(|i| *i == 0 || rows.row(*i) != rows.row(*i - 1)).chain([n]).collect();
    starts.windows(2).map(|ends| ends[0]..ends[1]).collect()
}

/// A row's partition, and the groups of peers in it with the row's own number among them.
struct Place {
    partition: std::ops::Range<usize>,
    peers: Rc<[std::ops::Range<usize>]>,
    own: usize,
    /// Of all rows.
    keys: Rc<[Option<i64>]>,
    floats: Rc<[Option<f64>]>,
    /// Whether these are of 32 bits.
    is_single: bool,
}

fn places(batch: &RecordBatch, partition: &[usize], order: &[usize]) -> Vec<Place> {
    let all: Vec<usize> = partition.iter().chain(order).copied().collect();
    let peers = groups(batch, &all);
    let mut places = vec![];
    let keys = order.first().and_then(|column| batch.column(*column).as_primitive_opt::<Int64Type>());
    let keys: Rc<[_]> = keys.map(|keys| keys.iter().collect()).unwrap_or_default();
    let floats = order.first().map(|column| batch.column(*column)).filter(|column| column.data_type().is_floating());
    let is_single = floats.is_some_and(|column| *column.data_type() == DataType::Float32);
    let floats = floats.map(|column| cast(column, &DataType::Float64).unwrap());
    let floats: Rc<[_]> = floats.map(|floats| floats.as_primitive::<Float64Type>().iter().collect()).unwrap_or_default();
    for partition in groups(batch, partition) {
        let first = peers.partition_point(|peers| peers.start < partition.start);
        let behind = peers.partition_point(|peers| peers.start < partition.end);
        let inside: Rc<[_]> = peers[first..behind].into();
        for row in partition.clone() {
            let own = inside.partition_point(|peers| peers.end <= row);
            let (partition, peers) = (partition.clone(), inside.clone());
            places.push(Place { partition, peers, own, keys: keys.clone(), floats: floats.clone(), is_single });
        }
    }
    places
}

fn frame_of(place: &Place, row: usize, frame: &Frame) -> std::ops::Range<usize> {
    let (first, behind) = (place.partition.start as i64, place.partition.end as i64);
    let most = if frame.units == FrameUnits::Range { i64::MAX as u64 } else { 1 << 40 };
    let bound = |bound: FrameBound, is_end: bool| -> i64 {
        if let (FrameUnits::FloatRange { falls }, FrameBound::Preceding(by) | FrameBound::Following(by)) = (frame.units, bound) {
            return by_float(place, row, (by, matches!(bound, FrameBound::Preceding(_)) != falls), falls, is_end) as i64;
        }
        let offset = match bound {
            FrameBound::UnboundedPreceding => return first,
            FrameBound::UnboundedFollowing => return behind,
            FrameBound::CurrentRow => 0,
            FrameBound::Preceding(k) => -(k.min(most) as i64),
            FrameBound::Following(k) => k.min(most) as i64,
        };
        if frame.units == FrameUnits::Rows {
            return (row as i64 + offset + i64::from(is_end)).clamp(first, behind);
        }
        if frame.units == FrameUnits::Range && offset != 0 {
            return by_key(place, row, offset, is_end);
        }
        let group = (place.own as i64).saturating_add(offset);
        match place.peers.get(group as usize) {
            _ if group < 0 => first,
            None => behind,
            Some(peers) if is_end => peers.end as i64,
            Some(peers) => peers.start as i64,
        }
    };
    let (start, end) = (bound(frame.start, false), bound(frame.end, true));
    start as usize..end.max(start) as usize
}

/// The first row of the partition whose key is not before this row's and an offset, or not before or the same.
fn by_key(place: &Place, row: usize, offset: i64, is_end: bool) -> i64 {
    let Some(key) = place.keys[row] else {
        let peers = &place.peers[place.own];
        return (if is_end { peers.end } else { peers.start }) as i64;
    };
    let values: Vec<(usize, i64)> = place.partition.clone().filter_map(|row| Some((row, place.keys[row]?))).collect();
    let falls = values[values.len() - 1].1 < values[0].1;
    let target = i128::from(key) + if falls { -i128::from(offset) } else { i128::from(offset) };
    // Beyond the key's type there is no bound, and NULLs are in the frame.
    if i64::try_from(target).is_err() {
        return match (offset < 0, is_end) {
            (true, false) => place.partition.start as i64,
            (true, true) => values[0].0 as i64,
            (false, _) => place.partition.end as i64,
        };
    }
    let before = |key: i64| match is_end {
        true => {
            if falls {
                i128::from(key) >= target
            } else {
                i128::from(key) <= target
            }
        }
        false => {
            if falls {
                i128::from(key) > target
            } else {
                i128::from(key) < target
            }
        }
    };
    let found = values.iter().find(|(_, key)| !before(*key));
    found.map_or(values[values.len() - 1].0 + 1, |(row, _)| *row) as i64
}

/// The same for floats, whose bounds are floats as well. `by`: bits of an offset, and whether it goes off.
fn by_float(place: &Place, row: usize, by: (u64, bool), falls: bool, is_end: bool) -> usize {
    let Some(own) = place.floats[row] else {
        let peers = &place.peers[place.own];
        return if is_end { peers.end } else { peers.start };
    };
    let target = match (place.is_single, by) {
        (true, (bits, true)) => f64::from(own as f32 - f32::from_bits(bits as u32)),
        (true, (bits, false)) => f64::from(own as f32 + f32::from_bits(bits as u32)),
        (false, (bits, true)) => own - f64::from_bits(bits),
        (false, (bits, false)) => own + f64::from_bits(bits),
    };
    let before = |key: &f64| {
        let order = if falls { target.total_cmp(key) } else { key.total_cmp(&target) };
        order.is_lt() || is_end && order.is_eq()
    };
    let mut rows = place.partition.clone().filter(|row| place.floats[*row].is_some());
    let last = rows.clone().next_back().unwrap();
    rows.find(|row| !before(&place.floats[*row].unwrap())).unwrap_or(last + 1)
}

/// The rows that do not see as many values behind them, where their partition has some: as DataFusion's operator of bounded memory
/// goes from row to row, with the distances from value to value.
fn out_of_sight(values: &ArrayRef, places: &[Place], ahead: usize) -> HashSet<usize> {
    let mut hidden = HashSet::new();
    let mut sight: VecDeque<usize> = VecDeque::new();
    for (row, Place { partition, .. }) in places.iter().enumerate() {
        if row == partition.start {
            sight.clear();
        }
        if sight.is_empty() {
            let behind: Vec<usize> =
                (row + 1..partition.end).filter(|row| values.is_valid(*row)).take(ahead.saturating_add(1)).collect();
            sight = behind.iter().scan(row, |last, row| Some(row - std::mem::replace(last, *row))).collect();
        } else if sight.len() == ahead {
            let next = row + sight.iter().sum::<usize>() + 1;
            if next < partition.end && values.is_valid(next) {
                sight.push_back(1);
            }
        }
        if sight.len() < ahead {
            hidden.insert(row);
        }
        if let Some(first) = sight.front_mut() {
            *first -= 1;
            if *first == 0 {
                sight.pop_front();
            }
        }
    }
    hidden
}

/// A function's values, each frame looked at anew.
fn expected(batch: &RecordBatch, call: &WindowCall, partition: &[usize], order: &[usize]) -> ArrayRef {
    let places = places(batch, partition, order);
    let n = batch.num_rows();
    let numbers = |of: &dyn Fn(usize, &Place) -> u64| -> ArrayRef {
        Arc::new(UInt64Array::from_iter_values((0..n).map(|row| of(row, &places[row]))))
    };
    let floats = |of: &dyn Fn(usize, &Place) -> f64| -> ArrayRef {
        Arc::new(Float64Array::from_iter_values((0..n).map(|row| of(row, &places[row]))))
    };
    // The row whose value is taken; behind the last one, the default.
    let taken = |value: &Expr, default: Option<ArrayRef>, of: &dyn Fn(usize, &Place) -> Option<usize>| -> ArrayRef {
        let Expr::Column(column) = value else { panic!("no column") };
        let column = batch.column(*column);
        let default = default.unwrap_or_else(|| new_null_array(column.data_type(), 1));
        let all = concat(&[column, &default]).unwrap();
        let rows: UInt32Array = (0..n).map(|row| Some(of(row, &places[row]).unwrap_or(n) as u32)).collect();
        take(&all, &rows, None).unwrap()
    };
    match &call.function {
        WindowFunction::RowNumber => numbers(&|row, place| (row - place.partition.start + 1) as u64),
        WindowFunction::Rank => numbers(&|_, place| (place.peers[place.own].start - place.partition.start + 1) as u64),
        WindowFunction::DenseRank => numbers(&|_, place| place.own as u64 + 1),
        WindowFunction::PercentRank => floats(&|_, place| {
            let before = place.peers[place.own].start - place.partition.start;
            before as f64 / (place.partition.len() as f64 - 1.0).max(1.0)
        }),
        WindowFunction::CumeDist => {
            floats(&|_, place| (place.peers[place.own].end - place.partition.start) as f64 / place.partition.len() as f64)
        }
        WindowFunction::Ntile(buckets) => numbers(&|row, place| {
            let (len, i) = (place.partition.len() as u64, (row - place.partition.start) as u64);
            let sizes = (0..*buckets).map(|bucket| len / buckets + u64::from(bucket < len % buckets));
            let ends = sizes.scan(0, |end, size| {
                *end += size;
                Some(*end)
            });
            ends.take_while(|end| *end <= i).count() as u64 + 1
        }),
        WindowFunction::Lag { value, offset, default, counted } => {
            let default = default.as_ref().map(|default| match &default.value {
                LiteralValue::Int(value) => Arc::new(Int64Array::from(vec![*value as i64])) as ArrayRef,
                LiteralValue::Bytes(text) => Arc::new(StringArray::from(vec![std::str::from_utf8(text).unwrap()])),
                other => panic!("{other:?}"),
            });
            let Expr::Column(column) = value else { panic!("{value:?}") };
            let hidden = match *offset {
                ..=-2 => out_of_sight(batch.column(*column), &places, offset.unsigned_abs() as usize),
                _ => HashSet::new(),
            };
            taken(value, default, &|row, place| {
                let has_value = |row: &usize| batch.column(*column).is_valid(*row);
                let nth = offset.unsigned_abs().saturating_sub(1) as usize;
                match (*counted, *offset) {
                    (Counted::All, _) => {}
                    (_, 1..) => return (place.partition.start..row).rev().filter(has_value).nth(nth),
                    (_, 0) => return Some(row).filter(has_value),
                    (Counted::InSight, _) if hidden.contains(&row) => return None,
                    _ => return (row + 1..place.partition.end).filter(has_value).nth(nth),
                }
                let to = (row as i128) - i128::from(*offset);
                (to >= place.partition.start as i128 && to < place.partition.end as i128).then_some(to as usize)
            })
        }
        WindowFunction::NthValue(value, number) | WindowFunction::NthKnown(value, number) => taken(value, None, &|row, place| {
            let Expr::Column(column) = value else { panic!("{value:?}") };
            let passes_over = matches!(call.function, WindowFunction::NthKnown(..));
            let frame = frame_of(place, row, &call.frame);
            let frame: Vec<usize> = frame.filter(|row| !passes_over || batch.column(*column).is_valid(*row)).collect();
            match *number {
                0 => None,
                1.. => frame.into_iter().nth(*number as usize - 1),
                _ => frame.into_iter().rev().nth(number.unsigned_abs() as usize - 1),
            }
        }),
        WindowFunction::Values(value) => {
            let Expr::Column(column) = value else { panic!("{value:?}") };
            let frames: Vec<_> = (0..n).map(|row| frame_of(&places[row], row, &call.frame)).collect();
            let rows: UInt32Array = frames.iter().cloned().flatten().map(|row| Some(row as u32)).collect();
            let values = take(batch.column(*column), &rows, None).unwrap();
            let item = Arc::new(Field::new("item", values.data_type().clone(), true));
            let offsets = OffsetBuffer::from_lengths(frames.iter().map(|frame| frame.len()));
            let some = frames.iter().map(|frame| !frame.is_empty()).collect::<NullBuffer>();
            Arc::new(ListArray::new(item, offsets, values, Some(some)))
        }
        WindowFunction::Aggregate(aggregate) => {
            let keep = |row: &usize| match &aggregate.filter {
                Some(Expr::Column(column)) => batch.column(*column).as_boolean().value(*row),
                _ => true,
            };
            let rows = |row: usize| frame_of(&places[row], row, &call.frame).filter(keep).collect::<Vec<usize>>();
            let [Expr::Column(column)] = aggregate.arguments.as_slice() else {
                return Arc::new(Int64Array::from_iter_values((0..n).map(|row| rows(row).len() as i64)));
            };
            let column = batch.column(*column);
            let key = SortField::new(column.data_type().clone());
            let values = RowConverter::new(vec![key]).unwrap().convert_columns(std::slice::from_ref(column)).unwrap();
            let rows = |row: usize| {
                let mut seen = HashSet::new();
                let first = |row: &usize| !aggregate.distinct || seen.insert(values.row(*row));
                rows(row).into_iter().filter(|row| column.is_valid(*row)).filter(first).collect::<Vec<_>>().into_iter()
            };
            match (aggregate.function, column.data_type()) {
                (Count, _) => Arc::new(Int64Array::from_iter_values((0..n).map(|row| rows(row).count() as i64))),
                (Min | Max, DataType::Utf8) => {
                    let texts = column.as_string::<i32>();
                    let texts = |row: usize| rows(row).map(|row| texts.value(row));
                    let best = |row| if aggregate.function == Min { texts(row).min() } else { texts(row).max() };
                    Arc::new((0..n).map(best).collect::<StringArray>())
                }
                (Sum | Min | Max, DataType::Int64) => {
                    let values = column.as_primitive::<Int64Type>();
                    let values = |row: usize| rows(row).map(|row| values.value(row));
                    Arc::new(
                        (0..n)
                            .map(|row| match aggregate.function {
                                Sum => values(row).reduce(i64::wrapping_add),
                                Min => values(row).min(),
                                _ => values(row).max(),
                            })
                            .collect::<Int64Array>(),
                    )
                }
                (_, DataType::Float64) => {
                    // Sums of eighths are exact.
                    let values = column.as_primitive::<Float64Type>();
                    let values = |row: usize| rows(row).map(|row| values.value(row));
                    Arc::new(
                        (0..n)
                            .map(|row| match aggregate.function {
                                Sum => values(row).reduce(|a, b| a + b),
                                Avg => values(row).reduce(|a, b| a + b).map(|sum| sum / values(row).count() as f64),
                                Min => values(row).reduce(f64::min),
                                _ => values(row).reduce(f64::max),
                            })
                            .collect::<Float64Array>(),
                    )
                }
                (function, DataType::Decimal128(_, scale)) => {
                    let values = column.as_primitive::<Decimal128Type>();
                    let values = |row: usize| rows(row).map(|row| values.value(row));
                    let result = (0..n).map(|row| match function {
                        Sum => values(row).reduce(|a, b| a + b),
                        Avg => values(row).reduce(|a, b| a + b).map(|sum| sum * 10_000 / values(row).count() as i128),
                        Min => values(row).min(),
                        _ => values(row).max(),
                    });
                    let DataType::Decimal128(precision, result_scale) = aggregate.data_type else { panic!("{scale}") };
                    Arc::new(result.collect::<Decimal128Array>().with_precision_and_scale(precision, result_scale).unwrap())
                }
                other => panic!("{other:?}"),
            }
        }
    }
}

fn field(call: &WindowCall, batch: &RecordBatch) -> Field {
    use WindowFunction::*;
    let data_type = match &call.function {
        RowNumber | Rank | DenseRank | Ntile(_) => DataType::UInt64,
        PercentRank | CumeDist => DataType::Float64,
        Lag { value, .. } | NthValue(value, _) | NthKnown(value, _) => value.data_type(&batch.schema()).unwrap(),
        Values(value) => DataType::new_list(value.data_type(&batch.schema()).unwrap(), true),
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
        let (actual, expected) = (actual.column(index + 1), expected(batch, call, partition, order));
        if let Some(row) = (0..batch.num_rows()).find(|row| actual.slice(*row, 1).as_ref() != expected.slice(*row, 1).as_ref()) {
            let (actual, expected) = (actual.slice(row, 1), expected.slice(row, 1));
            panic!("{call:?}, {:?}, row {row}: {actual:?} should be {expected:?}", options.profile);
        }
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
        frames.push(Frame { units, start: Following(2), end: Following(u64::MAX) });
    }
    frames.push(Frame { units: FrameUnits::Range, start: Following(0), end: UnboundedFollowing });
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
        keys(&|key| (key < 20).then_some(key * 2 - 7)),
        keys(&|key| (key > 4).then_some(key)),
        keys(&|key| (key < 15).then_some(-3 * key)),
        keys(&|key| (key > 2).then_some(i64::MAX - key)),
        keys(&|key| Some(i64::MIN + key)),
    ];
    let ends = [
        (Preceding(2), CurrentRow),
        (Preceding(3), Following(2)),
        (Following(1), Following(4)),
        (UnboundedPreceding, Following(2)),
        (Preceding(5), Preceding(2)),
        (Preceding(u64::MAX), UnboundedFollowing),
        (Preceding(1), Following(i64::MAX as u64)),
    ];
    let functions = [
        aggregate_of(Sum, Some(NUMBER), DataType::Int64),
        WindowFunction::NthValue(col(NUMBER), 1),
        WindowFunction::NthValue(col(NUMBER), -1),
    ];
    let calls = ends
        .iter()
        .enumerate()
        .map(|(at, (start, end))| call(functions[at % 3].clone(), Frame { units: FrameUnits::Range, start: *start, end: *end }));
    let calls: Vec<_> = calls.chain([call(WindowFunction::Rank, Frame::RUNNING)]).collect();
    for options in profiles() {
        for batch in &batches {
            check(batch, &[500, 700], &[PARTITION], &[ORDER], &calls, &options);
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
    let ends = |of: &dyn Fn(f64) -> u64| {
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
        let single_bits = |by: f64| u64::from((by.min(1e38) as f32).to_bits());
        for (column, ends) in [(doubles, ends(&f64::to_bits)), (singles, ends(&single_bits))] {
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
        (FrameBound::Preceding(u64::MAX), FrameBound::CurrentRow),
    ]);
    let by_key = by_key.map(|(start, end)| Frame { units: FrameUnits::Range, start, end });
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
    let values = Frame { units: FrameUnits::Range, start: FrameBound::Preceding(3), end: FrameBound::CurrentRow };
    let by_key = |column: usize, units| {
        let count = call(aggregate_of(Count, None, DataType::Int64), Frame { units, ..values });
        let functions = vec![(count.clone(), field(&count, &whole))];
        Window::try_new(input(&whole.schema(), None), vec![], vec![col(column)], vec![], functions, options.clone()).is_ok()
    };
    let floats = FrameUnits::FloatRange { falls: false };
    let fits = [(NUMBER, FrameUnits::Range), (FLOAT, FrameUnits::Range), (NUMBER, floats), (FLOAT, floats)];
    assert_eq!(fits.map(|(column, units)| by_key(column, units)), [true, false, false, true]);
    refused(call(aggregate_of(Count, None, DataType::Int64), values), "several order keys");
    let some = Frame { units: FrameUnits::Groups, ..values };
    refused(call(distinct(aggregate_of(Avg, Some(FLOAT), DataType::Float64)), some), "DISTINCT");
    let many = Frame { units: FrameUnits::Rows, start: FrameBound::Preceding(5000), end: FrameBound::CurrentRow };
    refused(call(distinct(aggregate_of(Avg, Some(FLOAT), DataType::Float64)), many), "DISTINCT");
    refused(call(aggregate_of(ApproxDistinct, Some(TEXT), DataType::UInt64), Frame::RUNNING), "approx_distinct");
    refused(call(WindowFunction::Ntile(0), Frame::RUNNING), "NTILE");
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
