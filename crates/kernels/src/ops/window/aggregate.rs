// SPDX-License-Identifier: Apache-2.0
//! Aggregates over frames.
//!
//! A work-item goes along consecutive rows:
//!
//! - If the frame of a row extends that of the row before, only the new rows are added: running
//!   aggregates add one value a row.
//! - Else the frame is aggregated from a tree whose nodes have the states of [`FANOUT`] rows, or of
//!   nodes below. A frame of n rows is some 30 · log₁₆ n states, from left to right. States are
//!   merged and never subtracted, so that every aggregate that can be merged is supported.
//!
//! Distinct values have no tree, since the counted rows depend on the frame. Counts, and sums of
//! integers, durations and intervals, subtract values whose last row leaves the frame.

use arrow::datatypes::Field;
use columnar::{ColumnType, DeviceColumn};
use device::{Arg, Buffer};

use super::frame::{Frame, PartitionIndex};
use super::order_dependent::OrderDependent;
use super::{WindowInput, carry};
use crate::codegen::{Params, Profile, RowWriter, Value};
use crate::expr::Expr;
use crate::ops::Options;
use crate::ops::accumulate::{Accumulator, Accumulators, StateUse};
use crate::ops::launch::NamedArgs;
use crate::ops::launch::output::Output;
use crate::ops::launch::program::{Kernel, check_failed_row, contiguous_rows, read_u64, row_loop};
use crate::ops::launch::source::Source;
use crate::prelude::Section;
use crate::{Error, Result};

/// Children of a node: a power of two, `1 << FANOUT_BITS`.
const FANOUT_BITS: usize = 4;
const FANOUT: usize = 1 << FANOUT_BITS;
/// Levels of a tree over 2^31 rows, with that of the rows.
const LEVELS: usize = 9;
/// Consecutive rows of a work-item in the gpu profile.
const ROWS_PER_WORK_ITEM: usize = 16;
/// Most work-items that read a whole frame of distinct values, in the gpu profile:
/// `1 << MAX_WORK_ITEMS_BITS`. With more rows, each work-item has more of them.
const MAX_WORK_ITEMS_BITS: usize = 16;

/// An aggregate, and the kernels that write it.
#[derive(Debug, Clone)]
pub(super) struct AggregateCall {
    frame: Frame,
    output: Output,
    slot_count: usize,
    /// Positions of the kernels for leaves and nodes of the tree, if there is one.
    tree: Option<(usize, usize)>,
    slide: usize,
    carries_on: bool,
}

impl AggregateCall {
    /// Appends the kernels, named after `name`. Argument and filter are over columns of the source.
    ///
    /// # Errors
    /// `Unsupported` if the aggregate is not supported on the device, or not over frames.
    pub fn try_new(
        plan: &OrderDependent,
        frame: Frame,
        field: &Field,
        name: &str,
        source: &Source,
        options: &Options,
        kernels: &mut Vec<Kernel>,
    ) -> Result<AggregateCall> {
        let (distinct, carries_on) = (plan.distinct, plan.carries_on);
        let mut accumulators = Accumulators::default();
        accumulators.plan(&plan.aggregate, source, 0, StateUse { atomic: false, grouped: false })?;
        if accumulators.states.iter().any(|state| state.kind.refers_to_row()) {
            return Err(Error::Internal("a string without a rank in a window".into()));
        }
        let write = FrameKernels { accumulators, types: &source.types, distinct, carries_on, options };
        let tree = distinct.is_none().then_some((kernels.len(), kernels.len() + 1));
        if tree.is_some() {
            kernels.extend([write.leaves(name)?, write.nodes(name)]);
        }
        let (slide, output) = write.slide(name, &frame, field)?;
        kernels.push(slide);
        let (slot_count, slide) = (write.accumulators.slots, kernels.len() - 1);
        Ok(AggregateCall { frame, output, slot_count, tree, slide, carries_on })
    }

    /// Type of the result.
    pub fn ty(&self) -> &ColumnType {
        &self.output.ty
    }

    /// Bytes of a state.
    pub fn state_bytes(&self) -> usize {
        self.slot_count * size_of::<u64>()
    }

    /// The values of the aggregate, number `function` of the window. Waits if it can fail.
    pub async fn run(&self, input: WindowInput<'_>, function: usize) -> Result<DeviceColumn> {
        let WindowInput { launch, columns, n, partitions, .. } = input;
        let (tree, levels) = self.build_tree(input)?;
        let buffers = self.output.alloc(launch.queue, n)?;
        let error = launch.queue.filled(size_of::<u64>(), 0xff)?;
        let mut named = partitions.args();
        named.extend(self.frame.offsets());
        named.extend([("tree", Arg::Buffer(&tree)), ("levels", Arg::U32(levels)), ("n", Arg::U64(n as u64))]);
        named.extend(self.output.args(&buffers));
        let carry = input.carry.filter(|_| self.carries_on);
        named.extend(carry.into_iter().flat_map(|carry| carry.of_state(function)));
        launch.run_on(self.slide, launch.grid(n), columns, Some(&error), named)?;
        if launch.can_fail(self.slide) {
            let answer = launch.queue.read(&error, 0..error.len()).await?;
            // Only an AVG can fail here; the row is not one of the input's batches.
            check_failed_row(read_u64(&answer, 0)?).map_err(|_| Error::AverageOverflow)?;
        }
        self.output.finish(&launch.primitives, n, buffers, None)
    }

    /// Enqueues the kernels that write the tree. Returns it with its number of levels above the
    /// rows.
    fn build_tree(&self, input: WindowInput<'_>) -> Result<(Buffer, u32)> {
        let WindowInput { launch, columns, n, .. } = input;
        let mut sizes = vec![n];
        while let Some(size) = sizes.last().copied().filter(|size| self.tree.is_some() && *size > FANOUT) {
            sizes.push(size.div_ceil(FANOUT));
        }
        let tree = launch.queue.alloc(sizes.iter().skip(1).sum::<usize>() * self.slot_count * size_of::<u64>())?;
        let mut base = 0;
        for ((level, size), (leaves, nodes)) in sizes.iter().enumerate().skip(1).zip(self.tree.iter().cycle()) {
            let mut named: NamedArgs<'_> = vec![("tree", Arg::Buffer(&tree)), ("n", Arg::U64(*size as u64))];
            if level == 1 {
                named.push(("rows", Arg::U64(n as u64)));
                launch.run_on(*leaves, launch.grid(*size), columns, None, named)?;
            } else {
                let below = sizes[level - 1];
                named.extend([("below", Arg::U64(base as u64)), ("below_n", Arg::U64(below as u64))]);
                base += below;
                named.push(("base", Arg::U64(base as u64)));
                launch.run(*nodes, launch.grid(*size), named)?;
            }
        }
        Ok((tree, sizes.len() as u32 - 1))
    }
}

/// Columns with the nearest rows of the same value, for DISTINCT: the first row of a value in the
/// frame counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Distinct {
    /// The nearest row before.
    pub before: usize,
    /// The nearest row after, if states subtract values. Else each frame is read again.
    pub after: Option<usize>,
}

/// Generates the kernels.
struct FrameKernels<'a> {
    accumulators: Accumulators,
    types: &'a [ColumnType],
    distinct: Option<Distinct>,
    carries_on: bool,
    options: &'a Options,
}

impl FrameKernels<'_> {
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
        init.iter().enumerate().map(|(slot, value)| format!("s[{slot}] = (u64){value:#x}UL; ")).collect()
    }

    /// The same at row `start`, where a frame begins. A cut partition begins with its state.
    fn begin(&self, start: &str) -> String {
        if !self.carries_on {
            return self.reset();
        }
        let init = self.accumulators.init();
        let first = init.iter().enumerate().map(|(slot, value)| (slot, carry::first_state(slot, *value, start)));
        first.map(|(slot, value)| format!("s[{slot}] = {value}; ")).collect()
    }

    /// C that adds row `at`.
    fn add_row(&self, params: &mut Params) -> Result<String> {
        let mut writer = RowWriter::new(self.types, self.profile(), params).with_names("at", "x");
        let list = &self.accumulators.states;
        let mut update = |writer: &mut RowWriter<'_>, index: usize, values: &[Value]| {
            let state = &list[index];
            writer.push(&state.kind.update(&state.slot_names(|slot| format!("s[{slot}]")), values));
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

    /// C to subtract row `at`, the first of those before `high`, unless its value occurs again
    /// among them.
    fn subtract_row(&self, after: usize, params: &mut Params) -> Result<String> {
        let mut writer = RowWriter::new(self.types, self.profile(), params).with_names("at", "x");
        let list = &self.accumulators.states;
        let mut update = |writer: &mut RowWriter<'_>, index: usize, values: &[Value]| {
            let state = &list[index];
            let statement = state.kind.retract(&state.slot_names(|slot| format!("s[{slot}]")), values);
            writer.push(&statement.ok_or_else(|| Error::Internal(format!("{:?} cannot subtract", state.kind)))?);
            Ok(())
        };
        let after = writer.eval(&Expr::Column(after))?;
        let last = format!("({0} == 0 || {0} > high)", after.code);
        writer.guarded(&last, |writer| self.accumulators.write(writer, 0, &mut update))?;
        Ok(writer.statements())
    }

    /// C that merges the state at `node`.
    fn merge(&self) -> String {
        let merge = |state: &Accumulator| {
            let statement = state
                .kind
                .merge(&state.slot_names(|slot| format!("s[{slot}]")), &state.slot_names(|slot| format!("node[{slot}]")));
            format!("      {statement}\n")
        };
        self.accumulators.states.iter().map(merge).collect()
    }

    /// C that stores the state of node `at`.
    fn store(&self, at: &str) -> String {
        let slot_count = self.accumulators.slots;
        (0..slot_count).map(|slot| format!("    tree[({at}) * {slot_count} + {slot}] = s[{slot}];\n")).collect()
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
        let statements = format!(
            "{declare}    {reset}
    u64 first = row * {FANOUT}, count = rows - first < {FANOUT} ? rows - first : {FANOUT};
    for (u64 k = 0; k < count; ++k) {{
      u64 at = first + k;
{add}    }}
{store}",
            declare = self.declare(),
            reset = self.reset(),
            add = self.add_row(&mut params)?,
            store = self.store("row"),
        );
        Ok(Kernel::new(format!("window_leaves{name}"), params, row_loop(self.profile(), "row", "n", &statements)))
    }

    /// The nodes over nodes.
    fn nodes(&self, name: &str) -> Kernel {
        let params = self.params(&[("tree", "G u64 *"), ("below", "u64"), ("below_n", "u64"), ("base", "u64"), ("n", "u64")]);
        let statements = format!(
            "{declare}    {reset}
    u64 first = row * {FANOUT}, count = below_n - first < {FANOUT} ? below_n - first : {FANOUT};
    for (u64 k = 0; k < count; ++k) {{
      const G u64 *node = tree + (below + first + k) * {slot_count};
{merge}    }}
{store}",
            declare = self.declare(),
            reset = self.reset(),
            slot_count = self.accumulators.slots,
            merge = self.merge(),
            store = self.store("base + row"),
        );
        Kernel::new(format!("window_nodes{name}"), params, row_loop(self.profile(), "row", "n", &statements))
    }

    /// The kernel that goes along the rows. The state is that of the rows from `low` to `high`.
    fn slide(&self, name: &str, frame: &Frame, field: &Field) -> Result<(Kernel, Output)> {
        let mut params = match self.distinct {
            None => self.params(&[("tree", "const G u64 *RESTRICT"), ("levels", "u32"), ("n", "u64")]),
            Some(_) => self.params(&[("n", "u64")]),
        };
        if self.carries_on {
            carry::declare_state(&mut params);
        }
        let partition = PartitionIndex::declare(&mut params, "row");
        let bounds = frame.declare(&mut params, "row");
        let add = self.add_row(&mut params)?;
        let mut writer = RowWriter::new(self.types, self.profile(), &mut params).with_names("row", "e");
        let evaluator =
            self.accumulators.evaluators.first().ok_or_else(|| Error::Internal("an aggregate without an end".into()))?;
        let value = self.accumulators.evaluate(&mut writer, evaluator, &|slot| format!("s[{slot}]"))?;
        let output = Output::of(&value, field.data_type(), name)?;
        output.write(&mut writer, &value, "row");
        let end = writer.statements();
        let walk = match self.distinct {
            None => self.walk(&add),
            Some(Distinct { after, .. }) => {
                let subtract = after.map(|after| self.subtract_row(after, &mut params)).transpose()?;
                self.walk_distinct(&add, subtract.as_deref())
            }
        };
        let carry = if self.carries_on { carry::last_state(self.accumulators.slots) } else { String::new() };
        let statements = format!("    {partition}\n    {bounds}\n{walk}    high = frame_end;\n{carry}{end}");
        let rows = format!(
            "{}    {}\n    u64 low = 0, high = 0;\n    for (u64 row = begin; row < end; ++row) {{\n{statements}    }}\n",
            self.declare(),
            self.begin("0")
        );
        let least = ROWS_PER_WORK_ITEM;
        let rows_per_work_item = match self.distinct {
            None => least.to_string(),
            Some(_) => format!("(n >> {MAX_WORK_ITEMS_BITS} > {least} ? n >> {MAX_WORK_ITEMS_BITS} : {least})"),
        };
        let walk = match self.profile() {
            Profile::Cpu => format!("{}{rows}", contiguous_rows("n")),
            Profile::Gpu => format!(
                "  u64 per_work_item = {rows_per_work_item};
  for (u64 run = GID(); run * per_work_item < n; run += GSZ()) {{
    u64 begin = run * per_work_item, end = n - begin < per_work_item ? n : begin + per_work_item;
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

    /// C that changes the state from the rows from `low` to `high` to those of the frame, through
    /// the tree.
    fn walk(&self, add: &str) -> String {
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
          const G u64 *node = tree + (bases[level] + at) * {slot_count};
{merge}        }} else {{
{add}        }}
        ++at;
      }} else if (level) {{
        rising = 0;
        at <<= {FANOUT_BITS};
        --level;
      }} else break;
    }}
",
            reset = self.begin("frame_start"),
            mask = FANOUT - 1,
            slot_count = self.accumulators.slots,
            merge = self.merge(),
        )
    }

    /// The same without a tree: rows that left the frame are subtracted, or else the frame is read
    /// again.
    fn walk_distinct(&self, add: &str, subtract: Option<&str>) -> String {
        let continues = match subtract {
            Some(_) => "frame_start >= low && frame_start < high",
            None => "frame_start == low",
        };
        let subtracted = match subtract {
            Some(subtract) => {
                format!("    for (u64 at = low; at < frame_start; ++at) {{\n{subtract}    }}\n    low = frame_start;\n")
            }
            None => String::new(),
        };
        format!(
            "    if (!({continues}) || frame_end < high) {{
      {reset}
      low = high = frame_start;
    }}
{subtracted}    for (u64 at = high; at < frame_end; ++at) {{
{add}    }}
",
            reset = self.reset()
        )
    }
}

/// C that declares the first node of each level of the tree.
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
