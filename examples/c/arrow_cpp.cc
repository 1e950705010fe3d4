// SPDX-License-Identifier: Apache-2.0
// SQL over record batches of Arrow C++, with a table of Arrow C++ as the result.
//
//     c++ -std=c++20 arrow_cpp.cc $(pkg-config --cflags --libs devicefusion arrow) -o arrow_cpp
//     ./arrow_cpp         # or with a device: none, opencl, cuda, '#1', a part of its name
#include <arrow/c/abi.h>
#include <arrow/c/bridge.h>
#include <arrow/json/from_string.h>
#include <arrow/record_batch.h>
#include <arrow/table.h>
#include <arrow/type.h>
#include <devicefusion.h>

#include <cstdlib>
#include <iostream>
#include <memory>
#include <string>

// Deleter that calls one of the library's functions.
template <auto free>
struct Free {
  template <typename T>
  void operator()(T* object) const { free(object); }
};
using Config = std::unique_ptr<devicefusion_context_config, Free<devicefusion_context_config_free>>;
using Context = std::unique_ptr<devicefusion_context, Free<devicefusion_context_free>>;
using Query = std::unique_ptr<devicefusion_query, Free<devicefusion_query_free>>;
using String = std::unique_ptr<char, Free<std::free>>;

// A code and its message as an Arrow status.
arrow::Status Checked(devicefusion_context* context, int code) {
  if (code == DEVICEFUSION_SUCCESS) return arrow::Status::OK();
  const String message(devicefusion_context_get_error(context));
  const std::string error = message ? message.get() : "no message";
  switch (code) {
    case DEVICEFUSION_PROGRAM_ERROR: return arrow::Status::Invalid(error);
    case DEVICEFUSION_OUT_OF_MEMORY: return arrow::Status::OutOfMemory(error);
    default: return arrow::Status::UnknownError(error);
  }
}

arrow::Status Register(devicefusion_context* context, const char* name, std::shared_ptr<arrow::RecordBatchReader> reader) {
  ArrowArrayStream rows;
  ARROW_RETURN_NOT_OK(arrow::ExportRecordBatchReader(std::move(reader), &rows));
  return Checked(context, devicefusion_register_stream(context, name, &rows, DEVICEFUSION_TABLE_HOST));
}

arrow::Result<std::shared_ptr<arrow::Table>> Sql(devicefusion_context* context, const char* sql) {
  devicefusion_query* made = nullptr;
  ARROW_RETURN_NOT_OK(Checked(context, devicefusion_query_new(context, sql, &made)));
  const Query query(made);
  ArrowArrayStream result;
  ARROW_RETURN_NOT_OK(Checked(context, devicefusion_query_stream(query.get(), &result)));
  ARROW_ASSIGN_OR_RAISE(auto batches, arrow::ImportRecordBatchReader(&result));
  return batches->ToTable();
}

arrow::Status Run(const char* device) {
  const Config config(devicefusion_context_config_new());
  ARROW_RETURN_NOT_OK(Checked(nullptr, devicefusion_context_config_set_device(config.get(), device)));
  const Context context(devicefusion_context_new(config.get()));
  if (const String problem(devicefusion_context_get_error(context.get())); problem) {
    return arrow::Status::UnknownError(problem.get());
  }

  const auto columns = arrow::schema({arrow::field("city", arrow::utf8()), arrow::field("people", arrow::int64())});
  ARROW_ASSIGN_OR_RAISE(auto city, arrow::json::ArrayFromJSONString(arrow::utf8(), R"(["Bern", "Oslo", null, "Oslo"])"));
  ARROW_ASSIGN_OR_RAISE(auto people, arrow::json::ArrayFromJSONString(arrow::int64(), "[134000, 700000, 7, 9000]"));
  const auto batch = arrow::RecordBatch::Make(columns, 4, {city, people});
  ARROW_ASSIGN_OR_RAISE(auto reader, arrow::RecordBatchReader::Make({batch, batch->Slice(1, 2)}, columns));
  ARROW_RETURN_NOT_OK(Register(context.get(), "cities", reader));

  ARROW_ASSIGN_OR_RAISE(auto sums, Sql(context.get(),
                                       "SELECT city, sum(people) AS people FROM cities WHERE city IS NOT NULL "
                                       "GROUP BY city ORDER BY people"));
  std::cout << sums->ToString();
  std::cout << Sql(context.get(), "SELECT missing FROM cities").status().ToString() << std::endl;
  return arrow::Status::OK();
}

int main(int argc, char** argv) {
  const auto status = Run(argc > 1 ? argv[1] : "auto");
  if (!status.ok()) std::cerr << status.ToString() << std::endl;
  return status.ok() ? 0 : 1;
}
