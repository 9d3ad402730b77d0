// diffusion-pipe: its command, the TOML of a run and that of its data set.
#include <algorithm>
#include <filesystem>

#include "tessera/base/check.h"
#include "tessera/tools/import/config_file.h"
#include "tessera/tools/import/dialects.h"
#include "tessera/tools/import/import.h"
#include "tessera/tools/import/parts.h"
#include "tessera/tools/import/wan_folder.h"

namespace tessera::tools {

namespace {

namespace fs = std::filesystem;

void model(Translator& t) {
  if (t.has("model.type")) {
    if (t.value("model.type") == "wan")
      t.set("model.family", "wan", {"model.type"});
    else
      t.refuse("model.type", "wan is the only family");
  }
  const bool transformer = t.has("model.transformer_path");
  if (transformer) t.set("model.path", t.value("model.transformer_path"), {"model.transformer_path"});
  if (t.has("model.ckpt_path")) {
    const std::string root = t.value("model.ckpt_path");
    if (transformer)
      t.imply("model.ckpt_path", "encoders are looked up in it; the model is model.transformer_path");
    else
      t.set("model.path", root, {"model.ckpt_path"});
    set_wan_encoders(t, root, {"model.ckpt_path"},
                     t.has("model.llm_path") ? TextEncoder::elsewhere : TextEncoder::in_folder);
  }
  if (t.has("model.llm_path")) t.set("data.text_encoder_path", t.value("model.llm_path"), {"model.llm_path"});
}

void pipe_window(Translator& t) {
  for (const auto& [name, key] : {std::pair("model.min_t", kLeastTimestep), {"model.max_t", kMostTimestep}})
    if (t.has(name)) t.set(key, t.value(name), {name});
}

void pipe_timesteps(Translator& t) {
  const std::string option = "model.timestep_sample_method", method = t.value(option, "logit_normal");
  const std::string scale = "model.sigmoid_scale", by_size = "model.flux_shift";
  const double width = t.number(scale, 1);
  const bool sized = t.flag(by_size) && !t.has("model.shift");
  if (sized && method == "logit_normal") {
    t.set("diffusion.timesteps", "flux_shift", {by_size}, "the shift follows from the tokens of a frame");
    if (t.has(option)) t.imply(option, "flux_shift shifts logit-normal draws");
    if (t.has(scale)) t.set("diffusion.logit_std", t.value(scale), {scale});
    return pipe_window(t);
  }
  if (sized)
    t.refuse(by_size, "it shifts logit-normal draws alone: give diffusion.shift");
  else if (t.has(by_size))
    t.imply(by_size, t.flag(by_size) ? "model.shift goes before it" : "it is off");
  std::vector<std::string> options;
  if (t.has(option)) options.push_back(option);
  if (t.has(scale) && method == "logit_normal") options.push_back(scale);
  if (t.has(scale) && method != "logit_normal") t.imply(scale, "it belongs to logit_normal");
  if (method != "logit_normal" && method != "uniform")
    t.refuse(option, "logit_normal and uniform are supported");
  else if (!options.empty())
    t.set("diffusion.timesteps",
          width == 1 || method == "uniform" ? method : "logit_normal(0, " + number_text(width) + ")", options);
  if (t.has("model.shift")) t.set("diffusion.shift", t.value("model.shift"), {"model.shift"});
  t.assume("diffusion.shift", "1", "timesteps are not shifted");
  pipe_window(t);
}

void adapter(Translator& t) {
  const std::string kind = t.value("adapter.type"), factor = "adapter.decompose_factor";
  if (t.has(factor) && kind == "lokr") t.set("lora.factor", t.value(factor), {factor});
  if (t.has(factor) && kind != "lokr") t.imply(factor, "it belongs to LoKr");
  if (!t.has("adapter.type")) {
    if (t.has("adapter.rank")) t.refuse("adapter.rank", "an [adapter] needs its type");
    return t.assume("train.mode", "full", "there is no [adapter]");
  }
  if (kind != "lora" && kind != "lokr") {
    t.refuse("adapter.type", "LoRA and LoKr are there");
    if (t.has("adapter.rank")) t.imply("adapter.rank", "it belongs to adapter.type");
    return;
  }
  t.set("train.mode", "lora", {"adapter.type"});
  if (kind == "lokr") t.set("lora.kind", kind, {"adapter.type"});
  if (t.has("adapter.rank")) {
    t.set("lora.rank", t.value("adapter.rank"), {"adapter.rank"});
    t.set("lora.alpha", t.value("adapter.rank"), {"adapter.rank"}, "diffusion-pipe's alpha is the rank");
  }
}

void batch(Translator& t) {
  const std::string micro = "micro_batch_size_per_gpu", steps = "gradient_accumulation_steps";
  std::vector<std::string> options;
  for (const std::string& option : {micro, steps})
    if (t.has(option)) options.push_back(option);
  if (t.has(micro) && t.value(micro).find(kListSeparator) != std::string::npos) {
    if (t.has(steps)) t.imply(steps, "it multiplies micro_batch_size_per_gpu: set train.global_batch");
    return t.refuse(micro, "a batch holds one shape and has one size: give a number");
  }
  const int64_t each = t.integer(micro, 1), times = t.integer(steps, 1);
  if (options.empty()) return t.assume("train.global_batch", std::to_string(t.dp_size().value_or(1)), "a clip a rank");
  t.set_batch(each * times, options, std::to_string(each) + " x " + std::to_string(times));
}

void length(Translator& t) {
  if (t.has("max_steps")) t.set("run.steps", t.value("max_steps"), {"max_steps"});
  if (t.has("epochs")) {
    if (t.has("max_steps"))
      t.imply("epochs", "max_steps is given and ends the run");
    else
      set_epochs(t, "epochs", t.integer("epochs", 1));
  }
  if (t.has("save_every_n_steps")) t.set("checkpoint.every", t.value("save_every_n_steps"), {"save_every_n_steps"});
  for (const char* option : {"save_every_n_epochs", "checkpoint_every_n_epochs"}) {
    if (!t.has(option)) continue;
    if (t.result().find("checkpoint.every"))
      t.imply(option, "checkpoints are whole, and are made by the other option already");
    else
      set_checkpoint_epochs(t, option, t.integer(option, 1));
  }
}

void pipe_together(Translator& t) {
  model(t);
  pipe_timesteps(t);
  adapter(t);
  if (t.has("pipeline_stages")) t.set("mesh.pp", t.value("pipeline_stages"), {"pipeline_stages"});
  batch(t);
  if (t.has("dataset")) {
    const std::string file = file_beside(t.context(), t.value("dataset"));
    if (fs::exists(file)) {
      t.imply("dataset", "its options are in data.*");
      t.result().merge(import_file(file, t.context()));
    } else {
      t.refuse("dataset", file + " was not found: set data.*");
    }
  }
  length(t);
  if (t.has("optimizer.type")) set_optimiser(t, "optimizer.type");
  // Its warm-up stands before every schedule.
  if (t.value("lr_scheduler") == "constant" && t.integer("warmup_steps", 0) > 0)
    t.set("train.schedule", "constant_with_warmup", {"lr_scheduler"}, "warmup_steps are before it");
  else if (t.has("lr_scheduler"))
    set_schedule(t, "lr_scheduler");
  if (!t.has("adapter.type") && t.number("optimizer.weight_decay", 0) > 0)
    t.warn("optimizer.weight_decay", "biases and norms decay too, there matrices alone");
}

/// What the table has no line for: of another family it goes with the family, else it is a mistake.
void other_model_key(Translator& t, const Given& g) {
  if (t.value("model.type", "wan") != "wan") return t.imply(g.name, "it belongs to model.type");
  t.unknown(g);
}

void pipe_checkpointing(Translator& t, const Given& g) {
  if (is_false(g.value))
    t.set("plan.activations", "keep", {g.name});
  else if (g.value == "unsloth")
    t.set("plan.activations", "recompute_offload", {g.name}, "blocks' inputs are offloaded to the host");
  else
    t.set("plan.activations", "recompute", {g.name});
}

void quantised(Translator& t, const Given& g) {
  if (g.value == "float8")
    t.set(kFrozenDtype, "fp8", {g.name});
  else if (g.value == "bfloat16" && t.has("adapter.type"))
    t.set(kFrozenDtype, "bf16", {g.name});
  else if (g.value == "bfloat16")
    t.set("plan.param_dtype", "bf16", {g.name});
  else
    t.refuse(g.name, "float8, of a LoRA's frozen base, and bfloat16 are supported");
}

/// A loss of PyTorch's with the number that it has.
void pipe_loss(Translator& t, const Given& g, const std::string& kind) {
  t.set("diffusion.loss", kind, {g.name});
  t.set("diffusion.huber_c", g.value, {g.name});
}

void command_together(Translator& t) {
  if (!t.has("--config"))
    throw UserError(Exit::usage, "import", "diffusion-pipe's command without --config", "give --config FILE.toml");
  t.imply("--config", "its options follow");
  t.result().merge(import_file(file_beside(t.context(), t.value("--config")), t.context()));
}

// ---- data sets, whose one [[directory]] comes under the names of the top ------------------------------------------------

/// One area, its square's side in `side`, at the ratios between min_ar and max_ar.
void ratio_buckets(Translator& t, const std::string& side, std::vector<std::string> options) {
  for (const char* option : {"enable_ar_bucket", "min_ar", "max_ar", "num_ar_buckets"}) options.push_back(option);
  std::vector<std::string> frames = split_list(t.value("frame_buckets", "1"));
  if (std::ranges::find(frames, "1") == frames.end()) frames.insert(frames.begin(), "1");  // always one of pictures
  std::string buckets;
  for (const std::string& f : frames)
    buckets += f + "xRATIOS_" + side + "_" + t.value("min_ar") + "_" + t.value("max_ar") + "_" +
               t.value("num_ar_buckets") + kListSeparator;
  t.set("data.buckets", buckets, options,
        "frames x shapes of the area of a square, at these ratios of width to height");
}

/// Areas by their side ([512]) or as width and height, at each number of frames.
void pipe_shapes(Translator& t) {
  if (t.has("size_buckets")) {
    std::string buckets;
    for (const std::string& item : split_list(t.value("size_buckets"))) {
      const std::vector<std::string> whf = split_list(item);
      if (whf.size() != 3)
        throw UserError(Exit::usage, "import", "size_buckets: expected [[width, height, frames], ...]");
      buckets += whf[2] + "x" + whf[1] + "x" + whf[0] + kListSeparator;
    }
    t.set("data.buckets", buckets, {"size_buckets"}, "frames x height x width");
    for (const char* option : {"resolutions", "frame_buckets"})
      if (t.has(option)) t.imply(option, "size_buckets lists the shapes");
    return;
  }
  if (!t.has("resolutions")) return t.has("frame_buckets") ? t.refuse("frame_buckets", "without resolutions") : void();
  std::vector<std::string> options = {"resolutions"};
  if (t.has("frame_buckets")) options.push_back("frame_buckets");
  if (t.flag("enable_ar_bucket")) {
    const std::vector<std::string> areas = split_list(t.value("resolutions"));
    const bool ratios = t.has("min_ar") && t.has("max_ar") && t.has("num_ar_buckets") && !t.has("ar_buckets");
    if (ratios && areas.size() == 1 && split_list(areas[0]).size() == 1)
      return ratio_buckets(t, split_list(areas[0])[0], options);
    options.push_back("enable_ar_bucket");
    for (const std::string& option : options)
      t.refuse(option, "one square's side, min_ar, max_ar and num_ar_buckets make shapes; list others in data.buckets");
    return;
  }
  std::string buckets;
  for (const std::string& item : split_list(t.value("resolutions"))) {
    const std::vector<std::string> side = split_list(item);
    if (side.empty() || side.size() > 2)
      throw UserError(Exit::usage, "import", "resolutions: expected [[width, height], ...] or sides of squares");
    const std::string width = side[0], height = side.size() > 1 ? side[1] : side[0];
    for (const std::string& frames : split_list(t.value("frame_buckets", "1")))
      buckets += frames + "x" + height + "x" + width + kListSeparator;
  }
  t.set("data.buckets", buckets, options, "frames x height x width");
  if (split_list(t.value("resolutions")).size() > 1)
    t.warn("resolutions", "a clip is trained at the area that fits it best, there at each of them");
}

/// A fraction belongs to a set.
void repeats(Translator& t, const Given& g) {
  const double times = t.number(g.name, 1);
  if (times >= 1 && times == static_cast<double>(static_cast<int64_t>(times)))
    t.set("data.repeats", std::to_string(static_cast<int64_t>(times)), {g.name});
  else
    t.set("data.set.0.repeats", number_text(times), {g.name});
}

void masks(Translator& t, const Given& g) {
  t.set("data.mask_path", g.value, {g.name});
  t.set("data.mask_resize", "nearest_exact", {g.name});
}

/// So many orders of the tags of a caption, of which all are cached; with shuffle_tags one.
void pipe_captions(Translator& t) {
  const std::string count = "cache_shuffle_num", one = "shuffle_tags", delimiter = "cache_shuffle_delimiter";
  const int64_t variants = t.integer(count, 0);
  if (variants > 0)
    t.set("data.caption_shuffle", std::to_string(variants), {count});
  else if (t.has(count))
    t.imply(count, "it is off");
  if (variants <= 0 && t.flag(one))
    t.set("data.caption_shuffle", "1", {one});
  else if (t.has(one))
    t.imply(one, t.flag(one) ? "cache_shuffle_num says how many orders" : "it is off");
  if (!t.has(delimiter)) return;
  if (variants > 0 || t.flag(one))
    t.set("data.caption_delimiter", t.value(delimiter), {delimiter});
  else
    t.imply(delimiter, "it belongs to cache_shuffle_num");
}

void pipe_dataset_together(Translator& t) {
  pipe_shapes(t);
  pipe_captions(t);
  if (t.has("enable_ar_bucket") && !t.is_answered("enable_ar_bucket"))
    t.imply("enable_ar_bucket", "data.buckets lists the shapes; a clip goes to the one that fits best");
  for (const char* name : {"min_ar", "max_ar", "num_ar_buckets", "ar_buckets"})
    if (t.has(name) && !t.is_answered(name)) t.imply(name, "it belongs to enable_ar_bucket");
}

}  // namespace

const Dialect& diffusion_pipe_config() {
  static const Dialect dialect = dialect_of("diffusion_pipe", "config", pipe_together,
                                            {{"checkpointing", plain(pipe_checkpointing)},
                                             {"other_model_key", plain(other_model_key)},
                                             {"loss", pipe_loss},
                                             {"quantised", plain(quantised)}});
  return dialect;
}
const Dialect& diffusion_pipe_command() {
  static const Dialect dialect = dialect_of("diffusion_pipe", "command", command_together);
  return dialect;
}
const Dialect& diffusion_pipe_dataset() {
  static const Dialect dialect = dialect_of("diffusion_pipe", "dataset", pipe_dataset_together,
                                            {{"repeats", plain(repeats)}, {"masks", plain(masks)}});
  return dialect;
}

}  // namespace tessera::tools
