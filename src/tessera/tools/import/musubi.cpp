// musubi-tuner's wan_train_network.py and wan_train.py, and the TOML of their data sets.
#include <algorithm>
#include <charconv>
#include <filesystem>
#include <set>

#include "tessera/base/check.h"
#include "tessera/base/foreign_file.h"
#include "tessera/recipe/recipe_table.h"
#include "tessera/tools/import/config_file.h"
#include "tessera/tools/import/dialects.h"
#include "tessera/tools/import/import.h"
#include "tessera/tools/import/parts.h"
#include "tessera/tools/import/wan_folder.h"

namespace tessera::tools {

namespace {

namespace fs = std::filesystem;

/// --dit alone, or both experts of A14B beside each other.
void musubi_models(Translator& t) {
  if (t.has("--task")) {
    const WanTask& task = wan_task(t.value("--task"));
    t.imply("--task", std::string("a ") + task.type + " model, by its weights" +
                          (task.two_experts ? ": an expert, or two in one folder" : ""));
    const fs::path dit = t.value("--dit");  // one file, as a rule, which does not say the size
    std::error_code unseen;
    const fs::path beside = fs::is_directory(dit, unseen) ? dit : dit.parent_path();
    if (t.has("--dit") && !fs::exists(beside / "config.json", unseen))
      t.assume("model.preset", task.preset, std::string("the size of ") + task.name + ": there is no config.json");
  }
  const std::string low = t.value("--dit"), high = t.value("--dit_high_noise");
  if (t.has("--dit") && t.has("--dit_high_noise")) {
    const fs::path folder = fs::path(low).parent_path().parent_path();
    if (fs::path(low).parent_path().filename() == "low_noise_model" &&
        fs::path(high).parent_path() == folder / "high_noise_model")
      t.set("model.path", folder.string(), {"--dit", "--dit_high_noise"});
    else
      t.refuse("--dit_high_noise",
               "train both experts from one folder with high_noise_model and low_noise_model in "
               "it: model.path");
  }
  if (t.has("--dit_high_noise") && !t.has("--dit"))
    t.refuse("--dit_high_noise", "without --dit, the expert of low noise");
  if (t.has("--dit") && !t.result().find("model.path")) t.set("model.path", low, {"--dit"});
  if (t.has("--t5")) {
    t.set("data.text_encoder", "umt5-xxl", {"--t5"});
    t.set("data.text_encoder_path", t.value("--t5"), {"--t5"});
  }
}

/// What the density of kind sigma is, whose indices count from the noise.
void musubi_density(Translator& t, const std::string& scheme, std::vector<std::string> options) {
  if (!t.has("--weighting_scheme")) return;
  options.push_back("--weighting_scheme");
  const double mean = t.number("--logit_mean", 0), deviation = t.number("--logit_std", 1);
  if (scheme == "mode") {
    t.set("diffusion.timesteps", "mode", options);
    if (t.has("--mode_scale")) t.set("diffusion.mode_scale", t.value("--mode_scale"), {"--mode_scale"});
    return;
  }
  for (const char* option : {"--logit_mean", "--logit_std"})
    if (t.has(option)) options.push_back(option);
  t.set("diffusion.timesteps",
        mean == 0 && deviation == 1
            ? "logit_normal"
            : "logit_normal(" + number_text(mean == 0 ? 0 : -mean) + ", " + number_text(deviation) + ")",
        options, "indices count from the noise");
}

void musubi_timesteps(Translator& t) {
  const std::string option = "--timestep_sampling", shift = "--discrete_flow_shift", scale = "--sigmoid_scale",
                    weighting = "--weighting_scheme", strata = "--num_timestep_buckets";
  const std::string sampling = t.value(option, "sigma"), scheme = t.value(weighting, "none");
  const bool density = sampling == "sigma" && (scheme == "logit_normal" || scheme == "mode"),
             sized = sampling == "flux_shift" || sampling == "qwen_shift", mixed = sampling.starts_with("qinglong_"),
             normal = sampling == "logsnr" || mixed;
  const double width = t.number(scale, 1);
  std::vector<std::string> options;
  if (t.has(option)) options.push_back(option);
  if (t.has(scale) && !sized && !normal) options.push_back(scale);
  if (density)
    musubi_density(t, scheme, t.has(option) ? std::vector<std::string>{option} : std::vector<std::string>());
  else if (sampling == "sigma" && t.has(option))
    t.set("diffusion.timesteps", "uniform", options, "indices of the table are drawn uniformly");
  else if (sampling == "sigmoid" || sampling == "shift")
    t.set("diffusion.timesteps", width == 1 ? "logit_normal" : "logit_normal(0, " + number_text(width) + ")", options);
  else if (sampling == "uniform" || sized || sampling == "logsnr" || sampling == "qinglong_flux" ||
           sampling == "qinglong_qwen")
    t.set("diffusion.timesteps", sampling, options);
  else if (t.has(option))
    t.refuse(option, "sigma, uniform, sigmoid, shift, flux_shift, qwen_shift, logsnr and qinglong are supported");
  if (t.has(scale) && sized)
    t.set("diffusion.logit_std", t.value(scale), {scale});
  else if (t.has(scale) && mixed && width != 1)
    t.refuse(scale, "the sigmoid of a qinglong mixture has a scale of 1");
  else if (t.has(scale) && sampling != "sigmoid" && sampling != "shift")
    t.imply(scale, "it belongs to --timestep_sampling sigmoid and shift");
  for (const auto& [name, key] :
       {std::pair("--logit_mean", "diffusion.logit_mean"), {"--logit_std", "diffusion.logit_std"}})
    if (t.has(name) && normal)
      t.set(key, t.value(name), {name});
    else if (t.has(name) && !t.is_answered(name))
      t.imply(name, "it belongs to logit_normal, logsnr and qinglong");
  if (t.has("--mode_scale") && !t.is_answered("--mode_scale"))
    t.imply("--mode_scale", "it belongs to --weighting_scheme mode");
  if (t.has(weighting) && !density) {
    if (scheme == "sigma_sqrt" || scheme == "cosmap")
      t.set("diffusion.weighting", scheme, {weighting});
    else if (scheme == "none" || scheme == "logit_normal" || scheme == "mode")
      t.imply(weighting, scheme == "none" ? "losses are not weighted" : "it shapes the draws of kind sigma alone");
    else
      t.refuse(weighting, "none, logit_normal, mode, sigma_sqrt and cosmap are there");
  }
  if (t.has(strata)) {
    if (t.integer(strata, 0) > 1 && sampling != "sigma")
      t.set("diffusion.strata", t.value(strata), {strata});
    else
      t.imply(strata, sampling == "sigma" ? "kind sigma has no buckets" : "it is off");
  }
  // The table that `sigma` draws from is shifted for sampling alone.
  if (t.has(shift) && sampling == "shift") return t.set("diffusion.shift", t.value(shift), {shift});
  if (t.has(shift))
    t.imply(shift, "it belongs to --timestep_sampling shift; " + sampling + " is not shifted in training");
  t.assume("diffusion.timesteps", "uniform", "musubi-tuner's kind, sigma");
  if (!sized && !mixed) t.assume("diffusion.shift", "1", "timesteps are not shifted");
}

/// 0..1000, as shares; of sigma they are indices from the noise's end.
void musubi_window(Translator& t) {
  const std::string kind = t.value("--timestep_sampling", "sigma"), shaped = "--preserve_distribution_shape";
  const std::string scheme = t.value("--weighting_scheme", "none");
  const bool indices = kind == "sigma",
             even = indices ? scheme != "logit_normal" && scheme != "mode" : kind == "uniform";
  const bool squeezed = !even && (indices || !t.flag(shaped));
  if (t.has(shaped)) t.imply(shaped, squeezed ? "it is off" : "draws outside of the window are drawn again");
  for (const auto& [option, at_its_end, from_noise] : {std::tuple("--min_timestep", kLeastTimestep, kMostTimestep),
                                                       {"--max_timestep", kMostTimestep, kLeastTimestep}}) {
    if (!t.has(option)) continue;
    const double share = t.number(option, 0) / 1000;
    if (indices)
      t.set(from_noise, number_text(1 - share), {option}, "kind sigma counts from the noise");
    else
      t.set(at_its_end, number_text(share), {option});
    if (squeezed)
      t.warn(option,
             "musubi-tuner squeezes all draws into the window, here those outside are drawn again, as with " + shaped);
  }
  constexpr const char* kBoundary = "--timestep_boundary";  // a timestep, or already a share
  if (!t.has(kBoundary)) return;
  const double boundary = t.number(kBoundary, 0);
  t.set("experts.boundary", number_text(boundary > 1 ? boundary / 1000 : boundary), {kBoundary});
}

/// Of --network_module: lora, loha, lokr; empty for others.
std::string network_kind(const Translator& t) {
  const std::string module = t.value("--network_module");
  for (const char* kind : {"loha", "lokr", "lora"})
    if (module.find(kind) != std::string::npos) return kind;
  return {};
}

void musubi_adapters(Translator& t) {
  const bool lora = t.has("--network_module");
  if (lora) {
    const std::string module = t.value("--network_module"), kind = network_kind(t);
    if (kind.empty())
      t.refuse("--network_module",
               "LoRA, LoHa and LoKr are supported: networks.lora_wan, networks.loha, networks.lokr");
    else
      t.set("train.mode", "lora", {"--network_module"});
    if (!kind.empty() && kind != "lora") t.set("lora.kind", kind, {"--network_module"});
  }
  const auto copy = [&](const char* option, const char* key) {
    if (!t.has(option)) return;
    if (lora)
      t.set(key, t.value(option), {option});
    else
      t.imply(option, "nothing asks for a LoRA: --network_module networks.lora_wan does");
  };
  copy("--network_dim", "lora.rank");
  const bool zero = t.has("--network_alpha") && t.value("--network_alpha").find_first_not_of("0.") == std::string::npos;
  if (lora && zero)
    t.set("lora.alpha", "auto", {"--network_alpha"}, "0 is the rank there");
  else
    copy("--network_alpha", "lora.alpha");
  copy("--network_dropout", "lora.dropout");
  copy("--network_weights", "lora.init");
  if (lora) {
    t.assume("lora.rank", "4", "musubi-tuner's rank");
    t.assume("lora.alpha", "1", "musubi-tuner's alpha");
  }
}

void musubi_saving(Translator& t) {
  const std::string name = t.value("--output_name");
  if (t.has("--output_dir"))
    t.set("run.out", name.empty() ? t.value("--output_dir") : (fs::path(t.value("--output_dir")) / name).string(),
          name.empty() ? std::vector<std::string>{"--output_dir"}
                       : std::vector<std::string>{"--output_dir", "--output_name"});
  else if (t.has("--output_name"))
    t.set("run.out", name, {"--output_name"});
  if (t.has("--max_train_epochs"))
    set_epochs(t, "--max_train_epochs", t.integer("--max_train_epochs", 1));
  else
    t.assume("run.steps", "1600", "musubi-tuner's steps");
  if (t.has("--max_train_steps")) {
    if (t.has("--max_train_epochs"))
      t.imply("--max_train_steps", "--max_train_epochs is given and counts");
    else
      t.set("run.steps", t.value("--max_train_steps"), {"--max_train_steps"});
  }
  if (t.has("--save_every_n_epochs"))
    set_checkpoint_epochs(t, "--save_every_n_epochs", t.integer("--save_every_n_epochs", 1));
}

/// Training states are checkpoints here, the files of a LoRA its exports. N steps are a window there, which holds
/// N / every + 1 saves; N epochs are a number of saves. 0 keeps all. The file at the end is one more, where it is not that of
/// a save; the last epoch has no other.
void musubi_kept(Translator& t) {
  const int64_t every = t.integer("--save_every_n_steps", 0);
  const bool by_epoch = every <= 0 && t.has("--save_every_n_epochs");
  const std::string last = by_epoch ? "--save_last_n_epochs" : "--save_last_n_steps", of_state = last + "_state";
  std::vector<std::string> options;
  for (const char* option :
       {"--save_last_n_steps", "--save_last_n_steps_state", "--save_last_n_epochs", "--save_last_n_epochs_state"}) {
    if (!t.has(option)) continue;
    if ((by_epoch || every > 0) && (option == last || option == of_state))
      options.push_back(option);
    else
      t.imply(option, "nothing is saved every so many of these");
  }
  if (every <= 0 && !by_epoch)
    t.result().implied.push_back(
        {"nothing is saved every so many steps",
         "musubi-tuner saves at the end alone, here checkpoint.every counts; 0 is the end alone"});
  if (options.empty()) return t.assume("checkpoint.keep", "0", "musubi-tuner keeps all that it saves");
  const auto* steps = t.result().find("run.steps");
  const bool ends_between = !by_epoch && steps && to_integer(steps->value) % every != 0;
  const auto saves = [&](int64_t window) {
    return window <= 0 ? 0 : by_epoch ? window + 1 : window / every + (ends_between ? 2 : 1);
  };
  const int64_t of_files = t.integer(last, 0), given = t.integer(of_state, 0);
  const int64_t of_states = t.flag("--save_state") && given != 0 ? given : of_files;
  const std::string because =
      by_epoch ? "saves, and the last epoch's" : "a window of steps, every " + std::to_string(every);
  t.set("checkpoint.keep", std::to_string(saves(of_states)), options, because);
  const auto* mode = t.result().find("train.mode");
  if (mode && mode->value == "lora" && of_files > 0)
    t.set("checkpoint.keep_exports", std::to_string(saves(of_files)), options, because);
}

/// Prompts of a file: a line each, options after " --" are refused but for nothing.
void musubi_prompts(Translator& t) {
  const std::string option = "--sample_prompts";
  if (!t.has(option)) return;
  const std::string file = file_beside(t.context(), t.value(option));
  if (!std::filesystem::exists(file)) return t.refuse(option, file + " was not found: set sample.prompts");
  ForeignLines in(file, "import", "a text file with a prompt a line");
  std::string list;
  for (std::string line; in.next(line);) {
    line = line.substr(0, line.find(" --"));
    if (!line.empty() && line.back() == '\r') line.pop_back();
    if (!line.empty() && line[0] != '#') list += line + kListSeparator;
  }
  t.set("sample.prompts", list, {option}, "the prompts; sizes, seeds and guidance come from the recipe");
}

/// A share of the rate, at which cosine_with_min_lr ends.
void musubi_lowest_rate(Translator& t) {
  const std::string option = "--lr_scheduler_min_lr_ratio";
  if (!t.has(option)) return;
  if (t.value("--lr_scheduler") != "cosine_with_min_lr")
    return t.refuse(option, "cosine_with_min_lr alone has a lowest rate here");
  const double lr = t.number("--learning_rate", 2e-6);
  t.set("train.eta_min", number_text(lr * t.number(option, 0)), {option}, "x lr " + number_text(lr));
}

void musubi_together(Translator& t) {
  musubi_models(t);
  musubi_adapters(t);
  musubi_timesteps(t);
  musubi_window(t);
  ImportContext inside = t.context();
  if (t.has("--gradient_accumulation_steps")) {
    inside.accumulation = static_cast<int>(t.integer("--gradient_accumulation_steps", 1));
    t.imply("--gradient_accumulation_steps", "a factor of train.global_batch");
  }
  if (t.has("--dataset_config")) {
    const std::string file = file_beside(t.context(), t.value("--dataset_config"));
    if (fs::exists(file)) {
      t.imply("--dataset_config", "its options are in data.*");
      t.result().merge(import_file(file, inside));
    } else {
      t.refuse("--dataset_config", file + " was not found: set data.*");
    }
  }
  if (t.has("--task")) {  // where no data set says it
    const WanTask& task = wan_task(t.value("--task"));
    t.assume("data.fps", number_text(task.fps), std::string(task.name) + "'s rate");
  }
  musubi_saving(t);
  musubi_kept(t);
  musubi_prompts(t);
  if (t.has("--lr_scheduler")) set_schedule(t, "--lr_scheduler");
  if (t.has("--lr_warmup_steps")) set_warm_up(t, "--lr_warmup_steps");
  musubi_lowest_rate(t);
  if (t.has("--optimizer_type")) set_optimiser(t, "--optimizer_type");
  t.assume("train.schedule", t.has("--lr_warmup_steps") ? "constant_with_warmup" : "constant",
           "musubi-tuner's schedule");
}

/// An argument of prodigyopt's Prodigy; false: of this name it has none, or not with this value.
bool prodigy_argument(Translator& t, const std::string& option, const std::string& name, const std::string& value) {
  struct Known {
    const char *name, *key;  ///< no key: `only` is what it does anyway
    const char* only;
  };
  static constexpr Known kKnown[] = {{"d_coef", "train.d_coef", nullptr},
                                     {"d0", "train.d0", nullptr},
                                     {"beta3", "train.beta3", nullptr},
                                     {"use_bias_correction", "train.bias_correction", nullptr},
                                     {"safeguard_warmup", "train.safeguard_warmup", nullptr},
                                     {"decouple", nullptr, "true"},
                                     {"growth_rate", "train.growth_rate", nullptr},
                                     {"slice_p", nullptr, "1"}};
  const std::string word = lower_case(value);
  for (const Known& known : kKnown) {
    if (name != known.name) continue;
    if (!known.key) return word == known.only || word == std::string("float('") + known.only + "')";
    if (name == "beta3" && word == "none") return true;
    if (name == "growth_rate" && (word == "inf" || word == "float('inf')")) return true;  // no bound
    t.set(known.key, word == "true" || word == "false" ? word : value, {option});
    return true;
  }
  return name == "fsdp_in_use";  // sums are over all ranks in any case
}

void optimiser_arguments(Translator& t, const Given& g) {
  const std::vector<std::string> pairs = split_list(g.value);
  if (pairs.empty()) return t.imply(g.name, "no arguments");
  const std::string type = t.value("--optimizer_type");
  const bool prodigy = lower_case(type.substr(type.rfind('.') + 1)) == "prodigy";
  for (const std::string& pair : pairs) {
    const std::string name = pair.substr(0, pair.find('=')), value = pair.substr(pair.find('=') + 1);
    const char* key = name == "weight_decay" ? "train.weight_decay" : name == "eps" ? "train.eps" : nullptr;
    if (name == "betas") {
      std::string list = value;
      std::erase_if(list, [](char c) { return c == '(' || c == ')' || c == ' '; });
      t.set("train.betas", list, {g.name});
    } else if (key) {
      t.set(key, value, {g.name});
    } else if (!prodigy || !prodigy_argument(t, g.name, name, value)) {
      return t.refuse(g.name, "'" + pair +
                                  "': weight_decay, betas and eps are supported, and of Prodigy d_coef, d0, "
                                  "beta3, growth_rate, use_bias_correction, safeguard_warmup and decouple=True");
    }
  }
  if (!t.is_answered(g.name)) t.imply(g.name, "what Prodigy does in any case");
}

void network_arguments(Translator& t, const Given& g) {
  if (!t.has("--network_module")) return t.imply(g.name, "nothing asks for a LoRA");
  for (const std::string& pair : split_list(g.value)) {
    const std::string name = pair.substr(0, pair.find('=')), value = pair.substr(pair.find('=') + 1);
    const bool none = value == "None" || value == "0" || value == "0.0" || value == "False";
    if (name == "loraplus_lr_ratio" && network_kind(t) == "lora")
      t.set("lora.plus_ratio", value, {g.name}, "LoRA+");
    else if (name == "factor" && network_kind(t) == "lokr")
      t.set("lora.factor", value, {g.name});
    else if (!none && (name == "module_dropout" || (name == "rank_dropout" && network_kind(t) == "lora")))
      t.set("lora." + name, value, {g.name});
    else if (name != "verbose" && name != "loraplus_lr_ratio" && !none)
      return t.refuse(g.name, "'" + pair +
                                  "': loraplus_lr_ratio, rank_dropout, module_dropout and LoKr's factor are supported; "
                                  "lora.targets choose modules");
  }
  if (!t.is_answered(g.name)) t.imply(g.name, "nothing that changes the training");
}

/// Beside the form that sends inputs to the host nothing more is set.
void musubi_checkpointing(Translator& t, const Given& g) {
  if (!t.flag(g.name))
    t.imply(g.name, "it is off");
  else if (t.flag("--gradient_checkpointing_cpu_offload"))
    t.imply(g.name, "--gradient_checkpointing_cpu_offload says where inputs wait too");
  else
    t.set("plan.activations", "recompute", {g.name});
}

// ---- data sets, whose [general] table and one [[datasets]] come under one name each ------------------------------------

void source(Translator& t) {
  int named = 0;
  for (const char* option : {"video_directory", "image_directory"})
    if (t.has(option)) t.set("data.path", t.value(option), {option}), ++named;
  for (const char* option : {"video_jsonl_file", "image_jsonl_file"}) {
    if (!t.has(option)) continue;
    ++named;
    const std::string file = t.value(option);
    t.set("data.metadata", file, {option});
    t.set("data.path", file.rfind('/') == std::string::npos ? "." : file.substr(0, file.rfind('/')), {option});
  }
  if (named != 1)
    throw UserError(Exit::usage, "import", named == 0 ? "the data set names no clips" : "a data set has one source",
                    "give one of video_directory, video_jsonl_file, image_directory, image_jsonl_file");
}

bool of_images(const Translator& t) { return t.has("image_directory") || t.has("image_jsonl_file"); }

/// Its autoencoders make a latent frame of each 4 frames after the first.
constexpr int64_t kFramesOfLatent = 4;

int64_t frame_count(const Translator& t, const std::string& text) {
  int64_t frames = 0;
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, frames);
  if (error != std::errc() || stop != end || frames < 1)
    throw UserError(Exit::usage, "import",
                    t.find("target_frames")->shown() + ": '" + text + "': expected whole numbers of frames from 1 on",
                    "for example [1, 25, 45]");
  return frames;
}

/// The lengths that it trains: each cut to 4 n + 1 frames, once, shortest first.
std::vector<std::string> lengths(const Translator& t, bool full) {
  if (of_images(t)) return {"1"};
  if (full) return {t.value("max_frames", "129")};  // cut for each video, as data.clip_mode = "full" does
  std::set<int64_t> frames;
  for (const std::string& text : split_list(t.value("target_frames", "1")))
    frames.insert((frame_count(t, text) - 1) / kFramesOfLatent * kFramesOfLatent + 1);
  std::vector<std::string> texts;
  for (const int64_t f : frames) texts.push_back(std::to_string(f));
  return texts;
}

/// What a reader of the recipe is told where a listed length was cut; else nothing.
std::string told_of_cut(const Translator& t, const std::vector<std::string>& lengths) {
  for (const std::string& text : split_list(t.value("target_frames", "1")))
    if (std::ranges::find(lengths, text) == lengths.end()) return "cut to 4 n + 1 frames, as musubi-tuner does";
  return {};
}

/// Every listed length at the shapes of the one area, as a video or picture has its own; a video is in all of the lengths
/// that it is long enough for.
void musubi_buckets(Translator& t, const std::vector<std::string>& size, const std::vector<std::string>& frames,
                    std::vector<std::string> options, const std::string& cut) {
  options.push_back("enable_bucket");
  std::string buckets;
  for (const std::string& f : frames) buckets += f + "xAREA_" + size[0] + "x" + size[1] + kListSeparator;
  t.set("data.buckets", buckets, options, "shapes of this area, in steps of 16" + (cut.empty() ? "" : "; " + cut));
  if (frames.size() > 1) t.set("data.clip_lengths", "every", options, "a video is an item of each length that it has");
}

/// Every listed length at the one resolution: a shape each where there are several, and a video is in all of them that
/// it is long enough for.
void musubi_shapes(Translator& t) {
  const std::vector<std::string> size = split_list(t.value("resolution", "960,544"));
  if (size.size() != 2)
    throw UserError(Exit::usage, "import", "resolution: expected [width, height]", "for example [832, 480]");
  const bool full = t.value("frame_extraction", "head") == "full";
  const char* longest = full ? "max_frames" : "target_frames";
  const std::vector<std::string> frames = lengths(t, full);
  std::vector<std::string> options;
  for (const char* option : {"resolution", longest})
    if (t.has(option)) options.push_back(option);
  if (full && t.has("target_frames")) t.imply("target_frames", "frame_extraction = full takes all frames of a video");
  if (t.flag("enable_bucket")) return musubi_buckets(t, size, frames, options, full ? "" : told_of_cut(t, frames));
  if (t.has("enable_bucket")) t.imply("enable_bucket", "all clips have one shape");
  if (options.empty() && !full) return;
  if (frames.size() == 1) {
    if (options.empty())
      t.assume("data.frames", frames[0], "musubi-tuner's max_frames");
    else
      t.set("data.frames", frames[0], options, full || of_images(t) ? "" : told_of_cut(t, frames));
    if (t.has("resolution")) t.set("data.size", size[1] + "," + size[0], options, "height, width");
    return;
  }
  std::string buckets;
  for (const std::string& f : frames) buckets += f + "x" + size[1] + "x" + size[0] + kListSeparator;
  const std::string cut = told_of_cut(t, frames);
  t.set("data.buckets", buckets, options, "frames x height x width" + (cut.empty() ? "" : "; " + cut));
  t.set("data.clip_lengths", "every", options, "a video is an item of each length that it has");
}

void extraction(Translator& t) {
  static const std::pair<const char*, const char*> kModes[] = {
      {"head", "head"}, {"chunk", "chunks"}, {"slide", "slide"}, {"uniform", "uniform"}, {"full", "full"}};
  const std::string mode = t.value("frame_extraction", "head");
  if (t.has("frame_extraction")) {
    bool known = false;
    for (const auto& [theirs, ours] : kModes)
      if (mode == theirs) t.set("data.clip_mode", ours, {"frame_extraction"}), known = true;
    if (!known)
      throw UserError(Exit::usage, "import", t.find("frame_extraction")->shown() + " is not known",
                      "did you mean " + nearest(mode, {"head", "chunk", "slide", "uniform", "full"}).front() + "?");
  }
  const auto belongs = [&](const char* option, const char* to, const char* key) {
    if (mode != to) {
      if (t.has(option)) t.imply(option, std::string("it belongs to frame_extraction = ") + to);
    } else if (t.has(option)) {
      t.set(key, t.value(option), {option});
    } else {
      t.assume(key, "1", std::string("musubi-tuner's ") + option);
    }
  };
  belongs("frame_stride", "slide", "data.clip_stride");
  belongs("frame_sample", "uniform", "data.clip_samples");
  if (t.has("max_frames") && mode != "full") t.imply("max_frames", "it belongs to frame_extraction = full");
}

/// Masks beside the clips, whose area alone counts.
void mask_suffix(Translator& t, const Given& g) {
  t.set("data.mask_suffix", g.value, {g.name});
  t.set("diffusion.normalize_masked_area_loss", "true", {g.name}, "the mean is over what trains, of each sample");
}

void musubi_dataset_together(Translator& t) {
  source(t);
  musubi_shapes(t);
  extraction(t);
  const int64_t batch = t.integer("batch_size", 1) * t.context().accumulation;
  if (t.has("batch_size"))
    t.set_batch(batch, {"batch_size"},
                t.value("batch_size") + " x " + std::to_string(t.context().accumulation) + " (accumulation)");
  else
    t.assume("train.global_batch", std::to_string(batch * t.dp_size().value_or(1)), "musubi-tuner's batch of 1");
  if (t.has("source_fps"))
    t.assume("data.fps", "16", "musubi-tuner resamples to the model's rate");
  else
    t.assume("data.fps", "0", "without source_fps musubi-tuner takes every frame");
}

}  // namespace

const Dialect& musubi_command() {
  static const Dialect dialect = dialect_of("musubi", "command", musubi_together,
                                            {{"checkpointing", plain(musubi_checkpointing)},
                                             {"optimiser_arguments", plain(optimiser_arguments)},
                                             {"network_arguments", plain(network_arguments)}});
  return dialect;
}
const Dialect& musubi_dataset() {
  static const Dialect dialect =
      dialect_of("musubi", "dataset", musubi_dataset_together, {{"mask_suffix", plain(mask_suffix)}});
  return dialect;
}

}  // namespace tessera::tools
