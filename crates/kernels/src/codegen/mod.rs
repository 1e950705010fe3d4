// SPDX-License-Identifier: Apache-2.0
//! From typed expressions to C for one row.
//!
//! A [`RowWriter`] appends statements that compute [`Value`]s; [`Params`] collects what the text
//! takes from outside (columns, literals, the error word) and binds a batch to it. What cannot be
//! written is refused here, with a reason for users: [`crate::support`] only asks.
//!
//! # Examples
//! ```
//! use arrow::datatypes::DataType;
//! use columnar::ColumnType;
//! use kernels::codegen::{Params, Profile, RowWriter};
//! use kernels::expr::Expr;
//!
//! let types = [ColumnType::of(&DataType::Int64, false).ok_or("no layout")?];
//! let mut params = Params::new();
//! let mut row = RowWriter::new(&types, Profile::Cpu, &mut params);
//! let value = row.eval(&Expr::Column(0))?;
//! assert_eq!(row.statements().trim(), "i64 x1 = c0_0[row + c0_off];");
//! assert_eq!(value.code, "x1");
//! assert_eq!(params.declaration(), "u64 c0_off, const G i64 *RESTRICT c0_0");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod arithmetic;
mod binary;
mod bind;
mod branch;
mod call;
mod cast;
mod column;
mod compare;
mod compose;
mod dates;
mod decimal;
mod interval_values;
mod intervals;
mod letters;
mod like;
mod list_key;
mod math;
mod moments;
mod params;
mod places;
mod row;
mod sketch;
mod strings;
mod temporal;
mod text;
mod value;
mod verdict;
mod wide;
mod zone;

pub use bind::{Bindings, Constants};
pub use params::{LiteralPart, Param, Params, SCRATCH};
pub use row::{Place, RowWriter};
pub use value::{CType, Value, wide_literal};
pub use verdict::Verdict;

/// The shape of the loops that a text is meant for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Profile {
    /// Coalesced tiles, shared memory, many groups.
    Gpu,
    /// A contiguous run of rows for each item, code that vectorises.
    Cpu,
}

impl Profile {
    /// What settings and messages call it.
    pub const fn name(self) -> &'static str {
        match self {
            Profile::Gpu => "gpu",
            Profile::Cpu => "cpu",
        }
    }
}
