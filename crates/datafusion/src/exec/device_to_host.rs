// SPDX-License-Identifier: Apache-2.0
//! The top of an offloaded subplan: lowers it to stages, runs them and downloads the result.

use std::any::Any;
use std::collections::HashSet;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use columnar::ColumnType;
use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::common::{Result, human_readable_duration, internal_err};
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_plan::coop::make_cooperative;
use datafusion::physical_plan::execution_plan::SchedulingType;
use datafusion::physical_plan::metrics::{ExecutionPlanMetricsSet, MetricsSet};
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::{DisplayAs, DisplayFormatType, ExecutionPlan, ExecutionPlanProperties, PlanProperties};
use device::ProgramSource;
use futures::StreamExt;
use kernels::ops::Options;

use super::adaptive_start::{STARTS_ON_HOST, missing_programs};
use crate::exec::retry::retried;
use crate::exec::{
    HostAlternative, SubplanRun, can_run_again, device_inputs, forget_run, inner_methods, is_repeatable, pass_through_methods,
};
use crate::expr::awaits_subquery;
use crate::graph::{self, Stage};
use crate::run::{self, DeviceBatchStream};
use crate::session::{DeviceOptions, PlannedDevice};

/// Runs the device operators below it as fused pipelines.
///
/// [`execute`](ExecutionPlan::execute) downloads the rows; [`execute_device`](Self::execute_device)
/// leaves them on the device. The node holds no device: the session's comes from the `TaskContext`.
#[derive(Debug)]
pub struct DeviceToHostExec {
    input: Arc<dyn ExecutionPlan>,
    destination: String,
    options: Options,
    stage: Arc<Stage>,
    /// Whether each run lowers the operators anew, with the values of scalar subqueries.
    awaits_subqueries: bool,
    /// Runs before kernels are compiled, or if the device refuses the subplan. `None` makes a
    /// refusal an error.
    alternative: Option<HostAlternative>,
    /// Whether kernels were missing at planning, so that the run starts on the host.
    starts_on_host: AtomicBool,
    properties: Arc<PlanProperties>,
    metrics: ExecutionPlanMetricsSet,
    /// Dropped when the node and its streams are: the plan cache may then lend the operators again.
    lease: Option<Lease>,
}

/// The guard that keeps the operators of a plan from being lent twice at a time.
type Lease = Arc<dyn Any + Send + Sync>;

impl DeviceToHostExec {
    /// The top of `input`'s device operators. `destination`, for EXPLAIN: the result, or the host
    /// operator that reads the rows.
    pub fn try_new(input: Arc<dyn ExecutionPlan>, destination: impl Into<String>, options: Options) -> Result<Self> {
        let stage = graph::lower(&input, &options)?;
        // Each partition of the plan runs by itself: one too many would give rows twice.
        let partitions = input.output_partitioning().partition_count();
        if stage.partitions != partitions {
            return internal_err!("{} has {partitions} partitions and runs in {}", input.name(), stage.partitions);
        }
        let awaits_subqueries = awaits_subqueries(&input)?;
        let properties = Arc::new(input.properties().as_ref().clone().with_scheduling_type(SchedulingType::Cooperative));
        Ok(DeviceToHostExec {
            input,
            destination: destination.into(),
            options,
            stage: Arc::new(stage),
            awaits_subqueries,
            alternative: None,
            starts_on_host: AtomicBool::new(false),
            properties,
            metrics: ExecutionPlanMetricsSet::new(),
            lease: None,
        })
    }

    /// Whether the same operators can run again, one run after another.
    pub(crate) fn is_repeatable(&self) -> bool {
        !self.awaits_subqueries && is_repeatable(&self.input)
    }

    /// Drops what the last run left behind.
    pub(crate) fn forget_run(&self) {
        forget_run(&self.input);
    }

    /// The same operators for another run, with new metrics. No other run may be under way.
    pub(crate) fn lent(&self, lease: Lease) -> Self {
        DeviceToHostExec {
            input: Arc::clone(&self.input),
            destination: self.destination.clone(),
            options: self.options.clone(),
            stage: Arc::clone(&self.stage),
            awaits_subqueries: self.awaits_subqueries,
            alternative: self.alternative.clone(),
            starts_on_host: AtomicBool::new(false),
            properties: Arc::clone(&self.properties),
            metrics: ExecutionPlanMetricsSet::new(),
            lease: Some(lease),
        }
    }

    fn with_lease(mut self, lease: Option<Lease>) -> Self {
        self.lease = lease;
        self
    }

    /// With the host operators to run if the device refuses the subplan.
    pub(crate) fn with_alternative(mut self, alternative: Option<HostAlternative>) -> Self {
        self.alternative = alternative;
        self
    }

    fn with_start_of(self, other: &DeviceToHostExec) -> Self {
        self.starts_on_host.store(other.starts_on_host.load(Relaxed), Relaxed);
        self
    }

    /// The host operators to run if the device refuses the subplan.
    pub(crate) fn alternative(&self) -> Option<&HostAlternative> {
        self.alternative.as_ref()
    }

    /// Notes for EXPLAIN whether a run would start on the host.
    pub(crate) fn note_start(&self, device: &PlannedDevice, options: &DeviceOptions) {
        let may_start = self.alternative.as_ref().is_some_and(|alternative| alternative.may_start(&self.properties));
        let missing = || missing_programs(&device.info, device.context.as_ref(), options, &self.stage);
        self.starts_on_host.store(may_start && !missing().is_empty(), Relaxed);
    }

    /// The host operators of the latest run; `None` if it is the device's.
    pub fn host_run(&self) -> Option<Arc<dyn ExecutionPlan>> {
        self.alternative.as_ref()?.running()
    }

    /// Why the latest run is the host's; `None` if it is the device's.
    pub(crate) fn host_run_reason(&self) -> Option<String> {
        self.alternative.as_ref().and_then(HostAlternative::reason)
    }

    /// The device operators.
    pub fn input(&self) -> &Arc<dyn ExecutionPlan> {
        &self.input
    }

    /// The reader of the rows.
    pub fn destination(&self) -> &str {
        &self.destination
    }

    /// Shape of the kernels.
    pub fn options(&self) -> &Options {
        &self.options
    }

    /// Runs one partition and leaves its rows on the device. The host never replaces this run.
    ///
    /// # Errors
    /// If the session has no device, or a kernel cannot be made; errors of the run come with the
    /// stream.
    pub fn execute_device(&self, partition: usize, task: Arc<TaskContext>) -> Result<DeviceBatchStream> {
        let batches = run::execute_device(&self.ready_stage()?, partition, &task)?;
        Ok(match self.lease.clone() {
            Some(lease) => batches.inspect(move |_| _ = &lease).boxed(),
            None => batches,
        })
    }

    /// The stage of a run. Scalar subqueries of the host have run by now.
    fn ready_stage(&self) -> Result<Arc<Stage>> {
        match self.awaits_subqueries {
            false => Ok(Arc::clone(&self.stage)),
            true => Ok(Arc::new(graph::lower(&self.input, &self.options)?)),
        }
    }

    /// Physical types of the columns on the device.
    pub(crate) fn types(&self) -> &[ColumnType] {
        &self.stage.types
    }

    /// The programs that a run most likely needs. Empty where they depend on its data.
    pub fn likely_programs(&self) -> Vec<ProgramSource> {
        self.stage.likely_programs().unwrap_or_default()
    }

    /// Names and sources of the kernels.
    pub fn kernel_sources(&self) -> Vec<(String, String)> {
        self.stage.kernel_sources()
    }
}

fn awaits_subqueries(plan: &Arc<dyn ExecutionPlan>) -> Result<bool> {
    let mut awaits = false;
    plan.apply_expressions(&mut |expr| {
        awaits |= awaits_subquery(expr);
        Ok(TreeNodeRecursion::Continue)
    })?;
    device_inputs(plan).into_iter().try_fold(awaits, |awaits, input| Ok(awaits | awaits_subqueries(input)?))
}

impl DisplayAs for DeviceToHostExec {
    fn fmt_as(&self, format: DisplayFormatType, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (pipelines, destination) = (self.stage.pipelines(), &self.destination);
        let ran_on_host = self.host_run_reason();
        let starts_on_host = self.starts_on_host.load(Relaxed);
        if format == DisplayFormatType::TreeRender {
            write!(f, "pipelines={pipelines}\nto={destination}")?;
            return if starts_on_host { write!(f, "\nfirst_runs=host, {STARTS_ON_HOST}") } else { Ok(()) };
        }
        write!(f, "DeviceToHostExec: pipelines={pipelines}, to=[{destination}]")?;
        match ran_on_host {
            Some(reason) => {
                write!(f, ", ran_on_host=[{reason}]")?;
                if let Some(host) = self.host_run() {
                    write!(f, ", host_operators=[{}]", operators_with_metrics(&host).join(", "))?;
                }
            }
            None if starts_on_host => write!(f, ", first_runs=[host, {STARTS_ON_HOST}]")?,
            None => {}
        }
        if let Some(total) = total_of_kernels(&self.input) {
            write!(f, ", total=[{total}]")?;
        }
        if format == DisplayFormatType::Verbose {
            write!(f, ", profile={}{}", self.options.profile.name(), sizes(&self.options))?;
            let (mut names, mut seen): (Vec<String>, _) = (vec![], HashSet::new());
            names.extend(self.kernel_sources().into_iter().map(|(name, _)| name).filter(|name| seen.insert(name.clone())));
            write!(f, ", kernels=[{}]", names.join(", "))?;
        }
        Ok(())
    }
}

/// Launches and times of all kernels below, once they have run.
fn total_of_kernels(plan: &Arc<dyn ExecutionPlan>) -> Option<String> {
    fn add(plan: &Arc<dyn ExecutionPlan>, sums: &mut [(&str, usize); 3]) {
        let metrics = plan.metrics();
        for (name, sum) in sums.iter_mut() {
            *sum += metrics.as_ref().and_then(|metrics| metrics.sum_by_name(name)).map_or(0, |sum| sum.as_usize());
        }
        device_inputs(plan).into_iter().for_each(|input| add(input, sums));
    }
    let mut sums = [("launches", 0), ("kernel_time", 0), ("compile_time", 0)];
    add(plan, &mut sums);
    let [(_, launches), times @ ..] = sums;
    let times = times.iter().filter(|(_, nanos)| *nanos > 0);
    let times = times.map(|(name, nanos)| format!(", {name}={}", human_readable_duration(*nanos as u64)));
    (launches > 0).then(|| format!("launches={launches}{}", times.collect::<String>()))
}

/// The operators of a run, from the root down: name, rows and time, such as `SortExec 4 rows
/// 12.3µs`.
fn operators_with_metrics(plan: &Arc<dyn ExecutionPlan>) -> Vec<String> {
    let metrics = plan.metrics();
    let rows = metrics.as_ref().and_then(MetricsSet::output_rows).map(|rows| format!(" {rows} rows"));
    let time = metrics.as_ref().and_then(MetricsSet::elapsed_compute);
    let time = time.map(|nanos| format!(" {:.1?}", Duration::from_nanos(nanos as u64)));
    let own = [plan.name().to_owned(), rows.unwrap_or_default(), time.unwrap_or_default()].concat();
    std::iter::once(own).chain(plan.children().into_iter().flat_map(operators_with_metrics)).collect()
}

/// The sizes that differ from the profile's defaults.
fn sizes(options: &Options) -> String {
    let defaults = Options::new(options.profile).sizes().named();
    let chosen = options.sizes().named().into_iter().zip(defaults).filter(|(size, default)| size != default);
    chosen.map(|((name, size), _)| format!(", {name}={size}")).collect()
}

impl ExecutionPlan for DeviceToHostExec {
    inner_methods! {
        "DeviceToHostExec",
        inputs: [input],
        exprs: |_node| std::iter::empty::<&Arc<dyn PhysicalExpr>>(),
        over: |node| DeviceToHostExec::try_new(input, node.destination.clone(), node.options.clone())?
            .with_alternative(node.alternative.clone())
            .with_start_of(&node)
            .with_lease(node.lease.clone()),
    }
    pass_through_methods!();

    fn properties(&self) -> &Arc<PlanProperties> {
        &self.properties
    }

    fn execute(&self, partition: usize, task: Arc<TaskContext>) -> Result<SendableRecordBatchStream> {
        let stage = self.ready_stage();
        // Without the values of scalar subqueries the programs are most likely the same.
        let likely = Arc::clone(stage.as_ref().unwrap_or(&self.stage));
        let (schema, metrics, of_run) = (self.schema(), self.metrics.clone(), Arc::clone(&task));
        let run = move |stage: &Arc<Stage>| run::execute_host(stage, Arc::clone(&schema), partition, &of_run, &metrics);
        // Several partitions share rows that the first one of them computes.
        let may_retry = self.stage.partitions == 1 && can_run_again(&self.input);
        let of_retries = Arc::clone(&task);
        let run = move || {
            let stage = stage?;
            let first = run(&stage)?;
            Ok(if may_retry { retried(first, of_retries, move || run(&stage)) } else { first })
        };
        let rows = match &self.alternative {
            Some(alternative) => {
                let (properties, metrics) = (&self.properties, &self.metrics);
                alternative.rows(&SubplanRun { stage: &likely, properties, partition, task: &task, metrics }, run)?
            }
            None => run()?,
        };
        Ok(make_cooperative(match self.lease.clone() {
            Some(lease) => {
                let rows = rows.inspect(move |_| _ = &lease);
                Box::pin(RecordBatchStreamAdapter::new(self.schema(), rows))
            }
            None => rows,
        }))
    }
}
