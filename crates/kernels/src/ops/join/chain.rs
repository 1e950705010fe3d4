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

use super::probe::{conjuncts, position};
use super::{Join, JoinKind, JoinTable, Probe, ProbeState, joined_schema};
use crate::expr::Expr;
use crate::ops::{Input, Options, Select};
use crate::{Error, Result};

/// Probes rows through a list of joins, filters and projects what they give.
#[derive(Debug, Clone)]
pub struct JoinChain {
    steps: Vec<Probe>,
    /// What is left to do with the rows of the last step.
    last: Option<Select>,
    schema: SchemaRef,
    types: Vec<ColumnType>,
}

/// What the steps of a [`JoinChain`] remember between batches.
#[derive(Debug, Default)]
pub struct ChainState {
    steps: Vec<ProbeState>,
}

impl JoinChain {
    /// Joins the rows of `input` with each of `joins` in turn, keeps what passes the input's filter and computes `outputs`,
    /// both over the columns of all sides one after another. Joins that keep build rows ([`JoinKind::Left`],
    /// [`JoinKind::Full`]) must be alone, with a filter of the probe side's columns only. Without `tables` the kernels
    /// can be read, not run.
    ///
    /// # Errors
    /// `Unsupported` where an expression has no device form.
    pub fn try_new(
        input: Input,
        joins: &[Join],
        tables: Option<&[Arc<JoinTable>]>,
        outputs: Vec<(Expr, Field)>,
        options: Options,
    ) -> Result<JoinChain> {
        let mut chain = JoinChain { steps: vec![], last: None, schema: input.schema.clone(), types: vec![] };
        chain.append(input, joins.to_vec(), tables, outputs, &options)?;
        Ok(chain)
    }

    fn append(
        &mut self,
        input: Input,
        mut joins: Vec<Join>,
        tables: Option<&[Arc<JoinTable>]>,
        outputs: Vec<(Expr, Field)>,
        options: &Options,
    ) -> Result<()> {
        if joins.is_empty() {
            let select = Select::try_new(input, outputs, options.clone())?;
            (self.schema, self.types) = (select.schema().clone(), select.output_types().to_vec());
            self.last = Some(select);
            return Ok(());
        }
        let multiplies = |index: usize, join: &Join| {
            let unique = tables.and_then(|tables| tables.get(index)).map_or(!join.keys.is_empty(), |table| table.is_unique());
            join.kind.pairs() && !unique
        };
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
        if rest.is_empty() && later.is_empty() {
            let probe = Probe::try_new(input, &joins, own_tables, outputs, options.clone())?;
            (self.schema, self.types) = (probe.schema().clone(), probe.output_types().to_vec());
            self.steps.push(probe);
            return Ok(());
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
        self.append(input, rest, tables.map(|tables| &tables[count..]), outputs, options)
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
        let steps = self.steps.iter().flat_map(Probe::kernel_text);
        steps.chain(self.last.iter().flat_map(Select::kernel_text)).collect()
    }

    /// The programs as they are compiled.
    pub fn programs(&self) -> Vec<String> {
        self.steps.iter().flat_map(Probe::programs).chain(self.last.iter().flat_map(Select::programs)).collect()
    }

    /// Number of pipelines.
    pub fn pipelines(&self) -> usize {
        self.steps.len() + usize::from(self.last.is_some())
    }

    /// Nothing probed yet.
    pub fn start(&self) -> ChainState {
        ChainState { steps: self.steps.iter().map(Probe::start).collect() }
    }

    /// Whether no row of the probe side can give any: nothing needs to be probed.
    pub fn is_empty(&self) -> bool {
        self.steps.iter().any(Probe::is_empty)
    }

    /// Probes a batch.
    ///
    /// # Errors
    /// `Row` with the lowest row of which an expression failed in the first step.
    pub async fn push(&self, queue: &Queue, state: &mut ChainState, batch: &DeviceBatch) -> Result<Vec<DeviceBatch>> {
        let mut batches = vec![batch.clone()];
        for (index, (step, state)) in self.steps.iter().zip(&mut state.steps).enumerate() {
            let mut results = Vec::new();
            for batch in &batches {
                results.extend(step.push(queue, state, batch).await.map_err(|error| of_step(index, error))?);
            }
            batches = results;
        }
        self.project(queue, batches).await
    }

    /// Rows that each dynamic filter has removed so far, in the order of the joins.
    pub async fn removed(&self, queue: &Queue, state: &ChainState) -> Result<Vec<u64>> {
        let mut removed = Vec::new();
        for (step, state) in self.steps.iter().zip(&state.steps) {
            removed.extend(step.removed(queue, state).await?);
        }
        Ok(removed)
    }

    /// What remains once every batch was probed.
    pub async fn finish(&self, queue: &Queue, state: ChainState) -> Result<Vec<DeviceBatch>> {
        match self.steps.last().zip(state.steps.into_iter().last()) {
            Some((step, state)) => {
                let batches = step.finish(queue, state).await?;
                self.project(queue, batches).await
            }
            None => Ok(vec![]),
        }
    }

    async fn project(&self, queue: &Queue, batches: Vec<DeviceBatch>) -> Result<Vec<DeviceBatch>> {
        let Some(select) = &self.last else { return Ok(batches) };
        let mut results = Vec::with_capacity(batches.len());
        for batch in batches {
            results.push(select.run(queue, &batch).await.map_err(|error| of_step(self.steps.len(), error))?);
        }
        results.retain(|batch| batch.num_rows() > 0);
        Ok(results)
    }
}

/// A row that failed in a later step is none that the caller has.
fn of_step(index: usize, error: Error) -> Error {
    match error {
        Error::Row { .. } if index > 0 => {
            Error::Unsupported("an expression over joined rows failed (overflow, division by zero or a cast)".into())
        }
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
