#pragma once
// Tensors of an autoencoder's file, looked up with errors that name file, tensor and shapes.
//
//   expect_tensor(weights, "conv1.weight", {32, 16, 1, 1, 1}, "is this the whole file?");
//   const StoredWeights stored(weights, {"encoder.conv_in.conv.weight"}, "official");
//   Config config = config_of_weights(stored.shapes(), weights.file);
//   stored.expect(parameters(config), "Open-Sora 1.3's autoencoder");
#include "tessera/models/vae/shape_of.h"
#include "tessera/models/vae/video_vae.h"
#include "tessera/models/vae/weights_on_demand.h"

namespace tessera::models {

bool has_tensor(const WeightSource& weights, const std::string& name);

/// Throws UserError (input) where it is missing, or with `hint` where it has another shape.
void expect_tensor(const WeightSource& weights, const std::string& name, const std::vector<int64_t>& shape,
                   const std::string& hint);

/// What stands for a released tensor where there is no file: factors of norms (one dimension that is not 1) are 1,
/// biases 0, others normal with a deviation of the inputs' number to the power of -1/2. The same in every process.
Tensor random_tensor(const std::string& name, const std::vector<int64_t>& shape);

/// Such tensors for all of these parameters.
ReadWeight random_weights(const std::vector<Parameter>& parameters);

/// The shapes of the model that a config.json is made for.
ShapeOf shapes_of(const ConfigSource& source);

/// The tensors of a file that calls them as the code does, behind a prefix that all share.
class StoredWeights {
 public:
  /// `marks` tell the prefix. Throws UserError (input) where the file has none of them.
  StoredWeights(const WeightSource& source, const std::vector<std::string>& marks, const std::string& naming);

  /// What the file calls it.
  std::string full(const std::string& name) const { return prefix_ + name; }
  ShapeOf shapes() const;  ///< while this lives
  /// Throws UserError (input) where one is missing or of another shape: these are not weights of `title`.
  void expect(const std::vector<Parameter>& parameters, const std::string& title) const;
  ReadWeight reader() const;  ///< for as long as it is kept

 private:
  const WeightSource& source_;
  std::string prefix_;
};

}  // namespace tessera::models
