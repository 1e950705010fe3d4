// SPDX-License-Identifier: Apache-2.0
//! Several joins one after another, in as few kernels as their tables allow.
//!
//! A [`Probe`] goes through joins up to one that multiplies rows. It writes the pairs, with the
//! columns that are still needed, and the next probe continues with them.

use std::collections::BTreeSet;
use std::sync::Arc;

use arrow::datatypes::{Field, SchemaRef};
use columnar::{ColumnType, DeviceBatch};
use device::{ProgramSource, Queue};
use futures::FutureExt;
use futures::future::{BoxFuture, try_join_all};

use super::fused::FusedJoins;
use super::lookup::{Lookup, conjuncts, joins_before};
use super::probe::{MatchPairs, Probe, ProbeState, Probed, UnmatchedBuildRows, lists_pairs};
use super::{Join, JoinTable, joined_schema};
use crate::expr::Expr;
use crate::ops::launch::throttle::has_many_candidates;
use crate::ops::{Input, Options, Select};
use crate::{Error, Result};

/// Probes rows through a list of joins, filters and projects the result.
#[derive(Debug, Clone)]
pub struct JoinChain {
    /// A filter of the probe side, if the remaining rows are searched in slices.
    first: Option<Select>,
    steps: Vec<Probe>,
    /// Filter and projection of the rows of the last step.
    last: Option<Select>,
    schema: SchemaRef,
    types: Vec<ColumnType>,
}

/// The state of a [`JoinChain`] between batches.
#[derive(Debug)]
pub struct ChainState {
    steps: Arc<[ProbeState]>,
    /// Pending work, a stack.
    pending: Vec<PendingWork>,
    /// Rows of [`JoinChain::finish`] that are still to be written.
    unmatched: Option<UnmatchedBuildRows>,
}

/// The result of the first step for a slice of the probe side.
#[derive(Debug)]
pub struct FirstStep(PendingWork);

/// The input of a step, by its number.
#[derive(Debug)]
enum PendingWork {
    /// A batch of the probe side.
    Pushed(DeviceBatch),
    Batch(usize, DeviceBatch),
    Pairs(usize, MatchPairs),
}

impl ChainState {
    /// Adds a batch of a step again, in halves. The first one is next.
    fn push_halves(&mut self, step: usize, batch: &DeviceBatch) {
        let (first, second) = batch.halves();
        self.pending.extend([second, first].map(|half| PendingWork::Batch(step, half)));
    }
}

impl PendingWork {
    /// The work after a step.
    fn after(step: usize, found: Probed) -> PendingWork {
        match found {
            Probed::Rows(batch) => PendingWork::Batch(step + 1, batch),
            Probed::Pairs(pairs) => PendingWork::Pairs(step, pairs),
        }
    }
}

impl JoinChain {
    /// Joins the rows of `input` with each of `joins` in turn, keeps the rows that pass the input's
    /// filter and computes `outputs`.
    ///
    /// - Filter and outputs are over the columns of all sides, one after another.
    /// - A join that [keeps unmatched build rows](super::JoinKind::keeps_unmatched_build_rows) must
    ///   be alone, with a filter of the probe side's columns only.
    /// - Without `tables` kernels can be generated, but not run.
    ///
    /// # Errors
    /// `Unsupported` if an expression is not supported on the device.
    pub fn try_new(
        input: Input,
        joins: &[Join],
        tables: Option<&[Arc<JoinTable>]>,
        outputs: Vec<(Expr, Field)>,
        options: Options,
    ) -> Result<JoinChain> {
        Self::planned(input, joins, tables, outputs, &options, false).map(|(chain, _)| chain)
    }

    /// The chain without the joins at its end that give a row at most one match, and these joins,
    /// to be fused with an aggregation. `None` if there are no such joins; then the chain has all
    /// joins.
    ///
    /// # Errors
    /// As [`try_new`](Self::try_new).
    pub fn before_aggregation(
        input: Input,
        joins: &[Join],
        tables: Option<&[Arc<JoinTable>]>,
        outputs: Vec<(Expr, Field)>,
        options: &Options,
    ) -> Result<(JoinChain, Option<FusedJoins>)> {
        Self::planned(input, joins, tables, outputs, options, true)
    }

    fn planned(
        input: Input,
        joins: &[Join],
        tables: Option<&[Arc<JoinTable>]>,
        outputs: Vec<(Expr, Field)>,
        options: &Options,
        fuse: bool,
    ) -> Result<(JoinChain, Option<FusedJoins>)> {
        let (first, input) = split_probe_filter(input, joins, tables, options)?;
        let types = input.types.clone();
        let mut chain = JoinChain { first, steps: vec![], last: None, schema: input.schema.clone(), types };
        let fused = chain.append(input, joins.to_vec(), tables, outputs, options, fuse)?;
        Ok((chain, fused))
    }

    /// Appends the steps. With `fuse`, returns the joins at the end that an aggregation can be
    /// fused with.
    fn append(
        &mut self,
        input: Input,
        mut joins: Vec<Join>,
        tables: Option<&[Arc<JoinTable>]>,
        outputs: Vec<(Expr, Field)>,
        options: &Options,
        fuse: bool,
    ) -> Result<Option<FusedJoins>> {
        if joins.is_empty() {
            let select = Select::try_new(input, outputs, options.clone())?;
            (self.schema, self.types) = (select.schema().clone(), select.output_types().to_vec());
            self.last = Some(select);
            return Ok(None);
        }
        let multiplies = |index: usize, join: &Join| {
            let table = tables.and_then(|tables| tables.get(index));
            join.kind.gives_pairs() && !table.map_or_else(|| join.is_likely_unique(), |table| table.is_unique())
        };
        let first = joins.iter().enumerate().position(|(index, join)| multiplies(index, join));
        let count = first.map_or(joins.len(), |index| index + 1);
        let rest = joins.split_off(count);
        let (now, later) = split_filter(&input, &mut joins, &rest, first.is_some());
        let input = Input { filter: all_of(now), ..input };
        let own_tables = tables.map(|tables| &tables[..count]);
        if rest.is_empty() && later.is_empty() && fuse && !lists_pairs(&joins, own_tables) {
            return FusedJoins::try_new(input, joins, own_tables, outputs, options.clone()).map(Some);
        }
        if rest.is_empty() && later.is_empty() {
            let probe = Probe::try_new(input, &joins, own_tables, outputs, options.clone())?;
            (self.schema, self.types) = (probe.schema().clone(), probe.output_types().to_vec());
            self.steps.push(probe);
            return Ok(None);
        }
        let end = joined_schema(&input.schema, &joins).fields().len();
        let kept = KeptColumns::of(end, &rest, later.iter().chain(outputs.iter().map(|(expr, _)| expr)));
        let probe = kept.probe(input, &joins, own_tables, options)?;
        let rest = rest.into_iter().map(|join| kept.join(join)).collect::<Result<Vec<_>>>()?;
        let filter = all_of(later.iter().map(|expr| kept.over(expr)).collect::<Result<_>>()?);
        let outputs = outputs.iter().map(|(expr, field)| Ok((kept.over(expr)?, field.clone()))).collect::<Result<_>>()?;
        let input = Input { schema: probe.schema().clone(), types: probe.output_types().to_vec(), filter };
        self.steps.push(probe);
        (self.schema, self.types) = (input.schema.clone(), input.types.clone());
        self.append(input, rest, tables.map(|tables| &tables[count..]), outputs, options, fuse)
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
        let steps = self.first.iter().flat_map(Select::kernel_source).chain(self.steps.iter().flat_map(Probe::kernel_source));
        steps.chain(self.last.iter().flat_map(Select::kernel_source)).collect()
    }

    /// The programs, as they are compiled.
    pub fn programs(&self) -> Vec<ProgramSource> {
        let steps = self.first.iter().flat_map(Select::programs).chain(self.steps.iter().flat_map(Probe::programs));
        steps.chain(self.last.iter().flat_map(Select::programs)).collect()
    }

    /// Number of pipelines.
    pub fn pipelines(&self) -> usize {
        self.steps.len() + usize::from(self.last.is_some())
    }

    /// The state before the first batch.
    pub fn start(&self) -> ChainState {
        ChainState { steps: self.steps.iter().map(Probe::start).collect(), pending: vec![], unmatched: None }
    }

    /// Whether no probe row can give a result, so that none needs to be probed.
    pub fn is_empty(&self) -> bool {
        self.steps.iter().any(Probe::is_empty)
    }

    /// Adds a batch of the probe side; [`next`](Self::next) gives the results.
    pub fn push(&self, state: &mut ChainState, batch: &DeviceBatch) {
        state.pending.push(PendingWork::Pushed(batch.clone()));
    }

    /// The rows of a batch of the probe side that pass the filter before the joins.
    ///
    /// # Errors
    /// `JoinedRow` if an expression failed.
    pub async fn filtered(&self, queue: &Queue, batch: &DeviceBatch) -> Result<DeviceBatch> {
        match &self.first {
            Some(select) => select.run(queue, batch).await.map_err(joined_row_error),
            None => Ok(batch.clone()),
        }
    }

    /// Slices of [`filtered`](Self::filtered) rows of the probe side for the
    /// [`first_step`](Self::first_step).
    pub fn slices(&self, queue: &Queue, batch: &DeviceBatch) -> impl Iterator<Item = DeviceBatch> + use<> {
        let slices = self.steps.first().map(|step| step.slices(queue, batch));
        let whole = slices.is_none().then(|| batch.clone());
        slices.into_iter().flatten().chain(whole)
    }

    /// A function that takes [`slices`](Self::slices) of the probe side through the first step.
    /// Several may run concurrently: while the host waits for the number of results of one slice,
    /// the device searches another. Fails with `JoinedRow` if an expression failed.
    pub fn first_step(
        self: &Arc<Self>,
        queue: &Queue,
        state: &ChainState,
    ) -> impl Fn(DeviceBatch) -> BoxFuture<'static, Result<FirstStep>> + Send + use<> {
        let (chain, queue, states) = (Arc::clone(self), queue.clone(), Arc::clone(&state.steps));
        move |slice| {
            let (chain, queue, states) = (Arc::clone(&chain), queue.clone(), Arc::clone(&states));
            let first_step = async move {
                match (chain.steps.first(), states.first()) {
                    (Some(step), Some(state)) if slice.num_rows() > 0 => match step.probe(&queue, state, &slice).await {
                        Ok(found) => Ok(FirstStep(PendingWork::after(0, found))),
                        // It is probed again once fewer slices are on their way.
                        Err(error) if is_too_large(&error, &slice) => Ok(FirstStep(PendingWork::Batch(0, slice))),
                        Err(error) => Err(joined_row_error(error)),
                    },
                    _ => Ok(FirstStep(PendingWork::Batch(0, slice))),
                }
            };
            first_step.boxed()
        }
    }

    /// Adds the result of a first step, as [`push`](Self::push) adds a batch.
    pub fn resume(&self, state: &mut ChainState, first_step: FirstStep) {
        state.pending.push(first_step.0);
    }

    /// The next rows of the result; `None` if no work is left. A bounded number of rows is in
    /// memory at once, however many a join makes of one row.
    ///
    /// # Errors
    /// `JoinedRow` if an expression failed.
    pub async fn next(&self, queue: &Queue, state: &mut ChainState) -> Result<Option<DeviceBatch>> {
        while let Some(work) = state.pending.pop() {
            let found = match work {
                PendingWork::Pushed(batch) => PendingWork::Batch(0, self.filtered(queue, &batch).await?),
                PendingWork::Batch(_, batch) if batch.num_rows() == 0 => continue,
                PendingWork::Batch(index, batch) if index == self.steps.len() => {
                    let Some(select) = &self.last else { return Ok(Some(batch)) };
                    match select.run(queue, &batch).await {
                        Ok(batch) if batch.num_rows() > 0 => return Ok(Some(batch)),
                        Ok(_) => {}
                        Err(error) if is_too_large(&error, &batch) => state.push_halves(index, &batch),
                        Err(error) => return Err(joined_row_error(error)),
                    }
                    continue;
                }
                PendingWork::Batch(index, batch) => {
                    let step = &self.steps[index];
                    let mut slices = step.slices(queue, &batch);
                    let first = slices.next().unwrap_or(batch);
                    state.pending.extend(slices.rest().map(|rest| PendingWork::Batch(index, rest)));
                    match step.probe(queue, &state.steps[index], &first).await {
                        Ok(found) => PendingWork::after(index, found),
                        Err(error) if is_too_large(&error, &first) => {
                            state.push_halves(index, &first);
                            continue;
                        }
                        Err(error) => return Err(joined_row_error(error)),
                    }
                }
                PendingWork::Pairs(index, mut pairs) => {
                    let next = self.steps[index].next_pairs(queue, &state.steps[index], &mut pairs).await;
                    let Some(batch) = next.map_err(joined_row_error)? else { continue };
                    state.pending.push(PendingWork::Pairs(index, pairs));
                    PendingWork::Batch(index + 1, batch)
                }
            };
            state.pending.push(found);
        }
        Ok(None)
    }

    /// The number of rows that each dynamic filter removed so far, in the order of the joins.
    pub fn removed(&self, queue: &Queue, state: &ChainState) -> impl Future<Output = Result<Vec<u64>>> + Send + use<> {
        let of_steps: Vec<_> =
            self.steps.iter().zip(state.steps.iter()).map(|(step, state)| step.removed(queue, state)).collect();
        async move { Ok(try_join_all(of_steps).await?.concat()) }
    }

    /// The next build rows without a match, once all batches were probed and their results taken;
    /// `None` if none are left. A bounded number of rows is in memory at once.
    ///
    /// # Errors
    /// `Row` with the lowest position among all of them of which an expression failed.
    pub async fn finish(&self, queue: &Queue, state: &mut ChainState) -> Result<Option<DeviceBatch>> {
        // A join that keeps unmatched build rows is the only step.
        let Some((step, of_step)) = self.steps.last().zip(state.steps.last()) else { return Ok(None) };
        if state.unmatched.is_none() {
            state.unmatched = step.unmatched_build_rows(queue, of_step).await?;
        }
        match &mut state.unmatched {
            Some(rows) => step.next_unmatched(queue, rows).await,
            None => Ok(None),
        }
    }

    /// The row at a position among the build rows without a match, as [`finish`](Self::finish)
    /// counts them.
    ///
    /// # Errors
    /// `Row` if an expression of it fails.
    pub async fn unmatched_build_row(&self, queue: &Queue, state: &ChainState, at: u64) -> Result<Option<DeviceBatch>> {
        let Some((step, of_step)) = self.steps.last().zip(state.steps.last()) else { return Ok(None) };
        match step.unmatched_build_rows(queue, of_step).await? {
            Some(rows) => step.unmatched_at(queue, &rows, at).await.map(Some),
            None => Ok(None),
        }
    }
}

/// Splits off the filters over columns of the probe side, if each row has many candidates.
/// Otherwise removed rows would make slices smaller. Returns the filter, if any, and the remaining
/// input.
fn split_probe_filter(
    input: Input,
    joins: &[Join],
    tables: Option<&[Arc<JoinTable>]>,
    options: &Options,
) -> Result<(Option<Select>, Input)> {
    let own = |filter: &Expr| joins_before(filter, &input.types, joins) == 0;
    let (own, rest): (Vec<_>, Vec<_>) = conjuncts(input.filter.clone()).into_iter().partition(own);
    if own.is_empty() || !has_many_candidates(Lookup::try_new(&input, joins, tables, options.profile)?.max_candidates()) {
        return Ok((None, input));
    }
    let fields = input.schema.fields().iter().enumerate();
    let outputs = fields.map(|(column, field)| (Expr::Column(column), field.as_ref().clone())).collect();
    let select = Select::try_new(Input { filter: all_of(own), ..input }, outputs, options.clone())?;
    let input = Input { schema: select.schema().clone(), types: select.output_types().to_vec(), filter: all_of(rest) };
    Ok((Some(select), input))
}

/// Batches of more rows are halved if memory is short.
const FEWEST_ROWS: usize = 1 << 8;

/// Whether memory may suffice for half of a batch: strings take more than their columns promise. A
/// dynamic filter then counts removed rows twice.
fn is_too_large(error: &Error, batch: &DeviceBatch) -> bool {
    error.is_out_of_memory() && batch.num_rows() > FEWEST_ROWS
}

/// The error of a joined row: the caller does not have the row of an intermediate batch.
fn joined_row_error(error: Error) -> Error {
    match error {
        Error::Row { .. } => Error::JoinedRow,
        error => error,
    }
}

pub(super) fn all_of(mut conditions: Vec<Expr>) -> Option<Expr> {
    match conditions.len() {
        0 => None,
        1 => conditions.pop(),
        _ => Some(Expr::And(conditions)),
    }
}

/// Splits the filter of an input into the conjuncts that a probe of `joins` evaluates, and those
/// after it.
///
/// With `multiplies`, the last join multiplies rows. Conjuncts over its columns become its residual
/// if its kind allows it.
fn split_filter(input: &Input, joins: &mut [Join], rest: &[Join], multiplies: bool) -> (Vec<Expr>, Vec<Expr>) {
    let all = [&*joins, rest].concat();
    let (now, mut later): (Vec<_>, Vec<_>) =
        conjuncts(input.filter.clone()).into_iter().partition(|filter| joins_before(filter, &input.types, &all) <= joins.len());
    let (now, after): (Vec<_>, Vec<_>) = match multiplies {
        false => (now, vec![]),
        true => now.into_iter().partition(|filter| joins_before(filter, &input.types, joins) < joins.len()),
    };
    match joins.last_mut().filter(|last| last.kind.takes_filter_as_residual()) {
        Some(last) => {
            let conditions: Vec<_> = last.residual.take().into_iter().chain(after).collect();
            last.residual = all_of(conditions);
        }
        None => later.extend(after),
    }
    (now, later)
}

/// The columns that a probe writes for the steps after it.
#[derive(Debug)]
pub(super) struct KeptColumns {
    /// Positions among the columns before the rest of the joins, ascending.
    columns: Vec<usize>,
    /// Number of these columns.
    end: usize,
}

impl KeptColumns {
    /// The columns below `end` that the rest of the joins and `exprs` read.
    pub fn of<'a>(end: usize, rest: &[Join], exprs: impl Iterator<Item = &'a Expr>) -> KeptColumns {
        let mut needed = Vec::new();
        for expr in exprs {
            expr.columns(&mut needed);
        }
        for join in rest {
            join.keys.iter().for_each(|(probe, _)| probe.columns(&mut needed));
            join.residual.iter().for_each(|residual| residual.columns(&mut needed));
        }
        let columns = needed.into_iter().filter(|column| *column < end).collect::<BTreeSet<_>>().into_iter().collect();
        KeptColumns { columns, end }
    }

    /// The probe that writes the columns.
    fn probe(&self, input: Input, joins: &[Join], tables: Option<&[Arc<JoinTable>]>, options: &Options) -> Result<Probe> {
        let outputs = self.outputs(&joined_schema(&input.schema, joins));
        Probe::try_new(input, joins, tables, outputs, options.clone())
    }

    /// The columns as outputs over those of all sides before.
    pub fn outputs(&self, schema: &SchemaRef) -> Vec<(Expr, Field)> {
        let fields = self.columns.iter().filter_map(|column| Some((column, schema.fields().get(*column)?)));
        fields.map(|(column, field)| (Expr::Column(*column), field.as_ref().clone().with_nullable(true))).collect()
    }

    /// Position of a column for the steps after the probe, `None` if it is left behind.
    pub fn position(&self, column: usize) -> Option<usize> {
        match self.columns.binary_search(&column) {
            Ok(position) => Some(position),
            Err(_) => Some(column.checked_sub(self.end)? + self.columns.len()),
        }
    }

    /// An expression over the columns that the probe writes, and those of the joins after it.
    pub fn over(&self, expr: &Expr) -> Result<Expr> {
        let left_behind = |column| Error::Internal(format!("column {column} was left behind"));
        expr.over(&|column| self.position(column).map(Expr::Column).ok_or_else(|| left_behind(column)))
    }

    /// A join over these columns.
    pub fn join(&self, join: Join) -> Result<Join> {
        let keys = join.keys.iter().map(|(left, right)| Ok((self.over(left)?, right.clone())));
        Ok(Join {
            keys: keys.collect::<Result<_>>()?,
            residual: join.residual.as_ref().map(|residual| self.over(residual)).transpose()?,
            ..join
        })
    }
}
