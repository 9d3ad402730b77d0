#include "tessera/job/text_weights.h"

#include "tessera/models/common/names.h"

namespace tessera::job {

weights::NamedWeights open_text_weights(const net::TextEncoder& encoder, const std::string& path) {
  const auto foreign = [&encoder](const std::string& name, const std::string& naming) {
    return encoder.foreign_name(name, naming);
  };
  return weights::NamedWeights(path, encoder.units(), foreign, models::kTextNamings);
}

std::string likely_text_cause(const std::string&, const std::vector<int64_t>&) {
  return "does data.text_encoder name the encoder of these weights?";
}

}  // namespace tessera::job
