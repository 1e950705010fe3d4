// SPDX-License-Identifier: Apache-2.0
//! Row-wise operators, substituted into what ends their pipeline.

use std::collections::HashSet;
use std::sync::Arc;

use arrow::datatypes::{Schema, SchemaRef};
use datafusion::common::tree_node::{Transformed, TreeNode};
use datafusion::common::{DataFusionError, Result, internal_datafusion_err, internal_err, plan_datafusion_err};
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_expr::expressions::Column;
use datafusion::physical_expr::utils::collect_columns;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::metrics::ExecutionPlanMetricsSet;
use datafusion::physical_plan::placeholder_row::PlaceholderRowExec;
use kernels::function::Function;
use kernels::ops::{Decode, Input, Join, Options, Select};
use kernels::support::can_fail_over;

use super::join::{Side, filtered, joined};
use super::operators::{called, expanded, folded, shared_rows, unioned, unnested, windowed};
use super::{Stage, StageKind};
use crate::exec::{
    DeviceAggregateExec, DeviceDynamicFilterExec, DeviceExpandExec, DeviceFilterExec, DeviceFutharkExec, DeviceJoinExec,
    DeviceLimitExec, DeviceProjectionExec, DeviceReuseExec, DeviceScanExec, DeviceSharedExec, DeviceSortExec, DeviceStreamExec,
    DeviceUnionExec, DeviceUnnestExec, DeviceWindowExec, HostToDeviceExec, reads_files,
};
use crate::expr::{DeviceFunction, Rows, Texts, lower as lower_expr, lower_output, must_be_column};

/// A source with the row-wise operators above it, all over the columns of the source and of the joins that its rows go
/// through, one after another.
pub(super) struct Pipeline {
    pub(super) source: Stage,
    pub(super) joins: Vec<(Join, Side)>,
    pub(super) predicates: Vec<Arc<dyn PhysicalExpr>>,
    /// `None`: the source's columns as they are.
    pub(super) outputs: Option<Vec<Arc<dyn PhysicalExpr>>>,
    /// Name and metrics of the topmost row-wise operator.
    pub(super) top: Option<(String, ExecutionPlanMetricsSet)>,
}

pub(super) fn pipeline(plan: &Arc<dyn ExecutionPlan>, options: &Options) -> Result<Pipeline> {
    if let Some(filter) = plan.downcast_ref::<DeviceFilterExec>() {
        let schema = child(plan)?.schema();
        let predicate = [(Arc::clone(filter.predicate()), Rows::All)];
        let below = pipeline(child(plan)?, options)?.with_failures(&schema, options)?;
        let (mut below, predicates, _) = below.with_texts(&schema, &predicate, false, plan.name(), options)?;
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
        let outputs: Vec<_> = projection.expressions().iter().map(|output| (Arc::clone(&output.expr), Rows::All)).collect();
        let below = pipeline(child(plan)?, options)?;
        let (mut below, outputs, schema) = below.with_texts(&child(plan)?.schema(), &outputs, true, plan.name(), options)?;
        let writes = outputs.iter().any(|output| must_be_column(output, &schema));
        if writes {
            below = below.without_joins(Arc::clone(&schema), options)?;
        }
        // The rows of a list lie in a column.
        if outputs.iter().any(|output| DeviceFunction::is_call(output, Function::ListOfRows)) && below.computes() {
            below = Pipeline::of(below.materialise(schema, options)?);
        }
        let outputs = outputs.iter().map(|output| below.over_source(output));
        below.outputs = Some(outputs.collect::<Result<_>>()?);
        below.top = Some((plan.name().to_string(), projection.metrics.clone()));
        // New text is a column before anything takes it, and so are new lists.
        return if writes { Ok(Pipeline::of(below.materialise(plan.schema(), options)?)) } else { Ok(below) };
    }
    if let Some(filter) = plan.downcast_ref::<DeviceDynamicFilterExec>() {
        return filtered(filter, options);
    }
    if let Some(join) = plan.downcast_ref::<DeviceJoinExec>() {
        return joined(join, options);
    }
    let source = if let Some(upload) = plan.downcast_ref::<HostToDeviceExec>() {
        // The rows of a PlaceholderRowExec have no columns that anything could refer to.
        let placeholder = upload.input().is::<PlaceholderRowExec>();
        let schema = if placeholder { Arc::new(Schema::empty()) } else { upload.input().schema() };
        let types = if reads_files(upload.input()) { columnar::file_types(&schema) } else { columnar::natural_types(&schema) };
        let types = types.map_err(|error| plan_datafusion_err!("HostToDeviceExec: {error}"))?;
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
        let decode = Decode::try_new(plan.schema(), options.clone());
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
        let below = pipeline(child(plan)?, options)?;
        let input = below.materialise(child(plan)?.schema(), options)?;
        Stage {
            schema: Arc::clone(&input.schema),
            types: input.types.clone(),
            partitions: partitions(plan),
            kind: StageKind::Limit { input: Arc::new(input), skip: limit.skip(), fetch: limit.fetch_rows() },
            operator: plan.name().to_string(),
            metrics: limit.metrics.clone(),
        }
    } else if let Some(shared) = plan.downcast_ref::<DeviceSharedExec>() {
        shared_rows(plan, shared.input(), (shared.sharing(), false), &shared.metrics, options)?
    } else if let Some(reuse) = plan.downcast_ref::<DeviceReuseExec>() {
        shared_rows(plan, reuse.shared(), (reuse.sharing(), true), &reuse.metrics, options)?
    } else if let Some(aggregate) = plan.downcast_ref::<DeviceAggregateExec>()
        && aggregate.is_of_libraries()
    {
        let input = pipeline(child(plan)?, options)?.materialise(child(plan)?.schema(), options)?;
        folded(aggregate, input, options)?
    } else if let Some(aggregate) = plan.downcast_ref::<DeviceAggregateExec>() {
        let schema = child(plan)?.schema();
        pipeline(child(plan)?, options)?.without_joins(Arc::clone(&schema), options)?.aggregate(aggregate, &schema, options)?
    } else if let Some(sort) = plan.downcast_ref::<DeviceSortExec>() {
        let schema = child(plan)?.schema();
        let mut below = pipeline(child(plan)?, options)?;
        if !below.joins.is_empty() {
            below = Pipeline::of(below.materialise(Arc::clone(&schema), options)?);
        }
        below.sort(sort, schema, options)?
    } else if let Some(expand) = plan.downcast_ref::<DeviceExpandExec>() {
        expanded(expand, options)?
    } else if let Some(unnest) = plan.downcast_ref::<DeviceUnnestExec>() {
        let input = pipeline(child(plan)?, options)?.materialise(child(plan)?.schema(), options)?;
        unnested(unnest, input, plan, options)?
    } else if let Some(futhark) = plan.downcast_ref::<DeviceFutharkExec>() {
        let input = pipeline(child(plan)?, options)?.materialise(child(plan)?.schema(), options)?;
        called(futhark, input, plan, options)?
    } else if let Some(union) = plan.downcast_ref::<DeviceUnionExec>() {
        unioned(union, options)?
    } else if let Some(window) = plan.downcast_ref::<DeviceWindowExec>() {
        windowed(window, child(plan)?, plan.schema(), options)?
    } else {
        return internal_err!("{} is not a device operator", plan.name());
    };
    Ok(Pipeline::of(source))
}

/// An expression with each column replaced by what stands at its position.
pub(super) fn over_columns(expr: &Arc<dyn PhysicalExpr>, columns: &[Arc<dyn PhysicalExpr>]) -> Result<Arc<dyn PhysicalExpr>> {
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
pub(super) type Lifted = (Pipeline, Vec<Arc<dyn PhysicalExpr>>, SchemaRef);

impl Pipeline {
    pub(super) fn of(source: Stage) -> Pipeline {
        Pipeline { source, joins: Vec::new(), predicates: Vec::new(), outputs: None, top: None }
    }

    /// The columns of the source and of the joins.
    pub(super) fn schema(&self) -> SchemaRef {
        if self.joins.is_empty() {
            return Arc::clone(&self.source.schema);
        }
        let joined = self.joins.iter().flat_map(|(join, _)| join.fields().to_vec());
        Arc::new(Schema::new(self.source.schema.fields().iter().cloned().chain(joined).collect::<Vec<_>>()))
    }

    /// Number of columns that predicates and conditions of joins look at.
    pub(super) fn tested_columns(&self) -> usize {
        let mut columns: Vec<usize> = self.predicates.iter().flat_map(collect_columns).map(|column| column.index()).collect();
        self.joins.iter().filter_map(|(join, _)| join.residual.as_ref()).for_each(|residual| residual.columns(&mut columns));
        columns.into_iter().collect::<HashSet<_>>().len()
    }

    pub(super) fn computes(&self) -> bool {
        self.outputs.iter().flatten().any(|output| !output.is::<Column>())
    }

    /// The pipeline, ended where it computes what may fail: that is for all of its rows, also for those that are dropped further
    /// up. Its rows have the columns of `schema`.
    pub(super) fn with_failures(self, schema: &SchemaRef, options: &Options) -> Result<Pipeline> {
        match self.may_fail()? {
            false => Ok(self),
            true => Ok(Pipeline::of(self.materialise(Arc::clone(schema), options)?.gathered(options)?)),
        }
    }

    fn may_fail(&self) -> Result<bool> {
        if !self.computes() {
            return Ok(false);
        }
        let schema = self.schema();
        let mut types = columnar::natural_types(&schema).map_err(|error| plan_datafusion_err!("{error}"))?;
        types.splice(..self.source.types.len(), self.source.types.iter().cloned());
        for output in self.outputs.iter().flatten() {
            if can_fail_over(&lowered_output(output, &schema)?, &types) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// The pipeline, ended before what cannot go through joins itself; its rows have the columns of `schema`.
    pub(super) fn without_joins(self, schema: SchemaRef, options: &Options) -> Result<Pipeline> {
        if self.joins.is_empty() {
            Ok(self)
        } else {
            Ok(Pipeline::of(self.materialise_joins(schema, options)?.gathered(options)?))
        }
    }

    /// The pipeline with the texts within expressions over its output, of `schema`, as columns behind the others; these
    /// expressions over all of them, and the schema of all. An expression that `stays` may be a text itself.
    pub(super) fn with_texts(
        self,
        schema: &SchemaRef,
        exprs: &[(Arc<dyn PhysicalExpr>, Rows)],
        stays: bool,
        operator: &str,
        options: &Options,
    ) -> Result<Lifted> {
        let mut texts = Texts::behind(schema);
        let lift = |(expr, rows): &(_, _)| if stays { texts.lift_within(expr, *rows) } else { texts.lift(expr, *rows) };
        let lifted = exprs.iter().map(lift).collect::<Result<Vec<_>>>()?;
        Ok((self.with_columns(&texts, schema, operator, options)?, lifted, texts.schema))
    }

    /// The pipeline with texts over its output, of `schema`, as columns behind the others, for an `operator` that errors name.
    pub(super) fn with_columns(self, texts: &Texts, schema: &SchemaRef, operator: &str, options: &Options) -> Result<Pipeline> {
        if texts.is_empty() {
            return Ok(self);
        }
        let all = &texts.schema;
        let mut below = self.without_joins(Arc::clone(schema), options)?;
        let mut width = schema.fields().len();
        for step in texts.steps() {
            let columns = (0..width).map(|index| column(all, index)).chain(step.iter().cloned());
            let outputs = columns.map(|output| below.over_source(&output)).collect::<Result<_>>()?;
            below.outputs = Some(outputs);
            below.top.get_or_insert_with(|| (operator.to_string(), ExecutionPlanMetricsSet::new()));
            width += step.len();
            let fields: Vec<_> = all.fields().iter().take(width).cloned().collect();
            below = Pipeline::of(below.materialise(Arc::new(Schema::new(fields)), options)?);
        }
        below.outputs = Some((0..width).map(|index| column(all, index)).collect());
        Ok(below)
    }

    /// An expression over this pipeline's output, rewritten over its columns.
    pub(super) fn over_source(&self, expr: &Arc<dyn PhysicalExpr>) -> Result<Arc<dyn PhysicalExpr>> {
        match &self.outputs {
            Some(outputs) => over_columns(expr, outputs),
            None => Ok(Arc::clone(expr)),
        }
    }

    /// The source with the filter, which is over the columns of the joins too.
    pub(super) fn input(&self) -> Result<Input> {
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
    pub(super) fn materialise(self, schema: SchemaRef, options: &Options) -> Result<Stage> {
        if !self.joins.is_empty() {
            return self.materialise_joins(schema, options);
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
        let op = Select::try_new(self.input()?, pairs.collect::<Result<Vec<_>>>()?, options.clone()).map_err(kernel_error)?;
        let checks = self.predicates.iter().cloned().chain(outputs).collect();
        Ok(Stage {
            types: op.output_types().to_vec(),
            schema,
            partitions: self.source.partitions,
            kind: StageKind::Select { input: Arc::new(self.source), op: Box::new(op), checks },
            operator,
            metrics,
        })
    }
}

pub(super) fn lowered(expr: &Arc<dyn PhysicalExpr>, schema: &Schema) -> Result<kernels::expr::Expr> {
    lower_expr(expr, schema).map_err(|reason| internal_datafusion_err!("{reason}"))
}

pub(super) fn lowered_output(expr: &Arc<dyn PhysicalExpr>, schema: &Schema) -> Result<kernels::expr::Expr> {
    lower_output(expr, schema).map_err(|reason| internal_datafusion_err!("{reason}"))
}

pub(super) fn kernel_error(error: kernels::Error) -> DataFusionError {
    plan_datafusion_err!("{error}")
}

pub(super) fn column(schema: &Schema, index: usize) -> Arc<dyn PhysicalExpr> {
    Arc::new(Column::new(schema.field(index).name(), index))
}

pub(super) fn child(plan: &Arc<dyn ExecutionPlan>) -> Result<&Arc<dyn ExecutionPlan>> {
    match plan.children().as_slice() {
        [child] => Ok(child),
        children => internal_err!("{} has one child, not {}", plan.name(), children.len()),
    }
}

pub(super) fn partitions(plan: &Arc<dyn ExecutionPlan>) -> usize {
    use datafusion::physical_plan::ExecutionPlanProperties;
    plan.output_partitioning().partition_count()
}
