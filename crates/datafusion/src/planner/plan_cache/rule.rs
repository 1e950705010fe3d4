// SPDX-License-Identifier: Apache-2.0
//! The analyzer's first rule: recognizes queries that ran before.

use std::sync::Arc;

use datafusion::common::Result;
use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::{Transformed, TreeNode};
use datafusion::logical_expr::LogicalPlan;
use datafusion::optimizer::AnalyzerRule;

use super::{CachedQuery, PlanCache, PlanCacheNode, Progress};
use crate::session::DeviceOptions;

/// Wraps a query whose plan is kept, or can be, in a [`PlanCacheNode`].
#[derive(Debug)]
pub(crate) struct PlanCacheRule {
    cache: Arc<PlanCache>,
}

impl PlanCacheRule {
    pub fn new(cache: Arc<PlanCache>) -> Self {
        PlanCacheRule { cache }
    }
}

impl AnalyzerRule for PlanCacheRule {
    fn analyze(&self, plan: LogicalPlan, config: &ConfigOptions) -> Result<LogicalPlan> {
        if let Some(PlanCacheNode { original, progress: Progress::Uncached }) = PlanCacheNode::of(&plan) {
            return Ok(original.as_ref().clone());
        }
        let plan = without_nodes(plan)?;
        if DeviceOptions::of(config).cached_plans == 0 {
            self.cache.clear();
            return Ok(plan);
        }
        if !self.cache.is_installed() {
            return Ok(plan);
        }
        let Some(query) = CachedQuery::of(&plan, config)? else { return Ok(plan) };
        let original = Arc::new(plan);
        let progress = match self.cache.find(&query) {
            Some(plans) => Progress::Known(plans),
            None => Progress::Unknown { query: Arc::new(query), optimized: original.as_ref().clone() },
        };
        Ok(PlanCacheNode { original, progress }.into_plan())
    }

    fn name(&self) -> &str {
        "plan_cache"
    }
}

/// The plan with queries in the place of the nodes that an earlier analysis has put there.
fn without_nodes(plan: LogicalPlan) -> Result<LogicalPlan> {
    if !plan.exists(|node| Ok(PlanCacheNode::of(node).is_some()))? {
        return Ok(plan);
    }
    let plan = plan.transform_down(|node| {
        Ok(match PlanCacheNode::of(&node) {
            Some(node) => Transformed::yes(node.original.as_ref().clone()),
            None => Transformed::no(node),
        })
    })?;
    Ok(plan.data)
}
