// SPDX-License-Identifier: Apache-2.0
//! Tests of the whole plugin, in one binary: device against plain DataFusion, faults, counters.
//!
//! They need a device; PoCL is enough, and `DEVICEFUSION_TEST_DEVICE` names another.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
// A test's tasks end with its runtime.
#![allow(clippy::disallowed_methods)]

mod attacks;
mod dense_groups;
mod depth;
mod device_arrays;
mod differential;
mod exchange;
mod explain;
mod faults;
mod file_cache;
mod first_use;
mod harness;
mod inserts;
mod late_faults;
mod matrix;
mod observe;
mod panics;
mod plan_cache;
mod profile;
mod reductions;
mod retries;
mod reuse;
mod small_memory;
mod spill;
mod spill_faults;
mod spilled_joins;
mod spilled_shares;
mod spilled_windows;
// Linux tells the number of threads.
#[cfg(target_os = "linux")]
mod storm;
mod streams;
mod subqueries;
mod symmetric_joins;
mod unions;
