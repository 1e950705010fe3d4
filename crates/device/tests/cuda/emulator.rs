// SPDX-License-Identifier: Apache-2.0
//! Loads the CUDA emulator, and counts its live objects. The tests of other crates include this
//! file.
//!
//! Needs what `scripts/cuda-emulator.sh` needs. The emulator has the soname of NVIDIA's library, so
//! the dynamic loader considers that one loaded.

use std::ffi::{CString, c_char, c_int, c_long, c_uint};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, MutexGuard, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

use libloading::Library;

fn workspace() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

/// Builds and loads the emulator once, before the process looks for the real library.
fn emulator() -> &'static Library {
    static EMULATOR: OnceLock<Library> = OnceLock::new();
    EMULATOR.get_or_init(|| {
        let built = Command::new(workspace().join("scripts/cuda-emulator.sh")).output().unwrap();
        assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
        // SAFETY: the emulator has no initialisers.
        unsafe { Library::new(folder().join("libcuda.so.1")) }.unwrap()
    })
}

/// The folder of the emulator, with its NVRTC.
fn folder() -> PathBuf {
    std::env::var_os("EMULATOR_FOLDER").map_or_else(|| workspace().join("target/emulator"), PathBuf::from)
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
        if !device::testing::has_nvrtc().unwrap() {
            eprintln!("skipped: no NVRTC; scripts/nvrtc.sh installs it");
            return None;
        }
        // SAFETY: the signature is that of the emulator.
        unsafe { emulator().get::<unsafe extern "C" fn(usize)>(b"emulator_memory\0").unwrap()(1 << 30) };
        Some(Self { nvrtc: folder(), _turn: turn })
    }

    /// Holds the queue created last: its work runs only if other work needs it, or once it is
    /// released.
    pub fn hold(&self, hold: bool) {
        // SAFETY: the signature is that of the emulator.
        unsafe { emulator().get::<unsafe extern "C" fn(c_int)>(b"emulator_hold\0").unwrap()(c_int::from(hold)) }
    }

    /// Bytes of the device's memory that another process has.
    pub fn occupy(&self, bytes: usize) {
        // SAFETY: the signature is that of the emulator.
        unsafe { emulator().get::<unsafe extern "C" fn(usize)>(b"emulator_occupy\0").unwrap()(bytes) }
    }

    /// Counts the traffic of launches.
    pub fn count(&self) {
        // SAFETY: the signature is that of the emulator.
        unsafe { emulator().get::<unsafe extern "C" fn(c_int)>(b"emulator_count\0").unwrap()(1) }
    }

    /// Sets the order in which the emulator runs threads.
    pub fn seed(&self, seed: c_uint) {
        // SAFETY: the signature is that of the emulator.
        unsafe { emulator().get::<unsafe extern "C" fn(c_uint)>(b"emulator_seed\0").unwrap()(seed) }
    }

    /// Makes streams report another context than the primary one.
    pub fn streams_of_others(&self, others: bool) {
        // SAFETY: the signature is that of the emulator.
        unsafe { emulator().get::<unsafe extern "C" fn(c_int)>(b"emulator_others\0").unwrap()(c_int::from(others)) }
    }

    /// Advances the device's clock by milliseconds.
    pub fn idle(&self, millis: f64) {
        // SAFETY: the signature is that of the emulator.
        unsafe { emulator().get::<unsafe extern "C" fn(f64)>(b"emulator_idle\0").unwrap()(millis) }
    }

    /// Whether these bytes are pinned host memory.
    pub fn is_pinned(&self, at: *const u8, bytes: usize) -> bool {
        type IsPinned = unsafe extern "C" fn(*const u8, usize) -> c_int;
        // SAFETY: the signature is that of the emulator.
        unsafe { emulator().get::<IsPinned>(b"emulator_is_pinned\0").unwrap()(at, bytes) != 0 }
    }

    /// Makes the next `call` fail, on any thread.
    pub fn fail(&self, call: &str, status: c_int) {
        self.fail_nth(call, status, 1);
    }

    /// Makes the nth `call` from now on fail.
    pub fn fail_nth(&self, call: &str, status: c_int, n: c_int) {
        type Fail = unsafe extern "C" fn(*const c_char, c_int, c_int);
        let call = CString::new(call).unwrap();
        // SAFETY: the signature is that of the emulator.
        unsafe { emulator().get::<Fail>(b"emulator_fail\0").unwrap()(call.as_ptr(), status, n) }
    }
}

impl Drop for Turn {
    /// Checks that all objects are freed, none of them too early.
    fn drop(&mut self) {
        if thread::panicking() {
            return;
        }
        // SAFETY: the signature is that of the emulator.
        let live = |kind| unsafe { emulator().get::<unsafe extern "C" fn(c_int) -> c_long>(b"emulator_live\0").unwrap()(kind) };
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
