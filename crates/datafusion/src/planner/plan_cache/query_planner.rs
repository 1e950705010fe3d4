// SPDX-License-Identifier: Apache-2.0
//! The session's query planner: lends kept plans, and keeps new ones.

use std::sync::Arc;

use datafusion::catalog::Session;
use datafusion::common::Result;
use datafusion::common::display::{PlanType, StringifiedPlan};
use datafusion::execution::context::QueryPlanner;
use datafusion::execution::session_state::SessionState;
use datafusion::logical_expr::{DdlStatement, Explain, LogicalPlan};
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::explain::ExplainExec;
use datafusion::physical_planner::{DefaultPhysicalPlanner, PhysicalPlanner};
use futures::future::BoxFuture;

use super::{PlanCache, PlanCacheNode, Progress};
use crate::session::{DeviceOptions, DeviceRuntime, ExplainedPlan, state_for_explain};

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
            if let LogicalPlan::Ddl(DdlStatement::CreateMemoryTable(create)) = explain.plan.as_ref() {
                let query = Explain { plan: Arc::clone(&create.input), ..explain.clone() };
                return Box::pin(self.keep_or_plan(&LogicalPlan::Explain(query), session)).await;
            }
            let explained = Arc::new(ExplainedPlan::new(explain.verbose));
            let state = session.as_any().downcast_ref::<SessionState>();
            let closed = state.map(|state| state_for_explain(state, Arc::clone(&explained)));
            let session = closed.as_ref().map_or(session, |closed| closed as &dyn Session);
            let planned = match PlanCacheNode::of(&explain.plan) {
                Some(node) => self.planned(&explained_anew(explain, node, session)?, session).await?,
                None => self.planned(plan, session).await?,
            };
            return Ok(with_kernels(planned, &explained));
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

/// The kernels' sources behind the last plan that EXPLAIN shows.
fn with_kernels(planned: Arc<dyn ExecutionPlan>, explained: &ExplainedPlan) -> Arc<dyn ExecutionPlan> {
    let kernels = explained.kernels();
    let Some(explain) = planned.downcast_ref::<ExplainExec>().filter(|_| !kernels.is_empty()) else { return planned };
    let texts = kernels.iter().map(|(name, source)| format!("\n-- kernel {name}\n{source}\n-- end of {name}"));
    let texts: String = texts.collect();
    let plans = explain.stringified_plans().iter().map(|plan| match plan.plan_type {
        PlanType::FinalPhysicalPlan => {
            StringifiedPlan::new(PlanType::FinalPhysicalPlan, format!("{}{texts}", plan.plan.trim_end()))
        }
        _ => plan.clone(),
    });
    Arc::new(ExplainExec::new(explain.schema(), plans.collect(), explain.verbose()))
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
