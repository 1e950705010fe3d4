// SPDX-License-Identifier: Apache-2.0
//! The methods of the driver trait.

use std::ops::Range;
use std::sync::Arc;
use std::thread;

use device::driver::{
    Driver, DriverOptions, ForeignMemory, Grid, Memory, RawArg, RawEvent, RawKernel, RawProgram, RawQueue, Timer,
};
use device::{Error, Result, cuda};

use crate::emulator::Turn;

const TEXT: &str = "extern \"C\" __global__ void scale(double* values, double by, int plus) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    values[i] = values[i] * by + plus;
}";

/// A driver, dropped before the turn.
struct Session {
    driver: Arc<dyn Driver>,
    turn: Turn,
}

impl Session {
    fn open() -> Option<Self> {
        let turn = Turn::take()?;
        let entries = cuda::devices_for(Some(&turn.nvrtc));
        assert_eq!(entries[0].problem, None);
        let options = DriverOptions { profiling: true, nvrtc_path: Some(turn.nvrtc.clone()), ..DriverOptions::default() };
        let driver = cuda::open(entries[0].info.as_ref().unwrap(), &options).unwrap();
        Some(Self { driver, turn })
    }

    fn driver(&self) -> &dyn Driver {
        &*self.driver
    }

    fn fail(&self, call: &str, status: i32) {
        self.turn.fail(call, status);
    }
}

/// A program with its kernel and a queue, freed when dropped.
struct Loaded<'a> {
    driver: &'a dyn Driver,
    queue: RawQueue,
    program: RawProgram,
    kernel: RawKernel,
    values: Memory,
}

impl<'a> Loaded<'a> {
    fn new(driver: &'a dyn Driver) -> Self {
        let program = driver.load(&driver.compile(TEXT, &[]).unwrap()).unwrap();
        // SAFETY: the program was just loaded.
        let kernel = unsafe { driver.kernel(program, "scale") }.unwrap();
        let values = driver.alloc(64).unwrap();
        Self { driver, queue: driver.create_queue().unwrap(), program, kernel, values }
    }

    fn launch(&self, timed: bool) -> Result<Option<Timer>> {
        let (by, plus) = (2f64.to_ne_bytes(), 1i32.to_ne_bytes());
        let args = [RawArg::Memory(self.values), RawArg::Value(&by), RawArg::Value(&plus)];
        // SAFETY: the arguments are those of the kernel, and eight doubles are 64 bytes.
        unsafe { self.driver.launch(self.queue, self.kernel, Grid { work_groups: 2, work_group_size: 4 }, &args, timed) }
    }

    fn timed(&self) -> Timer {
        self.launch(true).unwrap().unwrap()
    }

    /// Waits for a launch; returns its start and end.
    fn times(&self, timer: Timer) -> Range<u64> {
        finish(self.driver, self.queue);
        // SAFETY: the launch has completed, and each timer is read once.
        unsafe { self.driver.read_timer(timer) }.unwrap()
    }
}

impl Drop for Loaded<'_> {
    fn drop(&mut self) {
        finish(self.driver, self.queue);
        // SAFETY: the queue's work has completed, and this is the last use.
        unsafe {
            self.driver.free(self.values);
            self.driver.unload(self.program);
            self.driver.destroy_queue(self.queue);
        }
    }
}

/// Waits for all work of a queue. A lost context has none.
fn finish(driver: &dyn Driver, queue: RawQueue) {
    // SAFETY: the queue is live.
    if let Ok(done) = unsafe { driver.record(queue) } {
        // SAFETY: the event is live.
        _ = unsafe { driver.wait(done) };
        destroy(driver, [done]);
    }
}

fn destroy(driver: &dyn Driver, events: impl IntoIterator<Item = RawEvent>) {
    for event in events {
        // SAFETY: each test destroys its own events once.
        unsafe { driver.destroy_event(event) }
    }
}

#[test]
fn device_is_described() {
    let Some(session) = Session::open() else { return };
    let info = session.driver().info();
    assert_eq!((info.name.as_str(), info.arch.as_str(), info.compute_units), ("Emulated GPU", "sm_90", 132));
    assert_eq!((info.memory_bytes, info.max_work_group_size, info.shared_bytes), (1 << 30, 1024, 49152));
    assert_eq!(info.driver_version, "CUDA 13.0");
    let compiler = session.driver().compiler();
    assert!(compiler.starts_with("NVRTC 1") && compiler.contains(" for sm_90 with --std=c++17 "), "{compiler}");
}

#[test]
fn bytes_go_up_through_a_kernel_and_down() {
    let Some(session) = Session::open() else { return };
    let driver = session.driver();
    let loaded = Loaded::new(driver);
    let pinned = driver.alloc_pinned(64).unwrap();
    let (queue, values) = (loaded.queue, loaded.values);
    let copy = driver.alloc(64).unwrap();
    // SAFETY: every range is inside its allocation, and the memory lives until the queue has
    // finished.
    let result = unsafe {
        std::slice::from_raw_parts_mut(pinned as *mut f64, 8).copy_from_slice(&[0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0]);
        driver.fill(queue, values, 0, 64, 0xff).unwrap();
        driver.upload(queue, pinned, values, 0, 64).unwrap();
        loaded.launch(false).unwrap();
        driver.copy(queue, values, 8, copy, 0, 56).unwrap();
        driver.fill(queue, copy, 56, 8, 0).unwrap();
        driver.flush(queue).unwrap();
        driver.download(queue, copy, 0, pinned, 64).unwrap();
        finish(driver, queue);
        let result = std::slice::from_raw_parts(pinned as *const f64, 8).to_vec();
        driver.free_pinned(pinned, 64);
        driver.free(copy);
        result
    };
    assert_eq!(result, [3.0, 5.0, 7.0, 9.0, 11.0, 13.0, 15.0, 0.0]);
}

#[test]
fn events_are_waited_for_from_any_thread() {
    let Some(session) = Session::open() else { return };
    let driver = session.driver();
    let loaded = Loaded::new(driver);
    loaded.launch(false).unwrap();
    // SAFETY: the queue and all events are live.
    unsafe {
        let done = driver.record(loaded.queue).unwrap();
        assert!(!driver.is_done(done).unwrap());
        driver.wait_on(loaded.queue, done).unwrap();
        thread::scope(|scope| scope.spawn(|| driver.wait(done)).join().unwrap()).unwrap();
        assert!(driver.is_done(done).unwrap());
        thread::scope(|scope| scope.spawn(|| destroy(driver, [done])).join().unwrap());
    }
}

#[test]
fn launches_of_all_queues_are_timed_by_one_clock() {
    let Some(session) = Session::open() else { return };
    let (first, second) = (Loaded::new(session.driver()), Loaded::new(session.driver()));
    let (one, other, two) = (first.timed(), second.timed(), first.timed());
    // The emulator runs all work of the queue that is waited for first.
    assert_eq!(first.times(one), 0..1_500_000);
    assert_eq!(first.times(two), 1_500_000..3_000_000);
    // The start is the launch call, since the queue had no earlier work.
    assert_eq!(second.times(other), 0..4_500_000);
}

#[test]
fn clock_stays_exact_for_hours() {
    const HOUR: f64 = 3.6e6;
    let Some(session) = Session::open() else { return };
    let (first, second) = (Loaded::new(session.driver()), Loaded::new(session.driver()));
    let mut last = 0;
    for hour in 1..5 {
        session.turn.idle(HOUR + 0.7);
        first.times(first.timed());
        let before = second.timed();
        finish(session.driver(), second.queue);
        // The start of this launch becomes the base. The other launch began earlier and is read
        // later.
        session.turn.idle(5000.0);
        let times = first.times(first.timed());
        assert_eq!(times.end - times.start, 1_500_000, "{hour}");
        let next = first.times(first.timed());
        assert_eq!(next, times.end..times.end + 1_500_000, "{hour}");
        let before = second.times(before);
        assert!(last < before.start && before.end < times.start, "{hour}: {last} {before:?} {times:?}");
        last = next.end;
    }
}

#[test]
fn event_without_timing_has_no_time() {
    let Some(session) = Session::open() else { return };
    let loaded = Loaded::new(session.driver());
    // SAFETY: the queue is live, and the read destroys the event.
    unsafe {
        let done = session.driver().record(loaded.queue).unwrap();
        assert!(session.driver().read_timer(Timer { start: done, end: done }).is_err());
    }
    assert_eq!(loaded.times(loaded.timed()), 0..1_500_000);
}

#[test]
fn out_of_memory_is_its_own_error() {
    let Some(session) = Session::open() else { return };
    let driver = session.driver();
    let half = driver.alloc(1 << 29).unwrap();
    match driver.alloc(1 << 30).unwrap_err() {
        Error::OutOfMemory { requested, in_use, limit, setting, .. } => {
            assert_eq!((requested, in_use, limit, setting), (1 << 30, 1 << 29, 1 << 30, "device.memory_bytes"));
        }
        other => panic!("{other}"),
    }
    session.fail("cuMemHostAlloc", 2);
    assert!(driver.alloc_pinned(1).unwrap_err().is_out_of_memory());
    // SAFETY: no work uses it.
    unsafe { driver.free(half) };
}

#[test]
fn lost_context_is_recognised() {
    let Some(session) = Session::open() else { return };
    let loaded = Loaded::new(session.driver());
    session.fail("cuLaunchKernel", 700);
    match loaded.launch(true).unwrap_err() {
        Error::Driver { call: "cuLaunchKernel", device_lost, name, .. } => {
            assert!(device_lost && name.contains("CUDA_ERROR_ILLEGAL_ADDRESS") && name.contains("lost"), "{name}");
        }
        other => panic!("{other}"),
    }
}

#[test]
fn failing_calls_leave_nothing_behind() {
    let Some(session) = Session::open() else { return };
    let driver = session.driver();
    let binary = driver.compile(TEXT, &[]).unwrap();
    for call in ["cuCtxSetCurrent", "cuModuleLoadDataEx", "cuModuleGetFunction", "cuFuncLoad"] {
        session.fail(call, 1);
        assert!(matches!(driver.load(&binary), Err(Error::Driver { call: failed, .. }) if failed == call), "{call}");
    }
    let loaded = Loaded::new(driver);
    for call in ["cuCtxSetCurrent", "cuEventCreate", "cuEventRecord", "cuLaunchKernel"] {
        session.fail(call, 1);
        assert!(matches!(loaded.launch(true), Err(Error::Driver { call: failed, .. }) if failed == call), "{call}");
    }
    // The launch is valid without its timer.
    session.turn.fail_nth("cuEventRecord", 1, 2);
    assert_eq!(loaded.launch(true).unwrap(), None);
    // A status without a name.
    session.fail("cuStreamCreate", 4711);
    assert!(driver.create_queue().unwrap_err().to_string().contains("4711"));
}

#[test]
fn arguments_that_do_not_fit_are_refused() {
    let Some(session) = Session::open() else { return };
    let loaded = Loaded::new(session.driver());
    let args = [RawArg::Memory(loaded.values), RawArg::Value(&[0; 8]), RawArg::Value(&[0; 8])];
    let grid = Grid { work_groups: 1, work_group_size: 1 };
    // SAFETY: the memory is live. The test is about arguments that do not fit.
    let error = unsafe { loaded.driver.launch(loaded.queue, loaded.kernel, grid, &args, false) }.unwrap_err();
    assert!(error.to_string().contains("argument 2 takes 4 bytes, got 8"), "{error}");
}

#[test]
fn broken_programs_say_why() {
    let Some(session) = Session::open() else { return };
    let driver = session.driver();
    match driver.compile("nonsense", &[]).unwrap_err() {
        Error::CompileFailed { device, kernel_source, log, .. } => {
            assert_eq!((device.as_str(), &*kernel_source), ("cuda:0", "nonsense"));
            assert!(log.contains("nonsense"), "{log}");
        }
        other => panic!("{other}"),
    }
    assert!(driver.load(b"").unwrap_err().to_string().contains("neither a cubin nor PTX"));
    let ptx = b".version 9.0\n.target sm_90\n.entry k() { }";
    assert!(driver.load(ptx).unwrap_err().to_string().contains("ptxas fatal: not an image of the emulator"));
    let loaded = Loaded::new(driver);
    // SAFETY: the program is loaded.
    let error = unsafe { driver.kernel(loaded.program, "absent") }.unwrap_err();
    assert!(error.to_string().contains("no kernel absent"), "{error}");
}

#[test]
fn host_memory_is_never_imported() {
    let Some(session) = Session::open() else { return };
    let bytes = [0u8; 64];
    // SAFETY: the bytes outlive the call, which does not import them.
    let imported = unsafe { session.driver().import_host(bytes.as_ptr() as usize, bytes.len()) };
    assert_eq!(imported.unwrap(), None);
}

#[test]
fn pointers_are_adopted_to_the_end_of_their_allocation() {
    let Some(session) = Session::open() else { return };
    let driver = session.driver();
    let memory = driver.alloc(1000).unwrap();
    // SAFETY: the memory is live; the driver refuses 8, which is no CUDA address.
    let [all, rest, none] = unsafe { [memory.handle, memory.handle + 600, 8].map(|handle| driver.adopt(handle)) };
    let adopted = |handle, bytes| ForeignMemory::InPlace(Memory { handle, bytes, host: 0 });
    assert_eq!((all.unwrap(), rest.unwrap()), (adopted(memory.handle, 1000), adopted(memory.handle + 600, 400)));
    assert!(none.unwrap_err().to_string().starts_with("cuPointerGetAttribute on cuda:0"));
    // SAFETY: created above, and no queue has used it.
    unsafe { driver.free(memory) };
}
