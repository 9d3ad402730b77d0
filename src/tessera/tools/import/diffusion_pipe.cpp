// diffusion-pipe: its command and the TOML of a run.
#include <filesystem>

#include "tessera/base/check.h"
#include "tessera/tools/import/dialects.h"
#include "tessera/tools/import/folders/wan_folder.h"
#include "tessera/tools/import/import.h"
#include "tessera/tools/import/parts.h"
#include "tessera/tools/options/config_file.h"

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

void pipe_timesteps(Translator& t) {
  const std::string option = "model.timestep_sample_method", method = t.value(option, "logit_normal");
  if (t.has(option)) {
    if (method == "logit_normal" || method == "uniform")
      t.set("diffusion.timesteps", method, {option});
    else
      t.refuse(option, "logit_normal and uniform are supported");
  }
  t.assume("diffusion.timesteps", "logit_normal", "diffusion-pipe's timesteps");
  if (t.has("model.shift")) t.set("diffusion.shift", t.value("model.shift"), {"model.shift"});
  t.assume("diffusion.shift", "1", "timesteps are not shifted");
  for (const auto& [name, key] : {std::pair("model.min_t", kLeastTimestep), {"model.max_t", kMostTimestep}})
    if (t.has(name)) t.set(key, t.value(name), {name});
}

void adapter(Translator& t) {
  if (!t.has("adapter.type")) {
    if (t.has("adapter.rank")) t.refuse("adapter.rank", "an [adapter] needs its type");
    return t.assume("train.mode", "full", "there is no [adapter]");
  }
  if (t.value("adapter.type") == "lora")
    t.set("train.mode", "lora", {"adapter.type"});
  else
    t.refuse("adapter.type", "LoRA is there");
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
  if (t.has("lr_scheduler")) set_schedule(t, "lr_scheduler");
  t.assume("train.schedule", "constant_with_warmup", "diffusion-pipe's schedule");
}

/// What the table has no line for: of another family it goes with the family, else it is a mistake.
void other_model_key(Translator& t, const Given& g) {
  if (t.value("model.type", "wan") != "wan") return t.imply(g.name, "it belongs to model.type");
  std::vector<std::string> names;
  for (const Rule& rule : diffusion_pipe_config().rules) names.push_back(rule.option);
  throw UserError(Exit::usage, "import", "a diffusion-pipe configuration has no option " + g.name,
                  "did you mean " + nearest(g.name, names).front() + "? tessera import --table lists all");
}

void checkpointing(Translator& t, const Given& g) {
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

std::vector<Rule> pipe_rules() {
  const char* const kEval = "evaluation loss is not supported: see sample.every";
  const char* const kCloud =
      "metrics are not uploaded unless run.on_event names a command that does it (examples/on_event)";
  std::vector<Rule> table = {
      sets("output_dir", "run.out"),
      joined("dataset", "the data set's options, below"),
      joined("epochs", "`run.steps`, counted in the data set"),
      joined("max_steps", "`run.steps`"),
      joined("micro_batch_size_per_gpu", "its share of `train.global_batch`"),
      implied("image_micro_batch_size_per_gpu", "a batch holds one shape; its size is the global batch"),
      joined("gradient_accumulation_steps", "its share of `train.global_batch`"),
      joined("pipeline_stages", "`mesh.pp`"),
      sets("gradient_clipping", "train.clip_norm"),
      sets("warmup_steps", "train.warmup_steps"),
      sets("force_constant_lr", "train.lr"),
      joined("lr_scheduler", "`train.schedule`"),
      by("blocks_to_swap", "`plan.parameters = host`, of all blocks",
         [](Translator& t, const Given& g) {
           if (t.integer(g.name, 0) == 0) return t.imply(g.name, "no block is swapped");
           t.set("plan.parameters", "host", {g.name}, "all blocks; on auto the plan chooses how many");
         }),
      by("activation_checkpointing", "`plan.activations`: true recompute, 'unsloth' recompute_offload", checkpointing),
      implied("reentrant_activation_checkpointing", "not needed: a unit is recomputed from its saved input"),
      joined("save_every_n_steps", "`checkpoint.every`"),
      joined("save_every_n_epochs", "`checkpoint.every`, counted in the data set"),
      joined("checkpoint_every_n_epochs", "`checkpoint.every`, counted in the data set"),
      implied("checkpoint_every_n_minutes",
              "not supported: checkpoint.every counts steps, and a signal saves and stops"),
      implied("partition_method", "pipeline stages are balanced by cost"),
      refused("partition_split", "pipeline stages are balanced by cost"),
      implied("save_dtype", "set by tessera convert --dtype"),
      implied("caching_batch_size", "clips are encoded one by one, with bounded memory"),
      implied("map_num_proc", "not needed: clips are decoded ahead and cached"),
      refused("compile", "torch.compile is not used: a step is a compiled schedule"),
      implied("steps_per_print", "every step is in RUN/metrics.jsonl"),
      by("video_clip_mode", "`data.clip_mode`: single_beginning head",
         [](Translator& t, const Given& g) {
           if (g.value == "single_beginning")
             t.set("data.clip_mode", "head", {g.name});
           else if (g.value == "multiple_overlapping")
             t.set("data.clip_mode", "slide", {g.name}, "a start every half clip");
           else
             t.refuse(g.name, "single_beginning and multiple_overlapping are supported");
         }),
      implied("x_axis_examples", "RUN/report.html has both"),
      refused("pseudo_huber_c", "the loss is the squared error only"),
      sets("uncond_fraction", "diffusion.caption_dropout"),
      sets("ema_decay", "train.ema"),
      refused("eval_datasets", kEval),
      joined("model.type", "`model.family`"),
      of_table(by("model", "of another model.type than wan: refused with it", other_model_key)),
      joined("model.ckpt_path", "`model.path`, `data.vae`, `data.text_encoder_path`, `data.tokenizer`"),
      joined("model.transformer_path", "`model.path`"),
      joined("model.llm_path", "`data.text_encoder_path`"),
      by("model.dtype", "`plan.compute_dtype`", set_compute_type),
      by("model.transformer_dtype", "`lora.base_dtype`: float8 fp8, bfloat16 bf16", quantised),
      implied("model.text_encoder_fp8", "not needed: the text encoder runs before training and is freed"),
      joined("model.timestep_sample_method", "`diffusion.timesteps`"),
      joined("model.shift", "`diffusion.shift`"),
      refused("model.flux_shift", "the shift must be one number"),
      joined("model.min_t", "`diffusion.min_t`"),
      joined("model.max_t", "`diffusion.max_t`"),
      joined("adapter.type", "`train.mode = lora`"),
      joined("adapter.rank", "`lora.rank` and `lora.alpha`"),
      only("adapter.dtype", {"bfloat16", "float32"}, "adapters train in fp32", "bfloat16 and float32 are supported"),
      sets("adapter.dropout", "lora.dropout"),
      sets("adapter.init_from_existing", "lora.init"),
      refused("adapter.fuse_adapters", "merge them first: tessera convert --merge"),
      refused("adapter.decompose_factor", "it belongs to LoKr"),
      joined("optimizer.type", "`train.optimizer`, `plan.moments`, `plan.masters`"),
      sets("optimizer.lr", "train.lr"),
      sets("optimizer.betas", "train.betas"),
      sets("optimizer.weight_decay", "train.weight_decay"),
      sets("optimizer.eps", "train.eps"),
      only("optimizer.stabilize", {"false"}, "it is off", "updates are not normed by their size: see train.clip_norm"),
      implied("optimizer.gradient_release", "plan.update says when a unit is updated"),
      refused("optimizer.beta2_half_life", "give betas"),
      implied("monitoring.log_dir", "not needed: metrics are in the run folder"),
      refused("monitoring.enable_wandb", kCloud),
      implied("monitoring", "it belongs to monitoring.enable_wandb"),
  };
  for (const char* name :
       {"eval_every_n_epochs", "eval_every_n_steps", "eval_every_n_examples", "eval_before_first_step",
        "eval_micro_batch_size_per_gpu", "eval_gradient_accumulation_steps", "disable_block_swap_for_eval",
        "image_eval_micro_batch_size_per_gpu"})
    table.push_back(implied(name, "it belongs to eval_datasets"));
  return table;
}

void command_together(Translator& t) {
  if (!t.has("--config"))
    throw UserError(Exit::usage, "import", "diffusion-pipe's command without --config", "give --config FILE.toml");
  t.imply("--config", "its options follow");
  t.result().merge(import_file(file_beside(t.context(), t.value("--config")), t.context()));
}

}  // namespace

const Dialect& diffusion_pipe_config() {
  static const Dialect dialect = {"diffusion-pipe's TOML", "a diffusion-pipe configuration", pipe_rules(),
                                  pipe_together};
  return dialect;
}
const Dialect& diffusion_pipe_command() {
  static const Dialect dialect = {
      "diffusion-pipe's command",
      "a diffusion-pipe command",
      {
          joined("--config", "its options, below"),
          implied("--deepspeed", "not needed: tessera launch starts ranks", Takes::nothing),
          implied("--cache_only", "tessera prepare does that", Takes::nothing),
          implied("--trust_cache", "tessera prepare --trust does that", Takes::nothing),
          implied("--regenerate_cache", "tessera prepare --rebuild does that", Takes::nothing),
          implied("--i_know_what_i_am_doing", "not needed: it silences a warning of diffusion-pipe", Takes::nothing),
          implied("--resume_from_checkpoint", "run.resume = \"auto\": a run goes on from its newest checkpoint",
                  Takes::many),
          refused("--reset_dataloader", "a resumed run keeps its order of samples", Takes::nothing),
          refused("--reset_optimizer", "set model.path to the weights of the run instead", Takes::nothing),
          implied("--local_rank", "not needed: the launcher numbers ranks"),
      },
      command_together};
  return dialect;
}

}  // namespace tessera::tools
