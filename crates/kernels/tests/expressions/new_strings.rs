// SPDX-License-Identifier: Apache-2.0
//! Functions that compose new strings.

use std::sync::Arc;

use arrow::datatypes::DataType;
use kernels::expr::{CompareOp, Expr, LiteralValue};
use kernels::function::Function;
use kernels::support::{can_fail, must_be_column, supports, supports_output};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use crate::data::{self, array, pairs_of};
use crate::harness::{PROFILES, batch, check, check_in, lit, natural};
use crate::strings::{call, laid_out, layouts, text, texts};

const CASES: [Function; 4] = [Function::Upper, Function::Lower, Function::InitCap, Function::Reverse];
const CONCAT: Function = Function::Concat;
const STRICT: Function = Function::ConcatOperator;

fn int(value: i64) -> Expr {
    lit(&DataType::Int64, LiteralValue::Int(value.into()))
}

#[test]
fn cases_in_every_layout() {
    for layout in layouts() {
        let value_type = kernels::expr::value_type(&layout).clone();
        let rows = batch(vec![laid_out(&layout, &texts())]);
        let exprs = CASES.map(|function| call(function, vec![Expr::Column(0)], &value_type));
        check_in(&rows, &natural(&rows), &exprs, &PROFILES);
    }
}

/// Every character, alone and within a text.
#[test]
fn cases_of_every_character() {
    device::skip_unless_turn!(4);
    let all: Vec<char> = ('\0'..=char::MAX).collect();
    let values: Vec<LiteralValue> = all
        .chunks(64)
        .map(|chunk| {
            text(&chunk.iter().flat_map(|c| [*c, 'a', *c, ' ', *c, 'Σ', *c, ' ', 'A', *c, 'Σ', ' ']).collect::<String>())
        })
        .collect();
    for chunk in values.chunks(4096) {
        let rows = batch(vec![array(&DataType::Utf8View, chunk)]);
        check(&rows, &CASES.map(|function| call(function, vec![Expr::Column(0)], &DataType::Utf8View)));
    }
}

#[test]
fn final_sigmas_agree_with_rust() {
    let seed = std::env::var("DEVICEFUSION_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or_else(rand::random);
    println!("DEVICEFUSION_SEED={seed}");
    let mut random = StdRng::seed_from_u64(seed);
    let letters = ["Σ", "Σ", "σ", "A", "a", "İ", "'", "\u{301}", ".", " ", "ß", "ﬃ", "日", "\u{ad}", "1"];
    let mut term = || (0..random.random_range(0..8)).map(|_| letters[random.random_range(0..letters.len())]).collect::<String>();
    let values: Vec<LiteralValue> = (0..4000).map(|_| text(&term())).collect();
    let rows = batch(vec![array(&DataType::Utf8, &values)]);
    check(&rows, &CASES.map(|function| call(function, vec![Expr::Column(0)], &DataType::Utf8)));
}

#[test]
fn strings_of_constants_and_columns() {
    for (nth, layout) in layouts().into_iter().enumerate() {
        let value_type = kernels::expr::value_type(&layout).clone();
        let rows = batch(vec![laid_out(&layout, &texts())]);
        let literal = |term: &str| lit(&value_type, text(term));
        let null = || lit(&value_type, LiteralValue::Null);
        let of = |function, others: Vec<Expr>| call(function, [vec![Expr::Column(0)], others].concat(), &value_type);
        let mut exprs = vec![
            of(CONCAT, vec![literal("é"), null(), Expr::Column(0)]),
            of(STRICT, vec![literal("é"), Expr::Column(0)]),
            of(STRICT, vec![null()]),
            call(CONCAT, vec![null()], &value_type),
            call(Function::ConcatWs, vec![literal(", "), Expr::Column(0), null(), literal("a"), Expr::Column(0)], &value_type),
            call(Function::ConcatWs, vec![Expr::Column(0), literal("a"), literal("b")], &value_type),
            call(Function::ConcatWs, vec![null(), literal("a"), literal("b")], &value_type),
            of(Function::Translate, vec![literal("a日 .x"), literal("é.")]),
            of(Function::Overlay, vec![literal("é日"), int(2)]),
            of(Function::Overlay, vec![literal(""), int(1), int(3)]),
            of(Function::Overlay, vec![literal("xyz"), int(3), int(-2)]),
        ];
        for (from, to) in
            [("a", "b"), ("a", "日本"), ("é", ""), ("", "x"), ("aa", "a"), (".", ".."), (" ", ""), ("requests", "R")]
        {
            exprs.push(of(Function::Replace, vec![literal(from), literal(to)]));
        }
        for count in [-1, 0, 1, 3] {
            exprs.push(of(Function::Repeat, vec![int(count)]));
        }
        for (count, fill) in [(-1, "x"), (0, "x"), (3, ""), (5, "é日"), (20, "abc"), (40, "🦀")] {
            exprs.push(of(Function::Lpad, vec![int(count), literal(fill)]));
            exprs.push(of(Function::Rpad, vec![int(count), literal(fill)]));
        }
        exprs.push(of(Function::Lpad, vec![int(7)]));
        // A third of them per layout: their kernels differ in the load only.
        let some: Vec<Expr> = exprs.into_iter().skip(nth % 3).step_by(3).collect();
        for chunk in some.chunks(8) {
            check(&rows, chunk);
        }
    }
}

#[test]
fn arguments_of_two_columns() {
    let numbers: Vec<LiteralValue> = [i64::MIN, -7, -1, 0, 1, 2, 5, 30].map(|n| LiteralValue::Int(n.into())).to_vec();
    for data_type in data::strings() {
        let (left, right) = pairs_of(&data_type, &texts(), &data_type, &texts());
        let (a, b) = (Expr::Column(0), Expr::Column(1));
        let exprs = [
            call(CONCAT, vec![a.clone(), b.clone()], &data_type),
            call(STRICT, vec![a.clone(), b.clone()], &data_type),
            call(Function::ConcatWs, vec![a.clone(), b.clone(), a.clone(), b.clone()], &data_type),
            call(Function::Replace, vec![a.clone(), b.clone(), lit(&data_type, text("-"))], &data_type),
            call(Function::Translate, vec![a.clone(), b.clone(), lit(&data_type, text("é1"))], &data_type),
            call(Function::Rpad, vec![a.clone(), int(9), b.clone()], &data_type),
        ];
        check(&batch(vec![left, right]), &exprs);
        let (left, right) = pairs_of(&data_type, &texts(), &DataType::Int64, &numbers);
        let exprs = [
            call(Function::Repeat, vec![a.clone(), b.clone()], &data_type),
            call(Function::Lpad, vec![a.clone(), b.clone()], &data_type),
            call(Function::Rpad, vec![a.clone(), b.clone(), lit(&data_type, text("é-"))], &data_type),
            call(Function::Overlay, vec![a.clone(), lit(&data_type, text("é")), int(2), b.clone()], &data_type),
        ];
        check(&batch(vec![left, right]), &exprs);
    }
}

/// Comparisons read the parts of concatenations without materializing them.
#[test]
fn concatenations_compare_by_parts() {
    use CompareOp::*;
    for data_type in data::strings() {
        let (left, right) = pairs_of(&data_type, &texts(), &data_type, &texts());
        let rows = batch(vec![left, right]);
        let (a, b) = (|| Expr::Column(0), || Expr::Column(1));
        let literal = |term: &str| lit(&data_type, text(term));
        let of = |function, arguments| call(function, arguments, &data_type);
        let compare = |op, left: Expr, right: Expr| Expr::Compare { op, left: left.into(), right: right.into() };
        let every = [Eq, NotEq, Lt, LtEq, Gt, GtEq, IsDistinctFrom, IsNotDistinctFrom];
        check(&rows, &every.map(|op| compare(op, of(STRICT, vec![a(), b()]), of(STRICT, vec![b(), a()]))));
        let list = ["", "aé", " aa"].map(|term| data::literal(&data_type, text(term))).to_vec();
        let listed = |list, negated| Expr::InList { expr: of(STRICT, vec![a(), b()]).into(), list, negated };
        let exprs = [
            compare(Lt, of(CONCAT, vec![a(), b()]), a()),
            compare(GtEq, literal("aé"), of(CONCAT, vec![a(), literal(""), b()])),
            compare(Eq, of(Function::ConcatWs, vec![a(), b(), b()]), of(STRICT, vec![b(), a(), b()])),
            compare(
                IsDistinctFrom,
                of(STRICT, vec![a(), literal("a")]),
                of(CONCAT, vec![lit(&data_type, LiteralValue::Null), b()]),
            ),
            compare(Eq, of(CONCAT, vec![lit(&data_type, LiteralValue::Null)]), b()),
            compare(NotEq, of(STRICT, vec![a(), b()]), lit(&data_type, LiteralValue::Null)),
            listed(list.clone(), false),
            listed(list.into_iter().chain([data::literal(&data_type, LiteralValue::Null)]).collect(), true),
        ];
        check(&rows, &exprs);
    }
}

#[test]
fn branches_compose_strings() {
    for data_type in data::strings() {
        let numbers: Vec<LiteralValue> = [0, 1, 3, i64::MAX].map(|n| LiteralValue::Int(n.into())).to_vec();
        let (left, right) = pairs_of(&data_type, &texts(), &DataType::Int64, &[numbers, vec![LiteralValue::Null]].concat());
        let rows = batch(vec![left, right]);
        let (s, n) = (|| Expr::Column(0), || Expr::Column(1));
        let of = |function, arguments| call(function, arguments, &data_type);
        let less = |most: i64| Expr::Compare { op: CompareOp::Lt, left: n().into(), right: int(most).into() };
        let case = |branches, otherwise: Option<Expr>| Expr::Case {
            branches,
            otherwise: otherwise.map(Arc::new),
            data_type: data_type.clone(),
        };
        // Rows with a great number do not evaluate the failing branch.
        let repeat = || of(Function::Repeat, vec![s(), n()]);
        let guarded = || case(vec![(less(9), repeat())], None);
        let exclaimed = || of(STRICT, vec![s(), lit(&data_type, text("!"))]);
        let exprs = [
            guarded(),
            case(vec![(less(2), repeat()), (less(9), s())], Some(exclaimed())),
            case(vec![(less(2), s()), (less(9), guarded())], Some(of(Function::Upper, vec![s()]))),
            of(STRICT, vec![guarded(), lit(&data_type, text("é")), guarded()]),
            Expr::Coalesce(vec![guarded(), exclaimed()]),
            Expr::Coalesce(vec![s(), of(Function::Lpad, vec![lit(&data_type, text("none")), int(6)])]),
            Expr::Coalesce(vec![guarded(), s(), of(Function::Lower, vec![lit(&data_type, text("NONE"))])]),
            case(vec![(less(2), lit(&data_type, LiteralValue::Null))], Some(of(Function::Reverse, vec![s()]))),
        ];
        check(&rows, &exprs);
        if data_type != DataType::LargeUtf8 {
            check(&rows, &[repeat(), case(vec![(less(2), s())], Some(repeat()))]);
        }
    }
}

#[test]
fn impossible_arguments_fail() {
    let data_type = DataType::Utf8;
    for number in [i64::MIN, -1, 0, 1, 65, 0xd7ff, 0xd800, 0xdfff, 0xe000, 0x10_ffff, 0x11_0000, 1 << 31, i64::MAX] {
        let number = array(&DataType::Int64, &[LiteralValue::Int(number.into()), LiteralValue::Null]);
        let rows = batch(vec![array(&data_type, &[text("ab"), text("ab")]), number]);
        let (a, b) = (Expr::Column(0), Expr::Column(1));
        let mut exprs = vec![
            call(Function::Chr, vec![b.clone()], &data_type),
            call(Function::Overlay, vec![a.clone(), a.clone(), b.clone()], &data_type),
        ];
        // Valid results are too long for the comparison.
        let long = |number: &LiteralValue| matches!(number, LiteralValue::Int(70_000..=0x7fff_ffff));
        if !long(&crate::harness::values(rows.column(1))[0]) {
            exprs.push(call(Function::Repeat, vec![a.clone(), b.clone()], &data_type));
            exprs.push(call(Function::Lpad, vec![a.clone(), b.clone()], &data_type));
        }
        check(&rows, &exprs);
    }
}

#[test]
fn new_strings_are_outputs_only() {
    let rows = batch(vec![array(&DataType::Utf8, &[text("a")])]);
    let schema = rows.schema();
    let upper = call(Function::Upper, vec![Expr::Column(0)], &DataType::Utf8);
    assert!(supports_output(&upper, &schema).is_ok());
    assert!(must_be_column(&upper, &schema) && !must_be_column(&Expr::Column(0), &schema));
    let repeat = call(Function::Repeat, vec![Expr::Column(0), int(3)], &DataType::Utf8);
    assert!(must_be_column(&repeat, &schema) && can_fail(&repeat, &schema) && !can_fail(&upper, &schema));
    let reason = "upper within another operation is not supported on the device";
    assert_eq!(supports(&upper, &schema).unwrap_err(), reason);
    let compared = Expr::Compare { op: CompareOp::Eq, left: upper.clone().into(), right: Expr::Column(0).into() };
    assert_eq!(supports_output(&compared, &schema).unwrap_err(), reason);
    let lower = call(Function::Lower, vec![upper.clone()], &DataType::Utf8);
    assert_eq!(supports_output(&lower, &schema).unwrap_err(), reason);
    let case = Expr::Case {
        branches: vec![(Expr::IsNull(Expr::Column(0).into()), Expr::Column(0))],
        otherwise: Some(upper.clone().into()),
        data_type: DataType::Utf8,
    };
    assert!(supports_output(&case, &schema).is_ok() && must_be_column(&case, &schema));
    let reason = supports(&case, &schema).unwrap_err();
    assert_eq!(reason, "CASE or coalesce of composed strings within another operation is not supported on the device");
    // A concatenation takes composed strings as parts.
    let both = call(STRICT, vec![upper.clone(), lit(&DataType::Utf8, text("-")), upper], &DataType::Utf8);
    assert!(supports_output(&both, &schema).is_ok());
    check(&rows, &[both]);
}
