// Families on every axis of ranks, one of them that asks for all that a Context offers (tests/toy): their gradients are
// those of the plain context on one rank, random plans change no bit and take the memory they predict, and the program
// trains them to the same losses and weights on every layout, also from another layout's checkpoint. A new family takes
// the same three tests.
#include <fstream>
#include <optional>

#include "layout_table.h"
#include "learnt_clips.h"
#include "matrix.h"
#include "matrix_cases.h"
#include "planned_memory.h"
#include "seed_jobs.h"
#include "tessera/data/video.h"

namespace tessera::testing {
namespace {

namespace fs = std::filesystem;

/// Those of families.h but the standard one, which has tests of its own.
const std::vector<std::string> kFamilies = {"toy",       "sana",      "sana-video", "opensora", "hunyuan",
                                            "stdit:1.2", "stdit:1.3", "wan:vace",   "wan:fun",  "wan:animate"};

TEST(Families, HaveTheGradientsOfThePlainContextOnEveryRank) {
  const std::vector<std::string> axes = {"sp=2", "cp=2", "tp=2", "cp=2,tp=2"};
  const std::vector<std::string> table = {"cp=3",      "sp=3",           "tp=3",      "cp=4", "cp=2,sp=2",
                                          "sp=2,tp=2", "cp=2,sp=2,tp=2", "cp=3,tp=2", "cp=5"};
  std::vector<Job> jobs;
  for (const std::string& family : kFamilies) {
    MatrixPart two("gradients of " + family, static_cast<int>(axes.size()), 2);
    for (const int i : two) jobs.push_back({axes[static_cast<size_t>(i)], 0, 3, family});
    MatrixPart part("gradients of a family", 2 * static_cast<int>(table.size()));
    for (const int i : part) jobs.push_back({table[static_cast<size_t>(i) % table.size()], 10 * i, 10 * i + 5, family});
  }
  jobs.push_back({"cp=3", 15, 16, "wan:animate"});  // of one frame of a face
  expect_jobs_pass(FAMILY_WORKER, jobs);
}

TEST(Families, TakeRandomPlansWithoutAChangeOfBits) {
  const std::vector<std::string> axes = {"sp=2", "cp=2", "tp=2", "pp=2"};
  const std::vector<std::string> table = {"dp_shard=1",
                                          "dp_shard=2",
                                          "dp_replicate=2",
                                          "sp=2",
                                          "cp=2",
                                          "tp=2",
                                          "pp=2",
                                          "cp=3",
                                          "pp=3",
                                          "cp=2,sp=2",
                                          "cp=2,tp=2",
                                          "sp=2,tp=2",
                                          "dp_shard=2,cp=2",
                                          "dp_shard=2,tp=2",
                                          "pp=2,sp=2",
                                          "pp=2,cp=2",
                                          "pp=2,tp=2",
                                          "dp_replicate=2,dp_shard=2"};
  std::vector<Job> jobs;
  for (const std::string& family : kFamilies) {
    MatrixPart two("random plans of " + family, static_cast<int>(axes.size()), 2);
    for (const int i : two) jobs.push_back({axes[static_cast<size_t>(i)], 40, 42, family});
    MatrixPart part("random plans of a family", 4 * static_cast<int>(table.size()));
    for (const int i : part)
      jobs.push_back({table[static_cast<size_t>(i) % table.size()], 100 + 5 * i, 105 + 5 * i, family});
  }
  // A message of two streams is under way while its stage's backward runs.
  jobs.push_back({"pp=2,cp=2", 446, 447, "wan:vace"});
  // The most that a rank has is where a gradient is scaled by a number.
  jobs.push_back({"pp=2", 46, 47, "wan:animate"});
  jobs.push_back({"dp_shard=1", 102, 103, "wan:animate-lora"});
  expect_jobs_pass(PLAN_WORKER, jobs);
}

/// A family that a program trains. Three samples a step, of tokens that no two ranks have as many of. Adam makes of a
/// gradient that is nearly zero, and of its rounding, as much as of any other: few steps show it most, and so eps is
/// larger.
struct Trained {
  TinyRun run;
  std::vector<std::string> flags = {};
};
const Trained& trained(const std::string& name) {
  if (name == "toy") {
    static const Trained toy{TinyRun("family", TOY_BINARY, R"(family = "toy"
config = { dim = 48, num_heads = 4, num_layers = 3, ffn_dim = 60, text_dim = 64, text_len = 5 })")};
    return toy;
  }
  static const std::string fields =
      "config = { num_cross_attention_heads = 4, num_layers = 3, caption_channels = 64, caption_length = 5, "
      "in_channels = 12 }";
  if (name == "sana_video") {
    static const Trained video{TinyRun("sana-video", TESSERA_BINARY, "preset = \"sana-tiny-video\"\n" + fields)};
    return video;
  }
  if (name == "opensora") {  // its text is part of the tokens: ranks that share them may have none of it
    static const Trained mmdit{TinyRun("opensora", TESSERA_BINARY, R"(preset = "opensora2-tiny"
config = { in_channels = 48, context_in_dim = 64, context_length = 5, vec_in_dim = 32 })")};
    return mmdit;
  }
  if (name == "hunyuan") {  // its caption is refined by itself, on every rank, before it is part of the tokens; some
                            // samples begin with a picture, and all have twelve rows of what their captions quote
    static const Trained hunyuan{TinyRun("hunyuan", TESSERA_BINARY, R"(preset = "hunyuan-tiny"
config = { in_channels = 12, out_channels = 12, text_len = 5, glyph_len = 12 })"),
                                 {"--data.trigger", "“AB”", "--diffusion.image_share", "0.6"}};
    return hunyuan;
  }
  if (name == "stdit") {
    static const Trained stdit{TinyRun("stdit", TESSERA_BINARY, R"(preset = "opensora1.2-tiny"
config = { in_channels = 12, caption_channels = 64, model_max_length = 5 })")};
    return stdit;
  }
  if (name == "vace") {  // tensors of two streams between units, one of which ends before the last block
    static const Trained vace{TinyRun("vace", TESSERA_BINARY, R"(preset = "wan-vace-tiny"
config = { in_dim = 12, out_dim = 12, vace_in_dim = 88, text_dim = 64, text_len = 5, num_heads = 4, dim = 48 })"),
                              {"--data.references", "0"}};
    return vace;
  }
  if (name == "animate") {  // other clips' motion, and a unit of its own kind between the blocks
    static const Trained animate{TinyRun("animate", TESSERA_BINARY, R"(preset = "wan-animate-tiny"
config = { in_dim = 28, out_dim = 12, text_dim = 64, text_len = 5, image_dim = 24, image_len = 5, num_heads = 4, dim = 48 })")};
    std::ofstream(animate.run.folder() / "data" / "metadata.csv") << "video,prompt,pose,animate_face_video\n"
                                                                     "clip0.mp4,one,clip1.mp4,clip2.mp4\n"
                                                                     "clip1.mp4,two,clip2.mp4,clip0.mp4\n"
                                                                     "clip2.mp4,three,clip0.mp4,clip1.mp4\n";
    return animate;
  }
  if (name == "fun") {  // tokens of a picture behind a clip's; each condition is absent in some row
    static const Trained fun{TinyRun("fun", TESSERA_BINARY, R"(preset = "wan-tiny-fun-control"
config = { in_dim = 36, out_dim = 12, in_dim_ref_conv = 12, text_dim = 64, text_len = 5, image_dim = 24, image_len = 5, num_heads = 4, dim = 48 })")};
    const fs::path data = fun.run.folder() / "data";
    for (const int blue : {0, 250})
      write_captioned(data, "seen" + std::to_string(blue),
                      painted({1, 32, 32, 8, {}},
                              [=](int, int x, int y) {
                                return std::array<int, 3>{8 * x, 8 * y, blue};
                              }),
                      "");
    std::ofstream(data / "metadata.csv") << "video,prompt,control_video,reference_image\n"
                                            "clip0.mp4,one,clip1.mp4,\n"
                                            "clip1.mp4,two,,seen0.png\n"
                                            "clip2.mp4,three,clip0.mp4,seen250.png\n";
    return fun;
  }
  if (name == "stdit_windows") {  // 1.3: attention in windows, and positions by rotation
    static const Trained stdit{TinyRun("stdit-windows", TESSERA_BINARY, R"(preset = "opensora1.3-tiny"
config = { in_channels = 12, caption_channels = 64, model_max_length = 5 })")};
    return stdit;
  }
  static const Trained sana{TinyRun("sana", TESSERA_BINARY, "preset = \"sana-tiny-norms\"\n" + fields),
                            {"--data.frames", "1"}};
  return sana;
}
constexpr int kSteps = 8, kSaved = 4;

void train(const Trained& family, const Layout& layout, const std::string& name,
           const std::vector<std::string>& more = {}) {
  std::vector<std::string> flags = {"--run.steps",          std::to_string(kSteps),
                                    "--train.global_batch", "3",
                                    "--data.size",          "48,80",
                                    "--train.eps",          kSmoothEps,
                                    "--checkpoint.every",   std::to_string(kSaved),
                                    "--checkpoint.keep",    "0"};
  for (const auto* further : {&family.flags, &layout.flags, &more})
    flags.insert(flags.end(), further->begin(), further->end());
  const Result r = family.run.train(layout.ranks, name, flags, 300);
  ASSERT_EQ(r.code, 0) << r.output;
}

/// One rank, whom all are held against, and the weights before the first step; `kind` is trained with `more`.
void train_one(const Trained& family, const std::string& kind, const std::vector<std::string>& more) {
  if (fs::exists(family.run.out(kind + "-one"))) return;
  train(family, layout_of("dp_shard=1"), kind + "-one", more);
  std::vector<std::string> still = more;
  still.insert(still.end(), {"--run.steps", "1", "--train.lr", "0"});
  train(family, layout_of("dp_shard=1"), kind + "-start", still);
}

void expect_same_run(const Trained& family, const std::string& kind, const Layout& layout, const std::string& name,
                     const std::optional<Bounds>& bounds, double loss = kSameLoss) {
  const auto steps = family.run.metrics(name);
  expect_same_curve(family.run.metrics(kind + "-one"), steps, kSteps, loss);
  if (bounds) expect_same_weights(family.run, kind + "-one", name, kind + "-start", *bounds);
  ASSERT_FALSE(steps.empty());
  expect_as_planned(steps.back(), layout.mesh);
  expect_planned_peaks(steps.back(), name);  // three samples a step: of two ranks one has two
}

const std::vector<std::string> kLayouts = {
    "dp_shard=2 --plan.recompute all --plan.prefetch 0",
    "dp_replicate=2 --plan.strategy two_level --train.micro_batch 1",
    "dp_replicate=2,dp_shard=2 --plan.activations offload --plan.states host",
    "sp=2 --plan.recompute all",
    "sp=4 --plan.activations offload",
    "cp=2 --plan.recompute 2 --train.micro_batch 1",
    "cp=3 --plan.activations offload",
    "cp=4 --plan.states host",
    "tp=2 --plan.recompute all --train.micro_batch 1",
    "tp=4",
    "tp=2 --plan.activations offload --plan.prefetch 2",
    "cp=2,sp=2 --plan.recompute 1",
    "cp=2,tp=2 --plan.activations offload",
    "sp=2,tp=2 --train.micro_batch 1",
    "pp=2 --plan.pipeline 1f1b --train.micro_batch 1 --plan.recompute 1",
    "pp=3 --plan.pipeline zero_bubble --train.micro_batch 1",
    "pp=2,cp=2 --plan.pipeline zero_bubble --train.micro_batch 1",
    "pp=2,sp=2 --plan.pipeline gpipe --train.micro_batch 1",
    "pp=2,tp=2 --plan.pipeline interleaved --plan.chunks 2 --train.micro_batch 1",
    "dp_shard=2,cp=2,tp=2 --train.micro_batch 1",
    "cp=2,sp=2,tp=2 --plan.activations offload",
};

/// Runs a share of the layouts.
void check(const Trained& family, const std::string& matrix, const std::string& kind,
           const std::vector<std::string>& more, const std::optional<Bounds>& bounds, double loss = kSameLoss) {
  ASSERT_NO_FATAL_FAILURE(train_one(family, kind, more));
  MatrixPart part(matrix, static_cast<int>(kLayouts.size()));
  for (const int i : part) {
    const Layout layout = layout_of(kLayouts[static_cast<size_t>(i)]);
    SCOPED_TRACE(layout.text);
    std::printf("%s, %s\n", kind.c_str(), layout.text.c_str());
    std::fflush(stdout);
    const std::string name = kind + "-" + std::to_string(i);
    ASSERT_NO_FATAL_FAILURE(train(family, layout, name, more));
    expect_same_run(family, kind, layout, name, bounds, loss);
  }
}

/// All of them; of some one, by turns: a family's two generations, models of the standard family, and the second one of two
/// streams.
std::vector<const char*> families_in_turn() {
  constexpr const char* kGenerations[] = {"stdit", "stdit_windows", "vace", "hunyuan", "animate", "fun"};
  std::vector<const char*> all = {"toy", "sana", "sana_video", "opensora"};
  const auto chosen = in_turn("families by turns", kGenerations);
  all.insert(all.end(), chosen.begin(), chosen.end());
  return all;
}

class FamilyTraining : public ::testing::TestWithParam<const char*> {
 protected:
  const Trained& family_ = trained(GetParam());
};
INSTANTIATE_TEST_SUITE_P(Families, FamilyTraining, ::testing::ValuesIn(families_in_turn()),
                         [](const auto& info) { return std::string(info.param); });

TEST_P(FamilyTraining, EndsWithTheSameWeightsOnEveryLayoutInTheMemoryThatWasPredicted) {
  check(family_, "layouts of a family", "full", {}, Bounds{});
}

TEST_P(FamilyTraining, OfAdaptersEndsWithTheSameOnesOnEveryLayout) {
  ASSERT_NO_FATAL_FAILURE(train_one(family_, "full", {}));
  check(family_, "layouts of a family's adapters", "lora",
        {"--train.mode", "lora", "--lora.rank", "4", "--model.path", family_.run.out("full-one") + "/model"},
        Bounds{.of_largest = 1});  // B begins as zero: its largest value is its move
}

/// Of 16 bits a layout rounds at other places, and Adam amplifies it: losses alone are compared, within what the
/// matrix of layouts allows (layout_matrix_test.cpp).
TEST_P(FamilyTraining, HasTheSameLossesIn16Bits) {
  check(family_, "layouts of a family in 16 bits", "bf16", {"--plan.compute_dtype", "bf16"}, std::nullopt, 4e-4);
}

TEST_P(FamilyTraining, GoesOnFromTheCheckpointOfAnyOtherLayout) {
  ASSERT_NO_FATAL_FAILURE(train_one(family_, "full", {}));
  const int count = static_cast<int>(kLayouts.size());
  MatrixPart part("a family's resumes on another layout", count);
  for (const int to : part) {
    const Layout from = layout_of(kLayouts[static_cast<size_t>((to + 7) % count)]),
                 layout = layout_of(kLayouts[static_cast<size_t>(to)]);
    SCOPED_TRACE("written by " + from.text + ", resumed by " + layout.text);
    fs::remove_all(family_.run.out("resumed"));
    ASSERT_NO_FATAL_FAILURE(train(family_, from, "resumed"));
    fs::remove_all(family_.run.out("resumed") + "/checkpoints/step-000008");
    ASSERT_NO_FATAL_FAILURE(train(family_, layout, "resumed"));
    expect_same_run(family_, "full", layout, "resumed", Bounds{});
  }
}

/// Chunks with timesteps of their own: of two latent frames, of which the first is given to some clips.
TEST(FamilyChunks, TrainTheSameWeightsOnEveryLayoutInTheMemoryThatWasPredictedAndGoOnAnywhere) {
  const Trained& video = trained("sana_video");
  const std::vector<std::string> more = {"--diffusion.chunks",
                                         "0,1,2",  // a third one is not there
                                         "--diffusion.chunk_draws",
                                         "incremental",
                                         "--diffusion.chunk_same_share",
                                         "0.2",
                                         "--diffusion.timesteps",
                                         "sana",
                                         "--diffusion.image_share",
                                         "0.5",
                                         "--diffusion.first_frame_noise",
                                         "0.1",
                                         "--diffusion.weighting",
                                         "sigma"};
  ASSERT_NO_FATAL_FAILURE(check(video, "layouts of chunks", "chunks", more, Bounds{}));
  const auto chunks = video.run.metrics("chunks-one");
  ASSERT_NO_FATAL_FAILURE(train_one(video, "full", {}));
  EXPECT_NE(chunks[0]["loss"], video.run.metrics("full-one")[0]["loss"]);
  const Layout from = layout_of("dp_shard=2 --plan.recompute all"), to = layout_of("sp=2");
  fs::remove_all(video.run.out("resumed-chunks"));
  ASSERT_NO_FATAL_FAILURE(train(video, from, "resumed-chunks", more));
  fs::remove_all(video.run.out("resumed-chunks") + "/checkpoints/step-000008");
  ASSERT_NO_FATAL_FAILURE(train(video, to, "resumed-chunks", more));
  expect_same_run(video, "chunks", to, "resumed-chunks", Bounds{});
}

/// A clip of 9 latent frames by 2 is chunks of 3, 2, 2 and 2; one at once is another one.
TEST(FamilyChunks, AreSampledAlikeOnEveryMesh) {
  const Trained& video = trained("sana_video");
  ASSERT_NO_FATAL_FAILURE(train_one(video, "full", {}));
  const auto sampled = [&](const std::string& mesh, const std::string& name, const std::vector<std::string>& more) {
    const fs::path out = video.run.folder() / name;
    const Layout layout = layout_of(mesh);
    std::vector<std::string> line = {"launch",
                                     "-n",
                                     std::to_string(layout.ranks),
                                     "sample",
                                     video.run.out("full-one") + "/recipe.toml",
                                     "--prompt",
                                     "a slope",
                                     "--mesh",
                                     mesh,
                                     "--data.frames",
                                     "36",
                                     "--sample.steps",
                                     "3",
                                     "--sample.guidance",
                                     "3",
                                     "--format",
                                     "frames",
                                     "--out",
                                     out.string() + "/"};
    line.insert(line.end(), more.begin(), more.end());
    const Result r = video.run.tessera(line, 200);
    EXPECT_EQ(r.code, 0) << mesh << "\n" << r.output;
    return r.code == 0 ? data::decode_clip(out, {}) : data::Frames();
  };
  const auto apart = [](const data::Frames& a, const data::Frames& b) {  // the most that a value differs
    EXPECT_EQ(a.rgb.size(), b.rgb.size());
    int most = 0;
    for (size_t i = 0; i < std::min(a.rgb.size(), b.rgb.size()); ++i)
      most = std::max(most, std::abs(a.rgb[i] - b.rgb[i]));
    return most;
  };
  const std::vector<std::string> chunks = {"--sample.chunk", "2"};
  const data::Frames one = sampled("dp_shard=1", "chunks-1", chunks);
  ASSERT_EQ(one.count, 36);
  EXPECT_GT(apart(one, sampled("dp_shard=1", "whole", {})), 1);
  EXPECT_GT(apart(one, sampled("dp_shard=1", "short-reach", {"--sample.chunk", "2", "--sample.chunk_reach", "1"})), 1);
  for (const char* mesh : {"dp_shard=2", "sp=2", "tp=2", "cp=2", "pp=2"})
    EXPECT_LE(apart(one, sampled(mesh, std::string("chunks-") + mesh, chunks)), 1) << mesh;
}

TEST(Families, AnAxisThatDoesNotDivideTheHeadsIsRefusedBeforeTheRun) {
  const Result r = trained("toy").run.train(6, "refused", {"--mesh", "sp=3,tp=2", "--run.steps", "1"});
  EXPECT_EQ(r.code, 2) << r.output;
  EXPECT_NE(r.output.find("does not divide the model's 4 heads"), std::string::npos) << r.output;
}

}  // namespace
}  // namespace tessera::testing
