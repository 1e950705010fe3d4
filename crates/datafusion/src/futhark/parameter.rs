// SPDX-License-Identifier: Apache-2.0
//! Parameters of entry points, and the SQL types of Futhark's values.

use std::sync::Arc;

use arrow::datatypes::{DataType, Field};
use futhark::manifest::{ArrayType, EntryPoint, Kind, OpaqueType, Record};
use futhark::{Manifest, Primitive};

use crate::futhark::sum::SumType;
use crate::reason::Reason;

/// A parameter.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Parameter {
    pub name: String,
    pub of: Of,
    /// A value for each row; else one for all.
    pub is_array: bool,
    /// What SQL gives for a row, or for all: a type with the primitive type's bits, lists of it for
    /// more dimensions, structs for records and sums.
    pub data_type: DataType,
}

/// What a parameter's values are.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Of {
    /// Values of a primitive type.
    Values(Primitive),
    /// Records of this type, and their fields in the manifest's order.
    Records(String, Vec<Parameter>),
    /// Values of a sum type.
    Sums(Arc<SumType>),
    /// Values of a type that only the library understands, sealed.
    Opaque(String),
    /// Arrays within one value: lists of what a column of them has.
    Lists(Box<Parameter>),
}

/// What becomes of rows with a NULL argument.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum Nulls {
    /// The library does not see them, and they give NULL.
    #[default]
    Strict,
    /// Behind each array the library takes another one of booleans, which says where there is a
    /// value. Its result has NULL where a second result of booleans says so.
    Mask,
}

pub(super) fn parameters(manifest: &Manifest, entry: &EntryPoint) -> std::result::Result<Vec<Parameter>, Reason> {
    let parameter = |(position, input): (usize, &futhark::manifest::Input)| {
        let name = if input.name.is_empty() { format!("arg{}", position + 1) } else { input.name.clone() };
        parameter_of(manifest, &name, &input.type_name).map_err(|reason| format!("its parameter {reason}"))
    };
    entry.inputs.iter().enumerate().map(parameter).collect()
}

/// A type as a column, where it is an array or a record of nothing else, or as one value; or why
/// SQL has neither.
pub(super) fn parameter_of(manifest: &Manifest, name: &str, type_name: &str) -> std::result::Result<Parameter, Reason> {
    column_form(manifest, name, type_name).map_or_else(|| value_form(manifest, name, type_name), Ok)
}

/// A type as a column: arrays, and records of nothing else.
pub(super) fn column_form(manifest: &Manifest, name: &str, type_name: &str) -> Option<Parameter> {
    let (of, data_type) = match manifest.kind(type_name)? {
        Kind::Array(ArrayType { elemtype, rank, .. }) => {
            let lists = (1..*rank).fold(data_type_of(*elemtype), |item, _| DataType::new_list(item, true));
            (Of::Values(*elemtype), lists)
        }
        Kind::Opaque(OpaqueType { record: Some(record), .. }) if !record.fields.is_empty() => {
            let field = |field: &futhark::manifest::Field| column_form(manifest, &field_name(&field.name), &field.type_name);
            let fields = record.fields.iter().map(field).collect::<Option<Vec<_>>>()?;
            let structs = struct_type(&format!("the type {type_name}"), &fields).ok()?;
            (Of::Records(type_name.to_owned(), fields), structs)
        }
        Kind::Scalar(_) | Kind::Opaque(_) => return None,
    };
    Some(Parameter { name: name.to_owned(), of, is_array: true, data_type })
}

/// A type as one value, or why SQL has none: structs for records and sums, in which arrays are
/// lists.
pub(super) fn value_form(manifest: &Manifest, name: &str, type_name: &str) -> std::result::Result<Parameter, Reason> {
    let (of, data_type) = match manifest.kind(type_name) {
        Some(Kind::Scalar(primitive)) => (Of::Values(primitive), data_type_of(primitive)),
        Some(Kind::Array(_) | Kind::Opaque(OpaqueType { record: Some(Record { rank: 1.., .. }), .. })) => {
            let column = column_form(manifest, name, type_name);
            let column = column.ok_or_else(|| format!("{name} is of type {type_name}, an array of what is no column"))?;
            let lists = DataType::new_list(column.data_type.clone(), true);
            (Of::Lists(Box::new(column)), lists)
        }
        Some(Kind::Opaque(OpaqueType { record: Some(record), .. })) if !record.fields.is_empty() => {
            let field = |field: &futhark::manifest::Field| value_form(manifest, &field_name(&field.name), &field.type_name);
            let fields = record.fields.iter().map(field).collect::<std::result::Result<Vec<_>, _>>();
            let fields = fields.map_err(|reason| format!("{name}: its field {reason}"))?;
            let structs = struct_type(&format!("the type {type_name}"), &fields).map_err(|reason| format!("{name}: {reason}"))?;
            (Of::Records(type_name.to_owned(), fields), structs)
        }
        Some(Kind::Opaque(OpaqueType { sum: Some(sum), .. })) => {
            let sum = SumType::new(manifest, type_name, sum).map_err(|reason| format!("{name}: {reason}"))?;
            let structs = sum.data_type();
            (Of::Sums(Arc::new(sum)), structs)
        }
        Some(Kind::Opaque(opaque)) if is_stored(opaque) => (Of::Opaque(type_name.to_owned()), DataType::Binary),
        _ => return Err(format!("{name} is of type {type_name}, which cannot be stored")),
    };
    Ok(Parameter { name: name.to_owned(), of, is_array: false, data_type })
}

/// The struct that something with these fields is, if each has its own name.
pub(super) fn struct_type(what: &str, fields: &[Parameter]) -> std::result::Result<DataType, Reason> {
    if let Some(name) = twice(fields) {
        return Err(format!("{what} would be a struct with two fields {name}"));
    }
    Ok(DataType::Struct(fields.iter().map(|field| Field::new(&field.name, field.data_type.clone(), true)).collect()))
}

/// A name that two fields have.
pub(super) fn twice(fields: &[Parameter]) -> Option<&str> {
    let is_twice = |(index, field): &(usize, &Parameter)| fields[..*index].iter().any(|other| other.name == field.name);
    fields.iter().enumerate().find(is_twice).map(|(_, field)| field.name.as_str())
}

/// Whether values of an opaque type can be bytes.
pub(super) fn is_stored(opaque: &OpaqueType) -> bool {
    opaque.ops.store.is_some() && opaque.ops.restore.is_some()
}

/// The name of a field; those of tuples are numbers, and called as `struct()` calls them.
pub(super) fn field_name(name: &str) -> String {
    let is_number = name.bytes().all(|byte| byte.is_ascii_digit());
    if is_number { format!("c{name}") } else { name.to_owned() }
}

/// A parameter's type in Futhark's words.
pub(super) fn type_of(parameter: &Parameter) -> String {
    match &parameter.of {
        Of::Values(primitive) => {
            let dimensions = usize::from(parameter.is_array) + list_depth(&parameter.data_type);
            format!("{}{}", "[]".repeat(dimensions), primitive.name())
        }
        Of::Records(type_name, _) | Of::Opaque(type_name) => type_name.clone(),
        Of::Sums(sum) => sum.type_name.clone(),
        Of::Lists(column) => type_of(column),
    }
}

fn list_depth(data_type: &DataType) -> usize {
    if let DataType::List(item) = data_type { 1 + list_depth(item.data_type()) } else { 0 }
}

/// The Arrow type that has a primitive type's values.
pub(crate) fn data_type_of(primitive: Primitive) -> DataType {
    match primitive {
        Primitive::I8 => DataType::Int8,
        Primitive::I16 => DataType::Int16,
        Primitive::I32 => DataType::Int32,
        Primitive::I64 => DataType::Int64,
        Primitive::U8 => DataType::UInt8,
        Primitive::U16 => DataType::UInt16,
        Primitive::U32 => DataType::UInt32,
        Primitive::U64 => DataType::UInt64,
        Primitive::F16 => DataType::Float16,
        Primitive::F32 => DataType::Float32,
        Primitive::F64 => DataType::Float64,
        Primitive::Bool => DataType::Boolean,
    }
}
