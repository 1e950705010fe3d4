// SPDX-License-Identifier: Apache-2.0
//! Overhead of the C library for a short query over resident rows: medians of interleaved runs
//! through Rust and through C. For release figures: `cargo test --release --workspace --test capi
//! overhead -- --nocapture`.

use std::sync::Arc;
use std::time::{Duration, Instant};

use arrow::array::{ArrayRef, Int64Array, RecordBatch};
use arrow::ffi_stream::ArrowArrayStreamReader;
use datafusion::execution::runtime_env::RuntimeEnv;
use datafusion::prelude::{SessionConfig, SessionContext};
use devicefusion::{DeviceOptions, DeviceTable};
use devicefusion_capi::table::DEVICEFUSION_TABLE_DEVICE;
use tokio::runtime::{Builder, Runtime};

use crate::support::{Context, Query};

const ROWS: i64 = 2_000_000;
const RUNS: usize = 61;
/// The largest ratio of C's time to Rust's.
const LIMIT: f64 = 1.05;
/// Attempts, because other work on the machine can disturb a measurement.
const ATTEMPTS: usize = 8;
const SQL: &str = "SELECT sum(v) AS sum, count(*) AS rows FROM t WHERE v % 7 <> 3";

fn rows() -> RecordBatch {
    let column: ArrayRef = Arc::new((0..ROWS).map(|row| row * 31 % 1_000_003).collect::<Int64Array>());
    RecordBatch::try_from_iter([("v", column)]).unwrap()
}

/// A session like a context of the C library, with the table.
async fn session() -> SessionContext {
    let mut config = SessionConfig::new().with_option_extension(DeviceOptions::default());
    let selector = device::testing::config().unwrap().selector.to_string();
    for (name, value) in [("device.selector", selector.as_str()), ("device.fallback", "error")] {
        config.options_mut().set(name, value).unwrap();
    }
    let ctx = devicefusion::session_with(config, Arc::new(RuntimeEnv::default())).unwrap();
    let table = DeviceTable::try_from_batches(&ctx, rows().schema(), vec![rows()]).await.unwrap();
    ctx.register_table("t", table).unwrap();
    ctx
}

fn run(query: &Query<'_>) -> usize {
    ArrowArrayStreamReader::try_new(query.stream()).unwrap().map(|batch| batch.unwrap().num_rows()).sum()
}

/// The medians of both, which alternate in running first.
fn medians(mut rust: impl FnMut() -> usize, mut c: impl FnMut() -> usize) -> [Duration; 2] {
    let mut times = [const { Vec::new() }; 2];
    for run in 0..RUNS {
        for turn in 0..2 {
            let which = (run + turn) % 2;
            let start = Instant::now();
            let rows = if which == 0 { rust() } else { c() };
            times[which].push(start.elapsed());
            assert_eq!(rows, 1);
        }
    }
    times.map(|mut times| {
        times.sort_unstable();
        times[RUNS / 2]
    })
}

#[track_caller]
fn check(what: &str, mut medians: impl FnMut() -> [Duration; 2]) {
    for _ in 0..ATTEMPTS {
        let [rust, c] = medians();
        let ratio = c.as_secs_f64() / rust.as_secs_f64();
        println!("{what}: Rust {} us, C {} us, {ratio:.3} x", rust.as_micros(), c.as_micros());
        if ratio <= LIMIT {
            return;
        }
    }
    panic!("{what}: C took more than {LIMIT} x as long as Rust in each of {ATTEMPTS} attempts");
}

#[test]
fn a_short_query_takes_about_as_long_through_c_as_through_rust() {
    let runtime: Runtime = Builder::new_multi_thread().enable_all().build().unwrap();
    let rust = runtime.block_on(session());
    let planned = runtime.block_on(rust.sql(SQL)).unwrap();
    let context = Context::new();
    context.ok(context.register("t", vec![rows()], DEVICEFUSION_TABLE_DEVICE));
    let query = context.query(SQL);

    let count = |batches: Vec<RecordBatch>| batches.iter().map(RecordBatch::num_rows).sum();
    check("planned once", || medians(|| count(runtime.block_on(planned.clone().collect()).unwrap()), || run(&query)));
    check("planned each time", || {
        let anew = || count(runtime.block_on(async { rust.sql(SQL).await?.collect().await }).unwrap());
        medians(anew, || run(&context.query(SQL)))
    });
}
