#include <yaml-cpp/yaml.h>

#include <nlohmann/json.hpp>

#include "tessera/base/check.h"
#include "tessera/tools/import/config_file.h"

namespace tessera::tools {

namespace {

/// What an alias names is written out again wherever it stands: the values are counted as they are written.
class Writer {
 public:
  explicit Writer(const std::string& file) : file_(file) {}

  /// Scalars stay the text that they are; a key without a value is left out.
  nlohmann::ordered_json write(const YAML::Node& node, int depth = 0) {
    constexpr int kMostValues = 10'000, kMostDepth = 32;
    check_input(++values_ <= kMostValues && depth <= kMostDepth, "import",
                file_ + ": more than " + std::to_string(kMostValues) + " values, aliases written out, or deeper than " +
                    std::to_string(kMostDepth),
                "is this the configuration of a trainer?");
    nlohmann::ordered_json json = nlohmann::ordered_json::array();
    if (node.IsScalar()) return node.Scalar();
    if (node.IsSequence())
      for (const YAML::Node& item : node) json.push_back(write(item, depth + 1));
    if (node.IsMap()) {
      json = nlohmann::ordered_json::object();
      for (const auto& entry : node)
        if (!entry.second.IsNull()) json[entry.first.as<std::string>()] = write(entry.second, depth + 1);
    }
    return json;
  }

 private:
  const std::string& file_;
  int values_ = 0;
};

}  // namespace

std::vector<Given> read_yaml(const std::string& text, const std::string& file) {
  // yaml-cpp is quadratic in places, and no trainer's configuration is near this
  constexpr size_t kMost = size_t{256} << 10;
  check_input(text.size() <= kMost, "import", file + ": has more than 256 KiB",
              "is this the configuration of a trainer?");
  try {
    const YAML::Node root = YAML::Load(text);
    if (!root.IsMap()) throw UserError(Exit::usage, "import", file + ": expected `key: value` lines");
    return flat_options(Writer(file).write(root), file);
  } catch (const YAML::Exception& error) {
    throw UserError(Exit::usage, "import",
                    file + ", line " + std::to_string(error.mark.line + 1) + ": " + error.msg + ", which is no YAML",
                    "correct the file");
  }
}

}  // namespace tessera::tools
