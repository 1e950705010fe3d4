// SPDX-License-Identifier: Apache-2.0
//! Kernel sources of an operator: generated, compiled and launched. Loops over rows, and grids for
//! them.

use std::collections::HashMap;
use std::ops::Deref;
use std::sync::{Arc, OnceLock};

use columnar::DeviceColumn;
use device::{Arg, Buffer, DryLaunch, Grid, MegakernelPartWriter, ProgramSource, Queue};

use super::dictionary_predicates::DictionaryPredicates;
use super::megakernel::megakernel_part;
use super::throttle::LaunchBudget;
use crate::codegen::{Bindings, Constants, NEXT_ROW, Params, Profile, SCRATCH};
use crate::ops::Options;
use crate::prelude::{Section, Sections};
use crate::{Error, Result};

/// Bytes of the longest source that is optimized. Of 40 KB, prelude included, most programs are.
/// LLVM 15 optimizes 200 KB in 40 s, for it takes superlinear time, and translates them in 3 s.
///
/// Kernels of longer sources spill registers on GPUs: a row has more values than a thread has
/// registers.
pub const LONGEST_OPTIMIZED: usize = 128 << 10;

/// First line of a kernel of the cpu profile. CPU drivers make its machine code at the first
/// launch, which then may be one without work.
const LEAVE_DRY_LAUNCH: &str = "  LEAVE_DRY_LAUNCH();\n";

/// One kernel: its parameters and its body.
#[derive(Debug, Clone)]
pub(in crate::ops) struct Kernel {
    pub name: String,
    pub params: Params,
    /// C between the braces.
    pub body: String,
    /// Whether its launches are [ranges](super::ranges) of work-groups.
    pub runs_in_ranges: bool,
    /// Bounds the time of launches over all rows.
    pub budget: Option<Arc<LaunchBudget>>,
}

impl Kernel {
    pub fn new(name: impl Into<String>, params: Params, body: String) -> Kernel {
        Kernel { name: name.into(), params, body, runs_in_ranges: false, budget: None }
    }

    /// Whether all arguments are passed, none through the argument table.
    pub fn fits(&self, options: &Options) -> bool {
        self.params.bytes() <= options.max_arg_bytes
    }

    /// C of the kernel with the functions that it calls.
    fn source(&self, name: &str, profile: Profile) -> String {
        format!("{}KERNEL void {name}{}", self.params.functions().concat(), self.definition(profile))
    }

    /// C of the kernel behind its name.
    fn definition(&self, profile: Profile) -> String {
        let leave = if profile == Profile::Cpu { LEAVE_DRY_LAUNCH } else { "" };
        format!("({}) {{\n{leave}{}}}\n", self.params.declaration(), self.params.with_table(&self.body, profile))
    }

    /// The definition with columns, literals and outputs numbered by first use. Kernels that differ
    /// in these numbers only have one source, so they are compiled once.
    fn renumbered(&self, profile: Profile) -> String {
        self.renumber(&self.definition(profile))
    }

    /// C with the kernel's columns, literals and outputs numbered by first use.
    pub(super) fn renumber(&self, definition: &str) -> String {
        with_names(definition, &renumbered(self.params.names()))
    }
}

/// C with new names instead of others.
pub(super) fn with_names(c: &str, names: &HashMap<String, String>) -> String {
    let mut source = String::with_capacity(c.len());
    let mut rest = c;
    while !rest.is_empty() {
        let is_of_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
        let end = rest.find(|c| !is_of_name(c)).unwrap_or(rest.len());
        let (name, behind) = rest.split_at(end);
        source.push_str(names.get(name).map_or(name, String::as_str));
        let end = behind.find(is_of_name).unwrap_or(behind.len());
        let (between, behind) = behind.split_at(end);
        source.push_str(between);
        rest = behind;
    }
    source
}

/// New names of parameters: of `c7_0`, `c7_off` and `c3_0` they are `c0_0`, `c0_off` and `c1_0`.
fn renumbered(names: impl Iterator<Item = String>) -> HashMap<String, String> {
    let mut numbers = HashMap::new();
    // Numbers that each prefix has so far.
    let mut counts: HashMap<String, usize> = HashMap::new();
    let mut renumber = |name: &str| {
        let begin = name.find(|c: char| c.is_ascii_digit())?;
        let (prefix, rest) = name.split_at(begin);
        let (number, suffix) = rest.split_at(rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len()));
        let new = numbers.entry((prefix.to_string(), number.to_string())).or_insert_with(|| {
            let count = counts.entry(prefix.to_string()).or_default();
            *count += 1;
            *count - 1
        });
        Some(format!("{prefix}{new}{suffix}"))
    };
    names.filter_map(|name| Some((renumber(&name)?, name))).map(|(new, name)| (name, new)).collect()
}

/// The kernels of one operator, compiled together.
#[derive(Debug, Clone)]
pub(in crate::ops) struct Program {
    operator: String,
    options: Options,
    kernels: Arc<[Kernel]>,
    predicates: DictionaryPredicates,
    /// Made on first use: planning asks for many programs that never run.
    written: OnceLock<Written>,
}

/// The source of a program.
#[derive(Debug, Clone)]
struct Written {
    source: Arc<str>,
    /// For each kernel the one that is compiled for it: the first of the same source. Columns of
    /// one type share a kernel.
    compiled: Vec<usize>,
    /// The names by which the kernels are compiled. Those that end in a number are numbered in
    /// turn, for the source of the program depends on no column.
    names: Vec<String>,
    dry_launches: Arc<[DryLaunch]>,
    megakernel_part: Option<MegakernelPartWriter>,
}

impl Program {
    pub fn new(operator: &str, options: &Options, mut kernels: Vec<Kernel>) -> Program {
        let predicates = DictionaryPredicates::of(&mut kernels, options);
        for kernel in &mut kernels {
            kernel.params.limit_bytes(options.max_arg_bytes);
        }
        Program {
            operator: operator.into(),
            options: options.clone(),
            kernels: kernels.into(),
            predicates,
            written: OnceLock::new(),
        }
    }

    fn write(&self) -> Written {
        let mut known = HashMap::new();
        let mut definitions = String::new();
        let (mut compiled, mut names, mut counts) = (Vec::new(), Vec::<String>::new(), HashMap::new());
        for (index, kernel) in self.kernels.iter().enumerate() {
            let definition = kernel.renumbered(self.options.profile);
            let first = *known.entry(definition.clone()).or_insert(index);
            if first == index {
                let prefix = kernel.name.trim_end_matches(|c: char| c.is_ascii_digit());
                let count: &mut usize = counts.entry(prefix).or_default();
                let name = if prefix == kernel.name { prefix.to_string() } else { format!("{prefix}{count}") };
                *count += 1;
                definitions.push_str(&format!("KERNEL void {name}{definition}"));
                names.push(name);
            } else {
                names.push(names[first].clone());
            }
            compiled.push(first);
        }
        let (mut dry_launches, mut part) = (Arc::default(), None);
        if self.options.profile == Profile::Cpu {
            let own: Vec<usize> = (0..self.kernels.len()).filter(|index| compiled[*index] == *index).collect();
            dry_launches = own.iter().map(|own| (names[*own].clone(), self.kernels[*own].params.parameters())).collect();
            let (kernels, names) = (Arc::clone(&self.kernels), names.clone());
            part = Some(MegakernelPartWriter::new(move || {
                let own: Vec<(&Kernel, &str)> = own.iter().map(|own| (&kernels[*own], names[*own].as_str())).collect();
                megakernel_part(common(&kernels), &own)
            }));
        }
        let source = (self.helpers() + &definitions).into();
        Written { source, compiled, names, dry_launches, megakernel_part: part }
    }

    /// The C before the kernels.
    fn helpers(&self) -> String {
        // Tools that check sources find the profile in the first line.
        let mut source = format!("// {}, profile {}\n", self.operator, self.options.profile.name());
        // Limits the registers of a work-item: a kernel that takes more could not be launched in so
        // large a work-group.
        if self.options.profile == Profile::Gpu && self.options.work_group_size > 256 {
            source.push_str(&format!("#define GROUP_ITEMS {}\n", self.options.work_group_size));
        }
        source.extend(common(&self.kernels).iter().map(|(_, text)| &**text));
        source.extend(functions(self.kernels.iter()).into_iter().map(String::as_str));
        source
    }

    /// Names and sources of the kernels that are compiled, for EXPLAIN VERBOSE and reports. Columns
    /// have the numbers of the source's columns here.
    pub fn kernel_source(&self) -> Vec<(String, String)> {
        let Written { compiled, names, .. } = self.written();
        let own = (0..self.kernels.len()).filter(|index| compiled[*index] == *index);
        let source = |index: usize| self.kernels[index].source(&names[index], self.options.profile);
        own.map(|index| (names[index].clone(), source(index))).collect()
    }

    /// The source that is compiled.
    pub fn source_str(&self) -> &str {
        &self.written().source
    }

    fn written(&self) -> &Written {
        self.written.get_or_init(|| self.write())
    }

    /// Whether a kernel records failing rows.
    pub fn can_fail(&self, kernel: usize) -> bool {
        self.kernels[kernel].params.can_fail()
    }

    /// The source with what the compiler does with it.
    pub fn source(&self) -> ProgramSource {
        let Written { source, dry_launches, megakernel_part, .. } = self.written();
        let (is_optimized, dry_launches) = (source.len() <= LONGEST_OPTIMIZED, Arc::clone(dry_launches));
        let megakernel_part = megakernel_part.clone().filter(|_| is_optimized);
        ProgramSource {
            is_optimized,
            dry_launches,
            megakernel_part,
            ..ProgramSource::new(Arc::clone(source), self.operator.as_str())
        }
    }

    /// Compiles the kernels, or finds those that were compiled before.
    pub async fn load(&self, queue: &Queue) -> Result<Loaded<'_>> {
        let program = queue.compile(self.source()).await?;
        let constants = self.kernels.iter().map(|kernel| kernel.params.upload(queue)).collect::<Result<_>>()?;
        Ok(Loaded { program: self, compiled: program, constants })
    }
}

/// The functions that kernels call, each once.
pub(super) fn functions<'a>(kernels: impl Iterator<Item = &'a Kernel>) -> Vec<&'a String> {
    let mut functions: Vec<&String> = Vec::new();
    for function in kernels.flat_map(|kernel| kernel.params.functions()) {
        if !functions.contains(&function) {
            functions.push(function);
        }
    }
    functions
}

/// The C that programs of other operators have too, in order of the numbers.
fn common(kernels: &[Kernel]) -> Vec<(u32, &'static str)> {
    let mut sections = Sections::default();
    for kernel in kernels {
        sections.extend(kernel.params.sections());
    }
    let mut common: Vec<(u32, &'static str)> = sections.sources().collect();
    let helpers = [
        (&[][..], include_str!("helpers.h")),
        (&["look_back("], include_str!("look_back.h")),
        (&["decimal_average(", "i192_median("], include_str!("../accumulate/average.h")),
        (&["wide_average("], include_str!("../accumulate/wide_average.h")),
        (&["hash_bytes("], "STR_KEYS\n"),
    ];
    for (number, (functions, text)) in (Section::ALL.len() as u32..).zip(helpers) {
        let calls = |kernel: &Kernel| functions.iter().any(|name| kernel.body.contains(name));
        if functions.is_empty() || kernels.iter().any(calls) {
            common.push((number, text));
        }
    }
    common
}

/// A program whose kernels are the same for every query with these options, written on first use.
#[derive(Debug, Clone)]
pub(in crate::ops) struct FixedProgram {
    operator: &'static str,
    options: Options,
    kernels: fn(&Options) -> Vec<Kernel>,
    program: OnceLock<Program>,
}

impl FixedProgram {
    pub fn new(operator: &'static str, options: &Options, kernels: fn(&Options) -> Vec<Kernel>) -> FixedProgram {
        FixedProgram { operator, options: options.clone(), kernels, program: OnceLock::new() }
    }
}

impl Deref for FixedProgram {
    type Target = Program;

    fn deref(&self) -> &Program {
        self.program.get_or_init(|| Program::new(self.operator, &self.options, (self.kernels)(&self.options)))
    }
}

/// A program that was compiled for a queue, with its constants.
pub(in crate::ops) struct Loaded<'a> {
    program: &'a Program,
    compiled: Arc<device::Program>,
    /// The constants of each kernel.
    constants: Vec<Constants>,
}

impl Loaded<'_> {
    /// Enqueues a kernel that reads no batch.
    pub fn launch<'b>(&'b self, queue: &Queue, kernel: usize, grid: Grid, named: Vec<(&'b str, Arg<'b>)>) -> Result<()> {
        self.launch_on(queue, kernel, grid, &[] as &[DeviceColumn], None, named)
    }

    /// Enqueues a kernel over the columns of a batch. A failing row goes to `error`.
    pub fn launch_on<'b>(
        &'b self,
        queue: &Queue,
        kernel: usize,
        grid: Grid,
        batch: &'b (impl AsRef<[DeviceColumn]> + ?Sized),
        error: Option<&'b Buffer>,
        named: Vec<(&'b str, Arg<'b>)>,
    ) -> Result<()> {
        self.launch_range(queue, kernel, (grid, 0, grid.work_groups), batch, error, named)
    }

    /// Enqueues `count` work-groups of a grid, from `first` on.
    pub fn launch_range<'b>(
        &'b self,
        queue: &Queue,
        kernel: usize,
        (grid, first, count): (Grid, u32, u32),
        batch: &'b (impl AsRef<[DeviceColumn]> + ?Sized),
        error: Option<&'b Buffer>,
        named: Vec<(&'b str, Arg<'b>)>,
    ) -> Result<()> {
        let source = &self.program.kernels[kernel];
        let range = Grid { work_groups: count, ..grid };
        let work_items = count as usize * grid.work_group_size as usize;
        let scratch = match source.params.scratch_bytes(work_items) {
            0 => None,
            bytes => Some(queue.alloc(bytes)?),
        };
        let named = named
            .into_iter()
            .chain(source.range_args(first, grid.work_groups))
            .chain(scratch.iter().map(|scratch| (SCRATCH, Arg::Buffer(scratch))))
            .collect();
        let predicates = self.program.predicates.for_kernel(self, queue, kernel, batch.as_ref())?;
        let bindings = Bindings { constants: Some(&self.constants[kernel]), error, dictionary_predicates: &predicates, named };
        let (table, args) = source.params.split_table(source.params.bind(batch.as_ref(), bindings)?);
        let name = &self.program.written().names[kernel];
        queue.launch_with_table(&self.compiled.kernel(name)?, range, &table, &args)?;
        Ok(())
    }

    /// Whether launches of the kernel are ranges.
    pub fn runs_in_ranges(&self, kernel: usize) -> bool {
        self.program.kernels[kernel].runs_in_ranges
    }

    /// The budget of a kernel over all rows.
    pub fn budget(&self, kernel: usize) -> Option<&Arc<LaunchBudget>> {
        self.program.kernels[kernel].budget.as_ref()
    }
}

/// The grid for `n` rows that the work-items share.
pub(in crate::ops) fn grid_for(queue: &Queue, options: &Options, n: usize) -> Grid {
    let compute_units = queue.context().info().compute_units.max(1) as usize;
    let (rows_per_group, groups_per_compute_unit) = match options.profile {
        Profile::Cpu => (4096, 4),
        Profile::Gpu => (options.work_group_size as usize, 16),
    };
    let most = match options.max_work_groups {
        0 => compute_units * groups_per_compute_unit,
        chosen => chosen as usize,
    };
    Grid { work_groups: n.div_ceil(rows_per_group).clamp(1, most) as u32, work_group_size: work_group_size(options) }
}

/// The grid for `n` rows, each of which is compared with up to `candidates` others. A work-group of
/// the cpu profile has at least 64 rows, as [`contiguous_rows`] declares them.
pub(in crate::ops) fn grid_for_candidates(queue: &Queue, options: &Options, n: usize, candidates: usize) -> Grid {
    let Grid { work_groups, work_group_size } = grid_for(queue, options, n.saturating_mul(candidates.max(1)));
    let most = n.div_ceil(work_group_size.max(64) as usize).clamp(1, work_groups as usize);
    Grid { work_groups: most as u32, work_group_size }
}

/// Work-items of a work-group.
pub(in crate::ops) fn work_group_size(options: &Options) -> u32 {
    match options.profile {
        Profile::Cpu => 1,
        Profile::Gpu => options.work_group_size,
    }
}

/// C that declares the rows of a work-group of the cpu profile, from `begin` to `end`. Every
/// work-group has the same share, a multiple of 64, so that no two write to one bitmap word.
pub(in crate::ops) fn contiguous_rows(n: &str) -> String {
    format!(
        "  u64 run = (({n} + NGRP() - 1) / NGRP() + 63) & ~(u64)63;\n\
         \x20 u64 begin = run * GRP() < {n} ? run * GRP() : {n}, end = begin + run < {n} ? begin + run : {n};\n"
    )
}

/// A loop over the rows from 0 to `n` that the work-items of a grid of any size share. A work-item
/// of the cpu profile has a contiguous run. Those of the gpu profile stride, so that adjacent
/// work-items read adjacent rows.
pub(in crate::ops) fn row_loop(profile: Profile, row: &str, n: &str, statements: &str) -> String {
    match profile {
        Profile::Cpu => {
            format!("{}  for (u64 {row} = begin; {row} < end; ++{row}) {{\n{statements}  }}\n", contiguous_rows(n))
        }
        Profile::Gpu => format!("  for (u64 {row} = GID(); {row} < {n}; {row} += GSZ()) {{\n{NEXT_ROW}{statements}  }}\n"),
    }
}

/// Rows of a block that the cpu profile prefetches before it processes the first.
const PREFETCHED_ROWS: usize = 128;

/// As [`row_loop`], for `statements` with reads from random addresses, which `fetch` prefetches in
/// the cpu profile. A GPU hides the latency with other rows.
pub(in crate::ops) fn prefetched_row_loop(profile: Profile, row: &str, n: &str, fetch: &str, statements: &str) -> String {
    match profile {
        Profile::Cpu => format!(
            "{}  for (u64 block = begin; block < end; block += {PREFETCHED_ROWS}) {{
    u64 last = end - block < {PREFETCHED_ROWS} ? end : block + {PREFETCHED_ROWS};
    for (u64 {row} = block; {row} < last; ++{row}) {{
{fetch}    }}
    for (u64 {row} = block; {row} < last; ++{row}) {{
{statements}    }}
  }}
",
            contiguous_rows(n)
        ),
        Profile::Gpu => row_loop(profile, row, n, statements),
    }
}

/// Fails if a kernel recorded a failing row; `word` is the content of its error buffer.
pub(in crate::ops) fn check_failed_row(word: u64) -> Result<()> {
    match word {
        u64::MAX => Ok(()),
        row => Err(Error::Row { row }),
    }
}

/// Element `index` of an array of u64 that was read from the device.
pub(in crate::ops) fn read_u64(bytes: &[u8], index: usize) -> Result<u64> {
    let part = bytes.get(index * 8..index * 8 + 8).and_then(|part| part.try_into().ok());
    part.map(u64::from_le_bytes).ok_or_else(|| Error::Internal("a control buffer was read short".into()))
}

/// Accessors of an operator that has the fields `schema`, `types`, `primitives` and `program`.
macro_rules! describe_operator {
    () => {
        /// Names and types of the result.
        pub fn schema(&self) -> &arrow::datatypes::SchemaRef {
            &self.schema
        }

        /// Types and layouts of the result, the same for every batch.
        pub fn output_types(&self) -> &[columnar::ColumnType] {
            &self.types
        }

        /// Names and sources of the kernels.
        pub fn kernel_source(&self) -> Vec<(String, String)> {
            self.program.kernel_source()
        }

        /// The programs, as they are compiled.
        pub fn programs(&self) -> Vec<device::ProgramSource> {
            vec![self.primitives.source(), self.program.source()]
        }
    };
}
pub(crate) use describe_operator;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_are_numbered_by_first_use() {
        let names = ["n", "c7_0", "c7_off", "o5", "c3_0", "l12_at", "c7_v", "e9_c2_0"].map(String::from);
        let new = renumbered(names.iter().cloned());
        let new = names.map(|name| new.get(&name).cloned().unwrap_or(name));
        assert_eq!(new, ["n", "c0_0", "c0_off", "o0", "c1_0", "l0_at", "c0_v", "e0_c2_0"]);
    }

    #[test]
    fn sources_beyond_128_kib_are_not_optimized() {
        let padded = |bytes| {
            let kernel = Kernel::new("padded", Params::new(), " ".repeat(bytes));
            Program::new("tests", &Options::new(Profile::Cpu), vec![kernel]).source()
        };
        let least = padded(0).source.len();
        for (bytes, is_optimized) in [(least, true), (131_072, true), (131_073, false), (1_000_000, false)] {
            let input = padded(bytes - least);
            assert_eq!((input.source.len(), input.is_optimized), (bytes, is_optimized));
        }
    }

    #[test]
    fn a_grid_has_at_most_the_chosen_number_of_work_groups() {
        let queue = device::Context::new(device::testing::config().unwrap()).unwrap().queue().unwrap();
        for profile in [Profile::Cpu, Profile::Gpu] {
            let mut options = Options::new(profile);
            options.max_work_groups = 3;
            assert_eq!([1, 1 << 20].map(|rows| grid_for(&queue, &options, rows).work_groups), [1, 3]);
            options.max_work_groups = 65;
            assert_eq!(grid_for(&queue, &options, 1 << 20).work_groups, 65);
        }
    }
}
