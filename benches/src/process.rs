// SPDX-License-Identifier: Apache-2.0
//! Measurements in processes of their own, by hidden commands that print JSON.

use std::path::{Path, PathBuf};
use std::process::Command;

use clap::ValueEnum;
use datafusion::common::exec_err;
use datafusion::error::{DataFusionError, Result};
use datafusion::prelude::{SessionConfig, SessionContext};
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

    /// A session with the device and the settings, and a folder's `.parquet` files as tables. It is
    /// plain DataFusion's if `plain`.
    ///
    /// # Errors
    /// For settings and files that are refused.
    pub async fn open(&self, folder: &Path, plain: bool) -> Result<SessionContext> {
        let config = SessionConfig::new().with_target_partitions(self.partitions);
        let session = match plain {
            true => SessionContext::new_with_config(config),
            false => devicefusion::session_with(config, Default::default())?,
        };
        if !plain {
            let selector = Setting { key: "device.selector".to_string(), value: self.device.clone() };
            for Setting { key, value } in std::iter::once(&selector).chain(&self.settings) {
                session.sql(&format!("SET {key} = '{}'", value.replace('\'', "''"))).await?;
            }
        }
        for file in files(folder, "parquet")? {
            let table = file.file_stem().unwrap_or_default().to_string_lossy().into_owned();
            session.register_parquet(table, file.display().to_string(), Default::default()).await?;
        }
        Ok(session)
    }
}

/// The files of a folder with an extension, in the order of their names.
pub fn files(folder: &Path, extension: &str) -> Result<Vec<PathBuf>> {
    let files = std::fs::read_dir(folder)?.map(|entry| Ok(entry?.path())).collect::<Result<Vec<PathBuf>>>()?;
    let is_kind = |file: &PathBuf| file.extension().is_some_and(|of_file| of_file == extension);
    let mut files: Vec<PathBuf> = files.into_iter().filter(is_kind).collect();
    files.sort();
    Ok(files)
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
