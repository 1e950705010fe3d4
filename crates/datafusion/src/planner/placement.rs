// SPDX-License-Identifier: Apache-2.0
//! Placement of a finished plan's operators.

use std::collections::HashMap;
use std::sync::Arc;

use datafusion::common::tree_node::{TreeNode, TreeNodeRecursion};
use datafusion::datasource::source::DataSourceExec;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::memory::LazyMemoryExec;
use datafusion::physical_plan::placeholder_row::PlaceholderRowExec;
use datafusion::physical_plan::streaming::StreamingTableExec;

use crate::exec::{DeviceToHostExec, HostExec, computes, device_inputs, reads_catalog};
use crate::planner::most_rows::RowBounds;
use crate::planner::support::{is_tiny, raw_input, support_for_explain, support_of};
use crate::reason::Reason;
use crate::session::DeviceOptions;

/// An operator that computes on the host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostOperator {
    /// Its name in EXPLAIN.
    pub operator: String,
    /// Why it is not offloaded.
    pub reason: String,
}

/// Numbers of operators on the device and on the host.
#[derive(Debug, Clone, Default)]
pub struct Placement {
    /// Operators that compute on the device.
    pub device_operators: usize,
    /// Operators that compute on the host.
    pub host_operators: Vec<HostOperator>,
    /// Leaves of the plan: scans and constants.
    pub scans: usize,
}

/// The kind of a [`Placement`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum PlacementKind {
    /// Every computing operator runs on the device.
    Whole,
    /// Some operators compute on the device, some on the host.
    Partly,
    /// Every computing operator runs on the host.
    Host,
    /// No operator computes.
    ScanOnly,
}

impl Placement {
    /// The kind of the placement.
    pub fn kind(&self) -> PlacementKind {
        match (self.device_operators, self.host_operators.len()) {
            (0, 0) => PlacementKind::ScanOnly,
            (0, _) => PlacementKind::Host,
            (_, 0) => PlacementKind::Whole,
            _ => PlacementKind::Partly,
        }
    }
}

/// The placement of a physical plan: as it ran, once it has run, else as it is planned.
///
/// # Examples
/// ```
/// # tokio_test(async {
/// use devicefusion::{PlacementKind, placement};
/// let ctx = devicefusion::session()?;
/// let plan = ctx.sql("SELECT 1").await?.create_physical_plan().await?;
/// assert_eq!(placement(&plan).device_operators, 0);
/// # Ok(()) });
/// # fn tokio_test(f: impl std::future::Future<Output = datafusion::common::Result<()>>) {
/// #     tokio::runtime::Runtime::new().unwrap().block_on(f).unwrap()
/// # }
/// ```
pub fn placement(plan: &Arc<dyn ExecutionPlan>) -> Placement {
    // Device operators of runs of the host, by their addresses, with the reasons.
    let (mut placement, mut ran_on_host) = (Placement::default(), HashMap::new());
    walk(plan, &mut |node| {
        if node.children().is_empty() {
            placement.scans += 1;
        }
        if let Some(subplan) = node.downcast_ref::<DeviceToHostExec>()
            && let Some(reason) = subplan.host_run_reason()
        {
            let mut below = vec![subplan.input()];
            while let Some(operator) = below.pop() {
                ran_on_host.insert(address(operator), reason.clone());
                below.extend(device_inputs(operator));
            }
        }
        if let Some(host) = node.downcast_ref::<HostExec>() {
            placement.host_operators.push(HostOperator { operator: node.name().to_string(), reason: host.reason().to_string() });
        } else if computes(node) {
            let reason = support_of(node).err().unwrap_or_else(|| "it was planned without a device".to_string());
            placement.host_operators.push(HostOperator { operator: node.name().to_string(), reason });
        } else if !device_inputs(node).is_empty() {
            match ran_on_host.get(&address(node)).cloned() {
                Some(reason) => placement.host_operators.push(HostOperator { operator: node.name().to_string(), reason }),
                None => placement.device_operators += 1,
            }
        }
    });
    placement
}

fn address(node: &Arc<dyn ExecutionPlan>) -> *const () {
    Arc::as_ptr(node).cast()
}

/// The computing operators that a plan keeps on the host. `absent`: why there is no device.
pub(crate) fn host_operators(plan: &Arc<dyn ExecutionPlan>, options: &DeviceOptions, absent: Option<&str>) -> Vec<HostOperator> {
    let (mut operators, bounds) = (Vec::new(), RowBounds::default());
    walk(plan, &mut |node| {
        if let Some(reason) = host_reason(node, options, &bounds, absent) {
            operators.push(HostOperator { operator: node.name().to_string(), reason });
        }
    });
    operators
}

/// Why an operator computes on the host; `None` if it does not.
pub(crate) fn host_reason(
    node: &Arc<dyn ExecutionPlan>,
    options: &DeviceOptions,
    bounds: &RowBounds,
    absent: Option<&str>,
) -> Option<Reason> {
    if !computes(node) {
        return None;
    }
    if reads_catalog(node) && support_for_explain(node).is_ok() {
        return Some("its input is the information schema".into());
    }
    if let Some(absent) = absent {
        return Some(format!("there is no device: {absent}"));
    }
    if let Err(reason) = support_for_explain(node) {
        return Some(reason);
    }
    if let Some(reason) = raw_input(node).and_then(|input| is_tiny(input, options, bounds)) {
        return Some(reason);
    }
    Some(support_of(node).err().unwrap_or_else(|| "its input stays on the host".to_string()))
}

/// The origin of uploaded rows, for EXPLAIN. An operator that computes shows its own reason.
pub(crate) fn origin(input: &Arc<dyn ExecutionPlan>) -> String {
    let mut plan = input;
    while !computes(plan) {
        match plan.children().as_slice() {
            [child] => plan = child,
            _ => {
                let is_scan = plan.is::<DataSourceExec>() || plan.is::<LazyMemoryExec>() || plan.is::<StreamingTableExec>();
                return match plan.name() {
                    _ if is_scan => "a host scan".to_string(),
                    _ if plan.is::<PlaceholderRowExec>() => "a constant row".to_string(),
                    name => name.to_string(),
                };
            }
        }
    }
    plan.name().to_string()
}

fn walk(plan: &Arc<dyn ExecutionPlan>, visit: &mut dyn FnMut(&Arc<dyn ExecutionPlan>)) {
    // The closure never fails.
    let _ = plan.apply(|node| {
        visit(node);
        Ok(TreeNodeRecursion::Continue)
    });
}
