// Runs on several data sets: the same on every layout, resumed with each set where it was.
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>

#include "program.h"

namespace tessera::testing {
namespace {

namespace fs = std::filesystem;
using Flags = std::vector<std::string>;

Flags with(Flags flags, const Flags& more) {
  flags.insert(flags.end(), more.begin(), more.end());
  return flags;
}

/// With its three clips, and two of another folder.
const TinyRun& tiny() {
  static const TinyRun run("sets");
  static const bool copied = [] {
    const fs::path data = run.folder() / "data", more = run.folder() / "more";
    fs::create_directories(more);
    for (const char* clip : {"clip0", "clip1"})
      for (const char* ending : {".mp4", ".txt"}) {
        const std::string stem = std::string(clip) + ending;
        fs::copy(data / stem, more / ("other-" + stem));
      }
    return true;
  }();
  EXPECT_TRUE(copied);
  return run;
}
std::string data_of(const std::string& folder) { return (tiny().folder() / folder).string(); }
Flags one_set() { return {"--data.path", "", "--data.set.0.path", data_of("data")}; }
/// The second one in a shape of its own, with captions and a loss weight of its own.
Flags two_sets() {
  return with(one_set(), {"--data.set.0.repeats", "2", "--data.set.1.path", data_of("more"), "--data.set.1.frames", "4",
                          "--data.set.1.size", "48,32", "--data.set.1.caption_prefix", "a film, ",
                          "--data.set.1.loss_weight", "0.5", "--diffusion.caption_dropout", "0.3"});
}

nlohmann::json places(const std::string& run, int step) {
  return json_of(tiny().out(run) + "/checkpoints/step-00000" + std::to_string(step) + "/manifest.json")["data"];
}

void expect_same_sets(const std::string& name, const std::string& reference) {
  const auto found = tiny().metrics(name), expected = tiny().metrics(reference);
  ASSERT_EQ(found.size(), expected.size()) << name;
  for (size_t i = 0; i < found.size(); ++i) {
    const double loss = expected[i]["loss"];
    EXPECT_NEAR(found[i]["loss"].get<double>(), loss, 1e-4 * loss) << name << " step " << i + 1;
    ASSERT_EQ(found[i]["sets"].size(), expected[i]["sets"].size());
    for (size_t s = 0; s < expected[i]["sets"].size(); ++s) {
      const auto &own = found[i]["sets"][s], &same = expected[i]["sets"][s];
      EXPECT_EQ(own["set"], same["set"]);
      EXPECT_EQ(own["samples"], same["samples"]) << name << " step " << i + 1;
      ASSERT_EQ(own.contains("loss"), same["samples"] > 0);
      if (own.contains("loss"))
        EXPECT_NEAR(own["loss"].get<double>(), same["loss"].get<double>(), 1e-4 * same["loss"].get<double>()) << name;
    }
  }
}

TEST(DataSets, AreTheSameOnEveryLayoutAndAreCountedEach) {
  const Flags flags = with(two_sets(), {"--run.steps", "8", "--checkpoint.every", "4"});
  const Result one = tiny().train(1, "one", flags);
  ASSERT_EQ(one.code, 0) << one.output;
  std::vector<int64_t> samples(2);
  for (const auto& step : tiny().metrics("one")) {
    ASSERT_EQ(step["sets"].size(), 2u);
    double weighted = 0;
    for (size_t s = 0; s < 2; ++s) {
      samples[s] += step["sets"][s]["samples"].get<int64_t>();
      if (step["sets"][s].contains("loss"))
        weighted +=
            step["sets"][s]["loss"].get<double>() * step["sets"][s]["samples"].get<double>() * (s == 0 ? 1 : 0.5);
    }
    EXPECT_NEAR(weighted / 4, step["loss"].get<double>(), 1e-12) << "the loss of a set's samples has its weight";
  }
  EXPECT_EQ(samples, (std::vector<int64_t>{24, 8})) << "four epochs of 3 clips twice and 2 once";
  EXPECT_EQ(places("one", 8)["sets"][0]["samples"], samples[0]);
  EXPECT_EQ(places("one", 8)["sets"][1],
            (nlohmann::json{{"set", data_of("more")}, {"samples", 8}, {"epoch", 4}, {"cursor", 0}}));
  for (const auto& [name, ranks, mesh] : {std::tuple("shard", 2, "dp_shard=2"),
                                          {"tp", 2, "tp=2"},
                                          {"pp", 2, "pp=2"},
                                          {"sp", 2, "sp=2"},
                                          {"replicas", 3, "dp_replicate=3"}}) {
    const Result r = tiny().train(ranks, name, with(flags, {"--mesh", mesh}));
    ASSERT_EQ(r.code, 0) << mesh << "\n" << r.output;
    expect_same_sets(name, "one");
    EXPECT_EQ(places(name, 8), places("one", 8)) << mesh;
  }
  EXPECT_NE(text_of(tiny().out("one") + "/report.html").find("Data sets"), std::string::npos);
  EXPECT_NE(one.output.find(data_of("more") + ": 2 samples, 2 of 8 in an epoch, 25.0 %"), std::string::npos)
      << one.output;
}

TEST(DataSets, GoOnEachWhereItWasOnTheSameLayoutToTheBitAndOnAnother) {
  const Flags flags = with(two_sets(), {"--data.set.1.from_step", "2", "--data.set.1.to_step", "4", "--run.steps", "6",
                                        "--checkpoint.every", "1", "--checkpoint.keep", "9"});
  const Result whole = tiny().train(2, "whole", flags);
  ASSERT_EQ(whole.code, 0) << whole.output;
  const auto steps = tiny().metrics("whole");
  ASSERT_EQ(steps.size(), 6u);
  for (size_t i = 0; i < 6; ++i) EXPECT_EQ(steps[i]["sets"].size(), i >= 1 && i < 4 ? 2u : 1u) << "step " << i + 1;
  for (const int stop : {1, 3, 5}) {
    const std::string same = "same" + std::to_string(stop), other = "other" + std::to_string(stop);
    const Flags first = with(flags, {"--run.steps", std::to_string(stop)});
    ASSERT_EQ(tiny().train(2, same, first).code, 0);
    fs::copy(tiny().out(same), tiny().out(other), fs::copy_options::recursive);
    const Result r = tiny().train(2, same, flags);
    ASSERT_EQ(r.code, 0) << r.output;
    EXPECT_EQ(tiny().losses(same), tiny().losses("whole")) << "to the bit";
    const Result o = tiny().train(1, other, flags);
    ASSERT_EQ(o.code, 0) << o.output;
    expect_same_sets(other, "whole");
    for (int step = stop + 1; step <= 6; ++step) EXPECT_EQ(places(other, step), places("whole", step)) << step;
  }
}

TEST(DataSets, OneOfThemIsWhatDataIsAlone) {
  const Flags flags = {"--run.steps", "4"};
  ASSERT_EQ(tiny().train(2, "alone", flags).code, 0);
  const Result r = tiny().train(2, "set", with(one_set(), flags));
  ASSERT_EQ(r.code, 0) << r.output;
  EXPECT_EQ(tiny().losses("set"), tiny().losses("alone"));
  EXPECT_EQ(tiny().model("set"), tiny().model("alone"));
  EXPECT_FALSE(tiny().metrics("alone")[0].contains("sets"));
}

TEST(DataSets, OtherWeightsGoOnBehindTheSamplesThatEachSetHasHad) {
  const auto flags = [](const char* weight, int steps) {
    return with(one_set(),
                {"--data.set.0.weight", "1", "--data.set.1.path", data_of("more"), "--data.set.1.weight", weight,
                 "--run.steps", std::to_string(steps), "--checkpoint.every", "1", "--checkpoint.keep", "9"});
  };
  ASSERT_EQ(tiny().train(1, "weights", flags("1", 3)).code, 0);
  EXPECT_EQ(places("weights", 3)["sets"][1]["samples"], 6);
  const Result r = tiny().train(1, "weights", flags("3", 5));
  ASSERT_EQ(r.code, 0) << r.output;
  EXPECT_NE(r.output.find("data.set.1.weight 1 -> 3"), std::string::npos) << r.output;
  EXPECT_EQ(places("weights", 5)["sets"][0]["samples"], 6 + 2);
  EXPECT_EQ(places("weights", 5)["sets"][1]["samples"], 6 + 6);
}

TEST(DataSets, PlansAndTopHaveALineForEach) {
  const Flags flags = with(two_sets(), {"--data.set.1.to_step", "3", "--data.set.1.role", "regularisation"});
  const Result text = tiny().tessera(with({"plan", tiny().recipe(), "--run.steps", "3"}, flags));
  ASSERT_EQ(text.code, 0) << text.output;
  EXPECT_NE(text.output.find(data_of("data") + ": each sample 2 times an epoch, 8x32x32"), std::string::npos)
      << text.output;
  EXPECT_NE(text.output.find(data_of("more") + ": as many samples as the others, 4x48x32"), std::string::npos)
      << text.output;
  EXPECT_NE(text.output.find("loss x 0.5, role regularisation, steps 1 to 3"), std::string::npos) << text.output;
  const Result run = tiny().train(1, "lines", with(flags, {"--run.steps", "3"}));
  ASSERT_EQ(run.code, 0) << run.output;
  const auto sets = json_of(tiny().out("lines") + "/plan.json").at("data_sets");
  ASSERT_EQ(sets.size(), 2u);
  EXPECT_EQ(sets[1]["role"], "regularisation");
  EXPECT_EQ(sets[1]["loss_weight"], 0.5);
  EXPECT_EQ(sets[1]["shapes"], (nlohmann::json{"4x48x32"}));
  EXPECT_GT(sets[0]["tokens"][1].get<int64_t>(), 0);
  const Result top = tiny().tessera({"top", tiny().out("lines"), "--once"});
  ASSERT_EQ(top.code, 0) << top.output;
  for (const char* folder : {"data", "more"})
    EXPECT_NE(top.output.find("data set " + data_of(folder) + "  loss "), std::string::npos) << top.output;
  EXPECT_EQ(tiny().tessera({"plan", tiny().recipe(), "--json"}).output.find("data_sets"), std::string::npos);
}

TEST(DataSets, OfRegularisationHaveAsManySamplesAsTheOthersTogether) {
  const Flags flags =
      with(one_set(), {"--data.set.0.repeats", "3", "--data.set.1.path", data_of("more"), "--data.set.1.role",
                       "regularisation", "--data.set.1.repeats", "7", "--run.steps", "6", "--train.global_batch", "3"});
  const Result r = tiny().train(1, "beside", flags);
  ASSERT_EQ(r.code, 0) << r.output;
  EXPECT_NE(r.output.find(data_of("more") + ": 2 samples, 9 of 18 in an epoch, 50.0 %"), std::string::npos) << r.output;
  EXPECT_EQ(places("beside", 6)["sets"][0]["samples"], 9);
  EXPECT_EQ(places("beside", 6)["sets"][1]["samples"], 9);
  const Result alone = tiny().train(1, "alone-beside", with(one_set(), {"--data.set.0.role", "regularisation"}));
  EXPECT_EQ(alone.code, 3) << alone.output;
}

TEST(DataSets, EachStageMayChangeThem) {
  const std::string recipe = (tiny().folder() / "staged.toml").string();
  std::ofstream(recipe) << text_of(tiny().recipe()) << "\n[[stage]]\nfrom = 3\n[[stage.data.set]]\nrepeats = 1\n"
                        << "[[stage.data.set]]\nrepeats = 3\ncaption_prefix = \"slow, \"\n"
                        << "[[stage]]\nfrom = 5\n[[stage.data.set]]\nloss_weight = 0\n";
  const auto train = [&](int ranks, const std::string& name, const Flags& more) {
    const Result r =
        tiny().tessera(with({"launch", "-n", std::to_string(ranks), "train", recipe, "--run.out", tiny().out(name)},
                            with(two_sets(), more)));
    EXPECT_EQ(r.code, 0) << r.output;
  };
  train(1, "staged", {"--run.steps", "6", "--checkpoint.every", "1", "--checkpoint.keep", "9"});
  const auto steps = tiny().metrics("staged");
  ASSERT_EQ(steps.size(), 6u);
  // A batch has one shape: two of the first set, of whose clips three of four are; then two of every three are the second's.
  EXPECT_EQ(places("staged", 2)["sets"][0]["samples"], 8);
  EXPECT_EQ(places("staged", 2)["sets"][1]["samples"], 0);
  EXPECT_GE(places("staged", 6)["sets"][1]["samples"].get<int>(), 8);
  for (const size_t step : {4, 5}) {  // of steps 5 and 6 only the second set counts, with its weight
    double weighted = 0;
    if (steps[step]["sets"][1].contains("loss"))
      weighted = 0.5 * steps[step]["sets"][1]["loss"].get<double>() * steps[step]["sets"][1]["samples"].get<double>();
    EXPECT_NEAR(steps[step]["loss"].get<double>(), weighted / 4, 1e-12);
  }
  train(2, "staged-two", {"--run.steps", "6", "--mesh", "dp_shard=2"});
  expect_same_sets("staged-two", "staged");
  train(1, "staged-parts", {"--run.steps", "4"});
  train(1, "staged-parts", {"--run.steps", "6"});
  EXPECT_EQ(tiny().losses("staged-parts"), tiny().losses("staged")) << "to the bit";
}

TEST(DataSets, TheLargestShapeOfAllDecidesThePlan) {
  const auto peak = [](const Flags& flags) {
    const Result r = tiny().tessera(with({"plan", tiny().recipe(), "--json"}, flags));
    EXPECT_EQ(r.code, 0) << r.output;
    const size_t begin = r.output.find("{\n"), end = r.output.rfind("}") + 1;
    return nlohmann::json::parse(r.output.substr(begin, end - begin))["device"]["peak_bytes"].get<int64_t>();
  };
  const Flags more = {"--data.set.1.path", data_of("more"), "--data.set.1.size"};
  EXPECT_EQ(peak(with(one_set(), with(more, {"64,64"}))), peak({"--data.size", "64,64"}));
  EXPECT_GT(peak(with(one_set(), with(more, {"64,64"}))), peak(one_set()));
  EXPECT_EQ(peak(with(one_set(), with(more, {"16,16"}))), peak(one_set()));
}

}  // namespace
}  // namespace tessera::testing
