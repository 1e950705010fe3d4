// SPDX-License-Identifier: Apache-2.0
//! `devicefusion-bench micro`: a sum with many groups, and filters of three selectivities.

use std::sync::Arc;

use datafusion::arrow::array::{ArrayRef, Float64Array, Int64Array};
use datafusion::arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use datafusion::arrow::record_batch::RecordBatch;
use datafusion::error::Result;
use indicatif::ProgressBar;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use serde_json::json;

use crate::compare::{self, Device, QueryOutcome, Target, compare};
use crate::engine::{Engine, Source};
use crate::report;
use crate::tpch::CommonArguments;

/// DataFusion's batch size, which suits a `MemTable` best.
const BATCH_ROWS: usize = 8192;

#[derive(clap::Args)]
pub struct MicroArguments {
    /// Rows of each table.
    #[arg(long, default_value_t = 10_000_000)]
    rows: usize,
    /// Distinct keys of the grouped sum.
    #[arg(long, default_value_t = 1_000_000)]
    groups: i64,
    #[command(flatten)]
    common: CommonArguments,
}

/// Returns whether every query is [good](QueryOutcome::is_good).
pub async fn run(arguments: MicroArguments) -> Result<bool> {
    let MicroArguments { rows, groups, common } = arguments;
    let partitions = common.partitions();
    let devices = common.open_devices().await?;
    let plain = Engine::plain(partitions).await?;
    let progress = ProgressBar::new_spinner();

    progress.set_message("making tables");
    progress.tick();
    let mut random = StdRng::seed_from_u64(1);
    let schema = schema(&[("k", DataType::Int64), ("v", DataType::Int64)]);
    let batches = batches(&schema, rows, |length| {
        let keys = Int64Array::from_iter_values((0..length).map(|_| random.random_range(0..groups).wrapping_mul(SPREAD)));
        let values = Int64Array::from_iter_values((0..length).map(|_| random.random_range(-1_000_000..1_000_000)));
        vec![Arc::new(keys), Arc::new(values)]
    })?;
    put(&plain, &devices, "pairs", &schema, batches, partitions).await?;

    let schema =
        self::schema(&[("a", DataType::Int64), ("b", DataType::Int64), ("c", DataType::Float64), ("d", DataType::Int64)]);
    let batches = self::batches(&schema, rows, |length| {
        let a = Int64Array::from_iter_values((0..length).map(|_| random.random_range(0..i64::MAX)));
        let b = Int64Array::from_iter_values((0..length).map(|_| random.random()));
        let c = Float64Array::from_iter_values((0..length).map(|_| random.random()));
        let d = Int64Array::from_iter_values((0..length).map(|_| random.random()));
        vec![Arc::new(a), Arc::new(b), Arc::new(c), Arc::new(d)]
    })?;
    put(&plain, &devices, "wide", &schema, batches, partitions).await?;

    let mut queries = vec![(format!("grouped sum, {groups} groups"), "SELECT k, sum(v) FROM pairs GROUP BY k".to_string(), 0.5)];
    for percent in [1, 15, 60] {
        let bound = i64::MAX / 100 * percent;
        queries.push((format!("filter, {percent} % kept"), format!("SELECT a, b, c, d FROM wide WHERE a < {bound}"), 0.9));
    }
    let mut outcomes = Vec::new();
    for (label, sql, ratio) in &queries {
        progress.set_message(label.clone());
        let target = |device: &Device| device.is_cpu().then_some(Target::Ratio(*ratio));
        outcomes.extend(
            compare(Some(&plain), &devices, (label, sql), Source::Resident, common.runs, target, || progress.tick()).await,
        );
    }
    progress.finish_and_clear();

    let surroundings = report::surroundings(partitions);
    let device_reports =
        devices.iter().map(|device| report::device(&device.engine, Some(device.copy_bytes_per_second))).collect::<Vec<_>>();
    report::print_surroundings(&surroundings, &device_reports);
    println!(
        "  tables      {rows} rows; answers fetched as record batches; medians of {} interleaved runs after a first one",
        common.runs
    );
    compare::print(&outcomes, &[]);
    if let Some(path) = &common.json {
        let results = outcomes.iter().map(QueryOutcome::json).collect::<Vec<_>>();
        let report = json!({ "suite": "micro", "rows": rows, "groups": groups, "runs": common.runs, "surroundings": surroundings, "devices": device_reports, "results": results });
        report::write_json(path, &report)?;
    }
    Ok(outcomes.iter().all(QueryOutcome::is_good))
}

/// Multiplier of keys: odd, so they stay distinct, and large, so they fill 64 bits.
///
/// Such keys exclude a table that is indexed by key.
const SPREAD: i64 = 0x9e37_79b9_7f4a_7c15_u64 as i64;

/// A schema of non-nullable fields.
pub fn schema(fields: &[(&str, DataType)]) -> SchemaRef {
    Arc::new(Schema::new(fields.iter().map(|(name, data_type)| Field::new(*name, data_type.clone(), false)).collect::<Vec<_>>()))
}

fn batches(schema: &SchemaRef, rows: usize, mut columns: impl FnMut(usize) -> Vec<ArrayRef>) -> Result<Vec<RecordBatch>> {
    let starts = (0..rows).step_by(BATCH_ROWS);
    starts.map(|start| Ok(RecordBatch::try_new(Arc::clone(schema), columns(BATCH_ROWS.min(rows - start)))?)).collect()
}

async fn put(
    plain: &Engine,
    devices: &[Device],
    table: &str,
    schema: &SchemaRef,
    batches: Vec<RecordBatch>,
    partitions: usize,
) -> Result<()> {
    let length = batches.len().div_ceil(partitions).max(1);
    let parts = batches.chunks(length).map(<[RecordBatch]>::to_vec).collect::<Vec<_>>();
    for engine in devices.iter().map(|device| &device.engine).chain([plain]) {
        engine.put(table, Arc::clone(schema), parts.clone()).await?;
    }
    Ok(())
}
