// SPDX-License-Identifier: Apache-2.0
//! Comparison of two answers: same columns, same rows in any order, floats up to rounding.

use std::cmp::Ordering;
use std::hash::{DefaultHasher, Hasher};

use datafusion::arrow::array::{Array, AsArray};
use datafusion::arrow::datatypes::{DataType, Float32Type, Float64Type};
use datafusion::arrow::error::ArrowError;
use datafusion::arrow::record_batch::RecordBatch;
use datafusion::arrow::row::{RowConverter, SortField};
use datafusion::arrow::util::display::{ArrayFormatter, FormatOptions};

/// Relative tolerance of floats: neither engine sums them in a fixed order.
const FLOAT_TOLERANCE: f64 = 1e-9;

/// Answers above this many rows are compared by fingerprint, with floats bit by bit.
const FINGERPRINT_ROWS: usize = 100_000;

/// The first difference between two answers; `None` if they agree.
pub fn difference(expected: &[RecordBatch], actual: &[RecordBatch]) -> Result<Option<String>, ArrowError> {
    if let (Some(expected), Some(actual)) = (expected.first(), actual.first()) {
        let types =
            |batch: &RecordBatch| batch.schema().fields().iter().map(|field| field.data_type().clone()).collect::<Vec<_>>();
        if types(expected) != types(actual) {
            return Ok(Some(format!("types {:?} instead of {:?}", types(actual), types(expected))));
        }
    }
    let (expected_rows, actual_rows) = (count(expected), count(actual));
    if expected_rows != actual_rows {
        return Ok(Some(format!("{actual_rows} rows instead of {expected_rows}")));
    }
    if expected_rows > FINGERPRINT_ROWS {
        return Ok((fingerprint(expected)? != fingerprint(actual)?).then(|| format!("other values in {expected_rows} rows")));
    }
    let (expected, actual) = (sorted_rows(expected)?, sorted_rows(actual)?);
    Ok(expected
        .iter()
        .zip(&actual)
        .find(|(expected, actual)| !expected.agrees(actual))
        .map(|(expected, actual)| format!("row {actual:?} instead of {expected:?}")))
}

fn count(batches: &[RecordBatch]) -> usize {
    batches.iter().map(RecordBatch::num_rows).sum()
}

/// Sum of the rows' hashes, which does not depend on their order.
fn fingerprint(batches: &[RecordBatch]) -> Result<u64, ArrowError> {
    let Some(first) = batches.first() else {
        return Ok(0);
    };
    let fields = first.schema().fields().iter().map(|field| SortField::new(field.data_type().clone())).collect();
    let converter = RowConverter::new(fields)?;
    let mut sum = 0u64;
    for batch in batches {
        for row in &converter.convert_columns(batch.columns())? {
            let mut hasher = DefaultHasher::new();
            hasher.write(row.as_ref());
            sum = sum.wrapping_add(hasher.finish());
        }
    }
    Ok(sum)
}

/// A row for the comparison: formatted values that must be equal, and floats.
#[derive(Debug, Default, Clone)]
struct Row {
    exact: Vec<String>,
    floats: Vec<Option<f64>>,
}

impl Row {
    fn agrees(&self, other: &Self) -> bool {
        self.exact == other.exact && self.floats.iter().zip(&other.floats).all(|(a, b)| close(*a, *b))
    }

    fn order(&self, other: &Self) -> Ordering {
        self.exact.cmp(&other.exact).then_with(|| {
            let by_float = |(a, b): (&Option<f64>, &Option<f64>)| match (a, b) {
                (Some(a), Some(b)) => a.total_cmp(b),
                (a, b) => a.is_some().cmp(&b.is_some()),
            };
            self.floats.iter().zip(&other.floats).map(by_float).find(|order| order.is_ne()).unwrap_or(Ordering::Equal)
        })
    }
}

fn close(a: Option<f64>, b: Option<f64>) -> bool {
    match (a, b) {
        (Some(a), Some(b)) => a == b || (a.is_nan() && b.is_nan()) || (a - b).abs() <= FLOAT_TOLERANCE * a.abs().max(b.abs()),
        (a, b) => a.is_none() && b.is_none(),
    }
}

fn sorted_rows(batches: &[RecordBatch]) -> Result<Vec<Row>, ArrowError> {
    let options = FormatOptions::default().with_null("NULL");
    let mut rows = Vec::new();
    for batch in batches {
        let begin = rows.len();
        rows.resize(begin + batch.num_rows(), Row::default());
        for column in batch.columns() {
            let rows = rows[begin..].iter_mut().enumerate();
            match column.data_type() {
                DataType::Float64 => {
                    let values = column.as_primitive::<Float64Type>();
                    rows.for_each(|(index, row)| row.floats.push(values.is_valid(index).then(|| values.value(index))));
                }
                DataType::Float32 => {
                    let values = column.as_primitive::<Float32Type>();
                    rows.for_each(|(index, row)| row.floats.push(values.is_valid(index).then(|| f64::from(values.value(index)))));
                }
                _ => {
                    let values = ArrayFormatter::try_new(column, &options)?;
                    rows.for_each(|(index, row)| row.exact.push(values.value(index).to_string()));
                }
            }
        }
    }
    rows.sort_by(Row::order);
    Ok(rows)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use datafusion::arrow::array::{ArrayRef, Float64Array, Int64Array};

    use super::*;

    fn batch(keys: Vec<Option<i64>>, values: Vec<f64>) -> RecordBatch {
        let columns: [(&str, ArrayRef); 2] =
            [("k", Arc::new(Int64Array::from(keys))), ("v", Arc::new(Float64Array::from(values)))];
        RecordBatch::try_from_iter(columns).unwrap()
    }

    #[test]
    fn order_and_rounding_do_not_matter() {
        let a = [batch(vec![Some(1), None], vec![0.1 + 0.2, f64::NAN])];
        let b = [batch(vec![None], vec![f64::NAN]), batch(vec![Some(1)], vec![0.3])];
        assert_eq!(difference(&a, &b).unwrap(), None);
    }

    #[test]
    fn another_value_or_count_is_found() {
        let a = [batch(vec![Some(1)], vec![1.0])];
        assert!(difference(&a, &[batch(vec![None], vec![1.0])]).unwrap().is_some());
        assert!(difference(&a, &[batch(vec![Some(1)], vec![1.1])]).unwrap().is_some());
        assert!(difference(&a, &[]).unwrap().is_some());
    }

    #[test]
    fn fingerprint_ignores_order_only() {
        let a = [batch(vec![Some(1), Some(2)], vec![1.0, 2.0])];
        let b = [batch(vec![Some(2)], vec![2.0]), batch(vec![Some(1)], vec![1.0])];
        let c = [batch(vec![Some(1), Some(2)], vec![2.0, 1.0])];
        assert_eq!(fingerprint(&a).unwrap(), fingerprint(&b).unwrap());
        assert_ne!(fingerprint(&a).unwrap(), fingerprint(&c).unwrap());
    }
}
