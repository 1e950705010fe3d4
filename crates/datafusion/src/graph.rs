// SPDX-License-Identifier: Apache-2.0
//! From a device subtree to a graph of pipelines: pure, without a device.
//!
//! Row-wise operators (filter, projection) are substituted into the operator that ends their
//! pipeline; what remains are [`Stage`]s, each of which reads the batches of the one below.

use std::collections::HashSet;
use std::sync::Arc;

use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use columnar::{Carrier, ColumnType, Layout};
use datafusion::common::tree_node::{Transformed, TreeNode};
use datafusion::common::{
    DataFusionError, JoinSide, JoinType, Result, ScalarValue, internal_datafusion_err, internal_err, plan_datafusion_err,
};
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_expr::expressions::{Column, lit};
use datafusion::physical_expr::utils::collect_columns;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::metrics::ExecutionPlanMetricsSet;
use datafusion::physical_plan::placeholder_row::PlaceholderRowExec;
use kernels::codegen::Profile;
use kernels::expr::Expr as KernelExpr;
use kernels::ops::{
    Concat, Conform, Decode, GroupBy, Input, Join, JoinBuild, JoinChain, JoinKind, Mark, Options, Reduce, Select, Sort, SortKey,
    Window,
};

use crate::exchange::Source;
use crate::exec::{
    DeviceAggregateExec, DeviceDynamicFilterExec, DeviceExpandExec, DeviceFilterExec, DeviceJoinExec, DeviceLimitExec,
    DeviceProjectionExec, DeviceReuseExec, DeviceScanExec, DeviceSharedExec, DeviceSortExec, DeviceStreamExec, DeviceUnionExec,
    DeviceUploadExec, DeviceWindowExec, GroupingSet,
};
use crate::expr::{computes_text, lower as lower_expr, lower_output};
use crate::planner::{lower_window, reads_files};
use crate::table::Snapshot;
use crate::texts::Texts;

/// A step of an island that produces device batches.
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
    Select { input: Arc<Stage>, op: Select, checks: Vec<Arc<dyn PhysicalExpr>> },
    /// Ungrouped aggregation.
    Reduce { input: Arc<Stage>, op: Reduce, checks: Vec<Arc<dyn PhysicalExpr>> },
    /// Grouped aggregation.
    GroupBy { input: Arc<Stage>, op: GroupBy, checks: Vec<Arc<dyn PhysicalExpr>> },
    /// All rows in an order, or the first of them.
    Sort { input: Arc<Stage>, op: Box<Sort>, checks: Vec<Arc<dyn PhysicalExpr>> },
    /// Each batch once for each set of keys.
    Expand { input: Arc<Stage>, sets: Vec<GroupingSet> },
    /// The partitions of several stages, each in the union's layouts.
    Union { inputs: Vec<(Arc<Stage>, Conform)> },
    /// Window functions over rows in their order.
    Window { input: Arc<Stage>, op: Box<Window>, checks: Vec<Arc<dyn PhysicalExpr>> },
    /// Rows looked up in tables of other stages.
    Join(Box<Joins>),
    /// The rows of a table, marked where another stage's rows match them.
    Mark(Box<Marks>),
    /// The input's rows, which so many stages of this number read, and which are computed once.
    Shared { input: Arc<Stage>, number: usize, readers: usize, again: bool },
    /// Some rows of each partition.
    Limit { input: Arc<Stage>, skip: usize, fetch: Option<usize> },
}

/// The build side of a join.
#[derive(Debug)]
pub(crate) struct BuildSide {
    pub stage: Arc<Stage>,
    pub concat: Concat,
    pub build: JoinBuild,
    /// The keys, for messages.
    pub checks: Vec<Arc<dyn PhysicalExpr>>,
    /// The number by which dynamic filters ask for the table.
    pub number: Option<usize>,
    /// What host scans below the probe side are told of the keys, which these are.
    pub scan_filter: Option<ScanFilter>,
}

/// What tells host scans the ranges of a build side's keys.
#[derive(Debug)]
pub(crate) struct ScanFilter {
    /// A `DynamicFilterPhysicalExpr`.
    pub filter: Arc<dyn PhysicalExpr>,
    /// The keys, as the scan has them.
    pub keys: Vec<Arc<dyn PhysicalExpr>>,
    pub types: Vec<DataType>,
}

/// Where the table of a chain's join comes from.
#[derive(Debug)]
pub(crate) enum Side {
    /// It is built.
    Build(Box<BuildSide>),
    /// A join further up has built it, and it filters.
    Filter { number: usize, metrics: ExecutionPlanMetricsSet },
}

impl Side {
    fn build(&self) -> Option<&BuildSide> {
        match self {
            Side::Build(build) => Some(build.as_ref()),
            Side::Filter { .. } => None,
        }
    }
}

/// Joins that rows go through one after another. How they run depends on the tables; `chain` is what most often does.
#[derive(Debug)]
pub(crate) struct Joins {
    pub probe: Arc<Stage>,
    pub sides: Vec<Side>,
    pub joins: Vec<Join>,
    /// Its filter is over the columns of all sides.
    pub input: Input,
    pub outputs: Vec<(KernelExpr, Field)>,
    pub options: Options,
    pub chain: JoinChain,
    /// What gathers small batches, where those who read them launch much for each one.
    pub gathers: Option<Concat>,
}

/// A join that gives rows of its build side alone.
#[derive(Debug)]
pub(crate) struct Marks {
    pub probe: Arc<Stage>,
    pub build: BuildSide,
    pub join: Join,
    pub input: Input,
    pub options: Options,
    /// As it most often runs.
    pub mark: Mark,
    /// Filters and keys of the probe side, for messages.
    pub checks: Vec<Arc<dyn PhysicalExpr>>,
}

impl Joins {
    fn builds(&self) -> impl Iterator<Item = &BuildSide> {
        self.sides.iter().filter_map(Side::build)
    }
}

impl BuildSide {
    /// The most that rows go through at once, and the most keys of these: kernels have a limit of arguments.
    const MOST: usize = 4;
    const MOST_KEYS: usize = 6;
    /// The most columns that the filters before them may look at.
    const MOST_TESTED: usize = 8;

    fn kernel_texts(&self) -> Vec<(String, String)> {
        self.stage.kernel_texts().into_iter().chain(self.build.kernel_text()).collect()
    }
}

impl Stage {
    /// Whether host batches go up below, or may.
    pub fn uploads(&self) -> bool {
        match &self.kind {
            StageKind::Upload { .. } | StageKind::Stream { .. } => true,
            StageKind::Scan { .. } => false,
            StageKind::Columns { input, .. }
            | StageKind::Expand { input, .. }
            | StageKind::Limit { input, .. }
            | StageKind::Shared { input, .. }
            | StageKind::Select { input, .. }
            | StageKind::Reduce { input, .. }
            | StageKind::Sort { input, .. }
            | StageKind::Window { input, .. }
            | StageKind::GroupBy { input, .. } => input.uploads(),
            StageKind::Union { inputs } => inputs.iter().any(|(input, _)| input.uploads()),
            StageKind::Join(join) => join.probe.uploads() || join.builds().any(|build| build.stage.uploads()),
            StageKind::Mark(mark) => mark.probe.uploads() || mark.build.stage.uploads(),
        }
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
            | StageKind::Shared { input, .. }
            | StageKind::Limit { input, .. } => input.pipelines(),
            StageKind::Select { input, .. }
            | StageKind::Reduce { input, .. }
            | StageKind::Sort { input, .. }
            | StageKind::Window { input, .. }
            | StageKind::GroupBy { input, .. } => input.pipelines() + 1,
            StageKind::Union { inputs } => {
                let own = |conform: &Conform| usize::from(!conform.kernel_text().is_empty());
                inputs.iter().map(|(input, conform)| input.pipelines() + own(conform)).sum()
            }
            StageKind::Join(join) => {
                let builds = join.builds().map(|build| build.stage.pipelines() + 1);
                join.probe.pipelines() + join.chain.pipelines() + builds.sum::<usize>()
            }
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
            | StageKind::Shared { input, .. }
            | StageKind::Limit { input, .. } => (input, Vec::new()),
            StageKind::Select { input, op, .. } => (input, op.kernel_text()),
            StageKind::Reduce { input, op, .. } => (input, op.kernel_text()),
            StageKind::GroupBy { input, op, .. } => (input, op.kernel_text()),
            StageKind::Sort { input, op, .. } => (input, op.kernel_text()),
            StageKind::Window { input, op, .. } => (input, op.kernel_text()),
            StageKind::Union { inputs } => {
                let of = |(input, conform): &(Arc<Stage>, Conform)| [input.kernel_texts(), conform.kernel_text()].concat();
                return inputs.iter().flat_map(of).collect();
            }
            StageKind::Join(join) => {
                let mut texts: Vec<_> = join.builds().flat_map(BuildSide::kernel_texts).collect();
                texts.extend(join.probe.kernel_texts());
                texts.extend(join.chain.kernel_text());
                return texts;
            }
            StageKind::Mark(mark) => {
                let mut texts = mark.build.kernel_texts();
                texts.extend(mark.probe.kernel_texts());
                texts.extend(mark.mark.kernel_text());
                return texts;
            }
        };
        let mut texts = input.kernel_texts();
        texts.extend(own);
        texts
    }
}

/// Lowers a device subtree.
pub(crate) fn lower(plan: &Arc<dyn ExecutionPlan>, profile: Profile) -> Result<Stage> {
    pipeline(plan, profile)?.materialise(plan.schema(), profile)
}

/// A source with the row-wise operators above it, all over the columns of the source and of the joins that its rows go
/// through, one after another.
struct Pipeline {
    source: Stage,
    joins: Vec<(Join, Side)>,
    predicates: Vec<Arc<dyn PhysicalExpr>>,
    /// `None`: the source's columns as they are.
    outputs: Option<Vec<Arc<dyn PhysicalExpr>>>,
    /// Name and metrics of the topmost row-wise operator.
    top: Option<(String, ExecutionPlanMetricsSet)>,
}

fn pipeline(plan: &Arc<dyn ExecutionPlan>, profile: Profile) -> Result<Pipeline> {
    if let Some(filter) = plan.downcast_ref::<DeviceFilterExec>() {
        let schema = child(plan)?.schema();
        let predicate = [Arc::clone(filter.predicate())];
        let (mut below, predicates, _) = pipeline(child(plan)?, profile)?.with_texts(&schema, &predicate, false, profile)?;
        for predicate in &predicates {
            below.predicates.push(below.over_source(predicate)?);
        }
        if let Some(projection) = filter.projection() {
            let columns = projection.iter().map(|index| column(&schema, *index));
            below.outputs = Some(columns.map(|column| below.over_source(&column)).collect::<Result<_>>()?);
        } else if let Some(outputs) = &mut below.outputs {
            // Texts end here.
            outputs.truncate(schema.fields().len());
        }
        below.top = Some((plan.name().to_string(), filter.metrics.clone()));
        return Ok(below);
    }
    if let Some(projection) = plan.downcast_ref::<DeviceProjectionExec>() {
        let outputs: Vec<_> = projection.expressions().iter().map(|output| Arc::clone(&output.expr)).collect();
        let below = pipeline(child(plan)?, profile)?;
        let (mut below, outputs, schema) = below.with_texts(&child(plan)?.schema(), &outputs, true, profile)?;
        let writes_text = outputs.iter().any(|output| computes_text(output, &schema));
        if writes_text {
            below = below.without_joins(schema, profile)?;
        }
        let outputs = outputs.iter().map(|output| below.over_source(output));
        below.outputs = Some(outputs.collect::<Result<_>>()?);
        below.top = Some((plan.name().to_string(), projection.metrics.clone()));
        // New text is a column before anything takes it.
        return if writes_text { Ok(Pipeline::of(below.materialise(plan.schema(), profile)?)) } else { Ok(below) };
    }
    if let Some(filter) = plan.downcast_ref::<DeviceDynamicFilterExec>() {
        return filtered(filter, profile);
    }
    if let Some(join) = plan.downcast_ref::<DeviceJoinExec>() {
        return joined(join, profile);
    }
    let source = if let Some(upload) = plan.downcast_ref::<DeviceUploadExec>() {
        // The rows of a PlaceholderRowExec have no columns that anything could refer to.
        let placeholder = upload.input().is::<PlaceholderRowExec>();
        let schema = if placeholder { Arc::new(Schema::empty()) } else { upload.input().schema() };
        let types = if reads_files(upload.input()) { columnar::file_types(&schema) } else { columnar::natural_types(&schema) };
        let types = types.map_err(|error| plan_datafusion_err!("DeviceUploadExec: {error}"))?;
        Stage {
            kind: StageKind::Upload { input: Arc::clone(upload.input()) },
            types,
            schema,
            partitions: partitions(plan),
            operator: plan.name().to_string(),
            metrics: upload.metrics.clone(),
        }
    } else if let Some(scan) = plan.downcast_ref::<DeviceScanExec>() {
        let types = scan.columns().iter().map(|index| scan.snapshot().types()[*index].clone()).collect();
        Stage {
            kind: StageKind::Scan { snapshot: Arc::clone(scan.snapshot()), columns: scan.columns().to_vec() },
            types,
            schema: plan.schema(),
            partitions: partitions(plan),
            operator: plan.name().to_string(),
            metrics: scan.metrics.clone(),
        }
    } else if let Some(scan) = plan.downcast_ref::<DeviceStreamExec>() {
        let decode = Decode::try_new(plan.schema(), Options::new(profile));
        let decode = decode.map_err(|error| plan_datafusion_err!("DeviceStreamExec: {error}"))?;
        Stage {
            types: decode.output_types().to_vec(),
            kind: StageKind::Stream {
                source: Arc::clone(scan.source()),
                columns: scan.columns().to_vec(),
                decode: Arc::new(decode),
            },
            schema: plan.schema(),
            partitions: partitions(plan),
            operator: plan.name().to_string(),
            metrics: scan.metrics.clone(),
        }
    } else if let Some(limit) = plan.downcast_ref::<DeviceLimitExec>() {
        let below = pipeline(child(plan)?, profile)?;
        let input = below.materialise(child(plan)?.schema(), profile)?;
        Stage {
            schema: Arc::clone(&input.schema),
            types: input.types.clone(),
            partitions: partitions(plan),
            kind: StageKind::Limit { input: Arc::new(input), skip: limit.skip(), fetch: limit.fetch_rows() },
            operator: plan.name().to_string(),
            metrics: limit.metrics.clone(),
        }
    } else if let Some(shared) = plan.downcast_ref::<DeviceSharedExec>() {
        let (number, readers) = (shared.number(), shared.readers());
        shared_rows(plan, shared.input(), (number, readers, false), &shared.metrics, profile)?
    } else if let Some(reuse) = plan.downcast_ref::<DeviceReuseExec>() {
        let (number, readers) = (reuse.number(), reuse.readers());
        shared_rows(plan, reuse.shared(), (number, readers, true), &reuse.metrics, profile)?
    } else if let Some(aggregate) = plan.downcast_ref::<DeviceAggregateExec>() {
        let schema = child(plan)?.schema();
        pipeline(child(plan)?, profile)?.without_joins(Arc::clone(&schema), profile)?.aggregate(aggregate, &schema, profile)?
    } else if let Some(sort) = plan.downcast_ref::<DeviceSortExec>() {
        let schema = child(plan)?.schema();
        let mut below = pipeline(child(plan)?, profile)?;
        if !below.joins.is_empty() {
            below = Pipeline::of(below.materialise(Arc::clone(&schema), profile)?);
        }
        below.sort(sort, schema, profile)?
    } else if let Some(expand) = plan.downcast_ref::<DeviceExpandExec>() {
        expanded(expand, profile)?
    } else if let Some(union) = plan.downcast_ref::<DeviceUnionExec>() {
        unioned(union, profile)?
    } else if let Some(window) = plan.downcast_ref::<DeviceWindowExec>() {
        let input = pipeline(child(plan)?, profile)?.materialise(child(plan)?.schema(), profile)?;
        windowed(window, input, plan.schema(), profile)?
    } else {
        return internal_err!("{} is not a device operator", plan.name());
    };
    Ok(Pipeline::of(source))
}

/// Rows that several stages read; `again`: those who read them again.
fn shared_rows(
    plan: &Arc<dyn ExecutionPlan>,
    rows: &Arc<dyn ExecutionPlan>,
    (number, readers, again): (usize, usize, bool),
    metrics: &ExecutionPlanMetricsSet,
    profile: Profile,
) -> Result<Stage> {
    let input = pipeline(rows, profile)?.materialise(rows.schema(), profile)?;
    Ok(Stage {
        schema: Arc::clone(&input.schema),
        types: input.types.clone(),
        partitions: 1,
        kind: StageKind::Shared { input: Arc::new(input), number, readers, again },
        operator: plan.name().to_string(),
        metrics: metrics.clone(),
    })
}

/// Rows that come once for each set of keys.
fn expanded(expand: &DeviceExpandExec, profile: Profile) -> Result<Stage> {
    let below = expand.input().schema();
    let input = pipeline(expand.input(), profile)?.materialise(Arc::clone(&below), profile)?;
    let first = below.fields().len() - expand.sets().first().map_or(0, |set| set.masked.len());
    let most = expand.sets().iter().map(|set| set.id).max().unwrap_or(0);
    let real = expand.sets().iter().any(GroupingSet::is_total);
    let types =
        input.types.iter().enumerate().map(|(index, ty)| ColumnType { nullable: ty.nullable || index >= first, ..ty.clone() });
    Ok(Stage {
        schema: expand.schema(),
        types: types.chain([grouping_id_type(most)]).chain(real.then(real_type)).collect(),
        partitions: 1,
        kind: StageKind::Expand { input: Arc::new(input), sets: expand.sets().to_vec() },
        operator: expand.name().to_string(),
        metrics: expand.metrics.clone(),
    })
}

fn real_type() -> ColumnType {
    ColumnType { data_type: DataType::Boolean, nullable: false, layout: Layout::Bits, bounds: None }
}

/// The type of the sets' numbers, up to `most`.
fn grouping_id_type(most: u8) -> ColumnType {
    let bounds = Some((0, i128::from(most)));
    ColumnType { data_type: DataType::UInt8, nullable: false, layout: Layout::Fixed(Carrier::U8), bounds }
}

/// The rows of several stages.
fn unioned(union: &DeviceUnionExec, profile: Profile) -> Result<Stage> {
    let schema = union.schema();
    let inputs = union.children().into_iter().map(|child| pipeline(child, profile)?.materialise(child.schema(), profile));
    let inputs = inputs.collect::<Result<Vec<_>>>()?;
    let sources: Vec<&[ColumnType]> = inputs.iter().map(|input| input.types.as_slice()).collect();
    let types = Conform::common(&sources).map_err(kernel_error)?;
    let partitions = inputs.iter().map(|input| input.partitions).sum();
    let conformed = inputs.into_iter().map(|input| {
        let (from, to, result) = (input.types.clone(), types.clone(), Arc::clone(&schema));
        let conform =
            Conform::try_new(Arc::clone(&input.schema), from, to, result, Options::new(profile)).map_err(kernel_error)?;
        Ok((Arc::new(input), conform))
    });
    Ok(Stage {
        kind: StageKind::Union { inputs: conformed.collect::<Result<_>>()? },
        schema,
        types,
        partitions,
        operator: union.name().to_string(),
        metrics: union.metrics.clone(),
    })
}

/// Window functions over the rows of `input`.
fn windowed(window: &DeviceWindowExec, input: Stage, schema: SchemaRef, profile: Profile) -> Result<Stage> {
    let source = Arc::clone(&input.schema);
    let Some(first) = window.functions().first() else { return internal_err!("a window without functions") };
    let mut checks = Vec::new();
    let mut keys = |exprs: Vec<Arc<dyn PhysicalExpr>>| {
        checks.extend(exprs.iter().cloned());
        exprs.iter().map(|expr| lowered(expr, &source)).collect::<Result<Vec<_>>>()
    };
    let partition = keys(first.partition_by().to_vec())?;
    let order = keys(first.order_by().iter().map(|key| Arc::clone(&key.expr)).collect())?;
    let passed = source.fields().len();
    let outputs = source.fields().iter().enumerate().map(|(index, field)| (KernelExpr::Column(index), field.as_ref().clone()));
    let mut functions = Vec::new();
    for (function, field) in window.functions().iter().zip(schema.fields().iter().skip(passed)) {
        let call = lower_window(function, &source).map_err(|reason| internal_datafusion_err!("{}: {reason}", function.name()))?;
        functions.push((call, field.as_ref().clone()));
        checks.extend(function.expressions());
    }
    let from = Input { schema: Arc::clone(&source), types: input.types.clone(), filter: None };
    let op =
        Window::try_new(from, partition, order, outputs.collect(), functions, Options::new(profile)).map_err(kernel_error)?;
    Ok(Stage {
        schema,
        types: op.output_types().to_vec(),
        partitions: 1,
        kind: StageKind::Window { input: Arc::new(input), op: Box::new(op), checks },
        operator: window.name().to_string(),
        metrics: window.metrics.clone(),
    })
}

/// Rows that another join's table has keys for: one more probe of the pipeline.
fn filtered(filter: &DeviceDynamicFilterExec, profile: Profile) -> Result<Pipeline> {
    let schema = filter.input().schema();
    let mut below = pipeline(filter.input(), profile)?;
    if below.joins.len() >= BuildSide::MOST || below.tested_columns() > BuildSide::MOST_TESTED {
        below = Pipeline::of(below.materialise(Arc::clone(&schema), profile)?);
    }
    let source = below.schema();
    let keys = filter.keys().iter().map(|key| {
        let key = below.over_source(key)?;
        let null = ScalarValue::try_from(&key.data_type(&source)?)?;
        Ok((lowered(&key, &source)?, lowered(&lit(null), &source)?))
    });
    let join = Join::dynamic_filter(keys.collect::<Result<_>>()?, filter.null_equals_null());
    below.joins.push((join, Side::Filter { number: filter.number(), metrics: filter.metrics.clone() }));
    below.top = Some((filter.name().to_string(), filter.metrics.clone()));
    Ok(below)
}

/// The rows of a join: of its probe side's pipeline where a row-wise step is enough, else of a stage of its own.
fn joined(join: &DeviceJoinExec, profile: Profile) -> Result<Pipeline> {
    let spec = &join.spec;
    let kind = join_kind(spec.join_type);
    let (left_schema, right_schema) = (join.left().schema(), join.right().schema());
    let mut below = pipeline(join.right(), profile)?;
    let keys = below.joins.iter().map(|(join, _)| join.keys.len()).sum::<usize>() + spec.on.len();
    let full = below.joins.len() >= BuildSide::MOST || keys > BuildSide::MOST_KEYS && !below.joins.is_empty();
    if kind.marks_build() || full {
        below = below.without_joins(Arc::clone(&right_schema), profile)?;
    }
    // Where a left row has no match, the right columns are NULL, which what is computed of NULLs need not be.
    let computes = matches!(kind, JoinKind::Left | JoinKind::Full) && below.computes();
    let conditions = spec.filter.as_ref().map_or(0, |filter| filter.column_indices().len());
    let tests = below.tested_columns();
    if computes || tests > 0 && tests + conditions > BuildSide::MOST_TESTED {
        below = Pipeline::of(below.materialise(Arc::clone(&right_schema), profile)?);
    }
    let stage = Arc::new(pipeline(join.left(), profile)?.materialise(Arc::clone(&left_schema), profile)?);
    let options = Options::new(profile);
    let concat = Concat::try_new(Arc::clone(&left_schema), stage.types.clone(), options.clone()).map_err(kernel_error)?;
    let below_schema = below.schema();
    let first = below_schema.fields().len();
    let right_columns = (0..right_schema.fields().len()).map(|index| below.over_source(&column(&right_schema, index)));
    let right_columns = right_columns.collect::<Result<Vec<_>>>()?;
    let left_columns = left_schema.fields().iter().enumerate().map(|(index, field)| {
        let column: Arc<dyn PhysicalExpr> = Arc::new(Column::new(field.name(), first + index));
        column
    });
    let left_columns: Vec<_> = left_columns.collect();
    let mut keys = Vec::with_capacity(spec.on.len());
    let mut checks = below.predicates.clone();
    for (left, right) in &spec.on {
        let right = below.over_source(right)?;
        keys.push((lowered(&right, &below_schema)?, lowered(left, &left_schema)?));
        checks.push(right);
    }
    let build_checks = spec.on.iter().map(|(left, _)| Arc::clone(left)).collect();
    let mut kernel_join = Join {
        kind,
        keys,
        null_equals_null: spec.null_equals_null,
        null_aware: spec.null_aware,
        residual: None,
        schema: Arc::clone(&left_schema),
        types: concat.output_types().to_vec(),
        tallied: false,
    };
    if let Some(filter) = &spec.filter {
        let sides = filter.column_indices().iter().map(|column| match column.side {
            JoinSide::Left => left_columns.get(column.index).cloned(),
            _ => right_columns.get(column.index).cloned(),
        });
        let Some(sides) = sides.collect::<Option<Vec<_>>>() else {
            return internal_err!("a join filter of columns that are not there");
        };
        let fields = below_schema.fields().iter().chain(left_schema.fields()).cloned();
        let both = Schema::new(fields.collect::<Vec<_>>());
        kernel_join.residual = Some(lowered(&over_columns(filter.expression(), &sides)?, &both)?);
    }
    let before: Vec<Join> = below.joins.iter().map(|(join, _)| join.clone()).collect();
    let build = JoinBuild::try_new(&below.source.types, &before, &kernel_join, options.clone()).map_err(kernel_error)?;
    let scan_filter = join.scan_filter().map(|filter| {
        let types = spec.on.iter().map(|(left, _)| left.data_type(&left_schema)).collect::<Result<_>>()?;
        let keys = filter.children().into_iter().cloned().collect();
        Ok::<_, DataFusionError>(ScanFilter { filter: Arc::clone(filter), keys, types })
    });
    let scan_filter = scan_filter.transpose()?;
    let build = BuildSide { stage, concat, build, checks: build_checks, number: join.number(), scan_filter };
    let mark: Arc<dyn PhysicalExpr> =
        Arc::new(Column::new("mark", if kind.gives_build() { left_columns.len() } else { first + left_columns.len() }));
    let own_left = || (0..left_columns.len()).map(|index| column(&left_schema, index));
    let all: Vec<Arc<dyn PhysicalExpr>> = match spec.join_type {
        JoinType::LeftSemi | JoinType::LeftAnti => own_left().collect(),
        JoinType::LeftMark => own_left().chain([Arc::clone(&mark)]).collect(),
        JoinType::RightSemi | JoinType::RightAnti => right_columns,
        JoinType::RightMark => right_columns.into_iter().chain([Arc::clone(&mark)]).collect(),
        _ => left_columns.iter().cloned().chain(right_columns).collect(),
    };
    let outputs = match &spec.projection {
        None => Some(all),
        Some(projection) => projection.iter().map(|index| all.get(*index).cloned()).collect(),
    };
    let Some(outputs) = outputs else { return internal_err!("a projection of columns that a join lacks") };
    let top = Some((join.name().to_string(), join.metrics.clone()));
    if kind.gives_build() {
        let input = below.input()?;
        let op = Mark::try_new(input.clone(), &kernel_join, None, options.clone()).map_err(kernel_error)?;
        let source = Stage {
            schema: Arc::clone(op.schema()),
            types: op.output_types().to_vec(),
            partitions: 1,
            operator: join.name().to_string(),
            metrics: join.metrics.clone(),
            kind: StageKind::Mark(Box::new(Marks {
                probe: Arc::new(below.source),
                build,
                join: kernel_join,
                input,
                options,
                mark: op,
                checks,
            })),
        };
        let predicates = match spec.join_type {
            JoinType::LeftSemi => vec![mark],
            JoinType::LeftAnti => vec![datafusion::physical_expr::expressions::not(mark)?],
            _ => vec![],
        };
        return Ok(Pipeline { predicates, outputs: Some(outputs), top, ..Pipeline::of(source) });
    }
    below.joins.push((kernel_join, Side::Build(Box::new(build))));
    below.outputs = Some(outputs);
    below.top = top;
    if kind.marks_build() { below.without_joins(Arc::clone(&spec.schema), profile) } else { Ok(below) }
}

fn join_kind(join_type: JoinType) -> JoinKind {
    match join_type {
        JoinType::Inner => JoinKind::Inner,
        JoinType::Left => JoinKind::Left,
        JoinType::Right => JoinKind::Right,
        JoinType::Full => JoinKind::Full,
        JoinType::LeftSemi => JoinKind::LeftSemi,
        JoinType::LeftAnti => JoinKind::LeftAnti,
        JoinType::LeftMark => JoinKind::LeftMark,
        JoinType::RightSemi => JoinKind::RightSemi,
        JoinType::RightAnti => JoinKind::RightAnti,
        JoinType::RightMark => JoinKind::RightMark,
    }
}

/// An expression with each column replaced by what stands at its position.
fn over_columns(expr: &Arc<dyn PhysicalExpr>, columns: &[Arc<dyn PhysicalExpr>]) -> Result<Arc<dyn PhysicalExpr>> {
    let rewritten = Arc::clone(expr).transform_up(|node| match node.downcast_ref::<Column>() {
        Some(column) => match columns.get(column.index()) {
            Some(output) => Ok(Transformed::yes(Arc::clone(output))),
            None => internal_err!("column {column} lies outside of the {} columns below", columns.len()),
        },
        None => Ok(Transformed::no(node)),
    })?;
    Ok(rewritten.data)
}

/// A pipeline with texts as columns, expressions over them, and the schema of all its columns.
type Lifted = (Pipeline, Vec<Arc<dyn PhysicalExpr>>, SchemaRef);

impl Pipeline {
    fn of(source: Stage) -> Pipeline {
        Pipeline { source, joins: Vec::new(), predicates: Vec::new(), outputs: None, top: None }
    }

    /// The columns of the source and of the joins.
    fn schema(&self) -> SchemaRef {
        if self.joins.is_empty() {
            return Arc::clone(&self.source.schema);
        }
        let joined = self.joins.iter().flat_map(|(join, _)| join.fields().to_vec());
        Arc::new(Schema::new(self.source.schema.fields().iter().cloned().chain(joined).collect::<Vec<_>>()))
    }

    /// Number of columns that predicates and conditions of joins look at.
    fn tested_columns(&self) -> usize {
        let mut columns: Vec<usize> = self.predicates.iter().flat_map(collect_columns).map(|column| column.index()).collect();
        self.joins.iter().filter_map(|(join, _)| join.residual.as_ref()).for_each(|residual| residual.columns(&mut columns));
        columns.into_iter().collect::<HashSet<_>>().len()
    }

    fn computes(&self) -> bool {
        self.outputs.iter().flatten().any(|output| !output.is::<Column>())
    }

    /// The pipeline, ended before what cannot go through joins itself; its rows have the columns of `schema`.
    fn without_joins(self, schema: SchemaRef, profile: Profile) -> Result<Pipeline> {
        if self.joins.is_empty() { Ok(self) } else { Ok(Pipeline::of(self.materialise_joins(schema, true, profile)?)) }
    }

    /// The pipeline with the texts within expressions over its output, of `schema`, as columns behind the others; these
    /// expressions over all of them, and the schema of all. An expression that `stays` may be a text itself.
    fn with_texts(self, schema: &SchemaRef, exprs: &[Arc<dyn PhysicalExpr>], stays: bool, profile: Profile) -> Result<Lifted> {
        let mut texts = Texts::behind(schema);
        let lift = |expr| if stays { texts.lift_within(expr) } else { texts.lift(expr) };
        let lifted = exprs.iter().map(lift).collect::<Result<Vec<_>>>()?;
        if texts.is_empty() {
            return Ok((self, lifted, Arc::clone(schema)));
        }
        let all = Arc::clone(&texts.schema);
        let mut below = self.without_joins(Arc::clone(schema), profile)?;
        let mut width = schema.fields().len();
        for step in texts.steps() {
            let columns = (0..width).map(|index| column(&all, index)).chain(step.iter().cloned());
            let outputs = columns.map(|output| below.over_source(&output)).collect::<Result<_>>()?;
            below.outputs = Some(outputs);
            width += step.len();
            let fields: Vec<_> = all.fields().iter().take(width).cloned().collect();
            below = Pipeline::of(below.materialise(Arc::new(Schema::new(fields)), profile)?);
        }
        below.outputs = Some((0..width).map(|index| column(&all, index)).collect());
        Ok((below, lifted, all))
    }

    /// An expression over this pipeline's output, rewritten over its columns.
    fn over_source(&self, expr: &Arc<dyn PhysicalExpr>) -> Result<Arc<dyn PhysicalExpr>> {
        match &self.outputs {
            Some(outputs) => over_columns(expr, outputs),
            None => Ok(Arc::clone(expr)),
        }
    }

    /// The source with the filter, which is over the columns of the joins too.
    fn input(&self) -> Result<Input> {
        let schema = &self.schema();
        let mut predicates = Vec::new();
        for predicate in &self.predicates {
            match lowered(predicate, schema)? {
                kernels::expr::Expr::And(operands) => predicates.extend(operands),
                other => predicates.push(other),
            }
        }
        let filter = match predicates.len() {
            0 => None,
            1 => predicates.pop(),
            _ => Some(kernels::expr::Expr::And(predicates)),
        };
        Ok(Input { schema: Arc::clone(&self.source.schema), types: self.source.types.clone(), filter })
    }

    /// Ends the pipeline with batches of `schema`.
    fn materialise(self, schema: SchemaRef, profile: Profile) -> Result<Stage> {
        if !self.joins.is_empty() {
            return self.materialise_joins(schema, false, profile);
        }
        let columns = match &self.outputs {
            None => Some((0..self.source.types.len()).collect::<Vec<_>>()),
            Some(outputs) => outputs.iter().map(|output| Some(output.downcast_ref::<Column>()?.index())).collect(),
        };
        let (operator, metrics) = self.top.clone().unwrap_or_default();
        if self.predicates.is_empty()
            && let Some(columns) = columns
        {
            if self.outputs.is_none() && self.source.schema == schema {
                return Ok(self.source);
            }
            return Ok(Stage {
                types: columns.iter().map(|index| self.source.types[*index].clone()).collect(),
                schema,
                partitions: self.source.partitions,
                kind: StageKind::Columns { input: Arc::new(self.source), columns },
                operator,
                metrics,
            });
        }
        let source_schema = Arc::clone(&self.source.schema);
        let outputs: Vec<Arc<dyn PhysicalExpr>> = match &self.outputs {
            Some(outputs) => outputs.clone(),
            None => (0..source_schema.fields().len()).map(|index| column(&source_schema, index)).collect(),
        };
        let fields = schema.fields().iter();
        let pairs =
            outputs.iter().zip(fields).map(|(expr, field)| Ok((lowered_output(expr, &source_schema)?, field.as_ref().clone())));
        let op =
            Select::try_new(self.input()?, pairs.collect::<Result<Vec<_>>>()?, Options::new(profile)).map_err(kernel_error)?;
        let checks = self.predicates.iter().cloned().chain(outputs).collect();
        Ok(Stage {
            types: op.output_types().to_vec(),
            schema,
            partitions: self.source.partitions,
            kind: StageKind::Select { input: Arc::new(self.source), op, checks },
            operator,
            metrics,
        })
    }

    /// As [`materialise`](Self::materialise) where there are joins, whose batches are gathered for those who launch much for
    /// each one.
    fn materialise_joins(self, schema: SchemaRef, gathered: bool, profile: Profile) -> Result<Stage> {
        let joined = self.schema();
        let fields = schema.fields().iter();
        let outputs = match &self.outputs {
            Some(outputs) => outputs.clone(),
            None => (0..joined.fields().len()).map(|index| column(&joined, index)).collect(),
        };
        let outputs = outputs.iter().zip(fields).map(|(expr, field)| Ok((lowered(expr, &joined)?, field.as_ref().clone())));
        let outputs = outputs.collect::<Result<Vec<_>>>()?;
        let (input, options) = (self.input()?, Options::new(profile));
        let (joins, sides): (Vec<_>, Vec<_>) = self.joins.into_iter().unzip();
        let chain = JoinChain::try_new(input.clone(), &joins, None, outputs.clone(), options.clone()).map_err(kernel_error)?;
        let (operator, metrics) = self.top.unwrap_or_default();
        let types = chain.output_types().to_vec();
        let mut gathers = None;
        if gathered && !types.iter().any(|ty| matches!(ty.layout, Layout::Dictionary { .. })) {
            let concat = Concat::try_new(Arc::clone(&schema), types.clone(), options.clone()).map_err(kernel_error)?;
            // Short offsets would become long ones.
            gathers = Some(concat).filter(|concat| concat.output_types() == types);
        }
        let probe = Arc::new(self.source);
        Ok(Stage {
            schema,
            types,
            partitions: 1,
            operator,
            metrics,
            kind: StageKind::Join(Box::new(Joins { probe, sides, joins, input, outputs, options, chain, gathers })),
        })
    }

    fn sort(self, sort: &DeviceSortExec, schema: SchemaRef, profile: Profile) -> Result<Stage> {
        let exprs: Vec<_> = sort.keys().iter().map(|key| Arc::clone(&key.expr)).collect();
        let (below, exprs, _) = self.with_texts(&schema, &exprs, false, profile)?;
        let source_schema = Arc::clone(&below.source.schema);
        let mut checks = below.predicates.clone();
        let mut keys = Vec::new();
        for (key, expr) in sort.keys().iter().zip(&exprs) {
            let expr = below.over_source(expr)?;
            let lowered = lowered(&expr, &source_schema)?;
            keys.push(SortKey { expr: lowered, descending: key.options.descending, nulls_first: key.options.nulls_first });
            checks.push(expr);
        }
        let mut outputs = Vec::new();
        for (index, field) in schema.fields().iter().enumerate() {
            let expr = below.over_source(&column(&schema, index))?;
            outputs.push((lowered(&expr, &source_schema)?, field.as_ref().clone()));
            checks.push(expr);
        }
        let op = Sort::try_new(below.input()?, keys, outputs, sort.fetch_rows(), Options::new(profile)).map_err(kernel_error)?;
        Ok(Stage {
            schema,
            types: op.output_types().to_vec(),
            partitions: 1,
            kind: StageKind::Sort { input: Arc::new(below.source), op: Box::new(op), checks },
            operator: sort.name().to_string(),
            metrics: sort.metrics.clone(),
        })
    }

    /// Aggregates the pipeline's rows, which have the columns of `from`.
    fn aggregate(self, aggregate: &DeviceAggregateExec, from: &SchemaRef, profile: Profile) -> Result<Stage> {
        let spec = &aggregate.spec;
        let schema = Arc::clone(&spec.schema);
        let mut exprs: Vec<Arc<dyn PhysicalExpr>> = spec.keys.iter().map(|(key, _)| Arc::clone(key)).collect();
        exprs.extend(spec.calls.iter().flat_map(|call| call.exprs().cloned()));
        let (below, exprs, _) = self.with_texts(from, &exprs, false, profile)?;
        let mut exprs = exprs.iter();
        let mut next = || match exprs.next() {
            Some(expr) => below.over_source(expr),
            None => internal_err!("an expression of an aggregate is missing"),
        };
        let source_schema = Arc::clone(&below.source.schema);
        let mut checks = below.predicates.clone();
        let mut keys = Vec::new();
        for (_, field) in spec.keys.iter().zip(schema.fields()) {
            let key = next()?;
            keys.push((lowered(&key, &source_schema)?, field.as_ref().clone()));
            checks.push(key);
        }
        let mut aggregates = Vec::new();
        for (call, field) in spec.calls.iter().zip(schema.fields().iter().skip(keys.len())) {
            let exprs: Vec<_> = call.exprs().map(|_| next()).collect::<Result<_>>()?;
            let lowered = call.with_exprs(&exprs).lower(&source_schema);
            let lowered = lowered.map_err(|reason| internal_datafusion_err!("{}: {reason}", call.function.name()))?;
            aggregates.push((lowered, Field::clone(field)));
            checks.extend(exprs);
        }
        let input = below.input()?;
        let options = Options::new(profile);
        let source = Arc::new(below.source);
        let (kind, types) = if keys.is_empty() {
            let op = Reduce::try_new(input, aggregates, options).map_err(kernel_error)?;
            let types = op.output_types().to_vec();
            (StageKind::Reduce { input: source, op, checks }, types)
        } else {
            let op = GroupBy::try_new(input, keys, aggregates, options).map_err(kernel_error)?;
            let types = op.output_types().to_vec();
            (StageKind::GroupBy { input: source, op, checks }, types)
        };
        let operator = aggregate.name().to_string();
        Ok(Stage { kind, schema, types, partitions: 1, operator, metrics: aggregate.metrics.clone() })
    }
}

fn lowered(expr: &Arc<dyn PhysicalExpr>, schema: &Schema) -> Result<kernels::expr::Expr> {
    lower_expr(expr, schema).map_err(|reason| internal_datafusion_err!("{reason}"))
}

fn lowered_output(expr: &Arc<dyn PhysicalExpr>, schema: &Schema) -> Result<kernels::expr::Expr> {
    lower_output(expr, schema).map_err(|reason| internal_datafusion_err!("{reason}"))
}

fn kernel_error(error: kernels::Error) -> DataFusionError {
    plan_datafusion_err!("{error}")
}

fn column(schema: &Schema, index: usize) -> Arc<dyn PhysicalExpr> {
    Arc::new(Column::new(schema.field(index).name(), index))
}

fn child(plan: &Arc<dyn ExecutionPlan>) -> Result<&Arc<dyn ExecutionPlan>> {
    match plan.children().as_slice() {
        [child] => Ok(child),
        children => internal_err!("{} has one child, not {}", plan.name(), children.len()),
    }
}

fn partitions(plan: &Arc<dyn ExecutionPlan>) -> usize {
    use datafusion::physical_plan::ExecutionPlanProperties;
    plan.output_partitioning().partition_count()
}
