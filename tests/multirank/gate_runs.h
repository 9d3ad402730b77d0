#pragma once
// Short runs whose experts a learned gate chooses among, and what is read of them.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <set>
#include <utility>

#include "matrix.h"
#include "planned_memory.h"
#include "processes.h"
#include "program.h"
#include "tessera/base/mesh.h"
#include "tessera/checkpoint/safetensors.h"
#include "tessera/checkpoint/training.h"
#include "tessera/plan/deal.h"

namespace tessera::testing::gate_runs {

namespace fs = std::filesystem;
using Flags = std::vector<std::string>;

inline const TinyRun& gated() {
  static const TinyRun run("gate");
  return run;
}

inline Flags operator+(Flags a, const Flags& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

inline Flags gate_of(int experts) { return {"--experts.router", "gate", "--experts.count", std::to_string(experts)}; }

inline Result train(int ranks, const std::string& name, const Flags& more, int steps = 4) {
  Result r = gated().train(ranks, name, more + Flags{"--run.steps", std::to_string(steps)});
  EXPECT_EQ(r.code, 0) << name << "\n" << r.output;
  return r;
}

inline std::vector<int64_t> samples_of(const nlohmann::json& step) {
  std::vector<int64_t> samples;
  for (const auto& e : step["gate"]["experts"]) samples.push_back(e["samples"]);
  return samples;
}

/// The files of an exported expert, one after the other.
inline std::string weights(const std::string& run, int expert) {
  std::vector<fs::path> files;
  for (const auto& file : fs::directory_iterator(gated().out(run) + "/model/expert_" + std::to_string(expert)))
    files.push_back(file.path());
  std::sort(files.begin(), files.end());
  std::string all;
  for (const auto& file : files) all += text_of(file);
  return all;
}

struct Layout {
  const char* name;
  int ranks;
  Flags flags;
};

/// A run on one rank, which the layouts are held against.
inline const std::string& alone(bool hard) {
  static const std::string names[] = {"one-soft", "one"};
  static bool ran[2] = {};
  if (!std::exchange(ran[hard], true))
    train(1, names[hard], gate_of(3) + Flags{"--experts.hard", hard ? "true" : "false"});
  return names[hard];
}

inline nlohmann::json without_seconds(nlohmann::json gate) {
  gate.erase("deal_seconds");
  for (auto& e : gate["experts"]) e.erase("seconds");
  return gate;
}

/// Loss and everything of the gate, to the last digit.
inline std::vector<std::string> curve(const std::string& run) {
  std::vector<std::string> lines;
  for (const auto& step : gated().metrics(run))
    lines.push_back(step["loss"].dump() + " " + step["grad_norm"].dump() + " " + without_seconds(step["gate"]).dump());
  return lines;
}

}  // namespace tessera::testing::gate_runs
