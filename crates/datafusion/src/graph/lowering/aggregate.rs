// SPDX-License-Identifier: Apache-2.0
//! Stages of aggregations.

use std::sync::Arc;

use arrow::datatypes::{DataType, Field, SchemaRef};
use columnar::ColumnType;
use datafusion::common::{Result, internal_datafusion_err, internal_err};
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_expr::expressions::Column;
use datafusion::physical_plan::ExecutionPlan;
use kernels::codegen::Profile;
use kernels::expr::{Aggregate, AggregateFunction, Expr as KernelExpr};
use kernels::function::Function;
use kernels::ops::Concat;

use super::Lowering;
use crate::exec::DeviceAggregateExec;
use crate::expr::{AggregateCall, Evaluation, KEY_TYPE, as_key, is_list};
use crate::graph::aggregate::{AggregateOp, OverJoins};
use crate::graph::estimate::estimated_rows;
use crate::graph::pipeline::{LiftedStrings, Pipeline, kernel_error, lowered};
use crate::graph::stage::{ListOutput, Stage, StageKind};

/// Keys and calls of an aggregation over the source of its pipeline.
struct LoweredAggregation {
    keys: Vec<(KernelExpr, Field)>,
    aggregates: Vec<(Aggregate, Field)>,
    lists: Vec<ListOutput>,
    checks: Vec<Arc<dyn PhysicalExpr>>,
}

impl Lowering<'_> {
    pub(super) fn aggregate(&self, aggregate: &DeviceAggregateExec, input: &Arc<dyn ExecutionPlan>) -> Result<Stage> {
        let (spec, from) = (&aggregate.spec, input.schema());
        let options = match self.options.profile {
            Profile::Cpu => self.options.clone(),
            Profile::Gpu => self.options.clone().with_grouped_rows(estimated_rows(input).unwrap_or_default()),
        };
        let keys = spec.keys.iter().map(|(key, _)| Ok((as_key(key, &from)?, Evaluation::Always)));
        let mut exprs = keys.collect::<Result<Vec<_>>>()?;
        let calls = spec.calls.iter().map(|call| call.over_keys(&from)).collect::<Result<Vec<_>>>()?;
        let of_calls = calls.iter().flat_map(AggregateCall::exprs_with_evaluation);
        exprs.extend(of_calls.map(|(expr, evaluation)| (Arc::clone(expr), evaluation)));
        // Lists have their elements in the order of the rows.
        let collects = spec.schema.fields().iter().skip(spec.keys.len()).any(|field| field.data_type().is_list());
        let below = self.with_order(collects).pipeline(input)?.ended_if_joined(Arc::clone(&from))?;
        let LiftedStrings { pipeline: mut below, exprs, .. } = below.lift_strings(&from, &exprs, aggregate.name())?;
        let key_lists = key_lists(aggregate, &below, &from)?;
        // The elements of all lists must come from one batch.
        if collects || !key_lists.is_empty() {
            below.source = self.in_one_batch(below.source, aggregate)?;
        }
        let LoweredAggregation { keys, aggregates, lists, checks } =
            lowered_aggregation(aggregate, &calls, &exprs, &below, key_lists)?;
        let (input, schema) = (below.input()?, Arc::clone(&spec.schema));
        let mut fused = below.operators();
        let source = Arc::new(below.source);
        let goes_through_joins = lists.is_empty() && input.filter.is_none();
        let over_joins = match goes_through_joins {
            true => OverJoins::of(&source, &keys, &aggregates)?.map(Arc::new),
            false => None,
        };
        // The stage of the joins is not opened.
        fused.extend(over_joins.iter().map(|_| source.metrics.clone()));
        let op = Arc::new(AggregateOp::try_new(input, keys, aggregates, options).map_err(kernel_error)?);
        let mut types = op.output_types().to_vec();
        for list in &lists {
            if let (Some(pairs), Some(from)) = (types.get(list.pairs), source.types.get(list.input)) {
                let (nullable, data_type) = (pairs.nullable, schema.field(list.output).data_type().clone());
                types[list.output] = ColumnType { data_type, nullable, layout: from.layout.clone(), bounds: None };
            }
        }
        types.truncate(schema.fields().len());
        Ok(Stage {
            kind: StageKind::Aggregate { input: source, op, checks: checks.into(), lists, over_joins },
            schema,
            types,
            partitions: 1,
            operator: aggregate.name().to_string(),
            metrics: aggregate.metrics.clone().with_fused(fused),
        })
    }

    /// All rows as one batch, charged to the aggregation.
    fn in_one_batch(&self, stage: Stage, aggregate: &DeviceAggregateExec) -> Result<Stage> {
        let concat = Concat::try_new(Arc::clone(&stage.schema), stage.types.clone(), self.options.clone());
        let concat = concat.map_err(kernel_error)?;
        Ok(Stage {
            schema: Arc::clone(&stage.schema),
            types: concat.output_types().to_vec(),
            partitions: 1,
            kind: StageKind::Coalesce { input: Arc::new(stage), concat: Box::new(concat) },
            operator: aggregate.name().to_string(),
            metrics: aggregate.metrics.clone(),
        })
    }
}

/// The keys that are lists: their positions in the output and in the source.
fn key_lists(aggregate: &DeviceAggregateExec, below: &Pipeline<'_>, from: &SchemaRef) -> Result<Vec<(usize, usize)>> {
    let mut key_lists = Vec::new();
    for (output, (key, _)) in aggregate.spec.keys.iter().enumerate() {
        if is_list(key, from)? {
            let Some(column) = below.over_source(key)?.downcast_ref::<Column>().map(Column::index) else {
                return internal_err!("a key of lists that is no column");
            };
            key_lists.push((output, column));
        }
    }
    Ok(key_lists)
}

/// Lowers keys and calls. `exprs`: those of the keys, then of the calls, over the pipeline's
/// output.
fn lowered_aggregation(
    aggregate: &DeviceAggregateExec,
    calls: &[AggregateCall],
    exprs: &[Arc<dyn PhysicalExpr>],
    below: &Pipeline<'_>,
    key_lists: Vec<(usize, usize)>,
) -> Result<LoweredAggregation> {
    let (spec, source_schema) = (&aggregate.spec, &below.source.schema);
    let mut exprs = exprs.iter();
    let mut next = || match exprs.next() {
        Some(expr) => below.over_source(expr),
        None => internal_err!("an expression of an aggregate is missing"),
    };
    let mut checks = below.predicates.clone();
    let mut keys = Vec::new();
    for (_, field) in spec.keys.iter().zip(spec.schema.fields()) {
        let (key, mut field) = (next()?, Field::clone(field));
        if field.data_type().is_list() {
            field = field.with_data_type(KEY_TYPE);
        }
        keys.push((lowered(&key, source_schema)?, field));
        checks.push(key);
    }
    let (mut aggregates, mut lists) = (Vec::new(), Vec::new());
    for (call, field) in calls.iter().zip(spec.schema.fields().iter().skip(keys.len())) {
        let exprs: Vec<_> = call.exprs().map(|_| next()).collect::<Result<_>>()?;
        let lowered = call.with_exprs(&exprs).lower(source_schema);
        let lowered = lowered.map_err(|reason| internal_datafusion_err!("{}: {reason}", call.function.name()))?;
        let mut field = Field::clone(field);
        if let Some(input) = AggregateCall::list(&lowered) {
            let output = keys.len() + aggregates.len();
            lists.push(ListOutput { output, pairs: output, input });
            field = field.with_data_type(lowered.data_type.clone());
        }
        aggregates.push((lowered, field));
        checks.extend(exprs);
    }
    // A group of equal lists shows any of them.
    for (output, input) in key_lists {
        let (arguments, data_type) = (vec![KernelExpr::Column(input)], DataType::UInt64);
        let pair = KernelExpr::Call { function: Function::ListView, arguments, data_type: data_type.clone() };
        let any = AggregateFunction::AnyValue;
        let any = Aggregate { function: any, arguments: vec![pair], filter: None, distinct: false, data_type };
        lists.push(ListOutput { output, pairs: keys.len() + aggregates.len(), input });
        aggregates.push((any, Field::new("pairs", DataType::UInt64, true)));
    }
    Ok(LoweredAggregation { keys, aggregates, lists, checks })
}
