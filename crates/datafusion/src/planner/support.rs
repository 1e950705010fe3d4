// SPDX-License-Identifier: Apache-2.0
//! Support of host operators on the device, or the reason against it, as a user would say it.

use std::sync::Arc;

use datafusion::common::{DataFusionError, plan_datafusion_err};
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::aggregates::{AggregateExec, AggregateMode};
use datafusion::physical_plan::filter::FilterExec;
use datafusion::physical_plan::projection::ProjectionExec;
use datafusion::physical_plan::sorts::partitioned_topk::PartitionedTopKExec;
use datafusion::physical_plan::sorts::sort::SortExec;
use datafusion::physical_plan::unnest::UnnestExec;

use crate::exec::{
    DeviceToHostExec, DeviceUnnestExec, GroupingSet, HostExec, is_limit, joins_other_lists, scan_projection, window_exprs,
};
use crate::expr::{AggregateCall, as_key, as_sort_key, support_of_aggregate, support_of_expr, support_of_output, supported};
use crate::futhark::{DeviceAggregate, LibraryCalls};
use crate::planner::columns::{reason_of, support_of_columns};
use crate::planner::grouping_sets::aggregate_of_sets;
use crate::planner::joins::{is_join, supported_join};
use crate::planner::most_rows::RowBounds;
use crate::planner::ordered_aggregates::{has_ordered, ordered_calls};
use crate::planner::top_k::partitioned_top_k;
use crate::planner::windows::support_of_window;
use crate::reason::Reason;
use crate::session::DeviceOptions;

/// Whether a host operator is supported on the device.
pub(crate) fn support_of(plan: &Arc<dyn ExecutionPlan>) -> Result<(), Reason> {
    if let Some(filter) = plan.downcast_ref::<FilterExec>() {
        support_of_columns(filter.input())?;
        let mut calls = LibraryCalls::new(&filter.input().schema());
        let predicate = calls.lift(filter.predicate())?;
        return support_of_expr(&predicate, &calls.schema);
    }
    if let Some(projection) = plan.downcast_ref::<ProjectionExec>() {
        support_of_columns(projection.input())?;
        let mut calls = LibraryCalls::new(&projection.input().schema());
        for output in projection.expr() {
            let output = calls.lift(&output.expr)?;
            support_of_output(&output, &calls.schema)?;
        }
        return support_of_columns(plan);
    }
    if let Some(aggregate) = plan.downcast_ref::<AggregateExec>() {
        return supported_aggregation(aggregate).map(|_| ());
    }
    if is_limit(plan) {
        return Ok(());
    }
    if is_join(plan) {
        return supported_join(plan).map(|_| ());
    }
    if window_exprs(plan).is_some() {
        return support_of_window(plan);
    }
    if let Some(sort) = plan.downcast_ref::<SortExec>() {
        support_of_columns(sort.input())?;
        let schema = sort.input().schema();
        for key in sort.expr() {
            support_of_expr(&as_sort_key(key, &schema).map_err(reason_of)?, &schema)?;
        }
        return Ok(());
    }
    if let Some(unnest) = plan.downcast_ref::<UnnestExec>() {
        support_of_columns(unnest.input())?;
        support_of_columns(plan)?;
        return DeviceUnnestExec::support_of(unnest);
    }
    if let Some(top) = plan.downcast_ref::<PartitionedTopKExec>() {
        return partitioned_top_k(top, Arc::clone(top.input()), &checked).map(|_| ()).map_err(reason_of);
    }
    if let Some((projection, schema)) = scan_projection(plan) {
        for output in projection.iter() {
            supported(&output.expr, &schema)?;
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

/// The partial or single aggregate that reads the raw rows of a supported aggregation.
pub(crate) fn supported_aggregation(aggregate: &AggregateExec) -> Result<&AggregateExec, Reason> {
    let raw = raw_aggregate(aggregate)?;
    support_of_raw_aggregate(raw)?;
    for field in aggregate.schema().fields() {
        if columnar::ColumnType::of(field.data_type(), true).is_none() {
            return Err(format!("column {} has type {}, which is not supported on the device", field.name(), field.data_type()));
        }
    }
    Ok(raw)
}

/// The partial or single aggregate that reads the raw rows of an aggregation.
fn raw_aggregate(aggregate: &AggregateExec) -> Result<&AggregateExec, Reason> {
    match aggregate.mode() {
        AggregateMode::Single | AggregateMode::SinglePartitioned => Ok(aggregate),
        AggregateMode::Final | AggregateMode::FinalPartitioned => partial_below(aggregate),
        AggregateMode::Partial | AggregateMode::PartialReduce => Err("a partial aggregate stays with its final one".to_string()),
    }
}

/// Whether an aggregate over raw rows is supported on the device.
fn support_of_raw_aggregate(raw: &AggregateExec) -> Result<(), Reason> {
    if raw.group_expr().has_grouping_set() && GroupingSet::numbered(raw.group_expr().groups()).is_none() {
        return Err("GROUPING SETS of more than eight keys are not supported on the device".to_string());
    }
    support_of_columns(raw.input())?;
    let schema = raw.input().schema();
    // Operators that rank or repeat the rows make no calls of libraries.
    let makes_calls = !raw.group_expr().has_grouping_set() && !has_ordered(raw);
    let mut library = LibraryCalls::new(&schema);
    for (key, _) in raw.group_expr().expr() {
        let lifted = if makes_calls { library.lift(key)? } else { Arc::clone(key) };
        let key = as_key(&lifted, &library.schema).map_err(reason_of)?;
        support_of_expr(&key, &library.schema)?;
    }
    if let Some(calls) = AggregateCall::of_libraries(raw) {
        return calls.iter().try_for_each(|call| {
            let exprs = call.exprs().map(|expr| library.lift(expr)).collect::<Result<Vec<_>, _>>()?;
            DeviceAggregate::try_new(&call.with_exprs(&exprs), &library.schema).map(|_| ())
        });
    }
    let functions = raw.aggr_expr().iter().zip(raw.filter_expr());
    let (calls, schema) = match has_ordered(raw) {
        false => (functions.map(|(function, filter)| AggregateCall::new(function, filter.as_ref())).collect(), schema),
        true => {
            let sets = aggregate_of_sets(raw, raw.schema(), Arc::clone(raw.input()));
            let (calls, input) = sets.and_then(|(spec, input)| ordered_calls(&spec, input, &checked)).map_err(reason_of)?;
            (calls, input.schema())
        }
    };
    calls.iter().try_for_each(|call| {
        if !makes_calls {
            return support_of_aggregate(call, &schema);
        }
        let exprs = call.exprs().map(|expr| library.lift(expr)).collect::<Result<Vec<_>, _>>()?;
        support_of_aggregate(&call.with_exprs(&exprs), &library.schema)
    })
}

/// A host operator, if it is supported on the device.
fn checked(plan: Arc<dyn ExecutionPlan>) -> Result<Arc<dyn ExecutionPlan>, DataFusionError> {
    support_of(&plan).map_err(|reason| plan_datafusion_err!("{reason}"))?;
    Ok(plan)
}

/// As [`support_of`], for EXPLAIN: partial and final aggregate have the same reason.
pub(crate) fn support_for_explain(plan: &Arc<dyn ExecutionPlan>) -> Result<(), Reason> {
    let Some(aggregate) = plan.downcast_ref::<AggregateExec>() else { return support_of(plan) };
    match aggregate.mode() {
        AggregateMode::Partial => support_of_raw_aggregate(aggregate),
        AggregateMode::PartialReduce => support_of_raw_aggregate(partial_below(aggregate)?),
        AggregateMode::Final | AggregateMode::FinalPartitioned | AggregateMode::Single | AggregateMode::SinglePartitioned => {
            support_of(plan)
        }
    }
}

/// The source of an operator's rows: of a final aggregate, the input of its partial one.
pub(crate) fn raw_input(plan: &Arc<dyn ExecutionPlan>) -> Option<&Arc<dyn ExecutionPlan>> {
    let aggregate = plan.downcast_ref::<AggregateExec>().and_then(|aggregate| raw_aggregate(aggregate).ok());
    aggregate.map(AggregateExec::input).or_else(|| plan.children().first().copied())
}

/// The partial aggregate of a final one. Exchanges and sorts between them have no effect on the
/// groups.
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

/// The reason if, by statistics, an input is too small for the device to pay off.
pub(crate) fn is_tiny(input: &Arc<dyn ExecutionPlan>, options: &DeviceOptions, bounds: &RowBounds) -> Option<Reason> {
    if options.always() {
        return None;
    }
    let (rows, least) = (bounds.most_rows(input)?, options.min_rows);
    (rows < least).then(|| format!("its input has at most {rows} rows, fewer than device.min_rows = {least}"))
}

/// Whether all inputs of an operator are too small for the device to pay off.
pub(crate) fn has_tiny_inputs(plan: &Arc<dyn ExecutionPlan>, options: &DeviceOptions, bounds: &RowBounds) -> bool {
    let tiny = |input: &Arc<dyn ExecutionPlan>| is_tiny(input, options, bounds).is_some();
    match (plan.children().as_slice(), raw_input(plan)) {
        ([] | [_], input) => input.is_some_and(tiny),
        (inputs, _) => inputs.iter().all(|input| tiny(input)),
    }
}

/// The device operators of a `DeviceToHostExec`; `None` for other operators.
pub(crate) fn subplan_input(plan: &Arc<dyn ExecutionPlan>) -> Option<&Arc<dyn ExecutionPlan>> {
    plan.downcast_ref::<DeviceToHostExec>().map(|top| top.input())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use crate::expr::asked;
    use crate::planner::testing::session;

    #[tokio::test]
    async fn each_operator_is_asked_once() {
        let rows = "SELECT value AS k, value % 7 AS v, chr(65 + value % 26) AS s FROM generate_series(1, 1000)";
        let setup = ["t", "u"].map(|name| format!("CREATE TABLE device.{name} AS {rows}"));
        let ctx = session(2, &[&setup[0], &setup[1]]).await;
        for sql in [
            "SELECT k FROM device.t WHERE v + 1 > 3 AND s LIKE 'A%'",
            "SELECT t.v, count(u.v) FROM device.t JOIN device.u ON t.k = u.k AND t.v * 2 < u.v + 9 WHERE t.v + 1 > 3 \
             GROUP BY t.v HAVING count(u.v) % 5 < 4",
            "SELECT t.k FROM device.t LEFT JOIN device.u ON t.v * 3 = u.v * 4 AND t.k < u.k * 2",
        ] {
            let query = ctx.sql(sql).await.unwrap();
            asked::take();
            query.create_physical_plan().await.unwrap();
            let asked = asked::take();
            let distinct: BTreeSet<&String> = asked.iter().collect();
            assert!(!asked.is_empty() && asked.len() == distinct.len(), "{sql}: {asked:#?}");
        }
    }
}
