// SPDX-License-Identifier: Apache-2.0
//! Joins of every kind compared with nested loops in plain Rust, in both profiles.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod little_memory;
#[path = "../support/mod.rs"]
mod support;

use std::collections::HashMap;
use std::sync::Arc;

use arrow::array::{
    Array, ArrayRef, AsArray, BooleanArray, Decimal128Array, DictionaryArray, Float64Array, Int32Array, Int64Array, ListArray,
    RecordBatch, StringArray, StringViewArray, UInt64Array,
};
use arrow::compute::take_record_batch;
use arrow::datatypes::{DataType, Field, Int16Type, Int64Type, Schema};
use arrow::util::display::{ArrayFormatter, FormatOptions};
use columnar::{DeviceBatch, natural_types};
use device::Queue;
use futures::future::try_join_all;
use kernels::expr::{CompareOp, Expr, Literal, LiteralValue};
use kernels::ops::{
    BloomFilterUse, ChainState, Concat, HashPartition, Input, Join, JoinBuild, JoinChain, JoinKind, JoinRole, JoinTable, Options,
    ProbeSideFacts, VisitedBitmap,
};
use support::*;

const KINDS: [JoinKind; 10] = [
    JoinKind::Inner,
    JoinKind::Left,
    JoinKind::Right,
    JoinKind::Full,
    JoinKind::LeftSemi,
    JoinKind::LeftAnti,
    JoinKind::LeftMark,
    JoinKind::RightSemi,
    JoinKind::RightAnti,
    JoinKind::RightMark,
];

/// Sides of `n` rows with keys of many types, each of about `distinct` values. A row number and a
/// list are payload columns.
fn side(n: usize, distinct: u64, salt: u64) -> RecordBatch {
    let value = |i: usize, column: u64| random(i, salt * 100 + column) % distinct.max(1);
    let null = |i: usize, column: u64| random(i, salt * 1000 + column).is_multiple_of(7);
    let some = |i: usize, column: u64| (!null(i, column)).then(|| value(i, column));
    let text = |number: u64| match number % 3 {
        0 => String::new(),
        1 => format!("né{number}"),
        _ => format!("a key of more than twelve bytes, {number}"),
    };
    let texts: Vec<Option<String>> = (0..n).map(|i| some(i, 5).map(text)).collect();
    let dictionary: DictionaryArray<Int16Type> = texts.iter().map(|text| text.as_deref()).collect();
    let list = |i: usize| some(i, 8).map(|v| (0..v % 4).map(|at| some(i + at as usize, 9).map(|v| v as i64)).collect::<Vec<_>>());
    let floats = [0.0, -0.0, f64::NAN, f64::INFINITY, 1.5, -7.25];
    batch(vec![
        ("row", Arc::new(Int64Array::from_iter_values(0..n as i64)) as ArrayRef, false),
        ("dense", Arc::new(Int32Array::from_iter_values((0..n).map(|i| value(i, 1) as i32 - 3))), false),
        ("sparse", Arc::new((0..n).map(|i| some(i, 2).map(|v| v as i64 * 1_000_000_007 - 5)).collect::<Int64Array>()), true),
        (
            "wide",
            Arc::new((0..n).map(|i| some(i, 3).map(|v| v.wrapping_mul(0x9e37_79b9_7f4a_7c15))).collect::<UInt64Array>()),
            true,
        ),
        (
            "decimal",
            Arc::new(
                (0..n)
                    .map(|i| some(i, 4).map(|v| (i128::from(v) - 2) << 70))
                    .collect::<Decimal128Array>()
                    .with_precision_and_scale(38, 3)
                    .unwrap(),
            ),
            true,
        ),
        ("text", Arc::new(StringArray::from(texts.clone())), true),
        ("view", Arc::new(StringViewArray::from_iter(texts)), true),
        ("code", Arc::new(dictionary), true),
        ("flag", Arc::new((0..n).map(|i| some(i, 6).map(|v| v % 2 == 0)).collect::<BooleanArray>()), true),
        ("float", Arc::new((0..n).map(|i| some(i, 7).map(|v| floats[(v % 6) as usize])).collect::<Float64Array>()), true),
        ("list", Arc::new(ListArray::from_iter_primitive::<Int64Type, _, _>((0..n).map(list))), true),
    ])
}

struct Case {
    kind: JoinKind,
    keys: Vec<usize>,
    null_equals_null: bool,
    residual: bool,
}

/// The condition `probe.row < build.row`.
fn residual(probe: &RecordBatch) -> Expr {
    compare(CompareOp::Lt, col(0), col(probe.num_columns()))
}

fn join_of(case: &Case, build: &RecordBatch, probe: &RecordBatch) -> Join {
    Join {
        kind: case.kind,
        keys: case.keys.iter().map(|key| (col(*key), col(*key))).collect(),
        null_equals_null: case.null_equals_null,
        null_aware: false,
        residual: case.residual.then(|| residual(probe)),
        schema: build.schema(),
        types: natural_types(&build.schema()).unwrap(),
        role: JoinRole::Query,
    }
}

async fn table(queue: &Queue, join: &Join, probe: &RecordBatch, build: &RecordBatch, options: &Options) -> Arc<JoinTable> {
    table_in_caches(queue, join, probe, build, options, usize::MAX).await
}

/// The same for caches of so many bytes: rows probe a Bloom filter before a larger table.
async fn table_in_caches(
    queue: &Queue,
    join: &Join,
    probe: &RecordBatch,
    build: &RecordBatch,
    options: &Options,
    cached: usize,
) -> Arc<JoinTable> {
    let probe_types = natural_types(&probe.schema()).unwrap();
    // The build side arrives in batches.
    let whole = up(queue, build, &join.types);
    let slices: Vec<DeviceBatch> = whole.chunks((build.num_rows() / 2).max(1)).collect();
    let concat = Concat::try_new(join.schema.clone(), join.types.clone(), options.clone()).unwrap();
    let join = Join { types: concat.output_types().to_vec(), ..join.clone() };
    let batch = concat.run(queue, slices).await.unwrap();
    let builder = JoinBuild::try_new(&probe_types, &[], &join, options.clone()).unwrap().with_cache(cached);
    let mut table = builder.build(queue, batch).await.unwrap();
    builder.add_bloom_filter(queue, &mut table, BloomFilterUse { dynamic_filters: false, search: true }).await.unwrap();
    Arc::new(table)
}

/// All results of a batch.
async fn pushed(chain: &JoinChain, queue: &Queue, state: &mut ChainState, batch: &DeviceBatch) -> Vec<DeviceBatch> {
    chain.push(state, batch);
    given(chain, queue, state).await
}

/// All pending results.
async fn given(chain: &JoinChain, queue: &Queue, state: &mut ChainState) -> Vec<DeviceBatch> {
    let mut results = Vec::new();
    while let Some(batch) = chain.next(queue, state).await.unwrap() {
        results.push(batch);
    }
    results
}

/// All build rows without a match.
async fn unmatched(chain: &JoinChain, queue: &Queue, state: &mut ChainState) -> Vec<DeviceBatch> {
    let mut results = Vec::new();
    while let Some(batch) = chain.finish(queue, state).await.unwrap() {
        results.push(batch);
    }
    results
}

/// The rows of the device, unordered.
fn joined(case: &Case, build: &RecordBatch, probe: &RecordBatch, options: &Options, cached: usize) -> Vec<String> {
    let queue = queue();
    futures::executor::block_on(async {
        let mut join = join_of(case, build, probe);
        let table = table_in_caches(&queue, &join, probe, build, options, cached).await;
        join.types = table.batch().columns().iter().map(|column| (**column.ty()).clone()).collect();
        let probe_types = natural_types(&probe.schema()).unwrap();
        let input = Input { schema: probe.schema(), types: probe_types.clone(), filter: None };
        let whole = up(&queue, probe, &probe_types);
        let slices: Vec<DeviceBatch> = whole.chunks((probe.num_rows() / 3).max(1)).collect();
        let mut results = Vec::new();
        if case.kind.gives_build_rows() {
            let mark = VisitedBitmap::try_new(input, &join, Some(table), options.clone()).unwrap();
            let mut state = mark.start();
            for slice in &slices {
                mark.push(&queue, &mut state, slice).await.unwrap();
            }
            results = mark.finish(&queue, state).await.unwrap();
            for (batch, ty) in results.iter().flat_map(|batch| batch.columns().iter().zip(mark.output_types())) {
                assert_eq!(batch.ty().layout, ty.layout);
            }
        } else {
            let fields = probe.schema().fields().iter().cloned().collect::<Vec<_>>();
            let more = join.fields().to_vec();
            let count = match case.kind {
                JoinKind::RightSemi | JoinKind::RightAnti => fields.len(),
                _ => fields.len() + more.len(),
            };
            let mut all: Vec<usize> = (0..count).collect();
            if case.kind == JoinKind::RightMark {
                all.retain(|column| *column < fields.len() || *column == fields.len() + more.len() - 1);
            }
            let field = |index: usize| fields.iter().chain(&more).nth(index).unwrap().as_ref().clone().with_nullable(true);
            let outputs = all.iter().map(|index| (col(*index), field(*index).with_name(format!("o{index}")))).collect();
            let has_bloom = table.filter_bytes() > 0;
            let chain = Arc::new(JoinChain::try_new(input, &[join], Some(&[table]), outputs, options.clone()).unwrap());
            let probes_bloom = chain.kernel_source().iter().any(|(_, text)| text.contains("t0_bloom"));
            assert_eq!(
                probes_bloom,
                has_bloom && case.kind.drops_unmatched_probe_rows(),
                "the Bloom filter is probed first where there is one"
            );
            let mut state = chain.start();
            // No batch waits for the results of another.
            let begun = slices.iter().flat_map(|slice| chain.slices(&queue, slice)).map(chain.first_step(&queue, &state));
            for begun in try_join_all(begun).await.unwrap() {
                chain.resume(&mut state, begun);
                results.extend(given(&chain, &queue, &mut state).await);
            }
            results.extend(unmatched(&chain, &queue, &mut state).await);
            for batch in &results {
                for (column, ty) in batch.columns().iter().zip(chain.output_types()) {
                    assert_eq!((&column.ty().layout, column.ty().nullable), (&ty.layout, ty.nullable));
                }
            }
        }
        let mut found = Vec::new();
        for batch in &results {
            found.extend(rows(&columnar::download(&queue, batch).await.unwrap()));
        }
        let mut rows = found;
        if matches!(case.kind, JoinKind::LeftSemi | JoinKind::LeftAnti) {
            let wanted = format!("|{}", case.kind == JoinKind::LeftSemi);
            rows.retain(|row| row.ends_with(&wanted));
            rows.iter_mut().for_each(|row| row.truncate(row.len() - wanted.len()));
        }
        rows.sort();
        rows
    })
}

/// The rows by nested loops.
fn expected(case: &Case, build: &RecordBatch, probe: &RecordBatch) -> Vec<String> {
    let options = FormatOptions::default().with_null("NULL");
    let key = |batch: &RecordBatch, row: usize| -> Option<Vec<String>> {
        case.keys
            .iter()
            .map(|column| {
                let column = batch.column(*column);
                let null = column.logical_nulls().is_some_and(|nulls| nulls.is_null(row));
                if null && !case.null_equals_null {
                    return None;
                }
                let text = ArrayFormatter::try_new(column, &options).unwrap().value(row).to_string();
                Some(if text == "-0.0" { "0.0".to_string() } else { text })
            })
            .collect()
    };
    let probe_keys: Vec<_> = (0..probe.num_rows()).map(|row| key(probe, row)).collect();
    let build_keys: Vec<_> = (0..build.num_rows()).map(|row| key(build, row)).collect();
    let matches = |p: usize, b: usize| probe_keys[p].is_some() && probe_keys[p] == build_keys[b] && (!case.residual || p < b);
    let (probe_rows, build_rows) = (rows(probe), rows(build));
    let nulls = |batch: &RecordBatch| vec!["NULL"; batch.num_columns()].join("|");
    let mut result = Vec::new();
    use JoinKind::*;
    if matches!(case.kind, Inner | Left | Right | Full | RightSemi | RightAnti | RightMark) {
        for (p, row) in probe_rows.iter().enumerate() {
            let found: Vec<usize> = (0..build_rows.len()).filter(|b| matches(p, *b)).collect();
            match case.kind {
                RightSemi | RightAnti => {
                    if found.is_empty() == (case.kind == RightAnti) {
                        result.push(row.clone());
                    }
                }
                RightMark => result.push(format!("{row}|{}", !found.is_empty())),
                _ => {
                    result.extend(found.iter().map(|b| format!("{row}|{}", build_rows[*b])));
                    if found.is_empty() && matches!(case.kind, Right | Full) {
                        result.push(format!("{row}|{}", nulls(build)));
                    }
                }
            }
        }
    }
    if matches!(case.kind, Left | Full | LeftSemi | LeftAnti | LeftMark) {
        for (b, row) in build_rows.iter().enumerate() {
            let found = (0..probe_rows.len()).any(|p| matches(p, b));
            match case.kind {
                LeftMark => result.push(format!("{row}|{found}")),
                LeftSemi if found => result.push(row.clone()),
                LeftAnti if !found => result.push(row.clone()),
                Left | Full if !found => result.push(format!("{}|{row}", nulls(probe))),
                _ => {}
            }
        }
    }
    result.sort();
    result
}

fn check(case: &Case, build: &RecordBatch, probe: &RecordBatch) {
    let expected = expected(case, build, probe);
    // A table that fits the caches, and one with a Bloom filter.
    let probes_bloom_first = case.kind.drops_unmatched_probe_rows() && !case.keys.is_empty();
    let caches = [Some(usize::MAX), probes_bloom_first.then_some(0)];
    for (options, cached) in
        profiles().flat_map(|options| caches.into_iter().flatten().map(move |cached| (options.clone(), cached)))
    {
        let actual = joined(case, build, probe, &options, cached);
        let what = format!(
            "{:?} on {:?} (nulls equal: {}, residual: {}) of {} and {} rows, {:?}, Bloom filter first: {}",
            case.kind,
            case.keys,
            case.null_equals_null,
            case.residual,
            build.num_rows(),
            probe.num_rows(),
            options.profile,
            cached == 0
        );
        assert_eq!(actual.len(), expected.len(), "{what}");
        for (actual, expected) in actual.iter().zip(&expected) {
            assert_eq!(actual, expected, "{what}");
        }
    }
}

#[test]
fn every_kind_on_every_type_of_key() {
    device::skip_unless_turn!(7);
    let (build, probe) = (side(40, 15, 1), side(60, 15, 2));
    let keys =
        [vec![1], vec![2], vec![3], vec![4], vec![5], vec![6], vec![7], vec![8], vec![9], vec![1, 2], vec![3, 4], vec![5, 1]];
    for (index, kind) in KINDS.into_iter().enumerate() {
        // Compilation takes longer than execution: a full join covers all keys, others some each.
        let some = keys.iter().enumerate().filter(|(key, _)| kind == JoinKind::Full || (key + index) % 6 == 0);
        for keys in some.map(|(_, keys)| keys.clone()) {
            check(&Case { kind, keys, null_equals_null: false, residual: false }, &build, &probe);
        }
    }
}

#[test]
fn null_equals_null() {
    device::skip_unless_turn!(1);
    let (build, probe) = (side(40, 9, 3), side(50, 9, 4));
    for (index, kind) in KINDS.into_iter().enumerate() {
        let keys = [vec![2], vec![4], vec![5], vec![8], vec![2, 8], vec![7, 4]];
        let some = keys.iter().enumerate().filter(|(key, _)| kind == JoinKind::Full || (key + index) % 6 == 0);
        for keys in some.map(|(_, keys)| keys.clone()) {
            check(&Case { kind, keys, null_equals_null: true, residual: false }, &build, &probe);
        }
    }
}

#[test]
fn residual_conditions() {
    device::skip_unless_turn!(0);
    let (build, probe) = (side(40, 5, 5), side(60, 5, 6));
    for (index, kind) in KINDS.into_iter().enumerate() {
        let keys = [vec![], vec![1], vec![2], vec![6]];
        for keys in [keys[0].clone(), keys[1 + index % 3].clone()] {
            check(&Case { kind, keys, null_equals_null: false, residual: true }, &build, &probe);
        }
    }
}

#[test]
fn unique_keys() {
    // The row number is the key of both sides.
    let (build, probe) = (side(300, 50, 7), side(400, 50, 8));
    for (index, kind) in KINDS.into_iter().enumerate() {
        let keys = if index % 2 == 0 { vec![0] } else { vec![0, 1] };
        for residual in [false, true] {
            check(&Case { kind, keys: keys.clone(), null_equals_null: false, residual }, &build, &probe);
        }
    }
}

#[test]
fn sides_without_rows() {
    device::skip_unless_turn!(4);
    for (left, right) in [(0, 0), (0, 5), (5, 0), (1, 1)] {
        let (build, probe) = (side(left, 2, 9), side(right, 2, 10));
        for kind in KINDS {
            for keys in [vec![], vec![1], vec![5]] {
                check(&Case { kind, keys, null_equals_null: false, residual: false }, &build, &probe);
            }
        }
    }
}

#[test]
fn many_rows() {
    // More rows than a block, and keys that most rows share.
    let (build, probe) = (side(257, 40, 11), side(1025, 40, 12));
    for kind in KINDS {
        check(&Case { kind, keys: vec![1, 2], null_equals_null: false, residual: false }, &build, &probe);
    }
}

#[test]
fn chains_of_joins() {
    // The first join is unique, the second multiplies rows, the third is outer, the fourth a mark
    // join.
    let (probe, one, two) = (side(200, 20, 13), side(150, 20, 14), side(30, 20, 15));
    let queue = queue();
    let width = probe.num_columns();
    for options in profiles() {
        let actual = futures::executor::block_on(async {
            let types = natural_types(&probe.schema()).unwrap();
            let side_of = |batch: &RecordBatch, kind, probe_key: usize, key: usize| Join {
                kind,
                keys: vec![(col(probe_key), col(key))],
                null_equals_null: false,
                null_aware: false,
                residual: None,
                schema: batch.schema(),
                types: types.clone(),
                role: JoinRole::Query,
            };
            let joins = vec![
                side_of(&one, JoinKind::Inner, 0, 0),
                side_of(&two, JoinKind::Inner, width + 1, 1),
                side_of(&one, JoinKind::Right, 2 * width, 0),
                side_of(&two, JoinKind::RightMark, 3 * width + 1, 1),
            ];
            let batches = [&one, &two, &one, &two];
            let mut tables = Vec::new();
            for (index, join) in joins.iter().enumerate() {
                let build = JoinBuild::try_new(&types, &joins[..index], join, options.clone()).unwrap();
                tables.push(Arc::new(build.build(&queue, Some(up(&queue, batches[index], &types))).await.unwrap()));
            }
            let mark = 5 * width;
            let filter = Expr::And(vec![
                compare(CompareOp::NotEq, col(0), col(2 * width)),
                compare(CompareOp::Gt, col(3 * width), int(3, DataType::Int64)),
            ]);
            let input = Input { schema: probe.schema(), types: types.clone(), filter: Some(filter) };
            let outputs = [0, width + 5, 2 * width + 6, 3 * width + 7, mark];
            let names = ["row", "text", "view", "code", "mark"];
            let schema = probe.schema();
            let fields = names.map(|name| match name {
                "mark" => Field::new("mark", DataType::Boolean, true),
                name => schema.field_with_name(name).unwrap().clone().with_nullable(true),
            });
            let outputs = outputs.iter().zip(fields).map(|(column, field)| (col(*column), field)).collect();
            let chain = JoinChain::try_new(input, &joins, Some(&tables), outputs, options.clone()).unwrap();
            let mut state = chain.start();
            let mut found = Vec::new();
            for slice in up(&queue, &probe, &types).chunks(64) {
                for batch in pushed(&chain, &queue, &mut state, &slice).await {
                    found.extend(rows(&columnar::download(&queue, &batch).await.unwrap()));
                }
            }
            found.sort();
            found
        });
        let mut expected = Vec::new();
        let (a, b) = (rows(&one), rows(&two));
        let ints = |batch: &RecordBatch| -> Vec<i32> {
            batch.column(1).as_any().downcast_ref::<Int32Array>().unwrap().values().to_vec()
        };
        let (dense_one, dense_two) = (ints(&one), ints(&two));
        let cell = |rows: &[String], row: usize, column: usize| rows[row].split('|').nth(column).unwrap().to_string();
        for p in 0..150 {
            for (t, key) in dense_two.iter().enumerate() {
                if *key != dense_one[p] || p == t {
                    continue;
                }
                // `t` is the row of the third join; its number must exceed 3.
                if t <= 3 {
                    continue;
                }
                let mark = dense_two.contains(&dense_one[t]);
                expected.push(format!("{p}|{}|{}|{}|{mark}", cell(&a, p, 5), cell(&b, t, 6), cell(&a, t, 7)));
            }
        }
        expected.sort();
        assert_eq!(actual, expected, "{:?}", options.profile);
    }
}

#[test]
fn not_in() {
    // A probe side without NULLs, with one, and without rows: whole, or as a part of a larger one.
    let build = side(40, 20, 16);
    let (queue, all) = (queue(), side(60, 20, 17));
    let known: Vec<usize> = (0..60).filter(|row| all.column(2).is_valid(*row)).collect();
    let without =
        arrow::compute::take_record_batch(&all, &Int64Array::from_iter_values(known.iter().map(|row| *row as i64))).unwrap();
    let facts = |has_rows, has_null_keys| ProbeSideFacts { has_rows, has_null_keys };
    let [whole, of_rows, of_nulls] = [facts(false, false), facts(true, false), facts(true, true)];
    let nothing = all.slice(0, 0);
    for options in profiles() {
        for (probe, facts) in
            [(&all, whole), (&without, whole), (&nothing, whole), (&without, of_nulls), (&nothing, of_rows), (&nothing, of_nulls)]
        {
            let case = Case { kind: JoinKind::LeftAnti, keys: vec![2], null_equals_null: false, residual: false };
            let actual = futures::executor::block_on(async {
                let mut join = Join { null_aware: true, ..join_of(&case, &build, probe) };
                let table = table(&queue, &join, probe, &build, &options).await;
                join.types = table.batch().columns().iter().map(|column| (**column.ty()).clone()).collect();
                let types = natural_types(&probe.schema()).unwrap();
                let input = Input { schema: probe.schema(), types: types.clone(), filter: None };
                let mark = VisitedBitmap::try_new(input, &join, Some(table), options.clone()).unwrap();
                let mut state = mark.start_part(facts);
                mark.push(&queue, &mut state, &up(&queue, probe, &types)).await.unwrap();
                let marked = mark.finish(&queue, state).await.unwrap();
                rows(&columnar::download(&queue, &marked[0]).await.unwrap())
            });
            let has_rows = facts.has_rows || probe.num_rows() > 0;
            let kept: Vec<&String> = actual.iter().filter(|row| row.ends_with("|false")).collect();
            let keys = probe.column(2).as_any().downcast_ref::<Int64Array>().unwrap();
            let own = build.column(2).as_any().downcast_ref::<Int64Array>().unwrap();
            let stays = |row: &usize| {
                let key = own.is_valid(*row).then(|| own.value(*row));
                let has_null_keys = facts.has_null_keys || keys.null_count() > 0;
                match (has_rows, has_null_keys, key) {
                    (false, _, _) => true,
                    (_, false, Some(key)) => !keys.iter().flatten().any(|other| other == key),
                    _ => false,
                }
            };
            assert_eq!(kept.len(), (0..40).filter(stays).count(), "{:?}, {} rows", options.profile, probe.num_rows());
        }
    }
}

#[test]
fn dynamic_filters() {
    // A filter before a join that multiplies rows, and one alone; dense, sparse and several keys.
    let (probe, build) = (side(300, 40, 18), side(37, 20, 19));
    let queue = queue();
    for options in profiles() {
        for keys in [vec![1], vec![2], vec![1, 2]] {
            let case = Case { kind: JoinKind::Inner, keys: keys.clone(), null_equals_null: false, residual: false };
            let types = natural_types(&probe.schema()).unwrap();
            let own = join_of(&case, &build, &probe);
            let null = |key: &usize| {
                let data_type = build.schema().field(*key).data_type().clone();
                Expr::Literal(Literal { data_type, value: LiteralValue::Null })
            };
            let filter = Join::dynamic_filter(keys.iter().map(|key| (col(*key), null(key))).collect(), false);
            let value_of = |batch: &RecordBatch, row: usize| -> Option<Vec<i64>> {
                let value = |key: &usize| {
                    let column = arrow::compute::cast(batch.column(*key), &DataType::Int64).unwrap();
                    let column = column.as_any().downcast_ref::<Int64Array>().unwrap().clone();
                    column.is_valid(row).then(|| column.value(row))
                };
                keys.iter().map(value).collect()
            };
            let known: Vec<Vec<i64>> = (0..37).filter_map(|row| value_of(&build, row)).collect();
            let stays = |row: usize| value_of(&probe, row).is_some_and(|value| known.contains(&value));
            let matches = |row: usize| value_of(&probe, row).map_or(0, |value| known.iter().filter(|key| **key == value).count());
            for multiplies in [false, true] {
                let (count, removed) = futures::executor::block_on(async {
                    let table = table(&queue, &own, &probe, &build, &options).await;
                    let mut joins = vec![filter.clone()];
                    if multiplies {
                        let types = table.batch().columns().iter().map(|column| (**column.ty()).clone()).collect();
                        joins.push(Join { types, ..own.clone() });
                    }
                    let tables = vec![table; joins.len()];
                    let input = Input { schema: probe.schema(), types: types.clone(), filter: None };
                    let outputs = vec![(col(0), probe.schema().field(0).clone())];
                    let chain = JoinChain::try_new(input, &joins, Some(&tables), outputs, options.clone()).unwrap();
                    let mut state = chain.start();
                    let mut count = 0;
                    for slice in up(&queue, &probe, &types).chunks(70) {
                        let batches = pushed(&chain, &queue, &mut state, &slice).await;
                        count += batches.iter().map(DeviceBatch::num_rows).sum::<usize>();
                    }
                    (count, chain.removed(&queue, &state).await.unwrap())
                });
                let expected: usize = (0..300).map(|row| if multiplies { matches(row) } else { usize::from(stays(row)) }).sum();
                assert_eq!(count, expected, "{keys:?}, {:?}", options.profile);
                assert_eq!(removed, [(0..300).filter(|row| !stays(*row)).count() as u64], "{keys:?}, {:?}", options.profile);
            }
        }
    }
}

#[test]
fn tables_that_filter() {
    let build = |values: Vec<Option<i64>>| {
        let schema = Arc::new(Schema::new(vec![Field::new("key", DataType::Int64, true)]));
        RecordBatch::try_new(schema, vec![Arc::new(Int64Array::from(values))]).unwrap()
    };
    let case = Case { kind: JoinKind::Inner, keys: vec![0], null_equals_null: false, residual: false };
    let (queue, options) = (queue(), profiles().next().unwrap());
    let table_of = |values| {
        let build = build(values);
        futures::executor::block_on(table(&queue, &join_of(&case, &build, &build), &build, &build, &options))
    };
    let turned = |value: i64| value as u64 ^ 1 << 63;
    let few = table_of(vec![Some(-5), None, Some(90)]);
    assert!(few.filters(1) && !few.filters(2));
    assert_eq!(few.key_ranges(2), None);
    assert_eq!(few.key_ranges(1), Some(vec![(turned(-5), turned(90))]));
    let most = table_of((0..5000).map(Some).collect());
    assert!(!most.filters(1), "every number of the range is there");
    let none = table_of(vec![None, None]);
    assert_eq!(none.key_ranges(1), None);
}

#[test]
fn dynamic_filters_of_tables_beyond_the_caches() {
    // Dense keys with a perfect hash and a bitmap; hashed integer and string keys, alone and
    // together. Two of three probe rows have no match.
    let n = 1 << 19;
    let side = |rows: usize, step: usize| {
        let number = |row: usize| (row * step) as i64;
        let known = |row: usize| !row.is_multiple_of(1000);
        let of = |key: &dyn Fn(i64) -> i64| Int64Array::from_iter((0..rows).map(|row| known(row).then(|| key(number(row)))));
        let text = |row: usize| known(row).then(|| format!("key {}", number(row)));
        batch(vec![
            ("dense", Arc::new(of(&|number| number * 2)) as ArrayRef, true),
            ("spread", Arc::new(of(&|number| number.wrapping_mul(0x9e37_79b9_7f4a_7c15_u64 as i64) >> 1)), true),
            ("text", Arc::new(StringArray::from_iter((0..rows).map(text))), true),
        ])
    };
    let (build, probe) = (side(n, 3), side((1 << 17) + 1, 1));
    let queue = queue();
    for options in profiles() {
        for keys in [vec![0], vec![1], vec![2], vec![1, 2]] {
            for null_equals_null in [false, true] {
                let name = format!("{keys:?}, {null_equals_null}, {:?}", options.profile);
                let case = Case { kind: JoinKind::Inner, keys: keys.clone(), null_equals_null, residual: false };
                let join = join_of(&case, &build, &probe);
                let null = |key: &usize| {
                    let data_type = build.schema().field(*key).data_type().clone();
                    Expr::Literal(Literal { data_type, value: LiteralValue::Null })
                };
                let filter = Join::dynamic_filter(keys.iter().map(|key| (col(*key), null(key))).collect(), null_equals_null);
                let types = natural_types(&probe.schema()).unwrap();
                let (kept, removed) = futures::executor::block_on(async {
                    let batch = up(&queue, &build, &join.types);
                    let builder = JoinBuild::try_new(&types, &[], &join, options.clone()).unwrap();
                    let mut table = builder.build(&queue, Some(batch)).await.unwrap();
                    let wanted = BloomFilterUse { dynamic_filters: true, search: false };
                    builder.add_bloom_filter(&queue, &mut table, wanted).await.unwrap();
                    assert!(table.filters(filter.keys.len()), "{name}");
                    // A bit per dense number, or 16 per key.
                    let bytes = if keys == [0] { n * 6 / 8 } else { n * 2 };
                    assert!(table.filter_bytes().abs_diff(bytes) < 2000, "{name}: {}", table.filter_bytes());
                    let input = Input { schema: probe.schema(), types: types.clone(), filter: None };
                    let outputs = vec![(col(2), probe.schema().field(2).clone())];
                    let chain = JoinChain::try_new(input, &[filter], Some(&[Arc::new(table)]), outputs, options.clone()).unwrap();
                    let mut state = chain.start();
                    let given = pushed(&chain, &queue, &mut state, &up(&queue, &probe, &types)).await;
                    let removed = chain.removed(&queue, &state).await.unwrap();
                    let mut kept = std::collections::HashSet::new();
                    for rows in given {
                        let rows = columnar::download(&queue, &rows).await.unwrap();
                        let texts = rows.column(0).as_any().downcast_ref::<StringArray>().unwrap();
                        kept.extend(texts.iter().map(|text| text.map(str::to_string)));
                    }
                    (kept, removed[0] as usize)
                });
                let texts = probe.column(2).as_any().downcast_ref::<StringArray>().unwrap();
                let rows = || texts.iter().enumerate();
                let matches = |(row, text): &(usize, Option<&str>)| match text {
                    Some(_) => row.is_multiple_of(3) && !(row / 3).is_multiple_of(1000),
                    None => null_equals_null,
                };
                let matching = rows().filter(matches).count();
                assert!(rows().filter(matches).all(|(_, text)| kept.contains(&text.map(str::to_string))), "{name}");
                let others = probe.num_rows() - matching;
                match keys == [0] {
                    true => assert_eq!(removed, others, "{name}"),
                    false => assert!((others * 98 / 100..=others).contains(&removed), "{name}: {removed} of {others}"),
                }
            }
        }
    }
}

#[test]
fn more_pairs_than_one_output_batch() {
    let n = 3500;
    let side = batch(vec![("row", Arc::new(Int64Array::from_iter_values(0..n)) as ArrayRef, false)]);
    let queue = queue();
    // GPUs write as many pairs at once.
    for options in profiles().map(|options| options.with_threshold_divisor(16)) {
        for kind in [JoinKind::Right, JoinKind::Full] {
            // The last probe row and the first build row have no match.
            let case = Case { kind, keys: vec![], null_equals_null: false, residual: true };
            let (count, sum, alone) = futures::executor::block_on(async {
                let types = natural_types(&side.schema()).unwrap();
                let mut join = join_of(&case, &side, &side);
                let table = table(&queue, &join, &side, &side, &options).await;
                join.types = table.batch().columns().iter().map(|column| (**column.ty()).clone()).collect();
                let input = Input { schema: side.schema(), types: types.clone(), filter: None };
                let field = |name: &str| Field::new(name, DataType::Int64, true);
                let outputs = vec![(col(0), field("probe")), (col(1), field("build"))];
                let chain = JoinChain::try_new(input, &[join], Some(&[table]), outputs, options.clone()).unwrap();
                let mut state = chain.start();
                let mut batches = pushed(&chain, &queue, &mut state, &up(&queue, &side, &types)).await;
                assert!(batches.len() > 1, "{} pairs at once", batches[0].num_rows());
                batches.extend(unmatched(&chain, &queue, &mut state).await);
                let (mut count, mut sum, mut alone) = (0, 0, 0);
                for batch in &batches {
                    let batch = columnar::download(&queue, batch).await.unwrap();
                    let values = |column: usize| batch.column(column).as_any().downcast_ref::<Int64Array>().unwrap().clone();
                    for (probe, build) in values(0).iter().zip(&values(1)) {
                        match (probe, build) {
                            (Some(probe), Some(build)) => (count, sum) = (count + 1, sum + build - probe),
                            _ => alone += 1,
                        }
                    }
                }
                (count, sum, alone)
            });
            assert_eq!(count, n * (n - 1) / 2);
            assert_eq!(sum, (1..n).map(|distance| distance * (n - distance)).sum::<i64>());
            assert_eq!(alone, if kind == JoinKind::Full { 2 } else { 1 });
        }
    }
}

/// Number of launches of a kernel.
fn launches(queue: &Queue, kernel: &str) -> u64 {
    let report = queue.context().report();
    let kernels = report["kernels"].as_array().unwrap();
    kernels.iter().find(|of| of["name"] == kernel).map_or(0, |of| of["launches"].as_u64().unwrap())
}

#[test]
fn many_candidate_pairs_take_several_launches() {
    device::skip_unless_turn!(0);
    let queue = queue();
    let units = queue.context().info().compute_units.max(1) as usize;
    let n = (1 << 17) + 1;
    let side = |rows: usize, others: usize| {
        let keys = Int32Array::from_iter_values((0..rows + others).map(|row| i32::from(row >= rows)));
        let numbers = Int64Array::from_iter_values(0..(rows + others) as i64);
        batch(vec![("row", Arc::new(numbers) as ArrayRef, false), ("key", Arc::new(keys), false)])
    };
    let probe = side(n, 0);
    let types = natural_types(&probe.schema()).unwrap();
    // Only the last row matches, with the first one.
    let met = Expr::And(vec![
        compare(CompareOp::Gt, col(0), int(n as i128 - 2, DataType::Int64)),
        compare(CompareOp::Lt, col(2), int(1, DataType::Int64)),
    ]);
    let many = 2048 * units + 1;
    for options in profiles() {
        let most = if options.profile == kernels::codegen::Profile::Cpu { 1 << 22 } else { 1 << 26 };
        // The first launch writes as many pairs as a search would compare.
        let pairs = (queue.context().pool().limit() >> 10).clamp(1 << 16, most).min((1 << 20) * units);
        for (length, kind, conditional, filtered, kernel, expected) in [
            (many, JoinKind::LeftSemi, true, false, "join_visit", 3),
            (many, JoinKind::LeftSemi, false, false, "join_visit", 3),
            (many, JoinKind::RightSemi, true, false, "probe_mask", 3),
            (many, JoinKind::Inner, true, false, "probe_count", 3),
            // Rows that a filter removes do not count.
            (many, JoinKind::RightSemi, true, true, "probe_mask", 1),
            (many, JoinKind::Inner, true, true, "probe_count", 1),
            // Candidate lists have known lengths; few rows need one launch.
            (many, JoinKind::Inner, false, false, "probe_count", 1),
            (many, JoinKind::RightSemi, false, false, "probe_mask", 1),
            (7, JoinKind::LeftSemi, true, false, "join_visit", 1),
            (7, JoinKind::RightSemi, true, false, "probe_mask", 1),
            (7, JoinKind::Inner, true, false, "probe_count", 1),
        ] {
            let what =
                format!("{kind:?} of lists of {length}, conditional: {conditional}, filtered: {filtered}, {:?}", options.profile);
            let case = Case { kind, keys: vec![1], null_equals_null: false, residual: false };
            let build = side(length, 1);
            let (rows, of_kernel) = futures::executor::block_on(async {
                let mut join = join_of(&case, &build, &probe);
                let table = table(&queue, &join, &probe, &build, &options).await;
                join.types = table.batch().columns().iter().map(|column| (**column.ty()).clone()).collect();
                join.residual = conditional.then(|| met.clone());
                let filter = filtered.then(|| compare(CompareOp::Gt, col(0), int(n as i128 - 4, DataType::Int64)));
                let input = Input { schema: probe.schema(), types: types.clone(), filter };
                let rows = up(&queue, &probe, &types);
                let before = launches(&queue, kernel);
                let found = match kind {
                    JoinKind::LeftSemi => {
                        let mark = VisitedBitmap::try_new(input, &join, Some(table), options.clone()).unwrap();
                        let mut state = mark.start();
                        mark.push(&queue, &mut state, &rows).await.unwrap();
                        mark.finish(&queue, state).await.unwrap().pop()
                    }
                    _ => {
                        let outputs = vec![(col(0), Field::new("row", DataType::Int64, true))];
                        let chain = JoinChain::try_new(input, &[join], Some(&[table]), outputs, options.clone()).unwrap();
                        let mut state = chain.start();
                        chain.push(&mut state, &rows);
                        let first = chain.next(&queue, &mut state).await.unwrap();
                        assert!(!conditional || chain.next(&queue, &mut state).await.unwrap().is_none(), "{what}");
                        first
                    }
                };
                let of_kernel = launches(&queue, kernel) - before;
                (columnar::download(&queue, &found.unwrap()).await.unwrap(), of_kernel)
            });
            let numbers = rows.column(0).as_any().downcast_ref::<Int64Array>().unwrap().values().to_vec();
            match (kind, conditional) {
                (JoinKind::LeftSemi, _) => {
                    let marks = rows.column(2).as_any().downcast_ref::<BooleanArray>().unwrap();
                    let marked = if conditional { 1 } else { length };
                    assert_eq!((rows.num_rows(), marks.true_count(), marks.value(0)), (length + 1, marked, true), "{what}");
                }
                (_, true) => assert_eq!(numbers, [n as i64 - 1], "{what}"),
                (JoinKind::Inner, false) => assert_eq!(numbers.len(), pairs, "{what}"),
                _ => assert_eq!(numbers.len(), n, "{what}"),
            }
            // The times of launches tell how many are needed; the first ones are short.
            let is_expected = if expected == 1 { of_kernel == 1 } else { of_kernel >= expected };
            assert!(is_expected, "{what}: {of_kernel} launches");
        }
    }
}

/// Rows with equal keys are in one partition on both sides, in their order. Each row is in one.
#[test]
fn partitions_have_all_rows_of_a_key() {
    for options in profiles() {
        for n in SIZES {
            let (build, probe) = (side(n, 4000, 1), side(n / 2, 4000, 2));
            for keys in [vec![1], vec![2, 4], vec![5], vec![6, 9], vec![7]] {
                check_partitions(&build, &probe, keys, &options);
            }
        }
    }
}

fn check_partitions(build: &RecordBatch, probe: &RecordBatch, keys: Vec<usize>, options: &Options) {
    let queue = queue();
    let kept = |side: &RecordBatch| side.project(&(0..10).collect::<Vec<_>>()).unwrap();
    let (build, probe) = (kept(build), kept(probe));
    let case = Case { kind: JoinKind::Full, keys: keys.clone(), null_equals_null: true, residual: false };
    let join = join_of(&case, &build, &probe);
    let types = natural_types(&probe.schema()).unwrap();
    let builder = JoinBuild::try_new(&types, &[], &join, options.clone()).unwrap();
    let sides = [
        (&build, HashPartition::of_build_side(&builder, build.schema(), join.types.clone()).unwrap()),
        (&probe, HashPartition::of_probe_side(&builder, probe.schema(), types.clone(), &join).unwrap()),
    ];
    let mut partition_of = HashMap::new();
    for (rows, op) in sides {
        for seed in [0, 7] {
            let batch = up(&queue, rows, &op.input().1);
            let partitioned = futures::executor::block_on(op.run(&queue, &batch, seed)).unwrap();
            let ordered = down(&queue, &partitioned.rows);
            let numbers = ordered.column(0).as_primitive::<Int64Type>().values().to_vec();
            let ranges: Vec<_> = (0..HashPartition::PARTITIONS).map(|partition| partitioned.of(partition)).collect();
            assert_eq!(ranges.iter().map(|range| range.len()).sum::<usize>(), rows.num_rows());
            let used = ranges.iter().filter(|range| !range.is_empty()).count();
            assert!(rows.num_rows() < 1 << 16 || used > 1, "{keys:?}: all rows in one partition");
            for (partition, range) in ranges.into_iter().enumerate() {
                assert!(numbers[range.clone()].is_sorted(), "{keys:?}");
                // Some rows of many tell enough, and take less time to show.
                for row in range.step_by(if rows.num_rows() > 1 << 10 { 17 } else { 1 }) {
                    let formatter = |key: &usize| {
                        let options = FormatOptions::new().with_null("NULL");
                        ArrayFormatter::try_new(ordered.column(*key), &options).unwrap().value(row).to_string()
                    };
                    let key: Vec<_> = keys.iter().map(formatter).collect();
                    let known = *partition_of.entry((seed, key.clone())).or_insert(partition);
                    assert_eq!(known, partition, "{key:?}");
                }
            }
            let expected = take_record_batch(rows, &Int64Array::from(numbers)).unwrap();
            assert_eq!(ordered.columns()[1..7], expected.columns()[1..7]);
        }
    }
}

/// `NOT IN` asks whether any key is NULL. Joins without keys have all rows in one partition.
#[test]
fn partitions_know_of_null_keys() {
    let (queue, all) = (queue(), side(300, 40, 1).project(&(0..10).collect::<Vec<_>>()).unwrap());
    let known = (0..300).filter(|row| all.column(2).is_valid(*row as usize));
    let without = take_record_batch(&all, &Int64Array::from_iter_values(known)).unwrap();
    for options in profiles() {
        for (keys, null_equals_null) in [(vec![2], false), (vec![1, 2], true), (vec![], false)] {
            for rows in [&all, &without, &all.slice(0, 0)] {
                let case = Case { kind: JoinKind::LeftAnti, keys: keys.clone(), null_equals_null, residual: false };
                let join = join_of(&case, rows, rows);
                let types = natural_types(&rows.schema()).unwrap();
                let builder = JoinBuild::try_new(&types, &[], &join, options.clone()).unwrap();
                let op = HashPartition::of_probe_side(&builder, rows.schema(), types.clone(), &join).unwrap();
                let batch = up(&queue, rows, &op.input().1);
                let partitioned = futures::executor::block_on(op.run(&queue, &batch, 0)).unwrap();
                let expected = keys == [2] && rows.column(2).null_count() > 0;
                assert_eq!(partitioned.has_null_keys, expected, "{keys:?}, {} rows", rows.num_rows());
                let used = (0..HashPartition::PARTITIONS).filter(|partition| !partitioned.of(*partition).is_empty()).count();
                assert!(!keys.is_empty() || used <= 1, "{used} partitions");
            }
        }
    }
}
