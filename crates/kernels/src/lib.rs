// SPDX-License-Identifier: Apache-2.0
//! Kernels generated for a query: expressions, pipelines and their sinks.
//!
//! [`expr`] says what is computed, [`codegen`] turns it into C for one row, [`ops`] puts loops and
//! sinks around the rows and runs them. [`support`] answers what is supported on the device. The text is one
//! dialect of C, made of pieces of the [`prelude`], that OpenCL drivers and NVRTC both compile.

#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used, clippy::panic))]

pub mod codegen;
pub mod error;
pub mod expr;
pub mod function;
pub mod libm;
pub mod ops;
pub mod prelude;
pub mod support;

pub use error::{Error, Result};
