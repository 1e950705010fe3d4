// SPDX-License-Identifier: Apache-2.0
//! Formatting and parsing of floats agrees with arrow-cast to the bit.

use std::sync::Arc;

use arrow::array::{ArrayRef, Float32Array, Float64Array, StringArray};
use arrow::compute::cast;
use arrow::datatypes::DataType;
use kernels::codegen::Profile;
use kernels::expr::Expr;
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};

use crate::harness::{PROFILES, batch, evaluate, natural, same, upload, values};
use crate::operators::column;

/// Longer than any formatted float.
const SLOT: usize = 32;

/// Compares `TRY_CAST` of a column with arrow's cast.
#[track_caller]
fn agrees(input: ArrayRef, to: DataType, profile: Profile) {
    let expected = values(&cast(&input, &to).unwrap());
    let batch = batch(vec![input.clone()]);
    let types = natural(&batch);
    let expr = Expr::Cast { expr: column(0), to: to.clone(), checked: false };
    let computed = evaluate(&upload(&batch, &types), &types, &[expr], SLOT, profile);
    for (row, (expected, got)) in expected.iter().zip(&computed[0].values).enumerate() {
        let input = values(&input.slice(row, 1));
        assert!(same(expected, got), "{profile:?}: {input:?} as {to}: expected {expected:?}, got {got:?}");
    }
}

fn random() -> StdRng {
    let seed = rand::random();
    println!("seed {seed}");
    StdRng::seed_from_u64(seed)
}

/// Bits of numbers on all paths of the formatter: around powers of two and of ten, whole numbers,
/// few digits, subnormals, and random bits.
fn bits(random: &mut StdRng, parse: impl Fn(&str) -> u64, mantissa: u32, infinity: u64) -> Vec<u64> {
    let mut bits: Vec<u64> = vec![0, infinity, infinity + 1, infinity | 1 << (mantissa - 1)];
    let mut near = |word: u64| bits.extend([word.saturating_sub(2), word.saturating_sub(1), word, word + 1, word + 2]);
    (0..=infinity >> mantissa).for_each(|exponent| near(exponent << mantissa));
    (-330..310).for_each(|exponent| near(parse(&format!("1e{exponent}"))));
    (0..60).for_each(|power| near(parse(&(1u64 << power).to_string())));
    bits.extend(
        (0..2000u64).chain([99_999, 123_456, 999_999_999_999, 9_999_999_999_999_999]).map(|whole| parse(&whole.to_string())),
    );
    for _ in 0..10_000 {
        bits.push(random.random_range(0..infinity));
        bits.push(parse(&format!("{}e{}", random.random_range(0..100_000), random.random_range(-20..20))));
        bits.push(parse(&random.random_range(0..1u64 << 60).to_string()));
    }
    let sign = (infinity >> mantissa).wrapping_add(1) << mantissa;
    bits.iter().flat_map(|word| [*word, word | sign]).collect()
}

fn doubles(random: &mut StdRng) -> Float64Array {
    let bits = bits(random, |text| text.parse::<f64>().unwrap().to_bits(), 52, f64::INFINITY.to_bits());
    bits.into_iter().map(f64::from_bits).map(Some).collect()
}

fn singles(random: &mut StdRng) -> Float32Array {
    let bits = bits(random, |text| text.parse::<f32>().unwrap().to_bits().into(), 23, f32::INFINITY.to_bits().into());
    bits.into_iter().map(|word| Some(f32::from_bits(word as u32))).collect()
}

#[test]
fn floats_format() {
    let mut random = random();
    agrees(Arc::new(doubles(&mut random)), DataType::Utf8, Profile::Gpu);
    agrees(Arc::new(doubles(&mut random)), DataType::Utf8View, Profile::Cpu);
    agrees(Arc::new(singles(&mut random)), DataType::LargeUtf8, Profile::Gpu);
    agrees(Arc::new(singles(&mut random)), DataType::Utf8, Profile::Cpu);
}

#[test]
fn formatted_floats_parse() {
    let mut random = random();
    let text = cast(&doubles(&mut random), &DataType::Utf8View).unwrap();
    agrees(text.clone(), DataType::Float64, Profile::Gpu);
    agrees(text, DataType::Float32, Profile::Cpu);
    let text = cast(&singles(&mut random), &DataType::LargeUtf8).unwrap();
    agrees(text, DataType::Float32, Profile::Gpu);
}

/// Compares both float types, in both profiles.
#[track_caller]
fn reads(texts: Vec<String>) {
    let texts: ArrayRef = Arc::new(StringArray::from(texts));
    for (to, profile) in [DataType::Float64, DataType::Float32].into_iter().zip(PROFILES) {
        agrees(texts.clone(), to, profile);
    }
}

/// Decimal digits of `mantissa * 2^exponent`, and their power of ten.
fn exact(mantissa: u64, exponent: i32) -> (String, i32) {
    let mut digits: Vec<u32> = mantissa.to_string().bytes().rev().map(|digit| u32::from(digit - b'0')).collect();
    let factor = if exponent < 0 { 5 } else { 2 };
    for _ in 0..exponent.abs() {
        let mut carry = 0;
        for digit in &mut digits {
            carry += *digit * factor;
            *digit = carry % 10;
            carry /= 10;
        }
        if carry > 0 {
            digits.push(carry);
        }
    }
    let zeros = digits.iter().take_while(|digit| **digit == 0).count();
    (digits[zeros..].iter().rev().map(u32::to_string).collect(), exponent.min(0) + zeros as i32)
}

/// Strings of the midpoint of two floats, and of numbers close to it.
fn halfway(texts: &mut Vec<String>, bits: u64, mantissa: u32, bias: i32) {
    let (fraction, biased) = (bits & ((1 << mantissa) - 1), (bits >> mantissa) as i32);
    let whole = if biased > 0 { fraction | 1 << mantissa } else { fraction };
    let (digits, exponent) = exact(whole * 2 + 1, biased.max(1) - bias - mantissa as i32 - 1);
    let (all_but_one, last) = digits.split_at(digits.len() - 1);
    let lower = last.parse::<u32>().unwrap() - 1;
    texts.push(format!("{digits}e{exponent}"));
    texts.push(format!("-{digits}.00000e{exponent}"));
    texts.push(format!("{all_but_one}{lower}{}e{}", "9".repeat(30), exponent - 30));
    texts.push(format!("{all_but_one}{lower}e{exponent}"));
    texts.push(format!("{digits}1e{}", exponent - 1));
    texts.push(format!("{digits}{}1e{}", "0".repeat(850), exponent - 851));
    for kept in [17, 19, 20, 25, 40].into_iter().filter(|kept| *kept < digits.len()) {
        let (begin, rest) = digits.split_at(kept);
        texts.push(format!("{begin}e{}", exponent + rest.len() as i32));
        texts.push(format!("{begin}.{rest}e{}", exponent + rest.len() as i32));
    }
    let point = digits.len() as i32 + exponent;
    texts.push(match usize::try_from(point) {
        Ok(point) if point <= digits.len() => format!("{}.{}", &digits[..point], &digits[point..]),
        Ok(_) => digits,
        Err(_) => format!(".{}{digits}", "0".repeat(point.unsigned_abs() as usize)),
    });
}

#[test]
fn midpoints_of_floats_parse() {
    let mut random = random();
    let mut texts = Vec::new();
    let greatest = (f64::MAX.to_bits(), u64::from(f32::MAX.to_bits()));
    for bits in [0, 1, (1 << 52) - 1, 1 << 52, greatest.0, greatest.0 - 1] {
        halfway(&mut texts, bits, 52, 1023);
    }
    for bits in [0, 1, (1 << 23) - 1, 1 << 23, greatest.1, greatest.1 - 1] {
        halfway(&mut texts, bits, 23, 127);
    }
    for _ in 0..60 {
        halfway(&mut texts, random.random_range(0..greatest.0), 52, 1023);
        halfway(&mut texts, random.random_range(1000 << 52..1100 << 52), 52, 1023);
        halfway(&mut texts, random.random_range(0..greatest.1), 23, 127);
    }
    reads(texts);
}

#[test]
fn random_decimals_parse() {
    let mut random = random();
    let mut texts = Vec::new();
    for _ in 0..30_000 {
        let digits = random.random_range(1..30);
        let point = random.random_range(0..digits + 3);
        let mut text = String::from(*["", "-", "+"].choose(&mut random).unwrap());
        for position in 0..digits {
            if position == point {
                text.push('.');
            }
            text.push(char::from(random.random_range(b'0'..=b'9')));
        }
        if random.random_bool(0.5) {
            text += &format!("e{}", random.random_range(-380..340));
        }
        texts.push(text);
    }
    reads(texts);
}

#[test]
fn invalid_floats_are_rejected() {
    let mut random = random();
    let parts = [
        "",
        "+",
        "-",
        ".",
        "e",
        "E",
        "1",
        "0",
        "00",
        "5",
        "inf",
        "INF",
        "iNfinity",
        "infinit",
        "nan",
        "NaN",
        " ",
        "\t",
        "\n",
        "\u{b}",
        "\u{c}",
        "\r",
        "\u{a0}",
        "1e",
        "e5",
        "e-",
        "e+",
        "_",
        "x",
        "0x1",
        "1.5",
        ".5",
        "1.",
        "9999999999999999999999",
        "000000000000000000000000",
        "e400",
        "e-400",
        "e99999999999999999999",
        "e-0000000000000000001",
    ];
    let mut texts = Vec::new();
    for part in parts {
        for other in parts {
            texts.push(format!("{part}{other}"));
        }
    }
    for _ in 0..10_000 {
        texts.push((0..random.random_range(3..6)).map(|_| *parts.choose(&mut random).unwrap()).collect());
        let letters = b"0123456789.eE+-infatyNI \t_";
        texts.push((0..random.random_range(1..8)).map(|_| char::from(*letters.choose(&mut random).unwrap())).collect());
    }
    reads(texts);
}
