// SPDX-License-Identifier: Apache-2.0
//! Sorts compared with a stable host sort of Arrow's row format, in both profiles.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod support;

use std::sync::Arc;

use arrow::array::{
    Array, ArrayRef, DictionaryArray, Int8Array, Int64Array, RecordBatch, StringArray, StringViewArray, StringViewBuilder,
    UInt32Array,
};
use arrow::compute::{SortOptions, concat_batches, take_record_batch};
use arrow::datatypes::{DataType, Field, Int8Type, Schema};
use arrow::row::{RowConverter, SortField};
use columnar::{ColumnType, DeviceBatch, ResidentBuilder, natural_types};
use device::Meter;
use futures::executor::block_on;
use kernels::Error;
use kernels::expr::{ArithmeticOp, CompareOp, Expr};
use kernels::ops::{Input, Options, Sort, SortKey};
use support::*;

/// A key: column, descending, NULLs first.
type By = (usize, bool, bool);

fn key((column, descending, nulls_first): By) -> SortKey {
    SortKey { expr: col(column), descending, nulls_first }
}

/// The rows of `batch`, sorted by the host.
fn expected(batch: &RecordBatch, by: &[By], fetch: Option<usize>) -> RecordBatch {
    let options = |(_, descending, nulls_first): &By| SortOptions { descending: *descending, nulls_first: *nulls_first };
    let fields = by.iter().map(|by| SortField::new_with_options(batch.column(by.0).data_type().clone(), options(by)));
    let columns: Vec<ArrayRef> = by.iter().map(|by| batch.column(by.0).clone()).collect();
    let mut order: Vec<u32> = (0..batch.num_rows() as u32).collect();
    if !by.is_empty() {
        let rows = RowConverter::new(fields.collect()).unwrap().convert_columns(&columns).unwrap();
        order.sort_by(|a, b| rows.row(*a as usize).cmp(&rows.row(*b as usize)));
    }
    order.truncate(fetch.unwrap_or(usize::MAX));
    take_record_batch(batch, &UInt32Array::from(order)).unwrap()
}

fn everything(batch: &RecordBatch) -> Vec<(Expr, Field)> {
    batch.schema().fields().iter().enumerate().map(|(index, field)| (col(index), (**field).clone())).collect()
}

fn run(sort: &Sort, batches: &[DeviceBatch]) -> kernels::Result<RecordBatch> {
    let queue = queue();
    block_on(async {
        let mut state = sort.start();
        for batch in batches {
            sort.push(&queue, &mut state, batch).await?;
        }
        let mut results = vec![];
        for result in sort.finish(&queue, state).await? {
            assert_eq!(sort.output_types(), result.columns().iter().map(|column| (**column.ty()).clone()).collect::<Vec<_>>());
            results.push(columnar::download(&queue, &result).await?);
        }
        Ok(concat_batches(sort.schema(), &results).unwrap())
    })
}

#[track_caller]
fn check_with(
    whole: &RecordBatch,
    types: &[ColumnType],
    batches: &[DeviceBatch],
    by: &[By],
    fetch: Option<usize>,
    options: &Options,
) {
    let input = Input { schema: whole.schema(), types: types.to_vec(), filter: None };
    let keys = by.iter().copied().map(key).collect();
    // The first column distinguishes tied rows.
    let mut columns = vec![0];
    columns.extend(by.iter().map(|by| by.0));
    let outputs = columns.iter().map(|column| everything(whole)[*column].clone()).collect();
    let sort = Sort::try_new(input, keys, outputs, fetch, options.clone()).unwrap();
    let actual = rows(&run(&sort, batches).unwrap());
    let wanted = rows(&expected(whole, by, fetch).project(&columns).unwrap());
    if let Some(at) = (0..wanted.len().max(actual.len())).find(|at| actual.get(*at) != wanted.get(*at)) {
        let short =
            |rows: &[String]| rows.iter().skip(at).take(3).map(|row| row.chars().take(300).collect()).collect::<Vec<String>>();
        panic!(
            "by {by:?}, fetch {fetch:?}, {:?}: row {at} of {} is\n{:#?}\nshould be\n{:#?}",
            options.profile,
            wanted.len(),
            short(&actual),
            short(&wanted)
        );
    }
}

#[track_caller]
fn check(whole: &RecordBatch, sizes: &[usize], by: &[By], fetch: Option<usize>, options: &Options) {
    let types = natural_types(&whole.schema()).unwrap();
    let batches = slices(&queue(), whole, sizes, &types);
    let total = sizes.iter().sum();
    check_with(&whole.slice(0, total), &types, &batches, by, fetch, options);
}

/// Options that sort few rows by one kernel, and others to sort them as many.
fn few_and_many(options: Options) -> [Options; 2] {
    [options.clone(), options.with_threshold_divisor(1 << 10)]
}

#[test]
fn every_type_in_every_direction() {
    device::skip_unless_turn!(6);
    let whole = table(0, 900);
    for options in profiles().flat_map(few_and_many) {
        for column in 0..whole.num_columns() {
            for (descending, nulls_first) in [(false, false), (false, true), (true, false), (true, true)] {
                check(&whole, &[31, 257, 0, 600], &[(column, descending, nulls_first)], None, &options);
            }
        }
    }
}

#[test]
fn sizes_of_all_kinds() {
    let whole = table(0, SIZES[4]);
    let column = |name: &str| whole.schema().index_of(name).unwrap();
    let by = [(column("text"), false, true), (column("i32"), true, false)];
    for options in profiles() {
        for n in SIZES {
            check(&whole, &[n], &by, None, &options);
        }
        check(&whole, &[40_000, 1, 60_000], &[(column("f64"), true, false)], None, &options);
    }
}

#[test]
fn random_keys() {
    let seed = rand::random::<u64>();
    println!("seed {seed}");
    let whole = table(0, 3000);
    for round in 0..12 {
        let random = |index: usize| random(index, seed ^ (round + 1));
        let count = 2 + random(0) as usize % 4;
        let by: Vec<By> = (0..count)
            .map(|at| {
                (1 + random(at + 1) as usize % (whole.num_columns() - 1), random(at + 20) % 2 == 0, random(at + 40) % 2 == 0)
            })
            .collect();
        let fetch = [None, Some(0), Some(1), Some(100), Some(5000)][random(100) as usize % 5];
        let first = random(101) as usize % 2000;
        for options in profiles() {
            check(&whole, &[first, 500, 3, 497], &by, fetch, &options);
        }
    }
}

#[test]
fn sorts_without_a_key_keep_the_order() {
    let whole = table(0, 300);
    for options in profiles() {
        check(&whole, &[100, 200], &[], None, &options);
        check(&whole, &[100, 200], &[], Some(150), &options);
        check(&whole, &[100, 200], &[(whole.num_columns() - 1, false, false)], None, &options);
    }
}

/// More rows than the retained ones, so that thresholds apply.
#[test]
fn fetch_of_many_rows() {
    device::skip_unless_turn!(7);
    let n = 200_000;
    let key = |i: usize| (!random(i, 1).is_multiple_of(1000)).then(|| random(i, 2) as i64 >> 8);
    let few = |i: usize| (random(i, 3) % 3) as i64;
    let text = |i: usize| format!("{}{}", ["", "common beginning ", "zz"][(random(i, 4) % 3) as usize], random(i, 5) % 100_000);
    let beginning = "common ".repeat(40);
    let long = |i: usize| match random(i, 6) % 50 {
        0 => None,
        1 => Some(beginning[..random(i, 7) as usize % 20].to_owned()),
        end => Some(format!("{beginning}{end}")),
    };
    let whole = batch(vec![
        ("row", Arc::new(Int64Array::from_iter_values(0..n as i64)) as ArrayRef, false),
        ("key", Arc::new((0..n).map(key).collect::<Int64Array>()), true),
        ("few", Arc::new((0..n).map(few).collect::<Int64Array>()), false),
        ("text", Arc::new(StringViewArray::from_iter_values((0..n).map(text))), false),
        ("rising", Arc::new(Int64Array::from_iter_values((0..n as i64).map(|i| i / 5))), false),
        ("long", Arc::new((0..n).map(long).collect::<StringArray>()), true),
    ]);
    for options in profiles() {
        let keys: [&[By]; 9] = [
            &[(1, false, false)],
            &[(1, true, true)],
            &[(2, false, false)],
            &[(2, true, false), (3, false, false)],
            &[(3, true, false)],
            &[(5, false, false)],
            &[(5, true, true), (1, false, false)],
            &[(4, true, false)],
            &[(1, false, true), (2, false, false)],
        ];
        for by in keys {
            for fetch in [1, 300] {
                check(&whole, &[90_000, 10, 109_990], by, Some(fetch), &options);
            }
        }
        check(&whole, &[90_000, 110_000], &[(1, false, false)], Some(40_000), &options);
        check(&whole, &[90_000, 110_000], &[(1, false, false)], Some(70_000), &options);
    }
}

#[test]
fn sorted_input_keeps_its_order() {
    let n = 5000;
    let whole = batch(vec![
        ("row", Arc::new(Int64Array::from_iter_values(0..n)) as ArrayRef, false),
        ("rising", Arc::new(Int64Array::from_iter_values((0..n).map(|i| i / 7))), false),
        // A single row is out of order, also at the ends of tiles and runs.
        ("almost", Arc::new(Int64Array::from_iter_values((0..n).map(|i| if i == 4096 { 0 } else { i }))), false),
        ("last", Arc::new(Int64Array::from_iter_values((0..n).map(|i| if i == n - 1 { 0 } else { i }))), false),
    ]);
    for options in profiles() {
        for column in 1..4 {
            check(&whole, &[n as usize], &[(column, false, false)], None, &options);
            check(&whole, &[n as usize], &[(column, true, false)], None, &options);
        }
    }
}

#[test]
fn strings_that_differ_late_or_in_zeros() {
    let mut terms: Vec<String> = vec![];
    for length in 0..20 {
        terms.extend(["a", "\0", "\u{7f}", "ü"].map(|byte| byte.repeat(length)));
        terms.push(format!("{}\0", "a".repeat(length)));
        terms.push(format!("{}b", "a".repeat(length)));
    }
    terms.extend((0..5).map(|end| format!("{}{end}", "long ".repeat(2000))));
    let n = 3000;
    let values: Vec<Option<&str>> =
        (0..n).map(|i| (!random(i, 1).is_multiple_of(9)).then(|| terms[random(i, 2) as usize % terms.len()].as_str())).collect();
    let whole = batch(vec![
        ("row", Arc::new(Int64Array::from_iter_values(0..n as i64)) as ArrayRef, false),
        ("text", Arc::new(StringArray::from(values.clone())), true),
        ("view", Arc::new(StringViewArray::from(values)), true),
    ]);
    for options in profiles() {
        for column in [1, 2] {
            check(&whole, &[1000, 2000], &[(column, false, false)], None, &options);
            check(&whole, &[1000, 2000], &[(column, true, false)], Some(77), &options);
        }
    }
}

/// Few rows are sorted by counting: up to 256 of them on CPUs, 1024 on GPUs.
#[test]
fn few_strings_sort_as_many_do() {
    for n in [0, 1, 2, 128, 129, 256, 257, 512, 513, 1024, 1025] {
        let term = |i: usize| format!("{}{}", "\0".repeat(i % 3), random(i, 3) % (n as u64 / 2 + 1));
        let values: Vec<Option<String>> = (0..n).map(|i| (i % 7 != 3).then(|| term(i))).collect();
        let whole = batch(vec![
            ("row", Arc::new(Int64Array::from_iter_values(0..n as i64)) as ArrayRef, false),
            ("text", Arc::new(values.iter().map(Option::as_deref).collect::<StringArray>()), true),
            ("view", Arc::new(values.iter().map(Option::as_deref).collect::<StringViewArray>()), true),
            ("term", Arc::new(StringArray::from_iter_values((0..n).map(term))), false),
        ]);
        for options in profiles().flat_map(few_and_many) {
            for column in 1..4 {
                check(&whole, &[n], &[(column, false, true)], None, &options);
                check(&whole, &[n], &[(column, true, false)], None, &options);
            }
        }
    }
}

#[test]
fn few_strings_sort_without_a_wait() {
    let whole =
        batch(vec![("term", Arc::new(StringArray::from_iter_values((0..100).map(|i| format!("{}", i % 9)))) as _, false)]);
    let types = natural_types(&whole.schema()).unwrap();
    for options in profiles() {
        let queue = queue();
        let given = up(&queue, &whole, &types);
        let meter = Arc::new(Meter::default());
        let metered = queue.metered(&meter);
        let input = Input { schema: whole.schema(), types: types.clone(), filter: None };
        let sort = Sort::try_new(input, vec![key((0, false, false))], everything(&whole), None, options).unwrap();
        block_on(async {
            let mut state = sort.start();
            sort.push(&metered, &mut state, &given).await.unwrap();
            sort.finish(&metered, state).await.unwrap();
        });
        assert!(meter.launches() > 0);
        // The heap of the gathered strings.
        assert_eq!(meter.waits(), 1);
        // A kernel compiled during the end of the process may miss objects of LLVM, whose exit
        // handlers run before ours.
        block_on(queue.finish()).unwrap();
    }
}

/// A kernel keeps the keys of two rows in registers.
#[test]
fn many_keys_are_not_compared_by_one_kernel() {
    for (keys, is_few) in [(16, true), (17, false)] {
        let names: Vec<String> = (0..keys).map(|key| format!("k{key}")).collect();
        let column = || Arc::new(Int64Array::from(vec![Some(2), None, Some(1)])) as _;
        let whole = batch(names.iter().map(|name| (name.as_str(), column(), true)).collect());
        let input = Input { schema: whole.schema(), types: natural_types(&whole.schema()).unwrap(), filter: None };
        let keys = (0..keys).map(|column| key((column, false, false))).collect();
        let options = profiles().last().unwrap();
        let sort = Sort::try_new(input, keys, everything(&whole), None, options).unwrap();
        assert_eq!(sort.kernel_source().iter().any(|(name, _)| name == "sort_few"), is_few);
    }
}

/// Rows may share one string, which pairs of rows would read again and again.
#[test]
fn a_long_string_of_all_rows_is_not_compared_in_pairs() {
    let long = "x".repeat(60_000);
    for (rows, is_few) in [(10, true), (200, false)] {
        let row: ArrayRef = Arc::new(Int64Array::from_iter_values(0..rows));
        let mut views = StringViewBuilder::new();
        let block = views.append_block(long.as_bytes().into());
        (0..rows).for_each(|row| views.try_append_view(block, 0, 60_000 - (row % 3) as u32).unwrap());
        let keys = Int8Array::from_iter_values((0..rows).map(|row| (row % 2) as i8));
        let terms = StringArray::from_iter_values([&long[1..], &long[..]]);
        let coded: ArrayRef = Arc::new(DictionaryArray::<Int8Type>::new(keys, Arc::new(terms)));
        let whole = batch(vec![("row", row, false), ("view", Arc::new(views.finish()), false), ("coded", coded, false)]);
        let types = natural_types(&whole.schema()).unwrap();
        for options in profiles() {
            for column in 1..3 {
                let queue = queue();
                let meter = Arc::new(Meter::default());
                let input = Input { schema: whole.schema(), types: types.clone(), filter: None };
                let sort = Sort::try_new(input, vec![key((column, true, false))], everything(&whole), None, options.clone());
                let sort = sort.unwrap();
                block_on(async {
                    let (metered, mut state) = (queue.metered(&meter), sort.start());
                    sort.push(&metered, &mut state, &up(&queue, &whole, &types)).await.unwrap();
                    let sorted = sort.finish(&metered, state).await.unwrap();
                    let sorted = columnar::download(&queue, &sorted[0]).await.unwrap();
                    let wanted = expected(&whole, &[(column, true, false)], None);
                    assert_eq!(support::rows(&sorted), support::rows(&wanted));
                    queue.finish().await.unwrap();
                });
                assert_eq!(meter.kernels().contains_key("sort_few"), is_few, "{rows} rows, column {column}");
            }
        }
    }
}

/// Runs of all columns, each cut into two blocks, are merged in steps: up to the end of each block.
#[test]
fn runs_merge_in_steps() {
    let whole = table(0, 1000);
    let types = natural_types(&whole.schema()).unwrap();
    let queue = queue();
    for options in profiles() {
        for (column, descending, nulls_first) in (0..whole.num_columns()).map(|column| (column, column % 2 == 0, column % 3 == 0))
        {
            let by = [(column, descending, nulls_first), (0, false, false)];
            let input = Input { schema: whole.schema(), types: types.clone(), filter: None };
            let keys = by.iter().copied().map(key).collect();
            let sort = Sort::try_new(input, keys, vec![everything(&whole)[0].clone()], None, options.clone()).unwrap();
            let Some(merge) = sort.merge().unwrap() else { panic!("no merge by column {column}") };
            let mut blocks = vec![];
            for batch in slices(&queue, &whole, &[300, 1, 699], &types) {
                let mut state = sort.start();
                block_on(sort.push(&queue, &mut state, &batch)).unwrap();
                assert_eq!(state.num_rows(), batch.num_rows());
                let run = block_on(sort.finish_run(&queue, state)).unwrap().unwrap();
                blocks.extend(run.chunks(run.num_rows().div_ceil(2)));
            }
            // The order of the blocks' last rows.
            let last_rows: Vec<DeviceBatch> = blocks.iter().map(|block| block.slice(block.num_rows() - 1, 1)).collect();
            let order = block_on(merge.order(&queue, last_rows)).unwrap();
            let mut parts = vec![];
            for (step, last) in order.iter().enumerate() {
                let until = (step + 1 < order.len()).then_some(*last as usize);
                let merged = block_on(merge.merge(&queue, &blocks, until)).unwrap();
                assert_eq!(merged.taken.iter().sum::<usize>(), merged.rows.num_rows());
                for (block, taken) in blocks.iter_mut().zip(&merged.taken) {
                    *block = block.slice(*taken, block.num_rows());
                }
                assert_eq!(blocks[*last as usize].num_rows(), 0);
                let outputs = sort.outputs(&merged.rows).unwrap();
                parts.push(block_on(columnar::download(&queue, &outputs)).unwrap());
            }
            let actual = rows(&concat_batches(sort.schema(), &parts).unwrap());
            assert_eq!(actual, rows(&expected(&whole, &by, None).project(&[0]).unwrap()), "{column}");
        }
    }
}

/// The number of rounds depends on the number of strings, not on their length.
#[test]
fn long_strings_take_few_rounds() {
    let beginning = "ab".repeat(1_500_000);
    let ends = ["7", "", "3", "1", "7", "2", "30", "x"];
    let terms: Vec<String> = ends.iter().map(|end| format!("{beginning}{end}")).chain(["ab".into(), "b".into()]).collect();
    let numbers = Int64Array::from_iter_values(0..terms.len() as i64);
    let texts: [ArrayRef; 2] =
        [Arc::new(StringArray::from_iter_values(&terms)), Arc::new(StringViewArray::from_iter_values(&terms))];
    for (text, options) in texts.iter().flat_map(|text| profiles().map(move |options| (text, options))) {
        let whole = batch(vec![("row", Arc::new(numbers.clone()) as ArrayRef, false), ("text", Arc::clone(text), false)]);
        let queue = queue();
        let before = queue.context().counters().launches;
        check(&whole, &[4, 6], &[(1, true, false)], None, &options);
        let launches = queue.context().counters().launches - before;
        // Other tests may launch kernels as well; a round per seven bytes would be 400,000.
        assert!(launches < 100_000, "{launches} launches");
    }
}

#[test]
fn dictionaries_sort_by_value() {
    let queue = queue();
    // A resident table's dictionary grows with each batch.
    let terms: StringArray = (0..5000).map(|i| (i % 11 != 0).then(|| format!("term {}", (i * 7919) % (i / 10 + 1)))).collect();
    let row: ArrayRef = Arc::new(Int64Array::from_iter_values(0..5000));
    let whole = batch(vec![("row", row, false), ("term", Arc::new(terms) as ArrayRef, true)]);
    let mut builder = ResidentBuilder::try_new(&queue, &whole.schema()).unwrap().with_batch_rows(700);
    builder.push(whole.clone()).unwrap();
    let resident = block_on(builder.finish()).unwrap();
    for options in profiles() {
        for fetch in [None, Some(50)] {
            check_with(&whole, &resident.types, &resident.batches, &[(1, true, true)], fetch, &options);
        }
    }
    // Unrelated dictionaries. All of their values have keys of eight bits: arrow may repeat some.
    let terms = |first: usize| -> DictionaryArray<Int8Type> {
        let terms: Vec<String> = (first..first + 100).map(|i| format!("value {}", (i * 17) % 30)).collect();
        terms.iter().map(|term| Some(term.as_str())).collect()
    };
    let parts: Vec<RecordBatch> = (0..4).map(|at| batch(vec![("term", Arc::new(terms(at * 100)) as ArrayRef, true)])).collect();
    let types = natural_types(&parts[0].schema()).unwrap();
    let batches: Vec<DeviceBatch> = parts.iter().map(|part| up(&queue, part, &types)).collect();
    let whole = concat_batches(&parts[0].schema(), &parts).unwrap();
    for options in profiles() {
        check_with(&whole, &types, &batches, &[(0, false, false)], None, &options);
    }
}

#[test]
fn filter_projection_and_computed_keys() {
    let whole = table(0, 2000);
    let n = whole.schema().index_of("u16").unwrap();
    let small = int(30_000, DataType::UInt16);
    let sum = arithmetic(ArithmeticOp::BitXor, col(n), int(0x5555, DataType::UInt16), DataType::UInt16);
    let outputs =
        [(col(0), Field::new("row", DataType::Int32, false)), (sum.clone(), Field::new("sum", DataType::UInt16, false))];
    for options in profiles() {
        for (outputs, expr) in [(&outputs[..1], sum.clone()), (&outputs[..], sum.clone()), (&outputs[..], col(n))] {
            let input = input(&whole.schema(), Some(compare(CompareOp::Lt, col(n), small.clone())));
            let types = input.types.clone();
            let keys = vec![SortKey { expr: expr.clone(), descending: true, nulls_first: false }];
            let sort = Sort::try_new(input, keys, outputs.to_vec(), None, options.clone()).unwrap();
            let actual = run(&sort, &slices(&queue(), &whole, &[700, 1300], &types)).unwrap();
            let values = whole.column(n).to_data();
            let values = values.buffers()[0].typed_data::<u16>();
            let mut wanted: Vec<usize> = (0..2000).filter(|row| values[*row] < 30_000).collect();
            wanted.sort_by_key(|row| std::cmp::Reverse(if expr == sum { values[*row] ^ 0x5555 } else { values[*row] }));
            let column = actual.column(0).to_data();
            assert_eq!(column.buffers()[0].typed_data::<i32>(), wanted.iter().map(|row| *row as i32).collect::<Vec<_>>());
            assert_eq!(actual.num_columns(), outputs.len());
        }
    }
}

#[test]
fn bounds_narrow_the_packed_keys() {
    let n = 5000;
    let value = |i: usize, salt: u64| (!random(i, salt).is_multiple_of(7)).then(|| (random(i, salt) % 16) as i64 - 8);
    let schema = Schema::new((0..3).map(|at| Field::new(format!("c{at}"), DataType::Int64, true)).collect::<Vec<_>>());
    let columns = (0..3).map(|at| Arc::new((0..n).map(|i| value(i, at)).collect::<Int64Array>()) as ArrayRef);
    let whole = RecordBatch::try_new(Arc::new(schema), columns.collect()).unwrap();
    let mut types = natural_types(&whole.schema()).unwrap();
    types[..2].iter_mut().for_each(|ty| ty.bounds = Some((-8, 7)));
    for options in profiles() {
        let batches = slices(&queue(), &whole, &[2000, 3000], &types);
        for fetch in [None, Some(10)] {
            check_with(&whole, &types, &batches, &[(0, true, true), (1, false, false), (2, true, false)], fetch, &options);
        }
    }
}

#[test]
fn failing_rows_are_reported() {
    let whole = batch(vec![("x", Arc::new(Int64Array::from_iter_values((0..1000).map(|i| i - 700))) as ArrayRef, false)]);
    let quotient = arithmetic(ArithmeticOp::Divide, int(1, DataType::Int64), col(0), DataType::Int64);
    for options in profiles() {
        let input = input(&whole.schema(), None);
        let batches = [up(&queue(), &whole, &input.types)];
        let keys = vec![SortKey { expr: quotient.clone(), descending: false, nulls_first: false }];
        let sort = Sort::try_new(input, keys, everything(&whole), None, options).unwrap();
        assert!(matches!(run(&sort, &batches), Err(Error::Row { row: 700 })));
    }
}

/// Prints rows per second: `cargo test --release -p kernels --test sort -- --ignored --nocapture`.
#[test]
#[ignore = "measures"]
fn speed() {
    let n = 16 << 20;
    let queue = queue();
    let text = |i: usize| format!("{}{}", ["customer", "supplier"][(random(i, 4) % 2) as usize], random(i, 5) % 1_000_000);
    let whole = batch(vec![
        ("row", Arc::new(Int64Array::from_iter_values(0..n as i64)) as ArrayRef, false),
        ("key", Arc::new(Int64Array::from_iter_values((0..n).map(|i| random(i, 2) as i64))), false),
        ("small", Arc::new(Int64Array::from_iter_values((0..n).map(|i| (random(i, 3) % 1_000_000) as i64))), false),
        ("text", Arc::new(StringViewArray::from_iter_values((0..n).map(text))), false),
    ]);
    let types = natural_types(&whole.schema()).unwrap();
    let device = up(&queue, &whole, &types);
    let cases: [(&str, &[By], Option<usize>); 6] = [
        ("random i64", &[(1, false, false)], None),
        ("i64 below a million", &[(2, false, false)], None),
        ("two i64", &[(2, false, false), (1, true, false)], None),
        ("text", &[(3, false, false)], None),
        ("first 10 by i64", &[(1, false, false)], Some(10)),
        ("first 10 by text", &[(3, false, false)], Some(10)),
    ];
    for (options, few) in profiles().flat_map(|options| [(options.clone(), false), (options, true)]) {
        let n = if few { 500 } else { n };
        for (name, by, fetch) in cases {
            let input = Input { schema: whole.schema(), types: types.clone(), filter: None };
            let keys = by.iter().copied().map(key).collect();
            let sort = Sort::try_new(input, keys, everything(&whole)[..2].to_vec(), fetch, options.clone()).unwrap();
            let best = (0..if few { 50 } else { 3 }).map(|_| {
                let start = std::time::Instant::now();
                block_on(async {
                    let mut state = sort.start();
                    for slice in device.slice(0, n).chunks(8 << 20) {
                        sort.push(&queue, &mut state, &slice).await.unwrap();
                    }
                    sort.finish(&queue, state).await.unwrap();
                    queue.finish().await.unwrap();
                });
                start.elapsed()
            });
            let best = best.min().unwrap();
            println!("{:?} {name}, {n} rows: {best:?}, {:.1} M rows/s", options.profile, n as f64 / best.as_secs_f64() / 1e6);
        }
    }
}
