#pragma once
// Masters, moments and gradients in their storage formats, on the CPU and on a device.
//
//   Numbers p(Form::split, values, map);
//   DeviceNumbers device_p(p, map, /*offset=*/0);
//   ops::lion(p.masters(key, 0), ...), launch_lion(device_p.masters(key, 0), ...);
//   expect_same_numbers(device_p, p, "masters");
#include "half_values.h"
#include "tessera/cuda/kernels.h"
#include "tessera/ops/bf16.h"
#include "tessera/ops/blockwise.h"

namespace tessera::cuda {

enum class Form { fp32, bf16, split, codes };
inline constexpr uint64_t kStream[] = {11, 12, 13};  // of random bits: masters, first and second moment

inline const char* word(Form form) {
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
inline std::vector<float> joined(const std::vector<uint16_t>& high, const std::vector<uint16_t>& low) {
  std::vector<float> x(high.size());
  if (low.empty())
    ops::from_bf16(x.data(), high.data(), static_cast<int64_t>(high.size()));
  else
    ops::join_fp32(x.data(), high.data(), low.data(), static_cast<int64_t>(high.size()));
  return x;
}

inline void expect_same_numbers(DeviceNumbers& device, const Numbers& cpu, const std::string& what) {
  expect_same(device.fp32.values(), cpu.fp32, what);
  expect_same(joined(device.bf16.values(), device.low.values()), joined(cpu.bf16, cpu.low), what + " in bf16");
  expect_same(device.codes.values(), cpu.codes, what + "'s codes");
  expect_same(device.scales.values(), cpu.scales, what + "'s scales");
}

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

/// A gradient as both sides take it: with halves on the CPU too.
inline ops::GradientRange here(Gradient& g) {
  if (g.type == at::kFloat) return {.fp32 = g.wide.data()};
  if (g.type == at::kHalf) return {.fp16 = g.halves.data()};
  return {.bf16 = g.halves.data()};
}

}  // namespace tessera::cuda
