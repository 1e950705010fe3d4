// SPDX-License-Identifier: Apache-2.0
//! include/arrow_device.h: same layout and constants as `ffi.rs`, and compatible with other copies.

use std::collections::BTreeMap;
use std::mem::{align_of, offset_of, size_of};
use std::path::Path;
use std::process::Command;

use arrow::ffi::{FFI_ArrowArray, FFI_ArrowSchema};
use arrow_device::ffi::*;

use crate::c::{compile, include, output, source};

/// The output of layout.c, from Rust: every member of every struct, and every constant.
fn rust() -> BTreeMap<String, i64> {
    let mut numbers = BTreeMap::new();
    macro_rules! layout {
        ($($c:literal $rust:ident: $($member:ident)*;)*) => {$(
            numbers.insert(concat!("sizeof ", $c).to_string(), size_of::<$rust>() as i64);
            numbers.insert(concat!("alignof ", $c).to_string(), align_of::<$rust>() as i64);
            $(numbers.insert(format!("{}.{}", $c, stringify!($member)), offset_of!($rust, $member) as i64);)*
        )*};
    }
    layout! {
        "ArrowArray" FFI_ArrowArray: length null_count offset n_buffers n_children buffers children dictionary release private_data;
        "ArrowDeviceArray" FFI_ArrowDeviceArray: array device_id device_type sync_event reserved;
        "ArrowDeviceArrayStream" FFI_ArrowDeviceArrayStream: device_type get_schema get_next get_last_error release private_data;
        "ArrowAsyncTask" FFI_ArrowAsyncTask: extract_data private_data;
        "ArrowAsyncProducer" FFI_ArrowAsyncProducer: device_type request cancel additional_metadata private_data;
        "ArrowAsyncDeviceStreamHandler" FFI_ArrowAsyncDeviceStreamHandler:
            on_schema on_next_task on_error release producer private_data;
    }
    // arrow-rs keeps the members of its schema private.
    numbers.insert("sizeof ArrowSchema".into(), size_of::<FFI_ArrowSchema>() as i64);
    macro_rules! devices {
        ($($name:ident)*) => {$(
            numbers.insert(concat!("ARROW_DEVICE_", stringify!($name)).to_string(), i64::from(ArrowDeviceType::$name.0));
            assert_eq!(ArrowDeviceType::$name.name(), Some(stringify!($name)));
        )*};
    }
    devices! { CPU CUDA CUDA_HOST OPENCL VULKAN METAL VPI ROCM ROCM_HOST EXT_DEV CUDA_MANAGED ONEAPI WEBGPU HEXAGON }
    // No others: values outside of the list have no name.
    assert_eq!((0..100).filter(|value| ArrowDeviceType(*value).name().is_some()).count(), 14);
    numbers
}

#[test]
fn r1_to_r6_layout_and_constants_are_the_same_in_c_and_rust() {
    let program = output("layout");
    compile("cc", &["-std=c99", "-Wall", "-Wextra", "-Werror", "-pedantic"], &["layout.c"], &program).unwrap();
    let printed = Command::new(&program).output().unwrap();
    std::fs::remove_file(&program).unwrap();
    let lines = String::from_utf8(printed.stdout).unwrap();
    let numbers = lines.lines().map(|line| line.rsplit_once(' ').unwrap());
    let c: BTreeMap<_, _> = numbers.map(|(name, number)| (name.to_string(), number.parse().unwrap())).collect();
    assert_eq!(c, rust());
    // The list has every device type of the header, each of which is on its own line.
    let header = std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("include/arrow_device.h")).unwrap();
    let defined = header.lines().filter(|line| line.starts_with("#define ARROW_DEVICE_") && !line.ends_with("_H"));
    assert_eq!(defined.count(), 14);
}

/// Compiles without output.
#[track_caller]
fn compiles(compiler: &str, flags: &[&str], files: &[&str]) {
    for file in files {
        let language = if flags[0].contains("++") { "c++" } else { "c" };
        let strict = ["-Wall", "-Wextra", "-Werror", "-pedantic", "-fsyntax-only", "-x", language];
        let output = Command::new(compiler).args(flags).args(strict).arg(include()).arg(source(file)).output();
        let Ok(output) = output else {
            eprintln!("skipped: no {compiler}");
            return;
        };
        assert!(output.status.success(), "{compiler} {flags:?} {file}:\n{}", String::from_utf8_lossy(&output.stderr));
    }
}

#[test]
fn r7_header_is_c99_and_cpp17_and_keeps_the_guards() {
    for compiler in ["cc", "gcc", "clang"] {
        compiles(compiler, &["-std=c99"], &["guards.c", "layout.c"]);
        compiles(compiler, &["-std=c11"], &["guards.c", "layout.c"]);
    }
    for compiler in ["c++", "g++", "clang++"] {
        compiles(compiler, &["-std=c++17"], &["guards.c", "layout.c"]);
    }
}

/// With the headers of Arrow C++ in both orders, from `ARROW_CPP_INCLUDE` or Python's `pyarrow`.
#[test]
fn r7_header_works_with_that_of_arrow_cpp() {
    let python = || {
        let output = Command::new("python3").args(["-c", "import pyarrow; print(pyarrow.get_include())"]).output().ok()?;
        Some(String::from_utf8(output.stdout).ok()?.trim().to_string())
    };
    let found = std::env::var("ARROW_CPP_INCLUDE").ok().or_else(python);
    let Some(foreign) = found.filter(|at| Path::new(at).join("arrow/c/abi.h").is_file()) else {
        eprintln!("skipped: no arrow/c/abi.h; set ARROW_CPP_INCLUDE to its folder");
        return;
    };
    let foreign = format!("-I{foreign}");
    compiles("c++", &["-std=c++17", &foreign, "-DFOREIGN=1"], &["guards.c", "layout.c"]);
    compiles("c++", &["-std=c++17", &foreign, "-DFOREIGN=2"], &["guards.c", "layout.c"]);
    compiles("cc", &["-std=c99", &foreign, "-DFOREIGN=1"], &["layout.c"]);
    compiles("cc", &["-std=c99", &foreign, "-DFOREIGN=2"], &["layout.c"]);
}
