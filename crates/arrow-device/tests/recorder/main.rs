// SPDX-License-Identifier: Apache-2.0
//! This crate against a strict peer in C. It plays every producer and consumer of the interface
//! with all allowed freedom, and records violations under their rule numbers (R1–R97).
//!
//! [`rules`] lists the tests of each rule. The tests need a C compiler; those whose tool is missing
//! are skipped.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod arrays;
mod async_consumer;
mod async_producer;
mod c;
mod data;
mod header;
mod pull_consumer;
mod pull_producer;
mod rules;
mod session;
mod tools;
