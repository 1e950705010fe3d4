// SPDX-License-Identifier: Apache-2.0
//! Random tables: partitions of batches, sliced out of larger arrays.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, RecordBatch, RecordBatchOptions};
use arrow::datatypes::{DataType, Schema, SchemaRef};
use datafusion::common::ScalarValue;
use rand::Rng;
use rand::rngs::StdRng;

use super::types::{self, Column};

/// Columns of a random table.
pub fn columns(rng: &mut StdRng) -> Vec<Column> {
    let count = rng.random_range(2..=6);
    (0..count)
        .map(|index| {
            let data_type = types::data_type(rng);
            // What a dictionary's codes can count.
            let few = rng.random_bool(0.4) || matches!(&data_type, DataType::Dictionary(codes, _) if **codes == DataType::UInt8);
            let (nullable, tame) = (rng.random_bool(0.7), rng.random_bool(0.6));
            Column { name: format!("c{index}"), data_type, nullable, few, tame }
        })
        .collect()
}

pub fn schema(columns: &[Column]) -> SchemaRef {
    Arc::new(Schema::new(columns.iter().map(Column::field).collect::<Vec<_>>()))
}

/// The rows of a table: batches of each partition.
#[derive(Debug, Clone)]
pub struct Rows {
    pub schema: SchemaRef,
    pub partitions: Vec<Vec<RecordBatch>>,
}

impl Rows {
    /// Random rows, mostly some hundreds, sometimes none or few.
    pub fn random(rng: &mut StdRng, columns: &[Column], partitions: usize) -> Rows {
        let schema = schema(columns);
        let rows = match rng.random_range(0..20) {
            0 => 0,
            1 | 2 => rng.random_range(1..4),
            3..=8 => rng.random_range(4..100),
            9..=18 => rng.random_range(100..600),
            _ => rng.random_range(600..4000),
        };
        let all_null = rng.random_bool(0.03);
        let partitions = (0..partitions)
            .map(|_| {
                let mut left = rows / partitions + usize::from(rows % partitions > 0);
                let mut batches = Vec::new();
                while left > 0 || batches.is_empty() {
                    let take = if rng.random_bool(0.3) { left } else { rng.random_range(0..=left) };
                    batches.push(batch(rng, columns, &schema, take, all_null));
                    left -= take;
                    if batches.len() == 6 {
                        batches.push(batch(rng, columns, &schema, left, all_null));
                        left = 0;
                    }
                }
                batches
            })
            .collect();
        Rows { schema, partitions }
    }

    pub fn num_rows(&self) -> usize {
        self.partitions.iter().flatten().map(RecordBatch::num_rows).sum()
    }

    /// All rows in one batch of one partition.
    pub fn gathered(&self) -> Rows {
        let batches: Vec<&RecordBatch> = self.partitions.iter().flatten().collect();
        let batch = arrow::compute::concat_batches(&self.schema, batches).unwrap();
        Rows { schema: Arc::clone(&self.schema), partitions: vec![vec![batch]] }
    }

    /// Some of the gathered rows.
    pub fn slice(&self, offset: usize, len: usize) -> Rows {
        let batch = self.partitions[0][0].slice(offset, len);
        Rows { schema: Arc::clone(&self.schema), partitions: vec![vec![batch]] }
    }

    /// The gathered rows without some of them.
    pub fn without(&self, offset: usize, len: usize) -> Rows {
        let batch = &self.partitions[0][0];
        let end = batch.num_rows() - offset - len;
        let kept = [batch.slice(0, offset), batch.slice(offset + len, end)];
        let batch = arrow::compute::concat_batches(&self.schema, kept.iter()).unwrap();
        Rows { schema: Arc::clone(&self.schema), partitions: vec![vec![batch]] }
    }

    /// Some of the columns.
    pub fn project(&self, columns: &[usize]) -> Rows {
        let project = |batch: &RecordBatch| batch.project(columns).unwrap();
        let partitions = self.partitions.iter().map(|batches| batches.iter().map(project).collect()).collect();
        Rows { schema: Arc::new(self.schema.project(columns).unwrap()), partitions }
    }

    /// SQL that makes the table, in one partition.
    pub fn create_table(&self) -> String {
        let rows = self.gathered();
        let batch = &rows.partitions[0][0];
        let cell = |column: usize, row: usize| {
            let value = ScalarValue::try_from_array(batch.column(column), row).unwrap();
            match value {
                ScalarValue::Dictionary(_, value) => {
                    format!("arrow_cast({}, '{}')", types::literal(&value), self.schema.field(column).data_type())
                }
                value => types::literal(&value),
            }
        };
        let values: Vec<String> = (0..batch.num_rows())
            .map(|row| {
                let cells: Vec<String> = (0..batch.num_columns()).map(|column| cell(column, row)).collect();
                format!("  ({})", cells.join(", "))
            })
            .collect();
        let names: Vec<String> = (self.schema.fields().iter().enumerate())
            .map(|(index, field)| format!("column{} AS {}", index + 1, field.name()))
            .collect();
        let types: Vec<String> = (self.schema.fields().iter())
            .map(|field| format!("{} {}{}", field.name(), field.data_type(), if field.is_nullable() { "" } else { " NOT NULL" }))
            .collect();
        if values.is_empty() {
            return format!("-- t without rows: {}", types.join(", "));
        }
        format!("-- {}\nCREATE TABLE t AS SELECT {} FROM (VALUES\n{}\n)", types.join(", "), names.join(", "), values.join(",\n"))
    }
}

fn batch(rng: &mut StdRng, columns: &[Column], schema: &SchemaRef, rows: usize, all_null: bool) -> RecordBatch {
    let arrays: Vec<ArrayRef> = columns
        .iter()
        .map(|column| {
            let (before, after) = if rng.random_bool(0.5) { (rng.random_range(0..10), rng.random_range(0..3)) } else { (0, 0) };
            let array = column.array(rng, before + rows + after, all_null);
            array.slice(before, rows)
        })
        .collect();
    let options = RecordBatchOptions::new().with_row_count(Some(rows));
    RecordBatch::try_new_with_options(Arc::clone(schema), arrays, &options).unwrap()
}
