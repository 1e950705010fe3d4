// SPDX-License-Identifier: Apache-2.0
// DeviceFusion for C and C++: SQL over Arrow data and files, on GPUs and CPUs.
//
// A program makes a configuration, then a context of it. It registers tables in the context and
// runs queries there. docs/c-api.md has a tutorial. This file is generated from the library's
// sources.
//
// These rules hold for every function:
//
// - Results. Functions that return `int` return DEVICEFUSION_SUCCESS or the code of a failure.
//   Functions that return a pointer return NULL on failure. devicefusion_context_get_error has the
//   message.
// - Threads. Any thread may call any function at any time. The exception are callbacks on the
//   library's threads, those of a handler and every `release`: they cannot run queries.
// - Objects. A pointer that is NULL, freed or foreign is an error. An object that one thread
//   frees stays valid for the call of another thread.
// - Strings. `const char *` is UTF-8, ends with NUL, and is copied. The caller frees a `char *`
//   with free().
// - Arrow structs as inputs are moved: the function flags them as released, even if it fails.
// - Arrow structs as outputs are written on success only. The consumer calls `release`.
// - Pointers for results must not be NULL, unless the function allows it.
// - Side effects. Without a context no thread starts, no file is read or written, and no driver is
//   opened. Exceptions are devicefusion_list_devices, and functions that set the program's queue.

#ifndef DEVICEFUSION_H
#define DEVICEFUSION_H

#include <stdint.h>
#include <stddef.h>
#include <stdio.h>
#include "arrow_device.h"

// Defined in ADBC's header.
struct AdbcError;

// Success.
#define DEVICEFUSION_SUCCESS 0

// Something outside of the program failed (a device, a driver, a file), or a query was cancelled.
#define DEVICEFUSION_FAILURE 1

// The program is at fault: bad SQL, an invalid value, a call out of order, a NULL or freed
// pointer.
#define DEVICEFUSION_PROGRAM_ERROR 2

// Memory ran out: that of the device, or the host's limit. Smaller batches or a higher limit may
// help.
#define DEVICEFUSION_OUT_OF_MEMORY 3

// The rows stay in place until a query scans the table. A second scan is an error. Needs a device.
#define DEVICEFUSION_TABLE_STREAM 0

// All rows are read at once and stay in host memory. Each query uploads the columns that it uses.
#define DEVICEFUSION_TABLE_HOST 1

// All rows are read at once and stay on the device. Host rows are copied there in the narrowest
// types that hold them; device rows stay in place. Needs a device.
#define DEVICEFUSION_TABLE_DEVICE 2

// The plan only.
#define DEVICEFUSION_EXPLAIN_PLAN 0

// The plan at every step of planning, and the kernel source.
#define DEVICEFUSION_EXPLAIN_VERBOSE 1

// Runs the query and adds the metrics of each operator.
#define DEVICEFUSION_EXPLAIN_ANALYZE 2

// Runs the query. A page with its plan and a timeline, which needs no other file.
#define DEVICEFUSION_EXPLAIN_HTML 3

// Runs the query. All data of the page as JSON.
#define DEVICEFUSION_EXPLAIN_JSON 4

// Runs the query. The plan in the JSON of PostgreSQL's EXPLAIN.
#define DEVICEFUSION_EXPLAIN_PGJSON 5

// Runs the query. The timeline in Chrome's trace event format, for Perfetto.
#define DEVICEFUSION_EXPLAIN_TRACE 6

// Tables, queries and the device that runs them. Contexts are independent of each other. All
// functions may be called from several threads at once.
struct devicefusion_context;

// The settings of a future context. Making one is cheap: it opens no driver and starts no thread.
// If several calls set one setting, the last value counts.
struct devicefusion_context_config;

// A planned SQL statement with values for its parameters. It belongs to a context and runs any
// number of times.
struct devicefusion_query;

// The memory of a column's values, for devicefusion_array_values_raw.
struct devicefusion_raw_values {
  // Memory of the values, one after another: a cl_mem, a CUdeviceptr or a host address, by the
  // array's `device_type`.
  //
  // - Booleans: bits. Dictionaries: codes.
  // - Lists, strings and binary: offsets, one more than there are values.
  // - String views and binary views: views of 16 bytes.
  void *memory;
  // Offset of the first value in bytes. Of booleans, offset of the byte with the first bit.
  size_t offset;
  // Length of all values in bytes.
  size_t bytes;
  // Number of values.
  int64_t length;
  // Validity bitmap in memory of the same kind: a bit for each value, least significant first, 0
  // for NULL. The pointer is NULL if no value is NULL.
  void *validity;
  // Offset of the first value's bit in `validity`, in bits.
  size_t validity_offset;
  // Of booleans, the first value's bit in its byte; 0 is the least significant.
  size_t bit;
  // Memory of the same kind with the bytes of strings or binary values, which offsets or views
  // point into. NULL for other types, and if no value needs it.
  void *data;
  // Length of `data` in bytes; 0 if the last offset tells it.
  size_t data_bytes;
};

// A column in the program's memory, for devicefusion_register_raw.
struct devicefusion_raw_column {
  // Name of the column.
  const char *name;
  // Format string of Arrow's C data interface, such as "l" for 64-bit integers, "b" for booleans
  // or "u" for strings with 32-bit offsets. Of a dictionary, that of its codes.
  const char *format;
  // Memory of the values: a cl_mem or a CUdeviceptr of the context's device, or a host address
  // if the context has no device. The layout is that of devicefusion_raw_values, from its start.
  void *memory;
  // Validity bitmap in memory of the same kind: a bit for each value, least significant first, 0
  // for NULL. The pointer is NULL if no value is NULL.
  void *validity;
  // Memory of the same kind with the bytes of strings or binary values, which offsets or views
  // point into. NULL for other types.
  void *data;
  // Length of `data` in bytes. With offsets it may be 0, because the last offset tells it.
  size_t data_bytes;
  // The values of a dictionary, or the elements of lists; their name is ignored. NULL for other
  // types.
  const struct devicefusion_raw_column *elements;
  // Number of elements.
  int64_t element_count;
};

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

// Makes a configuration with default settings. Free it with devicefusion_context_config_free.
struct devicefusion_context_config *devicefusion_context_config_new(void);

// Frees a configuration. Contexts that were made of it live on.
int devicefusion_context_config_free(struct devicefusion_context_config *config);

// Chooses the device. devicefusion_context_new fails if there is no such device.
//
// - "auto", the default: a GPU if there is one, else an OpenCL CPU device.
// - "none": queries run on the host.
// - a driver's name, such as "opencl": a device of that driver.
// - "#k": the device with number k; or a part of a device's name.
int devicefusion_context_config_set_device(struct devicefusion_context_config *config, const char *device);

// Shares the program's cl_command_queue, of any kind. The context uses its device and cl_context,
// so that program and context can use each other's cl_mem and cl_event.
//
// The configuration may also name the device. The queue must be live, which is not checked. It is
// retained while configuration and context need it. devicefusion_context_get_command_queue has the
// order of work in it.
int devicefusion_context_config_set_command_queue(struct devicefusion_context_config *config, void *queue);

// devicefusion_context_config_set_command_queue for a CUstream or cudaStream_t.
//
// - The stream belongs to a device's primary context, which CUDA's runtime library uses.
// - It must live until the context is freed, with all streams and tables of the context.
// - CUDA's default stream is CU_STREAM_LEGACY here, not NULL.
int devicefusion_context_config_set_cuda_stream(struct devicefusion_context_config *config, void *stream);

// Restricts devices to OpenCL platforms with this part in their name; "", the default, allows any.
int devicefusion_context_config_set_platform(struct devicefusion_context_config *config, const char *platform);

// With a nonzero flag, the default, each kernel is timed for devicefusion_context_report and
// EXPLAIN ANALYZE. Timing costs a few microseconds each.
int devicefusion_context_config_set_profiling(struct devicefusion_context_config *config, int flag);

// With a nonzero flag the context logs its device, each compiled program and each query. The log
// goes to standard error, or to devicefusion_context_set_logging_file. Off by default.
int devicefusion_context_config_set_logging(struct devicefusion_context_config *config, int flag);

// With a nonzero flag the log also has the plan of each query, with the reason why an operator
// runs on the host. This turns the log on. Off by default.
int devicefusion_context_config_set_debugging(struct devicefusion_context_config *config, int flag);

// With a nonzero flag a query fails if an operator would run on the host, and a context needs a
// device. Off by default: operators that the device does not support run on the host.
// devicefusion_query_explain says why.
int devicefusion_context_config_set_strict(struct devicefusion_context_config *config, int flag);

// Limits the device memory of the context, in bytes: from 1 MiB to all of the device's memory.
// 0, the default, takes 90 % of a GPU's memory or half of the host's, at most three quarters of
// what other processes leave.
int devicefusion_context_config_set_memory_limit(struct devicefusion_context_config *config, size_t bytes);

// Limits the memory of host operators, in bytes, as SQL's SET datafusion.runtime.memory_limit.
// Beyond it they spill to temporary files if they can, else they fail. 0, the default: no limit.
int devicefusion_context_config_set_host_memory_limit(struct devicefusion_context_config *config, size_t bytes);

// Chooses whether kernels use host memory in place. Results are the same.
//
// - 0: never.
// - 1: always; devicefusion_context_new refuses a device that cannot.
// - 2, the default: if the device is the host's processor.
int devicefusion_context_config_set_unified_memory(struct devicefusion_context_config *config, int flag);

// Sets the work-group size (CUDA: block size) of kernels of the profile "gpu": a power of two from
// 32 to 512. 0, the default, leaves it to the profile.
//
// devicefusion_context_new refuses a size that the device does not support. It refuses any size in
// the profile "cpu", which does not use work-groups.
int devicefusion_context_config_set_default_group_size(struct devicefusion_context_config *config, int work_items);

// Limits the work-groups (CUDA: blocks) of kernels that loop over a batch's rows: up to 65536. 0,
// the default, means a few for each compute unit of the device.
int devicefusion_context_config_set_default_grid_size(struct devicefusion_context_config *config, int work_groups);

// Sets the rows of a compaction tile: a multiple of 32 up to 1048576. 0, the default, leaves it to
// the profile. A work-group collects the rows of a tile that pass a filter.
//
// In the profile "gpu" it must be a multiple of the work-group size, and at most 32 times as
// large. Otherwise devicefusion_context_new refuses it.
int devicefusion_context_config_set_default_tile_size(struct devicefusion_context_config *config, int rows);

// Writes each program that the context compiles or loads to this folder: its source as HASH.cl,
// its binary as HASH.program. NULL or "", the default, writes none.
int devicefusion_context_config_dump_programs_to(struct devicefusion_context_config *config, const char *folder);

// Reads programs from a folder that devicefusion_context_config_dump_programs_to has filled.
// Nothing is written there. NULL or "", the default, reads none.
//
// - A HASH.cl with changed source is compiled in place of the original.
// - A binary is loaded if device, driver, compiler, options and source are the same.
// - Programs that are absent are compiled as usual.
int devicefusion_context_config_load_programs_from(struct devicefusion_context_config *config, const char *folder);

// Caches compiled programs in this folder, for the next process; at most 1 GiB of them. NULL or ""
// caches none. The default is a folder of the user for GPUs, and none for CPUs, whose drivers have
// caches of their own.
//
// A program of another device, driver or version of this library is compiled again.
// devicefusion_context_report counts the hits.
int devicefusion_context_config_set_cache_dir(struct devicefusion_context_config *config, const char *folder);

// Appends an option for the device's compiler, clBuildProgram or NVRTC. Unknown options are
// refused, with a list of the known ones.
int devicefusion_context_config_add_build_option(struct devicefusion_context_config *config, const char *option);

// Sets the path of CUDA's runtime compiler, libnvrtc.so.*, or of its folder. "", the default,
// searches the usual folders.
int devicefusion_context_config_set_nvrtc_path(struct devicefusion_context_config *config, const char *path);

// Sets the number of the context's threads, for planning, decoding and host operators. Less than
// 1, the default, means one for each processor.
int devicefusion_context_config_set_num_threads(struct devicefusion_context_config *config, int threads);

// Limits how long the registration of a table waits for a silent producer, in milliseconds. 0: no
// limit. The default is 300000, five minutes.
//
// - devicefusion_register_async_stream waits for the schema, and for each array of a table of the
//   kind DEVICEFUSION_TABLE_HOST or DEVICEFUSION_TABLE_DEVICE. Each wait has this limit.
// - A registration that fails cancels the producer, and refuses its later calls.
// - Queries wait without a limit. devicefusion_query_cancel ends them.
int devicefusion_context_config_set_producer_timeout(struct devicefusion_context_config *config, size_t milliseconds);

// Sets any setting, by the name and value that SQL's SET takes: those of
// devicefusion_get_option_name, and DataFusion's own, such as "datafusion.execution.batch_size".
int devicefusion_context_config_set_option(struct devicefusion_context_config *config,
                                           const char *name,
                                           const char *value);

// Sets one of the tuning parameters that devicefusion_get_tuning_param_name lists. SQL's SET can
// change those of the class "threshold" later.
int devicefusion_context_config_set_tuning_param(struct devicefusion_context_config *config,
                                                 const char *name,
                                                 size_t value);

// The version of this library, such as "0.1.0".
const char *devicefusion_version(void);

// The number of settings.
int devicefusion_get_option_count(void);

// The name of setting `index`, from zero, such as "device.memory_bytes". NULL if there is no such
// setting.
const char *devicefusion_get_option_name(int index);

// The default of setting `index`. NULL if there is no such setting.
const char *devicefusion_get_option_default(int index);

// Description of setting `index`: its effect, unit and special values. NULL if there is no such
// setting.
const char *devicefusion_get_option_description(int index);

// The number of tuning parameters: the settings whose values are numbers.
int devicefusion_get_tuning_param_count(void);

// The name of tuning parameter `index`, from zero. NULL if there is no such parameter.
const char *devicefusion_get_tuning_param_name(int index);

// The class of tuning parameter `index`. NULL if there is no such parameter.
//
// - "threshold": SQL's SET changes it while a context lives.
// - "size": it is fixed when the context is made.
const char *devicefusion_get_tuning_param_class(int index);

// The devices of all drivers as a JSON array with an object for each device. Opens the drivers.
// The caller frees the string. NULL if there is no memory.
//
// - "selector": the value for devicefusion_context_config_set_device.
// - "name", "driver", "platform", "kind", "memory_bytes".
// - "problem": the reason why the device cannot be used, or null.
//
// A driver that is absent has only "driver" and "problem".
char *devicefusion_list_devices(void);

// Makes a context: opens the device and starts threads. The configuration is frozen until the
// context is freed; several contexts need several configurations.
//
// - Call devicefusion_context_get_error next. A message says why the context could not be made.
//   Such a context must still be freed, and allows nothing else.
// - Without a device the context runs everything on the host. If the configuration names a device
//   or is strict, the function fails instead.
// - NULL if `config` is not a configuration or is in use. devicefusion_context_get_error(NULL) has
//   the message.
struct devicefusion_context *devicefusion_context_new(struct devicefusion_context_config *config);

// Frees a context with its tables, and waits for its threads. Remaining queries and streams keep
// the parts of the context that they need.
int devicefusion_context_free(struct devicefusion_context *context);

// Waits until the device has finished all work of this context. Fails if some of that work failed.
int devicefusion_context_sync(struct devicefusion_context *context);

// Cancels all that is under way in this context, from any thread: registrations of tables,
// devicefusion_store, devicefusion_execute, and runs of queries with their streams. They fail.
// Later calls are not affected.
int devicefusion_context_cancel(struct devicefusion_context *context);

// The cl_command_queue that this context shares with the program. It is that of the configuration,
// or a queue that the first call makes in the context's cl_context. The library owns it until the
// context is freed.
//
// - The device finishes the program's earlier work in this queue before the work of a later call.
//   A kernel may write the rows that a query reads; the host does not wait.
// - The library's work runs in its own queues. The program's later work waits for a query's rows
//   by their `sync_event`, or by devicefusion_array_values_raw.
void *devicefusion_context_get_command_queue(struct devicefusion_context *context);

// devicefusion_context_get_command_queue for CUDA: the CUstream of a context on a CUDA device.
void *devicefusion_context_get_cuda_stream(struct devicefusion_context *context);

// The message of this thread's last failure in this context. The caller frees it. NULL without a
// failure since the last call. As with errno, failures of other threads change nothing here.
//
// With NULL as the context: this thread's last failure that belongs to no context, such as a
// refused setting.
char *devicefusion_context_get_error(struct devicefusion_context *context);

// Counters of the context as JSON: "version", "device", "kernels" (name, launches, nanoseconds),
// "copies", "programs" and "memory". The caller frees the string. NULL on failure.
//
// Without a device there are only "version", "device", which is null, and "problem".
char *devicefusion_context_report(struct devicefusion_context *context);

// Frees caches: free device memory, compiled programs that no query holds, idle queues. Tables
// stay.
int devicefusion_context_clear_caches(struct devicefusion_context *context);

// Stops the timing of later kernels. They are still counted.
int devicefusion_context_pause_profiling(struct devicefusion_context *context);

// Resumes the timing of kernels, if the configuration asked for it.
int devicefusion_context_unpause_profiling(struct devicefusion_context *context);

// Sends the log to `file`, or to standard error with NULL. The file must stay open until another
// call replaces it, or the context is freed with all its queries and streams.
int devicefusion_context_set_logging_file(struct devicefusion_context *context, FILE *file);

// Registers a table of a stream of host arrays, which are record batches. The stream is moved in
// any case. A thread of the library calls its callbacks.
//
// `kind` says where the rows will be: DEVICEFUSION_TABLE_STREAM, DEVICEFUSION_TABLE_HOST or
// DEVICEFUSION_TABLE_DEVICE.
int devicefusion_register_stream(struct devicefusion_context *context,
                                 const char *name,
                                 struct ArrowArrayStream *stream,
                                 int kind);

// devicefusion_register_stream for a stream of device arrays. Memory of the context's device is
// used in place.
int devicefusion_register_device_stream(struct devicefusion_context *context,
                                        const char *name,
                                        struct ArrowDeviceArrayStream *stream,
                                        int kind);

// devicefusion_register_stream for one device array, a record batch of `schema`. Both are moved in
// any case.
int devicefusion_register_device_array(struct devicefusion_context *context,
                                       const char *name,
                                       struct ArrowDeviceArray *array,
                                       struct ArrowSchema *schema,
                                       int kind);

// devicefusion_register_stream for device arrays that a producer pushes.
//
// - This function calls `produce` once, on this thread and with `data`. It makes the producer push
//   to `handler`, at once or on its own threads. Then this function waits for the schema.
// - If the function fails earlier, it does not call `produce`.
// - A producer without a call lets the function fail, by the limit of
//   devicefusion_context_config_set_producer_timeout. devicefusion_context_cancel on another
//   thread ends the wait at once.
// - When a query ends early, the producer is cancelled.
int devicefusion_register_async_stream(struct devicefusion_context *context,
                                       const char *name,
                                       void (*produce)(void *data, struct ArrowAsyncDeviceStreamHandler *handler),
                                       void *data,
                                       int kind);

// Registers a table of a file, or of all files in a folder with the format's extension. It is
// short for SQL's CREATE EXTERNAL TABLE, which has more options.
//
// - `url` is a path or a file:// URL. Other URLs, such as http:// or s3://, are refused.
// - `format` is "PARQUET", "CSV", "JSON", "ARROW" or "AVRO". The first line of a CSV file has the
//   names of its columns.
int devicefusion_register_file(struct devicefusion_context *context,
                               const char *name,
                               const char *url,
                               const char *format);

// Drops a table. Queries that read it go on.
int devicefusion_drop_table(struct devicefusion_context *context, const char *name);

// Plans a SQL statement, whose tables and columns must exist. Nothing runs yet. Parameters are $1,
// $2 and so on, or $names.
int devicefusion_query_new(struct devicefusion_context *context, const char *sql, struct devicefusion_query **out);

// Frees a query. Its streams go on.
int devicefusion_query_free(struct devicefusion_query *query);

// The columns of the result. Types that depend on parameters follow the bound values.
int devicefusion_query_schema(struct devicefusion_query *query, struct ArrowSchema *out);

// Binds NULL to the parameter $`index`, from 1 as in SQL.
int devicefusion_query_bind_null(struct devicefusion_query *query, int index);

// Binds a boolean, true if nonzero, to the parameter $`index`.
int devicefusion_query_bind_bool(struct devicefusion_query *query, int index, int value);

// Binds an integer to the parameter $`index`.
int devicefusion_query_bind_int64(struct devicefusion_query *query, int index, int64_t value);

// Binds a floating-point number to the parameter $`index`.
int devicefusion_query_bind_double(struct devicefusion_query *query, int index, double value);

// Binds a string to the parameter $`index`.
int devicefusion_query_bind_string(struct devicefusion_query *query, int index, const char *value);

// Binds values of any type: the columns of `row`, a host array of structs with one element. They
// go to $1, $2 and so on by position, or to $names by name. Array and schema are moved in any
// case.
int devicefusion_query_bind_row(struct devicefusion_query *query, struct ArrowArray *row, struct ArrowSchema *schema);

// Starts the query and returns its rows as a stream of host arrays, which are record batches.
//
// - `get_next` waits for the next batch. It fails if the query fails.
// - Releasing the stream stops the query. The stream outlives query and context.
// - INSERT, UPDATE, DELETE, MERGE, COPY, DDL and SET run to their end in this call, which returns
//   their errors. The stream has the result: the number of rows written, or no rows.
int devicefusion_query_stream(struct devicefusion_query *query, struct ArrowArrayStream *out);

// devicefusion_query_stream with the rows left on the device.
int devicefusion_query_device_stream(struct devicefusion_query *query, struct ArrowDeviceArrayStream *out);

// devicefusion_query_device_stream that pushes the rows to a handler, as many batches as it asks
// for. Returns once the query is planned.
//
// - The context's threads call the handler's callbacks until its `release`, even after query and
//   context are freed. The handler must not move until then.
// - If this function fails, it releases the handler and calls no other callback.
int devicefusion_query_push(struct devicefusion_query *query, struct ArrowAsyncDeviceStreamHandler *handler);

// Runs the query to its end and drops its rows. `rows`, unless NULL, gets the number of rows: of
// the result, or of those written by INSERT, UPDATE, DELETE, MERGE or COPY.
int devicefusion_query_run(struct devicefusion_query *query, int64_t *rows);

// Explains the query: the operators on the device, those on the host, and the reasons. `out` gets
// a string, which the caller frees.
//
// `how` is one of the constants DEVICEFUSION_EXPLAIN_….
int devicefusion_query_explain(struct devicefusion_query *query, int how, char **out);

// Progress of the latest run: its plan with each operator's output rows so far. `out` gets a
// string, which the caller frees. Fails if no run is under way.
//
// Call it on another thread, or between two batches of a stream. The device metrics of an operator
// appear once it has ended, as in EXPLAIN ANALYZE.
int devicefusion_query_progress(struct devicefusion_query *query, char **out);

// Cancels all runs of the query that are under way, from any thread. They and their streams fail.
// Later runs are not affected.
int devicefusion_query_cancel(struct devicefusion_query *query);

// Runs a SQL statement to its end: devicefusion_query_new, devicefusion_query_run and
// devicefusion_query_free in one call. `rows` may be NULL.
int devicefusion_execute(struct devicefusion_context *context, const char *sql, int64_t *rows);

// The memory of a column's values: column `column`, from zero, of a record batch with its schema,
// such as a batch of devicefusion_query_device_stream.
//
// - Array and schema are not moved. The memory belongs to the array: it is valid until the array's
//   release, and must not be written.
// - The values are complete once the array's `sync_event` is. Later work of the program in the
//   queue of devicefusion_context_get_command_queue waits for it automatically.
// - Release the array once the work that reads it has completed.
// - Structs and unions have no values, only fields, which are arrays of the batch.
int devicefusion_array_values_raw(struct devicefusion_context *context,
                                  const struct ArrowDeviceArray *array,
                                  const struct ArrowSchema *schema,
                                  int64_t column,
                                  struct devicefusion_raw_values *out);

// devicefusion_array_values_raw for the values of a dictionary, or for the elements of lists.
// Lists of fixed size have no offsets: their elements follow one another.
//
// Elements that are lists or dictionaries themselves are refused.
int devicefusion_array_elements_raw(struct devicefusion_context *context,
                                    const struct ArrowDeviceArray *array,
                                    const struct ArrowSchema *schema,
                                    int64_t column,
                                    struct devicefusion_raw_values *out);

// Registers a table of `count` columns and `length` rows in the program's memory. Columns are used
// in place, except dictionaries, which are decoded. Lists need a context without a device.
//
// - The values must be complete, or be written by earlier work of the program in the queue of
//   devicefusion_context_get_command_queue. They must not change afterwards.
// - Only this call reads the structs and strings.
// - On a device, offsets, views and codes are not checked: all must be in range.
// - `release`, unless NULL, is called with `data` once, on any thread. It is called if this
//   function fails. Otherwise it is called once the table is dropped and its queries have ended.
int devicefusion_register_raw(struct devicefusion_context *context,
                              const char *name,
                              const struct devicefusion_raw_column *columns,
                              size_t count,
                              int64_t length,
                              void (*release)(void *data),
                              void *data);

// Reads a stream of device arrays, which are record batches, to its end. Writes its rows as an
// Arrow IPC stream, which every Arrow library reads. The stream is moved in any case.
//
// `bytes` gets memory that the caller frees with free(), and `size` its length.
int devicefusion_store(struct devicefusion_context *context,
                       struct ArrowDeviceArrayStream *stream,
                       void **bytes,
                       size_t *size);

// Reads the bytes of devicefusion_store, or any other Arrow IPC stream, as a stream of device
// arrays. The bytes are read before the function returns.
//
// The rows are on the context's device, or in host memory if it has no device.
int devicefusion_restore(struct devicefusion_context *context,
                         const void *bytes,
                         size_t size,
                         struct ArrowDeviceArrayStream *out);

// The ADBC driver: fills in the struct AdbcDriver at `driver`. `version` is 1001000, for 1.1.0.
//
// A driver manager that loads this library finds the function by the option `entrypoint`. A
// program that links both passes it to AdbcDriverManagerDatabaseSetInitFunc.
//
// Returns an ADBC status: 0, 2 (not implemented) for another version, or 5 (invalid argument) for
// a NULL `driver`. `failure`, unless NULL, then has the message.
uint8_t devicefusion_adbc_init(int version, void *driver, struct AdbcError *failure);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* DEVICEFUSION_H */
