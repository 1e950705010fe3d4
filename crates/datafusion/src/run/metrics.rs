// SPDX-License-Identifier: Apache-2.0
//! Metrics of operators on the device.

use std::sync::Arc;
use std::time::Duration;

use datafusion::physical_plan::metrics::{Count, ExecutionPlanMetricsSet, MetricBuilder, MetricType};
use device::Meter;

/// Counters of one partition of one operator.
///
/// Dropping it writes them into the operator's metrics: when the queue's work has completed, or the
/// query was cancelled.
pub(crate) struct StageMeter {
    meter: Arc<Meter>,
    metrics: ExecutionPlanMetricsSet,
    partition: usize,
}

/// The counter of an operator's rows.
pub(crate) fn output_rows(metrics: &ExecutionPlanMetricsSet, partition: usize) -> Count {
    MetricBuilder::new(metrics).with_type(MetricType::Summary).output_rows(partition)
}

impl StageMeter {
    pub fn new(operator: &str, metrics: &ExecutionPlanMetricsSet, partition: usize) -> Self {
        StageMeter { meter: Arc::new(Meter::named(operator)), metrics: metrics.clone(), partition }
    }

    pub fn meter(&self) -> &Arc<Meter> {
        &self.meter
    }
}

impl Drop for StageMeter {
    fn drop(&mut self) {
        let meter = &self.meter;
        let count = |name: &'static str, value: u64| {
            if value > 0 {
                MetricBuilder::new(&self.metrics).counter(name, self.partition).add(value as usize);
            }
        };
        // What `datafusion.explain.analyze_level = 'summary'` shows.
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
    }
}
