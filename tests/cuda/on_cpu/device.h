#pragma once
// A CUDA device on one CPU thread: the threads of a block are fibers with random priorities, drawn anew for each block.
// What real hardware leaves to chance is chosen for the worst: some threads run as far ahead of others as barriers and
// shuffles let them, shared memory begins as NaN in every block, and a barrier that some threads miss is an error instead
// of a hang.
//
//   run({blocks, 1, 1}, {256, 1, 1}, [&] { kernel(x, n); });
//
// Kernels see it through cuda_runtime_api.h beside this file.
#include <cstddef>
#include <cstdint>
#include <functional>

namespace tessera::on_cpu {

struct Index {
  unsigned x = 0, y = 0, z = 0;
};

/// Where the running fiber is; kernels read them under CUDA's names.
inline Index thread_index, block_index, block_size, grid_size;

/// Runs the blocks one after the other, in a random order. Throws std::logic_error if no thread of a block can go on.
void run(Index blocks, Index threads, const std::function<void()>& kernel);

/// The order of everything that is run from now on.
void choose_order(uint32_t seed);

/// The calling thread waits for all threads of its block.
void block_barrier();
/// The calling thread waits for the lanes of `mask` in its warp, and gets the word that lane `from` brought. A lane
/// outside `mask` brings nothing: what it gets is undefined on hardware, here it is an error.
uint32_t exchange(uint32_t mask, uint32_t word, unsigned from);

/// Bytes of memory that kernels read and wrote by lanes since they were last asked for: in total, and each address once.
struct Touched {
  int64_t read = 0, written = 0, read_once = 0, written_once = 0;
};
Touched touched();
void count_touches(bool on);
void touch(const void* at, size_t bytes, bool writes);

/// Blocks that ended since the program started: proof that a test ran something.
int64_t blocks_run();

}  // namespace tessera::on_cpu
