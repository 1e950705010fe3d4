// SPDX-License-Identifier: Apache-2.0
//! `docs/c-api.md`, `docs/c-functions.md` and `docs/c-from-futhark.md` quote tested code, and name
//! existing functions and tests.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use crate::header::functions;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The three pages, as one.
fn page() -> String {
    let pages = ["c-api.md", "c-functions.md", "c-from-futhark.md"];
    pages.map(|page| std::fs::read_to_string(root().join("docs").join(page)).unwrap()).concat()
}

#[test]
fn the_page_quotes_the_example() {
    let example = std::fs::read_to_string(root().join("examples/c/quickstart.c")).unwrap();
    let page = page();
    let blocks: Vec<&str> = page.split("```c\n").skip(1).filter_map(|rest| rest.split("```").next()).collect();
    assert!(blocks.len() > 3);
    for block in blocks {
        assert!(example.contains(block), "docs/c-api.md: examples/c/quickstart.c lacks this:\n{block}");
    }
}

/// The names in backticks of a table's cell.
fn names(cell: &str) -> impl Iterator<Item = &str> {
    cell.split('`').skip(1).step_by(2)
}

#[test]
fn the_futhark_table_names_existing_functions_and_tests() {
    let functions = functions();
    let tests = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/capi");
    let sources: String = ["config", "context", "misuse", "producer", "query", "raw", "table"]
        .map(|name| std::fs::read_to_string(tests.join(format!("{name}.rs"))).unwrap())
        .concat();
    let page = page();
    let (_, table) = page.split_once("# From Futhark's functions to C\n").unwrap();
    let rows: Vec<Vec<&str>> = table
        .lines()
        .filter(|line| line.starts_with("| ") && line.ends_with('|'))
        .skip(1)
        .map(|line| line.trim_matches('|').split('|').map(str::trim).collect())
        .collect();
    assert!(rows.len() > 20);
    for row in rows {
        let [futhark, ours, test] = row[..] else { panic!("{row:?}") };
        let same = if ours.starts_with("the same") { futhark } else { "" };
        for name in names(same)
            .chain(names(ours).filter(|name| name.contains('_') && !name.ends_with("(…)") && !name.starts_with("DEVICEFUSION_")))
        {
            let name = format!("devicefusion_{name}");
            let family = name.strip_suffix('…');
            let known = match family {
                Some(family) => functions.iter().any(|function| function.starts_with(family)),
                None => functions.contains(&name),
            };
            assert!(known, "docs/c-from-futhark.md: there is no {name}");
        }
        for test in names(test) {
            assert!(sources.contains(&format!("#[test]\nfn {test}()")), "docs/c-from-futhark.md: there is no test {test}");
        }
    }
}

#[test]
fn the_page_names_every_function() {
    let page = page();
    let tokens: BTreeSet<&str> = page.split(|c: char| !c.is_alphanumeric() && c != '_').collect();
    let is_named = |name: &str| {
        let short = name.strip_prefix("devicefusion_").unwrap();
        let last = short.strip_prefix("query_bind").unwrap_or("none of these");
        [name, short, last].iter().any(|name| tokens.contains(name))
    };
    let missing: Vec<_> = functions().into_iter().filter(|name| !is_named(name)).collect();
    assert!(missing.is_empty(), "docs/c-functions.md lacks {missing:?}");
}
