// SPDX-License-Identifier: Apache-2.0
// A program that shares its OpenCL queue with the library. Its kernel runs between two queries: it
// reads the first query's rows on the device, and writes the table of the second query. No row
// leaves the device, and the queue orders all work.
//
//     cc opencl.c $(pkg-config --cflags --libs devicefusion) -ldl -o opencl
//
// OpenCL is opened at run time, so the build needs neither its headers nor its library.
#include <devicefusion.h>
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

// Prints the error of a failed call and exits.
static void check(struct devicefusion_context *context, int code) {
    if (code == DEVICEFUSION_SUCCESS) return;
    char *error = devicefusion_context_get_error(context);
    fprintf(stderr, "%d: %s\n", code, error ? error : "no message");
    free(error);
    exit(code);
}

// The declarations that this example needs of CL/cl.h. Handles are pointers.
typedef void *handle;
enum { READ_WRITE = 1 };
static const uint64_t ALL_DEVICES = 0xFFFFFFFF;
static int32_t (*get_platforms)(uint32_t, handle *, uint32_t *);
static int32_t (*get_devices)(handle, uint64_t, uint32_t, handle *, uint32_t *);
static handle (*create_context)(const void *, uint32_t, const handle *, void *, void *, int32_t *);
static handle (*create_command_queue)(handle, handle, uint64_t, int32_t *);
static handle (*create_buffer)(handle, uint64_t, size_t, void *, int32_t *);
static handle (*create_program)(handle, uint32_t, const char **, const size_t *, int32_t *);
static int32_t (*build_program)(handle, uint32_t, const handle *, const char *, handle, handle);
static handle (*create_kernel)(handle, const char *, int32_t *);
static int32_t (*set_kernel_arg)(handle, uint32_t, size_t, const void *);
static int32_t (*enqueue_kernel)(handle, handle, uint32_t, const size_t *, const size_t *, const size_t *, uint32_t,
                                 const handle *, handle *);
static int32_t (*finish)(handle), (*release_mem_object)(handle), (*release_kernel)(handle), (*release_program)(handle),
    (*release_queue)(handle), (*release_context)(handle);

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
    FIND(get_platforms, "clGetPlatformIDs");
    FIND(get_devices, "clGetDeviceIDs");
    FIND(create_context, "clCreateContext");
    FIND(create_command_queue, "clCreateCommandQueue");
    FIND(create_buffer, "clCreateBuffer");
    FIND(create_program, "clCreateProgramWithSource");
    FIND(build_program, "clBuildProgram");
    FIND(create_kernel, "clCreateKernel");
    FIND(set_kernel_arg, "clSetKernelArg");
    FIND(enqueue_kernel, "clEnqueueNDRangeKernel");
    FIND(finish, "clFinish");
    FIND(release_mem_object, "clReleaseMemObject");
    FIND(release_kernel, "clReleaseKernel");
    FIND(release_program, "clReleaseProgram");
    FIND(release_queue, "clReleaseCommandQueue");
    FIND(release_context, "clReleaseContext");
#undef FIND
}

static void cl(int32_t code) {
    if (code == 0) return;
    fprintf(stderr, "OpenCL failed with %d\n", (int)code);
    exit(1);
}

static const char *source = "#pragma OPENCL EXTENSION cl_khr_fp64 : enable\n"
                            "kernel void tax(global const double *prices, ulong offset, global double *taxed) {\n"
                            "    taxed[get_global_id(0)] = prices[offset + get_global_id(0)] * 1.5;\n"
                            "}\n";

// The program's device, context and queue.
static handle device, opencl, queue;

static void open_device(void) {
    handle platform;
    int32_t code;
    cl(get_platforms(1, &platform, NULL));
    cl(get_devices(platform, ALL_DEVICES, 1, &device, NULL));
    opencl = create_context(NULL, 1, &device, NULL, NULL, &code);
    cl(code);
    queue = create_command_queue(opencl, device, 0, &code);
    cl(code);
}

// Enqueues the kernel over prices on the device, without waiting. Returns the memory of its output.
static handle taxed(const struct devicefusion_raw_values *prices) {
    int32_t code;
    handle memory = create_buffer(opencl, READ_WRITE, prices->bytes, NULL, &code);
    cl(code);
    handle program = create_program(opencl, 1, &source, NULL, &code);
    cl(code);
    cl(build_program(program, 1, &device, "", NULL, NULL));
    handle kernel = create_kernel(program, "tax", &code);
    cl(code);
    handle from = prices->memory;
    uint64_t offset = prices->offset / sizeof(double);
    cl(set_kernel_arg(kernel, 0, sizeof from, &from));
    cl(set_kernel_arg(kernel, 1, sizeof offset, &offset));
    cl(set_kernel_arg(kernel, 2, sizeof memory, &memory));
    size_t rows = (size_t)prices->length;
    cl(enqueue_kernel(queue, kernel, 1, NULL, &rows, NULL, 0, NULL, NULL));
    cl(release_kernel(kernel));
    cl(release_program(program));
    return memory;
}

// Called when the library no longer uses the memory.
static void release(void *memory) { release_mem_object(memory); }

int main(void) {
    open_opencl();
    open_device();
    struct devicefusion_context_config *config = devicefusion_context_config_new();
    check(NULL, devicefusion_context_config_set_command_queue(config, queue));
    check(NULL, devicefusion_context_config_set_strict(config, 1));
    struct devicefusion_context *context = devicefusion_context_new(config);
    char *problem = devicefusion_context_get_error(context);
    if (problem) {
        fprintf(stderr, "%s\n", problem);
        return 1;
    }
    check(context, devicefusion_execute(context,
                                        "CREATE TABLE device.prices AS SELECT CAST(value AS DOUBLE) AS price "
                                        "FROM generate_series(1, 1000)",
                                        NULL));

    // The first query's rows stay on the device, in one batch.
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

    // Later work in the queue waits for the prices. Later work of the library waits for the queue.
    struct devicefusion_raw_values prices;
    check(context, devicefusion_array_values_raw(context, &batch, &columns, 0, &prices));
    handle memory = taxed(&prices);
    struct devicefusion_raw_column mine = {.name = "price", .format = "g", .memory = memory};
    check(context, devicefusion_register_raw(context, "taxed", &mine, 1, prices.length, release, memory));

    // The batch can be released once the kernel has read it.
    cl(finish(queue));
    batch.array.release(&batch.array);
    columns.release(&columns);
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
    cl(release_queue(queue));
    cl(release_context(opencl));
    return 0;
}
