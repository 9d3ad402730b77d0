// OneTrainer's config.json of a Sana, and its concepts.json.
#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>

#include "tessera/base/check.h"
#include "tessera/data/files/file_kinds.h"
#include "tessera/tools/import/config_file.h"
#include "tessera/tools/import/dialects.h"
#include "tessera/tools/import/parts.h"

namespace tessera::tools {

namespace {

namespace fs = std::filesystem;

void trainer_model(Translator& t) {
  const std::string option = "base_model_name", folder = t.value(option);
  if (!t.has(option)) return;
  t.set("model.path", folder, {option});
  t.assume("data.vae", (fs::path(folder) / "vae").string(), "its folder");
  t.assume("data.text_encoder", "gemma-2-2b", "the release's");
  t.assume("data.text_encoder_path", (fs::path(folder) / "text_encoder").string(), "its folder");
  t.assume("data.tokenizer", (fs::path(folder) / "tokenizer").string(), "its folder");
}

bool holds_clips(const fs::path& folder) {
  std::error_code unreadable;
  return std::ranges::any_of(fs::directory_iterator(folder, unreadable), [](const fs::directory_entry& inner) {
    return inner.is_regular_file() && data::is_clip(inner.path());
  });
}

/// The folder, and those below it that have pictures or videos, where they are to be read too.
void concept_folders(Translator& t) {
  const std::string option = "path", below = "include_subdirectories", path = t.value(option);
  if (t.has(option) && t.flag(below) && fs::is_directory(path)) {
    std::vector<std::string> folders;
    for (const fs::directory_entry& entry :
         fs::recursive_directory_iterator(path, fs::directory_options::skip_permission_denied))
      if (entry.is_directory() && holds_clips(entry.path())) folders.push_back(entry.path().string());
    std::ranges::sort(folders);
    if (holds_clips(path) || folders.empty()) folders.insert(folders.begin(), path);
    std::string all;
    for (const std::string& folder : folders) all += folder + kListSeparator;
    return t.set("data.path", folders.size() == 1 ? folders[0] : all, {option, below});
  }
  if (t.has(option)) t.set("data.path", path, {option});
  if (!t.has(below)) return;
  if (t.flag(below))
    t.warn(below, "folders below are listed in data.path, and this one is not here to look into");
  else
    t.imply(below, "folders below are not read");
}

/// How often its pictures come: so many times, or so many of them in an epoch.
void concept_amount(Translator& t) {
  const std::string option = "balancing", strategy = "balancing_strategy";
  const double amount = t.number(option, 1);
  std::vector<std::string> options;
  for (const std::string& given : {option, strategy})
    if (t.has(given)) options.push_back(given);
  if (t.value(strategy) == "SAMPLES") {
    if (const int64_t clips = clips_an_epoch(t); clips > 0)
      return t.set("data.set.0.repeats", number_text(amount / static_cast<double>(clips)), options,
                   "of " + std::to_string(clips) + " samples");
    for (const std::string& given : options)
      t.refuse(given, "so many samples an epoch are repeats of the folder's, and it is not here to count");
    return;
  }
  if (t.has(strategy)) t.imply(strategy, "repeats");
  if (!t.has(option)) return;
  const bool whole = amount >= 1 && amount == std::floor(amount);
  t.set(whole ? "data.repeats" : "data.set.0.repeats", number_text(amount), {option});
}

void concept_captions(Translator& t) {
  const std::string source = "text.prompt_source", shuffles = "text.enable_tag_shuffling", variants = "text_variations",
                    keep = "text.keep_tags_count", delimiter = "text.tag_delimiter";
  const bool sample = t.value(source, "sample") == "sample", shuffled = t.flag(shuffles);
  if (t.has(source))
    sample ? t.imply(source, "captions are .txt files beside the pictures")
           : t.refuse(source, "captions are .txt files beside the pictures: one for all is data.caption");
  if (sample) t.assume("data.caption_lines", "true", "a line of each .txt is drawn");
  if (shuffled) {
    std::vector<std::string> options = {shuffles};
    if (t.has(variants)) options.push_back(variants);
    t.set("data.caption_shuffle", t.value(variants, "1"), options, "so many orders of each caption");
    if (t.has(keep)) t.set("data.keep_tokens", t.value(keep), {keep});
    if (t.has(delimiter))
      t.set("data.caption_delimiter", t.value(delimiter) == "," ? ", " : t.value(delimiter), {delimiter});
    return;
  }
  for (const std::string& option : {shuffles, keep, delimiter})
    if (t.has(option)) t.imply(option, "tags are not shuffled");
  if (t.has(variants))
    t.integer(variants, 1) == 1 ? t.imply(variants, "captions are encoded once")
                                : t.imply(variants, "without shuffled tags all of them are alike");
}

void concept_together(Translator& t) {
  concept_folders(t);
  concept_amount(t);
  concept_captions(t);
  if (const std::string weight = "loss_weight"; t.number(weight, 1) != 1)
    t.set("data.set.0.loss_weight", t.value(weight), {weight});
  else if (t.has(weight))
    t.imply(weight, "it is 1");
  if (const std::string type = "type"; t.value(type) == "PRIOR_PREDICTION")
    t.set("data.set.0.role", "prior", {type}, "its target is what the base says");
  else if (t.has(type))
    t.imply(type, "what is trained on");
  const std::string own = "image.enable_resolution_override", side = "image.resolution_override";
  if (t.flag(own)) {
    std::string shapes;
    for (const std::string& each : split_list(t.value(side, "512")))
      shapes += "1xAREA_" + each + "x" + each + kListSeparator;
    t.set("data.set.0.buckets", shapes,
          t.has(side) ? std::vector<std::string>{own, side} : std::vector<std::string>{own},
          "shapes of the area of a square, in steps of 16");
  } else {
    for (const std::string& option : {own, side})
      if (t.has(option)) t.imply(option, "the run's resolution");
  }
}

/// The concepts that are trained on, of the file or of the configuration itself ("concepts.0.path"), and the folders of
/// those that are held out.
std::string trainer_concepts(Translator& t, const std::vector<Given>& inside) {
  const std::string option = "concept_file_name", file = file_beside(t.context(), t.value(option));
  std::vector<Given> given = inside;
  if (t.has(option)) {
    if (!given.empty())
      t.imply(option, "the configuration has the concepts itself");
    else if (fs::exists(file))
      given = read_config(file), t.imply(option, "its options are in data.*");
    else
      t.refuse(option, file + " was not found: set data.*");
  }
  std::map<std::string, std::vector<Given>> concepts;
  for (Given& g : given) {
    const size_t dot = g.name.find('.');
    g.typed = g.name;
    const std::string number = g.name.substr(0, dot);
    g.name.erase(0, dot == std::string::npos ? 0 : dot + 1);
    concepts[number].push_back(std::move(g));
  }
  std::vector<Translation> sets;
  std::string held_out;
  for (auto& [number, options] : concepts) {
    const auto value = [&, &all = options](const char* name) {
      const auto found = std::ranges::find(all, name, &Given::name);
      return found == all.end() ? std::string() : found->value;
    };
    const std::string type = value("type"), shown = "concept " + number + " (" + value("path") + ")";
    if (is_false(value("enabled"))) {
      t.result().implied.push_back({shown, "it is disabled"});
    } else if (type == "VALIDATION") {
      held_out += value("path") + kListSeparator;
      if (!t.flag("validation")) t.result().implied.push_back({shown, "it is not trained on, and validation is off"});
    } else {
      sets.push_back(translate(onetrainer_concept(), std::move(options), t.context()));
    }
  }
  if (!sets.empty()) t.result().merge(of_data_sets(sets));
  return held_out;
}

/// The loss of the concepts that are held out, at one timestep.
void trainer_validation(Translator& t, const std::string& held_out) {
  const std::string on = "validation", after = "validate_after", unit = "validate_after_unit",
                    word = t.value(unit, "EPOCH");
  if (!t.flag(on)) {
    for (const std::string& option : {on, after, unit})
      if (t.has(option)) t.imply(option, "nothing is measured");
    return;
  }
  if (held_out.empty()) {
    t.refuse(on, "no concept is of type VALIDATION: set eval.path to a folder of pictures, and eval.every");
    for (const std::string& option : {after, unit})
      if (t.has(option)) t.imply(option, "it belongs to validation");
    return;
  }
  t.set("eval.path", held_out, {on}, "the concepts of type VALIDATION");
  if (t.has(unit)) t.imply(unit, "eval.every counts steps");
  const std::string& said = t.has(after) ? after : on;
  if (word == "STEP" && t.has(after))
    t.set("eval.every", t.value(after), {after});
  else if (word == "EPOCH")
    set_eval_epochs(t, said, t.integer(after, 1));
  else
    t.refuse(said, "the loss is measured every so many steps: set eval.every");
  if (t.result().find("eval.every")) t.assume("eval.sigmas", "0.5", "OneTrainer's");
}

void trainer_shapes(Translator& t) {
  const std::string sides = "resolution", buckets = "aspect_ratio_bucketing";
  const std::vector<std::string> list = split_list(t.value(sides, "512"));
  std::vector<std::string> options;
  for (const std::string& option : {sides, buckets})
    if (t.has(option)) options.push_back(option);
  if (options.empty()) return t.assume("data.buckets", "1xAREA_512x512", "OneTrainer's");
  if (t.has(buckets) && !t.flag(buckets)) {
    t.imply(buckets, "all pictures have one shape");
    if (!t.has(sides)) return t.assume("data.size", "512,512", "OneTrainer's");
    if (list.size() != 1) return t.refuse(sides, "one shape for all pictures is one side");
    return t.set("data.size", list[0] + "," + list[0], {sides});
  }
  std::string shapes;
  for (const std::string& side : list) shapes += "1xAREA_" + side + "x" + side + kListSeparator;
  t.set("data.buckets", shapes, options, "shapes of the area of a square, in steps of 16");
}

void trainer_optimiser(Translator& t) {
  const std::string option = "optimizer.optimizer";
  if (t.has(option)) {
    static const std::map<std::string, std::pair<const char*, bool>> kNames = {
        {"ADAMW", {"adamw", false}},     {"ADAMW_8BIT", {"adamw", true}},
        {"LION", {"lion", false}},       {"LION_8BIT", {"lion", true}},
        {"CAME", {"came", false}},       {"ADAFACTOR", {"adafactor", false}},
        {"PRODIGY", {"prodigy", false}}, {"SCHEDULE_FREE_ADAMW", {"adamw_schedule_free", false}},
        {"MUON", {"muon", false}}};
    if (const auto found = kNames.find(t.value(option)); found == kNames.end()) {
      t.refuse(option,
               "ADAMW, LION, their 8-bit forms, SCHEDULE_FREE_ADAMW, ADAFACTOR, CAME, PRODIGY and MUON are there");
    } else {
      t.set("train.optimizer", found->second.first, {option});
      if (found->first == "MUON") t.assume("train.adjust_lr_fn", "original", "that program's, of Jordan");
      if (found->second.second) t.set("plan.moments", "int8", {option}, "moments in blocks of 256 with a scale");
    }
  }
  for (const auto& [name, key] : {std::pair("optimizer.muon_hidden_layers", "train.muon_hidden_layers"),
                                  {"optimizer.muon_adam_lr", "train.muon_adam_lr"},
                                  {"optimizer.momentum", "train.momentum"},
                                  {"optimizer.nesterov", "train.nesterov"},
                                  {"optimizer.ns_steps", "train.ns_steps"}}) {
    if (!t.has(name)) continue;
    const bool none = t.value(name).empty() || lower_case(t.value(name)) == "none" || t.value(name) == "null";
    if (t.value(option) != "MUON" || none)
      t.imply(name, none ? "the optimiser's own" : "it belongs to MUON");
    else
      t.set(key, std::string_view(name).ends_with("nesterov") ? lower_case(t.value(name)) : t.value(name), {name});
  }
  std::vector<std::string> given;
  for (const char* beta : {"optimizer.beta1", "optimizer.beta2"}) {
    if (!t.has(beta)) continue;
    if (is_false(t.value(beta)) && t.value(beta) != "0")
      t.imply(beta, "the optimiser's own");
    else
      given.push_back(beta);
  }
  if (!given.empty())
    t.set("train.betas",
          t.value("optimizer.beta1", "0.9") + "," + t.value("optimizer.beta2", "0.999") +
              (t.value(option) == "CAME" ? "," + t.value("optimizer.beta3", "0.9999") : ""),
          given);
}

/// A warm-up of at most 1 is a share of all steps.
void trainer_schedule(Translator& t) {
  const std::string option = "learning_rate_scheduler", warm_up = "learning_rate_warmup_steps",
                    cycles = "learning_rate_cycles";
  const std::string name = t.value(option, "CONSTANT");
  const double steps = t.number(warm_up, 200);
  const bool warms = steps > 0;
  std::vector<std::string> options;
  if (t.has(option)) options.push_back(option);
  if (t.has(warm_up) && warms) options.push_back(warm_up);
  const std::map<std::string, const char*> kNames = {{"CONSTANT", warms ? "constant_with_warmup" : "constant"},
                                                     {"LINEAR", "linear"},
                                                     {"COSINE", "cosine"},
                                                     {"COSINE_WITH_HARD_RESTARTS", "cosine_with_restarts"}};
  const auto found = kNames.find(name);
  if (found == kNames.end()) {
    t.refuse(option, "CONSTANT, LINEAR, COSINE and COSINE_WITH_HARD_RESTARTS are there");
  } else if (options.empty()) {
    t.assume("train.schedule", found->second, "OneTrainer's");
  } else {
    t.set("train.schedule", found->second, options);
  }
  if (t.has(warm_up))
    warms ? set_warm_up(t, warm_up, /*one_is_all=*/true) : t.imply(warm_up, "there is no warm-up");
  else
    t.assume("train.warmup_steps", "200", "OneTrainer's");
  if (!t.has(cycles)) return;
  if (name == "COSINE_WITH_HARD_RESTARTS")
    t.set("train.num_cycles", number_text(t.number(cycles, 1)), {cycles});
  else
    t.imply(cycles, "it belongs to COSINE_WITH_HARD_RESTARTS");
}

void trainer_amount(Translator& t) {
  std::vector<std::string> options;
  int64_t batch = 1;
  for (const char* option : {"batch_size", "gradient_accumulation_steps"})
    if (t.has(option)) options.push_back(option), batch *= std::clamp<int64_t>(t.integer(option, 1), 0, 1'000'000);
  if (!options.empty())
    t.set_batch(batch, options, t.value("batch_size", "1") + " x " + t.value("gradient_accumulation_steps", "1"));
  if (t.has("epochs"))
    set_epochs(t, "epochs", t.integer("epochs", 100));
  else
    assume_epochs(t, 100);
}

void trainer_timesteps(Translator& t) {
  const std::string option = "timestep_distribution", weight = "noising_weight", bias = "noising_bias";
  const std::string name = t.value(option, "UNIFORM"), shift = "timestep_shift";
  const bool normal = name == "LOGIT_NORMAL";
  std::vector<std::string> options = {option};
  for (const std::string& of : {weight, bias})
    if (t.has(of))
      normal || (of == weight && name == "HEAVY_TAIL") ? options.push_back(of)
                                                       : t.imply(of, "it belongs to LOGIT_NORMAL");
  const double mean = t.number(bias, 0), scale = 1 + t.number(weight, 0);
  if (normal && !(scale > 0))
    for (const std::string& of : options) t.refuse(of, "a deviation is above 0");
  else if (normal)
    t.set("diffusion.timesteps",
          mean == 0 && scale == 1 ? "logit_normal"
                                  : "logit_normal(" + number_text(mean) + ", " + number_text(scale) + ")",
          options);
  else if (t.has(option) && (name == "UNIFORM" || name == "COS_MAP"))
    t.set("diffusion.timesteps", name == "UNIFORM" ? "uniform" : "cosmap", {option});
  else if (name == "HEAVY_TAIL")
    t.set("diffusion.timesteps", "mode", {option}), t.set("diffusion.mode_scale", t.value(weight, "0"), options);
  else if (t.has(option))
    t.refuse(option, "UNIFORM, LOGIT_NORMAL, HEAVY_TAIL and COS_MAP are there");
  // Strengths count before the shift, and draws are squeezed between them, which cuts uniform ones alone.
  const double s = t.number(shift, 1);
  for (const auto& [of, key, open] :
       {std::tuple("min_noising_strength", kLeastTimestep, 0.0), {"max_noising_strength", kMostTimestep, 1.0}}) {
    if (!t.has(of)) continue;
    const double strength = t.number(of, open);
    if (strength == open)
      t.imply(of, "all timesteps are drawn");
    else if (name == "UNIFORM" && strength >= 0 && strength <= 1)
      t.set(key, number_text(s * strength / (1 + (s - 1) * strength)), {of}, "shifted");
    else
      t.refuse(of, "draws are squeezed by it there: " + std::string(key) + " cuts them off, after the shift");
  }
}

/// A sum of errors by their strengths.
void trainer_loss(Translator& t) {
  const std::string delta = "huber_delta";
  std::vector<std::string> options;
  std::string sum;
  bool plain = true, huber = false;
  for (const auto& [option, kind, usual] : {std::tuple("mse_strength", "mse", 1.0),
                                            {"mae_strength", "mae", 0.0},
                                            {"log_cosh_strength", "log_cosh", 0.0},
                                            {"huber_strength", "true_huber", 0.0}}) {
    const double strength = t.number(option, usual);
    if (t.has(option)) options.push_back(option);
    plain = plain && strength == usual;
    if (strength == 0) continue;
    sum += std::string(kind) + "=" + number_text(strength) + kListSeparator;
    huber = huber || std::string(kind) == "true_huber";
  }
  if (plain)
    for (const std::string& option : options) t.imply(option, "the loss is the squared error");
  else if (sum.empty())
    for (const std::string& option : options) t.refuse(option, "a loss of nothing trains nothing");
  else
    t.set("diffusion.loss", sum, options);
  if (!t.has(delta)) return;
  if (huber)
    t.set("diffusion.huber_c", t.value(delta), {delta});
  else
    t.imply(delta, "it belongs to huber_strength");
}

void trainer_masks(Translator& t) {
  const std::string on = "masked_training";
  const bool masked = t.flag(on);
  if (masked) {
    t.set("data.mask_suffix", "-masklabel.png", {on});
    t.set("data.mask_resize", "bilinear", {on});
  } else if (t.has(on)) {
    t.imply(on, "it is off");
  }
  for (const auto& [option, key, usual] : {std::tuple("unmasked_probability", "diffusion.unmasked_probability", "0.1"),
                                           {"unmasked_weight", "diffusion.unmasked_weight", "0.1"},
                                           {"normalize_masked_area_loss", "diffusion.normalize_masked_area_loss", ""}})
    if (t.has(option) && masked)
      t.set(key, t.value(option), {option});
    else if (t.has(option))
      t.imply(option, "it belongs to masked_training");
    else if (masked && *usual)
      t.assume(key, usual, "OneTrainer's");
}

/// Saved weights and backups are both checkpoints here; NEVER and minutes are no steps.
void trainer_checkpoints(Translator& t) {
  const auto every = [&](const std::string& number, const std::string& unit) {
    const std::string word = t.value(unit, "NEVER");
    const bool first = !t.result().find("checkpoint.every");
    if (t.has(unit)) t.imply(unit, "checkpoint.every counts steps");
    if (!t.has(number)) return;
    if (word == "NEVER" || !first)
      t.imply(number, first ? "it is off" : "checkpoint.every is set by another option");
    else if (word == "STEP")
      t.set("checkpoint.every", t.value(number), {number});
    else if (word == "EPOCH")
      set_checkpoint_epochs(t, number, t.integer(number, 1));
    else
      t.refuse(number, "checkpoints are written every so many steps: set checkpoint.every");
  };
  every("save_every", "save_every_unit");
  every("backup_after", "backup_after_unit");
  const std::string rolls = "rolling_backup", count = "rolling_backup_count";
  if (t.flag(rolls)) {
    t.set("checkpoint.keep", t.value(count, "3"),
          t.has(count) ? std::vector<std::string>{rolls, count} : std::vector<std::string>{rolls});
  } else {
    for (const std::string& option : {rolls, count})
      if (t.has(option)) t.imply(option, "all are kept");
    t.assume("checkpoint.keep", "0", "OneTrainer keeps all");
  }
  const std::string samples = "sample_after", unit = "sample_after_unit";
  if (t.has(unit)) t.imply(unit, "sample.every counts steps");
  if (!t.has(samples)) return;
  const std::string word = t.value(unit, "MINUTE");
  if (word == "STEP")
    t.set("sample.every", t.value(samples), {samples});
  else
    t.imply(samples, word == "NEVER" ? "it is off" : "samples are made every so many steps: set sample.every");
}

/// Of all weights: parameters whose names have one of the words in them.
void set_filter(Translator& t, const std::string& option) {
  std::string only;
  for (const std::string& word : split_list(t.value(option))) only += (only.empty() ? "*" : ",*") + word + "*";
  t.set("train.only", only, {option}, "parameters whose names have one of these words");
}

/// Adapters of three kinds; LoKr has a rank of its own, and its whole second matrix no alpha.
void trainer_adapters(Translator& t) {
  const std::string type = "peft_type", kind = t.value(type, "LORA"), rank = "lora_rank", own_rank = "lokr_dim";
  const bool adapters = t.value("training_method") == "LORA", lokr = kind == "LOKR",
             known = lokr || kind == "LOHA" || kind == "LORA";
  const auto off = [&](const std::string& option, const std::string& why) {
    if (t.has(option)) t.imply(option, why);
  };
  if (t.has(type) && adapters)
    known ? t.set("lora.kind", lower_case(kind), {type}) : t.refuse(type, "adapters are LORA, LOHA and LOKR");
  else
    off(type, "it belongs to LORA");
  if (adapters && lokr) {
    off(rank, "lokr_dim is the rank");
    if (t.has(own_rank)) t.set("lora.rank", t.value(own_rank), {own_rank});
  } else {
    if (t.has(rank) && adapters) t.set("lora.rank", t.value(rank), {rank});
    if (!adapters) off(rank, "it belongs to LORA");
    off(own_rank, "it belongs to LOKR");
  }
  for (const auto& [option, key] : {std::pair("lokr_decompose_factor", "lora.factor"),
                                    {"lokr_full_matrix", "lora.full_matrix"},
                                    {"lokr_decompose_both", "lora.decompose_both"}})
    if (t.has(option) && adapters && lokr)
      t.set(key, t.value(option), {option});
    else
      off(option, "it belongs to LOKR");
  if (const std::string dora = "lokr_weight_decompose"; t.flag(dora) && adapters && lokr)
    t.set("lora.dora", "true", {dora});
  else
    off(dora, "it is off");
  if (!adapters) return;
  t.assume("lora.targets", "all", "OneTrainer's adapters are on all linears");
  t.assume("lora.rank", "16", "OneTrainer's"), t.assume("lora.alpha", "1", "OneTrainer's");
}

void trainer_together(Translator& t) {
  trainer_model(t);
  std::vector<Given> concepts;
  for (const Given& g : t.given())
    if (g.name.starts_with("concepts."))
      concepts.push_back({g.name.substr(9), g.value}), t.imply(g.name, "read by itself");
  if (const Given* none = t.find("concepts")) t.imply(none->name, "they stand in concept_file_name");
  const std::string held_out = trainer_concepts(t, concepts);
  trainer_shapes(t);
  trainer_optimiser(t);
  trainer_amount(t);  // a warm-up may be a share of its steps
  trainer_validation(t, held_out);
  trainer_schedule(t);
  trainer_timesteps(t);
  trainer_loss(t);
  trainer_masks(t);
  trainer_checkpoints(t);
  if (const Given* type = t.find("train_dtype")) {
    static const std::map<std::string, const char*> kTypes = {
        {"BFLOAT_16", "bf16"}, {"FLOAT_16", "fp16"}, {"FLOAT_32", "fp32"}, {"TFLOAT_32", "fp32"}};
    if (const auto found = kTypes.find(type->value); found != kTypes.end())
      t.set("plan.compute_dtype", found->second, {type->name}, "masters and states are fp32");
    else
      t.refuse(type->name, "fp32, bf16 and fp16 are there");
  }
  if (const std::string rebuilt = "gradient_checkpointing"; t.has(rebuilt)) {
    const std::string how = t.value(rebuilt);
    if (how == "CPU_OFFLOADED")
      t.set("plan.activations", "recompute_offload", {rebuilt});
    else if (how == "ON" || is_true(how))
      t.set("plan.activations", "recompute", {rebuilt});
    else
      t.imply(rebuilt, "it is off");
  }
  if (t.has("transformer.train"))
    t.flag("transformer.train") ? t.imply("transformer.train", "it is what trains")
                                : t.refuse("transformer.train", "nothing else trains");
  if (t.has("text_encoder.train"))
    t.flag("text_encoder.train") ? t.refuse("text_encoder.train", "text encoders are frozen")
                                 : t.imply("text_encoder.train", "it is frozen");
  if (const std::string filter = "layer_filter"; t.has(filter)) {
    if (t.value(filter).empty())
      t.imply(filter, "all layers");
    else if (t.value("training_method") == "LORA")
      set_targets(t, filter);
    else
      set_filter(t, filter);
  }
  trainer_adapters(t);
  const std::string ema = "ema", decay = "ema_decay", interval = "ema_update_step_interval";
  const bool average = t.has(ema) && t.value(ema) != "OFF";
  if (average) {
    std::vector<std::string> options = {ema};
    for (const std::string& option : {decay, interval})
      if (t.has(option)) options.push_back(option);
    const double each =
        std::pow(t.number(decay, 0.999), 1.0 / static_cast<double>(std::max<int64_t>(1, t.integer(interval, 5))));
    char text[32];
    std::snprintf(text, sizeof text, "%.8g", each);
    t.set("train.ema", text, options, "of every step");
  } else {
    for (const std::string& option : {ema, decay, interval})
      if (t.has(option)) t.imply(option, "no average is kept");
  }
}

}  // namespace

const Dialect& onetrainer_config() {
  static const Dialect dialect = dialect_of("onetrainer", "config", trainer_together);
  return dialect;
}
const Dialect& onetrainer_concept() {
  static const Dialect dialect = dialect_of("onetrainer", "concept", concept_together);
  return dialect;
}

}  // namespace tessera::tools
