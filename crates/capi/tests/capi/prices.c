// SPDX-License-Identifier: Apache-2.0
// The device streams of examples/c/prices.c through the library: one goes in, one comes out.
#include <devicefusion.h>
#include <stdio.h>
#include <stdlib.h>

void open_prices(struct ArrowDeviceArrayStream *out);
int64_t count_rows(struct ArrowDeviceArrayStream *stream);

static void check(struct devicefusion_context *context, int code) {
    if (code == DEVICEFUSION_SUCCESS) return;
    char *error = devicefusion_context_get_error(context);
    fprintf(stderr, "%d: %s\n", code, error ? error : "no message");
    free(error);
    exit(code);
}

int main(int argc, char **argv) {
    struct devicefusion_context_config *config = devicefusion_context_config_new();
    if (argc > 1) check(NULL, devicefusion_context_config_set_device(config, argv[1]));
    struct devicefusion_context *context = devicefusion_context_new(config);
    struct ArrowDeviceArrayStream stream;
    open_prices(&stream);
    check(context, devicefusion_register_device_stream(context, "prices", &stream, DEVICEFUSION_TABLE_DEVICE));
    struct devicefusion_query *query;
    check(context, devicefusion_query_new(context, "SELECT price * 2 AS twice FROM prices WHERE price >= 500", &query));
    check(context, devicefusion_query_device_stream(query, &stream));
    int64_t rows = count_rows(&stream);
    check(context, devicefusion_query_free(query));
    check(NULL, devicefusion_context_free(context));
    check(NULL, devicefusion_context_config_free(config));
    printf("%lld rows\n", (long long)rows);
    return 0;
}
