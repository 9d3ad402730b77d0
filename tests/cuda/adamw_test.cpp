// AdamW, Lion, schedule-free updates and averages on the device give the bits of ops/adamw.h, in all forms of masters, moments
// and gradients.
#include "tessera/ops/adamw.h"

#include <memory>
#include <tuple>

#include "half_values.h"
#include "tessera/ops/bf16.h"
#include "tessera/ops/blockwise.h"

namespace tessera::cuda {
namespace {

enum class Form { fp32, bf16, split, codes };
constexpr uint64_t kStream[] = {11, 12, 13};  // of random bits: masters, first and second moment

const char* word(Form form) {
  return form == Form::fp32 ? "fp32" : form == Form::bf16 ? "bf16" : form == Form::split ? "split" : "codes";
}

/// Masters or a moment on the CPU.
struct Numbers {
  Form form;
  std::vector<float> fp32, scales;
  std::vector<uint16_t> bf16, low;
  std::vector<uint8_t> codes;

  Numbers(Form form, const std::vector<float>& x, const ops::DynamicMap& map) : form(form) {
    const auto n = static_cast<int64_t>(x.size());
    if (form == Form::fp32) fp32 = x;
    if (form == Form::bf16 || form == Form::split) bf16.resize(x.size());
    if (form == Form::bf16) ops::to_bf16(bf16.data(), x.data(), n);
    if (form == Form::split) low.resize(x.size()), ops::split_fp32(bf16.data(), low.data(), x.data(), n);
    if (form != Form::codes) return;
    codes.resize(x.size()), scales.resize((x.size() + 255) / 256);
    ops::quantise_blocks(codes.data(), scales.data(), x.data(), n, map);
  }

  ops::MasterRange masters(const RandomKey& key, uint64_t first) {
    if (form == Form::fp32) return {.fp32 = fp32.data()};
    return {.bf16 = bf16.data(), .low = form == Form::split ? low.data() : nullptr, .rounding = {&key, first}};
  }
  ops::MomentRange moment(const RandomKey& key, uint64_t first) {
    if (form == Form::fp32) return {.fp32 = fp32.data()};
    if (form == Form::bf16) return {.bf16 = bf16.data(), .rounding = {&key, first}};
    return {.codes = codes.data(), .scales = scales.data()};
  }
};

/// A copy of them on the device.
struct DeviceNumbers {
  Form form;
  DeviceArray<float> fp32, scales, map;
  DeviceArray<uint16_t> bf16, low;
  DeviceArray<uint8_t> codes;
  int zero;

  DeviceNumbers(const Numbers& x, const ops::DynamicMap& values, size_t offset)
      : form(x.form),
        fp32(x.fp32, offset),
        scales(x.scales),
        map(std::vector<float>(values.values().begin(), values.values().end())),
        bf16(x.bf16, offset),
        low(x.low, offset),
        codes(x.codes, offset),
        zero(values.zero()) {}

  static DeviceRounding rounding(const RandomKey& key, uint64_t first) {
    const auto words = key.words();
    return {{words[0], words[1], words[2], words[3]}, first};
  }
  DeviceMasters masters(const RandomKey& key, uint64_t first) {
    if (form == Form::fp32) return {fp32.data(), nullptr, nullptr, {}};
    return {nullptr, bf16.data(), form == Form::split ? low.data() : nullptr, rounding(key, first)};
  }
  DeviceMoment moment(const RandomKey& key, uint64_t first) {
    if (form == Form::fp32) return {fp32.data(), nullptr, nullptr, nullptr, nullptr, 0, {}};
    if (form == Form::bf16) return {nullptr, bf16.data(), nullptr, nullptr, nullptr, 0, rounding(key, first)};
    return {nullptr, nullptr, codes.data(), scales.data(), map.data(), zero, {}};
  }
};

/// 16-bit values are compared as the numbers they are: which NaN they hold is the processor's.
std::vector<float> joined(const std::vector<uint16_t>& high, const std::vector<uint16_t>& low) {
  std::vector<float> x(high.size());
  if (low.empty())
    ops::from_bf16(x.data(), high.data(), static_cast<int64_t>(high.size()));
  else
    ops::join_fp32(x.data(), high.data(), low.data(), static_cast<int64_t>(high.size()));
  return x;
}

void expect_same_numbers(DeviceNumbers& device, const Numbers& cpu, const std::string& what) {
  expect_same(device.fp32.values(), cpu.fp32, what);
  expect_same(joined(device.bf16.values(), device.low.values()), joined(cpu.bf16, cpu.low), what + " in bf16");
  expect_same(device.codes.values(), cpu.codes, what + "'s codes");
  expect_same(device.scales.values(), cpu.scales, what + "'s scales");
}

struct Case {
  int64_t n;
  size_t offset;   // values that the ranges lie behind an aligned address
  uint64_t first;  // element of the random bits
  bool decay_last, keep_sign;
  c10::ScalarType gradient = at::kFloat;
};

/// A gradient on the device, and as the CPU's loops read it: 16-bit ones are widened first.
struct Gradient {
  std::vector<float> wide;
  std::vector<uint16_t> halves;
  DeviceArray<float> fp32;
  DeviceArray<uint16_t> half;
  c10::ScalarType type;

  Gradient(const std::vector<float>& x, c10::ScalarType type, size_t offset)
      : wide(x),
        halves(type == at::kFloat ? std::vector<uint16_t>() : narrowed(x, type)),
        fp32(x, offset),
        half(halves, offset),
        type(type) {
    if (type != at::kFloat) wide = widened(halves, type);
  }
  ops::GradientRange range() {
    if (type == at::kFloat) return {.fp32 = fp32.data()};
    if (type == at::kHalf) return {.fp16 = half.data()};
    return {.bf16 = half.data()};
  }
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

/// A gradient as both sides take it: with halves on the CPU too.
ops::GradientRange here(Gradient& g) {
  if (g.type == at::kFloat) return {.fp32 = g.wide.data()};
  if (g.type == at::kHalf) return {.fp16 = g.halves.data()};
  return {.bf16 = g.halves.data()};
}

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
