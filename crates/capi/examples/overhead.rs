// SPDX-License-Identifier: Apache-2.0
//! What the C library adds to a short query over resident rows: `cargo build --release --workspace --example overhead`, then
//! `target/release/examples/overhead`.
//!
//! Medians of interleaved runs, in microseconds: through Rust's interface and through C's, planned once and planned each time.

use std::error::Error;
use std::ffi::CStr;
use std::ptr;
use std::sync::Arc;
use std::time::Instant;

use arrow::array::{ArrayRef, Int64Array, RecordBatch, RecordBatchIterator};
use arrow::ffi_stream::{ArrowArrayStreamReader, FFI_ArrowArrayStream};
use datafusion::prelude::SessionContext;
use devicefusion::DeviceTable;
use devicefusion_capi::config::{devicefusion_context_config_free, devicefusion_context_config_new};
use devicefusion_capi::context::{devicefusion_context, devicefusion_context_free, devicefusion_context_new};
use devicefusion_capi::query::{devicefusion_query, devicefusion_query_free, devicefusion_query_new, devicefusion_query_stream};
use devicefusion_capi::table::{DEVICEFUSION_TABLE_DEVICE, devicefusion_register_stream};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

const ROWS: i64 = 1_000_000;
const RUNS: usize = 301;
const SQL: &CStr = c"SELECT sum(v) AS sum, count(*) AS rows FROM t WHERE v % 7 <> 3";

fn rows() -> Result<RecordBatch> {
    let column: ArrayRef = Arc::new((0..ROWS).map(|row| row * 31 % 1_000_003).collect::<Int64Array>());
    Ok(RecordBatch::try_from_iter([("v", column)])?)
}

/// A context of the C library with the table.
struct C(*mut devicefusion_context);

impl C {
    fn new() -> Result<Self> {
        let config = devicefusion_context_config_new();
        let context = devicefusion_context_new(config);
        let batch = rows()?;
        let schema = batch.schema();
        let mut rows = FFI_ArrowArrayStream::new(Box::new(RecordBatchIterator::new([Ok(batch)], schema)));
        let kind = DEVICEFUSION_TABLE_DEVICE;
        // SAFETY: a C string and a stream of arrow-rs.
        checked(unsafe { devicefusion_register_stream(context, c"t".as_ptr(), &raw mut rows, kind) })?;
        // The context goes on without it.
        checked(devicefusion_context_config_free(config))?;
        Ok(Self(context))
    }

    fn plan(&self) -> Result<*mut devicefusion_query> {
        let mut query = ptr::null_mut();
        // SAFETY: a C string, and a place for the query.
        checked(unsafe { devicefusion_query_new(self.0, SQL.as_ptr(), &raw mut query) })?;
        Ok(query)
    }
}

fn run(query: *mut devicefusion_query) -> Result<usize> {
    let mut stream = FFI_ArrowArrayStream::empty();
    // SAFETY: a place for the stream.
    checked(unsafe { devicefusion_query_stream(query, &raw mut stream) })?;
    Ok(ArrowArrayStreamReader::try_new(stream)?.map(|batch| batch.map_or(0, |batch| batch.num_rows())).sum())
}

fn checked(code: i32) -> Result<()> {
    if code == 0 { Ok(()) } else { Err(format!("a call failed with {code}").into()) }
}

async fn session() -> Result<SessionContext> {
    let ctx = devicefusion::session()?;
    let batch = rows()?;
    let table = DeviceTable::try_from_batches(&ctx, batch.schema(), vec![batch]).await?;
    ctx.register_table("t", table)?;
    Ok(ctx)
}

fn main() -> Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let (rust, sql) = (runtime.block_on(session())?, SQL.to_str()?);
    let planned = runtime.block_on(rust.sql(sql))?;
    let c = C::new()?;
    let query = c.plan()?;

    let mut times = [const { Vec::new() }; 4];
    let mut timed = |index: usize, work: &mut dyn FnMut() -> Result<usize>| -> Result<()> {
        let start = Instant::now();
        let rows = work()?;
        times[index].push(start.elapsed());
        if rows == 1 { Ok(()) } else { Err(format!("expected one row, got {rows}").into()) }
    };
    for _ in 0..RUNS {
        timed(0, &mut || Ok(runtime.block_on(planned.clone().collect())?.iter().map(RecordBatch::num_rows).sum()))?;
        timed(1, &mut || run(query))?;
        timed(2, &mut || {
            let rows = runtime.block_on(async { rust.sql(sql).await?.collect().await })?;
            Ok(rows.iter().map(RecordBatch::num_rows).sum())
        })?;
        timed(3, &mut || {
            let query = c.plan()?;
            let rows = run(query);
            checked(devicefusion_query_free(query))?;
            rows
        })?;
    }
    let [rust_planned, c_planned, rust_anew, c_anew] = times.map(|mut times| {
        times.sort_unstable();
        times[times.len() / 2].as_secs_f64() * 1e6
    });
    println!("planned once:      Rust {rust_planned:.0}, C {c_planned:.0}, {:.3} x", c_planned / rust_planned);
    println!("planned each time: Rust {rust_anew:.0}, C {c_anew:.0}, {:.3} x", c_anew / rust_anew);

    checked(devicefusion_query_free(query))?;
    checked(devicefusion_context_free(c.0))
}
