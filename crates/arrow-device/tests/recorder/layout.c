// SPDX-License-Identifier: Apache-2.0
// Prints the layout of every struct and the value of every constant of arrow_device.h; C99 and
// C++17. FOREIGN: includes Arrow C++'s header too, 1: before arrow_device.h, 2: after it.
#include <stddef.h>
#include <stdio.h>

#if defined(FOREIGN) && FOREIGN == 1
#include "arrow/c/abi.h"
#endif
#include "arrow_device.h"
#if defined(FOREIGN) && FOREIGN == 2
#include "arrow/c/abi.h"
#endif

#define SIZE(type) \
  printf("sizeof " #type " %ld\n", (long)sizeof(struct type)); \
  printf("alignof " #type " %ld\n", (long)offsetof(struct Aligned##type, value))
#define MEMBER(type, member) printf(#type "." #member " %ld\n", (long)offsetof(struct type, member))
#define DEVICE(name) printf("ARROW_DEVICE_" #name " %ld\n", (long)ARROW_DEVICE_##name)

#define ALIGNED(type) struct Aligned##type { char before; struct type value; }
ALIGNED(ArrowArray);
ALIGNED(ArrowDeviceArray);
ALIGNED(ArrowDeviceArrayStream);
ALIGNED(ArrowAsyncTask);
ALIGNED(ArrowAsyncProducer);
ALIGNED(ArrowAsyncDeviceStreamHandler);

// The numbers of R1 to R5, for 64-bit targets, so that a compiler alone detects an error.
#define HOLDS(name, condition) typedef char name[(condition) ? 1 : -1]
#if UINTPTR_MAX == 0xffffffffffffffffu
HOLDS(r1, sizeof(struct ArrowDeviceArray) == 128 && offsetof(struct ArrowDeviceArray, reserved) == 104);
HOLDS(r2, sizeof(struct ArrowDeviceArrayStream) == 48 && offsetof(struct ArrowDeviceArrayStream, private_data) == 40);
HOLDS(r3, sizeof(struct ArrowAsyncTask) == 16 && offsetof(struct ArrowAsyncTask, private_data) == 8);
HOLDS(r4, sizeof(struct ArrowAsyncProducer) == 40 && offsetof(struct ArrowAsyncProducer, additional_metadata) == 24);
HOLDS(r5, sizeof(struct ArrowAsyncDeviceStreamHandler) == 48 && offsetof(struct ArrowAsyncDeviceStreamHandler, producer) == 32);
#endif
HOLDS(r6, sizeof(ArrowDeviceType) == 4 && (ArrowDeviceType)-1 < 0);
HOLDS(flags, ARROW_FLAG_DICTIONARY_ORDERED == 1 && ARROW_FLAG_NULLABLE == 2 && ARROW_FLAG_MAP_KEYS_SORTED == 4);

int main(void) {
  printf("sizeof ArrowSchema %ld\n", (long)sizeof(struct ArrowSchema));
  SIZE(ArrowArray);
  MEMBER(ArrowArray, length);
  MEMBER(ArrowArray, null_count);
  MEMBER(ArrowArray, offset);
  MEMBER(ArrowArray, n_buffers);
  MEMBER(ArrowArray, n_children);
  MEMBER(ArrowArray, buffers);
  MEMBER(ArrowArray, children);
  MEMBER(ArrowArray, dictionary);
  MEMBER(ArrowArray, release);
  MEMBER(ArrowArray, private_data);
  SIZE(ArrowDeviceArray);
  MEMBER(ArrowDeviceArray, array);
  MEMBER(ArrowDeviceArray, device_id);
  MEMBER(ArrowDeviceArray, device_type);
  MEMBER(ArrowDeviceArray, sync_event);
  MEMBER(ArrowDeviceArray, reserved);
  SIZE(ArrowDeviceArrayStream);
  MEMBER(ArrowDeviceArrayStream, device_type);
  MEMBER(ArrowDeviceArrayStream, get_schema);
  MEMBER(ArrowDeviceArrayStream, get_next);
  MEMBER(ArrowDeviceArrayStream, get_last_error);
  MEMBER(ArrowDeviceArrayStream, release);
  MEMBER(ArrowDeviceArrayStream, private_data);
  SIZE(ArrowAsyncTask);
  MEMBER(ArrowAsyncTask, extract_data);
  MEMBER(ArrowAsyncTask, private_data);
  SIZE(ArrowAsyncProducer);
  MEMBER(ArrowAsyncProducer, device_type);
  MEMBER(ArrowAsyncProducer, request);
  MEMBER(ArrowAsyncProducer, cancel);
  MEMBER(ArrowAsyncProducer, additional_metadata);
  MEMBER(ArrowAsyncProducer, private_data);
  SIZE(ArrowAsyncDeviceStreamHandler);
  MEMBER(ArrowAsyncDeviceStreamHandler, on_schema);
  MEMBER(ArrowAsyncDeviceStreamHandler, on_next_task);
  MEMBER(ArrowAsyncDeviceStreamHandler, on_error);
  MEMBER(ArrowAsyncDeviceStreamHandler, release);
  MEMBER(ArrowAsyncDeviceStreamHandler, producer);
  MEMBER(ArrowAsyncDeviceStreamHandler, private_data);
  DEVICE(CPU);
  DEVICE(CUDA);
  DEVICE(CUDA_HOST);
  DEVICE(OPENCL);
  DEVICE(VULKAN);
  DEVICE(METAL);
  DEVICE(VPI);
  DEVICE(ROCM);
  DEVICE(ROCM_HOST);
  DEVICE(EXT_DEV);
  DEVICE(CUDA_MANAGED);
  DEVICE(ONEAPI);
  DEVICE(WEBGPU);
  DEVICE(HEXAGON);
  return 0;
}
