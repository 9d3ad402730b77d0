// Of a run that diverges: what is told, which checkpoints are worth going back to, and how its next start does.
#include <algorithm>
#include <bit>
#include <cmath>
#include <utility>

#include "tessera/base/check.h"
#include "tessera/base/log.h"
#include "tessera/base/quotes.h"
#include "tessera/base/random.h"
#include "tessera/checkpoint/file.h"
#include "tessera/checkpoint/folders.h"
#include "tessera/planning/run_plan.h"
#include "tessera/train/run.h"

namespace tessera::train {

namespace fs = std::filesystem;

namespace {
constexpr const char* kUnproved = "unproved";  // a field of Manifest::extra
}

/// What a pass says of the states from which it began. An expert is changed by its own steps alone: its first one behind a
/// checkpoint begins from there.
void Run::weigh(const ExpertPass& pass, const Decision& decision) {
  const size_t expert = pass.pass.expert;
  if (!decision.skipped.empty()) {
    if (decision.overflow) return;
    skipping_.insert(expert);
    return note_skips(pass.pass.step, decision.skipped, decision.rate);
  }
  skipping_.erase(expert);
  if (skipping_.empty() && std::exchange(skips_noted_, false) && rank_ == 0) forget_divergence(out_);
  changed_.insert(expert);
  if (look_for_spikes(pass, decision))
    std::erase_if(unproved_, [&](const Unproved& each) { return each.experts.contains(expert); });
  for (Unproved& each : unproved_) each.experts.erase(expert);
}

/// The first of a row is told, and then ever fewer.
bool Run::look_for_spikes(const ExpertPass& pass, const Decision& decision) {
  const std::string text = spikes_.step(pass.pass.expert, decision.loss, decision.norm);
  if (text.empty()) {
    if (pass.last && !spiked_) spikes_in_a_row_ = 0;
    return false;
  }
  spiked_ = true;
  if (!std::has_single_bit(static_cast<uint64_t>(++spikes_in_a_row_)) || rank_ != 0) return true;
  const std::string told = text + " (run.spike = " + recipe_.values.at("run.spike") +
                           "): it does not prove the checkpoint from which it began" +
                           (spikes_in_a_row_ > 1 ? "; spike " + std::to_string(spikes_in_a_row_) + " in a row" : "");
  log::warn("step " + std::to_string(pass.pass.step) + ": " + told);
  run_log_->warning(pass.pass.step, "spike", told);
  return true;
}

/// A checkpoint of this step: each expert that was trained since the one before has to make a step from it.
Run::Unproved Run::unproved(const fs::path& checkpoint, int64_t step) const {
  Unproved next{checkpoint, changed_};
  const bool gated = job_.experts.gated;
  // One that has made no step since an earlier save is as untested as it was; one that makes none any more stays so.
  std::set<size_t> later;
  for (int64_t s = step + 1; s <= recipe_.run.steps && later.size() < job_.experts.size(); ++s)
    later.insert(experts_->expert_of(s));
  for (const Unproved& each : unproved_)
    for (const size_t expert : each.experts)
      if (gated || later.contains(expert)) next.experts.insert(expert);
  if (next.experts.empty() && !gated && step > 0)
    next.experts.insert(experts_->expert_of(std::min(step, recipe_.run.steps)));
  return next;
}

/// Of several experts a checkpoint says for which of them it and those before it wait: the next start is to know of a turn
/// that ended untested.
void Run::save_unproved(const Unproved& next, checkpoint::Manifest& manifest) const {
  if (!job_.experts.several()) return;
  checkpoint::Json all = checkpoint::Json::object();
  for (const Unproved& each : unproved_)
    if (fs::exists(each.checkpoint / "manifest.json")) all[each.checkpoint.filename().string()] = each.experts;
  all[next.checkpoint.filename().string()] = next.experts;
  manifest.extra[kUnproved] = all;
}

void Run::restore_unproved(const checkpoint::Manifest& manifest) {
  const auto saved = manifest.extra.find(kUnproved);
  if (job_.experts.several() && saved != manifest.extra.end() && saved->is_object())
    for (const auto& [name, experts] : saved->items()) {
      if (const int64_t step = checkpoint::step_of(name); step < 0 || step > done_ || !experts.is_array()) continue;
      Unproved each{checkpoints_ / name, {}};
      for (const auto& expert : experts)
        if (expert.is_number_unsigned() && expert.get<size_t>() < job_.experts.size())
          each.experts.insert(expert.get<size_t>());
      unproved_.push_back(std::move(each));
    }
  std::ranges::sort(unproved_, {},
                    [](const Unproved& each) { return checkpoint::step_of(each.checkpoint.filename()); });
  const fs::path own = checkpoint::step_folder(checkpoints_, done_);
  if (std::ranges::none_of(unproved_, [&](const Unproved& each) { return each.checkpoint == own; }))
    unproved_.push_back(unproved(own, done_));
}

/// Of the checkpoints that wait for their proof the one that stays although newer ones are kept: the oldest there is, or a
/// later one that waits for no expert besides. Where turns end with a checkpoint the newest always waits for the other
/// expert's whole turn, and would have been removed before.
std::optional<fs::path> Run::next_proved() const {
  const Unproved* found = nullptr;
  for (const Unproved& each : unproved_)
    if (fs::exists(each.checkpoint / "manifest.json") &&
        (!found || std::ranges::includes(found->experts, each.experts)))
      found = &each;
  return found ? std::optional(found->checkpoint) : std::nullopt;
}

/// A step that was skipped has changed nothing, so that the next one begins from the same checkpoint.
void Run::prove(int64_t step) {
  if (!skipped_.empty() || spiked_) return;
  const auto last =
      std::ranges::stable_partition(unproved_, [](const Unproved& each) { return !each.experts.empty(); });
  if (last.empty()) return;
  const std::vector<Unproved> tried(last.begin(), last.end());
  unproved_.erase(last.begin(), last.end());
  wait_for_slowest([&](prepare::Pace&) {
    watch_.phase(step, rank_ == 0 ? "calling a checkpoint proved" : "waiting for rank 0", RankWatch::kSlowWork);
    if (rank_ != 0) return;
    for (const Unproved& each : tried) try {
        if (fs::exists(each.checkpoint / "manifest.json")) checkpoint::prove(each.checkpoint);  // else it was pruned
      } catch (const UserError& error) {
        log::warn("step " + std::to_string(step) + ": " + error.what() + "; the checkpoint counts as not proved");
      }
    prune();  // the one that was proved before may go
  });
}

/// Whether no rank has a value that is not finite. All ranks together, when all have read what they would save.
bool Run::agree_finite(prepare::Pace& pace, int64_t step, const std::string& broken) {
  if (!broken.empty()) log::warn("step " + std::to_string(step) + ": " + broken + " has values that are not finite");
  meet(pace);
  const auto ranks =
      comm_.group("control", {kAllAxes.begin(), kAllAxes.end()}).all_gather_doubles({broken.empty() ? 0. : 1.});
  const auto bad = std::ranges::find_if(ranks, [](const std::vector<double>& row) { return row[0] != 0; });
  if (bad == ranks.end()) return true;
  unsaved_ = "rank " + std::to_string(bad - ranks.begin()) + " has weights or states that are not finite";
  return false;
}

/// Starts this run again with more flags.
std::string Run::command(const std::string& flags) const {
  const auto word = [](const std::string& text) {
    return text.find_first_of(" \"'$") == std::string::npos ? text : in_quotes(text);
  };
  std::string launch;
  if (place_.world > 1) launch = "launch -n " + std::to_string(place_.local_world) + " ";
  if (place_.world > place_.local_world) launch += "... ";  // its flags of the nodes, or another launcher
  return "tessera " + launch + "train " + word((out_ / "recipe.toml").string()) + flags;
}

std::string Run::newest_proved() const {
  if (const auto proved = checkpoint::newest_proved(checkpoints_))
    return "the newest proved checkpoint is " + proved->string();
  return checkpoint::latest(checkpoints_) ? "no checkpoint is proved, by a finite step that began from it"
                                          : "no checkpoint was written yet";
}

/// The newest proved checkpoint and the commands that go on from it. `lr`: of the step that was not finite.
std::string Run::way_back(int64_t step, double lr) const {
  const auto proved = checkpoint::newest_proved(checkpoints_);
  const std::string from = proved ? " --run.resume " + proved->string() : " --run.resume no";
  // A flag is of the recipe's own key: the rate of a stage is changed where it stands.
  int64_t stage = 0;
  for (const recipe::Stage& each : recipe_.stages)
    if (each.from <= step && each.changes.contains("train.lr")) stage = each.from;
  char half[32];
  std::snprintf(half, sizeof half, "%.3g", lr / 2);
  const std::string lower = stage == 0 ? "with a lower rate: " + command(from + " --train.lr " + half)
                                       : "with a lower train.lr in the [[stage]] from step " + std::to_string(stage) +
                                             " on: " + command(from);
  return newest_proved() + "; go on " + (proved ? "from it " : "from the start ") + lower + "; or with another seed: " +
         command(from + " --run.seed " + std::to_string(recipe_.run.seed + 1) + " --run.resume_changes allow");
}

/// The tokenizer by its content: that of a run lies in its folder, or in the cache.
std::string Run::data_digest() const {
  std::string all;
  for (const prepare::StageData& part : data_) all += part.samples->digest() + "\n";
  const fs::path& tokenizer = data_.front().samples->tokenizer();
  if (fs::is_regular_file(tokenizer)) all += checkpoint::read_text(tokenizer);
  return std::to_string(hash_text(all));
}

/// For a start with another rate or other data that finds this one ended, however that was, while it skips.
void Run::note_skips(int64_t step, const std::string& why, double lr) {
  if (std::exchange(skips_noted_, true) || rank_ != 0) return;
  try {
    write_divergence(out_, {step, why, lr, recipe_values(recipe_),
                            recipe_values(planning::resolved(recipe_, plans_, place_)), data_digest(), true});
  } catch (const UserError& error) {
    log::warn(error.what());
  }
}

void Run::note_divergence(int64_t step, const UserError& error, double lr) {
  std::string why = error.what();  // "[train] why; hint", of which the hint is of this start
  why.resize(why.size() - error.hint().size());
  while (why.ends_with(' ') || why.ends_with(';')) why.pop_back();
  note_divergence(step, why, lr);
}

/// For the next start. All ranks together: a rank that ends takes the others along.
void Run::note_divergence(int64_t step, const std::string& why, double lr) {
  if (rank_ == 0) {
    try {
      write_divergence(out_, {step, why, lr, recipe_values(recipe_),
                              recipe_values(planning::resolved(recipe_, plans_, place_)), data_digest()});
      run_log_->fault(step, "diverged", why);
    } catch (const UserError& error) {
      log::warn(error.what());
    }
  }
  comm_.barrier();
}

/// Refuses a start that would do what the one before it did. One that skipped steps to its end may go on, or goes back too
/// where the data are others.
void Run::require_other_course() {
  if (!diverged_ || (!resume_.back && !diverged_->skipping)) return;
  other_course_ = other_course(*diverged_, recipe_values(recipe_), data_digest());
  if (!resume_.back && !other_course_.empty()) choose_checkpoint(/*back=*/true);
  skips_noted_ = diverged_->skipping && other_course_.empty();
  if (skips_noted_ || !other_course_.empty()) return;
  throw UserError(
      Exit::not_finite, "run.resume",
      "the run ended at step " + std::to_string(diverged_->step) +
          ", which was not finite, and with the same recipe on the same data it would again",
      "change train.lr, train.clip_norm, a number of the optimiser, the batch or the data, and the run goes on from what "
      "is proved; " +
          way_back(diverged_->step, diverged_->lr));
}

/// Whether the run comes to its end with weights that are not worth exporting: not_finite, told; or done.
Exit Run::end_diverged() {
  if (steps_ == 0 && done_ > 0)  // nothing was saved, so nobody has looked
    wait_for_slowest([&](prepare::Pace& pace) {
      const auto look = [&] {
        checkpoint::save_rank({}, rank_, experts_->pieces(engine_->store()), [&](const std::string& broken) {
          agree_finite(pace, done_, broken);
          return false;  // there is one already
        });
      };
      engine_->checkpoint(programs_.checkpoint, done_, look, [&] { meet(pace); });
    });
  const bool all = skips_ > 0 && skips_ == steps_ && recipe_.run.on_nan == "skip";
  if (skipping_.empty() && unsaved_.empty() && !all) return Exit::done;
  const int64_t step = done_ + steps_;
  const std::string why = all ? "every step was skipped, so nothing was learned" : unsaved_;
  const std::string last = skipped_.empty() ? "" : ", the last one because of " + skipped_;
  if (rank_ == 0)
    log::error("[train] " + why + last + ": the model is not exported; look at the data, lower train.lr, or find the " +
               "first bad step with run.on_nan = \"stop\"; " + way_back(step, rate_));
  note_divergence(step - std::max<int64_t>(skips_in_a_row_ - 1, 0), why + last, rate_);
  return Exit::not_finite;
}

}  // namespace tessera::train
