#include "tessera/cuda/nccl.h"

#include <c10/cuda/CUDAStream.h>
#include <c10/util/Exception.h>
#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <nccl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <mutex>
#include <thread>
#include <type_traits>
#include <utility>

namespace tessera::cuda {

namespace {

using device::Communicator;
using device::Message;

/// The functions of libnccl that are used, of the copy that LibTorch has loaded.
struct Library {
  std::string absence;
  int version = 0;
  decltype(&ncclGetVersion) get_version = nullptr;
  decltype(&ncclGetUniqueId) get_unique_id = nullptr;
  decltype(&ncclCommInitRankConfig) init = nullptr;
  decltype(&ncclCommGetAsyncError) get_async_error = nullptr;
  decltype(&ncclCommAbort) abort = nullptr;
  decltype(&ncclCommDestroy) destroy = nullptr;
  decltype(&ncclCommFinalize) finalize = nullptr;
  decltype(&ncclGroupStart) group_start = nullptr;
  decltype(&ncclGroupEnd) group_end = nullptr;
  decltype(&ncclSend) send = nullptr;
  decltype(&ncclRecv) recv = nullptr;
  decltype(&ncclAllGather) all_gather = nullptr;
  decltype(&ncclReduceScatter) reduce_scatter = nullptr;
  decltype(&ncclAllReduce) all_reduce = nullptr;
  decltype(&ncclGetErrorString) error_string = nullptr;
  decltype(&ncclGetLastError) last_error = nullptr;
  // null in libraries before 2.19
  decltype(&ncclMemAlloc) mem_alloc = nullptr;
  decltype(&ncclMemFree) mem_free = nullptr;
  decltype(&ncclCommRegister) register_range = nullptr;
  // null in libraries before 2.27
  decltype(&ncclCommWindowRegister) window_register = nullptr;
  decltype(&ncclCommWindowDeregister) window_deregister = nullptr;
  int log = -1;  // a file in memory that the library writes its log to; negative: somebody else reads it
};

constexpr int kOldest = NCCL_VERSION(2, 18, 0);  // communicators that do not block, and abort of what they began

/// What NCCL finds of ways between GPUs it tells in its log alone. Where nobody has asked for that, it goes to us.
int open_log() {
  if (std::getenv("NCCL_DEBUG") || std::getenv("NCCL_DEBUG_FILE")) return -1;
  const int file = memfd_create("nccl-log", 0);
  if (file < 0) return -1;
  setenv("NCCL_DEBUG", "INFO", 1);
  setenv("NCCL_DEBUG_SUBSYS", "INIT,GRAPH", /*overwrite=*/0);
  setenv("NCCL_DEBUG_FILE", ("/proc/self/fd/" + std::to_string(file)).c_str(), 1);
  return file;
}

Library load() {
  Library found;
  found.log = open_log();
  void* library = dlopen("libnccl.so.2", RTLD_LAZY | RTLD_LOCAL);
  if (!library) {
    found.absence = std::string("NCCL cannot be loaded (") + dlerror() + ")";
    return found;
  }
  const auto get = [&](auto& function, const char* name) {
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(library, name));
    if (!function) found.absence = std::string("libnccl.so.2 has no ") + name;
  };
  get(found.get_version, "ncclGetVersion");
  get(found.get_unique_id, "ncclGetUniqueId");
  get(found.init, "ncclCommInitRankConfig");
  get(found.get_async_error, "ncclCommGetAsyncError");
  get(found.abort, "ncclCommAbort");
  get(found.destroy, "ncclCommDestroy");
  get(found.finalize, "ncclCommFinalize");
  get(found.group_start, "ncclGroupStart");
  get(found.group_end, "ncclGroupEnd");
  get(found.send, "ncclSend");
  get(found.recv, "ncclRecv");
  get(found.all_gather, "ncclAllGather");
  get(found.reduce_scatter, "ncclReduceScatter");
  get(found.all_reduce, "ncclAllReduce");
  get(found.error_string, "ncclGetErrorString");
  get(found.last_error, "ncclGetLastError");
  if (!found.absence.empty()) return found;
  const auto try_get = [&](auto& function, const char* name) {
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(library, name));
  };
  try_get(found.mem_alloc, "ncclMemAlloc"), try_get(found.mem_free, "ncclMemFree");
  try_get(found.register_range, "ncclCommRegister");
  try_get(found.window_register, "ncclCommWindowRegister");
  try_get(found.window_deregister, "ncclCommWindowDeregister");
  // The belt of [Note: one order of issue]: what the host issues in one order begins in it, also where streams differ.
  setenv("NCCL_LAUNCH_ORDER_IMPLICIT", "1", /*overwrite=*/0);
  if (found.get_version(&found.version) != ncclSuccess || found.version < kOldest)
    found.absence = "NCCL is older than 2.18 (" + std::to_string(found.version) + ")";
  return found;
}

const Library& library() {
  static const Library once = load();
  return once;
}

/// A communicator, and what has failed. All calls hold its lock; none of them blocks, as the communicator does not.
struct Link {
  std::string name;
  std::mutex lock;
  ncclComm_t comm = nullptr;  // null once aborted
  std::string fault;
  ncclWindow_t window = nullptr;  // the library writes it, possibly after the call
  bool opening = false;           // a window; a failure is the answer of open_window(), and no fault
  bool aborted() const { return !comm; }
};
Link& link_of(Communicator communicator) { return *static_cast<Link*>(communicator); }

/// Remembers a failure of a call. A call that is not done yet is none.
void note(Link& link, ncclResult_t result) {
  if (result == ncclSuccess || result == ncclInProgress || !link.fault.empty()) return;
  const char* last = link.aborted() ? nullptr : library().last_error(link.comm);
  link.fault = std::string("NCCL: ") + library().error_string(result) + (last && *last ? std::string(", ") + last : "");
}

/// What the communicator is doing, failures noted.
ncclResult_t look(Link& link) {
  ncclResult_t state = ncclSuccess;
  if (link.aborted()) return state;
  const ncclResult_t result = library().get_async_error(link.comm, &state);
  if (link.opening) return result == ncclSuccess ? state : result;
  note(link, result), note(link, state);
  return state;
}

std::string fault(Communicator communicator) {
  Link& link = link_of(communicator);
  const std::lock_guard lock(link.lock);
  look(link);
  return link.fault;
}

std::string version() {
  const int v = library().version;
  return "NCCL " + std::to_string(v / 10000) + "." + std::to_string(v / 100 % 100) + "." + std::to_string(v % 100);
}

std::string new_id() {
  ncclUniqueId id;
  const ncclResult_t result = library().get_unique_id(&id);
  TORCH_CHECK(result == ncclSuccess, "NCCL makes no id: ", library().error_string(result));
  return {id.internal, sizeof id.internal};
}

Communicator connect(const std::string& id, int size, int index, int channels, const std::string& name) {
  ncclUniqueId unique;
  TORCH_CHECK(id.size() == sizeof unique.internal, "an id of NCCL has ", sizeof unique.internal, " bytes, this one ",
              id.size());
  std::memcpy(unique.internal, id.data(), id.size());
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;  // a call that cannot go on returns, and the deadline is ours
  if (channels > 0) config.maxCTAs = channels;
  auto link = std::make_unique<Link>();
  link->name = name;
  config.commName = link->name.c_str();
  const ncclResult_t result = library().init(&link->comm, size, unique, index, &config);
  TORCH_CHECK(result == ncclSuccess || result == ncclInProgress, "NCCL does not begin to connect ", name, ": ",
              library().error_string(result));
  return link.release();
}

/// Lines that are whole.
std::string told() {
  static std::mutex mutex;
  static off_t read = 0;
  const std::lock_guard lock(mutex);
  std::string text;
  if (library().log < 0) return text;
  char piece[4096];
  for (ssize_t got = 0; (got = pread(library().log, piece, sizeof piece, read + static_cast<off_t>(text.size()))) > 0;)
    text.append(piece, static_cast<size_t>(got));
  text.resize(text.rfind('\n') + 1);
  read += static_cast<off_t>(text.size());
  return text;
}

/// In NCCL's own form (cuMem), which other GPUs of the machine can be shown. Of some failures NCCL keeps what it had taken by
/// then: whoever asks the driver for as much next wants to know that.
void* take(int64_t bytes, std::string& why) {
  void* data = nullptr;
  if (!library().mem_alloc || !library().mem_free) {
    why = version() + " has no ncclMemAlloc";
    return nullptr;
  }
  const ncclResult_t result = library().mem_alloc(&data, static_cast<size_t>(bytes));
  if (result == ncclSuccess) return data;
  static_cast<void>(cudaGetLastError());  // the next check must not find it
  const char* last = library().last_error(nullptr);
  why =
      std::string("ncclMemAlloc: ") + library().error_string(result) + (last && *last ? std::string(", ") + last : "");
  return nullptr;
}
void give(void* data) { static_cast<void>(library().mem_free(data)); }

/// Ranges stay registered until the communicator ends.
bool lend(Communicator communicator, void* data, int64_t bytes) {
  Link& link = link_of(communicator);
  const std::lock_guard lock(link.lock);
  void* handle = nullptr;
  if (link.aborted() || !library().register_range) return false;
  return library().register_range(link.comm, data, static_cast<size_t>(bytes), &handle) == ncclSuccess;
}

/// The window is a part of the block that ncclMemAlloc gave: NCCL 2.28 shows the members the whole block, so blocks have one
/// size, and windows begin at one offset. A communicator whose ranks do not all reach each other by NVLink or PCIe opens none
/// and says so nowhere: its collectives stay as they are.
std::optional<std::string> open_window(Communicator communicator, void* data, int64_t bytes) {
  Link& link = link_of(communicator);
  const std::lock_guard lock(link.lock);
  if (!library().window_register || !library().window_deregister) return version() + " has no windows, 2.27 has";
  if (link.aborted()) return "the communicator was aborted";
  ncclResult_t state = ncclInProgress;
  if (!std::exchange(link.opening, true))
    state =
        library().window_register(link.comm, data, static_cast<size_t>(bytes), &link.window, NCCL_WIN_COLL_SYMMETRIC);
  if (state == ncclSuccess || state == ncclInProgress) state = look(link);
  if (state == ncclInProgress) return std::nullopt;
  if (state == ncclSuccess) {
    link.opening = false;
    return "";
  }
  const char* last = library().last_error(link.comm);
  return std::string("ncclCommWindowRegister: ") + library().error_string(state) +
         (last && *last ? std::string(", ") + last : "");
}

void close_window(Communicator communicator) {
  Link& link = link_of(communicator);
  const std::lock_guard lock(link.lock);
  const ncclWindow_t window = std::exchange(link.window, nullptr);
  if (window && !link.aborted() && !link.opening) note(link, library().window_deregister(link.comm, window));
}

bool settled(Communicator communicator) {
  Link& link = link_of(communicator);
  const std::lock_guard lock(link.lock);
  const ncclResult_t state = look(link);
  if (!link.fault.empty()) throw std::runtime_error(link.fault);
  return state != ncclInProgress;
}

/// All sends and receives of an exchange are one group: they begin together and cannot wait for each other.
void exchange(Communicator communicator, const std::vector<Message>& out, const std::vector<Message>& in) {
  Link& link = link_of(communicator);
  const cudaStream_t stream = c10::cuda::getCurrentCUDAStream().stream();
  const std::lock_guard lock(link.lock);
  if (link.aborted()) return;
  note(link, library().group_start());
  for (size_t i = 0; i < in.size(); ++i)
    if (in[i].bytes)
      note(link, library().recv(in[i].data, static_cast<size_t>(in[i].bytes), ncclInt8, static_cast<int>(i), link.comm,
                                stream));
  for (size_t i = 0; i < out.size(); ++i)
    if (out[i].bytes)
      note(link, library().send(out[i].data, static_cast<size_t>(out[i].bytes), ncclInt8, static_cast<int>(i),
                                link.comm, stream));
  note(link, library().group_end());
}

void all_gather(Communicator communicator, void* out, const void* in, int64_t bytes) {
  Link& link = link_of(communicator);
  const std::lock_guard lock(link.lock);
  if (link.aborted()) return;
  note(link, library().all_gather(in, out, static_cast<size_t>(bytes), ncclInt8, link.comm,
                                  c10::cuda::getCurrentCUDAStream().stream()));
}

void reduce_scatter(Communicator communicator, float* out, const float* in, int64_t n) {
  Link& link = link_of(communicator);
  const std::lock_guard lock(link.lock);
  if (link.aborted()) return;
  note(link, library().reduce_scatter(in, out, static_cast<size_t>(n), ncclFloat, ncclSum, link.comm,
                                      c10::cuda::getCurrentCUDAStream().stream()));
}

void all_reduce(Communicator communicator, float* values, int64_t n) {
  Link& link = link_of(communicator);
  const std::lock_guard lock(link.lock);
  if (link.aborted()) return;
  note(link, library().all_reduce(values, values, static_cast<size_t>(n), ncclFloat, ncclSum, link.comm,
                                  c10::cuda::getCurrentCUDAStream().stream()));
}

/// As one group: ncclCommAbort tells a communicator's kernels to end and then waits for its streams, where they may stand
/// behind a kernel of another communicator that still waits for its peer. A group tells all of them first (NCCL 2.22 on).
void abort_all(const std::vector<Communicator>& communicators) {
  static_cast<void>(library().group_start());
  for (const Communicator communicator : communicators) {
    Link& link = link_of(communicator);
    const std::lock_guard lock(link.lock);
    if (!link.aborted()) static_cast<void>(library().abort(link.comm));
    link.comm = nullptr;
  }
  static_cast<void>(library().group_end());
}

/// Communicators that do not block are flushed first. One that does not end so is aborted: the process goes on.
void free(Communicator communicator) {
  constexpr int kMilliseconds = 1000;
  const std::unique_ptr<Link> link(&link_of(communicator));
  if (link->aborted()) return;
  if (link->opening) {  // it was refused, and can only be ended
    static_cast<void>(library().abort(link->comm));
    return;
  }
  ncclResult_t state = library().finalize(link->comm);
  for (int i = 0; i < kMilliseconds && state == ncclInProgress; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    state = look(*link);
  }
  static_cast<void>(state == ncclSuccess ? library().destroy(link->comm) : library().abort(link->comm));
}

}  // namespace

const device::Communicators& nccl_communicators() {
  static const device::Communicators table = {
      .absence = [] { return library().absence; },
      .version = version,
      .new_id = new_id,
      .connect = connect,
      .told = told,
      .take = tessera::cuda::take,
      .give = tessera::cuda::give,
      .lend = lend,
      .open_window = tessera::cuda::open_window,
      .close_window = tessera::cuda::close_window,
      .settled = settled,
      .fault = fault,
      .exchange = tessera::cuda::exchange,
      .all_gather = all_gather,
      .reduce_scatter = reduce_scatter,
      .all_reduce = all_reduce,
      .abort_all = abort_all,
      .free = tessera::cuda::free,
  };
  return table;
}

}  // namespace tessera::cuda
