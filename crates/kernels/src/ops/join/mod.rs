// SPDX-License-Identifier: Apache-2.0
//! Joins. The left side is *built* to a [`JoinTable`], the right side *probes* it, batch by batch.
//!
//! Keys become *digits*, unsigned words that keep equality. Where the digits' ranges, which a kernel finds,
//! multiply to less than 2^64, a row's key is one number: it indexes an array directly where there are few
//! numbers for each row, else it lies in a hash table of words. Other keys (strings, wide spans) are
//! hashed, and a slot holds a tag and a row to compare with. Either way a key leads to a *slot*, and a slot
//! to one row where the build side's keys turn out to be unique, else to a range of rows.
//!
//! Row numbers are all that a probe finds: columns of the build side are read where they lie, through
//! [`RowRef`](crate::codegen::RowRef)s, by the kernel that writes the result. A `Probe` goes through any number of joins that give
//! a row one match at most, in one kernel; a join that multiplies rows ends it ([`JoinChain`] strings several
//! together). Joins that keep rows of the build side note which ones were matched, in `Probe` (left and
//! full joins) or [`Mark`] (left semi, anti and mark joins).

mod bits;
mod block;
mod chain;
mod joined;
mod keys;
mod lookup;
mod mark;
mod pace;
mod probe;
mod search;
mod table;

use std::sync::Arc;

use arrow::datatypes::{Field, Fields, Schema, SchemaRef};
use columnar::ColumnType;

pub use bits::BitsFor;
pub use chain::{Begun, ChainState, JoinChain};
pub use joined::{Joined, JoinedRows};
pub(super) use lookup::Lookup;
pub use mark::{Mark, MarkState};
pub use pace::Pace;
pub use table::{JoinBuild, JoinTable};

use crate::expr::Expr;

/// Which rows a join gives: SQL's names, the build side being left.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[allow(missing_docs)]
pub enum JoinKind {
    Inner,
    Left,
    Right,
    Full,
    LeftSemi,
    LeftAnti,
    LeftMark,
    RightSemi,
    RightAnti,
    RightMark,
}

impl JoinKind {
    /// Whether a probe row is needed for each of its matches.
    pub fn pairs(self) -> bool {
        matches!(self, JoinKind::Inner | JoinKind::Left | JoinKind::Right | JoinKind::Full)
    }

    /// Whether probe rows without a match stay.
    pub fn keeps_probe(self) -> bool {
        matches!(self, JoinKind::Right | JoinKind::Full | JoinKind::RightMark)
    }

    /// Whether probe rows without a match go, and those with one stay.
    pub fn drops_unmatched(self) -> bool {
        matches!(self, JoinKind::Inner | JoinKind::Left | JoinKind::RightSemi)
    }

    /// Whether build rows must know whether they were matched.
    pub fn marks_build(self) -> bool {
        use JoinKind::*;
        matches!(self, Left | Full | LeftSemi | LeftAnti | LeftMark)
    }

    /// Whether the result has rows of the build side alone.
    pub fn gives_build(self) -> bool {
        matches!(self, JoinKind::LeftSemi | JoinKind::LeftAnti | JoinKind::LeftMark)
    }
}

/// One join of a chain.
#[derive(Debug, Clone)]
pub struct Join {
    /// Which rows it gives.
    pub kind: JoinKind,
    /// Equal keys: over the columns before this join, and over the build side's own. Without keys every row
    /// meets every other.
    pub keys: Vec<(Expr, Expr)>,
    /// Whether NULL keys are equal to one another.
    pub null_equals_null: bool,
    /// Of a left anti join: whether it is SQL's `NOT IN`, where a NULL among the probe side's keys leaves nothing, and a row
    /// whose own key is NULL stays only where the probe side has no rows.
    pub null_aware: bool,
    /// What else must be true of a pair, over the columns up to this join's.
    pub residual: Option<Expr>,
    /// Names and types of the build side.
    pub schema: SchemaRef,
    /// Types and layouts of the build side.
    pub types: Vec<ColumnType>,
    /// Whether the build side has one row at most, as a scalar subquery has.
    pub is_scalar: bool,
    /// Whether the rows that it removes are counted; of [`JoinKind::RightSemi`].
    pub tallied: bool,
}

impl Join {
    /// A dynamic filter: keeps the rows whose keys another join's table has, and counts the others; where the table has bits
    /// ([`JoinBuild::add_bits`]), it keeps a few more. `keys` are over the probe side's columns, with NULL of the build side's
    /// types, which are no integers of 128 bits or more. Not every table can serve it ([`JoinTable::filters`]).
    pub fn dynamic_filter(keys: Vec<(Expr, Expr)>, null_equals_null: bool) -> Join {
        Join {
            kind: JoinKind::RightSemi,
            keys,
            null_equals_null,
            null_aware: false,
            residual: None,
            schema: Schema::empty().into(),
            types: vec![],
            is_scalar: false,
            tallied: true,
        }
    }

    /// Whether a table can serve this dynamic filter, and is likely to remove rows.
    pub fn can_filter_by(&self, table: &JoinTable) -> bool {
        table.filters(self.keys.len())
    }

    /// Whether a row has one match at most; of a table that is not there yet, whether that is likely.
    fn is_unique(&self, table: Option<&Arc<JoinTable>>) -> bool {
        table.map_or(self.is_scalar || !self.keys.is_empty(), |table| table.is_unique())
    }

    /// The fields that it appends to those before it: the build side's, and the mark of a mark join.
    pub fn fields(&self) -> Fields {
        let mark = (self.kind == JoinKind::RightMark).then(mark_field);
        self.schema.fields().iter().cloned().chain(mark.map(Into::into)).collect()
    }

    fn column_types(&self) -> Vec<ColumnType> {
        let mark = (self.kind == JoinKind::RightMark).then(mark_type);
        self.types.iter().cloned().chain(mark).collect()
    }
}

fn mark_field() -> Field {
    Field::new("mark", arrow::datatypes::DataType::Boolean, false)
}

fn mark_type() -> ColumnType {
    let (data_type, layout) = (arrow::datatypes::DataType::Boolean, columnar::Layout::Bits);
    ColumnType { data_type, nullable: false, layout, bounds: None }
}

/// The columns of a probe side and of the joins that it goes through, side by side.
fn joined_schema(probe: &SchemaRef, joins: &[Join]) -> SchemaRef {
    let fields = probe.fields().iter().cloned().chain(joins.iter().flat_map(|join| join.fields().to_vec()));
    Schema::new(fields.collect::<Vec<_>>()).into()
}

fn joined_types(probe: &[ColumnType], joins: &[Join]) -> Vec<ColumnType> {
    probe.iter().cloned().chain(joins.iter().flat_map(Join::column_types)).collect()
}
