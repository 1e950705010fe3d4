// SPDX-License-Identifier: Apache-2.0
//! The kept plans of a session.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use datafusion::common::{DFSchemaRef, Result};
use datafusion::physical_plan::ExecutionPlan;
use parking_lot::Mutex;

use super::CachedQuery;
use crate::exec::{DeviceToHostExec, scanned_snapshots};
use crate::table::SnapshotHolder;

/// Plans of one query that may wait for its next runs. More come from queries at the same time.
const MOST_IDLE: usize = 4;

/// The kept plans of a session, by query. The least recently used one goes first.
#[derive(Debug, Default)]
pub(crate) struct PlanCache {
    entries: Mutex<HashMap<u64, Arc<CachedPlans>>>,
    uses: AtomicU64,
    /// Whether the session plans with the cache's query planner. The rule does nothing before.
    is_installed: AtomicBool,
}

impl PlanCache {
    pub(super) fn note_query_planner(&self) {
        self.is_installed.store(true, Ordering::Relaxed);
    }

    pub(super) fn is_installed(&self) -> bool {
        self.is_installed.load(Ordering::Relaxed)
    }

    /// Drops all plans that do not run.
    pub(super) fn clear(&self) {
        let dropped = std::mem::take(&mut *self.entries.lock());
        drop(dropped);
    }

    /// The plans of a query.
    pub(super) fn find(&self, query: &CachedQuery) -> Option<Arc<CachedPlans>> {
        let plans = self.entries.lock().get(&query.hash()).cloned()?;
        plans.query.is(query).then(|| {
            plans.last_use.store(self.uses.fetch_add(1, Ordering::Relaxed), Ordering::Relaxed);
            plans
        })
    }

    /// Keeps the first plan of a query, and at most `most` queries. Returns the plan for this run.
    pub(super) fn keep(
        &self,
        query: &CachedQuery,
        session: &str,
        schema: &DFSchemaRef,
        plan: Arc<dyn ExecutionPlan>,
        most: usize,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        if !is_of(&plan, query) {
            return Ok(plan);
        }
        let plans = Arc::new(CachedPlans {
            query: query.without_tables()?,
            session: session.to_string(),
            schema: Arc::clone(schema),
            last_use: AtomicU64::new(self.uses.fetch_add(1, Ordering::Relaxed)),
            idle: Mutex::new(Some(Vec::new())),
        });
        for table in query.tables().iter().filter_map(|version| version.table.upgrade()) {
            let holder: Weak<dyn SnapshotHolder> = Arc::downgrade(&plans) as _;
            table.add_holder(holder);
        }
        let lent = plans.keep(plan);
        let mut entries = self.entries.lock();
        let replaced = entries.insert(query.hash(), plans);
        let mut dropped = Vec::from_iter(replaced);
        while entries.len() > most {
            let oldest = entries.iter().min_by_key(|(_, plans)| plans.last_use.load(Ordering::Relaxed));
            let Some(hash) = oldest.map(|(hash, _)| *hash) else { break };
            dropped.extend(entries.remove(&hash));
        }
        // Plans own snapshots, whose release takes time.
        drop(entries);
        drop(dropped);
        Ok(lent)
    }
}

/// Whether a plan can run again for a query: it runs on the device alone, over the query's
/// snapshots.
fn is_of(plan: &Arc<dyn ExecutionPlan>, query: &CachedQuery) -> bool {
    // An INSERT may have come between the analysis of the query and its planning.
    let is_scanned = |snapshot: &Arc<_>| {
        let scanned = Arc::as_ptr(snapshot);
        query.tables().iter().any(|table| std::ptr::eq(table.snapshot.as_ptr(), scanned))
    };
    let top = plan.downcast_ref::<DeviceToHostExec>().filter(|top| top.is_repeatable());
    top.is_some_and(|top| scanned_snapshots(top.input()).into_iter().all(is_scanned))
}

/// The plans of one query. Each serves one run at a time.
#[derive(Debug)]
pub(super) struct CachedPlans {
    query: CachedQuery,
    /// The session that planned the query. Another one may have other rules.
    session: String,
    /// The schema of the optimized query.
    pub schema: DFSchemaRef,
    last_use: AtomicU64,
    /// `None` once a table has another snapshot.
    idle: Mutex<Option<Vec<Arc<dyn ExecutionPlan>>>>,
}

impl CachedPlans {
    /// Whether these are plans of a session.
    pub fn are_of(&self, session: &str) -> bool {
        self.session == session
    }

    /// An idle plan, for one run; `None` if there is none.
    pub fn lend(self: &Arc<Self>) -> Option<Arc<dyn ExecutionPlan>> {
        let plan = self.idle.lock().as_mut()?.pop()?;
        Some(self.lent(plan))
    }

    /// Keeps a further plan. Returns it for this run.
    pub fn keep(self: &Arc<Self>, plan: Arc<dyn ExecutionPlan>) -> Arc<dyn ExecutionPlan> {
        // A change of a table after this is noticed, since the plans are a holder of its snapshot.
        if self.query.tables().iter().all(|table| table.is_current()) && is_of(&plan, &self.query) {
            self.lent(plan)
        } else {
            plan
        }
    }

    fn lent(self: &Arc<Self>, plan: Arc<dyn ExecutionPlan>) -> Arc<dyn ExecutionPlan> {
        match plan.downcast_ref::<DeviceToHostExec>() {
            Some(top) => {
                let lease = LentPlan { plans: Arc::downgrade(self), plan: Arc::clone(&plan) };
                Arc::new(top.lent(Arc::new(lease)))
            }
            None => plan,
        }
    }
}

impl SnapshotHolder for CachedPlans {
    fn release_snapshot(&self) {
        let idle = self.idle.lock().take();
        drop(idle);
    }
}

/// A plan that runs. It is idle again when this is dropped.
struct LentPlan {
    plans: Weak<CachedPlans>,
    plan: Arc<dyn ExecutionPlan>,
}

impl Drop for LentPlan {
    fn drop(&mut self) {
        let Some(plans) = self.plans.upgrade() else { return };
        if let Some(top) = self.plan.downcast_ref::<DeviceToHostExec>() {
            top.forget_run();
        }
        if let Some(idle) = plans.idle.lock().as_mut()
            && idle.len() < MOST_IDLE
        {
            idle.push(Arc::clone(&self.plan));
        }
    }
}
