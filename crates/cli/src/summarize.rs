// SPDX-License-Identifier: Apache-2.0
//! `SUMMARIZE`: a row for each column of a table, a file or a query.

use std::sync::Arc;

use datafusion::arrow::array::{Array, ArrayRef, Float64Array, Int64Array, RecordBatch, StringArray};
use datafusion::arrow::datatypes::DataType;
use datafusion::arrow::util::display::{ArrayFormatter, FormatOptions};
use datafusion::common::{Column, DFSchema, Result};
use datafusion::dataframe::DataFrame;
use datafusion::functions_aggregate::expr_fn::{approx_distinct, avg, count, max, min, percentile_cont, stddev};
use datafusion::logical_expr::expr::Sort;
use datafusion::logical_expr::{Expr, cast, lit};
use datafusion::physical_plan::collect;
use datafusion::prelude::SessionContext;

use crate::progress::Progress;

/// A figure that SUMMARIZE gives of a column.
struct Figure {
    name: &'static str,
    /// The aggregate of a column, whose type is given.
    aggregate: fn(Expr, &DataType) -> Expr,
    /// Whether columns of a type have it.
    applies: fn(&DataType) -> bool,
    /// Whether it is a number of rows or values, whatever the column's type is.
    is_count: bool,
}

const fn figure(name: &'static str, aggregate: fn(Expr, &DataType) -> Expr, applies: fn(&DataType) -> bool) -> Figure {
    Figure { name, aggregate, applies, is_count: false }
}

/// The last one counts the values.
const FIGURES: [Figure; 9] = [
    figure("min", |column, _| min(column), is_ordered),
    figure("max", |column, _| max(column), is_ordered),
    Figure { is_count: true, ..figure("approx_unique", distinct_values, is_ordered) },
    figure("avg", |column, _| avg(column), DataType::is_numeric),
    figure("std", |column, _| stddev(column), DataType::is_numeric),
    figure("q25", |column, _| quantile(column, 0.25), DataType::is_numeric),
    figure("q50", |column, _| quantile(column, 0.5), DataType::is_numeric),
    figure("q75", |column, _| quantile(column, 0.75), DataType::is_numeric),
    Figure { is_count: true, ..figure("count", |column, _| count(column), |_| true) },
];

/// DataFusion's `approx_distinct` takes no floats.
fn distinct_values(column: Expr, data_type: &DataType) -> Expr {
    approx_distinct(if data_type.is_floating() { cast(column, DataType::Utf8) } else { column })
}

fn quantile(column: Expr, share: f64) -> Expr {
    percentile_cont(Sort::new(column, true, true), lit(share))
}

fn is_ordered(data_type: &DataType) -> bool {
    !data_type.is_nested() && *data_type != DataType::Null
}

/// The query that a statement summarizes; `None` for other statements.
pub fn summarized(statement: &str) -> Option<String> {
    let (first, rest) = without_comments(statement).split_once(char::is_whitespace)?;
    if !first.eq_ignore_ascii_case("summarize") {
        return None;
    }
    let rest = rest.trim().trim_end_matches(';').trim();
    let keyword = rest.split(|c: char| c.is_whitespace() || c == '(').next().unwrap_or_default().to_uppercase();
    let is_query = rest.starts_with('(') || ["SELECT", "WITH", "VALUES", "FROM"].contains(&keyword.as_str());
    Some(if is_query { rest.to_owned() } else { format!("SELECT * FROM {rest}") })
}

/// A statement from its first token on.
pub fn without_comments(statement: &str) -> &str {
    let mut rest = statement.trim();
    loop {
        let behind = if rest.starts_with("--") {
            rest.split_once('\n').map(|(_, behind)| behind)
        } else if rest.starts_with("/*") {
            rest.split_once("*/").map(|(_, behind)| behind)
        } else {
            return rest;
        };
        rest = behind.unwrap_or_default().trim();
    }
}

/// Computes the summary in one pass over the rows.
///
/// # Errors
/// Those of the query.
pub async fn summary(context: &SessionContext, query: &str) -> Result<DataFrame> {
    let rows = context.sql(query).await?;
    let schema = rows.schema().clone();
    let all_rows = count(lit(1)).alias("rows");
    let counted = rows.aggregate(vec![], figures(&schema).into_iter().flatten().chain([all_rows]).collect())?;
    let (plan, task) = (counted.clone().create_physical_plan().await?, Arc::new(counted.task_ctx()));
    let _progress = Progress::of(&plan, &task);
    let counted = collect(plan, task).await?;
    let texts = match counted.iter().find(|batch| batch.num_rows() > 0) {
        Some(row) => texts(row)?,
        None => vec![],
    };
    context.read_batch(table(&schema, &texts)?)
}

/// The values of a row as text; `None` for NULL.
fn texts(row: &RecordBatch) -> Result<Vec<Option<String>>> {
    let options = FormatOptions::new();
    let text = |column: &ArrayRef| {
        let value = ArrayFormatter::try_new(column, &options)?.value(0).try_to_string()?;
        Ok((!column.is_null(0)).then_some(value))
    };
    row.columns().iter().map(text).collect()
}

/// The figures of each column; `None` where one does not apply.
fn figures(schema: &DFSchema) -> Vec<Option<Expr>> {
    let of_column = |(index, (qualifier, field)): (usize, (Option<&_>, &Arc<_>))| {
        let column = Expr::Column(Column::from((qualifier, field)));
        // Not all aggregates take dictionaries.
        let (column, data_type) = match field.data_type() {
            DataType::Dictionary(_, values) => (cast(column, values.as_ref().clone()), values.as_ref()),
            data_type => (column, data_type),
        };
        FIGURES.map(|Figure { name, aggregate, applies, .. }| {
            applies(data_type).then(|| aggregate(column.clone(), data_type).alias(format!("{name} of {index}")))
        })
    };
    schema.iter().enumerate().flat_map(of_column).collect()
}

/// A row for each column. The last value is the number of rows.
fn table(schema: &DFSchema, values: &[Option<String>]) -> Result<RecordBatch> {
    let number = |value: Option<&String>| value.and_then(|value| value.parse::<i64>().ok());
    let rows = number(values.last().and_then(Option::as_ref)).unwrap_or_default();
    let mut values = values.iter();
    let mut found = Vec::new();
    for figure in figures(schema) {
        found.push(if figure.is_some() { values.next().and_then(Option::as_ref) } else { None });
    }
    let fields = schema.fields();
    let mut columns: Vec<(&str, ArrayRef)> = vec![
        ("column_name", Arc::new(StringArray::from_iter_values(fields.iter().map(|field| field.name())))),
        ("column_type", Arc::new(StringArray::from_iter_values(fields.iter().map(|field| field.data_type().to_string())))),
    ];
    for (index, Figure { name, is_count, .. }) in FIGURES.iter().enumerate() {
        let of_figure = found.iter().skip(index).step_by(FIGURES.len()).copied();
        let array: ArrayRef = match is_count {
            true => Arc::new(Int64Array::from_iter(of_figure.map(number))),
            false => Arc::new(StringArray::from_iter(of_figure)),
        };
        columns.push((name, array));
    }
    let counts = found.iter().skip(FIGURES.len() - 1).step_by(FIGURES.len()).copied();
    let nulls = counts.map(|count| (rows > 0).then(|| nulls_percentage(rows, number(count).unwrap_or_default())));
    columns.push(("null_percentage", Arc::new(Float64Array::from_iter(nulls))));
    Ok(RecordBatch::try_from_iter(columns)?)
}

/// With two decimal places.
fn nulls_percentage(rows: i64, count: i64) -> f64 {
    ((rows - count) as f64 * 10_000.0 / rows as f64).round() / 100.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_a_file_or_a_query_is_summarized() {
        for (statement, query) in [
            ("SUMMARIZE t;", Some("SELECT * FROM t")),
            ("summarize 'x.parquet'", Some("SELECT * FROM 'x.parquet'")),
            (" Summarize\nSELECT 1 AS a ; ", Some("SELECT 1 AS a")),
            ("SUMMARIZE (VALUES (1))", Some("(VALUES (1))")),
            ("SUMMARIZE with_t", Some("SELECT * FROM with_t")),
            ("-- c\n/* d */ SUMMARIZE t", Some("SELECT * FROM t")),
            ("SELECT 1", None),
            ("SUMMARIZED t", None),
        ] {
            assert_eq!(summarized(statement).as_deref(), query, "{statement}");
        }
    }
}
