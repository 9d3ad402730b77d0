#include "tessera/weights/convert_plan.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

#include "tessera/base/check.h"
#include "tessera/checkpoint/json.h"
#include "tessera/checkpoint/row_part.h"
#include "tessera/checkpoint/weights.h"
#include "tessera/families/registry.h"
#include "tessera/models/foreign_config.h"
#include "tessera/models/known.h"
#include "tessera/weights/convert_clip.h"

namespace tessera::weights {

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
  const bool of_transformers = role == "text_encoder" || role == "image_encoder";  // the library
  if (to == "diffusers") return {role, of_transformers ? "model" : "diffusion_pytorch_model", "safetensors"};
  if (const families::ReleasedFile* released = families::released_file(family, role, identity.variant)) {
    if (to == "comfyui") return {released->comfyui_folder, released->comfyui, "safetensors"};
    return {"", released->official, "pth"};
  }
  families::Expert expert;  // of two transformers; else none
  if (two_experts && family.experts.size() == 2) expert = family.experts[role == "transformer" ? 0 : 1];
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
    const ConvertedTensor tensor = {{info}, {name, dtype_for(options.dtype, info.dtype), info.shape}};
    if (const auto rows = checkpoint::row_part(name)) {
      const auto [place, first] = wholes.try_emplace(rows->whole, tensors.size());
      if (first) {
        tensors.push_back({{}, {rows->whole, tensor.out.dtype, checkpoint::stored_shape(*rows, info.shape)}});
      }
      tensors[place->second].sources.push_back(info);
      tensors[place->second].parts.push_back(*rows);
    } else if (!keep && options.to != "official" && models::is_official_only(part.identity, *official)) {
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

/// What makes a folder a pipeline of diffusers.
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
  for (const auto& [path, text] : family->pipeline_files(parts)) plan.texts[path] = text;
}

/// The config.json that came with the weights; for a training checkpoint the one of the run's model/, if it is there.
fs::path config_beside(const checkpoint::ModelPart& part) {
  const fs::path of_run = fs::absolute(part.weights).lexically_normal() / "../../model/config.json";
  return part.config.empty() && fs::exists(part.weights / "manifest.json") && fs::exists(of_run) ? of_run : part.config;
}

void add_part(const checkpoint::ModelPart& source, const checkpoint::ModelFolder& folder, const ConvertOptions& options,
              ConvertPlan& plan) {
  ConvertedPart part{source.role, open_source(source.weights, options.averaged), {}, {}, {}};
  const models::Shapes shapes = shapes_of(part.source.tensors);
  part.identity = models::identify(shapes);
  if (part.identity.kind == ModelKind::image_encoder && !options.to.empty())
    part.source = regroup_clip(part.source, part.identity, options.to, part.left_out);
  part.source = divided(part.source, part.identity);
  if (const fs::path more = official_only_beside(source.weights); options.to == "official" && fs::exists(more))
    part.source = together(part.source, open_source(more));
  std::vector<ConvertedTensor> beside, tensors = renamed(part, options, beside);
  check_input(!tensors.empty(), "convert", part.source.path.string() + ": holds no tensors of the model");
  for (const auto* list : {&tensors, &beside}) {
    for (const auto& tensor : *list) plan.bytes += tensor.out.bytes();
    plan.tensors += static_cast<int64_t>(list->size());
  }

  if (plan.single_file) {
    const std::string ending = options.out.extension() == ".safetensors" ? "safetensors" : "pth";
    part.files.push_back({{}, ending, std::move(tensors)});
    if (!beside.empty())
      part.files.push_back({official_only_beside(options.out).filename(), "safetensors", std::move(beside)});
    plan.parts.push_back(std::move(part));
    return;
  }
  const std::string kept = part.identity.naming == "diffusers" ? "diffusers" : "official";
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
  const bool wants_config =
      alone || to == "diffusers" || (to == "official" && part.identity.kind == ModelKind::denoiser);
  if (wants_config) {
    const fs::path config_file = config_beside(source);
    const std::string given = config_file.empty() ? "" : checkpoint::read_text(config_file);
    const std::string config =
        part.identity.names
            ? models::config_for(to == "comfyui" ? "official" : to, part.identity,
                                 models::official_shapes(part.identity, shapes), given, config_file.string())
            : given;
    if (!config.empty()) plan.texts[place.folder / "config.json"] = config;
  }
  plan.parts.push_back(std::move(part));
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

  for (const auto& part : folder.parts) {
    if (part.role == "tokenizer") {
      plan.copies.emplace_back(part.weights,
                               options.to == "diffusers" || (options.to.empty() && folder.layout == "diffusers")
                                   ? "tokenizer"
                                   : family_of(plan, {}).tokenizer);
    } else if (part.role == "image_encoder" && options.to.empty()) {
      plan.copies.emplace_back(part.weights, part.weights.filename());
    } else {
      add_part(part, folder, options, plan);
    }
  }
  if (folder.layout != "single" &&
      (options.to == "diffusers" || (options.to.empty() && folder.layout == "diffusers"))) {
    add_pipeline(folder, plan);
    if (folder.layout == "diffusers")  // what it has says more than what we make up
      for (const char* given : {"model_index.json", "scheduler/scheduler_config.json"})
        if (fs::exists(options.in / given)) plan.texts[given] = checkpoint::read_text(options.in / given);
  }
  for (const auto& part : plan.parts)
    if (!part.left_out.empty())
      plan.warnings.push_back(part.source.path.string() + ": " + std::to_string(part.left_out.size()) +
                              " tensors are left out, they have no place in the model: " + part.left_out.front() +
                              (part.left_out.size() > 1 ? ", ..." : ""));
  return plan;
}

}  // namespace tessera::weights
