// Every setting acts: a run with another value differs in its bits, its plan or its files, or is refused. A key without a row
// here has one in kElsewhere that says which test shows it.
#include <gtest/gtest.h>

#include <set>

#include "matrix.h"
#include "program.h"

namespace tessera::testing {
namespace {

namespace fs = std::filesystem;
using Flags = std::vector<std::string>;

Flags operator+(Flags a, const Flags& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

constexpr const char* kLearnt = "a model that was trained a little";
const Flags kNone = {}, kLion = {"--train.optimizer", "lion"}, kAdafactor = {"--train.optimizer", "adafactor"},
            kRelative = kAdafactor + Flags{"--train.relative_step", "true"}, kCame = {"--train.optimizer", "came"},
            kMuon = {"--train.optimizer", "muon"},
            kProdigy = {"--train.optimizer", "prodigy", "--train.lr", "1", "--train.d0", "1e-4"},
            kAverage = {"--train.ema", "0.9"}, kPower = kAverage + Flags{"--train.ema_power", "0.7"},
            kHalf = {"--plan.compute_dtype", "fp16", "--train.loss_scale", "1e10"},
            // The head of a new model is zero, and adapters of it learn nothing: kLearnt stands for a model that was
    // trained a little.
    kLora = {"--train.mode", "lora", "--model.path", kLearnt, "--lora.rank", "4", "--train.lr", "1e-2"},
            kExperts = {"--experts.train", "both"}, kGate = {"--experts.router", "gate"},
            kSoft = kGate + Flags{"--experts.hard", "false"},
            kSample = {"--sample.every", "2", "--sample.steps", "2", "--sample.prompts", "a"},
            kGuided = kSample + Flags{"--sample.guidance", "3"}, kSaves = {"--checkpoint.every", "1"},
            kOneSave = kSaves + Flags{"--checkpoint.keep", "1"}, kEval = {"--eval.share", "0.4", "--eval.every", "2"},
            kHuber = {"--diffusion.loss", "huber"}, kNormal = {"--diffusion.timesteps", "logit_normal"},
            kShuffle = {"--data.caption_shuffle", "3"}, kTwo = {"--train.global_batch", "2"};
Flags of(const char* schedule) {
  return {"--train.schedule", schedule, "--train.warmup_steps", "1", "--train.decay_steps", "2"};
}

struct Key {
  const char *key, *value;
  Flags with = kNone;  ///< what it needs to have an effect
  int ranks = 1;
  bool refused = false;  ///< that it is refused is what it does
};

const std::vector<Key>& keys() {
  static const std::vector<Key> all = {
      {"run.seed", "8"},
      {"run.steps", "3"},
      {"model.config.num_layers", "2"},
      {"train.global_batch", "3"},
      {"train.lr", "1e-2"},
      {"train.lr_scale", "sqrt"},
      {"train.lr_base_batch", "16", {"--train.lr_scale", "linear"}},
      {"train.schedule", "linear"},
      {"train.warmup_steps", "3"},
      {"train.eta_min", "5e-4", of("cosine_min")},
      {"train.num_cycles", "2.5", of("cosine_with_restarts")},
      {"train.power", "3", of("polynomial")},
      {"train.stable_steps", "2", of("wsd")},
      {"train.decay_steps", "5", {"--train.schedule", "wsd"}},
      {"train.betas", "0.5,0.6"},
      {"train.betas", "0.5,0.6", kLion},
      {"train.betas", "0.9,0.999,0.5", kCame},
      {"train.betas", "0.5,0.6", kProdigy},
      {"train.eps", "0.1"},
      {"train.eps", "0.1", kProdigy},
      {"train.factored_eps", "1e-4,1e-3", kAdafactor},
      {"train.factored_eps", "1e-30,0.1", kRelative},
      {"train.factored_eps", "1e-30,1e-2", kCame},
      {"train.relative_step", "true", kAdafactor},
      {"train.warmup_init", "true", kRelative},
      {"train.factored_beta1", "0.9", kAdafactor},
      {"train.decoupled_decay", "true", kLion},
      {"train.d0", "1e-3", kProdigy},
      {"train.d_coef", "3", kProdigy},
      {"train.growth_rate", "1.01", kProdigy + Flags{"--run.steps", "8"}},  // its first growth has no bound
      {"train.beta3", "0.5", kProdigy},
      {"train.bias_correction", "true", kProdigy},
      {"train.safeguard_warmup", "true", kProdigy + Flags{"--train.warmup_steps", "8"}},
      {"train.momentum", "0.5", kMuon},
      {"train.nesterov", "false", kMuon},
      {"train.ns_steps", "3", kMuon},
      {"train.ns_coefficients", "2,-1.5,0.5", kMuon},
      {"train.ns_dtype", "fp32", kMuon},
      {"train.adjust_lr_fn", "original", kMuon},
      {"train.muon_hidden_layers", "ffn", kMuon},
      {"train.muon_adam_layers", "ffn", kMuon},
      {"train.muon_adam_lr", "1e-2", kMuon},
      {"train.betas", "0.5,0.6", kMuon},
      {"train.eps", "0.1", kMuon},
      {"train.weight_decay", "0.9", kMuon},
      {"train.weight_decay", "0.9"},
      {"train.weight_decay", "0.9", kLion},
      {"train.weight_decay", "0.9", kCame},
      {"train.weight_decay", "0.9", kAdafactor},
      {"train.weight_decay", "0.9", kProdigy},
      {"train.clip_norm", "0.01"},
      {"train.loss_scale", "1e9", kHalf},
      {"train.loss_scale_window", "1", {"--plan.compute_dtype", "fp16"}},
      {"train.optimizer", "adam8bit"},
      {"train.ema", "0.5"},
      {"train.ema_after", "3", kAverage},
      {"train.ema_power", "0.9", kAverage},
      {"train.ema_inv_gamma", "3", kPower},
      {"train.ema_min_decay", "0.8", kAverage},
      {"train.mode", "lora", {"--model.init", "random"}},
      {"train.micro_batch", "1"},
      {"lora.rank", "2", kLora + Flags{"--lora.alpha", "4"}},
      {"lora.alpha", "9", kLora},
      {"lora.targets", "q,v", kLora},
      {"lora.dropout", "0.4", kLora},
      {"lora.rank_dropout", "0.4", kLora},
      {"lora.module_dropout", "0.4", kLora},
      {"train.preserve", "blank", kLora},
      {"train.guidance_target", "3"},
      {"train.guidance_weight", "0.5", {"--train.guidance_target", "3"}},
      {"lora.rslora", "true", kLora + Flags{"--lora.alpha", "9"}},
      {"lora.dora", "true", kLora},
      {"lora.base_dtype", "int8", kLora},
      {"lora.export", "kohya", kLora},
      {"lora.plus_ratio", "4", kLora},
      {"lora.kind", "loha", kLora},
      {"lora.factor", "4", kLora + Flags{"--lora.kind", "lokr"}},
      {"lora.full_matrix", "true", kLora + Flags{"--lora.kind", "lokr"}},
      {"lora.unbalanced", "true", kLora + Flags{"--lora.kind", "lokr"}},
      {"lora.decompose_both", "true", kLora + Flags{"--lora.kind", "lokr", "--lora.factor", "8", "--lora.rank", "1"}},
      {"diffusion.timesteps", "logit_normal"},
      {"diffusion.logit_mean", "0.5", kNormal},
      {"diffusion.logit_std", "2", kNormal},
      {"diffusion.mode_scale", "0.5", {"--diffusion.timesteps", "mode"}},
      {"diffusion.strata", "3"},
      {"diffusion.bands", "0:0.5=1,0.5:1=3"},
      {"diffusion.loss", "mae"},
      {"diffusion.huber_c", "0.3", kHuber},
      {"diffusion.huber_schedule", "snr", kHuber},
      {"diffusion.huber_scale", "2", kHuber},
      {"diffusion.shift", "1.5"},
      {"diffusion.weighting", "diffsynth"},
      {"diffusion.caption_dropout", "0.7"},
      {"diffusion.min_t", "0.8"},
      {"diffusion.max_t", "0.5"},
      {"experts.router", "gate"},
      {"experts.count", "3", kGate},
      {"experts.temperature", "5", kSoft},
      {"experts.hard", "false", kGate},
      {"experts.balance", "0.5", kGate},
      {"experts.train", "both"},
      {"experts.boundary", "0.3", kExperts},
      {"experts.turn", "3", kExperts + Flags{"--run.steps", "6"}},
      {"experts.shares", "1,0", kExperts},
      {"plan.recompute", "all"},
      {"plan.strategy", "no_shard", kNone, 2},
      {"plan.reduce", "once", {"--train.micro_batch", "1"}, 2},
      {"plan.activations", "recompute"},
      {"plan.parameters", "host"},
      {"plan.gradients", "host"},
      {"plan.states", "host"},
      {"plan.idle", "host", kExperts},
      {"plan.budget", "1", kNone, 1, true},
      {"plan.compute_dtype", "bf16"},
      {"plan.param_dtype", "bf16"},
      {"plan.reduce_dtype", "bf16", kNone, 2},
      {"plan.grad_dtype", "bf16"},
      {"plan.masters", "bf16"},
      {"plan.moments", "bf16"},
      {"plan.update", "in_backward", {"--train.clip_norm", "0"}},
      {"plan.prefetch", "0", kNone, 2},
      {"checkpoint.every", "1"},
      {"checkpoint.keep", "1", kSaves},
      {"checkpoint.keep_exports", "1", kSaves + Flags{"--checkpoint.export", "model"}},
      {"checkpoint.keep_steps", "2", kOneSave},
      {"checkpoint.keep_best", "1", kOneSave + kEval + Flags{"--eval.every", "1", "--train.lr", "1"}},
      {"checkpoint.every_minutes", "0.0000001"},
      {"checkpoint.export", "model", kSaves},
      {"eval.every", "1", kEval},
      {"eval.sigmas", "0.5", kEval},
      {"eval.seed", "3", kEval},
      {"eval.weights", "trained", kEval + kAverage + Flags{"--train.lr", "1e-2"}},
      {"sample.every", "1", kSample},
      {"sample.prompts", "b", kSample},
      {"sample.negative_prompt", "b", kGuided},
      {"sample.sampler", "unipc", kSample + Flags{"--sample.steps", "3"}},
      {"sample.steps", "3", kSample},
      {"sample.guidance", "4", kSample},
      {"sample.weights", "trained", kSample + kAverage + Flags{"--train.lr", "1e-2"}},
      {"sample.seed", "5", kSample},
      {"sample.motion_score", "7", kSample},
      {"data.size", "16,32"},
      {"data.frames", "4"},
      {"data.fps", "4", {"--data.frames", "4"}},
      {"data.repeats", "2"},
      {"data.buckets", "4x32x32"},
      {"data.images_every", "2", {"--data.buckets", "4x32x32,1x32x32", "--data.clip_lengths", "every"}},
      {"data.max_crop", "0.1", {"--data.size", "16,32"}, 1, true},
      {"data.clip_mode", "chunks", {"--data.frames", "4"}},
      {"data.clip_lengths", "longest", {"--data.buckets", "4x32x32,8x32x32", "--data.clip_lengths", "every"}, 1, true},
      {"data.clip_stride", "3", {"--data.frames", "4", "--data.clip_mode", "slide"}},
      {"data.clip_samples", "3", {"--data.frames", "4", "--data.clip_mode", "uniform"}},
      {"data.caption_ext", ".tags", {"--data.caption", "a clip"}},
      {"data.caption_prefix", "film: "},
      {"data.trigger", "sks"},
      {"data.caption_shuffle", "3"},
      {"data.keep_tokens", "1", kShuffle},
      {"data.caption_delimiter", " ", kShuffle},
      {"data.text_encoder", "umt5-demo-2", kNone, 1, true},
      {"data.allow_bad", "-1", kNone, 1, true},
  };
  return all;
}

/// Keys that a tiny run on a CPU cannot show to act, and the tests that do.
const std::map<std::string, std::string>& elsewhere() {
  static const std::map<std::string, std::string> all = {
      {"run.out", "names the folder itself"},
      {"run.resume", "resume_test"},
      {"run.started_in", "what the program wrote, to find relative paths"},
      {"run.resume_changes", "resume_test"},
      {"run.on_nan", "divergence_test"},
      {"run.spike", "divergence_test"},
      {"run.on_event", "report/event_hook_test"},
      {"run.device", "of machines with a GPU: device/"},
      {"run.sums", "of machines with a GPU: device/links_test"},
      {"run.deterministic", "of machines with a GPU"},
      {"experts.deal", "dealt_test, DealtSamples"},
      {"experts.share", "dealt_test, SideBySide"},
      {"experts.by_use", "dealt_test, ByUse"},
      {"experts.frequencies", "what plan says by it: dealt_test, DealtSamples"},
      {"model.preset", "the tiny model is written out: models/registry_test"},
      {"model.path", "starting_test"},
      {"model.family", "family_test"},
      {"model.init", "starting_test"},
      {"model.extra_tensors", "wrong_files_test"},
      {"plan.file", "plans_test, stages_test"},
      {"plan.profile", "planning/planning_test"},
      {"plan.host_budget", "memory_test"},
      {"plan.nvme", "memory_test"},
      {"plan.nvme_checksum", "engine/disk_test"},
      {"plan.offload_to", "planning/planning_test"},
      {"plan.units", "plan/unit_keys_test"},
      {"plan.graphs", "of machines with a GPU: device/graphs_test, device_test"},
      {"plan.attention", "of machines with a GPU: device_test"},
      {"plan.update_on", "optimisers_test"},
      {"plan.update_threads", "threads change no bits: plan/plan_test"},
      {"plan.pipeline", "layouts_test"},
      {"plan.chunks", "layouts_test"},
      {"data.path", "prepare_test"},
      {"data.metadata", "data/dataset_test"},
      {"data.caption", "of clips without a caption: data/dataset_test"},
      {"data.captions", "data/captions_test, prepare_test"},
      {"data.caption_files", "data/captions_test"},
      {"data.caption_lines", "of files of several lines: data/captions_test"},
      {"data.score_files", "data/captions_test"},
      {"data.motion_files", "data/captions_test"},
      {"data.motion_of", "data/captions_test"},
      {"data.caption_columns", "data/captions_test"},
      {"data.score_min", "data/captions_test"},
      {"data.score_drop", "data/captions_test"},
      {"data.score_temperature", "data/captions_test"},
      {"data.references", "vace_test"},
      {"data.mask_path", "masks_test"},
      {"data.mask_suffix", "masks_test"},
      {"data.alpha_mask", "of transparent pictures: prepare/prepared_data_test"},
      {"data.mask_resize", "diffusion/training_sample_test"},
      {"data.invert_mask", "masks_test"},
      {"data.mask_min_value", "masks_test"},
      {"data.control_path", "of models that follow a clip: data/dataset_test"},
      {"train.preserve_class", "preserve_test"},
      {"train.preserve_weight", "preserve_test"},
      {"eval.share", "of three clips one or all: held_out_test"},
      {"train.guidance_schedule", "diffusion/training_sample_test, preserve_test"},
      {"train.guidance_zero", "diffusion/training_sample_test, preserve_test"},
      {"diffusion.normalize_masked_area_loss", "masks_test"},
      {"diffusion.unmasked_probability", "masks_test"},
      {"diffusion.unmasked_weight", "masks_test"},
      {"data.latents", "opensora_files_test"},
      {"data.texts", "opensora_files_test"},
      {"data.null_text", "opensora_files_test"},
      {"data.cache", "prepare_test"},
      {"data.encoders", "the same bits elsewhere: encoders_test"},
      {"data.vae", "vae_test"},
      {"data.vae_tile", "vae_test"},
      {"data.vae_tile_frames", "vae_test"},
      {"data.text_encoder_path", "sana_test"},
      {"data.image_encoder", "of models that see a picture: pictures_test"},
      {"data.image_encoder_path", "of models that see a picture: pictures_test"},
      {"data.pooled_encoder", "opensora_test"},
      {"data.pooled_encoder_path", "opensora_test"},
      {"data.pooled_tokenizer", "opensora_test"},
      {"data.glyph_encoder", "of models that read quoted text: job/recipe_checks_test"},
      {"data.glyph_encoder_path", "of models that read quoted text: quoted_clips_test"},
      {"data.instruction_image", "quoted_clips_test"},
      {"data.audio_encoder", "speech_test"},
      {"data.tokenizer", "data/tokenizer_test"},
      {"data.instruction", "prepare/instruction_test"},
      {"data.hdr", "data/media_light_test"},
      {"data.deinterlace", "data/media_light_test"},
      {"data.background", "data/media_videos_test"},
      {"data.cuts", "prepare_test"},
      {"data.bars", "data/footage_test"},
      {"data.strict", "prepare_test"},
      {"eval.path", "held_out_test"},
      {"sample.image", "of models that begin with a picture: pictures_test"},
      {"sample.last_image", "pictures_test"},
      {"sample.video", "opensora_first_test"},
      {"sample.condition", "opensora_first_test"},
      {"sample.audio", "speech_test"},
      {"sample.pose", "speech_test"},
      {"sample.face", "animate_test"},
      {"sample.guide", "vace_test"},
      {"sample.guide_mask", "vace_test"},
      {"sample.control", "controls_test"},
      {"sample.reference", "controls_test"},
      {"sample.camera", "controls_test"},
      {"sample.clips", "speech_test"},
      {"sample.overlap", "animate_test"},
      {"sample.chunk", "sample/denoising_test, family_test"},
      {"sample.chunk_reach", "sample/denoising_test"},
      {"sample.cache_noise", "sample/denoising_test"},
      {"sample.image_guidance", "opensora_test"},
      {"sample.alternate_guidance", "opensora_test"},
      {"sample.image_guidance_by_frame", "opensora_test"},
      {"diffusion.image_share", "of models that may begin with a clean frame: pictures_test"},
      {"diffusion.conditions", "opensora_test"},
      {"diffusion.mask_ratios", "opensora_first_test"},
      {"diffusion.mask_types", "opensora_first_test"},
      {"diffusion.drop_condition", "opensora_first_test"},
      {"diffusion.condition_draws", "controls_test"},
      {"diffusion.draw_shares", "prepare/condition_draws_test"},
      {"plan.gather", "of products in 8 bits: fp8_test"},
      {"diffusion.pixel_masks", "controls_test"},
      {"diffusion.condition_dropout", "controls_test"},
      {"diffusion.chunks", "of models that take a timestep for each frame: family_test"},
      {"diffusion.chunk_draws", "family_test, diffusion/training_sample_test"},
      {"diffusion.chunk_same_share", "family_test, diffusion/training_sample_test"},
      {"diffusion.first_frame_noise", "family_test, diffusion/training_sample_test"},
      {"diffusion.pooled_dropout", "opensora_test"},
      {"lora.init", "lora_test"},
      {"distill.method", "of models of pictures: distill_test"},
      {"distill.teacher", "distill_test"},
      {"distill.logvar", "distill_test"},
      {"distill.guidance", "distill_test"},
      {"distill.sigma_data", "distill_test"},
      {"distill.logit_mean", "distill_test"},
      {"distill.logit_std", "distill_test"},
      {"distill.tangent_warmup", "distill_test"},
      {"distill.head_blocks", "distill_test"},
      {"distill.consistency_weight", "distill_test"},
      {"distill.adversarial_weight", "distill_test"},
      {"distill.discriminator_loss", "distill_test"},
      {"distill.r1_weight", "distill_test"},
      {"distill.misaligned", "distill_test"},
      {"distill.own_angles", "distill_test"},
      {"distill.largest_angle", "distill_test"},
      {"distill.largest_share", "distill_test"},
      {"distill.judged_mean", "distill_test"},
      {"distill.judged_std", "distill_test"},
      {"distill.critic", "matching_test"},
      {"distill.teacher_preset", "matching_test"},
      {"distill.critic_steps", "matching_test"},
      {"distill.critic_mode", "matching_test"},
      {"distill.critic_lr", "matching_test"},
      {"distill.steps", "matching_test"},
      {"distill.teacher_steps", "matching_test"},
      {"distill.chunk", "matching_test"},
      {"distill.same_exit", "matching_test"},
      {"distill.chunk_reach", "matching_test"},
      {"distill.cache_noise", "matching_test"},
  };
  return all;
}

const TinyRun& shared() {
  static const TinyRun run("settings");
  return run;
}

std::string learnt_model() {
  static const std::string path = [] {
    const Result r = shared().train(1, "learnt", {"--run.steps", "4", "--train.lr", "3e-3"});
    EXPECT_EQ(r.code, 0) << r.output;
    return shared().out("learnt") + "/model";
  }();
  return path;
}

/// All that can be seen of a run but times, texts for people, and the recipe itself. Each has the same name, which adapters
/// carry, and TensorBoard's file is named by the time.
std::map<std::string, std::string> seen_of(const Flags& flags, int ranks) {
  const std::string name = "seen";
  std::map<std::string, std::string> seen;
  Flags given = kTwo + Flags{"--run.steps", "4"} + flags;
  for (std::string& flag : given)
    if (flag == kLearnt) flag = learnt_model();
  const Result r = shared().train(ranks, name, given);
  EXPECT_NE(r.code, 70) << r.output;  // a fault of the program
  seen["code"] = std::to_string(r.code);
  const fs::path folder = shared().out(name);
  if (r.code != 0) fs::remove_all(folder);
  if (r.code != 0) return seen["code"] += r.output.substr(r.output.rfind("tessera: ") + 1).substr(0, 300), seen;
  for (const char* type : {"step", "skip"})
    for (const auto& line : shared().metrics(name, type))
      for (const char* key : {"loss", "grad_norm", "lr", "loss_scale", "d", "samples", "tokens", "expert"})
        if (line.contains(key)) seen[line["step"].dump() + " " + key] = line[key].dump();
  for (const auto& line : shared().metrics(name, "eval"))
    for (const char* key : {"samples", "by_timestep", "by_sigma"})
      if (line.contains(key)) seen["held out " + line["step"].dump() + " " + key] = line[key].dump();
  for (const auto& item : fs::recursive_directory_iterator(folder)) {
    const fs::path& file = item.path();
    const bool bytes =
        file.extension() == ".safetensors" || file.extension() == ".mp4" || file.filename() == "plan.toml";
    if (item.is_regular_file() && !file.filename().string().starts_with("events.out"))
      seen[fs::relative(file, folder).string()] = bytes ? text_of(file) : "";
  }
  fs::remove_all(folder);
  return seen;
}

TEST(EverySetting, Acts) {
  std::map<std::pair<Flags, int>, std::map<std::string, std::string>> without;
  MatrixPart part("settings", static_cast<int>(keys().size()), 5);
  for (const Flags& alike : {kNone, kLora}) {
    const auto one = seen_of(alike, 1);
    for (const auto& [what, value] : seen_of(alike, 1))
      EXPECT_TRUE(one.contains(what) && one.at(what) == value) << what << " differs between runs of one recipe";
  }
  for (const int i : part) {
    const auto& [key, value, with, ranks, refused] = keys()[static_cast<size_t>(i)];
    auto& before = without[{with, ranks}];
    if (before.empty()) before = seen_of(with, ranks);
    EXPECT_TRUE(before.at("code") == "0") << key << ": what it needs is refused: " << before.at("code");
    const auto now = seen_of(with + Flags{"--" + std::string(key), value}, ranks);
    EXPECT_FALSE(now == before) << key << " = " << value << " is read and does nothing";
    EXPECT_EQ(now.at("code") != "0", refused) << key << ": " << now.at("code");
  }
}

TEST(EverySetting, HasARowHere) {
  ASSERT_EQ(shared().train(1, "resolved", {"--run.steps", "1"}).code, 0);
  std::set<std::string> covered;
  for (const Key& key : keys()) covered.insert(key.key);
  for (const auto& [key, where] : elsewhere())
    EXPECT_TRUE(covered.insert(key).second) << key << " is shown here as well";
  std::string table;
  int found = 0;
  for (const std::string& line : lines_of(shared().out("resolved") + "/recipe.toml")) {
    if (line.starts_with("[")) table = line.substr(1, line.find(']') - 1) + ".";
    const size_t equal = line.find(" = ");
    if (line.empty() || line[0] == '#' || line[0] == '[' || equal == std::string::npos) continue;
    const std::string key = table + line.substr(0, equal);
    if (key.starts_with("model.config.") || key.starts_with("mesh.") || key.starts_with("fault.")) continue;
    EXPECT_TRUE(covered.contains(key)) << key << ": give it a value here that acts, or say in elsewhere() who shows it";
    ++found;
  }
  EXPECT_GT(found, 100);
}

}  // namespace
}  // namespace tessera::testing
