#include "tessera/tools/probe/sizes.h"

#include <algorithm>

namespace tessera::tools {

namespace {

constexpr size_t kMiB = size_t{1} << 20;

/// Of a small model a large cache holds all weights from step to step, of others none. A cold gradient is written three times as
/// slowly.
const Sizes kOfCpus = {.types = {{at::kFloat, {1, 4, 16, 64, 256, 1024}, {128, 512, 2048}, {16, 64, 256, 1024}}},
                       .cached = 24 * kMiB,
                       .uncached = 128 * kMiB,
                       .head = 64,
                       .heads = 8,
                       .products = {{{128, 256, 256}, {1024, 512, 2048}}},
                       .spans = {256, 1024},
                       .rows = {32, 1024},
                       .width = 512,
                       .flat = 1 << 24,
                       .part = {1 << 14, 1 << 20},
                       .beside = {256, 512, 512},
                       .copy = 64 * kMiB,
                       .copy_beside = 2 * kMiB,
                       .shard = {1 << 10, 1 << 20},
                       .ahead = 0,
                       .engine = {.head = 64, .heads = 2, .few = {16, 4, 8, 8}, .many = {16, 4, 16, 16}, .samples = 4}};

/// Widths of Wan's 1.3B and 14B, and of their feed-forward; rows from those of a modulation to 720p.
const Sizes kOfGpus = {
    .types = {{at::kBFloat16, {16, 512, 4096, 32768}, {256, 1536, 5120, 13824}, {64, 512, 4096, 32768}},
              {at::kFloat, {16, 512, 4096}, {256, 1536, 5120}, {64, 512, 4096}}},
    .cached = 0,
    .uncached = 256 * kMiB,
    .head = 128,
    .heads = 24,
    .products = {{{1024, 1536, 1536}, {16384, 5120, 13824}}},
    .spans = {2048, 16384},
    .rows = {512, 16384},
    .width = 5120,
    .flat = 1 << 28,
    .part = {1 << 20, 1 << 26},
    .beside = {8192, 5120, 5120},
    .copy = 1024 * kMiB,
    .copy_beside = 64 * kMiB,
    .shard = {1 << 16, 1 << 24},
    .ahead = 256 * kMiB,
    .engine = {.head = 128, .heads = 16, .few = {16, 4, 64, 64}, .many = {16, 4, 64, 64}, .samples = 4}};

Sizes small_ones(std::vector<at::ScalarType> types, size_t cached) {
  Sizes sizes = kOfCpus;
  sizes.types.clear();
  for (const at::ScalarType type : types) sizes.types.push_back({type, {1, 64}, {64, 128}, {16, 64}});
  sizes.cached = cached, sizes.uncached = kMiB;
  sizes.products = {{{16, 64, 64}, {64, 128, 256}}};
  sizes.spans = {32, 128};
  sizes.rows = {32, 256}, sizes.width = 128;
  sizes.flat = 1 << 18, sizes.part = {1 << 10, 1 << 14};
  sizes.beside = {64, 128, 128};
  sizes.copy = kMiB, sizes.copy_beside = kMiB / 4;
  sizes.shard = {1 << 8, 1 << 12};
  sizes.ahead = kMiB;
  sizes.engine.few = {16, 1, 8, 8}, sizes.engine.many = {16, 2, 8, 8}, sizes.engine.samples = 2;
  return sizes;
}

}  // namespace

const Sizes& sizes_of(const device::Backend* device, bool small) {
  static const Sizes small_cpu = small_ones({at::kFloat}, kMiB / 2),
                     small_gpu = small_ones({at::kBFloat16, at::kFloat}, 0);
  if (small) return device ? small_gpu : small_cpu;
  return device ? kOfGpus : kOfCpus;
}

at::Tensor normal(at::IntArrayRef shape, at::ScalarType type) {
  constexpr int64_t kDrawn = 1 << 20;
  at::Tensor x = at::empty(shape, at::TensorOptions(type).device(device::here()));
  at::Tensor flat = x.view({-1});
  const int64_t n = flat.numel(), drawn = std::min(n, kDrawn);
  flat.narrow(0, 0, drawn).copy_(at::randn({drawn}, at::kFloat).to(type));
  for (int64_t have = drawn, more = 0; have < n; have += more) {
    more = std::min(have, n - have);
    flat.narrow(0, have, more).copy_(flat.narrow(0, 0, more));
  }
  return x;
}

}  // namespace tessera::tools
