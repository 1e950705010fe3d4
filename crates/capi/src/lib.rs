// SPDX-License-Identifier: Apache-2.0
//! The C library: what `include/devicefusion.h` declares, in the shape of Futhark's context API.
//!
//! A file for each kind of object that C sees ([`config`], [`context`], [`query`]) or gives ([`table`], [`raw`], [`store`]), and below them what
//! all functions stand on: `handle.rs` and `boundary.rs` let nothing but good pointers in and no panic out, `error.rs` keeps
//! the text of a failure until somebody takes it. Everything else is `devicefusion`'s own business.
//!
//! The header is generated from these files: their documentation is written for readers of C, who have the rules that all
//! functions share at its top. That is where the safety of each is told.
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used, clippy::panic))]
#![allow(non_camel_case_types, reason = "C's names")]
#![allow(clippy::missing_safety_doc, reason = "the rules for pointers stand once, at the top of the header")]

mod arrow_stream;
mod boundary;
mod cancel;
pub mod config;
pub mod context;
mod error;
mod handle;
mod log;
pub mod query;
pub mod raw;
mod rows;
mod session;
pub mod settings;
pub mod store;
pub mod table;

pub use devicefusion_adbc::devicefusion_adbc_init;
pub use error::{DEVICEFUSION_FAILURE, DEVICEFUSION_OUT_OF_MEMORY, DEVICEFUSION_PROGRAM_ERROR, DEVICEFUSION_SUCCESS};
