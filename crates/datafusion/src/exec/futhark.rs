// SPDX-License-Identifier: Apache-2.0
//! Calls of compiled Futhark libraries.

use std::fmt;
use std::sync::Arc;

use datafusion::common::{Result, internal_err, plan_datafusion_err};
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_expr::expressions::Column;
use datafusion::physical_plan::projection::ProjectionExec;
use datafusion::physical_plan::{DisplayAs, DisplayFormatType, ExecutionPlan};

use crate::exec::{OperatorMetrics, host_counterpart};
use crate::futhark::{DeviceCall, LibraryCalls};

/// Calls functions of libraries that share the device. Their results follow the input's columns.
///
/// - A library is called once for each batch, with the rows without a NULL argument. Other results
///   are NULL.
/// - Arguments are passed in place if their layout is the library's, else a kernel writes them.
/// - Results are columns in place.
/// - Partitioning and ordering are the input's.
#[derive(Debug)]
pub struct DeviceFutharkExec {
    /// A projection of the input's columns and the calls.
    pub(crate) host: Arc<dyn ExecutionPlan>,
    pub(crate) metrics: OperatorMetrics,
    calls: Vec<DeviceCall>,
}

impl DeviceFutharkExec {
    /// Offloads a projection of all columns of a device operator, and calls behind them.
    pub(crate) fn try_new(host: Arc<dyn ExecutionPlan>) -> Result<Self> {
        let Some(projection) = host.downcast_ref::<ProjectionExec>() else {
            return internal_err!("DeviceFutharkExec replaces a ProjectionExec, not {}", host.name());
        };
        let mut calls = LibraryCalls::new(&projection.input().schema());
        for output in projection.expr() {
            calls.lift(&output.expr).map_err(|reason| plan_datafusion_err!("DeviceFutharkExec: {reason}"))?;
        }
        let calls = calls.calls;
        Ok(DeviceFutharkExec { host, metrics: OperatorMetrics::new(), calls })
    }

    /// Lifts the calls of expressions over `input` to an operator of their own. `None` without
    /// calls.
    pub(crate) fn lift(exprs: &[Arc<dyn PhysicalExpr>], input: &Arc<dyn ExecutionPlan>) -> Result<Option<LiftedCalls>> {
        let schema = input.schema();
        let mut calls = LibraryCalls::new(&schema);
        let lifted = exprs.iter().map(|expr| calls.lift(expr)).collect::<std::result::Result<Vec<_>, _>>();
        let lifted = lifted.map_err(|reason| plan_datafusion_err!("DeviceFutharkExec: {reason}"))?;
        if calls.calls.is_empty() {
            return Ok(None);
        }
        let columns = schema.fields().iter().enumerate().map(|(index, field)| {
            let column: Arc<dyn PhysicalExpr> = Arc::new(Column::new(field.name(), index));
            (column, field.name().clone())
        });
        let results = calls.calls.iter().map(|call| (Arc::clone(call.expr()), call.expr().to_string()));
        let host = ProjectionExec::try_new(columns.chain(results).collect::<Vec<_>>(), Arc::clone(input))?;
        Ok(Some((Arc::new(DeviceFutharkExec::try_new(Arc::new(host))?), lifted)))
    }

    /// The calls, each over the columns before its own.
    pub(crate) fn calls(&self) -> &[DeviceCall] {
        &self.calls
    }
}

/// An operator that makes calls, and the expressions over its columns.
pub(crate) type LiftedCalls = (Arc<dyn ExecutionPlan>, Vec<Arc<dyn PhysicalExpr>>);

impl DisplayAs for DeviceFutharkExec {
    fn fmt_as(&self, format: DisplayFormatType, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let calls: Vec<String> = self.calls.iter().map(|call| call.expr().to_string()).collect();
        let mut libraries: Vec<String> = Vec::new();
        for call in &self.calls {
            let library = call.function().context().library().path().display().to_string();
            if !libraries.contains(&library) {
                libraries.push(library);
            }
        }
        let (calls, libraries) = (calls.join(", "), libraries.join(", "));
        match format {
            DisplayFormatType::TreeRender => write!(f, "calls={calls}\nlibraries={libraries}"),
            _ => write!(f, "DeviceFutharkExec: calls=[{calls}], libraries=[{libraries}]"),
        }
    }
}

host_counterpart!(plan of DeviceFutharkExec, "DeviceFutharkExec", |node| node.host.properties());
