// SPDX-License-Identifier: Apache-2.0
// Sets of sectors; in each set the least recently used one goes first.
//
// A sector of memory that is fetched or written alone costs a GPU far more than its 32 bytes. A
// sector in the cache is alone until another one of its line of 128 bytes comes.
#include "cache.h"

#include <stdlib.h>

enum { WAYS = 64, LINE = 4 };

// `sector` is its number and 1, so that 0 is empty.
typedef struct { uint64_t sector, used; uint8_t dirty, alone, fetched; } Entry;

static Entry *entries;
static uint64_t sets, uses;

static void open_cache(void) {
    const char *text = getenv("EMULATOR_CACHE");
    uint64_t bytes = text ? strtoull(text, NULL, 10) : 50000000;
    sets = bytes / SECTOR / WAYS ? bytes / SECTOR / WAYS : 1;
    entries = calloc(sets * WAYS, sizeof *entries);
}

// Another sector of the line came: what was counted as alone is not.
static void join(struct Counts *counts, Entry *entry) {
    if (entry->alone && entry->fetched && counts->memory_alone_reads) counts->memory_alone_reads--;
    entry->alone = 0;
}

void cache_access(struct Counts *counts, uint64_t sector, Access access) {
    if (!entries) open_cache();
    Entry *set = entries + mix(sector / LINE) % sets * WAYS, *oldest = set;
    int alone = 1;
    uses++;
    for (Entry *entry = set; entry < set + WAYS; ++entry) {
        if (entry->sector == sector + 1) {
            entry->used = uses;
            entry->dirty |= access != LOAD;
            return;
        }
        if (entry->sector && (entry->sector - 1) / LINE == sector / LINE) {
            join(counts, entry);
            alone = 0;
        }
        if (entry->used < oldest->used) oldest = entry;
    }
    if (oldest->dirty) counts->memory_writes++, counts->memory_alone_writes += oldest->alone;
    // A store writes its bytes alone; the rest of the sector is not fetched.
    int fetched = access != STORE;
    if (fetched) counts->memory_reads++, counts->memory_alone_reads += (uint64_t)alone;
    *oldest = (Entry){sector + 1, uses, access != LOAD, (uint8_t)alone, (uint8_t)fetched};
}
