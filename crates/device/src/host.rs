// SPDX-License-Identifier: Apache-2.0
//! Memory of the host.

/// Bytes of memory that this process may use: the least of the machine's and its cgroup's.
pub(crate) fn host_memory_bytes() -> Option<u64> {
    let file = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = file.lines().find(|line| line.starts_with("MemTotal:"))?;
    let kibibytes: u64 = line.split_whitespace().nth(1)?.parse().ok()?;
    let cgroup = std::fs::read_to_string("/sys/fs/cgroup/memory.max").ok().and_then(|text| text.trim().parse().ok());
    Some(cgroup.unwrap_or(u64::MAX).min(kibibytes * 1024))
}
