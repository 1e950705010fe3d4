// SPDX-License-Identifier: Apache-2.0
//! Upper bounds of the rows of host operators.

use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::Arc;

use datafusion::common::JoinType;
use datafusion::common::stats::Precision;
use datafusion::datasource::file_format::file_compression_type::FileCompressionType;
use datafusion::datasource::listing::PartitionedFile;
use datafusion::datasource::physical_plan::{CsvSource, FileScanConfig, JsonSource, ParquetSource};
use datafusion::datasource::source::DataSourceExec;
use datafusion::physical_plan::ExecutionPlanProperties;
use datafusion::physical_plan::aggregates::AggregateExec;
use datafusion::physical_plan::execution_plan::CardinalityEffect;
use datafusion::physical_plan::statistics::{StatisticsArgs, StatisticsContext};
use datafusion::physical_plan::union::{InterleaveExec, UnionExec};

use crate::exec::{HostExec, is_limit};
use crate::planner::joins::join_type;
use crate::planner::rewrite::Plan;

/// Upper bounds of rows, computed once for each subplan.
///
/// An operator's statistics need those of all operators below it. Without this the planning of a
/// deep plan would compute the lowest ones for each operator above.
#[derive(Default)]
pub(crate) struct RowBounds {
    statistics: StatisticsContext,
    /// Bounds by the address of a subplan, which lives as long.
    known: RefCell<HashMap<*const (), (Plan, Option<usize>)>>,
}

impl RowBounds {
    /// The most rows that an operator can give, from the exact row counts at or below it, and from
    /// the sizes of files. `None` if they set no bound.
    ///
    /// DataFusion's estimate behind a filter is no bound, but the exact count of the filter's input
    /// is.
    pub fn most_rows(&self, plan: &Plan) -> Option<usize> {
        let address = Arc::as_ptr(plan).cast::<()>();
        if let Some((_, rows)) = self.known.borrow().get(&address) {
            return *rows;
        }
        let rows = self.bound(plan);
        self.known.borrow_mut().insert(address, (Arc::clone(plan), rows));
        rows
    }

    fn bound(&self, plan: &Plan) -> Option<usize> {
        if let Ok(known) = self.statistics.compute(plan.as_ref(), &StatisticsArgs::new())
            && let Precision::Exact(rows) = known.num_rows
        {
            return Some(rows);
        }
        if let Some(rows) = rows_of_files(plan) {
            return Some(rows);
        }
        let plan = plan.downcast_ref::<HostExec>().map_or(plan, HostExec::inner);
        let children = plan.children();
        if let (Some(join_type), [left, right]) = (join_type(plan), children.as_slice()) {
            return match join_type {
                JoinType::LeftSemi | JoinType::LeftAnti | JoinType::LeftMark => self.most_rows(left),
                JoinType::RightSemi | JoinType::RightAnti | JoinType::RightMark => self.most_rows(right),
                // Of each side, one row more stands for rows of the other side without a match.
                JoinType::Inner | JoinType::Left | JoinType::Right | JoinType::Full => {
                    let (left, right) = (self.most_rows(left)?, self.most_rows(right)?);
                    Some(left.saturating_add(1).saturating_mul(right.saturating_add(1)))
                }
            };
        }
        if let Some(aggregate) = plan.downcast_ref::<AggregateExec>() {
            // Each set has its groups. Without keys a partition has a group even if it has no rows.
            let groups = self.most_rows(aggregate.input())?.saturating_add(plan.output_partitioning().partition_count());
            return Some(groups.saturating_mul(aggregate.group_expr().groups().len().max(1)));
        }
        if plan.is::<UnionExec>() || plan.is::<InterleaveExec>() {
            return children.into_iter().try_fold(0_usize, |rows, child| Some(rows.saturating_add(self.most_rows(child)?)));
        }
        match (children.as_slice(), plan.cardinality_effect()) {
            ([child], CardinalityEffect::Equal | CardinalityEffect::LowerEqual) => self.most_rows(child),
            ([child], _) if is_limit(plan) => self.most_rows(child),
            _ => None,
        }
    }
}

/// The most rows of a scan of files; `None` if nothing bounds them.
fn rows_of_files(plan: &Plan) -> Option<usize> {
    let scan = plan.downcast_ref::<DataSourceExec>()?.data_source().downcast_ref::<FileScanConfig>()?;
    let mut files = scan.file_groups.iter().flat_map(|group| group.files());
    files.try_fold(0_usize, |rows, file| rows.checked_add(rows_of_file(scan, file)?))
}

fn rows_of_file(scan: &FileScanConfig, file: &PartitionedFile) -> Option<usize> {
    let source = scan.file_source();
    if source.is::<ParquetSource>() {
        // The footer's count, called inexact by DataFusion where a filter drops rows.
        return file.statistics.as_ref()?.num_rows.get_value().copied();
    }
    // Bytes of the shortest row.
    let shortest = match source.downcast_ref::<CsvSource>() {
        // A delimiter or a line's end behind each column.
        Some(csv) if !csv.truncate_rows() => scan.file_schema().fields().len().max(1),
        Some(_) => 1,
        None if source.is::<JsonSource>() => "{}".len(),
        None => return None,
    };
    let bytes = file.range.as_ref().map_or(file.object_meta.size, |range| (range.end - range.start).max(0) as u64);
    let is_plain = scan.file_compression_type == FileCompressionType::UNCOMPRESSED;
    is_plain.then(|| bytes as usize / shortest + 1)
}

#[cfg(test)]
mod tests {
    use datafusion::prelude::{SessionConfig, SessionContext};

    use super::*;

    /// The bound of a query over `few` of 20 rows, `pair` of 2 rows, and `unknown`, whose rows
    /// DataFusion does not count.
    async fn most_rows_of(sql: &str) -> Option<usize> {
        let ctx = SessionContext::new_with_config(SessionConfig::new().with_target_partitions(3));
        for sql in [
            "CREATE TABLE few AS SELECT value AS i, value % 3 AS k FROM generate_series(1, 20)",
            "CREATE TABLE pair AS VALUES (1), (2)",
            "CREATE VIEW unknown AS SELECT value AS i FROM generate_series(1, 20) WHERE value > 0",
        ] {
            ctx.sql(sql).await.unwrap().collect().await.unwrap();
        }
        RowBounds::default().most_rows(&ctx.sql(sql).await.unwrap().create_physical_plan().await.unwrap())
    }

    #[tokio::test]
    async fn operators_that_drop_rows_keep_the_bound() {
        for sql in [
            "SELECT i FROM few",
            "SELECT i + 1 FROM few WHERE i > 3",
            "SELECT i FROM few WHERE i > 3 ORDER BY i",
            "SELECT i FROM few WHERE i > 3 LIMIT 50",
            "SELECT i, sum(i) OVER (ORDER BY k) FROM few WHERE i > 3",
            "SELECT i FROM few WHERE i > 3 AND i IN (SELECT column1 FROM pair)",
            "SELECT i FROM few WHERE i > 3 AND i NOT IN (SELECT i FROM unknown)",
        ] {
            assert_eq!(most_rows_of(sql).await, Some(20), "{sql}");
        }
    }

    #[tokio::test]
    async fn operators_that_add_rows_raise_the_bound() {
        for (sql, least) in [
            ("SELECT i, count(*) FROM few WHERE i > 0 GROUP BY i", 20),
            ("SELECT i, k, count(*) FROM few WHERE i > 0 GROUP BY CUBE (i, k)", 20 + 20 + 3 + 1),
            ("SELECT count(*) FROM few WHERE i > 30 GROUP BY GROUPING SETS ((i), ())", 1),
            ("SELECT i FROM few WHERE i > 0 UNION ALL SELECT column1 FROM pair WHERE column1 > 0", 22),
            ("SELECT a.i FROM few a JOIN pair ON a.i > column1 WHERE a.i > 1", 37),
            ("SELECT a.i FROM few a FULL JOIN pair ON a.i = column1 + 90 WHERE a.i > 1 OR column1 > 0", 22),
        ] {
            let most = most_rows_of(sql).await;
            assert!(most.is_some_and(|most| (least..1000).contains(&most)), "{sql}: {most:?}");
        }
    }

    #[tokio::test]
    async fn files_bound_the_rows_of_their_scans() {
        let folder = tempfile::tempdir().unwrap();
        let file = |name: &str| folder.path().join(name).display().to_string();
        let ctx = SessionContext::new().enable_url_table();
        let most_rows = async |sql: String| {
            let plan = ctx.sql(&sql).await.unwrap().create_physical_plan().await.unwrap();
            RowBounds::default().most_rows(&plan)
        };
        for name in ["t.parquet", "t.csv", "t.json", "t.csv.gz"] {
            let path = file(name);
            let options = if name.ends_with(".gz") { "STORED AS CSV OPTIONS ('format.compression' gzip)" } else { "" };
            let rows = "SELECT value AS i, value % 3 AS k FROM generate_series(1, 20)";
            ctx.sql(&format!("COPY ({rows}) TO '{path}' {options}")).await.unwrap().collect().await.unwrap();
        }
        let scan = |name: &str| format!("SELECT k, count(*) FROM '{}' WHERE i > 3 GROUP BY k", file(name));
        assert!(most_rows(scan("t.parquet")).await.is_some_and(|rows| (20..40).contains(&rows)));
        // A row of two columns has two bytes or more.
        let bytes = std::fs::metadata(file("t.csv")).unwrap().len() as usize;
        assert!(most_rows(scan("t.csv")).await.is_some_and(|rows| (20..bytes).contains(&rows)));
        assert!(most_rows(scan("t.json")).await.is_some_and(|rows| (20..1000).contains(&rows)));
        let sql = format!(
            "CREATE EXTERNAL TABLE packed STORED AS CSV LOCATION '{}' OPTIONS ('format.compression' gzip)",
            file("t.csv.gz")
        );
        ctx.sql(&sql).await.unwrap().collect().await.unwrap();
        assert_eq!(most_rows("SELECT i FROM packed WHERE i > 3".into()).await, None, "compressed");
    }

    #[tokio::test]
    async fn operators_without_a_limit_on_new_rows_have_no_bound() {
        for sql in [
            "SELECT i FROM unknown",
            "SELECT unnest(make_array(i, k)) FROM few WHERE i > 3",
            "SELECT few.i FROM few JOIN unknown ON few.i = unknown.i",
            "SELECT i FROM few UNION ALL SELECT i FROM unknown",
        ] {
            assert_eq!(most_rows_of(sql).await, None, "{sql}");
        }
    }
}
