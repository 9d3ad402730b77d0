#include <cmath>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "commands.h"
#include "tessera/base/text.h"
#include "tessera/base/units.h"
#include "tessera/checkpoint/file.h"
#include "tessera/plan/search/scenario.h"
#include "tessera/planning/plan_view.h"

namespace tessera::apps {

namespace {

std::string print(const char* format, auto... values) {
  char text[96];
  std::snprintf(text, sizeof text, format, values...);
  return text;
}

std::string number(double value) { return print(value < 10 ? "%.2f" : value < 1000 ? "%.1f" : "%.0f", value); }

std::string row(const plan::Scenario& s, const plan::ScenarioResult& r) {
  const plan::StepSeconds& step = r.prediction.step;
  std::string text =
      "| " + s.name + " | " + std::to_string(r.plan.mesh.world()) + " x " + s.machine.profile.name + " | ";
  const auto compared = plan::compare(s, r);
  text += compared ? number(compared->published) + " " + compared->unit + " | " + number(compared->ours) + " | " +
                         print("%+.0f %%", 100 * compared->error())
                   : "| " + number(r.tokens_per_gpu) + " tokens/s a GPU | ";
  text += " | " + format_seconds(step.total) + " | " + print("%.1f", 100 * step.exposed_comm / step.total) + " | " +
          print("%.0f", r.teraflops) + " | " + (s.frozen ? "-" : format_bytes(r.memory.peak)) + " |\n";
  return text;
}

nlohmann::ordered_json json_of(const plan::Scenario& s, const plan::ScenarioResult& r) {
  return {{"name", s.name},
          {"profile", s.machine.profile.name},
          {"gpus", r.plan.mesh.world()},
          {"mesh", r.plan.mesh.to_string()},
          {"layouts_tried", r.layouts},
          {"plan", r.plan.summary()},
          {"fits", r.fits},
          {"tokens", s.tokens},
          {"global_batch", s.global_batch},
          {"parameters", r.model.numel()},
          {"step_seconds", planning::seconds_json(r.prediction.step)},
          {"tokens_per_gpu", r.tokens_per_gpu},
          {"teraflops_per_gpu", r.teraflops},
          {"peak_bytes", r.memory.peak}};
}

int print_json(const std::vector<plan::Scenario>& scenarios) {
  auto list = nlohmann::ordered_json::array();
  for (const auto& s : scenarios) list.push_back(json_of(s, plan::run(s)));
  std::printf("%s\n", list.dump(2).c_str());
  return 0;
}

int run_simulate(const Arguments& arguments) {
  const std::string& file = arguments.only_word("file of runs");
  const auto scenarios = plan::parse_scenarios(checkpoint::read_text(file), file);
  if (arguments.has("--json")) return print_json(scenarios);
  std::printf(
      "| run | GPUs | published | simulated | time off by | step | exposed comm %% | TFLOP/s a GPU | peak a rank |\n");
  std::printf("|---|---|---|---|---|---|---|---|---|\n");
  for (const auto& s : scenarios) std::fputs(row(s, plan::run(s)).c_str(), stdout);
  for (const auto& s : scenarios) {
    std::printf("\n- **%s**: %s", printable(s.name).c_str(), printable(s.source).c_str());
    if (!s.note.empty()) std::printf(" %s", printable(s.note).c_str());
  }
  std::printf("\n");
  return 0;
}

}  // namespace

Command simulate_command() {
  Command c;
  c.name = "simulate";
  c.summary =
      "Predicts step times of runs that a file describes by their sizes.\nIt prints published numbers beside them and can look for a layout.";
  c.usage = "simulate FILE [--json]";
  c.flags = {{"--json", "", "print JSON: layout, plan, seconds by kind, memory"}};
  c.example = "tessera simulate bench/published.toml";
  c.run = run_simulate;
  return c;
}

}  // namespace tessera::apps
