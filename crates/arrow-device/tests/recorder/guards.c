// SPDX-License-Identifier: Apache-2.0
// Compiled only: the header defines every canonical guard, and skips definitions whose guard is
// set.
#if defined(FOREIGN) && FOREIGN == 1
#include "arrow/c/abi.h"
#endif

#ifndef FOREIGN
// A foreign copy of two of the interfaces, recognised by its own member.
#include <stdint.h>
#define ARROW_C_DATA_INTERFACE
struct ArrowSchema { int theirs; };
struct ArrowArray { int theirs; };
#define ARROW_C_DEVICE_DATA_INTERFACE
typedef int32_t ArrowDeviceType;
struct ArrowDeviceArray { int theirs; };
#endif

#include "arrow_device.h"
#include "arrow_device.h"

#if defined(FOREIGN) && FOREIGN == 2
#include "arrow/c/abi.h"
#endif

// A later copy must find all guards.
#if !defined(ARROW_C_DATA_INTERFACE) || !defined(ARROW_C_STREAM_INTERFACE) || !defined(ARROW_C_DEVICE_DATA_INTERFACE) || \
    !defined(ARROW_C_DEVICE_STREAM_INTERFACE) || !defined(ARROW_C_ASYNC_STREAM_INTERFACE)
#error "a guard is missing"
#endif

int theirs(struct ArrowDeviceArrayStream* stream, struct ArrowAsyncTask* task);
int theirs(struct ArrowDeviceArrayStream* stream, struct ArrowAsyncTask* task) {
#ifndef FOREIGN
  struct ArrowDeviceArray array = {1};
  (void)task;
  return array.theirs + (int)stream->device_type;
#else
  return task->extract_data(task, 0) + (int)stream->device_type;
#endif
}
