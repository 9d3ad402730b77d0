#pragma once
// Fields of a model's config.json, with messages that name file and field.
//
//   ConfigReader config(text, "Wan2.1-T2V-1.3B/config.json");
//   int64_t dim = config.size("dim", 2048);            // positive; the default when the field is absent or null
#include <cmath>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/base/check.h"
#include "tessera/base/json.h"

namespace tessera::models {

/// The file name of fields that come from a recipe: errors in them have the exit code of usage errors.
inline constexpr std::string_view kRecipeConfig = "model.config";

/// While one lives, it notes the fields that the readers of its thread are asked for: a file's other fields are known to
/// no reader. A user's file may have such fields; a golden case with one is refused (tools/verify).
class ReadFields {
 public:
  ReadFields() : before_(now_) { now_ = this; }
  ~ReadFields() { now_ = before_; }
  ReadFields(const ReadFields&) = delete;

  const std::set<std::string>& paths() const { return paths_; }  ///< "ch_mult", "encoder/ch_mult"
  static void note(const std::string& path) {
    if (now_) now_->paths_.insert(path);
  }

 private:
  static inline thread_local ReadFields* now_ = nullptr;
  ReadFields* const before_;
  std::set<std::string> paths_;
};

class ConfigReader {
 public:
  static constexpr int64_t kMostSize = 1 << 20, kMostLayers = 1 << 12;

  ConfigReader(std::string_view text, std::string file) : ConfigReader(json_or_nothing(text), std::move(file), "") {}

  /// The fields of a field; none where there is no such object.
  ConfigReader inner(const char* key) const {
    const nlohmann::json* found = find(key, /*note=*/false);
    const bool there = found && found->is_object();
    return {there ? *found : nlohmann::json::object(), file_ + ": " + key, path_ + key + "/"};
  }

  bool has(const char* key) const {
    const nlohmann::json* found = find(key);
    return found && !found->is_null();
  }
  bool is_null(const char* key) const {
    const nlohmann::json* found = find(key);
    return found && found->is_null();
  }
  bool is_list(const char* key) const {
    const nlohmann::json* found = find(key);
    return found && found->is_array();
  }
  /// Fields that change nothing of what a network computes: of training, of a program, of the file itself.
  void without_effect(std::initializer_list<const char*> keys) const {
    for (const char* key : keys) find(key);
  }

  /// A whole number in 1 .. kMostSize: the bytes of a tensor of two sizes and a small kernel fit 64 bits, those of
  /// kMostLayers layers too. Widths that are products of sizes are held to the same bound by expect_narrow.
  int64_t size(const char* key, std::optional<int64_t> absent = std::nullopt) const {
    if (!has(key)) return or_fail(key, absent);
    const auto& value = json_[key];
    const bool whole = value.is_number_integer();
    const int64_t number = whole ? value.template get<int64_t>() : 0;  // beyond 2^63: below zero
    if (!whole || number < 1) fail(std::string(key) + " is " + shown(key) + ", expected a positive whole number");
    const bool layers = std::string_view(key).ends_with("layers");
    if (const int64_t most = layers ? kMostLayers : kMostSize; number > most)
      fail(std::string(key) + " is " + shown(key) + ", expected at most " + std::to_string(most));
    return number;
  }
  double real(const char* key, double absent) const {
    if (!has(key)) return absent;
    if (!json_[key].is_number()) fail(std::string(key) + " is " + shown(key) + ", expected a number");
    return json_[key].template get<double>();
  }
  /// An epsilon: at zero or below it a norm divides by zero, or takes the root of less.
  double above_zero(const char* key, double absent) const {
    const double value = real(key, absent);
    if (!(value > 0 && std::isfinite(value)))
      fail(std::string(key) + " is " + shown(key) + ", expected a number above 0");
    return value;
  }
  bool is_number(const char* key) const { return has(key) && json_[key].is_number(); }
  bool flag(const char* key, bool absent) const {
    if (!has(key)) return absent;
    if (!json_[key].is_boolean()) fail(std::string(key) + " is " + shown(key) + ", expected true or false");
    return json_[key].template get<bool>();
  }
  std::string text(const char* key, std::string absent) const {
    if (!has(key)) return absent;
    if (!json_[key].is_string()) fail(std::string(key) + " is " + shown(key) + ", expected a text");
    return json_[key].template get<std::string>();
  }
  /// A list of whole numbers in 1 .. kMostSize, or of numbers, or of true and false.
  std::vector<int64_t> sizes(const char* key, std::vector<int64_t> absent) const {
    return list(key, std::move(absent), "positive whole numbers", [](const nlohmann::json& value) {
      return value.is_number_integer() && value > 0 && value <= kMostSize;
    });
  }
  std::vector<double> reals(const char* key, std::vector<double> absent) const {
    return list(key, std::move(absent), "numbers", [](const nlohmann::json& value) { return value.is_number(); });
  }
  std::vector<bool> flags(const char* key, std::vector<bool> absent) const {
    return list(key, std::move(absent), "true and false",
                [](const nlohmann::json& value) { return value.is_boolean(); });
  }
  /// Throws unless the field is `expected` or absent: unsupported values are refused, not ignored.
  void expect(const char* key, const nlohmann::json& expected) const {
    if (has(key) && json_[key] != expected)
      fail(std::string(key) + " is " + shown(key) + ", supported is " + expected.dump());
  }
  /// Throws unless a width that follows from several fields, which `what` names, is within the bound of a size.
  void expect_narrow(const std::string& what, double width) const {
    if (!(std::abs(width) <= static_cast<double>(kMostSize)))
      fail(what + " is " + nlohmann::json(width).dump() + ", expected at most " + std::to_string(kMostSize));
  }
  void expect_absent(const char* key, const std::string& meaning) const {
    if (has(key)) fail(std::string(key) + " is set: " + meaning);
  }
  [[noreturn]] void fail(const std::string& what) const {
    const bool in_recipe = file_ == kRecipeConfig;
    throw UserError(in_recipe ? Exit::usage : Exit::input, "models.config", file_ + ": " + what,
                    in_recipe ? "correct the recipe, or use model.preset" : "check the file, or use model.preset");
  }

 private:
  ConfigReader(nlohmann::json json, std::string file, std::string path)
      : json_(std::move(json)), file_(std::move(file)), path_(std::move(path)) {
    if (!json_.is_object()) fail("is not a JSON object");
    for (const char* about_itself : {"_class_name", "_diffusers_version", "architectures", "model_type"})
      if (path_.empty()) find(about_itself);
  }

  const nlohmann::json* find(const char* key, bool note = true) const {
    if (note) ReadFields::note(path_ + key);
    const auto found = json_.find(key);
    return found == json_.end() ? nullptr : &*found;
  }

  template <class T, class Fits>
  std::vector<T> list(const char* key, std::vector<T> absent, const char* of, Fits fits) const {
    if (!has(key)) return absent;
    bool all = json_[key].is_array() && !json_[key].empty();
    for (size_t i = 0; all && i < json_[key].size(); ++i) all = fits(json_[key][i]);
    if (!all) fail(std::string(key) + " is " + shown(key) + ", expected a list of " + of);
    return json_[key].template get<std::vector<T>>();
  }
  int64_t or_fail(const char* key, std::optional<int64_t> absent) const {
    if (!absent) fail(std::string(key) + " is missing");
    return *absent;
  }
  std::string shown(const char* key) const {
    return json_[key].dump(-1, ' ', false, nlohmann::json::error_handler_t::replace).substr(0, 80);
  }

  nlohmann::json json_;
  std::string file_;
  std::string path_;  ///< "", or "encoder/" of a field's fields
};

}  // namespace tessera::models
