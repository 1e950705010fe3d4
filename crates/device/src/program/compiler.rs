// SPDX-License-Identifier: Apache-2.0
//! Compilation on threads of its own, with caches in memory and in folders.

use std::collections::{HashMap, HashSet, VecDeque};
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use futures::channel::oneshot;
use futures::future::{BoxFuture, FutureExt, Shared, ready};
use parking_lot::{Condvar, Mutex};

use super::background::{Background, RunningQuery};
use super::handle::{DryLaunch, LoadedProgram, MegakernelNames, Program, ProgramSource};
use super::megakernel::{MegakernelPartWriter, Megakernels};
use super::store::{DiskCache, DumpFolder, LoadFolder, SourceFolder};
use super::tiers::Tiers;
use crate::device_loss::DeviceLoss;
use crate::driver::{Driver, LogSink};
use crate::exit::{self, WorkGuard};
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
    pub(super) megakernels: Megakernels,
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

/// The future that all requests for one program share.
type ProgramFuture = Shared<BoxFuture<'static, Result<Arc<Program>>>>;

/// The programs of a context, the least recently used ones evicted.
#[derive(Default)]
struct ProgramCache {
    /// By keys of some 20 KB each, which a run hashes for each of its operators.
    programs: HashMap<ProgramKey, CachedProgram, foldhash::fast::RandomState>,
    /// Programs that did not compile in the background. A request reports why.
    failed: HashSet<ProgramKey>,
    /// Counts requests.
    clock: u64,
}

/// A request for a known program.
struct Request {
    program: ProgramFuture,
    is_compiled: bool,
    /// Whether the program was announced only, or prepared.
    is_first: bool,
    /// The program's optimization, which may begin now.
    optimization: Option<Box<CompileTask>>,
}

struct CachedProgram {
    program: ProgramFuture,
    is_compiled: bool,
    /// Whether a run has asked for it, not only announced it.
    is_requested: bool,
    /// A failure that the next request gets.
    has_failed: bool,
    /// The optimization of a program that no run has asked for yet.
    optimization: Option<Box<CompileTask>>,
    /// The clock at its last request.
    used: u64,
}

#[derive(Default)]
struct CompileQueue {
    /// Programs that a request has asked for at once.
    waiting: VecDeque<Vec<CompileTask>>,
    /// Programs of which a thread has taken the tasks.
    running: usize,
    threads: usize,
}

pub(super) struct CompileTask {
    pub(super) key: ProgramKey,
    pub(super) operator: String,
    pub(super) dry_launches: Arc<[DryLaunch]>,
    pub(super) megakernel_part: Option<MegakernelPartWriter>,
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
        let megakernels = tiers.as_ref().map_or_else(Megakernels::default, |tiers| Megakernels::over(tiers, driver.as_ref()));
        Ok(Arc::new(Self {
            tiers,
            megakernels,
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
        if let Some(Request { program, is_compiled, is_first, optimization }) = cache.request(&key) {
            drop(cache);
            self.counters.cache_hits_memory.fetch_add(u64::from(!is_first), Relaxed);
            // Without a thread the program stays as it is.
            optimization.into_iter().for_each(|task| _ = self.background.push(self, *task));
            if !is_compiled && let Some(task) = self.background.take(&key) {
                self.background.note_request();
                self.start(vec![task]);
            }
            return program;
        }
        let (task, program) = cache.insert(key.clone(), source, meters);
        drop((cache.request(&key), cache));
        self.background.note_request();
        self.start(vec![task]);
        program
    }

    /// Compiles the programs of a run before it requests them, if they are faster to compile
    /// together.
    pub(crate) fn compile_ahead(self: &Arc<Self>, sources: impl FnOnce() -> Vec<ProgramSource>, meters: &Meters) {
        // Runs that follow a preparation wait for few programs.
        if !self.has_megakernels() || self.has_prepared.load(Relaxed) {
            return;
        }
        let mut tasks = Vec::new();
        for source in sources() {
            let key = self.key(&source);
            let mut cache = self.cache.lock();
            cache.forget_failure(&key);
            match cache.is_compiled(&key) {
                None => tasks.push(cache.insert(key, source, meters.clone()).0),
                Some(false) => {
                    drop(cache);
                    tasks.extend(self.background.take(&key));
                }
                Some(true) => {}
            }
        }
        if tasks.is_empty() {
            return;
        }
        self.background.note_request();
        self.start(tasks);
    }

    /// Compiles programs in the background, unless they are in the cache.
    pub(crate) fn prepare(self: &Arc<Self>, sources: Vec<ProgramSource>) {
        self.has_prepared.fetch_or(!sources.is_empty(), Relaxed);
        for source in sources {
            let key = self.key(&source);
            let mut cache = self.cache.lock();
            if cache.is_compiled(&key).is_none() && !cache.failed.contains(&key) {
                let (task, _) = cache.insert(key, source, Meters::default());
                // A request that finds the entry must find the task too.
                let refused = self.background.push(self, task);
                drop(cache);
                refused.into_iter().for_each(|task| self.start(vec![task]));
            }
        }
    }

    /// Whether the program is compiled, or its compilation in the background has failed.
    pub(crate) fn is_ready(&self, source: &ProgramSource) -> bool {
        let key = self.key(source);
        let cache = self.cache.lock();
        let is_ready = |cached: &CachedProgram| cached.is_compiled || cached.has_failed;
        cache.programs.get(&key).is_some_and(is_ready) || cache.failed.contains(&key)
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
        work.waiting.iter().map(Vec::len).sum::<usize>() + work.running + self.unprepared()
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

    /// Queues tasks for one thread, and starts a thread if there are fewer than processors.
    fn start(self: &Arc<Self>, tasks: Vec<CompileTask>) {
        let most = std::thread::available_parallelism().map_or(1, usize::from);
        let mut work = self.work.lock();
        work.waiting.push_back(tasks);
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
                abandoned.iter().flatten().for_each(|task| self.remove(&task.key));
            }
        }
    }

    /// The loop of a thread: compiles until the queue is empty.
    fn run(self: &Arc<Self>) {
        loop {
            let tasks = {
                let mut work = self.work.lock();
                let tasks = work.waiting.pop_front();
                if tasks.is_none() {
                    work.threads -= 1;
                    self.idle.notify_all();
                }
                work.running += tasks.as_ref().map_or(0, Vec::len);
                tasks
            };
            let Some(tasks) = tasks else { return };
            let count = tasks.len();
            match count {
                1 => self.compile_all(tasks),
                // The process may end before a run needs them.
                _ => exit::guarded_compilation(|| self.compile_all(tasks)),
            }
            self.work.lock().running -= count;
        }
    }

    /// Compiles a program of its own for those waiting for it: in its first tier, if it has two.
    ///
    /// In the background the program is optimized, and its machine code is made too, which else a
    /// first launch makes.
    pub(super) fn compile(self: &Arc<Self>, task: CompileTask, is_background: bool) {
        if let CompileGoal::Optimization(first) = &task.goal {
            return self.optimize(&task, first);
        }
        let first_tier = if is_background { None } else { self.first_tier(&task) };
        let start = Instant::now();
        let made = self.guarded(|| {
            let (loaded, is_compiled) = self.get_or_compile(first_tier.as_ref().unwrap_or(&task.key), &task.operator)?;
            self.count_programs(is_compiled, 1);
            let program = self.program(loaded, None);
            // Without it, the first launch makes the machine code.
            match is_background.then(|| self.dry_launch(&program, &task.dry_launches, true)) {
                Some(Ok(())) => self.tiers.iter().for_each(|tiers| tiers.note_optimized(&task.key)),
                Some(Err(error)) => self.log_line(&format!("a dry launch of {} failed: {error}", task.operator)),
                None => {}
            }
            Ok(program)
        });
        self.count_time(&task, start..Instant::now());
        self.deliver(task, made, first_tier.is_some(), is_background);
    }

    /// Counts programs that were compiled, or else were found in a folder.
    pub(super) fn count_programs(&self, are_compiled: bool, programs: u64) {
        let counter = if are_compiled { &self.counters.programs_compiled } else { &self.counters.cache_hits_disk };
        counter.fetch_add(programs, Relaxed);
    }

    pub(super) fn count_time(&self, task: &CompileTask, time: Range<Instant>) {
        self.counters.compile_nanos.fetch_add(nanos(time.end - time.start), Relaxed);
        task.meters.compiled(time);
    }

    /// Gives a program to those waiting for it. One in its first tier is optimized later.
    pub(super) fn deliver(
        self: &Arc<Self>,
        task: CompileTask,
        made: Result<Arc<Program>>,
        is_first_tier: bool,
        is_background: bool,
    ) {
        let CompileTask { key, operator, dry_launches, goal, .. } = task;
        let CompileGoal::Program(result) = goal else { return };
        match &made {
            Ok(program) => {
                let optimization = is_first_tier.then(|| {
                    let goal = CompileGoal::Optimization(Arc::downgrade(program));
                    let (key, meters, megakernel_part) = (key.clone(), Meters::default(), None);
                    Box::new(CompileTask { key, operator, dry_launches, megakernel_part, meters, goal })
                });
                let optimization = self.cache.lock().compiled(&key, optimization);
                // Without a thread the program stays as it is.
                optimization.into_iter().for_each(|task| _ = self.background.push(self, *task));
            }
            Err(error) => {
                self.loss.check(error);
                if is_background {
                    self.cache.lock().failed.insert(key.clone());
                }
                let failed = self.cache.lock().fail(&key, is_background);
                drop(failed);
            }
        }
        if !is_background {
            self.background.note_request();
        }
        // The send fails if all futures were dropped.
        _ = result.send(made);
    }

    /// Whether programs in a first tier are compiled as megakernels. All arguments of these need
    /// addresses.
    fn has_megakernels(&self) -> bool {
        self.tiers.is_some() && self.driver.info().unified_memory && !self.is_for_tools()
    }

    /// Whether programs with these options are compiled as megakernels.
    pub(super) fn takes_megakernels(&self, options: &[String]) -> bool {
        self.has_megakernels() && self.tiers.as_ref().is_some_and(|tiers| tiers.is_first(options))
    }

    /// Whether a tool dumps or loads programs. Then these have one form.
    fn is_for_tools(&self) -> bool {
        self.folders.load.is_some() || self.folders.dump.is_some()
    }

    /// The first tier of a program; `None` if it is optimized already, or has one tier only.
    pub(super) fn first_tier(&self, task: &CompileTask) -> Option<ProgramKey> {
        // - Sources without dry launches are not those of operators.
        // - Runs that follow a preparation wait for few programs, and are often repeated at once.
        let has_tiers = !task.dry_launches.is_empty() && !self.is_for_tools() && !self.has_prepared.load(Relaxed);
        self.tiers.as_ref().filter(|_| has_tiers)?.first(&task.key)
    }

    /// Optimizes a program and makes its machine code. Later launches of `first` use it.
    fn optimize(&self, CompileTask { key, operator, dry_launches, .. }: &CompileTask, first: &Weak<Program>) {
        let Some(first) = first.upgrade() else { return };
        let start = Instant::now();
        let optimized = self.guarded(|| {
            let (loaded, is_compiled) = self.get_or_compile(key, operator)?;
            let counter = if is_compiled { &self.counters.programs_optimized } else { &self.counters.cache_hits_disk };
            counter.fetch_add(1, Relaxed);
            let program = self.program(loaded, None);
            self.dry_launch(&program, dry_launches, true)?;
            self.tiers.iter().for_each(|tiers| tiers.note_optimized(key));
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
    pub(super) fn guarded<T>(&self, make: impl FnOnce() -> Result<T>) -> Result<T> {
        catch_unwind(AssertUnwindSafe(make)).unwrap_or(Err(Error::Interrupted("a compilation")))
    }

    /// Makes the machine code of a program. In the background, queries that begin meanwhile come
    /// first.
    pub(super) fn dry_launch(&self, program: &Program, dry_launches: &[DryLaunch], is_background: bool) -> Result<()> {
        let mut elapsed = Duration::ZERO;
        for kernel in program.dry_launches(dry_launches).as_ref() {
            if is_background {
                self.background.pause(elapsed);
            }
            let start = Instant::now();
            program.dry_launch(kernel)?;
            elapsed = start.elapsed();
        }
        Ok(())
    }

    /// Loads a program or compiles it; whether it was compiled. Leaves its source in the folder of
    /// `DEVICEFUSION_DUMP_KERNELS`.
    pub(super) fn get_or_compile(&self, key: &ProgramKey, operator: &str) -> Result<(Arc<LoadedProgram>, bool)> {
        let program = self.load_or_compile(key, operator)?;
        if let Some(Err(error)) = self.folders.sources.as_ref().map(|folder| folder.put(&key.0)) {
            self.log_line(&format!("DEVICEFUSION_DUMP_KERNELS: {error}"));
        }
        Ok(program)
    }

    fn load_or_compile(&self, (source, options): &ProgramKey, operator: &str) -> Result<(Arc<LoadedProgram>, bool)> {
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
            self.log_program(operator, origin, start.elapsed());
            self.dump(source, options, &image);
            return Ok((LoadedProgram::new(&self.driver, raw), false));
        }
        let image = self.driver.compile(source, options).map_err(|error| match error {
            Error::CompileFailed { device, kernel_source, log, .. } => {
                let (operator, options) = (operator.to_owned(), self.options.join(" ").into());
                Error::CompileFailed { device, operator, kernel_source, options, log }
            }
            other => other,
        })?;
        let raw = self.driver.load(&image)?;
        if let Some(cache) = &self.folders.cache {
            cache.put_within(DeviceConfig::CACHE_BYTES, source, options, &image);
        }
        self.log_program(operator, "compiled", start.elapsed());
        self.dump(source, options, &image);
        Ok((LoadedProgram::new(&self.driver, raw), true))
    }

    /// Leaves a program in the folder `device.dump_programs`. A failed write is only logged.
    fn dump(&self, source: &str, options: &[String], image: &[u8]) {
        if let Some(Err(error)) = self.folders.dump.as_ref().map(|folder| folder.put(source, options, image)) {
            self.log_line(&format!("device.dump_programs: {error}"));
        }
    }

    pub(super) fn program(&self, loaded: Arc<LoadedProgram>, names: Option<MegakernelNames>) -> Arc<Program> {
        Program::new(loaded, names, &self.counters, &self.loss)
    }

    fn remove(&self, key: &ProgramKey) {
        // Dropped without the lock.
        let removed = self.cache.lock().programs.remove(key);
        drop(removed);
    }

    fn log_program(&self, operator: &str, origin: &str, time: Duration) {
        self.log_line(&format!("program of {operator}: {origin} in {:.1} ms", time.as_secs_f64() * 1e3));
    }

    pub(super) fn log_line(&self, line: &str) {
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
    /// A known program, which a run needs now.
    fn request(&mut self, key: &ProgramKey) -> Option<Request> {
        let is_compiled = self.is_compiled(key)?;
        let cached = self.programs.get_mut(key)?;
        let is_first = !std::mem::replace(&mut cached.is_requested, true);
        let (program, optimization) = (cached.program.clone(), cached.optimization.take());
        self.forget_failure(key);
        Some(Request { program, is_compiled, is_first, optimization })
    }

    /// Forgets a program that has failed before a run asked for it.
    fn forget_failure(&mut self, key: &ProgramKey) {
        if self.programs.get(key).is_some_and(|cached| cached.has_failed) {
            self.programs.remove(key);
        }
    }

    /// Whether a known program is compiled.
    fn is_compiled(&mut self, key: &ProgramKey) -> Option<bool> {
        self.clock += 1;
        let cached = self.programs.get_mut(key)?;
        cached.used = self.clock;
        Some(cached.is_compiled)
    }

    /// Forgets a program that has failed, so that the next request compiles it again. If none has
    /// asked for it yet, the first one gets the failure.
    #[must_use = "it is dropped without the lock"]
    fn fail(&mut self, key: &ProgramKey, is_background: bool) -> Option<CachedProgram> {
        match self.programs.get_mut(key) {
            Some(cached) if !cached.is_requested && !is_background => {
                cached.has_failed = true;
                None
            }
            _ => self.programs.remove(key),
        }
    }

    /// Adds a program, and the task that compiles it.
    fn insert(&mut self, key: ProgramKey, source: ProgramSource, meters: Meters) -> (CompileTask, ProgramFuture) {
        let (sender, receiver) = oneshot::channel();
        let gone = Error::Interrupted("the thread of a compilation");
        let program = receiver.map(|result| result.unwrap_or(Err(gone))).boxed().shared();
        let (is_compiled, is_requested, has_failed, optimization) = Default::default();
        let (of_cache, used) = (program.clone(), self.clock);
        let cached = CachedProgram { program: of_cache, is_compiled, is_requested, has_failed, optimization, used };
        self.programs.insert(key.clone(), cached);
        self.evict();
        let ProgramSource { operator, dry_launches, megakernel_part, .. } = source;
        let goal = CompileGoal::Program(sender);
        (CompileTask { key, operator, dry_launches, megakernel_part, meters, goal }, program)
    }

    /// Notes that a program is compiled. Returns its optimization, or keeps that for a request.
    fn compiled(&mut self, key: &ProgramKey, optimization: Option<Box<CompileTask>>) -> Option<Box<CompileTask>> {
        let Some(cached) = self.programs.get_mut(key) else { return optimization };
        (cached.is_compiled, cached.has_failed) = (true, false);
        if cached.is_requested {
            return optimization;
        }
        cached.optimization = optimization;
        None
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
