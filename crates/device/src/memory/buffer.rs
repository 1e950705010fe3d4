// SPDX-License-Identifier: Apache-2.0
//! Buffers: device memory with an owner.

use std::fmt;
use std::ops::Range;
use std::sync::{Arc, OnceLock};

use bytes::Bytes;

use super::pool::{CountedHost, Pool, SharedClaim};
use crate::driver::{Driver, KeepAlive, Memory};
use crate::queue::{LastUses, PendingUses, QueueWorker, drop_after};
use crate::report::Meters;
use crate::{Error, Result};

/// Bytes in device memory. Clones share the memory.
///
/// Dropping the last clone never waits. The memory returns to the pool, which reuses it once
/// nothing enqueued before needs it.
#[derive(Clone)]
pub struct Buffer(Arc<BufferInner>);

struct BufferInner {
    memory: Memory,
    len: usize,
    /// The queue that allocated it. Other queues wait for the buffer's uses there.
    home: Arc<QueueWorker>,
    uses: LastUses,
    owner: MemoryOwner,
    meters: Meters,
    /// Set for host memory in place that counts towards the pool's limit.
    counted: OnceLock<CountedHost>,
}

/// The owner that takes back the memory of a dropped buffer.
enum MemoryOwner {
    Pool(Pool, Option<SharedClaim>),
    /// Imported host memory that the device uses in place.
    Host(Arc<dyn Driver>, Bytes),
    /// Device memory of another library.
    Foreign(KeepAlive),
    /// Memory that this crate allocated in the context of another library.
    ForeignContext(KeepAlive),
}

/// Imported host memory. The drop frees the driver's handle first, then the host's bytes.
struct ImportedHostMemory {
    driver: Arc<dyn Driver>,
    memory: Memory,
    _bytes: Bytes,
}

impl Drop for ImportedHostMemory {
    fn drop(&mut self) {
        // SAFETY: the memory is the driver's, and this is dropped after its last use.
        unsafe { self.driver.free(self.memory) };
    }
}

impl Drop for BufferInner {
    fn drop(&mut self) {
        let pending = self.uses.take_pending();
        match &self.owner {
            MemoryOwner::Pool(pool, claim) => {
                self.meters.released(self.memory.bytes);
                pool.release(self.memory, pending, claim.as_ref());
            }
            MemoryOwner::Host(driver, bytes) => {
                let imported = ImportedHostMemory { driver: Arc::clone(driver), memory: self.memory, _bytes: bytes.clone() };
                drop_after(imported, &pending);
            }
            MemoryOwner::Foreign(owner) | MemoryOwner::ForeignContext(owner) => drop_after(Arc::clone(owner), &pending),
        }
    }
}

impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Buffer").field("len", &self.0.len).field("memory", &self.0.memory).finish_non_exhaustive()
    }
}

impl Buffer {
    /// A buffer of the pool's memory, whose earlier `uses` may still be running.
    pub(crate) fn pooled(
        memory: Memory,
        len: usize,
        home: &Arc<QueueWorker>,
        uses: PendingUses,
        owner: (Pool, Option<SharedClaim>),
        meters: Meters,
    ) -> Self {
        meters.allocated(memory.bytes);
        let owner = MemoryOwner::Pool(owner.0, owner.1);
        Self::owned(memory, len, Arc::clone(home), LastUses::new(uses), owner, meters)
    }

    /// A buffer over host memory that `driver` imported.
    pub(crate) fn imported(memory: Memory, bytes: Bytes, home: &Arc<QueueWorker>, driver: &Arc<dyn Driver>) -> Self {
        let (home, len) = (Arc::clone(home), bytes.len());
        let owner = MemoryOwner::Host(Arc::clone(driver), bytes);
        Self::owned(memory, len, home, LastUses::default(), owner, Meters::default())
    }

    /// A buffer over foreign device memory, which `owner` keeps alive. Other queues wait for
    /// everything that `home` has been told to wait for.
    pub(crate) fn foreign(memory: Memory, len: usize, owner: KeepAlive, home: &Arc<QueueWorker>) -> Self {
        let uses = LastUses::new(vec![(Arc::clone(home), home.submitted())]);
        let (home, owner) = (Arc::clone(home), MemoryOwner::Foreign(owner));
        Self::owned(memory, len, home, uses, owner, Meters::default())
    }

    /// A buffer over memory in a foreign context, which `owner` frees.
    pub(crate) fn in_foreign_context(memory: Memory, len: usize, owner: KeepAlive, home: &Arc<QueueWorker>) -> Self {
        let (home, owner) = (Arc::clone(home), MemoryOwner::ForeignContext(owner));
        Self::owned(memory, len, home, LastUses::default(), owner, Meters::default())
    }

    fn owned(memory: Memory, len: usize, home: Arc<QueueWorker>, uses: LastUses, owner: MemoryOwner, meters: Meters) -> Self {
        Self(Arc::new(BufferInner { memory, len, home, uses, owner, meters, counted: OnceLock::new() }))
    }

    /// Length in bytes.
    pub fn len(&self) -> usize {
        self.0.len
    }

    /// Whether the length is 0.
    pub fn is_empty(&self) -> bool {
        self.0.len == 0
    }

    /// The driver's handle, for other libraries. Valid as long as this buffer; it may span more
    /// bytes than [`len`](Self::len).
    pub fn raw(&self) -> Memory {
        self.0.memory
    }

    /// Whether both are clones of one buffer.
    pub fn same(&self, other: &Buffer) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// Whether this is the only handle of memory allocated by this crate. Then the contents may be
    /// overwritten.
    pub fn is_unique(&self) -> bool {
        matches!(self.0.owner, MemoryOwner::Pool(..) | MemoryOwner::ForeignContext(_)) && Arc::strong_count(&self.0) == 1
    }

    /// Counts host memory in place towards the limit of `pool`, until the buffer is dropped. For
    /// memory that a table holds: a query's batches come and go. Other memory counts already.
    ///
    /// # Errors
    /// `OutOfMemory` at the limit of the pool.
    pub fn count_in_place(&self, pool: &Pool) -> Result<()> {
        if let MemoryOwner::Host(_, bytes) = &self.0.owner
            && self.0.counted.get().is_none()
        {
            // A concurrent count of the same buffer drops one of both.
            _ = self.0.counted.set(pool.count_host(bytes.as_ptr() as usize, bytes.len())?);
        }
        Ok(())
    }

    pub(crate) fn home(&self) -> &Arc<QueueWorker> {
        &self.0.home
    }

    pub(crate) fn uses(&self) -> &LastUses {
        &self.0.uses
    }

    /// The host's address, if the host can reach the memory and no enqueued work uses it.
    pub(crate) fn idle_host(&self) -> Option<usize> {
        (self.0.memory.host != 0 && self.0.uses.is_idle()).then_some(self.0.memory.host)
    }

    /// Checks that a range lies inside the buffer.
    pub(crate) fn check(&self, call: &'static str, start: usize, bytes: usize) -> Result<()> {
        let end = start.saturating_add(bytes);
        if end <= self.0.len { Ok(()) } else { Err(Error::Range { call, start, end, len: self.0.len }) }
    }

    /// Checks that this crate may write the memory.
    pub(crate) fn check_writable(&self, call: &'static str) -> Result<()> {
        match self.0.owner {
            MemoryOwner::Pool(..) => Ok(()),
            MemoryOwner::Host(..) | MemoryOwner::Foreign(_) | MemoryOwner::ForeignContext(_) => Err(Error::ReadOnly { call }),
        }
    }
}

/// A range of a buffer that the host can reach, as the result of a read.
pub(crate) struct HostView {
    pub(crate) buffer: Buffer,
    pub(crate) range: Range<usize>,
}

impl HostView {
    /// The address of the first byte.
    pub(crate) fn address(&self) -> usize {
        self.buffer.0.memory.host + self.range.start
    }
}

impl AsRef<[u8]> for HostView {
    fn as_ref(&self) -> &[u8] {
        // SAFETY: the range was checked against the buffer, whose memory lives as long as this
        // view. The work that wrote it has completed, and readers promise not to write the buffer
        // again.
        unsafe { std::slice::from_raw_parts(self.address() as *const u8, self.range.len()) }
    }
}
