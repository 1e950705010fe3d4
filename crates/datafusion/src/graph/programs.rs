// SPDX-License-Identifier: Apache-2.0
//! The programs that a run is likely to need, so that they can be compiled before it.

use device::ProgramSource;
use kernels::ops::JoinChain;

use super::aggregate::OverJoins;
use super::joins::Joins;
use super::stage::{Stage, StageKind};

/// The begin of a kernel. Sources without kernels lack it.
const KERNEL: &str = "KERNEL void ";

impl Stage {
    /// The programs of this stage and those below. A run may need others, by the layouts of its
    /// batches and the rows of its joins. `None` if a stage calls a library of the user.
    pub fn likely_programs(&self) -> Option<Vec<ProgramSource>> {
        let mut programs = self.own_programs()?;
        programs.retain(|program| program.source.contains(KERNEL));
        let below = match self.fused_joins() {
            Some(joins) => joins.inputs(),
            None => self.inputs(),
        };
        for input in below {
            programs.extend(input.likely_programs()?);
        }
        Some(programs)
    }

    /// The stage of joins that this one probes in its own kernels.
    fn fused_joins(&self) -> Option<&Stage> {
        use StageKind::*;
        match &self.kind {
            Aggregate { input, over_joins: Some(_), .. } => Some(input),
            Aggregate { over_joins: None, .. } | LibraryCalls { .. } | LibraryAggregates { .. } | Upload { .. } => None,
            Scan { .. } | Stream { .. } | Columns { .. } | Select { .. } | Unnest { .. } | Coalesce { .. } => None,
            Sort { .. } | Expand { .. } | Union { .. } | Window { .. } | Shared { .. } | Limit { .. } => None,
            Join(_) | BuildSideJoin(_) => None,
        }
    }

    fn own_programs(&self) -> Option<Vec<ProgramSource>> {
        Some(match &self.kind {
            StageKind::LibraryCalls { .. } | StageKind::LibraryAggregates { .. } => return None,
            StageKind::Upload { .. }
            | StageKind::Scan { .. }
            | StageKind::Columns { .. }
            | StageKind::Expand { .. }
            | StageKind::Shared { .. }
            | StageKind::Limit { .. } => vec![],
            StageKind::Stream { decode, .. } => decode.programs(),
            StageKind::Select { op, .. } => op.programs(),
            StageKind::Aggregate { over_joins: Some(over), .. } => over.programs(),
            StageKind::Aggregate { op, .. } => op.programs(),
            StageKind::Coalesce { concat, .. } => concat.programs(),
            StageKind::Sort { op, .. } => op.programs(),
            StageKind::Window { op, .. } => op.programs(),
            StageKind::Unnest { op, .. } => op.programs(),
            StageKind::Union { inputs } => inputs.iter().flat_map(|(_, unify)| unify.programs()).collect(),
            StageKind::Join(joins) => joins.programs(&joins.chain),
            StageKind::BuildSideJoin(join) => {
                join.build.build.likely_programs().into_iter().chain(join.visited.programs()).collect()
            }
        })
    }
}

impl Joins {
    fn programs(&self, chain: &JoinChain) -> Vec<ProgramSource> {
        let of_builds = self.builds().flat_map(|build| build.build.likely_programs());
        of_builds.chain(chain.programs()).collect()
    }
}

impl OverJoins {
    fn programs(&self) -> Vec<ProgramSource> {
        self.joins.programs(&self.chain).into_iter().chain(self.likely.programs()).collect()
    }
}
