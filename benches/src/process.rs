// SPDX-License-Identifier: Apache-2.0
//! Measurements in processes of their own, by hidden commands that print JSON.

use std::path::Path;
use std::process::Command;

use clap::ValueEnum;
use datafusion::common::exec_err;
use datafusion::error::{DataFusionError, Result};
use serde_json::Value;

use crate::engine::{Setting, cores};

/// Variables with the folders of kernel caches: the drivers', and that of the user's caches, where
/// `device.cache_dir = auto` is. Drivers read theirs at load time.
const CACHE_FOLDERS: [&str; 3] = ["POCL_CACHE_DIR", "CUDA_CACHE_PATH", "XDG_CACHE_HOME"];

/// The sessions of a process.
#[derive(Debug, Clone, clap::Args)]
#[group(skip)]
pub struct SessionArguments {
    /// The device: auto, a driver such as opencl, #k or NAME-PART.
    #[arg(long, default_value = "auto")]
    pub device: String,
    /// Target partitions.
    #[arg(long, default_value_t = cores())]
    pub partitions: usize,
    /// Settings of the device's session, such as device.profile=gpu.
    #[arg(long = "set", value_name = "KEY=VALUE")]
    pub settings: Vec<Setting>,
}

impl SessionArguments {
    /// The command line of these arguments, which clap parses to the same.
    pub fn command_line(&self) -> Vec<String> {
        let partitions = self.partitions.to_string();
        let mut line = Vec::from(["--device", &self.device, "--partitions", &partitions].map(str::to_string));
        for Setting { key, value } in &self.settings {
            line.extend(["--set".to_string(), format!("{key}={value}")]);
        }
        line
    }
}

/// The name of a value, as clap parses it.
pub fn value_name_of(value: &impl ValueEnum) -> String {
    value.to_possible_value().map_or_else(String::new, |value| value.get_name().to_string())
}

/// Prints the JSON of a process.
pub fn print(json: &Value) -> Result<bool> {
    println!("{json}");
    Ok(true)
}

/// Runs this executable with `arguments` and empty kernel caches. Returns the JSON that it prints.
///
/// # Errors
/// If the process does not start, fails, or prints something else. The message has its errors.
pub async fn apart(arguments: &[String]) -> Result<Value> {
    apart_in(tempfile::tempdir()?.path(), arguments).await
}

/// The same with the kernel caches in a folder.
///
/// # Errors
/// As [`apart`].
pub async fn apart_in(caches: &Path, arguments: &[String]) -> Result<Value> {
    let variables = CACHE_FOLDERS.map(|variable| (variable, caches));
    let output = Command::new(std::env::current_exe()?).args(arguments).envs(variables).output()?;
    if !output.status.success() {
        return exec_err!("{}: {}", output.status, String::from_utf8_lossy(&output.stderr).trim());
    }
    serde_json::from_slice(&output.stdout).map_err(|error| DataFusionError::External(Box::new(error)))
}
