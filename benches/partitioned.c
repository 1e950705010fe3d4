/* SPDX-License-Identifier: Apache-2.0 */
/* Experiment: build and probe of a hash table in memory order, with prefetching, and partitioned.
 *
 * Partitioning into 256 parts makes each part fit the caches. Keys are unique and have 8 bytes; the
 * steps are those of the join kernels (crates/kernels/src/ops/join). For 2^24 rows:
 *
 *     gcc -O3 -march=native -fopenmp benches/partitioned.c -o partitioned
 *     ./partitioned 24
 */
#include <omp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PARTS = 256, AHEAD = 128, BLOCK = 256, MAX_THREADS = 64 };
static const uint64_t EMPTY = ~0ull;
static const uint32_t NONE = ~0u;

static uint64_t n, mask, *slots, *part_keys;
static uint32_t *rows, *slot_of, *part_rows;
static int threads, shift;
static uint64_t offsets[MAX_THREADS][PARTS], begins[PARTS + 1];

static uint64_t hash(uint64_t x) {
    x = (x ^ x >> 33) * 0xff51afd7ed558ccdull;
    x = (x ^ x >> 33) * 0xc4ceb9fe1a85ec53ull;
    return x ^ x >> 33;
}

static void insert(uint64_t key, uint64_t row, uint64_t h) {
    for (;; h = (h + 1) & mask) {
        uint64_t seen = slots[h];
        if (seen == EMPTY) seen = __sync_val_compare_and_swap(&slots[h], EMPTY, key);
        if (seen == EMPTY || seen == key) break;
    }
    slot_of[row] = (uint32_t)h;
    if (rows[h] == NONE) __sync_val_compare_and_swap(&rows[h], NONE, (uint32_t)row);
}

static uint32_t find(uint64_t key, uint64_t h) {
    for (;; h = (h + 1) & mask) {
        if (slots[h] == key) return rows[h];
        if (slots[h] == EMPTY) return NONE;
    }
}

/* Partitions keys and row numbers by the highest bits of their slots. */
static void partition(const uint64_t *keys) {
    memset(offsets, 0, sizeof offsets);
#pragma omp parallel num_threads(threads)
    {
        uint64_t t = omp_get_thread_num(), first = n * t / threads, last = n * (t + 1) / threads;
        for (uint64_t i = first; i < last; i++) offsets[t][(hash(keys[i]) & mask) >> shift]++;
    }
    uint64_t sum = 0;
    for (int part = 0; part < PARTS; part++) {
        begins[part] = sum;
        for (int t = 0; t < threads; t++) {
            uint64_t count = offsets[t][part];
            offsets[t][part] = sum;
            sum += count;
        }
    }
    begins[PARTS] = sum;
#pragma omp parallel num_threads(threads)
    {
        uint64_t t = omp_get_thread_num(), first = n * t / threads, last = n * (t + 1) / threads;
        for (uint64_t i = first; i < last; i++) {
            uint64_t at = offsets[t][(hash(keys[i]) & mask) >> shift]++;
            part_keys[at] = keys[i];
            part_rows[at] = (uint32_t)i;
        }
    }
}

static void clear(void) {
    memset(slots, 0xff, (mask + 1) * 8);
    memset(rows, 0xff, (mask + 1) * 4);
}

int main(int argc, char **argv) {
    n = 1ull << (argc > 1 ? atoi(argv[1]) : 24);
    mask = n * 2 - 1;
    threads = omp_get_max_threads() < MAX_THREADS ? omp_get_max_threads() : MAX_THREADS;
    shift = __builtin_ctzll(mask + 1) - 8;
    uint64_t *keys = malloc(n * 8), *asked = malloc(n * 8), random = 88172645463325252ull;
    uint32_t *found = malloc(n * 4);
    slots = malloc((mask + 1) * 8), rows = malloc((mask + 1) * 4), slot_of = malloc(n * 4);
    part_keys = malloc(n * 8), part_rows = malloc(n * 4);
#define NEXT() (random ^= random << 13, random ^= random >> 7, random ^= random << 17)
    for (uint64_t i = 0; i < n; i++) keys[i] = i * 0x9e3779b97f4a7c15ull;
    for (uint64_t i = n - 1; i > 0; i--) {
        uint64_t other = NEXT() % (i + 1), key = keys[i];
        keys[i] = keys[other], keys[other] = key;
    }
    for (uint64_t i = 0; i < n; i++) asked[i] = keys[NEXT() % n];

    for (int run = 0; run < 3; run++) {
        double t[6], begin;
        clear(), begin = omp_get_wtime();
#pragma omp parallel for num_threads(threads) schedule(static)
        for (uint64_t i = 0; i < n; i++) insert(keys[i], i, hash(keys[i]) & mask);
        t[0] = omp_get_wtime() - begin;

        clear(), begin = omp_get_wtime();
#pragma omp parallel for num_threads(threads) schedule(static)
        for (uint64_t block = 0; block < n; block += AHEAD) {
            for (uint64_t i = block; i < block + AHEAD; i++) {
                uint64_t h = hash(keys[i]) & mask;
                __builtin_prefetch(&slots[h], 1), __builtin_prefetch(&rows[h], 1);
            }
            for (uint64_t i = block; i < block + AHEAD; i++) insert(keys[i], i, hash(keys[i]) & mask);
        }
        t[1] = omp_get_wtime() - begin;

        clear(), begin = omp_get_wtime();
        partition(keys);
#pragma omp parallel for num_threads(threads) schedule(dynamic, 1)
        for (int part = 0; part < PARTS; part++)
            for (uint64_t i = begins[part]; i < begins[part + 1]; i++) insert(part_keys[i], part_rows[i], hash(part_keys[i]) & mask);
        t[2] = omp_get_wtime() - begin;

        begin = omp_get_wtime();
#pragma omp parallel for num_threads(threads) schedule(static)
        for (uint64_t block = 0; block < n; block += BLOCK) {
            for (uint64_t i = block; i < block + BLOCK; i++) {
                uint64_t h = hash(asked[i]) & mask;
                __builtin_prefetch(&slots[h], 0), __builtin_prefetch(&rows[h], 0);
            }
            for (uint64_t i = block; i < block + BLOCK; i++) found[i] = find(asked[i], hash(asked[i]) & mask);
        }
        t[3] = omp_get_wtime() - begin;

        begin = omp_get_wtime();
        partition(asked);
#pragma omp parallel for num_threads(threads) schedule(dynamic, 1)
        for (int part = 0; part < PARTS; part++)
            for (uint64_t i = begins[part]; i < begins[part + 1]; i++) found[part_rows[i]] = find(part_keys[i], hash(part_keys[i]) & mask);
        t[4] = omp_get_wtime() - begin;
        printf("2^%d rows, ms: built one by one %.0f, %d ahead %.0f, in parts %.0f; probed %d ahead %.0f, in parts %.0f\n",
               shift + 7, t[0] * 1e3, AHEAD, t[1] * 1e3, t[2] * 1e3, BLOCK, t[3] * 1e3, t[4] * 1e3);
    }
    return found[0] == NONE;
}
