#pragma once
// Counts the tensor bytes of the device tier, by part, with their peak, and enforces the budget. On a CPU it is an
// allocator in front of LibTorch's; it keeps freed blocks by size, so that a step's tensors cost no page faults. On a GPU
// it is LibTorch's allocator.
//
//   Meter::install();                                    // before the first tensor
//   { Meter::Scope scope(Part::slots); arena = at::empty(...); }
//   Meter::reset_peak(); ...; Meter::peak();
//
// [Note: bytes by running on meta] The same counting stands behind LibTorch's meta device, whose tensors have sizes
// but no memory. Running a unit on meta tensors therefore counts the bytes that the same code will allocate in
// training, and no formula has to follow the code (measure.h). Numbers that operators make tensors of (the 2 of x * 2) are
// on the CPU there too: what takes the least there is counts with the meta tensors, unless a GPU is what is counted for.
#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "tessera/base/check.h"
#include "tessera/comm/comm.h"
#include "tessera/device/backend.h"

namespace tessera::engine {

enum class Part { parameters, gradients, states, slots, compute, host };
inline constexpr int kParts = 5;  ///< parts of the device tier; `host` is host memory, which does not count

class Meter {
 public:
  static void install();
  /// From here on the device tier is the memory of a GPU, and tensors of the CPU count as host memory. Once, before the first.
  static void use_device(const device::Backend& backend);
  /// One block of `bytes` from the GPU's driver, from which all of its tensors come. Once, before the first. Throws UserError
  /// (memory) where the driver has not so much in one piece. `lent`: it will be lent to communicators.
  static void reserve(int64_t bytes, bool lent = false);
  /// That tensors of the kind of device are allocated by.
  static c10::Allocator* allocator(c10::DeviceType type);
  /// The largest piece of the GPU's block that is free: where most of what is taken from here on will lie.
  static device::Block room();
  static int64_t live();
  static int64_t live(Part part);
  static int64_t peak();                         ///< highest live() since reset_peak
  static std::array<int64_t, kParts> at_peak();  ///< live bytes by part when the peak was reached
  static void reset_peak();
  /// Live plus blocks kept for reuse; of a GPU's block the part that was in use since reset_peak, with its gaps.
  static int64_t reserved();
  /// Allocations over it throw UserError (memory), on a GPU what out_of_memory() takes for one; 0: no budget.
  static void set_budget(int64_t bytes);
  static std::string story();  ///< live bytes by part, for error messages

  /// While it lives, allocations of this thread count for `part` (otherwise for compute).
  class Scope {
   public:
    explicit Scope(Part part);
    ~Scope();
    Scope(const Scope&) = delete;

   private:
    Part before_;
  };

  /// While it lives, all allocations of this thread count for `part`, whatever scopes inside it say: memory of a whole
  /// engine that another plan counts as one thing.
  class Only {
   public:
    explicit Only(Part part);
    ~Only();
    Only(const Only&) = delete;

   private:
    std::optional<Part> before_;
  };

  /// What the calling thread takes of the GPU's block in a while: where, and the most at once. Others wait with theirs.
  struct Pool {
    std::vector<std::pair<int64_t, int64_t>> ranges;  ///< offset and bytes, ascending and apart
    int64_t most = 0;
  };
  static void begin_pool();
  static Pool end_pool();
  /// While it lives, work that a graph repeats has the memory that it was captured with, and it counts. Without holds() some of
  /// it is another's.
  class Claim {
   public:
    explicit Claim(const Pool& pool);
    ~Claim();
    Claim(const Claim&) = delete;
    bool holds() const { return holds_; }

   private:
    const Pool& pool_;
    bool holds_ = false;
  };

  /// While it lives, counts the meta tensors that its thread allocates; only one may live at a time in a thread.
  class MetaCount {
   public:
    MetaCount();
    ~MetaCount();
    int64_t live() const;
    int64_t peak() const;
    void reset_peak();
  };
};

/// What the user is told of an error that means too little memory: of a GPU, where allocations throw c10::OutOfMemoryError,
/// because libraries catch it and try with less (cuDNN its convolutions' workspaces), or of the machine (base/limits.h).
std::optional<UserError> out_of_memory(const std::exception& error);

// One block of memory handed out in pieces: best fit, neighbours that are free become one. The same requests in the same
// order get the same addresses.
//
//   Reserve reserve(base, bytes);
//   void* tensor = reserve.take(4096);             // null: no piece is large enough
//   reserve.give(tensor);
//
// Large pieces begin at a multiple of kWindowAlign from the base, as symmetric windows of collectives do
// (device/communicators.h).

class Reserve {
 public:
  static constexpr int64_t kAlign = 256;               ///< of addresses; what libraries of GPUs expect
  static constexpr int64_t kLarge = int64_t{1} << 20;  ///< pieces from here on begin where windows may

  Reserve(void* base, int64_t bytes);

  void* take(int64_t bytes);
  /// The first offset from `from` on at which a large piece may begin and `bytes` are free; -1: there is none.
  int64_t place_for(int64_t bytes, int64_t from) const;
  bool free_at(int64_t offset, int64_t bytes) const;
  /// The bytes at that offset.
  void* take_at(int64_t offset, int64_t bytes);
  void give(void* data);

  int64_t size() const { return bytes_; }
  int64_t used() const { return used_; }
  int64_t largest() const { return largest_piece().second; }  ///< free piece
  /// Its offset and bytes.
  std::pair<int64_t, int64_t> largest_piece() const {
    return free_.empty() ? std::pair<int64_t, int64_t>{} : std::pair{free_.rbegin()->second, free_.rbegin()->first};
  }
  /// The end of the highest piece in use since the last reset_reach(): what the pieces needed with their gaps.
  int64_t reach() const { return reach_; }
  void reset_reach();

 private:
  void add_free(int64_t at, int64_t bytes);
  void* take_from(int64_t begin, int64_t at, int64_t size);

  char* const base_;
  const int64_t bytes_;
  int64_t used_ = 0, reach_ = 0;
  std::map<int64_t, int64_t> places_;           // free pieces: offset to bytes
  std::set<std::pair<int64_t, int64_t>> free_;  // the same: bytes, offset
  std::map<int64_t, int64_t> taken_;            // offset to bytes
};

// A tensor of the device at one offset of the block on all ranks, as symmetric windows want it (comm.h): allocators of ranks
// hold different pieces by then.
//
//   const SamePlace place(comm, bytes);                   // all ranks
//   tensor = at::empty(...);                              // the calling thread's next on the device

class SamePlace {
 public:
  /// Ranks agree on the first offset at which each has room. Does nothing where no NCCL sends, or where there is none.
  SamePlace(comm::Comm& comm, int64_t bytes);
  ~SamePlace();
  SamePlace(const SamePlace&) = delete;
  /// Of the calling thread; -1: anywhere.
  static int64_t wanted();
};

/// The first offset of the device's block, at least `from`, at which `bytes` are free; -1: there is none. By meter.cpp.
int64_t free_place(int64_t bytes, int64_t from);

}  // namespace tessera::engine
