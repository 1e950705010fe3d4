// SPDX-License-Identifier: Apache-2.0
//! Megakernels: the kernels of several programs as functions of one, which chooses among them.
//!
//! Without optimization, PoCL takes 55 ms for a program of one kernel, 20 of them for the linker.
//! Each kernel more takes 50 ms, but 8 ms as a function. It compiles one program at a time. So the
//! programs of a run are compiled together. Laine, Karras and Aila describe such
//! kernels on GPUs ("Megakernels Considered Harmful", 2013).
//!
//! A folder notes the megakernel of each program. A later process may need other programs at once,
//! and finds the machine code of those all the same.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::hash::{Hash, Hasher};
use std::path::Path;
use std::sync::{Arc, Weak};
use std::time::Instant;

use parking_lot::Mutex;

use super::compiler::{CompileTask, Compiler, ProgramKey};
use super::handle::{LoadedProgram, MegakernelNames, Program};
use super::store::{DiskCache, hash};
use super::tiers::Tiers;
use crate::driver::Driver;
use crate::{DeviceConfig, Result, exit};

/// The folder of the notes, within the driver's.
pub(crate) const NOTES_OF_MEGAKERNELS: &str = "devicefusion/megakernels";

/// Most kernels of a megakernel, unless a single program has more. Compilers take more than linear
/// time for a long kernel.
const MOST_KERNELS: usize = 48;

/// The kernels of a program as functions, which a megakernel calls beside those of others.
///
/// A megakernel's parameters are `const global u64 *args` and `u32 position`. A function's only
/// parameter is `args`. Each argument of its kernel takes a word there, first those of the
/// [table](crate::Queue::launch_with_table), then the others: values and addresses.
#[derive(Clone, Debug)]
pub struct MegakernelPart {
    /// The megakernel's name.
    pub name: &'static str,
    /// C of the megakernel before the first call.
    pub begin: &'static str,
    /// C that other programs have too, by number. A megakernel has each once, in order.
    pub common: Vec<(u32, &'static str)>,
    /// C of this program: the functions, and those that they call. No other program has their
    /// names.
    pub own: String,
    /// The functions' names, in order of [`ProgramSource::dry_launches`].
    ///
    /// [`ProgramSource::dry_launches`]: crate::ProgramSource::dry_launches
    pub functions: Vec<String>,
}

/// Writes a [`MegakernelPart`] once that is needed: most programs are found compiled. Equal sources
/// have equal parts, so all writers are equal.
#[derive(Clone)]
pub struct MegakernelPartWriter(Arc<dyn Fn() -> Option<MegakernelPart> + Send + Sync>);

impl MegakernelPartWriter {
    /// A writer that calls `write`. `None` is the result for kernels with barriers.
    pub fn new(write: impl Fn() -> Option<MegakernelPart> + Send + Sync + 'static) -> Self {
        Self(Arc::new(write))
    }

    /// The part; `None` if a kernel cannot be a function.
    pub fn write(&self) -> Option<MegakernelPart> {
        (self.0)()
    }
}

impl fmt::Debug for MegakernelPartWriter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("MegakernelPartWriter")
    }
}

impl PartialEq for MegakernelPartWriter {
    fn eq(&self, _other: &Self) -> bool {
        true
    }
}

impl Eq for MegakernelPartWriter {}

impl Hash for MegakernelPartWriter {
    fn hash<H: Hasher>(&self, _state: &mut H) {}
}

impl MegakernelPart {
    /// C that calls the functions, by positions from `first` on.
    fn calls(&self, first: u32) -> String {
        let call = |(position, name): (u32, &String)| format!("  if (position == {position}) {name}(args);\n");
        (first..).zip(&self.functions).map(call).collect()
    }

    /// The source of a megakernel, and the position of each part's first function.
    ///
    /// # Examples
    /// ```
    /// use device::MegakernelPart;
    ///
    /// let part = |name: &str| MegakernelPart {
    ///     name: "megakernel",
    ///     begin: "kernel void megakernel(const global ulong *args, uint position) {\n",
    ///     common: vec![],
    ///     own: format!("static void {name}(const global ulong *args) {{}}\n"),
    ///     functions: vec![name.to_owned()],
    /// };
    /// let (source, firsts) = MegakernelPart::join(&[&part("f"), &part("g")]);
    /// assert!(source.ends_with("  if (position == 0) f(args);\n  if (position == 1) g(args);\n}\n"));
    /// assert_eq!(firsts, [0, 1]);
    /// ```
    pub fn join(parts: &[&MegakernelPart]) -> (String, Vec<u32>) {
        let common: BTreeMap<u32, &str> = parts.iter().flat_map(|part| part.common.iter().copied()).collect();
        let (mut calls, mut firsts, mut next) = (String::new(), Vec::new(), 0);
        for part in parts {
            firsts.push(next);
            calls.push_str(&part.calls(next));
            next += part.functions.len() as u32;
        }
        let own = parts.iter().map(|part| part.own.as_str());
        let begin = parts.first().map_or("", |part| part.begin);
        (common.into_values().chain(own).chain([begin, &calls, "}\n"]).collect(), firsts)
    }
}

/// The megakernels of a context: loaded ones, and the notes of earlier processes.
#[derive(Default)]
pub(super) struct Megakernels {
    loaded: Mutex<HashMap<ProgramKey, Weak<LoadedProgram>>>,
    notes: Option<DiskCache>,
    /// The properties that machine code depends on, beside source and options.
    machine: String,
}

impl Megakernels {
    /// Those of a driver with two tiers.
    pub fn over(tiers: &Tiers, driver: &dyn Driver) -> Self {
        let open = |folder: &Path| DiskCache::new("POCL_CACHE_DIR", &folder.join(NOTES_OF_MEGAKERNELS), driver).ok();
        let (notes, machine) = (tiers.folder().and_then(open), tiers.machine().to_owned());
        Self { loaded: Mutex::default(), notes, machine }
    }

    /// The noted megakernel of a program, and the position of the program's first function.
    fn find(&self, (source, options): &ProgramKey, part: &MegakernelPart) -> Option<(ProgramKey, u32)> {
        let (notes, of_notes) = (self.notes.as_ref()?, self.options_of_notes(options));
        let note = String::from_utf8(notes.get_and_note(source, &of_notes)?).ok()?;
        let (first, name) = note.split_once(' ')?;
        let first = first.parse().ok()?;
        let megakernel = String::from_utf8(notes.get_and_note(name, &of_notes)?).ok()?;
        // A function's name depends on the part's text, so the note of another text is of no use.
        let is_of_part = megakernel.contains(part.begin) && megakernel.contains(&part.calls(first));
        is_of_part.then(|| ((megakernel.into(), options.clone()), first))
    }

    /// Notes the megakernel of programs.
    fn note(&self, (megakernel, options): &ProgramKey, members: &[(ProgramKey, u32)]) {
        let Some(notes) = &self.notes else { return };
        let options = self.options_of_notes(options);
        let name = format!("megakernel {:032x}", hash(megakernel.as_bytes()));
        notes.put_within(DeviceConfig::CACHE_BYTES, &name, &options, megakernel.as_bytes());
        for ((source, _), first) in members {
            notes.put_within(DeviceConfig::CACHE_BYTES, source, &options, format!("{first} {name}").as_bytes());
        }
    }

    fn options_of_notes(&self, options: &[String]) -> Vec<String> {
        options.iter().chain([&self.machine]).cloned().collect()
    }
}

/// A program that is part of a megakernel.
struct Member {
    task: CompileTask,
    /// Source and options: in its first tier, if it has two.
    key: ProgramKey,
    is_first_tier: bool,
    part: MegakernelPart,
}

/// A megakernel with its programs, and the positions of their first functions.
struct Megakernel {
    key: ProgramKey,
    members: Vec<(Member, u32)>,
    is_noted: bool,
}

impl Compiler {
    /// Compiles programs for those waiting for them: as megakernels, as far as they are not
    /// optimized.
    pub(super) fn compile_all(self: &Arc<Self>, tasks: Vec<CompileTask>) {
        let mut members = Vec::new();
        for task in tasks {
            match self.member(task) {
                Ok(member) => members.push(member),
                Err(task) => self.compile(*task, false),
            }
        }
        for megakernel in self.megakernels_of(members) {
            // The requests fail if the process ends.
            if !exit::has_begun() {
                self.compile_megakernel(megakernel);
            }
        }
    }

    /// The program as a part of a megakernel; the task of another.
    fn member(&self, task: CompileTask) -> std::result::Result<Member, Box<CompileTask>> {
        let first_tier = self.first_tier(&task);
        let is_first_tier = first_tier.is_some();
        let key = first_tier.unwrap_or_else(|| task.key.clone());
        let writer = task.megakernel_part.as_ref().filter(|_| self.takes_megakernels(&key.1));
        match writer.and_then(MegakernelPartWriter::write) {
            Some(part) => Ok(Member { task, key, is_first_tier, part }),
            None => Err(Box::new(task)),
        }
    }

    /// The noted megakernels of programs, then new ones of the others.
    fn megakernels_of(&self, members: Vec<Member>) -> Vec<Megakernel> {
        let mut megakernels: Vec<Megakernel> = Vec::new();
        let mut others: Vec<Member> = Vec::new();
        for member in members {
            match self.megakernels.find(&member.key, &member.part) {
                Some((key, first)) => match megakernels.iter_mut().find(|megakernel| megakernel.key == key) {
                    Some(megakernel) => megakernel.members.push((member, first)),
                    None => megakernels.push(Megakernel { key, members: vec![(member, first)], is_noted: true }),
                },
                None => others.push(member),
            }
        }
        while let Some(first) = others.first() {
            let options = first.key.1.clone();
            let mut kernels = 0;
            let fits = |member: &mut Member| {
                let own = member.part.functions.len();
                let fits = member.key.1 == options && (kernels == 0 || kernels + own <= MOST_KERNELS);
                kernels += if fits { own } else { 0 };
                fits
            };
            let chosen: Vec<Member> = others.extract_if(.., fits).collect();
            let parts: Vec<&MegakernelPart> = chosen.iter().map(|member| &member.part).collect();
            let (source, firsts) = MegakernelPart::join(&parts);
            let (key, members) = ((source.into(), options), chosen.into_iter().zip(firsts).collect());
            megakernels.push(Megakernel { key, members, is_noted: false });
        }
        megakernels
    }

    fn compile_megakernel(self: &Arc<Self>, Megakernel { key, members, is_noted }: Megakernel) {
        let operators = match members.as_slice() {
            [(one, _)] => one.task.operator.clone(),
            [(one, _), others @ ..] => format!("{} and {} others", one.task.operator, others.len()),
            [] => return,
        };
        let start = Instant::now();
        let made = self.guarded(|| self.loaded_megakernel(&key, &operators, &members));
        // One run has requested all of them.
        if let Some((member, _)) = members.first() {
            self.count_time(&member.task, start..Instant::now());
        }
        let (loaded, is_compiled) = match made {
            Ok(made) => made,
            // Another form may compile, else its error names source and operator.
            Err(error) => {
                let line = format!("the megakernel of {operators} failed: {error}");
                _ = self.guarded(|| {
                    self.log_line(&line);
                    Ok(())
                });
                return members.into_iter().for_each(|(member, _)| self.compile(member.task, false));
            }
        };
        self.count_programs(is_compiled, members.len() as u64);
        let noted: Vec<(ProgramKey, u32)> = members.iter().map(|(member, first)| (member.key.clone(), *first)).collect();
        for (member, first) in members {
            let program = self.program_of(&loaded, &member, first);
            program.note_machine_code();
            self.deliver(member.task, Ok(program), member.is_first_tier, false);
        }
        if !is_noted {
            self.megakernels.note(&key, &noted);
        }
    }

    /// The megakernel with its machine code. Whether it was compiled, not loaded before.
    fn loaded_megakernel(
        &self,
        key: &ProgramKey,
        operators: &str,
        members: &[(Member, u32)],
    ) -> Result<(Arc<LoadedProgram>, bool)> {
        if let Some(loaded) = self.megakernels.loaded.lock().get(key).and_then(Weak::upgrade) {
            return Ok((loaded, false));
        }
        let (loaded, is_compiled) = self.get_or_compile(key, operators)?;
        // Without it, the first launch would make the machine code.
        if let Some((member, first)) = members.first() {
            self.dry_launch(&self.program_of(&loaded, member, *first), &member.task.dry_launches, false)?;
        }
        let mut all = self.megakernels.loaded.lock();
        all.retain(|_, loaded| loaded.strong_count() > 0);
        all.insert(key.clone(), Arc::downgrade(&loaded));
        Ok((loaded, is_compiled))
    }

    /// The program of a member, whose kernels are parts of the megakernel.
    fn program_of(&self, loaded: &Arc<LoadedProgram>, member: &Member, first: u32) -> Arc<Program> {
        let kernels = member.task.dry_launches.iter().map(|(name, _)| name.clone()).collect();
        self.program(Arc::clone(loaded), Some(MegakernelNames { name: member.part.name, kernels, first }))
    }
}
