// The table of device/backend.h: memory and copies by CUDA's runtime, arithmetic by our kernels, NCCL, all on LibTorch's
// current stream.
#include "tessera/device/backend.h"

#include <ATen/cuda/CUDAContextLight.h>
#include <c10/core/Allocator.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <cuda.h>
#include <torch/csrc/cuda/CUDAPluggableAllocator.h>
#include <torch/version.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <mutex>
#include <random>

#include "tessera/cuda/kernels.h"
#include "tessera/cuda/nccl.h"
#include "tessera/device/open.h"
#include "tessera/ops/blockwise.h"
#include "tessera/ops/dropout.h"
#include "tessera/ops/eight_bit.h"
#include "tessera/ops/products.h"

namespace tessera::cuda {

namespace {

static_assert(kMaxParts == device::kMaxSummands);

cudaStream_t stream() { return c10::cuda::getCurrentCUDAStream().stream(); }

int count() { return c10::cuda::device_count(); }

std::string hex_of(const cudaUUID_t& uuid) {
  constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  for (const char c : uuid.bytes) {
    const auto byte = static_cast<unsigned char>(c);
    text += kDigits[byte / 16], text += kDigits[byte % 16];
  }
  return text;
}

std::string address_of(const cudaDeviceProp& found) {
  char text[32];
  std::snprintf(text, sizeof text, "%04x:%02x:%02x.0", static_cast<unsigned>(found.pciDomainID),
                static_cast<unsigned>(found.pciBusID), static_cast<unsigned>(found.pciDeviceID));
  return text;
}

device::Properties properties(int index) {
  cudaDeviceProp found;
  C10_CUDA_CHECK(cudaGetDeviceProperties(&found, index));
  const c10::cuda::CUDAGuard guard(
      static_cast<c10::DeviceIndex>(index));  // cudaMemGetInfo speaks of the current device
  size_t free = 0, total = 0;
  C10_CUDA_CHECK(cudaMemGetInfo(&free, &total));
  return {found.name,
          hex_of(found.uuid),
          address_of(found),
          "sm_" + std::to_string(found.major) + std::to_string(found.minor),
          static_cast<int64_t>(total),
          static_cast<int64_t>(free)};
}

void wait() { c10::cuda::device_synchronize(); }

// --- streams and events

/// The stream on which threads begin. CUDA's default stream cannot be captured, and this one waits for no other by itself.
cudaStream_t first_stream(int index) {
  static std::mutex mutex;
  static std::map<int, cudaStream_t> streams;  // never destroyed: threads use them until the process ends
  const std::lock_guard lock(mutex);
  cudaStream_t& stream = streams[index];
  if (!stream) C10_CUDA_CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  return stream;
}

void use_stream(cudaStream_t stream, int index) {
  c10::cuda::setCurrentCUDAStream(c10::cuda::getStreamFromExternal(stream, static_cast<c10::DeviceIndex>(index)));
}

void place(int index) {
  c10::cuda::set_device(static_cast<c10::DeviceIndex>(index));
  use_stream(first_stream(index), index);
}

/// Does not wait for the first stream, as streams do by default. LibTorch's pool would give the 33rd again what the first
/// has.
device::Stream make_stream(device::Priority priority) {
  int lowest = 0, highest = 0;  // a smaller number goes first
  C10_CUDA_CHECK(cudaDeviceGetStreamPriorityRange(&lowest, &highest));
  cudaStream_t made = nullptr;
  C10_CUDA_CHECK(cudaStreamCreateWithPriority(&made, cudaStreamNonBlocking,
                                              priority == device::Priority::highest ? highest
                                              : priority == device::Priority::high  ? std::min(highest + 1, lowest)
                                                                                    : lowest));
  return made;
}

/// Threads end with their streams, also after the device has failed.
void free_stream(device::Stream stream) { static_cast<void>(cudaStreamDestroy(static_cast<cudaStream_t>(stream))); }

void set_stream(device::Stream stream) {
  const int index = c10::cuda::current_device();
  use_stream(stream ? static_cast<cudaStream_t>(stream) : first_stream(index), index);
}

cudaEvent_t event_of(device::Event event) { return static_cast<cudaEvent_t>(event); }

/// A thread that awaits it sleeps, and leaves its core to others.
device::Event make_event(bool timed) {
  cudaEvent_t made = nullptr;
  C10_CUDA_CHECK(
      cudaEventCreateWithFlags(&made, cudaEventBlockingSync | (timed ? cudaEventDefault : cudaEventDisableTiming)));
  return made;
}

void free_event(device::Event event) { C10_CUDA_CHECK(cudaEventDestroy(event_of(event))); }
/// With TESSERA_SPIN=1, or another seed, the current stream does nothing for a random time of up to a fifth of a
/// millisecond: work of other streams that should wait for what it is given next then comes too early.
void spin_at_random() {
  static const int seed = [] {
    const char* value = std::getenv("TESSERA_SPIN");
    return value ? std::atoi(value) : 0;
  }();
  if (seed == 0) return;
  static std::mutex mutex;
  static std::mt19937 random(static_cast<unsigned>(seed));
  constexpr int64_t kMost = 300'000;  // cycles
  const std::lock_guard lock(mutex);
  C10_CUDA_CHECK(launch_spin(static_cast<int64_t>(random() % kMost), stream()));
}

void record(device::Event event) {
  spin_at_random();
  C10_CUDA_CHECK(cudaEventRecord(event_of(event), stream()));
}
void wait_for(device::Event event) { C10_CUDA_CHECK(cudaStreamWaitEvent(stream(), event_of(event), 0)); }
void await(device::Event event) { C10_CUDA_CHECK(cudaEventSynchronize(event_of(event))); }

bool has_happened(device::Event event) {
  const cudaError_t found = cudaEventQuery(event_of(event));
  if (found == cudaErrorNotReady) {
    static_cast<void>(cudaGetLastError());  // the next check must not find it
    return false;
  }
  C10_CUDA_CHECK(found);
  return true;
}

double seconds_between(device::Event from, device::Event to) {
  float milliseconds = 0;
  C10_CUDA_CHECK(cudaEventElapsedTime(&milliseconds, event_of(from), event_of(to)));
  return static_cast<double>(milliseconds) * 1e-3;
}

/// cuStreamWriteValue32, which CUDA's runtime does not have; null where the driver has none.
auto stream_write() {
  static const auto function = [] {
    void* found = nullptr;
    cudaDriverEntryPointQueryResult result{};
    const cudaError_t error =
        cudaGetDriverEntryPointByVersion("cuStreamWriteValue32", &found, 12000, cudaEnableDefault, &result);
    if (error != cudaSuccess || result != cudaDriverEntryPointSuccess) {
      static_cast<void>(cudaGetLastError());
      found = nullptr;
    }
    return reinterpret_cast<CUresult (*)(CUstream, CUdeviceptr, cuuint32_t, unsigned)>(found);
  }();
  return function;
}

bool write_word(uint32_t* to, uint32_t value) {
  void* there = nullptr;  // where the device has the page-locked word
  if (!stream_write() || cudaHostGetDevicePointer(&there, to, 0) != cudaSuccess) {
    static_cast<void>(cudaGetLastError());
    return false;
  }
  cudaStreamCaptureStatus captures = cudaStreamCaptureStatusNone;
  C10_CUDA_CHECK(cudaStreamIsCapturing(stream(), &captures));
  if (captures == cudaStreamCaptureStatusActive)  // a kernel can be part of every graph
    return launch_write_word(static_cast<uint32_t*>(there), value, stream()) == cudaSuccess;
  return stream_write()(stream(), reinterpret_cast<CUdeviceptr>(there), value, 0) == CUDA_SUCCESS;
}

/// An error that stays is given by every call from then on, also by one that only asks.
std::string fault() {
  const cudaError_t error = cudaStreamQuery(nullptr);
  if (error == cudaSuccess || error == cudaErrorNotReady) {
    static_cast<void>(cudaGetLastError());
    return "";
  }
  return std::string(cudaGetErrorString(error)) + " (" + cudaGetErrorName(error) + ")";
}

// --- graphs

struct DeviceGraph {
  cudaGraphExec_t exec = nullptr;
  int64_t nodes = 0;
};

/// Relaxed: other threads may do meanwhile what would disturb a capture of theirs, as to ask the driver for memory.
void begin_graph() { C10_CUDA_CHECK(cudaStreamBeginCapture(stream(), cudaStreamCaptureModeRelaxed)); }

device::Graph end_graph() {
  cudaGraph_t captured = nullptr;
  C10_CUDA_CHECK(cudaStreamEndCapture(stream(), &captured));
  TORCH_CHECK(captured, "the device has dropped what was captured: some of it cannot be part of a graph");
  size_t nodes = 0;
  cudaGraphExec_t exec = nullptr;
  cudaError_t error = cudaGraphGetNodes(captured, nullptr, &nodes);
  if (error == cudaSuccess) error = cudaGraphInstantiate(&exec, captured, 0);
  static_cast<void>(cudaGraphDestroy(captured));
  C10_CUDA_CHECK(error);
  return new DeviceGraph{exec, static_cast<int64_t>(nodes)};
}

void launch(device::Graph graph) { C10_CUDA_CHECK(cudaGraphLaunch(static_cast<DeviceGraph*>(graph)->exec, stream())); }

/// Owners end with it, also after the device has failed.
void free_graph(device::Graph graph) {
  const auto* owned = static_cast<DeviceGraph*>(graph);
  static_cast<void>(cudaGraphExecDestroy(owned->exec));
  delete owned;
}

int64_t graph_nodes(device::Graph graph) { return static_cast<DeviceGraph*>(graph)->nodes; }

// --- memory

void* take(int64_t bytes) {
  void* data = nullptr;
  const cudaError_t error = cudaMalloc(&data, static_cast<size_t>(bytes));
  if (error == cudaErrorMemoryAllocation) {
    static_cast<void>(cudaGetLastError());  // the next check must not find it
    return nullptr;
  }
  C10_CUDA_CHECK(error);
  TORCH_CHECK(reinterpret_cast<uintptr_t>(data) % 512 == 0, "cudaMalloc gave memory that is not aligned to 512 bytes");
  return data;
}

/// Threads and owners end with it, also after the device has failed: then every call gives that error again, and who
/// waits for the device says which it was.
void give(void* data) { static_cast<void>(cudaFree(data)); }

/// LibTorch asks with a device and a stream: there is one device, and only the first stream's threads allocate.
void allocate_by(c10::Allocator* allocator) {
  namespace pluggable = torch::cuda::CUDAPluggableAllocator;
  pluggable::changeCurrentAllocator(pluggable::createCustomAllocator(
      [allocator](size_t bytes, int, cudaStream_t) { return allocator->raw_allocate(bytes); },
      [allocator](void* data, size_t, int, cudaStream_t) { allocator->raw_deallocate(data); }));
}

/// Drivers from 580 on refuse 512 GiB in one call: 16 bytes for each page, in one piece of the kernel's memory of at most 2 GiB.
int64_t most_pinned() { return int64_t{64} << 30; }

std::string pin(void* data, int64_t bytes) {
  const cudaError_t error = cudaHostRegister(data, static_cast<size_t>(bytes), cudaHostRegisterDefault);
  if (error == cudaSuccess) return "";
  static_cast<void>(cudaGetLastError());  // the next check must not find it
  return std::string("cudaHostRegister: ") + cudaGetErrorString(error) + " (" + cudaGetErrorName(error) + ")";
}

void unpin(void* data) { C10_CUDA_CHECK(cudaHostUnregister(data)); }

void* take_pinned(int64_t bytes) {
  void* data = nullptr;
  if (cudaHostAlloc(&data, static_cast<size_t>(bytes), cudaHostAllocDefault) == cudaSuccess) return data;
  static_cast<void>(cudaGetLastError());
  return nullptr;
}
void give_pinned(void* data) { static_cast<void>(cudaFreeHost(data)); }

bool on_host(const void* data) {
  cudaPointerAttributes found;
  C10_CUDA_CHECK(cudaPointerGetAttributes(&found, data));
  return found.type == cudaMemoryTypeHost || found.type == cudaMemoryTypeUnregistered;
}

void fill(void* data, uint8_t value, int64_t bytes) {
  if (bytes > 0) C10_CUDA_CHECK(cudaMemsetAsync(data, value, static_cast<size_t>(bytes), stream()));
}

void enqueue_copy(void* to, const void* from, int64_t bytes) {
  if (bytes == 0) return;
  spin_at_random();
  C10_CUDA_CHECK(cudaMemcpyAsync(to, from, static_cast<size_t>(bytes), cudaMemcpyDefault, stream()));
}

void copy(void* to, const void* from, int64_t bytes) {
  if (bytes == 0) return;
  enqueue_copy(to, from, bytes);
  if (on_host(to) || on_host(from)) C10_CUDA_CHECK(cudaStreamSynchronize(stream()));
}

// --- conversions

HalfType type_of(c10::ScalarType half) {
  TORCH_CHECK(half == c10::kBFloat16 || half == c10::kHalf, "a device function got ", half,
              " where bf16 or fp16 was expected");
  return half == c10::kBFloat16 ? HalfType::bf16 : HalfType::fp16;
}

void narrow(void* out, const float* x, c10::ScalarType half, int64_t n) {
  C10_CUDA_CHECK(launch_narrow(static_cast<uint16_t*>(out), x, type_of(half), n, stream()));
}
void widen(float* out, const void* x, c10::ScalarType half, int64_t n) {
  C10_CUDA_CHECK(launch_widen(out, static_cast<const uint16_t*>(x), type_of(half), n, stream()));
}
void narrow_in_place(float* values, c10::ScalarType half, int64_t n) {
  C10_CUDA_CHECK(launch_narrow_in_place(values, type_of(half), n, stream()));
}
void widen_in_place(float* values, c10::ScalarType half, int64_t n) {
  C10_CUDA_CHECK(launch_widen_in_place(values, type_of(half), n, stream()));
}
void high_half(uint16_t* out, const float* x, int64_t n) { C10_CUDA_CHECK(launch_high_half(out, x, n, stream())); }
void round(float* values, c10::ScalarType half, int64_t n) {
  C10_CUDA_CHECK(launch_round(values, type_of(half), n, stream()));
}

// --- sums

void sum_in_order(float* out, const float* const* parts, int summands, int64_t n, bool accumulate) {
  C10_CUDA_CHECK(launch_sum_in_order(out, parts, summands, n, accumulate, stream()));
}
void sum_halves(float* out, const void* const* parts, int summands, c10::ScalarType half, int64_t n, bool accumulate) {
  C10_CUDA_CHECK(launch_sum_halves(out, parts, summands, type_of(half), n, accumulate, stream()));
}
void sum_halves_rounded(void* out, const void* const* parts, int summands, c10::ScalarType half, int64_t n) {
  C10_CUDA_CHECK(launch_sum_halves_rounded(static_cast<uint16_t*>(out), parts, summands, type_of(half), n, stream()));
}

/// Memory of a thread for partial sums; it grows and is kept. At most eight bytes for 65,536 values.
class Partials {
 public:
  ~Partials() { static_cast<void>(cudaFree(data_)); }
  double* of(int64_t count) {
    if (count <= count_) return data_;
    give(data_);
    data_ = nullptr, count_ = 0;
    const int64_t wanted = std::max(count, kLeast), bytes = wanted * static_cast<int64_t>(sizeof(double));
    data_ = static_cast<double*>(take(bytes));
    TORCH_CHECK(data_, "the device has no ", bytes, " bytes left for partial sums of squares: leave it a reserve");
    count_ = wanted;
    return data_;
  }

 private:
  static constexpr int64_t kLeast = 4096;
  double* data_ = nullptr;
  int64_t count_ = 0;
};

double* partials_of(int64_t n) {
  thread_local Partials partials;  // of one stream: a thread keeps its own
  return partials.of(partial_sums(n));
}

void sum_of_squares(double* out, const float* x, int64_t n) {
  C10_CUDA_CHECK(launch_sum_of_squares(out, partials_of(n), x, n, stream()));
}

// --- the optimiser and quantisers

/// The values of a map on the current device, uploaded at the first call and kept.
const float* on_device(const ops::DynamicMap& map) {
  static std::mutex mutex;
  static std::map<std::pair<int, const ops::DynamicMap*>, const float*> tables;
  const std::lock_guard lock(mutex);
  const float*& table = tables[{c10::cuda::current_device(), &map}];
  if (!table) {
    void* data = take(sizeof(map.values()));
    TORCH_CHECK(data, "the device has no ", sizeof(map.values()), " bytes left for the map of 8-bit moments");
    copy(data, map.values().data(), sizeof(map.values()));
    table = static_cast<const float*>(data);
  }
  return table;
}

DeviceRounding elements_of(const RandomKey& key, uint64_t first) {
  const std::array<uint32_t, 4> words = key.words();
  return {{words[0], words[1], words[2], words[3]}, first};
}
DeviceRounding rounding_of(const ops::Rounding& rounding) {
  return rounding.key ? elements_of(*rounding.key, rounding.first) : DeviceRounding{};
}

DeviceMasters masters_of(const ops::MasterRange& p) { return {p.fp32, p.bf16, p.low, rounding_of(p.rounding)}; }

DeviceMoment moment_of(const ops::MomentRange& m, const ops::DynamicMap& map) {
  const float* values = m.codes ? on_device(map) : nullptr;
  return {m.fp32, m.bf16, m.codes, m.scales, values, map.zero(), rounding_of(m.rounding)};
}

void adamw(const ops::MasterRange& p, const ops::MomentRange& m, const ops::MomentRange& v, const ops::GradientRange& g,
           int64_t n, const ops::AdamWStep& step) {
  C10_CUDA_CHECK(launch_adamw(masters_of(p), moment_of(m, ops::DynamicMap::with_sign()),
                              moment_of(v, ops::DynamicMap::without_sign()), g, n, ops::AdamWFactors(step),
                              step.keep_sign, stream()));
}

void lion(const ops::MasterRange& p, const ops::MomentRange& m, const ops::GradientRange& g, int64_t n,
          const ops::LionFactors& factors) {
  C10_CUDA_CHECK(launch_lion(masters_of(p), moment_of(m, ops::DynamicMap::with_sign()), g, n, factors, stream()));
}
void schedule_free(const ops::MasterRange& y, float* z, float* v, float* x, const ops::GradientRange& g, int64_t n,
                   const ops::ScheduleFreeFactors& factors) {
  C10_CUDA_CHECK(launch_schedule_free(masters_of(y), z, v, x, g, n, factors, stream()));
}
void move_average(float* average, const ops::MasterRange& p, int64_t n, float take) {
  C10_CUDA_CHECK(launch_move_average(average, masters_of(p), n, take, stream()));
}

void prodigy(const ops::MasterRange& p, const ops::MomentRange& m, const ops::MomentRange& v, float* s, float* start,
             const ops::GradientRange& g, int64_t n, const ops::ProdigyFactors& factors, double* totals) {
  C10_CUDA_CHECK(launch_prodigy(masters_of(p), moment_of(m, ops::DynamicMap::with_sign()),
                                moment_of(v, ops::DynamicMap::without_sign()), s, start, g, n, factors, totals,
                                stream()));
}
void add_totals(double* out, const double* parts, int64_t pairs) {
  C10_CUDA_CHECK(launch_add_in_order(out, parts, 2 * pairs, 2, /*adds=*/true, stream()));
}
void momentum(const ops::MomentRange& m, const ops::GradientRange& g, int64_t n, const ops::MomentumFactors& factors,
              const ops::DirectionRange& direction) {
  C10_CUDA_CHECK(launch_momentum(moment_of(m, ops::DynamicMap::with_sign()), g, n, factors, direction, stream()));
}
void step_along(const ops::MasterRange& p, const ops::DirectionRange& direction, int64_t n, float keep, float step) {
  C10_CUDA_CHECK(launch_step_along(masters_of(p), direction, n, keep, step, stream()));
}

DeviceMoment first_of(const ops::MomentRange& first) { return moment_of(first, ops::DynamicMap::with_sign()); }
void add_row_sums(const ops::ClippedSlice& slice, double* sums) {
  C10_CUDA_CHECK(launch_add_row_sums(slice, sums, stream()));
}
void add_residual_sums(const ops::ClippedSlice& slice, const ops::CameStep& step, double* sums) {
  C10_CUDA_CHECK(launch_add_residual_sums(slice, step, first_of(step.first), sums, stream()));
}
void add_divided_squares(const ops::ClippedSlice& slice, double* sum) {
  double* partials = partials_of(slice.place.count);
  C10_CUDA_CHECK(launch_add_divided_squares(slice, sum, partials, stream()));
}
void add_master_squares(const ops::MasterRange& p, int64_t n, double* sum) {
  C10_CUDA_CHECK(launch_add_master_squares(masters_of(p), n, sum, partials_of(n), stream()));
}
void take_means(const ops::FactoredMeans& means) { C10_CUDA_CHECK(launch_take_means(means, stream())); }
void adafactor(const ops::ClippedSlice& slice, const ops::AdafactorStep& step) {
  C10_CUDA_CHECK(launch_adafactor(slice, step, masters_of(step.p), first_of(step.first), stream()));
}
void came(const ops::ClippedSlice& slice, const ops::CameStep& step) {
  C10_CUDA_CHECK(launch_came(slice, step, masters_of(step.p), first_of(step.first), stream()));
}

void quantise_int8(int8_t* q, float* scales, const float* x, int64_t n) {
  C10_CUDA_CHECK(launch_quantise_int8(q, scales, x, n, stream()));
}
void dequantise_int8(float* out, const int8_t* q, const float* scales, int64_t n) {
  C10_CUDA_CHECK(launch_dequantise_int8(out, q, scales, n, stream()));
}

Fp8Matrix matrix_of(const ops::Fp8Tiles& tiles) {
  return {tiles.rows, tiles.cols, tiles.tile_rows, tiles.tile_cols, tiles.format == DType::f8_e5m2};
}
void quantise_fp8(uint8_t* codes, float* scales, const float* x, const ops::Fp8Tiles& tiles) {
  C10_CUDA_CHECK(launch_quantise_fp8(codes, scales, x, matrix_of(tiles), stream()));
}
void dequantise_fp8(float* out, const uint8_t* codes, const float* scales, const ops::Fp8Tiles& tiles) {
  C10_CUDA_CHECK(launch_dequantise_fp8(out, codes, scales, matrix_of(tiles), stream()));
}

void drop(void* x, c10::ScalarType type, const ops::DropRange& range) {
  const DropRows rows = {range.rows,   range.cols, range.stride, range.width, elements_of(range.key, range.first),
                         range.border, range.scale};
  C10_CUDA_CHECK(type == c10::kFloat ? launch_drop_floats(static_cast<float*>(x), rows, stream())
                                     : launch_drop_halves(static_cast<uint16_t*>(x), type_of(type), rows, stream()));
}

// --- operators

template <auto launch, class Rows>
void fused(const Rows& rows) {
  C10_CUDA_CHECK(launch(rows, stream()));
}

// --- products

LibraryProduct product_of(const ops::ProductCall& call) {
  const ops::ProductShape& s = call.shape;
  const auto form = [](at::ScalarType type) {
    return type == at::kFloat ? ops::Form::fp32 : type == at::kBFloat16 ? ops::Form::bf16 : ops::Form::fp16;
  };
  return {form(s.of), form(s.to),   s.m,    s.n,    s.k,       s.a_turned, s.b_turned, s.a_stride,
          s.b_stride, s.out_stride, call.a, call.b, call.bias, call.out,   s.add};
}

/// What LibTorch gives its own calls of cuBLASLt on this thread and stream.
LibraryMemory library_memory() {
  return {at::cuda::getCurrentCUDABlasLtHandle(), at::cuda::getCUDABlasLtWorkspace(),
          at::cuda::getCUDABlasLtWorkspaceSize()};
}

std::vector<ops::ProductAlgorithm> candidates(const ops::ProductCall& call, int most) {
  std::vector<ProductWords> words(static_cast<size_t>(most));
  words.resize(static_cast<size_t>(product_candidates(product_of(call), most, library_memory(), words.data())));
  std::vector<ops::ProductAlgorithm> all;
  for (const ProductWords& found : words) all.push_back({found});
  return all;
}

std::string multiply_by(const ops::ProductCall& call, const ops::ProductAlgorithm& algorithm) {
  return multiply(product_of(call), algorithm.words, library_memory(), stream());
}

const device::ProductLibrary kProducts = {product_library, candidates, multiply_by};

}  // namespace

}  // namespace tessera::cuda

extern "C" const tessera::device::Backend* tessera_cuda_register() {
  using namespace tessera::cuda;
  static const tessera::device::Backend table = {
      .version = tessera::device::kBackendVersion,
      .name = "cuda",
      .torch_version = TORCH_VERSION,
      .cuda_version = CUDART_VERSION,
      .type = c10::DeviceType::CUDA,
      .count = count,
      .properties = properties,
      .place = place,
      .wait = wait,
      .make_stream = make_stream,
      .free_stream = free_stream,
      .set_stream = set_stream,
      .make_event = make_event,
      .free_event = free_event,
      .record = record,
      .wait_for = wait_for,
      .await = tessera::cuda::await,
      .has_happened = has_happened,
      .seconds_between = seconds_between,
      .begin_graph = begin_graph,
      .end_graph = end_graph,
      .launch = launch,
      .free_graph = free_graph,
      .graph_nodes = graph_nodes,
      .write_word = write_word,
      .fault = tessera::cuda::fault,
      .label = nullptr,
      .host_uses = nullptr,
      .communicators = &nccl_communicators(),
      .take = take,
      .give = give,
      .allocate_by = allocate_by,
      .pin = pin,
      .most_pinned = most_pinned,
      .unpin = unpin,
      .take_pinned = take_pinned,
      .give_pinned = give_pinned,
      .fill = fill,
      .copy = copy,
      .enqueue_copy = enqueue_copy,
      .narrow = narrow,
      .widen = widen,
      .narrow_in_place = narrow_in_place,
      .widen_in_place = widen_in_place,
      .high_half = high_half,
      .round = tessera::cuda::round,
      .sum_in_order = sum_in_order,
      .sum_halves = sum_halves,
      .sum_halves_rounded = sum_halves_rounded,
      .sum_of_squares = sum_of_squares,
      .adamw = adamw,
      .lion = lion,
      .schedule_free = schedule_free,
      .move_average = move_average,
      .prodigy = prodigy,
      .add_totals = add_totals,
      .momentum = momentum,
      .step_along = step_along,
      .add_row_sums = add_row_sums,
      .add_residual_sums = add_residual_sums,
      .add_divided_squares = add_divided_squares,
      .add_master_squares = add_master_squares,
      .take_means = take_means,
      .adafactor = adafactor,
      .came = came,
      .quantise_int8 = quantise_int8,
      .dequantise_int8 = dequantise_int8,
      .quantise_fp8 = quantise_fp8,
      .dequantise_fp8 = dequantise_fp8,
      .drop = drop,
      .layer_norm = fused<launch_layer_norm>,
      .layer_norm_gradients = fused<launch_layer_norm_gradients>,
      .rms_norm = fused<launch_rms_norm>,
      .rms_norm_gradients = fused<launch_rms_norm_gradients>,
      .gated_sum = fused<launch_gated_sum>,
      .gated_gradients = fused<launch_gated_gradients>,
      .gelu = fused<launch_gelu>,
      .gelu_gradients = fused<launch_gelu_gradients>,
      .quantise_lines = fused<launch_quantise_lines>,
      .flat_scales = fused<launch_flat_scales>,
      .flat_codes = fused<launch_flat_codes>,
      .merge_scales = fused<launch_merge_scales>,
      .turn_codes = fused<launch_turn_codes>,
      .rotate_rows = fused<launch_rotate_rows>,
      .depthwise = fused<launch_depthwise>,
      .depthwise_gradients = fused<launch_depthwise_gradients>,
      .invert_taps = fused<launch_invert_taps>,
      .add_states = fused<launch_add_states>,
      .state_results = fused<launch_state_results>,
      .state_gradients = fused<launch_state_gradients>,
      .state_result_gradients = fused<launch_state_result_gradients>,
      .add_sums = fused<launch_add_sums>,
      .silu_glu = fused<launch_silu_glu>,
      .silu_glu_gradients = fused<launch_silu_glu_gradients>,
      .products = &kProducts,
  };
  return &table;
}
