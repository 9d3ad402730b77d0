// In place of yaml.cpp where yaml-cpp is not installed.
#include "tessera/base/check.h"
#include "tessera/tools/import/config_file.h"

namespace tessera::tools {

std::vector<Given> read_yaml(const std::string&, const std::string& file) {
  throw UserError(Exit::usage, "import", file + ": this build reads no YAML, because yaml-cpp was not there",
                  "install libyaml-cpp-dev and build again, or give the options as JSON");
}

}  // namespace tessera::tools
