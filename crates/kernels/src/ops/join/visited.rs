// SPDX-License-Identifier: Apache-2.0
//! Left semi, anti and mark joins: the build rows that have a match.

use std::sync::Arc;

use arrow::datatypes::{Schema, SchemaRef};
use columnar::{ColumnType, DeviceBatch};
use device::{Arg, Buffer, Queue};

use super::keys::none_null;
use super::lookup::{assumed_layout, conjuncts, joins_before};
use super::search::{Search, SearchedRow, TableArgNames};
use super::table::JoinTable;
use super::{Join, joined_types, mark_field, mark_type};
use crate::codegen::{Params, RowWriter};
use crate::expr::Expr;
use crate::ops::launch::primitives::Primitives;
use crate::ops::launch::program::{
    Kernel, Program, check_failed_row, describe_operator, grid_for, grid_for_candidates, read_u64, row_loop,
};
use crate::ops::launch::throttle::{LaunchBudget, Slices, Throttle};
use crate::ops::{Input, Options};
use crate::prelude::Section;
use crate::{Error, Result};

/// Notes the build rows that probe rows match: DataFusion's `visited_indices_bitmap`.
///
/// The result is the build side and a mark column, as of a left mark join. Semi and anti joins
/// filter by the mark.
#[derive(Debug, Clone)]
pub struct VisitedBitmap {
    search: Search,
    arg_names: TableArgNames,
    schema: SchemaRef,
    types: Vec<ColumnType>,
    table: Option<Arc<JoinTable>>,
    null_aware: bool,
    budget: Arc<LaunchBudget>,
    options: Options,
    primitives: Primitives,
    program: Program,
}

/// Kernels of a [`VisitedBitmap`] by position.
const VISIT: usize = 0;
/// For `NOT IN`: flags the rows that NULLs exclude.
const VISIT_NULLS: usize = 1;

/// Facts about a probe side that `NOT IN` depends on.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ProbeSideFacts {
    /// Whether it has any row.
    pub has_rows: bool,
    /// Whether the key of a row is NULL.
    pub has_null_keys: bool,
}

/// The build rows that were visited so far.
#[derive(Debug, Default)]
pub struct VisitedState {
    buffers: Option<VisitedBuffers>,
    /// Of the whole probe side, where the rows are a part of it.
    facts: ProbeSideFacts,
    throttle: Throttle,
}

#[derive(Debug)]
struct VisitedBuffers {
    /// A byte for each build row: 1 if it was visited.
    visited: Buffer,
    /// Two bytes: whether the probe side has any rows, and any NULL keys.
    probe_side: Buffer,
}

impl VisitedBitmap {
    /// Visits the build side of `join` by the rows of `input`, whose filter is over its own
    /// columns. Without a `table` kernels can be generated, but not run.
    ///
    /// # Errors
    /// `Unsupported` if an expression is not supported on the device.
    pub fn try_new(input: Input, join: &Join, table: Option<Arc<JoinTable>>, options: Options) -> Result<VisitedBitmap> {
        let joins = std::slice::from_ref(join);
        let all = joined_types(&input.types, joins);
        let layout = table.as_deref().map_or_else(|| assumed_layout(join, &all), JoinTable::layout);
        let search = Search::try_new(join, 0, input.types.len(), &all, layout, options.profile)?;
        let filters = conjuncts(input.filter);
        if filters.iter().any(|filter| joins_before(filter, &input.types, joins) > 0) {
            return Err(Error::Internal("a filter over the rows that a semi join loses".into()));
        }
        let mut kernels = vec![visit_kernel(&search, &filters, &all, input.types.len(), join, &options)?];
        if join.null_aware {
            kernels.push(nulls_kernel(join, &options)?);
        }
        let fields = join.schema.fields().iter().cloned().chain([Arc::new(mark_field())]);
        Ok(VisitedBitmap {
            arg_names: search.arg_names(),
            search,
            schema: Arc::new(Schema::new(fields.collect::<Vec<_>>())),
            types: join.types.iter().cloned().chain([mark_type()]).collect(),
            table,
            null_aware: join.null_aware,
            budget: Arc::default(),
            primitives: Primitives::new(&options),
            program: Program::new("VisitedBitmap", &options, kernels),
            options,
        })
    }

    describe_operator!();

    /// The state before the first batch.
    pub fn start(&self) -> VisitedState {
        VisitedState::default()
    }

    /// The same where batches are a part of the probe side. `facts`: of all of it.
    pub fn start_part(&self, facts: ProbeSideFacts) -> VisitedState {
        VisitedState { facts, ..VisitedState::default() }
    }

    /// Visits the matches of a batch of the probe side.
    ///
    /// # Errors
    /// `Row` with the lowest row of which an expression failed.
    pub async fn push(&self, queue: &Queue, state: &mut VisitedState, batch: &DeviceBatch) -> Result<()> {
        let candidates = self.table()?.max_rows_per_key();
        let (mut first, queue) = (0, &self.budget.metered(queue));
        for slice in Slices::new(queue, batch, candidates, usize::MAX, &self.budget) {
            state.throttle.wait(&self.budget, queue, slice.num_rows(), candidates).await?;
            self.push_slice(queue, state, &slice).await.map_err(|error| match error {
                Error::Row { row } => Error::Row { row: first + row },
                error => error,
            })?;
            first += slice.num_rows() as u64;
        }
        Ok(())
    }

    async fn push_slice(&self, queue: &Queue, state: &mut VisitedState, batch: &DeviceBatch) -> Result<()> {
        let table = self.table()?;
        let n = batch.num_rows();
        if n == 0 || table.num_rows() == 0 && !self.search.compares_all_rows() {
            return Ok(());
        }
        let loaded = self.program.load(queue).await?;
        let buffers = match state.buffers.take() {
            Some(buffers) => buffers,
            None => VisitedBuffers::new(queue, table.num_rows(), state.facts)?,
        };
        let columns: Vec<_> = batch.columns().iter().chain(table.batch().columns()).cloned().collect();
        let fails = self.program.can_fail(VISIT);
        let error = if fails { Some(queue.filled(8, 0xff)?) } else { None };
        let mut named = self.search.args(&self.arg_names, table);
        named.push(("n", Arg::U64(n as u64)));
        named.extend(buffers.args());
        let grid = grid_for_candidates(queue, &self.options, n, table.max_rows_per_key());
        loaded.launch_on(queue, VISIT, grid, columns.as_slice(), error.as_ref(), named)?;
        if let Some(error) = &error {
            check_failed_row(read_u64(&queue.read(error, 0..8).await?, 0)?)?;
        }
        state.buffers = Some(buffers);
        Ok(())
    }

    /// The build side with the mark column; no batch if it has no rows.
    pub async fn finish(&self, queue: &Queue, state: VisitedState) -> Result<Vec<DeviceBatch>> {
        let table = self.table()?;
        let n = table.num_rows();
        if n == 0 {
            return Ok(vec![]);
        }
        let primitives = self.primitives.load(queue).await?;
        let buffers = match state.buffers {
            None if self.null_aware && state.facts.has_rows => Some(VisitedBuffers::new(queue, n, state.facts)?),
            buffers => buffers,
        };
        let visited = match buffers {
            Some(buffers) if self.null_aware => {
                let loaded = self.program.load(queue).await?;
                let mut named = vec![("n", Arg::U64(n as u64))];
                named.extend(buffers.args());
                // Keys that fail have failed in the table's build, so the host never reads this
                // buffer.
                let error = queue.filled(8, 0xff)?;
                let grid = grid_for(queue, &self.options, n);
                loaded.launch_on(queue, VISIT_NULLS, grid, table.batch(), Some(&error), named)?;
                buffers.visited
            }
            Some(buffers) => buffers.visited,
            None => queue.zeroed(n)?,
        };
        let bits = primitives.pack(&visited, n)?;
        let mark = primitives.column(&Arc::new(mark_type()), n, vec![bits], None, None)?;
        let columns = table.batch().columns().iter().cloned().chain([mark]).collect();
        Ok(vec![DeviceBatch::try_new(self.schema.clone(), columns, n)?])
    }

    fn table(&self) -> Result<&JoinTable> {
        self.table.as_deref().ok_or_else(|| Error::Internal("a visited bitmap without a table".into()))
    }
}

impl VisitedBuffers {
    /// No row of a build side was visited.
    fn new(queue: &Queue, build_rows: usize, facts: ProbeSideFacts) -> Result<VisitedBuffers> {
        let probe_side = queue.zeroed(4)?;
        for (at, holds) in [facts.has_rows, facts.has_null_keys].into_iter().enumerate() {
            if holds {
                queue.fill(&probe_side, at, 1, 1)?;
            }
        }
        Ok(VisitedBuffers { visited: queue.zeroed(build_rows.max(1))?, probe_side })
    }

    fn args(&self) -> [(&'static str, Arg<'_>); 2] {
        [("visited", Arg::Buffer(&self.visited)), ("probe_side", Arg::Buffer(&self.probe_side))]
    }
}

fn visit_kernel(
    search: &Search,
    filters: &[Expr],
    types: &[ColumnType],
    probe: usize,
    join: &Join,
    options: &Options,
) -> Result<Kernel> {
    let mut params = Params::new();
    params.need(Section::Base);
    let (n, visited) = (params.named("n", "u64"), params.named("visited", "G u8 *"));
    let mut row_refs = vec![None; probe];
    row_refs.resize(types.len(), Some(search.row_ref()));
    let mut writer = RowWriter::new(types, options.profile, &mut params).with_row_refs(&row_refs);
    writer.push("i32 kept = 1;");
    for filter in filters {
        writer.guarded("kept", |writer| {
            let condition = writer.eval(filter)?.is_true();
            writer.push(&format!("kept = {condition};"));
            Ok(())
        })?;
    }
    writer.guarded("kept", |writer| {
        if join.null_aware {
            let probe_side = writer.params().named("probe_side", "G u8 *");
            let values = join.keys.iter().map(|(probe, _)| writer.eval(probe)).collect::<Result<Vec<_>>>()?;
            writer.push(&format!("{probe_side}[0] = 1;"));
            if let Some(valid) = none_null(&values) {
                writer.push(&format!("if (!({valid})) {probe_side}[1] = 1;"));
            }
        }
        search.matches(writer, SearchedRow { types, row_refs: &row_refs, row: "row" }, &mut |writer, candidate| {
            writer.push(&format!("{visited}[{candidate}] = 1;"));
            Ok(())
        })
    })?;
    let statements = writer.statements();
    Ok(Kernel::new("join_visit", params, row_loop(options.profile, "row", &n, &statements)))
}

fn nulls_kernel(join: &Join, options: &Options) -> Result<Kernel> {
    let mut params = Params::new();
    params.need(Section::Base);
    let (n, visited) = (params.named("n", "u64"), params.named("visited", "G u8 *RESTRICT"));
    let probe_side = params.named("probe_side", "const G u8 *RESTRICT");
    let mut writer = RowWriter::new(&join.types, options.profile, &mut params);
    let values = join.keys.iter().map(|(_, build)| writer.eval(build)).collect::<Result<Vec<_>>>()?;
    let valid = none_null(&values).unwrap_or_else(|| "1".into());
    writer.push(&format!("if ({probe_side}[1] | ({probe_side}[0] & !({valid}))) {visited}[row] = 1;"));
    let statements = writer.statements();
    Ok(Kernel::new("join_visit_nulls", params, row_loop(options.profile, "row", &n, &statements)))
}
