// SPDX-License-Identifier: Apache-2.0
//! Faults after the first rows: the host may take over no more, for it would give rows twice.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use arrow::array::{ArrayRef, AsArray, Int64Array, RecordBatch};
use arrow::datatypes::{Int64Type, SchemaRef};
use datafusion::catalog::streaming::StreamingTable;
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_plan::execute_stream_partitioned;
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::streaming::PartitionStream;
use datafusion::prelude::SessionContext;
use device::testing::{Fault, FaultPlan};
use device::{Context, DeviceConfig};
use devicefusion::DeviceRuntime;
use futures::{StreamExt, stream};

use crate::harness::{block_on, context, device_config, set, strict_on, text};

/// Batches of a partition. A few of them are on their way when the first rows are given.
const BATCHES: i64 = 40;
const BATCH_ROWS: i64 = 1000;

/// A part of the message of each fault.
const INJECTED: &str = "a fault that a test injected";

const SQL: &str = "SELECT i * 3 AS x FROM t WHERE i % 10 > 2";

/// Rows of a partition.
fn expected() -> Vec<i64> {
    (0..BATCHES * BATCH_ROWS).filter(|i| i % 10 > 2).map(|i| i * 3).collect()
}

/// A partition with the numbers from 0, which counts its scans.
#[derive(Debug)]
struct CountedScans {
    schema: SchemaRef,
    scans: Arc<AtomicUsize>,
}

fn batch(number: i64) -> RecordBatch {
    let column = Int64Array::from_iter_values(number * BATCH_ROWS..(number + 1) * BATCH_ROWS);
    RecordBatch::try_from_iter([("i", Arc::new(column) as ArrayRef)]).unwrap()
}

impl PartitionStream for CountedScans {
    fn schema(&self) -> &SchemaRef {
        &self.schema
    }

    fn execute(&self, _task: Arc<TaskContext>) -> SendableRecordBatchStream {
        self.scans.fetch_add(1, Ordering::SeqCst);
        let batches = stream::iter((0..BATCHES).map(|number| Ok(batch(number))));
        Box::pin(RecordBatchStreamAdapter::new(Arc::clone(&self.schema), batches))
    }
}

/// A session with the host in place of a device that refuses a query.
struct FaultyPlan {
    ctx: SessionContext,
    context: Context,
    plan: FaultPlan,
    scans: Arc<AtomicUsize>,
}

impl FaultyPlan {
    fn new(partitions: usize) -> FaultyPlan {
        // Memory of its own lets each batch be copied.
        let plan = FaultPlan::masking(|info| info.unified_memory = false);
        // Compiler options would be the user's mistake, which the host does not replace.
        let config = DeviceConfig::default().with_selector(device_config().selector);
        let context = context(config.with_wrap(plan.wrap()));
        let ctx = strict_on(partitions, DeviceRuntime::with_context(context.clone()));
        set(&ctx, "device.fallback", "host");
        set(&ctx, "device.batch_rows", &BATCH_ROWS.to_string());
        let (schema, scans) = (batch(0).schema(), Arc::new(AtomicUsize::new(0)));
        let partition = || CountedScans { schema: Arc::clone(&schema), scans: Arc::clone(&scans) };
        let counted = (0..partitions).map(|_| Arc::new(partition()) as Arc<dyn PartitionStream>).collect();
        ctx.register_table("t", Arc::new(StreamingTable::try_new(Arc::clone(&schema), counted).unwrap())).unwrap();
        FaultyPlan { ctx, context, plan, scans }
    }

    /// Starts the query. Returns its partitions.
    async fn start(&self) -> Vec<SendableRecordBatchStream> {
        let plan = self.ctx.sql(SQL).await.unwrap().create_physical_plan().await.unwrap();
        execute_stream_partitioned(plan, self.ctx.task_ctx()).unwrap()
    }

    /// Lets all calls of a kind fail. No program that was compiled before saves a call.
    fn fail(&self, fault: Fault) {
        self.context.trim();
        self.plan.fail(fault, 1, u64::MAX);
    }

    fn scans(&self) -> usize {
        self.scans.load(Ordering::SeqCst)
    }
}

/// The next rows of a partition, or the message of its error.
async fn next(rows: &mut SendableRecordBatchStream) -> Option<Result<Vec<i64>, String>> {
    let next = tokio::time::timeout(Duration::from_secs(60), rows.next()).await.expect("no rows after 60 seconds");
    next.map(|batch| match batch {
        Ok(batch) => Ok(batch.column(0).as_primitive::<Int64Type>().values().to_vec()),
        Err(error) => Err(text(&error)),
    })
}

/// Reads a partition up to its end or its error.
async fn rest(rows: &mut SendableRecordBatchStream) -> (Vec<i64>, Option<String>) {
    let mut given = Vec::new();
    loop {
        match next(rows).await {
            Some(Ok(more)) => given.extend(more),
            Some(Err(error)) => return (given, Some(error)),
            None => return (given, None),
        }
    }
}

#[test]
fn a_fault_after_the_first_rows_is_an_error_and_no_row_is_given_twice() {
    block_on(async {
        let (faulty, expected) = (FaultyPlan::new(1), expected());
        // The host does take over before the first rows, from a compiler that fails.
        faulty.fail(Fault::Compile);
        assert_eq!(rest(&mut faulty.start().await[0]).await, (expected.clone(), None));
        faulty.plan.heal();
        for (fault, batches) in [(Fault::Compile, 1), (Fault::Launch, 1), (Fault::Copy, 1), (Fault::Launch, 0), (Fault::Copy, 0)]
        {
            let before = faulty.scans();
            let mut partitions = faulty.start().await;
            let mut given = Vec::new();
            for _ in 0..batches {
                given.extend(next(&mut partitions[0]).await.unwrap().unwrap());
            }
            assert_eq!(given.is_empty(), batches == 0);
            faulty.fail(fault);
            let (more, error) = rest(&mut partitions[0]).await;
            faulty.plan.heal();
            given.extend(more);
            let rows = given.len();
            let error = error.unwrap_or_else(|| panic!("{fault:?} after {batches} batches: no error, {rows} rows"));
            assert!(error.contains(INJECTED), "{fault:?} after {batches} batches: {error}");
            assert!(rows < expected.len() && given == expected[..rows], "{fault:?} after {batches} batches: {rows} rows");
            assert_eq!(faulty.scans() - before, 1, "{fault:?} after {batches} batches: the host reads the table again");
            drop(partitions);
            assert_eq!(rest(&mut faulty.start().await[0]).await, (expected.clone(), None), "after {fault:?}");
        }
    });
}

/// The host gives all partitions at once, so it may give none.
#[test]
fn a_refusal_after_the_first_rows_of_another_partition_is_an_error() {
    block_on(async {
        let faulty = FaultyPlan::new(2);
        let mut partitions = faulty.start().await;
        assert_eq!(partitions.len(), 2);
        assert!(!next(&mut partitions[0]).await.unwrap().unwrap().is_empty());
        faulty.fail(Fault::Compile);
        let (given, error) = rest(&mut partitions[1]).await;
        assert!(given.is_empty(), "{} rows of a partition that cannot begin", given.len());
        assert!(error.as_ref().is_some_and(|error| error.contains(INJECTED)), "{error:?}");
        assert_eq!(faulty.scans(), 2, "the host reads the table again");
        faulty.plan.heal();
        drop(partitions);
        for mut rows in faulty.start().await {
            assert_eq!(rest(&mut rows).await, (expected(), None));
        }
    });
}
