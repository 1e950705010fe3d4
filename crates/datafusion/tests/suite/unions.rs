// SPDX-License-Identifier: Apache-2.0
//! Unions of many inputs: few of them are read at once, and plans that double take about as long as
//! on the host.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use arrow::array::{ArrayRef, Float64Array, Int64Array, RecordBatch};
use arrow::datatypes::SchemaRef;
use datafusion::catalog::streaming::StreamingTable;
use datafusion::common::Result;
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::streaming::PartitionStream;
use datafusion::prelude::SessionContext;
use device::testing::FaultPlan;
use devicefusion::DeviceRuntime;
use futures::{StreamExt, stream};

use crate::harness::{answer, block_on, context, device_config, plain, strict, strict_on};

const INPUTS: usize = 40;

/// Target partitions of the sessions.
const TARGET: usize = 2;

/// Numbers of open streams.
#[derive(Debug, Default)]
struct OpenStreams {
    now: AtomicUsize,
    most: AtomicUsize,
}

/// An open stream.
struct Open(Arc<OpenStreams>);

impl Open {
    fn new(streams: &Arc<OpenStreams>) -> Open {
        let now = streams.now.fetch_add(1, Ordering::SeqCst) + 1;
        streams.most.fetch_max(now, Ordering::SeqCst);
        Open(Arc::clone(streams))
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.0.now.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Rows whose open streams are counted.
#[derive(Debug)]
struct CountedStreams {
    rows: RecordBatch,
    streams: Arc<OpenStreams>,
}

impl PartitionStream for CountedStreams {
    fn schema(&self) -> &SchemaRef {
        self.rows.schema_ref()
    }

    fn execute(&self, _task: Arc<TaskContext>) -> SendableRecordBatchStream {
        let open = Open::new(&self.streams);
        let rows = stream::iter([Ok(self.rows.clone())]).map(move |rows| {
            let _ = &open;
            rows
        });
        Box::pin(RecordBatchStreamAdapter::new(Arc::clone(self.schema()), rows))
    }
}

#[test]
fn a_union_reads_as_many_inputs_at_once_as_the_session_has_target_partitions() {
    block_on(async {
        let (ctx, streams) = (strict(TARGET), Arc::new(OpenStreams::default()));
        for number in 0..INPUTS {
            let column = Arc::new(Int64Array::from(vec![number as i64])) as ArrayRef;
            let rows = RecordBatch::try_from_iter([("i", column)]).unwrap();
            let schema = rows.schema();
            let counted: Arc<dyn PartitionStream> = Arc::new(CountedStreams { rows, streams: Arc::clone(&streams) });
            let table = StreamingTable::try_new(schema, vec![counted]).unwrap();
            ctx.register_table(format!("t{number}"), Arc::new(table)).unwrap();
        }
        let union = |select: &str| {
            let inputs: Vec<_> = (0..INPUTS).map(|number| format!("SELECT {select} AS i FROM t{number}")).collect();
            inputs.join(" UNION ALL ")
        };
        for (sql, rows, first) in [
            // A union on the device, and one on the host.
            (format!("SELECT sum(i) FROM ({})", union("i + 1")), 1, Some("| 820 |")),
            (format!("SELECT sum(i) FROM ({})", union("i")), 1, Some("| 780 |")),
            (union("i + 1"), INPUTS, None),
            (format!("SELECT i FROM ({}) ORDER BY i % 7, i LIMIT 3", union("i + i")), 3, Some("| 0 |")),
        ] {
            streams.most.store(0, Ordering::SeqCst);
            let answer = answer(&ctx, &sql).await.unwrap();
            assert!(answer.launches > 0, "{sql}: nothing was launched");
            assert_eq!(answer.num_rows(), rows, "{sql}");
            assert!(first.is_none_or(|first| answer.ordered_lines()[0] == first), "{sql}: {:?}", answer.ordered_lines());
            let most = streams.most.load(Ordering::SeqCst);
            assert!((1..=TARGET).contains(&most), "{sql}: {most} inputs were open at once");
        }
    });
}

/// A stream without rows that never ends.
#[derive(Debug)]
struct Silent(SchemaRef);

impl PartitionStream for Silent {
    fn schema(&self) -> &SchemaRef {
        &self.0
    }

    fn execute(&self, _task: Arc<TaskContext>) -> SendableRecordBatchStream {
        Box::pin(RecordBatchStreamAdapter::new(Arc::clone(&self.0), stream::pending::<Result<RecordBatch>>()))
    }
}

#[test]
fn no_input_of_a_union_waits_for_the_end_of_an_unbounded_one() {
    block_on(async {
        let ctx = strict(1);
        let column = Arc::new(Int64Array::from_iter_values(0..100)) as ArrayRef;
        let rows = RecordBatch::try_from_iter([("i", column)]).unwrap();
        let schema = rows.schema();
        let numbers = CountedStreams { rows, streams: Arc::default() };
        let tables: [(&str, Arc<dyn PartitionStream>); 2] =
            [("silent", Arc::new(Silent(Arc::clone(&schema)))), ("numbers", Arc::new(numbers))];
        for (name, partition) in tables {
            let table = StreamingTable::try_new(Arc::clone(&schema), vec![partition]).unwrap();
            ctx.register_table(name, Arc::new(table.with_infinite_table(true))).unwrap();
        }
        let sql = "SELECT i + 1 AS i FROM (SELECT i FROM silent UNION ALL SELECT i FROM numbers) WHERE i > 3 LIMIT 3";
        let answer = answer(&ctx, sql).await.unwrap();
        assert!(answer.launches > 0, "nothing was launched");
        assert_eq!(answer.lines(), ["| 5 |", "| 6 |", "| 7 |"]);
    });
}

#[test]
fn the_memory_of_a_union_does_not_grow_with_its_inputs() {
    block_on(async {
        let plan = FaultPlan::masking(|info| info.unified_memory = false);
        let context = context(device_config().with_memory_bytes(16 << 20).with_wrap(plan.wrap()));
        let ctx = strict_on(TARGET, DeviceRuntime::with_context(context));
        let column = Arc::new(Float64Array::from_iter_values((0..100_000).map(|row| f64::from(row % 100)))) as ArrayRef;
        let columns = ["a", "b", "c", "d"].map(|name| (name, Arc::clone(&column)));
        ctx.register_batch("t", RecordBatch::try_from_iter(columns).unwrap()).unwrap();
        let inputs = vec!["SELECT a + 1 AS a, b, c, d FROM t"; INPUTS].join(" UNION ALL ");
        // Some batches of all inputs at once would need several times the limit.
        let sums = answer(&ctx, &format!("SELECT sum(a), sum(b + c), sum(d) FROM ({inputs})")).await.unwrap();
        assert_eq!(sums.lines(), ["| 202000000.0 | 396000000.0 | 198000000.0 |"]);
    });
}

/// Unions of a table with itself, each of the one before.
const DOUBLINGS: usize = 10;

#[test]
fn a_union_that_doubles_ten_times_takes_at_most_a_few_times_as_long_as_on_the_host() {
    block_on(async {
        let mut tables = vec!["a0 AS (SELECT i + 1 AS x FROM t)".to_string()];
        tables.extend((1..=DOUBLINGS).map(|level| {
            let before = level - 1;
            format!("a{level} AS (SELECT * FROM a{before} UNION ALL SELECT * FROM a{before})")
        }));
        let sql = format!("WITH {} SELECT count(*), sum(x) FROM a{DOUBLINGS}", tables.join(", "));
        let timed = async |ctx: &SessionContext| {
            let table = "CREATE TABLE t AS SELECT value AS i FROM generate_series(1, 100)";
            ctx.sql(table).await.unwrap().collect().await.unwrap();
            let begin = Instant::now();
            let answer = answer(ctx, &sql).await.unwrap();
            (answer, begin.elapsed())
        };
        let (expected, on_host) = timed(&plain(TARGET)).await;
        let (actual, on_device) = timed(&strict(TARGET)).await;
        println!("{on_host:?} on the host, {on_device:?} on the device");
        assert!(actual.launches > 0, "nothing was launched");
        assert_eq!(expected.lines(), ["| 102400 | 5273600 |"]);
        assert_eq!(actual.lines(), expected.lines());
        // Such a union took 41.8 s, and the host 6.6 s.
        assert!(on_device < on_host * 3 + Duration::from_secs(10), "{on_device:?}, and {on_host:?} on the host");
    });
}
