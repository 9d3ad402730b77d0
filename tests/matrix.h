#pragma once
// A part of a large matrix of cases: the same one locally, in CI the one that the commit's hash chooses, so that the
// whole is run as commits go by (scripts/test).
//
//   MatrixPart part("crashes", 200);
//   for (int i : part) crash_at(i);         // prints "matrix crashes: ran 10 of 200" at the end
//
// TESSERA_MATRIX_SHARE (0..1, default 0.05) says how much, TESSERA_MATRIX_SEED (any text) which, and the line also goes
// to the file TESSERA_MATRIX_LOG where that is set. At least one case always runs, or as many as a third argument says.
// TESSERA_MATRIX_CASES="20-29" runs these by number instead: a whole matrix in pieces.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <utility>
#include <vector>

namespace tessera::testing {

class MatrixPart {
 public:
  MatrixPart(std::string name, int total, size_t least = 1) : name_(std::move(name)), total_(total) {
    const char* share_text = std::getenv("TESSERA_MATRIX_SHARE");
    const double share = std::clamp(share_text ? std::atof(share_text) : 0.05, 0.0, 1.0);
    const char* seed = std::getenv("TESSERA_MATRIX_SEED");
    const std::string key = name_ + "/" + (seed ? seed : "");
    std::vector<std::pair<uint64_t, int>> order;
    for (int i = 0; i < total; ++i) order.emplace_back(hash(key + "/" + std::to_string(i)), i);
    std::sort(order.begin(), order.end());
    order.resize(std::min<size_t>(order.size(), std::max<size_t>(least, std::lround(share * total))));
    for (const auto& [ignored, i] : order) cases_.push_back(i);
    std::sort(cases_.begin(), cases_.end());
    int first = 0, last = 0;
    if (const char* piece = std::getenv("TESSERA_MATRIX_CASES");
        piece && std::sscanf(piece, "%d-%d", &first, &last) == 2) {
      cases_.clear();
      for (int i = std::max(first, 0); i <= std::min(last, total - 1); ++i) cases_.push_back(i);
    }
  }
  ~MatrixPart() {
    const std::string line =
        "matrix " + name_ + ": ran " + std::to_string(ran_) + " of " + std::to_string(total_) + "\n";
    std::fputs(line.c_str(), stdout);
    if (const char* path = std::getenv("TESSERA_MATRIX_LOG")) {
      if (std::FILE* log = std::fopen(path, "a")) {  // one write: test programs run side by side
        std::fputs(line.c_str(), log);
        std::fclose(log);
      }
    }
  }
  MatrixPart(const MatrixPart&) = delete;

  /// Counts a case as run when it is handed out, so that a test that stops early says so.
  class Iterator {
   public:
    Iterator(MatrixPart* part, size_t at) : part_(part), at_(at) {}
    int operator*() const {
      part_->ran_ = static_cast<int>(at_) + 1;
      return part_->cases_[at_];
    }
    Iterator& operator++() {
      ++at_;
      return *this;
    }
    bool operator!=(const Iterator& other) const { return at_ != other.at_; }

   private:
    MatrixPart* part_;
    size_t at_;
  };
  Iterator begin() { return {this, 0}; }
  Iterator end() { return {this, cases_.size()}; }
  int size() const { return static_cast<int>(cases_.size()); }

 private:
  /// FNV-1a with a final mix: the same on every machine.
  static uint64_t hash(const std::string& text) {
    uint64_t h = 0xcbf29ce484222325u;
    for (unsigned char c : text) h = (h ^ c) * 0x100000001b3u;
    h = (h ^ (h >> 31)) * 0x9e3779b97f4a7c15u;
    return h ^ (h >> 29);
  }

  std::string name_;
  int total_;
  std::vector<int> cases_;
  int ran_ = 0;
};

}  // namespace tessera::testing
