// SPDX-License-Identifier: Apache-2.0
//! When each kernel ran: the latest launches of a context, by the device's own clock.

use std::collections::{BTreeSet, VecDeque};
use std::ops::Range;
use std::sync::Arc;

use parking_lot::Mutex;
use serde_json::{Value, json};

/// One launch as the device has timed it.
///
/// All queues of a context go by one clock, so that records of different queues compare. Its zero is the driver's
/// choice; a GPU of CUDA's resolves half a microsecond.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LaunchRecord {
    /// The kernel's name in its program's text.
    pub kernel: Arc<str>,
    /// The queue that it ran in: its [`number`](crate::Queue::number).
    pub queue: u32,
    /// When the kernel began, in nanoseconds.
    pub start_nanos: u64,
    /// When it had ended, in nanoseconds; not less than the start.
    pub end_nanos: u64,
}

/// The latest launches of a context, of all its lanes.
#[derive(Debug)]
pub(crate) struct Timeline {
    /// How many are kept.
    limit: usize,
    /// In the order in which their times were read.
    latest: Mutex<VecDeque<LaunchRecord>>,
}

impl Timeline {
    /// One that keeps `limit` launches.
    pub(crate) fn new(limit: usize) -> Self {
        Self { limit, latest: Mutex::default() }
    }

    /// Adds a launch, in the place of the oldest one where there are enough.
    pub(crate) fn note(&self, kernel: &Arc<str>, queue: u32, nanos: Range<u64>) {
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

    /// What is kept, by its start.
    pub(crate) fn records(&self) -> Vec<LaunchRecord> {
        let mut records: Vec<LaunchRecord> = self.latest.lock().iter().cloned().collect();
        records.sort_by_key(|record| record.start_nanos);
        records
    }

    /// What is kept as trace events of a process `device`, whose threads are the queues.
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
