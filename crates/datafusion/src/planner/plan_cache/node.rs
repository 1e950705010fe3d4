// SPDX-License-Identifier: Apache-2.0
//! A query on its way from the plan cache's rule to its query planner.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use datafusion::common::{DFSchemaRef, Result, internal_err};
use datafusion::logical_expr::{Expr, Extension, LogicalPlan, UserDefinedLogicalNodeCore};

use super::CachedQuery;
use super::cache::CachedPlans;

/// The root of a query whose plan is kept, or can be.
#[derive(Debug, Clone)]
pub(super) struct PlanCacheNode {
    /// The query before analysis.
    pub original: Arc<LogicalPlan>,
    pub progress: Progress,
}

/// The work that is left for a query.
#[derive(Debug, Clone)]
pub(super) enum Progress {
    /// All: a plan is kept.
    Known(Arc<CachedPlans>),
    /// The query is optimized and planned, and its plan is kept.
    Unknown { query: Arc<CachedQuery>, optimized: LogicalPlan },
    /// The query is analyzed again, without the cache.
    Uncached,
}

impl PlanCacheNode {
    /// The node, if it is the root of a plan.
    pub fn of(plan: &LogicalPlan) -> Option<&PlanCacheNode> {
        match plan {
            LogicalPlan::Extension(extension) => extension.node.as_any().downcast_ref(),
            _ => None,
        }
    }

    pub fn into_plan(self) -> LogicalPlan {
        LogicalPlan::Extension(Extension { node: Arc::new(self) })
    }

    /// The query again, which the rule leaves as it is.
    pub fn uncached(&self) -> LogicalPlan {
        PlanCacheNode { original: Arc::clone(&self.original), progress: Progress::Uncached }.into_plan()
    }

    fn optimized(&self) -> Option<&LogicalPlan> {
        match &self.progress {
            Progress::Unknown { optimized, .. } => Some(optimized),
            Progress::Known(_) | Progress::Uncached => None,
        }
    }
}

impl PartialEq for PlanCacheNode {
    fn eq(&self, other: &Self) -> bool {
        let progress = std::mem::discriminant(&self.progress) == std::mem::discriminant(&other.progress);
        progress && self.original == other.original && self.optimized() == other.optimized()
    }
}

impl Eq for PlanCacheNode {}

impl PartialOrd for PlanCacheNode {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        (self == other).then_some(std::cmp::Ordering::Equal)
    }
}

impl Hash for PlanCacheNode {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.original.hash(state);
        self.optimized().hash(state);
    }
}

impl UserDefinedLogicalNodeCore for PlanCacheNode {
    fn name(&self) -> &str {
        "PlanCache"
    }

    fn inputs(&self) -> Vec<&LogicalPlan> {
        self.optimized().into_iter().collect()
    }

    fn schema(&self) -> &DFSchemaRef {
        match &self.progress {
            Progress::Known(plans) => &plans.schema,
            Progress::Unknown { optimized, .. } => optimized.schema(),
            Progress::Uncached => self.original.schema(),
        }
    }

    fn expressions(&self) -> Vec<Expr> {
        Vec::new()
    }

    fn fmt_for_explain(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let kept = matches!(self.progress, Progress::Known(_));
        write!(f, "PlanCache: kept={kept}")
    }

    fn with_exprs_and_inputs(&self, _exprs: Vec<Expr>, inputs: Vec<LogicalPlan>) -> Result<Self> {
        let mut node = self.clone();
        match (&mut node.progress, <[_; 1]>::try_from(inputs)) {
            (Progress::Unknown { optimized, .. }, Ok([input])) => *optimized = input,
            (Progress::Known(_) | Progress::Uncached, Err(inputs)) if inputs.is_empty() => {}
            (_, inputs) => return internal_err!("PlanCache over {} inputs", inputs.map_or_else(|inputs| inputs.len(), |_| 1)),
        }
        Ok(node)
    }

    fn necessary_children_exprs(&self, output_columns: &[usize]) -> Option<Vec<Vec<usize>>> {
        Some(self.optimized().map(|_| output_columns.to_vec()).into_iter().collect())
    }
}
