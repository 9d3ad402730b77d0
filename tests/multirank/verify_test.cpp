// The recorded reference outputs and gradients, through the engine on several layouts; and altered cases are caught.
#include "verify.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <fstream>

#include "matrix.h"
#include "tessera/models/common/config_reader.h"

namespace tessera::testing {
namespace {

/// The first of these meshes and this run's part of the others, two at least. On a simulated device another part.
std::vector<const char*> drawn(const std::string& what, const std::vector<const char*>& meshes) {
  std::vector<const char*> part = {meshes[0]};
  MatrixPart others(what + (std::getenv("TESSERA_VERIFY_ON_DEVICE") ? " on a device" : ""),
                    static_cast<int>(meshes.size()) - 1, 2);
  for (const int i : others) part.push_back(meshes[static_cast<size_t>(i) + 1]);
  return part;
}

TEST_F(Verify, WanOnOneTwoAndFourRanksThatShareSamplesOrTokens) {
  for (const char* mesh :
       drawn("verify Wan", {"dp_shard=1", "dp_shard=2", "dp_replicate=2", "dp_replicate=2,dp_shard=2", "sp=2", "cp=2",
                            "cp=3", "cp=2,sp=2", "dp_shard=2,sp=2", "tp=2", "pp=2", "pp=3", "pp=4", "pp=2,dp_shard=2",
                            "pp=2,sp=2", "pp=2,tp=2"})) {
    const Result r = verify({"--mesh", mesh, (goldens_ / "wan21_t2v").string()});
    EXPECT_EQ(r.code, 0) << mesh << "\n" << r.output;
  }
}

TEST_F(Verify, LinearAttentionAndConvolutionsOnSeveralLayouts) {
  for (const char* mesh :
       drawn("verify Sana", {"dp_shard=1", "dp_shard=2", "tp=2", "sp=2", "cp=2", "pp=2", "cp=2,tp=2"})) {
    std::vector<std::string> arguments = {"--mesh", mesh};
    for (const char* name : {"sana", "sana_qknorm", "sana_sprint", "sana_video", "sana_video_i2v"})
      arguments.push_back((goldens_ / name).string());
    const Result r = verify(arguments);
    EXPECT_EQ(r.code, 0) << mesh << "\n" << r.output;
  }
}

TEST_F(Verify, StepsOfSeveralNetworksAndChunksOfClipsOnSeveralLayouts) {
  for (const char* mesh : drawn("verify distillation", {"dp_shard=1", "dp_shard=2", "tp=2", "sp=2", "cp=2", "pp=2",
                                                        "dp_shard=2,tp=2", "pp=2,sp=2"})) {
    std::vector<std::string> arguments = {"--mesh", mesh};
    for (const char* name : {"sana_sprint_training", "sana_sprint_ladd", "longsana_attention", "longsana_dmd"})
      arguments.push_back((goldens_ / name).string());
    const Result r = verify(arguments);
    EXPECT_EQ(r.code, 0) << mesh << "\n" << r.output;
    EXPECT_EQ(r.output.find("not compared"), std::string::npos) << r.output;
  }
}

TEST_F(Verify, FactorsOfLoHaAndLoKrOnSeveralLayouts) {
  for (const char* mesh : drawn("verify factors", {"dp_shard=1", "dp_shard=2", "dp_replicate=2", "tp=2", "tp=4", "sp=2",
                                                   "cp=2", "pp=2", "dp_shard=2,tp=2"})) {
    const Result r = verify({"--mesh", mesh, (goldens_ / "loha").string(), (goldens_ / "lokr").string()});
    EXPECT_EQ(r.code, 0) << mesh << "\n" << r.output;
  }
}

TEST_F(Verify, OptimisersAndTheAverageOfWeightsWhoseStatesAreSharded) {
  for (const char* mesh : drawn("verify optimisers", {"dp_shard=1", "dp_shard=2", "dp_shard=3", "tp=2", "sp=2", "cp=2",
                                                      "pp=2", "dp_shard=2,tp=2"})) {
    std::vector<std::string> arguments = {"--mesh", mesh};
    for (const char* name : {"adamw", "adam8bit", "lion", "adafactor", "came", "prodigy", "schedule_free", "muon",
                             "hunyuan15_muon", "ema", "lora_plus"})
      arguments.push_back((goldens_ / name).string());
    const Result r = verify(arguments);
    EXPECT_EQ(r.code, 0) << mesh << "\n" << r.output;
    EXPECT_EQ(r.output.find("not compared"), std::string::npos) << r.output;
  }
}

TEST_F(Verify, TwoStreamsThatMeetInJointAttentionOnSeveralLayouts) {
  for (const char* mesh : drawn("verify Open-Sora 2", {"dp_shard=1", "dp_shard=2", "tp=2", "sp=2", "cp=2", "pp=2",
                                                       "cp=2,tp=2", "sp=2,tp=2", "pp=3"})) {
    if (mesh == std::string("sp=2,tp=2")) {  // of four heads
      const Result r = verify({"--mesh", mesh, (goldens_ / "opensora2_fused").string()});
      EXPECT_EQ(r.code, 0) << mesh << "\n" << r.output;
      continue;
    }
    const Result r = verify({"--mesh", mesh, (goldens_ / "opensora2").string(), (goldens_ / "opensora2_fused").string(),
                             (goldens_ / "opensora2_flux").string()});
    EXPECT_EQ(r.code, 0) << mesh << "\n" << r.output;
  }
}

TEST_F(Verify, ATextRefinedByItselfOnSeveralLayouts) {
  const std::vector<std::string> cases = {(goldens_ / "hunyuan_video15").string(),
                                          (goldens_ / "hunyuan15_meanflow").string()};
  for (const char* mesh : drawn("verify HunyuanVideo 1.5", {"dp_shard=1", "dp_shard=2", "tp=2", "sp=2", "cp=2", "pp=2",
                                                            "cp=2,tp=2", "pp=2,sp=2"})) {
    const Result r = verify({"--mesh", mesh, cases[0], cases[1]});
    EXPECT_EQ(r.code, 0) << mesh << "\n" << r.output;
    EXPECT_EQ(r.output.find("not compared"), std::string::npos) << r.output;
  }
}

TEST_F(Verify, ASecondStreamOfBlocksAndItsContextOnSeveralLayouts) {
  for (const char* mesh : drawn("verify VACE", {"dp_shard=1", "dp_shard=2", "tp=2", "sp=2", "cp=2", "pp=2", "pp=3"})) {
    const Result r =
        verify({"--mesh", mesh, (goldens_ / "wan_vace").string(), (goldens_ / "wan_vace_training").string()});
    EXPECT_EQ(r.code, 0) << mesh << "\n" << r.output;
    EXPECT_EQ(r.output.find("not compared"), std::string::npos) << r.output;
  }
}

TEST_F(Verify, AttentionWithinFramesAndOverThemOnSeveralLayouts) {
  for (const char* mesh :
       drawn("verify Open-Sora 1", {"dp_shard=1", "dp_shard=2", "tp=2", "sp=2", "cp=2", "pp=2", "cp=2,tp=2"})) {
    const Result r = verify({"--mesh", mesh, (goldens_ / "stdit3_v12").string(), (goldens_ / "stdit3_v13").string()});
    EXPECT_EQ(r.code, 0) << mesh << "\n" << r.output;
  }
}

TEST_F(Verify, AnAdapterAsDiffusersWritesItItsBaseAndWhatItIsMergedInto) {
  for (const char* mesh : drawn("verify adapters", {"dp_shard=1", "dp_shard=2", "tp=2", "sp=2", "cp=2", "pp=2"})) {
    const Result r = verify({"--mesh", mesh, (goldens_ / "lora_sana").string()});
    EXPECT_EQ(r.code, 0) << mesh << "\n" << r.output;
    EXPECT_EQ(r.output.find("not compared"), std::string::npos) << r.output;
  }
}

TEST_F(Verify, ModelsThatTakePicturesAndExpertsOnSeveralLayouts) {
  for (const char* mesh : drawn("verify pictures", {"dp_shard=1", "dp_shard=2", "sp=3", "cp=2", "pp=2"})) {
    const Result r = verify({"--mesh", mesh, (goldens_ / "wan21_i2v").string(), (goldens_ / "wan22_ti2v").string()});
    EXPECT_EQ(r.code, 0) << mesh << "\n" << r.output;
  }
  for (const char* mesh : {"dp_shard=1", "dp_shard=2"}) {
    const Result r = verify({"--mesh", mesh, (goldens_ / "wan22_moe").string(), (goldens_ / "clip_vision").string()});
    EXPECT_EQ(r.code, 0) << mesh << "\n" << r.output;
  }
}

TEST_F(Verify, AlteredPicturesFeaturesAndExpertsFail) {
  struct Altered {
    const char* name;
    const char* tensor;
    size_t at;  // of four bytes each
  };
  const std::vector<Altered> altered = {
      {"wan21_i2v", "in.clip_fea", 0}, {"wan21_i2v", "grad_in.y.1", 0},   {"wan21_i2v", "grad_in.clip_fea", 0},
      {"wan22_ti2v", "in.t", 12},  // the first 12 tokens are of the picture: t is 0
      {"wan22_moe", "out.expert", 0},  {"clip_vision", "out.features", 0}};
  for (const auto& [name, tensor, at] : altered) {
    fs::remove_all(run_.folder() / name);
    const fs::path changed = copy(name);
    rewrite(changed / "case.safetensors",
            [&, wanted = std::string(tensor), at = at](const std::string& n, auto& bytes) {
              if (n == wanted) bytes[4 * at + 2] ^= std::byte{0x55};  // in the mantissa, or a whole number's third byte
            });
    const Result r = verify({changed.string()});
    EXPECT_EQ(r.code, 1) << name << " " << tensor << "\n" << r.output;
  }
}

TEST_F(Verify, ControlledModelsOnSeveralLayouts) {
  for (const char* mesh : drawn("verify Fun", {"dp_shard=1", "dp_shard=2", "cp=2", "pp=2", "pp=2,cp=2"})) {
    std::vector<std::string> arguments = {"--mesh", mesh};
    for (const char* name : {"wan_fun_inp", "wan_fun_control", "wan_fun_camera", "wan_fun22_control",
                             "wan_fun22_camera", "wan_fun22_5b", "wan_fun22_5b_camera", "wan_fun_training"})
      arguments.push_back((goldens_ / name).string());
    const Result r = verify(arguments);
    EXPECT_EQ(r.code, 0) << mesh << "\n" << r.output;
  }
  for (const char* mesh : drawn("verify Fun by heads", {"tp=2", "sp=2", "cp=2,tp=2"})) {  // models of two heads
    const Result r = verify({"--mesh", mesh, (goldens_ / "wan_fun_camera").string(),
                             (goldens_ / "wan_fun22_camera").string(), (goldens_ / "wan_fun22_5b").string()});
    EXPECT_EQ(r.code, 0) << mesh << "\n" << r.output;
  }
}

TEST_F(Verify, AlteredConditionsFail) {
  const std::vector<std::array<const char*, 3>> altered = {
      {"wan_fun_control", "case.safetensors", "out_no_ref.0"},
      {"wan_fun22_5b_camera", "case.safetensors", "grad_part."},
      {"wan_fun_inp", "prep.safetensors", "out.region.y"},
      {"wan_fun22_5b", "prep.safetensors", "out.start.t"},
      {"wan_fun_camera", "directions.safetensors", "out.rows.Up"},
      {"wan_fun_training", "masks.safetensors", "out.mask.7"},
      {"wan_fun_training", "train.safetensors", "out.control.y"},
      {"wan_fun_training", "train.safetensors", "out.five.mixed.t"}};
  for (const auto& [name, file, tensor] : altered) {
    fs::remove_all(run_.folder() / name);
    for (const char* vae : {"wan21_vae", "wan22_vae"})
      if (!fs::exists(run_.folder() / vae)) fs::create_directory_symlink(goldens_ / vae, run_.folder() / vae);
    const fs::path changed = copy(name);
    rewrite(changed / file, [&, wanted = std::string(tensor)](const std::string& n, auto& bytes) {
      if (!n.starts_with(wanted)) return;  // the upper byte of the first number, of any dtype
      for (const size_t i : {size_t{2}, wanted.starts_with("out.rows") ? size_t{7} : size_t{3}})
        bytes[i] ^= std::byte{0x40};
    });
    const Result r = verify({changed.string()});
    EXPECT_EQ(r.code, 1) << tensor << "\n" << r.output;
    EXPECT_NE(r.output.find(tensor), std::string::npos) << r.output;
  }
}

TEST_F(Verify, OptimiserSchedulesAndSamplers) {
  const Result r = verify({"--mesh", "dp_shard=2", (goldens_ / "adamw").string(), (goldens_ / "lr_schedules").string(),
                           (goldens_ / "flow").string()});
  EXPECT_EQ(r.code, 0) << r.output;
}

TEST_F(Verify, TimestepsLossesHeldOutLossesAndWhatOtherTrainersKeepAndPick) {
  const std::vector<std::string> names = {"timestep_kinds", "losses",     "eval_loss",
                                          "retention",      "clip_picks", "captions"};
  std::vector<std::string> cases = {"--mesh", "dp_shard=2"};
  for (const std::string& name : names) cases.push_back((goldens_ / name).string());
  const Result r = verify(cases);
  EXPECT_EQ(r.code, 0) << r.output;
  EXPECT_EQ(r.output.find("refused"), std::string::npos) << r.output;
  // A changed setting changes what is computed, or is refused by its name.
  const auto changed = [&](const std::string& name, const std::string& from, const std::string& to,
                           const std::string& file = "config.json") {
    const fs::path copy = run_.folder() / (name + "-changed");
    fs::remove_all(copy);
    fs::copy(goldens_ / name, copy);
    std::string text = text_of(copy / file);
    const size_t at = text.find(from);
    EXPECT_NE(at, std::string::npos) << name << ": " << from;
    if (at != std::string::npos) text.replace(at, from.size(), to);
    fs::permissions(copy / file, fs::perms::owner_all);
    std::ofstream(copy / file) << text;
    return verify({copy.string()});
  };
  for (const auto& [name, from, to] :
       {std::tuple("timestep_kinds", "\"sigmoid_scale\": 1.5", "\"sigmoid_scale\": 1.4"),
        {"timestep_kinds", "\"shift\",\n   \"weighting_scheme\": \"none\",\n   \"discrete_flow_shift\": 5.0",
         "\"shift\",\n   \"weighting_scheme\": \"none\",\n   \"discrete_flow_shift\": 5.1"},
        {"losses", "\"huber_delta\": 0.4", "\"huber_delta\": 0.41"},
        {"losses", "\"unmasked_weight\": 0.25", "\"unmasked_weight\": 0.3"},
        {"eval_loss", "\"shift\": 3.0", "\"shift\": 3.2"}})
    EXPECT_EQ(changed(name, from, to).code, 1) << name << " " << from;
  EXPECT_EQ(changed("retention", "\"save_last_n_steps\": 30", "\"save_last_n_steps\": 40", "cases.json").code, 1);
  EXPECT_EQ(changed("clip_picks", "\"frame_stride\": 10", "\"frame_stride\": 9", "cases.json").code, 1);
  EXPECT_EQ(changed("captions", "\"position_start\": 2", "\"position_start\": 1", "cases.json").code, 1);
  for (const auto& [name, from, to, file] :
       {std::tuple("timestep_kinds", "\"sigmoid_scale\": 1.5", "\"sigmoid_scale\": 1.5, \"unheard\": 1", "config.json"),
        {"losses", "\"loss_type\": \"mae\"", "\"loss_type\": \"wavelet\"", "config.json"},
        {"retention", "\"save_every\": 10", "\"save_every\": 10, \"unheard\": 1", "cases.json"},
        {"clip_picks", "\"frame_stride\": 10", "\"frame_stride\": 10, \"unheard\": 1", "cases.json"},
        {"captions", "\"position_start\": 2", "\"position_start\": 2, \"unheard\": 1", "cases.json"}}) {
    const Result refused = changed(name, from, to, file);
    EXPECT_EQ(refused.code, 3) << name << "\n" << refused.output;
    EXPECT_NE(refused.output.find(name == std::string("losses") ? "wavelet" : "unheard"), std::string::npos)
        << refused.output;
  }
}

TEST_F(Verify, QuantisedMomentsLossScalingAnd8BitFloats) {
  for (const char* mesh : {"dp_shard=1", "dp_shard=2"}) {
    const Result r = verify({"--mesh", mesh, (goldens_ / "adam8bit").string(), (goldens_ / "grad_scaler").string(),
                             (goldens_ / "fp8").string()});
    EXPECT_EQ(r.code, 0) << mesh << "\n" << r.output;
  }
}

TEST_F(Verify, AlteredCodesScalesAndTablesFail) {
  const std::vector<std::array<const char*, 2>> altered = {{"adam8bit", "out.qmap_signed"},
                                                           {"adam8bit", "out.quant_signed.codes"},
                                                           {"adam8bit", "out.torchao.param.big"},
                                                           {"adam8bit", "out.bnb.step1.m_codes.big"},
                                                           {"grad_scaler", "out.scale"},
                                                           {"grad_scaler", "out.stepped"},
                                                           {"fp8", "out.row.bits"},
                                                           {"fp8", "out.table_e4m3"},
                                                           {"fp8", "out.int8.q"},
                                                           {"fp8", "out.sr.bf16"}};
  for (const auto& [name, tensor] : altered) {
    fs::remove_all(run_.folder() / name);
    const fs::path changed = copy(name);
    rewrite(changed / "case.safetensors", [&, wanted = std::string(tensor)](const std::string& n, auto& bytes) {
      // Every bit of the first 48 bytes but the exponent's top one: values stay finite
      if (n == wanted)
        for (size_t i = 0; i < std::min<size_t>(bytes.size(), 48); ++i) bytes[i] ^= std::byte{0x15};
    });
    const Result r = verify({changed.string()});
    EXPECT_EQ(r.code, 1) << tensor << "\n" << r.output;
    EXPECT_NE(r.output.find(tensor), std::string::npos) << r.output;
  }
}

TEST_F(Verify, TensorsOfEveryDtypeAreWrittenAsTheCaseHasThem) {
  const fs::path out = run_.folder() / "written";
  ASSERT_EQ(verify({"--write", out.string(), (goldens_ / "fp8").string(), (goldens_ / "adam8bit").string()}).code, 0);
  for (const char* name : {"fp8", "adam8bit"}) {
    const auto mine = checkpoint::SafetensorsFile::open(out / name / "case.safetensors");
    const auto theirs = checkpoint::SafetensorsFile::open(goldens_ / name / "case.safetensors");
    for (const auto& entry : theirs.entries()) {
      if (!entry.name.starts_with("out.")) continue;
      ASSERT_EQ(mine.at(entry.name).shape, entry.shape) << entry.name;
      EXPECT_EQ(mine.at(entry.name).dtype, entry.dtype) << entry.name;
    }
  }
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

/// Folders of later versions lie among those that a run compares.
TEST_F(Verify, ACaseOfAnUnknownKindAmongOthersIsReportedAndTheOthersAreCompared) {
  const fs::path later = run_.folder() / "of_tomorrow";  // without the other files of a case
  fs::create_directories(later);
  std::ofstream(later / "case.json") << R"({"kind": "of_tomorrow", "tolerance": {}})";
  const std::string said = "case.json: kind 'of_tomorrow' is not known", flow = (goldens_ / "flow").string();
  const Result alone = verify({later.string()});
  EXPECT_EQ(alone.code, 3) << alone.output;
  EXPECT_NE(alone.output.find(said), std::string::npos) << alone.output;
  EXPECT_NE(alone.output.find("known kinds: "), std::string::npos) << alone.output;
  for (const std::vector<std::string>& cases : {std::vector{later.string(), flow},
                                                {flow, later.string()},
                                                {later.string(), flow, later.string()},
                                                {"--mesh", "dp_shard=2", later.string(), flow}}) {
    const Result r = verify(cases);
    EXPECT_EQ(r.code, 3) << r.output;
    EXPECT_NE(r.output.find(said), std::string::npos) << r.output;
    EXPECT_NE(r.output.find("ok   flow/"), std::string::npos) << r.output;
    EXPECT_EQ(r.output.find("FAIL"), std::string::npos) << r.output;
  }
  const fs::path changed = copy("clip_vision");
  rewrite(changed / "case.safetensors", [](const std::string& name, auto& bytes) {
    if (name == "out.features") bytes[2] ^= std::byte{0x55};
  });
  const Result differs = verify({later.string(), changed.string(), flow});
  EXPECT_EQ(differs.code, 1) << "what differs comes before what is not known: " << differs.output;
  EXPECT_NE(differs.output.find("ok   flow/"), std::string::npos) << differs.output;
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
  const auto report = json_of(run_.folder() / "r.json");
  ASSERT_EQ(report.size(), 4u) << "two input sets, two namings";
  EXPECT_TRUE(report[0]["passed"].get<bool>());
  EXPECT_EQ(report[0]["tensors"].size(), 103u);
}

// Autoencoder and text encoder.

TEST_F(Verify, EncodersOfSanaOnAxesThatShareNoSamples) {
  for (const char* mesh : drawn("verify encoders of Sana", {"tp=2", "sp=2", "cp=2", "pp=2"})) {
    const Result r = verify({"--mesh", mesh, (goldens_ / "gemma2").string(), (goldens_ / "dc_ae").string(),
                             (goldens_ / "dc_ae_tiled").string()});
    EXPECT_EQ(r.code, 0) << mesh << "\n" << r.output;
  }
}

TEST_F(Verify, AutoencoderAndTextEncoderOnOneAndTwoRanks) {
  for (const char* mesh : {"dp_shard=1", "dp_shard=2", "dp_replicate=2"}) {
    const Result r =
        verify({"--mesh", mesh, (goldens_ / "wan21_vae").string(), (goldens_ / "wan22_vae").string(),
                (goldens_ / "dc_ae").string(), (goldens_ / "dc_ae_tiled").string(), (goldens_ / "hunyuan_vae").string(),
                (goldens_ / "hunyuan_vae_tiled").string(), (goldens_ / "opensora_vae_tiling").string(),
                (goldens_ / "opensora_vae12").string(), (goldens_ / "opensora_vae13").string(),
                (goldens_ / "opensora_dc_ae").string(), (goldens_ / "umt5").string(), (goldens_ / "gemma2").string(),
                (goldens_ / "t5").string(), (goldens_ / "clip_text").string()});
    EXPECT_EQ(r.code, 0) << mesh << "\n" << r.output;
  }
}

TEST_F(Verify, PromptsBehindAnInstructionOnSeveralLayouts) {
  for (const char* mesh : drawn("verify prompts", {"dp_shard=1", "dp_shard=2", "tp=2", "sp=2", "cp=2", "pp=2"})) {
    const Result r = verify({"--mesh", mesh, (goldens_ / "sana_prompt").string()});
    EXPECT_EQ(r.code, 0) << mesh << "\n" << r.output;
    EXPECT_EQ(r.output.find("not compared"), std::string::npos) << r.output;
  }
  for (const char* tensor : {"out.own_instruction.input_ids", "out.plain.prompt_embeds", "out.negative.select",
                             "out.negative_list.negative_embeds", "out.default_instruction.prompt_attention_mask"}) {
    fs::remove_all(run_.folder() / "sana_prompt");
    const fs::path changed = copy("sana_prompt");
    rewrite(changed / "case.safetensors", [&](const std::string& n, auto& bytes) {
      if (n == tensor) bytes[2] ^= std::byte{0x55}, bytes[6] ^= std::byte{0x55};
    });
    EXPECT_EQ(verify({changed.string()}).code, 1) << tensor;
  }
}

/// A copy of a case with a field more at a place of one of its JSON files.
fs::path with_field(const fs::path& folder, const char* file, const std::string& place, nlohmann::ordered_json value) {
  auto json = nlohmann::ordered_json::parse(text_of(folder / file));
  json[nlohmann::ordered_json::json_pointer(place)] = std::move(value);
  std::ofstream(folder / file) << json.dump();
  return folder;
}

TEST_F(Verify, EncodersOfHunyuanVideo15OnSeveralLayouts) {
  const std::vector<std::string> names = {"qwen2_tokenizer", "qwen25_vl_text", "byt5",
                                          "siglip_vision",   "hunyuan15_vae",  "hunyuan15_vae_tiled",
                                          "hunyuan15_inputs"};
  for (const char* mesh :
       drawn("verify encoders of HunyuanVideo-1.5", {"dp_shard=1", "dp_shard=2", "tp=2", "sp=2", "cp=2", "pp=2"})) {
    std::vector<std::string> arguments = {"--mesh", mesh};
    for (const std::string& name : names) arguments.push_back((goldens_ / name).string());
    const Result r = verify(arguments);
    EXPECT_EQ(r.code, 0) << mesh << "\n" << r.output;
    EXPECT_EQ(r.output.find("not compared"), std::string::npos) << r.output;
  }
  const std::vector<std::array<const char*, 4>> altered = {
      {"qwen2_tokenizer", "chats.json", "\"crop_start\": 50", "\"crop_start\": 51"},
      {"qwen2_tokenizer", "tokens.json", "\"n\": 1", "\"n\": 2"},
      {"qwen25_vl_text", "prompts.json", "\"crop_start\": 50", "\"crop_start\": 51"},
      {"byt5", "glyphs.json", "\"OPEN 24h\"]", "\"OPEN 24\"]"},
      {"byt5", "tokens.json", "\"n\": 2", "\"n\": 3"},
      {"hunyuan15_inputs", "sizes.json", "\"width\": 512", "\"width\": 612"},
      {"hunyuan15_inputs", "config.json", "\"shift\": 9.0", "\"shift\": 8.0"}};
  for (const auto& [name, file, from, to] : altered) {
    fs::remove_all(run_.folder() / name);
    const fs::path changed = copy(name) / file;
    std::string text = text_of(changed);
    const size_t at = text.find(from);
    ASSERT_NE(at, std::string::npos) << file;
    std::ofstream(changed) << text.replace(at, std::string(from).size(), to);
    EXPECT_EQ(verify({(run_.folder() / name).string()}).code, 1) << name << "/" << file;
  }
  const std::vector<std::array<const char*, 3>> unknown = {
      {"siglip_vision", "preprocessor_config.json", "/unheard_of"},
      {"hunyuan15_vae", "original_config.json", "/unheard_of"},
      {"hunyuan15_vae_tiled", "config.json", "/_tiling/unheard_of"},
      {"qwen25_vl_text", "config.json", "/rope_parameters/unheard_of"},
      {"byt5", "config.json", "/_unheard_of"},
      {"hunyuan15_inputs", "sizes.json", "/rows/0/unheard_of"},
      {"hunyuan15_vae_tiled", "config.json", "/_tiling/tile_latent_min_width"}};  // of another grid than the pixels'
  for (const auto& [name, file, place] : unknown) {
    fs::remove_all(run_.folder() / name);
    const Result r = verify({with_field(copy(name), file, place, 3).string()});
    EXPECT_EQ(r.code, 3) << name << "/" << file << place << "\n" << r.output;
  }
}

TEST_F(Verify, SchedulersTokenizersAndPublishedTables) {
  for (const char* name : {"sampling_sana", "tokenizers", "aspect_ratios", "published_shapes"}) {
    const Result r = verify({(goldens_ / name).string()});
    EXPECT_EQ(r.code, 0) << r.output;
    if (name == std::string("published_shapes"))
      EXPECT_NE(r.output.find("720p"), std::string::npos) << "told as refused\n" << r.output;
  }
  for (const char* tensor : {"in.x", "in.scm.noise", "in.train.normal", "out.euler.sigmas", "out.train.index"}) {
    fs::remove_all(run_.folder() / "sampling_sana");
    const fs::path changed = copy("sampling_sana");
    rewrite(changed / "case.safetensors", [&](const std::string& n, auto& bytes) {
      if (n == tensor) bytes[2] ^= std::byte{0x55}, bytes[6] ^= std::byte{0x55};
    });
    EXPECT_EQ(verify({changed.string()}).code, 1) << tensor;
  }
  const std::vector<std::array<const char*, 4>> altered = {
      {"tokenizers", "gemma/tokens.json", "\"n\": 1}", "\"n\": 2}"},
      {"aspect_ratios", "sizes.json", "\"bin\": [256, 256]", "\"bin\": [256, 272]"},
      {"published_shapes", "sana_600m_1024.json", "\"scale_shift_table\"", "\"scale_table\""}};
  for (const auto& [name, file, from, to] : altered) {
    const fs::path changed = copy(name) / file;
    std::string text = text_of(changed);
    const size_t at = text.find(from);
    ASSERT_NE(at, std::string::npos) << file;
    std::ofstream(changed) << text.replace(at, std::string(from).size(), to);
    EXPECT_EQ(verify({(run_.folder() / name).string()}).code, 1) << file;
  }
}

TEST_F(Verify, AlteredPicturesLatentsHiddenStatesAndIdsFail) {
  const std::vector<std::array<const char*, 2>> altered = {{"wan21_vae", "out.std"},
                                                           {"wan21_vae", "out.image_mu"},
                                                           {"wan21_vae", "out.video_logvar"},
                                                           {"wan21_vae", "out.video_decoded"},
                                                           {"umt5", "out.hidden"},
                                                           {"umt5", "out.pos_bias_block0_last_row"},
                                                           {"clip_text", "out.pooler_output"},
                                                           {"wan22_vae", "out.z_decoded"},
                                                           {"wan22_vae", "out.video_latent"},
                                                           {"dc_ae", "out.latent"},
                                                           {"dc_ae_tiled", "out.decoded_wide"},
                                                           {"dc_ae_tiled", "out.latent_untiled"},
                                                           {"hunyuan_vae", "out.image_moments"},
                                                           {"hunyuan_vae", "out.std"},
                                                           {"hunyuan_vae_tiled", "out.framewise_decoded"},
                                                           {"opensora_vae_tiling", "out.edge.moments"},
                                                           {"opensora_vae_tiling", "out.slicing.z"},
                                                           {"opensora_vae12", "out.batch.latent_2d"},
                                                           {"opensora_vae12", "out.long.z"},
                                                           {"opensora_vae12", "out.image.decoded"},
                                                           {"opensora_vae13", "out.rest.moments"},
                                                           {"opensora_vae13", "out.five.z"},
                                                           {"opensora_vae13", "out.overlap.decoded"},
                                                           {"opensora_dc_ae", "out.raw.z"},
                                                           {"opensora_dc_ae", "out.temporal.decoded"}};
  for (const auto& [name, tensor] : altered) {
    fs::remove_all(run_.folder() / name);
    const fs::path changed = copy(name);
    rewrite(changed / "case.safetensors", [&, wanted = std::string(tensor)](const std::string& n, auto& bytes) {
      if (n == wanted) reinterpret_cast<float*>(bytes.data())[bytes.size() / 4 - 1] += 0.01f;  // a row past the mask
    });
    const Result r = verify({changed.string()});
    EXPECT_EQ(r.code, 1) << tensor << "\n" << r.output;
    EXPECT_NE(r.output.find(tensor), std::string::npos) << r.output;
  }
  fs::remove_all(run_.folder() / "wan21_vae");
  const fs::path changed = copy("wan21_vae");
  rewrite(
      changed / "case.safetensors", [](const std::string&, std::vector<std::byte>&) {}, "out.z_decoded");
  EXPECT_EQ(verify({changed.string()}).code, 1);
  rewrite(
      changed / "case.safetensors", [](const std::string&, std::vector<std::byte>&) {}, "in.z");
  EXPECT_EQ(verify({changed.string()}).code, 0) << "neither input nor expectation: nothing to do";
  rewrite(
      changed / "case.safetensors", [](const std::string&, std::vector<std::byte>&) {}, "in.video");
  EXPECT_EQ(verify({changed.string()}).code, 3) << "what is expected of it cannot be computed";
  rewrite(
      changed / "model.safetensors", [](const std::string&, std::vector<std::byte>&) {}, "conv2.bias");
  EXPECT_EQ(verify({changed.string()}).code, 3);
}

TEST_F(Verify, TokenIdsMatchButWhereTheTextSpellsASpecialToken) {
  const fs::path changed = copy("umt5");
  const fs::path json = run_.folder() / "r.json", tokens = changed / "tokens.json";
  const auto rows = json_of(tokens);
  const auto with = [&](const char* key, const auto& value) {
    auto altered = rows;
    altered[12][key] = value;
    std::ofstream(tokens) << altered.dump();
    return verify({"--json", json.string(), "--write", (run_.folder() / "written").string(), changed.string()});
  };
  Result r = with("text", rows[12].at("text"));
  EXPECT_EQ(r.code, 0) << r.output;
  const auto report = json_of(json);
  const auto& last = report.back();
  EXPECT_EQ(last.at("file"), "tokens.json");
  EXPECT_EQ(last.at("prompts"), 70);
  EXPECT_EQ(last.at("prompts_that_may_differ"), 3) << "they spell a special token";
  EXPECT_LE(last.at("prompts_that_differ").get<int>(), 4);
  const auto mine = checkpoint::SafetensorsFile::open(run_.folder() / "written/umt5/tokens.safetensors");
  EXPECT_EQ(mine.entries().size(), 3 * 70 - 2 * 3u) << "ids of all; count and clean of those that are compared";
  for (size_t i = 0; i < rows.size(); ++i) {
    const auto& entry = mine.at("ids." + std::to_string(i));
    EXPECT_EQ(entry.shape, checkpoint::Shape{64});
    EXPECT_EQ(entry.dtype, DType::i64);
  }
  std::vector<int64_t> ids(64);
  mine.read("ids.12", 0, 64, ids.data());
  EXPECT_EQ(ids, rows[12].at("ids").get<std::vector<int64_t>>());

  r = with("text", "another text");
  EXPECT_EQ(r.code, 1) << r.output;
  EXPECT_NE(r.output.find("ids.12"), std::string::npos) << r.output;
  EXPECT_EQ(with("clean", "another text").code, 1);
  EXPECT_EQ(with("n", 3).code, 1);
  ids[3] = 999;
  EXPECT_EQ(with("ids", ids).code, 1);
  EXPECT_EQ(with("ids", "none").code, 3);
  fs::remove(tokens);
  EXPECT_EQ(verify({changed.string()}).code, 3) << "case.json says that there are tokens";
}

TEST(ReadFields, NoteWhatReadersAskForAndAUsersOtherFieldsAreLeftAlone) {
  const std::string text = R"({"dim": 4, "unheard_of": 1, "half": {"ch": 2, "unheard_of": 1}})";
  EXPECT_EQ(models::ConfigReader(text, "config.json").size("dim"), 4) << "nobody watches";
  const models::ReadFields fields;
  {
    const models::ReadFields inside;
    EXPECT_FALSE(models::ConfigReader(text, "config.json").has("width"));
    EXPECT_TRUE(inside.paths().contains("width"));
  }
  EXPECT_FALSE(fields.paths().contains("width"));
  const models::ConfigReader json(text, "config.json");
  EXPECT_EQ(json.size("dim"), 4);
  EXPECT_EQ(json.inner("half").size("ch"), 2);
  EXPECT_EQ(json.inner("other").size("ch", 7), 7) << "there is no such object";
  json.without_effect({"dropout"});
  for (const char* read : {"dim", "half/ch", "other/ch", "dropout", "_class_name"})
    EXPECT_TRUE(fields.paths().contains(read)) << read;
  for (const char* unread : {"unheard_of", "half", "half/unheard_of"}) EXPECT_FALSE(fields.paths().contains(unread));
}

TEST_F(Verify, AKeyThatNobodyReadsEndsWith3AndItsName) {
  const std::array<const char*, 2> places[] = {{"ema", ""},
                                               {"came", ""},
                                               {"adam8bit", ""},
                                               {"lr_schedules", "/wsd"},
                                               {"grad_scaler", ""},
                                               {"fp8", ""},
                                               {"flow", ""},
                                               {"sampling_sana", ""},
                                               {"sampling_opensora", "/v2_train"},
                                               {"opensora_loss", "/v13_runs/t2v"},
                                               {"opensora_masks", "/runs/v12_T3"},
                                               {"opensora_condition", "/runs/causal_short"},
                                               {"opensora_timesteps", ""},
                                               {"opensora_checkpoint", "/run"},
                                               {"opensora_vae12", "/vae_temporal"},
                                               {"opensora_vae13", "/decoder"},
                                               {"opensora_vae_tiling", "/cases/both"},
                                               {"opensora_dc_ae", ""},
                                               {"dc_ae_tiled", "/_tiling"},
                                               {"hunyuan_vae_tiled", ""},
                                               {"hunyuan15_inputs", "/sampling/480p"},
                                               {"wan21_vae", ""},
                                               {"clip_vision", ""},
                                               {"clip_text", ""},
                                               {"gemma2", ""},
                                               {"t5", ""},
                                               {"umt5", ""},
                                               {"wav2vec", ""},
                                               {"wan21_t2v", ""},
                                               {"wan22_s2v", ""},
                                               {"wan22_moe", ""},
                                               {"sana", ""},
                                               {"sana_video", ""},
                                               {"lora_sana", "/_lora"},
                                               {"opensora2", ""},
                                               {"opensora2_flux", ""},
                                               {"stdit3_v13", ""},
                                               {"tokenizers", "/clip"}};
  MatrixPart part("keys that nobody reads", static_cast<int>(std::size(places)), 6);
  for (const int chosen : part) {
    const auto& [name, place] = places[chosen];
    const std::string field = std::string(place) + "/unheard_of";
    const Result r = verify({with_field(copy(name), "config.json", field, 1).string()});
    EXPECT_EQ(r.code, 3) << name << "\n" << r.output;
    std::string path = field.substr(1);
    std::ranges::replace(path, '/', '.');
    EXPECT_NE(r.output.find("config.json: " + path + " is not known"), std::string::npos) << name << "\n" << r.output;
    EXPECT_EQ(r.output.find("ok "), std::string::npos) << name << "\n" << r.output;
  }
  for (const char* place : {"/unheard_of", "/tolerance/unheard_of", "/scalars"}) {
    fs::remove_all(run_.folder() / "clip_text");
    const Result r = verify({with_field(copy("clip_text"), "case.json", place, {{"unheard_of", 0.5}}).string()});
    EXPECT_EQ(r.code, 3) << place << "\n" << r.output;
    EXPECT_NE(r.output.find("unheard_of is not known"), std::string::npos) << place << "\n" << r.output;
  }
}

TEST_F(Verify, ARunOfUnknownSettingsIsRefusedAloneAndTheOthersAreCompared) {
  const fs::path folder = with_field(copy("lion"), "config.json", "/runs/wd/cautious_factor", 0.5);
  Result r = verify({folder.string()});
  EXPECT_EQ(r.code, 3) << r.output;
  EXPECT_NE(r.output.find("refused: wd: "), std::string::npos) << r.output;
  EXPECT_NE(r.output.find("cautious_factor"), std::string::npos) << r.output;
  EXPECT_NE(r.output.find("ok   lion/case.safetensors"), std::string::npos) << r.output;
  EXPECT_NE(r.output.find("   8 tensors"), std::string::npos) << "those of the run plain\n" << r.output;
  r = verify({with_field(folder, "config.json", "/runs/wd",
                         {{"lr", 1e-3}, {"betas", {0.9, 0.99}}, {"weight_decay", 0.1}, {"nesterov", true}})
                  .string()});
  EXPECT_EQ(r.code, 3) << r.output;
  EXPECT_NE(r.output.find("refused: wd: runs.wd.nesterov"), std::string::npos) << r.output;
  r = verify({with_field(folder, "config.json", "/runs/plain/betas/0", 0.5).string()});
  EXPECT_EQ(r.code, 1) << "what is compared differs\n" << r.output;
}

TEST_F(Verify, SettingsChangeWhatIsExpected) {
  struct Changed {
    const char *name, *place;
    nlohmann::ordered_json value;
  };
  const Changed all[] = {{"lion", "/runs/wd/decoupled_weight_decay", true},
                         {"prodigy", "/runs/default/betas", {0.8, 0.99}},
                         {"prodigy", "/runs/full/growth_rate", 1.02},
                         {"adafactor", "/runs/fixed_lr/beta1", 0.9},
                         {"adafactor", "/runs/relative/warmup_init", true},
                         {"adafactor", "/runs/relative/scale_parameter", false},
                         {"ema", "/runs/warmup/inv_gamma", 2.0},
                         {"ema", "/runs/default/min_decay", 0.5}};
  for (const auto& [name, place, value] : all) {
    fs::remove_all(run_.folder() / name);
    const Result r = verify({with_field(copy(name), "config.json", place, value).string()});
    EXPECT_EQ(r.code, 1) << place << "\n" << r.output;
  }
}

TEST_F(Verify, ACaseWithAnUnknownKeyAmongOthersIsReportedAndTheOthersAreCompared) {
  const std::string flow = (goldens_ / "flow").string();
  const std::string model = with_field(copy("clip_text"), "config.json", "/unheard_of", 1).string(),
                    rule = with_field(copy("ema"), "case.json", "/unheard_of", 1).string();
  for (const std::vector<std::string>& cases : {std::vector{model, rule, flow},
                                                {flow, rule, model},
                                                {model, flow, rule},
                                                {"--mesh", "dp_shard=2", model, rule, flow}}) {
    const Result r = verify(cases);
    EXPECT_EQ(r.code, 3) << r.output;
    for (const std::string said : {"clip_text/config.json: unheard_of is not known", "ema/case.json: ", "ok   flow/"})
      EXPECT_NE(r.output.find(said), std::string::npos) << said << "\n" << r.output;
    for (const char* other : {"ok   clip_text", "ok   ema", "FAIL"})
      EXPECT_EQ(r.output.find(other), std::string::npos) << other << "\n" << r.output;
  }
  const fs::path json = run_.folder() / "report.json";
  EXPECT_EQ(verify({"--json", json.string(), model, flow}).code, 3);
  const auto report = json_of(json);
  ASSERT_EQ(report.size(), 1U) << "of what was compared";
  EXPECT_EQ(report[0].at("case"), "flow");
  const fs::path changed = with_field(copy("lr_schedules"), "config.json", "/power", 1.25);
  const Result differs = verify({model, changed.string()});
  EXPECT_EQ(differs.code, 1) << "what differs comes before what is not known: " << differs.output;
}

TEST_F(Verify, SolversOfEveryOrderAndUnknownOnesAreRefusedAlone) {
  const fs::path folder = copy("sampling_sana");
  Result r = verify({folder.string()});
  EXPECT_EQ(r.code, 0) << r.output;
  EXPECT_EQ(r.output.find("not compared"), std::string::npos) << r.output;
  const std::pair<const char*, nlohmann::ordered_json> unknown[] = {{"/runs/dpm3/solver_order", 4},
                                                                    {"/runs/dpm2/solver_type", "bh2"},
                                                                    {"/runs/dpm1/use_lu_lambdas", true},
                                                                    {"/runs/dpm1/algorithm_type", "sde-dpmsolver++"}};
  for (const auto& [place, value] : unknown) {
    fs::remove_all(run_.folder() / "sampling_sana");
    r = verify({with_field(copy("sampling_sana"), "config.json", place, value).string()});
    EXPECT_EQ(r.code, 3) << place << "\n" << r.output;
    EXPECT_NE(r.output.find("refused: dpm"), std::string::npos) << place << "\n" << r.output;
    EXPECT_NE(r.output.find("32 tensors"), std::string::npos) << "those of the other runs\n" << r.output;
  }
  const std::pair<const char*, nlohmann::ordered_json> others[] = {{"/runs/dpm3/solver_order", 2},
                                                                   {"/runs/dpm2/solver_type", "heun"},
                                                                   {"/runs/dpm3/lower_order_final", false},
                                                                   {"/mu_linear", 1.8}};
  for (const auto& [place, value] : others) {
    fs::remove_all(run_.folder() / "sampling_sana");
    r = verify({with_field(copy("sampling_sana"), "config.json", place, value).string()});
    EXPECT_EQ(r.code, 1) << place << "\n" << r.output;
  }
}

TEST_F(Verify, HiddenStatesOfTextEncodersAreComparedOnSeveralLayouts) {
  for (const char* mesh : {"dp_shard=1", "tp=2", "pp=2"}) {
    const Result r = verify({"--mesh", mesh, (goldens_ / "gemma2").string()});
    EXPECT_EQ(r.code, 0) << r.output;
    EXPECT_EQ(r.output.find("not compared"), std::string::npos) << r.output;
  }
  const fs::path changed = copy("gemma2");
  rewrite(changed / "case.safetensors", [](const std::string& n, auto& bytes) {
    if (n == "out.hidden_states.2") add<float>(bytes, 0.01F);
  });
  const Result r = verify({changed.string()});
  EXPECT_EQ(r.code, 1) << r.output;
  EXPECT_NE(r.output.find("out.hidden_states.2: differs"), std::string::npos) << r.output;
}

}  // namespace
}  // namespace tessera::testing
