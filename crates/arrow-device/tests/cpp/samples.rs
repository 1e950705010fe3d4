// SPDX-License-Identifier: Apache-2.0
//! Arrays of every type that both sides know, with the JSON of the same array for Arrow C++.

use std::sync::Arc;

use arrow::array::types::{Int8Type, Int16Type, Int32Type, Int64Type, IntervalDayTime, IntervalMonthDayNano};
use arrow::array::*;
use arrow::buffer::{NullBuffer, OffsetBuffer, ScalarBuffer};
use arrow::compute::cast;
use arrow::datatypes::{DataType, Field, Schema, TimeUnit, UnionFields, i256};

/// An array of five or more elements.
pub struct Sample {
    pub array: ArrayRef,
    pub json: String,
}

impl Sample {
    /// Of the same type, without elements.
    pub fn empty(&self) -> Self {
        let json = if self.json.contains('|') { "[]|[]" } else { "[]" };
        Self { array: new_empty_array(self.array.data_type()), json: json.into() }
    }
}

fn new(array: impl Array + 'static, json: &str) -> Sample {
    Sample { array: Arc::new(array), json: json.into() }
}

const STRINGS: [Option<&str>; 5] = [Some("a"), None, Some(""), Some("more than twelve bytes of message"), Some("ü")];
const STRINGS_JSON: &str = r#"["a", null, "", "more than twelve bytes of message", "ü"]"#;

fn integers() -> ArrayRef {
    Arc::new(Int64Array::from(vec![Some(1), None, Some(3), Some(86_399), Some(5)]))
}

fn five_nulls() -> Option<NullBuffer> {
    Some(NullBuffer::from(vec![true, false, true, true, true]))
}

pub fn samples() -> Vec<Sample> {
    let mut samples = flat();
    samples.extend(nested());
    samples.extend(encoded());
    samples
}

fn flat() -> Vec<Sample> {
    use TimeUnit::*;
    let bytes: Vec<Option<&[u8]>> = STRINGS.iter().map(|message| message.map(str::as_bytes)).collect();
    let cents = r#"["0.01", null, "-0.03", "12345.67", "0.00"]"#;
    let hundredths = [Some(1), None, Some(-3), Some(1_234_567), Some(0)];
    let wide = |number: Option<i32>| number.map(i64::from);
    let mut samples = vec![
        new(NullArray::new(5), "[null, null, null, null, null]"),
        new(BooleanArray::from(vec![Some(true), None, Some(false), Some(true), Some(true)]), "[true, null, false, true, true]"),
        new(Int32Array::from(vec![1, 2, 3, i32::MIN, i32::MAX]), "[1, 2, 3, -2147483648, 2147483647]"),
        new(UInt64Array::from(vec![1, 2, 3, 4, u64::MAX]), "[1, 2, 3, 4, 18446744073709551615]"),
        new(
            Float64Array::from(vec![Some(0.5), None, Some(-1e300), Some(f64::INFINITY), Some(0.1)]),
            "[0.5, null, -1e300, Inf, 0.1]",
        ),
        new(Decimal32Array::from(hundredths.to_vec()).with_precision_and_scale(7, 2).unwrap(), cents),
        new(Decimal64Array::from(hundredths.map(wide).to_vec()).with_precision_and_scale(7, 2).unwrap(), cents),
        new(
            Decimal128Array::from(hundredths.map(|number| number.map(i128::from)).to_vec())
                .with_precision_and_scale(38, 2)
                .unwrap(),
            cents,
        ),
        new(
            Decimal256Array::from(hundredths.map(|number| number.map(|n| i256::from_i128(n.into()))).to_vec())
                .with_precision_and_scale(76, 2)
                .unwrap(),
            cents,
        ),
        new(
            Date64Array::from(vec![Some(86_400_000), None, Some(0), Some(-86_400_000), Some(0)]),
            "[86400000, null, 0, -86400000, 0]",
        ),
        new(IntervalYearMonthArray::from(vec![Some(1), None, Some(-3), Some(4), Some(5)]), "[1, null, -3, 4, 5]"),
        new(
            IntervalDayTimeArray::from(vec![
                Some(IntervalDayTime::new(1, -2)),
                None,
                Some(IntervalDayTime::new(3, 4)),
                None,
                None,
            ]),
            "[[1, -2], null, [3, 4], null, null]",
        ),
        new(
            IntervalMonthDayNanoArray::from(vec![Some(IntervalMonthDayNano::new(1, -2, 3)), None, None, None, None]),
            "[[1, -2, 3], null, null, null, null]",
        ),
        new(
            FixedSizeBinaryArray::try_from_sparse_iter_with_size(
                [Some(b"abc"), None, Some(b"def"), Some(b"ghi"), Some(b"jkl")].iter().map(|v| v.map(|v| &v[..])),
                3,
            )
            .unwrap(),
            r#"["abc", null, "def", "ghi", "jkl"]"#,
        ),
        new(StringArray::from(STRINGS.to_vec()), STRINGS_JSON),
        new(LargeStringArray::from(STRINGS.to_vec()), STRINGS_JSON),
        new(StringViewArray::from(STRINGS.to_vec()), STRINGS_JSON),
        new(BinaryArray::from(bytes.clone()), STRINGS_JSON),
        new(LargeBinaryArray::from(bytes.clone()), STRINGS_JSON),
        new(BinaryViewArray::from(bytes), STRINGS_JSON),
        // Views without variadic buffers.
        new(StringViewArray::from(vec!["a", "b", "c", "d", "e"]), r#"["a", "b", "c", "d", "e"]"#),
    ];
    let small: ArrayRef = Arc::new(Int64Array::from(vec![Some(1), None, Some(3), Some(4), Some(5)]));
    for data_type in [
        DataType::Int8,
        DataType::UInt8,
        DataType::Int16,
        DataType::UInt16,
        DataType::UInt32,
        DataType::Float16,
        DataType::Float32,
    ] {
        samples.push(Sample { array: cast(&small, &data_type).unwrap(), json: "[1, null, 3, 4, 5]".into() });
    }
    let narrow = cast(&integers(), &DataType::Int32).unwrap();
    for data_type in [DataType::Date32, DataType::Time32(Second), DataType::Time32(Millisecond)] {
        samples.push(Sample { array: cast(&narrow, &data_type).unwrap(), json: "[1, null, 3, 86399, 5]".into() });
    }
    for data_type in [
        DataType::Int64,
        DataType::Time64(Microsecond),
        DataType::Time64(Nanosecond),
        DataType::Duration(Second),
        DataType::Duration(Millisecond),
        DataType::Duration(Microsecond),
        DataType::Duration(Nanosecond),
        DataType::Timestamp(Second, None),
        DataType::Timestamp(Millisecond, Some("UTC".into())),
        DataType::Timestamp(Microsecond, Some("Europe/Zurich".into())),
        DataType::Timestamp(Nanosecond, None),
    ] {
        samples.push(Sample { array: cast(&integers(), &data_type).unwrap(), json: "[1, null, 3, 86399, 5]".into() });
    }
    samples
}

fn nested() -> Vec<Sample> {
    let item = |data_type: DataType| Arc::new(Field::new("item", data_type, true));
    let strings: ArrayRef = Arc::new(StringArray::from(STRINGS.to_vec()));
    let numbers: ArrayRef = Arc::new(Int32Array::from(vec![Some(1), None, Some(3), Some(-4), Some(5)]));
    let lengths = || OffsetBuffer::from_lengths([2, 0, 1, 2, 0]);
    let lists_json = r#"[["a", null], null, [""], ["more than twelve bytes of message", "ü"], []]"#;
    let lists = ListArray::new(item(DataType::Utf8), lengths(), strings.clone(), five_nulls());
    // Out of order and overlapping.
    let (offsets, sizes) = (ScalarBuffer::from(vec![3, 0, 1, 0, 4]), ScalarBuffer::from(vec![2, 0, 1, 2, 0]));
    let wide = |numbers: &ScalarBuffer<i32>| numbers.iter().map(|number| i64::from(*number)).collect::<ScalarBuffer<i64>>();
    let views_json = r#"[["more than twelve bytes of message", "ü"], null, [null], ["a", null], []]"#;
    // The fixed names of Arrow C++.
    let names = || Some(MapFieldNames { entry: "entries".into(), key: "key".into(), value: "value".into() });
    let fixed = Int32Array::from((0..10).map(|n| (n != 1).then_some(n)).collect::<Vec<_>>());

    let fields = vec![Field::new("i", DataType::Int32, true), Field::new("s", DataType::Utf8, true)];
    let rows = StructArray::new(fields.into(), vec![numbers.clone(), strings.clone()], five_nulls());
    let rows_json = r#"[{"i": 1, "s": "a"}, null, {"i": 3, "s": ""},
        {"i": -4, "s": "more than twelve bytes of message"}, {"i": 5, "s": "ü"}]"#;

    let mut map = MapBuilder::new(names(), StringBuilder::new(), Int32Builder::new());
    for entries in [&[("a", Some(1)), ("b", None)][..], &[], &[("c", Some(3))], &[], &[("d", Some(4))]] {
        for (key, value) in entries {
            map.keys().append_value(key);
            map.values().append_option(*value);
        }
        map.append(entries.first() != Some(&("c", Some(3)))).unwrap();
    }
    let map = map.finish();
    let map_json = r#"[[["a", 1], ["b", null]], [], null, [], [["d", 4]]]"#;
    let DataType::Map(entries, _) = map.data_type().clone() else { unreachable!() };
    let sorted = MapArray::new(entries, map.offsets().clone(), map.entries().clone(), map.nulls().cloned(), true);
    let mut deep = MapBuilder::new(names(), Int16Builder::new(), ListBuilder::new(BooleanBuilder::new()));
    for row in 0..5 {
        deep.keys().append_value(row);
        deep.values().append_value([Some(true), None]);
        deep.append(true).unwrap();
    }
    let deep_json = "[[[0, [true, null]]], [[1, [true, null]]], [[2, [true, null]]], [[3, [true, null]]], [[4, [true, null]]]]";

    let members = [(0, Arc::new(Field::new("i", DataType::Int32, true))), (5, Arc::new(Field::new("s", DataType::Utf8, true)))];
    let members: UnionFields = members.into_iter().collect();
    let union_json = r#"[[0, 1], [5, "x"], [5, null], [0, -4], [5, "ü"]]"#;
    let ids = ScalarBuffer::from(vec![0i8, 5, 5, 0, 5]);
    let sparse: Vec<ArrayRef> = vec![
        Arc::new(Int32Array::from(vec![Some(1), None, None, Some(-4), None])),
        Arc::new(StringArray::from(vec![None, Some("x"), None, None, Some("ü")])),
    ];
    let dense: Vec<ArrayRef> =
        vec![Arc::new(Int32Array::from(vec![1, -4])), Arc::new(StringArray::from(vec![Some("x"), None, Some("ü")]))];
    let union_offsets = ScalarBuffer::from(vec![0, 0, 1, 1, 2]);

    vec![
        new(
            LargeListArray::new(item(DataType::Utf8), OffsetBuffer::from_lengths([2, 0, 1, 2, 0]), strings.clone(), five_nulls()),
            lists_json,
        ),
        new(ListViewArray::new(item(DataType::Utf8), offsets.clone(), sizes.clone(), strings.clone(), five_nulls()), views_json),
        new(LargeListViewArray::new(item(DataType::Utf8), wide(&offsets), wide(&sizes), strings, five_nulls()), views_json),
        new(
            FixedSizeListArray::new(item(DataType::Int32), 2, Arc::new(fixed), five_nulls()),
            "[[0, null], null, [4, 5], [6, 7], [8, 9]]",
        ),
        new(
            ListArray::new(
                item(lists.data_type().clone()),
                OffsetBuffer::from_lengths([1, 2, 0, 1, 1]),
                Arc::new(lists.clone()),
                None,
            ),
            r#"[[["a", null]], [null, [""]], [], [["more than twelve bytes of message", "ü"]], [[]]]"#,
        ),
        new(lists, lists_json),
        new(sorted, map_json),
        new(map, map_json),
        new(deep.finish(), deep_json),
        new(UnionArray::try_new(members.clone(), ids.clone(), None, sparse).unwrap(), union_json),
        new(UnionArray::try_new(members, ids, Some(union_offsets), dense).unwrap(), union_json),
        new(rows, rows_json),
    ]
}

fn encoded() -> Vec<Sample> {
    let texts = StringArray::from(vec![Some("x"), None, Some("y")]);
    let keys = Int32Array::from(vec![Some(0), None, Some(2), Some(1), Some(0)]);
    let fields = vec![Field::new("i", DataType::Int32, true), Field::new("s", DataType::Utf8View, true)];
    let columns: Vec<ArrayRef> = vec![
        Arc::new(Int32Array::from(vec![Some(1), None, Some(3)])),
        Arc::new(StringViewArray::from(vec![Some("more than twelve bytes of message"), None, Some("")])),
    ];
    let rows = StructArray::new(fields.into(), columns, None);
    let rows_json =
        r#"[0, null, 2, 1, 0]|[{"i": 1, "s": "more than twelve bytes of message"}, {"i": null, "s": null}, {"i": 3, "s": ""}]"#;
    vec![
        new(
            DictionaryArray::<Int8Type>::from_iter([Some("a"), None, Some("b"), Some("a"), Some("c")]),
            r#"[0, null, 1, 0, 2]|["a", "b", "c"]"#,
        ),
        new(
            DictionaryArray::new(UInt16Array::from(vec![2, 1, 0, 0, 1]), Arc::new(texts.clone())),
            r#"[2, 1, 0, 0, 1]|["x", null, "y"]"#,
        ),
        new(DictionaryArray::new(keys, Arc::new(rows)), rows_json),
        new(RunArray::<Int16Type>::try_new(&Int16Array::from(vec![2, 3, 6]), &texts).unwrap(), r#"[2, 3, 6]|["x", null, "y"]"#),
        new(RunArray::<Int32Type>::try_new(&Int32Array::from(vec![1, 2, 5]), &texts).unwrap(), r#"[1, 2, 5]|["x", null, "y"]"#),
        new(RunArray::<Int64Type>::try_new(&Int64Array::from(vec![2, 3, 6]), &texts).unwrap(), r#"[2, 3, 6]|["x", null, "y"]"#),
    ]
}

/// A schema with metadata on two levels, for the batches of [`batch`].
pub fn schema() -> Schema {
    let key = Field::new("key", DataType::Int64, false).with_metadata([("unit".into(), "rows".into())].into());
    let metadata = [("origin".into(), "tests".into()), ("empty".into(), String::new())];
    Schema::new_with_metadata(vec![key, Field::new("name", DataType::Utf8, true)], metadata.into())
}

/// Three rows from `start` on.
pub fn batch(start: i64) -> RecordBatch {
    let keys: ArrayRef = Arc::new(Int64Array::from(vec![start, start + 1, start + 2]));
    let names: ArrayRef =
        Arc::new(StringArray::from(vec![Some(format!("row {start}")), None, Some("a name of more than twelve bytes".into())]));
    RecordBatch::try_new(Arc::new(schema()), vec![keys, names]).unwrap()
}

pub fn batch_json(start: i64) -> String {
    format!(
        r#"[{{"key": {start}, "name": "row {start}"}}, {{"key": {}, "name": null}},
            {{"key": {}, "name": "a name of more than twelve bytes"}}]"#,
        start + 1,
        start + 2
    )
}
