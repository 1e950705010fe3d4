// SPDX-License-Identifier: Apache-2.0
//! Kernels generated for a query: expressions, pipelines, and the operators that run them.
//!
//! 1. [`expr`] has typed expressions.
//! 2. [`codegen`] generates the C of an expression for one row.
//! 3. [`ops`] puts loops around the rows, and launches the kernels.
//!
//! [`support`] answers whether an expression or aggregate is supported on the device. The kernel
//! source is one dialect of C that OpenCL drivers and NVRTC both compile, with sections of the
//! [`prelude`].

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
