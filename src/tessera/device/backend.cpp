#include "tessera/device/backend.h"

#include <ATen/Context.h>

#include <algorithm>
#include <atomic>
#include <utility>

namespace tessera::device {

namespace {

std::atomic<const Backend*> chosen = nullptr;
std::atomic<int> chosen_index = 0;
Block chosen_block;  // set before there are other threads
thread_local int on_host = 0;

}  // namespace

void use(const Backend& backend, int index) {
  // fp32 means fp32: by default LibTorch lets convolutions round their operands to TF32, with 10 bits
  at::globalContext().setAllowTF32CuBLAS(false);
  at::globalContext().setAllowTF32CuDNN(false);
  // sums of products are fp32: by default cuBLAS may add the parts of a product of 16-bit operands in 16 bits
  at::globalContext().setAllowFP16ReductionCuBLAS(false);
  at::globalContext().setAllowBF16ReductionCuBLAS(false);
  chosen_index = index;
  chosen = &backend;
  enter_thread();
}

void set_block(Block block) { chosen_block = block; }
Block block() { return chosen_block; }

const Backend* used() { return on_host > 0 ? nullptr : chosen.load(std::memory_order_acquire); }

OnHost::OnHost() { ++on_host; }
OnHost::~OnHost() { --on_host; }
bool OnHost::active() { return on_host > 0; }

c10::Device here() {
  const Backend* backend = used();
  return backend ? c10::Device(backend->type, static_cast<c10::DeviceIndex>(chosen_index)) : c10::Device(c10::kCPU);
}

void enter_thread() {
  if (const Backend* backend = used()) backend->place(chosen_index);
}

namespace {

struct Buffer {
  void* data = nullptr;
  int64_t bytes = 0;
  ~Buffer() {
    if (data) used()->give(data);
  }
};

}  // namespace

namespace {
std::atomic<int64_t> requests = 0;
}

int64_t memory_requests() { return requests.load(std::memory_order_relaxed); }
void count_memory_request() { requests.fetch_add(1, std::memory_order_relaxed); }

namespace {
thread_local WorkspaceLimit* innermost_limit = nullptr;
}

WorkspaceLimit::WorkspaceLimit(int64_t bytes, std::vector<int64_t> tensors)
    : bytes_(bytes), tensors_(std::move(tensors)), before_(std::exchange(innermost_limit, this)) {}
WorkspaceLimit::~WorkspaceLimit() { innermost_limit = before_; }

bool WorkspaceLimit::allows(int64_t bytes) {
  WorkspaceLimit* limit = innermost_limit;
  if (!limit || bytes <= limit->bytes_ || std::ranges::find(limit->tensors_, bytes) != limit->tensors_.end())
    return true;
  ++limit->refused_;
  return false;
}

void* scratch(int which, int64_t bytes) {
  static thread_local Buffer buffers[4];
  Buffer& buffer = buffers[which];
  if (buffer.bytes >= bytes) return buffer.data;
  if (buffer.data) used()->give(buffer.data);
  buffer.data = used()->take(bytes);
  count_memory_request();
  buffer.bytes = buffer.data ? bytes : 0;
  return buffer.data;
}

}  // namespace tessera::device
