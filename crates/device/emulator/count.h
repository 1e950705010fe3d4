// SPDX-License-Identifier: Apache-2.0
// Counts the memory traffic of launches, as a GPU's profiler does. EMULATOR_COUNT=1 turns it on.
#pragma once
#include <stddef.h>
#include <stdint.h>

// Traffic of one launch. The driver under test has the same struct.
struct Counts {
    uint64_t threads;
    // Global memory. A request is one instruction of a warp; a sector has 32 bytes.
    uint64_t load_requests, load_sectors, load_bytes;
    uint64_t store_requests, store_sectors, store_bytes;
    // Different sectors that the launch read and wrote: what a cache without limits moves.
    uint64_t read_sectors, written_sectors;
    // Different sectors that a warp read between two operations of all its lanes: a small cache.
    uint64_t warp_sectors;
    // Atomic operations on global memory: instructions of warps, of lanes, and their addresses.
    uint64_t atomic_requests, atomic_lanes, atomic_addresses;
    // The same in shared memory.
    uint64_t shared_requests, shared_lanes, shared_addresses;
    // Sectors that the second-level cache fetched from memory and wrote to it, and those alone in
    // their line.
    uint64_t memory_reads, memory_alone_reads, memory_writes, memory_alone_writes;
};

typedef enum { LOAD, STORE, ATOMIC } Access;

// A range of device or pinned memory.
struct Range { const char *low, *high; };

int is_counting(void);

// Begins a launch. `ranges` are ascending; accesses outside of them and of `shared` are not
// counted: constants, and what a thread keeps in registers or in its stack.
void begin_counts(struct Counts *counts, const struct Range *ranges, size_t count, char **shared);

// One access of a lane at a place of the kernel.
void count_access(unsigned lane, const void *at, unsigned bytes, Access access, void *place);

// Ends a warp's stretch between two operations that all its lanes took part in.
void end_stretch(void);

void end_counts(void);
