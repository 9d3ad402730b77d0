// Chrome's trace event format: complete events ("X") in microseconds, a process for each rank, a thread for each lane.
#include <nlohmann/json.hpp>

#include "tessera/plan/schedule_json.h"
#include "tessera/planning/plan_view.h"

namespace tessera::planning {

namespace {

using AnyJson = nlohmann::json;

AnyJson event(const plan::Instruction& in, int process, double begin, double end) {
  AnyJson arguments = {{"bytes", in.bytes}};
  if (!in.group.empty()) arguments["group"] = in.group;
  return {{"ph", "X"},
          {"name", describe(in)},
          {"cat", plan::name(in.op)},
          {"pid", process},
          {"tid", static_cast<int>(in.lane)},
          {"ts", begin * 1e6},
          {"dur", (end - begin) * 1e6},
          {"args", arguments}};
}

void name_process(AnyJson& events, int process, const std::string& name, const std::vector<plan::Lane>& lanes) {
  events.push_back({{"ph", "M"}, {"name", "process_name"}, {"pid", process}, {"args", {{"name", name}}}});
  for (plan::Lane lane : lanes)
    events.push_back({{"ph", "M"},
                      {"name", "thread_name"},
                      {"pid", process},
                      {"tid", static_cast<int>(lane)},
                      {"args", {{"name", plan::name(lane)}}}});
}

std::vector<plan::Lane> all_lanes() {
  std::vector<plan::Lane> lanes;
  for (int l = 0; l < plan::kLaneCount; ++l) lanes.push_back(static_cast<plan::Lane>(l));
  return lanes;
}

}  // namespace

std::string describe(const plan::Instruction& in) {
  std::string text(plan::name(in.op));
  if (!in.name.empty()) text += " " + in.name;
  if (in.micro >= 0) text += ", micro " + std::to_string(in.micro);
  return text;
}

std::string plan_trace(const Planned& planned, const std::vector<std::string>& executed) {
  AnyJson events = AnyJson::array();
  constexpr int kExecuted = 1 << 20;  // process ids of executed ranks come after those of predicted ones
  for (const auto& group : planned.prediction.groups) {
    const std::string ranks = group.ranks > 1 ? " and " + std::to_string(group.ranks - 1) + " alike" : "";
    name_process(events, group.rank, "predicted: rank " + std::to_string(group.rank) + ranks, all_lanes());
    for (size_t i = 0; i < group.schedule.list.size(); ++i)
      events.push_back(event(group.schedule.list[i], group.rank, group.spans[i].begin, group.spans[i].end));
  }
  // The last step with times, to exclude warm-up.
  std::vector<plan::Line> lines;
  int64_t last = -1;
  for (const std::string& text : executed) {
    plan::Line line = plan::parse_line(text);
    const int64_t end = planned.run.last_step > 0 ? planned.run.last_step : planned.run.steps;
    // each stage has its own plan
    const bool of_this_part = line.step >= planned.run.first_step && line.step <= end;
    if (!line.executed || !line.phase.starts_with("train") || !of_this_part) continue;
    last = std::max(last, line.step);
    lines.push_back(std::move(line));
  }
  std::map<int, double> start;  // start of each rank's step
  for (const plan::Line& line : lines) {
    if (line.step != last) continue;
    const auto [it, is_new] = start.emplace(line.rank, line.t0);
    if (is_new)
      name_process(events, kExecuted + line.rank,
                   "measured: rank " + std::to_string(line.rank) + ", step " + std::to_string(last), all_lanes());
    else
      it->second = std::min(it->second, line.t0);
  }
  for (const plan::Line& line : lines)
    if (line.step == last)
      events.push_back(event(line.in, kExecuted + line.rank, line.t0 - start[line.rank], line.t1 - start[line.rank]));
  return AnyJson{{"traceEvents", events}, {"displayTimeUnit", "ms"}}.dump();
}

}  // namespace tessera::planning
