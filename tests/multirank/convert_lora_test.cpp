// LoRA files of every program: read, renamed, merged, and the mistakes that are named.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <cstring>

#include "need_goldens.h"
#include "program.h"
#include "tessera/checkpoint/weights.h"

namespace tessera::testing {
namespace {

namespace fs = std::filesystem;

using checkpoint::open_weights;
using checkpoint::WeightSet;

class ConvertLora : public ::testing::Test {
 protected:
  void SetUp() override {
    TESSERA_NEED_GOLDENS();
    std::string pattern = (fs::temp_directory_path() / "tessera-lora-XXXXXX").string();
    folder_ = mkdtemp(pattern.data());
  }
  void TearDown() override {
    if (!folder_.empty()) fs::remove_all(folder_);
  }
  Result run(std::vector<std::string> arguments) const {
    arguments.insert(arguments.begin(), TESSERA_BINARY);
    return run_program(arguments, {{"OMP_NUM_THREADS", "1"}});
  }
  fs::path convert(const fs::path& in, const std::string& out, std::vector<std::string> more) const {
    std::vector<std::string> arguments = {"convert", in.string(), (folder_ / out).string()};
    arguments.insert(arguments.end(), more.begin(), more.end());
    const Result r = run(arguments);
    EXPECT_EQ(r.code, 0) << r.output;
    return folder_ / out;
  }
  fs::path lora(const std::string& name) const { return goldens_ / "lora" / ("lora_" + name + ".safetensors"); }
  nlohmann::json inspect(const fs::path& path) const {
    const Result r = run({"inspect", "--json", path.string()});
    EXPECT_EQ(r.code, 0) << r.output;
    return nlohmann::json::parse(r.output, nullptr, false);
  }
  static std::vector<float> values(const WeightSet& set, const std::string& name) {
    std::vector<float> result(static_cast<size_t>(set.at(name).count()));
    set.read_f32(name, 0, set.at(name).count(), result.data());
    return result;
  }
  static void expect_equal(const fs::path& a, const fs::path& b) {
    const WeightSet one = open_weights(a), other = open_weights(b);
    ASSERT_EQ(one.names(), other.names());
    for (const std::string& name : one.names()) {
      ASSERT_EQ(one.at(name).dtype, other.at(name).dtype) << name;
      ASSERT_EQ(one.at(name).shape, other.at(name).shape) << name;
      ASSERT_EQ(values(one, name), values(other, name)) << name;
    }
  }
  /// A LoRA of one module under kohya's names.
  fs::path write(const std::string& name, std::vector<std::pair<std::string, checkpoint::Shape>> tensors,
                 const checkpoint::Metadata& metadata = {}) const {
    std::vector<std::vector<float>> alive;
    std::vector<checkpoint::TensorData> data;
    for (const auto& [tensor, shape] : tensors) {
      alive.emplace_back(static_cast<size_t>(*checkpoint::element_count(shape)));
      for (size_t i = 0; i < alive.back().size(); ++i) alive.back()[i] = std::sin(static_cast<float>(i + alive.size()));
    }
    for (size_t i = 0; i < tensors.size(); ++i)
      data.push_back({tensors[i].first, DType::f32, tensors[i].second, alive[i].data()});
    checkpoint::write_safetensors(folder_ / name, data, metadata);
    return folder_ / name;
  }

  const fs::path goldens_ = TESSERA_GOLDENS;
  fs::path folder_;
};

TEST_F(ConvertLora, GoldenFilesBecomeEachOtherBitForBit) {
  const std::pair<const char*, const char*> kFiles[] = {
      {"peft", "diffusers"}, {"kohya", "kohya"}, {"diffsynth", "diffsynth"}};
  int count = 0;
  for (const auto& [from, from_naming] : kFiles)
    for (const auto& [to, to_naming] : kFiles) {
      if (std::string(from) == "diffsynth" && std::string(to) != "diffsynth") continue;  // it has lost alpha
      const auto out = convert(lora(from), std::to_string(count++) + ".safetensors", {"--to", to_naming});
      expect_equal(out, lora(to));
    }
}

TEST_F(ConvertLora, AllNamingsLeadBackToTheFirstBitForBit) {
  fs::path at = lora("kohya");
  int step = 0;
  for (const char* naming : {"diffusers", "diffsynth", "comfyui", "peft", "diffsynth", "kohya"})
    at = convert(at, std::to_string(step++) + ".safetensors", {"--to", naming});
  expect_equal(at, lora("kohya"));
  EXPECT_EQ(open_weights(at).metadata().at("ss_network_alpha"), "8");
}

TEST_F(ConvertLora, AScaleThatRoundsStaysBesideTheMatrices) {
  const auto in = write("third.safetensors", {{"lora_unet_blocks_0_ffn_0.lora_down.weight", {3, 128}},
                                              {"lora_unet_blocks_0_ffn_0.lora_up.weight", {256, 3}},
                                              {"lora_unet_blocks_0_ffn_0.alpha", {}}});
  const auto out = convert(in, "diffsynth.safetensors", {"--to", "diffsynth"});
  EXPECT_TRUE(open_weights(out).contains("blocks.0.ffn.0.alpha")) << "DiffSynth's loader reads it";
  expect_equal(convert(out, "back.safetensors", {"--to", "kohya"}), in);
}

TEST_F(ConvertLora, InspectSaysRankAlphaAndTargetsOfAllNamings) {
  for (const auto& [file, naming] : {std::pair{"peft", "diffusers"}, {"kohya", "kohya"}}) {
    const auto what = inspect(lora(file));
    EXPECT_EQ(what["naming"], naming);
    EXPECT_EQ(what["rank"], 4);
    EXPECT_EQ(what["alpha"], 8);
    EXPECT_EQ(what["modules"], 30);
    EXPECT_EQ(what["targets"].size(), 10) << what;
  }
  const auto what = inspect(lora("peft_nometa"));
  EXPECT_EQ(what["alpha"], 4) << "alpha is the rank where a file does not say it";
  EXPECT_TRUE(what.contains("alpha_from"));
}

TEST_F(ConvertLora, PeftFoldersHaveTheirConfig) {
  const auto out = convert(lora("kohya"), "peft", {"--to", "peft"});
  const auto config = json_of(out / "adapter_config.json");
  EXPECT_EQ(config["r"], 4);
  EXPECT_EQ(config["lora_alpha"], 8);
  EXPECT_EQ(inspect(out)["alpha"], 8);
  expect_equal(convert(out, "back.safetensors", {"--to", "kohya"}), lora("kohya"));
}

TEST_F(ConvertLora, MergingGivesTheSameFromEveryNamingAndIsWhatTheFormulaSays) {
  const fs::path base = goldens_ / "wan21_t2v/model.safetensors";
  const auto merged = convert(base, "merged.safetensors", {"--merge", lora("kohya").string()});
  expect_equal(convert(base, "merged2.safetensors", {"--merge", lora("diffsynth").string()}), merged);
  const WeightSet before = open_weights(base), after = open_weights(merged), pair = open_weights(lora("diffsynth"));
  const std::string module = "blocks.1.ffn.0", name = module + ".weight";
  const auto w = values(before, name), a = values(pair, module + ".lora_A.default.weight"),
             b = values(pair, module + ".lora_B.default.weight"), found = values(after, name);
  for (size_t o = 0; o < 256; o += 37)
    for (size_t i = 0; i < 128; i += 11) {
      double expected = w[o * 128 + i];
      for (size_t r = 0; r < 4; ++r) expected += double(b[o * 4 + r]) * a[r * 128 + i];
      EXPECT_NEAR(found[o * 128 + i], expected, 1e-6);
    }
  EXPECT_EQ(values(after, "head.head.weight"), values(before, "head.head.weight"));
  const auto half = convert(base, "half.safetensors", {"--merge", lora("peft").string(), "--scale", "0.5"});
  EXPECT_NEAR(values(open_weights(half), name)[5], (w[5] + found[5]) / 2, 1e-6);
}

TEST_F(ConvertLora, DoraRowsGetTheLengthOfTheirMagnitude) {
  const std::string module = "diffusion_model.blocks.0.self_attn.q";
  const auto dora = write("dora.safetensors", {{module + ".lora_A.weight", {2, 128}},
                                               {module + ".lora_B.weight", {128, 2}},
                                               {module + ".dora_scale", {128, 1}}});
  const auto merged = convert(goldens_ / "wan21_t2v/model.safetensors", "m.safetensors", {"--merge", dora.string()});
  const auto w = values(open_weights(merged), "blocks.0.self_attn.q.weight"),
             m = values(open_weights(dora), module + ".dora_scale");
  for (size_t row : {0, 1, 100}) {
    double sum = 0;
    for (size_t i = 0; i < 128; ++i) sum += double(w[row * 128 + i]) * w[row * 128 + i];
    EXPECT_NEAR(std::sqrt(sum), std::abs(m[row]), 1e-4);
  }
  const fs::path base = goldens_ / "wan21_t2v/model.safetensors";
  const auto peft = convert(dora, "p.safetensors", {"--to", "diffusers"});
  EXPECT_EQ(values(open_weights(peft), "transformer.blocks.0.attn1.to_q.lora_magnitude_vector"), m);
  const Result without = run({"convert", peft.string(), (folder_ / "none.safetensors").string(), "--to", "comfyui"});
  EXPECT_EQ(without.code, 2) << "ComfyUI divides by the length of the base's rows: " << without.output;
  EXPECT_NE(without.output.find("--base BASE"), std::string::npos) << without.output;
  const auto comfyui = convert(peft, "c.safetensors", {"--to", "comfyui", "--base", base.string()});
  EXPECT_NE(values(open_weights(comfyui), module + ".dora_scale"), m);
  const auto again = convert(base, "m2.safetensors", {"--merge", comfyui.string()});
  const auto w2 = values(open_weights(again), "blocks.0.self_attn.q.weight");
  for (size_t i = 0; i < w.size(); i += 7) EXPECT_NEAR(w2[i], w[i], 1e-6);
  EXPECT_EQ(inspect(dora)["dora"], true);
}

TEST_F(ConvertLora, MistakesAreNamedAndLeaveNothingBehind) {
  const auto refused = [&](std::vector<std::string> arguments, int code, const std::vector<std::string>& texts) {
    const Result r = run(std::move(arguments));
    EXPECT_EQ(r.code, code) << r.output;
    for (const auto& text : texts) EXPECT_NE(r.output.find(text), std::string::npos) << text << "\n" << r.output;
    EXPECT_FALSE(fs::exists(folder_ / "out.safetensors"));
  };
  const std::string base = (goldens_ / "wan21_t2v/model.safetensors").string(), kohya = lora("kohya").string(),
                    out = (folder_ / "out.safetensors").string();
  refused({"convert", kohya, out, "--to", "official"}, 2, {"no naming of LoRA files", "kohya"});
  refused({"convert", base, out, "--to", "kohya"}, 2, {"naming of LoRA files", "diffusers"});
  refused({"convert", base, out, "--scale", "2"}, 2, {"--merge"});
  refused({"convert", base, out, "--merge", kohya, "--scale", "1", "--scale", "2"}, 2, {"2 scales for 1"});
  refused({"convert", kohya, out, "--merge", kohya}, 2, {"wants a base"});
  refused({"convert", base, out, "--merge", base}, 3, {"is not a LoRA"});
  const std::string m = "lora_unet_blocks_0_ffn_0";
  const auto alone = write("alone.safetensors", {{m + ".lora_down.weight", {4, 128}}});
  refused({"convert", base, out, "--merge", alone.string()}, 3, {"A but no B"});
  const auto other =
      write("other.safetensors", {{m + ".lora_down.weight", {4, 64}}, {m + ".lora_up.weight", {256, 4}}});
  refused({"convert", base, out, "--merge", other.string()}, 3, {"blocks.0.ffn.0", "[4, 64]", "another size"});
  const auto ranks =
      write("ranks.safetensors", {{m + ".lora_down.weight", {4, 128}}, {m + ".lora_up.weight", {256, 3}}});
  refused({"convert", base, out, "--merge", ranks.string()}, 3, {"do not fit"});
  const auto deep = write("deep.safetensors", {{"lora_unet_blocks_9_ffn_0.lora_down.weight", {4, 128}},
                                               {"lora_unet_blocks_9_ffn_0.lora_up.weight", {256, 4}}});
  refused({"convert", base, out, "--merge", deep.string()}, 3, {"has no blocks.9.ffn.0.weight"});
  const auto lokr = write("lokr.safetensors", {{m + ".lokr_w1", {4, 4}}, {m + ".lokr_w2", {4, 4}}});
  refused({"convert", base, out, "--merge", lokr.string()}, 3, {"blocks.0.ffn.0"});
  const auto oft = write("oft.safetensors", {{m + ".oft_blocks", {4, 4, 4}}});
  refused({"convert", oft.string(), out, "--to", "comfyui"}, 3, {"oft"});
}

}  // namespace
}  // namespace tessera::testing
