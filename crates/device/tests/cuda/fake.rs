// SPDX-License-Identifier: Apache-2.0
//! Loads the fake `libcuda.so.1`, and counts its live objects. The tests of other crates include
//! this file.
//!
//! Needs a C compiler, and NVRTC as `tests/nvrtc.rs` does. The fake has the soname of NVIDIA's
//! library, so the dynamic loader considers that one loaded.

use std::ffi::{CString, c_char, c_int, c_long};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, MutexGuard, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

use libloading::Library;

/// Loads the fake once, before the process looks for the real library.
fn fake() -> &'static Library {
    static FAKE: OnceLock<Library> = OnceLock::new();
    FAKE.get_or_init(|| {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../device/tests/cuda/libcuda.c");
        // A file name for this process alone: others may build theirs. The loader uses the soname.
        let library = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("libcuda-{}.so", std::process::id()));
        let flags = ["-shared", "-fPIC", "-O1", "-pthread", "-Wl,-soname,libcuda.so.1", "-o"];
        let built = Command::new("cc").args(flags).args([&library, &source]).status().unwrap();
        assert!(built.success());
        // SAFETY: the fake has no initialisers.
        let loaded = unsafe { Library::new(&library) }.unwrap();
        std::fs::remove_file(&library).unwrap();
        loaded
    })
}

/// A lock for one test at a time: each counts the live objects.
pub struct Turn {
    pub nvrtc: PathBuf,
    _turn: MutexGuard<'static, ()>,
}

impl Turn {
    /// Waits for the turn; `None` without NVRTC.
    pub fn take() -> Option<Self> {
        static TURN: Mutex<()> = Mutex::new(());
        let turn = TURN.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        fake();
        let wheel = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/nvrtc/nvidia/cu13/lib");
        let Some(nvrtc) = std::env::var_os("NVRTC_PATH").map(PathBuf::from).or_else(|| wheel.is_dir().then_some(wheel)) else {
            eprintln!("skipped: no NVRTC; scripts/nvrtc.sh installs it");
            return None;
        };
        Some(Self { nvrtc, _turn: turn })
    }

    /// Holds the queue created last: its work runs only if other work needs it, or once it is
    /// released.
    pub fn hold(&self, hold: bool) {
        // SAFETY: the signature is that of the fake.
        unsafe { fake().get::<unsafe extern "C" fn(c_int)>(b"fake_hold\0").unwrap()(c_int::from(hold)) }
    }

    /// Makes streams report another context than the primary one.
    pub fn streams_of_others(&self, others: bool) {
        // SAFETY: the signature is that of the fake.
        unsafe { fake().get::<unsafe extern "C" fn(c_int)>(b"fake_others\0").unwrap()(c_int::from(others)) }
    }

    /// Advances the device's clock by milliseconds.
    pub fn idle(&self, millis: f64) {
        // SAFETY: the signature is that of the fake.
        unsafe { fake().get::<unsafe extern "C" fn(f64)>(b"fake_idle\0").unwrap()(millis) }
    }

    /// Whether these bytes are pinned host memory.
    pub fn is_pinned(&self, at: *const u8, bytes: usize) -> bool {
        type IsPinned = unsafe extern "C" fn(*const u8, usize) -> c_int;
        // SAFETY: the signature is that of the fake.
        unsafe { fake().get::<IsPinned>(b"fake_is_pinned\0").unwrap()(at, bytes) != 0 }
    }

    /// Makes the next `call` fail, on any thread.
    pub fn fail(&self, call: &str, status: c_int) {
        self.fail_nth(call, status, 1);
    }

    /// Makes the nth `call` from now on fail.
    pub fn fail_nth(&self, call: &str, status: c_int, n: c_int) {
        type Fail = unsafe extern "C" fn(*const c_char, c_int, c_int);
        let call = CString::new(call).unwrap();
        // SAFETY: the signature is that of the fake.
        unsafe { fake().get::<Fail>(b"fake_fail\0").unwrap()(call.as_ptr(), status, n) }
    }
}

impl Drop for Turn {
    /// Checks that all objects are freed, none of them too early.
    fn drop(&mut self) {
        if thread::panicking() {
            return;
        }
        // SAFETY: the signature is that of the fake.
        let live = |kind| unsafe { fake().get::<unsafe extern "C" fn(c_int) -> c_long>(b"fake_live\0").unwrap()(kind) };
        let kinds = ["violation", "context", "memory", "pinned", "queue", "event", "program"];
        let left = || (-2..).zip(kinds).filter(|(kind, _)| live(*kind) != 0).map(|(_, name)| name).collect::<Vec<_>>();
        let start = Instant::now();
        // The threads of queues free their resources a little later.
        while !left().is_empty() && start.elapsed() < Duration::from_secs(5) {
            thread::sleep(Duration::from_millis(1));
        }
        assert!(left().is_empty(), "still alive: {:?}", left());
    }
}
