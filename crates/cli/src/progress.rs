// SPDX-License-Identifier: Apache-2.0
//! A line on the terminal about a statement that takes long.

use std::sync::Arc;
use std::time::{Duration, Instant};

use datafusion::common::runtime::SpawnedTask;
use datafusion::common::stats::Precision;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::statistics::{StatisticsArgs, StatisticsContext};
use devicefusion::DeviceRuntime;
use devicefusion::exec::DeviceToHostExec;
use indicatif::{HumanBytes, HumanCount, ProgressBar, ProgressStyle};

/// Statements that end earlier show nothing.
const DELAY: Duration = Duration::from_secs(1);

/// Time between two looks at the plan.
const INTERVAL: Duration = Duration::from_millis(200);

/// The line of a running statement; its drop removes the line. There is none unless standard error
/// is a terminal.
pub struct Progress {
    /// Ends with its owner.
    _task: SpawnedTask<()>,
    bar: ProgressBar,
}

impl Progress {
    /// Watches a plan that runs.
    pub fn of(plan: &Arc<dyn ExecutionPlan>, runtime: Option<Arc<DeviceRuntime>>) -> Progress {
        let bar = ProgressBar::new_spinner()
            .with_style(ProgressStyle::with_template("{msg}").unwrap_or(ProgressStyle::default_spinner()));
        let (plan, shown, begun) = (Arc::clone(plan), bar.clone(), Instant::now());
        let watch = async move {
            tokio::time::sleep(DELAY).await;
            let total = total_rows(&plan);
            loop {
                shown.set_message(line(begun.elapsed(), read_rows(&plan), total, runtime.as_deref()));
                shown.tick();
                tokio::time::sleep(INTERVAL).await;
            }
        };
        Progress { _task: SpawnedTask::spawn(watch), bar }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}

/// Such as `12.3 s · 34 % · 20,480 of 60,000 rows · device 1.20 GiB · compiling 3 programs`.
fn line(time: Duration, read: usize, total: Option<usize>, runtime: Option<&DeviceRuntime>) -> String {
    let mut parts = vec![format!("{:.1} s", time.as_secs_f64())];
    match total {
        Some(total) if total > 0 => {
            // Estimates may be too low.
            let total = total.max(read);
            parts.push(format!("{} %", read as u128 * 100 / total as u128));
            parts.push(format!("{} of {} rows", HumanCount(read as u64), HumanCount(total as u64)));
        }
        _ if read > 0 => parts.push(format!("{} rows", HumanCount(read as u64))),
        _ => {}
    }
    if let Some(context) = runtime.and_then(DeviceRuntime::opened) {
        let bytes = context.pool().in_use();
        if bytes > 0 {
            parts.push(format!("device {}", HumanBytes(bytes as u64)));
        }
        match context.compiling() {
            0 => {}
            1 => parts.push("compiling a program".to_owned()),
            programs => parts.push(format!("compiling {programs} programs")),
        }
    }
    parts.join(" · ")
}

/// The leaves that run: those of the host, where it runs a part of the device.
fn leaves(plan: &Arc<dyn ExecutionPlan>, found: &mut Vec<Arc<dyn ExecutionPlan>>) {
    if let Some(host) = plan.downcast_ref::<DeviceToHostExec>().and_then(DeviceToHostExec::host_run) {
        return leaves(&host, found);
    }
    let children = plan.children();
    if children.is_empty() {
        found.push(Arc::clone(plan));
    }
    children.into_iter().for_each(|child| leaves(child, found));
}

/// Rows that the leaves have given.
fn read_rows(plan: &Arc<dyn ExecutionPlan>) -> usize {
    let mut found = vec![];
    leaves(plan, &mut found);
    found.into_iter().filter_map(|leaf| leaf.metrics()?.output_rows()).sum()
}

/// Rows that the leaves have, by their statistics; `None` if one tells nothing.
fn total_rows(plan: &Arc<dyn ExecutionPlan>) -> Option<usize> {
    let mut found = vec![];
    leaves(plan, &mut found);
    let statistics = StatisticsContext::new();
    let rows = |leaf: &Arc<dyn ExecutionPlan>| match statistics.compute(leaf.as_ref(), &StatisticsArgs::new()).ok()?.num_rows {
        Precision::Exact(rows) | Precision::Inexact(rows) => Some(rows),
        Precision::Absent => None,
    };
    found.iter().map(rows).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_tells_what_is_known() {
        let time = Duration::from_millis(12_345);
        assert_eq!(line(time, 20_480, Some(60_000), None), "12.3 s · 34 % · 20,480 of 60,000 rows");
        assert_eq!(line(time, 70_000, Some(60_000), None), "12.3 s · 100 % · 70,000 of 70,000 rows");
        assert_eq!(line(time, 7, None, None), "12.3 s · 7 rows");
        assert_eq!(line(time, 0, None, None), "12.3 s");
    }
}
