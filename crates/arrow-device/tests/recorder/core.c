// SPDX-License-Identifier: Apache-2.0
// Sessions: settings, log, violations and counted memory.
#define _GNU_SOURCE
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <errno.h>

#include "recorder.h"

// Freed memory is poisoned for sanitizers and valgrind, so that they detect late reads as well as
// late writes.
#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#define CLOSE_MEMORY(at, bytes) __asan_poison_memory_region((at), (bytes))
#define OPEN_MEMORY(at, bytes) __asan_unpoison_memory_region((at), (bytes))
#elif defined(__has_include)
#if __has_include(<valgrind/memcheck.h>)
#include <valgrind/memcheck.h>
#define CLOSE_MEMORY(at, bytes) ((void)VALGRIND_MAKE_MEM_NOACCESS((at), (bytes)))
#define OPEN_MEMORY(at, bytes) ((void)VALGRIND_MAKE_MEM_DEFINED((at), (bytes)))
#endif
#endif
#ifndef CLOSE_MEMORY
#define CLOSE_MEMORY(at, bytes) ((void)(at), (void)(bytes))
#define OPEN_MEMORY(at, bytes) ((void)(at), (void)(bytes))
#endif

static const struct { const char *key; int64_t value; } SETTINGS[] = {
    // Both roles.
    {"style", 0},            // 1: deviates like Arrow C++ 26 (Y1 to Y3).
    {"threads", 2},          // Calls of the recorder come from 0: one thread, 2: a new thread each.
    {"settle_ms", 2000},     // Time limit for the other side to release everything.
    {"jitter", 0},           // Maximum of random sleeps, in microseconds.
    // Producer: the data.
    {"batches", 3},
    {"rows", 5},
    {"shape", 0},            // 0: a batch of many types, 1: of one column, 2: of none, 3: an int32 array.
    {"offset", 0},           // Of every column.
    {"top_offset", 0},       // Of the batch.
    {"uncounted", 0},        // null_count is -1.
    {"misaligned", 0},       // Buffers are misaligned by one byte.
    {"device_type", 1},
    {"device_id", -1},
    {"array_device_type", 0},// Not 0: of arrays, in spite of the stream's.
    {"event", 0},            // The data appears in rec_event_wait.
    {"garbage", 1},          // Y1: garbage in `reserved`, and in all fields at the end and after failures.
    {"malformed", 0},        // A number from MALFORMED in data.c.
    {"malformed_schema", 0}, // A number from MALFORMED_SCHEMA in data.c.
    {"metadata", 0},         // 0: NULL, 1: pairs, 2: no pairs, 3: pairs that are not UTF-8.
    // Producer: failures.
    {"fail_at", -1},         // The index of the failing call.
    {"fail_code", EIO},
    {"fail_extract", -1},    // The index of the failing extraction.
    {"error_message", 1},       // 0: NULL, 1: a sentence, 2: empty, 3: not UTF-8, 4: 100 KB.
    {"sticky", 1},           // A pull stream keeps failing after its first failure.
    {"finish_after_cancel", 1}, // An async stream delivers tasks requested before its cancel.
    {"end_after_cancel", 0}, // ... and sends the end marker.
    {"early_free", 0},       // Its producer is freed right after the end marker, before release, as in arrow-go (Y5).
    {"start_inline", 0},     // on_schema comes within rec_async_start.
    {"patience_ms", 30000},  // Time limit of an async stream's wait for its consumer.
    // Consumer.
    {"preset", 0xAB},        // The fill byte of outputs: 0 as R44 requires, else it reveals unwritten fields.
    {"record_batch", 1},     // Top-level structs must follow R33.
    {"foreign_codes", 0},    // The producer may pass on errnos outside R61.
    {"request", 1},          // The first request; 0: none.
    {"request_each", 1},     // The request with each task; 0: none.
    {"bad_request_at", -1},  // In callback k (0: on_schema) ...
    {"bad_request", 0},      // ... requests this number.
    {"refuse_schema", 0},    // The errno that on_schema returns.
    {"refuse_moves", 1},     // ... after moving the schema out.
    {"refuse_task", -1},     // Task k ...
    {"refuse_code", EINVAL}, // ... is refused with this errno,
    {"refuse_extracts", 0},  // after its extraction.
    {"cancel_at", -1},       // In callback k (0: on_schema).
    {"cancel_times", 1},
    {"cancel_elsewhere", 0}, // On another thread.
    {"request_after_cancel", 0}, // The number requested after the cancel in a callback.
    {"extract", 0},          // 0: in on_next_task, 1: on another thread, 2: after release, 3: at the end, in reverse.
    {"extract_null", -1},    // Task k is unwanted; -2: all are.
    {"expect_error", 0},     // The producer's own failure is expected.
    {"release_ms", 30000},   // Time limit of release.
};
enum { N_SETTINGS = sizeof SETTINGS / sizeof *SETTINGS };

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;  // Guards all below, and the strings and blocks of sessions.
static Session *sessions;
static char *orphans;
static size_t orphans_bytes;

static void append(char **lines, size_t *bytes, const char *line) {
    size_t more = strlen(line);
    *lines = realloc(*lines, *bytes + more + 2);
    memcpy(*lines + *bytes, line, more);
    *bytes += more;
    (*lines)[(*bytes)++] = '\n';
    (*lines)[*bytes] = 0;
}

#define FORMAT_LINE(line, prefix) \
    char line[1024]; \
    size_t at_ = (size_t)snprintf(line, sizeof line, "%s", prefix); \
    va_list arguments_; \
    va_start(arguments_, format); \
    vsnprintf(line + at_, sizeof line - at_, format, arguments_); \
    va_end(arguments_)

void note(Session *s, const char *format, ...) {
    FORMAT_LINE(line, "");
    pthread_mutex_lock(&mutex);
    append(&s->log, &s->log_bytes, line);
    pthread_mutex_unlock(&mutex);
}

void violation(Session *s, int rule, const char *format, ...) {
    char prefix[16];
    snprintf(prefix, sizeof prefix, "R%d: ", rule);
    FORMAT_LINE(line, prefix);
    pthread_mutex_lock(&mutex);
    append(&s->violations, &s->violations_bytes, line);
    append(&s->log, &s->log_bytes, line);
    pthread_mutex_unlock(&mutex);
}

void orphan(int rule, const char *format, ...) {
    char prefix[16];
    snprintf(prefix, sizeof prefix, "R%d: ", rule);
    FORMAT_LINE(line, prefix);
    fprintf(stderr, "recorder: %s\n", line);
    pthread_mutex_lock(&mutex);
    append(&orphans, &orphans_bytes, line);
    pthread_mutex_unlock(&mutex);
}

static size_t copy_string(const char *string, size_t bytes, char *out, size_t room) {
    size_t copied = bytes < room ? bytes : room;
    if (copied) memcpy(out, string, copied);
    return bytes;
}

size_t rec_log(Session *s, char *out, size_t bytes) {
    pthread_mutex_lock(&mutex);
    size_t all = copy_string(s->log, s->log_bytes, out, bytes);
    pthread_mutex_unlock(&mutex);
    return all;
}

size_t rec_violations(Session *s, char *out, size_t bytes) {
    pthread_mutex_lock(&mutex);
    size_t all = copy_string(s->violations, s->violations_bytes, out, bytes);
    pthread_mutex_unlock(&mutex);
    return all;
}

Session *rec_new(void) {
    Session *s = calloc(1, sizeof *s);
    s->settings = malloc(sizeof *s->settings * N_SETTINGS);
    for (int i = 0; i < N_SETTINGS; i++) s->settings[i] = SETTINGS[i].value;
    pthread_mutex_lock(&mutex);
    s->next = sessions;
    sessions = s;
    pthread_mutex_unlock(&mutex);
    return s;
}

static int setting(const char *key) {
    for (int i = 0; i < N_SETTINGS; i++)
        if (!strcmp(SETTINGS[i].key, key)) return i;
    return -1;
}

int rec_set(Session *s, const char *key, int64_t value) {
    int i = setting(key);
    if (i < 0) return -1;
    s->settings[i] = value;
    return 0;
}

int64_t option(Session *s, const char *key) {
    int i = setting(key);
    if (i < 0) {
        fprintf(stderr, "recorder: no setting %s\n", key);
        abort();
    }
    return s->settings[i];
}

void rec_mutate(Session *s, const char *name) { s->mutant = name; }

int mutant(Session *s, const char *name) { return s->mutant && !strcmp(s->mutant, name); }

int64_t rec_get(Session *s, const char *key) {
    if (!strcmp(key, "arrays")) return s->n_arrays;
    if (!strcmp(key, "live")) {
        // Only memory that the other side must release.
        int64_t live = 0;
        pthread_mutex_lock(&mutex);
        for (Block *block = s->blocks; block; block = block->next) live += block->live && block->rule;
        pthread_mutex_unlock(&mutex);
        return live;
    }
    int64_t count = consumer_get(s, key);
    return count != -1 ? count : async_get(s, key);
}

void *take(Session *s, Kind kind, size_t bytes, int rule, const char *what, void *aux) {
    // Aligned as Arrow recommends for buffers.
    size_t room = (bytes + 64) / 64 * 64;
    Block *block = calloc(1, sizeof *block);
    block->raw = aligned_alloc(64, room);
    block->at = block->raw;
    memset(block->at, 0, room);
    CLOSE_MEMORY(block->at + bytes, room - bytes);
    block->s = s, block->kind = kind, block->rule = rule, block->live = 1;
    block->bytes = bytes, block->what = what, block->aux = aux;
    pthread_mutex_lock(&mutex);
    block->next = s->blocks;
    s->blocks = block;
    pthread_mutex_unlock(&mutex);
    return block->at;
}

char *take_copy(Session *s, const void *source, size_t bytes, const char *what) {
    char *at = take(s, BYTES, bytes, 0, what, NULL);
    memcpy(at, source, bytes);
    return at;
}

static Block *block_at(const void *at) {
    for (Session *s = sessions; s; s = s->next)
        for (Block *block = s->blocks; block; block = block->next)
            if (block->at == at) return block;
    return NULL;
}

Block *find(const void *at, Kind kind) {
    pthread_mutex_lock(&mutex);
    Block *block = at ? block_at(at) : NULL;
    pthread_mutex_unlock(&mutex);
    return block && block->kind == kind ? block : NULL;
}

static void end_block(void *at, int readable) {
    if (!at) return;
    pthread_mutex_lock(&mutex);
    Block *block = block_at(at);
    if (!block || !block->live) {
        fprintf(stderr, "recorder: frees a block that it does not have\n");
        abort();
    }
    block->live = 0;
    block->readable = readable;
    if (!readable) {
        memset(block->at, 0xDD, block->bytes);
        CLOSE_MEMORY(block->at, block->bytes);
    }
    pthread_mutex_unlock(&mutex);
}

void drop(void *at) { end_block(at, 0); }
void bury(void *at) { end_block(at, 1); }

void rec_settle(Session *s) {
    consumer_settle(s);
    pull_settle(s);
    release_arrays(s);
    if (s->schema.release) s->schema.release(&s->schema);
    async_settle(s);
    // The other side may still be releasing on another thread.
    double start = now();
    while (rec_get(s, "live") && now() - start < (double)option(s, "settle_ms") / 1000) sleep_us(500);
    pthread_mutex_lock(&mutex);
    char line[256];
    for (Block *block = s->blocks; block; block = block->next) {
        line[0] = 0;
        if (block->live && block->rule) {
            snprintf(line, sizeof line, "R%d: never freed: %s", block->rule, block->what);
        } else if (!block->live && !block->readable) {
            OPEN_MEMORY(block->at, block->bytes);
            if (!all_bytes(block->at, 0xDD, block->bytes))
                snprintf(line, sizeof line, "R41: written after it was freed: %s", block->what);
        }
        if (line[0]) append(&s->violations, &s->violations_bytes, line);
    }
    if (orphans) {
        // append() ends each line itself.
        orphans[orphans_bytes - 1] = 0;
        append(&s->violations, &s->violations_bytes, orphans);
        free(orphans);
        orphans = NULL;
        orphans_bytes = 0;
    }
    pthread_mutex_unlock(&mutex);
}

void rec_destroy(Session *s) {
    pthread_mutex_lock(&mutex);
    Session **at = &sessions;
    while (*at != s) at = &(*at)->next;
    *at = s->next;
    pthread_mutex_unlock(&mutex);
    while (s->blocks) {
        Block *block = s->blocks;
        s->blocks = block->next;
        OPEN_MEMORY(block->raw, (block->bytes + 64) / 64 * 64);
        free(block->raw);
        free(block);
    }
    free(s->settings);
    free(s->log);
    free(s->violations);
    free(s->digest);
    free(s->arrays);
    free(s->pull);
    free(s->async);
    free(s->consumer);
    free(s);
}

uint64_t sum_bytes(const void *at, size_t bytes) {
    // FNV-1a.
    uint64_t sum = 0xcbf29ce484222325u;
    for (size_t i = 0; i < bytes; i++) sum = (sum ^ ((const unsigned char *)at)[i]) * 0x100000001b3u;
    return sum;
}

int all_bytes(const void *at, int value, size_t bytes) {
    for (size_t i = 0; i < bytes; i++)
        if (((const unsigned char *)at)[i] != value) return 0;
    return 1;
}

void sleep_us(long us) {
    struct timespec time = {us / 1000000, us % 1000000 * 1000};
    nanosleep(&time, NULL);
}

double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + (double)time.tv_nsec / 1e9;
}

void jitter(Session *s) {
    static _Thread_local unsigned seed;
    int64_t most = option(s, "jitter");
    if (!most) return;
    if (!seed) seed = (unsigned)(uintptr_t)&seed ^ (unsigned)(now() * 1e6);
    sleep_us(rand_r(&seed) % most);
}

typedef struct { void (*call)(void *); void *argument; } Elsewhere;

static void *run_elsewhere(void *argument) {
    Elsewhere *elsewhere = argument;
    elsewhere->call(elsewhere->argument);
    return NULL;
}

void elsewhere(void (*call)(void *), void *argument) {
    Elsewhere work = {call, argument};
    pthread_t thread;
    if (pthread_create(&thread, NULL, run_elsewhere, &work)) abort();
    pthread_join(thread, NULL);
}

static size_t put_pair(char *out, const char *key, const char *value, int32_t value_bytes) {
    int32_t key_bytes = (int32_t)strlen(key);
    memcpy(out, &key_bytes, 4);
    memcpy(out + 4, key, (size_t)key_bytes);
    memcpy(out + 4 + key_bytes, &value_bytes, 4);
    memcpy(out + 8 + key_bytes, value, (size_t)value_bytes);
    return 8 + (size_t)key_bytes + (size_t)value_bytes;
}

const char *make_metadata(Session *s) {
    char pairs[128];
    int64_t kind = option(s, "metadata");
    if (!kind) return NULL;
    int32_t count = kind == 2 ? 0 : 2;
    memcpy(pairs, &count, 4);
    size_t bytes = 4;
    if (count) {
        bytes += put_pair(pairs + bytes, "rows", "15", 2);
        // Values may hold any bytes, including NUL.
        bytes += kind == 3 ? put_pair(pairs + bytes, "note", "\xff\0\xfe", 3) : put_pair(pairs + bytes, "note", "caf\xc3\xa9", 5);
    }
    return take_copy(s, pairs, bytes, "metadata");
}

int64_t metadata_bytes(const char *metadata) {
    int32_t count, length;
    memcpy(&count, metadata, 4);
    if (count < 0 || count > 1000) return -1;
    const char *at = metadata + 4;
    for (int32_t i = 0; i < 2 * count; i++) {
        memcpy(&length, at, 4);
        // The format allows more; here such a length is corrupt.
        if (length < 0 || length > 1000000) return -1;
        at += 4 + length;
    }
    return at - metadata;
}

const char *make_error_message(Session *s) {
    switch (option(s, "error_message")) {
    case 0: return NULL;
    case 1: return take_copy(s, "the recorder fails here: caf\xc3\xa9", 31, "error message");
    case 2: return take_copy(s, "", 1, "error message");
    case 3: return take_copy(s, "bad \xff\xfe text", 12, "error message");
    default: {
        char *string = take(s, BYTES, 100001, 0, "error message", NULL);
        memset(string, 'x', 100000);
        return string;
    }
    }
}

int is_utf8(const char *string) {
    const unsigned char *at = (const unsigned char *)string;
    while (*at) {
        int more = *at < 0x80 ? 0 : *at >= 0xC2 && *at < 0xE0 ? 1 : (*at & 0xF0) == 0xE0 ? 2 : *at >= 0xF0 && *at < 0xF5 ? 3 : -1;
        if (more < 0) return 0;
        for (at++; more; more--, at++)
            if ((*at & 0xC0) != 0x80) return 0;
    }
    return 1;
}
