#include "tessera/tools/options/fsdp_words.h"

#include <algorithm>

#include "tessera/base/check.h"

namespace tessera::tools {

namespace {

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

}  // namespace tessera::tools
