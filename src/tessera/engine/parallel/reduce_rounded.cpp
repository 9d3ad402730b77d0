#include "tessera/engine/parallel/reduce_rounded.h"

#include "tessera/ops/ranges.h"

namespace tessera::engine {

using at::Tensor;

void reduce_scatter_rounded(comm::Group& group, at::ScalarType type, const Tensor& shard, const Tensor& flat,
                            const Tensor& scratch, bool accumulate) {
  const int64_t n = shard.numel();
  ops::narrow_in_place(flat, type);
  std::vector<Tensor> send, received;
  for (int i = 0; i < group.size(); ++i) {
    send.push_back(flat.view(type).narrow(0, i * n, n));
    received.push_back(scratch.view(type).narrow(0, i * n, n));
  }
  group.all_to_all(send, received);
  ops::sum_halves(shard, received, accumulate);
}

void all_reduce_rounded(comm::Group& group, at::ScalarType type, const Tensor& tensor) {
  const int64_t n = tensor.numel(), members = group.size();
  if (members == 1) return;
  ops::narrow_in_place(tensor, type);
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
  ops::sum_halves_rounded(send[group.rank()], received);
  group.all_to_all(std::vector<Tensor>(static_cast<size_t>(members), send[group.rank()]), send);
  ops::copy_bytes(tensor.view(type).narrow(0, n, n), mine);
  ops::widen_in_place(tensor, type);
}

}  // namespace tessera::engine
