// SPDX-License-Identifier: Apache-2.0
//! Compiled [Futhark](https://futhark-lang.org) libraries, loaded at run time.
//!
//! `futhark c --library` (or `multicore`, `opencl`, …) writes C code and a [`Manifest`] that
//! describes its API.
//! - [`Library`] opens the shared object compiled from that C code.
//! - [`Context`] owns values.
//! - [`Context::call`] calls an entry point.
//!
//! This crate knows neither Arrow nor SQL; `devicefusion` connects it to them.
//!
//! ```no_run
//! use futhark::{Context, ContextConfig, Library, Scalar, Value};
//!
//! // SAFETY: built from the program beside it, with the manifest that came with it.
//! let library = unsafe { Library::open("prices.json")? };
//! let context = Context::new(&library, ContextConfig::default())?;
//! let prices = context.array(&[3], &[1.0f64, 2.0, 3.0])?;
//! let result = context.call("scale", vec![prices.into(), Value::from(Scalar::F64(1.2)).into()])?;
//! let [Value::Array(scaled)] = result.as_slice() else { panic!("one array") };
//! assert_eq!(scaled.to_vec::<f64>()?.len(), 3);
//! # Ok::<(), futhark::Error>(())
//! ```
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used, clippy::panic))]

mod call;
mod context;
mod error;
mod library;
pub mod manifest;
mod primitive;
mod sealed;
mod value;

pub use call::Argument;
pub use context::{Context, ContextConfig, WeakContext};
pub use error::{Error, Result};
pub use library::{Library, TuningParam};
pub use manifest::Manifest;
pub use primitive::{Element, Primitive, Scalar};
pub use value::{Array, Opaque, Value};
