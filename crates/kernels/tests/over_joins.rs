// SPDX-License-Identifier: Apache-2.0
//! Aggregations fused with joins, compared with aggregations of materialized joins, in both
//! profiles.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod support;

use std::sync::Arc;

use arrow::array::{ArrayRef, BooleanArray, Decimal128Array, DictionaryArray, Int32Array, Int64Array, RecordBatch};
use arrow::datatypes::{DataType, Field, Int8Type};
use columnar::{ColumnType, DeviceBatch, natural_types};
use device::Queue;
use kernels::expr::AggregateFunction::*;
use kernels::expr::{Aggregate, ArithmeticOp, CompareOp, Expr, Literal, LiteralValue};
use kernels::ops::{
    FusedJoinCounts, FusedJoins, GroupBy, Input, Join, JoinBuild, JoinChain, JoinKind, JoinRole, JoinTable, Options, Reduce,
    Throttle,
};
use support::*;

/// Rows with a number as key, a foreign key to the `of` keys of another side, partly dangling, and
/// attributes.
fn side(n: usize, of: u64, salt: u64) -> RecordBatch {
    let value = |i: usize, column: u64| random(i, salt * 100 + column);
    let null = |i: usize, column: u64| random(i, salt * 1000 + column).is_multiple_of(7);
    let terms = ["red", "green", "a colour with a longer name"];
    let colour = |i: usize| (!null(i, 3)).then(|| terms[value(i, 3) as usize % 3]);
    let prices: Decimal128Array = (0..n).map(|i| (!null(i, 5)).then(|| i128::from(value(i, 5) % 100_000) - 20_000)).collect();
    let colours: DictionaryArray<Int8Type> = (0..n).map(colour).collect();
    batch(vec![
        ("key", Arc::new(Int64Array::from_iter_values(0..n as i64)) as ArrayRef, false),
        (
            "other",
            Arc::new((0..n).map(|i| (!null(i, 1)).then(|| (value(i, 1) % of.max(1)) as i64)).collect::<Int64Array>()),
            true,
        ),
        (
            "amount",
            Arc::new((0..n).map(|i| (!null(i, 2)).then(|| (value(i, 2) % 1000) as i32 - 300)).collect::<Int32Array>()),
            true,
        ),
        ("colour", Arc::new(colours), true),
        ("flag", Arc::new((0..n).map(|i| (!null(i, 4)).then(|| value(i, 4) % 2 == 0)).collect::<BooleanArray>()), true),
        ("price", Arc::new(prices.with_precision_and_scale(12, 2).unwrap()), true),
    ])
}

const WIDTH: usize = 6;

/// The codes of colours have narrow bounds.
fn types_of(build: &RecordBatch) -> Vec<ColumnType> {
    let mut types = natural_types(&build.schema()).unwrap();
    types[3].bounds = Some((0, 2));
    types
}

/// A join of the column `probe` with the build side's number.
fn join(kind: JoinKind, build: &RecordBatch, probe: usize, residual: Option<Expr>) -> Join {
    Join {
        kind,
        keys: vec![(col(probe), col(0))],
        null_equals_null: false,
        null_aware: false,
        residual,
        schema: build.schema(),
        types: types_of(build),
        role: JoinRole::Query,
    }
}

async fn tables(
    queue: &Queue,
    probe: &RecordBatch,
    joins: &[Join],
    builds: &[&RecordBatch],
    options: &Options,
) -> Vec<Arc<JoinTable>> {
    let types = types_of(probe);
    let mut tables = Vec::new();
    for (index, (join, build)) in joins.iter().zip(builds).enumerate() {
        let builder = JoinBuild::try_new(&types, &joins[..index], join, options.clone()).unwrap();
        let batch = (build.num_rows() > 0).then(|| up(queue, build, &join.types));
        tables.push(Arc::new(builder.build(queue, batch).await.unwrap()));
    }
    tables
}

/// A query, fused and materialized.
struct Query {
    input: Input,
    joins: Vec<Join>,
    tables: Vec<Arc<JoinTable>>,
    outputs: Vec<(Expr, Field)>,
    options: Options,
}

impl Query {
    fn joined(&self) -> (JoinChain, FusedJoins) {
        let (input, outputs) = (self.input.clone(), self.outputs.clone());
        let (chain, joined) =
            JoinChain::before_aggregation(input, &self.joins, Some(&self.tables), outputs, &self.options).unwrap();
        (chain, joined.expect("joins that a sink can take"))
    }

    /// The batches that reach the sink.
    async fn batches(&self, queue: &Queue, chain: &JoinChain, rows: &DeviceBatch) -> Vec<DeviceBatch> {
        let (mut state, mut batches) = (chain.start(), Vec::new());
        for slice in rows.chunks((rows.num_rows() / 3).max(1)) {
            chain.push(&mut state, &slice);
            while let Some(batch) = chain.next(queue, &mut state).await.unwrap() {
                batches.push(batch);
            }
        }
        batches
    }

    /// The materialized joined rows.
    async fn written(&self, queue: &Queue, rows: &DeviceBatch) -> (Input, Vec<DeviceBatch>) {
        let (input, outputs) = (self.input.clone(), self.outputs.clone());
        let chain = JoinChain::try_new(input, &self.joins, Some(&self.tables), outputs, self.options.clone()).unwrap();
        let input = Input { schema: chain.schema().clone(), types: chain.output_types().to_vec(), filter: None };
        (input, self.batches(queue, &chain, rows).await)
    }
}

fn of(function: kernels::expr::AggregateFunction, argument: Option<Expr>, data_type: DataType) -> (Aggregate, Field) {
    aggregate(function, argument, data_type)
}

/// Aggregates of columns 0 (a number), 1 (an amount), 2 (a flag) and 4 (a price) of the output.
fn aggregates() -> Vec<(Aggregate, Field)> {
    let mut some = of(Sum, Some(col(0)), DataType::Int64);
    some.0.filter = Some(col(2));
    let product = arithmetic(ArithmeticOp::Multiply, col(4), col(4), DataType::Decimal128(25, 4));
    vec![
        of(Sum, Some(col(4)), DataType::Decimal128(22, 2)),
        of(Count, None, DataType::Int64),
        of(Sum, Some(col(1)), DataType::Int64),
        of(Min, Some(arithmetic(ArithmeticOp::Subtract, col(0), cast(col(1)), DataType::Int64)), DataType::Int64),
        of(Max, Some(col(1)), DataType::Int32),
        of(Sum, Some(product), DataType::Decimal128(35, 4)),
        some,
    ]
}

fn cast(expr: Expr) -> Expr {
    expr.cast(&DataType::Int32, &DataType::Int64, true).unwrap()
}

async fn sorted(queue: &Queue, batches: Vec<DeviceBatch>) -> Vec<String> {
    let mut found = Vec::new();
    for batch in &batches {
        found.extend(rows(&columnar::download(queue, batch).await.unwrap()));
    }
    found.sort();
    found
}

/// Compares fused and materialized aggregations by every supported key: a flag and dictionary
/// codes. Returns the number of joined rows of both.
fn check(query: &Query, probe: &RecordBatch, what: &str) -> FusedJoinCounts {
    let queue = queue();
    futures::executor::block_on(async {
        let rows = up(&queue, probe, &query.input.types);
        let (input, written) = query.written(&queue, &rows).await;
        let (chain, joined) = query.joined();
        let read = if joined.is_empty() { vec![] } else { query.batches(&queue, &chain, &rows).await };
        let options = &query.options;

        let (expected, actual) = (
            Reduce::try_new(input.clone(), aggregates(), options.clone()).unwrap(),
            Reduce::over_joins(&joined, &aggregates(), options.clone()).unwrap().unwrap(),
        );
        let (mut left, mut right) = (expected.start(), actual.start());
        for batch in &written {
            expected.push(&queue, &mut left, batch).await.unwrap();
        }
        for slice in read.iter().flat_map(|batch| joined.slices(&queue, batch)) {
            actual.push(&queue, &mut right, &slice).await.unwrap();
        }
        let counted = actual.joined_rows(&queue, &right).await.unwrap();
        assert_eq!(counted.kept, written.iter().map(DeviceBatch::num_rows).sum::<usize>() as u64, "{what}");
        let (left, right) = (expected.finish(&queue, left).await.unwrap(), actual.finish(&queue, right).await.unwrap());
        assert_eq!(sorted(&queue, vec![right]).await, sorted(&queue, vec![left]).await, "{what}");

        for keys in [vec![2], vec![3], vec![2, 3]] {
            let fields = keys.iter().map(|key| (col(*key), query.outputs[*key].1.clone())).collect::<Vec<_>>();
            let expected = GroupBy::try_new(input.clone(), fields.clone(), aggregates(), options.clone()).unwrap();
            let actual = GroupBy::over_joins(&joined, &fields, &aggregates(), options.clone()).unwrap().unwrap();
            let layout = |op: &GroupBy| -> Vec<_> {
                op.output_types().iter().map(|ty| (ty.layout.clone(), ty.nullable, ty.data_type.clone())).collect()
            };
            assert_eq!(layout(&actual), layout(&expected), "{what}, by {keys:?}");
            let (mut left, mut right) = (expected.start(), actual.start());
            for batch in &written {
                expected.push(&queue, &mut left, batch).await.unwrap();
            }
            for slice in read.iter().flat_map(|batch| joined.slices(&queue, batch)) {
                actual.push(&queue, &mut right, &slice).await.unwrap();
            }
            assert_eq!(actual.joined_rows(&queue, &right).await.unwrap(), counted, "{what}, by {keys:?}");
            let (left, right) = (expected.finish(&queue, left).await.unwrap(), actual.finish(&queue, right).await.unwrap());
            assert_eq!(sorted(&queue, right).await, sorted(&queue, left).await, "{what}, by {keys:?}");
        }
        counted
    })
}

/// The columns of the aggregates: of the build side, which begins there, or of the probe side.
fn outputs(of_build: Option<usize>, build: &RecordBatch) -> Vec<(Expr, Field)> {
    let first = of_build.unwrap_or(0);
    let field = |column: usize| build.schema().field(column).clone().with_nullable(true);
    [0, 2, 4, 3, 5].map(|column| (col(first + column), field(column))).to_vec()
}

fn query(
    probe: &RecordBatch,
    joins: Vec<Join>,
    builds: &[&RecordBatch],
    outputs: Vec<(Expr, Field)>,
    filter: Option<Expr>,
    options: Options,
) -> Query {
    let tables = futures::executor::block_on(tables(&queue(), probe, &joins, builds, &options));
    let joins = joins.into_iter().zip(&tables).map(|(join, table)| {
        let types = table.batch().columns().iter().map(|column| (**column.ty()).clone()).collect();
        Join { types, ..join }
    });
    let input = Input { schema: probe.schema(), types: types_of(probe), filter };
    Query { input, joins: joins.collect(), tables, outputs, options }
}

#[test]
fn every_kind_with_at_most_one_match() {
    device::skip_unless_turn!(2);
    let build = side(300, 1, 1);
    for options in profiles() {
        for rows in [1, 3, 257, 1025] {
            let probe = side(rows, 400, 2);
            for kind in [JoinKind::Inner, JoinKind::Right, JoinKind::RightSemi, JoinKind::RightAnti, JoinKind::RightMark] {
                let of_build = matches!(kind, JoinKind::Inner | JoinKind::Right).then_some(WIDTH);
                let mut outputs = outputs(of_build, &build);
                if kind == JoinKind::RightMark {
                    outputs[2].0 = col(2 * WIDTH);
                }
                let residual = matches!(kind, JoinKind::Inner | JoinKind::RightAnti)
                    .then(|| compare(CompareOp::NotEq, col(4), col(WIDTH + 4)));
                let joins = vec![join(kind, &build, 1, residual)];
                let query = query(&probe, joins, &[&build], outputs, None, options.clone());
                check(&query, &probe, &format!("{kind:?} of {rows} rows, {:?}", options.profile));
            }
        }
    }
}

#[test]
fn sides_without_rows() {
    for options in profiles() {
        for (rows, built) in [(0, 5), (5, 0), (0, 0)] {
            let (probe, build) = (side(rows, 400, 3), side(built, 1, 4));
            for kind in [JoinKind::Inner, JoinKind::Right, JoinKind::RightAnti] {
                let of_build = (kind != JoinKind::RightAnti).then_some(WIDTH);
                let query =
                    query(&probe, vec![join(kind, &build, 1, None)], &[&build], outputs(of_build, &build), None, options.clone());
                check(&query, &probe, &format!("{kind:?} of {rows} and {built} rows, {:?}", options.profile));
            }
        }
    }
}

#[test]
fn several_joins_with_filters_between_them() {
    let (probe, one, two) = (side(5000, 350, 5), side(300, 60, 6), side(50, 1, 7));
    for options in profiles() {
        // Filters of the probe side, of the first join, and of all.
        let filter = Expr::And(vec![
            compare(CompareOp::Gt, col(2), int(-200, DataType::Int32)),
            compare(CompareOp::NotEq, col(WIDTH + 2), int(7, DataType::Int32)),
            Expr::Or(vec![compare(CompareOp::Lt, col(0), col(2 * WIDTH)), Expr::IsNull(Arc::new(col(2 * WIDTH + 4)))]),
        ]);
        let joins = vec![join(JoinKind::Inner, &one, 1, None), join(JoinKind::Right, &two, WIDTH + 1, None)];
        let mut outputs = outputs(Some(2 * WIDTH), &two);
        outputs[1].0 = col(2);
        let query = query(&probe, joins, &[&one, &two], outputs, Some(filter), options.clone());
        assert!(check(&query, &probe, &format!("{:?}", options.profile)).kept > 0);
    }
}

/// The cpu profile processes rows in blocks, the gpu profile one by one.
#[test]
fn blocks_agree_with_single_rows() {
    let (one, two) = (side(300, 60, 21), side(50, 1, 22));
    let queue = queue();
    let profiles: Vec<_> = profiles().collect();
    // The gpu profile has no blocks.
    let [cpu, gpu] = &profiles[..] else { return };
    for rows in [1, 255, 256, 257, 513] {
        let probe = side(rows, 350, 23);
        let found = |options: &Options| {
            let filter = Expr::And(vec![
                compare(CompareOp::Gt, col(2), int(-250, DataType::Int32)),
                compare(CompareOp::NotEq, col(WIDTH + 2), int(7, DataType::Int32)),
                Expr::Or(vec![compare(CompareOp::Lt, col(0), col(2 * WIDTH)), Expr::IsNull(Arc::new(col(2 * WIDTH + 4)))]),
            ]);
            let residual = compare(CompareOp::NotEq, col(4), col(WIDTH + 4));
            let joins = vec![
                join(JoinKind::Inner, &one, 1, Some(residual)),
                join(JoinKind::Right, &two, WIDTH + 1, None),
                join(JoinKind::RightAnti, &two, 0, None),
            ];
            let mut outputs = outputs(Some(2 * WIDTH), &two);
            outputs[1].0 = col(2);
            let query = query(&probe, joins, &[&one, &two, &two], outputs, Some(filter), options.clone());
            futures::executor::block_on(async {
                let (input, outputs) = (query.input.clone(), query.outputs.clone());
                let chain = JoinChain::try_new(input, &query.joins, Some(&query.tables), outputs, options.clone()).unwrap();
                let (mut state, mut batches) = (chain.start(), Vec::new());
                chain.push(&mut state, &up(&queue, &probe, &query.input.types));
                while let Some(batch) = chain.next(&queue, &mut state).await.unwrap() {
                    batches.push(batch);
                }
                sorted(&queue, batches).await
            })
        };
        let expected = found(gpu);
        assert!(rows < 255 || !expected.is_empty(), "{rows} rows give none");
        for compaction_tile_rows in [32, 288, cpu.compaction_tile_rows] {
            assert_eq!(
                found(&Options { compaction_tile_rows, ..cpu.clone() }),
                expected,
                "{rows} rows in tiles of {compaction_tile_rows}"
            );
        }
    }
}

#[test]
fn many_candidate_pairs_take_several_launches() {
    let queue = queue();
    let units = queue.context().info().compute_units.max(1) as usize;
    let n = (1 << 17) + 1;
    // All rows but the last build row have the same key.
    let keyed = |rows: usize, others: usize, salt: u64| {
        let side = side(rows + others, 1, salt);
        let keys = Int64Array::from_iter_values((0..rows + others).map(|row| i64::from(row >= rows)));
        let columns = [Arc::new(keys) as ArrayRef].into_iter().chain(side.columns()[1..].to_vec());
        RecordBatch::try_new(side.schema(), columns.collect()).unwrap()
    };
    let probe = keyed(n, 0, 31);
    for options in profiles() {
        for (length, expected) in [(2048 * units + 1, 3..1000), (7, 1..2)] {
            let build = keyed(length, 1, 32);
            let residual = compare(CompareOp::Lt, col(2), col(WIDTH + 2));
            let joins = vec![join(JoinKind::RightSemi, &build, 0, Some(residual))];
            let query = query(&probe, joins, &[&build], outputs(None, &build), None, options.clone());
            let (_, joined) = query.joined();
            let op = Reduce::over_joins(&joined, &aggregates(), options.clone()).unwrap().unwrap();
            futures::executor::block_on(async {
                let rows = up(&queue, &probe, &query.input.types);
                let (mut cut, mut whole, mut throttle) = (op.start(), op.start(), Throttle::default());
                let (mut slices, metered) = (0, joined.metered(&queue));
                for slice in joined.slices(&queue, &rows) {
                    joined.throttle(&queue, &mut throttle, &slice).await.unwrap();
                    op.push(&metered, &mut cut, &slice).await.unwrap();
                    slices += 1;
                }
                assert!(expected.contains(&slices), "{slices} slices, lists of {length}, {:?}", options.profile);
                op.push(&queue, &mut whole, &rows).await.unwrap();
                let kept = op.joined_rows(&queue, &cut).await.unwrap();
                assert!(kept.kept > 0 && kept.kept < n as u64);
                assert_eq!(kept, op.joined_rows(&queue, &whole).await.unwrap());
                let (cut, whole) = (op.finish(&queue, cut).await.unwrap(), op.finish(&queue, whole).await.unwrap());
                assert_eq!(sorted(&queue, vec![cut]).await, sorted(&queue, vec![whole]).await);
            });
        }
    }
}

#[test]
fn a_multiplying_join_below() {
    let (probe, many, one) = (side(500, 40, 8), side(90, 40, 9), side(45, 1, 10));
    for options in profiles() {
        let first = Join { keys: vec![(col(1), col(1))], ..join(JoinKind::Inner, &many, 1, None) };
        let joins = vec![first, join(JoinKind::Inner, &one, WIDTH + 1, None)];
        let query = query(&probe, joins, &[&many, &one], outputs(Some(2 * WIDTH), &one), None, options.clone());
        assert!(check(&query, &probe, &format!("{:?}", options.profile)).kept > 500);
        // The multiplying join alone cannot be fused.
        let alone = JoinChain::before_aggregation(
            query.input.clone(),
            &query.joins[..1],
            Some(&query.tables[..1]),
            outputs(Some(WIDTH), &many),
            &options,
        );
        assert!(alone.unwrap().1.is_none());
    }
}

#[test]
fn dynamic_filters_count_removed_rows() {
    let (probe, build) = (side(2000, 600, 11), side(300, 1, 12));
    let null = Expr::Literal(Literal { data_type: DataType::Int64, value: LiteralValue::Null });
    for options in profiles() {
        let own = join(JoinKind::Inner, &build, 1, None);
        let table = futures::executor::block_on(tables(&queue(), &probe, std::slice::from_ref(&own), &[&build], &options));
        let types = table[0].batch().columns().iter().map(|column| (**column.ty()).clone()).collect();
        let query = Query {
            input: Input { schema: probe.schema(), types: types_of(&probe), filter: None },
            joins: vec![Join::dynamic_filter(vec![(col(1), null.clone())], false), Join { types, ..own }],
            tables: vec![table[0].clone(), table[0].clone()],
            outputs: outputs(Some(WIDTH), &build),
            options,
        };
        let counted = check(&query, &probe, &format!("{:?}", query.options.profile));
        assert_eq!(counted.removed, [2000 - counted.kept]);
        assert!(counted.kept > 0);
    }
}

#[test]
fn aggregations_with_several_kernels_are_not_fused() {
    let (probe, build) = (side(10, 10, 13), side(10, 1, 14));
    for options in profiles() {
        let query = query(
            &probe,
            vec![join(JoinKind::Inner, &build, 1, None)],
            &[&build],
            outputs(Some(WIDTH), &build),
            None,
            options.clone(),
        );
        let joined = query.joined().1;
        let mut distinct = of(Count, Some(col(0)), DataType::Int64);
        distinct.0.distinct = true;
        assert!(Reduce::over_joins(&joined, &[distinct], options.clone()).unwrap().is_none());
        let by_number = [(col(0), Field::new("key", DataType::Int64, true))];
        assert!(GroupBy::over_joins(&joined, &by_number, &aggregates(), options).unwrap().is_none());
    }
}

#[test]
fn many_rows() {
    let (probe, build) = (side((1 << 17) + 1, 3000, 15), side(2500, 1, 16));
    for options in profiles() {
        let joins = vec![join(JoinKind::Inner, &build, 1, None)];
        let query = query(&probe, joins, &[&build], outputs(Some(WIDTH), &build), None, options.clone());
        assert!(check(&query, &probe, &format!("{:?}", options.profile)).kept > 90_000);
    }
}
