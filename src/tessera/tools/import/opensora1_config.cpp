// The Python configurations of Open-Sora 1.2 and 1.3 and the flags of their train.py over them (--data-path X.csv).
#include <algorithm>
#include <filesystem>

#include "tessera/base/check.h"
#include "tessera/families/frames/frame_masks.h"
#include "tessera/families/stdit.h"
#include "tessera/tools/import/dialects.h"
#include "tessera/tools/import/opensora_parts.h"
#include "tessera/tools/import/parts.h"

namespace tessera::tools {

namespace {

constexpr const char* kThird = "opensora1.3";
constexpr const char* kNotNeeded = "not needed: buffers are planned, pinned and filled ahead";
constexpr const char* kReports = "RUN/metrics.jsonl, TensorBoard's file and RUN/report.html are always written";

bool nothing_given(const std::string& value) { return value.empty() || value == "null" || value == "None"; }

/// A release by its name on the hub, which no folder has.
bool is_published(const std::string& value) {
  std::error_code none;
  return value.starts_with("hpcai-tech/") && !std::filesystem::exists(value, none);
}

std::string download(const std::string& name, const std::string& key) {
  return "a release: hf download " + name + " --local-dir DIR, and set " + key +
         " to that folder; to plan, its preset is enough";
}

/// Whether the model's folder is here, and says what the model is.
bool folder_tells(const Translator& t) {
  const std::string folder = t.value("model.from_pretrained");
  std::error_code none;
  return !nothing_given(folder) && std::filesystem::exists(std::filesystem::path(folder) / "config.json", none);
}

// ---- the model ----------------------------------------------------------------------------------------------------

/// 1.3 differs from 1.2 by its autoencoder, or by the windows that its model names.
bool is_third(const Translator& t) {
  return t.value("vae.type") == "OpenSoraVAE_V1_3" || t.has("model.kernel_size") || t.has("model.use_spatial_rope");
}

void stdit_denoiser(Translator& t) {
  const bool third = is_third(t), large = t.value("model.type") == "STDiT3-3B/2";
  const std::string preset = third ? kThird : large ? "opensora1.2-3b" : "opensora1.2";
  if (!t.has("model.type")) return;
  if (folder_tells(t)) return t.set("model.family", "stdit", {"model.type"}, "its config.json says the rest");
  t.set("model.family", "stdit", {"model.type"}, preset);
  t.assume("model.preset", preset, third ? "its autoencoder or its windows are those of 1.3" : "1.2's");
  if (third && large) t.refuse("model.type", "1.3 has STDiT3-XL/2 alone");
  if (third && !(t.has("model.kernel_size") && t.flag("model.use_spatial_rope")))
    t.refuse("model.type",
             "1.3 without windows and rotated rows has no preset: set model.path to a folder whose "
             "config.json has kernel_size null");
}

void stdit_window(Translator& t, const Given& g) {
  const std::vector<std::string> sides = split_list(g.value);
  if (folder_tells(t)) return t.imply(g.name, "the config.json of its folder counts");
  if (sides == std::vector<std::string>{"8", "8", "-1"}) return t.imply(g.name, "those of 1.3");
  t.refuse(g.name,
           "1.3's preset has windows of 8 x 8 places over all frames: set model.path to a folder whose "
           "config.json has others");
}

void stdit_autoencoder(Translator& t, const Given& g) {
  const std::string preset = g.value == "OpenSoraVAE_V1_2"   ? "opensora1.2-vae"
                             : g.value == "OpenSoraVAE_V1_3" ? "opensora1.3-vae"
                                                             : "";
  const auto there = families::stdit().autoencoders;
  const std::string file = t.value("vae.from_pretrained");
  std::vector<std::string> options = {g.name};
  if (t.has("vae.from_pretrained")) options.push_back("vae.from_pretrained");
  if (preset.empty() || std::ranges::find(there, preset) == there.end()) {
    for (const std::string& option : options)
      t.refuse(option, preset.empty()
                           ? "OpenSoraVAE_V1_2 and OpenSoraVAE_V1_3 are those of these models"
                           : "this version has no " + preset + ": encode the latents elsewhere, data.latents");
    return;
  }
  const bool published = is_published(file);
  t.set("data.vae", nothing_given(file) || published ? preset : file, options);
  if (published) t.warn("vae.from_pretrained", download(file, "data.vae"));
}

// ---- training -----------------------------------------------------------------------------------------------------

void drawn_timesteps(Translator& t) {
  const std::string by_size = "scheduler.use_timestep_transform", method = "scheduler.sample_method";
  const bool transformed = t.flag(by_size), normal = t.value(method, "uniform") == "logit-normal";
  std::vector<std::string> options;
  for (const std::string& option : {by_size, method})
    if (t.has(option)) options.push_back(option);
  if (transformed && !normal) {
    t.refuse(by_size, "with it timesteps are drawn by sample_method = \"logit-normal\"");
    if (t.has(method)) t.imply(method, "use_timestep_transform is refused with it");
    return;
  }
  const std::string value = transformed ? "by_area" : normal ? "logit_normal" : "uniform";
  if (options.empty())
    t.assume("diffusion.timesteps", value, "this trainer's");
  else
    t.set("diffusion.timesteps", value, options);
  if (t.has(method) && !t.is_answered(method)) t.imply(method, "use_timestep_transform was read with it");
}

/// "random": 0.05, ... of `table`, as KIND=RATIO.
void mask_ratios(Translator& t) {
  const std::string prefix = "mask_ratios.";
  std::vector<std::string> options;
  std::string kinds;
  double sum = 0;
  for (const Given& g : t.given()) {
    if (!g.name.starts_with(prefix)) continue;
    const std::string kind = g.name.substr(prefix.size());
    const double ratio = t.number(g.name, 0);
    if (ratio < 0) throw UserError(Exit::usage, "import", g.shown() + ": expected a ratio of at least 0", "correct it");
    sum += ratio;
    if (kind == "identity" || ratio == 0) {
      t.imply(g.name, ratio == 0 ? "its ratio is 0" : "the rest of the samples has no frame that is given");
      continue;
    }
    options.push_back(g.name);
    kinds += (kinds.empty() ? "" : ",") + (kind == "intepolate" ? "interpolate" : kind) + "=" + number_text(ratio);
  }
  constexpr double kRounding = 1e-6;
  if (sum > 1 + kRounding)
    throw UserError(Exit::usage, "import", "mask_ratios sum to " + number_text(sum), "they sum to at most 1");
  if (t.has("mask_ratios")) t.imply("mask_ratios", "no frames are given");
  if (!options.empty())
    t.set("diffusion.mask_ratios", kinds, options, "kinds of given frames by their share of the samples");
  else if (!is_third(t))
    t.assume("diffusion.image_share", "0", "no frames are given");
}

/// Our name of a kind. An unknown one stays, and is refused with the rest of the table.
std::string known_beside(const std::string& name) {
  try {
    return families::beside_kind(name);
  } catch (const UserError&) {
    return name;
  }
}

/// Frames beside the noisy ones, of 1.3, whose trainer tells the model also that none is given; of 1.2 there are none.
void mask_types(Translator& t) {
  const std::string types = "mask_types", drops = "scheduler.drop_condition";
  const auto same = [](const std::string& name) { return name; };
  const bool third = is_third(t);
  const bool given =
      third && set_opensora_weights(t, types, "diffusion.mask_types", families::beside_kinds(), known_beside);
  if (given) set_opensora_weights(t, drops, "diffusion.drop_condition", families::drop_kinds(), same);
  if (third && !given)
    t.assume("diffusion.mask_types", "none=1", "this trainer's: the model is told that none is given");
  for (const Given& g : t.given()) {
    if (t.is_answered(g.name) || !(g.name.starts_with(types) || g.name.starts_with(drops))) continue;
    if (third)
      t.imply(g.name, "no frames are given");
    else
      t.refuse(g.name, "1.2's models are given no frames beside the noisy ones: mask_ratios gives some without noise");
  }
}

void recomputes(Translator& t) {
  if (t.has("grad_checkpoint"))
    t.set("plan.activations", t.flag("grad_checkpoint") ? "recompute" : "keep", {"grad_checkpoint"});
  else
    t.assume("plan.activations", "keep", "this trainer's");
}

/// One shape and one batch, of the data sets that have no buckets.
void one_shape(Translator& t) {
  const bool buckets = t.has("bucket_config");
  for (const char* option : {"dataset.num_frames", "dataset.image_size", "batch_size"}) {
    const Given* given = t.find(option);
    if (given && buckets)
      t.imply(option, "bucket_config says it");
    else if (given &&
             (nothing_given(given->value) || given->value.starts_with("null") || given->value.starts_with("None")))
      t.imply(option, "none is given");
    else if (given && option == std::string("dataset.num_frames"))
      t.set("data.frames", given->value, {option});
    else if (given && option == std::string("dataset.image_size"))
      t.set("data.size", given->value, {option});
    else if (given)
      t.set_batch(std::max<int64_t>(t.integer(option, 1), 0) *
                      std::clamp<int64_t>(t.integer("accumulation_steps", 1), 1, 1'000'000),
                  {option}, "samples of a rank");
  }
}

void warm_up(Translator& t) {
  const std::string warmup = "warmup_steps", cosine = "use_cosine_scheduler";
  const bool falls = t.flag(cosine);
  if (t.has(cosine) && falls)
    t.set("train.schedule", "cosine", {cosine});
  else if (t.has(cosine))
    t.imply(cosine, "the rate is constant after the warm-up");
  if (!t.has(warmup)) return;
  if (nothing_given(t.value(warmup))) return t.imply(warmup, "there is none");
  t.set("train.warmup_steps", t.value(warmup), {warmup});
  if (!falls) t.assume("train.schedule", "opensora_linear_warmup", "this trainer's");
}

void opensora1_together(Translator& t) {
  set_opensora_plugin(t);
  stdit_denoiser(t);
  set_opensora_buckets(t);
  one_shape(t);
  drawn_timesteps(t);
  mask_ratios(t);
  mask_types(t);
  recomputes(t);
  warm_up(t);
  set_opensora_epochs(t);
  if (t.has("accumulation_steps")) t.imply("accumulation_steps", "counted into train.global_batch");
  if (t.has("vae.from_pretrained") && !t.is_answered("vae.from_pretrained"))
    t.refuse("vae.from_pretrained", "vae.type says of what");
  t.assume("diffusion.caption_dropout", "0.1", "the model's class_dropout_prob");
  t.assume("train.ema", "0.9999", "this trainer's");
  t.assume("train.lr", "1e-4", "this trainer's");
  t.assume("train.eps", "1e-8", "HybridAdam's");
  t.assume("train.weight_decay", "0", "this trainer's");
  t.assume("train.clip_norm", "0", "this trainer's");
  t.assume("plan.compute_dtype", "bf16", "this trainer's dtype");
  t.assume("data.fps", "0", "clips keep their rate, which the model is told");
}

std::vector<Rule> opensora1_model_rules() {
  const char* const kOwnFile = "its weights tell, or its config.json";
  std::vector<Rule> rules = {
      joined(
          "model.type",
          "`model.family`: STDiT3-XL/2 and STDiT3-3B/2, whose preset is that of 1.3 with its autoencoder or windows, else that of 1.2; none where model.from_pretrained is a folder with a config.json"),
      by("model.from_pretrained", "`model.path`; a warning for the name of a release",
         [](Translator& t, const Given& g) {
           if (nothing_given(g.value)) return t.imply(g.name, "none is given");
           if (is_published(g.value)) return t.warn(g.name, download(g.value, "model.path"));
           t.set("model.path", g.value, {g.name});
         }),
      only("model.qk_norm", {"true"}, "they are normed", "queries and keys of these models are normed", Takes::perhaps),
      only("model.pred_sigma", {"true"}, "the head's second half is read by nothing", "the presets have it",
           Takes::perhaps),
      only("model.drop_path", {"0", "0.0"}, "none is dropped", "blocks are never skipped"),
      only("model.skip_temporal", {"false"}, "none is skipped", "the temporal blocks belong to the model",
           Takes::perhaps),
      only("model.only_train_temporal", {"false"}, "all blocks train", "blocks cannot be frozen by themselves",
           Takes::perhaps),
      only("model.skip_y_embedder", {"false"}, "the model has its text projection",
           "captions are encoded here, not read from that trainer's features", Takes::perhaps),
      by(
          "model.freeze_y_embedder", "false: nothing; true: a warning",
          [](Translator& t, const Given& g) {
            if (t.flag(g.name))
              t.warn(g.name, "the projection of texts trains with the rest: no key freezes it by itself");
            else
              t.imply(g.name, "it trains");
          },
          Takes::perhaps),
      sets("model.class_dropout_prob", "diffusion.caption_dropout"),
      by("model.kernel_size", "8, 8, -1: 1.3's windows; else refused", stdit_window),
      only("model.use_spatial_rope", {"true"}, "1.3's", "1.3's preset rotates rows and columns", Takes::perhaps),
      by("vae.type", "OpenSoraVAE_V1_2, OpenSoraVAE_V1_3: `data.vae`", stdit_autoencoder),
      joined("vae.from_pretrained", "`data.vae`"),
      only("vae.micro_frame_size", {"17"}, "the autoencoder's piece", "pieces of 17 frames are there"),
      only("vae.z_channels", {"16"}, "the autoencoder's", "16 channels are there"),
      only("vae.normalization", {"video"}, "the autoencoder's", "latents are normed by channel"),
      only("vae.temporal_overlap", {"true"}, "the autoencoder's", "pieces overlap by a frame", Takes::perhaps),
      only("text_encoder.type", {"t5"}, "T5", "T5 is the encoder of these models"),
      by("text_encoder.from_pretrained", "`data.text_encoder`",
         [](Translator& t, const Given& g) {
           set_opensora_encoder(t, g, "t5-v1_1-xxl", "t5-v1_1-xxl", "data.text_encoder", "data.tokenizer");
         }),
      sets("text_encoder.model_max_length", "model.config.model_max_length"),
      only("scheduler.type", {"rflow"}, "rectified flow, data - noise", "rectified flow is the objective"),
      joined("scheduler.use_timestep_transform", "`diffusion.timesteps = by_area`", Takes::perhaps),
      joined("scheduler.sample_method", "`diffusion.timesteps`: logit-normal logit_normal, uniform uniform"),
      only("scheduler.use_discrete_timesteps", {"false"}, "timesteps are numbers", "timesteps are not rounded",
           Takes::perhaps),
      only("scheduler.transform_scale", {"1", "1.0"}, "1", "the shift is that of the published trainers"),
      only("scheduler.loc", {"0", "0.0"}, "0", "the published distribution is there"),
      only("scheduler.scale", {"1", "1.0"}, "1", "the published distribution is there"),
      only("scheduler.num_timesteps", {"1000"}, "1000", "1000 is there"),
      sets("scheduler.num_sampling_steps", "sample.steps"),
      sets("scheduler.cfg_scale", "sample.guidance"),
      implied("drop_condition", "it belongs to scheduler.drop_condition"),
      only("model.adapt_16ch", {"false"}, "the file's channels are the model's",
           "weights of 1.2 are not adapted to 1.3", Takes::perhaps),
      implied("model.use_cond", "1.3 has it", Takes::perhaps),
      of_table(joined("scheduler.drop_condition", "`diffusion.drop_condition`, KIND=WEIGHT"), Covers::both),
      of_table(joined("mask_ratios", "`diffusion.mask_ratios`, KIND=RATIO"), Covers::both),
      of_table(joined("mask_types", "1.3 `diffusion.mask_types`, KIND=WEIGHT; 1.2 refused"), Covers::both),
      only("scheduler.x_cond_weight", {"1", "1.0"}, "1: all frames count alike",
           "given frames count as the others in the loss"),
      only("model.v2v_noise_min_weight", {"0.1"}, "0.1", "noisy frames have a share of 0.1 to 0.3"),
      only("model.v2v_noise_max_weight", {"0.3"}, "0.3", "noisy frames have a share of 0.1 to 0.3"),
  };
  for (const char* key : {"hidden_size", "num_heads", "depth", "in_channels", "mlp_ratio", "patch_size",
                          "caption_channels", "model_max_length", "input_sq_size"})
    rules.push_back(by(std::string("model.") + key, std::string("`model.config.") + key + "`",
                       [key](Translator& t, const Given& g) {
                         std::string value;
                         for (const std::string& item : split_list(g.value)) value += (value.empty() ? "" : ",") + item;
                         t.set(std::string("model.config.") + key, value, {g.name});
                       }));
  for (const char* key : {"model.enable_flash_attn", "model.enable_layernorm_kernel",
                          "model.enable_sequence_parallelism", "text_encoder.shardformer"})
    rules.push_back(implied(key, "the kernels are chosen here", Takes::perhaps));
  for (const char* key : {"model.force_huggingface", "vae.force_huggingface", "vae.local_files_only", "vae.cache_dir",
                          "text_encoder.local_files_only", "text_encoder.cache_dir", "vae_out_channels",
                          "text_encoder_output_dim", "text_encoder_model_max_length", "model_max_length"})
    rules.push_back(implied(key, kOwnFile, Takes::perhaps));
  for (const char* key : {"vae.micro_batch_size", "vae.micro_batch_size_2d", "vae.use_tiled_conv3d", "vae.tile_size"})
    rules.push_back(implied(key, "data.vae_tile: tiles where memory asks for them", Takes::perhaps));
  return rules;
}

std::vector<Rule> opensora1_training_rules() {
  std::vector<Rule> rules = {
      only("dataset.type", {"VariableVideoTextDataset", "VideoTextDataset"}, "clips and pictures with their texts",
           "clips and pictures with texts are there: features of that trainer are not read"),
      sets("dataset.data_path", "data.path"),
      only("dataset.transform_name", {"resize_crop"}, "scaled and cut at the centre", "resize_crop is there"),
      only("dataset.frame_interval", {"1"}, "every frame", "clips are resampled to data.fps, not by an interval"),
      joined("dataset.num_frames", "without bucket_config `data.frames`"),
      joined("dataset.image_size", "without bucket_config `data.size`"),
      only("dataset.dummy_text_feature", {"false"}, "texts are encoded", "it belongs to features of that trainer",
           Takes::perhaps),
      joined(
          "bucket_config",
          "`data.buckets`, shapes of the tables ASPECT_RATIO_144P and so on, and `train.global_batch` of the smallest batch"),
      joined("batch_size", "without bucket_config `train.global_batch`"),
      only("load_text_features", {"false"}, "texts are encoded",
           "its .bin files hold batches with captions behind the model's text projection", Takes::perhaps),
      only("load_video_features", {"false"}, "clips are encoded", "its .bin files hold whole batches, drawn once",
           Takes::perhaps),
      only("noise_augmentation", {"false"}, "none", "noise on the pixels of clips is not there", Takes::perhaps),
      refused("noise_disable_threshold", "it belongs to noise_augmentation"),
      sets("lr", "train.lr"),
      sets("adam_eps", "train.eps"),
      sets("weight_decay", "train.weight_decay"),
      joined("warmup_steps", "`train.warmup_steps`, with `train.schedule = opensora_linear_warmup`"),
      implied("warmup", "that trainer reads warmup_steps alone"),
      joined("use_cosine_scheduler", "true: `train.schedule = cosine`", Takes::perhaps),
      sets("grad_clip", "train.clip_norm"),
      sets("ema_decay", "train.ema"),
      joined("accumulation_steps", "its share of `train.global_batch`"),
      joined("epochs", "`run.steps`, counted in the data set"),
      sets("seed", "run.seed"),
      sets("outputs", "run.out"),
      sets("ckpt_every", "checkpoint.every"),
      by("load", "`run.resume`",
         [](Translator& t, const Given& g) {
           if (nothing_given(g.value)) return t.imply(g.name, "the run begins at its start");
           t.set("run.resume", g.value, {g.name});
         }),
      by(
          "start_from_scratch", "with `load` refused",
          [](Translator& t, const Given& g) {
            if (!t.has("load") || is_false(g.value)) return t.imply(g.name, "it belongs to load");
            t.refuse(g.name, "a run goes on at the step of its checkpoint: set model.path to it for its weights alone");
          },
          Takes::perhaps),
      by("from_pretrained_lora", "`lora.init`",
         [](Translator& t, const Given& g) {
           if (nothing_given(g.value)) return t.imply(g.name, "none is given");
           t.assume("train.mode", "lora", g.name + " is given");
           t.set("lora.init", g.value, {g.name});
         }),
      by("dtype", "`plan.compute_dtype`", set_compute_type),
      joined("plugin", "`plan.strategy`: zero1 and zero1-seq shard_states, zero2 and zero2-seq shard_grad_op"),
      joined("plugin_config.sp_size", "with zero1-seq and zero2-seq `mesh.sp`"),
      joined("grad_checkpoint", "`plan.activations`: true recompute, false keep", Takes::perhaps),
      only("wandb", {"false"}, "off", "metrics are not uploaded; TensorBoard's file is written", Takes::perhaps),
  };
  for (const char* key : {"noise_prob", "noise_strength"})
    rules.push_back(implied(key, "it belongs to noise_augmentation"));
  for (const char* key :
       {"num_workers", "num_bucket_build_workers", "prefetch_factor", "plugin_config.reduce_bucket_size_in_m"})
    rules.push_back(implied(key, kNotNeeded, Takes::perhaps));
  for (const char* key : {"log_every", "record_time"}) rules.push_back(implied(key, kReports, Takes::perhaps));
  return rules;
}

/// The table of sizes that "144p", "512" or "720p_16d" names.
std::string ratio_table(const std::string& resolution) {
  constexpr std::string_view kRounded = "_16d";
  const bool rounded = resolution.ends_with(kRounded);
  const std::string bare = rounded ? resolution.substr(0, resolution.size() - kRounded.size()) : resolution;
  const std::vector<std::pair<std::string, std::string>> names = {
      {"144p", "144P"}, {"240p", "240P"},    {"360p", "360P"}, {"480p", "480P"},  {"720p", "720P"},
      {"2k", "2K"},     {"1080p", "1080P"},  {"4k", "4K"},     {"256", "256_40"}, {"512", "512_40"},
      {"2048", "2048"}, {"1024", "1024_40"}, {"2880", "2880"}};
  const auto found = std::ranges::find(names, bare, &std::pair<std::string, std::string>::first);
  if (found == names.end())
    throw UserError(
        Exit::usage, "import", "bucket_config: '" + resolution + "' is no resolution of this trainer",
        "it has 144p, 240p, 360p, 480p, 720p, 1080p, 2k, 4k, 256, 512, 1024, 2048, 2880, in 1.3 also with _16d");
  return "ASPECT_RATIO_" + found->second + (rounded ? "_16D" : "");
}

/// "51xASPECT_RATIO_144P=0.4,0.67,20" of a bucket 144p, 51 frames and (0.4, 0.33), 20: its second probability is that to
/// keep the frames, where 2.0 has that to pass over them.
std::string bucket_item(const Given& g) {
  constexpr size_t kResolution = std::string_view("bucket_config.").size();
  const size_t dot = g.name.rfind('.');
  const std::string table = ratio_table(g.name.substr(kResolution, dot - kResolution));
  std::string shares;
  std::vector<std::string> numbers = split_list(g.value);
  if (numbers.size() == 2 && numbers[0].find(',') != std::string::npos) {
    const std::string keep = numbers[0].substr(numbers[0].find(',') + 1);
    numbers[0].resize(numbers[0].find(','));
    char* end = nullptr;
    const double kept = std::strtod(keep.c_str(), &end);
    if (keep.empty() || *end != 0 || !(kept >= 0 && kept <= 1))
      throw UserError(Exit::usage, "import", g.shown() + ": expected ((share, share that keeps the frames), batch)",
                      "correct it");
    numbers.insert(numbers.begin() + 1, number_text(1 - kept));
  }
  for (const std::string& number : numbers) shares += (shares.empty() ? "" : ",") + number;
  return g.name.substr(dot + 1) + "x" + table + "=" + shares;
}

}  // namespace

bool is_opensora1(const std::vector<Given>& given) {
  return std::ranges::any_of(given, [](const Given& g) {
    return g.name.starts_with("scheduler.") || g.name.starts_with("text_encoder.") ||
           (g.name == "model.type" && g.value.starts_with("STDiT3"));
  });
}

void opensora1_options(std::vector<Given>& given) {
  const std::string prefix = "bucket_config.";
  std::string buckets;
  for (Given& g : given) {
    if (g.name == "model.type" && g.value != "STDiT3-XL/2" && g.value != "STDiT3-3B/2")
      throw UserError(Exit::usage, "import",
                      g.shown() + ": of this trainer's models STDiT3-XL/2 and STDiT3-3B/2 of 1.2 and 1.3 are there",
                      "tessera list presets lists what can train");
    for (const char* of_plugin : {"sp_size", "reduce_bucket_size_in_m"})
      if (g.name == of_plugin) g.typed = g.name, g.name = std::string("plugin_config.") + of_plugin;
    if (g.name.starts_with(prefix) && g.name.rfind('.') >= prefix.size()) buckets += bucket_item(g) + kListSeparator;
  }
  std::erase_if(given, [&](const Given& g) { return g.name.starts_with(prefix); });
  if (!buckets.empty()) given.push_back({"bucket_config", buckets});
}

std::string opensora1_key(const std::string& flag) {
  for (const auto& [name, key] : {std::pair("data_path", "dataset.data_path"),
                                  {"ckpt_path", "model.from_pretrained"},
                                  {"ckpt_path_lora", "from_pretrained_lora"},
                                  {"load_lora", "from_pretrained_lora"},
                                  {"flash_attn", "model.enable_flash_attn"},
                                  {"layernorm_kernel", "model.enable_layernorm_kernel"},
                                  {"force_huggingface", "model.force_huggingface"}})
    if (flag == name) return key;
  return flag;
}

const Dialect& opensora1_config() {
  static const Dialect dialect = [] {
    Dialect d{"Open-Sora 1.2's and 1.3's configurations and their train.py",
              "a configuration of Open-Sora 1",
              {},
              opensora1_together};
    for (const auto& rules : {opensora1_model_rules(), opensora1_training_rules()})
      d.rules.insert(d.rules.end(), rules.begin(), rules.end());
    return d;
  }();
  return dialect;
}

}  // namespace tessera::tools
