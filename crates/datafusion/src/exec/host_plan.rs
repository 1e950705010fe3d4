// SPDX-License-Identifier: Apache-2.0
//! Predicates on operators of the host: scans, moves of rows, and operators that compute.

use std::fmt::{self, Write};
use std::sync::Arc;

use arrow::datatypes::SchemaRef;
use datafusion::datasource::physical_plan::FileScanConfig;
use datafusion::datasource::source::DataSourceExec;
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_expr::expressions::{Column, Literal};
use datafusion::physical_expr::projection::ProjectionExprs;
use datafusion::physical_expr::window::WindowExpr;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::limit::{GlobalLimitExec, LocalLimitExec};
use datafusion::physical_plan::placeholder_row::PlaceholderRowExec;
use datafusion::physical_plan::projection::ProjectionExec;
use datafusion::physical_plan::streaming::{PartitionStream, StreamingTableExec};
use datafusion::physical_plan::unnest::UnnestExec;
use datafusion::physical_plan::windows::{BoundedWindowAggExec, WindowAggExec};

use crate::exec::{DeviceUnionExec, is_device};

/// Whether an operator computes. Exchanges, scans, sinks and EXPLAIN do not.
pub(crate) fn computes(plan: &Arc<dyn ExecutionPlan>) -> bool {
    const MOVES: &[&str] = &[
        "AnalyzeExec",
        "BufferExec",
        "CoalesceBatchesExec",
        "CoalescePartitionsExec",
        "CooperativeExec",
        "DataSinkExec",
        "DeviceToHostExec",
        "ExplainExec",
        "OutputRequirementExec",
        "RepartitionExec",
        "ScalarSubqueryExec",
        "SortPreservingMergeExec",
        "UnionExec",
    ];
    if scan_computes(plan) {
        return true;
    }
    // Such a union brings rows of the device to the host, which EXPLAIN should show.
    if joins_other_lists(plan) {
        return subtree_computes(plan);
    }
    if plan.children().is_empty() || is_device(plan) || MOVES.contains(&plan.name()) || passes_columns(plan) || is_constant(plan)
    {
        return false;
    }
    // A limit right above a scan is part of that scan.
    !is_limit(plan) || subtree_computes(plan)
}

/// Whether elements of a union's lists differ in name or nullability between its inputs.
pub(crate) fn joins_other_lists(plan: &Arc<dyn ExecutionPlan>) -> bool {
    let schema = plan.schema();
    let differs = |child: &Arc<dyn ExecutionPlan>| {
        let of_child = child.schema();
        let mut pairs = schema.fields().iter().zip(of_child.fields());
        pairs.any(|(field, of_child)| field.data_type().is_list() && field.data_type() != of_child.data_type())
    };
    DeviceUnionExec::replaces(plan) && plan.children().into_iter().any(differs)
}

/// Whether a subtree gives constant rows: of literals, and of the elements of literal lists.
pub(crate) fn is_constant(plan: &Arc<dyn ExecutionPlan>) -> bool {
    if plan.is::<PlaceholderRowExec>() {
        return true;
    }
    let constant = |expr: &Arc<dyn PhysicalExpr>| expr.is::<Literal>() || expr.is::<Column>();
    let passes_constants = match plan.downcast_ref::<ProjectionExec>() {
        Some(projection) => projection.expr().iter().all(|output| constant(&output.expr)),
        None => plan.is::<UnnestExec>(),
    };
    passes_constants && plan.children().into_iter().all(is_constant)
}

/// Whether a subtree only reads the information schema, as SHOW does, and constant rows.
pub(crate) fn reads_catalog(plan: &Arc<dyn ExecutionPlan>) -> bool {
    match plan.downcast_ref::<StreamingTableExec>() {
        Some(scan) => !scan.partitions().is_empty() && scan.partitions().iter().all(|rows| is_information_schema(rows.as_ref())),
        None => {
            let children = plan.children();
            let reads = |child: &&Arc<dyn ExecutionPlan>| reads_catalog(child);
            children.iter().any(reads) && children.iter().all(|child| reads_catalog(child) || is_constant(child))
        }
    }
}

/// Whether rows are of DataFusion's information schema. Its types are private.
fn is_information_schema(rows: &dyn PartitionStream) -> bool {
    const PREFIX: &str = "InformationSchema";
    /// Ends `Debug` behind the name: the rest is the whole catalog.
    struct Name(String);
    impl fmt::Write for Name {
        fn write_str(&mut self, text: &str) -> fmt::Result {
            self.0.push_str(text);
            if self.0.len() < PREFIX.len() { Ok(()) } else { Err(fmt::Error) }
        }
    }
    let mut name = Name(String::new());
    _ = write!(name, "{rows:?}");
    name.0.starts_with(PREFIX)
}

/// Whether a subtree only reads files.
pub(crate) fn reads_files(plan: &Arc<dyn ExecutionPlan>) -> bool {
    let children = plan.children();
    match computes(plan) || is_device(plan) {
        true => false,
        false if children.is_empty() => plan
            .downcast_ref::<DataSourceExec>()
            .is_some_and(|scan| scan.data_source().downcast_ref::<FileScanConfig>().is_some()),
        false => children.into_iter().all(reads_files),
    }
}

/// The expressions that a file scan evaluates, and the table's schema.
pub(crate) fn scan_projection(plan: &Arc<dyn ExecutionPlan>) -> Option<(ProjectionExprs, SchemaRef)> {
    let source = plan.downcast_ref::<DataSourceExec>()?.data_source().downcast_ref::<FileScanConfig>()?;
    let projection = source.file_source().projection()?.clone();
    Some((projection, Arc::clone(source.file_source().table_schema().table_schema())))
}

/// Whether DataFusion has merged computed columns into a file scan. There they run on the host.
fn scan_computes(plan: &Arc<dyn ExecutionPlan>) -> bool {
    scan_projection(plan)
        .is_some_and(|(projection, _)| projection.iter().any(|output| output.expr.downcast_ref::<Column>().is_none()))
}

fn subtree_computes(plan: &Arc<dyn ExecutionPlan>) -> bool {
    plan.children().into_iter().any(|child| is_device(child) || computes(child) || subtree_computes(child))
}

pub(crate) fn is_limit(plan: &Arc<dyn ExecutionPlan>) -> bool {
    plan.is::<GlobalLimitExec>() || plan.is::<LocalLimitExec>()
}

/// Whether an operator only passes columns or rows on. It alone is not worth an upload.
pub(crate) fn is_trivial(plan: &Arc<dyn ExecutionPlan>) -> bool {
    is_limit(plan) || passes_columns(plan)
}

fn passes_columns(plan: &Arc<dyn ExecutionPlan>) -> bool {
    plan.downcast_ref::<ProjectionExec>()
        .is_some_and(|projection| projection.expr().iter().all(|output| output.expr.downcast_ref::<Column>().is_some()))
}

/// The functions of a window operator, all of one partitioning and order.
pub(crate) fn window_exprs(plan: &Arc<dyn ExecutionPlan>) -> Option<&[Arc<dyn WindowExpr>]> {
    let exact = plan.downcast_ref::<WindowAggExec>().map(WindowAggExec::window_expr);
    exact.or_else(|| plan.downcast_ref::<BoundedWindowAggExec>().map(BoundedWindowAggExec::window_expr))
}

/// Whether a window operator is a `BoundedWindowAggExec`, reading ahead as little as possible.
pub(crate) fn is_bounded(plan: &Arc<dyn ExecutionPlan>) -> bool {
    plan.downcast_ref::<BoundedWindowAggExec>().is_some()
}
