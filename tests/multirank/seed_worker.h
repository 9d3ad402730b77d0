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
#include "tessera/comm/launcher.h"
#include "tessera/comm/rendezvous.h"
#include "tessera/device/open.h"
#include "tessera/engine/store/meter.h"

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

/// With TESSERA_TEST_ALL=1 a rank that has no peers goes on behind a case that fails.
inline bool goes_on(const SeedJob& job) { return job.mesh.world() == 1 && std::getenv("TESSERA_TEST_ALL"); }

/// Calls check(job's family, seed) for every case of the job; what it throws is printed, and the code of the first returned.
template <class Check>
int run_seeds(const SeedJob& job, const std::string& who, const Check& check) {
  const Family& family = family_of(job.family);
  int code = 0;
  for (int seed = job.first; seed < job.last && (code == 0 || goes_on(job)); ++seed) try {
      check(family, static_cast<uint64_t>(seed));
    } catch (const std::exception& thrown) {
      std::fprintf(stderr, "%s, %s, seed %d: %s\n", job.text.c_str(), who.c_str(), seed, thrown.what());
      const auto* error = dynamic_cast<const Error*>(&thrown);
      if (code == 0) code = static_cast<int>(error ? error->code() : Exit::internal);
    }
  return code;
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

/// Libraries take theirs at the first product of a thread: before a case compares the memory that it takes with its plan.
inline void take_workspaces() {
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    const at::Tensor x = at::ones({64, 64}, at::TensorOptions(type).device(device::here()));
    at::addmm(x.select(0, 0), x, x);
  }
}

template <class Check>
int run_jobs(const std::vector<std::string>& words, const Check& check, const std::function<void()>& tell) {
  comm::Rendezvous place = comm::rendezvous_from_env();
  std::string no_links;                      // why ranks do not send from device to device
  if (std::getenv("TESSERA_TEST_DEVICE")) {  // the GPU, or what stands in for it
    const device::Opened& opened = device::open();
    if (!opened.table) throw UserError(Exit::usage, "worker", opened.absence);
    const int gpus = opened.table->count();
    if (place.local_world > gpus) no_links = "ranks share a GPU";
    device::use(*opened.table, place.local_rank % gpus);
    engine::Meter::use_device(*opened.table);
    engine::Meter::reserve(int64_t{1} << 30);
    take_workspaces();
  }
  int code = 0;
  std::list<comm::Comm> comms;  // to the end: a peer may still read what this rank sent
  for (const SeedJob& job : seed_jobs(words)) {
    ++place.attempt;  // the store keeps the keys of earlier jobs
    comm::Comm& comm = comms.emplace_back(place, job.mesh);
    if (device::used() && !place.single()) comm.use_device_links(no_links);
    const int found = run_seeds(job, "rank " + std::to_string(place.rank), [&](const Family& family, uint64_t seed) {
      check(family, job.mesh, place.rank, comm, seed);
    });
    if (code == 0) code = found;
    if (found != 0 && !goes_on(job)) break;
  }
  if (tell && place.rank == 0) tell();
  return code;
}

/// For main: never returns. `check(family, mesh, rank, comm, seed)` throws Error with what is wrong; the first one ends the
/// program with its code. `tell`: what rank 0 does at its end.
template <class Check>
[[noreturn]] void seed_worker(int argc, char** argv, const Check& check, const std::function<void()>& tell = {}) {
  engine::Meter::install();
  at::set_num_threads(1);
  end_worker([&] {
    std::vector<std::string> words(argv + 1, argv + argc);
    if (words.at(0) != "launch") return run_jobs(words, check, tell);
    words.erase(words.begin());
    comm::LaunchOptions options;
    options.nproc = seed_jobs(words).at(0).mesh.world();
    return comm::launch(options, words, [&](const std::vector<std::string>& rank, int) {
      end_worker([&] { return run_jobs(rank, check, tell); });
    });
  });
}

}  // namespace tessera::testing
