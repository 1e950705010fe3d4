// SPDX-License-Identifier: Apache-2.0
//! The driver from Rust. The tests of the C library load it.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod rust;
