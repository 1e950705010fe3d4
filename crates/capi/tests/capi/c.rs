// SPDX-License-Identifier: Apache-2.0
//! Programs in C and C++ over the installed library. A test without its tools prints so and passes,
//! unless `DEVICEFUSION_REQUIRE_C=1`.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;

use crate::header::functions;

const REQUIRED: &str = "DEVICEFUSION_REQUIRE_C";
const STRICT: [&str; 4] = ["-std=c11", "-Wall", "-Wextra", "-Werror"];
const CITIES: &str = "Bern 134000\nOslo 709000\n";
/// 1.5 times the numbers from 501 to 1000.
const TAXED: &str = "500 rows, 562875.0\n";
const PRICES: &str = "\n2500 rows\n";

pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

/// Cargo's folder of the libraries for this test.
pub fn built() -> PathBuf {
    std::env::current_exe().unwrap().parent().unwrap().to_owned()
}

/// Whether all tools are installed.
fn has(tools: &[&str]) -> bool {
    let missing = tools.iter().find(|tool| Command::new(tool).arg("--version").output().is_err());
    let Some(tool) = missing else { return true };
    assert!(!std::env::var(REQUIRED).is_ok_and(|value| value == "1"), "{REQUIRED} = 1, but there is no {tool}");
    eprintln!("skipped: no {tool}");
    false
}

/// Runs a command, which must succeed, and returns its output.
#[track_caller]
pub fn run(command: &mut Command) -> String {
    let output = command.output().unwrap();
    let printed = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{command:?}: {}\n{printed}{}", output.status, String::from_utf8_lossy(&output.stderr));
    printed
}

/// Whether the process runs this test alone, so that no other one allocates meanwhile. If not, runs
/// it in such a process.
pub fn is_alone(test: &str) -> bool {
    const ALONE: &str = "DEVICEFUSION_CAPI_TEST_ALONE";
    if std::env::var_os(ALONE).is_some() {
        return true;
    }
    let mut command = Command::new(std::env::current_exe().unwrap());
    let printed = run(command.args(["--exact", test, "--nocapture"]).env(ALONE, "1"));
    assert!(printed.contains("1 passed"), "{printed}");
    false
}

/// Runs `make install` with variables.
pub fn install(variables: &[&str]) {
    let mut make = Command::new("make");
    make.arg("-C").arg(root()).args(["install", "INSTALL=ln -f"]).args(variables);
    make.arg(format!("BIN={}", built().display()));
    // The flags of an outer make must not apply.
    run(make.env_remove("MAKEFLAGS").env_remove("MAKELEVEL"));
}

/// A temporary folder with the library installed below `/usr`, where programs are built.
struct Installed(TempDir);

impl Installed {
    fn new() -> Self {
        Self::with(&["INSTALL_STATIC=ln -f"])
    }

    /// With the static library as `make install` makes it, which is slow.
    fn with_static_library() -> Self {
        Self::with(&[])
    }

    fn with(variables: &[&str]) -> Self {
        // In the target folder, so that the libraries can be linked instead of copied.
        let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let destination = format!("DESTDIR={}", folder.path().display());
        install(&[&["PREFIX=/usr", &destination], variables].concat());
        Self(folder)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// The output of pkg-config for the library.
    fn flags(&self, ask: &[&str]) -> Vec<String> {
        let mut command = Command::new("pkg-config");
        let printed = run(command.args(ask).arg("devicefusion").env("PKG_CONFIG_PATH", self.path("usr/lib/pkgconfig")));
        printed.split_whitespace().map(str::to_owned).collect()
    }

    /// Compiles a program that finds the installed library.
    fn compile(&self, sources: &[PathBuf]) -> PathBuf {
        let program = self.path("program");
        let mut cc = Command::new("cc");
        cc.args(STRICT).args(sources).args(self.flags(&["--cflags", "--libs"])).arg("-ldl").arg("-o").arg(&program);
        run(cc.arg(format!("-Wl,-rpath,{}", self.path("usr/lib").display())));
        program
    }
}

fn example(name: &str) -> PathBuf {
    root().join("examples/c").join(name)
}

fn quickstart() -> PathBuf {
    example("quickstart.c")
}

/// A file in this folder.
fn test_file(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/capi").join(name)
}

fn device() -> String {
    device::testing::config().unwrap().selector.to_string()
}

/// Whether this run has the turn of the test of this number among the long tests.
fn is_turn(number: usize) -> bool {
    let is_turn = device::testing::is_turn(number).unwrap();
    if !is_turn {
        println!("skipped: another part of the long tests has it");
    }
    is_turn
}

/// Whether the test device is an OpenCL device.
fn is_opencl() -> bool {
    let is_opencl = device::testing::config().unwrap().selector == device::Selector::Driver(device::DriverKind::OpenCl);
    if !is_opencl {
        println!("skipped: the test device is not an OpenCL device");
    }
    is_opencl
}

#[test]
fn quickstart_runs_on_the_device_and_on_the_host() {
    if !has(&["make", "cc", "pkg-config"]) {
        return;
    }
    let installed = Installed::new();
    let program = installed.compile(&[quickstart()]);
    assert_eq!(run(Command::new(&program).arg(device())), CITIES);
    assert_eq!(run(Command::new(&program).arg("none")), CITIES);
    let failed = Command::new(&program).arg("no such device").output().unwrap();
    assert_eq!(failed.status.code(), Some(1));
    assert!(String::from_utf8(failed.stderr).unwrap().contains("no such device"));
    assert_eq!(installed.flags(&["--modversion"]), [env!("CARGO_PKG_VERSION")]);
}

#[test]
fn a_kernel_of_the_program_runs_between_two_queries() {
    if !has(&["make", "cc", "pkg-config"]) {
        return;
    }
    if !is_opencl() {
        return;
    }
    let installed = Installed::new();
    let program = installed.compile(&[example("opencl.c")]);
    assert_eq!(run(&mut Command::new(program)), TAXED);
}

#[test]
fn device_streams_of_a_program_go_in_and_out() {
    if !has(&["make", "cc", "pkg-config"]) {
        return;
    }
    let installed = Installed::new();
    let program = installed.compile(&[test_file("prices.c"), example("prices.c")]);
    let printed = run(Command::new(program).arg(device()));
    assert!(printed.ends_with(PRICES), "{printed}");
}

#[test]
fn quickstart_links_with_the_static_library_which_exports_only_the_symbols_of_the_header() {
    if !has(&["make", "cc", "pkg-config", "nm", "ld", "objcopy", "ar"]) || !is_turn(2) {
        return;
    }
    let installed = Installed::with_static_library();
    let library = installed.path("usr/lib/libdevicefusion.a");
    let program = installed.path("static");
    let mut cc = Command::new("cc");
    cc.args(STRICT).arg(quickstart()).args(installed.flags(&["--cflags"])).arg(&library);
    let private = installed.flags(&["--libs-only-l", "--static"]);
    run(cc.args(private.iter().filter(|flag| *flag != "-ldevicefusion")).arg("-o").arg(&program));
    assert_eq!(run(Command::new(&program).arg("none")), CITIES);
    assert_eq!(run(Command::new(&program).arg(device())), CITIES);
    assert_eq!(symbols(&["-g"], &library), functions());
}

#[test]
fn cmake_finds_the_installed_library() {
    if !has(&["make", "cc", "cmake"]) {
        return;
    }
    let installed = Installed::new();
    let project = format!(
        "cmake_minimum_required(VERSION 3.13)\nproject(quickstart C)\nfind_package(devicefusion {} CONFIG REQUIRED)\n\
         add_executable(quickstart {})\ntarget_link_libraries(quickstart devicefusion::devicefusion)\n",
        env!("CARGO_PKG_VERSION"),
        quickstart().display()
    );
    std::fs::write(installed.path("CMakeLists.txt"), project).unwrap();
    let (source, build) = (installed.path("."), installed.path("build"));
    let prefix = format!("-DCMAKE_PREFIX_PATH={}", installed.path("usr").display());
    run(Command::new("cmake").arg("-S").arg(source).arg("-B").arg(&build).arg(prefix));
    run(Command::new("cmake").arg("--build").arg(&build));
    assert_eq!(run(Command::new(build.join("quickstart")).arg("none")), CITIES);
}

#[test]
fn the_header_is_good_for_cpp_and_for_strict_c99() {
    if !has(&["cc", "c++"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let include = |of: &str| format!("-I{}", root().join(of).display());
    for (compiler, standard, file) in [("cc", "-std=c99", "header.c"), ("c++", "-std=c++11", "header.cc")] {
        let file = folder.path().join(file);
        std::fs::write(&file, "#include \"devicefusion.h\"\n#include \"devicefusion.h\"\n").unwrap();
        let mut compile = Command::new(compiler);
        compile.args([standard, "-Wall", "-Wextra", "-Werror", "-pedantic", "-fsyntax-only"]).arg(file);
        run(compile.arg(include("crates/capi/include")).arg(include("crates/arrow-device/include")));
    }
}

/// A Python with pyarrow and ADBC's driver manager. Without one: a message and `None`.
pub fn python() -> Option<String> {
    let python = Command::new(root().join("scripts/python-peers.sh")).output().unwrap();
    if !python.status.success() {
        let required = std::env::var("DEVICEFUSION_REQUIRE_PYTHON").is_ok_and(|value| value == "1");
        assert!(!required, "DEVICEFUSION_REQUIRE_PYTHON = 1, but {}", String::from_utf8_lossy(&python.stderr));
        eprintln!("skipped: no Python with pyarrow: {}", String::from_utf8_lossy(&python.stderr));
        return None;
    }
    Some(String::from_utf8(python.stdout).unwrap().trim_end().to_owned())
}

/// The folders of Arrow C++'s headers and libraries in pyarrow's wheel.
fn arrow_cpp() -> Option<(PathBuf, PathBuf)> {
    let ask = "import pyarrow; print(pyarrow.get_include()); print(pyarrow.get_library_dirs()[0])";
    let printed = run(Command::new(python()?).args(["-B", "-s", "-c", ask]));
    let folders: Vec<PathBuf> = printed.lines().map(PathBuf::from).collect();
    let [include, libraries] = &folders[..] else { panic!("{printed}") };
    Some((include.clone(), libraries.clone()))
}

/// The compiled example over Arrow C++, if there is an Arrow C++.
fn arrow_program(installed: &Installed) -> Option<PathBuf> {
    let (include, libraries) = arrow_cpp()?;
    // The wheel has libarrow only under its versioned name.
    let names = std::fs::read_dir(&libraries).unwrap().map(|entry| entry.unwrap().path());
    let is_arrow = |path: &PathBuf| path.file_name().unwrap().to_str().unwrap().starts_with("libarrow.so.");
    let arrow = names.into_iter().find(is_arrow).unwrap();
    let program = installed.path("program");
    let mut compile = Command::new("c++");
    compile.args(["-std=c++20", "-Wall", "-Wextra", "-Werror", "-isystem"]).arg(include);
    compile.arg(example("arrow_cpp.cc")).args(installed.flags(&["--cflags", "--libs"])).arg(arrow);
    compile.arg(format!("-Wl,-rpath,{}:{}", installed.path("usr/lib").display(), libraries.display()));
    run(compile.arg("-o").arg(&program));
    Some(program)
}

#[track_caller]
fn has_sums_of_cities(printed: &str) {
    let tokens: Vec<&str> = printed.split(|c: char| !c.is_alphanumeric()).filter(|token| !token.is_empty()).collect();
    let tokens = tokens.join(" ");
    assert!(tokens.contains("Bern Oslo") && tokens.contains("134000 1409000"), "{printed}");
    assert!(printed.contains("Invalid: ") && printed.contains("No field named missing"), "{printed}");
}

#[test]
fn arrow_cpp_exchanges_batches_with_the_library() {
    if !has(&["make", "c++", "pkg-config"]) {
        return;
    }
    let installed = Installed::new();
    let Some(program) = arrow_program(&installed) else { return };
    for device in [device(), "none".to_owned()] {
        has_sums_of_cities(&run(Command::new(&program).arg(device)));
    }
}

#[test]
fn arrow_cpp_is_clean_under_valgrind() {
    if !has(&["make", "c++", "pkg-config", "valgrind"]) || !is_turn(1) {
        return;
    }
    let installed = Installed::new();
    let Some(program) = arrow_program(&installed) else { return };
    has_sums_of_cities(&run(valgrind(&program).arg("none")));
    if is_opencl() {
        // PoCL's cache then has the kernels: LLVM needs half a minute for one under valgrind.
        run(Command::new(&program).arg(device()));
        has_sums_of_cities(&run(valgrind(&program).arg(device())));
    }
}

/// The symbols that a library defines, as nm lists them.
fn symbols(ask: &[&str], library: &Path) -> BTreeSet<String> {
    let printed = run(Command::new("nm").args(ask).args(["--defined-only", "--format=posix"]).arg(library));
    // An archive's members have a line each, without a type.
    printed.lines().filter_map(|line| line.split_once(' ')).map(|(name, _)| name.to_owned()).collect()
}

#[test]
fn the_library_has_the_symbols_of_the_header_and_no_others() {
    if !has(&["nm"]) {
        return;
    }
    let mut wanted = functions();
    // ADBC's header declares it.
    wanted.insert("AdbcDriverInit".into());
    assert_eq!(symbols(&["-D"], &built().join("libdevicefusion_capi.so")), wanted);
}

#[test]
fn programs_that_misuse_the_library_get_errors() {
    if !has(&["make", "cc", "pkg-config"]) {
        return;
    }
    let installed = Installed::new();
    let program = installed.compile(&[test_file("misuse.c")]);
    assert_eq!(run(Command::new(&program).arg(device())), "ok\n");
    assert_eq!(run(Command::new(&program).arg("none")), "ok\n");
}

/// A driver may cache its programs in a folder that its environment variables name.
#[test]
fn no_file_is_written_by_default() {
    if !has(&["make", "cc", "pkg-config"]) {
        return;
    }
    let installed = Installed::new();
    let program = installed.compile(&[quickstart()]);
    let (folder, driver_cache) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    for device in [device(), "none".to_owned()] {
        let mut command = Command::new(&program);
        command.arg(device).current_dir(folder.path()).env("POCL_CACHE_DIR", driver_cache.path());
        for variable in ["HOME", "TMPDIR", "XDG_CACHE_HOME", "XDG_DATA_HOME"] {
            command.env(variable, folder.path());
        }
        assert_eq!(run(&mut command), CITIES);
        let files: Vec<_> = std::fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().path()).collect();
        assert!(files.is_empty(), "{files:?}");
    }
}

/// A program under valgrind. Suppressions cover findings in other libraries.
fn valgrind(program: &Path) -> Command {
    let mut valgrind = Command::new("valgrind");
    valgrind.args(["-q", "--error-exitcode=99", "--leak-check=full", "--show-leak-kinds=definite"]);
    valgrind.arg("--errors-for-leak-kinds=definite");
    valgrind.arg(format!("--suppressions={}", test_file("valgrind.supp").display())).arg(program);
    // Valgrind reports the memory of Arrow's pools as leaks.
    valgrind.env("RUST_BACKTRACE", "0").env("ARROW_DEFAULT_MEMORY_POOL", "system");
    valgrind
}

#[test]
fn programs_on_the_host_are_clean_under_valgrind() {
    if !has(&["make", "cc", "pkg-config", "valgrind"]) || !is_turn(3) {
        return;
    }
    let installed = Installed::new();
    let programs = vec![(quickstart(), CITIES), (test_file("misuse.c"), "ok\n")];
    for (source, expected) in device::testing::sample(programs).unwrap() {
        assert_eq!(run(valgrind(&installed.compile(&[source])).arg("none")), expected);
    }
}

/// Valgrind takes minutes, so a run of one part of the long tests has one of the programs.
#[test]
fn programs_on_the_device_are_clean_under_valgrind() {
    if !has(&["make", "cc", "pkg-config", "valgrind"]) || !is_opencl() || !is_turn(4) {
        return;
    }
    let installed = Installed::new();
    let programs = vec![
        (vec![quickstart()], CITIES),
        (vec![example("opencl.c")], TAXED),
        (vec![test_file("prices.c"), example("prices.c")], PRICES),
        (vec![test_file("misuse.c")], "ok\n"),
    ];
    for (sources, expected) in device::testing::sample(programs).unwrap() {
        let program = installed.compile(&sources);
        // PoCL's cache then has the kernels: LLVM needs half a minute for one under valgrind.
        run(Command::new(&program).arg(device()));
        let printed = run(valgrind(&program).arg(device()));
        assert!(printed.ends_with(expected), "{printed}");
    }
}
