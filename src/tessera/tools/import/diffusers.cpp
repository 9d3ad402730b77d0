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
  set_script_betas(t);
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
  const std::string name = t.value("--lr_scheduler", "constant");
  set_script_schedule(t);
  for (const auto& [option, key, of] : {std::tuple("--lr_num_cycles", "train.num_cycles", "cosine_with_restarts"),
                                        {"--lr_power", "train.power", "polynomial"}}) {
    if (!t.has(option)) continue;
    if (name == of)
      t.set(key, t.value(option), {option});
    else
      t.imply(option, std::string("it belongs to ") + of);
  }
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
  set_script_amount(t, 4, 1);
  set_script_timesteps(t);
  validation(t);
}

}  // namespace

const Dialect& dreambooth_command() {
  static const Dialect dialect =
      dialect_of("diffusers", "dreambooth_sana", dreambooth_together, {{"pipeline", plain(pipeline)}});
  return dialect;
}

}  // namespace tessera::tools
