// AdamW, Lion, schedule-free updates, Prodigy, Muon's momentum and step, and averages on the device give the bits of ops/adamw.h, in all forms of masters, moments
// and gradients.
#include "tessera/ops/adamw.h"

#include <memory>
#include <tuple>

#include "forms.h"

namespace tessera::cuda {
namespace {

struct Case {
  int64_t n;
  size_t offset;   // values that the ranges lie behind an aligned address
  uint64_t first;  // element of the random bits
  bool decay_last, keep_sign;
  c10::ScalarType gradient = at::kFloat;
};

void expect_the_cpus_bits(Form master, Form first, Form second, const Case& c) {
  const auto& signed_map = ops::DynamicMap::with_sign();
  const auto& unsigned_map = ops::DynamicMap::without_sign();
  const auto n = static_cast<size_t>(c.n);
  std::vector<float> squares = test_values(c.n, 3);
  for (float& x : squares) x = std::abs(x) * 1e-3f;
  Numbers p(master, test_values(c.n, 1), signed_map), m(first, test_values(c.n, 2), signed_map),
      v(second, squares, unsigned_map);
  DeviceNumbers device_p(p, signed_map, c.offset), device_m(m, signed_map, c.offset),
      device_v(v, unsigned_map, c.offset);
  for (int64_t step = 1; step <= 2; ++step) {
    Gradient gradient(test_values(c.n, static_cast<uint64_t>(10 + step)), c.gradient, c.offset);
    const ops::AdamWStep numbers{.step = step,
                                 .lr = 1e-3,
                                 .weight_decay = 0.01,
                                 .grad_scale = 0.7,
                                 .decay_last = c.decay_last,
                                 .keep_sign = c.keep_sign};
    const auto key = [&](int which) {
      return RandomKey(5, Purpose::rounding, static_cast<uint64_t>(step), kStream[which]);
    };
    const RandomKey kp = key(0), km = key(1), kv = key(2);
    ops::adamw(p.masters(kp, c.first), m.moment(km, c.first), v.moment(kv, c.first), gradient.wide.data(), c.n,
               numbers);
    check(launch_adamw(device_p.masters(kp, c.first), device_m.moment(km, c.first), device_v.moment(kv, c.first),
                       gradient.range(), c.n, ops::AdamWFactors(numbers), c.keep_sign, nullptr));
    const std::string at = " of " + std::to_string(n) + " after step " + std::to_string(step);
    expect_same_numbers(device_p, p, "masters" + at);
    expect_same_numbers(device_m, m, "first moment" + at);
    expect_same_numbers(device_v, v, "second moment" + at);
  }
}

class AdamWForms : public KernelTest, public ::testing::WithParamInterface<std::tuple<Form, Form, Form>> {};

TEST_P(AdamWForms, HaveTheCpusBits) {
  const auto [master, first, second] = GetParam();
  for (const int64_t n : kSizes) expect_the_cpus_bits(master, first, second, {n, 0, 16, false, false});
  expect_the_cpus_bits(master, first, second, {2049, 1, 13, true, true});  // 4-byte accesses, two blocks of random bits
  expect_the_cpus_bits(master, first, second,
                       {2049, 0, (1ull << 35) - 9, true, true});  // the block's number has two words
  for (const c10::ScalarType half : {at::kBFloat16, at::kHalf})
    for (const size_t offset : {0u, 1u})
      expect_the_cpus_bits(master, first, second, {2049, offset, 16, false, true, half});
}

INSTANTIATE_TEST_SUITE_P(, AdamWForms,
                         ::testing::Combine(::testing::Values(Form::fp32, Form::split, Form::bf16),
                                            ::testing::Values(Form::fp32, Form::bf16, Form::codes),
                                            ::testing::Values(Form::fp32, Form::bf16, Form::codes)),
                         [](const auto& info) {
                           return std::string(word(std::get<0>(info.param))) + "_" + word(std::get<1>(info.param)) +
                                  "_" + word(std::get<2>(info.param));
                         });

constexpr Case kCases[] = {{1, 0, 16, false, false},
                           {255, 0, 16, false, false},
                           {2049, 1, 13, false, false},
                           {2049, 0, (1ull << 35) - 9, false, false},
                           {777, 0, 16, false, false, at::kBFloat16},
                           {777, 1, 16, false, false, at::kHalf}};

class LionForms : public KernelTest, public ::testing::WithParamInterface<std::tuple<Form, Form>> {};

TEST_P(LionForms, HaveTheCpusBits) {
  const auto [master, form] = GetParam();
  const auto& map = ops::DynamicMap::with_sign();
  for (const Case& c : kCases) {
    Numbers p(master, test_values(c.n, 1), map), m(form, test_values(c.n, 2), map);
    DeviceNumbers device_p(p, map, c.offset), device_m(m, map, c.offset);
    for (uint64_t step = 1; step <= 2; ++step) {
      Gradient g(test_values(c.n, 10 + step), c.gradient, c.offset);
      const RandomKey kp(5, Purpose::rounding, step, 1), km(5, Purpose::rounding, step, 2);
      const ops::LionFactors factors{0.7f, 0.999f, 1e-2f, 0.9f, 0.1f, 0.99f, 0.01f};
      ops::lion(p.masters(kp, c.first), m.moment(km, c.first), here(g), c.n, factors);
      check(launch_lion(device_p.masters(kp, c.first), device_m.moment(km, c.first), g.range(), c.n, factors, nullptr));
      const std::string at = " of " + std::to_string(c.n) + " after step " + std::to_string(step);
      expect_same_numbers(device_p, p, "masters" + at), expect_same_numbers(device_m, m, "moment" + at);
    }
  }
}

constexpr ops::ProdigyFactors kProdigy = {0.7f, 0.9f, 0.1f, 0.999f, 0.001f, 0.99f, 0.02f, 0.999f, 1e-3f, 1e-8f, true};

/// The first step begins with what the parameters are, whatever was there.
TEST_P(LionForms, ProdigyHasTheCpusBitsAndTotals) {
  const auto [master, form] = GetParam();
  const auto &map = ops::DynamicMap::with_sign(), &unsigned_map = ops::DynamicMap::without_sign();
  for (const Case& c : kCases) {
    std::vector<float> squares = test_values(c.n, 3), s = test_values(c.n, 4), start(s.size(), kNaN);
    for (float& x : squares) x = std::abs(x) * 1e-3f;
    Numbers p(master, test_values(c.n, 1), map), m(form, test_values(c.n, 2), map), v(form, squares, unsigned_map);
    DeviceNumbers device_p(p, map, c.offset), device_m(m, map, c.offset), device_v(v, unsigned_map, c.offset);
    DeviceArray<float> device_s(s, c.offset), device_start(start, c.offset);
    for (uint64_t step = 1; step <= 3; ++step) {
      Gradient g(test_values(c.n, 10 + step), c.gradient, c.offset);
      const RandomKey kp(5, Purpose::rounding, step, 1), km(5, Purpose::rounding, step, 2),
          kv(5, Purpose::rounding, step, 3);
      ops::ProdigyFactors factors = kProdigy;
      factors.begins = step == 1;
      std::vector<double> totals(2);
      DeviceArray<double> device_totals(2);
      double* there = step == 3 ? nullptr : device_totals.data();  // an element that no total counts
      ops::prodigy(p.masters(kp, c.first), m.moment(km, c.first), v.moment(kv, c.first), s.data(), start.data(),
                   here(g), c.n, factors, there ? totals.data() : nullptr);
      check(launch_prodigy(device_p.masters(kp, c.first), device_m.moment(km, c.first), device_v.moment(kv, c.first),
                           device_s.data(), device_start.data(), g.range(), c.n, factors, there, nullptr));
      const std::string at = " of " + std::to_string(c.n) + " after step " + std::to_string(step);
      expect_same_numbers(device_p, p, "masters" + at), expect_same_numbers(device_m, m, "first moment" + at);
      expect_same_numbers(device_v, v, "second moment" + at);
      expect_same(device_s.values(), s, "sums" + at), expect_same(device_start.values(), start, "start" + at);
      if (there) expect_same(device_totals.values(), totals, "totals" + at);
    }
  }
}

TEST_P(LionForms, MuonsMomentumAndStepHaveTheCpusBits) {
  const auto [master, form] = GetParam();
  const auto& map = ops::DynamicMap::with_sign();
  for (const Case& c : kCases)
    for (const bool exact : {false, true}) {
      const auto n = static_cast<size_t>(c.n);
      Numbers p(master, test_values(c.n, 1), map), m(form, test_values(c.n, 2), map);
      DeviceNumbers device_p(p, map, c.offset), device_m(m, map, c.offset);
      std::vector<float> whole(exact ? n : 0);
      std::vector<uint16_t> halves(exact ? 0 : n);
      DeviceArray<float> device_whole(whole.size(), c.offset);
      DeviceArray<uint16_t> device_halves(halves.size(), c.offset);
      const ops::DirectionRange way = {exact ? whole.data() : nullptr, exact ? nullptr : halves.data()},
                                device_way = {exact ? device_whole.data() : nullptr,
                                              exact ? nullptr : device_halves.data()};
      for (uint64_t step = 1; step <= 2; ++step) {
        Gradient g(test_values(c.n, 10 + step), c.gradient, c.offset);
        const RandomKey kp(5, Purpose::rounding, step, 1), km(5, Purpose::rounding, step, 2);
        const ops::MomentumFactors factors = {0.7f, 0.05f, 0.95f, /*nesterov=*/step == 1};
        ops::momentum(m.moment(km, c.first), here(g), c.n, factors, way);
        check(launch_momentum(device_m.moment(km, c.first), g.range(), c.n, factors, device_way, nullptr));
        ops::step_along(p.masters(kp, c.first), way, c.n, 0.999f, 1e-2f);
        check(launch_step_along(device_p.masters(kp, c.first), device_way, c.n, 0.999f, 1e-2f, nullptr));
        const std::string at = " of " + std::to_string(c.n) + " after step " + std::to_string(step);
        expect_same(device_whole.values(), whole, "direction" + at);
        expect_same(joined(device_halves.values(), {}), joined(halves, {}), "direction in bf16" + at);
        expect_same_numbers(device_p, p, "masters" + at), expect_same_numbers(device_m, m, "moment" + at);
      }
    }
}

class Prodigy : public KernelTest {};

/// More parts than thread blocks, and a last one that ends inside a block; then all of them in order.
TEST_F(Prodigy, TotalsOfManyPartsAreAddedInOrder) {
  const int64_t n = (4 << 16) + 5 * 256 + 77, parts = 5;
  const RandomKey key(7, Purpose::test);
  std::vector<float> all[6];
  for (size_t i = 0; i < 6; ++i) {
    all[i].resize(static_cast<size_t>(n));
    key.normal(all[i].data(), i * static_cast<uint64_t>(n), all[i].size());
  }
  for (float& x : all[2]) x = x * x;
  auto& [p, m, v, s, start, g] = all;
  DeviceArray<float> dp(p), dm(m), dv(v), ds(s), dstart(start), dg(g);
  ops::ProdigyFactors factors = kProdigy;
  factors.begins = false;
  std::vector<double> totals(2 * parts), sum = {0.5, -3};
  DeviceArray<double> device_totals(totals.size()), device_sum(sum);
  ops::prodigy({.fp32 = p.data()}, {.fp32 = m.data()}, {.fp32 = v.data()}, s.data(), start.data(), {.fp32 = g.data()},
               n, factors, totals.data());
  DeviceMoment first = {}, second = {};
  first.fp32 = dm.data(), second.fp32 = dv.data();
  check(launch_prodigy({dp.data(), nullptr, nullptr, {}}, first, second, ds.data(), dstart.data(), {.fp32 = dg.data()},
                       n, factors, device_totals.data(), nullptr));
  expect_same(device_totals.values(), totals, "totals");
  expect_same(dp.values(), p, "masters");
  ops::add_totals(sum.data(), totals.data(), parts);
  check(launch_add_in_order(device_sum.data(), device_totals.data(), 2 * parts, 2, true, nullptr));
  expect_same(device_sum.values(), sum, "their sum");
}

INSTANTIATE_TEST_SUITE_P(, LionForms,
                         ::testing::Combine(::testing::Values(Form::fp32, Form::split, Form::bf16),
                                            ::testing::Values(Form::fp32, Form::bf16, Form::codes)),
                         [](const auto& info) {
                           return std::string(word(std::get<0>(info.param))) + "_" + word(std::get<1>(info.param));
                         });

class UpdateForms : public KernelTest, public ::testing::WithParamInterface<Form> {};

/// The first step begins z and x, whatever was there; a step before RAdam can divide; and one that does.
TEST_P(UpdateForms, ScheduleFreeHasTheCpusBits) {
  const auto& map = ops::DynamicMap::with_sign();
  for (const Case& c : kCases) {
    Numbers y(GetParam(), test_values(c.n, 1), map);
    DeviceNumbers device_y(y, map, c.offset);
    std::vector<float> z(static_cast<size_t>(c.n), kNaN), x = z, v(z.size());
    DeviceArray<float> device_z(z, c.offset), device_x(x, c.offset), device_v(v, c.offset);
    for (uint64_t step = 1; step <= 3; ++step) {
      Gradient g(test_values(c.n, 10 + step), c.gradient, c.offset);
      const RandomKey key(5, Purpose::rounding, step, 1);
      const ops::ScheduleFreeFactors factors{.scale = 0.7f,
                                             .keep = 0.999f,
                                             .take = 0.001f,
                                             .correction = 3.1f,
                                             .eps = 1e-8f,
                                             .decay = 0.01f,
                                             .rate = 1e-2f,
                                             .average = 1.0f / static_cast<float>(step),
                                             .inwards = 0.1f,
                                             .divides = step != 2,
                                             .begins = step == 1};
      ops::schedule_free(y.masters(key, c.first), z.data(), v.data(), x.data(), here(g), c.n, factors);
      check(launch_schedule_free(device_y.masters(key, c.first), device_z.data(), device_v.data(), device_x.data(),
                                 g.range(), c.n, factors, nullptr));
      const std::string at = " of " + std::to_string(c.n) + " after step " + std::to_string(step);
      expect_same_numbers(device_y, y, "masters" + at);
      expect_same(device_z.values(), z, "z" + at), expect_same(device_x.values(), x, "x" + at);
      expect_same(device_v.values(), v, "second moment" + at);
    }
  }
}

/// Taken whole an average is a copy to the last bit, whatever it was.
TEST_P(UpdateForms, AveragesHaveTheCpusBits) {
  const auto& map = ops::DynamicMap::with_sign();
  for (const Case& c : kCases) {
    Numbers p(GetParam(), test_values(c.n, 1), map);
    DeviceNumbers device_p(p, map, c.offset);
    std::vector<float> average = test_values(c.n, 2);
    average[0] = kNaN;
    DeviceArray<float> device_average(average, c.offset);
    const RandomKey key(5, Purpose::rounding, 1, 1);
    for (const float take : {0.001f, 1.0f, 0.75f}) {
      ops::move_average(average.data(), p.masters(key, c.first), c.n, take);
      check(launch_move_average(device_average.data(), device_p.masters(key, c.first), c.n, take, nullptr));
      expect_same(device_average.values(), average, "average of " + std::to_string(c.n));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(, UpdateForms, ::testing::Values(Form::fp32, Form::split, Form::bf16),
                         [](const auto& info) { return word(info.param); });

}  // namespace
}  // namespace tessera::cuda
