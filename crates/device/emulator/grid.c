// SPDX-License-Identifier: Apache-2.0
// A grid of threads on one thread of the host: each is a fiber, and runs until it waits.
//
// - A barrier waits for all threads of the block that have not ended.
// - A vote or a shuffle waits for the lanes of its mask that have not ended, at the same place.
// - `__activemask` gathers the lanes of the warp that arrive at the same place. Lanes that wait
//   elsewhere are not active, as on the device.
// - A seed, EMULATOR_SEED at first, changes the order of warps and of lanes, so that races show.
#define _GNU_SOURCE
#include "count.h"
#include "fiber.h"
#include "grid.h"

#include <setjmp.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    WARP = 32,
    MAX_THREADS = 1024,
    // Tries of a thread for a lock before others run; turns of all threads until they wait for
    // ever.
    CONTENTIONS = 4096,
    MAX_ROUNDS = 500,
};

typedef enum { READY, AT_BARRIER, AT_VOTE, AT_SHUFFLE, AT_ACTIVE, ENDED } State;

typedef struct {
    struct Fiber fiber;
    State state;
    void *place;               // Where in the kernel the operation is that it waits in.
    unsigned mask;
    unsigned long long value;  // What it gives to its warp, then what it gets.
    unsigned from;
} Lane;

static Lane lanes[MAX_THREADS];
static const struct Grid *grid;
static unsigned running;       // The index of the lane that runs.
static unsigned contentions;
// Other threads of the process have faults of their own.
static _Thread_local sigjmp_buf escape;
static _Thread_local volatile sig_atomic_t in_kernel;

static void wait_as(State state) {
    Lane *lane = &lanes[running];
    lane->state = state;
    leave_fiber(&lane->fiber);
}

static void begin(void) {
    grid->run(grid->args);
    wait_as(ENDED);
    abort();
}

// Runs a lane up to its next wait or end; 0 if it only lets others run.
static int run_lane(unsigned index) {
    Lane *lane = &lanes[index];
    running = index;
    contentions = 0;
    grid->emulated->thread.x = index;
    if (!enter_fiber(&lane->fiber, begin)) return 0;
    if (lane->state == ENDED) end_fiber(&lane->fiber);
    return lane->state != READY;
}

static void barrier(void) { wait_as(AT_BARRIER); }

// A lane that spins for a lock of another one lets it run.
static void contend(void) {
    if (++contentions >= CONTENTIONS) wait_as(READY);
}

static unsigned long long meet(State state, void *place, unsigned mask, unsigned long long value, unsigned from) {
    Lane *lane = &lanes[running];
    lane->place = place;
    lane->mask = mask;
    lane->value = value;
    lane->from = from;
    wait_as(state);
    return lane->value;
}
static unsigned ballot(unsigned mask, int vote, void *place) { return (unsigned)meet(AT_VOTE, place, mask, (unsigned)vote, 0); }
static unsigned long long shuffle(unsigned mask, unsigned long long value, unsigned from, void *place) {
    return meet(AT_SHUFFLE, place, mask, value, from);
}
static unsigned active(void *place) { return (unsigned)meet(AT_ACTIVE, place, 0, 0, 0); }

static void on_access(const void *at, unsigned bytes, int is_store, void *place) {
    if (is_counting()) count_access(running, at, bytes, is_store ? STORE : LOAD, place);
}
static void on_atomic(const void *at, unsigned bytes) {
    if (is_counting()) count_access(running, at, bytes, ATOMIC, __builtin_return_address(0));
}

static unsigned width_of(unsigned first) { return grid->threads - first < WARP ? grid->threads - first : WARP; }

// Whether all lanes except ended ones are among these.
static int together(unsigned first, unsigned here) {
    for (unsigned i = 0; i < width_of(first); ++i)
        if (!(here >> i & 1) && lanes[first + i].state != ENDED) return 0;
    return 1;
}

// Completes the vote or shuffle of a lane, if all others of its mask are there.
static int complete(unsigned first, unsigned index) {
    Lane *lane = &lanes[first + index];
    unsigned width = width_of(first), here = 0, votes = 0;
    unsigned long long values[WARP];
    for (unsigned i = 0; i < width; ++i) {
        Lane *other = &lanes[first + i];
        if (!(lane->mask >> i & 1) || other->state == ENDED) continue;
        if (other->state != lane->state || other->place != lane->place || other->mask != lane->mask) return 0;
        here |= 1u << i;
        votes |= (unsigned)(other->value & 1) << i;
        values[i] = other->value;
    }
    if (!(here >> index & 1)) return 0;
    State state = lane->state;
    if (is_counting() && together(first, here)) end_stretch();
    for (unsigned i = 0; i < width; ++i) {
        Lane *other = &lanes[first + i];
        if (!(here >> i & 1)) continue;
        // A lane that is not there has no value: the device leaves it undefined.
        unsigned from = other->from % WARP;
        other->value = state == AT_VOTE ? votes : here >> from & 1 ? values[from] : 0xBAD0BAD0BAD0BAD0;
        other->state = READY;
    }
    return 1;
}

// Tells the asking lanes at one place which of them are active.
static int gather(unsigned first) {
    unsigned width = width_of(first), here = 0;
    void *place = NULL;
    for (unsigned i = 0; i < width; ++i) {
        Lane *lane = &lanes[first + i];
        if (lane->state != AT_ACTIVE || (place && lane->place != place)) continue;
        place = lane->place;
        here |= 1u << i;
    }
    for (unsigned i = 0; i < width; ++i) {
        if (!(here >> i & 1)) continue;
        lanes[first + i].value = here;
        lanes[first + i].state = READY;
    }
    return here != 0;
}

// A permutation of 0 to 31 for each seed: an odd factor and an offset.
static unsigned permute(unsigned index, unsigned seed) { return (index * (2 * seed + 1) + seed / 16) % WARP; }

// Runs the lanes of a warp until all of them wait for others, or have ended.
static int run_warp(unsigned first, unsigned seed) {
    unsigned width = width_of(first);
    int ran, any = 0;
    do {
        ran = 0;
        for (unsigned i = 0; i < WARP; ++i) {
            unsigned index = permute(i, seed);
            if (index < width && lanes[first + index].state == READY) ran |= run_lane(first + index);
        }
        for (unsigned i = 0; i < width; ++i) {
            State state = lanes[first + i].state;
            if (state == AT_VOTE || state == AT_SHUFFLE) ran |= complete(first, i);
        }
        if (!ran) ran = gather(first);
        any |= ran;
    } while (ran);
    if (is_counting()) end_stretch();
    return any;
}

static void describe_stuck(void) {
    static const char *const names[] = {"ready", "at a barrier", "at a vote", "at a shuffle", "at __activemask", "ended"};
    unsigned counts[6] = {0};
    for (unsigned i = 0; i < grid->threads; ++i) counts[lanes[i].state]++;
    fprintf(stderr, "cuda emulator: %s, block %u waits for ever:", grid->kernel, grid->emulated->block.x);
    for (int state = 0; state < 6; ++state)
        if (counts[state]) fprintf(stderr, " %u threads %s", counts[state], names[state]);
    fputc('\n', stderr);
}

// Runs one block; 0 if its threads wait for ever.
static int run_block(unsigned seed) {
    unsigned warps = (grid->threads + WARP - 1) / WARP;
    for (unsigned i = 0; i < grid->threads; ++i) lanes[i].state = READY;
    for (unsigned rounds = 0;; ++rounds) {
        int ran = 0;
        for (unsigned i = 0; i < warps; ++i) ran |= run_warp((i + seed % warps) % warps * WARP, seed);
        unsigned ended = 0, at_barrier = 0;
        for (unsigned i = 0; i < grid->threads; ++i) {
            ended += lanes[i].state == ENDED;
            at_barrier += lanes[i].state == AT_BARRIER;
        }
        if (ended == grid->threads) return 1;
        if (ended + at_barrier == grid->threads) {
            for (unsigned i = 0; i < grid->threads; ++i)
                if (lanes[i].state == AT_BARRIER) lanes[i].state = READY;
            ran = 1;
        }
        if (ran) rounds = 0;
        // Lanes that are ready spin for each other.
        unsigned ready = 0;
        for (unsigned i = 0; i < grid->threads; ++i) ready += lanes[i].state == READY;
        if (!ran && (!ready || rounds > MAX_ROUNDS)) {
            describe_stuck();
            return 0;
        }
    }
}

// After a failure: threads that still wait go no further.
static void end_fibers(void) {
    for (unsigned i = 0; i < grid->threads; ++i) end_fiber(&lanes[i].fiber);
}

static struct sigaction before[NSIG];

static void on_signal(int number, siginfo_t *info, void *context) {
    if (in_kernel) {
        in_kernel = 0;
        siglongjmp(escape, number);
    }
    struct sigaction *other = &before[number];
    if (other->sa_flags & SA_SIGINFO && other->sa_sigaction) other->sa_sigaction(number, info, context);
    else if (other->sa_handler != SIG_DFL && other->sa_handler != SIG_IGN) other->sa_handler(number);
    else sigaction(number, other, NULL);
}

static void catch_signals(void) {
    static const int numbers[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL};
    struct sigaction action = {.sa_sigaction = on_signal, .sa_flags = SA_SIGINFO | SA_ONSTACK};
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; ++i) {
        struct sigaction now;
        sigaction(numbers[i], NULL, &now);
        if (now.sa_flags & SA_SIGINFO && now.sa_sigaction == on_signal) continue;
        sigaction(numbers[i], &action, &before[numbers[i]]);
    }
}

// For tests: the seed of launches from now on.
static unsigned seed = ~0u;
void emulator_seed(unsigned value) { seed = value; }

int run_grid(const struct Grid *launch) {
    const char *text = getenv("EMULATOR_SEED");
    if (seed == ~0u) seed = text ? (unsigned)strtoul(text, NULL, 10) : 0;
    grid = launch;
    struct Emulated *emulated = launch->emulated;
    emulated->threads = (struct EmulatedSize){launch->threads, 1, 1};
    emulated->blocks = (struct EmulatedSize){launch->blocks, 1, 1};
    emulated->sync = barrier;
    emulated->ballot = ballot;
    emulated->shuffle = shuffle;
    emulated->active = active;
    emulated->contend = contend;
    emulated->access = on_access;
    emulated->atomic = on_atomic;
    catch_signals();
    int number = sigsetjmp(escape, 1);
    if (number) {
        fprintf(stderr, "cuda emulator: %s, block %u, thread %u: %s\n", launch->kernel, emulated->block.x, running, strsignal(number));
        end_fibers();
        return number == SIGILL ? GRID_MISALIGNED : GRID_FAULT;
    }
    in_kernel = 1;
    for (unsigned block = 0; block < launch->blocks; ++block) {
        emulated->block.x = block;
        memset(launch->shared[0], 0xAB, (size_t)(launch->shared[1] - launch->shared[0]));
        if (!run_block(seed)) {
            in_kernel = 0;
            end_fibers();
            return GRID_STUCK;
        }
    }
    in_kernel = 0;
    return GRID_DONE;
}
