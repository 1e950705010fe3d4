// SPDX-License-Identifier: Apache-2.0
//! `devicefusion-bench demo`: six queries with answers, plan placement and times.

use std::sync::Arc;
use std::time::Duration;

use datafusion::arrow::array::RecordBatch;
use datafusion::arrow::datatypes::SchemaRef;
use datafusion::arrow::util::pretty::pretty_format_batches_with_schema;
use datafusion::error::Result;
use datafusion::physical_plan::ExecutionPlan;
use indicatif::{ProgressBar, ProgressStyle};

use crate::answers;
use crate::data;
use crate::engine::{Engine, Setting, Source, cores};
use crate::measure::{Contender, Series, interleave};
use crate::report::{bold, device, dim, green, milliseconds, print_surroundings, red, surroundings};
use crate::tpch::{mentions, query};

#[derive(clap::Args)]
pub struct DemoArguments {
    #[command(flatten)]
    data: data::DataArguments,
    /// The device: auto, a driver such as opencl, #k or NAME-PART.
    #[arg(long, default_value = "auto")]
    device: String,
    /// Timed runs of each query after the first.
    #[arg(long, default_value_t = 3)]
    runs: usize,
    /// Settings of the device's session, such as device.profile=gpu.
    #[arg(long = "set", value_name = "KEY=VALUE")]
    settings: Vec<Setting>,
}

fn queries(scale: f64) -> Result<Vec<(&'static str, String)>> {
    Ok(vec![
        ("TPC-H Q6, forecasting revenue change", query(6, scale)?),
        ("TPC-H Q1, pricing summary report", query(1, scale)?),
        (
            "Late deliveries by ship mode",
            "SELECT l_shipmode, count(*) AS lines,\n       \
                    sum(CASE WHEN l_receiptdate > l_commitdate THEN 1 ELSE 0 END) AS late,\n       \
                    avg(l_extendedprice) FILTER (WHERE l_receiptdate > l_commitdate) AS avg_late_price\n\
             FROM lineitem\n\
             WHERE l_shipinstruct IN ('NONE', 'COLLECT COD')\n\
             GROUP BY l_shipmode\n\
             ORDER BY l_shipmode"
                .to_string(),
        ),
        (
            "Finished orders by priority",
            "SELECT o_orderpriority, count(*) AS orders, sum(o_totalprice) AS total,\n       \
                    min(o_orderdate) AS first, max(o_orderdate) AS last, stddev(o_totalprice) AS spread\n\
             FROM orders\n\
             WHERE o_orderstatus = 'F'\n\
             GROUP BY o_orderpriority\n\
             ORDER BY o_orderpriority"
                .to_string(),
        ),
        (
            "Best customers, one group each",
            "SELECT o_custkey, count(*) AS orders, sum(o_totalprice) AS total\n\
             FROM orders\n\
             GROUP BY o_custkey\n\
             HAVING count(*) >= 20\n\
             ORDER BY total DESC\n\
             LIMIT 5"
                .to_string(),
        ),
        (
            "Dearest undiscounted lines by air",
            "SELECT l_orderkey, l_linenumber, l_quantity, l_extendedprice * (1 + l_tax) AS charge\n\
             FROM lineitem\n\
             WHERE l_shipmode = 'AIR' AND l_discount = 0 AND l_quantity = 50 AND l_extendedprice > 100000\n\
             ORDER BY charge DESC, l_orderkey\n\
             LIMIT 5"
                .to_string(),
        ),
    ])
}

/// Returns whether every query ran, gave the answer of plain DataFusion and had no [fault].
///
/// [fault]: Series::fault
pub async fn run(arguments: DemoArguments) -> Result<bool> {
    let partitions = cores();
    let fast = Engine::device(&arguments.device, partitions, &arguments.settings).await?;
    let folder = data::run(&arguments.data)?;
    let plain = Engine::plain(partitions).await?;
    let queries = queries(arguments.data.scale)?;

    let all_sql = queries.iter().map(|(_, sql)| sql.as_str()).collect::<Vec<_>>().join("\n");
    let progress = spinner();
    for table in data::TABLES.into_iter().filter(|table| mentions(&all_sql, table)) {
        for (engine, storage) in [(&plain, "memory"), (&fast, "device memory")] {
            progress.set_message(format!("loading {table} into {storage}"));
            engine.register(table, &folder.join(format!("{table}.parquet"))).await?;
            engine.load(table, |column| mentions(&all_sql, column)).await?;
        }
    }
    progress.finish_and_clear();

    print_surroundings(&surroundings(partitions), &[device(&fast, None)]);
    println!("  data        TPC-H scale {} in {}, and the same tables resident", arguments.data.scale, folder.display());

    let mut good = true;
    for (index, (title, sql)) in queries.iter().enumerate() {
        println!("\n{} {}", bold(&format!("{}", index + 1)), bold(title));
        for line in sql.lines().filter(|line| !line.starts_with("--")) {
            println!("  {}", dim(line));
        }
        good &= show(&plain, &fast, sql, arguments.runs).await?;
    }
    println!(
        "\n{}",
        if good {
            green("All answers are those of plain DataFusion.")
        } else {
            red("Some queries failed, answered differently or compiled more than once.")
        }
    );
    Ok(good)
}

/// Runs one query on each engine and source. Prints answer, times and placement.
async fn show(plain: &Engine, fast: &Engine, sql: &str, runs: usize) -> Result<bool> {
    let contenders = [Source::Resident, Source::Parquet].map(|source| [plain, fast].map(|engine| Contender { engine, source }));
    let progress = spinner();
    progress.set_message(format!("running 2 × 2 × {} times", runs + 1));
    let series = interleave(contenders.as_flattened(), sql, runs, || progress.tick()).await;
    progress.finish_and_clear();

    let [plain_resident, fast_resident, plain_parquet, fast_parquet] = series.as_slice() else {
        return Ok(false);
    };
    let mut good = true;
    if let Ok(series) = fast_resident {
        let text = table(series.first.plan.schema(), &series.first.batches)?;
        text.lines().for_each(|line| println!("  {line}"));
    }
    for (storage, plain, fast) in [("resident", plain_resident, fast_resident), ("Parquet", plain_parquet, fast_parquet)] {
        match (plain, fast) {
            (Ok(plain), Ok(fast)) => good &= print_times(storage, plain, fast)?,
            (Err(error), _) => {
                println!("  {storage:<9} {}", red(&format!("plain DataFusion: {}", error.strip_backtrace())));
                good = false;
            }
            (_, Err(error)) => {
                println!("  {storage:<9} {}", red(&error.strip_backtrace()));
                good = false;
            }
        }
    }
    Ok(good)
}

/// An answer with its header, which an answer without rows has too.
fn table(schema: SchemaRef, batches: &[RecordBatch]) -> Result<String> {
    Ok(pretty_format_batches_with_schema(schema, batches)?.to_string())
}

fn print_times(storage: &str, plain: &Series, fast: &Series) -> Result<bool> {
    let times = plain.median() / fast.median();
    println!(
        "  {storage:<9} {:>6} ms   plain DataFusion {:>6} ms   {}   {}",
        milliseconds(fast.median()),
        milliseconds(plain.median()),
        bold(&format!("{times:.1} × as fast")),
        dim(&format!(
            "(first run {} ms, {} ms of it compiling)",
            milliseconds(fast.first.seconds),
            milliseconds(fast.first.device_metrics().compile.as_secs_f64())
        )),
    );
    println!("            {}", route(&fast.first.plan));
    for host in fast.first.placement().host_operators {
        println!("            {}", dim(&format!("host: {}: {}", host.operator, host.reason)));
    }
    let difference = answers::difference(&plain.first.batches, &fast.first.batches)?;
    if let Some(difference) = &difference {
        println!("            {}", red(&format!("differs from plain DataFusion: {difference}")));
    }
    let fault = fast.fault();
    if let Some(fault) = &fault {
        println!("            {}", red(fault));
    }
    Ok(difference.is_none() && fault.is_none())
}

/// The operators from scan to answer, grouped by device and host.
fn route(plan: &Arc<dyn ExecutionPlan>) -> String {
    let mut steps = Vec::new();
    walk(plan, &mut steps);
    let mut groups: Vec<(bool, Vec<String>)> = Vec::new();
    for (on_device, name) in steps {
        match groups.last_mut() {
            Some((same, names)) if *same == on_device => names.push(name),
            _ => groups.push((on_device, vec![name])),
        }
    }
    let groups = groups.into_iter().map(|(on_device, names)| {
        let names = names.join(" → ");
        if on_device { green(&format!("device [{names}]")) } else { format!("host [{names}]") }
    });
    groups.collect::<Vec<_>>().join(" → ")
}

fn walk(plan: &Arc<dyn ExecutionPlan>, steps: &mut Vec<(bool, String)>) {
    for child in plan.children() {
        walk(child, steps);
    }
    let name = plan.name();
    if name != "CooperativeExec" {
        steps.push((name.starts_with("Device"), short_name(name)));
    }
}

/// Name of an operator for people: `aggregate` for `DeviceAggregateExec`.
fn short_name(operator: &str) -> String {
    if operator == "DeviceToHostExec" {
        return "download".to_string();
    }
    // `SortExec(TopK)`
    let operator = operator.split('(').next().unwrap_or(operator);
    let name = operator.strip_prefix("Device").unwrap_or(operator);
    let name = name.strip_suffix("Exec").unwrap_or(name);
    let mut short = String::new();
    for letter in name.chars() {
        if letter.is_uppercase() && !short.is_empty() {
            short.push(' ');
        }
        short.extend(letter.to_lowercase());
    }
    short
}

fn spinner() -> ProgressBar {
    let progress = ProgressBar::new_spinner();
    if let Ok(style) = ProgressStyle::with_template("  {spinner} {msg} {elapsed}") {
        progress.set_style(style);
    }
    progress.enable_steady_tick(Duration::from_millis(100));
    progress
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use datafusion::arrow::datatypes::{DataType, Field, Schema};

    use super::{short_name, table};

    #[test]
    fn an_answer_without_rows_has_a_header() {
        let schema = Arc::new(Schema::new(vec![Field::new("orders", DataType::Int64, false)]));
        assert!(table(schema, &[]).unwrap().contains("| orders |"));
    }

    #[test]
    fn operators_have_short_names() {
        assert_eq!(short_name("DeviceAggregateExec"), "aggregate");
        assert_eq!(short_name("SortPreservingMergeExec"), "sort preserving merge");
        assert_eq!(short_name("SortExec(TopK)"), "sort");
    }
}
