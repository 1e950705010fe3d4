// SPDX-License-Identifier: Apache-2.0
//! Imported dictionaries as plain values, with everything that Arrow allows.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod support;

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, Int8Array, Int64Array, StringArray, StringViewArray, UInt64Array, new_null_array};
use arrow::buffer::{NullBuffer, ScalarBuffer};
use arrow::compute::{cast, take};
use arrow::datatypes::{DataType, Field, Int8Type, Schema, SchemaRef, TimeUnit};
use columnar::{ColumnType, DeviceBatch, DeviceColumn};
use device::Queue;
use futures::executor::block_on;
use kernels::ops::{Decode, Options};
use support::{SIZES, batch, down, profiles, queue, random, up};

/// Value types of dictionaries.
fn value_types() -> Vec<DataType> {
    use DataType::*;
    vec![
        Boolean,
        Int8,
        Int16,
        Int64,
        Float64,
        Date32,
        Timestamp(TimeUnit::Microsecond, None),
        Decimal128(20, 2),
        Decimal256(50, 2),
        Utf8,
        LargeUtf8,
        Utf8View,
        Binary,
        FixedSizeBinary(3),
        Null,
    ]
}

/// Values of a type with duplicates, one in `nulls` of them NULL.
fn values(data_type: &DataType, len: usize, nulls: Option<u64>, salt: u64) -> ArrayRef {
    let is_null = |index: usize| nulls.is_some_and(|nulls| random(index, salt).is_multiple_of(nulls));
    let number = |index: usize| (!is_null(index)).then(|| (random(index, salt + 1) % 7) as i64);
    if data_type.is_null() {
        return new_null_array(data_type, len);
    }
    if matches!(data_type, DataType::FixedSizeBinary(_)) {
        let bytes = (0..len).map(|index| number(index).map(|number| [number as u8; 3]));
        return Arc::new(arrow::array::FixedSizeBinaryArray::try_from_sparse_iter_with_size(bytes, 3).unwrap());
    }
    let numbers = Int64Array::from_iter((0..len).map(number));
    let is_text = cast(&StringArray::from(vec!["x"]), data_type).is_ok() && !data_type.is_numeric() && !data_type.is_temporal();
    if is_text && *data_type != DataType::Boolean {
        let text = |number: i64| "longer than twelve bytes "[..number as usize * 4].to_string() + &number.to_string();
        let text: StringArray = numbers.iter().map(|number| number.map(text)).collect();
        return cast(&text, data_type).unwrap();
    }
    cast(&numbers, data_type).or_else(|_| cast(&cast(&numbers, &DataType::Int32).unwrap(), data_type)).unwrap()
}

/// Codes of a dictionary of `known` values. One in `nulls` is NULL, with a code beyond the
/// dictionary.
fn keys(data_type: &DataType, n: usize, known: usize, nulls: Option<u64>, salt: u64) -> ArrayRef {
    let valid: Vec<bool> =
        (0..n).map(|row| known > 0 && !nulls.is_some_and(|nulls| random(row, salt).is_multiple_of(nulls))).collect();
    let code = |row: usize| if valid[row] { random(row, salt + 1) % known as u64 } else { 127 };
    let codes = UInt64Array::from_iter_values((0..n).map(code));
    let codes = cast(&codes, data_type).unwrap();
    let nulls = (known == 0 || nulls.is_some()).then(|| NullBuffer::from(valid.clone()));
    arrow::array::make_array(codes.to_data().into_builder().nulls(nulls).build().unwrap())
}

/// An imported column of these codes and values.
fn raw(queue: &Queue, keys: &ArrayRef, values: &ArrayRef, nullable: bool) -> (SchemaRef, DeviceBatch) {
    let uploaded = |array: &ArrayRef, nullable: bool| {
        let host = batch(vec![("x", Arc::clone(array), nullable)]);
        up(queue, &host, &columnar::natural_types(&host.schema()).unwrap()).columns()[0].clone()
    };
    let (codes, dictionary) = (uploaded(keys, nullable), uploaded(values, values.null_count() > 0));
    let data_type = DataType::Dictionary(Box::new(keys.data_type().clone()), Box::new(values.data_type().clone()));
    let schema: SchemaRef = Arc::new(Schema::new(vec![Field::new("x", data_type.clone(), nullable)]));
    let validity = codes.validity().map(|(bits, first)| (bits.clone(), first));
    let ty = Arc::new(ColumnType::of(&data_type, nullable).unwrap());
    let buffers = codes.buffers().to_vec();
    let column = DeviceColumn::try_new(ty, keys.len(), buffers, validity, None, Some(Arc::new(dictionary))).unwrap();
    (Arc::clone(&schema), DeviceBatch::try_new(schema, vec![column], keys.len()).unwrap())
}

#[track_caller]
fn check(queue: &Queue, options: &Options, keys: &ArrayRef, values: &ArrayRef, nullable: bool, case: &str) {
    let (schema, batch) = raw(queue, keys, values, nullable);
    check_batch(queue, options, schema, batch, keys, values, case);
}

#[track_caller]
fn check_batch(
    queue: &Queue,
    options: &Options,
    schema: SchemaRef,
    batch: DeviceBatch,
    keys: &ArrayRef,
    values: &ArrayRef,
    case: &str,
) {
    let decode = Decode::try_new(schema, options.clone()).unwrap();
    for (start, len) in [(0, keys.len()), (keys.len() / 3, keys.len() / 2)] {
        let before = queue.context().counters().launches;
        let decoded = block_on(decode.run(queue, batch.slice(start, len))).unwrap();
        assert!(len == 0 || queue.context().counters().launches > before || values.data_type().is_null(), "{case}");
        assert_eq!(decoded.columns()[0].ty().as_ref(), &decode.output_types()[0], "{case}");
        let actual = cast(down(queue, &decoded).column(0), values.data_type()).unwrap();
        let expected = match values.is_empty() {
            true => new_null_array(values.data_type(), len),
            false => take(values, &keys.slice(start, len), None).unwrap(),
        };
        assert_eq!(&actual, &expected, "{case}, from {start}");
    }
}

#[test]
fn every_value_type_of_every_size() {
    let queue = queue();
    for options in profiles() {
        for (salt, data_type) in value_types().iter().enumerate() {
            for n in SIZES {
                let salt = salt as u64 * 10;
                let values = values(data_type, 40, Some(5), salt);
                let keys = keys(&DataType::Int8, n, 40, Some(4), salt);
                check(&queue, &options, &keys, &values, true, &format!("{data_type}, {n} rows, {:?}", options.profile));
            }
        }
    }
}

#[test]
fn every_key_type_and_kind_of_null() {
    use DataType::*;
    let queue = queue();
    for options in profiles() {
        for key in [Int8, Int16, Int32, Int64, UInt8, UInt16, UInt32, UInt64] {
            for known in [1, 40] {
                for (of_keys, of_values) in [(None, None), (Some(3), None), (None, Some(3)), (Some(3), Some(2)), (Some(1), None)]
                {
                    let values = values(&Utf8, known, of_values, 3);
                    let keys = keys(&key, 300, known, of_keys, 4);
                    let case = format!("{key}, {known} values, {of_keys:?}, {of_values:?}");
                    check(&queue, &options, &keys, &values, true, &case);
                    if of_keys.is_none() && of_values.is_none() {
                        check(&queue, &options, &keys, &values, false, &case);
                    }
                }
            }
        }
    }
}

#[test]
fn empty_dictionaries_give_nulls() {
    let queue = queue();
    for options in profiles() {
        for data_type in value_types() {
            let (values, keys) = (values(&data_type, 0, None, 1), keys(&DataType::Int32, 257, 0, None, 2));
            check(&queue, &options, &keys, &values, true, &format!("{data_type}"));
        }
    }
}

/// Invalid input: negative codes, which lie in a long dictionary as unsigned ones, and NULLs in a
/// column declared without any.
#[test]
fn codes_outside_of_the_dictionary_give_nulls() {
    let queue = queue();
    for options in profiles() {
        let long: ArrayRef = Arc::new(StringArray::from_iter_values((0..200).map(|index| format!("value {index}"))));
        let keys: ArrayRef = Arc::new(Int8Array::from_iter_values((0..300).map(|row| (row % 256) as u8 as i8)));
        let sound: ArrayRef =
            Arc::new(keys.as_primitive::<Int8Type>().iter().map(|key| key.filter(|key| *key >= 0)).collect::<Int8Array>());
        let (schema, batch) = raw(&queue, &keys, &long, true);
        check_batch(&queue, &options, schema, batch, &sound, &long, "codes below 0");

        let short: ArrayRef = Arc::new(StringArray::from(vec![Some("a"), None]));
        let keys: ArrayRef = Arc::new(Int8Array::from_iter_values((0..300).map(|row| (row % 4) as i8)));
        let (schema, batch) = raw(&queue, &keys, &short, false);
        let decode = Decode::try_new(schema, options.clone()).unwrap();
        let decoded = block_on(decode.run(&queue, batch)).unwrap();
        assert_eq!(decoded.columns()[0].null_count(), Some(225));
        let error = block_on(columnar::download(&queue, &decoded)).unwrap_err().to_string();
        assert!(error.contains("Column 'x' is declared as non-nullable but contains null values"), "{error}");
    }
}

/// Views of NULL dictionary values may point anywhere.
#[test]
fn views_of_nulls_are_not_dereferenced() {
    let queue = queue();
    let views = ScalarBuffer::from(vec![u128::MAX, u128::from(1u8) | u128::from(b'x') << 32]);
    let nulls = NullBuffer::from(vec![false, true]);
    // SAFETY: the first view is NULL, hence never read.
    let values: ArrayRef = Arc::new(unsafe { StringViewArray::new_unchecked(views, vec![], Some(nulls)) });
    for options in profiles() {
        let keys: ArrayRef = Arc::new((0..300).map(|row| Some((row % 2) as i8).filter(|_| row % 5 > 0)).collect::<Int8Array>());
        check(&queue, &options, &keys, &values, true, "views");
    }
}
