// SPDX-License-Identifier: Apache-2.0
//! Joins whose tables or results are large beside the device's memory.

use super::*;

/// The chain of one join over all rows of its probe side.
fn chain_of(
    join: &Join,
    probe: &RecordBatch,
    table: Arc<JoinTable>,
    outputs: Vec<(Expr, Field)>,
    options: &Options,
) -> JoinChain {
    let types = table.batch().columns().iter().map(|column| (**column.ty()).clone()).collect();
    let input = Input { schema: probe.schema(), types: natural_types(&probe.schema()).unwrap(), filter: None };
    JoinChain::try_new(input, &[Join { types, ..join.clone() }], Some(&[table]), outputs, options.clone()).unwrap()
}

/// A dimension of 8000 keys in a range of two million, and 2^17 rows that refer to it.
#[test]
fn tables_and_wide_results_fit_little_memory() {
    const LIMIT: usize = 16 << 20;
    let (keys, rows) = (8000_i64, (1_i64 << 17) + 1);
    let build = batch(vec![("k", Arc::new(Int64Array::from_iter_values((0..keys).map(|key| key * 250))) as ArrayRef, false)]);
    let probe =
        batch(vec![("k", Arc::new(Int64Array::from_iter_values((0..rows).map(|row| row % keys * 250))) as ArrayRef, false)]);
    let join = join_of(&Case { kind: JoinKind::Inner, keys: vec![0], null_equals_null: false, residual: false }, &build, &probe);
    for options in profiles() {
        let queue = queue_of_bytes(LIMIT);
        let pool = queue.context().pool().clone();
        futures::executor::block_on(async {
            let table = table(&queue, &join, &probe, &build, &options).await;
            queue.finish().await.unwrap();
            // The rows, and an array or a hash table of their numbers.
            assert!(pool.in_use() < LIMIT / 8, "{} bytes, {:?}", pool.in_use(), options.profile);
            let types = natural_types(&probe.schema()).unwrap();
            // 320 bytes a row: 42 MB in all.
            let outputs = (0..40).map(|output| (col(output % 2), Field::new(format!("o{output}"), DataType::Int64, false)));
            let chain = chain_of(&join, &probe, table, outputs.collect(), &options);
            let (mut state, mut found) = (chain.start(), 0);
            let whole = up(&queue, &probe, &types);
            for slice in chain.slices(&queue, &whole) {
                chain.push(&mut state, &slice);
                while let Some(batch) = chain.next(&queue, &mut state).await.unwrap() {
                    found += batch.num_rows();
                }
            }
            assert_eq!(found, rows as usize);
        });
    }
}

/// Each of 2000 rows finds two strings of ten kilobytes, which the type of a column does not tell.
/// A quarter of the memory is free again after the first batch.
#[test]
fn pairs_of_long_strings_fit_little_memory() {
    const LIMIT: usize = 8 << 20;
    let texts: Vec<String> = (0..200).map(|row| format!("{row:04} {}", "x".repeat(10_000))).collect();
    let keys = Int64Array::from_iter_values((0..200).map(|row| row / 2));
    let build = batch(vec![("k", Arc::new(keys) as ArrayRef, false), ("text", Arc::new(StringArray::from(texts)), false)]);
    let probe = batch(vec![("k", Arc::new(Int64Array::from_iter_values((0..2000).map(|row| row % 100))) as ArrayRef, false)]);
    for kind in [JoinKind::Inner, JoinKind::Left] {
        let join = join_of(&Case { kind, keys: vec![0], null_equals_null: false, residual: false }, &build, &probe);
        for options in profiles() {
            let queue = queue_of_bytes(LIMIT);
            futures::executor::block_on(async {
                let table = table(&queue, &join, &probe, &build, &options).await;
                let types = natural_types(&probe.schema()).unwrap();
                let outputs = vec![(col(2), Field::new("text", DataType::Utf8, true))];
                let chain = chain_of(&join, &probe, table, outputs, &options);
                let (mut state, mut found) = (chain.start(), 0);
                let (mut others, mut first, mut most) = (Some(queue.alloc(LIMIT / 4).unwrap()), None, 0);
                chain.push(&mut state, &up(&queue, &probe, &types));
                while let Some(batch) = chain.next(&queue, &mut state).await.unwrap() {
                    others.take();
                    let rows = batch.num_rows();
                    (found, most) = (found + rows, most.max(rows));
                    first.get_or_insert(rows);
                }
                assert!(most < 1024 && Some(most) > first, "{first:?}, then {most} rows at once");
                assert_eq!(unmatched(&chain, &queue, &mut state).await.iter().map(DeviceBatch::num_rows).sum::<usize>(), 0);
                assert_eq!(found, 4000);
            });
        }
    }
}

/// The unmatched rows of a build side of 2^17 + 1 rows, each with 320 bytes: 42 MB in all.
#[test]
fn unmatched_build_rows_fit_little_memory() {
    const LIMIT: usize = 16 << 20;
    let rows = (1_i64 << 17) + 1;
    let build = batch(vec![("k", Arc::new(Int64Array::from_iter_values(0..rows)) as ArrayRef, false)]);
    let probe = batch(vec![("k", Arc::new(Int64Array::from_iter_values((0..1000).map(|row| row * 131))) as ArrayRef, false)]);
    for kind in [JoinKind::Left, JoinKind::Full] {
        let join = join_of(&Case { kind, keys: vec![0], null_equals_null: false, residual: false }, &build, &probe);
        for options in profiles() {
            let queue = queue_of_bytes(LIMIT);
            futures::executor::block_on(async {
                let table = table(&queue, &join, &probe, &build, &options).await;
                let types = natural_types(&probe.schema()).unwrap();
                let outputs = (0..40).map(|output| (col(1), Field::new(format!("o{output}"), DataType::Int64, true)));
                let chain = chain_of(&join, &probe, table, outputs.collect(), &options);
                let mut state = chain.start();
                let matched = pushed(&chain, &queue, &mut state, &up(&queue, &probe, &types)).await;
                assert_eq!(matched.iter().map(DeviceBatch::num_rows).sum::<usize>(), 1000);
                drop(matched);
                let (mut parts, mut keys) = (0, Vec::<i64>::new());
                while let Some(batch) = chain.finish(&queue, &mut state).await.unwrap() {
                    let batch = columnar::download(&queue, &batch).await.unwrap();
                    keys.extend(batch.column(39).as_any().downcast_ref::<Int64Array>().unwrap().values());
                    parts += 1;
                }
                assert!(parts > 2, "{parts} parts");
                assert!(keys == (0..rows).filter(|key| key % 131 != 0 || key / 131 >= 1000).collect::<Vec<_>>(), "{kind:?}");
            });
        }
    }
}

/// As [`pairs_of_long_strings_fit_little_memory`], but each row has one match, so that the rows of
/// a slice are written at once.
#[test]
fn single_matches_with_long_strings_fit_little_memory() {
    const LIMIT: usize = 8 << 20;
    let texts: Vec<String> = (0..200).map(|row| format!("{row:04} {}", "x".repeat(10_000))).collect();
    let keys = Int64Array::from_iter_values(0..200);
    let build = batch(vec![("k", Arc::new(keys) as ArrayRef, false), ("text", Arc::new(StringArray::from(texts)), false)]);
    let probe = batch(vec![("k", Arc::new(Int64Array::from_iter_values((0..8000).map(|row| row % 200))) as ArrayRef, false)]);
    let join = join_of(&Case { kind: JoinKind::Inner, keys: vec![0], null_equals_null: false, residual: false }, &build, &probe);
    for options in profiles() {
        let queue = queue_of_bytes(LIMIT);
        futures::executor::block_on(async {
            let table = table(&queue, &join, &probe, &build, &options).await;
            let types = natural_types(&probe.schema()).unwrap();
            let outputs =
                vec![(col(0), Field::new("k", DataType::Int64, true)), (col(2), Field::new("text", DataType::Utf8, true))];
            let chain = Arc::new(chain_of(&join, &probe, table, outputs, &options));
            let (mut state, mut found) = (chain.start(), Vec::new());
            let whole = up(&queue, &probe, &types);
            let first_step = chain.first_step(&queue, &state);
            for slice in chain.slices(&queue, &whole) {
                let first = first_step(slice).await.unwrap();
                chain.resume(&mut state, first);
                while let Some(batch) = chain.next(&queue, &mut state).await.unwrap() {
                    let batch = columnar::download(&queue, &batch).await.unwrap();
                    let texts = batch.column(1).as_any().downcast_ref::<StringArray>().unwrap();
                    found.extend(texts.iter().flatten().map(|text| text[..4].parse::<usize>().unwrap()));
                }
            }
            assert!(found == (0..8000).map(|row| row % 200).collect::<Vec<_>>(), "{} rows", found.len());
        });
    }
}
