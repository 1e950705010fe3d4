// SPDX-License-Identifier: Apache-2.0
//! A compiled library: `FUTHARK_LIB=program.json` names its manifest, with the shared object beside
//! it.

use std::path::PathBuf;
use std::process::Command;

use futhark::manifest::{Kind, OpaqueType};
use futhark::{Context, ContextConfig, Error, Library, Scalar, Value};

use crate::fixture::{Fixture, OutputStyle};

/// Calls each entry point with empty and small arguments of supported types. Returns the number of
/// calls.
fn smoke(library: &Library) -> usize {
    let context = Context::new(library, ContextConfig { profiling: true, ..ContextConfig::default() }).unwrap();
    for name in library.manifest().entry_points.keys() {
        eprintln!("{name}{}", library.manifest().signature(name).unwrap());
    }
    let called = call_all(&context, |name, error| eprintln!("    {name}: {error}"));
    context.report().unwrap();
    context.clear_caches().unwrap();
    called
}

/// One such round. `refused` gets the program's errors about meaningless arguments.
fn call_all(context: &Context, refused: impl Fn(&str, Error)) -> usize {
    let mut called = 0;
    for (name, entry) in &context.library().manifest().entry_points {
        for len in [0, 3] {
            let arguments: Option<Vec<Value>> =
                entry.inputs.iter().map(|input| made_up(context, &input.type_name, len)).collect();
            let Some(arguments) = arguments else { break };
            match context.call(name, arguments.into_iter().map(|value| value.into()).collect()) {
                Ok(results) => assert_eq!(results.len(), entry.outputs.len(), "{name}"),
                Err(error @ Error::Program { .. }) => refused(name, error),
                Err(error) => panic!("{name}: {error}"),
            }
            called += 1;
        }
    }
    called
}

/// The kind of memory growing with every round of calls, if any. A leak grows each time; other
/// allocations and caches do not.
fn leak(library: &Library) -> Option<&'static str> {
    // Without profiling, whose events a library keeps.
    let context = Context::new(library, ContextConfig::default()).unwrap();
    let round = || {
        (0..20).for_each(|_| _ = call_all(&context, |_, _| ()));
        context.clear_caches().unwrap();
        memory_in_use(&context)
    };
    let rounds: Vec<[Memory; 3]> = (0..10).map(|_| round()).collect();
    // One-time allocations exist after the first round.
    let grows = |of: &usize| rounds[1..].windows(2).all(|pair| pair[0][*of].1 < pair[1][*of].1);
    (0..3).find(grows).map(|of| rounds[0][of].0)
}

/// Whether the test runs alone, so that the heap is its own. If not, runs it in a process of its
/// own.
fn alone(test: &str) -> bool {
    const ALONE: &str = "FUTHARK_TEST_ALONE";
    if std::env::var_os(ALONE).is_some() {
        return true;
    }
    let test = format!("real::{test}");
    let mut command = Command::new(std::env::current_exe().unwrap());
    let output = command.args(["--exact", &test, "--test-threads=1"]).env(ALONE, "").output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && text.contains("1 passed"), "{text}{}", String::from_utf8_lossy(&output.stderr));
    false
}

/// A kind of memory and its size in bytes.
type Memory = (&'static str, u64);

fn memory_in_use(context: &Context) -> [Memory; 3] {
    // The peak usage: it grows if values of earlier calls are still live.
    let report = context.report().unwrap();
    let spaces = report["memory"].as_object().into_iter().flat_map(|spaces| spaces.values());
    let reported = spaces.filter_map(serde_json::Value::as_u64).sum();
    let pages = std::fs::read_to_string("/proc/self/statm").ok();
    let resident = pages.and_then(|pages| pages.split(' ').nth(1)?.parse().ok()).unwrap_or(0);
    [("the memory that the library reports", reported), ("the heap", heap()), ("the process", resident)]
}

#[cfg(target_env = "gnu")]
fn heap() -> u64 {
    // SAFETY: reads malloc's statistics.
    let heap = unsafe { libc::mallinfo2() };
    (heap.uordblks + heap.hblkhd) as u64
}

#[cfg(not(target_env = "gnu"))]
fn heap() -> u64 {
    0
}

fn made_up(context: &Context, type_name: &str, len: usize) -> Option<Value> {
    match context.library().manifest().kind(type_name)? {
        Kind::Scalar(primitive) => Scalar::from_bytes(primitive, &[0; 8]).map(Value::from),
        Kind::Array(array) => {
            let shape = vec![len; array.rank];
            let zeros = vec![0u64; len.pow(u32::try_from(array.rank).ok()?)];
            let bytes = array.elemtype.bytes() * zeros.len();
            // SAFETY: within the vector, whose bytes are valid for every element type.
            let bytes = unsafe { std::slice::from_raw_parts(zeros.as_ptr().cast(), bytes) };
            Some(context.array_of_bytes(array.elemtype, &shape, bytes).unwrap().into())
        }
        Kind::Opaque(OpaqueType { record: Some(record), .. }) => {
            let fields = record.fields.iter().map(|field| made_up(context, &field.type_name, len));
            Some(context.record(type_name, &fields.collect::<Option<Vec<_>>>()?).unwrap().into())
        }
        Kind::Opaque(OpaqueType { sum: Some(sum), .. }) => {
            let variant = if len == 0 { 0 } else { sum.variants.len() - 1 };
            let payload = sum.variants[variant].payload.iter().map(|of| made_up(context, of, len));
            Some(context.variant(type_name, variant, &payload.collect::<Option<Vec<_>>>()?).unwrap().into())
        }
        Kind::Opaque(_) => None,
    }
}

#[test]
fn a_library_named_by_the_environment_works() {
    let Some(path) = std::env::var_os("FUTHARK_LIB").map(PathBuf::from) else {
        eprintln!("skipped: FUTHARK_LIB names no manifest");
        return;
    };
    // SAFETY: guaranteed by the setter of the variable.
    let library = unsafe { Library::open(&path) }.unwrap();
    assert!(smoke(&library) > 0, "{}: no entry point could be called", path.display());
    assert_eq!(leak(&library), None, "{}: this memory grows with every call", path.display());
}

#[test]
fn the_fixture_passes_too() {
    if !alone("the_fixture_passes_too") {
        return;
    }
    for fixture in [Fixture::new(OutputStyle::Outputs), Fixture::new(OutputStyle::Output), Fixture::multicore()] {
        // SAFETY: the manifest is the program's.
        let library = unsafe { Library::open(fixture.manifest()) }.unwrap();
        // All but `merged` and `middle`, twice.
        assert_eq!(smoke(&library), 2 * (library.manifest().entry_points.len() - 2));
        assert_eq!(leak(&library), None);
        fixture.assert_clean();
    }
}

#[test]
fn an_opencl_library_with_its_own_device_passes_too() {
    if !alone("an_opencl_library_with_its_own_device_passes_too") {
        return;
    }
    let fixture = Fixture::opencl();
    // SAFETY: the manifest is the program's.
    let library = unsafe { Library::open(fixture.manifest()) }.unwrap();
    assert_eq!(smoke(&library), 2 * library.manifest().entry_points.len());
    assert_eq!(leak(&library), None);
    fixture.assert_clean();
}

#[test]
fn leaks_are_detected() {
    if !alone("leaks_are_detected") {
        return;
    }
    for (flag, what) in [("-DLEAKS=16", "the heap"), ("-DREPORTS_GROWTH", "the memory that the library reports")] {
        let fixture = Fixture::with_flags(OutputStyle::Outputs, &[flag]);
        // SAFETY: the manifest is the program's.
        let library = unsafe { Library::open(fixture.manifest()) }.unwrap();
        assert_eq!(leak(&library), Some(what));
    }
}
