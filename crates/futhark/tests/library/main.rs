// SPDX-License-Identifier: Apache-2.0
//! The crate against a C library with the documented ABI (`tests/fixture`), and against manifests.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

#[path = "../fixture/mod.rs"]
mod fixture;

mod calls;
mod context;
mod manifests;
mod memory;
mod multicore;
mod opencl;
mod opening;
mod real;
mod values;
