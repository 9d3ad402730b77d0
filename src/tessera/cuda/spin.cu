// Work that takes its time and changes nothing: put between others, it changes the turns of streams (TESSERA_SPIN).
#include "tessera/cuda/kernels.h"
#include "tessera/cuda/launch.h"

namespace tessera::cuda {

namespace {

__global__ void spin(long long cycles) {
  const long long begun = clock64();
  while (clock64() - begun < cycles) {
  }
}

}  // namespace

cudaError_t launch_spin(int64_t cycles, cudaStream_t stream) {
  TESSERA_LAUNCH(spin, 1, 1, stream, static_cast<long long>(cycles));
  return cudaGetLastError();
}

}  // namespace tessera::cuda
