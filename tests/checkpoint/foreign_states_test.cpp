// Folders that Open-Sora 2.0's trainer saved, by torch.save and by its writer beside the run: step, order of the
// parameters, moments and average are those of the reference. And what else such files and folders may hold.
#include "tessera/checkpoint/foreign_states.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "checkpoint/files.h"
#include "checkpoint/torch_bytes.h"
#include "need_goldens.h"
#include "tessera/checkpoint/training.h"

namespace tessera::checkpoint {
namespace {

TEST(ForeignStates, OfOpenSorasFoldersAreThoseOfItsTrainer) {
  TESSERA_NEED_GOLDENS();
  const Path golden = Path(TESSERA_GOLDENS) / "opensora_checkpoint";
  const auto expected = SafetensorsFile::open(golden / "case.safetensors");
  const auto config = nlohmann::json::parse(read_text(golden / "config.json"));
  const auto names = config.at("params").get<std::vector<std::string>>();
  for (const char* form : {"checkpoint_sync", "checkpoint_async"}) {
    SCOPED_TRACE(form);
    const std::string folder = golden / form / "epoch0-global_step12";
    ASSERT_TRUE(is_trainer_folder(folder));
    const auto states = open_foreign_states(folder);
    EXPECT_EQ(states->step(), 12) << "updates, not micro-steps";
    ASSERT_EQ(states->order(), names);
    int compared = 0;
    for (const std::string kind : {"exp_avg", "exp_avg_sq"})
      for (const auto& name : config.at("run").at("probe")) {
        const auto number = std::ranges::find(names, name.get<std::string>()) - names.begin();
        const auto moment = states->find(std::to_string(number), kind);
        ASSERT_TRUE(moment) << name;
        const auto& entry = expected.at("expect_" + kind + "." + name.get<std::string>());
        ASSERT_EQ(moment->shape, entry.shape);
        std::vector<float> wanted(static_cast<size_t>(entry.count())), found(wanted.size());
        expected.read_f32(entry.name, 0, entry.count(), wanted.data());
        moment->read(found.data());
        EXPECT_EQ(found, wanted) << kind << " of " << name;
        ++compared;
      }
    EXPECT_EQ(compared, 6);
    EXPECT_FALSE(states->find(std::to_string(names.size()), "exp_avg")) << "there are no more";
    const auto average = states->average();
    ASSERT_TRUE(average);
    EXPECT_EQ(average->names().size(), names.size());
  }
}

class ForeignStatesFile : public FileTest {
 protected:
  /// Of one tensor and `more` beside it in the outermost dict.
  std::unique_ptr<ForeignStates> open_with(PickleMaker::Items more) const {
    more.insert(more.begin(), {"model", PickleMaker::inner({{"a", PickleMaker::tensor("0", 2, 0, {2}, {1})}})});
    PickleMaker pickle;
    pickle.dict(more);
    const float values[2] = {};
    ZipWriter zip(path("state.pt"), 4096);
    zip.add("archive/data.pkl", pickle.bytes().data(), static_cast<int64_t>(pickle.bytes().size()));
    zip.add("archive/data/0", values, sizeof values);
    zip.commit();
    return open_foreign_states(path("state.pt").string());
  }
};

TEST_F(ForeignStatesFile, ATextUnderTheNameOfGroupsIsNoNumberOfThem) {
  for (const char* text : {"many", "-1", "99999999999999999999"})
    EXPECT_EQ(open_with({{"optimizer.param_groups", PickleMaker::text(text)}})->groups(), 1) << text;
}

TEST_F(ForeignStatesFile, AStepIsAWholeNumberFromZeroOn) {
  EXPECT_EQ(open_with({{"step", PickleMaker::integer(12)}})->step(), 12);
  for (const std::string& step : {PickleMaker::integer(-1), PickleMaker::text("12 steps"), PickleMaker::text("1e3")})
    expect_error(Exit::input, {"state.pt", "has no step"}, [&] { open_with({{"step", step}})->step(); });
}

TEST_F(ForeignStatesFile, AnIndexThatIsNoFileIsRefusedNotAwaited) {
  write("running_states.json", R"({"global_step": 3})");
  std::filesystem::create_directories(path("optimizer"));
  std::filesystem::create_symlink("/dev/zero", path("optimizer/pytorch_optim.bin.index.json"));
  expect_error(Exit::input, {"pytorch_optim.bin.index.json"}, [&] { open_foreign_states(folder_.string()); });
}

}  // namespace
}  // namespace tessera::checkpoint
