// The launch line that Wan trainers of the field share: one task, one folder, how it is sharded, and the batch.
#include "tessera/base/check.h"
#include "tessera/tools/import/dialects.h"
#include "tessera/tools/import/folders/wan_folder.h"

namespace tessera::tools {

namespace {

constexpr double kLowestRate = 2.5e-6;

void folder(Translator& t) {
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

void together(Translator& t) {
  for (const auto& [option, axis] : {std::pair("--ulysses_size", "mesh.sp"), {"--ring_size", "mesh.cp"}})
    if (t.has(option)) t.set(axis, t.value(option), {option});
  if (t.has("--size")) {
    const std::string size = size_value(t.value("--size"));
    if (size.empty())
      throw UserError(Exit::usage, "import", t.find("--size")->shown() + ": expected width*height",
                      "for example --size 832*480");
    t.set("data.size", size, {"--size"}, "height, width");
  }
  folder(t);
  const int64_t batch = t.integer("--batch_size", 1), steps = t.integer("--gradient_accumulation_steps", 1);
  if (t.has("--batch_size") || t.has("--gradient_accumulation_steps")) {
    std::vector<std::string> options;
    for (const char* option : {"--batch_size", "--gradient_accumulation_steps"})
      if (t.has(option)) options.push_back(option);
    t.set_batch(batch * steps, options, std::to_string(batch) + " x " + std::to_string(steps));
  }
  const double lr = t.number("--learning_rate", 2.5e-5), lowest = t.number("--min_lr", std::min(kLowestRate, lr));
  if (t.has("--min_lr")) t.set("train.eta_min", t.value("--min_lr"), {"--min_lr"});
  t.assume("train.schedule", "cosine_min", "this line's schedule: warm-up, then cosine to a lowest rate");
  t.assume("train.eta_min", number_text(lowest), "this line's lowest rate");
  t.assume("train.betas", "0.9,0.999", "this line's AdamW");
  t.assume("train.eps", "1e-8", "this line's AdamW");
  t.assume("train.clip_norm", "1.0", "this line's clipping");
  t.assume("plan.compute_dtype", "bf16", "this line computes in bf16; masters and states are fp32");
  t.assume("plan.recompute", "auto",
           "this line recomputes every 4th block; the plan may, and takes what is faster and fits: \"every 4\" (blocks "
           "0, 4, 8, ...) holds it to that");
}

const char* const kEncoders = "not needed: frozen encoders run before training, their outputs are cached";

}  // namespace

const Dialect& training_line() {
  static const Dialect dialect = {
      "the training line",
      "a training command line",
      {
          joined("--task",
                 "checks the model in `model.path`; `data.fps`, `data.frames`, `data.size`, `diffusion.shift`"),
          joined("--ckpt_dir", "`model.path`, `data.vae`, `data.text_encoder_path`, `data.tokenizer`"),
          switches("--dit_fsdp", "plan.strategy", "full_shard"),
          implied("--t5_fsdp", kEncoders, Takes::perhaps),
          implied("--t5_cpu", kEncoders, Takes::perhaps),
          joined("--ulysses_size", "`mesh.sp`"),
          joined("--ring_size", "`mesh.cp`"),
          joined("--batch_size", "its share of `train.global_batch` = batch x accumulation x dp_size"),
          joined("--gradient_accumulation_steps", "its share of `train.global_batch`"),
          sets("--learning_rate", "train.lr"),
          joined("--min_lr", "`train.eta_min`; 2.5e-6 where it is not given"),
          sets("--weight_decay", "train.weight_decay"),
          sets("--max_steps", "run.steps"),
          sets("--warmup_steps", "train.warmup_steps"),
          sets("--max_grad_norm", "train.clip_norm"),
          sets("--save_interval", "checkpoint.every"),
          implied("--log_interval", "every step is in RUN/metrics.jsonl"),
          sets("--seed", "run.seed"),
          sets("--output_dir", "run.out"),
          sets("--data_path", "data.path"),
          sets("--data_dir", "data.path"),
          sets("--frame_num", "data.frames"),
          joined("--size", "`data.size`, height first"),
          switches("--convert_model_dtype", "plan.compute_dtype", "bf16"),
          switches("--gradient_checkpointing", "plan.activations", "recompute"),
          sets("--resume", "run.resume"),
      },
      together};
  return dialect;
}

}  // namespace tessera::tools
