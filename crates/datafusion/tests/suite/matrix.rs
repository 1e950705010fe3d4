// SPDX-License-Identifier: Apache-2.0
//! Every operator over every type:
//!
//! - over 0, 1, 31 and 257 rows without NULLs
//! - over 31 and 257 rows with some NULLs, and with NULLs alone
//! - over 2^17 + 1 rows with some NULLs
//!
//! Types with the layout of another type run over 257 rows with some NULLs, and with NULLs alone.
//! One query of each operator runs in the GPU profile too.

use std::sync::Arc;
use std::time::Instant;

use arrow::array::{Array, RecordBatch};
use arrow::compute::concat_batches;
use arrow::datatypes::{DataType, Schema};
use datafusion::datasource::MemTable;
use datafusion::prelude::SessionContext;
use device::testing::sample;
use devicefusion::DeviceRuntime;

use crate::harness::{Answer, answer, block_on, context, device_config, plain, set, strict, strict_on, text};

/// Types, with an expression that maps a number `$` to a value. Small numbers map to different
/// values, except for booleans.
const TYPES: &[(&str, &str)] = &[
    ("Boolean", "$ % 2 = 1"),
    ("Int8", "$ % 100 - 50"),
    ("Int16", "$ % 30000 - 40"),
    ("Int32", "$ * 1001 - 50000"),
    ("Int64", "$ * 4000000007 - 50"),
    ("UInt8", "$ % 250"),
    ("UInt16", "$ % 60000"),
    ("UInt32", "$ * 30001"),
    ("UInt64", "$ * 4000000007"),
    ("Float32", "CASE $ WHEN 3 THEN 'NaN'::DOUBLE WHEN 4 THEN -0.0::DOUBLE ELSE $ / 8.0::DOUBLE - 5 END"),
    ("Float64", "CASE $ WHEN 3 THEN 'NaN'::DOUBLE WHEN 4 THEN -0.0::DOUBLE ELSE $ / 8.0::DOUBLE - 5 END"),
    ("Decimal128(9, 2)", "($ - 50)::DECIMAL(9, 0) / 4"),
    ("Decimal128(18, 4)", "$ * 1000003 - 50"),
    ("Decimal128(38, 10)", "($ - 50)::DECIMAL(18, 0) * 40000000000000000::DECIMAL(18, 0)"),
    ("Decimal256(50, 5)", "($ - 50)::DECIMAL(18, 0) * 40000000000000000::DECIMAL(18, 0)"),
    ("Date32", "arrow_cast($ - 50, 'Int32')"),
    ("Date64", "($ - 50) * 86400000"),
    ("Time32(Second)", "arrow_cast($ % 86400, 'Int32')"),
    ("Time64(Nanosecond)", "$ % 80000 * 1000000007"),
    ("Timestamp(Second, None)", "$ * 100003 - 5000000"),
    ("Timestamp(Microsecond, None)", "$ * 100000000003 - 50"),
    ("Timestamp(Nanosecond, Some(\"Europe/Berlin\"))", "$ * 100000000003 - 50"),
    ("Duration(Millisecond)", "$ * 1003 - 50"),
    ("Interval(MonthDayNano)", "$ % 5 || ' months ' || ($ % 3 - 1) || ' days ' || $ || '.000000007 seconds'"),
    ("Utf8", "CASE $ WHEN 2 THEN '' ELSE $ % 7 || ' term ' || $ END"),
    ("LargeUtf8", "CASE $ WHEN 2 THEN '' ELSE $ % 7 || ' term ' || $ END"),
    ("Utf8View", "CASE $ WHEN 2 THEN '' ELSE $ % 7 || CASE $ % 2 WHEN 0 THEN ' a term that is long ' ELSE '' END || $ END"),
    ("Binary", "arrow_cast(CASE $ WHEN 2 THEN '' ELSE $ % 7 || 'x' || $ END, 'Utf8')"),
    ("BinaryView", "arrow_cast(CASE $ WHEN 2 THEN '' ELSE $ % 7 || ' bytes that are many ' || $ END, 'Utf8View')"),
    ("Dictionary(Int32, Utf8)", "arrow_cast($ % 7 || ' term ' || $, 'Utf8')"),
];

/// Types with the layout of another type, which code distinguishes.
const SIMILAR: &[(&str, &str)] = &[
    ("Decimal32(9, 2)", "($ - 50)::DECIMAL(9, 0) / 4"),
    ("Decimal64(18, 4)", "$ * 1000003 - 50"),
    ("Time32(Millisecond)", "arrow_cast($ % 86400 * 1000, 'Int32')"),
    ("Time64(Microsecond)", "$ % 80000 * 1000003"),
    ("Timestamp(Millisecond, None)", "$ * 100000003 - 50"),
    ("Timestamp(Nanosecond, None)", "$ * 100000000003 - 50"),
    ("Timestamp(Nanosecond, Some(\"UTC\"))", "$ * 100000000003 - 50"),
    ("Timestamp(Second, Some(\"+05:30\"))", "$ * 100003 - 5000000"),
    ("Timestamp(Microsecond, Some(\"America/New_York\"))", "$ * 100000000003 - 50"),
    ("Duration(Second)", "$ * 1003 - 50"),
    ("Duration(Microsecond)", "$ * 1003 - 50"),
    ("Duration(Nanosecond)", "$ * 1003 - 50"),
    ("LargeBinary", "arrow_cast(CASE $ WHEN 2 THEN '' ELSE $ % 7 || 'x' || $ END, 'LargeUtf8')"),
    ("FixedSizeBinary(6)", "arrow_cast(lpad(CAST($ AS VARCHAR), 6, '0'), 'Binary')"),
    ("Dictionary(UInt16, Int64)", "$ * 4000000007 - 50"),
    ("Dictionary(Int16, Utf8View)", "arrow_cast($ % 7 || ' term ' || $, 'Utf8View')"),
    ("Dictionary(Int32, Decimal128(15, 2))", "($ - 50)::DECIMAL(15, 2)"),
    ("Null", "NULL"),
];

/// Lists, which operators use as keys and pass on.
const LISTS: &[(&str, &str)] = &[
    ("List(Int64)", "CASE $ WHEN 2 THEN arrow_cast([], 'List(Int64)') ELSE make_array($, NULL, $ % 4) END"),
    ("LargeList(Utf8)", "make_array($ || ' is a text that is long', NULL, '')"),
    ("FixedSizeList(2, Float64)", "make_array($ / 8.0::DOUBLE, NULL)"),
];

/// Types of many values. Each has its own way to look up join keys.
const KEYS: &[&str] =
    &["Int16", "Int64", "Float64", "Decimal128(38, 10)", "Utf8", "Utf8View", "Dictionary(Int32, Utf8)", "Interval(MonthDayNano)"];

/// Rows of `t` and of `u`, and the condition on row numbers `i` for NULLs.
type Tables = (usize, usize, &'static str);

const NONE: &str = "false";
const SOME: &str = "i % 3 = 1";
const EACH: &str = "true";

/// Rows of `u` at most, unless it is as large as `t`.
const FEW: usize = 40;

/// More rows than the tiles of a launch have. They have some NULLs, and run no join that returns
/// each pair of rows.
const LARGE: usize = (1 << 17) + 1;

/// The last tile of a kernel is empty, short or full. Tables of 0 and 1 rows have no NULLs.
const ALL: &[Tables] = &[
    (0, 0, NONE),
    (1, 1, NONE),
    (31, 31, NONE),
    (31, 31, SOME),
    (31, 31, EACH),
    (257, FEW, NONE),
    (257, FEW, SOME),
    (257, FEW, EACH),
    (LARGE, FEW, SOME),
];

/// NULLs alone compile no kernels beyond those of some NULLs.
const ONCE: &[Tables] = &[(257, FEW, SOME), (257, FEW, EACH)];

/// One query of each operator.
const OPERATORS: &[&str] = &[
    "SELECT id, v = w, coalesce(v, w), CASE WHEN v > w THEN v ELSE w END FROM t WHERE v < w OR v IS NULL",
    "SELECT id, v FROM t WHERE v IN (SELECT w FROM u) OR id % 7 = 0",
    "SELECT id, coalesce(v, w) FROM t UNION ALL SELECT id + 1, w FROM u",
    "SELECT v, count(*), count(w), min(w), max(w) FROM t GROUP BY v",
    "SELECT v, w, grouping(v), count(*) FROM t GROUP BY GROUPING SETS ((v), (w, v), ())",
    "SELECT v, id, w FROM t ORDER BY w DESC, v NULLS FIRST, id LIMIT 7 OFFSET 2",
    "SELECT id, lag(v) OVER (ORDER BY id), min(w) OVER (PARTITION BY v ORDER BY id) FROM t",
    "SELECT t.id, u.id FROM t FULL JOIN u ON t.v = u.v AND t.w = u.w",
    "SELECT t.id, u.id, t.w FROM t RIGHT JOIN u ON t.v = u.v AND t.w >= u.w",
    "SELECT t.id, u.id, t.v, u.w FROM t CROSS JOIN (SELECT id, w FROM u WHERE id < 3) u WHERE t.id % 4 = 1",
    "SELECT id, v, (SELECT max(w) FROM u) FROM t WHERE v >= (SELECT min(v) FROM u WHERE id % 5 = 2) OR id = 2",
    "WITH c AS (SELECT v, count(*) AS n, max(w) AS m FROM t GROUP BY v) SELECT a.v, a.n, b.m FROM c a JOIN c b ON a.v = b.v",
    "SELECT v FROM t EXCEPT ALL SELECT w FROM u",
];

/// Table of `id`, `v` and `w`, with up to `keys` distinct values in `v` and in `w`.
async fn table(data_type: &str, value: &str, rows: usize, keys: usize, nulls: &str) -> RecordBatch {
    let column = |number: &str| {
        let value = value.replace('$', number);
        let value = if nulls == NONE { value } else { format!("CASE WHEN {nulls} THEN NULL ELSE {value} END") };
        format!("arrow_cast({value}, '{data_type}')")
    };
    let numbers =
        format!("SELECT value AS i, value * 7919 % {keys} AS n, value * 13 % {keys} AS m FROM generate_series(1, {rows})");
    let sql = format!("SELECT i AS id, {} AS v, {} AS w FROM ({numbers})", column("n"), column("m"));
    let made = answer(&plain(1), &sql).await.unwrap();
    let batch = concat_batches(&made.schema, &made.batches).unwrap();
    let nullable = nulls != NONE;
    let fields = made.schema.fields().iter().map(|field| field.as_ref().clone().with_nullable(nullable && field.name() != "id"));
    let schema = Schema::new(fields.collect::<Vec<_>>());
    assert_eq!(batch.column(1).logical_null_count() > 0, nullable && rows > 0);
    assert_eq!(batch.column(1).data_type(), &data_type.parse::<DataType>().unwrap());
    RecordBatch::try_new(Arc::new(schema), batch.columns().to_vec()).unwrap()
}

/// Whether DataFusion supports the query's functions for a type.
fn is_answered(sql: &str, data_type: &str) -> bool {
    let is = |kinds: &[&str]| kinds.iter().any(|kind| data_type.starts_with(kind));
    let is_exact = is(&["Int", "UInt", "Decimal"]) && !is(&["Interval"]);
    (!sql.contains("median") || is_exact || is(&["Float"]))
        && (!sql.contains("string_agg") || is(&["Utf8", "LargeUtf8"]))
        && (!sql.contains("sum(v)") || is_exact || is(&["Duration", "Interval"]))
        && (!sql.contains("approx_distinct") || !is(&["Float", "Dictionary"]))
}

/// Compares the answers of queries over tables of each type, NULLs and size. Sorted rows are
/// compared in order.
fn check_all(queries: &[&str]) {
    check(TYPES, queries, ALL);
}

/// Like `check_all` over one size, with the similar types.
fn check_once(queries: &[&str]) {
    check(TYPES, queries, ONCE);
    check(SIMILAR, queries, ONCE);
}

fn check(types: &[(&str, &str)], queries: &[&str], tables: &[Tables]) {
    check_on(&strict(2), types, queries, tables);
}

fn check_on(device: &SessionContext, types: &[(&str, &str)], queries: &[&str], tables: &[Tables]) {
    block_on(async {
        let host = plain(2);
        let start = Instant::now();
        let (mut compared, mut refused, mut launches) = (0, 0, 0);
        for (data_type, value) in sample(types.to_vec()).unwrap() {
            for (rows, others, nulls) in tables.iter().copied() {
                // Rows of `t` and of a small `u` share values. Rows of a large `u` do not, so each
                // row of `t` has one match.
                let others_keys = if others > FEW { others } else { (others / 3).max(5) };
                for (name, rows, keys) in [("t", rows, (rows / 3).max(5)), ("u", others, others_keys)] {
                    let batch = table(data_type, value, rows, keys, nulls).await;
                    for ctx in [device, &host] {
                        ctx.deregister_table(name).unwrap();
                        let table = MemTable::try_new(batch.schema(), vec![vec![batch.clone()]]).unwrap();
                        ctx.register_table(name, Arc::new(table)).unwrap();
                    }
                }
                for sql in queries.iter().filter(|sql| rows < LARGE || !sql.contains("t.v < u.v")) {
                    if !is_answered(sql, data_type) {
                        continue;
                    }
                    let case = format!("{sql}, {data_type}, {rows} and {others} rows, NULL where {nulls}");
                    let expected = match answer(&host, sql).await {
                        Ok(expected) => expected,
                        // DataFusion does not support ranks of some types.
                        Err(error) if text(&error).contains("Cannot run range queries") => {
                            refused += 1;
                            continue;
                        }
                        Err(error) => panic!("{case}: {error}"),
                    };
                    let actual = answer(device, sql).await.unwrap_or_else(|error| panic!("{case}: {error}"));
                    if sql.contains("FROM t ORDER BY") {
                        let names = |answer: &Answer| answer.schema.fields().iter().map(|field| field.name().clone()).collect();
                        let (found, wanted): (Vec<String>, Vec<String>) = (names(&actual), names(&expected));
                        assert_eq!(found, wanted, "{case}");
                        assert_eq!(actual.ordered_lines(), expected.ordered_lines(), "{case}");
                    } else {
                        assert_eq!(actual.lines(), expected.lines(), "{case}");
                    }
                    assert_eq!(actual.placement.host_operators.len(), 0, "{case}");
                    compared += 1;
                    launches += actual.launches;
                }
            }
        }
        println!("{compared} queries compared, {refused} refused, {launches} launches, {:?}", start.elapsed());
        // A part of the types may have only those that DataFusion refuses.
        let all_refused = compared == 0 && refused > 0;
        assert!(launches > compared || all_refused, "{launches} launches for {compared} queries");
    });
}

#[test]
fn filters_and_projections_of_all_types_and_sizes() {
    check_all(&[
        "SELECT id, v FROM t WHERE v < w OR v IS NULL",
        "SELECT id, v = w, v IS DISTINCT FROM w, coalesce(v, w), CASE WHEN v > w THEN v ELSE w END FROM t",
        "SELECT id, v FROM t WHERE v IN (SELECT w FROM u) OR id % 7 = 0",
        "SELECT id, coalesce(v, w) FROM t UNION ALL SELECT id + 1, w FROM u",
        "SELECT id, v, (SELECT max(w) FROM u) FROM t WHERE v >= (SELECT min(v) FROM u WHERE id % 5 = 2) OR id = 2",
    ]);
}

#[test]
fn aggregates_of_all_types_and_sizes() {
    check_all(&[
        "SELECT count(*), count(v), count(DISTINCT v), min(v), max(w) FROM t",
        "SELECT v, count(*), count(w), min(w), max(w) FROM t GROUP BY v",
        "SELECT v, w, count(*), sum(id) FROM t GROUP BY v, w",
        "SELECT v, count(*) FROM t GROUP BY ROLLUP (v)",
        "SELECT v, w, grouping(v), count(*) FROM t GROUP BY CUBE (v, w)",
        "WITH c AS (SELECT v, count(*) AS n, max(w) AS m FROM t GROUP BY v) SELECT a.v, a.n, b.m FROM c a JOIN c b ON a.v = b.v",
        "SELECT id % 5 AS k, first_value(v ORDER BY id), last_value(w ORDER BY id), count(DISTINCT v) FROM t GROUP BY k",
        "SELECT DISTINCT v FROM t",
    ]);
}

#[test]
fn sorts_of_all_types_and_sizes() {
    check_all(&[
        "SELECT v, id FROM t ORDER BY v, id",
        "SELECT v, id FROM t ORDER BY v DESC NULLS LAST, w, id DESC",
        "SELECT v, id, w FROM t ORDER BY w DESC, v NULLS FIRST, id LIMIT 7 OFFSET 2",
        // The offset is beyond the last row of all tables but the largest.
        "SELECT v, id, w FROM t ORDER BY w DESC, v NULLS FIRST, id LIMIT 7 OFFSET 400",
    ]);
}

#[test]
fn windows_of_all_types_and_sizes() {
    check_all(&[
        "SELECT id, row_number() OVER (PARTITION BY v ORDER BY id), count(w) OVER (PARTITION BY v) FROM t",
        "SELECT id, rank() OVER (ORDER BY v), dense_rank() OVER (ORDER BY v DESC) FROM t",
        "SELECT id, lag(v) OVER (ORDER BY id), lead(w, 2) OVER (ORDER BY id DESC) FROM t",
        "SELECT id, min(v) OVER (ORDER BY id ROWS BETWEEN 3 PRECEDING AND 1 FOLLOWING), \
             first_value(w) OVER (ORDER BY id ROWS 2 PRECEDING), max(w) OVER (ORDER BY id) FROM t",
    ]);
}

#[test]
fn joins_of_all_types_and_sizes() {
    check_all(&[
        "SELECT t.id, u.id, t.w FROM t JOIN u ON t.v = u.v",
        "SELECT t.id, u.id, u.w FROM t LEFT JOIN u ON t.v = u.v AND t.w <= u.w",
        "SELECT t.id, u.id FROM t FULL JOIN u ON t.v = u.v AND t.w = u.w",
        "SELECT id, v FROM t WHERE EXISTS (SELECT 1 FROM u WHERE u.v = t.v AND u.id <> t.id)",
        "SELECT id, v FROM u WHERE NOT EXISTS (SELECT 1 FROM t WHERE u.v = t.v)",
        "SELECT count(*), sum(t.id) FROM t JOIN u ON t.v < u.v",
        "SELECT t.id, u.id, t.v, u.w FROM t CROSS JOIN (SELECT id, w FROM u WHERE id < 3) u WHERE t.id % 4 = 1",
    ]);
}

/// Build and probe side are of one size, and most rows match one row of the other side.
#[test]
fn joins_and_set_operations_of_two_tables_of_one_size() {
    let queries = [
        "SELECT t.id, u.id, t.w FROM t JOIN u ON t.v = u.v",
        "SELECT t.id, u.id FROM t FULL JOIN u ON t.v = u.v AND t.w = u.w",
        "SELECT id, v FROM u WHERE NOT EXISTS (SELECT 1 FROM t WHERE u.v = t.v)",
        "SELECT v FROM t INTERSECT SELECT w FROM u",
        "SELECT v, w FROM t EXCEPT SELECT v, w FROM u",
    ];
    check(TYPES, &queries, &[(257, 257, NONE), (257, 257, SOME)]);
    // Types of few values would return each pair of rows.
    let keys: Vec<_> = TYPES.iter().copied().filter(|(data_type, _)| KEYS.contains(data_type)).collect();
    assert_eq!(keys.len(), KEYS.len());
    check(&keys, &queries, &[(LARGE, LARGE, SOME)]);
}

#[test]
fn set_operations_of_all_types_and_sizes() {
    check_all(&[
        "SELECT v FROM t INTERSECT SELECT w FROM u",
        "SELECT v, w FROM t EXCEPT SELECT v, w FROM u",
        "SELECT v FROM t EXCEPT ALL SELECT w FROM u",
        "SELECT v FROM t UNION SELECT w FROM u",
    ]);
}

#[test]
fn aggregates_in_an_order_of_all_types() {
    check_once(&[
        "SELECT id % 5 AS k, array_agg(v ORDER BY id), any_value(v ORDER BY id) FROM t GROUP BY k",
        "SELECT id % 5 AS k, median(v), median(w) FROM t GROUP BY k",
        "SELECT id % 5 AS k, string_agg(v, ', ' ORDER BY id) FROM t GROUP BY k",
        "SELECT k, unnest(l) FROM (SELECT id % 5 AS k, array_agg(v ORDER BY id) AS l FROM t GROUP BY k)",
        "SELECT id % 5 AS k, sum(v) FROM t GROUP BY k",
        "SELECT id % 5 AS k, approx_distinct(v) FROM t GROUP BY k",
    ]);
}

#[test]
fn frames_of_all_types() {
    check_once(&[
        "SELECT id, count(*) OVER (ORDER BY v RANGE BETWEEN CURRENT ROW AND UNBOUNDED FOLLOWING) FROM t",
        "SELECT id, count(w) OVER (ORDER BY v GROUPS BETWEEN 2 PRECEDING AND 1 FOLLOWING), \
             ntile(4) OVER (ORDER BY v, id), nth_value(w, 2) OVER (ORDER BY v, id GROUPS 3 PRECEDING) FROM t",
    ]);
}

#[test]
fn offsets_without_a_limit_of_all_types() {
    // The offset is within the rows.
    check_once(&["SELECT v, id FROM t ORDER BY v, id OFFSET 250"]);
}

#[test]
fn operators_of_similar_types() {
    check(SIMILAR, OPERATORS, ONCE);
}

#[test]
fn operators_of_all_types_in_the_profile_of_gpus() {
    let mut config = device_config();
    if config.selector.to_string() == "opencl" {
        // Each kernel runs only twice, so it is not optimized. The other tests optimize it.
        config = config.with_compile_option("-cl-opt-disable");
    }
    let device = strict_on(2, DeviceRuntime::with_context(context(config)));
    set(&device, "device.profile", "gpu");
    check_on(&device, TYPES, OPERATORS, ONCE);
}

#[test]
fn lists_through_operators() {
    let queries = [
        "SELECT id, v FROM t WHERE id % 7 < 3 OR v IS NULL",
        "SELECT id, v FROM t UNION ALL SELECT id, w FROM u",
        "SELECT id, v FROM t ORDER BY id DESC LIMIT 7",
        "SELECT t.id, t.v, u.w FROM t LEFT JOIN u ON t.id = u.id + 3",
        "SELECT id, lag(v) OVER (ORDER BY id), last_value(w) IGNORE NULLS OVER (ORDER BY id ROWS 2 PRECEDING) FROM t",
        "SELECT id, unnest(v) FROM t",
        "SELECT v, count(*), max(id), count(DISTINCT v) FROM t GROUP BY v",
        "SELECT id, v FROM t ORDER BY v DESC, id",
        "SELECT t.id, u.id FROM t JOIN u ON t.v = u.w",
        "SELECT id, count(v) OVER (PARTITION BY v ORDER BY id), rank() OVER (ORDER BY v) FROM t",
        "SELECT v FROM t INTERSECT SELECT w FROM u",
        "SELECT v, count(*) FROM t GROUP BY ROLLUP (v)",
    ];
    check(LISTS, &queries, &ALL[2..]);
}
