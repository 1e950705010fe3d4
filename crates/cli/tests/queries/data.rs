// SPDX-License-Identifier: Apache-2.0
//! TPC-H's tables as Parquet files, and its queries.

use std::fs::{File, read_to_string};
use std::path::Path;

use datafusion::arrow::array::RecordBatch;
use datafusion::arrow::error::ArrowError;
use parquet::arrow::ArrowWriter;
use tpchgen::generators::{
    CustomerGenerator, LineItemGenerator, NationGenerator, OrderGenerator, PartGenerator, PartSuppGenerator, RegionGenerator,
    SupplierGenerator,
};
use tpchgen_arrow::{
    CustomerArrow, LineItemArrow, NationArrow, OrderArrow, PartArrow, PartSuppArrow, RegionArrow, SupplierArrow,
};

const SCALE: f64 = 0.01;
pub const QUERIES: usize = 22;

fn write(folder: &Path, table: &str, batches: impl Iterator<Item = Result<RecordBatch, ArrowError>>) {
    let mut batches = batches.map(Result::unwrap).peekable();
    let schema = batches.peek().unwrap().schema();
    let file = File::create(folder.join(table).with_extension("parquet")).unwrap();
    let mut writer = ArrowWriter::try_new(file, schema, None).unwrap();
    batches.for_each(|batch| writer.write(&batch).unwrap());
    writer.close().unwrap();
}

/// A query from `sql-tests`.
pub fn query(number: usize) -> String {
    let path = format!("{}/../../sql-tests/tpch/q{number}.slt.part", env!("CARGO_MANIFEST_DIR"));
    let records = read_to_string(path).unwrap();
    let from = records.find("\nquery ").expect("a query") + 1;
    let (_, query) = records[from..].split_once('\n').unwrap();
    query.split_once("\n----").expect("its answer").0.into()
}

/// Writes all tables into a folder.
pub fn write_tables(to: &Path) {
    write(to, "lineitem", LineItemArrow::new(LineItemGenerator::new(SCALE, 1, 1)));
    write(to, "orders", OrderArrow::new(OrderGenerator::new(SCALE, 1, 1)));
    write(to, "partsupp", PartSuppArrow::new(PartSuppGenerator::new(SCALE, 1, 1)));
    write(to, "part", PartArrow::new(PartGenerator::new(SCALE, 1, 1)));
    write(to, "customer", CustomerArrow::new(CustomerGenerator::new(SCALE, 1, 1)));
    write(to, "supplier", SupplierArrow::new(SupplierGenerator::new(SCALE, 1, 1)));
    write(to, "nation", NationArrow::new(NationGenerator::new(SCALE, 1, 1)));
    write(to, "region", RegionArrow::new(RegionGenerator::new(SCALE, 1, 1)));
}

/// Statements that make the files the tables.
pub fn table_statements(folder: &Path) -> impl Iterator<Item = String> {
    ["lineitem", "orders", "partsupp", "part", "customer", "supplier", "nation", "region"]
        .into_iter()
        .map(|table| format!("CREATE EXTERNAL TABLE {table} STORED AS PARQUET LOCATION '{}/{table}.parquet'", folder.display()))
}
