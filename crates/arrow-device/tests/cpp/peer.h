// SPDX-License-Identifier: Apache-2.0
// What the files of the peer share. The functions that Rust calls are extern "C" and listed in peer.rs.
#pragma once

#include <memory>
#include <utility>

#include "arrow/array.h"
#include "arrow/device.h"
#include "arrow/record_batch.h"
#include "arrow/result.h"
#include "arrow/status.h"

/// An array, and the event to export it with: arrays of Arrow C++ carry none of their own.
struct PeerArray {
  std::shared_ptr<arrow::Array> array;
  std::shared_ptr<arrow::Device::SyncEvent> sync = nullptr;
};

struct PeerBatch {
  std::shared_ptr<arrow::RecordBatch> batch;
};

/// Keeps a failure for `peer_error`; gives its StatusCode, which is 0 for success.
int Told(const arrow::Status& status);

/// Hands `value` to Rust, which frees it.
template <typename Holder, typename T>
int Give(arrow::Result<T> value, Holder** out) {
  if (!value.ok()) return Told(value.status());
  *out = new Holder(std::move(value).ValueUnsafe());
  return 0;
}
