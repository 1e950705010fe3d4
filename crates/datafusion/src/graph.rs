// SPDX-License-Identifier: Apache-2.0
//! From a device subtree to a graph of pipelines: pure, without a device.
//!
//! Row-wise operators (filter, projection) are substituted into the operator that ends their
//! pipeline; what remains are [`Stage`]s, each of which reads the batches of the one below.

use std::sync::Arc;

use arrow::datatypes::{Field, Schema, SchemaRef};
use columnar::ColumnType;
use datafusion::common::tree_node::{Transformed, TreeNode};
use datafusion::common::{Result, internal_datafusion_err, internal_err, plan_datafusion_err};
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_expr::expressions::Column;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::metrics::ExecutionPlanMetricsSet;
use datafusion::physical_plan::placeholder_row::PlaceholderRowExec;
use kernels::codegen::Profile;
use kernels::ops::{Decode, GroupBy, Input, Options, Reduce, Select};

use crate::aggregate::lower_aggregate;
use crate::exchange::Source;
use crate::exec::{
    DeviceAggregateExec, DeviceFilterExec, DeviceLimitExec, DeviceProjectionExec, DeviceScanExec, DeviceStreamExec,
    DeviceUploadExec,
};
use crate::expr::lower as lower_expr;
use crate::planner::reads_files;
use crate::table::Snapshot;

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
    /// Some rows of each partition.
    Limit { input: Arc<Stage>, skip: usize, fetch: Option<usize> },
}

impl Stage {
    /// Whether host batches go up below, or may.
    pub fn uploads(&self) -> bool {
        match &self.kind {
            StageKind::Upload { .. } | StageKind::Stream { .. } => true,
            StageKind::Scan { .. } => false,
            StageKind::Columns { input, .. }
            | StageKind::Limit { input, .. }
            | StageKind::Select { input, .. }
            | StageKind::Reduce { input, .. }
            | StageKind::GroupBy { input, .. } => input.uploads(),
        }
    }

    /// Whether its batches come from outside of the device's own memory.
    pub fn reads_others(&self) -> bool {
        matches!(self.kind, StageKind::Upload { .. } | StageKind::Stream { .. })
    }

    /// Number of pipelines that launch kernels.
    pub fn pipelines(&self) -> usize {
        match &self.kind {
            StageKind::Upload { .. } | StageKind::Scan { .. } | StageKind::Stream { .. } => 0,
            StageKind::Columns { input, .. } | StageKind::Limit { input, .. } => input.pipelines(),
            StageKind::Select { input, .. } | StageKind::Reduce { input, .. } | StageKind::GroupBy { input, .. } => {
                input.pipelines() + 1
            }
        }
    }

    /// Names and texts of all kernels, the first to run first.
    pub fn kernel_texts(&self) -> Vec<(String, String)> {
        let (input, own) = match &self.kind {
            StageKind::Upload { .. } | StageKind::Scan { .. } | StageKind::Stream { .. } => return Vec::new(),
            StageKind::Columns { input, .. } | StageKind::Limit { input, .. } => (input, Vec::new()),
            StageKind::Select { input, op, .. } => (input, op.kernel_text()),
            StageKind::Reduce { input, op, .. } => (input, op.kernel_text()),
            StageKind::GroupBy { input, op, .. } => (input, op.kernel_text()),
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

/// A source with the row-wise operators above it, all over the source's columns.
struct Pipeline {
    source: Stage,
    predicates: Vec<Arc<dyn PhysicalExpr>>,
    /// `None`: the source's columns as they are.
    outputs: Option<Vec<Arc<dyn PhysicalExpr>>>,
    /// Name and metrics of the topmost row-wise operator.
    top: Option<(String, ExecutionPlanMetricsSet)>,
}

fn pipeline(plan: &Arc<dyn ExecutionPlan>, profile: Profile) -> Result<Pipeline> {
    if let Some(filter) = plan.downcast_ref::<DeviceFilterExec>() {
        let mut below = pipeline(child(plan)?, profile)?;
        below.predicates.push(below.over_source(filter.predicate())?);
        if let Some(projection) = filter.projection() {
            let schema = child(plan)?.schema();
            let columns = projection.iter().map(|index| column(&schema, *index));
            below.outputs = Some(columns.map(|column| below.over_source(&column)).collect::<Result<_>>()?);
        }
        below.top = Some((plan.name().to_string(), filter.metrics.clone()));
        return Ok(below);
    }
    if let Some(projection) = plan.downcast_ref::<DeviceProjectionExec>() {
        let mut below = pipeline(child(plan)?, profile)?;
        let outputs = projection.expressions().iter().map(|output| below.over_source(&output.expr));
        below.outputs = Some(outputs.collect::<Result<_>>()?);
        below.top = Some((plan.name().to_string(), projection.metrics.clone()));
        return Ok(below);
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
    } else if let Some(aggregate) = plan.downcast_ref::<DeviceAggregateExec>() {
        pipeline(child(plan)?, profile)?.aggregate(aggregate, profile)?
    } else {
        return internal_err!("{} is not a device operator", plan.name());
    };
    Ok(Pipeline { source, predicates: Vec::new(), outputs: None, top: None })
}

impl Pipeline {
    /// An expression over this pipeline's output, rewritten over the source's columns.
    fn over_source(&self, expr: &Arc<dyn PhysicalExpr>) -> Result<Arc<dyn PhysicalExpr>> {
        let Some(outputs) = &self.outputs else { return Ok(Arc::clone(expr)) };
        let rewritten = Arc::clone(expr).transform_up(|node| match node.downcast_ref::<Column>() {
            Some(column) => match outputs.get(column.index()) {
                Some(output) => Ok(Transformed::yes(Arc::clone(output))),
                None => internal_err!("column {column} lies outside of the {} columns below", outputs.len()),
            },
            None => Ok(Transformed::no(node)),
        })?;
        Ok(rewritten.data)
    }

    fn input(&self) -> Result<Input> {
        let schema = &self.source.schema;
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
        Ok(Input { schema: Arc::clone(schema), types: self.source.types.clone(), filter })
    }

    /// Ends the pipeline with batches of `schema`.
    fn materialise(self, schema: SchemaRef, profile: Profile) -> Result<Stage> {
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
        let pairs = outputs.iter().zip(fields).map(|(expr, field)| Ok((lowered(expr, &source_schema)?, field.as_ref().clone())));
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

    fn aggregate(self, aggregate: &DeviceAggregateExec, profile: Profile) -> Result<Stage> {
        let spec = &aggregate.spec;
        let schema = Arc::clone(&spec.schema);
        let source_schema = Arc::clone(&self.source.schema);
        let mut checks = self.predicates.clone();
        let mut keys = Vec::new();
        for ((key, _), field) in spec.keys.iter().zip(schema.fields()) {
            let key = self.over_source(key)?;
            keys.push((lowered(&key, &source_schema)?, field.as_ref().clone()));
            checks.push(key);
        }
        let mut aggregates = Vec::new();
        for ((function, filter), field) in spec.aggregates.iter().zip(&spec.filters).zip(schema.fields().iter().skip(keys.len()))
        {
            let arguments: Vec<_> = function.expressions().iter().map(|expr| self.over_source(expr)).collect::<Result<_>>()?;
            let filter = filter.as_ref().map(|filter| self.over_source(filter)).transpose()?;
            let lowered = lower_over(function, &arguments, filter.as_ref(), &source_schema)?;
            aggregates.push((lowered, Field::clone(field)));
            checks.extend(filter);
            checks.extend(arguments);
        }
        let input = self.input()?;
        let options = Options::new(profile);
        let source = Arc::new(self.source);
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

fn lower_over(
    function: &datafusion::physical_expr::aggregate::AggregateFunctionExpr,
    arguments: &[Arc<dyn PhysicalExpr>],
    filter: Option<&Arc<dyn PhysicalExpr>>,
    schema: &Schema,
) -> Result<kernels::expr::Aggregate> {
    lower_aggregate(function, arguments, filter, schema)
        .map_err(|reason| internal_datafusion_err!("{}: {reason}", function.name()))
}

fn lowered(expr: &Arc<dyn PhysicalExpr>, schema: &Schema) -> Result<kernels::expr::Expr> {
    lower_expr(expr, schema).map_err(|reason| internal_datafusion_err!("{reason}"))
}

fn kernel_error(error: kernels::Error) -> datafusion::common::DataFusionError {
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
