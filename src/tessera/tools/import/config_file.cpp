#include "tessera/tools/import/config_file.h"

#include <charconv>
#include <filesystem>
#include <nlohmann/json.hpp>

#define TOML_ENABLE_FORMATTERS 0
#include <toml++/toml.h>

#include "tessera/base/check.h"
#include "tessera/base/foreign_file.h"
#include "tessera/base/json.h"
#include "tessera/base/toml_text.h"

namespace tessera::tools {

namespace {

namespace fs = std::filesystem;
using JsonValue = nlohmann::ordered_json;

std::string json_scalar(const JsonValue& value) {
  if (value.is_string()) return value.get<std::string>();
  if (value.is_number_float()) return number_text(value.get<double>());
  return value.is_null() ? "null" : value.dump(-1, ' ', false, JsonValue::error_handler_t::replace);
}

std::string json_item(const JsonValue& item) {
  if (!item.is_array()) return json_scalar(item);
  std::string text;
  for (const JsonValue& inner : item) text += (text.empty() ? "" : ",") + json_item(inner);
  return text;
}

void flatten_json(const JsonValue& value, const std::string& name, std::vector<Given>& out) {
  const std::string prefix = name.empty() ? "" : name + ".";
  if (value.is_object()) {
    for (const auto& [key, inner] : value.items()) flatten_json(inner, prefix + key, out);
  } else if (value.is_array() && !value.empty() && value.front().is_object()) {
    for (size_t i = 0; i < value.size(); ++i) flatten_json(value[i], prefix + std::to_string(i), out);
  } else if (value.is_array()) {
    std::string list;
    for (const JsonValue& item : value) list += json_item(item) + kListSeparator;
    out.push_back({name, list});
  } else {
    out.push_back({name, json_scalar(value)});
  }
}

JsonValue toml_as_json(const toml::node& node) {
  if (const auto* table = node.as_table()) {
    JsonValue object = JsonValue::object();
    for (const auto& [key, inner] : *table) object[std::string(key.str())] = toml_as_json(inner);
    return object;
  }
  if (const auto* list = node.as_array()) {
    JsonValue array = JsonValue::array();
    for (const toml::node& inner : *list) array.push_back(toml_as_json(inner));
    return array;
  }
  if (const auto* text = node.as_string()) return text->get();
  if (const auto* integer = node.as_integer()) return integer->get();
  if (const auto* number = node.as_floating_point()) return number->get();
  if (const auto* flag = node.as_boolean()) return flag->get();
  return nullptr;
}

}  // namespace

std::vector<Given> flat_options(const nlohmann::ordered_json& config, const std::string& file) {
  std::vector<Given> out;
  flatten_json(config, "", out);
  constexpr size_t kMost = 10'000;
  check_input(out.size() <= kMost, "import",
              file + ": has " + std::to_string(out.size()) + " options, expected at most " + std::to_string(kMost),
              "is this the configuration of a trainer?");
  return out;
}

std::vector<Given> read_json(const std::string& text, const std::string& file) {
  const JsonValue json = parse_ordered_json(text, file, {.bytes = int64_t{64} << 20, .comments = true});
  const bool tables = json.is_array() && !json.empty() && json.front().is_object();
  check_input(json.is_object() || tables, "import", file + ": expected a JSON object, or a list of them",
              "correct the file");
  return flat_options(json, file);
}

std::vector<Given> read_toml(const std::string& text, const std::string& file) {
  try {
    return flat_options(toml_as_json(parse_toml(text)), file);
  } catch (const toml::parse_error& error) {
    throw UserError(
        Exit::usage, "import",
        file + ", line " + std::to_string(error.source().begin.line) + ": " + std::string(error.description()),
        "correct the file");
  }
}

std::vector<Given> read_config(const std::string& path) {
  if (fs::path(path).extension() == ".py") return flat_options(read_python_config(path), path);
  check_input(fs::exists(path) && !fs::is_directory(path), "import", path + ": there is no such file",
              "give a DeepSpeed .json, an accelerate .yaml, the .toml of musubi-tuner or diffusion-pipe, or "
              "a trainer's .py");
  constexpr int64_t kMost = int64_t{8} << 20;
  const std::string text = read_foreign(path, kMost, "import"), ending = fs::path(path).extension().string();
  if (ending == ".json") return read_json(text, path);
  if (ending == ".toml") return read_toml(text, path);
  if (ending == ".yaml" || ending == ".yml") return read_yaml(text, path);
  throw UserError(Exit::usage, "import", path + ": expected a .json, .yaml, .toml or .py file",
                  "a command line is given with --from \"...\"");
}

std::string file_beside(const ImportContext& context, const std::string& name) {
  const fs::path beside = fs::path(context.folder) / name;
  return !context.folder.empty() && !fs::exists(name) && fs::exists(beside) ? beside.string() : name;
}

}  // namespace tessera::tools
