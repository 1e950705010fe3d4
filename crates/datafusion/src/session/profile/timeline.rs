// SPDX-License-Identifier: Apache-2.0
//! The timeline of a run, and where its time went.

use std::collections::BTreeMap;
use std::ops::Range;
use std::thread::ThreadId;
use std::time::Instant;

use device::WorkKind;
use serde::Serialize;

use super::Times;
use super::plan::Tree;
use super::record::nanos;
use crate::run::{Activity, ActivityKind};

/// Polls that are shorter than such a part of the run are not shown.
const SHORTEST_POLL: u64 = 20_000;
/// The most spans of a page; the shortest go. Totals have them all.
const MAX_SPANS: usize = 50_000;

/// A lane of the timeline: a queue, a thread, or a kind of work.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct Lane {
    pub name: String,
    pub kind: LaneKind,
    pub spans: Vec<Span>,
}

/// The kind of a lane. The lanes come in this order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum LaneKind {
    /// Kernels of a queue.
    Kernels,
    /// Copies of the host into memory of the device.
    Uploads,
    /// Waits for bytes of the device.
    Downloads,
    /// Waits for the end of all work.
    Waits,
    /// Compilations.
    Compile,
    /// Operators that a thread of the host asked for rows.
    Host,
}

/// A time in nanoseconds from the start of the run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct Span {
    pub start: u64,
    pub end: u64,
    /// The row of the lane: spans of one time have different ones.
    pub row: usize,
    /// The number of the operator.
    pub node: usize,
    pub label: String,
}

/// Spans of all lanes.
pub(super) struct Timeline {
    total: u64,
    lanes: BTreeMap<(LaneKind, usize), Vec<Span>>,
}

impl Timeline {
    pub fn of(tree: &Tree, run: Range<Instant>) -> Timeline {
        let total = nanos(run.end - run.start);
        let mut timeline = Timeline { total, lanes: BTreeMap::new() };
        let mut threads: Vec<ThreadId> = vec![];
        for (node, Activity { kind, start, end }) in &tree.activities {
            let at = |instant: &Instant| nanos(instant.saturating_duration_since(run.start)).min(total);
            let (start, end) = (at(start), at(end));
            let (lane, label) = match kind {
                ActivityKind::Poll(_) if end - start < total / SHORTEST_POLL => continue,
                ActivityKind::Poll(thread) => {
                    let known = threads.iter().position(|known| known == thread);
                    let number = known.unwrap_or_else(|| {
                        threads.push(*thread);
                        threads.len() - 1
                    });
                    ((LaneKind::Host, number), String::new())
                }
                ActivityKind::Work(WorkKind::Kernel { name, queue }) => ((LaneKind::Kernels, *queue as usize), name.to_string()),
                ActivityKind::Work(WorkKind::Upload { bytes }) => ((LaneKind::Uploads, 0), format!("{bytes} bytes up")),
                ActivityKind::Work(WorkKind::Read { bytes }) => ((LaneKind::Downloads, 0), format!("{bytes} bytes down")),
                ActivityKind::Work(WorkKind::Wait) => ((LaneKind::Waits, 0), "waits for all work".to_owned()),
                ActivityKind::Work(WorkKind::Compile) => ((LaneKind::Compile, 0), "compiles".to_owned()),
            };
            timeline.lanes.entry(lane).or_default().push(Span { start, end, row: 0, node: *node, label });
        }
        timeline.lanes.values_mut().for_each(|spans| assign_rows(spans));
        timeline
    }

    /// The lanes with their names.
    pub fn lanes(mut self) -> Vec<Lane> {
        let mut lengths: Vec<u64> = self.lanes.values().flatten().map(|span| span.end - span.start).collect();
        if lengths.len() > MAX_SPANS {
            let (_, shortest, _) = lengths.select_nth_unstable_by(MAX_SPANS, |one, other| other.cmp(one));
            let shortest = *shortest;
            self.lanes.values_mut().for_each(|spans| spans.retain(|span| span.end - span.start > shortest));
        }
        let lanes = self.lanes.into_iter().map(|((kind, number), spans)| {
            let name = match kind {
                LaneKind::Kernels => format!("kernels of queue {number}"),
                LaneKind::Uploads => "uploads".to_owned(),
                LaneKind::Downloads => "downloads".to_owned(),
                LaneKind::Waits => "waits for the device".to_owned(),
                LaneKind::Compile => "compilations".to_owned(),
                LaneKind::Host => format!("host thread {}", number + 1),
            };
            Lane { name, kind, spans }
        });
        lanes.collect()
    }

    /// Each instant of the run counts once. It is the device's if a kernel ran, else a
    /// compilation's, else a download's or another wait's, else the host's.
    pub fn times(&self, planning: u64) -> Times {
        let mut seen: Vec<(u64, u64)> = vec![];
        let mut covered_before = 0;
        let mut added = |kind: LaneKind| {
            let of_kind = self.lanes.iter().filter(|((of, _), _)| *of == kind).flat_map(|(_, spans)| spans);
            seen.extend(of_kind.map(|span| (span.start, span.end)));
            let covered = covered(&mut seen);
            let added = covered - covered_before;
            covered_before = covered;
            added
        };
        let (device, compiling) = (added(LaneKind::Kernels), added(LaneKind::Compile));
        let waiting = added(LaneKind::Downloads) + added(LaneKind::Waits);
        Times { planning, total: self.total, device, compiling, waiting, host: self.total - device - compiling - waiting }
    }
}

/// The length of the union of intervals.
fn covered(intervals: &mut [(u64, u64)]) -> u64 {
    intervals.sort_unstable();
    let (mut length, mut reached) = (0, 0);
    for (start, end) in intervals.iter().copied() {
        length += end.saturating_sub(start.max(reached));
        reached = reached.max(end);
    }
    length
}

/// Sorts spans by start, and gives each the lowest row that is free. A span within another comes
/// into a row below it.
fn assign_rows(spans: &mut [Span]) {
    spans.sort_by_key(|span| (span.start, u64::MAX - span.end, span.node));
    let mut ends: Vec<u64> = vec![];
    for span in spans {
        // A span of no length would leave its row at once.
        let end = span.end.max(span.start + 1);
        span.row = ends.iter().position(|end| *end <= span.start).unwrap_or(ends.len());
        match ends.get_mut(span.row) {
            Some(reached) => *reached = end,
            None => ends.push(end),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn span(start: u64, end: u64) -> Span {
        Span { start, end, row: 0, node: 0, label: String::new() }
    }

    #[test]
    fn spans_of_one_time_have_rows_of_their_own() {
        let mut spans = vec![span(10, 20), span(0, 100), span(15, 18), span(20, 30), span(40, 40), span(40, 41)];
        assign_rows(&mut spans);
        let rows: Vec<_> = spans.iter().map(|span| (span.start, span.end, span.row)).collect();
        assert_eq!(rows, [(0, 100, 0), (10, 20, 1), (15, 18, 2), (20, 30, 1), (40, 41, 1), (40, 40, 2)]);
    }

    #[test]
    fn times_add_up_to_the_total() {
        let lanes = [
            ((LaneKind::Kernels, 1), vec![span(10, 20), span(15, 30)]),
            ((LaneKind::Kernels, 2), vec![span(25, 40)]),
            ((LaneKind::Compile, 0), vec![span(0, 12)]),
            ((LaneKind::Downloads, 0), vec![span(50, 70)]),
            ((LaneKind::Waits, 0), vec![span(5, 60)]),
            ((LaneKind::Host, 0), vec![span(0, 100)]),
        ];
        let times = Timeline { total: 100, lanes: BTreeMap::from(lanes) }.times(7);
        assert_eq!(times, Times { planning: 7, total: 100, device: 30, compiling: 10, waiting: 30, host: 30 });
    }
}
