// SPDX-License-Identifier: Apache-2.0
//! Pipelines: a source with row-wise operators, substituted into the operator that ends them.

use std::collections::HashSet;
use std::sync::Arc;

use arrow::datatypes::{Schema, SchemaRef};
use columnar::Layout;
use datafusion::common::tree_node::{Transformed, TreeNode};
use datafusion::common::{DataFusionError, Result, internal_datafusion_err, internal_err, plan_datafusion_err};
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_expr::expressions::Column;
use datafusion::physical_expr::utils::collect_columns;
use kernels::expr::Expr as KernelExpr;
use kernels::ops::{ChainPart, Concat, Input, Join, Options, Select};
use kernels::support::can_fail_over;

use super::joins::{ChainPlan, Joins, Side};
use super::stage::{Stage, StageKind};
use crate::exec::OperatorMetrics;
use crate::expr::{ComputedStrings, Evaluation, lower};

/// A source with the row-wise operators above it.
///
/// Expressions are over the columns of the source, then of the joins that its rows go through.
pub(super) struct Pipeline<'a> {
    pub source: Stage,
    pub joins: Vec<(Join, Side)>,
    pub predicates: Vec<Arc<dyn PhysicalExpr>>,
    /// `None`: the columns of the source and of the joins.
    pub outputs: Option<Vec<Arc<dyn PhysicalExpr>>>,
    /// Name and metrics of the topmost row-wise operator.
    pub top: Option<(String, OperatorMetrics)>,
    /// Metrics of the other row-wise operators.
    pub fused: Vec<OperatorMetrics>,
    /// Metrics of those that give as many rows as the topmost.
    pub of_same_rows: Vec<OperatorMetrics>,
    pub options: &'a Options,
}

/// A pipeline with computed strings as columns.
pub(super) struct LiftedStrings<'a> {
    pub pipeline: Pipeline<'a>,
    /// The expressions over all columns.
    pub exprs: Vec<Arc<dyn PhysicalExpr>>,
    /// The schema of all columns.
    pub schema: SchemaRef,
}

impl<'a> Pipeline<'a> {
    pub fn new(source: Stage, options: &'a Options) -> Pipeline<'a> {
        Pipeline {
            source,
            joins: Vec::new(),
            predicates: Vec::new(),
            outputs: None,
            top: None,
            fused: Vec::new(),
            of_same_rows: Vec::new(),
            options,
        }
    }

    /// Puts an operator on top. `gives_each_row` if it gives a row for each of its input.
    pub fn put(&mut self, operator: &str, metrics: &OperatorMetrics, gives_each_row: bool) {
        let below = self.top.replace((operator.to_string(), metrics.clone())).map(|(_, metrics)| metrics);
        match gives_each_row {
            true => self.of_same_rows.extend(below.clone()),
            false => self.of_same_rows.clear(),
        }
        self.fused.extend(below);
    }

    /// Metrics of all row-wise operators.
    pub fn operators(&self) -> Vec<OperatorMetrics> {
        let top = self.top.iter().map(|(_, metrics)| metrics);
        self.fused.iter().chain(top).cloned().collect()
    }

    /// The columns of the source and of the joins.
    pub fn schema(&self) -> SchemaRef {
        if self.joins.is_empty() {
            return Arc::clone(&self.source.schema);
        }
        let joined = self.joins.iter().flat_map(|(join, _)| join.fields().to_vec());
        Arc::new(Schema::new(self.source.schema.fields().iter().cloned().chain(joined).collect::<Vec<_>>()))
    }

    /// Number of columns that predicates and join conditions read.
    pub fn tested_columns(&self) -> usize {
        let mut columns: Vec<usize> = self.predicates.iter().flat_map(collect_columns).map(|column| column.index()).collect();
        self.joins.iter().filter_map(|(join, _)| join.residual.as_ref()).for_each(|residual| residual.columns(&mut columns));
        columns.into_iter().collect::<HashSet<_>>().len()
    }

    pub fn computes(&self) -> bool {
        self.outputs.iter().flatten().any(|output| !output.is::<Column>())
    }

    /// Ends the pipeline if it computes a fallible expression.
    ///
    /// Such an expression fails for all of its rows, also for those that an operator above drops.
    /// `schema`: the pipeline's columns.
    pub fn ended_if_fallible(self, schema: &SchemaRef) -> Result<Pipeline<'a>> {
        match self.may_fail()? {
            false => Ok(self),
            true => self.ended_with_large_batches(schema),
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
            if can_fail_over(&lowered(output, &schema)?, &types) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Ends a pipeline with joins before an operator that cannot probe them itself.
    pub fn ended_if_joined(self, schema: SchemaRef) -> Result<Pipeline<'a>> {
        match self.joins.is_empty() {
            true => Ok(self),
            false => self.ended_with_large_batches(&schema),
        }
    }

    /// Ends the pipeline. A join's small batches are coalesced for the next one.
    pub fn ended_with_large_batches(self, schema: &SchemaRef) -> Result<Pipeline<'a>> {
        let options = self.options;
        Ok(Pipeline::new(self.materialise(Arc::clone(schema))?.coalescing(options)?, options))
    }

    /// Lifts computed strings of `exprs`, over the pipeline's columns `schema`. Errors name
    /// `operator`.
    pub fn lift_strings(
        self,
        schema: &SchemaRef,
        exprs: &[(Arc<dyn PhysicalExpr>, Evaluation)],
        operator: &str,
    ) -> Result<LiftedStrings<'a>> {
        let mut strings = ComputedStrings::new(schema);
        let exprs = exprs.iter().map(|(expr, evaluation)| strings.lift(expr, *evaluation)).collect::<Result<Vec<_>>>()?;
        Ok(LiftedStrings { pipeline: self.with_string_columns(&strings, schema, operator)?, exprs, schema: strings.schema })
    }

    /// As [`lift_strings`](Self::lift_strings) for outputs of a projection, which may be strings
    /// themselves.
    pub fn lift_strings_of_outputs(
        self,
        schema: &SchemaRef,
        outputs: &[Arc<dyn PhysicalExpr>],
        operator: &str,
    ) -> Result<LiftedStrings<'a>> {
        let mut strings = ComputedStrings::new(schema);
        let exprs = outputs.iter().map(|output| strings.lift_within(output, Evaluation::Always)).collect::<Result<Vec<_>>>()?;
        Ok(LiftedStrings { pipeline: self.with_string_columns(&strings, schema, operator)?, exprs, schema: strings.schema })
    }

    /// Computes strings as columns behind the pipeline's columns `schema`. Errors name `operator`.
    pub fn with_string_columns(self, strings: &ComputedStrings, schema: &SchemaRef, operator: &str) -> Result<Pipeline<'a>> {
        if strings.is_empty() {
            return Ok(self);
        }
        let (all, options) = (&strings.schema, self.options);
        let mut below = self.ended_if_joined(Arc::clone(schema))?;
        let mut width = schema.fields().len();
        for step in strings.steps() {
            let columns = (0..width).map(|index| column(all, index)).chain(step.iter().cloned());
            let outputs = columns.map(|output| below.over_source(&output)).collect::<Result<_>>()?;
            below.outputs = Some(outputs);
            below.top.get_or_insert_with(|| (operator.to_string(), OperatorMetrics::new()));
            width += step.len();
            let fields: Vec<_> = all.fields().iter().take(width).cloned().collect();
            below = Pipeline::new(below.materialise(Arc::new(Schema::new(fields)))?, options);
        }
        below.outputs = Some((0..width).map(|index| column(all, index)).collect());
        Ok(below)
    }

    /// Rewrites an expression over the pipeline's output to one over its source and joins.
    pub fn over_source(&self, expr: &Arc<dyn PhysicalExpr>) -> Result<Arc<dyn PhysicalExpr>> {
        match &self.outputs {
            Some(outputs) => over_columns(expr, outputs),
            None => Ok(Arc::clone(expr)),
        }
    }

    /// The source with the filter, which may read columns of the joins.
    pub fn input(&self) -> Result<Input> {
        let schema = &self.schema();
        let mut predicates = Vec::new();
        for predicate in &self.predicates {
            match lowered(predicate, schema)? {
                KernelExpr::And(operands) => predicates.extend(operands),
                other => predicates.push(other),
            }
        }
        let filter = match predicates.len() {
            0 => None,
            1 => predicates.pop(),
            _ => Some(KernelExpr::And(predicates)),
        };
        Ok(Input { schema: Arc::clone(&self.source.schema), types: self.source.types.clone(), filter })
    }

    /// Ends the pipeline with a stage that writes batches of `schema`.
    pub fn materialise(self, schema: SchemaRef) -> Result<Stage> {
        if !self.joins.is_empty() {
            return self.materialise_joins(schema);
        }
        let columns = match &self.outputs {
            None => Some((0..self.source.types.len()).collect::<Vec<_>>()),
            Some(outputs) => outputs.iter().map(|output| Some(output.downcast_ref::<Column>()?.index())).collect(),
        };
        let (operator, metrics) = self.top.clone().unwrap_or_default();
        let metrics = metrics.with_fused(self.fused.iter().cloned()).with_fused_of_same_rows(self.of_same_rows.iter().cloned());
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
        let outputs = self.all_outputs();
        let pairs = kernel_outputs(&outputs, &self.source.schema, &schema)?;
        let op = Select::try_new(self.input()?, pairs, self.options.clone()).map_err(kernel_error)?;
        let checks = self.predicates.iter().cloned().chain(outputs).collect();
        Ok(Stage {
            types: op.output_types().to_vec(),
            schema,
            partitions: self.source.partitions,
            kind: StageKind::Select { input: Arc::new(self.source), op: Arc::new(op), checks },
            operator,
            metrics,
        })
    }

    fn materialise_joins(self, schema: SchemaRef) -> Result<Stage> {
        let computed = self.all_outputs();
        let outputs = kernel_outputs(&computed, &self.schema(), &schema)?;
        let (input, options) = (self.input()?, self.options.clone());
        let (joins, sides): (Vec<_>, Vec<_>) = self.joins.into_iter().unzip();
        let part = ChainPart { input, joins, outputs };
        let chain = part.chain(None, &options).map_err(kernel_error)?;
        let (operator, metrics) = self.top.unwrap_or_default();
        let metrics = metrics.with_fused(self.fused).with_fused_of_same_rows(self.of_same_rows);
        let types = chain.output_types().to_vec();
        let plan = ChainPlan { part, sides, predicates: self.predicates, computed, types: types.clone(), options };
        let joins = Joins { probe: Arc::new(self.source), plan: Arc::new(plan), chain, coalescer: None };
        Ok(Stage { schema, types, partitions: 1, operator, metrics, kind: StageKind::Join(Arc::new(joins)) })
    }

    fn all_outputs(&self) -> Vec<Arc<dyn PhysicalExpr>> {
        let schema = self.schema();
        match &self.outputs {
            Some(outputs) => outputs.clone(),
            None => (0..schema.fields().len()).map(|index| column(&schema, index)).collect(),
        }
    }
}

impl Stage {
    /// Coalesces the small batches of a join, for a launch-heavy reader.
    ///
    /// Not if the host would have to read the rows, as for dictionaries, or short offsets would
    /// become long ones.
    pub(super) fn coalescing(mut self, options: &Options) -> Result<Stage> {
        let has_dictionaries = self.types.iter().any(|ty| matches!(ty.layout, Layout::Dictionary { .. }));
        let joins = match &mut self.kind {
            StageKind::Join(joins) if !has_dictionaries => joins,
            StageKind::Join(_)
            | StageKind::Upload { .. }
            | StageKind::Scan { .. }
            | StageKind::Stream { .. }
            | StageKind::Columns { .. }
            | StageKind::Select { .. }
            | StageKind::Aggregate { .. }
            | StageKind::LibraryCalls { .. }
            | StageKind::LibraryAggregates { .. }
            | StageKind::Unnest { .. }
            | StageKind::Coalesce { .. }
            | StageKind::Sort { .. }
            | StageKind::Expand { .. }
            | StageKind::Union { .. }
            | StageKind::Window { .. }
            | StageKind::BuildSideJoin(_)
            | StageKind::Shared { .. }
            | StageKind::Limit { .. } => return Ok(self),
        };
        let concat = Concat::try_new(Arc::clone(&self.schema), self.types.clone(), options.clone());
        // No other stage has these joins yet, so nothing is copied.
        Arc::make_mut(joins).coalescer = Some(concat.map_err(kernel_error)?).filter(|concat| concat.output_types() == self.types);
        Ok(self)
    }
}

/// Replaces each column of an expression by the expression at its position.
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

fn kernel_outputs(
    outputs: &[Arc<dyn PhysicalExpr>],
    over: &Schema,
    schema: &Schema,
) -> Result<Vec<(KernelExpr, arrow::datatypes::Field)>> {
    let pairs = outputs.iter().zip(schema.fields());
    pairs.map(|(output, field)| Ok((lowered(output, over)?, field.as_ref().clone()))).collect()
}

pub(super) fn lowered(expr: &Arc<dyn PhysicalExpr>, schema: &Schema) -> Result<KernelExpr> {
    lower(expr, schema).map_err(|reason| internal_datafusion_err!("{reason}"))
}

pub(super) fn kernel_error(error: kernels::Error) -> DataFusionError {
    plan_datafusion_err!("{error}")
}

pub(super) fn column(schema: &Schema, index: usize) -> Arc<dyn PhysicalExpr> {
    Arc::new(Column::new(schema.field(index).name(), index))
}
