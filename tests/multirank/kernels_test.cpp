// Training with the kernels of GPUs, LibTorch's operators, on CPU ranks: the curve of our own kernels on every axis.
#include <gtest/gtest.h>

#include "curves.h"

namespace tessera::testing {
namespace {

constexpr int kSteps = 6;

const TinyRun& shared() {
  static const TinyRun run("kernels");
  return run;
}

Curve curve(const std::string& kernels, int ranks, const std::vector<std::string>& more) {
  const std::string name = "run-" + kernels;
  std::filesystem::remove_all(shared().out(name));
  std::vector<std::string> words = {
      TESSERA_BINARY, "launch",           "-n",          std::to_string(ranks), "train", shared().recipe(),
      "--run.out",    shared().out(name), "--run.steps", std::to_string(kSteps)};
  words.insert(words.end(), more.begin(), more.end());
  const Result r = run_program(words, {{"TESSERA_KERNELS", kernels}}, 300);
  EXPECT_EQ(r.code, 0) << r.output;
  return curve_of(shared(), name);
}

struct Case {
  const char* name;
  int ranks;
  std::vector<std::string> flags;
  bool lora = false;
};
void PrintTo(const Case& c, std::ostream* out) { *out << c.name; }

class GpuKernels : public ::testing::TestWithParam<Case> {};

TEST_P(GpuKernels, TrainAlongTheCurveOfOurs) {
  const auto flags = GetParam().lora ? on_base(shared(), GetParam().flags) : GetParam().flags;
  const auto ours = curve("cpu", GetParam().ranks, flags), theirs = curve("aten", GetParam().ranks, flags);
  ASSERT_EQ(ours.size(), kSteps);
  ASSERT_EQ(theirs.size(), kSteps);
  bool differs = false;
  for (size_t i = 0; i < kSteps; ++i)
    for (size_t k = 0; k < 2; ++k) {
      EXPECT_NEAR(theirs[i][k], ours[i][k], 2e-5 * ours[i][k]) << "step " << i;
      differs = differs || theirs[i][k] != ours[i][k];
    }
  EXPECT_TRUE(differs) << "both runs used the same kernels";
}

INSTANTIATE_TEST_SUITE_P(
    , GpuKernels,
    ::testing::Values(Case{"full", 1, {}},
                      Case{"shards_that_recompute_and_offload",
                           2,
                           {"--mesh", "dp_shard=2", "--plan.recompute", "all", "--plan.states", "host"}},
                      Case{"ulysses", 2, {"--mesh", "sp=2"}}, Case{"ring", 2, {"--mesh", "cp=2"}},
                      Case{"tensor", 2, {"--mesh", "tp=2"}}, Case{"pipeline", 2, {"--mesh", "pp=2"}},
                      Case{"lora_on_int8", 2, {"--lora.base_dtype", "int8", "--lora.dropout", "0.1"}, true},
                      Case{"dora_with_ulysses", 2, {"--mesh", "sp=2", "--lora.dora", "true"}, true}),
    [](const auto& info) { return std::string(info.param.name); });

TEST(GpuKernelsByName, AnUnknownTableIsRefused) {
  const Result r = run_program({TESSERA_BINARY, "train", shared().recipe(), "--run.out", shared().out("none")},
                               {{"TESSERA_KERNELS", "gpu"}});
  EXPECT_EQ(r.code, 2) << r.output;
  EXPECT_NE(r.output.find("set it to cpu, aten or fused"), std::string::npos) << r.output;
}

}  // namespace
}  // namespace tessera::testing
