// SPDX-License-Identifier: Apache-2.0
//! The Arrow C Device data interface for arrow-rs: arrays in device memory, passed between
//! libraries of one process without a copy.
//!
//! This crate contains no driver. Buffers are addresses, never dereferenced except in [`cpu`];
//! events are pointers, only passed on. It implements the protocol: ownership, validation of
//! foreign structs, and error reporting across C.
//!
//! | | import | export |
//! |---|---|---|
//! | an array, a record batch | [`ImportedArray`] | [`ArrayExport`] |
//! | a stream, pulled | [`stream::ArrowDeviceArrayStreamReader`] | [`stream::export_iterator`], [`stream::export_stream`] |
//! | a stream, pushed | [`async_stream::AsyncDeviceStream`] | [`async_stream::produce`] |
//! | a schema | [`schema::import_schema`] | [`schema::export_schema`] |
//! | the same in host memory | [`cpu::import_batch`] | [`cpu::export_batch`] |
//!
//! [`ffi`] has the C structs. Numbers such as R45, in comments and test names, are rules of the
//! conformance checklist, `docs/conformance.md`.
//!
//! # Ownership
//! An exported struct owns the value given as its [`owner`](ArrayExport::owner): device memory and
//! the event. The owner drops when the consumer releases the struct, on any thread. An
//! [`ImportedArray`] releases its struct on drop. Keep it, in an [`Arc`](std::sync::Arc), until the
//! device work on the buffers has completed.
//!
//! # Trust
//! Importing a foreign struct is `unsafe`: no check can tell whether an address is valid.
//! Everything else is checked:
//! - Counts, lengths, offsets, null pointers and the shapes of types at the import, from host
//!   memory alone.
//! - The values themselves where [`cpu`] builds arrow-rs arrays.
//!
//! A violation is an error, never a panic. It names the column, the type, and the expected and
//! actual value. The received struct is released.
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used, clippy::panic))]

mod array;
pub mod async_stream;
mod callback;
pub mod cpu;
#[cfg(test)]
#[path = "../tests/doubling/mod.rs"]
mod doubling;
mod error;
pub mod ffi;
mod layout;
pub mod metadata;
pub mod schema;
pub mod stream;
#[cfg(test)]
mod testing;

pub use array::{ArrayExport, ArrayView, BufferView, ImportedArray};
pub use error::{Error, Result};
pub use layout::BufferKind;
