// musubi-tuner's wan_train_network.py and wan_train.py.
#include <filesystem>

#include "tessera/base/check.h"
#include "tessera/base/foreign_file.h"
#include "tessera/recipe/recipe_table.h"
#include "tessera/tools/import/dialects.h"
#include "tessera/tools/import/folders/wan_folder.h"
#include "tessera/tools/import/import.h"
#include "tessera/tools/import/parts.h"
#include "tessera/tools/options/config_file.h"

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

void musubi_timesteps(Translator& t) {
  const std::string option = "--timestep_sampling", shift = "--discrete_flow_shift", scale = "--sigmoid_scale";
  const std::string sampling = t.value(option, "sigma");
  const double width = t.number(scale, 1);
  std::vector<std::string> options;
  for (const std::string& name : {option, scale})
    if (t.has(name)) options.push_back(name);
  if (sampling == "sigmoid" || sampling == "shift")
    t.set("diffusion.timesteps", width == 1 ? "logit_normal" : "logit_normal(0, " + number_text(width) + ")", options);
  else if (sampling == "uniform")
    t.set("diffusion.timesteps", "uniform", options);
  else if (t.has(option))
    t.refuse(option, "uniform, sigmoid and shift are supported");
  if (t.has(scale) && sampling != "sigmoid" && sampling != "shift")
    t.imply(scale, "it belongs to --timestep_sampling sigmoid and shift");
  // The table that `sigma` draws from is shifted for sampling alone.
  if (t.has(shift) && sampling == "shift") return t.set("diffusion.shift", t.value(shift), {shift});
  if (t.has(shift))
    t.imply(shift, "it belongs to --timestep_sampling shift; " + sampling + " is not shifted in training");
  t.assume("diffusion.shift", "1", "timesteps are not shifted");
}

/// 0..1000, as shares.
void musubi_window(Translator& t) {
  for (const auto& [option, key] : {std::pair("--min_timestep", kLeastTimestep), {"--max_timestep", kMostTimestep}})
    if (t.has(option)) t.set(key, number_text(t.number(option, 0) / 1000), {option});
  constexpr const char* kBoundary = "--timestep_boundary";  // a timestep, or already a share
  if (!t.has(kBoundary)) return;
  const double boundary = t.number(kBoundary, 0);
  t.set("experts.boundary", number_text(boundary > 1 ? boundary / 1000 : boundary), {kBoundary});
}

void musubi_adapters(Translator& t) {
  const bool lora = t.has("--network_module");
  if (lora) {
    const std::string module = t.value("--network_module");
    if (module.find("lora") == std::string::npos || module.find("loha") != std::string::npos)
      t.refuse("--network_module", "LoRA is supported: networks.lora_wan");
    else
      t.set("train.mode", "lora", {"--network_module"});
  }
  const auto copy = [&](const char* option, const char* key) {
    if (!t.has(option)) return;
    if (lora)
      t.set(key, t.value(option), {option});
    else
      t.imply(option, "nothing asks for a LoRA: --network_module networks.lora_wan does");
  };
  copy("--network_dim", "lora.rank");
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
  musubi_prompts(t);
  if (t.has("--lr_scheduler")) set_schedule(t, "--lr_scheduler");
  if (t.has("--optimizer_type")) set_optimiser(t, "--optimizer_type");
  t.assume("train.schedule", t.has("--lr_warmup_steps") ? "constant_with_warmup" : "constant",
           "musubi-tuner's schedule");
  t.assume("train.lr", "2e-6", "musubi-tuner's rate");
  t.assume("train.clip_norm", "1.0", "musubi-tuner's clipping");
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

std::vector<Rule> musubi_rules() {
  const char* const kAttention = "not needed: plan.attention chooses the kernel";
  const char* const kLog = "RUN/metrics.jsonl, TensorBoard's file and RUN/report.html are always written";
  const char* const kHub = "metrics are not uploaded";
  std::vector<Rule> table = {
      joined("--task", "`data.fps`; `model.preset`, where the weights have no config.json"),
      joined("--dit", "`model.path`"),
      joined("--dit_high_noise", "`model.path`: the folder of both experts"),
      joined("--timestep_boundary", "`experts.boundary`, as a share of 1"),
      sets("--vae", "data.vae"),
      joined("--t5", "`data.text_encoder`, `data.text_encoder_path`"),
      sets("--clip", "data.image_encoder_path"),
      joined("--dataset_config", "the data set's options, below"),
      sets("--learning_rate", "train.lr"),
      joined("--optimizer_type", "`train.optimizer`, `plan.moments`: AdamW, Lion, Adafactor, CAME and 8-bit forms"),
      by("--optimizer_args",
         "`train.weight_decay`, `train.betas`, `train.eps`; of Prodigy `train.d_coef`, `train.d0`, ...",
         optimiser_arguments, Takes::many),
      joined("--lr_scheduler", "`train.schedule`"),
      sets("--lr_warmup_steps", "train.warmup_steps"),
      sets("--lr_scheduler_num_cycles", "train.num_cycles"),
      sets("--lr_scheduler_power", "train.power"),
      sets("--max_grad_norm", "train.clip_norm"),
      joined("--gradient_accumulation_steps", "its share of `train.global_batch`"),
      joined("--max_train_steps", "`run.steps`"),
      joined("--max_train_epochs", "`run.steps`, counted in the data set"),
      sets("--save_every_n_steps", "checkpoint.every"),
      joined("--save_every_n_epochs", "`checkpoint.every`, counted in the data set"),
      sets("--seed", "run.seed"),
      joined("--output_dir", "`run.out`"),
      joined("--output_name", "`run.out`"),
      sets("--resume", "run.resume"),
      joined("--network_module", "`train.mode = lora`"),
      joined("--network_dim", "`lora.rank`"),
      joined("--network_alpha", "`lora.alpha`; 1 where it is not given"),
      joined("--network_dropout", "`lora.dropout`"),
      joined("--network_weights", "`lora.init`"),
      refused("--network_args", "use lora.targets", Takes::many),
      refused("--base_weights", "merge it first: tessera convert --merge", Takes::many),
      refused("--base_weights_multiplier", "merge it first: tessera convert --merge", Takes::many),
      joined("--timestep_sampling", "`diffusion.timesteps`: sigmoid and shift logit_normal, uniform; else refused"),
      joined("--discrete_flow_shift", "`diffusion.shift`, of shift"),
      joined("--sigmoid_scale", "`diffusion.timesteps`: logit_normal(0, scale)"),
      joined("--min_timestep", "`diffusion.min_t`, as a share of 1"),
      joined("--max_timestep", "`diffusion.max_t`, as a share of 1"),
      only("--weighting_scheme", {"none"}, "losses are not weighted", "see diffusion.weighting"),
      refused("--preserve_distribution_shape", "timesteps outside the window are mapped into it", Takes::perhaps),
      refused("--num_timestep_buckets", "timestep buckets are not supported"),
      by("--mixed_precision", "`plan.compute_dtype`", set_compute_type),
      by(
          "--gradient_checkpointing", "`plan.activations = recompute`",
          [](Translator& t, const Given& g) {
            if (!t.flag(g.name))
              t.imply(g.name, "it is off");
            else if (t.flag("--gradient_checkpointing_cpu_offload"))
              t.imply(g.name, "--gradient_checkpointing_cpu_offload says where inputs wait too");
            else
              t.set("plan.activations", "recompute", {g.name});
          },
          Takes::perhaps),
      by(
          "--gradient_checkpointing_cpu_offload", "`plan.activations = recompute_offload`",
          [](Translator& t, const Given& g) {
            t.set("plan.activations", "recompute_offload", {g.name}, "blocks' inputs are offloaded to the host");
          },
          Takes::nothing),
      by("--blocks_to_swap", "`plan.parameters = host`, of all blocks",
         [](Translator& t, const Given& g) {
           if (t.integer(g.name, 0) == 0) return t.imply(g.name, "no block is swapped");
           t.set("plan.parameters", "host", {g.name}, "all blocks; on auto the plan chooses how many");
         }),
      implied("--block_swap_h2d_only", "always on: parameters are copied to the device, never back", Takes::perhaps),
      implied("--block_swap_ring_size", "plan.prefetch says how many are ahead"),
      implied("--use_pinned_memory_for_block_swap", "not needed: buffers follow from the plan", Takes::perhaps),
      implied("--offload_inactive_dit", "plan.idle says where the inactive expert is kept", Takes::perhaps),
      by(
          "--fp8_base", "`lora.base_dtype = fp8`",
          [](Translator& t, const Given& g) { t.set(kFrozenDtype, "fp8", {g.name}); }, Takes::perhaps),
      implied("--fp8_scaled", "always on: each block of fp8 has a scale", Takes::perhaps),
      implied("--fp8_t5", "not needed: the text encoder runs before training and is freed", Takes::perhaps),
      refused("--force_v2_1_time_embedding", "timesteps are embedded as in the released model", Takes::perhaps),
      joined("--sample_prompts", "`sample.prompts`, the prompts of its lines"),
      sets("--sample_every_n_steps", "sample.every"),
      refused("--sample_every_n_epochs", "give --sample_every_n_steps"),
      implied("--sample_at_first", "not needed: tessera sample takes any weights", Takes::perhaps),
      implied("--save_state", "always on: a checkpoint holds the whole training state", Takes::perhaps),
      implied("--save_state_on_train_end", "always on: the last checkpoint holds the whole training state",
              Takes::perhaps),
      sets("--save_last_n_steps_state", "checkpoint.keep"),
      implied("--save_precision", "set by tessera convert --dtype"),
      implied("--logging_dir", kLog),
      only("--log_with", {"tensorboard"}, kLog, "metrics are not uploaded; TensorBoard's file is written"),
      implied("--log_prefix", kLog),
      implied("--log_config", "RUN/recipe.toml has every value", Takes::perhaps),
      implied("--persistent_data_loader_workers", "not needed: clips are decoded ahead and cached", Takes::perhaps),
      implied("--max_data_loader_n_workers", "not needed: clips are decoded ahead and cached"),
      implied("--vae_cache_cpu", "not needed: the VAE runs before training and is freed", Takes::perhaps),
      implied("--vae_dtype", "the VAE works in fp32"),
      implied("--img_in_txt_in_offloading", "the plan chooses where weights are kept", Takes::perhaps),
      implied("--config_file", "its keys are these flags; the command line wins"),
      refused("--compile", "torch.compile is not used: a step is a compiled schedule", Takes::perhaps),
      refused("--wandb_run_name", kHub),
      refused("--wandb_api_key", kHub),
      refused("--huggingface_repo_id", kHub),
  };
  for (const char* name : {"--sdpa", "--flash_attn", "--flash3", "--sage_attn", "--xformers", "--split_attn"})
    table.push_back(implied(name, kAttention, Takes::nothing));
  for (const char* name : {"--training_comment", "--metadata_title", "--metadata_author", "--metadata_description",
                           "--metadata_license", "--metadata_tags"})
    table.push_back(refused(name, "metadata is not written to weights"));
  return table;
}

}  // namespace

const Dialect& musubi_command() {
  static const Dialect dialect = {"musubi-tuner's commands", "a musubi-tuner command", musubi_rules(), musubi_together};
  return dialect;
}

}  // namespace tessera::tools
