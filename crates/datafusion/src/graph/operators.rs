// SPDX-License-Identifier: Apache-2.0
//! The stages of operators that end a pipeline, or that bring several together.

use std::sync::Arc;

use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use columnar::{Carrier, ColumnType, Layout};
use datafusion::common::{Result, internal_datafusion_err, internal_err};
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_expr::expressions::Column;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::metrics::ExecutionPlanMetricsSet;
use kernels::expr::{Aggregate, AggregateFunction, Expr as KernelExpr};
use kernels::function::Function;
use kernels::ops::{Concat, Input, NullStripping, Options, Sort, SortKey, UnifyLayouts, Unnest, UnnestOutput, Window};

use super::pipeline::{Pipeline, column, kernel_error, lowered, lowered_output, partitions, pipeline};
use super::{AggregateOp, LibraryCall, LibraryFold, ListOutput, OverJoins, Stage, StageKind};
use crate::aggregate::AggregateCall;
use crate::exec::{
    DeviceAggregateExec, DeviceExpandExec, DeviceFutharkExec, DeviceSortExec, DeviceUnionExec, DeviceUnnestExec,
    DeviceWindowExec, GroupingSet, Sharing,
};
use crate::futhark::{Fold, types_of};
use crate::list_key::{KEY_TYPE, as_key, as_sort_key, is_list};
use crate::planner::{is_bounded, lower_window};
use crate::texts::{Rows, Texts};

/// Rows that several stages read; `again`: those who read them again.
pub(super) fn shared_rows(
    plan: &Arc<dyn ExecutionPlan>,
    rows: &Arc<dyn ExecutionPlan>,
    (sharing, again): (&Sharing, bool),
    metrics: &ExecutionPlanMetricsSet,
    options: &Options,
) -> Result<Stage> {
    let input = pipeline(rows, options)?.materialise(rows.schema(), options)?;
    Ok(Stage {
        schema: Arc::clone(&input.schema),
        types: input.types.clone(),
        partitions: 1,
        kind: StageKind::Shared { input: Arc::new(input), sharing: sharing.clone(), again },
        operator: plan.name().to_string(),
        metrics: metrics.clone(),
    })
}

/// Rows that come once for each set of keys.
pub(super) fn expanded(expand: &DeviceExpandExec, options: &Options) -> Result<Stage> {
    let below = expand.input().schema();
    let input = pipeline(expand.input(), options)?.materialise(Arc::clone(&below), options)?.gathered(options)?;
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

pub(super) fn real_type() -> ColumnType {
    ColumnType { data_type: DataType::Boolean, nullable: false, layout: Layout::Bits, bounds: None }
}

/// The type of the sets' numbers, up to `most`.
pub(super) fn grouping_id_type(most: u8) -> ColumnType {
    let bounds = Some((0, i128::from(most)));
    ColumnType { data_type: DataType::UInt8, nullable: false, layout: Layout::Fixed(Carrier::U8), bounds }
}

/// The elements of the input's lists, a row for each.
pub(super) fn unnested(
    unnest: &DeviceUnnestExec,
    input: Stage,
    plan: &Arc<dyn ExecutionPlan>,
    options: &Options,
) -> Result<Stage> {
    let schema = plan.schema();
    let outputs = (0..input.types.len()).zip(schema.fields()).map(|(column, field)| {
        let output = if unnest.lists().contains(&column) { UnnestOutput::Elements(column) } else { UnnestOutput::Row(column) };
        (output, field.as_ref().clone())
    });
    let outputs = outputs.collect();
    let op = Unnest::try_new(Arc::clone(&input.schema), input.types.clone(), outputs, unnest.keeps(), options.clone());
    let op = op.map_err(kernel_error)?;
    Ok(Stage {
        types: op.output_types().to_vec(),
        schema,
        partitions: partitions(plan),
        kind: StageKind::Unnest { input: Arc::new(input), op: Box::new(op) },
        operator: plan.name().to_string(),
        metrics: unnest.metrics.clone(),
    })
}

/// Results of libraries behind the columns of the input.
pub(super) fn called(
    futhark: &DeviceFutharkExec,
    input: Stage,
    plan: &Arc<dyn ExecutionPlan>,
    options: &Options,
) -> Result<Stage> {
    let (schema, width) = (plan.schema(), input.types.len());
    let mut types = input.types.clone();
    let (mut calls, mut checks) = (Vec::new(), Vec::new());
    for (call, result) in futhark.calls().iter().zip(schema.fields().iter().skip(width)) {
        let fields = schema.fields().iter().take(types.len()).cloned().collect::<Vec<_>>();
        let before = Arc::new(Schema::new_with_metadata(fields, schema.metadata().clone()));
        let arguments = call.arguments(&before).map_err(|reason| internal_datafusion_err!("{reason}"))?;
        let way = NullStripping::try_new(Arc::clone(&before), types.clone(), arguments, options.clone()).map_err(kernel_error)?;
        let Some(ty) = ColumnType::of(result.data_type(), way.is_nullable() || call.gives_nulls()) else {
            return internal_err!(
                "{} gives {}, which is not supported on the device",
                call.function().name(),
                result.data_type()
            );
        };
        types.push(ty.clone());
        checks.push(Arc::clone(call.expr()));
        calls.push(LibraryCall { call: Arc::new(call.clone()), way, schema: before, ty: Arc::new(ty) });
    }
    Ok(Stage {
        partitions: partitions(plan),
        kind: StageKind::Futhark { input: Arc::new(input), calls, checks },
        schema,
        types,
        operator: plan.name().to_string(),
        metrics: futhark.metrics.clone(),
    })
}

/// What libraries make of all rows of the input.
pub(super) fn folded(aggregate: &DeviceAggregateExec, input: Stage, options: &Options) -> Result<Stage> {
    let schema = Arc::clone(&aggregate.spec.schema);
    let (mut folds, mut checks) = (Vec::new(), Vec::new());
    for call in &aggregate.spec.calls {
        let of_plan = |reason| internal_datafusion_err!("{}: {reason}", call.function.name());
        let fold = Fold::try_new(call, &input.schema).map_err(of_plan)?;
        let arguments = fold.arguments(&input.schema).map_err(of_plan)?;
        let way = NullStripping::try_new(Arc::clone(&input.schema), input.types.clone(), arguments, options.clone());
        checks.extend(fold.columns().iter().cloned());
        folds.push(LibraryFold { fold: Arc::new(fold), way: way.map_err(kernel_error)? });
    }
    let Some(types) = types_of(&schema) else { return internal_err!("{schema} is not supported on the device") };
    Ok(Stage {
        kind: StageKind::Fold { input: Arc::new(input), folds, checks },
        schema,
        types,
        partitions: 1,
        operator: aggregate.name().to_string(),
        metrics: aggregate.metrics.clone(),
    })
}

/// The rows of several stages.
pub(super) fn unioned(union: &DeviceUnionExec, options: &Options) -> Result<Stage> {
    let schema = union.schema();
    let inputs = union.children().into_iter().map(|child| pipeline(child, options)?.materialise(child.schema(), options));
    let inputs = inputs.collect::<Result<Vec<_>>>()?;
    let sources: Vec<&[ColumnType]> = inputs.iter().map(|input| input.types.as_slice()).collect();
    let types = UnifyLayouts::common(&sources).map_err(kernel_error)?;
    let partitions = inputs.iter().map(|input| input.partitions).sum();
    let conformed = inputs.into_iter().map(|input| {
        let (from, to, result) = (input.types.clone(), types.clone(), Arc::clone(&schema));
        let unify = UnifyLayouts::try_new(Arc::clone(&input.schema), from, to, result, options.clone()).map_err(kernel_error)?;
        Ok((Arc::new(input), unify))
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

/// Window functions over the rows of `rows`.
pub(super) fn windowed(
    window: &DeviceWindowExec,
    rows: &Arc<dyn ExecutionPlan>,
    schema: SchemaRef,
    options: &Options,
) -> Result<Stage> {
    let own = rows.schema();
    let mut texts = Texts::behind(&own);
    let of_plan = |reason| internal_datafusion_err!("{reason}");
    let Some(first) = window.functions().first() else { return internal_err!("a window without functions") };
    let mut checks = Vec::new();
    let mut keys = |exprs: Vec<Arc<dyn PhysicalExpr>>| {
        checks.extend(exprs.iter().cloned());
        exprs.iter().map(|expr| texts.lower(expr).map_err(of_plan)).collect::<Result<Vec<_>>>()
    };
    let partition = keys(first.partition_by().iter().map(|key| as_key(key, &own)).collect::<Result<_>>()?)?;
    let order = keys(first.order_by().iter().map(|key| as_sort_key(key, &own)).collect::<Result<_>>()?)?;
    let passed = own.fields().len();
    let outputs = own.fields().iter().enumerate().map(|(index, field)| (KernelExpr::Column(index), field.as_ref().clone()));
    let mut functions = Vec::new();
    for (function, field) in window.functions().iter().zip(schema.fields().iter().skip(passed)) {
        let call = lower_window(function, is_bounded(&window.host), &mut texts)
            .map_err(|reason| internal_datafusion_err!("{}: {reason}", function.name()))?;
        functions.push((call, field.as_ref().clone()));
        checks.extend(function.expressions());
    }
    let input =
        pipeline(rows, options)?.with_columns(&texts, &own, window.name(), options)?.materialise(texts.schema, options)?;
    let from = Input { schema: Arc::clone(&input.schema), types: input.types.clone(), filter: None };
    let op = Window::try_new(from, partition, order, outputs.collect(), functions, options.clone()).map_err(kernel_error)?;
    Ok(Stage {
        schema,
        types: op.output_types().to_vec(),
        partitions: 1,
        kind: StageKind::Window { input: Arc::new(input), op: Box::new(op), checks },
        operator: window.name().to_string(),
        metrics: window.metrics.clone(),
    })
}

impl Stage {
    /// All of its rows in one batch, for an `operator` that errors name and whose the metrics are.
    fn in_one_batch(self, operator: &str, metrics: &ExecutionPlanMetricsSet, options: &Options) -> Result<Stage> {
        let concat = Concat::try_new(Arc::clone(&self.schema), self.types.clone(), options.clone()).map_err(kernel_error)?;
        Ok(Stage {
            schema: Arc::clone(&self.schema),
            types: concat.output_types().to_vec(),
            partitions: 1,
            kind: StageKind::Gather { input: Arc::new(self), concat: Box::new(concat) },
            operator: operator.to_string(),
            metrics: metrics.clone(),
        })
    }
}

impl Pipeline {
    pub(super) fn sort(self, sort: &DeviceSortExec, schema: SchemaRef, options: &Options) -> Result<Stage> {
        let exprs = sort.keys().iter().map(|key| Ok((as_sort_key(key, &schema)?, Rows::All))).collect::<Result<Vec<_>>>()?;
        let (below, exprs, _) = self.with_texts(&schema, &exprs, false, sort.name(), options)?;
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
            outputs.push((lowered_output(&expr, &source_schema)?, field.as_ref().clone()));
            checks.push(expr);
        }
        let op = Sort::try_new(below.input()?, keys, outputs, sort.fetch_rows(), options.clone()).map_err(kernel_error)?;
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
    pub(super) fn aggregate(self, aggregate: &DeviceAggregateExec, from: &SchemaRef, options: &Options) -> Result<Stage> {
        let spec = &aggregate.spec;
        let schema = Arc::clone(&spec.schema);
        let mut exprs = spec.keys.iter().map(|(key, _)| Ok((as_key(key, from)?, Rows::All))).collect::<Result<Vec<_>>>()?;
        let calls = spec.calls.iter().map(|call| call.over_keys(from)).collect::<Result<Vec<_>>>()?;
        exprs.extend(calls.iter().flat_map(AggregateCall::exprs_with_rows).map(|(expr, rows)| (Arc::clone(expr), rows)));
        let (mut below, exprs, _) = self.with_texts(from, &exprs, false, aggregate.name(), options)?;
        let mut key_lists = Vec::new();
        for (output, (key, _)) in spec.keys.iter().enumerate() {
            if is_list(key, from)? {
                let Some(column) = below.over_source(key)?.downcast_ref::<Column>().map(Column::index) else {
                    return internal_err!("a key of lists that is no column");
                };
                key_lists.push((output, column));
            }
        }
        if !key_lists.is_empty() {
            below.source = below.source.in_one_batch(aggregate.name(), &aggregate.metrics, options)?;
        }
        let mut exprs = exprs.iter();
        let mut next = || match exprs.next() {
            Some(expr) => below.over_source(expr),
            None => internal_err!("an expression of an aggregate is missing"),
        };
        let source_schema = Arc::clone(&below.source.schema);
        let mut checks = below.predicates.clone();
        let mut keys = Vec::new();
        for (_, field) in spec.keys.iter().zip(schema.fields()) {
            let (key, mut field) = (next()?, Field::clone(field));
            if field.data_type().is_list() {
                field = field.with_data_type(KEY_TYPE);
            }
            keys.push((lowered(&key, &source_schema)?, field));
            checks.push(key);
        }
        let (mut aggregates, mut lists) = (Vec::new(), Vec::new());
        for (call, field) in calls.iter().zip(schema.fields().iter().skip(keys.len())) {
            let exprs: Vec<_> = call.exprs().map(|_| next()).collect::<Result<_>>()?;
            let lowered = call.with_exprs(&exprs).lower(&source_schema);
            let lowered = lowered.map_err(|reason| internal_datafusion_err!("{}: {reason}", call.function.name()))?;
            let mut field = Field::clone(field);
            if let Some(input) = AggregateCall::list(&lowered) {
                let output = keys.len() + aggregates.len();
                lists.push(ListOutput { output, words: output, input });
                field = field.with_data_type(lowered.data_type.clone());
            }
            aggregates.push((lowered, field));
            checks.extend(exprs);
        }
        // Of lists that are keys, any of those that are the same.
        for (output, input) in key_lists {
            let arguments = vec![KernelExpr::Column(input)];
            let data_type = DataType::UInt64;
            let word = KernelExpr::Call { function: Function::ListView, arguments, data_type: data_type.clone() };
            let any = AggregateFunction::AnyValue;
            let any = Aggregate { function: any, arguments: vec![word], filter: None, distinct: false, data_type };
            lists.push(ListOutput { output, words: keys.len() + aggregates.len(), input });
            aggregates.push((any, Field::new("words", DataType::UInt64, true)));
        }
        let input = below.input()?;
        let source = Arc::new(below.source);
        let with_elements = |mut types: Vec<ColumnType>| {
            for list in &lists {
                if let (Some(words), Some(from)) = (types.get(list.words), source.types.get(list.input)) {
                    let (nullable, data_type) = (words.nullable, schema.field(list.output).data_type().clone());
                    types[list.output] = ColumnType { data_type, nullable, layout: from.layout.clone(), bounds: None };
                }
            }
            types.truncate(schema.fields().len());
            types
        };
        let passed = lists.is_empty() && input.filter.is_none();
        let over_joins = if passed { OverJoins::of(&source, &keys, &aggregates)?.map(Box::new) } else { None };
        let op = AggregateOp::try_new(input, keys, aggregates, options.clone()).map_err(kernel_error)?;
        let types = with_elements(op.output_types().to_vec());
        let kind = StageKind::Aggregate { input: source, op, checks, lists, over_joins };
        let operator = aggregate.name().to_string();
        Ok(Stage { kind, schema, types, partitions: 1, operator, metrics: aggregate.metrics.clone() })
    }
}
