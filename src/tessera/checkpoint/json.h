#pragma once
// JSON from foreign files: duplicate keys, deep nesting and wrong types are refused, never guessed at.
//
//   Json header = parse_json(text, "a.safetensors: header");
//   int64_t n = json_integer(header["n"], "a.safetensors: n");
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "tessera/base/json.h"
#include "tessera/base/text.h"
#include "tessera/checkpoint/dtype.h"

namespace tessera::checkpoint {

using Json = nlohmann::json;

/// `what` opens every message: the file, and the place in it. All of these throw UserError (input).
using tessera::parse_json;
const Json& json_member(const Json& object, const char* key, const std::string& what);
int64_t json_integer(const Json& value, const std::string& what);  ///< a whole number that fits int64
std::string json_string(const Json& value, const std::string& what);
const Json& json_array(const Json& value, const std::string& what);
Shape json_shape(const Json& value, const std::string& what);  ///< an array of integers >= 0

/// Compact text; what is not UTF-8 in a string (a file name may be anything) becomes U+FFFD.
std::string dump_json(const Json& value);

using tessera::shown;

}  // namespace tessera::checkpoint
