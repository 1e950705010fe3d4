// SPDX-License-Identifier: Apache-2.0
//! Programs: compiled once, off the caller's thread, and found again in memory or in a folder.

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use futures::channel::oneshot;
use futures::future::{BoxFuture, FutureExt, Shared};
use parking_lot::{Condvar, Mutex};

use crate::config::LogSink;
use crate::disk::{DiskCache, Dump, Load, TextFolder};
use crate::driver::{Driver, RawKernel, RawProgram};
use crate::exit::AtWork;
use crate::lane::{Lane, Uses, drop_after};
use crate::loss::Loss;
use crate::meter::{KernelTotals, Meters, Totals, nanos};
use crate::{DeviceConfig, Error, Result};

/// Programs that a context remembers; from then on the ones used longest ago are forgotten.
const MAX_PROGRAMS: usize = 2048;

/// What a program is compiled from. The same text with the same options is the same program.
///
/// # Examples
/// ```
/// let source = device::ProgramSource::new("kernel void f() {}", "DeviceFilterExec");
/// assert_eq!(source.operator, "DeviceFilterExec");
/// assert!(source.options.is_empty());
/// ```
#[derive(Clone, Debug, Hash, PartialEq, Eq)]
pub struct ProgramSource {
    /// The whole text, prelude included.
    pub text: Arc<str>,
    /// The operator that it was generated for, for messages.
    pub operator: String,
    /// Options for the compiler, before those of the configuration.
    pub options: Vec<String>,
}

impl ProgramSource {
    /// A text without options of its own.
    pub fn new(text: impl Into<Arc<str>>, operator: impl Into<String>) -> Self {
        Self { text: text.into(), operator: operator.into(), options: Vec::new() }
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
    loaded: Arc<Loaded>,
    totals: Arc<Totals>,
    loss: Loss,
    kernels: Mutex<HashMap<String, Kernel>>,
}

/// A program in the driver, unloaded once none of its launches may still be running.
struct Loaded {
    driver: Arc<dyn Driver>,
    raw: RawProgram,
    uses: Uses,
}

/// A program on its way out of the driver.
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

impl Drop for Loaded {
    fn drop(&mut self) {
        let unloading = Unloading { driver: Arc::clone(&self.driver), raw: self.raw };
        drop_after(unloading, &self.uses.take_pending());
    }
}

impl fmt::Debug for Loaded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Loaded").field("raw", &self.raw).finish_non_exhaustive()
    }
}

impl Program {
    /// A kernel by name. Asking again gives a handle of the same kernel.
    ///
    /// # Errors
    /// The driver's refusal where there is no such kernel.
    pub fn kernel(&self, name: &str) -> Result<Kernel> {
        let mut kernels = self.kernels.lock();
        if let Some(kernel) = kernels.get(name) {
            return Ok(kernel.clone());
        }
        // SAFETY: the program is loaded and the driver's own.
        let raw = unsafe { self.loaded.driver.kernel(self.loaded.raw, name) }.inspect_err(|error| self.loss.heed(error))?;
        let entry = Entry { raw, launched: AtomicBool::new(false), totals: self.totals.kernel(name) };
        let kernel = Kernel { program: Arc::clone(&self.loaded), entry: Arc::new(entry) };
        kernels.insert(name.to_owned(), kernel.clone());
        Ok(kernel)
    }
}

/// A kernel of a program. A handle: clones share the kernel and keep its program loaded.
#[derive(Debug, Clone)]
pub struct Kernel {
    program: Arc<Loaded>,
    entry: Arc<Entry>,
}

#[derive(Debug)]
struct Entry {
    raw: RawKernel,
    launched: AtomicBool,
    totals: Arc<KernelTotals>,
}

impl Kernel {
    /// Its name in the program's text.
    pub fn name(&self) -> &str {
        &self.entry.totals.name
    }

    pub(crate) fn raw(&self) -> RawKernel {
        self.entry.raw
    }

    pub(crate) fn totals(&self) -> &Arc<KernelTotals> {
        &self.entry.totals
    }

    /// Whether it is a kernel of this driver object.
    pub(crate) fn is_of(&self, driver: &Arc<dyn Driver>) -> bool {
        Arc::ptr_eq(&self.program.driver, driver)
    }

    /// Notes a launch, so that the program stays loaded until it has completed.
    pub(crate) fn used(&self, lane: &Arc<Lane>, number: u64) {
        self.program.uses.note(lane, number);
    }

    /// Whether this is the first launch since the program was loaded. Later calls answer no.
    pub(crate) fn is_first_launch(&self) -> bool {
        !self.entry.launched.swap(true, Relaxed)
    }
}

/// The programs of a context, and the threads that compile them.
pub(crate) struct Compiler {
    driver: Arc<dyn Driver>,
    totals: Arc<Totals>,
    loss: Loss,
    options: Vec<String>,
    disk: Option<DiskCache>,
    dump: Option<Dump>,
    stored: Option<Load>,
    texts: Option<TextFolder>,
    log: Option<LogSink>,
    known: Mutex<Known>,
    work: Mutex<Work>,
    /// Told when the last thread has ended.
    idle: Condvar,
}

/// Text and options: what makes two programs the same.
type Key = (Arc<str>, Vec<String>);

/// The one answer that all who asked for a program get.
type Answer = Shared<BoxFuture<'static, Result<Arc<Program>>>>;

#[derive(Default)]
struct Known {
    programs: HashMap<Key, (Answer, u64)>,
    /// Counts requests, to tell which program was used last.
    clock: u64,
}

#[derive(Default)]
struct Work {
    waiting: VecDeque<Task>,
    threads: usize,
}

struct Task {
    key: Key,
    operator: String,
    meters: Meters,
    answer: oneshot::Sender<Result<Arc<Program>>>,
}

impl Compiler {
    pub(crate) fn new(driver: Arc<dyn Driver>, totals: Arc<Totals>, loss: Loss, config: &DeviceConfig) -> Result<Arc<Self>> {
        let of = driver.as_ref();
        let disk = config.cache_dir.as_deref().map(|folder| DiskCache::new("device.cache_dir", folder, of)).transpose()?;
        let dump = config.dump_programs.as_deref().map(|folder| Dump::new(folder, of)).transpose()?;
        let stored = config.load_programs.as_deref().map(|folder| Load::new(folder, of)).transpose()?;
        let (options, log) = (config.compile_options.clone(), config.log.clone());
        let texts = TextFolder::from_env();
        let (known, work, idle) = (Mutex::default(), Mutex::default(), Condvar::new());
        Ok(Arc::new(Self { driver, totals, loss, options, disk, dump, stored, texts, log, known, work, idle }))
    }

    /// The program of `source`: known, being made, or made from now on.
    pub(crate) fn get(self: &Arc<Self>, source: ProgramSource, meters: Meters) -> Answer {
        let ProgramSource { text, operator, mut options } = source;
        options.extend_from_slice(&self.options);
        let key = (text, options);
        let mut known = self.known.lock();
        known.clock += 1;
        let clock = known.clock;
        if let Some((answer, used)) = known.programs.get_mut(&key) {
            *used = clock;
            self.totals.cache_hits_memory.fetch_add(1, Relaxed);
            return answer.clone();
        }
        let (sender, receiver) = oneshot::channel();
        let gone = Error::Interrupted("the thread of a compilation");
        let answer = receiver.map(|answer| answer.unwrap_or(Err(gone))).boxed().shared();
        known.programs.insert(key.clone(), (answer.clone(), clock));
        known.forget_oldest();
        drop(known);
        self.start(Task { key, operator, meters, answer: sender });
        answer
    }

    /// Forgets all programs; those in use live on with their users.
    pub(crate) fn trim(&self) {
        let programs = std::mem::take(&mut self.known.lock().programs);
        drop(programs);
    }

    /// Waits, on this thread, until nothing is being compiled.
    pub(crate) fn synchronize(&self) {
        self.idle.wait_while(&mut self.work.lock(), |work| work.threads > 0);
    }

    /// Gives a task to a thread, a new one as long as there are fewer than processors.
    fn start(self: &Arc<Self>, task: Task) {
        let most = std::thread::available_parallelism().map_or(1, usize::from);
        let mut work = self.work.lock();
        work.waiting.push_back(task);
        if work.threads >= most {
            return;
        }
        let (this, at_work) = (Arc::clone(self), AtWork::begin());
        let run = move || {
            this.run();
            drop(this);
            drop(at_work);
        };
        let thread = std::thread::Builder::new().name("device-compiler".to_owned()).spawn(run);
        match thread {
            Ok(_) => work.threads += 1,
            // Another thread will take the task; without any, those who wait are told.
            Err(_) if work.threads > 0 => {}
            Err(_) => {
                let abandoned = std::mem::take(&mut work.waiting);
                drop(work);
                abandoned.iter().for_each(|task| self.forget(&task.key));
            }
        }
    }

    /// A thread: works until nothing waits any more.
    fn run(&self) {
        loop {
            let task = {
                let mut work = self.work.lock();
                let task = work.waiting.pop_front();
                if task.is_none() {
                    work.threads -= 1;
                    self.idle.notify_all();
                }
                task
            };
            let Some(Task { key, operator, meters, answer }) = task else { return };
            let start = Instant::now();
            // The log is foreign code: where it panics the others still get their programs.
            let program = catch_unwind(AssertUnwindSafe(|| self.make(&key, &operator)));
            let program = program.unwrap_or(Err(Error::Interrupted("a compilation")));
            let time = start.elapsed();
            self.totals.compile_nanos.fetch_add(nanos(time), Relaxed);
            meters.compiled(time);
            if let Err(error) = &program {
                self.loss.heed(error);
                // The next one who asks tries again.
                self.forget(&key);
            }
            // Whoever waited may be gone.
            _ = answer.send(program);
        }
    }

    /// From the folder, or through the compiler.
    fn make(&self, key: &Key, operator: &str) -> Result<Arc<Program>> {
        let program = self.load_or_compile(key, operator)?;
        if let Some(Err(error)) = self.texts.as_ref().map(|texts| texts.put(&key.0)) {
            self.note(&format!("DEVICEFUSION_DUMP_KERNELS: {error}"));
        }
        Ok(program)
    }

    fn load_or_compile(&self, (text, options): &Key, operator: &str) -> Result<Arc<Program>> {
        let start = Instant::now();
        let other_text = self.stored.as_ref().and_then(|stored| stored.other_text(text));
        if other_text.is_some() {
            self.note(&format!("program of {operator}: its text is that of the folder device.load_programs"));
        }
        let text = other_text.as_deref().unwrap_or(text);
        let of_folder = self.stored.as_ref().and_then(|stored| stored.image(text, options));
        let cached = || self.disk.as_ref().and_then(|disk| disk.get(text, options));
        // A stored image that the driver refuses is as good as none.
        let load = |image: Vec<u8>, whence| Some((self.driver.load(&image).ok()?, image, whence));
        let found = of_folder.and_then(|image| load(image, "loaded from the folder of programs"));
        let found = found.or_else(|| cached().and_then(|image| load(image, "loaded from the cache folder")));
        if let Some((raw, image, whence)) = found {
            self.totals.cache_hits_disk.fetch_add(1, Relaxed);
            self.log(operator, whence, start.elapsed());
            self.dump(text, options, &image);
            return Ok(self.loaded(raw));
        }
        let image = self.driver.compile(text, options).map_err(|error| match error {
            Error::CompileFailed { device, text, log, .. } => {
                let (operator, options) = (operator.to_owned(), self.options.join(" ").into());
                Error::CompileFailed { device, operator, text, options, log }
            }
            other => other,
        })?;
        let raw = self.driver.load(&image)?;
        self.totals.programs_compiled.fetch_add(1, Relaxed);
        if let Some(disk) = &self.disk {
            disk.put(text, options, &image);
        }
        self.log(operator, "compiled", start.elapsed());
        self.dump(text, options, &image);
        Ok(self.loaded(raw))
    }

    /// Leaves a program where the configuration wants it. A folder that cannot be written is no error: the program is there.
    fn dump(&self, text: &str, options: &[String], image: &[u8]) {
        if let Some(Err(error)) = self.dump.as_ref().map(|dump| dump.put(text, options, image)) {
            self.note(&format!("device.dump_programs: {error}"));
        }
    }

    fn loaded(&self, raw: RawProgram) -> Arc<Program> {
        let loaded = Loaded { driver: Arc::clone(&self.driver), raw, uses: Uses::default() };
        Arc::new(Program {
            loaded: Arc::new(loaded),
            totals: Arc::clone(&self.totals),
            loss: self.loss.clone(),
            kernels: Mutex::default(),
        })
    }

    fn forget(&self, key: &Key) {
        let forgotten = self.known.lock().programs.remove(key);
        drop(forgotten);
    }

    fn log(&self, operator: &str, what: &str, time: Duration) {
        self.note(&format!("program of {operator}: {what} in {:.1} ms", time.as_secs_f64() * 1e3));
    }

    fn note(&self, line: &str) {
        if let Some(log) = &self.log {
            log(line);
        }
    }
}

impl Known {
    /// Makes room once there are too many, a quarter at a time.
    fn forget_oldest(&mut self) {
        if self.programs.len() > MAX_PROGRAMS {
            let mut used: Vec<u64> = self.programs.values().map(|(_, used)| *used).collect();
            let (_, limit, _) = used.select_nth_unstable(MAX_PROGRAMS / 4);
            let limit = *limit;
            self.programs.retain(|_, (_, used)| *used > limit);
        }
    }
}
