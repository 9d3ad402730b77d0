#include "tessera/models/inspect.h"

#include <algorithm>
#include <map>
#include <set>

#include "tessera/base/check.h"
#include "tessera/base/json.h"
#include "tessera/base/text.h"
#include "tessera/base/units.h"
#include "tessera/checkpoint/lora_settings.h"
#include "tessera/checkpoint/manifest.h"
#include "tessera/checkpoint/model_folder.h"
#include "tessera/checkpoint/weights.h"
#include "tessera/data/text/tokenizer.h"
#include "tessera/families/registry.h"
#include "tessera/models/common/weight_form.h"
#include "tessera/models/lora_file.h"
#include "tessera/models/registry.h"

namespace tessera::models {

using checkpoint::TensorInfo;
using models::ModelKind;
using Json = nlohmann::ordered_json;
namespace fs = std::filesystem;

namespace {

constexpr size_t kMetadataShown = 160;  // characters of a value: some programs put whole configs there

/// Adds up tensors: parameters by dtype, and the rows of the table.
class Tally {
 public:
  explicit Tally(bool all) : all_(all) {}

  void add(const TensorInfo& tensor, const std::string& note = {}) {
    ++tensors_;
    parameters_ += tensor.count();
    bytes_ += tensor.bytes();
    dtypes_[std::string(checkpoint::dtype_name(tensor.dtype))] += tensor.count();
    Inspection::Row row{all_ ? tensor.name : without_numbers(tensor.name), checkpoint::shape_text(tensor.shape),
                        std::string(checkpoint::dtype_name(tensor.dtype)) + note};
    const auto key = row.name + row.shape + row.dtype;
    const auto [place, is_new] = index_.emplace(key, rows_.size());
    if (is_new)
      rows_.push_back(std::move(row));
    else
      ++rows_[place->second].count;
  }
  /// The fields of the contract and what stands with them.
  Json json(const std::string& model, const std::string& naming, const std::string& layout) const {
    std::string most = "none";
    int64_t highest = -1;
    for (const auto& [name, count] : dtypes_)
      if (count > highest) most = name, highest = count;
    return {{"model", model},   {"parameters", parameters_}, {"tensors", tensors_}, {"dtype", most},
            {"naming", naming}, {"layout", layout},          {"dtypes", dtypes_},   {"bytes", bytes_}};
  }
  std::vector<Inspection::Row> rows() { return std::move(rows_); }

 private:
  /// '#' for the first number that stands alone, the layer: "ffn.0" and "ffn.2" are different things.
  static std::string without_numbers(const std::string& name) {
    constexpr const char* kDigits = "0123456789";
    const auto separator = [](char c) { return c == '.' || c == '_'; };
    for (size_t at = name.find_first_of(kDigits); at != name.npos; at = name.find_first_of(kDigits, at)) {
      const size_t end = std::min(name.find_first_not_of(kDigits, at), name.size());
      if (at > 0 && separator(name[at - 1]) && end < name.size() && separator(name[end]))
        return name.substr(0, at) + "#" + name.substr(end);
      at = end;
    }
    return name;
  }

  const bool all_;
  int64_t tensors_ = 0, parameters_ = 0, bytes_ = 0;
  std::map<std::string, int64_t> dtypes_;
  std::vector<Inspection::Row> rows_;
  std::map<std::string, size_t> index_;
};

std::string kind_name(ModelKind kind) {
  switch (kind) {
    case ModelKind::denoiser:
      return "denoiser";
    case ModelKind::vae:
      return "autoencoder";
    case ModelKind::text_encoder:
      return "text encoder";
    case ModelKind::image_encoder:
      return "image encoder";
    case ModelKind::audio_encoder:
      return "speech model";
    case ModelKind::lora:
      return "LoRA";
    default:
      return "tensors";
  }
}

bool is_cache_entry(const checkpoint::WeightSet& weights) {
  const auto& header = weights.metadata();
  return header.contains("version") && ((weights.contains("latent") && header.contains("preprocessing")) ||
                                        (weights.contains("context") && header.contains("caption")));
}

/// Of a LoRA: how many modules, which, their rank and alpha, where the file says them.
void add_lora(const fs::path& path, Json& json) {
  const LoraFile lora = LoraFile::open(path);
  std::set<int64_t> ranks;
  std::set<double> alphas;
  std::set<std::string> targets;
  bool dora = false, rslora = false;
  for (const LoraModule& module : lora.modules()) {
    if (!module.changes()) continue;
    if (module.rank > 0) ranks.insert(module.rank);
    if (!module.factors.empty()) json["adapter"] = module.kind();
    alphas.insert(module.alpha);
    targets.insert(checkpoint::target_of(module.name));
    dora = dora || module.magnitude.has_value();
    rslora = rslora || module.rslora;
  }
  json["modules"] = lora.modules().size();
  json["targets"] = targets;
  if (ranks.size() == 1) json["rank"] = *ranks.begin();
  if (ranks.size() > 1) json["ranks"] = ranks;
  if (alphas.size() == 1) json["alpha"] = *alphas.begin();
  if (alphas.size() > 1) json["alphas"] = alphas;
  if (!lora.has_alpha()) json["alpha_from"] = "rank: the file does not say it";
  if (dora) json["dora"] = true;
  if (const std::string& reason = lora.settings().not_plain; !reason.empty()) json["not_plain"] = reason;
  if (lora.form()) json["of"] = lora.form()->title;
  if (rslora) json["rslora"] = true;
}

std::string layout_of(const checkpoint::WeightSet& weights) {
  const std::string format(weights.files().front().format());
  return weights.files().size() == 1 ? format + " file" : format + " shards";
}

/// The type that the config.json beside the weights tells: training goes by it, and shapes do not tell all types apart.
void take_type(const fs::path& config, const models::Shapes& shapes, models::Identity& identity) {
  if (identity.kind != ModelKind::denoiser || !identity.form->refine || config.empty()) return;
  const auto json = json_or_nothing(checkpoint::read_text(config));
  if (!json.is_object() || !json.contains("model_type") || !json["model_type"].is_string()) return;
  const std::string type = json["model_type"].get<std::string>();
  const std::vector<std::string> types = families::of(models::family_of(identity).name).types;
  if (type == identity.variant || std::ranges::find(types, type) == types.end()) return;
  identity.variant = type;
  identity.form->refine(models::official_shapes(identity, shapes), identity);
}

/// The model of a denoiser's weights; null where it is none of ours, or its sizes are not known.
std::unique_ptr<net::Denoiser> denoiser_of(const models::Shapes& shapes, const fs::path& config) {
  const models::Identity identity = models::identify(shapes);
  if (identity.kind != ModelKind::denoiser) return nullptr;
  try {
    const std::string text =
        models::config_for("official", identity, models::official_shapes(identity, shapes),
                           config.empty() ? std::string() : checkpoint::read_text(config), config.string());
    return models::make_denoiser({.family = models::family_of(identity).name, .config_text = text, .weights = shapes});
  } catch (const UserError&) {
    return nullptr;
  }
}

Inspection inspect_weights(const checkpoint::WeightSet& weights, bool all, const fs::path& config = {}) {
  Tally tally(all);
  models::Shapes shapes;
  for (const auto& file : weights.files()) {
    for (const TensorInfo& tensor : file.tensors()) {
      if (!weights.contains(tensor.name)) continue;  // an index may name but some of a file's tensors
      tally.add(tensor);
      shapes[tensor.name] = tensor.shape;
    }
  }
  models::Identity identity = models::identify(shapes);
  take_type(config, shapes, identity);
  const bool cache = is_cache_entry(weights);
  Inspection result;
  result.json =
      tally.json(cache ? "cache entry" : identity.model, cache ? "tessera" : identity.naming, layout_of(weights));
  result.rows = tally.rows();
  Json& json = result.json;
  json["kind"] = cache ? "cache entry" : kind_name(identity.kind);
  if (const auto model = denoiser_of(shapes, config); model && !model->why_not_trained().empty())
    json["note"] = "not trained here: " + model->why_not_trained();
  if (!identity.variant.empty()) json["variant"] = identity.variant;
  if (!identity.prefix.empty()) json["prefix"] = identity.prefix;
  if (identity.kind == ModelKind::denoiser || identity.kind == ModelKind::text_encoder)
    json["layers"] = models::count_blocks(models::official_shapes(identity, shapes));
  if (identity.kind == ModelKind::lora) add_lora(weights.path(), json);
  json["files"] = Json::array();
  for (const auto& file : weights.files()) json["files"].push_back(file.path().string());
  if (!weights.metadata().empty()) json["metadata"] = weights.metadata();
  return result;
}

Inspection inspect_training(const fs::path& folder, bool all) {
  const checkpoint::Manifest manifest = checkpoint::load_manifest(folder);
  Tally parameters(all), everything(all);
  models::Shapes shapes;
  for (const auto& tensor : manifest.tensors) {
    const TensorInfo info{tensor.name, tensor.dtype, tensor.shape};
    everything.add(info, "  " + tensor.kind);
    if (tensor.kind != "param") continue;
    parameters.add(info);
    shapes[tensor.name] = tensor.shape;
  }
  const models::Identity identity = models::identify(shapes);
  Inspection result;
  result.json = parameters.json(identity.model, identity.naming, "training checkpoint");
  const Json total = everything.json("", "", "");
  result.json["kind"] = "training checkpoint";
  result.json["step"] = manifest.step;
  result.json["mesh"] = manifest.mesh.to_string();
  result.json["all_tensors"] = total["tensors"];
  result.json["bytes"] = total["bytes"];
  result.json["epoch"] = manifest.epoch;
  result.json["cursor"] = manifest.cursor;
  result.rows = everything.rows();
  return result;
}

/// A part, or why it cannot be used: a folder of a download that has not begun, or, where folders are `of_many` models,
/// one with files of several. Throws UserError (input) for damaged files.
Json inspect_part(const checkpoint::ModelPart& part, bool of_many) {
  Json json = {{"part", part.role}};
  const auto unusable = [&](const std::string& why) {
    json.update(Json{{"files", Json::array()}, {"naming", "unknown"}, {"dtype", "none"}, {"problem", why}});
  };
  if (part.role.starts_with("tokenizer")) {
    try {
      const fs::path file = data::tokenizer_in(part.weights);
      json.update(Json{{"files", {file.string()}}, {"naming", file.filename().string()}, {"dtype", "none"}});
    } catch (const UserError& error) {
      unusable(error.what());
    }
    return json;
  }
  bool begun = !fs::is_directory(part.weights);
  if (!begun && !of_many)
    for (const auto& item : fs::directory_iterator(part.weights))
      begun = begun || checkpoint::is_weight_file(item.path()) || item.path().string().ends_with(".index.json");
  try {
    json.update(inspect_weights(checkpoint::open_weights(part.weights), false, part.config).json);
  } catch (const UserError& error) {
    if (begun) throw;
    unusable(error.what());
  }
  return json;
}

/// The parts that training reads and that are not there, by what the denoiser is conditioned on.
std::vector<std::string> missing_parts(const checkpoint::ModelFolder& folder, const std::set<std::string>& usable) {
  std::vector<std::string> wanted = {"transformer", "text_encoder", "tokenizer", "vae"};
  const checkpoint::ModelPart* denoiser = folder.find("transformer");
  bool trained = false;  // a model may be found and be none that a run trains
  if (denoiser && usable.contains("transformer")) {
    const models::Shapes shapes = checkpoint::stored_shapes(checkpoint::open_weights(denoiser->weights));
    const auto model = denoiser_of(shapes, denoiser->config);
    const net::Conditions takes = model ? model->conditions() : net::Conditions{};
    trained = !model || model->why_not_trained().empty();
    if (takes.clip_dim > 0) wanted.emplace_back("image_encoder");
    if (takes.audio_dim > 0) wanted.emplace_back("audio_encoder");
    if (takes.pooled_dim > 0) wanted.insert(wanted.end(), {"text_encoder_2", "tokenizer_2"});
    if (takes.glyph_dim > 0) wanted.emplace_back("text_encoder_2");
    for (const families::Family& family : families::all())
      if (!family.experts.empty() && denoiser->weights.filename() == family.experts[0].folder)
        wanted.emplace_back("transformer_2");
  }
  std::erase_if(wanted,
                [&](const std::string& role) { return usable.contains(role) && (role != "transformer" || trained); });
  return wanted;
}

/// A folder of several parts: totals, and each part.
Inspection inspect_parts(const checkpoint::ModelFolder& folder) {
  Inspection result;
  Json& json = result.json;
  int64_t parameters = 0, tensors = 0, bytes = 0;
  Json parts = Json::array();
  std::set<std::string> usable;
  const Json* first = nullptr;
  for (const auto& part : folder.parts) {
    const Json& one = parts.emplace_back(inspect_part(part, folder.layout == "comfyui"));
    if (!one.contains("problem")) usable.insert(part.role);
    parameters += one.value("parameters", int64_t{0});
    tensors += one.value("tensors", int64_t{0});
    bytes += one.value("bytes", int64_t{0});
  }
  for (const Json& part : parts)
    if (!first && part.contains("model")) first = &part;
  const Json none = {{"model", "unknown"}, {"dtype", "none"}, {"naming", "unknown"}};
  if (!first) first = &none;
  json = {{"model", (*first)["model"]},   {"parameters", parameters},
          {"tensors", tensors},           {"dtype", (*first)["dtype"]},
          {"naming", (*first)["naming"]}, {"layout", folder.layout + " folder"},
          {"kind", "folder of models"},   {"bytes", bytes}};
  const checkpoint::ModelFacts facts = checkpoint::find_facts(folder.path);
  if (facts.boundary) json["boundary"] = *facts.boundary;
  if (facts.flow_shift) json["flow_shift"] = *facts.flow_shift;
  if (folder.layout != "gate") json["missing"] = missing_parts(folder, usable);
  json["parts"] = std::move(parts);
  return result;
}

/// The name of the part that a model by itself is.
std::string part_of_kind(const std::string& kind) {
  constexpr std::pair<std::string_view, const char*> kParts[] = {{"denoiser", "transformer"},
                                                                 {"autoencoder", "vae"},
                                                                 {"text encoder", "text_encoder"},
                                                                 {"image encoder", "image_encoder"},
                                                                 {"speech model", "audio_encoder"}};
  for (const auto& [name, part] : kParts)
    if (kind == name) return part;
  return kind;
}

std::string thousands(int64_t number) {
  std::string text = std::to_string(number);
  for (int64_t at = static_cast<int64_t>(text.size()) - 3; at > 0; at -= 3) text.insert(static_cast<size_t>(at), ",");
  return text;
}

std::string field_text(const Json& value) {
  if (value.is_string()) return value.get<std::string>();
  if (value.is_number_integer()) return thousands(value.get<int64_t>());
  return value.dump(-1, ' ', false, Json::error_handler_t::replace);
}

/// "a.safetensors, b.safetensors and 3 more"
std::string file_names(const Json& files) {
  constexpr size_t kShown = 3;
  std::string text;
  for (size_t i = 0; i < files.size() && i < kShown; ++i)
    text += (i > 0 ? ", " : "") + fs::path(files[i].get<std::string>()).filename().string();
  return text + (files.size() > kShown ? " and " + std::to_string(files.size() - kShown) + " more" : "");
}

void add_fields(const Json& json, const std::string& indent, std::string& text) {
  const auto line = [&](const std::string& name, std::string value) {
    if (value.size() > kMetadataShown) value = value.substr(0, kMetadataShown) + "...";
    text +=
        indent + printable(name) + std::string(name.size() < 12 ? 12 - name.size() : 1, ' ') + printable(value) + "\n";
  };
  for (const auto& [key, value] : json.items()) {
    if (key == "bytes") {
      line("size", format_bytes(value.get<int64_t>()));
    } else if (key == "dtypes") {
      if (value.size() > 1) line("dtypes", field_text(value));
    } else if (key == "files") {
      if (value.size() > 1 || !indent.empty()) line("files", file_names(value));
    } else if (key == "part") {
      continue;
    } else if (key == "missing") {
      std::string list;
      for (const Json& part : value) list += (list.empty() ? "" : ", ") + part.get<std::string>();
      line("missing", list.empty() ? "nothing: a run can train from this folder" : list + ", to train");
    } else if (key == "metadata") {
      for (const auto& [name, item] : value.items()) line("  " + name, field_text(item));
    } else if (key == "parts") {
      for (const Json& part : value) {
        if (value.size() == 1) break;  // the model itself
        text += "\n" + part["part"].get<std::string>() + "\n";
        add_fields(part, "  ", text);
      }
    } else {
      line(key, field_text(value));
    }
  }
}

}  // namespace

Inspection inspect(const fs::path& path, bool all) {
  std::error_code error;
  if (fs::exists(path / "manifest.json", error)) return inspect_training(path, all);
  if (path.filename() == "manifest.json") return inspect_training(path.parent_path(), all);
  const checkpoint::ModelFolder folder = checkpoint::find_parts(path);
  if (folder.parts.size() > 1) return inspect_parts(folder);
  Inspection alone = inspect_weights(checkpoint::open_weights(folder.parts[0].weights), all, folder.parts[0].config);
  if (!fs::is_directory(folder.path)) return alone;
  Json part = {{"part", part_of_kind(alone.json["kind"].get<std::string>())}};
  for (const char* key : {"files", "naming", "dtype"}) part[key] = alone.json[key];
  alone.json["parts"] = Json::array({part});
  return alone;
}

std::string to_text(const Inspection& inspection) {
  std::string text;
  add_fields(inspection.json, "", text);
  if (inspection.rows.empty()) return text;
  size_t width = 0, shape_width = 0;
  for (const auto& row : inspection.rows) {
    width = std::max(width, row.name.size());
    shape_width = std::max(shape_width, row.shape.size());
  }
  text += "\n";
  for (const auto& row : inspection.rows) {
    text += printable(row.name) + std::string(width - row.name.size() + 2, ' ') + row.shape +
            std::string(shape_width - row.shape.size() + 2, ' ') + row.dtype;
    if (row.count > 1) text += "  x" + std::to_string(row.count);
    text += "\n";
  }
  return text;
}

}  // namespace tessera::models
