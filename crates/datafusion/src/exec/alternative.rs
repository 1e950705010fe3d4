// SPDX-License-Identifier: Apache-2.0
//! The host operators that an offloaded subplan replaces. They run if the device refuses it before
//! any row was given: a kernel that does not compile, or exceeds a limit of the device.

use std::collections::HashSet;
use std::sync::Arc;

use arrow::array::RecordBatch;
use datafusion::common::Result;
use datafusion::common::config::ConfigOptions;
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_optimizer::PhysicalOptimizerRule;
use datafusion::physical_optimizer::ensure_coop::EnsureCooperative;
use datafusion::physical_plan::coalesce_partitions::CoalescePartitionsExec;
use datafusion::physical_plan::execution_plan::reset_plan_states;
use datafusion::physical_plan::repartition::RepartitionExec;
use datafusion::physical_plan::sorts::sort::SortExec;
use datafusion::physical_plan::sorts::sort_preserving_merge::SortPreservingMergeExec;
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::{ExecutionPlan, ExecutionPlanProperties, Partitioning, PlanProperties};
use futures::stream::BoxStream;
use futures::{StreamExt, TryStreamExt, stream};
use kernels::ops::Options;
use parking_lot::Mutex;

use crate::error::refusal;
use crate::panics;
use crate::session::{DeviceOptions, kernel_options, task_context};

/// Host operators with the rows of an offloaded subplan.
#[derive(Debug)]
pub(crate) struct HostAlternative {
    plan: Arc<dyn ExecutionPlan>,
    downloads: Option<Downloads>,
    run: Mutex<Arc<AlternativeRun>>,
}

/// Puts a download over each scan of device memory, which costs planning time and is rarely needed.
pub(crate) type Downloads =
    fn(&Arc<dyn ExecutionPlan>, &DeviceOptions, &ConfigOptions, Options) -> Result<Arc<dyn ExecutionPlan>>;

/// One execution of all partitions.
#[derive(Debug, Default)]
struct AlternativeRun {
    started: Mutex<HashSet<usize>>,
    choice: Mutex<ChosenSide>,
    /// The operators of this run, once a partition needs them.
    host: Mutex<Option<Arc<dyn ExecutionPlan>>>,
}

/// Where the rows of a run come from. The partitions of both plans have different rows, so all
/// partitions have one source.
#[derive(Debug, Default, Clone)]
enum ChosenSide {
    #[default]
    Open,
    /// A partition has given rows of the device.
    Device,
    /// One partition gives all rows of the host, for this reason.
    Host(String),
}

/// The source of one partition.
enum RowSource {
    Device,
    Host,
    /// Another partition gives all rows.
    Elsewhere,
}

impl Clone for HostAlternative {
    /// Copies the plan; the runs are not shared.
    fn clone(&self) -> Self {
        HostAlternative::new(Arc::clone(&self.plan), self.downloads)
    }
}

impl HostAlternative {
    /// Operators that give the rows of an offloaded subplan, in any partitions. With `downloads` if
    /// some of them scan device memory.
    pub fn new(plan: Arc<dyn ExecutionPlan>, downloads: Option<Downloads>) -> Self {
        HostAlternative { plan, downloads, run: Mutex::default() }
    }

    /// The replaced operators. Their scans of device memory cannot run.
    pub fn plan(&self) -> &Arc<dyn ExecutionPlan> {
        &self.plan
    }

    /// Operators that can run.
    pub fn executable(
        &self,
        options: &DeviceOptions,
        config: &ConfigOptions,
        kernels: Options,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        match self.downloads {
            Some(downloads) => downloads(&self.plan, options, config, kernels),
            None => Ok(Arc::clone(&self.plan)),
        }
    }

    /// Why the latest run is the host's; `None` if it is the device's.
    pub fn reason(&self) -> Option<String> {
        match &*self.run.lock().choice.lock() {
            ChosenSide::Host(reason) => Some(reason.clone()),
            ChosenSide::Open | ChosenSide::Device => None,
        }
    }

    /// The rows of a partition: those of `device`, or of the host if the device refuses them.
    /// `properties` are those of the offloaded subplan.
    pub fn rows(
        &self,
        device: Result<SendableRecordBatchStream>,
        properties: &Arc<PlanProperties>,
        partition: usize,
        task: &Arc<TaskContext>,
    ) -> Result<SendableRecordBatchStream> {
        let by_key = match properties.output_partitioning() {
            Partitioning::Hash(..) => true,
            Partitioning::UnknownPartitioning(_) | Partitioning::RoundRobinBatch(_) => false,
            other if other.partition_count() == 1 => false,
            // The host cannot make these partitions.
            _ => return device,
        };
        let run = self.begin(partition);
        let (alternative, properties, task) = (self.clone(), Arc::clone(properties), Arc::clone(task));
        let schema = self.plan.schema();
        let rows = async move {
            let (first, rest) = match device {
                Ok(mut rows) => (rows.next().await, Some(rows)),
                Err(error) => (Some(Err(error)), None),
            };
            let rows: BoxStream<'_, Result<RecordBatch>> = match run.choose(first.as_ref(), by_key) {
                RowSource::Device => stream::iter(first).chain(stream::iter(rest).flatten()).boxed(),
                RowSource::Elsewhere => stream::empty().boxed(),
                RowSource::Host => {
                    drop(rest);
                    let host = run.host(&alternative, &properties, by_key, &task)?;
                    panics::caught(&host, || host.execute(if by_key { partition } else { 0 }, task))?.boxed()
                }
            };
            Result::<_>::Ok(rows)
        };
        Ok(Box::pin(RecordBatchStreamAdapter::new(schema, stream::once(rows).try_flatten())))
    }

    /// The run of a partition. A partition that has started before begins another run.
    fn begin(&self, partition: usize) -> Arc<AlternativeRun> {
        let mut run = self.run.lock();
        if !run.started.lock().insert(partition) {
            *run = Arc::default();
            run.started.lock().insert(partition);
        }
        Arc::clone(&run)
    }
}

impl AlternativeRun {
    /// The source of a partition, by the first thing that the device gives. A device that gives no
    /// rows has chosen nothing.
    fn choose<T>(&self, first: Option<&Result<T>>, by_key: bool) -> RowSource {
        let mut choice = self.choice.lock();
        let refused = first.and_then(|first| first.as_ref().err()).and_then(refusal);
        // Partitions by key have the same rows in both plans, so each chooses for itself.
        if by_key {
            return match refused {
                Some(reason) => {
                    *choice = ChosenSide::Host(noted(reason));
                    RowSource::Host
                }
                None => RowSource::Device,
            };
        }
        match (&*choice, first, refused) {
            (ChosenSide::Open, _, Some(reason)) => {
                *choice = ChosenSide::Host(noted(reason));
                RowSource::Host
            }
            (ChosenSide::Open, Some(Ok(_)), None) => {
                *choice = ChosenSide::Device;
                RowSource::Device
            }
            (ChosenSide::Host(_), Some(Err(_)), None) | (ChosenSide::Open | ChosenSide::Device, ..) => RowSource::Device,
            (ChosenSide::Host(_), ..) => RowSource::Elsewhere,
        }
    }

    /// The host operators in the partitions and the order of the offloaded subplan, or in one
    /// partition.
    fn host(
        &self,
        alternative: &HostAlternative,
        properties: &PlanProperties,
        by_key: bool,
        task: &Arc<TaskContext>,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let mut host = self.host.lock();
        if let Some(host) = &*host {
            return Ok(Arc::clone(host));
        }
        let config = task.session_config().options();
        let (context, options) = task_context(task)?;
        let plan = alternative.executable(&options, config, kernel_options(&options, &context)?)?;
        // The offloaded subplan may have started the scans below.
        let mut plan = reset_plan_states(plan)?;
        if by_key && plan.output_partitioning() != properties.output_partitioning() {
            plan = Arc::new(RepartitionExec::try_new(plan, properties.output_partitioning().clone())?);
        }
        if let Some(ordering) = properties.output_ordering()
            && !plan.equivalence_properties().ordering_satisfy(ordering.clone())?
        {
            plan = Arc::new(SortExec::new(ordering.clone(), plan).with_preserve_partitioning(true));
        }
        if !by_key && plan.output_partitioning().partition_count() > 1 {
            plan = match properties.output_ordering() {
                Some(ordering) => Arc::new(SortPreservingMergeExec::new(ordering.clone(), plan)),
                None => Arc::new(CoalescePartitionsExec::new(plan)),
            };
        }
        let plan = EnsureCooperative::new().optimize(plan, config)?;
        *host = Some(Arc::clone(&plan));
        Ok(plan)
    }
}

/// The reason, which a log gets too: a run on the host is never silent.
fn noted(reason: String) -> String {
    log::warn!("the host runs a part of a query, because the device refuses it: {reason}");
    reason
}

#[cfg(test)]
mod tests {
    use datafusion::common::exec_datafusion_err;

    use super::*;
    use crate::error::op_error;

    #[test]
    fn all_partitions_of_a_run_have_one_source() {
        let refused = || Err::<(), _>(op_error("DeviceSortExec", kernels::Error::Unsupported("too wide".into())));
        let source = |run: &AlternativeRun, first: Option<Result<()>>, by_key| match run.choose(first.as_ref(), by_key) {
            RowSource::Device => "device",
            RowSource::Host => "host",
            RowSource::Elsewhere => "elsewhere",
        };
        // An empty partition leaves the choice open; the refused one gives all rows.
        let run = AlternativeRun::default();
        let firsts = [None, Some(refused()), Some(Ok(())), None, Some(refused())];
        let sources = firsts.map(|first| source(&run, first, false));
        assert_eq!(sources, ["device", "host", "elsewhere", "elsewhere", "elsewhere"]);
        // Rows of the device have been given: a refusal is an error.
        let run = AlternativeRun::default();
        assert_eq!([Some(Ok(())), Some(refused())].map(|first| source(&run, first, false)), ["device", "device"]);
        // Other errors are the query's.
        let run = AlternativeRun::default();
        assert_eq!(source(&run, Some(Err(exec_datafusion_err!("Divide by zero"))), false), "device");
        // Partitions by key choose for themselves.
        let run = AlternativeRun::default();
        let firsts = [Some(Ok(())), Some(refused()), Some(Ok(())), Some(refused()), None];
        let sources = firsts.map(|first| source(&run, first, true));
        assert_eq!(sources, ["device", "host", "device", "host", "device"]);
    }
}
