// SPDX-License-Identifier: Apache-2.0
// Groups the accesses of a warp's lanes into requests and sectors.
//
// Lanes run one after another, so a request is put together afterwards. Visits of all lanes to one
// place that have the same number and the same round are one request. A round is a turn of the
// outermost loop: a lane that skips a place in one turn does not fall behind in the next. Rounds
// and visits count from the last operation that all lanes shared.
#include "count.h"
#include "cache.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { WARP = 32, MAX_PLACES = 8192 };

// One sector, or one address of an atomic operation, of one lane.
typedef struct { uint64_t what; uint16_t place, head; uint32_t visit; } Entry;

typedef struct { uint64_t *slots; size_t count, capacity; } Set;

static struct Counts *counts;
static const struct Range *ranges;
static size_t range_count;
static char **shared;

static Entry *entries;
static size_t entry_count, entry_capacity;

// `rank` is the order in which the launch came to its places.
static struct { void *at; uint32_t kind, rank; } places[MAX_PLACES];
static uint32_t visits[WARP][MAX_PLACES], used_places[MAX_PLACES], used_count;

// Where each lane is. `order` numbers its places by their first visits. Of the places that it comes
// back to, the first is the head of the outermost loop: there a round begins.
static uint32_t order[WARP][MAX_PLACES];
static struct { uint32_t seen, head, round; } lanes[WARP];
static Set read_set, written_set, stretch_set;

enum { GLOBAL_LOAD, GLOBAL_STORE, GLOBAL_ATOMIC, SHARED_ATOMIC };

// For tests: counts from now on, or not.
static int counting = -1;
void emulator_count(int yes) { counting = yes; }

int is_counting(void) {
    if (counting < 0) {
        const char *text = getenv("EMULATOR_COUNT");
        counting = text && *text && strcmp(text, "0");
    }
    return counting;
}

static int insert(Set *set, uint64_t value) {
    if (2 * set->count >= set->capacity) {
        Set old = *set;
        set->capacity = old.capacity ? 2 * old.capacity : 1 << 12;
        set->slots = calloc(set->capacity, sizeof *set->slots);
        set->count = 0;
        for (size_t i = 0; i < old.capacity; ++i) if (old.slots[i]) insert(set, old.slots[i]);
        free(old.slots);
    }
    size_t slot = mix(value) & (set->capacity - 1);
    while (set->slots[slot] && set->slots[slot] != value) slot = (slot + 1) & (set->capacity - 1);
    if (set->slots[slot]) return 0;
    set->slots[slot] = value;
    set->count++;
    return 1;
}
// Keeps the memory of a small set.
static void empty(Set *set) {
    if (set->capacity > 1 << 16) free(set->slots), *set = (Set){0};
    else if (set->count) memset(set->slots, 0, set->capacity * sizeof *set->slots), set->count = 0;
}
static void clear(Set *set) {
    free(set->slots);
    *set = (Set){0};
}

// The number of a place in its hash table; MAX_PLACES if the table is full.
static uint32_t place_of(void *at, uint32_t kind) {
    uint32_t slot = (uint32_t)(mix((uint64_t)(uintptr_t)at ^ kind) % MAX_PLACES);
    for (uint32_t tries = 0; tries < MAX_PLACES; ++tries, slot = (slot + 1) % MAX_PLACES) {
        if (!places[slot].at) {
            places[slot].at = at, places[slot].kind = kind, places[slot].rank = used_count;
            used_places[used_count++] = slot;
        }
        if (places[slot].at == at && places[slot].kind == kind) return slot;
    }
    return MAX_PLACES;
}

static int in_ranges(const char *at) {
    static size_t last;
    if (last < range_count && at >= ranges[last].low && at < ranges[last].high) return 1;
    size_t low = 0, high = range_count;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (at >= ranges[middle].high) low = middle + 1;
        else high = middle;
    }
    last = low;
    return low < range_count && at >= ranges[low].low;
}

static void push(uint64_t what, uint32_t place, uint32_t head, uint32_t visit) {
    if (entry_count == entry_capacity) {
        entry_capacity = 2 * entry_capacity + 4096;
        entries = realloc(entries, entry_capacity * sizeof *entries);
    }
    entries[entry_count++] = (Entry){what, (uint16_t)place, (uint16_t)head, visit};
}

// The round and number of a lane's visit to a place, in one word.
static uint32_t visit_of(unsigned lane, uint32_t place) {
    enum { IN_ROUND = 4096 };
    uint32_t *own = order[lane], head = lanes[lane].head;
    if (!own[place]) {
        own[place] = ++lanes[lane].seen;
    } else if (place + 1 == head || !head || own[place] < own[head - 1]) {
        // A head that comes before the last one is that of a loop around it.
        lanes[lane].round = head == place + 1 ? lanes[lane].round + 1 : 1;
        lanes[lane].head = place + 1;
        for (uint32_t i = 0; i < used_count; ++i) visits[lane][used_places[i]] = 0;
    }
    uint32_t visit = visits[lane][place]++;
    return lanes[lane].round * IN_ROUND + (visit < IN_ROUND ? visit : IN_ROUND - 1);
}

void begin_counts(struct Counts *to, const struct Range *memory, size_t count, char **shared_memory) {
    counts = to;
    ranges = memory;
    range_count = count;
    shared = shared_memory;
}

void count_access(unsigned lane, const void *pointer, unsigned bytes, Access access, void *at) {
    const char *address = pointer;
    int is_shared = address >= shared[0] && address < shared[1];
    if (is_shared ? access != ATOMIC : !in_ranges(address)) return;
    uint32_t kind = is_shared ? SHARED_ATOMIC : (uint32_t)access;
    uint32_t place = place_of(at, kind);
    if (place == MAX_PLACES) {
        static int said;
        if (!said++) fprintf(stderr, "cuda emulator: a kernel has more than %d accesses; the rest are not counted\n", MAX_PLACES);
        return;
    }
    uint32_t visit = visit_of(lane % WARP, place), head = lanes[lane % WARP].head;
    uint64_t first = (uint64_t)(uintptr_t)address / SECTOR, last = ((uint64_t)(uintptr_t)address + bytes - 1) / SECTOR;
    switch (kind) {
    case GLOBAL_LOAD: counts->load_bytes += bytes; break;
    case GLOBAL_STORE: counts->store_bytes += bytes; break;
    case GLOBAL_ATOMIC: counts->atomic_lanes++; break;
    case SHARED_ATOMIC: counts->shared_lanes++; break;
    }
    if (access == LOAD)
        for (uint64_t sector = first; sector <= last; ++sector) counts->warp_sectors += (uint64_t)insert(&stretch_set, sector + 1);
    if (access == ATOMIC) push((uint64_t)(uintptr_t)address, place, head, visit);
    for (uint64_t sector = first; sector <= last && !is_shared; ++sector) {
        if (access != ATOMIC) push(sector, place, head, visit);
        if (access != STORE) insert(&read_set, sector + 1);
        if (access != LOAD) insert(&written_set, sector + 1);
    }
}

static int compare(const void *a, const void *b) {
    const Entry *left = a, *right = b;
    // The cache takes what a load reads before a store after it writes there.
    if (left->place != right->place) return places[left->place].rank < places[right->place].rank ? -1 : 1;
    if (left->head != right->head) return left->head < right->head ? -1 : 1;
    if (left->visit != right->visit) return left->visit < right->visit ? -1 : 1;
    return left->what < right->what ? -1 : left->what > right->what;
}

void end_stretch(void) {
    if (!entry_count) return;
    qsort(entries, entry_count, sizeof *entries, compare);
    for (size_t i = 0; i < entry_count; ++i) {
        const Entry *now = &entries[i], *before = i ? now - 1 : NULL;
        int same_request = before && before->place == now->place && before->head == now->head && before->visit == now->visit;
        int same_sector = same_request && before->what == now->what;
        switch (places[now->place].kind) {
        case GLOBAL_LOAD: counts->load_requests += !same_request, counts->load_sectors += !same_sector; break;
        case GLOBAL_STORE: counts->store_requests += !same_request, counts->store_sectors += !same_sector; break;
        case GLOBAL_ATOMIC: counts->atomic_requests += !same_request, counts->atomic_addresses += !same_sector; break;
        case SHARED_ATOMIC: counts->shared_requests += !same_request, counts->shared_addresses += !same_sector; break;
        }
        if (same_sector || places[now->place].kind == SHARED_ATOMIC) continue;
        int is_atomic = places[now->place].kind == GLOBAL_ATOMIC;
        cache_access(counts, is_atomic ? now->what / SECTOR : now->what, (Access)places[now->place].kind);
    }
    entry_count = 0;
    empty(&stretch_set);
    for (unsigned lane = 0; lane < WARP; ++lane) {
        for (uint32_t i = 0; i < used_count; ++i) visits[lane][used_places[i]] = order[lane][used_places[i]] = 0;
        memset(&lanes[lane], 0, sizeof lanes[lane]);
    }
}

void end_counts(void) {
    end_stretch();
    counts->read_sectors = read_set.count;
    counts->written_sectors = written_set.count;
    clear(&read_set);
    clear(&written_set);
    for (uint32_t i = 0; i < used_count; ++i) places[used_places[i]].at = NULL;
    used_count = 0;
    counts = NULL;
}
