// SPDX-License-Identifier: Apache-2.0
//! From typed expressions to C for one row.
//!
//! A [`RowWriter`] appends statements that compute [`Value`]s; [`Params`] collects what the text
//! takes from outside (columns, literals, the error word) and binds a batch to it. What cannot be
//! written is refused here, with a reason for users: [`crate::support`] only asks.

mod arithmetic;
mod bind;
mod branch;
mod cast;
mod column;
mod compare;
mod decimal;
mod params;
mod row;
mod strings;
mod temporal;
mod value;

pub use bind::Bindings;
pub use params::{LiteralPart, Param, Params, SCRATCH};
pub use row::RowWriter;
pub use value::{CType, Value};

/// The shape of the loops that a text is meant for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Profile {
    /// Coalesced tiles, shared memory, many groups.
    Gpu,
    /// A contiguous run of rows for each item, code that vectorises.
    Cpu,
}
