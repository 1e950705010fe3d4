// SPDX-License-Identifier: Apache-2.0
//! Joins of a stage: their build sides, and the rows that probe them.

use std::sync::Arc;

use arrow::datatypes::DataType;
use columnar::{ColumnType, Layout};
use datafusion::common::tree_node::{Transformed, TreeNode};
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_expr::expressions::Column;
use datafusion::physical_expr::utils::collect_columns;
use kernels::expr::Expr;
use kernels::ops::{ChainPart, Concat, CutChain, Input, Join, JoinBuild, JoinChain, JoinKind, Options, VisitedBitmap};

use super::stage::Stage;
use crate::exec::{OperatorMetrics, ScalarSubquery};

/// Joins that rows go through one after another.
#[derive(Debug, Clone)]
pub(crate) struct Joins {
    pub probe: Arc<Stage>,
    pub plan: Arc<ChainPlan>,
    /// The most likely chain of kernels. The chain of a run depends on its tables.
    pub chain: JoinChain,
    /// Coalesces small batches for a launch-heavy parent.
    pub coalescer: Option<Concat>,
}

/// The joins of a chain with their build sides.
#[derive(Debug, Clone)]
pub(crate) struct ChainPlan {
    pub part: ChainPart,
    /// The side of each join.
    pub sides: Vec<Side>,
    /// Filters over the columns of all sides, for messages.
    pub predicates: Vec<Arc<dyn PhysicalExpr>>,
    /// Computed outputs over the columns of all sides, for messages.
    pub computed: Vec<Arc<dyn PhysicalExpr>>,
    /// Types and layouts of the result.
    pub types: Vec<ColumnType>,
    pub options: Options,
}

impl Joins {
    pub fn builds(&self) -> impl Iterator<Item = &BuildSide> {
        self.plan.builds()
    }

    /// Number of kernel-launching pipelines where rows go through `chain`.
    pub(super) fn pipelines(&self, chain: &JoinChain) -> usize {
        let builds = self.builds().map(|build| build.stage.pipelines() + 1);
        self.probe.pipelines() + chain.pipelines() + builds.sum::<usize>()
    }

    /// Names and sources of the kernels where rows go through `chain`, in launch order.
    pub(super) fn kernel_sources(&self, chain: &JoinChain) -> Vec<(String, String)> {
        let of_builds = self.builds().flat_map(BuildSide::kernel_sources);
        of_builds.chain(self.probe.kernel_sources()).chain(chain.kernel_source()).collect()
    }
}

impl ChainPlan {
    pub fn builds(&self) -> impl Iterator<Item = &BuildSide> {
        self.sides.iter().filter_map(Side::build)
    }

    /// Whether rows between two joins can be stored: no column has lists.
    pub fn may_store(&self) -> bool {
        let of_joins = self.part.joins.iter().flat_map(|join| &join.types);
        !self.part.input.types.iter().chain(of_joins).any(|ty| matches!(ty.layout, Layout::List(_)))
    }

    /// The joins before the one with the number `at`, and the others, over the rows that these
    /// give.
    pub fn cut(&self, at: usize) -> kernels::Result<(ChainPlan, ChainPlan)> {
        let (before, after) = self.sides.split_at(at.min(self.sides.len()));
        let of_joins = self.part.joins.iter().take(at).map(|join| join.fields().len()).sum::<usize>();
        let end = self.part.input.schema.fields().len() + of_joins;
        let reads_after = |expr: &&Arc<dyn PhysicalExpr>| collect_columns(expr).iter().any(|column| column.index() >= end);
        // The part before applies the other filters.
        let filters = self.predicates.iter().filter(reads_after);
        let checks = after.iter().flat_map(|side| side.probe_checks().iter().chain(side.condition()));
        let checks = checks.chain(filters).chain(&self.computed);
        let columns = checks.flat_map(collect_columns).map(|column| column.index()).collect::<Vec<_>>();
        let cut = self.part.cut(at, &columns, &self.options)?;
        let after = ChainPlan {
            sides: after.iter().map(|side| side.behind(&cut)).collect(),
            predicates: behind(&self.predicates, &cut),
            computed: behind(&self.computed, &cut),
            types: self.types.clone(),
            options: self.options.clone(),
            part: cut.after,
        };
        let before = ChainPlan {
            part: cut.before,
            sides: before.to_vec(),
            predicates: self.predicates.clone(),
            computed: vec![],
            types: after.part.input.types.clone(),
            options: self.options.clone(),
        };
        Ok((before, after))
    }

    /// The plan with these joins alone, by number; the others add no columns.
    pub fn only(&self, numbers: &[usize]) -> ChainPlan {
        let joins = numbers.iter().filter_map(|number| self.part.joins.get(*number).cloned());
        ChainPlan {
            part: ChainPart { joins: joins.collect(), ..self.part.clone() },
            sides: numbers.iter().filter_map(|number| self.sides.get(*number).cloned()).collect(),
            ..self.clone()
        }
    }

    /// The probe rows that the first join would give as `kind`, or all of them. Filters and other
    /// joins are left out. The rows are written, so that their layouts may be others.
    ///
    /// # Errors
    /// As [`JoinChain::try_new`].
    pub fn probe_rows(&self, kind: Option<JoinKind>) -> kernels::Result<ChainPlan> {
        let input = Input { filter: None, ..self.part.input.clone() };
        let fields = input.schema.fields().iter().enumerate();
        let outputs = fields.map(|(index, field)| (Expr::Column(index), field.as_ref().clone())).collect();
        let first = |kind| self.part.joins.first().map(|join| Join { kind, ..join.clone() });
        let joins = first(kind.unwrap_or(JoinKind::RightSemi)).into_iter().collect();
        let written = ChainPart { input, joins, outputs };
        let types = written.chain(None, &self.options)?.output_types().to_vec();
        let number = usize::from(kind.is_some());
        Ok(ChainPlan {
            types,
            part: ChainPart { joins: written.joins.iter().take(number).cloned().collect(), ..written },
            sides: self.sides.iter().take(number).cloned().collect(),
            predicates: vec![],
            computed: vec![],
            options: self.options.clone(),
        })
    }

    /// The plan over probe rows with other layouts.
    pub fn over(&self, types: Vec<ColumnType>) -> ChainPlan {
        let mut plan = self.clone();
        plan.part.input.types = types;
        plan
    }
}

/// Expressions over the columns behind a cut, without those of columns that are left behind.
fn behind(exprs: &[Arc<dyn PhysicalExpr>], cut: &CutChain) -> Vec<Arc<dyn PhysicalExpr>> {
    exprs.iter().filter_map(|expr| expr_behind(expr, cut)).collect()
}

fn expr_behind(expr: &Arc<dyn PhysicalExpr>, cut: &CutChain) -> Option<Arc<dyn PhysicalExpr>> {
    let mut is_kept = true;
    let moved = Arc::clone(expr).transform_up(|node| {
        let Some(column) = node.downcast_ref::<Column>() else { return Ok(Transformed::no(node)) };
        let moved = cut.position(column.index()).map(|position| Arc::new(Column::new(column.name(), position)) as _);
        is_kept &= moved.is_some();
        Ok(Transformed::yes(moved.unwrap_or(node)))
    });
    moved.ok().map(|moved| moved.data).filter(|_| is_kept)
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

impl BuildSideJoin {
    /// The join as a chain that gives nothing.
    pub fn plan(&self) -> ChainPlan {
        let part = ChainPart { input: self.input.clone(), joins: vec![self.join.clone()], outputs: vec![] };
        ChainPlan {
            part,
            sides: vec![Side::Build(Box::new(self.build.clone()))],
            predicates: self.predicates.clone(),
            computed: vec![],
            types: vec![],
            options: self.options.clone(),
        }
    }

    /// The join over the rows behind a cut of its [`plan`](Self::plan).
    pub fn behind(&self, plan: ChainPlan) -> Option<BuildSideJoin> {
        let ChainPlan { part, mut sides, predicates, computed: _, types: _, options } = plan;
        let build = match sides.pop()? {
            Side::Build(build) => build,
            Side::Filter { .. } => return None,
        };
        let (probe, visited, input) = (Arc::clone(&self.probe), self.visited.clone(), part.input);
        let join = part.joins.into_iter().next()?;
        Some(BuildSideJoin { probe, build: *build, join, input, options, visited, predicates })
    }
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
    pub fn build(&self) -> Option<&BuildSide> {
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

    /// The side of a join behind a cut.
    fn behind(&self, cut: &CutChain) -> Side {
        match self {
            Side::Build(build) => Side::Build(Box::new(BuildSide {
                probe_checks: behind(&build.probe_checks, cut),
                condition: build.condition.as_ref().and_then(|condition| expr_behind(condition, cut)),
                ..build.as_ref().clone()
            })),
            Side::Filter { number, metrics, keys } => {
                Side::Filter { number: *number, metrics: metrics.clone(), keys: behind(keys, cut) }
            }
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
    /// About the bytes of all rows read by the stage; `None` if they are not known.
    pub input_bytes: Option<usize>,
    pub concat: Concat,
    pub build: JoinBuild,
    /// The keys, for messages.
    pub checks: Vec<Arc<dyn PhysicalExpr>>,
    /// The probe side's keys over the columns before the join, for messages.
    pub probe_checks: Vec<Arc<dyn PhysicalExpr>>,
    /// The condition beside the equal keys, for messages.
    pub condition: Option<Arc<dyn PhysicalExpr>>,
    pub rows: BuildRows,
    /// Whether the plan counts on the order of the probe side. Then rows of the build side stay in
    /// memory: partitions would change the order.
    pub keeps_order: bool,
    pub filters: BuildFilters,
    /// Whether rows probe a Bloom filter of the keys before the table. An operator below drops
    /// rows, so many probe rows have no match.
    pub probe_bloom_first: bool,
}

/// The dynamic filters that a build side gives.
#[derive(Debug, Clone)]
pub(crate) struct BuildFilters {
    /// Number of those that probe the table.
    pub number: Option<usize>,
    /// The one that pushes key ranges into host scans.
    pub scan: Option<ScanFilter>,
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
