#pragma once
// The schedule that a plan writes beside the trace of the run that it was made for.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "program.h"

namespace tessera::testing {

inline std::string without_times(const std::string& line) {
  const size_t at = line.find(",\"t0\":");
  return at == std::string::npos ? line : line.substr(0, at) + "}";
}

/// Equal line for line (OUT/planned.jsonl, OUT/executed.jsonl), and no rule is broken. `flags` name a new run.out; the plan
/// says all of `said`. `skipped`: the steps that the run will skip, where they shift others.
inline void expect_planned_is_executed(const TinyRun& run, int ranks, const std::vector<std::string>& flags,
                                       const std::vector<std::string>& said = {}, const std::string& skipped = {}) {
  const std::string planned = run.out("planned.jsonl"), executed = run.out("executed.jsonl");
  const auto with_flags = [&](std::vector<std::string> words) {
    words.insert(words.end(), flags.begin(), flags.end());
    return run.tessera(words);
  };
  std::vector<std::string> plan = {"plan", run.recipe(), "--schedule", planned};
  if (!skipped.empty()) plan.insert(plan.end(), {"--skipped", skipped});
  const Result p = with_flags(plan);
  ASSERT_EQ(p.code, 0) << p.output;
  for (const std::string& words : said) EXPECT_NE(p.output.find(words), std::string::npos) << words << p.output;
  const Result t =
      with_flags({"launch", "-n", std::to_string(ranks), "train", run.recipe(), "--trace-schedule", executed});
  ASSERT_EQ(t.code, 0) << t.output;
  const auto a = lines_of(planned), b = lines_of(executed);
  ASSERT_GT(a.size(), 50u);
  ASSERT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i) ASSERT_EQ(a[i], without_times(b[i])) << "line " << i + 1;
  const Result check = run.tessera({"plan", "--check", executed});
  EXPECT_EQ(check.code, 0) << check.output;
}

}  // namespace tessera::testing
