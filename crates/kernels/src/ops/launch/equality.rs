// SPDX-License-Identifier: Apache-2.0
//! C that compares values of two rows.

use crate::codegen::{CType, Value};

/// C: whether two values of one C type, NULL or not, are the same. Floats are compared by their
/// bits, as in Arrow's `partition`.
pub(in crate::ops) fn equal(left: &Value, right: &Value) -> String {
    let (a, b) = (&left.code, &right.code);
    let equal = match left.ctype {
        CType::Str => format!("str_eq({a}, {b})"),
        CType::I128 | CType::I256 => format!("{}_eq({a}, {b})", left.ctype.name()),
        CType::F64 => format!("F64_BITS({a}) == F64_BITS({b})"),
        CType::F32 => format!("F32_BITS({a}) == F32_BITS({b})"),
        _ => format!("{a} == {b}"),
    };
    match (&left.valid, &right.valid) {
        (None, None) => format!("({equal})"),
        _ => format!("({0} == {1} && (!{0} || {equal}))", left.valid_code(), right.valid_code()),
    }
}
