// SPDX-License-Identifier: Apache-2.0
//! Plans of datafusion-python's sessions.

use std::fmt;
use std::sync::Arc;

use datafusion::catalog::Session;
use datafusion::common::runtime::SpawnedTask;
use datafusion::common::tree_node::{Transformed, TreeNode};
use datafusion::common::{DataFusionError, Result, exec_err, not_impl_err};
use datafusion::dataframe::DataFrame;
use datafusion::datasource::source_as_provider;
use datafusion::execution::context::QueryPlanner;
use datafusion::execution::session_state::SessionState;
use datafusion::logical_expr::{DmlStatement, EmptyRelation, LogicalPlan, WriteOp};
use datafusion::physical_plan::coalesce_partitions::CoalescePartitionsExec;
use datafusion::physical_plan::sorts::sort_preserving_merge::SortPreservingMergeExec;
use datafusion::physical_plan::{ExecutionPlan, ExecutionPlanProperties};
use datafusion::prelude::SessionContext;
use datafusion_ffi::query_planner::FFI_QueryPlanner;
use datafusion_proto::bytes::logical_plan_from_bytes_with_extension_codec;
use datafusion_proto::logical_plan::LogicalExtensionCodec;
use futures::future::BoxFuture;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyCapsule;
use tokio::runtime::Handle;

use crate::capsule;
use crate::errors::exception;
use crate::foreign_query::ForeignQuery;
use crate::foreign_table::with_foreign_tables;
use crate::runtime::{WITHIN_QUERY, query_runtime};
use crate::session::options_of;

/// The frame of a query that a session of datafusion-python has written with `codec`.
pub(crate) fn frame(session: &SessionContext, plan: &[u8], codec: &Bound<'_, PyAny>) -> PyResult<DataFrame> {
    let codec: Arc<dyn LogicalExtensionCodec> = (&capsule::logical_codec_of(codec)?).into();
    let plan = logical_plan_from_bytes_with_extension_codec(plan, &session.task_ctx(), codec.as_ref()).map_err(exception)?;
    if writes(&plan).map_err(exception)? {
        return Err(PyValueError::new_err("a statement that writes runs in the session that has made it: collect it there"));
    }
    Ok(DataFrame::new(session.state(), adapted(plan).map_err(exception)?))
}

/// A plan of another library for the rules of this one.
fn adapted(plan: LogicalPlan) -> Result<LogicalPlan> {
    with_foreign_tables(without_empty_sorts(plan)?)
}

/// The plan with nothing in the place of sorts of no rows, which DataFusion's sort refuses.
fn without_empty_sorts(plan: LogicalPlan) -> Result<LogicalPlan> {
    let plan = plan.transform_down_with_subqueries(|node| {
        Ok(match &node {
            LogicalPlan::Sort(sort) if sort.fetch == Some(0) => Transformed::yes(LogicalPlan::EmptyRelation(EmptyRelation {
                produce_one_row: false,
                schema: Arc::clone(node.schema()),
            })),
            _ => Transformed::no(node),
        })
    })?;
    Ok(plan.data)
}

/// Whether any part of a plan writes.
fn writes(plan: &LogicalPlan) -> Result<bool> {
    plan.exists(|node| Ok(matches!(node, LogicalPlan::Dml(_) | LogicalPlan::Copy(_))))
}

/// A query planner for a session of datafusion-python whose codecs are `logical` and `physical`.
pub(crate) fn planner<'py>(
    session: &SessionContext,
    logical: &Bound<'py, PyAny>,
    physical: &Bound<'py, PyAny>,
) -> PyResult<Bound<'py, PyCapsule>> {
    let planner = Arc::new(ForeignSessionPlanner { session: session.clone() });
    let (of_logical, of_physical) = (capsule::logical_codec_of(logical)?, capsule::physical_codec_of(physical)?);
    capsule::of_planner(logical.py(), FFI_QueryPlanner::new_with_ffi_codecs(planner, of_logical, of_physical))
}

/// Plans queries of another library's session with this library's rules.
struct ForeignSessionPlanner {
    session: SessionContext,
}

impl fmt::Debug for ForeignSessionPlanner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ForeignSessionPlanner").finish_non_exhaustive()
    }
}

impl QueryPlanner for ForeignSessionPlanner {
    // Not `async`, see CONTRIBUTING.md.
    fn create_physical_plan<'planner, 'plan, 'session, 'planned>(
        &'planner self,
        plan: &'plan LogicalPlan,
        session: &'session dyn Session,
    ) -> BoxFuture<'planned, Result<Arc<dyn ExecutionPlan>>>
    where
        'planner: 'planned,
        'plan: 'planned,
        'session: 'planned,
        Self: 'planned,
    {
        let (state, plan) = (self.state_for(session), plan.clone());
        // One of our threads polls the other library here, for a function that a query calls.
        let is_within_query = Handle::try_current().is_ok();
        Box::pin(async move {
            if is_within_query {
                return exec_err!("{WITHIN_QUERY}");
            }
            let task = state.task_ctx();
            let runtime = query_runtime()?;
            // On threads with enough stack. The other library polls this future on its own ones.
            let planned = {
                let _entered = runtime.enter();
                SpawnedTask::spawn(async move { planned(&adapted(plan)?, &state).await })
            };
            let planned = planned.join().await.map_err(|error| DataFusionError::ExecutionJoin(Box::new(error)))??;
            Ok(Arc::new(ForeignQuery::new(planned, task)) as Arc<dyn ExecutionPlan>)
        })
    }
}

impl ForeignSessionPlanner {
    /// The state with DataFusion's settings of the other session, and the device's of this one.
    fn state_for(&self, session: &dyn Session) -> SessionState {
        let mut state = self.session.state();
        let mut options = session.config_options().clone();
        options.extensions.insert(options_of(&self.session));
        *state.config_mut().options_mut() = options;
        // Functions see these settings from here on.
        state.mark_start_execution();
        state
    }
}

/// Plans a query, or the INSERT of one.
async fn planned(plan: &LogicalPlan, state: &SessionState) -> Result<Arc<dyn ExecutionPlan>> {
    let LogicalPlan::Dml(DmlStatement { target, op: WriteOp::Insert(op), input, .. }) = plan else {
        if !matches!(plan, LogicalPlan::Explain(_)) && writes(plan)? {
            return not_impl_err!(
                "of statements that write, INSERT alone passes between datafusion and devicefusion: run it within \
                 devicefusion.on_host(ctx)"
            );
        }
        return state.create_physical_plan(plan).await;
    };
    // A table of another library says nothing about its input, and reads one partition of it.
    let rows = state.create_physical_plan(input).await?;
    let rows: Arc<dyn ExecutionPlan> = match rows.output_ordering().cloned() {
        _ if rows.output_partitioning().partition_count() == 1 => rows,
        Some(order) => Arc::new(SortPreservingMergeExec::new(order, rows)),
        None => Arc::new(CoalescePartitionsExec::new(rows)),
    };
    let rows = Arc::new(ForeignQuery::new(rows, state.task_ctx()));
    source_as_provider(target)?.insert_into(state, rows, *op).await
}
