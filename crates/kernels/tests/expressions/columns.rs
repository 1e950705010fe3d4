// SPDX-License-Identifier: Apache-2.0
//! Columns in every layout: natural, narrow, dictionaries, slices.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, DictionaryArray, NullArray, RecordBatch};
use arrow::compute::{cast, concat};
use arrow::datatypes::{DataType, Field, Int32Type, Schema, UInt8Type};
use columnar::{Carrier, ColumnType, Layout};
use kernels::codegen::Profile;
use kernels::expr::{ArithmeticOp, CompareOp, Expr, LiteralValue};

use crate::data;
use crate::harness::{PROFILES, batch, check, check_in, evaluate, lit, natural, same, upload, values};
use crate::host::arithmetic_type;
use crate::operators::{COMPARISONS, column};

fn with_null(data_type: &DataType) -> ArrayRef {
    data::array(data_type, &[&data::special(data_type)[..], &[LiteralValue::Null]].concat())
}

#[test]
fn every_type_loads() {
    let types = data::all();
    // As many expressions per kernel as its arguments allow.
    for types in types.chunks(12) {
        let columns: Vec<ArrayRef> = types.iter().map(with_null).collect();
        let rows = columns.iter().map(|column| column.len()).max().unwrap();
        let even = |column: &ArrayRef| {
            let rows: arrow::array::UInt32Array = (0..rows as u32).map(|row| row % column.len() as u32).collect();
            arrow::compute::take(column, &rows, None).unwrap()
        };
        let exprs: Vec<Expr> = (0..types.len()).flat_map(|index| [Expr::Column(index), Expr::IsNull(column(index))]).collect();
        check(&batch(columns.iter().map(even).collect()), &exprs);
    }
}

#[test]
fn columns_without_nulls_have_no_validity() {
    for data_type in [DataType::Boolean, DataType::Int16, DataType::Decimal128(15, 2), DataType::Utf8View, DataType::Utf8] {
        let column = data::array(&data_type, &data::special(&data_type));
        let schema = Schema::new(vec![Field::new("x", data_type.clone(), false)]);
        let batch = RecordBatch::try_new(Arc::new(schema), vec![column]).unwrap();
        check(&batch, &[Expr::Column(0), Expr::IsNull(crate::operators::column(0))]);
    }
}

/// Views hold up to 12 bytes inline, and the first four bytes of longer strings.
#[test]
fn views_are_compared_with_literals() {
    let text = "abcdefghijklmnopqrstuvwxyz".repeat(8);
    let mut texts: Vec<Option<String>> = vec![None];
    for len in [0, 1, 3, 4, 5, 7, 8, 9, 11, 12, 13, 16, 17, 200] {
        texts.push(Some(text[..len].into()));
        for at in [0, 3, 4, 7, 8, 11, 12, len.wrapping_sub(1)].into_iter().filter(|at| *at < len) {
            texts.push(Some(format!("{}#{}", &text[..at], &text[at + 1..len])));
        }
    }
    let views: ArrayRef = Arc::new(texts.iter().map(Option::as_deref).collect::<arrow::array::StringViewArray>());
    for data_type in [DataType::Utf8View, DataType::BinaryView] {
        let rows = batch(vec![cast(&views, &data_type).unwrap()]);
        let term = |len: usize| data::literal(&data_type, LiteralValue::Bytes(text[..len].into()));
        for chunk in [[0, 1, 4, 7], [8, 11, 12, 13], [16, 17, 200, 26]] {
            let mut exprs = Vec::new();
            for len in chunk {
                let literal = || Arc::new(Expr::Literal(term(len)));
                exprs.push(Expr::Compare { op: CompareOp::Eq, left: column(0), right: literal() });
                exprs.push(Expr::Compare { op: CompareOp::NotEq, left: literal(), right: column(0) });
            }
            let null = data::literal(&data_type, LiteralValue::Null);
            let lists = [chunk.map(term).to_vec(), vec![term(chunk[1])], vec![term(chunk[0]), null]];
            exprs.extend(lists.iter().map(|list| Expr::InList { expr: column(0), list: list.clone(), negated: false }));
            exprs.extend(lists.map(|list| Expr::InList { expr: column(0), list, negated: true }));
            check(&rows, &exprs);
        }
    }
}

#[test]
fn slices_load() {
    for data_type in [
        &[DataType::Boolean, DataType::Int8, DataType::Decimal256(50, 2), DataType::Float32, DataType::FixedSizeBinary(3)],
        &data::strings()[..],
    ]
    .concat()
    {
        let whole = with_null(&data_type);
        let long = concat(&[&*whole, &*whole, &*whole]).unwrap();
        for (offset, len) in [(1, 2), (3, long.len() - 5), (long.len(), 0)] {
            let slice = batch(vec![long.slice(offset, len)]);
            check_in(&slice, &natural(&slice), &[Expr::Column(0)], &[Profile::Cpu]);
            // A slice of a batch on the device.
            let all = batch(vec![long.clone()]);
            let types = natural(&all);
            let device = upload(&all, &types).slice(offset, len);
            let computed = evaluate(&device, &types, &[Expr::Column(0)], 5000, Profile::Gpu);
            for (expected, got) in values(&long.slice(offset, len)).iter().zip(&computed[0].values) {
                assert!(same(expected, got), "{data_type}: {expected:?}, {got:?}");
            }
        }
    }
}

#[test]
fn dictionaries_evaluate_to_their_values() {
    for value_type in data::strings().into_iter().chain([DataType::Int64, DataType::Date32, DataType::FixedSizeBinary(3)]) {
        let distinct = data::special(&value_type);
        let values = data::array(&value_type, &distinct);
        let n = values.len();
        let keys: Vec<Option<i32>> = (0..3 * n).map(|row| (row % 7 != 5).then_some(((row * 5) % n) as i32)).collect();
        let keys = arrow::array::Int32Array::from(keys);
        let dictionary: ArrayRef = Arc::new(DictionaryArray::<Int32Type>::new(keys, values));
        let small = cast(&dictionary, &DataType::Dictionary(Box::new(DataType::UInt8), Box::new(value_type.clone()))).unwrap();
        assert!(small.as_any().is::<DictionaryArray<UInt8Type>>());
        let literal = |index: usize| lit(&value_type, distinct[index].clone());
        let mut exprs = vec![Expr::Column(0), Expr::Column(1), Expr::IsNull(column(0))];
        for op in COMPARISONS {
            exprs.push(Expr::Compare { op, left: column(0), right: Arc::new(literal(1)) });
            exprs.push(Expr::Compare { op, left: column(0), right: column(1) });
        }
        exprs.push(Expr::Coalesce(vec![Expr::Column(0), literal(2)]));
        exprs.push(Expr::InList {
            expr: column(1),
            list: distinct.iter().skip(1).map(|value| data::literal(&value_type, value.clone())).collect(),
            negated: false,
        });
        check(&batch(vec![dictionary, small]), &exprs);
    }
}

#[test]
fn untyped_nulls_evaluate() {
    let nothing: ArrayRef = Arc::new(NullArray::new(3));
    let some = data::array(&DataType::Int32, &[LiteralValue::Int(1), LiteralValue::Null, LiteralValue::Int(3)]);
    let exprs = [
        Expr::Column(0),
        Expr::IsNull(column(0)),
        Expr::Coalesce(vec![Expr::Column(0), Expr::Column(1)]),
        Expr::Cast { expr: column(0), to: DataType::Int32, checked: true },
        Expr::Case {
            branches: vec![(Expr::IsNull(column(1)), Expr::Column(0))],
            otherwise: Some(column(1)),
            data_type: DataType::Int32,
        },
    ];
    check(&batch(vec![nothing, some]), &exprs);
}

/// Decimals in carriers of 32 and 64 bits compute as in 128 bits.
#[test]
fn narrow_decimals_compute() {
    let wide = DataType::Decimal128(15, 2);
    let ints =
        |values: &[i128]| [values.iter().map(|value| LiteralValue::Int(*value)).collect(), vec![LiteralValue::Null]].concat();
    let small = ints(&[0, 1, -1, 7, 100, -99, 12_345, 32_767, -32_768]);
    let large = ints(&[0, 1, -1, 100, 999_999_999_999, -999_999_999_999, 1 << 40, i64::MAX.into(), i64::MIN.into()]);
    let bounded =
        |carrier, bounds| ColumnType { data_type: wide.clone(), nullable: true, layout: Layout::Fixed(carrier), bounds };
    let natural = || ColumnType::of(&wide, true).unwrap();
    let types = [
        (small.clone(), bounded(Carrier::I32, Some((-32_768, 32_767)))),
        (small.clone(), bounded(Carrier::I32, None)),
        (small.clone(), bounded(Carrier::I64, Some((-65_536, 65_535)))),
        (large.clone(), bounded(Carrier::I64, None)),
        (large, natural()),
    ];
    for (left, left_type) in &types {
        for (right, right_type) in &types {
            let (l, r) = data::pairs_of(&wide, &left[..left.len() - 1], &wide, &right[..right.len() - 1]);
            let batch = batch(vec![l, r]);
            let mut exprs = Vec::new();
            for op in
                [ArithmeticOp::Add, ArithmeticOp::Subtract, ArithmeticOp::Multiply, ArithmeticOp::Divide, ArithmeticOp::Modulo]
            {
                exprs.push(Expr::Arithmetic {
                    op,
                    left: column(0),
                    right: column(1),
                    data_type: arithmetic_type(op, &wide, &wide).unwrap(),
                });
            }
            exprs.push(Expr::Compare { op: CompareOp::Lt, left: column(0), right: column(1) });
            exprs.push(Expr::Compare { op: CompareOp::IsNotDistinctFrom, left: column(0), right: column(1) });
            exprs.push(Expr::Negate(column(0)));
            exprs.push(Expr::Coalesce(vec![Expr::Column(0), Expr::Column(1)]));
            for to in [
                DataType::Decimal128(38, 6),
                DataType::Decimal128(5, 1),
                DataType::Decimal64(18, 0),
                DataType::Float64,
                DataType::Int32,
                DataType::Utf8,
            ] {
                exprs.push(Expr::Cast { expr: column(0), to, checked: false });
            }
            check_in(&batch, &[left_type.clone(), right_type.clone()], &exprs, &[Profile::Cpu]);
        }
    }
}

/// The price of TPC-H Q1 stays in 64 bits without overflow checks.
#[test]
fn bounded_prices_stay_narrow() {
    let money = DataType::Decimal128(15, 2);
    let narrow = |bits: u32| ColumnType {
        data_type: money.clone(),
        nullable: false,
        layout: Layout::Fixed(if bits > 31 { Carrier::I64 } else { Carrier::I32 }),
        bounds: Some((0, (1 << bits) - 1)),
    };
    let types = [narrow(24), narrow(4), narrow(4)];
    let one = || Arc::new(lit(&DataType::Decimal128(20, 0), LiteralValue::Int(1)));
    let arithmetic = |op, left: Arc<Expr>, right: Arc<Expr>, precision, scale| {
        Arc::new(Expr::Arithmetic { op, left, right, data_type: DataType::Decimal128(precision, scale) })
    };
    let rest = arithmetic(ArithmeticOp::Subtract, one(), column(1), 23, 2);
    let price = arithmetic(ArithmeticOp::Multiply, column(0), rest, 38, 4);
    let tax = arithmetic(ArithmeticOp::Add, one(), column(2), 23, 2);
    let charge = arithmetic(ArithmeticOp::Multiply, price, tax, 38, 6);
    let text = crate::harness::write(&types, &[(*charge).clone()], 1, 8, Profile::Cpu);
    let body = text.text.split("KERNEL void").last().unwrap();
    assert!(!body.contains("i128") && !body.contains("if (") && !text.params.can_fail(), "{body}");
}

/// Constants of the same order of magnitude share a kernel source.
#[test]
fn constants_are_kernel_arguments() {
    let types = [ColumnType::of(&DataType::Int64, true).unwrap(), ColumnType::of(&DataType::Utf8View, true).unwrap()];
    let text = |number: i128, term: &str, list: &[i128]| {
        let number = lit(&DataType::Int64, LiteralValue::Int(number));
        let term = lit(&DataType::Utf8View, LiteralValue::Bytes(term.into()));
        let list = list.iter().map(|value| data::literal(&DataType::Int64, LiteralValue::Int(*value))).collect();
        let expr = Expr::And(vec![
            Expr::Compare { op: CompareOp::Gt, left: column(0), right: Arc::new(number) },
            Expr::Compare { op: CompareOp::Eq, left: column(1), right: Arc::new(term) },
            Expr::InList { expr: column(0), list, negated: false },
        ]);
        PROFILES.map(|profile| crate::harness::write(&types, std::slice::from_ref(&expr), 1, 8, profile).text)
    };
    assert_eq!(text(1, "a", &[1, 2, 3, 4, 5]), text(-1_000_000_000_000, "something longer", &[7, 7, 8, 9, 10, 11, 12]));
}
