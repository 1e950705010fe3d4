// SPDX-License-Identifier: Apache-2.0
//! The oracle: window functions in plain Rust that evaluates every frame from scratch.

use std::collections::{HashSet, VecDeque};
use std::rc::Rc;
use std::sync::Arc;

use arrow::array::{
    Array, ArrayRef, AsArray, Decimal128Array, Float64Array, Int64Array, LargeStringArray, ListArray, RecordBatch, StringArray,
    UInt32Array, UInt64Array, new_null_array,
};
use arrow::buffer::{NullBuffer, OffsetBuffer};
use arrow::compute::{cast, concat, take};
use arrow::datatypes::{DataType, Decimal128Type, Field, Float64Type, Int64Type};
use arrow::row::{RowConverter, SortField};
use kernels::expr::AggregateFunction::*;
use kernels::expr::{Expr, LiteralValue};
use kernels::ops::{Frame, FrameBound, FrameUnits, NullTreatment, Quantile, WindowCall, WindowFunction};

/// Ranges of adjacent rows with equal values in some columns.
pub fn groups(batch: &RecordBatch, columns: &[usize]) -> Vec<std::ops::Range<usize>> {
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

/// A row's partition, its groups of peers, and the position of the row's group.
struct Position {
    partition: std::ops::Range<usize>,
    peers: Rc<[std::ops::Range<usize>]>,
    own: usize,
    /// Keys of all rows.
    keys: Rc<[Option<i128>]>,
    floats: Rc<[Option<f64>]>,
    /// Whether the floats have 32 bits.
    is_single: bool,
}

fn positions(batch: &RecordBatch, partition: &[usize], order: &[usize]) -> Vec<Position> {
    let all: Vec<usize> = partition.iter().chain(order).copied().collect();
    let peers = groups(batch, &all);
    let mut positions = vec![];
    let keys: Rc<[_]> = match order.first().map(|column| batch.column(*column)) {
        Some(column) if let Some(keys) = column.as_primitive_opt::<Int64Type>() => {
            keys.iter().map(|key| key.map(i128::from)).collect()
        }
        Some(column) if let Some(keys) = column.as_primitive_opt::<Decimal128Type>() => keys.iter().collect(),
        _ => Rc::default(),
    };
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
            positions.push(Position { partition, peers, own, keys: keys.clone(), floats: floats.clone(), is_single });
        }
    }
    positions
}

/// The first row of each distinct value; the last one, for frames that do not begin with the
/// partition.
fn once<T: PartialEq>(rows: impl DoubleEndedIterator<Item = usize>, frame: &Frame, value: impl Fn(usize) -> T) -> Vec<usize> {
    let mut seen = Vec::new();
    let mut keep = |row: &usize| {
        let value = value(*row);
        let is_new = !seen.contains(&value);
        if is_new {
            seen.push(value);
        }
        is_new
    };
    if frame.start == FrameBound::UnboundedPreceding {
        return rows.filter(&mut keep).collect();
    }
    let mut rows: Vec<_> = rows.rev().filter(&mut keep).collect();
    rows.reverse();
    rows
}

fn frame_of(position: &Position, row: usize, frame: &Frame) -> std::ops::Range<usize> {
    let (first, behind) = (position.partition.start as i64, position.partition.end as i64);
    let bound = |bound: FrameBound, is_end: bool| -> i64 {
        if let (FrameUnits::FloatRange { descending: falls }, FrameBound::Preceding(by) | FrameBound::Following(by)) =
            (frame.units, bound)
        {
            return by_float(position, row, (by as u64, matches!(bound, FrameBound::Preceding(_)) != falls), falls, is_end)
                as i64;
        }
        let offset = match bound {
            FrameBound::UnboundedPreceding => return first,
            FrameBound::UnboundedFollowing => return behind,
            FrameBound::CurrentRow => 0,
            FrameBound::Preceding(k) => -(k.min(i128::MAX as u128) as i128),
            FrameBound::Following(k) => k.min(i128::MAX as u128) as i128,
        };
        if let Some((limits, falls)) = limits_of(frame.units)
            && offset != 0
        {
            return by_key(position, row, (offset, falls), limits, is_end);
        }
        // Offsets are clamped to more rows than any partition has.
        let offset = offset.clamp(-(1 << 40), 1 << 40) as i64;
        if frame.units == FrameUnits::Rows {
            return (row as i64 + offset + i64::from(is_end)).clamp(first, behind);
        }
        let group = (position.own as i64).saturating_add(offset);
        match position.peers.get(group as usize) {
            _ if group < 0 => first,
            None => behind,
            Some(peers) if is_end => peers.end as i64,
            Some(peers) => peers.start as i64,
        }
    };
    let (start, end) = (bound(frame.start, false), bound(frame.end, true));
    start as usize..end.max(start) as usize
}

/// The least and greatest key of frames by integer keys, and whether the keys descend.
fn limits_of(units: FrameUnits) -> Option<((i128, i128), bool)> {
    match units {
        FrameUnits::Range { descending: falls } => Some(((i64::MIN.into(), i64::MAX.into()), falls)),
        FrameUnits::Range128 { descending: falls } => Some(((i128::MIN, i128::MAX), falls)),
        _ => None,
    }
}

/// The first row of the partition at or behind this row's key plus an offset, or strictly behind
/// it.
fn by_key(position: &Position, row: usize, (offset, falls): (i128, bool), (least, most): (i128, i128), is_end: bool) -> i64 {
    let Some(key) = position.keys[row] else {
        let peers = &position.peers[position.own];
        let own = (if is_end { peers.end } else { peers.start }) as i64;
        // Frame bounds do not decrease from row to row.
        let last = (position.partition.start..row).rev().find(|row| position.keys[*row].is_some()).filter(|_| offset > 0);
        return last.map_or(own, |last| own.max(by_key(position, last, (offset, falls), (least, most), is_end)));
    };
    let values: Vec<(usize, i128)> = position.partition.clone().filter_map(|row| Some((row, position.keys[row]?))).collect();
    let target = key.checked_add(if falls { -offset } else { offset }).filter(|target| (least..=most).contains(target));
    // A bound beyond the key's type is unbounded, so that the frame includes NULLs.
    let Some(target) = target else {
        return match (offset < 0, is_end) {
            (true, false) => position.partition.start as i64,
            (true, true) => values[0].0 as i64,
            (false, _) => position.partition.end as i64,
        };
    };
    let before = |key: i128| match (is_end, falls) {
        (true, true) => key >= target,
        (true, false) => key <= target,
        (false, true) => key > target,
        (false, false) => key < target,
    };
    let found = values.iter().find(|(_, key)| !before(*key));
    found.map_or(values[values.len() - 1].0 + 1, |(row, _)| *row) as i64
}

/// [`by_key`] for floats. `by`: bits of an offset, and whether it is subtracted.
fn by_float(position: &Position, row: usize, by: (u64, bool), falls: bool, is_end: bool) -> usize {
    let Some(own) = position.floats[row] else {
        let peers = &position.peers[position.own];
        return if is_end { peers.end } else { peers.start };
    };
    let target = match (position.is_single, by) {
        (true, (bits, true)) => f64::from(own as f32 - f32::from_bits(bits as u32)),
        (true, (bits, false)) => f64::from(own as f32 + f32::from_bits(bits as u32)),
        (false, (bits, true)) => own - f64::from_bits(bits),
        (false, (bits, false)) => own + f64::from_bits(bits),
    };
    let before = |key: &f64| {
        let order = if falls { target.total_cmp(key) } else { key.total_cmp(&target) };
        order.is_lt() || is_end && order.is_eq()
    };
    let mut rows = position.partition.clone().filter(|row| position.floats[*row].is_some());
    let last = rows.clone().next_back().unwrap();
    rows.find(|row| !before(&position.floats[*row].unwrap())).unwrap_or(last + 1)
}

/// The rows with fewer than `ahead` values behind them in a partition that has values. The scan
/// follows DataFusion's bounded-memory operator, by the distances between values.
fn out_of_sight(values: &ArrayRef, positions: &[Position], ahead: usize) -> HashSet<usize> {
    let mut hidden = HashSet::new();
    let mut sight: VecDeque<usize> = VecDeque::new();
    for (row, Position { partition, .. }) in positions.iter().enumerate() {
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

/// A function's values, each frame evaluated from scratch.
pub fn expected(batch: &RecordBatch, call: &WindowCall, partition: &[usize], order: &[usize]) -> ArrayRef {
    let positions = positions(batch, partition, order);
    let n = batch.num_rows();
    let numbers = |of: &dyn Fn(usize, &Position) -> u64| -> ArrayRef {
        Arc::new(UInt64Array::from_iter_values((0..n).map(|row| of(row, &positions[row]))))
    };
    let floats = |of: &dyn Fn(usize, &Position) -> f64| -> ArrayRef {
        Arc::new(Float64Array::from_iter_values((0..n).map(|row| of(row, &positions[row]))))
    };
    // The row of the value; beyond the last one, the default.
    let taken = |value: &Expr, default: Option<ArrayRef>, of: &dyn Fn(usize, &Position) -> Option<usize>| -> ArrayRef {
        let Expr::Column(column) = value else { panic!("no column") };
        let column = batch.column(*column);
        let default = default.unwrap_or_else(|| new_null_array(column.data_type(), 1));
        let all = concat(&[column, &default]).unwrap();
        let rows: UInt32Array = (0..n).map(|row| Some(of(row, &positions[row]).unwrap_or(n) as u32)).collect();
        take(&all, &rows, None).unwrap()
    };
    match &call.function {
        WindowFunction::RowNumber => numbers(&|row, position| (row - position.partition.start + 1) as u64),
        WindowFunction::Rank => {
            numbers(&|_, position| (position.peers[position.own].start - position.partition.start + 1) as u64)
        }
        WindowFunction::DenseRank => numbers(&|_, position| position.own as u64 + 1),
        WindowFunction::PercentRank => floats(&|_, position| {
            let before = position.peers[position.own].start - position.partition.start;
            before as f64 / (position.partition.len() as f64 - 1.0).max(1.0)
        }),
        WindowFunction::CumeDist => floats(&|_, position| {
            (position.peers[position.own].end - position.partition.start) as f64 / position.partition.len() as f64
        }),
        WindowFunction::Ntile(buckets) => numbers(&|row, position| {
            let (len, i) = (position.partition.len() as u64, (row - position.partition.start) as u64);
            let sizes = (0..*buckets).map(|bucket| len / buckets + u64::from(bucket < len % buckets));
            let ends = sizes.scan(0, |end, size| {
                *end += size;
                Some(*end)
            });
            ends.take_while(|end| *end <= i).count() as u64 + 1
        }),
        WindowFunction::Lag { value, offset, default, nulls } => {
            let default = default.as_ref().map(|default| match &default.value {
                LiteralValue::Int(value) => Arc::new(Int64Array::from(vec![*value as i64])) as ArrayRef,
                LiteralValue::Bytes(text) => Arc::new(StringArray::from(vec![std::str::from_utf8(text).unwrap()])),
                other => panic!("{other:?}"),
            });
            let Expr::Column(column) = value else { panic!("{value:?}") };
            let hidden = match *offset {
                ..=-2 => out_of_sight(batch.column(*column), &positions, offset.unsigned_abs() as usize),
                _ => HashSet::new(),
            };
            taken(value, default, &|row, position| {
                let has_value = |row: &usize| batch.column(*column).is_valid(*row);
                let nth = offset.unsigned_abs().saturating_sub(1) as usize;
                match (*nulls, *offset) {
                    (NullTreatment::Respect, _) => {}
                    (_, 1..) => return (position.partition.start..row).rev().filter(has_value).nth(nth),
                    (_, 0) => return Some(row).filter(has_value),
                    (NullTreatment::IgnoreBounded, _) if hidden.contains(&row) => return None,
                    _ => return (row + 1..position.partition.end).filter(has_value).nth(nth),
                }
                let to = (row as i128) - i128::from(*offset);
                (to >= position.partition.start as i128 && to < position.partition.end as i128).then_some(to as usize)
            })
        }
        WindowFunction::NthValue(value, number) | WindowFunction::NthNonNull(value, number) => {
            taken(value, None, &|row, position| {
                let Expr::Column(column) = value else { panic!("{value:?}") };
                let passes_over = matches!(call.function, WindowFunction::NthNonNull(..));
                let frame = frame_of(position, row, &call.frame);
                let frame: Vec<usize> = frame.filter(|row| !passes_over || batch.column(*column).is_valid(*row)).collect();
                match *number {
                    0 => None,
                    1.. => frame.into_iter().nth(*number as usize - 1),
                    _ => frame.into_iter().rev().nth(number.unsigned_abs() as usize - 1),
                }
            })
        }
        WindowFunction::ArrayAgg { value, ignore_nulls: known, distinct } => {
            let Expr::Column(column) = value else { panic!("{value:?}") };
            let column_of = batch.column(*column);
            let counted = |row: usize| {
                let rows = frame_of(&positions[row], row, &call.frame).filter(|row| !known || column_of.is_valid(*row));
                if *distinct { once(rows, &call.frame, |row| column_of.slice(row, 1).to_data()) } else { rows.collect() }
            };
            let frames: Vec<_> = (0..n).map(counted).collect();
            let rows: UInt32Array = frames.iter().flatten().map(|row| Some(*row as u32)).collect();
            let values = take(batch.column(*column), &rows, None).unwrap();
            let item = Arc::new(Field::new("item", values.data_type().clone(), true));
            let offsets = OffsetBuffer::from_lengths(frames.iter().map(|frame| frame.len()));
            let some = frames.iter().map(|frame| !frame.is_empty()).collect::<NullBuffer>();
            Arc::new(ListArray::new(item, offsets, values, Some(some)))
        }
        WindowFunction::StringAgg { strings: texts, skipped, distinct } => {
            let Expr::Column(column) = texts else { panic!("{texts:?}") };
            let texts = batch.column(*column).as_string::<i64>();
            let joined = |row: usize| {
                let known = frame_of(&positions[row], row, &call.frame).filter(|row| texts.is_valid(*row));
                let known = if *distinct { once(known, &call.frame, |row| texts.value(row)) } else { known.collect() };
                let known: Vec<&str> = known.into_iter().map(|row| texts.value(row)).collect();
                (!known.is_empty()).then(|| known.concat().split_off(*skipped as usize))
            };
            Arc::new((0..n).map(joined).collect::<LargeStringArray>())
        }
        WindowFunction::Quantile { quantile, value, distinct } => {
            let Expr::Column(column) = value else { panic!("{value:?}") };
            let column = batch.column(*column);
            let known = |row: usize| frame_of(&positions[row], row, &call.frame).filter(|row| column.is_valid(*row));
            if let Some(decimals) = column.as_primitive_opt::<Decimal128Type>() {
                let result = (0..n).map(|row| {
                    let mut values: Vec<i128> = known(row).map(|row| decimals.value(row)).collect();
                    values.sort();
                    if *distinct {
                        values.dedup();
                    }
                    let last = values.len().checked_sub(1)?;
                    Some((values[last / 2] + values[last.div_ceil(2)]) / 2)
                });
                return Arc::new(result.collect::<Decimal128Array>().with_data_type(column.data_type().clone()));
            }
            let is_single = *column.data_type() == DataType::Float32;
            let floats = cast(column, &DataType::Float64).unwrap();
            let floats = floats.as_primitive::<Float64Type>();
            let result = (0..n).map(|row| {
                let mut values: Vec<f64> = known(row).map(|row| floats.value(row)).collect();
                values.sort_by(f64::total_cmp);
                if *distinct {
                    values.dedup_by_key(|value| value.to_bits());
                }
                let last = values.len().checked_sub(1)?;
                let share = match quantile {
                    Quantile::Median if last % 2 == 0 => return Some(values[last / 2]),
                    Quantile::Median if is_single => {
                        return Some(f64::from((values[last / 2] as f32 + values[last / 2 + 1] as f32) / 2.0));
                    }
                    Quantile::Median => return Some((values[last / 2] + values[last / 2 + 1]) / 2.0),
                    Quantile::Percentile(share) => share,
                };
                let position = share * last as f64;
                let (low, part) = (position as usize, position.fract());
                let weight = (part * 1e6).trunc() / 1e6;
                Some(if part == 0.0 { values[low] } else { values[low] + (values[low + 1] - values[low]) * weight })
            });
            cast(&result.collect::<Float64Array>(), column.data_type()).unwrap()
        }
        WindowFunction::Aggregate(aggregate) => {
            let keep = |row: &usize| match &aggregate.filter {
                Some(Expr::Column(column)) => batch.column(*column).as_boolean().value(*row),
                _ => true,
            };
            let rows = |row: usize| frame_of(&positions[row], row, &call.frame).filter(keep).collect::<Vec<usize>>();
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
