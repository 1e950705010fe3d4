// SPDX-License-Identifier: Apache-2.0
//! `to_date` and `to_timestamp` by formats.

use arrow::datatypes::{DataType, TimeUnit};
use chrono::{DateTime, FixedOffset};
use kernels::expr::{Expr, LiteralValue};
use kernels::function::Function;
use kernels::support::supports;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use crate::data::array;
use crate::harness::{batch, check, lit};
use crate::strings::text;

/// Formats with every supported part, in sets that share a kernel.
const FORMATS: [&[&str]; 5] = [
    &["%Y-%m-%d", "%d/%m/%Y", "%F %T%.f", "%m/%d/%y %I:%M %p", "%Y%m%d%H%M%S%3f", "%d %b %Y", "%A, %d. %B %Y", "%H:%M"],
    &["%Y-%m-%dT%H:%M:%S%z", "%+", "%F %R %#z", "%c", "%D %r", "%v %X", "%x %T%.3f %:z", "%Y-%j %k:%M"],
    &["%G-W%V-%u", "%Y %U %w", "%Y %W %a", "%g %V %A", "%C %y %m %d", "%Y Q%q %m %d", "%s", "%s%.f %z"],
    &[
        "%a %e %h %Y %l:%M:%S %P",
        "%Y-%m-%d %V",
        "%d%m%Y%y",
        "%Y-%m-%d %H:%M:%S.%f",
        "%F %H:%M:%S%6f",
        "%F %H%.9f",
        "%F%%",
        "%n%F%t",
    ],
    &[
        "%F %T%.6f%::z",
        "%F %T %9f",
        "%Y-%m-%d %j %a %G",
        "%C-%m-%d",
        "%F %H:%M %p",
        "%G %V %a %y",
        "le %d, à %H h %M, %Y",
        "%Y %m %d %U %W",
    ],
];

const TIMESTAMPS: [&str; 14] = [
    "2024-02-29T23:59:59.987654321+02:00",
    "1969-07-20T20:17:40-05:30",
    "1970-01-01T00:00:00+00:00",
    "2000-12-31T12:00:00.5+14:00",
    "2005-01-02T11:05:09.000001-12:00",
    "1999-01-03T01:00:00+23:59",
    "2016-12-31T23:59:60.25+00:00",
    "1677-09-21T00:12:43.145224192+00:00",
    "1677-09-21T00:12:43.145224191+00:00",
    "2262-04-11T23:47:16.854775807+00:00",
    "2262-04-11T23:47:16.854775808+00:00",
    "0001-01-01T00:00:00+00:00",
    "-0044-03-15T13:00:00+00:00",
    "+10000-01-01T00:00:00-01:00",
];

fn read(function: Function, formats: &[&str]) -> Expr {
    let data_type = match function {
        Function::ToDate => DataType::Date32,
        _ => DataType::Timestamp(TimeUnit::Nanosecond, None),
    };
    let formats = formats.iter().map(|format| lit(&DataType::Utf8, text(format)));
    Expr::Call { function, arguments: [Expr::Column(0)].into_iter().chain(formats).collect(), data_type }
}

/// One row at a time, because a batch reports the first failing row only.
fn check_each(texts: &[String], exprs: &[Expr]) {
    for text in texts {
        check(&batch(vec![array(&DataType::Utf8, &[LiteralValue::Bytes(text.clone().into_bytes())])]), exprs);
    }
}

fn timestamps() -> Vec<DateTime<FixedOffset>> {
    TIMESTAMPS.iter().map(|timestamp| timestamp.parse().unwrap_or_else(|error| panic!("{timestamp}: {error}"))).collect()
}

/// chrono parses `%#z` but does not format it.
fn written(timestamp: DateTime<FixedOffset>, format: &str) -> String {
    timestamp.format(&format.replace("%#z", "%z")).to_string()
}

#[test]
fn formatted_strings_parse() {
    device::skip_unless_turn!(7);
    for formats in FORMATS {
        let texts: Vec<String> =
            formats.iter().flat_map(|format| timestamps().into_iter().map(move |timestamp| written(timestamp, format))).collect();
        check_each(&texts, &formats.iter().map(|format| read(Function::ToTimestamp, &[format])).collect::<Vec<_>>());
        check_each(&texts, &formats.iter().map(|format| read(Function::ToDate, &[format])).collect::<Vec<_>>());
    }
}

#[test]
fn mutated_strings_parse_as_in_chrono() {
    let seed = std::env::var("DEVICEFUSION_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or_else(rand::random);
    println!("DEVICEFUSION_SEED={seed}");
    let mut random = StdRng::seed_from_u64(seed);
    let letters: Vec<char> = "0123456789+-\u{2212}.,:/ \t\u{a0}\u{3000}TtZzapmAPM%JanfriUTCQW".chars().collect();
    for formats in FORMATS {
        let mut texts = Vec::new();
        for format in formats {
            for _ in 0..20 {
                let timestamps = timestamps();
                let timestamp = timestamps[random.random_range(0..timestamps.len())];
                let mut text: Vec<char> = written(timestamp, format).chars().collect();
                for _ in 0..random.random_range(1..4) {
                    let at = random.random_range(0..text.len() + 1);
                    let letter = letters[random.random_range(0..letters.len())];
                    match random.random_range(0..3) {
                        0 => text.insert(at, letter),
                        1 if at < text.len() => text[at] = letter,
                        _ if at < text.len() => drop(text.remove(at)),
                        _ => {}
                    }
                }
                texts.push(text.into_iter().collect());
            }
        }
        check_each(&texts, &formats.iter().map(|format| read(Function::ToTimestamp, &[format])).collect::<Vec<_>>());
    }
}

#[test]
fn the_first_matching_format_applies() {
    let exprs = [
        read(Function::ToDate, &["%m/%d/%Y", "%d/%m/%Y"]),
        read(Function::ToTimestamp, &["%d %Y", "%Y %d %m", "%Y %m %d", "%s"]),
    ];
    let mut rows: Vec<LiteralValue> = ["01/02/2003", "13/02/2003", "12/31/1999"].map(text).to_vec();
    rows.push(LiteralValue::Null);
    check(&batch(vec![array(&DataType::Utf8View, &rows)]), &exprs[..1]);
    let rows = ["2003 11 12", "2003 11 31", "2003", "+3000 31 12", "3000 1 31", "99999999999999999999"].map(String::from);
    check_each(&rows, &exprs);
}

#[test]
fn unsupported_formats_are_refused() {
    let schema = batch(vec![array(&DataType::Utf8, &[])]).schema();
    for format in ["%Y %Z", "%Q", "%", "%F %s"] {
        let reason = supports(&read(Function::ToDate, &[format]), &schema).unwrap_err();
        assert_eq!(reason, format!("to_date by the format '{format}' is not supported on the device"));
    }
    let long = "%Y-".repeat(101);
    assert!(supports(&read(Function::ToDate, &[&long]), &schema).unwrap_err().contains("more than 200 parts"));
    let mut column = read(Function::ToDate, &[]);
    if let Expr::Call { arguments, .. } = &mut column {
        arguments.push(Expr::Column(0));
    }
    assert_eq!(supports(&column, &schema).unwrap_err(), "to_date by a format that is no constant is not supported on the device");
}
