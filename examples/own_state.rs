// SPDX-License-Identifier: Apache-2.0
//! A device in a custom session state, with settings `device.*`.
//!
//! `cargo run --example own_state`

use datafusion::common::Result;
use datafusion::execution::session_state::SessionStateBuilder;
use datafusion::prelude::{SessionConfig, SessionContext};
use devicefusion::{DeviceRuntime, SessionStateBuilderExt, placement};

#[tokio::main]
async fn main() -> Result<()> {
    // Sessions of one runtime share the device and its compiled kernels.
    let runtime = DeviceRuntime::new();
    let state = SessionStateBuilder::new()
        .with_config(SessionConfig::new().with_target_partitions(2))
        .with_default_features()
        .with_device_runtime(runtime.clone())
        .build();
    let ctx = SessionContext::new_with_state(state);
    ctx.sql("SET device.cost = 'always'").await?;

    let df = ctx.sql("SELECT sum(value * 2) FROM generate_series(1, 1000) WHERE value > 10").await?;
    let plan = df.clone().create_physical_plan().await?;
    let placed = placement(&plan);
    println!("{} operators on the device, {} on the host", placed.device_operators, placed.host_operators.len());
    df.show().await?;
    if let Some(counters) = runtime.counters() {
        println!("{counters:#?}");
    }
    Ok(())
}

#[test]
fn runs() -> Result<()> {
    main()
}
