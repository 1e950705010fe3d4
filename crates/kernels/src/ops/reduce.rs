// SPDX-License-Identifier: Apache-2.0
//! Aggregation without keys, of a whole input to one row.
//!
//! Each work-item keeps its states in registers over its rows. A second kernel folds the partial
//! states of the work-groups into the state on the device. Their order is fixed, so that float sums
//! repeat. Strings and DISTINCT need a table: [`GroupBy`] without keys aggregates them.

use arrow::datatypes::{Field, Schema, SchemaRef};
use columnar::{ColumnType, DeviceBatch};
use device::{Arg, Buffer, Grid, ProgramSource, Queue};
use std::ops::Range;
use std::sync::Arc;

use super::accumulate::{Accumulators, Content, StateKind, StateUse, Sum};
use super::group::{GroupBy, GroupByState};
use super::join::{FusedJoinCounts, FusedJoins, Lookup};
use super::launch::compact::tallied_body;
use super::launch::output::Output;
use super::launch::primitives::Primitives;
use super::launch::program::{Kernel, Program, check_failed_row, contiguous_rows, read_u64, row_loop, work_group_size};
use super::launch::source::Source;
use super::launch::{Launch, NamedArgs};
use super::{Input, Options};
use crate::codegen::{CType, Params, Profile, RowWriter, Value};
use crate::expr::Aggregate;
use crate::{Error, Result};

/// `1 << BLOCK_BITS` rows are summed in 64 bits before the cpu profile adds the partial sums to
/// wider ones.
const BLOCK_BITS: u32 = 12;

/// Aggregation without keys: gives one row, also for an empty input.
#[derive(Debug, Clone)]
pub struct Reduce {
    strategy: ReduceStrategy,
}

#[derive(Debug, Clone)]
enum ReduceStrategy {
    Registers(Box<RegisterReduce>),
    Table(Box<GroupBy>),
}

/// The state of an aggregation between batches.
#[derive(Debug)]
pub struct ReduceState {
    state: StrategyState,
}

#[derive(Debug)]
enum StrategyState {
    Registers(RegisterState),
    Table(Box<GroupByState>),
}

#[derive(Debug, Default)]
struct RegisterState {
    /// The state slots; none before the first row.
    slots: Option<Buffer>,
    /// Counters of the source's joins.
    tallies: Option<Buffer>,
}

#[derive(Debug, Clone)]
struct RegisterReduce {
    source: Source,
    schema: SchemaRef,
    accumulators: Accumulators,
    outputs: Vec<Output>,
    types: Vec<ColumnType>,
    options: Options,
    primitives: Primitives,
    program: Program,
    /// The states that each aggregating kernel updates. Kernels are: those, for each one to fold
    /// its partial states, and those that write the result.
    parts: Vec<Vec<usize>>,
    /// The kernels that write the result.
    finish: Range<usize>,
}

impl Reduce {
    /// Aggregates the rows that pass the input's filter.
    ///
    /// # Errors
    /// `Unsupported` if an expression or aggregate is not supported on the device.
    pub fn try_new(input: Input, aggregates: Vec<(Aggregate, Field)>, options: Options) -> Result<Reduce> {
        let strategy = match in_registers(&input, &aggregates)? {
            None => ReduceStrategy::Table(Box::new(GroupBy::try_new(input, vec![], aggregates, options)?)),
            Some((source, accumulators)) => {
                let fields = aggregates.into_iter().map(|(_, field)| field).collect();
                ReduceStrategy::Registers(Box::new(RegisterReduce::try_new(source, fields, accumulators, options)?))
            }
        };
        Ok(Reduce { strategy })
    }

    /// Checks that aggregates are supported on the device, without generating their kernels.
    ///
    /// # Errors
    /// As [`try_new`](Self::try_new).
    pub fn check(input: Input, aggregates: Vec<(Aggregate, Field)>) -> Result<()> {
        match in_registers(&input, &aggregates)? {
            None => GroupBy::try_new(input, vec![], aggregates, Options::new(Profile::Gpu)).map(|_| ()),
            Some((_, accumulators)) => {
                let fields: Vec<Field> = aggregates.into_iter().map(|(_, field)| field).collect();
                finish_kernel(&accumulators, &fields, 0..fields.len()).map(|_| ())
            }
        }
    }

    /// Aggregates the output of joins, fused with them: joined rows are not written. `aggregates`
    /// are over the joins' output. `None` if several kernels would search each row, so that writing
    /// the joined rows is better.
    ///
    /// # Errors
    /// `Unsupported` if an expression or aggregate is not supported on the device.
    pub fn over_joins(joined: &FusedJoins, aggregates: &[(Aggregate, Field)], options: Options) -> Result<Option<Reduce>> {
        let source = joined.source().clone();
        let (mut accumulators, mut fields) = (Accumulators::default(), Vec::new());
        for (aggregate, field) in aggregates {
            let aggregate = joined.aggregate(aggregate)?.plain();
            if aggregate.groups_values() {
                return Ok(None);
            }
            accumulators.plan(&aggregate, &source, 0, StateUse { atomic: false, grouped: false })?;
            fields.push(field.clone());
        }
        if needs_table(&accumulators) {
            return Ok(None);
        }
        let registers = RegisterReduce::try_new(source, fields, accumulators, options)?;
        let one = registers.parts.len() == 1;
        Ok(one.then(|| Reduce { strategy: ReduceStrategy::Registers(Box::new(registers)) }))
    }

    /// Names and types of the result.
    pub fn schema(&self) -> &SchemaRef {
        match &self.strategy {
            ReduceStrategy::Registers(registers) => &registers.schema,
            ReduceStrategy::Table(table) => table.schema(),
        }
    }

    /// Types and layouts of the result.
    pub fn output_types(&self) -> &[ColumnType] {
        match &self.strategy {
            ReduceStrategy::Registers(registers) => &registers.types,
            ReduceStrategy::Table(table) => table.output_types(),
        }
    }

    /// Names and sources of the kernels.
    pub fn kernel_source(&self) -> Vec<(String, String)> {
        match &self.strategy {
            ReduceStrategy::Registers(registers) => registers.program.kernel_source(),
            ReduceStrategy::Table(table) => table.kernel_source(),
        }
    }

    /// The programs, as they are compiled.
    pub fn programs(&self) -> Vec<ProgramSource> {
        match &self.strategy {
            ReduceStrategy::Registers(registers) => vec![registers.primitives.source(), registers.program.source()],
            ReduceStrategy::Table(table) => table.programs(),
        }
    }

    /// The state before the first batch.
    pub fn start(&self) -> ReduceState {
        let state = match &self.strategy {
            ReduceStrategy::Registers(_) => StrategyState::Registers(RegisterState::default()),
            ReduceStrategy::Table(table) => StrategyState::Table(Box::new(table.start())),
        };
        ReduceState { state }
    }

    /// Aggregates a batch. Waits only if a checked operation may fail.
    ///
    /// # Errors
    /// `Row` with the lowest failing row. The state must not be used afterwards.
    pub async fn push(&self, queue: &Queue, state: &mut ReduceState, batch: &DeviceBatch) -> Result<()> {
        match (&self.strategy, &mut state.state) {
            (ReduceStrategy::Registers(registers), StrategyState::Registers(state)) => registers.push(queue, state, batch).await,
            (ReduceStrategy::Table(table), StrategyState::Table(state)) => table.push(queue, state, batch).await,
            (ReduceStrategy::Registers(_), StrategyState::Table(_)) | (ReduceStrategy::Table(_), StrategyState::Registers(_)) => {
                Err(foreign_state())
            }
        }
    }

    /// The row counts of the joins of an aggregation [over joins](Self::over_joins).
    ///
    /// # Errors
    /// Errors of the device.
    pub fn joined_rows(
        &self,
        queue: &Queue,
        state: &ReduceState,
    ) -> impl Future<Output = Result<FusedJoinCounts>> + Send + use<> {
        match (&self.strategy, &state.state) {
            (ReduceStrategy::Registers(registers), StrategyState::Registers(state)) => {
                FusedJoinCounts::read(queue, registers.source.tallies(), state.tallies.as_ref())
            }
            (ReduceStrategy::Table(_), _) | (ReduceStrategy::Registers(_), StrategyState::Table(_)) => {
                FusedJoinCounts::read(queue, 0, None)
            }
        }
    }

    /// The result: one row.
    pub async fn finish(&self, queue: &Queue, state: ReduceState) -> Result<DeviceBatch> {
        match (&self.strategy, state.state) {
            (ReduceStrategy::Registers(registers), StrategyState::Registers(state)) => registers.finish(queue, state.slots).await,
            (ReduceStrategy::Table(table), StrategyState::Table(state)) => {
                let mut batches = table.finish(queue, *state).await?;
                batches.pop().ok_or_else(|| Error::Internal("an aggregation without keys gave no row".into()))
            }
            (ReduceStrategy::Registers(_), StrategyState::Table(_)) | (ReduceStrategy::Table(_), StrategyState::Registers(_)) => {
                Err(foreign_state())
            }
        }
    }
}

fn foreign_state() -> Error {
    Error::Internal("a state of another aggregation".into())
}

/// The states of aggregates in registers; `None` if they need a table.
fn in_registers(input: &Input, aggregates: &[(Aggregate, Field)]) -> Result<Option<(Source, Accumulators)>> {
    if aggregates.iter().any(|(aggregate, _)| aggregate.groups_values()) {
        return Ok(None);
    }
    let source = Source::try_new(input.clone())?;
    let mut accumulators = Accumulators::default();
    for (aggregate, _) in aggregates {
        accumulators.plan(aggregate, &source, 0, StateUse { atomic: false, grouped: false })?;
    }
    Ok(if needs_table(&accumulators) { None } else { Some((source, accumulators)) })
}

/// Whether a state refers to rows, as those of strings do, and so does not fit registers.
fn needs_table(accumulators: &Accumulators) -> bool {
    accumulators.states.iter().any(|state| state.kind.refers_to_row())
}

impl RegisterReduce {
    fn try_new(source: Source, fields: Vec<Field>, accumulators: Accumulators, options: Options) -> Result<RegisterReduce> {
        // One kernel for all states if its arguments and states fit, else as many as needed.
        let mut kernels = Vec::new();
        let mut parts = Vec::new();
        let mut pending = vec![(0..accumulators.states.len()).collect::<Vec<_>>()];
        while let Some(part) = pending.pop() {
            let one = part.len() <= 1;
            let kernel = match one || accumulators.fit_registers(&part, &options) {
                true => Some(reduce_kernel(&source, &accumulators, &part, parts.len(), &options)?),
                false => None,
            };
            match kernel.filter(|kernel| one || kernel.fits(&options)) {
                Some(kernel) => {
                    parts.push(part);
                    kernels.push(kernel);
                }
                None => {
                    let (first, second) = part.split_at(part.len() / 2);
                    pending.extend([second.to_vec(), first.to_vec()]);
                }
            }
        }
        let number = |part: usize| if parts.len() > 1 { part.to_string() } else { String::new() };
        let folds = parts.iter().enumerate();
        kernels.extend(folds.map(|(index, part)| fold_kernel(&number(index), &accumulators, part, &options)));
        let (writes, outputs) = finish_kernels(&accumulators, &fields, &options)?;
        let finish = kernels.len()..kernels.len() + writes.len();
        kernels.extend(writes);
        let types = outputs.iter().map(|output| (*output.ty).clone()).collect();
        Ok(RegisterReduce {
            primitives: Primitives::new(&options),
            program: Program::new("Reduce", &options, kernels),
            schema: Arc::new(Schema::new(fields)),
            source,
            accumulators,
            outputs,
            types,
            options,
            parts,
            finish,
        })
    }

    fn slot_count(&self) -> usize {
        self.accumulators.slots.max(1)
    }

    /// The states before the first row.
    fn initial_states(&self, queue: &Queue) -> Result<Buffer> {
        let mut init: Vec<u8> = self.accumulators.init().iter().flat_map(|slot| slot.to_le_bytes()).collect();
        init.resize(self.slot_count() * 8, 0);
        let slots = queue.alloc(init.len())?;
        queue.write(&slots, 0, &init)?;
        Ok(slots)
    }

    async fn push(&self, queue: &Queue, state: &mut RegisterState, batch: &DeviceBatch) -> Result<()> {
        let n = batch.num_rows();
        if n == 0 {
            return Ok(());
        }
        let bound = self.source.bind(batch)?;
        let launch = Launch::load(queue, &self.options, &self.program, &self.primitives).await?;
        let slots = match state.slots.take() {
            Some(slots) => slots,
            None => self.initial_states(queue)?,
        };
        if self.source.tallies() > 0 && state.tallies.is_none() {
            state.tallies = Some(queue.zeroed(self.source.tallies() * 8)?);
        }
        let grid = launch.grid_for_candidates(n, self.source.max_candidates());
        let partials = queue.alloc(grid.work_groups as usize * self.slot_count() * 8)?;
        let error = launch.error_buffer(0..self.parts.len())?;
        for part in 0..self.parts.len() {
            let mut named: NamedArgs<'_> = vec![("n", Arg::U64(n as u64)), ("partials", Arg::Buffer(&partials))];
            named.extend(self.source.args(state.tallies.as_ref()));
            launch.run_on(part, grid, &bound, error.as_ref(), named)?;
        }
        let one = Grid { work_groups: 1, work_group_size: work_group_size(&self.options) };
        for part in 0..self.parts.len() {
            let named = vec![
                ("state", Arg::Buffer(&slots)),
                ("partials", Arg::Buffer(&partials)),
                ("n", Arg::U64(u64::from(grid.work_groups))),
            ];
            launch.run(self.parts.len() + part, one, named)?;
        }
        state.slots = Some(slots);
        if let Some(error) = &error {
            check_failed_row(read_u64(&queue.read(error, 0..8).await?, 0)?)?;
        }
        Ok(())
    }

    async fn finish(&self, queue: &Queue, state: Option<Buffer>) -> Result<DeviceBatch> {
        let launch = Launch::load(queue, &self.options, &self.program, &self.primitives).await?;
        let slots = match state {
            Some(slots) => slots,
            None => self.initial_states(queue)?,
        };
        let buffers = self.outputs.iter().map(|output| output.alloc(queue, 1)).collect::<Result<Vec<_>>>()?;
        let error = launch.error_buffer(self.finish.clone())?;
        let one = Grid { work_groups: 1, work_group_size: 1 };
        for kernel in self.finish.clone() {
            let mut named: NamedArgs<'_> = vec![("state", Arg::Buffer(&slots))];
            for (output, buffers) in self.outputs.iter().zip(&buffers) {
                named.extend(output.args(buffers));
            }
            launch.run_on(kernel, one, &[], error.as_ref(), named)?;
        }
        if let Some(error) = &error
            && read_u64(&queue.read(error, 0..8).await?, 0)? != u64::MAX
        {
            return Err(Error::AverageOverflow);
        }
        let mut columns = Vec::with_capacity(self.outputs.len());
        for (output, buffers) in self.outputs.iter().zip(buffers) {
            columns.push(output.finish(&launch.primitives, 1, buffers, None)?);
        }
        Ok(DeviceBatch::try_new(self.schema.clone(), columns, 1)?)
    }
}

/// The kernel that aggregates rows to a partial state for each work-group. `part`: the states that
/// it updates.
fn reduce_kernel(
    source: &Source,
    accumulators: &Accumulators,
    part: &[usize],
    number: usize,
    options: &Options,
) -> Result<Kernel> {
    let mut own = accumulators.clone();
    // Other kernels update the states of other parts.
    own.states.iter_mut().enumerate().filter(|(index, _)| !part.contains(index)).for_each(|(_, state)| state.feed = usize::MAX);
    let mut params = Params::new();
    let n = params.named("n", "u64");
    let partials = params.named("partials", "G u64 *RESTRICT");
    let updates = RowUpdates::write(source, &own, options.profile, &mut params)?;
    let mut body = String::new();
    for index in part {
        let state = &own.states[*index];
        for (local, init) in state.slot_names(|slot| format!("s{slot}")).iter().zip(state.kind.init()) {
            body.push_str(&format!("  u64 {local} = (u64){init:#x}UL;\n"));
        }
    }
    match options.profile {
        Profile::Gpu => {
            body.push_str(&row_loop(options.profile, "row", &n, &updates.statements));
            body.push_str(&work_group_tree(&own, part, options));
            body.push_str("  if (l == 0) {\n");
        }
        Profile::Cpu => {
            body.push_str(&contiguous_rows(&n));
            body.push_str(&updates.loops(&own));
            body.push_str("  {\n");
        }
    }
    for index in part {
        for slot in own.states[*index].first_slot..own.states[*index].first_slot + own.states[*index].kind.slots() {
            body.push_str(&format!("    {partials}[(u64)GRP() * {} + {slot}] = s{slot};\n", accumulators.slots.max(1)));
        }
    }
    body.push_str("  }\n");
    let body = tallied_body(&mut params, options.profile, &body, source.tallies());
    Ok(Kernel::new(format!("reduce{number}"), params, body))
}

/// C that updates the states of a work-item by its rows.
struct RowUpdates<'a> {
    visit: RowVisit<'a>,
    /// The updates by one row.
    statements: String,
    /// States with 64-bit partial sums, by position.
    narrow_sums: Vec<(usize, NarrowSum)>,
}

/// How the cpu profile visits rows. In the gpu profile filter and joins are part of the statements.
enum RowVisit<'a> {
    /// Each row; a filter is part of the statements.
    Each,
    /// Rows that pass a filter, found 32 at a time.
    Filtered { tests: String, condition: String },
    /// Blocks of rows that are searched in the tables of joins.
    Joined { lookup: &'a Lookup, searches: String },
}

impl<'a> RowUpdates<'a> {
    fn write(source: &'a Source, own: &Accumulators, profile: Profile, params: &mut Params) -> Result<RowUpdates<'a>> {
        let mut narrow_sums = Vec::new();
        let mut updates = |writer: &mut RowWriter<'_>| write_updates(own, profile, writer, &mut narrow_sums);
        let (visit, statements) = if profile == Profile::Cpu
            && let Some(lookup) = source.lookup()
        {
            let searches = lookup.block(params, &source.types, lookup.joins())?;
            let mut writer = source.writer(profile, params);
            lookup.locate(&mut writer, lookup.joins());
            updates(&mut writer)?;
            (RowVisit::Joined { lookup, searches }, writer.statements())
        } else if let Some(filter) = &source.filter
            && profile == Profile::Cpu
            && !becomes_vector_code(source, own)?
        {
            let mut writer = source.writer(profile, params);
            let condition = writer.eval(filter)?.is_true();
            let tests = writer.statements();
            let mut writer = source.writer(profile, params);
            updates(&mut writer)?;
            (RowVisit::Filtered { tests, condition }, writer.statements())
        } else {
            let mut writer = source.writer(profile, params);
            match source.write_filter(&mut writer)? {
                None => updates(&mut writer)?,
                Some(condition) => writer.guarded(&condition, updates)?,
            }
            (RowVisit::Each, writer.statements())
        };
        Ok(RowUpdates { visit, statements, narrow_sums })
    }

    /// The loops of the cpu profile over the rows from `begin` to `end`, in blocks if there are
    /// 64-bit partial sums.
    fn loops(&self, own: &Accumulators) -> String {
        if self.narrow_sums.is_empty() {
            return self.visit("begin", "end");
        }
        let (mut open, mut close) = (String::new(), String::new());
        for (index, narrow) in &self.narrow_sums {
            let state = &own.states[*index];
            let first = state.first_slot;
            let locals = state.slot_names(|slot| format!("s{slot}"));
            open.push_str(&format!("    i64 low{first} = 0;\n"));
            let low = [format!("(u64)low{first}"), format!("(u64)(low{first} >> 63)")];
            close.push_str(&format!("    {}\n", state.kind.merge(&locals, &low)));
            if *narrow == NarrowSum::Halves {
                open.push_str(&format!("    i64 high{first} = 0;\n"));
                let high = [format!("((u64)high{first} << 32)"), format!("(u64)(high{first} >> 32)")];
                close.push_str(&format!("    {}\n", state.kind.merge(&locals, &high)));
            }
        }
        format!(
            "  for (u64 first = begin; first < end; first += {block}) {{\n\
             \x20   u64 last = first + {block} < end ? first + {block} : end;\n\
             {open}{}{close}  }}\n",
            self.visit("first", "last"),
            block = 1 << BLOCK_BITS,
        )
    }

    /// A loop over the rows from `from` to `to`.
    fn visit(&self, from: &str, to: &str) -> String {
        let statements = &self.statements;
        match &self.visit {
            RowVisit::Each => format!("    for (u64 row = {from}; row < {to}; ++row) {{\n{statements}    }}\n"),
            RowVisit::Filtered { tests, condition } => filtered_rows(from, to, tests, condition, statements),
            RowVisit::Joined { lookup, searches } => {
                let kept = format!("{}    tally{} += left;\n", Lookup::each_kept(statements), lookup.tallies());
                lookup.blocks(lookup.joins(), from, to, searches, &kept)
            }
        }
    }
}

/// Appends the updates by one row. Sums of 128 bits may go to 64-bit partial sums, which are noted
/// in `narrow_sums`.
fn write_updates(
    own: &Accumulators,
    profile: Profile,
    writer: &mut RowWriter<'_>,
    narrow_sums: &mut Vec<(usize, NarrowSum)>,
) -> Result<()> {
    own.write(writer, 0, &mut |writer, index, values| {
        let state = &own.states[index];
        let narrow = match (state.kind.content(), values) {
            (Content::Sum(Sum::Int128), [value]) => narrow_sum(profile, value).map(|narrow| (narrow, value)),
            (
                Content::Sum(Sum::Int64 | Sum::Int128 | Sum::Int192 | Sum::Int256 | Sum::Float64)
                | Content::Least
                | Content::Greatest
                | Content::WideExtreme
                | Content::RowReference
                | Content::Welford
                | Content::PowerSums
                | Content::RankCounts
                | Content::Other,
                _,
            ) => None,
        };
        match narrow {
            Some((NarrowSum::Whole, value)) => {
                writer.push(&format!("low{} += (i64){};", state.first_slot, value.code));
                narrow_sums.push((index, NarrowSum::Whole));
            }
            Some((NarrowSum::Halves, value)) => {
                writer.push(&format!(
                    "low{0} += (i64)((u64)(i64){1} & 0xffffffffu); high{0} += (i64){1} >> 32;",
                    state.first_slot, value.code
                ));
                narrow_sums.push((index, NarrowSum::Halves));
            }
            None => writer.push(&state.kind.update(&state.slot_names(|slot| format!("s{slot}")), values)),
        }
        Ok(())
    })
}

/// Whether compilers vectorize the updates of all states, their branches included.
fn becomes_vector_code(source: &Source, accumulators: &Accumulators) -> Result<bool> {
    let mut params = Params::new();
    let mut all = true;
    accumulators.write(&mut source.writer(Profile::Cpu, &mut params), 0, &mut |_, index, values| {
        all &= match accumulators.states[index].kind {
            StateKind::Count
            | StateKind::Sum64
            | StateKind::And
            | StateKind::Or
            | StateKind::Xor
            | StateKind::Min
            | StateKind::Max => values.iter().all(|value| !value.ctype.is_wide()),
            StateKind::Sum128 => values.iter().all(|value| narrow_sum(Profile::Cpu, value).is_some()),
            StateKind::Sum192
            | StateKind::Sum256
            | StateKind::SumF64
            | StateKind::Min128
            | StateKind::Max128
            | StateKind::Min256
            | StateKind::Max256
            | StateKind::Welford
            | StateKind::PowerSums
            | StateKind::CrossSums
            | StateKind::RankCounts
            | StateKind::VarWidthMin
            | StateKind::VarWidthMax => false,
        };
        Ok(())
    })?;
    Ok(all)
}

/// C to run `updates` for each `row` that passes a filter. The tests of 32 rows are vectorized, and
/// no branch depends on the result of a single test.
fn filtered_rows(from: &str, to: &str, tests: &str, condition: &str, updates: &str) -> String {
    format!(
        "    for (u64 base = {from}; base < {to}; base += 32) {{
      u32 word = 0, width = {to} - base < 32 ? (u32)({to} - base) : 32;
      for (u32 bit = 0; bit < width; ++bit) {{
      u64 row = base + bit;
{tests}      word |= (u32)({condition}) << bit;
      }}
      for (; word; word &= word - 1) {{
      u64 row = base + CTZ32(word);
{updates}      }}
    }}
"
    )
}

/// The 64-bit partial sums of a 128-bit sum, over a block of rows with values of at most 64 bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum NarrowSum {
    /// The sum of a block fits 64 bits.
    Whole,
    /// The sums of the upper and lower halves of the values fit 64 bits.
    Halves,
}

fn narrow_sum(profile: Profile, value: &Value) -> Option<NarrowSum> {
    if profile == Profile::Gpu || value.ctype.is_wide() || value.ctype == CType::U64 {
        return None;
    }
    let most = 1i128 << (63 - BLOCK_BITS);
    Some(match value.range() {
        Some((low, high)) if -most < low && high < most => NarrowSum::Whole,
        _ => NarrowSum::Halves,
    })
}

/// C that folds the states of a work-group to those of work-item 0, through shared memory. As many
/// states as fit are folded at a time, since each fold has barriers. The upper half of the
/// work-items passes its states to the lower half. Declares the number `l` of the work-item.
fn work_group_tree(accumulators: &Accumulators, part: &[usize], options: &Options) -> String {
    let half = options.work_group_size / 2;
    let room = (options.shared_bytes / 8 / half as usize).max(4);
    let mut chunks: Vec<(Vec<usize>, usize)> = Vec::new();
    for index in part {
        let slot_count = accumulators.states[*index].kind.slots();
        match chunks.last_mut() {
            Some((chunk, used)) if *used + slot_count <= room => {
                chunk.push(*index);
                *used += slot_count;
            }
            _ => chunks.push((vec![*index], slot_count)),
        }
    }
    let widest = chunks.iter().map(|(_, slots)| *slots).max().unwrap_or(1).max(1);
    let mut tree = format!("  u32 l = LID();\n  SHARED(u64, tree, {});\n", half as usize * widest);
    for (chunk, slot_count) in &chunks {
        let (mut store, mut merge, mut first) = (String::new(), String::new(), 0);
        for state in chunk.iter().map(|index| &accumulators.states[*index]) {
            let slots = state.slot_names(|slot| format!("s{slot}"));
            for (index, slot) in slots.iter().enumerate() {
                store.push_str(&format!("tree[(l - d) * {slot_count} + {}] = {slot}; ", first + index));
            }
            let from: Vec<String> = (0..slots.len()).map(|index| format!("tree[l * {slot_count} + {}]", first + index)).collect();
            merge.push_str(&format!("      {}\n", state.kind.merge(&slots, &from)));
            first += slots.len();
        }
        tree.push_str(&format!(
            "  for (u32 d = {half}; d > 0; d >>= 1) {{
    if (l >= d && l < 2 * d) {{ {store}}}
    SYNC();
    if (l < d) {{
{merge}    }}
    SYNC();
  }}
"
        ));
    }
    tree
}

/// The kernel of one work-group that adds the partial states of a part to the state, in order.
fn fold_kernel(number: &str, accumulators: &Accumulators, part: &[usize], options: &Options) -> Kernel {
    let mut params = Params::new();
    accumulators.need(&mut params);
    let state = params.named("state", "G u64 *RESTRICT");
    let partials = params.named("partials", "const G u64 *RESTRICT");
    let n = params.named("n", "u64");
    let slot_count = accumulators.slots.max(1);
    let states = || part.iter().map(|index| &accumulators.states[*index]);
    let mut body = String::new();
    let mut merges = String::new();
    for accumulator in states() {
        let slots = accumulator.slot_names(|slot| format!("s{slot}"));
        for (slot, init) in slots.iter().zip(accumulator.kind.init()) {
            body.push_str(&format!("  u64 {slot} = (u64){init:#x}UL;\n"));
        }
        let from = accumulator.slot_names(|slot| format!("{partials}[i * {slot_count} + {slot}]"));
        merges.push_str(&format!("    {}\n", accumulator.kind.merge(&slots, &from)));
    }
    body.push_str(&format!("  for (u64 i = LID(); i < {n}; i += LSZ()) {{\n{merges}  }}\n"));
    if options.profile == Profile::Gpu {
        body.push_str(&work_group_tree(accumulators, part, options));
        body.push_str("  if (l == 0) {\n");
    } else {
        body.push_str("  {\n");
    }
    for accumulator in states() {
        let to = accumulator.slot_names(|slot| format!("{state}[{slot}]"));
        body.push_str(&format!("    {}\n", accumulator.kind.merge(&to, &accumulator.slot_names(|slot| format!("s{slot}")))));
    }
    body.push_str("  }\n");
    Kernel::new(format!("reduce_fold{number}"), params, body)
}

/// The kernels of the result row: one if its arguments fit, else as many as needed.
fn finish_kernels(accumulators: &Accumulators, fields: &[Field], options: &Options) -> Result<(Vec<Kernel>, Vec<Output>)> {
    let (mut kernels, mut outputs) = (Vec::new(), Vec::with_capacity(fields.len()));
    let all = 0..fields.len();
    let mut pending = vec![all];
    while let Some(range) = pending.pop() {
        let (kernel, written) = finish_kernel(accumulators, fields, range.clone())?;
        if range.len() <= 1 || kernel.fits(options) {
            kernels.push(kernel);
            outputs.extend(written);
        } else {
            let middle = range.start + range.len() / 2;
            pending.extend([middle..range.end, range.start..middle]);
        }
    }
    if kernels.len() > 1 {
        kernels.iter_mut().enumerate().for_each(|(index, kernel)| kernel.name.push_str(&index.to_string()));
    }
    Ok((kernels, outputs))
}

/// The kernel of one work-item that writes a range of the result row's columns.
fn finish_kernel(accumulators: &Accumulators, fields: &[Field], range: Range<usize>) -> Result<(Kernel, Vec<Output>)> {
    let mut params = Params::new();
    let state = params.named("state", "const G u64 *RESTRICT");
    let mut writer = RowWriter::new(&[], Profile::Cpu, &mut params);
    writer.push("u64 row = 0;");
    let mut outputs = Vec::with_capacity(range.len());
    for index in range {
        let (evaluator, field) = (&accumulators.evaluators[index], &fields[index]);
        let value = accumulators.evaluate(&mut writer, evaluator, &|slot| format!("{state}[{slot}]"))?;
        let output = Output::of(&value, field.data_type(), &index.to_string())?;
        output.write(&mut writer, &value, "row");
        outputs.push(output);
    }
    let body = writer.statements();
    Ok((Kernel::new("reduce_finish", params, body), outputs))
}
