// DeepSpeed's JSON. Names and defaults are those of its configuration reference.
#include <algorithm>

#include "tessera/base/check.h"
#include "tessera/base/checked.h"
#include "tessera/tools/import/deepspeed_types.h"
#include "tessera/tools/import/dialects.h"

namespace tessera::tools {

namespace {

const char* const kPartition = "zero_optimization.zero_hpz_partition_size";
const char* const kBuckets = "not needed: units are gathered and reduced whole, plan.prefetch says how far ahead";
const char* const kWhole = "always on: the exported model holds whole weights";
const char* const kUsed = "not needed: every parameter of these models is used";
const char* const kQuantised = "quantised collectives are not supported";

void stage(Translator& t, const Given& g) {
  static const char* const kStrategies[] = {"no_shard", "shard_states", "shard_grad_op", "full_shard"};
  const int64_t stage = t.integer(g.name, 0);
  if (stage < 0 || stage > 3)
    throw UserError(Exit::usage, "import", g.shown() + ": expected a stage from 0 to 3", "correct the file");
  const bool in_parts = stage == 3 && t.integer(kPartition, 1) > 1;
  t.set("plan.strategy", in_parts ? "two_level" : kStrategies[stage], {g.name},
        "ZeRO-" + std::to_string(stage) + (in_parts ? " with a second partition of the parameters" : ""));
}

/// ZeRO++'s hpZ: parameters are gathered within so many ranks, states are split over all.
void partition(Translator& t, const Given& g) {
  const int64_t ranks = t.integer(g.name, 1);
  if (ranks <= 1) return t.imply(g.name, "one copy of the shards");
  if (t.value("zero_optimization.stage") != "3") return t.refuse(g.name, "it belongs to stage 3");
  const auto all = t.dp_size();
  if (!all || *all % ranks != 0)
    return t.refuse(g.name, all ? "it does not divide the " + std::to_string(*all) + " data-parallel ranks"
                                : "how many copies there are follows from the ranks: give --ranks N, or set "
                                  "mesh.dp_shard and mesh.dp_replicate with plan.strategy = two_level");
  t.set("mesh.dp_shard", std::to_string(ranks), {g.name}, "parameters are gathered within so many ranks");
  t.set("mesh.dp_replicate", std::to_string(*all / ranks), {g.name}, "the groups of them, which share the states");
}

/// offload_optimizer and offload_param: where, and the disk's folder.
void offload(Translator& t, const std::string& table, const std::vector<std::string>& keys, int64_t least_stage) {
  const std::string option = "zero_optimization." + table + ".device",
                    path = "zero_optimization." + table + ".nvme_path";
  const std::string device = t.value(option, "none");
  const bool off = device == "none" || is_false(device);
  if (t.has(path)) {
    if (device == "nvme")
      t.set("plan.nvme", t.value(path), {path});
    else
      t.imply(path, "no offload to disk: its device is " + device);
  } else if (device == "nvme") {
    t.refuse(option, "a disk needs its folder: give " + path);
    return;
  }
  if (!t.has(option)) return;
  if (off || device == "auto") {
    t.imply(option, off ? "it stays on the device, or where the plan puts it" : "left to the recipe");
    return;
  }
  if (device != "cpu" && device != "nvme")
    throw UserError(Exit::usage, "import", t.find(option)->shown() + ": expected none, cpu or nvme",
                    "did you mean " + nearest(device, {"none", "cpu", "nvme"}).front() + "?");
  const std::string stage = t.value("zero_optimization.stage", "0");
  if (stage != "auto" && t.integer("zero_optimization.stage", 0) < least_stage) {
    t.refuse(option, "with stage " + stage + "; it needs stage " + std::to_string(least_stage) +
                         (least_stage < 3 ? " or more" : ""));
    return;
  }
  for (const std::string& key : keys) t.set(key, device == "cpu" ? "host" : "nvme", {option});
}

void tiers(Translator& t) {
  // ZeRO-Offload keeps gradients beside the states; stage 1 has them whole on the device
  std::vector<std::string> beside_states = {"plan.states"};
  if (t.value("zero_optimization.stage") == "2" || t.value("zero_optimization.stage") == "3")
    beside_states.push_back("plan.gradients");
  offload(t, "offload_optimizer", beside_states, 1);
  offload(t, "offload_param", {"plan.parameters"}, 3);
}

/// train_batch_size = micro-batch x accumulation x dp: any two say the third.
void batches(Translator& t) {
  const char* const kTotal = "train_batch_size";
  const char* const kMicro = "train_micro_batch_size_per_gpu";
  const char* const kSteps = "gradient_accumulation_steps";
  const auto given = [&](const char* option) { return t.has(option) && t.value(option) != "auto"; };
  for (const char* option : {kTotal, kMicro, kSteps})
    if (given(option) && t.integer(option, 1) < 1)
      throw UserError(Exit::usage, "import", t.find(option)->shown() + ": expected at least 1", "correct the file");
  const int64_t micro = t.integer(given(kMicro) ? kMicro : "", 0), steps = t.integer(given(kSteps) ? kSteps : "", 1);
  if (given(kMicro)) t.set("train.micro_batch", std::to_string(micro), {kMicro});
  if (given(kTotal)) {
    const int64_t total = t.integer(kTotal, 1);
    const auto dp = t.dp_size();
    if (given(kMicro) && given(kSteps) &&
        (dp ? total != checked_product({micro, steps, *dp}, std::string("import: ") + kTotal)
            : total % (micro * steps) != 0))
      throw UserError(Exit::usage, "import",
                      std::string(kTotal) + " = " + std::to_string(total) + " is not " + kMicro + " " +
                          std::to_string(micro) + " x " + kSteps + " " + std::to_string(steps) +
                          (dp ? " x dp_size " + std::to_string(*dp) : " x any number of ranks"),
                      "remove one of the three, or start as many ranks as they mean");
    t.set("train.global_batch", std::to_string(total), {kTotal});
    if (given(kSteps)) t.imply(kSteps, "it follows from global batch, micro-batch and ranks");
  } else if (given(kMicro)) {
    std::vector<std::string> options = {kMicro};
    if (given(kSteps)) options.push_back(kSteps);
    t.set_batch(micro * steps, options, std::to_string(micro) + " x " + std::to_string(steps));
  } else if (given(kSteps)) {
    t.refuse(kSteps, "without a batch to multiply: give train_micro_batch_size_per_gpu, or set train.global_batch");
  }
}

bool said(const Translator& t, const std::string& option) { return t.has(option) && t.value(option) != "auto"; }

void deepspeed_schedule(Translator& t) {
  const std::string params = "scheduler.params.", type = t.value("scheduler.type");
  const auto set = [&](const std::string& name, const std::string& key) {
    if (said(t, params + name)) t.set(key, t.value(params + name), {params + name});
  };
  if (type == "WarmupLR")
    t.set("train.schedule", "constant_with_warmup", {"scheduler.type"});
  else if (type == "WarmupDecayLR")
    t.set("train.schedule", "linear", {"scheduler.type"});
  else if (type == "WarmupCosineLR")
    t.set("train.schedule", "cosine_min", {"scheduler.type"});
  else if (said(t, "scheduler.type"))
    t.refuse("scheduler.type", "WarmupLR, WarmupDecayLR and WarmupCosineLR are supported; see train.schedule");
  for (const char* name : {"warmup_num_steps", "warmup_steps"}) set(name, "train.warmup_steps");
  for (const char* name : {"total_num_steps", "max_steps"}) set(name, "run.steps");
  set("warmup_max_lr", "train.lr");
  for (const char* name : {"warmup_min_lr", "warmup_min_ratio"})
    if (said(t, params + name)) {
      if (t.number(params + name, 0) == 0)
        t.imply(params + name, "warm-up starts at 0");
      else
        t.refuse(params + name, "warm-up starts at 0");
    }
  if (said(t, params + "cos_min_ratio")) {
    const double lr = t.number(said(t, "optimizer.params.lr") ? "optimizer.params.lr" : "", 1e-4);
    t.set("train.eta_min", number_text(lr * t.number(params + "cos_min_ratio", 0)), {params + "cos_min_ratio"},
          "x lr " + number_text(lr));
  }
  if (said(t, params + "eta_min") && said(t, "scheduler.type") && type != "WarmupCosineLR")
    t.refuse(params + "eta_min", type + " has no lowest rate: WarmupCosineLR ends at it");
  else
    set("eta_min", "train.eta_min");
  if (t.has("scheduler.type") && type != "WarmupCosineLR" && !t.has(params + "warmup_type") && type != "auto")
    t.result().implied.push_back({params + "warmup_type is not given", "warm-up is linear here, not DeepSpeed's log"});
}

void ulysses(Translator& t) {
  const std::string enabled = "ulysses.enabled", size = "ulysses.size";
  if (t.has(enabled) && !is_true(t.value(enabled)) && !is_false(t.value(enabled)) && t.value(enabled) != "auto")
    throw UserError(Exit::usage, "import", t.find(enabled)->shown() + ": expected true or false", "correct the file");
  const bool off = t.has(enabled) && is_false(t.value(enabled));
  if (off)
    t.imply(enabled, "it is off");
  else if (said(t, enabled) && !said(t, size))
    t.refuse(enabled, "over how many ranks is not said: give ulysses.size");
  else if (said(t, enabled))
    t.imply(enabled, "ulysses.size says over how many ranks");
  if (!said(t, size)) return;
  if (off)
    t.imply(size, "ulysses.enabled is false");
  else
    t.set("mesh.sp", t.value(size), {size}, "heads of a sample are spread over so many ranks");
}

void deepspeed_together(Translator& t) {
  ulysses(t);
  tiers(t);
  batches(t);
  deepspeed_schedule(t);
}

void deepspeed_optimiser(Translator& t, const Given& g) {
  if (g.value == "Adam" || g.value == "AdamW" || g.value == "FusedAdam" || g.value == "DeepSpeedCPUAdam")
    t.set("train.optimizer", "adamw", {g.name},
          "decay decoupled from the gradient, as DeepSpeed's Adam has it by default");
  else if (g.value == "Lion" || g.value == "lion" || g.value == "FusedLion" || g.value == "DeepSpeedCPULion")
    t.set("train.optimizer", "lion", {g.name});
  else
    t.refuse(g.name, "Adam, AdamW and Lion are read here; train.optimizer has others");
}

std::vector<Rule> deepspeed_rules() {
  const std::string zero = "zero_optimization.", params = "optimizer.params.", steps = "scheduler.params.";
  const std::string acts = "activation_checkpointing.";
  std::vector<Rule> table = {
      joined("train_batch_size", "`train.global_batch`; must be micro-batch x accumulation x dp_size"),
      joined("train_micro_batch_size_per_gpu", "`train.micro_batch`, and its share of `train.global_batch`"),
      joined("gradient_accumulation_steps", "its share of `train.global_batch`"),
      sets("gradient_clipping", "train.clip_norm"),
      by(zero + "stage", "`plan.strategy`: 0 no_shard, 1 shard_states, 2 shard_grad_op, 3 full_shard", stage),
      joined(zero + "offload_optimizer.device", "`plan.states`, from stage 2 on `plan.gradients`: host or nvme"),
      joined(zero + "offload_optimizer.nvme_path", "`plan.nvme`"),
      joined(zero + "offload_param.device", "`plan.parameters`: host or nvme; stage 3"),
      joined(zero + "offload_param.nvme_path", "`plan.nvme`"),
      only(zero + "offload_optimizer.ratio", {"1", "1.0"}, "all states are offloaded",
           "the planner chooses how many units' states are offloaded: leave plan.states on auto"),
      sets("sequence_parallel_size", "mesh.sp"),
      joined("ulysses.enabled", "true: `mesh.sp` is `ulysses.size`; false: it is off"),
      joined("ulysses.size", "`mesh.sp`"),
      sets("tensor_parallel.autotp_size", "mesh.tp"),
      sets(zero + "mics_shard_size", "mesh.dp_shard"),
      by(kPartition,
         "1: one copy of the shards; else `mesh.dp_shard`, `mesh.dp_replicate` and `plan.strategy` two_level",
         partition),
      only(zero + "overlap_comm", {"true"}, "always on: gathers and reductions overlap with compute",
           "gathers and reductions always overlap with compute"),
      only(zero + "reduce_scatter", {"true"}, "gradients are reduce-scattered", "gradients are reduce-scattered"),
      implied(zero + "contiguous_gradients", "always on: gradients of a unit are one flat buffer"),
      implied(zero + "round_robin_gradients", "always on: shards are balanced"),
      implied(zero + "ignore_unused_parameters", kUsed),
      implied("ignore_unused_parameters", kUsed),
      implied(zero + "stage3_gather_16bit_weights_on_model_save", kWhole),
      implied(zero + "gather_16bit_weights_on_model_save", kWhole),
      implied(zero + "allgather_partitions", "always on: shards are all-gathered"),
      implied(zero + "elastic_checkpoint", "always on: any number of ranks resumes a checkpoint"),
      implied(zero + "load_from_fp32_weights", "always on: weights load as fp32"),
      refused(zero + "zenflow", "ZenFlow is not supported"),
      only(zero + "cpu_offload", {"false"}, "it is off", "deprecated: give zero_optimization.offload_optimizer"),
      refused(zero + "zero_quantized_weights", kQuantised),
      refused(zero + "zero_quantized_gradients", kQuantised),
      refused(zero + "mics_hierarchical_params_gather", "hierarchical gathers are not supported"),
      refused(zero + "memory_efficient_linear", "linear layers save what their backward needs"),
      by("optimizer.type", "`train.optimizer`: Adam, AdamW and Lion; else refused", deepspeed_optimiser),
      sets(params + "lr", "train.lr"),
      sets(params + "betas", "train.betas"),
      sets(params + "eps", "train.eps"),
      sets(params + "weight_decay", "train.weight_decay"),
      only(params + "adam_w_mode", {"true"}, "decay is decoupled from the gradient", "only AdamW is supported"),
      only(params + "bias_correction", {"true"}, "AdamW corrects its bias", "AdamW corrects its bias"),
      only(params + "amsgrad", {"false"}, "it is off", "amsgrad is not supported"),
      implied(params + "torch_adam", "not needed: there is one AdamW, a fused one"),
      implied(params + "fused", "not needed: there is one AdamW, a fused one"),
      joined("scheduler.type", "`train.schedule`: WarmupLR, WarmupDecayLR, WarmupCosineLR; else refused"),
      joined(steps + "warmup_num_steps", "`train.warmup_steps`"),
      joined(steps + "warmup_steps", "`train.warmup_steps`"),
      joined(steps + "total_num_steps", "`run.steps`"),
      joined(steps + "max_steps", "`run.steps`"),
      joined(steps + "eta_min", "`train.eta_min`; beside WarmupCosineLR, which alone ends at it"),
      joined(steps + "warmup_max_lr", "`train.lr`"),
      joined(steps + "warmup_min_lr", "0; else refused: warm-up starts at 0"),
      joined(steps + "warmup_min_ratio", "0; else refused: warm-up starts at 0"),
      joined(steps + "cos_min_ratio", "`train.eta_min` = lr x ratio"),
      only(steps + "warmup_type", {"linear"}, "warm-up is linear", "warm-up is linear"),
      only(steps + "last_batch_iteration", {"-1"}, "a run starts at step 0", "resuming continues the schedule"),
      by(acts + "cpu_checkpointing", "`plan.activations = recompute_offload`",
         [](Translator& t, const Given& g) {
           if (is_false(g.value))
             t.imply(g.name, "it is off");
           else
             t.set("plan.activations", "recompute_offload", {g.name}, "blocks' inputs are offloaded to the host");
         }),
      sets(acts + "number_checkpoints", "plan.recompute"),
      implied(acts + "partition_activations", "always on: ranks of mesh.sp, cp and tp keep their share of the tokens"),
      implied(acts + "contiguous_memory_optimization", "always on: activations are in one arena"),
      implied(acts + "synchronize_checkpoint_boundary", "not needed: the schedule orders each recompute"),
      implied(acts + "profile", "RUN/report.html has the times of every lane"),
      implied("steps_per_print", "every step is in RUN/metrics.jsonl"),
      implied("wall_clock_breakdown", "RUN/report.html has the times of every lane"),
      implied("dump_state", "RUN/recipe.toml has every value"),
      implied("memory_breakdown", "RUN/metrics.jsonl has the bytes of every part"),
      implied("zero_allow_untested_optimizer", "not needed: there is one AdamW, and it works with every strategy"),
      implied("zero_force_ds_cpu_optimizer", "plan.update_on says where updates are computed"),
      only("disable_allgather", {"false"}, "it is off", "always on: shards are all-gathered"),
      only("prescale_gradients", {"false"}, "gradients are summed, then divided", "gradients are summed, then divided"),
      only("gradient_predivide_factor", {"1", "1.0"}, "gradients are summed, then divided",
           "gradients are summed, then divided"),
      only("sparse_gradients", {"false"}, "it is off", "gradients are dense"),
      refused("amp.enabled", "apex is not supported: use bf16"),
      implied("tensorboard.enabled", "always on: TensorBoard's file is in RUN/"),
      implied("tensorboard.output_path", "TensorBoard's file is in the run folder"),
      implied("tensorboard.job_name", "the run is named by its folder, run.out"),
      implied("csv_monitor.enabled", "RUN/metrics.jsonl has every step"),
      implied("comms_logger.enabled", "RUN/metrics.jsonl has the bytes sent of every axis"),
      implied("flops_profiler.enabled", "tessera plan counts them"),
      refused("elasticity.enabled", "the number of ranks is fixed within a run; any number resumes it"),
      implied("aio", "not needed: io_uring reads and writes the disk"),
      implied("checkpoint", "checkpoints are sharded, and any number of ranks resumes them"),
      refused("compression_training", "compression is not supported"),
      refused("data_efficiency.enabled", "data efficiency is not supported: see data.buckets and [[stage]]"),
      refused("curriculum_learning.enabled", "write a [[stage]]"),
      refused("compile.deepcompile", "torch.compile is not used: a step is a compiled schedule"),
      refused("autotuning.enabled", "the planner chooses the fastest plan that fits: tessera plan"),
  };
  for (const char* name :
       {"reduce_bucket_size", "allgather_bucket_size", "stage3_prefetch_bucket_size", "prefetch_bucket_size",
        "stage3_param_persistence_threshold", "param_persistence_threshold", "stage3_max_live_parameters",
        "max_live_parameters", "stage3_max_reuse_distance", "max_reuse_distance", "sub_group_size",
        "stage3_module_granularity_threshold", "stage3_use_all_reduce_for_fetch_params", "model_persistence_threshold",
        "use_multi_rank_bucket_allreduce"})
    table.push_back(implied(zero + name, kBuckets));
  for (const char* part : {"offload_optimizer.", "offload_param."})
    for (const char* name : {"pin_memory", "buffer_count", "buffer_size", "max_in_cpu", "fast_init", "pipeline_read",
                             "pipeline_write", "pipeline"})
      table.push_back(implied(zero + part + name, "not needed: buffers follow from the plan"));
  const std::vector<Rule> types = deepspeed_type_rules();
  table.insert(table.end(), types.begin(), types.end());
  for (const char* name : {"wandb", "comet"})
    table.push_back(
        warned(name, "metrics are not uploaded unless run.on_event names a command that does it (examples/on_event)"));
  for (const char* name : {"fp16", "amp", "tensorboard", "csv_monitor", "comms_logger", "flops_profiler", "elasticity",
                           "data_efficiency", "curriculum_learning", "autotuning"})
    table.push_back(implied(name, std::string("it belongs to ") + name + ".enabled"));
  return table;
}

}  // namespace

const Dialect& deepspeed_config() {
  static const Dialect dialect = {"DeepSpeed's JSON", "a DeepSpeed configuration", deepspeed_rules(),
                                  deepspeed_together, true};
  return dialect;
}

}  // namespace tessera::tools
