#include "tessera/models/convert_plan.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>

#include "tessera/base/check.h"
#include "tessera/base/json.h"
#include "tessera/checkpoint/json.h"
#include "tessera/checkpoint/row_part.h"
#include "tessera/checkpoint/weights.h"
#include "tessera/families/registry.h"
#include "tessera/models/common/weight_form.h"
#include "tessera/models/encoders/clip_vision.h"
#include "tessera/models/known.h"
#include "tessera/models/named_weights.h"
#include "tessera/models/registry.h"

namespace tessera::models {

using models::ModelKind;

namespace {

/// Where a part of a model of several goes: folder (relative to OUT), file without its ending, format where none is
/// asked.
struct Place {
  fs::path folder;
  std::string stem, format;
};

Place place_of(const std::string& to, const std::string& role, const models::Identity& identity,
               const families::Family& family, bool two_experts) {
  const bool of_transformers = role.starts_with("text_encoder") || role == "image_encoder";  // the library
  if (to == "diffusers") return {role, of_transformers ? "model" : "diffusion_pytorch_model", "safetensors"};
  if (const families::ReleasedFile* released = families::released_file(family, role, identity.variant)) {
    if (to == "comfyui") return {released->comfyui_folder, released->comfyui, "safetensors"};
    if (released->folder)
      return {released->official, of_transformers ? "model" : "diffusion_pytorch_model", "safetensors"};
    return {"", released->official, "pth"};
  }
  if (identity.kind != ModelKind::denoiser && to == "official")  // the release is the denoiser alone: beside it
    return {role, of_transformers ? "model" : "diffusion_pytorch_model", "safetensors"};
  families::Expert expert;  // of two transformers; else none
  if (two_experts && family.experts.size() == 2) expert = family.experts[role == "transformer" ? 0 : 1];
  if (to == "comfyui" && identity.kind != ModelKind::denoiser)  // its folders, a file's name for each model
    return {role == "vae"             ? "vae"
            : role == "image_encoder" ? "clip_vision"
                                      : "text_encoders",
            identity.model, "safetensors"};
  if (to == "comfyui")
    return {"diffusion_models", identity.model + (expert.name.empty() ? "" : "_" + expert.name), "safetensors"};
  return {expert.folder, "diffusion_pytorch_model", "safetensors"};
}

/// Of the transformer, which comes first; of encoders alone the standard one.
families::Family family_of(const ConvertPlan& plan, const models::Identity& first) {
  return families::of(models::family_of(plan.parts.empty() ? first : plan.parts.front().identity).name);
}

DType dtype_for(const std::string& wanted, DType stored) {
  if (wanted.empty() || !is_floating(stored)) return stored;
  if (wanted == "fp8_scaled") return stored;  // but for weights of blocks, see in_scaled_fp8
  return wanted == "fp32" ? DType::f32 : wanted == "bf16" ? DType::bf16 : DType::f16;
}

/// "Wan transformers, UMT5": what has names in other programs.
std::string known_titles() {
  std::string text;
  for (const models::WeightForm* form : models::weight_forms())
    if (text.find(form->title) == text.npos) text += (text.empty() ? "" : ", ") + form->title;
  return text;
}

[[noreturn]] void unknown_names(const ConvertedPart& part, const std::string& to) {
  const std::string file = part.source.path.string();
  if (part.identity.form)  // known, and read, but no renaming makes another program's files of it
    throw UserError(Exit::input, "convert",
                    file + ": is " + part.identity.model + " as " + part.identity.variant +
                        " has it: training reads it, convert knows no other names for it",
                    "use it as it is, or convert the release of " + part.identity.model +
                        " that diffusers reads; without --to " + to +
                        ", format and dtype can be changed and names stay");
  const auto& tensors = part.source.tensors;
  throw UserError(Exit::input, "convert",
                  file + ": is none of the models whose names are known (" + known_titles() + "); it has " +
                      checkpoint::shown(tensors.empty() ? "nothing" : tensors[0].name),
                  "without --to " + to + ", format and dtype can be changed and names stay");
}

/// ComfyUI's files have the official names, and so the constants among them.
bool holds_constants(const std::string& to, const models::Identity& identity) {
  return to == "official" || (to == "comfyui" && identity.form && identity.form->constants);
}

/// Every tensor with its new name and dtype, in file order; parts of one tensor of the output together, at the place of
/// the first of them. `beside` gets those that only official files hold, where the output is none.
std::vector<ConvertedTensor> renamed(ConvertedPart& part, const ConvertOptions& options,
                                     std::vector<ConvertedTensor>& beside) {
  const bool keep = options.to.empty() || part.identity.kind == ModelKind::image_encoder;  // regrouped already
  const bool has_names = part.identity.names && !(part.identity.form && part.identity.form->title.empty());
  if (!keep && !has_names) unknown_names(part, options.to);
  std::vector<ConvertedTensor> tensors;
  std::set<std::string> taken;
  std::map<std::string, size_t> wholes;
  for (const auto& info : part.source.tensors) {
    const auto official = keep ? std::optional(info.name) : part.identity.official(info.name);
    const std::string name = !official ? "" : keep ? *official : part.identity.foreign(*official, options.to);
    if (!official || !taken.insert(name).second) {  // no part of the model, or the second name of a tied embedding
      part.left_out.push_back(info.name);
      continue;
    }
    const std::vector<int64_t> shape =
        keep ? info.shape : models::shape_under(part.identity.form, *official, options.to, info.shape);
    const ConvertedTensor tensor = {{info}, {name, dtype_for(options.dtype, info.dtype), shape}};
    if (const auto rows = checkpoint::row_part(name)) {
      const auto [place, first] = wholes.try_emplace(rows->whole, tensors.size());
      if (first) {
        tensors.push_back({{}, {rows->whole, tensor.out.dtype, checkpoint::stored_shape(*rows, info.shape)}});
      }
      tensors[place->second].sources.push_back(info);
      tensors[place->second].parts.push_back(*rows);
    } else if (!keep && !holds_constants(options.to, part.identity) &&
               models::is_official_only(part.identity, *official)) {
      beside.push_back(tensor);
    } else {
      tensors.push_back(tensor);
    }
  }
  for (const ConvertedTensor& tensor : tensors) {
    int64_t there = 0;
    for (const checkpoint::RowPart& rows : tensor.parts) there += rows.size();
    check_input(tensor.parts.empty() || there == tensor.parts[0].count, "convert",
                part.source.path.string() + ": lacks a part of " + tensor.out.name,
                "the file is not whole: fetch it again");
  }
  return tensors;
}

/// The names of the model's parameters, ours; none where its sizes are not known.
std::set<std::string> parameters_of(const models::Identity& identity, const models::Shapes& shapes,
                                    const std::string& given, const std::string& file) {
  std::set<std::string> names;
  try {
    const models::Shapes official = models::official_shapes(identity, shapes);
    const auto model =
        models::make_denoiser({.family = models::family_of(identity).name,
                               .config_text = models::config_for("official", identity, official, given, file),
                               .weights = shapes});
    for (const auto& unit : model->units())
      for (const auto& param : unit->spec().params) names.insert(param.name);
  } catch (const UserError&) {  // a member of the family that is not trained here, or sizes that shapes do not tell
    return {};
  }
  return names;
}

/// Refuses tensors that a known transformer has no parameter for, or leaves them out. Those of the autoencoder and text
/// encoder of an all-in-one file stay where names stay, and are left out where the transformer gets other names.
void settle_extra(ConvertedPart& part, const ConvertOptions& options, const std::string& given, const std::string& file,
                  std::vector<std::string>& warnings) {
  if (part.identity.kind != ModelKind::denoiser) return;
  const models::Shapes shapes = shapes_of(part.source.tensors);
  const std::set<std::string> known = parameters_of(part.identity, shapes, given, file);
  if (known.empty()) return;
  const auto has = [&](const std::string& stored) {
    const auto ours = part.identity.official(stored);
    return !ours || known.count(*ours) > 0;  // one without the prefix is told with what is left out
  };
  std::vector<std::string> stored;
  for (const auto& tensor : part.source.tensors) stored.push_back(tensor.name);
  const ExtraTensors extra = extra_tensors(stored, part.identity, [&](const std::string& name) {
    const std::vector<std::string> rows = part.identity.parts(name);
    return rows.empty() ? has(name) : std::ranges::all_of(rows, has);
  });
  const std::string path = part.source.path.string();
  if (!extra.unknown.empty() && options.extra_tensors == "refuse")
    refuse_extra("convert", path, extra, part.identity,
                 "go on without these: --extra-tensors drop; with them, under their names: --extra-tensors keep");
  std::set<std::string> gone;
  const auto leave_out = [&](const std::vector<std::string>& names, const std::string& what) {
    if (names.empty()) return;
    gone.insert(names.begin(), names.end());
    warnings.push_back(path + ": " + std::to_string(names.size()) + " tensors are left out, " + what + ": " +
                       checkpoint::shown(names.front()) + (names.size() > 1 ? ", ..." : ""));
  };
  if (options.extra_tensors == "drop") leave_out(extra.unknown, "the model has no parameters for them");
  if (!options.to.empty()) leave_out(extra.other_parts, "they are of the autoencoder or text encoder in the same file");
  std::erase_if(part.source.tensors, [&](const auto& tensor) { return gone.count(tensor.name) > 0; });
}

/// The linears of a transformer's blocks in fp8, each with the scale that takes its largest magnitude to the largest
/// code, and the tensor by which ComfyUI knows such a file.
std::vector<ConvertedTensor> in_scaled_fp8(const ConvertedPart& part, const std::string& to,
                                           std::vector<ConvertedTensor> tensors) {
  constexpr std::string_view kWeight = ".weight", kScale = ".scale_weight";
  const auto of_block = [&](const ConvertedTensor& tensor) {
    const std::string ours = part.identity.official(tensor.sources[0].name).value_or("");
    return ours.substr(0, ours.find('.')).ends_with("blocks");
  };
  const std::string prefix = to.empty() ? part.identity.prefix : part.identity.names->comfyui_prefix;
  std::vector<ConvertedTensor> result;
  result.push_back({{}, {(to == "official" ? "" : prefix) + "scaled_fp8", DType::f8_e4m3, {0}}});
  for (ConvertedTensor& tensor : tensors) {
    const bool linear = tensor.out.shape.size() == 2 && tensor.out.name.ends_with(kWeight) && of_block(tensor);
    if (!linear || !is_floating(tensor.out.dtype)) {
      result.push_back(std::move(tensor));
      continue;
    }
    tensor.quantised = {tensor.out.name, DType::f32, tensor.out.shape};
    tensor.out.dtype = DType::f8_e4m3;
    ConvertedTensor scale = tensor;
    scale.out = {
        tensor.out.name.substr(0, tensor.out.name.size() - kWeight.size()) + std::string(kScale), DType::f32, {1}};
    result.push_back(std::move(tensor));
    result.push_back(std::move(scale));
  }
  return result;
}

/// Files of at most `limit` bytes, filled in order, numbered when there are several.
std::vector<ConvertedFile> sharded(std::vector<ConvertedTensor> tensors, const Place& place, const std::string& format,
                                   int64_t limit) {
  std::vector<ConvertedFile> files(1);
  int64_t bytes = 0;
  for (auto& tensor : tensors) {
    if (format == "safetensors" && bytes > 0 && bytes + tensor.out.bytes() > limit) {
      files.emplace_back();
      bytes = 0;
    }
    bytes += tensor.out.bytes();
    files.back().tensors.push_back(std::move(tensor));
  }
  for (size_t i = 0; i < files.size(); ++i) {
    char number[32] = "";
    if (files.size() > 1) std::snprintf(number, sizeof number, "-%05zu-of-%05zu", i + 1, files.size());
    files[i].format = format;
    files[i].path = place.folder / (place.stem + number + "." + format);
  }
  return files;
}

std::string index_json(const std::vector<ConvertedFile>& files) {
  nlohmann::ordered_json index = {{"metadata", {{"total_size", 0}}}, {"weight_map", nlohmann::ordered_json::object()}};
  int64_t total = 0;
  for (const auto& file : files) {
    for (const auto& tensor : file.tensors) {
      index["weight_map"][tensor.out.name] = file.path.filename().string();
      total += tensor.out.bytes();
    }
  }
  index["metadata"]["total_size"] = total;
  return index.dump(2) + "\n";
}

/// What makes a folder a pipeline of diffusers. What the source has of it says more than what we make up.
void add_pipeline(const checkpoint::ModelFolder& folder, ConvertPlan& plan) {
  models::PipelineParts parts;
  parts.tokenizer = folder.find("tokenizer") != nullptr;
  const models::Family* family = &models::families().front();
  for (const ConvertedPart& part : plan.parts) {
    parts.roles.insert(part.role);
    if (part.role != "transformer") continue;
    parts.variant = part.identity.variant;
    family = &models::family_of(part.identity);
  }
  if (!family->pipeline_files) return;
  const checkpoint::ModelFacts facts = checkpoint::find_facts(folder.path);
  for (auto [path, text] : family->pipeline_files(parts)) {
    const fs::path given = folder.path / path;
    const auto tell = [&](const char* file, const char* key, const std::optional<double>& fact) {
      if (path != file || !fact) return;
      auto json = parse_ordered_json(text, file);
      json[key] = *fact;
      text = json.dump(2) + "\n";
    };
    if (parts.has("transformer_2")) tell("model_index.json", "boundary_ratio", facts.boundary);
    tell("scheduler/scheduler_config.json", "flow_shift", facts.flow_shift);
    plan.texts[path] = fs::exists(given) ? checkpoint::read_text(given) : text;
  }
}

/// The dtype that transformers goes by, where the config.json says one.
std::string with_dtype(const std::string& config, const std::string& dtype) {
  if (dtype.empty() || !json_or_nothing(config).is_object()) return config;
  auto json = parse_ordered_json(config, "config.json");
  bool changed = false;
  for (const char* key : {"torch_dtype", "dtype"})
    if (json.contains(key) && json[key].is_string() && dtype != "fp8_scaled")
      json[key] = dtype == "fp32" ? "float32" : dtype == "bf16" ? "bfloat16" : "float16", changed = true;
  return changed ? json.dump(2) + "\n" : config;
}

/// Whether a given config.json says nothing else than `made` in the fields that both have: then it stays as it is.
bool agrees(const std::string& given, const std::string& made) {
  const auto old = json_or_nothing(given), now = json_or_nothing(made);
  if (!old.is_object() || !now.is_object()) return false;
  int64_t both = 0;
  for (const auto& [key, value] : now.items()) {
    if (!old.contains(key)) continue;
    if (old[key] != value) return false;
    ++both;
  }
  return both > 1;  // more than a name: else it is that of another model in the same folder
}

/// An autoencoder's config.json beside a file without one, where it says other than the release: other statistics of the
/// latents, for instance.
void keep_settings(const ConvertedPart& part, const models::Shapes& official, const std::string& given,
                   const fs::path& file, ConvertPlan& plan) {
  if (part.identity.kind != ModelKind::vae || given.empty() || file.empty()) return;
  const std::string config = models::config_for("official", part.identity, official, given, file.string());
  const auto ours = json_or_nothing(config),
             released = json_or_nothing(models::config_for("official", part.identity, official, "", file.string()));
  bool same = true;  // in what both say: further fields of the given one mean nothing to who reads the file alone
  for (const auto& [key, value] : released.items()) same = same && ours.contains(key) && ours[key] == value;
  if (same) return;
  const fs::path beside = fs::path(file).replace_extension("config.json");
  plan.texts[beside] = config;
  plan.warnings.push_back(part.source.path.string() +
                          ": its settings are not those of the release, which programs take " + "for this file; " +
                          beside.string() + " has them, and Tessera reads it");
}

bool is_index(const fs::path& file) {
  const std::string name = file.filename().string();
  return name.ends_with(".json") && name.find(".index.") != name.npos;
}

/// Every file that is no weights and that nothing else of the plan writes: licences, processors, the scheduler. Of a model
/// alone, whose folder may be anyone's, what programs put beside it. Components of a pipeline that are not known here go
/// as they are; other weights are told.
void add_others(const checkpoint::ModelFolder& folder, bool to_pipeline, ConvertPlan& plan) {
  const fs::path& root = folder.path;
  if (plan.single_file || !fs::is_directory(root) || fs::exists(root / "manifest.json") ||
      fs::exists(root / "recipe.toml"))
    return;
  const bool alone = folder.layout == "single", pipeline = folder.layout == "diffusers";
  const std::set<std::string> beside = {".json", ".txt", ".md", ".model", ".jinja"};
  const auto index = json_or_nothing(
      fs::exists(root / "model_index.json") ? checkpoint::read_text(root / "model_index.json") : std::string());
  std::set<fs::path> parts, copied;
  for (const auto& part : folder.parts) parts.insert(part.weights);
  for (const auto& [from, to] : plan.copies) copied.insert(from);
  std::vector<std::string> left;
  for (auto item = fs::recursive_directory_iterator(root); item != fs::recursive_directory_iterator(); ++item) {
    const fs::path path = item->path(), inside = path.lexically_relative(root);
    const std::string top = inside.begin()->string();
    const bool part = parts.contains(root / top) && inside != fs::path(top);
    if (item->is_directory()) {
      if (alone || path.filename().string().starts_with('.') || copied.contains(path) ||
          (parts.contains(path) && pipeline != to_pipeline))
        item.disable_recursion_pending();
      continue;
    }
    if (!item->is_regular_file() || path.filename().string().starts_with('.') || copied.contains(path) ||
        plan.texts.contains(inside) || is_index(path) || parts.contains(path))
      continue;
    const bool component = index.is_object() && index.contains(top) && !part && to_pipeline;
    if (checkpoint::is_weight_file(path) && !component) {
      if (!part && !parts.contains(path.parent_path())) left.push_back(inside.string());
      continue;
    }
    const bool of_form = path.filename() == "config.json" && parts.contains(path.parent_path());
    if (of_form || (inside == "model_index.json" && !to_pipeline) || inside == checkpoint::kExpertsFile ||
        (alone && !beside.contains(path.extension().string())))
      continue;
    plan.copies.emplace_back(path, inside);
  }
  if (!left.empty())
    plan.warnings.push_back(root.string() + ": weights that are no part of the model are left out: " + left.front() +
                            (left.size() > 1 ? " and " + std::to_string(left.size() - 1) + " more" : ""));
}

/// The config.json that came with the weights; for a training checkpoint the one of the run's model/, if it is there.
fs::path config_beside(const checkpoint::ModelPart& part) {
  const fs::path of_run = fs::absolute(part.weights).lexically_normal() / "../../model/config.json";
  return part.config.empty() && fs::exists(part.weights / "manifest.json") && fs::exists(of_run) ? of_run : part.config;
}

/// What the official program wants beside the parameters and files of others lack.
void add_constants(ConvertedPart& part, const models::Shapes& stored) {
  if (!part.identity.form || !part.identity.form->constants) return;
  const auto constants = std::make_shared<std::map<std::string, models::ConstantTensor>>(
      part.identity.form->constants(models::official_shapes(part.identity, stored)));
  Source more{part.source.path, {}, {}, {}, {}};
  const std::string& prefix = part.identity.prefix;
  for (const auto& [name, constant] : *constants)
    if (std::ranges::none_of(part.source.tensors, [&](const auto& info) { return info.name == prefix + name; }))
      more.tensors.push_back({prefix + name, DType::f32, constant.shape});
  more.read = [constants, prefix](const checkpoint::TensorInfo& info, void* to) {
    std::memcpy(to, constants->at(info.name.substr(prefix.size())).values.data(), static_cast<size_t>(info.bytes()));
  };
  part.source = together(part.source, more);
}

void add_part(const checkpoint::ModelPart& source, const checkpoint::ModelFolder& folder, const ConvertOptions& options,
              ConvertPlan& plan) {
  ConvertedPart part{source.role, open_source(source.weights, options.averaged), {}, {}, {}};
  const models::Shapes shapes = shapes_of(part.source.tensors);
  part.identity = models::identify(shapes);
  const fs::path config_file = config_beside(source);
  const std::string given = config_file.empty() ? "" : checkpoint::read_text(config_file);
  settle_extra(part, options, given, config_file.string(), plan.warnings);
  if (part.identity.kind == ModelKind::image_encoder && !options.to.empty())
    part.source = regroup_clip(part.source, part.identity, options.to, part.left_out);
  part.source = divided(part.source, part.identity);
  if (const fs::path more = official_only_beside(source.weights); options.to == "official" && fs::exists(more))
    part.source = together(part.source, open_source(more));
  if (holds_constants(options.to, part.identity)) add_constants(part, shapes);
  std::vector<ConvertedTensor> beside, tensors = renamed(part, options, beside);
  check_input(!tensors.empty(), "convert", part.source.path.string() + ": holds no tensors of the model");
  if (options.dtype == "fp8_scaled" && part.identity.kind == ModelKind::denoiser)
    tensors = in_scaled_fp8(part, options.to, std::move(tensors));
  for (const auto* list : {&tensors, &beside}) {
    for (const auto& tensor : *list) plan.bytes += tensor.out.bytes();
    plan.tensors += static_cast<int64_t>(list->size());
  }

  if (plan.single_file) {
    const std::string ending = options.out.extension() == ".safetensors" ? "safetensors" : "pth";
    part.files.push_back({{}, ending, std::move(tensors)});
    if (!beside.empty())
      part.files.push_back({official_only_beside(options.out).filename(), "safetensors", std::move(beside)});
    if (!options.to.empty() && options.to != "diffusers")
      keep_settings(part, models::official_shapes(part.identity, shapes), given, options.out.filename(), plan);
    plan.parts.push_back(std::move(part));
    return;
  }
  const bool by_place = folder.layout == "diffusers" || folder.layout == "comfyui";
  const std::string kept = by_place ? folder.layout : part.identity.naming == "diffusers" ? "diffusers" : "official";
  const std::string to = options.to.empty() ? kept : options.to;
  // A model alone lies in the folder itself, under the names that both programs look for.
  const bool alone = folder.layout == "single";
  const bool text = part.identity.kind == ModelKind::text_encoder || part.identity.kind == ModelKind::image_encoder;
  const Place place = alone ? Place{"", text ? "model" : "diffusion_pytorch_model", "safetensors"}
                            : place_of(to, source.role, part.identity, family_of(plan, part.identity),
                                       folder.find("transformer_2") != nullptr);
  const std::string format = options.format.empty() ? place.format : options.format;
  part.files = sharded(std::move(tensors), place, format, options.shard_size);
  if (part.files.size() > 1)
    plan.texts[place.folder / (place.stem + ".safetensors.index.json")] = index_json(part.files);

  if (!beside.empty())
    part.files.push_back({place.folder / "official_only.safetensors", "safetensors", std::move(beside)});

  // the official layout has no config of text encoder and autoencoder, ComfyUI none at all
  const bool in_own_folder = to != "comfyui" && place.folder == fs::path(source.role);
  const std::string form = in_own_folder ? "diffusers" : to == "comfyui" ? "official" : to;
  const bool wants_config =
      alone || to == "diffusers" || in_own_folder || (to == "official" && part.identity.kind == ModelKind::denoiser);
  if (wants_config) {
    std::string config = part.identity.names
                             ? models::config_for(form, part.identity, models::official_shapes(part.identity, shapes),
                                                  given, config_file.string())
                             : given;
    if (options.to.empty() && agrees(given, config)) config = given;
    if (!config.empty()) plan.texts[place.folder / "config.json"] = with_dtype(config, options.dtype);
  } else {
    keep_settings(part, models::official_shapes(part.identity, shapes), given, part.files.front().path, plan);
  }
  plan.parts.push_back(std::move(part));
}

/// What can hold fp8 with scales: a transformer in safetensors under the names of programs that read them.
void check_scaled_fp8(const ConvertOptions& options, const ConvertPlan& plan) {
  if (options.dtype != "fp8_scaled") return;
  const auto refuse = [&](const std::string& why, const std::string& hint) {
    throw UserError(Exit::usage, "convert", "--dtype fp8_scaled: " + why, hint);
  };
  bool transformer = false;
  for (const ConvertedPart& part : plan.parts) {
    if (part.identity.kind != ModelKind::denoiser) continue;
    transformer = true;
    const std::string naming = options.to.empty() ? part.identity.naming : options.to;
    if (naming == "diffusers" && !part.identity.names->comfyui_as_diffusers)
      refuse("programs that read diffusers' names know no scales beside weights", "add --to comfyui or --to official");
    if (part.files.front().format != "safetensors")
      refuse("a .pth has no place for it", "name OUT.safetensors, or a folder");
  }
  if (!transformer)
    refuse(options.in.string() + " holds no transformer that is known", "bf16 is for all other weights");
}

}  // namespace

ConvertPlan plan_conversion(const ConvertOptions& options) {
  const checkpoint::ModelFolder folder = checkpoint::find_parts(options.in);
  ConvertPlan plan;
  if (folder.layout == "gate")
    throw UserError(
        Exit::usage, "convert",
        options.in.string() + " holds experts and the gate that chooses among them, which no other program has",
        "convert one of them, for instance " + folder.parts[0].weights.string());
  plan.single_file = checkpoint::is_weight_file(options.out);
  if (plan.single_file && folder.parts.size() > 1)
    throw UserError(Exit::usage, "convert",
                    options.in.string() + " has " + std::to_string(folder.parts.size()) + " parts, " +
                        options.out.string() + " is one file",
                    "name one part, for instance " + folder.parts[0].weights.string() + ", or a folder as OUT");
  const bool sharded_torch = !options.format.empty() && plan.single_file &&
                             (options.out.extension() == ".safetensors") != (options.format == "safetensors");
  if (sharded_torch)
    throw UserError(Exit::usage, "convert",
                    "--format " + options.format + " and the name " + options.out.string() + " differ",
                    "leave one of them out");

  const bool pipeline = options.to == "diffusers" || (options.to.empty() && folder.layout == "diffusers");
  const auto inside = [&](const checkpoint::ModelPart& part) {
    const fs::path place = part.weights.lexically_relative(folder.path);
    return place.empty() || *place.begin() == ".." ? part.weights.filename() : place;
  };
  for (const auto& part : folder.parts) {
    const bool with_encoder = std::ranges::any_of(folder.parts, [&](const checkpoint::ModelPart& other) {
      return other.role.starts_with("text_encoder") && other.weights == part.weights;
    });
    if (part.role.starts_with("tokenizer")) {
      const std::string released = pipeline || part.role != "tokenizer" ? "" : family_of(plan, {}).tokenizer;
      if (!with_encoder) plan.copies.emplace_back(part.weights, released.empty() ? part.role : released);
    } else if ((part.role == "image_encoder" && options.to.empty()) || part.role == "audio_encoder" ||
               (part.role == "text_encoder_2" && !options.to.empty())) {
      plan.copies.emplace_back(part.weights, inside(part));
    } else {
      add_part(part, folder, options, plan);
    }
  }
  if (folder.layout != "single" && pipeline) add_pipeline(folder, plan);
  if (const checkpoint::ModelFacts facts = checkpoint::find_facts(folder.path);
      folder.find("transformer_2") && !pipeline && (facts.boundary || facts.flow_shift))
    plan.texts[checkpoint::kExpertsFile] = checkpoint::experts_text(facts);
  add_others(folder, pipeline || folder.layout == "single", plan);
  check_scaled_fp8(options, plan);
  for (const auto& part : plan.parts)
    if (!part.left_out.empty())
      plan.warnings.push_back(part.source.path.string() + ": " + std::to_string(part.left_out.size()) +
                              " tensors are left out, they have no place in the model: " + part.left_out.front() +
                              (part.left_out.size() > 1 ? ", ..." : ""));
  return plan;
}

namespace {

namespace clip = models::clip;
using checkpoint::TensorInfo;

constexpr const char* kVision = "vision_model.";  // of transformers, in front of every name
constexpr std::string_view kFused = ".attn.to_qkv.", kQuery = ".self_attn.q_proj.";

/// Where the bytes of an output tensor lie: in these, one after the other, from a byte of the first on.
struct Origin {
  std::vector<TensorInfo> from;
  int64_t offset = 0;
};

/// The form that a tensor has without, and with, the leading dimensions of one that the official file has.
std::vector<int64_t> shape_for(const std::string& official, const std::vector<int64_t>& shape, bool to_official) {
  const bool table = official == "visual.cls_embedding" || official == "visual.pos_embedding";
  if (!table) return shape;
  std::vector<int64_t> result;
  for (int64_t size : shape)
    if (size != 1 || !result.empty()) result.push_back(size);
  const size_t dims = official == "visual.cls_embedding" ? 1 : 2;
  while (result.size() > dims) result.erase(result.begin());
  if (to_official) result.insert(result.begin(), 3 - result.size(), 1);
  return result;
}

/// The official name of a stored tensor, with the query standing for the fused one; empty: no place, or part of it.
std::string official_of(const models::Identity& identity, const std::string& stored) {
  std::string name = identity.official(stored).value_or("");
  if (const size_t at = name.find(kQuery); at != name.npos && name.starts_with("encoder.layers."))
    name = "visual.transformer." + name.substr(15, at - 15) + std::string(kFused) + name.substr(at + kQuery.size());
  return name.starts_with("visual.") ? name : "";
}

}  // namespace

Source regroup_clip(const Source& source, const models::Identity& identity, const std::string& to,
                    std::vector<std::string>& left_out) {
  const bool from_official = identity.naming == "official", to_official = to == "official";
  std::map<std::string, TensorInfo> stored;
  for (const TensorInfo& info : source.tensors) stored[info.name] = info;
  auto origins = std::make_shared<std::map<std::string, Origin>>();
  Source result{source.path, {}, source.metadata, source.files, {}};
  std::map<std::string, bool> used;
  for (const TensorInfo& info : source.tensors) {
    const std::string official = official_of(identity, info.name);
    if (official.empty()) continue;
    if (official == "visual.head" && !to_official) continue;  // CLIPVisionModel ends before it
    const bool fused = official.find(kFused) != official.npos;
    Origin origin;
    for (const std::string& part : clip::stored_parts(official, from_official ? "official" : "hf")) {
      const auto found = stored.find(identity.prefix + part);
      check_input(found != stored.end(), "convert", source.path.string() + ": lacks " + identity.prefix + part,
                  "the file is not whole: fetch it again");
      origin.from.push_back(found->second);
      used[found->first] = true;
    }
    std::vector<int64_t> shape = origin.from.front().shape;
    shape.front() = 0;
    for (const TensorInfo& part : origin.from) shape.front() += part.shape.front();
    const std::vector<std::string> names = to_official ? std::vector{official} : clip::stored_parts(official, "hf");
    if (fused)
      shape.front() = div_exact(shape.front(), static_cast<int64_t>(names.size()), "rows of queries, keys, values");
    for (const std::string& name : names) {
      TensorInfo out = info;
      out.name = to_official ? name : kVision + name;
      out.shape = shape_for(official, shape, to_official);
      (*origins)[out.name] = origin;
      origin.offset += out.bytes();
      result.tensors.push_back(out);
    }
  }
  for (const TensorInfo& info : source.tensors)
    if (!used[info.name]) left_out.push_back(info.name);
  result.read = [origins, read = source.read](const TensorInfo& info, void* to_bytes) {
    const Origin& origin = origins->at(info.name);
    std::vector<std::byte> bytes;
    for (const TensorInfo& part : origin.from) {
      const size_t at = bytes.size();
      bytes.resize(at + static_cast<size_t>(part.bytes()));
      read(part, bytes.data() + at);
    }
    std::memcpy(to_bytes, bytes.data() + origin.offset, static_cast<size_t>(info.bytes()));
  };
  return result;
}

}  // namespace tessera::models
