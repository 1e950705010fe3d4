// SPDX-License-Identifier: Apache-2.0
// Arrays, record batches and pull streams of Arrow C++.

#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include "arrow/array/array_dict.h"
#include "arrow/array/array_run_end.h"
#include "arrow/array/concatenate.h"
#include "arrow/c/bridge.h"
#include "arrow/c/helpers.h"
#include "arrow/chunked_array.h"
#include "arrow/compare.h"
#include "arrow/config.h"
#include "arrow/extension_type.h"
#include "arrow/json/from_string.h"
#include "arrow/memory_pool.h"
#include "arrow/scalar.h"
#include "arrow/type.h"
#include "arrow/util/key_value_metadata.h"
#include "peer.h"

using arrow::Array;
using arrow::RecordBatch;
using arrow::Result;
using arrow::Status;

namespace {

thread_local std::string last_error;
thread_local int last_detail = 0;

/// JSON alone cannot express two types, so a string of two parts does: `indices|dictionary` and
/// `run ends|values`.
Result<std::shared_ptr<Array>> Build(const std::shared_ptr<arrow::DataType>& type, std::string_view json) {
  if (type->id() == arrow::Type::EXTENSION) {
    const auto& storage = static_cast<const arrow::ExtensionType&>(*type).storage_type();
    ARROW_ASSIGN_OR_RAISE(auto array, Build(storage, json));
    return arrow::ExtensionType::WrapArray(type, array);
  }
  const auto bar = json.find('|');
  if (bar == std::string_view::npos) return arrow::json::ArrayFromJSONString(type, json);
  const auto first = json.substr(0, bar);
  const auto second = json.substr(bar + 1);
  if (type->id() == arrow::Type::DICTIONARY) {
    return arrow::json::DictArrayFromJSONString(type, first, second);
  }
  if (type->id() != arrow::Type::RUN_END_ENCODED) return Status::Invalid("JSON of two parts for ", type->ToString());
  const auto& encoded = static_cast<const arrow::RunEndEncodedType&>(*type);
  ARROW_ASSIGN_OR_RAISE(auto ends, arrow::json::ArrayFromJSONString(encoded.run_end_type(), first));
  ARROW_ASSIGN_OR_RAISE(auto values, arrow::json::ArrayFromJSONString(encoded.value_type(), second));
  int64_t length = 0;
  if (ends->length() > 0) {
    ARROW_ASSIGN_OR_RAISE(auto last, ends->GetScalar(ends->length() - 1));
    length = std::stoll(last->ToString());
  }
  ARROW_ASSIGN_OR_RAISE(auto array, arrow::RunEndEncodedArray::Make(type, length, ends, values));
  return array;
}

bool InHost(const arrow::ArrayData& data) {
  for (const auto& buffer : data.buffers) {
    if (buffer && !buffer->is_cpu()) return false;
  }
  for (const auto& child : data.child_data) {
    if (!InHost(*child)) return false;
  }
  return !data.dictionary || InHost(*data.dictionary);
}

/// Validates an import where Arrow C++ can read it: in host memory.
Status Validate(const Array& array) { return InHost(*array.data()) ? array.ValidateFull() : Status::OK(); }

Status Validate(const RecordBatch& batch) {
  for (const auto& column : batch.column_data()) {
    if (!InHost(*column)) return Status::OK();
  }
  return batch.ValidateFull();
}

Result<std::shared_ptr<Array>> Import(ArrowDeviceArray* array, ArrowSchema* schema) {
  ARROW_ASSIGN_OR_RAISE(auto imported, arrow::ImportDeviceArray(array, schema));
  RETURN_NOT_OK(Validate(*imported));
  return imported;
}

Result<std::shared_ptr<RecordBatch>> ImportBatch(ArrowDeviceArray* array, ArrowSchema* schema) {
  ARROW_ASSIGN_OR_RAISE(auto imported, arrow::ImportDeviceRecordBatch(array, schema));
  RETURN_NOT_OK(Validate(*imported));
  return imported;
}

/// Returns its batches, then an error or the end.
class Batches : public arrow::RecordBatchReader {
 public:
  Batches(std::shared_ptr<arrow::Schema> schema, std::vector<std::shared_ptr<RecordBatch>> batches, Status end,
          arrow::DeviceAllocationType device_type)
      : schema_(std::move(schema)), batches_(std::move(batches)), end_(std::move(end)), device_type_(device_type) {}

  std::shared_ptr<arrow::Schema> schema() const override { return schema_; }

  Status ReadNext(std::shared_ptr<RecordBatch>* batch) override {
    batch->reset();
    if (next_ == batches_.size()) return end_;
    // Moved out, so that a batch is freed once its consumer has released it.
    *batch = std::move(batches_[next_++]);
    return Status::OK();
  }

  arrow::DeviceAllocationType device_type() const override { return device_type_; }

 private:
  std::shared_ptr<arrow::Schema> schema_;
  std::vector<std::shared_ptr<RecordBatch>> batches_;
  Status end_;
  arrow::DeviceAllocationType device_type_;
  size_t next_ = 0;
};

struct PeerReader {
  std::shared_ptr<arrow::RecordBatchReader> reader;
};

}  // namespace

int Report(const Status& status) {
  last_error = status.ToString();
  last_detail = 0;
  if (auto* detail = dynamic_cast<const arrow::AsyncErrorDetail*>(status.detail().get())) {
    last_detail = detail->code();
  }
  return static_cast<int>(status.code());
}

extern "C" {

const char* peer_error() { return last_error.c_str(); }

/// The errno of the failure, if it came through an async stream.
int peer_detail() { return last_detail; }

const char* peer_version() {
  static const std::string version = arrow::GetBuildInfo().version_string;
  return version.c_str();
}

int64_t peer_bytes_allocated() { return arrow::default_memory_pool()->bytes_allocated(); }

// ---- Arrays

int peer_array_build(ArrowSchema* field, const char* json, PeerArray** out) {
  const auto build = [&]() -> Result<std::shared_ptr<Array>> {
    ARROW_ASSIGN_OR_RAISE(auto imported, arrow::ImportField(field));
    return Build(imported->type(), json);
  };
  return Give(build(), out);
}

int peer_array_slice(PeerArray* array, int64_t offset, int64_t length, PeerArray** out) {
  *out = new PeerArray{array->array->Slice(offset, length), array->sync};
  return 0;
}

int peer_array_export(PeerArray* array, ArrowDeviceArray* out, ArrowSchema* schema) {
  return Report(arrow::ExportDeviceArray(*array->array, array->sync, out, schema));
}

int peer_array_import(ArrowDeviceArray* array, ArrowSchema* schema, PeerArray** out) {
  return Give(Import(array, schema), out);
}

/// Returns 0 if the arrays have the same type and values.
int peer_array_equals(PeerArray* left, PeerArray* right) {
  const auto options = arrow::EqualOptions::Defaults().nans_equal(true);
  if (!left->array->type()->Equals(*right->array->type(), /*check_metadata=*/true)) {
    return Report(Status::Invalid(left->array->type()->ToString(true), " is not ", right->array->type()->ToString(true)));
  }
  if (left->array->Equals(*right->array, options)) return 0;
  return Report(Status::Invalid(left->array->ToString(), " is not ", right->array->ToString()));
}

void peer_array_free(PeerArray* array) { delete array; }

// ---- Record batches

/// A batch of the rows in `json`: an array of objects.
int peer_batch_build(ArrowSchema* schema, const char* json, PeerBatch** out) {
  const auto build = [&]() -> Result<std::shared_ptr<RecordBatch>> {
    ARROW_ASSIGN_OR_RAISE(auto imported, arrow::ImportSchema(schema));
    std::vector<std::shared_ptr<arrow::Field>> storage;
    for (const auto& field : imported->fields()) {
      const bool extension = field->type()->id() == arrow::Type::EXTENSION;
      storage.push_back(!extension ? field
                                   : field->WithType(static_cast<const arrow::ExtensionType&>(*field->type()).storage_type()));
    }
    ARROW_ASSIGN_OR_RAISE(auto rows, Build(arrow::struct_(storage), json));
    ARROW_ASSIGN_OR_RAISE(auto batch, RecordBatch::FromStructArray(rows));
    auto columns = batch->columns();
    for (size_t i = 0; i < columns.size(); ++i) {
      const auto& type = imported->field(static_cast<int>(i))->type();
      if (type->id() == arrow::Type::EXTENSION) columns[i] = arrow::ExtensionType::WrapArray(type, columns[i]);
    }
    return RecordBatch::Make(imported, batch->num_rows(), columns);
  };
  return Give(build(), out);
}

int peer_batch_slice(PeerBatch* batch, int64_t offset, int64_t length, PeerBatch** out) {
  *out = new PeerBatch{batch->batch->Slice(offset, length)};
  return 0;
}

int peer_batch_export(PeerBatch* batch, ArrowDeviceArray* out, ArrowSchema* schema) {
  return Report(arrow::ExportDeviceRecordBatch(*batch->batch, batch->batch->GetSyncEvent(), out, schema));
}

int peer_batch_import(ArrowDeviceArray* array, ArrowSchema* schema, PeerBatch** out) {
  return Give(ImportBatch(array, schema), out);
}

int peer_batch_equals(PeerBatch* left, PeerBatch* right) {
  if (left->batch->Equals(*right->batch, /*check_metadata=*/true)) return 0;
  return Report(Status::Invalid(left->batch->schema()->ToString(true), "\n", left->batch->ToString(), " is not ",
                              right->batch->schema()->ToString(true), "\n", right->batch->ToString()));
}

int64_t peer_batch_rows(PeerBatch* batch) { return batch->batch->num_rows(); }

int peer_batch_has_event(PeerBatch* batch) { return batch->batch->GetSyncEvent() != nullptr; }

/// A batch of one host column and one device column, whose export fails.
int peer_batch_mix(PeerBatch* host, PeerBatch* device, PeerBatch** out) {
  auto schema = arrow::schema({host->batch->schema()->field(0), device->batch->schema()->field(0)});
  *out = new PeerBatch{RecordBatch::Make(schema, host->batch->num_rows(),
                                         std::vector<std::shared_ptr<arrow::ArrayData>>{
                                             host->batch->column_data(0), device->batch->column_data(0)})};
  return 0;
}

void peer_batch_free(PeerBatch* batch) { delete batch; }

// ---- Pull streams

/// A reader of these batches, moved into it; then it fails with `code`, or ends if `code` is 0.
int peer_reader_new(ArrowSchema* schema, PeerBatch** batches, int64_t count, int32_t device_type, int code,
                    const char* message, PeerReader** out) {
  const auto make = [&]() -> Result<std::shared_ptr<arrow::RecordBatchReader>> {
    ARROW_ASSIGN_OR_RAISE(auto imported, arrow::ImportSchema(schema));
    std::vector<std::shared_ptr<RecordBatch>> list;
    for (int64_t i = 0; i < count; ++i) list.push_back(std::move(batches[i]->batch));
    auto end = code == 0 ? Status::OK() : Status(static_cast<arrow::StatusCode>(code), message);
    return std::make_shared<Batches>(imported, std::move(list), end,
                                     static_cast<arrow::DeviceAllocationType>(device_type));
  };
  return Give(make(), out);
}

int peer_reader_export(PeerReader* reader, ArrowDeviceArrayStream* out) {
  return Report(arrow::ExportDeviceRecordBatchReader(std::move(reader->reader), out));
}

int peer_reader_import(ArrowDeviceArrayStream* stream, PeerReader** out) {
  return Give(arrow::ImportDeviceRecordBatchReader(stream), out);
}

int peer_reader_schema(PeerReader* reader, ArrowSchema* out) {
  return Report(arrow::ExportSchema(*reader->reader->schema(), out));
}

/// The next batch, null at the end.
int peer_reader_next(PeerReader* reader, PeerBatch** out) {
  *out = nullptr;
  const auto next = [&]() -> Result<std::shared_ptr<RecordBatch>> {
    std::shared_ptr<RecordBatch> batch;
    RETURN_NOT_OK(reader->reader->ReadNext(&batch));
    if (batch) RETURN_NOT_OK(Validate(*batch));
    return batch;
  };
  auto batch = next();
  if (batch.ok() && *batch == nullptr) return 0;
  return Give(std::move(batch), out);
}

void peer_reader_free(PeerReader* reader) { delete reader; }

/// The halves of an array as a stream of arrays other than record batches.
int peer_chunks_export(PeerArray* array, ArrowDeviceArrayStream* out) {
  const int64_t half = array->array->length() / 2;
  arrow::ArrayVector chunks = {array->array->Slice(0, half), array->array->Slice(half)};
  auto chunked = std::make_shared<arrow::ChunkedArray>(std::move(chunks));
  return Report(arrow::ExportDeviceChunkedArray(chunked, arrow::DeviceAllocationType::kCPU, out));
}

/// The arrays of a stream, concatenated.
int peer_chunks_import(ArrowDeviceArrayStream* stream, PeerArray** out) {
  const auto read = [&]() -> Result<std::shared_ptr<Array>> {
    ARROW_ASSIGN_OR_RAISE(auto chunked, arrow::ImportDeviceChunkedArray(stream));
    RETURN_NOT_OK(chunked->ValidateFull());
    return arrow::Concatenate(chunked->chunks());
  };
  return Give(read(), out);
}

}  // extern "C"
