// SPDX-License-Identifier: Apache-2.0
//! The manifest: the JSON description of a compiled library.
//!
//! Compilers up to 0.26 list the `outputs` of an entry point; later ones give one `output`, a tuple
//! if there are several. Both are read, and unknown fields are ignored. Redundant entries must
//! agree, because calls through the C ABI trust the manifest.

mod check;

use std::collections::BTreeMap;

use device::DriverKind;
use serde::Deserialize;
use serde_json::Value as Json;

use self::check::{check_symbol, check_version};
use crate::{Error, Primitive, Result};

/// The description of a compiled library.
#[derive(Debug, Clone, PartialEq)]
pub struct Manifest {
    /// The back end of the compiler.
    pub backend: Backend,
    /// The compiler's version; `None` in old manifests.
    pub version: Option<String>,
    /// Entry points by name.
    pub entry_points: BTreeMap<String, EntryPoint>,
    /// Types other than primitive ones, by Futhark's name.
    pub types: BTreeMap<String, Type>,
}

/// A back end of the Futhark compiler.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Backend {
    /// Sequential C.
    C,
    /// Threads.
    Multicore,
    /// ISPC and threads.
    Ispc,
    /// OpenCL.
    OpenCl,
    /// CUDA.
    Cuda,
    /// HIP.
    Hip,
}

impl Backend {
    /// The compiler's name of the back end.
    pub fn name(self) -> &'static str {
        match self {
            Backend::C => "c",
            Backend::Multicore => "multicore",
            Backend::Ispc => "ispc",
            Backend::OpenCl => "opencl",
            Backend::Cuda => "cuda",
            Backend::Hip => "hip",
        }
    }

    /// The driver whose devices the back end uses; `None` for a back end without a driver here.
    pub fn driver(self) -> Option<DriverKind> {
        match self {
            Backend::OpenCl => Some(DriverKind::OpenCl),
            Backend::Cuda => Some(DriverKind::Cuda),
            Backend::C | Backend::Multicore | Backend::Ispc | Backend::Hip => None,
        }
    }
}

/// An entry point: a function of the library.
#[derive(Debug, Clone, PartialEq)]
pub struct EntryPoint {
    /// The C function.
    pub cfun: String,
    /// Its parameters.
    pub inputs: Vec<Input>,
    /// Its results; more than one only from older compilers.
    pub outputs: Vec<Output>,
    /// The names of the tuning parameters that affect it.
    pub tuning_params: Vec<String>,
    /// The doc comment in the program.
    pub doc: Option<String>,
}

/// A parameter of an entry point.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Input {
    /// Its name; empty in old manifests.
    #[serde(default)]
    pub name: String,
    /// Its type in Futhark's syntax.
    #[serde(rename = "type")]
    pub type_name: String,
    /// Whether a call consumes it.
    #[serde(default)]
    pub unique: bool,
}

/// A result of an entry point.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Output {
    /// Its type in Futhark's syntax.
    #[serde(rename = "type")]
    pub type_name: String,
    /// Whether it shares memory with no other value.
    #[serde(default)]
    pub unique: bool,
}

/// A type other than a primitive one.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(tag = "kind", rename_all = "lowercase")]
pub enum Type {
    /// An array of a primitive type.
    Array(ArrayType),
    /// Anything else.
    Opaque(OpaqueType),
}

/// An array type.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct ArrayType {
    /// The type in C: a pointer.
    pub ctype: String,
    /// The number of dimensions.
    pub rank: usize,
    /// The element type.
    pub elemtype: Primitive,
    /// C functions.
    pub ops: ArrayOps,
}

/// The C functions of an array type.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[expect(missing_docs, reason = "the names are those of the C API")]
pub struct ArrayOps {
    pub free: String,
    pub shape: String,
    pub values: String,
    pub new: String,
    /// Named by newer compilers, like `values_raw`; the functions of older ones take more
    /// arguments.
    pub new_raw: Option<String>,
    pub values_raw: Option<String>,
}

/// An opaque type.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(try_from = "RawOpaqueType")]
pub struct OpaqueType {
    /// The type in C: a pointer.
    pub ctype: String,
    /// C functions.
    pub ops: OpaqueOps,
    /// The fields of a record or tuple; of an array of records, one array per field.
    pub record: Option<Record>,
    /// The variants of a sum type.
    pub sum: Option<Sum>,
}

/// The C functions of an opaque type.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[expect(missing_docs, reason = "the names are those of the C API")]
pub struct OpaqueOps {
    pub free: String,
    pub store: Option<String>,
    pub restore: Option<String>,
}

/// The fields of a record.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Record {
    /// The C function that builds a record from fields in this order, or zips an array of records.
    pub new: String,
    /// The fields.
    pub fields: Vec<Field>,
    /// The rank of an array of records; 0 for a record.
    #[serde(skip)]
    pub rank: usize,
}

/// A field of a record.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Field {
    /// Its name; a number in tuples.
    pub name: String,
    /// Its type in Futhark's syntax.
    #[serde(rename = "type")]
    pub type_name: String,
    /// The C function that projects it out of a record.
    pub project: String,
}

/// The variants of a sum type.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Sum {
    /// The C function that returns the variant of a value.
    pub variant: String,
    /// The variants.
    pub variants: Vec<Variant>,
}

/// A variant of a sum type.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Variant {
    /// Its name.
    #[serde(default)]
    pub name: String,
    /// The C function that builds a value of this variant.
    pub construct: String,
    /// The C function that returns the payload.
    pub destruct: String,
    /// The types of the payload.
    pub payload: Vec<String>,
}

/// The meaning of a type name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind<'a> {
    /// A primitive type, passed by value.
    Scalar(Primitive),
    /// An array.
    Array(&'a ArrayType),
    /// Anything else.
    Opaque(&'a OpaqueType),
}

/// An opaque type in the JSON file.
#[derive(Deserialize)]
struct RawOpaqueType {
    ctype: String,
    ops: OpaqueOps,
    record: Option<Record>,
    sum: Option<Sum>,
    record_array: Option<RawRecordArray>,
}

/// An array of records in the JSON file: zipped from arrays, as a record is built from values.
#[derive(Deserialize)]
struct RawRecordArray {
    rank: usize,
    zip: String,
    fields: Vec<Field>,
}

impl TryFrom<RawOpaqueType> for OpaqueType {
    type Error = &'static str;

    fn try_from(raw: RawOpaqueType) -> std::result::Result<OpaqueType, &'static str> {
        let array = raw.record_array.map(|RawRecordArray { rank, zip, fields }| Record { new: zip, fields, rank });
        let record = match (raw.record, array) {
            (Some(_), Some(_)) => return Err("an opaque type is both a record and an array of records"),
            (_, Some(Record { rank: 0, .. })) => return Err("an array of records has the rank 0"),
            (record, array) => record.or(array),
        };
        Ok(OpaqueType { ctype: raw.ctype, ops: raw.ops, record, sum: raw.sum })
    }
}

/// The manifest in the JSON file.
#[derive(Deserialize)]
struct RawManifest {
    backend: String,
    version: Option<String>,
    entry_points: BTreeMap<String, RawEntryPoint>,
    types: BTreeMap<String, Type>,
}

#[derive(Deserialize)]
struct RawEntryPoint {
    cfun: String,
    inputs: Vec<Input>,
    outputs: Option<Vec<Output>>,
    output: Option<Output>,
    #[serde(default)]
    tuning_params: Vec<String>,
    #[serde(default)]
    doc: Json,
}

impl Manifest {
    /// Parses and validates a manifest.
    ///
    /// # Errors
    /// [`Error::Manifest`] with the missing, unknown or inconsistent entry.
    ///
    /// # Examples
    /// ```
    /// let json = r#"{"backend": "c", "version": "0.25.32", "types": {}, "entry_points": {"triple": {
    ///     "cfun": "futhark_entry_triple", "inputs": [{"name": "x", "type": "i32"}], "outputs": [{"type": "i32"}]}}}"#;
    /// let manifest = futhark::Manifest::parse(json)?;
    /// assert_eq!(manifest.signature("triple")?, "(x: i32) -> i32");
    /// # Ok::<(), futhark::Error>(())
    /// ```
    pub fn parse(json: &str) -> Result<Manifest> {
        let raw: RawManifest = serde_json::from_str(json).map_err(|error| Error::Manifest(error.to_string()))?;
        let backend = serde_json::from_value(Json::String(raw.backend.clone())).map_err(|_| {
            Error::Manifest(format!(
                "the back end is {}, must be c, multicore, ispc, opencl, cuda or hip: others have no C library",
                raw.backend
            ))
        })?;
        let version = raw.version.filter(|version| !version.is_empty());
        if let Some(version) = &version {
            check_version(version)?;
        }
        let entry_points = raw.entry_points.into_iter().map(|(name, entry)| {
            let entry = entry.checked(&name)?;
            Ok((name, entry))
        });
        let manifest = Manifest { backend, version, entry_points: entry_points.collect::<Result<_>>()?, types: raw.types };
        manifest.check()?;
        Ok(manifest)
    }

    /// The meaning of a type name; `None` for an unknown one.
    pub fn kind(&self, type_name: &str) -> Option<Kind<'_>> {
        if let Some(primitive) = Primitive::from_name(type_name) {
            return Some(Kind::Scalar(primitive));
        }
        Some(match self.types.get(type_name)? {
            Type::Array(array) => Kind::Array(array),
            Type::Opaque(opaque) => Kind::Opaque(opaque),
        })
    }

    /// An entry point.
    ///
    /// # Errors
    /// [`Error::Usage`] with the existing names.
    pub fn entry_point(&self, name: &str) -> Result<&EntryPoint> {
        self.entry_points.get(name).ok_or_else(|| {
            let names: Vec<&str> = self.entry_points.keys().map(String::as_str).collect();
            Error::Usage(format!("there is no entry point {name}; there are {}", names.join(", ")))
        })
    }

    /// The type of an entry point in Futhark's syntax: a `*` denotes consumed arguments and unique
    /// results.
    ///
    /// # Errors
    /// As [`entry_point`](Self::entry_point).
    pub fn signature(&self, name: &str) -> Result<String> {
        let entry = self.entry_point(name)?;
        let star = |unique| if unique { "*" } else { "" };
        let inputs: Vec<String> = entry
            .inputs
            .iter()
            .map(|input| match input.name.as_str() {
                "" => format!("{}{}", star(input.unique), input.type_name),
                name => format!("{name}: {}{}", star(input.unique), input.type_name),
            })
            .collect();
        let outputs: Vec<String> =
            entry.outputs.iter().map(|output| format!("{}{}", star(output.unique), output.type_name)).collect();
        Ok(match outputs.as_slice() {
            [output] => format!("({}) -> {output}", inputs.join(", ")),
            outputs => format!("({}) -> ({})", inputs.join(", "), outputs.join(", ")),
        })
    }
}

impl RawEntryPoint {
    fn checked(self, name: &str) -> Result<EntryPoint> {
        let item = format!("the entry point {name}");
        let outputs = match (self.outputs, self.output) {
            (Some(outputs), None) => outputs,
            (None, Some(output)) => vec![output],
            (Some(_), Some(_)) => return Err(Error::Manifest(format!("{item} has both outputs and output"))),
            (None, None) => return Err(Error::Manifest(format!("{item} has neither outputs nor output"))),
        };
        check_symbol(&item, &self.cfun)?;
        let doc = self.doc.as_str().map(str::to_owned);
        Ok(EntryPoint { cfun: self.cfun, inputs: self.inputs, outputs, tuning_params: self.tuning_params, doc })
    }
}
