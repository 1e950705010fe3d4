// SPDX-License-Identifier: Apache-2.0
//! Libraries that do not match their manifests.

use futhark::{Error, Library};
use serde_json::json;

use crate::fixture::{Fixture, OutputStyle, manifest};

fn open(fixture: &Fixture) -> futhark::Result<Library> {
    // SAFETY: the manifest is the program's, except for errors that opening detects.
    unsafe { Library::open(fixture.manifest()) }
}

#[test]
fn the_object_lies_beside_the_manifest() {
    let fixture = Fixture::new(OutputStyle::Outputs);
    assert_eq!(open(&fixture).unwrap().path(), fixture.object().canonicalize().unwrap());
    let other = fixture.object().with_file_name("libprogram.so");
    std::fs::rename(fixture.object(), &other).unwrap();
    assert_eq!(open(&fixture).unwrap().path(), other.canonicalize().unwrap());
    std::fs::remove_file(&other).unwrap();
    let error = open(&fixture).unwrap_err().to_string();
    assert!(error.ends_with("program.json: there is neither program.so nor libprogram.so beside it"), "{error}");
}

#[test]
fn a_missing_function_is_refused() {
    for pointer in
        ["/entry_points/sum/cfun", "/types/[]i64/ops/new", "/types/table/record/fields/0/project", "/types/answer/ops/free"]
    {
        let fixture = Fixture::new(OutputStyle::Outputs);
        let mut json = manifest(OutputStyle::Outputs);
        *json.pointer_mut(pointer).unwrap() = json!("futhark_nowhere");
        fixture.write_manifest(&json);
        let error = open(&fixture).unwrap_err();
        assert!(matches!(error, Error::Mismatch { .. }), "{pointer}: {error}");
        assert!(error.to_string().ends_with("program.so: it has no function futhark_nowhere"), "{pointer}: {error}");
    }
}

#[test]
fn another_back_end_is_refused() {
    let fixture = Fixture::with_flags(OutputStyle::Outputs, &["-DOPENCL"]);
    let error = open(&fixture).unwrap_err().to_string();
    let problem = "it has the function futhark_context_config_set_command_queue, but the manifest is of the back end C";
    assert!(error.ends_with(problem), "{error}");
    let mut json = manifest(OutputStyle::Outputs);
    json["backend"] = json!("opencl");
    fixture.write_manifest(&json);
    open(&fixture).unwrap();
    let fixture = Fixture::new(OutputStyle::Outputs);
    fixture.write_manifest(&json);
    let error = open(&fixture).unwrap_err().to_string();
    assert!(error.contains("it lacks the function futhark_context_config_set_command_queue"), "{error}");
}

#[test]
fn missing_files_are_refused() {
    let fixture = Fixture::new(OutputStyle::Outputs);
    std::fs::write(fixture.object().with_file_name("other.so"), "no object").unwrap();
    // SAFETY: nothing is loaded.
    let error = unsafe { Library::open_object(&fixture.manifest(), &fixture.object().with_file_name("other.so")) }.unwrap_err();
    assert!(matches!(error, Error::Open { .. }), "{error}");
    assert!(error.to_string().contains("other.so: "), "{error}");
    // SAFETY: as above.
    let error = unsafe { Library::open("/nowhere/program.json") }.unwrap_err().to_string();
    assert!(error.starts_with("/nowhere/program.json: "), "{error}");
    std::fs::write(fixture.manifest(), "{}").unwrap();
    let error = open(&fixture).unwrap_err().to_string();
    assert!(error.contains("program.json: manifest: missing field `backend`"), "{error}");
}
