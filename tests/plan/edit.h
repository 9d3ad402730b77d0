#pragma once
// Changes compiled lines as a person with an editor would: whole lines move or go, waits keep naming the same line.
#include <algorithm>
#include <functional>
#include <map>
#include <vector>

#include "tessera/plan/compile/rules.h"

namespace tessera::plan::toy {

/// Lines with their old places as identities; `done()` numbers them anew and renames the waits.
class Edit {
 public:
  explicit Edit(const std::vector<Line>& lines) {
    for (size_t k = 0; k < lines.size(); ++k) {
      const int first = static_cast<int>(k) - lines[k].i;  // waits are indices of the rank's step
      entries_.push_back({lines[k], static_cast<int>(k), {}});
      for (int wait : lines[k].in.wait) entries_.back().waits.push_back(first + wait);
    }
  }

  size_t size() const { return entries_.size(); }
  Line& operator[](size_t k) { return entries_[k].line; }
  std::vector<int>& waits(size_t k) { return entries_[k].waits; }  ///< old places
  int find(const std::function<bool(const Line&)>& wanted, int from = 0) const {
    for (size_t k = from; k < entries_.size(); ++k)
      if (wanted(entries_[k].line)) return static_cast<int>(k);
    return -1;
  }
  std::vector<int> all(const std::function<bool(const Line&)>& wanted) const {
    std::vector<int> found;
    for (int k = find(wanted); k >= 0; k = find(wanted, k + 1)) found.push_back(k);
    return found;
  }

  void remove(int k) { entries_.erase(entries_.begin() + k); }
  /// Takes line `k` out and puts it behind the line that was at `behind`.
  void move_behind(int k, int behind) {
    std::rotate(entries_.begin() + k, entries_.begin() + k + 1, entries_.begin() + behind + 1);
  }
  void swap(int a, int b) { std::swap(entries_[a], entries_[b]); }

  std::vector<Line> done() const {
    std::map<int, int> place;  // old place -> new i
    std::vector<Line> lines;
    for (const Entry& entry : entries_) {
      Line line = entry.line;
      const bool goes_on = !lines.empty() && lines.back().rank == line.rank && lines.back().step == line.step;
      line.i = goes_on ? lines.back().i + 1 : 0;
      line.number = static_cast<int>(lines.size()) + 1;
      place[entry.old] = line.i;
      lines.push_back(line);
    }
    for (size_t k = 0; k < lines.size(); ++k) {
      lines[k].in.wait.clear();
      for (int wait : entries_[k].waits)
        if (place.contains(wait)) lines[k].in.wait.push_back(place[wait]);
    }
    return lines;
  }

 private:
  struct Entry {
    Line line;
    int old;
    std::vector<int> waits;
  };
  std::vector<Entry> entries_;
};

inline std::string text(const std::vector<Line>& lines) {
  std::string result;
  for (const Line& line : lines) result += to_json(line) + "\n";
  return result;
}

inline std::string text(const std::vector<Violation>& violations) {
  std::string result;
  for (const auto& v : violations) result += to_string(v) + "\n";
  return result;
}

}  // namespace tessera::plan::toy
