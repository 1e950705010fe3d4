// SPDX-License-Identifier: Apache-2.0
//! A queue of the application: its device and its context.

use super::api::types::{cl_command_queue, cl_context, cl_device_id};
use super::api::{check, command_queue as queue};
use super::discovery;
use crate::driver::RawQueue;
use crate::{Error, Result};

/// The device's name in error messages: which device it is, is not known yet.
const DEVICE: &str = "the program's queue";

/// A `cl_command_queue` of the application, retained until the drop.
pub(super) struct RetainedQueue(cl_command_queue);

// SAFETY: OpenCL's queues may be used from any thread.
unsafe impl Send for RetainedQueue {}
// SAFETY: as above.
unsafe impl Sync for RetainedQueue {}

impl Drop for RetainedQueue {
    fn drop(&mut self) {
        // SAFETY: retained when this was created.
        let _ = unsafe { queue::release_command_queue(self.0) };
    }
}

impl RetainedQueue {
    /// Retains a queue.
    ///
    /// # Safety
    /// The queue is live.
    pub(super) unsafe fn new(queue: RawQueue) -> Result<Self> {
        let handle = queue.0 as cl_command_queue;
        // SAFETY: the caller's promise.
        check(DEVICE, "clRetainCommandQueue", unsafe { queue::retain_command_queue(handle) })?;
        Ok(Self(handle))
    }

    /// The position of the queue's device in the ICD loader's order; `None` for a sub-device.
    pub(super) fn ordinal(&self) -> Result<Option<usize>> {
        let device = pointer_of(self.0, queue::CL_QUEUE_DEVICE)? as cl_device_id;
        Ok(discovery::ordinal(device))
    }
}

/// The context of a live queue, which keeps the context alive.
pub(super) fn context_of(queue: RawQueue) -> Result<cl_context> {
    Ok(pointer_of(queue.0 as cl_command_queue, queue::CL_QUEUE_CONTEXT)? as cl_context)
}

fn pointer_of(handle: cl_command_queue, property: u32) -> Result<usize> {
    let bytes = check(DEVICE, "clGetCommandQueueInfo", queue::get_command_queue_data(handle, property))?;
    let refused = || Error::driver(DEVICE, "clGetCommandQueueInfo", 0, "the answer is no pointer");
    bytes.try_into().map(usize::from_ne_bytes).map_err(|_| refused())
}
