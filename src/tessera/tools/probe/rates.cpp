#include "tessera/tools/probe/rates.h"

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

}  // namespace tessera::tools
