// SPDX-License-Identifier: Apache-2.0
//! `devicefusion-bench load-memory`: host memory of loads, each in a process of its own.

mod meter;
mod way;

use std::path::PathBuf;

use clap::ValueEnum;
use datafusion::error::Result;
use indicatif::ProgressBar;
use serde_json::{Value, json};

use crate::data;
use crate::engine::Engine;
use crate::process::{SessionArguments, value_name_of};
use crate::report::{self, Table, milliseconds, red, size};

use self::way::Way;

pub use self::way::LoadArguments;

#[derive(clap::Args)]
pub struct LoadMemoryArguments {
    #[command(flatten)]
    data: data::DataArguments,
    /// Ways to load lineitem [default: all].
    #[arg(long, value_delimiter = ',')]
    ways: Vec<Way>,
    /// Seconds from the end of a load until memory counts as settled: free device memory of a CPU
    /// returns to the system after some seconds.
    #[arg(long, default_value_t = 12)]
    settle: u64,
    #[command(flatten)]
    session: SessionArguments,
    /// File for the full report.
    #[arg(long)]
    json: Option<PathBuf>,
}

/// Returns whether every load succeeded.
///
/// `run` takes the arguments of a command line, and returns the JSON that the command prints.
pub async fn run(arguments: LoadMemoryArguments, run: impl AsyncFn(&[String]) -> Result<Value>) -> Result<bool> {
    let LoadMemoryArguments { data: data_arguments, mut ways, settle, session, json } = arguments;
    if ways.is_empty() {
        ways = Way::value_variants().to_vec();
    }
    let device = Engine::device(&session.device, session.partitions, &session.settings).await?;
    let device_report = report::device(&device, None);
    drop(device);
    let file = data::run(&data_arguments)?.join("lineitem.parquet");

    let progress = ProgressBar::new_spinner();
    let mut loads = Vec::new();
    for way in ways {
        progress.set_message(value_name_of(&way));
        progress.tick();
        let arguments = LoadArguments { way, file: file.clone(), settle, session: session.clone() }.command_line();
        loads.push((value_name_of(&way), run(&arguments).await.map_err(|error| error.strip_backtrace())));
    }
    progress.finish_and_clear();

    let surroundings = report::surroundings(session.partitions);
    report::print_surroundings(&surroundings, std::slice::from_ref(&device_report));
    println!("  loads       lineitem of TPC-H scale {}, without memory of a GPU; settled after {settle} s", data_arguments.scale);
    print(&loads);
    if let Some(path) = &json {
        let entry = |(way, load): &(String, Result<Value, String>)| match load {
            Ok(load) => load.clone(),
            Err(error) => json!({ "way": way, "error": error }),
        };
        let results = loads.iter().map(entry).collect::<Vec<_>>();
        let report = json!({ "suite": "load-memory", "scale": data_arguments.scale, "settle_seconds": settle, "surroundings": surroundings, "device": device_report, "results": results });
        report::write_json(path, &report)?;
    }
    Ok(loads.iter().all(|(_, load)| load.is_ok()))
}

fn print(loads: &[(String, Result<Value, String>)]) {
    let mut table = Table::new(["way", "rows", "load ms", "base", "peak", "settled", "B/row at the peak", "B/row settled"]);
    let mut notes = Vec::new();
    for (way, load) in loads {
        let cells = match load {
            Err(error) => {
                notes.push(red(&format!("{way}: {error}")));
                ["failed", "–", "–", "–", "–", "–", "–"].map(str::to_string)
            }
            Ok(load) => {
                let number = |field: &str| load[field].as_f64().unwrap_or(f64::NAN);
                [
                    number("rows").to_string(),
                    milliseconds(number("seconds")),
                    size(number("base_bytes")),
                    size(number("peak_bytes")),
                    size(number("settled_bytes")),
                    format!("{:.0}", number("peak_bytes_per_row")),
                    format!("{:.0}", number("settled_bytes_per_row")),
                ]
            }
        };
        let [rows, seconds, base, peak, settled, row_at_peak, row_settled] = cells;
        table.push([way.clone(), rows, seconds, base, peak, settled, row_at_peak, row_settled]);
    }
    print!("{}", table.render());
    for note in notes {
        println!("  {note}");
    }
}
