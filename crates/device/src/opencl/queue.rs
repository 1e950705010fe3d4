// SPDX-License-Identifier: Apache-2.0
//! A queue of the program's own.

use cl3::command_queue as queue;
use cl3::types::{cl_command_queue, cl_context, cl_device_id};

use super::{check, discovery};
use crate::{Error, Result};

/// A `cl_command_queue` of somebody else, kept alive with its context.
#[derive(Debug)]
pub(crate) struct RetainedQueue {
    queue: cl_command_queue,
    context: cl_context,
    device: cl_device_id,
}

// SAFETY: OpenCL's queues, contexts and devices may be used from any thread.
unsafe impl Send for RetainedQueue {}
// SAFETY: as above.
unsafe impl Sync for RetainedQueue {}

impl Drop for RetainedQueue {
    fn drop(&mut self) {
        // SAFETY: retained when this was made.
        let _ = unsafe { queue::release_command_queue(self.queue) };
    }
}

impl RetainedQueue {
    /// # Safety
    /// The queue is live.
    pub unsafe fn new(handle: u64) -> Result<Self> {
        const WHOSE: &str = "the program's queue";
        let handle = handle as cl_command_queue;
        let pointer = |property| {
            let bytes = check(WHOSE, "clGetCommandQueueInfo", queue::get_command_queue_data(handle, property))?;
            let refused = || Error::driver(WHOSE, "clGetCommandQueueInfo", 0, "the answer is no pointer");
            bytes.try_into().map(usize::from_ne_bytes).map_err(|_| refused())
        };
        let context = pointer(queue::CL_QUEUE_CONTEXT)? as cl_context;
        let device = pointer(queue::CL_QUEUE_DEVICE)? as cl_device_id;
        // SAFETY: the caller's promise.
        check(WHOSE, "clRetainCommandQueue", unsafe { queue::retain_command_queue(handle) })?;
        Ok(Self { queue: handle, context, device })
    }

    /// The context that the queue is one of.
    pub fn context(&self) -> cl_context {
        self.context
    }

    /// The place of its device in the loader's order.
    pub fn ordinal(&self) -> Option<usize> {
        discovery::ordinal(self.device)
    }
}
