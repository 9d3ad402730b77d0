// In place of inflate.cpp where zlib is not installed.
#include "tessera/base/check.h"
#include "tessera/data/files/inflate.h"

namespace tessera::data {

bool has_inflate() { return false; }

std::string inflated(const checkpoint::ReadFile&, const DeflatedBytes&, const std::string& name, int64_t) {
  throw UserError(Exit::input, "data.archive", name + ": is compressed, and this build has no zlib",
                  "install zlib1g-dev and build again, or store the clips as they are (zip -0)");
}

}  // namespace tessera::data
