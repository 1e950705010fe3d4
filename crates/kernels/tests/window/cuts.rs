// SPDX-License-Identifier: Apache-2.0
//! Partitions cut because they exceed the memory.

use super::*;

const TO_THE_ROW: Frame = Frame { units: FrameUnits::Rows, start: FrameBound::UnboundedPreceding, end: FrameBound::CurrentRow };
const TO_THE_GROUP: Frame = Frame { units: FrameUnits::Groups, ..TO_THE_ROW };

fn aggregates(frame: Frame) -> Vec<WindowCall> {
    let functions = [
        aggregate_of(Sum, Some(NUMBER), DataType::Int64),
        aggregate_of(Count, None, DataType::Int64),
        aggregate_of(Count, Some(TEXT), DataType::Int64),
        aggregate_of(Max, Some(NUMBER), DataType::Int64),
        aggregate_of(Min, Some(FLOAT), DataType::Float64),
        aggregate_of(Avg, Some(DECIMAL), DataType::Decimal128(19, 6)),
        aggregate_of(Sum, Some(DECIMAL), DataType::Decimal128(25, 2)),
        filtered(aggregate_of(Sum, Some(NUMBER), DataType::Int64)),
        filtered(aggregate_of(Count, None, DataType::Int64)),
    ];
    functions.map(|function| call(function, frame)).into()
}

/// Aggregates that the oracle does not have.
fn other_aggregates() -> Vec<WindowFunction> {
    let of_two = |function| match aggregate_of(function, Some(FLOAT), DataType::Float64) {
        WindowFunction::Aggregate(aggregate) => {
            let arguments = vec![col(FLOAT), col(FLOAT)];
            WindowFunction::Aggregate(kernels::expr::Aggregate { arguments, ..aggregate })
        }
        other => other,
    };
    let of_flags = [BoolAnd, BoolOr].map(|function| aggregate_of(function, Some(FLAG), DataType::Boolean));
    let of_bits = [BitAnd, BitOr, BitXor, AnyValue].map(|function| aggregate_of(function, Some(NUMBER), DataType::Int64));
    let of_floats = [Sum, Avg, VarPop, StddevSamp].map(|function| aggregate_of(function, Some(FLOAT), DataType::Float64));
    let functions = of_flags.into_iter().chain(of_bits).chain(of_floats).chain([of_two(CovarPop), of_two(Corr)]);
    functions.flat_map(|function| [function.clone(), filtered(function)]).collect()
}

/// Whether two columns are equal, floats but for their last digits.
fn are_close(a: &ArrayRef, b: &ArrayRef) -> bool {
    let (Some(x), Some(y)) = (a.as_primitive_opt::<Float64Type>(), b.as_primitive_opt::<Float64Type>()) else { return a == b };
    let is_close = |(x, y): (f64, f64)| x == y || (x - y).abs() <= 1e-9 * x.abs().max(1.0) || (x.is_nan() && y.is_nan());
    x.iter().zip(y.iter()).all(|(x, y)| x.zip(y).map_or(x == y, is_close))
}

#[test]
fn every_aggregate_carries_on() {
    let (queue, rows) = (queue(), sorted(700, 1 << 40));
    for options in profiles() {
        for frame in [TO_THE_ROW, Frame::RUNNING] {
            let calls: Vec<_> = other_aggregates().into_iter().map(|function| call(function, frame)).collect();
            let input = input(&rows.schema(), None);
            let batches = slices(&queue, &rows, &sizes(700), &input.types);
            let functions = calls.iter().map(|call| (call.clone(), field(call, &rows))).collect();
            let window = Window::try_new(input, vec![], vec![col(ORDER)], vec![], functions, options.clone()).unwrap();
            let downloaded = |results: &[DeviceBatch]| {
                let results: Vec<RecordBatch> = results.iter().map(|result| down(&queue, result)).collect();
                concat_batches(window.schema(), &results).unwrap()
            };
            let split = run_split(&window, &queue, &batches).unwrap();
            assert!(split.len() > 3, "{} batches", split.len());
            let (split, whole) = (downloaded(&split), downloaded(&run(&window, &queue, &batches).unwrap()));
            for (call, (split, whole)) in calls.iter().zip(split.columns().iter().zip(whole.columns())) {
                assert!(are_close(split, whole), "{call:?}, {:?}: {split:?} should be {whole:?}", options.profile);
            }
        }
    }
}

/// Sizes of batches, with a cut behind each: one row, a few, and the rest in halves.
fn sizes(n: usize) -> Vec<usize> {
    let mut sizes = vec![1, 2, 3, 70];
    sizes.extend([n.saturating_sub(76) / 2, n.saturating_sub(76).div_ceil(2)]);
    sizes
}

#[test]
fn functions_carry_on_behind_a_cut() {
    use WindowFunction::*;
    let peers = [Rank, RowNumber, DenseRank].map(|function| call(function, Frame::RUNNING));
    let windows = [
        aggregates(TO_THE_ROW).into_iter().chain([call(RowNumber, Frame::RUNNING)]).collect(),
        aggregates(Frame::RUNNING).into_iter().chain(peers).collect::<Vec<_>>(),
        aggregates(TO_THE_GROUP).into_iter().chain(aggregates(TO_THE_ROW)).collect(),
    ];
    for options in profiles() {
        for calls in &windows {
            for (n, width) in [(77, 10), (700, 50), (1500, 1 << 40)] {
                for partition in [&[][..], &[PARTITION]] {
                    check(&sorted(n, width), &sizes(n), partition, &[ORDER], calls, &options);
                }
            }
        }
    }
}

/// Functions of rows around their own, among others that carry on.
#[test]
fn functions_read_rows_on_both_sides_of_a_cut() {
    use WindowFunction::*;
    let lag = |column, offset, default| {
        let default = (column == NUMBER && default).then(|| Literal { data_type: DataType::Int64, value: LiteralValue::Int(-7) });
        call(Lag { value: col(column), offset, default, nulls: NullTreatment::Respect }, Frame::RUNNING)
    };
    let lags = [lag(NUMBER, 1, true), lag(TEXT, 3, false), lag(NUMBER, -2, true), lag(TEXT, -1, false), lag(NUMBER, 0, false)];
    let nth = |frame| [1, 3, -1, -2].map(|n| call(NthValue(col(TEXT), n), frame));
    let nth_non_null = |frame| [1, -2].map(|n| call(NthNonNull(col(NUMBER), n), frame));
    let rows = |start, end| Frame { units: FrameUnits::Rows, start, end };
    let (preceding, following) = (FrameBound::Preceding, FrameBound::Following);
    let frames = [
        rows(preceding(4), following(2)),
        rows(preceding(5), preceding(2)),
        rows(following(1), following(3)),
        rows(FrameBound::CurrentRow, FrameBound::CurrentRow),
        rows(following(2), preceding(2)),
    ];
    let ranks = || [Rank, RowNumber, DenseRank].map(|function| call(function, Frame::RUNNING));
    // Averages of decimals may overflow in rows without results.
    let is_average = |call: &WindowCall| matches!(&call.function, Aggregate(aggregate) if aggregate.function == Avg);
    let of_all = |frame| aggregates(frame).into_iter().filter(|call| !is_average(call));
    let of_frame = |frame: Frame| of_all(frame).chain(nth(frame)).chain(nth_non_null(frame));
    let last = |frame| call(NthValue(col(TEXT), -1), frame);
    let mut windows = vec![
        lags.to_vec(),
        lags.iter().cloned().chain(ranks()).chain(of_all(Frame::RUNNING)).chain([last(Frame::RUNNING)]).collect(),
        lags.iter().cloned().chain(aggregates(TO_THE_ROW)).chain([last(TO_THE_ROW)]).collect(),
        frames.iter().flat_map(|frame| of_frame(*frame)).chain(ranks()).collect(),
    ];
    windows.extend(frames.map(|frame| of_frame(frame).collect::<Vec<_>>()));
    for options in profiles() {
        let averages: Vec<_> = aggregates(frames[0]).into_iter().filter(is_average).collect();
        assert_eq!(check(&sorted(700, 1 << 40), &sizes(700), &[], &[ORDER], &averages, &options), 1);
        for calls in &windows {
            for (n, width) in [(77, 10), (700, 1 << 40)] {
                for partition in [&[][..], &[PARTITION]] {
                    let results = check(&sorted(n, width), &sizes(n), partition, &[ORDER], calls, &options);
                    assert!(results > 2, "{calls:?}, {n} rows: {results} batches");
                }
            }
        }
    }
}

#[test]
fn functions_of_many_rows_carry_on() {
    use WindowFunction::*;
    let n = (1 << 17) + 1;
    let lag = |offset| Lag { value: col(NUMBER), offset, default: None, nulls: NullTreatment::Respect };
    for options in profiles() {
        // All but some 700 rows are peers.
        for (functions, batches) in [(vec![RowNumber, Rank, DenseRank], 2), (vec![RowNumber, lag(1000), lag(-70)], 4)] {
            let calls: Vec<_> = functions.into_iter().map(|function| call(function, Frame::RUNNING)).collect();
            let sizes = [n / 2, n / 3, n - n / 2 - n / 3];
            assert_eq!(check(&sorted(n, 1 << 40), &sizes, &[], &[ORDER], &calls, &options), batches);
        }
    }
}

/// Rows split off from one partition, and the others. The partition's last group of peers has
/// `peers` rows.
fn split_off(calls: &[WindowCall], n: usize, peers: usize, options: &Options) -> (usize, usize) {
    let queue = queue();
    let keys = Int64Array::from_iter_values((0..n).map(|row| row.min(n - peers) as i64));
    let rows = batch(vec![("key", Arc::new(keys) as ArrayRef, false)]);
    let input = input(&rows.schema(), None);
    let types = input.types.clone();
    let functions = calls.iter().map(|call| (call.clone(), Field::new("f", DataType::UInt64, true))).collect();
    let window = Window::try_new(input, vec![], vec![col(0)], vec![], functions, options.clone()).unwrap();
    let mut state = window.start();
    block_on(async {
        window.push(&queue, &mut state, &up(&queue, &rows, &types)).await.unwrap();
        let split = window.split_off(&queue, &mut state).await.unwrap().map_or(0, |ended| ended.num_rows());
        (split, state.num_rows())
    })
}

#[test]
fn cuts_are_before_peers_or_rows() {
    let number = call(WindowFunction::RowNumber, Frame::RUNNING);
    let rank = call(WindowFunction::Rank, Frame::RUNNING);
    let share = call(WindowFunction::Ntile(3), Frame::RUNNING);
    for options in profiles() {
        for (n, peers) in [(1, 1), (2, 1), (2, 2), (40, 7), (40, 40)] {
            assert_eq!(split_off(std::slice::from_ref(&number), n, peers, &options), (n - 1, 1), "{n} rows");
            let ranks = [number.clone(), rank.clone()];
            assert_eq!(split_off(&ranks, n, peers, &options), (n - peers, peers), "{n} rows, {peers} peers");
            // It depends on the rows behind a cut.
            assert_eq!(split_off(&[number.clone(), share.clone()], n, peers, &options), (0, n));
        }
        // Rows around a cut are on both sides.
        let lag = |offset| WindowFunction::Lag { value: col(0), offset, default: None, nulls: NullTreatment::Respect };
        let [before, after, far] = [2, -3, 40].map(|offset| call(lag(offset), Frame::RUNNING));
        assert_eq!(split_off(std::slice::from_ref(&before), 40, 1, &options), (39, 3));
        assert_eq!(split_off(std::slice::from_ref(&after), 40, 1, &options), (40, 3));
        assert_eq!(split_off(&[before.clone(), after.clone()], 40, 1, &options), (40, 5));
        assert_eq!(split_off(&[before, after, rank.clone()], 40, 7, &options), (36, 9));
        assert_eq!(split_off(&[far], 40, 1, &options), (0, 40));
    }
}
