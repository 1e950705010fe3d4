// SPDX-License-Identifier: Apache-2.0
//! The plan of an EXPLAIN, and the kernels that it shows.

use parking_lot::Mutex;

/// A plan that EXPLAIN shows. `EXPLAIN VERBOSE` also shows its kernels, by name and source.
#[derive(Debug, Default)]
pub(crate) struct ExplainedPlan {
    is_verbose: bool,
    kernels: Mutex<Vec<(String, String)>>,
}

impl ExplainedPlan {
    pub fn new(is_verbose: bool) -> Self {
        ExplainedPlan { is_verbose, kernels: Mutex::default() }
    }

    /// Notes kernels of the plan, each once.
    pub fn note_kernels(&self, kernels: impl FnOnce() -> Vec<(String, String)>) {
        if !self.is_verbose {
            return;
        }
        let mut known = self.kernels.lock();
        for kernel in kernels() {
            if !known.contains(&kernel) {
                known.push(kernel);
            }
        }
    }

    pub fn kernels(&self) -> Vec<(String, String)> {
        self.kernels.lock().clone()
    }
}
