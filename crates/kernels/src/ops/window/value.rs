// SPDX-License-Identifier: Apache-2.0
//! Window functions of the position of a row, and of the values of other rows.

use std::sync::Arc;

use arrow::datatypes::{DataType, Field, Schema};
use columnar::{ColumnType, DeviceBatch, DeviceColumn, Layout};
use device::{Arg, Buffer, Queue};

use super::frame::{Frame, PartitionIndex};
use super::order_facts::ROWS;
use super::{NullTreatment, WindowInput, carry, is_not_null};
use crate::codegen::{CType, Params, Profile, RowWriter, Value};
use crate::expr::{Expr, Literal};
use crate::ops::launch::columns::share;
use crate::ops::launch::output::Output;
use crate::ops::launch::primitives::Lengths;
use crate::ops::launch::program::{Kernel, read_u64, row_loop};
use crate::ops::launch::projection::{ProjectedRows, Projection, Rows};
use crate::ops::{Gather, Options};
use crate::prelude::Section;
use crate::{Error, Result};

/// A function of the position of a row in its partition, as
/// [`WindowFunction`](super::WindowFunction) has them.
#[derive(Debug, Clone, Copy)]
pub(super) enum Ranking {
    RowNumber,
    Rank,
    DenseRank,
    PercentRank,
    CumeDist,
    Ntile(u64),
}

/// The value of a function, over columns.
#[derive(Debug, Clone)]
pub(super) enum ValueKind {
    /// With `carries_on`, a cut partition goes on with the ranks before the cut.
    Ranking { ranking: Ranking, carries_on: bool },
    /// The value of `column` so many rows before, or after if negative; else the default.
    Lag { column: usize, offset: i64, default: Option<Literal>, nulls: NullTreatment },
    /// The value of `column` in the row whose rank is in the column `rank`.
    OfRank { column: usize, rank: usize },
    /// The list of the values of `column` in the rows of the frame for which `counted` is true;
    /// NULL for an empty list.
    ArrayAgg { column: usize, frame: Frame, counted: Option<Expr> },
    /// The concatenated strings of `column` in the rows of the frame, each without its first
    /// `skipped` bytes; NULL if all are NULL.
    StringAgg { column: usize, skipped: u32, frame: Frame, nullable: bool },
    /// The value of `column` in row `n` of the frame, from 1; from its end if negative.
    Nth { column: usize, n: i64, frame: Frame, ignore_nulls: bool },
}

/// A function, and the kernels that write it.
#[derive(Debug, Clone)]
pub(super) struct ValueCall {
    kind: ValueKind,
    output: Output,
    projection: Projection,
    /// The first of two kernels that number the counted rows.
    counted: Option<usize>,
    /// The kernel that finds the values out of sight.
    hidden: Option<usize>,
    /// Gathers the elements of lists that leave rows out.
    gather: Option<Box<Gather>>,
}

impl ValueCall {
    /// Appends the kernels, named after `name`.
    pub fn try_new(
        mut kind: ValueKind,
        field: &Field,
        name: &str,
        types: &[ColumnType],
        options: &Options,
        kernels: &mut Vec<Kernel>,
    ) -> Result<ValueCall> {
        let is_nullable = |column: usize| types.get(column).is_some_and(|ty| ty.nullable);
        match &mut kind {
            ValueKind::Nth { column, ignore_nulls, .. } => *ignore_nulls &= is_nullable(*column),
            ValueKind::StringAgg { column, nullable, .. } => *nullable &= is_nullable(*column),
            ValueKind::Lag { column, offset, nulls, .. } => {
                if !is_nullable(*column) {
                    *nulls = NullTreatment::Respect;
                } else if *offset >= -1 && *nulls == NullTreatment::IgnoreBounded {
                    // No value after the next one is read.
                    *nulls = NullTreatment::Ignore;
                }
            }
            ValueKind::Ranking { .. } | ValueKind::OfRank { .. } | ValueKind::ArrayAgg { .. } => {}
        }
        let rows = FunctionRows { kind: &kind, types, profile: options.profile };
        let mut params = Params::new();
        let value = rows.value(&mut rows.writer(&mut params), 0)?;
        let (output, gather) = kind.output(&value, field, name, types, options)?;
        let outputs = vec![Some(output.clone())];
        let projection = Projection::try_new(&format!("window{name}"), &rows, outputs, false, options, kernels)?;
        let counted = match kind.counts() {
            Some(counts) => {
                kernels.extend([counted_flags(name, &counts, types, options)?, counted_rows(name, options)]);
                Some(kernels.len() - 2)
            }
            None => None,
        };
        let hidden = kind.hides_values().then_some(kernels.len());
        if hidden.is_some() {
            kernels.push(hidden_kernel(name, options));
        }
        Ok(ValueCall { kind, output, projection, counted, hidden, gather })
    }

    /// The operator to gather elements of lists, if there is one.
    pub fn gather(&self) -> Option<&Gather> {
        self.gather.as_deref()
    }

    /// Type of the result.
    pub fn ty(&self) -> &ColumnType {
        &self.output.ty
    }

    /// The function's values. `order`: the order of the ranks of [`ValueKind::OfRank`].
    pub async fn run(&self, input: WindowInput<'_>, order: Option<&Buffer>) -> Result<DeviceColumn> {
        let WindowInput { launch, columns, n, partitions, .. } = input;
        let queue = launch.queue;
        let counted = match self.counted {
            Some(first) => Some(CountedRows::find(input, (first, first + 1))?),
            None => None,
        };
        let mut extra = partitions.args();
        extra.extend(self.kind.args());
        extra.extend(input.carry.into_iter().flat_map(|carry| carry.of_counts()));
        if let Some(counted) = &counted {
            extra.extend(counted.args());
        }
        let hidden = match self.hidden {
            Some(kernel) => {
                let hidden = queue.filled(n, 0)?;
                let mut named = extra.clone();
                named.extend([(HIDDEN, Arg::Buffer(&hidden)), ("n", Arg::U64(n as u64))]);
                launch.run(kernel, launch.grid(n), named)?;
                Some(hidden)
            }
            None => None,
        };
        extra.extend(hidden.as_ref().map(|hidden| (HIDDEN, Arg::Buffer(hidden))));
        extra.extend(order.map(|order| (ROWS, Arg::Buffer(order))));
        let written = self.projection.run(launch, ProjectedRows::all(columns, n).with_args(&extra)).await?;
        let buffers = written.into_iter().next().flatten().ok_or_else(|| Error::Internal("a function without buffers".into()))?;
        let is_list = matches!(self.ty().layout, Layout::List(_));
        match &self.kind {
            ValueKind::ArrayAgg { column, .. } if let (Some(gather), Some(counted)) = (&self.gather, &counted) => {
                let all = columns[*column].clone();
                let all = DeviceBatch::try_new(Arc::new(schema_of(all.ty())), vec![all], n)?;
                let elements = counted.gather(queue, gather, &all, n).await?;
                share(&launch.primitives, self.ty(), n, buffers, &elements.columns()[0])
            }
            ValueKind::ArrayAgg { column, .. } | ValueKind::Lag { column, .. } | ValueKind::Nth { column, .. } if is_list => {
                share(&launch.primitives, self.ty(), n, buffers, &columns[*column])
            }
            ValueKind::ArrayAgg { .. }
            | ValueKind::Lag { .. }
            | ValueKind::Nth { .. }
            | ValueKind::StringAgg { .. }
            | ValueKind::Ranking { .. }
            | ValueKind::OfRank { .. } => self.output.finish(&launch.primitives, n, buffers, None),
        }
    }
}

/// The counted rows of a function that does not count all.
struct CountedRows {
    /// Number of counted rows before each row, i64 each, after a first element.
    numbers: Buffer,
    /// The counted rows, u32 each. Elements after these are 0.
    rows: Buffer,
}

impl CountedRows {
    /// Runs the kernels that flag and list the rows.
    fn find(input: WindowInput<'_>, (flags, list): (usize, usize)) -> Result<CountedRows> {
        let WindowInput { launch, columns, n, .. } = input;
        let queue = launch.queue;
        let (numbers, rows) = (queue.alloc((n + 1) * size_of::<i64>())?, queue.filled(n * size_of::<u32>(), 0)?);
        let (control, grid) = (queue.alloc(size_of::<u64>())?, launch.grid(n));
        let named = vec![(COUNTED, Arg::Buffer(&numbers)), ("n", Arg::U64(n as u64))];
        launch.run_on(flags, grid, columns, None, named)?;
        launch.primitives.offsets(Lengths::of(&numbers, n), &control, 0)?;
        let named = vec![(COUNTED, Arg::Buffer(&numbers)), (COUNTED_ROWS, Arg::Buffer(&rows)), ("n", Arg::U64(n as u64))];
        launch.run(list, grid, named)?;
        Ok(CountedRows { numbers, rows })
    }

    fn args(&self) -> [(&'static str, Arg<'_>); 2] {
        [(COUNTED, Arg::Buffer(&self.numbers)), (COUNTED_ROWS, Arg::Buffer(&self.rows))]
    }

    /// The counted rows of a batch of `n`. One row if none counts, so that there is a column of
    /// elements.
    async fn gather(&self, queue: &Queue, gather: &Gather, batch: &DeviceBatch, n: usize) -> Result<DeviceBatch> {
        let end = n * size_of::<i64>();
        let counted = read_u64(&queue.read(&self.numbers, end..end + size_of::<i64>()).await?, 0)? as usize;
        gather.run(queue, batch, &self.rows, counted.max(1)).await
    }
}

/// Parameter of an offset, a number of buckets, or a number of bytes.
const NUMBER: &str = "number";
/// Parameter of [`CountedRows::numbers`].
pub(super) const COUNTED: &str = "counted";
/// Parameter of [`CountedRows::rows`].
const COUNTED_ROWS: &str = "counted_rows";
/// Parameter of a byte for each counted row: whether the result at it, and at the NULLs after it,
/// is out of sight.
const HIDDEN: &str = "hidden";

/// The kernel that flags the counted rows, after a first element of 0.
pub(super) fn counted_flags(name: &str, counts: &Expr, types: &[ColumnType], options: &Options) -> Result<Kernel> {
    let mut params = Params::new();
    params.need(Section::Base);
    params.named(COUNTED, "G i64 *RESTRICT");
    let n = params.named("n", "u64");
    let mut writer = RowWriter::new(types, options.profile, &mut params);
    let counts = writer.eval(counts)?.is_true();
    writer.push(&format!("{COUNTED}[row + 1] = {counts};\nif (row == 0) {COUNTED}[0] = 0;"));
    let statements = writer.statements();
    Ok(Kernel::new(format!("window_counted{name}"), params, row_loop(options.profile, "row", &n, &statements)))
}

/// The kernel that lists the counted rows.
fn counted_rows(name: &str, options: &Options) -> Kernel {
    let mut params = Params::new();
    params.need(Section::Base);
    params.named(COUNTED, "const G i64 *RESTRICT");
    params.named(COUNTED_ROWS, "G u32 *RESTRICT");
    let n = params.named("n", "u64");
    let statements = format!("    if ({COUNTED}[row + 1] != {COUNTED}[row]) {COUNTED_ROWS}[{COUNTED}[row]] = (u32)row;\n");
    Kernel::new(format!("window_counted_rows{name}"), params, row_loop(options.profile, "row", &n, &statements))
}

/// The kernel that goes along each partition from value to value, for
/// [`NullTreatment::IgnoreBounded`].
fn hidden_kernel(name: &str, options: &Options) -> Kernel {
    let mut params = Params::new();
    params.need(Section::Base);
    let partition = PartitionIndex::declare(&mut params, "row");
    declare_counted(&mut params);
    params.named(NUMBER, "u64");
    params.named(HIDDEN, "G u8 *RESTRICT");
    let n = params.named("n", "u64");
    let statements = format!(
        "    {partition}
    if (row == part_start) {{
      i64 ahead = -(i64)number, end = {COUNTED}[part_end], last = {COUNTED}[row + 1] + ahead;
      while (last + 1 < end) {{
        if ({COUNTED_ROWS}[last + 1] == {COUNTED_ROWS}[last] + 1) {{
          ++last;
        }} else {{
          for (i64 at = last - ahead + 1; at < last; ++at) {HIDDEN}[at] = 1;
          last += ahead + 1;
        }}
      }}
    }}
"
    );
    Kernel::new(format!("window_hidden{name}"), params, row_loop(options.profile, "row", &n, &statements))
}

impl ValueKind {
    fn args(&self) -> Vec<(&'static str, Arg<'static>)> {
        // More rows than a batch can have.
        let most = 1 << 40;
        match self {
            ValueKind::Ranking { ranking: Ranking::Ntile(n), .. } => vec![(NUMBER, Arg::U64(*n))],
            ValueKind::Ranking { .. } | ValueKind::OfRank { .. } => vec![],
            ValueKind::Lag { offset, .. } => vec![(NUMBER, Arg::U64((*offset).clamp(-most, most) as u64))],
            ValueKind::ArrayAgg { frame, .. } => frame.offsets(),
            ValueKind::StringAgg { frame, skipped, .. } => {
                let mut args = frame.offsets();
                args.push((NUMBER, Arg::U64(u64::from(*skipped))));
                args
            }
            ValueKind::Nth { n, frame, .. } => {
                let mut args = frame.offsets();
                args.push((NUMBER, Arg::U64(n.unsigned_abs())));
                args
            }
        }
    }

    /// Whether kernels take the parameter [`NUMBER`].
    fn takes_number(&self) -> bool {
        match self {
            ValueKind::Ranking { ranking: Ranking::Ntile(_), .. }
            | ValueKind::Lag { .. }
            | ValueKind::StringAgg { .. }
            | ValueKind::Nth { .. } => true,
            ValueKind::Ranking { .. } | ValueKind::OfRank { .. } | ValueKind::ArrayAgg { .. } => false,
        }
    }

    /// Whether some values are out of sight: see [`NullTreatment::IgnoreBounded`].
    fn hides_values(&self) -> bool {
        match self {
            ValueKind::Lag { nulls, .. } => *nulls == NullTreatment::IgnoreBounded,
            ValueKind::Ranking { .. }
            | ValueKind::OfRank { .. }
            | ValueKind::ArrayAgg { .. }
            | ValueKind::StringAgg { .. }
            | ValueKind::Nth { .. } => false,
        }
    }

    /// The condition for a row to count; `None` if all rows do.
    fn counts(&self) -> Option<Expr> {
        match self {
            ValueKind::Nth { column, ignore_nulls: true, .. }
            | ValueKind::StringAgg { column, nullable: true, .. }
            | ValueKind::Lag { column, nulls: NullTreatment::Ignore | NullTreatment::IgnoreBounded, .. } => {
                Some(is_not_null(*column))
            }
            ValueKind::ArrayAgg { counted, .. } => counted.clone(),
            ValueKind::Nth { ignore_nulls: false, .. }
            | ValueKind::StringAgg { nullable: false, .. }
            | ValueKind::Lag { nulls: NullTreatment::Respect, .. }
            | ValueKind::Ranking { .. }
            | ValueKind::OfRank { .. } => None,
        }
    }

    /// The output column, and the operator to gather elements of lists that leave rows out.
    fn output(
        &self,
        value: &Value,
        field: &Field,
        name: &str,
        types: &[ColumnType],
        options: &Options,
    ) -> Result<(Output, Option<Box<Gather>>)> {
        let ty = |column: usize| types.get(column).ok_or_else(|| Error::Internal(format!("no column {column}"))).cloned();
        match self {
            // Offset/length pairs over the column itself, or over its rows that count.
            ValueKind::ArrayAgg { column, counted, .. } => {
                let mut elements = ty(*column)?;
                // A computed dictionary has the layout of its values, which a list of dictionaries
                // cannot have.
                if matches!(elements.data_type, DataType::Dictionary(_, _))
                    && !matches!(elements.layout, Layout::Dictionary { .. })
                {
                    return Err(Error::Unsupported("a list of computed dictionaries is not supported on the device".into()));
                }
                let mut gather = None;
                if counted.is_some() {
                    let op = Gather::try_new(Arc::new(schema_of(&elements)), vec![elements], options.clone())?;
                    elements = op.output_types()[0].clone();
                    gather = Some(Box::new(op));
                }
                let (data_type, layout) = (field.data_type().clone(), Layout::List(Box::new(elements)));
                let ty = ColumnType { data_type, nullable: true, layout, bounds: None };
                Ok((Output::new(ty, CType::List, name), gather))
            }
            // A pair of the column, over its elements.
            ValueKind::Lag { column, .. } | ValueKind::Nth { column, .. } if value.ctype == CType::List => {
                let data_type = field.data_type().clone();
                let ty = ColumnType { data_type, nullable: value.valid.is_some(), ..ty(*column)? };
                Ok((Output::new(ty, CType::List, name), None))
            }
            ValueKind::Lag { .. }
            | ValueKind::Nth { .. }
            | ValueKind::StringAgg { .. }
            | ValueKind::Ranking { .. }
            | ValueKind::OfRank { .. } => Ok((Output::of(value, field.data_type(), name)?, None)),
        }
    }
}

/// The rows that the kernels of a function read: `row` is the current one, and the value is read at
/// row `at`.
struct FunctionRows<'a> {
    kind: &'a ValueKind,
    types: &'a [ColumnType],
    profile: Profile,
}

impl Rows for FunctionRows<'_> {
    fn writer<'a>(&'a self, params: &'a mut Params) -> RowWriter<'a> {
        RowWriter::new(self.types, self.profile, params).with_names("at", "x")
    }

    fn value(&self, writer: &mut RowWriter<'_>, _output: usize) -> Result<Value> {
        let partition = PartitionIndex::declare(writer.params(), "row");
        writer.push(&partition);
        if self.kind.takes_number() {
            writer.params().named(NUMBER, "u64");
        }
        match self.kind {
            ValueKind::Ranking { ranking, carries_on } => {
                if *carries_on {
                    let before = carry::declare_counts(writer.params());
                    writer.push(before);
                }
                Ok(ranking.value(writer, *carries_on))
            }
            ValueKind::Lag { column, default, nulls, .. } => lag(writer, *column, default.as_ref(), *nulls),
            ValueKind::OfRank { column, rank } => self.of_rank(writer, *column, *rank),
            ValueKind::ArrayAgg { frame, counted, .. } => {
                let mut bounds = frame.declare(writer.params(), "row");
                if counted.is_some() {
                    declare_counted(writer.params());
                    bounds.push_str(&counted_frame());
                }
                writer.push(&format!("{bounds}\nu64 list = frame_start | (frame_end - frame_start) << 32;"));
                Ok(Value { ctype: CType::List, valid: Some("(frame_end > frame_start)".into()), ..number("list") })
            }
            ValueKind::StringAgg { column, frame, nullable, .. } => string_agg(writer, *column, frame, *nullable),
            ValueKind::Nth { column, n, frame, ignore_nulls } => nth(writer, *column, *n, frame, *ignore_nulls),
        }
    }
}

impl Ranking {
    fn value(self, writer: &mut RowWriter<'_>, carries_on: bool) -> Value {
        let (rows, groups) = if carries_on { ("rows_before + ", "groups_before + ") } else { ("", "") };
        match self {
            Ranking::RowNumber => number(&format!("({rows}row - part_start + 1)")),
            Ranking::Rank => number(&format!("({rows}peer_start - part_start + 1)")),
            Ranking::DenseRank => number(&format!("({groups}peer + 2 - (u64)peers[part_start + 1])")),
            Ranking::PercentRank => {
                writer.push("f64 others = part_end - part_start > 1 ? (f64)(part_end - part_start) - 1.0 : 1.0;");
                float("((f64)(peer_start - part_start) / others)")
            }
            Ranking::CumeDist => float("((f64)(peer_end - part_start) / (f64)(part_end - part_start))"),
            Ranking::Ntile(_) => {
                // The first buckets have one row more than the others.
                writer.push(
                    "u64 i = row - part_start, least = (part_end - part_start) / number, more = (part_end - part_start) % number;
u64 large = more * (least + 1), bucket = i < large ? i / (least + 1) + 1 : more + (i - large) / (least ? least : 1) + 1;",
                );
                number("bucket")
            }
        }
    }
}

impl FunctionRows<'_> {
    fn of_rank(&self, writer: &mut RowWriter<'_>, column: usize, rank: usize) -> Result<Value> {
        writer.params().named(ROWS, "const G u32 *RESTRICT");
        let mut own = RowWriter::new(self.types, self.profile, writer.params()).with_names("row", "own");
        let rank = own.eval(&Expr::Column(rank))?;
        own.push(&format!("i32 there = {};\nu64 at = there ? {ROWS}[{}] : row;", rank.valid_code(), rank.code));
        let statements = own.statements();
        writer.push(&statements);
        let value = writer.eval(&Expr::Column(column))?;
        Ok(null_unless_there(writer, value))
    }
}

fn number(code: &str) -> Value {
    Value { data_type: DataType::UInt64, ctype: CType::U64, code: code.into(), valid: None, bounds: None }
}

fn float(code: &str) -> Value {
    Value { data_type: DataType::Float64, ctype: CType::F64, ..number(code) }
}

fn lag(writer: &mut RowWriter<'_>, column: usize, default: Option<&Literal>, nulls: NullTreatment) -> Result<Value> {
    let in_sight = match nulls {
        NullTreatment::Respect | NullTreatment::Ignore => String::new(),
        NullTreatment::IgnoreBounded => {
            format!(" && !({COUNTED}[row + 1] > {COUNTED}[part_start] && {HIDDEN}[{COUNTED}[row + 1] - 1])")
        }
    };
    match nulls {
        NullTreatment::Respect => writer.push(
            "i64 to = (i64)row - (i64)number;
i32 there = to >= (i64)part_start && to < (i64)part_end;
u64 at = there ? (u64)to : row;",
        ),
        NullTreatment::Ignore | NullTreatment::IgnoreBounded => {
            declare_counted(writer.params());
            if nulls == NullTreatment::IgnoreBounded {
                writer.params().named(HIDDEN, "const G u8 *RESTRICT");
            }
            writer.push(&format!(
                "i64 to = (i64)number > 0 ? {COUNTED}[row] - (i64)number : {COUNTED}[row + 1] - (i64)number - 1;
i32 there = to >= {COUNTED}[number ? part_start : row] && to < {COUNTED}[part_end]{in_sight};
u64 at = there ? {COUNTED_ROWS}[to] : row;"
            ));
        }
    }
    let value = writer.eval_output(&Expr::Column(column))?;
    match default {
        None => Ok(null_unless_there(writer, value)),
        Some(default) => default_unless_there(writer, value, default),
    }
}

fn string_agg(writer: &mut RowWriter<'_>, column: usize, frame: &Frame, nullable: bool) -> Result<Value> {
    let bounds = frame.declare(writer.params(), "row");
    writer.push(&bounds);
    let there = if nullable {
        declare_counted(writer.params());
        format!("{COUNTED}[frame_end] > {COUNTED}[frame_start]")
    } else {
        "frame_end > frame_start".into()
    };
    writer.push(&format!("i32 there = {there};\nu64 at = frame_start;"));
    let strings = writer.string_of_rows(column, &number("(there ? frame_end - frame_start : 0)"))?;
    writer.push("u32 skipped = there ? (u32)number : 0;");
    let code = format!("str_make({strings}.p + skipped, {strings}.len - skipped)", strings = strings.code);
    Ok(Value { code: writer.local(CType::Str, &code), valid: Some("there".into()), ..strings })
}

fn nth(writer: &mut RowWriter<'_>, column: usize, n: i64, frame: &Frame, ignore_nulls: bool) -> Result<Value> {
    let bounds = frame.declare(writer.params(), "row");
    writer.push(&bounds);
    if ignore_nulls {
        declare_counted(writer.params());
        writer.push(&counted_frame());
    }
    let (is_there, at) = match n {
        1.. => ("frame_start + number <= frame_end", "frame_start + number - 1"),
        0 => ("0", "row"),
        _ => ("frame_start + number <= frame_end", "frame_end - number"),
    };
    let at = if ignore_nulls { format!("{COUNTED_ROWS}[{at}]") } else { at.into() };
    writer.push(&format!("i32 there = {is_there};\nu64 at = there ? {at} : row;"));
    let value = writer.eval_output(&Expr::Column(column))?;
    Ok(null_unless_there(writer, value))
}

/// Adds the parameters of [`CountedRows`].
fn declare_counted(params: &mut Params) {
    params.named(COUNTED, "const G i64 *RESTRICT");
    params.named(COUNTED_ROWS, "const G u32 *RESTRICT");
}

/// C that makes a frame of rows one of counted rows.
fn counted_frame() -> String {
    format!("\nframe_start = (u64){COUNTED}[frame_start];\nframe_end = (u64){COUNTED}[frame_end];")
}

fn schema_of(values: &ColumnType) -> Schema {
    Schema::new(vec![Field::new("value", values.data_type.clone(), values.nullable)])
}

/// The value if the C variable `there` is 1, else NULL.
fn null_unless_there(writer: &mut RowWriter<'_>, value: Value) -> Value {
    let valid = match &value.valid {
        None => "there".into(),
        Some(valid) => writer.flag(&format!("there & {valid}")),
    };
    Value { valid: Some(valid), ..value }
}

/// The value if the C variable `there` is 1, else the default.
fn default_unless_there(writer: &mut RowWriter<'_>, value: Value, default: &Literal) -> Result<Value> {
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
