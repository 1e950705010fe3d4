// SPDX-License-Identifier: Apache-2.0
//! Aggregations, with and without keys, of a stage's rows or of rows that they take through joins themselves.

use arrow::datatypes::Field;
use columnar::ColumnType;
use datafusion::common::Result;
use kernels::expr::{Aggregate, Expr};
use kernels::ops::{FusedJoins, GroupBy, Input, JoinChain, Options, Reduce};

use super::pipeline::kernel_error;
use super::{Stage, StageKind};

/// An aggregation: to one row, or to one for each set of keys.
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
        Ok(match keys.is_empty() {
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

    pub(super) fn kernel_source(&self) -> Vec<(String, String)> {
        match self {
            AggregateOp::Reduce(op) => op.kernel_source(),
            AggregateOp::GroupBy(op) => op.kernel_source(),
        }
    }
}

/// An aggregation whose rows go through the last of the joins below within its own loop, where these turn out to give a row
/// one match at most.
#[derive(Debug)]
pub(crate) struct OverJoins {
    /// Over the joins' output.
    keys: Vec<(Expr, Field)>,
    aggregates: Vec<(Aggregate, Field)>,
    /// The joins before these, and the aggregation's kernels, as they most often run.
    pub(super) chain: JoinChain,
    pub(super) kernel_texts: Vec<(String, String)>,
}

impl OverJoins {
    /// The aggregation of a stage's rows, if that is one of joins that it can go through.
    pub(super) fn of(stage: &Stage, keys: &[(Expr, Field)], aggregates: &[(Aggregate, Field)]) -> Result<Option<OverJoins>> {
        let StageKind::Join(joins) = &stage.kind else { return Ok(None) };
        let (input, outputs) = (joins.input.clone(), joins.outputs.clone());
        let chain = JoinChain::before_aggregation(input, &joins.joins, None, outputs, &joins.options);
        let (chain, joined) = chain.map_err(kernel_error)?;
        let over = OverJoins { keys: keys.to_vec(), aggregates: aggregates.to_vec(), chain, kernel_texts: vec![] };
        let op = joined.map(|joined| over.aggregate(&joined, &joins.options)).transpose().map_err(kernel_error)?.flatten();
        Ok(op.map(|op| OverJoins { kernel_texts: op.kernel_source(), ..over }))
    }

    /// The aggregation over these joins; `None` where their rows had better be written, as where arguments of both are too many
    /// for one kernel.
    pub fn aggregate(&self, joined: &FusedJoins, options: &Options) -> kernels::Result<Option<AggregateOp>> {
        let op = match self.keys.is_empty() {
            true => {
                Reduce::over_joins(joined, &self.aggregates, options.clone()).map(|op| op.map(Box::new).map(AggregateOp::Reduce))
            }
            false => GroupBy::over_joins(joined, &self.keys, &self.aggregates, options.clone())
                .map(|op| op.map(Box::new).map(AggregateOp::GroupBy)),
        };
        match op {
            Err(kernels::Error::Unsupported(_)) => Ok(None),
            op => op,
        }
    }
}
