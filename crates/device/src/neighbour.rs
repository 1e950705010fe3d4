// SPDX-License-Identifier: Apache-2.0
//! Contexts that libraries of the same process have made for themselves on a CUDA device.
//!
//! Kernels of one context do not see the memory of another. It is copied between the two on the device.

use std::fmt;
use std::sync::Arc;

use crate::buffer::Guardian;
use crate::driver::{Driver, Memory};
use crate::{Buffer, Context, Error, Queue, Result};

/// Another context of the same device, which is not ours. Clones are the same one.
#[derive(Clone)]
pub struct Neighbour {
    driver: Arc<dyn Driver>,
    /// `CUcontext`.
    context: u64,
}

impl Neighbour {
    /// Whether a buffer lies in this context's memory.
    pub fn has(&self, buffer: &Buffer) -> bool {
        // SAFETY: the buffer is live.
        unsafe { self.driver.neighbour_of(buffer.raw().handle) }.is_ok_and(|context| context == self.context)
    }
}

impl fmt::Debug for Neighbour {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Neighbour").field("context", &self.context).finish_non_exhaustive()
    }
}

/// Memory that lies in a neighbour's context.
struct Placed {
    neighbour: Neighbour,
    memory: Memory,
    /// Keeps the neighbour's context, and goes after the memory.
    _guardian: Guardian,
}

impl Drop for Placed {
    fn drop(&mut self) {
        // SAFETY: allocated in that context, which is still there, and dropped after its last use.
        unsafe { self.neighbour.driver.free_in(self.neighbour.context, self.memory) };
    }
}

impl Context {
    /// The context that device memory of somebody else, a `CUdeviceptr`, belongs to.
    ///
    /// # Errors
    /// `Unusable` where the device is none of CUDA's; the driver's refusal, for memory of another device.
    ///
    /// # Safety
    /// The memory is live.
    pub unsafe fn neighbour(&self, memory: u64) -> Result<Neighbour> {
        let driver = Arc::clone(self.driver());
        // SAFETY: the caller's promise.
        let context = unsafe { driver.neighbour_of(memory) }?;
        Ok(Neighbour { driver, context })
    }
}

impl Queue {
    /// A copy of a buffer in a neighbour's memory, which counts towards no limit. It is there once this queue has come so far.
    ///
    /// # Errors
    /// `OutOfMemory`; the driver's refusal.
    ///
    /// # Safety
    /// The neighbour's context lives until `guardian` is dropped.
    pub unsafe fn copy_to(&self, neighbour: &Neighbour, from: &Buffer, guardian: Guardian) -> Result<Buffer> {
        // SAFETY: the caller's promise.
        let alloc = || unsafe { self.driver().alloc_in(neighbour.context, from.len().max(1)) };
        // What the pool keeps for later may be what is missing.
        let memory = alloc().or_else(|error| match error {
            Error::OutOfMemory { .. } => {
                self.context().trim();
                alloc()
            }
            error => Err(error),
        })?;
        let placed = Placed { neighbour: neighbour.clone(), memory, _guardian: guardian };
        let to = Buffer::placed(memory, from.len(), Arc::new(placed), self.lane());
        self.copy_between(from, &to, from.len())?;
        Ok(to)
    }

    /// A copy of a neighbour's memory, a `CUdeviceptr`, in a buffer of ours.
    ///
    /// # Errors
    /// As [`alloc`](Self::alloc); the driver's refusal.
    ///
    /// # Safety
    /// What writes the memory has completed. Until `guardian` is dropped, it has `bytes` bytes, and nobody writes them.
    pub unsafe fn copy_from(&self, memory: u64, bytes: usize, guardian: Guardian) -> Result<Buffer> {
        let to = self.alloc(bytes)?;
        let from = Buffer::foreign(Memory { handle: memory, bytes, host: 0 }, bytes, guardian, self.lane());
        self.copy_between(&from, &to, bytes)?;
        Ok(to)
    }

    /// Copies the first bytes from one context's memory to another's. One of the two has just been made by this queue.
    fn copy_between(&self, from: &Buffer, to: &Buffer, bytes: usize) -> Result<()> {
        if bytes == 0 {
            return Ok(());
        }
        self.follow(from)?;
        // SAFETY: the handles are alive and stay so, and both have as many bytes.
        let copy = |raw| unsafe { self.driver().copy_between(raw, from.raw().handle, to.raw().handle, bytes) };
        let number = self.lane().enqueue(copy)?;
        from.uses().note(self.lane(), number);
        to.uses().note(self.lane(), number);
        Ok(())
    }
}
