// SPDX-License-Identifier: Apache-2.0
//! Builds the peer from its C++ sources and the wheel's headers.

use std::ffi::OsString;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;
use std::{env, fs};

use libloading::Library;

const REQUIRED: &str = "DEVICEFUSION_REQUIRE_PYTHON";
const SOURCES: [&str; 3] = ["arrays.cc", "async.cc", "device.cc"];
const FLAGS: [&str; 6] = ["-std=c++20", "-O0", "-fPIC", "-Wall", "-Wextra", "-Werror"];

/// The peer, built and loaded once; `None`, with a message, if a tool is missing.
pub fn library() -> Option<&'static Library> {
    static PEER: OnceLock<Result<Library, String>> = OnceLock::new();
    match PEER.get_or_init(load) {
        Ok(library) => Some(library),
        Err(missing) => {
            let required = env::var(REQUIRED).is_ok_and(|value| value == "1");
            assert!(!required, "{REQUIRED} = 1, but {missing}");
            eprintln!("skipped: {missing}");
            None
        }
    }
}

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cpp")
}

fn load() -> Result<Library, String> {
    let compiler = env::var_os("CXX").unwrap_or_else(|| OsString::from("c++"));
    let version = run(Command::new(&compiler).arg("--version"))?;
    let wheel = Wheel::find()?;
    // A broken peer is an error, unlike a missing tool.
    let path = build(&compiler, &version, &wheel).unwrap_or_else(|error| panic!("the peer does not build: {error}"));
    // SAFETY: its initialisers are those of Arrow C++ and of the C++ library.
    Ok(unsafe { Library::new(&path) }.unwrap())
}

/// The folders of pyarrow's headers and libraries.
struct Wheel {
    include: PathBuf,
    libraries: PathBuf,
    /// The file name of libarrow with its version: the wheel has no plain one.
    arrow: String,
}

impl Wheel {
    fn find() -> Result<Self, String> {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts/python-peers.sh");
        let python = run(&mut Command::new(script))?;
        let python = python.lines().last().unwrap_or_default();
        let ask = "import pyarrow; print(pyarrow.get_include()); print(pyarrow.get_library_dirs()[0])";
        let printed = run(Command::new(python).args(["-c", ask]))?;
        let mut lines = printed.lines().map(PathBuf::from);
        let (Some(include), Some(libraries)) = (lines.next(), lines.next()) else {
            return Err(format!("pyarrow of {python} prints no folders: {printed}"));
        };
        let names = fs::read_dir(&libraries).map_err(|error| format!("{}: {error}", libraries.display()))?;
        let mut names = names.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
        let arrow = names.find(|name| name.starts_with("libarrow.so.") || name == "libarrow.dylib");
        let arrow = arrow.ok_or_else(|| format!("no libarrow in {}", libraries.display()))?;
        Ok(Self { include, libraries, arrow })
    }
}

fn run(command: &mut Command) -> Result<String, String> {
    let output = command.stdin(Stdio::null()).output();
    let program = command.get_program().to_string_lossy();
    let output = output.map_err(|error| format!("{program} does not run: {error}"))?;
    match output.status.success() {
        true => Ok(String::from_utf8_lossy(&output.stdout).trim().to_string()),
        false => Err(format!("{program} failed: {}", String::from_utf8_lossy(&output.stderr).trim())),
    }
}

/// Compiles all files in parallel; reuses an earlier build of the same sources.
fn build(compiler: &OsString, version: &str, wheel: &Wheel) -> Result<PathBuf, String> {
    let mut hasher = DefaultHasher::new();
    (version, &wheel.libraries, &wheel.arrow, FLAGS).hash(&mut hasher);
    for name in SOURCES.iter().chain(&["peer.h"]) {
        fs::read(folder().join(name)).unwrap().hash(&mut hasher);
    }
    let tmp = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let library = tmp.join(format!("cpp-peer-{:016x}.so", hasher.finish()));
    if library.is_file() {
        return Ok(library);
    }
    // Other processes may build too, so outputs are renamed once complete.
    let own = |name: &str| tmp.join(format!("{}-{name}", std::process::id()));
    let compiling = SOURCES.map(|name| {
        let object = own(&format!("{name}.o"));
        let mut command = Command::new(compiler);
        command.args(FLAGS).arg("-isystem").arg(&wheel.include).arg("-c").arg(folder().join(name)).arg("-o").arg(&object);
        (command.stderr(Stdio::piped()).spawn().unwrap(), object)
    });
    let mut objects = Vec::new();
    for (child, object) in compiling {
        let output = child.wait_with_output().unwrap();
        if !output.status.success() {
            return Err(String::from_utf8_lossy(&output.stderr).into_owned());
        }
        objects.push(object);
    }
    let linked = own("cpp-peer.so");
    let mut rpath = OsString::from("-Wl,-rpath,");
    rpath.push(&wheel.libraries);
    let mut command = Command::new(compiler);
    command.arg("-shared").args(&objects).arg(wheel.libraries.join(&wheel.arrow)).arg(rpath).arg("-pthread");
    run(command.arg("-o").arg(&linked))?;
    for object in objects {
        fs::remove_file(object).unwrap();
    }
    fs::rename(&linked, &library).unwrap();
    Ok(library)
}
