// SPDX-License-Identifier: Apache-2.0
//! The queue that a context shares with the program around it: what is in it comes before the context's later work.
//!
//! The context's own work runs in queues of its own. Each of them, when somebody takes it, first waits on the device for what
//! the program has put into the shared queue by then. The other way round events tell when work of the context is done.

use std::sync::Arc;

use crate::driver::{Driver, RawEvent, RawQueue};
use crate::info::DeviceEntry;
use crate::lane::Lane;
use crate::{DeviceConfig, DeviceInfo, DriverKind, Error, Result, cuda, opencl};

/// A queue of a program's own, for a context that is to use its device and, of OpenCL, its `cl_context`: memory and events
/// need no copy then, see [`DeviceConfig::program_queue`].
#[derive(Debug, Clone)]
pub struct ProgramQueue {
    raw: RawQueue,
    driver: DriverKind,
    /// Of its device, as in [`DeviceInfo::ordinal`].
    ordinal: usize,
    /// OpenCL's queue with its context, for as long as this lives.
    retained: Option<Arc<opencl::RetainedQueue>>,
}

impl ProgramQueue {
    /// A `cl_command_queue`, which is retained for as long as this, or a context made with it, lives.
    ///
    /// # Errors
    /// `Config` for 0, or a queue whose device the driver does not list; the driver's refusal.
    ///
    /// # Safety
    /// The queue is 0 or live.
    pub unsafe fn opencl(queue: u64) -> Result<Self> {
        if queue == 0 {
            return Err(invalid("the cl_command_queue is NULL"));
        }
        // SAFETY: the caller's promise.
        let retained = unsafe { opencl::RetainedQueue::new(queue) }?;
        let ordinal = retained.ordinal().ok_or_else(|| invalid("its device is none that OpenCL lists; a part of one is none"))?;
        Ok(Self { raw: RawQueue(queue), driver: DriverKind::OpenCl, ordinal, retained: Some(Arc::new(retained)) })
    }

    /// A `CUstream` of a device's primary context, which is the one of CUDA's run-time library.
    ///
    /// # Errors
    /// `Config` for 0, `Unusable` without a driver; the driver's refusal. A stream of another context is found out when the
    /// device is opened.
    ///
    /// # Safety
    /// The stream is 0, or lives as long as every context made with this.
    pub unsafe fn cuda(stream: u64) -> Result<Self> {
        if stream == 0 {
            return Err(invalid("the CUstream is NULL; CUDA's default stream is CU_STREAM_LEGACY, which is 1"));
        }
        // SAFETY: the caller's promise.
        let ordinal = unsafe { cuda::ordinal_of(RawQueue(stream)) }?;
        Ok(Self { raw: RawQueue(stream), driver: DriverKind::Cuda, ordinal, retained: None })
    }

    pub(crate) fn raw(&self) -> RawQueue {
        self.raw
    }

    /// OpenCL's queue with its context.
    pub(crate) fn retained(&self) -> Option<&opencl::RetainedQueue> {
        self.retained.as_deref()
    }

    /// The queue's device, if the configuration leaves that choice.
    pub(crate) fn device(&self, entries: &[DeviceEntry], config: &DeviceConfig) -> Result<DeviceInfo> {
        let is_it = |info: &DeviceInfo| info.driver == self.driver && info.ordinal == self.ordinal;
        let own: Vec<DeviceEntry> = entries.iter().filter(|entry| entry.info.as_ref().is_some_and(is_it)).cloned().collect();
        config.selector.choose(&own, config.platform.as_deref()).map_err(|error| match (error, own.first()) {
            (Error::NoDevice { .. }, Some(DeviceEntry { info: Some(info), .. })) => Error::Config {
                setting: "device.selector",
                value: config.selector.to_string(),
                reason: format!("the program's queue is one of #{} \"{}\" of \"{}\"", info.index, info.name, info.platform),
            },
            (error, _) => error,
        })
    }
}

fn invalid(reason: &str) -> Error {
    Error::Config { setting: "the program's queue", value: "what was given".to_owned(), reason: reason.to_owned() }
}

/// The shared queue of an open context.
pub(crate) struct Shared {
    driver: Arc<dyn Driver>,
    raw: RawQueue,
    /// Nothing for a queue that the context has made.
    program: Option<ProgramQueue>,
}

impl Drop for Shared {
    fn drop(&mut self) {
        if self.program.is_none() {
            // SAFETY: made by this driver, and nobody asks for it any more. Drivers let work go on that is in it.
            unsafe { self.driver.destroy_queue(self.raw) };
        }
    }
}

impl Shared {
    /// A queue of the program's.
    pub(crate) fn of(program: ProgramQueue, driver: &Arc<dyn Driver>) -> Self {
        Self { driver: Arc::clone(driver), raw: program.raw(), program: Some(program) }
    }

    /// A new queue, for a program that asks for one.
    pub(crate) fn new(driver: &Arc<dyn Driver>) -> Result<Self> {
        Ok(Self { driver: Arc::clone(driver), raw: driver.create_queue()?, program: None })
    }

    pub(crate) fn raw(&self) -> RawQueue {
        self.raw
    }

    /// Has `lane` wait for what is in the queue now.
    pub(crate) fn comes_before(&self, lane: &Arc<Lane>) -> Result<()> {
        let driver = &self.driver;
        // SAFETY: the queue is live, and one of this driver's context.
        let event = unsafe { driver.record(self.raw) }?;
        // SAFETY: as above; the event is the driver's, which holds on to it.
        let enqueue = |raw| unsafe {
            driver.flush(self.raw)?;
            driver.takes_event(event)?;
            driver.wait_on(raw, event)
        };
        let waits = lane.enqueue(enqueue);
        // SAFETY: recorded above, and used no more.
        unsafe { driver.destroy_event(event) };
        // Who takes the lane may enqueue nothing more: only a mark tells that it is idle again.
        waits.and_then(|_| lane.mark()).map(drop)
    }

    /// Has what comes into the queue wait for an event.
    ///
    /// # Safety
    /// The event is live.
    pub(crate) unsafe fn wait_for(&self, event: RawEvent) -> Result<()> {
        // SAFETY: the queue is live, and the rest is the caller's promise.
        unsafe {
            match self.driver.takes_event(event)? {
                true => self.driver.wait_on(self.raw, event),
                false => self.driver.wait(event),
            }
        }
    }
}
