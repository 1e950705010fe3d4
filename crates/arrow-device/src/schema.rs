// SPDX-License-Identifier: Apache-2.0
//! Schema import and export (R32): arrow-rs's conversion, with checks that keep foreign input from
//! panicking in it.
//!
//! A record batch is a struct array; its schema's metadata is that of the struct's field (R31).

use std::ffi::{CStr, c_char};
use std::fmt::Display;

use arrow::datatypes::{DataType, Field, Schema};
use arrow::ffi::FFI_ArrowSchema;

use crate::array::check::MAX_DEPTH;
use crate::callback::guard;
use crate::layout::{child_field, num_children};
use crate::metadata::MAX_METADATA_BYTES;
use crate::{Error, Result, metadata};

/// Limit of fields in a foreign schema, with nested ones and dictionaries.
const MAX_FIELDS: usize = 100_000;

/// Limit of the names, formats and metadata of a foreign schema, in bytes.
const MAX_TEXT: usize = MAX_METADATA_BYTES;

/// `ARROW_FLAG_NULLABLE`.
const NULLABLE: i64 = 2;

/// `ARROW_FLAG_MAP_KEYS_SORTED`.
const MAP_KEYS_SORTED: i64 = 4;

/// The field of a record batch as an array: a non-nullable struct with the schema's metadata.
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

/// The schema of a record batch, from the field of its struct array; `None` for other types.
pub fn schema_of(field: &Field) -> Option<Schema> {
    match field.data_type() {
        DataType::Struct(fields) => Some(Schema::new_with_metadata(fields.clone(), field.metadata().clone())),
        _ => None,
    }
}

/// The C schema of one field.
///
/// # Errors
/// `Unsupported` if C cannot express it: a NUL in a name or time zone, or too much metadata.
pub fn export_field(field: &Field) -> Result<FFI_ArrowSchema> {
    let unsupported = |why: &dyn Display| Error::Unsupported(format!("export of field {:?}: {why}", field.name()));
    if has_nul(field) {
        return Err(unsupported(&"a name or time zone in it contains a NUL, where C strings end"));
    }
    let schema = guard("export of the schema", || Ok(FFI_ArrowSchema::try_from(field)))?;
    let mut schema = schema.map_err(|error| unsupported(&error))?;
    // SAFETY: converted from this type above.
    unsafe { complete_flags(field.data_type(), &mut schema) };
    Ok(schema)
}

/// Sets flags that arrow-rs's conversion loses:
/// - The sorted keys of a map, which it overwrites with the flags of the map's field.
/// - The nullability of a dictionary's values, without which consumers ignore their validity.
///
/// # Safety
/// `schema` is arrow-rs's conversion of `data_type`.
unsafe fn complete_flags(data_type: &DataType, schema: &mut FFI_ArrowSchema) {
    if let DataType::Map(_, true) = data_type {
        schema.flags |= MAP_KEYS_SORTED;
    }
    for (index, child) in (0..num_children(data_type)).filter_map(|index| Some((index, child_field(data_type, index)?))) {
        // SAFETY: the conversion made a child for each field of the type.
        unsafe { complete_flags(child.data_type(), &mut **schema.children.add(index)) };
    }
    if let DataType::Dictionary(_, values) = data_type {
        // SAFETY: the conversion made a dictionary of the values' type.
        let dictionary = unsafe { &mut *schema.dictionary };
        dictionary.flags |= NULLABLE;
        // SAFETY: as above.
        unsafe { complete_flags(values, dictionary) };
    }
}

/// Whether a string of the schema contains a NUL; arrow-rs panics for some of these.
fn has_nul(field: &Field) -> bool {
    field.name().contains('\0') || has_nul_type(field.data_type())
}

fn has_nul_type(data_type: &DataType) -> bool {
    match data_type {
        DataType::Timestamp(_, Some(zone)) => zone.contains('\0'),
        DataType::Dictionary(_, values) => has_nul_type(values),
        _ => (0..num_children(data_type)).filter_map(|index| child_field(data_type, index)).any(|child| has_nul(child)),
    }
}

/// The C schema of record batches.
///
/// # Errors
/// As [`export_field`].
pub fn export_schema(schema: &Schema) -> Result<FFI_ArrowSchema> {
    export_field(&batch_field(schema))
}

/// Imports the C schema of an array, and releases it.
///
/// # Errors
/// `Invalid` if it breaks the interface. `Unsupported` if arrow-rs has no such type, or beyond a
/// limit: 64 levels, 100,000 fields, and 64 MiB of names, formats and metadata. A part that
/// several pointers share counts for each of them.
///
/// # Safety
/// Every non-null pointer in `schema` points to valid data, as the C data interface specifies.
pub unsafe fn import_field(schema: FFI_ArrowSchema) -> Result<Field> {
    // SAFETY: the caller upholds the contract.
    unsafe { field(&schema) }
}

/// Reads the C schema of an array without taking ownership.
///
/// # Errors
/// As [`import_field`].
///
/// # Safety
/// As [`import_field`].
pub unsafe fn field(schema: &FFI_ArrowSchema) -> Result<Field> {
    // SAFETY: the caller upholds the contract.
    unsafe { check_schema(schema, 0, &mut Size::default())? };
    let field = guard("import of the schema", || Ok(Field::try_from(schema)))?;
    field.map_err(|error| Error::Unsupported(format!("import of the schema: {error}")))
}

/// Imports the C schema of record batches, and releases it.
///
/// # Errors
/// As [`import_field`]; also `Invalid` if it is not the schema of a struct.
///
/// # Safety
/// As [`import_field`].
pub unsafe fn import_schema(schema: FFI_ArrowSchema) -> Result<Schema> {
    // SAFETY: the caller upholds the contract.
    let field = unsafe { import_field(schema)? };
    schema_of(&field)
        .ok_or_else(|| Error::Invalid(format!("import of the schema: expected a struct of columns, got {}", field.data_type())))
}

/// The size of a foreign schema once it is converted. The conversion copies what a pointer points
/// to, so a few structs that share their children can have any number of fields.
#[derive(Default)]
struct Size {
    fields: usize,
    text: usize,
}

impl Size {
    /// # Errors
    /// `Unsupported` beyond a limit.
    fn add(&mut self, fields: usize, text: usize) -> Result<()> {
        self.fields = self.fields.saturating_add(fields);
        self.text = self.text.saturating_add(text);
        let exceeded = if self.fields > MAX_FIELDS {
            format!("it has more than {MAX_FIELDS} fields, with nested ones and dictionaries")
        } else if self.text > MAX_TEXT {
            format!("its names, formats and metadata have more than {MAX_TEXT} bytes")
        } else {
            return Ok(());
        };
        Err(Error::Unsupported(format!("import of the schema: {exceeded}; a part counts for each pointer to it")))
    }
}

/// Checks the preconditions of arrow-rs's conversion. Adds the schema to `size`, without itself as
/// a field.
///
/// # Safety
/// As [`import_field`].
unsafe fn check_schema(schema: &FFI_ArrowSchema, depth: usize, size: &mut Size) -> Result<()> {
    let invalid = |what: &dyn Display| Err(Error::Invalid(format!("import of the schema: {what}")));
    if depth >= MAX_DEPTH {
        return Err(Error::Unsupported(format!("import of the schema: nested deeper than {MAX_DEPTH} levels")));
    }
    if schema.release.is_none() {
        return invalid(&"it is released");
    }
    // SAFETY: the name is null or a C string.
    let name = unsafe { str_at(schema.name, "name")? }.unwrap_or_default();
    // SAFETY: the format is null or a C string.
    let Some(format) = (unsafe { str_at(schema.format, "format")? }) else {
        return invalid(&format_args!("the format of field {name:?} is null"));
    };
    let Ok(count) = usize::try_from(schema.n_children) else {
        return invalid(&format_args!("field {name:?} ({format}) cannot have {} children", schema.n_children));
    };
    size.add(count.saturating_add(usize::from(!schema.dictionary.is_null())), name.len() + format.len())?;
    // Structs and unions have any number of children.
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
    // Dictionary keys must be integers; arrow-rs accepts any type.
    if !schema.dictionary.is_null() && !matches!(format, "c" | "C" | "s" | "S" | "i" | "I" | "l" | "L") {
        return invalid(&format_args!("field {name:?} ({format}) has a dictionary, but is not an integer"));
    }
    // SAFETY: the metadata is null or an encoding.
    match unsafe { metadata::decode(schema.metadata) } {
        // Each pair also has two lengths of 4 bytes.
        Ok(pairs) => size.add(0, pairs.iter().map(|(key, value)| 8 + key.len() + value.len()).sum())?,
        Err(error) => return invalid(&format_args!("field {name:?} ({format}): {error}")),
    }
    let children = (0..count).map(|index| {
        // SAFETY: the table is not null and has `n_children` entries.
        unsafe { schema.children.add(index).read_unaligned() }
    });
    let dictionary = std::iter::once(schema.dictionary).filter(|dictionary| !dictionary.is_null());
    for child in children.chain(dictionary) {
        if child.is_null() || !child.is_aligned() {
            return invalid(&format_args!("field {name:?} ({format}) has a null or misaligned child"));
        }
        // SAFETY: neither null nor misaligned, so it points to a schema by this function's
        // contract.
        unsafe { check_schema(&*child, depth + 1, size)? };
    }
    Ok(())
}

/// The C string at `string`; `None` if it is null.
///
/// # Safety
/// `string` is null or points to a C string that lives for `'a`.
unsafe fn str_at<'a>(string: *const c_char, what: &str) -> Result<Option<&'a str>> {
    if string.is_null() {
        return Ok(None);
    }
    // SAFETY: not null, so a C string by this function's contract.
    let string = unsafe { CStr::from_ptr(string) }.to_str();
    string.map(Some).map_err(|error| Error::Invalid(format!("import of the schema: a {what} is not UTF-8: {error}")))
}

#[cfg(test)]
mod tests {
    use std::ptr::{null, null_mut};
    use std::sync::Arc;
    use std::time::{Duration, Instant};

    use arrow::datatypes::TimeUnit;

    use super::*;
    use crate::doubling::doubling;

    fn list() -> Field {
        Field::new("l", DataType::List(Field::new("item", DataType::Int8, true).into()), true)
    }

    /// The import's error after `break_it` has changed the schema.
    #[track_caller]
    fn refused(field: &Field, break_it: impl FnOnce(&mut FFI_ArrowSchema)) -> String {
        let mut schema = export_field(field).unwrap();
        break_it(&mut schema);
        // SAFETY: the tests break only what the import checks.
        let error = unsafe { import_field(schema) }.unwrap_err();
        assert!(!error.to_string().contains("panicked"), "{error}");
        error.to_string()
    }

    #[test]
    fn r31_a_schema_keeps_its_metadata() {
        let fields = vec![list(), Field::new("i", DataType::Int8, false).with_metadata([("a".into(), "b".into())].into())];
        let schema = Schema::new_with_metadata(fields, [("k".into(), "v".into())].into());
        // SAFETY: exported here.
        assert_eq!(unsafe { import_schema(export_schema(&schema).unwrap()) }.unwrap(), schema);
        // SAFETY: exported here.
        let error = unsafe { import_schema(export_field(&list()).unwrap()) }.unwrap_err();
        assert!(error.to_string().contains("expected a struct of columns, got List"), "{error}");
    }

    #[test]
    fn r32_sorted_keys_of_maps_stay_sorted_wherever_the_map_is() {
        let entries = vec![Field::new("key", DataType::Int8, false), Field::new("value", DataType::Int8, true)];
        let entries = Arc::new(Field::new("entries", DataType::Struct(entries.into()), false));
        let map = |sorted| DataType::Map(Arc::clone(&entries), sorted);
        for sorted in [true, false] {
            let list = DataType::List(Field::new("item", map(sorted), true).into());
            let rows = DataType::Struct(vec![Field::new("a", DataType::Int8, true), Field::new("b", map(sorted), true)].into());
            let dictionary = DataType::Dictionary(DataType::Int8.into(), list.clone().into());
            for data_type in [map(sorted), list, rows, dictionary] {
                let field = Field::new("x", data_type, true);
                // SAFETY: exported here.
                assert_eq!(unsafe { import_field(export_field(&field).unwrap()) }.unwrap(), field);
            }
        }
        assert_eq!(export_field(&Field::new("x", map(true), true)).unwrap().flags, NULLABLE | MAP_KEYS_SORTED);
    }

    #[test]
    fn r32_values_of_a_dictionary_may_be_null() {
        let dictionary = DataType::Dictionary(DataType::Int8.into(), DataType::Utf8.into());
        let list = DataType::List(Field::new("item", dictionary.clone(), false).into());
        for (data_type, depth) in [(dictionary, 0), (list, 1)] {
            let schema = export_field(&Field::new("x", data_type, false)).unwrap();
            let field = (0..depth).fold(&schema, |field, _| field.child(0));
            assert_eq!((field.flags, field.dictionary().unwrap().flags), (0, NULLABLE));
        }
    }

    #[test]
    fn broken_schemas_are_refused() {
        let format = |format: &'static std::ffi::CStr| move |schema: &mut FFI_ArrowSchema| schema.format = format.as_ptr();
        let says = |what: &str| format!("import of the schema: field \"l\" (+l): {what}");
        assert_eq!(refused(&list(), |schema| schema.n_children = 0), says("expected 1 children, got 0"));
        assert_eq!(refused(&list(), |schema| schema.children = null_mut()), says("children is null, expected 1"));
        let error = refused(&list(), |schema| schema.n_children = -1);
        assert_eq!(error, "import of the schema: field \"l\" (+l) cannot have -1 children");
        let error = refused(&Field::new("i", DataType::Int8, true), |schema| schema.n_children = i64::MAX);
        assert!(error.contains("it has more than 100000 fields"), "{error}");
        let broken = |break_it: &dyn Fn(&mut FFI_ArrowSchema)| {
            let schema = export_field(&list()).unwrap();
            let mut copy = borrowed(&schema);
            break_it(&mut copy);
            // SAFETY: the tests break only what the import checks.
            unsafe { import_field(copy) }.unwrap_err().to_string()
        };
        assert_eq!(broken(&|schema| schema.format = null()), "import of the schema: the format of field \"l\" is null");
        assert!(broken(&format(c"\xff")).starts_with("import of the schema: a format is not UTF-8"));
        assert!(broken(&|schema| schema.name = c"\xff".as_ptr()).starts_with("import of the schema: a name is not UTF-8"));
        assert!(broken(&format(c"nonsense")).starts_with("import of the schema: "));
        assert!(broken(&format(c"+ud:-1")).starts_with("import of the schema: "));
        assert!(broken(&format(c"+us:1,2")).starts_with("import of the schema: "));
        assert!(broken(&format(c"w:x")).starts_with("import of the schema: "));
        assert_eq!(broken(&|schema| schema.release = None), "import of the schema: it is released");
        let count = (-1i32).to_ne_bytes();
        let error = broken(&|schema| schema.metadata = count.as_ptr().cast());
        assert_eq!(error, says("metadata: the number of pairs must not be negative, got -1"));
        for address in [0usize, 9] {
            let table = std::cell::Cell::new(std::ptr::without_provenance_mut(address));
            let error = broken(&|schema| schema.children = table.as_ptr());
            assert_eq!(error, "import of the schema: field \"l\" (+l) has a null or misaligned child");
        }
    }

    /// The same schema in a struct that owns nothing.
    fn borrowed(schema: &FFI_ArrowSchema) -> FFI_ArrowSchema {
        unsafe extern "C" fn forget(schema: *mut FFI_ArrowSchema) {
            // SAFETY: called with the struct to be released.
            unsafe { (*schema).release = None };
        }
        // SAFETY: with another release callback the copy owns nothing, so nothing is freed twice.
        let mut copy = unsafe { std::ptr::read(schema) };
        copy.release = Some(forget);
        copy
    }

    #[test]
    fn nesting_without_end_is_unsupported() {
        let nested = (0..100).fold(DataType::Int8, |inner, _| DataType::List(Field::new("item", inner, true).into()));
        let schema = export_field(&Field::new("x", nested, true)).unwrap();
        // SAFETY: exported here.
        let error = unsafe { import_field(schema) }.unwrap_err();
        assert_eq!(error.to_string(), "import of the schema: nested deeper than 64 levels");
    }

    #[test]
    fn fields_and_texts_count_for_each_pointer_to_them() {
        let start = Instant::now();
        // SAFETY: made by this test.
        let error = unsafe { import_field(doubling()) }.unwrap_err();
        let says = "import of the schema: it has more than 100000 fields, with nested ones and dictionaries; \
                    a part counts for each pointer to it";
        assert_eq!(error.to_string(), says);
        assert!(start.elapsed() < Duration::from_secs(1), "{:?}", start.elapsed());

        // A dictionary is a field of its own.
        let texts = DataType::Dictionary(DataType::Int8.into(), DataType::Utf8.into());
        for (data_type, most) in [(DataType::Int8, MAX_FIELDS), (texts, MAX_FIELDS / 2)] {
            for (columns, is_accepted) in [(most, true), (most + 1, false)] {
                let schema = Schema::new(vec![Field::new("c", data_type.clone(), true); columns]);
                // SAFETY: exported here.
                let imported = unsafe { import_schema(export_schema(&schema).unwrap()) };
                assert_eq!(imported.is_ok(), is_accepted, "{columns}");
            }
        }

        let long = "n".repeat(1 << 20);
        for (columns, is_accepted) in [(63, true), (64, false)] {
            let field = Field::new("c", DataType::Int8, true).with_metadata([("k".into(), long.clone())].into());
            let schema = Schema::new(vec![field; columns]);
            // SAFETY: exported here.
            let imported = unsafe { import_schema(export_schema(&schema).unwrap()) };
            assert_eq!(imported.is_ok(), is_accepted, "{columns}");
            let text = "its names, formats and metadata have more than 67108864 bytes";
            assert!(imported.err().is_none_or(|error| error.to_string().contains(text)));
        }
    }

    #[test]
    fn a_schema_within_itself_is_refused() {
        let mut schema = export_field(&list()).unwrap();
        let mut own = [&raw mut schema];
        let children = std::mem::replace(&mut schema.children, own.as_mut_ptr());
        // SAFETY: each pointer of the schema leads to a live schema.
        let error = unsafe { field(&schema) }.unwrap_err();
        assert_eq!(error.to_string(), "import of the schema: nested deeper than 64 levels");
        schema.children = children;
    }

    #[test]
    fn names_that_c_cannot_express_are_unsupported() {
        let zone = DataType::Timestamp(TimeUnit::Second, Some("a\0b".into()));
        let dictionary = DataType::Dictionary(DataType::Int8.into(), zone.clone().into());
        let named = Field::new("a\0b", DataType::Int8, true);
        let nested = Field::new("l", DataType::List(named.clone().into()), true);
        for field in [Field::new("x", zone, true), Field::new("x", dictionary, true), named, nested] {
            let error = export_field(&field).unwrap_err();
            assert!(matches!(error, Error::Unsupported(_)));
            assert!(error.to_string().ends_with("contains a NUL, where C strings end"), "{error}");
        }
    }
}
