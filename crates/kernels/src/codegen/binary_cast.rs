// SPDX-License-Identifier: Apache-2.0
//! Casts to binary: the bytes of integers, and `FixedSizeBinary`.

use arrow::datatypes::DataType;

use super::params::SCRATCH_SLOT;
use super::row::RowWriter;
use super::value::{CType, Value};

impl RowWriter<'_> {
    /// The bytes of an integer in scratch memory, little-endian as in Arrow's buffers.
    pub(super) fn integer_bytes(&mut self, value: Value, to: &DataType) -> Value {
        let (slot, out) = (self.params.scratch(SCRATCH_SLOT), self.fresh());
        self.push(&format!("G u8 *{out} = {slot};"));
        let width = value.ctype.width();
        self.push(&format!("for (u32 j = 0; j < {width}u; ++j) {out}[j] = (u8)((u64){} >> (8 * j));", value.code));
        self.costly();
        let code = self.local(CType::Str, &format!("str_make({out}, {width}u)"));
        Value { data_type: to.clone(), ctype: CType::Str, code, valid: value.valid, bounds: None }
    }

    /// Binary of exactly `width` bytes. Writers read `width` bytes, so another length is NULL even
    /// where it fails the query.
    pub(super) fn of_width(&mut self, value: Value, to: &DataType, width: i32, checked: bool) -> Value {
        let fits = self.flag(&format!("{} & ({}.len == {width}u)", value.valid_code(), value.code));
        if checked {
            self.fail_where(&[&format!("!{fits}")], &value.valid);
        }
        Value { data_type: to.clone(), valid: Some(fits), ..value }
    }
}
