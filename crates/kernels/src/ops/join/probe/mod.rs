// SPDX-License-Identifier: Apache-2.0
//! Probing: rows of one side, batch by batch, against the tables of others, fused with filters and
//! projections.
//!
//! - With at most one match for each row, `probe_mask` records the matches of the rows and whether
//!   they stay. The columns are written for the rows that stay, as [`Select`](crate::ops::Select)
//!   does.
//! - If the last join gives a row several matches, `probe_count` counts them, and a prefix sum
//!   makes offsets of the counts. Then `probe_pairs` lists the pairs of rows, and the columns are
//!   written for the pairs.

mod unmatched;

use std::ops::Range;
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use arrow::datatypes::{Field, SchemaRef};
use columnar::{ColumnType, DeviceBatch, DeviceColumn};
use device::{Arg, Buffer, ProgramSource, Queue};

use super::block::BLOCK;
use super::lookup::Lookup;
use super::search::{NONE, SearchedRow};
use super::table::JoinTable;
use super::{Join, joined_schema, joined_types};
use crate::codegen::{Params, Profile, RowRef, RowWriter, Value};
use crate::expr::Expr;
use crate::ops::launch::columns::{OutputColumn, finish_columns};
use crate::ops::launch::compact::{Survivors, mask_tile, tallied_body};
use crate::ops::launch::primitives::{Lengths, Primitives};
use crate::ops::launch::program::{Kernel, Program, check_failed_row, read_u64, row_loop};
use crate::ops::launch::projection::{self, LazyProgram, ProjectedRows, Projection, Rows};
use crate::ops::launch::source::Source;
use crate::ops::launch::throttle::{LaunchBudget, Slices, Throttle, with_small_tiles};
use crate::ops::launch::{Launch, NamedArgs};
use crate::ops::{Input, Options};
use crate::prelude::Section;
use crate::{Error, Result};

pub(super) use unmatched::UnmatchedBuildRows;

/// Most pairs that are written at once. Each launch costs a GPU the time of some 10,000 pairs.
const fn max_pairs(profile: Profile) -> usize {
    match profile {
        Profile::Cpu => 1 << 22,
        Profile::Gpu => 1 << 26,
    }
}

/// The same for a small memory limit.
const MIN_PAIRS: usize = 1 << 10;
/// Pairs written at once where memory did not suffice for more.
const FEWEST_PAIRS: usize = 1 << 8;
/// Bytes of the memory limit for each row that is written at once: for its columns, and for
/// results of the operators above. At least so many, and at least a multiple of a row's.
const LIMIT_PER_ROW: usize = 1 << 10;
const LIMIT_PER_ROW_BYTES: usize = 16;

/// Rows of `row_bytes` that are written at once, under a memory limit.
fn affordable_rows(limit: usize, row_bytes: usize) -> usize {
    (limit / LIMIT_PER_ROW.max(row_bytes * LIMIT_PER_ROW_BYTES)).max(MIN_PAIRS)
}

/// Probes through joins. The last one may multiply rows or keep those of its build side.
#[derive(Debug, Clone)]
pub struct Probe {
    source: Source,
    /// Schema and types of the probe side.
    probe: (SchemaRef, Vec<ColumnType>),
    lookup: Lookup,
    /// Whether pairs of the last join are listed.
    lists_pairs: bool,
    schema: SchemaRef,
    types: Vec<ColumnType>,
    columns: Vec<OutputColumn>,
    options: Options,
    primitives: Primitives,
    program: LazyProgram,
    /// Of launches that write pairs.
    writes: Arc<LaunchBudget>,
}

/// Kernels of a [`Probe`] by position; a probe without pairs has the first alone.
const SEARCH: usize = 0;
const PAIRS: usize = 1;
const UNMATCHED: usize = 2;
const UNMATCHED_ROWS: usize = 3;

/// The visited build rows, and the number of rows that dynamic filters removed. Concurrent batches
/// share it.
#[derive(Debug, Default)]
pub struct ProbeState {
    visited: OnceLock<Buffer>,
    tallies: OnceLock<Buffer>,
    /// A row of the probe side: unmatched build rows take the dictionaries of its columns.
    sample: OnceLock<DeviceBatch>,
}

/// The result of probing a batch.
#[derive(Debug)]
pub(super) enum Probed {
    /// The joined rows.
    Rows(DeviceBatch),
    /// Pairs that are still to be written.
    Pairs(MatchPairs),
}

/// The pairs of a batch.
#[derive(Debug)]
pub(super) struct MatchPairs {
    found: FoundPairs,
    unwritten: Unwritten,
    throttle: Throttle,
}

/// Where the pairs of a batch are.
#[derive(Debug)]
struct FoundPairs {
    /// The columns of all sides.
    bound: Vec<DeviceColumn>,
    matches: RecordedMatches,
    /// End offset of each row's pairs, behind a 0.
    offsets: Buffer,
    rows: usize,
}

/// Rows of a result, to be written in parts.
#[derive(Debug)]
struct Unwritten {
    rows: Range<u64>,
    /// Most rows at once, since memory did not suffice for more.
    most: usize,
}

impl Unwritten {
    fn new(rows: u64) -> Self {
        Self { rows: 0..rows, most: usize::MAX }
    }

    /// The rows to write next: at most `affordable`.
    fn next(&self, affordable: usize) -> Range<u64> {
        let Range { start, end } = self.rows;
        start..end.min(start.saturating_add(affordable.min(self.most) as u64))
    }

    /// The result of writing `rows`. `None` asks for fewer, as memory was short: strings may take
    /// more than their columns promise.
    fn settle(&mut self, rows: &Range<u64>, written: Result<DeviceBatch>) -> Option<Result<DeviceBatch>> {
        let count = (rows.end - rows.start) as usize;
        match written {
            Err(error) if error.is_out_of_memory() && count > FEWEST_PAIRS => {
                self.most = FEWEST_PAIRS.max(count / 4);
                None
            }
            written => {
                // Memory that another query held may be free again.
                self.most = self.most.saturating_mul(2);
                self.rows.start = rows.end;
                Some(written)
            }
        }
    }
}

/// The build row that each probe row matches in a join, by the name of the kernel parameter.
#[derive(Debug)]
struct RecordedMatches(Vec<(String, Buffer)>);

impl RecordedMatches {
    fn args(&self) -> impl Iterator<Item = (&str, Arg<'_>)> {
        self.0.iter().map(|(name, buffer)| (name.as_str(), Arg::Buffer(buffer)))
    }
}

/// Pairs of rows to be written.
struct PairRows<'a> {
    probe: &'a Buffer,
    build: &'a Buffer,
    count: usize,
}

impl Probe {
    /// Probes rows of `input` through `joins`, keeps those that pass the input's filter (over the
    /// columns of all sides, one after another), and computes `outputs`. Without `tables` kernels
    /// can be generated, but not run.
    ///
    /// # Errors
    /// `Unsupported` if an output is not supported on the device. Filter and residual conditions
    /// give this error in the first run, which generates the kernels.
    pub fn try_new(
        input: Input,
        joins: &[Join],
        tables: Option<&[Arc<JoinTable>]>,
        outputs: Vec<(Expr, Field)>,
        options: Options,
    ) -> Result<Probe> {
        let probe = (input.schema.clone(), input.types.clone());
        let (schema, types) = (joined_schema(&input.schema, joins), joined_types(&input.types, joins));
        let lists_pairs = lists_pairs(joins, tables);
        let lookup = Lookup::try_new(&input, joins, tables, options.profile)?;
        let options = with_small_tiles(options, lookup.max_candidates());
        let mut row_refs = lookup.row_refs().to_vec();
        if lists_pairs {
            let keeps_build = lookup.searches.last().is_some_and(|search| search.kind.keeps_unmatched_build_rows());
            let found = keeps_build.then(|| "fp".to_string());
            for row_ref in &mut row_refs[..probe.1.len()] {
                *row_ref = Some(RowRef { row: "p".into(), found: found.clone(), is_mark: false });
            }
        }
        let mut source = Source::with_row_refs(Input { schema, types, filter: None }, row_refs)?;
        let (result, columns) = OutputColumn::plan_all(&mut source, true, outputs, &options)?;
        let types = columns.iter().map(|column| column.ty(&source).clone()).collect();
        Ok(Probe {
            primitives: Primitives::new(&options),
            program: LazyProgram::default(),
            schema: result,
            source,
            probe,
            lookup,
            lists_pairs,
            types,
            columns,
            options,
            writes: Arc::new(LaunchBudget::of_writes()),
        })
    }

    /// Names and types of the result.
    pub fn schema(&self) -> &SchemaRef {
        &self.schema
    }

    /// Types and layouts of the result, the same for every batch.
    pub fn output_types(&self) -> &[ColumnType] {
        &self.types
    }

    /// Names and sources of the kernels.
    pub fn kernel_source(&self) -> Vec<(String, String)> {
        projection::kernel_source(self.generated())
    }

    /// The programs, as they are compiled.
    pub fn programs(&self) -> Vec<ProgramSource> {
        projection::programs(&self.primitives, self.generated())
    }

    /// The state before the first batch.
    pub fn start(&self) -> ProbeState {
        ProbeState::default()
    }

    /// Whether no probe row can give a result, so that none needs to be probed.
    pub fn is_empty(&self) -> bool {
        self.lookup.is_empty()
    }

    /// Slices of a batch that kernels search in bounded time, with results small beside the memory
    /// limit.
    pub fn slices(&self, queue: &Queue, batch: &DeviceBatch) -> Slices {
        Slices::new(queue, batch, self.lookup.max_candidates(), self.affordable_rows(queue), &self.lookup.budget)
    }

    /// Most rows of the result that are written at once: in a share of the limit, or of the free
    /// memory.
    fn affordable_rows(&self, queue: &Queue) -> usize {
        let pool = queue.context().pool();
        let (limit, free) = (pool.limit(), pool.available());
        // A floor: a query that fills memory would else end in ever more and smaller launches.
        affordable_rows((4 * free).clamp(limit / 4, limit), self.row_bytes()).min(max_pairs(self.options.profile))
    }

    async fn launch<'a>(&'a self, queue: &'a Queue) -> Result<Launch<'a>> {
        Launch::load(queue, &self.options, &self.generated()?.0, &self.primitives).await
    }

    /// Probes a batch that has rows.
    ///
    /// # Errors
    /// `Row` with the lowest row of which an expression failed.
    pub async fn probe(&self, queue: &Queue, state: &ProbeState, batch: &DeviceBatch) -> Result<Probed> {
        self.lookup.check_tables()?;
        let (budget, candidates) = (&self.lookup.budget, self.lookup.max_candidates());
        let queue = &budget.metered(queue);
        let (launch, begun) = (self.launch(queue).await?, Instant::now());
        let probed = match self.lists_pairs {
            false => Probed::Rows(self.select(&launch, state, batch).await?),
            true => Probed::Pairs(self.count(&launch, state, batch).await?),
        };
        budget.adapt(queue, batch.num_rows().saturating_mul(candidates), begun.elapsed());
        Ok(probed)
    }

    /// About the bytes of a row of the result.
    fn row_bytes(&self) -> usize {
        self.types.iter().map(ColumnType::value_bytes).sum()
    }

    /// Writes the next pairs of a batch; `None` if no pairs are left.
    pub async fn next_pairs(&self, queue: &Queue, state: &ProbeState, pairs: &mut MatchPairs) -> Result<Option<DeviceBatch>> {
        let queue = &self.writes.metered(queue);
        let affordable = self.options.threshold(self.affordable_rows(queue)).min(self.writes.rows(queue, 1));
        let MatchPairs { found, unwritten, throttle } = pairs;
        let Range { start, end } = unwritten.next(affordable);
        if start == end {
            return Ok(None);
        }
        throttle.wait(&self.writes, queue, (end - start) as usize, 1).await?;
        loop {
            let range = unwritten.next(affordable);
            let written = self.write_next(queue, state, found, &range).await;
            if let Some(written) = unwritten.settle(&range, written) {
                return written.map(Some);
            }
        }
    }

    /// Writes a range of the pairs of a batch.
    async fn write_next(&self, queue: &Queue, state: &ProbeState, found: &FoundPairs, range: &Range<u64>) -> Result<DeviceBatch> {
        let count = (range.end - range.start) as usize;
        let launch = self.launch(queue).await?;
        let (probe, build) = (queue.alloc(count * 4)?, queue.alloc(count * 4)?);
        let mut named = self.lookup.args();
        named.extend(found.matches.args());
        named.extend([("n", Arg::U64(found.rows as u64)), ("offsets", Arg::Buffer(&found.offsets))]);
        named.extend([("from", Arg::U64(range.start)), ("to", Arg::U64(range.end))]);
        named.extend([("pair_probe", Arg::Buffer(&probe)), ("pair_build", Arg::Buffer(&build))]);
        if let (true, Some(table)) = (self.keeps_unmatched_build_rows(), self.lookup.tables.last()) {
            named.push(("visited", Arg::Buffer(zeroed_once(queue, &state.visited, table.batch().num_rows())?)));
        }
        // Rows that fail have failed in the count of the pairs, so the host never reads this
        // buffer.
        let error = queue.filled(8, 0xff)?;
        let grid = launch.grid_for_candidates(found.rows, self.lookup.max_candidates());
        launch.run_on(PAIRS, grid, &found.bound, Some(&error), named)?;
        let args: NamedArgs<'_> = found.matches.args().collect();
        let rows = PairRows { probe: &probe, build: &build, count };
        self.write_pairs(&launch, &found.bound, rows, args).await
    }

    /// The number of rows that each dynamic filter removed so far, in the order of the filters.
    pub fn removed(&self, queue: &Queue, state: &ProbeState) -> impl Future<Output = Result<Vec<u64>>> + Send + use<> {
        let filters = self.lookup.tallies();
        let counted = state.tallies.get().map(|tallies| queue.read(tallies, 0..filters * 8));
        async move {
            let Some(counted) = counted else { return Ok(vec![0; filters]) };
            let counted = counted.await?;
            (0..filters).map(|index| read_u64(&counted, index)).collect()
        }
    }

    /// The rows that stay, each with its one match in every join.
    async fn select(&self, launch: &Launch<'_>, state: &ProbeState, batch: &DeviceBatch) -> Result<DeviceBatch> {
        let n = batch.num_rows();
        let bound = self.bound(batch)?;
        let matches = self.alloc_matches(launch.queue, n)?;
        let mut extra = self.lookup.args();
        extra.extend(matches.args());
        let tallies = self.open_tallies(launch.queue, state)?;
        extra.extend(tallies.map(|tallies| ("tallies", Arg::Buffer(tallies))));
        let survivors = Survivors::find(launch, SEARCH, &bound, n, &extra).await?;
        let args: NamedArgs<'_> = matches.args().collect();
        let rows = ProjectedRows::surviving(&bound, &survivors).with_args(&args);
        let written = self.generated()?.1.run(launch, rows).await?;
        let columns = finish_columns(launch, &self.columns, &self.types, written, survivors.count, &bound)?;
        Ok(DeviceBatch::try_new(self.schema.clone(), columns, survivors.count)?)
    }

    /// Counts the pairs of a batch.
    async fn count(&self, launch: &Launch<'_>, state: &ProbeState, batch: &DeviceBatch) -> Result<MatchPairs> {
        let (queue, n) = (launch.queue, batch.num_rows());
        if self.keeps_unmatched_build_rows() {
            state.sample.get_or_init(|| batch.slice(0, 1));
        }
        let bound = self.bound(batch)?;
        let matches = self.alloc_matches(queue, n)?;
        let offsets = queue.alloc((n + 1) * 8)?;
        queue.fill(&offsets, 0, 8, 0)?;
        let control = queue.filled(16, 0xff)?;
        let tallies = self.open_tallies(queue, state)?;
        let mut named = self.lookup.args();
        named.extend(matches.args());
        named.extend([("n", Arg::U64(n as u64)), ("offsets", Arg::Buffer(&offsets))]);
        named.extend(tallies.map(|tallies| ("tallies", Arg::Buffer(tallies))));
        let grid = launch.grid_for_candidates(n, self.lookup.max_candidates());
        launch.run_on(SEARCH, grid, &bound, Some(&control), named)?;
        launch.primitives.offsets(Lengths::of(&offsets, n), &control, 1)?;
        let answer = queue.read(&control, 0..16).await?;
        check_failed_row(read_u64(&answer, 0)?)?;
        let unwritten = Unwritten::new(read_u64(&answer, 1)?);
        Ok(MatchPairs { found: FoundPairs { bound, matches, offsets, rows: n }, unwritten, throttle: Throttle::default() })
    }

    /// The columns of pairs of rows.
    async fn write_pairs<'a>(
        &self,
        launch: &Launch<'_>,
        bound: &'a [DeviceColumn],
        pairs: PairRows<'a>,
        mut args: NamedArgs<'a>,
    ) -> Result<DeviceBatch> {
        args.extend([("pair_probe", Arg::Buffer(pairs.probe)), ("pair_build", Arg::Buffer(pairs.build))]);
        let written = self.generated()?.1.run(launch, ProjectedRows::all(bound, pairs.count).with_args(&args)).await?;
        let columns = finish_columns(launch, &self.columns, &self.types, written, pairs.count, bound)?;
        Ok(DeviceBatch::try_new(self.schema.clone(), columns, pairs.count)?)
    }

    /// The columns of all sides, aliases included.
    fn bound(&self, batch: &DeviceBatch) -> Result<Vec<DeviceColumn>> {
        self.source.bind_columns(&self.lookup.columns(batch)?)
    }

    /// Number of joins with at most one match for each row: all but a last one whose pairs are
    /// listed.
    fn single_match_joins(&self) -> usize {
        self.lookup.searches.len() - usize::from(self.lists_pairs)
    }

    fn alloc_matches(&self, queue: &Queue, n: usize) -> Result<RecordedMatches> {
        let recorded = self.lookup.recorded(self.single_match_joins());
        let buffers = recorded.map(|number| Ok((format!("found{number}"), queue.alloc(n * 4)?)));
        Ok(RecordedMatches(buffers.collect::<Result<_>>()?))
    }

    /// The counters of the rows that dynamic filters remove, over all batches.
    fn open_tallies<'a>(&self, queue: &Queue, state: &'a ProbeState) -> Result<Option<&'a Buffer>> {
        let tallies = self.lookup.tallies();
        (tallies > 0).then(|| zeroed_once(queue, &state.tallies, tallies * 8)).transpose()
    }

    fn keeps_unmatched_build_rows(&self) -> bool {
        self.lookup.searches.last().is_some_and(|search| search.kind.keeps_unmatched_build_rows())
    }

    fn generated(&self) -> Result<&(Program, Projection)> {
        self.program.get(|| {
            let mut kernels = match self.lists_pairs {
                false => vec![self.mask_kernel()?],
                true => {
                    vec![self.count_kernel()?, self.pairs_kernel()?, self.unmatched_kernel(), self.unmatched_rows_kernel()]
                }
            };
            let outputs = self.columns.iter().map(OutputColumn::output).collect();
            let projection = Projection::try_new("probe", self, outputs, !self.lists_pairs, &self.options, &mut kernels)?;
            Ok((Program::new("Probe", &self.options, kernels), projection))
        })
    }

    /// Appends filters and searches of the current row, up to a join whose pairs are listed. The C
    /// variable `kept` tells whether the row stays.
    fn search(&self, writer: &mut RowWriter<'_>) -> Result<()> {
        self.lookup.write(writer, &self.source.types, self.single_match_joins(), |writer, number| {
            let found = writer.params().named(&format!("found{number}"), "G u32 *RESTRICT");
            writer.push(&format!("if (kept) {found}[row] = b{number};"));
        })
    }

    fn searching_writer<'a>(&'a self, params: &'a mut Params) -> RowWriter<'a> {
        params.need(Section::Base);
        RowWriter::new(&self.source.types, self.options.profile, params).with_row_refs(self.lookup.row_refs())
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

    /// The body of the mask kernel of the cpu profile, which takes blocks of rows through the
    /// searches.
    fn mask_blocks(&self, params: &mut Params) -> Result<String> {
        let (n, mask) = (params.named("n", "u64"), params.named("mask", "G u32 *RESTRICT"));
        let counts = params.named("counts", "G u64 *RESTRICT");
        let searches = self.lookup.block(params, &self.source.types, self.single_match_joins())?;
        let recorded = self.lookup.recorded(self.single_match_joins()).map(|number| {
            let found = params.named(&format!("found{number}"), "G u32 *RESTRICT");
            format!("      {found}[row] = match{number}[at];\n")
        });
        let statements = format!("      words[at >> 5] |= (u32)1 << (at & 31);\n{}", recorded.collect::<String>());
        let words = BLOCK / 32;
        let kept = format!(
            "    u32 words[{words}] = {{0}};
{}    for (u32 w = 0; w < {words} && base + w * 32 < end; ++w) {mask}[(base >> 5) + w] = words[w];
    total += left;
",
            Lookup::each_kept(&statements)
        );
        let blocks = self.lookup.blocks(self.single_match_joins(), "begin", "end", &searches, &kept);
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
        let (n, offsets) = (params.named("n", "u64"), params.named("offsets", "G i64 *RESTRICT"));
        let mut writer = self.searching_writer(&mut params);
        self.search(&mut writer)?;
        let Some(last) = self.lookup.searches.last() else { return Err(Error::Internal("a probe of nothing".into())) };
        writer.push("i64 matches = 0;");
        writer.guarded("kept", |writer| {
            last.count(writer, self.searched_row(), "matches")?;
            if last.kind.keeps_unmatched_probe_rows() {
                writer.push("if (matches == 0) matches = 1;");
            }
            Ok(())
        })?;
        writer.push(&format!("{offsets}[row + 1] = matches;"));
        let statements = writer.statements();
        let rows = row_loop(self.options.profile, "row", &n, &statements);
        let body = tallied_body(&mut params, self.options.profile, &rows, self.lookup.tallies());
        Ok(Kernel::new("probe_count", params, body))
    }

    fn pairs_kernel(&self) -> Result<Kernel> {
        let mut params = Params::new();
        let (n, offsets) = (params.named("n", "u64"), params.named("offsets", "const G i64 *RESTRICT"));
        let (from, to) = (params.named("from", "u64"), params.named("to", "u64"));
        let probes = params.named("pair_probe", "G u32 *RESTRICT");
        let builds = params.named("pair_build", "G u32 *RESTRICT");
        let visited = self.keeps_unmatched_build_rows().then(|| params.named("visited", "G u8 *"));
        let mut writer = self.searching_writer(&mut params);
        let Some(last) = self.lookup.searches.last() else { return Err(Error::Internal("a probe of nothing".into())) };
        writer.push(&format!("u64 first = (u64){offsets}[row], end = (u64){offsets}[row + 1], at = first;"));
        writer.guarded(&format!("at < end && at < {to} && end > {from}"), |writer| {
            self.declare_recorded(writer, "row");
            last.matches(writer, self.searched_row(), &mut |writer, candidate| {
                writer.guarded(&format!("at >= {from} && at < {to}"), |writer| {
                    writer.push(&format!("{probes}[at - {from}] = (u32)row;\n{builds}[at - {from}] = {candidate};"));
                    if let Some(visited) = &visited {
                        writer.push(&format!("{visited}[{candidate}] = 1;"));
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
            if last.kind.keeps_unmatched_probe_rows() {
                writer.guarded(&format!("at == first && at >= {from}"), |writer| {
                    writer.push(&format!("{probes}[at - {from}] = (u32)row;\n{builds}[at - {from}] = {NONE};"));
                    Ok(())
                })?;
            }
            Ok(())
        })?;
        let statements = writer.statements();
        let body = row_loop(self.options.profile, "row", &n, &statements);
        Ok(Kernel::new("probe_pairs", params, body))
    }

    /// Appends the recorded matches of a probe row.
    fn declare_recorded(&self, writer: &mut RowWriter<'_>, row: &str) {
        for number in self.lookup.recorded(self.single_match_joins()) {
            let found = writer.params().named(&format!("found{number}"), "const G u32 *RESTRICT");
            writer.push(&self.lookup.searches[number].declare_match(&format!("{found}[{row}]")));
        }
    }

    /// The current row of kernels that search.
    fn searched_row(&self) -> SearchedRow<'_> {
        SearchedRow { types: &self.source.types, row_refs: self.lookup.row_refs(), row: "row" }
    }
}

impl Rows for Probe {
    fn writer<'a>(&'a self, params: &'a mut Params) -> RowWriter<'a> {
        self.source.writer(self.options.profile, params)
    }

    fn locate(&self, writer: &mut RowWriter<'_>) {
        let Some(last) = self.lookup.searches.last().filter(|_| self.lists_pairs) else {
            return self.declare_recorded(writer, "row");
        };
        let probes = writer.params().named("pair_probe", "const G u32 *RESTRICT");
        let builds = writer.params().named("pair_build", "const G u32 *RESTRICT");
        match last.kind.keeps_unmatched_build_rows() {
            true => writer.push(&format!("i32 fp = {probes}[row] != {NONE};\nu64 p = fp ? {probes}[row] : 0;")),
            false => writer.push(&format!("u64 p = {probes}[row];")),
        }
        self.declare_recorded(writer, "p");
        writer.push(&last.declare_match(&format!("{builds}[row]")));
    }

    fn is_simple(&self, output: usize) -> bool {
        self.columns[output].is_simple()
    }

    fn value(&self, writer: &mut RowWriter<'_>, output: usize) -> Result<Value> {
        self.columns[output].value(writer)
    }
}

/// The buffer of a state, allocated with zeros at its first use.
fn zeroed_once<'a>(queue: &Queue, buffer: &'a OnceLock<Buffer>, bytes: usize) -> Result<&'a Buffer> {
    if let Some(buffer) = buffer.get() {
        return Ok(buffer);
    }
    let zeros = queue.zeroed(bytes)?;
    Ok(buffer.get_or_init(|| zeros))
}

/// Whether pairs of the last join are listed.
pub(super) fn lists_pairs(joins: &[Join], tables: Option<&[Arc<JoinTable>]>) -> bool {
    let Some(last) = joins.last() else { return false };
    let table = tables.and_then(|tables| tables.get(joins.len() - 1));
    let is_unique = table.map_or_else(|| last.is_likely_unique(), |table| table.is_unique());
    last.kind.keeps_unmatched_build_rows() || last.kind.gives_pairs() && !is_unique
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_that_are_written_at_once_fit_a_sixteenth_of_the_limit() {
        assert_eq!(affordable_rows(1 << 30, 8), 1 << 20);
        assert_eq!(affordable_rows(1 << 30, 1 << 10), 1 << 16);
        assert_eq!(affordable_rows(1 << 20, 8), MIN_PAIRS);
    }
}
