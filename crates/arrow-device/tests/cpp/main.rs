// SPDX-License-Identifier: Apache-2.0
//! This crate against Arrow C++, which comes inside of pyarrow's wheel: its exports into our imports, ours into its.
//!
//! - [`arrays`]: arrays and record batches of every type that both know.
//! - [`pulled`]: pull streams.
//! - [`pushed`]: async streams, with [`tap`] between both sides.
//! - [`handles`]: all of these on a device of the type OPENCL whose buffers are handles and whose events must be waited
//!   for.
//! - [`deviations`]: where Arrow C++ breaks the interface. Each test sees the breach, and fails once it is gone.
//!
//! What Arrow C++ holds is built from a JSON text by its own parser, so that values are compared with something that did
//! not cross the interface.
//!
//! Needs a C++ compiler and Python with pyarrow, by `scripts/python-peers.sh`. Where these are missing all tests say so and
//! pass, unless `DEVICEFUSION_REQUIRE_PYTHON=1`.
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
