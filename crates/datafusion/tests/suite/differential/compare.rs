// SPDX-License-Identifier: Apache-2.0
//! Comparison of two answers.

use std::ops::Range;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, RecordBatch};
use arrow::compute::{SortColumn, concat_batches, lexsort_to_indices, take_record_batch};
use arrow::datatypes::{DataType, Float32Type, Float64Type};
use arrow::row::{RowConverter, Rows, SortField};

use crate::harness::Answer;

/// Relative error allowed for aggregates that DataFusion computes in no fixed order: variance and
/// standard deviation. They merge partial results of partitions.
pub const UNORDERED_TOLERANCE: f64 = 1e-9;

/// Differences that the comparison ignores.
pub struct Allowance {
    pub order: Order,
    /// A group may return either zero, since both are equal.
    pub zeros_are_equal: bool,
    /// The order of rows decides which of several NaNs an aggregate returns.
    pub nans_are_equal: bool,
    /// Columns compared with [`UNORDERED_TOLERANCE`].
    pub approximate: Vec<bool>,
}

/// How far a query defines the order of rows.
pub enum Order {
    Any,
    Kept,
    /// Sort keys, which rows may tie in. With a limit, SQL does not define which ties of the first
    /// and last row are returned.
    Keys {
        columns: Vec<usize>,
        limited: bool,
    },
}

/// Message about the first difference.
pub fn difference(actual: &Answer, expected: &Answer, allowance: &Allowance) -> Option<String> {
    let types =
        |answer: &Answer| -> Vec<DataType> { answer.schema.fields().iter().map(|field| field.data_type().clone()).collect() };
    if types(actual) != types(expected) {
        return Some(format!("types {:?} instead of {:?}", types(actual), types(expected)));
    }
    let nullable = |answer: &Answer| -> Vec<bool> { answer.schema.fields().iter().map(|field| field.is_nullable()).collect() };
    if nullable(actual) != nullable(expected) {
        return Some(format!("nullability {:?} instead of {:?}", nullable(actual), nullable(expected)));
    }
    if actual.num_rows() != expected.num_rows() {
        return Some(format!("{} rows instead of {}", actual.num_rows(), expected.num_rows()));
    }
    if actual.num_rows() == 0 {
        return None;
    }
    let (mut actual, mut expected) = (prepared(actual, allowance), prepared(expected, allowance));
    if let Order::Keys { columns, limited } = &allowance.order
        && !columns.is_empty()
    {
        let keys = |batch: &RecordBatch| batch.project(columns).unwrap();
        if let Some(row) = first_difference(&keys(&actual), &keys(&expected)) {
            return Some(format!("in the order of keys, {}", differing_rows(&actual, &expected, row)));
        }
        if *limited {
            let inner = between_ties(&keys(&expected));
            (actual, expected) = (actual.slice(inner.start, inner.len()), expected.slice(inner.start, inner.len()));
        }
    }
    if !matches!(allowance.order, Order::Kept) {
        (actual, expected) = (sorted(&actual, allowance), sorted(&expected, allowance));
    }
    let exact: Vec<usize> = (0..actual.num_columns()).filter(|index| !allowance.approximate[*index]).collect();
    if let Some(row) = first_difference(&actual.project(&exact).ok()?, &expected.project(&exact).ok()?) {
        return Some(differing_rows(&actual, &expected, row));
    }
    for column in (0..actual.num_columns()).filter(|index| allowance.approximate[*index]) {
        if let Some(row) = first_distant(actual.column(column), expected.column(column)) {
            return Some(differing_rows(&actual, &expected, row));
        }
    }
    None
}

fn differing_rows(actual: &RecordBatch, expected: &RecordBatch, row: usize) -> String {
    let show = |batch: &RecordBatch| {
        let values = batch.columns().iter().map(|column| {
            datafusion::common::ScalarValue::try_from_array(column, row)
                .map_or_else(|error| error.to_string(), |value| format!("{value:?}"))
        });
        values.collect::<Vec<_>>().join(", ")
    };
    format!("({}) instead of ({})", show(actual), show(expected))
}

/// Rows that tie with neither the first nor the last row.
fn between_ties(keys: &RecordBatch) -> Range<usize> {
    let rows = rows(keys);
    let last = keys.num_rows() - 1;
    let start = (0..=last).find(|row| rows.row(*row) != rows.row(0)).unwrap_or(last + 1);
    let end = (start..=last).find(|row| rows.row(*row) == rows.row(last)).unwrap_or(start);
    start..end
}

/// All rows as one batch of comparable values.
fn prepared(answer: &Answer, allowance: &Allowance) -> RecordBatch {
    // Dictionaries are unpacked first: together they may have more values than their codes can
    // count.
    let batches: Vec<RecordBatch> = answer
        .batches
        .iter()
        .map(|batch| {
            let columns = batch.columns().iter().enumerate();
            let columns = columns.map(|(index, column)| (format!("o{index}"), comparable(column, allowance), true));
            RecordBatch::try_from_iter_with_nullable(columns).unwrap()
        })
        .collect();
    concat_batches(&batches[0].schema(), &batches).unwrap()
}

/// Rows in a canonical order, for answers of undefined order.
fn sorted(batch: &RecordBatch, allowance: &Allowance) -> RecordBatch {
    if batch.num_columns() == 0 {
        return batch.clone();
    }
    let (exact, approximate): (Vec<usize>, Vec<usize>) =
        (0..batch.num_columns()).partition(|index| !allowance.approximate[*index]);
    let keys: Vec<SortColumn> = (exact.iter().chain(&approximate))
        .map(|index| SortColumn { values: Arc::clone(batch.column(*index)), options: None })
        .collect();
    let order = lexsort_to_indices(&keys, None).unwrap();
    take_record_batch(batch, &order).unwrap()
}

/// Unpacks the dictionaries of a column. If allowed, -0.0 becomes 0.0 and all NaNs become the same.
fn comparable(column: &ArrayRef, allowance: &Allowance) -> ArrayRef {
    let column = match column.data_type() {
        DataType::Dictionary(_, values) => arrow::compute::cast(column, values).unwrap(),
        _ => Arc::clone(column),
    };
    let Allowance { zeros_are_equal, nans_are_equal, .. } = *allowance;
    match column.data_type() {
        DataType::Float32 => Arc::new(column.as_primitive::<Float32Type>().unary::<_, Float32Type>(|x| match x {
            x if nans_are_equal && x.is_nan() => f32::NAN,
            x if zeros_are_equal && x == 0.0 => 0.0,
            x => x,
        })),
        DataType::Float64 => Arc::new(column.as_primitive::<Float64Type>().unary::<_, Float64Type>(|x| match x {
            x if nans_are_equal && x.is_nan() => f64::NAN,
            x if zeros_are_equal && x == 0.0 => 0.0,
            x => x,
        })),
        _ => column,
    }
}

/// First row whose encodings differ. Floats differ by their bits.
fn first_difference(actual: &RecordBatch, expected: &RecordBatch) -> Option<usize> {
    if actual.num_columns() == 0 {
        return None;
    }
    rows(actual).iter().zip(&rows(expected)).position(|(actual, expected)| actual != expected)
}

fn rows(batch: &RecordBatch) -> Rows {
    let fields = batch.schema().fields().iter().map(|field| SortField::new(field.data_type().clone())).collect();
    RowConverter::new(fields).unwrap().convert_columns(batch.columns()).unwrap()
}

fn first_distant(actual: &ArrayRef, expected: &ArrayRef) -> Option<usize> {
    let actual = arrow::compute::cast(actual, &DataType::Float64).unwrap();
    let expected = arrow::compute::cast(expected, &DataType::Float64).unwrap();
    let pairs = actual.as_primitive::<Float64Type>().iter().zip(expected.as_primitive::<Float64Type>());
    pairs.into_iter().position(|pair| match pair {
        (None, None) => false,
        (Some(actual), Some(expected)) => {
            let near = (actual - expected).abs() <= UNORDERED_TOLERANCE * expected.abs().max(1.0);
            !(near || actual.to_bits() == expected.to_bits() || actual.is_nan() && expected.is_nan())
        }
        _ => true,
    })
}

#[cfg(test)]
mod tests {
    use arrow::array::Int64Array;
    use devicefusion::Placement;

    use super::*;

    fn answer(rows: &[(i64, i64)]) -> Answer {
        let column = |values: Vec<i64>| Arc::new(Int64Array::from(values)) as ArrayRef;
        let (keys, values) = rows.iter().copied().unzip();
        let batch = RecordBatch::try_from_iter([("k", column(keys)), ("v", column(values))]).unwrap();
        Answer { schema: batch.schema(), batches: vec![batch], placement: Placement::default(), launches: 1, spilled_bytes: 0 }
    }

    fn differ(order: Order, actual: &[(i64, i64)], expected: &[(i64, i64)]) -> bool {
        let allowance = Allowance { order, zeros_are_equal: false, nans_are_equal: false, approximate: vec![false; 2] };
        difference(&answer(actual), &answer(expected), &allowance).is_some()
    }

    #[test]
    fn unordered_rows_compare_as_multisets() {
        assert!(!differ(Order::Any, &[(1, 2), (3, 4)], &[(3, 4), (1, 2)]));
        assert!(differ(Order::Any, &[(1, 2), (1, 2), (3, 4)], &[(1, 2), (3, 4), (3, 4)]));
        assert!(differ(Order::Kept, &[(1, 2), (3, 4)], &[(3, 4), (1, 2)]));
    }

    #[test]
    fn ties_may_be_reordered_but_keys_may_not() {
        let keys = |limited: bool| Order::Keys { columns: vec![0], limited };
        let expected = [(1, 1), (1, 2), (2, 3), (3, 4), (3, 5)];
        assert!(!differ(keys(false), &[(1, 2), (1, 1), (2, 3), (3, 5), (3, 4)], &expected));
        assert!(differ(keys(false), &[(1, 2), (1, 1), (2, 3), (3, 5), (3, 6)], &expected));
        assert!(differ(keys(false), &[(2, 3), (1, 1), (1, 2), (3, 4), (3, 5)], &expected));
        // With a limit, other rows may tie with those at the ends, but not with those between.
        assert!(!differ(keys(true), &[(1, 7), (1, 2), (2, 3), (3, 4), (3, 6)], &expected));
        assert!(differ(keys(true), &[(1, 1), (1, 2), (2, 6), (3, 4), (3, 5)], &expected));
    }
}
