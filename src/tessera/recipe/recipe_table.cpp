#include "tessera/recipe/recipe_table.h"

#include <algorithm>

#include "tessera/base/check.h"
#include "tessera/recipe/settings.h"

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
    std::vector<Option> options;
    for (const Setting& s : settings()) options.push_back({s.key, s.kind, s.fallback, s.help, s.more.choices});
    return OptionTable(std::move(options));
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
  for (const Option& option : recipe_table().options()) all.push_back(option.name);
  if (keys.empty()) keys = nearest(name, all);
  std::string text;
  for (const std::string& key : keys) text += (text.empty() ? "did you mean " : " or ") + key;
  return text + "?";
}

}  // namespace tessera::recipe
