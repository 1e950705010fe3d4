// SPDX-License-Identifier: Apache-2.0
//! Memory of the host: the machine's, and that of the process's control groups, as containers have
//! them.

use std::fs::read_to_string;
use std::path::Path;

/// Bytes of memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct HostMemory {
    /// The most that this process may use, with all others of its group.
    pub total: u64,
    /// The rest that this process could take, without swapping.
    pub available: u64,
}

/// The names of a group's files, and of cached pages in its `memory.stat`. The kernel takes these
/// back before a group exceeds its limit.
struct GroupFiles {
    limit: &'static str,
    used: &'static str,
    cached: &'static [&'static str],
}

/// Version 1 of control groups, whose controllers have a hierarchy each.
const VERSION_1: GroupFiles = GroupFiles {
    limit: "memory.limit_in_bytes",
    used: "memory.usage_in_bytes",
    cached: &["total_inactive_file ", "total_active_file "],
};
const VERSION_2: GroupFiles =
    GroupFiles { limit: "memory.max", used: "memory.current", cached: &["inactive_file ", "active_file ", "slab_reclaimable "] };

impl HostMemory {
    /// `None` where the system does not tell.
    pub fn now() -> Option<HostMemory> {
        HostMemory::below(Path::new("/"))
    }

    /// As the files below `root` tell.
    fn below(root: &Path) -> Option<HostMemory> {
        let file = read_to_string(root.join("proc/meminfo")).ok()?;
        let of_machine = |name: &str| Some(number_after(&file, name)? * 1024);
        let total = of_machine("MemTotal:")?;
        let machine = HostMemory { total, available: of_machine("MemAvailable:").unwrap_or(total) };
        Some(groups(root).into_iter().fold(machine, |least, group| HostMemory {
            total: least.total.min(group.total),
            available: least.available.min(group.available),
        }))
    }
}

/// The limits of the process's groups and of those around them.
fn groups(root: &Path) -> Vec<HostMemory> {
    let Ok(lines) = read_to_string(root.join("proc/self/cgroup")) else { return vec![] };
    let mut groups = vec![];
    for line in lines.lines() {
        let mut parts = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(path)) = (parts.next(), parts.next()) else { continue };
        let (folder, files) = match controllers {
            "" => ("sys/fs/cgroup", VERSION_2),
            _ if controllers.split(',').any(|name| name == "memory") => ("sys/fs/cgroup/memory", VERSION_1),
            _ => continue,
        };
        // A container may see its own group as the root, under the path that the host has for it.
        let path = Path::new(path.trim_start_matches('/'));
        groups.extend(path.ancestors().filter_map(|path| files.read(&root.join(folder).join(path))));
    }
    groups
}

impl GroupFiles {
    /// The memory of a group; `None` without a limit.
    fn read(&self, group: &Path) -> Option<HostMemory> {
        let total: u64 = read_to_string(group.join(self.limit)).ok()?.trim().parse().ok()?;
        let used = read_to_string(group.join(self.used)).ok().and_then(|text| text.trim().parse().ok()).unwrap_or(0_u64);
        let stat = read_to_string(group.join("memory.stat")).unwrap_or_default();
        let cached: u64 = self.cached.iter().filter_map(|name| number_after(&stat, name)).sum();
        Some(HostMemory { total, available: total.saturating_sub(used.saturating_sub(cached)) })
    }
}

/// The number behind a name at the start of a line.
fn number_after(text: &str, name: &str) -> Option<u64> {
    text.lines().find_map(|line| line.strip_prefix(name))?.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use std::fs::{create_dir_all, write};

    use super::*;

    const MIB: u64 = 1 << 20;

    /// The memory that a system with these files tells.
    fn memory(files: &[(&str, &str)]) -> Option<HostMemory> {
        let root = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = root.path().join(path);
            create_dir_all(path.parent().unwrap()).unwrap();
            write(path, text).unwrap();
        }
        HostMemory::below(root.path())
    }

    const MACHINE: (&str, &str) = ("proc/meminfo", "MemTotal:  8388608 kB\nMemFree:  100 kB\nMemAvailable:  6291456 kB\n");

    #[test]
    fn a_machine_has_what_others_leave() {
        let machine = HostMemory { total: 8192 * MIB, available: 6144 * MIB };
        assert_eq!(memory(&[MACHINE]), Some(machine));
        assert_eq!(memory(&[MACHINE, ("proc/self/cgroup", "0::/\n")]), Some(machine));
        assert_eq!(memory(&[]), None);
        assert!(HostMemory::now().is_some_and(|memory| memory.available <= memory.total));
    }

    #[test]
    fn a_container_has_the_least_of_its_groups() {
        let group = ("proc/self/cgroup", "0::/pod/container\n");
        let limits = [
            MACHINE,
            group,
            ("sys/fs/cgroup/pod/memory.max", "2147483648\n"),
            ("sys/fs/cgroup/pod/memory.current", "1610612736\n"),
            (
                "sys/fs/cgroup/pod/memory.stat",
                "anon 1073741824\nactive_file 268435456\ninactive_file 134217728\nslab_reclaimable 134217728\n",
            ),
            ("sys/fs/cgroup/pod/container/memory.max", "max\n"),
        ];
        assert_eq!(memory(&limits), Some(HostMemory { total: 2048 * MIB, available: 1024 * MIB }));
        // The path is the host's, and the container's own group is the root.
        let own = [MACHINE, group, ("sys/fs/cgroup/memory.max", "1073741824\n"), ("sys/fs/cgroup/memory.current", "0\n")];
        assert_eq!(memory(&own), Some(HostMemory { total: 1024 * MIB, available: 1024 * MIB }));
    }

    #[test]
    fn groups_of_version_1_count_as_well() {
        let group = ("proc/self/cgroup", "9:name=systemd:/\n4:cpu,memory:/jobs/one\n0::/\n");
        let limits = [
            MACHINE,
            group,
            ("sys/fs/cgroup/memory/jobs/one/memory.limit_in_bytes", "1073741824\n"),
            ("sys/fs/cgroup/memory/jobs/one/memory.usage_in_bytes", "805306368\n"),
            (
                "sys/fs/cgroup/memory/jobs/one/memory.stat",
                "inactive_file 7\ntotal_inactive_file 268435455\ntotal_active_file 1\n",
            ),
            // No limit, as version 1 writes it.
            ("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n"),
        ];
        assert_eq!(memory(&limits), Some(HostMemory { total: 1024 * MIB, available: 512 * MIB }));
    }
}
