// SPDX-License-Identifier: Apache-2.0
//! Launches over all rows of an operator, in ranges of work-groups on a CPU device.
//!
//! A launch over 2^24 rows may take half a second there. Such a kernel has many work-groups, and a
//! launch runs a few of them, as many as the kernel's [budget](super::throttle::LaunchBudget)
//! allows. A GPU runs all of them in one launch.

use std::sync::Arc;

use columnar::DeviceColumn;
use device::{Arg, Buffer, Grid, Queue};

use super::NamedArgs;
use super::program::{Kernel, Loaded, grid_for};
use super::throttle::Throttle;
use crate::Result;
use crate::codegen::Profile;
use crate::ops::Options;

/// Parameters of a kernel that is launched in ranges: its first work-group, and the number of
/// work-groups of all ranges.
const FIRST_GROUP: &str = "first_group";
const GROUP_COUNT: &str = "group_count";

/// Most rows of a work-group. They take 50 ms where a row takes 760 ns.
const GROUP_ROWS: usize = 1 << 16;

impl Kernel {
    /// The kernel for launches in ranges. Its work-groups are independent.
    #[must_use]
    pub fn in_ranges(mut self, profile: Profile) -> Kernel {
        if profile == Profile::Cpu {
            let (first, count) = (self.params.named(FIRST_GROUP, "u32"), self.params.named(GROUP_COUNT, "u32"));
            let body = self.body.replace("NGRP()", &count).replace("GRP()", "own_group");
            self.body = format!("  u32 own_group = {first} + GRP();\n{body}");
            self.runs_in_ranges = true;
        }
        self.budget = Some(Arc::default());
        self
    }

    /// The arguments of a range of work-groups.
    pub fn range_args(&self, first: u32, count: u32) -> NamedArgs<'static> {
        match self.runs_in_ranges {
            true => vec![(FIRST_GROUP, Arg::U32(first)), (GROUP_COUNT, Arg::U32(count))],
            false => vec![],
        }
    }
}

/// The grid for `n` rows of a kernel in ranges: a work-group of a CPU device has few rows.
pub(in crate::ops) fn grid_in_ranges(queue: &Queue, options: &Options, n: usize) -> Grid {
    let grid = grid_for(queue, options, n);
    match options.profile {
        Profile::Cpu if options.max_work_groups == 0 => {
            let least = u32::try_from(n.div_ceil(GROUP_ROWS)).unwrap_or(u32::MAX);
            Grid { work_groups: grid.work_groups.max(least), ..grid }
        }
        Profile::Cpu | Profile::Gpu => grid,
    }
}

/// A kernel and what it runs over.
pub(in crate::ops) struct RangedLaunch<'a> {
    pub kernel: usize,
    pub rows: usize,
    pub grid: Grid,
    pub columns: &'a [DeviceColumn],
    /// A failing row goes there.
    pub error: Option<&'a Buffer>,
    pub named: NamedArgs<'a>,
}

impl Loaded<'_> {
    /// Enqueues a kernel in ranges. Waits for earlier launches, if they are many.
    pub async fn launch_in_ranges(&self, queue: &Queue, launch: RangedLaunch<'_>, throttle: &mut Throttle) -> Result<()> {
        let RangedLaunch { kernel, rows, grid, columns, error, named } = launch;
        let Some(budget) = self.budget(kernel) else {
            return self.launch_on(queue, kernel, grid, columns, error, named);
        };
        let metered = budget.metered(queue);
        let rows_each = rows.div_ceil(grid.work_groups.max(1) as usize).max(1);
        let units = queue.context().info().compute_units.max(1);
        let mut first = 0;
        while first < grid.work_groups {
            let left = grid.work_groups - first;
            let count = match self.runs_in_ranges(kernel) {
                true => whole_rounds(budget.rows(queue, 1) / rows_each, units).min(left),
                false => left,
            };
            throttle.wait(budget, queue, count as usize * rows_each, 1).await?;
            self.launch_range(&metered, kernel, (grid, first, count), columns, error, named.clone())?;
            first += count;
        }
        Ok(())
    }
}

/// The work-groups of a range, of so many that the budget allows: the same for each compute unit.
fn whole_rounds(groups: usize, units: u32) -> u32 {
    let groups = u32::try_from(groups).unwrap_or(u32::MAX);
    (groups / units * units).max(units)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codegen::Params;

    #[test]
    fn kernels_have_budgets_of_their_own() {
        for profile in [Profile::Cpu, Profile::Gpu] {
            let kernel = || Kernel::new("k", Params::new(), String::new()).in_ranges(profile);
            let (one, other) = (kernel(), kernel());
            assert!(!Arc::ptr_eq(&one.budget.unwrap(), &other.budget.unwrap()));
            assert_eq!(one.runs_in_ranges, profile == Profile::Cpu);
        }
    }

    #[test]
    fn compute_units_have_as_many_work_groups_of_a_range() {
        assert_eq!([0, 1, 2, 5, 8].map(|groups| whole_rounds(groups, 2)), [2, 2, 2, 4, 8]);
        assert_eq!(whole_rounds(usize::MAX, 2), u32::MAX - 1);
    }
}
