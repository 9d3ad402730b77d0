#include "tessera/recipe/recipe_table.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <map>

#include "tessera/base/check.h"
#include "tessera/recipe/setting.h"

namespace tessera::recipe {

namespace {

/// What accelerate, DeepSpeed, DiffSynth, musubi-tuner and diffusion-pipe call a key.
constexpr std::pair<std::string_view, std::string_view> kElsewhere[] = {
    {"learning_rate", "train.lr"},
    {"batch_size", "train.global_batch"},
    {"train_batch_size", "train.global_batch"},
    {"gradient_accumulation_steps", "train.micro_batch"},
    {"train_micro_batch_size_per_gpu", "train.micro_batch"},
    {"micro_batch_size_per_gpu", "train.micro_batch"},
    {"max_grad_norm", "train.clip_norm"},
    {"gradient_clipping", "train.clip_norm"},
    {"lr_scheduler", "train.schedule"},
    {"lr_warmup_steps", "train.warmup_steps"},
    {"max_steps", "run.steps"},
    {"max_train_steps", "run.steps"},
    {"output_dir", "run.out"},
    {"output_path", "run.out"},
    {"resume_from_checkpoint", "run.resume"},
    {"save_steps", "checkpoint.every"},
    {"checkpointing_steps", "checkpoint.every"},
    {"num_frames", "data.frames"},
    {"dataset_path", "data.path"},
    {"network_dim", "lora.rank"},
    {"network_alpha", "lora.alpha"},
    {"flow_shift", "diffusion.shift"},
    {"mixed_precision", "plan.compute_dtype"},
    {"gradient_checkpointing", "plan.recompute"},
    {"activation_checkpointing", "plan.recompute"},
    {"sharding_strategy", "plan.strategy"},
    {"zero_stage", "plan.strategy"},
    {"prompt", "sample.prompts"},
    {"epochs", "run.steps"},
    {"num_epochs", "run.steps"},
    {"num_train_epochs", "run.steps"},
    {"max_train_epochs", "run.steps"},
    {"total_steps", "run.steps"},
    {"train_steps", "run.steps"},
    {"output", "run.out"},
    {"output_name", "run.out"},
    {"logging_dir", "run.out"},
    {"save_every_n_steps", "checkpoint.every"},
    {"save_every_n_epochs", "checkpoint.every"},
    {"save_interval", "checkpoint.every"},
    {"checkpoints_total_limit", "checkpoint.keep"},
    {"save_total_limit", "checkpoint.keep"},
    {"sample_every_n_steps", "sample.every"},
    {"validation_steps", "sample.every"},
    {"validation_prompt", "sample.prompts"},
    {"sample_prompts", "sample.prompts"},
    {"optimizer_type", "train.optimizer"},
    {"optim", "train.optimizer"},
    {"optimizer", "train.optimizer"},
    {"adam_beta1", "train.betas"},
    {"adam_beta2", "train.betas"},
    {"adam_epsilon", "train.eps"},
    {"adam_weight_decay", "train.weight_decay"},
    {"warmup", "train.warmup_steps"},
    {"warmup_ratio", "train.warmup_steps"},
    {"per_device_train_batch_size", "train.micro_batch"},
    {"resolution", "data.size"},
    {"height", "data.size"},
    {"width", "data.size"},
    {"instance_data_dir", "data.path"},
    {"train_data_dir", "data.path"},
    {"dataset_config", "data.path"},
    {"instance_prompt", "data.caption"},
    {"cache_dir", "data.cache"},
    {"pretrained_model_name_or_path", "model.path"},
    {"model_path", "model.path"},
    {"checkpoint_path", "model.path"},
    {"ckpt", "model.path"},
    {"dit", "model.path"},
    {"network_module", "train.mode"},
    {"lora_rank", "lora.rank"},
    {"lora_alpha", "lora.alpha"},
    {"lora_dropout", "lora.dropout"},
    {"network_weights", "lora.init"},
    {"timestep_sampling", "diffusion.timesteps"},
    {"weighting_scheme", "diffusion.weighting"},
    {"discrete_flow_shift", "diffusion.shift"},
    {"cfg_scale", "sample.guidance"},
    {"guidance_scale", "sample.guidance"},
    {"num_inference_steps", "sample.steps"},
    {"dtype", "plan.compute_dtype"},
    {"bf16", "plan.compute_dtype"},
    {"fp16", "plan.compute_dtype"},
    {"blocks_to_swap", "plan.budget"},
    {"use_8bit_adam", "plan.moments"},
    {"caption_dropout_rate", "diffusion.caption_dropout"},
    {"caption_dropout", "diffusion.caption_dropout"},
    {"uncond_fraction", "diffusion.caption_dropout"},
    {"enable_gradient_checkpointing", "plan.recompute"},
    {"use_gradient_checkpointing", "plan.recompute"},
    {"target_modules", "lora.targets"},
    {"lora_target_modules", "lora.targets"},
    {"lora_targets", "lora.targets"},
    {"lora_checkpoint", "lora.init"},
    {"init_lora", "lora.init"},
    {"init_from_existing", "lora.init"},
    {"ema_decay", "train.ema"},
    {"ema", "train.ema"},
    {"clip_grad", "train.clip_norm"},
    {"grad_clip", "train.clip_norm"},
    {"gradient_clip_val", "train.clip_norm"},
    {"cfg", "sample.guidance"},
    {"unet_lr", "train.lr"},
    {"transformer_lr", "train.lr"},
    {"lr_warmup_ratio", "train.warmup_steps"},
    {"num_warmup_steps", "train.warmup_steps"},
    {"accumulate_grad_batches", "train.micro_batch"},
    {"gradient_accumulation", "train.micro_batch"},
    {"grad_accum", "train.micro_batch"},
    {"precision", "plan.compute_dtype"},
    {"checkpoint_every", "checkpoint.every"},
    {"save_every", "checkpoint.every"},
    {"eval_every", "sample.every"},
    {"image_size", "data.size"},
    {"target_frames", "data.frames"},
    {"frame_buckets", "data.buckets"},
    {"frame_extraction", "data.clip_mode"},
    {"num_repeats", "data.repeats"},
    {"dataset", "data.path"},
    {"video_dir", "data.path"},
    {"video_directory", "data.path"},
    {"dataset_base_path", "data.path"},
    {"cache_directory", "data.cache"},
    {"save_dir", "run.out"},
    {"checkpoint_dir", "run.out"},
    {"output_folder", "run.out"},
    {"run_name", "run.out"},
    {"name", "run.out"},
    {"pretrained", "model.path"},
    {"base_model", "model.path"},
    {"transformer_path", "model.path"},
    {"ckpt_path", "model.path"},
    {"llm_path", "data.text_encoder_path"},
    {"text_encoder1", "data.text_encoder_path"},
    {"clip", "data.image_encoder_path"},
    {"fp8_base", "lora.base_dtype"},
    {"base_weight_dtype", "lora.base_dtype"},
    {"cpu_offload", "plan.budget"},
    {"offload", "plan.budget"},
    {"fsdp", "plan.strategy"},
    {"zero", "plan.strategy"}};

}  // namespace

const OptionTable& recipe_table() {
  static const OptionTable table = [] {
    const auto options = [](const std::vector<Setting>& rows) {
      std::vector<Option> all;
      for (const Setting& s : rows) all.push_back({s.key, s.kind, s.fallback, s.help, s.more.choices});
      return all;
    };
    return OptionTable(options(settings()), options(set_settings()));
  }();
  return table;
}

std::vector<std::string> keys_named(std::string_view name) {
  std::string word(name.substr(name.rfind('.') + 1));
  std::replace(word.begin(), word.end(), '-', '_');
  std::vector<std::string> keys;
  for (const Option& option : recipe_table().options())
    if (option.name.substr(option.name.rfind('.') + 1) == word) keys.push_back(option.name);
  for (const auto& [other, key] : kElsewhere)
    if (other == word) keys.emplace_back(key);
  return keys;
}

std::string key_meant(std::string_view name) {
  std::vector<std::string> keys = keys_named(name), all;
  if (const std::string row = list_row(name), list = "data.set.N."; row.starts_with(list)) {
    const std::string whole = "data." + row.substr(list.size());
    if (recipe_table().find(whole)) return whole + " is the same for all sets of a run: write it in [data].";
    std::vector<std::string> rows;
    for (const Option& option : recipe_table().of_lists()) rows.push_back(option.name);
    return "did you mean " + nearest(row, rows).front() + "?";
  }
  for (const Option& option : recipe_table().options()) all.push_back(option.name);
  if (keys.empty()) keys = nearest(name, all);
  std::string text;
  for (const std::string& key : keys) text += (text.empty() ? "did you mean " : " or ") + key;
  return text + "?";
}

namespace {

using Json = nlohmann::ordered_json;

/// A text of the table as TOML would have it: 4, 0.5, true, or the text itself.
Json typed(const std::string& text) {
  if (text == "true" || text == "false") return text == "true";
  const char* const end = text.data() + text.size();
  int64_t whole = 0;
  if (const auto [stop, error] = std::from_chars(text.data(), end, whole); error == std::errc() && stop == end)
    return whole;
  double number = 0;
  if (const auto [stop, error] = std::from_chars(text.data(), end, number); error == std::errc() && stop == end)
    return number;
  return text;
}

/// Choices may be written as the numbers and flags that they look like.
Json choices_of(const std::string& choices) {
  Json all = Json::array();
  for (size_t at = 0; at <= choices.size();) {
    const size_t end = std::min(choices.find('|', at), choices.size());
    const std::string choice = choices.substr(at, end - at);
    all.push_back(choice);
    if (const Json other = typed(choice); !other.is_string()) all.push_back(other);
    at = end + 1;
  }
  return all;
}

Json number_of(const Setting& setting, const char* type) {
  Json schema = {{"type", type}};
  const Range& range = setting.more.range;
  if (std::isfinite(range.least)) schema[range.open ? "exclusiveMinimum" : "minimum"] = range.least;
  if (std::isfinite(range.most)) schema[range.open || range.below ? "exclusiveMaximum" : "maximum"] = range.most;
  if (setting.fallback.empty() || !typed(setting.fallback).is_string()) return schema;
  return {{"anyOf", {schema, {{"const", setting.fallback}}}}};  // "auto" in the place of a number
}

Json kind_of(const Setting& setting) {
  const Json scalar = {{"type", {"string", "number", "boolean"}}};
  switch (setting.kind) {
    case Kind::integer:
      return number_of(setting, "integer");
    case Kind::number:
      return number_of(setting, "number");
    case Kind::bytes:
      return {{"type", {"string", "integer"}}};
    case Kind::choice:
      return {{"enum", choices_of(setting.more.choices)}};
    case Kind::list:
    case Kind::paths: {
      Json item = setting.kind == Kind::paths ? Json{{"type", "string"}} : scalar;
      const Json one = item;
      if (setting.key == "plan.units" || setting.key == "train.group")
        item = {{"anyOf", {item, {{"type", "object"}, {"required", {"match"}}}}}};
      return {{"anyOf", {Json{{"type", "array"}, {"items", item}}, one}}};
    }
    default:
      return scalar;
  }
}

Json key_schema(const Setting& setting) {
  Json schema = kind_of(setting);
  schema["description"] = setting.help;
  if (!setting.fallback.empty() && setting.kind != Kind::list) schema["default"] = typed(setting.fallback);
  return schema;
}

Json object() { return {{"type", "object"}, {"additionalProperties", false}, {"properties", Json::object()}}; }

/// Puts "model.config.dim" into the object "config" of the object "model".
void put(Json& root, const std::string& key, const Json& schema) {
  Json* at = &root;
  size_t begin = 0;
  for (size_t dot = key.find('.'); dot != key.npos; dot = key.find('.', begin)) {
    Json& inner = (*at)["properties"][key.substr(begin, dot - begin)];
    if (inner.is_null()) inner = object();
    at = &inner, begin = dot + 1;
  }
  (*at)["properties"][key.substr(begin)] = schema;
}

}  // namespace

Json recipe_schema() {
  Json root = object(), stage = object();
  std::map<std::string, int> tables;  // that have a key of this name
  for (const Setting& setting : settings()) ++tables[setting.key.substr(setting.key.rfind('.') + 1)];
  for (const char* word : {"from", "step"})
    stage["properties"][word] = {
        {"type", "integer"}, {"minimum", 2}, {"description", "the first step with these values"}};
  for (const Setting& setting : settings()) {
    const Json schema = key_schema(setting);
    put(root, setting.key, schema);
    if (!setting.more.in_stages) continue;
    put(stage, setting.key, schema);
    const std::string alone = setting.key.substr(setting.key.rfind('.') + 1);
    if (tables[alone] == 1) put(stage, alone, schema);  // its table may be left out
  }
  Json set = object();
  for (const Setting& setting : set_settings())
    set["properties"][setting.key.substr(setting.key.rfind('.') + 1)] = key_schema(setting);
  for (Json* table : {&root, &stage})
    (*table)["properties"]["data"]["properties"]["set"] = {
        {"type", "array"}, {"items", set}, {"description", "several data sets, each with keys of its own"}};
  root["properties"]["stage"] = {
      {"type", "array"}, {"items", stage}, {"description", "keys that change from a step on"}};
  Json schema = {{"$schema", "http://json-schema.org/draft-07/schema#"}, {"title", "a recipe of Tessera"}};
  schema.update(root);
  return schema;
}

}  // namespace tessera::recipe
