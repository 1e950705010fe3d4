// SPDX-License-Identifier: Apache-2.0
//! Medians and percentiles of frames.

use super::*;

pub fn quantile(quantile: Quantile, column: usize) -> WindowFunction {
    WindowFunction::Quantile { quantile, value: col(column), distinct: false }
}

#[test]
fn quantiles_of_every_frame() {
    device::skip_unless_turn!(0);
    use Quantile::{Median, Percentile};
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
        quantile(Percentile(0.3), FLOAT),
        quantile(Median, NUMBER),
        quantile(Median, DECIMAL),
        quantile(Percentile(0.85), NUMBER),
        quantile(Percentile(0.0), FLOAT),
        quantile(Percentile(1.0), FLOAT),
    ];
    let distinct = |function: &WindowFunction| match function {
        WindowFunction::Quantile { quantile, value, .. } => {
            WindowFunction::Quantile { quantile: *quantile, value: value.clone(), distinct: true }
        }
        other => other.clone(),
    };
    let by_key = [(FrameBound::Preceding(3), FrameBound::Following(2)), (FrameBound::Following(1), FrameBound::Following(6))];
    let frames = frames_and_by_key(by_key);
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

/// Quantiles of values most of which occur several times in a frame.
#[test]
fn quantiles_of_distinct_values_in_large_frames() {
    let n = SIZES[4];
    let floats: Float64Array =
        (0..n).map(|i| Some((random(i, 1) % 20_000) as f64 / 3.0).filter(|_| !random(i, 2).is_multiple_of(9))).collect();
    let whole = batch(vec![("float", Arc::new(floats.clone()) as ArrayRef, true)]);
    let queue = queue();
    let value = || WindowFunction::Quantile { quantile: Quantile::Percentile(0.25), value: col(0), distinct: true };
    let frame = Frame { units: FrameUnits::Rows, start: FrameBound::Preceding(30_000), end: FrameBound::Following(1000) };
    let of_frame = call(value(), frame);
    let expected = |row: usize| {
        let rows = row.saturating_sub(30_000)..(row + 1001).min(n);
        let mut values: Vec<f64> = rows.filter(|row| floats.is_valid(*row)).map(|row| floats.value(row)).collect();
        values.sort_by(f64::total_cmp);
        values.dedup();
        let position = 0.25 * (values.len() - 1) as f64;
        let (low, high) = (values[position.floor() as usize], values[position.ceil() as usize]);
        low + (high - low) * ((position.fract() * 1e6).trunc() / 1e6)
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
    // The oracle is quadratic, hence few frames.
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
