// SPDX-License-Identifier: Apache-2.0
//! `devicefusion profile`. The device is `DEVICEFUSION_TEST_DEVICE`.

use std::io::Write;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use device::testing::{self, PARTS};

use crate::data::{QUERIES, query, table_statements, write_tables};

const SQL: &str = "SELECT i % 5 AS k, count(*) FROM t GROUP BY k";
const TABLE: &str = "CREATE TABLE t AS SELECT value AS i FROM generate_series(1, 100000);";

/// Runs `devicefusion profile` in a folder.
fn run(folder: &Path, arguments: &[&str], input: &str) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_devicefusion"));
    let selector = testing::config().unwrap().selector.to_string();
    command.arg("profile").args(arguments).args(["--device", &selector]).current_dir(folder);
    command.env("HOME", env!("CARGO_TARGET_TMPDIR"));
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    // A refusal reads none of it.
    _ = child.stdin.take().unwrap().write_all(input.as_bytes());
    child.wait_with_output().unwrap()
}

/// Profiles a query in a folder, over the tables of the setup.
fn profile(folder: &Path, setup: &str, sql: &str, output: &str) -> Output {
    std::fs::write(folder.join("setup.sql"), setup).unwrap();
    run(folder, &["-f", "setup.sql", sql, "-o", output], "")
}

#[test]
fn the_name_of_the_file_is_the_format() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("setup.sql"), TABLE).unwrap();
    std::fs::write(folder.path().join("q.sql"), format!("-- The query.\n{SQL};\n")).unwrap();
    for (name, begin, has) in [
        ("q.html", "<!DOCTYPE html>", "DeviceAggregateExec"),
        ("q.json", "{\"sql\":", "DeviceAggregateExec"),
        ("q.pg.json", "[\n", "\"Node Type\": \"DeviceAggregateExec\""),
        ("q.trace.json", "{", "\"cat\":\"kernels\""),
    ] {
        let output = run(folder.path(), &["--query-file", "q.sql", "-f", "setup.sql", "-o", name], "");
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
        (SQL, "q.txt", ".trace.json"),
        ("-", "q.html", "the query is empty"),
        ("SELECT 1; SELECT 2", "q.html", "single"),
    ] {
        let run = profile(folder.path(), TABLE, sql, output);
        let said = String::from_utf8(run.stderr).unwrap();
        assert!(!run.status.success() && said.contains(expected), "{sql}: {said}");
        assert!(!folder.path().join(output).exists(), "{sql}");
    }
    let host = run(folder.path(), &["SELECT md5(column1) FROM VALUES ('ab')", "--strict", "-o", "q.html"], "");
    let said = String::from_utf8(host.stderr).unwrap();
    assert!(!host.status.success() && said.contains("device.fallback"), "{said}");
    assert!(!folder.path().join("q.html").exists());
}

#[test]
fn failures_of_statements_before_the_query_have_lines() {
    let folder = tempfile::tempdir().unwrap();
    let setup = "CREATE TABLE t AS VALUES (1);\n\n-- a\nSELECT nope\nFROM t;\nSELEC 1;\n\\nope\n";
    let output = profile(folder.path(), setup, "SELECT * FROM t", "q.html");
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(!output.status.success() && !folder.path().join("q.html").exists(), "{said}");
    for line in [4, 6, 7] {
        assert!(said.contains(&format!("\nsetup.sql:{line}: Error: ")), "{line}: {said}");
    }
    assert!(said.contains("no profile: statements of setup.sql failed\n"), "{said}");
}

/// A failed run has a profile until then.
#[test]
fn a_query_that_fails_leaves_its_profile() {
    let folder = tempfile::tempdir().unwrap();
    let output = profile(folder.path(), TABLE, "SELECT sum(100 / (i - 70000)) FROM t", "q.json");
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(!output.status.success() && said.contains("failed in ") && said.contains("Error: "), "{said}");
    let text = std::fs::read_to_string(folder.path().join("q.json")).unwrap();
    assert!(text.contains("\"error\":") && text.contains("Divide by zero"), "{text}");
}

/// The rows of statements before the query are not in the profile.
#[test]
fn a_profile_goes_from_standard_input_to_standard_output() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::create_dir(folder.path().join("data")).unwrap();
    std::fs::write(folder.path().join("data/numbers.csv"), "a,b\n1,2\n3,4\n").unwrap();
    let table = "CREATE EXTERNAL TABLE n STORED AS CSV LOCATION 'numbers.csv' OPTIONS ('format.has_header' 'true');";
    std::fs::write(folder.path().join("table.sql"), table).unwrap();
    std::fs::write(folder.path().join("view.sql"), "CREATE VIEW v AS SELECT b FROM n;").unwrap();
    let files = ["-f", "table.sql", "-f", "view.sql", "-p", "data"];
    let arguments = [&files[..], &["-", "-o", "-", "--warm", "2", "--strict", "-m", "1g"]].concat();
    let output = run(folder.path(), &arguments, "SELECT sum(b) AS s\nFROM v;\n");
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{said}");
    for part in ["row(s) fetched", "warm run 1 of 2: ", "warm run 2 of 2: ", "1 row in ", "; wrote to standard output"] {
        assert!(said.contains(part), "{part}: {said}");
    }
    let page = String::from_utf8(output.stdout).unwrap();
    assert!(page.starts_with("<!DOCTYPE html>") && page.contains("SELECT sum(b) AS s"), "{page}");
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
