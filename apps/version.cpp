// tessera --version: of the program, with the commit it was built from, and of the LibTorch it runs with.
#include "version.h"

#include <ATen/Version.h>
#include <torch/version.h>

#include "commit.h"  // written by each build (cmake/commit.cmake)
#include "tessera/base/version.h"

namespace tessera::apps {

std::string version() {
  const std::string commit = TESSERA_COMMIT;
  std::string text = "tessera ";  // appended to: GCC 12 warns of its own operator+ here
  text.append(kVersion);
  if (!commit.empty()) text.append(" (commit ").append(commit).append(")");
  return text.append("\nLibTorch ").append(TORCH_VERSION).append(", ").append(at::get_cpu_capability()).append("\n");
}

}  // namespace tessera::apps
