// SPDX-License-Identifier: Apache-2.0
//! Subplans that stand at several positions of a plan, or of several plans.

use std::collections::HashMap;
use std::sync::Arc;

use datafusion::physical_plan::ExecutionPlanProperties;

use crate::exec::{DeviceOperator, Sharing, device_inputs};
use crate::planner::rewrite::Plan;
use crate::planner::row_classes::RowClasses;

/// Subplans that are worth sharing, with the number of their uses.
#[derive(Default)]
pub(super) struct RepeatedSubplans {
    pub classes: RowClasses,
    /// One subplan of each class, upper ones first.
    pub found: Vec<(usize, Plan)>,
    uses: HashMap<usize, Uses>,
    /// Number of subplans that are shared.
    shared: usize,
}

#[derive(Default)]
struct Uses {
    readers: usize,
    /// `None` until the first reader is placed.
    number: Option<usize>,
}

impl RepeatedSubplans {
    /// Those of several plans.
    pub fn of(plans: &[Plan]) -> RepeatedSubplans {
        let mut repeated = RepeatedSubplans::default();
        plans.iter().for_each(|plan| repeated.collect(plan));
        repeated
    }

    fn collect(&mut self, plan: &Plan) {
        if is_worth_sharing(plan) {
            let class = self.classes.of(plan);
            let uses = self.uses.entry(class).or_default();
            uses.readers += 1;
            if uses.readers > 1 {
                return;
            }
            self.found.push((class, Arc::clone(plan)));
        }
        device_inputs(plan).into_iter().for_each(|child| self.collect(child));
    }

    /// Whether a subplan has several uses.
    pub fn any(&self) -> bool {
        self.uses.values().any(|uses| uses.readers > 1)
    }

    /// How a use of a subplan shares its rows, and whether it is the first. `None` for the only use
    /// of a subplan.
    pub fn sharing_of(&mut self, plan: &Plan) -> Option<(Sharing, bool)> {
        let class = self.classes.of(plan);
        let uses = self.uses.get_mut(&class).filter(|uses| uses.readers > 1)?;
        let is_first = uses.number.is_none();
        self.shared += usize::from(is_first);
        let number = *uses.number.get_or_insert(self.shared);
        Some((Sharing { number, readers: uses.readers, cache: None, is_last: false }, is_first))
    }
}

/// Whether a subplan has a costly operator, and its top is not the readers' own work.
pub(super) fn is_worth_sharing(plan: &Plan) -> bool {
    fn is_costly(plan: &Plan) -> bool {
        DeviceOperator::of(plan).is_some_and(DeviceOperator::is_costly) || device_inputs(plan).into_iter().any(is_costly)
    }
    let stays_with_readers = DeviceOperator::of(plan).is_some_and(DeviceOperator::stays_with_readers);
    plan.output_partitioning().partition_count() == 1 && !stays_with_readers && is_costly(plan)
}
