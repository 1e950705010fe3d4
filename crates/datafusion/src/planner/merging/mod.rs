// SPDX-License-Identifier: Apache-2.0
//! Subplans that differ only in their columns become one subplan with the columns of all. Each use
//! picks its own.
//!
//! DataFusion's optimizer leaves each use of a CTE only the columns that it reads.
//!
//! A fallible expression is merged only if every use computes it. Else a use that never runs could
//! raise its error. Uses that differ in such an expression share the rows below it.

mod joins;
mod keys;
mod merged;
mod operators;
mod scans;

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use datafusion::common::Result;
use datafusion::physical_expr::expressions::Column;
use datafusion::physical_plan::ExecutionPlanProperties;
use datafusion::physical_plan::projection::ProjectionExec;

use self::keys::by_key;
use self::merged::{Merged, column_of, input, moved};
use self::operators::merge;
use crate::exec::{DeviceOperator, DeviceProjectionExec, device_inputs};
use crate::planner::rewrite::{Plan, map_device_inputs};
use crate::planner::row_classes::{Extent, RowClasses};
use crate::planner::same::is_cached;

/// Most uses of one merged subplan, whose columns are compared with each other.
const MOST_USES: usize = 64;

/// Failed merges with a subplan, after which no more are tried.
const MOST_MISSES: usize = 16;

/// Merges subplans that `wanted` accepts.
pub(super) fn with_merged_subplans(mut plans: Vec<Plan>, wanted: &dyn Fn(&Plan) -> bool) -> Result<Vec<Plan>> {
    let mut costly = costly_operators(&plans);
    loop {
        let mut replacements = Replacements::of(&plans, wanted);
        if replacements.by_class.is_empty() {
            return Ok(plans);
        }
        let merged = plans.iter().map(|plan| replacements.within(plan)).collect::<Result<Vec<_>>>()?;
        // Each step leaves fewer costly operators, which bounds the number of steps.
        let left = costly_operators(&merged);
        if left >= costly {
            return Ok(plans);
        }
        (plans, costly) = (merged, left);
    }
}

/// Number of different costly operators.
fn costly_operators(plans: &[Plan]) -> usize {
    let is_costly = |plan: &Plan| DeviceOperator::of(plan).is_some_and(DeviceOperator::is_costly);
    distinct(plans, &is_costly, &mut RowClasses::default()).len()
}

/// Different subplans of one run, upper ones first.
fn distinct(plans: &[Plan], wanted: &dyn Fn(&Plan) -> bool, classes: &mut RowClasses) -> Vec<Plan> {
    let (mut seen, mut found) = (HashSet::new(), Vec::new());
    let mut waiting: Vec<&Plan> = plans.iter().rev().collect();
    while let Some(plan) = waiting.pop() {
        if is_cached(plan) || !seen.insert(classes.of(plan)) {
            continue;
        }
        if wanted(plan) {
            found.push(Arc::clone(plan));
        }
        waiting.extend(device_inputs(plan).into_iter().rev());
    }
    found
}

/// A merged subplan: each of its uses with a replacement.
struct Group {
    uses: Vec<(Plan, Plan)>,
    extent: Extent,
}

impl Group {
    /// Merges the first of several subplans with others. Also returns those that are left.
    ///
    /// `None` if the first one stays alone.
    fn of_first(subplans: &[Plan], classes: &mut RowClasses) -> Option<(Group, Vec<Plan>)> {
        let (first, others) = subplans.split_first()?;
        let mut merged = Merged::same(first).plan;
        let mut uses = vec![(first, Merged::same(first).a)];
        let mut extent = classes.extent(first);
        let (mut left, mut misses) = (Vec::new(), 0);
        for (index, other) in others.iter().enumerate() {
            if uses.len() >= MOST_USES || misses >= MOST_MISSES {
                left.extend_from_slice(&others[index..]);
                break;
            }
            let of_other = classes.extent(other);
            let both = if extent.overlaps(&of_other) { None } else { merge(&merged, other, true) };
            let Some(both) = both else {
                misses += 1;
                left.push(Arc::clone(other));
                continue;
            };
            for (_, columns) in &mut uses {
                columns.iter_mut().for_each(|column| *column = both.a[*column]);
            }
            uses.push((other, both.b));
            extent.extend(of_other);
            merged = both.plan;
        }
        let picked = uses.into_iter().map(|(plan, columns)| Some((Arc::clone(plan), picked(&merged, &columns, plan)?)));
        let uses = picked.collect::<Option<Vec<_>>>().filter(|uses| uses.len() > 1)?;
        Some((Group { uses, extent }, left))
    }
}

/// Replacements of subplans, none of which stands within another.
#[derive(Default)]
struct Replacements {
    classes: RowClasses,
    by_class: HashMap<usize, Plan>,
    extent: Extent,
}

impl Replacements {
    /// Those of all subplans of a step that can be merged.
    fn of(plans: &[Plan], wanted: &dyn Fn(&Plan) -> bool) -> Replacements {
        let mut replacements = Replacements::default();
        // Projections stay with the uses.
        let wanted = |plan: &Plan| !plan.is::<DeviceProjectionExec>() && wanted(plan);
        let subplans = distinct(plans, &wanted, &mut replacements.classes);
        for mut alike in by_key(subplans, &mut replacements.classes) {
            while alike.len() > 1 {
                alike = match Group::of_first(&alike, &mut replacements.classes) {
                    Some((group, left)) => {
                        replacements.add(group);
                        left
                    }
                    None => alike.split_off(1),
                };
            }
        }
        replacements
    }

    /// Adds a group, unless it overlaps with others. The next step finds it again.
    fn add(&mut self, group: Group) {
        if self.extent.overlaps(&group.extent) {
            return;
        }
        self.extent.extend(group.extent);
        for (plan, replacement) in group.uses {
            self.by_class.insert(self.classes.of(&plan), replacement);
        }
    }

    /// A plan with these replacements.
    fn within(&mut self, plan: &Plan) -> Result<Plan> {
        if is_cached(plan) {
            return Ok(Arc::clone(plan));
        }
        let class = self.classes.of(plan);
        if let Some(replacement) = self.by_class.get(&class) {
            return Ok(Arc::clone(replacement));
        }
        let with = map_device_inputs(plan, |child| self.within(child))?;
        Ok(if Arc::ptr_eq(&with, plan) { with } else { one_projection(&with).unwrap_or(with) })
    }
}

/// The columns of a use, by their names and in its order. `None` if the merged subplan loses a
/// property.
fn picked(merged: &Plan, columns: &[usize], use_of: &Plan) -> Option<Plan> {
    let schema = use_of.schema();
    let picked = if merged.schema() == schema && columns.iter().enumerate().all(|(index, column)| index == *column) {
        Arc::clone(merged)
    } else {
        let outputs =
            columns.iter().zip(schema.fields()).map(|(column, field)| (column_of(merged, *column), field.name().clone()));
        let projection = ProjectionExec::try_new_with_schema_metadata(outputs, Arc::clone(merged), &schema).ok()?;
        Arc::new(DeviceProjectionExec::try_new(Arc::new(projection)).ok()?)
    };
    let in_order = match use_of.output_ordering() {
        Some(ordering) => picked.equivalence_properties().ordering_satisfy(ordering.clone()).ok()?,
        None => true,
    };
    let partitions = |plan: &Plan| plan.output_partitioning().partition_count();
    (in_order && picked.schema() == schema && partitions(&picked) == partitions(use_of)).then_some(picked)
}

/// Merges a projection with a projection below it that only passes columns on.
fn one_projection(plan: &Plan) -> Option<Plan> {
    let upper = plan.downcast_ref::<DeviceProjectionExec>()?;
    let (columns, below) = (passed_columns(input(plan)?)?, input(input(plan)?)?);
    let outputs = upper.expressions().iter().map(|output| Some((moved(&output.expr, &columns, below)?, output.alias.clone())));
    let outputs = outputs.collect::<Option<Vec<_>>>()?;
    let projection = ProjectionExec::try_new_with_schema_metadata(outputs, Arc::clone(below), &plan.schema()).ok()?;
    Some(Arc::new(DeviceProjectionExec::try_new(Arc::new(projection)).ok()?))
}

/// The columns passed on by a projection; `None` if it computes.
fn passed_columns(plan: &Plan) -> Option<Vec<usize>> {
    let outputs = plan.downcast_ref::<DeviceProjectionExec>()?.expressions().iter();
    outputs.map(|output| output.expr.downcast_ref::<Column>().map(Column::index)).collect()
}
