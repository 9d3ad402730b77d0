// HunyuanVideo-1.5's train.py: every option in effect or explained.
#include "tessera/tools/import/dialects.h"
#include "tools/import_cases.h"

namespace tessera::tools {
namespace {

TEST(ImportHunyuan, TakesTheScriptsOwnValues) {
  const Translation t = import_command("torchrun --nproc_per_node=8 train.py --pretrained_model_root weights", {});
  check({"its own values",
         {{"model.path", "weights/transformer/480p_t2v"},
          {"mesh.sp", "8"},
          {"train.global_batch", "1"},
          {"train.lr", "1e-5"},
          {"train.weight_decay", "0.01"},
          {"train.clip_norm", "1"},
          {"train.optimizer", "muon"},
          {"train.betas", "0.95,0.95"},
          {"train.muon_hidden_layers", "*"},
          {"train.schedule", "constant"},
          {"run.steps", "10000"},
          {"run.seed", "42"},
          {"checkpoint.every", "1000"},
          {"diffusion.timesteps", "logit_normal"},
          {"diffusion.shift", "3"},
          {"diffusion.image_share", "0.3"},
          {"diffusion.caption_dropout", "0"},
          {"plan.compute_dtype", "bf16"},
          {"plan.activations", "recompute"}}},
        t);
  EXPECT_TRUE(t.refused.empty());
  EXPECT_EQ(found(t, "lora.rank"), "") << "all parameters are trained";
  EXPECT_TRUE(
      std::ranges::any_of(t.warned, [](const auto& w) { return w.why.find("data.path") != std::string::npos; }));
}

TEST(ImportHunyuan, EveryOptionIsAKeyOrExplained) {
  const Translation t = import_command(
      "torchrun --nproc_per_node 8 train.py --pretrained_model_root weights --pretrained_transformer_version 720p_i2v "
      "--learning_rate 2e-5 --weight_decay 0.1 --max_steps 500 --warmup_steps 50 --gradient_accumulation_steps 4 "
      "--max_grad_norm 0.5 --train_timestep_shift 5 --flow_snr_type mode --batch_size 2 --num_workers 8 --output_dir out "
      "--save_interval 100 --log_interval 5 --dtype fp32 --seed 7 --i2v_prob 0.5 --use_muon false --enable_fsdp "
      "--enable_gradient_checkpointing false --sp_size 2 --dp_replicate 2 --validation_interval 50 --validation_prompts "
      "'a cat' 'a dog' --validation_timestep_shift 7 --validate_video_length 121 --use_lora --lora_r 16 --lora_alpha 32 "
      "--lora_dropout 0.1 --lora_target_modules img_attn_q img_mlp.fc1",
      {});
  check({"all of them",
         {{"model.path", "weights/transformer/720p_i2v"},
          {"mesh.sp", "2"},
          {"mesh.dp_replicate", "2"},
          {"train.global_batch", "32"},
          {"train.lr", "2e-5"},
          {"train.weight_decay", "0.1"},
          {"train.clip_norm", "0.5"},
          {"train.optimizer", "adamw"},
          {"train.betas", "0.9,0.999"},
          {"train.eps", "1e-8"},
          {"train.mode", "lora"},
          {"run.steps", "500"},
          {"run.seed", "7"},
          {"run.out", "out"},
          {"checkpoint.every", "100"},
          {"diffusion.timesteps", "mode"},
          {"diffusion.shift", "5"},
          {"diffusion.image_share", "0.5"},
          {"plan.compute_dtype", "fp32"},
          {"lora.rank", "16"},
          {"lora.alpha", "32"},
          {"lora.dropout", "0.1"},
          {"lora.targets", "img_attn_q,img_mlp.fc1"},
          {"--warmup_steps", "implied"},
          {"--num_workers", "implied"},
          {"--log_interval", "implied"},
          {"--enable_fsdp", "implied"},
          {"--validation_prompts", "implied"},
          {"--validate_video_length", "implied"}}},
        t);
  EXPECT_TRUE(t.refused.empty());
}

TEST(ImportHunyuan, RefusesWhatThereIsNot) {
  const std::string line = "train.py --pretrained_model_root weights --i2v_prob 0.3 ";
  for (const auto& [options, refused] : {std::pair("--flow_snr_type cosmap", "--flow_snr_type"),
                                         {"--resume_from_checkpoint out/checkpoint-1000", "--resume_from_checkpoint"},
                                         {"--enable_fsdp false", "--enable_fsdp"}}) {
    const Translation t = import_command(line + options, {});
    ASSERT_EQ(t.refused.size(), 1U) << options;
    EXPECT_TRUE(t.refused[0].option.starts_with(refused)) << t.refused[0].option;
  }
  EXPECT_EQ(found(import_command(line + "--flow_snr_type mix", {}), "diffusion.timesteps"), "mix");
  const Translation none = import_command(line + "--lora_r 16 --lora_target_modules img_attn_q", {});
  EXPECT_EQ(found(none, "lora.rank"), "") << "no --use_lora";
  const Translation all = import_command(line + "--use_lora true", {});
  EXPECT_EQ(found(all, "lora.targets"), "all");
  EXPECT_EQ(found(all, "lora.rank") + "," + found(all, "lora.alpha"), "8,16");
}

}  // namespace
}  // namespace tessera::tools
