// SimpleTuner's config.json and multidatabackend.json.
#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>

#include "tessera/base/check.h"
#include "tessera/tools/import/config_file.h"
#include "tessera/tools/import/dialects.h"
#include "tessera/tools/import/parts.h"

namespace tessera::tools {

namespace {

namespace fs = std::filesystem;

void tuner_model(Translator& t) {
  const std::string family = t.value("model_family"), option = "pretrained_model_name_or_path";
  const bool sana = family == "sana";
  if (t.has("model_family")) {
    if (family == "wan" || sana)
      t.imply("model_family", "the weights say it");
    else
      t.refuse("model_family", "of its models wan and sana are there");
  }
  const std::string denoiser = "pretrained_transformer_model_name_or_path";
  if (t.has(denoiser)) t.set("model.path", t.value(denoiser), {denoiser});
  if (!t.has(option)) return;
  const std::string folder = t.value(option);
  if (t.has(denoiser))
    t.imply(option, "encoders are looked up in it");
  else
    t.set("model.path", folder, {option});
  t.assume("data.vae", folder, "its folder");
  t.assume("data.text_encoder", sana ? "gemma-2-2b" : "umt5-xxl", "the release's");
  t.assume("data.text_encoder_path", folder, "its folder");
  t.assume("data.tokenizer", (fs::path(folder) / "tokenizer").string(), "its folder");
}

/// "optimi-lion", "bnb-adamw8bit-paged", "adamw_bf16": what stands before and behind the optimiser's name is how it is made.
void tuner_optimiser(Translator& t) {
  const std::string option = "optimizer";
  if (!t.has(option)) return;
  std::string name = lower_case(t.value(option));
  for (const std::string_view made : {"optimi-", "bnb-", "ao-", "torch-", "deepspeed-"}) strip_prefix(name, made);
  for (const std::string_view made : {"-paged", "_paged", "-bf16", "_bf16"})
    if (name.ends_with(made)) name.erase(name.size() - made.size());
  if (name == "adamw_schedulefree") return t.set("train.optimizer", "adamw_schedule_free", {option});
  const bool eight = name.ends_with("8bit");
  if (eight) name.erase(name.size() - 4);
  if (name == "adamw" || name == "lion") {
    t.set("train.optimizer", name, {option}, "masters and states are fp32");
    if (eight) t.set("plan.moments", "int8", {option}, "moments in blocks of 256 with a scale");
  } else if (!eight && (name == "prodigy" || name == "adafactor" || name == "came")) {
    t.set("train.optimizer", name, {option});
  } else if (!eight && name == "muon") {
    t.set("train.optimizer", name, {option}, "momentum 0.95 and steps of 0.2 sqrt(max(rows, columns)), as there");
    t.warn(option, "queries and keys are not clipped where their products exceed 100, as there");
  } else {
    t.refuse(
        option,
        "AdamW, schedule-free AdamW, Lion, Adafactor, CAME, Prodigy, Muon and the 8-bit forms of AdamW and Lion are "
        "there");
  }
}

/// A LyCORIS, whose file says which kind and how large. Classes of modules are those that are adapted of themselves.
void tuner_adapters(Translator& t) {
  const std::string type = "lora_type", option = "lycoris_config", file = file_beside(t.context(), t.value(option));
  const bool lycoris = lower_case(t.value(type)) == "lycoris";
  if (t.has(type) && !lycoris)
    t.value(type) == "standard" ? t.imply(type, "LoRA") : t.refuse(type, "standard and lycoris are there");
  if (!lycoris || !t.has(option)) {
    if (t.has(option)) t.imply(option, "it belongs to lora_type lycoris");
    if (lycoris) t.refuse(type, "without lycoris_config nothing says which: set lora.kind and lora.rank");
    return;
  }
  if (!fs::exists(file)) {
    t.imply(type, "lycoris_config says which");
    return t.refuse(option, file + " was not found: set lora.kind and lora.rank");
  }
  t.imply(type, "lycoris_config says which"), t.imply(option, "its options are in lora.*");
  t.result().merge(translate(simpletuner_lycoris(), read_config(file), t.context()));
}

void lycoris_together(Translator& t) {
  const std::string algo = "algo", kind = lower_case(t.value(algo, "lokr"));
  const bool lora = kind == "lora" || kind == "locon", lokr = kind == "lokr";
  if (!lora && !lokr && kind != "loha")
    t.refuse(algo, "LoRA (locon), LoHa and LoKr are there");
  else if (t.has(algo))
    t.set("lora.kind", lora ? "lora" : kind, {algo});
  const std::string dimension = "linear_dim";
  constexpr int64_t kWhole = 10000;  // LyCORIS' own files say so for whole matrices
  if (lokr && t.integer(dimension, 0) >= kWhole) {
    t.set("lora.full_matrix", "true", {dimension}, "a rank that is larger than any matrix");
    if (t.has("linear_alpha")) t.imply("linear_alpha", "whole matrices have none");
  } else {
    if (t.has(dimension)) t.set("lora.rank", t.value(dimension), {dimension});
    if (t.has("linear_alpha")) t.set("lora.alpha", t.value("linear_alpha"), {"linear_alpha"});
  }
  for (const auto& [option, key] : {std::pair("factor", "lora.factor"),
                                    {"full_matrix", "lora.full_matrix"},
                                    {"decompose_both", "lora.decompose_both"},
                                    {"unbalanced_factorization", "lora.unbalanced"}}) {
    if (!t.has(option)) continue;
    if (lokr)
      t.set(key, t.value(option), {option});
    else
      t.imply(option, "it belongs to lokr");
  }
  const std::string modules = "apply_preset.target_module";
  if (!t.has(modules)) return;
  const std::vector<std::string> classes = split_list(t.value(modules));
  const bool attention = std::ranges::count(classes, "Attention") > 0,
             forward = std::ranges::count(classes, "FeedForward") > 0;
  if (int{attention} + int{forward} != std::ssize(classes))
    t.refuse(modules, "Attention and FeedForward are known; lora.targets choose modules by their names");
  else if (attention && forward)
    t.imply(modules, "the modules that are adapted of themselves");
  else
    t.set("lora.targets", attention ? "q,k,v,o" : "ffn.0,ffn.2", {modules});
}

void tuner_base(Translator& t) {
  const std::string option = "base_model_precision", kind = t.value(option);
  if (!t.has(option)) return;
  if (kind == "no_change")
    t.imply(option, "the base is kept as the plan has it");
  else if (kind.starts_with("int8") || kind.starts_with("fp8"))
    t.set("lora.base_dtype", kind.starts_with("int8") ? "int8" : "fp8", {option}, "of a LoRA's frozen base");
  else
    t.refuse(option, "8 bits are the fewest of a frozen base: lora.base_dtype");
}

void tuner_timesteps(Translator& t) {
  const std::string shift = "flow_schedule_shift", scale = "flow_sigmoid_scale", uniform = "flow_use_uniform_schedule";
  if (t.flag(uniform)) {
    t.set("diffusion.timesteps", "uniform", {uniform});
    if (t.has(scale)) t.imply(scale, "the draws are uniform");
  } else {
    if (t.has(uniform)) t.imply(uniform, "it is off");
    if (t.has(scale)) {
      const double width = t.number(scale, 1);
      t.set("diffusion.timesteps", width == 1 ? "logit_normal" : "logit_normal(0, " + number_text(width) + ")",
            {scale});
    }
  }
  if (!t.has(shift)) return;
  if (is_false(t.value(shift)))
    t.set("diffusion.shift", "1", {shift}, "no shift");
  else
    t.set("diffusion.shift", t.value(shift), {shift});
}

void tuner_loss(Translator& t) {
  const std::string option = "loss_type", kind = t.value(option, "l2"), schedule = "huber_schedule", c = "huber_c";
  const bool soft = kind == "huber" || kind == "smooth_l1";
  if (t.has(option) && (soft || kind == "l2"))
    t.set("diffusion.loss", soft ? kind : "mse", {option});
  else if (t.has(option))
    t.refuse(option, "l2, huber and smooth_l1 are there: see diffusion.loss");
  for (const auto& [name, key] : {std::pair(schedule, "diffusion.huber_schedule"), {c, "diffusion.huber_c"}})
    if (t.has(name) && soft)
      t.set(key, t.value(name), {name});
    else if (t.has(name))
      t.imply(name, "it belongs to loss_type huber");
}

void tuner_amount(Translator& t) {
  std::vector<std::string> options;
  int64_t batch = 1;
  for (const char* option : {"train_batch_size", "gradient_accumulation_steps"})
    if (t.has(option)) options.push_back(option), batch *= std::clamp<int64_t>(t.integer(option, 1), 0, 1'000'000);
  if (!options.empty())
    t.set_batch(batch, options, t.value("train_batch_size", "1") + " x " + t.value("gradient_accumulation_steps", "1"));
  const std::string steps = "max_train_steps", epochs = "num_train_epochs";
  const bool counted = t.integer(steps, 0) > 0;
  if (counted) t.set("run.steps", t.value(steps), {steps});
  if (t.has(epochs)) {
    if (counted || t.integer(epochs, 0) == 0)
      t.imply(epochs, counted ? "max_train_steps is given and counts" : "steps are counted");
    else
      set_epochs(t, epochs, t.integer(epochs, 1));
  }
  if (t.has(steps) && !counted) t.imply(steps, "num_train_epochs counts");
}

/// Squares of a side (pixel_area) or of megapixels (area), at the shapes of that area.
void tuner_shapes(Translator& t) {
  const std::string side = "resolution", type = "resolution_type", number = "video.num_frames";
  const std::string kind = t.value(type, "pixel"), frames = t.value(number, "1");
  std::vector<std::string> options;
  for (const std::string& option : {side, type, number})
    if (t.has(option)) options.push_back(option);
  const bool square = t.flag("crop") && t.value("crop_aspect", "square") == "square";
  for (const char* option : {"crop", "crop_aspect"})
    if (t.has(option)) t.imply(option, square ? "clips have the shape of a square" : "clips keep their shapes");
  if (!t.has(side)) {
    if (t.has(number)) t.set("data.frames", frames, {number});
    if (t.has(type)) t.imply(type, "resolution says nothing");
    return;
  }
  if (kind != "pixel" && kind != "pixel_area" && kind != "area") {
    if (t.has(number)) t.set("data.frames", frames, {number});
    return t.refuse(type, "pixel, pixel_area and area are known"), t.imply(side, "resolution_type says of what");
  }
  constexpr double kMegapixel = 1e6;
  const double given = t.number(side, 512);
  const int64_t pixels = kind == "area"
                             ? static_cast<int64_t>(std::sqrt(std::clamp(given, 0.0, 1e4) * kMegapixel) / 16 + 0.5) * 16
                             : static_cast<int64_t>(std::clamp(given, 0.0, 1e6));
  const std::string text = std::to_string(pixels);
  if (square) {
    t.set("data.size", text + "," + text, {side});
    if (t.has(type)) t.imply(type, "of a square they are one");
    if (t.has(number)) t.set("data.frames", frames, {number});
  } else if (kind == "pixel") {
    t.refuse(side, "shapes by their shorter side are not there: list them in data.buckets");
    if (t.has(type)) t.imply(type, "it belongs to resolution");
    if (t.has(number)) t.set("data.frames", frames, {number});
  } else {
    t.set("data.buckets", frames + "xAREA_" + text + "x" + text + kListSeparator, options,
          "shapes of the area of a square, in steps of 16");
  }
}

/// Variants of a caption with its tags in other orders.
void tuner_shuffle(Translator& t) {
  const std::string on = "caption_shuffle.enable", count = "caption_shuffle.count",
                    start = "caption_shuffle.position_start";
  const bool shuffles = t.flag(on);
  if (shuffles)
    t.set("data.caption_shuffle", t.value(count, "1"),
          t.has(count) ? std::vector<std::string>{on, count} : std::vector<std::string>{on});
  else
    for (const std::string& option : {on, count})
      if (t.has(option)) t.imply(option, "it is off");
  if (!t.has(start)) return;
  if (shuffles)
    t.set("data.keep_tokens", t.value(start), {start});
  else
    t.imply(start, "tags are not shuffled");
}

/// What only a [[data.set]] has: steps that draw from it, and a target that the base makes.
void tuner_own(Translator& t) {
  if (const std::string base = "is_regularisation_data"; t.flag(base))
    t.set("data.set.0.role", "prior", {base}, "its target is what the base says");
  else if (t.has(base))
    t.imply(base, "it is off");
  for (const auto& [option, key] :
       {std::pair("start_step", "data.set.0.from_step"), {"end_step", "data.set.0.to_step"}})
    if (const int64_t step = t.integer(option, 0); step > 0)
      t.set(key, std::to_string(step), {option});
    else if (t.has(option))
      t.imply(option, "the run's own");
}

void tuner_dataset_together(Translator& t) {
  tuner_own(t);
  if (t.has("repeats"))
    t.set("data.repeats", std::to_string(t.integer("repeats", 0) + 1), {"repeats"}, "0 is one pass there");
  tuner_shapes(t);
  tuner_shuffle(t);
  const std::string prompt = "instance_prompt", in_front = "prepend_instance_prompt";
  const bool alone = t.value("caption_strategy") == "instanceprompt", before = t.flag(in_front) && t.has(prompt);
  if (before && !alone)
    t.set("data.caption_prefix", t.value(prompt) + " ", {prompt, in_front}, "in front of every caption");
  else if (t.has(in_front))
    t.imply(in_front, before ? "the prompt is the whole caption" : "there is nothing to put in front");
  if (!t.has(prompt) || t.is_answered(prompt)) return;
  if (alone)
    t.set("data.caption", t.value(prompt), {prompt});
  else
    t.imply(prompt, "it belongs to caption_strategy instanceprompt");
}

/// The entries of pictures or videos that are trained on; what the others are is told.
void tuner_datasets(Translator& t) {
  const std::string option = "data_backend_config", file = file_beside(t.context(), t.value(option));
  if (!t.has(option)) return;
  if (!fs::exists(file)) return t.refuse(option, file + " was not found: set data.*");
  t.imply(option, "its options are in data.*");
  std::map<std::string, std::vector<Given>> entries;
  for (Given& g : read_config(file)) {
    const size_t dot = g.name.find('.');
    g.typed = g.name;
    const std::string entry = g.name.substr(0, dot);
    g.name.erase(0, dot == std::string::npos ? 0 : dot + 1);
    entries[entry].push_back(std::move(g));
  }
  std::vector<Translation> sets;
  for (auto& [entry, given] : entries) {
    const auto value = [&, &options = given](const char* name) {
      const auto found = std::ranges::find(options, name, &Given::name);
      return found == options.end() ? std::string() : found->value;
    };
    const std::string type = value("dataset_type"), shown = file + ", entry " + entry + " (" + value("id") + ")";
    const bool off = is_true(value("disabled")), measured = type == "eval" && !t.flag("eval_loss_disable") && !off;
    const std::string folder = value("instance_data_dir"), conditioning = value("conditioning_type");
    if (measured && t.integer("eval_steps_interval", 0) > 0 && !folder.empty()) {
      t.result().set("eval.path", folder, shown);
    } else if (type == "eval" && !off) {
      t.warn_of(shown, "it is not trained on, and not measured: set eval.path and eval.every");
    } else if (type == "conditioning" && (conditioning == "mask" || conditioning == "segmentation") && !off) {
      t.result().set("data.mask_path", folder, shown + ": masks by the names of clips");
    } else if (is_true(value("disabled")) || (type != "" && type != "image" && type != "video")) {
      t.result().implied.push_back({shown, is_true(value("disabled")) ? "it is disabled" : "no data set to train on"});
    } else {
      sets.push_back(translate(simpletuner_dataset(), std::move(given), t.context()));
    }
  }
  if (!sets.empty()) t.result().merge(of_data_sets(sets));
}

/// What data sets of other kinds than those that are trained on leave for the run to say.
void tuner_beside(Translator& t) {
  const std::string interval = "eval_steps_interval", off = "eval_loss_disable", share = "masked_loss_probability";
  const bool measured = t.result().find("eval.path"), masked = t.result().find("data.mask_path");
  if (t.has(interval) && measured)
    t.set("eval.every", t.value(interval), {interval});
  else if (t.has(interval))
    t.warn(interval, "no data set is held out: set eval.path and eval.every");
  if (t.has(off)) t.imply(off, measured ? "it is off" : "nothing is measured");
  if (t.has(share) && masked)
    t.set("diffusion.unmasked_probability", number_text(1 - t.number(share, 1)), {share}, "1 less it");
  else if (t.has(share))
    t.imply(share, "no data set is of masks");
}

void tuner_together(Translator& t) {
  tuner_model(t);
  tuner_datasets(t);
  tuner_beside(t);
  tuner_loss(t);
  for (const char* option : {"resolution", "resolution_type"})
    if (t.has(option) && (t.result().find("data.buckets") || t.result().find("data.size")))
      t.imply(option, "the data set says it");
  if (!t.is_answered("resolution") && !t.is_answered("resolution_type")) tuner_shapes(t);
  tuner_optimiser(t);
  tuner_adapters(t);
  tuner_base(t);
  tuner_timesteps(t);
  tuner_amount(t);
  if (const std::string limit = "checkpoints_total_limit"; t.has(limit))
    set_kept(t, is_false(t.value(limit)) ? "0" : t.value(limit), limit);
  if (t.has("lr_scheduler")) set_schedule(t, "lr_scheduler");
  const auto* optimiser = t.result().find("train.optimizer");
  const bool factored = optimiser && optimiser->value == "came";  // with a third, of its residuals
  std::vector<std::string> betas;
  for (const char* option : {"optimizer_beta1", "optimizer_beta2"})
    if (t.has(option)) betas.push_back(option);
  if (!betas.empty())
    t.set("train.betas",
          t.value("optimizer_beta1", "0.9") + "," + t.value("optimizer_beta2", "0.999") + (factored ? ",0.9999" : ""),
          betas);
  if (t.has("lora_alpha")) {
    if (is_false(t.value("lora_alpha")))
      t.imply("lora_alpha", "the rank");
    else
      t.set("lora.alpha", t.value("lora_alpha"), {"lora_alpha"});
  }
  const std::string on = "use_ema", decay = "ema_decay";
  if (t.flag(on))
    t.set("train.ema", t.value(decay, "0.995"),
          t.has(decay) ? std::vector<std::string>{on, decay} : std::vector<std::string>{on});
  else
    for (const std::string& option : {on, decay})
      if (t.has(option)) t.imply(option, "no average is kept");
}

}  // namespace

void simpletuner_names(std::vector<Given>& given) {
  for (Given& g : given) {
    g.typed = g.name;
    strip_prefix(g.name, "--");
  }
}

const Dialect& simpletuner_config() {
  static const Dialect dialect = dialect_of("simpletuner", "config", tuner_together);
  return dialect;
}
const Dialect& simpletuner_lycoris() {
  static const Dialect dialect = dialect_of("simpletuner", "lycoris", lycoris_together);
  return dialect;
}
const Dialect& simpletuner_dataset() {
  static const Dialect dialect = dialect_of("simpletuner", "dataset", tuner_dataset_together);
  return dialect;
}

}  // namespace tessera::tools
