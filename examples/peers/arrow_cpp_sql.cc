// SPDX-License-Identifier: Apache-2.0
// SQL on the device over record batches of Arrow C++, with a table of Arrow C++ as the result.
#include <iostream>
#include <string>

#include "arrow/c/abi.h"
#include "arrow/c/bridge.h"
#include "arrow/json/from_string.h"
#include "arrow/record_batch.h"
#include "arrow/scalar.h"
#include "arrow/table.h"
#include "arrow/type.h"
#include "peers.h"

arrow::Result<std::shared_ptr<arrow::Table>> Query(const char* sql, std::shared_ptr<arrow::RecordBatchReader> reader) {
  ArrowDeviceArrayStream rows, result;
  ARROW_RETURN_NOT_OK(arrow::ExportDeviceRecordBatchReader(std::move(reader), &rows));
  // The result is in host memory. arrow_cpp_opencl.cc leaves it on an OpenCL device.
  if (char* error = peers_query(sql, &rows, /*on_device=*/0, &result)) {
    const auto failed = arrow::Status::UnknownError(error);
    peers_free_error(error);
    return failed;
  }
  ARROW_ASSIGN_OR_RAISE(auto batches, arrow::ImportDeviceRecordBatchReader(&result));
  return batches->ToTable();
}

arrow::Status Run() {
  const auto columns = arrow::schema({arrow::field("city", arrow::utf8()), arrow::field("people", arrow::int64())});
  ARROW_ASSIGN_OR_RAISE(auto city, arrow::json::ArrayFromJSONString(arrow::utf8(), R"(["Bern", "Oslo", null, "Oslo"])"));
  ARROW_ASSIGN_OR_RAISE(auto people, arrow::json::ArrayFromJSONString(arrow::int64(), "[134000, 700000, 7, 9000]"));
  const auto batch = arrow::RecordBatch::Make(columns, 4, {city, people});

  ARROW_ASSIGN_OR_RAISE(auto reader, arrow::RecordBatchReader::Make({batch, batch}, columns));
  ARROW_ASSIGN_OR_RAISE(auto sums, Query("SELECT sum(people) AS people FROM t WHERE city = 'Oslo'", reader));
  std::cout << sums->ToString();
  ARROW_ASSIGN_OR_RAISE(auto sum, sums->column(0)->GetScalar(0));
  if (sum->ToString() != "1418000") return arrow::Status::Invalid("expected 1418000, got ", sum->ToString());

  ARROW_ASSIGN_OR_RAISE(reader, arrow::RecordBatchReader::Make({batch}, columns));
  std::cout << Query("SELECT missing FROM t", reader).status().ToString() << std::endl;
  return arrow::Status::OK();
}

int main() {
  const auto status = Run();
  if (!status.ok()) std::cerr << status.ToString() << std::endl;
  return status.ok() ? 0 : 1;
}
