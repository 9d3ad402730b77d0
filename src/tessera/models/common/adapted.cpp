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

Target parse_target(const std::string& text) {
  const bool is_regex = text.find_first_of("()[]|^$+\\") != text.npos;
  const bool is_pattern = text.find('*') != text.npos;
  const auto expression = BoundedRegex::parse(is_regex ? text + ".*" : (is_pattern ? "" : "(.*\\.)?") + escaped(text));
  if (!expression)
    throw UserError(Exit::usage, "lora.targets",
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
  AdaptedUnit(std::unique_ptr<net::Unit> unit, plan::UnitSpec spec, const AdapterRule& rule)
      : Unit(std::move(spec), unit->prefix()),
        unit_(std::move(unit)),
        settings_{.scale = rule.scale(), .dropout = rule.dropout, .seed = rule.seed, .prefix = unit_->prefix()} {}

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
  const int64_t most = std::min(linear.weight->shape[0], linear.weight->shape[1]);
  if (rule.rank >= 1 && rule.rank <= most) return;
  throw UserError(Exit::usage, "lora.rank",
                  std::to_string(rule.rank) + ": " + linear.module + " is " + std::to_string(linear.weight->shape[0]) +
                      " x " + std::to_string(linear.weight->shape[1]) + ", an adapter of it has a rank of 1 to " +
                      std::to_string(most),
                  "4 to 128 are usual");
}

/// Parameters of one adapter. Tensor parallelism shards B with a column-parallel weight, A with a row-parallel one.
void add_adapter(const AdapterRule& rule, const Linear& linear, std::vector<plan::ParamSpec>& params) {
  const auto& shape = linear.weight->shape;
  const plan::Split split = linear.weight->split;
  const auto cut_as = [&](plan::Split kind) { return split == kind ? kind : plan::Split::none; };
  params.push_back({.name = linear.module + net::kLoraA,
                    .shape = {rule.rank, shape[1]},
                    .split = cut_as(plan::Split::row_parallel)});
  params.push_back({.name = linear.module + net::kLoraB,
                    .shape = {shape[0], rule.rank},
                    .split = cut_as(plan::Split::column_parallel)});
  if (rule.dora)
    params.push_back({.name = linear.module + net::kLoraMagnitude,
                      .shape = {shape[0]},
                      .split = cut_as(plan::Split::column_parallel)});
}

}  // namespace

double AdapterRule::scale() const {
  const auto r = static_cast<double>(rank);
  return alpha / (rslora ? std::sqrt(r) : r);
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
    // stems and heads have none unless they are asked for by name
    const bool plain = by_default && (spec.kind == "stem" || spec.kind == "head");
    const std::vector<Linear> all = plain ? std::vector<Linear>() : linears(spec);
    for (const Linear& linear : all) {
      if (!targets.take(spec, linear.module)) continue;
      check_rank(rule, linear);
      add_adapter(rule, linear, added);
      modules.push_back(linear.module);
      form += linear.module.substr(unit->prefix().size()) + " ";
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
    unit = std::make_unique<AdaptedUnit>(std::move(unit), std::move(spec), rule);
  }
  targets.check(!by_default);
  if (modules.empty())
    throw UserError(Exit::usage, "lora.targets", "no linear of the model is adapted", "name modules, or write all");
  return modules;
}

bool is_adapter_parameter(const std::string& name) {
  return name.ends_with(net::kLoraA) || name.ends_with(net::kLoraB) || name.ends_with(net::kLoraMagnitude);
}

void initialise_adapter(const plan::ParamSpec& param, uint64_t seed, int64_t first, int64_t count, float* out) {
  Initial values = Initial::constant(param.name.ends_with(net::kLoraMagnitude) ? 1 : 0);
  if (param.name.ends_with(net::kLoraA))
    values = {Initial::Kind::uniform, 1 / std::sqrt(static_cast<double>(param.shape[1]))};
  draw_initial(values, seed, param.name, first, count, out);
}

}  // namespace tessera::models
