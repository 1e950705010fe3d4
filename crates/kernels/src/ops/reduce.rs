// SPDX-License-Identifier: Apache-2.0
//! Aggregation of a whole input to one row.
//!
//! Each item keeps its states in registers over its rows; a second kernel folds the groups' partial
//! states into the state that lies on the device between batches, always in the same order, so that
//! float sums repeat. Strings and DISTINCT need a table: they go to [`GroupBy`] without keys.

use arrow::datatypes::{Field, Schema, SchemaRef};
use columnar::{ColumnType, DeviceBatch};
use device::{Arg, Buffer, Grid, Queue};
use std::sync::Arc;

use super::accumulate::{Accumulators, Kind, Use};
use super::compact::tallied_body;
use super::group::{GroupBy, GroupByState};
use super::join::{Joined, JoinedRows, Lookup};
use super::output::Output;
use super::primitives::Primitives;
use super::program::{Kernel, Program, check_row, for_rows, run_of_rows, spread_work, word, work_group_size};
use super::source::Source;
use super::{Input, Options};
use crate::codegen::{CType, Params, Profile, RowWriter, Value};
use crate::expr::Aggregate;
use crate::{Error, Result};

const REDUCE: usize = 0;
const FOLD: usize = 1;
const FINISH: usize = 2;

/// Rows after which the cpu profile adds its 64-bit partial sums to wider ones.
const BLOCK_BITS: u32 = 12;

/// Aggregation without keys: one row, whatever comes in.
#[derive(Debug, Clone)]
pub struct Reduce {
    form: Form,
}

#[derive(Debug, Clone)]
enum Form {
    Registers(Box<Registers>),
    Table(Box<GroupBy>),
}

/// What has been aggregated so far.
#[derive(Debug)]
pub struct ReduceState {
    form: StateForm,
}

#[derive(Debug)]
enum StateForm {
    Registers(RegistersState),
    Table(Box<GroupByState>),
}

#[derive(Debug, Default)]
struct RegistersState {
    words: Option<Buffer>,
    /// What the source's joins count.
    tallies: Option<Buffer>,
}

#[derive(Debug, Clone)]
struct Registers {
    source: Source,
    schema: SchemaRef,
    accumulators: Accumulators,
    outputs: Vec<Output>,
    types: Vec<ColumnType>,
    options: Options,
    primitives: Primitives,
    program: Program,
    /// First of the kernels that aggregate, and how many they are, each with its states.
    parts: Vec<Vec<usize>>,
}

impl Reduce {
    /// Aggregates the rows that pass the input's filter.
    ///
    /// # Errors
    /// `Unsupported` where an expression or aggregate is not supported on the device.
    pub fn try_new(input: Input, aggregates: Vec<(Aggregate, Field)>, options: Options) -> Result<Reduce> {
        let table = |input, aggregates, options| {
            Ok(Reduce { form: Form::Table(Box::new(GroupBy::try_new(input, vec![], aggregates, options)?)) })
        };
        if aggregates.iter().any(|(aggregate, _)| aggregate.groups_values()) {
            return table(input, aggregates, options);
        }
        let source = Source::try_new(input.clone())?;
        let mut accumulators = Accumulators::default();
        for (aggregate, _) in &aggregates {
            accumulators.plan(aggregate, &source, 0, Use { atomic: false, grouped: false })?;
        }
        if accumulators.list.iter().any(|state| matches!(state.kind, Kind::BestMin | Kind::BestMax)) {
            return table(input, aggregates, options);
        }
        let fields = aggregates.into_iter().map(|(_, field)| field).collect();
        Ok(Reduce { form: Form::Registers(Box::new(Registers::try_new(source, fields, accumulators, options)?)) })
    }

    /// Aggregates what joins give, `aggregates` being over their output: each row goes through the joins where it is aggregated,
    /// and is never written. `None` where it had better be, since several kernels would look at each row.
    ///
    /// # Errors
    /// `Unsupported` where an expression or aggregate is not supported on the device.
    pub fn over_joins(joined: &Joined, aggregates: &[(Aggregate, Field)], options: Options) -> Result<Option<Reduce>> {
        let source = joined.source().clone();
        let (mut accumulators, mut fields) = (Accumulators::default(), Vec::new());
        for (aggregate, field) in aggregates {
            let aggregate = joined.aggregate(aggregate)?.plain();
            if aggregate.groups_values() {
                return Ok(None);
            }
            accumulators.plan(&aggregate, &source, 0, Use { atomic: false, grouped: false })?;
            fields.push(field.clone());
        }
        if accumulators.list.iter().any(|state| matches!(state.kind, Kind::BestMin | Kind::BestMax)) {
            return Ok(None);
        }
        let registers = Registers::try_new(source, fields, accumulators, options)?;
        let one = registers.parts.len() == 1;
        Ok(one.then(|| Reduce { form: Form::Registers(Box::new(registers)) }))
    }

    /// Names and types of the result.
    pub fn schema(&self) -> &SchemaRef {
        match &self.form {
            Form::Registers(registers) => &registers.schema,
            Form::Table(table) => table.schema(),
        }
    }

    /// Types and layouts of the result.
    pub fn output_types(&self) -> &[ColumnType] {
        match &self.form {
            Form::Registers(registers) => &registers.types,
            Form::Table(table) => table.output_types(),
        }
    }

    /// Names and texts of the kernels.
    pub fn kernel_text(&self) -> Vec<(String, String)> {
        match &self.form {
            Form::Registers(registers) => registers.program.kernel_text(),
            Form::Table(table) => table.kernel_text(),
        }
    }

    /// The programs as they are compiled.
    pub fn programs(&self) -> Vec<String> {
        match &self.form {
            Form::Registers(registers) => vec![registers.primitives.text().into(), registers.program.text().into()],
            Form::Table(table) => table.programs(),
        }
    }

    /// Nothing aggregated yet.
    pub fn start(&self) -> ReduceState {
        let form = match &self.form {
            Form::Registers(_) => StateForm::Registers(RegistersState::default()),
            Form::Table(table) => StateForm::Table(Box::new(table.start())),
        };
        ReduceState { form }
    }

    /// Aggregates a batch. Returns once queued, unless a checked operation may fail.
    ///
    /// # Errors
    /// `Row` with the lowest failing row. The state is useless afterwards.
    pub async fn push(&self, queue: &Queue, state: &mut ReduceState, batch: &DeviceBatch) -> Result<()> {
        match (&self.form, &mut state.form) {
            (Form::Registers(registers), StateForm::Registers(state)) => registers.push(queue, state, batch).await,
            (Form::Table(table), StateForm::Table(state)) => table.push(queue, state, batch).await,
            _ => Err(Error::Internal("a state of another aggregation".into())),
        }
    }

    /// What the joins of an aggregation [over joins](Self::over_joins) have counted so far.
    ///
    /// # Errors
    /// Those of the device.
    pub fn joined_rows(&self, queue: &Queue, state: &ReduceState) -> impl Future<Output = Result<JoinedRows>> + Send + use<> {
        match (&self.form, &state.form) {
            (Form::Registers(registers), StateForm::Registers(state)) => {
                JoinedRows::read(queue, registers.source.tallies(), state.tallies.as_ref())
            }
            _ => JoinedRows::read(queue, 0, None),
        }
    }

    /// The result: one row.
    pub async fn finish(&self, queue: &Queue, state: ReduceState) -> Result<DeviceBatch> {
        match (&self.form, state.form) {
            (Form::Registers(registers), StateForm::Registers(state)) => registers.finish(queue, state.words).await,
            (Form::Table(table), StateForm::Table(state)) => {
                let mut batches = table.finish(queue, *state).await?;
                batches.pop().ok_or_else(|| Error::Internal("an aggregation without keys gave no row".into()))
            }
            _ => Err(Error::Internal("a state of another aggregation".into())),
        }
    }
}

impl Registers {
    fn try_new(source: Source, fields: Vec<Field>, accumulators: Accumulators, options: Options) -> Result<Registers> {
        // All states in one kernel where its arguments fit, else in as many as needed.
        let mut kernels = Vec::new();
        let mut parts = Vec::new();
        let mut pending = vec![(0..accumulators.list.len()).collect::<Vec<_>>()];
        while let Some(part) = pending.pop() {
            let kernel = reduce_kernel(&source, &accumulators, &part, parts.len(), &options)?;
            if !kernel.fits(&options) && part.len() > 1 {
                let (first, second) = part.split_at(part.len() / 2);
                pending.extend([second.to_vec(), first.to_vec()]);
                continue;
            }
            parts.push(part);
            kernels.push(kernel);
        }
        // The first part keeps its place before the fixed two, the others go behind them.
        let rest = kernels.split_off(1);
        kernels.push(fold_kernel(&accumulators, &options));
        let (finish, outputs) = finish_kernel(&accumulators, &fields)?;
        kernels.push(finish);
        kernels.extend(rest);
        let types = outputs.iter().map(|output| (*output.ty).clone()).collect();
        Ok(Registers {
            primitives: Primitives::try_new(&options)?,
            program: Program::try_new("Reduce", &options, kernels)?,
            schema: Arc::new(Schema::new(fields)),
            source,
            accumulators,
            outputs,
            types,
            options,
            parts,
        })
    }

    fn kernel(&self, part: usize) -> usize {
        if part == 0 { REDUCE } else { FINISH + part }
    }

    fn words(&self) -> usize {
        self.accumulators.words.max(1)
    }

    fn fresh(&self, queue: &Queue) -> Result<Buffer> {
        let mut init: Vec<u8> = self.accumulators.init().iter().flat_map(|word| word.to_le_bytes()).collect();
        init.resize(self.words() * 8, 0);
        let words = queue.alloc(init.len())?;
        queue.write(&words, 0, &init)?;
        Ok(words)
    }

    async fn push(&self, queue: &Queue, state: &mut RegistersState, batch: &DeviceBatch) -> Result<()> {
        let n = batch.num_rows();
        if n == 0 {
            return Ok(());
        }
        let bound = self.source.bind(batch)?;
        let loaded = self.program.load(queue).await?;
        let words = match state.words.take() {
            Some(words) => words,
            None => self.fresh(queue)?,
        };
        if self.source.tallies() > 0 && state.tallies.is_none() {
            state.tallies = Some(queue.zeroed(self.source.tallies() * 8)?);
        }
        let grid = spread_work(queue, &self.options, n, self.source.meets());
        let partials = queue.alloc(grid.work_groups as usize * self.words() * 8)?;
        let fails = (0..self.parts.len()).any(|part| self.program.can_fail(self.kernel(part)));
        let error = if fails { Some(queue.filled(8, 0xff)?) } else { None };
        for part in 0..self.parts.len() {
            let mut named = vec![("n", Arg::U64(n as u64)), ("partials", Arg::Buffer(&partials))];
            named.extend(self.source.args(state.tallies.as_ref()));
            loaded.launch_on(queue, self.kernel(part), grid, &bound, error.as_ref(), named)?;
        }
        let one = Grid { work_groups: 1, work_group_size: work_group_size(&self.options) };
        let named = vec![
            ("state", Arg::Buffer(&words)),
            ("partials", Arg::Buffer(&partials)),
            ("n", Arg::U64(u64::from(grid.work_groups))),
        ];
        loaded.launch(queue, FOLD, one, named)?;
        state.words = Some(words);
        if let Some(error) = &error {
            check_row(word(&queue.read(error, 0..8).await?, 0)?)?;
        }
        Ok(())
    }

    async fn finish(&self, queue: &Queue, state: Option<Buffer>) -> Result<DeviceBatch> {
        let loaded = self.program.load(queue).await?;
        let primitives = self.primitives.load(queue).await?;
        let words = match state {
            Some(words) => words,
            None => self.fresh(queue)?,
        };
        let buffers = self.outputs.iter().map(|output| output.alloc(queue, 1)).collect::<Result<Vec<_>>>()?;
        let error = queue.filled(8, 0xff)?;
        let mut named = vec![("state", Arg::Buffer(&words))];
        for (output, buffers) in self.outputs.iter().zip(&buffers) {
            named.extend(output.args(buffers));
        }
        let one = Grid { work_groups: 1, work_group_size: 1 };
        loaded.launch_on(
            queue,
            FINISH,
            one,
            &DeviceBatch::try_new(Arc::new(Schema::empty()), vec![], 0)?,
            Some(&error),
            named,
        )?;
        if self.program.can_fail(FINISH) && word(&queue.read(&error, 0..8).await?, 0)? != u64::MAX {
            return Err(Error::AverageOverflow);
        }
        let mut columns = Vec::with_capacity(self.outputs.len());
        for (output, buffers) in self.outputs.iter().zip(buffers) {
            columns.push(output.finish(queue, &primitives, 1, buffers, None)?);
        }
        Ok(DeviceBatch::try_new(self.schema.clone(), columns, 1)?)
    }
}

/// The kernel that aggregates rows to a partial state for each group of items.
fn reduce_kernel(
    source: &Source,
    accumulators: &Accumulators,
    part: &[usize],
    number: usize,
    options: &Options,
) -> Result<Kernel> {
    let mut own = accumulators.clone();
    // States of other parts are somebody else's.
    own.list.iter_mut().enumerate().filter(|(index, _)| !part.contains(index)).for_each(|(_, state)| state.feed = usize::MAX);
    let profile = options.profile;
    let mut params = Params::new();
    let n = params.named("n", "u64");
    let partials = params.named("partials", "G u64 *RESTRICT");
    let mut blocks = Vec::new();
    let mut rows = |writer: &mut RowWriter<'_>| {
        own.write(writer, 0, &mut |writer, index, values| {
            let state = &own.list[index];
            let places = state.places(|word| format!("s{word}"));
            match (state.kind, values) {
                (Kind::Sum128, [value]) if narrow_sum(profile, value) == Some(Narrow::Whole) => {
                    writer.push(&format!("low{} += (i64){};", state.first, value.code));
                    blocks.push((index, Narrow::Whole));
                }
                (Kind::Sum128, [value]) if narrow_sum(profile, value) == Some(Narrow::Halves) => {
                    writer.push(&format!(
                        "low{0} += (i64)((u64)(i64){1} & 0xffffffffu); high{0} += (i64){1} >> 32;",
                        state.first, value.code
                    ));
                    blocks.push((index, Narrow::Halves));
                }
                _ => writer.push(&state.kind.take(&places, values)),
            }
            Ok(())
        })
    };
    let mut writer = source.writer(profile, &mut params);
    let (mut tests, mut searches) = (None, None);
    let lookup = source.lookup().filter(|_| profile == Profile::Cpu);
    let statements = if let Some(lookup) = lookup {
        searches = Some((lookup, lookup.block(&mut params, &source.types, lookup.joins())?));
        let mut writer = source.writer(profile, &mut params);
        lookup.locate(&mut writer, lookup.joins());
        rows(&mut writer)?;
        writer.statements()
    } else if let Some(filter) = &source.filter
        && profile == Profile::Cpu
        && !becomes_vector_code(source, &own)?
    {
        let condition = writer.eval(filter)?.is_true();
        tests = Some((writer.statements(), condition));
        let mut writer = source.writer(profile, &mut params);
        rows(&mut writer)?;
        writer.statements()
    } else {
        match source.kept(&mut writer)? {
            None => rows(&mut writer)?,
            Some(condition) => writer.guarded(&condition, rows)?,
        }
        writer.statements()
    };
    let visit = |from: &str, to: &str| match (&searches, &tests) {
        (Some((lookup, searches)), _) => {
            let kept = format!("{}    tally{} += left;\n", Lookup::each_kept(&statements), lookup.tallies());
            lookup.blocks(lookup.joins(), from, to, searches, &kept)
        }
        (None, None) => format!("    for (u64 row = {from}; row < {to}; ++row) {{\n{statements}    }}\n"),
        (None, Some((tests, condition))) => survivors(from, to, tests, condition, &statements),
    };

    let mut body = String::new();
    for index in part {
        let state = &own.list[*index];
        for (place, init) in state.places(|word| format!("s{word}")).iter().zip(state.kind.init()) {
            body.push_str(&format!("  u64 {place} = (u64){init:#x}UL;\n"));
        }
    }
    if profile == Profile::Gpu {
        body.push_str(&for_rows(profile, "row", &n, &statements));
    } else {
        body.push_str(&run_of_rows(&n));
        let (mut open, mut close) = (String::new(), String::new());
        for (index, narrow) in &blocks {
            let state = &own.list[*index];
            let first = state.first;
            let places = state.places(|word| format!("s{word}"));
            open.push_str(&format!("    i64 low{first} = 0;\n"));
            let low = [format!("(u64)low{first}"), format!("(u64)(low{first} >> 63)")];
            close.push_str(&format!("    {}\n", state.kind.merge(&places, &low)));
            if *narrow == Narrow::Halves {
                open.push_str(&format!("    i64 high{first} = 0;\n"));
                let high = [format!("((u64)high{first} << 32)"), format!("(u64)(high{first} >> 32)")];
                close.push_str(&format!("    {}\n", state.kind.merge(&places, &high)));
            }
        }
        body.push_str(&match blocks.is_empty() {
            true => visit("begin", "end"),
            false => format!(
                "  for (u64 first = begin; first < end; first += {block}) {{\n\
                 \x20   u64 last = first + {block} < end ? first + {block} : end;\n\
                 {open}{}{close}  }}\n",
                visit("first", "last"),
                block = 1 << BLOCK_BITS,
            ),
        });
    }
    if profile == Profile::Gpu {
        body.push_str(&group_tree(&own, part, options));
    }
    body.push_str(if profile == Profile::Gpu { "  if (l == 0) {\n" } else { "  {\n" });
    for index in part {
        for word in own.list[*index].first..own.list[*index].first + own.list[*index].kind.words() {
            body.push_str(&format!("    {partials}[(u64)GRP() * {} + {word}] = s{word};\n", accumulators.words.max(1)));
        }
    }
    body.push_str("  }\n");
    let body = tallied_body(&mut params, profile, &body, source.tallies());
    Ok(Kernel::new(format!("reduce{number}"), params, body))
}

/// Whether compilers turn the updates of all states into vector code, branches and all.
fn becomes_vector_code(source: &Source, accumulators: &Accumulators) -> Result<bool> {
    let mut params = Params::new();
    let mut all = true;
    accumulators.write(&mut source.writer(Profile::Cpu, &mut params), 0, &mut |_, index, values| {
        all &= match accumulators.list[index].kind {
            Kind::Count | Kind::Sum64 | Kind::And | Kind::Or | Kind::Xor | Kind::Min | Kind::Max => {
                values.iter().all(|value| !value.ctype.is_wide())
            }
            Kind::Sum128 => values.iter().all(|value| narrow_sum(Profile::Cpu, value).is_some()),
            _ => false,
        };
        Ok(())
    })?;
    Ok(all)
}

/// Text that runs `updates` for each `row` that passes: the tests of 32 rows become vector code, and no branch
/// depends on a single one's outcome.
fn survivors(from: &str, to: &str, tests: &str, condition: &str, updates: &str) -> String {
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

/// How a sum of 128 bits gathers values of at most 64 bits over a block of rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Narrow {
    /// The block's sum fits 64 bits.
    Whole,
    /// The sums of the values' halves do.
    Halves,
}

fn narrow_sum(profile: Profile, value: &Value) -> Option<Narrow> {
    if profile == Profile::Gpu || value.ctype.is_wide() || value.ctype == CType::U64 {
        return None;
    }
    let most = 1i128 << (63 - BLOCK_BITS);
    Some(match value.range() {
        Some((low, high)) if -most < low && high < most => Narrow::Whole,
        _ => Narrow::Halves,
    })
}

/// Folds the items' states to item 0's through shared memory, as many states at a time as fit: each
/// costs barriers. The upper half of the items hands its states to the lower one. Declares the item's number `l`.
fn group_tree(accumulators: &Accumulators, part: &[usize], options: &Options) -> String {
    let half = options.work_group_size / 2;
    let room = (options.shared_bytes / 8 / half as usize).max(4);
    let mut chunks: Vec<(Vec<usize>, usize)> = Vec::new();
    for index in part {
        let words = accumulators.list[*index].kind.words();
        match chunks.last_mut() {
            Some((chunk, used)) if *used + words <= room => {
                chunk.push(*index);
                *used += words;
            }
            _ => chunks.push((vec![*index], words)),
        }
    }
    let widest = chunks.iter().map(|(_, words)| *words).max().unwrap_or(1).max(1);
    let mut text = format!("  u32 l = LID();\n  SHARED(u64, tree, {});\n", half as usize * widest);
    for (chunk, words) in &chunks {
        let (mut store, mut merge, mut first) = (String::new(), String::new(), 0);
        for state in chunk.iter().map(|index| &accumulators.list[*index]) {
            let places = state.places(|word| format!("s{word}"));
            for (word, place) in places.iter().enumerate() {
                store.push_str(&format!("tree[(l - d) * {words} + {}] = {place}; ", first + word));
            }
            let from: Vec<String> = (0..places.len()).map(|word| format!("tree[l * {words} + {}]", first + word)).collect();
            merge.push_str(&format!("      {}\n", state.kind.merge(&places, &from)));
            first += places.len();
        }
        text.push_str(&format!(
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
    text
}

/// The kernel of one group that adds partial states to the state, in their order.
fn fold_kernel(accumulators: &Accumulators, options: &Options) -> Kernel {
    let mut params = Params::new();
    accumulators.need(&mut params);
    let state = params.named("state", "G u64 *RESTRICT");
    let partials = params.named("partials", "const G u64 *RESTRICT");
    let n = params.named("n", "u64");
    let words = accumulators.words.max(1);
    let mut body = String::new();
    let mut merges = String::new();
    for accumulator in &accumulators.list {
        let places = accumulator.places(|word| format!("s{word}"));
        for (place, init) in places.iter().zip(accumulator.kind.init()) {
            body.push_str(&format!("  u64 {place} = (u64){init:#x}UL;\n"));
        }
        let from = accumulator.places(|word| format!("{partials}[i * {words} + {word}]"));
        merges.push_str(&format!("    {}\n", accumulator.kind.merge(&places, &from)));
    }
    body.push_str(&format!("  for (u64 i = LID(); i < {n}; i += LSZ()) {{\n{merges}  }}\n"));
    if options.profile == Profile::Gpu {
        let all: Vec<usize> = (0..accumulators.list.len()).collect();
        body.push_str(&group_tree(accumulators, &all, options));
        body.push_str("  if (l == 0) {\n");
    } else {
        body.push_str("  {\n");
    }
    for accumulator in &accumulators.list {
        let to = accumulator.places(|word| format!("{state}[{word}]"));
        body.push_str(&format!("    {}\n", accumulator.kind.merge(&to, &accumulator.places(|word| format!("s{word}")))));
    }
    body.push_str("  }\n");
    Kernel::new("reduce_fold", params, body)
}

/// The kernel of one item that makes the row.
fn finish_kernel(accumulators: &Accumulators, fields: &[Field]) -> Result<(Kernel, Vec<Output>)> {
    let mut params = Params::new();
    let state = params.named("state", "const G u64 *RESTRICT");
    let mut writer = RowWriter::new(&[], Profile::Cpu, &mut params);
    writer.push("u64 row = 0;");
    let mut outputs = Vec::with_capacity(fields.len());
    for (index, (ending, field)) in accumulators.endings.iter().zip(fields).enumerate() {
        let value = accumulators.end(&mut writer, ending, &|word| format!("{state}[{word}]"))?;
        let output = Output::of(&value, field.data_type(), &index.to_string())?;
        output.write(&mut writer, &value, "row");
        outputs.push(output);
    }
    let body = writer.statements();
    Ok((Kernel::new("reduce_finish", params, body), outputs))
}
