// Many layouts, each against one rank: the loss of every step, the weights at the end, the memory that was predicted.
// `make test` runs a share of each table, `make test-all` all of it.
#include <optional>

#include "layout_table.h"
#include "matrix.h"
#include "sound.h"

namespace tessera::testing {
namespace {

constexpr int kSteps = 20;

const TinyRun& shared() {
  static const TinyRun run("matrix");
  return run;
}

/// The same clips with sound.
const TinyRun& with_sound() {
  static const TinyRun& made = []() -> const TinyRun& {
    static const TinyRun run("matrix-sound");
    give_sound(run);
    return run;
  }();
  return made;
}

/// What is trained on all layouts of a table: flags that change the curve.
struct Training {
  std::string name;
  std::vector<std::string> flags;
  std::optional<Bounds> bounds = Bounds{};  ///< of the final weights; nothing: they are not compared
  double loss = kSameLoss;                  ///< how far the loss of a step may be, relatively
  const TinyRun& run = shared();
};

/// From an empty cache, with samples on the way: every layout encodes, and runs the denoiser forward.
void train(int ranks, const std::string& name, const Training& training, const std::vector<std::string>& more) {
  const std::string cache = (training.run.folder() / ("cache-" + name)).string();
  std::filesystem::remove_all(cache);
  std::vector<std::string> flags = {"--run.steps",       std::to_string(kSteps),
                                    "--data.cache",      cache,
                                    "--sample.every",    std::to_string(kSteps / 2),
                                    "--sample.steps",    "2",
                                    "--sample.guidance", "3",
                                    "--sample.prompts",  "a square"};
  flags.insert(flags.end(), training.flags.begin(), training.flags.end());
  flags.insert(flags.end(), more.begin(), more.end());
  const Result r = training.run.train(ranks, name, flags, 300);
  ASSERT_EQ(r.code, 0) << r.output;
}

/// Runs a share of the table and holds each layout against one rank, which is run once.
void check(const std::string& matrix, const Training& training, const std::vector<std::string>& table) {
  const std::string one = training.name + "-one", start = training.name + "-start";
  MatrixPart part(matrix, static_cast<int>(table.size()));
  if (training.run.metrics(one).empty()) {
    ASSERT_NO_FATAL_FAILURE(train(1, one, training, {}));
    ASSERT_NO_FATAL_FAILURE(train(1, start, training, {"--run.steps", "1", "--train.lr", "0"}));
  }
  for (int i : part) {
    const Layout layout = layout_of(table[i]);
    SCOPED_TRACE(training.name + ", " + layout.text);
    std::printf("%s, %s\n", training.name.c_str(), layout.text.c_str());
    std::fflush(stdout);
    const std::string here = training.name + "-here";
    std::filesystem::remove_all(training.run.out(here));
    train(layout.ranks, here, training, layout.flags);
    const auto steps = training.run.metrics(here);
    if (::testing::Test::HasFatalFailure()) return;
    expect_same_curve(training.run.metrics(one), steps, kSteps, training.loss);
    EXPECT_EQ(training.run.metrics(here, "sample").size(), 2u);
    if (training.bounds) expect_same_weights(training.run, one, here, start, *training.bounds);
    if (!steps.empty()) expect_as_planned(steps.back(), layout.mesh);
  }
}

/// Three samples a step, which two, four and eight ranks cannot share evenly.
const Training kThreeSamples = {"three", {"--train.global_batch", "3", "--train.eps", kSmoothEps}};
/// Five samples of 15 tokens: cut anywhere, no two ranks have as many.
const Training kOddTokens = {
    "odd", {"--train.global_batch", "5", "--data.frames", "4", "--data.size", "48,80", "--train.eps", kSmoothEps}};

const std::vector<std::string> kOnTwoOrThree = {
    "dp_shard=2",
    "dp_shard=2 --plan.strategy shard_grad_op --train.micro_batch 1",
    "dp_shard=2 --plan.strategy shard_states --train.micro_batch 1",
    "dp_shard=2 --plan.recompute all --plan.prefetch 0",
    "dp_shard=2 --plan.activations offload --plan.states host",
    "dp_replicate=2 --plan.strategy full_shard",
    "dp_replicate=2 --plan.strategy no_shard --train.micro_batch 1",
    "dp_replicate=2 --plan.strategy two_level --train.micro_batch 1",
    "dp_replicate=3 --plan.strategy two_level --plan.states host --plan.prefetch 0",
    "sp=2",
    "sp=2 --plan.recompute 2 --train.micro_batch 1",
    "sp=2 --plan.states host --plan.gradients host",
    "cp=2",
    "cp=2 --plan.activations offload",
    "cp=2 --plan.recompute all --train.micro_batch 2",
    "tp=2",
    "tp=2 --plan.recompute all --train.micro_batch 1",
    "tp=2 --plan.states host --plan.gradients host",
    "tp=2 --plan.activations offload --plan.prefetch 2",
    "pp=2 --plan.pipeline gpipe --train.micro_batch 1",
    "pp=2 --plan.pipeline interleaved --plan.chunks 2 --train.micro_batch 2",
    "pp=3 --train.micro_batch 3",
    "pp=2 --plan.pipeline 1f1b --train.micro_batch 1 --plan.recompute 1",
    "pp=2 --plan.pipeline interleaved --plan.chunks 2 --train.micro_batch 1",
    "pp=2 --plan.pipeline zero_bubble --train.micro_batch 1",
    "pp=2 --plan.pipeline zero_bubble --train.micro_batch 1 --plan.activations offload",
    "dp_shard=3",
    "cp=3",
    "cp=3 --plan.recompute all --train.micro_batch 1",
    "pp=3 --plan.pipeline zero_bubble --train.micro_batch 1",
};

const std::vector<std::string> kOnFour = {
    "dp_shard=4 --plan.recompute 1",
    "dp_replicate=2,dp_shard=2 --plan.strategy full_shard",
    "dp_replicate=2,dp_shard=2 --plan.strategy shard_grad_op --train.micro_batch 1",
    "dp_replicate=2,dp_shard=2 --plan.strategy two_level --plan.recompute 1",
    "dp_replicate=4 --plan.strategy two_level --plan.parameters host",
    "sp=4",
    "cp=4 --plan.recompute all",
    "tp=4",
    "tp=4 --plan.recompute 2 --train.micro_batch 1",
    "pp=4 --plan.pipeline 1f1b --train.micro_batch 1",
    "pp=4 --plan.pipeline zero_bubble --train.micro_batch 1 --plan.recompute all",
    "dp_shard=2,sp=2 --plan.recompute all --plan.prefetch 2",
    "dp_shard=2,cp=2 --plan.gradients host",
    "dp_shard=2,tp=2 --plan.recompute 1",
    "dp_replicate=2,sp=2",
    "dp_replicate=2,cp=2 --plan.strategy no_shard",
    "dp_replicate=2,tp=2 --plan.strategy no_shard",
    "dp_replicate=2,sp=2 --plan.strategy two_level --plan.gradients host",
    "dp_replicate=2,cp=2 --plan.strategy two_level --plan.parameters host --train.micro_batch 1",
    "dp_replicate=2,tp=2 --plan.strategy two_level",
    "pp=2,dp_replicate=2 --plan.strategy two_level --plan.pipeline zero_bubble --train.micro_batch 1",
    "cp=2,sp=2",
    "cp=2,tp=2 --plan.activations offload",
    "sp=2,tp=2 --train.micro_batch 1",
    "pp=2,dp_shard=2 --plan.pipeline zero_bubble --train.micro_batch 1 --plan.strategy full_shard",
    "pp=2,dp_replicate=2 --train.micro_batch 1 --plan.prefetch 0",
    "pp=2,sp=2 --plan.pipeline 1f1b --train.micro_batch 1",
    "pp=2,cp=2 --plan.pipeline zero_bubble --train.micro_batch 1",
    "pp=2,tp=2 --plan.pipeline 1f1b --train.micro_batch 1",
    "pp=2,tp=2 --plan.pipeline zero_bubble --train.micro_batch 1",
    "pp=2,tp=2 --plan.pipeline interleaved --plan.chunks 2 --train.micro_batch 1 --plan.recompute all",
};

const std::vector<std::string> kOnEight = {
    "dp_shard=8",
    "dp_replicate=2,dp_shard=4 --plan.recompute all",
    "dp_replicate=2,dp_shard=2,cp=2 --plan.states host",
    "dp_replicate=2,dp_shard=2,tp=2",
    "dp_replicate=2,dp_shard=2,tp=2 --plan.strategy two_level --plan.recompute all",
    "dp_replicate=4,dp_shard=2 --plan.strategy two_level --plan.states host",
    "dp_shard=2,cp=2,sp=2 --plan.recompute 1",
    "dp_shard=2,cp=2,tp=2 --train.micro_batch 1",
    "dp_shard=2,sp=2,tp=2",
    "cp=2,sp=2,tp=2 --plan.activations offload",
    "pp=2,dp_replicate=2,dp_shard=2 --plan.pipeline gpipe --train.micro_batch 1",
    "pp=2,dp_shard=2,tp=2 --plan.pipeline zero_bubble --train.micro_batch 1",
    "pp=2,cp=2,sp=2 --plan.pipeline 1f1b --train.micro_batch 1",
    "pp=2,cp=2,tp=2 --plan.pipeline interleaved --plan.chunks 2 --train.micro_batch 1",
    "pp=2,sp=2,tp=2 --train.micro_batch 1 --plan.recompute all",
    "pp=4,dp_shard=2 --plan.pipeline 1f1b --train.micro_batch 1",
};

const std::vector<std::string> kWithOddTokens = {
    "dp_shard=4",
    "dp_shard=2 --train.micro_batch 2",
    "sp=2",
    "sp=4 --plan.recompute all",
    "cp=3",
    "cp=4 --train.micro_batch 2",
    "tp=2",
    "tp=4 --train.micro_batch 1",
    "cp=2,sp=2 --train.micro_batch 3",
    "cp=2,tp=2",
    "pp=2,dp_shard=2 --train.micro_batch 1 --plan.pipeline zero_bubble",
    "dp_shard=2,cp=2,sp=2",
};

/// A frozen base and adapters.
const std::vector<std::string> kWithAdapters = {
    "dp_shard=2",
    "dp_shard=2 --plan.strategy shard_grad_op --train.micro_batch 1",
    "dp_replicate=2 --plan.strategy no_shard",
    "dp_replicate=2 --plan.strategy two_level",
    "dp_replicate=2,dp_shard=2 --plan.strategy two_level --train.micro_batch 1",
    "sp=2 --plan.recompute all",
    "cp=2",
    "cp=3 --plan.activations offload",
    "tp=2",
    "tp=2 --plan.recompute all --plan.parameters host",
    "pp=2 --train.micro_batch 1 --plan.pipeline 1f1b",
    "pp=2 --train.micro_batch 1 --plan.pipeline zero_bubble",
    "dp_shard=2,tp=2",
    "cp=2,sp=2",
    "pp=2,tp=2 --train.micro_batch 1",
    "pp=2,dp_shard=2,cp=2 --train.micro_batch 1",
};

TEST(LayoutMatrix, TwoOrThreeRanksEqualOne) { check("layouts of 2 and 3 ranks", kThreeSamples, kOnTwoOrThree); }
TEST(LayoutMatrix, FourRanksEqualOne) { check("layouts of 4 ranks", kThreeSamples, kOnFour); }
TEST(LayoutMatrix, EightRanksEqualOne) { check("layouts of 8 ranks", kThreeSamples, kOnEight); }
TEST(LayoutMatrix, TokensThatRanksCannotShareEvenlyGiveTheSame) {
  check("layouts with odd tokens", kOddTokens, kWithOddTokens);
}

/// Every axis alone, and a pipeline with each that shares tokens.
const std::vector<std::string> kOnEveryAxis = {"dp_shard=2",
                                               "dp_replicate=2",
                                               "sp=2 --train.micro_batch 1 --plan.activations bf16",
                                               "cp=2 --plan.activations int8 --train.micro_batch 1",
                                               "tp=2",
                                               "pp=2 --train.micro_batch 1",
                                               "pp=2 --train.micro_batch 2",
                                               "pp=2,sp=2 --train.micro_batch 2",
                                               "pp=2,cp=2 --train.micro_batch 3",
                                               "pp=2,tp=2 --train.micro_batch 2"};
/// Of activations in fewer bits: int8 is off by 0.6 %.
constexpr double kLossyLoss = 2e-3;

TEST(LayoutMatrix, PicturesAreTheSame) {
  Training pictures = {"pictures",
                       {"--train.global_batch", "3", "--model.config.model_type", "i2v", "--model.config.in_dim", "28",
                        "--model.config.image_dim", "24", "--model.config.image_len", "5"},
                       std::nullopt,
                       kLossyLoss};
  check("layouts with pictures", pictures, kOnEveryAxis);
}

TEST(LayoutMatrix, SpeechIsTheSame) {
  Training speech = {"speech", {"--train.global_batch", "3"}, std::nullopt, kLossyLoss, with_sound()};
  speech.flags.insert(speech.flags.end(), kHearing.begin(), kHearing.end());
  check("layouts with sound", speech, kOnEveryAxis);
}

/// A base trained in full for some steps: the head of a model without weights is zero, and adapters under it learn
/// nothing. What A learns begins as nearly nothing, since B is zero, so eps matters more than elsewhere.
Training adapters(const std::string& name, std::vector<std::string> more = {}) {
  if (!std::filesystem::exists(shared().out("base"))) {
    const Result r = shared().train(1, "base", {"--run.steps", "30", "--train.lr", "2e-3"});
    EXPECT_EQ(r.code, 0) << r.output;
  }
  std::vector<std::string> flags = {"--train.mode", "lora",    "--model.path",         shared().out("base") + "/model",
                                    "--lora.rank",  "4",       "--train.global_batch", "3",
                                    "--train.eps",  kSmoothEps};
  flags.insert(flags.end(), more.begin(), more.end());
  return {name, flags, Bounds{.of_largest = 1}};  // B begins as zero: its largest value is its move
}

TEST(LayoutMatrix, AdaptersOfAFrozenBaseAreTheSame) { check("layouts with LoRA", adapters("lora"), kWithAdapters); }

TEST(LayoutMatrix, AdaptersWithDropoutAndMagnitudesAreTheSame) {
  check("layouts with dropout", adapters("dropout", {"--lora.dropout", "0.2"}),
        {"dp_shard=2", "sp=2 --plan.recompute all", "cp=3", "tp=2", "cp=2,tp=2 --plan.recompute all",
         "pp=2 --train.micro_batch 1"});
  check("layouts with DoRA", adapters("dora", {"--lora.dora", "true"}),
        {"dp_shard=2", "sp=2", "cp=2 --plan.recompute all", "pp=2 --train.micro_batch 1",
         "pp=2 --train.micro_batch 1 --plan.pipeline zero_bubble", "tp=2", "tp=2 --plan.recompute all",
         "tp=4 --train.micro_batch 1", "dp_shard=2,tp=2 --plan.parameters host", "sp=2,tp=2 --plan.recompute 2",
         "cp=2,tp=2", "pp=2,tp=2 --train.micro_batch 1 --plan.pipeline zero_bubble"});
}

/// Of 16 bits a layout rounds at other places: partial sums of tp, micro-batches of other shapes, keys in other blocks.
/// A rounding is up to 2^-8 of a value in bf16; a loss is a mean over thousands, and Adam amplifies what differs, step
/// by step, most where a gradient is nearly zero, which is why weights are not compared. kHalfLoss is five times the
/// worst seen over the tables, 7.1e-5, and 200 times what fp32 is held to.
constexpr double kHalfLoss = 4e-4;
constexpr double kEightBitLoss = 4e-3;

const std::vector<std::string> kIn16Bits = {
    "dp_shard=2",
    "sp=2",
    "sp=2 --plan.recompute all --train.micro_batch 1",
    "sp=4 --plan.states host",
    "cp=2",
    "cp=2 --plan.activations offload",
    "cp=3 --plan.recompute all",
    "tp=2",
    "tp=2 --plan.recompute 2 --train.micro_batch 1",
    "tp=4",
    "cp=2,sp=2",
    "cp=2,tp=2 --plan.recompute all",
    "sp=2,tp=2",
    "dp_shard=2,cp=2 --plan.masters split",
    "pp=2,sp=2 --train.micro_batch 1 --plan.pipeline 1f1b",
    "pp=2,tp=2 --train.micro_batch 1 --plan.pipeline zero_bubble",
    "dp_shard=2,cp=2,tp=2 --plan.prefetch 2",
};

TEST(LayoutMatrix, ComputingIn16BitsIsTheSameWithinItsRounding) {
  const Training bf16 = {
      "bf16", {"--train.global_batch", "3", "--plan.compute_dtype", "bf16"}, std::nullopt, kHalfLoss};
  check("layouts in bf16", bf16, kIn16Bits);
}

/// Of products in 8 bits a scale belongs to what a rank, or a micro-batch, has of a sum: columns of tp, tokens of cp and sp. Its
/// codes are then others, each off by 2^-4 of a value at most. kEightBitLoss is five times the worst seen, 8.3e-4.
TEST(LayoutMatrix, ProductsIn8BitsAreTheSameWithinTheirRounding) {
  const Training fp8 = {
      "in-fp8", {"--train.global_batch", "3", "--plan.compute_dtype", "fp8"}, std::nullopt, kEightBitLoss};
  check("layouts with products in fp8", fp8, kIn16Bits);
  check(
      "layouts that gather codes", fp8,
      {"dp_shard=2 --plan.gather fp8", "dp_shard=3 --plan.gather fp8 --plan.recompute all",
       "dp_replicate=2,dp_shard=2 --plan.gather fp8", "dp_shard=2,tp=2 --plan.gather fp8 --plan.strategy shard_grad_op",
       "sp=2 --plan.gather fp8 --plan.parameters host", "dp_shard=2,cp=2 --plan.gather fp8 --plan.masters split",
       "pp=2,dp_shard=2 --train.micro_batch 1 --plan.gather fp8"});
  Training adapted = adapters("lora-in-fp8", {"--plan.compute_dtype", "fp8"});
  adapted.bounds.reset(), adapted.loss = kEightBitLoss;
  check("layouts with LoRA and products in fp8", adapted,
        {"dp_shard=2", "sp=2 --plan.recompute all", "cp=3 --plan.activations offload", "tp=2",
         "pp=2,tp=2 --train.micro_batch 1", "dp_replicate=2 --plan.strategy two_level",
         "pp=2 --train.micro_batch 1 --plan.pipeline zero_bubble"});
}

TEST(LayoutMatrix, AdaptersIn16BitsAreTheSameWithinTheirRounding) {
  Training bf16 = adapters("lora-bf16", {"--plan.compute_dtype", "bf16"});
  bf16.bounds.reset(), bf16.loss = kHalfLoss;
  check("layouts with LoRA in bf16", bf16, kWithAdapters);
  Training dropout = adapters("lora-fp16", {"--plan.compute_dtype", "fp16", "--lora.dropout", "0.2"});
  dropout.bounds.reset(), dropout.loss = kHalfLoss;
  check("layouts with LoRA and dropout in fp16", dropout,
        {"dp_shard=2", "sp=2 --plan.recompute all", "cp=3", "tp=2", "cp=2,tp=2 --plan.recompute all",
         "pp=2 --train.micro_batch 1 --plan.pipeline zero_bubble"});
}

/// Blocks of 256 elements belong to the tensor, not to a shard: whoever holds them, they are the same. tp alone cuts
/// what they are made of (docs/lora.md).
TEST(LayoutMatrix, AdaptersOfABaseIn8BitsAreTheSame) {
  const std::vector<std::string> layouts = {"dp_shard=2 --plan.strategy full_shard",
                                            "dp_shard=3 --plan.parameters host",
                                            "dp_replicate=2 --plan.strategy no_shard",
                                            "sp=2 --plan.recompute all",
                                            "cp=3",
                                            "pp=2 --train.micro_batch 1 --plan.pipeline zero_bubble",
                                            "dp_shard=2,cp=2"};
  MatrixPart forms("forms of a base", 4);
  for (const int form : forms) {
    if (form == 0) check("layouts with a base in int8", adapters("int8", {"--lora.base_dtype", "int8"}), layouts);
    if (form == 1) check("layouts with a base in fp8", adapters("fp8", {"--lora.base_dtype", "fp8"}), layouts);
    if (form == 2)
      check("layouts with a base in bf16", adapters("base-bf16", {"--lora.base_dtype", "bf16"}),
            {"dp_shard=2", "tp=2", "sp=2,tp=2 --plan.parameters host"});
    if (form != 3) continue;
    Training cut = adapters("int8-cut", {"--lora.base_dtype", "int8"});
    cut.bounds.reset(), cut.loss = kHalfLoss;
    check("layouts that cut a base in int8", cut, {"tp=2", "dp_shard=2,tp=2 --plan.recompute all"});
    Training rows = adapters("fp8-rows", {"--lora.base_dtype", "fp8", "--lora.dora", "true"});
    rows.bounds.reset(), rows.loss = kEightBitLoss;  // the codes of cut blocks are others: 5.1e-4 at most
    check("layouts that cut the rows of a base in fp8", rows, {"tp=2", "sp=2,tp=2 --plan.recompute all"});
  }
}

TEST(LayoutMatrix, FactorsOfLoHaAndLoKrAreTheSame) {
  const std::vector<std::string> layouts = {"tp=2",
                                            "tp=2,dp_shard=2 --plan.recompute all",
                                            "dp_shard=3 --plan.parameters host",
                                            "dp_replicate=2 --plan.strategy no_shard",
                                            "sp=2 --plan.recompute all",
                                            "cp=3",
                                            "cp=2,tp=2",
                                            "pp=2 --train.micro_batch 1 --plan.pipeline zero_bubble",
                                            "pp=2,tp=2"};
  check("layouts with LoKr", adapters("lokr", {"--lora.kind", "lokr", "--lora.factor", "4"}), layouts);
  check("layouts with LoHa and dropout", adapters("loha", {"--lora.kind", "loha", "--lora.dropout", "0.2"}), layouts);
}

TEST(LayoutMatrix, FactorsWithMagnitudesAreTheSame) {
  const std::vector<std::string> layouts = {"tp=2", "sp=2,tp=2 --plan.recompute all", "dp_shard=2",
                                            "pp=2,tp=2 --train.micro_batch 1 --plan.pipeline zero_bubble"};
  check("layouts with LoKr and magnitudes",
        adapters("lokr-dora", {"--lora.kind", "lokr", "--lora.factor", "4", "--lora.dora", "true"}), layouts);
  check("layouts with LoHa and magnitudes", adapters("loha-dora", {"--lora.kind", "loha", "--lora.dora", "true"}),
        layouts);
}

}  // namespace
}  // namespace tessera::testing
