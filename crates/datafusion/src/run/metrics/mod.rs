// SPDX-License-Identifier: Apache-2.0
//! Metrics of operators on the device.

mod activity;
mod kernels;
mod wall_time;

use std::sync::Arc;
use std::time::Duration;

use datafusion::execution::TaskContext;
use datafusion::physical_plan::metrics::{
    Count, ExecutionPlanMetricsSet, MetricBuilder, MetricCategory, MetricType, MetricValue,
};
use device::{MemoryBandwidth, Meter, Queue};

pub(crate) use self::activity::{Activities, Activity, ActivityKind, Recording};
pub(crate) use self::kernels::OperatorKernels;
pub(crate) use self::wall_time::{WallTime, timed};

/// Counters of one partition of one operator.
///
/// Dropping it writes them into the operator's metrics: when the queue's work has completed, or the
/// query was cancelled.
pub(crate) struct StageMeter {
    meter: Arc<Meter>,
    metrics: ExecutionPlanMetricsSet,
    partition: usize,
    bandwidth: MemoryBandwidth,
    activities: Option<Arc<Activities>>,
}

/// The counter of an operator's rows.
pub(crate) fn output_rows(metrics: &ExecutionPlanMetricsSet, partition: usize) -> Count {
    MetricBuilder::new(metrics).with_type(MetricType::Summary).output_rows(partition)
}

impl StageMeter {
    /// The meter, and a handle of the queue that charges it.
    pub fn new(
        queue: &Queue,
        operator: &str,
        metrics: &ExecutionPlanMetricsSet,
        partition: usize,
        task: &TaskContext,
    ) -> (Self, Queue) {
        let activities = Recording::is_on(task).then(|| Activities::registered(metrics, partition));
        let meter = Meter::named(operator);
        let meter = Arc::new(if activities.is_some() { meter.recording() } else { meter });
        let metered = queue.metered(&meter);
        let bandwidth = queue.context().info().memory_bandwidth();
        (StageMeter { meter, metrics: metrics.clone(), partition, bandwidth, activities }, metered)
    }
}

impl Drop for StageMeter {
    fn drop(&mut self) {
        let meter = &self.meter;
        if let Some(activities) = &self.activities {
            activities.add_work(meter.take_records());
        }
        let count = |name: &'static str, value: u64| {
            if value > 0 {
                MetricBuilder::new(&self.metrics).counter(name, self.partition).add(value as usize);
            }
        };
        // Metrics that `datafusion.explain.analyze_level = 'summary'` shows.
        let summary = || MetricBuilder::new(&self.metrics).with_type(MetricType::Summary);
        if meter.launches() > 0 {
            summary().counter("launches", self.partition).add(meter.launches() as usize);
        }
        count("waits", meter.waits());
        count("bytes_up", meter.bytes_up());
        count("bytes_down", meter.bytes_down());
        // The emulator alone counts them.
        let traffic = meter.traffic();
        count("load_requests", traffic.load_requests);
        count("load_sectors", traffic.load_sectors);
        count("store_requests", traffic.store_requests);
        count("store_sectors", traffic.store_sectors);
        count("atomic_requests", traffic.atomic_requests);
        // Zero times are not shown: kernels without device.profiling, and programs that were
        // compiled before.
        let time = |name: &'static str, time: Duration| {
            if !time.is_zero() {
                summary().subset_time(name, self.partition).add_duration(time);
            }
        };
        time("kernel_time", meter.kernel_time());
        time("compile_time", meter.compile_time());
        if meter.peak_bytes() > 0 {
            summary().gauge("peak_device_bytes", self.partition).add(meter.peak_bytes() as usize);
        }
        if meter.launches() > 0 {
            let value = Arc::new(OperatorKernels::new(meter, self.bandwidth));
            let builder = MetricBuilder::new(&self.metrics).with_category(MetricCategory::Timing);
            builder.with_partition(self.partition).build(MetricValue::Custom { name: "kernels".into(), value });
        }
    }
}
