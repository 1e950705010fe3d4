// SPDX-License-Identifier: Apache-2.0
//! `include/devicefusion.h` says what the sources say.

use std::path::Path;

/// With 1, the header is rewritten.
const REWRITE: &str = "DEVICEFUSION_WRITE_DOCS";

#[test]
fn header_is_that_of_the_sources() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let config = cbindgen::Config::from_file(root.join("cbindgen.toml")).unwrap();
    // In the order in which a program uses them.
    let files = ["error", "config", "settings", "context", "table", "query"];
    let sources = files.iter().fold(cbindgen::Builder::new().with_config(config), |builder, file| {
        builder.with_src(root.join("src").join(format!("{file}.rs")))
    });
    let mut text = Vec::new();
    sources.generate().unwrap().write(&mut text);
    let text = String::from_utf8(text).unwrap();

    let header = root.join("include/devicefusion.h");
    if std::env::var(REWRITE).is_ok_and(|value| value == "1") {
        std::fs::write(&header, &text).unwrap();
    }
    let written = std::fs::read_to_string(&header).unwrap_or_default();
    assert!(written == text, "{} is stale: run this test with {REWRITE}=1", header.display());
}
