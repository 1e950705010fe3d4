// SPDX-License-Identifier: Apache-2.0
//! When an operator was busy: the timeline of a [profile](crate::Profile).

use std::any::Any;
use std::fmt;
use std::sync::Arc;
use std::thread::{self, ThreadId};
use std::time::Instant;

use datafusion::execution::TaskContext;
use datafusion::physical_plan::metrics::{CustomMetricValue, ExecutionPlanMetricsSet, MetricBuilder, MetricValue};
use device::{WorkKind, WorkRecord};
use parking_lot::Mutex;

/// The most polls of a partition that are recorded.
const MAX_POLLS: usize = 1 << 14;

/// In the session's configuration of a run: operators record what they do.
#[derive(Debug)]
pub(crate) struct Recording;

impl Recording {
    /// Whether operators of a task record.
    pub fn is_on(task: &TaskContext) -> bool {
        task.session_config().get_extension::<Recording>().is_some()
    }
}

/// A time in which an operator was busy.
#[derive(Debug, Clone)]
pub(crate) struct Activity {
    pub kind: ActivityKind,
    pub start: Instant,
    pub end: Instant,
}

/// The kind of an operator's activity.
#[derive(Debug, Clone)]
pub(crate) enum ActivityKind {
    /// A thread of the host asked it for rows.
    Poll(ThreadId),
    /// Work of its queue.
    Work(WorkKind),
}

/// The activities of an operator, which no EXPLAIN shows.
#[derive(Debug, Default)]
pub(crate) struct Activities(Mutex<Vec<Activity>>);

impl Activities {
    /// Activities that are among the metrics of an operator.
    pub fn registered(metrics: &ExecutionPlanMetricsSet, partition: usize) -> Arc<Self> {
        let activities = Arc::new(Self::default());
        let value = Arc::clone(&activities) as Arc<dyn CustomMetricValue>;
        let value = MetricValue::Custom { name: "activities".into(), value };
        MetricBuilder::new(metrics).with_partition(partition).build(value);
        activities
    }

    /// Adds the work of a meter.
    pub fn add_work(&self, records: Vec<WorkRecord>) {
        let work =
            records.into_iter().map(|WorkRecord { kind, start, end }| Activity { kind: ActivityKind::Work(kind), start, end });
        self.0.lock().extend(work);
    }

    /// Adds a poll that ends now.
    pub fn add_poll(&self, start: Instant) {
        let mut activities = self.0.lock();
        if activities.len() < MAX_POLLS {
            activities.push(Activity { kind: ActivityKind::Poll(thread::current().id()), start, end: Instant::now() });
        }
    }

    pub fn list(&self) -> Vec<Activity> {
        self.0.lock().clone()
    }
}

impl fmt::Display for Activities {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.as_usize())
    }
}

impl CustomMetricValue for Activities {
    fn new_empty(&self) -> Arc<dyn CustomMetricValue> {
        Arc::new(Self::default())
    }

    fn aggregate(&self, other: Arc<dyn CustomMetricValue>) {
        if let Some(other) = other.as_any().downcast_ref::<Self>() {
            let others = other.list();
            self.0.lock().extend(others);
        }
    }

    fn as_any(&self) -> &dyn Any {
        self
    }

    fn as_usize(&self) -> usize {
        self.0.lock().len()
    }

    fn is_eq(&self, other: &Arc<dyn CustomMetricValue>) -> bool {
        other.as_usize() == self.as_usize()
    }
}
