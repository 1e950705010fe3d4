// SPDX-License-Identifier: Apache-2.0
// A strict peer for the Arrow C Device data interface: plays producer and consumer of arrays, pull streams and async
// streams, logs every callback, and records each breach of a rule with the rule's number (R1 to R97 of the
// conformance checklist).
//
// Everything belongs to a session: its settings, its log, its violations, and every byte that it hands out. Memory
// that has been freed is filled with 0xDD and kept until the session ends, so that late use is seen and not just
// undefined. Sessions are independent: tests may run side by side.
#ifndef RECORDER_H
#define RECORDER_H

#include <pthread.h>
#include <stddef.h>

#include "arrow_device.h"

typedef struct Session Session;

// ---- For tests ----------------------------------------------------------------------------------------------------

Session *rec_new(void);
// 0, or -1 for a name that no setting has; SETTINGS in core.c lists them.
int rec_set(Session *s, const char *key, int64_t value);
// Plays the breach of that name from now on, to prove that it is seen: the names are in selftest.c.
void rec_mutate(Session *s, const char *name);
// What has been counted: arrays, live, and what consumer_get and async_get know; -1 for any other.
int64_t rec_get(Session *s, const char *key);
// Copies the text, cut to `bytes`, and tells how long all of it is.
size_t rec_log(Session *s, char *out, size_t bytes);
size_t rec_violations(Session *s, char *out, size_t bytes);
// Waits for threads, releases what the consumer side still holds, and looks for what the other side has left.
void rec_settle(Session *s);
void rec_destroy(Session *s);

// Arrays and schemas, made by the recorder as the settings say.
void rec_make_schema(Session *s, struct ArrowSchema *out);
void rec_make_array(Session *s, int64_t batch, struct ArrowDeviceArray *out);
// What a device's wait call would do for `sync_event` of an array with the setting `event`: the data appears.
void rec_event_wait(void *sync_event);
// Arrays and schemas of the other side: checked, and moved into the session.
void rec_check_schema(Session *s, struct ArrowSchema *schema);
void rec_check_array(Session *s, struct ArrowDeviceArray *array);
// Gives the nth array that this session holds away; 0, or -1 if there is none.
int rec_take(Session *s, int64_t n, struct ArrowDeviceArray *out);
int rec_take_schema(Session *s, struct ArrowSchema *out);

// A pull stream made by the recorder.
void rec_pull_new(Session *s, struct ArrowDeviceArrayStream *out);
// A pull stream of the other side: moved into the session, then called. Results: 0, 1 at the end, or minus the errno.
void rec_pull_open(Session *s, struct ArrowDeviceArrayStream *stream);
int rec_pull_schema(Session *s);
int rec_pull_next(Session *s);
// The text of the failure, in the log too; -1 if there is none.
int64_t rec_pull_error(Session *s, char *out, size_t bytes);
void rec_pull_release(Session *s);

// An async stream made by the recorder, for this handler.
void rec_async_start(Session *s, struct ArrowAsyncDeviceStreamHandler *handler);
// A handler of the recorder's, for the other side's stream.
struct ArrowAsyncDeviceStreamHandler *rec_handler_new(Session *s);
// From a thread of their own, unless the stream is over.
void rec_request(Session *s, int64_t n);
void rec_cancel(Session *s);
// Waits for the handler's release; 0, or -1 with a violation if it does not come.
int rec_handler_wait(Session *s, int timeout_ms);
int64_t rec_async_error(Session *s, char *out, size_t bytes);

// ---- Inside -------------------------------------------------------------------------------------------------------

typedef enum { BYTES, SCHEMA, ARRAY, EVENT, STREAM, PRODUCER, TASK, HANDLER, TOMB } Kind;

typedef struct Block {
    struct Block *next;
    Session *s;
    Kind kind;
    int rule;          // That a leak of this breaks; 0: memory of our own.
    int live;
    int readable;      // Once dead: a struct of callbacks, which tell of their late use themselves.
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
    int32_t device_type;        // That arrays of the other side must have; 0: any.
    Pull *pull;
    Async *async;
    Consumer *consumer;
};

int64_t option(Session *s, const char *key);
int mutant(Session *s, const char *name);
void note(Session *s, const char *format, ...) __attribute__((format(printf, 2, 3)));
void violation(Session *s, int rule, const char *format, ...) __attribute__((format(printf, 3, 4)));
// A breach by a call from which no session can be told: goes to the next session that settles.
void orphan(int rule, const char *format, ...) __attribute__((format(printf, 2, 3)));
#define CHECK(s, rule, condition, ...) do { if (!(condition)) violation((s), (rule), __VA_ARGS__); } while (0)

void *take(Session *s, Kind kind, size_t bytes, int rule, const char *what, void *aux);
char *take_text(Session *s, const void *text, size_t bytes, const char *what);
void drop(void *at);
// Frees a struct of callbacks: unlike drop, leaves it callable, for the callbacks to complain.
void bury(void *at);
// The block at that address if its kind is this, dead or alive; NULL for anything else.
Block *find(const void *at, Kind kind);

uint64_t sum_bytes(const void *at, size_t bytes);
int all_bytes(const void *at, int value, size_t bytes);
void jitter(Session *s);
void sleep_us(long us);
double now(void);
// Calls on a fresh thread, and waits for it.
void elsewhere(void (*call)(void *), void *argument);

// Key-value pairs in the encoding of ArrowSchema.metadata, as the setting `metadata` says; NULL for 0.
const char *make_metadata(Session *s);
// How many bytes such pairs have; -1 if they make no sense.
int64_t metadata_bytes(const char *metadata);
// The text of failures as the setting `error_text` says.
const char *make_error_text(Session *s);
int is_utf8(const char *text);

// Every member; what lies between them is nobody's.
int is_zeroed(const struct ArrowDeviceArray *array);
void array_make(Session *s, int64_t batch, struct ArrowDeviceArray *out);
// What a failing callback leaves behind: nothing that looks empty.
void leave_garbage(Session *s, struct ArrowDeviceArray *out, int rule, const char *what);
void check_schema_struct(Session *s, const struct ArrowSchema *schema);
char *schema_digest(const struct ArrowSchema *schema);
// Checks what the other side wrote into `array`, and moves it to the session's list.
void accept_array(Session *s, struct ArrowDeviceArray *array);
void accept_schema(Session *s, struct ArrowSchema *schema);
void release_arrays(Session *s);

void pull_settle(Session *s);
void async_settle(Session *s);
void consumer_settle(Session *s);
int64_t consumer_get(Session *s, const char *key);
int64_t async_get(Session *s, const char *key);

#endif
