// SPDX-License-Identifier: Apache-2.0
// The recorder against itself. Its producers and consumers keep every rule in every combination of
// settings, and each violation that they can play is recorded under its rule alone.
//
// A separate program, so that it runs under the sanitizers. It prints unexpected results, and fails
// if there are any. With the argument "kept" it violates no rule, because some violations are data
// races by nature.
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "recorder.h"

static int problems;

// "key=value key=value", for both sides; most keys concern one side only.
static void configure(Session *s, const char *settings) {
    char buffer[256];
    snprintf(buffer, sizeof buffer, "%s", settings);
    char *rest = buffer, *token;
    while ((token = strsep(&rest, " "))) {
        char *value = strchr(token, '=');
        if (!value) continue;
        *value++ = 0;
        if (rec_set(s, token, strtoll(value, NULL, 10))) {
            fprintf(stderr, "no setting %s\n", token);
            exit(1);
        }
    }
}

static void play_array(Session *p, Session *c) {
    struct ArrowSchema schema;
    struct ArrowDeviceArray array;
    memset(&array, 0, sizeof array);
    rec_make_schema(p, &schema);
    rec_make_array(p, 0, &array);
    rec_check_schema(c, &schema);
    if (array.sync_event && rec_get(p, "phase") == -1 && array.device_type != ARROW_DEVICE_CPU) rec_event_wait(array.sync_event);
    rec_check_array(c, &array);
}

static void play_pull(Session *p, Session *c) {
    struct ArrowDeviceArrayStream stream;
    char buffer[64];
    rec_pull_new(p, &stream);
    rec_pull_open(c, &stream);
    if (rec_pull_schema(c) < 0) rec_pull_error(c, buffer, sizeof buffer);
    for (int i = 0; i < 6; i++)
        if (rec_pull_next(c) < 0) {
            rec_pull_error(c, buffer, sizeof buffer);
            // Time for a dangling message to change.
            if (p->mutant) sleep_us(20000);
        }
    rec_pull_schema(c);
    rec_pull_release(c);
}

static void play_async(Session *p, Session *c) {
    rec_async_start(p, rec_handler_new(c));
    rec_handler_wait(c, (int)option(c, "release_ms"));
}

// The violated rules in order, each once: "39 41 ".
static void rules_of(Session *s, int seen[128]) {
    static char buffer[100000];
    size_t bytes = rec_violations(s, buffer, sizeof buffer - 1);
    buffer[bytes < sizeof buffer ? bytes : sizeof buffer - 1] = 0;
    for (char *line = strtok(buffer, "\n"); line; line = strtok(NULL, "\n")) seen[atoi(line + 1) % 128] = 1;
}

static void print(const char *side, Session *s) {
    static char buffer[200000];
    size_t bytes = rec_log(s, buffer, sizeof buffer);
    printf("  %s:\n%.*s", side, (int)(bytes < sizeof buffer ? bytes : sizeof buffer), buffer);
}

static void play(const char *kind, const char *settings, const char *breach, const char *expected) {
    Session *p = rec_new(), *c = rec_new();
    // Against another recorder both follow the recommendations too.
    rec_set(c, "preset", 0);
    // No release comes late here.
    rec_set(p, "settle_ms", 20);
    configure(p, settings);
    configure(c, settings);
    rec_mutate(p, breach);
    rec_mutate(c, breach);
    if (!strcmp(kind, "array")) play_array(p, c);
    else if (!strcmp(kind, "pull")) play_pull(p, c);
    else play_async(p, c);
    rec_settle(c);
    rec_settle(p);
    int seen[128] = {0};
    char found[256] = "";
    rules_of(p, seen);
    rules_of(c, seen);
    for (int i = 0; i < 128; i++)
        if (seen[i]) snprintf(found + strlen(found), sizeof found - strlen(found), "%s%d", *found ? " " : "", i);
    if (strcmp(found, expected)) {
        problems++;
        printf("%s, %s, %s: broke [%s], expected [%s]\n", kind, settings, breach ? breach : "no breach", found, expected);
        print("producer", p);
        print("consumer", c);
    }
    rec_destroy(c);
    rec_destroy(p);
}

// Each with the rules that it violates. Further rules follow from the first. Without a producer
// there is nothing to request from, and an overwritten private_data prevents the array's release.
static const struct { const char *kind, *settings, *breach, *expected; } BREACHES[] = {
    // A producer's.
    {"array", "garbage=0", "garbage in reserved", "19"},
    {"array", "garbage=0", "an id for the CPU", "14"},
    {"array", "garbage=0", "an event for the CPU", "22"},
    {"array", "garbage=0", "an unknown null_count", "34"},
    {"array", "garbage=0", "a wrong null_count", "34"},
    {"array", "garbage=0", "a negative length", "28"},
    {"array", "garbage=0", "a buffer too few", "28"},
    {"array", "garbage=0 top_offset=1", NULL, "33"},
    {"array", "garbage=0", "an array is left unreleased", "29"},
    {"pull", "garbage=0", "another device type", "49"},
    {"pull", "garbage=0", "the schema changes", "51"},
    {"pull", "garbage=0 preset=171", "fields are left at the end", "19 36 44"},
    {"pull", "garbage=0", "data after the end", "60"},
    {"pull", "garbage=0 fail_at=2", "another error later", "60"},
    {"pull", "garbage=0 fail_at=2 error_message=3", NULL, "55"},
    {"pull", "garbage=0 fail_at=2", "the error message ends early", "56"},
    {"pull", "garbage=0 fail_at=2 fail_code=-1", NULL, "61"},
    {"pull", "garbage=0", "release is left set", "57"},
    {"async", "garbage=0", "another device type", "91"},
    {"async", "garbage=0 patience_ms=100", "no producer", "72 79 84"},
    {"async", "garbage=0", "a task before the schema", "80 84"},
    {"async", "garbage=0", "the schema twice", "80"},
    {"async", "garbage=0 refuse_schema=22", "data in spite of a refused schema", "81"},
    {"async", "garbage=0 refuse_task=1", "an error for a refused task", "82"},
    {"async", "garbage=0 fail_at=2 expect_error=1", "data after an error", "83"},
    {"async", "garbage=0 request_each=0", "more than was requested", "84"},
    {"async", "garbage=0", "no end", "84"},
    {"async", "garbage=0 batches=5 request=9", "callbacks at once", "85"},
    {"async", "garbage=0", "a task from within request", "86"},
    {"async", "garbage=0 bad_request_at=1", "a bad request is ignored", "66 87"},
    {"async", "garbage=0 request_each=0 cancel_at=1 request_after_cancel=5", "tasks for requests after a cancel", "88"},
    {"async", "garbage=0 cancel_at=1", "an error for a cancel", "89"},
    {"async", "garbage=0 cancel_at=1", "the end from within cancel", "89"},
    {"async", "garbage=0 release_ms=300", "no release", "89"},
    {"async", "garbage=0", "metadata of no encoding", "90"},
    {"async", "garbage=0 fail_extract=1", "a task after a failed extraction", "95"},
    {"async", "garbage=0 preset=171", "a field is left", "14 19 22 36 44 97"},
    // A consumer's.
    {"array", "garbage=0", "a buffer is written", "26"},
    {"array", "garbage=0", "an array is released twice", "39"},
    {"array", "garbage=0", "a child is released", "39"},
    {"array", "garbage=0", "an array is kept for ever", "39"},
    {"array", "garbage=0", "private_data is written", "39 41"},
    {"array", "garbage=0 device_type=12 event=1 rows=3", "an event outlives its array", "42"},
    {"pull", "garbage=0 preset=1", NULL, "44"},
    {"pull", "garbage=1 fail_at=1", "the output of a failure is used", "53"},
    {"pull", "garbage=0", "a released stream is used", "54"},
    {"pull", "garbage=0", "an error is asked for after success", "55"},
    {"pull", "garbage=0", "a stream is kept for ever", "57"},
    {"pull", "garbage=0", "foreign private_data", "57 58"},
    {"pull", "garbage=0", "two calls at once", "59"},
    {"async", "garbage=0 preset=1", NULL, "44"},
    {"async", "garbage=0", "a callback is missing", "63"},
    {"async", "garbage=0", "the schema is not moved", "65"},
    {"async", "garbage=0 bad_request_at=1", NULL, "66"},
    {"async", "garbage=0", "a task is used late", "67"},
    {"async", "garbage=0", "a task is extracted twice", "68"},
    {"async", "garbage=0 request=3", "a task is kept for ever", "68"},
    {"async", "garbage=0 fail_at=2", "a request from within on_error", "71"},
    {"async", "garbage=0", "a cancel from within release", "71"},
    {"async", "garbage=0 request_each=0 patience_ms=100", NULL, "72 84"},
    {"async", "garbage=1 fail_extract=0", "the output of a failure is used", "73"},
    {"async", "garbage=0 extract=2 request=3", "a request after release", "75"},
    // Arrow C++'s deviations.
    {"async", "garbage=0 style=1 refuse_schema=22", NULL, "81"},
    {"async", "garbage=0 style=1 refuse_schema=22 batches=0", NULL, "81"},
    {"async", "garbage=0 style=1 refuse_task=1", NULL, "82"},
    {"async", "garbage=0 style=1 cancel_at=1", NULL, "89"},
    {"async", "garbage=0 style=1 extract=2 request=3", NULL, "75"},
};

int main(int argc, char **argv) {
    char settings[256];
    int kept = argc > 1 && !strcmp(argv[1], "kept");
    for (size_t i = 0; !kept && i < sizeof BREACHES / sizeof *BREACHES; i++)
        play(BREACHES[i].kind, BREACHES[i].settings, BREACHES[i].breach, BREACHES[i].expected);
    printf("%zu breaches\n", kept ? (size_t)0 : sizeof BREACHES / sizeof *BREACHES);

    // No violation in any combination.
    for (int shape = 0; shape < 4; shape++)
        for (int offset = 0; offset < 3; offset++)
            for (int rows = 0; rows < 18; rows = rows * 4 + 1) {
                snprintf(settings, sizeof settings, "garbage=0 shape=%d offset=%d rows=%d metadata=%d", shape, offset, rows, rows % 4);
                play("array", settings, NULL, "");
            }
    for (int batches = 0; batches < 3; batches++)
        for (int fail = -1; fail < 6; fail++)
            for (int message = 0; message < 5; message += 1 + (message == 2)) {
                snprintf(settings, sizeof settings, "garbage=0 batches=%d fail_at=%d error_message=%d metadata=1 jitter=50", batches, fail, message);
                play("pull", settings, NULL, "");
            }
    static const char *const ASYNC[] = {
        "", "start_inline=1", "threads=0", "request=9", "request=9223372036854775807 request_each=9223372036854775807",
        "extract=1", "extract=1 request=9", "extract=2 request=9", "extract=3 request=9", "extract_null=1", "extract_null=-2",
        "extract_null=-2 extract=2 request=9", "refuse_schema=22", "refuse_schema=5 refuse_moves=0", "refuse_task=0", "refuse_task=2",
        "refuse_task=1 refuse_extracts=1", "cancel_at=0", "cancel_at=1", "cancel_at=3", "cancel_at=1 cancel_times=2",
        "cancel_at=1 cancel_elsewhere=1", "cancel_at=2 finish_after_cancel=0 request=9", "cancel_at=2 end_after_cancel=1",
        "cancel_at=0 request_after_cancel=5", "fail_at=0", "fail_at=1", "fail_at=3", "fail_at=4", "fail_at=2 error_message=0",
        "fail_at=2 error_message=3", "fail_at=2 error_message=4 metadata=1", "fail_extract=0", "fail_extract=2", "fail_extract=1 extract=1",
        "fail_extract=1 extract_null=1", "fail_extract=0 extract=1 request=9", "metadata=2", "metadata=3",
    };
    for (size_t i = 0; i < sizeof ASYNC / sizeof *ASYNC; i++)
        for (int batches = 0; batches < 4; batches += 3)
            for (int jitter = 0; jitter < 200; jitter += 100) {
                snprintf(settings, sizeof settings, "garbage=0 batches=%d jitter=%d %s", batches, jitter, ASYNC[i]);
                play("async", settings, NULL, "");
            }
    printf("%d problems\n", problems);
    return problems != 0;
}
