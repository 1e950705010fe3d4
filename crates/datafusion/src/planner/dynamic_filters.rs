// SPDX-License-Identifier: Apache-2.0
//! Placement of dynamic filters: from a join down to the source of its probe side's rows.
//!
//! - A filter pays below an aggregation, or on the build side of another join. On the way through
//!   probes alone, the join itself drops the row as early.
//! - Filters are pushed from the uppermost join on. A filter on the build side of a lower join
//!   makes the table there smaller, and so worth a filter of its own.
//! - A host scan at the source also gets a filter of DataFusion, which learns the ranges of the
//!   keys. A Parquet scan prunes row groups and pages by it.

use std::cell::{Cell, RefCell};
use std::sync::Arc;

use arrow::datatypes::DataType;
use datafusion::common::Result;
use datafusion::common::config::ConfigOptions;
use datafusion::datasource::source::DataSourceExec;
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_expr::expressions::{Column, DynamicFilterPhysicalExpr, lit};
use datafusion::physical_plan::ExecutionPlan;

use crate::exec::{
    DeviceDynamicFilterExec, DeviceJoinExec, DeviceOperator, DynamicFilters, HostToDeviceExec, JoinTypeFacts, drops_rows,
};
use crate::planner::rewrite::{map_device_inputs, with_children};

/// Plans the dynamic filters of an offloaded subplan anew. `filters_scans`: whether host scans get
/// filters.
pub(crate) fn with_dynamic_filters(
    plan: &Arc<dyn ExecutionPlan>,
    config: &ConfigOptions,
    filters_scans: bool,
) -> Result<Arc<dyn ExecutionPlan>> {
    add(&without_dynamic_filters(plan)?, config, filters_scans, &mut 0)
}

/// Removes the dynamic filters of an offloaded subplan. Filters within host scans stay.
pub(crate) fn without_dynamic_filters(plan: &Arc<dyn ExecutionPlan>) -> Result<Arc<dyn ExecutionPlan>> {
    if let Some(filter) = plan.downcast_ref::<DeviceDynamicFilterExec>() {
        return without_dynamic_filters(filter.input());
    }
    let plan = map_device_inputs(plan, without_dynamic_filters)?;
    Ok(match plan.downcast_ref::<DeviceJoinExec>() {
        Some(join) if !join.dynamic_filters().is_empty() => {
            Arc::new(join.with_dynamic_filters(Arc::clone(join.right()), DynamicFilters::default()))
        }
        _ => plan,
    })
}

/// Adds filters top down. `filters` counts those of the offloaded subplan.
fn add(
    plan: &Arc<dyn ExecutionPlan>,
    config: &ConfigOptions,
    filters_scans: bool,
    filters: &mut usize,
) -> Result<Arc<dyn ExecutionPlan>> {
    let mut plan = Arc::clone(plan);
    if let Some(join) = plan.downcast_ref::<DeviceJoinExec>()
        && ignores_unmatched_probe_rows(join)
    {
        let null_equals_null = join.spec.null_equals_null;
        let keys: Option<Vec<usize>> = join.spec.on.iter().map(|(_, right)| position(right)).collect();
        let keys = keys.filter(|keys| !keys.is_empty());
        // Ranges of strings are not known.
        let has_ranges = keys.as_ref().is_some_and(|keys| all_keys(join.right(), keys, is_perfect_hash_key));
        let push = FilterPush {
            number: *filters + 1,
            null_equals_null,
            on_device: drops_rows(join.left()),
            config: (filters_scans && !null_equals_null && has_ranges).then_some(config),
            is_placed: Cell::default(),
            scan_filter: RefCell::default(),
        };
        if let Some(keys) = keys.filter(|keys| all_keys(join.right(), keys, has_stable_bytes))
            && let Some(right) = push.push(join.right(), &keys, false)?
        {
            *filters += usize::from(push.is_placed.get());
            let number = push.is_placed.get().then_some(push.number);
            let dynamic_filters = DynamicFilters { number, scan: push.scan_filter.take() };
            plan = Arc::new(join.with_dynamic_filters(right, dynamic_filters));
        }
    }
    map_device_inputs(&plan, |child| add(child, config, filters_scans, filters))
}

fn ignores_unmatched_probe_rows(join: &DeviceJoinExec) -> bool {
    JoinTypeFacts::of(join.spec.join_type).ignores_unmatched_probe_rows() && !join.spec.null_aware
}

fn all_keys(plan: &Arc<dyn ExecutionPlan>, keys: &[usize], of_type: impl Fn(&DataType) -> bool) -> bool {
    let schema = plan.schema();
    keys.iter().all(|key| schema.fields().get(*key).is_some_and(|field| of_type(field.data_type())))
}

/// Whether a join may hash keys of this type perfectly, by dense numbers.
fn is_perfect_hash_key(data_type: &DataType) -> bool {
    data_type.is_integer() || data_type.is_temporal() && !matches!(data_type, DataType::Interval(_))
}

/// Whether keys of this type have the same packed fields or bytes wherever the column is read.
/// Decimals do not: their integers may be wider above an aggregation than below.
fn has_stable_bytes(data_type: &DataType) -> bool {
    is_perfect_hash_key(data_type) || data_type.is_string()
}

fn position(expr: &Arc<dyn PhysicalExpr>) -> Option<usize> {
    expr.downcast_ref::<Column>().map(Column::index)
}

/// The filter of one join on its way down.
struct FilterPush<'a> {
    number: usize,
    null_equals_null: bool,
    /// Whether a filter on the device pays.
    on_device: bool,
    /// Present if a host scan may get a filter.
    config: Option<&'a ConfigOptions>,
    /// Whether a filter on the device was placed.
    is_placed: Cell<bool>,
    /// The filter that a host scan has got.
    scan_filter: RefCell<Option<Arc<dyn PhysicalExpr>>>,
}

/// Inputs of an operator into which a filter goes.
enum Descent {
    /// One input, by its columns `keys`. `crosses`: the input is another pipeline.
    Input {
        child: usize,
        keys: Vec<usize>,
        crosses: bool,
    },
    /// All inputs, by the same columns.
    AllInputs,
    Ends,
}

impl FilterPush<'_> {
    /// The plan with the filter at or below its top; `None` if the filter would gain nothing.
    ///
    /// `keys` are columns of the plan. `crossed`: the plan is part of another pipeline than the
    /// join's.
    fn push(&self, plan: &Arc<dyn ExecutionPlan>, keys: &[usize], crossed: bool) -> Result<Option<Arc<dyn ExecutionPlan>>> {
        let mut children: Vec<_> = plan.children().into_iter().cloned().collect();
        match descent(plan, keys) {
            Descent::Ends => self.end(plan, keys, crossed),
            Descent::AllInputs => {
                let pushed = children.iter().map(|child| self.push(child, keys, crossed)).collect::<Result<Option<Vec<_>>>>()?;
                pushed.map(|children| with_children(plan, children)).transpose()
            }
            Descent::Input { child, keys, crosses } => {
                let Some(input) = children.get(child) else { return Ok(None) };
                let Some(pushed) = self.push(input, &keys, crossed || crosses)? else { return Ok(None) };
                children[child] = pushed;
                Ok(Some(with_children(plan, children)?))
            }
        }
    }

    /// The filter at the end of its way.
    fn end(&self, plan: &Arc<dyn ExecutionPlan>, keys: &[usize], crossed: bool) -> Result<Option<Arc<dyn ExecutionPlan>>> {
        let scan = self.push_into_scan(plan, keys)?;
        Ok(match crossed && self.on_device {
            true => Some(self.above(scan.as_ref().unwrap_or(plan), keys)),
            false => scan,
        })
    }

    /// An upload whose host scan has accepted the filter.
    fn push_into_scan(&self, plan: &Arc<dyn ExecutionPlan>, keys: &[usize]) -> Result<Option<Arc<dyn ExecutionPlan>>> {
        let (Some(upload), Some(config)) = (plan.downcast_ref::<HostToDeviceExec>(), self.config) else { return Ok(None) };
        let Some(scan) = upload.input().downcast_ref::<DataSourceExec>() else { return Ok(None) };
        // A scan with a limit would give other rows.
        if scan.fetch().is_some() || self.scan_filter.borrow().is_some() {
            return Ok(None);
        }
        let filter: Arc<dyn PhysicalExpr> = Arc::new(DynamicFilterPhysicalExpr::new(columns(upload.input(), keys), lit(true)));
        let pushed = scan.data_source().try_pushdown_filters(vec![Arc::clone(&filter)], config)?;
        let Some(source) = pushed.updated_node else { return Ok(None) };
        self.scan_filter.replace(Some(filter));
        Ok(Some(Arc::new(HostToDeviceExec::new(Arc::new(DataSourceExec::new(source)), upload.origin()))))
    }

    fn above(&self, plan: &Arc<dyn ExecutionPlan>, keys: &[usize]) -> Arc<dyn ExecutionPlan> {
        self.is_placed.set(true);
        Arc::new(DeviceDynamicFilterExec::new(Arc::clone(plan), columns(plan, keys), self.number, self.null_equals_null))
    }
}

fn columns(plan: &Arc<dyn ExecutionPlan>, keys: &[usize]) -> Vec<Arc<dyn PhysicalExpr>> {
    let schema = plan.schema();
    keys.iter().map(|key| Arc::new(Column::new(schema.field(*key).name(), *key)) as Arc<dyn PhysicalExpr>).collect()
}

/// The inputs of an operator that have the columns `keys` of its output.
fn descent(plan: &Arc<dyn ExecutionPlan>, keys: &[usize]) -> Descent {
    let input = |keys: Option<Vec<usize>>, crosses| match keys {
        Some(keys) => Descent::Input { child: 0, keys, crosses },
        None => Descent::Ends,
    };
    let Some(operator) = DeviceOperator::of(plan) else { return Descent::Ends };
    match operator {
        DeviceOperator::Filter(filter) => {
            let below = |key: &usize| filter.projection().map_or(Some(*key), |projection| projection.get(*key).copied());
            input(keys.iter().map(below).collect(), false)
        }
        DeviceOperator::Projection(projection) => {
            let below = |key: &usize| projection.expressions().get(*key).and_then(|output| position(&output.expr));
            input(keys.iter().map(below).collect(), false)
        }
        DeviceOperator::Aggregate(aggregate) => {
            // Rows of other groups have no effect on a group.
            let below = |key: &usize| aggregate.spec.keys.get(*key).and_then(|(expr, _)| position(expr));
            input(keys.iter().map(below).collect(), true)
        }
        DeviceOperator::Join(join) => descent_of_join(join, keys).unwrap_or(Descent::Ends),
        DeviceOperator::DynamicFilter(_) => input(Some(keys.to_vec()), false),
        DeviceOperator::Sort(sort) => input(sort.fetch_rows().is_none().then(|| keys.to_vec()), true),
        DeviceOperator::Union(_) => Descent::AllInputs,
        DeviceOperator::Expand(_)
        | DeviceOperator::Futhark(_)
        | DeviceOperator::Limit(_)
        | DeviceOperator::Reuse(_)
        | DeviceOperator::Scan(_)
        | DeviceOperator::Shared(_)
        | DeviceOperator::Stream(_)
        | DeviceOperator::Unnest(_)
        | DeviceOperator::Upload(_)
        | DeviceOperator::Window(_) => Descent::Ends,
    }
}

fn descent_of_join(join: &DeviceJoinExec, keys: &[usize]) -> Option<Descent> {
    let (spec, facts) = (&join.spec, JoinTypeFacts::of(join.spec.join_type));
    let joined = |key: &usize| spec.projection.as_ref().map_or(Some(*key), |projection| projection.get(*key).copied());
    let keys = keys.iter().map(joined).collect::<Option<Vec<usize>>>()?;
    let (left, right) = (join.left().schema().fields().len(), join.right().schema().fields().len());
    let first_right = facts.first_probe_column(left);
    if facts.filter_sides.build() && !spec.null_aware && keys.iter().all(|key| *key < left) {
        return Some(Descent::Input { child: 0, keys, crosses: true });
    }
    if facts.filter_sides.probe() && keys.iter().all(|key| (first_right..first_right + right).contains(key)) {
        let keys = keys.into_iter().map(|key| key - first_right).collect();
        return Some(Descent::Input { child: 1, keys, crosses: false });
    }
    None
}
