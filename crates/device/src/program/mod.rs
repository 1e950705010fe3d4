// SPDX-License-Identifier: Apache-2.0
//! Programs: compiled once, off the caller's thread, and cached in memory and in folders.

mod background;
mod compiler;
mod handle;
mod megakernel;
mod store;
mod tiers;

pub use background::RunningQuery;
pub(crate) use compiler::Compiler;
pub use handle::{DryLaunch, Kernel, Program, ProgramSource};
pub(crate) use megakernel::NOTES_OF_MEGAKERNELS;
pub use megakernel::{MegakernelPart, MegakernelPartWriter};
pub(crate) use store::owner_problem;
pub(crate) use tiers::NOTES_OF_OPTIMIZED;
