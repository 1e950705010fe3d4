// SPDX-License-Identifier: Apache-2.0
//! Sinks: the loops around generated rows, and what drives them from the host.
//!
//! [`Select`] filters and projects, [`Reduce`] aggregates a whole input, [`GroupBy`] aggregates by
//! keys, [`Sort`] orders, [`JoinChain`] and [`Mark`] join, [`Window`] looks at the rows around each; [`ArrowForm`] lays a batch out as Arrow does, [`Decode`]
//! replaces codes by values, [`Concat`] makes one batch of many, [`Take`] gathers rows, [`Unnest`] makes rows of lists, [`Strict`] hands
//! values to functions that are no kernels. The objects are pure: they hold kernel
//! texts and no device handle, so a plan can hold them; only joins that are about to run hold their tables.
//! State objects ([`ReduceState`], [`GroupByState`], [`SortState`], [`WindowState`]) hold what lies on the device between batches.
//! Nothing here knows DataFusion.

mod accumulate;
mod arrow_form;
mod compact;
mod concat;
mod conform;
mod decode;
mod dictionary;
mod forms;
mod group;
mod join;
mod output;
mod primitives;
mod program;
mod project;
mod reduce;
mod select;
mod sizes;
mod sort;
mod source;
mod strict;
mod take;
mod unnest;
mod verdicts;
mod window;

use arrow::datatypes::SchemaRef;
use columnar::ColumnType;

pub use arrow_form::ArrowForm;
pub use concat::Concat;
pub use conform::Conform;
pub use decode::Decode;
pub use group::{GroupBy, GroupByState};
pub use join::{
    Begun, BitsFor, ChainState, Join, JoinBuild, JoinChain, JoinKind, JoinTable, Joined, JoinedRows, Mark, MarkState, Pace,
};
pub use reduce::{Reduce, ReduceState};
pub use select::Select;
pub use sizes::Sizes;
pub use sort::{Sort, SortKey, SortState};
pub use strict::{Arguments, Strict};
pub use take::Take;
pub use unnest::{Keeps, Unnest, UnnestOutput};
pub use window::{Counted, Frame, FrameBound, FrameUnits, Quantile, Window, WindowCall, WindowFunction, WindowState, interval};

use crate::codegen::Profile;
use crate::expr::Expr;
use crate::{Error, Result};

/// Most rows that one batch may have where 32 bits number them.
const MOST_ROWS: usize = i32::MAX as usize;

/// Refuses more rows than 32 bits number.
fn check_rows(operator: &str, rows: usize) -> Result<()> {
    if rows <= MOST_ROWS {
        return Ok(());
    }
    Err(Error::Unsupported(format!("{operator}: {rows} rows in one batch, the limit is {MOST_ROWS}")))
}

/// What a sink reads: batches of one source, and the filter that was fused into it. Projections were
/// substituted into the expressions already.
#[derive(Debug, Clone)]
pub struct Input {
    /// Names and logical types of the source.
    pub schema: SchemaRef,
    /// Types and layouts of the source, one for each field.
    pub types: Vec<ColumnType>,
    /// Rows for which this is not true are left out.
    pub filter: Option<Expr>,
}

/// How kernels are shaped. Part of a sink, because the text depends on it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Options {
    /// The shape of loops.
    pub profile: Profile,
    /// Items of a group in the gpu profile, a power of two: see [`Sizes`].
    pub work_group_size: u32,
    /// Rows of a tile of the compaction: a multiple of 32; in the gpu profile of `work_group_size`, and at
    /// most 32 times that.
    pub compaction_tile_rows: u32,
    /// Most groups of a grid whose items share rows among themselves; 0 for a few for each unit of the device.
    pub max_work_groups: u32,
    /// Bytes of arguments that are passed to one kernel. An operator with more splits its work over several kernels;
    /// a kernel that cannot be split reads the others from memory.
    pub max_arg_bytes: usize,
    /// Shared memory that one group may use, in bytes.
    pub shared_bytes: usize,
    /// Groups for which a hash table has room at first. It grows.
    pub initial_groups: usize,
    /// Most groups that are indexed directly, without a hash table, where the keys' bounds are known.
    pub dense_groups: usize,
    /// Most bytes of private copies of grouped states in the cpu profile; beyond them, atomics.
    pub private_bytes: usize,
}

impl Options {
    /// The defaults of a profile. Argument bytes are those of the most modest driver.
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
            initial_groups: 1 << 14,
            dense_groups: 1 << 16,
            private_bytes: 256 << 20,
        }
    }
}
