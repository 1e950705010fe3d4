// SPDX-License-Identifier: Apache-2.0
//! Joins whose build sides do not fit device memory.
//!
//! A chain of joins is cut before such a join. The rows that the joins before it give are
//! partitioned as its build side is. Then each pair of partitions is joined in memory, by as many
//! at once as fit. A partition that is too large is partitioned again, by another hash. Rows of one
//! key stay together; blocks of them are joined one after another, if the join is an inner one.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;

use columnar::{ColumnType, DeviceBatch, Layout};
use datafusion::common::{DataFusionError, Result, internal_datafusion_err};
use datafusion::physical_plan::metrics::Count;
use device::Queue;
use futures::future::BoxFuture;
use futures::{FutureExt, StreamExt, TryStreamExt, stream};
use kernels::ops::{Concat, HashPartition, JoinKind, JoinTable};

use super::build_side::visited;
use super::collected::PartitionedSide;
use super::probed;
use super::tables::{BuiltSide, BuiltSides, Tables, build_table};
use crate::error::op_error;
use crate::graph::{BuildSide, BuildSideJoin, ChainPlan, Side, Stage};
use crate::run::DeviceBatchStream;
use crate::run::coalesce::coalesce_small;
use crate::run::memory::{MemoryAttribution, free_bytes};
use crate::run::partitions::{Partition, Partitioning};
use crate::run::state::Run;

/// Most times that rows are partitioned again.
const MOST_LEVELS: u32 = 4;
/// Rows of a partition that is never partitioned again.
const FEWEST_ROWS: usize = 1 << 10;

/// The stage of joins with build sides on disk.
#[derive(Clone)]
pub(super) struct SpilledJoins {
    pub stage: Arc<Stage>,
    pub run: Arc<Run>,
    pub queue: Queue,
}

/// What is done with a pair of partitions.
enum Pairs {
    /// Rows of the probe side go through these joins. The tables are those behind the first one.
    Chain { plan: Arc<ChainPlan>, tables: Vec<Arc<JoinTable>>, removed: Vec<Count> },
    /// Rows of the build side are given.
    BuildSide(Arc<BuildSideJoin>),
}

/// How a pair of partitions is joined.
struct PairJoin {
    joins: SpilledJoins,
    pairs: Pairs,
    build: Partitioning,
    probe: Partitioning,
    /// Coalesces rows of the probe side.
    concat: Option<Concat>,
}

/// A join of partitions.
struct PartitionedJoin {
    join: Arc<PairJoin>,
    pending: VecDeque<PartitionPair>,
}

/// Partitions of the same keys.
struct PartitionPair {
    build: Partition,
    probe: Partition,
    /// How often its rows were partitioned again.
    level: u32,
}

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
            let (probe, build, pending) = self.partitioned(&after, *build, rows).await?;
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
        let (probe, build, pending) = self.partitioned(&after, build, rows).await?;
        let concat = self.concat(&after)?;
        let behind = join.behind(after).ok_or_else(|| internal_datafusion_err!("{}: no join", self.stage.operator))?;
        let (joins, pairs) = (self.clone(), Pairs::BuildSide(Arc::new(behind)));
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

    fn tables(&self, plan: &ChainPlan, tables: Vec<Arc<JoinTable>>, removed: Vec<Count>) -> Arc<Tables> {
        let joins = plan.part.joins.clone();
        Arc::new(Tables { numbers: (0..joins.len()).collect(), joins, tables, removed })
    }

    /// Partitions the probe side of the first join as its build side. Returns how both sides are
    /// partitioned, the probe side first.
    async fn partitioned(
        &self,
        plan: &ChainPlan,
        build: PartitionedSide,
        rows: DeviceBatchStream,
    ) -> Result<(Partitioning, Partitioning, VecDeque<PartitionPair>)> {
        let (Some(side), Some(join)) = (first_side(plan), plan.part.joins.first()) else { return Err(self.without_join()) };
        let input = &plan.part.input;
        let op = HashPartition::of_probe_side(&side.build, Arc::clone(&input.schema), input.types.clone(), join);
        let op = op.map_err(|error| self.failed(error))?;
        let probe = Partitioning::of(op, &side.probe_checks, &self.stage, &self.run, &self.queue);
        let probe = probe.ok_or_else(|| internal_datafusion_err!("{}: a probe side of lists", self.stage.operator))?;
        let probe_partitions = probe.partitioned(rows, 0).await?;
        let PartitionedSide { partitioning, partitions } = build;
        let pairs = partitions.into_iter().zip(probe_partitions);
        let pending = pairs.map(|(build, probe)| PartitionPair { build, probe, level: 0 }).collect();
        Ok((probe, partitioning, pending))
    }

    /// Coalesces rows of the probe side, unless codes may not number the values of several
    /// dictionaries.
    fn concat(&self, plan: &ChainPlan) -> Result<Option<Concat>> {
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

    fn failed(&self, error: kernels::Error) -> DataFusionError {
        op_error(&self.stage.operator, error)
    }

    fn without_join(&self) -> DataFusionError {
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

fn first_side(plan: &ChainPlan) -> Option<&BuildSide> {
    plan.sides.first().and_then(Side::build)
}

impl PartitionedJoin {
    /// The joined rows of all pairs.
    fn rows(self) -> DeviceBatchStream {
        let pairs = stream::try_unfold(self, |mut joins| async move {
            let Some(pair) = joins.next_pair().await? else { return Ok::<_, DataFusionError>(None) };
            Ok(Some((Arc::clone(&joins.join).joined(pair).await?, joins)))
        });
        pairs.try_flatten().boxed()
    }

    /// As many pairs as fit memory, as one.
    async fn next_pair(&mut self) -> Result<Option<PartitionPair>> {
        let kind = self.join.kind();
        let gives_probe_rows = kind.keeps_unmatched_probe_rows() || kind == JoinKind::RightAnti;
        let may_give =
            |pair: &PartitionPair| (pair.build.rows > 0 || gives_probe_rows) && (pair.probe.rows > 0 || kind.visits_build_rows());
        self.pending.retain(may_give);
        while let Some(mut pair) = self.pending.pop_front() {
            let free = self.join.free_bytes();
            let may_split = pair.level < MOST_LEVELS && pair.build.rows > FEWEST_ROWS;
            if may_split && !self.join.fits(pair.build.rows, pair.build.bytes, free / 4 * 3)? {
                self.split(pair).await?;
                self.pending.retain(may_give);
                continue;
            }
            while let Some(next) = self.pending.front() {
                let (rows, bytes) = (pair.build.rows + next.build.rows, pair.build.bytes + next.build.bytes);
                if !self.join.fits(rows, bytes, free / 2)? {
                    break;
                }
                let Some(next) = self.pending.pop_front() else { break };
                let (build, probe) = (pair.build.with(next.build), pair.probe.with(next.probe));
                pair = PartitionPair { build, probe, level: pair.level };
            }
            return Ok(Some(pair));
        }
        Ok(None)
    }

    /// Partitions a pair again.
    async fn split(&mut self, pair: PartitionPair) -> Result<()> {
        let level = pair.level + 1;
        let build_rows = pair.build.rows;
        let build = self.join.build.partitioned(self.join.build.read(pair.build)?, level).await?;
        let probe = self.join.probe.partitioned(self.join.probe.read(pair.probe)?, level).await?;
        for (build, probe) in build.into_iter().zip(probe).rev() {
            // Another hash does not part the rows of one key either.
            let level = if build.rows == build_rows { MOST_LEVELS } else { level };
            self.pending.push_front(PartitionPair { build, probe, level });
        }
        Ok(())
    }
}

impl PairJoin {
    fn side(&self) -> Result<&BuildSide> {
        let side = match &self.pairs {
            Pairs::Chain { plan, .. } => first_side(plan),
            Pairs::BuildSide(join) => Some(&join.build),
        };
        side.ok_or_else(|| self.joins.without_join())
    }

    fn kind(&self) -> JoinKind {
        let join = match &self.pairs {
            Pairs::Chain { plan, .. } => plan.part.joins.first(),
            Pairs::BuildSide(join) => Some(&join.join),
        };
        join.map_or(JoinKind::Full, |join| join.kind)
    }

    fn free_bytes(&self) -> usize {
        free_bytes(&self.joins.queue)
    }

    /// Whether a table of so many build rows fits `budget` bytes.
    fn fits(&self, rows: usize, bytes: usize, budget: usize) -> Result<bool> {
        Ok(2 * bytes + self.side()?.build.table_bytes(rows) <= budget)
    }

    /// Rows of a batch of the probe side.
    fn rows_of_batch(&self) -> usize {
        match &self.pairs {
            Pairs::Chain { plan, .. } => self.joins.run.rows_of_batch(&plan.part.input.types),
            Pairs::BuildSide(join) => self.joins.run.rows_of_batch(&join.input.types),
        }
    }

    /// The joined rows of a pair.
    async fn joined(self: Arc<PairJoin>, pair: PartitionPair) -> Result<DeviceBatchStream> {
        let PartitionPair { build, probe, level: _ } = pair;
        let fits = self.fits(build.rows, build.bytes, self.free_bytes())?;
        let build = self.build.read(build)?;
        if !fits && self.kind() == JoinKind::Inner {
            return Ok(self.joined_in_blocks(build, probe));
        }
        let memory = MemoryAttribution::new(&self.side()?.operator, "a partition of its build side");
        let build = memory.counted(build).try_collect().await;
        let joined = async { self.joined_rows(build?, probe).await };
        joined.await.map_err(|error| memory.attributed(error))
    }

    /// The rows of an inner join, by blocks of the build side. Each reads the probe side.
    fn joined_in_blocks(self: Arc<PairJoin>, build: DeviceBatchStream, probe: Partition) -> DeviceBatchStream {
        let blocks = stream::try_unfold((self, build.peekable(), probe), |(join, mut build, probe)| async move {
            let most = join.free_bytes() / 2;
            let (mut block, mut rows, mut bytes) = (vec![], 0, 0);
            while let Some(next) = Pin::new(&mut build).peek().await {
                if let Ok(next) = next {
                    (rows, bytes) = (rows + next.num_rows(), bytes + next.row_bytes());
                }
                if !block.is_empty() && !join.fits(rows, bytes, most)? {
                    break;
                }
                block.extend(build.try_next().await?);
            }
            if block.is_empty() {
                return Ok::<_, DataFusionError>(None);
            }
            let rows = join.joined_rows(block, probe.clone()).await?;
            Ok(Some((rows, (join, build, probe))))
        });
        blocks.try_flatten().boxed()
    }

    /// Joins rows of the build side with those of a partition.
    async fn joined_rows(&self, build: Vec<DeviceBatch>, probe: Partition) -> Result<DeviceBatchStream> {
        let SpilledJoins { stage, run, queue } = &self.joins;
        let table = build_table(self.side()?, build, false, queue).await?;
        let rows = || {
            let rows = self.probe.read(probe)?;
            Ok(match self.concat.clone() {
                Some(concat) => coalesce_small(rows, concat, self.rows_of_batch(), queue.clone(), stage.operator.clone()),
                None => rows,
            })
        };
        match &self.pairs {
            Pairs::Chain { plan, tables, removed } => {
                let tables = [table].into_iter().chain(tables.iter().cloned()).collect();
                let tables = self.joins.tables(plan, tables, removed.clone());
                probed(plan, stage, run, queue, &tables, rows)
            }
            Pairs::BuildSide(join) => {
                let batches = visited(join, table, rows, &stage.operator, queue).await?;
                Ok(stream::iter(batches.into_iter().map(Ok)).boxed())
            }
        }
    }
}
