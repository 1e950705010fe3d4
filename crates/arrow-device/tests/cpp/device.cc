// SPDX-License-Identifier: Apache-2.0
// A simulated device of the type OPENCL. Its buffers are handles rather than addresses, so
// dereferencing one crashes. Data behind an event appears when a consumer waits for that event;
// earlier reads are counted, and return 0xAB.

#include <cstring>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "arrow/buffer.h"
#include "arrow/io/interfaces.h"
#include "peer.h"

using arrow::Buffer;
using arrow::Device;
using arrow::MemoryManager;
using arrow::Result;
using arrow::Status;

namespace {

/// Outside of the address space: user addresses of x86-64 and AArch64 end below 2^56. The bits
/// below hold the index of the memory and the byte offset.
constexpr uint64_t kTag = uint64_t{0x4D} << 56;
constexpr int kOffsetBits = 32;
constexpr uint64_t kOffsetMask = (uint64_t{1} << kOffsetBits) - 1;

enum Count { kLive, kEvents, kEarly, kBreaches, kWraps, kWaits, kReads, kCounts };

struct Memory {
  std::vector<uint8_t> bytes;
  /// The content after the event.
  std::vector<uint8_t> pending;
  void* event;
};

struct Event {
  bool complete;
};

class Table {
 public:
  uint64_t Put(const void* from, size_t size, void* event) {
    std::lock_guard<std::mutex> lock(mutex_);
    Memory memory{{}, {}, event};
    const auto* bytes = static_cast<const uint8_t*>(from);
    if (event != nullptr && !events_.at(event).complete) {
      memory.pending.assign(bytes, bytes + size);
      memory.bytes.assign(size, 0xAB);
    } else {
      memory.bytes.assign(bytes, bytes + size);
    }
    const uint64_t id = ++last_;
    memories_[id] = std::move(memory);
    return kTag | (id << kOffsetBits);
  }

  bool Get(uint64_t handle, size_t size, void* to) {
    std::lock_guard<std::mutex> lock(mutex_);
    ++counts_[kReads];
    const auto found = memories_.find((handle & ~kTag) >> kOffsetBits);
    const uint64_t offset = handle & kOffsetMask;
    if ((handle & kTag) != kTag || found == memories_.end() || offset + size > found->second.bytes.size()) {
      ++counts_[kBreaches];
      return false;
    }
    if (!found->second.pending.empty()) ++counts_[kEarly];
    std::memcpy(to, found->second.bytes.data() + offset, size);
    return true;
  }

  void Free(uint64_t handle) {
    std::lock_guard<std::mutex> lock(mutex_);
    if (memories_.erase((handle & ~kTag) >> kOffsetBits) == 0) ++counts_[kBreaches];
  }

  void* NewEvent() {
    std::lock_guard<std::mutex> lock(mutex_);
    void* event = new uint64_t{0};
    events_[event] = Event{false};
    return event;
  }

  bool Wait(void* event) {
    std::lock_guard<std::mutex> lock(mutex_);
    ++counts_[kWaits];
    const auto found = events_.find(event);
    if (found == events_.end()) {
      ++counts_[kBreaches];
      return false;
    }
    found->second.complete = true;
    for (auto& [id, memory] : memories_) {
      if (memory.event == event && !memory.pending.empty()) memory.bytes = std::move(memory.pending);
    }
    return true;
  }

  void FreeEvent(void* event) {
    std::lock_guard<std::mutex> lock(mutex_);
    if (events_.erase(event) == 0) {
      ++counts_[kBreaches];
      return;
    }
    delete static_cast<uint64_t*>(event);
  }

  void Wrapped(void* event) {
    std::lock_guard<std::mutex> lock(mutex_);
    ++counts_[kWraps];
    if (events_.count(event) == 0) ++counts_[kBreaches];
  }

  int64_t Counted(int which) {
    std::lock_guard<std::mutex> lock(mutex_);
    switch (which) {
      case kLive:
        return static_cast<int64_t>(memories_.size());
      case kEvents:
        return static_cast<int64_t>(events_.size());
      default:
        return counts_[which];
    }
  }

  void Reset() {
    std::lock_guard<std::mutex> lock(mutex_);
    for (auto& count : counts_) count = 0;
  }

 private:
  std::mutex mutex_;
  std::map<uint64_t, Memory> memories_;
  std::map<void*, Event> events_;
  int64_t counts_[kCounts] = {};
  uint64_t last_ = 0;
};

Table& table() {
  // Never destroyed: Arrow's own globals may hold buffers until the end.
  static Table* table = new Table();
  return *table;
}

/// The event of this thread's uploads.
thread_local void* upload_event = nullptr;

class Sync : public Device::SyncEvent {
 public:
  Sync(void* event, release_fn_t release) : SyncEvent(event, std::move(release)) {}
  Status Wait() override {
    return table().Wait(get_raw()) ? Status::OK() : Status::Invalid("an unknown event");
  }
  Status Record(const Device::Stream&) override { return Status::NotImplemented("no streams"); }
};

class Handle : public Buffer {
 public:
  Handle(uint64_t handle, int64_t size, std::shared_ptr<MemoryManager> manager)
      : Buffer(reinterpret_cast<const uint8_t*>(handle), size, std::move(manager), nullptr,
               arrow::DeviceAllocationType::kOPENCL),
        handle_(handle) {}
  ~Handle() override { table().Free(handle_); }

 private:
  uint64_t handle_;
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
    return Upload(std::vector<uint8_t>(static_cast<size_t>(size)).data(), size);
  }
  Result<std::shared_ptr<Device::SyncEvent>> WrapDeviceSyncEvent(void* event,
                                                                Device::SyncEvent::release_fn_t release) override {
    table().Wrapped(event);
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
    return Upload(buffer.data(), buffer.size());
  }
  Result<std::unique_ptr<Buffer>> CopyNonOwnedTo(const Buffer& buffer,
                                                 const std::shared_ptr<MemoryManager>& to) override {
    if (!to->is_cpu()) return nullptr;
    ARROW_ASSIGN_OR_RAISE(auto copy, to->AllocateBuffer(buffer.size()));
    if (!table().Get(buffer.address(), static_cast<size_t>(buffer.size()), copy->mutable_data())) {
      return Status::Invalid("no such device memory");
    }
    return copy;
  }

 private:
  Result<std::unique_ptr<Buffer>> Upload(const uint8_t* data, int64_t size) {
    const uint64_t handle = table().Put(data, static_cast<size_t>(size), upload_event);
    return std::make_unique<Handle>(handle, size, shared_from_this());
  }
};

class Card : public Device {
 public:
  explicit Card(int64_t id) : id_(id) {}
  const char* type_name() const override { return "card"; }
  std::string ToString() const override { return "card " + std::to_string(id_); }
  bool Equals(const Device& other) const override {
    return other.device_type() == device_type() && other.device_id() == id_;
  }
  int64_t device_id() const override { return id_; }
  arrow::DeviceAllocationType device_type() const override { return arrow::DeviceAllocationType::kOPENCL; }
  std::shared_ptr<MemoryManager> default_memory_manager() override {
    return std::make_shared<Manager>(shared_from_this());
  }

 private:
  int64_t id_;
};

std::shared_ptr<MemoryManager> ManagerOf(int64_t id) { return std::make_shared<Card>(id)->default_memory_manager(); }

std::shared_ptr<Device::SyncEvent> NewSync() {
  return std::make_shared<Sync>(table().NewEvent(), [](void* event) { table().FreeEvent(event); });
}

/// Waits for the event of an import, which only the array's buffers hold.
Status WaitForBuffers(const arrow::ArrayData& data) {
  for (const auto& buffer : data.buffers) {
    const auto event = buffer ? buffer->device_sync_event() : nullptr;
    if (event) return event->Wait();
  }
  for (const auto& child : data.child_data) RETURN_NOT_OK(WaitForBuffers(*child));
  return Status::OK();
}

}  // namespace

extern "C" {

/// Registers the device for imports; once per process.
int peer_device_register() {
  return Report(arrow::RegisterDeviceMapper(
      arrow::DeviceAllocationType::kOPENCL,
      [](int64_t id) -> Result<std::shared_ptr<MemoryManager>> { return ManagerOf(id); }));
}

uint64_t peer_device_put(const void* bytes, size_t size, void* event) { return table().Put(bytes, size, event); }
int peer_device_get(uint64_t handle, void* out, size_t size) { return table().Get(handle, size, out) ? 0 : -1; }
void peer_device_free(uint64_t handle) { table().Free(handle); }
void* peer_event_new() { return table().NewEvent(); }
int peer_event_wait(void* event) { return table().Wait(event) ? 0 : -1; }
void peer_event_free(void* event) { table().FreeEvent(event); }
int64_t peer_device_count(int which) { return table().Counted(which); }
void peer_device_reset() { table().Reset(); }

int peer_array_to_device(PeerArray* array, int64_t id, int with_event, PeerArray** out) {
  auto sync = with_event ? NewSync() : nullptr;
  upload_event = sync ? sync->get_raw() : nullptr;
  auto copy = array->array->CopyTo(ManagerOf(id));
  upload_event = nullptr;
  if (!copy.ok()) return Report(copy.status());
  *out = new PeerArray{*copy, sync};
  return 0;
}

/// Waits for the event, if any, then copies.
int peer_array_to_host(PeerArray* array, PeerArray** out) {
  const auto copy = [&]() -> Result<std::shared_ptr<arrow::Array>> {
    RETURN_NOT_OK(WaitForBuffers(*array->array->data()));
    ARROW_ASSIGN_OR_RAISE(auto host, array->array->CopyTo(arrow::default_cpu_memory_manager()));
    RETURN_NOT_OK(host->ValidateFull());
    return host;
  };
  return Give(copy(), out);
}

int peer_batch_to_device(PeerBatch* batch, int64_t id, int with_event, PeerBatch** out) {
  auto sync = with_event ? NewSync() : nullptr;
  upload_event = sync ? sync->get_raw() : nullptr;
  auto copy = batch->batch->CopyTo(ManagerOf(id));
  upload_event = nullptr;
  if (!copy.ok()) return Report(copy.status());
  arrow::ArrayDataVector columns;
  for (const auto& column : (*copy)->columns()) columns.push_back(column->data());
  *out = new PeerBatch{arrow::RecordBatch::Make(batch->batch->schema(), batch->batch->num_rows(), std::move(columns),
                                                arrow::DeviceAllocationType::kOPENCL, sync)};
  return 0;
}

int peer_batch_to_host(PeerBatch* batch, PeerBatch** out) {
  const auto copy = [&]() -> Result<std::shared_ptr<arrow::RecordBatch>> {
    if (batch->batch->GetSyncEvent()) RETURN_NOT_OK(batch->batch->GetSyncEvent()->Wait());
    ARROW_ASSIGN_OR_RAISE(auto host, batch->batch->CopyTo(arrow::default_cpu_memory_manager()));
    RETURN_NOT_OK(host->ValidateFull());
    return host;
  };
  return Give(copy(), out);
}

}  // extern "C"
