// What the tests of comm start on several ranks, and the launcher that starts it:
//
//   comm_worker launch NPROC NNODES NODE_RANK ENDPOINT|- TIMEOUT CASE [ARGUMENT...]
//   comm_worker CASE [ARGUMENT...]
//
// A case returns nothing when all is right and throws, says so and gives the code otherwise.
#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <cmath>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <thread>

#include "tessera/base/check.h"
#include "tessera/comm/comm.h"
#include "tessera/comm/heartbeat.h"
#include "tessera/comm/launcher.h"
#include "tessera/comm/rendezvous.h"

namespace tessera::comm {
namespace {

using Arguments = std::vector<std::string>;

volatile std::sig_atomic_t asked = 0;

void expect(bool ok, const std::string& what) {
  if (!ok) throw UserError(Exit::comparison, "worker", what);
}

/// A rank's numbers: 24 random bits each (SplitMix64), of 16 exponents, so that a sum in another order has other bits.
at::Tensor values(int rank, int64_t n) {
  at::Tensor t = at::empty({n});
  float* const out = t.mutable_data_ptr<float>();
  std::array<float, 16> scales;
  for (size_t i = 0; i < scales.size(); ++i) scales[i] = std::ldexp(1.0f, -static_cast<int>(i) - 23);
  for (int64_t i = 0; i < n; ++i) {
    uint64_t x = (static_cast<uint64_t>(rank) << 32) + static_cast<uint64_t>(i + 1) * 0x9e3779b97f4a7c15;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
    x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
    x ^= x >> 31;
    out[i] = static_cast<float>((static_cast<int64_t>(x) >> 40)) * scales[x % scales.size()];
  }
  return t;
}

bool same_bits(const at::Tensor& a, const at::Tensor& b) {
  return a.nbytes() == b.nbytes() && std::memcmp(a.const_data_ptr(), b.const_data_ptr(), a.nbytes()) == 0;
}

Mesh mesh_of(const Rendezvous& place, const Arguments& arguments) {
  return Mesh::parse(arguments.empty() ? "dp_shard=" + std::to_string(place.world) : arguments[0]);
}

/// Sizes below and above what the tests send by socket, and none that the blocks of the sum divide.
constexpr int64_t kSizes[] = {1, 257, 50'001, 1'300'007};

/// ARGUMENT: a mesh; default: all ranks on dp_shard.
void collectives(const Rendezvous& place, const Arguments& arguments) {
  const Mesh mesh = mesh_of(place, arguments);
  Comm comm(place, mesh);
  Group& gather = comm.group("gather", kShardAxes);
  Group& reduce = comm.group("reduce", kShardAxes);
  Group& outer = comm.group("reduce_outer", {Axis::dp_replicate});
  const auto N = static_cast<int64_t>(gather.members().size());
  int64_t sent = 0;
  for (int64_t n : kSizes) {
    at::Tensor all = at::empty({N * n});
    gather.all_gather(all, values(place.rank, n));
    for (int i = 0; i < N; ++i)
      expect(same_bits(all.narrow(0, i * n, n), values(gather.members()[i], n)),
             "all_gather: part " + std::to_string(i));

    const at::Tensor flat = values(place.rank, N * n);
    at::Tensor shard = at::empty({n}), scratch = at::empty({N * n});
    at::Tensor expected = at::zeros({n});
    for (int i = 0; i < N; ++i) {
      const at::Tensor part = values(reduce.members()[i], N * n).narrow(0, reduce.rank() * n, n);
      i == 0 ? expected.copy_(part) : expected.add_(part);  // members' order
    }
    reduce.reduce_scatter(shard, flat, scratch, /*accumulate=*/false);
    expect(same_bits(shard, expected), "reduce_scatter: not the sum in members' order");
    expect(same_bits(flat, values(place.rank, N * n)), "reduce_scatter changed its input");
    reduce.reduce_scatter(shard, flat, scratch, /*accumulate=*/true);
    expect(same_bits(shard, expected.add(expected)), "reduce_scatter does not accumulate");
    sent += 3 * n * 4 * (N - 1);

    // Member i gets i rows more than n from everybody: nothing is even.
    std::vector<at::Tensor> out, in;
    for (int i = 0; i < N; ++i) {
      out.push_back(values(gather.rank() * 100 + i, n + i));
      in.push_back(at::empty({n + gather.rank()}));
      if (i != gather.rank()) sent += (n + i) * 4;
    }
    gather.all_to_all(out, in);
    for (int i = 0; i < N; ++i)
      expect(same_bits(in[i], values(i * 100 + gather.rank(), n + gather.rank())),
             "all_to_all: from " + std::to_string(i));

    const int before = (gather.rank() + static_cast<int>(N) - 1) % static_cast<int>(N);
    const at::Tensor came = at::empty({n + before});
    if (N > 1) {
      gather.shift(values(gather.rank(), n + gather.rank()), came);
      expect(same_bits(came, values(before, n + before)), "shift: not what the member before gave");
      sent += (n + gather.rank()) * 4;
    }

    at::Tensor sum = values(place.rank, n);
    outer.all_reduce(sum);
    expected.zero_();
    for (size_t i = 0; i < outer.members().size(); ++i) {
      const at::Tensor part = values(outer.members()[i], n);
      i == 0 ? expected.copy_(part) : expected.add_(part);
    }
    expect(same_bits(sum, expected), "all_reduce: not the sum in members' order");
  }
  const auto rows =
      comm.group("control", {kAllAxes.begin(), kAllAxes.end()}).all_gather_doubles({1.0 * place.rank, 0.5});
  for (int r = 0; r < place.world; ++r) expect(rows[r] == std::vector<double>({1.0 * r, 0.5}), "all_gather_doubles");
  comm.barrier();
  comm.check_agreement("text", "the same");
  const auto bytes = comm.take_sent_bytes();
  if (N > 1) expect(bytes.at(gather.axis()) == sent, "sent_bytes: " + std::to_string(bytes.at(gather.axis())));
}

/// Two groups used by two threads at once do not disturb each other.
void lanes(const Rendezvous& place, const Arguments& arguments) {
  Comm comm(place, mesh_of(place, arguments));
  const int64_t n = 100'000, N = place.world;
  Group& gather = comm.group("gather", kShardAxes);
  Group& reduce = comm.group("reduce", kShardAxes);
  at::Tensor all = at::empty({N * n}), shard = at::zeros({n}), scratch = at::empty({N * n});
  const at::Tensor mine = values(place.rank, n), ones = at::ones({N * n});
  std::thread lane([&] {
    for (int i = 0; i < 50; ++i) gather.all_gather(all, mine);
  });
  for (int i = 0; i < 50; ++i) reduce.reduce_scatter(shard, ones, scratch, true);
  lane.join();
  expect(same_bits(all.narrow(0, (N - 1) * n, n), values(place.world - 1, n)), "all_gather beside a reduce_scatter");
  expect(same_bits(shard, at::full({n}, 50.0f * static_cast<float>(N))), "reduce_scatter beside an all_gather");
}

/// The last rank never comes to the collective.
void absent(const Rendezvous& place, const Arguments& arguments) {
  Comm comm(place, mesh_of(place, arguments), /*timeout=*/-8);  // sockets wait 10 s longer than the launcher: 2
  Group& gather = comm.group("gather", kShardAxes);
  if (place.rank == place.world - 1) std::this_thread::sleep_for(std::chrono::seconds(20));
  at::Tensor all = at::empty({place.world * 100'000});
  gather.all_gather(all, values(place.rank, 100'000));
}

void disagree(const Rendezvous& place, const Arguments& arguments) {
  Comm comm(place, mesh_of(place, arguments));
  comm.check_agreement("recipe", place.rank == 1 ? "lr = 2" : "lr = 1");
}

/// [HOW] [TIMEOUT]: steps until a signal asks for the end, as training does.
void steps(const Rendezvous& place, const Arguments& arguments) {
  for (int number : {SIGINT, SIGTERM}) signal(number, [](int) { asked = 1; });
  const std::string at = arguments.empty() ? "" : arguments[0];
  if (at == "deaf")
    for (int number : {SIGINT, SIGTERM}) signal(number, SIG_IGN);
  std::unique_ptr<Heartbeat> heartbeat;
  if (at != "no-heartbeat") heartbeat = std::make_unique<Heartbeat>(place);
  Comm comm(place, mesh_of(place, {}), arguments.size() > 1 ? std::stod(arguments[1]) : 60);
  Group& control = comm.group("control", {kAllAxes.begin(), kAllAxes.end()});
  for (int64_t step = 12;; step = std::min<int64_t>(step + 1, 13)) {
    if (heartbeat) heartbeat->at(step, 3, "forward blocks.3");
    if (step == 13) std::cout << "ready\n" << std::flush;
    double stop = 0;
    for (const auto& row : control.all_gather_doubles({1.0 * asked})) stop += row[0];
    if (stop > 0) std::exit(static_cast<int>(Exit::again));
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
}

/// A rank begins as a program of its own does, though it is a fork.
void begins_afresh(const Rendezvous& place, const Arguments&) {
  const auto count = [](const char* folder) {
    const std::filesystem::directory_iterator all(folder);
    return std::distance(begin(all), end(all));
  };
  expect(count("/proc/self/task") == 1, "it has a thread of the launcher's");
  for (int fd = 0; fd < 256; ++fd)
    if (const int flags = fcntl(fd, F_GETFD); flags >= 0)
      expect((flags & FD_CLOEXEC) == 0, "it has descriptor " + std::to_string(fd) + " of the launcher's");
  for (const int number : {SIGINT, SIGTERM, SIGUSR1, SIGXCPU, SIGPWR}) {
    struct sigaction now {};
    sigaction(number, nullptr, &now);
    expect(now.sa_handler == SIG_DFL, "it handles signal " + std::to_string(number) + " as the launcher does");
  }
  sigset_t blocked;
  pthread_sigmask(SIG_SETMASK, nullptr, &blocked);
  for (int number = 1; number < SIGRTMIN; ++number) expect(sigismember(&blocked, number) == 0, "it blocks signals");
  expect(std::getenv("RANK") == std::to_string(place.rank), "its variables");
  Comm(place, mesh_of(place, {})).barrier();
  std::printf("rank %d began afresh, ", place.rank);  // what is not flushed is written once, by the rank
  std::exit(0);
}

/// CODE RANK: that rank ends with the code; the others wait for it in a collective.
void leave(const Rendezvous& place, const Arguments& arguments) {
  Comm comm(place, mesh_of(place, {}));
  comm.barrier();
  if (place.rank == std::stoi(arguments.at(1))) _exit(std::stoi(arguments.at(0)));
  comm.barrier();
}

/// RANK: that rank takes memory until there is none; the others wait for it in a collective.
void devour(const Rendezvous& place, const Arguments& arguments) {
  Comm comm(place, mesh_of(place, {}));
  comm.barrier();
  if (place.rank == std::stoi(arguments.at(0))) {
    std::ofstream("/proc/self/oom_score_adj") << 1000;  // it, and not the launcher
    for (std::vector<std::vector<char>> taken;;) taken.emplace_back(size_t{16} << 20, 'x');
  }
  comm.barrier();
}

/// MEGABYTES: times the collectives that a training step is made of, shards of that size.
void speed(const Rendezvous& place, const Arguments& arguments) {
  Comm comm(place, mesh_of(place, {}), 300);
  Group& group = comm.group("gather", kShardAxes);
  const int64_t n = std::stoll(arguments.at(0)) * 250'000;
  const at::Tensor shard = at::ones({n}), flat = at::ones({n * place.world});
  at::Tensor out = at::ones({n}), all = at::ones({n * place.world});
  const auto time = [&](const char* what, const std::function<void()>& act) {
    act();  // touches the pages
    double best = 1e9;
    const std::clock_t cpu = std::clock();
    for (int i = 0; i < 8; ++i) {
      group.barrier();
      const auto start = std::chrono::steady_clock::now();
      act();
      best = std::min(best, std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
    }
    const double cpu_ms = 1e3 * static_cast<double>(std::clock() - cpu) / CLOCKS_PER_SEC / 8;
    const double bytes = 4.0 * static_cast<double>(n) * (place.world - 1);
    if (place.rank == 0)
      std::printf("%s best %.1f ms, %.2f GB/s received a rank, %.1f ms of CPU\n", what, best * 1e3, bytes / best * 1e-9,
                  cpu_ms);
  };
  time("all_gather    ", [&] { group.all_gather(all, shard); });
  time("reduce_scatter", [&] { group.reduce_scatter(out, flat, all, true); });
  time("all_reduce    ", [&] { group.all_reduce(out); });
}

[[noreturn]] void run_and_end(const Arguments& words);

int run(const Arguments& words) {
  if (words.at(0) == "launch") {
    LaunchOptions options;
    options.nproc = std::stoi(words.at(1));
    options.nnodes = std::stoi(words.at(2));
    options.node_rank = std::stoi(words.at(3));
    if (words.at(4) != "-") options.endpoint = words[4];
    options.timeout = std::stod(words.at(5));
    options.bind = true;
    std::printf("the launcher, ");  // not flushed
    return launch(options, {words.begin() + 6, words.end()}, [](const Arguments& rank, int) { run_and_end(rank); });
  }
  const std::map<std::string, void (*)(const Rendezvous&, const Arguments&)> cases = {{"collectives", collectives},
                                                                                      {"lanes", lanes},
                                                                                      {"absent", absent},
                                                                                      {"begins_afresh", begins_afresh},
                                                                                      {"disagree", disagree},
                                                                                      {"steps", steps},
                                                                                      {"leave", leave},
                                                                                      {"speed", speed},
                                                                                      {"devour", devour}};
  cases.at(words.at(0))(rendezvous_from_env(), {words.begin() + 1, words.end()});
  return 0;
}

void run_and_end(const Arguments& words) {
  try {
    std::exit(run(words));
  } catch (const Error& error) {
    std::cerr << error.what() << "\n" << std::flush;
    _exit(static_cast<int>(error.code()));  // peers may hang in what this rank left: no orderly end
  }
}

}  // namespace
}  // namespace tessera::comm

int main(int argc, char** argv) { tessera::comm::run_and_end({argv + 1, argv + argc}); }
