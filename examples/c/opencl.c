// SPDX-License-Identifier: Apache-2.0
// A program's own OpenCL kernel between two queries: it reads the rows that the first one left on the device, and writes those
// that the second one reads. No row leaves the device in between.
//
//     cc opencl.c $(pkg-config --cflags --libs devicefusion) -ldl -o opencl
//
// OpenCL is opened at run time, so that neither its headers nor its library are needed to build this.
#include <devicefusion.h>
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

// Prints what went wrong, and gives up.
static void check(struct devicefusion_context *context, int code) {
    if (code == DEVICEFUSION_SUCCESS) return;
    char *error = devicefusion_context_get_error(context);
    fprintf(stderr, "%d: %s\n", code, error ? error : "no text");
    free(error);
    exit(code);
}

// What is needed of CL/cl.h; handles are pointers.
typedef void *handle;
enum { MEM_CONTEXT = 0x1106, CONTEXT_DEVICES = 0x1081, READ_WRITE = 1 };
static int32_t (*get_mem_object_info)(handle, uint32_t, size_t, void *, size_t *);
static int32_t (*get_context_info)(handle, uint32_t, size_t, void *, size_t *);
static handle (*create_command_queue)(handle, handle, uint64_t, int32_t *);
static handle (*create_buffer)(handle, uint64_t, size_t, void *, int32_t *);
static handle (*create_program)(handle, uint32_t, const char **, const size_t *, int32_t *);
static int32_t (*build_program)(handle, uint32_t, const handle *, const char *, handle, handle);
static handle (*create_kernel)(handle, const char *, int32_t *);
static int32_t (*set_kernel_arg)(handle, uint32_t, size_t, const void *);
static int32_t (*enqueue_kernel)(handle, handle, uint32_t, const size_t *, const size_t *, const size_t *, uint32_t,
                                 const handle *, handle *);
static int32_t (*flush)(handle);
static int32_t (*release_mem_object)(handle), (*release_event)(handle), (*release_kernel)(handle),
    (*release_program)(handle), (*release_queue)(handle);

static void *find(void *library, const char *name) {
    void *function = library ? dlsym(library, name) : NULL;
    if (function == NULL) {
        fprintf(stderr, "no %s: %s\n", name, dlerror());
        exit(1);
    }
    return function;
}

static void open_opencl(void) {
    void *library = dlopen("libOpenCL.so.1", RTLD_NOW);
#define FIND(function, name) *(void **)&function = find(library, name)
    FIND(get_mem_object_info, "clGetMemObjectInfo");
    FIND(get_context_info, "clGetContextInfo");
    FIND(create_command_queue, "clCreateCommandQueue");
    FIND(create_buffer, "clCreateBuffer");
    FIND(create_program, "clCreateProgramWithSource");
    FIND(build_program, "clBuildProgram");
    FIND(create_kernel, "clCreateKernel");
    FIND(set_kernel_arg, "clSetKernelArg");
    FIND(enqueue_kernel, "clEnqueueNDRangeKernel");
    FIND(flush, "clFlush");
    FIND(release_mem_object, "clReleaseMemObject");
    FIND(release_event, "clReleaseEvent");
    FIND(release_kernel, "clReleaseKernel");
    FIND(release_program, "clReleaseProgram");
    FIND(release_queue, "clReleaseCommandQueue");
#undef FIND
}

static void cl(int32_t code) {
    if (code == 0) return;
    fprintf(stderr, "OpenCL failed with %d\n", (int)code);
    exit(1);
}

static const char *text = "#pragma OPENCL EXTENSION cl_khr_fp64 : enable\n"
                          "kernel void tax(global const double *prices, ulong offset, global double *taxed) {\n"
                          "    taxed[get_global_id(0)] = prices[offset + get_global_id(0)] * 1.5;\n"
                          "}\n";

// The program's column, which a table of the library's will own: memory, and the event after which it holds its values.
struct column {
    handle memory, event;
    const void *buffers[2], *row_buffers[1];
    struct ArrowArray array, *children[1];
};

static void release_child(struct ArrowArray *array) { array->release = NULL; }
static void release_rows(struct ArrowArray *array) {
    struct column *column = array->private_data;
    release_mem_object(column->memory);
    release_event(column->event);
    free(column);
    array->release = NULL;
}

// Enqueues the kernel over a batch of one column of doubles, behind the work that writes it, and waits for nothing.
static struct ArrowDeviceArray taxed(const struct ArrowDeviceArray *batch) {
    const struct ArrowArray *prices = batch->array.children[0];
    handle memory = (handle)prices->buffers[1]; // A cl_mem; a slice begins at an offset in it.
    handle context, device;
    cl(get_mem_object_info(memory, MEM_CONTEXT, sizeof context, &context, NULL));
    cl(get_context_info(context, CONTEXT_DEVICES, sizeof device, &device, NULL));

    int32_t code;
    struct column *column = calloc(1, sizeof *column);
    column->memory = create_buffer(context, READ_WRITE, (size_t)prices->length * sizeof(double), NULL, &code);
    cl(code);
    handle program = create_program(context, 1, &text, NULL, &code);
    cl(code);
    cl(build_program(program, 1, &device, "", NULL, NULL));
    handle kernel = create_kernel(program, "tax", &code);
    cl(code);
    uint64_t offset = (uint64_t)(batch->array.offset + prices->offset);
    cl(set_kernel_arg(kernel, 0, sizeof memory, &memory));
    cl(set_kernel_arg(kernel, 1, sizeof offset, &offset));
    cl(set_kernel_arg(kernel, 2, sizeof column->memory, &column->memory));

    handle queue = create_command_queue(context, device, 0, &code);
    cl(code);
    const handle *ready = batch->sync_event; // NULL: there is nothing to wait for.
    size_t rows = (size_t)prices->length;
    cl(enqueue_kernel(queue, kernel, 1, NULL, &rows, NULL, ready ? 1 : 0, ready, &column->event));
    cl(flush(queue));
    cl(release_queue(queue));
    cl(release_kernel(kernel));
    cl(release_program(program));

    column->buffers[1] = column->memory;
    column->array = (struct ArrowArray){
        .length = prices->length, .n_buffers = 2, .buffers = column->buffers, .release = release_child};
    column->children[0] = &column->array;
    return (struct ArrowDeviceArray){
        .array = {.length = prices->length, .n_buffers = 1, .n_children = 1, .buffers = column->row_buffers,
                  .children = column->children, .release = release_rows, .private_data = column},
        .device_id = batch->device_id,
        .device_type = ARROW_DEVICE_OPENCL,
        .sync_event = &column->event};
}

int main(void) {
    struct devicefusion_context_config *config = devicefusion_context_config_new();
    check(NULL, devicefusion_context_config_set_device(config, "opencl"));
    check(NULL, devicefusion_context_config_set_strict(config, 1));
    struct devicefusion_context *context = devicefusion_context_new(config);
    char *problem = devicefusion_context_get_error(context);
    if (problem) {
        fprintf(stderr, "%s\n", problem);
        return 1;
    }
    open_opencl();
    check(context, devicefusion_execute(context,
                                        "CREATE TABLE device.prices AS SELECT CAST(value AS DOUBLE) AS price "
                                        "FROM generate_series(1, 1000)",
                                        NULL));

    // The first query leaves its rows on the device, in one batch.
    struct devicefusion_query *query;
    struct ArrowDeviceArrayStream stream;
    struct ArrowSchema columns;
    struct ArrowDeviceArray batch;
    check(context, devicefusion_query_new(context, "SELECT price FROM device.prices WHERE price > 500", &query));
    check(context, devicefusion_query_device_stream(query, &stream));
    if (stream.get_schema(&stream, &columns) != 0 || stream.get_next(&stream, &batch) != 0) {
        fprintf(stderr, "%s\n", stream.get_last_error(&stream));
        return 1;
    }

    // The kernel's column is a table of the second one. The batch is released once the kernel has read it: the table waits.
    struct ArrowDeviceArray mine = taxed(&batch);
    check(context, devicefusion_register_device_array(context, "taxed", &mine, &columns, DEVICEFUSION_TABLE_DEVICE));
    batch.array.release(&batch.array);
    stream.release(&stream);
    check(context, devicefusion_query_free(query));

    struct ArrowArrayStream result;
    struct ArrowArray row;
    check(context, devicefusion_query_new(context, "SELECT count(*), sum(price) FROM taxed", &query));
    check(context, devicefusion_query_stream(query, &result));
    if (result.get_next(&result, &row) != 0) {
        fprintf(stderr, "%s\n", result.get_last_error(&result));
        return 1;
    }
    const struct ArrowArray *count = row.children[0], *sum = row.children[1];
    printf("%d rows, %.1f\n", (int)((const int64_t *)count->buffers[1])[count->offset],
           ((const double *)sum->buffers[1])[sum->offset]);
    row.release(&row);
    result.release(&result);
    check(context, devicefusion_query_free(query));
    check(NULL, devicefusion_context_free(context));
    check(NULL, devicefusion_context_config_free(config));
    return 0;
}
