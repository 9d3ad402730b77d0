// VideoX-Fun's commands that train Wan: scripts/wan2.1 and scripts/wan2.2, _fun and _vace beside them.
#include <algorithm>
#include <filesystem>

#include "tessera/base/check.h"
#include "tessera/tools/import/config_file.h"
#include "tessera/tools/import/dialects.h"
#include "tessera/tools/import/parts.h"

namespace tessera::tools {

namespace {

namespace fs = std::filesystem;

/// What a command's --config_path says: the release, its scheduler, and names of files in the model's folder.
struct Release {
  const char* file;
  const char* shift;
  const char* boundary;  ///< empty: one denoiser
  const char* vae;
};
constexpr Release kReleases[] = {
    {"wan_civitai.yaml", "5", "", "Wan2.1_VAE.pth"},         {"wan_civitai_t2v.yaml", "12", "0.875", "Wan2.1_VAE.pth"},
    {"wan_civitai_i2v.yaml", "5", "0.9", "Wan2.1_VAE.pth"},  {"wan_civitai_5b.yaml", "5", "", "Wan2.2_VAE.pth"},
    {"wan_civitai_animate.yaml", "5", "", "Wan2.1_VAE.pth"}, {"wan_civitai_s2v.yaml", "3", "", "Wan2.1_VAE.pth"}};

/// The release of the file's name, null where there is none; warns where the file is here and says otherwise.
const Release* release_of(Translator& t) {
  const std::string option = "--config_path", file = file_beside(t.context(), t.value(option));
  if (!t.has(option)) return nullptr;
  const auto found = std::ranges::find(kReleases, fs::path(file).filename().string(), &Release::file);
  if (found == std::end(kReleases)) {
    t.refuse(option, "of its releases Wan 2.1's, and 2.2's t2v, i2v, 5b, animate and s2v are there");
    return nullptr;
  }
  t.set("diffusion.shift", found->shift, {option}, "the release's scheduler");
  if (!fs::exists(file)) return found;
  const std::pair<const char*, const char*> values[] = {{"scheduler_kwargs.shift", found->shift},
                                                        {"transformer_additional_kwargs.boundary", found->boundary}};
  for (const Given& g : read_config(file))
    for (const auto& [name, released] : values)
      if (g.name == name && *released && to_number(g.value) != to_number(released))
        t.warn_of(file, g.shown() + ", the release's file has " + released + ", and so has the recipe");
  return found;
}

void videox_model(Translator& t) {
  const Release* release = release_of(t);
  const std::string option = "--pretrained_model_name_or_path", weights = "--transformer_path",
                    part = "--boundary_type";
  const std::string kind = t.value(part, "low"), folder = t.value(option);
  const bool two = release && *release->boundary;
  std::vector<std::string> options = {option};
  std::string path = folder;
  if (t.has(part)) {
    if (!two || kind == "full") {
      t.imply(part, "all timesteps of the one denoiser are trained");
    } else if (kind != "low" && kind != "high") {
      t.refuse(part, "low, high and full are known");
    } else {
      options.push_back(part);
      t.set(kind == "low" ? kMostTimestep : kLeastTimestep, release->boundary, {part}, "the expert's timesteps");
    }
  } else if (two) {
    t.assume(kMostTimestep, release->boundary, "the script trains the low-noise expert");
  }
  if (two && kind != "full")
    path = (fs::path(folder) / (kind == "high" ? "high_noise_model" : "low_noise_model")).string();
  if (t.has(weights)) {
    t.set("model.path", t.value(weights), {weights});
    if (t.has(option)) t.imply(option, "encoders are looked up in it");
  } else if (t.has(option)) {
    t.set("model.path", path, options);
  }
  if (t.has("--vae_path")) t.set("data.vae", t.value("--vae_path"), {"--vae_path"});
  if (!t.has(option)) return;
  if (release) t.assume("data.vae", (fs::path(folder) / release->vae).string(), "its folder");
  t.assume("data.text_encoder", "umt5-xxl", "the release's");
  t.assume("data.text_encoder_path", (fs::path(folder) / "models_t5_umt5-xxl-enc-bf16.pth").string(), "its folder");
  t.assume("data.tokenizer", (fs::path(folder) / "google/umt5-xxl").string(), "its folder");
}

/// Parameters whose names have one of the words in them: at the full rate, or at half of it.
void set_trained_parts(Translator& t, bool lora) {
  const std::string parts = "--trainable_modules", slow = "--trainable_modules_low_learning_rate";
  const auto words = [&](const std::string& option) {
    return t.has(option) ? split_list(t.value(option)) : std::vector<std::string>{};
  };
  const std::vector<std::string> fast = words(parts), half = words(slow);
  const bool all = std::ranges::find(fast, ".") != fast.end();
  if (lora) {
    for (const std::string& option : {parts, slow})
      if (t.has(option)) t.imply(option, "adapters are trained");
    return;
  }
  if (fast.empty() && half.empty()) {
    for (const std::string& option : {parts, slow})
      if (t.has(option)) t.refuse(option, "it names no module");
    return;
  }
  if (all) {
    t.set("train.mode", "full", {parts});
    if (t.has(slow)) t.imply(slow, "--trainable_modules . has all parameters at the full rate");
    return;
  }
  std::string only, groups;
  const auto add = [](std::string& list, const std::string& item) { list += (list.empty() ? "" : ",") + item; };
  const auto pattern = [](const std::string& word) { return word == "." ? "*" : "*" + word + "*"; };
  for (const std::string& word : fast) {
    add(only, pattern(word));
    if (!half.empty()) add(groups, pattern(word) + " lr_factor=1");
  }
  for (const std::string& word : half) {
    add(only, pattern(word));
    add(groups, pattern(word) + " lr_factor=0.5");
  }
  std::vector<std::string> options;
  for (const std::string& option : {parts, slow})
    if (t.has(option)) options.push_back(option);
  if (std::ranges::find(half, ".") == half.end())
    t.set("train.only", only, options, "parameters whose names have one of these words");
  if (!groups.empty()) t.set("train.group", groups, {slow}, "at half the rate");
}

/// Which of its scripts with draws a command is of; none: another.
enum class Drawn { none, inpaint, control, camera, vace, animate };
Drawn drawn_by(const Translator& t) {
  const std::string kind = t.value("--train_mode", "normal"), reference = "--control_ref_image";
  const std::string release = fs::path(t.value("--config_path")).filename().string();
  if (kind == "inpaint") return Drawn::inpaint;
  if (kind == "control_ref") return Drawn::control;
  if (kind == "control_camera_ref") return Drawn::camera;
  if (release == "wan_civitai_animate.yaml") return Drawn::animate;
  const bool speech = release == "wan_civitai_s2v.yaml";
  return t.has(reference) && !speech && (!t.has("--train_mode") || kind == "normal") ? Drawn::vace : Drawn::none;
}

/// Masks and references that the script draws in each step, of which the recipe has some for each clip; and what it leaves
/// out.
void set_draws(Translator& t, Drawn script) {
  const std::string mode = "--train_mode", reference = "--control_ref_image",
                    whole = "--add_full_ref_image_in_self_attention", filled = "--add_inpaint_info";
  constexpr const char* kDraws = "8";
  const bool first = fs::path(t.value("--config_path")).filename() == "wan_civitai.yaml";  // 2.1's, which see a picture
  const bool follows = script == Drawn::control || script == Drawn::camera;
  std::string dropout;
  const auto leave_out = [&](const char* name) {
    dropout += (dropout.empty() ? "" : ",") + std::string(name) + "=0.1";
  };
  if (script == Drawn::control) leave_out("control");
  if (follows && !t.has(filled)) leave_out("start");
  if (follows && t.has(whole)) leave_out("reference");
  if (first && (follows || script == Drawn::inpaint)) leave_out("image");
  const bool by_mode = t.has(mode) && (follows || script == Drawn::inpaint);
  if (by_mode)
    t.set("diffusion.condition_draws", kDraws, {mode}, "of each clip, where the script draws in each step");
  else
    t.assume("diffusion.condition_draws", kDraws, "of each clip, where the script draws in each step");
  if (!dropout.empty()) t.assume("diffusion.condition_dropout", dropout, "the script's");
  if (script == Drawn::vace) t.assume("data.references", "4", "the script's pictures of a sample");
  if (t.has(reference)) {
    if (t.value(reference) == "first_frame")
      t.set("diffusion.draw_shares", "first_frame=1", {reference});
    else if (t.value(reference) == "random")
      t.imply(reference, "diffusion.condition_draws draws it");
    else
      t.refuse(reference, "first_frame and random are known");
  }
  for (const std::string& option : {whole, filled})
    if (t.has(option)) t.imply(option, "the weights say it");
}

void videox_mode(Translator& t) {
  const std::string mode = "--train_mode", kind = t.value(mode, "normal");
  const Drawn script = drawn_by(t);
  if (script != Drawn::none) set_draws(t, script);
  if (t.has(mode) && !t.is_answered(mode)) {
    if (kind == "ti2v")
      t.set("diffusion.image_share", "0.5", {mode}, "half of the samples begin with their first frame");
    else if (kind == "normal" || kind == "i2v")
      t.imply(mode, "the weights say it");
    else
      t.refuse(mode, "normal, i2v, ti2v, inpaint, control_ref and control_camera_ref are there");
  }
  for (const char* option : {"--add_full_ref_image_in_self_attention", "--add_inpaint_info"})
    if (t.has(option) && !t.is_answered(option)) t.refuse(option, "it belongs to --train_mode control_ref");
  if (const std::string reference = "--control_ref_image"; t.has(reference) && !t.is_answered(reference)) {
    if (t.value(reference) == "first_frame")
      t.imply(reference, "the reference is the clip's first frame");
    else
      t.refuse(reference, "the reference is the clip's first frame");
  }
  const bool lora = t.has("--rank") || t.has("--network_alpha") || t.has("--target_name") || t.has("--use_peft_lora");
  set_trained_parts(t, lora);
  if (!lora) return t.assume("train.mode", "full", "train.py trains all parameters");
  t.assume("train.mode", "lora", "train_lora.py");
  if (t.has("--target_name")) set_targets(t, "--target_name");
  t.assume("lora.rank", "128", "the script's");
  t.assume("lora.alpha", "64", "the script's");
}

void videox_shapes(Translator& t) {
  const std::string video = "--video_sample_size", image = "--image_sample_size", number = "--video_sample_n_frames";
  const std::string fixed = "--fix_sample_size", buckets = "--enable_bucket", stride = "--video_sample_stride";
  const std::string frames = t.value(number, "17"), side = t.value(video, t.value(image, "512"));
  std::vector<std::string> options;
  for (const std::string& option : {video, number, buckets})
    if (t.has(option)) options.push_back(option);
  if (t.has(fixed)) {
    const std::vector<std::string> sides = split_list(t.value(fixed));
    t.set("data.size", sides.size() == 2 ? sides[0] + "," + sides[1] : t.value(fixed), {fixed});
    for (const std::string& option : {video, buckets})
      if (t.has(option)) t.imply(option, "--fix_sample_size is the size of all clips");
  } else if (t.has(buckets)) {
    t.set("data.buckets", frames + "xAREA_" + side + "x" + side + kListSeparator, options,
          "shapes of the area of a square, in steps of 16");
  } else if (t.has(video) || t.has(image)) {
    t.set("data.size", side + "," + side, {t.has(video) ? video : image});
  } else {
    t.assume("data.size", "512,512", "the script's");
  }
  if (t.has(number) && !(t.has(buckets) && !t.has(fixed))) t.set("data.frames", frames, {number});
  t.assume("data.frames", frames, "the script's");
  for (const std::string& option : {image, std::string("--token_sample_size")})
    if (t.has(option) && !t.is_answered(option))
      t.value(option) == side ? t.imply(option, "--video_sample_size says it")
                              : t.warn(option, "pictures and videos have the sizes of --video_sample_size");
  if (t.has(stride)) {
    if (t.integer(stride, 4) == 1)
      t.set("data.fps", "0", {stride}, "frames as they come");
    else
      t.warn(stride, "frames are taken at data.fps, whatever a file's rate is, not every so many of the file");
  }
  if (const std::string repeat = "--video_repeat"; t.has(repeat)) {
    if (t.integer(repeat, 0) > 0)
      t.set("data.repeats", t.value(repeat), {repeat}, "of videos; pictures are repeated as often here");
    else
      t.refuse(repeat, "there it leaves videos out: take them out of the table");
  }
}

void videox_optimiser(Translator& t) {
  if (t.has("--use_came")) t.set("train.optimizer", "came", {"--use_came"});
  if (t.has("--use_8bit_adam")) {
    if (t.has("--use_came"))
      t.imply("--use_8bit_adam", "the optimiser is CAME");
    else
      t.set("plan.moments", "int8", {"--use_8bit_adam"}, "moments in blocks of 256 with a scale");
  }
  // CAME's numbers are the script's own.
  const bool came = t.has("--use_came");
  for (const char* option : {"--adam_beta1", "--adam_beta2", "--adam_epsilon"})
    if (came && t.has(option)) t.imply(option, "the optimiser is CAME");
  if (!came) {
    set_script_betas(t);
    if (t.has("--adam_epsilon")) t.set("train.eps", t.value("--adam_epsilon"), {"--adam_epsilon"});
    t.assume("train.betas", "0.9,0.999", "the script's");
    t.assume("train.eps", "1e-8", "the script's");
  }
  if (!t.has("--initial_grad_norm_ratio") && !t.has("--use_deepspeed") && !t.has("--use_fsdp"))
    t.warn_of(
        "--initial_grad_norm_ratio is not given",
        "without DeepSpeed and FSDP the script clips to 5 times the norm at first, less and less over 1000 steps; "
        "train.clip_norm is the same in all");
  if (t.has("--use_ema")) t.set("train.ema", "0.9999", {"--use_ema"}, "the decay of diffusers' EMAModel");
  set_script_schedule(t);
  if (t.has("--scale_lr")) {
    t.set("train.lr_scale", "linear", {"--scale_lr"});
    t.assume("train.lr_base_batch", "1", "--scale_lr multiplies by the batch");
  }
}

void videox_together(Translator& t) {
  videox_model(t);
  videox_mode(t);
  videox_shapes(t);
  videox_optimiser(t);
  set_script_amount(t, 16, 100);
  const std::string uniform = "--uniform_sampling";
  if (t.has(uniform)) t.set("diffusion.timesteps", "uniform", {uniform});
  set_script_timesteps(t, t.has(uniform));
  if (const std::string prompts = "--validation_prompts"; t.has(prompts))
    t.set("sample.prompts", t.value(prompts), {prompts});
  if (const std::string every = "--validation_steps"; t.has(every)) {
    if (t.has("--validation_prompts"))
      t.set("sample.every", t.value(every), {every});
    else
      t.imply(every, "there are no --validation_prompts");
  }
}

}  // namespace

const Dialect& videox_command() {
  static const Dialect dialect = dialect_of("videox_fun", "command", videox_together);
  return dialect;
}

}  // namespace tessera::tools
