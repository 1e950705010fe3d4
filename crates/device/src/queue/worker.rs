// SPDX-License-Identifier: Apache-2.0
//! A driver's queue with a thread that waits for its work.
//!
//! - Each unit of enqueued work has a sequence number, counted from 1.
//! - A [`Fence`] is an event recorded after a sequence number.
//! - The worker's thread waits for each fence, so futures and destructors never block. A long
//!   kernel in one queue delays no other queue.
//! - After a fence the thread reads the timers of earlier launches, drops their kept-alive
//!   resources, and wakes futures.

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Instant;

use futures::FutureExt;
use futures::channel::oneshot;
use parking_lot::{Condvar, Mutex};

use crate::device_loss::DeviceLoss;
use crate::driver::{Driver, RawEvent, RawQueue, Timer};
use crate::exit::WorkGuard;
use crate::report::{Clocks, KernelTotals, Meters, Timeline, WorkKind};
use crate::{DeviceKind, Error, Result};

/// The error of a queue whose thread has ended.
pub(crate) const QUEUE_GONE: Error = Error::Interrupted("the thread of a queue");

/// The most unread timers of a queue; launches beyond them are not timed.
const MAX_TIMERS: usize = 4096;

/// Unread timers after which the worker records a fence, so that they are read.
const TIMERS_PER_FENCE: usize = 256;

/// Runs on the worker's thread once a fence has completed.
type Callback = Box<dyn FnOnce() + Send>;

/// An in-order queue of the driver, alive as long as a handle, a buffer or work refers to it.
pub(crate) struct QueueWorker {
    driver: Arc<dyn Driver>,
    raw: RawQueue,
    /// Position among the queues of its context, counted from 1.
    number: u32,
    /// The highest sequence number known to have completed.
    completed: AtomicU64,
    /// Futures that wait for this queue.
    waiting: AtomicUsize,
    /// Shared with the context.
    loss: DeviceLoss,
    /// Shared with the context.
    timeline: Arc<Timeline>,
    /// The device's clock beside the host's.
    clocks: Clocks,
    /// The end of the last launch whose times were read.
    last_end: Mutex<Option<Instant>>,
    state: Mutex<WorkerState>,
    jobs: Arc<Jobs>,
}

#[derive(Default)]
struct WorkerState {
    /// The last sequence number.
    submitted: u64,
    /// The latest fence that has not completed yet.
    fence: Option<Arc<Fence>>,
    /// Resources, each with the sequence number whose completion frees it.
    kept_alive: Vec<(u64, Box<dyn Send>)>,
    timers: VecDeque<UnreadTimer>,
    /// The first failure. It stays: no later result of the queue can be trusted.
    error: Option<Error>,
}

/// A launch whose times have not been read yet.
struct UnreadTimer {
    sequence: u64,
    timer: Timer,
    totals: Arc<KernelTotals>,
    meters: Meters,
    enqueued: Instant,
    /// Whether its kernel was not launched before.
    is_first: bool,
}

/// An event recorded in a queue, destroyed with its last owner.
pub(crate) struct Fence {
    driver: Arc<dyn Driver>,
    event: RawEvent,
    sequence: u64,
}

impl Drop for Fence {
    fn drop(&mut self) {
        // SAFETY: recorded by this driver, and this was the last owner.
        unsafe { self.driver.destroy_event(self.event) };
    }
}

/// The worker thread's queue: fences in the order of their recording.
#[derive(Default)]
struct Jobs {
    state: Mutex<JobsState>,
    changed: Condvar,
}

#[derive(Default)]
struct JobsState {
    waiting: VecDeque<Job>,
    closed: bool,
}

/// A fence to wait for, and what runs after it.
struct Job {
    worker: Arc<QueueWorker>,
    fence: Arc<Fence>,
    callback: Option<Callback>,
    guard: WorkGuard,
}

impl Job {
    fn new(worker: &Arc<QueueWorker>, fence: &Arc<Fence>, callback: Option<Callback>) -> Self {
        Self { worker: Arc::clone(worker), fence: Arc::clone(fence), callback, guard: WorkGuard::begin() }
    }

    fn run(self) {
        let Self { worker, fence, callback, guard } = self;
        if !worker.is_complete(fence.sequence) {
            // SAFETY: the event is the driver's and alive.
            let result = unsafe { worker.driver.wait(fence.event) };
            worker.complete(&fence, result);
        }
        if let Some(callback) = callback {
            callback();
        }
        drop((fence, worker));
        drop(guard);
    }
}

/// Counts a future that waits, for as long as this lives.
struct HostWait {
    worker: Arc<QueueWorker>,
    meters: Meters,
    kind: WorkKind,
    start: Instant,
}

impl HostWait {
    fn begin(worker: Arc<QueueWorker>, meters: Meters, kind: WorkKind) -> HostWait {
        if worker.waiting.fetch_add(1, Ordering::Relaxed) == 0 {
            meters.waited();
        }
        HostWait { worker, meters, kind, start: Instant::now() }
    }
}

impl Drop for HostWait {
    fn drop(&mut self) {
        self.worker.waiting.fetch_sub(1, Ordering::Relaxed);
        self.meters.record(self.kind.clone(), self.start);
    }
}

impl fmt::Debug for QueueWorker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("QueueWorker").field("raw", &self.raw).field("completed", &self.completed).finish_non_exhaustive()
    }
}

impl Drop for QueueWorker {
    fn drop(&mut self) {
        {
            let mut jobs = self.jobs.state.lock();
            jobs.closed = true;
            self.jobs.changed.notify_all();
        }
        let WorkerState { timers, kept_alive, .. } = std::mem::take(self.state.get_mut());
        for event in timers.into_iter().flat_map(|unread| unread.timer.events()) {
            // SAFETY: the driver made the event for this queue alone.
            unsafe { self.driver.destroy_event(event) };
        }
        // Resources are left only where the driver refused to record a fence, so it may still use
        // them: they are leaked. A lost device uses nothing, and it recovers only once everything
        // of its context is freed.
        if !self.loss.has_occurred() {
            kept_alive.into_iter().for_each(std::mem::forget);
        }
        // SAFETY: this was the last owner; the job of each pending fence is an owner too.
        unsafe { self.driver.destroy_queue(self.raw) };
    }
}

impl QueueWorker {
    /// Creates a queue of the driver and its thread.
    pub(crate) fn new(number: u32, driver: &Arc<dyn Driver>, loss: &DeviceLoss, timeline: &Arc<Timeline>) -> Result<Arc<Self>> {
        let jobs = Arc::new(Jobs::default());
        let raw = driver.create_queue().inspect_err(|error| loss.check(error))?;
        let worker = Arc::new(Self {
            driver: Arc::clone(driver),
            raw,
            number,
            completed: AtomicU64::new(0),
            waiting: AtomicUsize::new(0),
            loss: loss.clone(),
            timeline: Arc::clone(timeline),
            clocks: Clocks::default(),
            last_end: Mutex::default(),
            state: Mutex::default(),
            jobs: Arc::clone(&jobs),
        });
        let thread = std::thread::Builder::new().name("device-queue".to_owned()).spawn(move || jobs.run());
        thread.map_err(|_| QUEUE_GONE)?;
        Ok(worker)
    }

    /// Enqueues through `work`, which gets the driver's queue; returns the sequence number.
    pub(crate) fn enqueue(&self, work: impl FnOnce(RawQueue) -> Result<()>) -> Result<u64> {
        let mut state = self.state.lock();
        work(self.raw).inspect_err(|error| self.loss.check(error))?;
        state.submitted += 1;
        Ok(state.submitted)
    }

    /// Enqueues a launch through `work`, called with the driver's queue and whether to time the
    /// launch. The worker reads the timer later.
    pub(crate) fn launch(
        self: &Arc<Self>,
        timed: bool,
        is_first: bool,
        totals: &Arc<KernelTotals>,
        meters: &Meters,
        work: impl FnOnce(RawQueue, bool) -> Result<Option<Timer>>,
    ) -> Result<u64> {
        let mut state = self.state.lock();
        let enqueued = Instant::now();
        let timer = work(self.raw, timed && state.timers.len() < MAX_TIMERS);
        let timer = timer.inspect_err(|error| self.loss.check(error))?;
        state.submitted += 1;
        let sequence = state.submitted;
        if let Some(timer) = timer {
            let (totals, meters) = (Arc::clone(totals), meters.clone());
            state.timers.push_back(UnreadTimer { sequence, timer, totals, meters, enqueued, is_first });
            if state.timers.len().is_multiple_of(TIMERS_PER_FENCE) {
                // The launch is valid without the fence; a later fence may succeed.
                _ = self.fence_locked(&mut state);
            }
        }
        Ok(sequence)
    }

    /// Position among the queues of its context, counted from 1.
    pub(crate) fn number(&self) -> u32 {
        self.number
    }

    /// Whether it is a queue of this driver object.
    pub(crate) fn is_of(&self, driver: &Arc<dyn Driver>) -> bool {
        Arc::ptr_eq(&self.driver, driver)
    }

    /// Whether the work up to `sequence` is known to have completed.
    pub(crate) fn is_complete(&self, sequence: u64) -> bool {
        self.completed.load(Ordering::Acquire) >= sequence
    }

    /// The last sequence number.
    pub(crate) fn submitted(&self) -> u64 {
        self.state.lock().submitted
    }

    /// Whether all work is known to have completed.
    pub(crate) fn is_idle(&self) -> bool {
        let submitted = self.state.lock().submitted;
        self.is_complete(submitted)
    }

    /// The first failure of work in this queue. A queue with a failure is not reused.
    pub(crate) fn outcome(&self) -> Result<()> {
        self.state.lock().error.clone().map_or(Ok(()), Err)
    }

    /// Checks whether a failure outside of the queue's work means the loss of the device.
    pub(crate) fn check_loss(&self, error: &Error) {
        self.loss.check(error);
    }

    /// A fence after everything enqueued so far.
    pub(crate) fn fence(self: &Arc<Self>) -> Result<Arc<Fence>> {
        self.fence_locked(&mut self.state.lock())
    }

    /// A fence after the work of `sequence`, `None` where it has completed.
    pub(crate) fn fence_after(self: &Arc<Self>, sequence: u64) -> Result<Option<Arc<Fence>>> {
        let mut state = self.state.lock();
        if self.is_complete(sequence) {
            return Ok(None);
        }
        match &state.fence {
            Some(fence) if fence.sequence >= sequence => Ok(Some(Arc::clone(fence))),
            _ => self.fence_locked(&mut state).map(Some),
        }
    }

    fn fence_locked(self: &Arc<Self>, state: &mut WorkerState) -> Result<Arc<Fence>> {
        if let Some(fence) = &state.fence
            && fence.sequence == state.submitted
        {
            return Ok(Arc::clone(fence));
        }
        // SAFETY: the queue is this worker's own and alive.
        let event = unsafe { self.driver.record(self.raw) }.inspect_err(|error| self.loss.check(error))?;
        let fence = Arc::new(Fence { driver: Arc::clone(&self.driver), event, sequence: state.submitted });
        state.fence = Some(Arc::clone(&fence));
        self.jobs.push(Job::new(self, &fence, None));
        // Without the flush the thread could wait for ever for work that was never submitted.
        // SAFETY: as above.
        unsafe { self.driver.flush(self.raw) }.inspect_err(|error| self.loss.check(error))?;
        Ok(fence)
    }

    /// Runs `callback` on the worker's thread once `fence`, one of this queue, has completed.
    pub(crate) fn run_after(self: &Arc<Self>, fence: &Arc<Fence>, callback: Callback) {
        self.jobs.push(Job::new(self, fence, Some(callback)));
    }

    /// Completes with everything enqueued so far; failures of that work surface here.
    pub(crate) fn finished(self: &Arc<Self>) -> Result<oneshot::Receiver<Result<()>>> {
        let (sender, receiver) = oneshot::channel();
        if self.is_idle() {
            _ = sender.send(self.outcome());
            return Ok(receiver);
        }
        let fence = self.fence()?;
        let worker = Arc::clone(self);
        // The send fails if the future was dropped.
        self.run_after(&fence, Box::new(move || _ = sender.send(worker.outcome())));
        Ok(receiver)
    }

    /// Waits for the result of [`finished`](Self::finished), counts and records the wait.
    /// Concurrent waits count once.
    pub(crate) async fn wait(
        self: Arc<Self>,
        mut finished: oneshot::Receiver<Result<()>>,
        meters: Meters,
        kind: WorkKind,
    ) -> Result<()> {
        let done = match (&mut finished).now_or_never() {
            Some(done) => done,
            None => {
                let _wait = HostWait::begin(self, meters, kind);
                finished.await
            }
        };
        done.map_err(|_| QUEUE_GONE)?
    }

    /// Blocks until the work of `sequence` has completed or failed. An error means that waiting
    /// itself is impossible. Work never depends on the host, so the wait ends with the launches.
    pub(crate) fn wait_blocking(self: &Arc<Self>, sequence: u64) -> Result<()> {
        let Some(fence) = self.fence_after(sequence)? else { return Ok(()) };
        let (sender, receiver) = std::sync::mpsc::channel();
        self.run_after(&fence, Box::new(move || _ = sender.send(())));
        receiver.recv().map_err(|_| QUEUE_GONE)
    }

    /// Blocks until everything enqueued so far has completed; its failures surface here.
    pub(crate) fn synchronize(self: &Arc<Self>) -> Result<()> {
        let submitted = self.submitted();
        self.wait_blocking(submitted)?;
        self.outcome()
    }

    /// Makes later work of this queue wait for a fence of another queue.
    pub(crate) fn wait_on(&self, fence: &Fence) -> Result<()> {
        // SAFETY: queue and event are the driver's and alive.
        self.enqueue(|raw| unsafe { self.driver.wait_on(raw, fence.event) }).map(|_| ())
    }

    /// Keeps `resource` alive until the work of `sequence` has completed.
    pub(crate) fn keep_alive(self: &Arc<Self>, sequence: u64, resource: Box<dyn Send>) {
        let mut state = self.state.lock();
        if self.is_complete(sequence) {
            drop(state);
            drop(resource);
            return;
        }
        state.kept_alive.push((sequence, resource));
        if state.fence.as_ref().is_none_or(|fence| fence.sequence < sequence) {
            // If the driver refuses the fence, the resource lives as long as the queue.
            _ = self.fence_locked(&mut state);
        }
    }

    /// Submits everything enqueued so far and lets the thread see its completion.
    pub(crate) fn flush(self: &Arc<Self>) {
        if !self.is_idle() {
            _ = self.fence();
        }
    }

    /// Handles the completion of `fence`.
    fn complete(&self, fence: &Fence, result: Result<()>) {
        // Timers first: code that sees the work completed must find its times.
        self.read_timers(fence.sequence);
        let mut state = self.state.lock();
        if let Err(error) = result {
            self.loss.check(&error);
            state.error.get_or_insert(error);
        }
        let unneeded: Vec<_> = state.kept_alive.extract_if(.., |(sequence, _)| *sequence <= fence.sequence).collect();
        let last = state.fence.take_if(|last| last.sequence <= fence.sequence);
        self.completed.store(fence.sequence, Ordering::Release);
        drop(state);
        // Destructors of the resources may enqueue and lock.
        drop((unneeded, last));
    }

    /// Reads the times of the launches up to `sequence`, which have completed.
    fn read_timers(&self, sequence: u64) {
        let mut state = self.state.lock();
        let done = state.timers.partition_point(|unread| unread.sequence <= sequence);
        let timers: Vec<UnreadTimer> = state.timers.drain(..done).collect();
        drop(state);
        for UnreadTimer { timer, totals, meters, enqueued, is_first, .. } in timers {
            // SAFETY: the driver made the timer for this queue alone, and its work has completed.
            if let Some(traffic) = unsafe { self.driver.read_traffic(timer) } {
                *totals.traffic.lock() += traffic;
                meters.moved(traffic);
            }
            // SAFETY: as above.
            match unsafe { self.driver.read_timer(timer) } {
                Ok(times) => {
                    let nanos = times.end.saturating_sub(times.start);
                    totals.nanos.fetch_add(nanos, Ordering::Relaxed);
                    meters.ran(&totals.name, nanos);
                    let time = self.clocks.on_host(enqueued, &times);
                    let before = self.last_end.lock().replace(time.end);
                    // Drivers of CPUs make the machine code of a kernel when it is launched first.
                    if is_first && self.driver.info().kind == DeviceKind::Cpu {
                        let begun = before.map_or(enqueued, |end| end.max(enqueued));
                        meters.compiled(begun..time.start.max(begun));
                    }
                    meters.record_launch(&totals.name, self.number, time);
                    self.timeline.push(&totals.name, self.number, times);
                }
                Err(error) => self.loss.check(&error),
            }
        }
    }
}

impl Fence {
    /// Whether the device has reached the fence.
    pub(crate) fn is_done(&self) -> Result<bool> {
        // SAFETY: the event is the driver's and alive.
        unsafe { self.driver.is_done(self.event) }
    }

    /// The driver's event.
    pub(crate) fn raw(&self) -> RawEvent {
        self.event
    }

    /// The sequence number that it was recorded after.
    pub(crate) fn sequence(&self) -> u64 {
        self.sequence
    }
}

impl Jobs {
    fn push(&self, job: Job) {
        self.state.lock().waiting.push_back(job);
        self.changed.notify_one();
    }

    fn pop(&self) -> Option<Job> {
        let mut state = self.state.lock();
        loop {
            if let Some(job) = state.waiting.pop_front() {
                return Some(job);
            }
            if state.closed {
                return None;
            }
            self.changed.wait(&mut state);
        }
    }

    /// The thread's loop: runs one job after another until the queue is gone.
    fn run(&self) {
        while let Some(job) = self.pop() {
            job.run();
        }
    }
}
