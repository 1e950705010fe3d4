// SPDX-License-Identifier: Apache-2.0
//! Sessions in Rust over one catalog and device. Dropping a future is the cancel.

use std::sync::Arc;
use std::time::Duration;

use arrow::array::RecordBatch;
use datafusion::execution::runtime_env::RuntimeEnv;
use datafusion::execution::session_state::SessionStateBuilder;
use datafusion::prelude::{SessionConfig, SessionContext};
use devicefusion::{DeviceOptions, DeviceRuntime};
use tokio::runtime::{Builder, Runtime};

use super::{CANCELLED, Engine, Session, settings};

struct RustEngine {
    runtime: Runtime,
    session: SessionContext,
    device: Arc<DeviceRuntime>,
}

pub fn open(limit: usize) -> Box<dyn Engine> {
    let mut config = SessionConfig::new().with_option_extension(DeviceOptions::default());
    for (key, value) in settings(limit) {
        config.options_mut().set(key, &value).unwrap();
    }
    let session = devicefusion::session_with(config, Arc::new(RuntimeEnv::default())).unwrap();
    let device = DeviceRuntime::of(session.state().config()).unwrap();
    let runtime = Builder::new_multi_thread().thread_stack_size(crate::STACK_BYTES).enable_all().build().unwrap();
    Box::new(RustEngine { runtime, session, device })
}

impl Engine for RustEngine {
    fn connect(&self) -> Box<dyn Session + '_> {
        // Catalog and device are shared.
        let state = SessionStateBuilder::new_from_existing(self.session.state()).build();
        Box::new(RustSession { runtime: &self.runtime, session: SessionContext::new_with_state(state) })
    }

    fn report(&self) -> serde_json::Value {
        self.device.report().unwrap()
    }

    fn trim(&self) {
        self.device.opened().unwrap().trim();
    }
}

struct RustSession<'a> {
    runtime: &'a Runtime,
    session: SessionContext,
}

impl Session for RustSession<'_> {
    fn run(&mut self, sql: &str, cancel: Option<Duration>) -> Result<Vec<RecordBatch>, String> {
        let work = async {
            let plan = self.session.state().create_logical_plan(sql).await?;
            devicefusion::execute_logical_plan(&self.session, plan).await?.collect().await
        };
        let ended = self.runtime.block_on(async {
            match cancel {
                Some(after) => tokio::time::timeout(after, work).await.map_err(|_| CANCELLED.to_owned()),
                None => Ok(work.await),
            }
        });
        ended?.map_err(|error| error.strip_backtrace())
    }
}
