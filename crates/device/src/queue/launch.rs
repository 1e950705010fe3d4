// SPDX-License-Identifier: Apache-2.0
//! Launches and compilations of a queue.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use super::argument::Arg;
use super::handle::Queue;
use crate::driver::{Grid, RawArg};
use crate::program::{Kernel, Program, ProgramSource};
use crate::{Error, Result};

impl Queue {
    /// Launches a kernel.
    ///
    /// # Errors
    /// `Launch` for a grid or arguments that the device cannot take; the driver's refusal.
    pub fn launch(&self, kernel: &Kernel, grid: Grid, args: &[Arg<'_>]) -> Result<()> {
        let values: Vec<(usize, [u8; 8])> = args.iter().map(Arg::bytes).collect();
        self.check_launch(kernel, grid, values.iter().map(|(width, _)| width).sum())?;
        let buffers = || args.iter().filter_map(|arg| if let Arg::Buffer(buffer) = arg { Some(*buffer) } else { None });
        buffers().try_for_each(|buffer| self.wait_for_uses(buffer))?;
        let raw_args: Vec<RawArg<'_>> = args
            .iter()
            .zip(&values)
            .map(|(arg, (width, bytes))| match arg {
                Arg::Buffer(buffer) => RawArg::Memory(buffer.raw()),
                _ => RawArg::Value(&bytes[..*width]),
            })
            .collect();
        let timed = self.context().times_launches();
        // SAFETY: the handles are alive, and the uses added below keep them so. The caller
        // generated the kernel for these arguments.
        let sequence = self.worker().launch(timed, kernel.totals(), &self.meters, |raw, timed| unsafe {
            self.driver().launch(raw, kernel.raw(), grid, &raw_args, timed)
        })?;
        buffers().for_each(|buffer| buffer.uses().add(self.worker(), sequence));
        kernel.add_use(self.worker(), sequence);
        let counters = self.context().live_counters();
        counters.launches.fetch_add(1, Relaxed);
        counters.first_launches.fetch_add(u64::from(kernel.is_first_launch()), Relaxed);
        kernel.totals().launches.fetch_add(1, Relaxed);
        self.meters.launched();
        Ok(())
    }

    fn check_launch(&self, kernel: &Kernel, grid: Grid, arg_bytes: usize) -> Result<()> {
        let info = self.context().info();
        let refuse = |reason: String| Err(Error::Launch { device: info.label(), kernel: kernel.name().to_owned(), reason });
        if !kernel.is_of(self.driver()) {
            return Err(self.foreign("launch", "kernel"));
        }
        let Grid { work_groups, work_group_size } = grid;
        if work_groups == 0 || work_group_size == 0 {
            return refuse(format!("a grid of {work_groups} work-groups of {work_group_size} work-items is empty"));
        }
        if work_group_size > info.max_work_group_size {
            let limit = info.max_work_group_size;
            return refuse(format!("work-groups of {work_group_size} work-items exceed the limit of {limit}"));
        }
        if arg_bytes > info.max_arg_bytes as usize {
            return refuse(format!("arguments of {arg_bytes} bytes exceed the limit of {}", info.max_arg_bytes));
        }
        Ok(())
    }

    /// Compiles a program, or finds it in a cache. Another thread compiles; concurrent requests for
    /// one program share the compilation.
    ///
    /// # Errors
    /// `CompileFailed` with source and log.
    pub fn compile(&self, source: ProgramSource) -> impl Future<Output = Result<Arc<Program>>> + Send + use<> {
        self.context().compiler().get(source, self.meters.clone())
    }
}
