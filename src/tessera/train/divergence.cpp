#include "tessera/train/divergence.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <set>
#include <string_view>
#include <utility>

#include "tessera/base/check.h"
#include "tessera/base/foreign_file.h"
#include "tessera/base/json.h"
#include "tessera/base/log.h"
#include "tessera/base/text.h"
#include "tessera/checkpoint/file.h"
#include "tessera/checkpoint/folders.h"
#include "tessera/checkpoint/manifest.h"
#include "tessera/train/run_facts.h"

namespace tessera::train {

namespace fs = std::filesystem;

namespace {

constexpr const char *kSpikes = "spikes", *kDiverged = "diverged.json";
constexpr int64_t kHopelessSkips = 100;
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
  const auto differs = [&](const std::string& key) {
    const std::string now = value_of(recipe, key);
    const auto chosen = before.filled.find(key);
    return !same_value(now, value_of(before.recipe, key)) &&
           (chosen == before.filled.end() || !same_value(now, chosen->second));
  };
  std::set<std::string> keys;
  for (const Values* values : {&before.recipe, &recipe})
    for (const auto& [key, value] : *values) keys.insert(key);
  for (const std::string& key : keys)
    if (of_the_course(key) && differs(key)) return key;
  // Of another number of steps the rate of a step is another, unless it is constant; and the run may end before that one.
  const std::string steps = value_of(recipe, "run.steps");
  const bool as_far = std::strtoll(steps.c_str(), nullptr, 10) >= before.step;
  const bool constant = value_of(recipe, "train.schedule").starts_with("constant");
  return differs("run.steps") && !(as_far && constant) ? "run.steps" : "";
}

std::string newest_proved(const fs::path& checkpoints) {
  if (const auto proved = checkpoint::newest_proved(checkpoints))
    return "the newest proved checkpoint is " + proved->string();
  return checkpoint::latest(checkpoints) ? "no checkpoint is proved, by a finite step that began from it"
                                         : "no checkpoint was written yet";
}

std::string way_back(const recipe::Recipe::Run& run, const std::vector<recipe::Stage>& stages,
                     const comm::Rendezvous& place, int64_t step, double lr) {
  const fs::path out = run.out, checkpoints = out / "checkpoints";
  const auto word = [](const std::string& text) {
    return text.find_first_of(" \"'$") == std::string::npos ? text : in_quotes(text);
  };
  const auto command = [&](const std::string& flags) {
    std::string launch;
    if (place.world > 1) launch = "launch -n " + std::to_string(place.local_world) + " ";
    if (place.world > place.local_world) launch += "... ";  // its flags of the nodes, or another launcher
    return "tessera " + launch + "train " + word((out / "recipe.toml").string()) + flags;
  };
  const auto proved = checkpoint::newest_proved(checkpoints);
  const std::string from = proved ? " --run.resume " + proved->string() : " --run.resume no";
  // A flag is of the recipe's own key: the rate of a stage is changed where it stands.
  int64_t stage = 0;
  for (const recipe::Stage& each : stages)
    if (each.from <= step && each.changes.contains("train.lr")) stage = each.from;
  char half[32];
  std::snprintf(half, sizeof half, "%.3g", lr / 2);
  const std::string lower = stage == 0 ? "with a lower rate: " + command(from + " --train.lr " + half)
                                       : "with a lower train.lr in the [[stage]] from step " + std::to_string(stage) +
                                             " on: " + command(from);
  return newest_proved(checkpoints) + "; go on " + (proved ? "from it " : "from the start ") + lower +
         "; or with another seed: " +
         command(from + " --run.seed " + std::to_string(run.seed + 1) + " --run.resume_changes allow");
}

Health::Health(const RunFolder& folder, const recipe::Recipe::Run& run, const std::vector<recipe::Stage>& stages,
               const job::Experts& experts, Note note)
    : folder_(folder),
      run_(run),
      stages_(stages),
      experts_(experts),
      note_(std::move(note)),
      before_(read_divergence(folder.out)),
      spikes_(run.spike, experts.size()) {}

bool Health::goes_back(const Values& recipe) const {
  return before_ && (!before_->skipping || !other_course(*before_, recipe, before_->data).empty());
}

bool Health::require_other_course(const Values& recipe, const std::function<std::string()>& data) {
  const bool back = folder_.resume().back;
  if (!before_ || (!back && !before_->skipping)) return false;
  other_course_ = other_course(*before_, recipe, data());
  skips_noted_ = before_->skipping && other_course_.empty();
  if (skips_noted_ || !other_course_.empty()) return !back && !other_course_.empty();
  throw UserError(
      Exit::not_finite, "run.resume",
      "the run ended at step " + std::to_string(before_->step) +
          ", which was not finite, and with the same recipe on the same data it would again",
      "change train.lr, train.clip_norm, a number of the optimiser, the batch or the data, and the run goes on from what "
      "is proved; " +
          way_back(before_->step, before_->lr));
}

std::string Health::why_back() const {
  return before_
             ? "step " + std::to_string(before_->step) + " was not finite, and " + other_course_ + " has changed since"
             : "";
}

void Health::forget() const {
  if (!skips_noted_) forget_divergence(folder_.out);
}

void Health::before() {
  skipped_.clear();
  overflowed_ = spiked_ = false;
}

std::optional<bool> Health::weigh(const ExpertPass& pass, const Decision& decision) {
  const size_t expert = pass.pass.expert;
  rate_ = decision.rate;
  if (!decision.skipped.empty()) {
    if (!decision.overflow) {
      skipping_.insert(expert);
      note_skips(pass.pass.step, decision.skipped, decision.rate);
    }
    skipped_ = decision.skipped;
    overflowed_ = decision.overflow;
    if (folder_.ranks.first()) log::warn("step " + std::to_string(pass.pass.step) + " skipped: " + skipped_);
    return std::nullopt;
  }
  skipping_.erase(expert);
  if (skipping_.empty() && std::exchange(skips_noted_, false) && folder_.ranks.first()) forget_divergence(folder_.out);
  return look_for_spikes(pass, decision);
}

/// The first of a row is told, and then ever fewer.
bool Health::look_for_spikes(const ExpertPass& pass, const Decision& decision) {
  const std::string text = spikes_.step(pass.pass.expert, decision.loss, decision.norm);
  if (text.empty()) {
    if (pass.last && !spiked_) spikes_in_a_row_ = 0;
    return false;
  }
  spiked_ = true;
  if (!std::has_single_bit(static_cast<uint64_t>(++spikes_in_a_row_)) || !folder_.ranks.first()) return true;
  const std::string told = text + " (run.spike = " + number_text(run_.spike) +
                           "): it does not prove the checkpoint from which it began" +
                           (spikes_in_a_row_ > 1 ? "; spike " + std::to_string(spikes_in_a_row_) + " in a row" : "");
  log::warn("step " + std::to_string(pass.pass.step) + ": " + told);
  folder_.log()->warning(pass.pass.step, "spike", told);
  return true;
}

void Health::after(int64_t step) {
  ++steps_;
  skips_ += !skipped_.empty();
  if (skipped_.empty()) skips_in_a_row_ = 0;
  if (skipped_.empty() || overflowed_ || ++skips_in_a_row_ < kHopelessSkips) return;
  const UserError error(
      Exit::not_finite, "train",
      std::to_string(kHopelessSkips) + " steps in a row were skipped, the last at step " + std::to_string(step) + ": " +
          skipped_,
      "go back, lower train.lr, or find the first bad step with run.on_nan = \"stop\"; " + way_back(step, rate_));
  note(step - kHopelessSkips + 1, error, rate_);
  throw error;
}

std::string Health::doubt() const {
  if (skips_in_a_row_ > 0) return "the last " + std::to_string(skips_in_a_row_) + " steps were skipped";
  if (skipping_.empty()) return "";
  return "the last step of the " + experts_.list.at(*skipping_.begin()).name + " expert was skipped";
}

std::string Health::way_back(int64_t step, double lr) const {
  return train::way_back(run_, stages_, folder_.ranks.place, step, lr);
}

/// For a start with another rate or other data that finds this one ended, however that was, while it skips.
void Health::note_skips(int64_t step, const std::string& why, double lr) {
  if (std::exchange(skips_noted_, true) || !folder_.ranks.first()) return;
  try {
    Divergence divergence = note_(step, why, lr);
    divergence.skipping = true;
    write_divergence(folder_.out, divergence);
  } catch (const UserError& error) {
    log::warn(error.what());
  }
}

void Health::note(int64_t step, const UserError& error, double lr) {
  std::string why = error.what();  // "[train] why; hint", of which the hint is of this start
  why.resize(why.size() - error.hint().size());
  while (why.ends_with(' ') || why.ends_with(';')) why.pop_back();
  note(step, why, lr);
}

void Health::note(int64_t step, const std::string& why, double lr) {
  if (folder_.ranks.first()) {
    try {
      write_divergence(folder_.out, note_(step, why, lr));
      folder_.log()->fault(step, "diverged", why);
    } catch (const UserError& error) {
      log::warn(error.what());
    }
  }
  folder_.ranks.comm.barrier();
}

Exit Health::end(int64_t step, const std::string& unsaved) {
  const bool all = skips_ > 0 && skips_ == steps_ && run_.on_nan == "skip";
  if (skipping_.empty() && unsaved.empty() && !all) return Exit::done;
  const std::string why = all ? "every step was skipped, so nothing was learned" : unsaved;
  const std::string last = skipped_.empty() ? "" : ", the last one because of " + skipped_;
  if (folder_.ranks.first())
    log::error("[train] " + why + last + ": the model is not exported; look at the data, lower train.lr, or find the " +
               "first bad step with run.on_nan = \"stop\"; " + way_back(step, rate_));
  note(step - std::max<int64_t>(skips_in_a_row_ - 1, 0), why + last, rate_);
  return Exit::not_finite;
}

}  // namespace tessera::train
