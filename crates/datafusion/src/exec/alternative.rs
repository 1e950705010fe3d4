// SPDX-License-Identifier: Apache-2.0
//! The host operators that an offloaded subplan replaces. They run
//! - if its kernels are not compiled yet (`adaptive_start.rs`),
//! - if the device refuses it before its first row: a kernel fails to compile, or exceeds a limit
//!   of the device.

use std::collections::HashSet;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, OnceLock};

use arrow::array::RecordBatch;
use datafusion::common::config::ConfigOptions;
use datafusion::common::{DataFusionError, Result};
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_optimizer::PhysicalOptimizerRule;
use datafusion::physical_optimizer::ensure_coop::EnsureCooperative;
use datafusion::physical_optimizer::filter_pushdown::FilterPushdown;
use datafusion::physical_optimizer::projection_pushdown::ProjectionPushdown;
use datafusion::physical_plan::coalesce_partitions::CoalescePartitionsExec;
use datafusion::physical_plan::execution_plan::reset_plan_states;
use datafusion::physical_plan::metrics::ExecutionPlanMetricsSet;
use datafusion::physical_plan::repartition::RepartitionExec;
use datafusion::physical_plan::sorts::sort::SortExec;
use datafusion::physical_plan::sorts::sort_preserving_merge::SortPreservingMergeExec;
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::{EmptyRecordBatchStream, ExecutionPlan, ExecutionPlanProperties, Partitioning, PlanProperties};
use futures::stream::BoxStream;
use futures::{StreamExt, TryStreamExt, stream};
use kernels::ops::Options;
use parking_lot::Mutex;

use super::adaptive_start::{NOT_COMPILED, starts_on_host};
use crate::error::refusal;
use crate::exec::panics;
use crate::graph::Stage;
use crate::run::{output_rows, timed};
use crate::session::{DeviceOptions, kernel_options, number_of_query, task_context};

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

/// A run of one partition of an offloaded subplan.
#[derive(Clone, Copy)]
pub(crate) struct SubplanRun<'a> {
    pub stage: &'a Stage,
    pub properties: &'a Arc<PlanProperties>,
    pub partition: usize,
    pub task: &'a Arc<TaskContext>,
    /// Those of the operator above it.
    pub metrics: &'a ExecutionPlanMetricsSet,
}

/// One execution of all partitions.
#[derive(Debug, Default)]
struct AlternativeRun {
    started: Mutex<HashSet<usize>>,
    /// Whether the run is the host's from its start, once a partition has asked.
    starts_on_host: OnceLock<bool>,
    /// Whether a partition gives all rows of a run started on the host.
    has_host_partition: AtomicBool,
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

    /// Whether a run may start on the host. The rows of device memory are on the device already.
    pub fn may_start(&self, properties: &PlanProperties) -> bool {
        self.downloads.is_none() && Self::partitions(properties).is_some()
    }

    /// Whether the partitions are by a key. `None` if the host cannot give their rows.
    fn partitions(properties: &PlanProperties) -> Option<bool> {
        match properties.output_partitioning() {
            Partitioning::Hash(..) => Some(true),
            Partitioning::UnknownPartitioning(_) | Partitioning::RoundRobinBatch(_) => Some(false),
            other => (other.partition_count() == 1).then_some(false),
        }
    }

    /// The rows of a partition: those of `device`, or of the host if the run starts there or the
    /// device refuses them.
    pub fn rows(
        &self,
        subplan: &SubplanRun<'_>,
        device: impl FnOnce() -> Result<SendableRecordBatchStream> + Send + 'static,
    ) -> Result<SendableRecordBatchStream> {
        let SubplanRun { stage, properties, partition, task, metrics } = *subplan;
        let Some(by_key) = Self::partitions(properties) else { return device() };
        let run = self.begin(partition);
        if self.may_start(properties) && run.starts_on_host(|| starts_on_host(stage, task))? {
            let partitions = properties.output_partitioning().partition_count();
            // All partitions are the host's, so they may keep its own.
            let keeps_partitions = by_key || self.plan.output_partitioning().partition_count() == partitions;
            if !keeps_partitions && run.has_host_partition.swap(true, Relaxed) {
                return Ok(Box::pin(EmptyRecordBatchStream::new(self.plan.schema())));
            }
            let host = self.host_rows(&run, properties, keeps_partitions, partition, Arc::clone(task), metrics);
            // Of other partitions, some have given rows of the host already.
            return if by_key || partitions == 1 { Ok(self.or_device(run, by_key, host, device)) } else { host };
        }
        let device = device();
        let (alternative, properties) = (self.clone(), Arc::clone(properties));
        let (task, metrics) = (Arc::clone(task), metrics.clone());
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
                    alternative.host_rows(&run, &properties, by_key, partition, task, &metrics)?.boxed()
                }
            };
            Result::<_>::Ok(rows)
        };
        Ok(Box::pin(RecordBatchStreamAdapter::new(schema, stream::once(rows).try_flatten())))
    }

    /// The rows of `host`, or of `device` if memory for the first of them is missing. Operators of
    /// the device may write to files what those of the host cannot.
    fn or_device(
        &self,
        run: Arc<AlternativeRun>,
        by_key: bool,
        host: Result<SendableRecordBatchStream>,
        device: impl FnOnce() -> Result<SendableRecordBatchStream> + Send + 'static,
    ) -> SendableRecordBatchStream {
        let rows = async move {
            let (first, rest) = match host {
                Ok(mut rows) => (rows.next().await, Some(rows)),
                Err(error) => (Some(Err(error)), None),
            };
            if let Some(Err(error)) = &first
                && matches!(error.find_root(), DataFusionError::ResourcesExhausted(_))
            {
                drop(rest);
                // Other partitions by key may be the host's.
                if !by_key {
                    *run.choice.lock() = ChosenSide::Device;
                }
                return Ok(device()?.boxed());
            }
            Result::<_>::Ok(stream::iter(first).chain(stream::iter(rest).flatten()).boxed())
        };
        Box::pin(RecordBatchStreamAdapter::new(self.plan.schema(), stream::once(rows).try_flatten()))
    }

    /// The rows of the host: of the partition, or all of them.
    fn host_rows(
        &self,
        run: &AlternativeRun,
        properties: &PlanProperties,
        keeps_partitions: bool,
        partition: usize,
        task: Arc<TaskContext>,
        metrics: &ExecutionPlanMetricsSet,
    ) -> Result<SendableRecordBatchStream> {
        let host = run.host(self, properties, keeps_partitions, &task)?;
        let query = task_context(&task)?.0.begin_query(number_of_query(&task));
        let of_host = Arc::clone(&task);
        let rows = panics::caught(&host, || host.execute(if keeps_partitions { partition } else { 0 }, of_host))?;
        let output_rows = output_rows(metrics, partition);
        let rows = rows.inspect(move |batch| {
            _ = &query;
            output_rows.add(batch.as_ref().map_or(0, RecordBatch::num_rows));
        });
        let rows = timed(rows, metrics, &[], partition, &task);
        Ok(Box::pin(RecordBatchStreamAdapter::new(self.plan.schema(), rows)))
    }

    /// The host operators of the latest run; `None` if it is the device's.
    pub fn running(&self) -> Option<Arc<dyn ExecutionPlan>> {
        self.run.lock().host.lock().clone()
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
    /// Whether the run is the host's from its start, as the first partition has found.
    fn starts_on_host(&self, decide: impl FnOnce() -> Result<bool>) -> Result<bool> {
        if let Some(starts) = self.starts_on_host.get() {
            return Ok(*starts);
        }
        let mut choice = self.choice.lock();
        // Another partition may have decided meanwhile.
        if let Some(starts) = self.starts_on_host.get() {
            return Ok(*starts);
        }
        let starts = decide()?;
        if starts {
            *choice = ChosenSide::Host(NOT_COMPILED.to_owned());
        }
        Ok(*self.starts_on_host.get_or_init(|| starts))
    }

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

    /// The host operators in the order of the offloaded subplan, and in its partitions or in one.
    fn host(
        &self,
        alternative: &HostAlternative,
        properties: &PlanProperties,
        keeps_partitions: bool,
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
        let by_key = matches!(properties.output_partitioning(), Partitioning::Hash(..));
        if by_key && plan.output_partitioning() != properties.output_partitioning() {
            plan = Arc::new(RepartitionExec::try_new(plan, properties.output_partitioning().clone())?);
        }
        if let Some(ordering) = properties.output_ordering()
            && !plan.equivalence_properties().ordering_satisfy(ordering.clone())?
        {
            plan = Arc::new(SortExec::new(ordering.clone(), plan).with_preserve_partitioning(true));
        }
        if !keeps_partitions && plan.output_partitioning().partition_count() > 1 {
            plan = match properties.output_ordering() {
                Some(ordering) => Arc::new(SortPreservingMergeExec::new(ordering.clone(), plan)),
                None => Arc::new(CoalescePartitionsExec::new(plan)),
            };
        }
        // Computed columns go back into scans. The others are DataFusion's rules behind ours.
        let rules: [&dyn PhysicalOptimizerRule; 3] =
            [&ProjectionPushdown::new(), &EnsureCooperative::new(), &FilterPushdown::new_post_optimization()];
        let plan = rules.into_iter().try_fold(plan, |plan, rule| rule.optimize(plan, config))?;
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
