// SPDX-License-Identifier: Apache-2.0
//! Arithmetic of dates, timestamps and durations.

use arrow::datatypes::DataType;

use super::arithmetic::symbol;
use super::row::{RowWriter, unsupported};
use super::value::Value;
use crate::Result;
use crate::expr::ArithmeticOp;

impl RowWriter<'_> {
    pub(super) fn temporal_arithmetic(&mut self, op: ArithmeticOp, left: &Value, right: &Value, _data_type: &DataType) -> Result<Value> {
        unsupported(format!("{} {} {} has no device form", left.data_type, symbol(op), right.data_type))
    }
}
