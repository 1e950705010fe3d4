// SPDX-License-Identifier: Apache-2.0
//! A table that stays in device memory between queries.
//!
//! `cargo run --example resident_table`

use datafusion::common::Result;
use devicefusion::DeviceTable;

#[tokio::main]
async fn main() -> Result<()> {
    let ctx = devicefusion::session()?;
    let rows =
        ctx.sql("SELECT value AS id, cast(value % 100 AS decimal(15, 2)) AS price FROM generate_series(1, 500000)").await?;
    let table = match DeviceTable::load(&ctx, rows).await {
        Ok(table) => table,
        Err(error) => {
            println!("no resident table on this machine: {error}");
            return Ok(());
        }
    };
    ctx.register_table("sales", table)?;
    ctx.sql("SELECT count(*), sum(price) FROM sales WHERE id % 2 = 0").await?.show().await?;
    ctx.sql("INSERT INTO sales VALUES (500001, 12.34)").await?.collect().await?;
    ctx.sql("SELECT count(*), sum(price) FROM sales").await?.show().await?;
    Ok(())
}

#[test]
fn runs() -> Result<()> {
    main()
}
