// SPDX-License-Identifier: Apache-2.0
//! Tests: the work of planning grows as the plan, not as the pairs of its subplans.

use datafusion::prelude::SessionContext;

use crate::exec::DeviceToHostExec;
use crate::planner::same::comparisons;
use crate::planner::testing::session;

/// `UNION ALL` as a balanced tree, which needs no deep stack.
fn union(inputs: &[String]) -> String {
    match inputs.split_at(inputs.len() / 2) {
        ([], last) => last.concat(),
        (left, right) => format!("({}) UNION ALL ({})", union(left), union(right)),
    }
}

/// Comparisons of subplans while a query is planned.
async fn comparisons_of(ctx: &SessionContext, sql: &str) -> usize {
    comparisons::take();
    let plan = ctx.sql(sql).await.unwrap().create_physical_plan().await.unwrap();
    assert!(plan.is::<DeviceToHostExec>(), "{sql}: not wholly on the device");
    comparisons::take()
}

#[tokio::test]
async fn comparisons_grow_as_the_inputs_of_a_union() {
    let ctx = session(1, &["CREATE TABLE t AS SELECT value AS i, value % 7 AS k FROM generate_series(1, 100)"]).await;
    let inputs: [fn(usize) -> String; 4] = [
        // The same rows, which are shared.
        |_| "SELECT k, max(i) AS m FROM t GROUP BY k".to_string(),
        // Rows that are merged, and then shared.
        |number| format!("SELECT k, max(i + {number}) AS m FROM t GROUP BY k"),
        // Rows of different filters.
        |number| format!("SELECT k, max(i) AS m FROM t WHERE i > {number} GROUP BY k"),
        // Aggregates of the same rows, not merged because each of them may fail.
        |number| format!("SELECT k, max(i / (k + {number})) AS m FROM t GROUP BY k"),
    ];
    for input in inputs {
        let query = |count: usize| {
            let inputs: Vec<String> = (1..=count).map(input).collect();
            format!("SELECT count(*), max(m) FROM ({})", union(&inputs))
        };
        let (few, many) = (comparisons_of(&ctx, &query(24)).await, comparisons_of(&ctx, &query(96)).await);
        // Four times as many inputs have sixteen times as many pairs.
        assert!(few > 0 && many < few * 8, "{}: {few} comparisons, then {many}", input(1));
    }
}
