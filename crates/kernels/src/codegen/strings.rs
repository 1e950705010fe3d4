// SPDX-License-Identifier: Apache-2.0
//! Casts from and to strings.

use arrow::datatypes::DataType;

use super::cast::refuse;
use super::row::RowWriter;
use super::value::Value;
use crate::Result;

impl RowWriter<'_> {
    pub(super) fn parse(&mut self, value: Value, to: &DataType, _checked: bool) -> Result<Value> {
        refuse(&value.data_type, to)
    }

    pub(super) fn format(&mut self, value: Value, to: &DataType) -> Result<Value> {
        refuse(&value.data_type, to)
    }
}
