// SPDX-License-Identifier: Apache-2.0
//! The Arrow C Device data interface for arrow-rs: arrays, pull streams and async streams.
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used, clippy::panic))]

pub mod async_stream;
mod error;
pub mod ffi;

pub use error::{Error, Result};
