#pragma once
// What is wrong with single rows of a data set: collected, so that one look tells them all, or stopped at.
//
//   Problems problems(/*strict=*/false);
//   problems.add("set/metadata.csv: row 3", "b.mp4: no such file", "fix or remove the row");
//   log::warn(problems.text());                            // "1 row has a problem: ..."
#include <string>
#include <vector>

#include "tessera/base/check.h"

namespace tessera::data {

struct Problem {
  std::string where;  ///< file and row, or the clip
  std::string what;   ///< what was found and expected, and what to do
};

class Problems {
 public:
  explicit Problems(bool strict = true) : strict_(strict) {}

  /// Remembers; when strict, throws UserError (input) with the same text instead.
  void add(const std::string& where, const std::string& what, const std::string& hint = {});
  /// An error met while handling `where`.
  void add(const std::string& where, const Error& error);

  bool strict() const { return strict_; }
  bool empty() const { return list_.empty(); }
  size_t size() const { return list_.size(); }
  const std::vector<Problem>& list() const { return list_; }
  /// The count, then a line for each of the first `most`.
  std::string text(size_t most = 50) const;

  /// A clip that is not used and is no fault of the data set: it is too short.
  void leave_out(const std::string& where, const std::string& what) { left_out_.push_back({where, what}); }
  const std::vector<Problem>& left_out() const { return left_out_; }
  /// The count, then a line for each of the first `most`; empty where there are none.
  std::string left_out_text(size_t most = 10) const;
  /// Both, and where there is neither, the notes.
  std::string whole_text() const;

  /// What is no fault, but should be known: columns that are not used.
  void note(std::string text) { notes_.push_back(std::move(text)); }
  const std::vector<std::string>& notes() const { return notes_; }

 private:
  bool strict_;
  std::vector<Problem> list_, left_out_;
  std::vector<std::string> notes_;
};

}  // namespace tessera::data
