#pragma once
// Frozen weights of the host tier in memory that ranks of a machine share: [Note: shared weights] of plan/shared_weights.h.
//
//   SharedWeights shared(model, plan, comm, rank);        // all ranks together
//   HostMemory* memory = shared.memory(unit, expert);     // trained parameters of this rank, and the shared ones behind them
//   if (shared.fills(unit)) ...                           // then shared.end_fill() on all ranks
//
// The ranks of a machine agree, unit by unit, whether they share: where one of them cannot (TESSERA_SHARED_MEMORY=0, no room,
// a container of its own), each keeps its own, and the first of them says why.
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "tessera/comm/comm.h"
#include "tessera/engine/store/host_memory.h"
#include "tessera/plan/plan.h"

namespace tessera::engine {

class SharedWeights {
 public:
  SharedWeights(const plan::ModelSpec& model, const plan::Plan& plan, comm::Comm& comm, int rank);

  /// Of the unit's parameters of an expert; null: this rank keeps its own.
  HostMemory* memory(int unit, int expert) const;
  /// The ranks that share the unit's frozen weights, in order; empty: none do.
  const std::vector<int>& sharers(int unit) const { return units_[static_cast<size_t>(unit)].sharers; }
  /// Whether this rank writes the unit's frozen weights: nobody shares them, or it fills them for all.
  bool fills(int unit) const;
  /// Host bytes that this rank counts of all memory(): its own, and its part of what is shared.
  int64_t counted_bytes() const { return counted_; }

  /// Before weights are written: waits until no rank of the machine reads them any more. They begin so.
  void begin_fill();
  /// Before weights are read: waits until all are written. From then on a write ends the process.
  void end_fill();
  bool filling() const { return filling_; }  ///< between the two

  enum class Refusal { none, turned_off, no_room, unreachable };

 private:
  struct Unit {
    std::vector<int> sharers;
    int64_t own = 0, frozen = 0;  // bytes of an expert
    Refusal refusal = Refusal::none;
  };
  using Files = std::vector<std::unique_ptr<comm::SharedFile>>;
  Files make(int experts);
  void agree();

  const int rank_;
  std::vector<Unit> units_;
  std::map<std::pair<int, int>, std::unique_ptr<HostMemory>> memory_;  // by unit and expert
  comm::Group* group_ = nullptr;  // the ranks of the machine; null: nothing is shared
  int64_t counted_ = 0;
  bool filling_ = true;
};

}  // namespace tessera::engine
