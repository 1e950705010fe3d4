// SPDX-License-Identifier: Apache-2.0
//! The shell's arguments, output and exit status. The device is `DEVICEFUSION_TEST_DEVICE`.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod devices;
mod printing;
mod settings;

use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::process::{Command, Stdio};
use std::time::Duration;

/// The output and status of a run.
#[derive(Debug)]
struct Run {
    success: bool,
    stdout: String,
    stderr: String,
}

fn shell(arguments: &[&str]) -> Run {
    shell_with_input(arguments, "")
}

fn shell_with_input(arguments: &[&str], input: &str) -> Run {
    let mut command = Command::new(env!("CARGO_BIN_EXE_devicefusion"));
    let selector = device::testing::config().unwrap().selector.to_string();
    run(command.args(arguments).env("DATAFUSION_DEVICE_SELECTOR", selector), input)
}

fn shell_with_variable(name: &str, value: &str, arguments: &[&str]) -> Run {
    run(Command::new(env!("CARGO_BIN_EXE_devicefusion")).args(arguments).env(name, value), "")
}

fn run(command: &mut Command, input: &str) -> Run {
    let mut child = command
        // Without startup files and settings of the user.
        .env("HOME", env!("CARGO_TARGET_TMPDIR"))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    Run {
        success: output.status.success(),
        stdout: String::from_utf8(output.stdout).unwrap(),
        stderr: String::from_utf8(output.stderr).unwrap(),
    }
}

fn file(content: &str) -> tempfile::NamedTempFile {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(content.as_bytes()).unwrap();
    file
}

/// A query that every device and the host support, with its result.
const SUM: [&str; 5] = ["-q", "--format", "csv", "-c", "SELECT sum(value) AS s FROM generate_series(1, 20000)"];
const SUM_IS: &str = "s\n200010000\n";

const CSV: [&str; 3] = ["-q", "--format", "csv"];

#[track_caller]
fn check(statement: &str, expected: &str) {
    let run = shell(&[&CSV[..], &["-c", statement]].concat());
    assert!(run.success, "{}", run.stderr);
    assert_eq!(run.stdout, expected);
    assert_eq!(run.stderr, "", "quiet means quiet");
}

#[test]
fn command_prints_its_answer() {
    check("SELECT 1 + 1 AS two", "two\n2\n");
}

#[test]
fn query_runs_on_the_device() {
    let sql = "SELECT value % 2 AS odd, sum(value) AS total FROM generate_series(1, 100000) GROUP BY odd ORDER BY total";
    let run = shell(&["--format", "csv", "-c", "SET device.cost = 'always'", &format!("EXPLAIN {sql}"), sql]);
    assert!(run.success, "{}", run.stderr);
    assert!(run.stderr.starts_with("Device #"), "{}", run.stderr);
    assert!(run.stdout.contains("Device"), "{}", run.stdout);
    assert!(run.stdout.contains("0,2500050000"), "{}", run.stdout);
}

#[test]
fn strict_runs_supported_queries() {
    let run =
        shell(&[&CSV[..], &["--strict", "-c", "SELECT sum(value) AS s FROM generate_series(1, 1000) WHERE value > 10"]].concat());
    assert!(run.success, "{}", run.stderr);
    assert_eq!(run.stdout, "s\n500445\n");
}

#[test]
fn strict_refuses_queries_with_host_operators() {
    for explain in ["", "EXPLAIN ", "EXPLAIN VERBOSE ", "EXPLAIN FORMAT INDENT ", "EXPLAIN ANALYZE "] {
        let run = shell(&["--strict", "-c", &format!("{explain}SELECT md5(column1) FROM VALUES ('ab')")]);
        assert!(!run.success);
        assert!(run.stderr.contains("device.fallback"), "{}", run.stderr);
    }
    assert!(shell(&["--strict", "-c", "EXPLAIN FORMAT INDENT CREATE TABLE t AS SELECT 1"]).success);
}

#[test]
fn failing_command_stops_with_failure() {
    let run = shell(&[&CSV[..], &["-c", "SELECT nope", "SELECT 1"]].concat());
    assert!(!run.success);
    assert!(run.stderr.contains("nope"), "{}", run.stderr);
    assert_eq!(run.stdout, "");
}

#[test]
fn malformed_sql_is_a_failure() {
    assert!(!shell(&["-c", "SELEC 1"]).success);
}

#[test]
fn failing_statement_of_a_file_is_a_failure_and_the_rest_runs() {
    let script =
        file("#!/usr/bin/env devicefusion\n-- first;\nSELECT 1 AS a;\nSELECT nope;\nSELECT 'x;\ny' AS b;\nSELECT 3 AS c");
    let run = shell(&[&CSV[..], &["-f", script.path().to_str().unwrap()]].concat());
    assert!(!run.success);
    assert!(run.stderr.contains("nope"), "{}", run.stderr);
    assert_eq!(run.stdout, "a\n1\nb\n\"x;\ny\"\nc\n3\n");
}

#[test]
fn file_without_failures_succeeds() {
    let script = file("CREATE TABLE t AS VALUES (1), (2);\nSELECT count(*) AS n FROM t;\n");
    let run = shell(&[&CSV[..], &["-f", script.path().to_str().unwrap()]].concat());
    assert!(run.success, "{}", run.stderr);
    assert_eq!(run.stdout, "n\n2\n");
}

#[test]
fn standard_input_works_as_a_file() {
    let run = shell_with_input(&CSV, "CREATE TABLE t AS VALUES (1);\n\\d t\nSELECT * FROM t;\n");
    assert!(run.success, "{}", run.stderr);
    assert!(run.stdout.contains("column1"), "{}", run.stdout);
    assert!(!shell_with_input(&CSV, "SELECT nope;\nSELECT 1;\n").success);
    assert!(!shell_with_input(&CSV, "\\nope\n").success);
    assert!(shell_with_input(&CSV, "\\q\nSELECT nope;\n").success);
}

#[test]
fn files_are_queried_by_name() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("t.csv"), "a,b\n1,2\n3,4\n").unwrap();
    let run = shell(&[&CSV[..], &["-p", folder.path().to_str().unwrap(), "-c", "SELECT sum(b) AS s FROM 't.csv'"]].concat());
    assert!(run.success, "{}", run.stderr);
    assert_eq!(run.stdout, "s\n6\n");
}

#[test]
fn resident_table_is_made_filled_and_replaced() {
    let run = shell(
        &[
            &CSV[..],
            &[
                "-c",
                "CREATE TABLE device.t AS SELECT value AS i FROM generate_series(1, 1000)",
                "INSERT INTO device.t SELECT value FROM generate_series(1, 1000)",
                "SELECT count(*) AS n, sum(i) AS s FROM device.t",
                "CREATE TABLE IF NOT EXISTS device.t AS SELECT 1 AS i",
                "CREATE OR REPLACE TABLE device.t AS SELECT 7 AS i",
                "SELECT * FROM device.t",
                "DROP TABLE device.t",
            ],
        ]
        .concat(),
    );
    assert!(run.success, "{}", run.stderr);
    assert!(run.stdout.contains("n,s\n2000,1001000\n"), "{}", run.stdout);
    assert!(run.stdout.contains("i\n7\n"), "{}", run.stdout);
    let twice = ["-c", "CREATE TABLE device.t AS SELECT 1 AS i", "CREATE TABLE device.t AS SELECT 1 AS i"];
    assert!(shell(&twice).stderr.contains("already exists"));
}

#[test]
fn commands_may_be_several_and_stop_at_the_first_failure() {
    let run = shell(&[&CSV[..], &["-c", "SELECT 1 AS a", "-c", "SELECT 2 AS b; SELECT 3 AS c"]].concat());
    assert!(run.success, "{}", run.stderr);
    assert_eq!(run.stdout, "a\n1\nb\n2\nc\n3\n");
    let run = shell(&[&CSV[..], &["-c", "SELECT 1 AS a; SELECT nope", "-c", "SELECT 3 AS c"]].concat());
    assert!(!run.success);
    assert_eq!(run.stdout, "a\n1\n");
}

#[test]
fn files_may_be_several_and_a_failure_in_any_is_the_status() {
    let (bad, good) = (file("SELECT nope;\nSELEC 1;\nSELECT 1 AS a;\n"), file("SELECT 2 AS b"));
    let paths = [bad.path().to_str().unwrap(), good.path().to_str().unwrap()];
    for arguments in [["-f", paths[0], "-f", paths[1]], ["-f", paths[0], paths[1], "--maxrows=9"]] {
        let run = shell(&[&CSV[..], &arguments].concat());
        assert!(!run.success);
        assert_eq!(run.stdout, "a\n1\nb\n2\n");
        assert_eq!(run.stderr.matches("Error: ").count(), 2, "{}", run.stderr);
    }
    let run = shell(&[&CSV[..], &["-f", paths[1], "-c", "SELECT 3 AS c"]].concat());
    assert!(run.success && run.stdout == "b\n2\nc\n3\n", "{}", run.stdout);
    assert!(!shell(&["-f", "/nowhere.sql"]).success);
    let mut binary = tempfile::NamedTempFile::new().unwrap();
    binary.write_all(b"\xff\xfe;\n").unwrap();
    let run = shell(&["-f", binary.path().to_str().unwrap()]);
    assert!(!run.success && run.stderr.contains(&format!("cannot read {}", binary.path().display())), "{}", run.stderr);
}

/// SUMMARIZE among others, commands of other shells, functions, and rows without columns.
#[test]
fn statements_of_other_shells_work_or_have_a_hint() {
    let input = ".tables\nSELECT 1 AS a; SUMMARIZE (SELECT 'x;y' AS s);\n\\h sum\nFROM generate_series(1, 3);\nexit\nSELECT 5 AS never;\n";
    let run = shell_with_input(&["--device", "none"], input);
    assert!(run.stderr.contains("'.tables' is not a command; \\? lists them"), "{run:?}");
    assert!(run.stdout.contains("| x;y ") && run.stdout.contains("sum(expression)"), "{run:?}");
    assert!(run.stdout.contains("3 row(s) fetched. (They have no columns: FROM without SELECT)"), "{run:?}");
    assert!(!run.stdout.contains("never"), "{run:?}");
}

#[test]
fn files_that_include_themselves_end() {
    let script = file("");
    std::fs::write(script.path(), format!("\\i {}\n", script.path().display())).unwrap();
    let run = shell(&["-q", "-f", script.path().to_str().unwrap()]);
    assert!(!run.success && run.stderr.contains("files include each other 16 deep"), "{}", run.stderr);
}

#[test]
fn summaries_of_times_and_dictionaries() {
    let query = "SUMMARIZE SELECT TIMESTAMP '2024-01-02 03:04:05' AS t, INTERVAL '3 days' AS i, \
                 arrow_cast('x', 'Dictionary(Int8, Utf8)') AS d";
    let run = shell(&["-q", "--format", "csv", "--device", "none", "-c", query]);
    assert!(run.success, "{}", run.stderr);
    assert!(
        run.stdout.contains(",2024-01-02T03:04:05,2024-01-02T03:04:05,1,") && run.stdout.contains("3 days"),
        "{}",
        run.stdout
    );
    assert!(run.stdout.contains("\"Dictionary(Int8, Utf8)\",x,x,1,"), "{}", run.stdout);
}

#[test]
fn summarize_has_a_row_for_each_column() {
    let table = "CREATE TABLE t AS SELECT * FROM (VALUES (1, 1.5, 'b', true, DATE '2024-01-01'), (2, NULL, 'a', NULL, NULL), \
                 (4, 3.5, 'a', false, NULL), (NULL, NULL, NULL, NULL, NULL)) v(i, f, s, b, d)";
    let run = shell(&[
        "-q",
        "--format",
        "csv",
        "--device",
        "none",
        "-c",
        table,
        "SUMMARIZE t",
        "SUMMARIZE SELECT [1, 2] AS l WHERE false",
    ]);
    assert!(run.success, "{}", run.stderr);
    let expected = "column_name,column_type,min,max,approx_unique,avg,std,q25,q50,q75,count,null_percentage\n\
        i,Int64,1,4,3,2.3333333333333335,1.5275252316519465,1.5,2.0,3.0,3,25.0\n\
        f,Float64,1.5,3.5,2,2.5,1.4142135623730951,2.0,2.5,3.0,2,50.0\n\
        s,Utf8,a,b,2,,,,,,3,25.0\n\
        b,Boolean,false,true,2,,,,,,2,50.0\n\
        d,Date32,2024-01-01,2024-01-01,1,,,,,,1,75.0\n\
        column_name,column_type,min,max,approx_unique,avg,std,q25,q50,q75,count,null_percentage\n\
        l,List(Int64),,,,,,,,,0,\n";
    assert_eq!(run.stdout, expected);
}

#[test]
fn backslash_commands_work_as_commands() {
    let run = shell(&["-q", "-c", "CREATE TABLE seen AS VALUES (1)", "\\d", "\\d seen"]);
    assert!(run.success, "{}", run.stderr);
    assert!(run.stdout.contains("seen") && run.stdout.contains("column1"), "{}", run.stdout);
    let run = shell(&["-q", "-c", "\\h", "\\h select", "\\h trim", "\\object_store_profiling trace"]);
    for shown in ["CREATE TABLE AS\n", "Syntax:\nSELECT", "btrim", "Profiling of object stores is Trace."] {
        assert!(run.stdout.contains(shown), "{shown}: {} {}", run.stdout, run.stderr);
    }
    for command in ["\\d nope", "\\nope", "\\object_store_profiling nope"] {
        let run = shell(&["-q", "-c", command]);
        assert!(!run.success && run.stderr.contains("nope"), "{}", run.stderr);
    }
}

#[test]
fn the_list_of_commands_names_the_shell() {
    let run = shell(&["-q", "-c", "\\?"]);
    let name = format!("devicefusion {}, the shell of DeviceFusion\n", env!("CARGO_PKG_VERSION"));
    assert!(run.stdout.starts_with(&name) && run.stdout.contains("\\timing on|off"), "{}", run.stdout);
}

/// Plans are trees, unless a format is given.
#[test]
fn a_tree_says_that_the_first_run_is_the_hosts() {
    let explain = "EXPLAIN SELECT value % 5 AS k, count(*) FROM generate_series(1, 100000) GROUP BY 1";
    let tokens = |run: &Run| run.stdout.split(['│', '\n', ' ']).filter(|token| !token.is_empty()).collect::<Vec<_>>().join(" ");
    let run = shell(&["-q", "-c", "SET device.adaptive_start = 'always'", explain]);
    assert!(tokens(&run).contains("first_runs:"), "{}", run.stdout);
    let run = shell(&["-q", "-c", "SET device.adaptive_start = 'never'", explain]);
    assert!(run.stdout.contains("DeviceToHostExec") && !run.stdout.contains("first_runs"), "{}", run.stdout);
}

#[test]
fn a_table_to_be_made_has_the_plan_of_its_query() {
    for table in ["t", "device.t"] {
        let run = shell(&["-q", "-c", &format!("EXPLAIN FORMAT INDENT CREATE TABLE {table} AS SELECT 1 + 2 AS three")]);
        assert!(run.success && run.stdout.contains("ProjectionExec: expr=[3 as three]"), "{}{}", run.stdout, run.stderr);
    }
}

#[test]
fn a_profile_is_a_format_of_explain_analyze() {
    let query = "SELECT value % 5 AS k, count(*) FROM generate_series(1, 100000) GROUP BY 1";
    let run = shell(&["-q", "-c", &format!("/* a page */ explain analyze format HTML {query};")]);
    assert!(run.success && run.stdout.starts_with("<!DOCTYPE html>"), "{}{}", run.stdout, run.stderr);
    let run = shell(&["-q", "-c", &format!("EXPLAIN ANALYZE FORMAT json {query}; SELECT 1")]);
    let (profile, _) = run.stdout.split_once("\n+").unwrap();
    assert!(profile.starts_with('{') && profile.ends_with('}'), "{profile}");
    let run = shell(&["-q", "-c", "EXPLAIN ANALYZE FORMAT html SELECT 1 / (value - 7) FROM generate_series(1, 100000)"]);
    assert!(!run.success && run.stderr.contains("Divide by zero"), "{}", run.stderr);
}

#[test]
fn a_file_is_described_and_summarized() {
    let numbers = tempfile::Builder::new().suffix(".csv").tempfile().unwrap();
    std::fs::write(&numbers, "a,b\n1,x\n2,y\n").unwrap();
    let name = numbers.path().display();
    check(&format!("DESCRIBE '{name}'"), "column_name,data_type,is_nullable\na,Int64,YES\nb,Utf8,YES\n");
    let run = shell(&["-q", "-c", &format!("DROP TABLE '{name}'")]);
    assert!(!run.success && run.stderr.contains("is a file and no table"), "{}", run.stderr);
    let run = shell(&[&CSV[..], &["-c", &format!("SUMMARIZE '{name}'")]].concat());
    assert!(run.success && run.stdout.contains("a,Int64,1,2,2,1.5"), "{}{}", run.stdout, run.stderr);
}

#[test]
fn damaged_files_are_errors() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_string();
    let made = format!("COPY (SELECT value AS i FROM generate_series(1, 50000)) TO '{}'", path("whole.parquet"));
    assert!(shell(&["-c", &made]).success);
    let whole = std::fs::read(path("whole.parquet")).unwrap();
    std::fs::write(path("cut.parquet"), &whole[..whole.len() / 2]).unwrap();
    std::fs::write(path("text.parquet"), "a,b\n1,2\n").unwrap();
    for name in ["cut.parquet", "text.parquet", "missing.parquet"] {
        let run = shell(&["-q", "-c", &format!("SELECT sum(i) FROM '{}'", path(name))]);
        assert!(!run.success && run.stderr.starts_with("Error: ") && !run.stderr.contains("panicked"), "{name}: {}", run.stderr);
    }
}

#[test]
fn a_panic_fails_its_statement_alone() {
    // DataFusion 55.2 allocates the sum of the lengths, without signs.
    let statements = "SELECT lpad(s, n) FROM (VALUES ('a', -1)) t(s, n);\nSELECT 1 + 1 AS two;\n";
    let run = shell_with_input(&[&CSV[..], &["--device", "none"]].concat(), statements);
    assert!(!run.success && run.stdout == "two\n2\n", "{}{}", run.stdout, run.stderr);
    let message = "Error: Execution error: ProjectionExec over DataSourceExec: panicked with message \"capacity overflow\"\n";
    assert!(run.stderr.contains(message), "{}", run.stderr);
}

/// Starts an HTTP server for one file, with range requests. It waits before it sends content.
/// Returns its address.
fn serve(content: &'static str, wait: Duration) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let answer = move |stream: std::net::TcpStream| -> std::io::Result<()> {
        let mut reader = BufReader::new(&stream);
        let (mut request, mut range, mut line) = (String::new(), None, String::new());
        reader.read_line(&mut request)?;
        while reader.read_line(&mut line)? > 2 {
            if let Some(bytes) = line.to_lowercase().strip_prefix("range: bytes=") {
                let (start, end) = bytes.trim().split_once('-').unwrap();
                range = Some((start.parse::<usize>().unwrap(), end.parse::<usize>().map_or(content.len(), |end| end + 1)));
            }
            line.clear();
        }
        let (status, extra, body) = match range {
            Some((start, end)) => {
                let end = end.min(content.len());
                let extra = format!("Content-Range: bytes {start}-{}/{}\r\n", end - 1, content.len());
                ("206 Partial Content", extra, &content[start..end])
            }
            None => ("200 OK", String::new(), content),
        };
        let head = format!(
            "HTTP/1.1 {status}\r\nContent-Length: {}\r\n{extra}ETag: \"1\"\r\nLast-Modified: Sat, 01 Nov 2025 00:00:00 GMT\r\n\
             Accept-Ranges: bytes\r\nConnection: close\r\n\r\n",
            body.len()
        );
        if request.starts_with("HEAD") {
            return (&stream).write_all(head.as_bytes());
        }
        std::thread::sleep(wait);
        (&stream).write_all(head.as_bytes())?;
        (&stream).write_all(body.as_bytes())
    };
    std::thread::spawn(move || listener.incoming().flatten().for_each(|stream| _ = answer(stream)));
    address
}

#[test]
fn object_stores_are_read_by_url() {
    let content = "a,b\n1,2\n3,4\n";
    let address = serve(content, Duration::ZERO);
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("t.csv"), content).unwrap();
    for url in [format!("http://{address}/t.csv"), format!("file://{}/t.csv", folder.path().display())] {
        let sum = shell(&[&CSV[..], &["--strict", "-c", &format!("SELECT sum(b) AS s FROM '{url}'")]].concat());
        assert!(sum.success && sum.stdout == "s\n6\n", "{url}: {} {}", sum.stdout, sum.stderr);
        let create = format!("CREATE EXTERNAL TABLE t STORED AS CSV LOCATION '{url}' OPTIONS ('format.has_header' 'true')");
        let run = shell(&[&CSV[..], &["--strict", "-c", &create, "SELECT sum(a) AS s FROM t"]].concat());
        assert!(run.success && run.stdout == "s\n4\n", "{url}: {} {}", run.stdout, run.stderr);
    }
    let s3 = |options: &str| {
        let create = format!("CREATE EXTERNAL TABLE t STORED AS CSV LOCATION 's3://bucket/t.csv' OPTIONS ({options})");
        shell(&[&CSV[..], &["--strict", "-c", &create, "SELECT sum(b) AS s FROM t"]].concat())
    };
    let keys = "'aws.access_key_id' 'k', 'aws.secret_access_key' 's', 'aws.region' 'eu-central-1', 'format.has_header' 'true'";
    let run = s3(&format!("{keys}, 'aws.endpoint' 'http://{address}', 'aws.allow_http' 'true'"));
    assert!(run.success && run.stdout == "s\n6\n", "{} {}", run.stdout, run.stderr);
    let run = s3(&format!("{keys}, 'aws.endpoint' 'http://{address}'"));
    assert!(!run.success && run.stderr.contains("aws.allow_http"), "{}", run.stderr);
    let run = s3(&format!("{keys}, 'aws.no_such_option' '1'"));
    assert!(!run.success && run.stderr.contains("not found on AwsOptions"), "{}", run.stderr);
}

/// One half of the query fails during the other half's compilation. The compiler's threads must end
/// before the process unloads its code.
#[test]
fn a_failing_query_ends_the_shell_orderly() {
    let slow = (1..12).map(|i| format!("CASE value % {i} WHEN 0 THEN CAST(CAST(value AS VARCHAR) AS BIGINT) / {i} END"));
    let slow = slow.collect::<Vec<_>>().join(" + ");
    let failing = "SELECT 7, sum(10 / (value - 5)) FROM generate_series(1, 30) GROUP BY 1";
    let sql = format!("SELECT value % 3 AS k, sum({slow}) FROM generate_series(1, 100) GROUP BY k UNION ALL {failing}");
    let selector = device::testing::config().unwrap().selector.to_string();
    for _ in 0..5 {
        // Without the driver's cache, each run compiles.
        let cache = tempfile::tempdir().unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_devicefusion"));
        command.env("DATAFUSION_DEVICE_SELECTOR", &selector).env("POCL_CACHE_DIR", cache.path());
        let output = command.args(["-q", "-c", "SET device.cost = 'always'", &sql]).output().unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{}: {stderr}", output.status);
        assert!(stderr.contains("Divide by zero error"), "{stderr}");
    }
}

/// Plain DataFusion overflows the stack of tokio's threads here.
#[test]
fn deep_expressions_of_the_host_run_and_deeper_ones_are_refused() {
    let terms = |number: usize| (0..number).map(|n| format!("(a = {n} AND b = {n})")).collect::<Vec<_>>().join(" OR ");
    let table = "CREATE TABLE t AS SELECT value AS a, value % 100 AS b FROM generate_series(1, 5000)";
    let count = |number| format!("SELECT count(*) AS rows FROM t WHERE {};", terms(number));
    // A file, since an argument of a process has at most 128 KiB.
    let sql = file(&format!("{table};\n{}\n{}\n", count(500), count(20_100)));
    let run = shell(&[&CSV[..], &["--device", "none", "-f", sql.path().to_str().unwrap()]].concat());
    assert!(!run.success);
    assert_eq!(run.stdout, "rows\n99\n", "{}", run.stderr);
    assert!(run.stderr.contains("operators, the limit is 20000"), "{}", run.stderr);
}

#[test]
fn files_have_more_extensions_and_missing_ones_are_named() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).display().to_string();
    std::fs::write(path("t.tsv"), "a\tb\n1\tx y\n2\tz\n").unwrap();
    for name in ["t.ndjson", "t.jsonl"] {
        std::fs::write(path(name), "{\"a\": 1, \"b\": \"x y\"}\n{\"a\": 2, \"b\": \"z\"}\n").unwrap();
    }
    for name in ["t.tsv", "t.ndjson", "t.jsonl"] {
        let sql = format!("SELECT b, a + 1 AS c FROM '{}' ORDER BY a", path(name));
        let run = shell(&["-q", "--format", "csv", "-c", &sql]);
        assert!(run.success && run.stdout == "b,c\nx y,2\nz,3\n", "{name}: {}{}", run.stdout, run.stderr);
    }
    let copy = format!("COPY (SELECT 1 AS a, 'x,y' AS b) TO '{}'", path("o.tsv"));
    let run = shell(&["-q", "-c", &copy]);
    assert!(run.success, "{}", run.stderr);
    assert_eq!(std::fs::read_to_string(path("o.tsv")).unwrap(), "a\tb\n1\tx,y\n");
    let missing = path("nowhere.parquet");
    let run = shell(&["-c", &format!("SELECT * FROM '{missing}'")]);
    assert!(!run.success && run.stderr.contains(&format!("there is no file '{missing}'")), "{}", run.stderr);
    // DataFusion's patterns match no folders, unless a setting says so.
    let (none, below) = (path("*.csv"), path("*/*.csv"));
    let run = shell(&["-c", &format!("SELECT * FROM '{none}'")]);
    assert!(!run.success && run.stderr.contains(&format!("no file matches '{none}'\n")), "{}", run.stderr);
    std::fs::create_dir(path("2026")).unwrap();
    std::fs::write(path("2026/t.csv"), "a\n1\n").unwrap();
    let sql = format!("SELECT * FROM '{below}'");
    let run = shell(&["-c", &sql]);
    let hint = format!("no file matches '{below}'; SET datafusion.execution.listing_table_ignore_subdirectory = false");
    assert!(!run.success && run.stderr.contains(&hint), "{}", run.stderr);
    let run =
        shell(&["-q", "--format", "csv", "-c", "SET datafusion.execution.listing_table_ignore_subdirectory = false", "-c", &sql]);
    assert!(run.success && run.stdout == "a\n1\n", "{}{}", run.stdout, run.stderr);
}

#[test]
fn a_wrong_column_among_many_has_the_closest_names() {
    let columns: Vec<String> = (0..105).map(|number| format!("{number} AS column_{number}")).collect();
    let table = format!("(SELECT {})", columns.join(", "));
    let run = shell(&["-c", &format!("SELECT colum_77 FROM {table}")]);
    let error = |number| format!("Schema error: No field named colum_{number}. Of 105 columns the closest are column_{number}, ");
    assert!(!run.success && run.stderr.contains(&error(77)), "{}", run.stderr);
    let closest = run.stderr.split("the closest are ").nth(1).map(|names| names.split(", ").count());
    assert!(closest == Some(3) && run.stderr.len() < 400, "{}", run.stderr);
    // Each wrong name has a line.
    let run = shell(&["-q", "-c", &format!("SELECT colum_77, colum_78, colum_77 + 1 FROM {table}")]);
    let lines: Vec<&str> = run.stderr.lines().collect();
    assert!(!run.success && lines.len() == 2, "{}", run.stderr);
    assert!(lines[0].starts_with(&format!("Error: {}", error(77))) && lines[1].starts_with(&error(78)), "{}", run.stderr);
}

#[test]
fn startup_files_run_before_commands() {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), "CREATE VIEW v AS SELECT 42 AS answer;\n").unwrap();
    let run = shell(&["-q", "-r", file.path().to_str().unwrap(), "-c", "SELECT answer FROM v"]);
    assert!(run.success && run.stdout.contains("42"), "{}{}", run.stdout, run.stderr);
}
