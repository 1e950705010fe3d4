// SPDX-License-Identifier: Apache-2.0
//! The session of a context: DataFusion's session, the device and a tokio runtime.

use std::sync::Arc;
use std::time::Duration;

use datafusion::execution::runtime_env::RuntimeEnvBuilder;
use datafusion::execution::session_state::SessionStateBuilder;
use datafusion::prelude::SessionContext;
use device::LogSink;
use devicefusion::{
    DeviceOptions, DeviceRuntime, STACK_BYTES, SessionStateBuilderExt, register_schema, with_enough_stack, with_file_tables,
};
use tokio::runtime::{Builder, Handle, Runtime};

use crate::config::ContextOptions;
use crate::error::{Failure, Result};
use crate::log::Log;
use crate::pushed::ProducerTimeout;

/// How long freeing a context waits for its threads. A thread may be in a callback of the program.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(10);

pub(crate) struct Session {
    pub ctx: SessionContext,
    pub device: Arc<DeviceRuntime>,
    /// Whether queries are logged.
    pub logging: bool,
    /// Whether plans are logged.
    pub debugging: bool,
    /// How long a registration waits for a silent producer.
    pub producer_timeout: ProducerTimeout,
    runtime: WorkerRuntime,
}

impl Session {
    /// Opens the device and starts the threads.
    pub fn open(options: &ContextOptions, log: &Arc<Log>) -> Result<Self> {
        let config = options.session_config()?.with_information_schema(true);
        let device_options = config.options().extensions.get::<DeviceOptions>().cloned().unwrap_or_default();
        let logging = options.logging || options.debugging;
        let sink: LogSink = match logging {
            true => {
                let log = Arc::clone(log);
                Arc::new(move |line| log.line(line))
            }
            false => Arc::new(|_| ()),
        };
        let device = DeviceRuntime::for_program(sink, options.queue.clone());
        if device.context_if_any(&device_options)?.is_none() && device_options.fallback.is_strict() {
            let reason = device.problem().unwrap_or_default();
            return Err(Failure::other(format!("a strict context needs a device, and there is none: {reason}")));
        }
        let mut host = RuntimeEnvBuilder::new();
        if options.host_memory > 0 {
            host = host.with_memory_limit(options.host_memory, 1.0);
        }
        let state = SessionStateBuilder::new()
            .with_config(config)
            .with_runtime_env(host.build_arc()?)
            .with_default_features()
            .with_device_runtime(Arc::clone(&device));
        let ctx = with_file_tables(SessionContext::new_with_state(state.build()))?;
        register_schema(&ctx)?;
        let runtime = WorkerRuntime::start(options.threads)?;
        let (debugging, producer_timeout) = (options.debugging, options.producer_timeout);
        Ok(Self { ctx, device, logging, debugging, producer_timeout, runtime })
    }

    /// Drives `work` on the calling thread until it ends. It has a stack of its own after deep SQL,
    /// which needs more than a program's thread may have.
    ///
    /// # Errors
    /// Those of `work`. Also on a worker thread of a context, where blocking could deadlock.
    pub fn block_on<T, E>(&self, work: impl Future<Output = std::result::Result<T, E>>) -> Result<T>
    where
        Failure: From<E>,
    {
        if Handle::try_current().is_ok() {
            return Err(Failure::program("a blocking call was made on a worker thread of a context"));
        }
        let Some(runtime) = &self.runtime.0 else { return Err(Failure::other("the context's threads have ended")) };
        // Boxed, so that the next calls move a pointer, and drop the work on this stack.
        let work = Box::pin(work);
        Ok(with_enough_stack(move || runtime.block_on(work))?)
    }

    /// Starts a detached task on the worker threads.
    pub fn spawn(&self, work: impl Future<Output = ()> + Send + 'static) -> Result<()> {
        let Some(runtime) = &self.runtime.0 else { return Err(Failure::other("the context's threads have ended")) };
        drop(runtime.spawn(work));
        Ok(())
    }

    /// Stops the worker threads and waits for them. On a worker thread of any context it does
    /// nothing.
    pub fn shut_down(mut self) {
        if Handle::try_current().is_err()
            && let Some(runtime) = self.runtime.0.take()
        {
            runtime.shutdown_timeout(SHUTDOWN_TIMEOUT);
        }
    }
}

/// Tokio runtime of a context. Its drop does not block, because the last owner of a context may be
/// on any thread.
struct WorkerRuntime(Option<Runtime>);

impl Drop for WorkerRuntime {
    fn drop(&mut self) {
        if let Some(runtime) = self.0.take() {
            runtime.shutdown_background();
        }
    }
}

impl WorkerRuntime {
    /// `workers` is the number of threads; 0 means one for each processor.
    fn start(workers: usize) -> Result<Self> {
        let mut builder = Builder::new_multi_thread();
        if workers > 0 {
            builder.worker_threads(workers);
        }
        let builder = builder.enable_all().thread_name("devicefusion").thread_stack_size(STACK_BYTES);
        Ok(Self(Some(builder.build()?)))
    }
}
