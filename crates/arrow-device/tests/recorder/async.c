// SPDX-License-Identifier: Apache-2.0
// The producer of an async stream.
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "recorder.h"

typedef enum { BEFORE, RUNNING, FAILING, RELEASING, RELEASED } Phase;

struct Async {
    Session *s;
    struct ArrowAsyncDeviceStreamHandler *handler;
    struct ArrowAsyncProducer *producer;
    struct ArrowAsyncProducer given;  // The copy given to the consumer, for comparison.
    pthread_t driver;
    int joined, begun, done;
    // Guarded by `mutex`.
    pthread_mutex_t mutex;
    Phase phase;
    pthread_t caller;        // The thread of a running on_error or release.
    int64_t requested, bad, cancels, delivered, inside, unextracted;
    int cancelled, failed_extract, abandoned;
};

typedef struct {
    Async *async;
    int64_t batch;
} TaskState;

// ---- Methods that the consumer calls ------------------------------------------------------------

// Logs the call and its violations; returns whether to continue.
static int producer_enter(struct ArrowAsyncProducer *self, const char *call, Async **async) {
    Block *block = find(self, PRODUCER);
    if (!block) {
        orphan(74, "%s of a producer that is none", call);
        return 0;
    }
    Async *a = *async = block->aux;
    Session *s = a->s;
    pthread_mutex_lock(&a->mutex);
    Phase phase = a->phase;
    int own = (phase == FAILING || phase == RELEASING) && pthread_equal(a->caller, pthread_self());
    a->inside++;
    pthread_mutex_unlock(&a->mutex);
    if (phase == BEFORE) violation(s, 64, "%s before on_schema", call);
    if (own) violation(s, 71, "%s from within %s", call, phase == FAILING ? "on_error" : "release");
    if (phase == RELEASED) violation(s, 75, "%s after release", call);
    if (phase != RELEASED)
        CHECK(s, 74, !memcmp(self, &a->given, sizeof a->given), "%s of a producer that has been written to", call);
    jitter(s);
    pthread_mutex_lock(&a->mutex);
    return 1;
}

static void producer_leave(Async *a) {
    a->inside--;
    pthread_mutex_unlock(&a->mutex);
}

static void request(struct ArrowAsyncProducer *self, int64_t n) {
    Async *a;
    if (!producer_enter(self, "request", &a)) return;
    note(a->s, "request %" PRId64, n);
    if (a->cancelled) {
        // Ignored (R88), whatever n is.
    } else if (n <= 0) {
        // Y3: Arrow C++ reads a negative number as unlimited.
        if (n < 0 && option(a->s, "style")) a->requested = INT64_MAX;
        else a->bad = 1;
        violation(a->s, 66, "request of %" PRId64, n);
    } else {
        a->requested = n > INT64_MAX - a->requested ? INT64_MAX : a->requested + n;
    }
    int within = mutant(a->s, "a task from within request") && a->phase == RUNNING && !a->delivered;
    producer_leave(a);
    if (within) {
        a->delivered++;
        a->handler->on_next_task(a->handler, NULL, NULL);
    }
}

static void cancel(struct ArrowAsyncProducer *self) {
    Async *a;
    if (!producer_enter(self, "cancel", &a)) return;
    note(a->s, "cancel");
    a->cancels++;
    a->cancelled = 1;
    producer_leave(a);
    if (mutant(a->s, "the end from within cancel")) a->handler->on_next_task(a->handler, NULL, NULL);
}

static int extract_data(struct ArrowAsyncTask *self, struct ArrowDeviceArray *out) {
    Block *block = find(self->private_data, TASK);
    if (!block) {
        orphan(74, "extract_data of a task with foreign private_data");
        return EINVAL;
    }
    Session *s = block->s;
    if (!block->live) {
        violation(s, 68, "extract_data of a task that has been extracted, or was refused");
        return EINVAL;
    }
    TaskState *state = self->private_data;
    Async *a = state->async;
    int64_t batch = state->batch;
    jitter(s);
    if (out) CHECK(s, 44, is_zeroed(out), "the output of extract_data is not zeroed");
    note(s, "extract %" PRId64 "%s", batch, out ? "" : " into NULL");
    drop(state);
    int code = batch == option(s, "fail_extract") ? (int)option(s, "fail_code") : 0;
    if (code && out) leave_garbage(s, out, 73, "extract_data");
    if (!code && out) {
        struct ArrowDeviceArray made;
        array_make(s, batch, &made);
        if (mutant(s, "a field is left")) out->array = made.array, out->device_type = made.device_type;
        else *out = made;
    }
    pthread_mutex_lock(&a->mutex);
    a->unextracted--;
    if (code) a->failed_extract = code;
    pthread_mutex_unlock(&a->mutex);
    return code;
}

// Replaces extract_data once on_next_task has returned.
static int extract_late(struct ArrowAsyncTask *self, struct ArrowDeviceArray *out) {
    Block *block = find(self->private_data, TASK);
    if (block) violation(block->s, 67, "the task is used after on_next_task, not a copy of it");
    return extract_data(self, out);
}

// ---- Calls of the consumer's callbacks ----------------------------------------------------------

typedef struct {
    Async *a;
    enum { ON_SCHEMA, ON_NEXT_TASK, ON_ERROR, RELEASE } kind;
    int64_t batch;  // -1: the end marker.
    int error;
    int result;
} Call;

static void enter_phase(Async *a, Phase phase) {
    pthread_mutex_lock(&a->mutex);
    if (a->phase != RELEASED) a->phase = phase;
    a->caller = pthread_self();
    pthread_mutex_unlock(&a->mutex);
}

static void call_schema(Async *a, Call *call) {
    Session *s = a->s;
    struct ArrowSchema *schema = take(s, BYTES, sizeof *schema, 0, "the schema's struct", NULL);
    rec_make_schema(s, schema);
    enter_phase(a, RUNNING);
    note(s, "on_schema");
    struct ArrowAsyncProducer *producer = a->handler->producer;
    if (mutant(s, "no producer")) a->handler->producer = NULL;
    call->result = a->handler->on_schema(a->handler, schema);
    if (mutant(s, "no producer")) a->handler->producer = producer;
    note(s, "on_schema: %d", call->result);
    if (schema->release) {
        CHECK(s, 65, call->result, "on_schema has not moved the schema out");
        schema->release(schema);
    }
    drop(schema);
}

static void call_task(Async *a, Call *call) {
    Session *s = a->s;
    struct ArrowAsyncTask *task = NULL;
    TaskState *state = NULL;
    if (call->batch >= 0) {
        state = take(s, TASK, sizeof *state, 68, "a task that was never extracted", NULL);
        *state = (TaskState){a, call->batch};
        task = take(s, BYTES, sizeof *task, 0, "the task's struct", NULL);
        *task = (struct ArrowAsyncTask){extract_data, state};
        pthread_mutex_lock(&a->mutex);
        a->unextracted++;
        pthread_mutex_unlock(&a->mutex);
    }
    char *metadata = (char *)(uintptr_t)make_metadata(s);
    if (mutant(s, "metadata of no encoding")) metadata = take_copy(s, "\xff\xff\xff\xff", 4, "metadata");
    note(s, "on_next_task %" PRId64, call->batch);
    call->result = a->handler->on_next_task(a->handler, task, metadata);
    note(s, "on_next_task: %d", call->result);
    if (task) {
        task->extract_data = extract_late;
        bury(task);
        Block *block = find(state, TASK);
        // A refused task stays the producer's.
        if (call->result && block->live) {
            drop(state);
            pthread_mutex_lock(&a->mutex);
            a->unextracted--;
            pthread_mutex_unlock(&a->mutex);
        }
    }
    drop(metadata);
}

static void call_error(Async *a, Call *call) {
    Session *s = a->s;
    char *message = (char *)(uintptr_t)make_error_message(s), *metadata = (char *)(uintptr_t)make_metadata(s);
    enter_phase(a, FAILING);
    note(s, "on_error %d", call->error);
    a->handler->on_error(a->handler, call->error, message, metadata);
    enter_phase(a, RUNNING);
    note(s, "on_error returned");
    drop(message);
    drop(metadata);
}

// Ends the producer. Later calls still get an answer, and are violations.
static void end_producer(Async *a) {
    Session *s = a->s;
    pthread_mutex_lock(&a->mutex);
    int ended = a->phase == RELEASED;
    a->phase = RELEASED;
    int64_t inside = a->inside;
    pthread_mutex_unlock(&a->mutex);
    if (ended) return;
    CHECK(s, 75, !inside, "%" PRId64 " calls run on after the end", inside);
    drop((void *)(uintptr_t)a->given.additional_metadata);
    memset(&a->producer->device_type, 0xDD, sizeof a->producer->device_type);
    memset(&a->producer->additional_metadata, 0xDD, sizeof(void *));
    memset(&a->producer->private_data, 0xDD, sizeof(void *));
    bury(a->producer);
}

static void call_release(Async *a) {
    enter_phase(a, RELEASING);
    note(a->s, "release");
    // The handler is the consumer's memory, and may be freed by this call.
    a->handler->release(a->handler);
    note(a->s, "release returned");
    // The earliest time at which the producer may be freed.
    end_producer(a);
}

static void run_call(void *argument) {
    Call *call = argument;
    Async *a = call->a;
    jitter(a->s);
    switch (call->kind) {
    case ON_SCHEMA: call_schema(a, call); break;
    case ON_NEXT_TASK: call_task(a, call); break;
    case ON_ERROR: call_error(a, call); break;
    default: call_release(a);
    }
}

static int call(Async *a, int kind, int64_t batch, int error) {
    Call call = {a, kind, batch, error, 0};
    if (option(a->s, "threads") == 2) elsewhere(run_call, &call);
    else run_call(&call);
    return call.result;
}

static void fail(Async *a, int error) { call(a, ON_ERROR, 0, error); }

static int begin(Async *a) {
    Session *s = a->s;
    a->handler->producer = a->producer;
    if (mutant(s, "a task before the schema")) call(a, ON_NEXT_TASK, -1, 0);
    if (option(s, "fail_at") == 0) {
        fail(a, (int)option(s, "fail_code"));
        return 0;
    }
    int refused = call(a, ON_SCHEMA, 0, 0);
    if (mutant(s, "the schema twice")) call(a, ON_SCHEMA, 0, 0);
    if (!refused) return 1;
    // Y2: Arrow C++ reports an error after a refusal.
    if (option(s, "style")) {
        if (option(s, "batches")) fail(a, refused);
        else call(a, ON_NEXT_TASK, -1, 0);
    }
    if (mutant(s, "data in spite of a refused schema")) call(a, ON_NEXT_TASK, -1, 0);
    return 0;
}

static void *beside(void *argument) {
    run_call(argument);
    return NULL;
}

// Two concurrent callbacks, for the self-test.
static void call_twice(Async *a, int64_t batch) {
    Call one = {a, ON_NEXT_TASK, batch, 0, 0}, other = {a, ON_NEXT_TASK, batch + 1, 0, 0};
    pthread_t thread;
    if (pthread_create(&thread, NULL, beside, &one)) abort();
    run_call(&other);
    pthread_join(thread, NULL);
}

enum { WAIT, DELIVER, STOP };

// Decides about task `batch` after a wait of `waited` seconds; `a` is locked. The reason to stop is
// in `a`.
static int decide(Async *a, int64_t batch, double waited) {
    Session *s = a->s;
    int bad = a->bad && !mutant(s, "a bad request is ignored");
    int cancelled = a->cancelled && !mutant(s, "a cancel is ignored");
    if (bad || a->failed_extract || (cancelled && !option(s, "finish_after_cancel"))) return STOP;
    // The end needs no request, but a failed extraction should be reported before it.
    if (batch == option(s, "batches")) return option(s, "fail_extract") < 0 || !a->unextracted || waited > 2 ? STOP : WAIT;
    if (batch < a->requested || mutant(s, "more than was requested")) return DELIVER;
    if (cancelled) return mutant(s, "tasks for requests after a cancel") ? DELIVER : STOP;
    if (waited < (double)option(s, "patience_ms") / 1000) return WAIT;
    violation(s, 72, "the consumer neither requests nor cancels: %" PRId64 " of %" PRId64 " tasks delivered", a->delivered,
              a->requested);
    a->abandoned = 1;
    return STOP;
}

static int may_deliver(Async *a, int64_t batch) {
    double start = now();
    for (;;) {
        pthread_mutex_lock(&a->mutex);
        int decision = decide(a, batch, now() - start);
        pthread_mutex_unlock(&a->mutex);
        if (decision != WAIT) return decision == DELIVER;
        sleep_us(200);
    }
}

static void run_stream(Async *a) {
    Session *s = a->s;
    int64_t batches = option(s, "batches");
    for (int64_t batch = 0; batch <= batches; batch++) {
        if (batch + 1 == option(s, "fail_at") && !a->cancelled) {
            fail(a, (int)option(s, "fail_code"));
            if (mutant(s, "data after an error")) call(a, ON_NEXT_TASK, -1, 0);
            return;
        }
        if (!may_deliver(a, batch)) break;
        a->delivered++;
        if (mutant(s, "callbacks at once") && batch == 1) {
            call_twice(a, batch++);
            continue;
        }
        int refused = call(a, ON_NEXT_TASK, batch, 0);
        if (refused && mutant(s, "an error for a refused task")) fail(a, refused);
        if (refused) {
            if (option(s, "style")) fail(a, refused);
            return;
        }
        if (mutant(s, "a task after a failed extraction") && a->failed_extract) call(a, ON_NEXT_TASK, -1, 0);
    }
    pthread_mutex_lock(&a->mutex);
    int bad = a->bad, failed = a->failed_extract, cancelled = a->cancelled, abandoned = a->abandoned;
    pthread_mutex_unlock(&a->mutex);
    if (abandoned) return;
    if (bad && !mutant(s, "a bad request is ignored")) fail(a, EINVAL);
    else if (failed) fail(a, failed);
    else if (cancelled && (option(s, "style") || mutant(s, "an error for a cancel"))) fail(a, ECANCELED);
    else if ((!cancelled || option(s, "end_after_cancel")) && !mutant(s, "no end")) {
        call(a, ON_NEXT_TASK, -1, 0);
        if (option(s, "early_free")) end_producer(a);
    }
}

static void *drive(void *argument) {
    Async *a = argument;
    if (a->begun ? a->begun > 0 : begin(a)) run_stream(a);
    while (mutant(a->s, "no release") && !a->abandoned) sleep_us(1000);
    call(a, RELEASE, 0, 0);
    pthread_mutex_lock(&a->mutex);
    a->done = 1;
    pthread_mutex_unlock(&a->mutex);
    return NULL;
}

void rec_async_start(Session *s, struct ArrowAsyncDeviceStreamHandler *handler) {
    Async *a = s->async = calloc(1, sizeof *a);
    a->s = s;
    a->handler = handler;
    pthread_mutex_init(&a->mutex, NULL);
    CHECK(s, 63, handler->on_schema && handler->on_next_task && handler->on_error && handler->release, "a callback is NULL");
    a->producer = take(s, PRODUCER, sizeof *a->producer, 0, "a producer", a);
    // Cleared with memset, because later comparisons include padding.
    memset(a->producer, 0, sizeof *a->producer);
    a->producer->device_type = (int32_t)option(s, "device_type");
    a->producer->request = request;
    a->producer->cancel = cancel;
    a->producer->additional_metadata = make_metadata(s);
    a->producer->private_data = a;
    memcpy(&a->given, a->producer, sizeof a->given);
    if (option(s, "start_inline")) a->begun = begin(a) ? 1 : -1;
    if (pthread_create(&a->driver, NULL, drive, a)) abort();
}

int64_t async_get(Session *s, const char *key) {
    Async *a = s->async;
    if (!a) return -1;
    pthread_mutex_lock(&a->mutex);
    int64_t value = !strcmp(key, "delivered") ? a->delivered : !strcmp(key, "requested") ? a->requested :
                    !strcmp(key, "cancels") ? a->cancels : !strcmp(key, "phase") ? (int64_t)a->phase :
                    !strcmp(key, "unextracted") ? a->unextracted : !strcmp(key, "done") ? a->done : -1;
    pthread_mutex_unlock(&a->mutex);
    return value;
}

void async_settle(Session *s) {
    Async *a = s->async;
    if (!a || a->joined) return;
    if (mutant(s, "no release")) a->abandoned = 1;
    pthread_join(a->driver, NULL);
    a->joined = 1;
}
