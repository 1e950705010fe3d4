// SPDX-License-Identifier: Apache-2.0
//! Casts.

use arrow::datatypes::DataType;

use super::row::{RowWriter, unsupported};
use super::value::Value;
use crate::Result;
use crate::expr::Expr;

impl RowWriter<'_> {
    pub(super) fn cast(&mut self, expr: &Expr, to: &DataType, _checked: bool) -> Result<Value> {
        let value = self.eval(expr)?;
        if value.data_type == *to {
            return Ok(value);
        }
        unsupported(format!("CAST from {} to {to} has no device form", value.data_type))
    }
}
