// SPDX-License-Identifier: Apache-2.0
//! Schemas across the interface (R32): arrow-rs's conversion, behind checks that keep it from panicking on foreign input.
//!
//! A record batch travels as a struct array, its schema's metadata as that of the struct's field (R31).

use std::ffi::{CStr, c_char};

use arrow::datatypes::{DataType, Field, Schema};
use arrow::ffi::FFI_ArrowSchema;

use crate::array::check::MAX_DEPTH;
use crate::callback::guard;
use crate::{Error, Result, metadata};

/// More children in a foreign schema than this are refused as corrupt.
const MAX_CHILDREN: usize = 1 << 20;

/// The field that a record batch of `schema` has as an array: a struct without nulls, with the schema's metadata.
///
/// # Examples
/// ```
/// use arrow::datatypes::{DataType, Field, Schema};
/// use arrow_device::schema;
///
/// let schema = Schema::new(vec![Field::new("price", DataType::Int64, false)]);
/// let field = schema::batch_field(&schema);
/// assert_eq!(schema::schema_of(&field), Some(schema));
/// ```
pub fn batch_field(schema: &Schema) -> Field {
    Field::new("", DataType::Struct(schema.fields().clone()), false).with_metadata(schema.metadata().clone())
}

/// The schema of a record batch from the field of its struct array; `None` if the field is no struct.
pub fn schema_of(field: &Field) -> Option<Schema> {
    match field.data_type() {
        DataType::Struct(fields) => Some(Schema::new_with_metadata(fields.clone(), field.metadata().clone())),
        _ => None,
    }
}

/// The C schema of one field.
///
/// # Errors
/// `Unsupported` if C cannot express it: a NUL in a name or time zone, metadata that is too large.
pub fn export_field(field: &Field) -> Result<FFI_ArrowSchema> {
    // arrow-rs panics where a time zone has a NUL.
    let schema = guard("export of the schema", || Ok(FFI_ArrowSchema::try_from(field)));
    let unsupported = |error: &dyn std::fmt::Display| Error::Unsupported(format!("export of field {:?}: {error}", field.name()));
    schema.map_err(|error| unsupported(&error))?.map_err(|error| unsupported(&error))
}

/// The C schema of record batches.
///
/// # Errors
/// As [`export_field`].
pub fn export_schema(schema: &Schema) -> Result<FFI_ArrowSchema> {
    export_field(&batch_field(schema))
}

/// Takes over the C schema of an array, and releases it.
///
/// # Errors
/// `Invalid` if it breaks the interface, `Unsupported` if arrow-rs has no such type.
///
/// # Safety
/// A pointer in `schema` that is not null points to what the C data interface says.
pub unsafe fn import_field(schema: FFI_ArrowSchema) -> Result<Field> {
    // SAFETY: as this function's own condition.
    unsafe { check_schema(&schema, 0)? };
    let field = guard("import of the schema", || Ok(Field::try_from(&schema)))?;
    field.map_err(|error| Error::Unsupported(format!("import of the schema: {error}")))
}

/// Takes over the C schema of record batches, and releases it.
///
/// # Errors
/// As [`import_field`], and `Invalid` if it is not the schema of a struct.
///
/// # Safety
/// As [`import_field`].
pub unsafe fn import_schema(schema: FFI_ArrowSchema) -> Result<Schema> {
    // SAFETY: as this function's own condition.
    let field = unsafe { import_field(schema)? };
    schema_of(&field)
        .ok_or_else(|| Error::Invalid(format!("import of the schema: expected a struct of columns, got {}", field.data_type())))
}

/// Checks what arrow-rs's conversion takes for granted.
///
/// # Safety
/// As [`import_field`].
unsafe fn check_schema(schema: &FFI_ArrowSchema, depth: usize) -> Result<()> {
    let invalid = |what: &dyn std::fmt::Display| Err(Error::Invalid(format!("import of the schema: {what}")));
    if depth >= MAX_DEPTH {
        return Err(Error::Unsupported(format!("import of the schema: nested deeper than {MAX_DEPTH} levels")));
    }
    if schema.release.is_none() {
        return invalid(&"it is released");
    }
    // SAFETY: the name is null or a C string.
    let name = unsafe { text(schema.name, "name")? }.unwrap_or_default();
    // SAFETY: the format is null or a C string.
    let Some(format) = (unsafe { text(schema.format, "format")? }) else {
        return invalid(&format_args!("the format of field {name:?} is null"));
    };
    let count = usize::try_from(schema.n_children).ok().filter(|count| *count <= MAX_CHILDREN);
    let Some(count) = count else {
        return invalid(&format_args!("field {name:?} ({format}) cannot have {} children", schema.n_children));
    };
    // Struct and union have any number.
    let expected = match format {
        "+l" | "+L" | "+vl" | "+vL" | "+m" => Some(1),
        "+r" => Some(2),
        _ if format.starts_with("+w:") => Some(1),
        _ => None,
    };
    if let Some(expected) = expected.filter(|expected| *expected != count) {
        return invalid(&format_args!("field {name:?} ({format}): expected {expected} children, got {count}"));
    }
    if count > 0 && schema.children.is_null() {
        return invalid(&format_args!("field {name:?} ({format}): children is null, expected {count}"));
    }
    // SAFETY: the metadata is null or an encoding.
    if let Err(error) = unsafe { metadata::decode(schema.metadata) } {
        return invalid(&format_args!("field {name:?} ({format}): {error}"));
    }
    let children = (0..count).map(|index| {
        // SAFETY: the table is not null and has `n_children` entries.
        unsafe { schema.children.add(index).read_unaligned() }
    });
    let dictionary = std::iter::once(schema.dictionary).filter(|dictionary| !dictionary.is_null());
    for child in children.chain(dictionary) {
        if child.is_null() || !child.is_aligned() {
            return invalid(&format_args!("field {name:?} ({format}) has a child at a null or odd address"));
        }
        // SAFETY: neither null nor misaligned, so it points to a schema by this function's own condition.
        unsafe { check_schema(&*child, depth + 1)? };
    }
    Ok(())
}

/// # Safety
/// `text` is null or points to a C string that lives for `'a`.
unsafe fn text<'a>(text: *const c_char, what: &str) -> Result<Option<&'a str>> {
    if text.is_null() {
        return Ok(None);
    }
    // SAFETY: not null, so a C string by this function's own condition.
    let text = unsafe { CStr::from_ptr(text) }.to_str();
    text.map(Some).map_err(|error| Error::Invalid(format!("import of the schema: a {what} is not UTF-8: {error}")))
}
