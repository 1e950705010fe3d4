// SPDX-License-Identifier: Apache-2.0
//! The statements, and the answers of plain DataFusion.
//!
//! They are few, so that the compiler has little to do. Constants make their answers differ, so
//! that an answer of another thread's statement shows.

use arrow::array::RecordBatch;
use arrow::util::display::{ArrayFormatter, FormatOptions};
use datafusion::prelude::SessionContext;
use tokio::runtime::Runtime;

/// Tables that all threads of an engine share, and their rows. `log` grows, by whole batches.
pub const TABLES: [(&str, &str); 3] = [
    (
        "device.facts",
        "SELECT value AS id, value * 7919 % 1000 AS k, value * 104729 % 100003 AS v, \
         'item ' || (value * 31 % 701)::TEXT AS s FROM generate_series(1, 100000) AS t(value)",
    ),
    ("device.dims", "SELECT value AS k, 'dim ' || (value % 37)::TEXT AS name FROM generate_series(0, 999) AS t(value)"),
    ("device.log", BATCH),
];

/// The rows that a statement writes.
pub const BATCH: &str = "SELECT id, v FROM device.facts WHERE id <= 100";

/// Number of rows, and a sum that tells batches from other rows.
pub const COUNT_BATCHES: &str = "SELECT count(*) AS n, sum(v) AS total FROM";

/// The rows of a new table.
pub const COPY: &str = "SELECT id, k, s FROM device.facts WHERE k < 333";

/// A summary of a new table.
pub const COUNT_COPY: &str = "SELECT count(*) AS n, sum(k) AS total, max(s) AS high FROM";

/// Goes on until it is cancelled.
pub const ENDLESS: &str = "SELECT count(*) AS n FROM generate_series(1, 1000000000000) WHERE value % 7 = 3";

/// The setting that errors of full memory name.
pub const LIMIT: &str = "device.memory_bytes";

/// Needs more memory than any limit allows, and what the error names. A window over all rows holds
/// them; sorts and aggregations would spill.
pub const HUNGRY: (&str, &str) = (
    "SELECT max(v - mean) AS most FROM (SELECT f.v, avg(f.v) OVER () AS mean \
     FROM device.facts f CROSS JOIN device.dims) AS centered",
    LIMIT,
);

/// Statements that fail, and a part of the message.
pub const FAILURES: [(&str, &str); 7] = [
    ("SELECT 1 / (v - v) AS q FROM device.facts WHERE k = 40", "Divide by zero"),
    ("INSERT INTO device.log SELECT id, 1 / (v - v) FROM device.facts WHERE id <= 100", "Divide by zero"),
    (
        "SELECT CAST(v AS DECIMAL(38, 0)) * CAST('99999999999999999999999999999999999999' AS DECIMAL(38, 0)) AS q \
         FROM device.facts WHERE k = 40",
        "Overflow happened on",
    ),
    ("SELECT CAST(s AS BIGINT) AS q FROM device.facts WHERE k = 40", "Cannot cast string 'item "),
    ("SELECT nothing FROM device.facts", "No field named nothing"),
    ("SELECT id FROM device.nowhere", "table 'datafusion.device.nowhere' not found"),
    ("CREATE TABLE device.facts AS SELECT 1 AS id", "Table 'device.facts' already exists"),
];

/// Queries over tables that do not change. `$c` stands for each of the constants.
const READS: [&str; 9] = [
    "SELECT id, v, s FROM device.facts WHERE k = $c",
    "SELECT k % 10 AS g, count(*) AS n, sum(v) AS total, max(s) AS high FROM device.facts WHERE v > $c GROUP BY k % 10",
    "SELECT d.name, count(*) AS n, sum(f.v) AS total FROM device.facts f JOIN device.dims d ON f.k = d.k \
     WHERE d.k < $c GROUP BY d.name",
    "SELECT id, s, v FROM device.facts WHERE k <> $c ORDER BY s DESC, v, id LIMIT 10",
    "SELECT max(r) AS most, sum(r) AS total \
     FROM (SELECT rank() OVER (PARTITION BY k ORDER BY v) AS r FROM device.facts WHERE v > $c) AS ranked",
    "SELECT count(*) AS n, min(id) AS low FROM device.facts WHERE s LIKE '%$c%'",
    "SELECT DISTINCT k % 100 AS d, s LIKE 'item 1%' AS one FROM device.facts WHERE v > $c",
    "SELECT count(*) AS n FROM device.facts f \
     WHERE EXISTS (SELECT 1 FROM device.dims d WHERE d.k = f.k AND d.name LIKE 'dim %7' AND d.k > $c)",
    "SELECT count(*) AS n FROM device.facts f JOIN device.dims d ON f.v * d.k % 1000 = $c WHERE f.k < 20",
];

/// Each query has so many constants.
pub const CONSTANTS: [i64; 3] = [1, 333, 640];

/// The table that only this thread writes.
pub fn own_table(thread: usize) -> String {
    format!("device.own_{thread}")
}

/// A query and its rows.
pub struct Query {
    pub sql: String,
    pub rows: Vec<String>,
}

/// Queries of all threads, with their answers.
pub struct Workload {
    /// Those of one text come one after another.
    pub reads: Vec<Query>,
    /// Rows of [`COUNT_COPY`] over a copy.
    pub copy: Vec<String>,
    /// [`COUNT_BATCHES`] over one batch.
    pub batch: [i64; 2],
}

impl Workload {
    /// Asks plain DataFusion.
    pub fn new() -> Self {
        Runtime::new().unwrap().block_on(async {
            let plain = SessionContext::new();
            let answer = async |sql: &str| rows(sql, &plain.sql(sql).await.unwrap().collect().await.unwrap());
            answer("CREATE SCHEMA device").await;
            for (table, rows) in TABLES {
                answer(&format!("CREATE TABLE {table} AS {rows}")).await;
            }
            let mut reads = Vec::new();
            for (read, constant) in READS.iter().flat_map(|read| CONSTANTS.map(|constant| (read, constant))) {
                let sql = read.replace("$c", &constant.to_string());
                let rows = answer(&sql).await;
                assert!(!rows.is_empty(), "{sql}: no rows to compare");
                reads.push(Query { sql, rows });
            }
            let copy = answer(&format!("{COUNT_COPY} ({COPY}) AS copy")).await;
            let batch = numbers(&answer(&format!("{COUNT_BATCHES} device.log")).await).try_into().unwrap();
            Self { reads, copy, batch }
        })
    }
}

/// The rows of an answer as strings, sorted unless the query sorts them.
pub fn rows(sql: &str, batches: &[RecordBatch]) -> Vec<String> {
    let options = FormatOptions::new().with_null("NULL");
    let mut rows = Vec::new();
    for batch in batches {
        let columns = batch.columns().iter().map(|column| ArrayFormatter::try_new(column, &options).unwrap());
        let columns: Vec<_> = columns.collect();
        let row = |row| columns.iter().map(|column| column.value(row).to_string()).collect::<Vec<_>>().join(" ");
        rows.extend((0..batch.num_rows()).map(row));
    }
    if !sql.contains("LIMIT") {
        rows.sort_unstable();
    }
    rows
}

/// The numbers in rows; -1 for NULL.
pub fn numbers(rows: &[String]) -> Vec<i64> {
    rows.iter().flat_map(|row| row.split(' ')).map(|number| number.parse().unwrap_or(-1)).collect()
}
