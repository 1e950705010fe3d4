// SPDX-License-Identifier: Apache-2.0
//! What an operator did on the device, as DataFusion metrics.

use std::sync::Arc;

use datafusion::physical_plan::metrics::{ExecutionPlanMetricsSet, MetricBuilder};
use device::Meter;

/// Counts for one partition of one operator; writes them into its metrics when dropped, which is
/// when the queue's work has completed or the query was cancelled.
pub(crate) struct StageMeter {
    meter: Arc<Meter>,
    metrics: ExecutionPlanMetricsSet,
    partition: usize,
}

impl StageMeter {
    pub fn new(metrics: &ExecutionPlanMetricsSet, partition: usize) -> Self {
        StageMeter { meter: Arc::new(Meter::default()), metrics: metrics.clone(), partition }
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
        count("launches", meter.launches());
        count("bytes_up", meter.bytes_up());
        count("bytes_down", meter.bytes_down());
        if meter.launches() > 0 {
            let time = MetricBuilder::new(&self.metrics).subset_time("kernel_time", self.partition);
            time.add_duration(meter.kernel_time());
            let time = MetricBuilder::new(&self.metrics).subset_time("compile_time", self.partition);
            time.add_duration(meter.compile_time());
        }
        if meter.peak_bytes() > 0 {
            MetricBuilder::new(&self.metrics).gauge("peak_device_bytes", self.partition).add(meter.peak_bytes() as usize);
        }
    }
}
