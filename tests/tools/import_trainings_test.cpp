// Configurations of the programs with which whole models are trained, and of what starts their ranks, held against their own
// formulas (import_meanings.h).
#include "tools/import_meanings.h"

namespace tessera::tools::meanings {
namespace {

// ---- VideoX-Fun -------------------------------------------------------------------------------------------------------

TEST(ImportMeanings, VideoXFun) {
  const Folder folder;
  folder.clips("clips", 12);
  const auto line = [](const std::string& release, const std::string& script, const std::string& rest) {
    return "scripts/" + script + " --config_path=config/" + release +
           " --pretrained_model_name_or_path=M --train_data_dir=@/clips --output_dir=@/out --gradient_checkpointing "
           "--video_sample_size=640 --video_sample_stride=2 --video_sample_n_frames=81 --enable_bucket --train_batch_size=1 "
           "--adam_weight_decay=3e-2 --adam_epsilon=1e-10 --max_grad_norm=0.05 --uniform_sampling " +
           rest;
  };
  const std::string launch = "accelerate launch --mixed_precision=bf16 ", low = "wan2.2/wan_civitai_t2v.yaml";
  const Optimiser usual{.eps = 1e-10, .decay = 0.03, .clip = 0.05};
  const std::string shapes = "81xAREA_640x640";
  hold_all(
      folder,
      {{"the low-noise expert of A14B on eight GPUs under FSDP",
        launch + "--use_fsdp --fsdp_sharding_strategy FULL_SHARD --num_processes 8 " +
            line(low, "wan2.2/train.py",
                 "--max_train_steps=1000 --checkpointing_steps=50 --learning_rate=2e-05 --boundary_type=low "
                 "--lr_scheduler=constant_with_warmup --lr_warmup_steps=100 --trainable_modules . --use_fsdp"),
        {.lr = ramp(2e-5, 100),
         .batch = 8,
         .steps = 1000,
         .sigmas = uniform(12, 0, 0.875),
         .shapes = shapes,
         .dropout = 0.1,
         .by = usual,
         .saved = each(50, 1000),
         .told = {{"plan.strategy", "full_shard"}, {"--video_sample_stride", "warned"}}}},
       {"the high-noise expert of i2v, epochs",
        launch + line("wan2.2/wan_civitai_i2v.yaml", "wan2.2/train.py",
                      "--num_train_epochs=10 --gradient_accumulation_steps=3 --video_repeat=2 --boundary_type=high "
                      "--trainable_modules . --checkpointing_steps=20 --checkpoints_total_limit=2"),
        {.lr = level(1e-4),
         .batch = 3,
         .steps = 80,
         .sigmas = uniform(5, 0.9, 1),
         .shapes = shapes,
         .dropout = 0.1,
         .repeats = 2,
         .by = usual,
         .saved = {60, 80},
         .told = {{"--initial_grad_norm_ratio is not given", "warned"}}}},
       {"a LoRA of Wan 2.1",
        launch + line("wan2.1/wan_civitai.yaml", "wan2.1/train_lora.py",
                      "--rank=64 --network_alpha=32 --target_name=q,k,v,ffn.0,ffn.2 --use_peft_lora "
                      "--lr_scheduler=cosine --lr_warmup_steps=0 --resume_from_checkpoint=latest"),
        {.lr = half_cosine(1e-4, 0, 1200),
         .steps = 1200,  // a hundred epochs
         .sigmas = uniform(5),
         .shapes = shapes,
         .dropout = 0.1,
         .by = usual,
         .saved = {500, 1000, 1200},
         .told = {{"lora.rank", "64"}, {"lora.alpha", "32"}, {"run.resume", "auto"}}}},
       {"the 5B by a rate for each sample",
        launch + "--num_processes 2 " +
            line("wan2.2/wan_civitai_5b.yaml", "wan2.2/train.py",
                 "--max_train_steps=500 --learning_rate=1e-5 --scale_lr --train_mode=ti2v --boundary_type=full "
                 "--trainable_modules . --use_ema --use_8bit_adam --gradient_accumulation_steps=4"),
        {.lr = level(8e-5),
         .batch = 8,
         .steps = 500,
         .sigmas = uniform(5),
         .shapes = shapes,
         .dropout = 0.1,
         .by = {.eps = 1e-10, .decay = 0.03, .clip = 0.05, .eight = true},
         .told = {{"train.ema", "0.9999"}, {"diffusion.image_share", "0.5"}}}},
       {"S2V with one size",
        launch + line("wan2.2/wan_civitai_s2v.yaml", "wan2.2/train_s2v.py",
                      "--max_train_steps=100 --fix_sample_size 480 832 --trainable_modules . --use_came "
                      "--control_ref_image=first_frame"),
        {.lr = level(1e-4),
         .steps = 100,
         .sigmas = uniform(3),
         .shapes = "81x480x832",
         .dropout = 0.1,
         .by = {.name = "came", .decay = 0.03, .clip = 0.05}}},
       {"what is not there",
        launch +
            line("wan2.1/wan_civitai.yaml", "wan2.1/train.py",
                 "--max_train_steps=100 --trainable_modules attn --motion_sub_loss --random_flip --noise_offset=0.1 "
                 "--initial_grad_norm_ratio=5 --report_to=wandb --train_text_encoder"),
        {.lr = level(1e-4),
         .steps = 100,
         .dropout = 0.1,
         .by = usual,
         .told = {{"train.only", "*attn*"}},
         .refused =
             "--motion_sub_loss --random_flip --noise_offset --initial_grad_norm_ratio --report_to --train_text_encoder"}}});
}

// ---- Sana -------------------------------------------------------------------------------------------------------------

/// The rate is for 256 samples and goes with the root of the batch; timesteps are entries of a table of 1000.
TEST(ImportMeanings, Sana) {
  if (!TESSERA_HAS_YAML) GTEST_SKIP() << "this build reads no YAML";
  const Folder folder;
  const std::string clips = folder.clips("clips", 12), images = folder.clips("images", 5), name = "sana.yaml";
  const auto config = [&](const std::string& model, const std::string& optimiser, const std::string& train,
                          const std::string& rest = "") {
    return "data: {data_dir: ['" + clips +
           "'], type: SanaWebDatasetMS, image_size: 1024}\nmodel: {model: "
           "SanaMS_1600M_P1_D20, image_size: 1024, mixed_precision: bf16, class_dropout_prob: 0.1, " +
           model +
           "}\nscheduler: {flow_shift: 3.0, weighting_scheme: logit_normal, logit_mean: 0.0, logit_std: 1.0}\n" +
           "train: {num_epochs: 100, save_model_steps: 100, optimizer: {" + optimiser + "}, lr_schedule: constant, " +
           train + "}\nwork_dir: o\n" + rest;
  };
  const std::string buckets = "aspect_ratio_type: ASPECT_RATIO_1024, multi_scale: true", square = "multi_scale: false",
                    came =
                        "type: CAMEWrapper, lr: 1.0e-4, betas: [0.9, 0.999, 0.9999], eps: [1.0e-30, 1.0e-16], "
                        "weight_decay: 0.0",
                    adamw = "type: AdamW, lr: 2.0e-5, betas: [0.9, 0.99], eps: 1.0e-10, weight_decay: 0.1";
  const Optimiser plain{.beta2 = 0.99, .eps = 1e-10, .decay = 0.1, .clip = 0.1},
      by_came{.name = "came", .decay = 0, .clip = 0.1};
  hold_all(
      folder,
      {{"CAME at many shapes",
        config(buckets, came, "train_batch_size: 4, gradient_clip: 0.1, lr_schedule_args: {num_warmup_steps: 40}"),
        {.lr = ramp(1e-4 / 8, 40),
         .batch = 4,
         .steps = 300,
         .sigmas = sigmoid(3),
         .shapes = "ASPECT_RATIO_1024",
         .fps = 0,
         .dropout = 0.1,
         .by = by_came,
         .saved = {100, 200, 300}},
        name},
       {"AdamW under FSDP on three ranks",
        config(square, adamw,
               "use_fsdp: true, train_batch_size: 1, gradient_accumulation_steps: 4, gradient_clip: 0.1, "
               "lr_schedule_args: {num_warmup_steps: 20}"),
        {.lr = ramp(2e-5 * std::sqrt(12.0 / 256), 20),
         .batch = 12,
         .steps = 100,
         .sigmas = sigmoid(3),
         .shapes = "1x1024x1024",
         .fps = 0,
         .dropout = 0.1,
         .by = plain,
         .saved = {100},
         .told = {{"plan.strategy", "full_shard"}}},
        name,
        3},
       {"a rate that goes with the batch itself",
        config(square, adamw, "train_batch_size: 2, gradient_clip: 0.1, auto_lr: {rule: linear}"),
        {.lr = level(2e-5 / 128), .batch = 2, .steps = 600, .dropout = 0.1, .by = plain},
        name},
       {"moments in 8 bits, an average, a run that goes on",
        config(square, "type: CAME8BitWrapper, lr: 1.0e-4, block_size: 2048, min_8bit_size: 16384, weight_decay: 0.0",
               "train_batch_size: 4, gradient_clip: 0.1, ema_update: true, ema_rate: 0.999", "resume_from: latest\n"),
        {.lr = level(1e-4 / 8),
         .batch = 4,
         .steps = 300,
         .dropout = 0.1,
         .by = {.name = "came8bit", .decay = 0, .clip = 0.1, .eight = true},
         .told = {{"train.ema", "0.999"}, {"run.resume", "auto"}}},
        name},
       {"flags of its script over the file",
        "torchrun --nproc_per_node=2 train_scripts/train.py --config_path=@/sana.yaml --train.train_batch_size=3 "
        "--scheduler.flow_shift=6",
        {.lr = level(1e-4 * std::sqrt(6.0 / 256)),
         .batch = 6,
         .steps = 200,
         .sigmas = sigmoid(6),
         .dropout = 0.1,
         .by = {.name = "came8bit", .decay = 0, .clip = 0.1, .eight = true}}},
       {"videos and images in turns",
        "data: {data_dir: {toy: '" + clips +
            "'}, type: SanaZipDataset, num_frames: 81, image_size: 480, transform: default_train_video}\n"
            "image_data: {data_dir: ['" +
            images +
            "'], type: SanaWebDatasetMS, image_size: 480, caption_proportion: "
            "{prompt: 1}, external_caption_suffixes: [], load_vae_feat: false, aspect_ratio_type: "
            "ASPECT_RATIO_VIDEO_480_MS, sort_dataset: false}\nmodel: {model: SanaMSVideo_2000M_P2_D20, multi_scale: true, "
            "aspect_ratio_type: ASPECT_RATIO_VIDEO_480_MS, class_dropout_prob: 0.1, chunk_index: [0, 11]}\n"
            "scheduler: {flow_shift: 3.0, "
            "weighting_scheme: logit_normal, logit_mean: 0.0, logit_std: 1.0}\ntrain: {train_batch_size: 1, "
            "train_batch_size_image: 4, gradient_accumulation_steps: 2, gradient_clip: 0.1, num_epochs: 3, "
            "same_timestep_prob: 0.3, chunk_sampling_strategy: incremental, noise_multiplier: 0.2, "
            "joint_training_interval: 10, optimizer: {" +
            adamw + "}, lr_schedule: constant}\nwork_dir: o\n",
        {.lr = level(2e-5 * std::sqrt(6.0 / 256)),
         .batch = 6,
         .dropout = 0.1,
         .by = plain,
         .told = {{"data.images_every", "10"},
                  {"diffusion.chunks", "0,11"},
                  {"diffusion.chunk_draws", "incremental"},
                  {"diffusion.chunk_same_share", "0.3"},
                  {"diffusion.first_frame_noise", "0.2"},
                  {"data.path", clips + "," + images},
                  {"data.buckets", "81xASPECT_RATIO_VIDEO_480_MS=6,1xASPECT_RATIO_VIDEO_480_MS=24"}},
         .refused = "train.num_epochs"},
        name,
        3},
       {"what is not there",
        config(square + ", micro_condition: true", adamw,
               "train_batch_size: 4, gradient_clip: 0.1, joint_training_interval: 10, snr_loss: true, "
               "early_stop_hours: 3, load_from_optimizer: true",
               "report_to: wandb\ncontrolnet: {control_type: x}\n"),
        {.lr = level(2e-5 / 8),
         .batch = 4,
         .steps = 300,
         .dropout = 0.1,
         .by = plain,
         .refused =
             "model.micro_condition train.joint_training_interval train.snr_loss train.early_stop_hours train.load_from_optimizer report_to controlnet"},
        name}});
}

// ---- Open-Sora --------------------------------------------------------------------------------------------------------

/// A shift for each sample, by the size of its latent; a warm-up from 1e-6 on.
TEST(ImportMeanings, OpenSora) {
  const Folder folder;
  std::string table = "path,text\n";
  for (int i = 0; i < 12; ++i) table += folder.file("clips/" + std::to_string(i) + ".mp4", "") + ",a clip\n";
  folder.file("clips.csv", table);
  const auto second = [](const std::string& rest) {
    return "dataset = dict(type='video_text', data_path='@/clips.csv', transform_name='resize_crop', fps_max=24)\n"
           "model = dict(type='flux', from_pretrained='w', cond_embed=False)\n"
           "ae = dict(type='hunyuan_vae', from_pretrained='v')\nplugin = 'zero2'\ndtype = 'bf16'\ngrad_clip = 1.0\n"
           "optim = dict(cls='HybridAdam', lr=5e-5, eps=1e-15, weight_decay=0.0, adamw_mode=True)\n" +
           rest;
  };
  const auto first = [](const std::string& rest) {
    return "dataset = dict(type='VariableVideoTextDataset', data_path='@/clips.csv', transform_name='resize_crop')\n"
           "model = dict(type='STDiT3-XL/2', from_pretrained=None, qk_norm=True)\nplugin = 'zero2'\ndtype = 'bf16'\n"
           "grad_checkpoint = True\nadam_eps = 1e-15\ngrad_clip = 1.0\n" +
           rest;
  };
  const std::string rflow =
                        "scheduler = dict(type='rflow', use_timestep_transform=True, sample_method='logit-normal')\n",
                    name = "config.py";
  const auto from = [](double lr, double w) {
    const auto at = [&](double i) { return 1e-6 + (lr - 1e-6) * (i + 1) / (w + 1); };
    return Rates{{0, at(0)}, {9, at(9)}, {49, at(49)}, {static_cast<int64_t>(w), lr}, {500, lr}};
  };
  const Optimiser hybrid{.eps = 1e-15, .decay = 0};
  const std::vector<int64_t> square = {16, 9, 32, 32}, wide = {4, 15, 30, 40};
  hold_all(
      folder,
      {{"2.0 on two ranks, a batch for each bucket",
        second(
            "bucket_config = {'256px': {1: (1.0, 45), 33: (1.0, 12), 129: (1.0, 3)}}\nepochs = 1000\nckpt_every = 200\n"
            "keep_n_latest = 20\naccumulation_steps = 1\nwarmup_steps = 0\n"),
        {.lr = level(5e-5),
         .batch = 6,
         .steps = 2000,
         .sigmas = sigmoid(3),  // 256 tokens a frame: the line's beginning, 1, by the root of 9 frames
         .shapes = "1x256px=90 33x256px=24 129x256px=6",
         .fps = 24,
         .by = hybrid,
         .saved = each(200, 2000),
         .latent = square},
        name,
        2},
       {"2.0 with a warm-up, a LoRA, captions that are dropped",
        second("bucket_config = {'256px': {33: (1.0, 2)}}\nepochs = 100\nwarmup_steps = 100\naccumulation_steps = 3\n"
               "lora_config = dict(r=16, lora_alpha=32, target_modules=['img_attn.qkv'])\nckpt_every = 100\n"
               "dropout_ratio = dict(t5=0.31, clip=0.2)\nema_decay = 0.99\n"),
        {.lr = from(5e-5, 100),
         .batch = 6,
         .steps = 200,
         .sigmas = sigmoid(3),
         .shapes = "33x256px",
         .fps = 24,
         .dropout = 0.31,
         .by = hybrid,
         .latent = square,
         .told =
             {{"lora.rank", "16"}, {"lora.alpha", "32"}, {"diffusion.pooled_dropout", "0.2"}, {"train.ema", "0.99"}}},
        name},
       {"2.0's sequence parallelism: four ranks share a sample",
        second(
            "bucket_config = {'256px': {33: (1.0, 3)}}\nepochs = 100\nplugin = 'hybrid'\nload = 'o/epoch0-global_step9'\n"
            "plugin_config = dict(tp_size=1, pp_size=1, sp_size=4, sequence_parallelism_mode='ring_attn', "
            "enable_sequence_parallelism=True, zero_stage=2)\nkeep_n_latest = 2\nckpt_every = 50\n"),
        {.lr = level(5e-5),
         .batch = 6,
         .steps = 200,
         .by = hybrid,
         .saved = {150, 200},
         .told = {{"mesh.cp", "4"}, {"run.resume", "o/epoch0-global_step9"}}},
        name,
        8},
       {"2.0, what is not there",
        second("bucket_config = {'256px': {33: (1.0, 3)}}\nepochs = 100\nuse_cosine_scheduler = True\nwandb = True\n"
               "start_step = 5\nmodel = dict(type='flux', from_pretrained='w', guidance_embed=True)\n"),
        {.lr = level(5e-5),
         .batch = 3,
         .steps = 400,
         .by = hybrid,
         .refused = "use_cosine_scheduler wandb start_step model.guidance_embed"},
        name},
       {"1.2: a shift by area and frames, a warm-up of a thousand steps",
        first(rflow + "bucket_config = {'240p': {51: (1.0, 3)}}\nlr = 1e-4\nwarmup_steps = 100\nepochs = 400\n"
                      "ckpt_every = 400\nema_decay = 0.99\n"),
        {.lr = from(1e-4, 100),
         .batch = 3,
         .steps = 1600,
         .sigmas = sigmoid(std::sqrt(240.0 * 320 / 512 / 512) * std::sqrt(15.0)),
         .shapes = "51xASPECT_RATIO_240P",
         .fps = 0,
         .dropout = 0.1,
         .by = hybrid,
         .latent = wide,
         .told = {{"train.ema", "0.99"}}},
        name},
       {"1.2: uniform draws, a cosine, one shape",
        first("scheduler = dict(type='rflow')\ndataset = dict(type='VideoTextDataset', data_path='@/clips.csv', "
              "num_frames=16, image_size=(256, 256))\nbatch_size = 4\nlr = 2e-5\nwarmup_steps = None\n"
              "use_cosine_scheduler = True\nepochs = 100\n"),
        {.lr = half_cosine(2e-5, 0, 100),
         .batch = 8,
         .steps = 100,
         .sigmas = uniform(1),
         .shapes = "16x256x256",
         .fps = 0,
         .dropout = 0.1,
         .by = hybrid},
        name,
        2}});
}

// ---- what starts ranks and shards --------------------------------------------------------------------------------------

TEST(ImportMeanings, DeepSpeedsSchedulesAndBatches) {
  const Folder folder;
  const std::string adamw = R"("optimizer": {"type": "AdamW", "params": {"lr": 1e-4, "betas": [0.9, 0.95], "eps": 1e-8,
      "weight_decay": 0.1}}, "gradient_clipping": 0.5, "bf16": {"enabled": true}, )";
  const Optimiser by{.beta2 = 0.95, .decay = 0.1, .clip = 0.5};
  const std::string name = "ds.json";
  hold_all(
      folder,
      {{"WarmupLR, a batch of all eight ranks",
        "{" + adamw + R"("train_batch_size": 64, "train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 4,
                 "zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu"}},
                 "scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": 100, "warmup_type": "linear",
                 "warmup_min_lr": 0, "warmup_max_lr": 1e-4}}})",
        {.lr = ramp(1e-4, 100), .batch = 64, .by = by, .told = {{"plan.states", "host"}, {"plan.gradients", "host"}}},
        name,
        8},
       {"WarmupDecayLR, ranks that share a sample",
        "{" + adamw + R"("train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 4,
                 "sequence_parallel_size": 4, "zero_optimization": {"stage": 3},
                 "scheduler": {"type": "WarmupDecayLR", "params": {"warmup_num_steps": 100, "total_num_steps": 900,
                 "warmup_type": "linear"}}})",
        {.lr = line(1e-4, 100, 900), .batch = 16, .steps = 900, .by = by, .told = {{"mesh.sp", "4"}}},
        name,
        8},
       {"WarmupCosineLR",
        "{" + adamw + R"("train_micro_batch_size_per_gpu": 1, "scheduler": {"type": "WarmupCosineLR", "params": {
                 "total_num_steps": 900, "warmup_num_steps": 100, "warmup_min_ratio": 0, "cos_min_ratio": 0.1}}})",
        {.lr = half_cosine(1e-4, 100, 900, 1e-5), .steps = 900, .by = by},
        name},
       {"what is not there",
        "{" + adamw + R"("train_micro_batch_size_per_gpu": 1, "scheduler": {"type": "OneCycle", "params": {}},
                 "zero_optimization": {"stage": 2, "offload_param": {"device": "cpu"}, "zero_quantized_weights": true}})",
        {.lr = level(1e-4),
         .by = by,
         .refused = "scheduler.type zero_optimization.offload_param zero_optimization.zero_quantized_weights"},
        name}});
}

}  // namespace
}  // namespace tessera::tools::meanings
