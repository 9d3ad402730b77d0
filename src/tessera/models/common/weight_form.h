#pragma once
// The files of one model architecture: how its tensors are recognised, their names in other programs, its config.json.
//
//   WeightForm form{.kind = ModelKind::denoiser, .title = "Wan transformers", .model = "wan",
//                   .marks = {"patch_embedding.weight", ...}, .names = {{diffusers_names()}}, .config = config_json};
//
// The parts of a diffusers folder, from which the pipeline's own files are written.
//
//   PipelineParts parts{.variant = "t2v", .roles = {"transformer", "vae"}, .tokenizer = true};
//
// Writes a model's config.json in the form of another program, from the shapes of its tensors and the config.json that
// came with it.
//
//   std::string text = config_for("diffusers", identity, official_shapes(identity, shapes), given);
//
// Shapes decide what they can; what they cannot tell (number of heads, text length, statistics of the latents) comes
// from the given config.json of either form, or is what the released models have.
#include <array>
#include <functional>
#include <nlohmann/json.hpp>
#include <set>
#include <string>

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
  /// The fields over those that the weights tell, `known`, unless they are a whole file: it has one of the two fields.
  nlohmann::ordered_json over(const std::string& known, const char* official, const char* diffusers) const {
    if (json.contains(official) || json.contains(diffusers)) return json;
    nlohmann::ordered_json whole = nlohmann::ordered_json::parse(known);
    whole.merge_patch(json);
    return whole;
  }
  /// The start of the result: the given config if it has the same form, so that its further fields stay.
  nlohmann::ordered_json base(const char* mark) const {
    return json.contains(mark) ? json : nlohmann::ordered_json::object();
  }
};

/// The inputs of a config.json.
struct ConfigSource {
  bool diffusers;  ///< the form that is wanted; else official
  const Identity& identity;
  Sizes size;  ///< by official names
  GivenConfig given;
  const std::string& file;  ///< of the given config, for messages
};

/// A tensor that is no parameter and always the same.
struct ConstantTensor {
  std::vector<int64_t> shape;
  std::vector<float> values;
};

struct WeightForm {
  ModelKind kind = ModelKind::unknown;
  std::string title;               ///< of such models, for messages; empty: there is no other naming
  std::string model, variant;      ///< of Identity, unless the sizes determine them
  std::vector<std::string> marks;  ///< official names: a file is of this form if it has all of them
  size_t mark_dims =
      0;  ///< dimensions of the first mark's tensor, where files of another form have the same names; 0: any
  ForeignNames names;
  /// Tensors of official files that are no parameters, as in NamePattern: they have no place in other namings.
  std::vector<std::string> official_only = {};
  /// Those of them that never change, which the official program wants, for a model of these parameters.
  std::map<std::string, ConstantTensor> (*constants)(const Shapes& official) = nullptr;
  /// Tensors [1, C, 1, 1] of official files that diffusers has as [C], as in NamePattern.
  std::vector<std::string> flat_in_diffusers = {};
  std::string null_caption = {};  ///< the one of them that is the learned embedding [n, D] of no caption; empty: none
  /// Modules whose name is the same in diffusers, '#' for a number; for LoRA files whose names have no dots.
  std::vector<std::string> same_modules = {};
  /// Model and variant by the shapes under official names.
  std::function<void(const Shapes& official, Identity& identity)> refine = {};
  /// The fields of a config.json, of either form. Throws UserError (input), nlohmann's errors for fields of other
  /// types.
  std::function<nlohmann::ordered_json(const ConfigSource& source)> config = {};
  /// Fields of an official config.json that neither the shapes tell nor, for sizes that were released, the release; a
  /// file without a config.json is refused without them. Null: there are none.
  std::vector<std::string> (*untold)(const Shapes& official, const Identity& identity) = nullptr;
  std::vector<std::string> config_marks = {};  ///< a config.json of such a model has one of these fields
};

/// The shape that a tensor has under a naming, whatever that of `shape` is. `form` may be null.
std::vector<int64_t> shape_under(const WeightForm* form, std::string_view official, std::string_view naming,
                                 const std::vector<int64_t>& shape);

/// Whether an official file of the model may hold this tensor beside its parameters.
bool is_official_only(const Identity& identity, std::string_view official);

struct PipelineParts {
  std::string variant;          ///< of its transformer; empty: there is none
  std::set<std::string> roles;  ///< names of the parts' folders
  bool tokenizer = false;
  bool has(const std::string& role) const { return roles.count(role) > 0; }
};

/// `to`: official or diffusers; `given`: text of a config.json, may be empty or that of another model (then it is not
/// looked at); `file` names it in messages. Empty where the model is not known. Throws UserError (input).
std::string config_for(const std::string& to, const Identity& identity, const Shapes& official,
                       const std::string& given, const std::string& file);

// What the weights of a model of two streams must tell. Throws UserError (input).

/// Whole numbers of heads and of the feed-forward's multiple of the width; `head` and `mlp_dim` are the tensors' sizes.
void check_heads(int64_t heads, int64_t mlp_ratio, int64_t head, int64_t mlp_dim, int64_t width);
/// How heads are rotated: no tensor has it, only a config.json or a release with heads of this width.
void check_rotation(const std::array<int64_t, 3>& axes, int64_t head_dim);

}  // namespace tessera::models
