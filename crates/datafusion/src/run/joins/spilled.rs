// SPDX-License-Identifier: Apache-2.0
//! Joins whose build sides do not fit device memory.
//!
//! A chain of joins is cut before such a join. The rows that the joins before it give are
//! partitioned as its build side is. Then [pairs of partitions](super::partitioned) are joined.

use std::collections::VecDeque;
use std::sync::Arc;

use columnar::{ColumnType, Layout};
use datafusion::common::{DataFusionError, Result, internal_datafusion_err};
use datafusion::physical_plan::metrics::Count;
use device::Queue;
use futures::FutureExt;
use futures::future::BoxFuture;
use kernels::ops::{Concat, HashPartition, JoinTable, ProbeSideFacts};

use super::collected::PartitionedSide;
use super::partitioned::{PairJoin, Pairs, PartitionPair, PartitionedJoin, first_level};
use super::probed;
use super::tables::{BuiltSide, BuiltSides, Tables};
use crate::error::op_error;
use crate::graph::{BuildSide, BuildSideJoin, ChainPlan, Side, Stage};
use crate::run::DeviceBatchStream;
use crate::run::partitions::{PartitionedInput, Partitioning};
use crate::run::state::Run;

/// The stage of joins with build sides on disk.
#[derive(Clone)]
pub(super) struct SpilledJoins {
    pub stage: Arc<Stage>,
    pub run: Arc<Run>,
    pub queue: Queue,
}

/// Both sides of a join, partitioned alike.
struct PartitionedSides {
    probe: Partitioning,
    build: Partitioning,
    pending: VecDeque<PartitionPair>,
    facts: ProbeSideFacts,
}

/// The work on a pair of partitions.
impl SpilledJoins {
    /// The rows that the joins of a plan make of `rows`.
    pub async fn joined(&self, built: BuiltSides, plan: &ChainPlan, rows: DeviceBatchStream) -> Result<DeviceBatchStream> {
        self.clone().through(plan.only(&built.numbers), built.sides, built.removed, rows).await
    }

    /// As [`joined`](Self::joined), for a plan of these sides alone.
    fn through(
        self,
        plan: ChainPlan,
        mut sides: Vec<BuiltSide>,
        removed: Vec<Count>,
        rows: DeviceBatchStream,
    ) -> BoxFuture<'static, Result<DeviceBatchStream>> {
        async move {
            let at = sides.iter().position(|side| matches!(side, BuiltSide::Spilled(_))).unwrap_or(sides.len());
            let mut rest = sides.split_off(at);
            let (spilled, mut rest) = match rest.is_empty() {
                true => (None, rest),
                false => (Some(rest.remove(0)), rest),
            };
            let Some(BuiltSide::Spilled(build)) = spilled else {
                return self.probed(plan, tables_of(sides), removed, rows);
            };
            let (before, after) = plan.cut(at).map_err(|error| self.failed(error))?;
            let (of_before, removed) = split_counters(&before, removed);
            let rows = self.probed(before, tables_of(sides), of_before, rows)?;
            let PartitionedSides { probe, build, pending, facts: _ } = self.partitioned(&after, *build, rows).await?;
            let next = rest.iter().position(|side| matches!(side, BuiltSide::Spilled(_)));
            let (plan, later) = match next {
                Some(next) => {
                    let (plan, later) = after.cut(next + 1).map_err(|error| self.failed(error))?;
                    (plan, Some((later, rest.split_off(next))))
                }
                None => (after, None),
            };
            let (removed, of_later) = split_counters(&plan, removed);
            let concat = self.concat(&plan)?;
            let pairs = Pairs::Chain { plan: Arc::new(plan), tables: tables_of(rest), removed };
            let join = PairJoin { joins: self.clone(), pairs, build, probe, concat };
            let rows = PartitionedJoin { join: Arc::new(join), pending }.rows();
            match later {
                Some((later, sides)) => self.through(later, sides, of_later, rows).await,
                None => Ok(rows),
            }
        }
        .boxed()
    }

    /// The rows of the build side of `join`, with the mark, for probe rows `rows`.
    pub async fn build_side(
        &self,
        join: &BuildSideJoin,
        build: PartitionedSide,
        rows: DeviceBatchStream,
    ) -> Result<DeviceBatchStream> {
        let (before, after) = join.plan().cut(0).map_err(|error| self.failed(error))?;
        let rows = self.probed(before, vec![], vec![], rows)?;
        let PartitionedSides { probe, build, pending, facts } = self.partitioned(&after, build, rows).await?;
        let concat = self.concat(&after)?;
        let behind = join.behind(after).ok_or_else(|| internal_datafusion_err!("{}: no join", self.stage.operator))?;
        let (joins, pairs) = (self.clone(), Pairs::BuildSide { join: Arc::new(behind), facts });
        let join = PairJoin { joins, pairs, build, probe, concat };
        Ok(PartitionedJoin { join: Arc::new(join), pending }.rows())
    }

    /// The rows that joins with these tables give.
    fn probed(
        &self,
        plan: ChainPlan,
        tables: Vec<Arc<JoinTable>>,
        removed: Vec<Count>,
        rows: DeviceBatchStream,
    ) -> Result<DeviceBatchStream> {
        let tables = self.tables(&plan, tables, removed);
        probed(&Arc::new(plan), &self.stage, &self.run, &self.queue, &tables, || Ok(rows))
    }

    pub fn tables(&self, plan: &ChainPlan, tables: Vec<Arc<JoinTable>>, removed: Vec<Count>) -> Arc<Tables> {
        let joins = plan.part.joins.clone();
        Arc::new(Tables { numbers: (0..joins.len()).collect(), joins, tables, removed })
    }

    /// How the probe side of the first join is partitioned.
    pub fn probe_partitioning(&self, plan: &ChainPlan) -> Result<Partitioning> {
        let (Some(side), Some(join)) = (first_side(plan), plan.part.joins.first()) else { return Err(self.without_join()) };
        let input = &plan.part.input;
        let op = HashPartition::of_probe_side(&side.build, Arc::clone(&input.schema), input.types.clone(), join);
        let op = op.map_err(|error| self.failed(error))?;
        let probe = Partitioning::of(op, &side.probe_checks, &self.stage, &self.run, &self.queue);
        probe.ok_or_else(|| internal_datafusion_err!("{}: a probe side of lists", self.stage.operator))
    }

    /// Partitions the probe side of the first join as its build side.
    async fn partitioned(&self, plan: &ChainPlan, build: PartitionedSide, rows: DeviceBatchStream) -> Result<PartitionedSides> {
        let probe = self.probe_partitioning(plan)?;
        let PartitionedInput { partitions: probe_partitions, has_null_keys } = probe.partitioned(rows, 0).await?;
        let has_rows = probe_partitions.iter().any(|partition| partition.rows > 0);
        let PartitionedSide { partitioning, partitions } = build;
        let level = plan.part.joins.first().map_or(0, first_level);
        let pairs = partitions.into_iter().zip(probe_partitions);
        let pending = pairs.map(|(build, probe)| PartitionPair { build, probe, level }).collect();
        Ok(PartitionedSides { probe, build: partitioning, pending, facts: ProbeSideFacts { has_rows, has_null_keys } })
    }

    /// Coalesces rows of the probe side, unless codes may not number the values of several
    /// dictionaries.
    pub fn concat(&self, plan: &ChainPlan) -> Result<Option<Concat>> {
        let (schema, types) = (Arc::clone(&plan.part.input.schema), plan.part.input.types.clone());
        let may_overflow = |ty: &ColumnType| match ty.layout {
            Layout::Dictionary { codes, .. } => codes.width() < size_of::<u32>(),
            _ => false,
        };
        if types.iter().any(may_overflow) {
            return Ok(None);
        }
        let concat = Concat::try_new_keeping_layouts(schema, types, plan.options.clone());
        concat.map(Some).map_err(|error| self.failed(error))
    }

    pub fn failed(&self, error: kernels::Error) -> DataFusionError {
        op_error(&self.stage.operator, error)
    }

    pub fn without_join(&self) -> DataFusionError {
        internal_datafusion_err!("{}: partitions without a join", self.stage.operator)
    }
}

/// The tables of sides in memory.
fn tables_of(sides: Vec<BuiltSide>) -> Vec<Arc<JoinTable>> {
    let tables = sides.into_iter().filter_map(|side| match side {
        BuiltSide::Table(table) => Some(table),
        BuiltSide::Spilled(_) => None,
    });
    tables.collect()
}

/// Counters of a plan's dynamic filters, and the others.
fn split_counters(plan: &ChainPlan, mut counters: Vec<Count>) -> (Vec<Count>, Vec<Count>) {
    let filters = plan.sides.iter().filter(|side| side.build().is_none()).count();
    let others = counters.split_off(filters.min(counters.len()));
    (counters, others)
}

pub(super) fn first_side(plan: &ChainPlan) -> Option<&BuildSide> {
    plan.sides.first().and_then(Side::build)
}
