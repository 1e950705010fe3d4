// SPDX-License-Identifier: Apache-2.0
//! Random arrays of every type.

use std::sync::Arc;

use arrow::array::{
    Array, ArrayData, ArrayRef, ArrowPrimitiveType, AsArray, BinaryViewArray, BooleanArray, DictionaryArray, FixedSizeListArray,
    GenericListArray, LargeBinaryArray, NullArray, OffsetSizeTrait, PrimitiveArray, StringArray, StringViewBuilder, make_array,
};
use arrow::buffer::{BooleanBuffer, Buffer, NullBuffer, OffsetBuffer};
use arrow::compute::cast;
use arrow::datatypes::ArrowNativeType;
use arrow::datatypes::{
    ArrowDictionaryKeyType, DataType, Field, FieldRef, Int8Type, Int16Type, Int32Type, Int64Type, TimeUnit, UInt8Type,
    UInt16Type, UInt32Type, UInt64Type,
};
use rand::rngs::StdRng;
use rand::{Rng, RngCore, SeedableRng};

/// Share of NULLs.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Nulls {
    None,
    Some,
    All,
}

/// A generator with the seed `COLUMNAR_SEED`, or a random seed, which it prints.
pub(super) fn generator() -> StdRng {
    let seed = std::env::var("COLUMNAR_SEED").ok().and_then(|seed| seed.parse().ok());
    let seed = seed.unwrap_or_else(|| rand::rng().next_u64());
    println!("COLUMNAR_SEED={seed}");
    StdRng::seed_from_u64(seed)
}

/// Every plain type that is supported on the device.
pub(super) fn plain_types() -> Vec<DataType> {
    use DataType::*;
    let mut types = vec![
        Null,
        Boolean,
        Int8,
        Int16,
        Int32,
        Int64,
        UInt8,
        UInt16,
        UInt32,
        UInt64,
        Float32,
        Float64,
        Date32,
        Date64,
        Decimal32(9, 2),
        Decimal64(18, -3),
        Decimal128(38, 10),
        Decimal128(15, 2),
        Decimal256(76, 10),
        Time32(TimeUnit::Second),
        Time32(TimeUnit::Millisecond),
        Time64(TimeUnit::Microsecond),
        Time64(TimeUnit::Nanosecond),
        Utf8,
        LargeUtf8,
        Utf8View,
        Binary,
        LargeBinary,
        BinaryView,
        FixedSizeBinary(0),
        FixedSizeBinary(1),
        FixedSizeBinary(7),
        FixedSizeBinary(16),
    ];
    for unit in [TimeUnit::Second, TimeUnit::Millisecond, TimeUnit::Microsecond, TimeUnit::Nanosecond] {
        types.extend([Timestamp(unit, None), Timestamp(unit, Some("Europe/Berlin".into())), Duration(unit)]);
    }
    types
}

/// Dictionaries of every key type, and of many value types.
pub(super) fn dictionary_types() -> Vec<DataType> {
    use DataType::*;
    let of = |key: DataType, value: DataType| Dictionary(Box::new(key), Box::new(value));
    let keys = [Int8, Int16, Int32, Int64, UInt8, UInt16, UInt32, UInt64];
    let values = [
        Null,
        Boolean,
        Int16,
        Float64,
        Decimal128(20, 4),
        Decimal256(50, 4),
        Timestamp(TimeUnit::Nanosecond, Some("+01:00".into())),
        LargeUtf8,
        Utf8View,
        Binary,
        LargeBinary,
        BinaryView,
        FixedSizeBinary(3),
    ];
    keys.into_iter().map(|key| of(key, Utf8)).chain(values.into_iter().map(|value| of(Int32, value))).collect()
}

/// Every list type, with many element types.
pub(super) fn list_types() -> Vec<DataType> {
    use DataType::*;
    let item = |element: DataType| Arc::new(Field::new("item", element, true));
    let strings = Dictionary(Box::new(Int16), Box::new(Utf8));
    let mut types: Vec<DataType> =
        [Null, Boolean, Int64, Float32, Decimal256(50, 4), Utf8, Utf8View, LargeBinary, FixedSizeBinary(3), strings]
            .into_iter()
            .map(|element| List(item(element)))
            .collect();
    types.extend([
        LargeList(item(Int32)),
        LargeList(item(Utf8)),
        FixedSizeList(item(Int16), 3),
        FixedSizeList(item(Utf8View), 1),
    ]);
    types.extend([FixedSizeList(item(Int16), 0), List(item(List(item(Utf8)))), LargeList(item(FixedSizeList(item(Boolean), 2)))]);
    types
}

/// Dictionaries of every plain type except `FixedSizeBinary(0)`, whose rows arrow's `take` loses.
pub(super) fn dictionaries_of_plain_types() -> Vec<DataType> {
    let of = |value| DataType::Dictionary(Box::new(DataType::Int16), Box::new(value));
    plain_types().into_iter().filter(|value| *value != DataType::FixedSizeBinary(0)).map(of).collect()
}

/// An array of random values, also below the NULLs.
pub(super) fn array(data_type: &DataType, len: usize, nulls: Nulls, rng: &mut StdRng) -> ArrayRef {
    if let DataType::Dictionary(key, value) = data_type {
        return dictionary(key, value, len, nulls, rng);
    }
    let array = values(data_type, len, rng);
    with_nulls(&array, random_nulls(len, nulls, rng))
}

fn random_nulls(len: usize, nulls: Nulls, rng: &mut StdRng) -> Option<NullBuffer> {
    match nulls {
        Nulls::None => None,
        Nulls::Some => Some((0..len).map(|_| rng.random_bool(0.7)).collect::<BooleanBuffer>().into()),
        Nulls::All => Some(NullBuffer::new_null(len)),
    }
}

/// The array with other NULLs over the same values.
pub(super) fn with_nulls(array: &ArrayRef, nulls: Option<NullBuffer>) -> ArrayRef {
    if array.data_type() == &DataType::Null {
        return Arc::clone(array);
    }
    make_array(array.to_data().into_builder().nulls(nulls).build().unwrap())
}

fn values(data_type: &DataType, len: usize, rng: &mut StdRng) -> ArrayRef {
    match data_type {
        DataType::Null => Arc::new(NullArray::new(len)),
        DataType::Boolean => Arc::new(BooleanArray::from((0..len).map(|_| rng.random()).collect::<Vec<bool>>())),
        DataType::Utf8 | DataType::LargeUtf8 => {
            let strings: Vec<String> = (0..len).map(|_| string(rng)).collect();
            cast(&StringArray::from(strings), data_type).unwrap()
        }
        DataType::Utf8View => {
            // Small blocks make several buffers.
            let mut views = StringViewBuilder::new().with_fixed_block_size(1 << 12);
            (0..len).for_each(|_| views.append_value(string(rng)));
            Arc::new(views.finish())
        }
        DataType::Binary | DataType::LargeBinary => {
            let strings: Vec<Vec<u8>> = (0..len).map(|_| bytes(rng)).collect();
            cast(&LargeBinaryArray::from_iter_values(strings), data_type).unwrap()
        }
        DataType::BinaryView => Arc::new(BinaryViewArray::from_iter_values((0..len).map(|_| bytes(rng)))),
        DataType::List(element) => lists::<i32>(element, len, rng),
        DataType::LargeList(element) => lists::<i64>(element, len, rng),
        DataType::FixedSizeList(element, size) => {
            let elements = array(element.data_type(), len * *size as usize, Nulls::Some, rng);
            Arc::new(FixedSizeListArray::try_new_with_length(Arc::clone(element), *size, elements, None, len).unwrap())
        }
        DataType::FixedSizeBinary(width) => fixed(data_type, len, *width as usize, rng),
        _ => fixed(data_type, len, data_type.primitive_width().unwrap(), rng),
    }
}

/// Lists of up to four elements.
fn lists<O: OffsetSizeTrait>(element: &FieldRef, len: usize, rng: &mut StdRng) -> ArrayRef {
    let lengths: Vec<usize> = (0..len).map(|_| rng.random_range(0..5)).collect();
    let total = lengths.iter().sum::<usize>();
    let elements = array(element.data_type(), total, Nulls::Some, rng);
    Arc::new(GenericListArray::<O>::new(Arc::clone(element), OffsetBuffer::from_lengths(lengths), elements, None))
}

fn fixed(data_type: &DataType, len: usize, width: usize, rng: &mut StdRng) -> ArrayRef {
    let mut bytes = vec![0u8; len * width];
    rng.fill_bytes(&mut bytes);
    let data = ArrayData::builder(data_type.clone()).len(len).add_buffer(Buffer::from_slice_ref(bytes));
    make_array(data.build().unwrap())
}

/// A random string: inline in a view, just too long for that, or long; with multi-byte characters.
pub(super) fn string(rng: &mut StdRng) -> String {
    let len = match rng.random_range(0..1000) {
        0 => 4096 + rng.random_range(0..100),
        1..50 => rng.random_range(20..100),
        50..300 => rng.random_range(11..14),
        _ => rng.random_range(0..13),
    };
    (0..len).map(|_| ['a', 'b', 'z', ' ', '\0', 'é', '漢', '🦀'][rng.random_range(0..8) * rng.random_range(0..2)]).collect()
}

fn bytes(rng: &mut StdRng) -> Vec<u8> {
    let len = string(rng).len();
    let mut bytes = vec![0u8; len];
    rng.fill_bytes(&mut bytes);
    bytes
}

fn dictionary(key: &DataType, value: &DataType, len: usize, nulls: Nulls, rng: &mut StdRng) -> ArrayRef {
    // Values are repeated, and some are NULL.
    let distinct = array(value, 20, if nulls == Nulls::None { Nulls::None } else { Nulls::Some }, rng);
    let picks: PrimitiveArray<UInt32Type> = (0..100).map(|_| Some(rng.random_range(0..20))).collect();
    let values = arrow::compute::take(&distinct, &picks, None).unwrap();
    match key {
        DataType::Int8 => keyed::<Int8Type>(values, len, nulls, rng),
        DataType::Int16 => keyed::<Int16Type>(values, len, nulls, rng),
        DataType::Int32 => keyed::<Int32Type>(values, len, nulls, rng),
        DataType::Int64 => keyed::<Int64Type>(values, len, nulls, rng),
        DataType::UInt8 => keyed::<UInt8Type>(values, len, nulls, rng),
        DataType::UInt16 => keyed::<UInt16Type>(values, len, nulls, rng),
        DataType::UInt32 => keyed::<UInt32Type>(values, len, nulls, rng),
        _ => keyed::<UInt64Type>(values, len, nulls, rng),
    }
}

fn keyed<K: ArrowDictionaryKeyType>(values: ArrayRef, len: usize, nulls: Nulls, rng: &mut StdRng) -> ArrayRef {
    let nulls = random_nulls(len, nulls, rng);
    let keys = (0..len).map(|row| {
        let valid = nulls.as_ref().is_none_or(|nulls| nulls.is_valid(row));
        // Keys below NULLs may be out of range.
        let greatest = if valid { values.len() } else { 127 };
        <K as ArrowPrimitiveType>::Native::usize_as(rng.random_range(0..greatest))
    });
    let keys = PrimitiveArray::<K>::new(keys.collect::<Vec<_>>().into(), nulls.clone());
    Arc::new(DictionaryArray::<K>::try_new(keys, values).unwrap())
}

/// Splits an array into chunks of random length.
pub(super) fn random_chunks(array: &ArrayRef, rng: &mut StdRng) -> Vec<ArrayRef> {
    let (mut chunks, mut at) = (vec![], 0);
    while at < array.len() {
        let len = rng.random_range(0..=(array.len() - at).min(1 + array.len() / 3));
        chunks.push(array.slice(at, len));
        at += len;
    }
    chunks.push(array.slice(at, 0));
    chunks
}

/// Strings with at most `distinct` distinct values.
pub(super) fn few_strings(data_type: &DataType, distinct: usize, len: usize, rng: &mut StdRng) -> ArrayRef {
    let strings: Vec<String> = (0..len).map(|_| format!("number {}", rng.random_range(0..distinct))).collect();
    let array: ArrayRef = Arc::new(StringArray::from(strings));
    match data_type {
        DataType::Dictionary(_, _) => cast(&array, data_type).unwrap(),
        _ => cast(array.as_string::<i32>(), data_type).unwrap(),
    }
}
