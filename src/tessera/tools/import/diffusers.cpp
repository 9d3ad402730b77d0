// diffusers' train_dreambooth_lora_sana.py: a LoRA of a few pictures, all with one caption.
#include <filesystem>

#include "tessera/base/check.h"
#include "tessera/tools/import/dialects.h"
#include "tessera/tools/import/parts.h"

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
  if (t.has("--optimizer")) set_optimiser(t, "--optimizer");
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
  if (t.has("--scale_lr")) {
    t.set("train.lr_scale", "linear", {"--scale_lr"});
    t.assume("train.lr_base_batch", "1", "--scale_lr multiplies by the batch");
  }
}

void dreambooth_schedule(Translator& t) {
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
  pictures(t);
  dreambooth_optimiser(t);
  dreambooth_schedule(t);
  dreambooth_amount(t);
  objective(t);
  validation(t);
}

}  // namespace

const Dialect& dreambooth_command() {
  static const Dialect dialect =
      dialect_of("diffusers", "dreambooth_sana", dreambooth_together, {{"pipeline", plain(pipeline)}});
  return dialect;
}

}  // namespace tessera::tools
