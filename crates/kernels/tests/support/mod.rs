// SPDX-License-Identifier: Apache-2.0
//! What the tests of the sinks share: a device, data with every hazard, and short expressions.
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

/// The shapes of kernels that the device runs: a GPU has no use for the profile `cpu`.
pub fn profiles() -> impl Iterator<Item = Options> {
    let of_host = context().info().kind == DeviceKind::Cpu;
    of_host.then_some(Profile::Cpu).into_iter().chain([Profile::Gpu]).map(Options::new)
}

fn context() -> &'static Context {
    static CONTEXT: OnceLock<Context> = OnceLock::new();
    CONTEXT.get_or_init(|| Context::new(testing::config().expect("a selector")).expect("a device"))
}

pub fn queue() -> Queue {
    context().queue().expect("a queue")
}

/// A pseudo random number for each index, the same in every run.
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
    Expr::Compare { op, left: Box::new(left), right: Box::new(right) }
}

pub fn arithmetic(op: ArithmeticOp, left: Expr, right: Expr, data_type: DataType) -> Expr {
    Expr::Arithmetic { op, left: Box::new(left), right: Box::new(right), data_type }
}

pub fn aggregate(function: AggregateFunction, argument: Option<Expr>, data_type: DataType) -> (Aggregate, Field) {
    let field = Field::new(format!("{function:?}"), data_type.clone(), true);
    (Aggregate { function, argument, filter: None, distinct: false, data_type }, field)
}

/// The rows as text, one string each, for comparison without order.
pub fn rows(batch: &RecordBatch) -> Vec<String> {
    use arrow::util::display::{ArrayFormatter, FormatOptions};
    let options = FormatOptions::default().with_null("NULL");
    let formatters: Vec<_> = batch.columns().iter().map(|column| ArrayFormatter::try_new(column, &options).unwrap()).collect();
    (0..batch.num_rows())
        .map(|row| formatters.iter().map(|formatter| formatter.value(row).to_string()).collect::<Vec<_>>().join("|"))
        .collect()
}
