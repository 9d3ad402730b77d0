#include "tessera/job/lora_run.h"

#include <algorithm>
#include <memory>
#include <set>

#include "tessera/base/check.h"
#include "tessera/base/log.h"
#include "tessera/base/version.h"
#include "tessera/checkpoint/file.h"
#include "tessera/checkpoint/lora_settings.h"
#include "tessera/families/lora_namings.h"
#include "tessera/models/convert_lora.h"
#include "tessera/models/registry.h"
#include "tessera/net/adapters.h"
#include "tessera/ops/frozen.h"

namespace tessera::job {

namespace {

namespace fs = std::filesystem;
using models::LoraPart;

constexpr const char* kDiffusersFile = "pytorch_lora_weights.safetensors";

/// Of a file that is exported, in its folder.
fs::path exported_name(const std::string& naming) {
  if (naming == "diffusers") return kDiffusersFile;
  if (naming == "peft") return fs::path(naming) / "adapter_model.safetensors";
  return "lora_" + naming + ".safetensors";
}

struct ParamKind {
  std::string_view ending;
  LoraPart part;
};
constexpr ParamKind kKinds[] = {
    {net::kLoraA, LoraPart::down}, {net::kLoraB, LoraPart::up}, {net::kLoraMagnitude, LoraPart::magnitude}};

/// The module of an adapter's parameter and what it is to it.
models::LoraKey key_of(const std::string& param) {
  for (const auto& [ending, part] : kKinds)
    if (param.ends_with(ending)) return {param.substr(0, param.size() - ending.size()), part};
  for (size_t i = 0; i < std::size(models::kFactorEndings); ++i)
    if (const std::string_view ending = models::kFactorEndings[i]; param.ends_with(ending))
      return {param.substr(0, param.size() - ending.size()),
              static_cast<LoraPart>(static_cast<size_t>(models::kFirstFactor) + i)};
  throw InternalError("train.lora", param + " is no adapter's");
}

[[noreturn]] void does_not_fit(const models::LoraFile& file, const std::string& problem, const std::string& hint) {
  throw UserError(Exit::input, "lora.init", file.path().string() + ": " + problem, hint);
}

/// Where a file's modules have lower ranks than the run's, they are filled up.
void check_rank(const models::LoraFile& file, const models::AdapterRule& rule) {
  std::set<int64_t> ranks;
  bool as_the_run = true;
  for (const models::LoraModule& module : file.modules()) {
    if (!module.low_rank()) continue;
    ranks.insert(module.rank);
    as_the_run = as_the_run && module.rank <= rule.rank_of(module.name) && !rule.ranks.empty();
  }
  if (ranks.empty() || as_the_run || *ranks.rbegin() == rule.rank) return;
  const std::string most = std::to_string(*ranks.rbegin());
  if (ranks.size() == 1) does_not_fit(file, "has rank " + most, "set lora.rank = " + most);
  std::string list;
  for (const int64_t rank : ranks) list += (list.empty() ? "" : ", ") + std::to_string(rank);
  does_not_fit(file, "has modules of several ranks (" + list + "), and a run has one for all",
               "set lora.rank = " + most +
                   ", the largest: the others start as they are, with rows of A at random and "
                   "columns of B that are zero; or give each its own by lora.rank_pattern");
}

/// The name of a kind of adapters as lora.kind has it.
std::string key_of_kind(const models::LoraModule& module) {
  std::string kind = module.kind();
  std::ranges::transform(kind, kind.begin(), [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return kind;
}

void check_file(const models::LoraFile& file, const models::AdapterRule& rule,
                const std::vector<std::string>& modules) {
  file.check_usable();
  for (const models::LoraModule& module : file.modules()) {
    if (std::find(modules.begin(), modules.end(), module.name) == modules.end())
      does_not_fit(file, "has " + module.name + ", which the run does not adapt", "add it to lora.targets");
    if (module.diff || module.diff_bias || module.up_bias)
      does_not_fit(file, module.name + " has more than one low-rank pair", "merge it: tessera convert --merge");
    if (const std::string kind = key_of_kind(module); kind != rule.kind)
      does_not_fit(file,
                   module.name + " is a " + module.kind() + ", and the run trains lora.kind = \"" + rule.kind + "\"",
                   "set lora.kind = " + kind + ", or merge it: tessera convert --merge");
  }
  check_rank(file, rule);
  for (const models::LoraModule& module : file.modules()) {
    if (module.magnitude.has_value() != rule.dora)
      does_not_fit(file, module.name + (rule.dora ? " has no magnitude" : " has a magnitude of DoRA"),
                   std::string("set lora.dora = ") + (rule.dora ? "false" : "true"));
    if (module.input_axis)
      does_not_fit(file, module.name + " has a magnitude for each input, training has one for each row",
                   "merge it into the base, and train on that: tessera convert BASE OUT --merge LORA");
    if (module.base_lengths)
      does_not_fit(file, module.name + " has magnitudes as ComfyUI divides them",
                   "take the run's pytorch_lora_weights.safetensors, or convert it: tessera convert LORA OUT --to "
                   "diffusers --base BASE");
  }
}

/// One tensor of a LoRA in the form the run trains: the scale of the file goes into B. What a smaller rank lacks of A is
/// that of `initial`, of B zero.
at::Tensor value_of(const models::LoraFile& file, const models::LoraModule& module, LoraPart part, double scale,
                    const at::Tensor& initial) {
  if (part == LoraPart::magnitude) return file.rows_of(module, module.magnitude).flatten();
  if (part >= models::kFirstFactor) {
    const auto factor = module.factors.find(part);
    if (factor == module.factors.end()) return at::empty({0});  // of another form
    const bool scaled = part == LoraPart::hada_w2_a || part == LoraPart::lokr_w2 || part == LoraPart::lokr_w2_a;
    const at::Tensor values = file.values(factor->second);
    return scaled && module.rank > 0 ? values * (module.scale() / scale) : values;
  }
  const at::Tensor stored = part == LoraPart::down
                                ? file.values(*module.down)
                                : file.rows_of(module, module.up) * (module.up_factor * module.scale() / scale);
  const int64_t along = part == LoraPart::down ? 0 : 1, missing = initial.size(along) - stored.size(along);
  if (missing <= 0 || stored.size(1 - along) != initial.size(1 - along)) return stored;
  return at::cat({stored, initial.narrow(along, stored.size(along), missing)}, along);
}

}  // namespace

std::optional<models::AdapterRule> adapter_rule(const recipe::Recipe& recipe) {
  if (!recipe.lora.on) return std::nullopt;
  const recipe::Recipe::Lora& l = recipe.lora;
  return models::AdapterRule{.rank = l.rank,
                             .alpha = l.alpha,
                             .rslora = l.rslora,
                             .dora = l.dora,
                             .dropout = l.dropout,
                             .rank_dropout = l.rank_dropout,
                             .module_dropout = l.module_dropout,
                             .seed = static_cast<uint64_t>(recipe.run.seed),
                             .base = l.base,
                             .targets = l.targets,
                             .kind = l.kind,
                             .factor = l.factor,
                             .decompose_both = l.decompose_both,
                             .full_matrix = l.full_matrix,
                             .unbalanced = l.unbalanced,
                             .ranks = l.rank_pattern,
                             .alphas = l.alpha_pattern,
                             .alpha_is_rank = recipe.values.at("lora.alpha") == "auto" || l.alpha == 0};
}

void check_exports(const recipe::Recipe& recipe, const net::Denoiser& model) {
  if (!recipe.lora.on) return;
  const models::WeightForm* form = models::form_of(model);
  for (const std::string& naming : recipe.lora.exports) {
    models::check_naming(form, naming, "lora.export");
    if (recipe.lora.kind != "lora" && (naming == "peft" || naming == "diffsynth"))
      throw UserError(Exit::usage, "lora.export",
                      naming + " names have no place for lora.kind = \"" + recipe.lora.kind + "\"",
                      "leave " + naming + " out: ComfyUI reads comfyui and kohya, musubi-tuner and LyCORIS kohya");
    if (!recipe.lora.dora) continue;
    if (!models::lora_tensor_name("module", LoraPart::magnitude, naming, form))
      throw UserError(Exit::usage, "lora.export", naming + " names have no place for the magnitudes of lora.dora",
                      "leave " + naming + " out, or set lora.dora = false");
    if (families::lora_form(naming)->divides_by_base && recipe.model.path.empty())
      throw UserError(Exit::usage, "lora.export",
                      naming + " names of a DoRA want the weights of the base, and model.path names none",
                      "leave " + naming + " out, or train on a model that is there");
  }
}

void check_lora_init(const models::AdapterRule& rule, const std::vector<std::string>& modules,
                     const net::Denoiser& model, const fs::path& from) {
  const models::LoraFile file = models::LoraFile::open(from, models::form_of(model));
  file.check_usable();
  std::map<std::string, std::vector<int64_t>> shapes;
  for (const auto& unit : model.units())
    for (const plan::ParamSpec& param : unit->spec().params) shapes[param.name] = param.shape;
  constexpr const char* kHint =
      "give a LoRA of this base (tessera inspect tells its modules), or the base that it was made for";
  for (const models::LoraModule& module : file.modules()) {
    const auto linear = shapes.find(module.name + ".weight");
    if (linear == shapes.end())
      does_not_fit(file, "is of another model: it has " + module.name + ", this one has no such linear", kHint);
    if (!module.changes() || linear->second.size() != 2) continue;
    if (const int64_t out = module.rows_stored(), in = module.elements() / out;
        in != linear->second[1] || out != linear->second[0])
      does_not_fit(file,
                   "is of another model: its " + module.name + " takes " + std::to_string(in) + " and gives " +
                       std::to_string(out) + " numbers, this model's " + std::to_string(linear->second[1]) + " and " +
                       std::to_string(linear->second[0]),
                   kHint);
  }
  check_file(file, rule, modules);
}

engine::Fill adapter_values(const models::AdapterRule& rule, const std::vector<std::string>& modules,
                            const fs::path& from, const models::WeightForm* form) {
  std::shared_ptr<models::LoraFile> file;
  if (!from.empty()) {
    file = std::make_shared<models::LoraFile>(models::LoraFile::open(from, form));
    check_file(*file, rule, modules);
  }
  return [rule, file](const plan::ParamSpec& param, int64_t first, int64_t count, float* out) {
    const models::LoraKey key = key_of(param.name);
    const models::LoraModule* module = file ? file->find(key.module) : nullptr;
    if (!module) return models::initialise_adapter(param, rule.seed, first, count, out);
    at::Tensor initial = at::empty(param.shape, at::kFloat);
    models::initialise_adapter(param, rule.seed, 0, initial.numel(), initial.mutable_data_ptr<float>());
    const at::Tensor value = value_of(*file, *module, key.part, rule.scale(key.module), initial).contiguous();
    check_input(
        value.sizes() == param.shape, "lora.init",
        file->path().string() + ": " + param.name + " has another size: it belongs to another model" +
            (key.part >= models::kFirstFactor ? ", or to another lora.rank, factor or form of its matrices" : ""));
    std::copy_n(value.const_data_ptr<float>() + first, count, out);
  };
}

void start_adapters(const recipe::Recipe::Lora& lora, engine::Store& store, comm::Comm& comm) {
  if (!lora.on || !lora.dora || !lora.init.empty()) return;
  std::map<std::string, at::Tensor> lengths;  // of this unit's rows
  for (int u = 0; u < store.units(); ++u)
    engine::whole_unit(store, comm, u, /*gradients=*/false, [&](const plan::ParamSpec& param, const at::Tensor& value) {
      if (param.shape.size() == 2) lengths[param.name] = value.norm(2, 1);
    });
  for (const engine::Store::Part& part : store.parts()) {
    const plan::ParamSpec& param = store.spec(part.unit).params[static_cast<size_t>(part.param)];
    if (!param.name.ends_with(net::kLoraMagnitude)) continue;
    const at::Tensor& rows = lengths.at(key_of(param.name).module + ".weight");
    const auto box = store.box(part);
    const int64_t start = box.empty() ? 0 : box[0].first;
    store.set_masters(part, 0, part.end - part.begin, rows.const_data_ptr<float>() + start + part.begin);
  }
}

namespace {

/// "Wan2.1-T2V-1.3B" of a release's folder, of its transformer/ and of a file in it; no path of this machine.
std::string base_name(fs::path base) {
  constexpr std::string_view kParts[] = {"transformer", "model", "model_ema", "diffusion_pytorch_model"};
  while (base.has_parent_path() && base != base.root_path() &&
         (!base.has_filename() || std::ranges::find(kParts, base.stem().string()) != std::end(kParts)))
    base = base.parent_path();
  return checkpoint::is_weight_file(base) ? base.stem().string() : base.filename().string();
}

std::string name_of_kind(const std::string& kind) { return kind == "loha" ? "LoHa" : kind == "lokr" ? "LoKr" : "LoRA"; }

/// As ComfyUI, A1111 and Civitai show it: ss_* and modelspec.*. No date, so that the same run writes the same bytes.
checkpoint::Metadata lora_origin(const recipe::Recipe& recipe, const LoraFacts& facts) {
  const auto& text = recipe.values;
  const std::string by = std::string("Tessera ") + kVersion, steps = std::to_string(facts.step),
                    base = base_name(facts.base), run = fs::path(recipe.run.out).filename().string(),
                    width = std::to_string(recipe.data.width), height = std::to_string(recipe.data.height);
  checkpoint::Metadata origin = {
      {"ss_base_model_version", base},
      {"ss_sd_model_name", base},
      {"ss_output_name", run},
      {"ss_steps", steps},
      {"ss_max_train_steps", std::to_string(recipe.run.steps)},
      {"ss_num_train_images", std::to_string(facts.samples)},
      {"ss_total_batch_size", std::to_string(recipe.train.global_batch)},
      {"ss_learning_rate", text.at("train.lr")},
      {"ss_optimizer", text.at("train.optimizer")},
      {"ss_mixed_precision", std::string(name(recipe.plan.compute))},
      {"ss_resolution", "(" + width + ", " + height + ")"},
      {"ss_seed", std::to_string(recipe.run.seed)},
      {"ss_training_comment", "trained with " + by},
      {"modelspec.sai_model_spec", "1.0.0"},
      {"modelspec.architecture", base + "/lora"},
      {"modelspec.implementation", "diffusers"},
      {"modelspec.title", run},
      {"modelspec.description", name_of_kind(recipe.lora.kind) + " of rank " + std::to_string(recipe.lora.rank) +
                                    " on " + base + ", after " + steps + " steps on " + std::to_string(facts.samples) +
                                    " samples, by " + by},
      {"modelspec.resolution", width + "x" + height}};
  if (!recipe.data.caption.empty()) origin["modelspec.trigger_phrase"] = recipe.data.caption;
  return origin;
}

}  // namespace

namespace {

void write_naming(const recipe::Recipe& recipe, const LoraFacts& facts, const models::LoraFile& lora,
                  const std::string& naming, const fs::path& folder) {
  std::optional<models::LoraBase> base;
  const fs::path file = folder / exported_name(naming);
  checkpoint::make_folder(file.parent_path(), "check run.out");
  models::LoraPlan plan = models::plan_lora(
      lora, naming, "", [&]() -> const models::LoraBase& { return base ? *base : base.emplace(facts.weights); });
  plan.metadata.merge(lora_origin(recipe, facts));
  models::write_lora(lora, plan, file);
}

}  // namespace

void export_lora(const recipe::Recipe& recipe, const LoraFacts& facts, engine::Store& store, comm::Comm& comm, int rank,
                 const fs::path& folder) {
  const models::AdapterRule rule = *adapter_rule(recipe);
  checkpoint::LoraDescription description{.modules = {}, .rslora = rule.rslora, .dora = rule.dora};
  if (rule.kind != "lora") description.kind = rule.kind == "loha" ? "LoHa" : "LoKr";
  std::vector<checkpoint::TensorData> tensors;
  std::vector<at::Tensor> alive;
  for (int u = 0; u < store.units(); ++u)
    engine::whole_unit(store, comm, u, /*gradients=*/false, [&](const plan::ParamSpec& param, const at::Tensor& value) {
      if (rank != 0 || !models::is_adapter_parameter(param.name)) return;
      const models::LoraKey key = key_of(param.name);
      constexpr LoraPart kOnce[] = {LoraPart::down, LoraPart::hada_w1_a, LoraPart::lokr_w1, LoraPart::lokr_w1_a};
      if (std::ranges::find(kOnce, key.part) != std::end(kOnce)) {
        const double alpha = rule.alpha_of(key.module);
        const int64_t own = rule.rank_of(key.module);
        description.modules.push_back({models::lora_module_name(key.module, "diffusers", facts.form), own, alpha});
        if (key.part != LoraPart::down) {  // files of these have it beside the factors, for alpha / rank
          const double stored = rule.rslora ? rule.scale(key.module) * static_cast<double>(own) : alpha;
          alive.push_back(at::scalar_tensor(stored, at::kFloat));
          tensors.push_back(
              {models::alpha_name(key.module, "diffusers", facts.form), DType::f32, {}, alive.back().const_data_ptr()});
        }
      }
      alive.push_back(value.contiguous().clone());
      tensors.push_back({*models::lora_tensor_name(key.module, key.part, "diffusers", facts.form), DType::f32,
                         param.shape, alive.back().const_data_ptr()});
    });
  if (rank != 0) return;
  checkpoint::make_folder(folder, "check run.out");
  const fs::path file = folder / kDiffusersFile;
  checkpoint::Metadata metadata = checkpoint::lora_metadata(description, "diffusers", std::nullopt);
  metadata.merge(lora_origin(recipe, facts));
  checkpoint::write_safetensors(file, tensors, metadata);
  for (const std::string& naming : recipe.lora.exports)
    if (naming != "diffusers") write_naming(recipe, facts, models::LoraFile::open(file, facts.form), naming, folder);
}

void save_lora(const recipe::Recipe& recipe, const LoraFacts& facts, const models::LoraFile& lora,
               const fs::path& folder) {
  std::vector<std::string> namings = recipe.lora.exports;
  if (std::ranges::find(namings, "diffusers") == namings.end()) namings.emplace_back("diffusers");
  for (const std::string& naming : namings) write_naming(recipe, facts, lora, naming, folder);
}

checkpoint::Json lora_json(const models::AdapterRule& rule, const std::vector<std::string>& modules) {
  checkpoint::Json json = {
      {"rank", rule.rank}, {"alpha", rule.alpha}, {"rslora", rule.rslora}, {"dora", rule.dora}, {"targets", modules}};
  if (rule.kind != "lora") json["kind"] = rule.kind;
  const auto own = [&](const char* key, const auto& value_of, bool any) {
    for (const std::string& module : modules)
      if (any) json[key][module] = value_of(module);
  };
  own(
      "ranks", [&](const std::string& module) { return rule.rank_of(module); }, !rule.ranks.empty());
  own(
      "alphas", [&](const std::string& module) { return rule.alpha_of(module); },
      !rule.alphas.empty() || (rule.alpha_is_rank && !rule.ranks.empty()));
  return json;
}

}  // namespace tessera::job
