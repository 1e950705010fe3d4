// SPDX-License-Identifier: Apache-2.0
// The structs of the Arrow C data, stream, device and async stream interfaces, for C99 and C++.
//
// Each interface stands behind its canonical guard, so that this file and any other copy of the same definitions
// (Arrow C++'s arrow/c/abi.h, nanoarrow's header) may be included together, in any order: the first one wins, and all
// of them have the same layout. `src/ffi.rs` has the same structs for Rust; a test compares the two.
//
// Specification: https://arrow.apache.org/docs/format/CDeviceDataInterface.html
#ifndef ARROW_DEVICE_H
#define ARROW_DEVICE_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#ifndef ARROW_C_DATA_INTERFACE
#define ARROW_C_DATA_INTERFACE

// Bits of ArrowSchema.flags.
#define ARROW_FLAG_DICTIONARY_ORDERED 1
#define ARROW_FLAG_NULLABLE 2
#define ARROW_FLAG_MAP_KEYS_SORTED 4

// A type, or the schema of a record batch (a struct type whose children are the columns).
struct ArrowSchema {
  const char* format;
  const char* name;
  const char* metadata;  // Key-value pairs: an int32 count, then each key and value behind its int32 length.
  int64_t flags;
  int64_t n_children;
  struct ArrowSchema** children;
  struct ArrowSchema* dictionary;

  // NULL once released, or moved away.
  void (*release)(struct ArrowSchema*);
  void* private_data;
};

// An array of the type that a schema beside it tells.
struct ArrowArray {
  int64_t length;
  int64_t null_count;  // -1: not counted.
  int64_t offset;      // In elements.
  int64_t n_buffers;
  int64_t n_children;
  const void** buffers;
  struct ArrowArray** children;
  struct ArrowArray* dictionary;

  // NULL once released, or moved away.
  void (*release)(struct ArrowArray*);
  void* private_data;
};

#endif  // ARROW_C_DATA_INTERFACE

#ifndef ARROW_C_DEVICE_DATA_INTERFACE
#define ARROW_C_DEVICE_DATA_INTERFACE

// What kind of device can read the data buffers. The values are those of DLPack's kDL constants; macros, not an enum,
// keep the size of the member independent of the compiler. Unknown values must be expected.
typedef int32_t ArrowDeviceType;

#define ARROW_DEVICE_CPU 1           // Host memory.
#define ARROW_DEVICE_CUDA 2          // Memory of a CUDA device.
#define ARROW_DEVICE_CUDA_HOST 3     // Pinned host memory, by cudaMallocHost.
#define ARROW_DEVICE_OPENCL 4        // OpenCL buffers.
#define ARROW_DEVICE_VULKAN 7        // Vulkan buffers.
#define ARROW_DEVICE_METAL 8         // Metal buffers.
#define ARROW_DEVICE_VPI 9           // Verilog simulator buffers.
#define ARROW_DEVICE_ROCM 10         // Memory of a ROCm device.
#define ARROW_DEVICE_ROCM_HOST 11    // Pinned host memory, by hipMallocHost.
#define ARROW_DEVICE_EXT_DEV 12      // Any other device; its producer documents it.
#define ARROW_DEVICE_CUDA_MANAGED 13 // Memory that CUDA moves by itself, by cudaMallocManaged.
#define ARROW_DEVICE_ONEAPI 14       // Unified shared memory of a oneAPI device.
#define ARROW_DEVICE_WEBGPU 15       // WebGPU buffers.
#define ARROW_DEVICE_HEXAGON 16      // Memory of a Qualcomm Hexagon DSP.

// An array whose data buffers are memory of one device; everything else is host memory.
struct ArrowDeviceArray {
  struct ArrowArray array;      // Its release callback is the only one, and frees the event too.
  int64_t device_id;            // Which device of that type; -1 where there are none to tell apart.
  ArrowDeviceType device_type;
  void* sync_event;             // A pointer to the native event to wait on before reading; NULL: nothing to wait for.
  int64_t reserved[3];          // Zero.
};

#endif  // ARROW_C_DEVICE_DATA_INTERFACE

#ifndef ARROW_C_STREAM_INTERFACE
#define ARROW_C_STREAM_INTERFACE

// A stream of host arrays of one schema. Callbacks as in ArrowDeviceArrayStream.
struct ArrowArrayStream {
  int (*get_schema)(struct ArrowArrayStream*, struct ArrowSchema* out);
  int (*get_next)(struct ArrowArrayStream*, struct ArrowArray* out);
  const char* (*get_last_error)(struct ArrowArrayStream*);
  void (*release)(struct ArrowArrayStream*);
  void* private_data;
};

#endif  // ARROW_C_STREAM_INTERFACE

#ifndef ARROW_C_DEVICE_STREAM_INTERFACE
#define ARROW_C_DEVICE_STREAM_INTERFACE

// A stream of device arrays of one schema, pulled by blocking calls, one at a time.
struct ArrowDeviceArrayStream {
  ArrowDeviceType device_type;  // Of every array.

  // 0, or an errno. What is written lives on its own, also after the stream's release.
  int (*get_schema)(struct ArrowDeviceArrayStream*, struct ArrowSchema* out);
  // 0, or an errno. A released array after success is the end of the stream.
  int (*get_next)(struct ArrowDeviceArrayStream*, struct ArrowDeviceArray* out);
  // Only after a failing call: its text in UTF-8, valid until the next call; or NULL.
  const char* (*get_last_error)(struct ArrowDeviceArrayStream*);

  // NULL once released, or moved away.
  void (*release)(struct ArrowDeviceArrayStream*);
  void* private_data;
};

#endif  // ARROW_C_DEVICE_STREAM_INTERFACE

#ifndef ARROW_C_ASYNC_STREAM_INTERFACE
#define ARROW_C_ASYNC_STREAM_INTERFACE

// One array of an async stream, ready to be taken. Valid while on_next_task runs; copy it to keep it.
struct ArrowAsyncTask {
  // To be called once, on any thread: fills `out`, or only cleans up where that is NULL. 0, or an errno that the
  // producer then reports through on_error.
  int (*extract_data)(struct ArrowAsyncTask* self, struct ArrowDeviceArray* out);
  void* private_data;
};

// How the consumer asks for more, or for the end. The producer's, until it calls the handler's release.
//
// The document lists a release callback between `cancel` and `additional_metadata`; no shipped implementation has it,
// and with it the members behind would not be where those expect them.
struct ArrowAsyncProducer {
  ArrowDeviceType device_type;  // Of every array.

  // Allows n more tasks; n > 0. May be called from within on_schema and on_next_task. Does nothing after cancel.
  void (*request)(struct ArrowAsyncProducer* self, int64_t n);
  // Asks for an early end. Any thread, any number of times.
  void (*cancel)(struct ArrowAsyncProducer* self);

  const char* additional_metadata;  // NULL, or encoded as ArrowSchema.metadata.
  void* private_data;
};

// What the consumer of an async stream gives its producer to call: one call at a time, from any thread.
struct ArrowAsyncDeviceStreamHandler {
  // First, and once, unless on_error comes instead. Moves the schema out. 0, or an errno: then only release follows.
  int (*on_schema)(struct ArrowAsyncDeviceStreamHandler* self, struct ArrowSchema* stream_schema);
  // The next task; NULL at the end of the data. 0, or an errno: then only release follows.
  int (*on_next_task)(struct ArrowAsyncDeviceStreamHandler* self, struct ArrowAsyncTask* task, const char* metadata);
  // The producer failed: only release follows. `message` and `metadata` may be NULL, and end with the call.
  void (*on_error)(struct ArrowAsyncDeviceStreamHandler* self, int code, const char* message, const char* metadata);

  // The last call.
  void (*release)(struct ArrowAsyncDeviceStreamHandler* self);

  struct ArrowAsyncProducer* producer;  // Set by the producer before its first call.
  void* private_data;                   // The consumer's.
};

#endif  // ARROW_C_ASYNC_STREAM_INTERFACE

#ifdef __cplusplus
}
#endif

#endif  // ARROW_DEVICE_H
