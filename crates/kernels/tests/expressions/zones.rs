// SPDX-License-Identifier: Apache-2.0
//! Casts of timestamps with zones: at every offset change, around it, and far from it.

use std::sync::Arc;

use arrow::array::timezone::Tz;
use arrow::array::{ArrayRef, RecordBatch, StringArray};
use arrow::datatypes::{DataType, TimeUnit};
use chrono::{DateTime, Offset, TimeZone};
use kernels::codegen::Profile;
use kernels::expr::{Expr, LiteralValue};
use kernels::support::supports_cast;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use crate::data::{self, UNITS};
use crate::harness::{PROFILES, batch, check_in, natural};
use crate::host::{Outcome, rows};
use crate::operators::column;

/// Zones with
/// - summer times of an hour and half an hour, west and east of Greenwich,
/// - a skipped day, changes for Ramadan, odd offsets,
/// - no changes.
const ZONES: [&str; 12] = [
    "Europe/Berlin",
    "America/New_York",
    "America/St_Johns",
    "America/Sao_Paulo",
    "Asia/Kolkata",
    "Asia/Kathmandu",
    "Australia/Lord_Howe",
    "Pacific/Apia",
    "Africa/Casablanca",
    "Africa/Monrovia",
    "Etc/GMT+12",
    "UTC",
];

/// Rows per zone, the same for all, so that they share kernels.
const INSTANTS: usize = 1300;
const LOCALS: usize = 3600;

fn random() -> StdRng {
    let seed = rand::random();
    println!("seed {seed}");
    StdRng::seed_from_u64(seed)
}

fn offset(zone: &Tz, second: i64) -> i64 {
    let timestamp = DateTime::from_timestamp(second, 0).unwrap().naive_utc();
    zone.offset_from_utc_datetime(&timestamp).fix().local_minus_utc().into()
}

/// Offset changes, with the offsets before and after.
fn changes(name: &str) -> Vec<(i64, i64, i64)> {
    let zone: Tz = name.parse().unwrap();
    let mut changes = Vec::new();
    for after in (-4_200_000_000_i64..4_500_000_000).step_by(43_200) {
        let (mut from, mut to) = (after - 43_200, after);
        if offset(&zone, from) != offset(&zone, to) {
            while to - from > 1 {
                let middle = from + (to - from) / 2;
                if offset(&zone, middle) == offset(&zone, from) { from = middle } else { to = middle }
            }
            changes.push((to, offset(&zone, from), offset(&zone, to)));
        }
    }
    changes
}

/// Seconds around the given ones, filled up with random ones.
fn around(seconds: impl IntoIterator<Item = i64>, rows: usize, random: &mut StdRng) -> Vec<i64> {
    let mut around: Vec<i64> = seconds.into_iter().flat_map(|second| [second - 1, second, second + 1]).collect();
    assert!(around.len() < rows);
    around.resize_with(rows, || random.random_range(-5_000_000_000..5_000_000_000));
    around
}

fn instants(zone: &str, random: &mut StdRng) -> Vec<i64> {
    around(changes(zone).into_iter().map(|(at, _, _)| at), INSTANTS, random)
}

fn locals(zone: &str, random: &mut StdRng) -> Vec<i64> {
    let clocks = |(at, before, after): (i64, i64, i64)| [at + before, at + after, at + (before + after) / 2];
    around(changes(zone).into_iter().flat_map(clocks), LOCALS, random)
}

/// Seconds as ticks with fractions; NULL if they exceed 64 bits.
fn ticks(seconds: &[i64], unit: TimeUnit, random: &mut StdRng) -> Vec<LiteralValue> {
    let per: i64 = match unit {
        TimeUnit::Second => 1,
        TimeUnit::Millisecond => 1_000,
        TimeUnit::Microsecond => 1_000_000,
        TimeUnit::Nanosecond => 1_000_000_000,
    };
    let mut ticks = |second: &i64| second.checked_mul(per)?.checked_add(random.random_range(0..per));
    seconds.iter().map(|second| ticks(second).map_or(LiteralValue::Null, |ticks| LiteralValue::Int(ticks.into()))).collect()
}

fn zoned(unit: TimeUnit, zone: &str) -> DataType {
    DataType::Timestamp(unit, Some(zone.into()))
}

fn cast(to: &DataType, checked: bool) -> Expr {
    Expr::Cast { expr: column(0), to: to.clone(), checked }
}

fn single(column: ArrayRef) -> RecordBatch {
    batch(vec![column])
}

/// `CAST` and `TRY_CAST` of a column; `CAST` also of the valid rows only.
#[track_caller]
fn check(column: ArrayRef, to: &[DataType], profile: Profile) {
    let all = single(column);
    let casts = |checked| to.iter().map(|to| cast(to, checked)).collect::<Vec<_>>();
    check_in(&all, &natural(&all), &[casts(true), casts(false)].concat(), &[profile]);
    let fails = |expr: &Expr| rows(expr, &all).iter().any(|outcome| matches!(outcome, Outcome::Fails));
    if casts(true).iter().any(fails) {
        let mut sound = vec![true; all.num_rows()];
        for expr in casts(true) {
            for (sound, outcome) in sound.iter_mut().zip(rows(&expr, &all)) {
                *sound &= matches!(outcome, Outcome::Value(_));
            }
        }
        assert!(sound.contains(&true));
        let sound = arrow::compute::filter_record_batch(&all, &sound.into()).unwrap();
        check_in(&sound, &natural(&sound), &casts(true), &[profile]);
    }
}

#[test]
fn instants_cast_to_local_times() {
    let mut random = random();
    let to = [
        DataType::Utf8,
        DataType::Date32,
        DataType::Time32(TimeUnit::Second),
        DataType::Time64(TimeUnit::Nanosecond),
        DataType::Timestamp(TimeUnit::Second, None),
    ];
    for zone in ZONES {
        for (unit, profile) in UNITS.into_iter().zip(PROFILES.into_iter().cycle()) {
            let ticks = ticks(&instants(zone, &mut random), unit, &mut random);
            check(data::array(&zoned(unit, zone), &ticks), &to, profile);
        }
    }
}

#[test]
fn local_times_cast_to_instants() {
    let mut random = random();
    for (index, zone) in ZONES.into_iter().enumerate() {
        for (unit, profile) in [UNITS[index % 3], TimeUnit::Nanosecond].into_iter().zip(PROFILES) {
            let ticks = ticks(&locals(zone, &mut random), unit, &mut random);
            check(data::array(&DataType::Timestamp(unit, None), &ticks), &[zoned(unit, zone)], profile);
        }
    }
}

/// Midnight may be a skipped local time.
#[test]
fn dates_cast_to_instants() {
    let mut random = random();
    for zone in ["America/Sao_Paulo", "Pacific/Apia", "Asia/Kathmandu"] {
        let seconds = locals(zone, &mut random);
        let to = [zoned(TimeUnit::Second, zone), zoned(TimeUnit::Microsecond, zone)];
        let days: Vec<LiteralValue> = seconds.iter().map(|second| LiteralValue::Int((second / 86_400).into())).collect();
        check(data::array(&DataType::Date32, &days), &to, Profile::Gpu);
        let millis = ticks(&seconds, TimeUnit::Millisecond, &mut random);
        check(data::array(&DataType::Date64, &millis), &to, Profile::Cpu);
    }
}

#[test]
fn extremes_of_every_unit() {
    let to = [DataType::Utf8, DataType::Date32, DataType::Time64(TimeUnit::Nanosecond)];
    for zone in ["Europe/Berlin", "America/New_York"] {
        for unit in UNITS {
            for value in data::special(&DataType::Timestamp(unit, None)) {
                let one = |data_type| single(data::array(&data_type, std::slice::from_ref(&value)));
                let exprs: Vec<Expr> = to.iter().map(|to| cast(to, false)).collect();
                let instant = one(zoned(unit, zone));
                check_in(&instant, &natural(&instant), &exprs, &[Profile::Cpu]);
                let local = one(DataType::Timestamp(unit, None));
                let exprs = [cast(&zoned(unit, zone), true), cast(&zoned(unit, zone), false)];
                check_in(&local, &natural(&local), &exprs, &[Profile::Cpu]);
            }
        }
    }
}

#[test]
fn strings_cast_to_instants() {
    let mut random = random();
    let ends = ["", "", "", ".5", ".123456789", "Z", "+05:30", " -08", ".25-0330", "+1", "."];
    for zone in ["Europe/Berlin", "Australia/Lord_Howe", "America/St_Johns", "Africa/Monrovia"] {
        let mut texts: Vec<String> = locals(zone, &mut random)
            .into_iter()
            .map(|second| {
                let local = DateTime::from_timestamp(second, 0).unwrap();
                let end = ends[random.random_range(0..ends.len())];
                let format = ["%Y-%m-%dT%H:%M:%S", "%Y-%m-%d %H:%M:%S", "%Y-%m-%d %H%M%S"][random.random_range(0..3)];
                if random.random_bool(0.1) {
                    local.format("%Y-%m-%d").to_string()
                } else {
                    local.format(format).to_string() + end
                }
            })
            .collect();
        texts[0] = "2016-12-31T23:59:60".into();
        texts[1] = "0000-01-01 00:00:00".into();
        texts[2] = "9999-12-31 23:59:59".into();
        texts[3] = "2021-03-28 02:30:60.5".into();
        texts[4] = "1677-09-21T00:12:43".into();
        let to = UNITS.map(|unit| zoned(unit, zone));
        for profile in PROFILES {
            check(Arc::new(StringArray::from(texts.clone())), &to, profile);
        }
    }
}

/// Strings that end with UTC, the name of a zone, or another name.
#[test]
fn strings_with_zone_names_parse() {
    let ends = [
        "UTC",
        " UTC",
        "  GMT",
        " Zulu",
        "Etc/GMT-0",
        "Europe/Berlin",
        " Europe/Berlin",
        " Asia/Tokyo",
        "\u{2003}America/St_Johns",
        " America/Argentina/ComodRivadavia",
        " Europe/berlin",
        " Europe",
        " utc",
        " PM",
        " ",
        "\t \n",
        "x",
        " UTC ",
        " Ü",
        "+05:3x",
        "zz",
        " Europe/Berlin2",
        " a/b/c/d/e/f/g/h/i/j/k/l/m/n/o/p/q/r/s/t/u/v/w/x/y/z/a/b/c/d/e/f/g/h/i/j",
    ];
    let times = [
        "2024-07-01T12:34:56",
        "2024-03-31 02:30:00",
        "2024-10-27 023000.5",
        "2024-01-01 00:00:60",
        "2024-07-01 23:59:59.123456789123",
    ];
    let texts: Vec<String> = times.iter().flat_map(|time| ends.iter().map(move |end| format!("{time}{end}"))).collect();
    let texts: ArrayRef = Arc::new(StringArray::from(texts));
    let to = [
        DataType::Date32,
        DataType::Date64,
        DataType::Timestamp(TimeUnit::Second, None),
        zoned(TimeUnit::Millisecond, "+05:30"),
        zoned(TimeUnit::Microsecond, "Europe/Berlin"),
        zoned(TimeUnit::Nanosecond, "America/New_York"),
    ];
    for profile in PROFILES {
        check(texts.clone(), &to, profile);
    }
}

/// Every zone by name, around one of its offset changes and at another time.
#[test]
fn strings_with_every_zone_name_parse() {
    let mut random = random();
    let mut texts = Vec::new();
    for name in chrono_tz::TZ_VARIANTS.map(|zone| zone.name()) {
        let zone: Tz = name.parse().unwrap();
        let instant = random.random_range(-4_000_000_000_i64..4_200_000_000);
        // Half a year later the offset often differs, with a change in between.
        let (mut from, mut to) = (instant, instant + 15_768_000);
        while offset(&zone, from) != offset(&zone, to) && to - from > 1 {
            let middle = from + (to - from) / 2;
            if offset(&zone, middle) == offset(&zone, from) { from = middle } else { to = middle }
        }
        for second in [instant, to - 1 + offset(&zone, from), to + offset(&zone, to), to + random.random_range(-86_400..86_400)] {
            texts.push(DateTime::from_timestamp(second, 0).unwrap().format("%Y-%m-%dT%H:%M:%S ").to_string() + name);
        }
    }
    let to = [DataType::Date32, zoned(TimeUnit::Second, "Asia/Kathmandu")];
    for profile in PROFILES {
        check(Arc::new(StringArray::from(texts.clone())), &to, profile);
    }
}

#[test]
fn unknown_zones_are_refused() {
    let nowhere = zoned(TimeUnit::Second, "Europe/Atlantis");
    assert!(supports_cast(&nowhere, &DataType::Timestamp(TimeUnit::Nanosecond, None)).is_ok());
    assert!(supports_cast(&nowhere, &DataType::Date32).unwrap_err().contains("Europe/Atlantis"));
    assert!(supports_cast(&DataType::Date32, &nowhere).is_err());
}
