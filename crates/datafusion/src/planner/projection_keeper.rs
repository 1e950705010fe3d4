// SPDX-License-Identifier: Apache-2.0
//! Keeps computed columns out of file scans.
//!
//! DataFusion merges projections into the file scan below them. Their expressions would run on the
//! host. The rule [`ProjectionKeeper`] turns a supported projection into a
//! [`DeviceProjectionExec`], which DataFusion does not merge. The planner turns it back before it
//! offloads operators.

use std::cell::LazyCell;
use std::sync::Arc;

use datafusion::common::Result;
use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode};
use datafusion::datasource::physical_plan::FileScanConfig;
use datafusion::datasource::source::{DataSource, DataSourceExec};
use datafusion::physical_expr::expressions::Column;
use datafusion::physical_expr::projection::{ProjectionExpr, ProjectionExprs};
use datafusion::physical_optimizer::PhysicalOptimizerRule;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::projection::ProjectionExec;

use crate::exec::{DeviceProjectionExec, is_constant, is_trivial, reads_catalog};
use crate::planner::most_rows::RowBounds;
use crate::planner::rewrite::Plan;
use crate::planner::support::{has_tiny_inputs, support_of};
use crate::session::{DeviceOptions, DeviceRuntime};

/// Shields computing projections from being merged into a file scan. Runs before the first
/// `ProjectionPushdown`.
#[derive(Debug)]
pub struct ProjectionKeeper {
    runtime: Arc<DeviceRuntime>,
}

impl ProjectionKeeper {
    /// A rule for plans made for the device of `runtime`.
    pub fn new(runtime: Arc<DeviceRuntime>) -> Self {
        ProjectionKeeper { runtime }
    }
}

impl PhysicalOptimizerRule for ProjectionKeeper {
    fn optimize(&self, plan: Arc<dyn ExecutionPlan>, config: &ConfigOptions) -> Result<Arc<dyn ExecutionPlan>> {
        let options = DeviceOptions::of(config);
        if !options.enabled {
            return Ok(plan);
        }
        let bounds = RowBounds::default();
        // Tiny inputs, which stay on the host, do not open the device.
        let has_device = LazyCell::new(|| self.runtime.device_for_plan(&options).is_ok());
        let may_move =
            |node: &Arc<dyn ExecutionPlan>| support_of(node).is_ok() && (has_tiny_inputs(node, &options, &bounds) || *has_device);
        plan.transform_up(|node| {
            let computes = node.is::<ProjectionExec>() && !is_trivial(&node) && !is_constant(&node) && !reads_catalog(&node);
            if computes && may_move(&node) {
                return Ok(Transformed::yes(Arc::new(DeviceProjectionExec::try_new(node)?)));
            }
            Ok(Transformed::no(node))
        })
        .data()
    }

    fn name(&self) -> &str {
        "ProjectionKeeper"
    }

    fn schema_check(&self) -> bool {
        true
    }
}

/// Takes computed columns out of file scans. One rule of DataFusion moves expressions of a join's
/// filter below the join and into the scan there.
pub(crate) fn out_of_scans(plan: Arc<dyn ExecutionPlan>) -> Result<Arc<dyn ExecutionPlan>> {
    plan.transform_up(|node| Ok(out_of_scan(&node)?.map_or(Transformed::no(node), Transformed::yes))).data()
}

/// A computing scan as a projection over a scan. `None` if the scan lacks a column of the
/// expressions.
fn out_of_scan(node: &Arc<dyn ExecutionPlan>) -> Result<Option<Arc<dyn ExecutionPlan>>> {
    let scan = node.downcast_ref::<DataSourceExec>();
    let Some(config) = scan.and_then(|scan| scan.data_source().downcast_ref::<FileScanConfig>()) else { return Ok(None) };
    let Some(outputs) = config.file_source().projection() else { return Ok(None) };
    let of_table = |output: &ProjectionExpr| output.expr.downcast_ref::<Column>().map(Column::index);
    let kept: Vec<(usize, usize)> =
        outputs.iter().enumerate().filter_map(|(index, output)| Some((index, of_table(output)?))).collect();
    if kept.len() == outputs.iter().count() {
        return Ok(None);
    }
    let (positions, columns): (Vec<usize>, Vec<usize>) = kept.into_iter().unzip();
    let schema = node.schema();
    let mut found = true;
    let over_kept = outputs.iter().map(|output| {
        let expr = Arc::clone(&output.expr).transform_up(|expr| {
            let Some(column) = expr.downcast_ref::<Column>() else { return Ok(Transformed::no(expr)) };
            let index = columns.iter().position(|kept| *kept == column.index());
            found &= index.is_some();
            let name = index.map_or(column.name(), |index| schema.field(positions[index]).name());
            Ok(Transformed::yes(Arc::new(Column::new(name, index.unwrap_or_default()))))
        })?;
        Ok((expr.data, output.alias.clone()))
    });
    let over_kept = over_kept.collect::<Result<Vec<_>>>()?;
    let plain = ProjectionExprs::from_indices(&positions, &schema);
    let Some(scan) = config.try_swapping_with_projection(&plain)?.filter(|_| found) else { return Ok(None) };
    let lifted: Arc<dyn ExecutionPlan> = Arc::new(ProjectionExec::try_new(over_kept, Arc::new(DataSourceExec::new(scan)))?);
    // Only a scan can evaluate some functions, such as that of the file's name.
    Ok(Some(lifted).filter(|lifted| support_of(lifted).is_ok()))
}

/// Turns shielded projections back into host projections. Returns the plan and these projections,
/// which are supported on the device.
pub(crate) fn release(plan: Plan) -> Result<(Plan, Vec<Plan>)> {
    let mut supported = Vec::new();
    let released = plan.transform_up(|node| match node.downcast_ref::<DeviceProjectionExec>() {
        Some(projection) => {
            supported.push(Arc::clone(&projection.host));
            Ok(Transformed::yes(Arc::clone(&projection.host)))
        }
        None => Ok(Transformed::no(node)),
    });
    Ok((released.data()?, supported))
}
