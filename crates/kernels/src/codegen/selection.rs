// SPDX-License-Identifier: Apache-2.0
//! Functions whose result is one of their arguments: `nanvl`, `greatest`, `least`.

use arrow::datatypes::DataType;

use super::call::refuse_call;
use super::row::RowWriter;
use super::value::{CType, Value};
use crate::Result;
use crate::expr::CompareOp;
use crate::function::{Function, Selection};

impl RowWriter<'_> {
    pub(super) fn selection_call(
        &mut self,
        of: Selection,
        function: Function,
        values: &[Value],
        data_type: &DataType,
    ) -> Result<Value> {
        match (of, values) {
            (Selection::Nanvl, [left, right]) => self.nanvl(left, right, data_type),
            (Selection::Greatest, _) => self.extreme(CompareOp::GtEq, values, data_type),
            (Selection::Least, _) => self.extreme(CompareOp::LtEq, values, data_type),
            (Selection::Nanvl, _) => refuse_call(function, values),
        }
    }

    /// `nanvl`: the second argument where the first is NaN.
    fn nanvl(&mut self, left: &Value, right: &Value, data_type: &DataType) -> Result<Value> {
        if !left.ctype.is_float() || left.data_type != *data_type || (right.data_type != *data_type && !right.is_null()) {
            return refuse_call(Function::Nanvl, &[left.clone(), right.clone()]);
        }
        if left.is_null() {
            return Ok(left.clone());
        }
        let nan = self.flag(&format!("{0} != {0}", left.code));
        let code = self.local(left.ctype, &format!("{nan} ? {} : {}", right.code, left.code));
        let valid = match (&left.valid, &right.valid) {
            (None, None) => None,
            _ => Some(self.flag(&format!("{} & (!{nan} | {})", left.valid_code(), right.valid_code()))),
        };
        Ok(Value { code, valid, ..left.clone() })
    }

    /// `greatest` or `least` of the values that are not NULL.
    fn extreme(&mut self, op: CompareOp, values: &[Value], data_type: &DataType) -> Result<Value> {
        let mut all = values.iter().filter(|value| !value.is_null());
        let Some(mut kept) = all.next().cloned() else {
            return Ok(Value::null(data_type.clone(), CType::native(data_type).unwrap_or(CType::Bool)));
        };
        for value in all {
            let (left, right) = (self.ordered(&kept), self.ordered(value));
            let keeps = self.compare_values(op, &left, &right)?.code;
            let keeps = match (&kept.valid, &value.valid) {
                (None, None) => keeps,
                _ => self.flag(&format!("{} & (!{} | {keeps})", kept.valid_code(), value.valid_code())),
            };
            let ctype = if kept.ctype.width() >= value.ctype.width() { kept.ctype } else { value.ctype };
            self.params.need_type(ctype);
            let code = self.select(ctype, &keeps, &kept.to_ctype(ctype), &value.to_ctype(ctype));
            let code = self.local(ctype, &code);
            let valid = match (&kept.valid, &value.valid) {
                (Some(left), Some(right)) => Some(self.flag(&format!("{left} | {right}"))),
                _ => None,
            };
            let bounds = kept.range().zip(value.range()).map(|((a, b), (c, d))| (a.min(c), b.max(d)));
            kept = Value { ctype, code, valid, bounds, ..kept };
        }
        Ok(kept)
    }

    /// A float as an integer with Arrow's sort order.
    fn ordered(&mut self, value: &Value) -> Value {
        let (data_type, ctype) = match value.ctype {
            CType::F32 => (DataType::Int32, CType::I32),
            CType::F64 => (DataType::Int64, CType::I64),
            _ => return value.clone(),
        };
        let code = self.local(ctype, &format!("{}_key({})", value.ctype.name(), value.code));
        Value { data_type, ctype, code, valid: value.valid.clone(), bounds: None }
    }
}
