// FSDP's words, where they are found: accelerate's YAML and flags, VideoX-Fun's launch lines, a file of them alone.
// The reader strips what stands before a word (fsdp_config., fsdp_, --), so that each has one line here.
#include <algorithm>
#include <filesystem>

#include "tessera/base/check.h"
#include "tessera/tools/import/dialects.h"
#include "tessera/tools/import/import.h"
#include "tessera/tools/import/parts.h"
#include "tessera/tools/options/config_file.h"

namespace tessera::tools {

namespace {

std::string upper(std::string text) {
  for (char& c : text) c = static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  return text;
}

/// HYBRID_SHARD shards within a machine and replicates over machines.
void hybrid(Translator& t, const std::string& option, const char* strategy) {
  const int64_t machines = t.integer("num_machines", 1);
  t.set("plan.strategy", strategy, {option});
  if (machines > 1)
    t.set("mesh.dp_replicate", std::to_string(machines), {option, "num_machines"}, "a copy of the model a machine");
  else
    t.imply(option, "one machine is one group of shards; with more, set mesh.dp_replicate to their number");
}

void sharding(Translator& t, const Given& g) {
  static const char* const kNumbers[] = {"FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD", "HYBRID_SHARD",
                                         "_HYBRID_SHARD_ZERO2"};
  std::string word = upper(g.value);
  word = word.substr(word.rfind('.') == std::string::npos ? 0 : word.rfind('.') + 1);  // ShardingStrategy.FULL_SHARD
  if (word.size() == 1 && word[0] >= '1' && word[0] <= '5') word = kNumbers[word[0] - '1'];
  if (word == "FULL_SHARD")
    t.set("plan.strategy", "full_shard", {g.name});
  else if (word == "SHARD_GRAD_OP")
    t.set("plan.strategy", "shard_grad_op", {g.name});
  else if (word == "NO_SHARD")
    t.set("plan.strategy", "no_shard", {g.name});
  else if (word == "HYBRID_SHARD")
    hybrid(t, g.name, "full_shard");
  else if (word == "_HYBRID_SHARD_ZERO2" || word == "HYBRID_SHARD_ZERO2")
    hybrid(t, g.name, "shard_grad_op");
  else
    throw UserError(
        Exit::usage, "import", g.shown() + " is no sharding strategy",
        "did you mean " + nearest(word, {"FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD", "HYBRID_SHARD"}).front() + "?");
}

void reshard(Translator& t, const Given& g) {
  const std::string word = upper(g.value);
  if (word == "TRUE" || word == "FALSE")  // FSDP2
    t.set("plan.strategy", word == "TRUE" ? "full_shard" : "shard_grad_op", {g.name});
  else
    sharding(t, g);  // accelerate takes FSDP1's words here too
}

void zero_stage(Translator& t, const Given& g) { t.set("plan.strategy", "ZeRO-" + g.value, {g.name}); }

/// Offload of parameters, gradients and states: FSDP moves all three together, ZeRO each by itself.
void offload_all(Translator& t, const Given& g) {
  if (is_false(g.value)) return t.imply(g.name, "no offload to the host");
  if (!g.value.empty() && !is_true(g.value) && g.value != "CPUOffloadPolicy()")
    throw UserError(Exit::usage, "import", g.shown() + ": expected true or false", "correct it");
  for (const char* key : {"plan.parameters", "plan.gradients", "plan.states"}) t.set(key, "host", {g.name});
}
void offload_to(Translator& t, const Given& g, const std::vector<std::string>& keys, const std::string& path) {
  if (is_false(g.value)) return t.imply(g.name, "no offload");
  if (g.value != "cpu" && g.value != "nvme")
    throw UserError(Exit::usage, "import", g.shown() + ": expected none, cpu or nvme", "correct it");
  for (const std::string& key : keys) t.set(key, g.value == "cpu" ? "host" : "nvme", {g.name});
  if (g.value == "nvme" && t.has(path)) t.set("plan.nvme", t.value(path), {path});
  if (g.value == "nvme" && !t.has(path)) t.refuse(g.name, "a disk needs its folder: give " + path);
}

void fsdp_reduce_type(Translator& t, const Given& g) {
  const std::string type = type_word(g.value);
  if (type.empty())
    t.refuse(g.name, "gradients are reduced in fp32, bf16 or fp16");
  else
    t.set("plan.reduce_dtype", type, {g.name});
}

/// Gradients stay what they were reduced in, for the optimiser too.
void low_precision_grads(Translator& t, const Given& g) {
  if (is_false(g.value)) return t.imply(g.name, "gradients are kept in fp32");
  for (const char* option : {"reduce_dtype", "param_dtype", "mixed_precision"}) {
    if (!t.has(option)) continue;
    const std::string type = type_word(t.value(option));
    if (type == "fp32") return t.imply(g.name, std::string(option) + " is fp32, and so are stored gradients");
    if (type == "bf16")
      return t.set("plan.grad_dtype", type, {g.name}, "gradients are kept in the dtype in which they are reduced");
    return t.refuse(g.name, "gradients are kept in fp32 or bf16, not in " + t.value(option));
  }
  t.imply(g.name, "gradients are reduced and kept in fp32");
}

bool is_switch(const std::string& value) { return value.empty() || is_true(value) || is_false(value); }
/// Whether a switch that is given, with nothing but true or false, is on.
bool is_on(Translator& t, const std::string& option) {
  if (t.has(option) && !is_switch(t.value(option)))
    throw UserError(Exit::usage, "import", t.find(option)->shown() + ": expected true or false", "correct it");
  return t.flag(option);
}

/// What is recomputed, and where its inputs wait: checkpoint_wrapper(offload_to_cpu=True) sends them to the host.
void fsdp_checkpointing(Translator& t) {
  const std::string offload = "offload_to_cpu";
  std::vector<std::string> on;
  for (const char* option : {"activation_checkpointing", "checkpoint_wrapper", "checkpoint_wrapper_fn"}) {
    if (!t.has(option)) continue;
    const std::string value = t.value(option), word = value.substr(value.rfind('.') + 1);
    if (!is_switch(value) && word != "checkpoint_wrapper" && word != "offload_wrapper")
      throw UserError(Exit::usage, "import", t.find(option)->shown() + ": expected true or false",
                      "or the function's name: checkpoint_wrapper, offload_wrapper");
    if (is_false(value))
      t.imply(option, "the planner chooses what is saved; plan.activations = \"keep\" forbids it to recompute");
    else
      on.push_back(option);
  }
  bool sends =
      std::ranges::any_of(on, [&](const auto& option) { return t.value(option).ends_with("offload_wrapper"); });
  if (t.has(offload)) {
    const std::string& typed = t.find(offload)->typed;
    if (!is_on(t, offload))
      t.imply(offload, "it is off");
    else if (typed.find("state_dict") != std::string::npos)
      t.imply(offload, "checkpoints and the exported model are written from shards, none is gathered on a device");
    else if (on.empty())
      t.refuse(offload,
               "of what is not said: give checkpoint_wrapper or activation_checkpointing beside it for the "
               "inputs of recomputed blocks, offload_params for parameters, gradients and states");
    else
      sends = true, on.push_back(offload);
  }
  if (!on.empty())
    t.set("plan.activations", sends ? "recompute_offload" : "recompute", on,
          sends ? "inputs of recomputed blocks are offloaded to the host" : "");
}

/// Fairscale's: gradients follow the parameters unless it is said.
void move_to_cpu(Translator& t) {
  const std::string params = "move_params_to_cpu", grads = "move_grads_to_cpu";
  const bool moves = is_on(t, params), moves_grads = is_on(t, grads);
  if (t.has(params) && !moves) t.imply(params, "no offload to the host");
  if (moves)
    for (const char* key : {"plan.parameters", "plan.states"}) t.set(key, "host", {params});
  if (!t.has(grads)) {
    if (moves) t.set("plan.gradients", "host", {params});
  } else if (moves && !moves_grads) {
    t.set("plan.gradients", "device", {grads});
  } else if (moves_grads) {
    t.set("plan.gradients", "host", {grads});
  } else {
    t.imply(grads, "no offload to the host");
  }
}

/// Fairscale's mixed_precision is a switch: compute_dtype says of what, fp16 where it is not given.
void switched_types(Translator& t) {
  const std::string mixed = "mixed_precision", compute = "compute_dtype", reduce = "fp32_reduce_scatter";
  const bool is_switched = t.has(mixed) && is_true(t.value(mixed));
  std::string type = "fp32";
  for (const char* option : {"mixed_precision", "param_dtype", "compute_dtype"})
    if (t.has(option) && !type_word(t.value(option)).empty()) type = type_word(t.value(option));
  if (is_switched && t.has(compute))
    t.imply(mixed, "compute_dtype says in what");
  else if (is_switched)
    t.set("plan.compute_dtype", type = "fp16", {mixed}, "Fairscale's, where compute_dtype is not given");
  if (!t.has(reduce)) return;
  if (!is_switch(t.value(reduce)))
    throw UserError(Exit::usage, "import", t.find(reduce)->shown() + ": expected true or false", "correct it");
  if (is_on(t, reduce))
    t.set("plan.reduce_dtype", "fp32", {reduce});
  else if (type == "fp32" || type == "bf16")
    t.set("plan.reduce_dtype", type, {reduce}, "gradients are reduced in the dtype of the computing");
  else
    t.refuse(reduce, "gradients are reduced in fp32 or bf16");
}

void prefetch(Translator& t) {
  const std::string forward = "forward_prefetch", backward = "backward_prefetch";
  if (t.has(forward))
    t.imply(forward, t.flag(forward) ? "the plan gathers ahead in the forward, plan.prefetch says how far"
                                     : "the planner chooses what is prefetched; plan.prefetch = 0 turns it off");
  if (!t.has(backward)) return;
  const std::string word = upper(t.value(backward));
  if (word.ends_with("BACKWARD_PRE"))
    t.imply(backward, "the plan gathers ahead in the backward, plan.prefetch says how far");
  else if (word.ends_with("NO_PREFETCH") || is_false(word))
    t.set("plan.prefetch", "0", {backward});
  else if (word.ends_with("BACKWARD_POST"))
    t.refuse(backward, "gathers begin before the unit that runs is done: BACKWARD_PRE");
  else
    throw UserError(Exit::usage, "import", t.find(backward)->shown() + " is not known",
                    "did you mean " + nearest(word, {"BACKWARD_PRE", "BACKWARD_POST", "NO_PREFETCH"}).front() + "?");
}

void fsdp_together(Translator& t) {
  prefetch(t);
  fsdp_checkpointing(t);
  move_to_cpu(t);
  switched_types(t);
  const std::string file = "deepspeed_config_file";
  if (t.has("num_processes")) t.set_ranks(static_cast<int>(t.integer("num_processes", 1)), "num_processes");
  const auto* replicate = t.result().find("mesh.dp_replicate");
  if (t.has("num_machines") && !replicate)
    t.imply("num_machines", "each is started by itself: tessera launch --nnodes " + t.value("num_machines"));
  if (replicate && t.ranks())
    t.assume("mesh.dp_shard",
             std::to_string(std::max<int64_t>(1, *t.ranks() / std::max<int64_t>(1, to_integer(replicate->value)))),
             "ranks of a machine");
  if (t.has("gradient_accumulation_steps")) {
    t.result().accumulation = static_cast<int>(t.integer("gradient_accumulation_steps", 1));
    t.imply("gradient_accumulation_steps", "the batch is the trainer's: it is multiplied there");
  }
  for (const std::string& name : {std::string("config_file"), file}) {
    if (!t.has(name)) continue;
    const std::string path = file_beside(t.context(), t.value(name));
    if (!std::filesystem::exists(path)) {
      t.refuse(name, path + " was not found: none of its options is in effect");
      continue;
    }
    t.imply(name, "its options follow");
    t.result().merge(import_file(path, t.context()));
  }
}

std::vector<Rule> accelerate_rules() {
  const char* const kWrap = "not needed: units are the transformer blocks";
  const char* const kLaunch = "tessera launch has --nnodes, --node-rank and --rdzv-endpoint";
  std::vector<Rule> table = {
      by("sharding_strategy", "`plan.strategy`; HYBRID_SHARD: `mesh.dp_replicate` machines too", sharding),
      by("reshard_after_forward", "`plan.strategy`: true full_shard, false shard_grad_op", reshard),
      joined("forward_prefetch", "`plan.prefetch` says how far ahead"),
      joined("backward_prefetch", "BACKWARD_PRE: `plan.prefetch` says how far; NO_PREFETCH: `plan.prefetch = 0`"),
      by("offload_params", "`plan.parameters`, `plan.gradients`, `plan.states` = host", offload_all, Takes::perhaps),
      by("cpu_offload", "`plan.parameters`, `plan.gradients`, `plan.states` = host", offload_all, Takes::perhaps),
      joined("activation_checkpointing", "`plan.activations = recompute`", Takes::perhaps),
      joined("checkpoint_wrapper", "`plan.activations = recompute`; offload_wrapper: `recompute_offload`",
             Takes::perhaps),
      joined("checkpoint_wrapper_fn", "as checkpoint_wrapper"),
      joined("offload_to_cpu", "beside checkpoint_wrapper: `plan.activations = recompute_offload`; else refused",
             Takes::perhaps),
      joined("move_params_to_cpu", "`plan.parameters`, `plan.states`, `plan.gradients` = host", Takes::perhaps),
      joined("move_grads_to_cpu", "`plan.gradients` = host or device", Takes::perhaps),
      joined("fp32_reduce_scatter", "`plan.reduce_dtype`: true fp32, false as it computes", Takes::perhaps),
      by("compute_dtype", "`plan.compute_dtype`", set_compute_type),
      by("param_dtype", "`plan.compute_dtype`", set_compute_type),
      by("mixed_precision", "`plan.compute_dtype`; true (Fairscale): as compute_dtype, or fp16",
         [](Translator& t, const Given& g) {
           if (!is_true(g.value)) set_compute_type(t, g);  // switched_types
         }),
      by("reduce_dtype", "`plan.reduce_dtype`", fsdp_reduce_type),
      by("keep_low_precision_grads", "true: `plan.grad_dtype` as gradients are reduced; fp16 refused",
         low_precision_grads, Takes::perhaps),
      only("buffer_dtype", {"fp32", "float32", "torch.float32", "bf16", "bfloat16", "torch.bfloat16"},
           "these models have no buffers but tables that are computed in fp32", "fp32 and bf16 are supported"),
      by(
          "use_reentrant", "not needed: a unit is recomputed from its saved input",
          [](Translator& t, const Given& g) {
            t.imply(g.name,
                    "not needed: a unit is recomputed from its saved input: what reentrant and not differ in is not "
                    "there (frozen parameters, several inputs and losses are as good)");
          },
          Takes::perhaps),
      only("checkpoint_impl", {"NO_REENTRANT", "REENTRANT", "CheckpointImpl.NO_REENTRANT", "CheckpointImpl.REENTRANT"},
           "not needed: a unit is recomputed from its saved input", "NO_REENTRANT and REENTRANT are known"),
      only("output_dtype", {"null", "none", "fp32", "float32", "torch.float32"}, "predictions and losses are fp32",
           "predictions and losses are fp32"),
      only("force_input_to_fp32", {"false"}, "it is off", "blocks read what plan.compute_dtype says"),
      only("gradient_predivide_factor", {"1", "1.0"}, "gradients are summed, then divided",
           "gradients are summed, then divided"),
      by("zero_stage", "`plan.strategy`", zero_stage),
      by("offload_optimizer_device", "`plan.states`, `plan.gradients` = host or nvme",
         [](Translator& t, const Given& g) {
           offload_to(t, g, {"plan.states", "plan.gradients"}, "offload_optimizer_nvme_path");
         }),
      by("offload_param_device", "`plan.parameters` = host or nvme",
         [](Translator& t, const Given& g) {
           if (!is_false(g.value) && t.value("zero_stage", "3") != "3")
             return t.refuse(g.name, "with stage " + t.value("zero_stage") + "; it needs stage 3");
           offload_to(t, g, {"plan.parameters"}, "offload_param_nvme_path");
         }),
      by("offload_optimizer_nvme_path", "`plan.nvme`",
         [](Translator& t, const Given& g) { t.imply(g.name, "the disk of offload_optimizer_device = nvme"); }),
      by("offload_param_nvme_path", "`plan.nvme`",
         [](Translator& t, const Given& g) { t.imply(g.name, "the disk of offload_param_device = nvme"); }),
      by("gradient_clipping", "`train.clip_norm`",
         [](Translator& t, const Given& g) { t.set("train.clip_norm", g.value, {g.name}); }),
      joined("gradient_accumulation_steps", "multiplies the trainer's batch"),
      joined("config_file", "its options follow"),
      joined("deepspeed_config_file", "its options follow"),
      joined("num_processes", "`tessera launch -n`"),
      joined("num_machines", "`tessera launch --nnodes`"),
      only("distributed_type", {"FSDP", "DEEPSPEED", "MULTI_GPU", "NO", "MULTI_CPU"}, "tessera launch starts the ranks",
           "FSDP, DEEPSPEED and MULTI_GPU are supported"),
      only("downcast_bf16", {"no"}, "it is an option of TPUs", "TPUs are not supported"),
      only("dynamo_backend", {"no"}, "it is off", "torch.compile is not used"),
      only("version", {"1", "2"}, "there is one FSDP", "1 and 2 are supported"),
      only("sync_module_states", {"true"}, "every rank reads its own part of the weights",
           "all ranks start from the same weights"),
      refused("tpu_use_cluster", "TPUs are not supported"),
      refused("tpu_use_sudo", "TPUs are not supported"),
      by("tpu_env", "empty: there is none; else refused: TPUs are not supported",
         [](Translator& t, const Given& g) {
           if (g.value.empty() || is_false(g.value))
             t.imply(g.name, "there is none");
           else
             t.refuse(g.name, "TPUs are not supported");
         }),
      refused("use_megatron_lm", "Megatron is not used: see mesh.tp and mesh.pp"),
  };
  for (const char* name : {"auto_wrap_policy", "transformer_layer_cls_to_wrap", "transformer_layer_cls",
                           "min_num_params", "ignored_modules"})
    table.push_back(implied(name, kWrap));
  for (const char* name : {"machine_rank", "main_process_ip", "main_process_port", "rdzv_backend", "same_network",
                           "deepspeed_multinode_launcher", "deepspeed_hostfile", "rdzv_conf", "max_restarts"})
    table.push_back(implied(name, kLaunch));
  for (const char* name : {"use_fsdp", "use_deepspeed", "multi_gpu", "use_cpu", "compute_environment", "debug",
                           "main_training_function", "num_cpu_threads_per_process", "gpu_ids", "enable_cpu_affinity"})
    table.push_back(implied(
        name, "not needed: tessera launch starts ranks",
        std::string(name).starts_with("use_") || name == std::string("multi_gpu") ? Takes::perhaps : Takes::value));
  for (const char* name : {"state_dict_type", "zero3_save_16bit_model", "limit_all_gathers", "use_orig_params",
                           "cpu_ram_efficient_loading", "zero3_init_flag", "device_id", "param_init_fn", "rank0_only",
                           "state_dict_on_rank_0_only", "state_dict_device", "no_broadcast_optim_state"})
    table.push_back(implied(name,
                            "always on: sharded checkpoints, whole exported weights, partial reads, gathers "
                            "bounded by the plan, original parameters"));
  for (const char* name : {"ignore_unused_parameters", "find_unused_parameters"})
    table.push_back(implied(name, "not needed: every parameter of these models is used", Takes::perhaps));
  for (const char* name : {"flatten_parameters", "bucket_cap_mb", "disable_reshard_on_root", "clear_autocast_cache",
                           "fp32_buffers", "cast_forward_inputs", "cast_root_forward_inputs"})
    table.push_back(implied(name,
                            "not needed: a unit's parameters are one flat buffer, its slot stays where it is used "
                            "again soon, and units cast what they read",
                            Takes::perhaps));
  table.push_back(implied("verbose", "every step is in RUN/metrics.jsonl", Takes::perhaps));
  for (const char* name : {"wandb", "log_with", "report_to"})
    table.push_back(
        warned(name, "metrics are not uploaded unless run.on_event names a command that does it (examples/on_event)"));
  return table;
}

}  // namespace

const Dialect& accelerate_config() {
  static const Dialect dialect = {"accelerate and FSDP", "an accelerate or FSDP configuration", accelerate_rules(),
                                  fsdp_together};
  return dialect;
}

}  // namespace tessera::tools
