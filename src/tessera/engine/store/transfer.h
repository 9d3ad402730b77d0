#pragma once
// Values into and out of shards: initial weights, weight files, checkpoints. No rank ever holds a whole model: each
// reads and writes the ranges that it owns.
#include <map>

#include "tessera/checkpoint/training.h"
#include "tessera/checkpoint/weights.h"
#include "tessera/comm/comm.h"
#include "tessera/engine/store/store.h"
#include "tessera/net/unit_update.h"

namespace tessera::engine {

/// Writes elements [first, first + count) of a parameter.
using Fill = std::function<void(const plan::ParamSpec& param, int64_t first, int64_t count, float* out)>;

/// The quantisation error of a frozen parameter: sums of squares of its values and of the error, over the elements for
/// which this rank is primary.
struct Rounding {
  double squares = 0, difference = 0;
};
using Roundings = std::map<std::string, Rounding>;  ///< by parameter

/// Fills this rank's shards and adds the errors to `rounded` (null: not needed).
void fill_shards(Store& store, const Fill& fill, Roundings* rounded = nullptr, bool trained_alone = false);

/// Streams weights into shards. `name_in_file` maps our parameter name to the file's. Throws UserError (input) for a
/// missing tensor or another shape; `hint` turns the name and found shape into what to try. Parameters whose name in
/// the file is empty are filled by `absent`.
void load_weights(Store& store, const checkpoint::WeightSet& weights,
                  const std::function<std::string(const std::string&)>& name_in_file,
                  const std::function<std::string(const std::string&, const std::vector<int64_t>&)>& hint,
                  const Fill& absent = {}, Roundings* rounded = nullptr, bool trained_alone = false);

/// This rank's part of a training checkpoint: masters and optimiser states of trained parameters, in memory borrowed
/// from the store, where they will be when expert `next` is the active one (-1: when the active one is). Names begin with
/// `prefix`.
std::vector<checkpoint::Piece> checkpoint_pieces(Store& store, const std::string& prefix = {}, int next = -1);
/// The reverse, from any layout. Masters saved in another form are converted; moments in another form throw UserError
/// (input) that names plan.moments.
void restore(Store& store, checkpoint::TrainingCheckpoint& from, const std::string& prefix = {});
/// Sets the averages of a run that begins (plan::StateFormat::ema) to the weights, of the active expert. Without averages it
/// does nothing.
void begin_averages(Store& store);
/// Sets the weights to their saved averages (plan::StateFormat::ema), without states: to sample. Throws UserError (input)
/// for a checkpoint that has none.
void restore_average(Store& store, checkpoint::TrainingCheckpoint& from, const std::string& prefix = {});

/// Gathers one unit and calls `each(param, whole tensor)` for its parameters in order, then `done` while the tensors
/// are still valid. All ranks take part and see the values. With `gradients` it gathers the reduced gradients instead.
void whole_unit(Store& store, comm::Comm& comm, int unit, bool gradients,
                const std::function<void(const plan::ParamSpec&, const Tensor&)>& each,
                const std::function<void()>& done = {});

}  // namespace tessera::engine
