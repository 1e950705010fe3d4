// SPDX-License-Identifier: Apache-2.0
//! Expressions on a device against arrow-rs on the host, on PoCL, in both profiles.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

mod casts;
mod columns;
mod data;
mod date_formats;
mod dates;
mod exponential;
mod floats;
mod harness;
mod host;
mod inexact;
mod like;
mod lint;
mod math;
mod new_strings;
mod operators;
mod oracle;
mod random;
mod strings;
mod wide;
mod zones;
