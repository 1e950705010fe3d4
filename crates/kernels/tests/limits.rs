// SPDX-License-Identifier: Apache-2.0
//! Limits of operators: more rows than they number, over columns of type Null without memory, and
//! more arguments than a kernel takes.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod support;

use std::sync::Arc;

use arrow::array::{Int64Array, NullArray};
use arrow::datatypes::{DataType, Field, SchemaRef};
use columnar::{ColumnType, DeviceBatch, DeviceColumn};
use futures::executor::block_on;
use kernels::Error;
use kernels::codegen::Profile;
use kernels::expr::{AggregateFunction, ArithmeticOp, CompareOp, Expr};
use kernels::ops::{
    Concat, Frame, Join, JoinBuild, JoinKind, JoinRole, Options, Select, Sort, SortKey, Window, WindowCall, WindowFunction,
};
use support::*;

fn schema() -> SchemaRef {
    batch(vec![("n", Arc::new(NullArray::new(0)), true)]).schema()
}

fn nulls(rows: usize) -> DeviceBatch {
    let ty = Arc::new(ColumnType::of(&DataType::Null, true).unwrap());
    let column = DeviceColumn::try_new(ty, rows, vec![], None, None, None).unwrap();
    DeviceBatch::try_new(schema(), vec![column], rows).unwrap()
}

#[track_caller]
fn refused<T>(result: kernels::Result<T>, message: &str) {
    match result {
        Err(Error::Unsupported(said)) => assert_eq!(said, message),
        Err(other) => panic!("{other}"),
        Ok(_) => panic!("not refused"),
    }
}

/// Whether a program has this text.
fn has_text(select: &Select, text: &str) -> bool {
    select.programs().iter().any(|program| program.source.contains(text))
}

#[test]
fn sorts_take_at_most_31_bits_of_rows() {
    let queue = queue();
    for options in profiles() {
        let by = vec![SortKey { expr: col(0), descending: false, nulls_first: true }];
        let outputs = vec![(col(0), Field::new("n", DataType::Null, true))];
        let sort = Sort::try_new(input(&schema(), None), by, outputs, None, options).unwrap();
        let mut state = sort.start();
        block_on(sort.push(&queue, &mut state, &nulls((1 << 31) - 1))).unwrap();
        let more = block_on(sort.push(&queue, &mut state, &nulls(1)));
        refused(more, "Sort: 2147483648 rows in one batch, the limit is 2147483647");
    }
}

#[test]
fn windows_take_at_most_31_bits_of_rows() {
    let queue = queue();
    for options in profiles() {
        let number = WindowCall { function: WindowFunction::RowNumber, frame: Frame::RUNNING };
        let functions = vec![(number, Field::new("number", DataType::UInt64, false))];
        let outputs = vec![(col(0), Field::new("n", DataType::Null, true))];
        let window = Window::try_new(input(&schema(), None), vec![], vec![], outputs, functions, options).unwrap();
        let mut state = window.start();
        block_on(window.push(&queue, &mut state, &nulls((1 << 31) - 1))).unwrap();
        let more = block_on(window.push(&queue, &mut state, &nulls(1)));
        refused(more, "Window: 2147483648 rows in one batch, the limit is 2147483647");
    }
}

#[test]
fn concatenations_take_at_most_31_bits_of_rows() {
    let queue = queue();
    let options = profiles().next().unwrap();
    let concat = Concat::try_new(schema(), input(&schema(), None).types, options).unwrap();
    let most = block_on(concat.run(&queue, vec![nulls(1 << 30), nulls((1 << 30) - 1)])).unwrap();
    assert_eq!(most.map(|batch| batch.num_rows()), Some((1 << 31) - 1));
    let more = block_on(concat.run(&queue, vec![nulls(1 << 30), nulls(1 << 30)]));
    refused(more, "Concat: 2147483648 rows in one batch, the limit is 2147483647");
}

#[test]
fn build_sides_take_at_most_30_bits_of_rows() {
    let queue = queue();
    let join = Join {
        kind: JoinKind::Inner,
        keys: vec![],
        null_equals_null: false,
        null_aware: false,
        residual: None,
        schema: schema(),
        types: input(&schema(), None).types,
        role: JoinRole::Query,
    };
    for options in profiles() {
        let build = JoinBuild::try_new(&join.types, &[], &join, options).unwrap();
        assert_eq!(block_on(build.build(&queue, Some(nulls(1 << 30)))).unwrap().num_rows(), 1 << 30);
        let more = block_on(build.build(&queue, Some(nulls((1 << 30) + 1))));
        refused(
            more,
            "a build side of 1073741825 rows is over the limit of 1073741824; filter it, or let the other side be built",
        );
    }
}

/// 16 bytes of arguments pass the address of a table, which has the others, and one more.
#[test]
fn arguments_beyond_the_limit_are_read_from_memory() {
    let rows_of = table(0, 1000);
    let schema = rows_of.schema();
    let outputs: Vec<_> = schema.fields().iter().enumerate().map(|(index, field)| (col(index), Field::clone(field))).collect();
    let numbers: Vec<usize> = (0..outputs.len()).filter(|index| outputs[*index].1.data_type() == &DataType::Int64).collect();
    let filter = compare(CompareOp::NotEq, col(numbers[0]), int(7, DataType::Int64));
    let key = (col(numbers[0]), outputs[numbers[0]].1.clone().with_nullable(true));
    let aggregates: Vec<_> = numbers
        .iter()
        .flat_map(|index| {
            [AggregateFunction::Min, AggregateFunction::Max]
                .map(|function| aggregate(function, Some(col(*index)), DataType::Int64))
        })
        .collect();
    for options in profiles() {
        let few = Options { max_arg_bytes: 16, ..options.clone() };
        let few_passed = Select::try_new(input(&schema, Some(filter.clone())), outputs.clone(), few.clone()).unwrap();
        assert!(has_text(&few_passed, "args[0]"), "{:?}", few_passed.programs());
        let [all, with_table] = [&options, &few].map(|options| rows(&select(&rows_of, Some(filter.clone()), &outputs, options)));
        assert_eq!(all, with_table);
        let [mut all, mut with_table] = [&options, &few].map(|options| {
            let batches = std::slice::from_ref(&rows_of);
            let keys = std::slice::from_ref(&key);
            rows(&group_with(input(&schema, Some(filter.clone())), batches, keys, &aggregates, options).unwrap())
        });
        all.sort_unstable();
        with_table.sort_unstable();
        assert_eq!(all, with_table);
    }
}

/// The stack grows with an expression that is checked and written.
#[test]
fn deep_expressions_need_no_deep_stack() {
    let schema = batch(vec![("n", Arc::new(Int64Array::from(vec![1, 2, 3])), true)]).schema();
    let add = |sum, term| arithmetic(ArithmeticOp::Add, sum, int(term, DataType::Int64), DataType::Int64);
    let is = |term| compare(CompareOp::Eq, col(0), int(term, DataType::Int64));
    let branches = (0..190).map(|branch| (is(branch), int(branch + 1, DataType::Int64))).collect();
    let long_case = Expr::Case { branches, otherwise: None, data_type: DataType::Int64 };
    let generate = move || {
        // The branches begin at any distance from the end of the stack.
        for (base, terms) in [(col(0), 400), (long_case.clone(), 0), (long_case.clone(), 130), (long_case, 300)] {
            let deep = (0..terms).fold(base, add);
            kernels::support::supports(&deep, &schema).unwrap();
            assert_eq!(deep.data_type(&schema).unwrap(), DataType::Int64);
            let field = Field::new("sum", DataType::Int64, true);
            let select = Select::try_new(input(&schema, None), vec![(deep, field)], Options::new(Profile::Gpu)).unwrap();
            assert!(has_text(&select, "select_write0"));
        }
    };
    std::thread::Builder::new().stack_size(512 << 10).spawn(generate).unwrap().join().unwrap();
}
