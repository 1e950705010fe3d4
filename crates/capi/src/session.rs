// SPDX-License-Identifier: Apache-2.0
//! What a context runs its queries on: a session, its device, and threads of its own.

use std::sync::Arc;
use std::time::Duration;

use datafusion::execution::runtime_env::RuntimeEnvBuilder;
use datafusion::execution::session_state::SessionStateBuilder;
use datafusion::prelude::SessionContext;
use device::LogSink;
use devicefusion::{DeviceOptions, DeviceRuntime, Fallback, SessionStateBuilderExt, register_schema};
use tokio::runtime::{Builder, Handle, Runtime};

use crate::config::Choices;
use crate::error::{Failure, Result};
use crate::log::Log;

/// For so long the end of a context waits for its threads: one may be in a callback of the program's.
const PATIENCE: Duration = Duration::from_secs(10);

pub(crate) struct Session {
    pub ctx: SessionContext,
    pub device: Arc<DeviceRuntime>,
    /// Whether queries are logged.
    pub logging: bool,
    /// Whether their plans are.
    pub debugging: bool,
    threads: Threads,
}

impl Session {
    /// Opens the device and starts the threads.
    pub fn open(choices: &Choices, log: &Arc<Log>) -> Result<Self> {
        let config = choices.session_config()?.with_information_schema(true);
        let options = config.options().extensions.get::<DeviceOptions>().cloned().unwrap_or_default();
        let logging = choices.logging || choices.debugging;
        let sink: LogSink = match logging {
            true => {
                let log = Arc::clone(log);
                Arc::new(move |line| log.line(line))
            }
            false => Arc::new(|_| ()),
        };
        let device = DeviceRuntime::for_program(sink, choices.queue.clone());
        if device.context_if_any(&options)?.is_none() && options.fallback == Fallback::Error {
            let reason = device.problem().unwrap_or_default();
            return Err(Failure::other(format!("a strict context needs a device, and there is none: {reason}")));
        }
        let mut host = RuntimeEnvBuilder::new();
        if choices.host_memory > 0 {
            host = host.with_memory_limit(choices.host_memory, 1.0);
        }
        let state = SessionStateBuilder::new()
            .with_config(config)
            .with_runtime_env(host.build_arc()?)
            .with_default_features()
            .with_device_runtime(Arc::clone(&device));
        let ctx = SessionContext::new_with_state(state.build());
        register_schema(&ctx)?;
        Ok(Self { ctx, device, logging, debugging: choices.debugging, threads: Threads::start(choices.threads)? })
    }

    /// Waits for `work`, which this thread drives.
    ///
    /// # Errors
    /// Those of `work`; or if this thread runs tasks of a context, which could wait for one another for ever.
    pub fn wait<T, E>(&self, work: impl Future<Output = std::result::Result<T, E>>) -> Result<T>
    where
        Failure: From<E>,
    {
        if Handle::try_current().is_ok() {
            return Err(Failure::program("a call that waits was made on a thread that runs the queries of a context"));
        }
        let Some(threads) = &self.threads.0 else { return Err(Failure::other("the context's threads have ended")) };
        Ok(threads.block_on(work)?)
    }

    /// Has the threads do something, which nobody waits for.
    pub fn spawn(&self, work: impl Future<Output = ()> + Send + 'static) -> Result<()> {
        let Some(threads) = &self.threads.0 else { return Err(Failure::other("the context's threads have ended")) };
        drop(threads.spawn(work));
        Ok(())
    }

    /// Ends the threads, and waits until they have; not where this is one of them, or of another context's.
    pub fn shut_down(mut self) {
        if Handle::try_current().is_err()
            && let Some(threads) = self.threads.0.take()
        {
            threads.shutdown_timeout(PATIENCE);
        }
    }
}

/// The threads of a context. Dropped, as what keeps a context alive may be on any thread, they end by themselves.
struct Threads(Option<Runtime>);

impl Drop for Threads {
    fn drop(&mut self) {
        if let Some(threads) = self.0.take() {
            threads.shutdown_background();
        }
    }
}

impl Threads {
    /// So many workers; 0 for one for each processor.
    fn start(workers: usize) -> Result<Self> {
        let mut builder = Builder::new_multi_thread();
        if workers > 0 {
            builder.worker_threads(workers);
        }
        Ok(Self(Some(builder.enable_all().thread_name("devicefusion").build()?)))
    }
}
