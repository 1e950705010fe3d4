// SPDX-License-Identifier: Apache-2.0
// Runs kernels that `kernel.h` made callable on the host.
#pragma once
#include "emulated.h"

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
