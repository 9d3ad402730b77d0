#pragma once
// case.json of a golden case: what kind it is, and how near computed values must be. Knows no tensors.
//
//   const CaseDescription description("goldens/wan21_t2v/case.json");
//   description.kind();                                  // "dit"
//   description.tolerance("out");
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "tessera/tools/verify/settings.h"

namespace tessera::tools {

/// Whether a field of a case's file says how exact its reference is.
bool is_measure(const std::string& key);

/// A file of a case that holds an object. Throws UserError (input) for anything else.
Json read_case_object(const std::filesystem::path& path);

struct CaseDescription {
  CaseDescription() = default;
  explicit CaseDescription(const std::filesystem::path& path) : file(path), json(read_case_object(path)) {}

  std::string kind() const;  ///< empty where there is none
  /// A number of "tolerance"; throws UserError (input) naming it when it is not there.
  double tolerance(const std::string& key) const;
  /// The same as a bound by the largest expected magnitude: a number is one for all, {rtol_of_max, atol} gives
  /// rtol_of_max * magnitude + atol.
  std::function<double(double)> bound(const std::string& key) const;
  bool has_rule(const std::string& key) const;  ///< of the second form

  /// What is left when the case was computed, and is neither words about it nor a measure of its reference.
  std::vector<std::string> unread() const;

  std::filesystem::path file;
  Settings json;

 private:
  double number(const Settings& fields, const std::string& key, const std::string& name) const;
};

}  // namespace tessera::tools
