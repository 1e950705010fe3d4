// SPDX-License-Identifier: Apache-2.0
//! Libraries that are not what their manifests say.

use futhark::{Error, Library};
use serde_json::json;

use crate::fixture::{Fixture, Form, manifest};

fn open(fixture: &Fixture) -> futhark::Result<Library> {
    // SAFETY: the manifest is the program's, but for what opening refuses.
    unsafe { Library::open(fixture.manifest()) }
}

#[test]
fn the_object_lies_beside_the_manifest() {
    let fixture = Fixture::new(Form::Outputs);
    assert_eq!(open(&fixture).unwrap().path(), fixture.object().canonicalize().unwrap());
    let other = fixture.object().with_file_name("libprogram.so");
    std::fs::rename(fixture.object(), &other).unwrap();
    assert_eq!(open(&fixture).unwrap().path(), other.canonicalize().unwrap());
    std::fs::remove_file(&other).unwrap();
    let error = open(&fixture).unwrap_err().to_string();
    assert!(error.ends_with("program.json: there is neither program.so nor libprogram.so beside it"), "{error}");
}

#[test]
fn a_name_that_the_object_has_not_is_refused() {
    for place in
        ["/entry_points/sum/cfun", "/types/[]i64/ops/new", "/types/table/record/fields/0/project", "/types/answer/ops/free"]
    {
        let fixture = Fixture::new(Form::Outputs);
        let mut json = manifest(Form::Outputs);
        *json.pointer_mut(place).unwrap() = json!("futhark_nowhere");
        fixture.write_manifest(&json);
        let error = open(&fixture).unwrap_err();
        assert!(matches!(error, Error::Mismatch { .. }), "{place}: {error}");
        assert!(error.to_string().ends_with("program.so: it has no function futhark_nowhere"), "{place}: {error}");
    }
}

#[test]
fn another_back_end_is_refused() {
    let fixture = Fixture::with_flags(Form::Outputs, &["-DOPENCL"]);
    let error = open(&fixture).unwrap_err().to_string();
    let problem = "it has the function futhark_context_config_set_command_queue, and the manifest is of the back end C";
    assert!(error.ends_with(problem), "{error}");
    let mut json = manifest(Form::Outputs);
    json["backend"] = json!("opencl");
    fixture.write_manifest(&json);
    open(&fixture).unwrap();
    let fixture = Fixture::new(Form::Outputs);
    fixture.write_manifest(&json);
    let error = open(&fixture).unwrap_err().to_string();
    assert!(error.contains("it has not the function futhark_context_config_set_command_queue"), "{error}");
}

#[test]
fn files_that_are_none_are_refused() {
    let fixture = Fixture::new(Form::Outputs);
    std::fs::write(fixture.object().with_file_name("other.so"), "no object").unwrap();
    // SAFETY: nothing is loaded.
    let error = unsafe { Library::open_object(&fixture.manifest(), &fixture.object().with_file_name("other.so")) }.unwrap_err();
    assert!(matches!(error, Error::Open { .. }), "{error}");
    assert!(error.to_string().contains("other.so: "), "{error}");
    // SAFETY: likewise.
    let error = unsafe { Library::open("/nowhere/program.json") }.unwrap_err().to_string();
    assert!(error.starts_with("/nowhere/program.json: "), "{error}");
    std::fs::write(fixture.manifest(), "{}").unwrap();
    let error = open(&fixture).unwrap_err().to_string();
    assert!(error.contains("program.json: manifest: missing field `backend`"), "{error}");
}
