// SPDX-License-Identifier: Apache-2.0
//! `CAST` and `TRY_CAST` of special values, for every supported pair of types.

use arrow::array::ArrayRef;
use arrow::compute::{can_cast_types, cast};
use arrow::datatypes::{DataType, TimeUnit};
use kernels::codegen::Profile;
use kernels::expr::{Expr, LiteralValue};
use kernels::support::{supports, supports_cast};

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use crate::data;
use crate::harness::{PROFILES, batch, check_in, compare, evaluate, natural, upload, values};
use crate::host;
use crate::operators::column;

fn casts(from: &DataType, values: &[LiteralValue], to: &[DataType], checked: bool, profile: Profile) {
    let exprs: Vec<Expr> = to
        .iter()
        .filter(|to| *to != from && supports_cast(from, to).is_ok())
        .map(|to| Expr::Cast { expr: column(0), to: to.clone(), checked })
        .collect();
    let column = data::array(from, &[values, &[LiteralValue::Null]].concat());
    let batch = batch(vec![column]);
    for exprs in exprs.chunks(12) {
        check_in(&batch, &natural(&batch), exprs, &[profile]);
    }
}

fn all_casts(types: &[DataType]) {
    for from in types {
        let values = data::special(from);
        casts(from, &values, &data::all(), false, Profile::Cpu);
        casts(from, &values, &data::all(), true, Profile::Gpu);
    }
}

#[test]
fn integers_cast() {
    device::skip_unless_turn!(3);
    all_casts(&[&[DataType::Boolean], &data::integers()[..]].concat());
}

#[test]
fn floats_cast() {
    all_casts(&data::floats());
}

#[test]
fn decimals_cast() {
    device::skip_unless_turn!(1);
    all_casts(&data::decimals());
}

#[test]
fn temporals_cast() {
    device::skip_unless_turn!(2);
    all_casts(&data::temporals());
}

#[test]
fn decimals_cast_to_the_null_type() {
    for from in data::decimals() {
        casts(&from, &data::special(&from), &[DataType::Null], true, Profile::Cpu);
    }
}

#[test]
fn binary_casts_to_fixed_size() {
    let bytes = |len: usize| LiteralValue::Bytes((1..=len as u8).collect());
    for from in [DataType::Binary, DataType::LargeBinary] {
        let to = [DataType::FixedSizeBinary(3), DataType::FixedSizeBinary(1), DataType::FixedSizeBinary(16)];
        let all: Vec<LiteralValue> = (0..5).map(bytes).collect();
        casts(&from, &all, &to, false, Profile::Cpu);
        casts(&from, &all, &to, true, Profile::Gpu);
        casts(&from, &[bytes(3), bytes(3)], &to, true, Profile::Cpu);
    }
}

/// Types that arrow-cast encodes as a dictionary, including dates and times by way of integers.
#[test]
fn casts_to_dictionaries_agree_with_arrow() {
    use DataType::*;
    let targets = [
        Int8,
        Float32,
        Decimal128(15, 2),
        Date32,
        Date64,
        Time32(TimeUnit::Second),
        Time64(TimeUnit::Nanosecond),
        Timestamp(TimeUnit::Second, Some("-07:30".into())),
        Utf8View,
        LargeBinary,
        FixedSizeBinary(3),
        Boolean,
        Duration(TimeUnit::Second),
    ];
    let sources = [
        Boolean,
        Int64,
        Decimal64(18, 4),
        Date32,
        Time64(TimeUnit::Microsecond),
        Timestamp(TimeUnit::Nanosecond, None),
        Duration(TimeUnit::Second),
        Utf8,
        Binary,
    ];
    for (from, profile) in sources.iter().zip(PROFILES.iter().cycle()) {
        let array = data::array(from, &[&data::special(from)[..], &[LiteralValue::Null]].concat());
        let dictionary: ArrayRef = cast(&array, &Dictionary(Int16.into(), from.clone().into())).unwrap_or(array.clone());
        for (array, checked) in [(&array, true), (&array, false), (&dictionary, false)] {
            let batch = batch(vec![array.clone()]);
            let types = natural(&batch);
            let (mut exprs, mut expected) = (Vec::new(), Vec::new());
            for value in &targets {
                let to = Dictionary(Int32.into(), value.clone().into());
                if !can_cast_types(array.data_type(), &to) {
                    continue;
                }
                let Ok(expr) = Expr::Column(0).cast(array.data_type(), &to, checked) else {
                    assert!(matches!(value, Boolean | Duration(_)), "{from} to {to}");
                    assert!(cast(array, &to).is_err(), "{from} to {to}");
                    continue;
                };
                match supports(&expr, &batch.schema()) {
                    Ok(()) => {
                        expected.push(host::casts(array, &to, checked));
                        exprs.push(expr);
                    }
                    Err(reason) => assert!(cast(array, &to).is_err(), "{} to {to}: {reason}", array.data_type()),
                }
            }
            assert!(!exprs.is_empty(), "{from}");
            let computed = evaluate(&upload(&batch, &types), &types, &exprs, 5000, *profile);
            for ((expr, expected), computed) in exprs.iter().zip(&expected).zip(&computed) {
                compare(&batch, expr, expected, computed, *profile);
            }
        }
    }
}

/// A `CAST` over valid rows must not fail.
#[test]
fn valid_casts_do_not_fail() {
    device::skip_unless_turn!(0);
    let ints = |values: &[i128]| values.iter().map(|value| LiteralValue::Int(*value)).collect::<Vec<_>>();
    let small = ints(&[0, 1, 2, 9, 10, 15, 99, 100]);
    for from in [&data::integers()[..], &data::decimals(), &data::temporals()].concat() {
        casts(&from, &small, &data::all(), true, Profile::Cpu);
    }
}

/// Casts of arrow-rs that are not supported on the device.
#[test]
fn unsupported_casts_are_listed() {
    use DataType::*;
    let text = |data_type: &DataType| matches!(data_type, Utf8 | LargeUtf8 | Utf8View);
    for from in data::all() {
        for to in data::all() {
            if from == to || !can_cast_types(&from, &to) {
                continue;
            }
            let refused = match (&from, &to) {
                // These fail for every value.
                (from, to) if from.is_decimal() && to.is_decimal() => {
                    supports_cast(from, to).is_err_and(|reason| reason.contains("fails for every value"))
                }
                (from, to) if text(from) && to.is_decimal() => data::precision_scale(to).1 < 0,
                _ => false,
            };
            assert_eq!(supports_cast(&from, &to).is_err(), refused, "{from} to {to}: {:?}", supports_cast(&from, &to));
        }
    }
}

/// Strings that parse as a value, or nearly.
fn texts() -> Vec<LiteralValue> {
    let mut texts: Vec<String> = [
        "",
        " ",
        "0",
        "-0",
        "+0",
        "1",
        "+1",
        "-1",
        "007",
        " 12",
        "12 ",
        "\t12\n",
        "1 2",
        "--1",
        "+-1",
        "-",
        "+",
        "1e5",
        "0x10",
        "12.",
        ".5",
        ".",
        "1.5",
        "-1.5",
        "1.005",
        "-.5",
        "+.5",
        "1.-5",
        "1.2.3",
        "127",
        "128",
        "-128",
        "-129",
        "255",
        "256",
        "32767",
        "32768",
        "-32768",
        "65535",
        "65536",
        "2147483647",
        "2147483648",
        "-2147483648",
        "-2147483649",
        "4294967295",
        "4294967296",
        "9223372036854775807",
        "9223372036854775808",
        "-9223372036854775808",
        "-9223372036854775809",
        "18446744073709551615",
        "18446744073709551616",
        "99999999999999999999",
        "00000000000000000000000000001",
        "0.1",
        "0.15",
        "0.25",
        "-0.25",
        "123456789.987654321",
        "99.995",
        "-99.995",
        "9999999.99",
        "99999999.99",
        "0.00000000000000000000000000000000000000000000000001",
        "99999999999999999999999999999999999999",
        "999999999999999999999999999999999999999",
        "170141183460469231731687303715884105727",
        "170141183460469231731687303715884105728",
        "1.99999999999999999999999999999999999999999",
        "9999999999999999999999999999999999999999999999999999999999999999999999999999",
        "-99999999999999999999999999999999999999999999999999.995",
        "1234567890123456789012345678901234567890123456789012345678901234567890123456.123456789012345",
        "0.57896044618658097711785492504343953926634992332820282019728792003956564819967",
        "0.57896044618658097711785492504343953926634992332820282019728792003956564819968",
        "-12345678901234567890123456789012345678.5555555555555555555555555555555555555",
        "98765432109876543210987654321098765432109876543210987654321098765432.1234567890123456789",
        "-98765432109876543210987654321098765432109876543210987654321098765432.1234567890123456789",
        "\u{a0}1\u{3000}",
        "\u{2009}1.5",
        "1\u{200b}",
        "\u{85}7\u{1680}",
        "१",
        "1日",
        "t",
        "T",
        "tr",
        "true",
        "TRUE",
        " True ",
        "y",
        "yes",
        "YES",
        "on",
        "of",
        "off",
        "f",
        "FALSE",
        "false",
        "n",
        "no",
        "o",
        "truee",
        "tru e",
        "\u{a0}true",
        "2020-01-01",
        "2020-1-1",
        "2020-1-01",
        "2020-01-1",
        "20200101",
        "2020-02-30",
        "2020-02-29",
        "2019-02-29",
        "1900-02-29",
        "2000-02-29",
        "0000-01-01",
        "0001-01-01",
        "9999-12-31",
        "2020-13-01",
        "2020-00-01",
        "2020-01-00",
        "2020-01-32",
        "2020/01/01",
        "2020-01-01 ",
        " 2020-01-01",
        "+2020-01-01",
        "-2020-01-01",
        "+10999-12-31",
        "-0012-05-06",
        "+5881580-07-11",
        "+5881580-07-12",
        "-5877641-06-23",
        "-5877641-06-22",
        "+262142-12-31",
        "+262143-01-01",
        "+012-01-01",
        "+2020-+1-01",
        "+2020-01-001",
        "+2020-01-01-",
        "+2020-01",
        "++2020-01-01",
        "20200132",
        "2020010",
        "202001011",
        "2020-01-01T00:00:00",
        "2020-01-01t23:59:59",
        "2020-01-01 12:34:56",
        "2020-01-01 12:34:56.1",
        "2020-01-01 12:34:56.123456789",
        "2020-01-01 12:34:56.123456789123",
        "2020-01-01 12:34:56.12345678912345678",
        "2020-01-01 12:34:56.",
        "2020-01-01 12:34:60",
        "2020-01-01 12:34:60.5",
        "2020-01-01 12:34:61",
        "2020-01-01 24:00:00",
        "2020-01-01 12:60:00",
        "2020-01-01 123456",
        "2020-01-01 1234567",
        "2020-01-01 12345",
        "2020-01-01 12:34",
        "2020-01-01T12:34:56Z",
        "2020-01-01T12:34:56z",
        "2020-01-01T12:34:56Z ",
        "2020-01-01T12:34:56+01:00",
        "2020-01-01T12:34:56-0730",
        "2020-01-01T12:34:56 +05",
        "2020-01-01T12:34:56  -08",
        "2020-01-01T12:34:56+24:00",
        "2020-01-01T12:34:56+23:59",
        "2020-01-01T12:34:56+1:00",
        "2020-01-01T12:34:56.789+01:00",
        "2020-01-01T12:34:56.123456789123+01:00",
        "2020-01-01T12:34:56.12345678912345+01:00",
        "2020-01-01 123456+04:00",
        "1969-12-31T23:59:59.999999999",
        "0000-01-01T00:00:00",
        "9999-12-31T23:59:59.999999999",
        "1677-09-21T00:12:43.145224192",
        "1677-09-21T00:12:43.145224191",
        "2262-04-11T23:47:16.854775807",
        "2262-04-11T23:47:16.854775808",
        "2020-01-01X00:00:00",
        "2020-02-30T00:00:00",
        "2020-01-01T",
        "2020-01-01T00:00:00+",
        "12:34",
        "1:23",
        "01:23:45",
        "1:23:45",
        "23:59:59",
        "24:00:00",
        "12:60",
        "12:34:60",
        "12:34:60.9",
        "12:34:61",
        "12:34:56.7",
        "12:34:56.123456789",
        "12:34:56.1234567891",
        "12:34:56.",
        "12:34:56.a",
        "12:00 AM",
        "12:00 PM",
        "1:00 am",
        "11:59:59.5 pM",
        "13:00 PM",
        "0:30 AM",
        "12:34 XM",
        "12:3",
        "1234",
        "123:4",
        "12:34:5",
        "12:34:567",
        "86399",
        "-86399",
    ]
    .map(String::from)
    .to_vec();
    texts.push("9".repeat(100));
    texts.push(format!("0.{}", "1".repeat(76)));
    texts.push(format!("0.{}", "1".repeat(78)));
    texts.push(format!("0.{}1", "0".repeat(100)));
    texts.push(format!("{}1", "0".repeat(100)));
    texts.into_iter().map(|text| LiteralValue::Bytes(text.into_bytes())).collect()
}

#[test]
fn strings_parse() {
    for (from, checked) in [(DataType::Utf8View, false), (DataType::Utf8, true), (DataType::LargeUtf8, false)] {
        let to: Vec<DataType> = data::all();
        casts(&from, &texts(), &to, checked, if checked { Profile::Gpu } else { Profile::Cpu });
    }
}

/// Mutations of valid strings, so that each byte is wrong once.
#[test]
fn mutated_strings_parse() {
    let seed = rand::random();
    println!("seed {seed}");
    let mut random = StdRng::seed_from_u64(seed);
    let sound = texts();
    let mut values = Vec::new();
    for _ in 0..1500 {
        let LiteralValue::Bytes(mut bytes) = sound[random.random_range(0..sound.len())].clone() else { continue };
        for _ in 0..random.random_range(1..3) {
            // No letters: two of them might be a zone's name, which the host parses.
            let alphabet = b"0123456789-+:. \t/";
            let position = random.random_range(0..=bytes.len());
            let other = alphabet[random.random_range(0..alphabet.len())];
            match random.random_range(0..3) {
                0 if position < bytes.len() => bytes[position] = other,
                1 if position < bytes.len() => {
                    bytes.remove(position);
                }
                _ => bytes.insert(position, other),
            }
        }
        if String::from_utf8(bytes.clone()).is_ok() {
            values.push(LiteralValue::Bytes(bytes));
        }
    }
    let time = |unit| DataType::Time64(unit);
    let to = [
        vec![
            DataType::Boolean,
            DataType::Int8,
            DataType::Int64,
            DataType::UInt64,
            DataType::Decimal128(15, 2),
            DataType::Decimal128(38, 0),
            DataType::Date32,
            DataType::Date64,
        ],
        vec![
            DataType::Timestamp(TimeUnit::Nanosecond, None),
            DataType::Timestamp(TimeUnit::Second, Some("+02:00".into())),
            time(TimeUnit::Nanosecond),
        ],
    ]
    .concat();
    casts(&DataType::Utf8, &values, &to, false, Profile::Cpu);
}

#[test]
fn binary_casts_to_valid_utf8() {
    let values: Vec<LiteralValue> = [
        &b"abc"[..],
        b"\xff",
        b"\xc3\xa4",
        b"\xc3",
        b"\xc0\x80",
        b"\xe0\x80\x80",
        b"\xed\xa0\x80",
        b"\xed\x9f\xbf",
        b"\xf0\x9f\xa6\x80",
        b"\xf4\x90\x80\x80",
        b"\xf0\x80\x80\x80",
        b"a\x80",
        b"\xe6\x97",
        b"\xf5\x80\x80\x80",
        b"",
    ]
    .iter()
    .map(|bytes| LiteralValue::Bytes(bytes.to_vec()))
    .collect();
    for from in [DataType::Binary, DataType::LargeBinary, DataType::BinaryView] {
        casts(
            &from,
            &values,
            &[data::strings(), vec![DataType::LargeBinary, DataType::BinaryView]].concat(),
            false,
            Profile::Gpu,
        );
        casts(&from, &values[..1], &data::strings(), true, Profile::Gpu);
    }
}

/// Every day of about 2190 years before and after 1970, formatted and parsed.
#[test]
fn every_day_formats_and_parses() {
    let days: Vec<LiteralValue> = (-800_000..=800_000).map(LiteralValue::Int).collect();
    let column = data::array(&DataType::Date32, &days);
    let text = arrow::compute::cast(&column, &DataType::Utf8).unwrap();
    let instants = arrow::compute::cast(&column, &DataType::Timestamp(TimeUnit::Second, None)).unwrap();
    let batch = batch(vec![column.clone(), text.clone(), instants]);
    let types = natural(&batch);
    let device = upload(&batch, &types);
    let cast = |index, to: DataType| Expr::Cast { expr: crate::operators::column(index), to, checked: true };
    let computed = evaluate(
        &device,
        &types,
        &[cast(0, DataType::Utf8), cast(1, DataType::Date32), cast(2, DataType::Date32)],
        24,
        Profile::Cpu,
    );
    let written = values(&text);
    assert!(computed.iter().all(|computed| computed.failed.is_none()));
    for row in 0..days.len() {
        assert_eq!(computed[0].values[row], written[row]);
        assert_eq!(computed[1].values[row], days[row]);
        assert_eq!(computed[2].values[row], days[row]);
    }
}
