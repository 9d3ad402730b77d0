#include "tessera/base/json.h"

#include <nlohmann/json.hpp>
#include <type_traits>
#include <unordered_set>
#include <vector>

#include "tessera/base/check.h"
#include "tessera/base/text.h"

namespace tessera {

namespace {

constexpr std::string_view kWrong = "the file is damaged or not what its name says";

/// Builds a value from the parser's events. (nlohmann's own callback goes through all members of the parent at the end of
/// every object, and its ordered objects through all keys at every key.)
template <class Json>
class Builder : public nlohmann::json_sax<Json> {
 public:
  using Base = nlohmann::json_sax<Json>;
  using typename Base::binary_t;
  using typename Base::number_float_t;
  using typename Base::number_integer_t;
  using typename Base::number_unsigned_t;
  using typename Base::string_t;

  explicit Builder(const JsonLimits& limits) : limits_(limits) {}

  std::string problem;  ///< why it stopped
  Json root;

  bool null() override { return add(nullptr); }
  bool boolean(bool value) override { return add(value); }
  bool number_integer(number_integer_t value) override { return add(value); }
  bool number_unsigned(number_unsigned_t value) override { return add(value); }
  bool number_float(number_float_t value, const string_t&) override { return add(value); }
  bool string(string_t& value) override {
    return charge(kText + static_cast<int64_t>(value.size())) && add(std::move(value));
  }
  bool binary(binary_t&) override { return refuse("binary data"); }
  bool start_object(size_t) override { return open(Json::object(), kObject); }
  bool start_array(size_t) override { return open(Json::array(), kArray); }
  bool end_object() override { return close(); }
  bool end_array() override { return close(); }
  bool key(string_t& value) override {
    if (!charge(kKey + static_cast<int64_t>(value.size()))) return false;
    auto& members = open_.back().value->template get_ref<typename Json::object_t&>();
    if constexpr (kOrdered) {  // its own emplace() searches through all members
      if (!open_.back().keys.insert(value).second) return refuse("duplicate key " + shown(value));
      members.push_back({std::move(value), Json()});
      member_ = &members.back().second;
    } else {
      const auto [member, fresh] = members.emplace(value, Json());
      if (!fresh) return refuse("duplicate key " + shown(value));
      member_ = &member->second;
    }
    return true;
  }
  bool parse_error(size_t, const std::string&, const nlohmann::detail::exception& error) override {
    return refuse("not JSON (" + shown(error.what()) + ")");
  }

 private:
  // Bytes in memory: a value within a growing vector, a node of a map, a key with its entry among the keys that are open.
  static constexpr int64_t kValue = 32, kText = 48, kArray = 48, kObject = 160, kKey = 176;

  static constexpr bool kOrdered = std::is_same_v<Json, nlohmann::ordered_json>;

  struct Open {
    Json* value;
    std::unordered_set<std::string> keys = {};  ///< of an ordered object
  };

  bool refuse(std::string why) {
    problem = std::move(why);
    return false;
  }
  bool charge(int64_t bytes) {
    used_ += bytes;
    return used_ <= limits_.bytes ||
           refuse("more values than " + std::to_string(limits_.bytes >> 20) + " MiB of memory hold");
  }
  /// Where the next value goes; its address holds until the container that it stands in gets another.
  Json* place(Json value) {
    if (open_.empty()) {
      root = std::move(value);
      return &root;
    }
    Json& parent = *open_.back().value;
    if (parent.is_array()) {
      auto& items = parent.template get_ref<typename Json::array_t&>();
      items.push_back(std::move(value));
      return &items.back();
    }
    *member_ = std::move(value);
    return member_;
  }
  bool add(Json value) {
    if (!charge(kValue)) return false;
    place(std::move(value));
    return true;
  }
  bool open(Json empty, int64_t bytes) {
    if (static_cast<int>(open_.size()) >= limits_.depth)
      return refuse("nested deeper than " + std::to_string(limits_.depth));
    if (!charge(kValue + bytes)) return false;
    open_.push_back({place(std::move(empty))});
    return true;
  }
  bool close() {
    open_.pop_back();
    return true;
  }

  const JsonLimits limits_;
  std::vector<Open> open_;
  Json* member_ = nullptr;  ///< that of the newest key
  int64_t used_ = 0;
};

template <class Json>
Json parse(std::string_view text, const std::string& what, const JsonLimits& limits) {
  Builder<Json> builder(limits);
  const bool whole = Json::sax_parse(text.begin(), text.end(), &builder, nlohmann::detail::input_format_t::json,
                                     /*strict=*/true, limits.comments);
  if (!whole) throw UserError(Exit::input, "json", what + ": " + builder.problem, kWrong);
  return std::move(builder.root);
}

}  // namespace

nlohmann::json parse_json(std::string_view text, const std::string& what, const JsonLimits& limits) {
  return parse<nlohmann::json>(text, what, limits);
}

nlohmann::ordered_json parse_ordered_json(std::string_view text, const std::string& what, const JsonLimits& limits) {
  return parse<nlohmann::ordered_json>(text, what, limits);
}

nlohmann::json json_or_nothing(std::string_view text) {
  Builder<nlohmann::json> builder({});
  const bool whole = nlohmann::json::sax_parse(text.begin(), text.end(), &builder);
  return whole ? std::move(builder.root) : nlohmann::json(nlohmann::json::value_t::discarded);
}

JsonFields::JsonFields(const nlohmann::json& object, std::string what) : object_(&object), what_(std::move(what)) {
  if (!object.is_object()) throw UserError(Exit::input, "json", what_ + ": expected an object", kWrong);
}

const nlohmann::json* JsonFields::find(const char* key) const {
  const auto found = object_->find(key);
  return found == object_->end() || found->is_null() ? nullptr : &*found;
}

void JsonFields::fail(const std::string& key, std::string_view expected, const nlohmann::json& found) const {
  throw UserError(Exit::input, "json",
                  what_ + ": field " + shown(key) + ": expected " + std::string(expected) + ", found " +
                      shown(found.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace)),
                  kWrong);
}

int64_t JsonFields::whole_of(const std::string& key, const nlohmann::json& value) const {
  constexpr int64_t kMost = int64_t{1} << 53;
  const bool fits = value.is_number_unsigned() ? value.get<uint64_t>() <= static_cast<uint64_t>(kMost)
                                               : value.is_number_integer() && value.get<int64_t>() >= -kMost;
  if (!fits) fail(key, "a whole number", value);
  return value.get<int64_t>();
}

double JsonFields::real_of(const std::string& key, const nlohmann::json& value) const {
  if (!value.is_number()) fail(key, "a number", value);
  return value.get<double>();
}

int64_t JsonFields::whole(const char* key, int64_t absent) const {
  const nlohmann::json* value = find(key);
  return value ? whole_of(key, *value) : absent;
}

double JsonFields::real(const char* key, double absent) const {
  const nlohmann::json* value = find(key);
  return value ? real_of(key, *value) : absent;
}

std::string JsonFields::text(const char* key) const {
  const nlohmann::json* value = find(key);
  if (value && !value->is_string()) fail(key, "a text", *value);
  return value ? value->get<std::string>() : "";
}

JsonFields JsonFields::object(const char* key) const {
  static const nlohmann::json empty = nlohmann::json::object();
  const nlohmann::json* value = find(key);
  return {value ? *value : empty, what_ + ": " + key};
}

std::vector<JsonFields> JsonFields::list(const char* key) const {
  std::vector<JsonFields> items;
  const nlohmann::json* value = find(key);
  if (value && !value->is_array()) fail(key, "a list", *value);
  if (value)
    for (const nlohmann::json& item : *value) items.emplace_back(item, what_ + ": " + key);
  return items;
}

std::map<std::string, int64_t> JsonFields::wholes() const {
  std::map<std::string, int64_t> all;
  for (const auto& [key, value] : object_->items()) all[key] = whole_of(key, value);
  return all;
}

std::map<std::string, double> JsonFields::reals() const {
  std::map<std::string, double> all;
  for (const auto& [key, value] : object_->items()) all[key] = real_of(key, value);
  return all;
}

}  // namespace tessera
