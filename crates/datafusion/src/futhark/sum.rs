// SPDX-License-Identifier: Apache-2.0
//! Sum types as structs: a text that names the variant, and for each value of a payload a field, NULL in other variants.
//!
//! Not a union of Arrow's: SQL has no words for unions, and reads, compares, groups and joins the fields of structs.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, ListArray, StringArray, StructArray, new_null_array};
use arrow::buffer::{NullBuffer, OffsetBuffer};
use arrow::compute::{CastOptions, cast, cast_with_options};
use arrow::datatypes::{DataType, Field, Fields};
use datafusion::common::{Result, ScalarValue, exec_datafusion_err, internal_err};
use futhark::manifest::{Kind, Manifest, Sum};
use futhark::{Opaque, Primitive, Value};

use crate::expr::Reason;
use crate::futhark::convert::{array_to_futhark, column_of, elements_of, from_futhark, scalar_at};
use crate::futhark::function::{Function, converts, data_type_of};

/// The field that names the variant.
const VARIANT: &str = "variant";

/// A sum type as SQL has it.
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
    payload: Vec<Payload>,
}

/// A value of a payload.
#[derive(Debug, Clone, PartialEq)]
struct Payload {
    /// Its field's place in the struct.
    place: usize,
    primitive: Primitive,
}

impl SumType {
    /// A sum type of the manifest, or why SQL has no form for it.
    pub fn new(manifest: &Manifest, type_name: &str, sum: &Sum) -> std::result::Result<SumType, Reason> {
        let mut fields = vec![Field::new(VARIANT, DataType::Utf8, true)];
        let mut variants = Vec::with_capacity(sum.variants.len());
        for variant in &sum.variants {
            let name = &variant.name;
            let mut payload = Vec::with_capacity(variant.payload.len());
            for (index, of) in variant.payload.iter().enumerate() {
                let (primitive, rank) = match manifest.kind(of) {
                    Some(Kind::Scalar(primitive)) => (primitive, 0),
                    Some(Kind::Array(array)) => (array.elemtype, array.rank),
                    _ => return Err(format!("the variant {name} of {type_name} has a value of type {of}, which is no field")),
                };
                let data_type = (0..rank).fold(data_type_of(primitive), |item, _| DataType::new_list(item, true));
                let field = if variant.payload.len() == 1 { name.clone() } else { format!("{name}_{index}") };
                if fields.iter().any(|other| *other.name() == field) {
                    return Err(format!("the type {type_name} would be a struct with two fields {field}"));
                }
                payload.push(Payload { place: fields.len(), primitive });
                fields.push(Field::new(field, data_type, true));
            }
            variants.push(Variant { name: name.clone(), payload });
        }
        Ok(SumType { type_name: type_name.to_owned(), variants, fields: fields.into() })
    }

    /// The struct.
    pub fn data_type(&self) -> DataType {
        DataType::Struct(self.fields.clone())
    }

    /// Why an argument is not taken, if not. Fields of variants that it never has may be left out.
    pub fn converts(&self, from: &DataType) -> std::result::Result<(), Reason> {
        let given = match from {
            DataType::Null => return Ok(()),
            DataType::Struct(given) => given,
            other => return Err(format!("{other} is not taken for {}", self.data_type())),
        };
        match given.find(VARIANT) {
            Some((_, field)) if field.data_type().is_string() || field.data_type().is_null() => {}
            Some((_, field)) => return Err(format!("its field {VARIANT} is {}, must be a text", field.data_type())),
            None => return Err(format!("the struct has no field {VARIANT}, which names one of {}", self.names())),
        }
        given.iter().filter(|given| given.name() != VARIANT).try_for_each(|given| {
            let name = given.name();
            let Some((_, to)) = self.fields.find(name) else {
                return Err(format!("{} has no field {name}", self.data_type()));
            };
            converts(given.data_type(), to.data_type()).map_err(|reason| format!("its field {name}: {reason}"))
        })
    }

    /// An argument as the struct.
    ///
    /// # Errors
    /// If a value does not fit.
    pub fn cast(&self, array: &ArrayRef) -> Result<ArrayRef> {
        let Some(given) = array.as_struct_opt() else { return Ok(new_null_array(&self.data_type(), array.len())) };
        let options = CastOptions { safe: false, ..CastOptions::default() };
        let column = |field: &Arc<Field>| match given.column_by_name(field.name()) {
            Some(column) => cast_with_options(column, field.data_type(), &options),
            None => Ok(new_null_array(field.data_type(), given.len())),
        };
        let columns = self.fields.iter().map(column).collect::<std::result::Result<Vec<_>, _>>()?;
        Ok(Arc::new(StructArray::try_new_with_length(self.fields.clone(), columns, given.nulls().cloned(), given.len())?))
    }

    /// Rows without a variant, or without a value that theirs has.
    pub fn nulls(&self, structs: &StructArray) -> Option<NullBuffer> {
        let has_value = |row: usize| {
            structs.is_valid(row)
                && structs.column(0).is_valid(row)
                && self
                    .variant_at(structs, row)
                    .is_none_or(|(_, variant)| variant.payload.iter().all(|value| structs.column(value.place).is_valid(row)))
        };
        let nulls = NullBuffer::from_iter((0..structs.len()).map(has_value));
        (nulls.null_count() > 0).then_some(nulls)
    }

    fn variant_at(&self, structs: &StructArray, row: usize) -> Option<(usize, &Variant)> {
        let name = structs.column(0).as_string_opt::<i32>()?.value(row);
        self.variants.iter().enumerate().find(|(_, variant)| variant.name == name)
    }

    fn names(&self) -> String {
        self.variants.iter().map(|variant| variant.name.as_str()).collect::<Vec<_>>().join(", ")
    }

    /// The value of a row, which is not NULL.
    ///
    /// # Errors
    /// If there is no such variant, or a list is no array; else what the library says.
    pub fn value_at(&self, function: &Function, structs: &StructArray, row: usize) -> futhark::Result<Value> {
        let Some((index, variant)) = self.variant_at(structs, row) else {
            let name = structs.column(0).as_string_opt::<i32>().map_or("", |names| names.value(row));
            let problem = format!("{} has no variant '{name}'; there are {}", self.type_name, self.names());
            return Err(futhark::Error::Usage(problem));
        };
        let value = |value: &Payload| {
            let column = structs.column(value.place);
            match column.as_list_opt::<i32>() {
                Some(lists) => {
                    let name = self.fields[value.place].name();
                    let list = elements_of(&lists.slice(row, 1));
                    let (_, elements) = list.map_err(|why| futhark::Error::Usage(format!("the field {name}: {why}")))?;
                    array_to_futhark(function, name, value.primitive, &elements)
                }
                None => scalar_at(value.primitive, column, row)
                    .map(Value::from)
                    .ok_or_else(|| futhark::Error::Usage(format!("the variant {} has no value", variant.name))),
            }
        };
        let payload = variant.payload.iter().map(value).collect::<futhark::Result<Vec<_>>>()?;
        function.context().variant(&self.type_name, index, &payload).map(Value::from)
    }

    /// A value of the library's as a struct.
    ///
    /// # Errors
    /// What the library says.
    pub fn scalar(&self, function: &Function, value: &Opaque) -> Result<ScalarValue> {
        let (index, values) = value.variant().map_err(|error| function.failed(error))?;
        let Some(variant) = self.variants.get(index) else { return internal_err!("{} has no variant {index}", self.type_name) };
        let mut columns: Vec<ArrayRef> = self.fields.iter().map(|field| new_null_array(field.data_type(), 1)).collect();
        columns[0] = Arc::new(StringArray::from(vec![variant.name.as_str()]));
        for (place, value) in variant.payload.iter().map(|value| value.place).zip(&values) {
            let data_type = self.fields[place].data_type();
            columns[place] = match value {
                Value::Scalar(scalar) => column_of(&[*scalar], scalar.primitive(), data_type)?,
                Value::Array(array) => list(function, array, data_type)?,
                Value::Opaque(other) => return internal_err!("{} gave {}", function.name(), other.type_name()),
            };
        }
        Ok(ScalarValue::Struct(Arc::new(StructArray::try_new(self.fields.clone(), columns, None)?)))
    }
}

/// An array as a column of one list.
fn list(function: &Function, array: &futhark::Array, data_type: &DataType) -> Result<ArrayRef> {
    let DataType::List(item) = data_type else { return internal_err!("an array as {data_type}") };
    let elements = from_futhark(function, array, &data_type_of(array.element()))?;
    let elements = cast(&elements, item.data_type()).map_err(|error| exec_datafusion_err!("{}: {error}", function.name()))?;
    let offsets = OffsetBuffer::from_lengths([elements.len()]);
    Ok(Arc::new(ListArray::try_new(Arc::clone(item), offsets, elements, None)?))
}
