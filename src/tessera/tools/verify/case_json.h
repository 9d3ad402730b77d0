#pragma once
// case.json of a golden case: what kind it is, and how near computed values must be. Knows no tensors.
//
//   const CaseDescription description("goldens/wan21_t2v/case.json");
//   description.kind();                                  // "dit"
//   description.tolerance("out");
#include <filesystem>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

namespace tessera::tools {

using Json = nlohmann::ordered_json;

/// A JSON file of a golden case that remembers which of its values were read: a setting that this build passes over would
/// change what is expected, so a case with one is refused.
class Settings {
  /// What `read` gives; its error with the place of the value, which is a field of this one where there is a `key`.
  template <class F>
  decltype(auto) named(const std::string& key, F read) const {
    try {
      return read();
    } catch (const Json::exception& error) {
      fail(key, error);
    }
  }

 public:
  Settings() : Settings(Json()) {}
  explicit Settings(Json json) : root_(std::make_shared<Root>(std::move(json))), json_(&root_->json) {}

  // What nlohmann's JSON has under these names. Throws UserError (input) naming the value that is absent or has another type.
  bool contains(const std::string& key) const { return json_->contains(key); }
  Settings at(const std::string& key) const {
    return {*this, named(key, [&]() -> const Json& { return json_->at(key); }), key};
  }
  Settings at(size_t i) const {
    return {*this, named(std::to_string(i), [&]() -> const Json& { return json_->at(i); }), std::to_string(i)};
  }
  size_t size() const { return json_->size(); }
  bool is_object() const { return json_->is_object(); }
  bool is_array() const { return json_->is_array(); }
  bool is_string() const { return json_->is_string(); }
  bool is_number() const { return json_->is_number(); }
  /// Reads it, where it is null.
  bool is_null() const {
    if (json_->is_null()) read();
    return json_->is_null();
  }
  /// The fields of an object in the order of the file. What holds nothing is read with it.
  std::vector<std::pair<std::string, Settings>> items() const;
  std::vector<Settings> elements() const;  ///< of a list

  template <class T>
  T get() const {
    return named("", [&] { return json().template get<T>(); });
  }
  template <class T>
  requires(!std::is_pointer_v<T>) operator T() const { return get<T>(); }
  template <class T>
  bool operator==(const T& other) const {
    return json() == Json(other);
  }
  /// A field that is absent or null has the value that the caller gives.
  template <class T>
  T value(const std::string& key, const T& absent) const {
    if (!contains(key) || at(key).is_null()) return absent;
    return at(key).template get<T>();
  }
  /// The value with all that is in it, read.
  const Json& json() const {
    read();
    return *json_;
  }
  /// The text of an object whose fields another reader takes, which tells which it knows (models::ReadFields).
  std::string text() const {
    root_->handed_on.insert(path_);
    return json_->dump();
  }
  /// The value for a caller that reads none of it but what handed_on() or at() account for.
  const Json& peek() const { return *json_; }
  void read() const { root_->read.insert(path_); }
  void read(const std::string& key) const {  ///< a field that says nothing of the results, where there is one
    if (contains(key)) at(key).read();
  }

  /// Values that nobody has read: "runs.plain.lr". `asked`: paths that readers of handed-on objects asked for, "/" between
  /// their keys.
  std::vector<std::string> unread(const std::set<std::string>& asked) const;

 private:
  struct Root {
    explicit Root(Json all) : json(std::move(all)) {}
    Json json;
    std::set<std::string> read, handed_on;  ///< paths
  };
  Settings(const Settings& parent, const Json& json, const std::string& key)
      : root_(parent.root_), json_(&json), path_(parent.path_ + "/" + key) {}

  [[noreturn]] void fail(const std::string& key, const Json::exception& error) const;
  bool is_read(const std::string& path, const std::set<std::string>& asked) const;
  void collect(const Json& json, const std::string& path, const std::set<std::string>& asked,
               std::vector<std::string>& found) const;

  std::shared_ptr<Root> root_;
  const Json* json_;
  std::string path_;  ///< "", "/runs", "/runs/plain"
};

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
