#include "tessera/job/second_encoder.h"

#include <algorithm>

#include "tessera/base/check.h"
#include "tessera/families/registry.h"
#include "tessera/models/registry.h"

namespace tessera::job {

namespace {

using Presets = std::vector<std::pair<std::string, int64_t>>;

/// Each with its width.
Presets glyph_presets() {
  Presets found;
  for (const std::string& preset : families::names_in(&families::Family::glyph_encoders))
    found.emplace_back(preset, models::make_text_encoder({.preset = preset})->dim());
  return found;
}

std::unique_ptr<net::TextEncoder> open_one(const char* key, std::string name, int64_t width, const Presets& presets,
                                           const std::string& takes, bool pools) {
  if (name == "auto") {
    const auto found = std::ranges::find(presets, width, &Presets::value_type::second);
    if (found == presets.end()) {
      std::vector<std::string> known;
      for (const auto& [preset, its_width] : presets) known.push_back(std::to_string(its_width) + " of " + preset);
      throw UserError(Exit::usage, key, takes + "which no preset makes",
                      "give the model the width of one: " + families::listed(known, "or"));
    }
    name = found->first;
  }
  auto encoder = models::make_text_encoder({.preset = name});
  const bool has_row = encoder->pooled_row({0}) >= 0;
  if (has_row == pools && encoder->dim() == width) return encoder;
  throw UserError(Exit::usage, key,
                  takes + "'" + name + "' makes " +
                      (has_row == pools ? (pools ? "one of " : "rows of ") + std::to_string(encoder->dim()) : "none"),
                  "auto is the encoder of the model's width");
}

}  // namespace

std::unique_ptr<net::TextEncoder> open_second_encoder(const recipe::Recipe& recipe, const net::Conditions& wanted) {
  const auto width = [](int64_t number) { return std::to_string(number); };
  if (wanted.pooled_dim > 0)
    return open_one("data.pooled_encoder", recipe.data.pooled_encoder, wanted.pooled_dim, models::pooled_presets(),
                    "the model takes one vector of " + width(wanted.pooled_dim) + " a caption, ", /*pools=*/true);
  if (wanted.glyph_dim > 0)
    return open_one("data.glyph_encoder", recipe.data.glyph_encoder, wanted.glyph_dim, glyph_presets(),
                    "the model takes rows of " + width(wanted.glyph_dim) + " of quoted text, ", /*pools=*/false);
  if (!recipe.data.glyph_encoder_path.empty())
    throw UserError(Exit::usage, "data.glyph_encoder_path", "the model reads no quoted text", "leave it out");
  return nullptr;
}

}  // namespace tessera::job
