// SPDX-License-Identifier: Apache-2.0
//! Faults of planning, for tests: one step of this thread's planning fails.

use std::cell::Cell;

use datafusion::common::{Result, plan_err};

thread_local! {
    /// Steps before the failing one.
    static LEFT: Cell<Option<usize>> = const { Cell::new(None) };
    static HAS_FAILED: Cell<bool> = const { Cell::new(false) };
}

/// Fails the step after `steps` others.
pub(crate) fn fail_at(steps: usize) {
    LEFT.set(Some(steps));
    HAS_FAILED.set(false);
}

/// Fails nothing more. Returns whether a step has failed.
pub(crate) fn heal() -> bool {
    LEFT.set(None);
    HAS_FAILED.get()
}

/// A step of planning.
pub(crate) fn step(operator: &str) -> Result<()> {
    match LEFT.get() {
        Some(0) => {
            LEFT.set(None);
            HAS_FAILED.set(true);
            plan_err!("a fault that a test injected at {operator}")
        }
        Some(steps) => {
            LEFT.set(Some(steps - 1));
            Ok(())
        }
        None => Ok(()),
    }
}
