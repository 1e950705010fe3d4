// SPDX-License-Identifier: Apache-2.0
// The structs that a kernel library and `grid.c` share; both include this file.
#pragma once

struct EmulatedSize { unsigned x, y, z; };

// The coordinates of the thread that runs, and what it calls. `place` tells where in the kernel.
struct Emulated {
    struct EmulatedSize thread, block, threads, blocks;
    void (*sync)(void);
    unsigned (*ballot)(unsigned mask, int vote, void *place);
    unsigned long long (*shuffle)(unsigned mask, unsigned long long value, unsigned from, void *place);
    unsigned (*active)(void *place);
    // Before an operation that a thread may spin in.
    void (*contend)(void);
    void (*access)(const void *at, unsigned bytes, int is_store, void *place);
    void (*atomic)(const void *at, unsigned bytes);
};
