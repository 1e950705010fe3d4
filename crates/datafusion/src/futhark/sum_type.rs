// SPDX-License-Identifier: Apache-2.0
//! Sum types as structs: a string names the variant, and each value of a payload has a field.
//!
//! Fields of other variants are NULL. Unions of Arrow are not used: SQL has no syntax for them, but
//! reads, compares, groups and joins fields of structs.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, StringArray, StructArray, new_null_array};
use arrow::buffer::NullBuffer;
use arrow::compute::cast;
use arrow::datatypes::{DataType, Field, Fields};
use datafusion::common::{Result, internal_err};
use futhark::manifest::{Manifest, Sum};
use futhark::{Opaque, Value};

use crate::futhark::accepts::accepts;
use crate::futhark::convert::{cast_argument, nulls_in, present, row_of, value_at};
use crate::futhark::function::Function;
use crate::futhark::parameter::{Parameter, as_value};
use crate::reason::Reason;

/// The field that names the variant.
const VARIANT: &str = "variant";

/// A sum type as a struct of SQL.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct SumType {
    pub type_name: String,
    /// In the manifest's order.
    variants: Vec<Variant>,
    fields: Fields,
}

/// A variant.
#[derive(Debug, Clone, PartialEq)]
struct Variant {
    name: String,
    /// Each value's position in the struct, and its field.
    payload: Vec<(usize, Parameter)>,
}

impl SumType {
    /// A sum type of the manifest.
    pub fn new(manifest: &Manifest, type_name: &str, sum: &Sum) -> std::result::Result<SumType, Reason> {
        let mut fields = vec![Field::new(VARIANT, DataType::Utf8, true)];
        let mut variants = Vec::with_capacity(sum.variants.len());
        for variant in &sum.variants {
            let name = &variant.name;
            let mut payload = Vec::with_capacity(variant.payload.len());
            for (index, value_type) in variant.payload.iter().enumerate() {
                let field = if variant.payload.len() == 1 { name.clone() } else { format!("{name}_{index}") };
                if fields.iter().any(|other| *other.name() == field) {
                    return Err(format!("the type {type_name} would be a struct with two fields {field}"));
                }
                let value = as_value(manifest, &field, value_type);
                let value = value.map_err(|reason| format!("the variant {name} of {type_name}: its value {reason}"))?;
                let position = fields.len();
                fields.push(Field::new(field, value.data_type.clone(), true));
                payload.push((position, value));
            }
            variants.push(Variant { name: name.clone(), payload });
        }
        Ok(SumType { type_name: type_name.to_owned(), variants, fields: fields.into() })
    }

    pub fn data_type(&self) -> DataType {
        DataType::Struct(self.fields.clone())
    }

    /// Checks the type of an argument. Fields of unused variants may be missing.
    pub fn accepts(&self, from: &DataType) -> std::result::Result<(), Reason> {
        let given = match from {
            DataType::Null => return Ok(()),
            DataType::Struct(given) => given,
            other => return Err(format!("{other} is not accepted for {}", self.data_type())),
        };
        match given.find(VARIANT) {
            Some((_, field)) if field.data_type().is_string() || field.data_type().is_null() => {}
            Some((_, field)) => return Err(format!("its field {VARIANT} is {}, must be a string", field.data_type())),
            None => return Err(format!("the struct has no field {VARIANT}, which names one of {}", self.names())),
        }
        given.iter().filter(|given| given.name() != VARIANT).try_for_each(|given| {
            let name = given.name();
            let Some(value) = self.values().find(|value| value.name == *name) else {
                return Err(format!("{} has no field {name}", self.data_type()));
            };
            accepts(value, given.data_type()).map_err(|reason| format!("its field {name}: {reason}"))
        })
    }

    /// An argument as the struct.
    ///
    /// # Errors
    /// If a value does not fit its type.
    pub fn cast(&self, function: &Function, array: &ArrayRef) -> Result<ArrayRef> {
        let Some(given) = array.as_struct_opt() else { return Ok(new_null_array(&self.data_type(), array.len())) };
        let names = match given.column_by_name(VARIANT) {
            Some(names) => cast(names, &DataType::Utf8)?,
            None => new_null_array(&DataType::Utf8, given.len()),
        };
        let has = |variant: &Variant| {
            let names = names.as_string::<i32>();
            let has = |row| given.is_valid(row) && names.is_valid(row) && names.value(row) == variant.name;
            NullBuffer::from_iter((0..given.len()).map(has))
        };
        let mut columns = vec![Arc::clone(&names)];
        for variant in &self.variants {
            // Values of other variants are not cast.
            let rows = has(variant);
            for (_, value) in &variant.payload {
                columns.push(match given.column_by_name(&value.name) {
                    Some(column) => cast_argument(function, value, &present(column, Some(&rows))?)?,
                    None => new_null_array(&value.data_type, given.len()),
                });
            }
        }
        Ok(Arc::new(StructArray::try_new_with_length(self.fields.clone(), columns, given.nulls().cloned(), given.len())?))
    }

    /// Rows without a variant, or without a value of their variant.
    pub fn nulls(&self, structs: &StructArray) -> Option<NullBuffer> {
        let nulls_of_value = |(position, value): &(usize, Parameter)| nulls_in(value, structs.column(*position));
        let nulls_of_variant = |variant: &Variant| variant.payload.iter().map(nulls_of_value).collect::<Vec<_>>();
        let missing: Vec<Vec<Option<NullBuffer>>> = self.variants.iter().map(nulls_of_variant).collect();
        let has_value = |row: usize| {
            let has_payload = |index: usize| missing[index].iter().flatten().all(|nulls| nulls.is_valid(row));
            structs.is_valid(row)
                && structs.column(0).is_valid(row)
                && self.variant_at(structs, row).is_none_or(|(index, _)| has_payload(index))
        };
        let nulls = NullBuffer::from_iter((0..structs.len()).map(has_value));
        (nulls.null_count() > 0).then_some(nulls)
    }

    /// The fields of the struct behind `variant`.
    fn values(&self) -> impl Iterator<Item = &Parameter> {
        self.variants.iter().flat_map(|variant| &variant.payload).map(|(_, value)| value)
    }

    fn variant_at(&self, structs: &StructArray, row: usize) -> Option<(usize, &Variant)> {
        let name = structs.column(0).as_string_opt::<i32>()?.value(row);
        self.variants.iter().enumerate().find(|(_, variant)| variant.name == name)
    }

    fn names(&self) -> String {
        self.variants.iter().map(|variant| variant.name.as_str()).collect::<Vec<_>>().join(", ")
    }

    /// The value of a row that is not NULL.
    ///
    /// # Errors
    /// If there is no such variant, or a list is no array; else the library's.
    pub fn value_at(&self, function: &Function, structs: &StructArray, row: usize) -> futhark::Result<Value> {
        let Some((index, variant)) = self.variant_at(structs, row) else {
            let name = structs.column(0).as_string_opt::<i32>().map_or("", |names| names.value(row));
            let problem = format!("{} has no variant '{name}'; there are {}", self.type_name, self.names());
            return Err(futhark::Error::Usage(problem));
        };
        let value = |(position, value): &(usize, Parameter)| value_at(function, value, structs.column(*position), row);
        let payload = variant.payload.iter().map(value).collect::<futhark::Result<Vec<_>>>()?;
        function.context().variant(&self.type_name, index, &payload).map(Value::from)
    }

    /// A value of the library as a row.
    ///
    /// # Errors
    /// The library's.
    pub fn row(&self, function: &Function, value: &Opaque) -> Result<ArrayRef> {
        let (index, values) = value.variant().map_err(|error| function.failed(error))?;
        let Some(variant) = self.variants.get(index) else { return internal_err!("{} has no variant {index}", self.type_name) };
        let mut columns: Vec<ArrayRef> = self.fields.iter().map(|field| new_null_array(field.data_type(), 1)).collect();
        columns[0] = Arc::new(StringArray::from(vec![variant.name.as_str()]));
        for ((position, parameter), value) in variant.payload.iter().zip(&values) {
            columns[*position] = row_of(function, value, &parameter.kind, &parameter.data_type)?;
        }
        Ok(Arc::new(StructArray::try_new(self.fields.clone(), columns, None)?))
    }
}
