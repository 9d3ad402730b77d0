#pragma once
// Tensor names of other programs: tables of patterns, and detection of the naming of a file.
//
//   rename({{"blocks.#.self_attn.o.*", "blocks.#.attn1.to_out.0.*"}}, "blocks.7.self_attn.o.bias");
//   Naming naming = detect_naming(official, foreign, kDenoiserNamings, stored, "model.safetensors");
//   weights.read_f32(naming.prefix + foreign(name, naming.naming), ...);
//
// Lookups by name in a table, and the error for an unknown name.
//
//   unknown_name("model.preset", preset, names_of(presets()));
#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace tessera::models {

/// '#' matches a number, a '*' at the end the rest of the name; the other side inserts what they matched.
struct NamePattern {
  std::string_view ours, theirs;
};

/// Whether a pattern of either side fits the name.
bool matches(std::string_view pattern, std::string_view name);

/// Applies the first pattern that matches; a name that none matches is unchanged.
std::string rename(const std::vector<NamePattern>& table, std::string_view name);

/// "tessera" is what training checkpoints hold: the parameters' own names. "fused" and "unfused": files of a family with
/// both, which hold queries, keys and values in one tensor or apart.
inline const std::vector<std::string> kDenoiserNamings = {"official", "diffusers", "tessera", "fused", "unfused"};
inline const std::vector<std::string> kTextNamings = {"official", "hf", "hf-embed-tokens", "hf-encoder"};

/// Tables applied one after the other, official names first; each may be read from right to left, too.
using KeyMap = std::vector<std::vector<NamePattern>>;

std::string to_foreign(const KeyMap& map, std::string_view official);
std::string to_official(const KeyMap& map, std::string_view foreign);
/// The parts of a stored tensor that the map gives names of their own (checkpoint/row_part.h); none for others.
std::vector<std::string> row_parts(const KeyMap& map, std::string_view stored);

/// Some files put one of these in front of every name: ComfyUI, DiffSynth ("pipe.dit."), wrappers of torch, models that
/// the encoder is a part of.
inline const std::vector<std::string> kOptionalPrefixes = {"",
                                                           "model.diffusion_model.",
                                                           "model.",
                                                           "diffusion_model.",
                                                           "pipe.dit.",
                                                           "module.",
                                                           "net.",
                                                           "vision_model.",
                                                           "model.language_model.",
                                                           "module.text_tower.encoder."};

/// The naming of a file: its tensors are called prefix + foreign_name(official, naming).
struct Naming {
  std::string naming = "official";
  std::string prefix;
};

using ForeignName = std::function<std::string(const std::string& name, const std::string& naming)>;

/// The naming under which most of the `official` names are among `stored`. Throws UserError (input) when none of them
/// is under any naming; `file` is for the message.
Naming detect_naming(const std::vector<std::string>& official, const ForeignName& foreign,
                     const std::vector<std::string>& namings, const std::vector<std::string>& stored,
                     const std::string& file);

/// Throws UserError (usage) naming the nearest of `known`, and all of them.
[[noreturn]] void unknown_name(const std::string& key, const std::string& name, const std::vector<std::string>& known);

/// Of a table of (name, config).
template <class Config>
std::vector<std::string> names_of(const std::vector<std::pair<std::string, Config>>& table) {
  std::vector<std::string> names;
  for (const auto& [name, config] : table) names.push_back(name);
  return names;
}

/// The config of that name. Throws as unknown_name.
template <class Config>
const Config& find_named(const std::vector<std::pair<std::string, Config>>& table, const std::string& key,
                         const std::string& wanted) {
  for (const auto& [name, config] : table)
    if (name == wanted) return config;
  unknown_name(key, wanted, names_of(table));
}

}  // namespace tessera::models
