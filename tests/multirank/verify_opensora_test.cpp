// Open-Sora's recorded draws, losses, schedules and checkpoint folders: every expected value is compared, or reported with the
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
    std::string text = text_of(file);
    const size_t at = text.find(from);
    ASSERT_NE(at, std::string::npos) << file;
    std::ofstream(file) << text.replace(at, from.size(), to);
  }
  const fs::path saved_ = "checkpoint_async/epoch0-global_step12",
                 saved_whole_ = "checkpoint_sync/epoch0-global_step12";
};

TEST_F(VerifyOpenSora, EveryExpectedValueIsComparedOrReportedWithTheReason) {
  const std::map<std::string, size_t> not_compared = {
      {"opensora_loss", 0},       {"opensora_timesteps", 12}, {"opensora_condition", 0},
      {"opensora_masks", 0},      {"opensora_buckets", 24},   {"sampling_opensora", 0},
      {"opensora_checkpoint", 0}, {"stdit3_v12", 0},          {"stdit3_v13", 0}};
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
                                                           {"opensora_checkpoint", "expect_master.img_in.weight"},
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

TEST_F(VerifyOpenSora, CheckpointFoldersOnOneAndTwoRanks) {
  for (const char* mesh : {"dp_shard=1", "dp_shard=2"}) {
    const Result r = verify(
        {"--mesh", mesh, "--write", (run_.folder() / "written").string(), (goldens_ / "opensora_checkpoint").string()});
    EXPECT_EQ(r.code, 0) << mesh << "\n" << r.output;
    EXPECT_NE(r.output.find("checkpoint_sync"), std::string::npos) << r.output;
    EXPECT_NE(r.output.find("checkpoint_async"), std::string::npos) << r.output;
  }
  const auto mine = checkpoint::SafetensorsFile::open(run_.folder() / "written/opensora_checkpoint/case.safetensors");
  const auto theirs = checkpoint::SafetensorsFile::open(goldens_ / "opensora_checkpoint/case.safetensors");
  for (const auto& entry : theirs.entries()) EXPECT_EQ(mine.at(entry.name).shape, entry.shape) << entry.name;
}

TEST_F(VerifyOpenSora, AlteredCheckpointFoldersAndListingsFail) {
  const auto altered = [&](const fs::path& file, const std::string& tensor) {
    const fs::path changed = fresh("opensora_checkpoint");
    rewrite(changed / file, [&](const std::string& name, std::vector<std::byte>& bytes) {
      if (name == tensor) bytes[0] ^= std::byte{0x10};
    });
    EXPECT_EQ(verify({changed.string()}).code, 1) << file << " " << tensor;
  };
  altered(saved_ / "model/model-00001.safetensors", "img_in.weight");
  altered(saved_ / "model/model-00002.safetensors",
          "single_blocks.0.linear2.weight");  // no recorded value: the other form's
  altered(saved_whole_ / "master.safetensors", "final_layer.linear.weight");
  altered(saved_ / "optimizer/optimizer-00001.safetensors", "state.0.exp_avg");
  altered(saved_ / "optimizer/optimizer-00004.safetensors", "state.25.exp_avg_sq");

  const std::vector<std::array<std::string, 3>> texts = {
      {"listing.json", "\"actual_update_step\": 12", "\"actual_update_step\": 13"},
      {"listing.json", "\"F32\"", "\"F16\""},
      {"listing.json", "\"float32\",", "\"float32\", [7],"},  // a shape of a moment
      {saved_ / "running_states.json", "\"actual_update_step\": 12", "\"actual_update_step\": 24"},
      {"config.json", "\"img_in.weight\",\n  \"img_in.bias\"", "\"img_in.bias\",\n  \"img_in.weight\""}};
  for (const auto& [file, from, to] : texts) {
    const fs::path changed = fresh("opensora_checkpoint");
    replace(changed / file, from, to);
    EXPECT_EQ(verify({changed.string()}).code, 1) << file << " " << to;
  }
}

TEST_F(VerifyOpenSora, WhatIsMissingInACheckpointFolderIsUnreadable) {
  const std::vector<fs::path> files = {"listing.json",
                                       "case.safetensors",
                                       saved_whole_ / "master.safetensors",
                                       saved_whole_ / "ema.pt",
                                       saved_whole_ / "optimizer/pytorch_optim-00003.bin",
                                       saved_ / "ema.safetensors",
                                       saved_ / "running_states.json",
                                       saved_ / "model/model-00002.safetensors",
                                       saved_ / "optimizer/optimizer.safetensors.index.json"};
  for (const fs::path& file : files) {
    const fs::path changed = fresh("opensora_checkpoint");
    ASSERT_TRUE(fs::remove(changed / file)) << file;
    EXPECT_EQ(verify({changed.string()}).code, 3) << file;
  }
  const fs::path cut = fresh("opensora_checkpoint");
  fs::resize_file(cut / saved_ / "optimizer/optimizer-00002.safetensors", 200);
  EXPECT_EQ(verify({cut.string()}).code, 3);
  const fs::path other = fresh("opensora_checkpoint");
  replace(other / "config.json", "\"depth\": 1", "\"depth\": 2");
  EXPECT_EQ(verify({other.string()}).code, 3) << "the model has other weights";
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
