// A checkpoint belongs to no layout: what any of ten writes, any other resumes, and the curve is that of one rank that
// was never interrupted.
#include <map>

#include "layout_table.h"
#include "matrix.h"

namespace tessera::testing {
namespace {

namespace fs = std::filesystem;

constexpr int kSteps = 8, kSaved = 4;

const char* const kLayouts[] = {
    "dp_shard=2 --plan.recompute 1",
    "dp_replicate=2,dp_shard=2 --plan.strategy two_level",
    "dp_shard=3 --plan.states host",
    "sp=2 --plan.strategy no_shard",
    "cp=3",
    "cp=2,sp=2 --plan.activations offload",
    "tp=2 --train.micro_batch 1",
    "pp=2 --plan.pipeline zero_bubble --train.micro_batch 1",
    "pp=2,tp=2 --plan.pipeline interleaved --plan.chunks 2 --train.micro_batch 1",
    "dp_shard=2,cp=2,tp=2",
};
constexpr int kCount = static_cast<int>(std::size(kLayouts));

const TinyRun& shared() {
  static const TinyRun run("resumes");
  return run;
}

void train(const Layout& layout, const std::string& name) {
  std::vector<std::string> flags = {"--run.steps",          std::to_string(kSteps),
                                    "--checkpoint.every",   std::to_string(kSaved),
                                    "--checkpoint.keep",    "0",
                                    "--train.global_batch", "3",
                                    "--train.eps",          kSmoothEps};
  flags.insert(flags.end(), layout.flags.begin(), layout.flags.end());
  const Result r = shared().train(layout.ranks, name, flags, 300);
  ASSERT_EQ(r.code, 0) << r.output;
  if (name == "resumed") {
    EXPECT_NE(r.output.find("resumed from"), std::string::npos) << r.output;
  }
}

/// The whole run of one layout, whose checkpoint in the middle others resume; written once.
std::string written_by(int layout) {
  const std::string name = "written-" + std::to_string(layout);
  if (!fs::exists(shared().out(name))) train(layout_of(kLayouts[layout]), name);
  return shared().out(name);
}

TEST(Resumes, AnyLayoutGoesOnFromTheCheckpointOfAnyOther) {
  const Layout alone = layout_of("dp_shard=1");
  train(alone, "one");
  ASSERT_EQ(shared().train(1, "start", {"--run.steps", "1", "--train.lr", "0"}).code, 0);
  MatrixPart part("resumes on another layout", kCount * (kCount - 1));
  for (int pair : part) {
    const int from = pair / (kCount - 1), rest = pair % (kCount - 1), to = rest + (rest >= from);
    SCOPED_TRACE(std::string("written by ") + kLayouts[from] + ", resumed by " + kLayouts[to]);
    std::printf("%s -> %s\n", kLayouts[from], kLayouts[to]);
    std::fflush(stdout);
    const fs::path source = written_by(from), target = shared().out("resumed");
    if (HasFatalFailure()) return;
    const fs::path saved = fs::path("checkpoints") / "step-000004";
    fs::remove_all(target);
    fs::create_directories(target / "checkpoints");
    fs::copy(source / saved, target / saved, fs::copy_options::recursive);
    fs::copy(source / "metrics.jsonl", target / "metrics.jsonl");
    train(layout_of(kLayouts[to]), "resumed");
    if (HasFatalFailure()) return;
    expect_same_curve(shared().metrics("one"), shared().metrics("resumed"), kSteps);
    expect_same_weights(shared(), "one", "resumed", "start");
  }
}

}  // namespace
}  // namespace tessera::testing
