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

/// Facts about a join type. The left side is the build side, the right side the probe side.
#[derive(Debug, Clone, Copy)]
pub(crate) struct JoinTypeFacts {
    pub kind: JoinKind,
    pub columns: JoinColumns,
    /// Whether the result has the probe side's order: no rows of the build side come at the end.
    pub keeps_probe_order: bool,
    /// Whether a probe row without a match has no effect on the result.
    pub ignores_unmatched_probe_rows: bool,
    /// Whether a filter on columns of the build side may run below the join. A row that it removes
    /// must not turn a probe row into one without a match that stays.
    pub filters_build: bool,
    /// As `filters_build` for the probe side.
    pub filters_probe: bool,
}

impl JoinTypeFacts {
    pub fn of(join_type: JoinType) -> JoinTypeFacts {
        use JoinColumns::*;
        let facts = |kind, columns, flags: [bool; 4]| JoinTypeFacts {
            kind,
            columns,
            keeps_probe_order: flags[0],
            ignores_unmatched_probe_rows: flags[1],
            filters_build: flags[2],
            filters_probe: flags[3],
        };
        // In the order of the fields.
        match join_type {
            JoinType::Inner => facts(JoinKind::Inner, Both, [true, true, true, true]),
            JoinType::Left => facts(JoinKind::Left, Both, [false, true, true, false]),
            JoinType::Right => facts(JoinKind::Right, Both, [true, false, false, true]),
            JoinType::Full => facts(JoinKind::Full, Both, [false, false, false, false]),
            JoinType::LeftSemi => facts(JoinKind::LeftSemi, Build, [false, true, true, false]),
            JoinType::LeftAnti => facts(JoinKind::LeftAnti, Build, [false, true, true, false]),
            JoinType::LeftMark => facts(JoinKind::LeftMark, BuildAndMark, [false, true, true, false]),
            JoinType::RightSemi => facts(JoinKind::RightSemi, Probe, [true, true, false, true]),
            JoinType::RightAnti => facts(JoinKind::RightAnti, Probe, [true, false, false, true]),
            JoinType::RightMark => facts(JoinKind::RightMark, ProbeAndMark, [true, false, false, true]),
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
