// SPDX-License-Identifier: Apache-2.0
// The consumer of an async stream.
#define _GNU_SOURCE
#include <errno.h>
#include <inttypes.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "recorder.h"

enum { MOST_TASKS = 1000 };

typedef struct { struct ArrowAsyncTask task; int64_t number; } Queued;

struct Consumer {
    Session *s;
    struct ArrowAsyncDeviceStreamHandler *handler;
    atomic_int inside;
    // Held from the check of `released` to the end of a request or cancel outside of callbacks
    // (R75).
    pthread_mutex_t gate;
    // Guards everything below.
    pthread_mutex_t mutex;
    struct ArrowAsyncProducer *producer;
    uint64_t metadata_sum;
    int64_t callbacks, schemas, tasks, ended, errored, error_code, released, cancelled, cancel_returned, extract_failed;
    int64_t requested, bad_pending, late_requests;
    int refused_schema, refused_task, failed_inside;
    char *message;
    Queued queue[MOST_TASKS];
    int64_t queued, taken;
    pthread_t worker;
    int working, leave, waited;
};

// The consumer whose request or cancel runs on this thread.
static _Thread_local Consumer *requesting, *cancelling;

static void lock(Consumer *c) { pthread_mutex_lock(&c->mutex); }
static void unlock(Consumer *c) { pthread_mutex_unlock(&c->mutex); }

// ---- Calls of the producer's methods ------------------------------------------------------------

static void call_request(Consumer *c, struct ArrowAsyncProducer *producer, int64_t n) {
    if (!producer) return;  // A violation already.
    lock(c);
    // During a cancel on another thread, the order of the two calls is unknown.
    if (c->cancel_returned) c->late_requests++;
    else if (n > 0) c->requested = n > INT64_MAX - c->requested ? INT64_MAX : c->requested + n;
    unlock(c);
    note(c->s, "request %" PRId64, n);
    Consumer *outer = requesting;
    requesting = c;
    producer->request(producer, n);
    requesting = outer;
}

static void call_cancel(Consumer *c, struct ArrowAsyncProducer *producer) {
    lock(c);
    c->cancelled = 1;
    unlock(c);
    note(c->s, "cancel");
    Consumer *outer = cancelling;
    cancelling = c;
    producer->cancel(producer);
    cancelling = outer;
    lock(c);
    c->cancel_returned = 1;
    unlock(c);
}

typedef struct { Consumer *c; int cancel; int64_t n; } Outside;

// On any thread, unless release has been seen; release waits at the gate.
static void call_outside(void *argument) {
    Outside *outside = argument;
    Consumer *c = outside->c;
    jitter(c->s);
    pthread_mutex_lock(&c->gate);
    lock(c);
    struct ArrowAsyncProducer *producer = c->released ? NULL : c->producer;
    unlock(c);
    if (producer && outside->cancel) call_cancel(c, producer);
    else if (producer) call_request(c, producer, outside->n);
    pthread_mutex_unlock(&c->gate);
}

void rec_request(Session *s, int64_t n) {
    Outside outside = {s->consumer, 0, n};
    elsewhere(call_outside, &outside);
}

void rec_cancel(Session *s) {
    Outside outside = {s->consumer, 1, 0};
    elsewhere(call_outside, &outside);
}

// `inside`: within on_next_task.
static void extract(Consumer *c, struct ArrowAsyncTask *task, int64_t number, int inside) {
    Session *s = c->s;
    int64_t null = option(s, "extract_null");
    jitter(s);
    if (null == -2 || null == number) {
        int code = task->extract_data(task, NULL);
        note(s, "extract %" PRId64 " into NULL: %d", number, code);
        lock(c);
        c->extract_failed |= code;
        c->failed_inside |= code && inside;
        unlock(c);
        return;
    }
    struct ArrowDeviceArray out;
    memset(&out, (int)option(s, "preset"), sizeof out);
    struct ArrowAsyncTask copy = *task;
    int code = task->extract_data(task, &out);
    note(s, "extract %" PRId64 ": %d", number, code);
    if (code) {
        if (!option(s, "foreign_codes"))
            CHECK(s, 61, code == EINVAL || code == ENOMEM || code == ENOSYS || code == EIO, "extract_data answers %d", code);
        if (mutant(s, "the output of a failure is used") && out.array.release) out.array.release(&out.array);
        lock(c);
        c->extract_failed = code;
        c->failed_inside |= inside;
        unlock(c);
        return;
    }
    CHECK(s, 97, out.array.release, "extract_data succeeds and writes a released array");
    if (out.array.release) {
        CHECK(s, 97, !all_bytes(&out.device_id, 0xAB, 8) && !all_bytes(&out.sync_event, 0xAB, sizeof(void *)) &&
              !all_bytes(out.reserved, 0xAB, sizeof out.reserved) && !all_bytes(&out.device_type, 0xAB, 4), "a field is not written");
        lock(c);
        accept_array(s, &out);
        unlock(c);
    }
    if (mutant(s, "a task is extracted twice")) copy.extract_data(&copy, NULL);
}

// ---- Callbacks that the producer calls ----------------------------------------------------------

// The consumer of a handler, after all checks that do not depend on the call's arguments. NULL:
// stop; the call is a violation that would deadlock.
static Consumer *enter(struct ArrowAsyncDeviceStreamHandler *self, const char *call, int next, int release) {
    Block *block = find(self, HANDLER);
    if (!block) {
        orphan(78, "%s of a handler that is none", call);
        return NULL;
    }
    Consumer *c = block->aux;
    Session *s = c->s;
    if (!block->live) {
        violation(s, 83, "%s after release", call);
        return NULL;
    }
    int error = !strcmp(call, "on_error");
    if (requesting == c) {
        violation(s, 86, "%s from within request", call);
        return NULL;
    }
    if (cancelling == c && !error) {
        violation(s, 89, "%s from within cancel", call);
        return NULL;
    }
    if (atomic_exchange(&c->inside, 1)) {
        violation(s, 85, "%s while another callback runs", call);
        return NULL;
    }
    CHECK(s, 74, self->private_data == c, "%s finds other private_data", call);
    lock(c);
    note(s, "%s", call);
    c->callbacks++;
    if (!release) {
        CHECK(s, 83, !c->errored, "%s after on_error", call);
        CHECK(s, 81, !c->refused_schema, "%s after on_schema was refused", call);
        CHECK(s, 82, !c->refused_task, "%s after on_next_task was refused", call);
        CHECK(s, 79, self->producer, "no producer at %s", call);
        if (!c->producer && self->producer) {
            c->producer = self->producer;
            CHECK(s, 79, self->producer->request && self->producer->cancel, "a callback of the producer is NULL");
            s->device_type = self->producer->device_type;
            if (self->producer->additional_metadata) {
                int64_t bytes = metadata_bytes(self->producer->additional_metadata);
                CHECK(s, 90, bytes > 0, "additional_metadata has another encoding");
                if (bytes > 0) c->metadata_sum = sum_bytes(self->producer->additional_metadata, (size_t)bytes);
            }
        } else if (self->producer) {
            CHECK(s, 79, c->producer == self->producer, "another producer at %s", call);
            if (c->metadata_sum) {
                int64_t bytes = metadata_bytes(self->producer->additional_metadata);
                CHECK(s, 90, bytes > 0 && c->metadata_sum == sum_bytes(self->producer->additional_metadata, (size_t)bytes),
                      "additional_metadata has changed");
            }
        }
        CHECK(s, 80, c->schemas || !next, "%s before on_schema", call);
    }
    CHECK(s, 95, !c->failed_inside || error || release, "%s after a failed extract_data", call);
    unlock(c);
    jitter(s);
    if (mutant(s, "callbacks at once")) sleep_us(10000);
    return c;
}

static int leave(Consumer *c, int code) {
    jitter(c->s);
    note(c->s, "answer %d", code);
    atomic_store(&c->inside, 0);
    return code;
}

// Requests and cancels of the settings for callback `k`.
static void act(Consumer *c, int64_t k) {
    Session *s = c->s;
    if (!c->producer || !c->producer->request) return;
    if (option(s, "bad_request_at") == k) {
        lock(c);
        c->bad_pending |= !c->cancelled;
        unlock(c);
        call_request(c, c->producer, option(s, "bad_request"));
    }
    if (option(s, "cancel_at") == k) {
        for (int64_t i = 0; i < option(s, "cancel_times"); i++) {
            if (option(s, "cancel_elsewhere")) rec_cancel(s);
            else call_cancel(c, c->producer);
        }
        if (option(s, "request_after_cancel")) call_request(c, c->producer, option(s, "request_after_cancel"));
    }
}

static int on_schema(struct ArrowAsyncDeviceStreamHandler *self, struct ArrowSchema *schema) {
    Consumer *c = enter(self, "on_schema", 0, 0);
    if (!c) return EINVAL;
    Session *s = c->s;
    lock(c);
    CHECK(s, 80, !c->schemas++, "on_schema comes twice");
    CHECK(s, 80, !c->tasks && !c->ended, "on_schema comes late");
    unlock(c);
    int64_t refused = option(s, "refuse_schema");
    if ((!refused || option(s, "refuse_moves")) && !mutant(s, "the schema is not moved")) {
        lock(c);
        accept_schema(s, schema);
        unlock(c);
    }
    if (!refused) {
        if (option(s, "request")) call_request(c, c->producer, option(s, "request"));
        act(c, 0);
    }
    c->refused_schema = refused != 0;
    return leave(c, (int)refused);
}

static void *work(void *argument) {
    Consumer *c = argument;
    Session *s = c->s;
    for (;;) {
        lock(c);
        int64_t at = c->taken, queued = c->queued, left = c->leave;
        if (at < queued) c->taken++;
        unlock(c);
        if (at < queued) {
            Outside more = {c, 0, option(s, "request_each")};
            // Y3: Arrow C++ requests more before it extracts, even after release.
            if (more.n && option(s, "style")) call_request(c, c->producer, more.n);
            else if (more.n) call_outside(&more);
            extract(c, &c->queue[at].task, c->queue[at].number, 0);
        } else if (left) {
            return NULL;
        } else {
            sleep_us(200);
        }
    }
}

static int on_next_task(struct ArrowAsyncDeviceStreamHandler *self, struct ArrowAsyncTask *task, const char *metadata) {
    Consumer *c = enter(self, "on_next_task", 1, 0);
    if (!c) return EINVAL;
    Session *s = c->s;
    if (metadata) CHECK(s, 90, metadata_bytes(metadata) >= 0, "the metadata of a task has another encoding");
    lock(c);
    CHECK(s, 84, !c->ended, "on_next_task after the end");
    int64_t number = c->tasks;
    if (task) {
        c->tasks++;
        if (c->tasks > c->requested)
            violation(s, c->cancelled && c->late_requests ? 88 : 84, "task %" PRId64 " of %" PRId64 " requested", c->tasks, c->requested);
        CHECK(s, 68, task->extract_data, "a task without extract_data");
    } else {
        c->ended = 1;
        note(s, "the end");
    }
    unlock(c);
    int64_t mode = option(s, "extract");
    if (!task) return leave(c, 0);
    int refuse = option(s, "refuse_task") == number;
    if (refuse) {
        if (option(s, "refuse_extracts")) extract(c, task, number, 1);
        c->refused_task = 1;
        return leave(c, (int)option(s, "refuse_code"));
    }
    if (mode == 0 && !mutant(s, "a task is kept for ever") && !mutant(s, "a task is used late")) {
        struct ArrowAsyncTask copy = *task;
        extract(c, number % 2 ? &copy : task, number, 1);
    } else {
        lock(c);
        if (c->queued == MOST_TASKS) abort();
        c->queue[c->queued] = (Queued){*task, number};
        if (mutant(s, "a task is used late")) c->queue[c->queued].task.private_data = task;
        c->queued++;
        unlock(c);
    }
    if (mode != 1 && option(s, "request_each") && !c->failed_inside) call_request(c, c->producer, option(s, "request_each"));
    act(c, number + 1);
    return leave(c, 0);
}

static void on_error(struct ArrowAsyncDeviceStreamHandler *self, int code, const char *message, const char *metadata) {
    Consumer *c = enter(self, "on_error", 0, 0);
    if (!c) return;
    Session *s = c->s;
    CHECK(s, 61, code > 0, "on_error with the code %d", code);
    if (metadata) CHECK(s, 90, metadata_bytes(metadata) >= 0, "the metadata of an error has another encoding");
    lock(c);
    note(s, "error %d: %.200s", code, message ? message : "(none)");
    CHECK(s, 83, !c->errored, "a second on_error");
    // A cancel is no error; other failures are still reported.
    if (c->cancelled && !c->extract_failed && !c->bad_pending)
        CHECK(s, 89, option(s, "expect_error"), "on_error %d after cancel", code);
    c->errored = 1;
    c->error_code = code;
    free(c->message);
    c->message = message ? strdup(message) : NULL;
    unlock(c);
    if (mutant(s, "a request from within on_error")) call_request(c, c->producer, 1);
    leave(c, 0);
}

static void release(struct ArrowAsyncDeviceStreamHandler *self) {
    Consumer *c = enter(self, "release", 0, 1);
    if (!c) return;
    Session *s = c->s;
    if (mutant(s, "a cancel from within release")) call_cancel(c, c->producer);
    // Waits for the consumer's requests and cancels on other threads.
    pthread_mutex_lock(&c->gate);
    lock(c);
    CHECK(s, 80, c->schemas || c->errored, "release without on_schema or on_error");
    CHECK(s, 84, c->ended || c->errored || c->cancelled || c->refused_schema || c->refused_task || !c->schemas,
          "release without the end of the data");
    // A cancel before the report suppresses the error.
    CHECK(s, 87, !c->bad_pending || c->errored || c->refused_task || c->cancelled, "request(%" PRId64 ") has gone unnoticed", option(s, "bad_request"));
    c->released = 1;
    unlock(c);
    pthread_mutex_unlock(&c->gate);
    leave(c, 0);
    // Y3: Arrow C++ does not flag its handler as released.
    if (!option(s, "style")) self->release = NULL;
    else self->release = release;
    struct ArrowAsyncDeviceStreamHandler tomb = *self;
    memset(self, 0xDD, sizeof *self);
    self->on_schema = on_schema, self->on_next_task = on_next_task, self->on_error = on_error, self->release = tomb.release;
    bury(self);
}

struct ArrowAsyncDeviceStreamHandler *rec_handler_new(Session *s) {
    Consumer *c = s->consumer = calloc(1, sizeof *c);
    c->s = s;
    pthread_mutex_init(&c->gate, NULL);
    pthread_mutex_init(&c->mutex, NULL);
    c->handler = take(s, HANDLER, sizeof *c->handler, 89, "a handler: no release", c);
    *c->handler = (struct ArrowAsyncDeviceStreamHandler){on_schema, on_next_task, on_error, release, NULL, c};
    if (mutant(s, "a callback is missing")) c->handler->on_error = NULL;
    c->working = option(s, "extract") == 1;
    if (c->working && pthread_create(&c->worker, NULL, work, c)) abort();
    return c->handler;
}

static void extract_rest(void *argument) {
    Consumer *c = argument;
    int64_t mode = option(c->s, "extract");
    if (mutant(c->s, "a task is kept for ever")) return;
    for (; c->taken < c->queued; c->taken++) {
        Queued *queued = &c->queue[mode == 3 ? c->queued - 1 - c->taken : c->taken];
        if (mutant(c->s, "a task is used late")) {
            struct ArrowAsyncTask *original = queued->task.private_data;
            original->extract_data(original, NULL);
            continue;
        }
        // R96: Arrow C++ and Go request more even now.
        if (option(c->s, "style") || mutant(c->s, "a request after release")) call_request(c, c->producer, 1);
        extract(c, &queued->task, queued->number, 0);
    }
}

int rec_handler_wait(Session *s, int timeout_ms) {
    Consumer *c = s->consumer;
    double start = now();
    int64_t released = 0;
    while (!released && now() - start < timeout_ms / 1e3) {
        sleep_us(200);
        lock(c);
        released = c->released;
        unlock(c);
    }
    if (c->working) {
        lock(c);
        c->leave = 1;
        unlock(c);
        pthread_join(c->worker, NULL);
        c->working = 0;
    }
    elsewhere(extract_rest, c);
    if (!c->waited) CHECK(s, 89, released, "release does not come");
    c->waited = 1;
    return released ? 0 : -1;
}

int64_t rec_async_error(Session *s, char *out, size_t bytes) {
    Consumer *c = s->consumer;
    if (!c || !c->errored || !c->message) return -1;
    size_t length = strlen(c->message);
    if (bytes) memcpy(out, c->message, length < bytes ? length : bytes);
    return (int64_t)length;
}

int64_t consumer_get(Session *s, const char *key) {
    Consumer *c = s->consumer;
    if (!c) return -1;
    lock(c);
    int64_t value = !strcmp(key, "schemas") ? c->schemas : !strcmp(key, "tasks") ? c->tasks : !strcmp(key, "ended") ? c->ended :
                    !strcmp(key, "errored") ? c->errored : !strcmp(key, "error_code") ? c->error_code :
                    !strcmp(key, "released") ? c->released : !strcmp(key, "callbacks") ? c->callbacks : -1;
    unlock(c);
    return value;
}

void consumer_settle(Session *s) {
    Consumer *c = s->consumer;
    if (!c) return;
    if (!c->waited) rec_handler_wait(s, (int)option(s, "release_ms"));
    free(c->message);
    c->message = NULL;
}
