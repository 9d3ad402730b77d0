#pragma once
// case.json of a golden case: what kind it is, and how near computed values must be. Knows no tensors.
//
//   const CaseDescription description("goldens/wan21_t2v/case.json");
//   description.kind();                                  // "dit"
//   description.tolerance("out");
#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>

namespace tessera::tools {

/// A file of a case that holds an object. Throws UserError (input) for anything else.
nlohmann::ordered_json read_case_object(const std::filesystem::path& path);

struct CaseDescription {
  CaseDescription() = default;
  explicit CaseDescription(const std::filesystem::path& path) : file(path), json(read_case_object(path)) {}

  std::string kind() const;  ///< empty where there is none
  /// A number of "tolerance"; throws UserError (input) naming it when it is not there.
  double tolerance(const std::string& key) const;
  /// The same as a bound by the largest expected magnitude: a number is one for all, {rtol_of_max, atol} gives
  /// rtol_of_max * magnitude + atol.
  std::function<double(double)> bound(const std::string& key) const;

  std::filesystem::path file;
  nlohmann::ordered_json json;

 private:
  double number(const nlohmann::ordered_json& fields, const std::string& key, const std::string& name) const;
};

}  // namespace tessera::tools
