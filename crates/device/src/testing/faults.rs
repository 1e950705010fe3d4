// SPDX-License-Identifier: Apache-2.0
//! A driver that fails on demand, around the real driver, and the plan of its failures.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering::SeqCst};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::config::Wrap;
use crate::driver::{
    Driver, FirstTier, ForeignMemory, Grid, Memory, NativeHandles, Parameter, RawArg, RawEvent, RawKernel, RawProgram, RawQueue,
    Timer,
};
use crate::info::DeviceInfo;
use crate::{Error, Result, Traffic};

/// The failing calls of a context under test, and the capabilities that its device lacks. Clones
/// share the plan.
///
/// Driver calls are counted from 1, over all contexts of the plan. A pool or a cache may save
/// calls.
#[derive(Clone, Default)]
pub struct FaultPlan(Arc<Plan>);

/// Changes the capabilities of the device.
type Mask = Box<dyn Fn(&mut DeviceInfo) + Send + Sync>;

#[derive(Default)]
struct Plan {
    allocs: Countdown,
    launches: Countdown,
    compiles: Countdown,
    copies: Countdown,
    waits: Countdown,
    queues: Countdown,
    records: Countdown,
    mask: Mutex<Option<Mask>>,
    /// The count of device losses. Contexts made before the last one fail for ever.
    losses: AtomicU64,
    /// Whether programs have the tiers of the driver.
    has_tiers: AtomicBool,
    live: LiveCounts,
}

/// Counts calls of one kind, and decides which of them fail.
#[derive(Default)]
struct Countdown {
    calls: AtomicU64,
    /// Calls up to the first failure, and the count of failures from then on.
    armed: Mutex<(u64, u64)>,
}

impl Countdown {
    /// Lets `times` calls fail from the nth on.
    fn arm(&self, n: u64, times: u64) {
        *self.armed.lock() = (n, if n == 0 { 0 } else { times });
    }

    /// Counts a call and returns whether it fails.
    fn fails(&self) -> bool {
        self.calls.fetch_add(1, SeqCst);
        let (left, times) = &mut *self.armed.lock();
        let fails = *left <= 1 && *times > 0;
        *left = left.saturating_sub(1);
        *times -= u64::from(fails);
        fails
    }
}

/// The kinds of call that can fail.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// Allocating memory.
    Alloc,
    /// Launching a kernel.
    Launch,
    /// Compiling a program.
    Compile,
    /// Copying or filling memory.
    Copy,
    /// Waiting for work: it has completed, but is reported as failed.
    Wait,
    /// Creating a queue.
    Queue,
    /// Recording an event.
    Record,
}

#[derive(Default)]
struct LiveCounts {
    allocations: AtomicI64,
    pinned: AtomicI64,
    queues: AtomicI64,
    events: AtomicI64,
    programs: AtomicI64,
    drivers: AtomicI64,
}

/// Counts of driver objects that have not been freed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Live {
    /// Allocations of device memory, including a pool's free lists and imported host memory.
    pub allocations: i64,
    /// Blocks of pinned host memory.
    pub pinned: i64,
    /// Queues.
    pub queues: i64,
    /// Events.
    pub events: i64,
    /// Programs.
    pub programs: i64,
    /// Drivers, one for each context that is not completely freed.
    pub drivers: i64,
}

impl fmt::Debug for FaultPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FaultPlan").field("live", &self.live()).finish_non_exhaustive()
    }
}

impl FaultPlan {
    /// A plan without failures.
    pub fn new() -> Self {
        Self::default()
    }

    /// A plan that changes the reported capabilities. A capability that is masked out is not used:
    /// without unified memory, data is copied.
    pub fn masking(mask: impl Fn(&mut DeviceInfo) + Send + Sync + 'static) -> Self {
        let plan = Self::default();
        *plan.0.mask.lock() = Some(Box::new(mask));
        plan
    }

    /// For [`DeviceConfig::with_wrap`](crate::DeviceConfig::with_wrap).
    pub fn wrap(&self) -> Wrap {
        let plan = Arc::clone(&self.0);
        Arc::new(move |driver| {
            let mut info = driver.info().clone();
            if let Some(mask) = &*plan.mask.lock() {
                mask(&mut info);
            }
            plan.live.drivers.fetch_add(1, SeqCst);
            Arc::new(FaultyDriver { driver, info, made_after: plan.losses.load(SeqCst), plan: Arc::clone(&plan) })
        })
    }

    /// The nth allocation from now on fails, also the pool's retry; 0 for none.
    pub fn fail_alloc(&self, n: u64) {
        self.fail(Fault::Alloc, n, 2);
    }

    /// The nth launch from now on fails; 0 for none.
    pub fn fail_launch(&self, n: u64) {
        self.fail(Fault::Launch, n, 1);
    }

    /// The nth compilation from now on fails; 0 for none.
    pub fn fail_compile(&self, n: u64) {
        self.fail(Fault::Compile, n, 1);
    }

    /// Gives programs the tiers of the driver. Without them no compilation in the background takes
    /// the fault that a query is to meet.
    pub fn with_tiers(self) -> Self {
        self.0.has_tiers.store(true, SeqCst);
        self
    }

    /// The nth copy or fill from now on fails; 0 for none.
    pub fn fail_copy(&self, n: u64) {
        self.fail(Fault::Copy, n, 1);
    }

    /// `times` calls of a kind fail, from the nth from now on; `u64::MAX` for all.
    pub fn fail(&self, fault: Fault, n: u64, times: u64) {
        self.countdown(fault).arm(n, times);
    }

    /// From now on every call of existing contexts fails, as after the loss of the device. Contexts
    /// made later work.
    pub fn lose_device(&self) {
        self.0.losses.fetch_add(1, SeqCst);
    }

    /// Clears all faults. Contexts that have lost their device stay lost.
    pub fn heal(&self) {
        for fault in [Fault::Alloc, Fault::Launch, Fault::Compile, Fault::Copy, Fault::Wait, Fault::Queue, Fault::Record] {
            self.fail(fault, 0, 0);
        }
    }

    /// The count of calls of a kind, including failed ones.
    pub fn calls(&self, fault: Fault) -> u64 {
        self.countdown(fault).calls.load(SeqCst)
    }

    /// The live driver objects.
    pub fn live(&self) -> Live {
        let live = &self.0.live;
        Live {
            allocations: live.allocations.load(SeqCst),
            pinned: live.pinned.load(SeqCst),
            queues: live.queues.load(SeqCst),
            events: live.events.load(SeqCst),
            programs: live.programs.load(SeqCst),
            drivers: live.drivers.load(SeqCst),
        }
    }

    /// Waits until all driver objects are freed: this includes the end of running work.
    ///
    /// # Errors
    /// The objects that are alive after `timeout`.
    pub fn wait_until_nothing_is_alive(&self, timeout: Duration) -> std::result::Result<(), String> {
        let start = Instant::now();
        while self.live() != Live::default() {
            if start.elapsed() > timeout {
                return Err(format!("still alive: {:?}", self.live()));
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(())
    }

    fn countdown(&self, fault: Fault) -> &Countdown {
        match fault {
            Fault::Alloc => &self.0.allocs,
            Fault::Launch => &self.0.launches,
            Fault::Compile => &self.0.compiles,
            Fault::Copy => &self.0.copies,
            Fault::Wait => &self.0.waits,
            Fault::Queue => &self.0.queues,
            Fault::Record => &self.0.records,
        }
    }
}

/// A driver around the real driver that fails as planned.
struct FaultyDriver {
    driver: Arc<dyn Driver>,
    info: DeviceInfo,
    /// The count of losses when this driver was made.
    made_after: u64,
    plan: Arc<Plan>,
}

impl Drop for FaultyDriver {
    fn drop(&mut self) {
        self.plan.live.drivers.fetch_sub(1, SeqCst);
    }
}

impl fmt::Debug for FaultyDriver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("FaultyDriver").field(&self.driver).finish()
    }
}

impl FaultyDriver {
    /// Fails if the device is lost.
    fn check_device(&self, call: &'static str) -> Result<()> {
        if self.made_after == self.plan.losses.load(SeqCst) {
            return Ok(());
        }
        let name = "a fault that a test injected: the context is lost";
        Err(Error::driver_lost(self.info.label(), call, -1, name))
    }

    fn injected(&self, call: &'static str) -> Error {
        Error::driver(self.info.label(), call, -1, "a fault that a test injected")
    }

    fn check_copy(&self, call: &'static str) -> Result<()> {
        self.check_device(call)?;
        if self.plan.copies.fails() { Err(self.injected(call)) } else { Ok(()) }
    }
}

/// Counts a new driver object.
fn count_created<T>(counter: &AtomicI64, result: Result<T>) -> Result<T> {
    result.inspect(|_| _ = counter.fetch_add(1, SeqCst))
}

fn count_freed(counter: &AtomicI64) {
    counter.fetch_sub(1, SeqCst);
}

// Every handle is passed on unchanged, so each SAFETY comment below names only the promise.
impl Driver for FaultyDriver {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn native(&self) -> NativeHandles {
        self.driver.native()
    }

    fn alloc(&self, bytes: usize) -> Result<Memory> {
        self.check_device("alloc")?;
        if self.plan.allocs.fails() {
            return Err(Error::driver_out_of_memory(self.info.label(), bytes));
        }
        let mut memory = count_created(&self.plan.live.allocations, self.driver.alloc(bytes))?;
        if !self.info.unified_memory {
            memory.host = 0;
        }
        Ok(memory)
    }

    fn address(&self, memory: Memory) -> Option<u64> {
        self.driver.address(memory)
    }

    unsafe fn import_host(&self, host: usize, bytes: usize) -> Result<Option<Memory>> {
        if !self.info.unified_memory {
            return Ok(None);
        }
        self.check_device("import_host")?;
        // SAFETY: the caller's promise.
        let memory = unsafe { self.driver.import_host(host, bytes) }?;
        Ok(memory.inspect(|_| _ = self.plan.live.allocations.fetch_add(1, SeqCst)))
    }

    unsafe fn adopt(&self, handle: u64) -> Result<ForeignMemory> {
        self.check_device("adopt")?;
        // SAFETY: the caller's promise.
        let mut foreign = unsafe { self.driver.adopt(handle) }?;
        if let ForeignMemory::InPlace(memory) = &mut foreign
            && !self.info.unified_memory
        {
            memory.host = 0;
        }
        Ok(foreign)
    }

    unsafe fn read_foreign(&self, handle: u64, to: usize, bytes: usize) -> Result<()> {
        self.check_copy("read_foreign")?;
        // SAFETY: the caller's promise.
        unsafe { self.driver.read_foreign(handle, to, bytes) }
    }

    unsafe fn can_wait_on(&self, event: RawEvent) -> Result<bool> {
        self.check_device("can_wait_on")?;
        // SAFETY: the caller's promise.
        unsafe { self.driver.can_wait_on(event) }
    }

    unsafe fn free(&self, memory: Memory) {
        // SAFETY: the caller's promise.
        unsafe { self.driver.free(memory) };
        count_freed(&self.plan.live.allocations);
    }

    fn alloc_pinned(&self, bytes: usize) -> Result<usize> {
        self.check_device("alloc_pinned")?;
        if self.plan.allocs.fails() {
            return Err(Error::driver_out_of_memory(self.info.label(), bytes));
        }
        count_created(&self.plan.live.pinned, self.driver.alloc_pinned(bytes))
    }

    unsafe fn free_pinned(&self, host: usize, bytes: usize) {
        // SAFETY: the caller's promise.
        unsafe { self.driver.free_pinned(host, bytes) };
        count_freed(&self.plan.live.pinned);
    }

    fn create_queue(&self) -> Result<RawQueue> {
        self.check_device("create_queue")?;
        if self.plan.queues.fails() {
            return Err(self.injected("create_queue"));
        }
        count_created(&self.plan.live.queues, self.driver.create_queue())
    }

    fn create_library_queue(&self, profiling: bool) -> Result<RawQueue> {
        self.check_device("create_library_queue")?;
        if self.plan.queues.fails() {
            return Err(self.injected("create_library_queue"));
        }
        self.driver.create_library_queue(profiling)
    }

    unsafe fn release_library_queue(&self, queue: RawQueue) {
        // SAFETY: the caller's promise.
        unsafe { self.driver.release_library_queue(queue) };
    }

    unsafe fn context_of(&self, handle: u64) -> Result<u64> {
        // SAFETY: the caller's promise.
        unsafe { self.driver.context_of(handle) }
    }

    unsafe fn alloc_in(&self, context: u64, bytes: usize) -> Result<Memory> {
        // SAFETY: the caller's promise.
        unsafe { self.driver.alloc_in(context, bytes) }
    }

    unsafe fn free_in(&self, context: u64, memory: Memory) {
        // SAFETY: the caller's promise.
        unsafe { self.driver.free_in(context, memory) };
    }

    unsafe fn copy_between_contexts(&self, queue: RawQueue, from: u64, to: u64, bytes: usize) -> Result<()> {
        // SAFETY: the caller's promise.
        unsafe { self.driver.copy_between_contexts(queue, from, to, bytes) }
    }

    unsafe fn destroy_queue(&self, queue: RawQueue) {
        // SAFETY: the caller's promise.
        unsafe { self.driver.destroy_queue(queue) };
        count_freed(&self.plan.live.queues);
    }

    unsafe fn flush(&self, queue: RawQueue) -> Result<()> {
        // SAFETY: the caller's promise.
        unsafe { self.driver.flush(queue) }?;
        // Checked after the flush: the real device must complete the work that a thread waits for.
        self.check_device("flush")
    }

    unsafe fn upload(&self, queue: RawQueue, from: usize, to: Memory, offset: usize, bytes: usize) -> Result<()> {
        self.check_copy("upload")?;
        // SAFETY: the caller's promise.
        unsafe { self.driver.upload(queue, from, to, offset, bytes) }
    }

    unsafe fn download(&self, queue: RawQueue, from: Memory, offset: usize, to: usize, bytes: usize) -> Result<()> {
        self.check_copy("download")?;
        // SAFETY: the caller's promise.
        unsafe { self.driver.download(queue, from, offset, to, bytes) }
    }

    unsafe fn copy(
        &self,
        queue: RawQueue,
        from: Memory,
        from_offset: usize,
        to: Memory,
        to_offset: usize,
        bytes: usize,
    ) -> Result<()> {
        self.check_copy("copy")?;
        // SAFETY: the caller's promise.
        unsafe { self.driver.copy(queue, from, from_offset, to, to_offset, bytes) }
    }

    unsafe fn fill(&self, queue: RawQueue, to: Memory, offset: usize, bytes: usize, value: u8) -> Result<()> {
        self.check_copy("fill")?;
        // SAFETY: the caller's promise.
        unsafe { self.driver.fill(queue, to, offset, bytes, value) }
    }

    unsafe fn launch(
        &self,
        queue: RawQueue,
        kernel: RawKernel,
        grid: Grid,
        args: &[RawArg<'_>],
        timed: bool,
    ) -> Result<Option<Timer>> {
        self.check_device("launch")?;
        if self.plan.launches.fails() {
            return Err(self.injected("launch"));
        }
        // SAFETY: the caller's promise.
        let timer = unsafe { self.driver.launch(queue, kernel, grid, args, timed) }?;
        Ok(timer.inspect(|timer| timer.events().for_each(|_| _ = self.plan.live.events.fetch_add(1, SeqCst))))
    }

    unsafe fn dry_launch(&self, kernel: RawKernel, parameters: &[Parameter]) -> Result<()> {
        self.check_device("dry launch")?;
        // SAFETY: the caller's promise.
        unsafe { self.driver.dry_launch(kernel, parameters) }
    }

    unsafe fn record(&self, queue: RawQueue) -> Result<RawEvent> {
        self.check_device("record")?;
        if self.plan.records.fails() {
            return Err(self.injected("record"));
        }
        // SAFETY: the caller's promise.
        count_created(&self.plan.live.events, unsafe { self.driver.record(queue) })
    }

    unsafe fn wait_on(&self, queue: RawQueue, event: RawEvent) -> Result<()> {
        self.check_device("wait_on")?;
        // SAFETY: the caller's promise.
        unsafe { self.driver.wait_on(queue, event) }
    }

    unsafe fn is_done(&self, event: RawEvent) -> Result<bool> {
        self.check_device("is_done")?;
        // SAFETY: the caller's promise.
        unsafe { self.driver.is_done(event) }
    }

    unsafe fn wait(&self, event: RawEvent) -> Result<()> {
        // SAFETY: the caller's promise.
        unsafe { self.driver.wait(event) }?;
        self.check_device("wait")?;
        if self.plan.waits.fails() { Err(self.injected("wait")) } else { Ok(()) }
    }

    unsafe fn read_timer(&self, timer: Timer) -> Result<Range<u64>> {
        // SAFETY: the caller's promise.
        let times = unsafe { self.driver.read_timer(timer) };
        timer.events().for_each(|_| count_freed(&self.plan.live.events));
        self.check_device("read_timer").and(times)
    }

    unsafe fn read_traffic(&self, timer: Timer) -> Option<Traffic> {
        // SAFETY: the caller's promise.
        unsafe { self.driver.read_traffic(timer) }
    }

    unsafe fn destroy_event(&self, event: RawEvent) {
        // SAFETY: the caller's promise.
        unsafe { self.driver.destroy_event(event) };
        count_freed(&self.plan.live.events);
    }

    fn compiler(&self) -> String {
        self.driver.compiler()
    }

    fn options_against_optimization(&self) -> &'static [&'static str] {
        self.driver.options_against_optimization()
    }

    fn first_tier(&self) -> Option<FirstTier> {
        self.driver.first_tier().filter(|_| self.plan.has_tiers.load(SeqCst))
    }

    fn compile(&self, source: &str, options: &[String]) -> Result<Vec<u8>> {
        self.check_device("compile")?;
        if self.plan.compiles.fails() {
            let log = "a fault that a test injected".to_owned();
            let (operator, options) = (String::new(), "".into());
            return Err(Error::CompileFailed { device: self.info.label(), operator, kernel_source: source.into(), options, log });
        }
        self.driver.compile(source, options)
    }

    fn load(&self, image: &[u8]) -> Result<RawProgram> {
        self.check_device("load")?;
        count_created(&self.plan.live.programs, self.driver.load(image))
    }

    unsafe fn unload(&self, program: RawProgram) {
        // SAFETY: the caller's promise.
        unsafe { self.driver.unload(program) };
        count_freed(&self.plan.live.programs);
    }

    unsafe fn kernel(&self, program: RawProgram, name: &str) -> Result<RawKernel> {
        self.check_device("kernel")?;
        // SAFETY: the caller's promise.
        unsafe { self.driver.kernel(program, name) }
    }
}
