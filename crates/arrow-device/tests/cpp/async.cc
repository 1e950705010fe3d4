// SPDX-License-Identifier: Apache-2.0
// Async streams of Arrow C++: its producer on a separate thread, and its consumer.

#include <atomic>
#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include "arrow/c/bridge.h"
#include "arrow/util/async_generator_fwd.h"
#include "arrow/util/future.h"
#include "arrow/util/key_value_metadata.h"
#include "arrow/util/thread_pool.h"
#include "peer.h"

using arrow::RecordBatch;
using arrow::Status;

namespace {

using BatchPtr = std::shared_ptr<RecordBatch>;

struct Producer {
  std::shared_ptr<arrow::Schema> schema;
  std::vector<BatchPtr> batches;
  Status end;
  std::atomic<int64_t> pulled{0};
  /// Finishes once the export has returned; the first batch waits for it. A stream that ends within
  /// the export loses its producer before `on_error` and `release`, even within a `cancel`.
  arrow::Future<> exported = arrow::Future<>::Make();
  Status outcome;
  std::thread thread;

  /// Yields the batches, then the failure or the end.
  arrow::AsyncGenerator<BatchPtr> Generator(int64_t delay_us) {
    return [this, delay_us]() -> arrow::Future<BatchPtr> {
      if (delay_us > 0) std::this_thread::sleep_for(std::chrono::microseconds(delay_us));
      arrow::Result<BatchPtr> next = Next();
      if (exported.is_finished()) return arrow::Future<BatchPtr>::MakeFinished(std::move(next));
      return exported.Then([next] { return next; });
    };
  }

  arrow::Result<BatchPtr> Next() {
    const auto next = static_cast<size_t>(pulled.load());
    if (next < batches.size()) {
      ++pulled;
      return std::move(batches[next]);
    }
    if (!end.ok()) return end;
    return BatchPtr{};
  }
};

struct Consumer {
  ArrowAsyncDeviceStreamHandler handler{};
  std::shared_ptr<arrow::internal::ThreadPool> pool;
  arrow::Future<arrow::AsyncRecordBatchGenerator> opening;
  arrow::AsyncGenerator<arrow::RecordBatchWithMetadata> generator;
};

}  // namespace

extern "C" {

/// Moves these batches and pushes them into `handler`; then fails with `code`, or ends if `code` is
/// 0.
int peer_producer_new(ArrowSchema* schema, PeerBatch** batches, int64_t count, int32_t device_type, int code,
                      const char* message, int64_t delay_us, ArrowAsyncDeviceStreamHandler* handler, Producer** out) {
  auto imported = arrow::ImportSchema(schema);
  if (!imported.ok()) return Report(imported.status());
  auto producer = new Producer();
  producer->schema = *imported;
  for (int64_t i = 0; i < count; ++i) producer->batches.push_back(std::move(batches[i]->batch));
  if (code != 0) producer->end = Status(static_cast<arrow::StatusCode>(code), message);
  producer->thread = std::thread([=] {
    auto done = arrow::ExportAsyncRecordBatchReader(producer->schema, producer->Generator(delay_us),
                                                    static_cast<arrow::DeviceAllocationType>(device_type), handler);
    producer->exported.MarkFinished();
    producer->outcome = done.status();
  });
  *out = producer;
  return 0;
}

/// The number of batches pulled from its source.
int64_t peer_producer_pulled(Producer* producer) { return producer->pulled; }

/// Waits for its end, returns how it ended, and frees it.
int peer_producer_join(Producer* producer) {
  producer->thread.join();
  const int code = Report(producer->outcome);
  delete producer;
  return code;
}

int peer_consumer_new(uint64_t queue_size, Consumer** out) {
  auto consumer = new Consumer();
  auto pool = arrow::internal::ThreadPool::Make(1);
  if (!pool.ok()) return Report(pool.status());
  consumer->pool = *pool;
  consumer->opening = arrow::CreateAsyncDeviceStreamHandler(&consumer->handler, consumer->pool.get(), queue_size);
  *out = consumer;
  return 0;
}

ArrowAsyncDeviceStreamHandler* peer_consumer_handler(Consumer* consumer) { return &consumer->handler; }

/// Waits for the schema.
int peer_consumer_schema(Consumer* consumer, ArrowSchema* out, int32_t* device_type) {
  auto opening = consumer->opening.result();
  if (!opening.ok()) return Report(opening.status());
  consumer->generator = opening->generator;
  *device_type = static_cast<int32_t>(opening->device_type);
  return Report(arrow::ExportSchema(*opening->schema, out));
}

/// Waits for the next batch, null at the end. Writes the batch's metadata as a string.
int peer_consumer_next(Consumer* consumer, PeerBatch** out, char* metadata, size_t size) {
  *out = nullptr;
  auto next = consumer->generator().result();
  if (!next.ok()) return Report(next.status());
  const std::string text = next->custom_metadata ? next->custom_metadata->ToString() : "";
  snprintf(metadata, size, "%s", text.c_str());
  if (next->batch) *out = new PeerBatch{next->batch};
  return 0;
}

/// The number of bytes of the error's metadata that arrived.
int64_t peer_consumer_error_metadata(Consumer* consumer) {
  auto next = consumer->generator ? consumer->generator().status() : consumer->opening.status();
  auto* detail = dynamic_cast<const arrow::AsyncErrorDetail*>(next.detail().get());
  return detail ? static_cast<int64_t>(detail->ErrorMetadataString().size()) : -1;
}

/// Drops the reader; the handler stays, because its producer may still call it.
void peer_consumer_drop_reader(Consumer* consumer) {
  consumer->generator = nullptr;
  consumer->opening = {};
}

/// Call it only after the release of the handler.
void peer_consumer_free(Consumer* consumer) { delete consumer; }

}  // extern "C"
