// SPDX-License-Identifier: Apache-2.0
// A CUDA driver that runs on the host, for tests of ours: one device, memory from malloc, streams that do
// their work at once. It is strict where NVIDIA's is lenient or silent: every call but a few wants a
// current context, frees must match, and any call can be told to fail.
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef int Status;
enum { SUCCESS = 0, INVALID_VALUE = 1, OUT_OF_MEMORY = 2, INVALID_IMAGE = 200, INVALID_CONTEXT = 201, NOT_FOUND = 500, NOT_READY = 600 };

#define DEVICE_BYTES ((size_t)1 << 30)

static int context;              // Its address is the context.
static long retained;            // Times that it is retained.
static long live[5];             // Memory, pinned, streams, events, modules.
static size_t used;              // Bytes allocated.
static _Thread_local void *current;
static _Thread_local char failing[64];
static _Thread_local int failing_with;

enum { MEMORY, PINNED, STREAM, EVENT, MODULE };

// For the test: the next call of that name on this thread fails.
void fake_fail(const char *call, int status) { snprintf(failing, sizeof failing, "%s", call); failing_with = status; }
// For the test: objects of a kind that have not been freed.
long fake_live(int kind) { return kind < 0 ? retained : live[kind]; }

static Status fail(const char *call) {
    if (strcmp(failing, call)) return SUCCESS;
    failing[0] = 0;
    return failing_with;
}
#define ENTER_ANYWHERE do { Status s_ = fail(__func__); if (s_) return s_; } while (0)
#define ENTER do { ENTER_ANYWHERE; if (current != &context || !retained) return INVALID_CONTEXT; } while (0)

typedef struct { int kind; unsigned flags; int recorded; } Object;

static Status create(void **out, int kind, unsigned flags) {
    Object *object = calloc(1, sizeof *object);
    object->kind = kind;
    object->flags = flags;
    live[kind]++;
    *out = object;
    return SUCCESS;
}
static Status destroy(void *object, int kind) {
    if (!object || ((Object *)object)->kind != kind) return INVALID_VALUE;
    live[kind]--;
    free(object);
    return SUCCESS;
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
    case 700: *name = "CUDA_ERROR_ILLEGAL_ADDRESS"; return SUCCESS;
    }
    *name = NULL;
    return INVALID_VALUE;
}
Status cuGetErrorString(int status, const char **text) { return cuGetErrorName(status, text); }
// NVRTC asks any driver that it finds for a table of internal functions; this one holds only its own size.
Status cuGetExportTable(const void **out, const void *uuid) {
    static const size_t empty[1] = {sizeof empty};
    *out = empty;
    return SUCCESS;
}

Status cuDeviceGetCount(int *count) { ENTER_ANYWHERE; *count = 1; return SUCCESS; }
Status cuDeviceGet(int *device, int ordinal) { *device = 7; return ordinal ? 101 : SUCCESS; }
Status cuDeviceGetName(char *name, int length, int device) { snprintf(name, length, "Fake GPU"); return SUCCESS; }
Status cuDeviceTotalMem_v2(size_t *bytes, int device) { *bytes = DEVICE_BYTES; return SUCCESS; }
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
Status cuDevicePrimaryCtxRelease_v2(int device) { if (!retained) return INVALID_CONTEXT; retained--; return SUCCESS; }
Status cuCtxSetCurrent(void *wanted) { ENTER_ANYWHERE; current = wanted; return SUCCESS; }

// Each allocation is preceded by 256 bytes that hold its size.
static void *take(size_t bytes) { char *at = malloc(bytes + 256); *(size_t *)at = bytes; return at + 256; }
static void give(void *at) { free((char *)at - 256); }
Status cuMemGetInfo_v2(size_t *unused, size_t *total) { ENTER; *unused = DEVICE_BYTES - used; *total = DEVICE_BYTES; return SUCCESS; }
Status cuMemAlloc_v2(uint64_t *out, size_t bytes) {
    ENTER;
    if (!bytes) return INVALID_VALUE;
    if (bytes > DEVICE_BYTES - used) return OUT_OF_MEMORY;
    void *at = take(bytes);
    memset(at, 0xAB, bytes);
    used += bytes;
    live[MEMORY]++;
    *out = (uint64_t)(uintptr_t)at;
    return SUCCESS;
}
Status cuMemFree_v2(uint64_t at) { ENTER; used -= *(size_t *)(uintptr_t)(at - 256); live[MEMORY]--; give((void *)(uintptr_t)at); return SUCCESS; }
Status cuMemHostAlloc(void **out, size_t bytes, unsigned flags) { ENTER; if (flags != 1) return INVALID_VALUE; live[PINNED]++; *out = take(bytes); return SUCCESS; }
Status cuMemFreeHost(void *at) { ENTER; live[PINNED]--; give(at); return SUCCESS; }
Status cuMemcpyHtoDAsync_v2(uint64_t to, const void *from, size_t bytes, void *stream) { ENTER; if (!is(stream, STREAM)) return 400; memcpy((void *)(uintptr_t)to, from, bytes); return SUCCESS; }
Status cuMemcpyDtoHAsync_v2(void *to, uint64_t from, size_t bytes, void *stream) { ENTER; if (!is(stream, STREAM)) return 400; memcpy(to, (void *)(uintptr_t)from, bytes); return SUCCESS; }
Status cuMemcpyDtoDAsync_v2(uint64_t to, uint64_t from, size_t bytes, void *stream) { ENTER; if (!is(stream, STREAM)) return 400; memcpy((void *)(uintptr_t)to, (void *)(uintptr_t)from, bytes); return SUCCESS; }
Status cuMemsetD8Async(uint64_t to, unsigned char value, size_t count, void *stream) { ENTER; if (!is(stream, STREAM)) return 400; memset((void *)(uintptr_t)to, value, count); return SUCCESS; }

Status cuStreamCreate(void **out, unsigned flags) { ENTER; return flags == 1 ? create(out, STREAM, flags) : INVALID_VALUE; }
Status cuStreamDestroy_v2(void *stream) { ENTER; return destroy(stream, STREAM); }
Status cuStreamWaitEvent(void *stream, void *event, unsigned flags) { ENTER; return is(stream, STREAM) && is(event, EVENT) && !flags ? SUCCESS : 400; }
Status cuEventCreate(void **out, unsigned flags) { ENTER; return create(out, EVENT, flags); }
Status cuEventDestroy_v2(void *event) { ENTER; return destroy(event, EVENT); }
Status cuEventRecord(void *event, void *stream) { ENTER; if (!is(event, EVENT) || !is(stream, STREAM)) return 400; ((Object *)event)->recorded = 1; return SUCCESS; }
Status cuEventQuery(void *event) { ENTER; return is(event, EVENT) ? SUCCESS : 400; }
Status cuEventSynchronize(void *event) { ENTER; return is(event, EVENT) ? SUCCESS : 400; }
// The name that drivers before CUDA 12.8 have. An event without timing (flag 2) has no time.
Status cuEventElapsedTime(float *millis, void *start, void *end) {
    ENTER;
    Object *a = start, *b = end;
    if (!is(a, EVENT) || !is(b, EVENT) || !a->recorded || !b->recorded || (a->flags | b->flags) & 2) return 400;
    *millis = 1.5f;
    return SUCCESS;
}

typedef struct { Object object; char names[16][64]; int count; } Module;
Status cuModuleLoadDataEx(void **out, const void *image, unsigned count, int *options, void **values) {
    ENTER;
    if ((uintptr_t)image % 8) return INVALID_VALUE;
    if (memcmp(image, "\177ELF", 4)) {
        for (unsigned i = 0; i < count; ++i) if (options[i] == 5) strcpy(values[i], "ptxas fatal: no good\n");
        return INVALID_IMAGE;
    }
    Module *module = calloc(1, sizeof *module);
    module->object.kind = MODULE;
    live[MODULE]++;
    *out = module;
    return SUCCESS;
}
Status cuModuleUnload(void *module) { ENTER; return destroy(module, MODULE); }
Status cuModuleGetFunction(void **out, void *module, const char *name) {
    ENTER;
    Module *m = module;
    if (!is(m, MODULE) || m->count == 16) return 400;
    snprintf(m->names[m->count], 64, "%s", name);
    *out = m->names[m->count++];
    return SUCCESS;
}
Status cuFuncLoad(void *function) { ENTER; return SUCCESS; }
// scale(double*, double, int)
Status cuFuncGetParamInfo(void *function, size_t index, size_t *offset, size_t *size) {
    static const size_t sizes[] = {8, 8, 4};
    ENTER;
    if (strcmp(function, "scale") || index >= 3) return INVALID_VALUE;
    *offset = 8 * index;
    *size = sizes[index];
    return SUCCESS;
}
Status cuLaunchKernel(void *function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared, void *stream, void **args, void **extra) {
    ENTER;
    if (!is(stream, STREAM) || gy != 1 || gz != 1 || by != 1 || bz != 1 || shared || extra || !gx || !bx || bx > 1024) return INVALID_VALUE;
    if (strcmp(function, "scale")) return SUCCESS;
    double *values = *(double **)args[0], factor = *(double *)args[1];
    int plus = *(int *)args[2];
    for (unsigned i = 0; i < gx * bx; ++i) values[i] = values[i] * factor + plus;
    return SUCCESS;
}
