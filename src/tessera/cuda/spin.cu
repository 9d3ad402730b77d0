// Work of one thread: it takes its time and changes nothing (put between others, it changes the turns of streams, TESSERA_SPIN),
// or tells the host how far a stream is.
#include "tessera/cuda/kernels.h"
#include "tessera/cuda/launch.h"

namespace tessera::cuda {

namespace {

__global__ void spin(long long cycles) {
  const long long begun = clock64();
  while (clock64() - begun < cycles) {
  }
}

__global__ void write_word(volatile uint32_t* to, uint32_t value) { *to = value; }

}  // namespace

cudaError_t launch_write_word(uint32_t* to, uint32_t value, cudaStream_t stream) {
  TESSERA_LAUNCH(write_word, 1, 1, stream, to, value);
  return cudaGetLastError();
}

cudaError_t launch_spin(int64_t cycles, cudaStream_t stream) {
  TESSERA_LAUNCH(spin, 1, 1, stream, static_cast<long long>(cycles));
  return cudaGetLastError();
}

}  // namespace tessera::cuda
