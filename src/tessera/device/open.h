#pragma once
// Finds the library of GPU functions (backend.h) and says why there is none.
//
//   if (const Backend* gpu = open().table) use(*gpu, index);
//   else log::info(open().absence);
//
// libtessera_cuda.so is built if nvcc is found and installed beside the program. It is loaded on the first call if
// there is an NVIDIA driver, so the same program runs on machines without one.
#include <filesystem>
#include <string>

#include "tessera/device/backend.h"

namespace tessera::device {

struct Opened {
  const Backend* table = nullptr;
  std::string absence;  ///< if there is no table: the reason, and what to do where something can be done
};

/// The library beside this program. First thing in a program that computes: LibTorch asks once, at its first use, whether
/// there is a CUDA library, and remembers.
const Opened& open();

/// How many devices open() finds, asked in a process of its own: a driver leaves threads and files in one that starts it.
/// 0 where there is none, and where that process ends otherwise than by an answer.
int count_in_child();

/// The table that open() gives in place of the library's, before its first call. For programs of tests.
void offer(const Backend& table);

/// What open() opens. Tests name others.
struct Places {
  std::string driver = "libcuda.so.1";
  std::filesystem::path library;  ///< libtessera_cuda.so
  std::string (*torch)();  ///< at::show_config() of the LibTorch of this process; called after the library is there
  std::filesystem::path site = {};  ///< the folder of Python packages that has that LibTorch, and those of NVIDIA
};
Opened open_library(const Places& places);

}  // namespace tessera::device

/// The only exported symbol of the library.
extern "C" const tessera::device::Backend* tessera_cuda_register();
