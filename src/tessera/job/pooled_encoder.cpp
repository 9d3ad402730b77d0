#include "tessera/job/pooled_encoder.h"

#include "tessera/base/check.h"
#include "tessera/families/registry.h"
#include "tessera/models/registry.h"

namespace tessera::job {

std::unique_ptr<net::TextEncoder> open_pooled_encoder(const recipe::Recipe& recipe, const net::Conditions& wanted) {
  if (wanted.pooled_dim == 0) return nullptr;
  const std::string takes = "the model takes one vector of " + std::to_string(wanted.pooled_dim) + " a caption, ";
  std::string name = recipe.data.pooled_encoder;
  if (name == "auto") name = models::pooled_preset(wanted.pooled_dim);
  if (name.empty()) {
    std::vector<std::string> known;
    for (const auto& [preset, width] : models::pooled_presets())
      known.push_back(std::to_string(width) + " of " + preset);
    throw UserError(Exit::usage, "data.pooled_encoder", takes + "which no preset makes",
                    "give the model the width of one: " + families::listed(known, "or"));
  }
  auto encoder = models::make_text_encoder({.preset = name});
  if (const bool pools = encoder->pooled_row({0}) >= 0; !pools || encoder->dim() != wanted.pooled_dim)
    throw UserError(Exit::usage, "data.pooled_encoder",
                    takes + "'" + name + "' makes " + (pools ? "one of " + std::to_string(encoder->dim()) : "none"),
                    "auto is the encoder of the model's width");
  return encoder;
}

}  // namespace tessera::job
