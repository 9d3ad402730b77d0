#include "tessera/plan/rules/rules.h"

#include <algorithm>
#include <functional>
#include <istream>

#include "tessera/base/check.h"
#include "tessera/base/foreign_file.h"
#include "tessera/plan/rules/checker.h"

namespace tessera::plan {

namespace {

constexpr size_t kMostShown = 100;  // one fault can cause a line for each step

std::vector<Violation> sorted(std::vector<Violation> found) {
  std::stable_sort(found.begin(), found.end(), [](const Violation& a, const Violation& b) { return a.line < b.line; });
  if (found.size() > kMostShown) found.resize(kMostShown);
  return found;
}

}  // namespace

std::string to_string(const Violation& violation) {
  return "line " + std::to_string(violation.line) + ": [" + violation.rule + "] " + violation.text;
}

namespace {

/// `next` gives a line after another, false behind the last.
std::vector<Violation> check_texts(const std::function<bool(std::string&)>& next) {
  std::vector<Line> lines;
  std::vector<Violation> unreadable;
  std::string text;
  for (int number = 1; unreadable.size() <= kMostShown && next(text); ++number) {
    if (text.find_first_not_of(" \t\r") == std::string::npos) continue;
    try {
      lines.push_back(parse_line(text));
      lines.back().number = number;
    } catch (const UserError& error) {
      unreadable.push_back({number, "form", error.what()});
    }
  }
  if (lines.empty() && unreadable.empty())
    return {{1, "form", "the file has no instruction; write it with 'tessera plan RECIPE --schedule FILE'"}};
  // Otherwise the remaining lines would be blamed for what the unreadable ones contain.
  return unreadable.empty() ? check(std::move(lines)) : sorted(std::move(unreadable));
}

}  // namespace

std::vector<Violation> check(std::istream& file) {
  return check_texts([&](std::string& line) { return static_cast<bool>(std::getline(file, line)); });
}

std::vector<Violation> check_file(const std::string& path) {
  ForeignLines file(path, "plan.check", "give a file that plan --schedule or train --trace-schedule wrote");
  return check_texts([&](std::string& line) { return file.next(line); });
}

std::vector<Violation> check(std::vector<Line> lines) {
  Checker checker(std::move(lines));
  if (checker.check_form()) {
    check_steps(checker);
    check_groups(checker);
    check_progress(checker);
  }
  return sorted(checker.take());
}

}  // namespace tessera::plan
