// SPDX-License-Identifier: Apache-2.0
//! `array_agg`, `string_agg` and DISTINCT values of frames.

use super::*;

fn values(column: usize, known: bool, distinct: bool) -> WindowFunction {
    WindowFunction::ArrayAgg { value: col(column), ignore_nulls: known, distinct }
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
                .enumerate()
                .map(|(at, (frame, column))| call(values(*column, at % 3 == 0, false), *frame))
                .collect();
            check(&batch, &[400, 200], &[PARTITION], &[ORDER], &calls, &options);
        }
        // The first of equal values counts; the last, for frames that only end with the partition.
        let (begins, ends) = (FrameBound::UnboundedPreceding, FrameBound::UnboundedFollowing);
        let frames = [
            Frame { units: FrameUnits::Rows, start: begins, end: FrameBound::Following(3) },
            Frame { units: FrameUnits::Groups, start: FrameBound::Preceding(2), end: ends },
            Frame::PARTITION,
        ];
        let columns = [NUMBER, TEXT, DECIMAL, FLAG].into_iter().flat_map(|column| [(column, false), (column, true)]);
        let calls: Vec<_> = columns
            .zip(frames.iter().cycle())
            .map(|((column, known), frame)| call(values(column, known, true), *frame))
            .collect();
        check(&batch, &[400, 200], &[PARTITION], &[ORDER], &calls, &options);
        let calls = [(NUMBER, false, false), (TEXT, false, false), (NUMBER, true, false), (TEXT, false, true)];
        let calls = calls.map(|(column, known, distinct)| call(values(column, known, distinct), Frame::RUNNING));
        for n in [0, 1, 5, 257] {
            check(&batch.slice(0, n), &[n], &[PARTITION], &[ORDER], &calls, &options);
        }
    }
}

/// Strings among many NULLs: only rows that count are copied.
#[test]
fn lists_hold_counted_values_only() {
    let rows = sorted(600, 40);
    for (known, distinct, expected) in [(true, false, 600 - rows.column(TEXT).null_count()), (false, false, 600), (true, true, 1)]
    {
        let mut columns = rows.columns().to_vec();
        if distinct {
            columns[TEXT] = Arc::new((0..600).map(|row| (row % 3 == 0).then_some("the same")).collect::<StringArray>());
        }
        let batch = RecordBatch::try_new(rows.schema(), columns).unwrap();
        for options in profiles() {
            let queue = queue();
            let input = input(&batch.schema(), None);
            let types = input.types.clone();
            let call = call(values(TEXT, known, distinct), Frame::PARTITION);
            let functions = vec![(call.clone(), field(&call, &batch))];
            let window = Window::try_new(input, vec![], vec![], vec![], functions, options).unwrap();
            let result = run(&window, &queue, &slices(&queue, &batch, &[600], &types)).unwrap();
            assert_eq!(result[0].columns()[0].elements().unwrap().len(), expected);
        }
    }
}

#[test]
fn string_agg_of_every_frame() {
    device::skip_unless_turn!(3);
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
        let texts = |frame: Frame| call(WindowFunction::StringAgg { strings: col(TEXT), skipped, distinct: false }, frame);
        let once = |frame: Frame| call(WindowFunction::StringAgg { strings: col(TEXT), skipped, distinct: true }, frame);
        for options in profiles() {
            // Each value occurs once.
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
fn distinct_values_over_every_frame() {
    device::skip_unless_turn!(1);
    // Few distinct values per partition.
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
    let frames = frames_and_by_key(by_key);
    for options in profiles() {
        for (first, frames) in frames.chunks(7).enumerate() {
            let calls: Vec<_> =
                frames.iter().enumerate().map(|(at, frame)| call(functions[(first + at) % 5].clone(), *frame)).collect();
            check(&batch, &[600, 300], &[PARTITION], &[ORDER], &calls, &options);
        }
        // Averages cannot retract values.
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
    let terms: StringArray = numbers.iter().map(|number| number.map(|number| format!("term {}", number * 7919 % 5000))).collect();
    let columns = [("number", Arc::new(numbers.clone()) as ArrayRef, true), ("term", Arc::new(terms.clone()) as ArrayRef, true)];
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
            best = best.max(terms.is_valid(row).then(|| terms.value(row)));
            assert_eq!(
                result.column(5).as_string::<i32>().is_valid(row).then(|| result.column(5).as_string::<i32>().value(row)),
                best
            );
        }
        for row in (0..n).step_by(997) {
            assert_eq!(sum(3, row), sums(&mut frame(row)).pop().flatten(), "row {row}");
            let best = frame(row).filter(|row| terms.is_valid(*row)).map(|row| terms.value(row)).max();
            assert_eq!(Some(result.column(6).as_string::<i32>().value(row)), best, "row {row}");
        }
        for row in (0..n).step_by(9973) {
            assert_eq!(sum(4, row), sums(&mut (row.saturating_sub(30_000)..row + 1)).pop().flatten(), "row {row}");
        }
    }
}
