// SPDX-License-Identifier: Apache-2.0
//! Whether a host operator is supported on the device, and if not, why, in a user's words.

use std::sync::Arc;

use arrow::datatypes::SchemaRef;
use datafusion::common::stats::Precision;
use datafusion::common::{DataFusionError, plan_datafusion_err};
use datafusion::datasource::physical_plan::FileScanConfig;
use datafusion::datasource::source::DataSourceExec;
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_expr::expressions::{Column, Literal};
use datafusion::physical_expr::projection::ProjectionExprs;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::aggregates::{AggregateExec, AggregateMode};
use datafusion::physical_plan::filter::FilterExec;
use datafusion::physical_plan::limit::{GlobalLimitExec, LocalLimitExec};
use datafusion::physical_plan::placeholder_row::PlaceholderRowExec;
use datafusion::physical_plan::projection::ProjectionExec;
use datafusion::physical_plan::sorts::partitioned_topk::PartitionedTopKExec;
use datafusion::physical_plan::sorts::sort::SortExec;
use datafusion::physical_plan::statistics::{StatisticsArgs, StatisticsContext};
use datafusion::physical_plan::unnest::UnnestExec;

use crate::aggregate::AggregateCall;
use crate::exec::{DeviceToHostExec, DeviceUnionExec, DeviceUnnestExec, GroupingSet, HostExec, is_device};
use crate::expr::{Reason, lower};
use crate::futhark::{Calls, Fold};
use crate::list_key::{as_key, as_sort_key};
use crate::options::DeviceOptions;
use crate::planner::grouping_sets::aggregate_of_sets;
use crate::planner::joins::{is_join, join_form};
use crate::planner::ordered::{has_ordered, ordered_calls};
use crate::planner::top_k::partitioned_top_k;
use crate::planner::windows::{window_exprs, window_form};
use crate::texts::{aggregate_has_device_form, has_device_form, output_has_device_form};

/// Whether an operator computes: moves of rows between partitions, scans, sinks and EXPLAIN do not.
pub(crate) fn computes(plan: &Arc<dyn ExecutionPlan>) -> bool {
    const MOVES: &[&str] = &[
        "AnalyzeExec",
        "BufferExec",
        "CoalesceBatchesExec",
        "CoalescePartitionsExec",
        "CooperativeExec",
        "DataSinkExec",
        "DeviceToHostExec",
        "ExplainExec",
        "OutputRequirementExec",
        "RepartitionExec",
        "ScalarSubqueryExec",
        "SortPreservingMergeExec",
        "UnionExec",
    ];
    if scan_computes(plan) {
        return true;
    }
    // Where rows of the device go through the host, somebody should know.
    if joins_other_lists(plan) {
        return subtree_computes(plan);
    }
    if plan.children().is_empty() || is_device(plan) || MOVES.contains(&plan.name()) || passes_columns(plan) || is_constant(plan)
    {
        return false;
    }
    // A limit right above rows that nothing computes is part of their scan.
    !is_limit(plan) || subtree_computes(plan)
}

/// Whether an operator puts lists of several inputs together whose elements have other names or nullability.
pub(crate) fn joins_other_lists(plan: &Arc<dyn ExecutionPlan>) -> bool {
    let schema = plan.schema();
    let differs = |child: &Arc<dyn ExecutionPlan>| {
        let own = child.schema();
        let mut pairs = schema.fields().iter().zip(own.fields());
        pairs.any(|(field, own)| field.data_type().is_list() && field.data_type() != own.data_type())
    };
    DeviceUnionExec::stands_for(plan) && plan.children().into_iter().any(differs)
}

/// Whether a subtree is rows of constants: of literals, and of the elements of literal lists.
pub(crate) fn is_constant(plan: &Arc<dyn ExecutionPlan>) -> bool {
    if plan.is::<PlaceholderRowExec>() {
        return true;
    }
    let constant = |expr: &Arc<dyn PhysicalExpr>| expr.is::<Literal>() || expr.is::<Column>();
    let own = match plan.downcast_ref::<ProjectionExec>() {
        Some(projection) => projection.expr().iter().all(|output| constant(&output.expr)),
        None => plan.is::<UnnestExec>(),
    };
    own && plan.children().into_iter().all(is_constant)
}

/// Whether a subtree does no more than read files.
pub(crate) fn reads_files(plan: &Arc<dyn ExecutionPlan>) -> bool {
    let children = plan.children();
    match computes(plan) || is_device(plan) {
        true => false,
        false if children.is_empty() => plan
            .downcast_ref::<DataSourceExec>()
            .is_some_and(|scan| scan.data_source().downcast_ref::<FileScanConfig>().is_some()),
        false => children.into_iter().all(reads_files),
    }
}

/// The expressions that a file scan evaluates, over the table's columns.
fn scan_projection(plan: &Arc<dyn ExecutionPlan>) -> Option<(ProjectionExprs, SchemaRef)> {
    let source = plan.downcast_ref::<DataSourceExec>()?.data_source().downcast_ref::<FileScanConfig>()?;
    let projection = source.file_source().projection()?.clone();
    Some((projection, Arc::clone(source.file_source().table_schema().table_schema())))
}

/// Whether DataFusion has merged computed columns into a file scan, where they run on the host.
fn scan_computes(plan: &Arc<dyn ExecutionPlan>) -> bool {
    scan_projection(plan)
        .is_some_and(|(projection, _)| projection.iter().any(|output| output.expr.downcast_ref::<Column>().is_none()))
}

fn subtree_computes(plan: &Arc<dyn ExecutionPlan>) -> bool {
    plan.children().into_iter().any(|child| is_device(child) || computes(child) || subtree_computes(child))
}

pub(crate) fn is_limit(plan: &Arc<dyn ExecutionPlan>) -> bool {
    plan.is::<GlobalLimitExec>() || plan.is::<LocalLimitExec>()
}

/// Why an operator is not supported on the device, if so.
pub(crate) fn device_form(plan: &Arc<dyn ExecutionPlan>) -> Result<(), Reason> {
    if let Some(filter) = plan.downcast_ref::<FilterExec>() {
        columns_have_device_form(filter.input())?;
        let mut calls = Calls::behind(&filter.input().schema());
        let predicate = calls.lift(filter.predicate())?;
        return has_device_form(&predicate, &calls.schema);
    }
    if let Some(projection) = plan.downcast_ref::<ProjectionExec>() {
        columns_have_device_form(projection.input())?;
        let mut calls = Calls::behind(&projection.input().schema());
        for output in projection.expr() {
            let output = calls.lift(&output.expr)?;
            output_has_device_form(&output, &calls.schema)?;
        }
        return columns_have_device_form(plan);
    }
    if let Some(aggregate) = plan.downcast_ref::<AggregateExec>() {
        return aggregate_form(aggregate).map(|_| ());
    }
    if is_limit(plan) {
        return Ok(());
    }
    if is_join(plan) {
        return join_form(plan).map(|_| ());
    }
    if window_exprs(plan).is_some() {
        return window_form(plan);
    }
    if let Some(sort) = plan.downcast_ref::<SortExec>() {
        columns_have_device_form(sort.input())?;
        let schema = sort.input().schema();
        for key in sort.expr() {
            has_device_form(&as_sort_key(key, &schema).map_err(reason_of)?, &schema)?;
        }
        return Ok(());
    }
    if let Some(unnest) = plan.downcast_ref::<UnnestExec>() {
        columns_have_device_form(unnest.input())?;
        columns_have_device_form(plan)?;
        return DeviceUnnestExec::supports(unnest);
    }
    if let Some(top) = plan.downcast_ref::<PartitionedTopKExec>() {
        return partitioned_top_k(top, Arc::clone(top.input()), &trial).map(|_| ()).map_err(reason_of);
    }
    if let Some((projection, schema)) = scan_projection(plan) {
        for output in projection.iter() {
            lower(&output.expr, &schema)?;
        }
        return Err("its expressions were merged into the file scan".to_string());
    }
    Err(match plan.name() {
        "UnionExec" | "InterleaveExec" if joins_other_lists(plan) => {
            "UNION of lists whose elements differ in name or nullability is not supported on the device".to_string()
        }
        "RecursiveQueryExec" => "recursive queries are not supported on the device yet".to_string(),
        "InterleaveExec" => "UNION of partitioned inputs is not supported on the device yet".to_string(),
        name => format!("{name} is not supported on the device"),
    })
}

/// The partial aggregate (or the single one) that reads the raw rows of a complete aggregation.
pub(crate) fn aggregate_form(aggregate: &AggregateExec) -> Result<&AggregateExec, Reason> {
    let raw = match aggregate.mode() {
        AggregateMode::Single | AggregateMode::SinglePartitioned => aggregate,
        AggregateMode::Final | AggregateMode::FinalPartitioned => partial_below(aggregate)?,
        AggregateMode::Partial | AggregateMode::PartialReduce => {
            return Err("a partial aggregate stays with its final one".to_string());
        }
    };
    raw_form(raw)?;
    for field in aggregate.schema().fields() {
        if columnar::ColumnType::of(field.data_type(), true).is_none() {
            return Err(format!("column {} has type {}, which is not supported on the device", field.name(), field.data_type()));
        }
    }
    Ok(raw)
}

/// What the aggregation of raw rows is not supported on the device for.
fn raw_form(raw: &AggregateExec) -> Result<(), Reason> {
    if raw.group_expr().has_grouping_set() && GroupingSet::numbered(raw.group_expr().groups()).is_none() {
        return Err("GROUPING SETS of more than eight keys are not supported on the device".to_string());
    }
    columns_have_device_form(raw.input())?;
    let schema = raw.input().schema();
    // Rows that come in an order, or several times, are brought by operators that make no calls.
    let makes_calls = !raw.group_expr().has_grouping_set() && !has_ordered(raw);
    let mut library = Calls::behind(&schema);
    for (key, _) in raw.group_expr().expr() {
        let lifted = if makes_calls { library.lift(key)? } else { Arc::clone(key) };
        let key = as_key(&lifted, &library.schema).map_err(reason_of)?;
        has_device_form(&key, &library.schema)?;
    }
    if let Some(calls) = AggregateCall::of_libraries(raw) {
        return calls.iter().try_for_each(|call| {
            let exprs = call.exprs().map(|expr| library.lift(expr)).collect::<Result<Vec<_>, _>>()?;
            Fold::try_new(&call.with_exprs(&exprs), &library.schema).map(|_| ())
        });
    }
    let functions = raw.aggr_expr().iter().zip(raw.filter_expr());
    let (calls, schema) = match has_ordered(raw) {
        false => (functions.map(|(function, filter)| AggregateCall::new(function, filter.as_ref())).collect(), schema),
        true => {
            let sets = aggregate_of_sets(raw, raw.schema(), Arc::clone(raw.input()));
            let (calls, input) = sets.and_then(|(spec, input)| ordered_calls(&spec, input, &trial)).map_err(reason_of)?;
            (calls, input.schema())
        }
    };
    calls.iter().try_for_each(|call| {
        if !makes_calls {
            return aggregate_has_device_form(call, &schema);
        }
        let exprs = call.exprs().map(|expr| library.lift(expr)).collect::<Result<Vec<_>, _>>()?;
        aggregate_has_device_form(&call.with_exprs(&exprs), &library.schema)
    })
}

/// An operator that stands for the device operator that it has.
fn trial(plan: Arc<dyn ExecutionPlan>) -> Result<Arc<dyn ExecutionPlan>, DataFusionError> {
    device_form(&plan).map_err(|reason| plan_datafusion_err!("{reason}"))?;
    Ok(plan)
}

/// The reason in the error of a [`trial`], or of what makes a plan's form.
pub(crate) fn reason_of(error: DataFusionError) -> Reason {
    match error {
        DataFusionError::Plan(reason) | DataFusionError::Internal(reason) => reason,
        other => other.to_string(),
    }
}

/// As [`device_form`], for a reader of the plan: partial and final aggregate have the same reason.
pub(crate) fn host_form(plan: &Arc<dyn ExecutionPlan>) -> Result<(), Reason> {
    match plan.downcast_ref::<AggregateExec>() {
        Some(partial) if partial.mode() == &AggregateMode::Partial => raw_form(partial),
        Some(reduction) if reduction.mode() == &AggregateMode::PartialReduce => raw_form(partial_below(reduction)?),
        _ => device_form(plan),
    }
}

/// Where an operator's rows come from: of a final aggregate, those of its partial one.
pub(crate) fn raw_input(plan: &Arc<dyn ExecutionPlan>) -> Option<&Arc<dyn ExecutionPlan>> {
    let aggregate = plan.downcast_ref::<AggregateExec>().and_then(|aggregate| aggregate_form(aggregate).ok());
    aggregate.map(AggregateExec::input).or_else(|| plan.children().first().copied())
}

/// The partial aggregate of a final one, below what brings its groups to the right partition, in an order that no answer depends on.
fn partial_below(aggregate: &AggregateExec) -> Result<&AggregateExec, Reason> {
    let mut plan = aggregate.input();
    loop {
        plan = plan.downcast_ref::<HostExec>().map_or(plan, HostExec::inner);
        if let Some(partial) = plan.downcast_ref::<AggregateExec>() {
            match partial.mode() {
                AggregateMode::Partial => return Ok(partial),
                AggregateMode::PartialReduce => {
                    plan = partial.input();
                    continue;
                }
                mode => return Err(format!("its input is an aggregate in mode {mode:?}")),
            }
        }
        let moves = match plan.name() {
            "RepartitionExec" | "CooperativeExec" => true,
            "CoalescePartitionsExec" | "SortExec" | "SortPreservingMergeExec" => plan.fetch().is_none(),
            _ => false,
        };
        match plan.children().as_slice() {
            [child] if moves => plan = child,
            _ => return Err(format!("its partial aggregate lies below {}", plan.name())),
        }
    }
}

pub(crate) fn columns_have_device_form(plan: &Arc<dyn ExecutionPlan>) -> Result<(), Reason> {
    columnar::natural_types(&plan.schema()).map(|_| ()).map_err(|error| error.to_string())
}

/// Whether an operator does no more than pass columns on, so that moving its input is not worth it.
pub(crate) fn is_trivial(plan: &Arc<dyn ExecutionPlan>) -> bool {
    is_limit(plan) || passes_columns(plan)
}

fn passes_columns(plan: &Arc<dyn ExecutionPlan>) -> bool {
    plan.downcast_ref::<ProjectionExec>()
        .is_some_and(|projection| projection.expr().iter().all(|output| output.expr.downcast_ref::<Column>().is_some()))
}

/// Whether statistics say that an input is too small for the device to pay off.
pub(crate) fn is_tiny(input: &Arc<dyn ExecutionPlan>, options: &DeviceOptions) -> Option<Reason> {
    if options.always() {
        return None;
    }
    let statistics = StatisticsContext::new().compute(input.as_ref(), &StatisticsArgs::new()).ok()?;
    match statistics.num_rows {
        Precision::Exact(rows) if rows < options.min_rows => {
            Some(format!("its input has {rows} rows, fewer than device.min_rows = {}", options.min_rows))
        }
        _ => None,
    }
}

/// An offloaded subplan's device operators, or `None` where `plan` is not an offloaded subplan.
pub(crate) fn subplan_input(plan: &Arc<dyn ExecutionPlan>) -> Option<&Arc<dyn ExecutionPlan>> {
    plan.downcast_ref::<DeviceToHostExec>().map(|top| top.input())
}
