// SPDX-License-Identifier: Apache-2.0
//! Runs the SQL and the shell commands of the book, README.md and CONTRIBUTING.md included.
//!
//! The info string of a block selects its check:
//!
//! - `sql`: the statements of a page run in one session, in order. A `text` block behind it is its
//!   output.
//! - `sql,strict`: the same, and no operator may run on the host.
//! - `sql,fails`: its statement must fail. A `text` block behind it is the message.
//! - `console`: each line behind `$ ` is a shell command, which must succeed in an empty folder.
//! - `console,build`: builds, installations and long measurements. [`rehearse`] checks that each
//!   command exists with its targets; the arguments of `devicefusion-bench` have a test there.
//! - `text,measured`: an output whose numbers may differ.
//! - `rust`: documentation tests of the crate `devicefusion` compile and run it.
//!
//! In an output `…` stands for any characters, and a line of `…` alone for any lines. Leading
//! spaces and the frame of a table do not count. [`TESTED_ELSEWHERE`] names pages that have tests
//! of their own.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use datafusion::arrow::array::RecordBatch;
use datafusion::arrow::error::ArrowError;
use parquet::arrow::ArrowWriter;
use tpchgen::generators::{LineItemGenerator, OrderGenerator};
use tpchgen_arrow::{LineItemArrow, OrderArrow};

/// Pages, languages, and the test that checks these blocks. An empty page name stands for all
/// pages.
const TESTED_ELSEWHERE: &[(&str, &[&str], &str)] = &[
    ("futhark.md", &["sql", "text", "futhark"], "crates/datafusion/tests/futhark/page.rs"),
    ("futhark-types.md", &["sql", "text", "futhark"], "crates/datafusion/tests/futhark/page.rs"),
    ("futhark-device.md", &["text,ignore", "rust,no_run"], "crates/datafusion/tests/futhark/page.rs"),
    ("adbc.md", &["python"], "crates/capi/tests/capi/adbc.rs"),
    ("python-adbc.md", &["python,adbc"], "crates/capi/tests/capi/adbc.rs"),
    ("python.md", &["python"], "crates/python/tests/test_book.py"),
    ("python-datafusion.md", &["python"], "crates/python/tests/test_book.py"),
    ("python-device-data.md", &["python"], "crates/python/tests/test_book.py"),
    ("c-api.md", &["c"], "crates/capi/tests/capi/pages.rs"),
    ("peers.md", &["c", "cpp", "python"], "crates/datafusion/tests/peers.rs"),
    ("peers-gpu.md", &["python"], "crates/datafusion/tests/peers.rs"),
    ("device-data.md", &["rust"], "crates/datafusion/src/lib.rs"),
    ("rust.md", &["rust"], "crates/datafusion/src/lib.rs"),
    ("README.md", &["rust"], "crates/datafusion/src/lib.rs"),
    ("README.md", &["python"], "crates/python/tests/test_book.py"),
    // Sketches and fragments that are no programs.
    ("", &["text,ignore"], "none"),
    ("", &["toml"], "none: Cargo.toml is no program"),
];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

/// README.md, CONTRIBUTING.md and every page of the book, with the records of `docs/log`.
fn all_pages() -> Vec<PathBuf> {
    let mut pages = vec![root().join("README.md"), root().join("CONTRIBUTING.md")];
    let mut folders = vec![root().join("docs")];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            match path.extension() {
                None if path.is_dir() => folders.push(path),
                Some(extension) if extension == "md" => pages.push(path),
                _ => {}
            }
        }
    }
    pages.sort();
    pages
}

/// All pages but the records of `docs/log`, whose commands and outputs are of their day.
fn pages() -> Vec<PathBuf> {
    let is_record = |page: &PathBuf| page.parent().is_some_and(|folder| folder.ends_with("docs/log"));
    all_pages().into_iter().filter(|page| !is_record(page)).collect()
}

/// A fenced block: the line of its fence, its info string and its lines.
struct Block {
    line: usize,
    info: String,
    text: String,
}

fn blocks(page: &Path) -> Vec<Block> {
    let (mut blocks, mut open) = (Vec::new(), None::<Block>);
    for (number, line) in fs::read_to_string(page).unwrap().lines().enumerate() {
        match (line.trim_start().strip_prefix("```"), open.take()) {
            (Some(info), None) => open = Some(Block { line: number + 1, info: info.to_owned(), text: String::new() }),
            (Some(_), Some(block)) => blocks.push(block),
            (None, Some(mut block)) => {
                block.text += line;
                block.text.push('\n');
                open = Some(block);
            }
            (None, None) => {}
        }
    }
    assert!(open.is_none(), "{}: a block has no end", page.display());
    blocks
}

fn name(page: &Path) -> &str {
    page.file_name().unwrap().to_str().unwrap()
}

fn is_tested_elsewhere(page: &Path, info: &str) -> bool {
    TESTED_ELSEWHERE.iter().any(|(pages, infos, _)| (pages.is_empty() || *pages == name(page)) && infos.contains(&info))
}

/// A folder with the files that the book names.
struct Folder(tempfile::TempDir);

impl Folder {
    fn new() -> Folder {
        let folder = tempfile::tempdir().unwrap();
        let tpch = folder.path().join("data/tpch-sf1");
        fs::create_dir_all(&tpch).unwrap();
        write(&tpch.join("lineitem.parquet"), LineItemArrow::new(LineItemGenerator::new(0.01, 1, 1)));
        write(&tpch.join("orders.parquet"), OrderArrow::new(OrderGenerator::new(0.01, 1, 1)));
        for copy in ["lineitem.parquet", "more.parquet"] {
            fs::copy(tpch.join("lineitem.parquet"), folder.path().join(copy)).unwrap();
        }
        std::os::unix::fs::symlink(root().join("scripts"), folder.path().join("scripts")).unwrap();
        Folder(folder)
    }

    /// A command that finds the shell and runs in the folder, on the device of all tests.
    fn command(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        let binaries = Path::new(env!("CARGO_BIN_EXE_devicefusion")).parent().unwrap().display();
        let selector = device::testing::config().unwrap().selector.to_string();
        // Each kernel runs once, so optimising it takes longer than running it.
        let options = if selector.starts_with("opencl") { "-cl-opt-disable" } else { "" };
        command
            .current_dir(self.0.path())
            .env("HOME", self.0.path())
            .env("PATH", format!("{binaries}:{}", std::env::var("PATH").unwrap_or_default()))
            .env("DATAFUSION_DEVICE_SELECTOR", selector)
            .env("DATAFUSION_DEVICE_COMPILE_OPTIONS", options);
        command
    }

    /// Runs statements in one session; standard output and whether all succeeded.
    fn sql(&self, statements: &[String]) -> Output {
        let mut command = self.command("devicefusion");
        command.args(["-q", "--format", "table", "--maxrows", "inf"]);
        for statement in statements {
            command.arg("-c").arg(statement);
        }
        command.output().unwrap()
    }
}

fn write(path: &Path, batches: impl Iterator<Item = Result<RecordBatch, ArrowError>>) {
    let mut batches = batches.map(Result::unwrap).peekable();
    let schema = batches.peek().unwrap().schema();
    let mut writer = ArrowWriter::try_new(File::create(path).unwrap(), schema, None).unwrap();
    batches.for_each(|batch| writer.write(&batch).unwrap());
    writer.close().unwrap();
}

fn statements(block: &Block) -> impl Iterator<Item = String> {
    block.text.split(";\n").map(str::trim).filter(|statement| !statement.is_empty()).map(|statement| format!("{statement};"))
}

/// The text that separates the outputs of blocks.
fn marker(number: usize) -> String {
    format!("end of block {number}")
}

/// A line without the frame of a table, and without numbers where these may differ.
fn normal(line: &str, measured: bool) -> String {
    let line = line.trim().trim_start_matches('|').trim_end_matches('|').trim();
    if !measured {
        return line.to_owned();
    }
    let mut normal = String::new();
    for token in line.split_inclusive(|c: char| !(c.is_ascii_alphanumeric() || c == '.' || c == 'µ')) {
        let (token, end) = token.split_at(token.trim_end_matches(|c: char| !(c.is_ascii_alphanumeric() || c == 'µ')).len());
        // A number with its unit: 12, 1.5, 130.2ms, 2.5K.
        let is_number = token.starts_with(|c: char| c.is_ascii_digit());
        normal += if is_number { "#" } else { token };
        normal += end;
    }
    // Sizes have their unit behind a space.
    for unit in [" B", " KB", " MB", " GB", " KiB", " MiB", " GiB", " K", " M"] {
        normal = normal.replace(&format!("#{unit}"), "#");
    }
    normal
}

/// Whether a shown line is a part of a line. `…` stands for anything.
fn is_part(shown: &str, line: &str) -> bool {
    let mut rest = line;
    for part in shown.split('…') {
        match rest.find(part) {
            Some(at) => rest = &rest[at + part.len()..],
            None => return false,
        }
    }
    true
}

/// Checks that an output has the shown lines, in their order and without others between them but
/// for `…`.
fn compare(page: &Path, shown: &Block, output: &str) {
    let measured = shown.info == "text,measured";
    let lines: Vec<String> = output.lines().map(|line| normal(line, measured)).collect();
    let (mut at, mut anywhere) = (0, true);
    for line in shown.text.lines().map(|line| normal(line, measured)).filter(|line| !line.is_empty()) {
        if line == "…" {
            anywhere = true;
            continue;
        }
        let rest = &lines[at.min(lines.len())..];
        let found = match anywhere {
            true => rest.iter().position(|other| is_part(&line, other)),
            false => rest.iter().position(|other| !other.is_empty()).filter(|next| is_part(&line, &rest[*next])),
        };
        let Some(found) = found else {
            panic!("{}:{}: the output lacks the line\n{line}\nbehind its line {at} of\n{output}", page.display(), shown.line);
        };
        (at, anywhere) = (at + found + 1, false);
    }
}

/// Runs the SQL blocks of a page in one session, then those that must fail behind what comes before
/// them.
fn run_sql(page: &Path, folder: &Folder) -> usize {
    let all = blocks(page);
    let is_shown = |index: usize| all.get(index).filter(|block| block.info == "text" || block.info == "text,measured");
    let (mut session, mut outputs, mut failing) = (Vec::new(), Vec::new(), Vec::new());
    for (index, block) in all.iter().enumerate().filter(|(_, block)| !is_tested_elsewhere(page, &block.info)) {
        match block.info.as_str() {
            "sql" | "sql,strict" => {
                let strict = block.info.ends_with("strict");
                let setting = |value: &str| format!("SET device.fallback = '{value}';");
                session.extend(strict.then(|| setting("error")));
                session.extend(statements(block));
                session.extend(strict.then(|| setting("host")));
                session.push(format!("SELECT '{}' AS marker;", marker(outputs.len())));
                outputs.push((block, is_shown(index + 1)));
            }
            "sql,fails" => failing.push((block, session.len(), is_shown(index + 1))),
            _ => {}
        }
    }
    if !outputs.is_empty() {
        let output = folder.sql(&session);
        let (printed, said) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        let mut rest = &*printed;
        for (number, (block, shown)) in outputs.iter().enumerate() {
            let Some((printed, behind)) = rest.split_once(&marker(number)) else {
                panic!("{}:{}: {said}\n{printed}", page.display(), block.line);
            };
            if let Some(shown) = shown {
                compare(page, shown, printed);
            }
            rest = behind;
        }
        assert!(output.status.success(), "{}: {said}", page.display());
    }
    for (block, before, shown) in &failing {
        let mut statements_before = session[..*before].to_vec();
        statements_before.push(block.text.trim().to_owned());
        let output = folder.sql(&statements_before);
        assert!(!output.status.success(), "{}:{}: this does not fail", page.display(), block.line);
        let said = String::from_utf8_lossy(&output.stderr);
        match shown {
            Some(shown) => compare(page, shown, &said),
            None => assert!(!said.is_empty()),
        }
    }
    outputs.len() + failing.len()
}

#[test]
fn sql_of_the_book_runs() {
    let folder = Folder::new();
    let blocks: usize = pages().iter().map(|page| run_sql(page, &folder)).sum();
    assert!(blocks > 10, "{blocks} blocks of SQL");
}

#[test]
fn commands_of_the_book_run() {
    let folder = Folder::new();
    for page in pages() {
        for block in blocks(&page).iter().filter(|block| block.info == "console") {
            for command in block.text.lines().filter_map(|line| line.strip_prefix("$ ")) {
                let output = folder.command("sh").arg("-c").arg(command).output().unwrap();
                let said = String::from_utf8_lossy(&output.stderr);
                assert!(output.status.success(), "{}:{}: {command}: {said}", page.display(), block.line);
            }
        }
    }
}

/// Checks a command that takes too long for a test, without running it.
///
/// # Panics
/// If the command lacks its target or script, or is of a kind without a check.
fn rehearse(command: &str) {
    let command = command.split(" #").next().unwrap_or_default().trim();
    let mut tokens = command.split_whitespace().skip_while(|token| token.contains('='));
    let program = tokens.next().unwrap_or_default();
    let arguments: Vec<&str> = tokens.collect();
    match program {
        "make" => {
            let output = Command::new("make").arg("--dry-run").args(&arguments).current_dir(root()).output().unwrap();
            assert!(output.status.success(), "{command}: {}", String::from_utf8_lossy(&output.stderr));
        }
        "cargo" if arguments[0] == "install" => {
            for path in arguments.windows(2).filter(|pair| pair[0] == "--path").map(|pair| pair[1]) {
                assert!(root().join(path).join("src/main.rs").exists(), "{command}: {path} has no program");
                assert!(arguments.contains(&"--locked"), "{command}: other versions of libraries may not compile");
            }
        }
        "cargo" => {
            let metadata = Command::new(env!("CARGO"))
                .args(["metadata", "--no-deps", "--offline", "--format-version", "1"])
                .current_dir(root())
                .output()
                .unwrap();
            let metadata = String::from_utf8(metadata.stdout).unwrap();
            for pair in arguments.windows(2).filter(|pair| ["--bin", "--example", "--test", "-p"].contains(&pair[0])) {
                assert!(metadata.contains(&format!("\"name\":\"{}\"", pair[1])), "{command}: there is no {}", pair[1]);
            }
        }
        // A test of that crate parses these arguments.
        "target/release/devicefusion-bench" => {}
        script if root().join(script).is_file() => {}
        // Installed programs, and those that the page has made.
        "cc" | "futhark" | "pip" | "devicefusion" => {}
        other => panic!("{command}: no check knows {other}"),
    }
}

#[test]
fn builds_of_the_book_exist() {
    let mut number = 0;
    for page in pages() {
        for block in blocks(&page).iter().filter(|block| block.info == "console,build") {
            let commands: Vec<&str> = block.text.lines().filter_map(|line| line.strip_prefix("$ ")).collect();
            commands.iter().for_each(|command| rehearse(command));
            number += commands.len();
        }
    }
    assert!(number > 20, "{number} commands");
}

#[test]
#[should_panic = "there is no quickest"]
fn builds_of_unknown_targets_are_found() {
    rehearse("cargo run --release --workspace --example quickest");
}

/// Every block has a check.
#[test]
fn blocks_of_the_book_are_known() {
    let mut unknown = Vec::new();
    for page in pages() {
        for block in blocks(&page) {
            match block.info.as_str() {
                "sql" | "sql,strict" | "sql,fails" | "console" | "console,build" | "text" | "text,measured" => {}
                info if is_tested_elsewhere(&page, info) => {}
                _ => unknown.push(format!("{}:{}: {:?}", name(&page), block.line, block.info)),
            }
        }
    }
    assert!(unknown.is_empty(), "blocks that no test knows: {unknown:#?}");
}

/// Each page is short enough to read, but for generated ones.
#[test]
fn pages_are_short() {
    const GENERATED: &[&str] = &["support.md", "settings.md", "conformance.md"];
    for page in all_pages().iter().filter(|page| !GENERATED.contains(&name(page))) {
        let lines = fs::read_to_string(page).unwrap().lines().count();
        assert!(lines <= 150, "{}: {lines} lines, the limit is 150", page.display());
    }
}

#[test]
fn outputs_are_compared_by_lines() {
    let shown = |info: &str, text: &str| Block { line: 1, info: info.to_owned(), text: text.to_owned() };
    let page = Path::new("page.md");
    let output = "+---+\n| physical_plan | AExec: rows=12, time=1.52ms |\n|   BExec: bytes=2.50 K, [x] |\n";
    compare(page, &shown("text", "AExec: rows=12, …\n  BExec: …[x]\n"), output);
    compare(page, &shown("text,measured", "AExec: rows=7, time=3.1µs\nBExec: bytes=900.0 B\n"), output);
    compare(page, &shown("text", "…\nBExec\n"), output);
    let fails = |text| std::panic::catch_unwind(|| compare(page, &shown("text", text), output)).is_err();
    assert!(fails("AExec: rows=13\n") && fails("BExec\nAExec\n") && fails("AExec\n[y]\n"));
}
