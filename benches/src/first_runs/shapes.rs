// SPDX-License-Identifier: Apache-2.0
//! Long statements, and the tables that they read.

use std::sync::Arc;

use clap::ValueEnum;
use datafusion::arrow::array::{ArrayRef, Float64Array, Int64Array, StringArray};
use datafusion::arrow::record_batch::RecordBatch;
use datafusion::error::Result;

use crate::tpch::mentions;

/// Rows of the narrow table: a query takes no time beside its compilation.
const ROWS: i64 = 2000;
/// Rows and columns of the wide table.
const WIDE: (i64, i64) = (20, 2000);

/// A long statement.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Shape {
    /// CASE of 80 computed strings as a group key.
    Case80,
    /// 60 concatenations.
    Concat60,
    /// 500 concatenations.
    Concat500,
    /// 40 nested calls of replace.
    Replace40,
    /// 20 medians.
    Median20,
    /// 30 windows with different keys.
    Windows30,
    /// GROUP BY of 100 keys.
    Keys100,
    /// A condition of 1,500 comparisons.
    And1500,
    /// A sum of 400 terms.
    Terms400,
    /// All columns of a table of 2,000.
    Columns2000,
    /// An expression over each of 2,000 columns.
    Outputs2000,
}

impl Shape {
    /// The statement.
    pub fn sql(self) -> String {
        match self {
            Self::Case80 => {
                let branches = list(80, " ", |i| format!("WHEN a % 90 = {i} THEN upper(s) || '{i}'"));
                format!("SELECT CASE {branches} ELSE s END AS k, count(*) FROM narrow GROUP BY k ORDER BY k LIMIT 3")
            }
            Self::Concat60 => concatenations(60),
            Self::Concat500 => concatenations(500),
            Self::Replace40 => {
                let nested = (0..40).fold("s".to_string(), |inner, i| format!("replace({inner}, '{}', 'x{i}')", i % 10));
                format!("SELECT max({nested}) FROM narrow")
            }
            Self::Median20 => format!("SELECT {} FROM narrow", list(20, ", ", |i| format!("median(a + {i})"))),
            Self::Windows30 => {
                let sums = list(30, ", ", |i| format!("sum(a) OVER (PARTITION BY a % {} ORDER BY b) AS r{i}", i + 2));
                format!("SELECT {} FROM (SELECT {sums} FROM narrow)", list(30, ", ", |i| format!("max(r{i})")))
            }
            Self::Keys100 => {
                let key = |i: i64| match (i % 3, i % 2) {
                    (0, _) => format!("s || '{i}' AS k{i}"),
                    (_, 0) => format!("a % {} AS k{i}", i + 2),
                    _ => format!("b % {} AS k{i}", i + 2),
                };
                let (keys, numbers) = (list(100, ", ", key), list(100, ", ", |i| (i + 1).to_string()));
                format!("SELECT count(*) FROM (SELECT {keys}, count(*) FROM narrow GROUP BY {numbers})")
            }
            Self::And1500 => {
                format!("SELECT count(*), sum(b) FROM narrow WHERE {}", list(1500, " AND ", |i| format!("a <> {i}")))
            }
            Self::Terms400 => format!("SELECT sum({}) FROM narrow", list(400, " + ", |i| format!("a * {}", i + 1))),
            Self::Columns2000 => "SELECT * FROM wide WHERE c5 > 3".to_string(),
            Self::Outputs2000 => {
                format!("SELECT {} FROM wide WHERE c5 > 3", list(WIDE.1, ", ", |i| format!("c{i} + 1 AS x{i}")))
            }
        }
    }
}

fn concatenations(count: i64) -> String {
    format!("SELECT max(s || {}) FROM narrow", list(count, " || ", |i| format!("'{i}'")))
}

fn list(count: i64, separator: &str, item: impl Fn(i64) -> String) -> String {
    (0..count).map(item).collect::<Vec<_>>().join(separator)
}

/// The tables that a statement names.
pub fn tables(sql: &str) -> Result<Vec<(&'static str, RecordBatch)>> {
    let mut tables = Vec::new();
    if mentions(sql, "narrow") {
        tables.push(("narrow", narrow()?));
    }
    if mentions(sql, "wide") {
        tables.push(("wide", wide()?));
    }
    Ok(tables)
}

fn narrow() -> Result<RecordBatch> {
    let integers = |factor: i64| Arc::new(Int64Array::from_iter_values((1..=ROWS).map(|row| row * factor)));
    let columns: [(&str, ArrayRef); 4] = [
        ("a", integers(1)),
        ("b", integers(2)),
        ("d", Arc::new(Float64Array::from_iter_values((1..=ROWS).map(|row| row as f64 / 3.0)))),
        ("s", Arc::new(StringArray::from_iter_values((1..=ROWS).map(|row| format!("s{}", row % 7))))),
    ];
    Ok(RecordBatch::try_from_iter(columns)?)
}

fn wide() -> Result<RecordBatch> {
    let (rows, columns) = WIDE;
    let column = |column: i64| Int64Array::from_iter_values((0..rows).map(|row| (column * 7 + row) % 100));
    Ok(RecordBatch::try_from_iter((0..columns).map(|number| (format!("c{number}"), Arc::new(column(number)) as ArrayRef)))?)
}
