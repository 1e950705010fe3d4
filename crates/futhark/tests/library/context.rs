// SPDX-License-Identifier: Apache-2.0
//! Settings of a context, and its reports.

use futhark::{Context, ContextConfig, Error, Library, Scalar, TuningParam, Value};

use crate::fixture::{Fixture, OutputStyle};

fn library(fixture: &Fixture) -> Library {
    // SAFETY: the manifest is the program's.
    unsafe { Library::open(fixture.manifest()) }.unwrap()
}

fn tuned(name: &str, value: usize) -> ContextConfig {
    ContextConfig { tuning: vec![(name.to_owned(), value)], ..ContextConfig::default() }
}

#[test]
fn tuning_parameters_are_listed_and_set() {
    let fixture = Fixture::new(OutputStyle::Outputs);
    let library = library(&fixture);
    let first = TuningParam { name: "program.threshold_0".to_owned(), class: "threshold".to_owned() };
    assert_eq!(library.tuning_params()[0], first);
    let context = Context::new(&library, tuned("program.threshold_0", 42)).unwrap();
    assert!(matches!(context.call("tuned", vec![]).unwrap().as_slice(), [Value::Scalar(Scalar::I64(42))]));
    let error = Context::new(&library, tuned("program.tile", 1)).unwrap_err();
    assert_eq!(
        error.to_string(),
        "the tuning parameter program.tile cannot be set; there are program.threshold_0, program.fails, program.memory"
    );
}

#[test]
fn a_failed_context_gives_the_reason_and_leaks_nothing() {
    let fixture = Fixture::new(OutputStyle::Outputs);
    let error = Context::new(&library(&fixture), tuned("program.fails", 1)).unwrap_err();
    assert!(matches!(error, Error::Setup(_)), "{error}");
    assert_eq!(error.to_string(), "the context of the library cannot be set up: no device of that name");
    assert_eq!(fixture.counter("fixture_contexts"), 0);
}

#[test]
fn reports_have_the_profile() {
    let fixture = Fixture::new(OutputStyle::Outputs);
    let config = ContextConfig { profiling: true, ..ContextConfig::default() };
    let context = Context::new(&library(&fixture), config).unwrap();
    let call = || context.call("tuned", vec![]).unwrap();
    call();
    context.pause_profiling();
    call();
    context.unpause_profiling();
    call();
    assert_eq!(context.report().unwrap()["calls"], 2);
    context.clear_caches().unwrap();
}

#[test]
fn settings_reach_the_library() {
    let fixture = Fixture::new(OutputStyle::Outputs);
    let report = |config| Context::new(&library(&fixture), config).unwrap().report().unwrap();
    let defaults = serde_json::json!({"calls": 0, "debugging": 0, "logging": 0, "cache_file": ""});
    assert_eq!(report(ContextConfig::default()), defaults);
    let config =
        ContextConfig { debugging: true, logging: true, cache_file: Some("kernels.bin".into()), ..ContextConfig::default() };
    assert_eq!(report(config), serde_json::json!({"calls": 0, "debugging": 1, "logging": 1, "cache_file": "kernels.bin"}));
}

#[test]
fn libraries_with_the_same_symbols_do_not_mix() {
    let fixtures = [Fixture::new(OutputStyle::Outputs), Fixture::new(OutputStyle::Output)];
    let contexts = fixtures.each_ref().map(|fixture| Context::new(&library(fixture), ContextConfig::default()).unwrap());
    let arrays = contexts.each_ref().map(|context| context.array(&[1], &[1i64]).unwrap());
    for fixture in &fixtures {
        assert_eq!(fixture.counter("fixture_made"), 1);
    }
    drop((arrays, contexts));
    fixtures.iter().for_each(Fixture::assert_clean);
}
