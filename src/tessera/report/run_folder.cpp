#include "tessera/report/run_folder.h"

#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#define TOML_ENABLE_FORMATTERS 0
#include <toml++/toml.h>

#include "tessera/base/check.h"
#include "tessera/base/units.h"

namespace tessera::report {

namespace fs = std::filesystem;
using AnyJson = nlohmann::json;

namespace {

/// A number that may be null (NaN) or missing.
double number(const AnyJson& json, const char* key) {
  const auto it = json.find(key);
  return it != json.end() && it->is_number() ? it->get<double>() : NAN;
}

std::string text(const AnyJson& json, const char* key) {
  const auto it = json.find(key);
  return it != json.end() && it->is_string() ? it->get<std::string>() : "";
}

std::string mesh_text(const AnyJson& mesh) {
  std::string out;
  for (const char* axis : {"pp", "dp_replicate", "dp_shard", "cp", "sp", "tp"})
    if (const int size = mesh.value(axis, 1); size > 1)
      out += (out.empty() ? "" : ", ") + std::string(axis) + " " + std::to_string(size);
  return out.empty() ? "one rank" : out;
}

RunEvent read_event(const AnyJson& json) {
  RunEvent event{json.value("step", int64_t{0}), text(json, "type"), "", "", text(json, "prompt"), std::nullopt};
  event.file = text(json, event.type == "checkpoint" ? "folder" : "file");
  if (const double psnr = number(json, "psnr"); std::isfinite(psnr)) event.psnr = psnr;
  if (event.type == "checkpoint") {
    const double seconds = number(json, "seconds");
    event.text = event.file + (std::isfinite(seconds) ? " in " + format_seconds(seconds) : "");
  } else if (event.type == "sample") {
    char db[32] = "";
    if (event.psnr) std::snprintf(db, sizeof db, "  %.1f dB", *event.psnr);
    event.text = event.file + db;
  } else if (event.type == "resume" && json.contains("text")) {
    event.text = text(json, "text");
  } else {  // skip, fault, stage, and what a later version adds: its texts
    for (const auto& [key, value] : json.items())
      if (key != "type" && key != "step")
        event.text += (event.text.empty() ? "" : ", ") +
                      (value.is_string() ? value.get<std::string>() : key + " " + value.dump());
  }
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
  if (std::ifstream in(folder_ / "recipe.toml"); in) {
    // Another version may have written it, or be writing it: only what is needed is read, and nothing is refused.
    try {
      const toml::table recipe = toml::parse(in);
      facts_.steps = recipe["run"]["steps"].value_or(int64_t{0});
      facts_.global_batch = recipe["train"]["global_batch"].value_or(int64_t{0});
    } catch (const toml::parse_error&) {
    }
  }
  std::ifstream in(folder_ / "plan.json");
  const AnyJson plan = AnyJson::parse(in, nullptr, false);
  if (!plan.is_object()) return;
  facts_.plan = text(plan, "summary");
  if (const auto mesh = plan.find("mesh"); mesh != plan.end() && mesh->is_object()) facts_.mesh = mesh_text(*mesh);
  if (const auto model = plan.find("model"); model != plan.end() && model->is_object()) {
    facts_.model = text(*model, "name");
    facts_.parameters = model->value("parameters", int64_t{0});
    facts_.tokens = model->value("tokens", int64_t{0});
  }
  if (const auto device = plan.find("device"); device != plan.end() && device->is_object())
    facts_.predicted_peak = device->value("peak_bytes", int64_t{0});
  if (const auto step = plan.find("step_seconds"); step != plan.end() && step->is_object()) {
    facts_.predicted_seconds = step->value("total", 0.0);
    facts_.predicted_waits = {step->value("exposed_comm", 0.0), step->value("exposed_copy", 0.0),
                              step->value("bubble", 0.0)};
  }
}

void RunFolder::restart() {
  steps_.clear();
  ranks_.clear();
  events_.clear();
  compression_ = {};
  waited_.clear();
  waited_steps_ = 0;
  last_line_.clear();
  last_step_ = offset_ = 0;
  read_facts();
}

bool RunFolder::poll() {
  std::ifstream in(folder_ / "metrics.jsonl", std::ios::binary);
  if (!in) return false;
  if (!last_line_.empty()) {
    std::string there(last_line_.size(), '\0');
    in.seekg(offset_ - 1 - static_cast<int64_t>(there.size()));
    if (!in.read(there.data(), static_cast<std::streamsize>(there.size())) || there != last_line_) restart();
    in.clear();
  }
  in.seekg(offset_);
  std::ostringstream more;
  more << in.rdbuf();
  const std::string added = more.str();
  size_t begin = 0;
  for (size_t end; (end = added.find('\n', begin)) != std::string::npos; begin = end + 1) {
    last_line_ = added.substr(begin, end - begin);
    take_line(last_line_);
  }
  offset_ += static_cast<int64_t>(begin);  // a line without its end is still being written
  return begin > 0;
}

void RunFolder::take_line(const std::string& line) {
  const AnyJson json = AnyJson::parse(line, nullptr, false);
  if (!json.is_object()) return;
  const bool step = text(json, "type") == "step";
  last_step_ = std::max(last_step_, step || text(json, "type") == "skip" ? json.value("step", int64_t{0}) : 0);
  if (!step) {
    events_.push_back(read_event(json));
    return;
  }
  StepMetrics m;
  m.step = json.value("step", int64_t{0});
  m.loss = number(json, "loss");
  m.grad_norm = number(json, "grad_norm");
  m.lr = number(json, "lr");
  m.seconds = number(json, "seconds");
  m.samples = json.value("samples", int64_t{0});
  m.tokens = json.value("tokens", int64_t{0});
  if (const double mfu = number(json, "mfu"); std::isfinite(mfu)) m.mfu = mfu;
  m.expert = text(json, "expert");
  m.expert_step = json.value("expert_step", int64_t{0});
  m.moved = {json.value("moved_bytes", int64_t{0}), json.value("moved_seconds", 0.0), json.value("moved_waited", 0.0)};
  if (const auto gate = json.find("gate"); gate != json.end() && gate->is_object()) {
    m.gate.emplace();
    m.gate->balance_loss = number(*gate, "balance_loss");
    m.gate->entropy = number(*gate, "entropy");
    m.gate->temperature = number(*gate, "temperature");
    m.gate->grad_norm = number(*gate, "grad_norm");
    for (const AnyJson& e : gate->value("experts", AnyJson::array()))
      m.gate->experts.push_back({e.value("samples", int64_t{0}), number(e, "probability"), number(e, "grad_norm"),
                                 e.value("updates", int64_t{0})});
  }
  steps_.push_back(std::move(m));
  if (const auto ranks = json.find("ranks"); ranks != json.end() && ranks->is_array()) {
    ranks_.clear();
    // A line tells of the step before it, and the first one warms up.
    const bool counts = steps_.size() > 2;
    waited_steps_ += counts;
    for (const AnyJson& rank : *ranks) {
      ranks_.push_back(read_rank(rank));
      if (counts) {
        RankMetrics::Exposed& sum = waited_[ranks_.back().rank];
        const RankMetrics::Exposed& here = ranks_.back().exposed;
        sum.comm += here.comm, sum.copy += here.copy, sum.stages += here.stages;
      }
      if (const auto& error = ranks_.back().compression_error) {
        compression_.sum_of_means += error->mean, ++compression_.count;
        compression_.most = std::max(compression_.most, error->most);
      }
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
  for (const auto& [rank, sum] : waited_)
    waits.push_back({rank, {sum.comm / steps, sum.copy / steps, sum.stages / steps}});
  return waits;
}

std::optional<RankMetrics::CompressionError> RunFolder::compression_error() const {
  if (compression_.count == 0) return std::nullopt;
  return RankMetrics::CompressionError{compression_.sum_of_means / static_cast<double>(compression_.count),
                                       compression_.most};
}

std::optional<std::chrono::duration<double>> RunFolder::quiet() const {
  std::error_code error;
  const auto written = fs::last_write_time(folder_ / "metrics.jsonl", error);
  if (error) return std::nullopt;
  return fs::file_time_type::clock::now() - written;
}

}  // namespace tessera::report
