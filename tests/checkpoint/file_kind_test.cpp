#include "tessera/checkpoint/file_kind.h"

#include <gtest/gtest.h>

#include "checkpoint/files.h"
#include "tessera/checkpoint/weights.h"

namespace tessera::checkpoint {
namespace {

class FileKind : public FileTest {};

TEST_F(FileKind, IsSaidOfWhatPeopleTakeForWeights) {
  const std::pair<std::string, const char*> cases[] = {
      {"", "is empty"},
      {"hello\nthere, this is a text", "is a text file (it begins with \"hello\")"},
      {"[run]", "is a text file"},
      {std::string("\0\0\0\x20", 4) + "ftypisom", "is an MP4 or QuickTime video"},
      {"\x89PNG\r\n", "is a PNG picture"},
      {"GGUF\3", "is a GGUF file"},
      {"<!DOCTYPE html>", "is a web page"},
      {"version https://git-lfs.github.com", "is a Git LFS pointer"},
      {"\x1f\x8b\x08", "is packed by gzip"},
  };
  for (const auto& [bytes, words] : cases)
    expect_error(Exit::input, {"model.safetensors", words, "expected weights", ".pth"},
                 [&, &content = bytes] { open_weights(write("model.safetensors", content)); });
}

TEST_F(FileKind, IsNotSaidOfSafetensorsWholeOrCutShort) {
  const std::string header = R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})";
  const std::string whole = std::string(1, static_cast<char>(header.size())) + std::string(7, '\0') + header + "1234";
  for (size_t size = 2; size <= whole.size(); ++size)
    EXPECT_EQ(what_else(ReadFile(write("w", whole.substr(0, size)))), "") << size;
  expect_error(Exit::input, {"the file has only"}, [&] { open_weights(write("w", whole.substr(0, 20))); });
  EXPECT_NO_THROW(open_weights(write("w", whole)));
}

TEST_F(FileKind, OfAFolderWithoutWeightsIsWhatLiesInIt) {
  write("a.txt", "a");
  write("b.mp4", "b");
  std::filesystem::create_directories(folder_ / "clips");
  expect_error(Exit::input, {"no weights in it, but 2 files (a.txt, b.mp4) and 1 folder", "model.safetensors"},
               [&] { open_weights(folder_); });
  write("recipe.toml", "");
  std::filesystem::create_directories(folder_ / "checkpoints");
  expect_error(Exit::input, {"folder of a run", "model", "checkpoints"}, [&] { open_weights(folder_); });
}

}  // namespace
}  // namespace tessera::checkpoint
