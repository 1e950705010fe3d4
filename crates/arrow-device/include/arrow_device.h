// SPDX-License-Identifier: Apache-2.0
// The structs of the Arrow C data, stream, device and async stream interfaces, for C99 and C++.
//
// Each interface has its canonical include guard. Other copies of the definitions (Arrow C++'s
// arrow/c/abi.h, nanoarrow's header) may therefore be included before or after this file. The first
// one wins, and all have the same layout.
//
// `src/ffi.rs` has the same structs for Rust; a test compares the two.
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
  const char* metadata;  // Key-value pairs: an int32 count, then each int32 length with its key or value.
  int64_t flags;
  int64_t n_children;
  struct ArrowSchema** children;
  struct ArrowSchema* dictionary;

  // NULL once released or moved out.
  void (*release)(struct ArrowSchema*);
  void* private_data;
};

// An array, whose type is in a separate schema.
struct ArrowArray {
  int64_t length;
  int64_t null_count;  // -1: not counted.
  int64_t offset;      // In elements.
  int64_t n_buffers;
  int64_t n_children;
  const void** buffers;
  struct ArrowArray** children;
  struct ArrowArray* dictionary;

  // NULL once released or moved out.
  void (*release)(struct ArrowArray*);
  void* private_data;
};

#endif  // ARROW_C_DATA_INTERFACE

#ifndef ARROW_C_DEVICE_DATA_INTERFACE
#define ARROW_C_DEVICE_DATA_INTERFACE

// The kind of device that can read the data buffers, with the values of DLPack's kDL constants.
// These are macros, because the size of an enum depends on the compiler. Expect unknown values.
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
#define ARROW_DEVICE_CUDA_MANAGED 13 // Memory that CUDA migrates, by cudaMallocManaged.
#define ARROW_DEVICE_ONEAPI 14       // Unified shared memory of a oneAPI device.
#define ARROW_DEVICE_WEBGPU 15       // WebGPU buffers.
#define ARROW_DEVICE_HEXAGON 16      // Memory of a Qualcomm Hexagon DSP.

// An array whose data buffers are memory of one device; everything else is host memory.
struct ArrowDeviceArray {
  struct ArrowArray array;      // Its release callback is the only one, and frees the event too.
  int64_t device_id;            // The device's index within its type; -1 for types without ids.
  ArrowDeviceType device_type;
  void* sync_event;             // A pointer to the native event to wait on before reading; NULL without one.
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

  // 0, or an errno. The schema outlives the stream's release.
  int (*get_schema)(struct ArrowDeviceArrayStream*, struct ArrowSchema* out);
  // 0, or an errno. A released array after success is the end of the stream.
  int (*get_next)(struct ArrowDeviceArrayStream*, struct ArrowDeviceArray* out);
  // After a failed call only: its message in UTF-8, valid until the next call; or NULL.
  const char* (*get_last_error)(struct ArrowDeviceArrayStream*);

  // NULL once released or moved out.
  void (*release)(struct ArrowDeviceArrayStream*);
  void* private_data;
};

#endif  // ARROW_C_DEVICE_STREAM_INTERFACE

#ifndef ARROW_C_ASYNC_STREAM_INTERFACE
#define ARROW_C_ASYNC_STREAM_INTERFACE

// One array of an async stream, not yet extracted. Valid while on_next_task runs; copy it to keep
// it.
struct ArrowAsyncTask {
  // Call it once, on any thread: it fills `out`, or only frees the array if `out` is NULL. Returns
  // 0 or an errno, which the producer then reports through on_error.
  int (*extract_data)(struct ArrowAsyncTask* self, struct ArrowDeviceArray* out);
  void* private_data;
};

// The consumer's handle to request more tasks, or to cancel. Owned by the producer, until it calls
// the handler's release.
//
// The document lists a release callback between `cancel` and `additional_metadata`. No shipped
// implementation has it, and it would move the members behind it.
struct ArrowAsyncProducer {
  ArrowDeviceType device_type;  // Of every array.

  // Allows n more tasks; n > 0. May be called within on_schema and on_next_task.
  // Ignored after cancel.
  void (*request)(struct ArrowAsyncProducer* self, int64_t n);
  // Asks for an early end, on any thread, any number of times.
  void (*cancel)(struct ArrowAsyncProducer* self);

  const char* additional_metadata;  // NULL, or encoded as ArrowSchema.metadata.
  void* private_data;
};

// The callbacks of an async stream's consumer, called by the producer one at a time, from any
// thread.
struct ArrowAsyncDeviceStreamHandler {
  // The first call, made once, unless on_error comes instead. Moves the schema out. Returns 0 or an
  // errno; after an errno only release follows.
  int (*on_schema)(struct ArrowAsyncDeviceStreamHandler* self, struct ArrowSchema* stream_schema);
  // The next task; NULL at the end of the data. Returns 0 or an errno; after an errno only release
  // follows.
  int (*on_next_task)(struct ArrowAsyncDeviceStreamHandler* self, struct ArrowAsyncTask* task, const char* metadata);
  // The producer failed; only release follows. `message` and `metadata` may be NULL, and are valid
  // during the call.
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
