// SPDX-License-Identifier: Apache-2.0
//! The timeline: start and end of the latest launches, by the device's clock.

use std::collections::{BTreeSet, VecDeque};
use std::ops::Range;
use std::sync::Arc;

use parking_lot::Mutex;
use serde_json::{Value, json};

/// Start and end of one launch.
///
/// All queues of a context share one clock, so records of different queues are comparable. Its zero
/// is the driver's choice. A CUDA GPU resolves half a microsecond.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LaunchRecord {
    /// The kernel's name in its source.
    pub kernel: Arc<str>,
    /// The [`number`](crate::Queue::number) of its queue.
    pub queue: u32,
    /// Start of the kernel in nanoseconds.
    pub start_nanos: u64,
    /// End of the kernel in nanoseconds; not less than the start.
    pub end_nanos: u64,
}

/// The latest launches of all queues of a context.
#[derive(Debug)]
pub(crate) struct Timeline {
    /// The most records.
    limit: usize,
    /// In the order of reading their times.
    latest: Mutex<VecDeque<LaunchRecord>>,
}

impl Timeline {
    /// A timeline of at most `limit` launches.
    pub(crate) fn new(limit: usize) -> Self {
        Self { limit, latest: Mutex::default() }
    }

    /// Adds a launch; at the limit it replaces the oldest one.
    pub(crate) fn push(&self, kernel: &Arc<str>, queue: u32, nanos: Range<u64>) {
        if self.limit == 0 {
            return;
        }
        let Range { start, end } = nanos;
        let record = LaunchRecord { kernel: Arc::clone(kernel), queue, start_nanos: start, end_nanos: end.max(start) };
        let mut latest = self.latest.lock();
        if latest.len() == self.limit {
            latest.pop_front();
        }
        latest.push_back(record);
    }

    /// The records, sorted by start.
    pub(crate) fn records(&self) -> Vec<LaunchRecord> {
        let mut records: Vec<LaunchRecord> = self.latest.lock().iter().cloned().collect();
        records.sort_by_key(|record| record.start_nanos);
        records
    }

    /// The records as trace events of a process `device`, whose threads are the queues.
    pub(crate) fn trace(&self, device: &str) -> Value {
        let records = self.records();
        let zero = records.first().map_or(0, |first| first.start_nanos);
        let micros = |nanos: u64| nanos as f64 / 1e3;
        let queues: BTreeSet<u32> = records.iter().map(|record| record.queue).collect();

        let process = json!({ "ph": "M", "name": "process_name", "pid": 1, "args": { "name": device } });
        let rows = queues.iter().map(|queue| {
            let name = format!("queue {queue}");
            json!({ "ph": "M", "name": "thread_name", "pid": 1, "tid": queue, "args": { "name": name } })
        });
        let launches = records.iter().map(|record| {
            let (start, time) = (record.start_nanos - zero, record.end_nanos - record.start_nanos);
            let (name, queue) = (&*record.kernel, record.queue);
            json!({ "ph": "X", "name": name, "cat": "kernel", "pid": 1, "tid": queue, "ts": micros(start), "dur": micros(time) })
        });
        let events: Vec<Value> = std::iter::once(process).chain(rows).chain(launches).collect();
        json!({ "traceEvents": events, "displayTimeUnit": "ns" })
    }
}
