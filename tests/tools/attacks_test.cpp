// Configurations of other trainers that are made to fill the memory or to bring the importer down.
#include <gtest/gtest.h>

#include "bounded.h"
#include "folder_test.h"
#include "tessera/tools/import/import.h"

namespace tessera::tools {
namespace {

class ImportAttacks : public FolderTest {
 protected:
  void refused(const std::string& name, const std::string& text, const std::vector<std::string>& words) const {
    write(name, text);
    expect_refused_cheaply([&] { import_file((folder_ / name).string(), {}).refuse_to("train"); }, words);
  }
};

TEST_F(ImportAttacks, DepthIsRefusedInEveryFormat) {
  refused("a.json", repeated("[", 200'000), {"a.json", "nested deeper"});
  refused("a.json", repeated("{\"a\":", 200'000), {"a.json", "nested deeper"});
  refused("a.toml", "a = " + repeated("[", 200'000), {"a.toml", "line 1", "nested deeper"});
  refused("a.toml", "x = 1\n" + repeated("a.", 200'000) + "a = 1", {"a.toml", "line 2", "nested deeper"});
  if (!TESSERA_HAS_YAML) GTEST_SKIP() << "this build reads no YAML";
  refused("a.yaml", "a: " + repeated("[", 200'000), {"a.yaml"});
  refused("a.yaml", repeated("- ", 100'000) + "a", {"a.yaml"});
  refused("a.yaml", repeated("? ", 100'000) + "a", {"a.yaml"});
}

TEST_F(ImportAttacks, AliasesAreNotWrittenOutWithoutEnd) {
  if (!TESSERA_HAS_YAML) GTEST_SKIP() << "this build reads no YAML";
  std::string text = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n";
  for (int i = 1; i < 12; ++i) {
    const std::string before = "*a" + std::to_string(i - 1), here = std::to_string(i);
    text += "a" + here + ": &a" + here + " [" + before + repeated(", " + before, 9) + "]\n";
  }
  refused("a.yaml", text, {"a.yaml", "more than 10000 values"});
}

TEST_F(ImportAttacks, ManyOptionsAndAFileWithoutEndAreRefused) {
  std::string text = "{";
  for (int i = 0; i < 200'000; ++i) text += "\"" + std::to_string(i) + "\":1,";
  refused("a.json", text + "\"x\":1}", {"a.json", "200001 options"});
  write("b.json", "{");
  std::filesystem::resize_file(folder_ / "b.json", int64_t{1} << 40);
  expect_refused_cheaply([&] { import_file((folder_ / "b.json").string(), {}); }, {"b.json", "expected at most"});
}

TEST_F(ImportAttacks, NamesThatSayNothingAreRefusedNotDropped) {
  for (const char* files : {"''", "'[]'", "'[\"\"]'"})
    expect_refused_cheaply(
        [&] { import_command("train.py --dataset_base_path D --model_paths " + std::string(files), {}); },
        {"--model_paths"});
  const Translation t =
      import_command("train.py --dataset_base_path D --model_paths '[\"a-1.safetensors\",\"a-2.safetensors\"]'", {});
  ASSERT_NE(t.find("model.path"), nullptr);
  EXPECT_EQ(t.find("model.path")->value, ".");
}

/// A table of an option's name is no such option, except where one answer covers the whole table ("aio").
TEST_F(ImportAttacks, TablesUnderTheNameOfAnOptionAreUnknown) {
  for (const char* name : {"train_batch_size", "gradient_clipping", "zero_optimization.overlap_comm"})
    refused("a.json", R"({"steps_per_print": 1, ")" + std::string(name) + R"(": {"stage": 3}})",
            {std::string(name) + ".stage", "has no option"});
  write("b.json", R"({"aio": {"block_size": 4096}})");
  const Translation t = import_file((folder_ / "b.json").string(), {});
  ASSERT_EQ(t.implied.size(), 1u);
  EXPECT_EQ(t.implied[0].option, "aio.block_size = 4096");
}

TEST_F(ImportAttacks, ControlCharactersOfAFileDoNotReachTheRecipe) {
  write("a.json",
        "{\"train_batch_size\": 8, \"zero_optimization\": {\"stage\": 3, \"offload_optimizer\": {\"device\": "
        "\"nvme\", \"nvme_path\": \"/a\\u001b[2J\"}}}");
  const std::string text = import_file((folder_ / "a.json").string(), {}).to_toml();
  EXPECT_EQ(text.find('\x1b'), std::string::npos) << text;
  EXPECT_NE(text.find("/a\\u001B[2J"), std::string::npos) << text;
}

}  // namespace
}  // namespace tessera::tools
