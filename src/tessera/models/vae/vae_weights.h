#pragma once
// The weights of an autoencoder: looked up in a file, with errors that name file, tensor and shapes; read when they are
// needed first, and released again; hashed for cache keys.
//
//   const StoredWeights stored(source, {"encoder.conv_in.conv.weight"}, "official");
//   Config config = config_of_weights(stored.shapes(), source.file);
//   stored.expect(parameters(config), "Open-Sora 1.3's autoencoder");
//   WeightsOnDemand weights(parameters(config), stored.reader());
//   LayerRunner(weights).run(encoder, pixels);               // on the device of this rank
//   weights.release();
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "tessera/models/vae/file_sizes.h"
#include "tessera/net/plain_context.h"

namespace tessera::models {

using at::Tensor;

/// The tensors of a file, whatever its format.
struct WeightSource {
  std::string file;  ///< for messages
  std::vector<std::string> names;
  std::function<std::vector<int64_t>(const std::string& name)> shape;
  std::function<Tensor(const std::string& name)> read;  ///< fp32, of that shape; the autoencoder keeps the function
};

inline constexpr uint64_t kHashStart = 0xCBF29CE484222325;
/// FNV-1a over 8 bytes at a time: half a gigabyte in a fraction of a second.
uint64_t hash_tensor(uint64_t hash, const at::Tensor& tensor);

struct Parameter {
  std::string name;  ///< by which the code calls it: official, or diffusers'
  std::vector<int64_t> shape;
};

/// The values of a parameter by its name, fp32.
using ReadWeight = std::function<at::Tensor(const std::string& name)>;

class WeightsOnDemand {
 public:
  WeightsOnDemand(std::vector<Parameter> parameters, ReadWeight read);

  /// On the device that the calling thread computes on; reads all where they are not there. One thread encodes.
  const net::WeightMap& loaded() const;
  const net::WeightMap& meta() const;  ///< shapes without values, to count a pass
  /// Those that a pass over `clip` needs.
  const net::WeightMap& of(const Tensor& clip) const { return clip.is_meta() ? meta() : loaded(); }
  int64_t bytes() const;
  /// Of all values, in the order of names, for cache keys. Reads one at a time where they are not loaded.
  uint64_t hash() const;
  void release() const { weights_.clear(); }

 private:
  const std::vector<Parameter> parameters_;
  const ReadWeight read_;
  mutable net::WeightMap weights_, meta_;  // empty until they are needed
};

bool has_tensor(const WeightSource& weights, const std::string& name);

/// Throws UserError (input) where it is missing, or with `hint` where it has another shape.
void expect_tensor(const WeightSource& weights, const std::string& name, const std::vector<int64_t>& shape,
                   const std::string& hint);

/// What stands for a released tensor where there is no file: factors of norms (one dimension that is not 1) are 1,
/// biases 0, others normal with a deviation of the inputs' number to the power of -1/2. The same in every process.
Tensor random_tensor(const std::string& name, const std::vector<int64_t>& shape);

/// Such tensors for all of these parameters.
ReadWeight random_weights(const std::vector<Parameter>& parameters);

/// The tensors of a file that calls them as the code does, or as diffusers does, behind a prefix that all share.
class StoredWeights {
 public:
  /// `marks` tell the prefix, and which names they are where `diffusers` has others. Throws UserError (input) where the
  /// file has none of them.
  StoredWeights(const WeightSource& source, const std::vector<std::string>& marks, const std::string& naming,
                const KeyMap& diffusers = {});

  /// What the file calls it.
  std::string full(const std::string& name) const { return prefix_ + to_foreign(map_, name); }
  ShapeOf shapes() const;  ///< while this lives
  /// Throws UserError (input) where one is missing or of another shape: these are not weights of `title`.
  void expect(const std::vector<Parameter>& parameters, const std::string& title) const;
  ReadWeight reader() const;  ///< for as long as it is kept

 private:
  const WeightSource& source_;
  std::string prefix_;
  KeyMap map_;  // empty: the code's own names
};

}  // namespace tessera::models
