#include "tessera/train/run_folder.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <ctime>
#include <fstream>
#include <sstream>
#include <string>
#include <thread>

#include "tessera/base/check.h"
#include "tessera/base/log.h"
#include "tessera/base/random.h"
#include "tessera/checkpoint/file.h"
#include "tessera/checkpoint/folders.h"
#include "tessera/device/failure.h"
#include "tessera/planning/disk_need.h"
#include "tessera/report/history.h"
#include "tessera/train/stop_signal.h"

namespace tessera::train {

namespace fs = std::filesystem;

namespace {

constexpr const char* kUnderWay = "abandoned.partial";  // until all is in it

void move(const fs::path& from, const fs::path& to) {
  std::error_code error;
  fs::rename(from, to, error);
  if (error)
    throw UserError(Exit::disk, "run.resume",
                    from.string() + ": cannot be moved to " + to.string() + ": " + error.message(),
                    "see to its permissions, or begin the new line in another run.out");
  checkpoint::sync_folder(to.parent_path());
  checkpoint::sync_folder(from.parent_path());
}

fs::path next_name(const fs::path& run) {
  for (int n = 1;; ++n)
    if (const fs::path name = run / ("abandoned-" + std::to_string(n)); !fs::exists(name)) return name;
}

/// The lines of metrics.jsonl that the run is going to cut off.
void copy_lines(const fs::path& run, int64_t step, const fs::path& to) {
  const fs::path file = run / "metrics.jsonl";
  const report::History history = report::read_history(file, step);
  const int64_t bytes = history.bytes - history.kept;
  if (bytes == 0) return;
  const checkpoint::ReadFile in(file);
  checkpoint::DurableFile out(to / "metrics.jsonl", bytes);
  std::vector<char> piece(size_t{1} << 20);
  for (int64_t at = history.kept; at < history.bytes;) {
    const int64_t count = std::min<int64_t>(history.bytes - at, static_cast<int64_t>(piece.size()));
    in.read(at, count, piece.data());
    out.write(piece.data(), count);
    at += count;
  }
  out.commit();
}

/// When the launcher began whose child this process is, ours or torchrun's agent, in seconds since 1970, to a hundredth; 0
/// where /proc does not show it.
double launcher_start() {
  std::ifstream in("/proc/" + std::to_string(getppid()) + "/stat");
  const std::string process(std::istreambuf_iterator<char>(in), {});
  const size_t name_end = process.rfind(')');
  if (name_end == std::string::npos) return 0;
  std::istringstream fields(process.substr(name_end + 1));
  std::string field;
  for (int i = 0; i < 20; ++i) fields >> field;  // the 22nd of all: clock ticks from the machine's start
  const auto seconds = [](clockid_t clock) {
    timespec time{};
    clock_gettime(clock, &time);
    return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
  };
  return seconds(CLOCK_REALTIME) - seconds(CLOCK_BOOTTIME) +
         std::atof(field.c_str()) / static_cast<double>(sysconf(_SC_CLK_TCK));
}

/// The first free one of recipe-1.toml, recipe-2.toml, ...
fs::path next_recipe(const fs::path& run) {
  for (int n = 1;; ++n)
    if (const fs::path name = run / ("recipe-" + std::to_string(n) + ".toml"); !fs::exists(name)) return name;
}

}  // namespace

RunFolder::RunFolder(const recipe::Recipe::Run& run, Ranks& ranks)
    : ranks(ranks), out(run.out), checkpoints(out / "checkpoints"), resume_key_(run.resume) {
  if (!ranks.first()) return;
  planning::check_own_folder(out);
  if (!comm::RunLock::held_by_launcher(out)) lock_.emplace(out);
}

void RunFolder::choose(const std::string& asked, bool back) {
  const bool restarted = ranks.place.attempt > 0;
  resumed_.reset();
  // [Note: seen late] (network_disk.h): ranks of several machines may see different checkpoints for a while.
  const auto began = std::chrono::steady_clock::now();
  for (bool settled = false; !settled;) {
    resume_ = checkpoint::choose_resume(asked, out, restarted ? std::optional(launcher_start()) : std::nullopt, back);
    const std::chrono::duration<double> waited = std::chrono::steady_clock::now() - began;
    const bool again = checkpoint::on_network_disk(out) && waited.count() < checkpoint::kSeenSeconds;
    const uint64_t hash = hash_text(checkpoint::describe(resume_));
    const auto rows =
        ranks.gather({static_cast<double>(hash >> 32), static_cast<double>(hash & 0xFFFFFFFFu), again ? 1.0 : 0.0});
    const auto same = [&](const auto& row) { return row[0] == rows[0][0] && row[1] == rows[0][1]; };
    settled = rows[0][2] == 0 || std::ranges::all_of(rows, same);
    if (!settled) std::this_thread::sleep_for(std::chrono::milliseconds(200));
  }
  ranks.comm.check_agreement("checkpoint to go on from", checkpoint::describe(resume_));
  if (resume_.from) resumed_ = std::make_unique<checkpoint::TrainingCheckpoint>(*resume_.from);
  step_ = resumed_ ? resumed_->manifest().step : 0;
}

bool RunFolder::own_checkpoint() const {
  std::error_code none;
  return resume_.from && fs::equivalent(resume_.from->parent_path(), checkpoints, none);
}

void RunFolder::make() const {
  for (const fs::path& folder : checkpoint::without_manifest(checkpoints))
    log::warn(folder.string() + " has no manifest.json, so it is not complete and is not used; " +
              (resume_.from ? "the run goes on from " + resume_.from->string() : "the run begins at step 0"));
  for (const fs::path& folder : {checkpoints, out / "samples"}) checkpoint::make_folder(folder, "check run.out");
}

void RunFolder::claim(const std::vector<std::string>& experts, const std::string& because) const {
  const fs::path exports = out / checkpoint::kExports;
  for (const auto& name : checkpoint::clean_partials(checkpoints))
    log::info("removed the incomplete checkpoint " + name);
  checkpoint::clean_partials(exports);
  std::vector<fs::path> written = {out, out / "samples", out / "references", out / "model", out / "model_ema", exports};
  for (const std::string& expert : experts)
    for (const char* model : {"model", "model_ema"}) written.push_back(out / model / expert);
  for (const fs::path& folder : written) checkpoint::remove_dead_partials(folder);
  remove_rank_files(out / "schedule.jsonl");
  if (resume_.gone_on)
    log::info("run.resume = " + resume_key_ + ": this run has resumed from there before, so it now resumes from its " +
              "newest checkpoint; to go back again, name another checkpoint");
  if (resume_.back)
    log::info(because + ": the run goes back to " + (resume_.from ? resume_.from->string() : "its beginning"));
  leave_behind(out, step_, resume_.beyond);
}

void RunFolder::open_log(const std::string& on_event, const std::vector<Change>& changes) {
  log_ = std::make_unique<report::RunLog>(out, step_, on_event);
  const report::History& found = log_->found();
  if (!found.strays.empty())
    log::warn((out / "metrics.jsonl").string() + ": " + report::told_strays(found.strays, found.begin));
  const bool own = own_checkpoint();
  const bool removed = found.bytes == 0, begun_elsewhere = found.last_step == 0 && !resume_.line.empty();
  if (own && (removed || !begun_elsewhere) && found.last_step < step_) {
    const std::string text = (removed ? "there is no metrics.jsonl, removed or left behind,"
                                      : "metrics.jsonl ends at step " + std::to_string(found.last_step)) +
                             std::string(" and the checkpoint is of step ") + std::to_string(step_) +
                             (removed ? ": the steps up to it are missing from the history"
                                      : ": the steps between are missing from the history");
    log::warn(text);
    if (!found.has("warning")) log_->warning(step_, "history", text);
  }
  if (own && !found.has("checkpoint")) log_->checkpoint(step_, resume_.from->string(), {});
  for (const comm::FaultNote& note : comm::fault_notes(out))
    if (!found.fault_times.contains(note.time)) log_->restart(step_, note.text, note.time);
  if (const std::string stop = untold_stop(out); !stop.empty()) {
    log::warn(stop);
    log_->warning(step_, "stop", stop);
  }
  if (resumed_) log_->resume(step_, resumed_->path().string());
  for (const Change& change : changes) {
    log::info(change.text());
    log_->change(step_, change.key, change.before, change.now, change.text());
  }
  log_->flush();
  comm::forget_faults(out);
  stop_done(out);
}

void RunFolder::write_recipe(const std::string& recipe) const {
  const fs::path file = out / "recipe.toml", copy = out / ".recipe.toml";
  std::string before;
  if (fs::exists(copy)) before = checkpoint::read_text(copy);
  if (!before.empty() && before != recipe) checkpoint::write_text(next_recipe(out), before);
  if (fs::exists(file))
    if (const std::string there = checkpoint::read_text(file); there != recipe && there != before)
      checkpoint::publish(file, next_recipe(out));
  checkpoint::write_text(file, recipe);
  checkpoint::write_text(copy, recipe);
}

fs::path RunFolder::keep_tokenizer(const fs::path& made) const {
  const fs::path kept = out / "tokenizer.model";
  if (!fs::exists(kept) || checkpoint::read_text(kept) != checkpoint::read_text(made))
    checkpoint::write_text(kept, checkpoint::read_text(made));
  return kept;
}

Exit RunFolder::attempt(int64_t step, const std::string& what, const std::string& then,
                        const std::function<void()>& act) const {
  Exit code = Exit::internal;
  std::string text;
  try {
    act();
    return Exit::done;
  } catch (const Error& error) {
    code = error.code(), text = error.what();
    if (code == Exit::rank_lost || code == Exit::memory) throw;
  } catch (const c10::OutOfMemoryError&) {
    throw;
  } catch (const c10::Error& error) {
    if (device::has_failed()) throw;  // no step can follow
    text = error.what_without_backtrace();
  } catch (const std::exception& error) {
    text = error.what();
  }
  log::warn("step " + std::to_string(step) + ": the " + what + " failed; " + then + ": " + text);
  if (log_) log_->warning(step, what, text);
  return code;
}

void leave_behind(const fs::path& run, int64_t step, const std::vector<fs::path>& beyond) {
  const fs::path under_way = run / kUnderWay;
  const std::vector<fs::path> exports = checkpoint::exports_behind(run, step);
  if (beyond.empty() && exports.empty() && !fs::exists(under_way)) return;
  const fs::path to = next_name(run);
  if (!exports.empty()) {
    const fs::path there = under_way / checkpoint::kExports;
    checkpoint::make_folder(there, "check run.out");
    for (const fs::path& left : exports) move(left, there / left.filename());
  }
  if (!beyond.empty()) {
    checkpoint::make_folder(under_way / "checkpoints", "check run.out");
    copy_lines(run, step, under_way);
    // The newest first: until the last has gone, the next start sees that this is not done.
    for (auto left = beyond.rbegin(); left != beyond.rend(); ++left)
      move(*left, under_way / "checkpoints" / left->filename());
  }
  checkpoint::remove_dead_partials(under_way);
  move(under_way, to);
  log::warn("going back to step " + std::to_string(step) + ": " + std::to_string(beyond.size()) + " checkpoints and " +
            std::to_string(exports.size()) + " exports beyond it, and their lines of metrics.jsonl, are in " +
            to.string() + " now; delete it when it is not needed");
}

void join_rank_files(const std::string& file, int world) {
  const auto part = [&](int rank) { return fs::path(file + ".rank-" + std::to_string(rank)); };
  int64_t bytes = 0;
  std::error_code absent;
  for (int r = 0; r < world; ++r)
    if (fs::is_regular_file(part(r), absent)) bytes += static_cast<int64_t>(fs::file_size(part(r)));
  checkpoint::DurableFile out(file, bytes);
  std::vector<char> piece(size_t{1} << 20);
  for (int r = 0; r < world; ++r) {
    if (!fs::is_regular_file(part(r), absent)) continue;
    const checkpoint::ReadFile in(part(r));
    for (int64_t at = 0; at < in.size();) {
      const int64_t count = std::min<int64_t>(in.size() - at, static_cast<int64_t>(piece.size()));
      in.read(at, count, piece.data());
      out.write(piece.data(), count);
      at += count;
    }
  }
  out.commit();
  for (int r = 0; r < world; ++r) fs::remove(part(r), absent);
}

void remove_rank_files(const std::filesystem::path& file) {
  const std::string begin = file.filename().string() + ".rank-";
  std::error_code gone;
  for (const auto& entry : std::filesystem::directory_iterator(file.parent_path(), gone))
    if (entry.path().filename().string().starts_with(begin)) std::filesystem::remove(entry.path(), gone);
}

std::vector<std::string> lines_of(const std::string& file) {
  std::vector<std::string> all;
  std::ifstream in(file);
  for (std::string line; std::getline(in, line);) all.push_back(line);
  return all;
}

}  // namespace tessera::train
