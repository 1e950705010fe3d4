// SPDX-License-Identifier: Apache-2.0
//! Every operator over every type, on pairs of special values.

use std::sync::Arc;

use arrow::datatypes::DataType;
use kernels::expr::{ArithmeticOp, CompareOp, Expr, LiteralValue};

use crate::data::{self, pairs};
use crate::harness::{batch, check, lit};
use crate::host::arithmetic_type;

pub const ARITHMETIC: [ArithmeticOp; 10] = [
    ArithmeticOp::Add,
    ArithmeticOp::Subtract,
    ArithmeticOp::Multiply,
    ArithmeticOp::Divide,
    ArithmeticOp::Modulo,
    ArithmeticOp::BitAnd,
    ArithmeticOp::BitOr,
    ArithmeticOp::BitXor,
    ArithmeticOp::ShiftLeft,
    ArithmeticOp::ShiftRight,
];

pub const COMPARISONS: [CompareOp; 8] = [
    CompareOp::Eq,
    CompareOp::NotEq,
    CompareOp::Lt,
    CompareOp::LtEq,
    CompareOp::Gt,
    CompareOp::GtEq,
    CompareOp::IsDistinctFrom,
    CompareOp::IsNotDistinctFrom,
];

pub fn column(index: usize) -> Arc<Expr> {
    Arc::new(Expr::Column(index))
}

fn arithmetic(left: &DataType, right: &DataType) {
    let (l, r) = pairs(left, right);
    let exprs: Vec<Expr> = ARITHMETIC
        .into_iter()
        .filter_map(|op| {
            Some(Expr::Arithmetic { op, left: column(0), right: column(1), data_type: arithmetic_type(op, left, right)? })
        })
        .collect();
    assert!(!exprs.is_empty(), "{left} and {right}");
    check(&batch(vec![l, r]), &exprs);
}

#[test]
fn integers_compute() {
    for data_type in data::integers() {
        arithmetic(&data_type, &data_type);
    }
}

#[test]
fn floats_compute() {
    for data_type in data::floats() {
        arithmetic(&data_type, &data_type);
    }
}

#[test]
fn decimals_compute() {
    use DataType::*;
    for (left, right) in [
        (Decimal32(9, 2), Decimal32(9, 2)),
        (Decimal32(9, 2), Decimal32(4, 0)),
        (Decimal64(18, 4), Decimal64(18, 4)),
        (Decimal64(18, 4), Decimal64(10, -2)),
        (Decimal128(15, 2), Decimal128(15, 2)),
        (Decimal128(15, 2), Decimal128(38, 10)),
        (Decimal128(38, 10), Decimal128(20, 0)),
        (Decimal128(38, 0), Decimal128(38, 0)),
        (Decimal128(5, 5), Decimal128(6, -3)),
        (Decimal256(76, 0), Decimal256(76, 0)),
        (Decimal256(50, 10), Decimal256(60, 20)),
        (Decimal256(76, 74), Decimal256(50, 30)),
    ] {
        arithmetic(&left, &right);
    }
}

#[test]
fn dates_and_timestamps_compute() {
    use DataType::*;
    arithmetic(&Date32, &Date32);
    arithmetic(&Date64, &Date64);
    for unit in data::UNITS {
        arithmetic(&Timestamp(unit, None), &Timestamp(unit, None));
        arithmetic(&Timestamp(unit, Some("-07:30".into())), &Duration(unit));
        arithmetic(&Duration(unit), &Timestamp(unit, None));
        arithmetic(&Duration(unit), &Duration(unit));
    }
}

#[test]
fn literals_compute() {
    // Coarse bounds of literals decide which overflow checks remain.
    for data_type in [
        DataType::Int32,
        DataType::Int64,
        DataType::UInt64,
        DataType::Decimal128(38, 10),
        DataType::Decimal64(18, 4),
        DataType::Decimal256(60, 10),
    ] {
        let values = data::special(&data_type);
        let column_of_all = data::array(&data_type, &[&values[..], &[LiteralValue::Null]].concat());
        for value in [0, 1, 3, 100, 65_537, 1 << 31] {
            for value in [value, -value] {
                if data_type == DataType::UInt64 && value < 0 || data_type == DataType::Int32 && value > i32::MAX.into() {
                    continue;
                }
                let literal = || Arc::new(lit(&data_type, LiteralValue::Int(value)));
                let mut exprs = Vec::new();
                for op in &ARITHMETIC[..5] {
                    let Some(result) = arithmetic_type(*op, &data_type, &data_type) else { continue };
                    exprs.push(Expr::Arithmetic { op: *op, left: column(0), right: literal(), data_type: result.clone() });
                    exprs.push(Expr::Arithmetic { op: *op, left: literal(), right: column(0), data_type: result });
                }
                check(&batch(vec![column_of_all.clone()]), &exprs);
            }
        }
    }
}

#[test]
fn values_negate() {
    for data_type in [&data::integers()[..4], &data::floats(), &data::decimals(), &[DataType::Duration(data::UNITS[3])]].concat()
    {
        let values = [&data::special(&data_type)[..], &[LiteralValue::Null]].concat();
        check(&batch(vec![data::array(&data_type, &values)]), &[Expr::Negate(column(0))]);
    }
}

/// The comparison of NULLIF and simple CASE.
#[test]
fn total_order_tells_zeros_apart() {
    for data_type in data::floats() {
        let (l, r) = pairs(&data_type, &data_type);
        let in_order = |expr| Arc::new(Expr::TotalOrder(expr));
        let mut exprs = Vec::new();
        for op in COMPARISONS {
            exprs.push(Expr::Compare { op, left: in_order(column(0)), right: in_order(column(1)) });
            let zero = Arc::new(lit(&data_type, LiteralValue::Float(-0.0)));
            exprs.push(Expr::Compare { op, left: in_order(zero), right: in_order(column(1)) });
        }
        check(&batch(vec![l, r]), &exprs);
    }
}

#[test]
fn values_compare() {
    for data_type in data::all() {
        let (l, r) = pairs(&data_type, &data_type);
        let exprs: Vec<Expr> =
            COMPARISONS.into_iter().map(|op| Expr::Compare { op, left: column(0), right: column(1) }).collect();
        check(&batch(vec![l, r]), &exprs);
    }
}

#[test]
fn values_compare_with_null() {
    for data_type in [DataType::Int32, DataType::Float64, DataType::Decimal128(15, 2), DataType::Utf8] {
        let values = [&data::special(&data_type)[..], &[LiteralValue::Null]].concat();
        let null = || Arc::new(lit(&data_type, LiteralValue::Null));
        let mut exprs = Vec::new();
        for op in COMPARISONS {
            exprs.push(Expr::Compare { op, left: column(0), right: null() });
            exprs.push(Expr::Compare { op, left: null(), right: null() });
        }
        check(&batch(vec![data::array(&data_type, &values)]), &exprs);
    }
}

#[test]
fn in_lists() {
    for data_type in data::all() {
        let values = data::special(&data_type);
        let column_of_all = data::array(&data_type, &[&values[..], &[LiteralValue::Null]].concat());
        let some: Vec<LiteralValue> = values.iter().step_by(2).cloned().collect();
        let mut exprs = Vec::new();
        for list in [
            vec![],
            vec![LiteralValue::Null],
            values[..1].to_vec(),
            some.clone(),
            values.clone(),
            [&some[..], &[LiteralValue::Null]].concat(),
        ] {
            for negated in [false, true] {
                let list = list.iter().map(|value| data::literal(&data_type, value.clone())).collect();
                exprs.push(Expr::InList { expr: column(0), list, negated });
            }
        }
        check(&batch(vec![column_of_all]), &exprs);
    }
}

#[test]
fn logic_has_three_values() {
    let (a, b) = pairs(&DataType::Boolean, &DataType::Boolean);
    let null = || lit(&DataType::Boolean, LiteralValue::Null);
    let literal = |value| lit(&DataType::Boolean, LiteralValue::Bool(value));
    let (x, y) = (|| Expr::Column(0), || Expr::Column(1));
    let mut exprs = vec![
        Expr::And(vec![x(), y()]),
        Expr::Or(vec![x(), y()]),
        Expr::And(vec![x(), null()]),
        Expr::Or(vec![null(), x()]),
        Expr::And(vec![x(), literal(true), y()]),
        Expr::Or(vec![x(), literal(false), y(), Expr::Not(column(0))]),
        Expr::And(vec![x()]),
        Expr::Not(column(0)),
        Expr::IsNull(column(0)),
        Expr::IsNull(Arc::new(null())),
    ];
    for truth in [Some(true), Some(false), None] {
        exprs.push(Expr::IsTruth(column(0), truth));
        exprs.push(Expr::Not(Arc::new(Expr::IsTruth(column(0), truth))));
    }
    check(&batch(vec![a, b]), &exprs);
}

/// More operands than are computed without a branch. Few of them are false or NULL, so that most
/// rows are undecided for long.
#[test]
fn many_operands_have_three_values() {
    const COLUMNS: usize = 30;
    let value = |row: usize, column: usize| match ((row * COLUMNS + column + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40) % 64 {
        0 => Some(false),
        1 => None,
        _ => Some(true),
    };
    let columns = (0..COLUMNS).map(|column| {
        Arc::new((0..400).map(|row| value(row, column)).collect::<arrow::array::BooleanArray>()) as arrow::array::ArrayRef
    });
    let batch = batch(columns.collect());
    for count in [15, 16, 17, COLUMNS] {
        let operands = || (0..count).map(Expr::Column);
        let known = |column: &Expr| Expr::Or(vec![column.clone(), Expr::IsNull(Arc::new(column.clone()))]);
        let exprs = [
            Expr::And(operands().collect()),
            Expr::Or(operands().map(|operand| Expr::Not(Arc::new(operand))).collect()),
            Expr::And(operands().map(|operand| known(&operand)).collect()),
        ];
        check(&batch, &exprs);
    }
}

#[test]
fn guarded_operands_do_not_fail() {
    let (l, r) = pairs(&DataType::Int32, &DataType::Int32);
    let int = |value| Arc::new(lit(&DataType::Int32, LiteralValue::Int(value)));
    let quotient =
        || Expr::Arithmetic { op: ArithmeticOp::Divide, left: column(0), right: column(1), data_type: DataType::Int32 };
    let compare = |op, left: Arc<Expr>, right: Arc<Expr>| Expr::Compare { op, left, right };
    let nonzero = || compare(CompareOp::NotEq, column(1), int(0));
    let large = || compare(CompareOp::Gt, Arc::new(quotient()), int(1));
    let case = |branches: Vec<(Expr, Expr)>, otherwise: Option<Expr>| Expr::Case {
        branches,
        otherwise: otherwise.map(Arc::new),
        data_type: DataType::Int32,
    };
    let exprs = vec![
        Expr::And(vec![nonzero(), large()]),
        Expr::And(vec![large(), nonzero()]),
        Expr::Or(vec![Expr::Not(Arc::new(nonzero())), large(), Expr::IsNull(column(0))]),
        Expr::And(vec![large(), large(), Expr::Not(Arc::new(large()))]),
        case(vec![(nonzero(), quotient())], Some((*int(7)).clone())),
        case(vec![(nonzero(), quotient())], None),
        case(
            vec![(Expr::IsNull(column(1)), (*int(1)).clone()), (nonzero(), (*column(0)).clone()), (large(), (*int(2)).clone())],
            None,
        ),
        case(vec![(Expr::IsNull(column(1)), (*int(1)).clone()), (nonzero(), (*column(0)).clone())], Some(quotient())),
        Expr::Coalesce(vec![Expr::Column(0), quotient(), (*int(3)).clone()]),
        Expr::Coalesce(vec![case(vec![(nonzero(), (*column(0)).clone())], None), Expr::Column(1)]),
        Expr::Coalesce(vec![quotient()]),
    ];
    for expr in &exprs {
        check(&batch(vec![l.clone(), r.clone()]), std::slice::from_ref(expr));
    }
    check(&batch(vec![l, r]), &exprs);
}

#[test]
fn case_chooses_a_branch() {
    for data_type in data::all() {
        let (l, r) = pairs(&data_type, &data_type);
        let less = Expr::Compare { op: CompareOp::Lt, left: column(0), right: column(1) };
        let first = lit(&data_type, data::special(&data_type)[0].clone());
        let null = lit(&data_type, LiteralValue::Null);
        let case = |branches, otherwise: Option<Expr>| Expr::Case {
            branches,
            otherwise: otherwise.map(Arc::new),
            data_type: data_type.clone(),
        };
        let exprs = vec![
            case(vec![(less.clone(), Expr::Column(0))], Some(Expr::Column(1))),
            case(vec![(less.clone(), Expr::Column(0))], None),
            case(vec![(Expr::IsNull(column(0)), first.clone()), (less.clone(), null.clone())], Some(Expr::Column(0))),
            case(vec![(less, lit(&DataType::Null, LiteralValue::Null))], Some(first.clone())),
            Expr::Coalesce(vec![Expr::Column(0), Expr::Column(1), first.clone()]),
            Expr::Coalesce(vec![null, Expr::Column(1)]),
        ];
        check(&batch(vec![l, r]), &exprs);
    }
}

#[test]
fn long_case_chooses_a_branch() {
    let values: Vec<LiteralValue> = (-3..200).map(LiteralValue::Int).chain([LiteralValue::Null]).collect();
    let int = |value: i128| lit(&DataType::Int64, LiteralValue::Int(value));
    let case = |length: i128, value: &dyn Fn(i128) -> Expr| {
        let branches = (0..length).map(|index| {
            let condition = Expr::Compare { op: CompareOp::Eq, left: column(0), right: Arc::new(int(index)) };
            (condition, value(index))
        });
        Expr::Case { branches: branches.collect(), otherwise: Some(column(0)), data_type: DataType::Int64 }
    };
    let quotient = |_: i128| Expr::Arithmetic {
        op: ArithmeticOp::Divide,
        left: Arc::new(int(100)),
        right: column(0),
        data_type: DataType::Int64,
    };
    let column_of_all = data::array(&DataType::Int64, &values);
    // As many as fit PoCL's 1024 bytes of arguments.
    check(&batch(vec![column_of_all.clone()]), &[case(50, &|index| int(index * 7))]);
    check(&batch(vec![column_of_all]), &[case(50, &quotient)]);
    let schema = arrow::datatypes::Schema::new(vec![arrow::datatypes::Field::new("c0", DataType::Int64, true)]);
    assert!(kernels::support::supports(&case(300, &quotient), &schema).unwrap_err().contains("more than 200 WHENs"));
}
