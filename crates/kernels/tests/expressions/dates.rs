// SPDX-License-Identifier: Apache-2.0
//! Functions of dates, times and timestamps.

use arrow::datatypes::{DataType, TimeUnit};
use columnar::ColumnType;
use kernels::codegen::{Params, Profile, RowWriter};
use kernels::expr::{Expr, LiteralValue};
use kernels::function::{DatePart, Function, Granularity};
use kernels::support::supports;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use crate::data::{self, UNITS, array};
use crate::harness::{batch, check, lit};

const PARTS: [DatePart; 16] = [
    DatePart::Year,
    DatePart::IsoYear,
    DatePart::Quarter,
    DatePart::Month,
    DatePart::Week,
    DatePart::Day,
    DatePart::DayOfWeek,
    DatePart::IsoDayOfWeek,
    DatePart::DayOfYear,
    DatePart::Hour,
    DatePart::Minute,
    DatePart::Second,
    DatePart::Millisecond,
    DatePart::Microsecond,
    DatePart::Nanosecond,
    DatePart::Epoch,
];

fn part(part: DatePart) -> Expr {
    let data_type = match part {
        DatePart::Epoch => DataType::Float64,
        DatePart::Nanosecond => DataType::Int64,
        _ => DataType::Int32,
    };
    Expr::Call { function: Function::DatePart(part), arguments: vec![Expr::Column(0)], data_type }
}

fn date_time_types() -> Vec<DataType> {
    use DataType::*;
    let mut types = vec![
        Date32,
        Date64,
        Time32(TimeUnit::Second),
        Time32(TimeUnit::Millisecond),
        Time64(TimeUnit::Microsecond),
        Time64(TimeUnit::Nanosecond),
    ];
    for unit in UNITS {
        for zone in [None, Some("+00:00"), Some("-07:30"), Some("Europe/Berlin"), Some("Africa/Monrovia")] {
            types.push(Timestamp(unit, zone.map(Into::into)));
        }
    }
    types
}

fn parts_of(data_type: &DataType) -> Vec<Expr> {
    let rows = batch(vec![array(data_type, &[])]);
    PARTS.into_iter().map(part).filter(|part| supports(part, &rows.schema()).is_ok()).collect()
}

#[test]
fn parts_of_special_values() {
    for data_type in date_time_types() {
        let mut values = data::special(&data_type);
        values.push(LiteralValue::Null);
        let rows = batch(vec![array(&data_type, &values)]);
        let parts = parts_of(&data_type);
        assert_eq!(parts.len(), if matches!(data_type, DataType::Time32(_) | DataType::Time64(_)) { 7 } else { 16 });
        for chunk in parts.chunks(8) {
            check(&rows, chunk);
        }
    }
}

#[test]
fn parts_of_random_timestamps() {
    device::skip_unless_turn!(6);
    let seed = std::env::var("DEVICEFUSION_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or_else(rand::random);
    println!("DEVICEFUSION_SEED={seed}");
    let mut random = StdRng::seed_from_u64(seed);
    for data_type in date_time_types() {
        let per_second: i64 = match &data_type {
            DataType::Timestamp(unit, _) | DataType::Time32(unit) | DataType::Time64(unit) => {
                [1, 1_000, 1_000_000, 1_000_000_000][UNITS.iter().position(|known| known == unit).unwrap()]
            }
            _ => 1_000,
        };
        let values: Vec<LiteralValue> = (0..400)
            .map(|_| {
                // About the years 1800 to 2140, within 64 bits of nanoseconds.
                let ticks = match &data_type {
                    DataType::Date32 => random.random_range(-62_000..62_000),
                    DataType::Time32(_) | DataType::Time64(_) => random.random_range(-per_second..86_401 * per_second),
                    _ => random.random_range(-5_364_662_400 * per_second..5_364_662_400 * per_second),
                };
                LiteralValue::Int(ticks.into())
            })
            .collect();
        check(&batch(vec![array(&data_type, &values)]), &parts_of(&data_type));
    }
}

/// Changes of years and of ISO years, over an era of the calendar.
#[test]
fn parts_of_the_days_around_new_year() {
    let first = |year: i64| chrono::NaiveDate::from_ymd_opt(year as i32, 1, 1).unwrap().to_epoch_days();
    let days = (1600..2001)
        .flat_map(|year| first(year) - 4..first(year) + 5)
        .chain((2016..2024).flat_map(|year| first(year)..first(year) + 70));
    let values: Vec<LiteralValue> = days.map(|day| LiteralValue::Int(day.into())).collect();
    check(&batch(vec![array(&DataType::Date32, &values)]), &parts_of(&DataType::Date32)[..9]);
}

#[test]
fn bounds_of_days_give_bounds_of_years() {
    let ty = ColumnType { bounds: Some((8035, 10591)), ..ColumnType::of(&DataType::Date32, true).unwrap() };
    let (types, mut params) = ([ty], Params::new());
    let mut writer = RowWriter::new(&types, Profile::Gpu, &mut params);
    assert_eq!(writer.eval(&part(DatePart::Year)).unwrap().bounds, Some((1992, 1998)));
    assert_eq!(writer.eval(&part(DatePart::Month)).unwrap().bounds, Some((1, 12)));
    // Days outside of the calendar have no bounds.
    assert!(!writer.statements().contains("86400"));
}

#[test]
fn date_parts_of_times_are_refused() {
    let rows = batch(vec![array(&DataType::Time32(TimeUnit::Second), &[])]);
    let reason = supports(&part(DatePart::Year), &rows.schema()).unwrap_err();
    assert_eq!(reason, "date_part(Time32(s)) is not supported on the device");
}

const GRANULARITIES: [Granularity; 10] = [
    Granularity::Microsecond,
    Granularity::Millisecond,
    Granularity::Second,
    Granularity::Minute,
    Granularity::Hour,
    Granularity::Day,
    Granularity::Week,
    Granularity::Month,
    Granularity::Quarter,
    Granularity::Year,
];

fn call(function: Function, data_type: &DataType, numbers: &[i64]) -> Expr {
    let numbers = numbers.iter().map(|number| lit(&DataType::Int64, LiteralValue::Int((*number).into())));
    let arguments = [Expr::Column(0)].into_iter().chain(numbers).collect();
    Expr::Call { function, arguments, data_type: data_type.clone() }
}

/// Timestamps within 64 bits of nanoseconds, and some at the ends; failing ones are last.
fn some_timestamps(data_type: &DataType, random: &mut StdRng) -> Vec<LiteralValue> {
    let seconds: Vec<i64> = match data_type {
        DataType::Time32(_) | DataType::Time64(_) => (0..300).map(|_| random.random_range(0..86_400)).collect(),
        _ => (0..400).map(|_| random.random_range(-5_364_662_400..5_364_662_400)).collect(),
    };
    let per = match data_type {
        DataType::Date32 => return seconds.into_iter().map(|second| LiteralValue::Int((second / 86_400).into())).collect(),
        DataType::Date64 => 1_000,
        DataType::Timestamp(unit, _) | DataType::Time32(unit) | DataType::Time64(unit) => {
            [1, 1_000, 1_000_000, 1_000_000_000][UNITS.iter().position(|known| known == unit).unwrap()]
        }
        other => panic!("{other} is no date or time"),
    };
    seconds.into_iter().map(|second| LiteralValue::Int((second * per + random.random_range(0..per)).into())).collect()
}

fn seeded() -> StdRng {
    let seed = std::env::var("DEVICEFUSION_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or_else(rand::random);
    println!("DEVICEFUSION_SEED={seed}");
    StdRng::seed_from_u64(seed)
}

#[test]
fn date_trunc_of_timestamps() {
    device::skip_unless_turn!(5);
    let mut random = seeded();
    for data_type in date_time_types().into_iter().filter(|data_type| !matches!(data_type, DataType::Date32 | DataType::Date64)) {
        let rows = batch(vec![array(&data_type, &[some_timestamps(&data_type, &mut random), vec![LiteralValue::Null]].concat())]);
        let all = GRANULARITIES.map(|granularity| call(Function::DateTrunc(granularity), &data_type, &[]));
        let exprs: Vec<Expr> = all.into_iter().filter(|expr| supports(expr, &rows.schema()).is_ok()).collect();
        assert_eq!(exprs.len(), if matches!(data_type, DataType::Timestamp(..)) { 10 } else { 5 });
        check(&rows, &exprs);
        // Timestamps beyond 64 bits of nanoseconds fail, row by row.
        let special = data::special(&data_type);
        for value in special {
            check(&batch(vec![array(&data_type, &[value])]), &exprs);
        }
    }
}

/// Every offset change of some zones, where midnights and hours are skipped or repeated.
#[test]
fn date_trunc_and_intervals_around_offset_changes() {
    device::skip_unless_turn!(3);
    use arrow::array::timezone::Tz;
    use chrono::{DateTime, Offset, TimeZone};
    for name in ["America/Sao_Paulo", "America/Juneau", "Asia/Beirut", "Africa/Monrovia", "Pacific/Apia", "Australia/Lord_Howe"] {
        let zone: Tz = name.parse().unwrap();
        let offset = |second: i64| {
            zone.offset_from_utc_datetime(&DateTime::from_timestamp(second, 0).unwrap().naive_utc()).fix().local_minus_utc()
        };
        let mut seconds = Vec::new();
        for day in -47_000..25_000i64 {
            let (from, to) = (day * 86_400, (day + 1) * 86_400);
            if offset(from) != offset(to) {
                seconds.extend((-36..60).map(|quarter| from + quarter * 1_800 + 7));
            }
        }
        let values: Vec<LiteralValue> = seconds.into_iter().map(|second| LiteralValue::Int(second.into())).collect();
        let data_type = DataType::Timestamp(TimeUnit::Second, Some(name.into()));
        let truncated: Vec<Expr> =
            GRANULARITIES[4..].iter().map(|granularity| call(Function::DateTrunc(*granularity), &data_type, &[])).collect();
        check(&batch(vec![array(&data_type, &values)]), &truncated);
        // A failing row hides those behind it.
        for chunk in values.chunks(12) {
            let rows = batch(vec![array(&data_type, chunk)]);
            check(
                &rows,
                &[
                    call(Function::AddInterval { checked: true }, &data_type, &[0, 1, 0]),
                    call(Function::AddInterval { checked: true }, &data_type, &[-1, 0, 3_600_000_000_000]),
                ],
            );
        }
    }
}

#[test]
fn date_bin_of_timestamps() {
    let mut random = seeded();
    const HOUR: i64 = 3_600_000_000_000;
    for data_type in date_time_types().into_iter().filter(|data_type| !matches!(data_type, DataType::Date32 | DataType::Date64)) {
        let values = [some_timestamps(&data_type, &mut random), data::special(&data_type), vec![LiteralValue::Null]].concat();
        let rows = batch(vec![array(&data_type, &values)]);
        let strides = [
            (HOUR, 0),
            (7 * 24 * HOUR, 3 * HOUR + 5),
            (900_000_000_000, -1),
            (1, 0),
            (-HOUR, 17),
            (HOUR, i64::MAX - 3),
            (i64::MAX, 5),
        ];
        let bins = strides.map(|(stride, origin)| call(Function::DateBin { months: false }, &data_type, &[stride, origin]));
        check(&rows, &bins);
        if let DataType::Timestamp(..) = data_type {
            let strides = [
                (1, 0),
                (3, 30 * 24 * HOUR + 5),
                (12, -400 * 24 * HOUR),
                (7, 59 * 24 * HOUR),
                (-2, 0),
                (5_000_000, 0),
                (12, i64::MIN),
            ];
            let bins = strides.map(|(stride, origin)| call(Function::DateBin { months: true }, &data_type, &[stride, origin]));
            check(&rows, &bins);
        }
    }
}

#[test]
fn intervals_are_added() {
    device::skip_unless_turn!(2);
    let mut random = seeded();
    const DAY: i64 = 86_400_000_000_000;
    let intervals = [
        [0, 0, 0],
        [1, 0, 0],
        [-1, 0, 0],
        [12, 0, 0],
        [-25, 40, 0],
        [0, 1, 0],
        [0, -31, 0],
        [0, 0, 1],
        [0, 0, -1],
        [0, 0, 3 * DAY / 2],
        [0, 0, -3 * DAY / 2],
        [5, -3, DAY - 1],
    ];
    for data_type in date_time_types() {
        let values = some_timestamps(&data_type, &mut random);
        // Rows with a skipped local time fail, hence few rows at a time.
        let named = matches!(&data_type, DataType::Timestamp(_, Some(zone)) if zone.contains('/'));
        let exprs = intervals.map(|interval| call(Function::AddInterval { checked: true }, &data_type, &interval));
        for chunk in values.chunks(if named { 50 } else { 400 }) {
            let rows = batch(vec![array(&data_type, &[chunk, &[LiteralValue::Null]].concat())]);
            check(&rows, &exprs);
        }
        if matches!(data_type, DataType::Time32(_) | DataType::Time64(_)) {
            continue;
        }
        let far = [
            [i64::from(i32::MAX), 0, 0],
            [-3_000_000, 0, 0],
            [0, i64::from(i32::MAX), 0],
            [0, i64::from(i32::MIN), 5],
            [0, 0, i64::MAX],
            [0, 0, -i64::MAX],
        ];
        let exprs: Vec<Expr> = intervals
            .into_iter()
            .chain(far)
            .map(|interval| call(Function::AddInterval { checked: true }, &data_type, &interval))
            .collect();
        for value in data::special(&data_type) {
            check(&batch(vec![array(&data_type, &[value])]), &exprs);
        }
    }
}
