// SPDX-License-Identifier: Apache-2.0
//! Joins. The left side is *built* to a [`JoinTable`], the right side *probes* it, batch by batch.
//!
//! A key leads to a *slot*. A slot leads to one row if the keys of the build side are unique, else
//! to a range of rows.
//!
//! - Keys become *key fields*: u64, equal where the values are. A kernel finds the range of each
//!   field.
//! - If the ranges multiply to less than 2^64, the fields of a row make one *packed key*.
//! - A packed key is its own slot (a perfect hash) if there are few possible keys for each row,
//!   else it is hashed.
//! - Other keys (strings, wide ranges) are hashed, and a slot has a tag and a row to compare with.
//!
//! A probe finds row numbers. The kernel that writes the result reads the columns of the build side
//! at these rows, through [`RowRef`](crate::codegen::RowRef)s. A `Probe` goes through any number of
//! joins with at most one match for each row, in one kernel. A join that multiplies rows ends it; a
//! [`JoinChain`] is a list of probes. Joins that keep build rows note the matched ones. A `Probe`
//! does so for left and full joins, a [`VisitedBitmap`] for left semi, anti and mark joins.
//!
//! DataFusion's `HashJoinExec` is the model: `visited_indices_bitmap` is the visited bitmap here.

mod block;
mod bloom;
mod chain;
mod cut;
mod fused;
mod keys;
mod lookup;
mod partition;
mod probe;
mod search;
mod table;
mod visited;

use arrow::datatypes::{Field, Fields, Schema, SchemaRef};
use columnar::ColumnType;

pub use bloom::BloomFilterUse;
pub use chain::{ChainState, FirstStep, JoinChain};
pub use cut::{ChainPart, CutChain};
pub use fused::{FusedJoinCounts, FusedJoins};
pub(super) use keys::{KeyEncoding, RowKeys};
pub(super) use lookup::Lookup;
pub use table::{JoinBuild, JoinTable};
pub use visited::{ProbeSideFacts, VisitedBitmap, VisitedState};

use crate::expr::Expr;

/// Which rows a join gives, in SQL's names: the build side is left.
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

use JoinKind::{Full, Inner, Left, LeftAnti, LeftMark, LeftSemi, Right, RightAnti, RightMark, RightSemi};

// Each match lists all kinds, so that a new kind compiles only once every property is decided.
impl JoinKind {
    /// Whether the result has a row for each matching pair.
    pub fn gives_pairs(self) -> bool {
        match self {
            Inner | Left | Right | Full => true,
            LeftSemi | LeftAnti | LeftMark | RightSemi | RightAnti | RightMark => false,
        }
    }

    /// Whether the result has probe rows without a match beside those with one.
    pub fn keeps_unmatched_probe_rows(self) -> bool {
        match self {
            Right | Full | RightMark => true,
            Inner | Left | LeftSemi | LeftAnti | LeftMark | RightSemi | RightAnti => false,
        }
    }

    /// Whether the result has probe rows without a match.
    pub fn gives_unmatched_probe_rows(self) -> bool {
        match self {
            Right | Full | RightAnti | RightMark => true,
            Inner | Left | LeftSemi | LeftAnti | LeftMark | RightSemi => false,
        }
    }

    /// Whether the results of a probe row for one block of the build side do not depend on the
    /// others. Then blocks may be joined one after another, each with all probe rows.
    pub fn joins_blocks_independently(self) -> bool {
        match self {
            Inner | Left | LeftSemi | LeftAnti | LeftMark => true,
            Right | Full | RightSemi | RightAnti | RightMark => false,
        }
    }

    /// Whether the result has no probe rows with a match, but has those without one.
    pub fn drops_matched_probe_rows(self) -> bool {
        match self {
            RightAnti => true,
            Inner | Left | Right | Full | LeftSemi | LeftAnti | LeftMark | RightSemi | RightMark => false,
        }
    }

    /// Whether the result has only probe rows with a match.
    pub fn drops_unmatched_probe_rows(self) -> bool {
        match self {
            Inner | Left | RightSemi => true,
            Right | Full | LeftSemi | LeftAnti | LeftMark | RightAnti | RightMark => false,
        }
    }

    /// Whether the result has pairs, and beside them build rows without a match.
    pub fn keeps_unmatched_build_rows(self) -> bool {
        match self {
            Left | Full => true,
            Inner | Right | LeftSemi | LeftAnti | LeftMark | RightSemi | RightAnti | RightMark => false,
        }
    }

    /// Whether a join gives nothing without a matched row of the build side.
    pub fn needs_match(self) -> bool {
        match self {
            Inner | LeftSemi | RightSemi => true,
            Left | Right | Full | LeftAnti | LeftMark | RightAnti | RightMark => false,
        }
    }

    /// Whether the match of a probe row is read after the search: by columns of the build side, or
    /// as a mark.
    pub fn reads_match(self) -> bool {
        match self {
            Inner | Left | Right | Full | LeftSemi | LeftAnti | LeftMark | RightMark => true,
            RightSemi | RightAnti => false,
        }
    }

    /// Whether probe rows get a mark column.
    pub fn marks_probe_rows(self) -> bool {
        match self {
            RightMark => true,
            Inner | Left | Right | Full | LeftSemi | LeftAnti | LeftMark | RightSemi | RightAnti => false,
        }
    }

    /// Whether a filter of joined rows may be evaluated for each pair before it counts as a match.
    pub(super) fn takes_filter_as_residual(self) -> bool {
        match self {
            Inner => true,
            Left | Right | Full | LeftSemi | LeftAnti | LeftMark | RightSemi | RightAnti | RightMark => false,
        }
    }

    /// Whether DataFusion's nested loop join reads the probe side despite an empty build side and
    /// no condition.
    pub(super) fn nested_loop_reads_all(self) -> bool {
        match self {
            Inner => false,
            Left | Right | Full | LeftSemi | LeftAnti | LeftMark | RightSemi | RightAnti | RightMark => true,
        }
    }

    /// Whether the join needs the visited bitmap of the build side.
    pub fn visits_build_rows(self) -> bool {
        match self {
            Left | Full | LeftSemi | LeftAnti | LeftMark => true,
            Inner | Right | RightSemi | RightAnti | RightMark => false,
        }
    }

    /// Whether the result has rows of the build side alone.
    pub fn gives_build_rows(self) -> bool {
        match self {
            LeftSemi | LeftAnti | LeftMark => true,
            Inner | Left | Right | Full | RightSemi | RightAnti | RightMark => false,
        }
    }
}

/// The origin of a join in a chain.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum JoinRole {
    /// A join of the query.
    Query,
    /// A scalar subquery: the build side has at most one row.
    ScalarSubquery,
    /// A dynamic filter: a [`JoinKind::RightSemi`] that counts the removed rows.
    DynamicFilter,
}

/// One join of a chain.
#[derive(Debug, Clone)]
pub struct Join {
    /// The rows of the result.
    pub kind: JoinKind,
    /// Pairs of equal keys: over the columns before this join, and over the columns of the build
    /// side. Without keys every pair of rows is a candidate.
    pub keys: Vec<(Expr, Expr)>,
    /// Whether NULL keys are equal.
    pub null_equals_null: bool,
    /// Whether a left anti join is SQL's `NOT IN`. Then a NULL among the keys of the probe side
    /// removes all rows. A build row with a NULL key stays only if the probe side has no rows.
    pub null_aware: bool,
    /// Another condition of a match, over the columns up to those of this join.
    pub residual: Option<Expr>,
    /// Names and types of the build side.
    pub schema: SchemaRef,
    /// Types and layouts of the build side.
    pub types: Vec<ColumnType>,
    /// The origin of the join.
    pub role: JoinRole,
}

impl Join {
    /// A dynamic filter: keeps the rows whose keys are in the table of another join, and counts the
    /// others.
    ///
    /// With a Bloom filter ([`JoinBuild::add_bloom_filter`]) it keeps a few more. `keys` are over
    /// the columns of the probe side, paired with NULL literals of the build side's types. Integers
    /// of 128 bits or more are not allowed. Not every table can serve it ([`JoinTable::filters`]).
    pub fn dynamic_filter(keys: Vec<(Expr, Expr)>, null_equals_null: bool) -> Join {
        Join {
            kind: JoinKind::RightSemi,
            keys,
            null_equals_null,
            null_aware: false,
            residual: None,
            schema: Schema::empty().into(),
            types: vec![],
            role: JoinRole::DynamicFilter,
        }
    }

    /// Whether a row is likely to have at most one match. The table knows, once there is one.
    fn is_likely_unique(&self) -> bool {
        match self.role {
            JoinRole::ScalarSubquery => true,
            JoinRole::Query | JoinRole::DynamicFilter => !self.keys.is_empty(),
        }
    }

    /// Whether the join counts the removed rows.
    fn counts_removed(&self) -> bool {
        match self.role {
            JoinRole::DynamicFilter => true,
            JoinRole::Query | JoinRole::ScalarSubquery => false,
        }
    }

    /// The fields that the join appends: those of the build side, and the mark of a mark join.
    pub fn fields(&self) -> Fields {
        let mark = self.kind.marks_probe_rows().then(mark_field);
        self.schema.fields().iter().cloned().chain(mark.map(Into::into)).collect()
    }

    fn column_types(&self) -> Vec<ColumnType> {
        let mark = self.kind.marks_probe_rows().then(mark_type);
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

/// The columns of a probe side, followed by those of its joins.
fn joined_schema(probe: &SchemaRef, joins: &[Join]) -> SchemaRef {
    let fields = probe.fields().iter().cloned().chain(joins.iter().flat_map(|join| join.fields().to_vec()));
    Schema::new(fields.collect::<Vec<_>>()).into()
}

fn joined_types(probe: &[ColumnType], joins: &[Join]) -> Vec<ColumnType> {
    probe.iter().cloned().chain(joins.iter().flat_map(Join::column_types)).collect()
}
