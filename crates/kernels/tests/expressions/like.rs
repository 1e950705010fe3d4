// SPDX-License-Identifier: Apache-2.0
//! `LIKE` and `ILIKE`: constant patterns of every kind, and patterns by row.

use arrow::datatypes::DataType;
use kernels::codegen::Profile;
use kernels::expr::{Expr, LiteralValue};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use crate::data::{self, array, pairs_of};
use crate::harness::{batch, check, check_in, lit, natural};
use crate::operators::column;

const TEXTS: [&str; 26] = [
    "",
    "a",
    "b",
    "é",
    "éa",
    "aé",
    "éé",
    "ab",
    "abc",
    "aXc",
    "aéc",
    "%",
    "_",
    r"\",
    r"\a",
    "a%b",
    "a_b",
    "a\nb",
    "a.b",
    "日本語",
    "aaaaaaaaab",
    "special requests",
    "very special, unusual requests",
    "requests that are special",
    "specialrequestsspecial",
    "MEDIUM POLISHED STEEL",
];

const PATTERNS: [&str; 48] = [
    "",
    "%",
    "%%",
    "_",
    "__",
    "___",
    "a",
    "a%",
    "%a",
    "%a%",
    "%b%",
    "a_c",
    "a__",
    "_a",
    "%_a",
    "%a_",
    "%_%",
    "_%_",
    "%__%",
    "é%",
    "%é",
    "%é%",
    "_é",
    "é_",
    r"a\%b",
    r"a\_b",
    r"\%",
    r"\_",
    r"\",
    r"\\",
    r"\\%",
    r"%\\",
    r"\a",
    r"\\a",
    r"a\",
    r"%\%%",
    r"\%%",
    r"\é%",
    "%special%requests%",
    "special%",
    "%special",
    "%special%special",
    "MEDIUM POLISHED%",
    "%STEEL",
    "a%a%a%b",
    "a\nb",
    "a.b",
    "%本%",
];

fn text(text: &str) -> LiteralValue {
    LiteralValue::Bytes(text.as_bytes().to_vec())
}

fn like(pattern: Expr) -> Expr {
    Expr::Like { ignores_case: false, expr: column(0), pattern: Box::new(pattern) }
}

fn ilike(pattern: Expr) -> Expr {
    Expr::Like { ignores_case: true, expr: column(0), pattern: Box::new(pattern) }
}

/// Letters with cases of the same or of another length in bytes, and letters without cases.
const LETTERS: [&str; 24] = [
    "a", "A", "k", "K", "\u{212a}", "s", "S", "ſ", "ß", "ẞ", "é", "É", "σ", "ς", "Σ", "İ", "ı", "i", "I", "ﬀ", "ᾳ", "ᾼ", "ꮿ", "Ꮿ",
];

fn texts() -> Vec<LiteralValue> {
    TEXTS.iter().map(|word| text(word)).chain([LiteralValue::Null]).collect()
}

#[test]
fn constant_patterns_agree_with_arrow() {
    for data_type in data::strings() {
        let rows = batch(vec![array(&data_type, &texts())]);
        let patterns = PATTERNS.iter().map(|pattern| text(pattern)).chain([LiteralValue::Null]);
        let likes: Vec<Expr> = patterns.map(|pattern| like(lit(&data_type, pattern))).collect();
        let negated = likes.iter().map(|like| Expr::Not(Box::new(like.clone())));
        for exprs in likes.iter().cloned().chain(negated).collect::<Vec<_>>().chunks(12) {
            check_in(&rows, &natural(&rows), exprs, &[Profile::Cpu, Profile::Gpu]);
        }
    }
}

#[test]
fn row_patterns_agree_with_arrow() {
    let patterns: Vec<LiteralValue> = PATTERNS.iter().map(|pattern| text(pattern)).chain([LiteralValue::Null]).collect();
    for data_type in data::strings() {
        let (left, right) = pairs_of(&data_type, &texts(), &data_type, &patterns);
        check(&batch(vec![left, right]), &[like(Expr::Column(1))]);
    }
}

#[test]
fn random_patterns_agree_with_arrow() {
    let seed = std::env::var("DEVICEFUSION_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or_else(rand::random);
    println!("DEVICEFUSION_SEED={seed}");
    let mut rng = StdRng::seed_from_u64(seed);
    let mut word = |letters: &[&str], most: usize| -> String {
        (0..rng.random_range(0..=most)).map(|_| letters[rng.random_range(0..letters.len())]).collect()
    };
    let data_type = DataType::Utf8View;
    let values: Vec<LiteralValue> = (0..3000).map(|_| text(&word(&["a", "b", "é", "%", r"\"], 12))).collect();
    let patterns: Vec<LiteralValue> = (0..3000).map(|_| text(&word(&["a", "b", "é", "%", "%", "_", r"\"], 8))).collect();
    check(&batch(vec![array(&data_type, &values), array(&data_type, &patterns)]), &[like(Expr::Column(1))]);
    let values: Vec<LiteralValue> = (0..3000).map(|_| text(&word(&["a", "A", "é", "É", "K", "%", r"\"], 10))).collect();
    let patterns: Vec<LiteralValue> = (0..3000).map(|_| text(&word(&["a", "A", "é", "k", "%", "%", "_", r"\"], 7))).collect();
    check(&batch(vec![array(&data_type, &values), array(&data_type, &patterns)]), &[ilike(Expr::Column(1))]);
}

#[test]
fn case_folding_agrees_with_arrow() {
    let letters: Vec<LiteralValue> = LETTERS.iter().map(|letter| text(letter)).collect();
    for data_type in data::strings() {
        let (left, right) = pairs_of(&data_type, &letters, &data_type, &letters);
        check(&batch(vec![left, right]), &[ilike(Expr::Column(1))]);
        let rows = batch(vec![array(&data_type, &[texts(), letters.clone()].concat())]);
        let patterns =
            ["", "%", "A", "a%", "%A", "%É%", "_É", "aBC", r"a\_B", "SPECIAL%", "%requestS", "%Steel%", "K", "%ſ", "日_語"];
        let likes: Vec<Expr> = patterns.iter().map(|pattern| ilike(lit(&data_type, text(pattern)))).collect();
        for exprs in likes.chunks(8) {
            check_in(&rows, &natural(&rows), exprs, &[Profile::Cpu, Profile::Gpu]);
        }
    }
}

#[test]
fn other_types_are_refused() {
    let rows = batch(vec![array(&DataType::Binary, &[text("a")])]);
    let expr = like(lit(&DataType::Binary, text("a%")));
    assert_eq!(kernels::support::supports(&expr, &rows.schema()).unwrap_err(), "LIKE of Binary is not supported on the device");
}
