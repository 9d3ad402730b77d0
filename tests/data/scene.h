#pragma once
// What the tests of this room share: a folder that goes with the test, a moving scene, errors by code and text.
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <functional>
#include <string>
#include <vector>

#include "folder_test.h"
#include "tessera/base/check.h"
#include "tessera/data/video.h"

namespace tessera::data {

/// Smooth colours that drift; frame i is brighter than the one before by `step` everywhere.
inline Frames scene(int count, int height, int width, double fps, int step = 4) {
  Frames frames{.count = count, .height = height, .width = width, .fps = fps, .rgb = {}};
  for (int i = 0; i < count; ++i)
    for (int y = 0; y < height; ++y)
      for (int x = 0; x < width; ++x)
        for (int c = 0; c < 3; ++c) {
          const double wave = std::sin(0.1 * x + 0.07 * y + c) * 30;
          frames.rgb.push_back(static_cast<uint8_t>(std::lround(60 + 20 * c + wave + step * i)));
        }
  return frames;
}

inline double mean(const Frames& frames, int index) {
  double sum = 0;
  for (size_t i = 0; i < frames.frame_bytes(); ++i) sum += frames.frame(index)[i];
  return sum / static_cast<double>(frames.frame_bytes());
}

/// `act` must throw a UserError with this code and a message or hint that holds every one of `texts`.
inline void expect_error(Exit code, const std::vector<std::string>& texts, const std::function<void()>& act) {
  try {
    act();
    ADD_FAILURE() << "no error; expected one with '" << texts.front() << "'";
  } catch (const UserError& error) {
    EXPECT_EQ(error.code(), code);
    const std::string message = std::string(error.what()) + "\n" + error.hint();
    for (const std::string& text : texts)
      EXPECT_NE(message.find(text), std::string::npos) << "message: " << message << "\nlacks: " << text;
  }
}

}  // namespace tessera::data
