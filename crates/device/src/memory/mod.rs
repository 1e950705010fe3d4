// SPDX-License-Identifier: Apache-2.0
//! Memory: the pool, buffers, typed values and pinned host memory.

mod buffer;
mod evictor;
mod pinned;
mod pool;
mod values;

pub use buffer::Buffer;
pub(crate) use buffer::HostView;
pub(crate) use pinned::{PinnedBlock, PinnedPool, UPLOAD_CHUNK};
pub(crate) use pool::SharedClaim;
pub use pool::{Pool, Reclaim, Reservation, SoftReservation};
pub use values::{Scalar, Values};
