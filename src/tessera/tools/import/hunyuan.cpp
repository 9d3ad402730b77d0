// HunyuanVideo-1.5's train.py: the data set is a class in the script.
#include <algorithm>
#include <filesystem>

#include "tessera/tools/import/dialects.h"
#include "tessera/tools/import/parts.h"

namespace tessera::tools {

namespace {

namespace fs = std::filesystem;

/// Those of `options` that were given.
std::vector<std::string> given_of(const Translator& t, std::initializer_list<const char*> options) {
  std::vector<std::string> given;
  for (const char* option : options)
    if (t.has(option)) given.emplace_back(option);
  return given;
}

void set_or_assume(Translator& t, const std::string& key, const std::string& value,
                   std::initializer_list<const char*> options) {
  const std::vector<std::string> given = given_of(t, options);
  if (given.empty())
    t.assume(key, value, "the script's");
  else
    t.set(key, value, given);
}

void weights(Translator& t) {
  const fs::path root = t.value("--pretrained_model_root", "ckpts");
  const std::string version = t.value("--pretrained_transformer_version", "480p_t2v");
  set_or_assume(t, "model.path", (root / "transformer" / version).string(),
                {"--pretrained_model_root", "--pretrained_transformer_version"});
  const char* why = "the script's, of that folder";
  for (const char* key :
       {"data.vae", "data.text_encoder_path", "data.tokenizer", "data.glyph_encoder_path", "data.image_encoder_path"})
    t.assume(key, root.string(), why);
  t.assume("data.text_encoder", "qwen2.5-vl-7b", "the script's");
}

void amount(Translator& t) {
  const std::vector<std::string> given = given_of(t, {"--batch_size", "--gradient_accumulation_steps"});
  const int64_t batch = t.integer("--batch_size", 1), steps = t.integer("--gradient_accumulation_steps", 1);
  if (given.empty())
    t.assume("train.global_batch", std::to_string(t.dp_size().value_or(1)), "a clip a data-parallel rank");
  else
    t.set_batch(batch * steps, given, std::to_string(batch) + " x " + std::to_string(steps));
}

void layout(Translator& t) {
  const std::string shared = t.value("--sp_size", "8");
  set_or_assume(t, "mesh.sp", shared, {"--sp_size"});
  if (t.has("--dp_replicate")) t.set("mesh.dp_replicate", t.value("--dp_replicate"), {"--dp_replicate"});
}

/// Muon has one rate for all, and every tensor of two dimensions or more; AdamW has the rest.
void hunyuan_optimiser(Translator& t) {
  const std::string option = "--use_muon";
  if (t.has(option) && is_false(t.value(option))) {
    t.set("train.optimizer", "adamw", {option});
    t.assume("train.betas", "0.9,0.999", "the script's");
    return t.assume("train.eps", "1e-8", "the script's");
  }
  set_or_assume(t, "train.optimizer", "muon", {"--use_muon"});
  t.assume("train.betas", "0.95,0.95", "the script's, of what AdamW updates");
  t.assume("train.muon_hidden_layers", "*", "the script's: every tensor of two dimensions or more");
}

void adapters(Translator& t) {
  const bool used = t.has("--use_lora") && !is_false(t.value("--use_lora"));
  if (t.has("--use_lora")) t.set("train.mode", used ? "lora" : "full", {"--use_lora"});
  const std::tuple<const char*, const char*, const char*> rows[] = {{"--lora_r", "lora.rank", "8"},
                                                                    {"--lora_alpha", "lora.alpha", "16"},
                                                                    {"--lora_dropout", "lora.dropout", ""},
                                                                    {"--pretrained_lora_path", "lora.init", ""}};
  for (const auto& [option, key, usual] : rows) {
    if (t.has(option) && used)
      t.set(key, t.value(option), {option});
    else if (t.has(option))
      t.imply(option, "it belongs to --use_lora");
    else if (used && *usual)
      t.assume(key, usual, "the script's");
  }
  const std::string targets = "--lora_target_modules";
  if (t.has(targets) && !used)
    t.imply(targets, "it belongs to --use_lora");
  else if (t.has(targets))
    set_targets(t, targets);
  else if (used)
    t.assume("lora.targets", "all", "the script's: all linears, here those of the blocks");
}

void hunyuan_together(Translator& t) {
  weights(t);
  layout(t);
  amount(t);
  hunyuan_optimiser(t);
  adapters(t);
  t.warn_of("the system messages, texts in the program (hyvideo/models/text_encoders/__init__.py)",
            "set data.instruction to that of videos, and data.instruction_image to that of pictures");
  t.warn_of("the data set, a class in the script", "set data.path to its clips, and data.size and data.frames");
}

}  // namespace

const Dialect& hunyuan_command() {
  static const Dialect dialect = dialect_of("hunyuan", "command", hunyuan_together);
  return dialect;
}

}  // namespace tessera::tools
