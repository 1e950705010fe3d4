// SPDX-License-Identifier: Apache-2.0
//! Random tables: partitions of batches, sliced out of larger arrays.

use std::ops::Range;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, RecordBatch, RecordBatchOptions};
use arrow::datatypes::{DataType, Schema, SchemaRef};
use datafusion::common::ScalarValue;
use rand::Rng;
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;

use super::pools::{Domain, IDS, Pools};
use super::types::{self, Column};

/// Name of the column that identifies rows, in tables with one.
pub const ID: &str = "id";

/// A random table.
#[derive(Debug, Clone)]
pub struct Table {
    pub name: String,
    pub columns: Vec<Column>,
    pub rows: Rows,
    /// Whether the table is resident on the device.
    pub resident: bool,
}

impl Table {
    /// A table without rows.
    pub fn new(name: impl Into<String>, columns: Vec<Column>, resident: bool) -> Table {
        let rows = Rows { schema: schema(&columns), partitions: vec![Vec::new()] };
        Table { name: name.into(), columns, rows, resident }
    }

    /// The table of a query over one table.
    pub fn only(rng: &mut StdRng) -> Table {
        let count = rng.random_range(2..=6);
        let columns = (0..count).map(|index| column(rng, format!("c{index}"))).collect();
        Table::new("t", columns, rng.random_bool(0.2))
    }

    /// Tables of a query with joins. Each has an id column, keys of some of the domains, and other
    /// columns.
    pub fn several(rng: &mut StdRng, domains: &[Domain]) -> Vec<Table> {
        let count = *[2, 2, 3].choose(rng).unwrap();
        (0..count)
            .map(|table| {
                let key = |rng: &mut StdRng, name: String, domain: usize, nullable: bool| {
                    let data_type = domains[domain].types.choose(rng).unwrap().clone();
                    Column { name, data_type, nullable, few: true, tame: true, domain: Some(domain) }
                };
                let mut columns = vec![key(rng, ID.to_string(), IDS, false)];
                for domain in 0..domains.len() {
                    if rng.random_bool(if domain == IDS { 0.3 } else { 0.8 }) {
                        let nullable = rng.random_bool(0.7);
                        columns.push(key(rng, format!("k{domain}"), domain, nullable));
                    }
                }
                let others = rng.random_range(1..=3);
                columns.extend((0..others).map(|index| column(rng, format!("v{index}"))));
                Table::new(format!("t{table}"), columns, rng.random_bool(0.2))
            })
            .collect()
    }

    /// Keeps the given columns.
    pub fn project(&mut self, columns: &[usize]) {
        self.rows = self.rows.project(columns);
        self.columns = columns.iter().map(|column| self.columns[*column].clone()).collect();
    }

    /// SQL that creates the table.
    pub fn create(&self) -> String {
        let prefix = if self.resident { "device." } else { "" };
        self.rows.create_table(&format!("{prefix}{}", self.name))
    }
}

fn column(rng: &mut StdRng, name: String) -> Column {
    let data_type = types::data_type(rng);
    // `UInt8` dictionary codes can count few values only.
    let few = rng.random_bool(0.4) || matches!(&data_type, DataType::Dictionary(codes, _) if **codes == DataType::UInt8);
    let (nullable, tame) = (rng.random_bool(0.7), rng.random_bool(0.6));
    Column { name, data_type, nullable, few, tame, domain: None }
}

/// Random row count of a table: mostly some hundreds, sometimes none or few.
pub fn row_count(rng: &mut StdRng) -> usize {
    match rng.random_range(0..20) {
        0 => 0,
        1 | 2 => rng.random_range(1..4),
        3..=8 => rng.random_range(4..100),
        9..=18 => rng.random_range(100..600),
        _ => rng.random_range(600..4000),
    }
}

/// Random row count of a joined table, up to `most`.
pub fn row_count_of_joins(rng: &mut StdRng, most: usize) -> usize {
    let rows = match rng.random_range(0..100) {
        0..4 => 0,
        4..9 => 1,
        9..25 => rng.random_range(2..8),
        25..40 => 31,
        40..55 => 257,
        55..97 => rng.random_range(8..=most.clamp(8, 400)),
        _ => 5000,
    };
    rows.min(most)
}

/// Random row count of a table that little memory may not hold, up to `most`.
pub fn row_count_of_little_memory(rng: &mut StdRng, most: usize) -> usize {
    match rng.random_range(0..10) {
        0 => rng.random_range(0..=most.min(100)),
        _ => rng.random_range(most / 2..=most),
    }
}

pub fn schema(columns: &[Column]) -> SchemaRef {
    Arc::new(Schema::new(columns.iter().map(Column::field).collect::<Vec<_>>()))
}

/// Rows of a table: the batches of each partition.
#[derive(Debug, Clone)]
pub struct Rows {
    pub schema: SchemaRef,
    pub partitions: Vec<Vec<RecordBatch>>,
}

impl Rows {
    /// Random rows, in batches of random lengths.
    pub fn random(rng: &mut StdRng, columns: &[Column], pools: &Pools, rows: usize, partitions: usize) -> Rows {
        let schema = schema(columns);
        let mut first = 0;
        let mut batch = |rng: &mut StdRng, rows: usize, all_null: bool| {
            first += rows;
            batch(rng, columns, &schema, pools, first - rows..first, all_null)
        };
        let all_null = rng.random_bool(0.03);
        let partitions = (0..partitions)
            .map(|_| {
                let mut left = rows.div_ceil(partitions);
                let mut batches = Vec::new();
                while left > 0 || batches.is_empty() {
                    let take = if rng.random_bool(0.3) { left } else { rng.random_range(0..=left) };
                    batches.push(batch(rng, take, all_null));
                    left -= take;
                    if batches.len() == 6 {
                        batches.push(batch(rng, left, all_null));
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

    /// All rows as one batch of one partition.
    pub fn gathered(&self) -> Rows {
        let batches: Vec<&RecordBatch> = self.partitions.iter().flatten().collect();
        let batch = concat(&self.schema, &batches);
        Rows { schema: Arc::clone(&self.schema), partitions: vec![vec![batch]] }
    }

    /// A range of the rows, as one batch.
    pub fn slice(&self, offset: usize, len: usize) -> Rows {
        let batch = self.partitions[0][0].slice(offset, len);
        Rows { schema: Arc::clone(&self.schema), partitions: vec![vec![batch]] }
    }

    /// The rows without a range, as one batch.
    pub fn without(&self, offset: usize, len: usize) -> Rows {
        let batch = &self.partitions[0][0];
        let end = batch.num_rows() - offset - len;
        let kept = [batch.slice(0, offset), batch.slice(offset + len, end)];
        let batch = concat(&self.schema, &kept.each_ref());
        Rows { schema: Arc::clone(&self.schema), partitions: vec![vec![batch]] }
    }

    /// The rows with the given columns only.
    fn project(&self, columns: &[usize]) -> Rows {
        let project = |batch: &RecordBatch| batch.project(columns).unwrap();
        let partitions = self.partitions.iter().map(|batches| batches.iter().map(project).collect()).collect();
        Rows { schema: Arc::new(self.schema.project(columns).unwrap()), partitions }
    }

    /// SQL that creates the table with one partition.
    fn create_table(&self, name: &str) -> String {
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
            return format!("-- {name} without rows: {}", types.join(", "));
        }
        format!(
            "-- {}\nCREATE TABLE {name} AS SELECT {} FROM (VALUES\n{}\n)",
            types.join(", "),
            names.join(", "),
            values.join(",\n")
        )
    }
}

/// Concatenates batches. Dictionaries are rebuilt: together they may have more values than their
/// codes can count.
fn concat(schema: &SchemaRef, batches: &[&RecordBatch]) -> RecordBatch {
    let column = |index: usize| {
        let data_type = schema.field(index).data_type();
        let plain = |batch: &&RecordBatch| arrow::compute::cast(batch.column(index), types::value_type(data_type)).unwrap();
        let plain: Vec<ArrayRef> = batches.iter().map(plain).collect();
        let plain: Vec<&dyn Array> = plain.iter().map(AsRef::as_ref).collect();
        arrow::compute::cast(&arrow::compute::concat(&plain).unwrap(), data_type).unwrap()
    };
    RecordBatch::try_new(Arc::clone(schema), (0..schema.fields().len()).map(column).collect()).unwrap()
}

/// Batch of the rows with the given numbers, sliced out of longer arrays.
fn batch(
    rng: &mut StdRng,
    columns: &[Column],
    schema: &SchemaRef,
    pools: &Pools,
    rows: Range<usize>,
    all_null: bool,
) -> RecordBatch {
    let arrays: Vec<ArrayRef> = columns
        .iter()
        .map(|column| {
            let (before, after) = if rng.random_bool(0.5) { (rng.random_range(0..10), rng.random_range(0..3)) } else { (0, 0) };
            // Padding before the slice repeats the first row's number. The slice hides these rows.
            let numbers = std::iter::repeat_n(rows.start, before).chain(rows.start..rows.end + after);
            let array = if column.name == ID {
                let id = |row: usize| pools.id(row).cast_to(&column.data_type).unwrap();
                column.array_of(numbers.map(id).collect())
            } else {
                column.array(rng, pools, numbers, all_null)
            };
            array.slice(before, rows.len())
        })
        .collect();
    let options = RecordBatchOptions::new().with_row_count(Some(rows.len()));
    RecordBatch::try_new_with_options(Arc::clone(schema), arrays, &options).unwrap()
}
