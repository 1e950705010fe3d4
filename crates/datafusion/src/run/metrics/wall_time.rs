// SPDX-License-Identifier: Apache-2.0
//! The metric `wall_time`: from an operator's start to its last batch.

use std::any::Any;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use datafusion::common::human_readable_duration;
use datafusion::execution::TaskContext;
use datafusion::physical_plan::metrics::{
    CustomMetricValue, ExecutionPlanMetricsSet, MetricBuilder, MetricCategory, MetricType, MetricValue,
};
use futures::stream::BoxStream;
use futures::{Stream, StreamExt};
use parking_lot::Mutex;

use super::activity::{Activities, Recording};

/// The time from the first poll of a stream to its latest item. That of several partitions begins
/// with the first and ends with the last of them.
#[derive(Debug, Default)]
pub(crate) struct WallTime(Mutex<Option<(Instant, Instant)>>);

impl WallTime {
    fn extend(&self, start: Instant, end: Instant) {
        let mut span = self.0.lock();
        let (first, last) = span.unwrap_or((start, end));
        *span = Some((first.min(start), last.max(end)));
    }

    /// Zero for a stream that was never polled.
    pub fn duration(&self) -> Duration {
        self.0.lock().map_or(Duration::ZERO, |(start, end)| end - start)
    }
}

/// A stream whose wall time goes into an operator's metrics, and into those of `fused` ones. The
/// operator's inputs are part of it. A profile has its polls, too.
pub(crate) fn timed<'a, T: 'a>(
    mut stream: impl Stream<Item = T> + Send + Unpin + 'a,
    metrics: &ExecutionPlanMetricsSet,
    fused: &[ExecutionPlanMetricsSet],
    partition: usize,
    task: &TaskContext,
) -> BoxStream<'a, T> {
    let activities = Recording::is_on(task).then(|| Activities::registered(metrics, partition));
    let wall_time = Arc::new(WallTime::default());
    for metrics in [metrics].into_iter().chain(fused) {
        let value = MetricValue::Custom { name: "wall_time".into(), value: Arc::clone(&wall_time) as Arc<dyn CustomMetricValue> };
        let builder = MetricBuilder::new(metrics).with_type(MetricType::Summary).with_category(MetricCategory::Timing);
        builder.with_partition(partition).build(value);
    }
    let mut start = None;
    futures::stream::poll_fn(move |context| {
        let begun = Instant::now();
        let start = *start.get_or_insert(begun);
        let polled = stream.poll_next_unpin(context);
        if let Some(activities) = &activities {
            activities.add_poll(begun);
        }
        if polled.is_ready() {
            wall_time.extend(start, Instant::now());
        }
        polled
    })
    .boxed()
}

impl fmt::Display for WallTime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&human_readable_duration(u64::try_from(self.duration().as_nanos()).unwrap_or(u64::MAX)))
    }
}

impl CustomMetricValue for WallTime {
    fn new_empty(&self) -> Arc<dyn CustomMetricValue> {
        Arc::new(Self::default())
    }

    fn aggregate(&self, other: Arc<dyn CustomMetricValue>) {
        let other = other.as_any().downcast_ref::<Self>().and_then(|other| *other.0.lock());
        if let Some((start, end)) = other {
            self.extend(start, end);
        }
    }

    fn as_any(&self) -> &dyn Any {
        self
    }

    fn as_usize(&self) -> usize {
        usize::try_from(self.duration().as_nanos()).unwrap_or(usize::MAX)
    }

    fn is_eq(&self, other: &Arc<dyn CustomMetricValue>) -> bool {
        other.as_any().downcast_ref::<Self>().is_some_and(|other| *other.0.lock() == *self.0.lock())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn partitions_at_the_same_time_count_once() {
        let now = Instant::now();
        let at = |seconds| now + Duration::from_secs(seconds);
        let sum = WallTime::default().new_empty();
        assert_eq!(sum.as_usize(), 0);
        for (start, end) in [(2, 5), (1, 3)] {
            let partition = WallTime::default();
            partition.extend(at(start), at(end));
            sum.aggregate(Arc::new(partition));
        }
        sum.aggregate(Arc::new(WallTime::default()));
        assert_eq!(sum.to_string(), "4.00s");
    }
}
