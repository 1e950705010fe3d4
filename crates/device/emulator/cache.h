// SPDX-License-Identifier: Apache-2.0
// The second-level cache of a GPU, which says what goes to memory. It outlives launches.
#pragma once
#include "count.h"

// Bytes of a sector.
enum { SECTOR = 32 };

// Spreads numbers over a hash table.
static inline uint64_t mix(uint64_t value) {
    value *= 0x9e3779b97f4a7c15;
    return value ^ value >> 29;
}

// One request's access to a sector, by its number.
void cache_access(struct Counts *counts, uint64_t sector, Access access);
