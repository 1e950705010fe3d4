// SPDX-License-Identifier: Apache-2.0
//! Launches and compilations of a queue.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use super::argument::Arg;
use super::handle::Queue;
use crate::driver::{Grid, RawArg};
use crate::memory::Buffer;
use crate::program::{Kernel, Program, ProgramSource};
use crate::{Error, Result};

/// The arguments of a launch that its kernel reads from memory.
struct ArgumentTable {
    words: Buffer,
    /// Copies of buffers without an address.
    copies: Vec<Buffer>,
}

impl Queue {
    /// Launches a kernel.
    ///
    /// # Errors
    /// `Launch` for a grid or arguments that the device cannot take; the driver's refusal.
    pub fn launch(&self, kernel: &Kernel, grid: Grid, args: &[Arg<'_>]) -> Result<()> {
        self.launch_with_table(kernel, grid, &[], args)
    }

    /// Like [`launch`](Self::launch), for kernels with more arguments than the device passes.
    /// Unless `table` is empty, the first parameter is an array of `u64` words: the values and
    /// addresses of the arguments in `table`.
    ///
    /// # Errors
    /// As [`launch`](Self::launch); also if the device gives buffers no addresses.
    pub fn launch_with_table(&self, kernel: &Kernel, grid: Grid, table: &[Arg<'_>], args: &[Arg<'_>]) -> Result<()> {
        match kernel.position() {
            Some(position) => self.launch_split(kernel, grid, &[table, args].concat(), &[Arg::U32(position)]),
            None => self.launch_split(kernel, grid, table, args),
        }
    }

    /// Launches a kernel with arguments in a table and others that the driver passes.
    fn launch_split(&self, kernel: &Kernel, grid: Grid, table: &[Arg<'_>], args: &[Arg<'_>]) -> Result<()> {
        let buffers = || table.iter().chain(args).filter_map(Arg::buffer);
        buffers().try_for_each(|buffer| self.wait_for_uses(buffer))?;
        let table = self.argument_table(kernel, table)?;
        let args: Vec<Arg<'_>> = table.iter().map(|table| Arg::Buffer(&table.words)).chain(args.iter().copied()).collect();
        let values: Vec<(usize, [u8; 8])> = args.iter().map(Arg::bytes).collect();
        self.check_launch(kernel, grid, values.iter().map(|(width, _)| width).sum())?;
        let raw_args: Vec<RawArg<'_>> = args
            .iter()
            .zip(&values)
            .map(|(arg, (width, bytes))| match arg {
                Arg::Buffer(buffer) => RawArg::Memory(buffer.raw()),
                _ => RawArg::Value(&bytes[..*width]),
            })
            .collect();
        let (timed, is_first) = (self.context().times_launches(), kernel.is_new());
        // SAFETY: the handles are alive, and the uses added below keep them so. The caller
        // generated the kernel for these arguments.
        let sequence = self.worker().launch(timed, is_first, kernel.totals(), &self.meters, |raw, timed| unsafe {
            self.driver().launch(raw, kernel.raw(), grid, &raw_args, timed)
        })?;
        let own = table.iter().flat_map(|table| table.copies.iter().chain([&table.words]));
        buffers().chain(own).for_each(|buffer| buffer.uses().add(self.worker(), sequence));
        kernel.add_use(self.worker(), sequence);
        let counters = self.context().live_counters();
        counters.launches.fetch_add(1, Relaxed);
        counters.first_launches.fetch_add(u64::from(kernel.note_launch()), Relaxed);
        kernel.totals().launches.fetch_add(1, Relaxed);
        self.meters.launched(&kernel.totals().name, buffers().map(|buffer| buffer.len() as u64).sum());
        Ok(())
    }

    /// Uploads the values and addresses of arguments; `None` for no arguments.
    fn argument_table(&self, kernel: &Kernel, args: &[Arg<'_>]) -> Result<Option<ArgumentTable>> {
        if args.is_empty() {
            return Ok(None);
        }
        let mut copies = Vec::new();
        let mut words = Vec::with_capacity(args.len() * 8);
        for arg in args {
            let Some(buffer) = arg.buffer() else {
                words.extend(arg.bytes().1);
                continue;
            };
            let address = match self.driver().address(buffer.raw()) {
                Some(address) => address,
                // A foreign buffer, whose driver does not tell its address.
                None => {
                    let copy = self.alloc(buffer.len())?;
                    self.copy(buffer, 0, &copy, 0, buffer.len())?;
                    let address = self.driver().address(copy.raw()).ok_or_else(|| self.no_addresses(kernel))?;
                    copies.push(copy);
                    address
                }
            };
            words.extend(address.to_ne_bytes());
        }
        let table = self.alloc_for_writes(words.len())?;
        self.write_uncounted(&table, 0, &words)?;
        Ok(Some(ArgumentTable { words: table, copies }))
    }

    fn no_addresses(&self, kernel: &Kernel) -> Error {
        let info = self.context().info();
        let reason = format!("arguments exceed the limit of {} bytes, and buffers have no addresses", info.max_arg_bytes);
        Error::Launch { device: info.label(), kernel: kernel.name().to_owned(), reason }
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

    /// Compiles programs before a run requests them, if the driver is faster with several at once.
    /// Their failures come with the requests.
    pub fn compile_ahead(&self, sources: impl FnOnce() -> Vec<ProgramSource>) {
        self.context().compiler().compile_ahead(sources, &self.meters);
    }
}
