// The Python configurations of Open-Sora 2.0, 1.2 and 1.3, and what their train.py take as flags over them
// (--dataset.data-path X.csv of 2.0, --data-path X.csv of 1.x).
#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>

#include "tessera/base/check.h"
#include "tessera/families/family.h"
#include "tessera/families/frames/frame_masks.h"
#include "tessera/families/frames/given_frames.h"
#include "tessera/tools/import/config_file.h"
#include "tessera/tools/import/dialects.h"
#include "tessera/tools/import/parts.h"

namespace tessera::tools {

namespace {

bool is_none(const std::string& value) { return value.empty() || value == "null" || value == "None"; }

std::string joined_text(const std::vector<std::string>& items) {
  std::string text;
  for (const std::string& item : items) text += (text.empty() ? "" : ",") + item;
  return text;
}

// ---- the model --------------------------------------------------------------------------------------------------

constexpr const char* kModel =
    "this trainer's models are flux, of 2.0, and STDiT3-XL/2 and STDiT3-3B/2, of 1.2 and 1.3";

void video_autoencoder(Translator& t, const Given& g) {
  const std::string preset = g.value == "hunyuan_vae" ? "hunyuan-vae" : g.value == "dc_ae" ? "dc-ae-f32t4c128" : "";
  const auto there = families::opensora().autoencoders;
  if (preset.empty() || std::ranges::find(there, preset) == there.end())
    return t.refuse(g.name, preset.empty() ? "hunyuan_vae and dc_ae are the autoencoders of this model"
                                           : "this version has no " + preset);
  const std::string file = t.value("ae.from_pretrained");
  t.set("data.vae", is_none(file) ? preset : file,
        t.has("ae.from_pretrained") ? std::vector<std::string>{g.name, "ae.from_pretrained"}
                                    : std::vector<std::string>{g.name});
}

/// An encoder, and where its weights lie; a name of a hub is enough to plan.
void encoder(Translator& t, const Given& g, const char* name, const char* preset, const std::string& key,
             const char* tokenizer) {
  if (lower_case(g.value).find(name) == std::string::npos)
    return t.refuse(g.name, std::string("the encoder that is there for this model is ") + name);
  const bool here = std::filesystem::exists(g.value);
  t.set(key, preset, {g.name},
        here ? ""
             : "its name, which is enough to plan: to train, download it and give " + key + "_path and " + tokenizer);
  if (!here) return;
  t.assume(key + "_path", g.value, "its folder");
  t.assume(tokenizer, g.value, "its folder");
}

void t5(Translator& t, const Given& g) {
  encoder(t, g, "t5-v1_1-xxl", "t5-v1_1-xxl", "data.text_encoder", "data.tokenizer");
}
void clip(Translator& t, const Given& g) {
  encoder(t, g, "clip-vit-large-patch14", "clip-l", "data.pooled_encoder", "data.pooled_tokenizer");
}

// ---- data -------------------------------------------------------------------------------------------------------

/// A bucket as it is written there, "33x256px=1.0,12" or "33x256px=0.4,0.6,12": the share of the clips that it takes, the
/// share that these frames are passed over for, samples of a rank.
struct BucketEntry {
  std::string shape;
  double take = 1, skip = 0;
  int64_t batch = 0;  ///< 0: none
};
BucketEntry bucket_entry(const std::string& text) {
  const size_t equal = text.find('=');
  const auto fail = [&](const std::string& hint) {
    throw UserError(Exit::usage, "import", "bucket_config: " + text, hint);
  };
  BucketEntry entry{text.substr(0, equal)};
  const std::vector<std::string> numbers =
      equal == text.npos ? std::vector<std::string>() : split_list(text.substr(equal + 1));
  if (numbers.size() != 2 && numbers.size() != 3) fail("expected {RESOLUTION: {FRAMES: (share, batch)}}");
  const auto share = [&](const std::string& number) {
    char* end = nullptr;
    const double value = std::strtod(number.c_str(), &end);
    if (number.empty() || *end != '\0' || !(value >= 0 && value <= 1)) fail("a share of the clips is from 0 to 1");
    return value;
  };
  entry.take = share(numbers[0]);
  if (numbers.size() == 3) entry.skip = share(numbers[1]);
  const std::string& batch = numbers.back();
  if (is_none(batch)) return entry;
  const bool whole = batch.size() <= 6 && batch.find_first_not_of("0123456789") == batch.npos;
  entry.batch = whole ? std::stoll(batch) : 0;
  if (entry.batch < 1) fail("its batch has to be a number from 1 on");
  return entry;
}

/// Shapes with their batches and shares; where all have one batch and take every clip, the shapes alone.
void buckets(Translator& t) {
  if (!t.has("bucket_config")) return;
  std::vector<BucketEntry> entries;
  std::set<int64_t> batches;
  bool shares = false;
  for (const std::string& bucket : split_list(t.value("bucket_config"))) {
    entries.push_back(bucket_entry(bucket));
    shares = shares || entries.back().take < 1 || entries.back().skip > 0;
    if (entries.back().batch > 0) batches.insert(entries.back().batch);
  }
  const int64_t rounds = std::clamp<int64_t>(t.integer("accumulation_steps", 1), 1, 1'000'000);
  const bool each = !batches.empty() && (batches.size() > 1 || shares);
  std::vector<std::string> shapes;
  for (const BucketEntry& entry : entries) {
    const int64_t batch = (entry.batch > 0 ? entry.batch : batches.empty() ? 1 : *batches.begin()) * rounds;
    shapes.push_back(entry.shape);
    if (!each) continue;
    shapes.back() += "=" + std::to_string(checked_product({batch, t.dp_size().value_or(1)}, "import: a global batch"));
    if (entry.take < 1 || entry.skip > 0) shapes.back() += ":" + number_text(entry.take);
    if (entry.skip > 0) shapes.back() += ":" + number_text(1 - entry.skip);
  }
  t.set("data.buckets", joined_text(shapes), {"bucket_config"},
        each ? "global batches: those of a rank times the ranks that have samples of their own"
             : "clips go to the shape nearest to theirs");
  if (shares && !each) t.warn("bucket_config", "shares below 1 are not drawn without batches");
  if (shares && each) t.warn("bucket_config", "which clips a bucket takes is drawn once, there in every epoch anew");
  if (batches.empty()) return;
  t.set_batch(*batches.begin() * rounds, {"bucket_config"},
              "the smallest batch of a bucket" + (rounds > 1 ? " x " + std::to_string(rounds) : std::string()));
}

/// Its trainer looks for "v2v_head" and "v2v_tail" in the name, and for "easy". So "v2v_head_noisy", which 1.3 has, gives
/// v2v_head's frames as they are, without noise.
std::string given_kind_of(const std::string& name) {
  for (const std::string kind : {"v2v_head", "v2v_tail"})
    if (name.find(kind) != name.npos) return kind + (name.find("easy") != name.npos ? "_easy" : "");
  return name;
}

// ---- ranks and memory ---------------------------------------------------------------------------------------------

void plugin(Translator& t) {
  const std::string prefix = "plugin_config.", name = t.value("plugin", "zero2");
  const bool hybrid = name == "hybrid";
  const auto refuse = [&](const std::string& option, const char* why) {
    t.refuse(option, why);
    for (const Given& g : t.given())
      if ((g.name == "plugin" || g.name.starts_with(prefix)) && !t.is_answered(g.name))
        t.imply(g.name, "it belongs to what is refused");
  };
  const bool seq = name.ends_with("-seq");
  if (!hybrid && name != "zero1" && name != "zero2" && name != "zero1-seq" && name != "zero2-seq")
    return refuse("plugin", "zero1, zero2, zero1-seq, zero2-seq and hybrid are there");
  const int64_t stage = hybrid ? t.integer(prefix + "zero_stage", 0) : name.starts_with("zero1") ? 1 : 2;
  constexpr const char* kStrategies[] = {"no_shard", "shard_states", "shard_grad_op"};
  if (stage < 0 || stage > 2) return refuse(prefix + "zero_stage", "the plugin knows stages 0, 1 and 2");
  std::vector<std::string> options;
  for (const std::string& option : {std::string("plugin"), prefix + "zero_stage"})
    if (t.has(option)) options.push_back(option);
  const std::string because = "ZeRO-" + std::to_string(stage);
  if (options.empty())
    t.assume("plan.strategy", kStrategies[stage], because + ", this trainer's");
  else
    t.set("plan.strategy", kStrategies[stage], options, because);
  const std::string tp = prefix + "tp_size", pp = prefix + "pp_size", sp = prefix + "sp_size",
                    mode = prefix + "sequence_parallelism_mode", on = prefix + "enable_sequence_parallelism";
  const bool several = hybrid || seq;
  for (const auto& [option, key] : {std::pair(tp, "mesh.tp"), {pp, "mesh.pp"}}) {
    if (!t.has(option)) continue;
    if (several)
      t.set(key, t.value(option), {option});
    else
      t.refuse(option, "it belongs to plugin = \"hybrid\"");
  }
  const std::string how = t.value(mode, seq ? "all_to_all" : "");
  if (t.integer(sp, 1) > 1 && (!several || (t.has(on) && !t.flag(on)))) {
    t.refuse(sp, several ? on + " is off" : "it belongs to plugin = \"hybrid\", \"zero1-seq\" or \"zero2-seq\"");
    if (t.has(mode)) t.imply(mode, "it belongs to sp_size");
  } else if (t.has(sp)) {
    std::vector<std::string> of = {sp};
    if (t.has(mode)) of.push_back(mode);
    if (t.integer(sp, 1) == 1)
      for (const std::string& option : of) t.imply(option, "one rank has all tokens of a sample");
    else if (how == "ring_attn")
      t.set("mesh.cp", t.value(sp), of, "ring attention");
    else if (how == "all_to_all")
      t.set("mesh.sp", t.value(sp), of, "Ulysses");
    else
      for (const std::string& option : of)
        t.refuse(option,
                 "all_to_all (mesh.sp) and ring_attn (mesh.cp) are there: under tensor parallelism the tokens between "
                 "products are not sharded");
  } else if (t.has(mode)) {
    t.imply(mode, "one rank has all tokens of a sample");
  }
  if (t.has(on)) t.imply(on, "sp_size says it");
}

/// The first blocks of each kind are recomputed.
void recompute(Translator& t) {
  const std::string on = "grad_checkpoint", buffer = "grad_ckpt_buffer_size";
  const bool recomputes = !t.has(on) || t.flag(on), offloads = t.number(buffer, 0) > 0;
  for (const char* counts : {"grad_ckpt_settings", "model.grad_ckpt_settings", "model.grad_ckpt_setting"})
    if (t.has(counts))
      t.imply(counts, recomputes ? "every block is; with plan.activations = \"auto\" the plan chooses as few as fit"
                                 : "grad_checkpoint is off");
  std::vector<std::string> options;
  if (t.has(on)) options.push_back(on);
  if (t.has(buffer) && recomputes && offloads)
    options.push_back(buffer);
  else if (t.has(buffer))
    t.imply(buffer, "no activations are offloaded");
  const std::string value = !recomputes ? "keep" : offloads ? "recompute_offload" : "recompute";
  const std::string because =
      offloads && recomputes ? "host memory as the plan needs it, no buffer is sized by hand" : "";
  if (options.empty())
    t.assume("plan.activations", value, "this trainer's");
  else
    t.set("plan.activations", value, options, because);
}

void lora(Translator& t) {
  const std::string prefix = "lora_config.";
  if (std::ranges::none_of(t.given(), [&](const Given& g) { return g.name.starts_with(prefix); })) {
    if (t.has("lora_config")) t.imply("lora_config", "the whole model is trained");
    return;
  }
  if (t.has("lora_config")) t.imply("lora_config", "its entries count");
  t.assume("train.mode", "lora", "lora_config is given");
  for (const auto& [option, key] :
       {std::pair("r", "lora.rank"), {"lora_alpha", "lora.alpha"}, {"lora_dropout", "lora.dropout"}})
    if (t.has(prefix + option)) t.set(key, t.value(prefix + option), {prefix + option});
  t.assume("lora.rank", "8", "PEFT's");
  t.assume("lora.alpha", "8", "PEFT's");
  if (t.has(prefix + "target_modules")) {
    const std::vector<std::string> targets = split_list(t.value(prefix + "target_modules"));
    t.set("lora.targets", joined_text(targets), {prefix + "target_modules"});
  }
  for (const Given& g : t.given())
    if (g.name.starts_with(prefix) && !t.is_answered(g.name))
      t.refuse(g.name, "r, lora_alpha, lora_dropout and target_modules of an adapter are known");
}

void cached_video(Translator& t, const Given& g) {
  if (!t.flag(g.name)) return t.imply(g.name, "clips are encoded");
  t.set("data.latents", "column", {g.name}, "latents_path of the table");
}

/// Its trainer reads the empty caption's files from paths of one machine.
void cached_text(Translator& t, const Given& g) {
  if (!t.flag(g.name)) return t.imply(g.name, "captions are encoded");
  const bool drops = t.number("dropout_ratio.t5", 0) > 0 || t.number("dropout_ratio.clip", 0) > 0;
  t.set("data.texts", "column", {g.name},
        std::string("text_t5_path and text_clip_path of the table") +
            (drops ? "; dropout_ratio drops captions: give its null_t5.pt and null_clip.pt as data.null_text, or the "
                     "weights of both encoders"
                   : ""));
}

bool weights_by_kind(Translator& t, const std::string& table, const std::string& key,
                     const std::vector<std::string>& known, std::string (*kind_of)(const std::string& name)) {
  std::vector<std::string> options, kinds;
  std::vector<families::Weighted> weights;
  double sum = 0;
  for (const Given& g : t.given()) {
    if (!g.name.starts_with(table + ".")) continue;
    const std::string name = g.name.substr(table.size() + 1), kind = kind_of(name);
    const double weight = t.number(g.name, 0);
    if (std::ranges::find(known, kind) == known.end() || weight < 0) {
      if (weight == 0)
        t.imply(g.name, "its weight is 0");
      else
        t.refuse(g.name, weight < 0 ? "a weight is at least 0" : "there are " + joined_text(known));
      continue;
    }
    if (kind != name) t.warn(g.name, "that trainer takes it as " + kind);
    options.push_back(g.name), sum += weight;
    const auto same = std::ranges::find(weights, kind, &families::Weighted::name);
    (same == weights.end() ? weights.emplace_back(kind, 0.0) : *same).weight += weight;
  }
  if (options.empty()) return false;
  for (const families::Weighted& kind : weights) kinds.push_back(kind.name + "=" + number_text(kind.weight));
  if (sum > 0) t.set(key, joined_text(kinds), options);
  for (const std::string& option : options)
    if (sum <= 0) t.refuse(option, "all weights are 0");
  return sum > 0;
}

void epochs(Translator& t) {
  if (!t.has("epochs")) return;
  if (is_none(t.value("epochs")))
    t.imply("epochs", "run.steps says it");
  else
    set_epochs(t, "epochs", t.integer("epochs", 1));
}
void opensora_together(Translator& t) {
  plugin(t);  // first: a batch is of the ranks that share a sample
  buckets(t);
  weights_by_kind(t, "condition_config", "diffusion.conditions", families::given_kinds(), given_kind_of);
  recompute(t);
  lora(t);
  if (t.has("accumulation_steps")) t.imply("accumulation_steps", "counted into train.global_batch");
  if (t.has("ae.from_pretrained") && !t.is_answered("ae.from_pretrained"))
    t.refuse("ae.from_pretrained", "ae.type says of what");
  const bool pictures = t.flag("model.cond_embed");
  if (t.has("model.cond_embed"))
    t.set("model.preset", pictures ? "opensora2-11b" : "opensora2-11b-t2v", {"model.cond_embed"});
  else
    t.assume("model.preset", "opensora2-11b-t2v", "without model.cond_embed");
  epochs(t);
  if (t.has("warmup_steps") && !is_none(t.value("warmup_steps")) && t.integer("warmup_steps", 0) > 0)
    t.assume("train.schedule", "opensora_linear_warmup", "this trainer's");
  if (t.has("ema_decay")) {
    if (is_none(t.value("ema_decay")))
      t.imply("ema_decay", "no average is kept");
    else
      t.set("train.ema", t.value("ema_decay"), {"ema_decay"});
  }
}

// ==== 1.2 and 1.3 ===================================================================================================

constexpr const char* kThird = "opensora1.3";

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
  return !is_none(folder) && std::filesystem::exists(std::filesystem::path(folder) / "config.json", none);
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
  t.set("data.vae", is_none(file) || published ? preset : file, options);
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
  if (!transformed) t.assume("diffusion.shift", "1", "timesteps are not transformed");
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
  const bool given = third && weights_by_kind(t, types, "diffusion.mask_types", families::beside_kinds(), known_beside);
  if (given) weights_by_kind(t, drops, "diffusion.drop_condition", families::drop_kinds(), same);
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
  const bool by_buckets = t.has("bucket_config");
  for (const char* option : {"dataset.num_frames", "dataset.image_size", "batch_size"}) {
    const Given* given = t.find(option);
    if (given && by_buckets)
      t.imply(option, "bucket_config says it");
    else if (given && (is_none(given->value) || given->value.starts_with("null") || given->value.starts_with("None")))
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
  if (is_none(t.value(warmup))) return t.imply(warmup, "there is none");
  t.set("train.warmup_steps", t.value(warmup), {warmup});
  if (!falls) t.assume("train.schedule", "opensora_linear_warmup", "this trainer's");
}

void stdit_weights(Translator& t, const Given& g) {
  if (is_none(g.value)) return t.imply(g.name, "none is given");
  if (is_published(g.value)) return t.warn(g.name, download(g.value, "model.path"));
  t.set("model.path", g.value, {g.name});
}

void frozen_texts(Translator& t, const Given& g) {
  if (t.flag(g.name))
    t.warn(g.name, "the projection of texts trains with the rest: no key freezes it by itself");
  else
    t.imply(g.name, "it trains");
}

void start_from_scratch(Translator& t, const Given& g) {
  if (!t.has("load") || is_false(g.value)) return t.imply(g.name, "it belongs to load");
  t.refuse(g.name, "a run goes on at the step of its checkpoint: set model.path to it for its weights alone");
}

void lora_weights(Translator& t, const Given& g) {
  if (is_none(g.value)) return t.imply(g.name, "none is given");
  t.assume("train.mode", "lora", g.name + " is given");
  t.set("lora.init", g.value, {g.name});
}

void opensora1_together(Translator& t) {
  plugin(t);
  stdit_denoiser(t);
  buckets(t);
  one_shape(t);
  drawn_timesteps(t);
  mask_ratios(t);
  mask_types(t);
  recomputes(t);
  warm_up(t);
  epochs(t);
  if (t.has("accumulation_steps")) t.imply("accumulation_steps", "counted into train.global_batch");
  if (t.has("vae.from_pretrained") && !t.is_answered("vae.from_pretrained"))
    t.refuse("vae.from_pretrained", "vae.type says of what");
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

/// "bucket_config.256px.33", one option a bucket, as one "bucket_config" with items 33x256px=SHARE,BATCH. Throws
/// UserError (usage) where its model is of neither version.
void opensora_options(std::vector<Given>& given) {
  for (const Given& g : given)
    if (g.name == "model.type" && g.value != "flux")
      throw UserError(Exit::usage, "import", g.shown() + ": " + kModel, "tessera list presets lists what can train");
  const std::string name = "bucket_config", prefix = name + ".";
  std::string buckets;
  for (const Given& g : given) {
    if (!g.name.starts_with(prefix)) continue;
    const size_t dot = g.name.rfind('.');
    const bool whole = dot > prefix.size() && !split_list(g.value).empty();
    std::string bucket = whole ? g.name.substr(dot + 1) + "x" + g.name.substr(prefix.size(), dot - prefix.size()) + "="
                               : g.name.substr(prefix.size());
    if (whole) bucket += joined_text(split_list(g.value));
    buckets += bucket + kListSeparator;
  }
  std::erase_if(given, [&](const Given& g) { return g.name.starts_with(prefix); });
  if (!buckets.empty()) given.push_back({name, buckets});
}

/// Whether a configuration is one of 1.x, by its tables.
bool is_opensora1(const std::vector<Given>& given) {
  return std::ranges::any_of(given, [](const Given& g) {
    return g.name.starts_with("scheduler.") || g.name.starts_with("text_encoder.") ||
           (g.name == "model.type" && g.value.starts_with("STDiT3"));
  });
}

/// As opensora_options, with buckets in the words of 2.0.
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

/// The key that a flag of 1.x's train.py, with _ for -, stands for: "data_path" is dataset.data_path.
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

}  // namespace

const Dialect& opensora_config() {
  static const Dialect dialect = dialect_of("opensora", "config", opensora_together,
                                            {{"cached_text", plain(cached_text)},
                                             {"cached_video", plain(cached_video)},
                                             {"clip", plain(clip)},
                                             {"t5", plain(t5)},
                                             {"video_autoencoder", plain(video_autoencoder)}});
  return dialect;
}

const Dialect& opensora1_config() {
  static const Dialect dialect = dialect_of("opensora", "config1", opensora1_together,
                                            {{"frozen_texts", plain(frozen_texts)},
                                             {"lora_weights", plain(lora_weights)},
                                             {"start_from_scratch", plain(start_from_scratch)},
                                             {"stdit_autoencoder", plain(stdit_autoencoder)},
                                             {"stdit_weights", plain(stdit_weights)},
                                             {"stdit_window", plain(stdit_window)},
                                             {"t5", plain(t5)}});
  return dialect;
}

const Dialect& colossalai_plugin() {
  static const Dialect dialect = dialect_of("opensora", "plugin", plugin);
  return dialect;
}
void name_plugin_arguments(std::vector<Given>& given) {
  const bool parallel = std::ranges::any_of(
      given, [](const Given& g) { return g.name == "tp_size" || g.name == "pp_size" || g.name == "sp_size"; });
  if (!parallel) return;
  for (Given& g : given) g.typed = g.name, g.name = "plugin_config." + g.name;
  given.push_back({"plugin", "hybrid"});
}

Translation translate_opensora_config(std::vector<Given> given, const ImportContext& context) {
  const bool first = is_opensora1(given);
  if (first)
    opensora1_options(given);
  else
    opensora_options(given);
  return translate(first ? opensora1_config() : opensora_config(), std::move(given), context);
}

Translation translate_opensora(const CommandLine& line, const ImportContext& context) {
  const std::string file = file_beside(context, line.words[1]);
  nlohmann::ordered_json config = read_python_config(file);
  const bool first = is_opensora1(flat_options(config, file));
  for (size_t i = 2; i < line.words.size(); ++i) {
    std::string name = line.words[i];
    const bool is_switch = first && (name == "--start-from-scratch" || name == "--record-time");
    if (!strip_prefix(name, "--") || name.empty() || (!is_switch && i + 1 == line.words.size()))
      throw UserError(Exit::usage, "import", "'" + line.words[i] + "': expected --NAME VALUE",
                      "every flag of this trainer has a value, --wandb True");
    std::ranges::replace(name, '-', '_');
    if (first) name = opensora1_key(name);
    nlohmann::ordered_json* at = &config;
    for (size_t begin = 0, dot = 0; dot != std::string::npos; begin = dot + 1) {
      dot = name.find('.', begin);
      if (!at->is_object()) *at = nlohmann::ordered_json::object();
      at = &(*at)[name.substr(begin, dot - begin)];
    }
    *at = is_switch ? nlohmann::ordered_json(true) : python_value(line.words[++i]);
  }
  Translation result = translate_opensora_config(flat_options(config, file), context);
  result.from = "a command of Open-Sora's train.py";
  return result;
}

}  // namespace tessera::tools
