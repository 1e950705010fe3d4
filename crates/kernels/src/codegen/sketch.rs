// SPDX-License-Identifier: Apache-2.0
//! HyperLogLog sketches: the register and rank of a value, from its hash.
//!
//! The hash depends on the logical type only, not on the layout, so that sketches equal
//! DataFusion's.

use arrow::datatypes::{DataType, TimeUnit};

use super::call::refuse_call;
use super::row::{RowWriter, unsupported};
use super::value::{CType, Value};
use crate::Result;
use crate::function::{Function, SketchFunction};
use crate::prelude::Section;

/// Registers of a sketch.
pub(crate) const REGISTERS: i128 = 1 << 14;
/// Highest rank: the bits of a hash beyond the register number, plus one.
pub(crate) const MOST_RANK: i128 = 51;

impl RowWriter<'_> {
    /// The register as `UInt16`, or the rank as `UInt8`.
    pub(super) fn sketch_call(
        &mut self,
        of: SketchFunction,
        function: Function,
        arguments: &[Value],
        data_type: &DataType,
    ) -> Result<Value> {
        let [value] = arguments else { return refuse_call(function, arguments) };
        let code = &value.code;
        let hash = match &value.data_type {
            DataType::Int32 | DataType::Date32 | DataType::Time32(_) | DataType::Decimal32(_, _) | DataType::UInt32 => {
                format!("sketch_hash((u64)(u32){code}, 0)")
            }
            DataType::Int64
            | DataType::Date64
            | DataType::Time64(TimeUnit::Microsecond | TimeUnit::Nanosecond)
            | DataType::Timestamp(_, _)
            | DataType::Duration(_)
            | DataType::Decimal64(_, _) => format!("sketch_hash((u64)(i64){code}, 0)"),
            DataType::UInt64 => format!("sketch_hash((u64){code}, 0)"),
            // The fields of an interval are hashed in sequence and fill the same 16 bytes.
            DataType::Decimal128(_, _) | DataType::Interval(_) => {
                let wide = self.local(CType::I128, &value.to_ctype(CType::I128));
                format!("sketch_hash({wide}.lo, {wide}.hi)")
            }
            DataType::Decimal256(_, _) => {
                self.params.need_type(CType::I256);
                let wide = self.local(CType::I256, &value.to_ctype(CType::I256));
                let words: Vec<String> = (0..4).map(|word| format!("{wide}.w[{word}]")).collect();
                format!("sketch_wide({})", words.join(", "))
            }
            DataType::Utf8 | DataType::LargeUtf8 => format!("sketch_string({code})"),
            DataType::Binary | DataType::LargeBinary | DataType::FixedSizeBinary(_) => format!("sketch_binary({code})"),
            DataType::Utf8View | DataType::BinaryView => format!("sketch_view({code})"),
            other => return unsupported(format!("approx_distinct of {other} is not supported on the device")),
        };
        self.params.need(Section::Sketch);
        let hash = self.called(CType::U64, &value.valid, &hash);
        let (ctype, code, bounds) = match of {
            SketchFunction::Register => (CType::U16, format!("SKETCH_REGISTER({hash})"), (0, REGISTERS - 1)),
            SketchFunction::Rank => (CType::U8, format!("sketch_rank({hash})"), (1, MOST_RANK)),
        };
        let code = self.local(ctype, &code);
        Ok(Value { data_type: data_type.clone(), ctype, code, valid: value.valid.clone(), bounds: Some(bounds) })
    }
}
