// SPDX-License-Identifier: Apache-2.0
//! `devicefusion profile`. The device is `DEVICEFUSION_TEST_DEVICE`.

use std::path::Path;
use std::process::{Command, Output};

use device::testing::{self, PARTS};

use crate::data::{QUERIES, query, table_statements, write_tables};

const SQL: &str = "SELECT i % 5 AS k, count(*) FROM t GROUP BY k";
const TABLE: &str = "CREATE TABLE t AS SELECT value AS i FROM generate_series(1, 100000);";

/// Profiles a query in a folder, over the tables of the setup.
fn profile(folder: &Path, setup: &str, sql: &str, output: &str) -> Output {
    let file = folder.join("setup.sql");
    std::fs::write(&file, setup).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_devicefusion"));
    let selector = testing::config().unwrap().selector.to_string();
    command.args(["profile", sql, "--device", &selector, "-f"]).arg(file).arg("-o").arg(folder.join(output));
    command.env("HOME", env!("CARGO_TARGET_TMPDIR")).output().unwrap()
}

#[test]
fn the_name_of_the_file_is_the_format() {
    let folder = tempfile::tempdir().unwrap();
    for (name, begin, has) in [
        ("q.html", "<!DOCTYPE html>", "DeviceAggregateExec"),
        ("q.json", "{\"sql\":", "DeviceAggregateExec"),
        ("q.pg.json", "[\n", "\"Node Type\": \"DeviceAggregateExec\""),
        ("q.trace.json", "{", "\"cat\":\"kernels\""),
    ] {
        let output = profile(folder.path(), TABLE, SQL, name);
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.success() && said.contains("5 rows in ") && said.contains(name), "{said}");
        let text = std::fs::read_to_string(folder.path().join(name)).unwrap();
        assert!(text.starts_with(begin) && text.contains(has), "{name}: {text}");
    }
}

#[test]
fn failures_are_told_and_write_no_file() {
    let folder = tempfile::tempdir().unwrap();
    for (sql, output, expected) in [
        ("SELECT nothing FROM t", "q.html", "nothing"),
        (SQL, "nowhere/q.html", "cannot write"),
        ("SELECT 1; SELECT 2", "q.html", "single"),
    ] {
        let run = profile(folder.path(), TABLE, sql, output);
        let said = String::from_utf8(run.stderr).unwrap();
        assert!(!run.status.success() && said.contains(expected), "{sql}: {said}");
        assert!(!folder.path().join(output).exists(), "{sql}");
    }
}

/// A real browser renders profiles without an error, and shows an operator's kernel at a click.
#[test]
fn a_browser_shows_profiles_of_tpch() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let browser = Command::new(root.join("scripts/browser.sh")).output().unwrap();
    if !browser.status.success() {
        let said = String::from_utf8_lossy(&browser.stderr);
        let required = std::env::var("DEVICEFUSION_REQUIRE_BROWSER").is_ok_and(|value| value == "1");
        assert!(!required, "DEVICEFUSION_REQUIRE_BROWSER = 1, but {said}");
        eprintln!("skipped: {said}");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    write_tables(folder.path());
    let setup: String = table_statements(folder.path()).map(|statement| statement + ";\n").collect();
    let all = testing::parts().unwrap().len() == PARTS;
    let pages: Vec<String> = (1..=QUERIES)
        .filter(|number| all || [3, 16].contains(number))
        .map(|number| {
            let page = format!("q{number}.html");
            let output = profile(folder.path(), &setup, &query(number), &page);
            assert!(output.status.success(), "Q{number}: {}", String::from_utf8_lossy(&output.stderr));
            page
        })
        .collect();

    let modules = String::from_utf8(browser.stdout).unwrap();
    let mut look = Command::new("node");
    look.env("CHROMIUM", std::env::var("CHROMIUM").unwrap_or_else(|_| "chromium".to_owned()));
    look.arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/queries/browser/profiles.mjs"));
    let look = look.arg(modules.trim()).arg(folder.path()).args(&pages).output().unwrap();
    let said = String::from_utf8_lossy(&look.stdout);
    assert!(look.status.success(), "{said}\n{}", String::from_utf8_lossy(&look.stderr));
    assert_eq!(said.lines().filter(|line| line.ends_with(": shown")).count(), pages.len(), "{said}");
}
