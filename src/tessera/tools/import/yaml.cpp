#include <yaml-cpp/yaml.h>

#include <nlohmann/json.hpp>

#include "tessera/base/check.h"
#include "tessera/tools/import/config_file.h"

namespace tessera::tools {

namespace {

/// Scalars stay the text that they are; a key without a value is left out.
nlohmann::ordered_json yaml_as_json(const YAML::Node& node) {
  nlohmann::ordered_json json = nlohmann::ordered_json::array();
  if (node.IsScalar()) return node.Scalar();
  if (node.IsSequence())
    for (const YAML::Node& item : node) json.push_back(yaml_as_json(item));
  if (node.IsMap()) {
    json = nlohmann::ordered_json::object();
    for (const auto& entry : node)
      if (!entry.second.IsNull()) json[entry.first.as<std::string>()] = yaml_as_json(entry.second);
  }
  return json;
}

}  // namespace

std::vector<Given> read_yaml(const std::string& text, const std::string& file) {
  try {
    const YAML::Node root = YAML::Load(text);
    if (!root.IsMap()) throw UserError(Exit::usage, "import", file + ": expected `key: value` lines");
    return flat_options(yaml_as_json(root));
  } catch (const YAML::Exception& error) {
    throw UserError(Exit::usage, "import",
                    file + ", line " + std::to_string(error.mark.line + 1) + ": " + error.msg + ", which is no YAML",
                    "correct the file");
  }
}

}  // namespace tessera::tools
