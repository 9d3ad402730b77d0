#include "tessera/report/history.h"

#include <cerrno>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>

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

}  // namespace

std::string told_strays(const std::vector<int64_t>& strays) {
  constexpr size_t kNamed = 8;
  if (strays.empty()) return "";
  std::string text = strays.size() == 1 ? "skipped line " : "skipped lines ";
  for (size_t i = 0; i < strays.size() && i < kNamed; ++i) text += (i ? ", " : "") + std::to_string(strays[i]);
  if (strays.size() > kNamed) text += " and " + std::to_string(strays.size() - kNamed) + " more";
  return text + (strays.size() == 1 ? ", which is not an event of a run" : ", which are not events of a run");
}

History read_history(const std::filesystem::path& file, int64_t done) {
  History history;
  check_input(!std::filesystem::exists(file) || std::filesystem::is_regular_file(file), "train.metrics",
              file.string() + ": is no regular file", "remove it, or give another run.out");
  errno = 0;
  std::ifstream in(file, std::ios::binary);
  if (!in && errno == ENOENT) return history;
  bool beyond = false;
  int64_t number = 0;
  for (std::string line; std::getline(in, line);) {
    ++number;
    const bool whole = !in.eof();
    history.bytes += static_cast<int64_t>(line.size()) + (whole ? 1 : 0);
    if (beyond) continue;
    const AnyJson json = json_or_nothing(line);
    const bool event = is_event(json);
    // What a kill left half-written will come again; a whole line may have lost its newline alone.
    beyond = event ? json.at("step").get<int64_t>() > done : !whole;
    if (beyond) continue;
    history.kept = history.bytes;
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
