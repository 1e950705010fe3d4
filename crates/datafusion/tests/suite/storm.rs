// SPDX-License-Identifier: Apache-2.0
//! A storm of cancelled queries: the process has few threads, and its free memory returns.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
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
const CLIENTS: usize = 8;

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

/// A query whose buffers have sizes that follow `rows`.
fn sorted(rows: i64) -> String {
    format!("SELECT i, k FROM short WHERE i < {rows} ORDER BY k, i")
}

/// Starts queries and drops each after a random time. Returns how many had not ended.
async fn client(ctx: &SessionContext, seed: u64, stopped: &AtomicBool) -> usize {
    let mut rng = StdRng::seed_from_u64(seed);
    let mut cancelled = 0;
    while !stopped.load(Relaxed) {
        let sql = if rng.random_bool(0.5) { filtered("long") } else { sorted(rng.random_range(100..BATCH_ROWS)) };
        let plan = ctx.sql(&sql).await.unwrap().create_physical_plan().await.unwrap();
        let partitions = execute_stream_partitioned(plan, ctx.task_ctx()).unwrap();
        let rows = stream::select_all(partitions).try_for_each(|_| future::ready(Ok(())));
        match tokio::time::timeout(Duration::from_millis(rng.random_range(0..300)), rows).await {
            Ok(ended) => ended.unwrap(),
            Err(_) => cancelled += 1,
        }
    }
    cancelled
}

fn threads_of_process() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    status.lines().find_map(|line| line.strip_prefix("Threads:")).unwrap().trim().parse().unwrap()
}

#[test]
fn a_storm_of_cancelled_queries_has_few_threads_and_returns_its_memory() {
    block_on(async {
        let context = context(device_config());
        let ctx = session(DeviceRuntime::with_context(context.clone())).await;
        let pool = context.pool();
        let before = threads_of_process();
        let (start, stopped, handle) = (Instant::now(), &AtomicBool::new(false), &Handle::current());
        let (ctx, mut threads, mut surplus) = (&ctx, 0, 0);
        let cancelled: usize = std::thread::scope(|scope| {
            let start_client = |seed| scope.spawn(move || handle.block_on(client(ctx, seed, stopped)));
            let clients: Vec<_> = (0..CLIENTS as u64).map(start_client).collect();
            while start.elapsed() < STORM {
                threads = threads.max(threads_of_process());
                // Twice of what was in use, and what cancelled queries still use.
                surplus = surplus.max(pool.cached().saturating_sub(3 * pool.peak()));
                std::thread::sleep(Duration::from_millis(20));
            }
            stopped.store(true, Relaxed);
            clients.into_iter().map(|client| client.join().unwrap()).sum()
        });
        println!("{cancelled} cancelled, {threads} threads, {} bytes free, at most {} in use", pool.cached(), pool.peak());
        assert!(cancelled > CLIENTS, "{cancelled} queries were cancelled");
        // Also the pool's thread, and compilations.
        let most = before + CLIENTS + QUEUES + 1 + std::thread::available_parallelism().map_or(1, usize::from);
        assert!(threads <= most, "{threads} threads, {before} before the storm");
        if context.info().kind != DeviceKind::Cpu {
            // A GPU's memory stays with the pool.
            return;
        }
        assert_eq!(surplus, 0, "bytes are free beyond thrice the {} that were in use", pool.peak());
        let end = Instant::now();
        while pool.cached() > 0 {
            assert!(end.elapsed() < Duration::from_secs(40), "{} bytes stay free", pool.cached());
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    });
}
