// SPDX-License-Identifier: Apache-2.0
//! `include/devicefusion.h` is up to date with the sources.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// Environment variable; the value 1 rewrites the header.
const REWRITE: &str = "DEVICEFUSION_WRITE_DOCS";

fn header() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("include/devicefusion.h")
}

/// The functions that the header declares.
pub fn functions() -> BTreeSet<String> {
    let header = std::fs::read_to_string(header()).unwrap();
    let code = header.lines().filter(|line| !line.starts_with("//"));
    let names = code.filter_map(|line| line.split_once('(')).filter_map(|(before, _)| before.rsplit([' ', '*']).next());
    names.filter(|name| name.starts_with("devicefusion_")).map(str::to_owned).collect()
}

#[test]
fn header_is_up_to_date() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let config = cbindgen::Config::from_file(root.join("cbindgen.toml")).unwrap();
    // In the order of use in a program.
    let files = ["error", "config", "settings", "context", "table", "query", "raw", "store"];
    let sources = files.iter().fold(cbindgen::Builder::new().with_config(config), |builder, file| {
        builder.with_src(root.join("src").join(format!("{file}.rs")))
    });
    let sources = sources.with_src(root.join("../adbc/src/ffi.rs"));
    let mut generated = Vec::new();
    sources.generate().unwrap().write(&mut generated);
    let generated = String::from_utf8(generated).unwrap();

    let header = header();
    if std::env::var(REWRITE).is_ok_and(|value| value == "1") {
        std::fs::write(&header, &generated).unwrap();
    }
    let written = std::fs::read_to_string(&header).unwrap_or_default();
    assert!(written == generated, "{} is stale: run this test with {REWRITE}=1", header.display());
}
