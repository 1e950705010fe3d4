// SPDX-License-Identifier: Apache-2.0
//! The Arrow C Device data interface for arrow-rs: arrays whose buffers are memory of a device, handed between libraries of
//! one process without copying.
//!
//! There is no driver in here: buffers are addresses that this crate never follows (except in [`cpu`]), events are pointers
//! that it only passes on. What it does is the protocol: who owns what until when, what a consumer must check before it
//! believes a struct, and how failures cross C.
//!
//! | | taking over | giving away |
//! |---|---|---|
//! | an array, a record batch | [`ImportedArray`] | [`ArrayExport`] |
//! | a stream of them, pulled | [`stream::ArrowDeviceArrayStreamReader`] | [`stream::export_iterator`], [`stream::export_stream`] |
//! | a stream of them, pushed | [`async_stream::AsyncDeviceStream`] | [`async_stream::produce`] |
//! | a schema | [`schema::import_schema`] | [`schema::export_schema`] |
//! | the same in host memory | [`cpu::import_batch`] | [`cpu::export_batch`] |
//!
//! [`ffi`] has the structs as C lays them out. Numbers such as R45, in comments and in the names of tests, are those of the
//! conformance checklist that this crate is written against.
//!
//! # Ownership
//! An exported struct owns what its description named as [`owner`](ArrayExport::owner): device memory, and the event. It
//! is freed when the consumer releases the struct, on whatever thread. An [`ImportedArray`] releases when it drops; keep
//! it, behind an [`Arc`](std::sync::Arc), until the device work that reads the buffers has completed.
//!
//! # Trust
//! Taking over a foreign struct is `unsafe`: no check can tell whether an address is good. All that can be checked is:
//! counts, lengths, offsets, null pointers and the types' shapes when a struct is taken over, from host memory alone; the
//! values themselves where [`cpu`] makes arrow-rs arrays of them. What is wrong is an error that names column, type,
//! expected and got, never a panic, and what was received is released.
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
pub mod stream;
#[cfg(test)]
mod testing;

pub use array::{ArrayExport, ArrayView, BufferView, ImportedArray};
pub use error::{Error, Result};
pub use layout::BufferKind;
