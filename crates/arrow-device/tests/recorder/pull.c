// SPDX-License-Identifier: Apache-2.0
// Pull streams: a producer and a consumer.
#include <errno.h>
#include <inttypes.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "recorder.h"

// ---- Producer -----------------------------------------------------------------------------------

typedef struct {
    int64_t calls, batch;
    int failed;        // The errno of the last call.
    int failed_for_good, ended;
    const char *message;  // The message of the last failure, until the next call.
    atomic_int inside;
} PullState;

// The state behind the stream; NULL for a violation that prevents an answer.
static PullState *enter(struct ArrowDeviceArrayStream *self, const char *call, Session **s) {
    Block *block = find(self->private_data, STREAM);
    if (!block) {
        orphan(58, "%s of a stream with foreign private_data", call);
        return NULL;
    }
    *s = block->s;
    if (!block->live) {
        violation(*s, 54, "%s of a released stream", call);
        return NULL;
    }
    PullState *state = self->private_data;
    if (atomic_exchange(&state->inside, 1)) {
        violation(*s, 59, "%s while another call runs", call);
        return NULL;
    }
    jitter(*s);
    if (mutant(*s, "two calls at once")) sleep_us(10000);
    note(*s, "%s", call);
    return state;
}

// The message of the last failure ends with the next call.
static void forget_message(PullState *state) {
    drop((void *)(uintptr_t)state->message);
    state->message = NULL;
    state->failed = 0;
}

static int fails(Session *s, PullState *state, int for_good) {
    forget_message(state);
    // An ended stream stays ended (R60).
    if ((state->calls++ != option(s, "fail_at") || (state->ended && for_good)) && !state->failed_for_good) return 0;
    state->failed = (int)option(s, "fail_code");
    state->failed_for_good = for_good && option(s, "sticky");
    state->message = make_error_message(s);
    return state->failed;
}

static int get_schema(struct ArrowDeviceArrayStream *self, struct ArrowSchema *out) {
    Session *s;
    PullState *state = enter(self, "get_schema", &s);
    if (!state) return EINVAL;
    int code = state->failed_for_good ? (forget_message(state), 0) : fails(s, state, 0);
    if (!code) rec_make_schema(s, out);
    if (!code && mutant(s, "the schema changes") && state->batch) out->children[0]->flags = 0;
    atomic_store(&state->inside, 0);
    return code;
}

static int get_next(struct ArrowDeviceArrayStream *self, struct ArrowDeviceArray *out) {
    Session *s;
    PullState *state = enter(self, "get_next", &s);
    if (!state) return EINVAL;
    CHECK(s, 44, is_zeroed(out), "the output of get_next is not zeroed");
    int code = fails(s, state, 1);
    if (code) {
        leave_garbage(s, out, 53, "get_next");
    } else if (state->batch < option(s, "batches")) {
        array_make(s, state->batch++, out);
    } else {
        if (option(s, "garbage")) memset(out, 0xCD, sizeof *out);
        else if (!mutant(s, "fields are left at the end")) memset(out, 0, sizeof *out);
        out->array.release = NULL;
        state->ended = 1;
        if (mutant(s, "data after the end")) state->batch = 0;
    }
    if (mutant(s, "another error later") && code) code = state->calls % 2 ? EIO : EINVAL;
    atomic_store(&state->inside, 0);
    return code;
}

static void *spoil(void *message) {
    sleep_us(5000);
    *(char *)message = '?';
    return NULL;
}

static const char *get_last_error(struct ArrowDeviceArrayStream *self) {
    Session *s;
    PullState *state = enter(self, "get_last_error", &s);
    if (!state) return NULL;
    CHECK(s, 55, state->failed, "get_last_error, though the last call did not fail");
    const char *message = state->message;
    pthread_t thread;
    if (mutant(s, "the error message ends early") && message && !pthread_create(&thread, NULL, spoil, (void *)(uintptr_t)message))
        pthread_detach(thread);
    atomic_store(&state->inside, 0);
    return message;
}

static void release_stream(struct ArrowDeviceArrayStream *self) {
    Session *s;
    PullState *state = enter(self, "release stream", &s);
    if (!state) {
        self->release = NULL;
        return;
    }
    drop((void *)(uintptr_t)state->message);
    drop(state);
    // A moved struct is the consumer's memory.
    if (!mutant(s, "release is left set")) self->release = NULL;
}

void rec_pull_new(Session *s, struct ArrowDeviceArrayStream *out) {
    PullState *state = take(s, STREAM, sizeof *state, 57, "a stream", NULL);
    *out = (struct ArrowDeviceArrayStream){
        .device_type = (int32_t)option(s, "device_type"), .get_schema = get_schema, .get_next = get_next,
        .get_last_error = get_last_error, .release = release_stream, .private_data = state,
    };
}

// ---- Consumer -----------------------------------------------------------------------------------

struct Pull {
    struct ArrowDeviceArrayStream stream;
    int open;
    int ended, failed;      // The outcome of get_next: the end, an errno.
    int last;               // The result of the last call.
    const char *message;       // The message of the last failure, while it must be valid,
    uint64_t message_sum;      // and its checksum.
    struct { int call; int result; } next;  // The call on the other thread.
};

enum { GET_SCHEMA, GET_NEXT, GET_LAST_ERROR, RELEASE, GET_NEXT_TWICE };

void rec_pull_open(Session *s, struct ArrowDeviceArrayStream *stream) {
    Pull *pull = s->pull = calloc(1, sizeof *pull);
    CHECK(s, 57, stream->get_schema && stream->get_next && stream->get_last_error && stream->release, "a callback is NULL");
    pull->stream = *stream;
    pull->open = stream->release != NULL;
    s->device_type = stream->device_type;
    // Moved: the other side must find its state through private_data alone.
    memset(stream, 0xDD, sizeof *stream);
    stream->release = NULL;
}

static void end_text(Session *s) {
    Pull *pull = s->pull;
    if (pull->message)
        CHECK(s, 56, sum_bytes(pull->message, strlen(pull->message)) == pull->message_sum, "the error message changed before the next call");
    pull->message = NULL;
}

static void *next_beside(void *argument) {
    Session *s = argument;
    struct ArrowDeviceArray out;
    memset(&out, 0, sizeof out);
    if (!s->pull->stream.get_next(&s->pull->stream, &out) && out.array.release) out.array.release(&out.array);
    return NULL;
}

static void check_code(Session *s, const char *call, int code) {
    if (!code || option(s, "foreign_codes")) return;
    CHECK(s, 61, code == EINVAL || code == ENOMEM || code == ENOSYS || code == EIO, "%s answers %d", call, code);
}

static void call_here(void *argument) {
    Session *s = argument;
    Pull *pull = s->pull;
    struct ArrowDeviceArrayStream *stream = &pull->stream;
    jitter(s);
    switch (pull->next.call) {
    case GET_SCHEMA: {
        end_text(s);
        struct ArrowSchema schema;
        memset(&schema, 0xAB, sizeof schema);
        schema.release = NULL;
        int code = pull->last = stream->get_schema(stream, &schema);
        note(s, "get_schema: %d", code);
        check_code(s, "get_schema", code);
        if (!code) accept_schema(s, &schema);
        pull->next.result = -code;
        break;
    }
    case GET_NEXT: {
        end_text(s);
        struct ArrowDeviceArray out;
        int preset = (int)option(s, "preset");
        memset(&out, preset, sizeof out);
        int code = pull->last = stream->get_next(stream, &out);
        note(s, "get_next: %d%s", code, !code && !out.array.release ? ", the end" : "");
        check_code(s, "get_next", code);
        if (pull->ended) CHECK(s, 60, !code && !out.array.release, "get_next after the end: %d%s", code, code ? "" : " and data");
        if (pull->failed) CHECK(s, 60, code == pull->failed, "get_next after error %d: %d", pull->failed, code);
        pull->next.result = -code;
        if (code) {
            pull->failed = code;
            if (mutant(s, "the output of a failure is used") && out.array.release) out.array.release(&out.array);
        } else if (!out.array.release) {
            pull->ended = 1;
            pull->next.result = 1;
            // Preset zeros prove nothing.
            if (preset)
                CHECK(s, 36, !all_bytes(&out.device_id, 0xAB, 8) && !all_bytes(&out.device_type, 0xAB, 4) &&
                      !all_bytes(&out.sync_event, 0xAB, sizeof(void *)) && !all_bytes(out.reserved, 0xAB, sizeof out.reserved) &&
                      !all_bytes(&out.array.buffers, 0xAB, sizeof(void *)) && !all_bytes(&out.array.private_data, 0xAB, sizeof(void *)),
                      "a field is not written at the end of the stream");
            if (preset) CHECK(s, 19, all_bytes(out.reserved, 0, sizeof out.reserved), "reserved is not zero at the end");
        } else if (!pull->ended) {
            accept_array(s, &out);
        } else {
            out.array.release(&out.array);
        }
        break;
    }
    case GET_LAST_ERROR: {
        const char *message = stream->get_last_error(stream);
        if (message) {
            CHECK(s, 55, is_utf8(message), "the error message is not UTF-8");
            pull->message = message;
            pull->message_sum = sum_bytes(message, strlen(message));
        }
        break;
    }
    case GET_NEXT_TWICE: {
        pthread_t thread;
        if (pthread_create(&thread, NULL, next_beside, s)) abort();
        next_beside(s);
        pthread_join(thread, NULL);
        break;
    }
    default:
        end_text(s);
        if (mutant(s, "a stream is kept for ever")) break;
        struct ArrowDeviceArrayStream copy = *stream;
        stream->release(stream);
        note(s, "stream released");
        CHECK(s, 57, !stream->release, "the release of a stream is not set to NULL");
        if (mutant(s, "a released stream is used")) {
            struct ArrowSchema schema;
            copy.get_schema(&copy, &schema);
        }
    }
}

static int call_elsewhere(Session *s, int call) {
    s->pull->next.call = call;
    s->pull->next.result = 0;
    if (option(s, "threads") == 2) elsewhere(call_here, s);
    else call_here(s);
    return s->pull->next.result;
}

int rec_pull_schema(Session *s) { return call_elsewhere(s, GET_SCHEMA); }

int rec_pull_next(Session *s) {
    if (mutant(s, "two calls at once")) call_elsewhere(s, GET_NEXT_TWICE);
    int result = call_elsewhere(s, GET_NEXT);
    if (mutant(s, "an error is asked for after success") && result >= 0) call_elsewhere(s, GET_LAST_ERROR);
    if (mutant(s, "foreign private_data")) s->pull->stream.private_data = s;
    return result;
}

int64_t rec_pull_error(Session *s, char *out, size_t bytes) {
    // R55: a call without a failure would be a violation of the consumer.
    if (!s->pull->last) abort();
    call_elsewhere(s, GET_LAST_ERROR);
    if (!s->pull->message) return -1;
    size_t length = strlen(s->pull->message);
    if (bytes) memcpy(out, s->pull->message, length < bytes ? length : bytes);
    return (int64_t)length;
}

void rec_pull_release(Session *s) {
    if (!s->pull->open) return;
    s->pull->open = 0;
    call_elsewhere(s, RELEASE);
}

void pull_settle(Session *s) {
    if (s->pull) rec_pull_release(s);
}
