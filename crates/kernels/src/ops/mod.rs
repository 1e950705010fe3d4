// SPDX-License-Identifier: Apache-2.0
//! Operators: the kernels around generated row code, and the host code that launches them.
//!
//! | operator | what it does |
//! |---|---|
//! | [`Select`] | filters and projects |
//! | [`Reduce`], [`GroupBy`] | aggregate a whole input, or by keys |
//! | [`Sort`], [`Window`] | sort; compute window functions of sorted rows |
//! | [`JoinBuild`], [`JoinChain`], [`VisitedBitmap`] | join |
//! | [`HashPartition`] | partitions rows by their keys |
//! | [`Unnest`] | makes rows of lists |
//! | [`Concat`], [`Gather`] | concatenate batches; gather rows by index |
//! | [`UnifyLayouts`], [`ArrowLayout`], [`Decode`] | convert layouts: for a UNION, for export, of imported dictionaries |
//! | [`NullStripping`] | passes values to external functions |
//!
//! Operators are pure: they have kernel sources and no device handle, so that a plan can own them.
//! Joins that are about to run also have their tables. State objects ([`ReduceState`],
//! [`GroupByState`], [`SortState`], [`WindowState`]) own the buffers between batches.
//!
//! The parts that operators share are in `launch`: compiled kernels, their inputs and outputs.
//! `accumulate` has the states of aggregates, for reductions, groups and windows. The C of one row
//! is in [`codegen`](crate::codegen).
//!
//! **Architecture invariant:** nothing here depends on DataFusion, and `codegen` does not depend on
//! `ops`.

mod accumulate;
mod arrow_layout;
mod concat;
mod decode;
mod gather;
mod group;
mod join;
mod launch;
mod null_stripping;
mod partition;
mod reduce;
mod select;
mod sort;
mod unify_layouts;
mod unnest;
mod window;

use arrow::datatypes::SchemaRef;
use columnar::{ColumnType, Layout};

pub use arrow_layout::ArrowLayout;
pub use concat::Concat;
pub use decode::Decode;
pub use gather::Gather;
pub use group::{GroupBy, GroupByState};
pub use join::{
    BloomFilterUse, ChainPart, ChainState, CutChain, FirstStep, FusedJoinCounts, FusedJoins, Join, JoinBuild, JoinChain,
    JoinKind, JoinRole, JoinTable, ProbeSideFacts, VisitedBitmap, VisitedState,
};
pub use launch::program::LONGEST_OPTIMIZED;
pub use launch::sizes::Sizes;
pub use launch::throttle::Throttle;
pub use null_stripping::{Arguments, NullStripping};
pub use partition::{HashPartition, PartitionedRows};
pub use reduce::{Reduce, ReduceState};
pub use select::Select;
pub use sort::{Merged, Sort, SortKey, SortMerge, SortState, SortedRows};
pub use unify_layouts::UnifyLayouts;
pub use unnest::{KeepEmpty, Unnest, UnnestOutput};
pub use window::{
    Frame, FrameBound, FrameUnits, NullTreatment, Quantile, Window, WindowCall, WindowFunction, WindowState, interval,
};

use crate::codegen::Profile;
use crate::expr::Expr;
use crate::{Error, Result};

/// Most rows of a batch whose rows 32 bits number.
const MAX_ROWS: usize = i32::MAX as usize;

/// Fails for more rows than 32 bits number.
fn check_rows(operator: &str, rows: usize) -> Result<()> {
    if rows <= MAX_ROWS {
        return Ok(());
    }
    Err(Error::Unsupported(format!("{operator}: {rows} rows in one batch, the limit is {MAX_ROWS}")))
}

/// About the device bytes of a row's columns, whose strings are short.
fn row_width<'a>(types: impl IntoIterator<Item = &'a ColumnType>) -> usize {
    let width = |ty: &ColumnType| match &ty.layout {
        Layout::Null => 0,
        Layout::Bits => 1,
        Layout::Fixed(carrier) | Layout::Dictionary { codes: carrier, .. } => carrier.width(),
        Layout::Bytes(width) => *width as usize,
        Layout::Offsets32 | Layout::Offsets64 | Layout::List(_) => size_of::<u64>(),
        Layout::Views => 2 * size_of::<u64>(),
    };
    types.into_iter().map(width).sum()
}

/// The input of an operator: batches of one source, and the filter that is fused with it.
/// Projections are substituted into the expressions.
#[derive(Debug, Clone)]
pub struct Input {
    /// Names and logical types of the source.
    pub schema: SchemaRef,
    /// Types and layouts of the source, one for each field.
    pub types: Vec<ColumnType>,
    /// Only rows for which this is true are read.
    pub filter: Option<Expr>,
}

/// Shapes of kernels. Part of an operator, since the kernel sources depend on them.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Options {
    /// The shape of loops.
    pub profile: Profile,
    /// Work-items of a work-group in the gpu profile, a power of two: see [`Sizes`].
    pub work_group_size: u32,
    /// Rows of a compaction tile: a multiple of 32; in the gpu profile a multiple of
    /// `work_group_size`, and at most 32 times that.
    pub compaction_tile_rows: u32,
    /// Most work-groups of a grid whose work-items share rows; 0 for a few for each compute unit of
    /// the device.
    pub max_work_groups: u32,
    /// Most bytes of arguments that are passed to a kernel. An operator with more splits its work
    /// over several kernels; a kernel that cannot be split reads the others from memory.
    pub max_arg_bytes: usize,
    /// Shared memory that a work-group may use, in bytes.
    pub shared_bytes: usize,
    /// Groups that a new hash table has room for, but no more than rows. It grows.
    pub initial_groups: usize,
    /// Most groups to index directly, without a hash table, if the bounds of the keys are known.
    pub dense_groups: usize,
    /// Most bytes of their states.
    pub dense_bytes: usize,
    /// Rows of a grouped aggregation, by an estimate; 0 if unknown.
    pub grouped_rows: usize,
    /// Most bytes of private copies of grouped states in the cpu profile; beyond them states are
    /// atomics.
    pub private_bytes: usize,
    /// Divides sizes at which joins and hash tables change their ways, at least 1: small data is
    /// then handled as large data is.
    pub threshold_divisor: usize,
}

impl Options {
    /// The defaults of a profile. The argument bytes are those of the OpenCL minimum.
    pub fn new(profile: Profile) -> Options {
        Options {
            profile,
            work_group_size: 256,
            compaction_tile_rows: match profile {
                Profile::Cpu => 16384,
                Profile::Gpu => 4096,
            },
            max_work_groups: 0,
            max_arg_bytes: 1024,
            shared_bytes: 32 << 10,
            initial_groups: match profile {
                Profile::Cpu => 1 << 14,
                // Fits the caches of a GPU; a table that turns out too small costs a launch.
                Profile::Gpu => 1 << 18,
            },
            dense_groups: match profile {
                Profile::Cpu => 1 << 16,
                Profile::Gpu => 1 << 20,
            },
            dense_bytes: 1 << 30,
            grouped_rows: 0,
            private_bytes: 256 << 20,
            threshold_divisor: 1,
        }
    }

    /// The same with thresholds that are divided by `divisor`; 0 is as 1.
    #[must_use]
    pub fn with_threshold_divisor(mut self, divisor: usize) -> Options {
        self.threshold_divisor = divisor.max(1);
        let defaults = Options::new(self.profile);
        self.initial_groups = self.threshold(defaults.initial_groups);
        self.dense_groups = self.threshold(defaults.dense_groups);
        self
    }

    /// The same for a device whose memory has a limit of `bytes`.
    #[must_use]
    pub fn with_memory(self, bytes: usize) -> Options {
        Options { dense_bytes: bytes / 4, ..self }
    }

    /// The same for a grouped aggregation of about `rows` rows.
    #[must_use]
    pub fn with_grouped_rows(self, rows: usize) -> Options {
        Options { grouped_rows: rows, ..self }
    }

    /// A size of data at which an operator changes its ways.
    fn threshold(&self, size: usize) -> usize {
        (size / self.threshold_divisor).max(1)
    }
}
