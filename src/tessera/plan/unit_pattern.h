#pragma once
// How a plan file names units: by name, range or prefix. Internal to reading and writing plan files.
//
//   matching("blocks.2-5", {"stem", "blocks.0", ...})     // their indices
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace tessera::plan {

/// "blocks.12" is {"blocks.", 12}; a name without a number has index -1.
struct Numbered {
  std::string stem;
  int64_t index = -1;
};
Numbered numbered(std::string_view name);

/// Indices of the units that `pattern` names: a name, a range "blocks.2-5", or a prefix "blocks.*". Empty if there are
/// none or if a part of the range does not exist.
std::vector<size_t> matching(std::string_view pattern, const std::vector<std::string>& names);

}  // namespace tessera::plan
