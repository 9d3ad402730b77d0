#include "tessera/tools/probe/rates.h"

#include <fcntl.h>
#include <unistd.h>
#include <algorithm>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <thread>

#include "tessera/base/check.h"
#include "tessera/engine/store/host_memory.h"
#include "tessera/engine/store/meter.h"
#include "tessera/ops/adamw.h"
#include "tessera/ops/kernels.h"
#include "tessera/ops/ranges.h"
#include "tessera/ops/session.h"
#include "tessera/tools/probe/signatures.h"

namespace tessera::tools {

namespace {

using at::Tensor;
using plan::Rate;

/// Work done and what it took.
struct Point {
  double work = 0, seconds = 0;
};

Rate through(const Point& few, const Point& many) { return line(few.work, few.seconds, many.work, many.seconds); }

/// Of one of the three products of a linear, X W^T, dY W, dY^T X, with the shapes of a block's and by the kernel that linears
/// use: on a CPU at::mm is a fifth slower, and so would every prediction be.
Rate rate_of_products(Clock& clock, const Sizes& sizes, at::ScalarType type) {
  const auto measure = [&](const ProductSize& size) {
    const Tensor x = normal({size.rows, size.in}, type), w = normal({size.out, size.in}, type),
                 dy = normal({size.rows, size.out}, type), dw = normal({size.out, size.in});
    const auto& kernels = ops::kernels(x);
    const double seconds = clock.seconds([&] {
      kernels.linear(x, w, Tensor(), false, type);
      kernels.linear_input_gradient(dy, w, x, false, false, {});
      kernels.linear_weight_gradient(dw, dy, x, false, false);
    });
    return Point{2.0 * static_cast<double>(size.rows * size.in * size.out), seconds / 3};
  };
  return through(measure(sizes.products[0]), measure(sizes.products[1]));
}

void rates_of_attention(plan::DeviceProfile& device, Clock& clock, const Sizes& sizes, const Sizes::OfType& of,
                        plan::Attention kernel) {
  const ops::AttentionScope scope(kernel);
  std::array<Point, 2> forward, backward;
  for (size_t i = 0; i < 2; ++i) {
    // of the other dtypes their longest: they compute slower
    const int64_t tokens = std::min(sizes.spans[i], static_cast<int64_t>(of.spans[of.spans.size() - 2 + i]));
    const int64_t width = sizes.heads * sizes.head;
    const std::vector<int64_t> at = {0, tokens};
    const auto leaf = [&] { return normal({tokens, width}, of.type).requires_grad_(); };
    const Tensor q = leaf(), k = leaf(), v = leaf();
    const Both both = time_both(clock, 1, [&] { return ops::attention(q, k, v, sizes.heads, at, at); }, {q, k, v});
    const double work = 4.0 * static_cast<double>(tokens * tokens * width);
    forward[i] = {work, both.forward}, backward[i] = {2.5 * work, both.backward};
  }
  const std::string name = rates_of(of.type, kernel);
  device.attention[name] = through(forward[0], forward[1]);
  device.attention_backward[name] = through(backward[0], backward[1]);
}

/// The fused operators between products, forward and backward, by the bytes that engine/signatures.h counts for them: a
/// backward counts twice its forward.
Rate rate_of_operators(Clock& clock, const Sizes& sizes) {
  const at::ScalarType type = sizes.types.front().type;
  const auto measure = [&](int64_t tokens) {
    const ops::RowIndex rows = one_row_of(tokens);
    const Tensor x = normal({tokens, sizes.width}).requires_grad_(), table = normal({1, sizes.width}).requires_grad_();
    const Tensor grad = normal({tokens, sizes.width});
    const double seconds = clock.seconds([&] {
      const Tensor normed = ops::modulated_norm(x, table, table, rows, 1e-6, type);
      const Tensor out = ops::gated_residual(x, ops::gelu_tanh(normed), table, rows);
      torch::autograd::grad({out}, {x, table}, {grad});
    });
    constexpr double kWhole = 1 + 2;    // of modulated_norm, gated_residual
    constexpr double kOwn = 1 + 1 + 2;  // of both, and of gelu
    const double bytes = kWhole * sizeof(float) + kOwn * static_cast<double>(at::elementSize(type));
    return Point{bytes * static_cast<double>(tokens * sizes.width) / 3, seconds / 9};  // of one of three operators
  };
  return through(measure(sizes.rows[0]), measure(sizes.rows[1]));
}

/// A pass over ranges of flat buffers that are not in the cache when their turn comes, as the shards of a model are not.
Rate pass(Clock& clock, const Sizes& sizes, double bytes_of_element,
          const std::function<void(int64_t first, int64_t count)>& over) {
  const auto measure = [&](int64_t count) {
    int64_t first = 0;
    return Point{bytes_of_element * static_cast<double>(count), clock.seconds([&] {
                   over(first, count);
                   first = first + 2 * count > sizes.flat ? 0 : first + count;
                 })};
  };
  return through(measure(sizes.part[0]), measure(sizes.part[1]));
}

/// The optimiser's update, by the 28 bytes that the cost model counts for an fp32 element, and the squares of gradients.
void updates(plan::DeviceProfile& device, Clock& clock, const Sizes& sizes) {
  const Tensor p = normal({sizes.flat}), m = normal({sizes.flat}), v = normal({sizes.flat}).square_(),
               g = normal({sizes.flat});
  const auto at = [](const Tensor& t, int64_t first) { return static_cast<float*>(ops::address(t)) + first; };
  const ops::AdamWStep step{.step = 1, .lr = 1e-9};
  device.bandwidth = pass(clock, sizes, 28, [&](int64_t first, int64_t n) {
    if (const auto* gpu = device::used())
      gpu->adamw({.fp32 = at(p, first)}, {.fp32 = at(m, first)}, {.fp32 = at(v, first)}, {.fp32 = at(g, first)}, n,
                 step);
    else
      ops::adamw(at(p, first), at(m, first), at(v, first), at(g, first), n, step);
  });
  const std::array<Tensor, 4> all = {p, m, v, g};
  const Tensor sum = at::zeros({1}, p.options().dtype(at::kDouble));
  size_t turn = 0;  // through all of them: one alone may lie in a large cache
  device.norm = pass(clock, sizes, 4, [&](int64_t first, int64_t n) {
    ops::sum_of_squares(sum, all[(turn += first == 0) % all.size()].narrow(0, first, n));
  });
}

}  // namespace

Call product_call(const ProductSize& size, at::ScalarType type) {
  const Tensor x = normal({size.rows, size.in}, type), w = normal({size.out, size.in}, type);
  return [x, w, type, &kernels = ops::kernels(x)] { kernels.linear(x, w, Tensor(), false, type); };
}

void measure_rates(plan::DeviceProfile& device, Clock& clock, const Sizes& sizes) {
  for (const Sizes::OfType& of : sizes.types) {
    device.gemm[rates_of(of.type)] = rate_of_products(clock, sizes, of.type);
    for (const plan::Attention kernel : kernels_of(of.type)) rates_of_attention(device, clock, sizes, of, kernel);
  }
  device.stream = rate_of_operators(clock, sizes);
  updates(device, clock, sizes);
}

namespace {

using at::Tensor;
using Steady = std::chrono::steady_clock;

double elapsed(Steady::time_point start) { return std::chrono::duration<double>(Steady::now() - start).count(); }

double share(double rate) { return std::clamp(rate, 0.05, 1.0); }

/// Copies within the memory of a CPU.
void host_copies(plan::Profile& p, Clock& clock, const Sizes& sizes, const Call& compute) {
  const auto copies = [&](int64_t bytes) {
    const auto size = static_cast<size_t>(bytes);
    return [from = std::vector<char>(size, 1), to = std::make_shared<std::vector<char>>(size, 2)] {
      std::memcpy(to->data(), from.data(), from.size());
    };
  };
  p.host_link = static_cast<double>(sizes.copy) / clock.seconds(copies(sizes.copy));
  const Beside beside = clock.beside(copies(sizes.copy_beside), compute);
  p.copy_steal = beside.lost, p.copy_beside = share(beside.rate);
}

/// Bytes/s that threads of this rank's share of the processors read and write: what updates on the host get.
double host_bandwidth(Clock& clock, int ranks) {
  constexpr size_t kBytes = size_t{32} << 20;
  const unsigned threads = std::clamp(std::thread::hardware_concurrency() / static_cast<unsigned>(ranks), 1U, 16U);
  std::vector<std::vector<char>> from(threads, std::vector<char>(kBytes, 1)), to = from;
  constexpr int kTimes = 4;
  const auto all = [&] {
    std::vector<std::thread> helpers;
    for (size_t i = 0; i < threads; ++i)
      helpers.emplace_back([&, i] {
        for (int time = 0; time < kTimes; ++time) std::memcpy(to[i].data(), from[i].data(), kBytes);
      });
    for (std::thread& helper : helpers) helper.join();
  };
  all();
  clock.meet();
  const auto start = Steady::now();
  all();
  const double seconds = clock.mean(elapsed(start));
  return 2.0 * kBytes * kTimes * threads / seconds * ranks;
}

/// Copies between a device and page-locked memory of the host, each way on a thread of its own as the engine's lanes.
void device_copies(plan::Profile& p, Clock& clock, const Sizes& sizes, int ranks, const Call& compute) {
  engine::HostMemory up, down;
  up.reserve(sizes.copy), down.reserve(sizes.copy);
  const int64_t values = sizes.copy / static_cast<int64_t>(sizeof(float));
  const Tensor there = normal({values}), here = normal({values});
  const auto fetch = [&](int64_t bytes) -> Call {
    return [&, bytes] { ops::enqueue_copy(ops::address(there), up.at(0), bytes, /*device=*/true); };
  };
  const auto stash = [&](int64_t bytes) -> Call {
    return [&, bytes] { ops::enqueue_copy(down.at(0), ops::read_address(here), bytes, /*device=*/true); };
  };
  const auto bytes = static_cast<double>(sizes.copy);
  p.host_link = bytes / clock.seconds(fetch(sizes.copy));
  p.host_link_back = bytes / clock.seconds(stash(sizes.copy));
  p.both_ways = share(clock.beside(stash(sizes.copy_beside), fetch(sizes.copy_beside)).rate);
  const Beside fetched = clock.beside(fetch(sizes.copy_beside), compute),
               stashed = clock.beside(stash(sizes.copy_beside), compute);
  p.copy_steal = std::max(fetched.lost, stashed.lost);
  p.copy_beside = share(std::min(fetched.rate, stashed.rate));
  p.host_bandwidth = std::max(host_bandwidth(clock, ranks), (p.host_link + p.host_link_back) * p.both_ways * ranks);
}

}  // namespace

void measure_copies(plan::Profile& p, Clock& clock, const Sizes& sizes, int ranks) {
  const Call compute = product_call(sizes.beside, sizes.types.front().type);
  if (device::used()) return device_copies(p, clock, sizes, ranks, compute);
  host_copies(p, clock, sizes, compute);
  p.host_bandwidth = p.host_link * ranks;
}

void measure_disk(plan::Profile& p, Clock& clock, const std::string& folder, int rank, int ranks) {
  constexpr size_t kPiece = size_t{8} << 20, kPieces = 8;
  const std::string path = (std::filesystem::path(folder) / ("tessera-probe-" + std::to_string(rank))).string();
  std::vector<char> piece(kPiece, 'x');
  const int file = open(path.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_NOFOLLOW, 0600);
  if (file < 0) throw UserError(Exit::disk, "probe", path + ": cannot be written", "choose a folder with --folder");
  clock.meet();
  auto start = Steady::now();
  bool whole = true;
  for (size_t i = 0; i < kPieces; ++i) whole &= write(file, piece.data(), kPiece) == static_cast<ssize_t>(kPiece);
  whole &= fdatasync(file) == 0;
  const double writing = elapsed(start);
  posix_fadvise(file, 0, 0, POSIX_FADV_DONTNEED);
  lseek(file, 0, SEEK_SET);
  start = Steady::now();
  for (size_t i = 0; i < kPieces; ++i) whole &= read(file, piece.data(), kPiece) == static_cast<ssize_t>(kPiece);
  const double reading = elapsed(start);
  close(file);
  unlink(path.c_str());
  if (!whole) throw UserError(Exit::disk, "probe", path + ": the disk took less than 64 MiB", "free space");
  const double bytes = static_cast<double>(kPiece * kPieces) * ranks;
  p.disk_write = bytes / clock.mean(writing), p.disk_read = bytes / clock.mean(reading);
  p.disk = static_cast<int64_t>(std::filesystem::space(folder).available);
}

namespace {

/// Collectives of the ranks, each from and to memory of its own turn: a unit's slot and shard are not in the cache.
class Collectives {
 public:
  Collectives(comm::Comm& comm, const Sizes& sizes, int ranks)
      : sizes_(sizes),
        ranks_(ranks),
        gather_(made(comm, "gather")),
        reduce_(made(comm, "reduce")),
        flat_(normal({sizes.flat})),
        scratch_(at::empty_like(flat_)) {}

  Call gathers(int64_t shard) const {
    return turns(shard, [this, shard](int64_t first) {
      gather_.all_gather(scratch_.narrow(0, first, shard * ranks_), flat_.narrow(0, first, shard));
    });
  }
  Call reductions(int64_t shard) const {
    return turns(shard, [this, shard, own = at::zeros({shard}, flat_.options())](int64_t first) {
      const int64_t all = shard * ranks_;
      reduce_.reduce_scatter(own, flat_.narrow(0, first, all), scratch_.narrow(0, first, all), false);
    });
  }
  /// All to all, `shard` elements to each other rank.
  Call exchanges(comm::Group& group, int64_t shard) const {
    return turns(shard, [this, &group, shard](int64_t first) {
      std::vector<Tensor> out, in;
      for (int64_t r = 0; r < ranks_; ++r) {
        out.push_back(flat_.narrow(0, first + r * shard, shard));
        in.push_back(scratch_.narrow(0, first + r * shard, shard));
      }
      group.all_to_all(out, in);
    });
  }
  /// Each sends to the next and receives from the one before.
  Call messages(comm::Group& group, int64_t shard) const {
    return turns(shard, [this, &group, shard](int64_t first) {
      group.shift(flat_.narrow(0, first, shard), scratch_.narrow(0, first, shard));
    });
  }

  static comm::Group& made(comm::Comm& comm, const char* purpose) {
    comm::Group& group = comm.group(purpose, kShardAxes);
    group.connect();
    const device::Block room = engine::Meter::room();  // where the tensors that it sends will lie
    group.lend(room.data, room.bytes);
    return group;
  }

 private:
  Call turns(int64_t shard, const std::function<void(int64_t first)>& act) const {
    return [=, this, all = shard * ranks_, first = int64_t{0}]() mutable {
      act(first);
      first = first + 2 * all > sizes_.flat ? 0 : first + all;
    };
  }

  const Sizes& sizes_;
  const int64_t ranks_;
  comm::Group &gather_, &reduce_;
  const Tensor flat_, scratch_;
};

}  // namespace

void measure_collectives(plan::Profile& p, comm::Comm& comm, Clock& clock, const Sizes& sizes) {
  const int n = comm.group("gather", kShardAxes).size();
  const Collectives collectives(comm, sizes, n);
  const int64_t small = sizes.shard[0], large = std::min(sizes.shard[1], sizes.flat / (4 * n));
  const auto through = [&](int to, const std::function<Call(int64_t shard)>& calls) {
    const auto sent = [&](int64_t shard) { return 4.0 * static_cast<double>(shard * to); };
    return line(sent(small), clock.seconds(calls(small)), sent(large), clock.seconds(calls(large)));
  };
  const plan::Rate gathered = through(n - 1, [&](int64_t shard) { return collectives.gathers(shard); }),
                   reduced = through(n - 1, [&](int64_t shard) { return collectives.reductions(shard); });
  p.link = {gathered.top, reduced.top, gathered.half / gathered.top / (n - 1)};
  if (device::used()) {
    comm::Group &exchange = Collectives::made(comm, "sequence"), &ring = Collectives::made(comm, "ring");
    p.link.exchange = through(n - 1, [&](int64_t shard) { return collectives.exchanges(exchange, shard); }).top;
    p.link.send = through(1, [&](int64_t shard) { return collectives.messages(ring, shard); }).top;
  }
  const Beside beside = clock.beside(collectives.gathers(large), product_call(sizes.beside, sizes.types.front().type));
  p.steal = beside.lost, p.beside = share(beside.rate);
}

}  // namespace tessera::tools
