// SPDX-License-Identifier: Apache-2.0
// Two functions of a C program: one produces a device stream, the other consumes one.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "arrow_device.h"

enum { BATCHES = 3, ROWS = 1000 };

// Schema of a struct "+s" with a column "price" of 64-bit integers "l", without NULLs.
static void release_schema(struct ArrowSchema *schema) {
    for (int64_t i = 0; i < schema->n_children; ++i) {
        if (schema->children[i]->release) schema->children[i]->release(schema->children[i]);
        free(schema->children[i]);
    }
    free(schema->children);
    schema->release = NULL;
}
static int get_schema(struct ArrowDeviceArrayStream *stream, struct ArrowSchema *out) {
    (void)stream;
    struct ArrowSchema *price = malloc(sizeof *price);
    struct ArrowSchema **children = malloc(sizeof *children);
    *price = (struct ArrowSchema){.format = "l", .name = "price", .release = release_schema};
    *children = price;
    *out = (struct ArrowSchema){.format = "+s", .name = "", .n_children = 1, .children = children, .release = release_schema};
    return 0;
}

// A column owns its values; a batch owns its columns.
static void release_array(struct ArrowArray *array) {
    for (int64_t i = 0; i < array->n_children; ++i) {
        if (array->children[i]->release) array->children[i]->release(array->children[i]);
        free(array->children[i]);
    }
    free(array->private_data);
    free(array->children);
    free(array->buffers);
    array->release = NULL;
}
static int get_next(struct ArrowDeviceArrayStream *stream, struct ArrowDeviceArray *out) {
    int *batch = stream->private_data;
    memset(out, 0, sizeof *out);
    if (*batch == BATCHES) return 0; // a released array ends the stream
    int64_t *values = malloc(ROWS * sizeof *values);
    for (int i = 0; i < ROWS; ++i) values[i] = *batch * ROWS + i;
    ++*batch;

    struct ArrowArray *price = malloc(sizeof *price);
    *price = (struct ArrowArray){.length = ROWS, .n_buffers = 2, .release = release_array, .private_data = values};
    price->buffers = calloc(2, sizeof *price->buffers);
    price->buffers[1] = values;

    struct ArrowArray *rows = &out->array;
    *rows = (struct ArrowArray){.length = ROWS, .n_buffers = 1, .n_children = 1, .release = release_array};
    rows->buffers = calloc(1, sizeof *rows->buffers);
    rows->children = malloc(sizeof *rows->children);
    *rows->children = price;
    out->device_type = ARROW_DEVICE_CPU;
    out->device_id = -1;
    return 0;
}
static const char *get_last_error(struct ArrowDeviceArrayStream *stream) {
    (void)stream;
    return NULL;
}
static void release_stream(struct ArrowDeviceArrayStream *stream) {
    free(stream->private_data);
    stream->release = NULL;
}

// A stream of prices from 0, in host memory.
void open_prices(struct ArrowDeviceArrayStream *out) {
    *out = (struct ArrowDeviceArrayStream){
        .device_type = ARROW_DEVICE_CPU,
        .get_schema = get_schema,
        .get_next = get_next,
        .get_last_error = get_last_error,
        .release = release_stream,
        .private_data = calloc(1, sizeof(int)),
    };
}

// Reads a stream to its end and prints its batches. Returns the number of rows, or -1.
int64_t count_rows(struct ArrowDeviceArrayStream *stream) {
    int64_t rows = 0;
    for (;;) {
        struct ArrowDeviceArray array;
        memset(&array, 0, sizeof array);
        if (stream->get_next(stream, &array)) {
            const char *error = stream->get_last_error(stream);
            fprintf(stderr, "C: %s\n", error ? error : "unknown error");
            rows = -1;
            break;
        }
        if (!array.array.release) break;
        printf("C: %lld rows on device type %d, id %lld, %s\n", (long long)array.array.length, array.device_type,
               (long long)array.device_id, array.sync_event ? "pending" : "complete");
        rows += array.array.length;
        array.array.release(&array.array);
    }
    stream->release(stream);
    return rows;
}
