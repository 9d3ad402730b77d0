#include "tessera/train/checkpoints.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "tessera/base/check.h"
#include "tessera/base/log.h"
#include "tessera/checkpoint/folders.h"
#include "tessera/checkpoint/training.h"
#include "tessera/train/stop_signal.h"

namespace tessera::train {

namespace fs = std::filesystem;

namespace {

constexpr const char* kUnproved = "unproved";  // a field of Manifest::extra

bool is_whole(const Proofs::Waiting& each) { return fs::exists(each.checkpoint / "manifest.json"); }

}  // namespace

Proofs::Proofs(size_t experts, bool gated, int64_t steps, std::function<size_t(int64_t)> expert_of)
    : experts_(experts), gated_(gated), steps_(steps), expert_of_(std::move(expert_of)) {}

void Proofs::trained(size_t expert, bool spike) {
  changed_.insert(expert);
  if (spike) std::erase_if(waiting_, [&](const Waiting& each) { return each.experts.contains(expert); });
  for (Waiting& each : waiting_) each.experts.erase(expert);
}

Proofs::Waiting Proofs::next(const fs::path& checkpoint, int64_t step) const {
  Waiting next{checkpoint, changed_};
  // One that has made no step since an earlier save is as untested as it was; one that makes none any more stays so.
  std::set<size_t> later;
  for (int64_t s = step + 1; s <= steps_ && later.size() < experts_; ++s) later.insert(expert_of_(s));
  for (const Waiting& each : waiting_)
    for (const size_t expert : each.experts)
      if (gated_ || later.contains(expert)) next.experts.insert(expert);
  if (next.experts.empty() && !gated_ && step > 0) next.experts.insert(expert_of_(std::min(step, steps_)));
  return next;
}

void Proofs::saved(Waiting checkpoint) {
  std::erase_if(waiting_, [&](const Waiting& each) { return each.checkpoint == checkpoint.checkpoint; });
  waiting_.push_back(std::move(checkpoint));
  changed_.clear();
}

std::vector<Proofs::Waiting> Proofs::take_proved() {
  const auto last = std::ranges::stable_partition(waiting_, [](const Waiting& each) { return !each.experts.empty(); });
  std::vector<Waiting> proved(last.begin(), last.end());
  waiting_.erase(last.begin(), last.end());
  return proved;
}

/// The oldest there is, or a later one that waits for no expert besides. Where turns end with a checkpoint the newest
/// always waits for the other expert's whole turn, and would have been removed before.
std::optional<fs::path> Proofs::kept() const {
  const Waiting* found = nullptr;
  for (const Waiting& each : waiting_)
    if (is_whole(each) && (!found || std::ranges::includes(found->experts, each.experts))) found = &each;
  return found ? std::optional(found->checkpoint) : std::nullopt;
}

void Proofs::save(const Waiting& next, checkpoint::Manifest& manifest) const {
  if (experts_ < 2) return;
  checkpoint::Json all = checkpoint::Json::object();
  for (const Waiting& each : waiting_)
    if (is_whole(each)) all[each.checkpoint.filename().string()] = each.experts;
  all[next.checkpoint.filename().string()] = next.experts;
  manifest.extra[kUnproved] = all;
}

void Proofs::restore(const checkpoint::Manifest& manifest, const fs::path& own, int64_t step) {
  const auto saved = manifest.extra.find(kUnproved);
  if (experts_ > 1 && saved != manifest.extra.end() && saved->is_object())
    for (const auto& [name, experts] : saved->items()) {
      if (const int64_t of = checkpoint::step_of(name); of < 0 || of > step || !experts.is_array()) continue;
      Waiting each{own.parent_path() / name, {}};
      for (const auto& expert : experts)
        if (expert.is_number_unsigned() && expert.get<size_t>() < experts_) each.experts.insert(expert.get<size_t>());
      waiting_.push_back(std::move(each));
    }
  std::ranges::sort(waiting_, {}, [](const Waiting& each) { return checkpoint::step_of(each.checkpoint.filename()); });
  if (std::ranges::none_of(waiting_, [&](const Waiting& each) { return each.checkpoint == own; }))
    waiting_.push_back(next(own, step));
}

Checkpoints::Checkpoints(const RunFolder& folder, Health& health, Proofs& proofs, Contents contents)
    : folder_(folder), health_(health), proofs_(proofs), contents_(std::move(contents)) {}

void Checkpoints::save(int64_t step) {
  const fs::path partial = checkpoint::partial_folder(folder_.checkpoints, step),
                 final = checkpoint::step_folder(folder_.checkpoints, step);
  const auto start = std::chrono::steady_clock::now();
  unsaved_ = health_.doubt();
  contents_.settle();
  const Proofs::Waiting next = proofs_.next(final, step);
  const auto save_all = [&](prepare::Pace& pace) {
    const auto write = [&] {
      checkpoint::save_rank(partial, folder_.ranks.rank(), contents_.pieces(),
                            [&](const std::string& broken) { return agree_finite(pace, step, broken); });
      folder_.ranks.meet(pace);
    };
    contents_.run(step, write, [&] {
      if (folder_.ranks.first() && unsaved_.empty()) commit(step, next);
      folder_.ranks.meet(pace);
    });
  };
  if (unsaved_.empty()) folder_.ranks.wait_for_slowest(save_all);
  saved_at_ = std::chrono::steady_clock::now();
  if (unsaved_.empty()) {
    proofs_.saved(next);
    name_checkpoint(final.string());
  }
  if (!folder_.ranks.first()) return;
  if (unsaved_.empty()) {
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
    save_took(took.count());
    return folder_.log()->checkpoint(step, final.string(), took.count());
  }
  const std::string text = "no checkpoint is saved: " + unsaved_;
  log::warn("step " + std::to_string(step) + ": " + text + "; " + newest_proved(folder_.checkpoints));
  folder_.log()->warning(step, "checkpoint", text);
}

/// By rank 0's clock: the ranks exchange what it says at the end of a step.
bool Checkpoints::due() const {
  if (settings_.every_minutes <= 0 || !folder_.ranks.first()) return false;
  const std::chrono::duration<double, std::ratio<60>> since = std::chrono::steady_clock::now() - saved_at_;
  return since.count() >= settings_.every_minutes;
}

/// Makes whole what all ranks have written.
void Checkpoints::commit(int64_t step, const Proofs::Waiting& next) {
  const fs::path partial = checkpoint::partial_folder(folder_.checkpoints, step);
  checkpoint::Manifest manifest;
  manifest.step = step;
  manifest.mesh = folder_.ranks.mesh;
  contents_.describe(step, manifest);
  health_.save(manifest);
  proofs_.save(next, manifest);
  if (!folder_.resume().line.empty()) manifest.extra[checkpoint::kResumedFrom] = folder_.resume().line;
  folder_.log()->flush();  // a checkpoint never has a history that is older than itself
  checkpoint::commit_with(partial, next.checkpoint, folder_.ranks.place.world, manifest, [&] {
    contents_.beside(step, partial);
    if (checkpoint::is_proved(next.checkpoint)) checkpoint::prove(partial);  // the same step a second time
  });
  contents_.behind(step, next.checkpoint);
  prune();
}

/// All ranks together, when all have read what they would save.
bool Checkpoints::agree_finite(prepare::Pace& pace, int64_t step, const std::string& broken) {
  if (!broken.empty()) log::warn("step " + std::to_string(step) + ": " + broken + " has values that are not finite");
  folder_.ranks.meet(pace);
  const auto ranks = folder_.ranks.gather({broken.empty() ? 0. : 1.});
  const auto bad = std::ranges::find_if(ranks, [](const std::vector<double>& row) { return row[0] != 0; });
  if (bad == ranks.end()) return true;
  unsaved_ = "rank " + std::to_string(bad - ranks.begin()) + " has weights or states that are not finite";
  return false;
}

void Checkpoints::look(int64_t step) {
  folder_.ranks.wait_for_slowest([&](prepare::Pace& pace) {
    const auto look = [&] {
      checkpoint::save_rank({}, folder_.ranks.rank(), contents_.pieces(), [&](const std::string& broken) {
        agree_finite(pace, step, broken);
        return false;  // there is one already
      });
    };
    contents_.run(step, look, [&] { folder_.ranks.meet(pace); });
  });
}

/// A step that was skipped has changed nothing, so that the next one begins from the same checkpoint.
void Checkpoints::after(int64_t step) {
  if (!health_.proves()) return;
  const std::vector<Proofs::Waiting> proved = proofs_.take_proved();
  if (proved.empty()) return;
  folder_.ranks.first_acts(step, "calling a checkpoint proved", "waiting for rank 0", [&] {
    for (const Proofs::Waiting& each : proved) try {
        if (is_whole(each)) checkpoint::prove(each.checkpoint);  // else it was pruned
      } catch (const UserError& error) {
        log::warn("step " + std::to_string(step) + ": " + error.what() + "; the checkpoint counts as not proved");
      }
    prune();  // the one that was proved before may go
  });
}

void Checkpoints::prune() const {
  const checkpoint::Retention more{settings_.keep_steps, best_saves()};
  checkpoint::prune(folder_.checkpoints, settings_.keep, proofs_.kept(), more);
  checkpoint::prune_exports(folder_.out / checkpoint::kExports, settings_.keep_exports,
                            checkpoint::newest_proved(folder_.checkpoints), more);
}

/// Of the steps that have an export or a checkpoint, those with the least held-out losses.
std::set<int64_t> Checkpoints::best_saves() const {
  if (settings_.keep_best == 0 || !contents_.losses) return {};
  std::set<int64_t> saved;
  for (const fs::path& folder : {folder_.checkpoints, folder_.out / checkpoint::kExports})
    for (const fs::path& path : checkpoint::saves_in(folder)) saved.insert(checkpoint::step_of(path.filename()));
  std::vector<std::pair<double, int64_t>> losses;
  for (const auto& [step, loss] : contents_.losses())
    if (saved.contains(step) && std::isfinite(loss)) losses.emplace_back(loss, step);
  std::ranges::sort(losses);  // of equal ones the earlier
  std::set<int64_t> best;
  for (const auto& [loss, step] : losses)
    if (static_cast<int64_t>(best.size()) < settings_.keep_best) best.insert(step);
  return best;
}

}  // namespace tessera::train
