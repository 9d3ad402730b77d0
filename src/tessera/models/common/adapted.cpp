#include "tessera/models/common/adapted.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "tessera/base/bounded_regex.h"
#include "tessera/base/check.h"
#include "tessera/checkpoint/row_part.h"
#include "tessera/models/common/initial.h"
#include "tessera/models/common/trained_parts.h"
#include "tessera/net/adapters.h"

namespace tessera::models {

namespace {

constexpr std::string_view kWeight = ".weight";

/// A target as the user wrote it, and the expression that a whole module name has to match.
struct Target {
  std::string text;
  BoundedRegex expression;
};

std::string escaped(const std::string& text) {
  std::string result;
  for (const char c : text) {
    if (c == '.') result += '\\';
    result += c == '*' ? std::string(".*") : std::string(1, c);
  }
  return result;
}

Target parse_target(const std::string& text, const char* key = "lora.targets") {
  const bool is_regex = text.find_first_of("()[]|^$+\\") != text.npos;
  const bool is_pattern = text.find('*') != text.npos;
  const auto expression = BoundedRegex::parse(is_regex ? text + ".*" : (is_pattern ? "" : "(.*\\.)?") + escaped(text));
  if (!expression)
    throw UserError(Exit::usage, key,
                    "'" + text + "' is no regular expression within our bounds (" + BoundedRegex::kBounds + ")",
                    "name modules (q,k,v,o,ffn.0,ffn.2) or write patterns with *");
  return {text, *expression};
}

/// A linear of a unit that may have an adapter.
struct Linear {
  std::string module;  // without ".weight"
  const plan::ParamSpec* weight;
};

std::vector<Linear> linears(const plan::UnitSpec& spec) {
  std::vector<Linear> all;
  for (const plan::ParamSpec& param : spec.params)
    if (param.name.ends_with(kWeight) && param.shape.size() == 2)
      all.push_back({param.name.substr(0, param.name.size() - kWeight.size()), &param});
  return all;
}

class Targets {
 public:
  Targets(const net::Denoiser& model, const std::vector<std::string>& texts) : model_(model) {
    for (const auto& text : texts) targets_.push_back(parse_target(text));
    found_.resize(targets_.size());
  }

  bool take(const plan::UnitSpec& unit, const std::string& module) {
    std::string foreign = checkpoint::whole_name(model_.foreign_name(module + std::string(kWeight), "diffusers"));
    foreign.resize(foreign.size() - kWeight.size());
    known_.insert(module);
    bool taken = false;
    for (size_t i = 0; i < targets_.size(); ++i) {
      const auto& [text, expression] = targets_[i];
      const bool match = text == "all" ? unit.kind != "stem" && unit.kind != "head"
                                       : expression.matches(module) || expression.matches(foreign);
      found_[i] = found_[i] || match;
      taken = taken || match;
    }
    return taken;
  }

  /// Throws for a target without a linear; default targets need not all match, as some belong to other families.
  void check(bool each) const {
    std::vector<std::string> known(known_.begin(), known_.end()), ends;
    for (const auto& module : known) ends.push_back(module.substr(module.rfind('.') + 1));
    for (size_t i = 0; each && i < targets_.size(); ++i) {
      if (found_[i]) continue;
      known.insert(known.end(), ends.begin(), ends.end());
      const auto near = nearest(targets_[i].text, known);
      throw UserError(Exit::usage, "lora.targets",
                      "'" + targets_[i].text + "' is no linear of the model" +
                          (near.empty() ? "" : "; did you mean " + near[0] + "?"),
                      known_.empty() ? "the model has no linears" : "a whole name is " + *known_.begin());
    }
  }

 private:
  const net::Denoiser& model_;
  std::vector<Target> targets_;
  std::vector<bool> found_;
  std::set<std::string> known_;
};

/// A unit whose linears have adapters: more parameters, the same function.
class AdaptedUnit final : public net::Unit {
 public:
  AdaptedUnit(std::unique_ptr<net::Unit> unit, plan::UnitSpec spec, net::AdapterSettings settings)
      : Unit(std::move(spec), unit->prefix()), unit_(std::move(unit)), settings_(std::move(settings)) {}

  std::string_view output_site() const override { return unit_->output_site(); }
  net::Flow forward(net::Context& ctx, const net::Flow& in) const override {
    ctx.use_adapters(&settings_);
    return unit_->forward(ctx, in);
  }

 private:
  const std::unique_ptr<net::Unit> unit_;
  const net::AdapterSettings settings_;
};

void check_rank(const AdapterRule& rule, const Linear& linear) {
  const int64_t most = std::min(linear.weight->shape[0], linear.weight->shape[1]), rank = rule.rank_of(linear.module);
  if (rank >= 1 && (rank <= most || rule.kind != "lora")) return;
  throw UserError(Exit::usage, "lora.rank",
                  std::to_string(rank) + ": " + linear.module + " is " + std::to_string(linear.weight->shape[0]) +
                      " x " + std::to_string(linear.weight->shape[1]) + ", an adapter of it has a rank of 1 to " +
                      std::to_string(most),
                  "4 to 128 are usual");
}

/// Parameters of one adapter. Tensor parallelism shards what has the rows of a column-parallel weight, and what has the
/// columns of a row-parallel one.
class AdapterParams {
 public:
  AdapterParams(const AdapterRule& rule, const Linear& linear, std::vector<plan::ParamSpec>& params)
      : rule_(rule), linear_(linear), rank_(rule.rank_of(linear.module)), params_(params) {}

  /// Returns whether the scale is 1 whatever alpha is.
  bool add() {
    const int64_t out = linear_.weight->shape[0], in = linear_.weight->shape[1];
    const bool unscaled = rule_.kind == "lokr" && add_kronecker(out, in);
    if (rule_.kind == "loha") {
      const net::ChangeKind& kind = net::kChangeKinds[0];
      add_pair(kind.first, out, in, true), add_pair(kind.second, out, in, true);
    } else if (rule_.kind == "lora") {
      add_one(net::kLoraA, {rank_, in}, false, true);
      add_one(net::kLoraB, {out, rank_}, true, false);
    }
    if (rule_.dora) add_one(net::kLoraMagnitude, {out}, true, false);
    return unscaled;
  }

 private:
  bool add_kronecker(int64_t out, int64_t in) {
    const net::ChangeKind& kind = net::kChangeKinds[1];
    std::array<int64_t, 2> rows = kronecker_split(out, rule_.factor);
    const std::array<int64_t, 2> columns = kronecker_split(in, rule_.factor);
    if (rule_.unbalanced) std::swap(rows[0], rows[1]);
    const auto is_low = [&](size_t i) { return 2 * rank_ < std::max(rows[i], columns[i]); };
    const bool first_low = rule_.decompose_both && is_low(0), second_low = !rule_.full_matrix && is_low(1);
    if (first_low)
      add_pair(kind.first, rows[0], columns[0], true);
    else
      add_one(kind.first, {rows[0], columns[0]}, true, true);
    if (second_low)
      add_pair(kind.second, rows[1], columns[1], false);
    else
      add_one(kind.second, {rows[1], columns[1]}, false, false);
    return !first_low && !second_low;
  }
  void add_pair(const std::string& name, int64_t rows, int64_t columns, bool sharded) {
    add_one(name + net::kLeft, {rows, rank_}, sharded, false);
    add_one(name + net::kRight, {rank_, columns}, false, sharded);
  }
  /// `rows`, `columns`: whether it has those of the weight.
  void add_one(const std::string& ending, std::vector<int64_t> shape, bool rows, bool columns) {
    const plan::Split split = linear_.weight->split;
    const bool cut = (rows && split == plan::Split::column_parallel) || (columns && split == plan::Split::row_parallel);
    params_.push_back(
        {.name = linear_.module + ending, .shape = std::move(shape), .split = cut ? split : plan::Split::none});
  }

  const AdapterRule& rule_;
  const Linear& linear_;
  const int64_t rank_;
  std::vector<plan::ParamSpec>& params_;
};

/// What the first pattern that matches the module gives, or `usual`.
double by_pattern(const std::vector<std::pair<std::string, double>>& patterns, const std::string& module,
                  double usual) {
  for (const auto& [text, value] : patterns)
    if (parse_target(text, "lora.rank_pattern").expression.matches(module)) return value;
  return usual;
}

/// Throws for a pattern of no adapted module.
void check_patterns(const std::vector<std::pair<std::string, double>>& patterns, const char* key,
                    const std::vector<std::string>& modules) {
  for (const auto& [text, value] : patterns) {
    const Target target = parse_target(text, key);
    if (std::ranges::any_of(modules, [&](const auto& module) { return target.expression.matches(module); })) continue;
    throw UserError(Exit::usage, key, "'" + text + "' is no module with an adapter",
                    "patterns are over official names, as " + modules.front());
  }
}

}  // namespace

int64_t AdapterRule::rank_of(const std::string& module) const {
  return ranks.empty() ? rank : static_cast<int64_t>(by_pattern(ranks, module, static_cast<double>(rank)));
}

double AdapterRule::alpha_of(const std::string& module) const {
  return by_pattern(alphas, module, alpha_is_rank ? static_cast<double>(rank_of(module)) : alpha);
}

double AdapterRule::scale(const std::string& module) const {
  const auto r = static_cast<double>(rank_of(module));
  return alpha_of(module) / (rslora ? std::sqrt(r) : r);
}

std::vector<plan::ParamSpec> adapter_params(const AdapterRule& rule, const plan::ParamSpec& weight) {
  std::vector<plan::ParamSpec> params;
  AdapterParams(rule, {weight.name.substr(0, weight.name.size() - kWeight.size()), &weight}, params).add();
  return params;
}

std::array<int64_t, 2> kronecker_split(int64_t dimension, int64_t factor) {
  if (factor > 0 && dimension % factor == 0)
    return {std::min(factor, dimension / factor), std::max(factor, dimension / factor)};
  int64_t best = 1;
  for (int64_t m = 2; m * m <= dimension && (factor < 0 || m <= factor); ++m)
    if (dimension % m == 0) best = m;
  return {best, dimension / best};
}

const std::vector<std::string>& default_targets() {
  static const std::vector<std::string> names = {"q",     "k",    "v",    "o",    "ffn.0",
                                                 "ffn.2", "to_q", "to_k", "to_v", "to_out.0"};
  return names;
}

std::vector<std::string> adapt(net::Denoiser& model, const AdapterRule& rule) {
  const bool by_default = rule.targets.empty();
  Targets targets(model, by_default ? default_targets() : rule.targets);
  std::vector<std::string> modules;
  std::map<std::string, std::vector<std::string>> forms;  // of each kind: the sets of its linears that are adapted
  for (auto& unit : model.adaptable_units()) {
    plan::UnitSpec spec = unit->spec();
    std::vector<plan::ParamSpec> added;
    std::string form;
    net::AdapterSettings settings{.dropout = rule.dropout,
                                  .rank_dropout = rule.rank_dropout,
                                  .module_dropout = rule.module_dropout,
                                  .seed = rule.seed,
                                  .prefix = unit->prefix()};
    // stems and heads have none unless they are asked for by name
    const bool plain = by_default && (spec.kind == "stem" || spec.kind == "head");
    const std::vector<Linear> all = plain ? std::vector<Linear>() : linears(spec);
    for (const Linear& linear : all) {
      if (!targets.take(spec, linear.module)) continue;
      check_rank(rule, linear);
      const std::string site = linear.module.substr(unit->prefix().size());
      const bool unscaled = AdapterParams(rule, linear, added).add();
      settings.scales[site] = unscaled ? 1 : rule.scale(linear.module);
      modules.push_back(linear.module);
      form += site + (rule.ranks.empty() ? " " : ":" + std::to_string(rule.rank_of(linear.module)) + " ");
    }
    std::set<const plan::ParamSpec*> matrices;
    for (const Linear& linear : all) matrices.insert(linear.weight);
    for (plan::ParamSpec& param : spec.params) {
      param.trainable = false;
      if (spec.narrow && matrices.contains(&param)) param.stored = rule.base;
    }
    spec.params.insert(spec.params.end(), added.begin(), added.end());
    if (modules.empty()) form = "no backward";
    spec.kind = kind_of(spec.kind, form, forms[spec.kind]);
    unit = std::make_unique<AdaptedUnit>(std::move(unit), std::move(spec), std::move(settings));
  }
  targets.check(!by_default);
  if (modules.empty())
    throw UserError(Exit::usage, "lora.targets", "no linear of the model is adapted", "name modules, or write all");
  check_patterns(rule.ranks, "lora.rank_pattern", modules);
  check_patterns(rule.alphas, "lora.alpha_pattern", modules);
  return modules;
}

void initialise_adapter(const plan::ParamSpec& param, uint64_t seed, int64_t first, int64_t count, float* out) {
  // the second matrix of LoKr is whole or starts as a pair of which one is zero
  constexpr const char *kUniform[] = {net::kLoraA, ".lokr_w1", ".lokr_w1_a", ".lokr_w1_b", ".lokr_w2_a"},
                       *kNormal[] = {".hada_w1_b", ".hada_w2_b"};
  const auto is_one_of = [&](const auto& endings) {
    return std::ranges::any_of(endings, [&](const char* ending) { return param.name.ends_with(ending); });
  };
  Initial values = Initial::constant(param.name.ends_with(net::kLoraMagnitude) ? 1 : 0);
  if (is_one_of(kUniform)) values = {Initial::Kind::uniform, 1 / std::sqrt(static_cast<double>(param.shape[1]))};
  if (is_one_of(kNormal)) values = Initial::normal(1);
  if (param.name.ends_with(".hada_w1_a")) values = Initial::normal(0.1);
  draw_initial(values, seed, param.name, first, count, out);
}

}  // namespace tessera::models
