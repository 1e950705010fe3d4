// SPDX-License-Identifier: Apache-2.0
//! Classes of subplans that surely give the same rows.

use std::collections::{HashMap, HashSet};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use datafusion::common::tree_node::TreeNodeRecursion;

use crate::exec::{DeviceOperator, device_inputs};
use crate::planner::rewrite::Plan;
use crate::planner::same::{hash_source, is_cached, same_operator};

/// A subplan and its class.
type Classified = (Plan, usize);

/// Numbers subplans. Two have the same number if [`same_rows`](super::same::same_rows) accepts
/// them.
///
/// A subplan is compared only with those of the same expressions over the same inputs. So the time
/// grows as the number of subplans, not of their pairs.
#[derive(Default)]
pub(super) struct RowClasses {
    /// Classes by address. The plans live as long as their addresses are keys.
    known: HashMap<*const (), Classified>,
    /// One subplan of each class, by a hash of its top and the classes of its inputs.
    alike: HashMap<(u64, Vec<usize>), Vec<Classified>>,
    count: usize,
}

impl RowClasses {
    /// The class of a subplan.
    pub fn of(&mut self, plan: &Plan) -> usize {
        let address = Arc::as_ptr(plan).cast::<()>();
        if let Some((_, class)) = self.known.get(&address) {
            return *class;
        }
        let inputs: Vec<usize> = device_inputs(plan).into_iter().map(|input| self.of(input)).collect();
        let alike = self.alike.entry((hash_of_operator(plan), inputs)).or_default();
        let class = match alike.iter().find(|(other, _)| same_operator(other, plan)) {
            Some((_, class)) => *class,
            None => {
                self.count += 1;
                alike.push((Arc::clone(plan), self.count));
                self.count
            }
        };
        self.known.insert(address, (Arc::clone(plan), class));
        class
    }

    /// The extent of one subplan.
    pub fn extent(&mut self, plan: &Plan) -> Extent {
        let mut extent = Extent { tops: HashSet::from([self.of(plan)]), below: HashSet::new() };
        self.add_below(plan, &mut extent.below);
        extent
    }

    /// Adds the classes of the subplans below a subplan's top that the same run reads.
    fn add_below(&mut self, plan: &Plan, below: &mut HashSet<usize>) {
        // Cached rows are computed by a run of their own.
        if is_cached(plan) {
            return;
        }
        for input in device_inputs(plan) {
            if below.insert(self.of(input)) {
                self.add_below(input, below);
            }
        }
    }
}

/// Equal for operators that do the same.
fn hash_of_operator(plan: &Plan) -> u64 {
    let mut hasher = DefaultHasher::new();
    plan.name().hash(&mut hasher);
    plan.schema().fields().hash(&mut hasher);
    if let Some(input) = DeviceOperator::of(plan).and_then(DeviceOperator::host_input) {
        hash_source(input, &mut hasher);
    }
    // The closure never fails. An operator that fails has fewer expressions in its hash.
    let _ = plan.apply_expressions(&mut |expr| {
        expr.hash(&mut hasher);
        Ok(TreeNodeRecursion::Continue)
    });
    hasher.finish()
}

/// Classes of subplans, and of all that their runs read below their tops.
#[derive(Default)]
pub(super) struct Extent {
    pub tops: HashSet<usize>,
    pub below: HashSet<usize>,
}

impl Extent {
    /// Whether a subplan of one stands within a subplan of the other.
    pub fn overlaps(&self, other: &Extent) -> bool {
        !self.below.is_disjoint(&other.tops) || !other.below.is_disjoint(&self.tops)
    }

    /// Adds the subplans of another extent.
    pub fn extend(&mut self, other: Extent) {
        self.tops.extend(other.tops);
        self.below.extend(other.below);
    }
}
