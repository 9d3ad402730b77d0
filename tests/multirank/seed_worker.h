#pragma once
// A program whose ranks check random cases of a model family: "launch RANKS MESH FIRST LAST [FAMILY]" starts the ranks,
// which run cases FIRST..LAST-1 each.
#include <cstdio>
#include <cstdlib>
#include <string_view>

#include "families.h"
#include "tessera/base/check.h"
#include "tessera/comm/comm.h"
#include "tessera/comm/launcher.h"
#include "tessera/comm/world.h"
#include "tessera/device/open.h"
#include "tessera/engine/memory/meter.h"

namespace tessera::testing {

/// `check(family, mesh, rank, comm, seed)` throws Error with what is wrong; the first one ends the program with its code.
template <class Check>
int run_seeds(int argc, char** argv, const Check& check) {
  engine::Meter::install();
  at::set_num_threads(1);
  if (std::string_view(argv[1]) == "launch") {
    comm::LaunchOptions options;
    options.nproc = std::stoi(argv[2]);
    return comm::launch(options, {argv + 3, argv + argc});
  }
  const comm::Rendezvous place = comm::rendezvous_from_env();
  if (std::getenv("TESSERA_TEST_DEVICE")) {  // the GPU, or what stands in for it
    const device::Opened& opened = device::open();
    if (!opened.table) throw UserError(Exit::usage, "worker", opened.absence);
    device::use(*opened.table, place.local_rank % opened.table->count());
    engine::Meter::use_device(*opened.table, int64_t{1} << 30);
  }
  const Mesh mesh = Mesh::parse(argv[1]);
  comm::Comm comm(place, mesh);
  if (device::used() && !place.single()) comm.use_device_links();
  const Family& family = family_of(argc > 4 ? argv[4] : "wan");
  for (int seed = std::stoi(argv[2]); seed < std::stoi(argv[3]); ++seed) try {
      check(family, mesh, place.rank, comm, static_cast<uint64_t>(seed));
    } catch (const Error& error) {
      std::fprintf(stderr, "rank %d, seed %d: %s\n", place.rank, seed, error.what());
      return static_cast<int>(error.code());
    }
  return 0;
}

/// For main: never returns.
template <class Check>
[[noreturn]] void seed_worker(int argc, char** argv, const Check& check) {
  int code = 0;
  try {
    code = run_seeds(argc, argv, check);
  } catch (const Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    code = static_cast<int>(error.code());
  }
  std::fflush(nullptr);
  std::_Exit(code);  // peers may hang in what this rank left: no orderly end
}

}  // namespace tessera::testing
