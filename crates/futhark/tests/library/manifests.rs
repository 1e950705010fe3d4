// SPDX-License-Identifier: Apache-2.0
//! Manifests of several compiler versions, and damaged ones.

use futhark::manifest::{Backend, Kind, OpaqueType};
use futhark::{Manifest, Primitive};

const V21: &str = include_str!("manifests/0.21.json");
const V22: &str = include_str!("manifests/0.22.json");
const V25: &str = include_str!("manifests/0.25.json");
const V27: &str = include_str!("manifests/0.27.json");

#[test]
fn manifests_of_all_versions_are_read() {
    for (text, backend, version, entry, signature) in [
        (V21, Backend::OpenCl, None, "dot", "([]f32, []f32) -> f32"),
        (V22, Backend::Multicore, Some("0.22.1"), "step", "(bodies: *bodies, dt: f64) -> (*bodies, f64)"),
        (V25, Backend::Cuda, Some("0.25.32 (prerelease)"), "parse", "(text: []u8) -> token"),
        (V27, Backend::C, Some("0.27.0"), "extremes", "(xs: []i32) -> (i32, i32)"),
    ] {
        let manifest = Manifest::parse(text).unwrap();
        assert_eq!((manifest.backend, manifest.version.as_deref()), (backend, version));
        assert_eq!(manifest.signature(entry).unwrap(), signature);
    }
}

#[test]
fn kinds_of_types_are_recognised() {
    let manifest = Manifest::parse(V25).unwrap();
    assert_eq!(manifest.entry_point("parse").unwrap().tuning_params.len(), 2);
    assert!(matches!(manifest.kind("f16"), Some(Kind::Scalar(Primitive::F16))));
    assert!(matches!(manifest.kind("[]u8"), Some(Kind::Array(array)) if (array.rank, array.elemtype) == (1, Primitive::U8)));
    let Some(Kind::Opaque(token)) = manifest.kind("token") else { panic!("no opaque") };
    assert_eq!(token.sum.as_ref().unwrap().variants[1].payload, ["i64", "[]u8"]);
    // An array of opaque values is another opaque type.
    assert!(matches!(manifest.kind("[]token"), Some(Kind::Opaque(array)) if array.ops.store.is_none()));
    assert_eq!(manifest.kind("[]f32"), None);
    let manifest = Manifest::parse(V27).unwrap();
    // An array of records is zipped from arrays.
    let Some(Kind::Opaque(OpaqueType { record: Some(pairs), .. })) = manifest.kind("[][](i32, i32)") else { panic!("no record") };
    assert_eq!((pairs.rank, pairs.new.as_str()), (2, "futhark_zip_opaque_arr2d_tup2_i32_i32"));
    assert_eq!(pairs.fields.iter().map(|field| field.type_name.as_str()).collect::<Vec<_>>(), ["[][]i32", "[][]i32"]);
    assert_eq!(manifest.entry_point("extremes").unwrap().doc.as_deref(), Some("The least and the greatest."));
}

#[test]
fn damaged_manifests_are_refused_with_the_reason() {
    for (text, from, to, problem) in [
        (
            V21,
            "opencl",
            "wasm",
            "the back end is wasm, must be c, multicore, ispc, opencl, cuda or hip: others have no C library",
        ),
        (V21, "\"backend\"", "\"target\"", "missing field `backend`"),
        (V21, "\"types\": {", "\"typos\": {", "missing field `types`"),
        (V21, "\"rank\": 1", "\"rank\": -1", "invalid value: integer `-1`, expected usize"),
        (V21, "\"rank\": 1", "\"rank\": 0", "the type []f32 is an array of rank 0"),
        (V21, "\"rank\": 1", "\"rank\": 2", "the type []f32 is listed as [][]f32"),
        (V21, "\"rank\": 1", "\"rank\": 4000000000", "the type []f32 has 4000000000 dimensions, more than 32"),
        (V21, "\"elemtype\": \"f32\"", "\"elemtype\": \"f64\"", "the type []f32 is listed as []f64"),
        (V21, "\"elemtype\": \"f32\"", "\"elemtype\": \"f128\"", "unknown variant `f128`"),
        (V21, "\"kind\": \"array\"", "\"kind\": \"list\"", "unknown variant `list`"),
        (V21, "_1d *\"", "_1d\"", "the type []f32 is struct futhark_f32_1d in C, which is not a pointer"),
        (V21, "futhark_new_f32_1d", "new f32", "the type []f32 names the C function 'new f32', which is not a C identifier"),
        (V21, "futhark_entry_dot", "", "the entry point dot names the C function '', which is not a C identifier"),
        (
            V21,
            "\"type\": \"f32\"",
            "\"type\": \"vector\"",
            "the entry point dot names the type vector, which is neither primitive nor listed",
        ),
        (V21, "outputs", "results", "the entry point dot has neither outputs nor output"),
        (V21, "\"shape\": ", "\"dims\": ", "missing field `shape`"),
        (
            V22,
            "\"type\": \"[][]f64\"",
            "\"type\": \"[]f64\"",
            "the type bodies names the type []f64, which is neither primitive nor listed",
        ),
        (V22, "0.22.1", "1.0.0", "version 1.0.0 of the compiler is unknown; must be 0.x"),
        (V22, "0.22.1", "latest", "the version is latest; must be 0.x"),
        (
            V25,
            "\"payload\": [\"i64\"",
            "\"payload\": [\"i63\"",
            "the type token names the type i63, which is neither primitive nor listed",
        ),
        (V25, "\"[]token\": {", "\"u8\": {", "the type u8 is primitive, but listed as another"),
        (V25, "\"payload\": [\"i64\"", "\"payload\": [\"token\"", "the type token contains itself"),
        (V27, "2, \"elemtype\": \"(", "0, \"elemtype\": \"(", "an array of records has the rank 0"),
        (V27, "2, \"elemtype\": \"(", "33, \"elemtype\": \"(", "the type [][](i32, i32) has 33 dimensions, more than 32"),
        (V27, "\"type\": \"[][]i32\"", "\"type\": \"i32\"", "the type [][](i32, i32) is an array, but its field 0 is i32"),
        (
            V27,
            "\"record_array\"",
            "\"record\": {\"new\": \"f\", \"fields\": []}, \"record_array\"",
            "both a record and an array of records",
        ),
        (V27, "\"tuning_params\"", "\"outputs\"", "the entry point extremes has both outputs and output"),
    ] {
        assert!(text.contains(from), "{from}");
        let error = Manifest::parse(&text.replacen(from, to, 1)).unwrap_err().to_string();
        assert!(error.starts_with("manifest: ") && error.contains(problem), "{from} -> {to}: {error}");
    }
    for cut in (0..V22.len() - 1).step_by(7) {
        assert!(Manifest::parse(&V22[..cut]).is_err(), "cut at {cut}");
    }
}

/// A manifest of records, each with `fields` fields of the next type. The last has integers.
fn chain(records: usize, fields: usize) -> String {
    let record = |index: usize| {
        let of = if index + 1 < records { format!("r{:04}", index + 1) } else { "i32".to_owned() };
        let field = |field: usize| format!(r#"{{"name": "f{field}", "type": "{of}", "project": "p"}}"#);
        let fields = (0..fields).map(field).collect::<Vec<_>>().join(", ");
        format!(
            r#""r{index:04}": {{"kind": "opaque", "ctype": "struct r *", "ops": {{"free": "f"}},
                "record": {{"new": "n", "fields": [{fields}]}}}}"#
        )
    };
    let types = (0..records).map(record).collect::<Vec<_>>().join(", ");
    format!(r#"{{"backend": "c", "version": "0.27.0", "entry_points": {{}}, "types": {{{types}}}}}"#)
}

#[test]
fn types_that_nest_too_deep_are_refused() {
    assert_eq!(Manifest::parse(&chain(32, 1)).unwrap().types.len(), 32);
    for records in [33, 3000] {
        let error = Manifest::parse(&chain(records, 1)).unwrap_err().to_string();
        assert_eq!(error, "manifest: the type r0000 nests others more than 32 deep");
    }
}

#[test]
fn types_with_too_many_parts_are_refused() {
    // 2^12 - 1 parts.
    assert_eq!(Manifest::parse(&chain(11, 2)).unwrap().types.len(), 11);
    for (records, at) in [(12, "r0000"), (27, "r0015")] {
        let error = Manifest::parse(&chain(records, 2)).unwrap_err().to_string();
        assert_eq!(error, format!("manifest: the type {at} has more than 4096 parts, including nested ones"));
    }
}
