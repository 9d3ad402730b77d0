// The YAML of NVlabs' Sana and SANA-Video, its keys as flags of train.py (--train.optimizer.lr 1e-4), and train.py's own.
#include <algorithm>
#include <filesystem>

#include "tessera/base/check.h"
#include "tessera/tools/import/dialects.h"
#include "tessera/tools/import/parts.h"
#include "tessera/tools/import/sana_parts.h"

namespace tessera::tools {

namespace {

/// As they are written in YAML, "[a, 'b']" of a flag included.
std::vector<std::string> items_of(const std::string& value) {
  std::string text = value;
  if (text.starts_with('[') && text.ends_with(']')) text = text.substr(1, text.size() - 2);
  std::vector<std::string> items;
  for (std::string item : split_list(text)) {
    while (item.starts_with(' ')) item.erase(0, 1);
    while (item.ends_with(' ')) item.pop_back();
    const bool quoted = item.size() > 1 && (item[0] == '\'' || item[0] == '"') && item.back() == item[0];
    items.push_back(quoted ? item.substr(1, item.size() - 2) : item);
  }
  return items;
}
std::string list_of(const std::vector<std::string>& items) {
  std::string list;
  for (const std::string& item : items) list += item + kListSeparator;
  return list;
}

constexpr const char* kFetch = "it is fetched from a hub there: download it and give its path";
bool on_a_hub(const std::string& path) { return path.starts_with("hf://") || path.starts_with("http"); }

// ---- what is trained --------------------------------------------------------------------------------------------

void load_from(Translator& t, const Given& g) {
  if (is_false(g.value)) return t.imply(g.name, "nothing is loaded");
  if (on_a_hub(g.value)) return t.refuse(g.name, std::string(kFetch) + ": model.path");
  t.set("model.path", g.value, {g.name});
}

void resume_from(Translator& t, const Given& g) {
  if (g.name.ends_with(".resume_optimizer") || g.name.ends_with(".resume_lr_scheduler"))
    return t.imply(g.name, "a run resumes all of its state");
  if (g.name.ends_with(".load_ema") && !is_false(g.value))
    return t.refuse(g.name, "take the averaged weights out first: tessera convert FILE.pth OUT --ema");
  if (is_false(g.value)) return t.imply(g.name, "the run begins at its start");
  if (g.value == "latest") return t.set("run.resume", "auto", {g.name});
  t.refuse(g.name, "a checkpoint of that trainer gives its weights, not its training state: set model.path to it");
}

void dropout_of_captions(Translator& t, const Given& g) { t.set("diffusion.caption_dropout", g.value, {g.name}); }

// ---- data ---------------------------------------------------------------------------------------------------------

/// A folder, a list of them, or a table of folders by name (data.data_dir.NAME).
void data_dirs(Translator& t) {
  std::vector<std::string> options, folders;
  for (const Given& g : t.given()) {
    if (g.name != "data.data_dir" && !g.name.starts_with("data.data_dir.")) continue;
    options.push_back(g.name);
    for (const std::string& folder : items_of(g.value)) folders.push_back(folder);
  }
  if (folders.empty())
    for (const std::string& option : options) t.refuse(option, "names no folder: set data.path");
  else if (!options.empty())
    t.set("data.path", folders.size() == 1 ? folders[0] : list_of(folders), options);
}

void suffixes(Translator& t, const Given& g, const char* key) {
  std::vector<std::string> items = items_of(g.value);
  const bool had_empty = std::erase(items, "") > 0;
  if (items.empty())
    t.imply(g.name, had_empty ? "the caption in NAME.json is read in any case" : "there are none");
  else
    t.set(key, list_of(items), {g.name});
}

/// Captions end in a score of those files that are named so, whatever the thresholds.
void motion(Translator& t) {
  const std::string prefix = "data.motion_score_file_thres.", of = "data.motion_score_cal_type";
  std::vector<std::string> options;
  bool known = false;
  for (const Given& g : t.given()) {
    if (!g.name.starts_with(prefix)) continue;
    options.push_back(g.name), known = known || g.name == prefix + "_unimatch";
  }
  if (known)
    t.set("data.motion_files", list_of({"_unimatch"}), options);
  else
    for (const std::string& option : options)
      t.imply(option, "scores of _unimatch alone are written into captions there");
  if (!t.has(of)) return;
  const std::string which = t.value(of);
  if (!known)
    t.imply(of, "captions have no motion scores");
  else if (which == "average" || which == "max")
    t.set("data.motion_of", which == "max" ? "largest" : "mean", {of});
  else
    t.refuse(of, "average and max are there");
}

/// Which of several captions are drawn, and by what. Shares act with "proportion" and on videos, scores otherwise.
void captions(Translator& t) {
  const std::string selection = "data.caption_selection_type", scores = "data.external_clipscore_suffixes";
  const bool shares = t.value(selection) == "proportion" || t.value("data.type") == "SanaZipDataset";
  if (t.has(selection)) t.imply(selection, shares ? "data.captions has the shares" : "data.score_files decide");
  const bool scored = !shares && t.has(scores) && !items_of(t.value(scores)).empty();
  if (t.has(scores)) {
    if (shares)
      t.imply(scores, "captions are drawn by their shares there");
    else
      suffixes(t, *t.find(scores), "data.score_files");
  }
  for (const auto& [option, key] :
       {std::pair("data.clip_thr", "data.score_min"), {"data.clip_thr_temperature", "data.score_temperature"}}) {
    if (!t.has(option)) continue;
    if (scored)
      t.set(key, t.value(option), {option});
    else
      t.imply(option, "captions are not drawn by scores");
  }
  const std::string prefix = "data.caption_proportion";
  std::vector<std::string> options, list;
  for (const Given& g : t.given())
    if (g.name.starts_with(prefix + "."))
      options.push_back(g.name), list.push_back(g.name.substr(prefix.size() + 1) + "=" + g.value);
  if (options.empty()) return;
  if (shares)
    t.set("data.captions", list_of(list), options);
  else
    for (const std::string& option : options)
      t.imply(option, "captions are drawn by their scores there, and else are the prompt");
}

void latents(Translator& t, const Given& g) {
  if (is_false(g.value)) return t.imply(g.name, "pictures are encoded, and cached");
  if (t.value("data.type") == "SanaZipDataset")
    t.refuse(g.name, "latents of videos lie in a cache folder of that trainer: they are encoded again here");
  else
    t.set("data.latents", "npy", {g.name});
}

/// Sizes of pictures: those of a table of aspect ratios, or squares.
void shapes(Translator& t) {
  const std::string table = "model.aspect_ratio_type", own = "data.aspect_ratio_type";
  const bool video = t.has("data.num_frames");
  const std::string frames = video ? t.value("data.num_frames") : "1";
  const bool several = t.has("model.multi_scale") ? t.flag("model.multi_scale") : true;
  std::vector<std::string> options;
  for (const std::string& option : {std::string("data.num_frames"), std::string("model.multi_scale"), own, table})
    if (t.has(option)) options.push_back(option);
  std::vector<std::string> sizes;
  for (const char* option : {"data.image_size", "model.image_size"})
    if (t.has(option)) sizes.push_back(option);
  const std::string name = t.has(table) ? t.value(table) : t.value(own, "ASPECT_RATIO_1024");
  if (several && !options.empty()) {
    t.set("data.buckets", (video ? frames + "x" : "") + name, options);
    for (const std::string& option : sizes) t.imply(option, "the sizes are those of " + name);
    return;
  }
  for (const std::string& option : {own, table})
    if (t.has(option)) t.imply(option, "model.multi_scale is off");
  if (t.has("model.multi_scale")) t.imply("model.multi_scale", "data.size is the size of all");
  if (!sizes.empty()) t.set("data.size", t.value(sizes.back()) + "," + t.value(sizes.back()), {sizes.back()});
  for (const std::string& option : sizes)
    if (option != sizes.back()) t.imply(option, sizes.back() + " is what is trained");
  if (video) t.set("data.frames", frames, {"data.num_frames"});
  t.assume("data.frames", frames, "pictures");
}

/// A second data set of pictures beside videos; with an interval of 0 it is not trained on.
void image_data(Translator& t) {
  const bool off = t.integer("train.joint_training_interval", 0) == 0;
  for (const Given& g : t.given())
    if (g.name.starts_with("image_data.") || g.name == "train.train_batch_size_image") {
      if (off)
        t.imply(g.name, "train.joint_training_interval is 0: pictures are not trained on");
      else
        t.refuse(g.name, "one data set is trained on: put pictures and videos into one folder or table");
    }
  if (t.has("train.joint_training_interval")) {
    if (off)
      t.imply("train.joint_training_interval", "pictures are not trained on");
    else
      t.refuse("train.joint_training_interval", "batches of several data sets do not take turns");
  }
}

// ---- autoencoder and text encoder -------------------------------------------------------------------------------

/// Autoencoders of these models by what their repositories and files are called there, and the name that plans them here.
struct Released {
  const char *part, *preset;
};
constexpr Released kReleased[] = {{"dc-ae-f32c32", "dc-ae-f32c32"}, {"wan2.1", "wan2.1-vae"}};
constexpr const char* kOwners[] = {"mit-han-lab/", "Efficient-Large-Model/", "Wan-AI/"};  // of repositories on a hub

void autoencoder(Translator& t, const Given& g) {
  const std::string type = lower_case(t.value("vae.vae_type"));
  if (type.find("ltx") != std::string::npos || type.find("dcaev") != std::string::npos)
    return t.refuse(g.name, "the autoencoders that are there for these models are DC-AE f32c32 and Wan 2.1's");
  const bool repository = std::ranges::any_of(kOwners, [&](const char* owner) { return g.value.starts_with(owner); }) &&
                          !std::filesystem::exists(g.value);
  if (!on_a_hub(g.value) && !repository) return t.set("data.vae", g.value, {g.name}, "its folder or file on disk");
  const std::string name = lower_case(g.value);
  for (const auto& [part, preset] : kReleased)
    if (name.find(part) != std::string::npos)
      return t.set("data.vae", preset, {g.name},
                   "its name, which is enough to plan: to train, download " + g.value + " and give its path");
  t.refuse(g.name, std::string(kFetch) + ": data.vae");
}

void text_encoder(Translator& t, const Given& g) {
  const std::string name = lower_case(g.value);
  if (name.find("gemma-2-2b") == std::string::npos)
    return t.refuse(g.name, "the text encoder that is there for these models is gemma-2-2b-it");
  t.set("data.text_encoder", "gemma-2-2b", {g.name});
  t.assume("data.text_encoder_path", g.value, "its folder on disk");
  t.assume("data.tokenizer", g.value, "its folder on disk");
}

void instruction(Translator& t, const Given& g) {
  std::string text = g.value;  // blanks at the ends of its lines are the instruction's
  if (text.ends_with(kListSeparator)) text.pop_back();
  std::replace(text.begin(), text.end(), kListSeparator, '\n');
  if (text.empty()) return t.imply(g.name, "captions stand alone");
  t.set("data.instruction", text, {g.name}, "its lines");
}

// ---- objective ----------------------------------------------------------------------------------------------------

void timesteps(Translator& t, const Given& g) {
  if (g.value == "logit_normal_trigflow") return t.refuse(g.name, kSprint);
  if (g.value != "logit_normal") return t.refuse(g.name, "timesteps are logit-normal: logit_normal");
  t.set("diffusion.timesteps", "sana", {g.name}, "of 1000, as this trainer draws them");
}

void solver(Translator& t, const Given& g) {
  if (g.value == "flow_dpm-solver")
    t.set("sample.sampler", "dpmpp", {g.name});
  else if (g.value == "flow_euler")
    t.set("sample.sampler", "euler", {g.name});
  else if (g.value == "scm")
    t.refuse(g.name, kSprint);
  else
    t.refuse(g.name, "flow_dpm-solver and flow_euler are there");
}

// ---- training -----------------------------------------------------------------------------------------------------

void fsdp(Translator& t, const Given& g) {
  if (is_false(g.value)) return t.set("plan.strategy", "no_shard", {g.name}, "each rank has the whole model there");
  t.set("plan.strategy", "full_shard", {g.name}, "units come from the model: no class is named to wrap");
}

void optimiser(Translator& t) {
  const std::string prefix = "train.optimizer.";
  if (t.has(prefix + "type")) set_sana_optimiser(t, prefix + "type");
  const bool factored = lower_case(t.value(prefix + "type")).find("came") != std::string::npos;
  for (const auto& [option, key, usual] : {std::tuple("betas", "train.betas", std::vector<double>{0.9, 0.999, 0.9999}),
                                           {"eps", "train.eps", std::vector<double>{1e-30, 1e-16}}}) {
    const std::string name = prefix + option;
    if (!t.has(name)) continue;
    const std::vector<std::string> given = items_of(t.value(name));
    std::vector<double> numbers;
    for (const std::string& number : given) numbers.push_back(std::strtod(number.c_str(), nullptr));
    if (factored && numbers == usual)
      t.imply(name, "CAME's own");
    else
      t.set(key, list_of(given).substr(0, list_of(given).size() - 1), {name});
  }
  if (t.has(prefix + "lr")) t.set("train.lr", t.value(prefix + "lr"), {prefix + "lr"});
  if (t.has(prefix + "weight_decay"))
    t.set("train.weight_decay", t.value(prefix + "weight_decay"), {prefix + "weight_decay"});
  for (const char* option : {"block_size", "min_8bit_size"})
    if (t.has(prefix + option) && lower_case(t.value(prefix + "type")).find("8bit") != std::string::npos)
      t.imply(prefix + option, "a scale for every 256 values of a moment, in tensors of any size");
  for (const Given& g : t.given())
    if (g.name.starts_with(prefix) && !t.is_answered(g.name))
      t.refuse(g.name, "type, lr, betas, eps and weight_decay of an optimiser are known");
  if (t.has("train.auto_lr.rule")) t.set("train.lr_scale", t.value("train.auto_lr.rule"), {"train.auto_lr.rule"});
  t.assume("train.lr_scale", "sqrt", "this trainer's auto_lr: the rate is for 256 samples");
}

void amount(Translator& t) {
  std::vector<std::string> options;
  for (const char* option : {"train.train_batch_size", "train.gradient_accumulation_steps"})
    if (t.has(option)) options.push_back(option);
  const int64_t batch = t.integer("train.train_batch_size", 32),
                steps = t.integer("train.gradient_accumulation_steps", 1);
  if (!options.empty()) t.set_batch(batch * steps, options, std::to_string(batch) + " x " + std::to_string(steps));
  if (t.has("train.num_epochs")) {
    // this reader of lists goes through the list 2000 times an epoch
    const bool list = t.value("data.type") == "SanaImgDataset";
    set_epochs(t, "train.num_epochs", t.integer("train.num_epochs", 1) * (list ? 2000 : 1));
  }
  const bool shows = t.has("train.visualize") ? t.flag("train.visualize") : false;
  if (t.has("train.eval_sampling_steps")) {
    if (shows)
      t.set("sample.every", t.value("train.eval_sampling_steps"), {"train.eval_sampling_steps"});
    else
      t.imply("train.eval_sampling_steps", "train.visualize is off");
  }
  if (t.has("train.visualize")) t.imply("train.visualize", "sample.every says when");
}

void averages(Translator& t) {
  const std::string update = "train.ema_update", rate = "train.ema_rate";
  const bool on = t.flag(update);
  if (t.has(update) && on)
    t.set("train.ema", t.value(rate, "0.9999"),
          t.has(rate) ? std::vector<std::string>{update, rate} : std::vector<std::string>{update});
  else if (t.has(update))
    t.imply(update, "it is off");
  if (t.has(rate) && !on) t.imply(rate, "no average is kept");
}

void sana_together(Translator& t) {
  set_sana_model(t);
  shapes(t);
  data_dirs(t);
  captions(t);
  motion(t);
  image_data(t);
  optimiser(t);
  averages(t);
  amount(t);
  t.assume("diffusion.weighting", "none", "this trainer's loss");
  t.assume("train.schedule", "constant_with_warmup", "this trainer's constant schedule");
  t.assume("data.fps", "0", "this trainer takes frames as they come");
}

std::vector<Rule> data_rules() {
  return {
      of_table(joined("data.data_dir", "`data.path`, of all folders", Takes::many), Covers::both),
      only("data.type", {"SanaWebDatasetMS", "SanaWebDataset", "SanaImgDataset", "SanaZipDataset"},
           "archives, lists and folders are told apart by what data.path holds", "that reader of data is not there"),
      joined("data.image_size", "`data.size`, with `model.multi_scale` off"),
      of_table(joined("data.caption_proportion",
                      "`data.captions`, where caption_selection_type is proportion, and of videos")),
      joined("data.caption_selection_type", "clipscore `data.score_files`, proportion `data.captions`"),
      by(
          "data.external_caption_suffixes", "`data.caption_files`",
          [](Translator& t, const Given& g) { suffixes(t, g, "data.caption_files"); }, Takes::many),
      joined("data.external_clipscore_suffixes", "`data.score_files`", Takes::many),
      joined("data.clip_thr", "`data.score_min`"),
      joined("data.clip_thr_temperature", "`data.score_temperature`"),
      sets("data.del_img_clip_thr", "data.score_drop"),
      by("data.load_vae_feat", "`data.latents = npy`", latents, Takes::perhaps),
      refused("data.load_text_feat", "captions are encoded, once: text features of that trainer are not read",
              Takes::perhaps),
      only("data.transform", {"default_train", "default_train_video"}, "resize to cover, crop in the centre",
           "that is the one transform"),
      only("data.sort_dataset", {"false"}, "samples are shuffled anew in each epoch",
           "samples are shuffled anew in each epoch", Takes::perhaps),
      implied("data.shuffle_dataset", "samples are shuffled anew in each epoch", Takes::perhaps),
      joined("data.num_frames", "`data.frames`, or in `data.buckets`"),
      joined("data.aspect_ratio_type", "`data.buckets`"),
      by(
          "data.resample_fps", "`data.fps`: true 16, false 0",
          [](Translator& t, const Given& g) {
            t.set("data.fps", is_false(g.value) ? "0" : t.value("data.target_fps", "16"), {g.name});
          },
          Takes::perhaps),
      implied("data.target_fps", "the rate of data.resample_fps"),
      implied("data.buckets_file", "shapes are found in the files' headers"),
      refused("data.external_data_filter", "videos are not filtered by scores: leave them out of the archives"),
      joined("data.motion_score_cal_type", "`data.motion_of`, with data.motion_score_file_thres"),
      of_table(joined("data.motion_score_file_thres", "`data.motion_files` of `_unimatch`; thresholds have no effect")),
      refused("data.vae_cache_dir", "latents of videos are encoded again: data.cache"),
      implied("data.json_cache_dir", "archives are read once a run"),
      only("data.hq_only", {"false"}, "it is off", "all clips are used", Takes::perhaps),
      only("data.valid_num", {"0"}, "it is off", "all clips are trained on"),
      refused("controlnet", "ControlNets are not trained"),
      of_table(joined("image_data", "refused, unless train.joint_training_interval is 0")),
  };
}

std::vector<Rule> model_rules() {
  std::vector<Rule> rules = {
      joined("model.model", "`model.preset`, where nothing is loaded"),
      joined("model.image_size", "`data.size`, with `model.multi_scale` off"),
      by("model.mixed_precision", "`plan.compute_dtype`", set_compute_type),
      only("model.fp32_attention", {"true"}, "the linear attention computes in fp32",
           "the linear attention computes in fp32", Takes::perhaps),
      by("model.load_from", "`model.path`", load_from),
      of_table(by("model.resume_from", "latest `run.resume`; else refused: `model.path` takes weights", resume_from),
               Covers::both),
      joined("model.aspect_ratio_type", "`data.buckets`"),
      joined("model.multi_scale", "true: `data.buckets` of the aspect ratios", Takes::perhaps),
      joined("model.qk_norm", "checks or chooses the preset", Takes::perhaps),
      joined("model.cross_norm", "as model.qk_norm", Takes::perhaps),
      joined("model.mlp_ratio", "`model.config.mlp_ratio`"),
      joined("model.use_pe", "a preset with a table of positions", Takes::perhaps),
      joined("model.pe_interpolation", "`model.config.interpolation_scale`, with use_pe"),
      by("model.class_dropout_prob", "`diffusion.caption_dropout`", dropout_of_captions),
      only("model.attn_type", {"linear", "LiteLAReLURope"}, "the model's attention", "this attention is not there"),
      only("model.ffn_type", {"glumbconv", "GLUMBConvTemp"}, "the model's feed-forward",
           "this feed-forward is not there"),
      implied("model.mlp_acts", "the model's feed-forward", Takes::many),
      implied("model.linear_head_dim", "the preset's, or the weights'"),
      implied("model.t_kernel_size", "the model's feed-forward"),
      implied("model.pos_embed_type", "the model's positions"),
      only("model.micro_condition", {"false"}, "it is off", "sizes are no condition of these models", Takes::perhaps),
      only("model.autocast_linear_attn", {"false"}, "it is off", "the linear attention computes in fp32",
           Takes::perhaps),
      implied("model.cfg_scale", "sample.guidance"),
      implied("model.guidance_type", "samples are guided by the negative prompt: sample.guidance"),
      implied("model.pag_applied_layers", "samples are guided by the negative prompt: sample.guidance", Takes::many),
      by("vae.vae_pretrained", "`data.vae`", autoencoder),
      by("text_encoder.text_encoder_name", "`data.text_encoder`, `data.text_encoder_path`, `data.tokenizer`",
         text_encoder),
      only("text_encoder.y_norm", {"true"}, "captions are normed", "captions are normed", Takes::perhaps),
      implied("text_encoder.y_norm_scale_factor", "the initial value of a weight that is loaded"),
      sets("text_encoder.model_max_length", "model.config.caption_length"),
      implied("text_encoder.caption_channels", "the text encoder's width"),
      by("text_encoder.chi_prompt", "`data.instruction`, in a file beside the recipe", instruction, Takes::many),
      only("scheduler.predict_flow_v", {"true"}, "the objective is flow matching", "the objective is flow matching",
           Takes::perhaps),
      implied("scheduler.predict_v", "the objective is flow matching", Takes::perhaps),
      only("scheduler.noise_schedule", {"linear_flow"}, "the objective is flow matching",
           "the objective is flow matching"),
      only("scheduler.pred_sigma", {"false"}, "variances are not predicted", "variances are not predicted",
           Takes::perhaps),
      implied("scheduler.learn_sigma", "variances are not predicted", Takes::perhaps),
      sets("scheduler.flow_shift", "diffusion.shift"),
      implied("scheduler.inference_flow_shift",
              "samples take diffusion.shift; tessera sample --diffusion.shift another"),
      by("scheduler.weighting_scheme", "logit_normal: `diffusion.timesteps = sana`", timesteps),
      only("scheduler.logit_mean", {"0", "0.0"}, "the mean of the draws", "the draws have mean 0 and deviation 1"),
      only("scheduler.logit_std", {"1", "1.0"}, "the deviation of the draws", "the draws have mean 0 and deviation 1"),
      only("scheduler.train_sampling_steps", {"1000"}, "timesteps are of 1000", "timesteps are of 1000"),
      by("scheduler.vis_sampler", "`sample.sampler`: flow_dpm-solver dpmpp, flow_euler euler", solver),
      only("task", {"t2i", "t2v", "ti2v"}, "the model's", "text-to-image and text-to-video are there"),
  };
  for (const char* name : {"vae_type", "weight_dtype", "scale_factor", "vae_latent_dim", "vae_downsample_rate",
                           "sample_posterior", "vae_stride", "if_cache"})
    rules.push_back(implied(std::string("vae.") + name, "the autoencoder's own config has it", Takes::many));
  return rules;
}

std::vector<Rule> train_rules() {
  const char* const kLog = "RUN/metrics.jsonl, TensorBoard's file and RUN/report.html are always written";
  std::vector<Rule> rules = {
      by("train.use_fsdp", "`plan.strategy`: true full_shard, false no_shard", fsdp, Takes::perhaps),
      sets("train.seed", "run.seed"),
      joined("train.train_batch_size", "its share of `train.global_batch`"),
      joined("train.gradient_accumulation_steps", "its share of `train.global_batch`"),
      joined("train.num_epochs", "`run.steps`, counted in the data set"),
      switches("train.grad_checkpointing", "plan.activations", "recompute"),
      only("train.gc_step", {"1"}, "each block is recomputed by itself", "each block is recomputed by itself"),
      sets("train.gradient_clip", "train.clip_norm"),
      of_table(
          joined("train.optimizer", "`train.optimizer`, `train.lr`, `train.betas`, `train.eps`, `train.weight_decay`")),
      only("train.lr_schedule", {"constant"}, "constant after the warm-up",
           "constant is there: see train.schedule for others"),
      sets("train.lr_schedule_args.num_warmup_steps", "train.warmup_steps"),
      joined("train.auto_lr.rule", "`train.lr_scale`; sqrt where it is not given"),
      sets("train.save_model_steps", "checkpoint.every"),
      implied("train.save_model_epochs", "checkpoint.every counts steps"),
      joined("train.eval_sampling_steps", "`sample.every`, with train.visualize"),
      joined("train.visualize", "`sample.every`", Takes::perhaps),
      by(
          "train.validation_prompts", "`sample.prompts`",
          [](Translator& t, const Given& g) { t.set("sample.prompts", list_of(split_list(g.value)), {g.name}); },
          Takes::many),
      by("train.work_dir", "`run.out`",
         [](Translator& t, const Given& g) {
           if (t.has("work_dir"))
             t.imply(g.name, "work_dir is given and counts");
           else
             t.set("run.out", g.value, {g.name});
         }),
      sets("work_dir", "run.out"),
      joined("train.ema_update", "`train.ema`", Takes::perhaps),
      joined("train.ema_rate", "`train.ema`, with train.ema_update"),
      only("train.skip_step", {"0"}, "it is off", "a run resumes where it was"),
      only("train.snr_loss", {"false"}, "it is off", "losses are not weighted", Takes::perhaps),
      only("train.load_mask_index", {"false"}, "it is off", "nothing is masked", Takes::perhaps),
      only("train.mask_type", {"null", "none"}, "it is off", "nothing is masked"),
      only("train.real_prompt_ratio", {"1", "1.0"}, "captions are drawn by data.captions",
           "captions are drawn by data.captions"),
      only("train.online_metric", {"false"}, "it is off", "metrics of samples are not computed in a run",
           Takes::perhaps),
      refused("train.early_stop_hours", "runs end by run.steps, and stop with a checkpoint at a signal"),
      refused("train.training_hours", "runs end by run.steps, and stop with a checkpoint at a signal"),
      joined("train.train_batch_size_image", "refused, unless train.joint_training_interval is 0"),
      joined("train.joint_training_interval", "0: off; else refused: one data set is trained on"),
      implied("train.resume_lr_scheduler", "a run resumes all of its state", Takes::perhaps),
      by("load_from", "`model.path`", load_from),
      by("resume_from", "latest `run.resume`", resume_from),
      only("caching", {"false"}, "samples are cached in any case: data.cache", "tessera prepare fills the cache",
           Takes::perhaps),
      only("report_to", {"tensorboard"}, kLog, "metrics are not uploaded; TensorBoard's file is written"),
  };
  for (const char* name : {"train.load_from_optimizer", "train.load_from_lr_scheduler"})
    rules.push_back(only(name, {"false"}, "weights alone are loaded",
                         "a checkpoint of that trainer gives its weights, not its training state", Takes::perhaps));
  for (const char* name :
       {"num_workers", "eval_batch_size", "use_flash_attn", "null_embed_root", "valid_prompt_embed_root"})
    rules.push_back(implied(std::string("train.") + name, "not needed: samples are decoded, encoded and cached ahead",
                            Takes::perhaps));
  for (const char* name :
       {"train.log_interval", "train.local_save_vis", "train.save_image_epochs", "train.deterministic_validation",
        "name", "debug", "tracker_project_name", "loss_report_name"})
    rules.push_back(implied(name, kLog));
  for (const char* name : {"loss_type", "huber_c", "mask_loss_coef", "num_ddim_timesteps", "w_max", "w_min",
                           "lora_rank", "ema_decay", "debug_nan", "eval_metric_step", "online_metric_dir"})
    rules.push_back(implied(std::string("train.") + name, "it belongs to what is off"));
  const std::string refusal = std::string("refused: ") + kSprint;
  for (const char* name : {"model.teacher_model",
                           "model.logvar",
                           "model.cfg_embed",
                           "model.cfg_embed_scale",
                           "model.ladd_multi_scale",
                           "model.head_block_ids",
                           "model.cross_attn_type",
                           "scheduler.logit_mean_discriminator",
                           "scheduler.logit_std_discriminator",
                           "scheduler.sigma_data",
                           "scheduler.timestep_norm_scale_factor",
                           "train.optimizer_D",
                           "train.tangent_warmup_steps",
                           "train.scm_cfg_scale",
                           "train.scm_lambda",
                           "train.scm_loss",
                           "train.adv_lambda",
                           "train.misaligned_pairs_D",
                           "train.discriminator_loss",
                           "train.train_largest_timestep",
                           "train.largest_timestep",
                           "train.largest_timestep_prob"})
    rules.push_back(
        of_table(by(
                     name, refusal, [](Translator& t, const Given& g) { t.refuse(g.name, kSprint); }, Takes::many),
                 Covers::both));
  return rules;
}

}  // namespace

const Dialect& sana_config() {
  static const Dialect dialect = [] {
    Dialect d{"Sana's YAML and its train.py", "a configuration of Sana", {}, sana_together};
    for (const auto& rules : {data_rules(), model_rules(), train_rules()})
      d.rules.insert(d.rules.end(), rules.begin(), rules.end());
    return d;
  }();
  return dialect;
}

const Dialect& sana_command() {
  static const Dialect dialect = [] {
    Dialect d{"Sana's train.py", "a command of Sana's train.py", {}, {}};
    for (Rule rule : sana_config().rules) {
      rule.option = "--" + rule.option;
      d.rules.push_back(std::move(rule));
    }
    d.rules.push_back(joined("--config_path", "its keys; flags win"));
    return d;
  }();
  return dialect;
}

}  // namespace tessera::tools
