#pragma once
// How one make of weights is known, named and described to other programs: what a model's folder says of its files.
//
//   WeightForm form{.kind = ModelKind::denoiser, .title = "Wan transformers", .model = "wan",
//                   .marks = {"patch_embedding.weight", ...}, .names = {{diffusers_names()}}, .config = config_json};
#include <functional>
#include <nlohmann/json.hpp>

#include "tessera/models/common/identity.h"

namespace tessera::models {

/// Shapes by name, with an error for what is missing.
struct Sizes {
  const Shapes& shapes;
  int64_t operator()(const std::string& name, size_t dim) const;  ///< throws UserError (input)
  bool has(const std::string& name) const { return shapes.count(name) > 0; }
};

/// A config.json that came with the weights, of either form; empty where there is none.
struct GivenConfig {
  nlohmann::ordered_json json;
  /// The field under the name that either form has for it.
  template <class T>
  T get(const char* official, const char* diffusers, T absent) const {
    for (const char* key : {official, diffusers})
      if (json.contains(key) && !json[key].is_null()) return json[key].template get<T>();
    return absent;
  }
  /// What the result begins with: the given one where it is of the same form, so that further fields stay.
  nlohmann::ordered_json base(const char* mark) const {
    return json.contains(mark) ? json : nlohmann::ordered_json::object();
  }
};

/// What a config.json is made from.
struct ConfigSource {
  bool diffusers;  ///< the form that is wanted; else official
  const Identity& identity;
  Sizes size;  ///< by official names
  GivenConfig given;
  const std::string& file;  ///< of the given one, for messages
};

struct WeightForm {
  ModelKind kind = ModelKind::unknown;
  std::string title;               ///< of such models, for messages; empty: there is no other naming
  std::string model, variant;      ///< of Identity, where sizes tell no more
  std::vector<std::string> marks;  ///< official names: a model of this make is there when all of them are
  ForeignNames names;
  /// Modules that diffusers calls as they are, '#' for a number: of LoRA files whose names have lost their dots.
  std::vector<std::string> same_modules = {};
  /// Model and variant by the shapes under official names.
  std::function<void(const Shapes& official, Identity& identity)> refine = {};
  /// The fields of a config.json, of either form. Throws UserError (input), nlohmann's errors for fields of other types.
  std::function<nlohmann::ordered_json(const ConfigSource& source)> config = {};
  std::vector<std::string> config_marks = {};  ///< a config.json of such a model has one of these fields
};

}  // namespace tessera::models
