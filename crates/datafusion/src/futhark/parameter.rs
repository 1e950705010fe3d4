// SPDX-License-Identifier: Apache-2.0
//! Parameters of entry points, and the SQL types of Futhark's values.

use std::sync::Arc;

use arrow::datatypes::{DataType, Field};
use futhark::manifest::{ArrayType, EntryPoint, Kind, OpaqueType, Record};
use futhark::{Manifest, Primitive};

use crate::futhark::sum_type::SumType;
use crate::reason::Reason;

/// A parameter of an entry point, or a field or column of its types.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Parameter {
    pub name: String,
    pub kind: ValueKind,
    /// Whether each row has a value; else one value is for all rows.
    pub is_array: bool,
    /// The SQL type of one value. Records and sums are structs; an array of more dimensions has
    /// lists.
    pub data_type: DataType,
}

/// The kind of values.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum ValueKind {
    /// Values of a primitive type.
    Values(Primitive),
    /// Records of this type, with their fields in the manifest's order.
    Records(String, Vec<Parameter>),
    /// Values of a sum type.
    Sums(Arc<SumType>),
    /// Sealed values of an opaque type.
    Opaque(String),
    /// Arrays within one value: lists. The parameter describes a column of their elements.
    Lists(Box<Parameter>),
}

/// Treatment of rows with a NULL argument.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum Nulls {
    /// The library does not get them; they give NULL.
    #[default]
    Strict,
    /// The library takes a mask behind each array: booleans, true where there is a value. Its
    /// result may have a mask too.
    Mask,
}

pub(super) fn parameters(manifest: &Manifest, entry: &EntryPoint) -> std::result::Result<Vec<Parameter>, Reason> {
    let parameter = |(position, input): (usize, &futhark::manifest::Input)| {
        let name = if input.name.is_empty() { format!("arg{}", position + 1) } else { input.name.clone() };
        parameter_of(manifest, &name, &input.type_name).map_err(|reason| format!("its parameter {reason}"))
    };
    entry.inputs.iter().enumerate().map(parameter).collect()
}

/// A type as a column if it is an array or a record of arrays, else as one value.
pub(super) fn parameter_of(manifest: &Manifest, name: &str, type_name: &str) -> std::result::Result<Parameter, Reason> {
    as_column(manifest, name, type_name).map_or_else(|| as_value(manifest, name, type_name), Ok)
}

/// A type as a column: an array, or a record of columns.
pub(super) fn as_column(manifest: &Manifest, name: &str, type_name: &str) -> Option<Parameter> {
    let (kind, data_type) = match manifest.kind(type_name)? {
        Kind::Array(ArrayType { elemtype, rank, .. }) => {
            let lists = (1..*rank).fold(data_type_of(*elemtype), |item, _| DataType::new_list(item, true));
            (ValueKind::Values(*elemtype), lists)
        }
        Kind::Opaque(OpaqueType { record: Some(record), .. }) if !record.fields.is_empty() => {
            let field = |field: &futhark::manifest::Field| as_column(manifest, &field_name(&field.name), &field.type_name);
            let fields = record.fields.iter().map(field).collect::<Option<Vec<_>>>()?;
            let structs = struct_type(&format!("the type {type_name}"), &fields).ok()?;
            (ValueKind::Records(type_name.to_owned(), fields), structs)
        }
        Kind::Scalar(_) | Kind::Opaque(_) => return None,
    };
    Some(Parameter { name: name.to_owned(), kind, is_array: true, data_type })
}

/// A type as one value: records and sums are structs, arrays are lists.
pub(super) fn as_value(manifest: &Manifest, name: &str, type_name: &str) -> std::result::Result<Parameter, Reason> {
    let (kind, data_type) = match manifest.kind(type_name) {
        Some(Kind::Scalar(primitive)) => (ValueKind::Values(primitive), data_type_of(primitive)),
        Some(Kind::Array(_) | Kind::Opaque(OpaqueType { record: Some(Record { rank: 1.., .. }), .. })) => {
            let column = as_column(manifest, name, type_name);
            let column =
                column.ok_or_else(|| format!("{name} is of type {type_name}, an array of values that cannot be a column"))?;
            let lists = DataType::new_list(column.data_type.clone(), true);
            (ValueKind::Lists(Box::new(column)), lists)
        }
        Some(Kind::Opaque(OpaqueType { record: Some(record), .. })) if !record.fields.is_empty() => {
            let field = |field: &futhark::manifest::Field| as_value(manifest, &field_name(&field.name), &field.type_name);
            let fields = record.fields.iter().map(field).collect::<std::result::Result<Vec<_>, _>>();
            let fields = fields.map_err(|reason| format!("{name}: its field {reason}"))?;
            let structs = struct_type(&format!("the type {type_name}"), &fields).map_err(|reason| format!("{name}: {reason}"))?;
            (ValueKind::Records(type_name.to_owned(), fields), structs)
        }
        Some(Kind::Opaque(OpaqueType { sum: Some(sum), .. })) => {
            let sum = SumType::new(manifest, type_name, sum).map_err(|reason| format!("{name}: {reason}"))?;
            let structs = sum.data_type();
            (ValueKind::Sums(Arc::new(sum)), structs)
        }
        Some(Kind::Opaque(opaque)) if is_stored(opaque) => (ValueKind::Opaque(type_name.to_owned()), DataType::Binary),
        _ => return Err(format!("{name} is of type {type_name}, which cannot be stored")),
    };
    Ok(Parameter { name: name.to_owned(), kind, is_array: false, data_type })
}

/// The struct type of fields with different names.
pub(super) fn struct_type(what: &str, fields: &[Parameter]) -> std::result::Result<DataType, Reason> {
    if let Some(name) = duplicate_name(fields) {
        return Err(format!("{what} would be a struct with two fields {name}"));
    }
    Ok(DataType::Struct(fields.iter().map(|field| Field::new(&field.name, field.data_type.clone(), true)).collect()))
}

/// The name of two fields.
pub(super) fn duplicate_name(fields: &[Parameter]) -> Option<&str> {
    let is_duplicate = |(index, field): &(usize, &Parameter)| fields[..*index].iter().any(|other| other.name == field.name);
    fields.iter().enumerate().find(is_duplicate).map(|(_, field)| field.name.as_str())
}

/// Whether values of an opaque type can be stored as bytes.
pub(super) fn is_stored(opaque: &OpaqueType) -> bool {
    opaque.ops.store.is_some() && opaque.ops.restore.is_some()
}

/// The name of a field. Fields of tuples are numbered and get the names of `struct()`: `c0`, `c1`.
pub(super) fn field_name(name: &str) -> String {
    let is_number = name.bytes().all(|byte| byte.is_ascii_digit());
    if is_number { format!("c{name}") } else { name.to_owned() }
}

/// A parameter's Futhark type.
pub(super) fn type_of(parameter: &Parameter) -> String {
    match &parameter.kind {
        ValueKind::Values(primitive) => {
            let dimensions = usize::from(parameter.is_array) + list_depth(&parameter.data_type);
            format!("{}{}", "[]".repeat(dimensions), primitive.name())
        }
        ValueKind::Records(type_name, _) | ValueKind::Opaque(type_name) => type_name.clone(),
        ValueKind::Sums(sum) => sum.type_name.clone(),
        ValueKind::Lists(column) => type_of(column),
    }
}

fn list_depth(data_type: &DataType) -> usize {
    if let DataType::List(item) = data_type { 1 + list_depth(item.data_type()) } else { 0 }
}

/// The Arrow type of a primitive type.
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
