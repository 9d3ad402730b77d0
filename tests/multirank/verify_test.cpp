// The recorded reference outputs and gradients, through the engine on several layouts; and altered cases are caught.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <fstream>
#include <functional>

#include "program.h"
#include "tessera/checkpoint/safetensors.h"

namespace tessera::testing {
namespace {

namespace fs = std::filesystem;

class Verify : public ::testing::Test {
 protected:
  void SetUp() override {
    if (fs::exists(goldens_)) return;
    ASSERT_STRNE(std::getenv("CI") ? std::getenv("CI") : "", "true") << goldens_ << " is not there";
    GTEST_SKIP() << goldens_ << " is not there";
  }
  Result verify(std::vector<std::string> arguments) const {
    arguments.insert(arguments.begin(), {TESSERA_BINARY, "verify"});
    return run_program(arguments, {{"OMP_NUM_THREADS", "1"}});
  }
  /// A copy of a case that may be changed.
  fs::path copy(const std::string& name) {
    const fs::path to = run_.folder() / name;
    fs::copy(goldens_ / name, to, fs::copy_options::recursive);
    return to;
  }
  static void rewrite(const fs::path& file,
                      const std::function<void(const std::string&, std::vector<std::byte>&)>& change,
                      const std::string& drop = {}) {
    const auto in = checkpoint::SafetensorsFile::open(file);
    std::vector<std::vector<std::byte>> bytes;
    std::vector<checkpoint::TensorData> tensors;
    for (const auto& entry : in.entries()) {
      if (entry.name == drop) continue;
      bytes.push_back(in.bytes(entry.name));
      change(entry.name, bytes.back());
      tensors.push_back({entry.name, entry.dtype, entry.shape, nullptr});
    }
    for (size_t i = 0; i < tensors.size(); ++i) tensors[i].data = bytes[i].data();
    checkpoint::write_safetensors(file, tensors);
  }
  const fs::path goldens_ = TESSERA_GOLDENS;
  TinyRun run_{"verify"};
};

TEST_F(Verify, WanOnOneTwoAndFourRanks) {
  for (const char* mesh : {"dp_shard=1", "dp_shard=2", "dp_replicate=2", "dp_replicate=2,dp_shard=2"}) {
    const Result r = verify({"--mesh", mesh, (goldens_ / "wan21_t2v").string()});
    EXPECT_EQ(r.code, 0) << mesh << "\n" << r.output;
  }
}

TEST_F(Verify, OptimiserSchedulesAndSamplers) {
  const Result r = verify({"--mesh", "dp_shard=2", (goldens_ / "adamw").string(), (goldens_ / "lr_schedules").string(),
                           (goldens_ / "flow").string()});
  EXPECT_EQ(r.code, 0) << r.output;
}

TEST_F(Verify, AWrongExpectedValueFails) {
  const fs::path changed = copy("wan21_t2v");
  rewrite(changed / "case.safetensors", [](const std::string& name, std::vector<std::byte>& bytes) {
    if (name == "grad.blocks.1.ffn.2.weight") reinterpret_cast<float*>(bytes.data())[7] += 0.1f;
  });
  const Result r = verify({changed.string()});
  EXPECT_EQ(r.code, 1) << r.output;
  EXPECT_NE(r.output.find("grad.blocks.1.ffn.2.weight"), std::string::npos) << r.output;
}

TEST_F(Verify, ANaNOrAMissingExpectedValueFailsAndAMissingWeightIsUnreadable) {
  const fs::path nan = copy("adamw");
  rewrite(nan / "case.safetensors", [](const std::string& name, std::vector<std::byte>& bytes) {
    if (name == "out.const.param.bias") reinterpret_cast<float*>(bytes.data())[0] = std::nanf("");
  });
  EXPECT_EQ(verify({nan.string()}).code, 1);
  const fs::path missing = copy("wan21_t2v");
  rewrite(
      missing / "case.safetensors", [](const std::string&, std::vector<std::byte>&) {}, "out.1");
  EXPECT_EQ(verify({missing.string()}).code, 1);
  rewrite(
      missing / "model.safetensors", [](const std::string&, std::vector<std::byte>&) {}, "blocks.2.norm3.bias");
  EXPECT_EQ(verify({missing.string()}).code, 3);
}

TEST_F(Verify, WhatIsWrittenIsWhatWasComputed) {
  const fs::path out = run_.folder() / "written";
  ASSERT_EQ(verify({"--write", out.string(), "--json", (run_.folder() / "r.json").string(),
                    (goldens_ / "wan21_t2v").string()})
                .code,
            0);
  const auto mine = checkpoint::SafetensorsFile::open(out / "wan21_t2v/case.safetensors");
  const auto theirs = checkpoint::SafetensorsFile::open(goldens_ / "wan21_t2v/case.safetensors");
  size_t compared = 0;
  for (const auto& entry : theirs.entries()) {
    if (!entry.name.starts_with("out.") && !entry.name.starts_with("grad")) continue;
    ASSERT_EQ(mine.at(entry.name).shape, entry.shape) << entry.name;
    ++compared;
  }
  EXPECT_EQ(compared, 103u);
  std::ifstream in(run_.folder() / "r.json");
  const auto report = nlohmann::json::parse(in);
  ASSERT_EQ(report.size(), 4u) << "two input sets, two namings";
  EXPECT_TRUE(report[0]["passed"].get<bool>());
  EXPECT_EQ(report[0]["tensors"].size(), 103u);
}

}  // namespace
}  // namespace tessera::testing
