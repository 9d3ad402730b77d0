#include "tessera/tools/probe/probe.h"

#include <ATen/Parallel.h>
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <functional>
#include <thread>

#include "tessera/base/check.h"
#include "tessera/comm/comm.h"
#include "tessera/comm/world.h"
#include "tessera/engine/memory/meter.h"
#include "tessera/ops/adamw.h"
#include "tessera/ops/gemm.h"
#include "tessera/ops/ops.h"
#include "tessera/tools/probe/engine_times.h"
#include "tessera/tools/probe/signatures.h"

namespace tessera::tools {

namespace {

using at::Tensor;
using plan::Rate;
using Clock = std::chrono::steady_clock;

double since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

Tensor random(at::IntArrayRef shape) { return at::randn(shape, at::kFloat); }

/// Work done and what it took.
struct Point {
  double work = 0, seconds = 0;
};

/// The rate through two points: seconds = (work + half) / top.
Rate line(const Point& small, const Point& large) {
  double top = (large.work - small.work) / (large.seconds - small.seconds);
  if (!(large.seconds > small.seconds)) top = large.work / large.seconds;  // noise: no start-up seen
  return {top, std::max(0.0, small.seconds * top - small.work)};
}

class Probe {
 public:
  Probe(const ProbeOptions& options, const comm::Rendezvous& place)
      : options_(options), place_(place), comm_(place, mesh_of(place.world), 300) {}

  plan::Profile run() {
    engine::Meter::install();  // what operators return lies where it does in a step
    plan::Profile p;
    p.name = options_.name;
    p.source = "measured by tessera probe: " + std::to_string(place_.world) + " ranks at once, " +
               std::to_string(at::get_num_threads()) + " threads each";
    p.machine = plan::this_machine();
    warm_up();
    p.device.gemm["fp32"] = products();
    attention(p.device);
    p.device.stream = operators();
    updates(p.device);
    // many points, each for a part of the time: all of them together are sustained
    measure_signatures(p.device, [&](const Call& call) { return time(call, kOfAPoint); });
    p.host_link = copies();
    beside_copies(p);
    p.host_bandwidth = p.host_link * place_.world;
    p.host_memory = static_cast<int64_t>(sysconf(_SC_PHYS_PAGES)) * sysconf(_SC_PAGESIZE);
    disk(p);
    if (place_.world > 1) collectives(p);
    measure_engine(p, comm_, place_.rank, place_.world);
    return p;
  }

 private:
  static Mesh mesh_of(int world) {
    Mesh mesh;
    mesh[Axis::dp_shard] = world;
    return mesh;
  }

  /// Mean over the ranks, the same on all.
  double agreed(double mine) {
    double sum = 0;
    for (const auto& row : control().all_gather_doubles({mine})) sum += row[0];
    return sum / place_.world;
  }
  comm::Group& control() { return comm_.group("control", {kAllAxes.begin(), kAllAxes.end()}); }

  /// Seconds of one call: the median of the second half of as many as fill `share` of options_.seconds. All ranks call
  /// equally often.
  double time(const Call& call, double share = 1) {
    call();
    comm_.barrier();
    const auto first = Clock::now();
    call();
    const double once = agreed(since(first));
    const int count = std::clamp(static_cast<int>(share * options_.seconds / std::max(once, 1e-6)), 6, 4000);
    comm_.barrier();
    std::vector<double> seconds;
    for (int i = 0; i < count; ++i) {
      const auto start = Clock::now();
      call();
      if (i >= count / 2) seconds.push_back(since(start));
    }
    const auto middle = seconds.begin() + static_cast<std::ptrdiff_t>(seconds.size() / 2);
    std::nth_element(seconds.begin(), middle, seconds.end());
    return agreed(*middle);
  }

  /// A processor that was idle runs faster for a moment than it does for long.
  void warm_up() {
    const Tensor x = random({512, 512}), y = at::empty({512, 512});
    for (const auto start = Clock::now(); since(start) < kWarmUp;) ops::gemm(y, x, x.t());
  }

  /// The three products of a linear, X W^T, dY W, dY^T X, with the shapes of a block's and by the kernel that linears
  /// use: at::mm is a fifth slower, and so would every prediction be.
  Rate products() {
    const auto measure = [&](int64_t tokens, int64_t in, int64_t out) {
      const Tensor x = random({tokens, in}), w = random({out, in}), dy = random({tokens, out});
      const Tensor y = at::empty({tokens, out}), dx = at::empty({tokens, in}), dw = at::empty({out, in});
      const double seconds = time([&] {
        ops::gemm(y, x, w.t());
        ops::gemm(dx, dy, w);
        ops::gemm(dw, dy.t(), x);
      });
      return Point{2.0 * static_cast<double>(tokens * in * out), seconds / 3};
    };
    return line(measure(128, 256, 256), measure(1024, 512, 2048));
  }

  void attention(plan::DeviceProfile& device) {
    const auto measure = [&](int64_t tokens, Point& forward, Point& backward) {
      constexpr int64_t kHeads = 8, kWidth = 64 * kHeads;
      const std::vector<int64_t> offsets = {0, tokens};
      const Tensor q = random({tokens, kWidth}), k = random({tokens, kWidth}), v = random({tokens, kWidth});
      const Tensor grad = random({tokens, kWidth});
      forward.work = 4.0 * static_cast<double>(tokens * tokens * kWidth);
      forward.seconds = time([&] { ops::attention(q, k, v, kHeads, offsets, offsets); });
      std::vector<Tensor> leaves = {q.clone().requires_grad_(), k.clone().requires_grad_(), v.clone().requires_grad_()};
      const double both = time([&] {
        const Tensor out = ops::attention(leaves[0], leaves[1], leaves[2], kHeads, offsets, offsets);
        torch::autograd::grad({out}, {leaves[0], leaves[1], leaves[2]}, {grad});
      });
      backward = {2.5 * forward.work, std::max(both - forward.seconds, 1e-9)};
    };
    Point forward[2], backward[2];
    measure(256, forward[0], backward[0]);
    measure(1024, forward[1], backward[1]);
    device.attention["fp32"] = line(forward[0], forward[1]);
    device.attention_backward["fp32"] = line(backward[0], backward[1]);
  }

  /// The fused operators between products, forward and backward, by the bytes that engine/work.h counts for them: a
  /// backward counts twice its forward.
  Rate operators() {
    constexpr int64_t kWidth = 512;
    const auto measure = [&](int64_t tokens) {
      const ops::RowIndex rows(at::zeros({tokens}, at::kInt));
      const Tensor x = random({tokens, kWidth}).requires_grad_(), table = random({1, kWidth}).requires_grad_();
      const Tensor grad = random({tokens, kWidth});
      constexpr double kTensors = 2 + 3 + 2;  // modulated_norm, gated_residual, gelu
      const double seconds = time([&] {
        const Tensor normed = ops::modulated_norm(x, table, table, rows, 1e-6);
        const Tensor out = ops::gated_residual(x, ops::gelu_tanh(normed), table, rows);
        torch::autograd::grad({out}, {x, table}, {grad});
      });
      return Point{kTensors * static_cast<double>(tokens * kWidth) * 4 / 3, seconds / 9};  // of one of three operators
    };
    const Rate one = line(measure(64), measure(1024));
    return one;
  }

  /// A pass over ranges of flat buffers that are not in the cache when their turn comes, as the shards of a model are not.
  Rate pass(double bytes_of_element, const std::function<void(int64_t first, int64_t count)>& over) {
    const auto measure = [&](int64_t count) {
      int64_t first = 0;
      return Point{bytes_of_element * static_cast<double>(count), time([&] {
                     over(first, count);
                     first = first + 2 * count > kFlat ? 0 : first + count;
                   })};
    };
    return line(measure(1 << 14), measure(1 << 20));
  }

  /// The optimiser's update, by the 28 bytes that the cost model counts for an fp32 element, and the squares of gradients.
  void updates(plan::DeviceProfile& device) {
    const Tensor p = random({kFlat}), m = random({kFlat}), v = random({kFlat}).square_(), g = random({kFlat});
    const auto at = [](const Tensor& t, int64_t first) { return t.mutable_data_ptr<float>() + first; };
    device.bandwidth = pass(28, [&](int64_t first, int64_t n) {
      ops::adamw(at(p, first), at(m, first), at(v, first), at(g, first), n, {.step = 1, .lr = 1e-9});
    });
    const std::array<Tensor, 4> all = {p, m, v, g};
    size_t turn = 0;  // through all of them: one alone may lie in a large cache
    device.norm = pass(4, [&](int64_t first, int64_t n) {
      ops::sum_of_squares(at(all[(turn += first == 0) % all.size()], first), n);
    });
  }

  double copies() {
    constexpr size_t kBytes = size_t{64} << 20;
    std::vector<char> from(kBytes, 1), to(kBytes, 2);
    return kBytes / time([&] { std::memcpy(to.data(), from.data(), kBytes); });
  }

  /// Large writes, made durable, and reads past the page cache; ranks share the node's disk.
  void disk(plan::Profile& p) {
    constexpr size_t kPiece = size_t{8} << 20, kPieces = 8;
    const std::string path =
        (std::filesystem::path(options_.folder) / ("tessera-probe-" + std::to_string(place_.rank))).string();
    std::vector<char> piece(kPiece, 'x');
    const int file = open(path.c_str(), O_RDWR | O_CREAT | O_TRUNC, 0600);
    if (file < 0) throw UserError(Exit::disk, "probe", path + ": cannot be written", "choose a folder with --folder");
    comm_.barrier();
    auto start = Clock::now();
    bool whole = true;
    for (size_t i = 0; i < kPieces; ++i) whole &= write(file, piece.data(), kPiece) == static_cast<ssize_t>(kPiece);
    whole &= fdatasync(file) == 0;
    const double writing = since(start);
    posix_fadvise(file, 0, 0, POSIX_FADV_DONTNEED);
    lseek(file, 0, SEEK_SET);
    start = Clock::now();
    for (size_t i = 0; i < kPieces; ++i) whole &= read(file, piece.data(), kPiece) == static_cast<ssize_t>(kPiece);
    const double reading = since(start);
    close(file);
    unlink(path.c_str());
    if (!whole) throw UserError(Exit::disk, "probe", path + ": the disk took less than 64 MiB", "free space");
    const double bytes = static_cast<double>(kPiece * kPieces) * place_.world;
    p.disk_write = bytes / agreed(writing), p.disk_read = bytes / agreed(reading);
    const auto space = std::filesystem::space(options_.folder);
    p.disk = static_cast<int64_t>(space.available);
  }

  void collectives(plan::Profile& p) {
    comm::Group& gather = comm_.group("gather", kShardAxes);
    comm::Group& reduce = comm_.group("reduce", kShardAxes);
    const int n = place_.world;
    // each from and to memory of its own turn: a unit's slot and shard are not in the cache
    const auto turns = [n](int64_t shard, const std::function<void(int64_t first)>& act) {
      return [=, first = int64_t{0}]() mutable {
        act(first);
        first = first + 2 * shard * n > kFlat ? 0 : first + shard * n;
      };
    };
    const Tensor flat = random({kFlat}), scratch = at::empty({kFlat});
    const auto gathers = [&](int64_t shard) -> Call {
      return turns(shard, [&, shard](int64_t first) {
        gather.all_gather(scratch.narrow(0, first, shard * n), flat.narrow(0, first, shard));
      });
    };
    const auto reductions = [&](int64_t shard) -> Call {
      return turns(shard, [&, shard, own = at::zeros({shard})](int64_t first) {
        reduce.reduce_scatter(own, flat.narrow(0, first, shard * n), scratch.narrow(0, first, shard * n), false);
      });
    };
    const int64_t small = 1 << 10, large = std::min<int64_t>(1 << 20, kFlat / (4 * n));
    const auto sent = [&](int64_t shard) { return 4.0 * static_cast<double>(shard * (n - 1)); };
    const auto through = [&](const auto& calls) {
      return line(Point{sent(small), time(calls(small))}, Point{sent(large), time(calls(large))});
    };
    const Rate g = through(gathers), r = through(reductions);
    p.link = {g.top, r.top, g.half / g.top / (n - 1)};
    const Beside gathered = beside_compute(gathers(large));
    p.steal = gathered.lost, p.beside = std::clamp(gathered.rate, 0.05, 1.0);
  }

  /// A call on a thread of its own while this one computes: its rate, of that alone, and the share of compute that is lost
  /// meanwhile.
  struct Beside {
    double rate, lost;
  };

  Beside beside_compute(const Call& call) {
    const Tensor x = random({256, 512}), w = random({512, 512}), y = at::empty({256, 512});
    const auto compute = [&] { ops::gemm(y, x, w.t()); };
    const double computing = time(compute), alone = time(call);
    const int times = std::clamp(static_cast<int>(options_.seconds / alone), 8, 400);  // each may wait for a processor
    comm_.barrier();
    std::atomic<bool> done = false;
    const auto start = Clock::now();
    std::thread beside([&] {
      for (int i = 0; i < times; ++i) call();
      done = true;
    });
    int computed = 0;
    for (; !done; ++computed) compute();
    const double took = agreed(since(start));
    beside.join();
    return {alone * times / took, std::clamp(1 - agreed(computed) * computing / took, 0.0, 0.95)};
  }

  void beside_copies(plan::Profile& p) {
    constexpr size_t kBytes = size_t{2} << 20;
    std::vector<char> from(kBytes, 1), to(kBytes, 2);
    const Beside copied = beside_compute([&] { std::memcpy(to.data(), from.data(), kBytes); });
    p.copy_steal = copied.lost, p.copy_beside = std::clamp(copied.rate, 0.05, 1.0);
  }

  static constexpr double kWarmUp = 2.5;     // seconds
  static constexpr int64_t kFlat = 1 << 24;  // elements of a flat buffer, 64 MiB
  static constexpr double kOfAPoint = 0.15;  // of the time of a measurement
  const ProbeOptions options_;
  const comm::Rendezvous place_;
  comm::Comm comm_;
};

}  // namespace

plan::Profile probe(const ProbeOptions& options) {
  const comm::Rendezvous place = comm::rendezvous_from_env();
  return Probe(options, place).run();
}

}  // namespace tessera::tools
