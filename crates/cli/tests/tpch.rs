// SPDX-License-Identifier: Apache-2.0
//! All 22 queries of TPC-H over Parquet files at scale factor 0.01, by `devicefusion --strict -c`.
//! The results equal those without a device.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::fs::{File, read_to_string};
use std::path::Path;
use std::process::Command;

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
const QUERIES: usize = 22;

fn write(folder: &Path, table: &str, batches: impl Iterator<Item = Result<RecordBatch, ArrowError>>) {
    let mut batches = batches.map(Result::unwrap).peekable();
    let schema = batches.peek().unwrap().schema();
    let file = File::create(folder.join(table).with_extension("parquet")).unwrap();
    let mut writer = ArrowWriter::try_new(file, schema, None).unwrap();
    batches.for_each(|batch| writer.write(&batch).unwrap());
    writer.close().unwrap();
}

/// A query from `sql-tests`.
fn query(number: usize) -> String {
    let path = format!("{}/../../sql-tests/tpch/q{number}.slt.part", env!("CARGO_MANIFEST_DIR"));
    let records = read_to_string(path).unwrap();
    let from = records.find("\nquery ").expect("a query") + 1;
    let (_, query) = records[from..].split_once('\n').unwrap();
    query.split_once("\n----").expect("its answer").0.into()
}

/// The shell's output for each query.
fn answers(folder: &Path, device: &[&str], compile_options: &str) -> Vec<String> {
    let mut command = Command::new(env!("CARGO_BIN_EXE_devicefusion"));
    command.env("DATAFUSION_DEVICE_COMPILE_OPTIONS", compile_options);
    command.env("HOME", env!("CARGO_TARGET_TMPDIR")).args(device).args(["-q", "--format", "csv", "-c"]);
    for table in ["lineitem", "orders", "partsupp", "part", "customer", "supplier", "nation", "region"] {
        command.arg(format!("CREATE EXTERNAL TABLE {table} STORED AS PARQUET LOCATION '{}/{table}.parquet'", folder.display()));
    }
    for number in 1..=QUERIES {
        command.arg(format!("SELECT 'Q{number}' AS query")).arg(query(number));
    }
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let printed = String::from_utf8(output.stdout).unwrap();
    printed.split("query\nQ").skip(1).map(Into::into).collect()
}

#[test]
fn every_query_of_tpch_runs_strict() {
    let folder = tempfile::tempdir().unwrap();
    let to = folder.path();
    write(to, "lineitem", LineItemArrow::new(LineItemGenerator::new(SCALE, 1, 1)));
    write(to, "orders", OrderArrow::new(OrderGenerator::new(SCALE, 1, 1)));
    write(to, "partsupp", PartSuppArrow::new(PartSuppGenerator::new(SCALE, 1, 1)));
    write(to, "part", PartArrow::new(PartGenerator::new(SCALE, 1, 1)));
    write(to, "customer", CustomerArrow::new(CustomerGenerator::new(SCALE, 1, 1)));
    write(to, "supplier", SupplierArrow::new(SupplierGenerator::new(SCALE, 1, 1)));
    write(to, "nation", NationArrow::new(NationGenerator::new(SCALE, 1, 1)));
    write(to, "region", RegionArrow::new(RegionGenerator::new(SCALE, 1, 1)));
    let selector = device::testing::config().unwrap().selector.to_string();
    // Each kernel runs once, so optimization does not pay. Only OpenCL has the option.
    let options = if selector.starts_with("opencl") { "-cl-opt-disable" } else { "" };
    let device = ["--device", &selector, "--strict"];
    let (on_device, plain) = (answers(to, &device, options), answers(to, &["--device", "none"], ""));
    assert_eq!((on_device.len(), plain.len()), (QUERIES, QUERIES));
    for (on_device, plain) in on_device.iter().zip(&plain) {
        assert_eq!(on_device, plain);
    }
    assert!(plain.iter().filter(|answer| answer.lines().count() > 2).count() > QUERIES / 2, "{plain:?}");
}
