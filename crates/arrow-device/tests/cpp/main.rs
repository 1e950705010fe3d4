// SPDX-License-Identifier: Apache-2.0
//! This crate against Arrow C++, from pyarrow's wheel: each side imports the exports of the other.
//!
//! - [`arrays`]: arrays and record batches of every type that both know.
//! - [`pulled`]: pull streams.
//! - [`pushed`]: async streams, with [`tap`] between both sides.
//! - [`handles`]: all of these on a simulated OPENCL device. Its buffers are handles, and its
//!   events need a wait.
//! - [`deviations`]: deviations of Arrow C++ from the interface. Each test fails once its deviation
//!   is gone.
//!
//! Arrow C++'s own parser builds its values from JSON, so that comparisons use values that did not
//! cross the interface.
//!
//! Needs a C++ compiler and Python with pyarrow, from `scripts/python-peers.sh`. Without them all
//! tests pass with a notice, unless `DEVICEFUSION_REQUIRE_PYTHON=1`.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod arrays;
mod build;
mod deviations;
mod handles;
mod peer;
mod pulled;
mod pushed;
mod samples;
mod session;
mod tap;
mod tools;
