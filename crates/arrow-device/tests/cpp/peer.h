// SPDX-License-Identifier: Apache-2.0
// Shared by the files of the peer. The functions that Rust calls are extern "C" and listed in
// peer.rs.
#pragma once

#include <memory>
#include <utility>

#include "arrow/array.h"
#include "arrow/device.h"
#include "arrow/record_batch.h"
#include "arrow/result.h"
#include "arrow/status.h"

/// An array, and the event to export with it: arrays of Arrow C++ have no event of their own.
struct PeerArray {
  std::shared_ptr<arrow::Array> array;
  std::shared_ptr<arrow::Device::SyncEvent> sync = nullptr;
};

struct PeerBatch {
  std::shared_ptr<arrow::RecordBatch> batch;
};

/// Keeps a failure for `peer_error`; returns its StatusCode, which is 0 for success.
int Report(const arrow::Status& status);

/// Passes `value` to Rust, which frees it.
template <typename Holder, typename T>
int Give(arrow::Result<T> value, Holder** out) {
  if (!value.ok()) return Report(value.status());
  *out = new Holder(std::move(value).ValueUnsafe());
  return 0;
}
