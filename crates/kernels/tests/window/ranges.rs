// SPDX-License-Identifier: Apache-2.0
//! Frames by the order key (RANGE).

use super::*;

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
        // The keys do not determine the frame.
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
        let frames = ends.map(|(start, end)| Frame { units: FrameUnits::Range { descending: falls }, start, end });
        let calls = frames.into_iter().enumerate().map(|(at, frame)| call(functions[at % 3].clone(), frame));
        calls.chain([call(WindowFunction::Rank, Frame::RUNNING)]).collect()
    };
    for options in profiles() {
        for (batch, falls) in &batches {
            check(batch, &[500, 700], &[PARTITION], &[ORDER], &calls(*falls), &options);
        }
    }
}

/// Decimals and offsets beyond 64 bits.
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
    let calls = |falls: bool| {
        ends.map(|(start, end)| call(sum(), Frame { units: FrameUnits::Range128 { descending: falls }, start, end }))
    };
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
            let units = FrameUnits::FloatRange { descending: falls };
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
