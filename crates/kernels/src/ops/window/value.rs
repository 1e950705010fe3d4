// SPDX-License-Identifier: Apache-2.0
//! Window functions that give a number of the row's place, or the value of another row.

use arrow::datatypes::Field;
use columnar::{ColumnType, DeviceBatch, DeviceColumn};
use device::{Arg, Queue};

use super::frame::{Frame, Places};
use crate::codegen::{CType, Params, Profile, RowWriter, Value};
use crate::expr::{Expr, Literal};
use crate::ops::Options;
use crate::ops::output::Output;
use crate::ops::primitives::LoadedPrimitives;
use crate::ops::program::{Kernel, Loaded, Program};
use crate::ops::project::{Projection, Rows};
use crate::{Error, Result};

/// What is computed of a row's place.
#[derive(Debug, Clone)]
pub(super) enum Of {
    RowNumber,
    Rank,
    DenseRank,
    PercentRank,
    CumeDist,
    Ntile(u64),
    /// The value of `column` so many rows before, behind where negative, or else the default.
    Lag {
        column: usize,
        offset: i64,
        default: Option<Literal>,
    },
    /// The value of `column` in the frame's row of this number, from 1; from its end where negative.
    Nth {
        column: usize,
        n: i64,
        frame: Frame,
    },
}

/// A function, and the kernels that write it.
#[derive(Debug, Clone)]
pub(super) struct ValueCall {
    of: Of,
    output: Output,
    projection: Projection,
}

impl ValueCall {
    /// Appends the kernels, named after `name`.
    pub fn try_new(
        of: Of,
        field: &Field,
        name: &str,
        types: &[ColumnType],
        options: &Options,
        kernels: &mut Vec<Kernel>,
    ) -> Result<ValueCall> {
        let rows = Placed { of: &of, types, profile: options.profile };
        let mut params = Params::new();
        let value = rows.value(&mut rows.writer(&mut params), 0)?;
        let output = Output::of(&value, field.data_type(), name)?;
        let projection =
            Projection::try_new(&format!("window{name}"), &rows, vec![Some(output.clone())], false, options, kernels)?;
        Ok(ValueCall { of, output, projection })
    }

    /// Type of the result.
    pub fn ty(&self) -> &ColumnType {
        &self.output.ty
    }

    /// The function's values.
    #[allow(clippy::too_many_arguments)]
    pub async fn run(
        &self,
        queue: &Queue,
        options: &Options,
        program: &Program,
        loaded: &Loaded<'_>,
        primitives: &LoadedPrimitives<'_>,
        batch: &DeviceBatch,
        places: &Places,
    ) -> Result<DeviceColumn> {
        let n = batch.num_rows();
        let mut extra = places.args();
        extra.extend(self.of.args());
        let written = self.projection.run(queue, options, program, loaded, primitives, batch, None, n, &extra).await?;
        let buffers = written.into_iter().next().flatten().ok_or_else(|| Error::Internal("a function without buffers".into()))?;
        self.output.finish(queue, primitives, n, buffers, None)
    }
}

const NUMBER: &str = "number";

impl Of {
    fn args(&self) -> Vec<(&'static str, Arg<'static>)> {
        // More rows than there can be.
        let most = 1 << 40;
        match self {
            Of::RowNumber | Of::Rank | Of::DenseRank | Of::PercentRank | Of::CumeDist => vec![],
            Of::Ntile(n) => vec![(NUMBER, Arg::U64(*n))],
            Of::Lag { offset, .. } => vec![(NUMBER, Arg::U64((*offset).clamp(-most, most) as u64))],
            Of::Nth { n, frame, .. } => {
                let mut args = frame.offsets().to_vec();
                args.push((NUMBER, Arg::U64(n.unsigned_abs())));
                args
            }
        }
    }
}

/// The rows as kernels of one function see them: `row` is the current one, `at` the one whose value is taken.
struct Placed<'a> {
    of: &'a Of,
    types: &'a [ColumnType],
    profile: Profile,
}

impl Rows for Placed<'_> {
    fn writer<'a>(&'a self, params: &'a mut Params) -> RowWriter<'a> {
        RowWriter::new(self.types, self.profile, params).with_names("at", "x")
    }

    fn value(&self, writer: &mut RowWriter<'_>, _output: usize) -> Result<Value> {
        use arrow::datatypes::DataType::{Float64, UInt64};
        let places = Places::text(writer.params(), "row");
        writer.push(&places);
        let number = |code: &str| Value { data_type: UInt64, ctype: CType::U64, code: code.into(), valid: None, bounds: None };
        let float = |code: &str| Value { data_type: Float64, ctype: CType::F64, ..number(code) };
        if matches!(self.of, Of::Ntile(_) | Of::Lag { .. } | Of::Nth { .. }) {
            writer.params().named(NUMBER, "u64");
        }
        Ok(match self.of {
            Of::RowNumber => number("(row - part_start + 1)"),
            Of::Rank => number("(peer_start - part_start + 1)"),
            Of::DenseRank => number("(peer + 2 - (u64)peers[part_start + 1])"),
            Of::PercentRank => {
                writer.push("f64 others = part_end - part_start > 1 ? (f64)(part_end - part_start) - 1.0 : 1.0;");
                float("((f64)(peer_start - part_start) / others)")
            }
            Of::CumeDist => float("((f64)(peer_end - part_start) / (f64)(part_end - part_start))"),
            Of::Ntile(_) => {
                // The first buckets have one row more than the others.
                writer.push(
                    "u64 i = row - part_start, least = (part_end - part_start) / number, more = (part_end - part_start) % number;
u64 large = more * (least + 1), bucket = i < large ? i / (least + 1) + 1 : more + (i - large) / (least ? least : 1) + 1;",
                );
                number("bucket")
            }
            Of::Lag { column, default, .. } => {
                writer.push(
                    "i64 to = (i64)row - (i64)number;
i32 there = to >= (i64)part_start && to < (i64)part_end;
u64 at = there ? (u64)to : row;",
                );
                let value = writer.eval(&Expr::Column(*column))?;
                match default {
                    None => there(writer, value),
                    Some(default) => or_default(writer, value, default)?,
                }
            }
            Of::Nth { column, n, frame } => {
                let frame = frame.text(writer.params(), "row");
                writer.push(&frame);
                let (there_is, at) = match n {
                    1.. => ("frame_start + number <= frame_end", "frame_start + number - 1"),
                    0 => ("0", "row"),
                    _ => ("frame_start + number <= frame_end", "frame_end - number"),
                };
                writer.push(&format!("i32 there = {there_is};\nu64 at = there ? {at} : row;"));
                let value = writer.eval(&Expr::Column(*column))?;
                there(writer, value)
            }
        })
    }
}

/// The value where there is a row, else NULL.
fn there(writer: &mut RowWriter<'_>, value: Value) -> Value {
    let valid = match &value.valid {
        None => "there".into(),
        Some(valid) => writer.flag(&format!("there & {valid}")),
    };
    Value { valid: Some(valid), ..value }
}

/// The value where there is a row, else the default.
fn or_default(writer: &mut RowWriter<'_>, value: Value, default: &Literal) -> Result<Value> {
    let default = writer.eval(&Expr::Literal(default.clone()))?;
    let ctype = CType::native(crate::expr::value_type(&value.data_type)).unwrap_or(value.ctype);
    let (a, b) = (value.to_ctype(ctype), default.to_ctype(ctype));
    let code = match ctype {
        CType::I128 => format!("i128_sel(there, {a}, {b})"),
        CType::Str => format!("str_sel(there, {a}, {b})"),
        _ => format!("(there ? {a} : {b})"),
    };
    let valid = match (&value.valid, &default.valid) {
        (None, None) => None,
        _ => Some(writer.flag(&format!("there ? {} : {}", value.valid_code(), default.valid_code()))),
    };
    let code = writer.local(ctype, &code);
    Ok(Value { ctype, code, valid, bounds: None, ..value })
}
