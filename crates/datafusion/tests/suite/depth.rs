// SPDX-License-Identifier: Apache-2.0
//! Deep expressions on stacks that plain DataFusion needs.

use crate::harness::{answer, plain, strict};

/// Bytes of a stack, and terms of expressions that run on it: as many nested operations.
///
/// Frames are large without optimization: plain DataFusion overflows at 105 terms. A plugin with
/// twice its bytes for each term would overflow too.
const SMALL: (usize, usize) = (1 << 20, 75);

/// The same, where plain DataFusion overflows 3 MiB.
const LARGE: (usize, usize) = (4 << 20, 400);

fn terms(number: usize, term: impl Fn(usize) -> String, operator: &str) -> String {
    (0..number).map(term).collect::<Vec<_>>().join(operator)
}

fn product(number: usize) -> String {
    format!("a * {number}")
}

/// Runs a query over a small table, plain or strictly on the device, on a thread of its own.
fn run(sql: &str, stack: usize, on_device: bool) -> Vec<String> {
    let sql = sql.to_owned();
    let query = move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let ctx = if on_device { strict(1) } else { plain(1) };
            let table = "CREATE TABLE t AS SELECT value AS a, 'text ' || value AS s FROM generate_series(1, 100)";
            ctx.sql(table).await.unwrap().collect().await.unwrap();
            let answer = answer(&ctx, &sql).await.unwrap();
            assert_eq!(answer.launches > 0, on_device, "{sql}");
            answer.lines()
        })
    };
    // An overflow ends the process, with the name of the thread.
    let name = if on_device { "device" } else { "plain" };
    std::thread::Builder::new().name(name.into()).stack_size(stack).spawn(query).unwrap().join().unwrap()
}

fn check(sql: &str, stack: usize) {
    let expected = run(sql, stack, false);
    assert_eq!(run(sql, stack, true), expected, "{}", &sql[..40]);
}

#[test]
fn deep_expressions_need_no_deep_stack() {
    let (stack, number) = SMALL;
    let sums = terms(number, product, " + ");
    let texts = terms(number, |_| "s".into(), " || ");
    let either = terms(number, |number| format!("(a = {number} AND s <> 'text {number}')"), " OR ");
    for sql in [
        format!("SELECT sum({sums}) FROM t"),
        format!("SELECT {sums} AS x FROM t ORDER BY x"),
        format!("SELECT a FROM t WHERE {sums} > 1000 OR {either}"),
        format!("SELECT a, {texts} AS x FROM t"),
        format!("SELECT {sums} AS x, count(*) FROM t GROUP BY x"),
    ] {
        check(&sql, stack);
    }
}

#[test]
fn a_sum_of_400_terms_needs_the_stack_of_plain_datafusion() {
    let (stack, number) = LARGE;
    check(&format!("SELECT sum({}) FROM t", terms(number, product, " + ")), stack);
}
