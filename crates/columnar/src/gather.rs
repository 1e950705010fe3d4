// SPDX-License-Identifier: Apache-2.0
//! Host bytes to device buffers with as few copies as the device allows.
//!
//! One piece goes to [`Queue::upload`] as it is: no copy where the device shares the host's memory.
//! Several pieces are written one after another into a buffer of the pool.

use std::borrow::Borrow;

use arrow::array::BooleanBufferBuilder;
use arrow::buffer::{BooleanBuffer, Buffer as HostBuffer};
use bytes::Bytes;
use device::{Buffer, Queue};
use parking_lot::Mutex;

use crate::Result;

/// An Arrow buffer as something that [`Bytes`] can own.
struct Owner(HostBuffer);

impl AsRef<[u8]> for Owner {
    fn as_ref(&self) -> &[u8] {
        self.0.as_slice()
    }
}

/// Enqueues the upload of one piece.
pub(crate) fn place(queue: &Queue, piece: impl Into<HostBuffer>) -> Result<Buffer> {
    let piece = piece.into();
    if piece.is_empty() {
        return Ok(queue.alloc(0)?);
    }
    Ok(queue.upload(Bytes::from_owner(Owner(piece)))?)
}

/// Enqueues the upload of pieces that lie one after another in the buffer.
pub(crate) fn gather(queue: &Queue, pieces: &[HostBuffer]) -> Result<Buffer> {
    if let [piece] = pieces {
        return place(queue, piece.clone());
    }
    let buffer = queue.alloc(pieces.iter().map(|piece| piece.len()).sum())?;
    let mut at = 0;
    for piece in pieces.iter().filter(|piece| !piece.is_empty()) {
        queue.write(&buffer, at, piece)?;
        at += piece.len();
    }
    Ok(buffer)
}

/// Enqueues the upload of bitmaps that follow one another; the buffer and the bit of the first.
pub(crate) fn gather_bits<B: Borrow<BooleanBuffer>>(queue: &Queue, pieces: &[B]) -> Result<(Buffer, usize)> {
    if let [bits] = pieces {
        let bits = bits.borrow();
        let (from, to) = (bits.offset() / 8, (bits.offset() + bits.len()).div_ceil(8));
        return Ok((place(queue, bits.inner().slice_with_length(from, to - from))?, bits.offset() % 8));
    }
    let mut all = BooleanBufferBuilder::new(pieces.iter().map(|bits| bits.borrow().len()).sum());
    pieces.iter().for_each(|bits| all.append_buffer(bits.borrow()));
    Ok((place(queue, all.finish().into_inner())?, 0))
}

/// A bitmap of at least `len` ones: the validity of nullable columns without NULLs.
///
/// Devices that share the host's memory all look at the same bytes; others fill theirs.
///
/// # Errors
/// Those of the device.
pub fn ones(queue: &Queue, len: usize) -> Result<Buffer> {
    /// The longest bitmap asked for so far.
    static ONES: Mutex<Bytes> = Mutex::new(Bytes::new());
    let bytes = len.div_ceil(8);
    if bytes == 0 {
        return Ok(queue.alloc(0)?);
    }
    if !queue.context().info().unified_memory {
        return Ok(queue.filled(bytes, 0xff)?);
    }
    let shared = {
        let mut ones = ONES.lock();
        if ones.len() < bytes {
            *ones = Bytes::from(vec![0xff; bytes.next_power_of_two()]);
        }
        ones.slice(..bytes)
    };
    Ok(queue.upload(shared)?)
}
