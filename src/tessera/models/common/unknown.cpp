#include "tessera/models/common/unknown.h"

#include "tessera/base/check.h"

namespace tessera::models {

void unknown_name(const std::string& key, const std::string& name, const std::vector<std::string>& known) {
  std::string list;
  for (const auto& other : known) list += (list.empty() ? "" : ", ") + other;
  const auto near = nearest(name, known);
  throw UserError(Exit::usage, key, "'" + name + "' is not known",
                  (near.empty() ? "" : "did you mean " + near[0] + "? ") + "Known: " + list);
}

}  // namespace tessera::models
