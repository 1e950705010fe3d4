// SPDX-License-Identifier: Apache-2.0
// Runs kernels that `kernel.h` made callable on the host.
#pragma once
#include <stddef.h>

// The same as in `kernel.h`.
struct EmulatedSize { unsigned x, y, z; };
struct Emulated {
    struct EmulatedSize thread, block, threads, blocks;
    void (*sync)(void);
    unsigned (*ballot)(unsigned mask, int vote, void *place);
    unsigned long long (*shuffle)(unsigned mask, unsigned long long value, unsigned from, void *place);
    unsigned (*active)(void *place);
    void (*contend)(void);
    void (*access)(const void *at, unsigned bytes, int is_store, void *place);
    void (*atomic)(const void *at, unsigned bytes);
};

// One launch. `shared` are the begin and the end of the library's shared memory.
struct Grid {
    const char *kernel;
    void (*run)(void **args);
    void **args;
    struct Emulated *emulated;
    char **shared;
    unsigned blocks, threads;
};

enum { GRID_DONE, GRID_STUCK, GRID_FAULT, GRID_MISALIGNED };

// Runs all blocks, one after the other. One launch at a time: the caller holds a lock.
//
// - GRID_STUCK: lanes wait for lanes that never arrive.
// - GRID_FAULT: a signal, such as that of an access outside of mapped memory.
// - GRID_MISALIGNED: a trap, by default that of a misaligned access.
//
// After each of them the problem is printed, and the rest of the grid has not run.
int run_grid(const struct Grid *grid);
