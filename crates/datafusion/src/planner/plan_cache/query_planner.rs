// SPDX-License-Identifier: Apache-2.0
//! The session's query planner: lends kept plans, and keeps new ones.

use std::sync::Arc;

use datafusion::catalog::Session;
use datafusion::common::Result;
use datafusion::common::display::PlanType;
use datafusion::execution::context::QueryPlanner;
use datafusion::execution::session_state::SessionState;
use datafusion::logical_expr::{Explain, LogicalPlan};
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_planner::{DefaultPhysicalPlanner, PhysicalPlanner};
use futures::future::BoxFuture;

use super::{PlanCache, PlanCacheNode, Progress};
use crate::session::{DeviceOptions, DeviceRuntime};
use crate::statement::state_for_explain;

/// Plans queries with another query planner, but for those whose plans are kept.
#[derive(Debug)]
pub(crate) struct PlanCacheQueryPlanner {
    cache: Arc<PlanCache>,
    runtime: Arc<DeviceRuntime>,
    /// DataFusion's own if `None`.
    inner: Option<Arc<dyn QueryPlanner + Send + Sync>>,
}

impl PlanCacheQueryPlanner {
    pub fn new(cache: Arc<PlanCache>, runtime: Arc<DeviceRuntime>, inner: Option<Arc<dyn QueryPlanner + Send + Sync>>) -> Self {
        PlanCacheQueryPlanner { cache, runtime, inner }
    }

    async fn planned(&self, plan: &LogicalPlan, session: &dyn Session) -> Result<Arc<dyn ExecutionPlan>> {
        match &self.inner {
            Some(inner) => inner.create_physical_plan(plan, session).await,
            None => DefaultPhysicalPlanner::default().create_physical_plan(plan, session).await,
        }
    }
}

impl QueryPlanner for PlanCacheQueryPlanner {
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
        self.kept_or_planned(plan, session)
    }
}

impl PlanCacheQueryPlanner {
    fn kept_or_planned<'a>(
        &'a self,
        plan: &'a LogicalPlan,
        session: &'a dyn Session,
    ) -> BoxFuture<'a, Result<Arc<dyn ExecutionPlan>>> {
        Box::pin(self.keep_or_plan(plan, session))
    }

    async fn keep_or_plan(&self, plan: &LogicalPlan, session: &dyn Session) -> Result<Arc<dyn ExecutionPlan>> {
        self.cache.note_query_planner();
        if let LogicalPlan::Explain(explain) = plan {
            let closed = session.as_any().downcast_ref::<SessionState>().map(state_for_explain);
            let session = closed.as_ref().map_or(session, |closed| closed as &dyn Session);
            return match PlanCacheNode::of(&explain.plan) {
                Some(node) => self.planned(&explained_anew(explain, node, session)?, session).await,
                None => self.planned(plan, session).await,
            };
        }
        let Some(node) = PlanCacheNode::of(plan) else { return self.planned(plan, session).await };
        let options = DeviceOptions::of(session.config_options());
        match &node.progress {
            Progress::Known(plans) => {
                let is_own = plans.are_of(session.session_id());
                if let Some(lent) = if is_own { plans.lend() } else { None } {
                    self.runtime.note_settings(&options);
                    return Ok(lent);
                }
                let planned = self.planned(&session.optimize(&node.uncached())?, session).await?;
                Ok(if is_own { plans.keep(planned) } else { planned })
            }
            Progress::Unknown { query, optimized } => {
                let planned = self.planned(optimized, session).await?;
                self.cache.keep(query, session.session_id(), optimized.schema(), planned, options.cached_plans)
            }
            Progress::Uncached => self.planned(&node.original, session).await,
        }
    }
}

/// EXPLAIN of a query as it was before its analysis, so that it shows the steps of planning.
fn explained_anew(explain: &Explain, node: &PlanCacheNode, session: &dyn Session) -> Result<LogicalPlan> {
    let is_first = |plan: &PlanType| matches!(plan, PlanType::InitialLogicalPlan);
    let stringified_plans = explain.stringified_plans.iter().filter(|plan| is_first(&plan.plan_type)).cloned().collect();
    let explain = LogicalPlan::Explain(Explain { plan: Arc::new(node.uncached()), stringified_plans, ..explain.clone() });
    match session.as_any().downcast_ref::<SessionState>() {
        // The names of subqueries are numbered from 1 again.
        Some(state) => {
            let mut state = state.clone();
            state.mark_start_execution();
            state.optimize(&explain)
        }
        None => session.optimize(&explain),
    }
}
