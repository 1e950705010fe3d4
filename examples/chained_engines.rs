// SPDX-License-Identifier: Apache-2.0
//! Two engines in one process, chained by an async device stream: what the first computes, the second reads as it comes, and
//! no row leaves the device in between.

use std::sync::Arc;

use arrow_device::async_stream::{AsyncDeviceStream, AsyncStreamOptions};
use datafusion::common::{DataFusionError, Result, runtime::SpawnedTask};
use datafusion::execution::session_state::SessionStateBuilder;
use datafusion::prelude::SessionContext;
use devicefusion::{AsyncDeviceStreamTable, DeviceResult, DeviceRuntime, SessionStateBuilderExt};

/// Sessions of one runtime share its device, and with it memory; each has settings and tables of its own.
fn engine(runtime: &Arc<DeviceRuntime>) -> SessionContext {
    let state = SessionStateBuilder::new().with_default_features().with_device_runtime(Arc::clone(runtime)).build();
    SessionContext::new_with_state(state)
}

#[tokio::main]
async fn main() -> Result<()> {
    let runtime = DeviceRuntime::new();
    let (first, second) = (engine(&runtime), engine(&runtime));

    // The second engine's end: a handler for the producer, and the stream that it feeds.
    // SAFETY: the producer is this library's own.
    let (handler, stream) = unsafe { AsyncDeviceStream::new(AsyncStreamOptions::default().with_in_flight(2)) };
    // The first engine pushes as the second one asks for more.
    let rows = first.sql("SELECT value % 1000 AS k, value AS v FROM generate_series(1, 2000000) WHERE value % 7 <> 0").await?;
    let producer = DeviceResult::try_new(rows).await?.push_into(handler);
    let producer = SpawnedTask::spawn(producer);

    second.register_table("pushed", Arc::new(AsyncDeviceStreamTable::try_new(stream).await?))?;
    let groups = second.sql("SELECT k, count(*) AS rows, sum(v) AS sum FROM pushed GROUP BY k ORDER BY k LIMIT 5").await?;
    groups.show().await?;
    producer.join().await.map_err(|error| DataFusionError::External(Box::new(error)))?;
    Ok(())
}

#[test]
fn runs() -> Result<()> {
    main()
}
