// SPDX-License-Identifier: Apache-2.0
//! Symmetric hash joins of bounded inputs. DataFusion itself plans them for unbounded streams only.

use std::sync::Arc;

use datafusion::common::Result;
use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::{Transformed, TreeNode};
use datafusion::execution::SessionStateBuilder;
use datafusion::physical_expr::expressions::Column;
use datafusion::physical_optimizer::PhysicalOptimizerRule;
use datafusion::physical_plan::joins::{HashJoinExec, StreamJoinPartitionMode, SymmetricHashJoinExec};
use datafusion::physical_plan::projection::{ProjectionExec, ProjectionExpr};
use datafusion::physical_plan::{ExecutionPlan, displayable};
use datafusion::prelude::SessionContext;

use crate::harness::{answer, block_on, plain, strict};

const TABLES: [&str; 2] = [
    "CREATE TABLE t AS SELECT value AS i, nullif(value % 70, 3) AS k FROM generate_series(1, 3000)",
    "CREATE TABLE u AS SELECT value AS j, nullif(value % 90, 3) AS k FROM generate_series(1, 500)",
];

/// Rule that makes each hash join symmetric.
#[derive(Debug)]
struct Symmetric;

impl PhysicalOptimizerRule for Symmetric {
    fn optimize(&self, plan: Arc<dyn ExecutionPlan>, _: &ConfigOptions) -> Result<Arc<dyn ExecutionPlan>> {
        let symmetric = plan.transform_up(|node| {
            let Some(join) = node.downcast_ref::<HashJoinExec>() else { return Ok(Transformed::no(node)) };
            let made: Arc<dyn ExecutionPlan> = Arc::new(SymmetricHashJoinExec::try_new(
                Arc::clone(join.left()),
                Arc::clone(join.right()),
                join.on().to_vec(),
                join.filter().cloned(),
                join.join_type(),
                join.null_equality(),
                None,
                None,
                StreamJoinPartitionMode::SinglePartition,
            )?);
            let Some(projection) = &join.projection else { return Ok(Transformed::yes(made)) };
            let schema = made.schema();
            let columns = projection.iter().map(|column| ProjectionExpr {
                expr: Arc::new(Column::new(schema.field(*column).name(), *column)),
                alias: schema.field(*column).name().clone(),
            });
            Ok(Transformed::yes(Arc::new(ProjectionExec::try_new(columns.collect::<Vec<_>>(), Arc::clone(&made))?)))
        });
        Ok(symmetric?.data)
    }

    fn name(&self) -> &str {
        "Symmetric"
    }

    fn schema_check(&self) -> bool {
        true
    }
}

/// The session with a rule that adds symmetric joins before placement.
fn symmetric(ctx: &SessionContext) -> SessionContext {
    let state = ctx.state();
    let mut rules = state.physical_optimizers().to_vec();
    let position = rules.iter().position(|rule| rule.name().starts_with("Device")).unwrap_or(rules.len());
    rules.insert(position, Arc::new(Symmetric));
    SessionContext::new_with_state(SessionStateBuilder::new_from_existing(state).with_physical_optimizer_rules(rules).build())
}

#[test]
fn symmetric_joins_of_bounded_inputs_become_hash_joins() {
    block_on(async {
        let (host, device) = (symmetric(&plain(1)), symmetric(&strict(1)));
        for ctx in [&host, &device] {
            for table in TABLES {
                ctx.sql(table).await.unwrap().collect().await.unwrap();
            }
        }
        for join in [
            "JOIN",
            "LEFT JOIN",
            "RIGHT JOIN",
            "FULL JOIN",
            "LEFT SEMI JOIN",
            "LEFT ANTI JOIN",
            "RIGHT SEMI JOIN",
            "RIGHT ANTI JOIN",
        ] {
            for also in ["", " AND i + j > 700"] {
                let columns = match join {
                    _ if join.starts_with("LEFT ") && join != "LEFT JOIN" => "i, t.k",
                    _ if join.starts_with("RIGHT ") && join != "RIGHT JOIN" => "j, u.k",
                    _ => "i, t.k, j, u.k",
                };
                let sql = format!("SELECT {columns} FROM t {join} u ON t.k = u.k{also}");
                let plan = host.sql(&sql).await.unwrap().create_physical_plan().await.unwrap();
                let text = displayable(plan.as_ref()).indent(false).to_string();
                assert!(text.contains("SymmetricHashJoinExec"), "{sql}\n{text}");
                let (expected, actual) = (answer(&host, &sql).await.unwrap(), answer(&device, &sql).await.unwrap());
                let (mut expected, mut lines) = (expected.lines(), actual.lines());
                expected.sort();
                lines.sort();
                assert_eq!(lines, expected, "{sql}");
                assert!(expected.len() > 1 && actual.launches > 0, "{sql}: {} rows", expected.len());
            }
        }
    });
}
