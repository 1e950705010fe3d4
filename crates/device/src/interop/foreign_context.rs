// SPDX-License-Identifier: Apache-2.0
//! Foreign contexts: CUDA contexts that other libraries of the process created on the device.
//!
//! Kernels of one context cannot access the memory of another. The device copies between the two.

use std::fmt;
use std::sync::Arc;

use crate::driver::{Driver, KeepAlive, Memory};
use crate::memory::Buffer;
use crate::{Context, Error, Queue, Result};

/// A context that another library created on the same device. Clones are the same context.
#[derive(Clone)]
pub struct ForeignContext {
    driver: Arc<dyn Driver>,
    /// `CUcontext`.
    context: u64,
}

impl ForeignContext {
    /// Whether a buffer's memory belongs to this context.
    pub fn contains(&self, buffer: &Buffer) -> bool {
        // SAFETY: the buffer is live.
        unsafe { self.driver.context_of(buffer.raw().handle) }.is_ok_and(|context| context == self.context)
    }
}

impl fmt::Debug for ForeignContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ForeignContext").field("context", &self.context).finish_non_exhaustive()
    }
}

/// Memory that this crate allocated in a foreign context.
struct ForeignContextMemory {
    context: ForeignContext,
    memory: Memory,
    /// Keeps the foreign context alive. Dropped after the memory is freed.
    _keep_alive: KeepAlive,
}

impl Drop for ForeignContextMemory {
    fn drop(&mut self) {
        // SAFETY: allocated in that context, which is alive, and dropped after its last use.
        unsafe { self.context.driver.free_in(self.context.context, self.memory) };
    }
}

impl Context {
    /// The foreign context that device memory of another library, a `CUdeviceptr`, belongs to.
    ///
    /// # Errors
    /// `Unusable` for a driver other than CUDA; the driver's refusal for memory of another device.
    ///
    /// # Safety
    /// The memory is live.
    pub unsafe fn foreign_context(&self, memory: u64) -> Result<ForeignContext> {
        let driver = Arc::clone(self.driver());
        // SAFETY: the caller's promise.
        let context = unsafe { driver.context_of(memory) }?;
        Ok(ForeignContext { driver, context })
    }
}

impl Queue {
    /// Copies a buffer to new memory in a foreign context, which does not count towards the limit.
    /// The copy is complete once this queue has reached it.
    ///
    /// # Errors
    /// `OutOfMemory`; the driver's refusal.
    ///
    /// # Safety
    /// `keep_alive` keeps the foreign context alive.
    pub unsafe fn copy_to(&self, context: &ForeignContext, from: &Buffer, keep_alive: KeepAlive) -> Result<Buffer> {
        // SAFETY: the caller's promise.
        let alloc = || unsafe { self.driver().alloc_in(context.context, from.len().max(1)) };
        // The pool's free lists may hold the missing memory.
        let memory = alloc().or_else(|error| match error {
            Error::OutOfMemory { .. } => {
                self.context().trim();
                alloc()
            }
            error => Err(error),
        })?;
        let owner = ForeignContextMemory { context: context.clone(), memory, _keep_alive: keep_alive };
        let to = Buffer::in_foreign_context(memory, from.len(), Arc::new(owner), self.worker());
        self.copy_between_contexts(from, &to, from.len())?;
        Ok(to)
    }

    /// Copies memory of a foreign context, a `CUdeviceptr`, to a new buffer of this context.
    ///
    /// # Errors
    /// As [`alloc`](Self::alloc); the driver's refusal.
    ///
    /// # Safety
    /// - The work that writes the memory has completed.
    /// - Until `keep_alive` is dropped, the memory has `bytes` bytes and is not written.
    pub unsafe fn copy_from(&self, memory: u64, bytes: usize, keep_alive: KeepAlive) -> Result<Buffer> {
        let to = self.alloc(bytes)?;
        let from = Buffer::foreign(Memory { handle: memory, bytes, host: 0 }, bytes, keep_alive, self.worker());
        self.copy_between_contexts(&from, &to, bytes)?;
        Ok(to)
    }

    /// Copies the first bytes between two contexts. This queue has just made one of the buffers.
    fn copy_between_contexts(&self, from: &Buffer, to: &Buffer, bytes: usize) -> Result<()> {
        if bytes == 0 {
            return Ok(());
        }
        self.wait_for_uses(from)?;
        let (source, target) = (from.raw().handle, to.raw().handle);
        // SAFETY: the handles are alive and stay so, and both have as many bytes.
        let sequence = self.worker().enqueue(|raw| unsafe { self.driver().copy_between_contexts(raw, source, target, bytes) })?;
        from.uses().add(self.worker(), sequence);
        to.uses().add(self.worker(), sequence);
        Ok(())
    }
}
