// SPDX-License-Identifier: Apache-2.0
//! Translation of typed expressions to C for one row.
//!
//! A [`RowWriter`] appends statements that compute [`Value`]s. [`Params`] collects the kernel's
//! parameters (columns, literals, the error flag) and binds them to a batch. This module decides
//! which expressions are supported and phrases the refusals; [`crate::support`] only asks it.
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
mod binary_cast;
mod bind;
mod branch;
mod call;
mod case_table;
mod cast;
mod column;
mod compare;
mod composed_choice;
mod concatenation;
mod date_formats;
mod date_part;
mod date_time;
mod decimal;
mod decimal_cast;
mod dictionary_predicate;
mod interval;
mod like;
mod list_key;
mod number;
mod overload;
mod params;
mod pattern;
mod rounding;
mod row;
mod selection;
mod sketch;
mod string_cast;
mod temporal;
mod temporal_cast;
mod value;
mod wide_decimal;
mod zone;

pub use bind::{Bindings, Constants};
pub use dictionary_predicate::DictionaryPredicate;
pub(crate) use params::NEXT_ROW;
pub use params::{LiteralPart, Param, Params, SCRATCH};
pub use row::{RowRef, RowWriter};
pub use value::{CType, Value, wide_literal};

/// Loop structure of a kernel, by kind of device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Profile {
    /// Coalesced tiles, shared memory, many work-groups.
    Gpu,
    /// A contiguous run of rows per work-item, in code that vectorizes.
    Cpu,
}

impl Profile {
    /// Name in settings and messages.
    pub const fn name(self) -> &'static str {
        match self {
            Profile::Gpu => "gpu",
            Profile::Cpu => "cpu",
        }
    }
}
