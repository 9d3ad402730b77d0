#include "tessera/tools/import/parts.h"

#include <algorithm>
#include <cmath>
#include <filesystem>

#include "tessera/base/check.h"
#include "tessera/data/dataset.h"
#include "tessera/tools/import/wan_folder.h"

namespace tessera::tools {

namespace fs = std::filesystem;

int64_t clips_an_epoch(Translator& t) {
  Values values;
  for (const Translation::Setting& setting : t.result().settings) values[setting.key] = setting.value;
  std::vector<std::string> sets;
  for (const int64_t number : list_numbers(values, "data.set"))
    sets.push_back("data.set." + std::to_string(number) + ".");
  if (sets.empty()) sets.push_back("data.");
  int64_t clips = 0;
  for (const std::string& set : sets) {
    const auto text = [&](const std::string& key) {
      for (const std::string& name : {set + key, "data." + key})
        if (const auto value = values.find(name); value != values.end()) return value->second;
      return std::string();
    };
    const std::string repeats = text("repeats");
    const double times = repeats.empty() ? 1 : to_number(repeats);
    std::vector<std::string> paths = split_list(text("path"));
    if (paths.empty()) paths = {""};
    for (const std::string& path : paths) try {
        data::Problems problems;
        const auto count = data::read_dataset({.path = path,
                                               .metadata = text("metadata"),
                                               .caption = text("caption"),
                                               .latents = text("latents") == "npy",
                                               .latent_column = text("latents") == "column",
                                               .text_columns = text("texts") == "column"},
                                              problems)
                               .size();
        clips += static_cast<int64_t>(static_cast<double>(count) * times);
      } catch (const UserError&) {
        return 0;
      }
  }
  return clips;
}

namespace {

void set_epoch_steps(Translator& t, const std::string& key, const std::string& option, int64_t epochs) {
  const auto* set = t.result().find("train.global_batch");
  const int64_t batch = std::max<int64_t>(1, set ? to_integer(set->value) : 1), clips = clips_an_epoch(t);
  const int64_t steps = clips / batch;
  if (clips < 1)
    t.refuse(option, "steps are counted, not epochs, and the data set is not here to count: set " + key);
  else if (steps < 1)
    t.refuse(option, "steps are counted, not epochs, and the " + std::to_string(clips) +
                         " samples of the data set are fewer than a global batch of " + std::to_string(batch) +
                         ": set " + key);
  else
    t.set(key, std::to_string(epochs * steps), {option}, "of " + std::to_string(steps) + " steps");
}

void swapped_blocks(Translator& t, const Given& g) {
  if (t.integer(g.name, 0) == 0) return t.imply(g.name, "no block is swapped");
  t.set("plan.parameters", "host", {g.name}, "all blocks; on auto the plan chooses how many");
}

void comma_list(Translator& t, const Given& g, const std::string& key) {
  std::string list;
  for (const std::string& item : split_list(g.value)) list += (list.empty() ? "" : ",") + item;
  t.set(key, list, {g.name});
}

}  // namespace

Dialect dialect_of(const std::string& program, const std::string& table, std::function<void(Translator&)> together,
                   Functions functions) {
  functions.merge(Functions{
      {"comma_list", comma_list},
      {"compute_type", plain(set_compute_type)},
      {"one_item",
       [](Translator& t, const Given& g, const std::string& key) { t.set(key, g.value + kListSeparator, {g.name}); }},
      {"optimiser", plain([](Translator& t, const Given& g) { set_optimiser(t, g.name); })},
      {"swapped_blocks", plain(swapped_blocks)}});
  return read_dialect(program, table, std::move(together), functions);
}

bool strip_prefix(std::string& name, std::string_view prefix) {
  if (!name.starts_with(prefix)) return false;
  name.erase(0, prefix.size());
  return true;
}

void set_weight_files(Translator& t, const std::vector<std::string>& files, const std::string& option) {
  if (files.empty() || std::find(files.begin(), files.end(), "") != files.end())
    throw UserError(Exit::usage, "import", option + " names no file", "give the files of weights");
  std::vector<std::string> denoiser;
  for (const std::string& file : files) {
    const std::string name = lower_case(fs::path(file).filename().string());
    if (name.find("t5") != std::string::npos) {
      t.set("data.text_encoder", "umt5-xxl", {option});
      t.set("data.text_encoder_path", file, {option});
      const fs::path folder = fs::path(file).parent_path();  // that of all models has no tokenizer
      const std::string own =
          folder == kDiffSynthCommon ? kDiffSynthTokenizer : tokenizer_in((folder / "google/umt5-xxl").string());
      if (fs::exists(own) || !fs::exists(kDiffSynthTokenizer)) t.assume("data.tokenizer", own, "the release's own");
    } else if (name.find("vae") != std::string::npos) {
      t.set("data.vae", file, {option});
    } else if (name.find("clip") != std::string::npos) {
      t.set("data.image_encoder_path", file, {option});
    } else if (file.find("wav2vec") != std::string::npos) {
      t.set("data.audio_encoder", file, {option});
    } else {
      denoiser.push_back(file);
    }
  }
  if (denoiser.empty()) return;
  t.set("model.path", folder_of_shards(denoiser, option), {option});
}

void set_epochs(Translator& t, const std::string& option, int64_t epochs) {
  set_epoch_steps(t, "run.steps", option, epochs);
}
void assume_epochs(Translator& t, int64_t epochs) {
  if (t.result().find("run.steps")) return;
  const auto* set = t.result().find("train.global_batch");
  const int64_t steps = clips_an_epoch(t) / std::max<int64_t>(1, set ? to_integer(set->value) : 1);
  const std::string own = std::to_string(epochs) + (epochs == 1 ? " epoch" : " epochs") + " by itself";
  if (steps > 0)
    t.assume("run.steps", std::to_string(steps * epochs), "the program trains " + own);
  else
    t.result().implied.push_back(
        {"no number of steps", "the program trains " + own + ", and the data set is not here to count: set run.steps"});
}
void set_eval_epochs(Translator& t, const std::string& option, int64_t epochs) {
  set_epoch_steps(t, "eval.every", option, epochs);
}
void set_checkpoint_epochs(Translator& t, const std::string& option, int64_t epochs) {
  set_epoch_steps(t, "checkpoint.every", option, epochs);
}

void set_kept(Translator& t, const std::string& count, const std::string& option, const std::string& because) {
  const auto* mode = t.result().find("train.mode");
  const bool files = mode && mode->value == "lora" && count != "0";
  for (const char* key : {"checkpoint.keep", "checkpoint.keep_exports"}) {
    if (key == std::string("checkpoint.keep_exports") && !files) continue;
    if (option.empty())
      t.assume(key, count, because);
    else
      t.set(key, count, {option}, because);
  }
}

void set_warm_up(Translator& t, const std::string& option, bool one_is_all) {
  const double given = t.number(option, 0);
  const bool is_share = given > 0 && (given < 1 || (one_is_all && given == 1));
  const auto* steps = t.result().find("run.steps");
  if (!is_share)
    t.set("train.warmup_steps", given == std::floor(given) ? number_text(given) : t.value(option), {option});
  else if (steps)
    t.set("train.warmup_steps", number_text(std::floor(given * static_cast<double>(to_integer(steps->value)))),
          {option}, "of " + steps->value + " steps");
  else
    t.refuse(option, "a share of the steps, whose number is not known: set train.warmup_steps");
}

void set_schedule(Translator& t, const std::string& option) {
  const std::string name = t.value(option);
  for (const char* same :
       {"constant", "constant_with_warmup", "linear", "cosine", "cosine_with_restarts", "polynomial"})
    if (name == same) return t.set("train.schedule", name, {option});
  if (name == "cosine_with_min_lr") return t.set("train.schedule", "cosine_min", {option});
  if (name == "warmup_stable_decay") return t.set("train.schedule", "wsd", {option});
  t.refuse(option,
           "constant, constant_with_warmup, linear, cosine, cosine_with_restarts, polynomial, "
           "cosine_with_min_lr and warmup_stable_decay are there");
}

void set_script_schedule(Translator& t) {
  const std::string name = t.value("--lr_scheduler", "constant"), warm_up = "--lr_warmup_steps";
  if (t.has("--lr_scheduler")) set_schedule(t, "--lr_scheduler");
  if (t.has(warm_up)) {
    if (name == "constant")
      t.imply(warm_up, "a constant rate has no warm-up");
    else
      t.set("train.warmup_steps", t.value(warm_up), {warm_up});
  } else if (name != "constant") {
    t.assume("train.warmup_steps", "500", "the script's");
  }
}

void set_script_betas(Translator& t) {
  std::vector<std::string> options;
  for (const char* option : {"--adam_beta1", "--adam_beta2"})
    if (t.has(option)) options.push_back(option);
  if (!options.empty())
    t.set("train.betas", t.value("--adam_beta1", "0.9") + "," + t.value("--adam_beta2", "0.999"), options);
}

void set_script_amount(Translator& t, int64_t usual, int64_t epochs) {
  constexpr int64_t kMost = 1'000'000;
  std::vector<std::string> options;
  for (const char* option : {"--train_batch_size", "--gradient_accumulation_steps"})
    if (t.has(option)) options.push_back(option);
  const int64_t batch = std::clamp<int64_t>(t.integer("--train_batch_size", usual), 0, kMost);
  // the script's own where it has one, else the launcher's
  const int64_t asked = t.integer("--gradient_accumulation_steps", t.context().accumulation);
  const int64_t steps = std::clamp<int64_t>(asked, 0, kMost);
  if (options.empty())
    t.assume("train.global_batch", std::to_string(batch * steps * t.dp_size().value_or(1)),
             std::to_string(usual) + " samples a rank, the script's");
  else
    t.set_batch(batch * steps, options, std::to_string(batch) + " x " + std::to_string(steps));
  if (t.has("--max_train_steps")) {
    t.set("run.steps", t.value("--max_train_steps"), {"--max_train_steps"});
    if (t.has("--num_train_epochs")) t.imply("--num_train_epochs", "--max_train_steps is given and counts");
  } else if (t.has("--num_train_epochs")) {
    set_epochs(t, "--num_train_epochs", t.integer("--num_train_epochs", 1));
  } else {
    assume_epochs(t, epochs);
  }
}

void set_script_timesteps(Translator& t, bool uniform) {
  const std::string option = "--weighting_scheme", scheme = t.value(option, "none");
  const bool normal = scheme == "logit_normal" && !uniform;
  if (scheme == "none") t.assume("diffusion.timesteps", "uniform", "the script's: none");
  if (t.has(option)) {
    if (scheme == "none")
      t.imply(option, "uniform draws, and losses that are not weighted");
    else if (scheme != "logit_normal")
      t.refuse(option, "none and logit_normal are there");
    else if (uniform)
      t.imply(option, "the draws are uniform, and logit_normal weights no loss");
    else
      t.set("diffusion.timesteps", "diffusers", {option}, "logit-normal draws from the scheduler's timesteps");
  }
  for (const auto& [name, usual] : {std::pair("--logit_mean", 0.0), {"--logit_std", 1.0}}) {
    if (!t.has(name)) continue;
    if (!normal || t.number(name, usual) == usual)
      t.imply(name, normal ? "the draws have mean 0 and deviation 1" : "it belongs to logit_normal");
    else
      t.refuse(name, "the draws have mean 0 and deviation 1");
  }
  if (t.has("--mode_scale")) t.imply("--mode_scale", "it belongs to --weighting_scheme mode");
}

void set_optimiser(Translator& t, const std::string& option) {
  const std::string given = t.value(option), name = lower_case(given.substr(given.rfind('.') + 1));
  if (name == "adamw" || name == "adamw_optimi") {
    t.set("train.optimizer", "adamw", {option});
  } else if (name == "adamw8bit" || name == "adam8bit" || name == "pagedadamw8bit" || name == "adamw8bitwrapper") {
    t.set("train.optimizer", "adamw", {option});
    t.set("plan.moments", "int8", {option}, "moments in blocks of 256 with a scale");
  } else if (name == "lion" || name == "adafactor" || name == "came" || name == "prodigy") {
    t.set("train.optimizer", name, {option});
  } else if (name == "adamwschedulefree" || name == "adamw_schedulefree") {
    t.set("train.optimizer", "adamw_schedule_free", {option});
  } else if (name == "camewrapper") {
    t.set("train.optimizer", "came", {option});
  } else if (name == "lion8bit" || name == "pagedlion8bit") {
    t.set("train.optimizer", "lion", {option});
    t.set("plan.moments", "int8", {option}, "moments in blocks of 256 with a scale");
  } else if (name == "came8bit" || name == "came8bitwrapper") {
    t.set("train.optimizer", "came8bit", {option}, "the first moment in blocks of 256 with a scale");
  } else if (name == "adamw8bitkahan") {
    t.set("train.optimizer", "adamw", {option});
    t.set("plan.moments", "int8", {option}, "moments in blocks of 256 with a scale");
    t.set("plan.masters", "split", {option}, "Kahan's sum keeps what bf16 loses; split masters keep all of it");
  } else {
    t.refuse(
        option,
        "AdamW, schedule-free AdamW, Lion, Adafactor, CAME, Prodigy and the 8-bit forms of AdamW, Lion and CAME are there");
  }
}

void set_targets(Translator& t, const std::string& option) {
  static const std::pair<const char*, const char*> kNames[] = {
      {"to_q", "q"},         {"to_k", "k"}, {"to_v", "v"}, {"to_out.0", "o"}, {"ffn.net.0.proj", "ffn.0"},
      {"ffn.net.2", "ffn.2"}};
  std::string list;
  for (std::string name : split_list(t.value(option))) {
    for (const auto& [diffusers, official] : kNames)
      if (name == diffusers) name = official;
    list += (list.empty() ? "" : ",") + name;
  }
  t.set("lora.targets", list, {option});
}

std::string type_word(const std::string& text) {
  const std::string word = lower_case(text.substr(text.rfind('.') + 1));  // npos + 1 is 0
  if (word == "bf16" || word == "bfloat16") return "bf16";
  if (word == "fp16" || word == "float16" || word == "half") return "fp16";
  if (word == "fp32" || word == "float32" || word == "float" || is_false(word)) return "fp32";
  return "";
}

void set_compute_type(Translator& t, const Given& g) {
  const std::string type = type_word(g.value);
  if (type.empty())
    t.refuse(g.name, "fp32, bf16 and fp16 are there");
  else
    t.set("plan.compute_dtype", type, {g.name}, type == "fp32" ? "" : "masters and states are fp32");
}

}  // namespace tessera::tools
