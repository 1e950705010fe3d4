// SPDX-License-Identifier: Apache-2.0
//! Conversion between Arrow's and Futhark's arrays, without NULLs.

use std::sync::Arc;

use arrow::array::{
    Array, ArrayData, ArrayRef, AsArray, BinaryArray, BooleanArray, FixedSizeListArray, ListArray, StructArray, UInt64Array,
    make_array, new_null_array,
};
use arrow::buffer::{MutableBuffer, NullBuffer, OffsetBuffer};
use arrow::compute::{CastOptions, cast, cast_with_options, nullif, take};
use arrow::datatypes::{DataType, Field};
use arrow::error::ArrowError;
use datafusion::common::{Result, ScalarValue, exec_datafusion_err, exec_err, internal_err};
use futhark::{Primitive, Scalar, Value};

use crate::futhark::function::Function;
use crate::futhark::parameter::{Parameter, ValueKind};
use crate::reason::Reason;

/// Casts an argument to its parameter's type.
///
/// # Errors
/// If a value does not fit.
pub(crate) fn cast_argument(function: &Function, parameter: &Parameter, array: &ArrayRef) -> Result<ArrayRef> {
    if *array.data_type() == parameter.data_type {
        return Ok(Arc::clone(array));
    }
    let failed = |error| exec_datafusion_err!("the argument {} of {}: {error}", parameter.name, function.name());
    if array.data_type().is_null() {
        return Ok(new_null_array(&parameter.data_type, array.len()));
    }
    if let ValueKind::Sums(sum) = &parameter.kind {
        return sum.cast(function, array);
    }
    if let (ValueKind::Lists(column), DataType::List(to)) = (&parameter.kind, &parameter.data_type) {
        let lists = compacted(array).map_err(failed)?;
        let values = cast_argument(function, column, lists.values())?;
        return Ok(Arc::new(ListArray::try_new(Arc::clone(to), lists.offsets().clone(), values, lists.nulls().cloned())?));
    }
    if let (ValueKind::Records(_, fields), Some(structs)) = (&parameter.kind, array.as_struct_opt()) {
        let field = |field: &Parameter| match structs.column_by_name(&field.name) {
            Some(column) => cast_argument(function, field, &present(column, structs.nulls())?),
            None => exec_err!("the argument {} of {} has no field {}", parameter.name, function.name(), field.name),
        };
        let columns = fields.iter().map(field).collect::<Result<Vec<_>>>()?;
        let DataType::Struct(types) = &parameter.data_type else { return internal_err!("records of {}", parameter.data_type) };
        return Ok(Arc::new(StructArray::try_new_with_length(types.clone(), columns, structs.nulls().cloned(), structs.len())?));
    }
    cast_values(array, &parameter.data_type).map_err(failed)
}

/// Casts values, or lists of any depth.
///
/// # Errors
/// If a value of a row does not fit. Values that no row refers to, or under a NULL, are not cast.
fn cast_values(array: &ArrayRef, to: &DataType) -> std::result::Result<ArrayRef, ArrowError> {
    match (array.data_type(), to) {
        (DataType::List(_) | DataType::LargeList(_) | DataType::FixedSizeList(..), DataType::List(item)) => {
            let lists = compacted(array)?;
            let values = cast_values(lists.values(), item.data_type())?;
            let (offsets, nulls) = (lists.offsets().clone(), lists.nulls().cloned());
            Ok(Arc::new(ListArray::try_new(Arc::clone(item), offsets, values, nulls)?))
        }
        (DataType::Dictionary(_, values), to) => cast_values(&cast(array, values)?, to),
        _ => cast_with_options(array, to, &CastOptions { safe: false, ..CastOptions::default() }),
    }
}

/// Lists without values that no row refers to.
fn compacted(array: &ArrayRef) -> std::result::Result<ListArray, ArrowError> {
    let (DataType::List(item) | DataType::LargeList(item) | DataType::FixedSizeList(item, _)) = array.data_type() else {
        return Err(ArrowError::CastError(format!("{} is no list", array.data_type())));
    };
    let lists = cast(array, &DataType::new_list(item.data_type().clone(), true))?;
    let rows = UInt64Array::new((0..lists.len() as u64).collect(), lists.nulls().cloned());
    Ok(take(&lists, &rows, None)?.as_list::<i32>().clone())
}

/// A column that is NULL outside of `rows`.
pub(crate) fn present(column: &ArrayRef, rows: Option<&NullBuffer>) -> Result<ArrayRef> {
    match rows {
        Some(rows) => Ok(nullif(column, &BooleanArray::new(!rows.inner(), None))?),
        None => Ok(Arc::clone(column)),
    }
}

/// Rows with NULL for an argument, or for a part of it that must not be NULL.
pub(crate) fn nulls_in(parameter: &Parameter, column: &ArrayRef) -> Option<NullBuffer> {
    match (&parameter.kind, column.as_struct_opt()) {
        (ValueKind::Sums(sum), Some(structs)) => sum.nulls(structs),
        (ValueKind::Records(_, fields), Some(structs)) => {
            let fields = fields.iter().zip(structs.columns()).map(|(field, column)| nulls_in(field, column));
            fields.fold(structs.nulls().cloned(), |nulls, of_field| NullBuffer::union(nulls.as_ref(), of_field.as_ref()))
        }
        _ => nulls_of(std::slice::from_ref(column)),
    }
}

/// Rows in which a column is NULL.
pub(crate) fn nulls_of(columns: &[ArrayRef]) -> Option<NullBuffer> {
    let nulls = columns.iter().fold(None, |nulls, column| {
        let with_column = NullBuffer::union(nulls.as_ref(), column.logical_nulls().as_ref());
        // A struct with a NULL field is no record.
        let fields = column.as_struct_opt().and_then(|structs| nulls_of(structs.columns()));
        NullBuffer::union(with_column.as_ref(), fields.as_ref())
    });
    nulls.filter(|nulls| nulls.null_count() > 0)
}

/// Copies a column to the library's memory. Lists become further dimensions and must be equally
/// long.
///
/// # Errors
/// If lists differ in length or hold a NULL; else the library's.
pub(crate) fn to_futhark(function: &Function, parameter: &Parameter, array: &ArrayRef) -> futhark::Result<Value> {
    let context = function.context();
    match &parameter.kind {
        ValueKind::Values(primitive) => array_to_futhark(function, &parameter.name, *primitive, array),
        ValueKind::Records(type_name, fields) => {
            let columns = array.as_struct_opt().map_or(&[] as &[ArrayRef], |structs| structs.columns());
            let values = fields.iter().zip(columns).map(|(field, column)| to_futhark(function, field, column));
            context.record(type_name, &values.collect::<futhark::Result<Vec<_>>>()?).map(Value::from)
        }
        ValueKind::Sums(_) | ValueKind::Opaque(_) | ValueKind::Lists(_) => {
            let problem = format!("the argument {} is {}, which is no array", parameter.name, parameter.data_type);
            Err(futhark::Error::Usage(problem))
        }
    }
}

/// Copies a column of a primitive type, or of lists of it.
///
/// # Errors
/// As [`to_futhark`].
fn array_to_futhark(function: &Function, name: &str, primitive: Primitive, array: &ArrayRef) -> futhark::Result<Value> {
    let context = function.context();
    let refused = |problem: String| futhark::Error::Usage(format!("the argument {name}: {problem}"));
    let (mut column, mut shape) = (Arc::clone(array), vec![array.len()]);
    while let Some(lists) = column.as_list_opt::<i32>() {
        let (length, elements) = elements_of(lists).map_err(refused)?;
        shape.push(length);
        column = elements;
    }
    if let Some(flags) = column.as_boolean_opt() {
        let bytes: Vec<u8> = flags.values().iter().map(u8::from).collect();
        return context.array_of_bytes(Primitive::Bool, &shape, &bytes).map(Value::from);
    }
    context.array_of_bytes(primitive, &shape, &bytes_of(&column.to_data(), primitive)).map(Value::from)
}

/// The length of equally long lists, and their elements one after the other.
fn elements_of(lists: &ListArray) -> std::result::Result<(usize, ArrayRef), Reason> {
    let mut lengths = lists.offsets().lengths();
    let length = lengths.next().unwrap_or(0);
    if let Some(other) = lengths.find(|other| *other != length) {
        return Err(format!("lists of {length} and of {other} values are no array"));
    }
    let first = lists.value_offsets().first().map_or(0, |first| *first as usize);
    let elements = lists.values().slice(first, lists.len() * length);
    match elements.logical_null_count() {
        0 => Ok((length, elements)),
        _ => Err("a list with a NULL is no array".to_owned()),
    }
}

/// The value of a row: a scalar, record, sum or list.
///
/// # Errors
/// The library's.
pub(crate) fn value_at(function: &Function, parameter: &Parameter, array: &ArrayRef, row: usize) -> futhark::Result<Value> {
    let value = match &parameter.kind {
        ValueKind::Values(primitive) => scalar_at(*primitive, array, row).map(Value::from),
        ValueKind::Records(type_name, fields) => {
            let columns = array.as_struct_opt().map_or(&[] as &[ArrayRef], |structs| structs.columns());
            let values = fields.iter().zip(columns).map(|(field, column)| value_at(function, field, column, row));
            let values = values.collect::<futhark::Result<Vec<_>>>()?;
            Some(function.context().record(type_name, &values)?.into())
        }
        ValueKind::Opaque(type_name) => {
            let sealed = array.as_binary_opt::<i32>().map(|values| function.context().unseal(type_name, values.value(row)));
            sealed.transpose()?.map(Value::from)
        }
        ValueKind::Lists(column) => {
            let list = array.as_list_opt::<i32>().map(|lists| lists.value(row));
            let value = list.map(|elements| match nulls_of(std::slice::from_ref(&elements)) {
                None => to_futhark(function, column, &elements),
                Some(_) => {
                    let problem = format!("the argument {}: a list with a NULL is no array", parameter.name);
                    Err(futhark::Error::Usage(problem))
                }
            });
            value.transpose()?
        }
        ValueKind::Sums(sum) => array.as_struct_opt().map(|structs| sum.value_at(function, structs, row)).transpose()?,
    };
    value.ok_or_else(|| futhark::Error::Usage(format!("the argument {} has no value", parameter.name)))
}

/// The scalar of a row.
fn scalar_at(primitive: Primitive, array: &ArrayRef, row: usize) -> Option<Scalar> {
    if let Some(flags) = array.as_boolean_opt() {
        return Some(Scalar::Bool(flags.value(row)));
    }
    let data = array.slice(row, 1).to_data();
    Scalar::from_bytes(primitive, &bytes_of(&data, primitive))
}

fn bytes_of(data: &ArrayData, primitive: Primitive) -> arrow::buffer::Buffer {
    let width = primitive.bytes();
    data.buffers()[0].slice_with_length(data.offset() * width, data.len() * width)
}

/// Reads an array of a library as a column. Further dimensions become lists of fixed size.
///
/// # Errors
/// The library's.
pub(crate) fn from_futhark(function: &Function, array: &futhark::Array, data_type: &DataType) -> Result<ArrayRef> {
    let failed = |error| function.failed(error);
    let len: usize = array.shape().iter().product();
    let mut column: ArrayRef = if array.element() == Primitive::Bool {
        Arc::new(BooleanArray::from(array.to_vec::<bool>().map_err(failed)?))
    } else {
        let mut values = MutableBuffer::from_len_zeroed(len * array.element().bytes());
        array.read(values.as_slice_mut()).map_err(failed)?;
        make_array(ArrayData::builder(data_type.clone()).len(len).add_buffer(values.into()).build()?)
    };
    for (level, dim) in array.shape().iter().enumerate().skip(1).rev() {
        let size = i32::try_from(*dim).map_err(|_| exec_datafusion_err!("{}: lists of {dim} values", function.name()))?;
        let lists = array.shape().iter().take(level).product();
        let item = Arc::new(Field::new_list_field(column.data_type().clone(), false));
        let data = ArrayData::builder(DataType::FixedSizeList(item, size)).len(lists).add_child_data(column.to_data());
        column = Arc::new(FixedSizeListArray::from(data.build()?));
    }
    Ok(column)
}

/// Scalars of a library as a column.
pub(crate) fn column_of(scalars: &[Scalar], primitive: Primitive, data_type: &DataType) -> Result<ArrayRef> {
    if primitive == Primitive::Bool {
        return Ok(Arc::new(scalars.iter().map(|scalar| Some(*scalar == Scalar::Bool(true))).collect::<BooleanArray>()));
    }
    let bytes: Vec<u8> = scalars.iter().flat_map(Scalar::to_bytes).collect();
    let values = MutableBuffer::from_iter(bytes);
    Ok(make_array(ArrayData::builder(data_type.clone()).len(scalars.len()).add_buffer(values.into()).build()?))
}

/// The value of a constant argument; `None` for NULL.
pub(crate) fn constant(function: &Function, parameter: &Parameter, value: &ScalarValue) -> Result<Option<Scalar>> {
    if value.is_null() {
        return Ok(None);
    }
    let array = cast_argument(function, parameter, &value.to_array()?)?;
    let ValueKind::Values(primitive) = parameter.kind else { return internal_err!("a constant of {}", parameter.data_type) };
    Ok(scalar_at(primitive, &array, 0))
}

/// A column of an array, or of a record of arrays.
///
/// # Errors
/// If fields differ in length; else the library's.
pub(crate) fn column(function: &Function, value: &Value, of: &Parameter) -> Result<ArrayRef> {
    match (&of.kind, value) {
        (ValueKind::Values(_), Value::Array(array)) => from_futhark(function, array, element_of(&of.data_type)),
        (ValueKind::Records(_, fields), Value::Opaque(record)) => {
            let values = record.fields().map_err(|error| function.failed(error))?;
            struct_column(function, &values, fields)
        }
        (_, other) => internal_err!("{} gave {} as the column {}", function.name(), other.type_name(), of.name),
    }
}

/// A column of structs, with a field for each value of a call.
///
/// # Errors
/// As [`column`].
pub(crate) fn struct_column(function: &Function, values: &[Value], fields: &[Parameter]) -> Result<ArrayRef> {
    let columns = values.iter().zip(fields).map(|(value, of)| column(function, value, of)).collect::<Result<Vec<_>>>()?;
    function.same_length(fields, &columns.iter().map(|column| column.len()).collect::<Vec<_>>())?;
    structs(fields, columns)
}

/// One value of a library as a row.
///
/// # Errors
/// The library's.
pub(crate) fn row_of(function: &Function, value: &Value, of: &ValueKind, data_type: &DataType) -> Result<ArrayRef> {
    let failed = |error| function.failed(error);
    match (of, value, data_type) {
        (ValueKind::Values(_), Value::Scalar(scalar), _) => column_of(&[*scalar], scalar.primitive(), data_type),
        (ValueKind::Records(_, fields), Value::Opaque(record), _) => {
            struct_row(function, &record.fields().map_err(failed)?, fields)
        }
        (ValueKind::Sums(sum), Value::Opaque(value), _) => sum.row(function, value),
        (ValueKind::Opaque(_), Value::Opaque(value), _) => {
            Ok(Arc::new(BinaryArray::from(vec![value.seal().map_err(failed)?.as_slice()])))
        }
        (ValueKind::Lists(elements), value, DataType::List(item)) => {
            // Further dimensions are lists of fixed size; columns have variable lists.
            let elements = cast(&column(function, value, elements)?, item.data_type())?;
            let offsets = OffsetBuffer::from_lengths([elements.len()]);
            Ok(Arc::new(ListArray::try_new(Arc::clone(item), offsets, elements, None)?))
        }
        (_, other, _) => internal_err!("{} gave {}, not {data_type}", function.name(), other.type_name()),
    }
}

/// A row of a struct, with a field for each value of a call.
pub(crate) fn struct_row(function: &Function, values: &[Value], fields: &[Parameter]) -> Result<ArrayRef> {
    let row = |(value, of): (&Value, &Parameter)| row_of(function, value, &of.kind, &of.data_type);
    structs(fields, values.iter().zip(fields).map(row).collect::<Result<Vec<_>>>()?)
}

/// Structs of equally long columns.
fn structs(fields: &[Parameter], columns: Vec<ArrayRef>) -> Result<ArrayRef> {
    let fields = fields.iter().zip(&columns).map(|(of, column)| Field::new(&of.name, column.data_type().clone(), true));
    Ok(Arc::new(StructArray::try_new(fields.collect(), columns, None)?))
}

/// The element type of lists of any depth.
fn element_of(data_type: &DataType) -> &DataType {
    match data_type {
        DataType::List(item) => element_of(item.data_type()),
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use arrow::array::{DictionaryArray, Int32Array};
    use arrow::datatypes::{Int32Type, UInt8Type};

    use super::*;

    #[test]
    fn only_values_of_rows_are_cast() {
        let numbers = || -> ArrayRef { Arc::new(Int32Array::from(vec![1, 2, -1, 3, 4])) };
        // The second list, under a NULL, has the value that does not fit.
        let item = Arc::new(Field::new_list_field(DataType::Int32, true));
        let offsets = OffsetBuffer::from_lengths([2, 1, 2]);
        let lists =
            |nulls| -> ArrayRef { Arc::new(ListArray::try_new(Arc::clone(&item), offsets.clone(), numbers(), nulls).unwrap()) };
        let nulls = || Some(NullBuffer::from(vec![true, false, true]));
        let to = DataType::new_list(DataType::UInt8, true);
        assert!(cast_values(&lists(None), &to).unwrap_err().to_string().contains("-1"));
        let of = |array: &ArrayRef| array.as_list::<i32>().value(0).as_primitive::<UInt8Type>().values().to_vec();
        assert_eq!(of(&cast_values(&lists(None).slice(2, 1), &to).unwrap()), [3, 4]);
        let rows = cast_values(&lists(nulls()), &to).unwrap();
        assert_eq!((of(&rows), of(&rows.slice(2, 1)), rows.null_count()), (vec![1, 2], vec![3, 4], 1));
        // Lists of lists.
        let nested = |of: ArrayRef| -> ArrayRef {
            let (item, lengths) = (Arc::new(Field::new_list_field(of.data_type().clone(), true)), [of.len() - 1, 1]);
            Arc::new(ListArray::try_new(item, OffsetBuffer::from_lengths(lengths), of, None).unwrap())
        };
        let rows = cast_values(&nested(lists(None)).slice(1, 1), &DataType::new_list(to.clone(), true)).unwrap();
        assert_eq!(of(&rows.as_list::<i32>().value(0)), [3, 4]);
        // A dictionary with a value that no row has.
        let keys = Int32Array::from(vec![0, 3]);
        let dictionary: ArrayRef = Arc::new(DictionaryArray::<Int32Type>::try_new(keys, numbers()).unwrap());
        let cast = cast_values(&dictionary, &DataType::UInt8).unwrap();
        assert_eq!(cast.as_primitive::<UInt8Type>().values(), &[1, 3]);
    }
}
