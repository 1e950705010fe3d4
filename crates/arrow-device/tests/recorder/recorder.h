// SPDX-License-Identifier: Apache-2.0
// A strict peer for the Arrow C Device data interface: plays producer and consumer of arrays, pull
// streams and async streams. It logs every callback, and records each violation with its rule (R1
// to R97 of the conformance checklist).
//
// A session owns its settings, log, violations, and all memory that it hands out. Freed memory is
// filled with 0xDD and kept until the session ends, so that late use is detected rather than
// undefined. Sessions are independent, so tests may run in parallel.
#ifndef RECORDER_H
#define RECORDER_H

#include <pthread.h>
#include <stddef.h>

#include "arrow_device.h"

typedef struct Session Session;

// ---- For tests ----------------------------------------------------------------------------------

Session *rec_new(void);
// Returns 0, or -1 for an unknown setting; SETTINGS in core.c lists them.
int rec_set(Session *s, const char *key, int64_t value);
// Plays a violation from now on, to prove that it is detected; selftest.c lists the names.
void rec_mutate(Session *s, const char *name);
// A counter: arrays, live, and those of consumer_get and async_get; -1 for any other.
int64_t rec_get(Session *s, const char *key);
// Copies the string, truncated to `bytes`, and returns its whole length.
size_t rec_log(Session *s, char *out, size_t bytes);
size_t rec_violations(Session *s, char *out, size_t bytes);
// Waits for threads, releases the consumer side's structs, and checks for leaks of the other side.
void rec_settle(Session *s);
void rec_destroy(Session *s);

// Arrays and schemas of the recorder, by the settings.
void rec_make_schema(Session *s, struct ArrowSchema *out);
void rec_make_array(Session *s, int64_t batch, struct ArrowDeviceArray *out);
// Acts as a device's wait for the `sync_event` of an array with the setting `event`: the data
// appears.
void rec_event_wait(void *sync_event);
// Arrays and schemas of the other side: checked, and moved into the session.
void rec_check_schema(Session *s, struct ArrowSchema *schema);
void rec_check_array(Session *s, struct ArrowDeviceArray *array);
// Moves the nth array of this session out; returns 0, or -1 if there is none.
int rec_take(Session *s, int64_t n, struct ArrowDeviceArray *out);
int rec_take_schema(Session *s, struct ArrowSchema *out);

// A pull stream of the recorder.
void rec_pull_new(Session *s, struct ArrowDeviceArrayStream *out);
// A pull stream of the other side: moved into the session, then called. Returns 0, 1 at the end, or
// minus the errno.
void rec_pull_open(Session *s, struct ArrowDeviceArrayStream *stream);
int rec_pull_schema(Session *s);
int rec_pull_next(Session *s);
// Copies the message of the failure, and logs it; returns -1 if there is none.
int64_t rec_pull_error(Session *s, char *out, size_t bytes);
void rec_pull_release(Session *s);

// Starts an async stream of the recorder for this handler.
void rec_async_start(Session *s, struct ArrowAsyncDeviceStreamHandler *handler);
// A handler of the recorder, for the other side's stream.
struct ArrowAsyncDeviceStreamHandler *rec_handler_new(Session *s);
// On a new thread, unless the stream is over.
void rec_request(Session *s, int64_t n);
void rec_cancel(Session *s);
// Waits for the handler's release; returns 0, or -1 with a violation on a timeout.
int rec_handler_wait(Session *s, int timeout_ms);
int64_t rec_async_error(Session *s, char *out, size_t bytes);

// ---- Internal -----------------------------------------------------------------------------------

typedef enum { BYTES, SCHEMA, ARRAY, EVENT, STREAM, PRODUCER, TASK, HANDLER, TOMB } Kind;

typedef struct Block {
    struct Block *next;
    Session *s;
    Kind kind;
    int rule;          // The rule that a leak violates; 0: memory of the recorder.
    int live;
    int readable;      // Once freed: a struct of callbacks, which report their late use themselves.
    size_t bytes;
    const char *what;
    void *aux;
    void *raw;
    unsigned char *at;
} Block;

typedef struct Pull Pull;
typedef struct Async Async;
typedef struct Consumer Consumer;

struct Session {
    Session *next;
    Block *blocks;
    int64_t *settings;
    const char *mutant;
    char *log, *violations;
    size_t log_bytes, violations_bytes;
    struct ArrowSchema schema;  // The consumer's.
    char *digest;               // Of that schema, once known.
    struct ArrowDeviceArray *arrays;
    int64_t n_arrays;
    int32_t device_type;        // Required of the other side's arrays; 0: any.
    Pull *pull;
    Async *async;
    Consumer *consumer;
};

int64_t option(Session *s, const char *key);
int mutant(Session *s, const char *name);
void note(Session *s, const char *format, ...) __attribute__((format(printf, 2, 3)));
void violation(Session *s, int rule, const char *format, ...) __attribute__((format(printf, 3, 4)));
// A violation by a call without an identifiable session: goes to the next session that settles.
void orphan(int rule, const char *format, ...) __attribute__((format(printf, 2, 3)));
#define CHECK(s, rule, condition, ...) do { if (!(condition)) violation((s), (rule), __VA_ARGS__); } while (0)

void *take(Session *s, Kind kind, size_t bytes, int rule, const char *what, void *aux);
char *take_copy(Session *s, const void *source, size_t bytes, const char *what);
void drop(void *at);
// Frees a struct of callbacks; unlike drop, leaves it callable, so that the callbacks report their
// use.
void bury(void *at);
// The block of this kind at an address, live or freed; NULL for anything else.
Block *find(const void *at, Kind kind);

uint64_t sum_bytes(const void *at, size_t bytes);
int all_bytes(const void *at, int value, size_t bytes);
void jitter(Session *s);
void sleep_us(long us);
double now(void);
// Runs the call on a new thread, and waits for it.
void elsewhere(void (*call)(void *), void *argument);

// Key-value pairs in the encoding of ArrowSchema.metadata, by the setting `metadata`; NULL for 0.
const char *make_metadata(Session *s);
// The size of such pairs in bytes; -1 if they are corrupt.
int64_t metadata_bytes(const char *metadata);
// The message of failures, by the setting `error_message`.
const char *make_error_message(Session *s);
int is_utf8(const char *string);

// Compares every member, but no padding.
int is_zeroed(const struct ArrowDeviceArray *array);
void array_make(Session *s, int64_t batch, struct ArrowDeviceArray *out);
// The output of a failed callback: garbage that does not look empty.
void leave_garbage(Session *s, struct ArrowDeviceArray *out, int rule, const char *what);
void check_schema_struct(Session *s, const struct ArrowSchema *schema);
char *schema_digest(const struct ArrowSchema *schema);
// Checks the other side's `array`, and moves it to the session's list.
void accept_array(Session *s, struct ArrowDeviceArray *array);
void accept_schema(Session *s, struct ArrowSchema *schema);
void release_arrays(Session *s);

void pull_settle(Session *s);
void async_settle(Session *s);
void consumer_settle(Session *s);
int64_t consumer_get(Session *s, const char *key);
int64_t async_get(Session *s, const char *key);

#endif
