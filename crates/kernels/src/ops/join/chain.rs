// SPDX-License-Identifier: Apache-2.0
//! Several joins one after another: as few kernels as their tables allow.
//!
//! A [`Probe`] goes through joins until one of them multiplies rows. The pairs are written then, with the columns that are
//! still needed, and the next probe goes on from there.

use std::collections::BTreeSet;
use std::sync::Arc;

use arrow::datatypes::{Field, SchemaRef};
use columnar::{ColumnType, DeviceBatch};
use device::Queue;
use futures::FutureExt;
use futures::future::{BoxFuture, try_join_all};

use super::joined::Joined;
use super::lookup::{Lookup, conjuncts, position};
use super::pace::meets_many;
use super::probe::{Pairs, Probe, ProbeState, Probed, expands};
use super::{Join, JoinKind, JoinTable, joined_schema};
use crate::expr::Expr;
use crate::ops::{Input, Options, Select};
use crate::{Error, Result};

/// Probes rows through a list of joins, filters and projects what they give.
#[derive(Debug, Clone)]
pub struct JoinChain {
    /// What removes rows before those that are left are searched for in pieces.
    first: Option<Select>,
    steps: Vec<Probe>,
    /// What is left to do with the rows of the last step.
    last: Option<Select>,
    schema: SchemaRef,
    types: Vec<ColumnType>,
}

/// What the steps of a [`JoinChain`] remember between batches, and what is left to do.
#[derive(Debug)]
pub struct ChainState {
    steps: Arc<[ProbeState]>,
    /// What comes next is last.
    pending: Vec<Work>,
}

/// Rows of the probe side that have been through the first step.
#[derive(Debug)]
pub struct Begun(Work);

/// Something that a step, by its number, is to go on with.
#[derive(Debug)]
enum Work {
    /// A batch that has just come.
    Pushed(DeviceBatch),
    Batch(usize, DeviceBatch),
    Pairs(usize, Pairs),
}

impl Work {
    /// What is left to do with what a step has found.
    fn after(step: usize, found: Probed) -> Work {
        match found {
            Probed::Rows(batch) => Work::Batch(step + 1, batch),
            Probed::Pairs(pairs) => Work::Pairs(step, pairs),
        }
    }
}

impl JoinChain {
    /// Joins the rows of `input` with each of `joins` in turn, keeps what passes the input's filter and computes `outputs`,
    /// both over the columns of all sides one after another. Joins that keep build rows ([`JoinKind::Left`],
    /// [`JoinKind::Full`]) must be alone, with a filter of the probe side's columns only. Without `tables` the kernels
    /// can be read, not run.
    ///
    /// # Errors
    /// `Unsupported` where an expression is not supported on the device.
    pub fn try_new(
        input: Input,
        joins: &[Join],
        tables: Option<&[Arc<JoinTable>]>,
        outputs: Vec<(Expr, Field)>,
        options: Options,
    ) -> Result<JoinChain> {
        Self::planned(input, joins, tables, outputs, &options, false).map(|(chain, _)| chain)
    }

    /// The chain up to the joins at its end that give a row one match at most, and these, which are left to a sink. `None` where
    /// there are no such joins, and the chain is a whole one.
    ///
    /// # Errors
    /// As [`try_new`](Self::try_new).
    pub fn before_sink(
        input: Input,
        joins: &[Join],
        tables: Option<&[Arc<JoinTable>]>,
        outputs: Vec<(Expr, Field)>,
        options: &Options,
    ) -> Result<(JoinChain, Option<Joined>)> {
        Self::planned(input, joins, tables, outputs, options, true)
    }

    fn planned(
        input: Input,
        joins: &[Join],
        tables: Option<&[Arc<JoinTable>]>,
        outputs: Vec<(Expr, Field)>,
        options: &Options,
        sink: bool,
    ) -> Result<(JoinChain, Option<Joined>)> {
        let (first, input) = filtered_first(input, joins, tables, options)?;
        let types = input.types.clone();
        let mut chain = JoinChain { first, steps: vec![], last: None, schema: input.schema.clone(), types };
        let joined = chain.append(input, joins.to_vec(), tables, outputs, options, sink)?;
        Ok((chain, joined))
    }

    /// Appends the steps; with a `sink`, not those at the end that it can take itself.
    fn append(
        &mut self,
        input: Input,
        mut joins: Vec<Join>,
        tables: Option<&[Arc<JoinTable>]>,
        outputs: Vec<(Expr, Field)>,
        options: &Options,
        sink: bool,
    ) -> Result<Option<Joined>> {
        if joins.is_empty() {
            let select = Select::try_new(input, outputs, options.clone())?;
            (self.schema, self.types) = (select.schema().clone(), select.output_types().to_vec());
            self.last = Some(select);
            return Ok(None);
        }
        let multiplies =
            |index: usize, join: &Join| join.kind.pairs() && !join.is_unique(tables.and_then(|tables| tables.get(index)));
        let first = joins.iter().enumerate().position(|(index, join)| multiplies(index, join));
        let count = first.map_or(joins.len(), |index| index + 1);
        let rest = joins.split_off(count);
        let (now, mut later): (Vec<_>, Vec<_>) = conjuncts(input.filter.clone())
            .into_iter()
            .partition(|filter| position(filter, &input.types, &[joins.as_slice(), rest.as_slice()].concat()) <= count);
        let (now, after): (Vec<_>, Vec<_>) = match first {
            None => (now, vec![]),
            Some(_) => now.into_iter().partition(|filter| position(filter, &input.types, &joins) < count),
        };
        match joins.last_mut().filter(|last| last.kind == JoinKind::Inner) {
            Some(last) => {
                let conditions: Vec<_> = last.residual.take().into_iter().chain(after).collect();
                last.residual = all_of(conditions);
            }
            None => later.extend(after),
        }
        let input = Input { filter: all_of(now), ..input };
        let own_tables = tables.map(|tables| &tables[..count]);
        if rest.is_empty() && later.is_empty() && sink && !expands(&joins, own_tables) {
            return Joined::try_new(input, joins, own_tables, outputs, options.clone()).map(Some);
        }
        if rest.is_empty() && later.is_empty() {
            let probe = Probe::try_new(input, &joins, own_tables, outputs, options.clone())?;
            (self.schema, self.types) = (probe.schema().clone(), probe.output_types().to_vec());
            self.steps.push(probe);
            return Ok(None);
        }
        let schema = joined_schema(&input.schema, &joins);
        let end = schema.fields().len();
        let mut needed = Vec::new();
        for expr in later.iter().chain(outputs.iter().map(|(expr, _)| expr)) {
            expr.columns(&mut needed);
        }
        for join in &rest {
            join.keys.iter().for_each(|(probe, _)| probe.columns(&mut needed));
            join.residual.iter().for_each(|residual| residual.columns(&mut needed));
        }
        let kept: Vec<usize> = needed.into_iter().filter(|column| *column < end).collect::<BTreeSet<_>>().into_iter().collect();
        let fields = kept.iter().map(|column| (Expr::Column(*column), schema.field(*column).clone().with_nullable(true)));
        let probe = Probe::try_new(input, &joins, own_tables, fields.collect(), options.clone())?;
        let moved = |column: usize| match kept.binary_search(&column) {
            Ok(place) => Ok(Expr::Column(place)),
            Err(_) if column >= end => Ok(Expr::Column(column - end + kept.len())),
            Err(_) => Err(Error::Internal(format!("column {column} was left behind"))),
        };
        let over = |expr: &Expr| expr.over(&moved);
        let rest = rest.into_iter().map(|join| {
            Ok(Join {
                keys: join.keys.iter().map(|(left, right)| Ok((over(left)?, right.clone()))).collect::<Result<_>>()?,
                residual: join.residual.as_ref().map(over).transpose()?,
                ..join
            })
        });
        let rest = rest.collect::<Result<Vec<_>>>()?;
        let filter = all_of(later.iter().map(over).collect::<Result<_>>()?);
        let outputs = outputs.iter().map(|(expr, field)| Ok((over(expr)?, field.clone()))).collect::<Result<_>>()?;
        let input = Input { schema: probe.schema().clone(), types: probe.output_types().to_vec(), filter };
        self.steps.push(probe);
        (self.schema, self.types) = (input.schema.clone(), input.types.clone());
        self.append(input, rest, tables.map(|tables| &tables[count..]), outputs, options, sink)
    }

    /// Names and types of the result.
    pub fn schema(&self) -> &SchemaRef {
        &self.schema
    }

    /// Types and layouts of the result, the same for every batch.
    pub fn output_types(&self) -> &[ColumnType] {
        &self.types
    }

    /// Names and texts of the kernels.
    pub fn kernel_text(&self) -> Vec<(String, String)> {
        let steps = self.first.iter().flat_map(Select::kernel_text).chain(self.steps.iter().flat_map(Probe::kernel_text));
        steps.chain(self.last.iter().flat_map(Select::kernel_text)).collect()
    }

    /// The programs as they are compiled.
    pub fn programs(&self) -> Vec<String> {
        let steps = self.first.iter().flat_map(Select::programs).chain(self.steps.iter().flat_map(Probe::programs));
        steps.chain(self.last.iter().flat_map(Select::programs)).collect()
    }

    /// Number of pipelines.
    pub fn pipelines(&self) -> usize {
        self.steps.len() + usize::from(self.last.is_some())
    }

    /// Nothing probed yet.
    pub fn start(&self) -> ChainState {
        ChainState { steps: self.steps.iter().map(Probe::start).collect(), pending: vec![] }
    }

    /// Whether no row of the probe side can give any: nothing needs to be probed.
    pub fn is_empty(&self) -> bool {
        self.steps.iter().any(Probe::is_empty)
    }

    /// Takes a batch of the probe side; what it gives comes out of [`next`](Self::next).
    pub fn push(&self, state: &mut ChainState, batch: &DeviceBatch) {
        state.pending.push(Work::Pushed(batch.clone()));
    }

    /// The rows of a batch of the probe side that are to be searched for.
    ///
    /// # Errors
    /// `JoinedRow` where an expression failed.
    pub async fn filtered(&self, queue: &Queue, batch: &DeviceBatch) -> Result<DeviceBatch> {
        match &self.first {
            Some(select) => select.run(queue, batch).await.map_err(of_joined_rows),
            None => Ok(batch.clone()),
        }
    }

    /// [`filtered`](Self::filtered) rows of the probe side in pieces for the [`beginning`](Self::beginning).
    pub fn pieces(&self, queue: &Queue, batch: &DeviceBatch) -> impl Iterator<Item = DeviceBatch> + use<> {
        let pieces = self.steps.first().map(|step| step.pieces(queue, batch));
        let whole = pieces.is_none().then(|| batch.clone());
        pieces.into_iter().flatten().chain(whole)
    }

    /// What takes [`pieces`](Self::pieces) of the probe side through the first step, several at the same time: while the host waits for the number
    /// of what one has found, the device searches for another. Fails with `JoinedRow` where an expression failed.
    pub fn beginning(
        self: &Arc<Self>,
        queue: &Queue,
        state: &ChainState,
    ) -> impl Fn(DeviceBatch) -> BoxFuture<'static, Result<Begun>> + Send + use<> {
        let (chain, queue, states) = (Arc::clone(self), queue.clone(), Arc::clone(&state.steps));
        move |piece| {
            let (chain, queue, states) = (Arc::clone(&chain), queue.clone(), Arc::clone(&states));
            let begun = async move {
                match (chain.steps.first(), states.first()) {
                    (Some(step), Some(state)) if piece.num_rows() > 0 => {
                        let found = step.probe(&queue, state, &piece).await.map_err(of_joined_rows)?;
                        Ok(Begun(Work::after(0, found)))
                    }
                    _ => Ok(Begun(Work::Batch(0, piece))),
                }
            };
            begun.boxed()
        }
    }

    /// Goes on with what has begun, as [`push`](Self::push) does with a batch.
    pub fn resume(&self, state: &mut ChainState, begun: Begun) {
        state.pending.push(begun.0);
    }

    /// The next rows of what was pushed; `None` once there are no more. However many rows a join makes of one, few of them are
    /// in memory at once.
    ///
    /// # Errors
    /// `JoinedRow` where an expression failed.
    pub async fn next(&self, queue: &Queue, state: &mut ChainState) -> Result<Option<DeviceBatch>> {
        while let Some(work) = state.pending.pop() {
            let found = match work {
                Work::Pushed(batch) => Work::Batch(0, self.filtered(queue, &batch).await?),
                Work::Batch(_, batch) if batch.num_rows() == 0 => continue,
                Work::Batch(index, batch) if index == self.steps.len() => match &self.last {
                    Some(select) => match select.run(queue, &batch).await.map_err(of_joined_rows)? {
                        batch if batch.num_rows() > 0 => return Ok(Some(batch)),
                        _ => continue,
                    },
                    None => return Ok(Some(batch)),
                },
                Work::Batch(index, batch) => {
                    let step = &self.steps[index];
                    let mut pieces = step.pieces(queue, &batch);
                    let first = pieces.next().unwrap_or(batch);
                    state.pending.extend(pieces.rev().map(|piece| Work::Batch(index, piece)));
                    Work::after(index, step.probe(queue, &state.steps[index], &first).await.map_err(of_joined_rows)?)
                }
                Work::Pairs(index, mut pairs) => {
                    let next = self.steps[index].next_pairs(queue, &state.steps[index], &mut pairs).await;
                    let Some(batch) = next.map_err(of_joined_rows)? else { continue };
                    state.pending.push(Work::Pairs(index, pairs));
                    Work::Batch(index + 1, batch)
                }
            };
            state.pending.push(found);
        }
        Ok(None)
    }

    /// Rows that each dynamic filter has removed so far, in the order of the joins.
    pub fn removed(&self, queue: &Queue, state: &ChainState) -> impl Future<Output = Result<Vec<u64>>> + Send + use<> {
        let of_steps: Vec<_> =
            self.steps.iter().zip(state.steps.iter()).map(|(step, state)| step.removed(queue, state)).collect();
        async move { Ok(try_join_all(of_steps).await?.concat()) }
    }

    /// What remains once every batch was probed and all that it gave was taken: rows of a build side that nothing matched.
    ///
    /// # Errors
    /// `Row` with the lowest number among them of which an expression failed.
    pub async fn finish(&self, queue: &Queue, state: &ChainState) -> Result<Option<DeviceBatch>> {
        self.left_over(queue, state, None).await
    }

    /// The row with a number among those that remain.
    ///
    /// # Errors
    /// `Row` where an expression of it fails.
    pub async fn left_over_row(&self, queue: &Queue, state: &ChainState, row: u64) -> Result<Option<DeviceBatch>> {
        self.left_over(queue, state, Some(row)).await
    }

    async fn left_over(&self, queue: &Queue, state: &ChainState, only: Option<u64>) -> Result<Option<DeviceBatch>> {
        // Joins that keep build rows are alone.
        match self.steps.last().zip(state.steps.last()) {
            Some((step, of_step)) => step.finish(queue, of_step, only).await,
            None => Ok(None),
        }
    }
}

/// What removes rows by filters of their own columns before the joins, where each of these rows would have its share in the
/// number of pieces; what is left of the input.
fn filtered_first(
    input: Input,
    joins: &[Join],
    tables: Option<&[Arc<JoinTable>]>,
    options: &Options,
) -> Result<(Option<Select>, Input)> {
    let own = |filter: &Expr| position(filter, &input.types, joins) == 0;
    let (own, rest): (Vec<_>, Vec<_>) = conjuncts(input.filter.clone()).into_iter().partition(own);
    if own.is_empty() || !meets_many(Lookup::try_new(&input, joins, tables, options.profile)?.meets()) {
        return Ok((None, input));
    }
    let fields = input.schema.fields().iter().enumerate();
    let outputs = fields.map(|(column, field)| (Expr::Column(column), field.as_ref().clone())).collect();
    let select = Select::try_new(Input { filter: all_of(own), ..input }, outputs, options.clone())?;
    let input = Input { schema: select.schema().clone(), types: select.output_types().to_vec(), filter: all_of(rest) };
    Ok((Some(select), input))
}

/// The error of a row of several sides: one that the caller does not have.
fn of_joined_rows(error: Error) -> Error {
    match error {
        Error::Row { .. } => Error::JoinedRow,
        error => error,
    }
}

fn all_of(mut conditions: Vec<Expr>) -> Option<Expr> {
    match conditions.len() {
        0 => None,
        1 => conditions.pop(),
        _ => Some(Expr::And(conditions)),
    }
}
