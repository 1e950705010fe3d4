// SPDX-License-Identifier: Apache-2.0
// A CUDA driver for tests, with one device: the host. `docs/emulator.md` explains it.
//
// - Kernels come as text from `libnvrtc.c`, and run as the host's compiler compiles them.
// - Device and pinned memory are pages of their own: an access to freed memory is a fault.
// - Streams are lazy: work runs only when it is waited for.
// - It is stricter than NVIDIA's driver. Almost every call needs a current context, frees must
//   match, and work must stay inside live memory.
// - Memory that pending work uses must not be freed. Such a free is counted as a violation.
// - Tests can make any call fail.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "count.h"
#include "grid.h"
#include "image.h"

typedef int Status;
enum { SUCCESS = 0, INVALID_VALUE = 1, OUT_OF_MEMORY = 2, INVALID_IMAGE = 200, INVALID_CONTEXT = 201, INVALID_HANDLE = 400, NOT_FOUND = 500, NOT_READY = 600, ILLEGAL_ADDRESS = 700, LAUNCH_TIMEOUT = 702, MISALIGNED_ADDRESS = 716 };

// For tests: bytes of the device's memory that another process has.
static size_t occupied;
void emulator_occupy(size_t bytes) { occupied = bytes; }

// Bytes of the device's memory: EMULATOR_MEMORY, or 8 GiB. Tests may choose others.
static size_t device_memory;
void emulator_memory(size_t bytes) { device_memory = bytes; }
static size_t device_bytes(void) {
    const char *text = getenv("EMULATOR_MEMORY");
    if (!device_memory) device_memory = text ? strtoull(text, NULL, 10) : 0;
    if (!device_memory) device_memory = (size_t)8 << 30;
    return device_memory;
}

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;  // Guards everything below.
static int context;              // The address is the primary context.
static long retained;            // References to the primary context.
static char guests[64];          // Contexts of other libraries: an element's address; 1 if live.
static int lost;                 // The status of every call after a fault.
static long live[5];             // Counts of memory, pinned, streams, events, modules.
static long violations;
static size_t used;              // Bytes of device memory.
static _Thread_local void *current, *below[8];  // The context of this thread, and the stack below.
static _Thread_local int depth;
static char failing[64];
static int failing_with, failing_after;

enum { MEMORY, PINNED, STREAM, EVENT, MODULE };

static void unlock(int *held) { (void)held; pthread_mutex_unlock(&mutex); }
#define LOCKED __attribute__((cleanup(unlock))) int held_ = pthread_mutex_lock(&mutex); (void)held_

// For tests: the nth call of that name from now on fails, on any thread.
void emulator_fail(const char *call, int status, int n) { LOCKED; snprintf(failing, sizeof failing, "%s", call); failing_with = status; failing_after = n; }
// For tests: counts live objects of a kind; -1 for contexts, -2 for violations.
long emulator_live(int kind) {
    LOCKED;
    long contexts = retained;
    for (size_t i = 0; i < sizeof guests; ++i) contexts += guests[i];
    return kind == -2 ? violations : kind == -1 ? contexts : live[kind];
}

static Status fail(const char *call) {
    if (strcmp(failing, call) || --failing_after) return SUCCESS;
    failing[0] = 0;
    return failing_with;
}
#define ENTER_ANYWHERE LOCKED; do { Status s_ = fail(__func__); if (s_) return s_; } while (0)
static int is_alive(void *which) {
    char *guest = which;
    return which == &context ? retained > 0 : guest >= guests && guest < guests + sizeof guests && *guest;
}
#define ENTER ENTER_ANYWHERE; do { if (!is_alive(current)) return INVALID_CONTEXT; if (lost) return lost; } while (0)

static void violation(const char *what) { violations++; fprintf(stderr, "cuda emulator: %s\n", what); }

// The list of live memory of both kinds.
typedef struct Block { struct Block *next; char *at; size_t bytes; int kind; void *context; } Block;
static Block *blocks;

static void *take(size_t bytes, int kind) {
    // Pages of its own, as with NVIDIA's driver: the heap stays that of the process.
    char *at = mmap(NULL, bytes ? bytes : 1, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED) return NULL;
    Block *block = malloc(sizeof *block);
    *block = (Block){blocks, at, bytes, kind, current};
    blocks = block;
    memset(block->at, 0xAB, bytes);
    live[kind]++;
    if (kind == MEMORY) used += bytes;
    return block->at;
}
// The context of these bytes; NULL if they are not memory of that kind.
static void *owner(int kind, const char *at, size_t bytes) {
    for (Block *block = blocks; block; block = block->next)
        if (block->kind == kind && at >= block->at && at + bytes <= block->at + block->bytes) return block->context;
    return NULL;
}
static int is_of(int kind, const char *at, size_t bytes) { return owner(kind, at, bytes) != NULL; }
// For tests: whether these bytes are pinned host memory.
int emulator_is_pinned(const char *at, size_t bytes) { LOCKED; return is_of(PINNED, at, bytes); }

typedef struct { int kind; unsigned flags; } Object;
// `ends` has the end time of each unit of work; number 0 is the stream's creation.
typedef struct { Object object; int ended; uint64_t submitted, done, counted; struct Op *first, **last; double *ends; struct Counts **counts; void *context; } Stream;
typedef struct { Object object; Stream *stream; uint64_t number; double recorded; } Event;
typedef struct Function {
    struct Function *next;
    struct Module *module;
    char *name;
    void (*run)(void **args);
    unsigned (*size)(unsigned index);
    const unsigned *bound;
} Function;
typedef struct Module { Object object; void *library; Function *functions; } Module;

// Work in a stream. It accesses host memory when it runs; arguments are copied at once.
typedef struct Op {
    struct Op *next;
    enum { COPY, SET, LAUNCH, WAIT } what;
    char *to;
    const char *from;
    size_t bytes;
    void *to_device, *from_device;  // The contexts of device memory; else NULL.
    unsigned char value;
    Function *function;
    unsigned blocks, threads;
    char *args;                 // Copies of the arguments.
    void **arg_list;
    Stream *stream;
    uint64_t number;
} Op;

static Stream **streams;         // All streams so far: events may outlive them.
static int stream_count, stream_capacity;
static double now;               // Milliseconds of work: 1.5 for each launch, 0 for other work.
static Stream *held;             // Waits for this stream block until the release or other work.
static pthread_cond_t moved = PTHREAD_COND_INITIALIZER;

// For tests: holds the stream created last, or releases it.
void emulator_hold(int hold) { LOCKED; held = hold ? streams[stream_count - 1] : NULL; pthread_cond_broadcast(&moved); }

// For tests: streams report another context than the primary one.
static int others;
void emulator_others(int yes) { LOCKED; others = yes; }

// For tests: advances the clock.
void emulator_idle(double millis) { LOCKED; now += millis; }

static void run(Stream *stream, uint64_t number);

static int compare_ranges(const void *a, const void *b) {
    const struct Range *left = a, *right = b;
    return left->low < right->low ? -1 : left->low > right->low;
}
// Device and pinned memory, in ascending order.
static struct Range *ranges_of_blocks(size_t *count) {
    size_t number = 0;
    for (Block *block = blocks; block; block = block->next) number++;
    struct Range *ranges = malloc((number + 1) * sizeof *ranges);
    *count = number;
    for (Block *block = blocks; block; block = block->next) ranges[--number] = (struct Range){block->at, block->at + block->bytes};
    qsort(ranges, *count, sizeof *ranges, compare_ranges);
    return ranges;
}

static struct Counts *launch(Op *op) {
    void *library = op->function->module->library;
    struct Grid grid = {
        .kernel = op->function->name, .run = op->function->run, .args = op->arg_list, .blocks = op->blocks, .threads = op->threads,
        .emulated = dlsym(library, "emulated"), .shared = dlsym(library, "emulated_bounds"),
    };
    struct Counts *counts = NULL;
    struct Range *ranges = NULL;
    if (is_counting()) {
        size_t count;
        counts = calloc(1, sizeof *counts);
        counts->threads = (uint64_t)op->blocks * op->threads;
        ranges = ranges_of_blocks(&count);
        begin_counts(counts, ranges, count, grid.shared);
    }
    switch (run_grid(&grid)) {
    case GRID_STUCK: lost = LAUNCH_TIMEOUT; break;
    case GRID_FAULT: lost = ILLEGAL_ADDRESS; break;
    case GRID_MISALIGNED: lost = MISALIGNED_ADDRESS; break;
    }
    if (counts) end_counts();
    free(ranges);
    return counts;
}

static struct Counts *perform(Op *op) {
    if (op->to_device && owner(MEMORY, op->to, op->bytes) != op->to_device) { violation("work on memory that is not there"); lost = ILLEGAL_ADDRESS; return NULL; }
    if (op->from_device && owner(MEMORY, op->from, op->bytes) != op->from_device) { violation("work on memory that is not there"); lost = ILLEGAL_ADDRESS; return NULL; }
    switch (op->what) {
    case COPY: memcpy(op->to, op->from, op->bytes); break;
    case SET: memset(op->to, op->value, op->bytes); break;
    case WAIT: run(op->stream, op->number); break;
    case LAUNCH:
        now += 1.5;
        return launch(op);
    }
    return NULL;
}
static void drop_op(Op *op) {
    free(op->args);
    free(op->arg_list);
    free(op);
}

// Runs a stream up to the work of that number, and the work of other streams that it waits for.
static void run(Stream *stream, uint64_t number) {
    while (stream->done < number && stream->first && !lost) {
        Op *op = stream->first;
        stream->first = op->next;
        if (!stream->first) stream->last = &stream->first;
        struct Counts *counts = perform(op);
        stream->ends[++stream->done] = now;
        if (counts) {
            stream->counts = realloc(stream->counts, (stream->submitted + 1) * sizeof *stream->counts);
            for (uint64_t i = stream->counted; i < stream->done; ++i) stream->counts[i] = NULL;
            stream->counts[stream->done] = counts;
            stream->counted = stream->done + 1;
        }
        drop_op(op);
    }
    pthread_cond_broadcast(&moved);
}
static Status push(void *at, Op op) {
    Stream *stream = at;
    if (!stream || stream->object.kind != STREAM || stream->ended || stream->context != current) return INVALID_HANDLE;
    Op *copy = malloc(sizeof op);
    *copy = op;
    copy->next = NULL;
    *stream->last = copy;
    stream->last = &copy->next;
    stream->submitted++;
    stream->ends = realloc(stream->ends, (stream->submitted + 1) * sizeof *stream->ends);
    return SUCCESS;
}

// Whether a kernel has an address in these bytes as an argument.
static int takes(const Op *op, const char *at, size_t bytes) {
    for (unsigned i = 0; op->what == LAUNCH && op->function->size(i); ++i) {
        if (op->function->size(i) != 8) continue;
        const char *argument;
        memcpy(&argument, op->arg_list[i], sizeof argument);
        if (argument >= at && argument < at + bytes) return 1;
    }
    return 0;
}
static int overlaps(const char *at, size_t bytes, const char *from, size_t length) { return at && from < at + bytes && at < from + length; }
static Status give(char *at, int kind) {
    for (Block **link = &blocks; *link; link = &(*link)->next) {
        Block *block = *link;
        if (block->at != at || block->kind != kind) continue;
        if (kind == MEMORY && block->context != current) violation("memory freed in another context");
        for (int i = 0; i < stream_count; ++i)
            for (Op *op = streams[i]->first; op; op = op->next)
                if (overlaps(op->to, op->bytes, at, block->bytes) || overlaps(op->from, op->bytes, at, block->bytes) || takes(op, at, block->bytes)) violation("memory freed under pending work");
        *link = block->next;
        live[kind]--;
        if (kind == MEMORY) used -= block->bytes;
        munmap(at, block->bytes ? block->bytes : 1);
        free(block);
        return SUCCESS;
    }
    violation("memory freed that is not there");
    return INVALID_VALUE;
}
static int is(void *object, int kind) { return object && ((Object *)object)->kind == kind; }

Status cuInit(unsigned flags) { return flags ? INVALID_VALUE : SUCCESS; }
Status cuDriverGetVersion(int *version) { *version = 13000; return SUCCESS; }
Status cuGetErrorName(int status, const char **name) {
    switch (status) {
    case SUCCESS: *name = "CUDA_SUCCESS"; return SUCCESS;
    case INVALID_VALUE: *name = "CUDA_ERROR_INVALID_VALUE"; return SUCCESS;
    case INVALID_IMAGE: *name = "CUDA_ERROR_INVALID_IMAGE"; return SUCCESS;
    case NOT_FOUND: *name = "CUDA_ERROR_NOT_FOUND"; return SUCCESS;
    case ILLEGAL_ADDRESS: *name = "CUDA_ERROR_ILLEGAL_ADDRESS"; return SUCCESS;
    case MISALIGNED_ADDRESS: *name = "CUDA_ERROR_MISALIGNED_ADDRESS"; return SUCCESS;
    case LAUNCH_TIMEOUT: *name = "CUDA_ERROR_LAUNCH_TIMEOUT"; return SUCCESS;
    }
    *name = NULL;
    return INVALID_VALUE;
}
Status cuGetErrorString(int status, const char **text) { return cuGetErrorName(status, text); }
// NVRTC asks any driver for a table of internal functions. This one holds only its own size.
Status cuGetExportTable(const void **out, const void *uuid) {
    static const size_t empty[1] = {sizeof empty};
    *out = empty;
    return SUCCESS;
}

Status cuDeviceGetCount(int *count) { ENTER_ANYWHERE; *count = 1; return SUCCESS; }
Status cuDeviceGet(int *device, int ordinal) { *device = 7; return ordinal ? 101 : SUCCESS; }
Status cuDeviceGetName(char *name, int length, int device) { snprintf(name, length, "Emulated GPU"); return SUCCESS; }
Status cuDeviceTotalMem_v2(size_t *bytes, int device) { *bytes = device_bytes(); return SUCCESS; }
Status cuDeviceGetAttribute(int *value, int attribute, int device) {
    switch (attribute) {
    case 1: *value = 1024; break;   // threads per block
    case 8: *value = 49152; break;  // shared memory per block
    case 16: *value = 132; break;   // multiprocessors
    case 20: *value = 0; break;     // compute mode
    case 75: *value = 9; break;     // compute capability
    case 76: *value = 0; break;
    default: return INVALID_VALUE;
    }
    return SUCCESS;
}
Status cuDevicePrimaryCtxRetain(void **out, int device) { ENTER_ANYWHERE; retained++; *out = &context; return SUCCESS; }
Status cuDevicePrimaryCtxRelease_v2(int device) {
    ENTER_ANYWHERE;
    if (!retained) return INVALID_CONTEXT;
    // A lost context takes all its objects along.
    if (!--retained && lost) { lost = 0; used = 0; blocks = NULL; stream_count = 0; memset(live, 0, sizeof live); }
    return SUCCESS;
}
Status cuCtxSetCurrent(void *wanted) { ENTER_ANYWHERE; current = wanted; return SUCCESS; }
Status cuCtxPushCurrent_v2(void *wanted) {
    ENTER_ANYWHERE;
    if (!is_alive(wanted) || depth == 8) return INVALID_CONTEXT;
    below[depth++] = current;
    current = wanted;
    return SUCCESS;
}
Status cuCtxPopCurrent_v2(void **out) {
    ENTER_ANYWHERE;
    if (!depth) return INVALID_CONTEXT;
    *out = current;
    current = below[--depth];
    return SUCCESS;
}
// Pushes the new context, as NVIDIA's driver does.
Status cuCtxCreate_v2(void **out, unsigned flags, int device) {
    ENTER_ANYWHERE;
    for (size_t i = 0; i < sizeof guests; ++i) {
        if (guests[i] || depth == 8) continue;
        guests[i] = 1;
        below[depth++] = current;
        return *out = current = &guests[i], SUCCESS;
    }
    return OUT_OF_MEMORY;
}
Status cuCtxDestroy_v2(void *which) {
    ENTER_ANYWHERE;
    if (which == &context || !is_alive(which)) return INVALID_CONTEXT;
    for (Block *block = blocks; block; block = block->next)
        if (block->context == which) violation("a context is destroyed with memory in it");
    *(char *)which = 0;
    if (current == which && depth) current = below[--depth];
    return SUCCESS;
}
Status cuCtxSynchronize(void) {
    ENTER;
    for (int i = 0; i < stream_count; ++i)
        if (!streams[i]->ended && streams[i]->context == current) run(streams[i], streams[i]->submitted);
    return lost;
}
Status cuCtxGetDevice(int *device) { ENTER_ANYWHERE; if (!current) return INVALID_CONTEXT; *device = 7; return SUCCESS; }

Status cuMemGetInfo_v2(size_t *unused, size_t *total) { ENTER; *unused = device_bytes() > occupied + used ? device_bytes() - occupied - used : 0; *total = device_bytes(); return SUCCESS; }
Status cuMemAlloc_v2(uint64_t *out, size_t bytes) {
    ENTER;
    if (!bytes) return INVALID_VALUE;
    if (bytes + occupied + used > device_bytes()) return OUT_OF_MEMORY;
    *out = (uint64_t)(uintptr_t)take(bytes, MEMORY);
    return *out ? SUCCESS : OUT_OF_MEMORY;
}
Status cuMemFree_v2(uint64_t at) { ENTER; return give((char *)(uintptr_t)at, MEMORY); }
Status cuMemHostAlloc(void **out, size_t bytes, unsigned flags) { ENTER; if (flags != 1) return INVALID_VALUE; *out = take(bytes, PINNED); return *out ? SUCCESS : OUT_OF_MEMORY; }
Status cuMemFreeHost(void *at) { ENTER; return give(at, PINNED); }
static Block *find(uint64_t at) {
    for (Block *block = blocks; block; block = block->next)
        if (block->kind == MEMORY && overlaps(block->at, block->bytes, (char *)(uintptr_t)at, 1)) return block;
    return NULL;
}
Status cuMemGetAddressRange_v2(uint64_t *base, size_t *bytes, uint64_t at) {
    ENTER;
    Block *block = find(at);
    if (!block) return INVALID_VALUE;
    *base = (uint64_t)(uintptr_t)block->at;
    *bytes = block->bytes;
    return SUCCESS;
}
// Attribute 1 is the context, 9 the ordinal of the device.
Status cuPointerGetAttribute(void *value, int attribute, uint64_t at) {
    ENTER;
    Block *block = find(at);
    if (!block) return INVALID_VALUE;
    switch (attribute) {
    case 1: *(void **)value = block->context; return SUCCESS;
    case 9: *(int *)value = 0; return SUCCESS;
    }
    return INVALID_VALUE;
}
Status cuMemcpyHtoDAsync_v2(uint64_t to, const void *from, size_t bytes, void *stream) { ENTER; return push(stream, (Op){.what = COPY, .to = (char *)(uintptr_t)to, .from = from, .bytes = bytes, .to_device = current}); }
Status cuMemcpyDtoHAsync_v2(void *to, uint64_t from, size_t bytes, void *stream) { ENTER; return push(stream, (Op){.what = COPY, .to = to, .from = (char *)(uintptr_t)from, .bytes = bytes, .from_device = current}); }
Status cuMemcpyDtoDAsync_v2(uint64_t to, uint64_t from, size_t bytes, void *stream) { ENTER; return push(stream, (Op){.what = COPY, .to = (char *)(uintptr_t)to, .from = (char *)(uintptr_t)from, .bytes = bytes, .to_device = current, .from_device = current}); }
Status cuMemcpyPeerAsync(uint64_t to, void *target, uint64_t from, void *source, size_t bytes, void *stream) {
    ENTER;
    if (!is_alive(target) || !is_alive(source)) return INVALID_CONTEXT;
    return push(stream, (Op){.what = COPY, .to = (char *)(uintptr_t)to, .from = (char *)(uintptr_t)from, .bytes = bytes, .to_device = target, .from_device = source});
}
Status cuMemsetD8Async(uint64_t to, unsigned char value, size_t count, void *stream) { ENTER; return push(stream, (Op){.what = SET, .to = (char *)(uintptr_t)to, .value = value, .bytes = count, .to_device = current}); }

Status cuStreamCreate(void **out, unsigned flags) {
    ENTER;
    if (flags != 1) return INVALID_VALUE;
    if (stream_count == stream_capacity) {
        stream_capacity = 2 * stream_capacity + 64;
        streams = realloc(streams, (size_t)stream_capacity * sizeof *streams);
    }
    Stream *stream = calloc(1, sizeof *stream);
    stream->object.kind = STREAM;
    stream->context = current;
    stream->last = &stream->first;
    stream->ends = malloc(sizeof *stream->ends);
    *stream->ends = now;
    streams[stream_count++] = stream;
    live[STREAM]++;
    *out = stream;
    return SUCCESS;
}
Status cuStreamDestroy_v2(void *at) {
    ENTER;
    Stream *stream = at;
    if (!is(stream, STREAM) || stream->ended) return INVALID_HANDLE;
    run(stream, stream->submitted);
    stream->ended = 1;
    live[STREAM]--;
    return SUCCESS;
}
Status cuStreamWaitEvent(void *stream, void *at, unsigned flags) {
    ENTER;
    Event *event = at;
    if (!is(event, EVENT) || !event->stream || flags) return INVALID_HANDLE;
    return push(stream, (Op){.what = WAIT, .stream = event->stream, .number = event->number});
}
Status cuStreamGetCtx(void *at, void **out) {
    ENTER_ANYWHERE;
    if (!is(at, STREAM)) return INVALID_HANDLE;
    *out = others ? (void *)&others : ((Stream *)at)->context;
    return SUCCESS;
}
Status cuEventCreate(void **out, unsigned flags) {
    ENTER;
    Event *event = calloc(1, sizeof *event);
    event->object = (Object){EVENT, flags};
    live[EVENT]++;
    *out = event;
    return SUCCESS;
}
Status cuEventDestroy_v2(void *event) { ENTER; if (!is(event, EVENT)) return INVALID_HANDLE; live[EVENT]--; free(event); return SUCCESS; }
Status cuEventRecord(void *at, void *on) {
    ENTER;
    Event *event = at;
    Stream *stream = on;
    if (!is(event, EVENT) || !is(stream, STREAM) || stream->ended) return INVALID_HANDLE;
    event->stream = stream;
    event->number = stream->submitted;
    event->recorded = now;
    return SUCCESS;
}
// For the driver under test: the traffic of the launch right before an event that was reached.
Status emulator_counts(void *at, struct Counts *out) {
    ENTER_ANYWHERE;
    Event *event = at;
    if (!is(event, EVENT) || !event->stream || event->number >= event->stream->counted || !event->stream->counts[event->number]) return NOT_FOUND;
    *out = *event->stream->counts[event->number];
    return SUCCESS;
}

static int is_done(Event *event) { return !event->stream || event->stream->done >= event->number; }
Status cuEventQuery(void *event) { ENTER; return !is(event, EVENT) ? INVALID_HANDLE : is_done(event) ? lost : NOT_READY; }
Status cuEventSynchronize(void *at) {
    ENTER;
    Event *event = at;
    if (!is(event, EVENT)) return INVALID_HANDLE;
    while (event->stream && event->stream == held && !is_done(event)) pthread_cond_wait(&moved, &mutex);
    if (event->stream) run(event->stream, event->number);
    return lost;
}
// The stream's time of arrival at the event: at once if it had no work.
static double time_of(Event *event) {
    double end = event->stream->ends[event->number];
    return end > event->recorded ? end : event->recorded;
}
// The symbol of drivers before CUDA 12.8. An event without timing (flag 2) has no time.
Status cuEventElapsedTime(float *millis, void *start, void *end) {
    ENTER;
    Event *a = start, *b = end;
    if (!is(a, EVENT) || !is(b, EVENT) || !a->stream || !b->stream || (a->object.flags | b->object.flags) & 2) return INVALID_HANDLE;
    if (!is_done(a) || !is_done(b)) return NOT_READY;
    *millis = (float)(time_of(b) - time_of(a));
    return SUCCESS;
}

// Compiles without the lock: other threads go on meanwhile.
static void *open_image(const char *image, char *log, size_t bytes) {
    pthread_mutex_unlock(&mutex);
    void *library = load_image(image, log, bytes);
    pthread_mutex_lock(&mutex);
    return library;
}
// Options 5 and 6 are the log and its size.
Status cuModuleLoadDataEx(void **out, const void *image, unsigned count, int *options, void **values) {
    ENTER;
    if ((uintptr_t)image % 8) return INVALID_VALUE;
    char *log = NULL;
    size_t log_bytes = 0;
    for (unsigned i = 0; i < count; ++i) {
        if (options[i] == 5) log = values[i];
        if (options[i] == 6) log_bytes = (size_t)(uintptr_t)values[i];
    }
    void *library = open_image(image, log, log_bytes);
    if (!library) return INVALID_IMAGE;
    Module *module = calloc(1, sizeof *module);
    module->object.kind = MODULE;
    module->library = library;
    live[MODULE]++;
    *out = module;
    return SUCCESS;
}
Status cuModuleUnload(void *at) {
    ENTER;
    Module *module = at;
    if (!is(module, MODULE)) return INVALID_HANDLE;
    for (int i = 0; i < stream_count; ++i)
        for (Op *op = streams[i]->first; op; op = op->next)
            if (op->function && op->function->module == module) { violation("program unloaded under pending work"); return SUCCESS; }
    live[MODULE]--;
    while (module->functions) {
        Function *function = module->functions;
        module->functions = function->next;
        free(function->name);
        free(function);
    }
    dlclose(module->library);
    free(module);
    return SUCCESS;
}
static void *find_symbol(Module *module, const char *prefix, const char *name) {
    char symbol[512];
    snprintf(symbol, sizeof symbol, "%s%s", prefix, name);
    return dlsym(module->library, symbol);
}
Status cuModuleGetFunction(void **out, void *at, const char *name) {
    ENTER;
    Module *module = at;
    if (!is(module, MODULE)) return INVALID_HANDLE;
    Function *function = malloc(sizeof *function);
    *function = (Function){module->functions, module, strdup(name), find_symbol(module, "emulated_run_", name), find_symbol(module, "emulated_size_", name), find_symbol(module, "emulated_bound_", name)};
    module->functions = function;
    *out = function;
    return function->run && function->size ? SUCCESS : NOT_FOUND;
}
Status cuFuncLoad(void *function) { ENTER; return SUCCESS; }
// Where a parameter lies: scalars are aligned to their size.
static size_t offset_of(const Function *function, unsigned index) {
    size_t end = 0;
    for (unsigned i = 0;; ++i) {
        size_t size = function->size(i), align = size ? size : 1;
        size_t at = (end + align - 1) / align * align;
        if (i == index) return at;
        end = at + size;
    }
}
Status cuFuncGetParamInfo(void *at, size_t index, size_t *offset, size_t *size) {
    ENTER;
    *size = ((Function *)at)->size((unsigned)index);
    if (!*size) return INVALID_VALUE;
    *offset = offset_of(at, (unsigned)index);
    return SUCCESS;
}
Status cuLaunchKernel(void *at, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared, void *stream, void **args, void **extra) {
    ENTER;
    Function *function = at;
    if (gy != 1 || gz != 1 || by != 1 || bz != 1 || shared || extra || !gx || !bx || bx > *function->bound) return INVALID_VALUE;
    unsigned count = 0;
    while (function->size(count)) count++;
    // The limit of drivers before CUDA 12.1.
    size_t bytes = offset_of(function, count);
    if (bytes > 4096) return INVALID_VALUE;
    Op op = {.what = LAUNCH, .function = function, .blocks = gx, .threads = bx, .args = aligned_alloc(16, 4096), .arg_list = calloc(count + 1, sizeof *op.arg_list)};
    for (unsigned i = 0; i < count; ++i) op.arg_list[i] = memcpy(op.args + offset_of(function, i), args[i], function->size(i));
    Status status = push(stream, op);
    if (status) free(op.args), free(op.arg_list);
    return status;
}
