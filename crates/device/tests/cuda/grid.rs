// SPDX-License-Identifier: Apache-2.0
//! How the emulator runs the threads of a grid: barriers, operations of a warp, shared memory, and
//! kernels that wait for ever.

use std::sync::Arc;

use device::{Buffer, Context, DeviceConfig, DriverKind, Grid, Meter, ProgramSource, Queue, Selector, Traffic};
use futures::executor::block_on;

use crate::emulator::Turn;

const BLOCKS: u32 = 3;
/// Two warps and a half.
const THREADS: u32 = 80;

fn open(turn: &Turn) -> Queue {
    let config = DeviceConfig::default().with_selector(Selector::Driver(DriverKind::Cuda)).with_nvrtc_path(&turn.nvrtc);
    Context::new(config).unwrap().queue().unwrap()
}

/// Launches `k(unsigned long long *out)` with this body, one number for each thread.
fn launch(queue: &Queue, body: &str) -> Buffer {
    let text = format!(
        "typedef unsigned int u32; typedef unsigned long long u64;
         extern \"C\" __global__ void k(u64 *out) {{
             u32 thread = threadIdx.x, lane = thread % 32, i = blockIdx.x * blockDim.x + thread;
             {body}
         }}"
    );
    let out = queue.zeroed((BLOCKS * THREADS * 8) as usize).unwrap();
    let program = block_on(queue.compile(ProgramSource::new(text, "tests"))).unwrap();
    let grid = Grid { work_groups: BLOCKS, work_group_size: THREADS };
    queue.launch(&program.kernel("k").unwrap(), grid, &[(&out).into()]).unwrap();
    out
}

/// The numbers of all threads.
fn run(queue: &Queue, body: &str) -> Vec<u64> {
    let out = launch(queue, body);
    let bytes = block_on(queue.read(&out, 0..out.len())).unwrap();
    bytes.chunks_exact(8).map(|bytes| u64::from_ne_bytes(bytes.try_into().unwrap())).collect()
}

/// The number that each thread, by its index in the block, is expected to give.
fn each(expected: impl Fn(u64) -> u64) -> Vec<u64> {
    (0..u64::from(BLOCKS)).flat_map(|_| 0..u64::from(THREADS)).map(expected).collect()
}

/// The seeds of all tests: the answers do not depend on the order of threads.
const SEEDS: [u32; 4] = [0, 1, 7, 400];

#[test]
fn threads_see_shared_memory_after_a_barrier() {
    let Some(turn) = Turn::take() else { return };
    let queue = open(&turn);
    for seed in SEEDS {
        turn.seed(seed);
        let numbers = run(
            &queue,
            "__shared__ u32 given[80];
             given[thread] = thread;
             __syncthreads();
             u32 other = given[blockDim.x - 1 - thread];
             __syncthreads();
             given[thread] = other * 2;
             __syncthreads();
             out[i] = given[(thread + 1) % blockDim.x];",
        );
        assert_eq!(numbers, each(|thread| 2 * (79 - (thread + 1) % 80)), "{seed}");
    }
}

#[test]
fn a_missing_barrier_shows_under_another_seed() {
    let Some(turn) = Turn::take() else { return };
    let queue = open(&turn);
    let racy = "__shared__ u32 given[80];
                given[thread] = thread;
                out[i] = given[(thread + 79) % 80];";
    let answers = SEEDS.map(|seed| {
        turn.seed(seed);
        run(&queue, racy)
    });
    assert!(answers[1..].iter().any(|answer| *answer != answers[0]));
}

#[test]
fn shared_memory_is_no_zeros_and_no_earlier_block() {
    let Some(turn) = Turn::take() else { return };
    let queue = open(&turn);
    let numbers = run(
        &queue,
        "__shared__ u64 given[80];
         u64 before = given[thread];
         __syncthreads();
         given[thread] = 1;
         out[i] = before;",
    );
    assert_eq!(numbers, each(|_| 0xABAB_ABAB_ABAB_ABAB));
}

#[test]
fn votes_have_the_lanes_of_their_mask() {
    let Some(turn) = Turn::take() else { return };
    let queue = open(&turn);
    for seed in SEEDS {
        turn.seed(seed);
        let votes = run(&queue, "out[i] = __ballot_sync(0xffffffffu, thread % 3 == 0);");
        let lanes = |thread: u64| (0..32).filter(move |lane| thread / 32 * 32 + lane < 80);
        let expected =
            |thread: u64| lanes(thread).filter(|lane| (thread / 32 * 32 + lane).is_multiple_of(3)).map(|lane| 1 << lane).sum();
        assert_eq!(votes, each(expected), "{seed}");
        let halves = run(
            &queue,
            "if (lane < 16) out[i] = __ballot_sync(0xffffu, lane % 2);
             else out[i] = __ballot_sync(0xffff0000u, lane % 2 == 0);",
        );
        assert_eq!(halves[..32], [[0xaaaa; 16], [0x5555_0000; 16]].concat(), "{seed}");
    }
}

#[test]
fn shuffles_give_the_value_of_another_lane() {
    let Some(turn) = Turn::take() else { return };
    let queue = open(&turn);
    let numbers = run(&queue, "out[i] = __shfl_sync(0xffffffffu, (u64)thread << 40, (int)(lane / 8 * 8));");
    assert_eq!(numbers, each(|thread| (thread / 8 * 8) << 40));
}

/// One lane adds for those that are active: far fewer additions than threads, and each thread has a
/// number of its own.
#[test]
fn active_lanes_add_together() {
    let Some(turn) = Turn::take() else { return };
    let queue = open(&turn);
    for seed in SEEDS {
        turn.seed(seed);
        let numbers = run(
            &queue,
            "__shared__ u64 next, adds;
             if (thread == 0) next = adds = 0;
             __syncthreads();
             u64 own = 0;
             if (thread % 2) {
                 u32 here = __activemask(), leader = (u32)__ffs((int)here) - 1;
                 u64 first = 0;
                 if (lane == leader) { first = atomicAdd(&next, (u64)__popc(here)); atomicAdd(&adds, (u64)1); }
                 own = __shfl_sync(here, first, (int)leader) + __popc(here & ((1u << lane) - 1));
             }
             __syncthreads();
             out[i] = thread % 2 ? own : adds;",
        );
        for block in numbers.chunks(THREADS as usize) {
            let mut own: Vec<u64> = block.iter().skip(1).step_by(2).copied().collect();
            own.sort_unstable();
            assert!(own.into_iter().eq(0..40), "{seed}");
            assert_eq!(block[0], 3, "one addition of each warp");
        }
    }
}

#[test]
fn threads_that_ended_are_not_waited_for() {
    let Some(turn) = Turn::take() else { return };
    let queue = open(&turn);
    let numbers = run(
        &queue,
        "if (thread >= 40) { out[i] = 1; return; }
         __syncthreads();
         out[i] = __ballot_sync(0xffffffffu, 1);",
    );
    let expected = |thread| match thread {
        40.. => 1,
        32.. => 0xff,
        _ => 0xffff_ffff,
    };
    assert_eq!(numbers, each(expected));
}

#[test]
fn a_lock_goes_from_thread_to_thread() {
    let Some(turn) = Turn::take() else { return };
    let queue = open(&turn);
    for seed in SEEDS {
        turn.seed(seed);
        // The holder waits for its warp while others spin.
        let numbers = run(
            &queue,
            "__shared__ u32 lock, count;
             if (thread == 0) lock = count = 0;
             __syncthreads();
             while (atomicCAS(&lock, 0u, 1u)) {}
             u32 mine = *(volatile u32 *)&count;
             if (__activemask() >> lane & 1) *(volatile u32 *)&count = mine + 1;
             atomicExch(&lock, 0u);
             __syncthreads();
             out[i] = count;",
        );
        assert_eq!(numbers, each(|_| 80), "{seed}");
    }
}

/// Asserts that a kernel with this body loses the device with this status.
#[track_caller]
fn loses(body: &str, status: &str) {
    let Some(turn) = Turn::take() else { return };
    let queue = open(&turn);
    let out = launch(&queue, body);
    let error = block_on(queue.read(&out, 0..8)).unwrap_err();
    assert!(error.is_device_lost() && error.to_string().contains(status), "{error}");
}

#[test]
fn a_barrier_that_is_never_complete_is_an_error() {
    loses("if (lane) __syncthreads(); else out[i] = __ballot_sync(0xffffffffu, 1);", "CUDA_ERROR_LAUNCH_TIMEOUT");
}

#[test]
fn a_lock_that_is_never_released_is_an_error() {
    loses(
        "__shared__ u32 lock; if (!thread) lock = 1; __syncthreads(); while (atomicCAS(&lock, 0u, 1u)) {}",
        "CUDA_ERROR_LAUNCH_TIMEOUT",
    );
}

#[test]
fn a_misaligned_access_is_an_error() {
    loses("out[i] = *(u64 *)((char *)out + 1 + lane);", "CUDA_ERROR_MISALIGNED_ADDRESS");
}

#[test]
fn more_threads_than_the_launch_bound_are_refused() {
    let Some(turn) = Turn::take() else { return };
    let queue = open(&turn);
    let text = "extern \"C\" __global__ void __launch_bounds__(64, 1) k(double *out) { out[threadIdx.x] = 1; }";
    let out = queue.zeroed(1024).unwrap();
    let program = block_on(queue.compile(ProgramSource::new(text, "tests"))).unwrap();
    let kernel = program.kernel("k").unwrap();
    let grid = |threads| Grid { work_groups: 1, work_group_size: threads };
    let error = queue.launch(&kernel, grid(65), &[(&out).into()]).unwrap_err();
    assert!(error.to_string().contains("CUDA_ERROR_INVALID_VALUE"), "{error}");
    queue.launch(&kernel, grid(64), &[(&out).into()]).unwrap();
    block_on(queue.finish()).unwrap();
}

#[test]
fn arguments_of_all_sizes_arrive() {
    let Some(turn) = Turn::take() else { return };
    let queue = open(&turn);
    let text = "extern \"C\" __global__ void k(double *out, char a, short b, int c, long long d, float e, double f) {
                    out[0] = a; out[1] = b; out[2] = c; out[3] = (double)d; out[4] = e; out[5] = f;
                }";
    let out = queue.zeroed(48).unwrap();
    let program = block_on(queue.compile(ProgramSource::new(text, "tests"))).unwrap();
    let kernel = program.kernel("k").unwrap();
    let arguments = [(&out).into(), (-1i8).into(), 2i16.into(), 3i32.into(), (-4i64).into(), 5.5f32.into(), 6.25f64.into()];
    queue.launch(&kernel, Grid { work_groups: 1, work_group_size: 1 }, &arguments).unwrap();
    let bytes = block_on(queue.read(&out, 0..48)).unwrap();
    let numbers: Vec<f64> = bytes.chunks_exact(8).map(|bytes| f64::from_ne_bytes(bytes.try_into().unwrap())).collect();
    assert_eq!(numbers, [-1.0, 2.0, 3.0, -4.0, 5.5, 6.25]);
}

/// The traffic of a kernel with this body.
fn traffic_of(queue: &Queue, body: &str) -> Traffic {
    let meter = Arc::new(Meter::default());
    run(&queue.metered(&meter), body);
    meter.traffic()
}

#[test]
fn traffic_is_counted_in_requests_and_sectors() {
    let Some(turn) = Turn::take() else { return };
    assert!(traffic_of(&open(&turn), "out[i] += 1;").is_empty(), "the emulator does not count yet");
    turn.count();
    // Kernels compiled before do not count.
    let queue = open(&turn);
    // The cache fetches a sector of each line, then the other three of each.
    let fetched = |traffic: Traffic| (traffic.memory_reads, traffic.memory_alone_reads);
    assert_eq!(fetched(traffic_of(&queue, "if (i % 16 == 0) out[i] += 1;")), (15, 15));
    // Three warps a block; eight bytes side by side are a quarter of a sector.
    let side_by_side = traffic_of(&queue, "out[i] += 1;");
    let loads = |traffic: Traffic| (traffic.load_requests, traffic.load_sectors, traffic.load_bytes, traffic.read_sectors);
    let stores = |traffic: Traffic| (traffic.store_requests, traffic.store_sectors, traffic.store_bytes, traffic.written_sectors);
    assert_eq!(side_by_side.threads, 240);
    assert_eq!(fetched(side_by_side), (45, 0));
    assert_eq!((loads(side_by_side), stores(side_by_side)), ((9, 60, 1920, 60), (9, 60, 1920, 60)));
    // A stride of one sector, in a block of 640 bytes: lanes have all of its 20 sectors.
    let strided = traffic_of(&queue, "out[i] = out[blockIdx.x * 80 + thread * 4 % 80];");
    assert_eq!(loads(strided), (9, 3 * (20 + 20 + 16), 1920, 60));
    assert_eq!(fetched(strided), (0, 0));
    let same = traffic_of(&queue, "out[i] = out[0];");
    assert_eq!(loads(same), (9, 9, 1920, 1));
    let twice = traffic_of(&queue, "u64 sum = 0; for (u32 k = 0; k < 2; ++k) sum += ((volatile u64 *)out)[i]; out[i] = sum;");
    assert_eq!((loads(twice), twice.warp_sectors), ((18, 120, 3840, 60), 60));
    // Lanes skip loads in some rounds of a loop, and differ in the rounds of an inner one.
    let filtered = traffic_of(
        &queue,
        "volatile u64 *in = out;
         u64 sum = 0, rounds = 3 + (in[0] >> 60);
         for (u32 k = 0; k < rounds; ++k) {
             u32 row = k * 80 + thread;
             u64 x = in[row];
             if ((lane + k) % 4 > x) sum += in[239 - row];
             for (u32 j = 0; j <= (lane + k) % 3; ++j) sum += in[row];
         }
         out[i] = sum;",
    );
    let (each_block, a_round) = (3, 3 * (1 + 1 + 3));
    let requests = each_block * (3 + 3 * a_round);
    assert_eq!((filtered.load_requests, filtered.load_sectors), (requests, each_block * (3 + 3 * 20 * 5)));
    let atomics = traffic_of(&queue, "__shared__ u64 sum; atomicAdd(&sum, (u64)1); atomicAdd(out + lane % 2, sum);");
    assert_eq!((atomics.atomic_requests, atomics.atomic_lanes, atomics.atomic_addresses), (9, 240, 18));
    assert_eq!((atomics.shared_requests, atomics.shared_lanes, atomics.shared_addresses), (9, 240, 9));
}
