// SPDX-License-Identifier: Apache-2.0
//! Many threads run mixed statements through Rust, C and ADBC for minutes. Each answer is right, no
//! statement hangs, and all memory comes back. Each crew of threads has a limit of device memory.
//!
//! - `DEVICEFUSION_STRESS_SECONDS`: the length. Without it one minute, or ten where
//!   `DEVICEFUSION_TEST_PART` is `all`
//! - `DEVICEFUSION_SEED`: seed of the statements that the threads draw
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod board;
mod crew;
mod engine;
mod heap;
mod memory;
mod rest;
#[allow(dead_code, reason = "the tests of the C functions use all of it")]
#[path = "../capi/support.rs"]
mod support;
mod tally;
mod worker;
mod workload;

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use device::testing::{self, PARTS};

use crate::board::Board;
use crate::crew::Crew;
use crate::rest::Rest;
use crate::tally::Tally;
use crate::worker::Worker;
use crate::workload::Workload;

const THREADS: usize = 32;
const MB: usize = 1_000_000;
/// Planners without optimization need it.
const STACK_BYTES: usize = 16 << 20;
/// Host memory that caches and fragments may take beside a share of the whole.
const SLACK_BYTES: u64 = 16 << 20;
/// Pools return memory that has been free for 5 to 10 seconds.
const REST: Duration = Duration::from_secs(11);
/// Shares of the time, with a rest after each.
const PHASES: [f64; 3] = [0.25, 0.5, 0.25];

#[test]
fn mixed_statements_of_many_threads_end_right_and_give_their_memory_back() {
    let test = thread::Builder::new().stack_size(STACK_BYTES).spawn(stress).unwrap();
    test.join().unwrap();
}

/// The same on the CUDA emulator, in a full run: two compilers take each kernel.
#[test]
fn mixed_statements_end_right_on_the_cuda_emulator() {
    if testing::parts().unwrap().len() < PARTS {
        eprintln!("skipped: make test-full runs it");
        return;
    }
    let Some(mut again) = testing::emulated(std::env::current_exe().unwrap()).unwrap() else {
        eprintln!("skipped: no NVRTC; scripts/nvrtc.sh installs it");
        return;
    };
    let test = "mixed_statements_of_many_threads_end_right_and_give_their_memory_back";
    let status = again.args(["--exact", test, "--nocapture"]).status();
    assert!(status.is_ok_and(|status| status.success()));
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

fn crews() -> [Crew; 3] {
    let crew = |name, open: engine::Open, limit, threads| Crew { name, threads, engine: open(limit) };
    [
        crew("Rust, 128 MB", engine::rust::open, 128 * MB, 0..12),
        crew("C, 64 MB", engine::c::open, 64 * MB, 12..22),
        crew("ADBC, 16 MB", engine::adbc::open, 16 * MB, 22..THREADS),
    ]
}

fn stress() {
    let begun = Instant::now();
    let usual = if testing::parts().unwrap().len() == PARTS { 600 } else { 60 };
    let time = Duration::from_secs(number("DEVICEFUSION_STRESS_SECONDS").unwrap_or(usual));
    let seed = number("DEVICEFUSION_SEED").unwrap_or_else(|| rand::random::<u32>().into());
    println!("DEVICEFUSION_SEED={seed} DEVICEFUSION_STRESS_SECONDS={}", time.as_secs());
    let (workload, crews, board) = (Workload::new(), crews(), Board::new(THREADS));

    // Compiles all kernels, and tells what is in use without tables.
    let before = crews.each_ref().map(|crew| {
        crew.create_tables();
        run_alone(crew, &workload, &board);
        crew.compile_anew();
        crew.drop_tables();
        crew.bytes_at_rest()
    });
    // A driver without cached kernels compiles for longer than a short run lasts.
    let left = time.saturating_sub(begun.elapsed() + PHASES.len() as u32 * REST).max(time / 2);
    println!("{:?} until all kernels were compiled", begun.elapsed());

    let mut tallies: Vec<Tally> = crews.iter().map(|_| Tally::default()).collect();
    let mut rests: Vec<Rest> = Vec::new();
    for (phase, share) in (0..).zip(PHASES) {
        let end = Instant::now() + left.mul_f64(share);
        crews.iter().for_each(Crew::create_tables);
        let of_phase = run_together(&crews, &workload, &board, seed.wrapping_mul(3).wrapping_add(phase), end);
        tallies.iter_mut().zip(of_phase).for_each(|(tally, of_phase)| tally.add(of_phase));
        for (crew, before) in crews.iter().zip(before) {
            run_alone(crew, &workload, &board);
            crew.drop_tables();
            crew.assert_returned(before);
            crew.engine.trim();
        }
        thread::sleep(REST);
        rests.push(Rest::of(&crews));
        println!("{:?}: {:?}", begun.elapsed(), rests[rests.len() - 1]);
    }

    crews.iter().zip(&tallies).for_each(|(crew, tally)| println!("{}: {tally}", crew.name));
    // A short run has few statements of each kind.
    let fewest = (left.as_secs() / 30).clamp(1, 3) as usize;
    for (crew, tally) in crews.iter().zip(&tallies) {
        assert!(crew.launches() > 0, "{}: nothing was launched", crew.name);
        tally.assert_mixed(crew.name, fewest);
        tally.assert_cancels_are_fast(crew.name);
    }
    // A driver's compiler keeps memory, and some kernels run only where memory is short. So rests
    // are compared if no other kernel was launched between them, and the last two always.
    let pairs = [(0, 1), (0, 2), (1, 2)].map(|(before, after)| (&rests[before], &rests[after]));
    for (number, (before, after)) in (0..).zip(pairs) {
        if let (Some(resident), Some(bytes)) = (before.resident, after.resident)
            && (before.kernels == after.kernels || number == pairs.len() - 1)
        {
            assert!(bytes <= resident + resident / 20 + SLACK_BYTES, "resident bytes grow: {rests:?}");
        }
    }
}

/// Runs each kind of statement once, on this thread. Without others, each has enough memory.
fn run_alone(crew: &Crew, workload: &Workload, board: &Board) {
    let mut worker = Worker::new(crew, crew.threads.start, workload, board, 0);
    worker.is_alone = true;
    worker.run_each_once();
}

/// Lets all threads draw statements until `end` or a failure of one of them. Returns the tally of
/// each crew.
fn run_together(crews: &[Crew], workload: &Workload, board: &Board, seed: u64, end: Instant) -> Vec<Tally> {
    let stop = &AtomicBool::new(false);
    thread::scope(|scope| {
        let mut workers = Vec::new();
        for (index, crew) in crews.iter().enumerate() {
            for number in crew.threads.clone() {
                let work = move || {
                    let mut worker = Worker::new(crew, number, workload, board, seed);
                    while !stop.load(Ordering::Relaxed) {
                        worker.run_any();
                    }
                    worker.tally
                };
                let builder = thread::Builder::new().name(format!("{}, {number}", crew.name)).stack_size(STACK_BYTES);
                workers.push((index, builder.spawn_scoped(scope, work).unwrap()));
            }
        }
        while !workers.iter().all(|(_, worker)| worker.is_finished()) {
            board.check();
            let is_over = Instant::now() >= end || workers.iter().any(|(_, worker)| worker.is_finished());
            stop.store(is_over, Ordering::Relaxed);
            thread::sleep(Duration::from_millis(50));
        }
        let mut tallies: Vec<Tally> = crews.iter().map(|_| Tally::default()).collect();
        for (index, worker) in workers {
            tallies[index].add(worker.join().unwrap());
        }
        tallies
    })
}
