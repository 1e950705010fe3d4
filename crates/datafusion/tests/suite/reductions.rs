// SPDX-License-Identifier: Apache-2.0
//! Reductions between partial and final aggregates. DataFusion leaves them to distributed planners.

use std::sync::Arc;

use datafusion::common::Result;
use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::{Transformed, TreeNode};
use datafusion::execution::SessionStateBuilder;
use datafusion::physical_optimizer::PhysicalOptimizerRule;
use datafusion::physical_plan::aggregates::{AggregateExec, AggregateMode};
use datafusion::physical_plan::{ExecutionPlan, displayable};
use datafusion::prelude::SessionContext;

use crate::harness::{answer, block_on, plain, set, strict};

const TABLE: &str = "CREATE TABLE t AS SELECT value AS i, value % 7 AS k FROM generate_series(1, 20000)";

/// Rule that adds a reduction on top of each partial aggregate.
#[derive(Debug)]
struct Reduce;

impl PhysicalOptimizerRule for Reduce {
    fn optimize(&self, plan: Arc<dyn ExecutionPlan>, _: &ConfigOptions) -> Result<Arc<dyn ExecutionPlan>> {
        let reduced = plan.transform_up(|node| {
            let partial = node.downcast_ref::<AggregateExec>().filter(|node| node.mode() == &AggregateMode::Partial);
            let Some(partial) = partial else { return Ok(Transformed::no(node)) };
            let reduction = AggregateExec::try_new(
                AggregateMode::PartialReduce,
                partial.group_expr().as_final(),
                partial.aggr_expr().to_vec(),
                vec![None; partial.aggr_expr().len()],
                Arc::clone(&node),
                partial.schema(),
            )?;
            Ok(Transformed::yes(Arc::new(reduction)))
        });
        Ok(reduced?.data)
    }

    fn name(&self) -> &str {
        "Reduce"
    }

    fn schema_check(&self) -> bool {
        true
    }
}

/// The session with a rule that adds reductions before placement.
fn reducing(ctx: &SessionContext) -> SessionContext {
    let state = ctx.state();
    let mut rules = state.physical_optimizers().to_vec();
    let position = rules.iter().position(|rule| rule.name().starts_with("Device")).unwrap_or(rules.len());
    rules.insert(position, Arc::new(Reduce));
    SessionContext::new_with_state(SessionStateBuilder::new_from_existing(state).with_physical_optimizer_rules(rules).build())
}

async fn plan(ctx: &SessionContext, sql: &str) -> String {
    let plan = ctx.sql(sql).await.unwrap().create_physical_plan().await.unwrap();
    displayable(plan.as_ref()).indent(false).to_string()
}

#[test]
fn reductions_merge_into_their_partial_aggregates() {
    block_on(async {
        let (host, device) = (reducing(&plain(3)), reducing(&strict(3)));
        for ctx in [&host, &device] {
            ctx.sql(TABLE).await.unwrap().collect().await.unwrap();
        }
        for sql in [
            "SELECT k, sum(i), avg(i), count(*) FILTER (WHERE i > 9) FROM t GROUP BY k ORDER BY k",
            "SELECT max(i), avg(i) FROM t WHERE k > 2",
            "SELECT DISTINCT k % 3 AS m FROM t ORDER BY m",
        ] {
            assert!(plan(&host, sql).await.contains("mode=PartialReduce"), "{sql}");
            let (expected, actual) = (answer(&host, sql).await.unwrap(), answer(&device, sql).await.unwrap());
            assert_eq!(actual.lines(), expected.lines(), "{sql}");
            assert!(actual.launches > 0, "{sql}");
        }
    });
}

#[test]
fn a_reduction_on_the_host_has_the_reason_of_its_partial_aggregate() {
    block_on(async {
        let ctx = reducing(&strict(3));
        set(&ctx, "device.fallback", "host");
        ctx.sql(TABLE).await.unwrap().collect().await.unwrap();
        let text = plan(&ctx, "SELECT k, approx_median(i) FROM t GROUP BY k").await;
        let reasons = text.lines().filter(|line| line.contains("AggregateExec"));
        let told: Vec<bool> = reasons.map(|line| line.contains("host=[the digest of approx_median depends on")).collect();
        assert_eq!(told, [true; 3], "{text}");
    });
}
