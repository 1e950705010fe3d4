// SPDX-License-Identifier: Apache-2.0
//! Validation of a manifest.

use std::collections::BTreeMap;

use super::{ArrayOps, Kind, Manifest, OpaqueType, Type};
use crate::{Error, Primitive, Result};

impl Manifest {
    pub(super) fn check(&self) -> Result<()> {
        for (name, ty) in &self.types {
            ty.check(name)?;
            self.check_types(&format!("the type {name}"), ty.parts().into_iter())?;
            if let Type::Opaque(OpaqueType { record: Some(record), .. }) = ty
                && record.rank > 0
                && let Some(field) =
                    record.fields.iter().find(|field| matches!(self.kind(&field.type_name), Some(Kind::Scalar(_))))
            {
                let (field, type_name) = (&field.name, &field.type_name);
                return Err(Error::Manifest(format!("the type {name} is an array, but its field {field} is {type_name}")));
            }
        }
        let mut known = BTreeMap::new();
        self.types.keys().try_for_each(|name| self.size(name, &mut Vec::new(), &mut known).map(|_| ()))?;
        for (name, entry) in &self.entry_points {
            let inputs = entry.inputs.iter().map(|input| &input.type_name);
            let outputs = entry.outputs.iter().map(|output| &output.type_name);
            self.check_types(&format!("the entry point {name}"), inputs.chain(outputs))?;
        }
        Ok(())
    }

    /// The size of a type; an error for one that contains itself.
    fn size<'a>(&'a self, name: &'a str, above: &mut Vec<&'a str>, known: &mut BTreeMap<&'a str, TypeSize>) -> Result<TypeSize> {
        let mut size = TypeSize { depth: 0, parts: 1 };
        let Some(ty) = self.types.get(name) else { return Ok(size) };
        if let Some(size) = known.get(name) {
            return Ok(*size);
        }
        let too_deep = |name: &str| Error::Manifest(format!("the type {name} nests others more than {MAX_DEPTH} deep"));
        // Checked before the recursion, which would overflow the stack.
        if above.len() > MAX_DEPTH {
            return Err(too_deep(above[0]));
        }
        above.push(name);
        for part in ty.parts() {
            if above.contains(&part.as_str()) {
                return Err(Error::Manifest(format!("the type {part} contains itself")));
            }
            let TypeSize { depth, parts } = self.size(part, above, known)?;
            size.depth = size.depth.max(1 + depth);
            size.parts += parts;
            if size.parts > MAX_PARTS {
                return Err(Error::Manifest(format!("the type {name} has more than {MAX_PARTS} parts, including nested ones")));
            }
        }
        above.pop();
        if size.depth > MAX_DEPTH {
            return Err(too_deep(name));
        }
        known.insert(name, size);
        Ok(size)
    }

    fn check_types<'a>(&self, item: &str, names: impl Iterator<Item = &'a String>) -> Result<()> {
        for name in names {
            if self.kind(name).is_none() {
                return Err(Error::Manifest(format!("{item} names the type {name}, which is neither primitive nor listed")));
            }
        }
        Ok(())
    }
}

/// The size of a type.
#[derive(Clone, Copy)]
struct TypeSize {
    /// The depth of nesting.
    depth: usize,
    /// The number of nested types, including itself and repetitions.
    parts: usize,
}

/// Limit of nesting of records and sums.
const MAX_DEPTH: usize = 32;

/// Limit of nested types: records that nest twice per level grow exponentially.
const MAX_PARTS: usize = 4096;

/// Limit of the rank of arrays.
const MAX_RANK: usize = 32;

impl Type {
    /// The types of fields and payloads.
    fn parts(&self) -> Vec<&String> {
        let Type::Opaque(opaque) = self else { return Vec::new() };
        let fields = opaque.record.iter().flat_map(|record| record.fields.iter().map(|field| &field.type_name));
        let payloads = opaque.sum.iter().flat_map(|sum| &sum.variants).flat_map(|variant| &variant.payload);
        fields.chain(payloads).collect()
    }

    fn check(&self, name: &str) -> Result<()> {
        let item = format!("the type {name}");
        if Primitive::from_name(name).is_some() {
            return Err(Error::Manifest(format!("{item} is primitive, but listed as another")));
        }
        let (ctype, symbols) = match self {
            Type::Array(array) => {
                if array.rank == 0 {
                    return Err(Error::Manifest(format!("{item} is an array of rank 0")));
                }
                check_rank(&item, array.rank)?;
                let listed = format!("{}{}", "[]".repeat(array.rank), array.elemtype.name());
                if name.starts_with('[') && name != listed {
                    return Err(Error::Manifest(format!("{item} is listed as {listed}")));
                }
                (&array.ctype, array.ops.symbols().to_vec())
            }
            Type::Opaque(opaque) => {
                if opaque.record.is_some() && opaque.sum.is_some() {
                    return Err(Error::Manifest(format!("{item} is both a record and a sum type")));
                }
                check_rank(&item, opaque.record.as_ref().map_or(0, |record| record.rank))?;
                (&opaque.ctype, opaque.symbols())
            }
        };
        if !ctype.trim_end().ends_with('*') {
            return Err(Error::Manifest(format!("{item} is {ctype} in C, which is not a pointer")));
        }
        symbols.into_iter().try_for_each(|symbol| check_symbol(&item, symbol))
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

/// All versions 0.x have the same C API.
pub(super) fn check_version(version: &str) -> Result<()> {
    let major = version.split(['.', ' ', '-']).next().and_then(|major| major.parse::<u32>().ok());
    match major {
        Some(0) => Ok(()),
        Some(_) => Err(Error::Manifest(format!("version {version} of the compiler is unknown; must be 0.x"))),
        None => Err(Error::Manifest(format!("the version is {version}; must be 0.x"))),
    }
}

fn check_rank(item: &str, rank: usize) -> Result<()> {
    match rank <= MAX_RANK {
        true => Ok(()),
        false => Err(Error::Manifest(format!("{item} has {rank} dimensions, more than {MAX_RANK}"))),
    }
}

/// Checks that the dynamic loader can look a name up.
pub(super) fn check_symbol(item: &str, symbol: &str) -> Result<()> {
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
    match !symbol.is_empty() && symbol.bytes().all(fits) {
        true => Ok(()),
        false => Err(Error::Manifest(format!("{item} names the C function '{symbol}', which is not a C identifier"))),
    }
}
