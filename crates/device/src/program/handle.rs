// SPDX-License-Identifier: Apache-2.0
//! Program sources, loaded programs and their kernels.

use std::borrow::Cow;
use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;

use super::megakernel::MegakernelPartWriter;
use crate::device_loss::DeviceLoss;
use crate::driver::{Driver, Parameter, RawKernel, RawProgram};
use crate::exit;
use crate::queue::{LastUses, QueueWorker, drop_after};
use crate::report::{KernelTotals, LiveCounters};
use crate::{Error, Result};

/// A kernel's name and parameters.
pub type DryLaunch = (String, Vec<Parameter>);

/// The kernel source of a program with its options. Equal sources with equal options are the same
/// program.
///
/// # Examples
/// ```
/// let source = device::ProgramSource::new("kernel void f() {}", "DeviceFilterExec");
/// assert_eq!(source.operator, "DeviceFilterExec");
/// assert!(source.options.is_empty());
/// ```
#[derive(Clone, Debug, Hash, PartialEq, Eq)]
pub struct ProgramSource {
    /// The complete kernel source, prelude included.
    pub source: Arc<str>,
    /// The operator that it was generated for, for messages.
    pub operator: String,
    /// Options for the compiler, before those of the configuration.
    pub options: Vec<String>,
    /// Whether the compiler optimizes. Without, compilers take linear time for long sources.
    pub is_optimized: bool,
    /// Names and parameters of kernels for dry launches by a CPU driver: they return at once where
    /// their grid has a second dimension.
    ///
    /// Such a driver makes machine code at the first launch. So [`Context::prepare`] dry-launches
    /// the kernels.
    ///
    /// [`Context::prepare`]: crate::Context::prepare
    pub dry_launches: Arc<[DryLaunch]>,
    /// The kernels as functions of a megakernel. Sources may lack that form.
    pub megakernel_part: Option<MegakernelPartWriter>,
}

/// The names of a program whose kernels are parts of a [`MegakernelPart`].
#[derive(Debug)]
pub(super) struct MegakernelNames {
    pub name: &'static str,
    /// In order of their positions.
    pub kernels: Vec<String>,
    /// The position of the first one.
    pub first: u32,
}

impl MegakernelNames {
    fn position(&self, kernel: &str) -> Option<u32> {
        let index = self.kernels.iter().position(|known| known == kernel)?;
        Some(self.first + u32::try_from(index).ok()?)
    }
}

/// Parameters of a [`MegakernelPart`]: arguments and position.
pub(super) const MEGAKERNEL_PARAMETERS: [Parameter; 2] = [Parameter::Memory, Parameter::Value(size_of::<u32>())];

impl ProgramSource {
    /// A source without options.
    pub fn new(source: impl Into<Arc<str>>, operator: impl Into<String>) -> Self {
        let (options, megakernel_part, dry_launches) = (vec![], None, Arc::new([]));
        Self { source: source.into(), operator: operator.into(), options, is_optimized: true, dry_launches, megakernel_part }
    }

    /// Adds an option for the compiler.
    pub fn with_option(mut self, option: impl Into<String>) -> Self {
        self.options.push(option.into());
        self
    }
}

/// A compiled and loaded program.
#[derive(Debug)]
pub struct Program {
    loaded: Arc<LoadedProgram>,
    counters: Arc<LiveCounters>,
    loss: DeviceLoss,
    kernels: Mutex<HashMap<String, Kernel>>,
    /// Names in a program that is compiled as a megakernel.
    megakernel: Option<MegakernelNames>,
    /// Whether the machine code of all kernels was made.
    has_machine_code: AtomicBool,
    /// The program in its second tier.
    optimized: OnceLock<Arc<Program>>,
}

/// A program loaded in the driver, unloaded once its launches have completed.
pub(super) struct LoadedProgram {
    driver: Arc<dyn Driver>,
    raw: RawProgram,
    uses: LastUses,
}

impl LoadedProgram {
    /// Takes over a program that `driver` has loaded.
    pub(super) fn new(driver: &Arc<dyn Driver>, raw: RawProgram) -> Arc<Self> {
        Arc::new(Self { driver: Arc::clone(driver), raw, uses: LastUses::default() })
    }
}

/// A program that its drop unloads.
struct Unloading {
    driver: Arc<dyn Driver>,
    raw: RawProgram,
}

impl Drop for Unloading {
    fn drop(&mut self) {
        // SAFETY: the program is the driver's, and this is dropped after its last launch.
        unsafe { self.driver.unload(self.raw) };
    }
}

impl Drop for LoadedProgram {
    fn drop(&mut self) {
        let unloading = Unloading { driver: Arc::clone(&self.driver), raw: self.raw };
        drop_after(unloading, &self.uses.take_pending());
    }
}

impl fmt::Debug for LoadedProgram {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LoadedProgram").field("raw", &self.raw).finish_non_exhaustive()
    }
}

impl Program {
    /// A program with all kernels of a loaded one, or some that are parts of a megakernel.
    pub(super) fn new(
        loaded: Arc<LoadedProgram>,
        megakernel: Option<MegakernelNames>,
        counters: &Arc<LiveCounters>,
        loss: &DeviceLoss,
    ) -> Arc<Self> {
        let (counters, loss) = (Arc::clone(counters), loss.clone());
        let (kernels, has_machine_code, optimized) = Default::default();
        Arc::new(Self { loaded, counters, loss, kernels, megakernel, has_machine_code, optimized })
    }

    /// The dry launches that make the machine code of these kernels: a single one for a megakernel.
    pub(super) fn dry_launches<'a>(&self, kernels: &'a [DryLaunch]) -> Cow<'a, [DryLaunch]> {
        match (&self.megakernel, kernels) {
            (Some(_), [(first, _), ..]) => Cow::Owned(vec![(first.clone(), MEGAKERNEL_PARAMETERS.to_vec())]),
            _ => Cow::Borrowed(kernels),
        }
    }

    /// Has the driver make the machine code of a kernel now. Fails if the process ends.
    pub(super) fn dry_launch(&self, (name, parameters): &DryLaunch) -> Result<()> {
        if exit::has_begun() {
            return Err(Error::Interrupted("a dry launch"));
        }
        let kernel = self.kernel(name)?;
        // SAFETY: the program is loaded. `ProgramSource` has the parameters of kernels that return
        // at once.
        let launched = unsafe { self.loaded.driver.dry_launch(kernel.raw(), parameters) };
        launched.inspect(|()| _ = kernel.note_launch()).inspect_err(|error| self.loss.check(error))
    }

    /// Notes that the machine code of all kernels was made.
    pub(super) fn note_machine_code(&self) {
        self.has_machine_code.store(true, Relaxed);
    }

    /// Has later launches use the optimized program.
    pub(super) fn set_optimized(&self, optimized: Arc<Program>) {
        // A program is optimized once.
        _ = self.optimized.set(optimized);
    }

    /// A kernel by name. Each call returns a handle of the same kernel, until the program is
    /// optimized: then that of its optimized version.
    ///
    /// # Errors
    /// The driver's refusal if the program has no such kernel.
    pub fn kernel(&self, name: &str) -> Result<Kernel> {
        if let Some(optimized) = self.optimized.get() {
            return optimized.kernel(name);
        }
        let mut kernels = self.kernels.lock();
        if let Some(kernel) = kernels.get(name) {
            return Ok(kernel.clone());
        }
        let position = self.megakernel.as_ref().and_then(|megakernel| Some((megakernel.name, megakernel.position(name)?)));
        let (name_in_source, position) = position.map_or((name, None), |(name, position)| (name, Some(position)));
        // SAFETY: the program is loaded and the driver's own.
        let raw = unsafe { self.loaded.driver.kernel(self.loaded.raw, name_in_source) };
        let raw = raw.inspect_err(|error| self.loss.check(error))?;
        let launched = AtomicBool::new(self.has_machine_code.load(Relaxed));
        let entry = KernelEntry { raw, position, launched, totals: self.counters.kernel(name) };
        let kernel = Kernel { program: Arc::clone(&self.loaded), entry: Arc::new(entry) };
        kernels.insert(name.to_owned(), kernel.clone());
        Ok(kernel)
    }
}

/// A kernel of a program. Clones share the kernel and keep its program loaded.
#[derive(Debug, Clone)]
pub struct Kernel {
    program: Arc<LoadedProgram>,
    entry: Arc<KernelEntry>,
}

#[derive(Debug)]
struct KernelEntry {
    raw: RawKernel,
    /// Its position in a megakernel.
    position: Option<u32>,
    launched: AtomicBool,
    totals: Arc<KernelTotals>,
}

impl Kernel {
    /// The name, also of a kernel that is a part of a megakernel.
    pub fn name(&self) -> &str {
        &self.entry.totals.name
    }

    pub(crate) fn raw(&self) -> RawKernel {
        self.entry.raw
    }

    /// Its position in a megakernel. Launches pass that, and all arguments in the argument table.
    pub(crate) fn position(&self) -> Option<u32> {
        self.entry.position
    }

    pub(crate) fn totals(&self) -> &Arc<KernelTotals> {
        &self.entry.totals
    }

    /// Whether it is a kernel of this driver object.
    pub(crate) fn is_of(&self, driver: &Arc<dyn Driver>) -> bool {
        Arc::ptr_eq(&self.program.driver, driver)
    }

    /// Adds a launch: the program stays loaded until it has completed.
    pub(crate) fn add_use(&self, worker: &Arc<QueueWorker>, sequence: u64) {
        self.program.uses.add(worker, sequence);
    }

    /// Whether the kernel was not launched after the load of the program.
    pub(crate) fn is_new(&self) -> bool {
        !self.entry.launched.load(Relaxed)
    }

    /// Notes a launch. True for the first since the program was loaded.
    pub(crate) fn note_launch(&self) -> bool {
        let is_first = !self.entry.launched.swap(true, Relaxed);
        if is_first {
            // The launch makes machine code, for which a compiler may have made more objects.
            exit::register();
        }
        is_first
    }
}
