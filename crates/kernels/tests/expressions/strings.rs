// SPDX-License-Identifier: Apache-2.0
//! Functions of strings with slices, numbers and Booleans as results, over every layout.

use arrow::array::ArrayRef;
use arrow::compute::cast;
use arrow::datatypes::DataType;
use columnar::ColumnType;
use kernels::codegen::Profile;
use kernels::expr::{Expr, LiteralValue};
use kernels::function::Function;
use kernels::support::supports;

use crate::data::{self, array, pairs_of};
use crate::harness::{PROFILES, batch, check, check_in, evaluate, lit, natural, upload};

/// Characters of one to four bytes in every order, and the strings that the functions search for.
const TEXTS: [&str; 30] = [
    "",
    " ",
    "a",
    "é",
    "日",
    "🦀",
    "aé日🦀",
    "🦀日éa",
    "  a b  ",
    "\t a \t",
    "xyxtrimyyx",
    "ééaéé",
    "日本語テキスト",
    "13-702-694-3458",
    "1.2.3.4.5",
    "..",
    "...",
    ".",
    "a.b",
    ".a.b.",
    "aaa",
    "aaaa",
    "ababab",
    "aabaab",
    "e\u{301}",
    "special requests",
    "MEDIUM POLISHED STEEL",
    "abcdefghijkl",
    "abcdefghijklm",
    "éabcdefghijklmnopqrstuvwxyz",
];

const NUMBERS: [i64; 17] = [i64::MIN, i64::MIN + 1, -1000, -5, -4, -3, -2, -1, 0, 1, 2, 3, 4, 5, 1000, i64::MAX - 1, i64::MAX];

pub fn texts() -> Vec<LiteralValue> {
    let long = ["x".repeat(4999), "é日".repeat(900), format!("{}y", " ".repeat(4500))];
    let all = TEXTS.iter().map(|text| text.to_string()).chain(long);
    all.map(|text| LiteralValue::Bytes(text.into_bytes())).chain([LiteralValue::Null]).collect()
}

pub fn text(text: &str) -> LiteralValue {
    LiteralValue::Bytes(text.as_bytes().to_vec())
}

fn int(value: i64) -> Expr {
    lit(&DataType::Int64, LiteralValue::Int(value.into()))
}

pub fn call(function: Function, arguments: Vec<Expr>, data_type: &DataType) -> Expr {
    Expr::Call { function, arguments, data_type: data_type.clone() }
}

const TRIMS: [Function; 3] = [Function::Btrim, Function::Ltrim, Function::Rtrim];

/// The layouts of strings: plain ones and dictionaries.
pub fn layouts() -> Vec<DataType> {
    let dictionary = |key: DataType, value: DataType| DataType::Dictionary(key.into(), value.into());
    let mut layouts = data::strings();
    layouts.push(dictionary(DataType::Int32, DataType::Utf8));
    layouts.push(dictionary(DataType::UInt8, DataType::LargeUtf8));
    layouts.push(dictionary(DataType::Int16, DataType::Utf8View));
    layouts
}

/// Values as an array of a layout.
pub fn laid_out(layout: &DataType, values: &[LiteralValue]) -> ArrayRef {
    match layout {
        DataType::Dictionary(_, value) => cast(&array(value, values), layout).unwrap(),
        plain => array(plain, values),
    }
}

fn number_type(data_type: &DataType) -> DataType {
    if *data_type == DataType::LargeUtf8 { DataType::Int64 } else { DataType::Int32 }
}

#[test]
fn slices_by_constants_in_every_layout() {
    device::skip_unless_turn!(5);
    for layout in layouts() {
        let value_type = kernels::expr::value_type(&layout).clone();
        let rows = batch(vec![laid_out(&layout, &texts())]);
        let of = |function, others: Vec<Expr>| call(function, [vec![Expr::Column(0)], others].concat(), &value_type);
        let mut exprs = Vec::new();
        for start in [-2, 0, 1, 2, 4, 5000] {
            exprs.push(of(Function::Substring, vec![int(start)]));
            exprs.push(of(Function::Substring, vec![int(start), int(3)]));
        }
        for n in [-3, -1, 0, 1, 4] {
            exprs.push(of(Function::Left, vec![int(n)]));
            exprs.push(of(Function::Right, vec![int(n)]));
        }
        for trim in TRIMS {
            exprs.push(of(trim, vec![]));
            exprs.push(of(trim, vec![lit(&value_type, text("yx"))]));
            exprs.push(of(trim, vec![lit(&value_type, text("é日🦀"))]));
        }
        for n in [-3, -1, 1, 2, 5] {
            exprs.push(of(Function::SplitPart, vec![lit(&value_type, text(".")), int(n)]));
            exprs.push(of(Function::SplitPart, vec![lit(&value_type, text("aa")), int(n)]));
            exprs.push(of(Function::SplitPart, vec![lit(&value_type, text("")), int(n)]));
        }
        for chunk in exprs.chunks(8) {
            check(&rows, chunk);
        }
    }
}

#[test]
fn numbers_and_booleans_in_every_layout() {
    for layout in layouts() {
        let value_type = kernels::expr::value_type(&layout).clone();
        let rows = batch(vec![laid_out(&layout, &texts())]);
        let number = number_type(&value_type);
        let of = |function, others: Vec<Expr>, data_type: &DataType| {
            call(function, [vec![Expr::Column(0)], others].concat(), data_type)
        };
        let mut exprs = vec![
            of(Function::CharacterLength, vec![], &number),
            of(Function::OctetLength, vec![], &number),
            of(Function::BitLength, vec![], &number),
            of(Function::Ascii, vec![], &DataType::Int32),
        ];
        for other in ["", "a", "é", "b.", "🦀", "日é", "requests"] {
            let other = || vec![lit(&value_type, text(other))];
            exprs.push(of(Function::Position, other(), &number));
            exprs.push(of(Function::StartsWith, other(), &DataType::Boolean));
            exprs.push(of(Function::EndsWith, other(), &DataType::Boolean));
            exprs.push(of(Function::Contains, other(), &DataType::Boolean));
        }
        for chunk in exprs.chunks(8) {
            check(&rows, chunk);
        }
    }
}

#[test]
fn integer_arguments_by_row() {
    let numbers: Vec<LiteralValue> = NUMBERS.iter().map(|n| LiteralValue::Int((*n).into())).chain([LiteralValue::Null]).collect();
    for data_type in data::strings() {
        // One expression at a time, because each fails for some row.
        let (left, right) = pairs_of(&data_type, &texts(), &DataType::Int64, &numbers);
        let rows = batch(vec![left, right]);
        let columns = || vec![Expr::Column(0), Expr::Column(1)];
        check(
            &rows,
            &[
                call(Function::Left, columns(), &data_type),
                call(Function::Right, columns(), &data_type),
                call(Function::Substring, columns(), &data_type),
                call(Function::Substring, [columns(), vec![int(2)]].concat(), &data_type),
                call(Function::Substring, vec![Expr::Column(0), int(-1), Expr::Column(1)], &data_type),
                call(Function::SplitPart, vec![Expr::Column(0), lit(&data_type, text(".")), Expr::Column(1)], &data_type),
            ],
        );
    }
}

/// Without failing arguments, whose rows hide those behind them.
#[test]
fn valid_integer_arguments_by_row() {
    let numbers = |fine: fn(&i64) -> bool| -> Vec<LiteralValue> {
        NUMBERS.into_iter().filter(fine).map(|n| LiteralValue::Int(n.into())).chain([LiteralValue::Null]).collect()
    };
    let data_type = DataType::Utf8View;
    let rows = |fine| {
        let (left, right) = pairs_of(&data_type, &texts(), &DataType::Int64, &numbers(fine));
        batch(vec![left, right])
    };
    let columns = || vec![Expr::Column(0), Expr::Column(1)];
    let substring = |count: i64| call(Function::Substring, [columns(), vec![int(count)]].concat(), &data_type);
    check(&rows(|n| *n > i64::MIN), &[substring(0), substring(2), substring(i64::MAX)]);
    let counted = |start: i64| call(Function::Substring, vec![Expr::Column(0), int(start), Expr::Column(1)], &data_type);
    check(&rows(|n| *n >= 0), &[counted(i64::MIN + 1), counted(-3), counted(1), counted(i64::MAX)]);
    let part = |delimiter| {
        call(Function::SplitPart, vec![Expr::Column(0), lit(&data_type, text(delimiter)), Expr::Column(1)], &data_type)
    };
    check(&rows(|n| *n != 0), &[part("."), part(""), part("é"), part("ab")]);
}

#[test]
fn pairs_of_strings_of_two_columns() {
    for (left, right) in
        [(DataType::Utf8, DataType::Utf8View), (DataType::LargeUtf8, DataType::Utf8), (DataType::Utf8View, DataType::LargeUtf8)]
    {
        let (a, b) = pairs_of(&left, &texts(), &right, &texts());
        let columns = || vec![Expr::Column(0), Expr::Column(1)];
        let mut exprs = vec![
            call(Function::Position, columns(), &number_type(&left)),
            call(Function::StartsWith, columns(), &DataType::Boolean),
            call(Function::EndsWith, columns(), &DataType::Boolean),
            call(Function::Contains, columns(), &DataType::Boolean),
        ];
        exprs.extend(TRIMS.map(|trim| call(trim, columns(), &left)));
        exprs.push(call(Function::SplitPart, [columns(), vec![int(2)]].concat(), &left));
        exprs.push(call(Function::SplitPart, [columns(), vec![int(-2)]].concat(), &left));
        check(&batch(vec![a, b]), &exprs);
    }
}

/// Long periodic strings, in which a naive search takes long.
#[test]
fn periodic_substrings() {
    let data_type = DataType::Utf8View;
    let terms = ["a".repeat(3000), format!("{}b", "a".repeat(3000)), "ab".repeat(1500), "aab".repeat(900), "aé".repeat(900)];
    let parts = ["b", "a", "aab", "aba", "bab", "é", "éb"];
    let found: Vec<LiteralValue> = parts
        .iter()
        .flat_map(|part| [1, 700].map(|times| part.repeat(times)))
        .chain([format!("{}b", "a".repeat(700)), format!("b{}", "a".repeat(700)), format!("{}a", "ab".repeat(700))])
        .map(|part| text(&part))
        .collect();
    let (left, right) = pairs_of(&data_type, &terms.map(|term| text(&term)), &data_type, &found);
    let (a, b) = (|| Expr::Column(0), || Expr::Column(1));
    let exprs = [
        call(Function::Contains, vec![a(), b()], &DataType::Boolean),
        call(Function::Position, vec![a(), b()], &DataType::Int32),
        call(Function::SplitPart, vec![a(), b(), int(2)], &data_type),
        call(Function::SplitPart, vec![a(), b(), int(-2)], &data_type),
        call(Function::Replace, vec![a(), b(), lit(&data_type, text("-"))], &data_type),
    ];
    let rows = batch(vec![left, right]);
    check_in(&rows, &natural(&rows), &exprs, &PROFILES);
}

#[test]
fn every_batch_size() {
    let all = texts();
    for rows in [0, 1, 31, 257] {
        let values: Vec<LiteralValue> = all.iter().cycle().take(rows).cloned().collect();
        let rows = batch(vec![array(&DataType::Utf8View, &values)]);
        let nested = call(
            Function::Left,
            vec![call(Function::Substring, vec![Expr::Column(0), int(2)], &DataType::Utf8View), int(3)],
            &DataType::Utf8View,
        );
        let length = call(Function::CharacterLength, vec![nested.clone()], &DataType::Int32);
        check_in(&rows, &natural(&rows), &[nested, length], &PROFILES);
    }
}

#[test]
fn columns_without_nulls_and_null_arguments() {
    let values: Vec<LiteralValue> = texts().into_iter().filter(|value| *value != LiteralValue::Null).collect();
    let rows = batch(vec![array(&DataType::Utf8, &values)]);
    let types = [ColumnType::of(&DataType::Utf8, false).unwrap()];
    let null = |data_type: &DataType| lit(data_type, LiteralValue::Null);
    let exprs = [
        call(Function::Substring, vec![Expr::Column(0), int(2), int(2)], &DataType::Utf8),
        call(Function::Substring, vec![Expr::Column(0), null(&DataType::Int64), int(2)], &DataType::Utf8),
        call(Function::Contains, vec![Expr::Column(0), null(&DataType::Utf8)], &DataType::Boolean),
        call(Function::CharacterLength, vec![Expr::Column(0)], &DataType::Int32),
    ];
    check_in(&rows, &types, &exprs, &[Profile::Cpu, Profile::Gpu]);
}

#[test]
fn other_types_are_refused() {
    let rows = batch(vec![array(&DataType::Binary, &[text("a")])]);
    let expr = call(Function::Left, vec![Expr::Column(0), int(1)], &DataType::Binary);
    assert_eq!(supports(&expr, &rows.schema()).unwrap_err(), "left(Binary, Int64) is not supported on the device");
}

/// DataFusion checks the constants of these functions before any row.
#[test]
fn invalid_constants_fail_for_null_rows() {
    let data_type = DataType::Utf8;
    let rows = batch(vec![array(&data_type, &[LiteralValue::Null])]);
    let split = |n| call(Function::SplitPart, vec![Expr::Column(0), lit(&data_type, text(",")), int(n)], &data_type);
    let pad = |n| call(Function::Lpad, vec![Expr::Column(0), int(n)], &data_type);
    let exprs = [split(0), split(1), pad(1 << 31), pad(1)];
    let device = upload(&rows, &natural(&rows));
    let computed = evaluate(&device, &natural(&rows), &exprs, 64, Profile::Cpu);
    let failed: Vec<Option<u64>> = computed.iter().map(|computed| computed.failed).collect();
    assert_eq!(failed, [Some(0), None, Some(0), None]);
}
