// SPDX-License-Identifier: Apache-2.0
//! The end of the process: it waits for what is still at work in a driver.
//!
//! Work outlives the handles of those who began it, so a `main` may return while a kernel runs or is being
//! compiled. The C library then takes down what the driver stands on (for PoCL that is LLVM) beside the driver's
//! threads, which crash. It begins with what the thread itself keeps and goes on with what was registered last,
//! so the wait hangs on the main thread, where a context was opened there, and on handlers that are registered again
//! and again, for whatever the driver's compiler has made since.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::context::WeakContext;

/// For so long the end of the process waits: what waits for a foreign event may wait for ever.
const PATIENCE: Duration = Duration::from_secs(10);

/// How many threads of ours are, or will soon be, in a driver.
static AT_WORK: AtomicUsize = AtomicUsize::new(0);

/// The process that has the threads: in one that was forked they do not exist, and nothing is waited for.
static PROCESS: AtomicU32 = AtomicU32::new(0);

/// Contexts that may still be alive.
static CONTEXTS: Mutex<Vec<WeakContext>> = Mutex::new(Vec::new());

/// Alive as long as a thread has something to do in a driver. It goes last.
pub(crate) struct AtWork(());

impl AtWork {
    pub(crate) fn begin() -> Self {
        AT_WORK.fetch_add(1, Ordering::AcqRel);
        Self(())
    }
}

impl Drop for AtWork {
    fn drop(&mut self) {
        static DONE: AtomicUsize = AtomicUsize::new(0);
        if (DONE.fetch_add(1, Ordering::Relaxed) + 1).is_power_of_two() {
            register();
        }
        AT_WORK.fetch_sub(1, Ordering::AcqRel);
    }
}

/// Makes the end of the process wait for the work of `context`, whose driver is loaded.
pub(crate) fn waits_for(context: WeakContext) {
    let mut contexts = CONTEXTS.lock();
    contexts.retain(WeakContext::is_alive);
    contexts.push(context);
    drop(contexts);
    PROCESS.store(std::process::id(), Ordering::Relaxed);
    register();
    // A thread that is ending has no storage any more, and is not the one that will end the process.
    _ = MAIN.try_with(|_| ());
}

thread_local! {
    static MAIN: EndOfMain = const { EndOfMain };
}

/// Dropped with its thread. That of the main thread is dropped as the process ends.
struct EndOfMain;

impl Drop for EndOfMain {
    fn drop(&mut self) {
        // SAFETY: neither call has a precondition.
        #[cfg(target_os = "linux")]
        if unsafe { libc::getpid() == libc::gettid() } {
            wait();
        }
    }
}

fn register() {
    // SAFETY: the handler does not unwind. Where there is no room for it, the process ends as it would without.
    _ = unsafe { libc::atexit(wait) };
}

extern "C" fn wait() {
    if PROCESS.load(Ordering::Relaxed) != std::process::id() {
        return;
    }
    static END: OnceLock<Instant> = OnceLock::new();
    let end = *END.get_or_init(|| Instant::now() + PATIENCE);
    CONTEXTS.lock().iter().for_each(WeakContext::settle_and_keep);
    while AT_WORK.load(Ordering::Acquire) > 0 && Instant::now() < end {
        std::thread::sleep(Duration::from_micros(100));
    }
}
