// SPDX-License-Identifier: Apache-2.0
//! Tests of the pages `docs/futhark*.md`: queries return the results shown, code runs, named tests
//! exist.

use std::path::Path;

use arrow::util::pretty::pretty_format_batches;

use crate::fixture::{Fixture, OutputStyle};
use crate::{cautious_session, clean, run, set};

/// The pages with queries and code, in the book's order.
const PAGES: &[&str] = &[
    include_str!("../../../../docs/futhark.md"),
    include_str!("../../../../docs/futhark-types.md"),
    include_str!("../../../../docs/futhark-device.md"),
];
const API: &str = include_str!("../../../../docs/futhark-api.md");

/// Code blocks of the pages, with their languages.
fn blocks() -> Vec<(&'static str, String)> {
    let (mut blocks, mut open) = (Vec::new(), None);
    for line in PAGES.iter().flat_map(|page| page.lines()) {
        match (line.strip_prefix("```"), open.take()) {
            (Some(language), None) => open = Some((language, String::new())),
            (Some(_), Some(block)) => blocks.push(block),
            (None, Some((language, text))) => open = Some((language, text + line + "\n")),
            (None, None) => {}
        }
    }
    blocks
}

#[tokio::test]
async fn queries_of_the_page_return_the_results_shown() {
    let (ctx, fixture) = (cautious_session(), Fixture::new(OutputStyle::Output));
    set(&ctx, "device.futhark", "true");
    let folder = format!("{}/", fixture.manifest().parent().unwrap().display());
    let (mut answer, mut answers) = (String::new(), 0);
    for (language, text) in blocks() {
        match language {
            "sql" => {
                for statement in text.split_terminator(";\n") {
                    let rows = run(&ctx, &statement.replace("/path/", &folder)).await.unwrap();
                    answer = pretty_format_batches(&rows).unwrap().to_string();
                }
            }
            "text" => {
                assert_eq!(text.trim_end(), answer);
                answers += 1;
            }
            _ => {}
        }
    }
    assert_eq!(answers, 7);
    clean(ctx, &fixture).await;
}

#[test]
fn code_on_the_page_is_tested() {
    // Lines that the book hides complete the code for its documentation test.
    let trimmed = |text: &str| text.lines().filter(|line| !line.starts_with("# ")).map(str::trim).collect::<Vec<_>>().join("\n");
    let source = trimmed(include_str!("main.rs"));
    let shown: Vec<String> =
        blocks().iter().filter(|(language, _)| *language == "rust,no_run").map(|(_, text)| trimmed(text)).collect();
    assert_eq!(shown.len(), 1);
    assert!(source.contains(&shown[0]), "{}", shown[0]);
    // Each shown line of Futhark is a line of the fixture's program.
    let program = include_str!("../../../futhark/tests/fixture/program.fut");
    let lines = blocks()
        .into_iter()
        .filter(|(language, _)| *language == "futhark")
        .flat_map(|(_, text)| text.lines().map(str::to_owned).collect::<Vec<_>>());
    for line in lines {
        assert!(program.lines().any(|other| other == line), "{line}");
    }
}

/// Files and tests that the page names exist.
#[test]
fn tests_named_on_the_page_exist() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../futhark/tests/library");
    let mut sources = [include_str!("main.rs"), include_str!("on_device.rs")].concat();
    for file in ["calls.rs", "context.rs", "manifests.rs", "multicore.rs", "opencl.rs", "opening.rs", "values.rs"] {
        sources += &std::fs::read_to_string(folder.join(file)).unwrap();
    }
    sources += include_str!("../../../futhark/tests/cuda.rs");
    let table = API.split_once("## The C API").unwrap().1;
    let is_test = |name: &&str| {
        let letters = name.chars().all(|c| c.is_ascii_lowercase() || c == '_');
        letters && name.matches('_').count() > 3 && !name.starts_with("futhark")
    };
    let tests: Vec<&str> = table.split('`').filter(is_test).collect();
    assert!(tests.len() > 10, "{tests:?}");
    for test in tests {
        assert!(sources.contains(&format!("fn {test}()")), "{test}");
    }
}
