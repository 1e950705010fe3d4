// SPDX-License-Identifier: Apache-2.0
//! The choice of devices, and drivers that are missing or broken.

use std::path::Path;
use std::process::Command;

use crate::{Run, SUM, SUM_IS, run, shell, shell_with_variable};

/// A shell with `vendors` as the registry of OpenCL drivers.
fn shell_with_vendors(vendors: &Path, arguments: &[&str]) -> Run {
    let mut command = Command::new(env!("CARGO_BIN_EXE_devicefusion"));
    command.env_remove("DATAFUSION_DEVICE_SELECTOR").env("OCL_ICD_VENDORS", vendors).env("PYOPENCL_HOME", vendors);
    run(command.args(arguments), "")
}

/// How OpenCL is missing.
#[derive(Debug, Clone, Copy)]
enum OpenCl {
    /// The registry of drivers is empty.
    WithoutDriver,
    /// The loader library is missing too.
    Absent,
}

/// A shell without any device, CUDA GPUs included.
fn shell_without_device(opencl: OpenCl, arguments: &[&str]) -> Run {
    let folder = tempfile::tempdir().unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_devicefusion"));
    command.env_remove("DATAFUSION_DEVICE_SELECTOR").env("CUDA_VISIBLE_DEVICES", "").args(arguments);
    match opencl {
        OpenCl::WithoutDriver => command.env("OCL_ICD_VENDORS", folder.path()).env("PYOPENCL_HOME", folder.path()),
        OpenCl::Absent => {
            // The dynamic linker finds this file first, and it is not a library.
            std::fs::write(folder.path().join("libOpenCL.so.1"), "").unwrap();
            command.env("LD_LIBRARY_PATH", folder.path())
        }
    };
    run(&mut command, "")
}

#[test]
fn resident_tables_need_a_device() {
    let create = "CREATE TABLE device.t AS SELECT 1 AS i";
    assert_eq!(shell(&["-q", "-c", create]).stdout, "", "a statement without rows prints none");
    for run in [
        shell(&["--device", "none", "-c", create]),
        shell(&["-c", "SET device.selector = 'none'", create]),
        shell_without_device(OpenCl::WithoutDriver, &["--device", "none", "-c", create]),
    ] {
        assert!(!run.success, "{}", run.stdout);
        assert!(run.stderr.contains("a table of device memory needs a device: device."), "{}", run.stderr);
    }
    for (sql, problem) in [
        ("CREATE TABLE device.t AS SELECT named_struct('x', 1) AS a", "DeviceTable: column \"a\": Struct("),
        ("CREATE VIEW device.v AS SELECT 1", "device.v: only tables of rows can be resident"),
        ("DROP TABLE device.nope", "device.nope"),
    ] {
        let run = shell(&["-c", sql]);
        assert!(!run.success && run.stderr.contains(problem), "{sql}: {}", run.stderr);
    }
}

#[test]
fn the_log_shows_device_and_programs() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_devicefusion"));
    let selector = device::testing::config().unwrap().selector.to_string();
    command.args(["--strict", "-c", "SELECT sum(value) AS s FROM generate_series(1, 1000) WHERE value > 10"]);
    command.env("DATAFUSION_DEVICE_SELECTOR", selector).env("RUST_LOG", "devicefusion=debug");
    let run = run(&mut command, "");
    assert!(run.success, "{}", run.stderr);
    for part in ["bytes of memory", "program of Reduce", "compiled in"] {
        assert!(run.stderr.contains(part), "{part}: {}", run.stderr);
    }
}

/// Programs of PoCL lie below `device.cache_dir`, for the next process.
#[test]
fn the_folder_of_compiled_programs_holds_those_of_pocl() {
    let (folder, home) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let files = || {
        let (mut folders, mut files) = (vec![folder.path().join("pocl")], 0);
        while let Some(folder) = folders.pop() {
            for entry in std::fs::read_dir(folder).into_iter().flatten().map(|entry| entry.unwrap().path()) {
                files += usize::from(entry.extension().is_some_and(|extension| extension == "so"));
                folders.extend(Some(entry).filter(|entry| entry.is_dir()));
            }
        }
        files
    };
    let config = device::testing::config().unwrap();
    let is_pocl = config.choose().unwrap().platform.contains("Portable Computing Language");
    let mut counts = Vec::new();
    for _ in 0..2 {
        let mut command = Command::new(env!("CARGO_BIN_EXE_devicefusion"));
        command.args(["--strict", "-c", "SELECT sum(value) AS s FROM generate_series(1, 1000) WHERE value > 10"]);
        command.env("DATAFUSION_DEVICE_SELECTOR", config.selector.to_string());
        command.env("DATAFUSION_DEVICE_CACHE_DIR", folder.path()).env("XDG_CACHE_HOME", home.path());
        command.env_remove("POCL_CACHE_DIR");
        let run = run(&mut command, "");
        assert!(run.success, "{}", run.stderr);
        counts.push(files());
    }
    if is_pocl {
        assert!(counts[0] > 0 && counts[0] == counts[1], "{counts:?}");
        assert!(!home.path().join("pocl").exists());
    }
}

/// The dynamic linker reports the libraries that it opens.
#[test]
fn statements_that_need_no_device_load_no_driver() {
    let opens = |arguments: &[&str]| {
        let folder = tempfile::tempdir().unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_devicefusion"));
        command.env_remove("DATAFUSION_DEVICE_SELECTOR").env("LD_DEBUG", "files");
        command.env("LD_DEBUG_OUTPUT", folder.path().join("opened"));
        let run = run(command.args(arguments), "");
        assert!(run.success, "{}", run.stderr);
        let mut reports = std::fs::read_dir(folder.path()).unwrap().map(|file| std::fs::read_to_string(file.unwrap().path()));
        reports.any(|report| report.unwrap().contains("libOpenCL.so"))
    };
    assert!(!opens(&["-c", "SHOW device.cost", "\\d", "DESCRIBE information_schema.tables"]));
    // A note about the device comes with the first query that reads rows.
    assert!(!opens(&["-c", "SELECT 1 + 1", "VALUES (1), (2)", "CREATE TABLE t AS SELECT 1"]));
    assert!(opens(&["-q", "-c", SUM[4]]) && opens(&["-c", "CREATE TABLE t AS SELECT 1", "SELECT * FROM t"]));
}

#[test]
fn without_a_device_the_shell_says_so_and_uses_the_host() {
    let run = shell(&["--device", "none", "-c", "SELECT count(*) FROM generate_series(1, 3)"]);
    assert!(run.success);
    assert!(run.stderr.contains("host"), "{}", run.stderr);
    assert!(!shell(&["--device", "none", "--strict", "-c", "SELECT 1"]).success);
}

#[test]
fn without_a_driver_the_host_works_unless_strict() {
    for opencl in [OpenCl::WithoutDriver, OpenCl::Absent] {
        let devices = shell_without_device(opencl, &["devices"]);
        assert!(devices.success);
        assert!(devices.stdout.contains("No device can be used"), "{opencl:?}: {}", devices.stdout);
        let sql = "SELECT sum(value) AS s FROM generate_series(1, 100000)";
        let run = shell_without_device(opencl, &["--format", "csv", "-c", sql]);
        assert!(run.success, "{opencl:?}: {}", run.stderr);
        assert!(run.stdout.contains("5000050000"), "{opencl:?}: {}", run.stdout);
        assert!(run.stderr.starts_with("No device"), "{opencl:?}: {}", run.stderr);
        for arguments in [["--strict", "-c", "SELECT 1"], ["--device=opencl", "-c", "SELECT 1"]] {
            let run = shell_without_device(opencl, &arguments);
            assert!(!run.success, "{opencl:?}");
            assert!(run.stderr.contains("opencl"), "{opencl:?}: {}", run.stderr);
        }
    }
}

/// Without a usable OpenCL driver, the list has the reason, and queries run on the host unless
/// strict.
#[track_caller]
fn check_broken(reason: &str, shell: impl Fn(&[&str]) -> Run) {
    let devices = shell(&["devices"]);
    assert!(devices.success, "{}", devices.stderr);
    assert!(devices.stdout.contains(reason), "{}", devices.stdout);
    let run = shell(&SUM);
    assert!(run.success && run.stdout == SUM_IS, "{} {}", run.stdout, run.stderr);
    for arguments in [["--device=opencl", "-c", "SELECT 1"], ["--device=#9", "-c", "SELECT 1"]] {
        let run = shell(&arguments);
        assert!(!run.success);
        assert!(run.stderr.contains(reason) && !run.stderr.contains("panicked"), "{}", run.stderr);
    }
}

#[test]
fn broken_drivers_are_named_with_what_is_wrong() {
    let folder = tempfile::tempdir().unwrap();
    let icd = folder.path().join("broken.icd");
    let junk = folder.path().join("junk.so");
    std::fs::write(&junk, "not a library").unwrap();
    for (driver, problem) in [
        ("/nowhere/libmissing.so", "/nowhere/libmissing.so: cannot open shared object file"),
        (junk.to_str().unwrap(), "junk.so: file too short"),
        ("libc.so.6", "it offers no platform"),
        ("", "could use no driver"),
    ] {
        std::fs::write(&icd, format!("{driver}\n")).unwrap();
        check_broken(problem, |arguments| shell_with_vendors(folder.path(), arguments));
        check_broken("broken.icd names", |arguments| shell_with_vendors(folder.path(), arguments));
    }
}

#[test]
fn a_broken_loader_is_named_with_what_is_wrong() {
    let folder = tempfile::tempdir().unwrap();
    let loader = folder.path().join("libOpenCL.so.1");
    let with_loader = |arguments: &[&str]| shell_with_variable("LD_LIBRARY_PATH", folder.path().to_str().unwrap(), arguments);
    std::fs::write(&loader, "not a library").unwrap();
    check_broken("libOpenCL.so.1: file too short", with_loader);
    // A library without OpenCL's functions.
    let libc = ["/lib/x86_64-linux-gnu/libm.so.6", "/lib/aarch64-linux-gnu/libm.so.6", "/lib64/libm.so.6"];
    let Some(libc) = libc.into_iter().find(|path| Path::new(path).exists()) else { return };
    std::fs::copy(libc, &loader).unwrap();
    check_broken("lacks clGetPlatformIDs", with_loader);
}

#[test]
fn devices_are_chosen_by_keyword_number_and_name() {
    let list = shell(&["devices"]).stdout;
    let Some(first) = list.lines().find(|line| line.starts_with("#0") && line.ends_with("usable")) else {
        panic!("these tests need a device: {list}")
    };
    let name = first.split_whitespace().nth(1).unwrap();
    for device in ["auto", "AUTO", "opencl", "#0", name, &name.to_uppercase()] {
        let run = shell(&[&["--device", device][..], &SUM[1..]].concat());
        assert!(run.success && run.stdout.starts_with(SUM_IS), "{device}: {} {}", run.stdout, run.stderr);
        assert!(run.stderr.starts_with("Device #"), "{device}: {}", run.stderr);
    }
    for device in ["none", "None"] {
        let run = shell(&[&["--device", device][..], &SUM[1..]].concat());
        assert!(run.success && run.stderr.starts_with("No device"), "{}", run.stderr);
    }
    for (device, problem) in [
        ("#99", "device #99: no such device; there is #0"),
        ("no such", "device no such: no such device; there is #0"),
        ("#x", "device.selector = #x: expected a number after #"),
        ("", "device.selector is empty: must be auto, none, cuda, opencl"),
    ] {
        let run = shell(&["--device", device, "-c", "SELECT 1"]);
        assert!(!run.success && run.stdout.is_empty(), "{}", run.stdout);
        assert!(run.stderr.contains(problem), "{device}: {}", run.stderr);
    }
}

#[test]
fn unknown_device_is_named() {
    let run = shell(&["--device", "no such device", "-c", "SELECT 1"]);
    assert!(!run.success);
    assert!(run.stderr.contains("no such device"), "{}", run.stderr);
}

#[test]
fn devices_lists_every_driver() {
    let run = shell(&["devices"]);
    assert!(run.success);
    let lines: Vec<&str> = run.stdout.lines().collect();
    assert!(lines[0].contains("NAME") && lines[0].contains("MEMORY"), "{}", run.stdout);
    assert!(lines.iter().any(|line| line.contains("opencl")), "{}", run.stdout);
    assert!(lines.iter().any(|line| line.contains("cuda")), "{}", run.stdout);
}
