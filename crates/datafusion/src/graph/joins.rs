// SPDX-License-Identifier: Apache-2.0
//! Joins of a stage: their build sides, and the rows that probe them.

use std::sync::Arc;

use arrow::datatypes::{DataType, Field};
use datafusion::physical_expr::PhysicalExpr;
use kernels::expr::Expr as KernelExpr;
use kernels::ops::{Concat, Input, Join, JoinBuild, JoinChain, Options, VisitedBitmap};

use super::stage::Stage;
use crate::exec::{OperatorMetrics, ScalarSubquery};

/// Joins that rows go through one after another.
#[derive(Debug, Clone)]
pub(crate) struct Joins {
    pub probe: Arc<Stage>,
    pub sides: Vec<Side>,
    pub joins: Vec<Join>,
    /// The probe side. Its filter is over the columns of all sides.
    pub input: Input,
    pub outputs: Vec<(KernelExpr, Field)>,
    /// Filters over the columns of all sides, for messages.
    pub predicates: Vec<Arc<dyn PhysicalExpr>>,
    /// Computed outputs over the columns of all sides, for messages.
    pub computed: Vec<Arc<dyn PhysicalExpr>>,
    pub options: Options,
    /// The most likely chain of kernels. The chain of a run depends on its tables.
    pub chain: JoinChain,
    /// Coalesces small batches for a launch-heavy parent.
    pub coalescer: Option<Concat>,
}

impl Joins {
    pub fn builds(&self) -> impl Iterator<Item = &BuildSide> {
        self.sides.iter().filter_map(Side::build)
    }

    /// Number of pipelines that launch kernels where rows go through `chain`.
    pub(super) fn pipelines(&self, chain: &JoinChain) -> usize {
        let builds = self.builds().map(|build| build.stage.pipelines() + 1);
        self.probe.pipelines() + chain.pipelines() + builds.sum::<usize>()
    }

    /// Names and sources of the kernels where rows go through `chain`, in the order in which they
    /// run.
    pub(super) fn kernel_sources(&self, chain: &JoinChain) -> Vec<(String, String)> {
        let of_builds = self.builds().flat_map(BuildSide::kernel_sources);
        of_builds.chain(self.probe.kernel_sources()).chain(chain.kernel_source()).collect()
    }
}

/// A join that gives rows of its build side alone.
#[derive(Debug)]
pub(crate) struct BuildSideJoin {
    pub probe: Arc<Stage>,
    pub build: BuildSide,
    pub join: Join,
    pub input: Input,
    pub options: Options,
    /// The most likely kernels of the visited bitmap.
    pub visited: VisitedBitmap,
    /// Filters of the probe side, for messages.
    pub predicates: Vec<Arc<dyn PhysicalExpr>>,
}

/// The table that a join of a chain probes.
#[derive(Debug, Clone)]
pub(crate) enum Side {
    /// The stage builds the table.
    Build(Box<BuildSide>),
    /// A dynamic filter: a join further up has built the table, and these keys probe it.
    Filter { number: usize, metrics: OperatorMetrics, keys: Vec<Arc<dyn PhysicalExpr>> },
}

impl Side {
    fn build(&self) -> Option<&BuildSide> {
        match self {
            Side::Build(build) => Some(build.as_ref()),
            Side::Filter { .. } => None,
        }
    }

    /// The keys of the probe side.
    pub fn probe_checks(&self) -> &[Arc<dyn PhysicalExpr>] {
        match self {
            Side::Build(build) => &build.probe_checks,
            Side::Filter { keys, .. } => keys,
        }
    }

    /// The condition beside the equal keys.
    pub fn condition(&self) -> Option<&Arc<dyn PhysicalExpr>> {
        self.build()?.condition.as_ref()
    }
}

/// The build side of a join.
#[derive(Debug, Clone)]
pub(crate) struct BuildSide {
    /// Name of the join, for messages.
    pub operator: String,
    pub stage: Arc<Stage>,
    pub concat: Concat,
    pub build: JoinBuild,
    /// The keys, for messages.
    pub checks: Vec<Arc<dyn PhysicalExpr>>,
    /// The probe side's keys over the columns before the join, for messages.
    pub probe_checks: Vec<Arc<dyn PhysicalExpr>>,
    /// The condition beside the equal keys, for messages.
    pub condition: Option<Arc<dyn PhysicalExpr>>,
    pub rows: BuildRows,
    /// Number of the dynamic filters that probe the table.
    pub number: Option<usize>,
    /// Dynamic filter that pushes key ranges into host scans.
    pub scan_filter: Option<ScanFilter>,
    /// Whether rows probe a Bloom filter of the keys before the table. An operator below drops
    /// rows, so many probe rows have no match.
    pub probe_bloom_first: bool,
}

/// The rows of a build side.
#[derive(Debug, Clone)]
pub(crate) enum BuildRows {
    /// All rows of the stage.
    All,
    /// A scalar subquery: one row at most.
    ScalarSubquery(ScalarSide),
}

/// A scalar subquery, and the metrics of the join that brings its value.
#[derive(Debug, Clone)]
pub(crate) struct ScalarSide {
    pub subquery: ScalarSubquery,
    pub metrics: OperatorMetrics,
}

/// Dynamic filter that pushes the key ranges of a build side into host scans.
#[derive(Debug, Clone)]
pub(crate) struct ScanFilter {
    /// A `DynamicFilterPhysicalExpr`.
    pub filter: Arc<dyn PhysicalExpr>,
    /// The keys over the scan's columns.
    pub keys: Vec<Arc<dyn PhysicalExpr>>,
    pub types: Vec<DataType>,
}

impl BuildSide {
    pub fn scalar(&self) -> Option<&ScalarSide> {
        match &self.rows {
            BuildRows::ScalarSubquery(scalar) => Some(scalar),
            BuildRows::All => None,
        }
    }

    pub(super) fn kernel_sources(&self) -> Vec<(String, String)> {
        self.stage.kernel_sources().into_iter().chain(self.build.kernel_source()).collect()
    }
}
