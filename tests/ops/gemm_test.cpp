#include "tessera/ops/gemm.h"

#include <gtest/gtest.h>

namespace tessera::ops {

TEST(Gemm, EveryOrientationEqualsDoubles) {
  for (const auto& [m, k, n] :
       std::vector<std::array<int64_t, 3>>{{1, 1, 1}, {24, 25, 26}, {300, 700, 70}, {65, 513, 129}, {5, 800, 90}})
    for (const bool a_transposed : {false, true})
      for (const bool b_transposed : {false, true})
        for (const bool add : {false, true}) {
          const at::Tensor a = a_transposed ? at::randn({k, m}).t() : at::randn({m, k});
          const at::Tensor b = b_transposed ? at::randn({n, k}).t() : at::randn({k, n});
          const at::Tensor out = at::randn({m, n});
          at::Tensor expected = at::mm(a.to(at::kDouble), b.to(at::kDouble));
          if (add) expected += out;
          gemm(out, a, b, add);
          EXPECT_LE((out - expected).abs().max().item<double>(),
                    4e-6 * std::max(1.0, expected.abs().max().item<double>()))
              << m << " " << k << " " << n << " " << a_transposed << b_transposed << add;
        }
}

TEST(Gemm, OfNothingIsZero) {
  const at::Tensor out = at::ones({30, 40});
  gemm(out, at::empty({30, 0}), at::empty({0, 40}), /*add=*/true);
  EXPECT_EQ(out.sum().item<float>(), 1200);
  gemm(out, at::empty({30, 0}), at::empty({0, 40}));
  EXPECT_EQ(out.sum().item<float>(), 0);
  gemm(at::empty({0, 40}), at::empty({0, 8}), at::ones({8, 40}));
}

TEST(Gemm, MapsAnOperandWhileItIsPacked) {
  const at::Tensor a = at::randn({40, 600}), b = at::randn({600, 70}), out = at::empty({40, 70});
  const Map twice = [](float* values, int64_t count) {
    for (int64_t i = 0; i < count; ++i) values[i] *= 2;
  };
  gemm(out, a, b, false, twice, twice);
  EXPECT_LE((out - 4 * at::mm(a, b)).abs().max().item<double>(), 1e-3);
}

TEST(Gemm, WritesIntoAColumnRangeOfAWiderMatrix) {
  const at::Tensor a = at::randn({64, 64}), b = at::randn({64, 64}), wide = at::zeros({64, 200});
  gemm(wide.narrow(1, 70, 64), a, b);
  EXPECT_TRUE(at::allclose(wide.narrow(1, 70, 64), at::mm(a, b), 1e-4, 1e-4));
  EXPECT_EQ(wide.narrow(1, 0, 70).abs().sum().item<float>() + wide.narrow(1, 134, 66).abs().sum().item<float>(), 0);
}

}  // namespace tessera::ops
