// SPDX-License-Identifier: Apache-2.0
//! clang accepts prelude and kernels as OpenCL C 1.2 and 3.0.
//!
//! The gate is stricter than any driver: 3.0 without optional features (no generic address space,
//! no subgroups), and required extensions only.

use std::collections::HashSet;
use std::io::Write;
use std::process::{Command, Stdio};

use device::{MegakernelPart, testing};
use kernels::codegen::Profile;
use kernels::prelude::{Section, Sections};

use crate::sample::{Sample, programs};
use crate::{in_parallel, missing};

/// A language mode: its name, the standard, and the macros of a driver.
const DIALECTS: [(&str, &str, &[&str]); 3] = [
    ("OpenCL C 1.2", "CL1.2", &["-D__OPENCL_VERSION__=120", "-Xclang", "-finclude-default-header", "-Xclang", EXTENSIONS_1_2]),
    ("OpenCL C 3.0", "CL3.0", &["-D__OPENCL_VERSION__=300", "-Xclang", "-finclude-default-header", "-Xclang", EXTENSIONS_3_0]),
    (
        "OpenCL C 1.2 without functions",
        "CL1.2",
        &[
            "-D__OPENCL_VERSION__=120",
            "-cl-no-stdinc",
            "-include",
            "opencl-c-base.h",
            "-DBUILTINS_UNDECLARED",
            "-DPOCL_DEVICE_ADDRESS_BITS=64",
        ],
    ),
];

/// Extensions that kernels use.
const EXTENSIONS_1_2: &str = "-cl-ext=-all,+cl_khr_fp64,+cl_khr_int64_base_atomics,+cl_khr_int64_extended_atomics";
const EXTENSIONS_3_0: &str =
    "-cl-ext=-all,+cl_khr_fp64,+__opencl_c_fp64,+__opencl_c_int64,+cl_khr_int64_base_atomics,+cl_khr_int64_extended_atomics";

/// Warnings that are errors. Generated sources may have unused functions and locals, and
/// comparisons of constants; `!a & b` is intended.
const WARNINGS: [&str; 8] = [
    "-Wall",
    "-Wextra",
    "-Werror",
    "-Wno-unused",
    "-Wno-unused-parameter",
    "-Wno-sign-compare",
    "-Wno-logical-not-parentheses",
    "-Wno-constant-logical-operand",
];

fn clang() -> Option<String> {
    let clang = std::env::var("CLANG").unwrap_or_else(|_| "clang".to_owned());
    let found = Command::new(&clang).arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status();
    if found.is_ok_and(|status| status.success()) {
        return Some(clang);
    }
    missing("clang", "DEVICEFUSION_REQUIRE_CLANG", "on Debian or Ubuntu: apt-get install clang");
    None
}

/// clang's diagnostics of a source.
fn complaints(clang: &str, text: &str, (_, standard, given): (&str, &str, &[&str])) -> Option<String> {
    let mut command = Command::new(clang);
    command.args(["-x", "cl", "-target", "spir64", "-fsyntax-only", &format!("-cl-std={standard}")]);
    command.args(WARNINGS).args(given).arg("-");
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    let complaints = String::from_utf8_lossy(&output.stderr);
    // One fault causes many diagnostics.
    (!output.status.success()).then(|| complaints.lines().take(12).collect::<Vec<_>>().join("\n"))
}

#[track_caller]
fn check(samples: &[Sample]) {
    let Some(clang) = clang() else { return };
    let failures: Vec<String> = in_parallel(samples, |sample| {
        let complaints = DIALECTS.into_iter().filter_map(|dialect| {
            let complaint = complaints(&clang, &sample.text, dialect)?;
            Some(format!("{} as {}:\n{complaint}", sample.name, dialect.0))
        });
        complaints.collect::<Vec<_>>()
    })
    .concat();
    let shown: Vec<&str> = failures.iter().take(5).map(String::as_str).collect();
    assert!(failures.is_empty(), "{} of {} texts:\n{}", failures.len(), DIALECTS.len() * samples.len(), shown.join("\n"));
    eprintln!("{} texts are OpenCL C 1.2 and 3.0, and declare the functions that they call", samples.len());
}

/// Each section compiles with its declared dependencies.
#[test]
fn prelude_sections_are_opencl_1_2_and_3_0() {
    let samples = Section::ALL.iter().map(|section| {
        let mut sections = Sections::default();
        sections.need(*section);
        Sample { name: format!("prelude section {section:?}"), text: sections.source(), megakernel_part: None }
    });
    check(&samples.collect::<Vec<_>>());
}

/// One program in ten, different ones per profile. Drivers compile all of them in other tests. One
/// part of the long tests has one program in eighty.
#[test]
fn kernels_are_opencl_1_2_and_3_0() {
    let (first, step) = match testing::parts().unwrap().as_slice() {
        [part] => (*part, 80),
        _ => (0, 10),
    };
    for (number, profile) in [Profile::Gpu, Profile::Cpu].into_iter().enumerate() {
        let samples: Vec<Sample> = programs(profile).into_iter().skip(first + 5 * number).step_by(step).collect();
        check(&samples);
    }
}

/// Programs of all operators fit into megakernels: no two have a name in common.
#[test]
fn megakernels_are_opencl_1_2_and_3_0() {
    const PROGRAMS: usize = 24;
    let (first, step) = match testing::parts().unwrap().as_slice() {
        [part] => (*part, 160),
        _ => (0, 5),
    };
    let programs: Vec<Sample> = programs(Profile::Cpu).into_iter().skip(first).step_by(step).collect();
    let part = |program: &Sample| program.megakernel_part.as_ref()?.write();
    let parts: Vec<MegakernelPart> = programs.iter().filter_map(part).collect();
    let names: HashSet<&String> = parts.iter().flat_map(|part| &part.functions).collect();
    assert_eq!(names.len(), parts.iter().map(|part| part.functions.len()).sum::<usize>());
    assert!(parts.len() * 10 > programs.len() * 9, "{} of {} programs are parts", parts.len(), programs.len());
    let samples = parts.chunks(PROGRAMS).enumerate().map(|(number, parts)| {
        let (text, firsts) = MegakernelPart::join(&parts.iter().collect::<Vec<_>>());
        assert_eq!((firsts.len(), firsts[0]), (parts.len(), 0));
        Sample { name: format!("megakernel {number}"), text, megakernel_part: None }
    });
    check(&samples.collect::<Vec<_>>());
}

/// The gate can fail.
#[test]
fn missing_address_space_and_optional_feature_are_refused() {
    let Some(clang) = clang() else { return };
    let missing_space = "kernel void k(global ulong *p) { ulong *q = p; *q = 1; }";
    let subgroups = "kernel void k(global uint *p) { *p = get_sub_group_size(); }";
    let fine = "kernel void k(global double *p) { *p = 1.0; }";
    for dialect in DIALECTS {
        assert!(complaints(&clang, missing_space, dialect).is_some_and(|text| text.contains("address space")));
        assert!(complaints(&clang, subgroups, dialect).is_some_and(|text| text.contains("get_sub_group_size")));
        assert_eq!(complaints(&clang, fine, dialect), None);
    }
}
