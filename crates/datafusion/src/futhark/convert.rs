// SPDX-License-Identifier: Apache-2.0
//! Arrow's arrays as Futhark's, and the reverse. NULLs have been taken out before.

use std::sync::Arc;

use arrow::array::{Array, ArrayData, ArrayRef, AsArray, BooleanArray, FixedSizeListArray, ListArray, StructArray, make_array};
use arrow::buffer::MutableBuffer;
use arrow::compute::{CastOptions, cast_with_options};
use arrow::datatypes::{DataType, Field};
use datafusion::common::{Result, ScalarValue, exec_datafusion_err, exec_err, internal_err};
use futhark::{Primitive, Scalar, Value};

use crate::expr::Reason;
use crate::futhark::function::{Function, Of, Parameter, data_type_of};

/// An argument as the type that its parameter has.
///
/// # Errors
/// If a value does not fit.
pub(crate) fn cast_argument(function: &Function, parameter: &Parameter, array: &ArrayRef) -> Result<ArrayRef> {
    if *array.data_type() == parameter.data_type {
        return Ok(Arc::clone(array));
    }
    if let Of::Sums(sum) = &parameter.of {
        return sum
            .cast(array)
            .map_err(|error| exec_datafusion_err!("the argument {} of {}: {error}", parameter.name, function.name()));
    }
    if let (Of::Records(_, fields), Some(structs)) = (&parameter.of, array.as_struct_opt()) {
        let field = |field: &Parameter| match structs.column_by_name(&field.name) {
            Some(column) => cast_argument(function, field, column),
            None => exec_err!("the argument {} of {} has no field {}", parameter.name, function.name(), field.name),
        };
        let columns = fields.iter().map(field).collect::<Result<Vec<_>>>()?;
        let DataType::Struct(types) = &parameter.data_type else { return internal_err!("records of {}", parameter.data_type) };
        return Ok(Arc::new(StructArray::try_new_with_length(types.clone(), columns, structs.nulls().cloned(), structs.len())?));
    }
    let options = CastOptions { safe: false, ..CastOptions::default() };
    cast_with_options(array, &parameter.data_type, &options)
        .map_err(|error| exec_datafusion_err!("the argument {} of {}: {error}", parameter.name, function.name()))
}

/// A column in the library's memory. Lists are more dimensions: those of a column must be equally long.
///
/// # Errors
/// Where lists differ in length or hold a NULL; else what the library says.
pub(crate) fn to_futhark(function: &Function, parameter: &Parameter, array: &ArrayRef) -> futhark::Result<Value> {
    let context = function.context();
    match &parameter.of {
        Of::Values(primitive) => array_to_futhark(function, &parameter.name, *primitive, array),
        Of::Records(type_name, fields) => {
            let columns = array.as_struct_opt().map_or(&[] as &[ArrayRef], |structs| structs.columns());
            let values = fields.iter().zip(columns).map(|(field, column)| to_futhark(function, field, column));
            context.record(type_name, &values.collect::<futhark::Result<Vec<_>>>()?).map(Value::from)
        }
        Of::Sums(_) | Of::Opaque(_) => {
            let problem = format!("the argument {} is {}, which is no array", parameter.name, parameter.data_type);
            Err(futhark::Error::Usage(problem))
        }
    }
}

/// A column of a primitive type, or of lists of it, in the library's memory.
///
/// # Errors
/// As [`to_futhark`].
pub(crate) fn array_to_futhark(
    function: &Function,
    name: &str,
    primitive: Primitive,
    array: &ArrayRef,
) -> futhark::Result<Value> {
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

/// The length of lists that are equally long, and their elements one after the other.
pub(crate) fn elements_of(lists: &ListArray) -> std::result::Result<(usize, ArrayRef), Reason> {
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

/// The value of a row, which may be a record or of a sum type.
///
/// # Errors
/// What the library says.
pub(crate) fn value_at(function: &Function, parameter: &Parameter, array: &ArrayRef, row: usize) -> futhark::Result<Value> {
    let value = match &parameter.of {
        Of::Values(primitive) => scalar_at(*primitive, array, row).map(Value::from),
        Of::Records(type_name, fields) => {
            let columns = array.as_struct_opt().map_or(&[] as &[ArrayRef], |structs| structs.columns());
            let values = fields.iter().zip(columns).map(|(field, column)| value_at(function, field, column, row));
            let values = values.collect::<futhark::Result<Vec<_>>>()?;
            Some(function.context().record(type_name, &values)?.into())
        }
        Of::Opaque(type_name) => {
            let sealed = array.as_binary_opt::<i32>().map(|values| function.context().unseal(type_name, values.value(row)));
            sealed.transpose()?.map(Value::from)
        }
        Of::Sums(sum) => array.as_struct_opt().map(|structs| sum.value_at(function, structs, row)).transpose()?,
    };
    value.ok_or_else(|| futhark::Error::Usage(format!("the argument {} has no value", parameter.name)))
}

/// The value of a row.
pub(crate) fn scalar_at(primitive: Primitive, array: &ArrayRef, row: usize) -> Option<Scalar> {
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

/// An array of a library as a column. Dimensions behind the first make lists of fixed size.
///
/// # Errors
/// What the library says.
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

/// A scalar of a library as SQL's.
pub(crate) fn scalar_value(scalar: Scalar, data_type: &DataType) -> Result<ScalarValue> {
    ScalarValue::try_from_array(&column_of(&[scalar], scalar.primitive(), data_type)?, 0)
}

/// A constant of SQL as a parameter's value; `None` for NULL.
pub(crate) fn constant(function: &Function, parameter: &Parameter, value: &ScalarValue) -> Result<Option<Scalar>> {
    if value.is_null() {
        return Ok(None);
    }
    let array = cast_argument(function, parameter, &value.to_array()?)?;
    let Of::Values(primitive) = parameter.of else { return internal_err!("a constant of {}", parameter.data_type) };
    Ok(scalar_at(primitive, &array, 0))
}

/// The column that a result value is: an array, or a scalar as one row.
pub(crate) fn column(function: &Function, value: &Value) -> Result<ArrayRef> {
    match value {
        Value::Scalar(scalar) => column_of(&[*scalar], scalar.primitive(), &data_type_of(scalar.primitive())),
        Value::Array(array) => from_futhark(function, array, &data_type_of(array.element())),
        Value::Opaque(opaque) => Err(exec_datafusion_err!("{}: {} is no column", function.name(), opaque.type_name())),
    }
}
