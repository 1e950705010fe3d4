// SPDX-License-Identifier: Apache-2.0
//! Aggregations of a stage's rows, or of rows that they take through joins themselves.

use std::sync::Arc;

use arrow::datatypes::Field;
use columnar::{ColumnType, DeviceBatch};
use datafusion::common::Result;
use device::{ProgramSource, Queue};
use futures::FutureExt;
use futures::future::{BoxFuture, ready};
use kernels::expr::{Aggregate, Expr};
use kernels::ops::{
    ChainPart, FusedJoinCounts, FusedJoins, GroupBy, GroupByState, Input, JoinChain, Options, Reduce, ReduceState,
};

use super::joins::Joins;
use super::pipeline::kernel_error;
use super::stage::Stage;

/// An aggregation to one row, or to one row for each group. DISTINCT takes a table, also without
/// keys.
#[derive(Debug)]
pub(crate) enum AggregateOp {
    Reduce(Box<Reduce>),
    GroupBy(Box<GroupBy>),
}

impl AggregateOp {
    pub(super) fn try_new(
        input: Input,
        keys: Vec<(Expr, Field)>,
        aggregates: Vec<(Aggregate, Field)>,
        options: Options,
    ) -> kernels::Result<AggregateOp> {
        let has_distinct = aggregates.iter().any(|(aggregate, _)| aggregate.groups_values());
        Ok(match keys.is_empty() && !has_distinct {
            true => AggregateOp::Reduce(Box::new(Reduce::try_new(input, aggregates, options)?)),
            false => AggregateOp::GroupBy(Box::new(GroupBy::try_new(input, keys, aggregates, options)?)),
        })
    }

    pub fn output_types(&self) -> &[ColumnType] {
        match self {
            AggregateOp::Reduce(op) => op.output_types(),
            AggregateOp::GroupBy(op) => op.output_types(),
        }
    }

    /// The aggregation over a table of groups. Without keys there is one group.
    pub fn group_by(&self) -> Option<&GroupBy> {
        match self {
            AggregateOp::Reduce(_) => None,
            AggregateOp::GroupBy(op) => Some(op),
        }
    }

    /// Whether groups without room in memory can wait on disk.
    pub fn may_freeze(&self) -> bool {
        self.group_by().is_some_and(GroupBy::may_freeze)
    }

    /// Whether an aggregate is DISTINCT, or a sketch.
    pub fn has_distinct(&self) -> bool {
        self.group_by().is_some_and(|op| op.distinct_count() > 0)
    }

    /// The state without rows.
    pub fn start(&self) -> AggregateState {
        match self {
            AggregateOp::Reduce(op) => AggregateState::Reduce(Box::new(op.start())),
            AggregateOp::GroupBy(op) => AggregateState::GroupBy(Box::new(op.start())),
        }
    }

    /// Aggregates a batch.
    pub async fn push(&self, queue: &Queue, state: &mut AggregateState, batch: &DeviceBatch) -> kernels::Result<()> {
        match (self, state) {
            (AggregateOp::Reduce(op), AggregateState::Reduce(state)) => op.push(queue, state, batch).await,
            (AggregateOp::GroupBy(op), AggregateState::GroupBy(state)) => op.push(queue, state, batch).await,
            (AggregateOp::Reduce(_), AggregateState::GroupBy(_)) | (AggregateOp::GroupBy(_), AggregateState::Reduce(_)) => {
                Err(other_state())
            }
        }
    }

    /// The rows that the joins of an aggregation over joins have kept and removed so far.
    pub fn joined_rows(&self, queue: &Queue, state: &AggregateState) -> BoxFuture<'static, kernels::Result<FusedJoinCounts>> {
        match (self, state) {
            (AggregateOp::Reduce(op), AggregateState::Reduce(state)) => op.joined_rows(queue, state).boxed(),
            (AggregateOp::GroupBy(op), AggregateState::GroupBy(state)) => op.joined_rows(queue, state).boxed(),
            (AggregateOp::Reduce(_), AggregateState::GroupBy(_)) | (AggregateOp::GroupBy(_), AggregateState::Reduce(_)) => {
                ready(Err(other_state())).boxed()
            }
        }
    }

    /// The groups.
    pub async fn finish(&self, queue: &Queue, state: AggregateState) -> kernels::Result<Vec<DeviceBatch>> {
        match (self, state) {
            (AggregateOp::Reduce(op), AggregateState::Reduce(state)) => Ok(vec![op.finish(queue, *state).await?]),
            (AggregateOp::GroupBy(op), AggregateState::GroupBy(state)) => op.finish(queue, *state).await,
            (AggregateOp::Reduce(_), AggregateState::GroupBy(_)) | (AggregateOp::GroupBy(_), AggregateState::Reduce(_)) => {
                Err(other_state())
            }
        }
    }

    pub(super) fn kernel_sources(&self) -> Vec<(String, String)> {
        match self {
            AggregateOp::Reduce(op) => op.kernel_source(),
            AggregateOp::GroupBy(op) => op.kernel_source(),
        }
    }

    pub(super) fn programs(&self) -> Vec<ProgramSource> {
        match self {
            AggregateOp::Reduce(op) => op.programs(),
            AggregateOp::GroupBy(op) => op.programs(),
        }
    }
}

/// The state of an [`AggregateOp`].
pub(crate) enum AggregateState {
    Reduce(Box<ReduceState>),
    GroupBy(Box<GroupByState>),
}

fn other_state() -> kernels::Error {
    kernels::Error::Internal("a state of another aggregation".to_string())
}

/// An aggregation whose kernels probe the last joins below in their own loop.
///
/// The tables of a run decide: a row must have one match at most.
#[derive(Debug)]
pub(crate) struct OverJoins {
    /// Over the joins' output.
    keys: Vec<(Expr, Field)>,
    aggregates: Vec<(Aggregate, Field)>,
    /// The joins of the stage below.
    pub joins: Arc<Joins>,
    /// The most likely joins before these, and the most likely aggregation.
    pub(super) chain: JoinChain,
    pub(super) likely: AggregateOp,
}

impl OverJoins {
    /// The aggregation over a stage of joins; `None` if its kernels cannot probe them.
    pub(super) fn of(stage: &Stage, keys: &[(Expr, Field)], aggregates: &[(Aggregate, Field)]) -> Result<Option<OverJoins>> {
        let Some(joins) = stage.joins() else { return Ok(None) };
        let ChainPart { input, joins: of_chain, outputs } = joins.plan.part.clone();
        let chain = JoinChain::before_aggregation(input, &of_chain, None, outputs, &joins.plan.options);
        let (chain, joined) = chain.map_err(kernel_error)?;
        let Some(joined) = joined else { return Ok(None) };
        let likely = aggregate(&joined, keys, aggregates, &joins.plan.options).map_err(kernel_error)?;
        let (keys, aggregates, joins) = (keys.to_vec(), aggregates.to_vec(), Arc::clone(joins));
        Ok(likely.map(|likely| OverJoins { keys, aggregates, joins, chain, likely }))
    }

    /// The aggregation over these joins; `None` if their rows must be written first, as with too
    /// many arguments for one kernel.
    pub fn aggregate(&self, joined: &FusedJoins) -> kernels::Result<Option<AggregateOp>> {
        aggregate(joined, &self.keys, &self.aggregates, &self.joins.plan.options)
    }
}

fn aggregate(
    joined: &FusedJoins,
    keys: &[(Expr, Field)],
    aggregates: &[(Aggregate, Field)],
    options: &Options,
) -> kernels::Result<Option<AggregateOp>> {
    let op = match keys.is_empty() {
        true => Reduce::over_joins(joined, aggregates, options.clone()).map(|op| op.map(Box::new).map(AggregateOp::Reduce)),
        false => {
            GroupBy::over_joins(joined, keys, aggregates, options.clone()).map(|op| op.map(Box::new).map(AggregateOp::GroupBy))
        }
    };
    match op {
        Err(kernels::Error::Unsupported(_)) => Ok(None),
        op => op,
    }
}
