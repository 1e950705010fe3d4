// SPDX-License-Identifier: Apache-2.0
//! Where dynamic filters go: from a join whose build side lacks some keys down to where rows of the probe side come from.
//!
//! A filter is worth its place below an aggregation, or on the build side of another join; a row that goes straight through
//! the probes is dropped there by the join itself. Filters are pushed from the uppermost join on: one that lands on the build
//! side of a lower join makes that table smaller, and so worth a filter of its own.
//!
//! Where the rows come from a host scan, it gets a filter of DataFusion's too, which learns the ranges of the keys: a Parquet
//! scan skips row groups and pages by it.

use std::cell::{Cell, RefCell};
use std::sync::Arc;

use arrow::datatypes::DataType;
use datafusion::common::JoinType;
use datafusion::common::Result;
use datafusion::common::config::ConfigOptions;
use datafusion::datasource::source::DataSourceExec;
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_expr::expressions::{Column, DynamicFilterPhysicalExpr, lit};
use datafusion::physical_plan::{ChildrenPropertiesMode, ExecutionPlan, ReplaceChildrenOptions};

use crate::exec::{
    DeviceAggregateExec, DeviceDynamicFilterExec, DeviceFilterExec, DeviceJoinExec, DeviceProjectionExec, DeviceSortExec,
    DeviceUnionExec, DynamicFilters, HostToDeviceExec, drops_rows, is_device,
};

/// An offloaded subplan's operators with the dynamic filters of its joins; those that were there before are planned anew.
/// `tells`: whether host scans may learn of keys.
pub(crate) fn with_dynamic_filters(
    plan: &Arc<dyn ExecutionPlan>,
    config: &ConfigOptions,
    tells: bool,
) -> Result<Arc<dyn ExecutionPlan>> {
    add(&without_dynamic_filters(plan)?, config, tells, &mut 0)
}

/// The operators as they were before they had such filters; what host scans were told, they keep.
pub(crate) fn without_dynamic_filters(plan: &Arc<dyn ExecutionPlan>) -> Result<Arc<dyn ExecutionPlan>> {
    if let Some(filter) = plan.downcast_ref::<DeviceDynamicFilterExec>() {
        return without_dynamic_filters(filter.input());
    }
    let plan = of_children(plan, without_dynamic_filters)?;
    Ok(match plan.downcast_ref::<DeviceJoinExec>() {
        Some(join) if !join.dynamic_filters().is_empty() => {
            Arc::new(join.with_dynamic_filters(Arc::clone(join.right()), DynamicFilters::default()))
        }
        _ => plan,
    })
}

fn add(plan: &Arc<dyn ExecutionPlan>, config: &ConfigOptions, tells: bool, joins: &mut usize) -> Result<Arc<dyn ExecutionPlan>> {
    let mut plan = Arc::clone(plan);
    if let Some(join) = plan.downcast_ref::<DeviceJoinExec>()
        && drops_unmatched(join)
    {
        let null_equals_null = join.spec.null_equals_null;
        let keys: Option<Vec<usize>> = join.spec.on.iter().map(|(_, right)| position(right)).collect();
        let keys = keys.filter(|keys| !keys.is_empty());
        // Of texts nobody knows the ranges.
        let has_ranges = keys.as_ref().is_some_and(|keys| all_keys(join.right(), keys, is_number));
        let filter = Filter {
            number: *joins + 1,
            null_equals_null,
            filters: drops_rows(join.left()),
            config: (tells && !null_equals_null && has_ranges).then_some(config),
            placed: Cell::default(),
            told: RefCell::default(),
        };
        if let Some(keys) = keys.filter(|keys| all_keys(join.right(), keys, can_be_asked))
            && let Some(right) = filter.push(join.right(), &keys, false)?
        {
            *joins += usize::from(filter.placed.get());
            let number = filter.placed.get().then_some(filter.number);
            let dynamic_filters = DynamicFilters { number, scan: filter.told.take() };
            plan = Arc::new(join.with_dynamic_filters(right, dynamic_filters));
        }
    }
    of_children(&plan, |child| add(child, config, tells, joins))
}

/// A device operator over what `f` makes of its inputs; what lies below an upload stays.
pub(crate) fn of_children(
    plan: &Arc<dyn ExecutionPlan>,
    mut f: impl FnMut(&Arc<dyn ExecutionPlan>) -> Result<Arc<dyn ExecutionPlan>>,
) -> Result<Arc<dyn ExecutionPlan>> {
    if !is_device(plan) || plan.is::<HostToDeviceExec>() {
        return Ok(Arc::clone(plan));
    }
    let children = plan.children().into_iter().map(&mut f).collect::<Result<Vec<_>>>()?;
    with_children(plan, children)
}

/// An operator over other inputs.
pub(crate) fn with_children(
    plan: &Arc<dyn ExecutionPlan>,
    children: Vec<Arc<dyn ExecutionPlan>>,
) -> Result<Arc<dyn ExecutionPlan>> {
    if plan.children().into_iter().zip(&children).all(|(old, new)| Arc::ptr_eq(old, new)) {
        return Ok(Arc::clone(plan));
    }
    Arc::clone(plan).replace_children(children, ReplaceChildrenOptions::new(ChildrenPropertiesMode::Recompute))
}

/// Whether a row of the right side that has no match is of no consequence.
fn drops_unmatched(join: &DeviceJoinExec) -> bool {
    use JoinType::*;
    matches!(join.spec.join_type, Inner | Left | LeftSemi | LeftAnti | LeftMark | RightSemi) && !join.spec.null_aware
}

fn all_keys(plan: &Arc<dyn ExecutionPlan>, keys: &[usize], of_type: impl Fn(&DataType) -> bool) -> bool {
    let schema = plan.schema();
    keys.iter().all(|key| schema.fields().get(*key).is_some_and(|field| of_type(field.data_type())))
}

/// Whether a join numbers keys of this type.
fn is_number(data_type: &DataType) -> bool {
    data_type.is_integer() || data_type.is_temporal() && !matches!(data_type, DataType::Interval(_))
}

/// Whether keys of this type are the same digits or bytes wherever the column is read: the integers behind decimals may be wider
/// above an aggregation than below.
fn can_be_asked(data_type: &DataType) -> bool {
    is_number(data_type) || data_type.is_string()
}

fn position(expr: &Arc<dyn PhysicalExpr>) -> Option<usize> {
    expr.downcast_ref::<Column>().map(Column::index)
}

struct Filter<'a> {
    number: usize,
    null_equals_null: bool,
    /// Whether the device's own filter is worth it.
    filters: bool,
    /// Present where a host scan may learn of the keys.
    config: Option<&'a ConfigOptions>,
    /// Whether the filter stands somewhere.
    placed: Cell<bool>,
    /// What a host scan has got.
    told: RefCell<Option<Arc<dyn PhysicalExpr>>>,
}

impl Filter<'_> {
    /// The plan with the filter at or below its top, by its columns `keys`; `None` where it would gain nothing. `crossed`: it
    /// has come to another pipeline than the join's.
    fn push(&self, plan: &Arc<dyn ExecutionPlan>, keys: &[usize], crossed: bool) -> Result<Option<Arc<dyn ExecutionPlan>>> {
        let children: Vec<_> = plan.children().into_iter().cloned().collect();
        let (child, keys_below, crosses) = match self.way_down(plan, keys) {
            Some(Way::Through { child, keys, crosses }) => (child, keys, crossed || crosses),
            Some(Way::Branches) => {
                let pushed = children.iter().map(|child| self.push(child, keys, crossed)).collect::<Result<Option<Vec<_>>>>()?;
                return pushed.map(|children| with_children(plan, children)).transpose();
            }
            None => return self.end(plan, keys, crossed),
        };
        match children.get(child).map(|input| self.push(input, &keys_below, crosses)).transpose()?.flatten() {
            Some(input) => {
                let mut children = children;
                children[child] = input;
                Ok(Some(with_children(plan, children)?))
            }
            None => Ok(None),
        }
    }

    /// The filter where it goes no further down.
    fn end(&self, plan: &Arc<dyn ExecutionPlan>, keys: &[usize], crossed: bool) -> Result<Option<Arc<dyn ExecutionPlan>>> {
        let told = self.tell(plan, keys)?;
        Ok(match crossed && self.filters {
            true => Some(self.above(told.as_ref().unwrap_or(plan), keys)),
            false => told,
        })
    }

    /// An upload of a host scan that learns of the keys, where it can use that.
    fn tell(&self, plan: &Arc<dyn ExecutionPlan>, keys: &[usize]) -> Result<Option<Arc<dyn ExecutionPlan>>> {
        let (Some(upload), Some(config)) = (plan.downcast_ref::<HostToDeviceExec>(), self.config) else { return Ok(None) };
        let Some(scan) = upload.input().downcast_ref::<DataSourceExec>() else { return Ok(None) };
        // Of a scan that stops after some rows, these would be others.
        if scan.fetch().is_some() || self.told.borrow().is_some() {
            return Ok(None);
        }
        let filter: Arc<dyn PhysicalExpr> = Arc::new(DynamicFilterPhysicalExpr::new(columns(upload.input(), keys), lit(true)));
        let pushed = scan.data_source().try_pushdown_filters(vec![Arc::clone(&filter)], config)?;
        let Some(source) = pushed.updated_node else { return Ok(None) };
        self.told.replace(Some(filter));
        Ok(Some(Arc::new(HostToDeviceExec::new(Arc::new(DataSourceExec::new(source)), upload.origin()))))
    }

    fn above(&self, plan: &Arc<dyn ExecutionPlan>, keys: &[usize]) -> Arc<dyn ExecutionPlan> {
        self.placed.set(true);
        Arc::new(DeviceDynamicFilterExec::new(Arc::clone(plan), columns(plan, keys), self.number, self.null_equals_null))
    }

    fn way_down(&self, plan: &Arc<dyn ExecutionPlan>, keys: &[usize]) -> Option<Way> {
        let through = |child, keys: Option<Vec<usize>>, crosses| keys.map(|keys| Way::Through { child, keys, crosses });
        if let Some(filter) = plan.downcast_ref::<DeviceFilterExec>() {
            let below = |key: &usize| filter.projection().map_or(Some(*key), |projection| projection.get(*key).copied());
            return through(0, keys.iter().map(below).collect(), false);
        }
        if let Some(projection) = plan.downcast_ref::<DeviceProjectionExec>() {
            let below = |key: &usize| projection.expressions().get(*key).and_then(|output| position(&output.expr));
            return through(0, keys.iter().map(below).collect(), false);
        }
        if let Some(aggregate) = plan.downcast_ref::<DeviceAggregateExec>() {
            // Rows of other groups change nothing in a group.
            let below = |key: &usize| aggregate.spec.keys.get(*key).and_then(|(expr, _)| position(expr));
            return through(0, keys.iter().map(below).collect(), true);
        }
        if let Some(join) = plan.downcast_ref::<DeviceJoinExec>() {
            return way_down_join(join, keys);
        }
        if plan.is::<DeviceDynamicFilterExec>() {
            return through(0, Some(keys.to_vec()), false);
        }
        if let Some(sort) = plan.downcast_ref::<DeviceSortExec>() {
            return through(0, sort.fetch_rows().is_none().then(|| keys.to_vec()), true);
        }
        plan.is::<DeviceUnionExec>().then_some(Way::Branches)
    }
}

fn columns(plan: &Arc<dyn ExecutionPlan>, keys: &[usize]) -> Vec<Arc<dyn PhysicalExpr>> {
    let schema = plan.schema();
    keys.iter().map(|key| Arc::new(Column::new(schema.field(*key).name(), *key)) as Arc<dyn PhysicalExpr>).collect()
}

/// Where a filter's keys come from.
enum Way {
    Through {
        child: usize,
        keys: Vec<usize>,
        crosses: bool,
    },
    /// Every input has them.
    Branches,
}

fn way_down_join(join: &DeviceJoinExec, keys: &[usize]) -> Option<Way> {
    use JoinType::*;
    let spec = &join.spec;
    let joined = |key: &usize| spec.projection.as_ref().map_or(Some(*key), |projection| projection.get(*key).copied());
    let keys = keys.iter().map(joined).collect::<Option<Vec<usize>>>()?;
    let (left, right) = (join.left().schema().fields().len(), join.right().schema().fields().len());
    let first_right = match spec.join_type {
        RightSemi | RightAnti | RightMark => 0,
        _ => left,
    };
    // A row that goes missing here must not turn one of the other side into one without a match that stays.
    let (to_left, to_right) = match spec.join_type {
        Inner => (true, true),
        Left | LeftSemi | LeftMark => (true, false),
        LeftAnti => (!spec.null_aware, false),
        Right | RightSemi | RightAnti | RightMark => (false, true),
        Full => (false, false),
    };
    if to_left && keys.iter().all(|key| *key < left) {
        return Some(Way::Through { child: 0, keys, crosses: true });
    }
    if to_right && keys.iter().all(|key| (first_right..first_right + right).contains(key)) {
        let keys = keys.into_iter().map(|key| key - first_right).collect();
        return Some(Way::Through { child: 1, keys, crosses: false });
    }
    None
}
