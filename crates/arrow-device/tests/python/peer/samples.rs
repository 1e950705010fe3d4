// SPDX-License-Identifier: Apache-2.0
//! Arrays of six elements of every type, under the names of the same arrays in
//! `tests/python/samples.py`.

use std::sync::Arc;

use arrow::array::types::{
    ArrowDictionaryKeyType, Int8Type, Int16Type, Int32Type, Int64Type, IntervalDayTime, IntervalMonthDayNano, RunEndIndexType,
    UInt8Type, UInt16Type, UInt32Type, UInt64Type,
};
use arrow::array::*;
use arrow::buffer::{NullBuffer, OffsetBuffer, ScalarBuffer};
use arrow::compute::cast;
use arrow::datatypes::{ArrowNativeType, DataType, Field, TimeUnit, UnionFields, i256};

type Named = (&'static str, ArrayRef);

pub(crate) fn sample(name: &str) -> Option<ArrayRef> {
    samples().into_iter().find(|(other, _)| *other == name).map(|(_, array)| array)
}

/// All samples, ordered by name.
pub(crate) fn samples() -> Vec<Named> {
    let mut all = [numbers(), times(), decimals(), strings(), lists(), structs(), encoded()].concat();
    all.sort_by_key(|(name, _)| *name);
    all
}

fn at<T: Array + 'static>(array: T) -> ArrayRef {
    Arc::new(array)
}

fn numbers() -> Vec<Named> {
    let longs: ArrayRef = at(Int64Array::from(vec![Some(1), None, Some(3), Some(-4), Some(5), Some(0)]));
    vec![
        ("null", at(NullArray::new(6))),
        ("bool", at(BooleanArray::from(vec![Some(true), None, Some(false), Some(true), Some(true), Some(false)]))),
        ("int8", at(Int8Array::from(vec![Some(1), None, Some(i8::MAX), Some(i8::MIN), Some(5), Some(0)]))),
        ("int16", at(Int16Array::from(vec![Some(1), None, Some(i16::MAX), Some(i16::MIN), Some(5), Some(0)]))),
        ("int32", at(Int32Array::from(vec![Some(1), None, Some(i32::MAX), Some(i32::MIN), Some(5), Some(0)]))),
        ("int64", at(Int64Array::from(vec![Some(1), None, Some(i64::MAX), Some(i64::MIN), Some(5), Some(0)]))),
        ("int64, no nulls", at(Int64Array::from(vec![1, 2, 3, 4, 5, 6]))),
        ("uint8", at(UInt8Array::from(vec![Some(1), None, Some(u8::MAX), Some(4), Some(5), Some(0)]))),
        ("uint16", at(UInt16Array::from(vec![Some(1), None, Some(u16::MAX), Some(4), Some(5), Some(0)]))),
        ("uint32", at(UInt32Array::from(vec![Some(1), None, Some(u32::MAX), Some(4), Some(5), Some(0)]))),
        ("uint64", at(UInt64Array::from(vec![Some(1), None, Some(u64::MAX), Some(4), Some(5), Some(0)]))),
        ("float16", cast(&longs, &DataType::Float16).unwrap()),
        ("float32", at(Float32Array::from(vec![Some(1.5), None, Some(f32::MAX), Some(f32::NEG_INFINITY), Some(0.1), Some(0.0)]))),
        ("float64", at(Float64Array::from(vec![Some(1.5), None, Some(f64::MAX), Some(f64::NEG_INFINITY), Some(0.1), Some(0.0)]))),
    ]
}

fn times() -> Vec<Named> {
    use TimeUnit::*;
    let ints: ArrayRef = at(Int32Array::from(vec![Some(1), None, Some(86_399), Some(43_200), Some(5), Some(0)]));
    let days: ArrayRef = at(Int32Array::from(vec![Some(1), None, Some(20_000), Some(-4), Some(5), Some(0)]));
    let longs: ArrayRef = at(Int64Array::from(vec![Some(1), None, Some(1_700_000_000_123), Some(-4_000_000), Some(5), Some(0)]));
    let clock: ArrayRef = at(Int64Array::from(vec![Some(1), None, Some(86_399_999_999), Some(4), Some(5), Some(0)]));
    let midnights: ArrayRef = at(Int64Array::from(vec![
        Some(86_400_000),
        None,
        Some(1_728_000_000_000),
        Some(-86_400_000),
        Some(864_000_000),
        Some(0),
    ]));
    let month_day_nano = [(1, 2, 3), (0, 0, 0), (-4, 5, -6), (i32::MAX, i32::MIN, i64::MAX), (0, 1, 0), (0, 0, i64::MIN)];
    let valid = || NullBuffer::from(vec![true, false, true, true, true, true]);
    let month_day_nano = month_day_nano.map(|(months, days, nanos)| IntervalMonthDayNano::new(months, days, nanos));
    let day_time = [(1, 2), (0, 0), (-4, 5), (i32::MAX, i32::MIN), (0, 1), (0, 0)].map(|(d, ms)| IntervalDayTime::new(d, ms));
    let zoned = |unit, zone: &str| DataType::Timestamp(unit, Some(zone.into()));
    let cast = |array: &ArrayRef, data_type: DataType| cast(array, &data_type).unwrap();
    vec![
        ("date32", cast(&days, DataType::Date32)),
        ("date64", cast(&midnights, DataType::Date64)),
        ("time32[s]", cast(&ints, DataType::Time32(Second))),
        ("time32[ms]", cast(&ints, DataType::Time32(Millisecond))),
        ("time64[us]", cast(&clock, DataType::Time64(Microsecond))),
        ("time64[ns]", cast(&clock, DataType::Time64(Nanosecond))),
        ("timestamp[s]", cast(&longs, DataType::Timestamp(Second, None))),
        ("timestamp[ms]", cast(&longs, DataType::Timestamp(Millisecond, None))),
        ("timestamp[us]", cast(&longs, DataType::Timestamp(Microsecond, None))),
        ("timestamp[ns]", cast(&longs, DataType::Timestamp(Nanosecond, None))),
        ("timestamp[s, UTC]", cast(&longs, zoned(Second, "UTC"))),
        ("timestamp[ms, +05:30]", cast(&longs, zoned(Millisecond, "+05:30"))),
        // The zone is set last: arrow-rs shifts by it otherwise, and this build has no named zones.
        ("timestamp[ns, Europe/Zurich]", renamed(&longs, zoned(Nanosecond, "Europe/Zurich"))),
        ("duration[s]", cast(&longs, DataType::Duration(Second))),
        ("duration[ms]", cast(&longs, DataType::Duration(Millisecond))),
        ("duration[us]", cast(&longs, DataType::Duration(Microsecond))),
        ("duration[ns]", cast(&longs, DataType::Duration(Nanosecond))),
        ("interval_months", renamed(&days, DataType::Interval(arrow::datatypes::IntervalUnit::YearMonth))),
        ("interval_day_time", at(IntervalDayTimeArray::new(day_time.to_vec().into(), Some(valid())))),
        ("interval_month_day_nano", at(IntervalMonthDayNanoArray::new(month_day_nano.to_vec().into(), Some(valid())))),
    ]
}

/// The same values as another type of the same width.
fn renamed(array: &ArrayRef, data_type: DataType) -> ArrayRef {
    make_array(array.to_data().into_builder().data_type(data_type).build().unwrap())
}

fn decimals() -> Vec<Named> {
    let small = vec![Some(1), None, Some(-9_999_999), Some(9_999_999), Some(5), Some(0)];
    let middle = vec![Some(1), None, Some(-999_999_999_999_999_999), Some(999_999_999_999_999_999), Some(5), Some(0)];
    let large = 10i128.pow(38) - 1;
    let large = vec![Some(1), None, Some(-large), Some(large), Some(5), Some(0)];
    let huge = i256::from_string(&"9".repeat(76)).unwrap();
    let huge = vec![Some(i256::ONE), None, Some(-huge), Some(huge), Some(i256::from(5)), Some(i256::ZERO)];
    let scaled = vec![Some(1), None, Some(-3), Some(4), Some(5), Some(0)];
    vec![
        ("decimal32(7, 2)", at(Decimal32Array::from(small).with_precision_and_scale(7, 2).unwrap())),
        ("decimal64(18, 3)", at(Decimal64Array::from(middle).with_precision_and_scale(18, 3).unwrap())),
        ("decimal128(38, 10)", at(Decimal128Array::from(large).with_precision_and_scale(38, 10).unwrap())),
        ("decimal128(15, -2)", at(Decimal128Array::from(scaled).with_precision_and_scale(15, -2).unwrap())),
        ("decimal256(76, 5)", at(Decimal256Array::from(huge).with_precision_and_scale(76, 5).unwrap())),
    ]
}

fn texts() -> Vec<Option<&'static str>> {
    vec![Some("a"), None, Some(""), Some("more than twelve bytes of text"), Some("ü€𝄞"), Some("exactly 12 b")]
}

fn strings() -> Vec<Named> {
    let bytes: Vec<Option<&[u8]>> =
        vec![Some(b"a"), None, Some(b""), Some(b"more than twelve bytes \x00\xff"), Some(b"\x00"), Some(b"exactly 12 b")];
    let fixed = [Some(b"abc"), None, Some(b"\0\0\0"), Some(b"\xff\xff\xff"), Some(b"def"), Some(b"ghi")];
    vec![
        ("string", at(StringArray::from(texts()))),
        ("large_string", at(LargeStringArray::from(texts()))),
        ("string_view", at(StringViewArray::from(texts()))),
        ("string_view, several buffers", several_buffers()),
        ("string_view, all inline", at(StringViewArray::from(vec!["a", "b", "", "c", "d", "eeeeeeeeeeee"]))),
        ("binary", at(BinaryArray::from(bytes.clone()))),
        ("large_binary", at(LargeBinaryArray::from(bytes.clone()))),
        ("binary_view", at(BinaryViewArray::from(bytes))),
        (
            "fixed_size_binary(3)",
            at(FixedSizeBinaryArray::try_from_sparse_iter_with_size(fixed.iter().map(|v| v.map(|v| &v[..])), 3).unwrap()),
        ),
    ]
}

/// Views into buffers with one string each.
fn several_buffers() -> ArrayRef {
    let mut builder = StringViewBuilder::new().with_fixed_block_size(32);
    for index in 0..6 {
        builder.append_option((index != 4).then(|| format!("string number {index} is a long one")));
    }
    at(builder.finish())
}

fn item(array: &dyn Array) -> Arc<Field> {
    Arc::new(Field::new("item", array.data_type().clone(), true))
}

fn one_null() -> Option<NullBuffer> {
    Some(vec![true, false, true, true, true, true].into())
}

fn lists() -> Vec<Named> {
    let ints = Int32Array::from(vec![Some(1), None, Some(3), Some(-4), Some(5), Some(6), Some(7)]);
    let strings = StringArray::from(texts());
    let lengths = || OffsetBuffer::from_lengths([2, 0, 1, 0, 2, 1]);
    let list = ListArray::new(item(&strings), lengths(), at(strings.clone()), one_null());
    // Out of order, overlapping, and with unreferenced elements.
    let (offsets, sizes) = (vec![3, 0, 1, 0, 4, 2], vec![2, 0, 1, 2, 0, 2]);
    let wide = |numbers: &[i32]| numbers.iter().map(|number| i64::from(*number)).collect::<ScalarBuffer<i64>>();
    let (large_offsets, large_sizes) = (wide(&offsets), wide(&sizes));
    let pairs = Int32Array::from_iter((0..12).map(|i| (i != 5).then_some(i)));
    let inner = Int16Array::from(vec![1, 2, 3, 4, 5, 6]);
    let inner = ListArray::new(item(&inner), lengths(), at(inner), one_null());
    let nothing = FixedSizeListArray::try_new_with_length(item(&ints), 0, at(ints.slice(0, 0)), one_null(), 6).unwrap();
    vec![
        ("list<int32>", at(ListArray::new(item(&ints), lengths(), at(ints.clone()), one_null()))),
        ("list<string>", at(list.clone())),
        ("large_list<string>", {
            let lengths = OffsetBuffer::from_lengths([2, 0, 1, 0, 2, 1]);
            at(LargeListArray::new(item(&strings), lengths, at(strings.clone()), one_null()))
        }),
        (
            "list_view<string>",
            at(ListViewArray::new(item(&strings), offsets.into(), sizes.into(), at(strings.clone()), one_null())),
        ),
        (
            "large_list_view<string>",
            at(LargeListViewArray::new(item(&strings), large_offsets, large_sizes, at(strings.clone()), one_null())),
        ),
        ("fixed_size_list<int32, 2>", at(FixedSizeListArray::new(item(&pairs), 2, at(pairs), one_null()))),
        ("fixed_size_list<int32, 0>", at(nothing)),
        (
            "list<list<int16>>",
            at(ListArray::new(item(&inner), OffsetBuffer::from_lengths([1, 2, 0, 1, 1, 1]), at(inner), one_null())),
        ),
        ("list<struct>", {
            let rows = rows();
            at(ListArray::new(item(&rows), lengths(), at(rows), one_null()))
        }),
    ]
}

fn rows() -> StructArray {
    let ints = Int32Array::from(vec![Some(1), None, Some(3), Some(-4), Some(5), Some(0)]);
    let fields = vec![Field::new("i", DataType::Int32, true), Field::new("s", DataType::Utf8, true)];
    let nulls = Some(vec![true, true, false, true, true, true].into());
    StructArray::new(fields.into(), vec![at(ints), at(StringArray::from(texts()))], nulls)
}

fn structs() -> Vec<Named> {
    let rows = rows();
    let outer = vec![
        Field::new("rows", rows.data_type().clone(), true),
        Field::new("n", DataType::Int64, false).with_metadata([("unit".into(), "metre".into())].into()),
    ];
    let outer = StructArray::new(outer.into(), vec![at(rows.clone()), at(Int64Array::from(vec![1, 2, 3, 4, 5, 6]))], one_null());
    let nothing = StructArray::new_empty_fields(6, one_null());
    let members = [(0, Arc::new(Field::new("i", DataType::Int32, true))), (5, Arc::new(Field::new("s", DataType::Utf8, true)))];
    let members: UnionFields = members.into_iter().collect();
    let ids = || ScalarBuffer::from(vec![0i8, 5, 5, 0, 5, 0]);
    let ints = || at(Int32Array::from(vec![Some(1), None, Some(3), Some(-4), Some(5), Some(0)]));
    let sparse = UnionArray::try_new(members.clone(), ids(), None, vec![ints(), at(StringArray::from(texts()))]).unwrap();
    let union_offsets = ScalarBuffer::from(vec![0, 0, 3, 1, 4, 5]);
    let dense = UnionArray::try_new(members, ids(), Some(union_offsets), vec![ints(), at(StringArray::from(texts()))]).unwrap();
    vec![
        ("struct", at(rows)),
        ("struct<struct>", at(outer)),
        ("struct<>", at(nothing)),
        ("map<string, int32>", map()),
        ("sparse_union", at(sparse)),
        ("dense_union", at(dense)),
    ]
}

fn map() -> ArrayRef {
    let names = MapFieldNames { entry: "entries".into(), key: "key".into(), value: "value".into() };
    let mut map = MapBuilder::new(Some(names), StringBuilder::new(), Int32Builder::new());
    type Entries = &'static [(&'static str, Option<i32>)];
    let rows: [Option<Entries>; 6] = [
        Some(&[("a", Some(1))]),
        None,
        Some(&[]),
        Some(&[("b", None), ("c", Some(3))]),
        Some(&[("d", Some(4))]),
        Some(&[("e", Some(5)), ("f", Some(6)), ("g", None)]),
    ];
    for row in rows {
        for (key, value) in row.unwrap_or_default() {
            map.keys().append_value(key);
            map.values().append_option(*value);
        }
        map.append(row.is_some()).unwrap();
    }
    at(map.finish())
}

fn encoded() -> Vec<Named> {
    let rows =
        DictionaryArray::<Int32Type>::new(Int32Array::from(vec![Some(0), None, Some(2), Some(1), Some(5), Some(5)]), at(rows()));
    let indices = dictionary::<Int16Type>();
    let list = ListArray::new(item(&indices), OffsetBuffer::from_lengths([2, 0, 1, 0, 2, 1]), indices, one_null());
    vec![
        ("dictionary<int8>", dictionary::<Int8Type>()),
        ("dictionary<int16>", dictionary::<Int16Type>()),
        ("dictionary<int32>", dictionary::<Int32Type>()),
        ("dictionary<int64>", dictionary::<Int64Type>()),
        ("dictionary<uint8>", dictionary::<UInt8Type>()),
        ("dictionary<uint16>", dictionary::<UInt16Type>()),
        ("dictionary<uint32>", dictionary::<UInt32Type>()),
        ("dictionary<uint64>", dictionary::<UInt64Type>()),
        ("dictionary<struct>", at(rows)),
        ("list<dictionary>", at(list)),
        ("run_end_encoded<int16>", runs::<Int16Type>([2, 3, 6])),
        ("run_end_encoded<int32>", runs::<Int32Type>([2, 3, 6])),
        ("run_end_encoded<int64>", runs::<Int64Type>([2, 3, 6])),
    ]
}

fn dictionary<K: ArrowDictionaryKeyType>() -> ArrayRef {
    at(DictionaryArray::<K>::from_iter([Some("x"), None, Some("y"), Some("x"), Some("z"), Some("z")]))
}

fn runs<E: RunEndIndexType>(ends: [i64; 3]) -> ArrayRef {
    let ends = PrimitiveArray::<E>::from_iter_values(ends.map(|end| E::Native::usize_as(end as usize)));
    let values = StringArray::from(vec![Some("x"), None, Some("y")]);
    at(RunArray::<E>::try_new(&ends, &values).unwrap())
}
