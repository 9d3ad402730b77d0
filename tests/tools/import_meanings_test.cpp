// What other trainers' configurations mean: the recipe of each is held against the trainer's own formulas, written down
// here by hand. Rates are read from the schedule, timesteps from the distribution that a job draws from, and what is left
// of the checkpoints from the rules of keeping.
#include <cmath>

#include "tessera/job/experts.h"
#include "tessera/job/given_checks.h"
#include "tessera/recipe/lr_schedule.h"
#include "tools/import_cases.h"

namespace tessera::tools {
namespace {

using Rates = std::vector<std::pair<int64_t, double>>;  ///< of steps, from 0 on
using Steps = std::vector<int64_t>;

struct Optimiser {
  std::string name = "adamw";
  double beta1 = 0.9, beta2 = 0.999, eps = 1e-8, decay = 0.01, clip = 1;
  bool eight = false;  ///< moments of 8 bits
};

struct Meaning {
  Rates lr = {};
  int64_t batch = 1, steps = 0;
  std::vector<double> sigmas = {};  ///< at the quantiles 0.1, 0.3, 0.5, 0.7 and 0.9; none: not held
  std::string shapes = {};          ///< empty: not held
  double fps = 16, dropout = 0;
  int64_t repeats = 1;
  Optimiser by = {};
  Steps saved = {};                  ///< checkpoints that are left at the end
  std::optional<Steps> files = {};   ///< of a LoRA, where others are left
  std::vector<int64_t> latent = {};  ///< whose shift is asked for, where each sample has its own
  std::vector<std::pair<std::string, std::string>> told = {};  ///< as of a Case
};

struct Row {
  const char* what;
  std::string text;  ///< of a command, or of the file `name`; @ is the folder
  Meaning means;
  std::string name = {};
  int ranks = 0;
};

// ---- the formulas of rates and timesteps ------------------------------------------------------------------------------

Rates level(double lr) { return {{0, lr}, {7, lr}, {50, lr}, {100, lr}, {200, lr}}; }
/// Of diffusers and transformers: lr i / w, then the same.
Rates ramp(double lr, int64_t w) { return {{0, 0}, {w / 4, lr / 4}, {w / 2, lr / 2}, {w, lr}, {2 * w, lr}}; }
/// ... then down to 0 after n steps, or by a half cosine to the least rate.
Rates falling(double lr, int64_t w, int64_t n, const std::function<double(double)>& rate_at) {
  Rates rates = {{w / 2, w > 0 ? lr * static_cast<double>(w / 2) / static_cast<double>(w) : lr}};
  for (const int64_t step : {w, w + (n - w) / 4, w + (n - w) / 2, n})
    rates.emplace_back(step, rate_at(static_cast<double>(step - w) / static_cast<double>(n - w)));
  return rates;
}
Rates line(double lr, int64_t w, int64_t n) {
  return falling(lr, w, n, [=](double p) { return lr * (1 - p); });
}
Rates half_cosine(double lr, int64_t w, int64_t n, double least = 0) {
  return falling(lr, w, n, [=](double p) { return least + (lr - least) * (1 + std::cos(p * std::acos(-1.0))) / 2; });
}

constexpr double kQuantiles[] = {0.1, 0.3, 0.5, 0.7, 0.9};
constexpr double kNormal[] = {-1.2815515655446004, -0.5244005127080407, 0, 0.5244005127080407, 1.2815515655446004};

double shifted(double u, double s) { return s * u / (1 + (s - 1) * u); }
double before_shift(double sigma, double s) { return sigma / (s - (s - 1) * sigma); }
/// Between two sigmas after the shift.
std::vector<double> uniform(double s, double low = 0, double high = 1) {
  const double from = before_shift(low, s), to = before_shift(high, s);
  std::vector<double> sigmas;
  for (const double q : kQuantiles) sigmas.push_back(shifted(from + q * (to - from), s));
  return sigmas;
}
std::vector<double> sigmoid(double s, double scale = 1, double mean = 0) {
  std::vector<double> sigmas;
  for (const double z : kNormal) sigmas.push_back(shifted(1 / (1 + std::exp(-(mean + scale * z))), s));
  return sigmas;
}
/// Entries 1000 - i of DiffSynth's table of 1000, from `first` to `last` of its indices, as fractions.
std::vector<double> diffsynth(double first, double last) {
  std::vector<double> sigmas;
  for (const double q : kQuantiles) sigmas.push_back(shifted(1 - last + q * (last - first), 5));
  return sigmas;
}

Steps each(int64_t every, int64_t last, int64_t first = 0) {
  Steps steps;
  for (int64_t s = std::max(first, every); s < last; s += every) steps.push_back(s);
  steps.push_back(last);
  return steps;
}

// ---- what a recipe comes to -------------------------------------------------------------------------------------------

/// Below which a share `q` of the draws lies.
double sigma_at(const diffusion::Options& options, double q) {
  double low = options.window.low, high = options.window.high;
  const double all = diffusion::window_mass(options, options.window), least = options.window.low;
  for (int i = 0; i < 60; ++i) {
    const double middle = (low + high) / 2;
    (diffusion::window_mass(options, {least, middle}) < q * all ? low : high) = middle;
  }
  return low;
}

Steps left(const recipe::Recipe& r, int64_t keep) {
  Steps saves = each(r.checkpoint.every > 0 ? r.checkpoint.every : r.run.steps, r.run.steps);
  if (keep > 0 && static_cast<int64_t>(saves.size()) > keep) saves.erase(saves.begin(), saves.end() - keep);
  return saves;
}

std::string shapes_of(const recipe::Recipe& r) {
  std::string text;
  for (const std::string& bucket : split_list(r.values.at("data.buckets"))) text += (text.empty() ? "" : " ") + bucket;
  if (!text.empty()) return text;
  return std::to_string(r.data.frames) + "x" + std::to_string(r.data.height) + "x" + std::to_string(r.data.width);
}

void hold_optimiser(const recipe::Recipe& r, const Optimiser& by) {
  EXPECT_EQ(r.values.at("train.optimizer"), by.name);
  EXPECT_EQ(r.plan.states.moments == plan::Moments::int8, by.eight);
  if (by.name == "adamw" || by.name == "lion" || by.name == "prodigy") {
    EXPECT_DOUBLE_EQ(r.train.betas[0], by.beta1);
    EXPECT_DOUBLE_EQ(r.train.betas[1], by.beta2);
  }
  if (by.name == "adamw" || by.name == "prodigy") EXPECT_DOUBLE_EQ(r.train.eps, by.eps);
  EXPECT_DOUBLE_EQ(r.train.weight_decay, by.decay);
  EXPECT_DOUBLE_EQ(r.train.clip_norm, by.clip);
}

void hold_timesteps(const recipe::Recipe& r, const Meaning& m) {
  diffusion::Options options = job::timestep_options(r, {});
  if (!m.latent.empty()) options = diffusion::of_size(options, m.latent);
  const bool table = options.timesteps == diffusion::Timesteps::diffsynth ||
                     options.timesteps == diffusion::Timesteps::diffusers ||
                     options.timesteps == diffusion::Timesteps::nvlabs;
  for (size_t i = 0; i < m.sigmas.size(); ++i)  // of a table, up to an entry
    EXPECT_NEAR(sigma_at(options, kQuantiles[i]), m.sigmas[i], table ? 4e-3 : 1e-5) << "quantile " << kQuantiles[i];
}

void hold(const Folder& folder, const Row& row) {
  SCOPED_TRACE(row.what);
  const auto placed = [&](const std::string& with_places) {
    std::string text;
    for (const char c : with_places) c == '@' ? text += folder.path.string() : text += c;
    return text;
  };
  const std::string text = placed(row.text);
  const ImportContext context{.ranks = row.ranks, .folder = folder.path.string()};
  const Translation t =
      row.name.empty() ? import_command(text, context) : import_file(folder.file(row.name, text), context);
  for (const auto& mistake : t.mistakes) ADD_FAILURE() << mistake.option << ": " << mistake.why;
  Meaning m = row.means;
  for (auto& told : m.told) told.first = placed(told.first);
  const auto is_told = [&](const Translation::Remark& remark) {
    return std::ranges::any_of(m.told, [&](const auto& told) { return remark.option.starts_with(told.first); });
  };
  for (const auto& remark : t.refused)
    EXPECT_TRUE(is_told(remark)) << "refused: " << remark.option << ": " << remark.why;
  check({text, m.told}, t);
  const recipe::Recipe r = recipe::load_recipe("", t.overrides());
  for (const std::string& note : job::without_effect(r, r.mesh))
    for (const auto& setting : t.settings)
      EXPECT_FALSE(note.starts_with(setting.key + " = ") && note.find(" has no effect: ") != std::string::npos) << note;
  EXPECT_EQ(r.train.global_batch, m.batch);
  if (m.steps > 0) EXPECT_EQ(r.run.steps, m.steps);
  for (const auto& [step, rate] : m.lr)
    EXPECT_NEAR(recipe::learning_rate(r.lr_schedule, step), rate, 1e-6 * rate + 2e-13) << "rate of step " << step;
  hold_optimiser(r, m.by);
  EXPECT_DOUBLE_EQ(r.diffusion.caption_dropout, m.dropout);
  if (!m.sigmas.empty()) hold_timesteps(r, m);
  if (!m.shapes.empty()) {
    EXPECT_EQ(shapes_of(r), m.shapes);
    EXPECT_DOUBLE_EQ(r.data.fps, m.fps);
    EXPECT_EQ(r.data.repeats, m.repeats);
  }
  if (m.saved.empty()) return;
  EXPECT_EQ(left(r, r.checkpoint.keep), m.saved);
  if (r.lora.on) EXPECT_EQ(left(r, r.checkpoint.keep_exports), m.files.value_or(m.saved)) << "files of the LoRA";
}

void hold_all(const Folder& folder, const std::vector<Row>& rows) {
  for (const Row& row : rows) hold(folder, row);
}

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
        .told = {{"--resume_from_checkpoint", "refused"},
                 {"--fp8_models", "refused"},
                 {"--extra_inputs", "implied"},
                 {"--enable_wandb_log", "refused"}}}},
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
         .told = {{"--with_prior_preservation", "refused"},
                  {"--random_flip", "refused"},
                  {"--weighting_scheme", "refused"},
                  {"--report_to", "refused"},
                  {"--dataset_name", "refused"}}}}});
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
         .told = {{"data.set.1.path", (folder.path / "clips").string()},
                  {"--timestep_sampling", "refused"},
                  {"--weighting_scheme", "refused"},
                  {"--num_timestep_buckets", "implied"},
                  {"--network_args", "refused"},
                  {"--log_with", "refused"},
                  {"--lr_scheduler", "refused"},
                  {"--resume", "refused"}}}},
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
         .told = {{"eval_datasets", "refused"},
                  {"data.set.0.path", (folder.path / "clips").string()},
                  {"data.set.1.path", (folder.path / "clips").string()},
                  {"resolutions", "warned"}}},
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
                  {"directory.0.default_mask_file", "refused"},
                  {"video_clip_mode", "refused"},
                  {"diffusion.loss", "true_huber"},
                  {"diffusion.huber_c", "0.1"},
                  {"diffusion.timesteps", "flux_shift"},
                  {"checkpoint.every_minutes", "30"},
                  {"save_every_n_examples", "refused"},
                  {"adapter.type", "refused"},
                  {"optimizer.type", "refused"},
                  {"monitoring.enable_wandb", "refused"}}},
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
         .told = {{"flow_use_beta_schedule", "refused"},
                  {"lora_type", "implied"},
                  {"lycoris_config", "refused"},
                  {"optimizer", "refused"},
                  {"base_model_precision", "refused"},
                  {"diffusion.loss", "huber"},
                  {"diffusion.huber_c", "0.1"},
                  {"snr_gamma", "refused"},
                  {"masked_loss_probability", "implied"},
                  {"lr_scheduler", "refused"}}},
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
                  {"1.balancing_strategy", "refused"},
                  {"data.set.0.path", "B"},
                  {"data.set.0.loss_weight", "2"},
                  {"data.set.1.path", "C"},
                  {"data.set.1.role", "prior"},
                  {"data.set.1.repeats", "0.5"},
                  {"1.text.tag_dropout_enable", "refused"},
                  {"learning_rate_warmup_steps", "refused"},
                  {"min_noising_strength", "refused"},
                  {"data.mask_suffix", "-masklabel.png"},
                  {"diffusion.unmasked_probability", "0.1"},
                  {"diffusion.unmasked_weight", "0.3"},
                  {"diffusion.loss", "mse=1,true_huber=1"},
                  {"diffusion.huber_c", "0.5"},
                  {"validation", "refused"},
                  {"dynamic_timestep_shifting", "refused"},
                  {"lora.kind", "lokr"}}},
        name}});
}

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
         .told = {{"train.only", "*attn*"},
                  {"--motion_sub_loss", "refused"},
                  {"--random_flip", "refused"},
                  {"--noise_offset", "refused"},
                  {"--initial_grad_norm_ratio", "refused"},
                  {"--report_to", "refused"},
                  {"--train_text_encoder", "refused"}}}}});
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
                  {"data.buckets", "81xASPECT_RATIO_VIDEO_480_MS=6,1xASPECT_RATIO_VIDEO_480_MS=24"},
                  {"train.num_epochs", "refused"}}},
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
         .told = {{"model.micro_condition", "refused"},
                  {"train.joint_training_interval", "refused"},
                  {"train.snr_loss", "refused"},
                  {"train.early_stop_hours", "refused"},
                  {"train.load_from_optimizer", "refused"},
                  {"report_to", "refused"},
                  {"controlnet", "refused"}}},
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
         .told = {{"use_cosine_scheduler", "refused"},
                  {"wandb", "refused"},
                  {"start_step", "refused"},
                  {"model.guidance_embed", "refused"}}},
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
         .told = {{"scheduler.type", "refused"},
                  {"zero_optimization.offload_param", "refused"},
                  {"zero_optimization.zero_quantized_weights", "refused"}}},
        name}});
}

}  // namespace
}  // namespace tessera::tools
