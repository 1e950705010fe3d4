// SPDX-License-Identifier: Apache-2.0
//! Rows too large for device memory that a query reads several times.

use std::sync::Arc;

use datafusion::common::tree_node::{TreeNode, TreeNodeRecursion};
use datafusion::physical_plan::{ExecutionPlan, collect, displayable};
use device::UnifiedMemory;

use crate::harness::{assert_returned, block_on, metric, ordered_lines, plain};
use crate::spill::{assert_no_files_stay, lines, of_turn, planned, register, session, table};

/// Queries that read the rows of an aggregation twice or more: in joins, or by other keys.
const QUERIES: [&str; 5] = [
    "WITH w AS (SELECT many, count(*) AS n, sum(row) AS s FROM t GROUP BY many) \
     SELECT a.many, a.n, b.s FROM w a JOIN w b ON a.many = b.many WHERE b.s % 7 = 3",
    "WITH w AS (SELECT row / 2 AS h, few, text, code, max(price) AS p FROM t GROUP BY 1, 2, 3, 4) \
     SELECT h % 100 AS k, count(p), max(text) FROM w GROUP BY 1 UNION ALL SELECT few, count(code), min(text) FROM w GROUP BY 1",
    "WITH w AS (SELECT DISTINCT row / 3 AS h, few, float FROM t) \
     SELECT few AS k, count(*) FROM w GROUP BY 1 UNION ALL SELECT h % 7, max(h) FROM w WHERE float > 0 GROUP BY 1 \
     UNION ALL SELECT h % 1000, count(float) FROM w GROUP BY 1",
    "WITH w AS (SELECT many, row % 9 AS r, min(term) AS low FROM t GROUP BY 1, 2), v AS (SELECT row / 2 AS h, few, count(*) AS n FROM t GROUP BY 1, 2) \
     SELECT r AS k, max(low), count(*) FROM w GROUP BY 1 UNION ALL SELECT many % 99, min(low), count(low) FROM w GROUP BY 1 \
     UNION ALL SELECT few, 'v', sum(n) FROM v GROUP BY 1 UNION ALL SELECT h % 50, 'v', max(n) FROM v GROUP BY 1",
    ACROSS_SUBPLANS,
];

/// A scalar subquery of the host and its main query read the rows.
const ACROSS_SUBPLANS: &str = "WITH w AS (SELECT row / 2 AS h, text, count(*) AS n, sum(row) AS s FROM t GROUP BY 1, 2) \
     SELECT h, text FROM w ORDER BY abs(h - (SELECT h FROM w ORDER BY s DESC, h, text LIMIT 1)), h, text LIMIT 10";

/// Rows written by operators that share rows.
fn shared_on_disk(plan: &Arc<dyn ExecutionPlan>) -> usize {
    let mut rows = 0;
    plan.apply(|node| {
        if ["DeviceSharedExec", "DeviceReuseExec"].contains(&node.name()) {
            rows += node.metrics().and_then(|metrics| metrics.spilled_rows()).unwrap_or(0);
        }
        Ok(TreeNodeRecursion::Continue)
    })
    .unwrap();
    rows
}

#[test]
fn shared_rows_spill() {
    block_on(async {
        let (rows, folder) = (table(), tempfile::tempdir().unwrap());
        let host = plain(1);
        register(&host, "t", &rows);
        for unified in [UnifiedMemory::Auto, UnifiedMemory::Never] {
            let (ctx, context) = session(8 << 20, unified, folder.path(), None);
            register(&ctx, "t", &rows);
            for sql in of_turn(&QUERIES, unified) {
                let plan = planned(&ctx, sql).await;
                let mut actual = ordered_lines(&collect(Arc::clone(&plan), ctx.task_ctx()).await.unwrap());
                let mut expected = lines(&host, sql).await;
                actual.sort();
                expected.sort();
                assert!(actual == expected, "unified memory {unified:?}: {sql}: {} rows", actual.len());
                assert!(metric(&plan, "launches") > 0 && shared_on_disk(&plan) > 0, "{sql}: nothing was spilled");
                drop(plan);
                assert_no_files_stay(folder.path()).await;
                assert_returned(&context, 0);
            }
        }
    });
}

#[test]
fn rows_across_subplans_are_cached() {
    block_on(async {
        let folder = tempfile::tempdir().unwrap();
        let (ctx, _) = session(8 << 20, UnifiedMemory::Auto, folder.path(), None);
        register(&ctx, "t", &table());
        let shown = displayable(planned(&ctx, ACROSS_SUBPLANS).await.as_ref()).indent(false).to_string();
        assert!(shown.contains("DeviceSharedExec: cached=#1"), "{shown}");
    });
}
