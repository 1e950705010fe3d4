// SPDX-License-Identifier: Apache-2.0
//! The end of the process waits for work in a driver.
//!
//! Work outlives its handles, so `main` may return while a kernel runs or is being compiled. The C
//! library then destroys what the driver stands on (for PoCL that is LLVM), and the driver's
//! threads crash.
//!
//! The C library destroys the main thread's thread-locals first, then runs `atexit` handlers, the
//! last registered ones first. So this module waits in two places:
//! - in a thread-local of the main thread, if it opened a context or began to load drivers;
//! - in `atexit` handlers, registered repeatedly: they must run before those of later objects of
//!   the driver's compiler.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// The longest wait at the end of the process: a foreign event may never complete.
const TIMEOUT: Duration = Duration::from_secs(10);

/// Time between two registrations beside the first compilations in the background. Later ones make
/// few objects: it is twice as long after as many compilations again, then thrice, and so on.
const REGISTRATION: Duration = Duration::from_millis(2);

/// Number of the first compilations.
const FIRST_COMPILATIONS: usize = 16;

/// Threads of this crate that are, or will soon be, in a driver.
static AT_WORK: AtomicUsize = AtomicUsize::new(0);

/// The process that has the threads. A forked child has none of them and does not wait.
static PROCESS: AtomicU32 = AtomicU32::new(0);

/// The end of the wait at the end of the process, once that has begun.
static END: OnceLock<Instant> = OnceLock::new();

/// Contexts that may still be alive.
static CONTEXTS: Mutex<Vec<Box<dyn Unfinished>>> = Mutex::new(Vec::new());

/// A context that may have unfinished work at the end of the process.
pub(crate) trait Unfinished: Send {
    /// Whether something may still use the context.
    fn is_alive(&self) -> bool;
    /// Submits the enqueued work, and leaks the context so that nothing of it is freed any more.
    fn flush_and_leak(&self);
}

/// Counts a thread's work in a driver. A thread drops it last.
pub(crate) struct WorkGuard(());

impl WorkGuard {
    pub(crate) fn begin() -> Self {
        AT_WORK.fetch_add(1, Ordering::AcqRel);
        Self(())
    }
}

impl Drop for WorkGuard {
    fn drop(&mut self) {
        static DONE: AtomicUsize = AtomicUsize::new(0);
        if (DONE.fetch_add(1, Ordering::Relaxed) + 1).is_power_of_two() {
            register();
        }
        AT_WORK.fetch_sub(1, Ordering::AcqRel);
    }
}

/// Loads drivers on a thread of its own, once in a process, before any context is open. Does
/// nothing on another thread than the main one.
///
/// A library makes objects while it is loaded, one after the other. No handler can be registered
/// between two of them. So the wait has to come before all handlers: in the main thread's
/// thread-local, which other threads cannot make.
pub(crate) fn load_in_background(load: impl FnOnce() + Send + 'static) {
    static IS_DONE: AtomicBool = AtomicBool::new(false);
    if has_begun() || !is_main_thread() || IS_DONE.swap(true, Ordering::Relaxed) {
        return;
    }
    prepare();
    let guard = WorkGuard::begin();
    let work = move || {
        registering(REGISTRATION, load);
        drop(guard);
    };
    // Without a thread, the work is left to the first context.
    _ = std::thread::Builder::new().name("device-drivers".to_owned()).spawn(work);
}

/// Runs a compilation in the background.
///
/// A compiler makes objects that live to the end of the process, and handlers destroy them. It
/// makes most in its first compilations, and some for the first kernel in need of them. The
/// handlers of this module must come before, so they are registered again and again meanwhile.
pub(crate) fn guarded_compilation<T>(compile: impl FnOnce() -> T) -> T {
    static COMPILATIONS: AtomicUsize = AtomicUsize::new(0);
    let times = 1 + COMPILATIONS.fetch_add(1, Ordering::Relaxed) / FIRST_COMPILATIONS;
    registering(REGISTRATION.saturating_mul(times.try_into().unwrap_or(u32::MAX)), compile)
}

/// Runs work of a driver. Its objects may live to the end of the process.
fn registering<T>(interval: Duration, work: impl FnOnce() -> T) -> T {
    register();
    std::thread::scope(|scope| {
        let (running, ended) = mpsc::channel::<()>();
        let registers = move || {
            while !has_begun() && ended.recv_timeout(interval) == Err(RecvTimeoutError::Timeout) {
                register();
            }
        };
        // Without a thread, the process may end badly amid the work.
        _ = std::thread::Builder::new().name("device-exit".to_owned()).spawn_scoped(scope, registers);
        let result = work();
        drop(running);
        result
    })
}

/// Whether the process ends. Work that begins now could outlive the driver.
pub(crate) fn has_begun() -> bool {
    END.get().is_some()
}

/// Makes the end of the process wait for the work of `context`, whose driver is loaded.
pub(crate) fn wait_for(context: impl Unfinished + 'static) {
    let mut contexts = CONTEXTS.lock();
    contexts.retain(|context| context.is_alive());
    contexts.push(Box::new(context));
    drop(contexts);
    prepare();
}

/// Has the end of the process wait for work.
fn prepare() {
    PROCESS.store(std::process::id(), Ordering::Relaxed);
    register();
    // The access fails on an ending thread. Another thread ends the process.
    _ = MAIN_THREAD.try_with(|_| ());
}

thread_local! {
    static MAIN_THREAD: WaitOnDrop = const { WaitOnDrop };
}

/// A thread-local that waits at the drop of the main thread's copy, as the process ends.
struct WaitOnDrop;

impl Drop for WaitOnDrop {
    fn drop(&mut self) {
        if is_main_thread() {
            wait();
        }
    }
}

fn is_main_thread() -> bool {
    #[cfg(target_os = "linux")]
    // SAFETY: neither call has a precondition.
    return unsafe { libc::getpid() == libc::gettid() };
    #[cfg(not(target_os = "linux"))]
    false
}

/// Registers the wait once more: it comes before the end of what drivers have made so far.
pub(crate) fn register() {
    // SAFETY: the handler does not unwind. Without room for it the process ends without a wait.
    _ = unsafe { libc::atexit(wait) };
}

extern "C" fn wait() {
    if PROCESS.load(Ordering::Relaxed) != std::process::id() {
        return;
    }
    let end = *END.get_or_init(|| Instant::now() + TIMEOUT);
    CONTEXTS.lock().iter().for_each(|context| context.flush_and_leak());
    while AT_WORK.load(Ordering::Acquire) > 0 && Instant::now() < end {
        std::thread::sleep(Duration::from_micros(100));
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    /// The variable of the process that ends.
    const VARIABLE: &str = "DEVICE_TEST_ENDS_AMID_COMPILATION";
    const NAME: &str = "exit::tests::objects_of_earlier_kernels_outlive_compilations";

    /// The end of an object of a compiler, which its compilations need.
    extern "C" fn end_of_object() {
        if AT_WORK.load(Ordering::Acquire) > 0 {
            // SAFETY: it ends the process.
            unsafe { libc::_exit(77) }
        }
    }

    #[test]
    fn objects_of_earlier_kernels_outlive_compilations() {
        if std::env::var_os(VARIABLE).is_none() {
            let mut child = Command::new(std::env::current_exe().unwrap());
            let output = child.args(["--exact", NAME]).env(VARIABLE, "1").output().unwrap();
            assert!(output.status.success(), "{:?}\n{}", output.status, String::from_utf8_lossy(&output.stderr));
            return;
        }
        prepare();
        (0..3 * FIRST_COMPILATIONS).for_each(|_| guarded_compilation(|| ()));
        // SAFETY: the handler does not unwind.
        assert_eq!(unsafe { libc::atexit(end_of_object) }, 0);
        let (guard, (begins, begun)) = (WorkGuard::begin(), mpsc::channel());
        std::thread::spawn(move || {
            guarded_compilation(|| {
                begins.send(()).unwrap();
                std::thread::sleep(Duration::from_millis(300));
            });
            drop(guard);
        });
        begun.recv().unwrap();
    }
}
