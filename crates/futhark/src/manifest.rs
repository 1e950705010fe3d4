// SPDX-License-Identifier: Apache-2.0
//! The manifest: what a compiled library offers, in JSON.
//!
//! Compilers up to 0.26 list the `outputs` of an entry point, later ones give it one `output`, which is a tuple
//! where there are several. Both are read, and fields that are not known are passed over. What a manifest says
//! twice must agree: calls through a C ABI trust it.

use std::collections::BTreeMap;

use device::DriverKind;
use serde::Deserialize;
use serde_json::Value as Json;

use crate::{Error, Primitive, Result};

/// What a compiled library offers.
#[derive(Debug, Clone, PartialEq)]
pub struct Manifest {
    /// What the program was compiled for.
    pub backend: Backend,
    /// The compiler's version, if the manifest is not from before these were written down.
    pub version: Option<String>,
    /// Entry points by name.
    pub entry_points: BTreeMap<String, EntryPoint>,
    /// Types that are not primitive, by Futhark's name.
    pub types: BTreeMap<String, Type>,
}

/// What a program was compiled for.
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
    /// The compiler's name for it.
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

    /// The driver whose devices a library of this back end uses; `None` without a driver in `device`.
    pub fn driver(self) -> Option<DriverKind> {
        match self {
            Backend::OpenCl => Some(DriverKind::OpenCl),
            Backend::Cuda => Some(DriverKind::Cuda),
            Backend::C | Backend::Multicore | Backend::Ispc | Backend::Hip => None,
        }
    }
}

/// A function of the library.
#[derive(Debug, Clone, PartialEq)]
pub struct EntryPoint {
    /// The C function.
    pub cfun: String,
    /// What it takes.
    pub inputs: Vec<Input>,
    /// What it gives; several only from older compilers.
    pub outputs: Vec<Output>,
    /// Names of the tuning parameters that have a say in it.
    pub tuning_params: Vec<String>,
    /// The program's comment.
    pub doc: Option<String>,
}

/// A parameter of an entry point.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Input {
    /// Its name; empty in old manifests.
    #[serde(default)]
    pub name: String,
    /// Its type, in Futhark's words.
    #[serde(rename = "type")]
    pub type_name: String,
    /// Whether a call consumes it.
    #[serde(default)]
    pub unique: bool,
}

/// A result of an entry point.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Output {
    /// Its type, in Futhark's words.
    #[serde(rename = "type")]
    pub type_name: String,
    /// Whether it shares memory with nothing else.
    #[serde(default)]
    pub unique: bool,
}

/// A type that is not primitive.
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
    /// How many dimensions.
    pub rank: usize,
    /// What it holds.
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
    /// Named by newer compilers, as is `values_raw`; those of older ones take more arguments.
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
    /// Of a record or tuple: its fields. Of an array of them: its fields too, each an array.
    pub record: Option<Record>,
    /// Of a sum type: its variants.
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
    /// The C function that makes a record of fields in this order; of an array of records that which zips.
    pub new: String,
    /// The fields.
    pub fields: Vec<Field>,
    /// How many dimensions an array of records has; 0 for a record.
    #[serde(skip)]
    pub rank: usize,
}

/// A field of a record.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Field {
    /// Its name; a number in tuples.
    pub name: String,
    /// Its type, in Futhark's words.
    #[serde(rename = "type")]
    pub type_name: String,
    /// The C function that takes it out of a record.
    pub project: String,
}

/// The variants of a sum type.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Sum {
    /// The C function that tells the variant of a value.
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
    /// The C function that makes a value of this variant.
    pub construct: String,
    /// The C function that takes the payload out.
    pub destruct: String,
    /// Types of the payload.
    pub payload: Vec<String>,
}

/// What a type's name stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind<'a> {
    /// A primitive type, passed by value.
    Scalar(Primitive),
    /// An array.
    Array(&'a ArrayType),
    /// Anything else.
    Opaque(&'a OpaqueType),
}

/// As it stands in the file.
#[derive(Deserialize)]
struct RawOpaqueType {
    ctype: String,
    ops: OpaqueOps,
    record: Option<Record>,
    sum: Option<Sum>,
    record_array: Option<RawRecordArray>,
}

/// An array of records is zipped of arrays and taken apart into them, as a record is made of values.
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

/// As it stands in the file.
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
    /// Reads a manifest and checks it.
    ///
    /// # Errors
    /// [`Error::Manifest`] with what is missing, not known or contradictory.
    ///
    /// # Examples
    /// ```
    /// let text = r#"{"backend": "c", "version": "0.25.32", "types": {}, "entry_points": {"triple": {
    ///     "cfun": "futhark_entry_triple", "inputs": [{"name": "x", "type": "i32"}], "outputs": [{"type": "i32"}]}}}"#;
    /// let manifest = futhark::Manifest::parse(text)?;
    /// assert_eq!(manifest.signature("triple")?, "(x: i32) -> i32");
    /// # Ok::<(), futhark::Error>(())
    /// ```
    pub fn parse(text: &str) -> Result<Manifest> {
        let raw: RawManifest = serde_json::from_str(text).map_err(|error| Error::Manifest(error.to_string()))?;
        let backend = serde_json::from_value(Json::String(raw.backend.clone())).map_err(|_| {
            Error::Manifest(format!(
                "the back end is {}, must be c, multicore, ispc, opencl, cuda or hip: others give no C library",
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

    /// What a type's name stands for, if anything.
    pub fn kind(&self, type_name: &str) -> Option<Kind<'_>> {
        if let Some(primitive) = Primitive::of_name(type_name) {
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
    /// [`Error::Usage`] with the names that there are.
    pub fn entry_point(&self, name: &str) -> Result<&EntryPoint> {
        self.entry_points.get(name).ok_or_else(|| {
            let names: Vec<&str> = self.entry_points.keys().map(String::as_str).collect();
            Error::Usage(format!("there is no entry point {name}; there are {}", names.join(", ")))
        })
    }

    /// The type of an entry point as Futhark writes it: a `*` marks what is consumed.
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

    fn check(&self) -> Result<()> {
        for (name, of) in &self.types {
            of.check(name)?;
            self.check_types(&format!("the type {name}"), of.parts().into_iter())?;
            if let Type::Opaque(OpaqueType { record: Some(record), .. }) = of
                && record.rank > 0
                && let Some(field) =
                    record.fields.iter().find(|field| matches!(self.kind(&field.type_name), Some(Kind::Scalar(_))))
            {
                let (field, is) = (&field.name, &field.type_name);
                return Err(Error::Manifest(format!("the type {name} is an array, and its field {field} is {is}")));
            }
        }
        let mut known = BTreeMap::new();
        self.types.keys().try_for_each(|name| self.extent(name, &mut Vec::new(), &mut known).map(|_| ()))?;
        for (name, entry) in &self.entry_points {
            let inputs = entry.inputs.iter().map(|input| &input.type_name);
            let outputs = entry.outputs.iter().map(|output| &output.type_name);
            self.check_types(&format!("the entry point {name}"), inputs.chain(outputs))?;
        }
        Ok(())
    }

    /// How far a type goes. None holds itself.
    fn extent<'a>(&'a self, name: &'a str, above: &mut Vec<&'a str>, known: &mut BTreeMap<&'a str, Extent>) -> Result<Extent> {
        let mut extent = Extent { depth: 0, parts: 1 };
        let Some(of) = self.types.get(name) else { return Ok(extent) };
        if let Some(extent) = known.get(name) {
            return Ok(*extent);
        }
        let too_deep = |name: &str| Error::Manifest(format!("the type {name} holds others more than {DEPTH} deep"));
        // Before the next call: the stack is not endless.
        if above.len() > DEPTH {
            return Err(too_deep(above[0]));
        }
        above.push(name);
        for part in of.parts() {
            if above.contains(&part.as_str()) {
                return Err(Error::Manifest(format!("the type {part} holds itself")));
            }
            let Extent { depth, parts } = self.extent(part, above, known)?;
            extent.depth = extent.depth.max(1 + depth);
            extent.parts += parts;
            if extent.parts > PARTS {
                return Err(Error::Manifest(format!("the type {name} has more than {PARTS} parts, with those of its parts")));
            }
        }
        above.pop();
        if extent.depth > DEPTH {
            return Err(too_deep(name));
        }
        known.insert(name, extent);
        Ok(extent)
    }

    fn check_types<'a>(&self, of: &str, names: impl Iterator<Item = &'a String>) -> Result<()> {
        for name in names {
            if self.kind(name).is_none() {
                return Err(Error::Manifest(format!("{of} names the type {name}, which is neither primitive nor listed")));
            }
        }
        Ok(())
    }
}

impl RawEntryPoint {
    fn checked(self, name: &str) -> Result<EntryPoint> {
        let of = format!("the entry point {name}");
        let outputs = match (self.outputs, self.output) {
            (Some(outputs), None) => outputs,
            (None, Some(output)) => vec![output],
            (Some(_), Some(_)) => return Err(Error::Manifest(format!("{of} has both outputs and output"))),
            (None, None) => return Err(Error::Manifest(format!("{of} has neither outputs nor output"))),
        };
        check_symbol(&of, &self.cfun)?;
        let doc = self.doc.as_str().map(str::to_owned);
        Ok(EntryPoint { cfun: self.cfun, inputs: self.inputs, outputs, tuning_params: self.tuning_params, doc })
    }
}

/// How far a type goes.
#[derive(Clone, Copy)]
struct Extent {
    /// How deep it holds others.
    depth: usize,
    /// How many types are written in it, itself among them, with each as often as it is held.
    parts: usize,
}

/// How deep records and sums may hold one another.
const DEPTH: usize = 32;

/// How many types may be written in one: a few records that hold the next one twice are many when written out.
const PARTS: usize = 4096;

/// How many dimensions an array may have.
const RANK: usize = 32;

impl Type {
    /// The types of fields and payloads.
    fn parts(&self) -> Vec<&String> {
        let Type::Opaque(opaque) = self else { return Vec::new() };
        let fields = opaque.record.iter().flat_map(|record| record.fields.iter().map(|field| &field.type_name));
        let payloads = opaque.sum.iter().flat_map(|sum| &sum.variants).flat_map(|variant| &variant.payload);
        fields.chain(payloads).collect()
    }

    fn check(&self, name: &str) -> Result<()> {
        let of = format!("the type {name}");
        if Primitive::of_name(name).is_some() {
            return Err(Error::Manifest(format!("{of} is primitive, and listed as another")));
        }
        let (ctype, symbols) = match self {
            Type::Array(array) => {
                if array.rank == 0 {
                    return Err(Error::Manifest(format!("{of} is an array of rank 0")));
                }
                check_rank(&of, array.rank)?;
                let says = format!("{}{}", "[]".repeat(array.rank), array.elemtype.name());
                if name.starts_with('[') && name != says {
                    return Err(Error::Manifest(format!("{of} is listed as {says}")));
                }
                (&array.ctype, array.ops.symbols().to_vec())
            }
            Type::Opaque(opaque) => {
                if opaque.record.is_some() && opaque.sum.is_some() {
                    return Err(Error::Manifest(format!("{of} is both a record and a sum type")));
                }
                check_rank(&of, opaque.record.as_ref().map_or(0, |record| record.rank))?;
                (&opaque.ctype, opaque.symbols())
            }
        };
        if !ctype.trim_end().ends_with('*') {
            return Err(Error::Manifest(format!("{of} is {ctype} in C, which is no pointer")));
        }
        symbols.into_iter().try_for_each(|symbol| check_symbol(&of, symbol))
    }
}

impl ArrayOps {
    fn symbols(&self) -> Vec<&str> {
        let always = [&self.free, &self.shape, &self.values, &self.new];
        always.into_iter().chain(&self.new_raw).chain(&self.values_raw).map(String::as_str).collect()
    }
}

impl OpaqueType {
    fn symbols(&self) -> Vec<&str> {
        let ops = [Some(&self.ops.free), self.ops.store.as_ref(), self.ops.restore.as_ref()].into_iter().flatten();
        let record = self.record.iter().flat_map(|record| {
            let projections = record.fields.iter().map(|field| &field.project);
            projections.chain([&record.new])
        });
        let sum = self.sum.iter().flat_map(|sum| {
            let variants = sum.variants.iter().flat_map(|variant| [&variant.construct, &variant.destruct]);
            variants.chain([&sum.variant])
        });
        ops.chain(record).chain(sum).map(String::as_str).collect()
    }
}

/// The C API has been one since manifests exist, through all versions 0.x.
fn check_version(version: &str) -> Result<()> {
    let major = version.split(['.', ' ', '-']).next().and_then(|major| major.parse::<u32>().ok());
    match major {
        Some(0) => Ok(()),
        Some(_) => Err(Error::Manifest(format!("version {version} of the compiler is not known; must be 0.x"))),
        None => Err(Error::Manifest(format!("the version is {version}; must be 0.x"))),
    }
}

fn check_rank(of: &str, rank: usize) -> Result<()> {
    match rank <= RANK {
        true => Ok(()),
        false => Err(Error::Manifest(format!("{of} has {rank} dimensions, more than {RANK}"))),
    }
}

/// A name that the dynamic loader can look up.
fn check_symbol(of: &str, symbol: &str) -> Result<()> {
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
    match !symbol.is_empty() && symbol.bytes().all(fits) {
        true => Ok(()),
        false => Err(Error::Manifest(format!("{of} names the C function '{symbol}', which is no name of C"))),
    }
}
