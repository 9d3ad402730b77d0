#pragma once
// What an optimiser of another trainer saved: a file of torch.save, or a folder of ColossalAI's trainers.
//
//   const auto states = open_foreign_states("outputs/000-STDiT3/epoch0-global_step12");
//   states->step();                                               // 12
//   if (const auto moment = states->find("0", "exp_avg")) moment->read(values);
//
// | form                                       | step                 | weights in order   | moments                   |
// |--------------------------------------------|----------------------|--------------------|---------------------------|
// | {"model", "optimizer", "step"}             | "step"               | of "model"         | optimizer.state.0.exp_avg |
// | epoch*-global_step*/, torch.save           | running_states.json  | index of model/    | optimizer/pytorch_optim-* |
// | epoch*-global_step*/, written while it ran | the same             | the same           | optimizer/optimizer-*     |
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tessera/checkpoint/safetensors.h"
#include "tessera/checkpoint/weights.h"

namespace tessera::checkpoint {

class ForeignStates {
 public:
  struct Moment {
    Shape shape;
    std::function<void(float*)> read;  ///< all of it, of any floating dtype; valid while the states live
  };

  virtual ~ForeignStates() = default;
  virtual int64_t step() const = 0;  ///< updates that are done
  virtual std::vector<std::string> order()
      const = 0;  ///< the model's tensors as its trainer registers them, buffers too
  /// Of the parameter that has this number among those trained, or this name; nothing where it has none. `kind`:
  /// "exp_avg" or "exp_avg_sq".
  virtual std::optional<Moment> find(const std::string& parameter, const std::string& kind) const = 0;
  virtual std::string place(const std::string& parameter, const std::string& kind) const = 0;  ///< for messages
  /// Of more than one group parameters are numbered group by group.
  virtual int64_t groups() const = 0;
  /// The average of the weights, of the same names; nothing where none was saved. Throws UserError (input) where only
  /// a rank's part of it is there.
  virtual std::optional<WeightSet> average() const = 0;
  /// What tells these states from others: path, bytes and time.
  virtual std::string identity() const = 0;
};

/// Throws UserError (input) for what is no such file or folder, saying what is missing.
std::unique_ptr<ForeignStates> open_foreign_states(const std::string& path);

/// Throws the refusal of what run.resume names.
[[noreturn]] void refuse_foreign(const std::string& what, const std::string& hint);

}  // namespace tessera::checkpoint
