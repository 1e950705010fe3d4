// SPDX-License-Identifier: Apache-2.0
//! The C library, called as C calls it: its functions from Rust.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod config;
mod context;
mod header;
mod misuse;
mod query;
mod support;
mod table;
