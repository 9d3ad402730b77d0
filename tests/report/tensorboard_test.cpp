// The event files, read back by a parser that shares nothing with the writer but the published format.
#include "tessera/report/run_log.h"

#include <cmath>
#include <cstring>
#include <map>

#include "report/run_files.h"

namespace tessera::report {
namespace {

/// CRC-32C a bit at a time, and TensorFlow's mask over it.
uint32_t slow_masked_crc(const std::string& bytes) {
  uint32_t crc = ~0u;
  for (unsigned char byte : bytes) {
    crc ^= byte;
    for (int bit = 0; bit < 8; ++bit) crc = crc >> 1 ^ (crc & 1 ? 0x82f63b78u : 0);
  }
  crc = ~crc;
  return ((crc >> 15) | (crc << 17)) + 0xa282ead8u;
}

/// A protobuf message taken apart: field number -> values, as raw bytes (varints as 8 bytes).
using Fields = std::multimap<int, std::string>;
Fields parse(const std::string& bytes) {
  Fields fields;
  size_t at = 0;
  const auto varint = [&] {
    uint64_t value = 0;
    for (int shift = 0;; shift += 7) {
      const auto byte = static_cast<unsigned char>(bytes.at(at++));
      value |= static_cast<uint64_t>(byte & 0x7f) << shift;
      if (byte < 0x80) return value;
    }
  };
  while (at < bytes.size()) {
    const uint64_t key = varint();
    std::string value;
    if (key % 8 == 0) {
      const uint64_t number = varint();
      value.assign(reinterpret_cast<const char*>(&number), 8);
    } else {
      const size_t size = key % 8 == 1 ? 8 : key % 8 == 5 ? 4 : varint();
      value = bytes.substr(at, size);
      EXPECT_EQ(value.size(), size) << "a field runs over the end";
      at += size;
    }
    fields.emplace(static_cast<int>(key / 8), value);
  }
  return fields;
}

template <typename T>
T as(const std::string& bytes) {
  T value{};
  EXPECT_GE(bytes.size(), sizeof value);
  std::memcpy(&value, bytes.data(), sizeof value);
  return value;
}

std::vector<Fields> events(const std::string& file) {
  std::vector<Fields> events;
  for (size_t at = 0; at < file.size();) {
    const auto size = as<uint64_t>(file.substr(at, 8));
    EXPECT_EQ(as<uint32_t>(file.substr(at + 8, 4)), slow_masked_crc(file.substr(at, 8)));
    const std::string record = file.substr(at + 12, size);
    EXPECT_EQ(as<uint32_t>(file.substr(at + 12 + size, 4)), slow_masked_crc(record));
    events.push_back(parse(record));
    at += 16 + size;
  }
  return events;
}

int64_t step_of(const Fields& event) {
  const auto it = event.find(2);
  return it == event.end() ? 0 : as<int64_t>(it->second);
}

std::map<std::string, float> scalars(const Fields& event) {
  std::map<std::string, float> values;
  if (!event.count(5)) return values;
  for (const auto& [field, bytes] : parse(event.find(5)->second)) {
    const Fields value = parse(bytes);
    if (value.count(2)) values[value.find(1)->second] = as<float>(value.find(2)->second);
  }
  return values;
}

std::vector<std::filesystem::path> event_files(const std::filesystem::path& folder) {
  std::vector<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::directory_iterator(folder))
    if (entry.path().filename().string().starts_with("events.out.tfevents.")) files.push_back(entry.path());
  return files;
}

class TensorBoard : public RunTest {};

TEST_F(TensorBoard, AFileBeginsWithTheVersionThatReadersLookFor) {
  const TensorBoardWriter board(folder_, 0);
  const auto read_back = events(read(board.file()));
  ASSERT_EQ(read_back.size(), 1u);
  EXPECT_EQ(read_back[0].find(3)->second, "brain.Event:2");
  EXPECT_GT(as<double>(read_back[0].find(1)->second), 1.6e9);
}

TEST_F(TensorBoard, ScalarsAreOnDiskAsSoonAsTheyAreWritten) {
  TensorBoardWriter board(folder_, 0);
  board.scalars(1, {{"train/loss", 0.5}, {"train/lr", 1e-3}});
  board.scalars(300, {{"train/loss", NAN}});
  const auto read_back = events(read(board.file()));
  ASSERT_EQ(read_back.size(), 3u);
  EXPECT_EQ(step_of(read_back[1]), 1);
  EXPECT_EQ(scalars(read_back[1]), (std::map<std::string, float>{{"train/loss", 0.5f}, {"train/lr", 1e-3f}}));
  EXPECT_EQ(step_of(read_back[2]), 300);
  EXPECT_TRUE(std::isnan(scalars(read_back[2])["train/loss"]));
}

TEST_F(TensorBoard, AnImageKeepsItsFileAndSize) {
  TensorBoardWriter board(folder_, 0);
  const std::vector<uint8_t> bytes(1000, 0x7f);
  board.image(5, "samples/0", 64, 96, bytes);
  const auto read_back = events(read(board.file()));
  const Fields value = parse(parse(read_back.at(1).find(5)->second).find(1)->second);
  EXPECT_EQ(value.find(1)->second, "samples/0");
  const Fields image = parse(value.find(4)->second);
  EXPECT_EQ(as<int64_t>(image.find(1)->second), 64);
  EXPECT_EQ(as<int64_t>(image.find(2)->second), 96);
  EXPECT_EQ(image.find(4)->second, std::string(bytes.begin(), bytes.end()));
}

TEST_F(TensorBoard, AResumedRunTakesBackWhatComesAgain) {
  const TensorBoardWriter board(folder_, 100);
  const auto read_back = events(read(board.file()));
  ASSERT_EQ(read_back.size(), 2u);
  EXPECT_EQ(step_of(read_back[1]), 101);
  EXPECT_EQ(as<int64_t>(parse(read_back[1].find(7)->second).find(1)->second), 1) << "SessionLog.START";
}

TEST_F(TensorBoard, AFolderThatCannotBeWrittenIsNamed) {
  try {
    TensorBoardWriter board(folder_ / "missing", 0);
    FAIL() << "no error";
  } catch (const UserError& error) {
    EXPECT_EQ(error.code(), Exit::disk);
    EXPECT_NE(std::string(error.what()).find("missing"), std::string::npos) << error.what();
  }
}

TEST_F(TensorBoard, AStepOfARunHasLossRateAndTheMemoryOfEveryRank) {
  {
    RunLog log(folder_, 0);
    log.step(step(1, 0.75));
  }
  const auto files = event_files(folder_);
  ASSERT_EQ(files.size(), 1u);
  auto values = scalars(events(read(files[0])).at(1));
  EXPECT_FLOAT_EQ(values["train/loss"], 0.75f);
  EXPECT_FLOAT_EQ(values["train/tokens_per_second"], 4000.0f);
  EXPECT_FLOAT_EQ(values["memory/rank 1/states"], 2 << 20);
  EXPECT_FLOAT_EQ(values["memory/rank 0/reserved"], 10 << 20);
  EXPECT_FLOAT_EQ(values["busy/rank 1/gather"], 0.05f);
  EXPECT_EQ(values.count("train/mfu"), 0u) << "no rate is known";
  StepMetrics known = step(1, 0.75);
  known.ranks[1].model_flops = 1e12, known.ranks[1].utilisation = {{"gather", 0.2}};
  known.count_mfu(8e12);
  const auto listed = step_scalars(known);
  const std::map<std::string, double> of_ranks(listed.begin(), listed.end());
  EXPECT_DOUBLE_EQ(of_ranks.at("train/mfu"), 0.25);
  EXPECT_DOUBLE_EQ(of_ranks.at("utilisation/rank 1/mfu"), 0.5);
  EXPECT_DOUBLE_EQ(of_ranks.at("utilisation/rank 1/gather"), 0.2);
}

}  // namespace
}  // namespace tessera::report
