// SPDX-License-Identifier: Apache-2.0
//! Gates for generated kernels: tools to find faults which a run on PoCL does not show.
//!
//! - [`nvrtc`]: sources of the gpu profile compile for NVIDIA's devices without spilled registers.
//! - [`oclgrind`]: no data races and no accesses out of bounds.
//! - [`lint`]: prelude and kernels are OpenCL C 1.2 and 3.0 with listed extensions only.
//!
//! Without its tool a test prints so and passes, unless a variable such as
//! `DEVICEFUSION_REQUIRE_NVRTC=1` requires the tool, as in CI.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod lint;
mod nvrtc;
mod oclgrind;
mod sample;

/// Reports a missing tool; fails if `variable` requires it.
#[track_caller]
fn missing(tool: &str, variable: &str, remedy: &str) {
    assert!(!required(variable), "no {tool}, but {variable} = 1: {remedy}");
    eprintln!("skipped: no {tool}; {remedy}");
}

fn required(variable: &str) -> bool {
    std::env::var(variable).is_ok_and(|value| value == "1")
}

/// Calls `f` with each item, on a thread per processor; results in the order of items.
fn in_parallel<T: Sync, R: Send>(items: &[T], f: impl Fn(&T) -> R + Sync) -> Vec<R> {
    let next = std::sync::atomic::AtomicUsize::new(0);
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let mut results: Vec<(usize, R)> = std::thread::scope(|scope| {
        let work = || {
            let mut done = Vec::new();
            loop {
                let index = next.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                match items.get(index) {
                    Some(item) => done.push((index, f(item))),
                    None => return done,
                }
            }
        };
        let workers: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        workers.into_iter().flat_map(|worker| worker.join().unwrap()).collect()
    });
    results.sort_by_key(|(index, _)| *index);
    results.into_iter().map(|(_, result)| result).collect()
}
