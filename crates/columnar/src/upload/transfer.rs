// SPDX-License-Identifier: Apache-2.0
//! Host buffers to device buffers, with as few copies as the device allows.
//!
//! - A single host buffer goes to [`Queue::upload`] unchanged. Unified memory needs no copy of it.
//! - Several host buffers are written consecutively into one buffer of the pool.

use std::borrow::Borrow;

use arrow::array::BooleanBufferBuilder;
use arrow::buffer::{BooleanBuffer, Buffer as HostBuffer};
use bytes::Bytes;
use device::{Buffer, Queue};
use parking_lot::Mutex;

use crate::Result;

/// An Arrow buffer as the owner of [`Bytes`].
struct BytesOwner(HostBuffer);

impl AsRef<[u8]> for BytesOwner {
    fn as_ref(&self) -> &[u8] {
        self.0.as_slice()
    }
}

/// Enqueues the upload of one host buffer.
pub(crate) fn upload_buffer(queue: &Queue, buffer: impl Into<HostBuffer>) -> Result<Buffer> {
    let buffer = buffer.into();
    if buffer.is_empty() {
        return Ok(queue.alloc(0)?);
    }
    Ok(queue.upload(Bytes::from_owner(BytesOwner(buffer)))?)
}

/// Enqueues the upload of host buffers, concatenated in one device buffer.
pub(crate) fn upload_concatenated(queue: &Queue, buffers: &[HostBuffer]) -> Result<Buffer> {
    if let [buffer] = buffers {
        return upload_buffer(queue, buffer.clone());
    }
    let concatenated = queue.alloc(buffers.iter().map(|buffer| buffer.len()).sum())?;
    let mut offset = 0;
    for buffer in buffers.iter().filter(|buffer| !buffer.is_empty()) {
        queue.write(&concatenated, offset, buffer)?;
        offset += buffer.len();
    }
    Ok(concatenated)
}

/// Enqueues the upload of bitmaps, concatenated. Returns the buffer and the offset of the first
/// bit.
pub(crate) fn upload_bitmaps<B: Borrow<BooleanBuffer>>(queue: &Queue, bitmaps: &[B]) -> Result<(Buffer, usize)> {
    if let [bits] = bitmaps {
        let bits = bits.borrow();
        let (from, to) = (bits.offset() / 8, (bits.offset() + bits.len()).div_ceil(8));
        return Ok((upload_buffer(queue, bits.inner().slice_with_length(from, to - from))?, bits.offset() % 8));
    }
    let mut all = BooleanBufferBuilder::new(bitmaps.iter().map(|bits| bits.borrow().len()).sum());
    bitmaps.iter().for_each(|bits| all.append_buffer(bits.borrow()));
    Ok((upload_buffer(queue, all.finish().into_inner())?, 0))
}

/// A validity bitmap of at least `len` ones, for nullable columns without NULLs.
///
/// Devices with unified memory share one host allocation; others fill a buffer of their own.
pub(crate) fn all_valid(queue: &Queue, len: usize) -> Result<Buffer> {
    /// The longest bitmap requested so far.
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
