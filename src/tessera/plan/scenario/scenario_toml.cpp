// Scenarios as a file: one [[run]] table each.
#include <toml++/toml.h>

#include <algorithm>

#include "tessera/base/check.h"
#include "tessera/plan/scenario/scenario.h"

namespace tessera::plan {

namespace {

class RunReader {
 public:
  RunReader(const toml::table& table, std::string place) : table_(table), place_(std::move(place)) {}

  Scenario read() {
    Scenario s;
    get("name", s.name), get("source", s.source), get("note", s.note);
    if (!s.name.empty()) place_ += " (" + s.name + ")";
    TransformerSizes& z = s.sizes;
    get("dim", z.dim), get("ffn_dim", z.ffn_dim), get("layers", z.layers), get("kv_dim", z.kv_dim);
    get("heads", z.heads), get("gpus", s.gpus), get("experts", s.experts), get("wire", s.wire);
    get("text_tokens", z.text_tokens), get("vocab", z.vocab), get("passes", z.passes), get("kept", z.kept);
    get("lean", z.selective);
    get("gated_ffn", z.gated_ffn), get("causal", z.causal);
    get("tokens", s.tokens), get("global_batch", s.global_batch), get("micro_batch", s.micro_batch);
    get("recompute", s.recompute), get("prefetch", s.prefetch), get("frozen", s.frozen);
    get("products", s.products), get("update_bytes", s.machine.update_bytes);
    get("seconds", s.seconds), get("tokens_per_gpu", s.tokens_per_gpu), get("teraflops", s.teraflops);
    std::string text;
    if (get("mesh", text)) s.mesh = Mesh::parse(text);
    if (get("profile", text)) s.machine.profile = find_profile(text);
    if (get("strategy", text)) s.strategy = strategy_of(text, place_ + ": strategy");
    if (get("masters", text)) s.states.masters = masters_of(text, place_ + ": masters");
    if (get("moments", text)) s.states.moments = moments_of(text, place_ + ": moments");
    if (!table_.contains("update_bytes")) s.machine.update_bytes = 4 + 2 * bytes_per_parameter(s.states);
    for (const auto& [key, node] : table_)
      if (std::find(known_.begin(), known_.end(), key.str()) == known_.end())
        fail(std::string(key.str()), "unknown key; did you mean " + nearest(key.str(), known_).front() + "?");
    for (const auto& [key, value] :
         {std::pair{"dim", z.dim}, {"ffn_dim", z.ffn_dim}, {"layers", z.layers}, {"tokens", s.tokens}})
      if (value <= 0) fail(key, "expected a number above zero");
    return s;
  }

 private:
  [[noreturn]] void fail(const std::string& key, const std::string& what) const {
    throw UserError(Exit::usage, "plan.scenario", place_ + ": " + key + ": " + what,
                    "bench/published.toml has examples");
  }

  template <class T>
  bool get(const std::string& key, T& value) {
    known_.push_back(key);
    const toml::node* node = table_.get(key);
    if (!node) return false;
    const auto found = node->value<T>();
    if (!found) fail(key, "has another type than expected");
    value = *found;
    return true;
  }
  bool get(const std::string& key, int& value) {
    int64_t wide = value;
    const bool found = get(key, wide);
    value = static_cast<int>(wide);
    return found;
  }
  bool get(const std::string& key, std::optional<double>& value) {
    double number = 0;
    const bool found = get(key, number);
    if (found) value = number;
    return found;
  }

  const toml::table& table_;
  std::string place_;
  std::vector<std::string> known_;
};

}  // namespace

std::vector<Scenario> parse_scenarios(std::string_view text, const std::string& file) {
  toml::table root;
  try {
    root = toml::parse(text, file);
  } catch (const toml::parse_error& error) {
    throw UserError(Exit::usage, "plan.scenario",
                    file + ":" + std::to_string(error.source().begin.line) + ": " + std::string(error.description()),
                    "correct the line");
  }
  std::vector<Scenario> result;
  const toml::array* runs = root["run"].as_array();
  for (size_t i = 0; runs && i < runs->size(); ++i)
    if (const toml::table* table = (*runs)[i].as_table())
      result.push_back(RunReader(*table, file + ": run " + std::to_string(i + 1)).read());
  if (result.empty())
    throw UserError(Exit::usage, "plan.scenario", file + ": no [[run]] table", "bench/published.toml has examples");
  return result;
}

}  // namespace tessera::plan
