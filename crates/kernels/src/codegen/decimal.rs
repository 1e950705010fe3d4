// SPDX-License-Identifier: Apache-2.0
//! Arithmetic of decimals.

use arrow::datatypes::DataType;

use super::arithmetic::symbol;
use super::row::{RowWriter, unsupported};
use super::value::Value;
use crate::Result;
use crate::expr::ArithmeticOp;

impl RowWriter<'_> {
    pub(super) fn decimal_arithmetic(&mut self, op: ArithmeticOp, left: &Value, right: &Value, _data_type: &DataType) -> Result<Value> {
        unsupported(format!("{} {} {} has no device form", left.data_type, symbol(op), right.data_type))
    }
}
