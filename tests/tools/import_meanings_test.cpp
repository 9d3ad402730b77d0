// Configurations of programs that tune released models, held against their own formulas (import_meanings.h).
#include "tools/import_meanings.h"

namespace tessera::tools::meanings {
namespace {

// ---- DiffSynth --------------------------------------------------------------------------------------------------------

/// Its rate is constant (the first five steps, at a third, are told), it never clips, and nothing that it saved goes.
TEST(ImportMeanings, DiffSynth) {
  const Folder folder;
  folder.clips("clips", 12);
  folder.file("zero2.yaml",
              "compute_environment: LOCAL_MACHINE\ndeepspeed_config:\n  gradient_accumulation_steps: 2\n"
              "  offload_optimizer_device: cpu\n  offload_param_device: cpu\n  zero3_init_flag: false\n"
              "  zero_stage: 2\ndistributed_type: DEEPSPEED\nmixed_precision: bf16\nnum_machines: 1\n"
              "num_processes: 3\nuse_cpu: false\n");
  const std::string data =
      "--dataset_base_path @/clips --height 480 --width 832 --num_frames 81 --dataset_repeat 100 --output_path @/out ";
  const std::string lora = "--lora_base_model dit --lora_target_modules q,k,v,o,ffn.0,ffn.2 --lora_rank 32 ";
  const std::string train = "accelerate launch examples/wanvideo/model_training/train.py " + data;
  const Optimiser unclipped{.clip = 0};
  std::vector<Row> rows = {
      {"a LoRA of one GPU",
       train + lora + "--learning_rate 1e-4 --num_epochs 5",
       {.lr = level(1e-4),
        .steps = 6000,
        .sigmas = diffsynth(0, 1),
        .shapes = "81x480x832",
        .fps = 0,
        .repeats = 100,
        .by = unclipped,
        .saved = each(1200, 6000),
        .told = {{"lora.rank", "32"}, {"lora.alpha", "32"}, {"diffusion.weighting", "diffsynth"}}}},
      {"the high-noise expert of A14B, half precise moments",
       train + "--trainable_models dit --learning_rate 1e-5 --num_epochs 2 --weight_decay 0.05 --customized_optimizer "
               "bitsandbytes.optim.AdamW8bit --max_timestep_boundary 0.417 --min_timestep_boundary 0",
       {.lr = level(1e-5),
        .steps = 2400,
        .sigmas = diffsynth(0, 0.417),
        .shapes = "81x480x832",
        .fps = 0,
        .repeats = 100,
        .by = {.decay = 0.05, .clip = 0, .eight = true},
        .saved = {1200, 2400},
        .told = {{"train.mode", "full"}}}},
      {"the second stream of VACE alone",
       train + "--trainable_models vace --num_epochs 1",
       {.lr = level(1e-4),
        .steps = 1200,
        .by = unclipped,
        .saved = {1200},
        .told = {{"train.mode", "full"}, {"train.only", "vace_blocks,vace_patch_embedding"}, {"train.freeze", ""}}}},
      {"the low-noise expert, a LoRA that goes on",
       train + lora +
           "--num_epochs 3 --max_timestep_boundary 1 --min_timestep_boundary 0.417 --save_steps 700 "
           "--lora_checkpoint @/a.safetensors --gradient_accumulation_steps 4",
       {.lr = level(1e-4),
        .batch = 4,
        .steps = 900,
        .sigmas = diffsynth(0.417, 1),
        .shapes = "81x480x832",
        .fps = 0,
        .repeats = 100,
        .by = unclipped,
        .saved = {700, 900}}},
      {"the old form on four GPUs",
       "python examples/wanvideo/train_wan_t2v.py --task train --train_architecture lora --dataset_path @/clips "
       "--output_path @/out --dit_path @/a.safetensors --num_frames 49 --height 480 --width 480 --steps_per_epoch 500 "
       "--max_epochs 10 --learning_rate 2e-4 --accumulate_grad_batches 5 --training_strategy deepspeed_stage_2",
       {.lr = level(2e-4),
        .batch = 20,
        .steps = 250,
        .sigmas = diffsynth(0, 1),
        .shapes = "49x480x480",
        .fps = 0,
        .by = unclipped,
        .told = {{"lora.rank", "16"}, {"lora.alpha", "16"}, {"plan.strategy", "ZeRO-2"}}},
       "",
       4},
      {"an epoch, where nothing says how many",
       train + lora,
       {.lr = level(1e-4), .steps = 1200, .by = unclipped, .saved = {1200}}},
      {"what is not there",
       train + "--trainable_models dit --num_epochs 1 --resume_from_checkpoint @/step-3.safetensors --fp8_models x "
               "--extra_inputs vace_video --enable_wandb_log",
       {.lr = level(1e-4),
        .steps = 1200,
        .by = unclipped,
        .told = {{"--extra_inputs", "implied"}},
        .refused = "--resume_from_checkpoint --fp8_models --enable_wandb_log"}},
      {"a LoRA that is resumed by its weights alone, as it is there",
       train + lora + "--num_epochs 1 --resume_from_checkpoint @/step-3.safetensors",
       {.lr = level(1e-4), .steps = 1200, .by = unclipped, .saved = {1200}, .told = {{"run.resume", ""}}}},
  };
  if (TESSERA_HAS_YAML)
    rows.push_back({"all weights on three GPUs, by its file of ZeRO-2",
                    "accelerate launch --config_file @/zero2.yaml train.py " + data +
                        "--trainable_models dit --learning_rate 1e-5 --num_epochs 2",
                    {.lr = level(1e-5),
                     .batch = 6,
                     .steps = 400,
                     .sigmas = diffsynth(0, 1),
                     .shapes = "81x480x832",
                     .fps = 0,
                     .repeats = 100,
                     .by = unclipped,
                     .saved = {200, 400},
                     .told = {{"plan.strategy", "ZeRO-2"}, {"plan.states", "host"}, {"plan.parameters", ""}}}});
  hold_all(folder, rows);
}

// ---- diffusers --------------------------------------------------------------------------------------------------------

TEST(ImportMeanings, DreamboothOfDiffusers) {
  const Folder folder;
  folder.clips("clips", 12);
  const std::string base =
      "train_dreambooth_lora_sana.py --pretrained_model_name_or_path ./sana --instance_data_dir @/clips "
      "--instance_prompt 'a photo of sks dog' --output_dir @/out ";
  const Optimiser usual{.decay = 1e-4};
  hold_all(
      folder,
      {{"its own values",
        "accelerate launch " + base + "--max_train_steps 1000",
        {.lr = level(1e-4),
         .batch = 4,
         .steps = 1000,
         .sigmas = uniform(3),
         .shapes = "1x512x512",
         .by = usual,
         .saved = {500, 1000},
         .told = {{"lora.rank", "4"}, {"lora.alpha", "4"}, {"data.caption", "a photo of sks dog"}}}},
       {"two GPUs and a cosine",
        "accelerate launch --num_processes 2 " + base +
            "--train_batch_size 1 --gradient_accumulation_steps 4 --max_train_steps 400 --lr_scheduler cosine "
            "--lr_warmup_steps 100 --learning_rate 2e-4 --resolution 1024 --checkpointing_steps 100 "
            "--checkpoints_total_limit 2 --weighting_scheme logit_normal --rank 16 --lora_alpha 8",
        {.lr = half_cosine(2e-4, 100, 400),
         .batch = 8,
         .steps = 400,
         .sigmas = sigmoid(3),
         .shapes = "1x1024x1024",
         .by = usual,
         .saved = {300, 400},
         .files = Steps{100, 200, 300, 400},
         .told = {{"lora.rank", "16"}, {"lora.alpha", "8"}}}},
       {"epochs of a polynomial",
        "accelerate launch " + base +
            "--num_train_epochs 10 --repeats 2 --lr_scheduler polynomial --lr_warmup_steps 0 --lr_power 2 "
            "--adam_beta1 0.8 --adam_weight_decay 0.1 --adam_epsilon 1e-6 --max_grad_norm 0.5",
        {.lr = {{0, 1e-4}, {15, (1e-4 - 1e-7) * 0.5625 + 1e-7}, {30, (1e-4 - 1e-7) / 4 + 1e-7}, {60, 1e-7}},
         .batch = 4,
         .steps = 60,
         .sigmas = uniform(3),
         .shapes = "1x512x512",
         .repeats = 2,
         .by = {.beta1 = 0.8, .eps = 1e-6, .decay = 0.1, .clip = 0.5}}},
       {"an epoch, where nothing says how many",
        "accelerate launch " + base + "--train_batch_size 3 --repeats 5",
        {.lr = level(1e-4), .batch = 3, .steps = 20, .by = usual}},
       {"Prodigy",
        "accelerate launch " + base + "--max_train_steps 500 --optimizer prodigy --learning_rate 1",
        {.lr = level(1),
         .batch = 4,
         .steps = 500,
         .by = {.name = "prodigy", .decay = 1e-4},
         .told = {{"train.bias_correction", "true"}, {"train.safeguard_warmup", "true"}}}},
       {"a rate by the batch, moments of 8 bits, a run that goes on",
        "accelerate launch --num_processes 4 " + base +
            "--max_train_steps 500 --train_batch_size 2 --scale_lr --learning_rate 1e-5 --use_8bit_adam "
            "--lr_scheduler constant_with_warmup --resume_from_checkpoint latest",
        {.lr = ramp(8e-5, 500),
         .batch = 8,
         .steps = 500,
         .by = {.decay = 1e-4, .eight = true},
         .told = {{"run.resume", "auto"}}}},
       {"what is not there",
        "accelerate launch " + base +
            "--max_train_steps 500 --with_prior_preservation --class_prompt dog --random_flip --weighting_scheme mode "
            "--report_to wandb --dataset_name hub/set",
        {.lr = level(1e-4),
         .batch = 4,
         .steps = 500,
         .by = usual,
         .refused = "--with_prior_preservation --random_flip --weighting_scheme --report_to --dataset_name"}}});
}

// ---- musubi-tuner -----------------------------------------------------------------------------------------------------

TEST(ImportMeanings, MusubiTuner) {
  const Folder folder;
  folder.clips("clips", 12);
  const std::string general = "[general]\nresolution = [832, 480]\ncaption_extension = '.txt'\n",
                    set = "[[datasets]]\nvideo_directory = '" + (folder.path / "clips").string() +
                          "'\ncache_directory = 'c'\ntarget_frames = [81]\nframe_extraction = 'head'\n";
  folder.file("one.toml", general + "batch_size = 1\n" + set + "num_repeats = 5\nsource_fps = 30.0\n");
  folder.file("pairs.toml", general + "batch_size = 2\n" + set);
  folder.file("lengths.toml", general + "enable_bucket = true\n" + set.substr(0, set.find("target")) +
                                  "target_frames = [1, 25, 47]\nframe_extraction = 'uniform'\nframe_sample = 4\n");
  folder.file("two.toml", general + set + set);
  folder.file("masked.toml", "[general]\nresolution = [832, 480]\ncaption_extension = '.cap'\n" + set +
                                 "watermark_mask_suffix = '_wmask.png'\n");
  for (const char* expert : {"high", "low"}) folder.file("w/" + std::string(expert) + "_noise_model/a.safetensors", "");
  const std::string base =
      "wan_train_network.py --task t2v-14B --dit d.safetensors --mixed_precision bf16 --sdpa --output_dir @ "
      "--network_module networks.lora_wan --network_dim 32 --network_alpha 16 --learning_rate 2e-4 ";
  const std::string launch = "accelerate launch --num_cpu_threads_per_process 1 ";
  hold_all(
      folder,
      {{"its page's own line",
        launch + base +
            "--dataset_config @/one.toml --timestep_sampling shift --discrete_flow_shift 3.0 --max_train_epochs 16 "
            "--save_every_n_epochs 1 --optimizer_type adamw8bit --fp8_base --fp8_scaled --seed 42 --save_state",
        {.lr = level(2e-4),
         .steps = 960,
         .sigmas = sigmoid(3),
         .shapes = "81x480x832",
         .repeats = 5,
         .by = {.eight = true},
         .saved = each(60, 960),
         .told = {{"lora.rank", "32"}, {"lora.alpha", "16"}, {"run.seed", "42"}, {"lora.base_dtype", "fp8"}}}},
       {"kind sigma, whose shift acts on nothing, on two GPUs",
        launch + "--num_processes 2 " + base +
            "--dataset_config @/pairs.toml --discrete_flow_shift 5 --gradient_accumulation_steps 4 --lr_scheduler cosine "
            "--lr_warmup_steps 0.0625 --save_every_n_steps 400 --max_grad_norm 0",
        {.lr = half_cosine(2e-4, 100, 1600),
         .batch = 16,
         .steps = 1600,
         .sigmas = uniform(1),
         .shapes = "81x480x832",
         .fps = 0,
         .by = {.clip = 0},
         .saved = each(400, 1600)}},
       {"a window of uniform draws, and windows of saves",
        launch + base +
            "--dataset_config @/one.toml --timestep_sampling uniform --min_timestep 200 --max_timestep 700 "
            "--max_train_steps 1000 --save_every_n_steps 100 --save_last_n_steps 300 --save_last_n_steps_state 100 "
            "--save_state --lr_scheduler constant_with_warmup --lr_warmup_steps 40",
        {.lr = ramp(2e-4, 40),
         .steps = 1000,
         .sigmas = uniform(1, 0.2, 0.7),
         .shapes = "81x480x832",
         .repeats = 5,
         .saved = {900, 1000},
         .files = Steps{700, 800, 900, 1000}}},
       {"a number of epochs, and the last; all lengths in buckets",
        launch + base +
            "--dataset_config @/lengths.toml --max_train_epochs 5 --save_every_n_epochs 1 --save_last_n_epochs 2 "
            "--timestep_sampling sigmoid --sigmoid_scale 1.5",
        {.lr = level(2e-4),
         .steps = 60,
         .sigmas = sigmoid(1, 1.5),
         .shapes = "1xAREA_832x480 25xAREA_832x480 45xAREA_832x480",
         .fps = 0,
         .saved = {36, 48, 60},
         .told = {{"data.clip_mode", "uniform"}, {"data.clip_samples", "4"}, {"data.clip_lengths", "every"}}}},
       {"a window of saves that the end does not fall on, and a window of indices",
        launch + base +
            "--dataset_config @/one.toml --max_train_steps 100 --save_every_n_steps 7 --save_last_n_steps 20 "
            "--min_timestep 0 --max_timestep 417 --optimizer_args weight_decay=0.1 betas=(0.9,0.95) eps=1e-6 "
            "--lr_scheduler cosine_with_min_lr --lr_scheduler_min_lr_ratio 0.1",
        {.lr = half_cosine(2e-4, 0, 100, 2e-5),
         .steps = 100,
         .sigmas = uniform(1, 0.583, 1),
         .by = {.beta2 = 0.95, .eps = 1e-6, .decay = 0.1},
         .saved = {84, 91, 98, 100}}},
       {"both experts of A14B",
        launch + base.substr(0, base.find("--task")) +
            "--task t2v-A14B --dit @/w/low_noise_model/a.safetensors --dit_high_noise @/w/high_noise_model/a.safetensors "
            "--timestep_boundary 875 --network_module networks.lora_wan --dataset_config @/one.toml --timestep_sampling "
            "shift --discrete_flow_shift 12 --preserve_distribution_shape --optimizer_type lion --lr_scheduler linear",
        {.lr = line(2e-6, 0, 1600),
         .steps = 1600,
         .sigmas = sigmoid(12),
         .by = {.name = "lion", .beta2 = 0.99},
         .told = {{"experts.boundary", "0.875"}, {"lora.rank", "4"}, {"lora.alpha", "1"}}}},
       {"LoRA+",
        launch + base +
            "--dataset_config @/one.toml --timestep_sampling shift --discrete_flow_shift 3.0 --max_train_steps 100 "
            "--network_args loraplus_lr_ratio=4 verbose=True",
        {.lr = level(2e-4), .steps = 100, .sigmas = sigmoid(3), .told = {{"lora.plus_ratio", "4"}}}},
       {"an alpha of 0, which is the rank",
        launch + std::string(base).replace(base.find("alpha 16"), 8, "alpha 0") +
            "--dataset_config @/one.toml --timestep_sampling shift --discrete_flow_shift 3.0 --max_train_steps 100",
        {.lr = level(2e-4), .steps = 100, .sigmas = sigmoid(3), .told = {{"lora.rank", "32"}, {"lora.alpha", "auto"}}}},
       {"a LoKr",
        launch + base.substr(0, base.find("--network_module")) +
            "--network_module networks.lokr --network_dim 8 --learning_rate 2e-4 --dataset_config @/one.toml "
            "--timestep_sampling shift --discrete_flow_shift 3.0 --max_train_steps 100 --network_args factor=8 "
            "rank_dropout=None",
        {.lr = level(2e-4),
         .steps = 100,
         .sigmas = sigmoid(3),
         .told = {{"lora.kind", "lokr"}, {"lora.factor", "8"}, {"lora.rank", "8"}, {"lora.alpha", "1"}}}},
       {"what is not there",
        launch + base +
            "--dataset_config @/two.toml --timestep_sampling krea2_shift --weighting_scheme snr --num_timestep_buckets 1 "
            "--network_args conv_dim=4 --log_with wandb --resume @/state --lr_scheduler rex",
        {.batch = 1,
         .told = {{"data.set.1.path", (folder.path / "clips").string()}, {"--num_timestep_buckets", "implied"}},
         .refused = "--timestep_sampling --weighting_scheme --network_args --log_with --lr_scheduler --resume"}},
       {"a mixture in strata, its clean part, and a weight of the loss",
        launch + base +
            "--dataset_config @/masked.toml --max_train_steps 100 --timestep_sampling logsnr --logit_mean -6 --logit_std 2 "
            "--weighting_scheme cosmap --num_timestep_buckets 4",
        {.lr = level(2e-4),
         .steps = 100,
         .sigmas = sigmoid(1, 1, 3),  // of a mean -m / 2 and a deviation s / 2
         .told = {{"diffusion.timesteps", "logsnr"},
                  {"diffusion.weighting", "cosmap"},
                  {"diffusion.strata", "4"},
                  {"data.mask_suffix", "_wmask.png"},
                  {"data.caption_ext", ".cap"},
                  {"diffusion.normalize_masked_area_loss", "true"}}}},
       {"the density of indices that count from the noise",
        launch + base +
            "--dataset_config @/one.toml --max_train_steps 100 --timestep_sampling sigma --weighting_scheme logit_normal "
            "--logit_mean 0.5 --logit_std 1.5 --mode_scale 1",
        {.lr = level(2e-4), .steps = 100, .sigmas = sigmoid(1, 1.5, -0.5)}},
       {"a shift by the tokens of a frame",
        launch + base +
            "--dataset_config @/one.toml --max_train_steps 100 --timestep_sampling flux_shift --sigmoid_scale 0.5 "
            "--weighting_scheme mode --discrete_flow_shift 3",
        {.lr = level(2e-4),
         .steps = 100,
         .sigmas = sigmoid(std::exp(0.5 + 0.65 * (30 * 52 - 256) / 3840.0), 0.5),
         .latent = {16, 21, 60, 104},
         .told = {{"diffusion.weighting", ""}}}}});
}

// ---- diffusion-pipe ---------------------------------------------------------------------------------------------------

TEST(ImportMeanings, DiffusionPipe) {
  const Folder folder;
  const std::string clips = "[[directory]]\npath = '" + folder.clips("clips", 12) + "'\n";
  folder.file("set.toml", "resolutions = [512]\nframe_buckets = [1, 33]\n" + clips + "num_repeats = 10\n");
  folder.file("two.toml", "resolutions = [[832, 480], [416, 240]]\nframe_buckets = [33]\n" + clips + clips);
  folder.file("sizes.toml", "size_buckets = [[832, 480, 81], [512, 512, 33]]\ncaption_prefix = 'x '\n" + clips +
                                "mask_path = 'm'\ndefault_mask_file = 'd.png'\ncache_shuffle_num = 3\n"
                                "cache_shuffle_delimiter = '; '\n");
  const auto main = [](const std::string& set, const std::string& rest) {
    return "output_dir = 'o'\ndataset = '" + set + ".toml'\nmicro_batch_size_per_gpu = 1\n" + rest;
  };
  const std::string wan = "[model]\ntype = 'wan'\nckpt_path = 'w'\ndtype = 'bfloat16'\n",
                    lora = "[adapter]\ntype = 'lora'\nrank = 32\ndtype = 'bfloat16'\n";
  folder.file("run.toml",
              main("set",
                   "epochs = 100\npipeline_stages = 2\ngradient_accumulation_steps = 4\ngradient_clipping = 1.0\n"
                   "warmup_steps = 100\nsave_every_n_epochs = 20\nactivation_checkpointing = 'unsloth'\n") +
                  wan + lora +
                  "[optimizer]\ntype = 'adamw_optimi'\nlr = 2e-5\nbetas = [0.9, 0.99]\n"
                  "weight_decay = 0.01\neps = 1e-8\n");
  const std::string adamw = "[optimizer]\ntype = 'adamw_optimi'\nlr = 2e-5\nweight_decay = 0.0\n";
  // the last step of its warm-up and those behind: it begins at lr / w there
  const auto behind = [](double lr, int64_t w) { return Rates{{w, lr}, {w + 1, lr}, {2 * w, lr}, {4 * w, lr}}; };
  hold_all(
      folder,
      {{"two stages on four GPUs",
        "NCCL_P2P_DISABLE=1 deepspeed --num_gpus=4 train.py --deepspeed --config @/run.toml --resume_from_checkpoint",
        {.lr = behind(2e-5, 100),
         .batch = 8,
         .steps = 1500,
         .sigmas = sigmoid(1),
         .shapes = "1x512x512 33x512x512",
         .repeats = 10,
         .by = {.beta2 = 0.99},
         .saved = each(300, 1500),
         .told = {{"mesh.pp", "2"}, {"lora.rank", "32"}, {"lora.alpha", "32"}}}},
       {"the high-noise expert, uniform draws that are cut after their shift",
        main("set", "max_steps = 500\nsave_every_n_steps = 250\ngradient_clipping = 0.5\n") + wan +
            "timestep_sample_method = 'uniform'\nshift = 5\nmin_t = 0.875\nmax_t = 1\n" + lora +
            "[optimizer]\ntype = 'AdamW8bitKahan'\nlr = 1e-4\n",
        {.lr = level(1e-4),
         .steps = 500,
         .sigmas = uniform(5, 0.875, 1),
         .shapes = "1x512x512 33x512x512",
         .repeats = 10,
         .by = {.clip = 0.5, .eight = true},
         .saved = {250, 500},
         .told = {{"plan.masters", "split"}}},
        "high.toml"},
       {"a LoKr, whose alpha is its rank",
        main("set", "max_steps = 500\n") + wan +
            "[adapter]\ntype = 'lokr'\nrank = 16\ndecompose_factor = 8\nrank_dropout = 0\n" + adamw,
        {.lr = level(2e-5),
         .steps = 500,
         .by = {.decay = 0},
         .told = {{"lora.kind", "lokr"}, {"lora.rank", "16"}, {"lora.alpha", "16"}, {"lora.factor", "8"}}},
        "lokr.toml"},
       {"all weights, a line after its warm-up",
        main("set", "max_steps = 500\nsave_every_n_steps = 250\nlr_scheduler = 'linear'\nuncond_fraction = 0.1\n") +
            wan + "shift = 3\nsigmoid_scale = 1.3\n" + adamw,
        {.lr = line(2e-5, 0, 500),
         .steps = 500,
         .sigmas = sigmoid(3, 1.3),
         .dropout = 0.1,
         .by = {.decay = 0},
         .saved = {250, 500},
         .told = {{"train.mode", "full"}}},
        "full.toml"},
       {"a constant rate, which its warm-up stands before too",
        main("set", "max_steps = 500\nlr_scheduler = 'constant'\nwarmup_steps = 50\nsave_every_n_steps = 100\n") + wan +
            lora + adamw,
        {.lr = behind(2e-5, 50),
         .steps = 500,
         .by = {.decay = 0},
         .saved = each(100, 500),
         .told = {{"train.schedule", "constant_with_warmup"}}},
        "constant.toml"},
       {"two data sets, two areas, a held-out set",
        main("two",
             "epochs = 10\neval_every_n_epochs = 1\n"
             "eval_datasets = [{name = 'held', config = 'held.toml'}]\n") +
            wan + lora + adamw,
        {.lr = level(2e-5),
         .steps = 240,
         .shapes = "33x480x832 33x240x416",
         .by = {.decay = 0},
         .told = {{"data.set.0.path", (folder.path / "clips").string()},
                  {"data.set.1.path", (folder.path / "clips").string()},
                  {"resolutions", "warned"}},
         .refused = "eval_datasets"},
        "two.run.toml"},
       {"sizes by hand, and what is not there",
        main("sizes",
             "max_steps = 10\nvideo_clip_mode = 'single_middle'\nhuber_delta = 0.1\npseudo_huber_c = 1\n"
             "checkpoint_every_n_minutes = 30\n"
             "save_every_n_examples = 9\n") +
            wan +
            "flux_shift = true\n[adapter]\ntype = 'oft'\nrank = 8\n[optimizer]\ntype = 'automagic'\nlr = 1e-6\n"
            "[monitoring]\nenable_wandb = true\n",
        {.lr = level(1e-6),
         .steps = 10,
         .sigmas = sigmoid(std::exp(0.5 + 0.65 * (30 * 52 - 256) / 3840.0)),
         .shapes = "81x480x832 33x512x512",
         .latent = {16, 21, 60, 104},
         .told = {{"data.caption_prefix", "x "},
                  {"data.caption_shuffle", "3"},
                  {"data.caption_delimiter", "; "},
                  {"data.mask_path", "m"},
                  {"data.mask_resize", "nearest_exact"},
                  {"diffusion.loss", "true_huber"},
                  {"diffusion.huber_c", "0.1"},
                  {"diffusion.timesteps", "flux_shift"},
                  {"checkpoint.every_minutes", "30"}},
         .refused =
             "directory.0.default_mask_file video_clip_mode save_every_n_examples adapter.type optimizer.type monitoring.enable_wandb"},
        "sizes.run.toml"},
       {"vectors decay with matrices, which is told",
        main("set", "max_steps = 500\n") + wan + "[optimizer]\ntype = 'adamw'\nlr = 2e-5\nweight_decay = 0.02\n",
        {.lr = level(2e-5), .steps = 500, .by = {.decay = 0.02}, .told = {{"optimizer.weight_decay", "warned"}}},
        "decay.toml"}});
}

// ---- SimpleTuner ------------------------------------------------------------------------------------------------------

TEST(ImportMeanings, SimpleTuner) {
  const Folder folder;
  const std::string clips = "\"instance_data_dir\": \"" + folder.clips("clips", 12) + "\"";
  const auto videos = [&](const std::string& rest) {
    return R"({"id": "v", "type": "local", "dataset_type": "video", "caption_strategy": "textfile", )" + clips +
           R"(, "video": {"num_frames": 81}, "resolution": 480, "resolution_type": "pixel_area")" + rest + "}";
  };
  folder.file("one.json", "[" + videos(R"(, "repeats": 2)") + "]");
  folder.file("two.json", "[" + videos("") + "," + videos(R"(, "caption_shuffle": {"enable": true})") +
                              R"(, {"id": "held", "dataset_type": "eval", "type": "local"}])");
  folder.file("held.json", "[" + videos(R"(, "instance_prompt": "sks", "prepend_instance_prompt": true,
            "caption_shuffle": {"enable": true, "count": 3, "position_start": 1, "split_on": "comma"})") +
                               R"(, {"id": "h", "dataset_type": "eval", "type": "local", "instance_data_dir": "H"},
            {"id": "m", "dataset_type": "conditioning", "conditioning_type": "mask", "type": "local",
             "instance_data_dir": "M"}])");
  const auto config = [](const std::string& set, const std::string& rest) {
    return R"({"model_family": "wan", "pretrained_model_name_or_path": "W", "output_dir": "o", "mixed_precision": "bf16",
        "data_backend_config": ")" +
           set + ".json\", " + rest + "}";
  };
  const std::string name = "config.json", shapes = "81xAREA_480x480";
  const std::string usual = R"("model_type": "lora", "learning_rate": 1e-4, "max_grad_norm": 1.0, )";
  hold_all(
      folder,
      {{"a LoRA, epochs of three passes",
        config("one", usual + R"("lora_rank": 16, "num_train_epochs": 50, "max_train_steps": 0, "train_batch_size": 2,
            "gradient_accumulation_steps": 3, "optimizer": "adamw_bf16", "lr_scheduler": "cosine", "lr_warmup_steps": 100,
            "checkpoint_step_interval": 100, "checkpoints_total_limit": 2)"),
        {.lr = half_cosine(1e-4, 100, 300),
         .batch = 6,
         .steps = 300,
         .sigmas = sigmoid(3),
         .shapes = shapes,
         .dropout = 0.1,
         .repeats = 3,
         .saved = {200, 300},
         .told = {{"lora.rank", "16"}, {"lora.alpha", ""}}},
        name},
       {"all weights on four GPUs, two of which share a sample",
        config("one",
               R"("model_type": "full", "learning_rate": 2e-5, "max_train_steps": 400, "context_parallel_size": 2,
            "train_batch_size": 1, "gradient_accumulation_steps": 4, "optimizer": "ao-adamw8bit", "optimizer_beta2": 0.95,
            "adam_epsilon": 1e-6, "adam_weight_decay": 0.05, "max_grad_norm": 0.1, "lr_scheduler": "constant_with_warmup",
            "lr_warmup_steps": 40, "flow_use_uniform_schedule": true, "flow_schedule_shift": 0,
            "caption_dropout_probability": 0, "checkpoint_step_interval": 100)"),
        {.lr = ramp(2e-5, 40),
         .batch = 8,
         .steps = 400,
         .sigmas = uniform(1),
         .shapes = shapes,
         .repeats = 3,
         .by = {.beta2 = 0.95, .eps = 1e-6, .decay = 0.05, .clip = 0.1, .eight = true},
         .saved = each(100, 400)},
        name,
        4},
       {"Lion, a wider sigmoid and an average",
        config("one", usual + R"("max_train_steps": 100, "optimizer": "optimi-lion", "lr_scheduler": "constant",
            "flow_sigmoid_scale": 1.5, "flow_schedule_shift": 5, "use_ema": true, "ema_decay": 0.99, "lora_alpha": 8,
            "checkpoints_total_limit": 3, "checkpoint_step_interval": 10)"),
        {.lr = level(1e-4),
         .steps = 100,
         .sigmas = sigmoid(5, 1.5),
         .dropout = 0.1,
         .by = {.name = "lion", .beta2 = 0.99},
         .saved = {80, 90, 100},
         .told = {{"train.ema", "0.99"}, {"lora.alpha", "8"}}},
        name},
       {"two data sets, a held-out one, captions that are changed",
        config("two", usual + R"("max_train_steps": 100, "lr_scheduler": "linear", "lr_warmup_steps": 0,
            "eval_steps_interval": 10, "resume_from_checkpoint": "latest")"),
        {.lr = line(1e-4, 0, 100),
         .steps = 100,
         .shapes = shapes,
         .dropout = 0.1,
         .told = {{"data.set.1.path", (folder.path / "clips").string()},
                  {"data.set.1.caption_shuffle", "1"},
                  {"@/two.json, entry 2 (held)", "warned"},
                  {"eval_steps_interval", "warned"},
                  {"run.resume", "auto"}}},
        name},
       {"a polynomial of a LoRA that goes on, its base in 8 bits",
        config("one",
               usual +
                   R"("max_train_steps": 100, "lr_scheduler": "polynomial", "lr_power": 2, "init_lora": "a.safetensors",
            "base_model_precision": "int8-quanto", "lr_warmup_steps": 0)"),
        {.lr = {{0, 1e-4}, {50, (1e-4 - 1e-7) / 4 + 1e-7}, {100, 1e-7}},
         .steps = 100,
         .dropout = 0.1,
         .told = {{"lora.init", "a.safetensors"}, {"lora.base_dtype", "int8"}}},
        name},
       {"what is not there",
        config("one", usual + R"("max_train_steps": 100, "flow_use_beta_schedule": true, "flow_beta_schedule_alpha": 2,
            "lora_type": "lycoris", "lycoris_config": "l.json", "optimizer": "soap", "base_model_precision": "int4-torchao",
            "loss_type": "huber", "huber_c": 0.1, "snr_gamma": 5, "masked_loss_probability": 0.5, "lr_scheduler": "sine")"),
        {.steps = 100,
         .dropout = 0.1,
         .told = {{"lora_type", "implied"},
                  {"diffusion.loss", "huber"},
                  {"diffusion.huber_c", "0.1"},
                  {"masked_loss_probability", "implied"}},
         .refused = "flow_use_beta_schedule lycoris_config optimizer base_model_precision snr_gamma lr_scheduler"},
        name},
       {"masks, held-out clips and variants of captions",
        config("held", usual + R"("max_train_steps": 100, "lr_scheduler": "constant", "eval_steps_interval": 50,
            "masked_loss_probability": 0.75, "loss_type": "smooth_l1", "huber_schedule": "snr")"),
        {.lr = level(1e-4),
         .steps = 100,
         .dropout = 0.1,
         .told = {{"eval.path", "H"},
                  {"eval.every", "50"},
                  {"data.mask_path", "M"},
                  {"diffusion.unmasked_probability", "0.25"},
                  {"diffusion.loss", "smooth_l1"},
                  {"diffusion.huber_schedule", "snr"},
                  {"data.caption_prefix", "sks "},
                  {"data.caption_shuffle", "3"},
                  {"data.keep_tokens", "1"}}},
        name}});
}

// ---- ai-toolkit -------------------------------------------------------------------------------------------------------

TEST(ImportMeanings, AiToolkit) {
  if (!TESSERA_HAS_YAML) GTEST_SKIP() << "this build reads no YAML";
  const Folder folder;
  const std::string clips = folder.clips("clips", 12), name = "job.yaml", of = "config.process.0.";
  for (const char* expert : {"high", "low"}) folder.file("w/" + std::string(expert) + "_noise_model/a.safetensors", "");
  const auto job = [&](const std::string& network, const std::string& sets, const std::string& train,
                       const std::string& rest = "") {
    return "job: extension\nconfig:\n  name: a\n  process:\n  - type: diffusion_trainer\n    training_folder: o\n" +
           network + "    datasets:\n" + sets +
           "    train: {steps: 2000, lr: 1e-4, noise_scheduler: flowmatch, dtype: bf16, " + train +
           "}\n    model: {name_or_path: '@/w', arch: 'wan22_14b'}\n" + rest;
  };
  const std::string lora = "    network: {type: lora, linear: 32, linear_alpha: 16}\n",
                    set = "    - {folder_path: '" + clips + "', caption_ext: txt, ",
                    videos = set + "num_frames: 41, shrink_video_to_frames: false, resolution: [512]}\n";
  hold_all(
      folder,
      {{"a LoRA of videos at two areas",
        job(lora, set + "caption_dropout_rate: 0.05, num_frames: 41, resolution: [512, 768]}\n",
            "batch_size: 2, gradient_accumulation: 4, optimizer: adamw8bit, optimizer_params: {weight_decay: 1e-4}",
            "    save: {save_every: 250}\n"),
        {.lr = level(1e-4),
         .batch = 16,
         .steps = 2000,
         .sigmas = sigmoid(1),
         .shapes = "41xAREA_512x512 41xAREA_768x768",
         .fps = 24,
         .dropout = 0.05,
         .by = {.decay = 1e-4, .eight = true},
         .saved = each(250, 2000, 1000),
         .told = {{of + "datasets.0.resolution", "warned"},
                  {"shrink_video_to_frames is not given", "warned"},
                  {"lora.rank", "32"},
                  {"lora.alpha", "16"}}},
        name,
        2},
       {"both experts in turns, uniform draws",
        job(lora, videos, "timestep_type: linear, switch_boundary_every: 10, optimizer: adamw",
            "    save: {save_every: 500, max_step_saves_to_keep: 2}\n"),
        {.lr = level(1e-4),
         .steps = 2000,
         .sigmas = uniform(1),
         .shapes = "41xAREA_512x512",
         .fps = 24,
         .saved = {1500, 2000},
         .told = {{"experts.turn", "10"}}},
        name},
       {"a LoKr, which is whole",
        job("    network: {type: lokr, lokr_full_rank: true, lokr_factor: 8, linear: 32, linear_alpha: 32}\n", videos,
            "timestep_type: linear, optimizer: adamw"),
        {.lr = level(1e-4),
         .steps = 2000,
         .sigmas = uniform(1),
         .told = {{"lora.kind", "lokr"}, {"lora.full_matrix", "true"}, {"lora.factor", "8"}}},
        name},
       {"a LoKr by rank",
        job("    network: {type: lokr, lokr_full_rank: false, linear: 16}\n", videos,
            "timestep_type: linear, optimizer: adamw"),
        {.lr = level(1e-4),
         .steps = 2000,
         .sigmas = uniform(1),
         .told = {{"lora.kind", "lokr"}, {"lora.rank", "16"}, {"lora.alpha", "1"}}},
        name},
       {"all weights",
        job("", videos,
            "lr_scheduler: constant_with_warmup, lr_scheduler_params: {warmup_steps: 100}, max_grad_norm: 0.5, "
            "optimizer: adamw, optimizer_params: {betas: [0.9, 0.99], eps: 1e-6, weight_decay: 0.1}"),
        {.lr = ramp(1e-4, 100),
         .steps = 2000,
         .sigmas = sigmoid(1),
         .by = {.beta2 = 0.99, .eps = 1e-6, .decay = 0.1, .clip = 0.5},
         .saved = {1000, 2000},
         .told = {{"train.mode", "full"}}},
        name},
       {"two data sets, a trigger, held-out clips, a cosine",
        job(lora, videos + videos, "lr_scheduler: cosine, optimizer: prodigy",
            "    trigger_word: sks\n    validation_config: {validation_items: 4}\n"),
        {.lr = half_cosine(1e-4, 0, 2000),
         .steps = 2000,
         .fps = 24,
         .by = {.name = "prodigy"},
         .told = {{"data.set.1.path", (folder.path / "clips").string()},
                  {"data.trigger", "sks"},
                  {of + "validation_config", "refused"}}},
        name},
       {"pictures of one shape, an average, all saves",
        job(lora, set + "resolution: 1024, buckets: false, num_repeats: 3, fps: 16}\n",
            "batch_size: 4, ema_config: {use_ema: true, ema_decay: 0.99}",
            "    save: {save_every: 500, max_step_saves_to_keep: 0}\n"),
        {.lr = level(1e-4),
         .batch = 4,
         .steps = 2000,
         .sigmas = sigmoid(1),
         .shapes = "1x1024x1024",
         .repeats = 3,
         .saved = each(500, 2000),
         .told = {{"train.ema", "0.99"}}},
        name},
       {"what is to stay of a class, targets moved away from those without a prompt",
        job(lora, videos,
            "batch_size: 2, timestep_type: linear, diff_output_preservation: true, diff_output_preservation_class: "
            "person, diff_output_preservation_multiplier: 0.5, do_guidance_loss: true, guidance_loss_target: [2, 4.5], "
            "do_guidance_loss_cfg_zero: true, guidance_loss_schedule: sigma, do_differential_guidance: true",
            "    trigger_word: sks\n"),
        {.lr = level(1e-4),
         .batch = 4,
         .steps = 2000,
         .sigmas = uniform(1),
         .told = {{"train.preserve", "class"},
                  {"train.preserve_class", "person"},
                  {"train.preserve_weight", "0.5"},
                  {"train.guidance_target", "2:4.5"},
                  {"train.guidance_zero", "true"},
                  {"train.guidance_schedule", "sigma"},
                  {"train.guidance_weight", "3"}}},
        name},
       {"what is to stay without a prompt, differences alone",
        job(lora, videos,
            "timestep_type: linear, blank_prompt_preservation: true, blank_prompt_preservation_multiplier: 2.0, "
            "do_differential_guidance: true, differential_guidance_scale: 4.0, guidance_loss_target: 5.0"),
        {.lr = level(1e-4),
         .batch = 2,
         .steps = 2000,
         .sigmas = uniform(1),
         .told = {{"train.preserve", "blank"},
                  {"train.preserve_weight", "2.0"},
                  {of + "train.do_differential_guidance", "implied"},
                  {of + "train.differential_guidance_scale", "implied"},
                  {of + "train.guidance_loss_target", "implied"}}},
        name},
       {"targets moved away three times as far, of another loss",
        job(lora, videos,
            "timestep_type: linear, loss_type: mae, do_guidance_loss: true, do_differential_guidance: true"),
        {.lr = level(1e-4),
         .steps = 2000,
         .sigmas = uniform(1),
         .told = {{"train.guidance_target", "3"}, {of + "train.do_differential_guidance", "refused"}}},
        name},
       {"what is not there",
        job("    network: {type: locon, linear: 8}\n",
            videos.substr(0, videos.size() - 2) + ", mask_path: m, mask_min_value: 0.1, flip_x: true}\n",
            "timestep_type: weighted, loss_type: mae, optimizer: automagic, diff_output_preservation: true, "
            "min_denoising_steps: 100, content_or_style: style"),
        {.steps = 2000,
         .told = {{of + "network.type", "refused"},
                  {"data.mask_path", "m"},
                  {"data.mask_min_value", "0.1"},
                  {"data.mask_resize", "nearest"},
                  {"diffusion.normalize_masked_area_loss", "true"},
                  {of + "datasets.0.flip_x", "refused"},
                  {of + "train.timestep_type", "refused"},
                  {"diffusion.loss", "mae"},
                  {of + "train.optimizer", "refused"},
                  {of + "train.diff_output_preservation", "refused"},
                  {of + "train.min_denoising_steps", "refused"},
                  {of + "train.content_or_style", "refused"}}},
        name}});
}

// ---- OneTrainer -------------------------------------------------------------------------------------------------------

TEST(ImportMeanings, OneTrainer) {
  const Folder folder;
  const std::string clips = folder.clips("clips", 12), name = "one.json";
  const auto config = [&](const std::string& rest, const std::string& of = R"("balancing": 2.0)") {
    return R"({"model_type": "SANA", "base_model_name": "S", "concepts": [{"path": ")" + clips +
           R"(", "balancing_strategy": "REPEATS", )" + of + "}], " + rest + "}";
  };
  const std::string lora = R"("training_method": "LORA", "lora_rank": 16, "learning_rate": 3e-4, "epochs": 100, )";
  hold_all(
      folder,
      {{"a LoRA, backups of every tenth epoch",
        config(lora + R"("resolution": "1024", "batch_size": 4, "backup_after": 10, "backup_after_unit": "EPOCH",
            "optimizer": {"optimizer": "ADAMW", "beta1": 0.9, "beta2": 0.999, "eps": 1e-8, "weight_decay": 0.01})"),
        {.lr = ramp(3e-4, 200),
         .batch = 4,
         .steps = 600,
         .sigmas = uniform(1),
         .shapes = "1xAREA_1024x1024",
         .repeats = 2,
         .saved = each(60, 600),
         .told = {{"lora.rank", "16"}, {"lora.alpha", "1"}}},
        name},
       {"all weights between two strengths, which count before the shift",
        config(R"("training_method": "FINE_TUNE", "epochs": 100, "learning_rate": 1e-5, "batch_size": 4,
            "learning_rate_scheduler": "COSINE", "learning_rate_warmup_steps": 0, "clip_grad_norm": 0.5,
            "optimizer": {"optimizer": "LION_8BIT", "beta1": 0.95, "beta2": 0.98, "weight_decay": 0.1},
            "timestep_distribution": "UNIFORM", "timestep_shift": 3.0, "min_noising_strength": 0.2,
            "max_noising_strength": 0.8, "save_every": 100, "save_every_unit": "STEP",
            "text_encoder": {"train": false, "dropout_probability": 0.1})"),
        {.lr = half_cosine(1e-5, 0, 600),
         .batch = 4,
         .steps = 600,
         .sigmas = uniform(3, 0.6 / 1.4, 2.4 / 2.6),
         .dropout = 0.1,
         .by = {.name = "lion", .beta1 = 0.95, .beta2 = 0.98, .decay = 0.1, .clip = 0.5, .eight = true},
         .saved = each(100, 600)},
        name},
       {"a logit-normal of another mean and width, two GPUs, rolling backups",
        config(lora + R"("batch_size": 1, "gradient_accumulation_steps": 2, "learning_rate_scheduler": "LINEAR",
            "learning_rate_warmup_steps": 0.25, "timestep_distribution": "LOGIT_NORMAL", "noising_bias": 0.3,
            "noising_weight": 0.2, "timestep_shift": 3.0, "backup_after": 100, "backup_after_unit": "STEP",
            "rolling_backup": true, "rolling_backup_count": 2)"),
        {.lr = line(3e-4, 150, 600),
         .batch = 4,
         .steps = 600,
         .sigmas = sigmoid(3, 1.2, 0.3),
         .repeats = 2,
         .saved = {500, 600},
         .files = each(100, 600)},
        name,
        2},
       {"a cosine that begins again",
        config(lora + R"("batch_size": 4, "learning_rate_scheduler": "COSINE_WITH_HARD_RESTARTS",
            "learning_rate_warmup_steps": 0, "learning_rate_cycles": 2, "continue_last_backup": true)"),
        {.lr = {{0, 3e-4}, {75, 1.5e-4 * (1 + std::sqrt(0.5))}, {150, 1.5e-4}, {300, 3e-4}, {450, 1.5e-4}},
         .batch = 4,
         .steps = 600,
         .told = {{"run.resume", "auto"}}},
        name},
       {"a hundred epochs, where nothing says how many",
        config(R"("training_method": "LORA", "batch_size": 4, "learning_rate_warmup_steps": 0)"),
        {.lr = level(3e-6), .batch = 4, .steps = 600},
        name},
       {"an average of every fifth step",
        config(lora + R"("batch_size": 4, "ema": "GPU", "ema_decay": 0.995, "ema_update_step_interval": 5,
            "learning_rate_warmup_steps": 0, "optimizer": {"optimizer": "ADAMW_8BIT"})"),
        {.lr = level(3e-4), .batch = 4, .steps = 600, .by = {.eight = true}, .told = {{"train.ema", "0.99899799"}}},
        name},
       {"what is not there",
        R"({"model_type": "SANA", "base_model_name": "S", "concepts": [{"path": "A", "type": "VALIDATION"},
            {"path": "B", "balancing_strategy": "SAMPLES", "loss_weight": 2.0, "text": {"tag_dropout_enable": true}},
            {"path": "C", "type": "PRIOR_PREDICTION", "balancing": 0.5}], "learning_rate_warmup_steps": 0.1, "timestep_distribution": "LOGIT_NORMAL",
            "min_noising_strength": 0.1, "masked_training": true, "validation": true, "huber_strength": 1.0, "huber_delta": 0.5, "unmasked_weight": 0.3,
            "dynamic_timestep_shifting": true, "peft_type": "LOKR", "training_method": "LORA"})",
        {.told = {{"eval.path", "A"},
                  {"data.set.0.path", "B"},
                  {"data.set.0.loss_weight", "2"},
                  {"data.set.1.path", "C"},
                  {"data.set.1.role", "prior"},
                  {"data.set.1.repeats", "0.5"},
                  {"data.mask_suffix", "-masklabel.png"},
                  {"diffusion.unmasked_probability", "0.1"},
                  {"diffusion.unmasked_weight", "0.3"},
                  {"diffusion.loss", "mse=1,true_huber=1"},
                  {"diffusion.huber_c", "0.5"},
                  {"lora.kind", "lokr"}},
         .refused =
             "1.balancing_strategy 1.text.tag_dropout_enable learning_rate_warmup_steps min_noising_strength validation dynamic_timestep_shifting"},
        name}});
}

}  // namespace
}  // namespace tessera::tools::meanings
