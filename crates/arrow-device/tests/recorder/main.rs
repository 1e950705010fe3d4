// SPDX-License-Identifier: Apache-2.0
//! This crate against a strict peer in C, which plays every producer and consumer of the interface, with all the freedom
//! that the interface leaves them, and records every breach under the number of its rule (R1–R97).
//!
//! [`rules`] tells which test enforces which rule. Needs a C compiler; the rest is skipped where a tool is missing.
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
