// SPDX-License-Identifier: Apache-2.0
// SQL over the program's Arrow table: rows in, a query with a parameter, rows out.
//
//     cc quickstart.c $(pkg-config --cflags --libs devicefusion) -o quickstart
//     ./quickstart          # a GPU if there is one, else an OpenCL CPU driver, else the host
//     ./quickstart none     # or another device: opencl, cuda, '#1', a part of its name
#include <devicefusion.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// Prints the error of a failed call and exits.
static void check(struct devicefusion_context *context, int code) {
    if (code == DEVICEFUSION_SUCCESS) return;
    char *error = devicefusion_context_get_error(context);
    fprintf(stderr, "%d: %s\n", code, error ? error : "no message");
    free(error);
    exit(code);
}

// The table: string column "city" and integer column "people", in static memory.
static const int32_t ends[] = {0, 4, 8, 12, 16};
static const char cities[] = "BernOsloRomeOslo";
static const int64_t people[] = {134000, 700000, 2750000, 9000};

static const void *city_buffers[] = {NULL, ends, cities}; // No validity bitmap: no NULL.
static const void *people_buffers[] = {NULL, people};
static const void *row_buffers[] = {NULL};

static void release_schema(struct ArrowSchema *schema) { schema->release = NULL; }
static void release_array(struct ArrowArray *array) { array->release = NULL; }

static struct ArrowSchema column_schemas[] = {
    {.format = "u", .name = "city", .release = release_schema},
    {.format = "l", .name = "people", .release = release_schema},
};
static struct ArrowSchema *schema_children[] = {&column_schemas[0], &column_schemas[1]};

static struct ArrowArray column_arrays[] = {
    {.length = 4, .n_buffers = 3, .buffers = city_buffers, .release = release_array},
    {.length = 4, .n_buffers = 2, .buffers = people_buffers, .release = release_array},
};
static struct ArrowArray *array_children[] = {&column_arrays[0], &column_arrays[1]};

// A stream of one batch.
static int get_schema(struct ArrowArrayStream *stream, struct ArrowSchema *out) {
    (void)stream;
    *out = (struct ArrowSchema){
        .format = "+s", .name = "", .n_children = 2, .children = schema_children, .release = release_schema};
    return 0;
}
static int get_next(struct ArrowArrayStream *stream, struct ArrowArray *out) {
    int *given = stream->private_data;
    memset(out, 0, sizeof *out); // A released array ends the stream.
    if ((*given)++ > 0) return 0;
    *out = (struct ArrowArray){.length = 4, .n_buffers = 1, .n_children = 2, .buffers = row_buffers,
                               .children = array_children, .release = release_array};
    return 0;
}
static const char *get_last_error(struct ArrowArrayStream *stream) {
    (void)stream;
    return NULL;
}
static void release_stream(struct ArrowArrayStream *stream) { stream->release = NULL; }

int main(int argc, char **argv) {
    // A configuration, and a context of it, which opens the device.
    struct devicefusion_context_config *config = devicefusion_context_config_new();
    if (argc > 1) check(NULL, devicefusion_context_config_set_device(config, argv[1]));

    struct devicefusion_context *context = devicefusion_context_new(config);
    char *problem = devicefusion_context_get_error(context);
    if (problem) {
        fprintf(stderr, "%s\n", problem);
        return 1;
    }

    // The program's rows become a table.
    int given = 0;
    struct ArrowArrayStream rows = {.get_schema = get_schema, .get_next = get_next, .get_last_error = get_last_error,
                                    .release = release_stream, .private_data = &given};
    check(context, devicefusion_register_stream(context, "cities", &rows, DEVICEFUSION_TABLE_HOST));

    // A query with a parameter. It can run again with another value.
    struct devicefusion_query *query;
    check(context, devicefusion_query_new(context,
                                          "SELECT city, sum(people) AS people FROM cities WHERE people < $1 "
                                          "GROUP BY city ORDER BY people",
                                          &query));
    check(context, devicefusion_query_bind_int64(query, 1, 1000000));

    // The result is a stream of batches.
    struct ArrowArrayStream result;
    check(context, devicefusion_query_stream(query, &result));
    for (;;) {
        struct ArrowArray batch;
        if (result.get_next(&result, &batch) != 0) {
            fprintf(stderr, "%s\n", result.get_last_error(&result));
            return 1;
        }
        if (batch.release == NULL) break;
        const struct ArrowArray *city = batch.children[0], *sum = batch.children[1];
        const int32_t *offsets = city->buffers[1];
        const char *bytes = city->buffers[2];
        const int64_t *sums = sum->buffers[1];
        for (int64_t row = 0; row < batch.length; ++row) {
            const int32_t *at = offsets + city->offset + row;
            printf("%.*s %" PRId64 "\n", (int)(at[1] - at[0]), bytes + at[0], sums[sum->offset + row]);
        }
        batch.release(&batch);
    }
    result.release(&result);

    check(context, devicefusion_query_free(query));
    check(NULL, devicefusion_context_free(context));
    check(NULL, devicefusion_context_config_free(config));
    return 0;
}
