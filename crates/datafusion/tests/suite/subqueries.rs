// SPDX-License-Identifier: Apache-2.0
//! Scalar subqueries in plans that run several times. Answers are in
//! `sql-tests/scalar_subqueries.slt`.

use std::fs::write;
use std::sync::Arc;

use datafusion::physical_plan::execution_plan::reset_plan_states;

use crate::harness::{answer_of, block_on, plain, strict, text};

#[test]
fn scans_receive_the_value_of_each_run() {
    block_on(async {
        let folder = tempfile::tempdir().unwrap();
        let path = |file: &str| folder.path().join(file).display().to_string();
        let (rows, bound) = (path("rows.parquet"), path("bound.csv"));
        let copy = format!(
            "COPY (SELECT value AS i FROM generate_series(1, 20000)) TO '{rows}' STORED AS PARQUET \
             OPTIONS ('format.max_row_group_size' '1000')"
        );
        plain(1).sql(&copy).await.unwrap().collect().await.unwrap();
        write(&bound, "v\n15500\n").unwrap();
        let ctx = strict(1);
        for table in [
            format!("CREATE EXTERNAL TABLE rows STORED AS PARQUET LOCATION '{rows}'"),
            format!(
                "CREATE EXTERNAL TABLE bound (v BIGINT) STORED AS CSV LOCATION '{bound}' OPTIONS ('format.has_header' 'true')"
            ),
        ] {
            ctx.sql(&table).await.unwrap().collect().await.unwrap();
        }
        let frame = ctx.sql("SELECT count(*) FROM rows WHERE i > (SELECT max(v) FROM bound)").await.unwrap();
        let task = Arc::new(frame.task_ctx());
        let mut plan = frame.create_physical_plan().await.unwrap();
        for (value, greater) in [("15500", "4500"), ("15500", "4500"), ("02500", "17500"), ("19999", "1")] {
            // The value keeps its length, so that the scan finds the file that it was planned for.
            write(&bound, format!("v\n{value}\n")).unwrap();
            plan = reset_plan_states(plan).unwrap();
            let answer = answer_of(Arc::clone(&plan), Arc::clone(&task)).await.unwrap();
            assert!(answer.launches > 0);
            let lines = answer.lines();
            assert_eq!(lines.iter().map(|line| line.trim_matches(['|', ' '])).collect::<Vec<_>>(), [greater], "above {value}");
        }
        // The value of the previous run would prune row groups.
        write(&bound, "v\n00000\n").unwrap();
        let error = answer_of(plan, task).await.unwrap_err();
        assert!(text(&error).contains("reset the plan's state between its runs"), "{error}");
    });
}
