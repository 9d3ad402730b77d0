#include "tessera/recipe/parameter_keys.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <sstream>

#include "tessera/base/check.h"
#include "tessera/base/text.h"
#include "tessera/plan/optimizers.h"

namespace tessera::recipe {

namespace {

constexpr const char* kKey = "train.group";

[[noreturn]] void fail(const std::string& line, const std::string& found, const std::string& hint) {
  throw UserError(Exit::usage, "recipe", kKey + (" " + in_quotes(line)) + ": " + found, hint);
}

double number(const std::string& line, const std::string& key, const std::string& text) {
  double value = 0;
  const char* end = text.data() + text.size();
  const auto [read, error] = std::from_chars(text.data(), end, value);
  if (error != std::errc() || read != end || !std::isfinite(value) || value < 0)
    fail(line, key + " = '" + text + "', expected a number of at least 0", "for example " + key + " = 1e-5");
  return value;
}

/// The numbers of a line "PATTERN lr=1e-5 weight_decay=0", as a table is written in a resolved recipe.
struct Line {
  std::string match;
  std::optional<double> lr, lr_factor, weight_decay;
};

Line line_of(const std::string& text) {
  Line line;
  const std::pair<std::string, std::optional<double>*> known[] = {
      {"lr", &line.lr}, {"lr_factor", &line.lr_factor}, {"weight_decay", &line.weight_decay}};
  std::istringstream words(text);
  words >> line.match;
  for (std::string word; words >> word;) {
    const size_t equals = std::min(word.find('='), word.size());
    const std::string key = word.substr(0, equals);
    const auto row = std::ranges::find(known, key, &std::pair<std::string, std::optional<double>*>::first);
    if (row == std::end(known)) {
      std::vector<std::string> names;
      for (const auto& [name, value] : known) names.push_back(name);
      fail(text, "unknown key '" + key + "'", "did you mean '" + nearest(key, names).front() + "'?");
    }
    *row->second = number(text, key, word.substr(std::min(equals + 1, word.size())));
  }
  if (!line.lr && !line.lr_factor && !line.weight_decay)
    fail(text, "sets nothing", "give it lr, lr_factor or weight_decay: \"norm_q lr_factor=0.5\"");
  if (line.lr && line.lr_factor) fail(text, "lr and lr_factor both say its rate", "leave one of them out");
  return line;
}

}  // namespace

bool is_schedule_free(const Recipe& recipe) { return recipe.values.at("train.optimizer") == "adamw_schedule_free"; }

ParameterKeys parameter_keys(const Recipe& recipe) {
  const auto list = [&](const char* key) { return split_list(recipe.values.at(key)); };
  ParameterKeys keys;
  if (!recipe.lora.on) keys.only = list("train.only"), keys.freeze = list("train.freeze");
  keys.matrices = list("train.muon_hidden_layers"), keys.elementwise = list("train.muon_adam_layers");
  const plan::OptimizerRow& row = plan::row(recipe.plan.states.optimizer);
  const bool own_rate = row.distance || (row.optimizer == plan::Optimizer::adafactor && recipe.train.relative_step);
  for (const std::string& text : list(kKey)) {
    const Line line = line_of(text);
    ParameterGroup& group = keys.groups.emplace_back(line.match, line.lr_factor.value_or(1), line.weight_decay);
    if (line.lr) {  // as if train.lr were that: train.lr_scale and the schedule multiply both
      const double rate = to_number(recipe.values.at("train.lr"));
      if (rate == 0 && *line.lr > 0)
        fail(text, "has a rate, and train.lr = 0, whose schedule it follows",
             "set train.lr to the rate of all others, or name these alone in train.only");
      group.factor = *line.lr > 0 ? *line.lr / rate : 0;
    }
    if (own_rate && group.factor != 1 && group.factor != 0)
      fail(text,
           "has a rate of its own, and train.optimizer = " + in_quotes(row.name) + " finds one for all parameters",
           "leave lr and lr_factor out, or use adamw, lion, came or adafactor at train.lr");
  }
  return keys;
}

}  // namespace tessera::recipe
