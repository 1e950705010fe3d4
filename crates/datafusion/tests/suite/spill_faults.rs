// SPDX-License-Identifier: Apache-2.0
//! Temporary files that are cut, or cannot be written: each query says so, and leaves nothing.

use std::io::{Error, ErrorKind, Write};
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use arrow::array::RecordBatch;
use arrow::ipc::root_as_message;
use bytes::Bytes;
use datafusion::common::Result;
use datafusion::execution::disk_manager::DiskManagerBuilder;
use datafusion::execution::spill_file::{SpillFile, SpillWriter, TempFileFactory};
use datafusion::physical_plan::collect;
use device::UnifiedMemory;
use device::testing::{Fault, FaultPlan, sample};
use futures::{Stream, StreamExt, stream};

use crate::faults::assert_clear;
use crate::harness::{assert_returned, block_on, context, device_config, ordered_lines, text};
use crate::spill::{planned, register, session_on, session_with_disk, table};

/// The fault of all files.
#[derive(Clone, Copy, Debug, PartialEq)]
enum FileFault {
    /// Nothing.
    None,
    /// Reading gives no byte.
    Empty,
    /// Reading ends before the last message, so that the rest is a stream of its own.
    NoLastBatch,
    /// Reading ends within the last message.
    HalfABatch,
    /// No file is created.
    NotCreated,
    /// The disk is full after so many bytes of a file.
    Full(usize),
}

/// Files in memory, with a fault.
struct Files {
    fault: FileFault,
    open: Arc<AtomicUsize>,
}

struct File {
    fault: FileFault,
    bytes: Arc<Mutex<Vec<u8>>>,
    open: Arc<AtomicUsize>,
}

struct Writer {
    fault: FileFault,
    bytes: Arc<Mutex<Vec<u8>>>,
}

impl TempFileFactory for Files {
    fn create_temp_file(&self, _: &str) -> Result<Arc<dyn SpillFile>> {
        if self.fault == FileFault::NotCreated {
            return Err(Error::new(ErrorKind::PermissionDenied, "permission denied").into());
        }
        self.open.fetch_add(1, Relaxed);
        Ok(Arc::new(File { fault: self.fault, bytes: Arc::default(), open: Arc::clone(&self.open) }))
    }
}

impl SpillFile for File {
    fn size(&self) -> Option<u64> {
        Some(self.bytes.lock().unwrap().len() as u64)
    }

    fn read_stream(&self) -> Result<Pin<Box<dyn Stream<Item = Result<Bytes>> + Send>>> {
        let bytes = self.bytes.lock().unwrap().clone();
        let ends = message_ends(&bytes);
        let last = ends[ends.len() - 2];
        let kept = match self.fault {
            FileFault::Empty => 0,
            FileFault::NoLastBatch => last,
            FileFault::HalfABatch => (last + ends[ends.len() - 1]) / 2,
            FileFault::None | FileFault::NotCreated | FileFault::Full(_) => bytes.len(),
        };
        Ok(stream::iter([Ok(Bytes::from(bytes).slice(..kept))]).boxed())
    }

    fn open_writer(&self) -> Result<Box<dyn SpillWriter>> {
        Ok(Box::new(Writer { fault: self.fault, bytes: Arc::clone(&self.bytes) }))
    }
}

impl Drop for File {
    fn drop(&mut self) {
        self.open.fetch_sub(1, Relaxed);
    }
}

impl Write for Writer {
    fn write(&mut self, buffer: &[u8]) -> std::io::Result<usize> {
        let mut bytes = self.bytes.lock().unwrap();
        if let FileFault::Full(most) = self.fault
            && bytes.len() + buffer.len() > most
        {
            return Err(Error::new(ErrorKind::StorageFull, "no space left on device"));
        }
        bytes.extend_from_slice(buffer);
        Ok(buffer.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl SpillWriter for Writer {
    fn finish(&mut self) -> Result<()> {
        Ok(())
    }
}

/// The ends of the messages in a stream of Arrow's IPC format. The first one is the schema.
fn message_ends(bytes: &[u8]) -> Vec<usize> {
    let (mut at, mut ends) = (0, vec![]);
    while let Some(length) = bytes.get(at + 4..at + 8) {
        let length = u32::from_le_bytes(length.try_into().unwrap()) as usize;
        // The sentinel of the end.
        if length == 0 {
            break;
        }
        let message = root_as_message(&bytes[at + 8..at + 8 + length]).unwrap();
        at += 8 + length + message.bodyLength() as usize;
        ends.push(at);
    }
    ends
}

/// Queries of each operator that spills, with bytes of device memory.
const QUERIES: [(usize, &str, &str); 6] = [
    (6, "DeviceSortExec", "SELECT * FROM t ORDER BY many, row"),
    (6, "DeviceAggregateExec", "SELECT row, few, count(*) FROM t GROUP BY row, few"),
    (6, "DeviceAggregateExec", "SELECT count(DISTINCT many), count(DISTINCT row), count(DISTINCT text) FROM t"),
    (4, "DeviceJoinExec", "SELECT a.row, b.many FROM t AS a JOIN t AS b ON a.many = b.many"),
    (4, "DeviceJoinExec", "SELECT row FROM t AS a WHERE NOT EXISTS (SELECT 1 FROM t AS b WHERE b.row = a.row + 7)"),
    (
        8,
        "Device",
        "WITH w AS (SELECT many, count(*) AS n, sum(row) AS s FROM t GROUP BY many) \
         SELECT a.many, a.n, b.s FROM w a JOIN w b ON a.many = b.many WHERE b.s % 7 = 3",
    ),
];

/// Threads that write may drop their files after the query has ended.
async fn assert_all_are_dropped(open: &AtomicUsize) {
    let start = Instant::now();
    while open.load(Relaxed) > 0 {
        assert!(start.elapsed().as_secs() < 30, "files stay");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// The disk of a session whose files have a fault, and the number of files.
fn disk(fault: FileFault) -> (DiskManagerBuilder, Arc<AtomicUsize>) {
    let open = Arc::new(AtomicUsize::new(0));
    let files = Files { fault, open: Arc::clone(&open) };
    (DiskManagerBuilder::default().with_temp_file_factory(Arc::new(files)), open)
}

/// All queries fail with a message of these parts and the operator, and leave nothing. Returns the
/// messages.
fn assert_all_fail(fault: FileFault, expected: &[&str]) -> String {
    block_on(async {
        let (rows, mut messages) = (table(), String::new());
        for (mebibytes, operator, sql) in QUERIES {
            for unified in [UnifiedMemory::Auto, UnifiedMemory::Never] {
                let (disk, open) = disk(fault);
                let (ctx, context) = session_with_disk(mebibytes << 20, unified, disk);
                register(&ctx, "t", &rows);
                let plan = planned(&ctx, sql).await;
                let error = match collect(plan, ctx.task_ctx()).await {
                    Ok(batches) => {
                        let rows: usize = batches.iter().map(|batch| batch.num_rows()).sum();
                        panic!("{fault:?}, unified memory {unified:?}: {sql}: {rows} rows and no error")
                    }
                    Err(error) => text(&error),
                };
                assert!(expected.iter().all(|part| error.contains(part)), "{fault:?}: {sql}: {error}");
                assert!(error.contains(operator), "{fault:?}: {sql}: {error}");
                messages.push_str(&error);
                assert_returned(&context, 0);
                assert_all_are_dropped(&open).await;
            }
        }
        messages
    })
}

#[test]
fn files_that_are_empty_are_an_error() {
    assert_all_fail(FileFault::Empty, &["reads spilled rows", "ends after 0"]);
}

#[test]
fn files_without_their_last_batch_are_an_error() {
    let messages = assert_all_fail(FileFault::NoLastBatch, &["reads spilled rows"]);
    // Arrow's reader gives no error unless the file had one batch only.
    assert!(messages.contains("batches ends after"), "{messages}");
}

#[test]
fn files_that_end_within_a_batch_are_an_error() {
    assert_all_fail(FileFault::HalfABatch, &["reads spilled rows"]);
}

#[test]
fn files_that_cannot_be_created_are_an_error() {
    assert_all_fail(FileFault::NotCreated, &["spills rows to disk", "permission denied"]);
}

#[test]
fn a_full_disk_is_an_error() {
    assert_all_fail(FileFault::Full(0), &["spills rows to disk", "no space left"]);
    assert_all_fail(FileFault::Full(20_000), &["spills rows to disk", "no space left"]);
}

/// Failing calls of the device while rows spill: one, or all from then on. The calls are spread
/// over the query.
#[test]
fn faults_of_the_device_while_rows_spill_are_an_error_and_leave_nothing() {
    block_on(async {
        let rows = table();
        for (mebibytes, _, sql) in sample(QUERIES.to_vec()).unwrap() {
            let plan = FaultPlan::new();
            let device = device_config().with_memory_bytes(mebibytes << 20).with_unified_memory(UnifiedMemory::Never);
            let (disk, open) = disk(FileFault::None);
            let (ctx, context) = session_on(context(device.with_wrap(plan.wrap())), disk);
            register(&ctx, "t", &rows);
            let run = async || collect(planned(&ctx, sql).await, ctx.task_ctx()).await;
            let sorted = |batches: &[RecordBatch]| {
                let mut lines = ordered_lines(batches);
                lines.sort();
                lines
            };
            run().await.unwrap();
            let mut failed = 0;
            for fault in [Fault::Alloc, Fault::Launch, Fault::Copy] {
                // The pool keeps nothing for the next query, so that it allocates anew.
                context.trim();
                let before = plan.calls(fault);
                let expected = sorted(&run().await.unwrap());
                let calls = plan.calls(fault) - before;
                assert!(calls > 0, "{sql}: no {fault:?}");
                for (part, times) in [(1, 2), (2, u64::MAX), (3, 2), (4, u64::MAX), (5, 2)] {
                    context.trim();
                    plan.fail(fault, (calls * part / 5).max(1), times);
                    let result = run().await;
                    plan.heal();
                    match result {
                        Ok(batches) => assert!(sorted(&batches) == expected, "{sql}: {fault:?} {part}: another answer"),
                        Err(error) => {
                            failed += 1;
                            assert_clear(&text(&error), fault, sql);
                        }
                    }
                    assert_returned(&context, 0);
                    assert_all_are_dropped(&open).await;
                }
            }
            assert!(failed > 5, "{sql}: {failed} failures");
            assert!(run().await.is_ok(), "{sql}");
        }
    });
}
