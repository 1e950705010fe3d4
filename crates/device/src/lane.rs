// SPDX-License-Identifier: Apache-2.0
//! A driver's queue with what must happen once its work has completed.
//!
//! Everything enqueued gets a number, counted up from 1. A *mark* is an event recorded after a number;
//! each mark goes to the lane's own thread, which waits for it, so that neither a future nor a destructor
//! ever waits for a device, and a long kernel in one lane delays nobody else. When a mark has completed, the
//! thread reads the timers of the launches before it, drops what was kept alive for them and wakes whoever waits.

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use futures::FutureExt;
use futures::channel::oneshot;
use parking_lot::{Condvar, Mutex};

use crate::driver::{Driver, RawEvent, RawQueue, Timer};
use crate::exit::AtWork;
use crate::loss::Loss;
use crate::meter::{KernelTotals, Meters};
use crate::timeline::Timeline;
use crate::{Error, Result};

/// The error where the thread of a queue is gone.
pub(crate) const QUEUE_GONE: Error = Error::Interrupted("the thread of a queue");

/// Launches whose timers may wait for their completion to be seen.
const MAX_TIMERS: usize = 4096;

/// After so many unread timers a mark is recorded, so that they are read.
const TIMERS_PER_MARK: usize = 256;

/// What runs on the lane's thread once a mark has completed.
type Callback = Box<dyn FnOnce() + Send>;

/// An in-order queue of the driver. Alive as long as a handle, a buffer or work refers to it.
pub(crate) struct Lane {
    driver: Arc<dyn Driver>,
    raw: RawQueue,
    /// Which of its context's lanes it is, counted from 1.
    number: u32,
    /// The highest number whose work is known to have completed.
    completed: AtomicU64,
    /// How many wait for it on the host.
    waiting: AtomicUsize,
    /// The context's.
    loss: Loss,
    /// The context's.
    timeline: Arc<Timeline>,
    state: Mutex<State>,
    jobs: Arc<Jobs>,
}

#[derive(Default)]
struct State {
    /// The number of the work enqueued last.
    submitted: u64,
    /// The latest mark that has not completed yet.
    mark: Option<Arc<Mark>>,
    /// What must stay alive until a number has completed.
    kept: Vec<(u64, Box<dyn Send>)>,
    timers: VecDeque<Timed>,
    /// The first failure. It stays: whatever came of the work after it is not to be trusted.
    error: Option<Error>,
}

/// A launch whose times have not been read yet.
struct Timed {
    number: u64,
    timer: Timer,
    totals: Arc<KernelTotals>,
    meters: Meters,
}

/// An event in a lane, destroyed with its last owner.
pub(crate) struct Mark {
    driver: Arc<dyn Driver>,
    event: RawEvent,
    number: u64,
}

impl Drop for Mark {
    fn drop(&mut self) {
        // SAFETY: recorded by this driver, and this was the last owner.
        unsafe { self.driver.destroy_event(self.event) };
    }
}

/// Marks that wait for their completion, in the order of their recording.
#[derive(Default)]
struct Jobs {
    queue: Mutex<JobQueue>,
    changed: Condvar,
}

#[derive(Default)]
struct JobQueue {
    waiting: VecDeque<Job>,
    closed: bool,
}

struct Job {
    lane: Arc<Lane>,
    mark: Arc<Mark>,
    callback: Option<Callback>,
    at_work: AtWork,
}

impl Job {
    fn new(lane: &Arc<Lane>, mark: &Arc<Mark>, callback: Option<Callback>) -> Self {
        Self { lane: Arc::clone(lane), mark: Arc::clone(mark), callback, at_work: AtWork::begin() }
    }

    /// Waits for the mark and does what follows.
    fn run(self) {
        let Self { lane, mark, callback, at_work } = self;
        if !lane.is_complete(mark.number) {
            // SAFETY: the event is the driver's and alive.
            let result = unsafe { lane.driver.wait(mark.event) };
            lane.complete(&mark, result);
        }
        if let Some(callback) = callback {
            callback();
        }
        drop((mark, lane));
        drop(at_work);
    }
}

/// Somebody who waits, for as long as this lives.
struct Waiting(Arc<Lane>);

impl Waiting {
    fn begin(lane: Arc<Lane>, meters: &Meters) -> Waiting {
        if lane.waiting.fetch_add(1, Ordering::Relaxed) == 0 {
            meters.waited();
        }
        Waiting(lane)
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.0.waiting.fetch_sub(1, Ordering::Relaxed);
    }
}

impl fmt::Debug for Lane {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lane").field("raw", &self.raw).field("completed", &self.completed).finish_non_exhaustive()
    }
}

impl Drop for Lane {
    fn drop(&mut self) {
        {
            let mut queue = self.jobs.queue.lock();
            queue.closed = true;
            self.jobs.changed.notify_all();
        }
        let State { timers, kept, .. } = std::mem::take(self.state.get_mut());
        for event in timers.into_iter().flat_map(|timed| timed.timer.events()) {
            // SAFETY: the driver gave the event, and nobody else knows it.
            unsafe { self.driver.destroy_event(event) };
        }
        // Things are left only where the driver refused to mark the end of their use. Who knows whether it
        // still uses them: they are lost rather than freed under its hands. A lost device uses nothing any
        // more, and comes back only once everything of its context is gone.
        if !self.loss.is_met() {
            kept.into_iter().for_each(std::mem::forget);
        }
        // SAFETY: nobody refers to the lane, pending work included: a mark's job holds it.
        unsafe { self.driver.destroy_queue(self.raw) };
    }
}

impl Lane {
    /// A new queue of the driver and the thread that waits for it.
    pub(crate) fn new(number: u32, driver: &Arc<dyn Driver>, loss: &Loss, timeline: &Arc<Timeline>) -> Result<Arc<Self>> {
        let jobs = Arc::new(Jobs::default());
        let raw = driver.create_queue().inspect_err(|error| loss.heed(error))?;
        let lane = Arc::new(Self {
            driver: Arc::clone(driver),
            raw,
            number,
            completed: AtomicU64::new(0),
            waiting: AtomicUsize::new(0),
            loss: loss.clone(),
            timeline: Arc::clone(timeline),
            state: Mutex::default(),
            jobs: Arc::clone(&jobs),
        });
        let thread = std::thread::Builder::new().name("device-queue".to_owned()).spawn(move || jobs.run());
        thread.map_err(|_| Error::Interrupted("the thread of a queue"))?;
        Ok(lane)
    }

    /// Enqueues through `work`, which gets the driver's queue; the number of what it enqueued.
    pub(crate) fn enqueue(&self, work: impl FnOnce(RawQueue) -> Result<()>) -> Result<u64> {
        let mut state = self.state.lock();
        work(self.raw).inspect_err(|error| self.loss.heed(error))?;
        state.submitted += 1;
        Ok(state.submitted)
    }

    /// Enqueues a launch through `work`, which is told whether to time it, and takes care of its timer.
    pub(crate) fn launch(
        self: &Arc<Self>,
        timed: bool,
        totals: &Arc<KernelTotals>,
        meters: &Meters,
        work: impl FnOnce(RawQueue, bool) -> Result<Option<Timer>>,
    ) -> Result<u64> {
        let mut state = self.state.lock();
        let timer = work(self.raw, timed && state.timers.len() < MAX_TIMERS);
        let timer = timer.inspect_err(|error| self.loss.heed(error))?;
        state.submitted += 1;
        let number = state.submitted;
        if let Some(timer) = timer {
            state.timers.push_back(Timed { number, timer, totals: Arc::clone(totals), meters: meters.clone() });
            if state.timers.len().is_multiple_of(TIMERS_PER_MARK) {
                // The launch stands, whatever becomes of the mark; a later one may succeed.
                _ = self.mark_locked(&mut state);
            }
        }
        Ok(number)
    }

    /// Which of its context's lanes it is, counted from 1.
    pub(crate) fn number(&self) -> u32 {
        self.number
    }

    /// Whether it is a queue of this driver object.
    pub(crate) fn is_of(&self, driver: &Arc<dyn Driver>) -> bool {
        Arc::ptr_eq(&self.driver, driver)
    }

    /// Whether the work up to `number` is known to have completed.
    pub(crate) fn is_complete(&self, number: u64) -> bool {
        self.completed.load(Ordering::Acquire) >= number
    }

    /// The number of the work enqueued last.
    pub(crate) fn last(&self) -> u64 {
        self.state.lock().submitted
    }

    /// Whether all work is known to have completed.
    pub(crate) fn is_idle(&self) -> bool {
        let submitted = self.state.lock().submitted;
        self.is_complete(submitted)
    }

    /// The first failure of work in this lane. Such a lane is not given to another query.
    pub(crate) fn outcome(&self) -> Result<()> {
        self.state.lock().error.clone().map_or(Ok(()), Err)
    }

    /// Sees whether a failure outside of the lane's work means that the device is lost.
    pub(crate) fn heed(&self, error: &Error) {
        self.loss.heed(error);
    }

    /// A mark after everything enqueued so far.
    pub(crate) fn mark(self: &Arc<Self>) -> Result<Arc<Mark>> {
        self.mark_locked(&mut self.state.lock())
    }

    /// A mark after the work of `number`, `None` where that has completed.
    pub(crate) fn mark_of(self: &Arc<Self>, number: u64) -> Result<Option<Arc<Mark>>> {
        let mut state = self.state.lock();
        if self.is_complete(number) {
            return Ok(None);
        }
        match &state.mark {
            Some(mark) if mark.number >= number => Ok(Some(Arc::clone(mark))),
            _ => self.mark_locked(&mut state).map(Some),
        }
    }

    fn mark_locked(self: &Arc<Self>, state: &mut State) -> Result<Arc<Mark>> {
        if let Some(mark) = &state.mark
            && mark.number == state.submitted
        {
            return Ok(Arc::clone(mark));
        }
        // SAFETY: the queue is this lane's own and alive.
        let event = unsafe { self.driver.record(self.raw) }.inspect_err(|error| self.loss.heed(error))?;
        let mark = Arc::new(Mark { driver: Arc::clone(&self.driver), event, number: state.submitted });
        state.mark = Some(Arc::clone(&mark));
        self.jobs.push(Job::new(self, &mark, None));
        // The thread would wait for ever for work that the device was never given.
        // SAFETY: as above.
        unsafe { self.driver.flush(self.raw) }.inspect_err(|error| self.loss.heed(error))?;
        Ok(mark)
    }

    /// Runs `callback` on the lane's thread once `mark`, one of this lane's, has completed.
    pub(crate) fn when_marked(self: &Arc<Self>, mark: &Arc<Mark>, callback: Callback) {
        self.jobs.push(Job::new(self, mark, Some(callback)));
    }

    /// Completes with everything enqueued so far; its failures surface here.
    pub(crate) fn finished(self: &Arc<Self>) -> Result<oneshot::Receiver<Result<()>>> {
        let (sender, receiver) = oneshot::channel();
        if self.is_idle() {
            _ = sender.send(self.outcome());
            return Ok(receiver);
        }
        let mark = self.mark()?;
        let lane = Arc::clone(self);
        // The receiver may be gone: nobody waits any more.
        self.when_marked(&mark, Box::new(move || _ = sender.send(lane.outcome())));
        Ok(receiver)
    }

    /// Waits for what [`finished`](Self::finished) gave, and counts that: waits at the same time are one.
    pub(crate) async fn wait(self: Arc<Self>, mut finished: oneshot::Receiver<Result<()>>, meters: Meters) -> Result<()> {
        let done = match (&mut finished).now_or_never() {
            Some(done) => done,
            None => {
                let _waiting = Waiting::begin(self, &meters);
                finished.await
            }
        };
        done.map_err(|_| QUEUE_GONE)?
    }

    /// Waits on this thread until the work of `number` has completed, one way or the other; fails only where
    /// waiting is impossible. Work never depends on the host, so this ends with the launches before it.
    pub(crate) fn wait_blocking(self: &Arc<Self>, number: u64) -> Result<()> {
        let Some(mark) = self.mark_of(number)? else { return Ok(()) };
        let (sender, receiver) = std::sync::mpsc::channel();
        self.when_marked(&mark, Box::new(move || _ = sender.send(())));
        receiver.recv().map_err(|_| Error::Interrupted("the thread of a queue"))
    }

    /// Waits on this thread for everything enqueued so far; its failures surface here.
    pub(crate) fn synchronize(self: &Arc<Self>) -> Result<()> {
        let submitted = self.state.lock().submitted;
        self.wait_blocking(submitted)?;
        self.outcome()
    }

    /// Makes later work here wait for `mark` of another lane.
    pub(crate) fn wait_on(&self, mark: &Mark) -> Result<()> {
        // SAFETY: queue and event are the driver's and alive.
        self.enqueue(|raw| unsafe { self.driver.wait_on(raw, mark.event) }).map(|_| ())
    }

    /// Keeps `thing` alive until the work of `number` has completed.
    pub(crate) fn keep(self: &Arc<Self>, number: u64, thing: Box<dyn Send>) {
        let mut state = self.state.lock();
        if self.is_complete(number) {
            drop(state);
            drop(thing);
            return;
        }
        state.kept.push((number, thing));
        if state.mark.as_ref().is_none_or(|mark| mark.number < number) {
            // Without a mark the thing lives as long as the lane: the driver is broken, memory is not.
            _ = self.mark_locked(&mut state);
        }
    }

    /// Hands everything enqueued to the device and sees to its completion, whoever still cares.
    pub(crate) fn settle_later(self: &Arc<Self>) {
        if !self.is_idle() {
            _ = self.mark();
        }
    }

    /// Everything that follows from the completion of `mark`.
    fn complete(&self, mark: &Mark, result: Result<()>) {
        // First, so that whoever sees the work completed finds its times.
        self.read_timers(mark.number);
        let mut state = self.state.lock();
        if let Err(error) = result {
            self.loss.heed(&error);
            state.error.get_or_insert(error);
        }
        let unneeded: Vec<_> = state.kept.extract_if(.., |(number, _)| *number <= mark.number).collect();
        let last = state.mark.take_if(|last| last.number <= mark.number);
        self.completed.store(mark.number, Ordering::Release);
        drop(state);
        // What was kept may enqueue and lock in its own destructor.
        drop((unneeded, last));
    }

    /// Takes down the times of the launches up to `number`, which have completed.
    fn read_timers(&self, number: u64) {
        let mut state = self.state.lock();
        let done = state.timers.partition_point(|timed| timed.number <= number);
        let timers: Vec<Timed> = state.timers.drain(..done).collect();
        drop(state);
        for Timed { timer, totals, meters, .. } in timers {
            // SAFETY: the driver gave the timer, its work has completed, and nobody else knows it.
            match unsafe { self.driver.read_timer(timer) } {
                Ok(times) => {
                    let nanos = times.end.saturating_sub(times.start);
                    totals.nanos.fetch_add(nanos, Ordering::Relaxed);
                    meters.ran(nanos);
                    self.timeline.note(&totals.name, self.number, times);
                }
                Err(error) => self.loss.heed(&error),
            }
        }
    }
}

impl Mark {
    /// Whether the device has got this far.
    pub(crate) fn is_done(&self) -> Result<bool> {
        // SAFETY: the event is the driver's and alive.
        unsafe { self.driver.is_done(self.event) }
    }

    /// The driver's event.
    pub(crate) fn raw(&self) -> RawEvent {
        self.event
    }

    /// The number after which it was recorded.
    pub(crate) fn number(&self) -> u64 {
        self.number
    }
}

impl Jobs {
    fn push(&self, job: Job) {
        self.queue.lock().waiting.push_back(job);
        self.changed.notify_one();
    }

    fn pop(&self) -> Option<Job> {
        let mut queue = self.queue.lock();
        loop {
            if let Some(job) = queue.waiting.pop_front() {
                return Some(job);
            }
            if queue.closed {
                return None;
            }
            self.changed.wait(&mut queue);
        }
    }

    /// The thread: waits for one mark after another until the lane is gone.
    fn run(&self) {
        while let Some(job) = self.pop() {
            job.run();
        }
    }
}

/// When something was last used: a lane and a number for each lane that may still use it.
#[derive(Debug, Default)]
pub(crate) struct Uses(Mutex<Vec<(Arc<Lane>, u64)>>);

impl Uses {
    pub(crate) fn new(uses: Vec<(Arc<Lane>, u64)>) -> Self {
        Self(Mutex::new(uses))
    }

    /// Notes a use, and forgets those of other lanes that have completed.
    pub(crate) fn note(&self, lane: &Arc<Lane>, number: u64) {
        let mut uses = self.0.lock();
        uses.retain(|(other, last)| Arc::ptr_eq(other, lane) || !other.is_complete(*last));
        match uses.iter_mut().find(|(other, _)| Arc::ptr_eq(other, lane)) {
            Some((_, last)) => *last = number.max(*last),
            None => uses.push((Arc::clone(lane), number)),
        }
    }

    /// The last use in `lane`, if that may still be going on.
    pub(crate) fn pending_in(&self, lane: &Arc<Lane>) -> Option<u64> {
        let uses = self.0.lock();
        let (_, last) = uses.iter().find(|(other, _)| Arc::ptr_eq(other, lane))?;
        (!lane.is_complete(*last)).then_some(*last)
    }

    /// Whether all uses are known to have completed.
    pub(crate) fn is_idle(&self) -> bool {
        self.0.lock().iter().all(|(lane, last)| lane.is_complete(*last))
    }

    /// The uses that may still be going on; none are left here.
    pub(crate) fn take_pending(&self) -> Vec<(Arc<Lane>, u64)> {
        let mut uses = std::mem::take(&mut *self.0.lock());
        uses.retain(|(lane, last)| !lane.is_complete(*last));
        uses
    }
}

/// Drops `thing` once all `uses` have completed, without waiting.
pub(crate) fn drop_after(thing: impl Send + Sync + 'static, uses: &[(Arc<Lane>, u64)]) {
    let thing = Arc::new(thing);
    for (lane, number) in uses {
        lane.keep(*number, Box::new(Arc::clone(&thing)));
    }
}
