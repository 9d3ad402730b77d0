#include "tessera/report/run_folder.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <span>

#define TOML_ENABLE_FORMATTERS 0
#include <toml++/toml.h>

#include "tessera/base/check.h"
#include "tessera/base/foreign_file.h"
#include "tessera/base/json.h"
#include "tessera/base/text.h"
#include "tessera/base/toml_text.h"
#include "tessera/base/units.h"

namespace tessera::report {

namespace fs = std::filesystem;
using AnyJson = nlohmann::json;

namespace {

std::string mesh_text(const JsonFields& mesh) {
  std::string out;
  for (const char* axis : {"pp", "dp_replicate", "dp_shard", "cp", "sp", "tp"})
    if (const int64_t size = mesh.whole(axis, 1); size > 1)
      out += (out.empty() ? "" : ", ") + std::string(axis) + " " + std::to_string(size);
  return out.empty() ? "one rank" : out;
}

/// Texts of an event reach terminals and pages: they hold names of files and prompts.
RunEvent read_event(const AnyJson& json, const JsonFields& in) {
  RunEvent event{in.whole("step"), printable(in.text("type")), "", "", printable(in.text("prompt")), std::nullopt};
  event.file = in.text(event.type == "checkpoint" ? "folder" : "file");
  if (const double psnr = in.real("psnr", NAN); std::isfinite(psnr)) event.psnr = psnr;
  if (event.type == "checkpoint") {
    const double seconds = in.real("seconds", NAN);
    event.text = event.file + (std::isfinite(seconds) ? " in " + format_seconds(seconds) : "");
  } else if (event.type == "sample") {
    char db[80] = "";
    if (event.psnr) std::snprintf(db, sizeof db, ", PSNR %.1f dB against its clip's reconstruction", *event.psnr);
    event.text = event.file + db;
  } else if ((event.type == "resume" || event.type == "start") && in.has("text")) {
    event.text = in.text("text");
  } else {  // skip, fault, stage, and what a later version adds: its texts
    for (const auto& [key, value] : json.items())
      if (key != "type" && key != "step")
        event.text += (event.text.empty() ? "" : ", ") +
                      (value.is_string() ? value.get<std::string>() : key + " " + value.dump());
  }
  event.text = printable(event.text);
  return event;
}

}  // namespace

RunFolder::RunFolder(fs::path folder) : folder_(std::move(folder)) {
  check_input(fs::is_directory(folder_), "run", folder_.string() + ": there is no such folder",
              "give the folder of a run: run.out of its recipe");
  check_input(fs::exists(folder_ / "metrics.jsonl") || fs::exists(folder_ / "recipe.toml"), "run",
              folder_.string() + " is not a run: it has neither metrics.jsonl nor recipe.toml",
              "give the folder of a run: run.out of its recipe");
  read_facts();
  poll();
}

void RunFolder::read_facts() {
  facts_ = {};
  const auto text_of = [&](const char* name) {
    const fs::path file = folder_ / name;
    constexpr int64_t kMost = int64_t{64} << 20;
    return fs::exists(file) ? read_foreign(file, kMost, "run") : std::string();
  };
  // Another version may have written it, or be writing it: only what is needed is read.
  try {
    const toml::table recipe = parse_toml(text_of("recipe.toml"));
    facts_.steps = recipe["run"]["steps"].value_or(int64_t{0});
    facts_.global_batch = recipe["train"]["global_batch"].value_or(int64_t{0});
  } catch (const toml::parse_error&) {
  }
  const AnyJson plan = json_or_nothing(text_of("plan.json"));
  if (!plan.is_object()) return;
  const JsonFields in(plan, (folder_ / "plan.json").string());
  facts_.plan = printable(in.text("summary"));
  if (in.has("mesh")) facts_.mesh = mesh_text(in.object("mesh"));
  const JsonFields model = in.object("model"), device = in.object("device"), step = in.object("step_seconds");
  facts_.model = printable(model.text("name"));
  facts_.parameters = model.whole("parameters");
  facts_.predicted_peak = device.whole("peak_bytes");
  facts_.predicted_seconds = step.real("total");
  facts_.predicted_waits = {step.real("exposed_comm"), step.real("exposed_copy"), step.real("bubble"),
                            step.has("encoders") ? step.real("encoders") : 0};
}

void RunFolder::restart() {
  steps_.clear();
  ranks_.clear();
  memory_ = {};
  events_.clear();
  evals_.clear();
  compression_ = {};
  waited_.clear();
  waited_steps_ = 0;
  used_.clear();
  strays_.clear();
  last_line_.clear();
  last_step_ = offset_ = line_ = world_ = 0;
  read_facts();
}

bool RunFolder::poll() {
  const fs::path file = folder_ / "metrics.jsonl";
  if (!fs::exists(file)) return false;
  check_input(fs::is_regular_file(file), "run", file.string() + ": is no regular file",
              "give the folder of a run: run.out of its recipe");
  std::ifstream in(file, std::ios::binary);
  if (!in) return false;
  if (!last_line_.empty()) {
    std::string there(last_line_.size(), '\0');
    in.seekg(offset_ - 1 - static_cast<int64_t>(there.size()));
    if (!in.read(there.data(), static_cast<std::streamsize>(there.size())) || there != last_line_) restart();
    in.clear();
  }
  in.seekg(offset_);
  constexpr size_t kChunk = size_t{1} << 20, kMostLine = size_t{64} << 20;
  std::string added, chunk(kChunk, '\0');
  bool lines = false;
  while (in.read(chunk.data(), kChunk), in.gcount() > 0) {
    added.append(chunk, 0, static_cast<size_t>(in.gcount()));
    size_t begin = 0;
    for (size_t end; (end = added.find('\n', begin)) != std::string::npos; begin = end + 1) {
      last_line_ = added.substr(begin, end - begin);
      take_line(last_line_);
    }
    lines |= begin > 0;
    offset_ += static_cast<int64_t>(begin);
    added.erase(0, begin);  // a line without its end is still being written
    check_input(added.size() <= kMostLine, "run",
                file.string() + ", line " + std::to_string(line_ + 1) + ": longer than " + format_bytes(kMostLine),
                "is this the metrics.jsonl of a run?");
  }
  return lines;
}

namespace {

void add(StepMetrics::Bin& bin, const StepMetrics::Bin& more) {
  if (more.count <= 0 || !std::isfinite(more.loss)) return;
  const auto before = static_cast<double>(bin.count), count = static_cast<double>(more.count);
  bin.loss = (bin.loss * before + more.loss * count) / (before + count);
  bin.count += more.count;
}

/// The steps whose losses say how the run does now.
std::span<const StepMetrics> newest(const std::vector<StepMetrics>& steps) {
  constexpr size_t kLeast = 20;
  return std::span(steps).last(std::min(steps.size(), std::max(kLeast, steps.size() / 10)));
}

}  // namespace

std::vector<double> RunFolder::expert_frequencies() const {
  std::vector<double> samples;
  double all = 0;
  for (const StepMetrics& step : newest(steps_)) {
    if (!step.gate) continue;
    samples.resize(std::max(samples.size(), step.gate->experts.size()));
    for (size_t e = 0; e < step.gate->experts.size(); ++e) {
      const auto own = static_cast<double>(std::max<int64_t>(0, step.gate->experts[e].samples));
      samples[e] += own, all += own;
    }
  }
  if (!(all > 0)) return {};
  for (double& own : samples) own /= all;
  return samples;
}

std::vector<std::vector<int64_t>> RunFolder::experts_by_timestep() const {
  std::vector<std::vector<int64_t>> chosen;
  size_t bins = 0;
  for (const StepMetrics& step : newest(steps_)) {
    if (!step.gate) continue;
    chosen.resize(std::max(chosen.size(), step.gate->experts.size()));
    for (size_t e = 0; e < step.gate->experts.size(); ++e) {
      const std::vector<int64_t>& own = step.gate->experts[e].by_timestep;
      bins = std::max(bins, own.size());
      chosen[e].resize(std::max(chosen[e].size(), own.size()));
      for (size_t b = 0; b < own.size(); ++b) chosen[e][b] += std::max<int64_t>(0, own[b]);
    }
  }
  if (bins == 0) return {};
  for (auto& own : chosen) own.resize(bins);
  return chosen;
}

std::vector<StepMetrics::Bin> RunFolder::loss_by_timestep() const {
  std::vector<StepMetrics::Bin> bins;
  for (const StepMetrics& step : newest(steps_)) {
    bins.resize(std::max(bins.size(), step.by_timestep.size()));
    for (size_t b = 0; b < step.by_timestep.size(); ++b) add(bins[b], step.by_timestep[b]);
  }
  return bins;
}

std::vector<std::pair<std::string, StepMetrics::Bin>> RunFolder::loss_by_set() const {
  std::vector<std::pair<std::string, StepMetrics::Bin>> sets;
  for (const StepMetrics& step : newest(steps_))
    for (const auto& [name, own] : step.by_set) {
      auto known = std::ranges::find(sets, name, &std::pair<std::string, StepMetrics::Bin>::first);
      if (known == sets.end()) known = sets.insert(known, {name, {}});
      add(known->second, own);
    }
  return sets;
}

const StepMetrics* RunFolder::counted_fp8() const {
  const auto counts = [](const StepMetrics& step) { return !step.fp8.empty(); };
  const auto newest = std::find_if(steps_.rbegin(), steps_.rend(), counts);
  return newest == steps_.rend() ? nullptr : &*newest;
}

StepMetrics::Bin RunFolder::preserved() const {
  StepMetrics::Bin all;
  for (const StepMetrics& step : newest(steps_))
    if (step.preserved) add(all, *step.preserved);
  return all;
}

void RunFolder::take_line(const std::string& line) {
  ++line_;
  const AnyJson json = json_or_nothing(line);
  if (!json.is_object()) {
    strays_.push_back(line_);
    return;
  }
  const JsonFields in(json, (folder_ / "metrics.jsonl").string() + ", line " + std::to_string(line_));
  const std::string type = in.text("type");
  const bool step = type == "step";
  last_step_ = std::max(last_step_, step || type == "skip" ? in.whole("step") : 0);
  if (type == "eval") {
    EvalMetrics& eval = evals_.emplace_back();
    eval.step = in.whole("step"), eval.loss = in.real("loss", NAN), eval.samples = in.whole("samples");
    eval.set = printable(in.text("set"));
    for (const auto& [name, points] : {std::pair("by_timestep", &eval.by_timestep), {"by_sigma", &eval.by_sigma}})
      if (in.has(name))
        for (const JsonFields& point : in.list(name))
          points->emplace_back(point.real("sigma", NAN), point.real("loss", NAN));
    return;
  }
  if (!step) {
    events_.push_back(read_event(json, in));
    return;
  }
  StepMetrics m;
  m.step = in.whole("step");
  m.loss = in.real("loss", NAN);
  m.grad_norm = in.real("grad_norm", NAN);
  m.lr = in.real("lr", NAN);
  m.seconds = in.real("seconds", NAN);
  m.samples = in.whole("samples");
  m.tokens = in.whole("tokens");
  if (const double mfu = in.real("mfu", NAN); std::isfinite(mfu)) m.mfu = mfu;
  if (const double peak = in.real("peak_flops", NAN); std::isfinite(peak)) m.peak_flops = peak;
  m.expert = printable(in.text("expert"));
  m.expert_step = in.whole("expert_step");
  m.moved = {in.whole("moved_bytes"), in.real("moved_seconds"), in.real("moved_waited")};
  if (in.has("loss_by_timestep"))
    for (const JsonFields& bin : in.list("loss_by_timestep"))
      m.by_timestep.push_back({bin.real("loss", NAN), bin.whole("count")});
  if (in.has("sets"))
    for (const JsonFields& set : in.list("sets"))
      m.by_set.emplace_back(printable(set.text("set")), StepMetrics::Bin{set.real("loss", NAN), set.whole("samples")});
  if (in.has("preserved")) {
    const JsonFields twins = in.object("preserved");
    m.preserved = StepMetrics::Bin{twins.real("loss", NAN), twins.whole("samples")};
  }
  if (in.has("fp8"))
    for (const JsonFields& of : in.list("fp8"))
      m.fp8.push_back({printable(of.text("unit")),
                       {of.real("zeros", NAN), of.real("clipped", NAN)},
                       {of.real("gradient_zeros", NAN), of.real("gradient_clipped", NAN)}});
  if (in.has("gate")) {
    const JsonFields gate = in.object("gate");
    m.gate.emplace();
    m.gate->balance_loss = gate.real("balance_loss", NAN);
    m.gate->entropy = gate.real("entropy", NAN);
    m.gate->temperature = gate.real("temperature", NAN);
    m.gate->grad_norm = gate.real("grad_norm", NAN);
    m.gate->idle = gate.real("idle_share");
    m.gate->undealt_idle = gate.real("undealt_idle_share");
    m.gate->dummies = gate.real("dummy_share");
    m.gate->moved = gate.whole("moved_samples");
    m.gate->seconds = gate.real("deal_seconds");
    for (const JsonFields& e : gate.list("experts")) {
      StepMetrics::Chosen chosen{e.whole("samples"), e.real("probability", NAN), e.real("grad_norm", NAN),
                                 e.whole("updates"), e.real("seconds")};
      chosen.micro_batch = e.whole("micro_batch");
      for (const JsonFields& bin : e.list("by_timestep")) chosen.by_timestep.push_back(bin.whole("count"));
      m.gate->experts.push_back(std::move(chosen));
    }
  }
  steps_.push_back(std::move(m));
  if (in.has("ranks")) {
    ranks_.clear();
    const auto rows = in.list("ranks");
    const auto here = static_cast<int64_t>(rows.size());
    world_ = std::max(here, in.whole("world"));
    const bool all = here == world_;  // means over the steps are of lines that have every rank
    // A line tells of the step before it, and the first one warms up.
    const bool counts = all && steps_.size() > 2;
    waited_steps_ += counts;
    for (const JsonFields& rank : rows) {
      ranks_.push_back(read_rank(rank));
      if (!all) continue;
      Used& used = used_[ranks_.back().rank];
      if (ranks_.back().mfu && steps_.size() > 1) used.mfu += *ranks_.back().mfu, ++used.mfu_steps;
      if (const auto& driver = ranks_.back().driver; driver && steps_.size() > 1) {
        ++used.driver_steps;
        used.driver.utilisation += driver->utilisation, used.driver.watts += driver->watts;
        used.driver.memory_bytes = std::max(used.driver.memory_bytes, driver->memory_bytes);
      }
      if (counts && !ranks_.back().utilisation.empty()) {
        ++used.lane_steps;
        for (const auto& [lane, share] : ranks_.back().utilisation) used.lanes[lane] += share;
      }
      if (counts) {
        RankMetrics::Exposed& sum = waited_[ranks_.back().rank];
        for (const auto& [what, field] : kExposed) sum.*field += ranks_.back().exposed.*field;
      }
      if (const auto& error = ranks_.back().compression_error) {
        compression_.sum_of_means += error->mean, ++compression_.count;
        compression_.most = std::max(compression_.most, error->most);
      }
    }
    const std::vector<Spread> here_named = all ? spreads(ranks_) : std::vector<Spread>();
    for (const auto& [field, spread] : {std::pair("peak_bytes", &memory_.used),
                                        {"reserved_bytes", &memory_.reserved},
                                        {"predicted_peak_bytes", &memory_.planned}}) {
      *spread = {};
      for (const Spread& s : here_named)
        if (s.field == field) *spread = s;
      if (all || !in.has("ranks_summary")) continue;
      const JsonFields of_all = in.object("ranks_summary").object(field);
      *spread = {field, of_all.real("min"), of_all.real("median"), of_all.real("max")};
    }
  }
}

double RunFolder::step_seconds() const {
  constexpr size_t kNewest = 20;
  if (steps_.size() <= 1) return steps_.empty() ? 0 : steps_.front().seconds;
  const size_t count = std::min(kNewest, steps_.size() - 1);
  double sum = 0;
  for (size_t i = steps_.size() - count; i < steps_.size(); ++i) sum += steps_[i].seconds;
  return sum / static_cast<double>(count);
}

std::vector<RunFolder::Waits> RunFolder::waits() const {
  std::vector<Waits> waits;
  const auto steps = static_cast<double>(waited_steps_);
  for (const auto& [rank, sum] : waited_) {
    waits.push_back({rank, sum});
    for (const auto& [what, field] : kExposed) waits.back().seconds.*field /= steps;
  }
  return waits;
}

std::vector<RunFolder::Utilisation> RunFolder::utilisation() const {
  std::vector<Utilisation> list;
  for (const auto& [rank, used] : used_) {
    if (used.mfu_steps + used.lane_steps + used.driver_steps == 0) continue;
    Utilisation& mean = list.emplace_back();
    mean.rank = rank;
    if (used.mfu_steps > 0) mean.mfu = used.mfu / static_cast<double>(used.mfu_steps);
    for (const auto& [lane, sum] : used.lanes) mean.lanes[lane] = sum / static_cast<double>(used.lane_steps);
    if (const auto steps = static_cast<double>(used.driver_steps); steps > 0)
      mean.driver = {used.driver.utilisation / steps, used.driver.watts / steps, used.driver.memory_bytes};
  }
  return list;
}

std::optional<RankMetrics::CompressionError> RunFolder::compression_error() const {
  if (compression_.count == 0) return std::nullopt;
  return RankMetrics::CompressionError{compression_.sum_of_means / static_cast<double>(compression_.count),
                                       compression_.most};
}

const RunEvent* RunFolder::stop() const {
  if (events_.empty() || events_.back().type != "stop" || events_.back().step < last_step_) return nullptr;
  return &events_.back();
}

std::optional<bool> RunFolder::held() const {
  const int file = ::open((folder_ / ".lock").c_str(), O_RDONLY | O_CLOEXEC);
  if (file < 0) return std::nullopt;
  const bool free = ::flock(file, LOCK_SH | LOCK_NB) == 0;  // a run that starts at this instant tries again
  const bool held = !free && errno == EWOULDBLOCK;
  ::close(file);
  return free || held ? std::optional<bool>(held) : std::nullopt;
}

fs::path newest_run(const fs::path& base) {
  constexpr int kDeep = 3;
  fs::path newest;
  fs::file_time_type written;
  std::error_code none;
  const auto look = [&](const fs::path& folder) {
    std::error_code missing;
    const auto time = fs::last_write_time(folder / "metrics.jsonl", missing);
    if (missing || !fs::exists(folder / "recipe.toml", missing)) return;
    if (newest.empty() || time > written) newest = folder, written = time;
  };
  look(base);
  for (fs::recursive_directory_iterator entry(base, fs::directory_options::skip_permission_denied, none), end;
       !none && entry != end; entry.increment(none)) {
    std::error_code unreadable;
    if (!entry->is_directory(unreadable) || entry->path().filename().string().starts_with(".")) {
      entry.disable_recursion_pending();
      continue;
    }
    look(entry->path());
    if (entry.depth() + 1 >= kDeep) entry.disable_recursion_pending();
  }
  if (newest.empty())
    throw UserError(Exit::usage, "run",
                    "no run is in " + fs::weakly_canonical(base).string() + " or up to three folders below",
                    "give the folder of a run: run.out of its recipe");
  return newest.lexically_normal();
}

std::optional<std::chrono::duration<double>> RunFolder::quiet() const {
  std::error_code error;
  const auto written = fs::last_write_time(folder_ / "metrics.jsonl", error);
  if (error) return std::nullopt;
  return fs::file_time_type::clock::now() - written;
}

std::string used_and_reserved(const RunFolder::Memory& memory, size_t world) {
  const auto bytes = [](double value) { return format_bytes(static_cast<int64_t>(value)); };
  const auto spread = [&](const Spread& s) {
    if (bytes(s.least) == bytes(s.most)) return bytes(s.most);
    return bytes(s.least) + " to " + bytes(s.most) + (world > 2 ? " (median " + bytes(s.median) + ")" : "");
  };
  return "used " + spread(memory.used) + " of " + spread(memory.planned) + " planned" +
         (memory.reserved.most > 0 ? ", reserved " + spread(memory.reserved) : "") + "; " + std::to_string(world) +
         (world == 1 ? " rank" : " ranks");
}

}  // namespace tessera::report
