// SPDX-License-Identifier: Apache-2.0
//! Aggregates over frames.
//!
//! An item walks over consecutive rows. Where the frame of a row goes on from that of the row before, only the rows that came
//! to it are taken in: running aggregates take one state a row. Else the frame is aggregated anew, out of a tree whose nodes
//! hold the states of [`FANOUT`] rows, or nodes below: any frame of n rows is some 30 · log₁₆ n states, from left to right, and
//! no state is ever taken back, so that every aggregate will do that can be merged.
//!
//! Distinct values have no such tree: which row counts depends on the frame. Counts, and sums of integers, durations and
//! intervals, give back the values whose last row leaves the frame.

use arrow::datatypes::Field;
use columnar::{ColumnType, DeviceColumn};
use device::{Arg, Queue};

use super::frame::{Frame, Places};
use crate::codegen::{Params, Profile, RowWriter, Value};
use crate::expr::{Aggregate, Expr};
use crate::ops::Options;
use crate::ops::accumulate::{Accumulators, StateKind, StateUse};
use crate::ops::output::Output;
use crate::ops::primitives::LoadedPrimitives;
use crate::ops::program::{Kernel, Loaded, Program, check_row, for_rows, run_of_rows, spread, word};
use crate::ops::source::Source;
use crate::prelude::Section;
use crate::{Error, Result};

/// Children of a node: a power of two, `1 << FANOUT_BITS`.
const FANOUT_BITS: usize = 4;
const FANOUT: usize = 1 << FANOUT_BITS;
/// Levels above 2^31 rows, and one for these.
const LEVELS: usize = 9;
/// Consecutive rows of an item in the gpu profile.
const ROWS_PER_ITEM: usize = 16;
/// Most items that look at a whole frame of distinct values in that profile, a power of two, `1 << MOST_ITEMS_BITS`: with more
/// rows, each item takes more of them.
const MOST_ITEMS_BITS: usize = 16;

/// An aggregate, and the kernels that write it.
#[derive(Debug, Clone)]
pub(super) struct AggregateCall {
    frame: Frame,
    output: Output,
    words: usize,
    /// Positions of the kernels that write the tree, where there is one.
    tree: Option<(usize, usize)>,
    slide: usize,
}

impl AggregateCall {
    /// Appends the kernels, named after `name`. Argument and filter are over columns of the source.
    ///
    /// # Errors
    /// `Unsupported` where the aggregate is not supported on the device, or none over frames.
    #[allow(clippy::too_many_arguments)]
    pub fn try_new(
        aggregate: &Aggregate,
        frame: Frame,
        field: &Field,
        name: &str,
        source: &Source,
        distinct: Option<Distinct>,
        options: &Options,
        kernels: &mut Vec<Kernel>,
    ) -> Result<AggregateCall> {
        let mut accumulators = Accumulators::default();
        accumulators.plan(aggregate, source, 0, StateUse { atomic: false, grouped: false })?;
        if accumulators.states.iter().any(|state| matches!(state.kind, StateKind::VarWidthMin | StateKind::VarWidthMax)) {
            return Err(Error::Internal("text that is not numbered in a window".into()));
        }
        let write = Write { accumulators, types: &source.types, distinct, options };
        let tree = distinct.is_none().then_some((kernels.len(), kernels.len() + 1));
        if tree.is_some() {
            kernels.extend([write.leaves(name)?, write.nodes(name)]);
        }
        let (slide, output) = write.slide(name, &frame, field)?;
        kernels.push(slide);
        Ok(AggregateCall { frame, output, words: write.accumulators.slots, tree, slide: kernels.len() - 1 })
    }

    /// Type of the result.
    pub fn ty(&self) -> &ColumnType {
        &self.output.ty
    }

    /// The aggregate's values. Waits where it can fail.
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
    ) -> Result<DeviceColumn> {
        let mut sizes = vec![n];
        while let Some(size) = sizes.last().copied().filter(|size| self.tree.is_some() && *size > FANOUT) {
            sizes.push(size.div_ceil(FANOUT));
        }
        let tree = queue.alloc(sizes.iter().skip(1).sum::<usize>() * self.words * size_of::<u64>())?;
        let mut base = 0;
        for ((level, size), (leaves, nodes)) in sizes.iter().enumerate().skip(1).zip(self.tree.iter().cycle()) {
            let mut named = vec![("tree", Arg::Buffer(&tree)), ("n", Arg::U64(*size as u64))];
            if level == 1 {
                named.push(("rows", Arg::U64(n as u64)));
                loaded.launch_on(queue, *leaves, spread(queue, options, *size), columns, None, named)?;
            } else {
                let below = sizes[level - 1];
                named.extend([("below", Arg::U64(base as u64)), ("below_n", Arg::U64(below as u64))]);
                base += below;
                named.push(("base", Arg::U64(base as u64)));
                loaded.launch(queue, *nodes, spread(queue, options, *size), named)?;
            }
        }
        let buffers = self.output.alloc(queue, n)?;
        let error = queue.filled(size_of::<u64>(), 0xff)?;
        let mut named = places.args();
        named.extend(self.frame.offsets());
        named.extend([("tree", Arg::Buffer(&tree)), ("levels", Arg::U32(sizes.len() as u32 - 1)), ("n", Arg::U64(n as u64))]);
        named.extend(self.output.args(&buffers));
        loaded.launch_on(queue, self.slide, spread(queue, options, n), columns, Some(&error), named)?;
        if program.can_fail(self.slide) {
            let answer = queue.read(&error, 0..error.len()).await?;
            // All that can fail is an AVG; the row is not one of the input's batches.
            check_row(word(&answer, 0)?).map_err(|_| Error::AverageOverflow)?;
        }
        self.output.finish(queue, primitives, n, buffers, None)
    }
}

/// Where a row's value stands beside it, as columns, for DISTINCT: of rows of one value, the frame's first counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Distinct {
    /// Where before it.
    pub before: usize,
    /// Where behind it; only where the state gives values back. Without, each frame is looked at anew.
    pub behind: Option<usize>,
}

/// Writes the kernels.
struct Write<'a> {
    accumulators: Accumulators,
    types: &'a [ColumnType],
    distinct: Option<Distinct>,
    options: &'a Options,
}

impl Write<'_> {
    fn profile(&self) -> Profile {
        self.options.profile
    }

    /// C that declares the state.
    fn declare(&self) -> String {
        format!("    u64 s[{}];\n", self.accumulators.slots)
    }

    /// C that makes it the state of no rows.
    fn reset(&self) -> String {
        let init = self.accumulators.init();
        init.iter().enumerate().map(|(word, value)| format!("s[{word}] = (u64){value:#x}UL; ")).collect()
    }

    /// C that takes row `at` in.
    fn take(&self, params: &mut Params) -> Result<String> {
        let mut writer = RowWriter::new(self.types, self.profile(), params).with_names("at", "x");
        let list = &self.accumulators.states;
        let mut update = |writer: &mut RowWriter<'_>, index: usize, values: &[Value]| {
            let state = &list[index];
            writer.push(&state.kind.update(&state.slot_names(|word| format!("s[{word}]")), values));
            Ok(())
        };
        match self.distinct {
            None => self.accumulators.write(&mut writer, 0, &mut update)?,
            Some(Distinct { before, .. }) => {
                let before = writer.eval(&Expr::Column(before))?;
                let first = format!("{} <= frame_start", before.code);
                writer.guarded(&first, |writer| self.accumulators.write(writer, 0, &mut update))?;
            }
        }
        Ok(writer.statements())
    }

    /// C that takes row `at`, the first, back out of the state of the rows before `high`, where its value has no other there.
    fn take_back(&self, behind: usize, params: &mut Params) -> Result<String> {
        let mut writer = RowWriter::new(self.types, self.profile(), params).with_names("at", "x");
        let list = &self.accumulators.states;
        let mut update = |writer: &mut RowWriter<'_>, index: usize, values: &[Value]| {
            let state = &list[index];
            let text = state.kind.retract(&state.slot_names(|word| format!("s[{word}]")), values);
            writer.push(&text.ok_or_else(|| Error::Internal(format!("{:?} gives no value back", state.kind)))?);
            Ok(())
        };
        let behind = writer.eval(&Expr::Column(behind))?;
        let last = format!("({0} == 0 || {0} > high)", behind.code);
        writer.guarded(&last, |writer| self.accumulators.write(writer, 0, &mut update))?;
        Ok(writer.statements())
    }

    /// C that merges the state at `node`.
    fn merge(&self) -> String {
        let merge = |state: &crate::ops::accumulate::Accumulator| {
            let text = state
                .kind
                .merge(&state.slot_names(|word| format!("s[{word}]")), &state.slot_names(|word| format!("node[{word}]")));
            format!("      {text}\n")
        };
        self.accumulators.states.iter().map(merge).collect()
    }

    /// C that stores the state of node `at`.
    fn store(&self, at: &str) -> String {
        let words = self.accumulators.slots;
        (0..words).map(|word| format!("    tree[({at}) * {words} + {word}] = s[{word}];\n")).collect()
    }

    fn params(&self, named: &[(&str, &str)]) -> Params {
        let mut params = Params::new();
        params.need(Section::Base);
        self.accumulators.need(&mut params);
        for (name, c_type) in named {
            params.named(name, c_type);
        }
        params
    }

    /// The nodes over rows.
    fn leaves(&self, name: &str) -> Result<Kernel> {
        let mut params = self.params(&[("tree", "G u64 *RESTRICT"), ("rows", "u64"), ("n", "u64")]);
        let text = format!(
            "{declare}    {reset}
    u64 first = row * {FANOUT}, count = rows - first < {FANOUT} ? rows - first : {FANOUT};
    for (u64 k = 0; k < count; ++k) {{
      u64 at = first + k;
{take}    }}
{store}",
            declare = self.declare(),
            reset = self.reset(),
            take = self.take(&mut params)?,
            store = self.store("row"),
        );
        Ok(Kernel::new(format!("window_leaves{name}"), params, for_rows(self.profile(), "row", "n", &text)))
    }

    /// The nodes over nodes.
    fn nodes(&self, name: &str) -> Kernel {
        let params = self.params(&[("tree", "G u64 *"), ("below", "u64"), ("below_n", "u64"), ("base", "u64"), ("n", "u64")]);
        let text = format!(
            "{declare}    {reset}
    u64 first = row * {FANOUT}, count = below_n - first < {FANOUT} ? below_n - first : {FANOUT};
    for (u64 k = 0; k < count; ++k) {{
      const G u64 *node = tree + (below + first + k) * {words};
{merge}    }}
{store}",
            declare = self.declare(),
            reset = self.reset(),
            words = self.accumulators.slots,
            merge = self.merge(),
            store = self.store("base + row"),
        );
        Kernel::new(format!("window_nodes{name}"), params, for_rows(self.profile(), "row", "n", &text))
    }

    /// The walk over the rows. The state is that of the rows from `low` to `high`.
    fn slide(&self, name: &str, frame: &Frame, field: &Field) -> Result<(Kernel, Output)> {
        let mut params = match self.distinct {
            None => self.params(&[("tree", "const G u64 *RESTRICT"), ("levels", "u32"), ("n", "u64")]),
            Some(_) => self.params(&[("n", "u64")]),
        };
        let places = Places::text(&mut params, "row");
        let bounds = frame.text(&mut params, "row");
        let take = self.take(&mut params)?;
        let mut writer = RowWriter::new(self.types, self.profile(), &mut params).with_names("row", "e");
        let evaluator =
            self.accumulators.evaluators.first().ok_or_else(|| Error::Internal("an aggregate without an end".into()))?;
        let value = self.accumulators.evaluate(&mut writer, evaluator, &|word| format!("s[{word}]"))?;
        let output = Output::of(&value, field.data_type(), name)?;
        output.write(&mut writer, &value, "row");
        let end = writer.statements();
        let walk = match self.distinct {
            None => self.walk(&take),
            Some(Distinct { behind, .. }) => {
                let take_back = behind.map(|behind| self.take_back(behind, &mut params)).transpose()?;
                self.walk_distinct(&take, take_back.as_deref())
            }
        };
        let text = format!("    {places}\n    {bounds}\n{walk}    high = frame_end;\n{end}");
        let rows = format!(
            "{}    {}\n    u64 low = 0, high = 0;\n    for (u64 row = begin; row < end; ++row) {{\n{text}    }}\n",
            self.declare(),
            self.reset()
        );
        let least = ROWS_PER_ITEM;
        let rows_per_item = match self.distinct {
            None => least.to_string(),
            Some(_) => format!("(n >> {MOST_ITEMS_BITS} > {least} ? n >> {MOST_ITEMS_BITS} : {least})"),
        };
        let walk = match self.profile() {
            Profile::Cpu => format!("{}{rows}", run_of_rows("n")),
            Profile::Gpu => format!(
                "  u64 per_item = {rows_per_item};
  for (u64 run = GID(); run * per_item < n; run += GSZ()) {{
    u64 begin = run * per_item, end = n - begin < per_item ? n : begin + per_item;
{rows}  }}
"
            ),
        };
        let body = match self.distinct {
            None => format!("{}{walk}", bases()),
            Some(_) => walk,
        };
        Ok((Kernel::new(format!("window_slide{name}"), params, body), output))
    }

    /// C that brings the state from the rows from `low` to `high` to those of the frame, by way of the tree.
    fn walk(&self, take: &str) -> String {
        format!(
            "    if (frame_start != low || frame_end < high) {{
      {reset}
      low = high = frame_start;
    }}
    u64 at = high;
    u32 level = 0;
    for (i32 rising = 1;;) {{
      u32 shift = {FANOUT_BITS} * level;
      if (rising && level < levels && (at & {mask}) == 0 && at >> {FANOUT_BITS} < frame_end >> shift >> {FANOUT_BITS}) {{
        at >>= {FANOUT_BITS};
        ++level;
      }} else if (at < frame_end >> shift) {{
        if (level) {{
          const G u64 *node = tree + (bases[level] + at) * {words};
{merge}        }} else {{
{take}        }}
        ++at;
      }} else if (level) {{
        rising = 0;
        at <<= {FANOUT_BITS};
        --level;
      }} else break;
    }}
",
            reset = self.reset(),
            mask = FANOUT - 1,
            words = self.accumulators.slots,
            merge = self.merge(),
        )
    }

    /// The same without a tree: rows that left the frame are taken back, or else the frame is looked at anew.
    fn walk_distinct(&self, take: &str, take_back: Option<&str>) -> String {
        let goes_on = match take_back {
            Some(_) => "frame_start >= low && frame_start < high",
            None => "frame_start == low",
        };
        let back = match take_back {
            Some(back) => format!("    for (u64 at = low; at < frame_start; ++at) {{\n{back}    }}\n    low = frame_start;\n"),
            None => String::new(),
        };
        format!(
            "    if (!({goes_on}) || frame_end < high) {{
      {reset}
      low = high = frame_start;
    }}
{back}    for (u64 at = high; at < frame_end; ++at) {{
{take}    }}
",
            reset = self.reset()
        )
    }
}

/// C that tells where the levels of the tree begin.
fn bases() -> String {
    format!(
        "  u64 bases[{LEVELS}], size = n, base = 0;
  for (u32 level = 1; level <= levels; ++level) {{
    size = (size + {mask}) >> {FANOUT_BITS};
    bases[level] = base;
    base += size;
  }}
",
        mask = FANOUT - 1,
    )
}
