// SPDX-License-Identifier: Apache-2.0
//! The C library: its C functions called from Rust, and C programs over an installed copy.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod adbc;
mod c;
mod config;
mod context;
#[path = "../../../arrow-device/tests/doubling/mod.rs"]
mod doubling;
#[path = "../../../futhark/tests/fixture/mod.rs"]
mod fixture;
mod futhark;
mod header;
mod misuse;
mod overhead;
mod pages;
mod producer;
mod query;
mod raw;
mod schemas;
mod support;
mod table;
