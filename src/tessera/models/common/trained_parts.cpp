#include "tessera/models/common/trained_parts.h"

#include <algorithm>
#include <set>

#include "tessera/base/bounded_regex.h"
#include "tessera/base/check.h"
#include "tessera/base/text.h"
#include "tessera/checkpoint/row_part.h"

namespace tessera::models {

namespace {

/// The expression that a whole name has to match ([Note: patterns of parameters]).
std::string expression_of(const std::string& text) {
  if (text.find_first_of("()[]|^$+\\") != text.npos) return text + ".*";
  std::string escaped;
  for (const char c : text) {
    if (c == '.') escaped += '\\';
    escaped += c == '*' ? std::string(".*") : std::string(1, c);
  }
  return (text.find('*') == text.npos ? "(.*\\.)?" : "") + escaped + "(\\..*)?";
}

/// Patterns of one key of the recipe, and which of them were met so far.
class Patterns {
 public:
  Patterns(const net::Denoiser& model, std::string key, const std::vector<std::string>& texts)
      : model_(model), key_(std::move(key)), texts_(texts), met_(texts.size()) {
    for (const std::string& text : texts) {
      const auto expression = BoundedRegex::parse(expression_of(text));
      if (!expression)
        throw UserError(Exit::usage, key_,
                        in_quotes(text) + " is no regular expression within our bounds (" + BoundedRegex::kBounds + ")",
                        "name parts of the model (vace_blocks, self_attn.q) or write patterns with *");
      expressions_.push_back(*expression);
    }
  }

  /// The first pattern that the parameter meets, or -1.
  int first(const std::string& name) {
    const std::string foreign = checkpoint::whole_name(model_.foreign_name(name, "diffusers"));
    int found = -1;
    for (size_t i = 0; i < expressions_.size(); ++i) {
      if (!expressions_[i].matches(name) && !expressions_[i].matches(foreign)) continue;
      met_[i] = true;
      if (found < 0) found = static_cast<int>(i);
    }
    return found;
  }

  /// The pattern of each trained parameter that meets one.
  std::map<std::string, int> of_trained() {
    std::map<std::string, int> found;
    for (const auto& unit : model_.units())
      for (const plan::ParamSpec& param : unit->spec().params)
        if (const int pattern = param.trainable ? first(param.name) : -1; pattern >= 0) found[param.name] = pattern;
    return found;
  }

  /// Throws for a pattern that none of the parameters met that could have. `otherwise`: why those that would do not count.
  void check(const std::string& otherwise) const {
    const auto unmet = std::ranges::find(met_, false);
    if (unmet == met_.end()) return;
    const std::string& text = texts_[static_cast<size_t>(unmet - met_.begin())];
    const BoundedRegex& expression = expressions_[static_cast<size_t>(unmet - met_.begin())];
    std::set<std::string> known;  // names, and parts of them as one writes them
    for (const auto& unit : model_.units())
      for (const plan::ParamSpec& param : unit->spec().params) {
        if (!otherwise.empty() && expression.matches(param.name))
          throw UserError(Exit::usage, key_, in_quotes(text) + " names nothing that is trained: " + otherwise,
                          "leave it out");
        add_parts(param.name, known);
      }
    const std::vector<std::string> near = nearest(text, {known.begin(), known.end()});
    throw UserError(
        Exit::usage, key_,
        in_quotes(text) + " is no part of the model" +
            (near.empty() ? "" : "; did you mean " + in_quotes(near[0]) + "?"),
        "name modules or parameters (tessera inspect lists them), whole components of their names; * stands "
        "for any text");
  }

 private:
  /// "blocks.0.self_attn.q.weight": it, blocks, blocks.0, self_attn, self_attn.q, ...
  static void add_parts(const std::string& name, std::set<std::string>& known) {
    std::vector<size_t> starts = {0};
    for (size_t dot = name.find('.'); dot != name.npos; dot = name.find('.', dot + 1)) starts.push_back(dot + 1);
    constexpr size_t kMost = 3;  // components of a part
    for (size_t first = 0; first < starts.size(); ++first)
      for (size_t end = first + 1; end <= std::min(first + kMost, starts.size()); ++end)
        known.insert(name.substr(starts[first], (end < starts.size() ? starts[end] - 1 : name.size()) - starts[first]));
    known.insert(name);
  }

  const net::Denoiser& model_;
  const std::string key_;
  const std::vector<std::string>& texts_;
  std::vector<BoundedRegex> expressions_;
  std::vector<bool> met_;
};

/// A unit of another kind, or with other parameters frozen: the same function.
class ChosenUnit final : public net::Unit {
 public:
  ChosenUnit(std::unique_ptr<net::Unit> unit, plan::UnitSpec spec)
      : Unit(std::move(spec), unit->prefix()), unit_(std::move(unit)) {}
  std::string_view output_site() const override { return unit_->output_site(); }
  net::Flow forward(net::Context& ctx, const net::Flow& in) const override { return unit_->forward(ctx, in); }

 private:
  const std::unique_ptr<net::Unit> unit_;
};

/// Freezes the trained parameters for which `freezes` is true. Units that differ in what is trained, or in whether they
/// have a backward, become units of different kinds. Throws UserError (usage) where nothing is left.
template <class Freezes>
TrainedCount freeze_where(net::Denoiser& model, const std::string& key, const Freezes& freezes) {
  TrainedCount count;
  std::map<std::string, std::vector<std::string>> forms;  // of each kind: what is trained of its units
  for (auto& unit : model.adaptable_units()) {
    plan::UnitSpec spec = unit->spec();
    std::string form;
    for (plan::ParamSpec& param : spec.params) {
      param.trainable = param.trainable && !freezes(param);
      form += param.trainable ? 't' : 'f';
      count.all += param.numel();
      if (param.trainable) count.trained += param.numel();
    }
    spec.kind = kind_of(spec.kind, count.trained > 0 ? form : "no backward", forms[spec.kind]);
    unit = std::make_unique<ChosenUnit>(std::move(unit), std::move(spec));
  }
  if (count.trained == 0)
    throw UserError(Exit::usage, key, "nothing of the model is left to train",
                    "freeze less: train.only, train.freeze and groups with a rate of 0 leave nothing");
  return count;
}

}  // namespace

TrainedCount choose_trained(net::Denoiser& model, const std::vector<std::string>& only,
                            const std::vector<std::string>& freeze) {
  Patterns kept(model, "train.only", only), left(model, "train.freeze", freeze);
  std::set<std::string> frozen;
  for (const auto& unit : model.units())
    for (const plan::ParamSpec& param : unit->spec().params)
      if ((!only.empty() && kept.first(param.name) < 0) || left.first(param.name) >= 0) frozen.insert(param.name);
  kept.check("");
  left.check("train.only leaves it out already");
  return freeze_where(model, only.empty() ? "train.freeze" : "train.only",
                      [&](const plan::ParamSpec& param) { return frozen.contains(param.name); });
}

std::map<std::string, int> parameter_groups(const net::Denoiser& model, const std::vector<std::string>& patterns) {
  Patterns groups(model, "train.group", patterns);
  return groups.of_trained();
}

void check_groups(net::Denoiser& model, const std::vector<std::string>& patterns, const std::vector<bool>& frozen) {
  if (patterns.empty()) return;
  Patterns groups(model, "train.group", patterns);
  const std::map<std::string, int> group_of = groups.of_trained();
  groups.check("it is frozen already");
  if (std::ranges::find(frozen, true) == frozen.end()) return;
  freeze_where(model, "train.group", [&](const plan::ParamSpec& param) {
    const auto found = group_of.find(param.name);
    return found != group_of.end() && frozen[static_cast<size_t>(found->second)];
  });
}

TrainedCount choose_matrices(net::Denoiser& model, const std::vector<std::string>& matrices,
                             const std::vector<std::string>& elementwise) {
  Patterns chosen(model, "train.muon_hidden_layers", matrices), left(model, "train.muon_adam_layers", elementwise);
  TrainedCount count;
  std::map<std::string, std::vector<std::string>> forms;
  const std::string first = model.units().front()->spec().name, last = model.units().back()->spec().name;
  for (auto& unit : model.adaptable_units()) {
    plan::UnitSpec spec = unit->spec();
    const bool hidden = spec.name != first && spec.name != last;
    std::string form;
    for (plan::ParamSpec& param : spec.params) {
      if (param.trainable) {
        const bool meets = chosen.first(param.name) >= 0, leaves = left.first(param.name) >= 0;
        const bool asked = matrices.empty() ? hidden && param.shape.front() > 1 : meets;
        param.whole = param.shape.size() > 1 && asked && !leaves;
        count.all += param.numel();
        if (param.whole) count.trained += param.numel();
      }
      form += param.whole ? 'w' : 'e';
    }
    spec.kind = kind_of(spec.kind, form, forms[spec.kind]);
    unit = std::make_unique<ChosenUnit>(std::move(unit), std::move(spec));
  }
  chosen.check("train.only, train.freeze or a LoRA leave it out");
  left.check("train.only, train.freeze or a LoRA leave it out");
  if (count.trained == 0)
    throw UserError(Exit::usage, "train.muon_hidden_layers", "nothing that is trained is a matrix",
                    "name tensors of two dimensions or more, or use train.optimizer = \"adamw\"");
  return count;
}

std::string kind_of(const std::string& kind, const std::string& form, std::vector<std::string>& known) {
  const auto found = std::find(known.begin(), known.end(), form);
  const auto index = found - known.begin();
  if (found == known.end()) known.push_back(form);
  return index == 0 ? kind : kind + "+" + std::to_string(index);
}

}  // namespace tessera::models
