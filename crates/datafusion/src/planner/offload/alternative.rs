// SPDX-License-Identifier: Apache-2.0
//! The host operators that stay, or run instead, after the device's failure to take its part.

use std::sync::Arc;

use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode};
use datafusion::common::{DataFusionError, Result};
use datafusion::physical_plan::ExecutionPlan;
use kernels::ops::Options;

use super::Offloader;
use crate::exec::{Downloads, HostAlternative, HostExec, computes, reads_device};
use crate::session::DeviceOptions;

impl Offloader<'_> {
    /// The alternative of an offloaded subplan that replaces `original`. `None` if
    /// - the host must not replace the device,
    /// - a recursive query changes the operators in each iteration,
    /// - there is nothing to compute.
    pub(super) fn alternative(&self, original: &Arc<dyn ExecutionPlan>) -> Result<Option<HostAlternative>> {
        if !self.falls_back() || self.is_recursive.get() {
            return Ok(None);
        }
        // Rows of device memory reach the host by a download alone.
        if original.children().is_empty() {
            return Ok(None);
        }
        let has_scans = original.exists(|node| Ok(reads_device(node)))?;
        Ok(Some(HostAlternative::new(Arc::clone(original), has_scans.then_some(with_downloads as Downloads))))
    }

    /// An operator kept on the host, because its offloading fails.
    pub(super) fn kept(&self, plan: &Arc<dyn ExecutionPlan>, error: DataFusionError) -> Result<Arc<dyn ExecutionPlan>> {
        if !self.falls_back() {
            return Err(error);
        }
        let children = plan.children().into_iter().map(|child| self.subtree(child)).collect::<Result<Vec<_>>>()?;
        let kept = self.host(plan, children)?;
        Ok(Arc::new(HostExec::new(kept, reason(&error))))
    }

    fn falls_back(&self) -> bool {
        self.options.enabled && !self.options.fallback.is_strict()
    }
}

/// Host operators over downloads of device memory.
fn with_downloads(
    plan: &Arc<dyn ExecutionPlan>,
    options: &DeviceOptions,
    config: &ConfigOptions,
    kernels: Options,
) -> Result<Arc<dyn ExecutionPlan>> {
    let mut options = options.clone();
    options.enabled = false;
    Offloader::new(&options, config, kernels).offload(Arc::clone(plan))
}

/// Host operators, each with the reason why an offloaded subplan could not replace them.
pub(super) fn with_reason(plan: Arc<dyn ExecutionPlan>, error: &DataFusionError) -> Result<Arc<dyn ExecutionPlan>> {
    let reason = reason(error);
    let with_reason = |node| {
        Ok(match computes(&node) {
            true => Transformed::yes(Arc::new(HostExec::new(node, reason.clone())) as Arc<dyn ExecutionPlan>),
            false => Transformed::no(node),
        })
    };
    plan.transform_up(with_reason).data()
}

fn reason(error: &DataFusionError) -> String {
    format!("the device cannot run it: {}", error.message())
}

#[cfg(test)]
mod tests {
    use arrow::util::pretty::pretty_format_batches;
    use datafusion::prelude::SessionContext;

    use crate::DeviceOptions;
    use crate::graph::failing;
    use crate::planner::testing::session;

    const SETUP: [&str; 2] = [
        "CREATE TABLE t AS SELECT value AS i, value % 7 AS k, CAST(value AS DOUBLE) AS f, \
         CASE value % 3 WHEN 0 THEN 'apple' WHEN 1 THEN 'pear' END AS s FROM generate_series(1, 300)",
        "CREATE TABLE device.r AS SELECT i, k, f, s FROM t",
    ];

    const QUERIES: [&str; 12] = [
        "SELECT i + 1, upper(s) FROM t WHERE k = 3 ORDER BY i LIMIT 5 OFFSET 2",
        "SELECT count(*), sum(i), max(s), avg(f) FROM t",
        "SELECT s, k, min(i) FROM t GROUP BY s, k ORDER BY s, k",
        "SELECT s, sum(i) FROM device.r WHERE k < 5 GROUP BY s ORDER BY s",
        "SELECT t.i, r.s FROM t JOIN device.r AS r ON t.i = r.i WHERE r.k < 5 ORDER BY t.i",
        "SELECT x.k, count(y.i) FROM t AS x LEFT JOIN t AS y ON x.k = y.k AND x.i < y.i GROUP BY x.k ORDER BY x.k",
        "WITH c AS (SELECT k, sum(i) AS n FROM t GROUP BY k) SELECT k, n FROM c WHERE n >= (SELECT avg(n) FROM c) ORDER BY k",
        "SELECT i, rank() OVER (PARTITION BY k ORDER BY s) FROM t ORDER BY i",
        "SELECT k, count(DISTINCT s) FROM t GROUP BY k UNION ALL SELECT i, k FROM device.r WHERE i < 9 ORDER BY 1, 2",
        "SELECT i, (SELECT max(f) FROM device.r) - f FROM t WHERE i > (SELECT count(*) FROM t WHERE k = 2) ORDER BY i",
        "SELECT array_agg(i ORDER BY f DESC), first_value(s ORDER BY i) FROM t WHERE k = 1",
        "SELECT s, k, grouping(s), count(*) FROM t GROUP BY ROLLUP (s, k) ORDER BY s, k, 3",
    ];

    async fn answer(ctx: &SessionContext, sql: &str) -> String {
        let rows = ctx.sql(sql).await.unwrap().collect().await.unwrap_or_else(|error| panic!("{sql}: {error}"));
        pretty_format_batches(&rows).unwrap().to_string()
    }

    #[tokio::test]
    async fn each_failing_step_of_planning_leaves_its_part_to_the_host() {
        for partitions in [1, 3] {
            let ctx = session(partitions, &SETUP).await;
            for sql in device::testing::sample(QUERIES.to_vec()).unwrap() {
                let expected = answer(&ctx, sql).await;
                let mut failures = 0;
                for n in 0.. {
                    failing::fail_at(n);
                    let plan = answer(&ctx, &format!("EXPLAIN {sql}")).await;
                    let failed = failing::heal();
                    failing::fail_at(n);
                    assert_eq!(answer(&ctx, sql).await, expected, "{sql}: step {n} failed\n{plan}");
                    failing::heal();
                    if !failed {
                        break;
                    }
                    failures += 1;
                    let reason = "host=[the device cannot run it: a fault that a test injected";
                    assert!(plan.contains(reason), "{sql}: step {n} has failed and EXPLAIN says nothing\n{plan}");
                }
                assert!(failures > 2, "{sql}: {failures}");
            }
        }
    }

    #[tokio::test]
    async fn a_strict_session_reports_a_failing_step() {
        let ctx = session(1, &SETUP).await;
        DeviceOptions::set_by_program(ctx.state_ref().write().config_mut().options_mut(), "device.fallback", "error").unwrap();
        failing::fail_at(1);
        let error = ctx.sql(QUERIES[1]).await.unwrap().collect().await.unwrap_err().to_string();
        assert!(failing::heal() && error.contains("a fault that a test injected"), "{error}");
    }
}
