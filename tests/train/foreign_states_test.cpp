// Folders that Open-Sora 2.0's trainer saved, by torch.save and by its writer beside the run: step, order of the
// parameters, moments and average are those of the reference.
#include "tessera/train/foreign_states.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "golden.h"
#include "need_goldens.h"
#include "tessera/checkpoint/resume.h"

namespace tessera::train {
namespace {

TEST(ForeignStates, OfOpenSorasFoldersAreThoseOfItsTrainer) {
  TESSERA_NEED_GOLDENS();
  const Golden golden("opensora_checkpoint");
  const TensorMap expected = golden.tensors("case.safetensors");
  const auto config = nlohmann::json::parse(golden.text("config.json"));
  const auto names = config.at("params").get<std::vector<std::string>>();
  for (const char* form : {"checkpoint_sync", "checkpoint_async"}) {
    SCOPED_TRACE(form);
    const std::string folder = golden.path(form) / "epoch0-global_step12";
    ASSERT_TRUE(checkpoint::is_trainer_folder(folder));
    const auto states = open_foreign_states(folder);
    EXPECT_EQ(states->step(), 12) << "updates, not micro-steps";
    ASSERT_EQ(states->order(), names);
    int compared = 0;
    for (const std::string kind : {"exp_avg", "exp_avg_sq"})
      for (const auto& name : config.at("run").at("probe")) {
        const auto number = std::ranges::find(names, name.get<std::string>()) - names.begin();
        const auto moment = states->find(std::to_string(number), kind);
        ASSERT_TRUE(moment) << name;
        const at::Tensor wanted = expected.at("expect_" + kind + "." + name.get<std::string>());
        ASSERT_EQ(at::IntArrayRef(moment->shape), wanted.sizes());
        const at::Tensor found = at::empty(wanted.sizes(), at::kFloat);
        moment->read(found.mutable_data_ptr<float>());
        EXPECT_TRUE(found.equal(wanted)) << kind << " of " << name;
        ++compared;
      }
    EXPECT_EQ(compared, 6);
    EXPECT_FALSE(states->find(std::to_string(names.size()), "exp_avg")) << "there are no more";
    const auto average = states->average();
    ASSERT_TRUE(average);
    EXPECT_EQ(average->names().size(), names.size());
  }
}

}  // namespace
}  // namespace tessera::train
