// Wan's generate.py. What it does not say it takes from the task, as the releases' configurations do.
#include "tessera/base/check.h"
#include "tessera/tools/import/dialects.h"
#include "tessera/tools/import/folders/wan_folder.h"

namespace tessera::tools {

namespace {

void sampling(Translator& t, const WanTask& task) {
  const std::string of = std::string(" of ") + task.name;
  if (t.has("--size")) {
    const std::string size = size_value(t.value("--size"));
    if (size.empty())
      throw UserError(Exit::usage, "import", t.find("--size")->shown() + ": expected width*height",
                      "for example --size 1280*720");
    t.set("data.size", size, {"--size"}, "height, width");
  }
  const auto number = [&](const char* option, const char* key, const std::string& absent) {
    if (t.has(option))
      t.set(key, t.value(option), {option});
    else
      t.assume(key, absent, "generate.py's value" + of);
  };
  number("--sample_steps", "sample.steps", std::to_string(task.steps));
  number("--sample_shift", "diffusion.shift", number_text(task.shift));
  number("--sample_guide_scale", "sample.guidance", number_text(task.guidance));
  if (std::string_view(task.type) == "s2v") {
    // its frames are those behind the picture, which is one more of the autoencoder's
    const std::string frames = std::to_string(t.integer("--infer_frames", task.frames) + 1);
    if (t.has("--infer_frames"))
      t.set("data.frames", frames, {"--infer_frames"}, "and the picture");
    else
      t.assume("data.frames", frames, "generate.py's value" + of + ", and the picture");
  } else {
    number("--frame_num", "data.frames", std::to_string(task.frames));
  }
  for (const char* option : {"--frame_num", "--infer_frames"})
    if (t.has(option) && !t.is_answered(option)) t.imply(option, "this task does not read it");
  t.assume("data.fps", number_text(task.fps), "the rate" + of);
  t.assume("data.size", std::to_string(task.height) + "," + std::to_string(task.width), "generate.py's size" + of);
  const std::string solver = t.value("--sample_solver", "unipc");
  if (t.has("--sample_solver")) {
    if (solver != "unipc" && solver != "dpm++")
      throw UserError(Exit::usage, "import", "--sample_solver " + solver + " is not known",
                      "did you mean " + nearest(solver, {"unipc", "dpm++"}).front() + "?");
    t.set("sample.sampler", solver == "unipc" ? "unipc" : "dpmpp", {"--sample_solver"});
  } else {
    t.assume("sample.sampler", "unipc", "generate.py's solver");
  }
}

void generate_together(Translator& t) {
  if (!t.has("--ckpt_dir"))
    throw UserError(Exit::usage, "import", "generate.py's options without the weights",
                    "give --ckpt_dir, the folder of the release");
  const WanTask& task = wan_task(t.value("--task", "t2v-A14B"));
  if (t.has("--task"))
    t.imply("--task", std::string("a ") + task.type + " model" + (task.two_experts ? " of two experts" : ""));
  set_wan_folder(t, task, t.value("--ckpt_dir"), {"--ckpt_dir"});
  sampling(t, task);
  t.assume("plan.compute_dtype", "bf16", "generate.py computes in bf16");
  // as many clips as the audio lasts, unless an option gives their number
  if (std::string_view(task.type) == "s2v" && !t.has("--num_clip")) t.set("sample.clips", "auto", {"--task"});
  if (t.has("--base_seed")) {
    if (t.integer("--base_seed", -1) < 0)
      t.refuse("--base_seed", "a seed is a number from 0 on: samples can be made again");
    else
      t.set("sample.seed", t.value("--base_seed"), {"--base_seed"});
  }
  for (const auto& [option, axis] : {std::pair("--ulysses_size", "mesh.sp"), {"--ring_size", "mesh.cp"}})
    if (t.has(option)) t.set(axis, t.value(option), {option});
  if (t.has("--save_file")) {
    t.result().file = t.value("--save_file");
    t.imply("--save_file", "the clip's file, --out of tessera sample");
  } else {
    t.result().file = std::string(task.name) + ".mp4";
  }
  if (t.has("--prompt")) {
    t.result().prompt = t.value("--prompt");
    t.set("sample.prompts", t.value("--prompt") + kListSeparator, {"--prompt"});
  }
}

/// A file of the one sample that is made; recipes have a list, one a prompt.
Rule of_sample(const std::string& option, const std::string& key) {
  return by(option, "`" + key + "`",
            [key](Translator& t, const Given& g) { t.set(key, g.value + kListSeparator, {g.name}); });
}

const char* const kExtend = "prompt extension is not supported: extend prompts beforehand";
const char* const kSpeech = "text-to-speech is not supported: give a recording with --audio";

}  // namespace

const Dialect& generate_line() {
  static const Dialect dialect = {
      "Wan's generate.py",
      "generate.py's options",
      {
          joined("--task", "checks the model in `model.path`; defaults of the task"),
          joined("--ckpt_dir", "`model.path`, `data.vae`, `data.text_encoder_path`, `data.tokenizer`"),
          joined("--size", "`data.size`, height first"),
          joined("--frame_num", "`data.frames`"),
          joined("--sample_solver", "`sample.sampler`: unipc, dpm++ dpmpp"),
          joined("--sample_steps", "`sample.steps`"),
          joined("--sample_shift", "`diffusion.shift`"),
          joined("--sample_guide_scale", "`sample.guidance`"),
          joined("--base_seed", "`sample.seed`"),
          joined("--prompt", "`sample.prompts`"),
          joined("--save_file", "`--out` of tessera sample; the task's name where it is not given"),
          of_sample("--image", "sample.image"),
          of_sample("--first_frame", "sample.image"),
          of_sample("--last_frame", "sample.last_image"),
          of_sample("--audio", "sample.audio"),
          of_sample("--pose_video", "sample.pose"),
          joined("--ulysses_size", "`mesh.sp`"),
          joined("--ring_size", "`mesh.cp`"),
          switches("--dit_fsdp", "plan.strategy", "full_shard"),
          implied("--t5_fsdp", "the text encoder is sharded over all ranks", Takes::perhaps),
          implied("--t5_cpu", "the text encoder is freed before the first step of the sampler", Takes::perhaps),
          implied("--offload_model",
                  "weights are sharded over the ranks, and the text encoder is freed before sampling", Takes::perhaps),
          switches("--convert_model_dtype", "plan.compute_dtype", "bf16"),
          sets("--num_clip", "sample.clips"),
          joined("--infer_frames", "`data.frames`, plus one: the image"),
          refused("--start_from_ref", "the video does not start from the reference image", Takes::perhaps),
          refused("--enable_tts", kSpeech, Takes::perhaps),
          refused("--tts_prompt_audio", kSpeech),
          refused("--tts_prompt_text", kSpeech),
          refused("--tts_text", kSpeech),
          refused("--use_prompt_extend", kExtend, Takes::perhaps),
          refused("--prompt_extend_method", kExtend),
          refused("--prompt_extend_model", kExtend),
          refused("--prompt_extend_target_lang", kExtend),
          refused("--src_video", "VACE is not supported"),
          refused("--src_mask", "VACE is not supported"),
          refused("--src_ref_images", "VACE is not supported"),
          refused("--src_root_path", "Animate is not supported"),
          refused("--refert_num", "Animate is not supported"),
          refused("--replace_flag", "Animate is not supported", Takes::perhaps),
          refused("--use_relighting_lora", "Animate is not supported", Takes::perhaps),
      },
      generate_together};
  return dialect;
}

}  // namespace tessera::tools
