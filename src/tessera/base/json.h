#pragma once
// JSON of strangers: read in linear time, with a bound on depth and memory. Every reader of JSON goes through here.
//
//   const nlohmann::json header = parse_json(text, "a.safetensors: header");
//   const nlohmann::json line = json_or_nothing(text);      // is_discarded() where it is no JSON
#include <cstdint>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace tessera {

/// What a text may become. No format that we read is deeper than 10, and the manifest of a checkpoint of 8192 ranks takes
/// 1 GiB.
struct JsonLimits {
  int depth = 32;
  int64_t bytes = int64_t{1} << 30;  ///< of the values in memory, estimated from above
  bool comments = false;             ///< as DeepSpeed's files have them
};

/// Throws UserError (input) for what is no JSON, has a key twice in an object, or is beyond the limits; `what` opens the
/// message: the file, and the place in it.
nlohmann::json parse_json(std::string_view text, const std::string& what, const JsonLimits& limits = {});
/// The same with the keys of objects in the order of the text.
nlohmann::ordered_json parse_ordered_json(std::string_view text, const std::string& what,
                                          const JsonLimits& limits = {});
/// For files of which nothing is refused: a discarded value in place of an error.
nlohmann::json json_or_nothing(std::string_view text);

/// The fields of an object that a stranger may have written; `what` names it in messages: the file, and the place in it.
/// Throws UserError (input) naming field and value where a field has another type; one that is absent or null has the
/// value that the caller gives.
class JsonFields {
 public:
  JsonFields(const nlohmann::json& object, std::string what);

  bool has(const char* key) const { return find(key) != nullptr; }
  int64_t whole(const char* key, int64_t absent = 0) const;  ///< within 2^53: sums of many such fit
  double real(const char* key, double absent = 0) const;
  std::string text(const char* key) const;              ///< empty where absent
  JsonFields object(const char* key) const;             ///< without fields where absent
  std::vector<JsonFields> list(const char* key) const;  ///< of objects
  std::map<std::string, int64_t> wholes() const;        ///< all fields
  std::map<std::string, double> reals() const;

 private:
  const nlohmann::json* find(const char* key) const;
  [[noreturn]] void fail(const std::string& key, std::string_view expected, const nlohmann::json& found) const;
  int64_t whole_of(const std::string& key, const nlohmann::json& value) const;
  double real_of(const std::string& key, const nlohmann::json& value) const;

  const nlohmann::json* object_;
  std::string what_;
};

}  // namespace tessera
