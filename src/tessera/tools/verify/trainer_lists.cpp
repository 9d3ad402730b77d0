// Kinds that are lists: "retention", which files of a run other trainers keep after each save and at the end; "clip_picks",
// which frames of a file they take. A mesh means nothing to either.
#include <algorithm>
#include <cmath>
#include <set>

#include "tessera/base/check.h"
#include "tessera/base/json.h"
#include "tessera/checkpoint/file.h"
#include "tessera/tools/verify/by_size.h"

namespace tessera::tools {

namespace {

using at::Tensor;
using Names = std::set<std::string>;

std::string numbered(const char* format, int64_t number) {
  char text[64];
  std::snprintf(text, sizeof text, format, static_cast<long long>(number));
  return text;
}

/// A run of one trainer: what lies in its folder after each save, and when it is over.
struct Kept {
  Names files;
  std::vector<std::pair<int64_t, Names>> saves;  ///< step or epoch
  void save(int64_t at) { saves.emplace_back(at, files); }
};

/// Whether something happens every so many steps; 0: never.
bool falls(int64_t at, int64_t every) { return every > 0 && at % every == 0; }

Kept of_kohya(const Settings& run) {
  const int64_t every = run.value("save_every_n_steps", int64_t{0}),
                epoch_every = run.value("save_every_n_epochs", int64_t{0});
  const int64_t last = run.value("save_last_n_steps", int64_t{0}),
                last_epochs = run.value("save_last_n_epochs", int64_t{0});
  const auto or_else = [](int64_t own, int64_t other) { return own > 0 ? own : other; };
  const int64_t state_last = or_else(run.value("save_last_n_steps_state", int64_t{0}), last),
                state_epochs = or_else(run.value("save_last_n_epochs_state", int64_t{0}), last_epochs);
  const bool states = run.at("save_state"), state_at_end = run.at("save_state_on_train_end");
  const int64_t steps = run.at("steps_per_epoch"), epochs = run.at("epochs");
  Kept kept;
  const auto save = [&](const char* format, int64_t at, int64_t gone, int64_t state_gone, int64_t least_state) {
    const std::string ending = ".safetensors";
    kept.files.insert(numbered(format, at) + ending);
    if (states) kept.files.insert(numbered(format, at) + "-state");
    if (gone >= 0) kept.files.erase(numbered(format, gone) + ending);
    if (states && state_gone >= least_state) kept.files.erase(numbered(format, state_gone) + "-state");
    kept.save(at);
  };
  for (int64_t step = 1; step <= steps * epochs; ++step) {
    // A window in steps: of the saves outside of it the newest goes.
    const auto outside = [&](int64_t window) {
      const int64_t at = step - window - 1;
      return window > 0 && at >= 0 ? at - at % every : -1;
    };
    if (falls(step, every)) save("out-step%08lld", step, outside(last), outside(state_last), 1);
    const int64_t epoch = step / steps;
    if (step % steps != 0 || !falls(epoch, epoch_every) || epoch == epochs) continue;
    const auto before = [&](int64_t count) { return count > 0 ? epoch - epoch_every * count : -1; };
    save("out-%06lld", epoch, before(last_epochs), before(state_epochs), 0);
  }
  kept.files.insert("out.safetensors");
  if (states || state_at_end) kept.files.insert("out-state");
  return kept;
}

Kept of_ai_toolkit(const Settings& run) {
  const std::string name = run.at("name");
  const int64_t every = run.at("save_every"), steps = run.at("steps"), most = run.at("max_step_saves_to_keep");
  auto by_age = run.at("stale").get<std::vector<std::string>>();  // oldest first, whatever their steps are
  Kept kept;
  kept.files.insert(by_age.begin(), by_age.end());
  for (int64_t step = every; every > 0 && step <= steps; step += every) {
    by_age.push_back(name + numbered("_%09lld", step) + ".safetensors");
    kept.files.insert({by_age.back(), "optimizer.pt"});
    for (; most > 0 && std::ssize(by_age) > most; by_age.erase(by_age.begin())) kept.files.erase(by_age.front());
    kept.save(step);
  }
  kept.files.insert(name + ".safetensors");
  return kept;
}

Kept of_simpletuner(const Settings& run) {
  struct Kind {
    int64_t every, most;
    std::string ending;
    std::set<int64_t> steps;
  };
  Kind kinds[] = {
      {run.value("checkpoint_step_interval", int64_t{0}), run.value("checkpoints_total_limit", int64_t{0}), "", {}},
      {run.value("checkpointing_rolling_steps", int64_t{0}),
       run.value("checkpoints_rolling_total_limit", int64_t{0}),
       "-rolling",
       {}}};
  Kept kept;
  const auto name = [](int64_t step, const Kind& kind) { return "checkpoint-" + std::to_string(step) + kind.ending; };
  for (const std::string& file : run.at("stale").get<std::vector<std::string>>()) {
    Kind& kind = kinds[file.ends_with("-rolling") ? 1 : 0];
    kind.steps.insert(std::stoll(file.substr(file.find('-') + 1)));
    kept.files.insert(file);
  }
  const int64_t steps = run.at("steps");
  for (int64_t step = 1; step <= steps; ++step)
    for (Kind& kind : kinds) {
      if (!falls(step, kind.every)) continue;
      kind.steps.erase(step);  // by their numbers, but for the one that is written now
      for (; kind.most > 0 && std::ssize(kind.steps) >= kind.most; kind.steps.erase(kind.steps.begin()))
        kept.files.erase(name(*kind.steps.begin(), kind));
      while (kind.most == 1 && !kind.steps.empty())
        kept.files.erase(name(*kind.steps.begin(), kind)), kind.steps.erase(kind.steps.begin());
      kind.steps.insert(step);
      kept.files.insert(name(step, kind));
      kept.save(step);
    }
  return kept;
}

Kept of_onetrainer(const Settings& run) {
  const int64_t every = run.at("backup_after_steps"), steps = run.at("steps"), most = run.at("rolling_backup_count");
  const bool rolls = run.at("rolling_backup");
  Kept kept;
  int64_t minute = 0;
  for (int64_t step = every; every > 0 && step <= steps; step += every, ++minute) {
    const std::string text = std::to_string(step);
    kept.files.insert("2026-01-01_" + numbered("%02lld", minute / 60) + "-" + numbered("%02lld", minute % 60) +
                      "-00-backup-" + text + "-0-" + text);
    while (rolls && std::ssize(kept.files) > most) kept.files.erase(kept.files.begin());
    kept.save(step);
  }
  return kept;
}

Kept of_diffsynth(const Settings& run) {
  const int64_t every = run.value("save_steps", int64_t{0}), steps = run.at("steps_per_epoch"),
                epochs = run.at("epochs");
  Kept kept;
  const auto save = [&](const char* kind, int64_t at) {
    kept.files.insert(std::string(kind) + "-" + std::to_string(at) + ".safetensors");
  };
  for (int64_t epoch = 0; epoch < epochs; ++epoch) {
    for (int64_t step = epoch * steps + 1; step <= (epoch + 1) * steps; ++step)
      if (falls(step, every)) save("step", step);
    if (every == 0) save("epoch", epoch);
    kept.save(epoch);
  }
  if (every > 0) save("step", steps * epochs);
  return kept;
}

Kept of_diffusion_pipe(const Settings& run) {
  const auto every = [&](const char* key) { return run.value(key, int64_t{0}); };
  const int64_t model_steps = every("save_every_n_steps"), model_epochs = every("save_every_n_epochs"),
                state_epochs = every("checkpoint_every_n_epochs");
  const double minutes = run.value("checkpoint_every_n_minutes", 0.0), seconds = run.at("seconds_per_step");
  const int64_t per_epoch = run.at("steps_per_epoch"), epochs = run.at("epochs"), most = every("max_steps");
  const bool cut = most > 0 && most <= per_epoch * epochs;  // by steps, not by epochs
  const int64_t last = cut ? most : per_epoch * epochs;
  Kept kept;
  const auto model = [&](const char* kind, int64_t at) { kept.files.insert(kind + std::to_string(at)); };
  const auto state = [&](int64_t step) {
    model("global_step", step);
    kept.files.insert("latest");
  };
  double since = 0;  // the clock starts at the end of the first step
  for (int64_t step = 1; step <= last; ++step) {
    const bool ends = step % per_epoch == 0;
    bool saved = false;
    if (ends && falls(step / per_epoch, model_epochs)) model("epoch", step / per_epoch);
    if (ends && falls(step / per_epoch, state_epochs)) state(step);
    if (falls(step, model_steps)) model("step", step), saved = true;
    if (step > 1) since += seconds;
    if (minutes > 0 && since >= 60 * minutes) state(step), saved = true, since = 0;
    if ((saved || ends) && step < last) kept.save(step);
  }
  model(cut ? "step" : "epoch", cut ? last : epochs);
  state(last);
  return kept;
}

Kept kept_by(const std::string& project, const Settings& run) {
  constexpr std::pair<const char*, Kept (*)(const Settings&)> kProjects[] = {
      {"musubi, sd-scripts", of_kohya}, {"ai-toolkit", of_ai_toolkit}, {"SimpleTuner", of_simpletuner},
      {"OneTrainer", of_onetrainer},    {"DiffSynth", of_diffsynth},   {"diffusion-pipe", of_diffusion_pipe}};
  for (const auto& [name, keeps] : kProjects)
    if (project == name) return keeps(run);
  throw UserError(Exit::input, "verify", "what '" + project + "' keeps is not known to this build");
}

std::string listing(const auto& names) {
  std::string text;
  for (const std::string& name : names) text += name + "\n";
  return text;
}

std::filesystem::path list_of(const CaseContext& context) { return context.folder / "cases.json"; }

/// cases.json has the settings of the runs in case.json.
std::vector<Settings> items_of(const CaseContext& context) {
  context.config.at("runs").json();
  const std::filesystem::path path = list_of(context);
  return Settings(parse_ordered_json(checkpoint::read_text(path), path.string())).at("items").elements();
}

CaseResults results_of(const CaseContext& context, std::map<std::string, Tensor> expected,
                       const std::map<std::string, Tensor>& found,
                       const std::vector<std::pair<std::string, std::string>>& refused) {
  CaseFile file(context.name, list_of(context), std::move(expected));
  for (const auto& [name, result] : found) file.compare(name, result, 0.0);
  for (const auto& [run, why] : refused) file.refuse_run(run, why);
  CaseResults results;
  results.push_back(std::move(file));
  return results;
}

}  // namespace

CaseResults verify_retention(const CaseContext& context) {
  std::map<std::string, Tensor> expected, found;
  std::vector<std::pair<std::string, std::string>> refused;
  const std::vector<Settings> items = items_of(context);
  for (size_t i = 0; i < items.size(); ++i) {
    const std::string project = items[i].at("project"), run = std::to_string(i);
    const auto add = [&](std::map<std::string, Tensor>& to, const std::string& name, const auto& files) {
      to["out." + run + "." + name] = bytes_of(listing(files));
    };
    size_t save = 0;
    for (const Settings& each : items[i].at("after_each_save").elements()) {
      for (const char* at : {"step", "epoch"}) each.read(at);
      add(expected, "save" + std::to_string(save++), each.at("files").get<std::vector<std::string>>());
    }
    add(expected, "left", items[i].at("left").get<std::vector<std::string>>());
    try {
      const Settings settings(items[i].at("settings").json());
      settings.read("project");
      const Kept kept = kept_by(project, settings);
      const std::vector<std::string> unread = settings.unread({});
      check_input(unread.empty(), "verify", (unread.empty() ? "" : unread.front()) + " is not known to this build");
      for (size_t s = 0; s < kept.saves.size(); ++s) add(found, "save" + std::to_string(s), kept.saves[s].second);
      add(found, "left", kept.files);
    } catch (const UserError& error) {
      refused.emplace_back(run, project + ": " + error.what());
    }
  }
  return results_of(context, std::move(expected), found, refused);
}

namespace {

/// Python's round: halves go to the even neighbour.
int64_t nearest_whole(double value) { return static_cast<int64_t>(std::nearbyint(value)); }

/// `count` numbers from 0 to `last`, evenly, cut to whole ones.
std::vector<int64_t> spread(int64_t last, int64_t count) {
  std::vector<int64_t> all;
  for (int64_t i = 0; i < count; ++i)
    all.push_back(count > 1 ? static_cast<int64_t>(static_cast<double>(i) *
                                                   (static_cast<double>(last) / static_cast<double>(count - 1)))
                            : 0);
  return all;
}
/// The same where it is computed in fp32.
std::vector<int64_t> spread_fp32(int64_t last, int64_t count) {
  const Tensor all = count > 0 ? at::linspace(0, last, count, at::kFloat) : at::empty({0});
  std::vector<int64_t> found;
  for (int64_t i = 0; i < count; ++i) found.push_back(static_cast<int64_t>(all[i].item<float>()));
  return found;
}

/// musubi-tuner drops frames that fall on the same place at the lower rate; start and end count what is left.
Json musubi_frames(const Settings& s, int64_t count) {
  const double source = s.value("source_fps", 0.0), target = s.value("target_fps", 0.0);
  const auto start = s.value("start_frame", int64_t{0}), end = s.value("end_frame", count);
  std::vector<int64_t> kept;
  double place = 0;
  int64_t last = -1;
  for (int64_t f = 0; f < count; ++f) {
    const auto whole = static_cast<int64_t>(place);
    if (source > 0) place += target / source;
    if (source > 0 && std::exchange(last, whole) == whole) continue;
    kept.push_back(f);
  }
  const auto size = std::ssize(kept), from = std::min(start, size);
  return std::vector<int64_t>(kept.begin() + from, kept.begin() + std::clamp(end, from, size));
}

Json musubi_clips(const Settings& s, int64_t count) {
  const auto targets = s.at("target_frames").get<std::vector<int64_t>>();
  const int64_t stride = s.at("frame_stride"), samples = s.at("frame_sample"), most = s.at("max_frames");
  std::string mode = s.at("frame_extraction");
  if (mode == "uniform" && samples == 1) mode = "head";
  Json clips = Json::array();
  const auto add = [&](int64_t start, int64_t frames) { clips.push_back({start, frames}); };
  if (mode == "full") add(0, (std::min(count, most) - 1) / 4 * 4 + 1);
  for (const int64_t frames : targets) {
    if (count < frames || mode == "full") continue;
    if (mode == "head") {
      add(0, frames);
    } else if (mode == "chunk" || mode == "slide") {
      for (int64_t at = 0; at + frames <= count; at += mode == "chunk" ? frames : stride) add(at, frames);
    } else if (mode == "uniform") {
      for (const int64_t at : spread(count - frames, samples)) add(at, frames);
    } else {
      throw UserError(Exit::input, "verify", "frame_extraction '" + mode + "' is not known to this build");
    }
  }
  return clips;
}

Json pipe_clip(const Settings& s, int64_t count) {
  const double rate = s.at("framerate"), source = s.at("source_fps");
  const std::string mode = s.at("video_clip_mode");
  const int64_t rounds = s.at("round_frames");
  check_input(mode == "single_beginning" || mode == "single_middle", "verify",
              "video_clip_mode '" + mode + "' is not known to this build");
  const auto resampled = spread_fp32(count - 1, static_cast<int64_t>(static_cast<double>(count) * rate / source));
  int64_t bucket = 0;
  for (const int64_t frames : s.at("frame_buckets").get<std::vector<int64_t>>())
    if (frames > 1 && frames <= std::ssize(resampled)) bucket = std::max(bucket, frames);
  Json found = {{"resampled", resampled}, {"bucket", nullptr}, {"clip", nullptr}};
  if (bucket == 0) return found;
  const int64_t frames = (bucket - 1) / rounds * rounds + 1;
  const int64_t start = mode == "single_middle" ? (std::ssize(resampled) - frames) / 2 : 0;
  found["bucket"] = bucket;
  found["clip"] = std::vector<int64_t>(resampled.begin() + start, resampled.begin() + start + frames);
  return found;
}

Json ai_frames(const Settings& s, int64_t count, const std::vector<double>& draws) {
  const int64_t frames = s.at("num_frames"), last = count - 1;
  const double fps = s.at("fps"), rate = s.at("video_fps");
  const bool shrinks = s.at("shrink_video_to_frames"), automatic = s.at("auto_frame_count");
  s.read("trim_auto_frame_count_tail");  // num_frames is what it came to
  const int64_t step = std::max<int64_t>(1, nearest_whole(rate / fps)), start_most = last - (frames - 1) * step;
  std::vector<int64_t> found;
  const bool stretches = shrinks || start_most < 0;
  check_input(automatic || stretches || !draws.empty(), "verify", "a random start has a draw");
  const int64_t start =
      automatic || stretches ? 0 : static_cast<int64_t>(draws[0] * static_cast<double>(start_most + 1));
  for (int64_t i = 0; i < frames; ++i)
    found.push_back(automatic   ? std::min(nearest_whole(static_cast<double>(i) * rate / fps), last)
                    : stretches ? (frames > 1 ? nearest_whole(static_cast<double>(i) * static_cast<double>(last) /
                                                              static_cast<double>(frames - 1))
                                              : 0)
                                : start + i * step);
  return found;
}

}  // namespace

CaseResults verify_clip_picks(const CaseContext& context) {
  std::map<std::string, Tensor> expected, found;
  std::vector<std::pair<std::string, std::string>> refused;
  const std::vector<Settings> items = items_of(context);
  for (size_t i = 0; i < items.size(); ++i) {
    const std::string project = items[i].at("project"), function = items[i].at("function"), run = std::to_string(i);
    const int64_t count = items[i].at("frames");
    const auto draws = items[i].value("uniforms", std::vector<double>());
    const auto add = [&](std::map<std::string, Tensor>& to, const Json& frames) {
      if (!frames.is_object()) to["out." + run + ".frames"] = bytes_of(frames.dump());
      if (frames.is_object())
        for (const auto& [name, value] : frames.items()) to["out." + run + "." + name] = bytes_of(value.dump());
    };
    add(expected, items[i].at("expected").json());
    try {
      const Settings settings(items[i].at("settings").json());
      const bool known = project == "musubi" || project == "diffusion-pipe" || project == "ai-toolkit";
      check_input(known, "verify", "'" + project + "' is not known to this build");
      const Json picked = project == "diffusion-pipe" ? pipe_clip(settings, count)
                          : project == "ai-toolkit"   ? ai_frames(settings, count, draws)
                          : function == "load_video"  ? musubi_frames(settings, count)
                                                      : musubi_clips(settings, count);
      const std::vector<std::string> unread = settings.unread({});
      check_input(unread.empty(), "verify", (unread.empty() ? "" : unread.front()) + " is not known to this build");
      add(found, picked);
    } catch (const UserError& error) {
      refused.emplace_back(run, project + ": " + error.what());
    }
  }
  return results_of(context, std::move(expected), found, refused);
}

}  // namespace tessera::tools
