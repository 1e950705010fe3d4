// SPDX-License-Identifier: Apache-2.0
//! Groups as array indexes: on GPUs, where the range of the keys is small beside the rows.

use datafusion::physical_plan::displayable;
use datafusion::prelude::SessionContext;

use crate::harness::{answer, block_on, plain, profile, set, strict};

/// Makes 2^14 the range up to which groups are array indexes for any number of rows.
const DIVISOR: usize = 64;

async fn session(rows: usize, key: &str) -> [SessionContext; 2] {
    let (device, host) = (strict(2), plain(2));
    set(&device, "device.profile", profile("gpu"));
    set(&device, "device.threshold_divisor", &DIVISOR.to_string());
    let select = format!(
        "SELECT CASE WHEN value % 11 > 0 THEN {key} END AS k, value % 100 AS v FROM generate_series(1, {rows}) AS s(value)"
    );
    let select = if rows == 0 { format!("{select} WHERE false") } else { select };
    for (ctx, schema) in [(&device, "device"), (&host, "public")] {
        ctx.sql(&format!("CREATE TABLE {schema}.t AS {select}")).await.unwrap().collect().await.unwrap();
        ctx.sql(&format!("SET datafusion.catalog.default_schema = '{schema}'")).await.unwrap();
    }
    [device, host]
}

/// Whether a query groups by a hash table.
async fn hashes(ctx: &SessionContext, sql: &str) -> bool {
    let plan = ctx.sql(sql).await.unwrap().create_physical_plan().await.unwrap();
    displayable(plan.as_ref()).set_show_schema(false).indent(true).to_string().contains("group_find0")
}

#[test]
fn groups_of_keys_with_a_small_range_are_array_indexes() {
    device::skip_unless_turn!(4);
    block_on(async {
        for (rows, key, is_hashed) in [
            (0, "value * 1000", None),
            (1, "value * 1000", None),
            (257, "value * 3", Some(false)),
            (257, "value * 1000", Some(true)),
            // As lineitem of TPC-H: four rows each of 8 keys in 32.
            (131_073, "value / 32 * 32 + value % 8 + 7", Some(false)),
            (131_073, "value * 5", Some(true)),
        ] {
            let [device, host] = session(rows, key).await;
            for sql in [
                "SELECT k, sum(v), count(*) FROM t GROUP BY k",
                "SELECT k, min(v), max(v), avg(v) FROM t WHERE v > 50 GROUP BY k",
                "SELECT count(*), sum(n) FROM (SELECT k, count(*) AS n FROM t GROUP BY k HAVING count(*) > 3)",
                "SELECT v % 2 = 0 AS even, k, count(DISTINCT v) FROM t GROUP BY even, k",
            ] {
                let actual = answer(&device, sql).await.unwrap();
                assert!(actual.launches > 0 || rows == 0, "{rows} rows, {key}: {sql}");
                assert_eq!(actual.lines(), answer(&host, sql).await.unwrap().lines(), "{rows} rows, {key}: {sql}");
            }
            if let Some(is_hashed) = is_hashed {
                let hashed = hashes(&device, "SELECT k, sum(v) FROM t GROUP BY k").await;
                assert_eq!(hashed, is_hashed, "{rows} rows, {key}");
            }
        }
    });
}

#[test]
fn groups_behind_a_join_are_array_indexes_too() {
    block_on(async {
        let [device, host] = session(131_073, "value * 3").await;
        // The rows are estimated as those of the larger side.
        let joined = "SELECT a.k, count(*) FROM t a JOIN t b ON a.v = b.k GROUP BY a.k";
        assert!(!hashes(&device, joined).await);
        assert_eq!(answer(&device, joined).await.unwrap().lines(), answer(&host, joined).await.unwrap().lines());
    });
}
