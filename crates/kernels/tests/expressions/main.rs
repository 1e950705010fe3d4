// SPDX-License-Identifier: Apache-2.0
//! Expressions on a device against arrow-rs on the host, on PoCL, in both profiles.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

mod casts;
mod columns;
mod compose;
mod data;
mod dates;
mod exponential;
mod floats;
mod harness;
mod host;
mod inexact;
mod like;
mod lint;
mod math;
mod moments;
mod operators;
mod oracle;
mod random;
mod text;
mod wide;
mod zones;
