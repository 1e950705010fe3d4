// SPDX-License-Identifier: Apache-2.0
//! SQL on this machine's device, in one call.
//!
//! `cargo run --example quickstart`

use datafusion::common::Result;

#[tokio::main]
async fn main() -> Result<()> {
    let ctx = devicefusion::session()?;
    let sql = "SELECT value % 7 AS weekday, count(*) AS days, avg(value) AS mean
               FROM generate_series(1, 1000000) WHERE value % 3 <> 0 GROUP BY weekday ORDER BY weekday";
    ctx.sql(sql).await?.show().await?;

    // The plan shows which operators run on the device.
    ctx.sql(&format!("EXPLAIN FORMAT TREE {sql}")).await?.show().await?;
    Ok(())
}

#[test]
fn runs() -> Result<()> {
    main()
}
