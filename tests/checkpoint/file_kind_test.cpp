#include "tessera/checkpoint/file.h"

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
      {std::string("\x80\4\x95\x40\0\0\0\0\0\0\0}", 12), "is a plain pickle and no file of torch.save"},
      {std::string("\x80\2}q\0(X\1\0\0\0a", 13), "is a plain pickle"},
      {std::string("\x80\5\x95\x0a\1\0\0\0\0\0\0]", 12), "is a plain pickle"},
      {std::string("\x80\3cnumpy", 8), "is a plain pickle"},
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

/// The length of its header, 640 bytes and 1152, is what a pickle begins with.
TEST_F(FileKind, APickleIsNotSeenInTheLengthOfAHeader) {
  for (const size_t bytes : {0x280ul, 0x480ul, 0x20480ul}) {
    std::string header = R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})";
    header.resize(bytes, ' ');
    std::string length(8, '\0');
    for (int i = 0; i < 8; ++i) length[static_cast<size_t>(i)] = static_cast<char>(bytes >> 8 * i);
    EXPECT_EQ(what_else(ReadFile(write("w", length + header + "1234"))), "");
    EXPECT_NO_THROW(open_weights(write("w.safetensors", length + header + "1234")));
  }
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
