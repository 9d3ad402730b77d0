// ai-toolkit's YAML.
#include <algorithm>
#include <filesystem>

#include "tessera/base/check.h"
#include "tessera/tools/import/dialects.h"
#include "tessera/tools/import/parts.h"

namespace tessera::tools {

namespace {

namespace fs = std::filesystem;

void toolkit_model(Translator& t) {
  const std::string option = "model.name_or_path", arch = t.value("model.arch");
  if (t.has("model.arch")) {
    if (arch.starts_with("wan"))
      t.imply("model.arch", "a Wan; its weights say which");
    else
      t.refuse("model.arch", "of its models Wan 2.1 and 2.2 are there");
  }
  if (t.has(option)) {
    const std::string folder = t.value(option);
    t.set("model.path", folder, {option});
    t.assume("data.vae", folder, "its folder");
    t.assume("data.text_encoder", "umt5-xxl", "the release's");
    t.assume("data.text_encoder_path", folder, "its folder");
    t.assume("data.tokenizer", (fs::path(folder) / "tokenizer").string(), "its folder");
  }
  const std::string high = "model.model_kwargs.train_high_noise", low = "model.model_kwargs.train_low_noise";
  if (t.has(high) && t.has(low)) {
    if (!t.flag(high) && !t.flag(low))
      t.refuse(low, "no expert would train"), t.imply(high, "it is off");
    else
      t.set("experts.train",
            t.flag(high) && t.flag(low) ? "both"
            : t.flag(high)              ? "high_noise"
                                        : "low_noise",
            {high, low});
  } else {
    for (const auto& [expert, name, other] :
         {std::tuple(high, "high_noise", "low_noise"), {low, "low_noise", "high_noise"}})
      if (t.has(expert)) t.set("experts.train", t.flag(expert) ? "both" : other, {expert});
  }
}

/// "qfloat8", "uint4|FILE of an adapter that recovers accuracy"; qfloat8 where none is named.
void toolkit_base(Translator& t) {
  const std::string on = "model.quantize", type = "model.qtype", kind = t.value(type, "qfloat8");
  if (!t.flag(on)) {
    for (const std::string& option : {on, type})
      if (t.has(option)) t.imply(option, "weights are not quantised");
    return;
  }
  std::vector<std::string> options = {on};
  if (t.has(type)) options.push_back(type);
  if (kind == "qfloat8" || kind == "float8") return t.set("lora.base_dtype", "fp8", options, "of a LoRA's frozen base");
  if (kind == "qint8" || kind == "int8") return t.set("lora.base_dtype", "int8", options, "of a LoRA's frozen base");
  t.refuse(type, "8 bits are the fewest of a frozen base: lora.base_dtype");
  t.imply(on, "model.qtype says to what");
}

/// Every picture or clip is trained at the area of each side there.
void toolkit_shapes(Translator& t) {
  const std::string sides = "datasets.resolution", number = "datasets.num_frames", buckets = "datasets.buckets";
  const std::string frames = t.value(number, "1");
  std::vector<std::string> options;
  for (const std::string& option : {sides, number})
    if (t.has(option)) options.push_back(option);
  if (t.has(buckets) && !t.flag(buckets)) {
    const std::vector<std::string> list = split_list(t.value(sides, "512"));
    t.imply(buckets, "all clips have one shape");
    if (t.has(number)) t.set("data.frames", frames, {number});
    if (list.size() != 1) return t.refuse(sides, "one shape for all clips is one side");
    if (t.has(sides)) t.set("data.size", list[0] + "," + list[0], {sides});
    return;
  }
  if (t.has(buckets)) options.push_back(buckets);
  std::string shapes;
  const std::vector<std::string> list = split_list(t.value(sides, "512"));
  for (const std::string& side : list) shapes += frames + "xAREA_" + side + "x" + side + kListSeparator;
  if (options.empty())
    t.assume("data.buckets", shapes, "ai-toolkit's side of 512");
  else
    t.set("data.buckets", shapes, options, "shapes of the area of a square, in steps of 16");
  if (list.size() > 1) t.warn(sides, "a clip is trained at the area that fits it best, there at each of them");
}

/// Frames of a video that a sample takes: there, without another word, from the whole of it, whatever its length.
void toolkit_frames(Translator& t) {
  const std::string option = "datasets.shrink_video_to_frames";
  const char* const why =
      "frames follow each other at data.fps from a video's first on, there they are spread over the whole of it";
  if (t.has(option) && !t.flag(option))
    t.imply(option, "frames of a video follow each other");
  else if (t.has(option))
    t.warn(option, why);
  else if (t.integer("datasets.num_frames", 1) > 1 && !t.flag("datasets.auto_frame_count"))
    t.warn_of("shrink_video_to_frames is not given", why);
}

bool has_adapters(const Translator& t) {
  const std::string kind = t.value("network.type");
  return kind == "lora" || kind == "lokr";
}

void toolkit_batch(Translator& t) {
  std::vector<std::string> options;
  int64_t count = 1;
  std::string how;
  for (const char* option : {"train.batch_size", "train.gradient_accumulation", "train.gradient_accumulation_steps"}) {
    if (!t.has(option)) continue;
    options.push_back(option);
    count *= std::clamp<int64_t>(t.integer(option, 1), 0, 1'000'000);
    how += (how.empty() ? "" : " x ") + t.value(option);
  }
  // Each clip is there once more for what is to stay.
  const bool twins =
      has_adapters(t) && (t.flag("train.diff_output_preservation") || t.flag("train.blank_prompt_preservation"));
  if (options.empty() && twins) return t.assume("train.global_batch", "2", "a clip, and once more for what is to stay");
  if (twins) count *= 2, how += " x 2";
  if (!options.empty()) t.set_batch(count, options, how);
}

/// What the adapters are to leave as it is: the class of the trigger word, or what no caption asks for.
void toolkit_preservation(Translator& t) {
  const std::string of_class = "train.diff_output_preservation", blank = "train.blank_prompt_preservation",
                    word = "train.diff_output_preservation_class";
  const bool adapts = has_adapters(t), by_class = adapts && t.flag(of_class),
             by_blank = adapts && !by_class && t.flag(blank);
  if (!adapts)
    for (const std::string& option : {of_class, blank})
      if (t.flag(option)) t.refuse(option, "without a network there are no adapters to leave out: leave it out");
  if (by_class) t.set("train.preserve", "class", {of_class});
  if (by_class && t.value(word).empty())
    t.refuse(of_class, "without diff_output_preservation_class: set train.preserve_class");
  if (by_blank) t.set("train.preserve", "blank", {blank});
  if (t.has(word) && by_class && !t.value(word).empty()) t.set("train.preserve_class", t.value(word), {word});
  for (const std::string& option : {of_class, blank, word})
    if (t.has(option) && !t.is_answered(option))
      t.imply(option, option == blank && by_class ? "diff_output_preservation is on" : "it is off");
  for (const auto& [option, on] : {std::pair("train.diff_output_preservation_multiplier", by_class),
                                   {"train.blank_prompt_preservation_multiplier", by_blank}})
    if (t.has(option))
      on ? t.set("train.preserve_weight", t.value(option), {option}) : t.imply(option, "it belongs to a preservation");
}

/// Targets are moved away from what the model says without a prompt; the difference to them may count several times, which
/// there is so of gradients and of losses by its square.
void toolkit_guidance(Translator& t) {
  const std::string on = "train.do_guidance_loss", target = "train.guidance_loss_target",
                    zero = "train.do_guidance_loss_cfg_zero", schedule = "train.guidance_loss_schedule",
                    moves = "train.do_differential_guidance", times = "train.differential_guidance_scale";
  const bool guided = t.flag(on), moved = guided && t.flag(moves);
  if (guided && t.has(target)) {
    const std::vector<std::string> ends = split_list(t.value(target));
    t.set("train.guidance_target", ends.size() == 2 ? ends[0] + ":" + ends[1] : t.value(target), {on, target});
  } else if (guided) {
    t.set("train.guidance_target", "3", {on}, "ai-toolkit's guidance_loss_target");
  }
  if (guided && t.flag(zero)) t.set("train.guidance_zero", "true", {zero});
  if (guided && t.has(schedule)) {
    const std::string kind = t.value(schedule);
    kind == "sigma" || kind == "constant" ? t.set("train.guidance_schedule", kind, {schedule})
                                          : t.refuse(schedule, "constant and sigma are there");
  }
  if (moved && t.value("train.loss_type", "mse") != "mse")
    t.refuse(moves, "of a loss other than mse it is no weight: leave it out");
  else if (moved)
    t.set("train.guidance_weight", t.value(times, "3"),
          t.has(times) ? std::vector<std::string>{moves, times} : std::vector<std::string>{moves},
          "gradients are so many times as large");
  for (const std::string& option : {on, target, zero, schedule, moves, times})
    if (t.has(option) && !t.is_answered(option))
      t.imply(option, guided || option == on ? "it is off" : "it belongs to do_guidance_loss");
}

/// What only a [[data.set]] has.
void toolkit_set(Translator& t) {
  const std::string beside = "datasets.is_reg", prior = "datasets.prior_reg", weight = "datasets.loss_multiplier";
  if (t.flag(prior))
    t.set("data.set.0.role", "prior", {prior}, "its target is what the base says");
  else if (t.flag(beside))
    t.set("data.set.0.role", "regularisation", {beside}, "as many samples as of the other sets");
  for (const std::string& option : {beside, prior})
    if (t.has(option) && !t.is_answered(option)) t.imply(option, t.flag(option) ? "prior_reg says more" : "it is off");
  if (!t.has(weight)) return;
  if (t.number(weight, 1) == 1)
    t.imply(weight, "it is 1");
  else
    t.set("data.set.0.loss_weight", t.value(weight), {weight});
}

void toolkit_loss(Translator& t, const Given& g) {
  if (g.value != "mse" && g.value != "mae" && g.value != "pseudo_huber")
    return t.refuse(g.name, "mse, mae and pseudo_huber are there: see diffusion.loss");
  t.set("diffusion.loss", g.value, {g.name});
  if (g.value == "pseudo_huber") t.set("diffusion.huber_c", "0.01", {g.name}, "its c");
}

/// Masks are divided by their mean over the batch there, and over each sample here.
void toolkit_masks(Translator& t) {
  const std::string path = "datasets.mask_path", alpha = "datasets.alpha_mask";
  const bool of_files = t.has(path) && !is_false(t.value(path)), of_alpha = !of_files && t.flag(alpha);
  if (of_files) t.set("data.mask_path", t.value(path), {path});
  if (of_alpha) t.set("data.alpha_mask", "true", {alpha});
  for (const std::string& option : {path, alpha})
    if (t.has(option) && !t.is_answered(option))
      t.imply(option, of_files ? "datasets.mask_path says where masks are" : "it is off");
  for (const auto& [option, key] :
       {std::pair("datasets.invert_mask", "data.invert_mask"), {"datasets.mask_min_value", "data.mask_min_value"}})
    if (t.has(option) && (of_files || of_alpha))
      t.set(key, t.value(option), {option});
    else if (t.has(option))
      t.imply(option, "it belongs to mask_path");
  if (!of_files && !of_alpha) return;
  const std::string& option = of_files ? path : alpha;
  t.set("data.mask_resize", "nearest", {option});
  t.set("diffusion.normalize_masked_area_loss", "true", {option}, "masks are divided by their mean, of each sample");
}

/// A LoKr is whole there unless it is told otherwise, and then has neither rank nor alpha.
void toolkit_network(Translator& t) {
  const std::string option = "network.type", kind = t.value(option), full = "network.lokr_full_rank",
                    factor = "network.lokr_factor";
  const bool known = has_adapters(t), lokr = kind == "lokr", whole = lokr && (!t.has(full) || t.flag(full));
  if (t.has(option) && known)
    t.set("train.mode", "lora", {option});
  else if (t.has(option))
    t.refuse(option, "LoRA and LoKr are there");
  if (lokr) t.set("lora.kind", kind, {option});
  if (t.has(full) && whole) t.set("lora.full_matrix", "true", {full});
  if (t.has(full) && !whole) t.imply(full, lokr ? "the second matrix is by rank" : "it belongs to lokr");
  if (whole) t.assume("lora.full_matrix", "true", "ai-toolkit's LoKr is whole");
  if (t.has(factor) && lokr) t.set("lora.factor", t.value(factor), {factor});
  if (t.has(factor) && !lokr) t.imply(factor, "it belongs to lokr");
  for (const auto& [name, key] : {std::pair("network.linear", "lora.rank"),
                                  {"network.rank", "lora.rank"},
                                  {"network.linear_alpha", "lora.alpha"},
                                  {"network.alpha", "lora.alpha"}})
    if (t.has(name) && known && !whole)
      t.set(key, t.value(name), {name});
    else if (t.has(name))
      t.imply(name, whole ? "whole matrices have none" : "it belongs to network.type");
  if (known && !whole) t.assume("lora.alpha", "1", "ai-toolkit's alpha");
}

void toolkit_together(Translator& t) {
  toolkit_model(t);
  toolkit_base(t);
  toolkit_shapes(t);
  toolkit_frames(t);
  toolkit_batch(t);
  toolkit_preservation(t);
  toolkit_guidance(t);
  toolkit_set(t);
  toolkit_masks(t);
  const std::string name = "config.name", folder = "training_folder";
  if (t.has(name) && t.has(folder))
    t.set("run.out", (fs::path(t.value(folder)) / t.value(name)).string(), {folder, name});
  else if (t.has(name) || t.has(folder))
    t.set("run.out", t.value(t.has(name) ? name : folder), {t.has(name) ? name : folder});
  toolkit_network(t);
  const std::string saves = "save.max_step_saves_to_keep";
  set_kept(t, t.value(saves, "5"), t.has(saves) ? saves : "", t.has(saves) ? "" : "ai-toolkit's");
  if (t.has("train.lr_scheduler")) set_schedule(t, "train.lr_scheduler");
  if (t.has("train.optimizer")) set_optimiser(t, "train.optimizer");
  const std::string on = "train.ema_config.use_ema", decay = "train.ema_config.ema_decay";
  if (t.flag(on) && t.has(decay))
    t.set("train.ema", t.value(decay), {on, decay});
  else if (t.flag(on))
    t.set("train.ema", "0.999", {on}, "ai-toolkit's decay");
  else
    for (const std::string& option : {on, decay})
      if (t.has(option)) t.imply(option, "no average is kept");
  if (const std::string prompts = "sample.prompts"; t.has(prompts)) {
    std::string list;
    for (const std::string& prompt : split_list(t.value(prompts))) list += prompt + kListSeparator;
    t.set("sample.prompts", list, {prompts});
  }
}

}  // namespace

void ai_toolkit_names(std::vector<Given>& given) {
  for (Given& g : given) {
    if (g.typed.empty()) g.typed = g.name;
    if (strip_prefix(g.name, "config.process.0."))
      strip_prefix(g.name, "datasets.0.") ? void(g.name.insert(0, "datasets.")) : void();
    else if (g.name.starts_with("config.process."))
      g.name.erase(0, std::string_view("config.").size());
  }
}

const Dialect& ai_toolkit_config() {
  static const Dialect dialect = dialect_of("ai_toolkit", "config", toolkit_together, {{"loss", plain(toolkit_loss)}});
  return dialect;
}

}  // namespace tessera::tools
