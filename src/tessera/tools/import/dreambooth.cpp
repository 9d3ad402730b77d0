// diffusers' train_dreambooth_lora_sana.py: a LoRA of a few pictures, all with one caption.
#include <filesystem>

#include "tessera/base/check.h"
#include "tessera/tools/import/dialects.h"
#include "tessera/tools/import/parts.h"
#include "tessera/tools/import/sana_parts.h"

namespace tessera::tools {

namespace {

namespace fs = std::filesystem;

void pipeline(Translator& t, const Given& g) {
  const fs::path folder = g.value;
  if (!fs::exists(folder) && !g.value.starts_with(".") && !folder.is_absolute() &&
      g.value.find('/') == g.value.rfind('/'))
    t.result().refused.push_back(
        {g.shown(), "a name on a hub: download it, and give its folder; the keys below are of that folder"});
  t.set("model.path", g.value, {g.name});
  t.set("data.vae", (folder / "vae").string(), {g.name});
  t.set("data.text_encoder", "gemma-2-2b", {g.name});
  t.set("data.text_encoder_path", (folder / "text_encoder").string(), {g.name});
  t.set("data.tokenizer", (folder / "tokenizer").string(), {g.name});
}

void pictures(Translator& t) {
  const std::string side = t.value("--resolution", "512");
  if (t.has("--resolution")) t.set("data.size", side + "," + side, {"--resolution"});
  t.assume("data.size", "512,512", "the script's resolution");
  t.assume("data.frames", "1", "pictures");
  if (t.has("--center_crop"))
    t.imply("--center_crop", "pictures are cropped in their centre");
  else
    t.result().implied.push_back(
        {"no --center_crop", "the script crops at random, here pictures are cropped in their centre"});
}

/// "": decay is always decoupled.
constexpr std::pair<const char*, const char*> kOfProdigy[] = {
    {"--prodigy_beta3", "train.beta3"},
    {"--prodigy_decouple", ""},
    {"--prodigy_use_bias_correction", "train.bias_correction"},
    {"--prodigy_safeguard_warmup", "train.safeguard_warmup"}};

void dreambooth_optimiser(Translator& t) {
  const bool prodigy = lower_case(t.value("--optimizer", "adamw")) == "prodigy";
  if (t.has("--optimizer")) set_sana_optimiser(t, "--optimizer");
  if (t.has("--use_8bit_adam")) {
    if (prodigy)
      t.imply("--use_8bit_adam", "the optimiser is Prodigy");
    else
      t.set("plan.moments", "int8", {"--use_8bit_adam"}, "moments in blocks of 256 with a scale");
  }
  std::vector<std::string> options;
  for (const char* option : {"--adam_beta1", "--adam_beta2"})
    if (t.has(option)) options.push_back(option);
  if (!options.empty())
    t.set("train.betas", t.value("--adam_beta1", "0.9") + "," + t.value("--adam_beta2", "0.999"), options);
  for (const auto& [option, key] : kOfProdigy) {
    if (!prodigy) {
      if (t.has(option)) t.imply(option, "the optimiser is AdamW");
    } else if (!t.has(option)) {
      continue;
    } else if (std::string(option) == "--prodigy_decouple") {
      if (is_true(t.value(option)))
        t.imply(option, "decay is decoupled");
      else
        t.refuse(option, "decay is decoupled");
    } else {
      const bool number = std::string(option) == "--prodigy_beta3";
      t.set(key, number ? t.value(option) : is_true(t.value(option)) ? "true" : "false", {option});
    }
  }
  if (prodigy) {
    t.assume("train.bias_correction", "true", "the script's");
    t.assume("train.safeguard_warmup", "true", "the script's");
  }
  t.assume("train.betas", "0.9,0.999", "the script's");
  t.assume("train.weight_decay", "1e-4", "the script's");
  t.assume("train.eps", "1e-8", "the script's");
  t.assume("train.clip_norm", "1", "the script's");
  t.assume("train.lr", "1e-4", "the script's");
  if (t.has("--scale_lr")) {
    t.set("train.lr_scale", "linear", {"--scale_lr"});
    t.assume("train.lr_base_batch", "1", "--scale_lr multiplies by the batch");
  }
}

void dreambooth_schedule(Translator& t) {
  const std::string name = t.value("--lr_scheduler", "constant"), warm_up = "--lr_warmup_steps";
  if (t.has("--lr_scheduler")) set_schedule(t, "--lr_scheduler");
  t.assume("train.schedule", "constant", "the script's");
  if (t.has(warm_up)) {
    if (name == "constant")
      t.imply(warm_up, "a constant rate has no warm-up");
    else
      t.set("train.warmup_steps", t.value(warm_up), {warm_up});
  } else if (name != "constant") {
    t.assume("train.warmup_steps", "500", "the script's");
  }
  for (const auto& [option, key, of] : {std::tuple("--lr_num_cycles", "train.num_cycles", "cosine_with_restarts"),
                                        {"--lr_power", "train.power", "polynomial"}}) {
    if (!t.has(option)) continue;
    if (name == of)
      t.set(key, t.value(option), {option});
    else
      t.imply(option, std::string("it belongs to ") + of);
  }
}

void dreambooth_amount(Translator& t) {
  std::vector<std::string> options;
  int64_t steps = t.context().accumulation;
  for (const char* option : {"--train_batch_size", "--gradient_accumulation_steps"})
    if (t.has(option)) options.push_back(option);
  if (t.has("--gradient_accumulation_steps")) steps = t.integer("--gradient_accumulation_steps", 1);
  const int64_t batch = t.integer("--train_batch_size", 4);
  if (options.empty())
    t.assume("train.global_batch", std::to_string(batch * steps * t.dp_size().value_or(1)),
             "4 pictures a rank, the script's");
  else
    t.set_batch(batch * steps, options, std::to_string(batch) + " x " + std::to_string(steps));
  if (t.has("--max_train_steps")) {
    t.set("run.steps", t.value("--max_train_steps"), {"--max_train_steps"});
    if (t.has("--num_train_epochs")) t.imply("--num_train_epochs", "--max_train_steps is given and counts");
  } else if (t.has("--num_train_epochs")) {
    set_epochs(t, "--num_train_epochs", t.integer("--num_train_epochs", 1));
  }
  t.assume("checkpoint.every", "500", "the script's");
}

/// 'mode' and the losses' weights; without them and with "none" timesteps are uniform over the scheduler's.
void objective(Translator& t) {
  const std::string option = "--weighting_scheme", scheme = t.value(option, "none");
  if (scheme == "none" || scheme == "logit_normal") {
    if (scheme == "none") t.assume("diffusion.timesteps", "uniform", "the script's: none");
    if (t.has(option)) {
      if (scheme == "none")
        t.imply(option, "uniform draws, and losses that are not weighted");
      else
        t.set("diffusion.timesteps", "diffusers", {option}, "logit-normal draws from the scheduler's timesteps");
    }
  } else {
    t.refuse(option, "none and logit_normal are there");
  }
  for (const auto& [name, usual] : {std::pair("--logit_mean", 0.0), {"--logit_std", 1.0}}) {
    if (!t.has(name)) continue;
    if (t.number(name, usual) == usual || scheme != "logit_normal")
      t.imply(name, scheme == "logit_normal" ? "the draws have mean 0 and deviation 1" : "it belongs to logit_normal");
    else
      t.refuse(name, "the draws have mean 0 and deviation 1");
  }
  if (t.has("--mode_scale")) t.imply("--mode_scale", "it belongs to --weighting_scheme mode");
  t.assume("diffusion.shift", "3", "the released models' scheduler");
}

void validation(Translator& t) {
  if (t.has("--validation_epochs")) {
    if (t.has("--validation_prompt"))
      t.refuse("--validation_epochs", "samples are made every so many steps: set sample.every");
    else
      t.imply("--validation_epochs", "there is no --validation_prompt");
  }
}

void dreambooth_together(Translator& t) {
  t.assume("train.mode", "lora", "the script trains a LoRA");
  t.assume("lora.rank", "4", "the script's");
  t.assume("lora.alpha", "4", "the script's");
  t.assume("lora.targets", "to_k,to_q,to_v", "the script's");
  pictures(t);
  dreambooth_optimiser(t);
  dreambooth_schedule(t);
  dreambooth_amount(t);
  objective(t);
  validation(t);
}

std::vector<Rule> rules() {
  const char* const kHub = "data sets and models are files here: download them";
  const char* const kLog = "RUN/metrics.jsonl, TensorBoard's file and RUN/report.html are always written";
  std::vector<Rule> table = {
      by("--pretrained_model_name_or_path", "`model.path`, `data.vae`, `data.text_encoder_path`, `data.tokenizer`",
         pipeline),
      sets("--instance_data_dir", "data.path"),
      sets("--instance_prompt", "data.caption"),
      sets("--repeats", "data.repeats"),
      sets("--complex_human_instruction", "data.instruction"),
      sets("--max_sequence_length", "model.config.caption_length"),
      joined("--resolution", "`data.size`"),
      joined("--center_crop", "always on: pictures are cropped in their centre", Takes::nothing),
      refused("--random_flip", "pictures are not flipped", Takes::nothing),
      sets("--rank", "lora.rank"),
      sets("--lora_alpha", "lora.alpha"),
      sets("--lora_dropout", "lora.dropout"),
      by("--lora_layers", "`lora.targets`",
         [](Translator& t, const Given& g) { t.set("lora.targets", g.value, {g.name}); }),
      joined("--train_batch_size", "its share of `train.global_batch`"),
      joined("--gradient_accumulation_steps", "its share of `train.global_batch`"),
      joined("--max_train_steps", "`run.steps`"),
      joined("--num_train_epochs", "`run.steps`, counted in the data set"),
      switches("--gradient_checkpointing", "plan.activations", "recompute"),
      sets("--learning_rate", "train.lr"),
      joined("--scale_lr", "`train.lr_scale = linear`, `train.lr_base_batch = 1`", Takes::nothing),
      joined("--lr_scheduler", "`train.schedule`"),
      joined("--lr_warmup_steps", "`train.warmup_steps`, of schedules with one"),
      joined("--lr_num_cycles", "`train.num_cycles`"),
      joined("--lr_power", "`train.power`"),
      joined("--optimizer", "`train.optimizer`"),
      joined("--use_8bit_adam", "`plan.moments = int8`", Takes::nothing),
      joined("--adam_beta1", "`train.betas`"),
      joined("--adam_beta2", "`train.betas`"),
      sets("--adam_weight_decay", "train.weight_decay"),
      sets("--adam_epsilon", "train.eps"),
      sets("--max_grad_norm", "train.clip_norm"),
      joined("--weighting_scheme", "`diffusion.timesteps`: none uniform, logit_normal diffusers; else refused"),
      joined("--logit_mean", "0; else refused"),
      joined("--logit_std", "1; else refused"),
      joined("--mode_scale", "it belongs to --weighting_scheme mode"),
      by("--mixed_precision", "`plan.compute_dtype`", set_compute_type),
      sets("--checkpointing_steps", "checkpoint.every"),
      sets("--checkpoints_total_limit", "checkpoint.keep"),
      by("--resume_from_checkpoint", "latest `run.resume = auto`; else refused",
         [](Translator& t, const Given& g) {
           if (g.value == "latest")
             t.set("run.resume", "auto", {g.name});
           else
             t.refuse(g.name, "its LoRA can be trained further: lora.init");
         }),
      sets("--output_dir", "run.out"),
      sets("--seed", "run.seed"),
      by("--validation_prompt", "`sample.prompts`",
         [](Translator& t, const Given& g) { t.set("sample.prompts", g.value + kListSeparator, {g.name}); }),
      joined("--validation_epochs", "refused with a prompt: `sample.every` counts steps"),
      implied("--num_validation_images",
              "one sample a prompt: list a prompt in sample.prompts as often as it is wanted"),
      refused("--with_prior_preservation",
              "prior preservation is not supported: train longer on fewer steps, or on more pictures", Takes::nothing),
      refused("--dataset_name", kHub),
      only("--report_to", {"tensorboard"}, kLog, "metrics are not uploaded; TensorBoard's file is written"),
      refused("--push_to_hub", "weights are not uploaded", Takes::nothing),
      implied("--cache_latents", "always on: data.cache", Takes::nothing),
      implied("--offload", "not needed: the autoencoder and the text encoder run before training and are freed",
              Takes::nothing),
      implied("--enable_vae_tiling", "data.vae_tile", Takes::nothing),
      implied("--upcast_before_saving", "weights are saved in fp32", Takes::nothing),
      implied("--variant", "the files that are there are read"),
      refused("--revision", kHub),
      only("--enable_npu_flash_attention", {"false"}, "it is off", "NPUs are not supported", Takes::perhaps),
  };
  for (const auto& [name, key] : kOfProdigy)
    table.push_back(joined(name, *key ? "`" + std::string(key) + "`" : "decay is decoupled"));
  for (const char* name :
       {"--class_data_dir", "--class_prompt", "--prior_loss_weight", "--num_class_images", "--sample_batch_size"})
    table.push_back(implied(name, "it belongs to --with_prior_preservation"));
  for (const char* name :
       {"--dataset_config_name", "--image_column", "--caption_column", "--cache_dir", "--hub_token", "--hub_model_id"})
    table.push_back(implied(name, "it belongs to a hub"));
  for (const char* name :
       {"--logging_dir", "--dataloader_num_workers", "--local_rank", "--adam_weight_decay_text_encoder"})
    table.push_back(implied(name, "not needed"));
  table.push_back(implied("--allow_tf32", "not needed", Takes::nothing));
  return table;
}

}  // namespace

const Dialect& dreambooth_command() {
  static const Dialect dialect = {"diffusers' train_dreambooth_lora_sana.py", "a DreamBooth command of diffusers",
                                  rules(), dreambooth_together};
  return dialect;
}

}  // namespace tessera::tools
