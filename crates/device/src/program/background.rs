// SPDX-License-Identifier: Apache-2.0
//! Compilation in the background: one program at a time, while no query runs.
//!
//! Compilations of programs come before optimizations. These wait for a while without new programs.
//! PoCL has one lock for all compilations.
//!
//! Queries have the processors for themselves: a compilation begins once none has run for a while,
//! or after a longer wait. A process that ends after its first query has begun none.

use std::collections::{HashMap, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

use super::compiler::{CompileTask, Compiler, ProgramKey};
use crate::exit::{self, WorkGuard};

/// The time without a query after which a compilation begins.
const QUIET: Duration = Duration::from_millis(100);

/// The longest wait of a compilation for such a time.
const LONGEST_WAIT: Duration = Duration::from_secs(2);

/// The time without a request for a new program after which an optimization begins.
const SETTLED: Duration = Duration::from_secs(1);

/// The longest wait of optimizations for such a time.
const LONGEST_UNSETTLED: Duration = Duration::from_secs(10);

/// The longest wait beside the time of the last compilation, so that queries that never end leave
/// it a share of the time.
const WAITS_PER_COMPILATION: u32 = 3;

/// Time between two looks for the end of the process, within a compilation.
const EXIT_CHECK: Duration = Duration::from_millis(20);

/// The programs that wait for their compilation, and what they wait for.
pub(super) struct Background {
    state: Mutex<State>,
    changed: Condvar,
}

struct State {
    waiting: VecDeque<CompileTask>,
    /// Programs that wait or are being compiled.
    unfinished: usize,
    /// Those of them that are compiled already, and shall be optimized.
    unoptimized: usize,
    has_thread: bool,
    is_closed: bool,
    /// The runs of each query that runs, by the number of the query.
    queries: HashMap<usize, usize>,
    /// The end of the last query.
    quiet_since: Instant,
    /// The last request of a query for a new program.
    requested: Option<Instant>,
    /// The longest wait of the next compilation.
    longest_wait: Duration,
}

impl State {
    /// Counts a task that waits now.
    fn begin(&mut self, task: &CompileTask) {
        self.unfinished += 1;
        self.unoptimized += usize::from(task.is_optimization());
    }

    /// Counts a task that is done or dropped.
    fn end(&mut self, is_optimization: bool) {
        self.unfinished -= 1;
        self.unoptimized -= usize::from(is_optimization);
    }

    /// The first program that waits for its compilation, else for its optimization.
    fn take_next(&mut self) -> Option<CompileTask> {
        let uncompiled = self.waiting.iter().position(|task| !task.is_optimization());
        self.waiting.remove(uncompiled.unwrap_or(0))
    }
}

/// A query that runs. Compilations in the background wait for its end.
#[must_use]
pub struct RunningQuery {
    background: Arc<Background>,
    query: usize,
}

impl Drop for RunningQuery {
    fn drop(&mut self) {
        let mut state = self.background.state.lock();
        let has_ended = state.queries.get_mut(&self.query).is_none_or(|runs| {
            *runs -= 1;
            *runs == 0
        });
        if has_ended {
            state.queries.remove(&self.query);
        }
        state.quiet_since = Instant::now();
        drop(state);
        self.background.changed.notify_all();
    }
}

impl Background {
    pub(super) fn new() -> Arc<Self> {
        let quiet_since = Instant::now();
        let (waiting, unfinished, unoptimized, has_thread, is_closed, queries) = Default::default();
        let longest_wait = LONGEST_WAIT;
        let requested = None;
        let state =
            State { waiting, unfinished, unoptimized, has_thread, is_closed, queries, quiet_since, requested, longest_wait };
        Arc::new(Self { state: Mutex::new(state), changed: Condvar::new() })
    }

    pub(super) fn begin_query(self: &Arc<Self>, query: usize) -> RunningQuery {
        *self.state.lock().queries.entry(query).or_default() += 1;
        RunningQuery { background: Arc::clone(self), query }
    }

    pub(super) fn runs_of_query(&self, query: usize) -> usize {
        self.state.lock().queries.get(&query).copied().unwrap_or(0)
    }

    pub(super) fn other_queries(&self, query: usize) -> usize {
        let state = self.state.lock();
        state.queries.len() - usize::from(state.queries.contains_key(&query))
    }

    /// Notes that a query needs a new program, or has got it.
    pub(super) fn note_request(&self) {
        self.state.lock().requested = Some(Instant::now());
    }

    /// Programs that wait or are being compiled, without mere optimizations.
    pub(super) fn uncompiled(&self) -> usize {
        let state = self.state.lock();
        state.unfinished - state.unoptimized
    }

    /// Adds a program, and starts the thread unless it runs. Gives the program back if the thread
    /// does not start.
    pub(super) fn push(self: &Arc<Self>, compiler: &Arc<Compiler>, task: CompileTask) -> Option<CompileTask> {
        let mut state = self.state.lock();
        if !state.has_thread {
            let (this, compiler) = (Arc::clone(self), Arc::downgrade(compiler));
            let thread = std::thread::Builder::new().name("device-background".to_owned()).spawn(move || this.run(&compiler));
            if thread.is_err() {
                return Some(task);
            }
            state.has_thread = true;
        }
        // The thread waits for the lock, and then finds the program.
        state.begin(&task);
        state.waiting.push_back(task);
        drop(state);
        // It may sleep until an optimization may begin.
        self.changed.notify_all();
        None
    }

    /// Blocks until no program waits or is being compiled. False if `longest` passes first.
    pub(super) fn wait(&self, longest: Duration) -> bool {
        let end = Instant::now() + longest;
        let mut state = self.state.lock();
        !self.changed.wait_while_until(&mut state, |state| state.unfinished > 0, end).timed_out()
    }

    /// Takes back a program that a query needs now.
    pub(super) fn take(&self, key: &ProgramKey) -> Option<CompileTask> {
        let mut state = self.state.lock();
        let index = state.waiting.iter().position(|task| task.key == *key && !task.is_optimization())?;
        let task = state.waiting.remove(index)?;
        state.end(task.is_optimization());
        self.changed.notify_all();
        Some(task)
    }

    /// Takes back all programs that wait.
    pub(super) fn clear(&self) -> VecDeque<CompileTask> {
        let mut state = self.state.lock();
        let waiting = std::mem::take(&mut state.waiting);
        waiting.iter().for_each(|task| state.end(task.is_optimization()));
        self.changed.notify_all();
        waiting
    }

    /// Drops the programs that wait, and takes no more.
    pub(super) fn close(&self) {
        self.state.lock().is_closed = true;
        drop(self.clear());
    }

    /// The loop of the thread.
    fn run(&self, compiler: &Weak<Compiler>) {
        while let Some(task) = self.next() {
            // The end of the process waits for the guard, so it comes before the check.
            let (guard, begun, is_optimization) = (WorkGuard::begin(), Instant::now(), task.is_optimization());
            match compiler.upgrade() {
                Some(compiler) if !exit::has_begun() => {
                    // The log is the caller's code. A panic there must not end the thread.
                    let compile = || exit::guarded_compilation(|| compiler.compile(task, true));
                    _ = catch_unwind(AssertUnwindSafe(compile));
                }
                _ => drop(task),
            }
            drop(guard);
            let mut state = self.state.lock();
            state.end(is_optimization);
            state.longest_wait = LONGEST_WAIT.min(begun.elapsed() * WAITS_PER_COMPILATION);
            drop(state);
            self.changed.notify_all();
        }
    }

    /// Lets queries run between two parts of a compilation, the first of which took `elapsed`.
    pub(super) fn pause(&self, elapsed: Duration) {
        let mut state = self.state.lock();
        let latest = Instant::now() + LONGEST_WAIT.min(elapsed * WAITS_PER_COMPILATION);
        while !state.queries.is_empty() && !state.is_closed && !exit::has_begun() && Instant::now() < latest {
            // The end of the process waits for this thread, and notifies nothing.
            self.changed.wait_for(&mut state, EXIT_CHECK);
        }
    }

    /// Waits until the next program may be compiled. `None` ends the thread.
    fn next(&self) -> Option<CompileTask> {
        let mut state = self.state.lock();
        let begun = Instant::now();
        let latest = begun + state.longest_wait;
        loop {
            if state.is_closed || exit::has_begun() || state.waiting.is_empty() {
                state.has_thread = false;
                state.longest_wait = LONGEST_WAIT;
                return None;
            }
            let mut begin = if state.queries.is_empty() { latest.min(state.quiet_since + QUIET) } else { latest };
            if let Some(requested) = state.requested
                && state.waiting.iter().all(CompileTask::is_optimization)
            {
                begin = begin.max((requested + SETTLED).min(begun + LONGEST_UNSETTLED));
            }
            if Instant::now() >= begin {
                return state.take_next();
            }
            self.changed.wait_until(&mut state, begin);
        }
    }
}
