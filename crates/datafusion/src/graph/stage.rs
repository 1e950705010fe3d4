// SPDX-License-Identifier: Apache-2.0
//! Stages: the steps of an offloaded subplan that give device batches.

use std::sync::Arc;

use arrow::datatypes::SchemaRef;
use columnar::ColumnType;
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_plan::ExecutionPlan;
use kernels::ops::{Concat, Decode, NullStripping, Select, Sort, UnifyLayouts, Unnest, Window};

use super::aggregate::{AggregateOp, OverJoins};
use super::joins::{BuildSideJoin, Joins, ScalarSide, Side};
use crate::exchange::Source;
use crate::exec::{GroupingSet, OperatorMetrics, Sharing};
use crate::futhark::{DeviceAggregate, DeviceCall};
use crate::table::Snapshot;

/// A step of an offloaded subplan that gives device batches.
#[derive(Debug)]
pub(crate) struct Stage {
    pub kind: StageKind,
    /// Logical schema of the batches.
    pub schema: SchemaRef,
    /// Physical types of the batches' columns.
    pub types: Vec<ColumnType>,
    /// Number of output partitions.
    pub partitions: usize,
    /// Name of the operator, for messages.
    pub operator: String,
    /// Metrics of the operator.
    pub metrics: OperatorMetrics,
}

/// Where the batches of a stage come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Origin {
    /// From outside of the device's own memory.
    External,
    /// From a resident table; there is nothing to wait for.
    Resident,
    /// All rows of the stage below as one batch, on behalf of the reader.
    Coalesced,
    /// From stages below, as its operator passes or computes them.
    Operator,
}

/// The expressions that the host evaluates for a failed row.
pub(crate) type Checks = Arc<[Arc<dyn PhysicalExpr>]>;

/// The work of a stage.
#[derive(Debug)]
pub(crate) enum StageKind {
    /// Uploads batches of a host plan.
    Upload { input: Arc<dyn ExecutionPlan> },
    /// Reads columns of a resident table.
    Scan { snapshot: Arc<Snapshot>, columns: Vec<usize> },
    /// Imports columns of device arrays that another library produces.
    Stream { source: Arc<Source>, columns: Vec<usize>, decode: Arc<Decode> },
    /// Picks and renames columns; computes nothing.
    Columns { input: Arc<Stage>, columns: Vec<usize> },
    /// Filters, and computes columns.
    Select { input: Arc<Stage>, op: Arc<Select>, checks: Checks },
    /// Aggregates.
    Aggregate {
        input: Arc<Stage>,
        op: Arc<AggregateOp>,
        checks: Checks,
        lists: Vec<ListOutput>,
        over_joins: Option<Arc<OverJoins>>,
    },
    /// Calls libraries for each batch; results follow the input's columns.
    LibraryCalls { input: Arc<Stage>, calls: Arc<[LibraryCall]>, checks: Checks },
    /// Calls libraries once for all rows; gives one row.
    LibraryAggregates { input: Arc<Stage>, aggregates: Arc<[LibraryAggregate]>, checks: Checks },
    /// Gives the elements of lists as rows.
    Unnest { input: Arc<Stage>, op: Arc<Unnest> },
    /// Concatenates all rows to one batch.
    Coalesce { input: Arc<Stage>, concat: Box<Concat> },
    /// Sorts all rows, or finds the first rows of an order.
    Sort { input: Arc<Stage>, op: Arc<Sort>, checks: Checks },
    /// Repeats each batch for each grouping set.
    Expand { input: Arc<Stage>, sets: Vec<GroupingSet> },
    /// Reads the partitions of several stages, in the union's layouts.
    Union { inputs: Vec<(Arc<Stage>, UnifyLayouts)> },
    /// Computes window functions over sorted rows.
    Window { input: Arc<Stage>, op: Arc<Window>, checks: Checks },
    /// Probes the tables of one or more joins.
    Join(Arc<Joins>),
    /// Gives rows of a build side alone, by its visited bitmap.
    BuildSideJoin(Arc<BuildSideJoin>),
    /// Shares rows among several readers. `is_reuse`: reads cached batches, launches nothing.
    Shared { input: Arc<Stage>, sharing: Sharing, is_reuse: bool },
    /// Slices each partition.
    Limit { input: Arc<Stage>, skip: usize, fetch: Option<usize> },
}

/// A scalar call of a library; its result is a column.
#[derive(Debug)]
pub(crate) struct LibraryCall {
    pub call: Arc<DeviceCall>,
    /// The null-stripping adapter: from columns to dense arguments, and from dense values to the
    /// column.
    pub adapter: NullStripping,
    /// The columns before the result.
    pub schema: SchemaRef,
    /// The result's type.
    pub ty: Arc<ColumnType>,
}

/// An aggregate of a library.
#[derive(Debug)]
pub(crate) struct LibraryAggregate {
    pub fold: Arc<DeviceAggregate>,
    /// The null-stripping adapter from columns to dense arguments.
    pub adapter: NullStripping,
}

/// An aggregation's output of lists. Its kernels give (offset, length) pairs over the elements of
/// the input, which is one batch.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ListOutput {
    /// Position in the output.
    pub output: usize,
    /// Position of the pairs in the kernels' output.
    pub pairs: usize,
    /// Position of the lists in the input.
    pub input: usize,
}

impl Stage {
    pub(super) fn inputs(&self) -> Vec<&Arc<Stage>> {
        match &self.kind {
            StageKind::Upload { .. } | StageKind::Stream { .. } | StageKind::Scan { .. } => vec![],
            StageKind::Columns { input, .. }
            | StageKind::Expand { input, .. }
            | StageKind::LibraryCalls { input, .. }
            | StageKind::LibraryAggregates { input, .. }
            | StageKind::Limit { input, .. }
            | StageKind::Shared { input, .. }
            | StageKind::Select { input, .. }
            | StageKind::Aggregate { input, .. }
            | StageKind::Coalesce { input, .. }
            | StageKind::Sort { input, .. }
            | StageKind::Window { input, .. }
            | StageKind::Unnest { input, .. } => vec![input],
            StageKind::Union { inputs } => inputs.iter().map(|(input, _)| input).collect(),
            StageKind::Join(joins) => joins.builds().map(|build| &build.stage).chain([&joins.probe]).collect(),
            StageKind::BuildSideJoin(join) => vec![&join.build.stage, &join.probe],
        }
    }

    /// Whether this stage or one below reads from outside of the device's own memory.
    pub fn uploads(&self) -> bool {
        self.origin() == Origin::External || self.inputs().into_iter().any(|input| input.uploads())
    }

    /// Where its batches come from.
    pub fn origin(&self) -> Origin {
        match &self.kind {
            StageKind::Upload { .. } | StageKind::Stream { .. } => Origin::External,
            StageKind::Scan { .. } => Origin::Resident,
            StageKind::Coalesce { .. } => Origin::Coalesced,
            StageKind::Columns { .. }
            | StageKind::Expand { .. }
            | StageKind::LibraryCalls { .. }
            | StageKind::LibraryAggregates { .. }
            | StageKind::Limit { .. }
            | StageKind::Shared { .. }
            | StageKind::Select { .. }
            | StageKind::Aggregate { .. }
            | StageKind::Sort { .. }
            | StageKind::Window { .. }
            | StageKind::Unnest { .. }
            | StageKind::Union { .. }
            | StageKind::BuildSideJoin(_)
            | StageKind::Join(_) => Origin::Operator,
        }
    }

    /// The joins that its rows go through one after another.
    pub(super) fn joins(&self) -> Option<&Arc<Joins>> {
        match &self.kind {
            StageKind::Join(joins) => Some(joins),
            StageKind::Upload { .. }
            | StageKind::Stream { .. }
            | StageKind::Scan { .. }
            | StageKind::Columns { .. }
            | StageKind::Expand { .. }
            | StageKind::LibraryCalls { .. }
            | StageKind::LibraryAggregates { .. }
            | StageKind::Limit { .. }
            | StageKind::Shared { .. }
            | StageKind::Select { .. }
            | StageKind::Aggregate { .. }
            | StageKind::Coalesce { .. }
            | StageKind::Sort { .. }
            | StageKind::Window { .. }
            | StageKind::Unnest { .. }
            | StageKind::Union { .. }
            | StageKind::BuildSideJoin(_) => None,
        }
    }

    /// The tables that rows probe on their way through this stage, in order.
    fn chain_sides(&self) -> &[Side] {
        self.joins().map(|joins| joins.plan.sides.as_slice()).unwrap_or_default()
    }

    /// Whether a dynamic filter here or below probes the table of a join with a number accepted by
    /// `of_join`.
    pub fn filters_by(&self, of_join: &dyn Fn(usize) -> bool) -> bool {
        let filters = |side: &Side| match side {
            Side::Build(_) => false,
            Side::Filter { number, .. } => of_join(*number),
        };
        self.chain_sides().iter().any(filters) || self.inputs().into_iter().any(|input| input.filters_by(of_join))
    }

    /// The scalar subqueries that run before this stage, without those nested in them.
    pub fn scalar_subqueries(&self) -> Vec<(&ScalarSide, &Arc<Stage>)> {
        let of_stage = self.chain_sides().iter().filter_map(|side| match side {
            Side::Build(build) => Some((build.scalar()?, &build.stage)),
            Side::Filter { .. } => None,
        });
        let of_stage: Vec<_> = of_stage.collect();
        let others = self.inputs().into_iter().filter(|input| !of_stage.iter().any(|(_, stage)| Arc::ptr_eq(stage, input)));
        let below: Vec<_> = others.flat_map(|input| input.scalar_subqueries()).collect();
        of_stage.into_iter().chain(below).collect()
    }

    /// Number of pipelines that launch kernels.
    pub fn pipelines(&self) -> usize {
        match &self.kind {
            StageKind::Upload { .. }
            | StageKind::Scan { .. }
            | StageKind::Stream { .. }
            | StageKind::Shared { is_reuse: true, .. } => 0,
            StageKind::Columns { input, .. }
            | StageKind::Expand { input, .. }
            | StageKind::Coalesce { input, .. }
            | StageKind::Shared { input, .. }
            | StageKind::Limit { input, .. } => input.pipelines(),
            StageKind::Aggregate { over_joins: Some(over), .. } => over.joins.pipelines(&over.chain) + 1,
            StageKind::Select { input, .. }
            | StageKind::LibraryCalls { input, .. }
            | StageKind::LibraryAggregates { input, .. }
            | StageKind::Aggregate { input, .. }
            | StageKind::Sort { input, .. }
            | StageKind::Window { input, .. }
            | StageKind::Unnest { input, .. } => input.pipelines() + 1,
            StageKind::Union { inputs } => {
                let rewrites = |unify: &UnifyLayouts| usize::from(!unify.kernel_source().is_empty());
                inputs.iter().map(|(input, unify)| input.pipelines() + rewrites(unify)).sum()
            }
            StageKind::Join(joins) => joins.pipelines(&joins.chain),
            StageKind::BuildSideJoin(join) => join.probe.pipelines() + join.build.stage.pipelines() + 2,
        }
    }

    /// Names and sources of all kernels, in the order in which they run.
    pub fn kernel_sources(&self) -> Vec<(String, String)> {
        let (input, of_stage) = match &self.kind {
            StageKind::Upload { .. }
            | StageKind::Scan { .. }
            | StageKind::Stream { .. }
            | StageKind::Shared { is_reuse: true, .. } => return Vec::new(),
            StageKind::Columns { input, .. }
            | StageKind::Expand { input, .. }
            | StageKind::Coalesce { input, .. }
            | StageKind::Shared { input, .. }
            | StageKind::Limit { input, .. } => (input, Vec::new()),
            StageKind::Select { input, op, .. } => (input, op.kernel_source()),
            StageKind::Aggregate { over_joins: Some(over), .. } => {
                return over.joins.kernel_sources(&over.chain).into_iter().chain(over.likely.kernel_sources()).collect();
            }
            StageKind::LibraryCalls { input, calls, .. } => {
                (input, calls.iter().flat_map(|call| call.adapter.kernel_source()).collect())
            }
            StageKind::LibraryAggregates { input, aggregates, .. } => {
                (input, aggregates.iter().flat_map(|aggregate| aggregate.adapter.kernel_source()).collect())
            }
            StageKind::Aggregate { input, op, .. } => (input, op.kernel_sources()),
            StageKind::Sort { input, op, .. } => (input, op.kernel_source()),
            StageKind::Window { input, op, .. } => (input, op.kernel_source()),
            StageKind::Unnest { input, op } => (input, op.kernel_source()),
            StageKind::Union { inputs } => {
                let of =
                    |(input, unify): &(Arc<Stage>, UnifyLayouts)| input.kernel_sources().into_iter().chain(unify.kernel_source());
                return inputs.iter().flat_map(of).collect();
            }
            StageKind::Join(joins) => return joins.kernel_sources(&joins.chain),
            StageKind::BuildSideJoin(join) => {
                let of_sides = join.build.kernel_sources().into_iter().chain(join.probe.kernel_sources());
                return of_sides.chain(join.visited.kernel_source()).collect();
            }
        };
        input.kernel_sources().into_iter().chain(of_stage).collect()
    }
}
