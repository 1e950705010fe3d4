// SPDX-License-Identifier: Apache-2.0
//! The driver around the driver, and the plan of what it does not manage.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering::SeqCst};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::config::Wrap;
use crate::driver::{Driver, Foreign, Grid, Memory, Native, RawArg, RawEvent, RawKernel, RawProgram, RawQueue, Timer};
use crate::{DeviceInfo, Error, Result};

/// What a context under test shall not manage, and what it has. A handle: clones share the plan.
///
/// Calls of the driver are counted, from 1 and over all contexts of the plan: what a pool or a cache has
/// already is not asked of the driver again.
#[derive(Clone, Default)]
pub struct FaultPlan(Arc<Plan>);

/// The capabilities that a plan changes.
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
    /// How often the device was lost: contexts made before the last time fail for good.
    losses: AtomicU64,
    live: LiveCounts,
}

/// Counts calls of one kind and says which of them fail.
#[derive(Default)]
struct Countdown {
    calls: AtomicU64,
    /// Calls up to the first that fails, and how many fail from then on.
    armed: Mutex<(u64, u64)>,
}

impl Countdown {
    /// Lets `times` calls fail from the nth on.
    fn arm(&self, n: u64, times: u64) {
        *self.armed.lock() = (n, if n == 0 { 0 } else { times });
    }

    /// Counts a call; whether it fails.
    fn fails(&self) -> bool {
        self.calls.fetch_add(1, SeqCst);
        let (left, times) = &mut *self.armed.lock();
        let fails = *left <= 1 && *times > 0;
        *left = left.saturating_sub(1);
        *times -= u64::from(fails);
        fails
    }
}

/// The kinds of call that can be made to fail.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// Asking the driver for memory.
    Alloc,
    /// Launching a kernel.
    Launch,
    /// Compiling a program.
    Compile,
    /// Copying or filling memory.
    Copy,
    /// Waiting for work: it has completed, and is said to have failed.
    Wait,
    /// Asking the driver for a queue.
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

/// Things of the driver that have not been freed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Live {
    /// Allocations of device memory, those in a pool's free lists and imported host memory included.
    pub allocations: i64,
    /// Pieces of pinned host memory.
    pub pinned: i64,
    /// Queues.
    pub queues: i64,
    /// Events.
    pub events: i64,
    /// Programs.
    pub programs: i64,
    /// Drivers, that is contexts of which something is left.
    pub drivers: i64,
}

impl fmt::Debug for FaultPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FaultPlan").field("live", &self.live()).finish_non_exhaustive()
    }
}

impl FaultPlan {
    /// A plan under which nothing fails.
    pub fn new() -> Self {
        Self::default()
    }

    /// A plan that changes what the device claims to be able to. What it claims no longer is not used:
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
            Arc::new(Faulty { driver, info, made_after: plan.losses.load(SeqCst), plan: Arc::clone(&plan) })
        })
    }

    /// The nth allocation from now on fails, also when the pool asks a second time; 0 for none.
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

    /// The nth copy or fill from now on fails; 0 for none.
    pub fn fail_copy(&self, n: u64) {
        self.fail(Fault::Copy, n, 1);
    }

    /// `times` calls of a kind fail, from the nth from now on; `u64::MAX` for all.
    pub fn fail(&self, fault: Fault, n: u64, times: u64) {
        self.countdown(fault).arm(n, times);
    }

    /// From now on every call fails as after a fault that costs a context its device; contexts made later work.
    pub fn lose_device(&self) {
        self.0.losses.fetch_add(1, SeqCst);
    }

    /// Nothing fails any more, but for contexts that have lost their device.
    pub fn heal(&self) {
        for fault in [Fault::Alloc, Fault::Launch, Fault::Compile, Fault::Copy, Fault::Wait, Fault::Queue, Fault::Record] {
            self.fail(fault, 0, 0);
        }
    }

    /// How many calls of a kind there have been, failed ones included.
    pub fn calls(&self, fault: Fault) -> u64 {
        self.countdown(fault).calls.load(SeqCst)
    }

    /// What is alive.
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

    /// Waits until everything of the driver has been freed, which takes as long as the work under way.
    ///
    /// # Errors
    /// What is still alive after `timeout`.
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

/// The driver around the driver.
struct Faulty {
    driver: Arc<dyn Driver>,
    info: DeviceInfo,
    /// Losses before this driver was made.
    made_after: u64,
    plan: Arc<Plan>,
}

impl Drop for Faulty {
    fn drop(&mut self) {
        self.plan.live.drivers.fetch_sub(1, SeqCst);
    }
}

impl fmt::Debug for Faulty {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Faulty").field(&self.driver).finish()
    }
}

impl Faulty {
    /// Fails where the device is lost. Only CUDA's contexts can lose theirs, so the error is one of CUDA's.
    fn present(&self, call: &'static str) -> Result<()> {
        const ILLEGAL_ADDRESS: i32 = 700;
        if self.made_after == self.plan.losses.load(SeqCst) {
            return Ok(());
        }
        Err(Error::driver("cuda:0", call, ILLEGAL_ADDRESS, "a fault that a test injected: the context is lost"))
    }

    fn injected(&self, call: &'static str) -> Error {
        Error::driver(self.info.label(), call, -1, "a fault that a test injected")
    }

    fn copying(&self, call: &'static str) -> Result<()> {
        self.present(call)?;
        if self.plan.copies.fails() { Err(self.injected(call)) } else { Ok(()) }
    }
}

/// Counts a result that came to be.
fn born<T>(counter: &AtomicI64, result: Result<T>) -> Result<T> {
    result.inspect(|_| _ = counter.fetch_add(1, SeqCst))
}

fn died(counter: &AtomicI64) {
    counter.fetch_sub(1, SeqCst);
}

// SAFETY comments below say only who promises: every handle goes through unchanged.
impl Driver for Faulty {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn native(&self) -> Native {
        self.driver.native()
    }

    fn alloc(&self, bytes: usize) -> Result<Memory> {
        self.present("alloc")?;
        if self.plan.allocs.fails() {
            return Err(Error::driver_out_of_memory(self.info.label(), bytes));
        }
        let mut memory = born(&self.plan.live.allocations, self.driver.alloc(bytes))?;
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
        self.present("import_host")?;
        // SAFETY: the caller's promise.
        let memory = unsafe { self.driver.import_host(host, bytes) }?;
        Ok(memory.inspect(|_| _ = self.plan.live.allocations.fetch_add(1, SeqCst)))
    }

    unsafe fn adopt(&self, handle: u64) -> Result<Foreign> {
        self.present("adopt")?;
        // SAFETY: the caller's promise.
        let mut foreign = unsafe { self.driver.adopt(handle) }?;
        if let Foreign::InPlace(memory) = &mut foreign
            && !self.info.unified_memory
        {
            memory.host = 0;
        }
        Ok(foreign)
    }

    unsafe fn fetch(&self, handle: u64, to: usize, bytes: usize) -> Result<()> {
        self.copying("fetch")?;
        // SAFETY: the caller's promise.
        unsafe { self.driver.fetch(handle, to, bytes) }
    }

    unsafe fn takes_event(&self, event: RawEvent) -> Result<bool> {
        self.present("takes_event")?;
        // SAFETY: the caller's promise.
        unsafe { self.driver.takes_event(event) }
    }

    unsafe fn free(&self, memory: Memory) {
        // SAFETY: the caller's promise.
        unsafe { self.driver.free(memory) };
        died(&self.plan.live.allocations);
    }

    fn alloc_pinned(&self, bytes: usize) -> Result<usize> {
        self.present("alloc_pinned")?;
        if self.plan.allocs.fails() {
            return Err(Error::driver_out_of_memory(self.info.label(), bytes));
        }
        born(&self.plan.live.pinned, self.driver.alloc_pinned(bytes))
    }

    unsafe fn free_pinned(&self, host: usize, bytes: usize) {
        // SAFETY: the caller's promise.
        unsafe { self.driver.free_pinned(host, bytes) };
        died(&self.plan.live.pinned);
    }

    fn create_queue(&self) -> Result<RawQueue> {
        self.present("create_queue")?;
        if self.plan.queues.fails() {
            return Err(self.injected("create_queue"));
        }
        born(&self.plan.live.queues, self.driver.create_queue())
    }

    fn lend_queue(&self, profiling: bool) -> Result<RawQueue> {
        self.present("lend_queue")?;
        if self.plan.queues.fails() {
            return Err(self.injected("lend_queue"));
        }
        self.driver.lend_queue(profiling)
    }

    unsafe fn take_back_queue(&self, queue: RawQueue) {
        // SAFETY: the caller's promise.
        unsafe { self.driver.take_back_queue(queue) };
    }

    unsafe fn neighbour_of(&self, handle: u64) -> Result<u64> {
        // SAFETY: the caller's promise.
        unsafe { self.driver.neighbour_of(handle) }
    }

    unsafe fn alloc_in(&self, context: u64, bytes: usize) -> Result<Memory> {
        // SAFETY: the caller's promise.
        unsafe { self.driver.alloc_in(context, bytes) }
    }

    unsafe fn free_in(&self, context: u64, memory: Memory) {
        // SAFETY: the caller's promise.
        unsafe { self.driver.free_in(context, memory) };
    }

    unsafe fn copy_between(&self, queue: RawQueue, from: u64, to: u64, bytes: usize) -> Result<()> {
        // SAFETY: the caller's promise.
        unsafe { self.driver.copy_between(queue, from, to, bytes) }
    }

    unsafe fn destroy_queue(&self, queue: RawQueue) {
        // SAFETY: the caller's promise.
        unsafe { self.driver.destroy_queue(queue) };
        died(&self.plan.live.queues);
    }

    unsafe fn flush(&self, queue: RawQueue) -> Result<()> {
        // SAFETY: the caller's promise.
        unsafe { self.driver.flush(queue) }?;
        // Only now: a thread waits for what was enqueued, and the device itself is well.
        self.present("flush")
    }

    unsafe fn upload(&self, queue: RawQueue, from: usize, to: Memory, offset: usize, bytes: usize) -> Result<()> {
        self.copying("upload")?;
        // SAFETY: the caller's promise.
        unsafe { self.driver.upload(queue, from, to, offset, bytes) }
    }

    unsafe fn download(&self, queue: RawQueue, from: Memory, offset: usize, to: usize, bytes: usize) -> Result<()> {
        self.copying("download")?;
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
        self.copying("copy")?;
        // SAFETY: the caller's promise.
        unsafe { self.driver.copy(queue, from, from_offset, to, to_offset, bytes) }
    }

    unsafe fn fill(&self, queue: RawQueue, to: Memory, offset: usize, bytes: usize, value: u8) -> Result<()> {
        self.copying("fill")?;
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
        self.present("launch")?;
        if self.plan.launches.fails() {
            return Err(self.injected("launch"));
        }
        // SAFETY: the caller's promise.
        let timer = unsafe { self.driver.launch(queue, kernel, grid, args, timed) }?;
        Ok(timer.inspect(|timer| timer.events().for_each(|_| _ = self.plan.live.events.fetch_add(1, SeqCst))))
    }

    unsafe fn record(&self, queue: RawQueue) -> Result<RawEvent> {
        self.present("record")?;
        if self.plan.records.fails() {
            return Err(self.injected("record"));
        }
        // SAFETY: the caller's promise.
        born(&self.plan.live.events, unsafe { self.driver.record(queue) })
    }

    unsafe fn wait_on(&self, queue: RawQueue, event: RawEvent) -> Result<()> {
        self.present("wait_on")?;
        // SAFETY: the caller's promise.
        unsafe { self.driver.wait_on(queue, event) }
    }

    unsafe fn is_done(&self, event: RawEvent) -> Result<bool> {
        self.present("is_done")?;
        // SAFETY: the caller's promise.
        unsafe { self.driver.is_done(event) }
    }

    unsafe fn wait(&self, event: RawEvent) -> Result<()> {
        // SAFETY: the caller's promise.
        unsafe { self.driver.wait(event) }?;
        self.present("wait")?;
        if self.plan.waits.fails() { Err(self.injected("wait")) } else { Ok(()) }
    }

    unsafe fn read_timer(&self, timer: Timer) -> Result<Range<u64>> {
        // SAFETY: the caller's promise.
        let times = unsafe { self.driver.read_timer(timer) };
        timer.events().for_each(|_| died(&self.plan.live.events));
        self.present("read_timer").and(times)
    }

    unsafe fn destroy_event(&self, event: RawEvent) {
        // SAFETY: the caller's promise.
        unsafe { self.driver.destroy_event(event) };
        died(&self.plan.live.events);
    }

    fn compiler(&self) -> String {
        self.driver.compiler()
    }

    fn compile(&self, text: &str, options: &[String]) -> Result<Vec<u8>> {
        self.present("compile")?;
        if self.plan.compiles.fails() {
            let log = "a fault that a test injected".to_owned();
            let (operator, options) = (String::new(), "".into());
            return Err(Error::CompileFailed { device: self.info.label(), operator, text: text.into(), options, log });
        }
        self.driver.compile(text, options)
    }

    fn load(&self, binary: &[u8]) -> Result<RawProgram> {
        self.present("load")?;
        born(&self.plan.live.programs, self.driver.load(binary))
    }

    unsafe fn unload(&self, program: RawProgram) {
        // SAFETY: the caller's promise.
        unsafe { self.driver.unload(program) };
        died(&self.plan.live.programs);
    }

    unsafe fn kernel(&self, program: RawProgram, name: &str) -> Result<RawKernel> {
        self.present("kernel")?;
        // SAFETY: the caller's promise.
        unsafe { self.driver.kernel(program, name) }
    }
}
