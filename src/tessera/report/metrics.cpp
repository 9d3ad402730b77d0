#include "tessera/report/metrics.h"

#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>
#include <algorithm>
#include <cerrno>
#include <cmath>
#include <csignal>
#include <cstring>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>
#include <vector>

#include "tessera/base/check.h"
#include "tessera/base/log.h"
#include "tessera/checkpoint/in_place.h"

extern char** environ;

namespace tessera::report {

namespace {

constexpr int kPipeBytes = 1 << 20;  // what the system gives to anyone: some hundred steps of a few ranks

/// The variables of this process and the run's folder.
struct Environment {
  std::string run;
  std::vector<char*> all;
  explicit Environment(const std::filesystem::path& folder) : run("TESSERA_RUN=" + folder.string()) {
    for (char** entry = environ; *entry; ++entry) {
      const std::string_view variable(*entry);
      // A launched rank's own, the secret of its rendezvous among them, are no matter of the command's.
      if (variable.starts_with("TESSERA_TOKEN=") || variable.starts_with("TESSERA_STORE=") ||
          variable.starts_with("TESSERA_STATUS=") || variable.starts_with("TESSERA_RUN="))
        continue;
      all.push_back(*entry);
    }
    all.push_back(run.data());
    all.push_back(nullptr);
  }
};

/// The process of `sh -c command` that reads from `input`; -1 and errno where there is none.
pid_t spawn(const std::string& command, int input, const std::filesystem::path& run) {
  posix_spawn_file_actions_t files;
  posix_spawnattr_t attributes;
  posix_spawn_file_actions_init(&files);
  posix_spawnattr_init(&attributes);
  posix_spawn_file_actions_adddup2(&files, input, STDIN_FILENO);
  posix_spawn_file_actions_addclosefrom_np(&files, STDERR_FILENO + 1);  // locks of the run's folder, sockets, devices
  sigset_t none, usual;
  sigemptyset(&none);
  sigfillset(&usual);
  posix_spawnattr_setsigmask(&attributes, &none);
  posix_spawnattr_setsigdefault(&attributes, &usual);
  posix_spawnattr_setpgroup(&attributes, 0);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETPGROUP);
  const char* const words[] = {"sh", "-c", command.c_str(), nullptr};
  Environment environment(run);
  pid_t process = -1;
  const int error =
      posix_spawn(&process, "/bin/sh", &files, &attributes, const_cast<char* const*>(words), environment.all.data());
  posix_spawn_file_actions_destroy(&files);
  posix_spawnattr_destroy(&attributes);
  errno = error;
  return error == 0 ? process : -1;
}

/// How a process ended, if it has.
std::string end_of(pid_t process) {
  int status = 0;
  if (process < 0 || ::waitpid(process, &status, WNOHANG) != process) return "the command reads no more";
  if (WIFSIGNALED(status)) return "the command was ended by signal " + std::to_string(WTERMSIG(status));
  return "the command ended with code " + std::to_string(WEXITSTATUS(status));
}

}  // namespace

EventHook::EventHook(const std::string& command, const std::filesystem::path& run) {
  if (command.empty()) return;
  std::signal(SIGPIPE, SIG_IGN);  // a command that has ended is an error of the write
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) {
    explain(std::string("no pipe: ") + std::strerror(errno));
    return;
  }
  ::fcntl(ends[1], F_SETPIPE_SZ, kPipeBytes);  // else it has the usual 64 KiB
  ::fcntl(ends[1], F_SETFL, O_NONBLOCK);
  process_ = spawn(command, ends[0], run);
  const int error = errno;
  ::close(ends[0]);
  if (process_ < 0) {
    ::close(ends[1]);
    explain(std::string("/bin/sh cannot be started: ") + std::strerror(error));
    return;
  }
  pipe_ = ends[1];
}

EventHook::~EventHook() { close_pipe(); }

void EventHook::close_pipe() {
  if (pipe_ >= 0) ::close(pipe_);
  pipe_ = -1;
}

/// Bytes that the pipe took; -1 where nobody reads them.
ssize_t EventHook::push(std::string_view bytes) const {
  size_t done = 0;
  while (done < bytes.size()) {
    const ssize_t put = ::write(pipe_, bytes.data() + done, bytes.size() - done);
    if (put < 0 && errno == EAGAIN) break;
    if (put < 0 && errno != EINTR) return -1;
    done += put < 0 ? 0 : static_cast<size_t>(put);
  }
  return static_cast<ssize_t>(done);
}

void EventHook::tell(std::string_view line) {
  if (pipe_ < 0 && why_.empty()) return;  // there is no command
  ++told_;
  if (pipe_ < 0) return lose(why_);
  ssize_t put = push(rest_);
  if (put >= 0) {
    rest_.erase(0, static_cast<size_t>(put));
    put = rest_.empty() ? push(line) : 0;
  }
  if (put > 0)
    rest_ = line.substr(static_cast<size_t>(put));  // begun: the rest follows, before the next
  else if (put == 0)
    lose("the command reads more slowly than the run writes");
  else {
    close_pipe();
    lose(end_of(process_));
  }
}

void EventHook::lose(const std::string& why) {
  ++lost_;
  explain(why);
}

void EventHook::explain(const std::string& why) {
  if (!why_.empty()) return;
  why_ = why;
  log::warn("run.on_event: events are lost, " + why + "; the run goes on");
}

std::string EventHook::losses() const {
  if (lost_ == 0 || told_ == 0) return "";
  return "run.on_event: " + std::to_string(lost_) + " of " + std::to_string(told_) + " events were lost: " + why_;
}

}  // namespace tessera::report

namespace tessera::report {

namespace {

using Json = nlohmann::ordered_json;

/// JSON has no NaN: it becomes null. 17 digits give the same double back.
std::string exact(double value) {
  if (!std::isfinite(value)) return "null";
  char text[40];
  std::snprintf(text, sizeof text, "%.17g", value);
  return text;
}

/// Names of files and prompts may be any bytes: what is no UTF-8 is shown as such.
std::string text_of(const Json& json) { return json.dump(-1, ' ', false, Json::error_handler_t::replace); }

using Bytes = RankMetrics::Bytes;
constexpr std::pair<const char*, int64_t Bytes::*> kParts[] = {{"parameters", &Bytes::parameters},
                                                               {"gradients", &Bytes::gradients},
                                                               {"states", &Bytes::states},
                                                               {"slots", &Bytes::slots},
                                                               {"activations", &Bytes::activations},
                                                               {"temporaries", &Bytes::temporaries},
                                                               {"host", &Bytes::host}};

Json rank_json(const RankMetrics& m) {
  Json bytes = Json::object();
  for (const auto& [part, field] : kParts) bytes[part] = m.bytes.*field;
  Json exposed = Json::object();
  for (const auto& [what, field] : kExposed) exposed[what] = m.exposed.*field;
  Json json = {{"rank", m.rank},
               {"bytes", bytes},
               {"peak_bytes", m.peak_bytes},
               {"persistent_bytes", m.persistent_bytes},
               {"predicted_peak_bytes", m.predicted_peak_bytes},
               {"reserved_bytes", m.reserved_bytes},
               {"samples_bytes", m.samples_bytes},
               {"sent_bytes", m.sent_bytes},
               {"busy", m.busy},
               {"utilisation", m.utilisation},
               {"model_flops", m.model_flops},
               {"exposed", exposed},
               {"sample_seconds", m.sample_seconds}};
  if (m.mfu) json["mfu"] = *m.mfu;
  if (m.driver)
    json["driver"] = {
        {"utilisation", m.driver->utilisation}, {"watts", m.driver->watts}, {"memory_bytes", m.driver->memory_bytes}};
  if (m.compression_error)
    json["compression_error"] = {{"mean", m.compression_error->mean}, {"max", m.compression_error->most}};
  return json;
}

}  // namespace

std::vector<Spread> spreads(const std::vector<RankMetrics>& ranks) {
  std::vector<std::pair<std::string, std::vector<double>>> fields;
  std::map<std::string, size_t> places;
  const auto add = [&](const std::string& field, const Json& value) {
    const auto [place, added] = places.try_emplace(field, fields.size());
    if (added) fields.emplace_back(field, std::vector<double>());
    fields[place->second].second.push_back(value.get<double>());
  };
  for (const RankMetrics& rank : ranks) {
    const Json entry = rank_json(rank);
    for (const auto& [field, value] : entry.items()) {
      if (value.is_number() && field != "rank") add(field, value);
      if (value.is_object())
        for (const auto& [inner, number] : value.items()) add(field + "." + inner, number);
    }
  }
  std::vector<Spread> all;
  for (auto& [field, values] : fields) {
    std::ranges::sort(values);
    all.push_back({field, values.front(), values[values.size() / 2], values.back()});
  }
  return all;
}

namespace {

/// A count of bytes without a point.
std::string as_counted(double value) {
  constexpr double kWhole = 9007199254740992;  // 2^53
  return std::trunc(value) == value && std::abs(value) < kWhole ? std::to_string(static_cast<int64_t>(value))
                                                                : exact(value);
}

/// ,"ranks":[...] and, of many, "world" and "ranks_summary".
std::string rank_fields(const StepMetrics& m) {
  std::set<size_t> shown;
  const bool many = m.ranks.size() > kMostRanks;
  if (many && m.step % kAllRanksEvery != 0) {
    const auto most = [&](const auto& of) {
      return static_cast<size_t>(std::ranges::max_element(m.ranks, {}, of) - m.ranks.begin());
    };
    shown = {0, most(&RankMetrics::sample_seconds), most(&RankMetrics::peak_bytes)};
  } else {
    for (size_t r = 0; r < m.ranks.size(); ++r) shown.insert(r);
  }
  Json rows = Json::array();
  for (const size_t r : shown) rows.push_back(rank_json(m.ranks[r]));
  std::string text = ",\"ranks\":" + text_of(rows);
  if (!many) return text;
  text += ",\"world\":" + std::to_string(m.ranks.size()) + ",\"ranks_summary\":{";
  bool first = true;
  for (const Spread& s : spreads(m.ranks)) {
    text += std::string(std::exchange(first, false) ? "" : ",") + "\"" + s.field +
            "\":{\"min\":" + as_counted(s.least) + ",\"median\":" + as_counted(s.median) +
            ",\"max\":" + as_counted(s.most) + "}";
  }
  return text + "}";
}

}  // namespace

void StepMetrics::count_mfu(double peak_flops_of_a_rank) {
  if (seconds <= 0 || ranks.empty()) return;
  peak_flops = peak_flops_of_a_rank;
  double sum = 0;
  for (RankMetrics& r : ranks) sum += *(r.mfu = r.model_flops / (seconds * *peak_flops));
  mfu = sum / static_cast<double>(ranks.size());
}

std::vector<std::pair<std::string, int64_t>> named_parts(const Bytes& bytes) {
  std::vector<std::pair<std::string, int64_t>> named;
  for (const auto& [part, field] : kParts) named.emplace_back(part, bytes.*field);
  return named;
}

std::string format_flops(double per_second) {
  const char* unit = per_second >= 1e12 ? "TFLOP/s" : "GFLOP/s";
  const double value = per_second / (per_second >= 1e12 ? 1e12 : 1e9);
  char text[48];
  std::snprintf(text, sizeof text, value >= 100 ? "%.0f %s" : "%.1f %s", value, unit);
  return text;
}

RankMetrics read_rank(const JsonFields& in) {
  RankMetrics m;
  m.rank = static_cast<int>(in.whole("rank"));
  const JsonFields bytes = in.object("bytes"), exposed = in.object("exposed");
  for (const auto& [part, field] : kParts) m.bytes.*field = bytes.whole(part);
  m.peak_bytes = in.whole("peak_bytes");
  m.persistent_bytes = in.whole("persistent_bytes");
  m.predicted_peak_bytes = in.whole("predicted_peak_bytes");
  m.reserved_bytes = in.whole("reserved_bytes");
  m.samples_bytes = in.whole("samples_bytes");
  m.sent_bytes = in.object("sent_bytes").wholes();
  m.busy = in.object("busy").reals();
  m.utilisation = in.object("utilisation").reals();
  m.model_flops = in.real("model_flops");
  if (in.has("mfu")) m.mfu = in.real("mfu");
  for (const auto& [what, field] : kExposed) m.exposed.*field = exposed.real(what);
  m.sample_seconds = in.real("sample_seconds");
  if (in.has("driver")) {
    const JsonFields driver = in.object("driver");
    m.driver = {driver.real("utilisation"), driver.real("watts"), driver.whole("memory_bytes")};
  }
  if (in.has("compression_error")) {
    const JsonFields error = in.object("compression_error");
    m.compression_error = {error.real("mean"), error.real("max")};
  }
  return m;
}

MetricsWriter::MetricsWriter(const std::filesystem::path& file, int64_t done, const std::string& on_event)
    : path_(file), found_(read_history(file, done)), hook_(on_event, file.parent_path()) {
  fd_ = checkpoint::open_in_place(file, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC);
  if (found_.kept < found_.bytes && ::ftruncate(fd_, found_.kept) != 0) fail("cannot be cut back");
  if (found_.open_end) write("");
}

MetricsWriter::~MetricsWriter() {
  if (fd_ >= 0) ::close(fd_);
}

void MetricsWriter::fail(const std::string& act) const {
  const checkpoint::WriteFailure failure = checkpoint::write_failure(errno, path_);
  throw UserError(Exit::disk, "train.metrics", path_.string() + ": " + act + ": " + failure.what,
                  failure.hint + "; the run resumes from its last complete checkpoint");
}

void MetricsWriter::write(std::string line) {
  line += '\n';
  for (size_t done = 0; done < line.size();) {
    const ssize_t put = ::write(fd_, line.data() + done, line.size() - done);
    if (put < 0 && errno == EINTR) continue;
    if (put < 0) fail("a write failed");
    done += static_cast<size_t>(put);
  }
  if (line.size() > 1) hook_.tell(line);
}

void MetricsWriter::flush() {
  if (::fdatasync(fd_) != 0 && errno != EINVAL) fail("cannot be flushed");  // EINVAL: nothing to flush
}

namespace {

/// ,"expert":"high_noise","expert_step":7 and, in a step after a swap, the bytes moved; nothing without experts.
std::string expert_fields(const StepMetrics& m) {
  if (m.expert.empty()) return "";
  std::string text = ",\"expert\":" + text_of(Json(m.expert)) + ",\"expert_step\":" + std::to_string(m.expert_step);
  if (m.moved.bytes > 0)
    text += ",\"moved_bytes\":" + std::to_string(m.moved.bytes) + ",\"moved_seconds\":" + exact(m.moved.seconds) +
            ",\"moved_waited\":" + exact(m.moved.waited);
  return text;
}

/// ,"loss_by_timestep":[{"loss":..,"count":..}, ...]; a bin without samples has no loss.
std::string bin_fields(const std::vector<StepMetrics::Bin>& bins) {
  if (bins.empty()) return "";
  std::string text;
  for (const StepMetrics::Bin& bin : bins)
    text += (text.empty() ? "" : ",") + std::string("{") +
            (bin.count > 0 ? "\"loss\":" + exact(bin.loss) + "," : std::string()) +
            "\"count\":" + std::to_string(bin.count) + "}";
  return ",\"loss_by_timestep\":[" + text + "]";
}

/// ,"sets":[{"set":"clips","loss":..,"samples":..}, ...]; one without samples has no loss.
std::string set_fields(const std::vector<std::pair<std::string, StepMetrics::Bin>>& sets) {
  if (sets.empty()) return "";
  std::string text;
  for (const auto& [name, own] : sets)
    text += (text.empty() ? "" : ",") + std::string("{\"set\":") + text_of(Json(name)) +
            (own.count > 0 ? ",\"loss\":" + exact(own.loss) : std::string()) +
            ",\"samples\":" + std::to_string(own.count) + "}";
  return ",\"sets\":[" + text + "]";
}

/// ,"preserved":{"loss":..,"samples":..} of the twins.
std::string preserved_fields(const std::optional<StepMetrics::Bin>& twins) {
  if (!twins) return "";
  return ",\"preserved\":{" + (twins->count > 0 ? "\"loss\":" + exact(twins->loss) + "," : std::string()) +
         "\"samples\":" + std::to_string(twins->count) + "}";
}

/// ,"fp8":[{"unit":"blocks.0","zeros":..,"clipped":..,"gradient_zeros":..,"gradient_clipped":..}, ...]
std::string fp8_fields(const std::vector<StepMetrics::EightBits>& units) {
  if (units.empty()) return "";
  std::string text;
  for (const StepMetrics::EightBits& of : units)
    text += (text.empty() ? "" : ",") + std::string("{\"unit\":") + text_of(Json(of.unit)) +
            ",\"zeros\":" + exact(of.operands.zeros) + ",\"clipped\":" + exact(of.operands.clipped) +
            ",\"gradient_zeros\":" + exact(of.gradients.zeros) +
            ",\"gradient_clipped\":" + exact(of.gradients.clipped) + "}";
  return ",\"fp8\":[" + text + "]";
}

std::string gate_fields(const std::optional<StepMetrics::Gate>& gate) {
  if (!gate) return "";
  std::string text;
  for (const StepMetrics::Chosen& e : gate->experts) {
    std::string bins;
    for (const int64_t count : e.by_timestep)
      bins += (bins.empty() ? "" : ",") + std::string("{\"count\":") + std::to_string(count) + "}";
    text += (text.empty() ? "" : ",") + std::string("{\"samples\":") + std::to_string(e.samples) +
            ",\"probability\":" + exact(e.probability) + ",\"grad_norm\":" + exact(e.grad_norm) +
            ",\"updates\":" + std::to_string(e.updates) + ",\"seconds\":" + exact(e.seconds) +
            ",\"micro_batch\":" + std::to_string(e.micro_batch) + ",\"by_timestep\":[" + bins + "]}";
  }
  return ",\"gate\":{\"experts\":[" + text + "],\"balance_loss\":" + exact(gate->balance_loss) +
         ",\"entropy\":" + exact(gate->entropy) + ",\"temperature\":" + exact(gate->temperature) +
         ",\"grad_norm\":" + exact(gate->grad_norm) + ",\"idle_share\":" + exact(gate->idle) +
         ",\"undealt_idle_share\":" + exact(gate->undealt_idle) + ",\"dummy_share\":" + exact(gate->dummies) +
         ",\"moved_samples\":" + std::to_string(gate->moved) + ",\"deal_seconds\":" + exact(gate->seconds) + "}";
}

}  // namespace

void MetricsWriter::step(const StepMetrics& m) {
  write("{\"type\":\"step\",\"step\":" + std::to_string(m.step) + ",\"loss\":" + exact(m.loss) +
        ",\"grad_norm\":" + exact(m.grad_norm) + ",\"lr\":" + exact(m.lr) + ",\"seconds\":" + exact(m.seconds) +
        ",\"samples\":" + std::to_string(m.samples) + ",\"tokens\":" + std::to_string(m.tokens) +
        (m.plan_hash.empty() ? "" : ",\"plan_hash\":\"" + m.plan_hash + "\"") +
        (m.loss_scale ? ",\"loss_scale\":" + exact(*m.loss_scale) : "") + (m.d ? ",\"d\":" + exact(*m.d) : "") +
        (m.mfu ? ",\"mfu\":" + exact(*m.mfu) : "") + (m.peak_flops ? ",\"peak_flops\":" + exact(*m.peak_flops) : "") +
        bin_fields(m.by_timestep) + set_fields(m.by_set) + preserved_fields(m.preserved) + expert_fields(m) +
        gate_fields(m.gate) + fp8_fields(m.fp8) + rank_fields(m) + "}");
}

void MetricsWriter::eval(const EvalMetrics& m) {
  const auto points = [](const char* name, const char* at, const std::vector<std::pair<double, double>>& list) {
    std::string text;
    for (const auto& [where, loss] : list)
      text +=
          (text.empty() ? "" : ",") + std::string("{\"") + at + "\":" + exact(where) + ",\"loss\":" + exact(loss) + "}";
    return list.empty() ? "" : std::string(",\"") + name + "\":[" + text + "]";
  };
  write("{\"type\":\"eval\",\"step\":" + std::to_string(m.step) + ",\"set\":" + text_of(Json(m.set)) +
        ",\"loss\":" + exact(m.loss) + ",\"samples\":" + std::to_string(m.samples) +
        points("by_timestep", "sigma", m.by_timestep) + points("by_sigma", "sigma", m.by_sigma) + "}");
}

void MetricsWriter::skip(int64_t step, const std::string& why, std::optional<double> loss_scale) {
  Json json = {{"type", "skip"}, {"step", step}, {"why", why}};
  if (loss_scale) json["loss_scale"] = *loss_scale;
  write(text_of(json));
}

void MetricsWriter::sample(int64_t step, const std::string& file, const std::string& prompt, std::optional<double> psnr,
                           std::optional<double> audio_effect) {
  Json json = {{"type", "sample"}, {"step", step}, {"file", file}, {"prompt", prompt}};
  if (psnr) json["psnr"] = *psnr;
  if (audio_effect) json["audio_effect"] = *audio_effect;
  write(text_of(json));
}

void MetricsWriter::checkpoint(int64_t step, const std::string& folder, std::optional<double> seconds) {
  Json json = {{"type", "checkpoint"}, {"step", step}, {"folder", folder}};
  if (seconds) json["seconds"] = *seconds;
  write(text_of(json));
}

void MetricsWriter::fault(int64_t step, const std::string& kind, const std::string& text, int rank,
                          const std::vector<int64_t>& shares) {
  Json json = {{"type", "fault"}, {"step", step}, {"kind", kind}, {"text", text}};
  if (rank >= 0) json["rank"] = rank;
  if (!shares.empty()) json["shares"] = shares;
  write(text_of(json));
}

void MetricsWriter::restart(int64_t step, const std::string& text, int64_t time) {
  write(text_of(Json{{"type", "fault"}, {"step", step}, {"kind", "restart"}, {"text", text}, {"time", time}}));
}

void MetricsWriter::base(const std::string& form, double error, double worst, const std::string& worst_linear) {
  write(text_of(Json{{"type", "base"},
                     {"step", 0},
                     {"form", form},
                     {"error", error},
                     {"worst", worst},
                     {"worst_linear", worst_linear}}));
}

void MetricsWriter::start(int64_t step, const std::string& text, const std::vector<Phases>& ranks) {
  Json rows = Json::array();
  for (const Phases& phases : ranks) {
    Json row = {{"rank", rows.size()}, {"seconds", 0.0}, {"phases", Json::object()}};
    double seconds = 0;
    for (const auto& [what, took] : phases) row["phases"][what] = took, seconds += took;
    row["seconds"] = seconds;
    rows.push_back(std::move(row));
  }
  write(text_of(Json{{"type", "start"}, {"step", step}, {"text", text}, {"ranks", rows}}));
}

void MetricsWriter::resume(int64_t step, const std::string& from) {
  write(text_of(Json{{"type", "resume"}, {"step", step}, {"from", from}}));
}

void MetricsWriter::stop(int64_t step, const std::string& text) {
  write(text_of(Json{{"type", "stop"}, {"step", step}, {"text", text}}));
}

void MetricsWriter::change(int64_t step, const std::string& key, const std::string& before, const std::string& now,
                           const std::string& text) {
  write(text_of(
      Json{{"type", "resume"}, {"step", step}, {"key", key}, {"before", before}, {"now", now}, {"text", text}}));
}

void MetricsWriter::warning(int64_t step, const std::string& what, const std::string& text) {
  write(text_of(Json{{"type", "warning"}, {"step", step}, {"what", what}, {"text", text}}));
}

void MetricsWriter::stage(int64_t step, int number, const std::string& changes, const std::string& plan) {
  write(text_of(Json{{"type", "stage"}, {"step", step}, {"stage", number}, {"changes", changes}, {"plan", plan}}));
}

}  // namespace tessera::report
