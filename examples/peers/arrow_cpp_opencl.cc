// SPDX-License-Identifier: Apache-2.0
// Arrow C++ with memory of an OpenCL device. Record batches in cl_mem are the query's input, and
// the result is read from the query's cl_mem. Arrow C++ has no OpenCL device, so this file defines
// one.
//
// OpenCL is opened at run time, so the build needs neither its headers nor its library.
#include <dlfcn.h>

#include <cstdint>
#include <iostream>
#include <memory>
#include <string>
#include <vector>

#include "arrow/buffer.h"
#include "arrow/c/abi.h"
#include "arrow/c/bridge.h"
#include "arrow/device.h"
#include "arrow/io/interfaces.h"
#include "arrow/json/from_string.h"
#include "arrow/record_batch.h"
#include "arrow/type.h"
#include "peers.h"

using arrow::Buffer;
using arrow::Device;
using arrow::MemoryManager;
using arrow::Result;
using arrow::Status;

// The declarations that this example needs of CL/cl.h. Handles are pointers.
using Handle = void*;
constexpr uint32_t kMemContext = 0x1106, kContextDevices = 0x1081;
constexpr uint64_t kReadWrite = 1, kAnyDevice = 0xFFFFFFFF;

struct OpenCl {
  int32_t (*clGetPlatformIDs)(uint32_t, Handle*, uint32_t*);
  int32_t (*clGetDeviceIDs)(Handle, uint64_t, uint32_t, Handle*, uint32_t*);
  Handle (*clCreateContext)(const intptr_t*, uint32_t, const Handle*, void*, void*, int32_t*);
  int32_t (*clGetContextInfo)(Handle, uint32_t, size_t, void*, size_t*);
  Handle (*clCreateCommandQueue)(Handle, Handle, uint64_t, int32_t*);
  int32_t (*clReleaseCommandQueue)(Handle);
  Handle (*clCreateBuffer)(Handle, uint64_t, size_t, void*, int32_t*);
  int32_t (*clReleaseMemObject)(Handle);
  int32_t (*clGetMemObjectInfo)(Handle, uint32_t, size_t, void*, size_t*);
  int32_t (*clEnqueueReadBuffer)(Handle, Handle, uint32_t, size_t, size_t, void*, uint32_t, const Handle*, Handle*);
  int32_t (*clEnqueueWriteBuffer)(Handle, Handle, uint32_t, size_t, size_t, const void*, uint32_t, const Handle*, Handle*);
  int32_t (*clWaitForEvents)(uint32_t, const Handle*);

  static Result<OpenCl> Open() {
    void* library = dlopen("libOpenCL.so.1", RTLD_NOW);
    if (library == nullptr) return Status::IOError(dlerror());
    OpenCl cl;
    const auto find = [&](const char* name, auto& function) {
      function = reinterpret_cast<std::decay_t<decltype(function)>>(dlsym(library, name));
      return function != nullptr;
    };
#define FIND(name) \
  if (!find(#name, cl.name)) return Status::IOError("libOpenCL.so.1 has no " #name)
    FIND(clGetPlatformIDs);
    FIND(clGetDeviceIDs);
    FIND(clCreateContext);
    FIND(clGetContextInfo);
    FIND(clCreateCommandQueue);
    FIND(clReleaseCommandQueue);
    FIND(clCreateBuffer);
    FIND(clReleaseMemObject);
    FIND(clGetMemObjectInfo);
    FIND(clEnqueueReadBuffer);
    FIND(clEnqueueWriteBuffer);
    FIND(clWaitForEvents);
#undef FIND
    return cl;
  }
};

Status Check(int32_t code, const char* call) {
  return code == 0 ? Status::OK() : Status::IOError(call, " failed with ", code);
}

/// A device with a context for copies to it. It lives as long as the process, because Arrow's
/// buffers may.
struct Card {
  OpenCl cl;
  Handle context;

  static Result<Card*> Open() {
    ARROW_ASSIGN_OR_RAISE(auto cl, OpenCl::Open());
    Handle platform, device;
    ARROW_RETURN_NOT_OK(Check(cl.clGetPlatformIDs(1, &platform, nullptr), "clGetPlatformIDs"));
    ARROW_RETURN_NOT_OK(Check(cl.clGetDeviceIDs(platform, kAnyDevice, 1, &device, nullptr), "clGetDeviceIDs"));
    int32_t code;
    Handle context = cl.clCreateContext(nullptr, 1, &device, nullptr, nullptr, &code);
    ARROW_RETURN_NOT_OK(Check(code, "clCreateContext"));
    return new Card{cl, context};
  }

  /// Copies with a new queue of the memory's context, and waits for the copy.
  template <typename Copy>
  Status WithQueue(Handle memory, Copy copy) {
    Handle of, device;
    ARROW_RETURN_NOT_OK(Check(cl.clGetMemObjectInfo(memory, kMemContext, sizeof of, &of, nullptr), "clGetMemObjectInfo"));
    ARROW_RETURN_NOT_OK(Check(cl.clGetContextInfo(of, kContextDevices, sizeof device, &device, nullptr), "clGetContextInfo"));
    int32_t code;
    Handle queue = cl.clCreateCommandQueue(of, device, 0, &code);
    ARROW_RETURN_NOT_OK(Check(code, "clCreateCommandQueue"));
    code = copy(queue);
    cl.clReleaseCommandQueue(queue);
    return Check(code, "a copy");
  }
};

Card* card = nullptr;

/// Device memory that this program allocated. Its address is the cl_mem.
class Owned : public Buffer {
 public:
  Owned(Handle memory, int64_t size, std::shared_ptr<MemoryManager> manager)
      : Buffer(static_cast<const uint8_t*>(memory), size, std::move(manager), nullptr,
               arrow::DeviceAllocationType::kOPENCL),
        memory_(memory) {}
  ~Owned() override { card->cl.clReleaseMemObject(memory_); }

 private:
  Handle memory_;
};

class Sync : public Device::SyncEvent {
 public:
  Sync(void* event, release_fn_t release) : SyncEvent(event, std::move(release)) {}
  /// The raw event points to the cl_event.
  Status Wait() override { return Check(card->cl.clWaitForEvents(1, static_cast<Handle*>(get_raw())), "clWaitForEvents"); }
  Status Record(const Device::Stream&) override { return Status::NotImplemented("streams"); }
};

class Manager : public MemoryManager {
 public:
  explicit Manager(const std::shared_ptr<Device>& device) : MemoryManager(device) {}

  Result<std::shared_ptr<arrow::io::RandomAccessFile>> GetBufferReader(std::shared_ptr<Buffer>) override {
    return Status::NotImplemented("readers of device buffers");
  }
  Result<std::shared_ptr<arrow::io::OutputStream>> GetBufferWriter(std::shared_ptr<Buffer>) override {
    return Status::NotImplemented("writers of device buffers");
  }
  Result<std::unique_ptr<Buffer>> AllocateBuffer(int64_t size) override {
    int32_t code;
    // OpenCL has no empty buffers.
    Handle memory = card->cl.clCreateBuffer(card->context, kReadWrite, size > 0 ? size : 1, nullptr, &code);
    ARROW_RETURN_NOT_OK(Check(code, "clCreateBuffer"));
    return std::make_unique<Owned>(memory, size, shared_from_this());
  }
  Result<std::shared_ptr<Device::SyncEvent>> WrapDeviceSyncEvent(void* event,
                                                                Device::SyncEvent::release_fn_t release) override {
    return std::make_shared<Sync>(event, std::move(release));
  }

 protected:
  Result<std::shared_ptr<Buffer>> CopyBufferFrom(const std::shared_ptr<Buffer>& buffer,
                                                 const std::shared_ptr<MemoryManager>& from) override {
    return CopyNonOwnedFrom(*buffer, from);
  }
  Result<std::shared_ptr<Buffer>> CopyBufferTo(const std::shared_ptr<Buffer>& buffer,
                                               const std::shared_ptr<MemoryManager>& to) override {
    return CopyNonOwnedTo(*buffer, to);
  }
  Result<std::unique_ptr<Buffer>> CopyNonOwnedFrom(const Buffer& buffer,
                                                   const std::shared_ptr<MemoryManager>& from) override {
    if (!from->is_cpu()) return nullptr;
    ARROW_ASSIGN_OR_RAISE(auto copy, AllocateBuffer(buffer.size()));
    const auto memory = reinterpret_cast<Handle>(copy->address());
    const auto write = [&](Handle queue) {
      return card->cl.clEnqueueWriteBuffer(queue, memory, 1, 0, buffer.size(), buffer.data(), 0, nullptr, nullptr);
    };
    if (buffer.size() > 0) ARROW_RETURN_NOT_OK(card->WithQueue(memory, write));
    return copy;
  }
  Result<std::unique_ptr<Buffer>> CopyNonOwnedTo(const Buffer& buffer,
                                                 const std::shared_ptr<MemoryManager>& to) override {
    if (!to->is_cpu()) return nullptr;
    ARROW_ASSIGN_OR_RAISE(auto copy, to->AllocateBuffer(buffer.size()));
    const auto memory = reinterpret_cast<Handle>(buffer.address());
    const auto read = [&](Handle queue) {
      return card->cl.clEnqueueReadBuffer(queue, memory, 1, 0, buffer.size(), copy->mutable_data(), 0, nullptr, nullptr);
    };
    if (buffer.size() > 0) ARROW_RETURN_NOT_OK(card->WithQueue(memory, read));
    return copy;
  }
};

class OpenClDevice : public Device {
 public:
  const char* type_name() const override { return "opencl"; }
  std::string ToString() const override { return "the first OpenCL device"; }
  bool Equals(const Device& other) const override { return other.device_type() == device_type(); }
  int64_t device_id() const override { return 0; }
  arrow::DeviceAllocationType device_type() const override { return arrow::DeviceAllocationType::kOPENCL; }
  std::shared_ptr<MemoryManager> default_memory_manager() override {
    return std::make_shared<Manager>(shared_from_this());
  }
};

std::shared_ptr<MemoryManager> OnDevice() { return std::make_shared<OpenClDevice>()->default_memory_manager(); }

/// Runs a query over device batches. Arrow C++ copies the result to the host.
Result<std::shared_ptr<arrow::RecordBatch>> Query(const char* sql, std::shared_ptr<arrow::RecordBatchReader> reader) {
  ArrowDeviceArrayStream rows, result;
  ARROW_RETURN_NOT_OK(arrow::ExportDeviceRecordBatchReader(std::move(reader), &rows));
  if (char* error = peers_query(sql, &rows, /*on_device=*/1, &result)) {
    const auto failed = Status::UnknownError(error);
    peers_free_error(error);
    return failed;
  }
  const auto mapper = [](ArrowDeviceType, int64_t) -> Result<std::shared_ptr<MemoryManager>> { return OnDevice(); };
  ARROW_ASSIGN_OR_RAISE(auto batches, arrow::ImportDeviceRecordBatchReader(&result, mapper));
  if (batches->device_type() != arrow::DeviceAllocationType::kOPENCL) return Status::Invalid("the result left the device");
  ARROW_ASSIGN_OR_RAISE(auto batch, batches->Next());
  if (batch == nullptr) return Status::Invalid("no rows");
  if (batch->GetSyncEvent() != nullptr) ARROW_RETURN_NOT_OK(batch->GetSyncEvent()->Wait());
  ARROW_ASSIGN_OR_RAISE(auto host, batch->CopyTo(arrow::default_cpu_memory_manager()));
  ARROW_RETURN_NOT_OK(host->ValidateFull());
  return host;
}

Status Run() {
  ARROW_ASSIGN_OR_RAISE(card, Card::Open());
  const auto columns = arrow::schema({arrow::field("city", arrow::utf8()), arrow::field("people", arrow::int64())});
  ARROW_ASSIGN_OR_RAISE(auto city, arrow::json::ArrayFromJSONString(arrow::utf8(), R"(["Bern", "Oslo", null, "Oslo"])"));
  ARROW_ASSIGN_OR_RAISE(auto people, arrow::json::ArrayFromJSONString(arrow::int64(), "[134000, 700000, 7, null]"));
  const auto host = arrow::RecordBatch::Make(columns, 4, {city, people});

  std::vector<std::shared_ptr<arrow::RecordBatch>> batches;
  for (int i = 0; i < 3; ++i) {
    ARROW_ASSIGN_OR_RAISE(auto batch, host->CopyTo(OnDevice()));
    batches.push_back(std::move(batch));
  }
  ARROW_ASSIGN_OR_RAISE(auto reader, arrow::RecordBatchReader::Make(batches, columns, arrow::DeviceAllocationType::kOPENCL));
  ARROW_ASSIGN_OR_RAISE(
      auto sums, Query("SELECT count(*) AS rows, count(city) AS cities, sum(people) AS people FROM t", reader));
  std::cout << sums->ToString();
  ARROW_ASSIGN_OR_RAISE(reader, arrow::RecordBatchReader::Make({batches[0]}, columns, arrow::DeviceAllocationType::kOPENCL));
  ARROW_ASSIGN_OR_RAISE(auto rows, Query("SELECT people * 2 AS twice, people > 200000 AS large FROM t", reader));
  std::cout << rows->ToString();
  return Status::OK();
}

int main() {
  const auto status = Run();
  if (!status.ok()) std::cerr << status.ToString() << std::endl;
  return status.ok() ? 0 : 1;
}
