// SPDX-License-Identifier: Apache-2.0
//! Device memory with an owner.

use std::any::Any;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;

use crate::driver::{Driver, Memory};
use crate::lane::{Lane, Uses, drop_after};
use crate::meter::Meters;
use crate::pool::{Pool, SharedClaim};
use crate::{Context, Error, Result};

/// Bytes in device memory. A handle: clones share the memory.
///
/// Dropping the last handle never waits. The memory goes back to the pool and is used again only once
/// nothing that was enqueued before needs it.
#[derive(Clone)]
pub struct Buffer(Arc<Inner>);

struct Inner {
    memory: Memory,
    len: usize,
    /// The queue that made it: another one waits for what happened to the buffer there.
    home: Arc<Lane>,
    uses: Uses,
    owner: Owner,
    meters: Meters,
}

/// Where the memory goes when the buffer is dropped.
enum Owner {
    Pool(Pool, Option<SharedClaim>),
    /// Foreign host memory that the device uses in place.
    Host(Arc<dyn Driver>, Bytes),
    /// Foreign device memory: whose it is.
    Foreign(Guardian),
    /// Memory in a neighbour's context, for a library to work in.
    Placed(Guardian),
}

/// What keeps foreign memory alive.
pub type Guardian = Arc<dyn Any + Send + Sync>;

/// An imported piece of host memory on its way out: first the driver lets go, then the host does.
struct Imported {
    driver: Arc<dyn Driver>,
    memory: Memory,
    _bytes: Bytes,
}

impl Drop for Imported {
    fn drop(&mut self) {
        // SAFETY: the memory is the driver's, and this is dropped after its last use.
        unsafe { self.driver.free(self.memory) };
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        let pending = self.uses.take_pending();
        match &self.owner {
            Owner::Pool(pool, claim) => {
                self.meters.released(self.memory.bytes);
                pool.release(self.memory, pending, claim.as_ref());
            }
            Owner::Host(driver, bytes) => {
                let imported = Imported { driver: Arc::clone(driver), memory: self.memory, _bytes: bytes.clone() };
                drop_after(imported, &pending);
            }
            Owner::Foreign(guardian) | Owner::Placed(guardian) => drop_after(Arc::clone(guardian), &pending),
        }
    }
}

impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Buffer").field("len", &self.0.len).field("memory", &self.0.memory).finish_non_exhaustive()
    }
}

impl Buffer {
    /// Memory of the pool, whose former `uses` may still be going on.
    pub(crate) fn pooled(
        memory: Memory,
        len: usize,
        home: &Arc<Lane>,
        uses: Vec<(Arc<Lane>, u64)>,
        owner: (Pool, Option<SharedClaim>),
        meters: Meters,
    ) -> Self {
        meters.allocated(memory.bytes);
        let owner = Owner::Pool(owner.0, owner.1);
        Self(Arc::new(Inner { memory, len, home: Arc::clone(home), uses: Uses::new(uses), owner, meters }))
    }

    /// Host memory that `driver` imported.
    pub(crate) fn imported(memory: Memory, bytes: Bytes, home: &Arc<Lane>, driver: &Arc<dyn Driver>) -> Self {
        let (home, len) = (Arc::clone(home), bytes.len());
        let owner = Owner::Host(Arc::clone(driver), bytes);
        Self(Arc::new(Inner { memory, len, home, uses: Uses::default(), owner, meters: Meters::default() }))
    }

    /// Device memory of somebody else, alive as long as `guardian`. What `home` waits for before, other queues do too.
    pub(crate) fn foreign(memory: Memory, len: usize, guardian: Guardian, home: &Arc<Lane>) -> Self {
        let uses = Uses::new(vec![(Arc::clone(home), home.last())]);
        let (home, owner) = (Arc::clone(home), Owner::Foreign(guardian));
        Self(Arc::new(Inner { memory, len, home, uses, owner, meters: Meters::default() }))
    }

    /// Memory in a neighbour's context, which goes with `owner`.
    pub(crate) fn placed(memory: Memory, len: usize, owner: Guardian, home: &Arc<Lane>) -> Self {
        let (home, owner) = (Arc::clone(home), Owner::Placed(owner));
        Self(Arc::new(Inner { memory, len, home, uses: Uses::default(), owner, meters: Meters::default() }))
    }

    /// Bytes that it holds.
    pub fn len(&self) -> usize {
        self.0.len
    }

    /// Whether it holds no bytes.
    pub fn is_empty(&self) -> bool {
        self.0.len == 0
    }

    /// The driver's handle, for handing the memory to others. Valid as long as this buffer lives; it may
    /// span more bytes than [`len`](Self::len).
    pub fn raw(&self) -> Memory {
        self.0.memory
    }

    /// Whether both are handles of the same memory.
    pub fn same(&self, other: &Buffer) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// Whether this is the only handle of memory that is the pool's own, or was made for a library: nobody else misses its contents.
    pub fn is_sole(&self) -> bool {
        matches!(self.0.owner, Owner::Pool(..) | Owner::Placed(_)) && Arc::strong_count(&self.0) == 1
    }

    /// Whether it is a buffer of this context.
    pub fn is_of(&self, context: &Context) -> bool {
        self.0.home.is_of(context.driver())
    }

    pub(crate) fn home(&self) -> &Arc<Lane> {
        &self.0.home
    }

    pub(crate) fn uses(&self) -> &Uses {
        &self.0.uses
    }

    /// The host's address, if the host can reach the memory and nothing enqueued still uses it.
    pub(crate) fn idle_host(&self) -> Option<usize> {
        (self.0.memory.host != 0 && self.0.uses.is_idle()).then_some(self.0.memory.host)
    }

    /// Checks that a range lies inside.
    pub(crate) fn check(&self, call: &'static str, start: usize, bytes: usize) -> Result<()> {
        let end = start.saturating_add(bytes);
        if end <= self.0.len { Ok(()) } else { Err(Error::Range { call, start, end, len: self.0.len }) }
    }

    /// Checks that the memory is the device's to write.
    pub(crate) fn check_writable(&self, call: &'static str) -> Result<()> {
        match self.0.owner {
            Owner::Pool(..) => Ok(()),
            Owner::Host(..) | Owner::Foreign(_) | Owner::Placed(_) => Err(Error::ReadOnly { call }),
        }
    }
}

/// A range of a buffer that the host can reach, as the bytes that a read gives.
pub(crate) struct HostView {
    pub(crate) buffer: Buffer,
    pub(crate) range: Range<usize>,
}

impl HostView {
    /// Where its first byte is.
    pub(crate) fn address(&self) -> usize {
        self.buffer.0.memory.host + self.range.start
    }
}

impl AsRef<[u8]> for HostView {
    fn as_ref(&self) -> &[u8] {
        // SAFETY: the range was checked against the buffer, whose memory lives as long as this view. The
        // work that wrote it has completed, and readers promise not to write the buffer again.
        unsafe { std::slice::from_raw_parts(self.address() as *const u8, self.range.len()) }
    }
}
