// SPDX-License-Identifier: Apache-2.0
//! The Python interpreter with the peers installed.

use std::path::Path;
use std::process::Command;

const REQUIRED: &str = "DEVICEFUSION_REQUIRE_PYTHON";

/// A Python command in the folder of the tests; `None` if the peers cannot be installed.
pub fn interpreter() -> Option<Command> {
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR"));
    let script = manifest.join("../../scripts/python-peers.sh");
    let why = match Command::new(&script).output() {
        Ok(output) if output.status.success() => {
            let python = String::from_utf8(output.stdout).unwrap();
            let mut command = Command::new(python.trim_end());
            // No files beside the sources, no user packages.
            command.args(["-B", "-s", "-X", "faulthandler"]).current_dir(manifest.join("tests/python")).env_remove("PYTHONPATH");
            return Some(command);
        }
        Ok(output) => String::from_utf8_lossy(&output.stderr).into_owned(),
        Err(error) => error.to_string(),
    };
    let required = std::env::var(REQUIRED).is_ok_and(|value| value == "1");
    assert!(!required, "no pyarrow, but {REQUIRED} = 1: {}: {why}", script.display());
    eprintln!("skipped: no pyarrow; {}: {why}", script.display());
    None
}

/// The output of a command, which must succeed.
#[track_caller]
pub fn run(command: &mut Command) -> String {
    let output = command.output().unwrap();
    let said = [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).concat();
    // Many failures often have one cause, so only the first are printed.
    let lines: Vec<&str> = said.lines().collect();
    let (first, last) = (lines.iter().take(150), lines.iter().skip(150.max(lines.len().saturating_sub(5))));
    let shown = || first.chain(last).copied().collect::<Vec<_>>().join("\n");
    assert!(output.status.success(), "{command:?}: {}\n{}", output.status, shown());
    said
}
