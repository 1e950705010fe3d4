// SPDX-License-Identifier: Apache-2.0
//! The heap of this process.

/// Used bytes of the heap, where glibc tells: resident memory without fragments.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
pub fn bytes_in_use() -> Option<u64> {
    // SAFETY: it has no precondition.
    let info = unsafe { libc::mallinfo2() };
    Some((info.uordblks + info.hblkhd) as u64)
}

#[cfg(not(all(target_os = "linux", target_env = "gnu")))]
pub fn bytes_in_use() -> Option<u64> {
    None
}
