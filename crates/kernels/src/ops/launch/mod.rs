// SPDX-License-Identifier: Apache-2.0
//! The shared parts of operators: kernel sources on their way to the device, and the columns that
//! kernels read and write.
//!
//! | module | what it has |
//! |---|---|
//! | [`program`] | kernel sources, compilation, loops over rows, grids |
//! | [`source`] | the columns that kernels read |
//! | [`output`], [`projection`], [`columns`] | the columns that kernels write |
//! | [`compact`] | filters that keep the order of rows |
//! | [`equality`] | C that compares values |
//! | [`megakernel`] | kernels as functions of one kernel |
//! | [`throttle`], [`ranges`] | launches of bounded time |
//! | [`primitives`], [`layout_kernels`] | kernels that are the same for every query |
//! | [`dictionary`], [`dictionary_predicates`] | dictionaries of several batches, predicates over them |
//! | [`sizes`] | sizes of work-groups, tiles and grids |

pub(super) mod columns;
pub(super) mod compact;
pub(super) mod dictionary;
pub(super) mod dictionary_predicates;
pub(super) mod equality;
pub(super) mod layout_kernels;
mod megakernel;
pub(super) mod output;
pub(super) mod primitives;
pub(super) mod program;
pub(super) mod projection;
pub(super) mod ranges;
pub(super) mod sizes;
pub(super) mod source;
pub(super) mod throttle;

use std::sync::Arc;

use columnar::DeviceColumn;
use device::{Arg, Buffer, Grid, Queue};

use super::Options;
use crate::Result;
use primitives::{LoadedPrimitives, Primitives};
use program::{Loaded, Program, grid_for, grid_for_candidates};
use ranges::{RangedLaunch, grid_in_ranges};
use throttle::Throttle;

/// Arguments of a kernel by the names of its parameters.
pub(super) type NamedArgs<'a> = Vec<(&'a str, Arg<'a>)>;

/// The compiled kernels of an operator on a queue: what each launch needs.
pub(super) struct Launch<'a> {
    pub queue: &'a Queue,
    pub options: &'a Options,
    pub primitives: Arc<LoadedPrimitives<'a>>,
    program: &'a Program,
    loaded: Loaded<'a>,
}

impl<'a> Launch<'a> {
    /// Compiles the kernels, or finds those that were compiled before.
    pub async fn load(
        queue: &'a Queue,
        options: &'a Options,
        program: &'a Program,
        primitives: &'a Primitives,
    ) -> Result<Launch<'a>> {
        let loaded = program.load(queue).await?;
        let primitives = Arc::new(primitives.load(queue).await?);
        Ok(Launch { queue, options, primitives, program, loaded })
    }

    /// The same with the kernels of another program.
    pub async fn with_program<'b>(&'b self, program: &'b Program) -> Result<Launch<'b>>
    where
        'a: 'b,
    {
        let loaded = program.load(self.queue).await?;
        Ok(Launch { queue: self.queue, options: self.options, primitives: Arc::clone(&self.primitives), program, loaded })
    }

    /// Whether a kernel records errors.
    pub fn can_fail(&self, kernel: usize) -> bool {
        self.program.can_fail(kernel)
    }

    /// The grid for `n` rows.
    pub fn grid(&self, n: usize) -> Grid {
        grid_for(self.queue, self.options, n)
    }

    /// The grid for `n` rows, each of which is compared with up to `candidates` others.
    pub fn grid_for_candidates(&self, n: usize, candidates: usize) -> Grid {
        grid_for_candidates(self.queue, self.options, n, candidates)
    }

    /// Enqueues a kernel that reads no batch.
    pub fn run<'b>(&'b self, kernel: usize, grid: Grid, args: NamedArgs<'b>) -> Result<()> {
        self.loaded.launch(self.queue, kernel, grid, args)
    }

    /// Enqueues a kernel over columns; a failing row goes to `error`.
    pub fn run_on<'b>(
        &'b self,
        kernel: usize,
        grid: Grid,
        columns: &'b [DeviceColumn],
        error: Option<&'b Buffer>,
        args: NamedArgs<'b>,
    ) -> Result<()> {
        self.loaded.launch_on(self.queue, kernel, grid, columns, error, args)
    }

    /// Enqueues a kernel [in ranges](ranges) over `rows` rows of columns.
    pub async fn run_in_ranges(
        &self,
        kernel: usize,
        rows: usize,
        columns: &[DeviceColumn],
        args: NamedArgs<'_>,
        throttle: &mut Throttle,
    ) -> Result<()> {
        let grid = grid_in_ranges(self.queue, self.options, rows);
        let launch = RangedLaunch { kernel, rows, grid, columns, error: None, named: args };
        self.loaded.launch_in_ranges(self.queue, launch, throttle).await
    }

    /// As [`run_in_ranges`](Self::run_in_ranges) with a chosen grid, for a kernel that reads no
    /// batch.
    pub async fn run_grid_in_ranges(
        &self,
        kernel: usize,
        (rows, grid): (usize, Grid),
        args: NamedArgs<'_>,
        throttle: &mut Throttle,
    ) -> Result<()> {
        let launch = RangedLaunch { kernel, rows, grid, columns: &[], error: None, named: args };
        self.loaded.launch_in_ranges(self.queue, launch, throttle).await
    }

    /// A buffer for the lowest failing row, if the kernel can fail.
    pub fn error_buffer(&self, kernels: impl IntoIterator<Item = usize>) -> Result<Option<Buffer>> {
        let fails = kernels.into_iter().any(|kernel| self.can_fail(kernel));
        Ok(if fails { Some(self.queue.filled(size_of::<u64>(), 0xff)?) } else { None })
    }
}
