// tessera --version: of the program, of the LibTorch it runs with, and what this build has.
#include "version.h"

#include <ATen/Version.h>
#include <torch/version.h>

namespace tessera::apps {

std::string version() {
  return std::string("tessera ") + TESSERA_VERSION + "\nLibTorch " + TORCH_VERSION + ", " + at::get_cpu_capability() +
         "\n";
}

}  // namespace tessera::apps
