// SPDX-License-Identifier: Apache-2.0
//! Metadata in ADBC's schemas: driver information, catalogs, schemas, tables and columns.

use std::collections::HashSet;
use std::sync::Arc;

use adbc_core::error::{Result, Status};
use adbc_core::options::{InfoCode, ObjectDepth};
use adbc_core::schemas::{
    COLUMN_SCHEMA, GET_INFO_SCHEMA, GET_OBJECTS_SCHEMA, GET_TABLE_TYPES_SCHEMA, OBJECTS_DB_SCHEMA_SCHEMA, TABLE_SCHEMA,
};
use arrow::array::{
    Array, ArrayRef, BooleanArray, Int16Array, Int32Array, Int64Array, ListArray, RecordBatch, RecordBatchIterator, StringArray,
    StructArray, UInt32Array, UnionArray, new_empty_array, new_null_array,
};
use arrow::buffer::{NullBuffer, OffsetBuffer};
use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use datafusion::execution::context::SessionContext;
use datafusion::logical_expr::TableType;

use crate::error::{error, from_datafusion};
use crate::reader::BoxedReader;

/// The name of a table type in the information schema.
const fn table_type_name(table: TableType) -> &'static str {
    match table {
        TableType::Base => "BASE TABLE",
        TableType::View => "VIEW",
        TableType::Temporary => "LOCAL TEMPORARY",
    }
}

fn single_batch(schema: &SchemaRef, columns: Vec<ArrayRef>) -> Result<BoxedReader> {
    let batch = RecordBatch::try_new(Arc::clone(schema), columns)?;
    Ok(Box::new(RecordBatchIterator::new([Ok(batch)], Arc::clone(schema))))
}

/// The result of `get_table_types`.
pub(crate) fn table_types() -> Result<BoxedReader> {
    let kinds = [TableType::Base, TableType::View, TableType::Temporary].map(|kind| Some(table_type_name(kind)));
    single_batch(&GET_TABLE_TYPES_SCHEMA, vec![Arc::new(StringArray::from_iter(kinds))])
}

/// A value of `get_info`. ADBC's union of them has the same order.
enum InfoValue {
    String(&'static str),
    Flag(bool),
    Number(i64),
}

/// The result of `get_info`: the values with these codes, all without codes.
pub(crate) fn info(codes: Option<HashSet<InfoCode>>) -> Result<BoxedReader> {
    let all = [
        (InfoCode::VendorName, InfoValue::String("DeviceFusion")),
        (InfoCode::VendorVersion, InfoValue::String(env!("CARGO_PKG_VERSION"))),
        (InfoCode::VendorArrowVersion, InfoValue::String(arrow::ARROW_VERSION)),
        (InfoCode::VendorSql, InfoValue::Flag(true)),
        (InfoCode::VendorSubstrait, InfoValue::Flag(false)),
        (InfoCode::DriverName, InfoValue::String("DeviceFusion ADBC driver")),
        (InfoCode::DriverVersion, InfoValue::String(env!("CARGO_PKG_VERSION"))),
        (InfoCode::DriverArrowVersion, InfoValue::String(arrow::ARROW_VERSION)),
        (InfoCode::DriverAdbcVersion, InfoValue::Number(adbc_core::constants::ADBC_VERSION_1_1_0.into())),
    ];
    let wanted = all.iter().filter(|(code, _)| codes.as_ref().is_none_or(|codes| codes.contains(code)));
    let (mut names, mut kinds, mut offsets) = (Vec::new(), Vec::new(), Vec::new());
    let (mut strings, mut flags, mut numbers) = (Vec::new(), Vec::new(), Vec::new());
    for (code, value) in wanted {
        let (kind, count) = match value {
            InfoValue::String(string) => {
                strings.push(*string);
                (0, strings.len())
            }
            InfoValue::Flag(flag) => {
                flags.push(*flag);
                (1, flags.len())
            }
            InfoValue::Number(number) => {
                numbers.push(*number);
                (2, numbers.len())
            }
        };
        names.push(u32::from(code));
        kinds.push(kind);
        offsets.push(count as i32 - 1);
    }
    let DataType::Union(fields, _) = GET_INFO_SCHEMA.field(1).data_type() else {
        return Err(error(Status::Internal, "ADBC's schema of information has no union"));
    };
    let children = fields.iter().map(|(kind, field)| match kind {
        0 => Arc::new(StringArray::from_iter_values(&strings)) as ArrayRef,
        1 => Arc::new(BooleanArray::from(flags.clone())),
        2 => Arc::new(Int64Array::from(numbers.clone())),
        _ => new_empty_array(field.data_type()),
    });
    let values = UnionArray::try_new(fields.clone(), kinds.into(), Some(offsets.into()), children.collect())?;
    single_batch(&GET_INFO_SCHEMA, vec![Arc::new(UInt32Array::from(names)), Arc::new(values)])
}

/// Arguments of `get_objects`. Names are patterns of `LIKE`.
pub(crate) struct ObjectFilter<'a> {
    pub depth: ObjectDepth,
    pub catalog: Option<&'a str>,
    pub schema: Option<&'a str>,
    pub table: Option<&'a str>,
    pub table_types: Option<Vec<&'a str>>,
    pub column: Option<&'a str>,
}

fn like(name: &str, pattern: Option<&str>) -> Result<bool> {
    let Some(pattern) = pattern else { return Ok(true) };
    let found = arrow::compute::like(&StringArray::from(vec![name]), &StringArray::new_scalar(pattern))?;
    Ok(found.value(0))
}

/// A list column over `elements`, with these lengths. All lists are NULL below the depth asked for.
fn lists(lengths: Vec<usize>, elements: StructArray, known: bool) -> Result<ArrayRef> {
    let item = Arc::new(Field::new_list_field(elements.data_type().clone(), true));
    let nulls = (!known).then(|| NullBuffer::new_null(lengths.len()));
    Ok(Arc::new(ListArray::try_new(item, OffsetBuffer::from_lengths(lengths), Arc::new(elements), nulls)?))
}

/// A struct column of `data_type`. Fields that are absent from `columns` are NULL.
fn structs(data_type: &DataType, rows: usize, columns: Vec<(&str, ArrayRef)>) -> Result<StructArray> {
    let DataType::Struct(fields) = data_type else {
        return Err(error(Status::Internal, format!("{data_type} is not a struct")));
    };
    let column = |field: &Arc<Field>| {
        let given = columns.iter().find(|(name, _)| name == field.name()).map(|(_, column)| Arc::clone(column));
        given.unwrap_or_else(|| new_null_array(field.data_type(), rows))
    };
    Ok(StructArray::try_new_with_length(fields.clone(), fields.iter().map(column).collect(), None, rows)?)
}

fn strings(values: Vec<String>) -> ArrayRef {
    Arc::new(StringArray::from(values))
}

/// The result of `get_objects`: catalogs with their schemas, tables and columns, down to a depth.
pub(crate) async fn objects(session: &SessionContext, filter: &ObjectFilter<'_>) -> Result<BoxedReader> {
    let (schemas_known, tables_known, columns_known) = match filter.depth {
        ObjectDepth::Catalogs => (false, false, false),
        ObjectDepth::Schemas => (true, false, false),
        ObjectDepth::Tables => (true, true, false),
        ObjectDepth::All | ObjectDepth::Columns => (true, true, true),
    };
    let (mut catalogs, mut schemas, mut tables, mut kinds) = (vec![], vec![], vec![], vec![]);
    let (mut schemas_of, mut tables_of, mut columns_of) = (vec![], vec![], vec![]);
    let (mut columns, mut positions, mut type_names, mut nullable) = (vec![], vec![], vec![], vec![]);
    for catalog_name in session.catalog_names() {
        let Some(catalog) = session.catalog(&catalog_name) else { continue };
        if !like(&catalog_name, filter.catalog)? {
            continue;
        }
        let first_schema = schemas.len();
        for schema_name in catalog.schema_names().into_iter().filter(|_| schemas_known) {
            let Some(schema) = catalog.schema(&schema_name) else { continue };
            if !like(&schema_name, filter.schema)? {
                continue;
            }
            let first_table = tables.len();
            for table_name in schema.table_names().into_iter().filter(|_| tables_known) {
                if !like(&table_name, filter.table)? {
                    continue;
                }
                let Some(table) = schema.table(&table_name).await.map_err(from_datafusion)? else { continue };
                let kind = table_type_name(table.table_type());
                if filter.table_types.as_ref().is_some_and(|types| !types.contains(&kind)) {
                    continue;
                }
                let first_column = columns.len();
                let described: SchemaRef = if columns_known { table.schema() } else { Arc::new(Schema::empty()) };
                for (position, field) in described.fields().iter().enumerate() {
                    if like(field.name(), filter.column)? {
                        columns.push(field.name().clone());
                        positions.push(position as i32 + 1);
                        type_names.push(field.data_type().to_string());
                        nullable.push(field.is_nullable());
                    }
                }
                columns_of.push(columns.len() - first_column);
                tables.push(table_name);
                kinds.push(kind.to_owned());
            }
            tables_of.push(tables.len() - first_table);
            schemas.push(schema_name);
        }
        schemas_of.push(schemas.len() - first_schema);
        catalogs.push(catalog_name);
    }
    let yes_or_no = nullable.iter().map(|nullable| Some(if *nullable { "YES" } else { "NO" })).collect::<StringArray>();
    let columns = structs(
        &COLUMN_SCHEMA,
        columns.len(),
        vec![
            ("column_name", strings(columns)),
            ("ordinal_position", Arc::new(Int32Array::from(positions))),
            ("xdbc_type_name", strings(type_names)),
            ("xdbc_nullable", Arc::new(nullable.iter().map(|nullable| Some(i16::from(*nullable))).collect::<Int16Array>())),
            ("xdbc_is_nullable", Arc::new(yes_or_no)),
        ],
    )?;
    let tables = structs(
        &TABLE_SCHEMA,
        tables.len(),
        vec![
            ("table_columns", lists(columns_of, columns, columns_known)?),
            ("table_name", strings(tables)),
            ("table_type", strings(kinds)),
        ],
    )?;
    let schemas = structs(
        &OBJECTS_DB_SCHEMA_SCHEMA,
        schemas.len(),
        vec![("db_schema_tables", lists(tables_of, tables, tables_known)?), ("db_schema_name", strings(schemas))],
    )?;
    single_batch(&GET_OBJECTS_SCHEMA, vec![strings(catalogs), lists(schemas_of, schemas, schemas_known)?])
}
