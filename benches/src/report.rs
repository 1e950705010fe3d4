// SPDX-License-Identifier: Apache-2.0
//! Output of the harness: aligned tables, the environment of a measurement, JSON.

use std::fmt::Write;
use std::io::IsTerminal;
use std::path::Path;
use std::process::Command;

use chrono::Utc;
use datafusion::error::{DataFusionError, Result};
use serde_json::{Value, json};

use crate::engine::{Engine, cores};

/// A table for the terminal. Columns with a number are aligned to the right.
pub struct Table {
    rows: Vec<Vec<String>>,
}

impl Table {
    /// A table of these headings.
    pub fn new<const N: usize>(headings: [&str; N]) -> Self {
        Self { rows: vec![headings.map(str::to_string).to_vec()] }
    }

    /// Appends a row.
    pub fn push<const N: usize>(&mut self, cells: [String; N]) {
        self.rows.push(cells.to_vec());
    }

    /// The table as a string, a line per row, indented by two spaces.
    pub fn render(&self) -> String {
        let columns = self.rows.first().map_or(0, Vec::len);
        let width = |column: usize| self.rows.iter().map(|row| visible(&row[column])).max().unwrap_or(0);
        let numeric =
            |column: usize| self.rows.iter().skip(1).any(|row| row[column].starts_with(|first: char| first.is_ascii_digit()));
        let mut table = String::new();
        for (index, row) in self.rows.iter().enumerate() {
            let mut line = String::new();
            for (column, cell) in row.iter().enumerate().take(columns) {
                let pad = " ".repeat(width(column) - visible(cell));
                let (left, right) = if numeric(column) { (pad.as_str(), "") } else { ("", pad.as_str()) };
                let _ = write!(line, "  {left}{cell}{right}");
            }
            let line = line.trim_end();
            let _ = writeln!(table, "{}", if index == 0 { dim(line) } else { line.to_string() });
        }
        table
    }
}

/// Number of visible characters, without escape sequences.
fn visible(cell: &str) -> usize {
    let mut escaped = false;
    let takes_room = |letter: char| {
        let counts = !escaped && letter != '\x1b';
        escaped = (escaped && letter != 'm') || letter == '\x1b';
        counts
    };
    cell.chars().map(takes_room).filter(|counts| *counts).count()
}

/// Milliseconds with three significant digits.
pub fn milliseconds(seconds: f64) -> String {
    let value = seconds * 1000.0;
    match value {
        value if value.is_nan() => "–".to_string(),
        value if value >= 99.95 => format!("{value:.0}"),
        value if value >= 9.995 => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}

/// `12.3 GB`, in powers of ten.
pub fn size(bytes: f64) -> String {
    match bytes {
        bytes if bytes >= 1e9 => format!("{:.2} GB", bytes / 1e9),
        bytes if bytes >= 1e6 => format!("{:.1} MB", bytes / 1e6),
        _ => format!("{:.1} kB", bytes / 1e3),
    }
}

/// Bold, if the output is a terminal.
pub fn bold(text: &str) -> String {
    paint("1", text)
}

/// Dimmed, for secondary output.
pub fn dim(text: &str) -> String {
    paint("2", text)
}

/// Green, for device operators and success.
pub fn green(text: &str) -> String {
    paint("32", text)
}

/// Red, for failures.
pub fn red(text: &str) -> String {
    paint("31", text)
}

fn paint(code: &str, text: &str) -> String {
    let colour = std::io::stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none();
    if colour { format!("\x1b[{code}m{text}\x1b[0m") } else { text.to_string() }
}

/// A target, with a sign whether it was met.
pub fn target_cell(met: bool, target: &str) -> String {
    if met { green(&format!("{target} ✓")) } else { red(&format!("{target} ✗")) }
}

/// Environment of a run: date, commit, command, hardware and versions.
pub fn surroundings(partitions: usize) -> Value {
    json!({
        "date": Utc::now().format("%Y-%m-%d %H:%M UTC").to_string(),
        "commit": commit(),
        "command": std::env::args().enumerate().map(|(index, argument)| {
            if index == 0 { "devicefusion-bench".to_string() } else { argument }
        }).collect::<Vec<_>>().join(" "),
        "cpu": cpu_name(),
        "cores": cores(),
        "memory_bytes": host_memory(),
        "datafusion": datafusion::DATAFUSION_VERSION,
        "target_partitions": partitions,
    })
}

/// Prints the environment and the devices.
pub fn print_surroundings(surroundings: &Value, devices: &[Value]) {
    let text = |key: &str| surroundings[key].as_str().unwrap_or("?").to_string();
    println!("{}  {}  commit {}", bold(&text("command")), text("date"), text("commit"));
    println!(
        "  host        {}, {} cores, {}; DataFusion {} with {} target partitions",
        text("cpu"),
        surroundings["cores"],
        size(surroundings["memory_bytes"].as_f64().unwrap_or(0.0)),
        text("datafusion"),
        surroundings["target_partitions"],
    );
    for device in devices {
        let copy = device["copy_bytes_per_second"]
            .as_f64()
            .map(|bytes| format!(", copies {}/s read + written", size(bytes)))
            .unwrap_or_default();
        println!(
            "  {:<11} {} ({} {}), {} compute units, {}{copy}",
            device["selector"].as_str().unwrap_or("?"),
            device["name"].as_str().unwrap_or("?"),
            device["platform"].as_str().unwrap_or("?"),
            device["driver_version"].as_str().unwrap_or("?"),
            device["compute_units"],
            size(device["memory_bytes"].as_f64().unwrap_or(0.0)),
        );
    }
}

/// The entry of a device in the report.
pub fn device(engine: &Engine, copy_bytes_per_second: Option<f64>) -> Value {
    let Some(context) = engine.context() else {
        return Value::Null;
    };
    let info = context.info();
    json!({
        "selector": engine.name,
        "name": info.name,
        "driver": info.driver.to_string(),
        "platform": info.platform,
        "driver_version": info.driver_version,
        "compute_units": info.compute_units,
        "memory_bytes": info.memory_bytes,
        "copy_bytes_per_second": copy_bytes_per_second,
    })
}

/// Writes the JSON report.
pub fn write_json(path: &Path, report: &Value) -> Result<()> {
    let text = serde_json::to_string_pretty(report).map_err(|error| DataFusionError::External(Box::new(error)))?;
    std::fs::write(path, text + "\n")?;
    Ok(())
}

/// The commit of the build. Machines with binaries only have it in `DEVICEFUSION_COMMIT`.
fn commit() -> String {
    let git = |arguments: &[&str]| {
        let output = Command::new("git").args(arguments).output().ok().filter(|output| output.status.success())?;
        Some(String::from_utf8_lossy(&output.stdout).trim().to_string())
    };
    std::env::var("DEVICEFUSION_COMMIT").ok().filter(|commit| !commit.is_empty()).unwrap_or_else(|| {
        let changed = git(&["status", "--porcelain", "--untracked-files=no"]).is_some_and(|files| !files.is_empty());
        let commit = git(&["rev-parse", "--short", "HEAD"]).unwrap_or_else(|| "unknown".to_string());
        if changed { commit + "+changes" } else { commit }
    })
}

fn cpu_name() -> String {
    value_of("/proc/cpuinfo", "model name").unwrap_or_else(|| std::env::consts::ARCH.to_string())
}

fn host_memory() -> u64 {
    bytes_of("/proc/meminfo", "MemTotal").unwrap_or_default()
}

/// Bytes of a line such as `VmRSS: 12 kB`, in a file of `/proc`.
pub fn bytes_of(file: &str, key: &str) -> Option<u64> {
    let kilobytes = value_of(file, key)?.split(' ').next()?.parse::<u64>().ok()?;
    Some(kilobytes * 1024)
}

fn value_of(file: &str, key: &str) -> Option<String> {
    let text = std::fs::read_to_string(file).ok()?;
    let line = text.lines().find(|line| line.starts_with(key))?;
    Some(line.split_once(':')?.1.trim().to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_aligned_to_the_right() {
        let mut table = Table::new(["query", "ms"]);
        table.push(["Q1".to_string(), "3".to_string()]);
        table.push(["Q10".to_string(), "120".to_string()]);
        assert_eq!(visible("\x1b[32m≤ 1 ✓\x1b[0m"), 5);
        assert_eq!(table.render(), "  query   ms\n  Q1       3\n  Q10    120\n");
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn memory_of_the_process_is_found() {
        assert!(bytes_of("/proc/self/status", "VmRSS").unwrap() > 1 << 20);
        assert_eq!(bytes_of("/proc/self/status", "Name"), None);
    }

    #[test]
    fn milliseconds_keep_three_digits() {
        assert_eq!(milliseconds(0.0012345), "1.23");
        assert_eq!(milliseconds(0.012345), "12.3");
        assert_eq!(milliseconds(1.2345), "1234");
        assert_eq!(milliseconds(f64::NAN), "–");
    }
}
