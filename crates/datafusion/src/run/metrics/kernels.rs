// SPDX-License-Identifier: Apache-2.0
//! The metric `kernels`: what each kernel of an operator cost.

use std::any::Any;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use datafusion::common::{human_readable_duration, human_readable_size};
use datafusion::physical_plan::metrics::CustomMetricValue;
use device::{KernelCosts, MemoryBandwidth, Meter};
use parking_lot::Mutex;

/// Costs by the kernels' names, printed from the longest time to the shortest.
#[derive(Debug)]
pub(crate) struct OperatorKernels {
    costs: Mutex<BTreeMap<Arc<str>, KernelCosts>>,
    /// Of the device's memory. That of the host is measured once a profile or a plan shows it.
    bandwidth: MemoryBandwidth,
}

impl OperatorKernels {
    /// The kernels of a meter, on a device with this bandwidth.
    pub fn new(meter: &Meter, bandwidth: MemoryBandwidth) -> Self {
        Self { costs: Mutex::new(meter.kernels()), bandwidth }
    }

    /// From the longest time to the shortest.
    pub fn sorted(&self) -> Vec<(Arc<str>, KernelCosts)> {
        let mut sorted: Vec<_> = self.costs.lock().clone().into_iter().collect();
        sorted.sort_by_key(|(_, costs)| std::cmp::Reverse(costs.time));
        sorted
    }
}

/// The least time for these bytes as a percentage of the kernel's; `None` where it is not known.
///
/// A kernel that needs a part of its buffers may have more than 100, a meaningless number.
fn percent_of_bound(costs: &KernelCosts, bytes_per_second: Option<u64>) -> Option<f64> {
    let least = costs.bytes as f64 / bytes_per_second? as f64;
    let percent = 100.0 * least / costs.time.as_secs_f64();
    (percent <= 100.0).then_some(percent)
}

impl fmt::Display for OperatorKernels {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bytes_per_second = self.bandwidth.bytes_per_second();
        f.write_str("[")?;
        for (position, (name, costs)) in self.sorted().iter().enumerate() {
            let separator = if position > 0 { "; " } else { "" };
            let launches = if costs.launches == 1 { "launch" } else { "launches" };
            let bytes = human_readable_size(usize::try_from(costs.bytes).unwrap_or(usize::MAX));
            write!(f, "{separator}{name}: {} {launches}, {bytes}", costs.launches)?;
            if !costs.time.is_zero() {
                write!(f, ", {}", human_readable_duration(u64::try_from(costs.time.as_nanos()).unwrap_or(u64::MAX)))?;
            }
            if let Some(percent) = percent_of_bound(costs, bytes_per_second) {
                write!(f, ", {percent:.0} % of the bound")?;
            }
        }
        f.write_str("]")
    }
}

impl CustomMetricValue for OperatorKernels {
    fn new_empty(&self) -> Arc<dyn CustomMetricValue> {
        Arc::new(Self { costs: Mutex::default(), bandwidth: self.bandwidth })
    }

    fn aggregate(&self, other: Arc<dyn CustomMetricValue>) {
        let Some(other) = other.as_any().downcast_ref::<Self>() else { return };
        let others = other.costs.lock().clone();
        let mut costs = self.costs.lock();
        for (name, KernelCosts { launches, time, bytes }) in others {
            let sum = costs.entry(name).or_default();
            sum.launches += launches;
            sum.time += time;
            sum.bytes += bytes;
        }
    }

    fn as_any(&self) -> &dyn Any {
        self
    }

    fn as_usize(&self) -> usize {
        self.costs.lock().len()
    }

    fn is_eq(&self, other: &Arc<dyn CustomMetricValue>) -> bool {
        other.as_any().downcast_ref::<Self>().is_some_and(|other| other.sorted() == self.sorted())
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const BANDWIDTH: MemoryBandwidth = MemoryBandwidth::Clocked(2_000_000_000);

    fn costs(launches: u64, milliseconds: u64, bytes: u64) -> KernelCosts {
        KernelCosts { launches, time: Duration::from_millis(milliseconds), bytes }
    }

    #[test]
    fn kernels_are_added_up_and_the_longest_comes_first() {
        let one = BTreeMap::from([("probe".into(), costs(1, 2, 1000)), ("build".into(), costs(1, 3, 4_000_000))]);
        let other = BTreeMap::from([("probe".into(), costs(2, 5, 2000))]);
        let kernels = |costs| OperatorKernels { costs: Mutex::new(costs), bandwidth: BANDWIDTH };
        let (one, other) = (kernels(one), kernels(other));
        let sum = one.new_empty();
        sum.aggregate(Arc::new(one));
        sum.aggregate(Arc::new(other));
        let of_bound =
            "[probe: 3 launches, 2.9 KB, 7.00ms, 0 % of the bound; build: 1 launch, 3.8 MB, 3.00ms, 67 % of the bound]";
        assert_eq!(sum.to_string(), of_bound);
    }

    #[test]
    fn unknown_times_and_shares_are_left_out() {
        let kernels = BTreeMap::from([("probe".into(), costs(1, 0, 1000)), ("build".into(), costs(1, 1, 9_000_000))]);
        let kernels = OperatorKernels { costs: Mutex::new(kernels), bandwidth: BANDWIDTH };
        assert_eq!(kernels.to_string(), "[build: 1 launch, 8.6 MB, 1.00ms; probe: 1 launch, 1000.0 B]");
    }
}
