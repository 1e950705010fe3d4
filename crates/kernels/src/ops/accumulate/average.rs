// SPDX-License-Identifier: Apache-2.0
//! Results of AVG.

use arrow::datatypes::{DataType, i256};

use super::evaluate::{Evaluator, Slots, foreign};
use super::state::{Content, Sum};
use super::{Accumulators, StateKind};
use crate::codegen::{CType, RowWriter, wide_literal};
use crate::prelude::Section;
use crate::{Error, Result};

impl Accumulators {
    pub(super) fn average(
        &self,
        writer: &mut RowWriter<'_>,
        evaluator: &Evaluator,
        kind: StateKind,
        slots: &Slots,
        native: CType,
    ) -> Result<String> {
        let (own, count) = (&slots.own, &slots.count);
        let Content::Sum(sum) = kind.content() else { return foreign(kind, "an average") };
        let bits = match sum {
            Sum::Float64 => return Ok(format!("(BITS_F64({}) / (f64){count})", own[0])),
            Sum::Int64 if matches!(evaluator.data_type(), DataType::Duration(_)) => {
                return Ok(format!("({count} ? (i64){} / (i64){count} : 0)", own[0]));
            }
            Sum::Int256 => return wide_decimal_average(writer, evaluator, own, count),
            Sum::Int64 => 64,
            Sum::Int128 => 128,
            Sum::Int192 => 256,
        };
        let value = decimal_average(writer, evaluator, bits, own, count)?;
        Ok(if native == CType::I128 { value } else { format!("(({}){value}.lo)", native.local()) })
    }
}

impl Evaluator {
    /// The factor that scales the sum to the result's scale, and the precision of the result.
    fn scaling(&self) -> Result<(u64, u8)> {
        let Some((from, _)) = &self.argument else { return Err(Error::Internal("AVG without an argument".into())) };
        let (from, to) = (precision_scale(from)?, precision_scale(&self.data_type)?);
        let up = u32::try_from(to.1 - from.1).map_err(|_| Error::Unsupported("AVG to a lower scale".into()))?;
        Ok((10u64.pow(up), to.0))
    }
}

/// AVG of decimals: the sum is scaled up and checked, divided and truncated, and checked again.
/// `bits`: the width in which it is scaled.
fn decimal_average(writer: &mut RowWriter<'_>, evaluator: &Evaluator, bits: u32, sum: &[String], count: &str) -> Result<String> {
    let (scale, precision) = evaluator.scaling()?;
    let limit = 10i128.pow(precision.into());
    writer.params().need(Section::I128Div);
    let sign = format!("(u64)((i64){} >> 63)", sum[sum.len() - 1]);
    let word = |index: usize| sum.get(index).unwrap_or(&sign);
    let error = writer.params().error();
    let result = writer.local(CType::I128, "i128_of(0)");
    writer.push(&format!(
        "if ({count} && decimal_average({}, {}, {}, {scale}u, {count}, {bits}u, i128_make({:#x}UL, {:#x}UL), &{result})) A_MIN64({error}, (u64)row);",
        word(0),
        word(1),
        word(2),
        limit as u64,
        (limit >> 64) as u64,
    ));
    Ok(result)
}

/// AVG of decimals of 256 bits, which is also the width of their sum.
fn wide_decimal_average(writer: &mut RowWriter<'_>, evaluator: &Evaluator, sum: &[String], count: &str) -> Result<String> {
    let (scale, precision) = evaluator.scaling()?;
    let limit = i256::from_i128(10).checked_pow(precision.into());
    let limit = limit.ok_or_else(|| Error::Internal(format!("AVG of {precision} digits")))?;
    writer.params().need(Section::I256Div);
    let error = writer.params().error();
    let result = writer.local(CType::I256, CType::I256.zero());
    writer.push(&format!(
        "if ({count} && wide_average(i256_make({}), {scale}u, {count}, {}, &{result})) A_MIN64({error}, (u64)row);",
        sum.join(", "),
        wide_literal(limit),
    ));
    Ok(result)
}

fn precision_scale(data_type: &DataType) -> Result<(u8, i8)> {
    match data_type {
        DataType::Decimal32(precision, scale)
        | DataType::Decimal64(precision, scale)
        | DataType::Decimal128(precision, scale)
        | DataType::Decimal256(precision, scale) => Ok((*precision, *scale)),
        other => Err(Error::Internal(format!("{other} is not a decimal"))),
    }
}
