// SPDX-License-Identifier: Apache-2.0
//! Probing: rows of one side, batch by batch, against the tables of others, with the filters and projections around.
//!
//! Where each row has one match at most, `probe_mask` notes the row's matches and whether it stays, and the columns are
//! written for those that do, as [`Select`](crate::ops::Select) does. Where the last join gives a row several,
//! `probe_count` counts them, a scan makes places of the counts, `probe_pairs` lists the pairs of rows, and the columns
//! are written for these.

use std::sync::{Arc, OnceLock};

use arrow::datatypes::{Field, Schema, SchemaRef};
use columnar::{ColumnType, DeviceBatch, DeviceColumn};
use device::{Arg, Buffer, Grid, Queue};

use super::block::BLOCK;
use super::lookup::Lookup;
use super::pace::{self, Pace};
use super::search::NONE;
use super::table::JoinTable;
use super::{Join, JoinKind, joined_schema, joined_types};
use crate::codegen::{Params, Profile, RowRef, RowWriter, Value};
use crate::expr::Expr;
use crate::ops::compact::{Survivors, mask_body, mask_tile, tallied_body, write_body};
use crate::ops::primitives::{LoadedPrimitives, Primitives};
use crate::ops::program::{Kernel, Loaded, Program, check_row, described_by_its_fields, for_rows, spread_work, word};
use crate::ops::project::{Projection, Rows};
use crate::ops::select::{Column, plan, share};
use crate::ops::source::Source;
use crate::ops::{Input, Options};
use crate::prelude::Section;
use crate::{Error, Result};

/// Pairs that are written at once, at most.
const MOST_PAIRS: u64 = 1 << 22;
/// The same where memory is scarce.
const FEWEST_PAIRS: u64 = 1 << 16;
/// Bytes of the memory limit for each pair that is written at once: for its columns, and for what the operators above make of them.
const LIMIT_BYTES_PER_PAIR: u64 = 1 << 10;
/// Rows that could be compared in the time that a pair takes to be written.
const MEETINGS_OF_PAIR: usize = 16;

/// Probes through joins, the last of which may multiply rows or keep those of its build side.
#[derive(Debug, Clone)]
pub struct Probe {
    source: Source,
    probe: (SchemaRef, Vec<ColumnType>),
    lookup: Lookup,
    pairs: bool,
    schema: SchemaRef,
    types: Vec<ColumnType>,
    columns: Vec<Column>,
    options: Options,
    primitives: Primitives,
    program: Program,
    projection: Projection,
}

/// Kernels of a [`Probe`] by position; a probe without pairs has the first alone.
const SEARCH: usize = 0;
const PAIRS: usize = 1;
const UNMATCHED: usize = 2;
const LEFT_OVER: usize = 3;

/// Which rows of the build side have been matched so far, and how many rows dynamic filters have removed. Batches on their way
/// at the same time share it.
#[derive(Debug, Default)]
pub struct ProbeState {
    marks: OnceLock<Buffer>,
    tallies: OnceLock<Buffer>,
    /// A row of the probe side, which left over rows of the build side take their dictionaries from.
    sample: OnceLock<DeviceBatch>,
}

/// What a batch's rows have found.
#[derive(Debug)]
pub(super) enum Probed {
    /// The result.
    Rows(DeviceBatch),
    /// Pairs that are still to be written.
    Pairs(Pairs),
}

/// The pairs of a batch.
#[derive(Debug)]
pub(super) struct Pairs {
    /// The columns of all sides.
    bound: Vec<DeviceColumn>,
    found: Vec<(String, Buffer)>,
    /// Where each row's pairs begin among all.
    places: Buffer,
    rows: usize,
    total: u64,
    /// The first one that is not written yet.
    next: u64,
    pace: Pace,
}

impl Probe {
    /// Probes rows of `input` through `joins`, keeps what passes the input's filter (over the columns of all sides, one
    /// after another), and computes `outputs`. Without `tables` the kernels can be read, not run.
    ///
    /// # Errors
    /// `Unsupported` where an expression is not supported on the device.
    pub fn try_new(
        input: Input,
        joins: &[Join],
        tables: Option<&[Arc<JoinTable>]>,
        outputs: Vec<(Expr, Field)>,
        options: Options,
    ) -> Result<Probe> {
        let probe = (input.schema.clone(), input.types.clone());
        let (schema, types) = (joined_schema(&input.schema, joins), joined_types(&input.types, joins));
        let pairs = expands(joins, tables);
        let lookup = Lookup::try_new(&input, joins, tables, options.profile)?;
        let options = pace::tiled(options, lookup.meets());
        let mut writing = lookup.places().to_vec();
        if pairs {
            let found = lookup.searches.last().is_some_and(|search| keeps_build(search.kind)).then(|| "fp".to_string());
            for place in &mut writing[..probe.1.len()] {
                *place = Some(RowRef { row: "p".into(), found: found.clone(), is_mark: false });
            }
        }
        let mut source = Source::with_row_refs(Input { schema, types, filter: None }, writing)?;
        let result = Arc::new(Schema::new(outputs.iter().map(|(_, field)| field.clone()).collect::<Vec<_>>()));
        let mut columns = Vec::with_capacity(outputs.len());
        for (index, (expr, field)) in outputs.into_iter().enumerate() {
            columns.push(plan(&mut source, true, index, expr, &field, &options)?);
        }
        let types = columns.iter().map(|column| column.ty(&source).clone()).collect();
        let mut probe = Probe {
            primitives: Primitives::try_new(&options)?,
            program: Program::try_new("Probe", &options, vec![])?,
            schema: result,
            source,
            probe,
            lookup,
            pairs,
            types,
            columns,
            options,
            projection: Projection::default(),
        };
        probe.generate()?;
        Ok(probe)
    }

    described_by_its_fields!();

    /// Nothing probed yet.
    pub fn start(&self) -> ProbeState {
        ProbeState::default()
    }

    /// Whether no row of the probe side can give any: nothing needs to be probed.
    pub fn is_empty(&self) -> bool {
        self.lookup.is_empty()
    }

    /// A batch in pieces that kernels search in bounded time.
    pub fn pieces(&self, queue: &Queue, batch: &DeviceBatch) -> impl DoubleEndedIterator<Item = DeviceBatch> + use<> {
        pace::pieces(queue, batch, self.lookup.meets())
    }

    /// Probes a batch that has rows.
    ///
    /// # Errors
    /// `Row` with the lowest row of which an expression failed.
    pub async fn probe(&self, queue: &Queue, state: &ProbeState, batch: &DeviceBatch) -> Result<Probed> {
        self.lookup.check_tables()?;
        let loaded = self.program.load(queue).await?;
        let primitives = self.primitives.load(queue).await?;
        match self.pairs {
            false => Ok(Probed::Rows(self.select(queue, &loaded, &primitives, state, batch).await?)),
            true => Ok(Probed::Pairs(self.count(queue, &loaded, &primitives, state, batch).await?)),
        }
    }

    /// The next of a batch's pairs; `None` once there are no more.
    pub async fn next_pairs(&self, queue: &Queue, state: &ProbeState, pairs: &mut Pairs) -> Result<Option<DeviceBatch>> {
        let room = queue.context().pool().limit() as u64 / LIMIT_BYTES_PER_PAIR;
        let (from, to) = (pairs.next, pairs.total.min(pairs.next + room.clamp(FEWEST_PAIRS, MOST_PAIRS)));
        if from == to {
            return Ok(None);
        }
        let loaded = self.program.load(queue).await?;
        let primitives = self.primitives.load(queue).await?;
        let count = (to - from) as usize;
        pairs.pace.keep(queue, count, MEETINGS_OF_PAIR).await?;
        let (rows, builds) = (queue.alloc(count * 4)?, queue.alloc(count * 4)?);
        let mut named = self.lookup.args();
        named.extend(found_args(&pairs.found));
        named.extend([("n", Arg::U64(pairs.rows as u64)), ("places", Arg::Buffer(&pairs.places))]);
        named.extend([("from", Arg::U64(from)), ("to", Arg::U64(to))]);
        named.extend([("pair_rows", Arg::Buffer(&rows)), ("pair_builds", Arg::Buffer(&builds))]);
        if let (true, Some(table)) = (self.marks(), self.lookup.tables.last()) {
            named.push(("marks", Arg::Buffer(zeroed_once(queue, &state.marks, table.batch().num_rows())?)));
        }
        // What fails has failed when the pairs were counted; this word is never read.
        let error = queue.filled(8, 0xff)?;
        loaded.launch_on(queue, PAIRS, self.spread(queue, pairs.rows), &*pairs.bound, Some(&error), named)?;
        let extra: Vec<_> = found_args(&pairs.found).collect();
        let batch = self.write_pairs(queue, &loaded, &primitives, &pairs.bound, (&rows, &builds), count, &extra).await?;
        pairs.next = to;
        Ok(Some(batch))
    }

    /// Rows that each dynamic filter has removed so far, in their order.
    pub fn removed(&self, queue: &Queue, state: &ProbeState) -> impl Future<Output = Result<Vec<u64>>> + Send + use<> {
        let filters = self.lookup.tallies();
        let counted = state.tallies.get().map(|tallies| queue.read(tallies, 0..filters * 8));
        async move {
            let Some(counted) = counted else { return Ok(vec![0; filters]) };
            let counted = counted.await?;
            (0..filters).map(|index| word(&counted, index)).collect()
        }
    }

    /// What remains once every batch was probed: rows of the build side that nothing matched, of left and full joins; or the
    /// one with the number `only` among them.
    ///
    /// # Errors
    /// `Row` with the lowest number among them of which an expression failed.
    pub async fn finish(&self, queue: &Queue, state: &ProbeState, only: Option<u64>) -> Result<Option<DeviceBatch>> {
        let (Some(search), Some(table)) = (self.lookup.searches.last(), self.lookup.tables.last()) else { return Ok(None) };
        if !keeps_build(search.kind) || table.num_rows() == 0 {
            return Ok(None);
        }
        let loaded = self.program.load(queue).await?;
        let primitives = self.primitives.load(queue).await?;
        let marks = zeroed_once(queue, &state.marks, table.num_rows())?;
        let extra = [("marks", Arg::Buffer(marks))];
        let nothing: &[DeviceColumn] = &[];
        let survivors = Survivors::find(queue, &self.options, &primitives, table.num_rows(), &extra, |grid, named, control| {
            loaded.launch_on(queue, UNMATCHED, grid, nothing, Some(control), named)
        })
        .await?;
        if survivors.count == 0 {
            return Ok(None);
        }
        let mut builds = queue.alloc(survivors.count * 4)?;
        let mut named = survivors.args();
        named.push(("pair_builds", Arg::Buffer(&builds)));
        loaded.launch(queue, LEFT_OVER, survivors.grid(), named)?;
        let count = if only.is_some() { 1 } else { survivors.count };
        if let Some(row) = only {
            let one = queue.alloc(4)?;
            queue.copy(&builds, row as usize * 4, &one, 0, 4)?;
            builds = one;
        }
        let rows = queue.filled(count * 4, 0xff)?;
        let (schema, types) = &self.probe;
        let sample = match state.sample.get() {
            Some(sample) => sample.clone(),
            None => DeviceBatch::blank(queue, schema, types)?,
        };
        let bound = self.bound(&sample)?;
        self.write_pairs(queue, &loaded, &primitives, &bound, (&rows, &builds), count, &[]).await.map(Some)
    }

    /// The rows that stay, each with its one match in every join.
    async fn select(
        &self,
        queue: &Queue,
        loaded: &Loaded<'_>,
        primitives: &LoadedPrimitives<'_>,
        state: &ProbeState,
        batch: &DeviceBatch,
    ) -> Result<DeviceBatch> {
        let n = batch.num_rows();
        let bound = self.bound(batch)?;
        let found = self.alloc_found(queue, n)?;
        let mut extra = self.lookup.args();
        extra.extend(found_args(&found));
        let tallies = self.open_tallies(queue, state)?;
        extra.extend(tallies.map(|tallies| ("tallies", Arg::Buffer(tallies))));
        let survivors = Survivors::find(queue, &self.options, primitives, n, &extra, |grid, named, control| {
            loaded.launch_on(queue, SEARCH, grid, &*bound, Some(control), named)
        })
        .await?;
        let written = self
            .projection
            .run(
                queue,
                &self.options,
                &self.program,
                loaded,
                primitives,
                &*bound,
                Some(&survivors),
                survivors.count,
                &found_args(&found).collect::<Vec<_>>(),
            )
            .await?;
        self.collect(queue, primitives, &bound, written, survivors.count)
    }

    /// Counts the pairs of a batch.
    async fn count(
        &self,
        queue: &Queue,
        loaded: &Loaded<'_>,
        primitives: &LoadedPrimitives<'_>,
        state: &ProbeState,
        batch: &DeviceBatch,
    ) -> Result<Pairs> {
        let n = batch.num_rows();
        if self.marks() {
            state.sample.get_or_init(|| batch.slice(0, 1));
        }
        let bound = self.bound(batch)?;
        let found = self.alloc_found(queue, n)?;
        let places = queue.alloc((n + 1) * 8)?;
        queue.fill(&places, 0, 8, 0)?;
        let control = queue.filled(16, 0xff)?;
        let tallies = self.open_tallies(queue, state)?;
        let mut named = self.lookup.args();
        named.extend(found_args(&found));
        named.extend([("n", Arg::U64(n as u64)), ("places", Arg::Buffer(&places))]);
        named.extend(tallies.map(|tallies| ("tallies", Arg::Buffer(tallies))));
        loaded.launch_on(queue, SEARCH, self.spread(queue, n), &*bound, Some(&control), named)?;
        primitives.offsets(queue, &places, 0, n, 0, &control, 1)?;
        let answer = queue.read(&control, 0..16).await?;
        check_row(word(&answer, 0)?)?;
        Ok(Pairs { bound, found, places, rows: n, total: word(&answer, 1)?, next: 0, pace: Pace::default() })
    }

    #[allow(clippy::too_many_arguments)]
    async fn write_pairs(
        &self,
        queue: &Queue,
        loaded: &Loaded<'_>,
        primitives: &LoadedPrimitives<'_>,
        bound: &[DeviceColumn],
        (rows, builds): (&Buffer, &Buffer),
        count: usize,
        extra: &[(&str, Arg<'_>)],
    ) -> Result<DeviceBatch> {
        let mut all = vec![("pair_rows", Arg::Buffer(rows)), ("pair_builds", Arg::Buffer(builds))];
        all.extend(extra);
        let written =
            self.projection.run(queue, &self.options, &self.program, loaded, primitives, bound, None, count, &all).await?;
        self.collect(queue, primitives, bound, written, count)
    }

    fn collect(
        &self,
        queue: &Queue,
        primitives: &LoadedPrimitives<'_>,
        bound: &[DeviceColumn],
        written: Vec<Option<crate::ops::output::Buffers>>,
        rows: usize,
    ) -> Result<DeviceBatch> {
        let mut columns = Vec::with_capacity(self.columns.len());
        for ((column, buffers), ty) in self.columns.iter().zip(written).zip(&self.types) {
            columns.push(match (column, buffers) {
                (Column::Written { output, shares: None, .. }, Some(buffers)) => {
                    output.finish(queue, primitives, rows, buffers, None)?
                }
                (Column::Written { shares: Some(shared), .. }, Some(buffers)) => {
                    share(queue, primitives, ty, rows, buffers, &shared.column(queue, ty, bound)?)?
                }
                _ => return Err(Error::Internal("an output without buffers".into())),
            });
        }
        Ok(DeviceBatch::try_new(self.schema.clone(), columns, rows)?)
    }

    /// The columns of all sides, aliases included.
    fn bound(&self, batch: &DeviceBatch) -> Result<Vec<DeviceColumn>> {
        self.source.bind_columns(&self.lookup.columns(batch)?)
    }

    /// Number of joins whose matches are noted, one for each row: all but one that multiplies rows.
    fn noted(&self) -> usize {
        self.lookup.searches.len() - usize::from(self.pairs)
    }

    fn alloc_found(&self, queue: &Queue, n: usize) -> Result<Vec<(String, Buffer)>> {
        let noted = self.lookup.searches[..self.noted()].iter().filter(|search| search.is_noted());
        noted.map(|search| Ok((format!("found{}", search.number), queue.alloc(n * 4)?))).collect()
    }

    /// Where the rows that dynamic filters remove are counted, over all batches.
    fn open_tallies<'a>(&self, queue: &Queue, state: &'a ProbeState) -> Result<Option<&'a Buffer>> {
        let tallies = self.lookup.tallies();
        (tallies > 0).then(|| zeroed_once(queue, &state.tallies, tallies * 8)).transpose()
    }

    /// The grid of a search for `n` rows.
    fn spread(&self, queue: &Queue, n: usize) -> Grid {
        spread_work(queue, &self.options, n, self.lookup.meets())
    }

    fn marks(&self) -> bool {
        self.lookup.searches.last().is_some_and(|search| keeps_build(search.kind))
    }

    fn generate(&mut self) -> Result<()> {
        let mut kernels = match self.pairs {
            false => vec![self.mask_kernel()?],
            true => vec![self.count_kernel()?, self.pairs_kernel()?, self.unmatched_kernel(), self.left_over_kernel()],
        };
        let outputs = self.columns.iter().map(|column| match column {
            Column::Pass(_) => None,
            Column::Written { output, .. } => Some(output.clone()),
        });
        let outputs = outputs.collect();
        self.projection = Projection::try_new("probe", self, outputs, !self.pairs, &self.options, &mut kernels)?;
        self.program = Program::try_new("Probe", &self.options, kernels)?;
        Ok(())
    }

    /// Appends filters and searches of the current row, up to the join that multiplies: `kept` tells whether it stays.
    fn search(&self, writer: &mut RowWriter<'_>) -> Result<()> {
        self.lookup.write(writer, &self.source.types, self.noted(), |writer, number| {
            let found = writer.params().named(&format!("found{number}"), "G u32 *RESTRICT");
            writer.push(&format!("if (kept) {found}[row] = b{number};"));
        })
    }

    fn searching_writer<'a>(&'a self, params: &'a mut Params) -> RowWriter<'a> {
        params.need(Section::Base);
        RowWriter::new(&self.source.types, self.options.profile, params).with_row_refs(self.lookup.places())
    }

    fn mask_kernel(&self) -> Result<Kernel> {
        let mut params = Params::new();
        if self.options.profile == Profile::Cpu {
            let body = self.mask_blocks(&mut params)?;
            return Ok(Kernel::new("probe_mask", params, body));
        }
        let mut writer = self.searching_writer(&mut params);
        self.search(&mut writer)?;
        let statements = writer.statements();
        let body = mask_tile(&mut params, &self.options, &statements, "kept", self.lookup.tallies());
        Ok(Kernel::new("probe_mask", params, body))
    }

    /// The body of the mask kernel that takes blocks of rows through the searches.
    fn mask_blocks(&self, params: &mut Params) -> Result<String> {
        let (n, mask) = (params.named("n", "u64"), params.named("mask", "G u32 *RESTRICT"));
        let counts = params.named("counts", "G u64 *RESTRICT");
        let searches = self.lookup.block(params, &self.source.types, self.noted())?;
        let notes = self.lookup.noted(self.noted()).map(|number| {
            let found = params.named(&format!("found{number}"), "G u32 *RESTRICT");
            format!("      {found}[row] = match{number}[at];\n")
        });
        let notes = format!("      words[at >> 5] |= (u32)1 << (at & 31);\n{}", notes.collect::<String>());
        let words = BLOCK / 32;
        let kept = format!(
            "    u32 words[{words}] = {{0}};
{}    for (u32 w = 0; w < {words} && base + w * 32 < end; ++w) {mask}[(base >> 5) + w] = words[w];
    total += left;
",
            Lookup::each_kept(&notes)
        );
        let blocks = self.lookup.blocks(self.noted(), "begin", "end", &searches, &kept);
        let tile = self.options.compaction_tile_rows;
        let body = format!(
            "  u64 begin = (u64)GRP() * {tile}, end = begin + {tile} < {n} ? begin + {tile} : {n}, total = 0;
{blocks}  {counts}[GRP()] = total;
"
        );
        Ok(tallied_body(params, Profile::Cpu, &body, self.lookup.tallies()))
    }

    fn count_kernel(&self) -> Result<Kernel> {
        let mut params = Params::new();
        let (n, places) = (params.named("n", "u64"), params.named("places", "G i64 *RESTRICT"));
        let mut writer = self.searching_writer(&mut params);
        self.search(&mut writer)?;
        let Some(last) = self.lookup.searches.last() else { return Err(Error::Internal("a probe of nothing".into())) };
        writer.push("i64 matches = 0;");
        writer.guarded("kept", |writer| {
            last.count(writer, (&self.source.types, self.lookup.places()), "row", "matches")?;
            if last.kind.keeps_probe() {
                writer.push("if (matches == 0) matches = 1;");
            }
            Ok(())
        })?;
        writer.push(&format!("{places}[row + 1] = matches;"));
        let statements = writer.statements();
        let rows = for_rows(self.options.profile, "row", &n, &statements);
        let body = tallied_body(&mut params, self.options.profile, &rows, self.lookup.tallies());
        Ok(Kernel::new("probe_count", params, body))
    }

    fn pairs_kernel(&self) -> Result<Kernel> {
        let mut params = Params::new();
        let (n, places) = (params.named("n", "u64"), params.named("places", "const G i64 *RESTRICT"));
        let (from, to) = (params.named("from", "u64"), params.named("to", "u64"));
        let rows = params.named("pair_rows", "G u32 *RESTRICT");
        let builds = params.named("pair_builds", "G u32 *RESTRICT");
        let marks = self.marks().then(|| params.named("marks", "G u8 *"));
        let mut writer = self.searching_writer(&mut params);
        let Some(last) = self.lookup.searches.last() else { return Err(Error::Internal("a probe of nothing".into())) };
        writer.push(&format!("u64 first = (u64){places}[row], end = (u64){places}[row + 1], at = first;"));
        writer.guarded(&format!("at < end && at < {to} && end > {from}"), |writer| {
            self.locate_noted(writer, "row");
            last.matches(writer, (&self.source.types, self.lookup.places()), "row", &mut |writer, candidate| {
                writer.guarded(&format!("at >= {from} && at < {to}"), |writer| {
                    writer.push(&format!("{rows}[at - {from}] = (u32)row;\n{builds}[at - {from}] = {candidate};"));
                    if let Some(marks) = &marks {
                        writer.push(&format!("{marks}[{candidate}] = 1;"));
                    }
                    Ok(())
                })?;
                writer.push("++at;");
                match last.stop() {
                    "" => {}
                    stop => writer.push(&format!("if (at >= {to}) {stop}")),
                }
                Ok(())
            })?;
            if last.kind.keeps_probe() {
                writer.guarded(&format!("at == first && at >= {from}"), |writer| {
                    writer.push(&format!("{rows}[at - {from}] = (u32)row;\n{builds}[at - {from}] = {NONE};"));
                    Ok(())
                })?;
            }
            Ok(())
        })?;
        let statements = writer.statements();
        let body = for_rows(self.options.profile, "row", &n, &statements);
        Ok(Kernel::new("probe_pairs", params, body))
    }

    fn unmatched_kernel(&self) -> Kernel {
        let mut params = Params::new();
        params.need(Section::Base);
        let marks = params.named("marks", "const G u8 *RESTRICT");
        let body = mask_body(&mut params, &self.options, "", &format!("!{marks}[row]"));
        Kernel::new("probe_unmatched", params, body)
    }

    fn left_over_kernel(&self) -> Kernel {
        let mut params = Params::new();
        params.need(Section::Base);
        let builds = params.named("pair_builds", "G u32 *RESTRICT");
        let body = write_body(&mut params, &self.options, &format!("      {builds}[o] = (u32)row;\n"));
        Kernel::new("probe_left_over", params, body)
    }

    /// Appends what says which rows of the noted joins belong to the probe side's row.
    fn locate_noted(&self, writer: &mut RowWriter<'_>, row: &str) {
        for search in self.lookup.searches[..self.noted()].iter().filter(|search| search.is_noted()) {
            let number = search.number;
            let found = writer.params().named(&format!("found{number}"), "const G u32 *RESTRICT");
            writer.push(&search.found(&format!("{found}[{row}]")));
        }
    }
}

impl Rows for Probe {
    fn writer<'a>(&'a self, params: &'a mut Params) -> RowWriter<'a> {
        self.source.writer(self.options.profile, params)
    }

    fn locate(&self, writer: &mut RowWriter<'_>) {
        let Some(last) = self.lookup.searches.last().filter(|_| self.pairs) else { return self.locate_noted(writer, "row") };
        let rows = writer.params().named("pair_rows", "const G u32 *RESTRICT");
        let builds = writer.params().named("pair_builds", "const G u32 *RESTRICT");
        match keeps_build(last.kind) {
            true => writer.push(&format!("i32 fp = {rows}[row] != {NONE};\nu64 p = fp ? {rows}[row] : 0;")),
            false => writer.push(&format!("u64 p = {rows}[row];")),
        }
        self.locate_noted(writer, "p");
        writer.push(&last.found(&format!("{builds}[row]")));
    }

    fn value(&self, writer: &mut RowWriter<'_>, output: usize) -> Result<Value> {
        match &self.columns[output] {
            Column::Written { expr, .. } => writer.eval_output(expr),
            Column::Pass(_) => Err(Error::Internal("a column that is passed on is not written".into())),
        }
    }
}

/// The buffer of a state, which is made of zeros when it is asked for first.
fn zeroed_once<'a>(queue: &Queue, buffer: &'a OnceLock<Buffer>, bytes: usize) -> Result<&'a Buffer> {
    if let Some(buffer) = buffer.get() {
        return Ok(buffer);
    }
    let zeros = queue.zeroed(bytes)?;
    Ok(buffer.get_or_init(|| zeros))
}

fn found_args(found: &[(String, Buffer)]) -> impl Iterator<Item = (&str, Arg<'_>)> {
    found.iter().map(|(name, buffer)| (name.as_str(), Arg::Buffer(buffer)))
}

/// Whether the last join gives pairs that must be listed.
pub(super) fn expands(joins: &[Join], tables: Option<&[Arc<JoinTable>]>) -> bool {
    let Some(last) = joins.last() else { return false };
    let table = tables.and_then(|tables| tables.get(joins.len() - 1));
    keeps_build(last.kind) || last.kind.pairs() && !last.is_unique(table)
}

fn keeps_build(kind: JoinKind) -> bool {
    matches!(kind, JoinKind::Left | JoinKind::Full)
}
