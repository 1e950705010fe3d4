// SPDX-License-Identifier: Apache-2.0
//! Sessions of the planner's unit tests.

use datafusion::execution::session_state::SessionStateBuilder;
use datafusion::prelude::{SessionConfig, SessionContext};

use crate::{DeviceOptions, DeviceRuntime, SessionStateBuilderExt, register_schema};

/// A session on a device of its own, which offloads whatever it can, after the statements `setup`.
pub(super) async fn session(partitions: usize, setup: &[&str]) -> SessionContext {
    let context = device::Context::new(device::testing::config().unwrap()).unwrap();
    let mut config = SessionConfig::new().with_target_partitions(partitions).with_option_extension(DeviceOptions::default());
    DeviceOptions::set_by_program(config.options_mut(), "device.cost", "always").unwrap();
    let state = SessionStateBuilder::new().with_config(config).with_default_features();
    let ctx = SessionContext::new_with_state(state.with_device_runtime(DeviceRuntime::with_context(context)).build());
    register_schema(&ctx).unwrap();
    for sql in setup {
        ctx.sql(sql).await.unwrap().collect().await.unwrap();
    }
    ctx
}
