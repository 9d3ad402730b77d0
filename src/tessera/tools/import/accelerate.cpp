// FSDP's words, where they are found: accelerate's YAML and flags, VideoX-Fun's launch lines, a file of them alone.
// The reader strips what stands before a word (fsdp_config., fsdp_, --), so that each has one line here.
#include <filesystem>

#include "tessera/base/check.h"
#include "tessera/tools/import/config_file.h"
#include "tessera/tools/import/dialects.h"
#include "tessera/tools/import/import.h"
#include "tessera/tools/import/parts.h"

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
  if (is_false(g.value) || g.value == "CPUOffload(offload_params=False)")
    return t.imply(g.name, "no offload to the host");
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

void fsdp_checkpointing(Translator& t, const Given& g) {
  if (is_false(g.value))
    t.imply(g.name, "the planner chooses what is saved; plan.activations = \"keep\" forbids it to recompute");
  else
    t.set("plan.activations", "recompute", {g.name});
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
      by("activation_checkpointing", "`plan.activations = recompute`", fsdp_checkpointing, Takes::perhaps),
      by("param_dtype", "`plan.compute_dtype`", set_compute_type),
      by("mixed_precision", "`plan.compute_dtype`", set_compute_type),
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
      by("checkpoint_impl", "as use_reentrant",
         [](Translator& t, const Given& g) {
           t.imply(g.name, "not needed: a unit is recomputed from its saved input");
         }),
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
      refused("tpu_env", "TPUs are not supported"),
      refused("use_megatron_lm", "Megatron is not used: see mesh.tp and mesh.pp"),
  };
  for (const char* name : {"auto_wrap_policy", "transformer_layer_cls_to_wrap", "min_num_params", "ignored_modules"})
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
                           "cpu_ram_efficient_loading", "zero3_init_flag", "device_id", "param_init_fn"})
    table.push_back(implied(name,
                            "always on: sharded checkpoints, whole exported weights, partial reads, gathers "
                            "bounded by the plan, original parameters"));
  return table;
}

}  // namespace

const Dialect& accelerate_config() {
  static const Dialect dialect = {"accelerate and FSDP", "an accelerate or FSDP configuration", accelerate_rules(),
                                  fsdp_together};
  return dialect;
}

}  // namespace tessera::tools
