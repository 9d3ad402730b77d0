// The Python configurations of Open-Sora 2.0 and what its train.py takes as flags over them (--dataset.data-path X.csv).
#include <algorithm>
#include <filesystem>
#include <set>

#include "tessera/base/check.h"
#include "tessera/base/checked.h"
#include "tessera/families/frames/given_frames.h"
#include "tessera/families/opensora.h"
#include "tessera/tools/import/dialects.h"
#include "tessera/tools/import/opensora_parts.h"
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

void model_type(Translator& t, const Given& g) {
  if (g.value != "flux") return t.refuse(g.name, kModel);
  t.set("model.family", "opensora", {g.name}, "its MMDiT");
}

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

void opensora_together(Translator& t) {
  plugin(t);  // first: a batch is of the ranks that share a sample
  buckets(t);
  set_opensora_weights(t, "condition_config", "diffusion.conditions", families::given_kinds(), given_kind_of);
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
  set_opensora_epochs(t);
  if (t.has("ema_decay")) {
    if (is_none(t.value("ema_decay")))
      t.imply("ema_decay", "no average is kept");
    else
      t.set("train.ema", t.value("ema_decay"), {"ema_decay"});
  }
  t.assume("diffusion.timesteps", "by_size", "this trainer's");
  t.assume("plan.compute_dtype", "bf16", "this trainer's dtype");
  t.assume("train.eps", "1e-8", "HybridAdam's");
}

std::vector<Rule> opensora_model_rules() {
  std::vector<Rule> rules = {
      by("model.type", "flux `model.family`", model_type),
      by("model.from_pretrained", "`model.path`",
         [](Translator& t, const Given& g) {
           if (is_none(g.value)) return t.imply(g.name, "none is given");
           t.set("model.path", g.value, {g.name});
         }),
      joined("model.cond_embed", "`model.preset`: true opensora2-11b, false opensora2-11b-t2v", Takes::perhaps),
      implied("model.strict_load", "every tensor of a file is known or named", Takes::perhaps),
      only("model.guidance_embed", {"false"}, "the model has none", "train flux-dev's form: model.preset",
           Takes::perhaps),
      implied("model.fused_qkv", "the file's names tell", Takes::perhaps),
      implied("model.use_liger_rope", "the file's names tell", Takes::perhaps),
      only("model.mlp_ratio", {"4", "4.0"}, "4", "4 is there"),
      only("model.theta", {"10000"}, "10000", "10000 is there"),
      only("model.qkv_bias", {"true"}, "they have", "attention has biases", Takes::perhaps),
      by("model.axes_dim", "`model.config.axes_dim`",
         [](Translator& t, const Given& g) {
           t.set("model.config.axes_dim", joined_text(split_list(g.value)), {g.name});
         }),
      by("ae.type", "hunyuan_vae, dc_ae: `data.vae`", video_autoencoder),
      joined("ae.from_pretrained", "`data.vae`"),
      implied("ae.use_spatial_tiling", "data.vae_tile: tiles where memory asks for them", Takes::perhaps),
      implied("ae.use_temporal_tiling", "data.vae_tile_frames: tiles where memory asks for them", Takes::perhaps),
      implied("is_causal_vae", "it follows from ae.type", Takes::perhaps),
      only("ae_spatial_compression", {"16"}, "sides are multiples of 16",
           "sizes by their pixels have sides of multiples of 16: list shapes of multiples of 32 in data.buckets"),
      only("ae.model_name", {"dc-ae-f32t4c128"}, "the autoencoder of this name", "dc-ae-f32t4c128 is there"),
      only("ae.scaling_factor", {"0.493"}, "the autoencoder's", "0.493 is there"),
      implied("ae.from_scratch", "weights are read with their own names", Takes::perhaps),
      implied("patch_size", "model.patch_size counts"),
      by("t5.from_pretrained", "`data.text_encoder`",
         [](Translator& t, const Given& g) {
           encoder(t, g, "t5-v1_1-xxl", "t5-v1_1-xxl", "data.text_encoder", "data.tokenizer");
         }),
      sets("t5.max_length", "model.config.context_length"),
      by("clip.from_pretrained", "`data.pooled_encoder`",
         [](Translator& t, const Given& g) {
           encoder(t, g, "clip-vit-large-patch14", "clip-l", "data.pooled_encoder", "data.pooled_tokenizer");
         }),
      only("clip.max_length", {"77"}, "the encoder's", "the encoder has 77 positions"),
      sets("dropout_ratio.t5", "diffusion.caption_dropout"),
      sets("dropout_ratio.clip", "diffusion.pooled_dropout"),
      of_table(joined("condition_config", "`diffusion.conditions`")),
  };
  for (const char* key : {"in_channels", "vec_in_dim", "context_in_dim", "hidden_size", "num_heads", "depth",
                          "depth_single_blocks", "patch_size"})
    rules.push_back(sets(std::string("model.") + key, std::string("model.config.") + key));
  for (const char* key : {"ae.in_channels", "ae.out_channels", "ae.layers_per_block", "ae.latent_channels"})
    rules.push_back(implied(key, "the autoencoder's own config has it"));
  for (const char* key : {"ae.spatial_tile_size", "ae.temporal_tile_size", "ae.tile_overlap_factor"})
    rules.push_back(implied(key, "data.vae_tile, data.vae_tile_frames: tiles where memory asks for them"));
  for (const char* key : {"t5.type", "t5.cache_dir", "t5.shardformer", "clip.type", "clip.cache_dir"})
    rules.push_back(implied(key, "the encoder's own config has it", Takes::perhaps));
  return rules;
}

std::vector<Rule> opensora_training_rules() {
  const char* const kMemory = "not needed: buffers are planned, pinned and filled ahead";
  std::vector<Rule> rules = {
      sets("dataset.data_path", "data.path"),
      only("dataset.type", {"video_text", "image_text", "text", "cached_video_text"},
           "clips and pictures with their texts", "clips and pictures with texts are there"),
      only("dataset.transform_name", {"resize_crop"}, "scaled and cut at the centre", "resize_crop is there"),
      sets("dataset.fps_max", "data.fps"),
      warned("dataset.vmaf", "captions are as they are: data.caption_columns ends them in columns of the table",
             Takes::perhaps),
      implied("dataset.memory_efficient", "not needed: the table is read once", Takes::perhaps),
      joined("bucket_config",
             "`data.buckets` with their batches and shares, `train.global_batch` of the smallest batch"),
      by("cached_video", "true: `data.latents = column`", cached_video, Takes::perhaps),
      by("cached_text", "true: `data.texts = column`", cached_text, Takes::perhaps),
      only("optim.cls", {"HybridAdam"}, "adamw", "HybridAdam is there: see train.optimizer for others"),
      only("optim.adamw_mode", {"true"}, "adamw", "decay is decoupled from the gradient", Takes::perhaps),
      sets("optim.lr", "train.lr"),
      sets("optim.eps", "train.eps"),
      sets("optim.weight_decay", "train.weight_decay"),
      by("optim.betas", "`train.betas`",
         [](Translator& t, const Given& g) { t.set("train.betas", joined_text(split_list(g.value)), {g.name}); }),
      implied("lr", "optim.lr counts"),
      implied("eps", "optim.eps counts"),
      sets("warmup_steps", "train.warmup_steps"),
      implied("update_warmup_steps", "a run resumes its schedule", Takes::perhaps),
      only("use_cosine_scheduler", {"false"}, "constant after the warm-up", "set train.schedule = cosine by hand",
           Takes::perhaps),
      sets("grad_clip", "train.clip_norm"),
      joined("accumulation_steps", "its share of `train.global_batch`"),
      joined("ema_decay", "`train.ema`"),
      joined("epochs", "`run.steps`, counted in the data set"),
      sets("seed", "run.seed"),
      sets("outputs", "run.out"),
      sets("ckpt_every", "checkpoint.every"),
      sets("keep_n_latest", "checkpoint.keep"),
      by("load", "`run.resume`",
         [](Translator& t, const Given& g) {
           if (is_none(g.value)) return t.imply(g.name, "the run begins at its start");
           t.set("run.resume", g.value, {g.name});
         }),
      by("dtype", "`plan.compute_dtype`", set_compute_type),
      joined(
          "plugin",
          "`plan.strategy`: zero1 and zero1-seq shard_states, zero2 and zero2-seq shard_grad_op, hybrid by zero_stage"),
      joined("plugin_config.zero_stage", "`plan.strategy`"),
      joined("plugin_config.tp_size", "`mesh.tp`"),
      joined("plugin_config.pp_size", "`mesh.pp`"),
      joined("plugin_config.sp_size", "all_to_all `mesh.sp`, ring_attn `mesh.cp`"),
      joined("plugin_config.sequence_parallelism_mode", "see plugin_config.sp_size"),
      joined("plugin_config.enable_sequence_parallelism", "see plugin_config.sp_size", Takes::perhaps),
      joined("grad_checkpoint", "`plan.activations`: true recompute, false keep", Takes::perhaps),
      joined("grad_ckpt_settings", "every block is recomputed"),
      joined("model.grad_ckpt_settings", "every block is recomputed"),
      joined("model.grad_ckpt_setting", "every block is recomputed"),
      joined("grad_ckpt_buffer_size", "above 0 `plan.activations = recompute_offload`"),
      of_table(joined("lora_config", "`train.mode = lora`, `lora.rank`, `lora.alpha`, `lora.dropout`, `lora.targets`"),
               Covers::both),
      sets("lora_checkpoint", "lora.init"),
      only("wandb", {"false"}, "off", "metrics are not uploaded; TensorBoard's file is written", Takes::perhaps),
      refused("start_step", "a run resumes where it was", Takes::perhaps),
      refused("start_epoch", "a run resumes where it was", Takes::perhaps),
  };
  for (const char* key :
       {"pin_memory_cache_pre_alloc_numels", "plugin_config.reduce_bucket_size_in_m", "plugin_config.overlap_allgather",
        "plugin_config.overlap_communication", "plugin_config.static_graph", "plugin_config.parallel_output",
        "prefetch_factor", "num_workers", "num_bucket_build_workers", "async_io"})
    rules.push_back(implied(key, kMemory, Takes::perhaps));
  for (const char* key : {"save_master_weights", "load_master_weights"})
    rules.push_back(implied(key, "checkpoints hold the fp32 masters", Takes::perhaps));
  for (const char* key : {"dataset.cached_video", "dataset.cached_text"})
    rules.push_back(implied(key, "cached_video and cached_text say it", Takes::perhaps));
  for (const char* key : {"dataset.return_latents_path", "dataset.load_original_video"})
    rules.push_back(implied(key, "a clip is read where its latents are not", Takes::perhaps));
  for (const char* key : {"log_every", "wandb_project", "exp_name", "record_time", "record_barrier", "nsys"})
    rules.push_back(
        implied(key, "RUN/metrics.jsonl, TensorBoard's file and RUN/report.html are always written", Takes::perhaps));
  return rules;
}

}  // namespace

bool set_opensora_weights(Translator& t, const std::string& table, const std::string& key,
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

void set_opensora_buckets(Translator& t) { buckets(t); }
void set_opensora_plugin(Translator& t) { plugin(t); }
void set_opensora_epochs(Translator& t) {
  if (!t.has("epochs")) return;
  if (is_none(t.value("epochs")))
    t.imply("epochs", "run.steps says it");
  else
    set_epochs(t, "epochs", t.integer("epochs", 1));
}
void set_opensora_encoder(Translator& t, const Given& g, const char* name, const char* preset, const std::string& key,
                          const char* tokenizer) {
  encoder(t, g, name, preset, key, tokenizer);
}

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

const Dialect& opensora_config() {
  static const Dialect dialect = [] {
    Dialect d{"Open-Sora's configurations and its train.py", "a configuration of Open-Sora", {}, opensora_together};
    for (const auto& rules : {opensora_model_rules(), opensora_training_rules()})
      d.rules.insert(d.rules.end(), rules.begin(), rules.end());
    return d;
  }();
  return dialect;
}

}  // namespace tessera::tools
