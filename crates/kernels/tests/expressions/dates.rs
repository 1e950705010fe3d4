// SPDX-License-Identifier: Apache-2.0
//! Functions of dates, times and timestamps.

use arrow::datatypes::{DataType, TimeUnit};
use columnar::ColumnType;
use kernels::codegen::{Params, Profile, RowWriter};
use kernels::expr::{Expr, LiteralValue};
use kernels::function::{DatePart, Function};
use kernels::support::supports;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use crate::data::{self, UNITS, array};
use crate::harness::{PROFILES, batch, check, check_in, natural};

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

fn moments() -> Vec<DataType> {
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
fn parts_of_every_kind_of_moment() {
    for data_type in moments() {
        let mut values = data::special(&data_type);
        values.push(LiteralValue::Null);
        let rows = batch(vec![array(&data_type, &values)]);
        let parts = parts_of(&data_type);
        assert_eq!(parts.len(), if matches!(data_type, DataType::Time32(_) | DataType::Time64(_)) { 7 } else { 16 });
        for chunk in parts.chunks(8) {
            check_in(&rows, &natural(&rows), chunk, &PROFILES);
        }
    }
}

#[test]
fn parts_of_random_moments() {
    let seed = std::env::var("DEVICEFUSION_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or_else(rand::random);
    println!("DEVICEFUSION_SEED={seed}");
    let mut random = StdRng::seed_from_u64(seed);
    for data_type in moments() {
        let per_second: i64 = match &data_type {
            DataType::Timestamp(unit, _) | DataType::Time32(unit) | DataType::Time64(unit) => {
                [1, 1_000, 1_000_000, 1_000_000_000][UNITS.iter().position(|known| known == unit).unwrap()]
            }
            _ => 1_000,
        };
        let values: Vec<LiteralValue> = (0..400)
            .map(|_| {
                // About the years 1800 to 2140, within what nanoseconds reach.
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

/// The turns of years and of their weeks, over an era of the calendar.
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
fn bounds_of_days_are_bounds_of_years() {
    let ty = ColumnType { bounds: Some((8035, 10591)), ..ColumnType::of(&DataType::Date32, true).unwrap() };
    let (types, mut params) = ([ty], Params::new());
    let mut writer = RowWriter::new(&types, Profile::Gpu, &mut params);
    assert_eq!(writer.eval(&part(DatePart::Year)).unwrap().bounds, Some((1992, 1998)));
    assert_eq!(writer.eval(&part(DatePart::Month)).unwrap().bounds, Some((1, 12)));
    // Nothing to look for outside of the calendar.
    assert!(!writer.statements().contains("86400"));
}

#[test]
fn times_have_no_date() {
    let rows = batch(vec![array(&DataType::Time32(TimeUnit::Second), &[])]);
    let reason = supports(&part(DatePart::Year), &rows.schema()).unwrap_err();
    assert_eq!(reason, "date_part(Time32(s)) has no device form");
}
