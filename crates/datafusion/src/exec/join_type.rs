// SPDX-License-Identifier: Apache-2.0
//! Facts about join types, in one table.

use datafusion::common::JoinType;
use kernels::ops::JoinKind;

/// Columns that a join gives, before its projection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum JoinColumns {
    /// The build side's, then the probe side's.
    Both,
    Build,
    /// The build side's, then the mark.
    BuildAndMark,
    Probe,
    /// The probe side's, then the mark.
    ProbeAndMark,
}

/// Sides of a join below which a filter on their own columns may run.
///
/// A row removed by the filter must not make a row of the other side an unmatched one that stays.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FilterSides {
    Both,
    Build,
    Probe,
    Neither,
}

impl FilterSides {
    /// Whether a filter on columns of the build side may run below the join.
    pub fn build(self) -> bool {
        match self {
            FilterSides::Both | FilterSides::Build => true,
            FilterSides::Probe | FilterSides::Neither => false,
        }
    }

    /// Whether a filter on columns of the probe side may run below the join.
    pub fn probe(self) -> bool {
        match self {
            FilterSides::Both | FilterSides::Probe => true,
            FilterSides::Build | FilterSides::Neither => false,
        }
    }
}

/// Facts about a join type. The left side is the build side, the right side the probe side.
#[derive(Debug, Clone, Copy)]
pub(crate) struct JoinTypeFacts {
    pub kind: JoinKind,
    pub columns: JoinColumns,
    pub filter_sides: FilterSides,
}

impl JoinTypeFacts {
    pub fn of(join_type: JoinType) -> JoinTypeFacts {
        let (kind, columns, filter_sides) = match join_type {
            JoinType::Inner => (JoinKind::Inner, JoinColumns::Both, FilterSides::Both),
            JoinType::Left => (JoinKind::Left, JoinColumns::Both, FilterSides::Build),
            JoinType::Right => (JoinKind::Right, JoinColumns::Both, FilterSides::Probe),
            JoinType::Full => (JoinKind::Full, JoinColumns::Both, FilterSides::Neither),
            JoinType::LeftSemi => (JoinKind::LeftSemi, JoinColumns::Build, FilterSides::Build),
            JoinType::LeftAnti => (JoinKind::LeftAnti, JoinColumns::Build, FilterSides::Build),
            JoinType::LeftMark => (JoinKind::LeftMark, JoinColumns::BuildAndMark, FilterSides::Build),
            JoinType::RightSemi => (JoinKind::RightSemi, JoinColumns::Probe, FilterSides::Probe),
            JoinType::RightAnti => (JoinKind::RightAnti, JoinColumns::Probe, FilterSides::Probe),
            JoinType::RightMark => (JoinKind::RightMark, JoinColumns::ProbeAndMark, FilterSides::Probe),
        };
        JoinTypeFacts { kind, columns, filter_sides }
    }

    /// Whether the join is an inner one. Its result is the pairs that meet its condition. The
    /// condition may then be evaluated above the join.
    pub fn is_inner(&self) -> bool {
        use JoinKind::*;
        match self.kind {
            Inner => true,
            Left | Right | Full | LeftSemi | LeftAnti | LeftMark | RightSemi | RightAnti | RightMark => false,
        }
    }

    /// Whether the device has the join with the NULLs of SQL's `NOT IN`.
    pub fn may_be_null_aware(&self) -> bool {
        use JoinKind::*;
        match self.kind {
            LeftAnti => true,
            Inner | Left | Right | Full | LeftSemi | LeftMark | RightSemi | RightAnti | RightMark => false,
        }
    }

    /// Whether the result has the probe side's order: no rows of the build side come at the end.
    pub fn keeps_probe_order(&self) -> bool {
        use JoinKind::*;
        match self.kind {
            Inner | Right | RightSemi | RightAnti | RightMark => true,
            Left | Full | LeftSemi | LeftAnti | LeftMark => false,
        }
    }

    /// Whether a probe row without a match has no effect on the result.
    pub fn ignores_unmatched_probe_rows(&self) -> bool {
        use JoinKind::*;
        match self.kind {
            Inner | Left | LeftSemi | LeftAnti | LeftMark | RightSemi => true,
            Right | Full | RightAnti | RightMark => false,
        }
    }

    /// Position of the probe side's first column; the build side has `build_columns`.
    pub fn first_probe_column(&self, build_columns: usize) -> usize {
        match self.columns {
            JoinColumns::Both | JoinColumns::Build | JoinColumns::BuildAndMark => build_columns,
            JoinColumns::Probe | JoinColumns::ProbeAndMark => 0,
        }
    }
}
