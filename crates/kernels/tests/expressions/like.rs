// SPDX-License-Identifier: Apache-2.0
//! `LIKE` and `ILIKE`: constant patterns of every kind, and patterns by row.

use std::sync::Arc;

use arrow::array::Scalar;
use arrow::compute::kernels::comparison;
use arrow::datatypes::DataType;
use kernels::codegen::Profile;
use kernels::expr::{Expr, LiteralValue};
use kernels::function::Function;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use crate::data::{self, array, pairs_of};
use crate::harness::{PROFILES, batch, check, check_in, evaluate, lit, natural, upload, values};
use crate::operators::column;
use crate::strings::call;

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
    Expr::Like { ignores_case: false, expr: column(0), pattern: Arc::new(pattern) }
}

fn ilike(pattern: Expr) -> Expr {
    Expr::Like { ignores_case: true, expr: column(0), pattern: Arc::new(pattern) }
}

/// Letters with cases of the same or of another length in bytes, and letters without cases.
const LETTERS: [&str; 24] = [
    "a", "A", "k", "K", "\u{212a}", "s", "S", "ſ", "ß", "ẞ", "é", "É", "σ", "ς", "Σ", "İ", "ı", "i", "I", "ﬀ", "ᾳ", "ᾼ", "ꮿ", "Ꮿ",
];

fn texts() -> Vec<LiteralValue> {
    TEXTS.iter().map(|term| text(term)).chain([LiteralValue::Null]).collect()
}

#[test]
fn constant_patterns_agree_with_arrow() {
    device::skip_unless_turn!(4);
    for data_type in data::strings() {
        let rows = batch(vec![array(&data_type, &texts())]);
        let patterns = PATTERNS.iter().map(|pattern| text(pattern)).chain([LiteralValue::Null]);
        let likes: Vec<Expr> = patterns.map(|pattern| like(lit(&data_type, pattern))).collect();
        let negated = likes.iter().map(|like| Expr::Not(Arc::new(like.clone())));
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

fn seeded() -> StdRng {
    let seed = std::env::var("DEVICEFUSION_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or_else(rand::random);
    println!("DEVICEFUSION_SEED={seed}");
    StdRng::seed_from_u64(seed)
}

/// Up to `most` of these letters.
fn term(rng: &mut StdRng, letters: &[&str], most: usize) -> String {
    (0..rng.random_range(0..=most)).map(|_| letters[rng.random_range(0..letters.len())]).collect()
}

/// LIKE of a concatenation.
fn concat_like(parts: Vec<Expr>, data_type: &DataType, pattern: Expr) -> Expr {
    let expr = call(Function::Concat, parts, data_type);
    Expr::Like { ignores_case: false, expr: Arc::new(expr), pattern: Arc::new(pattern) }
}

/// Checks LIKE of a string and of a concatenation, and ILIKE. The columns: the string, the pattern,
/// the string's two parts.
fn check_likes(rng: &mut StdRng, rows: &[(String, String)]) {
    let data_type = DataType::Utf8View;
    let mut columns = [const { Vec::new() }; 4];
    for (string, pattern) in rows {
        let cut = rng.random_range(0..=string.chars().count());
        let cut = string.char_indices().nth(cut).map_or(string.len(), |(at, _)| at);
        for (column, value) in columns.iter_mut().zip([string, &pattern[..], &string[..cut], &string[cut..]]) {
            column.push(if rng.random_range(0..50) == 0 { LiteralValue::Null } else { text(value) });
        }
    }
    let rows = batch(columns.iter().map(|column| array(&data_type, column)).collect());
    let pattern = || Expr::Column(1);
    let parts = vec![Expr::Column(2), lit(&data_type, text("")), Expr::Column(3)];
    let exprs = [like(pattern()), ilike(pattern()), concat_like(parts, &data_type, pattern())];
    check_in(&rows, &natural(&rows), &exprs, &PROFILES);
}

#[test]
fn random_patterns_agree_with_arrow() {
    device::skip_unless_turn!(6);
    let mut rng = seeded();
    let alphabets: [(&[&str], &[&str]); 4] = [
        (&["a", "b", "é", "%", r"\"], &["a", "b", "é", "%", "%", "_", r"\"]),
        (&["a", "A", "é", "É", "K", "%", r"\"], &["a", "A", "é", "k", "%", "%", "_", r"\"]),
        (&["k", "K", "\u{212a}", "s", "ſ", "日", "😀"], &["k", "K", "\u{212a}", "S", "ſ", "日", "😀", "%", "%", "_", r"\"]),
        (&["a", "b"], &["a", "b", "%", "_"]),
    ];
    for (letters, pattern_letters) in alphabets {
        let rows: Vec<_> = (0..4000).map(|_| (term(&mut rng, letters, 14), term(&mut rng, pattern_letters, 9))).collect();
        check_likes(&mut rng, &rows);
    }
}

/// Periodic strings and patterns: slow for a search that starts again at each character. The long
/// patterns do not fit into the words of one slice.
#[test]
fn periodic_patterns_agree_with_arrow() {
    device::skip_unless_turn!(2);
    let mut rng = seeded();
    let letters = ["a", "b", "A", "é", "K", "\u{212a}", "日", "😀"];
    let periodic = |rng: &mut StdRng, most: usize, exceptions: &[&str]| {
        let part = loop {
            let few = &letters[..rng.random_range(1..=letters.len())];
            let part = term(rng, few, 3);
            if !part.is_empty() {
                break part;
            }
        };
        let mut text = String::new();
        for at in 0..rng.random_range(0..most) {
            text.push_str(&if at % 40 == 39 { term(rng, exceptions, 1) } else { part.clone() });
        }
        (part, text)
    };
    let rows: Vec<(String, String)> = (0..400)
        .map(|_| {
            let (part, string) = periodic(&mut rng, 900, &["", "a", "b"]);
            let mut pattern = String::new();
            for _ in 0..rng.random_range(1..4) {
                pattern.push_str(["", "%", "%", "%_"][rng.random_range(0..4)]);
                let wild = rng.random_range(0..3);
                for _ in 0..[4, 30, 150][rng.random_range(0..3)] {
                    match rng.random_range(0..20) {
                        0..5 if wild > 0 => pattern.push_str(&"_".repeat(part.chars().count())),
                        5 if wild == 2 => pattern.push_str(&format!(r"\{part}")),
                        _ => pattern.push_str(&part),
                    }
                }
                pattern.push_str(["", "", "a", "_", "b"][rng.random_range(0..5)]);
            }
            pattern.push_str(["", "%", "%"][rng.random_range(0..3)]);
            (string, pattern)
        })
        .collect();
    check_likes(&mut rng, &rows);
    let long = |pattern: &str, string: &str| (string.to_string(), pattern.to_string());
    let (a, ab, cycle) = ("a".repeat(20_000), "ab".repeat(10_000), "abcdefghijklmnopqrstuvwxyzéü".repeat(500));
    let spaced = |part: &str, times: usize, end: &str| format!("%{}{end}%", part.repeat(times));
    let rows = [
        long(&spaced("a_", 500, "c"), &a),
        long(&spaced("a_", 500, "c"), &format!("{a}c")),
        long(&spaced("a_", 500, "b"), &format!("{a}b{a}")),
        long(&spaced("aaaaaaa_", 400, "b"), &a),
        long(&spaced("aaaaaaa_", 400, "b"), &format!("{a}b{a}")),
        long(&spaced("aaaaaab_", 400, "c"), &format!("{}c", "aaaaaaba".repeat(2000))),
        long(&spaced("a", 5000, "b"), &a),
        long(&spaced("a", 5000, "b"), &format!("{a}b")),
        long(&spaced("ab", 5000, "a"), &ab),
        long(&spaced("ab", 5000, "_b"), &ab),
        long(&spaced("é", 3000, "b"), &format!("{}b", "é".repeat(9000))),
        long(&spaced("é_", 300, "b"), &format!("{}b", "é".repeat(9000))),
        long(&spaced("abcdefg_ijklmnopqrstuvwxyzéü", 100, "b"), &cycle),
        long(&spaced("abcdefg_ijklmnopqrstuvwxyzéü", 100, "a_c"), &cycle),
        long(&format!("{}%_b", spaced("a", 1000, "").repeat(3)), &format!("{a}ab")),
    ];
    check_likes(&mut rng, &rows);
}

/// Checks LIKE and ILIKE of constant patterns, which the cpu profile compiles.
fn check_constants(texts: &[String], patterns: &[impl AsRef<str>]) {
    let data_type = DataType::Utf8View;
    let column = texts.iter().map(|string| text(string)).chain([LiteralValue::Null]).collect::<Vec<_>>();
    let rows = batch(vec![array(&data_type, &column)]);
    let (types, strings) = (natural(&rows), rows.column(0));
    let device = upload(&rows, &types);
    for patterns in patterns.chunks(8) {
        let literals = patterns.iter().map(|pattern| lit(&data_type, text(pattern.as_ref())));
        let exprs: Vec<Expr> = literals.flat_map(|pattern| [like(pattern.clone()), ilike(pattern)]).collect();
        let computed = evaluate(&device, &types, &exprs, 0, Profile::Cpu);
        for (pattern, computed) in patterns.iter().zip(computed.chunks(2)) {
            let scalar = Scalar::new(array(&data_type, &[text(pattern.as_ref())]));
            let expected = [comparison::like(strings, &scalar), comparison::ilike(strings, &scalar)];
            for (expected, computed) in expected.into_iter().zip(computed) {
                for (row, expected) in values(&expected.unwrap()).iter().enumerate() {
                    assert_eq!(computed.values[row], *expected, "{:?} of {:?}", pattern.as_ref(), texts.get(row));
                }
            }
        }
    }
}

/// Vectors compare 16 and 64 offsets at once, the last ones of a string again.
#[test]
fn constant_patterns_match_at_each_position() {
    let mut texts = vec![String::new(), "special".into(), "SPECIAL requests".into()];
    for (fill, needle) in [("x", "k"), ("x", "ab"), ("x", "aXb"), ("a", "abéK"), ("é", "special request"), ("K", "aaaaab")] {
        for len in [0, 1, 7, 14, 15, 16, 17, 18, 31, 33, 63, 64, 65, 80, 81, 130] {
            for before in (0..=len).filter(|at| len < 40 || at % 16 < 3 || len - at < 3) {
                texts.push(format!("{}{needle}{}", fill.repeat(before), fill.repeat(len - before)));
            }
        }
    }
    // LIKE of the first patterns does not compile them.
    for patterns in [
        "%k%|%ab%|%aXb%|%special request%|%aaaab%|%ak%|%é%|%aaaaaaaaaaaaaaaaaaab%",
        "k|K%|%K|ABÉk|%special|special%||%",
        "%a_b%|a_b%|%a_b|%ab_k%|%ab_K|%_aX_%|%a%b_K|%sp_cial%",
        "%special_re%st%|_%é%_|%éa_b%|%aa_b%|%__k|%É%_K%|____|_%_%_%_",
    ] {
        check_constants(&texts, &patterns.split('|').collect::<Vec<_>>());
    }
}

#[test]
fn random_constant_patterns_agree_with_arrow() {
    let mut rng = seeded();
    let alphabets: [(&[&str], &[&str]); 4] = [
        (&["a", "b"], &["a", "b", "%", "_"]),
        (&["a", "A", "é", "É", "k", "K", "%", r"\"], &["a", "A", "é", "k", "%", "%", "_", r"\"]),
        (&["k", "\u{212a}", "s", "ſ", "日", "😀", "b"], &["k", "\u{212a}", "S", "ſ", "日", "😀", "b", "%", "%", "_"]),
        (&["р", "Р", "с", "д", "Д", "ж"], &["р", "Р", "с", "Д", "ж", "%", "_"]),
    ];
    for (letters, pattern_letters) in alphabets {
        let texts: Vec<String> = (0..600).map(|row| term(&mut rng, letters, [14, 40, 100][row % 3])).collect();
        // Patterns without `_` may be searched for by other functions: other kernels to compile.
        let patterns = (0..24).map(|number| {
            let parts = [term(&mut rng, pattern_letters, 7), term(&mut rng, pattern_letters, 5)];
            format!("{}{}", ["", "%"][number % 2], parts.join("_"))
        });
        let patterns: Vec<String> = patterns.collect();
        check_constants(&texts, &patterns);
    }
}

/// Parts of more than 64 elements, and of more than 1024, in strings that nearly match.
#[test]
fn long_constant_patterns_agree_with_arrow() {
    let mut rng = seeded();
    let near = "a".repeat(1500);
    let mut texts = vec![
        near.clone(),
        format!("{near}b{near}"),
        // The search of all elements ends within the letters x.
        format!("{near}{}{}b", "x".repeat(700), "a".repeat(90)),
        format!("{near}{}{near}{}c", "x".repeat(700), "é".repeat(300)),
        "aab".repeat(900),
        format!("{}ab{}", "aab".repeat(400), "aab".repeat(400)),
        format!("{}c", "é".repeat(1300)),
        format!("{}Éb{}", "aé".repeat(700), "Aé".repeat(700)),
        "abcdefgh_".repeat(200),
    ];
    texts.extend((0..40).map(|_| {
        let period = term(&mut rng, &["a", "b", "é", "K"], 3) + "a";
        (0..rng.random_range(50..700)).map(|at| if at % 97 == 96 { "b" } else { period.as_str() }).collect::<String>()
    }));
    let patterns = [
        format!("%{}b%", "a_".repeat(40)),
        format!("%{}b%c%", "_a".repeat(40)),
        format!("%{}_b%", "a".repeat(70)),
        format!("%{}_b%", "a".repeat(1100)),
        format!("%{}_b", "aab".repeat(350)),
        format!("{}%{}%_", "a".repeat(65), "aa_".repeat(500)),
        format!("%{}_c%", "é".repeat(400)),
        format!("%{}b%{}%", "a_".repeat(600), "_é".repeat(70)),
    ];
    check_constants(&texts, &patterns);
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
