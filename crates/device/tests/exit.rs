// SPDX-License-Identifier: Apache-2.0
//! A process may end while its work has just begun.
#![allow(clippy::unwrap_used)]

use std::process::Command;
use std::time::Duration;

use device::{Grid, ProgramSource, Queue, Result};
use futures::executor::block_on;

/// The variable of a child process that ends early.
const VARIABLE: &str = "DEVICE_TEST_ENDS_EARLY";

fn main() {
    // nextest asks for the list of tests.
    if std::env::args().any(|argument| argument == "--list") {
        if std::env::args().all(|argument| argument != "--ignored") {
            println!("main_may_return_beside_its_work: test");
        }
        return;
    }
    if let Ok(salt) = std::env::var(VARIABLE) {
        // On a new thread, after the driver's compiler has run.
        if salt.ends_with("thread") {
            let work = move || {
                block_on(leave_work_behind(&format!("complete{salt}"))?.finish())?;
                leave_work_behind(&salt)
            };
            std::thread::spawn(work).join().unwrap().unwrap();
            return;
        }
        if salt.ends_with("drivers") {
            // The drivers begin to load. Another thread than the main one loads none.
            std::thread::spawn(|| device::DeviceConfig::default().load_drivers()).join().unwrap();
            device::DeviceConfig::default().load_drivers();
            let run: u64 = salt.split('_').nth(1).unwrap().parse().unwrap();
            std::thread::sleep(Duration::from_millis(run * 2));
            // One run sees that they are loaded.
            let is_loaded = || std::fs::read_to_string("/proc/self/maps").unwrap().contains("libOpenCL");
            let begun = std::time::Instant::now();
            while run == 0 && !is_loaded() {
                assert!(begun.elapsed() < Duration::from_secs(30), "the drivers are not loaded");
                std::thread::sleep(Duration::from_millis(1));
            }
            return;
        }
        leave_work_behind(&salt).unwrap();
        return;
    }
    // The thread that ends first differs from run to run.
    let runs = device::testing::sample((0..32).collect()).unwrap();
    for (run, on) in runs.into_iter().flat_map(|run| [(run, "main"), (run, "thread"), (run, "drivers")]) {
        let mut child = Command::new(std::env::current_exe().unwrap());
        let salt = format!("{}_{run}_{on}", std::process::id());
        let output = child.env(VARIABLE, salt).output().unwrap();
        assert!(output.status.success(), "{:?}\n{}", output.status, String::from_utf8_lossy(&output.stderr));
    }
}

/// Returns without waiting. A kernel that no cache has is at its first launch, and another program
/// is being compiled.
fn leave_work_behind(salt: &str) -> Result<Queue> {
    let context = device::Context::new(device::testing::config()?)?;
    let queue = context.queue()?;
    let source = |name: &str| {
        let head = match context.info().driver {
            device::DriverKind::OpenCl => "kernel void NAME(global ulong *x)",
            device::DriverKind::Cuda => "extern \"C\" __global__ void NAME(unsigned long long *x)",
        };
        let body = "{ for (int i = 0; i < 1000000; i++) x[0] = x[0] * 6364136223846793005 + 1442695040888963407; }";
        ProgramSource::new(format!("{}{body}", head.replace("NAME", name)), "tests")
    };
    let name = format!("f{salt}");
    let program = block_on(queue.compile(source(&name)))?;
    let x = queue.zeroed(8)?;
    queue.launch(&program.kernel(&name)?, Grid { work_groups: 1, work_group_size: 1 }, &[(&x).into()])?;
    drop(queue.compile(source(&format!("g{salt}"))));
    context.prepare(vec![source(&format!("h{salt}"))]);
    // As with a context in a static.
    std::mem::forget(context.clone());
    Ok(queue)
}
