// FSDP's words, where they are found: accelerate's YAML and flags, VideoX-Fun's launch lines, a file of them alone.
// The reader strips what stands before a word (fsdp_config., fsdp_, --), so that each has one line here.
#include <algorithm>
#include <filesystem>

#include "tessera/base/check.h"
#include "tessera/tools/import/config_file.h"
#include "tessera/tools/import/dialects.h"
#include "tessera/tools/import/import.h"
#include "tessera/tools/import/parts.h"

namespace tessera::tools {

namespace {

// ---- the forms that FSDP's words are published in -----------------------------------------------------------------------

/// Calls whose arguments are options by themselves; of others (a policy, a mesh) only the call is known.
const char* const kCalls[] = {
    "MixedPrecision",     "MixedPrecisionPolicy",          "CPUOffload", "partial", "functools.partial",
    "checkpoint_wrapper", "apply_activation_checkpointing"};

std::string stripped(std::string name) {
  const bool checkpointing = name.starts_with("activation_checkpointing.");
  for (const std::string_view prefix :
       {"--", "fsdp_config.", "fsdp_kwargs.", "fsdp.", "deepspeed_config.", "mixed_precision.",
        "mixed_precision_policy.", "mp_policy.", "cpu_offload.", "offload_policy.", "state_dict_config.",
        "optim_state_dict_config.", "fsdp_", "activation_checkpointing."})
    if (name.starts_with(prefix)) name.erase(0, prefix.size());
  return checkpointing && (name == "enabled" || name == "enable") ? "activation_checkpointing" : name;
}

std::string trimmed(const std::string& text) {
  const size_t begin = text.find_first_not_of(" \t\n"), end = text.find_last_not_of(" \t\n");
  return begin == std::string::npos ? "" : text.substr(begin, end - begin + 1);
}

/// "a=f(1, 2), b" -> "a=f(1, 2)", "b".
std::vector<std::string> arguments(const std::string& text) {
  std::vector<std::string> list(1);
  int depth = 0;
  for (const char c : text) {
    depth += (c == '(' || c == '[' || c == '{') - (c == ')' || c == ']' || c == '}');
    if (c == ',' && depth == 0)
      list.emplace_back();
    else
      list.back() += c;
  }
  std::erase_if(list, [](const std::string& argument) { return trimmed(argument).empty(); });
  return list;
}

/// The name of a call whose arguments are options; empty where the value is none.
std::string called(const std::string& value) {
  const std::string name = value.substr(0, value.find('('));
  if (name.size() == value.size()) return "";
  if (name.ends_with("partial") && !trimmed(value.substr(name.size() + 1)).starts_with("checkpoint_wrapper")) return "";
  const bool known = std::ranges::any_of(kCalls, [&](const char* call) { return name == call; });
  return known ? name : "";
}

void add(std::vector<Given>& out, const Given& given, int depth) {
  const std::string call = depth < 4 ? called(given.value) : "";
  if (call.empty()) {
    out.push_back(given);
    return;
  }
  if (!given.value.ends_with(")"))
    throw UserError(Exit::usage, "import", given.shown() + ": the call has no end", "write it whole, or as a table");
  if (call == "checkpoint_wrapper" || call == "apply_activation_checkpointing")
    out.push_back({"checkpoint_wrapper", "true", given.typed});
  const std::string inside = given.value.substr(call.size() + 1, given.value.size() - call.size() - 2);
  for (const std::string& argument : arguments(inside)) {
    const size_t equal = argument.find('=');
    const std::string name = trimmed(argument.substr(0, equal));
    if (equal == std::string::npos && name == "model") continue;
    const std::string value = equal == std::string::npos ? "true" : trimmed(argument.substr(equal + 1));
    add(out, {stripped(name), value, given.typed + "." + name}, depth + 1);
  }
}

// ---- what they mean -----------------------------------------------------------------------------------------------------

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

void offload_optimizer(Translator& t, const Given& g) {
  offload_to(t, g, {"plan.states", "plan.gradients"}, "offload_optimizer_nvme_path");
}
void offload_param(Translator& t, const Given& g) {
  if (!is_false(g.value) && t.value("zero_stage", "3") != "3")
    return t.imply(g.name, "of stage 3 alone: parameters stay where they are with stage " + t.value("zero_stage"));
  offload_to(t, g, {"plan.parameters"}, "offload_param_nvme_path");
}

/// Fairscale's switch is read with others: switched_types.
void mixed_precision(Translator& t, const Given& g) {
  if (!is_true(g.value)) set_compute_type(t, g);
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
    const bool none = word == "NO_CHECKPOINT";
    if (!is_switch(value) && !none && word != "checkpoint_wrapper" && word != "offload_wrapper")
      throw UserError(Exit::usage, "import", t.find(option)->shown() + ": expected true or false",
                      "or the function's name: checkpoint_wrapper, offload_wrapper");
    if (is_false(value) || none)
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

// ---- what starts ranks ------------------------------------------------------------------------------------------------

void launchers_together(Translator& t) {
  const auto count = [&](const char* name) {
    if (t.integer(name, 1) < 1)
      throw UserError(Exit::usage, "import", t.find(name)->shown() + ": expected at least 1", "correct it");
    return t.integer(name, 1);
  };
  int64_t ranks = 0, machines = 1;
  std::string option;
  for (const char* name : {"--nproc_per_node", "--nproc-per-node", "--num_gpus"}) {
    if (!t.has(name)) continue;
    if (!option.empty()) t.imply(option, std::string(name) + " says it again");
    option = name, ranks = count(name);
  }
  for (const char* name : {"--nnodes", "--num_nodes"})
    if (t.has(name)) {
      machines = count(name);
      t.imply(name, "each is started by itself: tessera launch --nnodes " + t.value(name));
    }
  if (!option.empty())
    t.set_ranks(checked_int(checked_product({ranks, machines}, "import: ranks of all machines"), "import: the ranks"),
                option);
}

}  // namespace

void bare_words(std::vector<Given>& given) {
  std::vector<Given> out;
  for (Given& g : given) {
    g.typed = g.name;
    g.name = stripped(g.name);
    add(out, g, 0);
  }
  given = std::move(out);
}

const Dialect& accelerate_config() {
  static const Dialect dialect = dialect_of("accelerate", "config", fsdp_together,
                                            {{"sharding", plain(sharding)},
                                             {"reshard", plain(reshard)},
                                             {"offload_all", plain(offload_all)},
                                             {"offload_optimizer", plain(offload_optimizer)},
                                             {"offload_param", plain(offload_param)},
                                             {"mixed_precision", plain(mixed_precision)},
                                             {"fsdp_reduce_type", plain(fsdp_reduce_type)},
                                             {"low_precision_grads", plain(low_precision_grads)},
                                             {"zero_stage", plain(zero_stage)}});
  return dialect;
}

const Dialect& torchrun_launcher() {
  static const Dialect dialect = dialect_of("accelerate", "launchers", launchers_together);
  return dialect;
}

bool is_fsdp_variable(const std::string& variable) {
  return variable.starts_with("FSDP_") || variable.starts_with("ACCELERATE_");
}
Translation translate_fsdp_variables(const CommandLine& line, const ImportContext& context) {
  std::vector<Given> given;
  for (const std::string& variable : line.variables) {
    if (!is_fsdp_variable(variable)) continue;
    const size_t equal = variable.find('=');
    std::string name = lower_case(variable.substr(0, equal));
    if (!strip_prefix(name, "fsdp_")) strip_prefix(name, "accelerate_");
    if (name == "transformer_cls_to_wrap") name = "transformer_layer_cls_to_wrap";
    given.push_back({name, variable.substr(equal + 1), variable.substr(0, equal)});
  }
  return translate(accelerate_config(), std::move(given), context);
}

Translation translate_launcher(const CommandLine& line, const ImportContext& context) {
  const bool accelerate = line.launcher == "accelerate";
  const Dialect& dialect = accelerate ? accelerate_config() : torchrun_launcher();
  if (!accelerate) return translate(dialect, read_options(dialect, line.launcher_words), context);
  Dialect flags = dialect;  // the same words, as flags
  for (Rule& rule : flags.rules) rule.option = "--" + rule.option;
  const size_t count = flags.rules.size();
  for (size_t i = 0; i < count; ++i) {
    Rule fsdp = flags.rules[i];
    fsdp.option = "--fsdp_" + fsdp.option.substr(2);
    flags.rules.push_back(std::move(fsdp));
  }
  std::vector<Given> given = read_options(flags, line.launcher_words);
  bare_words(given);
  return translate(dialect, std::move(given), context);
}

}  // namespace tessera::tools
