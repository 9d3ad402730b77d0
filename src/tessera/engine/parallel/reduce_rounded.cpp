#include "tessera/engine/parallel/reduce_rounded.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "tessera/ops/half.h"
#include "tessera/ops/host.h"

namespace tessera::engine {

using at::Tensor;

namespace {

constexpr int64_t kSumBlock = 1024;

/// Calls take(first, sum, count) with parts[0] + parts[1] + ... in fp32, block by block: sums stay in the cache.
template <class Take>
void each_sum(const std::vector<Tensor>& parts, at::ScalarType type, const Take& take) {
  std::array<float, kSumBlock> sum, part;
  for (int64_t first = 0; first < parts[0].numel(); first += kSumBlock) {
    const int64_t count = std::min(kSumBlock, parts[0].numel() - first);
    const auto at = [&](size_t p) {
      return static_cast<const uint16_t*>(ops::host_pointer<const void>(parts[p])) + first;
    };
    ops::widen(sum.data(), at(0), type, count);
    for (size_t p = 1; p < parts.size(); ++p) {
      ops::widen(part.data(), at(p), type, count);
      for (int64_t i = 0; i < count; ++i) sum[i] += part[i];
    }
    take(first, sum.data(), count);
  }
}

}  // namespace

void reduce_scatter_rounded(comm::Group& group, at::ScalarType type, const Tensor& shard, const Tensor& flat,
                            const Tensor& scratch, bool accumulate) {
  const int64_t n = shard.numel();
  ops::narrow_in_place(ops::host_pointer<float>(flat), type, flat.numel());
  std::vector<Tensor> send, received;
  for (int i = 0; i < group.size(); ++i) {
    send.push_back(flat.view(type).narrow(0, i * n, n));
    received.push_back(scratch.view(type).narrow(0, i * n, n));
  }
  group.all_to_all(send, received);
  float* out = ops::host_pointer<float>(shard);
  each_sum(received, type, [&](int64_t first, const float* sum, int64_t count) {
    if (!accumulate) std::fill_n(out + first, count, 0.0f);
    for (int64_t i = 0; i < count; ++i) out[first + i] += sum[i];
  });
}

void all_reduce_rounded(comm::Group& group, at::ScalarType type, const Tensor& tensor) {
  const int64_t n = tensor.numel(), members = group.size();
  if (members == 1) return;
  ops::narrow_in_place(ops::host_pointer<float>(tensor), type, n);
  const Tensor mine = tensor.view(type).narrow(0, 0, n);
  const auto begin = [&](int64_t i) { return n * i / members; };
  const int64_t own = begin(group.rank() + 1) - begin(group.rank());
  // Behind the send buffer is room for n values of the others' parts; parts of different lengths may need more.
  const bool fits = (members - 1) * own <= n;
  const Tensor space = fits ? tensor.view(type).narrow(0, n, n) : at::empty({(members - 1) * own}, mine.options());
  std::vector<Tensor> send, received;
  for (int64_t i = 0, at = 0; i < members; ++i) {
    send.push_back(mine.narrow(0, begin(i), begin(i + 1) - begin(i)));
    if (i == group.rank())
      received.push_back(send.back());
    else
      received.push_back(space.narrow(0, at, own)), at += own;
  }
  group.all_to_all(send, received);
  auto* sums = static_cast<uint16_t*>(ops::host_pointer<void>(send[group.rank()]));
  each_sum(received, type,
           [&](int64_t first, const float* sum, int64_t count) { ops::narrow(sums + first, sum, type, count); });
  group.all_to_all(std::vector<Tensor>(static_cast<size_t>(members), send[group.rank()]), send);
  std::memcpy(ops::host_pointer<void>(tensor.view(type).narrow(0, n, n)), ops::host_pointer<const void>(mine),
              mine.nbytes());
  ops::widen_in_place(ops::host_pointer<float>(tensor), type, n);
}

}  // namespace tessera::engine
