#include "tessera/data/camera.h"

#include <gtest/gtest.h>

#include <cmath>
#include <fstream>

#include "tessera/base/check.h"

namespace tessera::data {

namespace {

std::vector<float> numbers_of(const std::string& direction, int64_t frames, const CameraView& view) {
  return camera_numbers(named_camera(direction, kCameraSpeed, frames), view);
}

class CameraFile : public ::testing::Test {
 protected:
  void TearDown() override { std::filesystem::remove(file_); }
  std::string fault(const std::string& text) {
    std::ofstream(file_) << text;
    try {
      read_camera(file_);
    } catch (const UserError& error) {
      return error.what();
    }
    return "";
  }
  const std::filesystem::path file_ =
      std::filesystem::path(::testing::TempDir()) /
      (std::string("camera-") + ::testing::UnitTest::GetInstance()->current_test_info()->name() + ".txt");
};

const std::string kFrame = "0 0.5 0.9 0.5 0.5 0 0 1 0 0 0 0 1 0 0 0 0 1 0.25\n";

}  // namespace

TEST_F(CameraFile, HasAFrameALineBehindTheFirst) {
  EXPECT_EQ(fault("a name\n" + kFrame + "\n" + kFrame), "");
  const auto rows = read_camera(file_);
  ASSERT_EQ(rows.size(), 2U);
  EXPECT_EQ(rows[1][2], 0.9);
  EXPECT_EQ(rows[1][18], 0.25);
}

TEST_F(CameraFile, IsRefusedByLine) {
  EXPECT_NE(fault("name\n").find("no frame"), std::string::npos);
  EXPECT_NE(fault("name\n" + kFrame + "1 2 3\n").find("line 3: 3 numbers"), std::string::npos);
  EXPECT_NE(fault("name\n0 x" + kFrame.substr(5)).find("line 2: 'x' is no number"), std::string::npos);
  EXPECT_NE(fault("name\n0 nan" + kFrame.substr(5)).find("line 2: 'nan' is no number"), std::string::npos);
  EXPECT_NE(fault("name\n0 0" + kFrame.substr(5)).find("focal lengths"), std::string::npos);
}

TEST(Camera, MovesRelativeToItsFirstFrame) {
  auto rows = named_camera("Out", 0.5, 3);
  for (auto& row : rows) row[18] += 7;  // where the first one stands does not matter
  const auto numbers = camera_numbers(rows, {16, 16}), plain = numbers_of("Out", 1, {16, 16});
  for (size_t i = 0; i < 16; ++i) EXPECT_EQ(numbers[i], plain[i]) << "the first frame is the origin";
  EXPECT_NEAR(numbers[16 + 15], -0.5, 1e-6);
  EXPECT_NEAR(numbers[32 + 15], -1, 1e-6);
}

TEST(Camera, FocalLengthsAreOfPicturesOf1280By720) {
  const auto wide = numbers_of("In", 1, {720, 1280});
  EXPECT_NEAR(wide[0], 0.532139961 * 1280, 1e-3);
  EXPECT_NEAR(wide[1], 0.946026558 * 720, 1e-3);
  const auto square = numbers_of("In", 1, {720, 720});  // its sides are cut off
  EXPECT_NEAR(square[0], 0.532139961 * 1280, 1e-3);
  EXPECT_NEAR(square[1], 0.946026558 * 720, 1e-3);
  EXPECT_NEAR(square[2], 360, 1e-3);
  const auto flat = numbers_of("In", 1, {360, 1280});
  EXPECT_NEAR(flat[1], 0.946026558 * 720, 1e-3);
  const auto part = numbers_of("In", 1, {720, 1280, 10, 20});
  EXPECT_NEAR(part[2], 640 - 20, 1e-3);
  EXPECT_NEAR(part[3], 360 - 10, 1e-3);
}

TEST(Camera, EveryMovementIsKnownAndDiffers) {
  std::vector<std::vector<float>> all;
  for (const std::string& name : camera_directions()) {
    all.push_back(numbers_of(name, 5, {32, 48}));
    for (size_t i = 0; i + 1 < all.size(); ++i) EXPECT_NE(all[i], all.back()) << name;
  }
  EXPECT_THROW(named_camera("Up Left", 1, 2), UserError);
}

TEST(Camera, IsSpreadOverAClip) {
  std::vector<CameraRow> rows(10);
  for (size_t i = 0; i < rows.size(); ++i) rows[i][0] = static_cast<double>(i);
  const auto chosen = resampled(rows, 4);
  EXPECT_EQ(chosen.front()[0], 0);
  EXPECT_EQ(chosen[1][0], 3);
  EXPECT_EQ(chosen.back()[0], 9);
  EXPECT_EQ(resampled(rows, 1).front()[0], 0);
}

TEST(Camera, WithoutAnInverseIsRefused) {
  auto rows = named_camera("In", 1, 2);
  rows[1][7] = 0;
  EXPECT_THROW(camera_numbers(rows, {8, 8}), UserError);
}

}  // namespace tessera::data
