// SPDX-License-Identifier: Apache-2.0
//! TPC-H through the shell, and profiles of queries.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod data;
mod profile;
mod tpch;
