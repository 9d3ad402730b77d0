#pragma once
// What a GPU brings beside LibTorch's operators: a table of functions from a shared library that nothing links to. LibTorch
// computes with tensors; the table has memory, copies, and arithmetic over flat ranges that promises the bits of our CPU
// functions.
//
//   if (const Backend* gpu = open().table) { use(*gpu, 0); ... }   // open.h; once, before the first tensor on the device
//   if (const Backend* gpu = used()) gpu->copy(to, from, bytes);
//
// [Note: current stream] All functions run on the current stream of the calling thread, in order after what that stream was
// given before. A thread that place() has been called for begins on the device's first stream, which is the same for all
// threads; streams are ordered among each other by events alone (streams.h). The first one is no driver's default stream,
// which nothing may be captured from: compute, the loader and samples share it, and so each other's freed memory. Functions that return numbers to the host, and `copy` from or to the host, return
// when they are done; the others may return before.
//
// Pointers to ranges are addresses on the device, all of them aligned to their elements. Functions throw c10::Error where
// the device fails.
#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>

#include <cstdint>
#include <string>
#include <vector>

namespace c10 {
struct Allocator;
}
namespace tessera::ops {
struct AdamWStep;
struct LionFactors;
struct ScheduleFreeFactors;
struct ProdigyFactors;
struct MomentumFactors;
struct DirectionRange;
struct ClippedSlice;
struct AdafactorStep;
struct CameStep;
struct FactoredMeans;
struct MasterRange;
struct MomentRange;
struct GradientRange;
struct Fp8Tiles;
struct DropRange;
struct LayerNormRows;
struct LayerNormGradients;
struct RmsNormRows;
struct RmsNormGradients;
struct GatedRows;
struct GatedGradients;
struct GeluRows;
struct GeluGradients;
struct QuantisedLines;
struct FlatLines;
struct MergedScales;
struct TurnedCodes;
struct RotatedRows;
struct DepthwiseRows;
struct DepthwiseGradients;
struct InvertedTaps;
struct StateSums;
struct StateResults;
struct StateGradients;
struct StateResultGradients;
struct ManyGroupSums;
struct GluRows;
struct GluGradients;
struct ProductAlgorithm;
struct ProductCall;
}  // namespace tessera::ops

namespace tessera::device {

inline constexpr int kBackendVersion = 17;
inline constexpr int kMaxSummands = 64;  ///< of sums in rank order, because the pointers are a kernel argument

struct Properties {
  std::string name;  ///< "NVIDIA H200"
  std::string uuid;  ///< the same on every process that sees the device
  std::string pci;   ///< its address on the bus, as sysfs has it: "0000:3b:00.0"; empty: not known
  std::string chip;  ///< "sm_90"; empty: no architecture that base/target.h may know
  int64_t bytes = 0, free = 0;
};

/// Handles of a stream and of an event, which only the table can read.
using Stream = void*;
/// Whose work a device does first where that of several streams is ready.
enum class Priority { normal, high, highest };
using Event = void*;
/// Work that streams were given once, to be done again by one call.
using Graph = void*;

struct Communicators;

/// Products by the device's own library, whose algorithm the caller chooses (ops/products.h).
struct ProductLibrary {
  std::string (*version)();  ///< "cuBLASLt 13.1.0"; empty: the library is not there
  /// At most so many algorithms for the call, first the one that the library would take.
  std::vector<ops::ProductAlgorithm> (*candidates)(const ops::ProductCall& call, int most);
  /// On the current stream. Empty; else why the library refuses, and nothing was done.
  std::string (*multiply)(const ops::ProductCall& call, const ops::ProductAlgorithm& algorithm);
};

struct Backend {
  int version;                ///< kBackendVersion of the library's build
  const char* name;           ///< "cuda"
  const char* torch_version;  ///< of the LibTorch that the library was built for: "2.11.0"
  int cuda_version;           ///< of its CUDA runtime: 13000 is 13.0; a driver of this major version is needed
  c10::DeviceType type;       ///< of its tensors

  int (*count)();  ///< devices visible to this process
  Properties (*properties)(int index);
  /// Makes a device current for the calling thread. Threads begin on device 0.
  void (*place)(int index);
  /// Blocks until all that was given to the device is done.
  void (*wait)();

  // Streams and events of the current device.
  /// A stream that no other waits for by itself. A device that knows fewer priorities takes neighbours for one.
  Stream (*make_stream)(Priority priority);
  /// No thread has it as its current stream any more. What it was given is still done.
  void (*free_stream)(Stream stream);
  /// The calling thread's current stream from here on, of LibTorch's operators too; null: the device's first stream.
  void (*set_stream)(Stream stream);
  /// `timed`: for seconds_between(), which makes it dearer.
  Event (*make_event)(bool timed);
  void (*free_event)(Event event);
  /// The event happens when all that the current stream was given so far is done; once more, if it has happened before.
  void (*record)(Event event);
  /// What the current stream is given from here on begins after the event. One that was never recorded has happened.
  void (*wait_for)(Event event);
  /// The calling thread sleeps until the event has happened.
  void (*await)(Event event);
  bool (*has_happened)(Event event);
  /// Of two timed events that have happened.
  double (*seconds_between)(Event from, Event to);
  /// From here on what the current stream is given is not done but kept for a graph, and so is what streams are given that
  /// have waited for an event of it. None of them may wait for an event from before, nor the host for any of theirs.
  void (*begin_graph)();
  /// Ends that; the streams must have been joined to the current one by events. Throws where the device could not keep some
  /// of the work: then there is no graph.
  Graph (*end_graph)();
  /// The current stream does a graph's work, with the addresses and numbers that it was given then.
  void (*launch)(Graph graph);
  void (*free_graph)(Graph graph);
  int64_t (*graph_nodes)(Graph graph);  ///< kernels, copies and fills of it
  /// `value` to page-locked memory of the host, when the current stream comes to it: how far a stream is can then be read
  /// without a call, also once the device has failed. False where the device cannot.
  bool (*write_word)(uint32_t* to, uint32_t value);
  /// Why the device does nothing more, for good, as CUDA after an illegal address; empty: it works. Waits for nothing.
  std::string (*fault)();
  // For devices that check order; null on others.
  /// Names what the calling thread issues from here on.
  void (*label)(const std::string& what);
  /// Code of the host reads or writes page-locked memory, which copies use too.
  void (*host_uses)(const void* data, int64_t bytes, bool writes);

  /// Messages between the devices of ranks (communicators.h); null: there are none.
  const Communicators* communicators;

  // Memory.
  /// From the driver, aligned to 512 bytes; null where it has not so much.
  void* (*take)(int64_t bytes);
  void (*give)(void* data);  ///< never throws: destructors call it
  /// All tensors of the device are allocated by `allocator` from now on, which must outlive them. Once, before the first.
  void (*allocate_by)(c10::Allocator* allocator);
  /// Page-locks host memory, so that copies run at full speed, at most most_pinned() bytes of it, a multiple of a page. Empty;
  /// else why the system refuses. Copies lie within one such range or outside of all: pin() of staging.h sees to both.
  std::string (*pin)(void* data, int64_t bytes);
  int64_t (*most_pinned)();
  void (*unpin)(void* data);
  /// Page-locked host memory of the driver's own, for small amounts where pin() is refused; null where it has none.
  void* (*take_pinned)(int64_t bytes);
  void (*give_pinned)(void* data);  ///< never throws
  /// Each byte becomes `value`, on the current stream.
  void (*fill)(void* data, uint8_t value, int64_t bytes);
  /// Between any two of host and device; the ranges do not overlap.
  void (*copy)(void* to, const void* from, int64_t bytes);
  /// The same, but it returns before it is done: host memory must stay as it is, and not be read, until then. Host memory
  /// that is not page-locked makes the host wait.
  void (*enqueue_copy)(void* to, const void* from, int64_t bytes);

  // Conversions between fp32 and 16 bits (`half`: kBFloat16 or kHalf), as in ops/half.h and ops/bf16.h.
  void (*narrow)(void* out, const float* x, c10::ScalarType half, int64_t n);
  void (*widen)(float* out, const void* x, c10::ScalarType half, int64_t n);
  void (*narrow_in_place)(float* values, c10::ScalarType half, int64_t n);
  void (*widen_in_place)(float* values, c10::ScalarType half, int64_t n);
  void (*high_half)(uint16_t* out, const float* x, int64_t n);
  /// Each value becomes that of its 16-bit form.
  void (*round)(float* values, c10::ScalarType half, int64_t n);

  // Sums.
  /// out[i] = parts[0][i] + parts[1][i] + ... in this order, at most kMaxSummands; with `accumulate` added to the previous
  /// out[i].
  void (*sum_in_order)(float* out, const float* const* parts, int count, int64_t n, bool accumulate);
  /// The same of 16-bit parts, added in fp32.
  void (*sum_halves)(float* out, const void* const* parts, int count, c10::ScalarType half, int64_t n, bool accumulate);
  /// The same, rounded to 16 bits. `out` may be one of the parts.
  void (*sum_halves_rounded)(void* out, const void* const* parts, int count, c10::ScalarType half, int64_t n);
  void (*sum_of_squares)(double* out, const float* x, int64_t n);  ///< ops::sum_of_squares to an address on the device

  // The optimiser and quantisers: twins of ops/adamw.h, ops/factored.h, ops/eight_bit.h. Keys of random numbers are the host's.
  void (*adamw)(const ops::MasterRange& p, const ops::MomentRange& m, const ops::MomentRange& v,
                const ops::GradientRange& g, int64_t n, const ops::AdamWStep& step);
  void (*lion)(const ops::MasterRange& p, const ops::MomentRange& m, const ops::GradientRange& g, int64_t n,
               const ops::LionFactors& factors);
  void (*schedule_free)(const ops::MasterRange& y, float* z, float* v, float* x, const ops::GradientRange& g, int64_t n,
                        const ops::ScheduleFreeFactors& factors);
  void (*move_average)(float* average, const ops::MasterRange& p, int64_t n, float take);
  void (*prodigy)(const ops::MasterRange& p, const ops::MomentRange& m, const ops::MomentRange& v, float* s,
                  float* start, const ops::GradientRange& g, int64_t n, const ops::ProdigyFactors& factors,
                  double* totals);
  void (*add_totals)(double* out, const double* parts, int64_t count);
  void (*momentum)(const ops::MomentRange& m, const ops::GradientRange& g, int64_t n,
                   const ops::MomentumFactors& factors, const ops::DirectionRange& direction);
  void (*step_along)(const ops::MasterRange& p, const ops::DirectionRange& direction, int64_t n, float keep,
                     float step);
  void (*add_row_sums)(const ops::ClippedSlice& slice, double* sums);
  void (*add_residual_sums)(const ops::ClippedSlice& slice, const ops::CameStep& step, double* sums);
  void (*add_divided_squares)(const ops::ClippedSlice& slice, double* sum);
  void (*add_master_squares)(const ops::MasterRange& p, int64_t n, double* sum);
  void (*take_means)(const ops::FactoredMeans& means);
  void (*adafactor)(const ops::ClippedSlice& slice, const ops::AdafactorStep& step);
  void (*came)(const ops::ClippedSlice& slice, const ops::CameStep& step);
  void (*quantise_int8)(int8_t* q, float* scales, const float* x, int64_t n);
  void (*dequantise_int8)(float* out, const int8_t* q, const float* scales, int64_t n);
  void (*quantise_fp8)(uint8_t* codes, float* scales, const float* x, const ops::Fp8Tiles& tiles);
  void (*dequantise_fp8)(float* out, const uint8_t* codes, const float* scales, const ops::Fp8Tiles& tiles);
  void (*drop)(void* x, c10::ScalarType type, const ops::DropRange& range);  ///< ops::drop_range

  // Operators in one pass over memory: twins of ops/fused.h.
  void (*layer_norm)(const ops::LayerNormRows& rows);
  void (*layer_norm_gradients)(const ops::LayerNormGradients& rows);
  void (*rms_norm)(const ops::RmsNormRows& rows);
  void (*rms_norm_gradients)(const ops::RmsNormGradients& rows);
  void (*gated_sum)(const ops::GatedRows& rows);
  void (*gated_gradients)(const ops::GatedGradients& rows);
  void (*gelu)(const ops::GeluRows& rows);
  void (*gelu_gradients)(const ops::GeluGradients& rows);
  void (*quantise_lines)(const ops::QuantisedLines& lines);
  void (*flat_scales)(const ops::FlatLines& lines);
  void (*flat_codes)(const ops::FlatLines& lines);
  void (*merge_scales)(const ops::MergedScales& scales);
  void (*turn_codes)(const ops::TurnedCodes& codes);
  void (*rotate_rows)(const ops::RotatedRows& rows);
  void (*depthwise)(const ops::DepthwiseRows& rows);
  void (*depthwise_gradients)(const ops::DepthwiseGradients& rows);
  void (*invert_taps)(const ops::InvertedTaps& taps);
  void (*add_states)(const ops::StateSums& rows);
  void (*state_results)(const ops::StateResults& rows);
  void (*state_gradients)(const ops::StateGradients& rows);
  void (*state_result_gradients)(const ops::StateResultGradients& rows);
  void (*add_sums)(const ops::ManyGroupSums& sums);
  void (*silu_glu)(const ops::GluRows& rows);
  void (*silu_glu_gradients)(const ops::GluGradients& rows);

  const ProductLibrary* products;  ///< null: LibTorch's operators alone multiply
};

/// From here on the process computes on device `index` of `backend`; the calling thread and, by enter_thread(), others.
/// Once.
void use(const Backend& backend, int index);
/// What use() was given; null: the calling thread computes on the CPU.
const Backend* used();
/// The device of the calling thread's tensors: the CPU without use().
c10::Device here();
/// While it exists, the calling thread computes on the CPU although the process uses a device: used() is null and here() the
/// CPU for it, and for lanes (engine/store/lane.h) that begin meanwhile. Encoders in host memory run so. What was made
/// under it is used and destroyed under one. Scopes nest.
class OnHost {
 public:
  OnHost();
  ~OnHost();
  OnHost(const OnHost&) = delete;
  OnHost& operator=(const OnHost&) = delete;

  static bool active();  ///< in the calling thread
};
/// Makes the device current for a thread of our own; does nothing on a CPU.
void enter_thread();
/// The block from which all tensors of the device come, as the engine has taken it; communicators are lent parts of it.
struct Block {
  void* data = nullptr;
  int64_t bytes = 0;
};
void set_block(Block block);
Block block();
/// While it lives, the calling thread is refused more than so many bytes of the device at once, beside tensors of these sizes:
/// libraries then try a way with less, as cuDNN for the workspace of a convolution. The engine's allocator asks.
class WorkspaceLimit {
 public:
  WorkspaceLimit(int64_t bytes, std::vector<int64_t> tensors);
  ~WorkspaceLimit();
  WorkspaceLimit(const WorkspaceLimit&) = delete;
  WorkspaceLimit& operator=(const WorkspaceLimit&) = delete;
  int64_t refused() const { return refused_; }  ///< how often it was
  /// Whether the calling thread may have so many.
  static bool allows(int64_t bytes);

 private:
  const int64_t bytes_;
  const std::vector<int64_t> tensors_;
  int64_t refused_ = 0;
  WorkspaceLimit* const before_;
};

/// Memory of the device for intermediate values of the calling thread, beside what the engine plans: at least `bytes`,
/// kept until the thread ends. `which` in 0..3 selects separate buffers; the last is of updates. Null where the driver has none left.
void* scratch(int which, int64_t bytes);

/// How often this process asked the driver for memory, or to page-lock some of the host's. Each time may wait for the device.
int64_t memory_requests();
void count_memory_request();

}  // namespace tessera::device
