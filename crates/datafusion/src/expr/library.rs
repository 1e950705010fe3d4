// SPDX-License-Identifier: Apache-2.0
//! Registry hook for functions of native libraries, whose types translation does not know.

use std::sync::OnceLock;

use datafusion::logical_expr::{AggregateUDF, ScalarUDF};

use crate::reason::Reason;

static LIBRARY_FUNCTIONS: OnceLock<LibraryFunctions> = OnceLock::new();

/// Answers about the functions of libraries; each is `None` or `false` for other functions.
///
/// A library installs it with its first function.
pub(crate) struct LibraryFunctions {
    /// Why a scalar function stays on the host.
    pub scalar_reason: fn(&ScalarUDF) -> Option<Reason>,
    /// Why an aggregate stays on the host.
    pub aggregate_reason: fn(&AggregateUDF) -> Option<Reason>,
    /// Whether an aggregate's library shares the device.
    pub shares_device: fn(&AggregateUDF) -> bool,
}

impl LibraryFunctions {
    /// Makes translation ask these functions. A later call changes nothing.
    pub fn install(self) {
        _ = LIBRARY_FUNCTIONS.set(self);
    }
}

/// See [`LibraryFunctions::scalar_reason`].
pub(super) fn scalar_reason(function: &ScalarUDF) -> Option<Reason> {
    (LIBRARY_FUNCTIONS.get()?.scalar_reason)(function)
}

/// See [`LibraryFunctions::aggregate_reason`].
pub(super) fn aggregate_reason(function: &AggregateUDF) -> Option<Reason> {
    (LIBRARY_FUNCTIONS.get()?.aggregate_reason)(function)
}

/// See [`LibraryFunctions::shares_device`].
pub(super) fn shares_device(function: &AggregateUDF) -> bool {
    LIBRARY_FUNCTIONS.get().is_some_and(|functions| (functions.shares_device)(function))
}
