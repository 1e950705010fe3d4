// SPDX-License-Identifier: Apache-2.0
//! Compilation on threads of its own, with caches in memory and in folders.

use std::collections::{HashMap, HashSet, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use futures::channel::oneshot;
use futures::future::{BoxFuture, FutureExt, Shared, ready};
use parking_lot::{Condvar, Mutex};

use super::background::{Background, RunningQuery};
use super::handle::{Program, ProgramSource};
use super::store::{DiskCache, DumpFolder, LoadFolder, SourceFolder};
use super::tiers::Tiers;
use crate::device_loss::DeviceLoss;
use crate::driver::{Driver, LogSink, Parameter, RawProgram};
use crate::exit::WorkGuard;
use crate::report::{LiveCounters, Meters, nanos};
use crate::{CacheDir, DeviceConfig, DeviceKind, Error, Result};

/// The most programs in the cache of a context.
const MAX_PROGRAMS: usize = 2048;

/// The program cache of a context, and the threads that compile.
pub(crate) struct Compiler {
    driver: Arc<dyn Driver>,
    counters: Arc<LiveCounters>,
    loss: DeviceLoss,
    options: Vec<String>,
    folders: ProgramFolders,
    tiers: Option<Tiers>,
    /// Whether programs were prepared. Then queries wait for few others.
    has_prepared: AtomicBool,
    log: Option<LogSink>,
    cache: Mutex<ProgramCache>,
    work: Mutex<CompileQueue>,
    background: Arc<Background>,
    /// Notified when the last thread ends.
    idle: Condvar,
}

/// The folders of programs and sources, each used only if it is set.
struct ProgramFolders {
    /// `device.cache_dir`.
    cache: Option<DiskCache>,
    /// `device.dump_programs`.
    dump: Option<DumpFolder>,
    /// `device.load_programs`.
    load: Option<LoadFolder>,
    /// `DEVICEFUSION_DUMP_KERNELS`.
    sources: Option<SourceFolder>,
}

impl ProgramFolders {
    fn open(config: &DeviceConfig, device: &dyn Driver) -> Result<Self> {
        let open = |folder: &Path| DiskCache::new("device.cache_dir", folder, device);
        let cache = match &config.cache_dir {
            CacheDir::None => None,
            CacheDir::Folder(folder) => Some(open(folder)?),
            CacheDir::GpuDefault(folder) => match device.info().kind {
                DeviceKind::Cpu => None,
                // A default that cannot be used is no mistake.
                DeviceKind::Gpu | DeviceKind::Accelerator => open(folder).ok(),
            },
        };
        let dump = config.dump_programs.as_deref().map(|folder| DumpFolder::new(folder, device)).transpose()?;
        let load = config.load_programs.as_deref().map(|folder| LoadFolder::new(folder, device)).transpose()?;
        Ok(Self { cache, dump, load, sources: SourceFolder::from_env() })
    }
}

/// The identity of a program: source and options.
pub(super) type ProgramKey = (Arc<str>, Vec<String>);

/// A kernel's name and parameters, as in [`ProgramSource::dry_launches`].
type DryLaunch = (String, Vec<Parameter>);

/// The future that all requests for one program share.
type ProgramFuture = Shared<BoxFuture<'static, Result<Arc<Program>>>>;

/// The programs of a context, the least recently used ones evicted.
#[derive(Default)]
struct ProgramCache {
    programs: HashMap<ProgramKey, CachedProgram>,
    /// Programs that did not compile in the background. A request reports why.
    failed: HashSet<ProgramKey>,
    /// Counts requests.
    clock: u64,
}

struct CachedProgram {
    program: ProgramFuture,
    is_compiled: bool,
    /// The clock at its last request.
    used: u64,
}

#[derive(Default)]
struct CompileQueue {
    waiting: VecDeque<CompileTask>,
    threads: usize,
}

pub(super) struct CompileTask {
    pub(super) key: ProgramKey,
    operator: String,
    dry_launches: Vec<DryLaunch>,
    meters: Meters,
    goal: CompileGoal,
}

/// The goal of a compilation.
enum CompileGoal {
    /// Requests wait for the program.
    Program(oneshot::Sender<Result<Arc<Program>>>),
    /// This program is in its first tier, and shall be optimized.
    Optimization(Weak<Program>),
}

impl CompileTask {
    pub(super) fn is_optimization(&self) -> bool {
        matches!(self.goal, CompileGoal::Optimization(_))
    }
}

impl Compiler {
    pub(crate) fn new(
        driver: Arc<dyn Driver>,
        counters: Arc<LiveCounters>,
        loss: DeviceLoss,
        config: &DeviceConfig,
    ) -> Result<Arc<Self>> {
        let folders = ProgramFolders::open(config, driver.as_ref())?;
        let tiers = Tiers::of(driver.as_ref());
        Ok(Arc::new(Self {
            tiers,
            has_prepared: AtomicBool::new(false),
            driver,
            counters,
            loss,
            options: config.compile_options.clone(),
            folders,
            log: config.log.clone(),
            cache: Mutex::default(),
            work: Mutex::default(),
            background: Background::new(),
            idle: Condvar::new(),
        }))
    }

    /// The program of `source` from the cache, else its compilation, which starts now.
    pub(crate) fn get(self: &Arc<Self>, source: ProgramSource, meters: Meters) -> ProgramFuture {
        let key = self.key(&source);
        let mut cache = self.cache.lock();
        if let Some((program, is_compiled)) = cache.get(&key) {
            drop(cache);
            self.counters.cache_hits_memory.fetch_add(1, Relaxed);
            if !is_compiled && let Some(task) = self.background.take(&key) {
                self.background.note_request();
                self.start(task);
            }
            return program;
        }
        let (task, program) = cache.insert(key, source, meters);
        drop(cache);
        self.background.note_request();
        self.start(task);
        program
    }

    /// Compiles programs in the background, unless they are in the cache.
    pub(crate) fn prepare(self: &Arc<Self>, sources: Vec<ProgramSource>) {
        self.has_prepared.fetch_or(!sources.is_empty(), Relaxed);
        for source in sources {
            let key = self.key(&source);
            let mut cache = self.cache.lock();
            if cache.get(&key).is_none() && !cache.failed.contains(&key) {
                let (task, _) = cache.insert(key, source, Meters::default());
                // A request that finds the entry must find the task too.
                let refused = self.background.push(self, task);
                drop(cache);
                refused.into_iter().for_each(|task| self.start(task));
            }
        }
    }

    /// Whether the program is compiled, or its compilation in the background has failed.
    pub(crate) fn is_ready(&self, source: &ProgramSource) -> bool {
        let key = self.key(source);
        let cache = self.cache.lock();
        cache.programs.get(&key).is_some_and(|cached| cached.is_compiled) || cache.failed.contains(&key)
    }

    /// The programs that are remembered, and the bytes of their sources.
    pub(crate) fn cached(&self) -> (usize, usize) {
        let cache = self.cache.lock();
        (cache.programs.len(), cache.programs.keys().map(|(source, _)| source.len()).sum())
    }

    /// Programs of [`prepare`](Self::prepare) that wait or are being compiled.
    pub(crate) fn unprepared(&self) -> usize {
        self.background.uncompiled()
    }

    /// Blocks until all programs of [`prepare`](Self::prepare) are compiled, and all programs are
    /// optimized. False if `longest` passes first.
    pub(crate) fn wait_until_prepared(&self, longest: Duration) -> bool {
        self.background.wait(longest)
    }

    /// Programs that wait or are being compiled.
    pub(crate) fn compiling(&self) -> usize {
        let work = self.work.lock();
        work.waiting.len() + work.threads + self.unprepared()
    }

    /// Has compilations in the background wait until the result is dropped.
    pub(crate) fn begin_query(&self, query: usize) -> RunningQuery {
        self.background.begin_query(query)
    }

    /// Runs of a query that have not ended.
    pub(crate) fn runs_of_query(&self, query: usize) -> usize {
        self.background.runs_of_query(query)
    }

    /// Number of the other queries that run.
    pub(crate) fn other_queries(&self, query: usize) -> usize {
        self.background.other_queries(query)
    }

    fn key(&self, source: &ProgramSource) -> ProgramKey {
        let mut options = source.options.clone();
        if !source.is_optimized {
            options.extend(self.driver.options_against_optimization().iter().map(|option| option.to_string()));
        }
        options.extend_from_slice(&self.options);
        (Arc::clone(&source.source), options)
    }

    /// Clears the cache. Programs in use stay loaded.
    pub(crate) fn trim(&self) {
        let mut cache = self.cache.lock();
        let (programs, failed) = (std::mem::take(&mut cache.programs), std::mem::take(&mut cache.failed));
        drop(cache);
        drop((programs, failed, self.background.clear()));
    }

    /// Blocks until no compilation runs.
    pub(crate) fn synchronize(&self) {
        self.idle.wait_while(&mut self.work.lock(), |work| work.threads > 0);
    }

    /// Queues a task, and starts a thread if there are fewer threads than processors.
    fn start(self: &Arc<Self>, task: CompileTask) {
        let most = std::thread::available_parallelism().map_or(1, usize::from);
        let mut work = self.work.lock();
        work.waiting.push_back(task);
        if work.threads >= most {
            return;
        }
        let (this, guard) = (Arc::clone(self), WorkGuard::begin());
        let run = move || {
            this.run();
            drop(this);
            drop(guard);
        };
        let thread = std::thread::Builder::new().name("device-compiler".to_owned()).spawn(run);
        match thread {
            Ok(_) => work.threads += 1,
            // Another thread takes the task. Without one, the dropped senders fail the requests.
            Err(_) if work.threads > 0 => {}
            Err(_) => {
                let abandoned = std::mem::take(&mut work.waiting);
                drop(work);
                abandoned.iter().for_each(|task| self.remove(&task.key));
            }
        }
    }

    /// The loop of a thread: compiles until the queue is empty.
    fn run(self: &Arc<Self>) {
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
            let Some(task) = task else { return };
            self.compile(task, false);
        }
    }

    /// Compiles a program for those waiting for it: in its first tier, if it has two.
    ///
    /// In the background the program is optimized, and its machine code is made too, which else a
    /// first launch makes.
    pub(super) fn compile(self: &Arc<Self>, task: CompileTask, is_background: bool) {
        let CompileTask { key, operator, dry_launches, meters, goal } = task;
        let result = match goal {
            CompileGoal::Program(result) => result,
            CompileGoal::Optimization(first) => return self.optimize(&key, &operator, &dry_launches, &first),
        };
        let first_tier = if is_background { None } else { self.first_tier(&key, &dry_launches) };
        let start = Instant::now();
        let made = self.guarded(|| {
            let compiled = &self.counters.programs_compiled;
            let program = self.get_or_compile(first_tier.as_ref().unwrap_or(&key), &operator, compiled)?;
            // Without it, the first launch makes the machine code.
            if is_background && let Err(error) = self.dry_launch(&key, &program, &dry_launches) {
                self.log_line(&format!("a dry launch of {operator} failed: {error}"));
            }
            Ok(program)
        });
        let end = Instant::now();
        self.counters.compile_nanos.fetch_add(nanos(end - start), Relaxed);
        meters.compiled(start..end);
        match &made {
            Ok(program) => {
                self.cache.lock().compiled(&key);
                if first_tier.is_some() {
                    let goal = CompileGoal::Optimization(Arc::downgrade(program));
                    // Without a thread the program stays as it is.
                    _ = self.background.push(self, CompileTask { key, operator, dry_launches, meters: Meters::default(), goal });
                }
            }
            Err(error) => {
                self.loss.check(error);
                if is_background {
                    self.cache.lock().failed.insert(key.clone());
                }
                // The next request compiles again.
                self.remove(&key);
            }
        }
        if !is_background {
            self.background.note_request();
        }
        // The send fails if all futures were dropped.
        _ = result.send(made);
    }

    /// The first tier of a program; `None` if it is optimized already, or has one tier only.
    fn first_tier(&self, key: &ProgramKey, dry_launches: &[DryLaunch]) -> Option<ProgramKey> {
        // - Sources without dry launches are not those of operators.
        // - Programs that a tool dumps or loads have one form.
        // - Runs that follow a preparation wait for few programs, and are often repeated at once.
        let is_for_tools = self.folders.load.is_some() || self.folders.dump.is_some();
        let has_tiers = !dry_launches.is_empty() && !is_for_tools && !self.has_prepared.load(Relaxed);
        self.tiers.as_ref().filter(|_| has_tiers)?.first(key)
    }

    /// Optimizes a program and makes its machine code. Later launches of `first` use it.
    fn optimize(&self, key: &ProgramKey, operator: &str, dry_launches: &[DryLaunch], first: &Weak<Program>) {
        let Some(first) = first.upgrade() else { return };
        let start = Instant::now();
        let optimized = self.guarded(|| {
            let program = self.get_or_compile(key, operator, &self.counters.programs_optimized)?;
            self.dry_launch(key, &program, dry_launches)?;
            Ok(program)
        });
        self.counters.compile_nanos.fetch_add(nanos(start.elapsed()), Relaxed);
        match optimized {
            Ok(program) => {
                self.cache.lock().optimized(key, &program);
                first.set_optimized(program);
            }
            Err(error) => {
                self.loss.check(&error);
                self.log_line(&format!("the program of {operator} stays without optimization: {error}"));
            }
        }
    }

    /// Makes a program. The log is the caller's code: a panic there must not end the thread.
    fn guarded(&self, make: impl FnOnce() -> Result<Arc<Program>>) -> Result<Arc<Program>> {
        catch_unwind(AssertUnwindSafe(make)).unwrap_or(Err(Error::Interrupted("a compilation")))
    }

    /// Makes the machine code of an optimized program, and notes that. Queries that begin meanwhile
    /// come first.
    fn dry_launch(&self, key: &ProgramKey, program: &Program, dry_launches: &[DryLaunch]) -> Result<()> {
        let mut elapsed = Duration::ZERO;
        for kernel in dry_launches {
            self.background.pause(elapsed);
            let start = Instant::now();
            program.dry_launch(kernel)?;
            elapsed = start.elapsed();
        }
        self.tiers.iter().for_each(|tiers| tiers.note_optimized(key));
        Ok(())
    }

    /// Loads a program or compiles it, which `compiled` counts. Leaves its source in the folder of
    /// `DEVICEFUSION_DUMP_KERNELS`.
    fn get_or_compile(&self, key: &ProgramKey, operator: &str, compiled: &AtomicU64) -> Result<Arc<Program>> {
        let program = self.load_or_compile(key, operator, compiled)?;
        if let Some(Err(error)) = self.folders.sources.as_ref().map(|folder| folder.put(&key.0)) {
            self.log_line(&format!("DEVICEFUSION_DUMP_KERNELS: {error}"));
        }
        Ok(program)
    }

    fn load_or_compile(&self, (source, options): &ProgramKey, operator: &str, compiled: &AtomicU64) -> Result<Arc<Program>> {
        let start = Instant::now();
        let replacement = self.folders.load.as_ref().and_then(|folder| folder.replacement(source));
        if replacement.is_some() {
            self.log_line(&format!("program of {operator}: its source is that of the folder device.load_programs"));
        }
        let source = replacement.as_deref().unwrap_or(source);
        let in_folder = self.folders.load.as_ref().and_then(|folder| folder.image(source, options));
        let cached = || self.folders.cache.as_ref().and_then(|cache| cache.get_and_note(source, options));
        // A stored image that the driver refuses counts as missing.
        let load = |image: Vec<u8>, origin| Some((self.driver.load(&image).ok()?, image, origin));
        let found = in_folder.and_then(|image| load(image, "loaded from the folder of programs"));
        let found = found.or_else(|| cached().and_then(|image| load(image, "loaded from the cache folder")));
        if let Some((raw, image, origin)) = found {
            self.counters.cache_hits_disk.fetch_add(1, Relaxed);
            self.log_program(operator, origin, start.elapsed());
            self.dump(source, options, &image);
            return Ok(self.program(raw));
        }
        let image = self.driver.compile(source, options).map_err(|error| match error {
            Error::CompileFailed { device, kernel_source, log, .. } => {
                let (operator, options) = (operator.to_owned(), self.options.join(" ").into());
                Error::CompileFailed { device, operator, kernel_source, options, log }
            }
            other => other,
        })?;
        let raw = self.driver.load(&image)?;
        compiled.fetch_add(1, Relaxed);
        if let Some(cache) = &self.folders.cache {
            cache.put_within(DeviceConfig::CACHE_BYTES, source, options, &image);
        }
        self.log_program(operator, "compiled", start.elapsed());
        self.dump(source, options, &image);
        Ok(self.program(raw))
    }

    /// Leaves a program in the folder `device.dump_programs`. A failed write is only logged.
    fn dump(&self, source: &str, options: &[String], image: &[u8]) {
        if let Some(Err(error)) = self.folders.dump.as_ref().map(|folder| folder.put(source, options, image)) {
            self.log_line(&format!("device.dump_programs: {error}"));
        }
    }

    fn program(&self, raw: RawProgram) -> Arc<Program> {
        Program::new(&self.driver, raw, &self.counters, &self.loss)
    }

    fn remove(&self, key: &ProgramKey) {
        // Dropped without the lock.
        let removed = self.cache.lock().programs.remove(key);
        drop(removed);
    }

    fn log_program(&self, operator: &str, origin: &str, time: Duration) {
        self.log_line(&format!("program of {operator}: {origin} in {:.1} ms", time.as_secs_f64() * 1e3));
    }

    fn log_line(&self, line: &str) {
        if let Some(log) = &self.log {
            log(line);
        }
    }
}

impl Drop for Compiler {
    fn drop(&mut self) {
        self.background.close();
    }
}

impl ProgramCache {
    /// A known program, and whether it is compiled.
    fn get(&mut self, key: &ProgramKey) -> Option<(ProgramFuture, bool)> {
        self.clock += 1;
        let cached = self.programs.get_mut(key)?;
        cached.used = self.clock;
        Some((cached.program.clone(), cached.is_compiled))
    }

    /// Adds a program, and the task that compiles it.
    fn insert(&mut self, key: ProgramKey, source: ProgramSource, meters: Meters) -> (CompileTask, ProgramFuture) {
        let (sender, receiver) = oneshot::channel();
        let gone = Error::Interrupted("the thread of a compilation");
        let program = receiver.map(|result| result.unwrap_or(Err(gone))).boxed().shared();
        let cached = CachedProgram { program: program.clone(), is_compiled: false, used: self.clock };
        self.programs.insert(key.clone(), cached);
        self.evict();
        let ProgramSource { operator, dry_launches, .. } = source;
        (CompileTask { key, operator, dry_launches, meters, goal: CompileGoal::Program(sender) }, program)
    }

    fn compiled(&mut self, key: &ProgramKey) {
        if let Some(cached) = self.programs.get_mut(key) {
            cached.is_compiled = true;
        }
    }

    /// Has later requests get the optimized program.
    fn optimized(&mut self, key: &ProgramKey, program: &Arc<Program>) {
        if let Some(cached) = self.programs.get_mut(key) {
            cached.program = ready(Ok(Arc::clone(program))).boxed().shared();
        }
    }

    /// Evicts the least recently used quarter once the cache is full.
    fn evict(&mut self) {
        if self.programs.len() > MAX_PROGRAMS {
            let mut used: Vec<u64> = self.programs.values().map(|cached| cached.used).collect();
            let (_, limit, _) = used.select_nth_unstable(MAX_PROGRAMS / 4);
            let limit = *limit;
            self.programs.retain(|_, cached| cached.used > limit);
        }
    }
}
