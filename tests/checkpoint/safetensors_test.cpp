#include "tessera/checkpoint/safetensors.h"

#include <sys/mount.h>
#include <sys/resource.h>

#include <csignal>
#include <cstdlib>
#include <numeric>

#include "checkpoint/files.h"
#include "need_goldens.h"

namespace tessera::checkpoint {

class Safetensors : public FileTest {
 protected:
  void expect_refused(const std::string& header, size_t data_bytes, std::vector<std::string> texts) {
    Path file = write_header("bad.safetensors", header, data_bytes);
    texts.push_back(file.string());
    expect_error(Exit::input, texts, [&] { SafetensorsFile::open(file); });
  }
};

TEST_F(Safetensors, WrittenTensorsAndMetadataReadBack) {
  std::vector<float> a = {1, 2, 3, 4, 5, 6};
  std::vector<int64_t> b = {-7};
  uint16_t c[3] = {0x3f80, 0x4000, 0xc040};  // bf16 1, 2, -3
  write_safetensors(path("x.safetensors"),
                    {{"c", DType::bf16, {3}, c},
                     {"a", DType::f32, {2, 3}, a.data()},
                     {"b", DType::i64, {}, b.data()},
                     {"empty", DType::f32, {0, 4}, nullptr}},
                    {{"format", "pt"}, {"source", "caf\xe9.mp4"}});
  EXPECT_EQ(listing(), std::vector<std::string>{"x.safetensors"});

  SafetensorsFile file = SafetensorsFile::open(path("x.safetensors"));
  ASSERT_EQ(file.entries().size(), 4u);
  EXPECT_EQ(file.entries()[0].name, "b") << "wide dtypes come first, so that all are aligned";
  EXPECT_EQ(file.metadata().at("format"), "pt");
  EXPECT_EQ(file.metadata().at("source"), "caf\xef\xbf\xbd.mp4") << "not UTF-8: U+FFFD";
  EXPECT_EQ(file.at("a").shape, (Shape{2, 3}));
  EXPECT_EQ(file.at("empty").count(), 0);
  EXPECT_EQ(file.find("d"), nullptr);

  float part[2];
  file.read("a", 3, 2, part);
  EXPECT_EQ(part[1], 5.0f);
  float values[3];
  file.read_f32("c", 0, 3, values);
  EXPECT_EQ(values[2], -3.0f);
  std::vector<std::byte> raw = file.bytes("b");
  ASSERT_EQ(raw.size(), 8u);
  EXPECT_EQ(std::memcmp(raw.data(), b.data(), 8), 0);

  expect_error(Exit::input, {"no tensor 'aa'", "nearest name in it is 'a'"}, [&] { file.at("aa"); });
  expect_error(Exit::input, {"expected a floating dtype, found I64"}, [&] { file.read_f32("b", 0, 1, values); });
  expect_error(Exit::input, {"'a'", "[5, +2)", "it has 6"}, [&] { file.read("a", 5, 2, part); });
  expect_error(Exit::input, {"'c'", "[-1, +1)"}, [&] { file.read_f32("c", -1, 1, values); });
  expect_error(Exit::input, {"'c'", "[0, +-1)"}, [&] { file.read_f32("c", 0, -1, values); });
}

TEST_F(Safetensors, LongConversionsGoInChunks) {
  std::vector<double> values(200'001);
  std::iota(values.begin(), values.end(), 0.0);
  write_safetensors(path("x.safetensors"), {{"v", DType::f64, {200'001}, values.data()}});
  std::vector<float> out(200'000);
  SafetensorsFile::open(path("x.safetensors")).read_f32("v", 1, 200'000, out.data());
  for (size_t i = 0; i < out.size(); ++i) ASSERT_EQ(out[i], static_cast<float>(i + 1));
}

TEST_F(Safetensors, TensorsMayShareAPlaceWhenEmptyAndStandInAnyHeaderOrder) {
  Path file = write_header(
      "x.safetensors",
      R"({"b":{"dtype":"U8","shape":[2],"data_offsets":[4,6]},"e":{"dtype":"F32","shape":[0],"data_offsets":[4,4]},)"
      R"("a":{"dtype":"F32","shape":[],"data_offsets":[0,4]}}   )",
      6);
  SafetensorsFile open = SafetensorsFile::open(file);
  ASSERT_EQ(open.entries().size(), 3u);
  EXPECT_EQ(open.entries()[0].name, "a");
  EXPECT_EQ(open.entries()[2].name, "b");
}

TEST_F(Safetensors, TruncatedFilesAndLyingLengthsAreRefused) {
  expect_error(Exit::input, {"x.st", "truncated, 5 bytes"}, [&] { SafetensorsFile::open(write("x.st", "12345")); });
  expect_error(Exit::input, {"header of 1000 bytes, the file has only 2 after the length"},
               [&] { SafetensorsFile::open(write("x.st", std::string("\xe8\x03\0\0\0\0\0\0{}", 10))); });
  expect_error(Exit::input, {"header of 18446744073709551615 bytes, at most 100000000"},
               [&] { SafetensorsFile::open(write("x.st", std::string(8, '\xff') + "{}")); });
  expect_refused(R"({"w":{"dtype":"F32","shape":[4],"data_offsets":[0,16]}})", 12,
                 {"tensor 'w' ends at byte 16", "has only 12 (truncated?)", "fetch it again"});
  expect_error(Exit::input, {"No such file"}, [&] { SafetensorsFile::open(path("absent")); });
  expect_error(Exit::input, {"not a regular file"}, [&] { SafetensorsFile::open(folder_); });
}

TEST_F(Safetensors, WhatPeopleOpenByMistakeIsNamed) {
  expect_error(Exit::input, {"Git LFS pointer"},
               [&] { SafetensorsFile::open(write("x", "version https://git-lfs...\n")); });
  expect_error(Exit::input, {"file of torch.save"},
               [&] { SafetensorsFile::open(write("x", "PK\x03\x04............")); });
  expect_error(Exit::input, {"web page"}, [&] { SafetensorsFile::open(write("x", "<!DOCTYPE html>")); });
}

TEST_F(Safetensors, HeadersThatAreNotAnObjectOfTensorsAreRefused) {
  expect_refused("{\"w\": nonsense", 0, {"header: not JSON"});
  expect_refused("\xff\xfe", 0, {"header: not JSON"});
  expect_refused("[]", 0, {"expected an object of tensors"});
  expect_refused(std::string(100, '['), 0, {"nested deeper than 32"});
  expect_refused(R"({"__metadata__":[]})", 0, {"__metadata__: expected an object of strings"});
  expect_refused(R"({"__metadata__":{"n":1}})", 0, {"__metadata__ 'n'", "expected a string, found '1'"});
  expect_refused(R"({"w":[]})", 0, {"tensor 'w': expected an object"});
  expect_refused(R"({"w":{"shape":[],"data_offsets":[0,4]}})", 4, {"'dtype' is missing"});
}

TEST_F(Safetensors, DuplicateKeysAreRefusedAtEveryLevel) {
  std::string w = R"("w":{"dtype":"U8","shape":[1],"data_offsets":[0,1]})";
  expect_refused("{" + w + "," + w + "}", 1, {"duplicate key 'w'"});
  expect_refused(R"({"w":{"dtype":"U8","dtype":"I8","shape":[1],"data_offsets":[0,1]}})", 1, {"duplicate key 'dtype'"});
  expect_refused(R"({"__metadata__":{"a":"1","a":"2"}})", 0, {"duplicate key 'a'"});
}

TEST_F(Safetensors, DtypesAndShapesAreChecked) {
  expect_refused(R"({"w":{"dtype":"F33","shape":[1],"data_offsets":[0,4]}})", 4,
                 {"tensor 'w'", "unknown dtype 'F33'", "F64, F32"});
  expect_refused(R"({"w":{"dtype":7,"shape":[1],"data_offsets":[0,4]}})", 4, {"dtype: expected a string, found '7'"});
  expect_refused(R"({"w":{"dtype":"F32","shape":[-1],"data_offsets":[0,4]}})", 4,
                 {"shape: expected dimensions of 0 and more, found '[-1]'"});
  expect_refused(R"({"w":{"dtype":"F32","shape":[1.5],"data_offsets":[0,4]}})", 4,
                 {"expected a whole number below 2^63, found '1.5'"});
  expect_refused(R"({"w":{"dtype":"F32","shape":[true],"data_offsets":[0,4]}})", 4, {"expected a whole number"});
  expect_refused(R"({"w":{"dtype":"F32","shape":[18446744073709551615],"data_offsets":[0,4]}})", 4,
                 {"expected a whole number"});
  expect_refused(R"({"w":{"dtype":"F32","shape":4,"data_offsets":[0,4]}})", 4, {"shape: expected an array, found '4'"});
  expect_refused(R"({"w":{"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,4]}})", 4,
                 {"shape [4294967296, 4294967296] has more than 2^63 bytes"});
}

TEST_F(Safetensors, OffsetsMustTileTheDataExactly) {
  expect_refused(R"({"w":{"dtype":"F32","shape":[2],"data_offsets":[0,4]}})", 4,
                 {"data_offsets [0, 4] hold 4 bytes", "of F32 needs 8"});
  expect_refused(R"({"w":{"dtype":"F32","shape":[1],"data_offsets":[4,0]}})", 4,
                 {"data_offsets [4, 0], expected [begin, end]"});
  expect_refused(R"({"w":{"dtype":"F32","shape":[1],"data_offsets":[0,4,8]}})", 4,
                 {"data_offsets [0, 4, 8], expected [begin, end]"});
  expect_refused(R"({"w":{"dtype":"F32","shape":[1],"data_offsets":[9223372036854775803,9223372036854775807]}})", 4,
                 {"ends at byte 9223372036854775807"});
  expect_refused(
      R"({"v":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},"w":{"dtype":"U8","shape":[4],"data_offsets":[2,6]}})", 6,
      {"tensor 'w' begins at byte 2 and overlaps", "ends at 4"});
  expect_refused(
      R"({"v":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},"w":{"dtype":"U8","shape":[2],"data_offsets":[4,6]}})", 6,
      {"tensor 'w' begins at byte 4, expected 2: a hole"});
  expect_refused(R"({"w":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}})", 5, {"3 bytes after the last tensor"});
}

TEST_F(Safetensors, AFileCutWhileOpenIsAnErrorAndNotACrash) {
  std::vector<float> values(5000, 1.0f);
  write_safetensors(path("x"), {{"v", DType::f32, {5000}, values.data()}});
  SafetensorsFile file = SafetensorsFile::open(path("x"));
  std::filesystem::resize_file(path("x"), 1000);
  expect_error(Exit::input, {"expected 20000 bytes", "end of file"}, [&] { file.read("v", 0, 5000, values.data()); });
}

TEST_F(Safetensors, AFailedWriteNamesTheFileAndLeavesTheOldOne) {
  std::vector<char> data(200'000, 'x');
  write_safetensors(path("x"), {{"v", DType::u8, {3}, data.data()}});
  struct rlimit old {
  }, small{};
  ::getrlimit(RLIMIT_FSIZE, &old);
  small = {100'000, old.rlim_max};
  auto handler = std::signal(SIGXFSZ, SIG_IGN);
  ::setrlimit(RLIMIT_FSIZE, &small);
  expect_error(Exit::disk,
               {path("x").string(), "cannot write: File too large", "of 195.38 KiB written", "is untouched"}, [&] {
                 write_safetensors(path("x"), {{"v", DType::u8, {200'000}, data.data()}});
               });
  ::setrlimit(RLIMIT_FSIZE, &old);
  std::signal(SIGXFSZ, handler);
  EXPECT_EQ(listing(), std::vector<std::string>{"x"});
  EXPECT_EQ(SafetensorsFile::open(path("x")).at("v").count(), 3);

  expect_error(Exit::disk, {"cannot create"}, [&] { write_safetensors(path("no/such/folder"), {}); });
}

TEST_F(Safetensors, AFullDiskIsExitSevenAndLeavesNothing) {
  if (::mount("tmpfs", folder_.c_str(), "tmpfs", 0, "size=64k") != 0)
    GTEST_SKIP() << "may not mount a small tmpfs here";
  std::vector<char> data(200'000, 'x');
  expect_error(Exit::disk, {"No space left on device", "64.00 KiB of 195.38 KiB written", "0 B free"}, [&] {
    write_safetensors(path("x"), {{"v", DType::u8, {200'000}, data.data()}});
  });
  EXPECT_TRUE(listing().empty());
  EXPECT_EQ(::umount2(folder_.c_str(), MNT_DETACH), 0);
}

TEST_F(Safetensors, EveryGoldenFileOpensAndReads) {
  TESSERA_NEED_GOLDENS();
  int files = 0;
  for (const auto& item : std::filesystem::recursive_directory_iterator(TESSERA_GOLDENS)) {
    if (item.path().extension() != ".safetensors") continue;
    SafetensorsFile file = SafetensorsFile::open(item.path());
    for (const auto& entry : file.entries()) {
      if (is_floating(entry.dtype)) {
        std::vector<float> values(static_cast<size_t>(entry.count()));
        file.read_f32(entry.name, 0, entry.count(), values.data());
      }
      EXPECT_EQ(static_cast<int64_t>(file.bytes(entry.name).size()), *byte_count(entry.shape, entry.dtype));
    }
    ++files;
  }
  EXPECT_GE(files, 60);
}

}  // namespace tessera::checkpoint
