#include "tessera/train/divergence.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <set>
#include <string_view>

#include "tessera/base/check.h"
#include "tessera/base/foreign_file.h"
#include "tessera/base/json.h"
#include "tessera/base/log.h"
#include "tessera/checkpoint/file.h"
#include "tessera/checkpoint/manifest.h"
#include "tessera/train/run_facts.h"

namespace tessera::train {

namespace fs = std::filesystem;

namespace {

constexpr const char *kSpikes = "spikes", *kDiverged = "diverged.json";
constexpr size_t kWindow = 64, kLeast = 8;  // steps whose median is taken, and without which there is none

double median(std::deque<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

/// "loss 812 is 902 times its running median"; empty: it is no spike.
std::string spike(const char* what, double value, const std::deque<double>& before, double limit) {
  if (limit <= 0 || before.size() < kLeast) return "";
  const double usual = median(before);
  if (usual <= 0 || value <= limit * usual) return "";
  std::array<char, 120> text{};
  std::snprintf(text.data(), text.size(), "%s %.4g is %.3g times its running median", what, value, value / usual);
  return text.data();
}

void add(std::deque<double>& window, double value) {
  window.push_back(value);
  if (window.size() > kWindow) window.pop_front();
}

/// Whether another value of the key changes what a step computes. A key of a stage begins with "stage 1: ".
bool of_the_course(std::string_view key) {
  if (key.starts_with("stage ")) key.remove_prefix(std::min(key.size(), key.find(": ") + 2));
  if (key == "from") return true;
  const std::string_view table = key.substr(0, key.find('.'));
  constexpr std::array<std::string_view, 4> kBeside = {"mesh", "checkpoint", "sample", "fault"};
  if (std::ranges::find(kBeside, table) != kBeside.end()) return false;
  if (table == "run") return key == "run.seed" || key == "run.on_nan";
  if (table == "plan") return key.ends_with("_dtype") || key == "plan.masters" || key == "plan.moments";
  constexpr std::array<std::string_view, 8> kHow = {"data.tokenizer",    "data.cache",           "data.encoders",
                                                    "data.vae_tile",     "data.vae_tile_frames", "model.path",
                                                    "train.micro_batch", "lora.export"};
  return std::ranges::find(kHow, key) == kHow.end();
}

Values values_of(const nlohmann::json& json, const char* field) {
  Values values;
  if (const auto found = json.find(field); found != json.end() && found->is_object())
    for (const auto& [key, value] : found->items())
      if (value.is_string()) values[key] = value.get<std::string>();
  return values;
}

}  // namespace

std::string Spikes::step(size_t expert, double loss, double norm) {
  if (limit_ <= 0) return "";
  Of& of = of_.at(expert);
  std::string text = spike("loss", loss, of.losses, limit_);
  if (const std::string more = spike("gradient norm", norm, of.norms, limit_); !more.empty())
    text += (text.empty() ? "" : ", ") + more;
  if (text.empty()) add(of.losses, loss), add(of.norms, norm);
  return text;
}

void Spikes::save(checkpoint::Manifest& manifest) const {
  if (limit_ <= 0) return;
  checkpoint::Json all = checkpoint::Json::array();
  for (const Of& of : of_) all.push_back({{"loss", of.losses}, {"grad_norm", of.norms}});
  manifest.extra[kSpikes] = all;
}

void Spikes::restore(const checkpoint::Manifest& manifest) {
  const auto saved = manifest.extra.find(kSpikes);
  if (saved == manifest.extra.end() || !saved->is_array() || saved->size() != of_.size()) return;
  const auto window = [](const checkpoint::Json& of, const char* field) {
    Window values;
    if (const auto found = of.find(field); found != of.end() && found->is_array())
      for (const auto& value : *found)
        if (value.is_number()) add(values, value.get<double>());
    return values;
  };
  for (size_t e = 0; e < of_.size(); ++e)
    if ((*saved)[e].is_object()) of_[e] = {window((*saved)[e], "loss"), window((*saved)[e], "grad_norm")};
}

void write_divergence(const fs::path& run, const Divergence& d) {
  const nlohmann::ordered_json json = {{"step", d.step}, {"why", d.why},       {"skipping", d.skipping}, {"lr", d.lr},
                                       {"data", d.data}, {"recipe", d.recipe}, {"filled", d.filled}};
  checkpoint::write_text(run / kDiverged, json.dump(1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n");
}

std::optional<Divergence> read_divergence(const fs::path& run) {
  const fs::path file = run / kDiverged;
  constexpr int64_t kMost = int64_t{16} << 20;
  if (!fs::exists(file)) return std::nullopt;
  try {
    const nlohmann::json json = parse_json(read_foreign(file, kMost, "run"), file.string());
    const JsonFields in(json, file.string());
    const auto skipping = json.find("skipping");
    return Divergence{in.whole("step"),
                      in.text("why"),
                      in.real("lr"),
                      values_of(json, "recipe"),
                      values_of(json, "filled"),
                      in.text("data"),
                      skipping != json.end() && skipping->is_boolean() && skipping->get<bool>()};
  } catch (const UserError& error) {
    log::warn(std::string(error.what()) + "; the run goes on as if that file were not there");
    return std::nullopt;
  }
}

void forget_divergence(const fs::path& run) {
  std::error_code none;
  fs::remove(run / kDiverged, none);
}

std::string other_course(const Divergence& before, const Values& recipe, const std::string& data) {
  if (before.data != data) return "the data";
  const auto value_in = [](const Values& values, const std::string& key) {
    const auto found = values.find(key);
    return found == values.end() ? std::string() : found->second;
  };
  const auto differs = [&](const std::string& key) {
    const std::string now = value_in(recipe, key);
    const auto chosen = before.filled.find(key);
    return !same_value(now, value_in(before.recipe, key)) &&
           (chosen == before.filled.end() || !same_value(now, chosen->second));
  };
  std::set<std::string> keys;
  for (const Values* values : {&before.recipe, &recipe})
    for (const auto& [key, value] : *values) keys.insert(key);
  for (const std::string& key : keys)
    if (of_the_course(key) && differs(key)) return key;
  // Of another number of steps the rate of a step is another, unless it is constant; and the run may end before that one.
  const std::string steps = value_in(recipe, "run.steps");
  const bool as_far = std::strtoll(steps.c_str(), nullptr, 10) >= before.step;
  const bool constant = value_in(recipe, "train.schedule").starts_with("constant");
  return differs("run.steps") && !(as_far && constant) ? "run.steps" : "";
}

}  // namespace tessera::train
