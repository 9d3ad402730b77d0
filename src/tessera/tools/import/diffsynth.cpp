// DiffSynth-Studio's training commands: the old form of train_wan_t2v.py and the new one of model_training/train.py.
#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "tessera/base/check.h"
#include "tessera/base/json.h"
#include "tessera/recipe/recipe_table.h"
#include "tessera/tools/import/dialects.h"
#include "tessera/tools/import/parts.h"
#include "tessera/tools/import/wan_folder.h"

namespace tessera::tools {

namespace {

namespace fs = std::filesystem;

/// "auto", "deepspeed_stage_2", "deepspeed_stage_3_offload", Lightning's names.
void strategy(Translator& t, const Given& g) {
  std::string word = g.value;
  const bool offload = word.ends_with("_offload");
  if (offload) word.resize(word.size() - 8);
  if (word == "auto") return t.imply(g.name, "the plan chooses");
  if (word == "ddp" || word.starts_with("ddp_"))
    t.set("plan.strategy", "no_shard", {g.name});
  else if (word == "fsdp")
    t.set("plan.strategy", "full_shard", {g.name});
  else if (word == "deepspeed_stage_1" || word == "deepspeed_stage_2" || word == "deepspeed_stage_3")
    t.set("plan.strategy", "ZeRO-" + word.substr(word.size() - 1), {g.name});
  else
    throw UserError(
        Exit::usage, "import", g.shown() + " is not known",
        "did you mean " +
            nearest(g.value, {"auto", "ddp", "fsdp", "deepspeed_stage_1", "deepspeed_stage_2", "deepspeed_stage_3",
                              "deepspeed_stage_2_offload", "deepspeed_stage_3_offload"})
                .front() +
            "?");
  if (!offload) return;
  t.set("plan.states", "host", {g.name});
  t.set("plan.gradients", "host", {g.name});
  if (word.ends_with("_3")) t.set("plan.parameters", "host", {g.name});
}

/// What is saved: the offload form acts without the plain one too.
void activations(Translator& t) {
  const char* const kPlain = "--use_gradient_checkpointing";
  const char* const kOffload = "--use_gradient_checkpointing_offload";
  const char* const kOld = "--gradient_checkpointing";
  if (t.flag(kOffload)) {
    std::vector<std::string> options = {kOffload};
    if (t.flag(kPlain)) options.push_back(kPlain);
    t.set("plan.activations", "recompute_offload", options, "blocks' inputs are offloaded to the host");
  }
  for (const char* option : {kPlain, kOffload, kOld}) {
    if (!t.has(option) || (t.flag(option) && t.flag(kOffload) && option != kOld)) continue;
    if (t.flag(option))
      t.set("plan.activations", "recompute", {option});
    else
      t.imply(option, "it is off");
  }
}

/// "Wan-AI/Wan2.1-T2V-1.3B:models_t5*.pth,..." are kept below models/ by DiffSynth.
std::vector<std::string> files_of_ids(const std::string& text, const std::string& option) {
  std::vector<std::string> files;
  for (const std::string& item : split_list(text)) {
    const size_t colon = item.find(':');
    if (colon == std::string::npos)
      throw UserError(Exit::usage, "import", option + ": '" + item + "' has no file",
                      "write REPOSITORY:FILE,REPOSITORY:FILE");
    files.push_back(kept_by_diffsynth(fs::path("models") / item.substr(0, colon) / item.substr(colon + 1)));
  }
  return files;
}

/// '[["s1","s2"],"t5","vae"]'
std::vector<std::string> files_of_json(const std::string& text, const std::string& option) {
  const auto json = json_or_nothing(text);
  std::vector<std::string> files;
  const auto add = [&](const nlohmann::json& item) {
    if (!item.is_string())
      throw UserError(Exit::usage, "import", option + ": expected a JSON list of files or of lists of files",
                      "for example " + option + R"( '[["a-1.safetensors","a-2.safetensors"],"t5.pth","vae.pth"]')");
    files.push_back(item.get<std::string>());
  };
  if (!json.is_array()) add(json);
  for (const auto& item : json)
    if (item.is_array())
      for (const auto& inner : item) add(inner);
    else
      add(item);
  return files;
}

void models(Translator& t) {
  if (t.has("--model_id_with_origin_paths"))
    set_weight_files(t, files_of_ids(t.value("--model_id_with_origin_paths"), "--model_id_with_origin_paths"),
                     "--model_id_with_origin_paths");
  if (t.has("--model_paths"))
    set_weight_files(t, files_of_json(t.value("--model_paths"), "--model_paths"), "--model_paths");
  if (t.has("--dit_path")) {  // a file, or the shards of one model: separated by commas, or a JSON list
    const std::string text = t.value("--dit_path");
    std::vector<std::string> files = text.starts_with("[") ? files_of_json(text, "--dit_path") : split_list(text);
    std::erase_if(files, [](const std::string& file) { return file.find_first_not_of(' ') == std::string::npos; });
    for (std::string& file : files) file.erase(0, file.find_first_not_of(' '));
    if (files.empty()) throw UserError(Exit::usage, "import", "--dit_path names no file", "give the weights");
    t.set("model.path", folder_of_shards(files, "--dit_path"), {"--dit_path"});
  }
  if (t.has("--text_encoder_path")) {
    t.set("data.text_encoder", "umt5-xxl", {"--text_encoder_path"});
    t.set("data.text_encoder_path", t.value("--text_encoder_path"), {"--text_encoder_path"});
  }
  if (t.has("--tokenizer_path"))
    t.set("data.tokenizer", tokenizer_in(t.value("--tokenizer_path")), {"--tokenizer_path"});
}

/// It is where the speech encoder's configuration lies; its weights are of another option, where they are given.
void sound(Translator& t) {
  const std::string option = "--audio_processor_path";
  if (!t.has(option)) return;
  const std::string given = t.value(option);
  const bool id = !fs::exists(given) && given.find(':') != std::string::npos;
  if (t.result().find("data.audio_encoder"))
    t.imply(option, "sound is prepared as the speech encoder expects: data.audio_encoder");
  else
    t.set("data.audio_encoder", id ? files_of_ids(given, option).front() : given, {option});
}

/// Where DiffSynth looks for what no option names: beside the weights, in its folder of encoders, and the tokenizer in the
/// folder of Wan 2.1.
void encoders(Translator& t) {
  if (const auto* model = t.result().find("model.path")) {
    const std::string path = model->value;
    find_encoders_beside(t, path);
    find_converted_encoders(t, path);
  }
  if (fs::exists(kDiffSynthTokenizer)) t.assume("data.tokenizer", kDiffSynthTokenizer, "where DiffSynth looks for it");
}

void shape(Translator& t) {
  if (t.has("--height") && t.has("--width")) {
    t.set("data.size", t.value("--height") + "," + t.value("--width"), {"--height", "--width"});
    if (t.has("--max_pixels")) t.imply("--max_pixels", "height and width are given");
    return;
  }
  for (const char* option : {"--height", "--width", "--max_pixels"})
    if (t.has(option))
      t.refuse(option, "one shape for all clips needs --height and --width; several are listed in data.buckets");
}

/// Parts of a denoiser that DiffSynth holds as models of their own, and their parameters.
constexpr std::pair<const char*, const char*> kModels[] = {
    {"vace", "vace_blocks,vace_patch_embedding"},
    {"animate_adapter", "pose_patch_embedding,face_adapter,face_encoder,motion_encoder"}};

void set_trained_models(Translator& t) {
  const std::string option = "--trainable_models";
  std::string only, freeze;
  const std::vector<std::string> models = split_list(t.value(option));
  const bool dit = std::ranges::find(models, "dit") != models.end();
  size_t known = dit;
  for (const auto& [model, parts] : kModels) {
    const bool trains = std::ranges::find(models, model) != models.end();
    known += trains;
    const std::string weights = lower_case(t.value("--model_paths") + t.value("--model_id_with_origin_paths"));
    const std::string family = std::string(model).substr(0, std::string(model).find('_'));
    if (trains && !dit) only += (only.empty() ? "" : ",") + std::string(parts);
    if (!trains && dit && weights.find(family) != weights.npos)
      freeze += (freeze.empty() ? "" : ",") + std::string(parts);
  }
  if (known != models.size()) return t.refuse(option, "dit, vace and animate_adapter are trained");
  t.set("train.mode", "full", {option});
  if (!only.empty()) t.set("train.only", only, {option});
  if (!freeze.empty()) t.set("train.freeze", freeze, {option}, "no part of dit there");
}

/// LoRA or all weights, by either form.
void mode(Translator& t) {
  const std::string architecture = t.value("--train_architecture");
  const bool adapter = t.has("--lora_base_model") || architecture == "lora";
  const bool vace = t.value("--lora_base_model") == "vace";  // the second stream of a VACE model
  if (t.has("--train_architecture")) {
    if (architecture != "lora" && architecture != "full")
      throw UserError(Exit::usage, "import", "--train_architecture " + architecture + ": expected lora or full");
    t.set("train.mode", architecture, {"--train_architecture"});
  }
  if (t.has("--lora_base_model")) {
    if (t.value("--lora_base_model") == "dit" || vace)
      t.set("train.mode", "lora", {"--lora_base_model"});
    else
      t.refuse("--lora_base_model", "adapters are those of dit or vace");
  }
  if (t.has("--trainable_models")) {
    set_trained_models(t);
  }
  for (const char* option : {"--lora_rank", "--lora_alpha", "--lora_target_modules"})
    if (t.has(option) && !adapter) t.imply(option, "nothing asks for a LoRA: --lora_base_model dit does");
  if (!adapter) return;
  const std::string rank = t.value("--lora_rank", architecture == "lora" ? "16" : "32");
  if (t.has("--lora_rank")) t.set("lora.rank", rank, {"--lora_rank"});
  if (t.has("--lora_alpha")) t.set("lora.alpha", t.value("--lora_alpha"), {"--lora_alpha"});
  if (vace) {
    std::string targets;
    for (const std::string& module : split_list(t.value("--lora_target_modules", "q,k,v,o,ffn.0,ffn.2")))
      targets += (targets.empty() ? "" : ",") + ("vace_blocks.*." + module);
    std::vector<std::string> options = {"--lora_base_model"};
    if (t.has("--lora_target_modules")) options.push_back("--lora_target_modules");
    t.set("lora.targets", targets, options, "of the second stream alone");
  } else if (t.has("--lora_target_modules")) {
    set_targets(t, "--lora_target_modules");
  }
  t.assume("lora.rank", rank, "DiffSynth's rank");
  t.assume("lora.alpha", rank, "DiffSynth's alpha is the rank");
  t.assume("lora.targets", "q,k,v,o,ffn.0,ffn.2", "DiffSynth's targets");
}

constexpr const char* kBesideReference =
    "four fewer: the reference is a picture before the clip, there it is the clip's first frame";

/// Columns beside clip and caption. What this version has no key for is refused by it.
void columns(Translator& t, const std::string& option) {
  if (!t.has(option)) return;
  for (const std::string& name : split_list(t.value(option))) {
    if (name == "video" || name == "image" || name == "prompt" || name == "input_image" || name == "end_image" ||
        name == "input_audio" || name == "s2v_pose_video" || name == "vace_video" || name == "vace_video_mask" ||
        name == "vace_reference_image" || name == "control_video" || name == "reference_image" ||
        name == "camera_control_direction" || name == "camera_control_speed")
      continue;
    if (name == "animate_pose_video" || name == "animate_face_video") {
      // There the clip's first frame is the reference, and four frames of poses and faces fewer follow it.
      const int64_t frames = t.integer("--num_frames", 81) - 4;
      if (frames < 1) return t.refuse("--num_frames", "a clip with a reference has more than four frames");
      if (!t.is_answered("--num_frames"))
        t.has("--num_frames") ? t.set("data.frames", std::to_string(frames), {"--num_frames"}, kBesideReference)
                              : t.assume("data.frames", std::to_string(frames), kBesideReference);
      continue;
    }
    return t.refuse(option, "'" + name + "' is a condition of a model that is not supported");
  }
  t.imply(option, "columns are found by their names, first and last frames are the clip's own");
}

/// Fractions of the shift-5 grid of 1000 steps, from noise to data: as timesteps 0 to 1.
void window(Translator& t) {
  const auto time = [](double index) { return 5 * (1 - index) / (1 + 4 * (1 - index)); };
  for (const auto& [option, key] :
       {std::pair("--max_timestep_boundary", kLeastTimestep), {"--min_timestep_boundary", kMostTimestep}}) {
    if (!t.has(option)) continue;
    const double index = t.number(option, 0);
    if (index < 0 || index > 1)
      throw UserError(Exit::usage, "import", t.find(option)->shown() + ": expected a fraction from 0 to 1");
    char text[32];
    std::snprintf(text, sizeof text, "%.6g", time(index));
    if ((option == std::string("--max_timestep_boundary") && index == 1) ||
        (option == std::string("--min_timestep_boundary") && index == 0))
      t.imply(option, "the whole range on that side");
    else
      t.set(key, text, {option}, "a fraction of the shift-5 grid");
  }
}

void diffsynth_amount(Translator& t) {
  const char* const kNew = "--gradient_accumulation_steps";
  const char* const kOld = "--accumulate_grad_batches";
  std::vector<std::string> options;
  int64_t steps = t.context().accumulation;
  for (const char* option : {kOld, kNew})
    if (t.has(option)) options.push_back(option), steps = t.integer(option, 1);
  if (options.empty() && (t.ranks() || steps > 1))
    t.assume("train.global_batch", std::to_string(steps * t.dp_size().value_or(1)),
             "a clip a rank and micro-batch, as DiffSynth has it");
  else if (!options.empty())
    t.set_batch(steps, options, "one clip x " + std::to_string(steps));
  const std::string epochs = t.has("--num_epochs") ? "--num_epochs" : "--max_epochs";
  const std::string per_epoch = "--steps_per_epoch";
  if (t.has(per_epoch) && t.has(epochs)) {  // Lightning's dataset is as long as it is told; its batches are accumulated
    const int64_t batches = t.integer(epochs, 1) * t.integer(per_epoch, 500);
    t.set("run.steps",
          std::to_string(std::max<int64_t>(1, batches / std::max<int64_t>(1, steps * t.dp_size().value_or(1)))),
          {epochs, per_epoch});
  } else if (t.has(epochs) || !t.has(per_epoch)) {
    if (t.has(epochs))
      set_epochs(t, epochs, t.integer(epochs, 1));
    else
      assume_epochs(t, 1);
    if (!t.has("--save_steps")) {
      if (const auto* steps_set = t.result().find("run.steps"))
        t.assume("checkpoint.every",
                 std::to_string(
                     std::max<int64_t>(1, to_integer(steps_set->value) / std::max<int64_t>(1, t.integer(epochs, 1)))),
                 "a checkpoint an epoch, as DiffSynth has it");
    }
  } else if (t.has(per_epoch)) {
    t.set("run.steps", t.value(per_epoch), {per_epoch});
  }
}

void diffsynth_together(Translator& t) {
  models(t);
  sound(t);
  encoders(t);
  mode(t);
  shape(t);
  activations(t);
  for (const char* option : {"--data_file_keys", "--extra_inputs"}) columns(t, option);
  if (const std::string frames = "--num_frames"; t.has(frames) && !t.is_answered(frames))
    t.set("data.frames", t.value(frames), {frames});
  window(t);
  if (const std::string resumed = "--resume_from_checkpoint"; t.has(resumed)) {
    const auto* trained = t.result().find("train.mode");
    if (trained && trained->value == "lora")
      t.set("lora.init", t.value(resumed), {resumed}, "its weights alone, as there");
    else
      t.refuse(resumed, "weights alone are read from it there: name them in model.path");
  }
  diffsynth_amount(t);
}

}  // namespace

const Dialect& diffsynth_command() {
  static const Dialect dialect =
      dialect_of("diffsynth", "command", diffsynth_together, {{"strategy", plain(strategy)}});
  return dialect;
}

}  // namespace tessera::tools
