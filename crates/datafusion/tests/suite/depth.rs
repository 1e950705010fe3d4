// SPDX-License-Identifier: Apache-2.0
//! Deep expressions on stacks that plain DataFusion needs.

use crate::harness::{answer, plain, strict};

/// Bytes of a stack. Unoptimized, plain DataFusion overflows half of it.
const STACK: usize = 8 << 20;

/// Terms of an expression: as many nested operations.
const TERMS: usize = 400;

fn terms(term: impl Fn(usize) -> String, operator: &str) -> String {
    (0..TERMS).map(term).collect::<Vec<_>>().join(operator)
}

/// Runs a query over a small table, plain or strictly on the device, on a thread of its own.
fn run(sql: &str, on_device: bool) -> Vec<String> {
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
    std::thread::Builder::new().stack_size(STACK).spawn(query).unwrap().join().unwrap()
}

#[test]
fn deep_expressions_need_no_deep_stack() {
    let sums = terms(|number| format!("a * {number}"), " + ");
    let texts = terms(|_| "s".into(), " || ");
    let either = terms(|number| format!("(a = {number} AND s <> 'text {number}')"), " OR ");
    for sql in [
        format!("SELECT sum({sums}) FROM t"),
        format!("SELECT {sums} AS x FROM t ORDER BY x"),
        format!("SELECT a FROM t WHERE {sums} > 1000 OR {either}"),
        format!("SELECT a, {texts} AS x FROM t"),
        format!("SELECT {sums} AS x, count(*) FROM t GROUP BY x"),
    ] {
        assert_eq!(run(&sql, true), run(&sql, false), "{}", &sql[..40]);
    }
}
