// SPDX-License-Identifier: Apache-2.0
//! Arithmetic of dates, timestamps and durations.

use arrow::datatypes::{DataType, TimeUnit};

use super::arithmetic::symbol;
use super::row::{RowWriter, unsupported};
use super::value::{CType, Value};
use crate::Result;
use crate::expr::ArithmeticOp;

impl RowWriter<'_> {
    pub(super) fn temporal_arithmetic(
        &mut self,
        op: ArithmeticOp,
        left: &Value,
        right: &Value,
        data_type: &DataType,
    ) -> Result<Value> {
        use ArithmeticOp::{Add, Subtract};
        use DataType::{Date32, Date64, Duration, Int64, Interval, Timestamp};
        match (op, &left.data_type, &right.data_type, data_type) {
            // Truncated days: DataFusion's `apply_date_subtraction` (`binary.rs`).
            (Subtract, Date32, Date32, Int64) => self.difference(left, right, data_type, |l, r| format!("(i64){l} - (i64){r}")),
            (Subtract, Date64, Date64, Int64) => {
                self.difference(left, right, data_type, |l, r| format!("(i64)((u64){l} - (u64){r}) / 86400000"))
            }
            (Subtract, Date32, Date32, Duration(TimeUnit::Second)) => {
                self.difference(left, right, data_type, |l, r| format!("((i64){l} - (i64){r}) * 86400"))
            }
            (Subtract, Date64, Date64, Duration(TimeUnit::Millisecond)) => Ok(self.checked_ticks(op, left, right, data_type)),
            (Subtract, Timestamp(l, _), Timestamp(r, _), Duration(unit)) if l == r && l == unit => {
                Ok(self.checked_ticks(op, left, right, data_type))
            }
            (Add | Subtract, Timestamp(l, _), Duration(r), Timestamp(unit, _)) if l == r && l == unit => {
                Ok(self.checked_ticks(op, left, right, data_type))
            }
            (Add, Duration(l), Timestamp(r, _), Timestamp(unit, _)) if l == r && l == unit => {
                Ok(self.checked_ticks(op, right, left, data_type))
            }
            (Add | Subtract, Duration(l), Duration(r), Duration(unit)) if l == r && l == unit => {
                Ok(self.checked_ticks(op, left, right, data_type))
            }
            (Add | Subtract, Interval(_), Interval(_), Interval(_)) => Ok(self.interval_sum(op, left, right)),
            (_, l, r, _) => unsupported(format!("{l} {} {r} is not supported on the device", symbol(op))),
        }
    }

    fn difference(
        &mut self,
        left: &Value,
        right: &Value,
        data_type: &DataType,
        code: impl Fn(&str, &str) -> String,
    ) -> Result<Value> {
        let valid = self.both_valid(left, right);
        let code = self.local(CType::I64, &code(&left.code, &right.code));
        Ok(Value { data_type: data_type.clone(), ctype: CType::I64, code, valid, bounds: None })
    }

    /// `+` or `-` of 64-bit ticks; overflow fails the row.
    fn checked_ticks(&mut self, op: ArithmeticOp, left: &Value, right: &Value, data_type: &DataType) -> Value {
        let value = self.checked(op, left, right, CType::I64);
        Value { data_type: data_type.clone(), ..value }
    }
}

/// Ticks per second of a unit.
pub(crate) const fn per_second(unit: &TimeUnit) -> i64 {
    match unit {
        TimeUnit::Second => 1,
        TimeUnit::Millisecond => 1_000,
        TimeUnit::Microsecond => 1_000_000,
        TimeUnit::Nanosecond => 1_000_000_000,
    }
}
