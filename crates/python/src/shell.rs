// SPDX-License-Identifier: Apache-2.0
//! The SQL shell, for `python -m devicefusion`.

use std::ffi::OsString;
use std::process::ExitCode;

use pyo3::prelude::*;

/// Runs the shell with arguments, of which the first is the name of the program. Returns the exit
/// code.
#[pyfunction]
pub(crate) fn shell(py: Python<'_>, arguments: Vec<OsString>) -> u8 {
    // `ExitCode` cannot be read, and the shell has these two.
    u8::from(py.detach(|| devicefusion_cli::shell(arguments)) != ExitCode::SUCCESS)
}
