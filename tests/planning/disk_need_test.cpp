#include "tessera/planning/disk_need.h"

#include <gtest/gtest.h>

#include "folder_test.h"
#include "tessera/base/check.h"
#include "tessera/models/registry.h"
#include "tessera/planning/make_plan.h"

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
    recipe_.values["checkpoint.export"] = "none";
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
    planned_.run.steps = bytes / checkpoint_bytes(planned_) + 1;
  }
  int64_t free() const { return static_cast<int64_t>(fs::space(folder_).available); }

  Planned planned_;
  recipe::Recipe recipe_;
};

TEST_F(DiskNeed, OfCheckpointsThatTheRunReplacesIsSparedAndOfThoseItLeavesBehindIsNot) {
  const int64_t large = 2 * free();
  need(large);
  EXPECT_THROW(check_disk(planned_, recipe_, folder_), UserError) << "more than there is";
  const fs::path replaced = checkpoint_of("step-000005", large), left = checkpoint_of("step-000009", large);
  EXPECT_NO_THROW(check_disk(planned_, recipe_, folder_)) << "the run's own older checkpoints make room";
  EXPECT_NO_THROW(check_disk(planned_, recipe_, folder_, {left})) << "one of them does";
  try {
    check_disk(planned_, recipe_, folder_, {left, replaced});
    ADD_FAILURE() << "what is left behind was counted as room";
  } catch (const UserError& error) {
    EXPECT_EQ(error.code(), Exit::disk);
    const std::string text = error.what();
    EXPECT_NE(text.find("2 checkpoints beyond run.resume stay, in abandoned-N"), std::string::npos) << text;
  }
}

TEST_F(DiskNeed, ExportsCountBesideCheckpoints) {
  const int64_t exported = export_bytes(planned_, recipe_.lora);
  int64_t numbers = 0;
  for (const plan::UnitSpec& unit : planned_.spec.units)
    for (const plan::ParamSpec& param : unit.params) numbers += param.numel();
  EXPECT_EQ(exported, 4 * numbers) << "fp32, frozen ones too";
  const auto told = [&] {
    try {
      check_disk(planned_, recipe_, folder_);
      return std::string();
    } catch (const UserError& error) {
      return std::string(error.what());
    }
  };
  // Of what is free, checkpoints alone leave a part to spare that their exports do not fit into.
  need(free() * 3 / 4);
  EXPECT_EQ(told(), "");
  recipe_.values["checkpoint.export"] = "model";
  EXPECT_NE(told().find(" in each, and model of "), std::string::npos) << told();
  EXPECT_NE(told().find("checkpoint.export to none"), std::string::npos) << told();
  // An average is exported too.
  recipe_.values["checkpoint.export"] = "none";
  planned_.choice.plan.states.ema = true;
  need(free() + (int64_t{1} << 40));
  EXPECT_NE(told().find("and model and model_ema of "), std::string::npos) << told();
  // Of a LoRA its adapters alone, under each name.
  recipe_.lora.on = true;
  for (plan::UnitSpec& unit : planned_.spec.units)
    for (plan::ParamSpec& param : unit.params) param.trainable = false;
  planned_.spec.units[0].params[0].trainable = true;
  const int64_t adapter = 4 * planned_.spec.units[0].params[0].numel();
  recipe_.lora.exports = {"diffusers"};
  EXPECT_EQ(export_bytes(planned_, recipe_.lora), adapter);
  recipe_.lora.exports = {"kohya", "peft"};
  EXPECT_EQ(export_bytes(planned_, recipe_.lora), 3 * adapter) << "they are made from diffusers' file";
}

}  // namespace
}  // namespace tessera::planning
