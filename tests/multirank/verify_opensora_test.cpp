// Open-Sora's recorded draws, losses, and schedules: every expected value is compared, or reported with the
// reason why it is not.
#include <cstring>
#include <fstream>
#include <map>
#include <set>

#include "verify.h"

namespace tessera::testing {
namespace {

class VerifyOpenSora : public Verify {
 protected:
  using Json = nlohmann::json;

  Json report(const fs::path& folder, int code) {
    const fs::path json = run_.folder() / "report.json";
    fs::remove(json);
    const Result r = verify({"--json", json.string(), folder.string()});
    EXPECT_EQ(r.code, code) << r.output;
    std::ifstream in(json);
    return in ? Json::parse(in) : Json::array();
  }
  fs::path fresh(const std::string& name) {
    fs::remove_all(run_.folder() / name);
    return copy(name);
  }
  static bool is_expected(const std::string& name) {
    for (const char* prefix : {"out.", "grad.", "grad_in.", "expect"})
      if (name.starts_with(prefix)) return true;
    return false;
  }
  static void replace(const fs::path& file, const std::string& from, const std::string& to) {
    std::ifstream in(file);
    std::string text{std::istreambuf_iterator<char>(in), {}};
    in.close();
    const size_t at = text.find(from);
    ASSERT_NE(at, std::string::npos) << file;
    std::ofstream(file) << text.replace(at, from.size(), to);
  }
};

TEST_F(VerifyOpenSora, EveryExpectedValueIsComparedOrReportedWithTheReason) {
  const std::map<std::string, size_t> not_compared = {
      {"opensora_loss", 0},     {"opensora_timesteps", 12}, {"opensora_condition", 0}, {"opensora_masks", 0},
      {"opensora_buckets", 24}, {"sampling_opensora", 0},   {"stdit3_v12", 0},         {"stdit3_v13", 0}};
  for (const auto& [name, left_out] : not_compared) {
    SCOPED_TRACE(name);
    const fs::path changed = fresh(name), file = changed / "case.safetensors";
    std::map<std::string, DType> expected;
    const auto tensors = checkpoint::SafetensorsFile::open(file);
    for (const auto& entry : tensors.entries())
      if (is_expected(entry.name)) expected[entry.name] = entry.dtype;
    std::set<std::string> compared, explained;
    for (const Json& entry : report(changed, 0)) {
      if (entry.at("file") != "case.safetensors") continue;
      for (const Json& tensor : entry.at("tensors")) compared.insert(tensor.at("name").get<std::string>());
      const Json reasons = entry.value("not_compared_because", Json::object());
      for (const Json& names : reasons)
        for (const Json& left : names) explained.insert(left.get<std::string>());
    }
    size_t only_explained = 0;
    for (const auto& [value, dtype] : expected) {
      EXPECT_TRUE(compared.contains(value) || explained.contains(value)) << value;
      only_explained += !compared.contains(value);
    }
    EXPECT_EQ(only_explained, left_out);

    rewrite(file, [&](const std::string& value, std::vector<std::byte>& bytes) {
      const auto found = expected.find(value);
      if (found == expected.end()) return;
      if (found->second == DType::f32) add(bytes, 0.5f);
      if (found->second == DType::f64) add(bytes, 0.5);
      if (found->second == DType::i64) add(bytes, int64_t{1});
    });
    for (const Json& entry : report(changed, 1)) {
      if (entry.at("file") != "case.safetensors") continue;
      for (const Json& tensor : entry.at("tensors")) EXPECT_FALSE(tensor.at("ok").get<bool>()) << tensor.at("name");
    }
  }
}

TEST_F(VerifyOpenSora, WhyAValueIsNotComparedIsPrinted) {
  const Result r = verify({(goldens_ / "opensora_buckets").string()});
  EXPECT_EQ(r.code, 0) << r.output;
  EXPECT_NE(
      r.output.find("not compared: 22 expected values, \"out.run_drop.rank0.index\" ...: batches come in an order"),
      std::string::npos)
      << r.output;
}

TEST_F(VerifyOpenSora, AMissingExpectedValueFails) {
  const std::vector<std::array<const char*, 2>> missing = {{"opensora_loss", "out.v2.bf16.target"},
                                                           {"opensora_timesteps", "out.v2.t"},
                                                           {"opensora_buckets", "out.v2_mixed.bucket"},
                                                           {"stdit3_v12", "out.sample_xmask"}};
  for (const auto& [name, value] : missing) {
    const fs::path changed = fresh(name);
    rewrite(
        changed / "case.safetensors", [](const std::string&, std::vector<std::byte>&) {}, value);
    EXPECT_EQ(verify({changed.string()}).code, 1) << value;
  }
}

TEST_F(VerifyOpenSora, FurtherRecordedCallsOnTwoRanks) {
  for (const char* mesh : {"dp_shard=2", "tp=2", "cp=2"}) {
    const Result r = verify({"--mesh", mesh, (goldens_ / "stdit3_v12").string(), (goldens_ / "stdit3_v13").string()});
    EXPECT_EQ(r.code, 0) << mesh << "\n" << r.output;
    EXPECT_EQ(r.output.find("not compared"), std::string::npos) << r.output;
  }
}

TEST_F(VerifyOpenSora, TimestepsLossAndGuidanceThatFollowFromASamplesSize) {
  for (const char* name : {"opensora_timesteps", "opensora_loss", "sampling_opensora"}) {
    const Result r = verify({(goldens_ / name).string()});
    EXPECT_EQ(r.code, 0) << r.output;
  }
  const std::vector<std::array<const char*, 2>> altered = {{"opensora_timesteps", "in.v2.normal"},
                                                           {"opensora_timesteps", "in.v1.t"},
                                                           {"sampling_opensora", "in.v12.z"},
                                                           {"opensora_loss", "in.v2.noise"},
                                                           {"opensora_timesteps", "in.v13.sample.logit_normal"},
                                                           {"opensora_loss", "in.v2.fp32.pred"},
                                                           {"sampling_opensora", "in.v2.txt"},
                                                           {"sampling_opensora", "in.v2.masked_ref"}};
  for (const auto& [name, tensor] : altered) {
    fs::remove_all(run_.folder() / name);
    const fs::path changed = copy(name);
    rewrite(changed / "case.safetensors", [&, wanted = std::string(tensor)](const std::string& n, auto& bytes) {
      if (n == wanted) reinterpret_cast<float*>(bytes.data())[0] += 0.5f;
    });
    EXPECT_EQ(verify({changed.string()}).code, 1) << tensor;
  }
}

TEST_F(VerifyOpenSora, GivenFramesMasksAndBucketsFromRecordedDraws) {
  for (const char* name : {"opensora_condition", "opensora_masks", "opensora_buckets"}) {
    const Result r = verify({(goldens_ / name).string()});
    EXPECT_EQ(r.code, 0) << r.output;
  }
  const std::vector<std::array<const char*, 2>> altered = {
      {"opensora_condition", "in.causal_long.enc4"},  {"opensora_condition", "out.plain_long.cond"},
      {"opensora_condition", "out.infer4.masks"},     {"opensora_masks", "in.v12_T30.ints"},
      {"opensora_masks", "out.index.mask"},           {"opensora_masks", "out.all_masked_v13"},
      {"opensora_buckets", "out.v2_mixed.bucket"},    {"opensora_buckets", "out.v12_stage1.bucket"},
      {"opensora_buckets", "out.v13_ar_first.bucket"}};
  for (const auto& [name, tensor] : altered) {
    fs::remove_all(run_.folder() / name);
    const fs::path changed = copy(name);
    rewrite(changed / "case.safetensors", [&, wanted = std::string(tensor)](const std::string& n, auto& bytes) {
      for (size_t i = 0; n == wanted && i < bytes.size(); i += 8) bytes[i] ^= std::byte{0x01};
    });
    EXPECT_EQ(verify({changed.string()}).code, 1) << tensor;
  }
}

}  // namespace
}  // namespace tessera::testing
