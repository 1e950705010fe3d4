// SPDX-License-Identifier: Apache-2.0
//! The pool of pinned host memory, which copies fast. Blocks that are not reused for some seconds
//! return to the driver.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::thread::Thread;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

use super::evictor::{self, FREE_FOR, trim_heap};
use crate::Result;
use crate::device_loss::DeviceLoss;
use crate::driver::Driver;

/// The chunk of an upload. It is large enough for full speed, and small enough that copying a chunk
/// to pinned memory overlaps with the transfer of the previous one.
pub(crate) const UPLOAD_CHUNK: usize = 4 << 20;

/// The most bytes of uploads in flight; further uploads block.
const MAX_UPLOADING: usize = 32 * UPLOAD_CHUNK;

/// The most bytes of downloads in pinned memory; further downloads use the heap.
const MAX_DOWNLOADED: usize = 1 << 30;

/// The most bytes of free blocks that are kept for the next copy.
const MAX_CACHED: usize = 64 * UPLOAD_CHUNK;

/// The pinned host memory of a context.
#[derive(Debug)]
pub(crate) struct PinnedPool {
    driver: Arc<dyn Driver>,
    loss: DeviceLoss,
    state: Mutex<PinnedState>,
    returned: Condvar,
}

#[derive(Debug, Default)]
struct PinnedState {
    uploading: usize,
    downloaded: usize,
    cached: usize,
    /// Addresses of free blocks by size, each with the start of its free time; the latest at the
    /// end.
    free: HashMap<usize, VecDeque<(usize, Instant)>>,
    /// The thread for the return of free blocks to the driver, while there are some.
    evictor: Option<Thread>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Purpose {
    Upload,
    Download,
    /// An exported result, which another library may hold for any time.
    Export,
}

/// A block of pinned memory, returned to its pool when dropped.
#[derive(Debug)]
pub(crate) struct PinnedBlock {
    owner: Arc<PinnedPool>,
    host: usize,
    bytes: usize,
    purpose: Purpose,
}

impl Drop for PinnedBlock {
    fn drop(&mut self) {
        self.owner.give_back(self.host, self.bytes, self.purpose);
    }
}

impl Drop for PinnedPool {
    fn drop(&mut self) {
        self.trim();
        if let Some(evictor) = &self.state.get_mut().evictor {
            evictor.unpark();
        }
    }
}

impl PinnedPool {
    pub(crate) fn new(driver: Arc<dyn Driver>, loss: DeviceLoss) -> Arc<Self> {
        Arc::new(Self { driver, loss, state: Mutex::default(), returned: Condvar::new() })
    }

    /// A block to upload at most [`UPLOAD_CHUNK`] bytes from. Blocks while too many uploads are in
    /// flight. Each of them has a fence that completes.
    pub(crate) fn for_upload(self: &Arc<Self>, bytes: usize) -> Result<PinnedBlock> {
        let bytes = bytes.next_power_of_two();
        let mut state = self.state.lock();
        while state.uploading > 0 && state.uploading + bytes > MAX_UPLOADING {
            self.returned.wait(&mut state);
        }
        state.uploading += bytes;
        let free = state.take(bytes);
        drop(state);
        let host = free.map_or_else(|| self.alloc(bytes), Ok).inspect_err(|_| {
            self.state.lock().uploading -= bytes;
            self.returned.notify_all();
        })?;
        Ok(PinnedBlock { owner: Arc::clone(self), host, bytes, purpose: Purpose::Upload })
    }

    /// A block to download into, `None` at the limit.
    pub(crate) fn for_download(self: &Arc<Self>, bytes: usize) -> Option<PinnedBlock> {
        let bytes = bytes.checked_next_power_of_two()?;
        let mut state = self.state.lock();
        if state.downloaded.saturating_add(bytes) > MAX_DOWNLOADED {
            return None;
        }
        state.downloaded += bytes;
        let free = state.take(bytes);
        drop(state);
        match free.map_or_else(|| self.alloc(bytes), Ok) {
            Ok(host) => Some(PinnedBlock { owner: Arc::clone(self), host, bytes, purpose: Purpose::Download }),
            Err(_) => {
                self.state.lock().downloaded -= bytes;
                None
            }
        }
    }

    /// A block for an exported result: always pinned, not limited.
    pub(crate) fn for_export(self: &Arc<Self>, bytes: usize) -> Result<PinnedBlock> {
        // A block that is too large to be kept needs no power of two.
        let bytes = if bytes > MAX_CACHED { bytes } else { bytes.next_power_of_two() };
        let free = self.state.lock().take(bytes);
        let host = match free.map_or_else(|| self.alloc(bytes), Ok) {
            // Free blocks of other sizes make room.
            Err(error) if error.is_out_of_memory() && self.state.lock().cached > 0 => {
                self.trim();
                self.alloc(bytes)
            }
            result => result,
        }?;
        Ok(PinnedBlock { owner: Arc::clone(self), host, bytes, purpose: Purpose::Export })
    }

    fn alloc(&self, bytes: usize) -> Result<usize> {
        self.driver.alloc_pinned(bytes).inspect_err(|error| self.loss.check(error))
    }

    /// Returns the free blocks to the driver.
    pub(crate) fn trim(&self) {
        let free = self.state.lock().take_unused(Duration::ZERO);
        self.free(free);
    }

    /// Returns the blocks that have been free for `time` to the driver. The driver may wait for the
    /// work of the device: so not during uploads. Whether others are free. If not, nothing has been
    /// copied for some time, and the heap returns free memory to the system.
    pub(crate) fn evict_unused(&self, time: Duration) -> bool {
        let mut state = self.state.lock();
        let free = if state.uploading == 0 { state.take_unused(time) } else { vec![] };
        let is_left = state.cached > 0;
        if !is_left {
            state.evictor = None;
        }
        drop(state);
        self.free(free);
        if !is_left {
            trim_heap();
        }
        is_left
    }

    /// Bytes of blocks that uploads and downloads use.
    pub(crate) fn in_use(&self) -> (usize, usize) {
        let state = self.state.lock();
        (state.uploading, state.downloaded)
    }

    /// Bytes of the free blocks.
    pub(crate) fn cached(&self) -> usize {
        self.state.lock().cached
    }

    /// Returns blocks that were free to the driver.
    fn free(&self, blocks: Vec<(usize, usize)>) {
        for (host, bytes) in blocks {
            // SAFETY: the driver allocated it with these bytes, and a free block has no user.
            unsafe { self.driver.free_pinned(host, bytes) };
        }
    }

    fn give_back(self: &Arc<Self>, host: usize, bytes: usize, purpose: Purpose) {
        let mut state = self.state.lock();
        match purpose {
            Purpose::Upload => state.uploading -= bytes,
            Purpose::Download => state.downloaded -= bytes,
            Purpose::Export => {}
        }
        let keep = state.cached + bytes <= MAX_CACHED;
        if keep {
            state.cached += bytes;
            state.free.entry(bytes).or_default().push_back((host, Instant::now()));
            if state.evictor.is_none() {
                state.evictor = evictor::start("device-pinned", self, |pool| pool.evict_unused(FREE_FOR));
            }
        }
        drop(state);
        if !keep {
            // SAFETY: the driver allocated it with these bytes, and its owner has dropped it.
            unsafe { self.driver.free_pinned(host, bytes) };
        }
        self.returned.notify_all();
    }
}

impl PinnedState {
    fn take(&mut self, bytes: usize) -> Option<usize> {
        let (host, _) = self.free.get_mut(&bytes)?.pop_back()?;
        self.cached -= bytes;
        Some(host)
    }

    /// Takes the blocks out that have been free for `time`: addresses and bytes.
    fn take_unused(&mut self, time: Duration) -> Vec<(usize, usize)> {
        let mut unused = Vec::new();
        for (bytes, blocks) in &mut self.free {
            while let Some((host, _)) = blocks.pop_front_if(|(_, since)| since.elapsed() >= time) {
                unused.push((host, *bytes));
            }
        }
        self.cached -= unused.iter().map(|(_, bytes)| bytes).sum::<usize>();
        unused
    }
}

impl PinnedBlock {
    /// The host address.
    pub(crate) fn host(&self) -> usize {
        self.host
    }
}
