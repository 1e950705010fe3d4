// SPDX-License-Identifier: Apache-2.0
// DeviceFusion for C and C++: SQL over Arrow data and files, on GPUs and CPUs.
//
// A configuration is made and changed, a context is made of it; tables are registered in the context, and queries run there.
// docs/c-api.md has a walk through it. This file is generated from the library's sources: change those.
//
// These rules hold for every function:
//
// - What returns `int` returns DEVICEFUSION_SUCCESS, or a code that tells the kind of failure. What returns a pointer returns
//   NULL on failure. Either way devicefusion_context_get_error has the text.
// - Any function may be called on any thread, by several at once. The exception are callbacks of the program that the
//   library calls on its own threads, those of a handler and every `release`: functions that run a query fail there.
// - A pointer to an object that is NULL, has been freed, or never came from here is an error, which is noticed. One that is
//   freed while another thread uses it stays good for that call.
// - `const char *` is a text in UTF-8 that ends with NUL, and is copied. `char *` is a text for the caller, who calls free().
// - An Arrow struct that goes in is moved: the function marks it as released, also where it fails. One that comes out is
//   written on success only, over whatever was there; its consumer calls `release`. A pointer to a place for a result must
//   not be NULL, except where that is said to be allowed.
// - Nothing happens before a context is made: no thread starts, no file is read or written, and no driver is opened, but by
//   devicefusion_list_devices, and by the functions that put a queue of the program's into a configuration.

#ifndef DEVICEFUSION_H
#define DEVICEFUSION_H

#include <stdint.h>
#include <stddef.h>
#include <stdio.h>
#include "arrow_device.h"

// ADBC's own header has it.
struct AdbcError;

// Returned by a function that did what it says.
#define DEVICEFUSION_SUCCESS 0

// Returned where something outside of the program failed (a device, a driver, a file), or a query was cancelled.
#define DEVICEFUSION_FAILURE 1

// Returned where the program is at fault: bad SQL, a value that the query cannot compute with, a pointer that is NULL or
// has been freed, a call out of order.
#define DEVICEFUSION_PROGRAM_ERROR 2

// Returned where memory ran out, that of the device or the host's limit. Smaller pieces or a higher limit may help.
#define DEVICEFUSION_OUT_OF_MEMORY 3

// The rows stay where they are, and are read by the one query that scans the table; a second scan is an error. Needs a device.
#define DEVICEFUSION_TABLE_STREAM 0

// All rows are read at once and stay where they are, in host memory, which each query uploads as it needs.
#define DEVICEFUSION_TABLE_HOST 1

// All rows are read at once and stay on the device: host rows are copied there, in the narrowest form that holds them, device
// rows stay in place. Needs a device.
#define DEVICEFUSION_TABLE_DEVICE 2

// The plan alone.
#define DEVICEFUSION_EXPLAIN_PLAN 0

// The plan at every step of planning, and the text of the kernels.
#define DEVICEFUSION_EXPLAIN_VERBOSE 1

// Runs the query, and adds what each operator of its plan has cost.
#define DEVICEFUSION_EXPLAIN_ANALYZE 2

// Tables, queries and the device that runs them. Contexts know nothing of each other. All functions may be called from
// several threads at once.
struct devicefusion_context;

// The settings of a context that is to be made. Cheap to make and to free; making one opens no driver and starts no thread.
// Of a setting that is set several times, by whatever function, the last value counts.
struct devicefusion_context_config;

// A statement of SQL that has been planned, with values for its parameters. It belongs to its context, and can be run any
// number of times.
struct devicefusion_query;

// Where the values of a column lie, for devicefusion_array_values_raw.
struct devicefusion_raw_values {
  // The memory of the values, one behind the other: a cl_mem, a CUdeviceptr, or an address of the host, as the array's
  // `device_type` says. Of booleans, bits; of a dictionary, codes; of lists and of texts, offsets, one more than there are
  // values; of texts of the type view, views of 16 bytes.
  void *memory;
  // Bytes of that memory before the first value; of booleans, before the byte that has its bit.
  size_t offset;
  // Bytes of all values.
  size_t bytes;
  // How many values there are.
  int64_t length;
  // Memory of the same kind with a bit for each value, the least significant first: 0 for NULL. NULL where no value is.
  void *validity;
  // Bits of that memory before the first value's.
  size_t validity_offset;
  // Of booleans, which bit of the first byte is the first value, the least significant being 0.
  size_t bit;
  // Memory of the same kind with the bytes that offsets or views of texts point into, from its begin on. NULL for other types,
  // and where no text needs any.
  void *data;
  // Bytes of that memory; 0 where the last offset tells.
  size_t data_bytes;
};

// A column in memory of the program's own, for devicefusion_register_raw.
struct devicefusion_raw_column {
  // Its name.
  const char *name;
  // Its type as a format string of Arrow's C data interface: "l" for 64-bit integers, "b" for booleans, "u" for texts with
  // offsets of 32 bits, and so on; of a dictionary, the type of its codes.
  const char *format;
  // The memory of the values, from its begin on: a cl_mem or a CUdeviceptr of the context's device, or an address of the
  // host where the context has no device. What lies there is as in devicefusion_raw_values.
  void *memory;
  // Memory of the same kind with a bit for each value, the least significant first: 0 for NULL. NULL where no value is.
  void *validity;
  // Memory of the same kind with the bytes that offsets or views of texts point into. NULL for other types.
  void *data;
  // How many bytes that are; of texts with offsets it may be 0, for the last offset tells.
  size_t data_bytes;
  // Of a dictionary its values, of lists their elements, whose name does not matter. NULL for other types.
  const struct devicefusion_raw_column *elements;
  // How many elements there are.
  int64_t element_count;
};

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

// Makes a configuration in which every setting has its default. Free it with devicefusion_context_config_free.
struct devicefusion_context_config *devicefusion_context_config_new(void);

// Frees a configuration. Contexts that were made of it are not touched.
int devicefusion_context_config_free(struct devicefusion_context_config *config);

// Chooses the device: "auto" (a GPU if there is one, else an OpenCL CPU device; the default), "none" (queries run on the
// host), "opencl", "cuda", "#k" for the k-th device, or a part of its name. That there is no such device is found out by
// devicefusion_context_new.
int devicefusion_context_config_set_device(struct devicefusion_context_config *config,
                                           const char *device);

// Shares a queue of the program's, a cl_command_queue of any kind: the context uses its device, which the configuration may
// also name, and its cl_context, so that each cl_mem and cl_event of the one is good in the other. The queue is retained as
// long as configuration and context need it. See devicefusion_context_get_command_queue for what the two promise each other. The
// queue must be live: that is not checked.
int devicefusion_context_config_set_command_queue(struct devicefusion_context_config *config,
                                                  void *queue);

// As devicefusion_context_config_set_command_queue, for a CUstream or cudaStream_t of a device's primary context, which is the one
// that CUDA's run-time library uses. The stream must live until the context has been freed with all that came from it. CUDA's
// default stream is CU_STREAM_LEGACY here, not NULL.
int devicefusion_context_config_set_cuda_stream(struct devicefusion_context_config *config,
                                                void *stream);

// Takes only devices of OpenCL platforms with this part in their name; "" takes any, which is the default.
int devicefusion_context_config_set_platform(struct devicefusion_context_config *config, const char *platform);

// With a nonzero flag, which is the default, each kernel is timed, for devicefusion_context_report and EXPLAIN ANALYZE: a few
// microseconds each.
int devicefusion_context_config_set_profiling(struct devicefusion_context_config *config,
                                              int flag);

// With a nonzero flag the context logs what it does (the device, each program that is compiled, each query), to standard
// error or to devicefusion_context_set_logging_file. Off by default.
int devicefusion_context_config_set_logging(struct devicefusion_context_config *config,
                                            int flag);

// With a nonzero flag the log has the plan of each query as well, with the reason of whatever runs on the host; this turns
// the log on. Off by default.
int devicefusion_context_config_set_debugging(struct devicefusion_context_config *config,
                                              int flag);

// With a nonzero flag a query fails rather than compute anything on the host, and a context without a device cannot be
// made. Off by default: operators that the device does not support run on the host, and devicefusion_query_explain says why.
int devicefusion_context_config_set_strict(struct devicefusion_context_config *config, int flag);

// Limits the device memory of the context, in bytes. 0, the default, takes 90 % of a GPU's memory or half of the host's.
int devicefusion_context_config_set_memory_limit(struct devicefusion_context_config *config,
                                                 size_t bytes);

// Limits the memory, in bytes, that operators on the host may claim for what they gather, as SQL's
// SET datafusion.runtime.memory_limit does; beyond it they spill to temporary files where they can, and fail where not. 0, the
// default, is no limit.
int devicefusion_context_config_set_host_memory_limit(struct devicefusion_context_config *config,
                                                      size_t bytes);

// Says whether kernels work in memory of the host in place: 0 for never, 1 for always, in which case a context on a device that
// cannot is refused, 2, the default, where the device is the host's processor. Results are the same.
int devicefusion_context_config_set_unified_memory(struct devicefusion_context_config *config,
                                                   int flag);

// Sets how many items a group has in kernels of the profile "gpu": a power of two from 32 to 512, or 0, the default, for the
// profile's own choice. devicefusion_context_new refuses a size that the device cannot take, and any where its kernels
// have the profile "cpu", which has no groups of items.
int devicefusion_context_config_set_default_group_size(struct devicefusion_context_config *config,
                                                       int items);

// Sets how many groups a grid has at most where its items share a batch's rows among themselves: up to 65536, or 0, the default,
// for a few for each unit of the device.
int devicefusion_context_config_set_default_grid_size(struct devicefusion_context_config *config,
                                                      int groups);

// Sets of how many rows a group brings those together that pass a filter: a multiple of 32 up to 1048576, or 0, the default, for
// the profile's own choice. In the profile "gpu" it is a multiple of the group's size, and at most 32 times as many: else
// devicefusion_context_new refuses it.
int devicefusion_context_config_set_default_tile_size(struct devicefusion_context_config *config,
                                                      int rows);

// Leaves each program that the context compiles or loads in this folder: its text as HASH.cl, and its image as HASH.program.
// NULL or "", the default, leaves none.
int devicefusion_context_config_dump_programs_to(struct devicefusion_context_config *config,
                                                 const char *folder);

// Takes programs from a folder that devicefusion_context_config_dump_programs_to has filled, in which nothing is written: a HASH.cl
// whose text was changed is compiled in place of the one that it is named for, an image is loaded where device, driver,
// compiler, options and text are the same. Whatever is not there is compiled as ever. NULL or "", the default, takes none.
int devicefusion_context_config_load_programs_from(struct devicefusion_context_config *config,
                                                   const char *folder);

// Keeps compiled programs in this folder, for the next process. NULL or "", the default, keeps none. What does not fit the
// device, its driver or this library is compiled anew; hits are counted in devicefusion_context_report.
int devicefusion_context_config_set_cache_dir(struct devicefusion_context_config *config,
                                              const char *folder);

// Hands one more option to the device's compiler, behind those that were added before: clBuildProgram's or NVRTC's.
int devicefusion_context_config_add_build_option(struct devicefusion_context_config *config, const char *option);

// Names the library of CUDA's run-time compiler, libnvrtc.so.*, or its folder; "", the default, searches the usual places.
int devicefusion_context_config_set_nvrtc_path(struct devicefusion_context_config *config,
                                               const char *path);

// Sets how many threads the context has for planning, decoding and what runs on the host; less than 1, the default, is one
// for each processor.
int devicefusion_context_config_set_num_threads(struct devicefusion_context_config *config,
                                                int threads);

// Sets any setting, by the name and with the value that SQL's SET takes: those that devicefusion_get_option_name lists, and
// DataFusion's own, as in "datafusion.execution.batch_size".
int devicefusion_context_config_set_option(struct devicefusion_context_config *config,
                                           const char *name,
                                           const char *value);

// Sets a tuning parameter, one of those that devicefusion_get_tuning_param_name lists. Those of the class "threshold" can
// change later, by SQL's SET; the others cannot.
int devicefusion_context_config_set_tuning_param(struct devicefusion_context_config *config,
                                                 const char *name,
                                                 size_t value);

// The version of this library, as in "0.1.0".
const char *devicefusion_version(void);

// How many settings there are.
int devicefusion_get_option_count(void);

// The name of setting `index`, counted from zero, as in "device.memory_bytes". NULL where there is none.
const char *devicefusion_get_option_name(int index);

// The default of setting `index`. NULL where there is none.
const char *devicefusion_get_option_default(int index);

// What setting `index` does, its unit and special values. NULL where there is none.
const char *devicefusion_get_option_description(int index);

// How many tuning parameters there are: settings whose values are numbers.
int devicefusion_get_tuning_param_count(void);

// The name of tuning parameter `index`, counted from zero. NULL where there is none.
const char *devicefusion_get_tuning_param_name(int index);

// The class of tuning parameter `index`: "threshold" for one that can change while a context lives, by SQL's SET; "size" for
// one that is fixed when the context is made. NULL where there is none.
const char *devicefusion_get_tuning_param_class(int index);

// The devices of all drivers as JSON, an array with an object for each: "selector" (what
// devicefusion_context_config_set_device takes), "name", "driver", "platform", "kind", "memory_bytes" and "problem", the reason why it
// cannot be used, or null. A driver that is absent has only "driver" and "problem". Opens the drivers. The caller frees the
// text; NULL without memory.
char *devicefusion_list_devices(void);

// Makes a context: opens the device and starts threads. The configuration is frozen until the context is freed; for several
// contexts make several of them.
//
// Call devicefusion_context_get_error next: a text tells why the context could not be made. Such a context can only be freed,
// which it must be. Without a device the context runs everything on the host, unless the configuration asked for a device
// or for strictness. NULL only if `config` is none, or is in use; devicefusion_context_get_error(NULL) has the reason.
struct devicefusion_context *devicefusion_context_new(struct devicefusion_context_config *config);

// Frees a context with its tables, and waits until its threads have ended. Queries and streams that are still there keep what
// they need until they are freed and released themselves.
int devicefusion_context_free(struct devicefusion_context *context);

// Waits until the device has done everything that this context gave it, and tells what of that failed.
int devicefusion_context_sync(struct devicefusion_context *context);

// The cl_command_queue that this context shares with the program: the one of the configuration, else a queue in the context's
// own cl_context, made by the first call. The queue stays the library's; it is good until the context has been freed.
//
// What the program has enqueued there when it calls a function of this library comes before the work of that call, on the
// device: kernels may write what a query reads, and nobody waits. The library's own work runs in queues of its own. What the
// program enqueues behind a query waits for its rows by their `sync_event`, or after devicefusion_array_values_raw.
void *devicefusion_context_get_command_queue(struct devicefusion_context *context);

// As devicefusion_context_get_command_queue, the CUstream of a context on a device of CUDA's.
void *devicefusion_context_get_cuda_stream(struct devicefusion_context *context);

// The text of the last failure in this context, on whatever thread, or NULL if there was none since this was last called. The
// caller frees it. With NULL as context: of the last failure on this thread that no context could keep, such as a setting
// that was refused.
char *devicefusion_context_get_error(struct devicefusion_context *context);

// What the context has done, as JSON: "version", "device", "kernels" (name, launches, nanoseconds), "copies", "programs" and
// "memory". Without a device only "version", "device", which is null, and "problem". The caller frees the text. NULL on
// failure.
char *devicefusion_context_report(struct devicefusion_context *context);

// Gives up what is only kept for later: free device memory, compiled programs that no query holds, idle queues. Tables stay.
int devicefusion_context_clear_caches(struct devicefusion_context *context);

// Leaves the kernels that come untimed. They are still counted.
int devicefusion_context_pause_profiling(struct devicefusion_context *context);

// Times kernels again, if the configuration asked for it.
int devicefusion_context_unpause_profiling(struct devicefusion_context *context);

// Sends the log to `file`, or to standard error with NULL. The file must stay open until another one is named or the context
// has been freed with all that came from it.
int devicefusion_context_set_logging_file(struct devicefusion_context *context,
                                          FILE *file);

// Makes a table of a stream of host arrays, record batches. `kind` says where its rows will be, as one of
// DEVICEFUSION_TABLE_STREAM, DEVICEFUSION_TABLE_HOST and DEVICEFUSION_TABLE_DEVICE. The stream is moved away in any case; its
// callbacks are called by a thread of the library.
int devicefusion_register_stream(struct devicefusion_context *context,
                                 const char *name,
                                 struct ArrowArrayStream *stream,
                                 int kind);

// As devicefusion_register_stream, of a stream of device arrays. Memory of the context's device is read in place.
int devicefusion_register_device_stream(struct devicefusion_context *context,
                                        const char *name,
                                        struct ArrowDeviceArrayStream *stream,
                                        int kind);

// As devicefusion_register_stream, of one device array, a record batch of `schema`. Both are moved away in any case.
int devicefusion_register_device_array(struct devicefusion_context *context,
                                       const char *name,
                                       struct ArrowDeviceArray *array,
                                       struct ArrowSchema *schema,
                                       int kind);

// As devicefusion_register_stream, of device arrays that a producer pushes. `produce` is called once, on this thread and with
// `data`: it makes the producer push to `handler`, now or on threads of its own. Then this function waits for the schema. A
// producer that is asked for no more, since a query has ended early, is cancelled. `produce` is not called where the
// function fails before that.
int devicefusion_register_async_stream(struct devicefusion_context *context,
                                       const char *name,
                                       void (*produce)(void *data, struct ArrowAsyncDeviceStreamHandler *handler),
                                       void *data,
                                       int kind);

// Makes a table of a file, or of all files of a folder that have the format's extension, by path or file:// URL: other URLs, such
// as http:// or s3://, are refused. `format` is "PARQUET", "CSV", "JSON", "ARROW" or "AVRO"; the first line of a CSV file has the
// names of its columns. For anything else there is SQL's CREATE EXTERNAL TABLE, which this is short for.
int devicefusion_register_file(struct devicefusion_context *context,
                               const char *name,
                               const char *url,
                               const char *format);

// Takes a table out of the context. Queries that read it go on.
int devicefusion_drop_table(struct devicefusion_context *context, const char *name);

// Plans a statement of SQL. Its parameters are $1, $2 and so on, or $names. Nothing runs yet, but the statement is checked: its
// tables and columns must exist.
int devicefusion_query_new(struct devicefusion_context *context,
                           const char *sql,
                           struct devicefusion_query **out);

// Frees a query. Its streams go on.
int devicefusion_query_free(struct devicefusion_query *query);

// The columns that the query gives. Types that hang on those of parameters are those of the values that are bound.
int devicefusion_query_schema(struct devicefusion_query *query, struct ArrowSchema *out);

// Binds NULL to the parameter $`index`, counted from 1 as in SQL.
int devicefusion_query_bind_null(struct devicefusion_query *query, int index);

// Binds a truth value, true if nonzero, to the parameter $`index`.
int devicefusion_query_bind_bool(struct devicefusion_query *query, int index, int value);

// Binds an integer to the parameter $`index`.
int devicefusion_query_bind_int64(struct devicefusion_query *query, int index, int64_t value);

// Binds a floating-point number to the parameter $`index`.
int devicefusion_query_bind_double(struct devicefusion_query *query, int index, double value);

// Binds a text to the parameter $`index`.
int devicefusion_query_bind_string(struct devicefusion_query *query, int index, const char *value);

// Binds values of any type: the columns of `row`, a host array of structs with one element, to the parameters $1, $2 and so
// on in their order, or by name to $names. Array and schema are moved away in any case.
int devicefusion_query_bind_row(struct devicefusion_query *query,
                                struct ArrowArray *row,
                                struct ArrowSchema *schema);

// Runs the query; its rows come as a stream of host arrays, record batches, while it runs. `get_next` waits for them, and can
// fail with what the query fails with. Releasing the stream stops the query. The stream outlives query and context.
int devicefusion_query_stream(struct devicefusion_query *query,
                              struct ArrowArrayStream *out);

// As devicefusion_query_stream, with the rows left on the device.
int devicefusion_query_device_stream(struct devicefusion_query *query, struct ArrowDeviceArrayStream *out);

// Runs the query, and pushes its rows to a handler as it asks for them, left on the device. Returns when the query has been
// planned; the handler's callbacks are called by the context's threads, also after query and context have been freed, until
// its `release`. The handler stays where it is until then. It is released without another word where this fails.
int devicefusion_query_push(struct devicefusion_query *query,
                            struct ArrowAsyncDeviceStreamHandler *handler);

// Runs the query to its end and drops its rows. `rows`, unless NULL, gets how many there were; for INSERT and COPY, how many
// were written.
int devicefusion_query_run(struct devicefusion_query *query,
                           int64_t *rows);

// Tells how the query runs: what on the device, what on the host, and why that. `how` is one of DEVICEFUSION_EXPLAIN_PLAN,
// DEVICEFUSION_EXPLAIN_VERBOSE and DEVICEFUSION_EXPLAIN_ANALYZE. `out` gets a text, which the caller frees.
int devicefusion_query_explain(struct devicefusion_query *query,
                               int how,
                               char **out);

// Tells how far the run is that was begun last: its plan, with the rows that each operator has given so far; what an operator
// has cost the device is there once it has ended, as in EXPLAIN ANALYZE. To be called from another thread, or between two
// batches of a stream; an error where no run is under way. `out` gets a text, which the caller frees.
int devicefusion_query_progress(struct devicefusion_query *query,
                                char **out);

// Stops all runs of the query that are under way, from any thread: they fail, their streams too. Later runs are not touched.
int devicefusion_query_cancel(struct devicefusion_query *query);

// Runs a statement of SQL to its end: devicefusion_query_new, devicefusion_query_run and devicefusion_query_free in one.
// `rows` may be NULL.
int devicefusion_execute(struct devicefusion_context *context,
                         const char *sql,
                         int64_t *rows);

// Tells where the values of a column lie: column `column`, counted from zero, of a record batch such as
// devicefusion_query_device_stream gives, with its schema. Of structs and unions there are the fields' arrays alone.
//
// Array and schema stay as they are: the memory is that of the array, good until the array is released and not to be written.
// The values are there once the array's `sync_event` has completed; what the program enqueues from now on in the queue that it
// shares with the context (see devicefusion_context_get_command_queue) waits for that by itself. Release the array once work that
// reads it has completed.
int devicefusion_array_values_raw(struct devicefusion_context *context,
                                  const struct ArrowDeviceArray *array,
                                  const struct ArrowSchema *schema,
                                  int64_t column,
                                  struct devicefusion_raw_values *out);

// As devicefusion_array_values_raw, of what the column's codes or offsets point to: all values of a dictionary, or all elements of
// lists, which may themselves be of any type but lists and dictionaries. Lists of a fixed size have no offsets: their elements
// lie one behind the other.
int devicefusion_array_elements_raw(struct devicefusion_context *context,
                                    const struct ArrowDeviceArray *array,
                                    const struct ArrowSchema *schema,
                                    int64_t column,
                                    struct devicefusion_raw_values *out);

// Makes a table of `length` rows that lies in memory of the program's own: `count` columns, which are used in place, but for
// dictionaries, of which each row gets its value. Lists are taken where the context has no device.
//
// The values must be there already, or be written by what the program has enqueued before in the queue that it shares with the
// context: see devicefusion_context_get_command_queue. From now on nobody may write them. The structs and texts are read by this
// call alone. Offsets, views and codes are not checked on a device: each must point into what it points into. `release`, unless
// NULL, is called with `data` once the memory is no longer used: after the table was dropped and the queries that read it have
// ended, or where this function fails; on any thread, once.
int devicefusion_register_raw(struct devicefusion_context *context,
                              const char *name,
                              const struct devicefusion_raw_column *columns,
                              size_t count,
                              int64_t length,
                              void (*release)(void *data),
                              void *data);

// Reads a stream of device arrays, record batches, to its end, and writes its rows as bytes: an IPC stream of Arrow's, which
// every library of Arrow reads too. `bytes` gets memory that the caller frees by free(), and `size` how many bytes it has. The
// stream is moved away in any case.
int devicefusion_store(struct devicefusion_context *context,
                       struct ArrowDeviceArrayStream *stream,
                       void **bytes,
                       size_t *size);

// Gives the rows that devicefusion_store has written, or any other IPC stream of Arrow's, as a stream of device arrays: on the
// context's device, or of the host where it has none. The bytes are read before the function returns.
int devicefusion_restore(struct devicefusion_context *context,
                         const void *bytes,
                         size_t size,
                         struct ArrowDeviceArrayStream *out);

// The ADBC driver: fills in the struct AdbcDriver at `driver`, of version 1.1.0, which is 1001000. A driver manager that loads this
// library finds the function by the option `entrypoint`; a program that is linked with both hands it to
// AdbcDriverManagerDatabaseSetInitFunc. Returns ADBC's codes: 0, or 2 (not implemented) for another version, or 5 (invalid
// argument) where `driver` is NULL; `failure`, unless NULL, then has the text.
uint8_t devicefusion_adbc_init(int version,
                               void *driver,
                               struct AdbcError *failure);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* DEVICEFUSION_H */
