// SPDX-License-Identifier: Apache-2.0
//! Two engines in one process, chained by an async device stream. The second engine reads the rows
//! of the first while it runs, and no row leaves the device.

use std::sync::Arc;

use arrow_device::async_stream::{AsyncDeviceStream, AsyncStreamOptions};
use datafusion::common::{DataFusionError, Result, runtime::SpawnedTask};
use datafusion::execution::session_state::SessionStateBuilder;
use datafusion::prelude::SessionContext;
use devicefusion::{AsyncDeviceStreamTable, DeviceResult, DeviceRuntime, SessionStateBuilderExt};

/// A session of the runtime. Sessions share its device and memory; each has its own settings and
/// tables.
fn engine(runtime: &Arc<DeviceRuntime>) -> SessionContext {
    let state = SessionStateBuilder::new().with_default_features().with_device_runtime(Arc::clone(runtime)).build();
    SessionContext::new_with_state(state)
}

#[tokio::main]
async fn main() -> Result<()> {
    let runtime = DeviceRuntime::new();
    let (first, second) = (engine(&runtime), engine(&runtime));

    // The consumer's end: a handler for the producer, and the stream of the pushed rows.
    // SAFETY: the producer is this library.
    let (handler, stream) = unsafe { AsyncDeviceStream::new(AsyncStreamOptions::default().with_in_flight(2)) };
    // The first engine pushes batches when the second one asks for them.
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
