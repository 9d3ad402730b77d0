#pragma once
// What each instruction of a schedule reads and writes, and the memory that it takes and frees: the part of
// engine/executor.cpp that other lanes can notice. The sizes are those from which memory is predicted.
//
//   AccessWalk walk(model, plan, rank);
//   for (const Instruction& in : schedule.list) for (const Access& a : walk.run(in).accesses) ...
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "tessera/plan/schedule.h"

namespace tessera::plan {

/// Everything that two lanes can share. Ranges are bytes of `arena`, `host` and `disk`, and otherwise numbers of things:
/// units, or a unit's micro-batches (AccessWalk::block).
enum class Memory {
  arena,             ///< slots, gradient slots, scratch and reloaded buffers
  host,              ///< offloaded activations, and buffers on their way to or from disk
  disk,              ///< offloaded activations
  parameters,        ///< a unit's shard in its placement
  gradients,         ///< likewise
  states,            ///< likewise
  saved,             ///< activations that a unit offloads, on the device
  outputs,           ///< what a unit passes to the next, maybe by a message
  output_gradients,  ///< the gradient of that
  norms,             ///< a unit's share of the norm
  control,           ///< what the norm decides: clipping, learning rate, whether to skip
};
inline constexpr int kMemories = 11;

struct Access {
  Memory memory;
  int64_t begin, end;
  bool writes = false;  ///< or reads and writes
};

struct Effects {
  std::vector<Access> accesses;
  /// Uses memory that is taken where the instruction stands in the list, and so may have been anyone's before.
  bool takes = false;
  std::vector<Access> frees;  ///< what others may take from the next instruction on
};

class AccessWalk {
 public:
  /// Keeps references to `model` and `plan`.
  AccessWalk(const ModelSpec& model, const Plan& plan, int rank);

  /// The effects of the list's next instruction.
  Effects run(const Instruction& in);

  /// "arena [0, 4096)", "what blocks.3 saved of micro-batch 1".
  std::string describe(const Access& access) const;

 private:
  using Uses = std::vector<Access>;
  Access block(Memory memory, int unit, int micro, bool writes) const;
  Access shard(Memory memory, int unit, bool writes) const { return {memory, unit, unit + 1, writes}; }
  Access parameters(const Instruction& in) const;
  void gather(const Instruction& in, Uses& uses) const;
  void gradient(const Instruction& in, Uses& uses) const;
  Access summed_gradient(const Instruction& in) const;
  void norm(const Instruction& in, Uses& uses);
  void update(const Instruction& in, Uses& uses) const;
  void move(const Instruction& in, Uses& uses) const;
  void move_activations(const Instruction& in, Uses& uses) const;
  void compute(const Instruction& in, Effects& effects) const;

  const ModelSpec& model_;
  const Plan& plan_;
  const int count_;
  std::vector<int> own_;  // units of this rank's stages
  std::vector<UnitLayout> layouts_;
  std::vector<int64_t> parameter_bytes_, trained_bytes_, state_bytes_;
  std::vector<bool> shared_;    // by unit: its share of the norm was taken before the norm
  std::map<int, Access> sent_;  // by instruction
  int next_ = 0;                // index of the next instruction
};

}  // namespace tessera::plan
