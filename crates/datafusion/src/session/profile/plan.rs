// SPDX-License-Identifier: Apache-2.0
//! The plan of a run as a tree of nodes.

use std::any::Any;
use std::sync::Arc;

use datafusion::physical_plan::metrics::MetricValue;
use datafusion::physical_plan::{ExecutionPlan, displayable};
use device::WorkKind;
use serde::Serialize;

use super::record::nanos;
use crate::exec::{DeviceOperator, DeviceToHostExec, HostExec};
use crate::run::{Activities, Activity, ActivityKind, OperatorKernels, WallTime};

/// An operator.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Node {
    /// The number of its parent, in the order of the nodes.
    parent: Option<usize>,
    name: String,
    /// The text that EXPLAIN shows behind the name.
    detail: String,
    ran_on: RanOn,
    /// Why it is on the host.
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    rows: Option<usize>,
    /// From its start to its last batch.
    wall_nanos: u64,
    /// Time that it was busy itself: its kernels, compilations and uploads, or the host's.
    own_nanos: u64,
    /// Other metrics, as EXPLAIN ANALYZE prints them.
    metrics: Vec<(String, String)>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    kernels: Vec<NodeKernel>,
}

/// Where an operator ran.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum RanOn {
    Device,
    Host,
}

/// A kernel of an operator.
#[derive(Debug, Clone, Serialize)]
struct NodeKernel {
    name: String,
    launches: u64,
    bytes: u64,
    nanos: u64,
}

/// A kernel that the plan was lowered to. A run may choose another program for the sizes it meets.
#[derive(Debug, Clone, Serialize)]
pub(super) struct KernelSource {
    kernel: String,
    text: String,
}

/// The nodes of a plan, each behind its parent, with what they recorded.
pub(super) struct Tree {
    nodes: Vec<Node>,
    pub(super) activities: Vec<(usize, Activity)>,
    sources: Vec<KernelSource>,
}

impl Tree {
    pub fn of(plan: &Arc<dyn ExecutionPlan>) -> Tree {
        let mut tree = Tree { nodes: vec![], activities: vec![], sources: vec![] };
        tree.add(plan, None, RanOn::Host);
        tree
    }

    pub fn into_nodes(self) -> (Vec<Node>, Vec<KernelSource>) {
        (self.nodes, self.sources)
    }

    /// Adds a plan. Its operators run on `ran_on`, unless they say otherwise.
    fn add(&mut self, plan: &Arc<dyn ExecutionPlan>, parent: Option<usize>, ran_on: RanOn) {
        let top = plan.downcast_ref::<DeviceToHostExec>();
        let is_upload = DeviceOperator::of(plan).and_then(DeviceOperator::host_input).is_some();
        let here = if top.is_some() || is_upload { RanOn::Device } else { ran_on };
        let number = self.nodes.len();
        let node = self.node(plan, parent, here, number);
        self.nodes.push(node);

        if let Some(replaced) = top.and_then(DeviceToHostExec::host_run) {
            return self.add(&replaced, Some(number), RanOn::Host);
        }
        let sources = top.map(DeviceToHostExec::kernel_sources).unwrap_or_default();
        self.sources.extend(sources.into_iter().map(|(kernel, text)| KernelSource { kernel, text }));
        let below = match (top.is_some(), is_upload) {
            (true, _) => RanOn::Device,
            (_, true) => RanOn::Host,
            _ => ran_on,
        };
        plan.children().into_iter().for_each(|child| self.add(child, Some(number), below));
    }

    fn node(&mut self, plan: &Arc<dyn ExecutionPlan>, parent: Option<usize>, ran_on: RanOn, number: usize) -> Node {
        let host = plan.downcast_ref::<HostExec>();
        let shown = host.map_or(plan, HostExec::inner);
        let line = displayable(shown.as_ref()).one_line().to_string();
        let name = plan.name().to_owned();
        let detail = line.trim().strip_prefix(&name).unwrap_or(line.trim()).trim_start_matches(':').trim().to_owned();
        let mut node = Node {
            parent,
            name,
            detail,
            ran_on,
            reason: host.map(|host| host.reason().to_owned()),
            rows: None,
            wall_nanos: 0,
            own_nanos: 0,
            metrics: vec![],
            kernels: vec![],
        };
        let Some(metrics) = plan.metrics() else { return node };
        node.rows = metrics.output_rows();
        node.own_nanos = metrics.elapsed_compute().unwrap_or(0) as u64;
        for metric in metrics.iter() {
            let MetricValue::Custom { value, .. } = metric.value() else { continue };
            let Some(activities) = custom::<Activities>(value.as_any()) else { continue };
            for activity in activities.list() {
                if let ActivityKind::Work(WorkKind::Upload { .. }) = activity.kind {
                    node.own_nanos += nanos(activity.end - activity.start);
                }
                self.activities.push((number, activity));
            }
        }
        // A scan of Parquet has its decompression and decoding in the last one only.
        let times =
            ["kernel_time", "compile_time", "time_elapsed_processing"].into_iter().filter_map(|name| metrics.sum_by_name(name));
        node.own_nanos += times.map(|time| time.as_usize() as u64).sum::<u64>();
        for metric in metrics.aggregate_by_name().sorted_for_display().timestamps_removed().iter() {
            match metric.value() {
                MetricValue::OutputRows(_) => {}
                MetricValue::Custom { value, .. } => {
                    if let Some(wall_time) = custom::<WallTime>(value.as_any()) {
                        node.wall_nanos = nanos(wall_time.duration());
                    } else if let Some(kernels) = custom::<OperatorKernels>(value.as_any()) {
                        node.kernels = kernels.sorted().into_iter().map(NodeKernel::from).collect();
                    } else if custom::<Activities>(value.as_any()).is_none() {
                        node.metrics.push((metric.value().name().to_owned(), value.to_string()));
                    }
                }
                value if value.as_usize() == 0 => {}
                value => node.metrics.push((value.name().to_owned(), value.to_string())),
            }
        }
        node
    }
}

fn custom<T: 'static>(value: &dyn Any) -> Option<&T> {
    value.downcast_ref()
}

impl From<(Arc<str>, device::KernelCosts)> for NodeKernel {
    fn from((name, costs): (Arc<str>, device::KernelCosts)) -> Self {
        NodeKernel { name: name.to_string(), launches: costs.launches, bytes: costs.bytes, nanos: nanos(costs.time) }
    }
}

impl Node {
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The plan below a node in the JSON of PostgreSQL's EXPLAIN. As there, times are those of the
    /// operator with its inputs.
    pub fn pgjson(nodes: &[Node], number: usize) -> serde_json::Value {
        let node = &nodes[number];
        let children = (0..nodes.len()).filter(|child| nodes[*child].parent == Some(number));
        let plans: Vec<_> = children.map(|child| Node::pgjson(nodes, child)).collect();
        let of_inputs = plans.iter().filter_map(|plan| plan["Actual Total Time"].as_f64()).fold(0.0, f64::max);
        let mut json = serde_json::json!({
            "Node Type": node.name,
            "Details": node.detail,
            "Ran On": node.ran_on,
            "Actual Rows": node.rows.unwrap_or(0),
            "Actual Loops": 1,
            "Actual Startup Time": 0.0,
            "Actual Total Time": (node.wall_nanos.max(node.own_nanos) as f64 / 1e6).max(of_inputs),
            "Plans": plans,
        });
        for (name, value) in &node.metrics {
            json[name] = value.as_str().into();
        }
        json
    }
}
