#pragma once
// The weights of an autoencoder, which are read when they are needed first and may be released again.
//
//   WeightsOnDemand weights(parameters(config), read);
//   run_layers(layers, weights.loaded(), pixels);            // on the device of this rank
//   weights.release();
#include <functional>
#include <string>
#include <vector>

#include "tessera/net/plain_context.h"

namespace tessera::models {

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
  net::WeightMap meta() const;  ///< shapes without values, to count a pass
  int64_t bytes() const;
  /// Of all values, in the order of names, for cache keys. Reads one at a time where they are not loaded.
  uint64_t hash() const;
  void release() const { weights_.clear(); }

 private:
  const std::vector<Parameter> parameters_;
  const ReadWeight read_;
  mutable net::WeightMap weights_;  // empty until they are needed
};

}  // namespace tessera::models
