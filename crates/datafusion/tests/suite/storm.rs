// SPDX-License-Identifier: Apache-2.0
//! A storm of cancelled queries: the process has few threads and little memory, and its free memory
//! returns.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};

use arrow::array::{ArrayRef, Int64Array, RecordBatch};
use datafusion::datasource::MemTable;
use datafusion::physical_plan::execute_stream_partitioned;
use datafusion::prelude::SessionContext;
use device::DeviceKind;
use devicefusion::DeviceRuntime;
use futures::{TryStreamExt, future, stream};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use tokio::runtime::Handle;

use crate::harness::{answer, block_on, context, device_config, set, strict_on};

const STORM: Duration = Duration::from_secs(5);
const CLIENTS: usize = 24;

/// Milliseconds that a client waits at most before it cancels. Shorter waits make a higher rate.
const LONGEST_WAIT: u64 = 100;

/// Queries that the storm cancels at least. On a busy machine it lasts longer for them.
const CANCELS: usize = 100;
const LONGEST_STORM: Duration = Duration::from_secs(60);

/// Host memory that the storm may add: queries of all clients, and what the pool keeps.
const MOST_GROWTH: usize = 300 << 20;

/// Partitions of a query. Each of them leases a queue.
const PARTITIONS: usize = 12;

/// Queues of a context. Each of them has a thread.
const QUEUES: usize = 32;

const BATCH_ROWS: i64 = 2048;

/// Tables of the same rows, with the number of their batches in each partition. A query of `long`
/// takes longer than a client waits.
const TABLES: [(&str, usize); 2] = [("long", 400), ("short", 1)];

async fn session(runtime: Arc<DeviceRuntime>) -> SessionContext {
    let ctx = strict_on(PARTITIONS, runtime);
    set(&ctx, "device.batch_rows", &BATCH_ROWS.to_string());
    let column = |modulus| Arc::new(Int64Array::from_iter_values((0..BATCH_ROWS).map(|i| i % modulus))) as ArrayRef;
    let batch = RecordBatch::try_from_iter([("i", column(BATCH_ROWS)), ("k", column(100))]).unwrap();
    for (name, batches) in TABLES {
        let table = MemTable::try_new(batch.schema(), vec![vec![batch.clone(); batches]; PARTITIONS]).unwrap();
        ctx.register_table(name, Arc::new(table)).unwrap();
    }
    // Compiles the kernels.
    for sql in [filtered("short"), sorted(BATCH_ROWS)] {
        assert!(answer(&ctx, &sql).await.unwrap().launches > 0, "{sql}: nothing was launched");
    }
    ctx
}

fn filtered(table: &str) -> String {
    format!("SELECT i * 3 AS x FROM {table} WHERE k > 2")
}

/// A query with sizes of buffers that follow `rows`.
fn sorted(rows: i64) -> String {
    format!("SELECT i, k FROM short WHERE i < {rows} ORDER BY k, i")
}

/// Starts queries and drops each after a random time. Counts those that had not ended.
async fn client(ctx: &SessionContext, seed: u64, stopped: &AtomicBool, cancelled: &AtomicUsize) {
    let mut rng = StdRng::seed_from_u64(seed);
    while !stopped.load(Relaxed) {
        let sql = if rng.random_bool(0.5) { filtered("long") } else { sorted(rng.random_range(100..BATCH_ROWS)) };
        let plan = ctx.sql(&sql).await.unwrap().create_physical_plan().await.unwrap();
        let partitions = execute_stream_partitioned(plan, ctx.task_ctx()).unwrap();
        let rows = stream::select_all(partitions).try_for_each(|_| future::ready(Ok(())));
        match tokio::time::timeout(Duration::from_millis(rng.random_range(0..LONGEST_WAIT)), rows).await {
            Ok(ended) => ended.unwrap(),
            Err(_) => _ = cancelled.fetch_add(1, Relaxed),
        }
    }
}

/// A number of the process's status.
fn status(name: &str) -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let value = status.lines().find_map(|line| line.strip_prefix(name)).unwrap();
    value.split_whitespace().next().unwrap().parse().unwrap()
}

fn threads_of_process() -> usize {
    status("Threads:")
}

/// Resident bytes of the process that belong to no file.
fn resident_bytes() -> usize {
    status("RssAnon:") << 10
}

#[test]
fn a_storm_of_cancelled_queries_has_few_threads_and_returns_its_memory() {
    block_on(async {
        let context = context(device_config());
        let ctx = session(DeviceRuntime::with_context(context.clone())).await;
        let pool = context.pool();
        let (before, resident_before) = (threads_of_process(), resident_bytes());
        let (start, handle) = (Instant::now(), &Handle::current());
        let (stopped, cancelled) = (&AtomicBool::new(false), &AtomicUsize::new(0));
        let (ctx, mut threads, mut resident, mut surplus) = (&ctx, 0, 0, 0);
        let seconds = std::thread::scope(|scope| {
            let start_client = |seed| scope.spawn(move || handle.block_on(client(ctx, seed, stopped, cancelled)));
            let clients: Vec<_> = (0..CLIENTS as u64).map(start_client).collect();
            while start.elapsed() < STORM || (cancelled.load(Relaxed) < CANCELS && start.elapsed() < LONGEST_STORM) {
                threads = threads.max(threads_of_process());
                resident = resident.max(resident_bytes());
                // Twice of what was in use, and what cancelled queries still use.
                surplus = surplus.max(pool.cached().saturating_sub(3 * pool.peak()));
                std::thread::sleep(Duration::from_millis(20));
            }
            stopped.store(true, Relaxed);
            clients.into_iter().for_each(|client| client.join().unwrap());
            start.elapsed().as_secs_f64()
        });
        let (cancelled, growth) = (cancelled.load(Relaxed), resident.saturating_sub(resident_before));
        println!("{cancelled} cancelled, {:.0} a second, {threads} threads", cancelled as f64 / seconds);
        println!("{growth} more bytes resident, {} free, at most {} in use", pool.cached(), pool.peak());
        assert!(cancelled >= CANCELS, "{cancelled} queries were cancelled");
        // Also the pool's thread, and compilations.
        let most = before + CLIENTS + QUEUES + 1 + std::thread::available_parallelism().map_or(1, usize::from);
        assert!(threads <= most, "{threads} threads, {before} before the storm");
        if context.info().kind != DeviceKind::Cpu {
            // A GPU's memory stays with the pool.
            return;
        }
        assert!(growth < MOST_GROWTH, "{growth} more bytes are resident than the {resident_before} before the storm");
        assert_eq!(surplus, 0, "bytes are free beyond thrice the {} that were in use", pool.peak());
        let end = Instant::now();
        while pool.cached() > 0 {
            assert!(end.elapsed() < Duration::from_secs(40), "{} bytes stay free", pool.cached());
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    });
}
