#pragma once
// Chips that plans are made for, with what LibTorch and its libraries take on them beside the tensors of a program. A plan
// for one can be made on a machine without it.
//
//   const Target& hopper = target("sm_90");
//   hopper.cublas_workspace;                      // 32 MiB
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace tessera {

struct Target {
  std::string_view name;     ///< nvcc's name of the architecture
  int multiprocessors;       ///< of its largest chip
  int64_t cublas_workspace;  ///< bytes of a handle and a stream, from LibTorch's allocator
};

/// All that are known, oldest first.
const std::vector<Target>& targets();

/// Throws UserError (input) with the nearest known name, said to be at `where`.
const Target& target(std::string_view name, std::string_view where);

}  // namespace tessera
