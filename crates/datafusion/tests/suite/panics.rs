// SPDX-License-Identifier: Apache-2.0
//! A panic of a host operator is an error that names the operator, its scans and their files.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use arrow::array::{ArrayRef, Int64Array, RecordBatch, StringArray};
use arrow::datatypes::SchemaRef;
use datafusion::catalog::streaming::StreamingTable;
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::streaming::PartitionStream;
use datafusion::prelude::ParquetReadOptions;
use device::DeviceConfig;
use device::testing::FaultPlan;
use devicefusion::{DeviceRuntime, DeviceTable};
use futures::{StreamExt, stream};

use crate::harness::{answer, block_on, context, device_config, plain, set, strict, strict_on, text};

const PANIC: &str = "panicked with message \"a bug of the source\"";

/// Where a source panics.
#[derive(Debug, Clone, Copy, PartialEq)]
enum At {
    Start,
    FirstBatch,
    SecondBatch,
}

/// A partition of two batches that panics, after some runs without a panic.
#[derive(Debug)]
struct Panicking {
    batch: RecordBatch,
    at: At,
    runs_before: usize,
    runs: AtomicUsize,
}

impl PartitionStream for Panicking {
    fn schema(&self) -> &SchemaRef {
        self.batch.schema_ref()
    }

    fn execute(&self, _task: Arc<TaskContext>) -> SendableRecordBatchStream {
        let panics = self.runs.fetch_add(1, Ordering::Relaxed) >= self.runs_before;
        let (at, batch) = (self.at, self.batch.clone());
        let check = move |now| assert!(!panics || now != at, "a bug of the source");
        check(At::Start);
        let batches = stream::iter([At::FirstBatch, At::SecondBatch]).map(move |now| {
            check(now);
            Ok(batch.clone())
        });
        Box::pin(RecordBatchStreamAdapter::new(Arc::clone(self.schema()), batches))
    }
}

fn table(at: At, runs_before: usize, partitions: usize) -> Arc<StreamingTable> {
    let numbers = Arc::new(Int64Array::from_iter_values(0..100)) as ArrayRef;
    let strings = Arc::new(StringArray::from_iter_values((0..100).map(|row| format!("x{row}")))) as ArrayRef;
    let batch = RecordBatch::try_from_iter([("i", Arc::clone(&numbers)), ("k", numbers), ("s", strings)]).unwrap();
    let partition = || Panicking { batch: batch.clone(), at, runs_before, runs: AtomicUsize::new(0) };
    let partitions = (0..partitions).map(|_| Arc::new(partition()) as Arc<dyn PartitionStream>).collect();
    Arc::new(StreamingTable::try_new(batch.schema(), partitions).unwrap())
}

#[test]
fn a_source_that_panics_below_the_device_is_named() {
    block_on(async {
        for (at, partitions) in [(At::Start, 1), (At::FirstBatch, 2), (At::SecondBatch, 1), (At::SecondBatch, 2)] {
            let ctx = strict(partitions);
            ctx.register_table("t", table(at, 0, partitions)).unwrap();
            for sql in [
                "SELECT i + 1 FROM t WHERE k > 3",
                "SELECT k, count(*) FROM t GROUP BY k",
                "SELECT s FROM t ORDER BY k DESC",
                "SELECT count(*) FROM t a JOIN t b ON a.i = b.i",
                "SELECT sum(i) OVER (ORDER BY k) FROM t",
                "SELECT i + 1 FROM t UNION ALL SELECT k + 2 FROM t",
            ] {
                let error = text(&answer(&ctx, sql).await.unwrap_err());
                assert!(
                    error.contains(&format!("StreamingTableExec: {PANIC}")),
                    "{at:?}, {partitions} partitions, {sql}: {error}"
                );
            }
            let after = answer(&ctx, "SELECT sum(value) AS s FROM generate_series(1, 9)").await.unwrap();
            assert_eq!(after.lines(), ["| 45 |"]);
        }
    });
}

/// DataFusion spreads the one partition, in a task of its own.
#[test]
fn a_source_that_panics_below_an_operator_of_the_host_is_named() {
    block_on(async {
        let ctx = strict(2);
        set(&ctx, "device.fallback", "host");
        ctx.register_table("t", table(At::SecondBatch, 0, 1)).unwrap();
        for (sql, operator) in [
            ("SELECT md5(s) FROM t", "ProjectionExec over StreamingTableExec: "),
            ("SELECT count(*) FROM t WHERE md5(s) <> 'x'", "FilterExec over StreamingTableExec: "),
        ] {
            let error = text(&answer(&ctx, sql).await.unwrap_err());
            assert!(error.contains(operator) && error.contains(PANIC), "{sql}: {error}");
        }
    });
}

#[test]
fn a_source_that_panics_when_the_host_replaces_the_device_is_named() {
    block_on(async {
        let plan = FaultPlan::new();
        // Compiler options would be the user's mistake, which the host does not replace.
        let config = DeviceConfig::default().with_selector(device_config().selector);
        let ctx = strict_on(1, DeviceRuntime::with_context(context(config.with_wrap(plan.wrap()))));
        set(&ctx, "device.fallback", "host");
        // The device reads the first run.
        ctx.register_table("t", table(At::FirstBatch, 1, 1)).unwrap();
        plan.fail_compile(1);
        let error = text(&answer(&ctx, "SELECT sum(i * 3 - k) FROM t WHERE i < 99").await.unwrap_err());
        assert!(error.contains(&format!("StreamingTableExec: {PANIC}")), "{error}");
    });
}

/// The lengths of 400 strings in Parquet's DELTA_BYTE_ARRAY: 128 values in a block of 4 parts, 400
/// values, and the first length, which is 2.
const LENGTHS: &[u8] = &[0x80, 0x01, 0x04, 0x90, 0x03, 0x04];

#[test]
fn a_damaged_file_whose_reader_panics_is_named() {
    block_on(async {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("damaged.parquet");
        let name = path.to_str().unwrap();
        let rows = "SELECT value AS i, concat('x', value) AS s FROM generate_series(1, 400)";
        let options = "'format.compression' 'uncompressed', 'format.dictionary_enabled' 'false', \
                       'format.encoding::s' 'delta_byte_array'";
        plain(1).sql(&format!("COPY ({rows}) TO '{name}' OPTIONS ({options})")).await.unwrap().collect().await.unwrap();
        let mut bytes = std::fs::read(&path).unwrap();
        let found = bytes.windows(LENGTHS.len()).position(|window| window == LENGTHS).unwrap();
        // The length -3.
        bytes[found + LENGTHS.len() - 1] = 5;
        std::fs::write(&path, bytes).unwrap();

        let assert_named = |error: &str| {
            let named = error.contains("/damaged.parquet: ") && error.contains("; the file may be damaged");
            assert!(named && error.contains("panicked with message"), "{error}");
        };
        for partitions in [1, 2] {
            let ctx = strict(partitions);
            ctx.register_parquet("p", name, ParquetReadOptions::default()).await.unwrap();
            for sql in ["SELECT upper(s) FROM p WHERE i > 5", "SELECT max(s) FROM p WHERE i > 5", "SELECT i FROM p ORDER BY s"] {
                assert_named(&text(&answer(&ctx, sql).await.unwrap_err()));
            }
            assert_named(&text(&DeviceTable::load(&ctx, ctx.table("p").await.unwrap()).await.unwrap_err()));
            // The other column is whole.
            assert_eq!(answer(&ctx, "SELECT sum(i) AS s FROM p WHERE i > 0").await.unwrap().lines(), ["| 80200 |"]);
        }
    });
}
