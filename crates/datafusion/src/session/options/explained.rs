// SPDX-License-Identifier: Apache-2.0
//! The plan of an EXPLAIN, and the kernels that it shows.

use parking_lot::Mutex;

/// Name and source of a kernel.
type KernelSource = (String, String);

/// A plan that EXPLAIN shows. `EXPLAIN VERBOSE` also shows its kernels.
#[derive(Debug, Default)]
pub(crate) struct ExplainedPlan {
    is_verbose: bool,
    kernels: Mutex<Vec<KernelSource>>,
}

impl ExplainedPlan {
    pub fn new(is_verbose: bool) -> Self {
        ExplainedPlan { is_verbose, kernels: Mutex::default() }
    }

    /// Notes kernels of the plan, each once.
    pub fn note_kernels(&self, kernels: impl FnOnce() -> Vec<KernelSource>) {
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

    pub fn kernels(&self) -> Vec<KernelSource> {
        self.kernels.lock().clone()
    }
}
