#include "tessera/planning/disk_need.h"

#include <gtest/gtest.h>

#include "folder_test.h"
#include "tessera/base/check.h"
#include "tessera/models/registry.h"
#include "tessera/planning/plan_request.h"

namespace tessera::planning {
namespace {

namespace fs = std::filesystem;

class DiskNeed : public FolderTest {
 protected:
  void SetUp() override {
    FolderTest::SetUp();
    const auto model = models::make_denoiser({.preset = "wan-tiny"});
    PlanRequest request;
    request.model = model.get();
    request.model_name = "tiny";
    request.latent = {4, 2, 4, 4};
    request.mesh = Mesh::parse("single");
    request.planner.global_batch = request.planner.micro_batch = 1;
    request.run.steps = 1;
    planned_ = make_plan(request);
  }

  /// A checkpoint of the run that takes `bytes`, none of them on the disk.
  fs::path checkpoint_of(const std::string& name, int64_t bytes) const {
    const fs::path folder = write("checkpoints/" + name + "/rank-00000.safetensors", "").parent_path();
    fs::resize_file(folder / "rank-00000.safetensors", static_cast<uintmax_t>(bytes));
    return folder;
  }
  /// The run keeps all of its checkpoints, which together take `bytes`.
  void need(int64_t bytes) {
    planned_.checkpoints_kept = 0;
    planned_.run.checkpoint_every = 1;
    planned_.run.steps = bytes / run_disk(planned_).checkpoint_bytes + 1;
  }
  int64_t free() const { return static_cast<int64_t>(fs::space(folder_).available); }

  Planned planned_;
};

TEST_F(DiskNeed, OfCheckpointsThatTheRunReplacesIsSparedAndOfThoseItLeavesBehindIsNot) {
  const int64_t large = 2 * free();
  need(large);
  EXPECT_THROW(check_disk(planned_, folder_), UserError) << "more than there is";
  const fs::path replaced = checkpoint_of("step-000005", large), left = checkpoint_of("step-000009", large);
  EXPECT_NO_THROW(check_disk(planned_, folder_)) << "the run's own older checkpoints make room";
  EXPECT_NO_THROW(check_disk(planned_, folder_, {left})) << "one of them does";
  try {
    check_disk(planned_, folder_, {left, replaced});
    ADD_FAILURE() << "what is left behind was counted as room";
  } catch (const UserError& error) {
    EXPECT_EQ(error.code(), Exit::disk);
    const std::string text = error.what();
    EXPECT_NE(text.find("2 checkpoints and exports beyond run.resume stay, in abandoned-N"), std::string::npos) << text;
  }
}

TEST_F(DiskNeed, ExportsCountBesideCheckpoints) {
  const int64_t exported = run_disk(planned_).export_bytes;
  int64_t numbers = 0;
  for (const plan::UnitSpec& unit : planned_.spec.units)
    for (const plan::ParamSpec& param : unit.params) numbers += param.numel();
  EXPECT_EQ(exported, 4 * numbers) << "fp32, frozen ones too";
  const auto told = [&] {
    try {
      check_disk(planned_, folder_);
      return std::string();
    } catch (const UserError& error) {
      return std::string(error.what());
    }
  };
  // Of what is free, checkpoints alone leave a part to spare that their exports do not fit into.
  need(free() * 3 / 4);
  EXPECT_EQ(told(), "");
  planned_.exported.each_save = true;
  const std::string all = std::to_string(planned_.run.steps);
  EXPECT_NE(told().find(all + " exports and model of "), std::string::npos) << told();
  EXPECT_NE(told().find("checkpoint.keep_exports to fewer, or checkpoint.export to none"), std::string::npos) << told();
  planned_.exported.kept = 2;
  EXPECT_EQ(told(), "") << "few of them are kept";
  EXPECT_EQ(run_disk(planned_).exports, 4) << "the one that is written, and that of the proved checkpoint";
  // An average is exported too.
  planned_.exported = {};
  planned_.choice.plan.states.ema = true;
  need(free() + (int64_t{1} << 40));
  EXPECT_NE(told().find(", model and model_ema of "), std::string::npos) << told();
  // Of a LoRA its adapters alone, under each name; they lie in the checkpoint too.
  planned_.exported.adapters = true;
  for (plan::UnitSpec& unit : planned_.spec.units)
    for (plan::ParamSpec& param : unit.params) param.trainable = false;
  planned_.spec.units[0].params[0].trainable = true;
  const int64_t adapter = 4 * planned_.spec.units[0].params[0].numel();
  EXPECT_EQ(run_disk(planned_).export_bytes, adapter);
  EXPECT_EQ(run_disk(planned_).beside_bytes, 0);
  planned_.exported.files = 3, planned_.exported.each_save = true;
  EXPECT_EQ(run_disk(planned_).export_bytes, 3 * adapter);
  EXPECT_EQ(run_disk(planned_).beside_bytes, 3 * adapter);
}

TEST_F(DiskNeed, IsWhatARunHasAtOnce) {
  planned_.run.steps = 100, planned_.run.checkpoint_every = 10, planned_.checkpoints_kept = 3;
  planned_.exported.each_save = true;
  const RunDisk disk = run_disk(planned_);
  EXPECT_EQ(disk.checkpoints, 5) << "those that stay, the one that is written, the newest proved one";
  EXPECT_EQ(disk.exports, 10);
  EXPECT_EQ(disk.bytes(), 5 * disk.checkpoint_bytes + 11 * disk.export_bytes);
  planned_.choice.plan.experts = 2;
  EXPECT_EQ(run_disk(planned_).checkpoints, 6) << "and one that waits for the other expert's turn";
  EXPECT_EQ(run_disk(planned_).export_bytes, 2 * disk.export_bytes);
  planned_.run.checkpoint_every = 0;
  EXPECT_EQ(run_disk(planned_).checkpoints, 1);
  EXPECT_EQ(run_disk(planned_).exports, 1);
}

TEST_F(DiskNeed, ExportsThatAreLeftBehindStay) {
  const int64_t large = 2 * free();
  need(large);
  const fs::path left = write("exports/step-000009/model.safetensors", "").parent_path();
  fs::resize_file(left / "model.safetensors", static_cast<uintmax_t>(large));
  EXPECT_NO_THROW(check_disk(planned_, folder_)) << "it is written anew";
  EXPECT_THROW(check_disk(planned_, folder_, {left}), UserError);
}

}  // namespace
}  // namespace tessera::planning
