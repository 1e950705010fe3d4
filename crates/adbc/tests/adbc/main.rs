// SPDX-License-Identifier: Apache-2.0
//! The driver from Rust. The C library's tests load it through a driver manager.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod effects;
mod rust;
mod settings;
mod support;
