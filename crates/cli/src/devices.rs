// SPDX-License-Identifier: Apache-2.0
//! `devicefusion devices`: every device of every driver in an aligned table.

use std::fmt::Write;

use device::{DeviceEntry, DeviceInfo};

const COLUMNS: [&str; 7] = ["#", "NAME", "DRIVER", "KIND", "MEMORY", "UNITS", "STATE"];

/// The table, with a line for each device and each absent driver.
pub fn table(entries: &[DeviceEntry]) -> String {
    let mut rows = vec![COLUMNS.map(str::to_string)];
    rows.extend(entries.iter().map(row));
    let widths: Vec<usize> =
        (0..COLUMNS.len()).map(|column| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0)).collect();

    let mut table = String::new();
    for row in &rows {
        let mut line = String::new();
        for (cell, width) in row.iter().zip(&widths) {
            let _ = write!(line, "{cell:<width$}  ");
        }
        table.push_str(line.trim_end());
        table.push('\n');
    }
    if !entries.iter().any(|entry| entry.info.is_some() && entry.problem.is_none()) {
        table.push_str("\nNo device can be used; queries run on the host.\n");
        table.push_str("An OpenCL driver for CPUs is the Debian package pocl-opencl-icd.\n");
    }
    table
}

fn row(entry: &DeviceEntry) -> [String; 7] {
    let state = entry.problem.clone().unwrap_or_else(|| "usable".to_string());
    match &entry.info {
        None => {
            let none = || "-".to_string();
            [none(), none(), entry.driver.to_string(), none(), none(), none(), state]
        }
        Some(info) => [
            format!("#{}", info.index),
            info.name.clone(),
            entry.driver.to_string(),
            kind(info).to_string(),
            memory(info.memory_bytes),
            info.compute_units.to_string(),
            state,
        ],
    }
}

fn kind(info: &DeviceInfo) -> &'static str {
    match info.kind {
        device::DeviceKind::Cpu => "cpu",
        device::DeviceKind::Gpu => "gpu",
        device::DeviceKind::Accelerator => "accelerator",
    }
}

fn memory(bytes: u64) -> String {
    let tenths = (u128::from(bytes) * 10) >> 30;
    format!("{}.{} GiB", tenths / 10, tenths % 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_in_gibibytes() {
        assert_eq!(memory(0), "0.0 GiB");
        assert_eq!(memory(3 << 29), "1.5 GiB");
    }

    #[test]
    fn an_absent_driver_is_a_line_and_a_hint() {
        let entry = DeviceEntry {
            info: None,
            driver: device::DriverKind::Cuda,
            problem: Some("libcuda.so.1 is not installed".to_string()),
        };
        let table = table(&[entry]);
        assert!(table.contains("cuda"), "{table}");
        assert!(table.contains("libcuda.so.1 is not installed"), "{table}");
        assert!(table.contains("No device can be used"), "{table}");
    }
}
