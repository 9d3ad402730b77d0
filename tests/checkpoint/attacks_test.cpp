// Files of weights and checkpoints that are made to fill the memory or to take hours.
#include "bounded.h"
#include "checkpoint/files.h"
#include "checkpoint/torch_bytes.h"
#include "matrix.h"
#include "tessera/checkpoint/lora_settings.h"
#include "tessera/checkpoint/manifest.h"
#include "tessera/checkpoint/safetensors.h"
#include "tessera/checkpoint/torch_file.h"

namespace tessera::checkpoint {

class Attacks : public FileTest {
 protected:
  Path pth(const std::string& pickle) const {
    const Path file = path("a.pth");
    const float values[6] = {};
    ZipWriter zip(file, 4096);
    zip.add("archive/data.pkl", pickle.data(), static_cast<int64_t>(pickle.size()));
    zip.add("archive/data/0", values, sizeof values);
    zip.commit();
    return file;
  }
};

TEST_F(Attacks, AHeaderOfEmptyObjectsIsRefused) {
  const char* const values[] = {"{},", "[],"};
  testing::MatrixPart part("headers of empty values", 2);
  for (const int drawn : part) {
    const Path file = write_header("a.safetensors", "[" + repeated(values[drawn], 22'000'000) + "1]", 0);
    expect_refused_cheaply([&] { SafetensorsFile::open(file); }, {"a.safetensors"});
  }
}

TEST_F(Attacks, ADeepHeaderAndADeepManifestAreRefused) {
  const Path file = write_header("a.safetensors", repeated("{\"a\":", 200'000), 0);
  expect_refused_cheaply([&] { SafetensorsFile::open(file); }, {"a.safetensors", "nested deeper"});
  write("manifest.json", repeated("[", 200'000));
  expect_refused_cheaply([&] { load_manifest(folder_); }, {"manifest.json", "nested deeper"});
}

TEST_F(Attacks, APickleOfSixtyMillionTuplesIsRefused) {
  const Path file = pth("\x80\x02" + std::string(60 << 20, ')') + ".");
  expect_refused_cheaply([&] { TorchFile::open(file); }, {"a.pth", "the pickle has more than"});
}

TEST_F(Attacks, ALongKeyOfManyValuesIsRefused) {
  // the key is kept as value 0 and recalled a million times, each for a number
  const std::string key = PickleMaker::text(std::string(4 << 20, 'k')) + "q" + std::string(1, '\0');
  const Path file = pth("\x80\x02" + key + "0}(" + repeated(std::string("h\0K\1", 4), 1'000'000) + "u.");
  expect_refused_cheaply([&] { TorchFile::open(file); }, {"a.pth", "its names take more than"});
}

TEST_F(Attacks, ATensorOfAMillionDimensionsIsRefused) {
  const std::vector<int64_t> ones(100'000, 1);
  PickleMaker pickle;
  pickle.dict({{"a", PickleMaker::tensor("0", 6, 0, ones, ones)}});
  const Path file = pth(pickle.bytes());
  expect_refused_cheaply([&] { TorchFile::open(file); }, {"a.pth", "100000 dimensions"});
}

TEST_F(Attacks, AFileWithoutEndIsNotReadIntoMemory) {
  std::filesystem::resize_file(write("manifest.json", "{"), int64_t{1} << 40);  // a hole: it takes no room
  expect_refused_cheaply([&] { load_manifest(folder_); }, {"manifest.json", "expected at most"});
}

/// peft reads each key as a regular expression; the usual executor of these goes back for ever, or as deep as a name is long.
TEST_F(Attacks, AlphasOfALoraThatAreEndlessExpressionsAreRefusedOrCheap) {
  const auto settings = [&](const std::string& patterns) {
    write("adapter_config.json", "{\"lora_alpha\": 1, \"alpha_pattern\": {" + patterns + "}}");
    return read_lora_settings({}, folder_, "a.safetensors");
  };
  const std::string name = "blocks.0." + std::string(500, 'q');
  expect_done_cheaply([&] {
    const auto alpha = settings("\"(q*)*x\": 2, \"blocks..(q|q)*\": 3").alpha_of(name);
    check_internal(alpha == 1, "test", "another alpha");
  });
  EXPECT_EQ(settings("\"(q*)*\": 2").alpha_of(name), 2);
  expect_refused_cheaply([&] { settings("\"(?=(q*)*x)q\": 2"); }, {"alpha_pattern", "regular expression"});
  expect_refused_cheaply([&] { settings("\"" + std::string(300, 'q') + "*\": 2"); }, {"alpha_pattern"});
  std::string many = "\"q*0\": 1";
  for (int i = 1; i < 17; ++i) many += ", \"q*" + std::to_string(i) + "\": 1";
  expect_refused_cheaply([&] { settings(many); }, {"more than 16 regular expressions"});
}

TEST_F(Attacks, AlphasByNameAreThoseOfTheModuleOrOfTheEndOfItsPath) {
  LoraSettings settings;
  settings.alpha = 1;
  settings.alphas = {{"attn1.to_q", 2}, {"blocks.3.attn1.to_q", 3}};
  EXPECT_EQ(settings.alpha_of("blocks.3.attn1.to_q"), 3);
  EXPECT_EQ(settings.alpha_of("blocks.4.attn1.to_q"), 2);
  EXPECT_EQ(settings.alpha_of("attn1.to_q"), 2);
  EXPECT_EQ(settings.alpha_of("xattn1.to_q"), 1);
}

}  // namespace tessera::checkpoint
