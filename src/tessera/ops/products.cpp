#include "tessera/ops/products.h"

#include <charconv>
#include <cstdio>
#include <mutex>
#include <set>

#include "tessera/base/log.h"
#include "tessera/device/backend.h"
#include "tessera/ops/half.h"
#include "tessera/ops/ranges.h"
#include "tessera/ops/session.h"

namespace tessera::ops {

namespace {

const char* name_of(at::ScalarType type) {
  return type == at::kFloat ? "fp32" : type == at::kBFloat16 ? "bf16" : "fp16";
}

/// How a matrix lies in memory; nothing where neither its rows nor its columns are next to each other.
struct Lies {
  bool turned;
  int64_t stride;
};
std::optional<Lies> lies(const at::Tensor& t) {
  if (t.stride(1) == 1 && t.stride(0) >= t.size(1)) return Lies{false, t.stride(0)};
  if (t.stride(0) == 1 && t.stride(1) >= t.size(0)) return Lies{true, t.stride(1)};
  return std::nullopt;
}

/// What the library serves: operands of one type, and what tensor cores want of places in memory.
std::optional<ProductShape> shape_of(const at::Tensor& out, const at::Tensor& a, const at::Tensor& b,
                                     const at::Tensor& bias, bool add) {
  const auto known = [](at::ScalarType type) { return type == at::kFloat || is_half(type); };
  const auto from = a.scalar_type(), to = out.scalar_type();
  if (a.dim() != 2 || b.dim() != 2 || !known(from) || b.scalar_type() != from || (to != from && to != at::kFloat))
    return std::nullopt;
  if (a.numel() == 0 || b.numel() == 0 || (bias.defined() && bias.scalar_type() != to)) return std::nullopt;
  const auto left = lies(a), right = lies(b), result = lies(out);
  if (!left || !right || !result || result->turned) return std::nullopt;
  return ProductShape{from,          to,           a.size(0),     b.size(1),      a.size(1),      left->turned,
                      right->turned, left->stride, right->stride, result->stride, bias.defined(), add};
}

bool is_aligned(const ProductCall& call) {
  constexpr int64_t kBytes = 16;
  const auto fits = [](const void* at, int64_t stride, at::ScalarType type) {
    return reinterpret_cast<uintptr_t>(at) % kBytes == 0 && stride * c10::elementSize(type) % kBytes == 0;
  };
  const ProductShape& s = call.shape;
  return fits(call.a, s.a_stride, s.of) && fits(call.b, s.b_stride, s.of) && fits(call.out, s.out_stride, s.to) &&
         fits(call.bias, 0, s.to);
}

ProductCall call_of(const ProductShape& shape, const at::Tensor& out, const at::Tensor& a, const at::Tensor& b,
                    const at::Tensor& bias) {
  return {shape, read_address(a), read_address(b), bias.defined() ? read_address(bias) : nullptr, address(out)};
}

struct Chosen {
  std::mutex mutex;  // of what the library refuses
  ProductAlgorithms algorithms;
  std::set<std::string> refused;
};
Chosen& chosen() {
  static Chosen all;
  return all;
}

}  // namespace

std::string ProductShape::name() const {
  const auto number = [](int64_t n) { return std::to_string(n); };
  return std::string(name_of(of)) + (to == of ? "" : std::string("-") + name_of(to)) + " " + number(m) + "x" +
         number(n) + "x" + number(k) + " " + (a_turned ? "t" : "n") + (b_turned ? "t" : "n") + " " + number(a_stride) +
         " " + number(b_stride) + " " + number(out_stride) + (bias ? " bias" : "") + (add ? " add" : "");
}

std::string ProductAlgorithm::text() const {
  std::string all;
  for (const uint64_t word : words) {
    char digits[17];
    std::snprintf(digits, sizeof digits, "%016llx", static_cast<unsigned long long>(word));
    all += digits;
  }
  return all;
}

std::optional<ProductAlgorithm> algorithm_of(std::string_view text) {
  constexpr size_t kDigits = 16;
  ProductAlgorithm algorithm;
  if (text.size() != kDigits * algorithm.words.size()) return std::nullopt;
  for (size_t i = 0; i < algorithm.words.size(); ++i) {
    const char *first = text.data() + i * kDigits, *last = first + kDigits;
    if (const auto [end, error] = std::from_chars(first, last, algorithm.words[i], 16);
        error != std::errc() || end != last)
      return std::nullopt;
  }
  return algorithm;
}

void use_algorithms(ProductAlgorithms algorithms) {
  chosen().algorithms = std::move(algorithms);
  chosen().refused.clear();
}

bool library_may_multiply(const at::Tensor& a) {
  return a.is_meta() ? session().asked_products != nullptr : !a.is_cpu() && !chosen().algorithms.empty();
}

bool multiplied(const at::Tensor& out, const at::Tensor& a, const at::Tensor& b, const at::Tensor& bias, bool add) {
  if (!library_may_multiply(a)) return false;
  const std::optional<ProductShape> shape = shape_of(out, a, b, bias, add);
  if (!shape) return false;
  if (a.is_meta()) {
    session().asked_products->insert(*shape);
    return false;
  }
  const device::Backend* gpu = device::used();
  if (!gpu || !gpu->products) return false;
  const std::string name = shape->name();
  const auto found = chosen().algorithms.find(name);
  if (found == chosen().algorithms.end()) return false;
  const ProductCall call = call_of(*shape, out, a, b, bias);
  if (!is_aligned(call)) return false;
  {
    const std::lock_guard lock(chosen().mutex);
    if (chosen().refused.contains(name)) return false;
  }
  const std::string why = gpu->products->multiply(call, found->second);
  if (why.empty()) return true;
  const std::lock_guard lock(chosen().mutex);
  if (chosen().refused.insert(name).second)
    log::warn("plan.profile: " + gpu->products->version() + " refuses the profile's algorithm for the product " + name +
              " (" + why + "): LibTorch's own choice computes it; tessera probe --recipe measures it anew");
  return false;
}

ProductOperands operands_of(const ProductShape& s,
                            const std::function<at::Tensor(at::IntArrayRef, at::ScalarType)>& make) {
  const auto matrix = [&](int64_t rows, int64_t cols, int64_t stride, bool turned, at::ScalarType type) {
    const at::Tensor whole = make({turned ? cols : rows, stride}, type).narrow(1, 0, turned ? rows : cols);
    return turned ? whole.t() : whole;
  };
  ProductOperands all{matrix(s.m, s.k, s.a_stride, s.a_turned, s.of),
                      matrix(s.k, s.n, s.b_stride, s.b_turned, s.of),
                      s.bias ? make({s.n}, s.to) : at::Tensor(),
                      matrix(s.m, s.n, s.out_stride, false, s.to),
                      {}};
  all.call = call_of(s, all.out, all.a, all.b, all.bias);
  return all;
}

}  // namespace tessera::ops
