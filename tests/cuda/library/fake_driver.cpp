// An NVIDIA driver that only answers: CUINIT is what cuInit gives, VERSION the CUDA version that it knows. It notes what of
// its environment is there at cuInit.
#include <cstdlib>

extern "C" {
const char *connections_at_init = nullptr, *blocking_at_init = nullptr;
int cuInit(unsigned) {
  connections_at_init = std::getenv("CUDA_DEVICE_MAX_CONNECTIONS");
  blocking_at_init = std::getenv("CUDA_LAUNCH_BLOCKING");
  return CUINIT;
}
int cuDriverGetVersion(int* version) { return *version = VERSION, 0; }
}
