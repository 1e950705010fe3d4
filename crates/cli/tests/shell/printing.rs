// SPDX-License-Identifier: Apache-2.0
//! Formats of output, and where it goes.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::{serve, shell};

#[test]
fn formats_are_those_of_datafusion_cli() {
    for (format, expected) in [
        ("csv", "a,b\n1,x\n"),
        ("tsv", "a\tb\n1\tx\n"),
        ("json", "[{\"a\":1,\"b\":\"x\"}]\n"),
        ("nd-json", "{\"a\":1,\"b\":\"x\"}\n"),
        ("table", "+---+---+\n| a | b |\n+---+---+\n| 1 | x |\n+---+---+\n"),
    ] {
        let run = shell(&["-q", "--format", format, "-c", "SELECT 1 AS a, 'x' AS b"]);
        assert!(run.success, "{}", run.stderr);
        assert_eq!(run.stdout, expected, "{format}");
    }
    let run = shell(&["--format", "xml", "-c", "SELECT 1"]);
    assert!(!run.success && run.stderr.contains("nd-json"), "{}", run.stderr);
}

#[test]
fn empty_results_and_nulls_have_a_place_in_every_format() {
    const EMPTY: &str = "SELECT 1 AS a, 'x' AS b WHERE false";
    const NULLS: &str = "SELECT NULL AS a, 'x' AS b";
    for (format, empty, nulls) in [
        ("csv", "a,b\n", "a,b\n,x\n"),
        ("tsv", "a\tb\n", "a\tb\n\tx\n"),
        ("json", "[]\n", "[{\"a\":null,\"b\":\"x\"}]\n"),
        ("nd-json", "", "{\"a\":null,\"b\":\"x\"}\n"),
        (
            "table",
            "+---+---+\n| a | b |\n+---+---+\n+---+---+\n",
            "+------+---+\n| a    | b |\n+------+---+\n| NULL | x |\n+------+---+\n",
        ),
    ] {
        let run = shell(&["-q", "--format", format, "-c", EMPTY, NULLS]);
        assert!(run.success, "{}", run.stderr);
        assert_eq!(run.stdout, format!("{empty}{nulls}"), "{format}");
    }
    // Statements without columns print nothing.
    let run = shell(&["-q", "--format", "json", "-c", "CREATE VIEW v AS SELECT 1", "SET device.cost = 'always'"]);
    assert_eq!((run.success, run.stdout.as_str()), (true, ""), "{}", run.stderr);
}

#[test]
fn printing_is_chosen_by_commands() {
    let run = shell(&[
        "-c",
        "\\timing off",
        "\\x on",
        "SELECT 1 AS one, 'b' AS letter",
        "\\x",
        "\\pset maxrows 1",
        "SELECT * FROM generate_series(1, 3)",
    ]);
    assert!(run.success, "{}", run.stderr);
    assert!(run.stdout.contains("-[ RECORD 1 ]-\none    | 1\nletter | b\n") && !run.stdout.contains("Elapsed"), "{}", run.stdout);
    assert!(run.stdout.contains("3 row(s) fetched. (First 1 displayed."), "{}", run.stdout);
    for command in
        ["\\x maybe", "\\timing 3", "\\pset maxrows some", "\\pset format xml", "\\pset nothing at all", "\\pset maxrows"]
    {
        assert!(!shell(&["-c", command]).success, "{command}");
    }
}

/// Rows alone are on standard output, so that programs can read it. Lists are text in CSV.
#[test]
fn formats_for_programs_have_rows_only() {
    let run = shell(&["--device", "none", "--format", "csv", "-c", "SELECT [1, NULL] AS l, 'a' AS s"]);
    assert_eq!(run.stdout, "l,s\n\"[1, NULL]\",a\n", "{run:?}");
    assert!(run.stderr.contains("1 row(s) fetched."), "{run:?}");
    let run = shell(&["--device", "none", "--format", "json", "-c", "SELECT 1 AS a"]);
    assert_eq!(run.stdout, "[{\"a\":1}]\n", "{run:?}");
}

#[test]
fn completions_and_the_manual_page_are_written() {
    for (arguments, expected) in [
        (&["completions", "bash"][..], "_devicefusion()"),
        (&["completions", "zsh"], "#compdef devicefusion"),
        (&["completions", "fish"], "complete -c devicefusion"),
        (&["man"], ".TH devicefusion"),
    ] {
        let run = shell(arguments);
        assert!(run.success && run.stdout.contains(expected), "{arguments:?}: {}{}", run.stdout, run.stderr);
    }
}

#[test]
fn plans_are_not_padded() {
    let run = shell(&["-q", "-c", "EXPLAIN FORMAT INDENT SELECT 1"]);
    assert_eq!(
        run.stdout,
        "logical_plan\nProjection: Int64(1)\n  EmptyRelation: rows=1\n\nphysical_plan\nProjectionExec: expr=[1 as Int64(1)]\n  PlaceholderRowExec\n",
        "{}",
        run.stderr
    );
}

#[test]
fn only_tables_are_cut() {
    const SQL: &str = "SELECT value FROM generate_series(1, 20000)";
    for (format, lines) in [("csv", 20_001), ("tsv", 20_001), ("nd-json", 20_000)] {
        let run = shell(&["-q", "--format", format, "-c", SQL]);
        assert_eq!(run.stdout.lines().filter(|line| !line.is_empty()).count(), lines, "{format}");
    }
    assert!(shell(&["-q", "-c", SQL]).stdout.lines().count() < 100);
}

#[test]
fn a_long_statement_has_no_progress_line_without_a_terminal() {
    // A line would come after a second.
    let wait = Duration::from_millis(1500);
    let address = serve("a,b\n1,2\n3,4\n", wait);
    let begun = Instant::now();
    let sum = format!("SELECT sum(b) AS s FROM 'http://{address}/t.csv'");
    let run = shell(&["--device", "none", "--format", "csv", "-c", &sum]);
    // The plan reads the file for its columns, and the run for its rows.
    assert!(begun.elapsed() > 2 * wait, "{:?}", begun.elapsed());
    assert!(run.success && run.stdout == "s\n6\n", "{} {}", run.stdout, run.stderr);
    assert!(run.stderr.contains("1 row(s) fetched."), "{}", run.stderr);
    assert!(!run.stderr.contains(" · ") && !run.stderr.contains('\r'), "{:?}", run.stderr);
}

#[test]
fn a_reader_that_goes_ends_the_shell_without_a_panic() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_devicefusion"));
    command.args([
        "--device",
        "none",
        "-q",
        "--maxrows",
        "inf",
        "--format",
        "csv",
        "-c",
        "SELECT * FROM generate_series(1, 1000000)",
    ]);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!((line.as_str(), String::from_utf8(output.stderr).unwrap().as_str()), ("value\n", ""));
}

/// As in `devicefusion … 2>&1 | true`. A panic would give another exit code.
#[test]
fn readers_that_have_gone_end_the_shell_without_a_panic() {
    let commands = ["\\h", "\\h select", "\\h sum", "\\?", "\\timing", "\\pset", "\\object_store_profiling summary"];
    for statement in ["SELECT nope", "SELECT 1"].into_iter().chain(commands) {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let mut command = Command::new(env!("CARGO_BIN_EXE_devicefusion"));
        command.env("HOME", env!("CARGO_TARGET_TMPDIR")).args(["--device", "none", "-c", statement]);
        let status = command.stdout(writer.try_clone().unwrap()).stderr(writer).status().unwrap();
        assert_eq!(status.code(), Some(1), "{statement}");
    }
}
