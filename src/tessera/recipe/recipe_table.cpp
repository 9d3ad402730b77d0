#include "tessera/recipe/recipe_table.h"

#include "tessera/recipe/settings.h"

namespace tessera::recipe {

const OptionTable& recipe_table() {
  static const OptionTable table = [] {
    std::vector<Option> options;
    for (const Setting& s : settings()) options.push_back({s.key, s.kind, s.fallback, s.help, s.more.choices});
    return OptionTable(std::move(options));
  }();
  return table;
}

}  // namespace tessera::recipe
