// SPDX-License-Identifier: Apache-2.0
//! Memory traffic of launches.

use std::ops::AddAssign;

/// Declares the counts once: fields, sums and names. `struct Counts` of the emulator has the same
/// fields in the same order.
macro_rules! traffic {
    ($($(#[$doc:meta])* $field:ident),* $(,)?) => {
        /// Memory traffic of kernels, where the device counts it: the CUDA emulator does.
        ///
        /// A request is one instruction of a warp. A sector is a GPU's unit of memory, 32 bytes.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
        #[repr(C)]
        pub struct Traffic {
            $($(#[$doc])* pub $field: u64),*
        }

        impl Traffic {
            /// The name and the value of each count.
            pub fn counts(&self) -> impl Iterator<Item = (&'static str, u64)> {
                [$((stringify!($field), self.$field)),*].into_iter()
            }

            /// The traffic with the counts of these names.
            pub fn from_counts(count: impl Fn(&str) -> u64) -> Self {
                Self { $($field: count(stringify!($field))),* }
            }

            /// The difference to an earlier sum.
            #[must_use]
            pub fn since(&self, earlier: &Self) -> Self {
                Self { $($field: self.$field.saturating_sub(earlier.$field)),* }
            }
        }

        impl AddAssign for Traffic {
            fn add_assign(&mut self, other: Self) {
                $(self.$field += other.$field;)*
            }
        }
    };
}

traffic! {
    /// Threads of the launches.
    threads,
    /// Requests that load from global memory.
    load_requests,
    /// Sectors of these requests, each as often as a request touches it.
    load_sectors,
    /// Bytes that threads asked for.
    load_bytes,
    /// Requests that store to global memory.
    store_requests,
    /// Sectors of these requests.
    store_sectors,
    /// Bytes that threads stored.
    store_bytes,
    /// Distinct sectors that each launch read: those of a cache without limits.
    read_sectors,
    /// Distinct sectors that each launch wrote.
    written_sectors,
    /// Distinct sectors that a warp read between two operations of all its lanes: those of a small
    /// cache.
    warp_sectors,
    /// Requests of atomic operations on global memory.
    atomic_requests,
    /// Threads that took part in them.
    atomic_lanes,
    /// Distinct addresses of each request, added up.
    atomic_addresses,
    /// Requests of atomic operations on shared memory.
    shared_requests,
    /// Threads that took part in them.
    shared_lanes,
    /// Distinct addresses of each request, added up.
    shared_addresses,
    /// Sectors that the second-level cache fetched from memory.
    memory_reads,
    /// Those of them that came alone in their line of 128 bytes.
    memory_alone_reads,
    /// Sectors that it wrote to memory.
    memory_writes,
    /// Those of them that were alone.
    memory_alone_writes,
}

impl Traffic {
    /// Whether nothing was counted.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_and_names_have_all_counts() {
        let mut sum = Traffic { threads: 1, shared_addresses: 2, ..Traffic::default() };
        sum += sum;
        assert_eq!((sum.threads, sum.shared_addresses), (2, 4));
        let counts: Vec<_> = sum.counts().filter(|(_, count)| *count > 0).collect();
        assert_eq!(counts, [("threads", 2), ("shared_addresses", 4)]);
        assert_eq!(sum.counts().count() * 8, size_of::<Traffic>());
        assert_eq!(sum.since(&sum), Traffic::default());
        assert_eq!(Traffic::from_counts(|name| u64::from(name == "threads")).threads, 1);
        assert!(!sum.is_empty() && Traffic::default().is_empty());
    }
}
