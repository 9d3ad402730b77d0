#include "tessera/report/history.h"

#include <cerrno>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "tessera/base/check.h"
#include "tessera/base/json.h"

namespace tessera::report {

namespace {

using AnyJson = nlohmann::json;

/// Every event is an object with the number of a step and a type.
bool is_event(const AnyJson& json) {
  if (!json.is_object()) return false;
  const auto step = json.find("step"), type = json.find("type");
  return step != json.end() && step->is_number_integer() && type != json.end() && type->is_string();
}

void take(History& history, const AnyJson& event, int64_t done) {
  const int64_t step = event.at("step");
  const std::string type = event.at("type");
  if (type == "step" || type == "skip") history.last_step = std::max(history.last_step, step);
  if (step == done) history.at_done.insert(type);
  if (const auto sample = event.find("file");
      step == done && type == "sample" && sample != event.end() && sample->is_string())
    history.samples.insert(std::filesystem::path(sample->get<std::string>()).filename().string());
  if (const auto time = event.find("time"); type == "fault" && time != event.end() && time->is_number_integer())
    history.fault_times.insert(time->get<int64_t>());
}

/// The step of the first `step` or `skip` line that begins in [at, end), and where it begins; nothing: there is none.
std::optional<std::pair<int64_t, int64_t>> step_behind(std::ifstream& in, int64_t at, int64_t end) {
  in.clear();
  in.seekg(at);
  std::string line;
  if (at > 0) {  // into a line
    std::getline(in, line);
    at += static_cast<int64_t>(line.size()) + 1;
  }
  for (; at < end && std::getline(in, line); at += static_cast<int64_t>(line.size()) + 1) {
    const AnyJson json = json_or_nothing(line);
    if (!is_event(json)) continue;
    if (const std::string type = json.at("type"); type == "step" || type == "skip")
      return std::pair(json.at("step").get<int64_t>(), at);
  }
  return std::nullopt;
}

/// Where a step or skip line of `done` or before begins that is followed by at most kNear bytes of lines up to `done`; 0: at
/// the file's begin.
int64_t near_end_of(std::ifstream& in, int64_t bytes, int64_t done) {
  constexpr int64_t kNear = int64_t{1} << 20;
  int64_t begin = 0, end = bytes;
  while (end - begin > kNear) {
    const int64_t middle = begin + (end - begin) / 2;
    const auto found = step_behind(in, middle, end);
    if (found && found->first <= done)
      begin = found->second;
    else
      end = middle;
  }
  in.clear();
  in.seekg(begin);
  return begin;
}

}  // namespace

std::string told_strays(const std::vector<int64_t>& strays, int64_t begin) {
  constexpr size_t kNamed = 8;
  if (strays.empty()) return "";
  std::string text = strays.size() == 1 ? "skipped line " : "skipped lines ";
  for (size_t i = 0; i < strays.size() && i < kNamed; ++i) text += (i ? ", " : "") + std::to_string(strays[i]);
  if (strays.size() > kNamed) text += " and " + std::to_string(strays.size() - kNamed) + " more";
  if (begin > 0) text += " behind byte " + std::to_string(begin);
  return text + (strays.size() == 1 ? ", which is not an event of a run" : ", which are not events of a run");
}

History read_history(const std::filesystem::path& file, int64_t done) {
  History history;
  check_input(!std::filesystem::exists(file) || std::filesystem::is_regular_file(file), "train.metrics",
              file.string() + ": is no regular file", "remove it, or give another run.out");
  errno = 0;
  std::ifstream in(file, std::ios::binary);
  if (!in && errno == ENOENT) return history;
  in.seekg(0, std::ios::end);
  history.bytes = in.tellg();
  int64_t at = history.kept = history.begin = near_end_of(in, history.bytes, done);
  int64_t number = 0;
  for (std::string line; std::getline(in, line);) {
    ++number;
    const bool whole = !in.eof();
    at += static_cast<int64_t>(line.size()) + (whole ? 1 : 0);
    const AnyJson json = json_or_nothing(line);
    const bool event = is_event(json);
    // What a kill left half-written will come again; a whole line may have lost its newline alone.
    if (event ? json.at("step").get<int64_t>() > done : !whole) return history;
    history.kept = at;
    history.open_end = !whole;
    if (event)
      take(history, json, done);
    else
      history.strays.push_back(number);
  }
  if (!in.eof())
    throw UserError(Exit::disk, "train.metrics",
                    file.string() + ": the run's history cannot be read: " + std::strerror(errno ? errno : EIO),
                    "see to that file or its disk; nothing was changed");
  return history;
}

}  // namespace tessera::report
