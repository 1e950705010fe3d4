// SPDX-License-Identifier: Apache-2.0
//! Runs the examples of `examples/peers` as their users do. `docs/peers.md` and `docs/peers-gpu.md`
//! show parts of them.
//!
//! Needs Python with pyarrow and nanoarrow (`scripts/python-peers.sh`), and a C++ compiler. Without
//! these the tests print so and pass, unless `DEVICEFUSION_REQUIRE_PYTHON=1`. Examples for GPUs are
//! compiled only.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

#[path = "../../arrow-device/tests/python/example.rs"]
mod example;

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

const REQUIRED: &str = "DEVICEFUSION_REQUIRE_PYTHON";

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

fn folder() -> PathBuf {
    root().join("examples/peers")
}

/// Output of a program. `None`, with a message, if the program is missing or fails.
fn tool(command: &mut Command) -> Option<String> {
    let why = match command.output() {
        Ok(output) if output.status.success() => return Some(String::from_utf8(output.stdout).unwrap().trim_end().to_owned()),
        Ok(output) => String::from_utf8_lossy(&output.stderr).into_owned(),
        Err(error) => error.to_string(),
    };
    let required = std::env::var(REQUIRED).is_ok_and(|value| value == "1");
    assert!(!required, "{REQUIRED} = 1, but {command:?}: {why}");
    eprintln!("skipped: {command:?}: {why}");
    None
}

/// Command of a Python with pyarrow and nanoarrow, which finds the library and `peers.py`.
fn python() -> Option<Command> {
    let python = tool(&mut Command::new(root().join("scripts/python-peers.sh")))?;
    let mut command = Command::new(python);
    // Python writes no files beside the sources, and imports no packages of the user.
    command.args(["-B", "-s", "-X", "faulthandler"]).current_dir(folder());
    command.env("PYTHONPATH", folder()).env("PEERS_LIBRARY", library());
    Some(command)
}

/// Output of a command, which must succeed.
#[track_caller]
fn run(command: &mut Command) -> String {
    let output = command.output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{command:?}: {}\n{said}{}", output.status, String::from_utf8_lossy(&output.stderr));
    said
}

fn library() -> PathBuf {
    example::library("peers", &["--workspace"])
}

#[test]
fn pyarrow_gives_and_takes_batches() {
    let Some(mut python) = python() else { return };
    let cities = "[{'city': 'Bern', 'people': 134000}, {'city': 'Oslo', 'people': 709000}]\n";
    assert_eq!(run(python.arg("pyarrow_sql.py")), format!("{cities}[{{'most': 1400000}}]\n"));
}

#[test]
fn nanoarrow_gives_and_takes_batches() {
    let Some(mut python) = python() else { return };
    let cities = "[{'city': 'Bern', 'people': 134000}, {'city': 'Oslo', 'people': 709000}]\n";
    assert_eq!(run(python.arg("nanoarrow_sql.py")), cities);
}

#[test]
fn failures_return_error_messages() {
    let Some(mut python) = python() else { return };
    let said = run(python.arg("-c").arg(
        r#"
import pyarrow as pa
from peers import PeersError, query

batch = pa.record_batch({"n": [3, 1]})
for sql in "SELECT m FROM t", "SELECT approx_percentile_cont(0.5) WITHIN GROUP (ORDER BY n) FROM t", "SELECT 1 / (n - n) FROM t", "SELECT array_agg(n) FROM t":
    for on_device in False, True:
        try:
            query(sql, batch, on_device)
        except PeersError as error:
            print(" ".join(str(error).split()))

rows, = query("SELECT n FROM t", batch)
pa.record_batch(rows)
for again in rows.column_names, lambda: query("SELECT n FROM t", rows), lambda: query("SELECT n FROM t\0", batch):
    try:
        again()
    except PeersError as error:
        print(error)
"#,
    ));
    let mut expected = ["No field named m", "device.fallback", "Divide by zero"].map(|text| [text, text]).concat();
    // Lists are supported as host arrays.
    expected.extend(["List(Int64) has no layout as an Arrow device array", "moved already", "moved already", "NUL"]);
    let said: Vec<_> = said.lines().collect();
    assert!(said.len() == expected.len() && said.iter().zip(expected).all(|(line, text)| line.contains(text)), "{said:#?}");
}

/// Python lends memory, as the examples with cuDF and CuPy do, and keeps it until the library
/// releases it.
#[test]
fn memory_lent_by_python_is_released() {
    let Some(mut python) = python() else { return };
    let said = run(python.arg("-c").arg(
        r#"
import time
import pyarrow as pa
import peers

def lent():
    schema, array = pa.record_batch({"n": range(1000)}).__arrow_c_device_array__()
    struct = peers.DeviceArray.from_address(peers.pointer_of(array, peers.DEVICE_ARRAY))
    return peers.lend(schema, struct, owner=array)

before = pa.total_allocated_bytes()
rows = peers.query("SELECT sum(n) AS sum FROM t", lent())
print(pa.record_batch(rows[0]).to_pylist())
rows = peers.query("SELECT n + 1 AS m FROM t WHERE n > 997", lent(), on_device=True)
rows = peers.query("SELECT sum(m) AS sum FROM t", rows[0])
print(pa.record_batch(rows[0]).to_pylist())
# One that is never taken.
lent()
del rows
for _ in range(10_000):
    if not peers._lent:
        break
    time.sleep(0.001)
print(len(peers._lent), pa.total_allocated_bytes() - before)
"#,
    ));
    assert_eq!(said, "[{'sum': 499500}]\n[{'sum': 1999}]\n0 0\n");
}

/// Output of a C++ program with Arrow C++. `None` without a compiler, or a wheel with Arrow C++.
fn cpp(name: &str) -> Option<String> {
    let mut python = python()?;
    let compiler = std::env::var_os("CXX").unwrap_or_else(|| OsString::from("c++"));
    tool(Command::new(&compiler).arg("--version"))?;
    let told = run(python.args(["-c", "import pyarrow; print(pyarrow.get_include()); print(pyarrow.get_library_dirs()[0])"]));
    let folders: Vec<&Path> = told.lines().map(Path::new).collect();
    let [include, libraries] = folders[..] else { panic!("{told}") };
    // The wheel has libarrow only under its versioned name.
    let names = std::fs::read_dir(libraries).unwrap().map(|entry| entry.unwrap().path());
    let is_arrow = |path: &PathBuf| path.file_name().unwrap().to_str().is_some_and(|name| name.starts_with("libarrow.so."));
    let arrow = names.into_iter().find(is_arrow).unwrap_or_else(|| panic!("no libarrow in {}", libraries.display()));

    let target = tempfile::tempdir().unwrap();
    let program = target.path().join("program");
    let mut command = Command::new(compiler);
    command.args(["-std=c++20", "-Wall", "-Wextra", "-Werror", "-isystem"]).arg(include);
    command.arg(folder().join(name)).arg("-o").arg(&program).arg(library()).arg(arrow).arg("-ldl");
    let mut rpath = OsString::from("-Wl,-rpath,");
    rpath.push(libraries);
    run(command.arg(rpath));
    Some(run(&mut Command::new(program)))
}

#[test]
fn arrow_cpp_gives_and_takes_streams() {
    let Some(said) = cpp("arrow_cpp_sql.cc") else { return };
    assert!(said.starts_with("people: int64\n") && said.contains("1418000"), "{said}");
    assert!(said.contains("No field named missing"), "{said}");
}

/// Memory of an OpenCL device in both directions, through a `MemoryManager`.
#[test]
fn arrow_cpp_gives_and_takes_device_memory() {
    if device::testing::config().unwrap().selector != device::Selector::Driver(device::DriverKind::OpenCl) {
        println!("skipped: the device of the tests is none of OpenCL's");
        return;
    }
    let Some(said) = cpp("arrow_cpp_opencl.cc") else { return };
    let tokens: Vec<&str> = said.split_whitespace().collect();
    let expected =
        "rows: [ 12 ] cities: [ 9 ] people: [ 2502021 ] twice: [ 268000, 1400000, 14, null ] large: [ false, true, false, null ]";
    assert_eq!(tokens.join(" "), expected);
}

#[test]
fn gpu_examples_compile() {
    let Some(mut python) = python() else { return };
    let files = ["cudf_sql.py", "cupy_sql.py"];
    for file in files {
        let text = std::fs::read_to_string(folder().join(file)).unwrap();
        assert!(text.starts_with("# Not run: needs an NVIDIA GPU"), "{file}");
    }
    // Like py_compile, but without a bytecode file beside the source.
    python.args(["-c", "import sys; [compile(open(file).read(), file, 'exec') for file in sys.argv[1:]]"]);
    run(python.args(files));
}

/// Code below the name of an example on the pages is part of that example.
#[test]
fn code_on_the_pages_is_part_of_the_examples() {
    let page = |name| std::fs::read_to_string(root().join("docs").join(name)).unwrap();
    let peers = page("peers.md") + &page("peers-gpu.md");
    let mut shown = Vec::new();
    let mut file = None;
    let mut lines = peers.lines();
    while let Some(line) = lines.next() {
        // The example that the page mentioned last.
        if let Some(name) = line.rsplit_once("`examples/peers/").and_then(|(_, rest)| rest.split_once('`')) {
            file = Some(name.0);
        }
        if line.starts_with("```") {
            let code: Vec<&str> = lines.by_ref().take_while(|line| *line != "```").collect();
            let file = file.expect("code without the name of its file");
            let text = std::fs::read_to_string(folder().join(file)).unwrap();
            let whole = format!("\n{}\n", code.join("\n"));
            assert!(text.contains(&whole), "docs/peers*.md: this is not in examples/peers/{file}:\n{whole}");
            shown.push(file);
        }
    }
    for file in ["pyarrow_sql.py", "nanoarrow_sql.py", "arrow_cpp_sql.cc", "cudf_sql.py", "cupy_sql.py"] {
        assert!(shown.contains(&file), "docs/peers*.md show nothing of examples/peers/{file}");
    }
}
