// Several captions of a clip: which are drawn, how often, and that a run that resumes draws the same.
#include "tessera/data/captions.h"

#include <algorithm>
#include <set>

#include "data/scene.h"
#include "tessera/data/dataset.h"
#include "tessera/data/order.h"

namespace tessera::data {

namespace {

Captions chosen(const NamedCaptions& named, const NamedNumbers& scores, const CaptionRules& rules,
                bool lenient = false) {
  return choose_captions(named, scores, rules, "clip", lenient);
}
using Texts = std::vector<std::string>;
using Weights = std::vector<double>;

}  // namespace

TEST(DressedCaptions, HaveTriggerAndPrefixAndAsManyVariantsAsAreAsked) {
  const auto dress = [](const Texts& texts, const CaptionRules& rules) { return dressed({texts, {}}, rules).texts; };
  EXPECT_EQ(dress({"[trigger] walks", "a dog", "sks sits", ""}, {.prefix = "film: ", .trigger = "sks"}),
            (Texts{"film: sks walks", "film: sks a dog", "film: sks sits", "film: sks"}));
  EXPECT_EQ(dress({"[trigger] walks"}, {}), Texts{"[trigger] walks"}) << "without a trigger nothing is replaced";
  EXPECT_EQ(kept_of_dropped({.prefix = "film: ", .trigger = "sks"}), "film: sks");
  EXPECT_EQ(kept_of_dropped({}), "");

  const CaptionRules rules{.shuffles = 40, .keep_tokens = 1, .delimiter = ";"};
  const Texts variants = dress({"a;b;c;d"}, rules);
  ASSERT_EQ(variants.size(), 40u);
  std::set<std::string> seen(variants.begin(), variants.end());
  EXPECT_EQ(seen.size(), 6u) << "all orders of three tags";
  for (std::string text : seen) {
    EXPECT_TRUE(text.starts_with("a;")) << text;
    std::ranges::sort(text);
    EXPECT_EQ(text, ";;;abcd");
  }
  EXPECT_EQ(dress({"a;b;c;d"}, rules), variants) << "the text alone decides";
  EXPECT_NE(dress({"a;b;c;e"}, rules)[0].substr(0, 1), "b");
  EXPECT_EQ(dress({"single", ""}, {.shuffles = 2}), (Texts{"single", "single", "", ""}));
  EXPECT_EQ(dress({"a, b"}, {.shuffles = 3, .keep_tokens = 9}), (Texts{"a, b", "a, b", "a, b"}));
  const Captions weighed = dressed({{"a", "b"}, {3, 1}}, {.shuffles = 2});
  EXPECT_EQ(weighed.weights, (Weights{1.5, 1.5, 0.5, 0.5}));
}

TEST(CaptionShares, TheShareOfANameThatAClipLacksGoesToItsPrompt) {
  const CaptionRules rules{.shares = {{"prompt", 5}, {"_long", 20}, {"_other", 75}}};
  const Captions all = chosen({{"prompt", "p"}, {"_long", "l"}, {"_other", "o"}}, {}, rules);
  EXPECT_EQ(all.texts, (Texts{"p", "l", "o"}));
  EXPECT_EQ(all.weights, (Weights{5, 20, 75}));
  const Captions lacking = chosen({{"prompt", "p"}, {"_long", "l"}}, {}, rules);
  EXPECT_EQ(lacking.texts, (Texts{"p", "l", "p"}));
  EXPECT_EQ(lacking.weights, (Weights{5, 20, 75}));
  const Captions lenient = chosen({{"prompt", "p"}, {"_long", "l"}}, {}, rules, /*lenient=*/true);
  EXPECT_EQ(lenient.weights, (Weights{5, 20})) << "or is left out, as for archives of videos";
  EXPECT_EQ(chosen({{"prompt", "p"}}, {}, {}).texts, Texts{"p"});
  EXPECT_EQ(chosen({{"caption", "c"}}, {}, {}).texts, Texts{"c"});
  expect_error(Exit::input, {"clip: no caption to draw", "'x'"}, [] { chosen({{"x", "c"}}, {}, {}); });
}

TEST(CaptionScores, DrawByTheirPowerFromTheLeastScoreOn) {
  const CaptionRules rules{.score_files = {"_s"}, .score_min = 25, .score_temperature = 0.1};
  const NamedCaptions named = {{"a", "A"}, {"b", "B"}, {"c", "C"}};
  const Captions two = chosen(named, {{"a", 30}, {"b", 27}, {"c", 24}, {"gone", 40}}, rules);
  EXPECT_EQ(two.texts, (Texts{"A", "B"}));
  EXPECT_NEAR(two.weights[1] / two.weights[0], std::pow(27.0 / 30.0, 10), 1e-12);
  EXPECT_EQ(chosen(named, {{"a", 20}, {"b", 24}}, rules).texts, Texts{"B"}) << "none is good enough: the best";
  EXPECT_EQ(chosen({{"prompt", "p"}, {"a", "A"}}, {}, rules).texts, Texts{"p"}) << "no scores";
}

class CaptionSets : public FolderTest {};

TEST_F(CaptionSets, OfAListOfPicturesAreInFilesBesideThem) {
  write("one.png", "x"), write("one.txt", "first line\nsecond line\n"), write("two.jpg", "x"), write("two.txt", "two");
  write("meta_data.json", R"({"name": "toy", "__kind__": "a set", "img_names": ["one", "two.jpg"]})");
  write("one_long.json", R"({"one": {"_long": "a longer one"}})");
  write("one_score.json", R"({"one": {"_long": "31.5", "prompt": 20}})");
  EXPECT_EQ(read_dataset({.path = folder_}).at(0).captions, Texts{"first line"});
  const CaptionRules rules{.files = {"_long"}, .score_files = {"_score"}, .score_min = 25};
  Problems problems;
  const auto items = read_dataset({.path = folder_, .captions = rules}, problems);
  ASSERT_EQ(items.size(), 2u);
  EXPECT_EQ(items[0].captions, Texts{"a longer one"});
  EXPECT_EQ(items[1].captions, Texts{"two"});
  ASSERT_EQ(problems.notes().size(), 2u);
  EXPECT_NE(problems.notes()[0].find("NAME_long.json: not there for 1 of 2"), std::string::npos);
  write("meta_data.json", R"({"img_names": ["one", "gone"]})");
  expect_error(Exit::input, {"img_names[1]", "gone", "no such file"}, [&] { read_dataset({.path = folder_}); });
  write("meta_data.json", R"({"img_names": ["one"]})");
  write("one_score.json", R"({"one": {"prompt": "high"}})");
  expect_error(Exit::input, {"the score of 'prompt'", "expected a number"},
               [&] { read_dataset({.path = folder_, .captions = rules}); });
}

TEST_F(CaptionSets, OfAFileAreItsLinesWhereThatIsAsked) {
  write("one.png", "x"), write("one.txt", "a cat\r\n\na dog\n"), write("two.png", "x"), write("two.txt", "");
  write("one.tags", "cat, dog\nnever"), write("two.tags", "one line");
  const auto captions = [&](const CaptionRules& rules) {
    std::vector<Texts> all;
    for (const Item& item : read_dataset({.path = folder_, .captions = rules})) all.push_back(item.captions);
    return all;
  };
  EXPECT_EQ(captions({.lines = true}), (std::vector<Texts>{{"a cat", "a dog"}, {""}}));
  EXPECT_EQ(captions({.endings = {".tags"}, .lines = true}), (std::vector<Texts>{{"cat, dog", "never"}, {"one line"}}));
  EXPECT_EQ(captions({}).at(0).size(), 1u) << "else a file is one caption";
}

TEST_F(CaptionSets, EndInAMotionScoreWhereAFileKnowsIt) {
  write("one.png", "x"), write("one.txt", "a cat runs"), write("two.png", "x"), write("two.txt", "a cat sleeps");
  write("one_unimatch.json", R"({"one": {"unimatch": [10, 3.5, "8"]}})");
  write("two_unimatch.json", R"({"three": {"unimatch": 1}})");
  const auto captions = [&](const CaptionRules& rules) {
    Texts all;
    for (const auto& item : read_dataset({.path = folder_, .captions = rules})) all.push_back(item.caption());
    return all;
  };
  EXPECT_EQ(captions({.motion_files = {"_unimatch"}}), (Texts{"a cat runs motion score: 7.", "a cat sleeps"}));
  EXPECT_EQ(captions({.motion_files = {"_unimatch"}, .largest_motion = true})[0], "a cat runs motion score: 10.");
  EXPECT_EQ(captions({})[0], "a cat runs");
  write("two_unimatch.json", R"({"two": {"unimatch": 0.9}})");
  EXPECT_EQ(captions({.motion_files = {"_unimatch"}})[1], "a cat sleeps motion score: 0.");
  for (const char* wrong : {R"("fast")", "[]", "[1, null]", "1e99"}) {
    write("two_unimatch.json", std::string(R"({"two": {"unimatch": )") + wrong + "}}");
    Problems problems(/*strict=*/false);
    EXPECT_EQ(read_dataset({.path = folder_, .captions = {.motion_files = {"_unimatch"}}}, problems).size(), 1u)
        << wrong;
  }
}

TEST_F(CaptionSets, KeysOfFilesAreToldToDoNothingInATableAndThoseOfColumnsInAFolder) {
  const CaptionRules rules{.shares = {{"_long", 1}}, .motion_files = {"_unimatch"}, .columns = {"fps"}};
  const auto notes = [&] {
    Problems problems;
    read_dataset({.path = folder_, .captions = rules}, problems);
    std::string text;
    for (const std::string& note : problems.notes()) text += note + "\n";
    return text;
  };
  write("one.png", "x"), write("one.txt", "a cat");
  const std::string folder = notes();
  EXPECT_NE(folder.find("data.caption_columns has no effect"), std::string::npos) << folder;
  EXPECT_EQ(folder.find("data.captions"), std::string::npos) << folder;
  write("metadata.csv", "image,prompt,fps\none.png,a cat,\n");
  const std::string table = notes();
  EXPECT_NE(table.find("data.captions, data.motion_files have no effect: the captions are columns"), std::string::npos)
      << table;
  EXPECT_EQ(table.find("data.caption_columns has"), std::string::npos) << table;
}

TEST_F(CaptionSets, OneCaptionServesAllThatHaveNone) {
  write("one.png", "x"), write("two.png", "x"), write("two.txt", "its own");
  expect_error(Exit::input, {"one.png: no caption", "data.caption"}, [&] { read_dataset({.path = folder_}); });
  const auto items = read_dataset({.path = folder_, .caption = "a photo of it"});
  ASSERT_EQ(items.size(), 2u);
  EXPECT_EQ(items[0].caption(), "a photo of it");
  EXPECT_EQ(items[1].caption(), "its own");
}

TEST(CaptionDraws, FollowTheWeightsAndDependOnSeedEpochAndClipAlone) {
  const Weights weights = {5, 20, 75};
  std::vector<int> seen(3);
  for (int64_t epoch = 0; epoch < 2000; ++epoch) {
    const int64_t drawn = draw_caption(4, epoch, 17, weights);
    EXPECT_EQ(drawn, draw_caption(4, epoch, 17, weights));
    ++seen[static_cast<size_t>(drawn)];
  }
  for (size_t i = 0; i < 3; ++i) EXPECT_NEAR(seen[i], 20 * weights[i], 60) << i;
  bool differs = false;
  for (int64_t epoch = 0; epoch < 50; ++epoch)
    differs = differs || draw_caption(4, epoch, 17, weights) != draw_caption(4, epoch, 18, weights);
  EXPECT_TRUE(differs) << "clips draw for themselves";
}

}  // namespace tessera::data
