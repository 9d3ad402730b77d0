#pragma once
// Layouts as lines of text, and what each is held to: the loss curve and the weights of one rank.
//
//   const Layout layout = layout_of("cp=2,sp=2 --plan.recompute all");   // layout.ranks is 4
//   expect_same_curve(run.metrics("one"), run.metrics("other"), 20);
//   expect_same_weights(run, "one", "other", "start");
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <sstream>
#include <string>
#include <vector>

#include "program.h"

namespace tessera::testing {

inline std::vector<std::string> words_of(const std::string& text) {
  std::istringstream in(text);
  std::vector<std::string> words;
  for (std::string word; in >> word;) words.push_back(word);
  return words;
}

struct Layout {
  std::string text;
  std::string mesh;  ///< the line's first word; the others are flags of `train`
  int ranks = 1;
  std::vector<std::string> flags;  ///< the mesh among them
};

inline Layout layout_of(const std::string& line) {
  Layout layout;
  layout.text = line;
  layout.flags = words_of(line);
  layout.mesh = layout.flags.at(0);
  for (size_t at = layout.mesh.find('='); at != std::string::npos; at = layout.mesh.find('=', at + 1))
    layout.ranks *= std::stoi(layout.mesh.substr(at + 1));
  layout.flags.insert(layout.flags.begin(), "--mesh");
  return layout;
}

inline constexpr double kSameLoss = 2e-6;

/// `train.eps` where final weights are compared: Adam divides a gradient that is hardly more than its rounding by itself, so
/// with the usual 1e-8 one of 4,096 values moves by the order in which ranks add (measured over 90 resumes: 1.65e-3 of the
/// tensor's move with 1e-8, 9e-5 with this).
inline const std::string kSmoothEps = "1e-5";

/// Losses within `bound` of each other, relatively, at each of `steps` steps.
inline void expect_same_curve(const std::vector<nlohmann::json>& one, const std::vector<nlohmann::json>& other,
                              int steps, double bound = kSameLoss) {
  ASSERT_EQ(one.size(), static_cast<size_t>(steps));
  ASSERT_EQ(other.size(), one.size());
  double worst = 0;
  for (size_t i = 0; i < one.size(); ++i)
    worst = std::max(worst, std::abs(other[i]["loss"].get<double>() / one[i]["loss"].get<double>() - 1));
  std::printf("worst loss %.1e\n", worst);
  EXPECT_LE(worst, bound) << "relative difference of the loss over " << steps << " steps";
}

/// How far final weights may differ: a part of each tensor's largest value, and of its move since the start. The largest
/// value of a tensor that began as zeros is its move.
struct Bounds {
  double of_largest = 5e-5, of_move = 1e-3;
};

inline void expect_same_weights(const TinyRun& run, const std::string& one_run, const std::string& other_run,
                                const std::string& start_run, Bounds bounds = {}) {
  const auto one = run.model(one_run), other = run.model(other_run), start = run.model(start_run);
  ASSERT_EQ(one.size(), other.size());
  for (const auto& [name, values] : one) {
    double difference = 0, largest = 0, move = 0, began = 0;
    for (size_t i = 0; i < values.size(); ++i) {
      difference = std::max<double>(difference, std::abs(values[i] - other.at(name)[i]));
      largest = std::max<double>(largest, std::abs(values[i]));
      move = std::max<double>(move, std::abs(values[i] - start.at(name)[i]));
      began = std::max<double>(began, std::abs(start.at(name)[i]));
    }
    if (began > 0) EXPECT_LE(difference, bounds.of_largest * largest) << name;
    EXPECT_LE(difference, bounds.of_move * move) << name;
  }
}

/// No rank had more than was predicted for it, and no axis sent that the mesh does not have.
inline void expect_as_planned(const nlohmann::json& last_step, const std::string& mesh) {
  for (const auto& rank : last_step["ranks"]) {
    EXPECT_LE(rank["peak_bytes"].get<double>(), rank["predicted_peak_bytes"].get<double>());
    for (const auto& [axis, bytes] : rank["sent_bytes"].items()) {
      if (bytes.get<int64_t>() > 0) {
        EXPECT_NE(mesh.find(axis + "="), std::string::npos) << axis;
      }
    }
  }
}

}  // namespace tessera::testing
