// SPDX-License-Identifier: Apache-2.0
//! Fixtures of the operators' tests: a device, data with edge cases, and short expressions.
#![allow(dead_code, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::sync::{Arc, OnceLock};

use arrow::array::{ArrayRef, RecordBatch};
use arrow::compute::concat_batches;
use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use columnar::{ColumnType, DeviceBatch, download, natural_types, upload};
use device::{Context, DeviceKind, Queue, testing};
use futures::executor::block_on;
use kernels::codegen::Profile;
use kernels::expr::{Aggregate, AggregateFunction, ArithmeticOp, CompareOp, Expr, Literal, LiteralValue};
use kernels::ops::{GroupBy, Input, Options, Reduce, Select};

pub const SIZES: [usize; 5] = [0, 1, 31, 257, (1 << 17) + 1];

/// The profiles that this run tests. A GPU does not run the profile `cpu`. A run of one part of the
/// long tests has one profile.
pub fn profiles() -> impl Iterator<Item = Options> {
    let profiles = match (context().info().kind, testing::parts().unwrap().as_slice()) {
        (DeviceKind::Cpu, [part]) if part % 2 == 0 => vec![Profile::Cpu],
        (DeviceKind::Cpu, [_]) => vec![Profile::Gpu],
        (DeviceKind::Cpu, _) => vec![Profile::Cpu, Profile::Gpu],
        _ => vec![Profile::Gpu],
    };
    profiles.into_iter().map(Options::new)
}

fn context() -> &'static Context {
    static CONTEXT: OnceLock<Context> = OnceLock::new();
    CONTEXT.get_or_init(|| Context::new(testing::config().expect("a selector")).expect("a device"))
}

pub fn queue() -> Queue {
    context().queue().expect("a queue")
}

/// A queue of a context with so little memory.
pub fn queue_of_bytes(memory: usize) -> Queue {
    let config = testing::config().expect("a selector").with_memory_bytes(memory);
    Context::new(config).expect("a device").queue().expect("a queue")
}

/// A pseudorandom number per index, the same in every run.
pub fn random(index: usize, salt: u64) -> u64 {
    let mut x = (index as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ salt.wrapping_mul(0xd1b5_4a32_d192_ed03);
    x = (x ^ (x >> 31)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x ^ (x >> 29)
}

pub fn batch(columns: Vec<(&str, ArrayRef, bool)>) -> RecordBatch {
    let fields: Vec<Field> =
        columns.iter().map(|(name, array, nullable)| Field::new(*name, array.data_type().clone(), *nullable)).collect();
    let arrays = columns.into_iter().map(|(_, array, _)| array).collect();
    RecordBatch::try_new(Arc::new(Schema::new(fields)), arrays).unwrap()
}

pub fn input(schema: &SchemaRef, filter: Option<Expr>) -> Input {
    Input { schema: schema.clone(), types: natural_types(schema).unwrap(), filter }
}

pub fn up(queue: &Queue, batch: &RecordBatch, types: &[ColumnType]) -> DeviceBatch {
    upload(queue, &batch.schema(), types, std::slice::from_ref(batch)).unwrap()
}

pub fn down(queue: &Queue, batch: &DeviceBatch) -> RecordBatch {
    block_on(download(queue, batch)).unwrap()
}

pub fn try_select(
    batch: &RecordBatch,
    filter: Option<Expr>,
    outputs: &[(Expr, Field)],
    options: &Options,
) -> kernels::Result<RecordBatch> {
    let queue = queue();
    let input = input(&batch.schema(), filter);
    let types = input.types.clone();
    let select = Select::try_new(input, outputs.to_vec(), options.clone())?;
    let result = block_on(select.run(&queue, &up(&queue, batch, &types)))?;
    assert_eq!(select.output_types(), result.columns().iter().map(|column| (**column.ty()).clone()).collect::<Vec<_>>());
    Ok(down(&queue, &result))
}

pub fn select(batch: &RecordBatch, filter: Option<Expr>, outputs: &[(Expr, Field)], options: &Options) -> RecordBatch {
    try_select(batch, filter, outputs, options).unwrap()
}

pub fn try_reduce(
    schema: &SchemaRef,
    batches: &[RecordBatch],
    filter: Option<Expr>,
    aggregates: &[(Aggregate, Field)],
    options: &Options,
) -> kernels::Result<RecordBatch> {
    let queue = queue();
    let input = input(schema, filter);
    let types = input.types.clone();
    let reduce = Reduce::try_new(input, aggregates.to_vec(), options.clone())?;
    block_on(async {
        let mut state = reduce.start();
        for batch in batches {
            reduce.push(&queue, &mut state, &up(&queue, batch, &types)).await?;
        }
        let result = reduce.finish(&queue, state).await?;
        assert_eq!(reduce.output_types(), result.columns().iter().map(|column| (**column.ty()).clone()).collect::<Vec<_>>());
        Ok(download(&queue, &result).await?)
    })
}

pub fn group_with(
    input: Input,
    batches: &[RecordBatch],
    keys: &[(Expr, Field)],
    aggregates: &[(Aggregate, Field)],
    options: &Options,
) -> kernels::Result<RecordBatch> {
    let queue = queue();
    let types = input.types.clone();
    let group = GroupBy::try_new(input, keys.to_vec(), aggregates.to_vec(), options.clone())?;
    block_on(async {
        let mut state = group.start();
        for batch in batches {
            group.push(&queue, &mut state, &up(&queue, batch, &types)).await?;
        }
        let mut results = Vec::new();
        for result in group.finish(&queue, state).await? {
            assert_eq!(group.output_types(), result.columns().iter().map(|column| (**column.ty()).clone()).collect::<Vec<_>>());
            results.push(download(&queue, &result).await?);
        }
        Ok(concat_batches(group.schema(), &results).unwrap())
    })
}

pub fn col(index: usize) -> Expr {
    Expr::Column(index)
}

pub fn int(value: i128, data_type: DataType) -> Expr {
    Expr::Literal(Literal { data_type, value: LiteralValue::Int(value) })
}

pub fn compare(op: CompareOp, left: Expr, right: Expr) -> Expr {
    Expr::Compare { op, left: Arc::new(left), right: Arc::new(right) }
}

pub fn arithmetic(op: ArithmeticOp, left: Expr, right: Expr, data_type: DataType) -> Expr {
    Expr::Arithmetic { op, left: Arc::new(left), right: Arc::new(right), data_type }
}

pub fn aggregate(function: AggregateFunction, argument: Option<Expr>, data_type: DataType) -> (Aggregate, Field) {
    let field = Field::new(format!("{function:?}"), data_type.clone(), true);
    (Aggregate { function, arguments: argument.into_iter().collect(), filter: None, distinct: false, data_type }, field)
}

/// The rows as strings, for comparison without order.
pub fn rows(batch: &RecordBatch) -> Vec<String> {
    use arrow::util::display::{ArrayFormatter, FormatOptions};
    let options = FormatOptions::default().with_null("NULL");
    let formatters: Vec<_> = batch.columns().iter().map(|column| ArrayFormatter::try_new(column, &options).unwrap()).collect();
    (0..batch.num_rows())
        .map(|row| formatters.iter().map(|formatter| formatter.value(row).to_string()).collect::<Vec<_>>().join("|"))
        .collect()
}

/// A column of every kind: `n` rows, from row `first` of an endless table. Values include NULLs,
/// ties, extremes, long strings with common prefixes, bytes of 0, both zeros and NaNs.
pub fn table(first: usize, n: usize) -> RecordBatch {
    use arrow::array::*;
    use arrow::datatypes::*;
    let null = |i: usize, salt: u64| random(i, salt).is_multiple_of(5);
    let optional = |i: usize, salt: u64| (!null(i, salt)).then(|| random(i, salt + 100));
    let rows = || first..first + n;
    let long = "common beginning ".repeat(300);
    let text = |i: usize| match random(i, 1) % 40 {
        0 => long.clone(),
        1 => format!("{long}{}", random(i, 2) % 3),
        2..6 => String::new(),
        6 => "a".into(),
        7 => "a\0".into(),
        8 => "a\0\0\0\0\0\0\0\0\0".into(),
        9 => "\0".into(),
        10 => "a common prefix of many".into(),
        11..20 => format!("a common prefix of many {}", random(i, 2) % 20),
        other => format!("wörd {} {}", random(i, 3) % 1000, "y".repeat((other % 20) as usize)),
    };
    let strings: Vec<Option<String>> = rows().map(|i| (!null(i, 4)).then(|| text(i))).collect();
    let float = |x: u64| match x % 12 {
        0 => 0.0,
        1 => -0.0,
        2 => f64::NAN,
        3 => -f64::NAN,
        4 => f64::INFINITY,
        5 => f64::NEG_INFINITY,
        6 => f64::from_bits(0x7ff0_0000_0000_0001),
        7 => f64::from_bits(1),
        _ => (x >> 40) as f64 - 1e6,
    };
    let extreme = |x: u64| match x % 7 {
        0 => i64::MIN,
        1 => i64::MAX,
        2 => -1,
        3 => 0,
        _ => (x >> 8) as i64 - (1 << 54),
    };
    let terms = ["red", "green", "", "a longer colour than twelve bytes", "a longer colour than twelve", "gr\0"];
    let term = |i: usize, salt: u64| (!null(i, salt)).then(|| terms[(random(i, salt) >> 8) as usize % terms.len()]);
    let wide = |i: usize| optional(i, 20).map(|x| i128::from(extreme(x)) << (x % 60));
    let numbers: PrimitiveDictionaryBuilder<Int16Type, Int64Type> = rows().fold(Default::default(), |mut builder, i| {
        builder.append_option(optional(i, 21).map(|x| extreme(x % 60)));
        builder
    });
    let mut numbers = numbers;
    batch(vec![
        ("row", Arc::new(Int32Array::from_iter_values(rows().map(|i| i as i32))) as ArrayRef, false),
        ("i8", Arc::new(rows().map(|i| optional(i, 22).map(|x| x as i8)).collect::<Int8Array>()), true),
        ("u16", Arc::new(UInt16Array::from_iter_values(rows().map(|i| random(i, 23) as u16))), false),
        ("i32", Arc::new(rows().map(|i| optional(i, 24).map(|x| (x % 9) as i32 - 4)).collect::<Int32Array>()), true),
        ("i64", Arc::new(rows().map(|i| optional(i, 25).map(extreme)).collect::<Int64Array>()), true),
        ("u64", Arc::new(UInt64Array::from_iter_values(rows().map(|i| extreme(random(i, 26)) as u64))), false),
        ("f32", Arc::new(rows().map(|i| optional(i, 27).map(|x| float(x) as f32)).collect::<Float32Array>()), true),
        ("f64", Arc::new(rows().map(|i| optional(i, 28).map(float)).collect::<Float64Array>()), true),
        ("flag", Arc::new(rows().map(|i| optional(i, 29).map(|x| x.is_multiple_of(3))).collect::<BooleanArray>()), true),
        ("sure", Arc::new(BooleanArray::from_iter(rows().map(|i| Some(random(i, 30).is_multiple_of(2))))), false),
        ("date", Arc::new(rows().map(|i| optional(i, 31).map(|x| (x % 1000) as i32)).collect::<Date32Array>()), true),
        ("decimal", Arc::new(rows().map(wide).collect::<Decimal128Array>().with_precision_and_scale(38, 2).unwrap()), true),
        ("text", Arc::new(StringArray::from(strings.clone())), true),
        ("large", Arc::new(LargeStringArray::from_iter_values(rows().map(text))), false),
        ("view", Arc::new(StringViewArray::from_iter(strings.clone())), true),
        (
            "bytes",
            Arc::new(BinaryArray::from_iter(
                strings.iter().map(|text| text.as_ref().map(|text| &text.as_bytes()[..text.len().min(3)])),
            )),
            true,
        ),
        (
            "fixed",
            Arc::new(
                FixedSizeBinaryArray::try_from_sparse_iter_with_size(
                    rows().map(|i| optional(i, 32).map(|x| (x % 300).to_be_bytes()[3..].to_vec())),
                    5,
                )
                .unwrap(),
            ),
            true,
        ),
        ("term", Arc::new(rows().map(|i| term(i, 33)).collect::<DictionaryArray<Int8Type>>()), true),
        ("number", Arc::new(numbers.finish()), true),
        ("nothing", Arc::new(NullArray::new(n)), true),
    ])
}

/// The columns of [`table`], and lists of many types: NULL, empty, or with garbage under a NULL.
pub fn table_with_lists(first: usize, n: usize) -> RecordBatch {
    use arrow::array::{Array, FixedSizeListArray, GenericListArray, OffsetSizeTrait};
    use arrow::buffer::{NullBuffer, OffsetBuffer};
    let plain = table(first, n);
    let length = |row: usize| match random(first + row, 40) % 40 {
        0 => 33,
        length => length as usize % 4,
    };
    let total: usize = (0..n).map(length).sum();
    let elements = table(first * 7, total);
    let nulls = |salt: u64| NullBuffer::from_iter((0..n).map(|row| !random(first + row, salt).is_multiple_of(6)));
    fn lists<O: OffsetSizeTrait>(elements: &ArrayRef, lengths: &[usize], nulls: Option<NullBuffer>) -> ArrayRef {
        let field = Arc::new(Field::new("item", elements.data_type().clone(), true));
        let offsets = OffsetBuffer::<O>::from_lengths(lengths.iter().copied());
        Arc::new(GenericListArray::<O>::new(field, offsets, Arc::clone(elements), nulls))
    }
    let lengths: Vec<usize> = (0..n).map(length).collect();
    let of = |name: &str, salt: u64| lists::<i32>(elements.column_by_name(name).unwrap(), &lengths, Some(nulls(salt)));
    let texts = of("text", 41);
    let nested = lists::<i64>(&texts, &vec![1; n], Some(nulls(42)));
    let pairs = Arc::new(Field::new("item", DataType::Int64, true));
    let pairs = FixedSizeListArray::new(pairs, 2, table(first, 2 * n).column_by_name("i64").unwrap().clone(), Some(nulls(43)));
    let lists = [
        ("numbers", of("i64", 44), true),
        ("flags", of("flag", 45), true),
        ("views", of("view", 46), true),
        ("terms", of("term", 47), true),
        ("decimals", of("decimal", 48), true),
        ("nothings", of("nothing", 49), true),
        ("sure_lists", lists::<i64>(elements.column_by_name("row").unwrap(), &lengths, None), false),
        ("texts", texts, true),
        ("nested", nested, true),
        ("pairs", Arc::new(pairs) as ArrayRef, true),
    ];
    let columns = plain.schema_ref().fields().iter().zip(plain.columns());
    let columns = columns.map(|(field, column)| (field.name().as_str(), Arc::clone(column), field.is_nullable()));
    batch(columns.chain(lists).collect())
}

/// The rows of `whole` in batches of `sizes`, uploaded one by one. Every second one is a slice of a
/// longer batch.
pub fn slices(queue: &Queue, whole: &RecordBatch, sizes: &[usize], types: &[ColumnType]) -> Vec<DeviceBatch> {
    let mut at = 0;
    let slice = |(index, size): (usize, &usize)| {
        let first = at;
        at += size;
        if index % 2 == 0 {
            return up(queue, &whole.slice(first, *size), types);
        }
        let (before, after) = (first.min(13), (whole.num_rows() - first - size).min(7));
        up(queue, &whole.slice(first - before, before + size + after), types).slice(before, *size)
    };
    sizes.iter().enumerate().map(slice).collect()
}
