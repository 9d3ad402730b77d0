// Adafactor and CAME on the device give the bits of ops/factored.h: sums over rows and columns of every part of a tensor, and
// updates in all forms of masters, moments and gradients.
#include "tessera/ops/factored.h"

#include <tuple>

#include "forms.h"

namespace tessera::cuda {
namespace {

struct Part {
  const char* name;
  ops::FactoredPlace place;
  c10::ScalarType gradient = at::kFloat;
  size_t offset = 0;
  bool apart = false;  ///< with infinite values and NaN
};

/// Of a whole tensor, of a slice that begins and ends inside rows, of several matrices, of a rank's columns, of its rows.
const Part kParts[] = {
    {"whole", {.count = 1500, .matrices = 1, .rows = 5, .columns = 300}},
    {"slice", {.begin = 256, .count = 2744, .matrices = 1, .rows = 64, .columns = 50}},
    {"slice in bf16", {.begin = 512, .count = 1111, .matrices = 1, .rows = 19, .columns = 190}, at::kBFloat16, 1},
    {"matrices", {.begin = 256, .count = 1644, .matrices = 3, .rows = 10, .columns = 70}, at::kHalf},
    {"own columns",
     {.begin = 256, .count = 700, .inner = 96, .width = 24, .first = 48, .matrices = 1, .rows = 40, .columns = 96}},
    {"few own columns",
     {.count = 700, .inner = 300, .width = 7, .first = 293, .matrices = 1, .rows = 100, .columns = 300}},
    {"own rows", {.count = 768, .inner = 768, .width = 384, .first = 384, .matrices = 2, .rows = 16, .columns = 48}},
    {"parts of rows", {.count = 600, .inner = 40, .width = 20, .first = 10, .matrices = 1, .rows = 10, .columns = 120}},
    {"one column", {.count = 700, .matrices = 1, .rows = 700, .columns = 1}},
    {"one row", {.begin = 256, .count = 444, .matrices = 1, .rows = 1, .columns = 700}},
    {"apart", {.count = 1500, .matrices = 1, .rows = 15, .columns = 100}, at::kFloat, 0, true},
    {"vector", {.begin = 256, .count = 777}},
    {"vector in bf16", {.count = 2049}, at::kBFloat16, 1, true},
};

/// A slice with its sums, on the CPU and on the device.
struct Both {
  const Part& part;
  std::vector<float> second, factors, residual, rows, columns;
  DeviceArray<float> device_second, device_factors, device_residual, device_rows, device_columns;

  explicit Both(const Part& part)
      : part(part),
        second(size(part.place.matrices ? 0 : part.place.count), 0.3f),
        factors(size(of_rows() + of_columns())),
        residual(factors.size()),
        rows(size(of_rows()), 0.25f),
        columns(size(of_columns()), 0.5f),
        device_second(second, part.offset),
        device_factors(factors.size()),
        device_residual(factors.size()),
        device_rows(rows),
        device_columns(columns) {}

  static size_t size(int64_t n) { return static_cast<size_t>(n); }
  int64_t of_rows() const { return part.place.matrices * part.place.rows; }
  int64_t of_columns() const { return part.place.matrices * part.place.columns; }

  /// Takes a round of sums over rows and columns; `add`, with the addresses of both sides.
  template <class Add>
  void take(std::vector<float>& factors, DeviceArray<float>& device_factors, const Add& add, const std::string& what) {
    std::vector<double> sums(factors.size(), 0.125);  // they are added to what is there
    DeviceArray<double> device_sums(sums);
    add(sums.data(), device_sums.data());
    expect_same(device_sums.values(), sums, "sums of " + what);
    std::copy(sums.begin(), sums.end(), factors.begin());
    if (!factors.empty())
      check(cudaMemcpy(device_factors.data(), factors.data(), 4 * factors.size(), cudaMemcpyHostToDevice));
    ops::take_means({part.place, rows.data(), columns.data(), factors.data(), 0.9});
    check(launch_take_means({part.place, device_rows.data(), device_columns.data(), device_factors.data(), 0.9},
                            nullptr));
    expect_same(device_rows.values(), rows, "rows of " + what),
        expect_same(device_columns.values(), columns, "columns of " + what);
    expect_same(device_factors.values(), factors, "factors of " + what);
  }
};

std::vector<float> drawn(const Part& part, uint64_t seed) {
  if (part.apart) return test_values(part.place.count, seed);
  std::vector<float> x(static_cast<size_t>(part.place.count));
  RandomKey(seed, Purpose::test).normal(x.data(), 0, x.size());
  return x;
}

class FactoredForms : public KernelTest, public ::testing::WithParamInterface<std::tuple<Form, Form>> {
 protected:
  /// One step on both sides up to the update: `update(slice, device_slice, both)`.
  template <class Residual, class Update>
  void each_part(const Residual& residual, const Update& update) {
    const auto [master, form] = GetParam();
    const auto& map = ops::DynamicMap::with_sign();
    for (const Part& part : kParts) {
      const ops::FactoredPlace& place = part.place;
      Numbers p(master, drawn(part, 1), map), m(form, drawn(part, 2), map);
      DeviceNumbers device_p(p, map, part.offset), device_m(m, map, part.offset);
      Both both(part);
      for (uint64_t step = 1; step <= 2; ++step) {
        const std::string what = std::string(part.name) + " in step " + std::to_string(step);
        Gradient g(drawn(part, 10 + step), part.gradient, part.offset);
        ops::ClippedSlice slice = {.place = place, .gradient = here(g), .scale = 0.7f, .eps = 1e-30f};
        slice.keep = 0.9f, slice.take = 0.1f, slice.numel = 5000, slice.clip_threshold = 0.3;
        ops::ClippedSlice there = slice;
        there.gradient = g.range();
        if (place.matrices == 0) slice.second = both.second.data(), there.second = both.device_second.data();
        if (place.matrices > 0)
          both.take(
              both.factors, both.device_factors,
              [&](double* sums, double* device_sums) {
                ops::add_row_sums(slice, sums);
                check(launch_add_row_sums(there, device_sums, nullptr));
              },
              what);
        slice.factors = both.factors.data(), there.factors = both.device_factors.data();
        std::vector<double> squares = {0.5};
        DeviceArray<double> device_squares(squares), partials(2);
        ops::add_divided_squares(slice, squares.data());
        check(launch_add_divided_squares(there, device_squares.data(), partials.data(), nullptr));
        expect_same(device_squares.values(), squares, "squares of " + what);
        const std::vector<float> square = {static_cast<float>(squares[0])};
        DeviceArray<float> device_square(square);
        slice.squares = square.data(), there.squares = device_square.data();
        const RandomKey kp(5, Purpose::rounding, step, 1), km(5, Purpose::rounding, step, 2);
        const Sides sides = {p.masters(kp, 16), m.moment(km, 16), device_p.masters(kp, 16), device_m.moment(km, 16)};
        residual(slice, there, both, sides, what);
        update(slice, there, both, sides);
        expect_same_numbers(device_p, p, "masters of " + what), expect_same_numbers(device_m, m, "moment of " + what);
        expect_same(both.device_second.values(), both.second, "second moment of " + what);
      }
    }
  }
  struct Sides {
    ops::MasterRange p;
    ops::MomentRange m;
    DeviceMasters device_p;
    DeviceMoment device_m;
  };
};

TEST_P(FactoredForms, AdafactorHasTheCpusBits) {
  const std::vector<float> size = {3.5f};
  DeviceArray<float> device_size(size);
  for (const bool has_first : {false, true})
    each_part([](auto&&...) {},
              [&](const ops::ClippedSlice& slice, const ops::ClippedSlice& there, Both&, const Sides& sides) {
                ops::AdafactorStep step = {.p = sides.p, .first = sides.m, .has_first = has_first};
                step.keep = 0.9f, step.take = 0.1f, step.lr = 1e-2, step.weight_decay = 0.1, step.least = 1e-3;
                step.size = has_first ? nullptr : size.data();
                ops::adafactor(slice, step);
                step.size = has_first ? nullptr : device_size.data();
                check(launch_adafactor(there, step, sides.device_p, sides.device_m, nullptr));
              });
}

TEST_P(FactoredForms, CameHasTheCpusBits) {
  const auto step_of = [](const Sides& sides) {
    return ops::CameStep{
        .p = sides.p, .first = sides.m, .keep = 0.9f, .take = 0.1f, .eps = 1e-16f, .lr = 1e-2f, .decay = 0.999f};
  };
  each_part(
      [&](const ops::ClippedSlice& slice, const ops::ClippedSlice& there, Both& both, const Sides& sides,
          const std::string& what) {
        if (slice.place.matrices == 0) return;
        both.take(
            both.residual, both.device_residual,
            [&](double* sums, double* device_sums) {
              ops::add_residual_sums(slice, step_of(sides), sums);
              check(launch_add_residual_sums(there, step_of(sides), sides.device_m, device_sums, nullptr));
            },
            "residual of " + what);
      },
      [&](const ops::ClippedSlice& slice, const ops::ClippedSlice& there, Both& both, const Sides& sides) {
        ops::CameStep step = step_of(sides);
        step.factors = both.residual.data();
        ops::came(slice, step);
        step.factors = both.device_residual.data();
        check(launch_came(there, step, sides.device_p, sides.device_m, nullptr));
      });
}

TEST_P(FactoredForms, MastersSquaresHaveTheCpusBits) {
  const auto master = std::get<0>(GetParam());
  if (std::get<1>(GetParam()) != Form::fp32) return;  // of no moment
  for (const int64_t n : {int64_t{1}, int64_t{777}, (int64_t{1} << 16) + 300}) {
    std::vector<float> x(static_cast<size_t>(n));
    RandomKey(3, Purpose::test).normal(x.data(), 0, x.size());
    const auto& map = ops::DynamicMap::with_sign();
    Numbers p(master, x, map);
    DeviceNumbers device_p(p, map, 0);
    const RandomKey key(5, Purpose::rounding, 1, 1);
    std::vector<double> sum = {0.25};
    DeviceArray<double> device_sum(sum), partials(2);
    ops::add_master_squares(p.masters(key, 0), n, sum.data());
    check(launch_add_master_squares(device_p.masters(key, 0), n, device_sum.data(), partials.data(), nullptr));
    expect_same(device_sum.values(), sum, "squares of " + std::to_string(n));
  }
}

INSTANTIATE_TEST_SUITE_P(, FactoredForms,
                         ::testing::Combine(::testing::Values(Form::fp32, Form::split, Form::bf16),
                                            ::testing::Values(Form::fp32, Form::bf16, Form::codes)),
                         [](const auto& info) {
                           return std::string(word(std::get<0>(info.param))) + "_" + word(std::get<1>(info.param));
                         });

}  // namespace
}  // namespace tessera::cuda
