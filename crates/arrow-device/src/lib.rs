// SPDX-License-Identifier: Apache-2.0
//! The Arrow C Device data interface for arrow-rs: arrays, pull streams and async streams.
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used, clippy::panic))]

mod array;
pub mod async_stream;
mod callback;
pub mod cpu;
mod error;
pub mod ffi;
mod layout;
pub mod metadata;
pub mod schema;

pub use array::{ArrayExport, ArrayView, BufferView, ImportedArray};
pub use error::{Error, Result};
pub use layout::BufferKind;
