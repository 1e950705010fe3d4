// SPDX-License-Identifier: Apache-2.0
// Misuse of the library in C, call by call. Prints "ok", or the first mistake without an error.
#define _POSIX_C_SOURCE 200809L
#include <devicefusion.h>
#include <dirent.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define EXPECT(what)                                               \
    do {                                                           \
        if (!(what)) {                                             \
            printf("%s:%d: not so: %s\n", __FILE__, __LINE__, #what); \
            exit(1);                                               \
        }                                                          \
    } while (0)

// Whether the last failure's message contains `part`. Takes the message.
static int says(struct devicefusion_context *context, const char *part) {
    char *error = devicefusion_context_get_error(context);
    int found = error != NULL && strstr(error, part) != NULL;
    if (!found) printf("expected \"%s\", got \"%s\"\n", part, error ? error : "nothing");
    free(error);
    return found;
}

static int entries(const char *folder) {
    DIR *dir = opendir(folder);
    int count = 0;
    while (readdir(dir)) ++count;
    closedir(dir);
    return count;
}

static int is_loaded(const char *library) {
    FILE *maps = fopen("/proc/self/maps", "r");
    char line[4096];
    int found = 0;
    while (fgets(line, sizeof line, maps)) found |= strstr(line, library) != NULL;
    fclose(maps);
    return found;
}

static void *cancel(void *query) {
    struct timespec pause = {.tv_nsec = 200 * 1000 * 1000};
    nanosleep(&pause, NULL);
    EXPECT(devicefusion_query_cancel(query) == DEVICEFUSION_SUCCESS);
    return NULL;
}

// A `release` that counts its calls.
static void give_back(void *count) { ++*(int *)count; }

int main(int argc, char **argv) {
    EXPECT(argc == 2);
    int threads = entries("/proc/self/task"), files = entries("/proc/self/fd");

    // Without a context: no side effects, and errors belong to this thread.
    struct devicefusion_context_config *config = devicefusion_context_config_new();
    EXPECT(devicefusion_context_config_set_device(config, argv[1]) == DEVICEFUSION_SUCCESS);
    EXPECT(devicefusion_context_config_set_logging(config, 0) == DEVICEFUSION_SUCCESS);
    EXPECT(devicefusion_context_config_set_option(config, "no.such", "1") == DEVICEFUSION_PROGRAM_ERROR);
    EXPECT(says(NULL, "no"));
    EXPECT(devicefusion_context_get_error(NULL) == NULL);
    EXPECT(devicefusion_context_config_set_command_queue(config, NULL) == DEVICEFUSION_PROGRAM_ERROR);
    EXPECT(says(NULL, "the cl_command_queue is NULL"));
    EXPECT(devicefusion_context_config_set_unified_memory(config, 3) == DEVICEFUSION_PROGRAM_ERROR);
    EXPECT(says(NULL, "unified memory is 0, 1 or 2, not 3"));
    EXPECT(devicefusion_get_option_count() > 0 && devicefusion_get_option_name(-1) == NULL);
    EXPECT(devicefusion_adbc_init(1000000, NULL, NULL) == 2 && devicefusion_adbc_init(1001000, NULL, NULL) == 5);
    EXPECT(devicefusion_context_new(NULL) == NULL);
    EXPECT(says(NULL, "the configuration is NULL"));
    EXPECT(entries("/proc/self/task") == threads && entries("/proc/self/fd") == files);
    EXPECT(!is_loaded("libOpenCL") && !is_loaded("libcuda"));

    struct devicefusion_context *context = devicefusion_context_new(config);
    EXPECT(devicefusion_context_get_error(context) == NULL);
    EXPECT(devicefusion_context_config_set_profiling(config, 0) == DEVICEFUSION_PROGRAM_ERROR);
    EXPECT(says(NULL, "frozen"));

    // NULL for pointers that must not be NULL.
    struct devicefusion_query *query = NULL;
    EXPECT(devicefusion_execute(context, NULL, NULL) == DEVICEFUSION_PROGRAM_ERROR);
    EXPECT(says(context, "the SQL is NULL"));
    EXPECT(devicefusion_query_new(context, "SELECT 1", NULL) == DEVICEFUSION_PROGRAM_ERROR);
    EXPECT(devicefusion_register_stream(context, "t", NULL, DEVICEFUSION_TABLE_HOST) == DEVICEFUSION_PROGRAM_ERROR);
    EXPECT(says(context, "the stream is NULL"));
    EXPECT(devicefusion_query_run(query, NULL) == DEVICEFUSION_PROGRAM_ERROR);
    EXPECT(says(NULL, "the query is NULL"));

    EXPECT(devicefusion_restore(context, NULL, 1, NULL) == DEVICEFUSION_PROGRAM_ERROR);
    EXPECT(devicefusion_store(context, NULL, NULL, NULL) == DEVICEFUSION_PROGRAM_ERROR);
    EXPECT(devicefusion_array_values_raw(context, NULL, NULL, 0, NULL) == DEVICEFUSION_PROGRAM_ERROR);
    EXPECT(says(context, "the pointer for the raw values is NULL"));
    struct devicefusion_raw_values values;
    EXPECT(devicefusion_array_elements_raw(context, NULL, NULL, 0, &values) == DEVICEFUSION_PROGRAM_ERROR);
    EXPECT(says(context, "the array is NULL"));

    // `release` is called even on failure.
    int given_back = 0;
    struct devicefusion_raw_column column = {.name = "n", .format = "l", .memory = NULL};
    EXPECT(devicefusion_register_raw(context, "raw", &column, 1, 1, give_back, &given_back) == DEVICEFUSION_PROGRAM_ERROR);
    EXPECT(says(context, "the memory of column \"n\" is NULL") && given_back == 1);
    EXPECT(devicefusion_register_raw(NULL, "raw", &column, 1, 1, give_back, &given_back) == DEVICEFUSION_PROGRAM_ERROR);
    EXPECT(says(NULL, "the context is NULL") && given_back == 2);
    column.format = "+l";
    EXPECT(devicefusion_register_raw(context, "raw", &column, 1, 1, give_back, &given_back) == DEVICEFUSION_PROGRAM_ERROR);
    EXPECT(says(context, "its elements are NULL") && given_back == 3);

    // Bytes that are not an IPC stream, and released structs.
    struct ArrowDeviceArrayStream rows_on_device;
    EXPECT(devicefusion_restore(context, "nonsense", 8, &rows_on_device) == DEVICEFUSION_PROGRAM_ERROR);
    EXPECT(says(context, "the bytes are not an IPC stream"));
    struct ArrowArrayStream stream;
    memset(&stream, 0, sizeof stream);
    EXPECT(devicefusion_register_stream(context, "t", &stream, DEVICEFUSION_TABLE_HOST) == DEVICEFUSION_PROGRAM_ERROR);
    EXPECT(says(context, "the stream has been released"));
    EXPECT(devicefusion_execute(context, "CREATE TABLE t AS VALUES (1), (2)", NULL) == DEVICEFUSION_SUCCESS);
    EXPECT(devicefusion_query_new(context, "SELECT column1 + $1 AS n FROM t", &query) == DEVICEFUSION_SUCCESS);
    EXPECT(devicefusion_query_stream(query, &stream) == DEVICEFUSION_PROGRAM_ERROR);
    EXPECT(says(context, "the parameter $1 has no value"));
    EXPECT(devicefusion_query_bind_int64(query, 1, 1) == DEVICEFUSION_SUCCESS);
    EXPECT(devicefusion_query_stream(query, &stream) == DEVICEFUSION_SUCCESS);
    EXPECT(devicefusion_register_stream(context, "u", &stream, DEVICEFUSION_TABLE_HOST) == DEVICEFUSION_SUCCESS);
    EXPECT(stream.release == NULL);
    EXPECT(devicefusion_register_stream(context, "v", &stream, DEVICEFUSION_TABLE_HOST) == DEVICEFUSION_PROGRAM_ERROR);
    EXPECT(says(context, "the stream has been released"));

    // A stream that is released before its end, and bad SQL.
    int64_t rows = -1;
    EXPECT(devicefusion_query_stream(query, &stream) == DEVICEFUSION_SUCCESS);
    stream.release(&stream);
    EXPECT(devicefusion_execute(context, "SELECT n FROM u", &rows) == DEVICEFUSION_SUCCESS && rows == 2);
    EXPECT(devicefusion_execute(context, "SELECT m FROM u", &rows) == DEVICEFUSION_PROGRAM_ERROR && rows == 2);
    EXPECT(says(context, "No field named m"));

    // Cancelled by another thread.
    struct devicefusion_query *endless;
    pthread_t canceller;
    const char *sql = "SELECT count(*) FROM generate_series(1, 1000000000000) WHERE value % 7 = 3";
    EXPECT(devicefusion_query_new(context, sql, &endless) == DEVICEFUSION_SUCCESS);
    EXPECT(pthread_create(&canceller, NULL, cancel, endless) == 0);
    EXPECT(devicefusion_query_run(endless, NULL) == DEVICEFUSION_FAILURE);
    EXPECT(says(context, "the query was cancelled"));
    EXPECT(pthread_join(canceller, NULL) == 0);
    EXPECT(devicefusion_query_free(endless) == DEVICEFUSION_SUCCESS);

    // Freed objects, and objects of another kind.
    EXPECT(devicefusion_query_free((struct devicefusion_query *)context) == DEVICEFUSION_PROGRAM_ERROR);
    EXPECT(says(NULL, "is not a query"));
    EXPECT(devicefusion_query_free(query) == DEVICEFUSION_SUCCESS);
    EXPECT(devicefusion_query_free(query) == DEVICEFUSION_PROGRAM_ERROR);
    EXPECT(devicefusion_query_cancel(query) == DEVICEFUSION_PROGRAM_ERROR);
    EXPECT(says(NULL, "is not a query"));
    EXPECT(devicefusion_context_free(context) == DEVICEFUSION_SUCCESS);
    EXPECT(devicefusion_context_free(context) == DEVICEFUSION_PROGRAM_ERROR);
    EXPECT(devicefusion_execute(context, "SELECT 1", NULL) == DEVICEFUSION_PROGRAM_ERROR);
    EXPECT(devicefusion_context_report(context) == NULL && devicefusion_context_get_error(context) == NULL);
    EXPECT(says(NULL, "is not a context"));
    EXPECT(devicefusion_context_config_free(config) == DEVICEFUSION_SUCCESS);

    // All threads have ended. With a device, the driver keeps its own.
    if (strcmp(argv[1], "none") == 0) EXPECT(entries("/proc/self/task") == threads);
    puts("ok");
    return 0;
}
