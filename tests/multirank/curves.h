#pragma once
// The curve of a run, for tests that hold two programs or two tables of kernels against each other.
//
//   EXPECT_EQ(curve_of(run, "cpu"), curve_of(run, "device"));
#include <gtest/gtest.h>

#include <array>

#include "program.h"

namespace tessera::testing {

using Curve = std::vector<std::array<double, 2>>;

/// (loss, grad_norm) of each step.
inline Curve curve_of(const TinyRun& run, const std::string& name) {
  Curve steps;
  for (const auto& line : run.metrics(name)) steps.push_back({line["loss"], line["grad_norm"]});
  return steps;
}

/// Flags of adapters on a base that was trained: the first weights of a head are zeros, behind which nothing can be told
/// apart.
inline std::vector<std::string> on_base(const TinyRun& run, std::vector<std::string> flags) {
  if (!std::filesystem::exists(run.out("base"))) {
    const Result r = run.train(1, "base", {"--run.steps", "4", "--train.lr", "1e-3"});
    EXPECT_EQ(r.code, 0) << r.output;
  }
  flags.insert(flags.end(), {"--train.mode", "lora", "--model.path", run.out("base") + "/model"});
  return flags;
}

}  // namespace tessera::testing
