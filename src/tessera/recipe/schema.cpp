#include "tessera/recipe/schema.h"

#include <charconv>
#include <cmath>
#include <map>

#include "tessera/base/options.h"
#include "tessera/recipe/settings.h"

namespace tessera::recipe {

namespace {

using Json = nlohmann::ordered_json;

/// A text of the table as TOML would have it: 4, 0.5, true, or the text itself.
Json typed(const std::string& text) {
  if (text == "true" || text == "false") return text == "true";
  const char* const end = text.data() + text.size();
  int64_t whole = 0;
  if (const auto [stop, error] = std::from_chars(text.data(), end, whole); error == std::errc() && stop == end)
    return whole;
  double number = 0;
  if (const auto [stop, error] = std::from_chars(text.data(), end, number); error == std::errc() && stop == end)
    return number;
  return text;
}

/// Choices may be written as the numbers and flags that they look like.
Json choices_of(const std::string& choices) {
  Json all = Json::array();
  for (size_t at = 0; at <= choices.size();) {
    const size_t end = std::min(choices.find('|', at), choices.size());
    const std::string choice = choices.substr(at, end - at);
    all.push_back(choice);
    if (const Json other = typed(choice); !other.is_string()) all.push_back(other);
    at = end + 1;
  }
  return all;
}

Json number_of(const Setting& setting, const char* type) {
  Json schema = {{"type", type}};
  const Range& range = setting.more.range;
  if (std::isfinite(range.least)) schema[range.open ? "exclusiveMinimum" : "minimum"] = range.least;
  if (std::isfinite(range.most)) schema[range.open || range.below ? "exclusiveMaximum" : "maximum"] = range.most;
  if (setting.fallback.empty() || !typed(setting.fallback).is_string()) return schema;
  return {{"anyOf", {schema, {{"const", setting.fallback}}}}};  // "auto" in the place of a number
}

Json kind_of(const Setting& setting) {
  const Json scalar = {{"type", {"string", "number", "boolean"}}};
  switch (setting.kind) {
    case Kind::integer:
      return number_of(setting, "integer");
    case Kind::number:
      return number_of(setting, "number");
    case Kind::bytes:
      return {{"type", {"string", "integer"}}};
    case Kind::choice:
      return {{"enum", choices_of(setting.more.choices)}};
    case Kind::list:
    case Kind::paths: {
      Json item = setting.kind == Kind::paths ? Json{{"type", "string"}} : scalar;
      const Json one = item;
      if (setting.key == "plan.units") item = {{"anyOf", {item, {{"type", "object"}, {"required", {"match"}}}}}};
      return {{"anyOf", {Json{{"type", "array"}, {"items", item}}, one}}};
    }
    default:
      return scalar;
  }
}

Json key_schema(const Setting& setting) {
  Json schema = kind_of(setting);
  schema["description"] = setting.help;
  if (!setting.fallback.empty() && setting.kind != Kind::list) schema["default"] = typed(setting.fallback);
  return schema;
}

Json object() { return {{"type", "object"}, {"additionalProperties", false}, {"properties", Json::object()}}; }

/// Puts "model.config.dim" into the object "config" of the object "model".
void put(Json& root, const std::string& key, const Json& schema) {
  Json* at = &root;
  size_t begin = 0;
  for (size_t dot = key.find('.'); dot != key.npos; dot = key.find('.', begin)) {
    Json& inner = (*at)["properties"][key.substr(begin, dot - begin)];
    if (inner.is_null()) inner = object();
    at = &inner, begin = dot + 1;
  }
  (*at)["properties"][key.substr(begin)] = schema;
}

}  // namespace

Json recipe_schema() {
  Json root = object(), stage = object();
  std::map<std::string, int> tables;  // that have a key of this name
  for (const Setting& setting : settings()) ++tables[setting.key.substr(setting.key.rfind('.') + 1)];
  for (const char* word : {"from", "step"})
    stage["properties"][word] = {
        {"type", "integer"}, {"minimum", 2}, {"description", "the first step with these values"}};
  for (const Setting& setting : settings()) {
    const Json schema = key_schema(setting);
    put(root, setting.key, schema);
    if (!setting.more.in_stages) continue;
    put(stage, setting.key, schema);
    const std::string alone = setting.key.substr(setting.key.rfind('.') + 1);
    if (tables[alone] == 1) put(stage, alone, schema);  // its table may be left out
  }
  root["properties"]["stage"] = {
      {"type", "array"}, {"items", stage}, {"description", "keys that change from a step on"}};
  Json schema = {{"$schema", "http://json-schema.org/draft-07/schema#"}, {"title", "a recipe of Tessera"}};
  schema.update(root);
  return schema;
}

}  // namespace tessera::recipe
