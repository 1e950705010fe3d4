// SPDX-License-Identifier: Apache-2.0
//! Keys by which mergeable subplans are found.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use super::merged::shape;
use crate::exec::{DeviceOperator, device_inputs};
use crate::planner::rewrite::Plan;
use crate::planner::row_classes::RowClasses;
use crate::planner::same::hash_source;

/// Subplans in groups of one merge key, both in their order.
pub(super) fn by_key(subplans: Vec<Plan>, classes: &mut RowClasses) -> Vec<Vec<Plan>> {
    let mut keys = MergeKeys { classes, known: HashMap::new() };
    let (mut positions, mut groups) = (HashMap::new(), Vec::<Vec<Plan>>::new());
    for subplan in subplans {
        let position = *positions.entry(keys.of(&subplan)).or_insert(groups.len());
        match groups.get_mut(position) {
            Some(group) => group.push(subplan),
            None => groups.push(vec![subplan]),
        }
    }
    groups
}

/// Merge keys: two subplans that can be merged have the same. They differ in columns only.
struct MergeKeys<'a> {
    classes: &'a mut RowClasses,
    /// By class.
    known: HashMap<usize, u64>,
}

impl MergeKeys<'_> {
    fn of(&mut self, plan: &Plan) -> u64 {
        let class = self.classes.of(plan);
        if let Some(key) = self.known.get(&class) {
            return *key;
        }
        let inputs: Vec<u64> = device_inputs(plan).into_iter().map(|input| self.of(input)).collect();
        let key = key_over(inputs, plan, class);
        self.known.insert(class, key);
        key
    }
}

/// The key of a subplan of a class, over inputs of these keys.
fn key_over(mut inputs: Vec<u64>, plan: &Plan, class: usize) -> u64 {
    use DeviceOperator::*;
    let mut hasher = DefaultHasher::new();
    plan.name().hash(&mut hasher);
    match DeviceOperator::of(plan) {
        // The optimizer may have removed one.
        Some(Projection(_)) => return inputs.first().copied().unwrap_or_default(),
        Some(Scan(scan)) => Arc::as_ptr(scan.snapshot()).hash(&mut hasher),
        Some(Upload(upload)) => hash_source(upload.input(), &mut hasher),
        Some(Union(_)) => {}
        Some(Filter(filter)) => shape(filter.predicate()).hash(&mut hasher),
        Some(Aggregate(aggregate)) => aggregate.spec.keys.iter().for_each(|(key, _)| shape(key).hash(&mut hasher)),
        // The optimizer may have swapped the sides.
        Some(Join(_)) => inputs.sort_unstable(),
        Some(Sort(sort)) => {
            sort.fetch_rows().hash(&mut hasher);
            sort.keys().iter().for_each(|key| (shape(&key.expr), key.options).hash(&mut hasher));
        }
        Some(Limit(limit)) => (limit.skip(), limit.fetch_rows()).hash(&mut hasher),
        // These merge only with their like.
        Some(DynamicFilter(_) | Expand(_) | Futhark(_) | Reuse(_) | Shared(_) | Stream(_) | Unnest(_) | Window(_)) | None => {
            class.hash(&mut hasher);
        }
    }
    inputs.hash(&mut hasher);
    hasher.finish()
}
