// SPDX-License-Identifier: Apache-2.0
//! Libraries named in SQL, and not allowed by the program.

use std::process::Command;

use crate::fixture::{self, Fixture, OutputStyle};
use crate::{cautious_session, check, check_fails, run, set};

#[tokio::test]
async fn libraries_are_loaded_only_where_the_setting_allows_it() {
    let (ctx, fixture) = (cautious_session(), Fixture::new(OutputStyle::Outputs));
    let sql = format!("CREATE FUNCTION scale() LANGUAGE futhark AS '{}'", fixture.manifest().display());
    check_fails(&ctx, &sql, "device.futhark = false forbids CREATE FUNCTION").await;
    let problem = "device.futhark cannot change from 'false' to 'true' by SQL";
    check_fails(&ctx, "SET device.futhark = true", problem).await;
    check_fails(&ctx, "SET device.allow_unsafe_settings = true", "device.allow_unsafe_settings cannot change").await;
    set(&ctx, "device.allow_unsafe_settings", "true");
    run(&ctx, "SET device.futhark = true").await.unwrap();
    run(&ctx, &sql).await.unwrap();
    check(&ctx, "SELECT scale(1.0, 2)", &["2.0"]).await;
    // Functions that exist already stay.
    run(&ctx, "SET device.futhark = false").await.unwrap();
    check(&ctx, "SELECT scale(1.0, 3)", &["3.0"]).await;
}

/// A constructor runs as its object is loaded, even if the object is then refused.
#[tokio::test]
async fn sql_alone_runs_no_constructor_of_a_shared_object() {
    const CONSTRUCTOR: &str = "#include <stdio.h>\n\
        __attribute__((constructor)) static void run(void) { FILE *sentinel = fopen(SENTINEL, \"w\"); if (sentinel) fclose(sentinel); }\n";
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str| folder.path().join(name);
    let (source, manifest, sentinel) = (file("program.c"), file("program.json"), file("sentinel"));
    std::fs::write(&source, CONSTRUCTOR).unwrap();
    std::fs::write(&manifest, fixture::manifest(OutputStyle::Outputs).to_string()).unwrap();
    let mut cc = Command::new("cc");
    cc.args(["-std=gnu11", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-o"]).arg(file("program.so")).arg(&source);
    let output = cc.arg(format!("-DSENTINEL=\"{}\"", sentinel.display())).output().unwrap();
    assert!(output.status.success(), "{cc:?}: {}", String::from_utf8_lossy(&output.stderr));

    let ctx = cautious_session();
    check_fails(&ctx, "SET device.futhark = true", "device.futhark cannot change from 'false' to 'true' by SQL").await;
    let sql = format!("FUNCTION scale() LANGUAGE futhark AS '{}'", manifest.display());
    for create in ["CREATE", "CREATE OR REPLACE"] {
        check_fails(&ctx, &format!("{create} {sql}"), "device.futhark = false forbids CREATE FUNCTION").await;
    }
    assert!(!sentinel.exists(), "the object has been loaded");
    // Where the program allows libraries, the sentinel tells of the load of the object.
    set(&ctx, "device.futhark", "true");
    check_fails(&ctx, &format!("CREATE {sql}"), "program.so: ").await;
    assert!(sentinel.exists(), "the constructor writes no file");
}
