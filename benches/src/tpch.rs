// SPDX-License-Identifier: Apache-2.0
//! `devicefusion-bench tpch`: TPC-H queries over resident tables and from Parquet.

use std::path::PathBuf;

use datafusion::error::{DataFusionError, Result};
use indicatif::ProgressBar;
use serde_json::json;

use crate::compare::{self, Device, Target};
use crate::data;
use crate::engine::{Engine, Setting, Source, cores};
use crate::report;
use crate::{bandwidth, compare::compare};

#[derive(clap::Args)]
pub struct TpchArguments {
    #[command(flatten)]
    data: data::DataArguments,
    /// Queries, by number.
    #[arg(long, value_delimiter = ',', default_value = "1,6")]
    queries: Vec<usize>,
    #[command(flatten)]
    common: CommonArguments,
    /// Storage of the tables: resident, parquet.
    #[arg(long, value_delimiter = ',', default_value = "resident,parquet")]
    tables: Vec<Source>,
    /// Leaves plain DataFusion out, whose tables may not fit the host's memory: answers are not
    /// compared.
    #[arg(long)]
    without_plain: bool,
}

/// Arguments of all comparisons.
#[derive(clap::Args)]
#[group(skip)]
pub struct CommonArguments {
    /// Devices beside plain DataFusion, which always runs: auto, a driver such as opencl, #k,
    /// NAME-PART, or none. An absent device is left out, with a note.
    #[arg(long, value_delimiter = ',', default_value = "auto")]
    pub devices: Vec<String>,
    /// Timed runs of each query after the first; of `cold`, new queries of each kind; of
    /// `first-runs`, processes of each statement.
    #[arg(long, default_value_t = 5)]
    pub runs: usize,
    /// Target partitions of both sides [default: the number of cores].
    #[arg(long)]
    partitions: Option<usize>,
    /// Settings of the device's session, such as device.profile=gpu.
    #[arg(long = "set", value_name = "KEY=VALUE")]
    pub settings: Vec<Setting>,
    /// File for the full report.
    #[arg(long)]
    pub json: Option<PathBuf>,
}

impl CommonArguments {
    /// Target partitions.
    pub fn partitions(&self) -> usize {
        self.partitions.unwrap_or_else(cores)
    }

    /// Opens the devices and measures their copy bandwidth. Returns no device for `none` alone.
    pub async fn open_devices(&self) -> Result<Vec<Device>> {
        let mut devices = Vec::new();
        for selector in self.devices.iter().filter(|selector| selector.as_str() != "none") {
            match Engine::device(selector, self.partitions(), &self.settings).await {
                Ok(engine) => {
                    let copy = match engine.context() {
                        Some(context) => {
                            bandwidth::measure(context).await.map_err(|error| DataFusionError::External(Box::new(error)))?
                        }
                        None => f64::NAN,
                    };
                    devices.push(Device { engine, copy_bytes_per_second: copy });
                }
                Err(error) => eprintln!("{selector} is left out: {}", error.strip_backtrace()),
            }
        }
        if devices.is_empty() && self.devices.iter().any(|selector| selector != "none") {
            return Err(DataFusionError::Configuration(format!(
                "no device to compare with: --devices {}",
                self.devices.join(",")
            )));
        }
        Ok(devices)
    }
}

/// The SQL of query `number` for a scale factor.
pub fn query(number: usize, scale: f64) -> Result<String> {
    const QUERIES: [&str; ALL] = [
        include_str!("../queries/q1.sql"),
        include_str!("../queries/q2.sql"),
        include_str!("../queries/q3.sql"),
        include_str!("../queries/q4.sql"),
        include_str!("../queries/q5.sql"),
        include_str!("../queries/q6.sql"),
        include_str!("../queries/q7.sql"),
        include_str!("../queries/q8.sql"),
        include_str!("../queries/q9.sql"),
        include_str!("../queries/q10.sql"),
        include_str!("../queries/q11.sql"),
        include_str!("../queries/q12.sql"),
        include_str!("../queries/q13.sql"),
        include_str!("../queries/q14.sql"),
        include_str!("../queries/q15.sql"),
        include_str!("../queries/q16.sql"),
        include_str!("../queries/q17.sql"),
        include_str!("../queries/q18.sql"),
        include_str!("../queries/q19.sql"),
        include_str!("../queries/q20.sql"),
        include_str!("../queries/q21.sql"),
        include_str!("../queries/q22.sql"),
    ];
    let sql = number.checked_sub(1).and_then(|index| QUERIES.get(index));
    let sql = sql.ok_or_else(|| DataFusionError::Configuration(format!("--queries {number}: TPC-H has the queries 1 to 22")))?;
    Ok(if number == 11 { sql.replace("0.0001", &format!("{:.10}", 0.0001 / scale)) } else { (*sql).to_string() })
}

/// Whether a query contains a name as a whole identifier.
pub fn mentions(sql: &str, name: &str) -> bool {
    sql.split(|letter: char| !letter.is_alphanumeric() && letter != '_').any(|token| token == name)
}

/// Number of TPC-H queries.
pub const ALL: usize = 22;

fn target(query: usize, source: Source, device: &Device) -> Option<Target> {
    match (query, source, device.is_cpu()) {
        (6, Source::Resident, true) => Some(Target::Ratio(0.25)),
        (1, Source::Resident, true) => Some(Target::Ratio(0.4)),
        (1 | 6, Source::Parquet, _) => Some(Target::Ratio(1.0)),
        (6, Source::Resident, false) => Some(Target::Bound(70.0)),
        (1, Source::Resident, false) => Some(Target::Bound(40.0)),
        (_, Source::Resident, true) => Some(Target::Ratio(1.2)),
        _ => None,
    }
}

/// Target of all queries together.
fn total_target(source: Source, device: &Device, scale: f64) -> Option<Target> {
    match (source, device.is_cpu()) {
        (Source::Resident, false) if scale == 30.0 => Some(Target::Seconds(0.4)),
        (Source::Resident, true) => Some(Target::Ratio(0.6)),
        (Source::Parquet, true) => Some(Target::Ratio(1.0)),
        _ => None,
    }
}

/// Returns whether every query is [good](compare::QueryOutcome::is_good).
pub async fn run(arguments: TpchArguments) -> Result<bool> {
    let TpchArguments { data: data_arguments, queries, common, tables, without_plain } = arguments;
    let statements =
        queries.iter().map(|&number| Ok((number, query(number, data_arguments.scale)?))).collect::<Result<Vec<_>>>()?;
    let devices = common.open_devices().await?;
    let folder = data::run(&data_arguments)?;
    let plain = match without_plain {
        true => None,
        false => Some(Engine::plain(common.partitions()).await?),
    };

    let progress = ProgressBar::new_spinner();
    let all_sql = statements.iter().map(|(_, sql)| sql.as_str()).collect::<Vec<_>>().join("\n");
    for table in data::TABLES.into_iter().filter(|table| mentions(&all_sql, table)) {
        for engine in plain.iter().chain(devices.iter().map(|device| &device.engine)) {
            progress.set_message(format!("loading {table} for {}", engine.name));
            progress.tick();
            engine.register(table, &folder.join(format!("{table}.parquet"))).await?;
            if tables.contains(&Source::Resident) {
                engine.load(table, |column| mentions(&all_sql, column)).await?;
            }
        }
    }

    let surroundings = report::surroundings(common.partitions());
    let device_reports =
        devices.iter().map(|device| report::device(&device.engine, Some(device.copy_bytes_per_second))).collect::<Vec<_>>();
    let mut outcomes = Vec::new();
    for (number, sql) in &statements {
        let label = format!("Q{number}");
        for &source in &tables {
            progress.set_message(format!("{label} {}", source.name()));
            let target = |device: &Device| target(*number, source, device);
            outcomes
                .extend(compare(plain.as_ref(), &devices, (&label, sql), source, common.runs, target, || progress.tick()).await);
        }
        // After each query, so that an interrupted run leaves what it has.
        if let Some(path) = &common.json {
            let results = outcomes.iter().map(compare::QueryOutcome::json).collect::<Vec<_>>();
            let report = json!({ "suite": "tpch", "scale": data_arguments.scale, "runs": common.runs, "surroundings": surroundings, "devices": device_reports, "results": results });
            report::write_json(path, &report)?;
        }
    }
    progress.finish_and_clear();

    report::print_surroundings(&surroundings, &device_reports);
    println!("  TPC-H       scale {}; medians of {} interleaved runs after a first one", data_arguments.scale, common.runs);
    let all = devices.iter().flat_map(|device| tables.iter().map(move |source| (*source, device)));
    let totals = all.filter(|_| queries.len() == ALL);
    let totals = totals.filter_map(|(source, device)| {
        compare::total(&outcomes, source, device, total_target(source, device, data_arguments.scale))
    });
    compare::print(&outcomes, &totals.collect::<Vec<_>>());
    Ok(outcomes.iter().all(compare::QueryOutcome::is_good))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fraction_of_query_11_follows_the_scale() {
        assert!(query(11, 10.0).unwrap().contains("* 0.0000100000"));
        assert!(query(23, 1.0).is_err());
        assert!(query(0, 1.0).is_err());
    }

    #[test]
    fn names_are_whole_identifiers() {
        let sql = query(13, 1.0).unwrap();
        assert!(mentions(&sql, "orders") && mentions(&sql, "customer"));
        assert!(!mentions(&sql, "part") && !mentions("partsupp", "part"));
    }

    #[tokio::test]
    async fn every_query_plans() {
        let folder = std::env::temp_dir().join(format!("devicefusion-bench-plans-{}", std::process::id()));
        data::run(&data::DataArguments { scale: 0.001, data: Some(folder.clone()) }).unwrap();
        let plain = Engine::plain(2).await.unwrap();
        for table in data::TABLES {
            plain.register(table, &folder.join(format!("{table}.parquet"))).await.unwrap();
        }
        for number in 1..=22 {
            let sql = query(number, 0.001).unwrap();
            plain.execute(Source::Parquet, &sql, true).await.unwrap_or_else(|error| panic!("Q{number}: {error}"));
        }
        std::fs::remove_dir_all(folder).unwrap();
    }
}
