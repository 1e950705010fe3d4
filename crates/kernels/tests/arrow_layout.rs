// SPDX-License-Identifier: Apache-2.0
//! Conversion of batches to Arrow's layouts: the values stay the same, the result can be exported,
//! and columns in Arrow's layout are not copied.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod support;

use std::sync::Arc;

use arrow::array::{
    Array, ArrayData, ArrayRef, BooleanArray, Int32Array, Int64Array, RecordBatch, RecordBatchOptions, StringArray,
    StringViewBuilder, make_array,
};
use arrow::buffer::{BooleanBuffer, Buffer as HostBuffer, NullBuffer};
use arrow::compute::cast;
use arrow::datatypes::{DataType, Field, Schema, SchemaRef, TimeUnit, i256};
use bytes::Bytes;
use columnar::exchange::{export, has_arrow_layout};
use columnar::{Carrier, ColumnType, DeviceBatch, DeviceColumn, Layout};
use device::{Meter, Queue};
use futures::executor::block_on;
use kernels::codegen::CType;
use kernels::ops::{ArrowLayout, Options};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use support::{SIZES, down, profiles, queue, up};

/// Prints the seed of a failing test; `DEVICEFUSION_SEED` repeats it.
fn generator() -> StdRng {
    let seed = std::env::var("DEVICEFUSION_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or_else(rand::random);
    println!("DEVICEFUSION_SEED={seed}");
    StdRng::seed_from_u64(seed)
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Nulls {
    /// The source is not nullable.
    Never,
    None,
    Some,
    All,
}

const NULLS: [Nulls; 4] = [Nulls::Never, Nulls::None, Nulls::Some, Nulls::All];

/// Sizes with patterns of NULLs; slow long columns with one pattern only.
fn sizes_and_nulls() -> Vec<(usize, Nulls)> {
    let nulls = |n: usize| if n > 1000 { &NULLS[2..3] } else { &NULLS[..] };
    SIZES.into_iter().flat_map(|n| nulls(n).iter().map(move |nulls| (n, *nulls))).collect()
}

impl Nulls {
    fn buffer(self, n: usize, rng: &mut StdRng) -> Option<NullBuffer> {
        match self {
            Nulls::Never | Nulls::None => None,
            Nulls::Some => Some((0..n).map(|_| rng.random_range(0..4) != 0).collect()),
            Nulls::All => Some(NullBuffer::new_null(n)),
        }
    }
}

/// A host array and its layout on the device.
struct Case {
    array: ArrayRef,
    ty: ColumnType,
}

fn case(array: ArrayRef, layout: Layout, nulls: Nulls) -> Case {
    let ty = ColumnType { data_type: array.data_type().clone(), nullable: nulls != Nulls::Never, layout, bounds: None };
    Case { array, ty }
}

fn schema(cases: &[Case]) -> SchemaRef {
    let fields =
        cases.iter().enumerate().map(|(at, case)| Field::new(format!("c{at}"), case.ty.data_type.clone(), case.ty.nullable));
    Arc::new(Schema::new(fields.collect::<Vec<_>>()))
}

fn types(cases: &[Case]) -> Vec<ColumnType> {
    cases.iter().map(|case| case.ty.clone()).collect()
}

fn uploaded(queue: &Queue, cases: &[Case]) -> DeviceBatch {
    let arrays = cases.iter().map(|case| Arc::clone(&case.array)).collect();
    let options = RecordBatchOptions::new().with_row_count(cases.first().map(|case| case.array.len()));
    up(queue, &RecordBatch::try_new_with_options(schema(cases), arrays, &options).unwrap(), &types(cases))
}

/// The column with validity from bit `first`, after unrelated bits.
fn skewed(queue: &Queue, column: &DeviceColumn, array: &ArrayRef, first: usize, counted: bool) -> DeviceColumn {
    if column.validity().is_none() {
        return column.clone();
    }
    let valid = (0..first).map(|bit| bit % 3 == 0).chain((0..array.len()).map(|row| array.is_valid(row)));
    let bits: BooleanBuffer = valid.collect();
    let bytes = Bytes::copy_from_slice(bits.values());
    let buffer = queue.alloc(bytes.len()).unwrap();
    queue.write(&buffer, 0, &bytes).unwrap();
    let null_count = counted.then(|| array.null_count());
    let (ty, dictionary) = (Arc::clone(column.ty()), column.dictionary().cloned());
    let made = DeviceColumn::try_new(ty, column.len(), column.buffers().to_vec(), Some((buffer, first)), null_count, dictionary);
    made.unwrap().with_offset(column.offset()).unwrap()
}

fn assert_same_buffers(actual: &DeviceColumn, expected: &DeviceColumn, label: &str) {
    assert_eq!(actual.buffers().len(), expected.buffers().len(), "{label}");
    assert_eq!((actual.offset(), actual.null_count()), (expected.offset(), expected.null_count()), "{label}");
    assert!(actual.buffers().iter().zip(expected.buffers()).all(|(one, other)| one.same(other)), "{label}: copied");
    match (actual.validity(), expected.validity()) {
        (Some((one, at)), Some((other, from))) => assert!(one.same(other) && at == from, "{label}: validity copied"),
        (one, other) => assert_eq!(one.is_some(), other.is_some(), "{label}"),
    }
    match (actual.dictionary(), expected.dictionary()) {
        (Some(one), Some(other)) => assert_same_buffers(one, other, label),
        (one, other) => assert_eq!(one.is_some(), other.is_some(), "{label}"),
    }
}

/// Converts a batch, and asserts its layouts and its values.
#[track_caller]
fn check_layout(queue: &Queue, converter: &ArrowLayout, batch: &DeviceBatch, label: &str) -> DeviceBatch {
    let expected = down(queue, batch);
    let result = block_on(converter.run(queue, batch)).unwrap_or_else(|error| panic!("{label}: {error}"));
    assert_eq!(
        converter.output_types(),
        result.columns().iter().map(|column| (**column.ty()).clone()).collect::<Vec<_>>(),
        "{label}"
    );
    for (given, got) in batch.columns().iter().zip(result.columns()) {
        let ty = given.ty();
        let label = format!("{label}, {} in {:?}, nullable {}", ty.data_type, ty.layout, ty.nullable);
        assert!(has_arrow_layout(got), "{label}");
        if has_arrow_layout(given) {
            assert_same_buffers(got, given, &label);
        }
    }
    let exported = export(queue, &result).unwrap_or_else(|error| panic!("{label}: {error}"));
    assert_eq!(exported.array.length as usize, batch.num_rows(), "{label}");
    drop(exported);
    let actual = down(queue, &result);
    assert_eq!(actual.schema(), expected.schema(), "{label}");
    for ((one, other), column) in actual.columns().iter().zip(expected.columns()).zip(result.columns()) {
        let label = format!("{label}, {}", one.data_type());
        assert!(one == other, "{label}: other values");
        assert_eq!(column.null_count(), Some(other.logical_null_count()), "{label}");
    }
    result
}

#[track_caller]
fn check(queue: &Queue, batch: &DeviceBatch, types: &[ColumnType], options: &Options, label: &str) {
    let converter = ArrowLayout::try_new(batch.schema().clone(), types.to_vec(), options.clone()).unwrap();
    check_layout(queue, &converter, batch, label);
}

/// The cases in every dynamic state: as uploaded, sliced, with unknown NULL count, with validity at
/// an offset.
#[track_caller]
fn check_all(cases: &[Case], rng: &mut StdRng) {
    let queue = queue();
    let batch = uploaded(&queue, cases);
    let types = types(cases);
    let n = batch.num_rows();
    let host: Vec<_> = cases.iter().map(|case| &case.array).collect();
    for options in profiles() {
        let converter = ArrowLayout::try_new(batch.schema().clone(), types.clone(), options.clone()).unwrap();
        let label = format!("{n} rows, {:?}", options.profile);
        let converted = check_layout(&queue, &converter, &batch, &label);
        for (column, array) in down(&queue, &converted).columns().iter().zip(&host) {
            assert!(column == *array, "{label}, {}: not what was uploaded", array.data_type());
        }
        for (offset, len) in [(1, n), (7, 33), (rng.random_range(0..=n), rng.random_range(0..=n))] {
            check_layout(&queue, &converter, &batch.slice(offset, len), &format!("{label}, {len} from {offset} on"));
        }
        for (first, counted) in [(0, false), (1, true), (5, false), (rng.random_range(0..100), false)] {
            let columns = batch.columns().iter().zip(&host).map(|(column, array)| skewed(&queue, column, array, first, counted));
            let batch = DeviceBatch::try_new(batch.schema().clone(), columns.collect(), n).unwrap();
            let label = format!("{label}, validity from bit {first} on, counted {counted}");
            if n < 1000 || first > 5 {
                check_layout(&queue, &converter, &batch, &label);
            }
            let (offset, len) = (rng.random_range(0..=n), rng.random_range(0..=n));
            check_layout(&queue, &converter, &batch.slice(offset, len), &format!("{label}, {len} from {offset} on"));
        }
    }
}

/// Integers of a type's natural width, as many distinct ones as a carrier holds.
fn fixed(data_type: &DataType, carrier: Carrier, n: usize, nulls: Nulls, rng: &mut StdRng) -> ArrayRef {
    let native = CType::native(data_type).unwrap();
    let (mut least, mut most) = CType::of_carrier(carrier).range().unwrap_or((i128::MIN, i128::MAX));
    if let DataType::Decimal32(precision, _) | DataType::Decimal64(precision, _) | DataType::Decimal128(precision, _) = data_type
    {
        let limit = 10i128.pow(u32::from(*precision)) - 1;
        (least, most) = (least.max(-limit), most.min(limit));
    }
    let mut bytes = Vec::with_capacity(n * native.width());
    for _ in 0..n {
        let value = match rng.random_range(0..6) {
            0 => least,
            1 => most,
            2 => 0,
            _ => rng.random_range(least..=most),
        };
        bytes.extend_from_slice(&i256::from_i128(value).to_le_bytes()[..native.width()]);
    }
    let data = ArrayData::builder(data_type.clone()).len(n).add_buffer(HostBuffer::from_vec(bytes));
    make_array(data.nulls(nulls.buffer(n, rng)).align_buffers(true).build().unwrap())
}

/// At most 120 distinct strings: empty, short, of 12 and 13 bytes, long.
fn text(row: usize) -> String {
    match row % 120 {
        0 => String::new(),
        1 => "twelve bytes".into(),
        2 => "thirteen byte".into(),
        3 => "wörd".repeat(500),
        other => format!("{}{other}", "ä".repeat(other % 17)),
    }
}

fn strings(data_type: &DataType, n: usize, nulls: Nulls, rng: &mut StdRng) -> ArrayRef {
    let valid = nulls.buffer(n, rng);
    let texts = (0..n).map(|row| valid.as_ref().is_none_or(|valid| valid.is_valid(row)).then(|| text(rng.random_range(0..1000))));
    let array: ArrayRef = Arc::new(StringArray::from_iter(texts));
    cast(&array, data_type).unwrap()
}

fn string_types() -> [DataType; 6] {
    use DataType::*;
    [Utf8, LargeUtf8, Utf8View, Binary, LargeBinary, BinaryView]
}

fn dictionary(codes: Carrier, values: Layout) -> Layout {
    Layout::Dictionary { codes, values: Box::new(values) }
}

#[test]
fn narrow_values_are_widened() {
    device::skip_unless_turn!(5);
    use Carrier::*;
    use DataType::*;
    let mut rng = generator();
    let sources: [(DataType, &[Carrier]); 13] = [
        (Decimal256(50, 10), &[I256, I128, I64, I32, I8]),
        (Decimal128(38, 10), &[I128, I64, I32, I16, I8]),
        (Decimal128(9, 2), &[I128, I64, I32]),
        (Decimal64(18, 3), &[I64, I32]),
        (Int64, &[I64, I32, I16, I8]),
        (Int16, &[I16, I8]),
        (UInt64, &[U64, U32, U16, U8]),
        (UInt32, &[U32, U8]),
        (Date32, &[I32, I16]),
        (Date64, &[I64, I32]),
        (Time32(TimeUnit::Second), &[I32, I16]),
        (Timestamp(TimeUnit::Microsecond, Some("+02:00".into())), &[I64, I32]),
        (Duration(TimeUnit::Nanosecond), &[I64, I32]),
    ];
    for n in SIZES {
        let mut cases = Vec::new();
        for nulls in NULLS {
            for (data_type, carriers) in &sources {
                for carrier in *carriers {
                    cases.push(case(fixed(data_type, *carrier, n, nulls, &mut rng), Layout::Fixed(*carrier), nulls));
                }
            }
        }
        check_all(&cases, &mut rng);
    }
}

#[test]
fn validity_is_moved_and_counted() {
    let mut rng = generator();
    for n in SIZES.into_iter().chain([32, 33, 64, 1000]) {
        let mut cases = Vec::new();
        for nulls in NULLS {
            let flags: BooleanArray = BooleanArray::new((0..n).map(|_| rng.random()).collect(), nulls.buffer(n, &mut rng));
            cases.push(case(Arc::new(flags), Layout::Bits, nulls));
            let floats = cast(&fixed(&DataType::Int32, Carrier::I32, n, nulls, &mut rng), &DataType::Float64).unwrap();
            cases.push(case(floats, Layout::Fixed(Carrier::F64), nulls));
            let fixed = strings(&DataType::Binary, n, nulls, &mut rng);
            let lengths = arrow::array::FixedSizeBinaryArray::try_from_sparse_iter_with_size(
                (0..n).map(|row| fixed.is_valid(row).then_some([row as u8; 5])),
                5,
            );
            cases.push(case(Arc::new(lengths.unwrap()), Layout::Bytes(5), nulls));
            cases.push(case(strings(&DataType::Utf8, n, nulls, &mut rng), Layout::Offsets32, nulls));
        }
        cases.push(case(arrow::array::new_null_array(&DataType::Null, n), Layout::Null, Nulls::All));
        check_all(&cases, &mut rng);
    }
}

#[test]
fn strings_take_the_layout_of_their_type() {
    device::skip_unless_turn!(1);
    let mut rng = generator();
    for (n, nulls) in sizes_and_nulls() {
        let mut cases = Vec::new();
        for data_type in string_types() {
            for layout in [Layout::Offsets32, Layout::Offsets64, Layout::Views] {
                cases.push(case(strings(&data_type, n, nulls, &mut rng), layout, nulls));
            }
        }
        check_all(&cases, &mut rng);
    }
}

fn dictionary_type(key: DataType, value: DataType) -> DataType {
    DataType::Dictionary(Box::new(key), Box::new(value))
}

/// Plain strings in a dictionary layout, as in resident tables with few distinct values.
#[test]
fn codes_of_plain_types_are_decoded() {
    device::skip_unless_turn!(3);
    let mut rng = generator();
    for (n, nulls) in sizes_and_nulls() {
        let mut cases = Vec::new();
        for data_type in string_types() {
            for (codes, values) in
                [(Carrier::U8, Layout::Offsets32), (Carrier::U16, Layout::Offsets64), (Carrier::I32, Layout::Views)]
            {
                cases.push(case(strings(&data_type, n, nulls, &mut rng), dictionary(codes, values), nulls));
            }
        }
        let dates = (0..n).map(|_| rng.random_range(-100..100)).collect::<Int32Array>();
        let dates = cast(&dates, &DataType::Date32).unwrap();
        cases.push(case(dates, dictionary(Carrier::U16, Layout::Fixed(Carrier::I32)), Nulls::None));
        let bytes: Vec<_> = (0..n).map(|row| [row as u8, 1, 2]).collect();
        let bytes = arrow::array::FixedSizeBinaryArray::try_from_sparse_iter_with_size(bytes.into_iter().map(Some), 3);
        cases.push(case(Arc::new(bytes.unwrap()), dictionary(Carrier::U8, Layout::Bytes(3)), Nulls::None));
        check_all(&cases, &mut rng);
    }
}

#[test]
fn dictionaries_get_natural_codes_and_values() {
    device::skip_unless_turn!(7);
    use DataType::*;
    let mut rng = generator();
    for (n, nulls) in sizes_and_nulls() {
        let mut cases = Vec::new();
        for value in string_types() {
            let plain = strings(&value, n, nulls, &mut rng);
            let keys = [(Int32, Carrier::I32), (Int32, Carrier::U8), (Int64, Carrier::U16), (UInt16, Carrier::U8)];
            for ((key, codes), layout) in
                keys.into_iter().zip([Layout::Offsets32, Layout::Offsets64, Layout::Views].iter().cycle())
            {
                let array = cast(&plain, &dictionary_type(key, value.clone())).unwrap();
                cases.push(case(array, dictionary(codes, layout.clone()), nulls));
            }
        }
        let numbers: Int64Array = (0..n).map(|_| rng.random_range(-50..50)).collect();
        let numbers = cast(&numbers, &dictionary_type(Int8, Int64)).unwrap();
        cases.push(case(numbers, dictionary(Carrier::U8, Layout::Fixed(Carrier::I32)), Nulls::None));
        check_all(&cases, &mut rng);
    }
}

/// A computed column of a dictionary type: plain values without codes.
fn computed(column: &DeviceColumn, key: &DataType) -> DeviceColumn {
    let data_type = dictionary_type(key.clone(), column.ty().data_type.clone());
    let ty = Arc::new(ColumnType { data_type, ..column.ty().as_ref().clone() });
    let validity = column.validity().map(|(bits, first)| (bits.clone(), first));
    let made = DeviceColumn::try_new(ty, column.len(), column.buffers().to_vec(), validity, None, None).unwrap();
    made.with_offset(column.offset()).unwrap()
}

#[test]
fn computed_values_of_dictionary_types_get_codes() {
    let mut rng = generator();
    let queue = queue();
    for (n, nulls) in sizes_and_nulls() {
        let mut cases = Vec::new();
        for data_type in string_types() {
            for layout in [Layout::Offsets64, Layout::Views] {
                cases.push(case(strings(&data_type, n, nulls, &mut rng), layout, nulls));
            }
        }
        let decimal = DataType::Decimal128(12, 2);
        for carrier in [Carrier::I128, Carrier::I64] {
            cases.push(case(fixed(&decimal, carrier, n, nulls, &mut rng), Layout::Fixed(carrier), nulls));
        }
        cases.push(case(arrow::array::new_null_array(&DataType::Null, n), Layout::Null, Nulls::All));
        let plain = uploaded(&queue, &cases);
        let keys = if n <= 128 { [DataType::Int8, DataType::UInt16] } else { [DataType::Int32, DataType::UInt64] };
        for (key, options) in keys.iter().zip(profiles().collect::<Vec<_>>().iter().cycle()) {
            for (offset, len) in [(0, n), (1, n), (5, 31)] {
                let sliced = plain.slice(offset, len);
                let columns: Vec<_> = sliced.columns().iter().map(|column| computed(column, key)).collect();
                let types: Vec<_> = columns.iter().map(|column| column.ty().as_ref().clone()).collect();
                let fields = types.iter().map(|ty| Field::new("x", ty.data_type.clone(), ty.nullable));
                let schema = Arc::new(Schema::new(fields.collect::<Vec<_>>()));
                let batch = DeviceBatch::try_new(schema.clone(), columns, sliced.num_rows()).unwrap();
                let converter = ArrowLayout::try_new(schema, types, options.clone()).unwrap();
                let result = block_on(converter.run(&queue, &batch)).unwrap();
                assert!(result.columns().iter().all(has_arrow_layout), "{n} rows, {nulls:?}");
                drop(export(&queue, &result).unwrap());
                let (actual, expected) = (down(&queue, &result), down(&queue, &sliced));
                for (one, other) in actual.columns().iter().zip(expected.columns()) {
                    let label = format!("{}, {n} rows, {nulls:?}, {len} from {offset} on", one.data_type());
                    match other.data_type() {
                        DataType::Null => assert_eq!(one.logical_null_count(), other.len(), "{label}"),
                        data_type => assert!(cast(one, data_type).unwrap().as_ref() == other.as_ref(), "{label}"),
                    }
                }
            }
        }
    }
}

#[test]
fn more_rows_than_dictionary_keys_are_refused() {
    let queue = queue();
    let array: ArrayRef = Arc::new(StringArray::from_iter_values((0..129).map(|row| row.to_string())));
    let plain = uploaded(&queue, &[case(array, Layout::Offsets64, Nulls::Never)]);
    let batch = |rows| {
        let column = computed(&plain.slice(0, rows).columns()[0], &DataType::Int8);
        let schema = Schema::new(vec![Field::new("colour", column.ty().data_type.clone(), false)]);
        DeviceBatch::try_new(Arc::new(schema), vec![column], rows).unwrap()
    };
    let types = vec![batch(1).columns()[0].ty().as_ref().clone()];
    for options in profiles() {
        let converter = ArrowLayout::try_new(batch(1).schema().clone(), types.clone(), options).unwrap();
        assert_eq!(block_on(converter.run(&queue, &batch(128))).unwrap().num_rows(), 128);
        let error = block_on(converter.run(&queue, &batch(129))).unwrap_err();
        assert_eq!(
            error.to_string(),
            "column \"colour\" (Dictionary(Int8, Utf8)): 129 rows to be numbered by the dictionary's keys, limit 128; lower \
             device.batch_rows"
        );
    }
}

/// Strings of 20 bytes in several buffers of views.
fn blocks(n: usize) -> ArrayRef {
    let mut builder = StringViewBuilder::new().with_fixed_block_size(4096);
    for row in 0..n {
        match row % 7 {
            3 => builder.append_null(),
            _ => builder.append_value(format!("a string with {row:>6}")),
        }
    }
    Arc::new(builder.finish())
}

#[test]
fn views_over_several_heaps_get_one() {
    let mut rng = generator();
    for n in [257, 10_000] {
        let cases = [case(blocks(n), Layout::Views, Nulls::Some)];
        let heaps = uploaded(&queue(), &cases).columns()[0].buffers()[2].len() / 8;
        assert!(heaps > 1, "{heaps} heaps");
        check_all(&cases, &mut rng);
    }
}

/// The view of a NULL may refer to a missing heap; an empty view replaces it.
#[test]
fn views_of_nulls_are_not_dereferenced() {
    let queue = queue();
    let n = 1000;
    let blocks = blocks(n);
    let given = uploaded(&queue, &[case(blocks.clone(), Layout::Views, Nulls::Some)]).columns()[0].clone();
    let mut views = block_on(queue.read(&given.buffers()[0], 0..n * 16)).unwrap().to_vec();
    (0..n).filter(|row| blocks.is_null(*row)).for_each(|row| views[row * 16..row * 16 + 16].fill(0xff));
    let wild = queue.alloc(views.len()).unwrap();
    queue.write(&wild, 0, &views).unwrap();
    let mut buffers = given.buffers().to_vec();
    buffers[0] = wild;
    let validity = given.validity().map(|(bits, first)| (bits.clone(), first));
    let column = DeviceColumn::try_new(given.ty().clone(), n, buffers, validity, None, None).unwrap();
    for options in profiles() {
        for column in [column.clone(), computed(&column, &DataType::Int32)] {
            let ty = column.ty().as_ref().clone();
            let schema = Arc::new(Schema::new(vec![Field::new("x", ty.data_type.clone(), true)]));
            let batch = DeviceBatch::try_new(schema.clone(), vec![column], n).unwrap();
            let converter = ArrowLayout::try_new(schema, vec![ty], options.clone()).unwrap();
            let converted = block_on(converter.run(&queue, &batch)).unwrap().columns()[0].clone();
            assert!(has_arrow_layout(&converted));
            let values = converted.dictionary().map_or(&converted, |values| values);
            let views = block_on(queue.read(&values.buffers()[0], 0..n * 16)).unwrap();
            let empty = |row: &usize| views[row * 16..row * 16 + 16].iter().all(|byte| *byte == 0);
            assert!((0..n).filter(|row| blocks.is_null(*row)).all(|row| empty(&row)), "{}", converted.ty().data_type);
        }
    }
}

#[test]
fn heaps_beyond_32_bits_are_compacted() {
    let queue = queue();
    let n = 5000;
    let text: ArrayRef =
        Arc::new(StringArray::from_iter((0..n).map(|row| (row % 7 != 3).then(|| format!("a string with {row:>6}")))));
    let as_type = |data_type: &DataType| cast(&text, data_type).unwrap();
    let mut cases = vec![case(blocks(n), Layout::Views, Nulls::Some)];
    for data_type in [DataType::Utf8, DataType::Utf8View] {
        cases.push(case(as_type(&data_type), Layout::Offsets64, Nulls::Some));
        cases.push(case(as_type(&data_type), dictionary(Carrier::U16, Layout::Offsets32), Nulls::Some));
    }
    cases.push(case(as_type(&DataType::Utf8), Layout::Views, Nulls::Some));
    cases.push(case(as_type(&DataType::LargeUtf8), Layout::Offsets64, Nulls::Some));
    cases.push(case(as_type(&DataType::LargeUtf8), dictionary(Carrier::U16, Layout::Offsets64), Nulls::Some));
    let batch = uploaded(&queue, &cases);
    let limit = 100 * 20;
    for options in profiles() {
        let converter = ArrowLayout::with_heap_bytes(batch.schema().clone(), types(&cases), options.clone(), limit).unwrap();
        for (offset, len) in [(0, 100), (1234, 7), (n - 99, 99)] {
            let converted = check_layout(&queue, &converter, &batch.slice(offset, len), &format!("{len} from {offset} on"));
            for column in converted.columns() {
                let heap = column.buffers()[1].len();
                assert!(heap <= limit || column.ty().data_type == DataType::LargeUtf8, "{}: {heap}", column.ty().data_type);
            }
        }
        for (index, case) in cases.iter().enumerate() {
            let one = batch.project(&[index]).unwrap();
            let ty = vec![case.ty.clone()];
            let converter = ArrowLayout::with_heap_bytes(one.schema().clone(), ty, options.clone(), limit).unwrap();
            match case.ty.data_type {
                DataType::LargeUtf8 => drop(check_layout(&queue, &converter, &one, "LargeUtf8")),
                _ => {
                    let error = block_on(converter.run(&queue, &one)).unwrap_err().to_string();
                    let expected = format!(
                        "column \"c{index}\" ({}): 85720 bytes of strings, limit {limit}; lower device.batch_rows",
                        case.ty.data_type
                    );
                    assert_eq!(error, expected, "{:?}", case.ty.layout);
                }
            }
        }
    }
}

#[test]
fn arrow_layouts_launch_and_compile_nothing() {
    let queue = queue();
    let mut rng = generator();
    let n = 1000;
    let mut cases = Vec::new();
    for nulls in NULLS {
        cases.push(case(fixed(&DataType::Int64, Carrier::I64, n, nulls, &mut rng), Layout::Fixed(Carrier::I64), nulls));
        cases.push(case(strings(&DataType::Utf8, n, nulls, &mut rng), Layout::Offsets32, nulls));
        let codes = cast(&strings(&DataType::Utf8, n, nulls, &mut rng), &dictionary_type(DataType::Int32, DataType::Utf8));
        cases.push(case(codes.unwrap(), dictionary(Carrier::I32, Layout::Offsets32), nulls));
    }
    let batch = uploaded(&queue, &cases);
    for options in profiles() {
        let meter = Arc::new(Meter::default());
        let converter = ArrowLayout::try_new(batch.schema().clone(), types(&cases), options.clone()).unwrap();
        block_on(converter.run(&queue.metered(&meter), &batch)).unwrap();
        assert_eq!((meter.launches(), meter.compile_time().as_nanos(), meter.allocated_bytes()), (0, 0, 0));
        assert_eq!(converter.output_types(), types(&cases));
        check(&queue, &batch, &types(&cases), &options, "lies as Arrow does");
    }
}

#[test]
fn few_bytes_of_arguments_split_the_kernels() {
    let mut rng = generator();
    let n = 500;
    let cases: Vec<Case> = (0..40)
        .map(|at| match at % 3 {
            0 => case(strings(&DataType::Utf8View, n, Nulls::Some, &mut rng), Layout::Offsets64, Nulls::Some),
            1 => case(
                fixed(&DataType::Decimal128(9, 2), Carrier::I32, n, Nulls::Some, &mut rng),
                Layout::Fixed(Carrier::I32),
                Nulls::Some,
            ),
            _ => case(strings(&DataType::Utf8, n, Nulls::Some, &mut rng), Layout::Views, Nulls::Some),
        })
        .collect();
    let queue = queue();
    let batch = uploaded(&queue, &cases);
    for options in profiles() {
        let options = Options { max_arg_bytes: 256, ..options };
        check(&queue, &batch, &types(&cases), &options, "256 bytes of arguments");
    }
}
