// SPDX-License-Identifier: Apache-2.0
//! Programs on the CUDA emulator, which `docs/emulator.md` explains.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::{Error, Result};

/// The variable that makes a missing NVRTC a failure.
const REQUIRED_VARIABLE: &str = "DEVICEFUSION_REQUIRE_NVRTC";

fn workspace() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Whether NVRTC is there, for the emulator: `NVRTC_PATH` names it, or `scripts/nvrtc.sh` has
/// installed it. A test without it says so and passes.
///
/// # Errors
/// `Config` if it is missing and `DEVICEFUSION_REQUIRE_NVRTC` is set, as in CI.
///
/// # Examples
/// ```
/// if !device::testing::has_nvrtc()? {
///     eprintln!("skipped: no NVRTC; scripts/nvrtc.sh installs it");
/// }
/// # Ok::<(), device::Error>(())
/// ```
pub fn has_nvrtc() -> Result<bool> {
    if std::env::var_os("NVRTC_PATH").is_some() || workspace().join("target/nvrtc/version").exists() {
        return Ok(true);
    }
    match std::env::var_os(REQUIRED_VARIABLE) {
        Some(value) => Err(Error::Config {
            setting: REQUIRED_VARIABLE,
            value: value.to_string_lossy().into_owned(),
            reason: "there is no NVRTC; scripts/nvrtc.sh installs it".to_owned(),
        }),
        None => Ok(false),
    }
}

/// A command that runs `program` on the emulator: it takes the program's arguments, and its device
/// is `cuda`. Tests of the program take that device too. The command builds the emulator first, if
/// need be. `None` without NVRTC.
///
/// # Errors
/// As [`has_nvrtc`].
///
/// # Examples
/// ```
/// let command = device::testing::emulated("true")?;
/// assert_eq!(command.is_some(), device::testing::has_nvrtc()?);
/// # Ok::<(), device::Error>(())
/// ```
pub fn emulated(program: impl AsRef<OsStr>) -> Result<Option<Command>> {
    if !has_nvrtc()? {
        return Ok(None);
    }
    let mut command = Command::new("sh");
    command.args(["-c", "eval \"$(\"$0\")\" && exec \"$@\""]).arg(workspace().join("scripts/cuda-emulator.sh")).arg(program);
    command.env(super::DEVICE_VARIABLE, super::EMULATED);
    // Programs of the user's own caches are none of the tests'.
    command.env("XDG_CACHE_HOME", workspace().join("target/emulator/cache"));
    Ok(Some(command))
}
