// SPDX-License-Identifier: Apache-2.0
//! Host memory that copies fast, kept between copies.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::{Condvar, Mutex};

use crate::Result;
use crate::driver::Driver;
use crate::loss::Loss;

/// One piece of an upload: large enough for full speed, small enough that copying into one piece overlaps
/// with the transfer of the piece before.
pub(crate) const PIECE: usize = 4 << 20;

/// Bytes of uploads on their way before another one has to wait.
const MAX_UPLOADING: usize = 32 * PIECE;

/// Bytes of downloads that live in pinned memory; above, they land in ordinary memory.
const MAX_DOWNLOADED: usize = 1 << 30;

/// Bytes that are kept for the next copy.
const MAX_CACHED: usize = 64 * PIECE;

/// Pinned host memory of a context.
#[derive(Debug)]
pub(crate) struct Pinned {
    driver: Arc<dyn Driver>,
    loss: Loss,
    state: Mutex<State>,
    returned: Condvar,
}

#[derive(Debug, Default)]
struct State {
    uploading: usize,
    downloaded: usize,
    cached: usize,
    free: HashMap<usize, Vec<usize>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Purpose {
    Upload,
    Download,
    /// Kept by others for as long as they like.
    Lent,
}

/// Some pinned memory, given back when dropped.
#[derive(Debug)]
pub(crate) struct Piece {
    owner: Arc<Pinned>,
    host: usize,
    bytes: usize,
    purpose: Purpose,
}

impl Drop for Piece {
    fn drop(&mut self) {
        self.owner.give_back(self.host, self.bytes, self.purpose);
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        self.trim();
    }
}

impl Pinned {
    pub(crate) fn new(driver: Arc<dyn Driver>, loss: Loss) -> Arc<Self> {
        Arc::new(Self { driver, loss, state: Mutex::default(), returned: Condvar::new() })
    }

    /// Memory to upload at most [`PIECE`] bytes from. Waits where too many uploads are on their way: each
    /// of them has a mark that completes.
    pub(crate) fn for_upload(self: &Arc<Self>, bytes: usize) -> Result<Piece> {
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
        Ok(Piece { owner: Arc::clone(self), host, bytes, purpose: Purpose::Upload })
    }

    /// Memory to download into, `None` where enough is pinned already.
    pub(crate) fn for_download(self: &Arc<Self>, bytes: usize) -> Option<Piece> {
        let bytes = bytes.checked_next_power_of_two()?;
        let mut state = self.state.lock();
        if state.downloaded.saturating_add(bytes) > MAX_DOWNLOADED {
            return None;
        }
        state.downloaded += bytes;
        let free = state.take(bytes);
        drop(state);
        match free.map_or_else(|| self.alloc(bytes), Ok) {
            Ok(host) => Some(Piece { owner: Arc::clone(self), host, bytes, purpose: Purpose::Download }),
            Err(_) => {
                self.state.lock().downloaded -= bytes;
                None
            }
        }
    }

    /// Memory for others to keep: it must be pinned, and counts towards no limit.
    pub(crate) fn to_lend(self: &Arc<Self>, bytes: usize) -> Result<Piece> {
        // What is too large to be kept for the next copy need not have one of the sizes that are kept.
        let bytes = if bytes > MAX_CACHED { bytes } else { bytes.next_power_of_two() };
        let free = self.state.lock().take(bytes);
        let host = match free.map_or_else(|| self.alloc(bytes), Ok) {
            // Pieces of other sizes that are kept make room.
            Err(error) if error.is_out_of_memory() && self.state.lock().cached > 0 => {
                self.trim();
                self.alloc(bytes)
            }
            result => result,
        }?;
        Ok(Piece { owner: Arc::clone(self), host, bytes, purpose: Purpose::Lent })
    }

    fn alloc(&self, bytes: usize) -> Result<usize> {
        self.driver.alloc_pinned(bytes).inspect_err(|error| self.loss.heed(error))
    }

    /// Gives what is kept back to the driver.
    pub(crate) fn trim(&self) {
        let free = {
            let mut state = self.state.lock();
            state.cached = 0;
            std::mem::take(&mut state.free)
        };
        for (bytes, hosts) in free {
            // SAFETY: the driver gave each with these bytes, and nobody uses it.
            hosts.into_iter().for_each(|host| unsafe { self.driver.free_pinned(host, bytes) });
        }
    }

    fn give_back(&self, host: usize, bytes: usize, purpose: Purpose) {
        let mut state = self.state.lock();
        match purpose {
            Purpose::Upload => state.uploading -= bytes,
            Purpose::Download => state.downloaded -= bytes,
            Purpose::Lent => {}
        }
        let keep = state.cached + bytes <= MAX_CACHED;
        if keep {
            state.cached += bytes;
            state.free.entry(bytes).or_default().push(host);
        }
        drop(state);
        if !keep {
            // SAFETY: the driver gave it with these bytes, and its owner has dropped it.
            unsafe { self.driver.free_pinned(host, bytes) };
        }
        self.returned.notify_all();
    }
}

impl State {
    fn take(&mut self, bytes: usize) -> Option<usize> {
        let host = self.free.get_mut(&bytes)?.pop()?;
        self.cached -= bytes;
        Some(host)
    }
}

impl Piece {
    /// Where it lies.
    pub(crate) fn host(&self) -> usize {
        self.host
    }
}
