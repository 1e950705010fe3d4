// SPDX-License-Identifier: Apache-2.0
//! Row counts of subplans.

use std::cell::RefCell;
use std::sync::Arc;

use datafusion::common::stats::Precision;
use datafusion::physical_plan::statistics::{StatisticsArgs, StatisticsContext};

use crate::planner::rewrite::Plan;

/// Row counts by statistics, which are computed once for each subplan.
///
/// An operator's statistics need those of all operators below it. Without this the planning of a
/// deep plan would compute the lowest ones for each operator above.
#[derive(Default)]
pub(crate) struct RowCounts {
    statistics: StatisticsContext,
    /// The context knows subplans by address, so these live as long.
    subplans: RefCell<Vec<Plan>>,
}

impl RowCounts {
    /// Number of rows that a plan surely gives; `None` if statistics do not tell.
    pub fn exact(&self, plan: &Plan) -> Option<usize> {
        self.subplans.borrow_mut().push(Arc::clone(plan));
        let statistics = self.statistics.compute(plan.as_ref(), &StatisticsArgs::new()).ok()?;
        match statistics.num_rows {
            Precision::Exact(rows) => Some(rows),
            Precision::Inexact(_) | Precision::Absent => None,
        }
    }
}
