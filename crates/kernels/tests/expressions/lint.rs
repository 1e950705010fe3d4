// SPDX-License-Identifier: Apache-2.0
//! clang accepts the whole prelude, and kernel sources of every kind, as OpenCL C 1.2 and 3.0.

use std::io::Write;
use std::process::{Command, Stdio};

use columnar::ColumnType;
use device::testing;
use kernels::codegen::Profile;
use kernels::expr::{CompareOp, Expr, LiteralValue};
use kernels::prelude::{Section, Sections};
use kernels::support::supports_cast;

use crate::data;
use crate::harness::{lit, write};
use crate::host::arithmetic_type;
use crate::operators::{ARITHMETIC, column};

/// Warnings about style, irrelevant for generated sources.
const ALLOWED: [&str; 4] =
    ["-Wno-unused-function", "-Wno-unused-variable", "-Wno-parentheses-equality", "-Wno-tautological-compare"];

#[track_caller]
fn lint(text: &str) {
    let declared = ["-Xclang", "-finclude-default-header"].as_slice();
    let undeclared = ["-cl-no-stdinc", "-include", "opencl-c-base.h", "-DBUILTINS_UNDECLARED"].as_slice();
    for (standard, given) in [("CL1.2", declared), ("CL3.0", declared), ("CL1.2", undeclared)] {
        let clang = Command::new("clang")
            .args(["-x", "cl", "-target", "spir64", "-fsyntax-only", "-Wall", "-Werror", &format!("-cl-std={standard}")])
            .args(given)
            .args(ALLOWED)
            .arg("-")
            .stdin(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn();
        let Ok(mut clang) = clang else {
            println!("clang is not there: nothing was linted");
            return;
        };
        clang.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
        let output = clang.wait_with_output().unwrap();
        assert!(output.status.success(), "{standard}: {}", String::from_utf8_lossy(&output.stderr));
    }
}

/// `gates` compiles each section alone.
#[test]
fn prelude_is_opencl() {
    let mut sections = Sections::default();
    Section::ALL.iter().for_each(|section| sections.need(*section));
    lint(&sections.source());
}

#[test]
fn kernel_sources_are_opencl() {
    for data_type in testing::sample(data::all()).unwrap() {
        let types = [ColumnType::of(&data_type, true).unwrap(), ColumnType::of(&data_type, false).unwrap()];
        let mut exprs = vec![Expr::Compare { op: CompareOp::Lt, left: column(0), right: column(1) }];
        for op in ARITHMETIC {
            if let Some(result) = arithmetic_type(op, &data_type, &data_type) {
                exprs.push(Expr::Arithmetic { op, left: column(0), right: column(1), data_type: result });
            }
        }
        for to in data::all() {
            if supports_cast(&data_type, &to).is_ok() {
                exprs.push(Expr::Cast { expr: column(0), to: to.clone(), checked: true });
                exprs.push(Expr::Cast { expr: column(1), to, checked: false });
            }
        }
        let list = data::special(&data_type).into_iter().map(|value| data::literal(&data_type, value)).collect();
        exprs.push(Expr::InList { expr: column(0), list, negated: false });
        exprs.push(Expr::Coalesce(vec![Expr::Column(0), lit(&data_type, LiteralValue::Null), Expr::Column(1)]));
        for profile in [Profile::Gpu, Profile::Cpu] {
            let text = write(&types, &exprs, 100, 64, profile);
            lint(&text.text);
        }
    }
}
