// SPDX-License-Identifier: Apache-2.0
//! Host memory of this process.

/// Resident bytes of the process without those of files, where Linux tells.
///
/// Code counts as memory of files. More of it is read as the test goes on.
pub fn resident_bytes() -> Option<u64> {
    trim();
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let kib = status.lines().find_map(|line| line.strip_prefix("RssAnon:")?.trim().strip_suffix(" kB")?.parse::<u64>().ok())?;
    Some(kib * 1024)
}

/// Returns free memory to the system. glibc keeps some for each of its arenas, which threads share
/// by chance.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
fn trim() {
    // SAFETY: it has no precondition.
    unsafe { libc::malloc_trim(0) };
}

#[cfg(not(all(target_os = "linux", target_env = "gnu")))]
fn trim() {}
