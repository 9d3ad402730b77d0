// Scenarios as a file: one [[run]] table each.
#include <toml++/toml.h>

#include <algorithm>

#include "tessera/base/check.h"
#include "tessera/base/toml_text.h"
#include "tessera/plan/optimizers.h"
#include "tessera/plan/search/scenario.h"

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
    get("search", s.search), get("flash", s.flash);
    get("products", s.products), get("update_bytes", s.machine.update_bytes);
    get("seconds", s.seconds), get("tokens_per_gpu", s.tokens_per_gpu), get("teraflops", s.teraflops);
    get("off", s.off);
    std::string text;
    if (get("mesh", text)) s.mesh = Mesh::parse(text);
    if (get("profile", text)) s.machine.profile = find_profile(text);
    if (get("strategy", text)) s.strategy = strategy_of(text, place_ + ": strategy");
    if (get("masters", text)) s.states.masters = masters_of(text, place_ + ": masters");
    if (get("moments", text)) s.states.moments = moments_of(text, place_ + ": moments");
    if (!table_.contains("update_bytes")) s.machine.update_bytes = update_bytes(s.states, DType::f32);
    for (const auto& [key, node] : table_)
      if (std::find(known_.begin(), known_.end(), key.str()) == known_.end())
        fail(std::string(key.str()), "unknown key; did you mean " + nearest(key.str(), known_).front() + "?");
    for (const auto& [key, value] :
         {std::pair{"dim", z.dim}, {"ffn_dim", z.ffn_dim}, {"layers", z.layers}, {"tokens", s.tokens}})
      if (value <= 0) fail(key, "expected a number above zero");
    check_counts(s);
    return s;
  }

 private:
  [[noreturn]] void fail(const std::string& key, const std::string& what) const {
    throw UserError(Exit::usage, "plan.scenario", place_ + ": " + key + ": " + what,
                    "bench/published.toml has examples");
  }

  /// What is multiplied, divided by or made in a list.
  void check_counts(const Scenario& s) const {
    const TransformerSizes& z = s.sizes;
    constexpr int64_t kSize = 1 << 20, kLayers = 1 << 12, kTokens = int64_t{1} << 30, kRanks = 1 << 17,
                      kBatch = 1 << 24;
    struct Count {
      const char* key;
      int64_t value, least, most;
    };
    for (const Count& c : {Count{"dim", z.dim, 1, kSize},
                           {"ffn_dim", z.ffn_dim, 1, kSize},
                           {"layers", z.layers, 1, kLayers},
                           {"heads", z.heads, 0, kSize},
                           {"kv_dim", z.kv_dim, 0, kSize},
                           {"text_tokens", z.text_tokens, 0, kTokens},
                           {"vocab", z.vocab, 0, kTokens},
                           {"tokens", s.tokens, 1, kTokens},
                           {"gpus", s.gpus, 0, kRanks},
                           {"experts", s.experts, 1, kLayers},
                           {"recompute", s.recompute, 0, kLayers},
                           {"prefetch", s.prefetch, 0, kLayers},
                           {"global_batch", s.global_batch, 1, kBatch},
                           {"micro_batch", s.micro_batch, 1, kBatch}})
      if (c.value < c.least || c.value > c.most)
        fail(c.key, "is " + std::to_string(c.value) + ", expected a number from " + std::to_string(c.least) + " to " +
                        std::to_string(c.most));
    for (const auto& [key, value] :
         {std::pair{"wire", s.wire}, {"products", s.products}, {"update_bytes", s.machine.update_bytes}})
      if (!(value > 0 && value < 1e6)) fail(key, "expected a number above zero");
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
    value = checked_int(wide, place_ + ": " + key);
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
    root = parse_toml(text, file);
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
