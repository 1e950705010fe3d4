// SPDX-License-Identifier: Apache-2.0
//! The driver, from Rust and from Python.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod python;
mod rust;
