#include "tessera/checkpoint/json.h"

#include "tessera/base/check.h"

namespace tessera::checkpoint {

namespace {

[[noreturn]] void refuse_json(const std::string& what, const std::string& problem) {
  throw UserError(Exit::input, "json", what + ": " + problem, "the file is damaged or not what its name says");
}

[[noreturn]] void wrong_type(const std::string& what, std::string_view expected, const Json& found) {
  refuse_json(what, "expected " + std::string(expected) + ", found " + shown(dump_json(found)));
}

}  // namespace

const Json& json_member(const Json& object, const char* key, const std::string& what) {
  if (!object.is_object()) wrong_type(what, "an object", object);
  auto found = object.find(key);
  if (found == object.end()) refuse_json(what, "'" + std::string(key) + "' is missing");
  return *found;
}

int64_t json_integer(const Json& value, const std::string& what) {
  bool whole = value.is_number_integer();
  if (whole && value.is_number_unsigned()) whole = value.get<uint64_t>() <= static_cast<uint64_t>(INT64_MAX);
  if (!whole) wrong_type(what, "a whole number below 2^63", value);
  return value.get<int64_t>();
}

std::string json_string(const Json& value, const std::string& what) {
  if (!value.is_string()) wrong_type(what, "a string", value);
  return value.get<std::string>();
}

const Json& json_array(const Json& value, const std::string& what) {
  if (!value.is_array()) wrong_type(what, "an array", value);
  return value;
}

Shape json_shape(const Json& value, const std::string& what) {
  Shape shape;
  for (const Json& dim : json_array(value, what)) {
    shape.push_back(json_integer(dim, what));
    if (shape.back() < 0) wrong_type(what, "dimensions of 0 and more", value);
  }
  return shape;
}

std::string dump_json(const Json& value) { return value.dump(-1, ' ', false, Json::error_handler_t::replace); }

}  // namespace tessera::checkpoint
