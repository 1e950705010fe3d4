// SPDX-License-Identifier: Apache-2.0
//! Any library: `FUTHARK_LIB=program.json` names the manifest of one that a compiler has made, with its object beside it.

use std::path::PathBuf;

use futhark::manifest::{Kind, OpaqueType};
use futhark::{Context, ContextConfig, Error, Library, Scalar, Value};

use crate::fixture::{Fixture, Form};

/// Calls each entry point whose types can be made up, with empty arrays and with small ones. How many were called.
fn smoke(library: &Library) -> usize {
    let context = Context::new(library, ContextConfig { profiling: true, ..ContextConfig::default() }).unwrap();
    let manifest = library.manifest();
    let mut called = 0;
    for (name, entry) in &manifest.entry_points {
        eprintln!("{name}{}", manifest.signature(name).unwrap());
        for len in [0, 3] {
            let arguments: Option<Vec<Value>> =
                entry.inputs.iter().map(|input| made_up(&context, &input.type_name, len)).collect();
            let Some(arguments) = arguments else { break };
            match context.call(name, arguments.into_iter().map(|value| value.into()).collect()) {
                Ok(results) => assert_eq!(results.len(), entry.outputs.len(), "{name}"),
                // What a program says of arguments that make no sense to it.
                Err(error @ Error::Program { .. }) => eprintln!("    {error}"),
                Err(error) => panic!("{name}: {error}"),
            }
            called += 1;
        }
    }
    context.report().unwrap();
    context.clear_caches().unwrap();
    called
}

fn made_up(context: &Context, type_name: &str, len: usize) -> Option<Value> {
    match context.library().manifest().kind(type_name)? {
        Kind::Scalar(primitive) => Scalar::from_bytes(primitive, &[0; 8]).map(Value::from),
        Kind::Array(array) => {
            let shape = vec![len; array.rank];
            let zeros = vec![0u64; len.pow(u32::try_from(array.rank).ok()?)];
            let bytes = array.elemtype.bytes() * zeros.len();
            // SAFETY: within the words, of which any byte will do.
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
    // SAFETY: whoever sets the variable says so.
    let library = unsafe { Library::open(&path) }.unwrap();
    assert!(smoke(&library) > 0, "{}: no entry point could be called", path.display());
}

#[test]
fn our_own_library_passes_as_any_other() {
    for form in [Form::Outputs, Form::Output] {
        let fixture = Fixture::new(form);
        // SAFETY: the manifest is the program's.
        let library = unsafe { Library::open(fixture.manifest()) }.unwrap();
        // All but `merged` and `middle`, twice.
        assert_eq!(smoke(&library), 2 * (library.manifest().entry_points.len() - 2));
        fixture.assert_clean();
    }
}
