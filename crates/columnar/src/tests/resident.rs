// SPDX-License-Identifier: Apache-2.0
//! Resident tables: narrowed types, statistics and unchanged values.

use std::sync::Arc;

use arrow::array::{
    Array, ArrayRef, Date32Array, Decimal128Array, Decimal256Array, DictionaryArray, Float64Array, Int32Array, Int64Array,
    RecordBatch, StringArray, StringViewArray, UInt64Array, new_null_array,
};
use arrow::compute::{cast, concat};
use arrow::datatypes::{DataType, Field, Schema, TimeUnit, i256};
use rand::Rng;

use super::data::{Nulls, array, dictionary_types, few_strings, generator, plain_types, random_chunks};
use super::*;
use crate::{Carrier, ColumnType, Error, Layout, Resident, ResidentBuilder};

fn build(queue: &Queue, batch_rows: usize, arrays: &[ArrayRef]) -> Result<Resident> {
    let builder = ResidentBuilder::try_new(queue, &schema_of(&arrays[0])).unwrap().with_batch_rows(batch_rows);
    push(builder, arrays)
}

fn push(mut builder: ResidentBuilder, arrays: &[ArrayRef]) -> Result<Resident> {
    for array in arrays {
        builder.push(batch_of(array))?;
    }
    block_on(builder.finish())
}

fn all(queue: &Queue, table: &Resident) -> ArrayRef {
    let arrays: Vec<_> = table.batches.iter().map(|batch| down(queue, batch).unwrap()).collect();
    for (batch, ty) in table.batches.iter().zip(table.types.iter().cycle()) {
        assert_eq!(**batch.columns()[0].ty(), *ty);
    }
    concat(&arrays.iter().map(|array| &**array as &dyn Array).collect::<Vec<_>>()).unwrap()
}

fn fixed(carrier: Carrier, ty: &ColumnType) -> bool {
    ty.layout == Layout::Fixed(carrier)
}

fn codes(ty: &ColumnType) -> Option<Carrier> {
    match ty.layout {
        Layout::Dictionary { codes, .. } => Some(codes),
        _ => None,
    }
}

fn decimals(values: impl IntoIterator<Item = Option<i128>>) -> ArrayRef {
    Arc::new(values.into_iter().collect::<Decimal128Array>().with_precision_and_scale(15, 2).unwrap())
}

#[test]
fn no_type_changes_a_value() {
    let mut rng = generator();
    for queue in [default_queue(), discrete_queue()] {
        for data_type in plain_types().into_iter().chain(dictionary_types()) {
            for nulls in [Nulls::None, Nulls::Some, Nulls::All] {
                let array = array(&data_type, 700, nulls, &mut rng);
                let table = build(&queue, rng.random_range(1..400), &random_chunks(&array, &mut rng)).unwrap();
                let case = format!("{data_type}, {nulls:?}");
                assert_eq!(table.statistics[0].null_count, Some(array.logical_null_count()), "{case}");
                assert_eq!(table.types[0].nullable, array.logical_null_count() > 0, "{case}");
                assert_same(&all(&queue, &table), &array, case);
            }
        }
    }
}

#[test]
fn batches_have_the_rows_asked_for() {
    let queue = default_queue();
    let array: ArrayRef = Arc::new(Int64Array::from_iter_values(0..1050));
    let table = build(&queue, 100, &[array.slice(0, 30), array.slice(30, 1000), array.slice(1030, 20)]).unwrap();
    let rows: Vec<_> = table.batches.iter().map(DeviceBatch::num_rows).collect();
    assert_eq!(rows, [[100; 10].as_slice(), &[50]].concat());
    assert_same(&all(&queue, &table), &array, "in order");
}

#[test]
fn decimals_take_the_narrowest_carrier_of_the_whole_table() {
    for queue in [default_queue(), discrete_queue()] {
        let small = decimals([Some(1), Some(-2_000_000_000)]);
        let table = build(&queue, 2, std::slice::from_ref(&small)).unwrap();
        assert!(fixed(Carrier::I32, &table.types[0]) && !table.types[0].nullable, "{:?}", table.types);
        assert_eq!(table.types[0].bounds, Some((-(1 << 31), 1)));

        // A wider value and a NULL arrive later, so the first batch is converted.
        let wide = decimals([Some(1 << 40), None]);
        let table = build(&queue, 2, &[small.clone(), wide.clone()]).unwrap();
        assert!(fixed(Carrier::I64, &table.types[0]) && table.types[0].nullable, "{:?}", table.types);
        assert_same(&all(&queue, &table), &concat(&[&small, &wide]).unwrap(), "widened");

        let widest = decimals([Some(i128::from(i64::MAX) + 1), Some(0)]);
        let table = build(&queue, 2, &[small.clone(), widest.clone()]).unwrap();
        assert!(fixed(Carrier::I128, &table.types[0]), "{:?}", table.types);
        assert_same(&all(&queue, &table), &concat(&[&small, &widest]).unwrap(), "widest");
    }
}

#[test]
fn decimals_of_256_bits_take_the_narrowest_carrier_too() {
    let of = |values: &[Option<i256>]| Arc::new(Decimal256Array::from(values.to_vec())) as ArrayRef;
    let power = |bits: u8| Some(i256::ONE << bits);
    for queue in [default_queue(), discrete_queue()] {
        let mut arrays = vec![];
        for (value, carrier) in [
            (power(30), Carrier::I32),
            (power(31), Carrier::I64),
            (None, Carrier::I64),
            (power(63), Carrier::I128),
            (power(127), Carrier::I256),
            (Some(i256::MIN), Carrier::I256),
        ] {
            arrays.push(of(&[value, Some(i256::MINUS_ONE)]));
            let table = build(&queue, 2, &arrays).unwrap();
            assert!(fixed(carrier, &table.types[0]), "{value:?}: {:?}", table.types);
            let arrays: Vec<&dyn Array> = arrays.iter().map(AsRef::as_ref).collect();
            assert_same(&all(&queue, &table), &concat(&arrays).unwrap(), format!("{value:?}"));
        }
    }
}

#[test]
fn integers_dates_and_times_take_the_fewest_bytes_of_the_whole_table() {
    use DataType::*;
    let types = [Int16, Int32, Int64, Date32, Time64(TimeUnit::Nanosecond), Timestamp(TimeUnit::Microsecond, None)];
    let steps = [(100, Carrier::I8), (-129, Carrier::I16), (40_000, Carrier::I32), (-1 << 40, Carrier::I64)];
    for queue in [default_queue(), discrete_queue()] {
        for data_type in &types {
            let natural = ColumnType::of(data_type, false).unwrap();
            let Layout::Fixed(widest) = natural.layout else { panic!("{natural:?}") };
            let mut arrays: Vec<ArrayRef> = vec![];
            for (value, carrier) in steps.into_iter().filter(|(_, carrier)| carrier.width() <= widest.width()) {
                // A NULL of any value follows.
                let values = Int64Array::from(vec![Some(value), None, Some(1)]);
                let integers = if widest == Carrier::I64 { Int64 } else { Int32 };
                let integers = if *data_type == Int16 { Int16 } else { integers };
                arrays.push(cast(&cast(&values, &integers).unwrap(), data_type).unwrap());
                let table = build(&queue, 2, &arrays).unwrap();
                assert!(fixed(carrier, &table.types[0]), "{value} of {data_type}: {:?}", table.types);
                let all_arrays: Vec<&dyn Array> = arrays.iter().map(AsRef::as_ref).collect();
                assert_same(&all(&queue, &table), &concat(&all_arrays).unwrap(), format!("{value} of {data_type}"));
            }
        }
    }
}

#[test]
fn unsigned_integers_take_the_fewest_bytes_too() {
    for queue in [default_queue(), discrete_queue()] {
        let mut arrays: Vec<ArrayRef> = vec![];
        let steps = [(255, Carrier::U8), (65_535, Carrier::U16), (1 << 16, Carrier::U32), (1 << 32, Carrier::U64)];
        for (value, carrier) in steps {
            arrays.push(Arc::new(UInt64Array::from(vec![Some(value), None, Some(0)])));
            let table = build(&queue, 4, &arrays).unwrap();
            assert!(fixed(carrier, &table.types[0]), "{value}: {:?}", table.types);
            let all_arrays: Vec<&dyn Array> = arrays.iter().map(AsRef::as_ref).collect();
            assert_same(&all(&queue, &table), &concat(&all_arrays).unwrap(), format!("{value}"));
        }
    }
}

#[test]
fn a_late_null_gives_earlier_batches_a_validity_bitmap() {
    for queue in [default_queue(), discrete_queue()] {
        let parts: Vec<ArrayRef> = vec![
            Arc::new(Int32Array::from(vec![1, 2, 3])),
            Arc::new(Int32Array::from(vec![Some(4), None, Some(6)])),
            Arc::new(Int32Array::from(vec![7])),
        ];
        let table = build(&queue, 3, &parts).unwrap();
        assert!(table.types[0].nullable && table.batches.iter().all(|batch| batch.columns()[0].validity().is_some()));
        assert_eq!(table.batches[0].columns()[0].null_count(), Some(0));
        assert_same(&all(&queue, &table), &concat(&[&parts[0], &parts[1], &parts[2]]).unwrap(), "late NULL");
    }
}

#[test]
fn few_strings_share_one_dictionary() {
    use DataType::*;
    let mut rng = generator();
    let dictionary = |key: DataType, value: DataType| Dictionary(Box::new(key), Box::new(value));
    for queue in [default_queue(), discrete_queue()] {
        for data_type in
            [Utf8, LargeUtf8, Utf8View, dictionary(Int32, Utf8), dictionary(UInt8, LargeUtf8), dictionary(Int16, Utf8View)]
        {
            for (distinct, carrier) in [(5, Carrier::U8), (120, Carrier::U8), (1000, Carrier::U16)] {
                if data_type == dictionary(UInt8, LargeUtf8) && distinct > 256 {
                    continue;
                }
                let array = few_strings(&data_type, distinct, 3 * distinct, &mut rng);
                let array =
                    super::data::with_nulls(&array, Some((0..array.len()).map(|row| row % 11 != 10).collect::<Vec<_>>().into()));
                let table = build(&queue, distinct / 2 + 1, &random_chunks(&array, &mut rng)).unwrap();
                let case = format!("{distinct} of {data_type}");
                let known = table.statistics[0].distinct_count.unwrap();
                assert!(known <= distinct && known > distinct / 2, "{case}: {known}");
                assert_eq!(codes(&table.types[0]), Some(carrier), "{case}");
                assert_eq!(table.types[0].bounds, Some((0, known.next_power_of_two() as i128 - 1)), "{case}");
                let first = table.batches[0].columns()[0].dictionary().unwrap();
                assert_eq!(first.len(), known, "{case}");
                assert!(table.batches.iter().all(|batch| Arc::ptr_eq(batch.columns()[0].dictionary().unwrap(), first)));
                assert_same(&all(&queue, &table), &array, case);
            }
        }
    }
}

#[test]
fn too_many_distinct_strings_drop_the_dictionary() {
    let mut rng = generator();
    for queue in [default_queue(), discrete_queue()] {
        for data_type in [DataType::Utf8, DataType::Utf8View] {
            let few = few_strings(&data_type, 10, 500, &mut rng);
            let many: Vec<String> = (0..1025).map(|n| format!("another {n}")).collect();
            let many = arrow::compute::cast(&StringArray::from(many), &data_type).unwrap();
            let table = build(&queue, 500, &[few.clone(), many.clone()]).unwrap();
            assert_eq!(table.types[0].layout, Layout::Offsets32);
            assert_eq!(table.statistics[0].distinct_count, None);
            assert_same(&all(&queue, &table), &concat(&[&few, &many]).unwrap(), &data_type);
        }
    }
}

#[test]
fn many_distinct_strings_get_codes_where_these_take_half_of_the_bytes() {
    let queue = default_queue();
    let of = |rows: usize, distinct: usize| -> ArrayRef {
        Arc::new(StringViewArray::from_iter_values((0..rows).map(|row| format!("Clerk#{:09}", row * 7919 % distinct))))
    };
    for (rows, distinct, expected) in [
        (100_000, 10_000, Some(Carrier::U16)),
        (20_000, 10_000, None),
        (10_000, 10_000, None),
        (400_000, 1 << 16, Some(Carrier::U16)),
        (400_000, (1 << 16) + 1, None),
    ] {
        let array = of(rows, distinct);
        let table = build(&queue, rows, std::slice::from_ref(&array)).unwrap();
        assert_eq!(codes(&table.types[0]), expected, "{distinct} of {rows}");
        assert_eq!(table.statistics[0].distinct_count, expected.map(|_| distinct), "{distinct} of {rows}");
        assert_same(&all(&queue, &table), &array, "values");
    }
}

#[test]
fn extending_does_not_change_the_table() {
    let mut rng = generator();
    for queue in [default_queue(), discrete_queue()] {
        let first = few_strings(&DataType::Utf8View, 200, 1000, &mut rng);
        let before = build(&queue, 300, std::slice::from_ref(&first)).unwrap();
        let second: ArrayRef = Arc::new(StringViewArray::from_iter((0..600).map(|n| (n % 5 != 0).then(|| format!("new {n}")))));
        let after =
            push(ResidentBuilder::extending(&queue, &before).with_batch_rows(300), std::slice::from_ref(&second)).unwrap();
        assert_eq!(codes(&before.types[0]), Some(Carrier::U8));
        assert_eq!(codes(&after.types[0]), Some(Carrier::U16));
        assert!(!before.types[0].nullable && after.types[0].nullable);
        assert_same(&all(&queue, &after), &concat(&[&first, &second]).unwrap(), "extended");
        assert_same(&all(&queue, &before), &first, "unchanged");

        // Without new rows both tables share the buffers.
        let same = push(ResidentBuilder::extending(&queue, &before), &[]).unwrap();
        let buffer = |table: &Resident| table.batches[0].columns()[0].buffers()[0].clone();
        assert!(buffer(&same).same(&buffer(&before)));
        assert_eq!(same.types, before.types);
    }
}

#[test]
fn statistics_are_exact() {
    let queue = default_queue();
    let one = |array: ArrayRef, batch_rows: usize| build(&queue, batch_rows, &[array]).unwrap().statistics.remove(0);
    let dates = one(Arc::new(Date32Array::from(vec![Some(3), None, Some(-7), Some(5)])), 2);
    assert_eq!((dates.null_count, dates.distinct_count), (Some(1), None));
    let (min, max) = dates.min_max.unwrap();
    assert_same(&min, &(Arc::new(Date32Array::from(vec![-7])) as ArrayRef), "min");
    assert_same(&max, &(Arc::new(Date32Array::from(vec![5])) as ArrayRef), "max");

    let strings = one(Arc::new(StringViewArray::from(vec![Some("b"), Some("a"), None, Some("b")])), 1);
    assert_eq!((strings.null_count, strings.distinct_count), (Some(1), Some(2)));
    let (min, max) = strings.min_max.unwrap();
    assert_same(&min, &(Arc::new(StringViewArray::from(vec!["a"])) as ArrayRef), "min");
    assert_same(&max, &(Arc::new(StringViewArray::from(vec!["b"])) as ArrayRef), "max");

    let decimal = one(decimals([Some(5), Some(1 << 70)]), 1);
    assert_same(&decimal.min_max.unwrap().1, &decimals([Some(1 << 70)]), "max");

    // A column with NaN has no minimum or maximum.
    for values in [[f64::NAN, 1.0], [1.0, f64::NAN]] {
        let floats = one(Arc::new(Float64Array::from(values.to_vec())), 1);
        assert!(floats.min_max.is_none());
    }
    let nothing = one(new_null_array(&DataType::Int32, 3), 2);
    assert!(nothing.null_count == Some(3) && nothing.min_max.is_none());
}

#[test]
fn integers_have_bounds() {
    let queue = default_queue();
    let array: ArrayRef = Arc::new(Int64Array::from(vec![3, 1000]));
    let table = build(&queue, 1, &[array]).unwrap();
    assert_eq!((table.types[0].bounds, &table.types[0].layout), (Some((0, 1023)), &Layout::Fixed(Carrier::I16)));
}

#[test]
fn an_empty_table_keeps_its_natural_types() {
    let queue = default_queue();
    let array = arrow::array::new_empty_array(&DataType::Decimal128(15, 2));
    let table = build(&queue, 10, &[array]).unwrap();
    assert_eq!(table.types, natural_types(&table.schema).unwrap());
    assert!(table.batches.is_empty());
    let more = push(ResidentBuilder::extending(&queue, &table), &[decimals([Some(1)])]).unwrap();
    assert!(fixed(Carrier::I8, &more.types[0]));
}

#[test]
fn a_non_nullable_column_refuses_nulls() {
    let queue = default_queue();
    let schema = Arc::new(Schema::new(vec![Field::new("x", DataType::Int32, false)]));
    let mut builder = ResidentBuilder::try_new(&queue, &schema).unwrap().with_batch_rows(1);
    let batch: RecordBatch = batch_of(&(Arc::new(Int32Array::from(vec![None::<i32>])) as ArrayRef));
    let error = builder.push(batch).unwrap_err();
    assert!(matches!(error, Error::Nulls { .. }), "{error}");
}

#[test]
fn batches_on_the_device_make_a_table_that_grows() {
    let mut rng = generator();
    let queue = default_queue();
    for data_type in plain_types().into_iter().chain(dictionary_types()) {
        let (first, more) = (array(&data_type, 300, Nulls::Some, &mut rng), array(&data_type, 200, Nulls::Some, &mut rng));
        let batch = up(&queue, std::slice::from_ref(&first)).unwrap();
        let types: Vec<ColumnType> = batch.columns().iter().map(|column| (**column.ty()).clone()).collect();
        let table = Resident::of_batches(schema_of(&first), types.clone(), std::slice::from_ref(&batch)).unwrap();
        assert_eq!(table.statistics[0].null_count, None);
        assert_eq!(table.batches[0].memory_bytes(), batch.memory_bytes());
        let grown = push(ResidentBuilder::extending(&queue, &table), std::slice::from_ref(&more)).unwrap();
        assert_eq!((grown.types.clone(), grown.statistics[0].null_count), (types, None), "{data_type}");
        let both = concat(&[&*first, &*more]).unwrap();
        assert_same(&all(&queue, &grown), &both, format!("{data_type}"));
        assert_same(&all(&queue, &table), &first, format!("{data_type}"));

        let halves = [batch.slice(0, 100), batch.slice(100, 200)];
        let halved = Resident::of_batches(schema_of(&first), grown.types.clone(), &halves).unwrap();
        assert_eq!((halved.memory_bytes(None), halved.memory_bytes(Some(0))), (batch.memory_bytes(), batch.memory_bytes()));
        assert!(Resident::of_batches(schema_of(&first), vec![], &[]).is_err());
        let other = vec![ColumnType { bounds: Some((0, 1)), ..grown.types[0].clone() }];
        assert!(matches!(Resident::of_batches(schema_of(&first), other, &[batch]), Err(Error::Malformed(_))), "{data_type}");
    }
}

/// Narrow rows fill a batch of the given length; wide ones end it at its bytes, but not before the
/// default length.
#[test]
fn batches_end_at_their_rows_or_bytes() {
    let queue = default_queue();
    let rows = Resident::BATCH_ROWS;
    let array: ArrayRef = Arc::new(Int64Array::from_iter_values(0..3 * rows as i64));
    let batch = RecordBatch::try_new(schema_of(&array), vec![Arc::clone(&array)]).unwrap();
    for (batch_bytes, expected) in [
        (1 << 30, vec![3 * rows]),
        (16 * rows, vec![2 * rows, rows]),
        (12 * rows, vec![3 * rows / 2, 3 * rows / 2]),
        (1, vec![rows; 3]),
    ] {
        let builder = ResidentBuilder::try_new(&queue, batch.schema_ref()).unwrap();
        let mut builder = builder.with_batch_rows(4 * rows).with_batch_bytes(batch_bytes);
        builder.push(batch.clone()).unwrap();
        let table = futures::executor::block_on(builder.finish()).unwrap();
        let lengths: Vec<usize> = table.batches.iter().map(DeviceBatch::num_rows).collect();
        // Arrays have a few bytes beside their values.
        let is_near = lengths.len() == expected.len() && lengths.iter().zip(&expected).all(|(a, b)| a.abs_diff(*b) < rows / 4);
        assert!(is_near, "{batch_bytes}: {lengths:?}");
        assert_eq!(lengths.iter().sum::<usize>(), 3 * rows);
        assert_same(&all(&queue, &table), &array, "in order");
    }
}

#[test]
fn large_batches_on_the_device_are_sliced() {
    let queue = default_queue();
    let rows = Resident::BATCH_ROWS + 1;
    let array: ArrayRef = Arc::new(Int64Array::from_iter_values(0..rows as i64));
    let batch = up(&queue, std::slice::from_ref(&array)).unwrap();
    let types = vec![(**batch.columns()[0].ty()).clone()];
    let table = Resident::of_batches(schema_of(&array), types, std::slice::from_ref(&batch)).unwrap();
    let lengths: Vec<usize> = table.batches.iter().map(DeviceBatch::num_rows).collect();
    assert_eq!((lengths, table.memory_bytes(None)), (vec![Resident::BATCH_ROWS, 1], batch.memory_bytes()));
    assert_same(&all(&queue, &table), &array, "in order");
}

/// Arrow's safe constructors refuse such arrays; a foreign producer need not.
#[test]
fn keys_outside_of_the_dictionary_are_refused() {
    let values: ArrayRef = Arc::new(StringArray::from(vec!["a", "b"]));
    for key in [2, 100_000, -1] {
        // SAFETY: the test reads no value of the array.
        let bad = unsafe { DictionaryArray::new_unchecked(Int32Array::from(vec![0, key]), Arc::clone(&values)) };
        let bad: ArrayRef = Arc::new(bad);
        let queue = default_queue();
        for error in [build(&queue, 1000, &[Arc::clone(&bad)]).err(), up(&queue, &[Arc::clone(&bad)]).err()] {
            let error = error.map(|error| error.to_string()).unwrap_or_default();
            assert!(error.contains("the key of row 1 of a batch lies outside of its 2 dictionary values"), "{key}: {error}");
        }
    }
}

#[test]
fn host_memory_that_a_table_uses_in_place_counts_once() {
    let Some(queue) = unified_queue() else { return };
    let pool = queue.context().pool();
    // Values that no type narrows, and strings of one heap, in three batches.
    let floats: ArrayRef = Arc::new(Float64Array::from_iter_values((0..3000).map(|i| f64::from(i) * 1e-3)));
    let strings: ArrayRef = Arc::new(StringArray::from_iter_values((0..3000).map(|i| format!("a string {i}"))));
    for (array, least, most) in [(floats, 24_000, 32_000), (strings, 40_000, 130_000)] {
        let before = pool.in_use();
        let table = build(&queue, 1000, &[array]).unwrap();
        queue.context().synchronize().unwrap();
        let counted = pool.in_use() - before;
        assert!((least..most).contains(&counted), "{counted}");
        drop(table);
        queue.context().synchronize().unwrap();
        assert_eq!(pool.in_use(), before);
    }
    let small = Context::new(config().with_memory_bytes(1 << 20)).unwrap().queue().unwrap();
    let floats: ArrayRef = Arc::new(Float64Array::from_iter_values((0..400_000).map(f64::from)));
    let error = build(&small, 1000, &[floats]).unwrap_err().to_string();
    assert!(error.contains("device.memory_bytes"), "{error}");
    assert_eq!(small.context().pool().in_use(), 0);
}
