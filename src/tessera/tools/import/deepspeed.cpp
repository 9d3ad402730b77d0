// DeepSpeed's JSON. Names and defaults are those of its configuration reference.
#include <algorithm>
#include <cmath>

#include "tessera/base/check.h"
#include "tessera/recipe/recipe_table.h"
#include "tessera/tools/import/dialects.h"
#include "tessera/tools/import/parts.h"

namespace tessera::tools {

namespace {

const char* const kPartition = "zero_optimization.zero_hpz_partition_size";
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

// ---- dtypes -------------------------------------------------------------------------------------------------------------

void reduce_type(Translator& t, const Given& g) {
  if (is_false(g.value)) return t.imply(g.name, "gradients are reduced in fp32");
  const std::string type = type_word(g.value);
  if (type.empty())
    throw UserError(Exit::usage, "import", g.shown() + ": expected fp32, bf16 or fp16",
                    "did you mean " + nearest(g.value, {"fp32", "bf16", "fp16"}).front() + "?");
  const std::string here = recipe::recipe_table().find("plan.reduce_dtype")->choices;
  if (("|" + here + "|").find("|" + type + "|") == std::string::npos)
    return t.refuse(g.name, "gradients are reduced in " + here);
  t.set("plan.reduce_dtype", type, {g.name});
}

/// DeepSpeed's accumulation dtype is the dtype in which Tessera stores gradients; the sum itself is fp32 here.
void stored_gradients(Translator& t, const Given& g) {
  const std::string type = type_word(g.value);
  if (type == "fp32")
    t.imply(g.name, "gradients are summed and kept in fp32");
  else if (type == "bf16")
    t.set("plan.grad_dtype", "bf16", {g.name}, "gradients are kept in bf16 between micro-batches and until the update");
  else
    t.refuse(g.name, "gradients are kept in fp32 or bf16");
}

void static_scale(Translator& t, const Given& g) {
  if (t.number(g.name, 0) == 0)
    t.imply(g.name, "the loss scale is dynamic");
  else
    t.refuse(g.name, "the loss scale is dynamic: train.loss_scale is where it begins");
}

void first_scale(Translator& t, const Given& g) {
  t.set("train.loss_scale", number_text(std::exp2(t.number(g.name, 16))), {g.name}, "2 to the power of it");
}

/// Ulysses sends what attention computes with.
void sequence_type(Translator& t, const Given& g) {
  const std::string type = t.flag("bf16.enabled") ? "bf16" : t.flag("fp16.enabled") ? "fp16" : "fp32";
  if (g.value == type)
    t.imply(g.name, "Ulysses sends plan.compute_dtype");
  else
    t.refuse(g.name, "Ulysses sends plan.compute_dtype, here " + type);
}

}  // namespace

const Dialect& deepspeed_config() {
  static const Dialect dialect = dialect_of("deepspeed", "config", deepspeed_together,
                                            {{"stage", plain(stage)},
                                             {"partition", plain(partition)},
                                             {"deepspeed_optimiser", plain(deepspeed_optimiser)},
                                             {"reduce_type", plain(reduce_type)},
                                             {"stored_gradients", plain(stored_gradients)},
                                             {"sequence_type", plain(sequence_type)},
                                             {"static_scale", plain(static_scale)},
                                             {"first_scale", plain(first_scale)}});
  return dialect;
}

}  // namespace tessera::tools
