// SPDX-License-Identifier: Apache-2.0
//! The C library behind `include/devicefusion.h`, in the shape of Futhark's context API.
//!
//! - [`config`], [`context`] and [`query`] have the objects that C holds.
//! - [`table`], [`raw`] and [`store`] take data from C.
//! - `handle.rs` checks pointers, `boundary.rs` stops panics, `error.rs` keeps messages of
//!   failures.
//! - Everything else is in `devicefusion`.
//!
//! The header is generated from these files, so their documentation is for C. The rules that all
//! functions share, safety among them, are at the top of the header.
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used, clippy::panic))]
#![allow(non_camel_case_types, reason = "C's names")]
#![allow(clippy::missing_safety_doc, reason = "the rules for pointers are at the top of the header")]

mod arrow_stream;
mod boundary;
mod cancel;
pub mod config;
pub mod context;
mod error;
mod handle;
mod log;
mod pushed;
pub mod query;
pub mod raw;
mod rows;
mod session;
pub mod settings;
pub mod store;
pub mod table;

pub use devicefusion_adbc::{AdbcDriverInit, devicefusion_adbc_init};
pub use error::{DEVICEFUSION_FAILURE, DEVICEFUSION_OUT_OF_MEMORY, DEVICEFUSION_PROGRAM_ERROR, DEVICEFUSION_SUCCESS};
