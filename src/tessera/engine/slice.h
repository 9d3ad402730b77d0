#pragma once
// A micro-batch reduced to a rank's share of the tokens, and the rows of all ranks put together again.
//
//   const net::Batch mine = slice(model.pack(samples), parallel);
//   const Tensor prediction = whole_tokens(engine.forward(...)[0], mine.tokens, parallel);
#include <deque>

#include "tessera/device/streams.h"
#include "tessera/engine/parallel.h"
#include "tessera/engine/store/host_memory.h"
#include "tessera/net/model.h"
#include "tessera/torch_headers.h"

namespace tessera::engine {

// Brings tensors from the host to the device, and the host goes on: what it brings is copied to page-locked memory, from
// where the device fetches it.
//
//   Uploads uploads;
//   uploads.reserve(bytes);                                // of all that is brought before the host waits for the device
//   uploads.reserve_beside(bytes);                         // of the device, for what is on its way
//   const Tensor there = uploads.bring(here, device);      // for what this thread's stream is given next
//
// [Note: a batch beside the compute lane] Where a tensor of the compute lane lies, others may have lain whose work is not done
// yet. So a stream of the copies' own brings a batch to memory beside the plan, as soon as the host gives it, and the
// compute lane waits for that and copies it to its place, which takes a hundredth of the way over the bus. That memory is a
// ring: a copy to what is used again waits for the compute lane to have taken what lay there, by an event.

class Uploads {
 public:
  Uploads() = default;
  ~Uploads();
  Uploads(const Uploads&) = delete;

  /// Page-locks as much as `bytes` of tensors under way at once need, so that bring() locks none. Waits for what is under way.
  void reserve(int64_t bytes);
  /// Memory of the device's driver for what is on its way; without it, for more at once, and where all threads share one
  /// stream, the calling thread's stream brings it.
  void reserve_beside(int64_t bytes);
  /// The tensors themselves on a CPU. Their memory is counted as any tensor's. The host waits where more is under way than was
  /// reserved. Undefined ones stay so.
  std::vector<at::Tensor> bring(const std::vector<at::Tensor>& here, at::Device device);
  at::Tensor bring(const at::Tensor& here, at::Device device) { return bring(std::vector{here}, device)[0]; }

  /// How bring() goes from here on. Captured: one tensor behind the other from the beginning, for a graph to copy them again.
  /// Repeated: only writes them to the same places, for that graph; what it returns means nothing. Both wait for what is under way.
  enum class Way { ring, captured, repeated };
  void go(Way way);
  /// Where they are, which a graph knows; null: nowhere yet.
  const void* place() const { return memory_.size() > 0 ? memory_.at(0) : nullptr; }
  int64_t size() const { return memory_.size(); }
  static int64_t room(const at::Tensor& t);  ///< that a tensor takes there

 private:
  struct Part {
    int64_t begin, end;
    device::Mark done;  // the page-locked bytes are copied; those of the device are taken by the compute lane
  };
  int64_t place(int64_t bytes);
  int64_t place_beside(int64_t bytes);
  void write(const at::Tensor& from, int64_t at);
  void fetch(const std::vector<at::Tensor>& there, int64_t at, int64_t bytes);
  HostMemory memory_{HostMemory::Refused::drivers_own};
  std::deque<Part> under_way_;  // oldest first: a ring in memory_
  Way way_ = Way::ring;
  int64_t next_ = 0;  // of the other ways
  char* beside_ = nullptr;
  int64_t beside_size_ = 0;
  std::deque<Part> untaken_;  // likewise, in beside_
  bool follows_ = false;      // the stream has waited for the thread's own
  device::SideStream stream_;
};

/// The rank's share of `batch`, a copy of all that it keeps: `batch` may lie in memory that the rank frees. Inputs without
/// a row for each token stay whole. Where ranks share no tokens, `batch` itself. Throws UserError (usage) when there are
/// fewer tokens than ranks that share them.
net::Batch slice(net::Batch batch, const Parallel& parallel);

/// Uploads' room for a batch's inputs and tables.
int64_t upload_room(const net::Batch& batch);
/// What of a batch the host knows and units give to the device: sizes, and where rows, samples and segments begin; nullopt: a
/// chunk that others precede has more.
std::optional<std::string> form_of(const net::Batch& batch);

/// The batch with inputs and tables of its own.
net::Batch copy_of(net::Batch batch);

/// The batch with its inputs and tables on the device; what only the host reads stays there.
net::Batch on_device(net::Batch batch, at::Device device, Uploads& uploads);

/// A micro-batch of `count` samples like this one, as the model packs it, for its sizes: of more than two it has meta tensors
/// and what the host keeps of rows, which follow from those of one and of two samples. So a batch of hundreds of clips
/// costs what two cost. Packed whole where the model's tables are not of that form.
net::Batch batch_of_alike(const net::Denoiser& model, const net::Sample& sample, int64_t count);

/// Gathers rows [tokens here, n] of all ranks of the sequence to [T, n]; returns `rows` where ranks do not share
/// tokens.
Tensor whole_tokens(const Tensor& rows, const net::Tokens& tokens, const Parallel& parallel);

/// Gradients of the whole batch's inputs from those of this rank's share: inputs with a row for each token are
/// gathered, gradients of the others are summed over the ranks of the sequence.
std::vector<Tensor> whole_input_grads(std::vector<Tensor> grads, const net::Batch& batch, const Parallel& parallel);

}  // namespace tessera::engine
