// SPDX-License-Identifier: Apache-2.0
//! Expressions on a device against arrow-rs on the host, on PoCL, in both profiles.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

mod casts;
mod columns;
mod data;
mod floats;
mod harness;
mod host;
mod like;
mod lint;
mod operators;
mod random;
mod wide;
mod zones;
