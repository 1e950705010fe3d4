// SPDX-License-Identifier: Apache-2.0
// The second-level cache of a GPU, which says what goes to memory. It outlives launches.
#pragma once
#include "count.h"

// One request's access to a sector, by its number.
void cache_access(struct Counts *counts, uint64_t sector, Access access);
