// SPDX-License-Identifier: Apache-2.0
//! Every supported cast on special values, `CAST` and `TRY_CAST`.

use arrow::compute::can_cast_types;
use arrow::datatypes::{DataType, TimeUnit};
use kernels::codegen::Profile;
use kernels::expr::{Expr, LiteralValue};
use kernels::support::supports_cast;

use crate::data;
use crate::harness::{batch, check_in, natural};
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
    all_casts(&[&[DataType::Boolean], &data::integers()[..]].concat());
}

#[test]
fn floats_cast() {
    all_casts(&data::floats());
}

#[test]
fn decimals_cast() {
    all_casts(&data::decimals());
}

#[test]
fn temporals_cast() {
    all_casts(&data::temporals());
}

/// A CAST that no row fails must not fail.
#[test]
fn sound_casts_do_not_fail() {
    let ints = |values: &[i128]| values.iter().map(|value| LiteralValue::Int(*value)).collect::<Vec<_>>();
    let small = ints(&[0, 1, 2, 9, 10, 15, 99, 100]);
    for from in [&data::integers()[..], &data::decimals(), &data::temporals()].concat() {
        casts(&from, &small, &data::all(), true, Profile::Cpu);
    }
}

/// What arrow-rs casts among the types of the project, and the device does not, is a list that is
/// looked at.
#[test]
fn refused_casts_are_known() {
    let mut refused = Vec::new();
    for from in data::all() {
        for to in data::all() {
            if from != to && can_cast_types(&from, &to) {
                if let Err(reason) = supports_cast(&from, &to) {
                    refused.push(format!("{from} to {to}: {reason}"));
                }
            }
        }
    }
    let expected = |line: &str| KNOWN.iter().any(|known| line.contains(known));
    let surprising: Vec<_> = refused.iter().filter(|line| !expected(line)).collect();
    assert!(surprising.is_empty(), "{surprising:#?}");
}

const KNOWN: &[&str] = &["x"];

#[test]
fn zones_with_rules_are_refused() {
    let berlin = DataType::Timestamp(TimeUnit::Second, Some("Europe/Berlin".into()));
    assert!(supports_cast(&berlin, &DataType::Timestamp(TimeUnit::Nanosecond, None)).is_ok());
    assert!(supports_cast(&berlin, &DataType::Date32).unwrap_err().contains("Europe/Berlin"));
    assert!(supports_cast(&DataType::Date32, &berlin).is_err());
}
