// SPDX-License-Identifier: Apache-2.0
//! Window functions that give a number of the row's place, or the value of another row.

use std::sync::Arc;

use arrow::datatypes::{DataType, Field, Schema};
use columnar::{ColumnType, DeviceBatch, DeviceColumn, Layout};
use device::{Arg, Buffer, Queue};

use super::frame::{Frame, Places};
use super::sorted::ROWS;
use super::{Counted, is_known};
use crate::codegen::{CType, Params, Profile, RowWriter, Value};
use crate::expr::{Expr, Literal};
use crate::ops::output::Output;
use crate::ops::primitives::LoadedPrimitives;
use crate::ops::program::{Kernel, Loaded, Program, for_rows, spread, word};
use crate::ops::project::{Projection, Rows};
use crate::ops::select::share;
use crate::ops::{Options, Take};
use crate::prelude::Section;
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
        counted: Counted,
    },
    /// The value of `column` in the row that has the number in column `number` among all in the order of their values.
    Numbered {
        column: usize,
        number: usize,
    },
    /// The list of the values of `column` in the frame's rows, in those of them that `counted` is true of; NULL where there are none.
    Rows {
        column: usize,
        frame: Frame,
        counted: Option<Expr>,
    },
    /// The texts of `column` in the frame's rows, one after another, without the first of their bytes; NULL where no row has one.
    /// `known`: rows may have none.
    Texts {
        column: usize,
        skipped: u32,
        frame: Frame,
        known: bool,
    },
    /// The value of `column` in the frame's row of this number, from 1; from its end where negative. `known`: among the rows
    /// that have one.
    Nth {
        column: usize,
        n: i64,
        frame: Frame,
        known: bool,
    },
}

/// A function, and the kernels that write it.
#[derive(Debug, Clone)]
pub(super) struct ValueCall {
    of: Of,
    output: Output,
    projection: Projection,
    /// Where the kernels are that number the rows with a value.
    known: Option<usize>,
    /// The kernel that tells which values are out of sight.
    sight: Option<usize>,
    /// What brings the values of lists together that leave some rows out.
    take: Option<Box<Take>>,
}

impl ValueCall {
    /// Appends the kernels, named after `name`.
    pub fn try_new(
        mut of: Of,
        field: &Field,
        name: &str,
        types: &[ColumnType],
        options: &Options,
        kernels: &mut Vec<Kernel>,
    ) -> Result<ValueCall> {
        let nullable = |column: usize| types.get(column).is_some_and(|ty| ty.nullable);
        match &mut of {
            Of::Nth { column, known, .. } | Of::Texts { column, known, .. } => *known &= nullable(*column),
            Of::Lag { column, counted, .. } if !nullable(*column) => *counted = Counted::All,
            // Nothing behind the next value is asked for.
            Of::Lag { offset: -1.., counted, .. } if *counted == Counted::InSight => *counted = Counted::Known,
            _ => {}
        }
        let rows = Placed { of: &of, types, profile: options.profile };
        let mut params = Params::new();
        let value = rows.value(&mut rows.writer(&mut params), 0)?;
        let mut take = None;
        let output = match &of {
            // The words of lists over the column itself, or its rows that count.
            Of::Rows { column, counted, .. } => {
                let mut elements = types.get(*column).ok_or_else(|| Error::Internal(format!("no column {column}")))?.clone();
                // What is computed as a dictionary lies as its values do, of which lists would tell nobody.
                if matches!(elements.data_type, DataType::Dictionary(_, _))
                    && !matches!(elements.layout, Layout::Dictionary { .. })
                {
                    return Err(Error::Unsupported("a list of computed dictionaries is not supported on the device".into()));
                }
                if counted.is_some() {
                    let taken = Take::try_new(Arc::new(schema_of(&elements)), vec![elements], options.clone())?;
                    elements = taken.output_types()[0].clone();
                    take = Some(Box::new(taken));
                }
                let (data_type, layout) = (field.data_type().clone(), Layout::List(Box::new(elements)));
                Output::new(ColumnType { data_type, nullable: true, layout, bounds: None }, CType::List, name)
            }
            // A word of the column's, over its elements.
            Of::Lag { column, .. } | Of::Nth { column, .. } if value.ctype == CType::List => {
                let ty = types.get(*column).ok_or_else(|| Error::Internal(format!("no column {column}")))?.clone();
                let ty = ColumnType { data_type: field.data_type().clone(), nullable: value.valid.is_some(), ..ty };
                Output::new(ty, CType::List, name)
            }
            _ => Output::of(&value, field.data_type(), name)?,
        };
        let projection =
            Projection::try_new(&format!("window{name}"), &rows, vec![Some(output.clone())], false, options, kernels)?;
        let counted = match &of {
            Of::Nth { column, known: true, .. }
            | Of::Texts { column, known: true, .. }
            | Of::Lag { column, counted: Counted::Known | Counted::InSight, .. } => Some(is_known(*column)),
            Of::Rows { counted, .. } => counted.clone(),
            _ => None,
        };
        let known = match counted {
            Some(counted) => {
                kernels.extend([known_flags(name, &counted, types, options)?, known_rows(name, options)]);
                Some(kernels.len() - 2)
            }
            None => None,
        };
        let sight = match of {
            Of::Lag { counted: Counted::InSight, .. } => {
                kernels.push(out_of_sight(name, options));
                Some(kernels.len() - 1)
            }
            _ => None,
        };
        Ok(ValueCall { of, output, projection, known, sight, take })
    }

    /// What gathers values, if something does.
    pub fn take(&self) -> Option<&Take> {
        self.take.as_deref()
    }

    /// Type of the result.
    pub fn ty(&self) -> &ColumnType {
        &self.output.ty
    }

    /// The function's values. `order`: what [`Numbered`](Of::Numbered) numbers.
    #[allow(clippy::too_many_arguments)]
    pub async fn run(
        &self,
        queue: &Queue,
        options: &Options,
        program: &Program,
        loaded: &Loaded<'_>,
        primitives: &LoadedPrimitives<'_>,
        columns: &[DeviceColumn],
        n: usize,
        places: &Places,
        order: Option<&Buffer>,
    ) -> Result<DeviceColumn> {
        let numbered = match self.known {
            Some(first) => {
                // The first row, where none counts.
                let (numbers, rows) = (queue.alloc((n + 1) * size_of::<i64>())?, queue.filled(n * size_of::<u32>(), 0)?);
                let (control, grid) = (queue.alloc(size_of::<u64>())?, spread(queue, options, n));
                let named = vec![(KNOWN, Arg::Buffer(&numbers)), ("n", Arg::U64(n as u64))];
                loaded.launch_on(queue, first, grid, columns, None, named)?;
                primitives.offsets(queue, &numbers, 0, n, 0, &control, 0)?;
                let named = vec![(KNOWN, Arg::Buffer(&numbers)), (KNOWN_ROWS, Arg::Buffer(&rows)), ("n", Arg::U64(n as u64))];
                loaded.launch(queue, first + 1, grid, named)?;
                Some((numbers, rows))
            }
            None => None,
        };
        let mut extra = places.args();
        extra.extend(self.of.args());
        if let Some((numbers, rows)) = &numbered {
            extra.extend([(KNOWN, Arg::Buffer(numbers)), (KNOWN_ROWS, Arg::Buffer(rows))]);
        }
        let hidden = match self.sight {
            Some(kernel) => {
                let hidden = queue.filled(n, 0)?;
                let mut named = extra.clone();
                named.extend([(HIDDEN, Arg::Buffer(&hidden)), ("n", Arg::U64(n as u64))]);
                loaded.launch(queue, kernel, spread(queue, options, n), named)?;
                Some(hidden)
            }
            None => None,
        };
        extra.extend(hidden.as_ref().map(|hidden| (HIDDEN, Arg::Buffer(hidden))));
        extra.extend(order.map(|order| (ROWS, Arg::Buffer(order))));
        let written = self.projection.run(queue, options, program, loaded, primitives, columns, None, n, &extra).await?;
        let buffers = written.into_iter().next().flatten().ok_or_else(|| Error::Internal("a function without buffers".into()))?;
        match &self.of {
            Of::Rows { column, .. } if let (Some(take), Some((numbers, rows))) = (&self.take, &numbered) => {
                let all = columns[*column].clone();
                let all = DeviceBatch::try_new(Arc::new(schema_of(all.ty())), vec![all], n)?;
                // Of as many as count, but of one where none does: so there is a column that nobody's word leads to.
                let end = n * size_of::<i64>();
                let counted = word(&queue.read(numbers, end..end + size_of::<i64>()).await?, 0)? as usize;
                let taken = take.run(queue, &all, rows, counted.max(1)).await?;
                share(queue, primitives, self.ty(), n, buffers, &taken.columns()[0])
            }
            Of::Rows { column, .. } | Of::Lag { column, .. } | Of::Nth { column, .. }
                if matches!(self.ty().layout, Layout::List(_)) =>
            {
                share(queue, primitives, self.ty(), n, buffers, &columns[*column])
            }
            _ => self.output.finish(queue, primitives, n, buffers, None),
        }
    }
}

const NUMBER: &str = "number";
/// How many rows before this one have a value, and which rows have.
pub(super) const KNOWN: &str = "known";
const KNOWN_ROWS: &str = "known_rows";
/// For each value by its number, whether what is asked for at it, and at the NULLs behind it, is out of sight.
const HIDDEN: &str = "hidden";

/// Writes for each row whether it counts, behind the row's place.
pub(super) fn known_flags(name: &str, counts: &Expr, types: &[ColumnType], options: &Options) -> Result<Kernel> {
    let mut params = Params::new();
    params.need(Section::Base);
    params.named(KNOWN, "G i64 *RESTRICT");
    let n = params.named("n", "u64");
    let mut writer = RowWriter::new(types, options.profile, &mut params);
    let counts = writer.eval(counts)?.is_true();
    writer.push(&format!("{KNOWN}[row + 1] = {counts};\nif (row == 0) {KNOWN}[0] = 0;"));
    let statements = writer.statements();
    Ok(Kernel::new(format!("window_known{name}"), params, for_rows(options.profile, "row", &n, &statements)))
}

/// Writes the row of each number.
fn known_rows(name: &str, options: &Options) -> Kernel {
    let mut params = Params::new();
    params.need(Section::Base);
    params.named(KNOWN, "const G i64 *RESTRICT");
    params.named(KNOWN_ROWS, "G u32 *RESTRICT");
    let n = params.named("n", "u64");
    let text = format!("    if ({KNOWN}[row + 1] != {KNOWN}[row]) {KNOWN_ROWS}[{KNOWN}[row]] = (u32)row;\n");
    Kernel::new(format!("window_known_rows{name}"), params, for_rows(options.profile, "row", &n, &text))
}

/// Goes along each partition from value to value: see [`Counted::InSight`].
fn out_of_sight(name: &str, options: &Options) -> Kernel {
    let mut params = Params::new();
    params.need(Section::Base);
    let places = Places::text(&mut params, "row");
    known_numbers(&mut params);
    params.named(NUMBER, "u64");
    params.named(HIDDEN, "G u8 *RESTRICT");
    let n = params.named("n", "u64");
    let text = format!(
        "    {places}
    if (row == part_start) {{
      i64 ahead = -(i64)number, end = {KNOWN}[part_end], last = {KNOWN}[row + 1] + ahead;
      while (last + 1 < end) {{
        if ({KNOWN_ROWS}[last + 1] == {KNOWN_ROWS}[last] + 1) {{
          ++last;
        }} else {{
          for (i64 at = last - ahead + 1; at < last; ++at) {HIDDEN}[at] = 1;
          last += ahead + 1;
        }}
      }}
    }}
"
    );
    Kernel::new(format!("window_sight{name}"), params, for_rows(options.profile, "row", &n, &text))
}

impl Of {
    fn args(&self) -> Vec<(&'static str, Arg<'static>)> {
        // More rows than there can be.
        let most = 1 << 40;
        match self {
            Of::RowNumber | Of::Rank | Of::DenseRank | Of::PercentRank | Of::CumeDist | Of::Numbered { .. } => vec![],
            Of::Ntile(n) => vec![(NUMBER, Arg::U64(*n))],
            Of::Lag { offset, .. } => vec![(NUMBER, Arg::U64((*offset).clamp(-most, most) as u64))],
            Of::Rows { frame, .. } => frame.offsets(),
            Of::Texts { frame, skipped, .. } => {
                let mut args = frame.offsets();
                args.push((NUMBER, Arg::U64(u64::from(*skipped))));
                args
            }
            Of::Nth { n, frame, .. } => {
                let mut args = frame.offsets();
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
        let places = Places::text(writer.params(), "row");
        writer.push(&places);
        let number =
            |code: &str| Value { data_type: DataType::UInt64, ctype: CType::U64, code: code.into(), valid: None, bounds: None };
        let float = |code: &str| Value { data_type: DataType::Float64, ctype: CType::F64, ..number(code) };
        if matches!(self.of, Of::Ntile(_) | Of::Lag { .. } | Of::Texts { .. } | Of::Nth { .. }) {
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
            Of::Lag { column, default, counted: counted @ (Counted::Known | Counted::InSight), .. } => {
                known_numbers(writer.params());
                let in_sight = if *counted == Counted::InSight {
                    writer.params().named(HIDDEN, "const G u8 *RESTRICT");
                    format!(" && !({KNOWN}[row + 1] > {KNOWN}[part_start] && {HIDDEN}[{KNOWN}[row + 1] - 1])")
                } else {
                    String::new()
                };
                writer.push(&format!(
                    "i64 to = (i64)number > 0 ? {KNOWN}[row] - (i64)number : {KNOWN}[row + 1] - (i64)number - 1;
i32 there = to >= {KNOWN}[number ? part_start : row] && to < {KNOWN}[part_end]{in_sight};
u64 at = there ? {KNOWN_ROWS}[to] : row;"
                ));
                let value = writer.eval_output(&Expr::Column(*column))?;
                match default {
                    None => there(writer, value),
                    Some(default) => or_default(writer, value, default)?,
                }
            }
            Of::Numbered { column, number } => {
                writer.params().named(ROWS, "const G u32 *RESTRICT");
                let mut own = RowWriter::new(self.types, self.profile, writer.params()).with_names("row", "own");
                let number = own.eval(&Expr::Column(*number))?;
                own.push(&format!("i32 there = {};\nu64 at = there ? {ROWS}[{}] : row;", number.valid_code(), number.code));
                let statements = own.statements();
                writer.push(&statements);
                let value = writer.eval(&Expr::Column(*column))?;
                there(writer, value)
            }
            Of::Lag { column, default, .. } => {
                writer.push(
                    "i64 to = (i64)row - (i64)number;
i32 there = to >= (i64)part_start && to < (i64)part_end;
u64 at = there ? (u64)to : row;",
                );
                let value = writer.eval_output(&Expr::Column(*column))?;
                match default {
                    None => there(writer, value),
                    Some(default) => or_default(writer, value, default)?,
                }
            }
            Of::Rows { frame, counted, .. } => {
                let mut frame = frame.text(writer.params(), "row");
                if counted.is_some() {
                    known_numbers(writer.params());
                    frame.push_str(&among_known());
                }
                writer.push(&format!("{frame}\nu64 list = frame_start | (frame_end - frame_start) << 32;"));
                Value { ctype: CType::List, valid: Some("(frame_end > frame_start)".into()), ..number("list") }
            }
            Of::Texts { column, frame, known, .. } => {
                let frame = frame.text(writer.params(), "row");
                writer.push(&frame);
                let there = if *known {
                    known_numbers(writer.params());
                    format!("{KNOWN}[frame_end] > {KNOWN}[frame_start]")
                } else {
                    "frame_end > frame_start".into()
                };
                writer.push(&format!("i32 there = {there};\nu64 at = frame_start;"));
                let texts = writer.string_of_rows(*column, &number("(there ? frame_end - frame_start : 0)"))?;
                writer.push("u32 skipped = there ? (u32)number : 0;");
                let code = format!("str_make({text}.p + skipped, {text}.len - skipped)", text = texts.code);
                Value { code: writer.local(CType::Str, &code), valid: Some("there".into()), ..texts }
            }
            Of::Nth { column, n, frame, known } => {
                let frame = frame.text(writer.params(), "row");
                writer.push(&frame);
                if *known {
                    known_numbers(writer.params());
                    writer.push(&among_known());
                }
                let (there_is, at) = match n {
                    1.. => ("frame_start + number <= frame_end", "frame_start + number - 1"),
                    0 => ("0", "row"),
                    _ => ("frame_start + number <= frame_end", "frame_end - number"),
                };
                let at = if *known { format!("{KNOWN_ROWS}[{at}]") } else { at.into() };
                writer.push(&format!("i32 there = {there_is};\nu64 at = there ? {at} : row;"));
                let value = writer.eval_output(&Expr::Column(*column))?;
                there(writer, value)
            }
        })
    }
}

/// Declares what tells the rows that have a value.
fn known_numbers(params: &mut Params) {
    params.named(KNOWN, "const G i64 *RESTRICT");
    params.named(KNOWN_ROWS, "const G u32 *RESTRICT");
}

/// Makes a frame one of the numbers of the rows that count.
fn among_known() -> String {
    format!("\nframe_start = (u64){KNOWN}[frame_start];\nframe_end = (u64){KNOWN}[frame_end];")
}

fn schema_of(values: &ColumnType) -> Schema {
    Schema::new(vec![Field::new("value", values.data_type.clone(), values.nullable)])
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
    if value.ctype == CType::List {
        return Err(Error::Unsupported("a list of another row, or else a default, is not supported on the device".into()));
    }
    let default = writer.eval(&Expr::Literal(default.clone()))?;
    let ctype = CType::native(crate::expr::value_type(&value.data_type)).unwrap_or(value.ctype);
    let (a, b) = (value.to_ctype(ctype), default.to_ctype(ctype));
    let code = match ctype {
        CType::I128 | CType::I256 => format!("{}_sel(there, {a}, {b})", ctype.name()),
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
