// SPDX-License-Identifier: Apache-2.0
//! Kernel texts of a sink, and their way to the device.

use std::sync::Arc;

use columnar::DeviceColumn;
use device::{Arg, Buffer, Grid, ProgramSource, Queue};

use super::Options;
use super::verdicts::Verdicts;
use crate::codegen::{Bindings, Constants, Params, Profile, SCRATCH};
use crate::prelude::Sections;
use crate::{Error, Result};

/// One kernel: what it takes and what it does.
#[derive(Debug, Clone)]
pub(super) struct Kernel {
    pub name: String,
    pub params: Params,
    /// Statements between the braces.
    pub body: String,
}

impl Kernel {
    pub fn new(name: impl Into<String>, params: Params, body: String) -> Kernel {
        Kernel { name: name.into(), params, body }
    }

    /// Whether all arguments are passed, none by the argument table.
    pub fn fits(&self, options: &Options) -> bool {
        self.params.bytes() <= options.max_arg_bytes
    }

    fn text(&self) -> String {
        let Kernel { name, params, body } = self;
        format!("KERNEL void {name}({}) {{\n{}{body}}}\n", params.declaration(), params.table_reads())
    }
}

/// The kernels of one sink, compiled together.
#[derive(Debug, Clone)]
pub(super) struct Program {
    operator: String,
    text: Arc<str>,
    kernels: Vec<Kernel>,
    verdicts: Verdicts,
}

impl Program {
    pub fn try_new(operator: &str, options: &Options, mut kernels: Vec<Kernel>) -> Result<Program> {
        let verdicts = Verdicts::of(&mut kernels, options);
        let mut sections = Sections::default();
        for kernel in &mut kernels {
            kernel.params.limit_bytes(options.max_arg_bytes);
            sections.extend(kernel.params.sections());
        }
        // The first line tells tools that look at texts which ones a GPU would see.
        let mut text = format!("// {operator}, profile {}\n", options.profile.name());
        // An item of so large a group has fewer registers than a kernel may take: it could not be launched.
        if options.profile == Profile::Gpu && options.work_group_size > 256 {
            text.push_str(&format!("#define GROUP_ITEMS {}\n", options.work_group_size));
        }
        text.push_str(&sections.text());
        text.push_str(include_str!("ops.h"));
        if kernels.iter().any(|kernel| ["decimal_average(", "i192_median("].iter().any(|name| kernel.body.contains(name))) {
            text.push_str(include_str!("average.h"));
        }
        if kernels.iter().any(|kernel| kernel.body.contains("wide_average(")) {
            text.push_str(include_str!("wide_average.h"));
        }
        if kernels.iter().any(|kernel| kernel.body.contains("hash_bytes(")) {
            text.push_str("STR_KEYS\n");
        }
        let mut functions: Vec<&String> = Vec::new();
        for function in kernels.iter().flat_map(|kernel| kernel.params.functions()) {
            if !functions.contains(&function) {
                functions.push(function);
            }
        }
        text.extend(functions.into_iter().map(String::as_str));
        text.extend(kernels.iter().map(Kernel::text));
        Ok(Program { operator: operator.into(), text: text.into(), kernels, verdicts })
    }

    /// Names and texts, for people.
    pub fn kernel_text(&self) -> Vec<(String, String)> {
        let text = |kernel: &Kernel| kernel.params.functions().concat() + &kernel.text();
        self.kernels.iter().map(|kernel| (kernel.name.clone(), text(kernel))).collect()
    }

    /// The whole text, as it is compiled.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Whether the kernel records errors.
    pub fn can_fail(&self, kernel: usize) -> bool {
        self.kernels[kernel].params.can_fail()
    }

    /// Compiles, or finds what was compiled before.
    pub async fn load(&self, queue: &Queue) -> Result<Loaded<'_>> {
        let source = ProgramSource { text: self.text.clone(), operator: self.operator.clone(), options: vec![] };
        let program = queue.compile(source).await?;
        let constants = self.kernels.iter().map(|kernel| kernel.params.upload(queue)).collect::<Result<_>>()?;
        Ok(Loaded { program: self, compiled: program, constants })
    }
}

/// A program on a device, with its constants.
pub(super) struct Loaded<'a> {
    program: &'a Program,
    compiled: Arc<device::Program>,
    /// Of each kernel.
    constants: Vec<Constants>,
}

impl Loaded<'_> {
    /// Enqueues a kernel that reads no batch.
    pub fn launch<'b>(&'b self, queue: &Queue, kernel: usize, grid: Grid, named: Vec<(&'b str, Arg<'b>)>) -> Result<()> {
        self.launch_on(queue, kernel, grid, &[] as &[DeviceColumn], None, named)
    }

    /// Enqueues a kernel over a batch.
    pub fn launch_on<'b>(
        &'b self,
        queue: &Queue,
        kernel: usize,
        grid: Grid,
        batch: &'b (impl AsRef<[DeviceColumn]> + ?Sized),
        error: Option<&'b Buffer>,
        named: Vec<(&'b str, Arg<'b>)>,
    ) -> Result<()> {
        let text = &self.program.kernels[kernel];
        let items = grid.groups as usize * grid.work_group_size as usize;
        let scratch = match text.params.scratch_bytes(items) {
            0 => None,
            bytes => Some(queue.alloc(bytes)?),
        };
        let named = named.into_iter().chain(scratch.iter().map(|scratch| (SCRATCH, Arg::Buffer(scratch)))).collect();
        let verdicts = self.program.verdicts.for_kernel(self, queue, kernel, batch.as_ref())?;
        let bindings = Bindings { constants: Some(&self.constants[kernel]), error, verdicts: &verdicts, named };
        let (table, args) = text.params.split_table(text.params.bind(batch.as_ref(), bindings)?);
        queue.launch_with_table(&self.compiled.kernel(&text.name)?, grid, &table, &args)?;
        Ok(())
    }
}

/// Groups and items for `n` rows that the items share among themselves.
pub(super) fn spread(queue: &Queue, options: &Options, n: usize) -> Grid {
    let units = queue.context().info().compute_units.max(1) as usize;
    let (rows_per_group, groups_per_unit) = match options.profile {
        Profile::Cpu => (4096, 4),
        Profile::Gpu => (options.work_group_size as usize, 16),
    };
    let most = match options.max_work_groups {
        0 => units * groups_per_unit,
        chosen => chosen as usize,
    };
    Grid { groups: n.div_ceil(rows_per_group).clamp(1, most) as u32, work_group_size: work_group_size(options) }
}

/// The same for rows of which each is the work of `met`. The groups of a CPU have 64 rows at least, as [`run_of_rows`].
pub(super) fn spread_work(queue: &Queue, options: &Options, n: usize, met: usize) -> Grid {
    let Grid { groups, work_group_size } = spread(queue, options, n.saturating_mul(met.max(1)));
    let most = n.div_ceil(work_group_size.max(64) as usize).clamp(1, groups as usize);
    Grid { groups: most as u32, work_group_size }
}

/// Items of a group.
pub(super) fn work_group_size(options: &Options) -> u32 {
    match options.profile {
        Profile::Cpu => 1,
        Profile::Gpu => options.work_group_size,
    }
}

/// Text that declares the rows of a group of one item in the cpu profile, from `begin` to `end`: every group has the same
/// share, a multiple of 64 for the sake of bitmaps.
pub(super) fn run_of_rows(n: &str) -> String {
    format!(
        "  u64 run = (({n} + NGRP() - 1) / NGRP() + 63) & ~(u64)63;\n\
         \x20 u64 begin = run * GRP() < {n} ? run * GRP() : {n}, end = begin + run < {n} ? begin + run : {n};\n"
    )
}

/// The loop over `row` of `n` rows that the items of a grid of any size share: a contiguous run for
/// each on a CPU, strided on a GPU so that neighbours read neighbours.
pub(super) fn for_rows(profile: Profile, row: &str, n: &str, statements: &str) -> String {
    match profile {
        Profile::Cpu => {
            format!("{}  for (u64 {row} = begin; {row} < end; ++{row}) {{\n{statements}  }}\n", run_of_rows(n))
        }
        Profile::Gpu => format!("  for (u64 {row} = GID(); {row} < {n}; {row} += GSZ()) {{\n{statements}  }}\n"),
    }
}

/// Rows of a block whose places a CPU asks the caches for before it works on the first.
const FETCHED: usize = 128;

/// [`for_rows`] where `statements` begin at places anywhere in memory, which `fetch` asks the caches of a CPU for. A GPU has other
/// rows to go on with.
pub(super) fn for_fetched_rows(profile: Profile, row: &str, n: &str, fetch: &str, statements: &str) -> String {
    match profile {
        Profile::Cpu => format!(
            "{}  for (u64 block = begin; block < end; block += {FETCHED}) {{
    u64 last = end - block < {FETCHED} ? end : block + {FETCHED};
    for (u64 {row} = block; {row} < last; ++{row}) {{
{fetch}    }}
    for (u64 {row} = block; {row} < last; ++{row}) {{
{statements}    }}
  }}
",
            run_of_rows(n)
        ),
        Profile::Gpu => for_rows(profile, row, n, statements),
    }
}

/// The row that failed, if one did.
pub(super) fn check_row(word: u64) -> Result<()> {
    match word {
        u64::MAX => Ok(()),
        row => Err(Error::Row { row }),
    }
}

/// Word `index` of what was read from the device.
pub(super) fn word(bytes: &[u8], index: usize) -> Result<u64> {
    let part = bytes.get(index * 8..index * 8 + 8).and_then(|part| part.try_into().ok());
    part.map(u64::from_le_bytes).ok_or_else(|| Error::Internal("a control buffer was read short".into()))
}

/// What an operator says of itself, whose fields `schema`, `types`, `primitives` and `program` hold it.
macro_rules! described_by_its_fields {
    () => {
        /// Names and types of the result.
        pub fn schema(&self) -> &arrow::datatypes::SchemaRef {
            &self.schema
        }

        /// Types and layouts of the result, the same for every batch.
        pub fn output_types(&self) -> &[columnar::ColumnType] {
            &self.types
        }

        /// Names and texts of the kernels.
        pub fn kernel_text(&self) -> Vec<(String, String)> {
            self.program.kernel_text()
        }

        /// The programs as they are compiled.
        pub fn programs(&self) -> Vec<String> {
            vec![self.primitives.text().into(), self.program.text().into()]
        }
    };
}
pub(crate) use described_by_its_fields;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_grid_has_no_more_groups_than_were_chosen() {
        let queue = device::Context::new(device::testing::config().unwrap()).unwrap().queue().unwrap();
        for profile in [Profile::Cpu, Profile::Gpu] {
            let mut options = Options::new(profile);
            options.max_work_groups = 3;
            assert_eq!([1, 1 << 20].map(|rows| spread(&queue, &options, rows).groups), [1, 3]);
            options.max_work_groups = 65;
            assert_eq!(spread(&queue, &options, 1 << 20).groups, 65);
        }
    }
}
