// SPDX-License-Identifier: Apache-2.0
//! Device arrays: import ([`ImportedArray`]) and export ([`ArrayExport`]).

pub(crate) mod check;
mod export;
mod import;
pub(crate) mod path;
mod view;

#[cfg(test)]
mod tests;

pub use export::ArrayExport;
pub use import::ImportedArray;
pub use view::{ArrayView, BufferView};
