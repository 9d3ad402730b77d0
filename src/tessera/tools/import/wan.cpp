// Wan's generate.py. What it does not say it takes from the task, as the releases' configurations do.
#include "tessera/base/check.h"
#include "tessera/tools/import/dialects.h"
#include "tessera/tools/import/parts.h"
#include "tessera/tools/import/wan_folder.h"

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

/// What VACE and Animate follow. Animate's are files that its preprocessing gives their names.
void followed(Translator& t) {
  const auto set = [&](const char* key, const std::string& file, const char* option) {
    t.set(key, file + kListSeparator, {option});
  };
  if (t.has("--src_ref_images")) {
    const std::string pictures = t.value("--src_ref_images");
    if (pictures.find(',') == std::string::npos)
      set("sample.reference", pictures, "--src_ref_images");
    else
      t.refuse("--src_ref_images",
               "a sample is given one picture; name several in column vace_reference_image of a "
               "table, and set sample.reference = clip and data.references to their number");
  }
  const std::string root = t.value("--src_root_path", ".") + "/";
  if (t.has("--src_root_path"))
    for (const auto& [key, file] : {std::pair("sample.pose", "src_pose.mp4"),
                                    {"sample.face", "src_face.mp4"},
                                    {"sample.reference", "src_ref.png"}})
      set(key, root + file, "--src_root_path");
  for (const char* option : {"--replace_flag", "--use_relighting_lora"})
    if (t.has(option) && !t.flag(option)) t.imply(option, "it is off");
  if (t.flag("--replace_flag"))
    set("sample.guide", root + "src_bg.mp4", "--replace_flag"),
        set("sample.guide_mask", root + "src_mask.mp4", "--replace_flag");
  if (t.flag("--use_relighting_lora"))
    set("sample.lora", t.value("--ckpt_dir") + "/relighting_lora.ckpt", "--use_relighting_lora");
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
  followed(t);
  // as many clips as the audio or the video of poses lasts, unless an option gives their number
  const std::string_view type = task.type;
  if ((type == "s2v" || type == "animate") && !t.has("--num_clip")) t.set("sample.clips", "auto", {"--task"});
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

// ---- the training line -------------------------------------------------------------------------------------------------

constexpr double kLowestRate = 2.5e-6;

void line_folder(Translator& t) {
  if (!t.has("--task")) {
    if (t.has("--ckpt_dir")) t.set("model.path", t.value("--ckpt_dir"), {"--ckpt_dir"});
    return;
  }
  const WanTask& task = wan_task(t.value("--task"));
  t.imply("--task", std::string("a ") + task.type + " model" + (task.two_experts ? " of two experts" : ""));
  if (!t.has("--ckpt_dir"))
    throw UserError(Exit::usage, "import", "--task " + t.value("--task") + " without its weights",
                    "give --ckpt_dir, the folder of the release");
  set_wan_folder(t, task, t.value("--ckpt_dir"), {"--ckpt_dir"});
  t.assume("data.fps", number_text(task.fps), std::string(task.name) + "'s rate");
  t.assume("data.frames", std::to_string(task.frames / 4 * 4 + 1), std::string(task.name) + "'s length");
  t.assume("data.size", std::to_string(task.height) + "," + std::to_string(task.width),
           std::string(task.name) + "'s size");
  t.assume("diffusion.shift", number_text(task.shift), std::string(task.name) + "'s shift");
}

void line_together(Translator& t) {
  for (const auto& [option, axis] : {std::pair("--ulysses_size", "mesh.sp"), {"--ring_size", "mesh.cp"}})
    if (t.has(option)) t.set(axis, t.value(option), {option});
  if (t.has("--size")) {
    const std::string size = size_value(t.value("--size"));
    if (size.empty())
      throw UserError(Exit::usage, "import", t.find("--size")->shown() + ": expected width*height",
                      "for example --size 832*480");
    t.set("data.size", size, {"--size"}, "height, width");
  }
  line_folder(t);
  const int64_t batch = t.integer("--batch_size", 1), steps = t.integer("--gradient_accumulation_steps", 1);
  if (t.has("--batch_size") || t.has("--gradient_accumulation_steps")) {
    std::vector<std::string> options;
    for (const char* option : {"--batch_size", "--gradient_accumulation_steps"})
      if (t.has(option)) options.push_back(option);
    t.set_batch(batch * steps, options, std::to_string(batch) + " x " + std::to_string(steps));
  }
  const double lr = t.number("--learning_rate", 2.5e-5), lowest = t.number("--min_lr", std::min(kLowestRate, lr));
  if (t.has("--min_lr")) t.set("train.eta_min", t.value("--min_lr"), {"--min_lr"});
  t.assume("train.eta_min", number_text(lowest), "this line's lowest rate");
}

}  // namespace

const Dialect& generate_line() {
  static const Dialect dialect = dialect_of("wan", "generate", generate_together);
  return dialect;
}
const Dialect& training_line() {
  static const Dialect dialect = dialect_of("wan", "training_line", line_together);
  return dialect;
}

}  // namespace tessera::tools
