// Configurations and commands of Sana's two trainers, NVlabs' own and diffusers': every key in effect or explained.
#include "tessera/data/dataset.h"
#include "tessera/recipe/run_recipe.h"
#include "tessera/tools/import/command_line.h"
#include "tools/import_cases.h"

namespace tessera::tools {
namespace {

#if TESSERA_HAS_YAML
/// The published configuration of SANA-1.5 1.6B under FSDP, key for key; `more` ends a group or begins another.
std::string fsdp_yaml(const std::string& data = "toy", const std::string& optimizer = "AdamW",
                      const std::string& more = "") {
  return "data:\n  data_dir: [" + data + R"(]
  image_size: 1024
  caption_proportion:
    prompt: 1
  external_caption_suffixes: []
  external_clipscore_suffixes: []
  clip_thr_temperature: 0.1
  clip_thr: 25.0
  del_img_clip_thr: 22.0
  load_text_feat: false
  load_vae_feat: true
  transform: default_train
  type: SanaWebDatasetMS
  sort_dataset: false
model:
  model: SanaMS_1600M_P1_D20
  image_size: 1024
  mixed_precision: bf16
  fp32_attention: true
  load_from:
  aspect_ratio_type: ASPECT_RATIO_1024
  multi_scale: true
  attn_type: linear
  ffn_type: glumbconv
  mlp_acts: [silu, silu, null]
  mlp_ratio: 2.5
  use_pe: false
  qk_norm: true
  cross_norm: true
  class_dropout_prob: 0.1
vae:
  vae_type: AutoencoderDC
  vae_pretrained: dc-ae-f32c32-sana-1.1-diffusers
  scale_factor: 0.41407
  vae_latent_dim: 32
  vae_downsample_rate: 32
  sample_posterior: true
text_encoder:
  text_encoder_name: gemma-2-2b-it
  y_norm: true
  y_norm_scale_factor: 0.01
  model_max_length: 300
  chi_prompt:
    - 'Make the prompt richer:'
    - '- say "more", of colours'
    - 'User Prompt: '
scheduler:
  predict_flow_v: true
  noise_schedule: linear_flow
  pred_sigma: false
  flow_shift: 3.0
  weighting_scheme: logit_normal
  logit_mean: 0.0
  logit_std: 1.0
  vis_sampler: flow_dpm-solver
train:
  use_fsdp: true
  num_workers: 10
  seed: 1
  train_batch_size: 32
  num_epochs: 100
  gradient_accumulation_steps: 1
  grad_checkpointing: true
  gradient_clip: 0.1
  optimizer:
    betas: [0.9, 0.999]
    eps: 1.0e-10
    lr: 2.0e-5
    type: )" +
         optimizer + R"(
    weight_decay: 0.0
  lr_schedule: constant
  lr_schedule_args:
    num_warmup_steps: 1000
  local_save_vis: true
  visualize: true
  eval_sampling_steps: 500
  log_interval: 20
  save_model_epochs: 5
  save_model_steps: 500
  work_dir: output/debug
  online_metric: false
  eval_metric_step: 2000
  online_metric_dir: metric_helper
)" + more;
}

std::string latents_of(const Folder& folder, int count) {
  for (int i = 0; i < count; ++i) {
    folder.file("set/" + std::to_string(i) + ".npy", "");
    folder.file("set/" + std::to_string(i) + ".txt", "a cat");
  }
  return (folder.path / "set").string();
}

TEST(ImportSana, TheFsdpConfigurationIsARecipeWithNothingRefused) {
  const Folder folder;
  const std::string data = latents_of(folder, 70);
  const Translation t = import_file(folder.file("Sana_1600M_1024px_AdamW_fsdp.yaml", fsdp_yaml(data)), {.ranks = 8});
  check({"the yaml",
         {{"data.path", data},
          {"data.latents", "npy"},
          {"data.buckets", "ASPECT_RATIO_1024"},
          {"data.score_drop", "22.0"},
          {"data.caption_proportion.prompt", "implied"},
          {"data.clip_thr", "implied"},
          {"data.vae", "dc-ae-f32c32-sana-1.1-diffusers"},
          {"data.text_encoder", "gemma-2-2b"},
          {"data.text_encoder_path", "gemma-2-2b-it"},
          {"data.instruction", "Make the prompt richer:\n- say \"more\", of colours\nUser Prompt: "},
          {"model.preset", "sana1.5-1.6b"},
          {"model.config.linear_attention_eps", "1e-8"},
          {"model.config.caption_length", "300"},
          {"plan.compute_dtype", "bf16"},
          {"plan.strategy", "full_shard"},
          {"plan.activations", "recompute"},
          {"diffusion.timesteps", "sana"},
          {"diffusion.shift", "3.0"},
          {"diffusion.caption_dropout", "0.1"},
          {"train.global_batch", "256"},
          {"train.optimizer", "adamw"},
          {"train.lr", "2.0e-5"},
          {"train.lr_scale", "sqrt"},
          {"train.betas", "0.9,0.999"},
          {"train.eps", "1.0e-10"},
          {"train.weight_decay", "0.0"},
          {"train.clip_norm", "0.1"},
          {"train.schedule", "constant_with_warmup"},
          {"train.warmup_steps", "1000"},
          {"checkpoint.every", "500"},
          {"sample.every", "500"},
          {"sample.sampler", "dpmpp"},
          {"run.out", "output/debug"},
          {"run.seed", "1"},
          {"train.num_epochs", "refused"}}},  // fewer samples than a global batch: no step to an epoch
        t);
  EXPECT_EQ(t.refused.size(), 1u) << t.refused.front().option;
  EXPECT_NE(t.refused.front().why.find("the 70 samples of the data set are fewer than a global batch of 256"),
            std::string::npos)
      << t.refused.front().why;
  const recipe::Recipe recipe = recipe::load_recipe(folder.file("recipe.toml", t.to_toml()), {});
  EXPECT_EQ(recipe.data.clips.buckets.size(), 33u);
  EXPECT_EQ(recipe.data.height, 1024);
  EXPECT_EQ(recipe.data.instruction, "Make the prompt richer:\n- say \"more\", of colours\nUser Prompt: ");
  EXPECT_DOUBLE_EQ(recipe.train.lr, 2e-5);

  Translation written = t;  // as `import -o` writes it: to the byte, blanks at its end too
  put_instruction_beside(written, (folder.path / "mine.toml").string());
  EXPECT_EQ(found(written, "data.instruction"), (folder.path / "mine.instruction.txt").string());
  std::ifstream in(folder.path / "mine.instruction.txt", std::ios::binary);
  EXPECT_EQ((std::string{std::istreambuf_iterator<char>(in), {}}), recipe.data.instruction);
}

/// A repository on a hub is no path: what is known of it plans, and says what is to be downloaded.
TEST(ImportSana, AutoencodersByTheNamesOfTheirRepositories) {
  const Folder folder;
  const std::string yaml = folder.file("c.yaml", fsdp_yaml(latents_of(folder, 70)));
  const auto read = [&](const std::string& options) {
    return import_command("python train_scripts/train.py --config_path " + yaml + " " + options, {});
  };
  const std::pair<const char*, const char*> names[] = {
      {"mit-han-lab/dc-ae-f32c32-sana-1.1-diffusers", "dc-ae-f32c32"},
      {"hf://mit-han-lab/dc-ae-f32c32-sana-1.0", "dc-ae-f32c32"},
      {"hf://Wan-AI/Wan2.1-T2V-1.3B/Wan2.1_VAE.pth", "wan2.1-vae"},
      {"output/pretrained_models/Wan2.1_VAE.pth", "output/pretrained_models/Wan2.1_VAE.pth"},
      {"weights/dc-ae-f32c32-sana-1.0", "weights/dc-ae-f32c32-sana-1.0"},
      {"hf://someone/other-autoencoder", ""}};
  for (const auto& [name, vae] : names) {
    const Translation t = read("--vae.vae_pretrained=" + std::string(name));
    EXPECT_EQ(found(t, "data.vae"), vae) << name;
    EXPECT_EQ(t.refused.empty(), *vae != 0) << name;
  }
  for (const char* type : {"LTX2VAE_diffusers", "DCAEV"})
    EXPECT_FALSE(read("--vae.vae_pretrained=weights/vae --vae.vae_type=" + std::string(type)).refused.empty()) << type;
}

TEST(ImportSana, EpochsAreCountedAndFlagsWinOverTheFile) {
  const Folder folder;
  const std::string data = latents_of(folder, 70), yaml = folder.file("c.yaml", fsdp_yaml(data));
  const Translation t = import_command("bash train_scripts/train.sh " + yaml +
                                           " --train.train_batch_size=5 "
                                           "--model.multi_scale=true --data.type=SanaWebDatasetMS --train.num_epochs 3 "
                                           "--data.data_dir=[" +
                                           data + "] --train.optimizer.lr 1e-4",
                                       {.ranks = 2});
  check({"train.sh", {{"train.global_batch", "10"}, {"run.steps", "21"}, {"train.lr", "1e-4"}, {"data.path", data}}},
        t);
  EXPECT_TRUE(t.refused.empty()) << t.refused.front().option;

  const Translation torchrun = import_command(
      "TRITON_PRINT_AUTOTUNING=1 torchrun --nproc_per_node=4 --master_port=15432 train_scripts/train.py --config_path=" +
          yaml + " --work_dir=out/x --name=tmp --resume_from=latest --report_to=tensorboard --debug=true",
      {});
  check({"torchrun",
         {{"train.global_batch", "128"},
          {"run.out", "out/x"},
          {"run.resume", "auto"},
          {"--name", "implied"},
          {"TRITON_PRINT_AUTOTUNING", "implied"}}},
        torchrun);
}

TEST(ImportSana, TheScriptItselfIsReadWithItsVariables) {
  const Folder folder;
  const std::string yaml = folder.file("c.yaml", fsdp_yaml());
  const Translation t =
      import_file(folder.file("train.sh",
                              "#/bin/bash\nset -e\nwork_dir=output/mine\nnp=2\n"
                              "if [[ $1 == *.yaml ]]; then\n    config=$1\n    shift\nelse\n"
                              "    config=\"" +
                                  yaml +
                                  "\"\nfi\n"
                                  "A_VARIABLE=1 \\\n  torchrun --nproc_per_node=$np train_scripts/train.py \\\n"
                                  "    --config_path=$config --work_dir=${work_dir} \"$@\"\n"),
                  {});
  check({"train.sh", {{"train.global_batch", "64"}, {"run.out", "output/mine"}, {"A_VARIABLE", "implied"}}}, t);
  expect_words(message([&] {
                 import_file(
                     folder.file("bad.sh", "set -e\ntorchrun --nproc_per_node=$np train.py --config_path=c.yaml"), {})
                     .refuse_to("train");
               }),
               {"$np is not set"});
}

TEST(ImportSana, OptimisersAreNamedAsTheyAreHere) {
  const Folder folder;
  for (const auto& [theirs, ours] :
       {std::pair("CAMEWrapper", "came"), {"CAME8BitWrapper", "came8bit"}, {"Lion", "lion"}}) {
    const Translation t = import_file(folder.file("c.yaml", fsdp_yaml("toy", theirs)), {.ranks = 1});
    EXPECT_EQ(found(t, "train.optimizer"), ours) << theirs;
  }
  const Translation small = import_file(folder.file("c.yaml", fsdp_yaml("toy", "AdamW8bitWrapper")), {.ranks = 1});
  check({"8 bit", {{"train.optimizer", "adamw"}, {"plan.moments", "int8"}}}, small);
}

/// Keys of SANA-1.5's published 4.8B, and of the trainer's file of defaults.
TEST(ImportSana, WhatIsLoadedOfATrainersStateIsSaid) {
  const Folder folder;
  std::string yaml = fsdp_yaml("toy", "CAME8BitWrapper\n    block_size: 2048\n    min_8bit_size: 16384",
                               "  load_from_optimizer: false\n  load_from_lr_scheduler: false\n"
                               "  resume_lr_scheduler: false\n");
  yaml.replace(yaml.find("  load_from:\n"), 0,
               "  resume_from:\n    checkpoint:\n    load_ema: false\n    resume_lr_scheduler: true\n");
  check({"published",
         {{"train.optimizer", "came8bit"},
          {"train.optimizer.block_size", "implied"},
          {"train.optimizer.min_8bit_size", "implied"},
          {"model.resume_from.load_ema", "implied"},
          {"model.resume_from.resume_lr_scheduler", "implied"},
          {"train.load_from_optimizer", "implied"},
          {"train.load_from_lr_scheduler", "implied"},
          {"train.resume_lr_scheduler", "implied"}}},
        import_file(folder.file("c.yaml", yaml), {.ranks = 1}));
  EXPECT_EQ(found(import_file(folder.file("d.yaml", fsdp_yaml("toy", "AdamW", "  load_from_optimizer: true\n")), {}),
                  "train.load_from_optimizer"),
            "refused");
}

TEST(ImportSana, AveragesOfTheWeightsAreKept) {
  const Folder folder;
  const auto with = [&](const std::string& keys) {
    return import_file(folder.file("c.yaml", "train:\n  use_fsdp: false\n  seed: 1\n" + keys), {});
  };
  const Translation on = with("  ema_update: true\n  ema_rate: 0.999\n");
  EXPECT_EQ(found(on, "train.ema"), "0.999");
  check({"off", {{"train.ema_update", "implied"}, {"train.ema_rate", "implied"}}},
        with("  ema_update: false\n  ema_rate: 0.999\n"));
}

TEST(ImportSana, CaptionsAreDrawnByScoresOrByShares) {
  const Folder folder;
  const auto with = [&](const std::string& keys) {
    return import_file(folder.file("c.yaml", "train:\n  use_fsdp: true\n  seed: 1\ndata:\n  data_dir: toy\n" + keys),
                       {});
  };
  check({"scores",
         {{"data.caption_files", "_A,_B"},
          {"data.score_files", "_A_clip_score"},
          {"data.score_min", "25.0"},
          {"data.score_temperature", "0.1"},
          {"data.captions", ""}}},
        with("  external_caption_suffixes: ['', _A, _B]\n  external_clipscore_suffixes: [_A_clip_score]\n"
             "  clip_thr: 25.0\n  clip_thr_temperature: 0.1\n  caption_proportion:\n    prompt: 1\n"));
  check({"shares", {{"data.captions", "prompt=5,_A=95"}, {"data.score_files", ""}, {"data.clip_thr", "implied"}}},
        with("  external_caption_suffixes: [_A]\n  external_clipscore_suffixes: [_s]\n  clip_thr: 25.0\n"
             "  caption_selection_type: proportion\n  caption_proportion:\n    prompt: 5\n    _A: 95\n"));
  check(
      {"videos",
       {{"data.captions", "prompt=5,_A=95"},
        {"data.buckets", "81xASPECT_RATIO_VIDEO_480_MS"},
        {"data.fps", "0"},
        {"image_data.data_dir", "implied"},
        {"data.external_data_filter.toy._unimatch.min", "refused"}}},
      with("  type: SanaZipDataset\n  num_frames: 81\n  resample_fps: false\n  image_size: 480\n"
           "  aspect_ratio_type: ASPECT_RATIO_VIDEO_480_MS\n  caption_proportion:\n    prompt: 5\n    _A: 95\n"
           "  external_data_filter:\n    toy:\n      _unimatch: {min: 1.0, max: 30}\nimage_data:\n  data_dir: [x]\n"));
}

TEST(ImportSana, AllFoldersOfADataSetAreTrainedOn) {
  const Folder folder;
  const auto read = [&](const std::string& folders) {
    return import_file(folder.file("c.yaml",
                                   "model:\n  model: SanaMSVideo_2000M_P2_D20\n  mixed_precision: bf16\ntrain:\n"
                                   "  use_fsdp: false\ndata:\n  type: SanaZipDataset\n  data_dir: " +
                                       folders + "\n"),
                       {});
  };
  check({"a list", {{"data.path", "toy,more"}}}, read("[toy, more]"));
  check({"a table", {{"data.path", "toy,more"}}}, read("\n    first: toy\n    second: more"));
  check({"one of a table", {{"data.path", "toy"}}}, read("\n    first: toy"));
  check({"none", {{"data.data_dir", "refused"}}}, read("[]"));
}

TEST(ImportSana, MotionScoresAreOfTheFilesThatAreNamedSo) {
  const Folder folder;
  const auto read = [&](const std::string& thresholds, const std::string& of) {
    return import_file(folder.file("c.yaml",
                                   "model:\n  model: SanaMSVideo_2000M_P2_D20\n  mixed_precision: bf16\ntrain:\n"
                                   "  use_fsdp: false\ndata:\n  type: SanaZipDataset\n  motion_score_file_thres:\n" +
                                       thresholds + "  motion_score_cal_type: " + of + "\n"),
                       {});
  };
  check({"largest", {{"data.motion_files", "_unimatch"}, {"data.motion_of", "largest"}}},
        read("    _unimatch: 30\n", "max"));
  check({"mean", {{"data.motion_files", "_unimatch"}, {"data.motion_of", "mean"}}},
        read("    _unimatch: 0\n    _aes: 2\n", "average"));
  check({"others",
         {{"data.motion_files", ""},
          {"data.motion_score_file_thres._aes", "implied"},
          {"data.motion_score_cal_type", "implied"}}},
        read("    _aes: 2\n", "average"));
  check({"unknown", {{"data.motion_score_cal_type", "refused"}}}, read("    _unimatch: 30\n", "median"));
}

TEST(ImportSana, ModelsAreFoundByTheirNamesAndNorms) {
  const Folder folder;
  const auto preset = [&](const std::string& keys) {
    return import_file(folder.file("c.yaml", "train:\n  use_fsdp: false\nmodel:\n  mixed_precision: bf16\n" + keys),
                       {});
  };
  check({"0.6B", {{"model.preset", "sana-0.6b"}, {"plan.strategy", "no_shard"}}},
        preset("  model: SanaMS_600M_P1_D28\n"));
  check({"3.2B", {{"model.preset", "sana1.5-1.6b"}, {"model.config.num_layers", "40"}}},
        preset("  model: SanaMS_3200M_P1_D40\n  qk_norm: true\n  cross_norm: true\n"));
  check({"4K", {{"model.preset", "sana-1.6b-4k"}, {"model.config.interpolation_scale", "2.0"}}},
        preset("  model: SanaMS_1600M_P1_D20\n  image_size: 4096\n  use_pe: true\n  pe_interpolation: 2.0\n"));
  check(
      {"square", {{"data.size", "512,512"}, {"data.frames", "1"}, {"data.buckets", ""}}},
      preset(
          "  model: SanaMS_600M_P1_D28\n  multi_scale: false\n  image_size: 512\n  aspect_ratio_type: ASPECT_RATIO_512\n"));
  check({"a file", {{"model.path", "epoch_1_step_2.pth"}, {"model.preset", ""}, {"model.model", "implied"}}},
        preset("  model: SanaMS_600M_P1_D28\n  load_from: epoch_1_step_2.pth\n"));
  check({"a hub", {{"model.load_from", "refused"}}}, preset("  load_from: hf://Efficient/x.pth\n"));
  check({"unknown", {{"model.model", "refused"}}}, preset("  model: SanaMS_9000M_P1_D99\n"));
}

TEST(ImportSana, ControlNetsAreRefusedInWords) {
  const Folder folder;
  const Translation t =
      import_file(folder.file("controlnet.yaml",
                              "model:\n  model: SanaMSControlNet_600M_P1_D28\n  qk_norm: false\n"
                              "data:\n  data_dir: [toy]\ncontrolnet:\n  control_signal_type: scribble\n"),
                  {});
  for (const char* option : {"model.model", "controlnet.control_signal_type"})
    EXPECT_EQ(found(t, option), "refused") << option;
  expect_words(message([&] { t.refuse_to("train"); }), {"ControlNets are not trained"});
}

/// The published configuration of SANA-Sprint's students, with `changed` lines in the place of others of their key.
std::string sprint_yaml(const std::vector<std::string>& changed = {}) {
  std::string yaml = R"(data:
  data_dir: [toy]
  image_size: 1024
  load_vae_feat: true
  type: SanaWebDatasetMS
model:
  model: SanaMSCM_1600M_P1_D20
  teacher_model: SanaMSCM_1600M_P1_D20
  image_size: 1024
  mixed_precision: bf16
  fp32_attention: true
  load_from: runs/teacher/model
  multi_scale: false
  attn_type: linear
  ffn_type: glumbconv
  mlp_ratio: 2.5
  use_pe: false
  qk_norm: true
  cross_norm: true
  class_dropout_prob: 0.0
  cfg_scale: 5
  logvar: true
  cfg_embed: true
  cfg_embed_scale: 0.1
  ladd_multi_scale: true
  head_block_ids: [2, 8, 14, 19]
  cross_attn_type: vanilla
scheduler:
  weighting_scheme: logit_normal_trigflow
  logit_mean: 0.2
  logit_std: 1.6
  logit_mean_discriminator: -0.6
  logit_std_discriminator: 1.0
  sigma_data: 0.5
  timestep_norm_scale_factor: 1000
  vis_sampler: scm
train:
  use_fsdp: false
  train_batch_size: 16
  gradient_accumulation_steps: 1
  gradient_clip: 0.1
  optimizer:
    lr: 2.0e-6
    type: CAMEWrapper
    weight_decay: 0.0
  optimizer_D:
    lr: 1.0e-3
    type: AdamW
  lr_schedule: constant
  lr_schedule_args:
    num_warmup_steps: 5000
  scm_cfg_scale: [4, 4.5, 5]
  tangent_warmup_steps: 4000
  scm_loss: true
  scm_lambda: 1.0
  adv_lambda: 0.5
  discriminator_loss: hinge
  misaligned_pairs_D: true
  train_largest_timestep: true
  largest_timestep: 1.5708
  largest_timestep_prob: 0.5
  g_norm_constant: 0.1
  work_dir: output/sprint
)";
  for (const std::string& line : changed) {
    const std::string key = "\n" + line.substr(0, line.find(':') + 1);
    const size_t at = yaml.find(key);
    EXPECT_NE(at, std::string::npos) << line;
    yaml.replace(at + 1, yaml.find('\n', at + 1) - at - 1, line);
  }
  return yaml;
}

TEST(ImportSana, TheConfigurationOfSprintIsARecipeWithNothingRefused) {
  const Folder folder;
  const std::string line = "torchrun --nproc_per_node=8 train_scripts/train_scm_ladd.py --config_path ";
  const Translation t = import_command(line + folder.file("sprint.yaml", sprint_yaml()), {});
  check({"sprint.yaml",
         {{"distill.method", "scm_ladd"},
          {"model.preset", "sana-sprint-1.6b"},
          {"model.path", "runs/teacher/model"},
          {"distill.teacher", "runs/teacher/model"},
          {"distill.head_blocks", "2,8,14,19"},
          {"distill.guidance", "4,4.5,5"},
          {"distill.logvar", "true"},
          {"distill.logit_mean", "0.2"},
          {"distill.logit_std", "1.6"},
          {"distill.judged_mean", "-0.6"},
          {"distill.judged_std", "1.0"},
          {"distill.sigma_data", "0.5"},
          {"distill.tangent_warmup", "4000"},
          {"distill.consistency_weight", "1.0"},
          {"distill.adversarial_weight", "0.5"},
          {"distill.discriminator_loss", "hinge"},
          {"distill.misaligned", "true"},
          {"distill.own_angles", "true"},
          {"distill.largest_angle", "1.5708"},
          {"distill.largest_share", "0.5"},
          {"data.size", "1024,1024"},
          {"train.global_batch", "256"},  // 8 x 16 clips in two places
          {"train.lr_base_batch", "512"},
          {"train.optimizer", "came"},
          {"train.lr", "2.0e-6"},
          {"train.clip_norm", "0.1"},
          {"train.warmup_steps", "5000"},
          {"sample.sampler", "scm"},
          {"sample.steps", "2"},
          {"train.optimizer_D.lr", "implied"},
          {"train.g_norm_constant", "implied"},
          {"scheduler.timestep_norm_scale_factor", "implied"}}},
        t);
  EXPECT_TRUE(t.refused.empty()) << t.refused.front().option;
  EXPECT_TRUE(recipe::load_recipe("", t.overrides()).distill.judges()) << "the keys go together";
}

TEST(ImportSana, WhatThatTrainerDoesByItselfIsSaid) {
  const Folder folder;
  const auto with = [&](const std::vector<std::string>& changed) {
    return import_file(folder.file("c.yaml", sprint_yaml(changed)), {});
  };
  const Translation own = with({"  head_block_ids: null", "  discriminator_loss: cross entropy",
                                "  train_largest_timestep: false", "  misaligned_pairs_D: false"});
  EXPECT_EQ(found(own, "distill.head_blocks"), "2,8,14");  // 20 and 27 are not among its blocks
  EXPECT_EQ(found(own, "distill.discriminator_loss"), "cross_entropy");
  EXPECT_EQ(found(own, "distill.largest_share"), "0");
  EXPECT_EQ(found(own, "distill.misaligned"), "false");
  EXPECT_EQ(found(with({"  head_block_ids: null", "  ladd_multi_scale: false"}), "distill.head_blocks"), "19");
  const std::pair<const char*, const char*> refused[] = {
      {"  teacher_model: SanaMSCM_600M_P1_D28", "model.teacher_model"},
      {"  model: SanaMSCM_900M_P1_D20", "model.model"},
      {"  multi_scale: true", "model.multi_scale"},
      {"  cfg_embed_scale: 1.0", "model.cfg_embed_scale"},
      {"  weighting_scheme: logit_normal_trigflow_ladd", "scheduler.weighting_scheme"},
      {"  timestep_norm_scale_factor: 1", "scheduler.timestep_norm_scale_factor"},
      {"  scm_loss: false", "train.scm_loss"},
      {"  discriminator_loss: wgan", "train.discriminator_loss"},
      {"  qk_norm: false", "model.qk_norm"}};
  for (const auto& [line, option] : refused) EXPECT_EQ(found(with({line}), option), "refused") << line;
}

TEST(ImportSana, ATeacherOfSprintSeesTimestepsOfZeroToOne) {
  const Folder folder;
  const Translation t =
      import_file(folder.file("teacher.yaml",
                              "model:\n  model: SanaMS_1600M_P1_D20\n  qk_norm: true\n  cross_norm: true\n"
                              "scheduler:\n  weighting_scheme: logit_normal\n  timestep_norm_scale_factor: 1000\n"),
                  {});
  EXPECT_EQ(t.find("model.config.timestep_scale")->value, "0.001");
  EXPECT_EQ(t.find("diffusion.timesteps")->value, "sana");
  const Translation other = import_file(
      folder.file("other.yaml", "model:\n  model: SanaMS_1600M_P1_D20\n  qk_norm: true\ntrain:\n  scm_lambda: 1\n"),
      {});
  EXPECT_EQ(found(other, "train.scm_lambda"), "refused");
}

TEST(ImportSana, AKeyThatIsNotThereIsAnErrorThatNamesIt) {
  const Folder folder;
  expect_words(message([&] {
                 import_file(folder.file("c.yaml", fsdp_yaml("toy", "AdamW", "  grad_checkpoint: true\n")), {})
                     .refuse_to("train");
               }),
               {"train.grad_checkpoint", "did you mean train.grad_checkpointing"});
  const std::string yaml = folder.file("d.yaml", fsdp_yaml());
  expect_words(message([&] {
                 import_command("python train.py --config_path " + yaml + " --train.lrr 1", {}).refuse_to("train");
               }),
               {"--train.lrr"});
}
#endif

const char* const kDreambooth =
    "accelerate launch --num_processes 4 train_dreambooth_lora_sana.py --pretrained_model_name_or_path=weights/S "
    "--instance_data_dir=dog --output_dir=out --mixed_precision=bf16 --instance_prompt='a photo of sks dog, sitting' "
    "--resolution=1024 --train_batch_size=1 --gradient_accumulation_steps=4 --use_8bit_adam --learning_rate=1e-4 "
    "--report_to=tensorboard --lr_scheduler=constant --lr_warmup_steps=0 --max_train_steps=500 "
    "--validation_prompt='a dog, in a bucket' --seed=0";

TEST(ImportSana, DreamboothOfDiffusersIsALoraOfPicturesWithOneCaption) {
  const Translation t = import_command(kDreambooth, {});
  check({kDreambooth,
         {{"model.path", "weights/S"},
          {"data.vae", "weights/S/vae"},
          {"data.text_encoder_path", "weights/S/text_encoder"},
          {"data.tokenizer", "weights/S/tokenizer"},
          {"data.path", "dog"},
          {"data.caption", "a photo of sks dog, sitting"},
          {"data.size", "1024,1024"},
          {"data.frames", "1"},
          {"train.mode", "lora"},
          {"lora.rank", "4"},
          {"lora.alpha", "4"},
          {"lora.targets", "to_k,to_q,to_v"},
          {"train.global_batch", "16"},
          {"plan.moments", "int8"},
          {"train.lr", "1e-4"},
          {"train.schedule", "constant"},
          {"--lr_warmup_steps", "implied"},
          {"train.weight_decay", "1e-4"},
          {"train.clip_norm", "1"},
          {"run.steps", "500"},
          {"sample.prompts", "a dog, in a bucket"},
          {"diffusion.timesteps", "uniform"},
          {"diffusion.shift", "3"},
          {"plan.compute_dtype", "bf16"},
          {"run.seed", "0"}}},
        t);
  const Folder folder;
  const recipe::Recipe recipe = recipe::load_recipe(folder.file("recipe.toml", t.to_toml()), {});
  EXPECT_EQ(recipe.data.caption, "a photo of sks dog, sitting");
  EXPECT_EQ(recipe.sample.prompts, std::vector<std::string>{"a dog, in a bucket"});
  check({"others",
         {{"diffusion.timesteps", "diffusers"},
          {"train.lr_scale", "linear"},
          {"train.lr_base_batch", "1"},
          {"lora.targets", "attn1.to_q,ff.conv_inverted"},
          {"train.warmup_steps", "500"},
          {"train.schedule", "cosine"},
          {"--with_prior_preservation", "refused"},
          {"--push_to_hub", "refused"},
          {"plan.activations", "recompute"}}},
        import_command("accelerate launch train_dreambooth_lora_sana.py --instance_data_dir=dog --instance_prompt=d "
                       "--weighting_scheme logit_normal --scale_lr --lora_layers attn1.to_q,ff.conv_inverted "
                       "--lr_scheduler cosine --with_prior_preservation --push_to_hub --gradient_checkpointing",
                       {}));
  expect_words(message([] {
                 import_command("python train_dreambooth_lora_sana.py --instance_data_dir d --lora_rank 4", {})
                     .refuse_to("train");
               }),
               {"--lora_rank", "did you mean"});
}

TEST(ImportSana, AcceleratesVariablesAreTranslatedAndNoClassIsNeededToWrap) {
  const Translation t = import_command(
      std::string(
          "ACCELERATE_USE_FSDP=true FSDP_SHARDING_STRATEGY=SHARD_GRAD_OP FSDP_TRANSFORMER_CLS_TO_WRAP=SanaBlock "
          "FSDP_BACKWARD_PREFETCH=BACKWARD_PRE FSDP_OFFLOAD_PARAMS=true NCCL_DEBUG=INFO ") +
          kDreambooth,
      {});
  check({"variables",
         {{"plan.strategy", "shard_grad_op"},
          {"plan.parameters", "host"},
          {"FSDP_TRANSFORMER_CLS_TO_WRAP", "implied"},
          {"FSDP_BACKWARD_PREFETCH", "implied"},
          {"NCCL_DEBUG", "implied"}}},
        t);
  const Translation flags = import_command(
      "accelerate launch --use_fsdp --fsdp_sharding_strategy FULL_SHARD --fsdp_transformer_layer_cls_to_wrap SanaBlock "
      "train_dreambooth_lora_sana.py --instance_data_dir d --instance_prompt p",
      {});
  EXPECT_EQ(found(flags, "plan.strategy"), "full_shard");
  bool told = false;
  for (const auto& remark : flags.implied)
    told = told || (remark.option.find("SanaBlock") != std::string::npos && remark.why.find("not needed: units") == 0);
  EXPECT_TRUE(told);
}

}  // namespace
}  // namespace tessera::tools
