// SPDX-License-Identifier: Apache-2.0
//! From a device subtree to a graph of pipelines: pure, without a device.
//!
//! Row-wise operators (filter, projection) are substituted into the operator that ends their
//! pipeline; what remains are [`Stage`]s, each of which reads the batches of the one below.

mod aggregate;
mod join;
mod operators;
mod pipeline;

use std::sync::Arc;

use arrow::datatypes::SchemaRef;
use columnar::ColumnType;
use datafusion::common::Result;
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::metrics::ExecutionPlanMetricsSet;
use kernels::ops::{Concat, Decode, JoinChain, NullStripping, Options, Select, Sort, UnifyLayouts, Unnest, Window};

use crate::exchange::Source;
use crate::exec::{GroupingSet, Sharing};
use crate::futhark::{DeviceCall, Fold};
use crate::table::Snapshot;

pub(crate) use aggregate::{AggregateOp, OverJoins};
pub(crate) use join::{BuildSide, Joins, Marks, ScalarSide, ScanFilter, Side};
use pipeline::pipeline;

/// A step of an offloaded subplan that produces device batches.
#[derive(Debug)]
pub(crate) struct Stage {
    pub kind: StageKind,
    /// Logical schema of the batches.
    pub schema: SchemaRef,
    /// Physical types of the batches' columns.
    pub types: Vec<ColumnType>,
    /// Partitions of the output.
    pub partitions: usize,
    /// Name of the operator, for messages.
    pub operator: String,
    /// Where the operator's metrics go.
    pub metrics: ExecutionPlanMetricsSet,
}

#[derive(Debug)]
pub(crate) enum StageKind {
    /// Batches of a host plan.
    Upload { input: Arc<dyn ExecutionPlan> },
    /// Batches of a resident table, some of its columns.
    Scan { snapshot: Arc<Snapshot>, columns: Vec<usize> },
    /// Some columns of device arrays that somebody else produces.
    Stream { source: Arc<Source>, columns: Vec<usize>, decode: Arc<Decode> },
    /// Some columns of the input, renamed; nothing is computed.
    Columns { input: Arc<Stage>, columns: Vec<usize> },
    /// Filter and computed columns.
    Select { input: Arc<Stage>, op: Box<Select>, checks: Vec<Arc<dyn PhysicalExpr>> },
    /// Aggregation.
    Aggregate {
        input: Arc<Stage>,
        op: AggregateOp,
        checks: Vec<Arc<dyn PhysicalExpr>>,
        lists: Vec<ListOutput>,
        over_joins: Option<Box<OverJoins>>,
    },
    /// Results of libraries behind the input's columns.
    Futhark { input: Arc<Stage>, calls: Vec<LibraryCall>, checks: Vec<Arc<dyn PhysicalExpr>> },
    /// One row of what libraries make of all rows.
    Fold { input: Arc<Stage>, folds: Vec<LibraryFold>, checks: Vec<Arc<dyn PhysicalExpr>> },
    /// The elements of lists, a row for each.
    Unnest { input: Arc<Stage>, op: Box<Unnest> },
    /// All rows in one batch.
    Gather { input: Arc<Stage>, concat: Box<Concat> },
    /// All rows in an order, or the first of them.
    Sort { input: Arc<Stage>, op: Box<Sort>, checks: Vec<Arc<dyn PhysicalExpr>> },
    /// Each batch once for each set of keys.
    Expand { input: Arc<Stage>, sets: Vec<GroupingSet> },
    /// The partitions of several stages, each in the union's layouts.
    Union { inputs: Vec<(Arc<Stage>, UnifyLayouts)> },
    /// Window functions over rows in their order.
    Window { input: Arc<Stage>, op: Box<Window>, checks: Vec<Arc<dyn PhysicalExpr>> },
    /// Rows looked up in tables of other stages.
    Join(Box<Joins>),
    /// The rows of a table, marked where another stage's rows match them.
    Mark(Box<Marks>),
    /// The input's rows, which several stages read, and which are computed once; `again`: not by this stage.
    Shared { input: Arc<Stage>, sharing: Sharing, again: bool },
    /// Some rows of each partition.
    Limit { input: Arc<Stage>, skip: usize, fetch: Option<usize> },
}

/// A call of a library, whose result is a column.
#[derive(Debug)]
pub(crate) struct LibraryCall {
    pub call: Arc<DeviceCall>,
    /// From the columns before its own to the arguments, and from the values to the column.
    pub way: NullStripping,
    /// Those columns.
    pub schema: SchemaRef,
    /// The result's column.
    pub ty: Arc<ColumnType>,
}

/// An aggregate of a library.
#[derive(Debug)]
pub(crate) struct LibraryFold {
    pub fold: Arc<Fold>,
    /// From the input's columns to the arguments.
    pub way: NullStripping,
}

/// A column of lists that an aggregation gives as words; they keep the elements that they have in its input, which is one batch.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ListOutput {
    /// Position in the output.
    pub output: usize,
    /// Position of the words in what kernels give.
    pub words: usize,
    /// Position in the input.
    pub input: usize,
}

impl Stage {
    /// The stages whose batches it takes.
    fn inputs(&self) -> Vec<&Arc<Stage>> {
        match &self.kind {
            StageKind::Upload { .. } | StageKind::Stream { .. } | StageKind::Scan { .. } => vec![],
            StageKind::Columns { input, .. }
            | StageKind::Expand { input, .. }
            | StageKind::Futhark { input, .. }
            | StageKind::Fold { input, .. }
            | StageKind::Limit { input, .. }
            | StageKind::Shared { input, .. }
            | StageKind::Select { input, .. }
            | StageKind::Aggregate { input, .. }
            | StageKind::Gather { input, .. }
            | StageKind::Sort { input, .. }
            | StageKind::Window { input, .. }
            | StageKind::Unnest { input, .. } => vec![input],
            StageKind::Union { inputs } => inputs.iter().map(|(input, _)| input).collect(),
            StageKind::Join(join) => join.builds().map(|build| &build.stage).chain([&join.probe]).collect(),
            StageKind::Mark(mark) => vec![&mark.build.stage, &mark.probe],
        }
    }

    /// Whether host batches go up below, or may.
    pub fn uploads(&self) -> bool {
        self.reads_others() || self.inputs().into_iter().any(|input| input.uploads())
    }

    /// Whether one of its dynamic filters, or of those below, asks for the table of such a join.
    pub fn asks_for_table(&self, of_join: &dyn Fn(usize) -> bool) -> bool {
        let own = match &self.kind {
            StageKind::Join(joins) => {
                joins.sides.iter().any(|side| matches!(side, Side::Filter { number, .. } if of_join(*number)))
            }
            _ => false,
        };
        own || self.inputs().into_iter().any(|input| input.asks_for_table(of_join))
    }

    /// The scalar subqueries that run before its rows, without those that run before theirs.
    pub fn scalar_subqueries(&self) -> Vec<(&ScalarSide, &Arc<Stage>)> {
        let own: Vec<_> = match &self.kind {
            StageKind::Join(joins) => joins.builds().filter_map(|build| Some((build.scalar.as_ref()?, &build.stage))).collect(),
            _ => vec![],
        };
        let others = self.inputs().into_iter().filter(|input| !own.iter().any(|(_, stage)| Arc::ptr_eq(stage, input)));
        let below: Vec<_> = others.flat_map(|input| input.scalar_subqueries()).collect();
        own.into_iter().chain(below).collect()
    }

    /// Whether its batches come from outside of the device's own memory.
    pub fn reads_others(&self) -> bool {
        matches!(self.kind, StageKind::Upload { .. } | StageKind::Stream { .. })
    }

    /// Number of pipelines that launch kernels.
    pub fn pipelines(&self) -> usize {
        match &self.kind {
            StageKind::Upload { .. }
            | StageKind::Scan { .. }
            | StageKind::Stream { .. }
            | StageKind::Shared { again: true, .. } => 0,
            StageKind::Columns { input, .. }
            | StageKind::Expand { input, .. }
            | StageKind::Gather { input, .. }
            | StageKind::Shared { input, .. }
            | StageKind::Limit { input, .. } => input.pipelines(),
            StageKind::Aggregate { input, over_joins: Some(over), .. } => input.pipelines_of_joins(&over.chain) + 1,
            StageKind::Select { input, .. }
            | StageKind::Futhark { input, .. }
            | StageKind::Fold { input, .. }
            | StageKind::Aggregate { input, .. }
            | StageKind::Sort { input, .. }
            | StageKind::Window { input, .. }
            | StageKind::Unnest { input, .. } => input.pipelines() + 1,
            StageKind::Union { inputs } => {
                let own = |unify: &UnifyLayouts| usize::from(!unify.kernel_source().is_empty());
                inputs.iter().map(|(input, unify)| input.pipelines() + own(unify)).sum()
            }
            StageKind::Join(join) => self.pipelines_of_joins(&join.chain),
            StageKind::Mark(mark) => mark.probe.pipelines() + mark.build.stage.pipelines() + 2,
        }
    }

    /// Names and texts of all kernels, the first to run first.
    pub fn kernel_texts(&self) -> Vec<(String, String)> {
        let (input, own) = match &self.kind {
            StageKind::Upload { .. }
            | StageKind::Scan { .. }
            | StageKind::Stream { .. }
            | StageKind::Shared { again: true, .. } => return Vec::new(),
            StageKind::Columns { input, .. }
            | StageKind::Expand { input, .. }
            | StageKind::Gather { input, .. }
            | StageKind::Shared { input, .. }
            | StageKind::Limit { input, .. } => (input, Vec::new()),
            StageKind::Select { input, op, .. } => (input, op.kernel_source()),
            StageKind::Aggregate { input, over_joins: Some(over), .. } => {
                return [input.kernel_texts_of_joins(&over.chain), over.kernel_texts.clone()].concat();
            }
            StageKind::Futhark { input, calls, .. } => (input, calls.iter().flat_map(|call| call.way.kernel_source()).collect()),
            StageKind::Fold { input, folds, .. } => (input, folds.iter().flat_map(|fold| fold.way.kernel_source()).collect()),
            StageKind::Aggregate { input, op, .. } => (input, op.kernel_source()),
            StageKind::Sort { input, op, .. } => (input, op.kernel_source()),
            StageKind::Window { input, op, .. } => (input, op.kernel_source()),
            StageKind::Unnest { input, op } => (input, op.kernel_source()),
            StageKind::Union { inputs } => {
                let of = |(input, unify): &(Arc<Stage>, UnifyLayouts)| [input.kernel_texts(), unify.kernel_source()].concat();
                return inputs.iter().flat_map(of).collect();
            }
            StageKind::Join(join) => return self.kernel_texts_of_joins(&join.chain),
            StageKind::Mark(mark) => {
                let mut texts = mark.build.kernel_texts();
                texts.extend(mark.probe.kernel_texts());
                texts.extend(mark.mark.kernel_source());
                return texts;
            }
        };
        let mut texts = input.kernel_texts();
        texts.extend(own);
        texts
    }
}

impl Stage {
    /// The same where rows of joins go through a chain.
    fn pipelines_of_joins(&self, chain: &JoinChain) -> usize {
        let StageKind::Join(join) = &self.kind else { return self.pipelines() };
        let builds = join.builds().map(|build| build.stage.pipelines() + 1);
        join.probe.pipelines() + chain.pipelines() + builds.sum::<usize>()
    }

    fn kernel_texts_of_joins(&self, chain: &JoinChain) -> Vec<(String, String)> {
        let StageKind::Join(join) = &self.kind else { return self.kernel_texts() };
        let mut texts: Vec<_> = join.builds().flat_map(BuildSide::kernel_texts).collect();
        texts.extend(join.probe.kernel_texts());
        texts.extend(chain.kernel_source());
        texts
    }
}

/// Lowers a device subtree.
pub(crate) fn lower(plan: &Arc<dyn ExecutionPlan>, options: &Options) -> Result<Stage> {
    pipeline(plan, options)?.materialise(plan.schema(), options)
}
