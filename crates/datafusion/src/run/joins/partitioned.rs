// SPDX-License-Identifier: Apache-2.0
//! Joins of partitions.
//!
//! Each pair of partitions is joined in memory, by as many at once as fit. A partition that is too
//! large is partitioned again, by another hash. Rows of one key stay together, and are joined in
//! [blocks](super::blocks).

use std::collections::VecDeque;
use std::sync::Arc;

use columnar::DeviceBatch;
use datafusion::common::{DataFusionError, Result};
use datafusion::physical_plan::metrics::{Count, MetricBuilder};
use futures::{StreamExt, TryStreamExt, stream};
use kernels::ops::{Concat, Join, JoinKind, JoinTable, ProbeSideFacts};

use super::blocks::joined_in_blocks;
use super::build_side::visited;
use super::probed;
use super::spilled::{SpilledJoins, first_side};
use super::tables::{build_table, same_types};
use crate::graph::{BuildSide, BuildSideJoin, ChainPlan};
use crate::run::DeviceBatchStream;
use crate::run::coalesce::coalesce_small;
use crate::run::memory::{MemoryAttribution, free_bytes};
use crate::run::partitions::{Partition, Partitioning};

/// Most times that rows are partitioned again.
const MOST_LEVELS: u32 = 4;
/// Rows of a partition that is never partitioned again.
const FEWEST_ROWS: usize = 1 << 10;

pub(super) enum Pairs {
    /// Rows of the probe side go through these joins. The tables are those behind the first one.
    Chain { plan: Arc<ChainPlan>, tables: Vec<Arc<JoinTable>>, removed: Vec<Count> },
    /// Rows of the build side are given. `facts`: of the whole probe side.
    BuildSide { join: Arc<BuildSideJoin>, facts: ProbeSideFacts },
}

/// How a pair of partitions is joined.
pub(super) struct PairJoin {
    pub joins: SpilledJoins,
    pub pairs: Pairs,
    pub build: Partitioning,
    pub probe: Partitioning,
    /// Coalesces rows of the probe side.
    pub concat: Option<Concat>,
}

/// A join of partitions.
pub(super) struct PartitionedJoin {
    pub join: Arc<PairJoin>,
    pub pending: VecDeque<PartitionPair>,
}

/// Partitions of the same keys.
pub(super) struct PartitionPair {
    pub build: Partition,
    pub probe: Partition,
    /// How often its rows were partitioned again, or as often as they may be where no hash parts
    /// them.
    pub level: u32,
}

/// The level of the first partitions of a join. Without keys that read columns no hash parts them.
pub(super) fn first_level(join: &Join) -> u32 {
    let mut columns = vec![];
    join.keys.iter().for_each(|(probe, _)| probe.columns(&mut columns));
    if columns.is_empty() { MOST_LEVELS } else { 0 }
}

impl PartitionedJoin {
    /// The joined rows of all pairs.
    pub fn rows(self) -> DeviceBatchStream {
        let pairs = stream::try_unfold(self, |mut joins| async move {
            let Some(pair) = joins.next_pair().await? else { return Ok::<_, DataFusionError>(None) };
            Ok(Some((Arc::clone(&joins.join).joined(pair).await?, joins)))
        });
        pairs.try_flatten().boxed()
    }

    /// As many pairs as fit memory, as one.
    async fn next_pair(&mut self) -> Result<Option<PartitionPair>> {
        let kind = self.join.kind();
        let gives_probe_rows = kind.gives_unmatched_probe_rows();
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
        for (build, probe) in build.partitions.into_iter().zip(probe.partitions).rev() {
            // Another hash does not part the rows of one key either.
            let level = if build.rows == build_rows { MOST_LEVELS } else { level };
            self.pending.push_front(PartitionPair { build, probe, level });
        }
        Ok(())
    }
}

impl PairJoin {
    pub fn side(&self) -> Result<&BuildSide> {
        let side = match &self.pairs {
            Pairs::Chain { plan, .. } => first_side(plan),
            Pairs::BuildSide { join, .. } => Some(&join.build),
        };
        side.ok_or_else(|| self.joins.without_join())
    }

    pub fn kind(&self) -> JoinKind {
        let join = match &self.pairs {
            Pairs::Chain { plan, .. } => plan.part.joins.first(),
            Pairs::BuildSide { join, .. } => Some(&join.join),
        };
        join.map_or(JoinKind::Full, |join| join.kind)
    }

    pub fn free_bytes(&self) -> usize {
        free_bytes(&self.joins.queue)
    }

    /// Whether a table of so many build rows fits `budget` bytes.
    pub fn fits(&self, rows: usize, bytes: usize, budget: usize) -> Result<bool> {
        Ok(2 * bytes + self.side()?.build.table_bytes(rows) <= budget)
    }

    /// Rows of a batch of the probe side.
    fn rows_of_batch(&self) -> usize {
        match &self.pairs {
            Pairs::Chain { plan, .. } => self.joins.run.rows_of_batch(&plan.part.input.types),
            Pairs::BuildSide { join, .. } => self.joins.run.rows_of_batch(&join.input.types),
        }
    }

    /// The joined rows of a pair.
    async fn joined(self: Arc<PairJoin>, pair: PartitionPair) -> Result<DeviceBatchStream> {
        let PartitionPair { build, probe, level: _ } = pair;
        let fits = self.fits(build.rows, build.bytes, self.free_bytes())?;
        let build = self.build.read(build)?;
        if !fits {
            return Ok(joined_in_blocks(self, build, probe));
        }
        let memory = MemoryAttribution::new(&self.side()?.operator, "a partition of its build side");
        let build = memory.counted(build).try_collect().await;
        let joined = async { self.joined_rows(self.table(build?).await?, || self.probe_rows(probe)).await };
        joined.await.map_err(|error| memory.attributed(error))
    }

    /// A counter of blocks of the build side, among the operator's metrics.
    pub fn block_counter(&self) -> Count {
        MetricBuilder::new(&self.joins.stage.metrics.set()).counter("build_blocks", 0)
    }

    /// The table of rows of the build side.
    pub async fn table(&self, build: Vec<DeviceBatch>) -> Result<Arc<JoinTable>> {
        build_table(self.side()?, build, false, &self.joins.queue).await
    }

    /// The rows of a partition of the probe side.
    pub fn probe_rows(&self, probe: Partition) -> Result<DeviceBatchStream> {
        let SpilledJoins { stage, queue, .. } = &self.joins;
        let rows = self.probe.read(probe)?;
        Ok(match self.concat.clone() {
            Some(concat) => coalesce_small(rows, concat, self.rows_of_batch(), queue.clone(), stage.operator.clone()),
            None => rows,
        })
    }

    /// Joins a table of the build side with rows of the probe side. Those are opened if they can
    /// give a result.
    pub async fn joined_rows(
        &self,
        table: Arc<JoinTable>,
        probe: impl FnOnce() -> Result<DeviceBatchStream>,
    ) -> Result<DeviceBatchStream> {
        let SpilledJoins { stage, run, queue } = &self.joins;
        match &self.pairs {
            Pairs::Chain { plan, tables, removed } => {
                let tables = [table].into_iter().chain(tables.iter().cloned()).collect();
                let tables = self.joins.tables(plan, tables, removed.clone());
                probed(plan, stage, run, queue, &tables, probe)
            }
            Pairs::BuildSide { join, facts } => {
                let batches = visited(join, table, probe, *facts, &stage.operator, queue).await?;
                Ok(stream::iter(batches.into_iter().map(Ok)).boxed())
            }
        }
    }

    /// Rows of the probe side, as a partition.
    pub async fn stored(&self, rows: DeviceBatchStream) -> Result<Partition> {
        let input = self.probe.partitioned(rows, 0).await?;
        Ok(input.partitions.into_iter().fold(Partition::default(), Partition::with))
    }

    /// Rows of the probe side with a match in a table, or those without one: as `kind` says.
    pub fn filtered(&self, kind: JoinKind, table: Arc<JoinTable>, probe: Partition) -> Result<DeviceBatchStream> {
        let plan = self.chain()?.probe_rows(Some(kind));
        self.written(plan.map_err(|error| self.joins.failed(error))?, vec![table], probe)
    }

    /// The same join over probe rows in the layouts that [`filtered`](Self::filtered) gives, with
    /// the partition in these layouts.
    pub async fn with_written(self: Arc<PairJoin>, probe: Partition) -> Result<(Arc<PairJoin>, Partition)> {
        let plan = self.chain()?.probe_rows(None).map_err(|error| self.joins.failed(error))?;
        let types = plan.types.clone();
        if same_types(&types, &plan.part.input.types) {
            return Ok((self, probe));
        }
        let rows = self.written(plan, vec![], probe)?;
        let (plan, tables, removed) = match &self.pairs {
            Pairs::Chain { plan, tables, removed } => (plan, tables, removed),
            Pairs::BuildSide { .. } => return Err(self.joins.without_join()),
        };
        let plan = Arc::new(plan.over(types));
        let (joins, build) = (self.joins.clone(), self.build.clone());
        let (probe, concat) = (joins.probe_partitioning(&plan)?, joins.concat(&plan)?);
        let pairs = Pairs::Chain { plan, tables: tables.clone(), removed: removed.clone() };
        let join = Arc::new(PairJoin { joins, pairs, build, probe, concat });
        let probe = join.stored(rows).await?;
        Ok((join, probe))
    }

    /// The rows that a plan writes of those of a partition.
    fn written(&self, plan: ChainPlan, tables: Vec<Arc<JoinTable>>, probe: Partition) -> Result<DeviceBatchStream> {
        let SpilledJoins { stage, run, queue } = &self.joins;
        let tables = self.joins.tables(&plan, tables, vec![]);
        probed(&Arc::new(plan), stage, run, queue, &tables, || self.probe_rows(probe))
    }

    fn chain(&self) -> Result<&ChainPlan> {
        match &self.pairs {
            Pairs::Chain { plan, .. } => Ok(plan),
            Pairs::BuildSide { .. } => Err(self.joins.without_join()),
        }
    }
}
