// SPDX-License-Identifier: Apache-2.0
//! Merging of operators that do the same to the same rows.

use std::sync::Arc;

use arrow::datatypes::Schema;
use datafusion::physical_expr::expressions::Column;
use datafusion::physical_expr::projection::ProjectionExpr;
use datafusion::physical_expr::{LexOrdering, PhysicalExpr, PhysicalSortExpr};
use datafusion::physical_plan::filter::FilterExecBuilder;
use datafusion::physical_plan::projection::ProjectionExec;
use datafusion::physical_plan::sorts::sort::SortExec;
use datafusion::physical_plan::union::UnionExec;
use datafusion::physical_plan::{ChildrenPropertiesMode, ReplaceChildrenOptions};

use super::joins::joins;
use super::merged::{Merged, both, column_of, input, is_fallible, is_fallible_call, moved, not_of_both, shape, union};
use super::scans::{scans, uploads};
use crate::exec::{
    AggregateSpec, DeviceAggregateExec, DeviceFilterExec, DeviceLimitExec, DeviceOperator, DeviceProjectionExec, DeviceSortExec,
    DeviceUnionExec,
};
use crate::expr::AggregateCall;
use crate::planner::rewrite::Plan;
use crate::planner::same::{same_call, same_rows};
use crate::planner::support::support_of;

/// Most aggregates of a merged aggregation: one kernel computes them, and each is compared with the
/// others.
const MOST_CALLS: usize = 64;

/// One plan for two that do the same to the same rows, with the columns of both.
///
/// `in_order`: a reader may rely on the order of the rows.
pub(super) fn merge(a: &Plan, b: &Plan, in_order: bool) -> Option<Merged> {
    if same_rows(a, b) {
        return Some(Merged::same(a));
    }
    if a.is::<DeviceProjectionExec>() || b.is::<DeviceProjectionExec>() {
        return projections(a, b, in_order);
    }
    if a.name() != b.name() {
        return None;
    }
    match DeviceOperator::of(a)? {
        DeviceOperator::Scan(_) => scans(a, b),
        DeviceOperator::Upload(_) => uploads(a, b),
        DeviceOperator::Filter(_) => filters(a, b, in_order),
        DeviceOperator::Aggregate(_) => aggregates(a, b),
        DeviceOperator::Join(_) => joins(a, b, in_order),
        DeviceOperator::Sort(_) => sorts(a, b),
        DeviceOperator::Limit(_) => limits(a, b),
        DeviceOperator::Union(_) => unions(a, b, in_order),
        DeviceOperator::Projection(_) => projections(a, b, in_order),
        DeviceOperator::DynamicFilter(_)
        | DeviceOperator::Expand(_)
        | DeviceOperator::Futhark(_)
        | DeviceOperator::Reuse(_)
        | DeviceOperator::Shared(_)
        | DeviceOperator::Stream(_)
        | DeviceOperator::Unnest(_)
        | DeviceOperator::Window(_) => None,
    }
}

/// Filters by the same predicate.
fn filters(a: &Plan, b: &Plan, in_order: bool) -> Option<Merged> {
    let (a_filter, b_filter) = both::<DeviceFilterExec>(a, b)?;
    // Most pairs differ in a constant; this check does not look below.
    if shape(a_filter.predicate())? != shape(b_filter.predicate())? {
        return None;
    }
    let below = merge(input(a)?, input(b)?, in_order)?;
    let predicate = below.agreed(a_filter.predicate(), b_filter.predicate())?;
    let passed_on = |filter: &DeviceFilterExec, positions: &[usize]| match filter.projection() {
        Some(projection) => projection.iter().map(|column| positions.get(*column).copied()).collect::<Option<Vec<_>>>(),
        None => Some(positions.to_vec()),
    };
    let (a, b) = (passed_on(a_filter, &below.a)?, passed_on(b_filter, &below.b)?);
    let columns = union(&a, &b);
    let projection = (columns.len() < below.plan.schema().fields().len()).then(|| columns.clone());
    let filter = FilterExecBuilder::new(predicate, below.plan).apply_projection(projection).ok()?.build().ok()?;
    Merged::of(DeviceFilterExec::try_new(Arc::new(filter)).ok()?, &columns, &a, &b)
}

/// Projections. The optimizer may have removed one that passes all columns on.
fn projections(a: &Plan, b: &Plan, in_order: bool) -> Option<Merged> {
    let below = merge(unprojected(a)?, unprojected(b)?, in_order)?;
    let outputs = |plan: &Plan, positions: &[usize]| match plan.downcast_ref::<DeviceProjectionExec>() {
        Some(projection) => {
            let outputs = projection.expressions().iter();
            outputs.map(|output| Some((moved(&output.expr, positions, &below.plan)?, output.alias.clone()))).collect()
        }
        None => {
            let outputs = positions.iter().zip(plan.schema().fields().iter().cloned().collect::<Vec<_>>());
            Some(outputs.map(|(position, field)| (column_of(&below.plan, *position), field.name().clone())).collect::<Vec<_>>())
        }
    };
    let (a, b) = (outputs(a, &below.a)?, outputs(b, &below.b)?);
    let mut all: Vec<ProjectionExpr> = Vec::new();
    let mut output_of = |(expr, alias): (Arc<dyn PhysicalExpr>, String)| {
        all.iter().position(|known| known.expr.eq(&expr)).unwrap_or_else(|| {
            all.push(ProjectionExpr { expr, alias });
            all.len() - 1
        })
    };
    let a: Vec<usize> = a.into_iter().map(&mut output_of).collect();
    let b: Vec<usize> = b.into_iter().map(&mut output_of).collect();
    let schema = below.plan.schema();
    if not_of_both(&a, &b).any(|output| is_fallible(&all[output].expr, &schema)) {
        return None;
    }
    let passed = all.iter().map(|output| output.expr.downcast_ref::<Column>().map(Column::index)).collect::<Option<Vec<_>>>();
    if let Some(passed) = passed
        && passed.len() == below.plan.schema().fields().len()
    {
        let positions = |outputs: Vec<usize>| outputs.into_iter().map(|output| passed[output]).collect();
        return Some(Merged { plan: below.plan, a: positions(a), b: positions(b) });
    }
    let projection = ProjectionExec::try_new(all, below.plan).ok()?;
    Some(Merged { plan: Arc::new(DeviceProjectionExec::try_new(Arc::new(projection)).ok()?), a, b })
}

fn unprojected(plan: &Plan) -> Option<&Plan> {
    if plan.is::<DeviceProjectionExec>() { input(plan) } else { Some(plan) }
}

/// Aggregations by the same keys.
fn aggregates(a: &Plan, b: &Plan) -> Option<Merged> {
    let (a_input, b_input) = (input(a)?, input(b)?);
    let (a, b) = both::<DeviceAggregateExec>(a, b)?;
    let (a_keys, b_keys) = (&a.spec.keys, &b.spec.keys);
    // Calls of libraries are not merged.
    if a_keys.len() != b_keys.len() || a.is_of_libraries() || b.is_of_libraries() {
        return None;
    }
    let below = merge(a_input, b_input, false)?;
    let keys = a_keys.iter().zip(b_keys).map(|((a, name), (b, _))| Some((below.agreed(a, b)?, name.clone())));
    let keys = keys.collect::<Option<Vec<_>>>()?;
    let mut calls: Vec<AggregateCall> = Vec::new();
    let mut fields = a.spec.schema.fields().iter().take(keys.len()).cloned().collect::<Vec<_>>();
    let mut columns = |aggregate: &DeviceAggregateExec, positions: &[usize]| {
        let fields_of_calls = aggregate.spec.schema.fields().iter().skip(keys.len());
        let of_calls = aggregate.spec.calls.iter().zip(fields_of_calls).map(|(call, field)| {
            let exprs = call.exprs().map(|expr| moved(expr, positions, &below.plan)).collect::<Option<Vec<_>>>()?;
            let call = call.with_exprs(&exprs);
            let known = calls.iter().position(|known| same_call(known, &call));
            Some(
                keys.len()
                    + known.unwrap_or_else(|| {
                        calls.push(call);
                        fields.push(Arc::clone(field));
                        calls.len() - 1
                    }),
            )
        });
        (0..keys.len()).map(Some).chain(of_calls).collect::<Option<Vec<_>>>()
    };
    let (a_columns, b_columns) = (columns(a, &below.a)?, columns(b, &below.b)?);
    if calls.len() > MOST_CALLS.max(a.spec.calls.len()).max(b.spec.calls.len()) {
        return None;
    }
    if not_of_both(&a_columns, &b_columns).any(|column| is_fallible_call(&calls[column - keys.len()], &below.plan.schema())) {
        return None;
    }
    let schema = Arc::new(Schema::new_with_metadata(fields, a.spec.schema.metadata().clone()));
    let aggregate = DeviceAggregateExec::new(AggregateSpec { keys, calls, schema }, below.plan);
    Some(Merged { plan: Arc::new(aggregate), a: a_columns, b: b_columns })
}

/// Sorts by the same keys.
fn sorts(a: &Plan, b: &Plan) -> Option<Merged> {
    let below = merge(input(a)?, input(b)?, true)?;
    let (a, b) = both::<DeviceSortExec>(a, b)?;
    if a.fetch_rows() != b.fetch_rows() || a.keys().len() != b.keys().len() {
        return None;
    }
    let keys = a.keys().iter().zip(b.keys()).map(|(a, b)| {
        let key = below.agreed(&a.expr, &b.expr)?;
        (a.options == b.options).then(|| PhysicalSortExpr::new(key, a.options))
    });
    let keys = LexOrdering::new(keys.collect::<Option<Vec<_>>>()?)?;
    let sort: Plan = Arc::new(SortExec::new(keys, Arc::clone(&below.plan)).with_fetch(a.fetch_rows()));
    support_of(&sort).ok()?;
    Some(below.with(DeviceSortExec::try_new(sort).ok()?))
}

fn limits(a: &Plan, b: &Plan) -> Option<Merged> {
    let (a_limit, b_limit) = both::<DeviceLimitExec>(a, b)?;
    let kind = |limit: &DeviceLimitExec| (limit.host.name().to_string(), limit.skip(), limit.fetch_rows());
    if kind(a_limit) != kind(b_limit) {
        return None;
    }
    let below = merge(input(a)?, input(b)?, true)?;
    let options = ReplaceChildrenOptions::new(ChildrenPropertiesMode::Recompute);
    let host = Arc::clone(&a_limit.host).replace_children(vec![Arc::clone(&below.plan)], options).ok()?;
    Some(below.with(DeviceLimitExec::try_new(host).ok()?))
}

/// Unions of the same inputs.
fn unions(a: &Plan, b: &Plan, in_order: bool) -> Option<Merged> {
    both::<DeviceUnionExec>(a, b)?;
    if a.children().len() != b.children().len() {
        return None;
    }
    let inputs = a.children().into_iter().zip(b.children()).map(|(a, b)| merge(a, b, in_order)).collect::<Option<Vec<_>>>()?;
    let mut columns: Vec<Vec<usize>> = Vec::new();
    let mut output_of = |column: Vec<usize>| {
        columns.iter().position(|known| *known == column).unwrap_or_else(|| {
            columns.push(column);
            columns.len() - 1
        })
    };
    let of_a = (0..a.schema().fields().len()).map(|index| output_of(inputs.iter().map(|input| input.a[index]).collect()));
    let of_a = of_a.collect::<Vec<_>>();
    let of_b = (0..b.schema().fields().len()).map(|index| output_of(inputs.iter().map(|input| input.b[index]).collect()));
    let of_b = of_b.collect::<Vec<_>>();
    let inputs = inputs.iter().enumerate().map(|(index, input)| {
        let of_input = columns.iter().map(|column| column[index]).collect::<Vec<_>>();
        if of_input.iter().copied().eq(0..input.plan.schema().fields().len()) {
            return Some(Arc::clone(&input.plan));
        }
        let schema = input.plan.schema();
        let outputs = of_input.iter().map(|column| (column_of(&input.plan, *column), schema.field(*column).name().clone()));
        let projection = ProjectionExec::try_new(outputs, Arc::clone(&input.plan)).ok()?;
        Some(Arc::new(DeviceProjectionExec::try_new(Arc::new(projection)).ok()?) as Plan)
    });
    let union = UnionExec::try_new(inputs.collect::<Option<Vec<_>>>()?).ok()?;
    Some(Merged { plan: Arc::new(DeviceUnionExec::try_new(union).ok()?), a: of_a, b: of_b })
}
