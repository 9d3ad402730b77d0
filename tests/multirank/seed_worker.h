#pragma once
// A program whose ranks check random cases of model families, job after job: "launch JOB..." starts the ranks, as many as
// every job's mesh has. A job is MESH/FIRST/LAST[/FAMILY], cases FIRST..LAST-1 of the family: "cp=2,tp=2/0/10/stdit:1.2".
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <list>
#include <sstream>
#include <string>
#include <vector>

#include "families.h"
#include "tessera/base/check.h"
#include "tessera/comm/comm.h"
#include "tessera/comm/launch/launcher.h"
#include "tessera/comm/world.h"
#include "tessera/device/open.h"
#include "tessera/engine/memory/meter.h"

namespace tessera::testing {

struct SeedJob {
  explicit SeedJob(const std::string& job) : text(job) {
    std::istringstream in(job);
    std::string field[4] = {"", "", "", "wan"};
    for (std::string& f : field) std::getline(in, f, '/');
    mesh = Mesh::parse(field[0]);
    first = std::stoi(field[1]), last = std::stoi(field[2]);
    if (!field[3].empty()) family = field[3];
  }
  std::string text, family = "wan";
  Mesh mesh;
  int first = 0, last = 0;
};

inline std::vector<SeedJob> seed_jobs(const std::vector<std::string>& words) {
  std::vector<SeedJob> jobs(words.begin(), words.end());
  for (const SeedJob& job : jobs)
    if (job.mesh.world() != jobs.front().mesh.world())
      throw UserError(Exit::usage, "worker", job.text + " has other ranks than " + jobs.front().text);
  return jobs;
}

/// Calls check(job's family, seed) for every case of the jobs; the first Error that it throws is printed and its code returned.
template <class Check>
int run_seeds(const SeedJob& job, const std::string& who, const Check& check) {
  const Family& family = family_of(job.family);
  for (int seed = job.first; seed < job.last; ++seed) try {
      check(family, static_cast<uint64_t>(seed));
    } catch (const Error& error) {
      std::fprintf(stderr, "%s, %s, seed %d: %s\n", job.text.c_str(), who.c_str(), seed, error.what());
      return static_cast<int>(error.code());
    }
  return 0;
}

/// Ends the program: peers may hang in what this rank left.
[[noreturn]] inline void end_worker(const std::function<int()>& run) {
  int code = 0;
  try {
    code = run();
  } catch (const Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    code = static_cast<int>(error.code());
  }
  std::fflush(nullptr);
  std::_Exit(code);
}

template <class Check>
int run_jobs(const std::vector<std::string>& words, const Check& check) {
  comm::Rendezvous place = comm::rendezvous_from_env();
  if (std::getenv("TESSERA_TEST_DEVICE")) {  // the GPU, or what stands in for it
    const device::Opened& opened = device::open();
    if (!opened.table) throw UserError(Exit::usage, "worker", opened.absence);
    device::use(*opened.table, place.local_rank % opened.table->count());
    engine::Meter::use_device(*opened.table);
    engine::Meter::reserve(int64_t{1} << 30);
  }
  std::list<comm::Comm> comms;  // to the end: a peer may still read what this rank sent
  for (const SeedJob& job : seed_jobs(words)) {
    ++place.attempt;  // the store keeps the keys of earlier jobs
    comm::Comm& comm = comms.emplace_back(place, job.mesh);
    if (device::used() && !place.single()) comm.use_device_links();
    if (const int code = run_seeds(job, "rank " + std::to_string(place.rank), [&](const Family& family, uint64_t seed) {
          check(family, job.mesh, place.rank, comm, seed);
        }))
      return code;
  }
  return 0;
}

/// For main: never returns. `check(family, mesh, rank, comm, seed)` throws Error with what is wrong; the first one ends the
/// program with its code.
template <class Check>
[[noreturn]] void seed_worker(int argc, char** argv, const Check& check) {
  engine::Meter::install();
  at::set_num_threads(1);
  end_worker([&] {
    std::vector<std::string> words(argv + 1, argv + argc);
    if (words.at(0) != "launch") return run_jobs(words, check);
    words.erase(words.begin());
    comm::LaunchOptions options;
    options.nproc = seed_jobs(words).at(0).mesh.world();
    return comm::launch(options, words, [&](const std::vector<std::string>& rank, int) {
      end_worker([&] { return run_jobs(rank, check); });
    });
  });
}

}  // namespace tessera::testing
